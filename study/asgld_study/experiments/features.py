"""Features of which most are rare: logistic regression with Zipf frequencies.

Feature j of 200 is 1 with probability 1/(1 + j)^1.2, and labels follow a logistic model with
normal weights. Data sets are redrawn for each replica. Each method's lr is chosen on other data
sets than those on which it is judged; the noise of the Langevin methods is small, sigma = 1e-3.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asgld_study.experiments.chains import Chains
from asgld_study.experiments.declare import Size, Task

DIM, SAMPLES, BATCH, POWER, SIGMA, RIDGE = 200, 1_000, 10, 1.2, 1e-3, 1e-4
# label -> method, options, learning rates
KINDS: dict[str, tuple[str, dict[str, float]]] = {
    "ASGLD (1, 1)": ("asgld", {"alpha": 1.0, "sigma": SIGMA}),
    "ASG (1)": ("asg", {"alpha": 1.0}),
    "SGLD": ("sgld", {"sigma": SIGMA}),
    "SGD": ("asg", {"alpha": 0.0}),
}
LRS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
# D in units of the squared gradients of this problem, of which most are below 1e-3.
_D_INIT, _DELTA = 1e-2, 1e-6


@lru_cache(maxsize=2)
def _data(replicas: int, seed: int, zipf: bool) -> tuple[Tensor, Tensor]:
    """Features (R, n, d) and labels of sign +-1, (R, n)."""
    rng = np.random.default_rng(seed)
    chance = np.arange(1, DIM + 1) ** -POWER if zipf else np.full(
        DIM, np.mean(np.arange(1, DIM + 1) ** -POWER)
    )  # fmt: skip
    features = (rng.random((replicas, SAMPLES, DIM)) < chance).astype(np.float32)
    weights = rng.standard_normal((replicas, DIM, 1)).astype(np.float32)
    logits = (features @ weights)[..., 0]
    labels = np.where(rng.random(logits.shape) < 1.0 / (1.0 + np.exp(-logits)), 1.0, -1.0)
    return torch.from_numpy(features), torch.from_numpy(labels.astype(np.float32))


def measure(
    label: str, lr: float, zipf: bool, *, steps: int, replicas: int, seed: int = 0
) -> dict[str, Any]:
    """Objective at the end of a run, for each replica."""
    method, options = KINDS[label]
    features, labels = _data(replicas, seed, zipf)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.arange(replicas).unsqueeze(-1)

    def gradient(x: Tensor, _: int) -> Tensor:
        picked = torch.randint(SAMPLES, (replicas, BATCH), generator=generator)
        a, y = features[rows, picked], labels[rows, picked]
        margin = torch.bmm(a, x.unsqueeze(-1)).squeeze(-1) * y
        pull = -y * torch.sigmoid(-margin) / BATCH
        return torch.bmm(pull.unsqueeze(1), a).squeeze(1) + RIDGE * x

    def objective(x: Tensor) -> Tensor:
        margin = torch.bmm(features, x.unsqueeze(-1)).squeeze(-1) * labels
        loss = torch.nn.functional.softplus(-margin).mean(-1)
        return loss + 0.5 * RIDGE * x.square().sum(-1)

    chains = Chains(method, gradient, torch.zeros(replicas, DIM), seed=seed, lr=lr,
                    d_init=_D_INIT, delta=_DELTA, **options)  # fmt: skip
    for _ in range(steps):
        chains.advance()
    final = torch.nan_to_num(objective(chains.x), nan=1e6, posinf=1e6)
    return {"label": label, "lr": lr, "zipf": zipf, "seed": seed, "final": final.tolist()}


def tasks(size: Size) -> list[Task]:
    """Every lr on two sets of data: seed 1 to choose by, seed 0 to judge by."""
    steps = {"tiny": 20, "reduced": 500, "full": 2_000}[size.name]
    replicas = {"tiny": 3, "reduced": 10, "full": 20}[size.name]
    return [
        Task(measure, {"label": label, "lr": lr, "zipf": zipf, "steps": steps,
                       "replicas": replicas, "seed": seed})
        for zipf in (True, False)
        for seed in (0, 1)
        for label in KINDS
        for lr in LRS
    ]  # fmt: skip
