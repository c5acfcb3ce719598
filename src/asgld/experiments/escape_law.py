"""Escape times of the real optimizer beside what `asgld.theory.escape_recursion` predicts.

f(x) = 1/2 sum_i l_i y_i^2 with one l_i = -gamma and the others 1 (quartic walls are there, but far
away); all chains start at the saddle. A saddle that is met at step k0 is met with D = d_init + k0
(delta + C). Both criteria are timed: |u'x| >= R along the escape direction u, and f <= -F.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from asgld.experiments.gaussian import with_gaussian_noise
from asgld.oracle import Oracle
from asgld.problems import problem
from asgld.run import Progress, run
from asgld.stopping import Record
from asgld.theory import escape_recursion, published_escape_time

LR, SIGMA, DELTA, RADIUS, DROP = 0.1, 0.1, 0.01, 1.0, 0.5
VARIANCE = 0.1
# Walls so far out that the saddle is a quadratic where escapes are timed.
_CONFINEMENT = 1e-6


@dataclass(frozen=True)
class Setting:
    """One saddle and one optimizer."""

    alpha: float
    beta: float
    gamma: float
    k0: int
    dim: int
    rotated: bool

    @property
    def variance(self) -> float:
        """alpha = 0 is for full gradients; otherwise gradients are noisy."""
        return 0.0 if self.alpha == 0.0 else VARIANCE


@dataclass(frozen=True)
class Timing:
    """Median escape times, measured and predicted; inf where most chains did not escape."""

    setting: Setting
    distance: float
    distance_predicted: float
    value: float
    value_predicted: float
    published: float

    def row(self) -> dict[str, Any]:
        """As a flat record."""
        row = {**asdict(self.setting), **asdict(self)}
        del row["setting"]
        row["distance_ratio"] = self.distance / self.distance_predicted
        row["value_ratio"] = self.value / self.value_predicted
        return row


GRID = tuple(
    Setting(alpha, beta, gamma, k0, dim, rotated)
    for alpha, beta, gamma, k0, dim, rotated in itertools.product(
        (0.0, 0.5, 1.0), (1.0, 2.0), (0.2, 0.5, 1.0), (0, 100, 1000), (8, 64), (False, True)
    )
)


def predict(setting: Setting, criterion: str) -> float:
    """The median escape time of the mean-field recursion."""
    return float(
        escape_recursion(
            setting.gamma,
            lr=LR,
            alpha=setting.alpha,
            beta=setting.beta,
            sigma=SIGMA,
            delta=DELTA,
            gradient_variance=setting.variance,
            k0=setting.k0,
            dim=setting.dim,
            criterion=criterion,
            radius=RADIUS,
            drop=DROP,
            aligned=not setting.rotated,
        )
    )


def measure(setting: Setting, *, replicas: int = 200, seed: int = 0) -> Timing:
    """Time the escapes of `replicas` chains."""
    saddle = problem(
        "strict-saddle",
        dim=setting.dim,
        gamma=setting.gamma,
        rotated=setting.rotated,
        confinement=_CONFINEMENT,
    )
    minimizer = saddle.facts.minimizers
    assert minimizer is not None
    direction = minimizer[0] / torch.linalg.vector_norm(minimizer[0])
    method = with_gaussian_noise(
        "asgld",
        variance=setting.variance,
        lr=LR,
        alpha=setting.alpha,
        beta=setting.beta,
        sigma=SIGMA,
        delta=DELTA,
        d_init=1.0 + setting.k0 * (DELTA + setting.variance),
    )
    times = torch.full((2, replicas), math.inf, dtype=torch.float64)
    enough = replicas // 2 + 1

    def watch(progress: Progress) -> bool:
        is_out = torch.stack(
            [(progress.x @ direction).abs() >= RADIUS, saddle.value(progress.x) <= -DROP]
        )
        times[is_out & times.isinf()] = float(progress.step)
        # A median needs no more than half of the chains.
        return bool((times.isfinite().sum(1) >= enough).all())

    predicted = [predict(setting, criterion) for criterion in ("distance", "value")]
    run(
        Oracle(saddle),
        method,
        torch.zeros(replicas, setting.dim, dtype=torch.float64),
        max_steps=math.ceil(10 * max(predicted)),
        record=Record(schedule="linear", every=10**9, grad_norms=False),
        callback=watch,
        seed=seed,
    )
    distance, value = torch.quantile(times, 0.5, dim=1, interpolation="lower").tolist()
    published = published_escape_time(setting.gamma, setting.alpha, setting.beta, setting.dim)
    return Timing(setting, distance, predicted[0], value, predicted[1], float(published))


def measure_all(
    settings: Sequence[Setting] = GRID,
    *,
    replicas: int = 200,
    seed: int = 0,
    report: Callable[[int], None] | None = None,
) -> Iterator[Timing]:
    """Time every setting, yielding each as it is there."""
    for i, setting in enumerate(settings):
        yield measure(setting, replicas=replicas, seed=seed)
        if report is not None:
            report(i + 1)
