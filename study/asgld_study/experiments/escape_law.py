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
from torch import Tensor

from asgld.problems import problem
from asgld.theory import escape_recursion, published_escape_time
from asgld_study.experiments.chains import Chains, noisy
from asgld_study.experiments.declare import Size, Task

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


def predict(setting: Setting, criterion: str, sigma: float = SIGMA) -> float:
    """The median escape time of the mean-field recursion."""
    return float(
        escape_recursion(
            setting.gamma,
            lr=LR,
            alpha=setting.alpha,
            beta=1.0 if math.isinf(setting.beta) else setting.beta,
            sigma=0.0 if math.isinf(setting.beta) else sigma,
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
    predicted = [predict(setting, criterion) for criterion in ("distance", "value")]
    times = escape_times(
        setting,
        "asgld",
        sigma=SIGMA,
        replicas=replicas,
        limit=math.ceil(10 * max(predicted)),
        share=0.5,
        seed=seed,
    )
    distance, value = torch.quantile(times, 0.5, dim=1, interpolation="lower").tolist()
    published = published_escape_time(setting.gamma, setting.alpha, setting.beta, setting.dim)
    return Timing(setting, distance, predicted[0], value, predicted[1], float(published))


def escape_times(
    setting: Setting,
    method: str,
    *,
    sigma: float,
    replicas: int,
    limit: int,
    share: float = 0.75,
    noise: str = "all",
    seed: int = 0,
) -> Tensor:
    """First steps with |u'x| >= R and with f <= -F, (2, replicas); inf beyond the end of the run.

    Args:
        method: "asgld", or "asg" for gradient noise alone.
        limit: largest number of steps.
        share: the run ends when more than this share of the chains is out by both criteria.
        noise: gradient noise in "all" coordinates, in "stable" ones, or "none".
    """
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
    mask = None
    if noise == "stable":
        mask = torch.ones(setting.dim, dtype=torch.float64)
        mask[0] = 0.0
    variance = 0.0 if noise == "none" else setting.variance
    injected = {} if method == "asg" else {"beta": setting.beta, "sigma": sigma}
    chains = Chains(
        method,
        noisy(saddle, variance, seed=seed, mask=mask),
        torch.zeros(replicas, setting.dim, dtype=torch.float64),
        seed=seed,
        lr=LR,
        alpha=setting.alpha,
        delta=DELTA,
        d_init=1.0 + setting.k0 * (DELTA + setting.variance),
        **injected,
    )
    times = torch.full((2, replicas), math.inf, dtype=torch.float64)
    enough = math.floor(share * replicas) + 1
    for step in range(1, limit + 1):
        x = chains.advance()
        is_out = torch.stack([(x @ direction).abs() >= RADIUS, saddle.value(x) <= -DROP])
        times[is_out & times.isinf()] = float(step)
        if bool((times.isfinite().sum(1) >= enough).all()):
            break
    return times


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


# ------------------------------------------------------------------------------------ the report

_KINDS = {"AGLD (0, 1)": (0.0, 1.0), "ASGLD (1, 1)": (1.0, 1.0), "ASG (1)": (1.0, math.inf)}
# As many numbers as a step may hold, so that a large dimension has fewer chains.
_ELEMENTS = 2**18


def measure_escape(
    sweep: str,
    label: str,
    alpha: float,
    beta: float,
    *,
    gamma: float = 0.5,
    k0: int = 100,
    dim: int = 16,
    rotated: bool = True,
    sigma: float = SIGMA,
    replicas: int,
) -> dict[str, Any]:
    """Escape times of one setting, with what the recursion predicts for both criteria."""
    setting = Setting(alpha, beta, gamma, k0, dim, rotated)
    predicted = [predict(setting, criterion, sigma) for criterion in ("distance", "value")]
    distance, value = escape_times(
        setting,
        "asg" if math.isinf(beta) else "asgld",
        sigma=sigma,
        replicas=max(min(replicas, _ELEMENTS // dim), 24),
        limit=math.ceil(10 * max(predicted)),
    ).tolist()
    return {**asdict(setting), "sweep": sweep, "label": label, "sigma": sigma,
            "distance": distance, "value": value, "distance_predicted": predicted[0],
            "value_predicted": predicted[1]}  # fmt: skip


def measure_noise(
    label: str, noise: str, *, sigma: float, replicas: int, limit: int
) -> dict[str, Any]:
    """How many chains leave an aligned saddle within the limit, for noise in some directions."""
    setting = Setting(1.0, math.inf if sigma == 0.0 else 1.0, 0.5, 0, 16, False)
    method = "asg" if sigma == 0.0 else "asgld"
    times = escape_times(
        setting, method, sigma=sigma, replicas=replicas, limit=limit, noise=noise, share=1.0
    )
    return {"label": label, "noise": noise, "limit": limit, "times": times[0].tolist()}


def measure_directions(
    alpha: float, lr: float, spread: float, *, replicas: int, seed: int = 0
) -> dict[str, Any]:
    """Eight escape directions of different curvature: when has the first left, when the last?

    Args:
        spread: largest over smallest curvature of the eight; the largest is 0.5.
    """
    eigenvalues = torch.ones(16, dtype=torch.float64)
    eigenvalues[:8] = -torch.logspace(-math.log10(spread), 0.0, 8, dtype=torch.float64) / 2.0
    chains = Chains(
        "asgld", noisy(_Quadratic(eigenvalues), VARIANCE, seed=seed),
        torch.zeros(replicas, 16, dtype=torch.float64), seed=seed,
        lr=lr, alpha=alpha, beta=1.0, sigma=SIGMA, delta=DELTA,
    )  # fmt: skip
    times = torch.full((replicas, 8), math.inf, dtype=torch.float64)
    for step in range(1, _DIRECTION_STEPS + 1):
        # Walls at 10 radii keep the first to leave from overflowing while the last is waited for.
        x = chains.advance().clamp_(-10.0 * RADIUS, 10.0 * RADIUS)
        times[(x[:, :8].abs() >= RADIUS) & times.isinf()] = float(step)
        if bool(times.isfinite().all()):
            break
    return {"alpha": alpha, "lr": lr, "spread": spread, "first": times.amin(1).tolist(),
            "last": times.amax(1).tolist()}  # fmt: skip


_DIRECTION_STEPS = 20_000


@dataclass(frozen=True)
class _Quadratic:
    eigenvalues: Tensor

    def grad(self, x: Tensor) -> Tensor:
        return x * self.eigenvalues


def dimension_tasks(size: Size) -> list[Task]:
    """T against d: fixed noise per coordinate, fixed noise in total, and hot enough to brake."""
    tasks = []
    for dim, rotated in itertools.product(size.dims, (False, True)):
        shape = {"dim": dim, "rotated": rotated, "replicas": size.escapes}
        for label, (alpha, beta) in _KINDS.items():
            tasks.append(_task("fixed", label, alpha, beta, **shape))
        tasks.append(_task("total", "AGLD (0, 1)", 0.0, 1.0, **shape, sigma=1.0 / math.sqrt(dim)))
        tasks.append(_task("hot", "ASGLD (1, 1)", 1.0, 1.0, **shape, sigma=1.0))
    return tasks


def law_tasks(size: Size) -> list[Task]:
    """T against gamma, k0, alpha and beta."""
    gammas: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0)
    k0s: tuple[int, ...] = (0, 100, 1_000, 10_000)
    if size.name == "full":
        gammas, k0s = (0.02, *gammas), (*k0s, 100_000)
    if size.name == "tiny":
        gammas, k0s = gammas[2:], k0s[:3]
    tasks = []
    for label, (alpha, beta) in _KINDS.items():
        chains = {"replicas": size.escapes}
        if label != "ASG (1)":
            tasks += [_task("gamma", label, alpha, beta, gamma=gamma, **chains) for gamma in gammas]
        tasks += [_task("k0", label, alpha, beta, k0=k0, **chains) for k0 in k0s]
    late = {"k0": k0s[-1] if size.name == "tiny" else 1_000, "replicas": size.escapes}
    for alpha in (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)[: 4 if size.name == "tiny" else None]:
        tasks.append(_task("alpha", f"ASGLD ({alpha:g}, {max(1.0, alpha):g})", alpha,
                           max(1.0, alpha), **late))  # fmt: skip
    for beta in (0.0, 0.5, 1.0, 2.0, 4.0):
        tasks.append(_task("beta", "alpha = 0", 0.0, beta, **late))
        tasks.append(_task("beta", "alpha = 1", 1.0, beta, **late))
    # (0.5, 1) and (1, 0.5) have the same smaller exponent
    tasks.append(_task("pair", "ASGLD (0.5, 1)", 0.5, 1.0, **late))
    tasks.append(_task("pair", "ASGLD (1, 0.5)", 1.0, 0.5, **late))
    return tasks


def noise_tasks(size: Size) -> list[Task]:
    """ASG lives by the noise of its gradients alone."""
    limit = {"tiny": 50, "reduced": 2_000, "full": 5_000}[size.name]
    options = {"replicas": size.escapes, "limit": limit}
    kinds = [("ASG (1)", noise, 0.0) for noise in ("all", "stable", "none")]
    kinds.append(("ASGLD (1, 1)", "stable", SIGMA))
    return [
        Task(measure_noise, {"label": label, "noise": noise, "sigma": sigma, **options})
        for label, noise, sigma in kinds
    ]


def direction_tasks(size: Size) -> list[Task]:
    lrs = (0.1, 1.0) if size.name == "tiny" else (0.03, 0.1, 0.3, 1.0)
    return [
        Task(measure_directions, {"alpha": alpha, "lr": lr, "spread": spread,
                                  "replicas": size.escapes})
        for alpha, lr, spread in itertools.product((0.0, 1.0), lrs, (1.0, 10.0))
    ]  # fmt: skip


def front_tasks(size: Size) -> list[Task]:
    """Escape from a saddle met at step 1000, over the same (alpha, beta) as the region map."""
    alphas = (0.0, 0.5, 1.0, 1.5) if size.name == "full" else (0.0, 0.5, 1.0)
    k0 = 10 if size.name == "tiny" else 1_000
    return [
        _task("front", f"({alpha:g}, {beta:g})", alpha, beta, k0=k0, replicas=size.escapes)
        for alpha, beta in itertools.product(alphas, (0.5, 1.0, 1.5, 2.0))
    ]


def _task(sweep: str, label: str, alpha: float, beta: float, **options: Any) -> Task:
    return Task(
        measure_escape, {"sweep": sweep, "label": label, "alpha": alpha, "beta": beta, **options}
    )
