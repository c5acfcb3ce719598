"""Convergence exponents over (alpha, beta), measured with the shipped optimizers.

Two functions, since an upper bound is tight only on a function that makes it so:

- "waves", f = sum_i 1 - cos x_i: a basin, where the noise terms I2 and I3 decide;
- "flat", f = sum_i (1 + x_i^2)^-0.1: a slope without end, where the start term I1 decides. On it
  plain descent has |grad f|^2 ~ t^-1.09 in the clock t = sum of steps, so the exponent is 1.09 (1 -
  alpha/2) where the noise is quiet.

Measured are the slopes of log against log k over the last two decades: of the weighted average of
squared gradients, which the theorems bound, and of the squared gradient at the last iterate. The
interval is a bootstrap over replicas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asgld.experiments.gaussian import with_gaussian_noise
from asgld.oracle import Oracle
from asgld.run import Progress, run
from asgld.stopping import Record
from asgld.theory import rate

FloatArray = npt.NDArray[np.float64]

DIM, LR, DELTA, SIGMA, VARIANCE = 10, 0.5, 0.1, 0.3, 0.3
_POINTS_PER_DECADE = 12
_BOOTSTRAPS = 500


class Waves:
    """sum_i 1 - cos x_i."""

    dim, num_samples = DIM, None

    def value(self, x: Tensor) -> Tensor:
        return (1.0 - x.cos()).sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        return x.sin()


class Flat:
    """sum_i (1 + x_i^2)^-0.1."""

    dim, num_samples = DIM, None

    def value(self, x: Tensor) -> Tensor:
        return (1.0 + x * x).pow(-0.1).sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        return -0.2 * x * (1.0 + x * x).pow(-1.1)


FUNCTIONS: dict[str, Any] = {"waves": Waves(), "flat": Flat()}


@dataclass(frozen=True)
class Case:
    """One method, its exponents and batch growth, on one function."""

    method: str
    alpha: float
    beta: float
    theta: float = 0.0
    function: str = "waves"

    @property
    def label(self) -> str:
        batch = f", theta {self.theta:g}" if self.theta else ""
        beta = "" if self.method == "asg" else f", {self.beta:g}"
        return f"{self.method} ({self.alpha:g}{beta}{batch}) on {self.function}"


CASES = (
    *(
        Case("asgld", alpha, beta)
        for alpha, beta in [
            (0.5, 0.5), (0.5, 1), (1, 0.3), (1, 0.5), (1, 0.75), (1, 1), (1, 2), (1.5, 0.75),
            (1.5, 1), (1.5, 1.5), (1.5, 2), (1.75, 2), (2, 1.5),
        ]
    ),
    *(Case("agld", a, b) for a, b in [(0, 0.5), (0, 1), (0, 2), (1, 0.75), (1, 1), (1, 2)]),
    *(Case("asg", alpha, math.inf) for alpha in (0.5, 1, 1.5)),
    *(Case("asgld", 0, 1, theta) for theta in (0.25, 0.5, 1)),
    Case("asgld", 0.5, 1, 0.5),
    Case("asgld", 1, 1, 1),
    *(Case("asgld", a, b, function="flat") for a, b in [(1, 2), (1.5, 2), (1.5, 3), (1.75, 2)]),
    Case("agld", 0, 2, function="flat"),
)  # fmt: skip


@dataclass(frozen=True)
class Exponent:
    """Slopes with 95 % intervals, beside what is published and what is right."""

    case: Case
    average: float
    average_low: float
    average_high: float
    last: float
    last_low: float
    last_high: float
    published: float
    corrected: float

    def row(self) -> dict[str, Any]:
        """As a flat record."""
        case = vars(self.case)
        return {**case, **{k: v for k, v in vars(self).items() if k != "case"}}


def measure(case: Case, *, steps: int = 100_000, replicas: int = 24, seed: int = 0) -> Exponent:
    """Run one case and fit its slopes."""
    function = FUNCTIONS[case.function]
    noise = {} if case.method == "asg" else {"beta": case.beta, "sigma": SIGMA}
    method = with_gaussian_noise(
        case.method,
        variance=0.0 if case.method == "agld" else VARIANCE,
        theta=case.theta,
        lr=LR,
        alpha=case.alpha,
        delta=DELTA,
        **noise,
    )
    due = set(_schedule(steps).tolist())
    squares = function.grad(_start(replicas)).square().sum(-1)
    weighted, total = torch.zeros(replicas, dtype=torch.float64), 0.0
    ks: list[int] = []
    averages: list[FloatArray] = []
    lasts: list[FloatArray] = []

    def watch(progress: Progress) -> None:
        nonlocal squares, weighted, total
        # (1 + delta j)^(-alpha/2) is of the order of lr D_j^(-alpha/2) and the same for all
        # replicas, so that the average has fixed weights, as in the theorems.
        weight = (1.0 + (progress.step - 1) * DELTA) ** (-case.alpha / 2)
        weighted, total = weighted + weight * squares, total + weight
        squares = function.grad(progress.x).square().sum(-1)
        if progress.step in due:
            ks.append(progress.step)
            averages.append((weighted / total).numpy().copy())
            lasts.append(squares.numpy().copy())

    run(
        Oracle(function),
        method,
        _start(replicas),
        max_steps=steps,
        record=Record(schedule="linear", every=10**9, grad_norms=False),
        callback=watch,
        seed=seed,
    )
    log_k = np.log(np.array(ks, dtype=np.float64))
    average = _slopes(log_k, np.array(averages), seed)
    last = _slopes(log_k, np.array(lasts), seed)
    return Exponent(
        case,
        *average,
        *last,
        published=_promised(case, "published"),
        corrected=_promised(case, "corrected"),
    )


def measure_all(
    cases: Sequence[Case] = CASES,
    *,
    steps: int = 100_000,
    replicas: int = 24,
    seed: int = 0,
    report: Callable[[int], None] | None = None,
) -> Iterator[Exponent]:
    """Measure every case, yielding each as it is there."""
    for i, case in enumerate(cases):
        yield measure(case, steps=steps, replicas=replicas, seed=seed)
        if report is not None:
            report(i + 1)


def _start(replicas: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.empty(replicas, DIM, dtype=torch.float64).uniform_(0.5, 2.5, generator=generator)


def _schedule(steps: int) -> npt.NDArray[np.int64]:
    """Steps at which to look, over the last two decades."""
    count = 2 * _POINTS_PER_DECADE + 1
    return np.unique(np.geomspace(max(steps / 100, 1), steps, count).round().astype(np.int64))


def _slopes(log_k: FloatArray, rows: FloatArray, seed: int) -> tuple[float, float, float]:
    """Minus the slope of the log of the mean over replicas, and its bootstrap interval."""

    def slope(columns: FloatArray) -> float:
        return -float(np.polyfit(log_k, np.log(columns.mean(axis=1)), 1)[0])

    rng = np.random.default_rng(seed)
    replicas = rows.shape[1]
    again = [slope(rows[:, rng.integers(replicas, size=replicas)]) for _ in range(_BOOTSTRAPS)]
    low, high = np.quantile(again, [0.025, 0.975])
    return slope(rows), float(low), float(high)


def _promised(case: Case, version: str) -> float:
    """The exponent of k in the bound; nan where the version says nothing."""
    promise = rate(case.alpha, case.beta, method=case.method, theta=case.theta, version=version)
    return float(promise.exponent)
