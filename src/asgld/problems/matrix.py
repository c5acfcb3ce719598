"""Matrices, tensors and their recovery from measurements: saddles by symmetry, known by spectra."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from asgld.arguments import require, require_at_least
from asgld.problems.base import (
    Facts,
    FiniteSum,
    FloatArray,
    Problem,
    Rng,
    Rows,
    Saddle,
    average,
    critical_point,
    data_rng,
    gaussian,
    orthonormal,
    project,
    zeros,
)

__all__ = ["DeepLinear", "Factorization", "OrthogonalTensor", "PhaseRetrieval", "Sensing"]


@dataclass(frozen=True)
class Factorization(Problem):
    r"""Symmetric low-rank factorization: every wrong set of eigenvectors is a strict saddle.

    f(U) = 1/4 \|U U' - A\|_F^2,   x = vec(U),  U of shape (n, r),  A = \sum_i l_i q_i q_i'

    Args:
        size: n, the order of A.
        rank: r, the columns of U; d = n r.
        spectrum: l_i, the positive eigenvalues of A in falling order; the others are 0.
        seed: of the random orthonormal eigenvectors q_i.

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
        fits = 1 <= len(spectrum) <= self.size and spectrum[0] > 0 and falling
        need = f"1 to size={self.size} positive numbers in falling order"
        require(fits, "spectrum", spectrum, need)

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

    def draw_start(self, rng: Rng, shape: tuple[int, ...]) -> FloatArray:
        return rng.standard_normal(shape) * math.sqrt(self.spectrum[0] / self.dim)

    def state_facts(self) -> Facts:
        known, rank = len(self.spectrum), self.rank
        squares = [eigenvalue**2 for eigenvalue in self.spectrum]

        def point(used: list[int]) -> Tensor:
            u = zeros(self.size, rank)
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

    Args:
        dim: d, the number of variables, of components, and of terms in the sum.
        penalty: c, the weight of the sphere, above 1.
        rotated: the a_k are a random orthonormal basis, or the coordinate axes.

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
    def rows(self) -> Rows:
        if self.rotated:
            return (orthonormal(data_rng(self.seed), self.dim, self.dim),)
        return (torch.eye(self.dim, dtype=torch.float64),)

    def mean_value(self, x: Tensor, rows: Rows) -> Tensor:
        sphere = 0.25 * self.penalty * (x.square().sum(-1) - 1.0).square()
        return sphere - 0.25 * self.dim * (project(rows[0], x) ** 4).mean(-1)

    def mean_grad(self, x: Tensor, rows: Rows) -> Tensor:
        sphere = self.penalty * (x.square().sum(-1, keepdim=True) - 1.0) * x
        return sphere - self.dim * average(project(rows[0], x) ** 3, rows[0])

    def state_facts(self) -> Facts:
        c, (basis,) = self.penalty, self.rows

        def height(support: int) -> float:
            return c / (c * support - 1.0)

        radius = 1.5 * math.sqrt(height(1))
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
            saddles=(Saddle(zeros(self.dim), c / 4.0, -c, -height(self.dim) / 4.0), *mixtures),
            smoothness=max(3.0 * c * radius**2 - c, c + max(0.0, 3.0 - c) * radius**2),
            hessian_lipschitz=6.0 * c * radius,
            radius=radius,
            gradient_variance=self.dim * radius**6 * float(basis.square().max()),
        )


@dataclass(frozen=True)
class DeepLinear(FiniteSum):
    r"""A linear network: strict saddles with two layers, a degenerate one at 0 with three or more.

    f(W_1, ..., W_L) = 1/(2n) \sum_i \|W_L ... W_1 x_i - y_i\|^2,   mean(x_i x_i') = I

    Args:
        inputs, outputs: the lengths of x_i and y_i.
        hidden: h, the width of the L - 1 hidden layers.
        depth: L, the number of layers, at least 2.
        num_samples: n, at least ``inputs``.
        noise: y_i = B x_i + noise * N(0, I), B Gaussian.

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
    def rows(self) -> Rows:
        rng = data_rng(self.seed)
        x = orthonormal(rng, self.num_samples, self.inputs) * math.sqrt(self.num_samples)
        teacher = gaussian(rng, self.inputs, self.outputs) / math.sqrt(self.inputs)
        return x, x @ teacher + self.noise * gaussian(rng, self.num_samples, self.outputs)

    @cached_property
    def _summary(self) -> tuple[tuple[Tensor, ...], float]:
        """A few rows with the same loss as all n up to a constant, so that cost is free of n."""
        x, y = self.rows
        scale = math.sqrt(self.inputs)
        rows = (
            scale * torch.eye(self.inputs, dtype=torch.float64),
            scale * (x.mT @ y) / self.num_samples,
        )
        energies = [float(part.square().sum(-1).mean()) for part in (y, rows[1])]
        return rows, 0.5 * (energies[0] - energies[1])

    def value(self, x: Tensor) -> Tensor:
        rows, constant = self._summary
        return self.mean_value(x, rows) + constant

    def grad(self, x: Tensor) -> Tensor:
        return self.mean_grad(x, self._summary[0])

    def hvp(self, x: Tensor, v: Tensor) -> Tensor:
        return self.mean_hvp(x, v, self._summary[0])

    def _layers(self, x: Tensor) -> list[Tensor]:
        layers, first = [], 0
        for after, before in self._shapes:
            block = x[..., first : first + after * before]
            layers.append(block.reshape(*x.shape[:-1], after, before))
            first += after * before
        return layers

    def mean_value(self, x: Tensor, rows: Rows) -> Tensor:
        signal = rows[0]
        for layer in self._layers(x):
            signal = signal @ layer.mT
        return 0.5 * (signal - rows[1]).square().sum(-1).mean(-1)

    def mean_grad(self, x: Tensor, rows: Rows) -> Tensor:
        layers, signals = self._layers(x), [rows[0]]
        for layer in layers:
            signals.append(signals[-1] @ layer.mT)
        error = (signals.pop() - rows[1]) / rows[0].shape[-2]
        gradients = []
        for layer in reversed(layers):
            gradients.append((error.mT @ signals.pop()).flatten(-2))
            error = error @ layer
        return torch.cat(gradients[::-1], dim=-1)

    def draw_start(self, rng: Rng, shape: tuple[int, ...]) -> FloatArray:
        return 0.1 * rng.standard_normal(shape)

    def state_facts(self) -> Facts:
        x, y = self.rows
        left, singular, right = torch.linalg.svd(y.mT @ x / self.num_samples, full_matrices=False)
        sigma, depth = [float(s) for s in singular], self.depth
        rank = min(self.hidden, len(sigma))
        energy = float(y.square().sum()) / self.num_samples

        def balanced(kept: int) -> Tensor:
            factor = singular[:kept].pow(1.0 / depth)
            layers = [zeros(*shape) for shape in self._shapes]
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


@dataclass(frozen=True)
class Sensing(FiniteSum):
    r"""Low-rank matrix sensing: the factorization seen through random linear measurements.

    f(U) = 1/(4m) \sum_i (<A_i, U U'> - b_i)^2,   b_i = <A_i, U* U*'>,  U of shape (n, r)

    Args:
        size: n, the order of the matrices.
        rank: r, the columns of U and of U*; d = n r.
        num_samples: m, the number of measurements; 6 n r or more is enough in practice.
        seed: of A_i, symmetric Gaussian with E<A, X>^2 = \|X\|_F^2, and of U*, orthonormal.

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
    def rows(self) -> Rows:
        drawn = gaussian(data_rng(self.seed), self.num_samples, self.size, self.size)
        probes = (0.5 * (drawn + drawn.mT)).flatten(-2)
        return probes, probes @ (self._solution @ self._solution.mT).flatten()

    def _residual(self, x: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        u = x.reshape(*x.shape[:-1], self.size, self.rank)
        return u, project(rows[0], (u @ u.mT).flatten(-2)) - rows[1]

    def mean_value(self, x: Tensor, rows: Rows) -> Tensor:
        return 0.25 * self._residual(x, rows)[1].square().mean(-1)

    def mean_grad(self, x: Tensor, rows: Rows) -> Tensor:
        u, residual = self._residual(x, rows)
        pull = average(residual, rows[0])
        return (pull.reshape(*x.shape[:-1], self.size, self.size) @ u).flatten(-2)

    def state_facts(self) -> Facts:
        probes, readings = self.rows
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
            saddles=(Saddle(zeros(self.dim), 0.25 * float(readings.square().mean()), -top),),
            smoothness=gain * (3.0 * radius**2 + math.sqrt(self.rank)),
            hessian_lipschitz=6.0 * gain * radius,
            radius=radius,
            gradient_variance=spread,
        )


@dataclass(frozen=True)
class PhaseRetrieval(FiniteSum):
    r"""Recover a vector up to sign from the squares of random projections.

    f(x) = 1/(4m) \sum_i ((a_i' x)^2 - y_i)^2,   y_i = (a_i' x*)^2,  \|x*\| = 1

    Args:
        dim: d, the number of variables.
        num_samples: m, the number of measurements; 10 d or more.
        seed: of a_i, standard normal vectors, and of x*, a uniformly random unit vector.

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
    def rows(self) -> Rows:
        probes = gaussian(data_rng(self.seed), self.num_samples, self.dim)
        return probes, (probes @ self._solution).square()

    def mean_value(self, x: Tensor, rows: Rows) -> Tensor:
        return 0.25 * (project(rows[0], x).square() - rows[1]).square().mean(-1)

    def mean_grad(self, x: Tensor, rows: Rows) -> Tensor:
        z = project(rows[0], x)
        return average((z.square() - rows[1]) * z, rows[0])

    def mean_hvp(self, x: Tensor, v: Tensor, rows: Rows) -> Tensor:
        bend = 3.0 * project(rows[0], x).square() - rows[1]
        return average(bend * project(rows[0], v), rows[0])

    def state_facts(self) -> Facts:
        probes, readings = self.rows
        radius, origin = 2.0, zeros(self.dim)
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
        probes, count = self.rows[0], self.num_samples
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
            guess = gaussian(rng, self.dim)
            guess = guess - (guess @ self._solution) * self._solution
            found = critical_point(self, guess / (math.sqrt(3.0) * guess.norm()))
            if found is None or not 0.1 < float(found.norm()) < 0.9:
                continue
            lowest = torch.linalg.eigvalsh(self.hessian(found))
            if lowest[0] < -0.1 and lowest[-1] > 0.1:
                return (Saddle(found, float(self.value(found)), float(lowest[0]), 0.0),)
        return ()
