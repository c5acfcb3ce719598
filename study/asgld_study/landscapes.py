"""Functions with known gradients on which several topics run chains, and where the chains start."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

DIM = 10


class Waves:
    """sum_i 1 - cos x_i: a basin, smooth with M = 1."""

    dim, num_samples = DIM, None

    def value(self, x: Tensor) -> Tensor:
        return (1.0 - x.cos()).sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        return x.sin()


class Flat:
    """sum_i (1 + x_i^2)^-0.1: a slope without end."""

    dim, num_samples = DIM, None

    def value(self, x: Tensor) -> Tensor:
        return (1.0 + x * x).pow(-0.1).sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        return -0.2 * x * (1.0 + x * x).pow(-1.1)


class Bowl:
    """|x|^2 / 2."""

    dim, num_samples = DIM, None

    def value(self, x: Tensor) -> Tensor:
        return 0.5 * x.square().sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        return x.clone()


LANDSCAPES: dict[str, Any] = {"waves": Waves(), "flat": Flat(), "bowl": Bowl()}


def start(replicas: int, dim: int = DIM) -> Tensor:
    """Start points, uniform in a box on the positive side."""
    generator = torch.Generator().manual_seed(0)
    return torch.empty(replicas, dim, dtype=torch.float64).uniform_(0.5, 2.5, generator=generator)
