"""The accumulator and the three terms of Theorem 1, measured beside what they should bound.

"bowl", f = |x|^2 / 2, and "waves", f = sum_i 1 - cos x_i, both with M = 1, in d coordinates with
gradient noise of variance C each.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asgld.theory import Accumulators, terms
from asgld_study.experiments.chains import Chains, due_steps, mean, noisy, slope
from asgld_study.experiments.declare import Size, Task
from asgld_study.experiments.exponents import Waves

FloatArray = npt.NDArray[np.float64]
LR, DELTA, SIGMA, VARIANCE, SMOOTHNESS = 0.5, 0.1, 0.3, 0.3, 1.0
POWERS = (0.5, 1.0, 1.5, 2.0)
# label -> method, alpha, beta
KINDS: dict[str, tuple[str, float, float]] = {
    "ASGLD (1, 1)": ("asgld", 1.0, 1.0),
    "AGLD (0, 1)": ("agld", 0.0, 1.0),
    "ASG (1)": ("asg", 1.0, math.inf),
    "SGLD": ("sgld", 0.0, 0.0),
    "plain descent": ("agld", 0.0, 1.0),
}


class Bowl:
    """|x|^2 / 2."""

    def value(self, x: Tensor) -> Tensor:
        return 0.5 * x.square().sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        return x.clone()


FUNCTIONS: dict[str, Any] = {"bowl": Bowl(), "waves": Waves()}


def _chains(label: str, function: Any, dim: int, replicas: int, delta: float) -> Chains:
    method, alpha, beta = KINDS[label]
    options: dict[str, Any] = {"lr": LR, "delta": delta}
    if method != "sgld":
        options["alpha"] = alpha
    if method not in ("asg", "sgld"):
        options["beta"] = beta
    if method != "asg":
        options["sigma"] = 0.0 if label == "plain descent" else SIGMA
    generator = torch.Generator().manual_seed(0)
    start = torch.empty(replicas, dim, dtype=torch.float64)
    start.uniform_(0.5, 2.5, generator=generator)
    variance = _variance(label)
    return Chains(method, noisy(function, variance, seed=1), start, **options)


def _variance(label: str) -> float:
    return 0.0 if KINDS[label][0] == "agld" else VARIANCE


def measure_powers(label: str, delta: float, *, steps: int, replicas: int) -> dict[str, Any]:
    """Exponents of E D^-phi and of its partial sums over the last decade, in ten coordinates."""
    chains = _chains(label, FUNCTIONS["waves"], 10, replicas, delta)
    ks = due_steps(steps, decades=1.0)
    due = set(ks)
    sums = {phi: torch.zeros(replicas, dtype=torch.float64) for phi in POWERS}
    values: dict[float, list[FloatArray]] = {phi: [] for phi in POWERS}
    totals: dict[float, list[FloatArray]] = {phi: [] for phi in POWERS}
    for step in range(1, steps + 1):
        inverse = chains.accumulator.reciprocal()
        root = inverse.sqrt()
        powers = {0.5: root, 1.0: inverse, 1.5: inverse * root, 2.0: inverse.square()}
        for phi, power in powers.items():
            trace = power.sum(-1)
            sums[phi] += trace
            if step in due:
                values[phi].append(trace.numpy().copy())
                totals[phi].append(sums[phi].numpy().copy())
        chains.advance()
    log_k = np.log(ks)
    return {
        "label": label,
        "delta": delta,
        "powers": {str(phi): slope(log_k, np.array(values[phi])) for phi in POWERS},
        "sums": {str(phi): slope(log_k, np.array(totals[phi])) for phi in POWERS},
    }


def measure_terms(
    label: str, function: str, dim: int, *, steps: int, replicas: int
) -> dict[str, Any]:
    """The smallest E|grad f|^2 so far beside I1 + I2 + I3, published and corrected, over k."""
    method, alpha, beta = KINDS[label]
    f = FUNCTIONS[function]
    chains = _chains(label, f, dim, replicas, DELTA)
    first = f.value(chains.x)
    ks = due_steps(steps, decades=math.log10(steps), per_decade=6)
    due = set(ks)
    sums = np.zeros(4)
    rows, gaps, smallest, best = [], [], [], math.inf
    for step in range(1, steps + 1):
        D = chains.accumulator
        squares = float(f.grad(chains.x).square().sum(-1).mean())
        best = min(best, squares)
        sums += [
            float((D ** (-alpha / 2)).sum(-1).mean()),
            float((D.amax(-1) ** (-alpha / 2)).mean()),
            float((D**-alpha).sum(-1).mean()),
            0.0 if math.isinf(beta) else float((D**-beta).sum(-1).mean()),
        ]
        chains.advance()
        if step in due:
            rows.append(sums.copy())
            gaps.append(float((first - f.value(chains.x)).mean()))
            smallest.append(best)
    accumulated = Accumulators(*np.array(rows).T)
    bounds = {
        version: terms(
            accumulated,
            lr=LR,
            smoothness=SMOOTHNESS,
            f_gap=np.array(gaps),
            sigma=0.0 if method == "asg" or label == "plain descent" else SIGMA,
            gradient_variance=_variance(label),
            version=version,
        )
        for version in ("published", "corrected")
    }
    return {
        "label": label,
        "function": function,
        "dim": dim,
        "k": ks,
        "smallest": smallest,
        **{version: {name: np.asarray(term).tolist() for name, term in
                     bound._asdict().items()} for version, bound in bounds.items()},
    }  # fmt: skip


def measure_plateau(dim: int, batch: int, *, steps: int, replicas: int) -> dict[str, Any]:
    """SGLD on the bowl: the mean of |grad f|^2 over the last half and over the quarter before."""
    start = torch.ones(replicas, dim, dtype=torch.float64)
    gradient = noisy(FUNCTIONS["bowl"], VARIANCE / batch, seed=1)
    chains = Chains("sgld", gradient, start, lr=LR, sigma=SIGMA)
    late, middle = (torch.zeros(replicas, dtype=torch.float64) for _ in range(2))
    for step in range(1, steps + 1):
        squares = chains.advance().square().sum(-1)
        if step > steps // 2:
            late += squares
        elif step > steps // 4:
            middle += squares
    late, middle = late / (steps - steps // 2), middle / (steps // 2 - steps // 4)
    return {
        "dim": dim,
        "batch": batch,
        "late": mean(late.tolist()),
        "ratio": mean((late / middle).tolist()),
        "I2": SMOOTHNESS * LR * VARIANCE / batch,
        "I3": 2.0 * SMOOTHNESS * SIGMA**2,
    }


def power_tasks(size: Size) -> list[Task]:
    return [
        Task(measure_powers, {"label": label, "delta": delta, "steps": size.steps,
                              "replicas": size.chains})
        for label in ("ASGLD (1, 1)", "AGLD (0, 1)")
        for delta in (DELTA, 1e-2, 1e-8)
    ]  # fmt: skip


def term_tasks(size: Size) -> list[Task]:
    cases = [
        (label, "waves", dim)
        for label in ("ASGLD (1, 1)", "AGLD (0, 1)", "ASG (1)")
        for dim in (1, 2, 10, 100)
    ]
    cases += [("plain descent", "bowl", dim) for dim in (1, 2, 10)]
    return [
        Task(measure_terms, {"label": label, "function": function, "dim": dim,
                             "steps": size.grid, "replicas": size.chains})
        for label, function, dim in cases
    ]  # fmt: skip


def plateau_tasks(size: Size) -> list[Task]:
    return [
        Task(measure_plateau, {"dim": dim, "batch": batch, "steps": size.grid,
                               "replicas": size.chains})
        for dim, batch in ((1, 1), (2, 1), (10, 1), (100, 1), (10, 10))
    ]  # fmt: skip
