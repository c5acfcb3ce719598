"""Lemmas 1 and 2: how D grows, and how sums of its powers do.

Chains run on the waves in ten coordinates with gradient noise of variance C each. Measured are the
exponents of E D^-phi and of its partial sums over the last decade.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from asgld_study.chains import View, due_steps, follow, noisy
from asgld_study.drawing import INK, legend, panels, picture, plot
from asgld_study.engine import Outcomes, Size, Task, experiment, task
from asgld_study.judge import SLACK, Checks, between, claim
from asgld_study.landscapes import LANDSCAPES, start
from asgld_study.statistics import scaled, slope

FloatArray = npt.NDArray[np.float64]
LR, DELTA, SIGMA, VARIANCE = 0.5, 0.1, 0.3, 0.3
POWERS = (0.5, 1.0, 1.5, 2.0)
# label -> method, exponents of the step and of the noise, sigma, variance of gradients
KINDS: dict[str, tuple[str, float, float, float, float]] = {
    "ASGLD (1, 1)": ("asgld", 1.0, 1.0, SIGMA, VARIANCE),
    "AGLD (0, 1)": ("agld", 0.0, 1.0, SIGMA, 0.0),
    "ASG (1)": ("asg", 1.0, math.inf, 0.0, VARIANCE),
    "plain descent": ("agld", 0.0, 1.0, 0.0, 0.0),
}


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
