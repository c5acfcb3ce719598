"""Theorem 1 and its two propositions: the three terms, measured beside what they should bound.

"bowl", f = |x|^2 / 2, and "waves", f = sum_i 1 - cos x_i, both with M = 1, in d coordinates with
gradient noise of variance C each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from asgld.theory import Accumulators
from asgld.theory import terms as terms_of
from asgld_study.chains import View, due_steps
from asgld_study.drawing import INK, curve, legend, log_log, outer, panels, picture
from asgld_study.engine import Outcomes, Size, Task, experiment, task
from asgld_study.judge import Checks, Claim, at_most
from asgld_study.landscapes import LANDSCAPES
from asgld_study.paper.accumulator import KINDS, LR, follow_kind

SMOOTHNESS = 1.0
TERMS = ("I1", "I2", "I3")
_VERSIONS = ("published", "corrected")


def measure_terms(
    label: str, function: str, dim: int, *, steps: int, replicas: int
) -> dict[str, Any]:
    """The smallest E|grad f|^2 so far beside I1 + I2 + I3, published and corrected, over k."""
    _, alpha, beta, sigma, variance = KINDS[label]
    f = LANDSCAPES[function]
    ks = due_steps(steps, decades=math.log10(steps), per_decade=6)
    due, first, sums, best = set(ks), None, np.zeros(4), math.inf
    rows, gaps, smallest = [], [], []

    def look(view: View) -> None:
        nonlocal first, best
        if first is None:
            first = f.value(view.x)
        if view.step in due:
            rows.append(sums.copy())
            gaps.append(float((first - f.value(view.x)).mean()))
            smallest.append(best)
        D = view.D
        best = min(best, float(f.grad(view.x).square().sum(-1).mean()))
        sums[:] += [
            float((D ** (-alpha / 2)).sum(-1).mean()),
            float((D.amax(-1) ** (-alpha / 2)).mean()),
            float((D**-alpha).sum(-1).mean()),
            0.0 if math.isinf(beta) else float((D**-beta).sum(-1).mean()),
        ]

    follow_kind(label, function, look, dim=dim, replicas=replicas, steps=steps)
    value = {"label": label, "function": function, "dim": dim, "k": ks, "smallest": smallest}
    sums_of_powers, gap = Accumulators(*np.array(rows).T), np.array(gaps)
    known = {"lr": LR, "smoothness": SMOOTHNESS, "sigma": sigma, "gradient_variance": variance}
    for version in _VERSIONS:
        bound = terms_of(sums_of_powers, f_gap=gap, version=version, **known)
        value[version] = {name: np.asarray(term).tolist() for name, term in bound._asdict().items()}
    return value


@experiment("terms", "The three terms of Theorem 1")
def term_tasks(size: Size) -> list[Task]:
    """Does I1 + I2 + I3 bound the squared gradient?"""
    run = partial(task, measure_terms, steps=size.grid, replicas=size.chains)
    labels = ("ASGLD (1, 1)", "AGLD (0, 1)", "ASG (1)")
    return [
        *(run(label=n, function="waves", dim=d) for n in labels for d in (1, 2, 10, 100)),
        *(run(label="plain descent", function="bowl", dim=dim) for dim in (1, 2, 10)),
    ]


def _ratio(value: dict[str, Any], version: str) -> Any:
    """The smallest E|grad f|^2 over the bound, at each k."""
    bound = np.sum([value[version][name] for name in TERMS], axis=0)
    return np.array(value["smallest"]) / bound


def _check(labels: Sequence[str], o: Outcomes) -> Checks:
    found = [value for label in labels for value in o["terms"].select(label=label)]
    for version in _VERSIONS:
        for value in found:
            says = (
                f"{value['label']} on the {value['function']}, d = {value['dim']}: smallest "
                f"E|grad f|^2 over the {version} bound, at its worst k"
            )
            worst = float(np.max(_ratio(value, version)))
            yield at_most(says, worst, 1.0, core=version == "published")


BOUNDS = (
    Claim(
        "T1",
        "ASGLD: the smallest expected squared gradient is at most I1 + I2 + I3.",
        "Theorem 1",
        ("terms",),
        partial(_check, ("ASGLD (1, 1)", "plain descent")),
        "The denominators need (max D)^(-alpha/2) where the theorem has a trace: a factor of d or "
        "more.",
        "Theorem 1",
    ),
    *(
        Claim(name, says, where, ("terms",), partial(_check, labels), "As for Theorem 1.", where)
        for name, says, where, labels in (
            ("T1a", "AGLD: the same with I1 + I3.", "Proposition 2", ("AGLD (0, 1)",)),
            ("T1b", "ASG: the same with I1 + I2.", "Proposition 3", ("ASG (1)",)),
        )
    ),
)


def late(value: dict[str, Any], name: str) -> tuple[Any, Any]:
    """The last decade of k, and a corrected term over it."""
    k, term = np.array(value["k"], dtype=np.float64), np.array(value["corrected"][name])
    is_late = k >= k[-1] / 10.0
    return k[is_late], term[is_late]


def growth(value: dict[str, Any], name: str) -> float:
    """By which factor a term times k^(1/2) grows over the last decade: that of its logarithm."""
    k, term = late(value, name)
    return float(term[-1] * math.sqrt(k[-1]) / (term[0] * math.sqrt(k[0])))


@picture("terms")
def measured_over_bound(o: Outcomes) -> Any:
    """Theorem 1: measured over bound

    Above the line at 1 the bound is violated. Top: as published. Bottom: with the largest entry of
    D in place of the trace.

    Six panels of the ratio of the smallest expected squared gradient to the bound against k, one
    line per dimension.
    """
    figure, axes = panels(2, 3, 4.6, sharex=True, sharey="row")
    for column, label in enumerate(("ASGLD (1, 1)", "AGLD (0, 1)", "ASG (1)")):
        for row, version in enumerate(_VERSIONS):
            panel = axes[row, column]
            for i, value in enumerate(o["terms"].select(label=label)):
                curve(panel, i, value["k"], _ratio(value, version), f"d = {value['dim']}")
            panel.axhline(1.0, color=INK, linewidth=1.0)
            log_log(panel)
        axes[0, column].set_title(label)
    outer(axes, "k")
    for row, version in enumerate(_VERSIONS):
        axes[row, 0].set_ylabel(f"measured / {version}")
    legend(figure, axes[0, 0])
    return figure
