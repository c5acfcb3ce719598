"""Saddles: who leaves, and when, under exact gradients, so that nothing but injected noise helps.

A run has left at step k if f is below the level from step k on, for at least `SETTLE` steps; the
level is a tenth of the way from the saddle's value down to the minimum (for the network on digits,
whose minimum is unknown, to 0). What passes the level and comes back has not left.

Equal noise energy: the first noise step of every rule that has noise has the same standard
deviation, `KICK`, in every coordinate and at every lr. Later steps follow from the rule: SGLD goes
on kicking as hard, D quiets ASGLD and AGLD, NetworkASGLD anneals, PSGLD gets louder where gradients
are small. So the energy spent until a run has left is recorded as well: the sum of the variances of
its noise steps, averaged over the coordinates, in units of KICK^2. For SGLD that is the number of
steps.

"NetworkASGLD" has a D per coordinate. "NetworkASGLD, matrices" steps along polar factors: of every
unknown matrix, and of a vector as a matrix of one column. Of the network on digits only those
parameters are matrices that `asgld.network_groups` takes for hidden ones.

Rules of a kind share their learning rates, a factor of 2^(1/4) apart, from too small to too large.
A rule that moves by lr times the gradient gets multiples of 1 / M, with M the largest curvature
that `asgld.calibrate` met, divided by what d_init makes of them; a rule that moves by lr whatever
the size of the gradient gets lengths. The best lr of a rule is the one with the smallest median
among those at which all replicas leave.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from measure import run_tasks
from torch import Tensor, nn

import asgld
from asgld.diagnostics import Calibration, calibrate
from asgld.optim.functional import coefficients
from asgld.optim.rule import rule_of
from asgld.problems import Problem, problem

# What names a row.
KEYS = ("problem", "start", "optimizer", "step_size")
# Standard deviation of the first noise step, in every coordinate, for all that have noise.
KICK = 1e-3
# So many steps below the level make a run one that has left.
SETTLE = 50

Build = Callable[[Tensor, float], torch.optim.Optimizer]


class Unknown(NamedTuple):
    """A part of x that is a parameter of its own for "NetworkASGLD, matrices"."""

    size: tuple[int, ...]
    shape: str = "polar-row"  # of D


class Work(NamedTuple):
    """A problem, whose first known saddle is meant, and how long to try."""

    function: Problem
    replicas: int
    limit: int  # steps within which to leave
    unknowns: list[Unknown]  # that x consists of, in order


def unknowns_of(model: nn.Module) -> list[Unknown]:
    """The parameters of a network, split as `asgld.NetworkASGLD(model)` splits them."""
    shapes = {p: group["shape"] for group in asgld.network_groups(model) for p in group["params"]}
    return [Unknown(tuple(p.shape), shapes[p]) for p in model.parameters()]


NETWORK = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
WORKS = {
    "factorization": Work(problem("factorization"), 40, 200, [Unknown((8, 2))]),
    "sensing": Work(problem("sensing"), 40, 200, [Unknown((8, 2))]),
    "phase-retrieval": Work(problem("phase-retrieval"), 40, 200, [Unknown((8, 1))]),
    "deep-linear": Work(problem("deep-linear"), 40, 200, [Unknown((3, 5)), Unknown((4, 3))]),
    "digits": Work(problem("digits", num_samples=300), 30, 150, unknowns_of(NETWORK)),
}


class Departure(NamedTuple):
    """What became of the replicas at one lr, each (replicas,)."""

    lr: float
    size: float  # of the first step: lr where d_init is 1
    steps: Tensor  # until it had left, infinite for those that did not
    energy: Tensor  # of the noise until then
    value: Tensor  # of f at the end


def contenders(title: str) -> dict[str, tuple[Build, list[float]]]:
    """Optimizers with equal noise energy, and the sizes of step to try with each."""
    advice, unknowns = prepare(title).advice, WORKS[title].unknowns
    d_init, delta = advice.d_init, advice.delta
    multiples = [2 ** (i / 4) / advice.scales.curvature for i in range(-2, 15)]
    lengths = [0.016 * 2 ** (i / 4) for i in range(17)]

    def sigma(step: float) -> float:
        return KICK / math.sqrt(2 * step)

    def calibrated(x: Tensor, step: float) -> asgld.ASGLD:
        lr = step * math.sqrt(d_init)
        return asgld.ASGLD([x], lr, sigma=sigma(lr) * math.sqrt(d_init), d_init=d_init, delta=delta)

    def matrices(x: Tensor, step: float, noise: float) -> asgld.NetworkASGLD:
        return asgld.NetworkASGLD(groups_of(x, unknowns), step, noise)

    return {
        "SGD": (lambda x, s: torch.optim.SGD([x], s), multiples),
        "SGD, momentum": (lambda x, s: torch.optim.SGD([x], s, momentum=0.9), multiples),
        "AdamW": (lambda x, s: torch.optim.AdamW([x], s, weight_decay=0.0), lengths),
        "Adagrad": (lambda x, s: torch.optim.Adagrad([x], s), lengths),
        "ASG": (lambda x, s: asgld.ASG([x], s), multiples),
        "NetworkASGLD, no noise": (lambda x, s: asgld.NetworkASGLD([x], s, noise=0.0), lengths),
        "NetworkASGLD, matrices, no noise": (lambda x, s: matrices(x, s, 0.0), lengths),
        "SGLD": (lambda x, s: asgld.SGLD([x], s, sigma=sigma(s)), multiples),
        "PSGLD": (lambda x, s: asgld.PSGLD([x], s, sigma=sigma(s), d_init=1.0), multiples),
        "AGLD": (lambda x, s: asgld.AGLD([x], s, sigma=sigma(s)), multiples),
        "ASGLD": (lambda x, s: asgld.ASGLD([x], s, sigma=sigma(s)), multiples),
        "ASGLD, calibrated": (calibrated, multiples),
        "NetworkASGLD": (lambda x, s: asgld.NetworkASGLD([x], s, noise=KICK / s), lengths),
        "NetworkASGLD, matrices": (lambda x, s: matrices(x, s, KICK / s), lengths),
    }


def groups_of(x: Tensor, unknowns: list[Unknown]) -> list[dict[str, Any]]:
    """Parameter groups of views of x, (replicas, d): a batch of matrices for each unknown one, so
    that each replica has polar factors of its own."""
    replicas = len(x)
    parts = torch.split(x, [math.prod(unknown.size) for unknown in unknowns], dim=-1)
    groups: dict[str, dict[str, Any]] = {}
    for part, (size, shape) in zip(parts, unknowns, strict=True):
        group = groups.setdefault(shape, {"params": [], "shape": shape})
        # A batch of one would count as one matrix of one row.
        group["params"].append(part.view(replicas, *size) if replicas > 1 else part[0].view(size))
        if shape != "coordinate":
            group["blocks"] = replicas
    return list(groups.values())


def measure_saddles(quick: bool, only: list[str]) -> list[dict[str, Any]]:
    """Rows of all problems, starts, optimizers and learning rates, on all cores; or only those of
    the problems and optimizers that are named."""
    default = ["factorization"] if quick else list(WORKS)
    titles = [title for title in WORKS if title in only] or default
    names = [name for name in only if name not in WORKS]
    tasks = [
        (title, start, name, quick)
        for title in titles
        for start in starts(title)
        for name in contenders(title)
        if not names or name in names
    ]
    return run_tasks(measure_contender, tasks, in_place=quick)


def measure_contender(title: str, start: str, name: str, quick: bool) -> list[dict[str, Any]]:
    """Rows of one optimizer, one for each lr."""
    function, replicas, limit, _ = WORKS[title]
    level = prepare(title).level
    build, sizes = contenders(title)[name]
    if quick:
        replicas, limit, sizes = 6, 60, sizes[::4]
    departures = leave(function, build, sizes, starts(title)[start][:replicas], level, limit)
    best = best_departure(departures)
    print(f"{title}, {start}, {name}: lr {best.lr:.3g}", flush=True)
    setting = {"problem": title, "dim": function.dim, "start": start, "optimizer": name}
    return [{**setting, "is_best": d is best, **summarize(d)} for d in departures]


class Prepared(NamedTuple):
    """What is known of a problem before anything runs."""

    saddle: Tensor
    level: float  # of f, below which a run has left
    advice: Calibration


@cache
def prepare(title: str) -> Prepared:
    facts = WORKS[title].function.facts
    saddle = facts.saddles[0]
    level = saddle.value - 0.1 * (saddle.value - (facts.minimum or 0.0))
    advice = calibrate(WORKS[title].function, saddle.point, alpha=1.0, beta=1.0)
    return Prepared(saddle.point, level, advice)


def starts(title: str) -> dict[str, Tensor]:
    """Where the replicas begin, (replicas, d): all at the saddle, and all beside it."""
    saddle, replicas = prepare(title).saddle, WORKS[title].replicas
    spread = KICK * torch.randn(
        (replicas, len(saddle)), generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    exact = {"exact saddle": saddle.expand(replicas, -1)}
    if title == "digits":
        return exact | {"tiny initialization": spread}
    return exact | {"1e-3 from it": saddle + spread}


def leave(
    function: Any, build: Build, sizes: list[float], x0: Tensor, level: float, limit: int
) -> list[Departure]:
    """Run all sizes of step at once, each until all of its replicas have left or broken down."""
    replicas = len(x0)
    x = x0.expand(len(sizes), -1, -1).clone()
    optimizers = [build(point, size) for point, size in zip(x, sizes, strict=True)]
    if bool((x0 == x0[0]).all()) and not any(has_noise(optimizer) for optimizer in optimizers):
        # Replicas without noise that start at one point are one run.
        x = x[:, :1].clone()
        optimizers = [build(point, size) for point, size in zip(x, sizes, strict=True)]

    since = torch.full(x.shape[:2], math.inf, dtype=torch.float64)  # below the level
    spent, energy, value = (torch.zeros_like(since) for _ in range(3))
    active = list(range(len(sizes)))
    for step in range(limit + SETTLE + 1):
        value[active] = function.value(x[active])
        passes = (value < level) & since.isinf()
        since[passes], energy[passes] = step, spent[passes]
        since[~(value < level)] = math.inf
        is_over = (step - since >= SETTLE) | ~value.isfinite()
        active = [i for i in active if not bool(is_over[i].all())]
        if not active:
            break
        for i, gradient in zip(active, function.grad(x[active]), strict=True):
            spent[i] += noise_energy(optimizers[i])
            give_gradient(optimizers[i], x[i], gradient)
            optimizers[i].step()
    steps = torch.where(since <= limit, since, math.inf)
    rates = [float(optimizer.param_groups[0]["lr"]) for optimizer in optimizers]
    return [
        Departure(lr, size, *(part.expand(replicas) for part in parts))
        for lr, size, *parts in zip(rates, sizes, steps, energy, value, strict=True)
    ]


def give_gradient(optimizer: torch.optim.Optimizer, x: Tensor, gradient: Tensor) -> None:
    """Set the gradients of parameters that are x or views of it."""
    gradient = gradient.contiguous()
    begin = gradient.storage_offset() - x.storage_offset()
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = gradient.as_strided(p.shape, p.stride(), begin + p.storage_offset())


def has_noise(optimizer: torch.optim.Optimizer) -> bool:
    return any("sigma" in group and rule_of(group).has_noise for group in optimizer.param_groups)


def noise_energy(optimizer: torch.optim.Optimizer) -> Tensor | float:
    """Variance of the coming noise step, averaged over coordinates, in units of KICK^2; one number
    per replica, or one for all."""
    if not has_noise(optimizer):
        return 0.0
    total: Tensor | float = 0.0
    count = 0
    for group in optimizer.param_groups:
        rule = rule_of(group)
        for p in group["params"]:
            state = optimizer.state[p]
            c = coefficients(rule, int(state["step"]), torch.float64)
            share: Tensor | float = 1.0
            if rule.beta != 0.0:
                share = (state["sum"] * c.correction + c.shift).pow(-rule.beta).mean(-1)
            total = total + p.numel() * c.noise**2 / KICK**2 * share
            count += p.numel()
    return total / count


def best_departure(departures: list[Departure]) -> Departure:
    """Most replicas gone, and among those the smallest median."""
    return min(
        departures,
        key=lambda d: (-int(d.steps.isfinite().sum()), statistics.median(d.steps.tolist())),
    )


def summarize(departure: Departure) -> dict[str, Any]:
    has_left = departure.steps.isfinite()
    left, steps = int(has_left.sum()), departure.steps.tolist()
    share_low, share_high = wilson(left, len(steps))
    steps_low, steps_high = median_interval(steps)
    spent = departure.energy[has_left].tolist()
    return {
        "lr": departure.lr,
        "step_size": departure.size,
        "replicas": len(steps),
        "left": left,
        "share_low": round(share_low, 3),
        "share_high": round(share_high, 3),
        "steps_median": statistics.median(steps),
        "steps_low": steps_low,
        "steps_high": steps_high,
        "energy_median": round(statistics.median(spent), 4) if spent else math.nan,
        "final_median": statistics.median(departure.value.tolist()),
    }


def median_interval(values: list[float]) -> tuple[float, float]:
    """Order statistics between which the median lies with probability 0.95 or more, whatever the
    distribution; with five values or fewer, the range. Infinite values may be among them."""
    ordered, count = sorted(values), len(values)
    cut, tail = 0, 2.0**-count
    while tail + math.comb(count, cut + 1) / 2.0**count <= 0.025:
        cut += 1
        tail += math.comb(count, cut) / 2.0**count
    return ordered[cut], ordered[count - 1 - cut]


def wilson(hits: int, count: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    z, share = statistics.NormalDist().inv_cdf(0.975), hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / count) ** 2 / 4)
    return max(0.0, middle - half), min(1.0, middle + half)
