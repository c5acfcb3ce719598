"""Theorem 4: from a saddle to a minimum, iterations and samples until E|grad f|^2 is below eps^2.

f(x) = 1/2 (-gamma y_1^2 + sum_{i>1} y_i^2) + 1/4 y_1^4 with gamma = 0.5 has its saddle at 0 and its
minima at |y_1| = gamma^(1/2), where all curvatures are 1. All chains start at the saddle. The
theorems bound E|grad f|^2, so time is read off the mean over chains: the first k at which nine in
ten chains are near a minimum and the mean of |grad f|^2 over chains is at most eps^2.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import torch

from asgld.problems import problem
from asgld_study.chains import View, due_steps, follow, noisy
from asgld_study.drawing import legend, log_log, panels, picture, plain, plot
from asgld_study.engine import Outcomes, Size, Task, experiment, task
from asgld_study.judge import LOG_D, LOGS, Checks, at_most, claim
from asgld_study.page import Row, table
from asgld_study.statistics import Estimate, crossing_slope

GAMMA, LR, DELTA, SIGMA, VARIANCE = 0.5, 0.5, 0.1, 0.3, 0.1
# Accuracies, and the one at which dimensions are compared: there noise alone is left to wait for,
# and the escape itself no longer counts.
FAST, SLOW = (0.25, 0.18, 0.125, 0.09, 0.0625), (0.5, 0.35, 0.25, 0.18, 0.125)
COMPARED: dict[tuple[float, ...], float] = {FAST: 0.18, SLOW: 0.35}
_ARRIVED, _BOOTSTRAPS, _PER_DECADE = 0.9, 200, 40

# label -> method, alpha, beta, theta
KINDS: dict[str, tuple[str, float, float, float]] = {
    "AGLD (0, 1)": ("agld", 0.0, 1.0, 0.0),
    "ASGLD (1, 1)": ("asgld", 1.0, 1.0, 0.0),
    "ASG (1)": ("asg", 1.0, math.inf, 0.0),
    "ASGLD (0, 1), B = k": ("asgld", 0.0, 1.0, 1.0),
    "ASGLD (1, 1), B = k": ("asgld", 1.0, 1.0, 1.0),
}


def accuracies(label: str) -> tuple[float, ...]:
    """ASG has little noise to wait for; with noise injected at alpha = 1 that takes eps^-4."""
    return SLOW if label.startswith("ASGLD (1, 1)") else FAST


def measure_minima(
    label: str, dim: int, noise: str, *, steps: int, replicas: int
) -> dict[str, Any]:
    """Crossing times of one method in one dimension for every eps.

    The noise is "fixed" per coordinate, or "total": as much in all as four coordinates have.
    """
    (method, alpha, beta, theta), eps = KINDS[label], accuracies(label)
    saddle = problem("strict-saddle", dim=dim, gamma=GAMMA)
    scale = 1.0 if noise == "fixed" else 4.0 / dim
    variance = 0.0 if method == "agld" else scale * VARIANCE
    options: dict[str, Any] = {"lr": LR, "alpha": alpha, "delta": DELTA}
    if method != "asg":
        options |= {"beta": beta, "sigma": SIGMA * math.sqrt(scale)}
    due = set(due_steps(steps, decades=math.log10(steps), per_decade=_PER_DECADE))
    seen, squares, arrived = [], [], []

    def look(view: View) -> bool:
        if view.step not in due:
            return False
        squares.append(saddle.grad(view.x).square().sum(-1).numpy())
        arrived.append((view.x[:, 0].square() >= GAMMA / 2).double().numpy())
        seen.append(view.step)
        return bool(squares[-1].mean() < 0.8 * min(eps) ** 2 and arrived[-1].mean() >= _ARRIVED)

    x0, feed = torch.zeros(replicas, dim, dtype=torch.float64), noisy(variance, theta=theta)
    follow(method, saddle, x0, look, steps=steps, feed=feed, **options)
    times = crossing_times(eps, np.array(seen), np.array(squares), np.array(arrived))
    return {
        "label": label,
        "dim": dim,
        "noise": noise,
        "theta": theta,
        "steps": {str(e): row[0] for e, row in zip(eps, times, strict=True)},
        "bootstraps": {str(e): row[1:] for e, row in zip(eps, times, strict=True)},
    }


def crossing_times(
    accuracies: tuple[float, ...], ks: Any, squares: Any, arrived: Any
) -> list[list[float]]:
    """For each eps the crossing time, then those of bootstrap samples of the chains."""
    chains = squares.shape[1]
    rng, even = np.random.default_rng(0), np.full(chains, 1.0 / chains)
    draws = rng.multinomial(chains, even, size=_BOOTSTRAPS)
    weights = np.vstack([np.ones(chains), draws]) / chains
    means, shares = _smoothed(weights @ squares.T), weights @ arrived.T
    rows = []
    for eps in accuracies:
        is_there = (means <= eps**2) & (shares >= _ARRIVED)
        first = np.where(is_there.any(axis=1), is_there.argmax(axis=1), -1)
        rows.append([math.inf if i < 0 else float(ks[i]) for i in first])
    return rows


def _smoothed(rows: Any) -> Any:
    """Means of logs over a fifth of a decade: a noisy line is first crossed too early."""
    half = _PER_DECADE // 10
    logs = np.pad(np.log(np.maximum(rows, 1e-300)), ((0, 0), (half, half)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(logs, 2 * half + 1, axis=1)
    return np.exp(windows.mean(axis=-1))


def samples_of(steps: float, theta: float) -> float:
    """Single-sample gradients of so many steps with batches (1 + k)^theta, by the integral."""
    return float(((steps + 1.0) ** (1.0 + theta) - 1.0) / (1.0 + theta))


@experiment("minima", "From a saddle to a minimum")
def minima_tasks(size: Size) -> list[Task]:
    """How many steps and samples to a second-order point, in d and in eps?"""
    # Dimensions at both scalings of the noise; limits as the slowest of the laws needs.
    dims = {"tiny": (4, 8), "reduced": (4, 8, 16, 32), "full": (4, 8, 16, 32, 64)}[size.name]
    steps = {label: max(size.minima // 4, 100) for label in KINDS}
    steps |= {label: size.minima for label, (_, alpha, _, _) in KINDS.items() if alpha > 0.0}
    run = partial(task, measure_minima, replicas=size.chains)
    return [
        run(label=label, dim=dim, noise=noise, steps=steps[label])
        for label, dim, noise in itertools.product(KINDS, dims, ("fixed", "total"))
    ]


@claim("E8", "Theorem 4", "minima", item="Theorem 4")
def e8(o: Outcomes) -> Checks:
    """To a minimum: log d / eps^4 (ASGLD, ASG), log d / eps^2 (AGLD, and ASGLD with B = k), up to
    logs.

    At fixed noise per coordinate the steps grow like d at alpha = 0 and like d^2 at alpha = 1; free
    of d if sigma^2 and C shrink like 1/d.
    """
    powers = {"AGLD (0, 1)": 2.0, "ASGLD (1, 1)": 4.0, "ASG (1)": 4.0, "ASGLD (0, 1), B = k": 2.0}
    for label, power in powers.items():
        yield at_most(f"{label}: exponent of 1/eps", eps_power(o, label), power * LOGS)
        for noise, words in (("fixed", "per coordinate"), ("total", "in total")):
            small, large, grown = dim_growth(o, label, noise)
            says = f"{label}, noise fixed {words}: T({large}) over T({small}), in units of log d"
            yield at_most(says, grown, LOG_D, core=noise == "fixed")


def eps_power(o: Outcomes, label: str, *, samples: bool = False) -> Estimate:
    """From the three smallest eps, where the escape itself no longer counts."""
    value = o["minima"].one(label=label, dim=4, noise="fixed")
    chosen, rows = accuracies(label)[-3:], []
    for eps in chosen:
        row = [value["steps"][str(eps)], *value["bootstraps"][str(eps)]]
        rows.append([samples_of(t, value["theta"]) for t in row] if samples else row)
    return crossing_slope([-math.log(eps) for eps in chosen], rows)


def dim_growth(o: Outcomes, label: str, noise: str) -> tuple[int, int, Estimate]:
    """From the middle dimension to the largest: both, and the ratio of times over log d."""
    found = sorted(o["minima"].select(label=label, noise=noise), key=lambda v: v["dim"])
    small, large = found[len(found) // 2 - 1], found[-1]
    key = str(COMPARED[accuracies(label)])
    rows = [[v["steps"][key], *v["bootstraps"][key]] for v in (small, large)]
    power = crossing_slope([math.log(v["dim"]) for v in (small, large)], rows)
    dims = large["dim"] / small["dim"]
    allowed = math.log(large["dim"]) / math.log(small["dim"])
    grown = {name: dims**x / allowed for name, x in power.items()}
    return small["dim"], large["dim"], grown


def own_numbers(o: Outcomes) -> list[Row]:
    """The numbers that decide the paper's own rows of Table 1, one row per method."""
    rows = []
    for label in dict.fromkeys(v["label"] for v in o["minima"].values):
        row: Row = {"method": label}
        numbers = {
            "steps": eps_power(o, label),
            "samples": eps_power(o, label, samples=True),
        }
        for noise in ("fixed", "total"):
            row["small"], row["large"], numbers[noise] = dim_growth(o, label, noise)
        for name, number in numbers.items():
            row |= {name: number["value"], f"{name}_low": number["low"],
                    f"{name}_high": number["high"]}  # fmt: skip
        rows.append(row)
    return rows


@picture("minima")
def steps_to_a_minimum(o: Outcomes) -> Any:
    """Steps to a minimum

    Slopes are exponents. With noise fixed per coordinate the steps grow with d; with the total
    fixed they need not.

    Three panels of steps against accuracy and against dimension, one line per method.
    """
    figure, axes = panels(1, 3, 3.2, sharey=True)
    for i, label in enumerate(dict.fromkeys(v["label"] for v in o["minima"].values)):
        eps = accuracies(label)
        steps = o["minima"].one(label=label, dim=4, noise="fixed")["steps"]
        plot(axes[0, 0], i, [1 / e for e in eps], [steps[str(e)] for e in eps], label)
        key = str(COMPARED[eps])
        for panel, noise in zip(axes[0, 1:], ("fixed", "total"), strict=True):
            mine = o["minima"].select(label=label, noise=noise)
            plot(panel, i, [v["dim"] for v in mine], [v["steps"][key] for v in mine])
    for panel, title, name, ticks in zip(
        axes.flat,
        ("d = 4", "noise fixed per coordinate", "noise fixed in total"),
        ("1 / eps", "d", "d"),
        ([2, 4, 8, 16], [4, 8, 16, 32, 64], [4, 8, 16, 32, 64]),
        strict=True,
    ):
        log_log(panel, title=title, xlabel=name)
        plain(panel.xaxis, ticks)
    axes[0, 0].set_ylabel("steps to a minimum")
    legend(figure, axes[0, 0], 3)
    return figure


@table("minima")
def minima_rows(o: Outcomes) -> list[Row]:
    """Steps to a minimum."""
    columns = sorted({*FAST, *SLOW}, reverse=True)
    return [
        {
            "method": v["label"],
            "d": v["dim"],
            "noise": v["noise"],
            **{f"eps = {eps:g}": v["steps"].get(str(eps), "") for eps in columns},
        }
        for v in o["minima"].values
    ]
