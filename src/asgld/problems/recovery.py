"""Recovery of a matrix or a vector from random measurements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asgld._require import require, require_at_least
from asgld.problems.base import (
    Facts,
    FiniteSum,
    Saddle,
    average,
    critical_point,
    data_rng,
    orthonormal,
    project,
)

__all__ = ["PhaseRetrieval", "Sensing"]


@dataclass(frozen=True)
class Sensing(FiniteSum):
    r"""Low-rank matrix sensing: the factorization seen through random linear measurements.

    f(U) = 1/(4m) \sum_i (<A_i, U U'> - b_i)^2,   b_i = <A_i, U* U*'>,  U of shape (n, r)

    ============= ============= =============================================================
    symbol        option        meaning
    ============= ============= =============================================================
    n             size          order of the matrices
    r             rank          columns of U and of U*; d = n r
    m             num_samples   number of measurements; 6 n r or more is enough in practice
    A_i, U*       seed          A_i symmetric Gaussian with E<A, X>^2 = \|X\|_F^2, U* orthonormal
    ============= ============= =============================================================

    Facts: the minimum is 0, at U* and its rotations.  U = 0 is a critical point with Hessian
    -mean(b_i A_i) in each column; the other saddles have no closed form and are not listed.  With G
    the largest eigenvalue of mean(vec A_i vec A_i'), in the ball of radius R = 1.5 \|U*\|_F: M = G
    (3R^2 + \|U* U*'\|_F), rho = 6GR.

    References:
        S. Bhojanapalli, B. Neyshabur, N. Srebro, Global optimality of local search for low rank
        matrix recovery (NeurIPS 2016).
    """

    name: ClassVar[str] = "sensing"
    size: int = 8
    rank: int = 2
    num_samples: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        require(1 <= self.rank <= self.size, "rank", self.rank, f"1 to size={self.size}")
        require_at_least(self, num_samples=1)

    @property
    def dim(self) -> int:
        return self.size * self.rank

    @cached_property
    def _solution(self) -> Tensor:
        return orthonormal(data_rng(self.seed, 1), self.size, self.rank)

    @cached_property
    def _rows(self) -> tuple[Tensor, ...]:
        shape = (self.num_samples, self.size, self.size)
        gaussian = torch.from_numpy(data_rng(self.seed).standard_normal(shape))
        probes = (0.5 * (gaussian + gaussian.mT)).flatten(-2)
        return probes, probes @ (self._solution @ self._solution.mT).flatten()

    def _residual(self, x: Tensor, rows: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        u = x.reshape(*x.shape[:-1], self.size, self.rank)
        return u, project(rows[0], (u @ u.mT).flatten(-2)) - rows[1]

    def _mean_value(self, x: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        return 0.25 * self._residual(x, rows)[1].square().mean(-1)

    def _mean_grad(self, x: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        u, residual = self._residual(x, rows)
        pull = average(residual, rows[0])
        return (pull.reshape(*x.shape[:-1], self.size, self.size) @ u).flatten(-2)

    def _draw_start(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return rng.standard_normal(shape) / math.sqrt(self.dim)

    def _state_facts(self) -> Facts:
        probes, readings = self._rows
        square = (-1, self.size, self.size)
        gain = float(torch.linalg.matrix_norm(probes, 2)) ** 2 / self.num_samples
        top = float(torch.linalg.eigvalsh(average(readings, probes).reshape(square[1:]))[-1])
        radius = 1.5 * math.sqrt(self.rank)
        # |residual| <= |A|_op * nuclear norm; one coordinate of A U <= its row norm times |U|.
        spectral = torch.linalg.matrix_norm(probes.reshape(square), 2).square()
        longest_row = probes.reshape(square).square().sum(-1).amax(-1)
        spread = float((spectral * longest_row).mean()) * radius**2 * (radius**2 + self.rank) ** 2
        return Facts(
            minimum=0.0,
            minimizers=self._solution.flatten().unsqueeze(0),
            saddles=(
                Saddle(
                    torch.zeros(self.dim, dtype=torch.float64),
                    0.25 * float(readings.square().mean()),
                    -top,
                ),
            ),
            smoothness=gain * (3.0 * radius**2 + math.sqrt(self.rank)),
            hessian_lipschitz=6.0 * gain * radius,
            radius=radius,
            gradient_variance=spread,
        )


@dataclass(frozen=True)
class PhaseRetrieval(FiniteSum):
    r"""Recover a vector up to sign from the squares of random projections.

    f(x) = 1/(4m) \sum_i ((a_i' x)^2 - y_i)^2,   y_i = (a_i' x*)^2,  \|x*\| = 1

    ============= ============= =============================================================
    symbol        option        meaning
    ============= ============= =============================================================
    d             dim           number of variables
    m             num_samples   number of measurements; 10 d or more
    a_i, x*       seed          standard normal vectors, a uniformly random unit vector
    ============= ============= =============================================================

    Facts: the minimum is 0, at x* and -x*.  Critical points: 0, a local maximum with Hessian
    -mean(y_i a_i a_i'); and, for d > 1, near the sphere x orthogonal to x*, \|x\|^2 = 1/3 on which
    all points are critical (value 2/3, smallest eigenvalue -2) as m grows, isolated saddles of
    which Newton's method finds the listed one.  In the ball of radius R = 2: M = 3R^2 T, rho = 6RT
    with T >= max_v mean (a_i' v)^4 over unit vectors, bounded by splitting a_i a_i' into its trace
    and the rest.

    References:
        J. Sun, Q. Qu, J. Wright, A geometric analysis of phase retrieval (Found. Comput. Math.
        2018).
    """

    name: ClassVar[str] = "phase-retrieval"
    dim: int = 8
    num_samples: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, dim=1, num_samples=1)

    @cached_property
    def _solution(self) -> Tensor:
        return orthonormal(data_rng(self.seed, 1), self.dim, 1).squeeze(-1)

    @cached_property
    def _rows(self) -> tuple[Tensor, ...]:
        shape = (self.num_samples, self.dim)
        probes = torch.from_numpy(data_rng(self.seed).standard_normal(shape))
        return probes, (probes @ self._solution).square()

    def _mean_value(self, x: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        return 0.25 * (project(rows[0], x).square() - rows[1]).square().mean(-1)

    def _mean_grad(self, x: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        z = project(rows[0], x)
        return average((z.square() - rows[1]) * z, rows[0])

    def _mean_hvp(self, x: Tensor, v: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        bend = 3.0 * project(rows[0], x).square() - rows[1]
        return average(bend * project(rows[0], v), rows[0])

    def _draw_start(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return rng.standard_normal(shape) / math.sqrt(self.dim)

    def _state_facts(self) -> Facts:
        probes, readings = self._rows
        radius, origin = 2.0, torch.zeros(self.dim, dtype=torch.float64)
        top = -float(torch.linalg.eigvalsh(self.hessian(origin))[0])
        maximum = Saddle(origin, 0.25 * float(readings.square().mean()), -top, 0.0)
        tensor = self._fourth_moment()
        lengths = probes.square().sum(-1)
        spread = radius**6 * float((lengths**3).unsqueeze(-1).mul(probes.square()).mean(0).max())
        return Facts(
            minimum=0.0,
            minimizers=torch.stack([self._solution, -self._solution]),
            saddles=(maximum, *self._equator_saddle()),
            smoothness=3.0 * radius**2 * tensor,
            hessian_lipschitz=6.0 * radius * tensor,
            radius=radius,
            gradient_variance=spread,
        )

    def _fourth_moment(self) -> float:
        """Upper bound on max_v mean (a_i' v)^4 over unit vectors v."""
        probes, count = self._rows[0], self.num_samples
        lengths = probes.square().sum(-1)
        if self.dim**2 < count:
            outer = (probes.unsqueeze(-1) * probes.unsqueeze(-2)).flatten(-2)
            trace = torch.eye(self.dim, dtype=torch.float64).flatten() / self.dim
            rest = outer - lengths.unsqueeze(-1) * trace
            gram = rest.mT @ rest / count
        else:
            gram = ((probes @ probes.mT).square() - lengths.outer(lengths) / self.dim) / count
        rest_norm = math.sqrt(max(float(torch.linalg.eigvalsh(gram)[-1]), 0.0))
        return (math.sqrt(float(lengths.square().mean())) / self.dim + rest_norm) ** 2

    def _equator_saddle(self) -> tuple[Saddle, ...]:
        rng = data_rng(self.seed, 2)
        for _ in range(8 if self.dim > 1 else 0):
            guess = torch.from_numpy(rng.standard_normal(self.dim))
            guess = guess - (guess @ self._solution) * self._solution
            found = critical_point(self, guess / (math.sqrt(3.0) * guess.norm()))
            if found is None or not 0.1 < float(found.norm()) < 0.9:
                continue
            lowest = torch.linalg.eigvalsh(self.hessian(found))
            if lowest[0] < -0.1 and lowest[-1] > 0.1:
                return (Saddle(found, float(self.value(found)), float(lowest[0]), 0.0),)
        return ()
