"""Functions to minimize, and the facts known about them.

A :class:`Problem` computes an objective on points of shape (..., d): leading axes are independent
replicas.  Its :class:`Facts` are claims (minimum, saddles, Lipschitz constants) that the test suite
proves one by one; theory and diagnostics use nothing else.  All numbers are float64.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Facts", "FiniteSum", "Problem", "Saddle"]

FloatArray = NDArray[np.float64]
Rng = np.random.Generator
Rows = tuple[Tensor, ...]

# Second word of the seed: data and starting points of equal seeds must not share a stream.
_DATA, _START = 0, 1

# Rows of the Hessian computed in one call; bounds the memory of data-driven problems.
_HESSIAN_ROWS = 64


@dataclass(frozen=True, eq=False)
class Saddle:
    """A critical point that is not a local minimum, or that second derivatives cannot judge.

    ``lambda_min`` is the smallest Hessian eigenvalue: negative at a strict saddle (a local maximum
    counts as one), 0 at a degenerate point.  ``next_value`` is the critical value to which descent
    along an eigenvector of ``lambda_min`` leads, the highest one where several exist; None if
    unknown.
    """

    point: Tensor
    value: float
    lambda_min: float
    next_value: float | None = None

    @property
    def is_strict(self) -> bool:
        return self.lambda_min < 0.0


@dataclass(frozen=True, eq=False)
class Facts:
    r"""The claims of a problem; None means unknown.

    ==================== ======================================================================
    field                meaning
    ==================== ======================================================================
    minimum              global minimum value
    minimizers           (m, d) points that attain it; where symmetry makes more, the problem
                         says so
    saddles              known critical points that are not minima; complete only if the problem
                         says so
    smoothness           M: the gradient is M-Lipschitz in the region
    hessian_lipschitz    rho: the Hessian is rho-Lipschitz in the region
    radius, norm         the region: all x with \|x\|_norm <= radius (norm 2: ball, inf: box)
    gradient_variance    bound, in the region, on the variance of each coordinate of a
                         single-sample gradient (finite sums only)
    ==================== ======================================================================
    """

    minimum: float | None = None
    minimizers: Tensor | None = None
    saddles: tuple[Saddle, ...] = ()
    smoothness: float | None = None
    hessian_lipschitz: float | None = None
    radius: float = math.inf
    norm: float = 2.0
    gradient_variance: float | None = None


class Problem(ABC):
    """A function of d variables, evaluated on tensors of shape (..., d).

    A concrete problem is a frozen dataclass whose fields are its options, so that two problems
    with equal options are equal and the repr can be typed back.  It defines ``dim``, ``value`` and
    ``state_facts``; derivatives come from ``value`` unless it defines faster ones.
    """

    name: ClassVar[str]

    @property
    @abstractmethod
    def dim(self) -> int:
        """Number of variables d."""

    @property
    def num_samples(self) -> int | None:
        """Number of terms of a finite sum; None if the objective is not one."""
        return None

    @abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """Objective at x of shape (..., d), as a tensor of shape (...)."""

    def grad(self, x: Tensor) -> Tensor:
        """Gradient, of x's shape."""
        gradient: Tensor = torch.func.grad(lambda z: self.value(z).sum())(x)
        return gradient

    def hvp(self, x: Tensor, v: Tensor) -> Tensor:
        """Hessian at x times v, forward over reverse; x and v broadcast."""
        return _along(self.grad, x, v)

    def hessian(self, x: Tensor) -> Tensor:
        """Hessian of shape (..., d, d)."""
        directions = torch.split(torch.eye(self.dim, dtype=x.dtype), _HESSIAN_ROWS)
        return torch.cat([self.hvp(x.unsqueeze(-2), rows) for rows in directions], dim=-2)

    def sample_value(self, x: Tensor, indices: Tensor) -> Tensor:
        """Mean of the terms named by indices, (B,) for all replicas or (..., B) one batch each."""
        raise self._no_samples()

    def sample_grad(self, x: Tensor, indices: Tensor) -> Tensor:
        """Gradient of :meth:`sample_value`, of x's shape."""
        raise self._no_samples()

    def sample_hvp(self, x: Tensor, v: Tensor, indices: Tensor) -> Tensor:
        """Hessian of :meth:`sample_value` times v."""
        raise self._no_samples()

    def start(self, replicas: int | None = None, *, seed: int = 0) -> Tensor:
        """Random points, (d,) or (replicas, d); the first rows do not depend on replicas."""
        rng = np.random.default_rng((seed, _START))
        shape = (self.dim,) if replicas is None else (replicas, self.dim)
        return torch.from_numpy(np.ascontiguousarray(self.draw_start(rng, shape), np.float64))

    @cached_property
    def facts(self) -> Facts:
        """The claims of :meth:`state_facts`, computed once."""
        return self.state_facts()

    def draw_start(self, rng: Rng, shape: tuple[int, ...]) -> FloatArray:
        """Initial points of the given shape, drawn row by row; by default of length about 1."""
        return rng.standard_normal(shape) / math.sqrt(self.dim)

    @abstractmethod
    def state_facts(self) -> Facts:
        """The claims about this problem; ``Facts()`` claims nothing."""

    def _no_samples(self) -> ValueError:
        return ValueError(
            f"{self!r} is not a finite sum: it has value, grad, hvp and hessian, "
            "but no sample_value, sample_grad or sample_hvp; use a full-gradient method"
        )


class FiniteSum(Problem):
    """A mean of n terms, each a function of one row of the data.

    Subclasses define the data (``rows``) and the mean over *any* batch of rows with its gradient
    (``mean_value``, ``mean_grad``); the full objective is the batch of all rows.  Rows come as
    (B, ...) for all replicas together or (..., B, ...), one batch per replica.
    """

    @property
    @abstractmethod
    def rows(self) -> Rows:
        """The data: tensors whose leading axis counts samples."""

    @abstractmethod
    def mean_value(self, x: Tensor, rows: Rows) -> Tensor:
        """Mean objective over a batch of rows."""

    @abstractmethod
    def mean_grad(self, x: Tensor, rows: Rows) -> Tensor:
        """Gradient of :meth:`mean_value`."""

    def mean_hvp(self, x: Tensor, v: Tensor, rows: Rows) -> Tensor:
        """Hessian of :meth:`mean_value` times v; a formula is ten times as fast as this default."""
        return _along(lambda z: self.mean_grad(z, rows), x, v)

    def batch(self, indices: Tensor) -> Rows:
        """The rows named by indices."""
        if self.num_samples is None:
            raise self._no_samples()
        return tuple(gather(rows, indices) for rows in self.rows)

    def value(self, x: Tensor) -> Tensor:
        return self.mean_value(x, self.rows)

    def grad(self, x: Tensor) -> Tensor:
        return self.mean_grad(x, self.rows)

    def hvp(self, x: Tensor, v: Tensor) -> Tensor:
        return self.mean_hvp(x, v, self.rows)

    def sample_value(self, x: Tensor, indices: Tensor) -> Tensor:
        return self.mean_value(x, self.batch(indices))

    def sample_grad(self, x: Tensor, indices: Tensor) -> Tensor:
        return self.mean_grad(x, self.batch(indices))

    def sample_hvp(self, x: Tensor, v: Tensor, indices: Tensor) -> Tensor:
        return self.mean_hvp(x, v, self.batch(indices))


def _along(gradient: Callable[[Tensor], Tensor], x: Tensor, v: Tensor) -> Tensor:
    """Derivative of the gradient along v; replicas do not interact, so one pass serves them all."""
    shape = np.broadcast_shapes(x.shape, v.shape)
    # Dual numbers need memory of their own; an expanded view has none.
    point, direction = x.expand(shape).contiguous(), v.expand(shape).contiguous()
    product: Tensor = torch.func.jvp(gradient, (point,), (direction,))[1]
    return product


def gather(rows: Tensor, indices: Tensor) -> Tensor:
    """rows[indices], faster: (n, *r) by (..., B) gives (..., B, *r)."""
    return rows.index_select(0, indices.reshape(-1)).reshape(*indices.shape, *rows.shape[1:])


def project(rows: Tensor, x: Tensor) -> Tensor:
    """Inner products of each row with x: (B, d) or (..., B, d) by (..., d) gives (..., B)."""
    if rows.dim() == 2:
        return x @ rows.mT
    return (rows @ x.unsqueeze(-1)).squeeze(-1)


def average(weights: Tensor, rows: Tensor) -> Tensor:
    """Mean over the batch of weight times row: (..., B) by (B, d) or (..., B, d) gives (..., d)."""
    if rows.dim() == 2:
        return weights @ rows / rows.shape[0]
    return (weights.unsqueeze(-2) @ rows).squeeze(-2) / rows.shape[-2]


def data_rng(seed: int, part: int = 0) -> Rng:
    """The generator of one part of a problem's data."""
    return np.random.default_rng((seed, _DATA, part))


def gaussian(rng: Rng, *shape: int) -> Tensor:
    """Independent standard normal numbers."""
    return torch.from_numpy(rng.standard_normal(shape))


def zeros(*shape: int) -> Tensor:
    """Zeros in double precision."""
    return torch.zeros(shape, dtype=torch.float64)


def orthonormal(rng: Rng, rows: int, columns: int) -> Tensor:
    """A Haar-distributed (rows, columns) matrix with orthonormal columns."""
    basis, triangle = np.linalg.qr(rng.standard_normal((rows, columns)))
    return torch.from_numpy(basis * np.sign(np.diag(triangle)))


def critical_point(problem: Problem, x: Tensor, *, max_steps: int = 100) -> Tensor | None:
    """The critical point to which plain Newton steps from x lead; None if they do not converge."""
    for _ in range(max_steps):
        step = torch.linalg.solve(problem.hessian(x), problem.grad(x))
        x = x - step
        if float(step.norm()) <= 1e-13 * (1.0 + float(x.norm())):
            return x
    return None
