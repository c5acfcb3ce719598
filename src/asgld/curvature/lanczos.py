r"""The Lanczos process, and how far below its smallest Ritz value an eigenvalue can hide.

From a unit vector q_1, m products with H give

    H Q = Q T + beta_m q_{m+1} e_m',      T tridiagonal: diagonal alpha_j, off-diagonal beta_j,

The smallest eigenvalue theta_1 of T is a Rayleigh quotient, so lambda_min <= theta_1 is certain.
The other side depends on chance alone.

**Bound.** Let v be a unit eigenvector, H v = lambda v with lambda < theta_1, and y = Q'v. Then

    (T - lambda) y = -beta_m (q_{m+1}'v) e_m    and    |q_{m+1}'v| <= 1,

and by Cramer's rule the first entry of (T - lambda)^{-1} e_m is, up to sign,
beta_1 ... beta_{m-1} / det(T - lambda). The first entry of y is c = q_1'v, hence

    |c| <= beta_1 beta_2 ... beta_m / [(theta_1 - lambda) ... (theta_m - lambda)].        (1)

The right side falls as lambda falls. So if |c| > t, lambda cannot lie below the root lambda* of
"right side = t". For q_1 uniform on the sphere of R^d, and v fixed by H, c has density at most
Gamma(d/2) / (sqrt(pi) Gamma((d-1)/2)) for d >= 3, hence P(|c| <= t) <= p for t = `overlap(d, p)`.
The event |c| > t does not involve m: **with probability 1 - p, lambda_min >= lambda*_m for all m at
once**, so one may stop whenever the bound is good enough. With J independent starts
at least one has |c| > overlap(d, p^{1/J}) with probability 1 - p, and then the least of their J
bounds holds. The bound uses neither lambda_max nor orthogonality of Q, only the recurrence.

**A priori.** With u^{1/2} q(u) = T_{2m-1}(u^{1/2}), a Chebyshev polynomial, as filter, the same
argument gives theta_1 - lambda_min <= (lambda_max - theta_1) sinh^2(arccosh(1/t) / (2m - 1)):
`steps_needed`, the worst case. Bound (1) knows the actual Ritz values and is better where the
spectrum has gaps.

Kuczynski and Wozniakowski, "Estimating the largest eigenvalue by the power and Lanczos algorithms
with a random start", SIAM J. Matrix Anal. Appl. 13 (1992), study the a priori question for relative
errors; Paige, "Error analysis of the Lanczos algorithm" (1976), shows that the recurrence
holds to rounding error even where orthogonality is lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asgld.arguments import require
from asgld.curvature.operator import SymmetricOperator, require_symmetric

# Basis vectors come in blocks, so that memory grows with the steps taken, not with those allowed.
_BLOCK = 32


def overlap(dim: int, probability: float) -> float:
    """Largest t for which we can prove P(|<q, v>| <= t) <= probability, q uniform on the sphere."""
    density = math.exp(math.lgamma(dim / 2) - math.lgamma((dim - 1) / 2)) / math.sqrt(math.pi)
    return probability / (2 * density)


def steps_needed(
    dim: int, accuracy: float, *, confidence: float = 1 - 1e-6, starts: int = 2
) -> int:
    r"""Products after which, in the worst case, the smallest Ritz value is accurate.

    .. math:: \theta_1 - \lambda_{min} \le accuracy \cdot (\lambda_{max} - \lambda_{min})

    with probability at least `confidence`. Read it as a price list: the number grows like
    accuracy^(-1/2) and like log(dim).

    >>> steps_needed(10_000_000, accuracy=0.01)
    156
    """
    require(accuracy > 0, "accuracy", accuracy, "a positive fraction of the spectrum's width")
    check_chance(confidence, starts)
    t = overlap(max(dim, 3), (1 - confidence) ** (1 / starts))
    steps = math.ceil((math.acosh(1 / t) / math.asinh(math.sqrt(accuracy)) + 1) / 2)
    return starts * min(steps, dim)


def check_chance(confidence: float, starts: int) -> None:
    require(0 < confidence < 1, "confidence", confidence, "a number strictly between 0 and 1")
    require(isinstance(starts, int) and starts >= 1, "starts", starts, "a positive integer")


class Krylov:
    """One Lanczos run from `start`, extended step by step.

    The first `capacity` basis vectors are kept, each made orthogonal to all before, twice. After
    that the recurrence alone carries on, and `vectors` computes later ones again. Ritz values and
    the bound need no basis: without one, converged Ritz values repeat, which spoils neither.
    """

    def __init__(self, operator: SymmetricOperator, start: Tensor, capacity: int) -> None:
        self.operator = operator
        self.alphas: list[float] = []
        self.betas: list[float] = []
        self._capacity = max(2, capacity)
        self._blocks: list[Tensor] = []
        self._num_stored = 0
        self._previous: Tensor | None = None
        self._current = start / torch.linalg.vector_norm(start)
        self._ritz: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    @property
    def num_steps(self) -> int:
        return len(self.alphas)

    @property
    def is_exhausted(self) -> bool:
        """Whether the Krylov space is invariant: no further step is possible."""
        if not self.betas:
            return False
        scale = max(map(abs, self.alphas)) + max(self.betas)
        return self.num_steps >= self.operator.dim or self.betas[-1] <= 1e-300 + (
            4 * self.operator.unit_roundoff * scale
        )

    def extend(self) -> None:
        """Take one step: one product with the operator."""
        q = self._current
        self._store(q)
        w, alpha = self._recur(q, self._previous, self.betas[-1] if self.betas else 0.0)
        if self._num_stored > self.num_steps:
            size = max(_norm(w), abs(alpha), *map(abs, self.alphas))
            # A symmetric operator leaves nothing but rounding along older vectors.
            require_symmetric(self._orthogonalize(w), size)
            self._orthogonalize(w)
        beta = _norm(w)
        self.alphas.append(alpha)
        self.betas.append(beta)
        self._ritz = None
        self._previous = q
        self._current = w / beta if beta > 0 else w

    def checkpoints(self, max_steps: float = math.inf) -> Iterator[None]:
        """Extend until no step is left, and pause where a look at the run is worth its price.

        A look decomposes T, which costs m^3: the next one is a tenth more steps away, or the last.
        """
        check_at, is_last = 1, False
        while not is_last:
            self.extend()
            is_last = self.num_steps >= max_steps or self.is_exhausted
            if is_last or self.num_steps >= check_at:
                check_at = self.num_steps + 1 + self.num_steps // 10
                yield

    def ritz(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Ritz values, ascending, and the eigenvectors of T as columns."""
        if self._ritz is None:
            off_diagonal = np.asarray(self.betas[:-1])
            tridiagonal = np.diag(np.asarray(self.alphas))
            tridiagonal += np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)
            values, vectors = np.linalg.eigh(tridiagonal)
            self._ritz = values, vectors
        return self._ritz

    def smallest_vector(self) -> Tensor:
        """The Ritz vector of the smallest Ritz value, up to rounding of unit length."""
        return self.vectors(self.ritz()[1][:, :1])[:, 0]

    def hidden_below(self, t: float, error: float = 0.0) -> float:
        """theta_1 - lambda*: how far below the Ritz values an eigenvector with |c| > t can lie.

        `error` is the size, along that eigenvector, of the rounding errors of the recurrence. It
        adds error / (theta_1 - lambda) to the right side of (1); each of the two may have t / 2.
        """
        values = self.ritz()[0]
        return self._hidden(values - values[0], t, error)

    def hidden_above(self, t: float, error: float = 0.0) -> float:
        """How far above the largest Ritz value such an eigenvector can lie."""
        values = self.ritz()[0]
        return self._hidden(values[-1] - values, t, error)

    def vectors(self, coefficients: NDArray[np.float64]) -> Tensor:
        """Q times `coefficients` of shape (num_steps, k), as a (dim, k) tensor.

        Basis vectors that were not kept are computed again, which costs one product each.
        """
        weights = torch.from_numpy(coefficients).to(self._current)
        stored = self._num_stored
        total = self._combine(weights[:stored])
        if self.num_steps == stored:
            return total
        previous, q = self._basis_vector(stored - 2), self._basis_vector(stored - 1)
        beta = self.betas[stored - 2]
        for j in range(stored - 1, self.num_steps - 1):
            # The operations of `extend` in its order: the same vectors, bit for bit, if the
            # operator repeats its products; if not, at least no growth.
            w, _ = self._recur(q, previous, beta)
            if j < stored:
                self._orthogonalize(w)
                self._orthogonalize(w)
            beta = _norm(w)
            previous, q = q, w / beta
            total += torch.outer(q, weights[j + 1])
        return total

    def _recur(self, q: Tensor, previous: Tensor | None, beta: float) -> tuple[Tensor, float]:
        """H q without its parts along the last two basis vectors, and the part along q."""
        w = self.operator(q)
        if previous is not None:
            w = w - beta * previous
        alpha = dot(q, w)
        return w - alpha * q, alpha

    def _hidden(self, gaps: NDArray[np.float64], t: float, error: float) -> float:
        """The root of sum log(gaps + shift) = sum log(beta) - log(t), if there are no errors."""
        if error > 0:
            return max(self._hidden(gaps, t / 2, 0.0), 2 * error / t)
        if self.betas[-1] == 0.0:
            return 0.0
        target = float(np.log(np.asarray(self.betas)).sum()) - math.log(t)
        logs = np.log(np.maximum(gaps, 1e-320))
        # shift^m <= product of (gap + shift), with equality where all gaps vanish.
        high = target / len(gaps)
        low = high - 1.0
        while np.logaddexp(logs, low).sum() > target:
            low -= 2 * (high - low)
        for _ in range(60):
            middle = (low + high) / 2
            is_above = np.logaddexp(logs, middle).sum() > target
            low, high = (low, middle) if is_above else (middle, high)
        return math.exp(high)

    def _store(self, q: Tensor) -> None:
        if self._num_stored == self._capacity or self._num_stored < self.num_steps:
            return
        row = self._num_stored % _BLOCK
        if row == 0:
            rows = min(_BLOCK, self._capacity - self._num_stored)
            self._blocks.append(q.new_empty(rows, q.numel()))
        self._blocks[-1][row] = q
        self._num_stored += 1

    def _filled_blocks(self) -> list[Tensor]:
        if not self._blocks:
            return []
        rest = self._num_stored - _BLOCK * (len(self._blocks) - 1)
        return [*self._blocks[:-1], self._blocks[-1][:rest]]

    def _basis_vector(self, j: int) -> Tensor:
        return self._blocks[j // _BLOCK][j % _BLOCK]

    def _combine(self, weights: Tensor) -> Tensor:
        total: Tensor = self._current.new_zeros(self._current.numel(), weights.shape[1])
        for block, rows in zip(self._filled_blocks(), torch.split(weights, _BLOCK), strict=True):
            total += block.T @ rows
        return total

    def _orthogonalize(self, w: Tensor) -> float:
        """Remove from w, in place, what lies along kept vectors; return the largest piece."""
        largest = 0.0
        for block in self._filled_blocks():
            overlaps = block @ w
            w -= overlaps @ block
            largest = max(largest, float(overlaps.abs().max()))
        return largest


def _norm(w: Tensor) -> float:
    return float(torch.linalg.vector_norm(w, dtype=torch.float64))


def dot(a: Tensor, b: Tensor) -> float:
    """Inner product accumulated in float64, also for float32 vectors."""
    if a.dtype == torch.float64:
        return float(torch.dot(a, b))
    return float((a * b).sum(dtype=torch.float64))
