"""Functions with known gradients on which several topics run chains, and where the chains start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

DIM = 10


@dataclass(frozen=True)
class KnownFunction:
    """A function of points (..., d) and its gradient."""

    value: Callable[[Tensor], Tensor]
    grad: Callable[[Tensor], Tensor]
    dim: int = DIM
    num_samples: None = None


LANDSCAPES = {
    # sum_i 1 - cos x_i: a basin, smooth with M = 1
    "waves": KnownFunction(lambda x: (1.0 - x.cos()).sum(-1), lambda x: x.sin()),
    # sum_i (1 + x_i^2)^-0.1: a slope without end
    "flat": KnownFunction(
        lambda x: (1.0 + x * x).pow(-0.1).sum(-1), lambda x: -0.2 * x * (1.0 + x * x).pow(-1.1)
    ),
    # |x|^2 / 2
    "bowl": KnownFunction(lambda x: 0.5 * x.square().sum(-1), lambda x: x.clone()),
}


def start(replicas: int, dim: int = DIM) -> Tensor:
    """Start points, uniform in a box on the positive side."""
    generator = torch.Generator().manual_seed(0)
    return torch.empty(replicas, dim, dtype=torch.float64).uniform_(0.5, 2.5, generator=generator)
