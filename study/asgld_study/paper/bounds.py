"""Lemmas 1 and 2, Theorem 1 and its two propositions: powers of D, and the terms made of them.

Chains run with gradient noise of variance C in each coordinate. For the lemmas they run on the
waves in ten coordinates, and measured are the exponents of E D^-phi and of its partial sums over
the last decade. For the theorem they run on "bowl", f = |x|^2 / 2, and on "waves", f = sum_i 1 -
cos x_i, both with M = 1, and the three terms stand beside what they should bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from asgld.theory import Accumulators
from asgld.theory import terms as terms_of
from asgld_study.chains import View, due_steps, follow, noisy
from asgld_study.drawing import INK, curve, legend, log_log, outer, panels, picture, plot
from asgld_study.engine import Outcomes, Size, Task, experiment, task
from asgld_study.judge import SLACK, Checks, Claim, at_most, between, claim
from asgld_study.landscapes import LANDSCAPES, start
from asgld_study.statistics import (
    FloatArray,
    crossing_slope,
    of_populations,
    populations,
    scaled,
    slope,
)

SMOOTHNESS = 1.0
TERMS = ("I1", "I2", "I3")
_VERSIONS = ("published", "corrected")
LR, DELTA, SIGMA, VARIANCE = 0.5, 0.1, 0.3, 0.3
POWERS = (0.5, 1.0, 1.5, 2.0)
# label -> method, exponents of the step and of the noise, sigma, variance of gradients
KINDS: dict[str, tuple[str, float, float, float, float]] = {
    "ASGLD (1, 1)": ("asgld", 1.0, 1.0, SIGMA, VARIANCE),
    "AGLD (0, 1)": ("agld", 0.0, 1.0, SIGMA, 0.0),
    "ASG (1)": ("asg", 1.0, math.inf, 0.0, VARIANCE),
    "AGLD (1, 1)": ("agld", 1.0, 1.0, SIGMA, 0.0),
    **{f"ASGLD ({a:g}, 2)": ("asgld", a, 2.0, SIGMA, VARIANCE) for a in (0.5, 1.0, 1.5)},
    "plain descent": ("agld", 0.0, 1.0, 0.0, 0.0),
}
_ALPHAS = tuple(label for label in KINDS if label.endswith(", 2)"))


def follow_kind(
    label: str,
    function: str,
    look: Callable[[View], object],
    *,
    dim: int,
    replicas: int,
    steps: int,
    delta: float = DELTA,
) -> None:
    """Chains of one of the `KINDS` on one of the landscapes."""
    method, alpha, beta, sigma, variance = KINDS[label]
    options: dict[str, Any] = {"lr": LR, "alpha": alpha, "delta": delta}
    if method != "asg":
        options |= {"beta": beta, "sigma": sigma}
    x0, feed = start(replicas, dim), noisy(variance, seed=1)
    follow(method, LANDSCAPES[function], x0, look, steps=steps, feed=feed, **options)


# ------------------------------------------------------------------------------------ lemmas


def measure_powers(label: str, delta: float, *, steps: int, replicas: int) -> dict[str, Any]:
    """Exponents of E Tr D^-phi and of its partial sums."""
    ks = due_steps(steps, decades=1.0)
    due = set(ks)
    sums = {phi: torch.zeros(replicas, dtype=torch.float64) for phi in POWERS}
    values: dict[float, list[FloatArray]] = {phi: [] for phi in POWERS}
    totals: dict[float, list[FloatArray]] = {phi: [] for phi in POWERS}

    def look(view: View) -> None:
        inverse = view.D.reciprocal()
        root = inverse.sqrt()
        powers = {0.5: root, 1.0: inverse, 1.5: inverse * root, 2.0: inverse.square()}
        for phi, power in powers.items():
            trace = power.sum(-1)
            sums[phi] += trace
            if view.step + 1 in due:
                values[phi].append(trace.numpy().copy())
                totals[phi].append(sums[phi].numpy().copy())

    # The D of step k is there before the step is taken.
    follow_kind(label, "waves", look, dim=10, replicas=replicas, steps=steps - 1, delta=delta)
    log_k = np.log(ks)
    return {
        "label": label,
        "delta": delta,
        "powers": {str(phi): slope(log_k, np.array(values[phi])) for phi in POWERS},
        "sums": {str(phi): slope(log_k, np.array(totals[phi])) for phi in POWERS},
    }


@experiment("accumulator", "Powers of the accumulator")
def power_tasks(size: Size) -> list[Task]:
    """Does D grow like k, and do sums of its powers behave as Lemma 2 says?"""
    return [
        task(measure_powers, label=label, delta=delta, steps=size.steps, replicas=size.chains)
        for label in ("ASGLD (1, 1)", "AGLD (0, 1)")
        for delta in (DELTA, 1e-2, 1e-8)
    ]


@claim("L1", "Lemma 1", "accumulator", item="Lemma 1")
def l1(o: Outcomes) -> Checks:
    """E D_k^-phi is of order k^-phi.

    Only once delta k exceeds what the gradients feed; with a tiny delta and full gradients D grows
    like k^(1/(1 + tau)), tau = beta - alpha/2.
    """
    for label, delta in (("ASGLD (1, 1)", 0.1), ("AGLD (0, 1)", 0.1), ("AGLD (0, 1)", 1e-8)):
        powers = o["accumulator"].one(label=label, delta=delta)["powers"]
        for phi in (0.5, 1.0, 2.0):
            says = f"{label}, delta = {delta:g}: exponent of E D^-{phi:g}"
            least, most = (1 - SLACK) * phi, (1 + SLACK) * phi
            yield between(says, scaled(powers[str(phi)], -1.0), least, most, core=delta == 0.1)


@claim("L2", "Lemma 2", "accumulator", item="Lemma 2")
def l2(o: Outcomes) -> Checks:
    """The sum of Tr D_j^-phi over j < k is of order d k^(1 - phi) for all phi but 0 and 1.

    For phi > 1 the sum tends to a positive constant.
    """
    sums = o["accumulator"].one(label="ASGLD (1, 1)", delta=0.1)["sums"]
    for phi in (0.5, 1.5, 2.0):
        says = f"exponent of the sum of Tr D^-{phi:g}"
        yield between(says, sums[str(phi)], 1 - phi - SLACK, 1 - phi + SLACK)


@picture("accumulator")
def powers_of_d(o: Outcomes) -> Any:
    """Powers of D and their sums

    Points on the solid line agree with the lemma. On the right, points above the solid line for phi
    > 1 show sums that do not vanish.

    Two panels of measured exponents against phi with the lemmas' lines.
    """
    figure, axes = panels(1, 2, 3.0)
    left, right = axes[0]
    for i, value in enumerate(o["accumulator"].values):
        label = f"{value['label']}, $\\delta$ = {value['delta']:g}"
        for panel, key, sign in ((left, "powers", -1), (right, "sums", 1)):
            exponents = [sign * value[key][str(phi)]["value"] for phi in POWERS]
            plot(panel, i, POWERS, exponents, label, "none")
    phi, style = np.linspace(0.4, 2.1, 50), {"color": INK, "linewidth": 0.9}
    left.plot(phi, phi, **style)
    right.plot(phi, 1 - phi, **style, label="Lemma")
    right.plot(phi, np.maximum(1 - phi, 0), **style, linestyle="--", label="corrected")
    left.set(title="Lemma 1", xlabel=r"$\phi$", ylabel=r"exponent of $E\,D^{-\phi}$")
    right.set(title="Lemma 2", xlabel=r"$\phi$", ylabel=r"exponent of $\sum Tr\,D^{-\phi}$")
    legend(figure, right, 3)
    return figure


# ------------------------------------------------------------------------------------ Theorem 1


def measure_terms(
    label: str, function: str, dim: int, *, steps: int, replicas: int
) -> dict[str, Any]:
    """The smallest E|grad f|^2 so far beside I1 + I2 + I3, published and corrected, over k.

    With intervals: the largest ratio of the two, and how the corrected terms go over the last
    decade.
    """
    _, alpha, beta, sigma, variance = KINDS[label]
    f = LANDSCAPES[function]
    ks = due_steps(steps, decades=math.log10(steps), per_decade=6)
    # An axis of means in front: over all chains, then over bootstrap samples of them.
    due, weights = set(ks), populations(replicas)
    first: FloatArray | None = None
    sums, best = np.zeros((len(weights), 4)), np.full(len(weights), math.inf)
    rows, gaps, smallest = [], [], []

    def look(view: View) -> None:
        nonlocal first, best
        if view.step in due or first is None:
            value = weights @ f.value(view.x).numpy()
            first = value if first is None else first
        if view.step in due:
            rows.append(sums.copy())
            gaps.append(first - value)
            smallest.append(best)
        D = view.D
        none = torch.zeros(replicas, dtype=D.dtype)
        columns = [
            (D ** (-alpha / 2)).sum(-1),
            D.amax(-1) ** (-alpha / 2),
            (D**-alpha).sum(-1),
            none if math.isinf(beta) else (D**-beta).sum(-1),
            f.grad(view.x).square().sum(-1),
        ]
        means = weights @ torch.stack(columns, -1).numpy()
        sums[:] += means[:, :4]
        best = np.minimum(best, means[:, 4])

    follow_kind(label, function, look, dim=dim, replicas=replicas, steps=steps)
    value = {"label": label, "function": function, "dim": dim, "k": ks}
    # All of these are (means, T).
    sums_of_powers = Accumulators(*np.moveaxis(np.array(rows), -1, 0).swapaxes(1, 2))
    gap, least = np.array(gaps).T, np.array(smallest).T
    known = {"lr": LR, "smoothness": SMOOTHNESS, "sigma": sigma, "gradient_variance": variance}
    found = {
        version: terms_of(sums_of_powers, f_gap=gap, version=version, **known)._asdict()
        for version in _VERSIONS
    }
    k = np.array(ks, dtype=np.float64)
    is_late = k >= k[-1] / 10.0
    late = {n: np.asarray(term)[:, is_late] for n, term in found["corrected"].items()}
    late = {name: term for name, term in late.items() if np.all(term > 0.0)}
    return {
        **value,
        "smallest": least[0].tolist(),
        **{v: {n: np.asarray(t)[0].tolist() for n, t in found[v].items()} for v in _VERSIONS},
        "worst": {
            v: of_populations((least / np.sum([*found[v].values()], axis=0)).max(axis=-1))
            for v in _VERSIONS
        },
        "exponents": {
            name: scaled(crossing_slope(np.log(k[is_late]), term.T), -1.0)
            for name, term in late.items()
        },
        "growth": {
            name: of_populations(term[:, -1] / term[:, 0] * math.sqrt(k[-1] / k[is_late][0]))
            for name, term in late.items()
        },
    }


@experiment("terms", "The three terms of Theorem 1")
def term_tasks(size: Size) -> list[Task]:
    """Does I1 + I2 + I3 bound the squared gradient?"""
    run = partial(task, measure_terms, steps=size.grid, replicas=size.chains)
    labels = ("ASGLD (1, 1)", "AGLD (0, 1)", "ASG (1)")
    return [
        *(run(label=n, function="waves", dim=d) for n in labels for d in (1, 2, 10, 100)),
        *(run(label="plain descent", function="bowl", dim=dim) for dim in (1, 2, 10)),
        # of these the terms alone are read
        *(run(label=n, function="waves", dim=10) for n in ("AGLD (1, 1)", *_ALPHAS)),
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
            yield at_most(says, value["worst"][version], 1.0, core=version == "published")


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
