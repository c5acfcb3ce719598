"""Tables that the tests take products of."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import asgld
from asgld.noise import Layout
from asgld.optim import functional

# (alpha, beta): the special cases, the paper's settings, ties, and general powers.
EXPONENTS = [
    (0.0, 0.0),
    (0.0, 1.0),
    (0.0, 2.0),
    (0.0, 0.3),
    (1.0, 0.3),
    (1.0, 0.5),
    (1.0, 1.0),
    (1.0, 2.0),
    (1.0, math.inf),
    (0.7, 1.3),
    (1.5, 1.0),
    (2.0, 1.0),
    (2.0, 2.0),
]
OPTIMIZERS: dict[str, Callable[..., asgld.ASGLD]] = {
    "ASGLD": asgld.ASGLD,
    "AGLD": asgld.AGLD,
    "ASG": asgld.ASG,
    "SGLD": asgld.SGLD,
}
BACKENDS: dict[str, dict[str, Any]] = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
}
if functional.fused_unavailable_reason([torch.zeros(1)], [Layout.whole(1)]) is None:
    BACKENDS["fused"] = {"fused": True}
HEATING = "ignore:beta=.* with alpha=.*:UserWarning"


def make_tensor(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a fixed standard normal tensor."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def make_parameters(
    shapes: list[tuple[int, ...]], *, dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[Tensor]:
    return [
        make_tensor(*shape, seed=seed + i, dtype=dtype).requires_grad_()
        for i, shape in enumerate(shapes)
    ]


def take_steps(optimizer: torch.optim.Optimizer, steps: int, *, first: int = 0) -> None:
    """Take steps with gradients that depend on the step and the parameter's place alone."""
    for k in range(first, first + steps):
        i = 0
        for group in optimizer.param_groups:
            for p in group["params"]:
                noise = make_tensor(*p.shape, seed=1000 * k + i, dtype=p.dtype)
                p.grad = noise + 0.5 * p.detach()
                i += 1
        optimizer.step()


def make_model(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
