"""What the family contains: each special case beside the method that it should be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asgld.methods import normals
from asgld.noise import Draw, Layout, torch_normals
from asgld_study.experiments.chains import Chains, noisy
from asgld_study.experiments.declare import Size, Task
from asgld_study.experiments.exponents import FUNCTIONS

LR, SIGMA, STEPS = 0.1, 0.3, 200
_WAVES = FUNCTIONS["waves"]


def _start(replicas: int = 8, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(replicas, _WAVES.dim, dtype=torch.float64).uniform_(
        0.5, 2.5, generator=generator
    )


def _end(name: str, *, steps: int = STEPS, variance: float = 0.3, **options: Any) -> Tensor:
    chains = Chains(name, noisy(_WAVES, variance, seed=1), _start(), lr=LR, **options)
    for _ in range(steps):
        chains.advance()
    return chains.x


def _gap(a: Tensor, b: Tensor) -> float:
    """Largest difference; infinite where a number is not finite."""
    return float(torch.nan_to_num((a - b).abs(), nan=math.inf).max())


def measure_cases() -> dict[str, Any]:
    """Ends of runs beside those of the methods they should be, with equal randomness."""
    u = 1.0 / SIGMA**2
    gradient, x = noisy(_WAVES, 0.3, seed=1), _start()
    for step in range(STEPS):
        noise = normals(0, step, x, stream=0)
        x = x - LR * gradient(x, step) + math.sqrt(2.0 * LR / u) * noise
    sgld = _end("asgld", alpha=0.0, beta=0.0, sigma=SIGMA)
    gradient, y = noisy(_WAVES, 0.3, seed=1), _start()
    sgd = torch.optim.SGD([y], lr=LR)
    for step in range(STEPS):
        y.grad = gradient(y, step)
        sgd.step()
    asg = _end("asg", alpha=1.0)
    limits = {
        f"beta={beta:g}, d_init={d_init:g}": _gap(
            _end("asgld", alpha=1.0, beta=beta, sigma=SIGMA, d_init=d_init, delta=0.01),
            _end("asg", alpha=1.0, d_init=d_init, delta=0.01),
        )
        for beta in (4.0, 16.0, 64.0)
        for d_init in (0.25, 4.0)
    }
    return {
        "sgld": _gap(sgld, x),
        "asg": _gap(_end("asgld", alpha=1.0, beta=math.inf, sigma=SIGMA), asg),
        "sgd": _gap(_end("asgld", alpha=0.0, beta=math.inf, sigma=SIGMA), y),
        "limits": limits,
        "shards": _shard_gaps(),
    }


def _shard_gaps() -> dict[str, float]:
    """The same run on one tensor and on two halves of it, and the noise of a half by its place.

    The rule is per coordinate, so without noise the halves know nothing of each other. The noise is
    a function of the place in the whole tensor, which a process that holds a half knows.
    """
    whole = Chains("asg", noisy(_WAVES), _start(), lr=LR)
    halves = [Chains("asg", noisy(_WAVES), part, lr=LR) for part in _start().chunk(2)]
    for _ in range(STEPS):
        for chains in (whole, *halves):
            chains.advance()
    shape = tuple(whole.x.shape)
    draws = [
        Draw(stream=0, step=7, layout=Layout.of_block((shape[0] // 2, shape[1]), shape, (row, 0)))
        for row in (0, shape[0] // 2)
    ]
    parts = [part.view(-1, shape[1]) for part in
             torch_normals(0, draws, torch.float64, torch.device("cpu"))]  # fmt: skip
    return {
        "steps": _gap(whole.x, torch.cat([chains.x for chains in halves])),
        "noise": _gap(normals(0, 7, whole.x, stream=0), torch.cat(parts)),
    }


def measure_law(matched: str, *, replicas: int, steps: int) -> dict[str, Any]:
    """ASG with Gaussian gradient noise beside AGLD with that noise injected at beta = alpha.

    Args:
        matched: "sigma": sigma^2 = lr C / 2; "sigma and delta": also delta raised by C, which the
            squares of noisy gradients add to D; "nothing": sigma = 0.3.
    """
    variance, delta = 0.3, 0.01
    start = torch.full((replicas, 1), 1.0, dtype=torch.float64)
    asg = Chains("asg", noisy(_WAVES, variance, seed=1), start, lr=LR, alpha=1.0, delta=delta)
    agld = Chains(
        "agld", noisy(_WAVES), start, seed=2, lr=LR, alpha=1.0, beta=1.0,
        sigma=SIGMA if matched == "nothing" else math.sqrt(LR * variance / 2.0),
        delta=delta + (variance if matched == "sigma and delta" else 0.0),
    )  # fmt: skip
    for _ in range(steps):
        asg.advance()
        agld.advance()
    a, b = np.sort(asg.x[:, 0].numpy()), np.sort(agld.x[:, 0].numpy())
    grid = np.concatenate([a, b])
    distance = np.abs(
        np.searchsorted(a, grid, "right") / len(a) - np.searchsorted(b, grid, "right") / len(b)
    ).max()
    return {
        "matched": matched,
        "steps": steps,
        "distance": float(distance),
        # of Kolmogorov and Smirnov, for two samples of this size
        "critical": 1.628 * math.sqrt(2.0 / replicas),
        "asg": {"mean": float(a.mean()), "deviation": float(a.std())},
        "agld": {"mean": float(b.mean()), "deviation": float(b.std())},
    }


def tasks(size: Size) -> list[Task]:
    replicas = {"tiny": 200, "reduced": 4_000, "full": 20_000}[size.name]
    return [
        Task(measure_cases, {}),
        *(
            Task(measure_law, {"matched": matched, "replicas": replicas, "steps": steps})
            for matched in ("nothing", "sigma", "sigma and delta")
            for steps in (1, 100)
        ),
    ]
