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

from asgld.theory import rate
from asgld_study.experiments.chains import Chains, due_steps, mean, noisy, slope
from asgld_study.experiments.declare import Size, Task

FloatArray = npt.NDArray[np.float64]

DIM, LR, DELTA, SIGMA, VARIANCE = 10, 0.5, 0.1, 0.3, 0.3
_POINTS_PER_DECADE = 12
# Of the accumulator, where "small" is taken at its word.
TINY_DELTA = 1e-8


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
    log_k, averages, lasts = trajectory(case, steps=steps, replicas=replicas, seed=seed)
    average, last = (_exponent(slope(log_k, rows, seed=seed)) for rows in (averages, lasts))
    return Exponent(
        case,
        average=average["value"],
        average_low=average["low"],
        average_high=average["high"],
        last=last["value"],
        last_low=last["low"],
        last_high=last["high"],
        published=_promised(case, "published"),
        corrected=_promised(case, "corrected"),
    )


def trajectory(
    case: Case, *, steps: int, replicas: int, seed: int = 0, delta: float = DELTA
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """log k, (T,), and weighted averages and last values of |grad f|^2, (T, replicas)."""
    function = FUNCTIONS[case.function]
    noise = {} if case.method == "asg" else {"beta": case.beta, "sigma": SIGMA}
    variance = 0.0 if case.method == "agld" else VARIANCE
    chains = Chains(
        case.method,
        noisy(function, variance, theta=case.theta, seed=seed),
        _start(replicas),
        seed=seed,
        lr=LR,
        alpha=case.alpha,
        delta=delta,
        **noise,
    )
    ks = due_steps(steps, per_decade=_POINTS_PER_DECADE)
    due = set(ks)
    squares = function.grad(chains.x).square().sum(-1)
    weighted, total = torch.zeros(replicas, dtype=torch.float64), 0.0
    averages: list[FloatArray] = []
    lasts: list[FloatArray] = []
    for step in range(1, steps + 1):
        # (1 + delta j)^(-alpha/2) is of the order of lr D_j^(-alpha/2) and the same for all
        # replicas, so that the average has fixed weights, as in the theorems.
        weight = (1.0 + (step - 1) * DELTA) ** (-case.alpha / 2)
        weighted.add_(squares, alpha=weight)
        total += weight
        squares = function.grad(chains.advance()).square().sum(-1)
        if step in due:
            averages.append((weighted / total).numpy())
            lasts.append(squares.numpy())
    return np.log(np.array(ks, dtype=np.float64)), np.array(averages), np.array(lasts)


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


def _promised(case: Case, version: str) -> float:
    """The exponent of k in the bound; nan where the version says nothing."""
    promise = rate(case.alpha, case.beta, method=case.method, theta=case.theta, version=version)
    return float(promise.exponent)


# ------------------------------------------------------------------------------------ the report

# Cases of the theorems that the list above has no point of, or none on the flat function.
MORE_CASES = (
    Case("asgld", 1.25, 0.75),
    Case("asgld", 0.5, 0.35),
    Case("agld", 2, 1.5),
    *(Case("asgld", a, b, function="flat") for a, b in [(0.5, 1), (1, 1)]),
    *(Case("agld", a, b, function="flat") for a, b in [(1, 1), (1, 2)]),
    *(Case("asg", alpha, math.inf, function="flat") for alpha in (1, 1.5)),
)


def measure_case(
    method: str, alpha: float, beta: float, theta: float, function: str, *, steps: int,
    replicas: int,
) -> dict[str, Any]:  # fmt: skip
    """One case, with the slope over the last decade alone and over log k for slow ones."""
    case = Case(method, alpha, beta, theta, function)
    log_k, averages, lasts = trajectory(case, steps=steps, replicas=replicas)
    late = log_k >= log_k[-1] - math.log(10.0) - 1e-9
    return {
        **vars(case),
        "label": case.label,
        "published": _promised(case, "published"),
        "corrected": _promised(case, "corrected"),
        "average": _exponent(slope(log_k[late], averages[late])),
        "last": _exponent(slope(log_k[late], lasts[late])),
        # against log k itself: 1 for a bound of 1/log k
        "per_log": _exponent(slope(np.log(log_k), averages)),
    }


def measure_delta(
    alpha: float, beta: float, delta: float, *, steps: int, replicas: int
) -> dict[str, Any]:
    """Full gradients: the exponent of the last iterate for a delta that does or does not count."""
    case = Case("agld", alpha, beta)
    log_k, _, lasts = trajectory(case, steps=steps, replicas=replicas, delta=delta)
    tau = beta - alpha / 2
    return {
        "alpha": alpha,
        "beta": beta,
        "delta": delta,
        "last": _exponent(slope(log_k, lasts)),
        "with_delta": tau,
        "without_delta": tau / (1 + tau),
        "path": {"k": np.exp(log_k).tolist(), "last": lasts.mean(axis=1).tolist()},
    }


def measure_point(alpha: float, beta: float, *, steps: int, replicas: int) -> dict[str, Any]:
    """Does the squared gradient fall over the last decade? In nepers per neper of k."""
    log_k, _, lasts = trajectory(Case("asgld", alpha, beta), steps=steps, replicas=replicas)
    late = log_k >= log_k[-1] - math.log(10.0) - 1e-9
    fit = _exponent(slope(log_k[late], lasts[late]))
    promise = rate(alpha, beta)
    return {"alpha": alpha, "beta": beta, "last": fit, "region": str(promise.region),
            "final": mean(lasts[late].mean(axis=0))}  # fmt: skip


def _exponent(fit: dict[str, float]) -> dict[str, float]:
    return {"value": -fit["value"], "low": -fit["high"], "high": -fit["low"]}


def tasks(size: Size) -> list[Task]:
    options = {"steps": size.steps, "replicas": size.chains}
    return [Task(measure_case, {**vars(case), **options}) for case in (*CASES, *MORE_CASES)]


def delta_tasks(size: Size) -> list[Task]:
    return [
        Task(measure_delta, {"alpha": alpha, "beta": beta, "delta": delta, "steps": size.steps,
                             "replicas": size.chains})
        for alpha, beta in ((0.0, 1.0), (0.0, 2.0), (1.0, 1.0), (1.0, 2.0))
        for delta in (TINY_DELTA, DELTA)
    ]  # fmt: skip


def region_tasks(size: Size) -> list[Task]:
    """A grid over (alpha, beta); at full size twice as fine."""
    parts = 4 if size.name == "full" else 2
    return [
        Task(measure_point, {"alpha": i / parts, "beta": j / parts, "steps": size.grid,
                             "replicas": size.chains})
        for i in range(2 * parts + 1)
        for j in range(2 * parts + parts // 2 + 1)
    ]  # fmt: skip
