"""Theorem 3 and its remarks: how long it takes to leave a saddle.

f(x) = 1/2 sum_i l_i y_i^2 with one l_i = -gamma and the others 1 (quartic walls are there, but far
away); all chains start at the saddle. A saddle that is met at step k0 is met with D = d_init + k0
(delta + C). Both criteria are timed: |u'x| >= R along the escape direction u, and f <= -F; beside
them stands the prediction of `asgld.theory.escape_recursion`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asgld.problems import problem
from asgld.theory import escape_recursion, published_escape_time
from asgld.theory.plots import COLORS, new_figure
from asgld_study import drawing as draw
from asgld_study import statistics as stats
from asgld_study.chains import View, follow, noisy
from asgld_study.engine import Outcomes, Size, Task, experiment, task
from asgld_study.judge import LOG_D, Checks, at_least, at_most, between, claim
from asgld_study.page import DataTable, Row

LR, SIGMA, DELTA, RADIUS, DROP, VARIANCE = 0.1, 0.1, 0.01, 1.0, 0.5, 0.1
CRITERIA = ("distance", "value")
# label -> alpha, beta
KINDS = {"AGLD (0, 1)": (0.0, 1.0), "ASGLD (1, 1)": (1.0, 1.0), "ASG (1)": (1.0, math.inf)}
# Further exponents that are run against the curvature.
OTHER_KINDS = {
    "AGLD (0, 0.5)": (0.0, 0.5),
    "AGLD (0, 2)": (0.0, 2.0),
    "ASGLD (0.5, 1)": (0.5, 1.0),
    "ASGLD (1, 2)": (1.0, 2.0),
}
# Walls so far out that the saddle is a quadratic where escapes are timed.
_CONFINEMENT = 1e-6
# As many numbers as a step may hold, so that a large dimension has fewer chains.
_ELEMENTS = 2**18
# Several directions: quiet, so that growth and not a jump leads out. The grids of lr go beyond the
# best one on both sides; with alpha = 0 stable directions diverge from lr = 2 on.
_QUIET, _QUIET_VARIANCE = 0.01, 1e-3
_DIRECTION_LRS = {0.0: (0.3, 1.0, 1.5, 1.9, 2.2, 2.6), 1.0: (0.3, 1.0, 3.0, 6.0, 10.0, 20.0, 40.0)}
# label -> alpha, shape of D. A D per row of the tensor of chains is one number for a chain.
DIRECTION_KINDS = {
    "alpha = 0": (0.0, "coordinate"),
    "alpha = 1": (1.0, "coordinate"),
    "alpha = 1, one D for all directions": (1.0, "row"),
}


# ------------------------------------------------------------------------------------ runs


@dataclass(frozen=True)
class EscapeSetting:
    """One saddle and one optimizer; without injected noise where beta is infinite."""

    alpha: float
    beta: float
    gamma: float = 0.5
    k0: int = 100
    dim: int = 16
    rotated: bool = True

    @property
    def variance(self) -> float:
        """alpha = 0 is for full gradients; otherwise gradients are noisy."""
        return 0.0 if self.alpha == 0.0 else VARIANCE

    def predict(self, criterion: str, sigma: float = SIGMA) -> float:
        """The median escape time of the mean-field recursion."""
        noise = (1.0, 0.0) if math.isinf(self.beta) else (self.beta, sigma)
        known: dict[str, Any] = {"lr": LR, "delta": DELTA, "radius": RADIUS, "drop": DROP}
        known |= {"alpha": self.alpha, "beta": noise[0], "sigma": noise[1]}
        known |= {"k0": self.k0, "dim": self.dim, "aligned": not self.rotated}
        variance = self.variance
        return float(
            escape_recursion(self.gamma, gradient_variance=variance, criterion=criterion, **known)
        )


GRID = tuple(
    EscapeSetting(*values)
    for values in itertools.product(
        (0.0, 0.5, 1.0), (1.0, 2.0), (0.2, 0.5, 1.0), (0, 100, 1000), (8, 64), (False, True)
    )
)


def escape_times(
    setting: EscapeSetting,
    *,
    replicas: int,
    limit: int,
    sigma: float = SIGMA,
    share: float = 0.75,
    noise: str = "all",
) -> Tensor:
    """First steps with |u'x| >= R and with f <= -F, (2, replicas); inf beyond the end of the run.

    Args:
        limit: largest number of steps.
        share: the run ends when more than this share of the chains is out by both criteria.
        noise: gradient noise in "all" coordinates, in "stable" ones, or "none".
    """
    dim, shape = setting.dim, {"gamma": setting.gamma, "rotated": setting.rotated}
    saddle = problem("strict-saddle", dim=dim, confinement=_CONFINEMENT, **shape)
    minimizer = saddle.facts.minimizers
    assert minimizer is not None
    direction = minimizer[0] / torch.linalg.vector_norm(minimizer[0])
    mask = None
    if noise == "stable":
        mask = torch.ones(dim, dtype=torch.float64)
        mask[0] = 0.0
    times = torch.full((2, replicas), math.inf, dtype=torch.float64)
    enough = math.floor(share * replicas) + 1

    def look(view: View) -> bool:
        is_out = torch.stack([(view.x @ direction).abs() >= RADIUS, saddle.value(view.x) <= -DROP])
        times[is_out & times.isinf()] = float(view.step)
        return bool((times.isfinite().sum(1) >= enough).all())

    feed = noisy(0.0 if noise == "none" else setting.variance, mask=mask)
    x0 = torch.zeros(replicas, dim, dtype=torch.float64)
    d_init = 1.0 + setting.k0 * (DELTA + setting.variance)
    options: dict[str, Any] = {"lr": LR, "alpha": setting.alpha, "delta": DELTA, "d_init": d_init}
    if math.isinf(setting.beta):
        name = "asg"
    else:
        name, options = "asgld", {**options, "beta": setting.beta, "sigma": sigma}
    follow(name, saddle, x0, look, steps=limit, feed=feed, **options)
    return times


def measure_escape(
    sweep: str, label: str, *, sigma: float = SIGMA, replicas: int, **of_setting: Any
) -> dict[str, Any]:
    """Escape times of one setting, with what the recursion predicts for both criteria."""
    setting = EscapeSetting(**of_setting)
    predicted = {f"{name}_predicted": setting.predict(name, sigma) for name in CRITERIA}
    limit = math.ceil(10 * max(predicted.values()))
    times = escape_times(setting, sigma=sigma, replicas=replicas, limit=limit).tolist()
    names = {"sweep": sweep, "label": label, "sigma": sigma}
    return {**asdict(setting), **names, **dict(zip(CRITERIA, times, strict=True)), **predicted}


def measure_noise(
    label: str, noise: str, *, beta: float, replicas: int, limit: int
) -> dict[str, Any]:
    """How many chains leave an aligned saddle within the limit, for noise in some directions."""
    setting = EscapeSetting(1.0, beta, 0.5, 0, 16, False)
    times = escape_times(setting, replicas=replicas, limit=limit, noise=noise, share=1.0)
    return {"label": label, "noise": noise, "limit": limit, "times": times[0].tolist()}


@dataclass(frozen=True)
class _Quadratic:
    eigenvalues: Tensor
    dim = 16
    num_samples = None

    def value(self, x: Tensor) -> Tensor:
        return 0.5 * (x.square() * self.eigenvalues).sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        return x * self.eigenvalues


def measure_directions(
    label: str, lr: float, spread: float, *, steps: int, replicas: int
) -> dict[str, Any]:
    """When have eight directions left, while the other eight are still near the saddle?

    The curvatures of the eight are 0.5 at most; `spread` is the largest over the smallest.
    """
    alpha, shape = DIRECTION_KINDS[label]
    eigenvalues = torch.ones(16, dtype=torch.float64)
    eigenvalues[:8] = -torch.logspace(-math.log10(spread), 0.0, 8, dtype=torch.float64) / 2.0
    has_left = torch.zeros(replicas, 8, dtype=torch.bool)
    times = torch.full((2, replicas), math.inf, dtype=torch.float64)

    def look(view: View) -> bool:
        has_left.logical_or_(view.x[:, :8].abs() >= RADIUS)
        is_near = view.x[:, 8:].abs().amax(1) < RADIUS
        for row, is_out in enumerate((has_left.any(1), has_left.all(1))):
            times[row, is_out & is_near & times[row].isinf()] = float(view.step)
        return bool(times.isfinite().all())

    def keep(x: Tensor) -> Tensor:
        # Walls at 10 radii keep the first to leave from overflowing while the last is waited for.
        return x.clamp_(-10.0 * RADIUS, 10.0 * RADIUS)

    x0 = torch.zeros(replicas, 16, dtype=torch.float64)
    how: dict[str, Any] = {"steps": steps, "feed": noisy(_QUIET_VARIANCE), "keep": keep}
    options: dict[str, Any] = {"lr": lr, "alpha": alpha, "beta": 1.0, "sigma": _QUIET}
    follow("asgld", _Quadratic(eigenvalues), x0, look, delta=DELTA, shape=shape, **how, **options)
    first, last = times.tolist()
    return {"label": label, "lr": lr, "spread": spread, "first": first, "last": last}


def measure_growth(alpha: float, k0: int, *, steps: int, replicas: int) -> dict[str, Any]:
    """The growth of an escape along an axis over `steps` steps, by the D of the run.

    Of the product over l of 1 + gamma lr D_l^(-alpha/2) the constants of Lemma 3: a5 of
    (1 + a5 gamma lr)^T, and a6 of (1 + a6 gamma lr T^(-alpha/2))^T.
    """
    setting = EscapeSetting(alpha, 1.0, k0=k0, rotated=False)
    saddle = problem(
        "strict-saddle", dim=setting.dim, gamma=setting.gamma, rotated=False,
        confinement=_CONFINEMENT,
    )  # fmt: skip
    axis = int(saddle.facts.minimizers[0].abs().argmax())  # type: ignore[index]
    logs = torch.zeros(replicas, dtype=torch.float64)

    def look(view: View) -> None:
        if view.step < steps:
            logs.add_(torch.log1p(setting.gamma * LR * view.D[:, axis] ** (-alpha / 2)))

    x0 = torch.zeros(replicas, setting.dim, dtype=torch.float64)
    options: dict[str, Any] = {"lr": LR, "alpha": alpha, "beta": 1.0, "sigma": SIGMA}
    options |= {"delta": DELTA, "d_init": 1.0 + k0 * (DELTA + VARIANCE)}
    follow("asgld", saddle, x0, look, steps=steps, feed=noisy(VARIANCE), **options)
    per_step = torch.expm1(logs / steps) / (setting.gamma * LR)
    lower = stats.mean((per_step * steps ** (alpha / 2)).tolist())
    return {"alpha": alpha, "k0": k0, "a5": stats.mean(per_step.tolist()), "a6": lower}


def _escape(
    sweep: str, label: str, alpha: float, beta: float, *, replicas: int, **rest: Any
) -> Task:
    few = max(min(replicas, _ELEMENTS // rest.get("dim", 1)), 24)
    return task(
        measure_escape, sweep=sweep, label=label, alpha=alpha, beta=beta, replicas=few, **rest
    )


@experiment("dimension", "Escape against dimension")
def dimension_tasks(size: Size) -> list[Task]:
    """Is the time to leave a saddle logarithmic in d?"""
    # T against d: fixed noise per coordinate, fixed noise in total, and hot enough to brake.
    tasks = []
    for dim, rotated in itertools.product(size.dims, (False, True)):
        escape = partial(_escape, dim=dim, rotated=rotated, replicas=size.escapes)
        tasks += [escape("fixed", label, *exponents) for label, exponents in KINDS.items()]
        tasks.append(escape("total", "AGLD (0, 1)", 0.0, 1.0, sigma=1.0 / math.sqrt(dim)))
        tasks.append(escape("hot", "ASGLD (1, 1)", 1.0, 1.0, sigma=1.0))
    return tasks


@experiment("escape", "Escape against curvature, time and exponents")
def law_tasks(size: Size) -> list[Task]:
    """What does the time to leave a saddle depend on?"""
    # T against gamma, k0, alpha and beta.
    gammas: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0)
    k0s: tuple[int, ...] = (0, 100, 1_000, 10_000)
    alphas: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
    if size.name == "full":
        gammas, k0s = (0.02, *gammas), (*k0s, 100_000)
    if size.name == "tiny":
        gammas, k0s, alphas = gammas[2:], k0s[:3], alphas[:4]
    tasks, escape = [], partial(_escape, replicas=size.escapes)
    for label, exponents in (KINDS | OTHER_KINDS).items():
        tasks += [escape("gamma", label, *exponents, gamma=gamma) for gamma in gammas]
    for label, exponents in KINDS.items():
        tasks += [escape("k0", label, *exponents, k0=k0) for k0 in k0s]
    late = partial(escape, k0=1_000)
    for alpha in alphas:
        beta = max(1.0, alpha)
        tasks.append(late("alpha", f"ASGLD ({alpha:g}, {beta:g})", alpha, beta))
    for beta, alpha in itertools.product((0.0, 0.5, 1.0, 2.0, 4.0), (0.0, 1.0)):
        tasks.append(late("beta", f"alpha = {alpha:g}", alpha, beta))
    # (0.5, 1) and (1, 0.5) have the same smaller exponent
    for alpha, beta in ((0.5, 1.0), (1.0, 0.5)):
        tasks.append(late("pair", f"ASGLD ({alpha:g}, {beta:g})", alpha, beta))
    return tasks


@experiment("noise", "Escape by gradient noise alone")
def noise_tasks(size: Size) -> list[Task]:
    """Does ASG leave a saddle, and what if its noise misses the direction?"""
    # ASG lives by the noise of its gradients alone.
    limit = {"tiny": 50, "reduced": 2_000, "full": 5_000}[size.name]
    run = partial(task, measure_noise, limit=limit, replicas=size.escapes)
    return [
        *(run(label="ASG (1)", beta=math.inf, noise=noise) for noise in ("all", "stable", "none")),
        run(label="ASGLD (1, 1)", beta=1.0, noise="stable"),
    ]


@experiment("directions", "Several escape directions")
def direction_tasks(size: Size) -> list[Task]:
    """Does the adaptive D help to leave along several directions at once?"""
    steps = 100 if size.name == "tiny" else 1_500
    run = partial(task, measure_directions, steps=steps, replicas=size.escapes)
    return [
        run(label=label, lr=lr, spread=spread)
        for label, (alpha, _) in DIRECTION_KINDS.items()
        for lr, spread in itertools.product(_DIRECTION_LRS[alpha], (1.0, 10.0))
    ]


@experiment("growth", "The growth of an escape")
def growth_tasks(size: Size) -> list[Task]:
    """Does the growth over T steps depend on when the saddle is met?"""
    return [
        task(measure_growth, alpha=alpha, k0=k0, steps=100, replicas=size.chains)
        for alpha, k0 in itertools.product((0.0, 1.0), (0, 100, 10_000))
    ]


@experiment("front", "Escape against accuracy")
def front_tasks(size: Size) -> list[Task]:
    """Which exponents leave late saddles soon and still end near a minimum?"""
    # Escape from a saddle met at step 1000, over the same (alpha, beta) as the region map.
    alphas = (0.0, 0.5, 1.0, 1.5) if size.name == "full" else (0.0, 0.5, 1.0)
    k0 = 10 if size.name == "tiny" else 1_000
    return [
        _escape("front", f"({alpha:g}, {beta:g})", alpha, beta, k0=k0, replicas=size.escapes)
        for alpha, beta in itertools.product(alphas, (0.5, 1.0, 1.5, 2.0))
    ]


def grid_tasks(settings: Sequence[EscapeSetting], replicas: int) -> list[Task]:
    return [
        task(measure_escape, sweep="grid", label="ASGLD", **asdict(setting), replicas=replicas)
        for setting in settings
    ]


# ------------------------------------------------------------------------------------ claims

# The sweeps over d: (sweep, label), and how the noise is scaled in each sweep.
_SWEEPS = (
    ("fixed", "AGLD (0, 1)"),
    ("fixed", "ASGLD (1, 1)"),
    ("fixed", "ASG (1)"),
    ("total", "AGLD (0, 1)"),
    ("hot", "ASGLD (1, 1)"),
)
_SCALES = {"fixed": "sigma 0.1", "total": "sigma d^(-1/2)", "hot": "sigma 1"}


def _over_d(o: Outcomes, sweep: str, label: str, rotated: bool) -> list[dict[str, Any]]:
    found = o["dimension"].select(sweep=sweep, label=label, rotated=rotated)
    return sorted(found, key=lambda v: v["dim"])


def _grown_by_log_d(
    o: Outcomes, sweep: str, label: str, rotated: bool
) -> tuple[str, stats.Estimate]:
    """How much the time to get below the saddle grows with d, in units of log d, with its words."""
    found = _over_d(o, sweep, label, rotated)
    small, large = found[len(found) // 2 - 1], found[-1]
    grown = stats.ratio_of_medians(large["value"], small["value"])
    allowed = math.log(large["dim"]) / math.log(small["dim"])
    says = (
        f"{label}, {_SCALES[sweep]}, {'rotated' if rotated else 'aligned'}: "
        f"T({large['dim']}) over T({small['dim']}), in units of log d"
    )
    return says, stats.scaled(grown, 1 / allowed)


def _medians(values: Sequence[Mapping[str, Any]], name: str = "distance") -> list[float]:
    return [stats.median(value[name])["value"] for value in values]


@claim("E1", "Theorem 3", "dimension", item="Theorem 3")
def e1(o: Outcomes) -> Checks:
    """ASGLD, AGLD and ASG leave a saddle within O(log d) steps.

    True at alpha = 0, and where the noise is quiet. At alpha > 0 an escape along an axis feeds its
    own D and brakes: a power of d once the heat of the other coordinates is what has to be beaten.
    |u'x| >= R has no d in it at all.
    """
    for (sweep, label), rotated in itertools.product(_SWEEPS, (False, True)):
        says, grown = _grown_by_log_d(o, sweep, label, rotated)
        yield at_most(says, grown, LOG_D)


@claim("E2", "Theorem 3", "escape", item="Theorem 3")
def e2(o: Outcomes) -> Checks:
    """As a law, the escape time is of order 1/(log gamma + a3).

    1/gamma at alpha = 0, and up to gamma^(-2/(2 - alpha)) above. As a bound alone the statement
    cannot be tested: with a3 free, some constant covers any range of gamma.
    """
    for label in KINDS | OTHER_KINDS:
        found = o["escape"].select(sweep="gamma", label=label)
        gammas, times = [v["gamma"] for v in found], [v["distance"] for v in found]
        a3 = -math.log(min(gammas)) + np.geomspace(1e-3, 1e3, 400)
        worst, best = stats.law_misfit(times, 1.0 / (np.log(gammas) + a3[:, None]))
        says = f"{label}: largest log residual of 1/(log gamma + a3), best a3 = {a3[best]:.2f}"
        yield at_most(says, worst, 0.25)
        predicted = np.log([v["distance_predicted"] for v in found])
        worst_log = float(np.abs(np.log(_medians(found)) - predicted).max())
        says = f"{label}: largest log residual of the corrected law, nothing fitted"
        yield at_most(says, worst_log, 0.25, core=False)


@claim("E9", "Theorem 3, remark ii", "escape", item="Theorem 3 remark ii")
def e9(o: Outcomes) -> Checks:
    """The smaller gamma is, the longer an escape takes."""
    for label in KINDS | OTHER_KINDS:
        found = o["escape"].select(sweep="gamma", label=label)
        logs = np.log([v["gamma"] for v in found]).tolist()
        fit = stats.time_slope(logs, [v["distance"] for v in found])
        yield at_most(f"{label}: exponent of gamma in the escape time", fit, 0.0)


@claim("L3", "Lemma 3", "growth", item="Lemma 3")
def l3(o: Outcomes) -> Checks:
    """In T steps an escape grows by a factor between (1 + a6 gamma lr T^(-alpha/2))^T and
    (1 + a5 gamma lr)^T, a5 and a6 constant.

    The upper bound holds wherever D >= 1. The lower one needs (k0 + T)^(-alpha/2) in place of
    T^(-alpha/2): a late saddle has a large D from the start.
    """
    for alpha in (0.0, 1.0):
        early, late = (o["growth"].one(alpha=alpha, k0=k0) for k0 in (0, 10_000))
        ratio = stats.ratio_of_means(early["a6"], late["a6"])
        yield at_most(f"alpha = {alpha:g}: a6 at step 0 over a6 at step 10000", ratio, 2.0)
        for value in (early, late):
            says = f"alpha = {alpha:g}: a5 from step {value['k0']} on"
            yield at_most(says, value["a5"], 1.0 + 1e-9)


@claim("E3", "Theorem 3", "escape", item="Theorem 3")
def e3(o: Outcomes) -> Checks:
    """The escape time grows with min(alpha, beta) and no other way with the exponents.

    alpha multiplies it by D^(alpha/2); beta adds (beta - alpha/2) log D inside a logarithm.
    """

    def left(sweep: str, alpha: float, beta: float) -> list[float]:
        times: list[float] = o["escape"].one(sweep=sweep, alpha=alpha, beta=beta)["distance"]
        return times

    ratio = stats.ratio_of_medians(left("beta", 0.0, 4.0), left("beta", 0.0, 0.0))
    yield between("alpha = 0, so min = 0: T(beta = 4) over T(beta = 0)", ratio, 0.8, 1.25)
    ratio = stats.ratio_of_medians(left("pair", 1.0, 0.5), left("pair", 0.5, 1.0))
    yield between("min = 0.5: T(1, 0.5) over T(0.5, 1)", ratio, 0.8, 1.25)


@claim("E4", "Theorem 3", "escape", item="Theorem 3")
def e4(o: Outcomes) -> Checks:
    """The escape time does not depend on when the saddle is met.

    It grows like k0^(alpha/2), and like log k0 at alpha = 0.
    """
    for label in KINDS:
        found = [v for v in o["escape"].select(sweep="k0", label=label) if v["k0"] > 0]
        fit = stats.time_slope([math.log(v["k0"]) for v in found], [v["distance"] for v in found])
        yield at_most(f"{label}: exponent of k0 in the escape time", fit, 0.02)


@claim("E5", "Theorem 3", "noise", item="Theorem 3")
def e5(o: Outcomes) -> Checks:
    """ASG leaves saddles too.

    Only with gradient noise along the escape direction, of which no assumption speaks.
    """
    where = {"all": "everywhere", "stable": "in stable directions only", "none": "nowhere"}
    for noise, words in where.items():
        value = o["noise"].one(label="ASG (1)", noise=noise)
        left = stats.share(np.isfinite(value["times"]))
        says = f"gradient noise {words}: share that left within {value['limit']} steps"
        yield at_least(says, left, 0.9, core=noise == "all")


def _tuned(o: Outcomes, label: str, spread: float) -> tuple[float, list[float], bool]:
    """The best lr, the times at which the last direction had left with it, and whether worse lr
    were tried on both sides. Half of the chains choose, and the times are those of the others."""
    tried = o["directions"].select(label=label, spread=spread)
    best = min(tried, key=lambda v: stats.median(v["last"][::2])["value"])
    is_inside = stats.lies_inside(best["lr"], [v["lr"] for v in tried])
    return best["lr"], best["last"][1::2], is_inside


@claim("E6", "Theorem 3, remark i", "directions")
def e6(o: Outcomes) -> Checks:
    """The adaptive D helps to leave along several directions at once.

    It allows a longer lr: directions in which the first steps overshoot brake themselves. At the lr
    of the theorem, up to 1/M, and D >= 1 alpha = 1 is no faster: D only shortens steps there.
    """
    plain, adaptive, common = DIRECTION_KINDS
    for spread, words in ((10.0, "of different curvature"), (1.0, "of equal curvature")):
        (lr0, times0, inside0), (lr1, times1, inside1) = (
            _tuned(o, label, spread) for label in (plain, adaptive)
        )
        ratio = stats.ratio_of_medians(times1, times0) if inside0 and inside1 else stats.UNKNOWN
        until = f"eight directions {words}: time until the last has left, alpha = 1 over alpha = 0"
        yield at_most(f"{until}, best lr {lr1:g} and {lr0:g}", ratio, 1.0)
        for lr in (0.3, 1.0):
            slow, fast = (
                o["directions"].one(label=label, spread=spread, lr=lr)["last"]
                for label in (adaptive, plain)
            )
            ratio = stats.ratio_of_medians(slow, fast)
            yield at_most(f"{until}, both at lr = {lr:g} / M", ratio, 1.0, core=False)
    both = [_tuned(o, label, 10.0)[1] for label in (adaptive, common)]
    says = "a D per direction over one D for all, different curvatures, best lr each"
    yield at_most(says, stats.ratio_of_medians(*both), 1.0, core=False)


@claim("E10", "Theorem 3, remark i", "dimension", item="Theorem 3 remark i")
def e10(o: Outcomes) -> Checks:
    """Escapes take log d steps because D adapts.

    At alpha = 0, where D does not scale the step, they take log d as well.
    """
    for (sweep, label), rotated in itertools.product(_SWEEPS, (False, True)):
        if KINDS[label][0] == 0.0:
            says, grown = _grown_by_log_d(o, sweep, label, rotated)
            yield at_least(says, grown, LOG_D)


def _left(o: Outcomes, alpha: float, beta: float) -> list[float]:
    """Times of escapes from a saddle that is met late."""
    times: list[float] = o["front"].one(alpha=alpha, beta=beta)["distance"]
    return times


@claim("E7", "Theorem 3, remark iii", "front", "region", item="Theorem 3 remark iii")
def e7(o: Outcomes) -> Checks:
    """A small beta escapes sooner and converges slower; alpha = beta = 1 balances."""
    left = partial(_left, o)

    def final(alpha: float, beta: float) -> stats.Estimate:
        error: stats.Estimate = o["region"].one(alpha=alpha, beta=beta)["final"]
        return error

    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        sooner = stats.ratio_of_medians(left(*one), left(*other))
        closer = stats.ratio_of_means(final(*one), final(*other))
        return sooner["high"] < 1.0 and closer["high"] < 1.0

    # At alpha = 0 a constant batch leaves a floor that no beta changes.
    for alpha in (0.5, 1.0):
        ratio = stats.ratio_of_medians(left(alpha, 2.0), left(alpha, 0.5))
        yield at_least(f"alpha = {alpha:g}: T(beta = 2) over T(beta = 0.5)", ratio, 1.0)
        ratio = stats.ratio_of_means(final(alpha, 2.0), final(alpha, 0.5))
        says = f"alpha = {alpha:g}: final E|grad f|^2 at beta = 2 over that at 0.5"
        yield at_most(says, ratio, 1.0)
    better = sum(beats((v["alpha"], v["beta"]), (1.0, 1.0)) for v in o["front"].values)
    yield at_most("exponents that beat (1, 1) in escape and in final error", better, 0, core=False)


@claim("E11", "section 3", "front", "region")
def e11(o: Outcomes) -> Checks:
    """alpha controls the speed of convergence, and beta the escape time.

    alpha multiplies the time of a late escape by D^(alpha/2), and beta adds to a logarithm. The
    speed is that of the smaller exponent, less alpha/2, and a smaller beta costs more of it.
    """
    ratio = stats.ratio_of_medians(_left(o, 1.0, 0.5), _left(o, 0.5, 1.0))
    says = "T(1, 0.5) over T(0.5, 1): a smaller beta shortens escapes as much as a smaller alpha"
    yield at_most(says, ratio, 1.0)
    speeds = (o["region"].one(alpha=a, beta=b)["last"] for a, b in ((1.0, 0.5), (0.5, 1.0)))
    says = "exponent of E|grad f|^2 at (1, 0.5) less that at (0.5, 1): alpha costs more speed"
    yield at_least(says, stats.difference(*speeds), 0.0)


# ------------------------------------------------------------------------------------ pictures


@draw.picture("dimension")
def times_over_d(o: Outcomes) -> Any:
    """Escape against dimension

    Straight and steep on these axes is a power of d; flat is free of d. Solid lines are saddles
    along an axis, dashed ones rotated.

    Five panels of median escape time against dimension, two criteria, aligned and rotated.
    """
    figure, axes = draw.panels(2, 3, 5.0, sharex=True)
    titles = {"fixed": r"$\sigma = 0.1$", "total": r"$\sigma = d^{-1/2}$", "hot": r"$\sigma = 1$"}
    words = {"distance": "|u·x| ≥ 1", "value": "f ≤ -1/2"}
    for panel, (sweep, label) in zip(axes.flat, _SWEEPS, strict=False):
        for i, (criterion, rotated) in enumerate(itertools.product(words, (False, True))):
            mine = _over_d(o, sweep, label, rotated)
            dims, kind = [v["dim"] for v in mine], "rotated" if rotated else "aligned"
            name, dashes = f"{words[criterion]}, {kind}", "--" if rotated else "-"
            draw.plot(panel, i, dims, _medians(mine, criterion), name, dashes)
        draw.log_log(panel, title=f"{label}, {titles[sweep]}")
        draw.plain(panel.xaxis, dims[:: -(-len(dims) // 4)])
        draw.plain(panel.yaxis)
    draw.outer(axes, "d", "median steps to escape")
    axes[0, 2].xaxis.set_tick_params(labelbottom=True)
    axes[0, 2].set_xlabel("d")
    axes[1, 2].set_axis_off()
    axes[1, 2].legend(*axes[0, 0].get_legend_handles_labels(), loc="center")
    return figure


@draw.picture("escape")
def times_by_law(o: Outcomes) -> Any:
    """What the escape time depends on

    Points are measured, lines are predicted by the mean-field recursion; no parameter is fitted.

    Four panels of median escape time against curvature, time of meeting, alpha and beta.
    """
    figure, axes = draw.panels(2, 2, 5.2)
    names = {"gamma": r"$\gamma$", "k0": "$k_0$", "alpha": r"$\alpha$", "beta": r"$\beta$"}
    for panel, (sweep, name) in zip(axes.flat, names.items(), strict=True):
        mine = [v for v in o["escape"].select(sweep=sweep) if v[sweep] > 0 or sweep != "k0"]
        groups: dict[str, list[dict[str, Any]]] = {}
        for v in mine:
            groups.setdefault("ASGLD" if sweep == "alpha" else v["label"], []).append(v)
        for i, (label, values) in enumerate(groups.items()):
            x = [v[sweep] for v in values]
            draw.plot(panel, i, x, _medians(values), label, "none")
            predicted, color = [v["distance_predicted"] for v in values], draw.series(i)["color"]
            panel.plot(x, predicted, color=color, linewidth=1.0)
        panel.set(yscale="log", xlabel=name)
        if sweep in ("gamma", "k0"):
            panel.set_xscale("log")
        panel.legend()
    for panel in axes[:, 0]:
        panel.set_ylabel("median steps to escape")
    return figure


@draw.picture("noise")
def shares_by_noise(o: Outcomes) -> Any:
    """Escape by gradient noise

    A line that stays at zero belongs to chains that never leave.

    Share of chains that left the saddle against the step, for four kinds of noise.
    """
    figure, panel = draw.one_panel(2.8)
    for i, value in enumerate(o["noise"].values):
        steps = np.geomspace(1, value["limit"], 80)
        out = [(np.array(value["times"]) <= step).mean() for step in steps]
        draw.curve(panel, i, steps, out, f"{value['label']}, gradient noise: {value['noise']}")
    panel.set(xscale="log", xlabel="step", ylabel="share of chains that left", ylim=(-0.03, 1.03))
    draw.legend(figure, panel, 2)
    return figure


@draw.picture("directions")
def times_by_direction(o: Outcomes) -> Any:
    """Eight escape directions at once

    Compare the lowest points of the lines: the time until the last of eight directions has left, at
    the best step. Where a line ends, stable directions diverge.

    Two panels of the time until the last of eight directions has left against lr, one line per
    shape of D.
    """
    figure, axes = draw.panels(1, 2, 2.9, sharey=True)
    titles = {1.0: "equal curvatures", 10.0: "curvatures over a factor of ten"}
    for panel, (spread, title) in zip(axes.flat, titles.items(), strict=True):
        for i, label in enumerate(DIRECTION_KINDS):
            mine = o["directions"].select(label=label, spread=spread)
            draw.plot(panel, i, [v["lr"] for v in mine], _medians(mine, "last"), label)
        panel.axvline(1.0, color=draw.GRAY, linewidth=0.8)
        draw.log_log(panel, xlabel="lr (line: 1/M)", title=title)
        draw.plain(panel.xaxis, (0.3, 1.0, 3.0, 10.0, 40.0))
    axes[0, 0].set_ylabel("median steps until all have left")
    draw.legend(figure, axes[0, 0])
    return figure


@draw.picture("growth")
def growth_by_start(o: Outcomes) -> Any:
    """Lemma 3: the constant of the lower bound

    A constant would be a level line.

    The constant a6 of Lemma 3 against the step at which the saddle is met, one line per alpha.
    """
    figure, panel = draw.one_panel(2.8)
    for i, alpha in enumerate((0.0, 1.0)):
        mine = o["growth"].select(alpha=alpha)
        values = [v["a6"]["value"] for v in mine]
        draw.plot(panel, i, [v["k0"] + 1 for v in mine], values, rf"$\alpha$ = {alpha:g}")
    draw.log_log(panel, xlabel="step at which the saddle is met, plus one", ylabel="largest $a_6$")
    draw.legend(figure, panel)
    return figure


@draw.picture("front", also=("region",))
def escape_against_accuracy(o: Outcomes) -> Any:
    """Escape time against final accuracy

    Down and left is better. Numbers beside points are beta.

    Scatter of final squared gradient against escape time, one line per alpha.
    """
    figure, panel = draw.one_panel(3.6)
    # Of a point, where its label stands, by turns: large betas end at the same place.
    sides = ((4, 4), (-9, -10), (4, 4), (4, -10))
    for i, alpha in enumerate(sorted({v["alpha"] for v in o["front"].values})):
        mine = o["front"].select(alpha=alpha)
        x = _medians(mine)
        y = [o["region"].one(alpha=alpha, beta=v["beta"])["final"]["value"] for v in mine]
        draw.plot(panel, i, x, y, rf"$\alpha$ = {alpha:g}", linewidth=0.8)
        for v, *point, side in zip(mine, x, y, itertools.cycle(sides), strict=False):
            at = {"textcoords": "offset points", "xytext": side, "fontsize": 7}
            panel.annotate(f"{v['beta']:g}", point, **at)
    draw.log_log(
        panel,
        xlabel="median steps to leave a saddle met at step 1000",
        ylabel=r"$E|\nabla f|^2$ at the end",
    )
    draw.legend(figure, panel)
    return figure


def draw_grid(rows: Sequence[Row]) -> Any:
    """Measured against predicted median escape times, one point per setting, both criteria."""
    figure = new_figure(9.5, 4.4)
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    titles = {"distance": "$|u'x| \\geq 1$", "value": "$f \\leq f_{saddle} - 1/2$"}
    for panel, (criterion, title) in zip(axes, titles.items(), strict=True):
        predicted = [row[f"{criterion}_predicted"] for row in rows]
        for color, alpha in zip(COLORS, sorted({row["alpha"] for row in rows}), strict=False):
            mine = [row for row in rows if row["alpha"] == alpha]
            x, y = ([row[name] for row in mine] for name in (f"{criterion}_predicted", criterion))
            panel.scatter(x, y, s=14, color=color, alpha=0.7, label=rf"$\alpha = {alpha:g}$")
        ends = [min(predicted), max(predicted)]
        panel.plot(ends, ends, color="black", linewidth=0.8)
        draw.log_log(panel, xlabel="predicted steps", title=title)
        panel.grid(alpha=0.25, linewidth=0.5)
    axes[0].set_ylabel("measured steps")
    axes[0].legend(frameon=False)
    return figure


# column of the tables -> key of the value
_COLUMNS = {"sweep": "sweep", "method": "label", "d": "dim"}
_COLUMNS |= {name: name for name in ("gamma", "k0", "beta")}


def escape_rows(name: str) -> Callable[[Outcomes], list[Row]]:
    def rows(o: Outcomes) -> list[Row]:
        return [
            {
                **{column: v[key] for column, key in _COLUMNS.items()},
                "rotated": "yes" if v["rotated"] else "no",
                "distance": stats.median(v["distance"])["value"],
                "predicted": v["distance_predicted"],
                "value": stats.median(v["value"])["value"],
                "predicted value": v["value_predicted"],
            }
            for v in o[name].values
        ]

    return rows


def grid_row(value: Mapping[str, Any]) -> Row:
    """A value of `measure_escape` as a flat record of medians, with the published time."""
    setting = {name: value[name] for name in ("alpha", "beta", "gamma", "k0", "dim", "rotated")}
    row = {
        "distance": float(np.quantile(value["distance"], 0.5, method="lower")),
        "distance_predicted": value["distance_predicted"],
        "value": float(np.quantile(value["value"], 0.5, method="lower")),
        "value_predicted": value["value_predicted"],
    }
    exponents = (setting["gamma"], setting["alpha"], setting["beta"], setting["dim"])
    published = float(published_escape_time(*exponents))
    ratios = {f"{name}_ratio": row[name] / row[f"{name}_predicted"] for name in CRITERIA}
    return {**setting, **row, "published": published, **ratios}


TIMES = tuple(
    DataTable(name, name, "Median steps, measured and predicted.", escape_rows(name))
    for name in ("dimension", "escape", "front")
)
