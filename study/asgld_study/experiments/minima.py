"""From a saddle to a minimum: iterations and samples until E|grad f|^2 is below eps^2.

f(x) = 1/2 (-gamma y_1^2 + sum_{i>1} y_i^2) + 1/4 y_1^4 with gamma = 0.5 has its saddle at 0 and its
minima at |y_1| = gamma^(1/2), where all curvatures are 1. All chains start at the saddle. The
theorems bound E|grad f|^2, so time is read off the mean over chains: the first k at which nine in
ten chains are near a minimum and the mean of |grad f|^2 over chains is at most eps^2.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from asgld.problems import problem
from asgld_study.experiments.chains import Chains, due_steps, noisy
from asgld_study.experiments.declare import Size, Task

GAMMA, LR, DELTA, SIGMA, VARIANCE = 0.5, 0.5, 0.1, 0.3, 0.1
# Accuracies, and the one at which dimensions are compared: where what is left is noise, and the
# escape itself no longer counts.
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


def measure(
    label: str, dim: int, noise: str, *, steps: int, replicas: int, seed: int = 0
) -> dict[str, Any]:
    """Crossing times of one method in one dimension for every eps.

    Args:
        noise: "fixed" per coordinate, or "total": as much in all as four coordinates have.
    """
    (method, alpha, beta, theta), eps = KINDS[label], accuracies(label)
    saddle = problem("strict-saddle", dim=dim, gamma=GAMMA)
    scale = 1.0 if noise == "fixed" else 4.0 / dim
    variance = 0.0 if method == "agld" else scale * VARIANCE
    injected = {} if method == "asg" else {"beta": beta, "sigma": SIGMA * math.sqrt(scale)}
    chains = Chains(
        method,
        noisy(saddle, variance, theta=theta, seed=seed),
        torch.zeros(replicas, dim, dtype=torch.float64),
        seed=seed,
        lr=LR,
        alpha=alpha,
        delta=DELTA,
        **injected,
    )
    ks = due_steps(steps, decades=math.log10(steps), per_decade=_PER_DECADE)
    due, seen, squares, arrived = set(ks), [], [], []
    for step in range(1, steps + 1):
        x = chains.advance()
        if step in due:
            squares.append(saddle.grad(x).square().sum(-1).numpy())
            arrived.append((x[:, 0].square() >= GAMMA / 2).double().numpy())
            seen.append(step)
            if squares[-1].mean() < 0.8 * min(eps) ** 2 and arrived[-1].mean() >= _ARRIVED:
                break
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
    draws = np.random.default_rng(0).multinomial(
        chains, np.full(chains, 1.0 / chains), size=_BOOTSTRAPS
    )
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


def tasks(size: Size) -> list[Task]:
    """Dimensions at both scalings of the noise; limits as the slowest of the laws needs."""
    dims = {"tiny": (4, 8), "reduced": (4, 8, 16, 32), "full": (4, 8, 16, 32, 64)}[size.name]
    found = []
    for label in KINDS:
        is_slow = KINDS[label][1] > 0.0
        for dim in dims:
            for noise in ("fixed", "total"):
                steps = size.minima if is_slow else max(size.minima // 4, 100)
                found.append(Task(measure, {"label": label, "dim": dim, "noise": noise,
                                            "steps": steps, "replicas": size.chains}))  # fmt: skip
    return found
