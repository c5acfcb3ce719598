"""Products of matrices and powers of vectors: saddles by symmetry, known through spectra."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asgld._require import require, require_at_least
from asgld.problems.base import (
    Facts,
    FiniteSum,
    Problem,
    Saddle,
    average,
    data_rng,
    orthonormal,
    project,
)

__all__ = ["DeepLinear", "Factorization", "OrthogonalTensor"]


@dataclass(frozen=True)
class Factorization(Problem):
    r"""Symmetric low-rank factorization: every wrong set of eigenvectors is a strict saddle.

    f(U) = 1/4 \|U U' - A\|_F^2,   x = vec(U),  U of shape (n, r),  A = \sum_i l_i q_i q_i'

    ============= ========== ================================================================
    symbol        option     meaning
    ============= ========== ================================================================
    n             size       order of A
    r             rank       columns of U; d = n r
    l_i           spectrum   positive eigenvalues of A in falling order, the others are 0
    q_i           seed       random orthonormal eigenvectors
    ============= ========== ================================================================

    Facts: the minimum is 1/4 \sum_{i > r} l_i^2, at U = (q_i l_i^(1/2))_{i <= r} and all its
    rotations U O.  Listed saddles: the leading k < r eigenvectors and zero columns, smallest
    eigenvalue -l_{k+1}; and, if l_r > l_{r+1} > 0, the leading r with the last replaced by the next
    one, smallest eigenvalue l_{r+1} - l_r.  Other sets of eigenvectors are saddles too.  In the
    ball of radius R = 1.5 \|U*\|_F: M = max(3R^2, l_1), rho = 6R.

    References:
        R. Ge, J. Lee, T. Ma, Matrix completion has no spurious local minimum (NeurIPS 2016).  X. Li
        et al., Symmetry, saddle points, and global optimization landscape of nonconvex matrix
        factorization (IEEE Trans. Inf. Theory 2019).
    """

    name: ClassVar[str] = "factorization"
    size: int = 8
    rank: int = 2
    spectrum: tuple[float, ...] = (4.0, 3.0, 2.0, 1.0)
    seed: int = 0

    def __post_init__(self) -> None:
        require(1 <= self.rank <= self.size, "rank", self.rank, f"1 to size={self.size}")
        spectrum = tuple(float(eigenvalue) for eigenvalue in self.spectrum)
        object.__setattr__(self, "spectrum", spectrum)  # a list would not hash
        falling = all(a >= b > 0 for a, b in pairwise(spectrum))
        require(
            1 <= len(spectrum) <= self.size and spectrum[0] > 0 and falling,
            "spectrum",
            spectrum,
            f"1 to size={self.size} positive numbers in falling order",
        )

    @property
    def dim(self) -> int:
        return self.size * self.rank

    @cached_property
    def _roots(self) -> Tensor:
        """Columns q_i l_i^(1/2)."""
        basis = orthonormal(data_rng(self.seed), self.size, len(self.spectrum))
        return basis * torch.tensor(self.spectrum, dtype=torch.float64).sqrt()

    @cached_property
    def _target(self) -> Tensor:
        return self._roots @ self._roots.mT

    def _matrix(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self.size, self.rank)

    def value(self, x: Tensor) -> Tensor:
        u = self._matrix(x)
        return 0.25 * (u @ u.mT - self._target).square().sum((-2, -1))

    def grad(self, x: Tensor) -> Tensor:
        u = self._matrix(x)
        return (u @ (u.mT @ u) - self._target @ u).flatten(-2)

    def hvp(self, x: Tensor, v: Tensor) -> Tensor:
        u, w = self._matrix(x), self._matrix(v)
        return (w @ (u.mT @ u) + u @ (w.mT @ u + u.mT @ w) - self._target @ w).flatten(-2)

    def _draw_start(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return rng.standard_normal(shape) * math.sqrt(self.spectrum[0] / self.dim)

    def _state_facts(self) -> Facts:
        known, rank = len(self.spectrum), self.rank
        squares = [eigenvalue**2 for eigenvalue in self.spectrum]

        def point(used: list[int]) -> Tensor:
            u = torch.zeros(self.size, rank, dtype=torch.float64)
            u[:, : len(used)] = self._roots[:, used]
            return u.flatten()

        def level(used: list[int]) -> float:
            return 0.25 * (sum(squares) - sum(squares[i] for i in used))

        best = list(range(min(rank, known)))
        saddles = [
            Saddle(point(best[:k]), level(best[:k]), -self.spectrum[k], level(best[: k + 1]))
            for k in best
        ]
        if rank < known and self.spectrum[rank] < self.spectrum[rank - 1]:
            swapped = [*best[:-1], rank]
            gap = self.spectrum[rank] - self.spectrum[rank - 1]
            saddles.append(Saddle(point(swapped), level(swapped), gap, level(best)))
        radius = 1.5 * float(point(best).norm())
        return Facts(
            minimum=level(best),
            minimizers=point(best).unsqueeze(0),
            saddles=tuple(saddles),
            smoothness=max(3.0 * radius**2, self.spectrum[0]),
            hessian_lipschitz=6.0 * radius,
            radius=radius,
        )


@dataclass(frozen=True)
class OrthogonalTensor(FiniteSum):
    r"""One component of an orthogonal fourth-order tensor, as in independent component analysis.

    f(u) = c/4 (\|u\|^2 - 1)^2 - 1/4 \sum_k (a_k' u)^4,   a_1, ..., a_d orthonormal

    ============= ============= =============================================================
    symbol        option        meaning
    ============= ============= =============================================================
    d             dim           number of variables, of components, and of terms in the sum
    c             penalty       weight of the sphere, above 1
    a_k           rotated, seed the coordinate axes, or a random orthonormal basis
    ============= ============= =============================================================

    Term k of the finite sum is c/4 (\|u\|^2 - 1)^2 - d/4 (a_k' u)^4.  Facts: all critical points
    are 0 (Hessian -c I, value c/4) and, for each set of s components, the sums of \pm t^(1/2) a_k
    with t = c/(cs - 1): value -t/4, and smallest eigenvalue -2t if s > 1.  s = 1 gives the 2d
    minimizers. Listed is one point for each s, with positive signs.  In the ball of radius R = 1.5
    t_1^(1/2): M = max(3cR^2 - c, c + max(0, 3 - c) R^2), rho = 6cR.

    References:
        R. Ge, F. Huang, C. Jin, Y. Yuan, Escaping from saddle points: online stochastic gradient
        for tensor decomposition (COLT 2015).
    """

    name: ClassVar[str] = "orthogonal-tensor"
    dim: int = 8
    penalty: float = 2.0
    rotated: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, dim=1)
        require(self.penalty > 1, "penalty", self.penalty, "penalty > 1, else f has no minimum")

    @property
    def num_samples(self) -> int:
        return self.dim

    @cached_property
    def _rows(self) -> tuple[Tensor, ...]:
        if self.rotated:
            return (orthonormal(data_rng(self.seed), self.dim, self.dim),)
        return (torch.eye(self.dim, dtype=torch.float64),)

    def _mean_value(self, x: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        sphere = 0.25 * self.penalty * (x.square().sum(-1) - 1.0).square()
        return sphere - 0.25 * self.dim * (project(rows[0], x) ** 4).mean(-1)

    def _mean_grad(self, x: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        sphere = self.penalty * (x.square().sum(-1, keepdim=True) - 1.0) * x
        return sphere - self.dim * average(project(rows[0], x) ** 3, rows[0])

    def _draw_start(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return rng.standard_normal(shape) / math.sqrt(self.dim)

    def _state_facts(self) -> Facts:
        c, (basis,) = self.penalty, self._rows

        def height(support: int) -> float:
            return c / (c * support - 1.0)

        radius = 1.5 * math.sqrt(height(1))
        origin = torch.zeros(self.dim, dtype=torch.float64)
        mixtures = tuple(
            Saddle(
                math.sqrt(height(s)) * basis[:s].sum(0),
                -height(s) / 4.0,
                -2.0 * height(s),
                -height(s - 1) / 4.0,
            )
            for s in range(2, self.dim + 1)
        )
        return Facts(
            minimum=-height(1) / 4.0,
            minimizers=math.sqrt(height(1)) * torch.cat([basis, -basis]),
            saddles=(Saddle(origin, c / 4.0, -c, -height(self.dim) / 4.0), *mixtures),
            smoothness=max(3.0 * c * radius**2 - c, c + max(0.0, 3.0 - c) * radius**2),
            hessian_lipschitz=6.0 * c * radius,
            radius=radius,
            gradient_variance=self.dim * radius**6 * float(basis.square().max()),
        )


@dataclass(frozen=True)
class DeepLinear(FiniteSum):
    r"""A linear network: strict saddles with two layers, a degenerate one at 0 with three or more.

    f(W_1, ..., W_L) = 1/(2n) \sum_i \|W_L ... W_1 x_i - y_i\|^2,   mean(x_i x_i') = I

    ============= ============= =============================================================
    symbol        option        meaning
    ============= ============= =============================================================
    \             inputs        length of x_i
    \             outputs       length of y_i
    h             hidden        width of the L - 1 hidden layers
    L             depth         number of layers, at least 2
    n             num_samples   number of samples, at least ``inputs``
    \             noise, seed   y_i = B x_i + noise * N(0, I), B Gaussian
    ============= ============= =============================================================

    With A = mean(y_i x_i') = \sum_j s_j u_j v_j' and inputs of unit covariance, f = 1/2 \|W_L ...
    W_1 - A\|_F^2 + const.  Facts: the minimum keeps the leading min(h, inputs, outputs) = r
    singular values; the balanced factors are listed (others follow by invertible matrices between
    layers).  L = 2: the balanced factors of the leading k < r are strict saddles with smallest
    eigenvalue -s_{k+1}.  L > 2: the Hessian at 0 is zero.  In the ball of radius R = 1.5 times the
    norm of the minimizer, with p_j = binom(L, j) L^(-L/2) R^(L-j): M = p_1^2 + 2 (p_0 + s_1) p_2,
    rho = 6 (p_1 p_2 + (p_0 + s_1) p_3).

    References:
        P. Baldi, K. Hornik, Neural networks and principal component analysis (Neural Networks
        1989). K. Kawaguchi, Deep learning without poor local minima (NeurIPS 2016).
    """

    name: ClassVar[str] = "deep-linear"
    inputs: int = 5
    outputs: int = 4
    hidden: int = 3
    depth: int = 2
    num_samples: int = 100
    noise: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, inputs=1, outputs=1, hidden=1, depth=2)
        enough = self.num_samples >= self.inputs
        require(enough, "num_samples", self.num_samples, f"at least inputs={self.inputs}")

    @property
    def _shapes(self) -> list[tuple[int, int]]:
        widths = [self.inputs, *[self.hidden] * (self.depth - 1), self.outputs]
        return [(after, before) for before, after in pairwise(widths)]

    @property
    def dim(self) -> int:
        return sum(after * before for after, before in self._shapes)

    @cached_property
    def _rows(self) -> tuple[Tensor, ...]:
        rng = data_rng(self.seed)
        x = orthonormal(rng, self.num_samples, self.inputs) * math.sqrt(self.num_samples)
        teacher = rng.standard_normal((self.inputs, self.outputs)) / math.sqrt(self.inputs)
        noise = self.noise * rng.standard_normal((self.num_samples, self.outputs))
        return x, x @ torch.from_numpy(teacher) + torch.from_numpy(noise)

    @cached_property
    def _summary(self) -> tuple[tuple[Tensor, ...], float]:
        """A few rows with the same loss as all n up to a constant, so that cost is free of n."""
        x, y = self._rows
        scale = math.sqrt(self.inputs)
        rows = (
            scale * torch.eye(self.inputs, dtype=torch.float64),
            scale * (x.mT @ y) / self.num_samples,
        )
        energies = [float(part.square().sum(-1).mean()) for part in (y, rows[1])]
        return rows, 0.5 * (energies[0] - energies[1])

    def value(self, x: Tensor) -> Tensor:
        rows, constant = self._summary
        return self._mean_value(x, rows) + constant

    def grad(self, x: Tensor) -> Tensor:
        return self._mean_grad(x, self._summary[0])

    def hvp(self, x: Tensor, v: Tensor) -> Tensor:
        return self._mean_hvp(x, v, self._summary[0])

    def _layers(self, x: Tensor) -> list[Tensor]:
        layers, first = [], 0
        for after, before in self._shapes:
            block = x[..., first : first + after * before]
            layers.append(block.reshape(*x.shape[:-1], after, before))
            first += after * before
        return layers

    def _mean_value(self, x: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        signal = rows[0]
        for layer in self._layers(x):
            signal = signal @ layer.mT
        return 0.5 * (signal - rows[1]).square().sum(-1).mean(-1)

    def _mean_grad(self, x: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        layers, signals = self._layers(x), [rows[0]]
        for layer in layers:
            signals.append(signals[-1] @ layer.mT)
        error = (signals.pop() - rows[1]) / rows[0].shape[-2]
        gradients = []
        for layer in reversed(layers):
            gradients.append((error.mT @ signals.pop()).flatten(-2))
            error = error @ layer
        return torch.cat(gradients[::-1], dim=-1)

    def _draw_start(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return 0.1 * rng.standard_normal(shape)

    def _state_facts(self) -> Facts:
        x, y = self._rows
        left, singular, right = torch.linalg.svd(y.mT @ x / self.num_samples, full_matrices=False)
        sigma, depth = [float(s) for s in singular], self.depth
        rank = min(self.hidden, len(sigma))
        energy = float(y.square().sum()) / self.num_samples

        def balanced(kept: int) -> Tensor:
            factor = singular[:kept].pow(1.0 / depth)
            layers = [torch.zeros(shape, dtype=torch.float64) for shape in self._shapes]
            for layer in layers[1:-1]:
                layer[:kept, :kept] = factor.diag()
            layers[0][:kept] = factor.unsqueeze(-1) * right[:kept]
            layers[-1][:, :kept] = left[:, :kept] * factor
            return torch.cat([layer.flatten() for layer in layers])

        def level(kept: int) -> float:
            return 0.5 * (energy - sum(s * s for s in sigma[:kept]))

        if depth == 2:
            saddles = [Saddle(balanced(k), level(k), -sigma[k], level(k + 1)) for k in range(rank)]
        else:
            saddles = [Saddle(balanced(0), level(0), 0.0)]
        radius = 1.5 * float(balanced(rank).norm())
        # A symmetric form is largest on the diagonal: equal layers bound the product's derivatives.
        p = [math.comb(depth, j) * radius ** (depth - j) / depth ** (depth / 2) for j in range(4)]
        gap = p[0] + sigma[0]
        norms = x.square().sum(-1).sqrt()
        errors = p[0] * norms + y.square().sum(-1).sqrt()
        others = (radius**2 / (depth - 1)) ** (depth - 1)
        return Facts(
            minimum=level(rank),
            minimizers=balanced(rank).unsqueeze(0),
            saddles=tuple(saddles),
            smoothness=p[1] ** 2 + 2.0 * gap * p[2],
            hessian_lipschitz=6.0 * (p[1] * p[2] + gap * p[3]),
            radius=radius,
            gradient_variance=others * float((errors * norms).square().mean()),
        )
