"""Theorem 2, the batch theorem and Proposition 6: how fast the squared gradient falls, and where.

Two functions, since an upper bound is tight only on a function that makes it so:

- "waves", f = sum_i 1 - cos x_i: a basin, where the noise terms I2 and I3 decide;
- "flat", f = sum_i (1 + x_i^2)^-0.1: a slope without end, where the start term I1 decides. On it
  plain descent has |grad f|^2 ~ t^-1.09 in the clock t = sum of steps, so the exponent is 1.09 (1 -
  alpha/2) where the noise is quiet.

Measured are slopes of log against log k: of the weighted average of squared gradients, which the
theorems bound, and of the squared gradient at the last iterate. Intervals are a bootstrap over
replicas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asgld.theory import plots, rate
from asgld.theory.plots import COLORS
from asgld_study import drawing as draw
from asgld_study.chains import Feed, View, due_steps, follow, noisy
from asgld_study.engine import Outcomes, Size, Task, experiment, task
from asgld_study.judge import LOGS, SLACK, Check, Checks, Claim, at_least, at_most, between, claim
from asgld_study.landscapes import LANDSCAPES, start
from asgld_study.page import Row, table
from asgld_study.paper.bounds import SMOOTHNESS, TERMS
from asgld_study.paper.minima import eps_power
from asgld_study.statistics import (
    BoolArray,
    Estimate,
    FloatArray,
    difference,
    mean,
    named,
    scaled,
    slope,
)

LR, DELTA, SIGMA, VARIANCE = 0.5, 0.1, 0.3, 0.3
# Of the accumulator, where "small" is taken at its word.
TINY_DELTA = 1e-8


# ------------------------------------------------------------------------------------ runs


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

    def promised(self, version: str) -> float:
        """The exponent of k in the bound; nan where the version says nothing."""
        found = rate(self.alpha, self.beta, method=self.method, theta=self.theta, version=version)
        return float(found.exponent)


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
# Cases of the theorems that the list above has no point of, or none on the flat function.
MORE_CASES = (
    Case("asgld", 1.25, 0.75),
    Case("asgld", 0.5, 0.35),
    Case("agld", 2, 1.5),
    Case("asg", 2, math.inf),
    *(Case("asgld", a, b, function="flat") for a, b in [(0.5, 1), (1, 1)]),
    *(Case("agld", a, b, function="flat") for a, b in [(1, 1), (1, 2)]),
    *(Case("asg", alpha, math.inf, function="flat") for alpha in (1, 1.5)),
    *(Case("asgld", 0, b, theta) for b, theta in ((0.5, 0.25), (0.5, 1), (2, 0.5), (2, 1.5))),
)
# Batches of 1 + slope k.
SLOPES = (1.0, 0.1, 0.01, 0.001)


def trajectory(
    case: Case, *, steps: int, replicas: int, delta: float = DELTA, feed: Feed | None = None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """log k, (T,), and weighted averages and last values of |grad f|^2, (T, replicas).

    `feed` replaces the gradients of the case.
    """
    function = LANDSCAPES[case.function]
    options: dict[str, Any] = {"lr": LR, "alpha": case.alpha, "delta": delta}
    if case.method != "asg":
        options |= {"beta": case.beta, "sigma": SIGMA}
    ks = due_steps(steps)
    due, averages, lasts = set(ks), [], []
    weighted, total = torch.zeros(replicas, dtype=torch.float64), 0.0

    def look(view: View) -> None:
        nonlocal total
        squares = function.grad(view.x).square().sum(-1)
        if view.step in due:
            averages.append((weighted / total).numpy())
            lasts.append(squares.numpy())
        # (1 + delta j)^(-alpha/2) is of the order of lr D_j^(-alpha/2) and the same for all
        # replicas, so that the average has fixed weights, as in the theorems.
        weight = (1.0 + view.step * DELTA) ** (-case.alpha / 2)
        weighted.add_(squares, alpha=weight)
        total += weight

    feed = feed or noisy(0.0 if case.method == "agld" else VARIANCE, theta=case.theta)
    follow(case.method, function, start(replicas), look, steps=steps, feed=feed, **options)
    return np.log(np.array(ks, dtype=np.float64)), np.array(averages), np.array(lasts)


def _exponent(x: FloatArray, columns: FloatArray) -> Estimate:
    fit = slope(x, columns)
    return {"value": -fit["value"], "low": -fit["high"], "high": -fit["low"]}


def _last_decade(log_k: FloatArray) -> BoolArray:
    return np.asarray(log_k >= log_k[-1] - math.log(10.0) - 1e-9)


def measure_case(*, steps: int, replicas: int, **of_case: Any) -> dict[str, Any]:
    """One case: exponents over the last decade, over the last two, and over log k for slow ones."""
    case = Case(**of_case)
    log_k, averages, lasts = trajectory(case, steps=steps, replicas=replicas)
    is_late = _last_decade(log_k)
    return {
        **vars(case),
        "label": case.label,
        "published": case.promised("published"),
        "corrected": case.promised("corrected"),
        "average": _exponent(log_k[is_late], averages[is_late]),
        "last": _exponent(log_k[is_late], lasts[is_late]),
        "two_decades": {"average": _exponent(log_k, averages), "last": _exponent(log_k, lasts)},
        # against log k itself: 1 for a bound of 1/log k
        "per_log": _exponent(np.log(log_k), averages),
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
        "last": _exponent(log_k, lasts),
        "with_delta": tau,
        "without_delta": tau / (1 + tau),
        "path": {"k": np.exp(log_k).tolist(), "last": lasts.mean(axis=1).tolist()},
    }


def measure_slope(growth: float, *, steps: int, replicas: int) -> dict[str, Any]:
    """ASGLD (0, 1) on the waves with batches of 1 + growth k: exponents and the last values."""
    case, generator = Case("asgld", 0.0, 1.0, 1.0), torch.Generator().manual_seed(1)

    def feed(door: Any, x: Tensor, step: int) -> Tensor:
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        gradient: Tensor = door.grad(x)
        return gradient + math.sqrt(VARIANCE / (1.0 + growth * step)) * noise

    log_k, _, lasts = trajectory(case, steps=steps, replicas=replicas, feed=feed)
    is_late = _last_decade(log_k)
    return {
        "growth": growth,
        "steps": steps,
        "last": _exponent(log_k[is_late], lasts[is_late]),
        "path": {"k": np.exp(log_k).tolist(), "last": lasts.mean(axis=1).tolist()},
        "final": mean(lasts[is_late].mean(axis=0)),
    }


def measure_point(alpha: float, beta: float, *, steps: int, replicas: int) -> dict[str, Any]:
    """Does the squared gradient fall over the last decade? In nepers per neper of k."""
    log_k, _, lasts = trajectory(Case("asgld", alpha, beta), steps=steps, replicas=replicas)
    is_late = _last_decade(log_k)
    return {
        "alpha": alpha,
        "beta": beta,
        "last": _exponent(log_k[is_late], lasts[is_late]),
        "region": str(rate(alpha, beta).region),
        "final": mean(lasts[is_late].mean(axis=0)),
    }


def measure_plateau(dim: int, batch: int, *, steps: int, replicas: int) -> dict[str, Any]:
    """SGLD on the bowl: the mean of |grad f|^2 over the last half and over the quarter before."""
    late, middle = (torch.zeros(replicas, dtype=torch.float64) for _ in range(2))

    def look(view: View) -> None:
        squares = view.x.square().sum(-1)
        if view.step > steps // 2:
            late.add_(squares)
        elif view.step > steps // 4:
            middle.add_(squares)

    x0, feed = torch.ones(replicas, dim, dtype=torch.float64), noisy(VARIANCE / batch, seed=1)
    follow("sgld", LANDSCAPES["bowl"], x0, look, steps=steps, feed=feed, lr=LR, sigma=SIGMA)
    late, middle = late / (steps - steps // 2), middle / (steps // 2 - steps // 4)
    return {
        "dim": dim,
        "batch": batch,
        "late": mean(late.tolist()),
        "ratio": mean((late / middle).tolist()),
        "I2": SMOOTHNESS * LR * VARIANCE / batch,
        "I3": 2.0 * SMOOTHNESS * SIGMA**2,
    }


def case_tasks(cases: Sequence[Case], steps: int, replicas: int) -> list[Task]:
    return [task(measure_case, **vars(case), steps=steps, replicas=replicas) for case in cases]


@experiment("plateau", "The floor of SGLD")
def plateau_tasks(size: Size) -> list[Task]:
    """How high is the floor at which a constant temperature ends?"""
    return [
        task(measure_plateau, dim=dim, batch=batch, steps=size.grid, replicas=size.chains)
        for dim, batch in ((1, 1), (2, 1), (10, 1), (100, 1), (10, 10))
    ]


@experiment("exponents", "Convergence exponents")
def exponent_tasks(size: Size) -> list[Task]:
    """How fast does the squared gradient fall, for every case of the theorems?"""
    return case_tasks((*CASES, *MORE_CASES), size.steps, size.chains)


@experiment("delta", "A tiny delta")
def delta_tasks(size: Size) -> list[Task]:
    """What if delta is too small to feed the accumulator?"""
    run = partial(task, measure_delta, steps=size.steps, replicas=size.chains)
    return [
        run(alpha=alpha, beta=beta, delta=delta)
        for alpha, beta in ((0.0, 1.0), (0.0, 2.0), (1.0, 1.0), (1.0, 2.0))
        for delta in (TINY_DELTA, DELTA)
    ]


@experiment("slopes", "Slow growth of batches")
def slope_tasks(size: Size) -> list[Task]:
    """Is any linear growth of the batches as good as another?"""
    run = partial(task, measure_slope, steps=size.steps, replicas=size.chains)
    return [run(growth=rise) for rise in SLOPES]


@experiment("region", "Where it converges")
def region_tasks(size: Size) -> list[Task]:
    """For which exponents does the squared gradient keep falling?"""
    # A grid over (alpha, beta); at full size twice as fine.
    parts = 4 if size.name == "full" else 2
    return [
        task(measure_point, alpha=i / parts, beta=j / parts, steps=size.grid, replicas=size.chains)
        for i in range(2 * parts + 1)
        for j in range(2 * parts + parts // 2 + 1)
    ]


# ------------------------------------------------------------------------------------ claims


def _falls(cases: Sequence[Case], o: Outcomes) -> Checks:
    """Each case falls at least as fast as published."""
    for case in cases:
        value = o["exponents"].one(**vars(case))
        published = value["published"]
        bound = published - min(SLACK, published / 2)
        says = f"{value['label']}: exponent of E|grad f|^2 over the last decade"
        yield at_least(says, value["last"], bound, tight=published)


def _falls_slowly(case: Case, o: Outcomes) -> Checks:
    """alpha = 2: the weighted average falls at least like 1/log k.

    On the flat function the clock, log k, is too short at any k to leave the start.
    """
    value = o["exponents"].one(**vars(case))
    says = f"{value['label']}: exponent of log k in the weighted average"
    yield at_least(says, value["per_log"], 0.8, tight=1.0)


def _rate_claim(
    name: str, item: str, says: str, *cases: Case, slow: Case | None = None, note: str = ""
) -> Claim:
    """That these cases fall as fast as published; or a `slow` method like 1/log k."""
    where = "batch theorem" if item == "Batch theorem" else item.partition(" case")[0]
    checks = partial(_falls_slowly, slow) if slow else partial(_falls, cases)
    return Claim(name, says, where, ("exponents",), checks, note, item)


def _has_no_log(o: Outcomes, label: str, term: str = "I3") -> Check:
    """The term is of order k^-1/2: a bound of k^-1/2 log k grows by a quarter more."""
    grown = o["terms"].one(label=label, dim=10)["growth"][term]
    exponents = label.partition(" ")[2]
    says = f"{exponents}: growth of {term} k^(1/2) over the last decade"
    return at_most(says, grown, 1.1, core=False)


r1 = _rate_claim(
    "R1", "Theorem 2 case 1", "alpha = 2, beta > 1: 1/log k.", slow=Case("asgld", 2, 1.5)
)
r2 = _rate_claim(
    "R2",
    "Theorem 2 case 2",
    "1 < alpha < 2, beta >= 1: k^-(beta - alpha/2), up to logs.",
    *(Case("asgld", a, b) for a, b in ((1.5, 1.5), (1.5, 2), (1.75, 2))),
    *(Case("asgld", a, b, function="flat") for a, b in ((1.5, 2), (1.5, 3), (1.75, 2))),
    note="k^-(1 - alpha/2), times log k at beta = 1: the slowest of the three terms decides.",
)
r3 = _rate_claim(
    "R3",
    "Theorem 2 case 2",
    "1 < alpha < 2, beta < 1: k^-(1 - alpha/2).",
    Case("asgld", 1.25, 0.75),
    note="k^-(beta - alpha/2).",
)
r4 = _rate_claim(
    "R4",
    "Theorem 2 case 3",
    "alpha = 1, beta > 1: k^-1/2 up to logs.",
    *(Case("asgld", 1, 2, function=function) for function in ("waves", "flat")),
)


@claim("R5", "Theorem 2", "exponents", "terms", item="Theorem 2 case 3")
def r5(o: Outcomes) -> Checks:
    """alpha = 1, 1/2 < beta <= 1: k^-(beta - 1/2).

    At beta = 1 the bound carries a log k.
    """
    cases = (Case("asgld", 1, 0.75), Case("asgld", 1, 1), Case("asgld", 1, 1, function="flat"))
    yield from _falls(cases, o)
    yield _has_no_log(o, "ASGLD (1, 1)")


r6 = _rate_claim(
    "R6",
    "Theorem 2 case 4",
    "0 < alpha < 1, beta > alpha: k^-(alpha/2).",
    *(Case("asgld", 0.5, 1, function=function) for function in ("waves", "flat")),
)
r7 = _rate_claim(
    "R7",
    "Theorem 2 case 4",
    "0 < alpha < 1, alpha/2 < beta <= alpha: k^-(beta - alpha/2).",
    *(Case("asgld", 0.5, beta) for beta in (0.5, 0.35)),
)


@claim("R8", "Theorem 2, Figure 1", "region", item="Theorem 2")
def r8(o: Outcomes) -> Checks:
    """alpha in (0, 2] and beta > alpha/2 suffice for ASGLD to converge."""
    inside = [v for v in o["region"].values if 0 < v["alpha"] <= 2 and v["beta"] > v["alpha"] / 2]
    slowest = min(inside, key=lambda v: v["last"]["low"])
    at = f"({slowest['alpha']:g}, {slowest['beta']:g})"
    says = f"slowest of {len(inside)} points of the region, {at}: exponent of E|grad f|^2"
    yield at_least(says, slowest["last"], 0.0)


@claim("R11", "Theorem 2, remark ii", "terms", item="Theorem 2 remark ii")
def r11(o: Outcomes) -> Checks:
    """A larger alpha makes I2 fall faster and I1 slower.

    I1 does. I2 falls fastest at alpha = 1: beyond, its sum is finite, and it falls like I1.
    """
    for name, sign, words in (("I1", -1.0, "slower"), ("I2", 1.0, "faster")):
        exponents = {
            alpha: o["terms"].one(label=f"ASGLD ({alpha:g}, 2)", dim=10)["exponents"][name]
            for alpha in (0.5, 1.0, 1.5)
        }
        for small, large in ((0.5, 1.0), (1.0, 1.5)):
            gain = scaled(difference(exponents[large], exponents[small]), sign)
            says = f"{name} falls {words}: gain in the exponent from alpha = {small:g} to {large:g}"
            yield at_least(says, gain, 0.0, core=large == 1.0)


@claim("R9", "Theorem 2, remark i", "plateau", item="Theorem 2 remark i")
def r9(o: Outcomes) -> Checks:
    """SGLD stays in a neighborhood given by I2 = M lr C / B and I3 = 2 M sigma^2.

    The floor is there; both formulas lack a factor d.
    """
    for value in o["plateau"].values:
        where = f"d = {value['dim']}, B = {value['batch']}"
        says = f"{where}: mean |grad f|^2 of the last half over that before"
        yield between(says, value["ratio"], 0.9, 1.1)
        floor = value["I2"] + value["I3"]
        for words, formula in (("I2 + I3", floor), ("d (I2 + I3)", value["dim"] * floor)):
            ratio = scaled(value["late"], 1 / formula)
            yield at_most(f"{where}: floor over {words}", ratio, 1.0, core=False)


@claim("R10", "section 4.1", "terms")
def r10(o: Outcomes) -> Checks:
    """At alpha = beta = 1 all three terms are of order k^-1/2, up to logs."""
    value = o["terms"].one(label="ASGLD (1, 1)", dim=10)
    for name in TERMS:
        # The slope of k^-1/2 log k is 1/2 - 1/log k: 0.37 at the start of the last decade.
        says = f"exponent of {name} over the last decade"
        yield between(says, value["exponents"][name], 0.35, 0.65)


@claim("R12", "introduction", "exponents", "minima")
def r12(o: Outcomes) -> Checks:
    """ASGLD converges fastest at alpha = beta = 1, within eps^-4 steps, up to logs."""

    def slower(alpha: float, beta: float) -> Estimate:
        """The exponent on the function on which the squared gradient falls more slowly."""
        found = o["exponents"].select(method="asgld", alpha=alpha, beta=beta, theta=0.0)
        last: Estimate = min((v["last"] for v in found), key=lambda e: float(e["value"]))
        return last

    balanced = slower(1, 1)
    for alpha, beta in ((0.5, 1), (1, 2), (1.5, 2), (1.75, 2)):
        gain = difference(slower(alpha, beta), balanced)
        yield at_most(f"({alpha:g}, {beta:g}): gain in the exponent over (1, 1)", gain, SLACK)
    power = eps_power(o, "ASGLD (1, 1)")
    yield at_most("(1, 1): exponent of 1/eps in the steps to a minimum", power, 4.0 * LOGS)


b1 = _rate_claim(
    "B1",
    "Batch theorem",
    "alpha = 0 and batches of k^theta: k^-min(1, theta, beta), up to logs.",
    *(Case("asgld", 0, 1, theta) for theta in (0.25, 0.5, 1)),
    *(Case("asgld", 0, b, theta) for b, theta in ((0.5, 0.25), (0.5, 1), (2, 0.5), (2, 1.5))),
)


@claim("B3", "Theorem 4, text", "slopes", item="Batch theorem")
def b3(o: Outcomes) -> Checks:
    """With batches that grow linearly the best rate is reached, however small the slope is.

    The rate, not the error: the rate begins when slope k exceeds 1, and noisy gradients leave
    1/slope times as much.
    """
    for rise in SLOPES:
        value = o["slopes"].one(growth=rise)
        if rise * value["steps"] >= 100.0:  # else the last decade begins at batches of one
            says = f"batches of 1 + {rise:g} k: exponent of E|grad f|^2 over the last decade"
            yield at_least(says, value["last"], 1.0 - 2.0 * SLACK, tight=1.0)


@claim("B2", "batch theorem", "minima", item="Batch theorem")
def b2(o: Outcomes) -> Checks:
    """Batches of k: eps^-4 at (1, 1) and eps^-2 at (0, 1), up to logs.

    These are iterations. In samples (0, 1) costs eps^-4, no less than a constant batch.
    """
    for label, power in (("ASGLD (1, 1), B = k", 4.0), ("ASGLD (0, 1), B = k", 2.0)):
        yield at_most(f"{label}: exponent of 1/eps in the steps", eps_power(o, label), power * LOGS)
    in_samples = eps_power(o, label, samples=True)
    yield at_most(f"{label}: exponent of 1/eps in the samples", in_samples, 2.0 * LOGS, core=False)


p1 = _rate_claim(
    "P1", "Proposition 6", "AGLD, alpha = 2, beta > 1: 1/log k.", slow=Case("agld", 2, 1.5)
)


@claim("P2", "Proposition 6", "exponents", "terms", item="Proposition 6")
def p2(o: Outcomes) -> Checks:
    """AGLD, 0 < alpha < 2: k^-(1 - alpha/2) for beta >= 1, k^-(beta - alpha/2) below.

    At beta = 1 the bound carries a log k.
    """
    cases = [Case("agld", 1, beta) for beta in (0.75, 1, 2)]
    yield from _falls([*cases, *(Case("agld", 1, b, function="flat") for b in (1, 2))], o)
    yield _has_no_log(o, "AGLD (1, 1)")


@claim("P3", "Proposition 6", "exponents", "minima", "delta", item="Proposition 6")
def p3(o: Outcomes) -> Checks:
    """AGLD, alpha = 0: k^-min(1, beta), so eps^-2 at (0, 1), up to logs.

    Not while delta is too small to feed D: then k^-1/2 at (0, 1), eps^-4.
    """
    cases = [Case("agld", 0, beta) for beta in (0.5, 1, 2)]
    yield from _falls([*cases, Case("agld", 0, 2, function="flat")], o)
    power = eps_power(o, "AGLD (0, 1)")
    yield at_most("(0, 1): exponent of 1/eps in the steps to a minimum", power, 2.0 * LOGS)
    tiny = o["delta"].one(alpha=0.0, beta=1.0, delta=TINY_DELTA)["last"]
    yield at_least("(0, 1) with delta = 1e-8: exponent of E|grad f|^2", tiny, 0.9, core=False)


@claim("P4", "Proposition 6 and its proof", "exponents", "minima", "terms", item="Proposition 6")
def p4(o: Outcomes) -> Checks:
    """ASG: k^-(min(1, alpha) - alpha/2) for alpha < 2, 1/log k at alpha = 2; eps^-4 at alpha = 1,
    up to logs.

    At alpha = 1 the bound carries a log k, which the proof leaves out.
    """
    yield from _falls([Case("asg", alpha, math.inf) for alpha in (0.5, 1, 1.5)], o)
    yield from _falls_slowly(Case("asg", 2, math.inf), o)
    power = eps_power(o, "ASG (1)")
    yield at_most("exponent of 1/eps in the steps to a minimum", power, 4.0 * LOGS)
    yield _has_no_log(o, "ASG (1)", "I2")


# ------------------------------------------------------------------------------------ pictures


@draw.picture("plateau")
def floor_of_sgld(o: Outcomes) -> Any:
    """The floor of SGLD against dimension

    The published floor is the dashed line, which knows no d.

    Measured floor of SGLD against dimension with the published and the corrected formula.
    """
    figure, panel = draw.one_panel(2.8)
    values = o["plateau"].select(batch=1)
    dims = np.array([v["dim"] for v in values])
    draw.plot(panel, 0, dims, [v["late"]["value"] for v in values], "measured floor", "none")
    floor = values[0]["I2"] + values[0]["I3"]
    panel.plot(dims, np.full(len(dims), floor), color=draw.INK, linestyle="--", label="I2 + I3")
    panel.plot(dims, dims * floor, color=COLORS[2], label="d (I2 + I3)")
    draw.log_log(panel, xlabel="d", ylabel=r"$E|\nabla f|^2$ of the last half")
    draw.legend(figure, panel)
    return figure


@draw.picture("exponents")
def exponents_by_case(o: Outcomes) -> Any:
    """Exponents, case by case

    A bound is violated where a measured point lies to the left of a published cross. Bars are 95 %
    intervals.

    A dot plot with one row per case: measured exponents with intervals beside published and
    corrected ones.
    """
    values = o["exponents"].values
    figure = draw_exponents([exponent_row(value) for value in values])
    figure.set_size_inches(7.4, 0.2 * len(values) + 1.3)
    return figure


def exponent_row(value: Mapping[str, Any], decades: int = 1) -> Row:
    """A value of `measure_case` as a flat record, with the fits over one decade or over two."""
    fits = value if decades == 1 else value["two_decades"]
    row = {name: value[name] for name in ("method", "alpha", "beta", "theta", "function")}
    for name in ("average", "last"):
        fit = fits[name]
        row |= {name: fit["value"], f"{name}_low": fit["low"], f"{name}_high": fit["high"]}
    return {**row, "published": value["published"], "corrected": value["corrected"]}


def draw_exponents(rows: Sequence[Row]) -> Any:
    """Measured exponents with intervals beside the published and the corrected ones."""
    figure = plots.new_figure(9.5, 0.26 * len(rows) + 1.6)
    panel, height = figure.subplots(), np.arange(len(rows))[::-1]

    def column(name: str) -> Any:
        return np.array([float(row[name]) for row in rows])

    for name, words, color, shift in (
        ("average", "weighted average", COLORS[0], 0.12),
        ("last", "last iterate", COLORS[2], -0.12),
    ):
        center = column(name)
        spread = np.abs([center - column(f"{name}_low"), column(f"{name}_high") - center])
        bars: dict[str, Any] = {"xerr": spread, "fmt": "o", "markersize": 4, "color": color}
        panel.errorbar(center, height + shift, label=f"measured, {words}", **bars)
    crosses: dict[str, Any] = {"marker": "x", "s": 36, "color": COLORS[1], "zorder": 3}
    panel.scatter(column("corrected"), height, marker="|", s=160, color="black", label="corrected")
    panel.scatter(column("published"), height, label="published", **crosses)
    panel.set_yticks(height, [_case_words(row) for row in rows], fontsize=8)
    panel.set_xlabel("exponent $e$ of $k^{-e}$")
    panel.grid(alpha=0.25, linewidth=0.5)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    return figure


def _case_words(row: Row) -> str:
    pair = f"{row['alpha']:g}" + ("" if math.isinf(row["beta"]) else f", {row['beta']:g}")
    batch = f", batch $k^{{{row['theta']:g}}}$" if row["theta"] else ""
    return f"{row['method']} ({pair}){batch}, {row['function']}"


@draw.picture("delta")
def paths_by_delta(o: Outcomes) -> Any:
    """Full gradients with a tiny and with a real delta

    Same exponents, same noise; only delta differs, and with it the slope.

    Two panels of the squared gradient against k for four pairs of exponents.
    """
    figure, axes = draw.panels(1, 2, 2.9, sharey=True)
    deltas = sorted({v["delta"] for v in o["delta"].values})
    for panel, delta in zip(axes.flat, deltas, strict=True):
        for i, v in enumerate(o["delta"].select(delta=delta)):
            name = f"({v['alpha']:g}, {v['beta']:g}): exponent {v['last']['value']:.2f}"
            draw.curve(panel, i, v["path"]["k"], v["path"]["last"], name)
        draw.log_log(panel, xlabel="k", title=rf"$\delta$ = {delta:g}")
        panel.legend(loc="lower left")
    axes[0, 0].set_ylabel(r"$E|\nabla f(x_k)|^2$")
    return figure


@draw.picture("slopes")
def paths_by_slope(o: Outcomes) -> Any:
    """Batches of 1 + slope k

    All lines have the same slope at the end; the later a line turns, the longer the way.

    The squared gradient of ASGLD (0, 1) against k for four slopes of the batch growth.
    """
    figure, panel = draw.one_panel(2.8)
    for i, v in enumerate(o["slopes"].values):
        name = f"slope {v['growth']:g}: exponent {v['last']['value']:.2f}"
        draw.curve(panel, i, v["path"]["k"], v["path"]["last"], name)
    draw.log_log(panel, xlabel="k", ylabel=r"$E|\nabla f(x_k)|^2$")
    draw.legend(figure, panel, 2)
    return figure


@draw.picture("region")
def region_map(o: Outcomes) -> Any:
    """Where the gradient keeps falling

    Numbers are exponents over the last decade; green falls, gray stays, orange grows. The line is
    the border that Theorem 2 draws.

    A map over alpha and beta with a measured exponent in each cell and the line beta = alpha/2.
    """
    from matplotlib.patches import Rectangle

    figure, panel = draw.one_panel(4.2)
    values = o["region"].values
    alphas = sorted({v["alpha"] for v in values})
    half = (alphas[1] - alphas[0]) / 2 if len(alphas) > 1 else 0.25
    text = {"ha": "center", "va": "center", "fontsize": 8 if half > 0.2 else 6}
    for v in values:
        falls, grows = v["last"]["low"] > 0.03, v["last"]["high"] < -0.03
        color = COLORS[2] if falls else COLORS[1] if grows else draw.GRAY
        corner, side = (v["alpha"] - half, v["beta"] - half), 2 * half
        panel.add_patch(Rectangle(corner, side, side, facecolor=color, alpha=0.3, linewidth=0))
        panel.text(v["alpha"], v["beta"], f"{v['last']['value']:.2f}", **text)
    top = max(v["beta"] for v in values) + half
    # thin and pale, since it crosses numbers
    panel.plot(
        [0, 2], [0, 1], color=draw.INK, linewidth=1.0, alpha=0.6, label=r"$\beta = \alpha/2$"
    )
    panel.set(xlim=(-half, 2 + half), ylim=(-half, top), xlabel=r"$\alpha$", ylabel=r"$\beta$")
    panel.grid(False)
    draw.legend(figure, panel)
    return figure


@draw.picture("region-theory", "region", paper=True)
def region_by_theory(_: Outcomes) -> Any:
    """The same map by theory, published and corrected

    Red marks exponents that no choice can have.

    Two maps of the exponent of the bound over alpha and beta, as published and corrected.
    """
    return plots.region_map(resolution=120)


@table("plateau")
def plateau_rows(o: Outcomes) -> list[Row]:
    """Mean squared gradient of SGLD."""
    return [
        {
            "d": v["dim"],
            "B": v["batch"],
            "floor": v["late"]["value"],
            "I2 + I3": v["I2"] + v["I3"],
            "d (I2 + I3)": v["dim"] * (v["I2"] + v["I3"]),
        }
        for v in o["plateau"].values
    ]


@table("exponents")
def exponent_rows(o: Outcomes) -> list[Row]:
    """Exponents over the last decade, with 95 % intervals of the last iterate."""
    return [
        {
            "case": v["label"],
            **named("last", v["last"]),
            "weighted average": v["average"]["value"],
            "published": v["published"],
            "corrected": v["corrected"],
        }
        for v in o["exponents"].values
    ]


@table("delta")
def delta_rows(o: Outcomes) -> list[Row]:
    """Exponents with a tiny and with a real delta."""
    return [
        {
            **{name: v[name] for name in ("alpha", "beta", "delta")},
            **named("exponent", v["last"]),
            "if delta feeds D": v["with_delta"],
            "if it does not": v["without_delta"],
        }
        for v in o["delta"].values
    ]
