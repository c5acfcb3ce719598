"""A quadratic form of given spectrum, fast in thousands of dimensions."""

from __future__ import annotations

import torch
from torch import Tensor


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.float64)


class Quadratic:
    """f = x'Ax / 2 with A = Q diag(eigenvalues) Q', Q a product of Householder reflections."""

    def __init__(self, eigenvalues: Tensor, reflections: Tensor | None = None) -> None:
        self.eigenvalues = eigenvalues
        self.dim = len(eigenvalues)
        self.reflections = zeros(0, self.dim) if reflections is None else reflections
        norms = torch.linalg.vector_norm(self.reflections, dim=1, keepdim=True)
        self.reflections = self.reflections / norms

    def matvec(self, v: Tensor) -> Tensor:
        for u in self.reflections:
            v = v - 2 * torch.dot(u, v) * u
        v = self.eigenvalues * v
        for u in self.reflections.flip(0):
            v = v - 2 * torch.dot(u, v) * u
        return v

    def value(self, x: Tensor) -> Tensor:
        return torch.dot(x, self.matvec(x)) / 2

    def grad(self, x: Tensor) -> Tensor:
        return self.matvec(x)

    def hvp(self, x: Tensor, v: Tensor) -> Tensor:
        return self.matvec(v)
