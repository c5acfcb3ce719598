"""Extreme eigenvalues of a matrix known by its products, with bounds that hold at a stated chance.

Up to `dense_below` dimensions the matrix is assembled and `eigh` is exact. Above, Lanczos runs from
several random starts; `asgld.curvature.lanczos` proves the bound. A fixed or an axis-aligned start
can be orthogonal to the direction sought and certify anything; a random start cannot, except with
the probability that is part of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from asgld.arguments import require
from asgld.curvature.lanczos import Krylov, check_chance, dot, overlap
from asgld.curvature.operator import SymmetricOperator, as_operator, check_symmetric

_MAX_REPAIRS, _REPAIR_STEPS = 5, 16


@dataclass(frozen=True)
class Effort:
    """How hard to search a spectrum; `lambda_min` says what each field means."""

    confidence: float = 1 - 1e-6
    starts: int = 2
    seed: int = 0
    max_hvp: int = 1000
    dense_below: int = 128
    max_bytes: int = 2**31

    def __post_init__(self) -> None:
        check_chance(self.confidence, self.starts)
        is_enough = isinstance(self.max_hvp, int) and self.max_hvp >= self.starts
        require(is_enough, "max_hvp", self.max_hvp, f"an integer >= starts={self.starts}")


@dataclass(frozen=True)
class Spectrum:
    """One end of a spectrum.

    =============  ==================================================================
    value          Rayleigh quotient of `vector`: a bound that is certain, up to rounding
    lower, upper   the eigenvalue lies between them with probability >= `confidence`
    vector         unit vector
    residual       norm of H vector - value vector
    confidence     1.0 where the matrix was assembled and decomposed
    other_end      Rayleigh quotient at the opposite end, of which less is known
    num_hvp        products used
    is_converged   whether every start reached upper - lower <= tol within max_hvp
    =============  ==================================================================
    """

    value: float
    lower: float
    upper: float
    vector: Tensor
    residual: float
    confidence: float
    other_end: float
    num_hvp: int
    is_converged: bool

    def __str__(self) -> str:
        how = "exactly" if self.confidence == 1.0 else f"with confidence {self.confidence:.7g}"
        return (
            f"{self.value:.6g}, in [{self.lower:.6g}, {self.upper:.6g}] {how} "
            f"(residual {self.residual:.1e}, {self.num_hvp} products)"
        )

    def __repr__(self) -> str:
        return f"<Spectrum {self}>"


class Enough(Enum):
    """Whether the bounds reached so far answer the caller's question."""

    NO = 0
    HERE = 1  # for this start; the others must agree
    PROVED = 2  # by a Rayleigh quotient: no other start can change it


@dataclass(frozen=True)
class Ends:
    """Both ends of the spectrum: Ritz values, and the bounds beyond them.

    `residual` is that of the smallest Ritz vector; `roundoff` the error of a Ritz value; `floor`
    the least that rounding lets a bound differ from it.
    """

    smallest: float = math.inf
    lower: float = math.inf
    largest: float = -math.inf
    upper: float = -math.inf
    residual: float = 0.0
    roundoff: float = 0.0
    floor: float = 0.0

    @property
    def is_at_floor(self) -> bool:
        """Whether rounding, not the number of steps, limits the bounds."""
        return max(self.smallest - self.lower, self.upper - self.largest) <= self.floor

    def widened(self, other: Ends) -> Ends:
        """The ends that hold if either of two runs is right."""
        return Ends(
            min(self.smallest, other.smallest),
            min(self.lower, other.lower),
            max(self.largest, other.largest),
            max(self.upper, other.upper),
            min((self, other), key=lambda ends: ends.smallest).residual,
            max(self.roundoff, other.roundoff),
            max(self.floor, other.floor),
        )


class SpectrumSearch:
    """Bounds on both ends of a spectrum, and the runs behind them, to build eigenvectors from.

    The search goes on until `judge` has enough of every start.
    """

    def __init__(
        self, operator: SymmetricOperator, judge: Callable[[Ends], Enough], effort: Effort
    ) -> None:
        self.operator = operator
        self.ends = Ends()
        self.is_enough = True
        self.is_exact = operator.dim <= max(effort.dense_below, 2)  # `overlap` needs three
        self._runs: list[Krylov] = []
        if self.is_exact:
            self._decompose()
            return
        dim, starts = operator.dim, effort.starts
        t = overlap(dim, (1 - effort.confidence) ** (1 / starts))
        itemsize = torch.finfo(operator.dtype).bits // 8
        capacity = effort.max_bytes // (starts * dim * itemsize)
        # Drawn on the CPU, so that a seed means the same starts on every device.
        generator = torch.Generator().manual_seed(effort.seed)
        for _ in range(starts):
            start = torch.randn(dim, generator=generator, dtype=torch.float64)
            run = Krylov(operator, start.to(operator.device, operator.dtype), capacity)
            for _ in run.checkpoints(min(effort.max_hvp // starts, dim)):
                ends = _ends(run, t)
                enough = judge(ends)
                if enough is not Enough.NO or ends.is_at_floor:
                    break
            self._runs.append(run)
            self.ends = self.ends.widened(ends)
            self.is_enough = self.is_enough and enough is not Enough.NO
            if enough is Enough.PROVED:
                break

    def _decompose(self) -> None:
        """Assemble the matrix and take all its eigenvalues."""
        matrix = self.operator.dense()
        asymmetry = check_symmetric(matrix)
        self._values, self._vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
        smallest, largest = float(self._values[0]), float(self._values[-1])
        scale = max(abs(smallest), abs(largest))
        roundoff = 4 * self.operator.unit_roundoff * scale + asymmetry
        self.ends = Ends(
            smallest, smallest - roundoff, largest, largest + roundoff, 0.0, roundoff, roundoff
        )

    def vectors_below(self, cut: float, at_most: int) -> Tensor:
        """Orthonormal (Ritz) vectors of values below `cut`, but at least one, as (dim, k)."""
        if self.is_exact:
            exact: Tensor = self._vectors[:, : max(1, int((self._values < cut).sum()))]
            return exact
        found = []
        for run in self._runs:
            values, coefficients = run.ritz()
            count = min(max(1, int((values < cut).sum())), at_most)
            found.append(run.vectors(coefficients[:, :count]))
        basis: Tensor = torch.linalg.qr(torch.cat(found, dim=1))[0]
        return basis

    def smallest_vector(self) -> tuple[Tensor, float, float]:
        """Unit vector of the smallest value, its Rayleigh quotient and its residual."""
        if self.is_exact:
            return self._rayleigh(self._vectors[:, 0])
        run = min(self._runs, key=lambda run: run.ritz()[0][0])
        vector, quotient, residual = self._rayleigh(run.smallest_vector())
        # Vectors computed again by products that do not repeat to the last bit come out impure.
        for _ in range(_MAX_REPAIRS):
            if quotient <= self.ends.smallest + residual / 10 + self.ends.roundoff:
                break
            run = Krylov(self.operator, vector, _REPAIR_STEPS)
            while run.num_steps < _REPAIR_STEPS and not run.is_exhausted:
                run.extend()
            vector, quotient, residual = self._rayleigh(run.smallest_vector())
        return vector, quotient, residual

    def _rayleigh(self, vector: Tensor) -> tuple[Tensor, float, float]:
        vector = vector / torch.linalg.vector_norm(vector)
        product = self.operator(vector)
        quotient = dot(vector, product)
        return vector, quotient, float(torch.linalg.vector_norm(product - quotient * vector))


def _ends(run: Krylov, t: float) -> Ends:
    values, coefficients = run.ritz()
    smallest, largest = float(values[0]), float(values[-1])
    scale = max(abs(smallest), abs(largest))
    roundoff = run.operator.unit_roundoff * scale * run.num_steps**0.5
    # Rounding errors have no preferred direction: 1/sqrt(dim) of them lies along one.
    error = roundoff / run.operator.dim**0.5
    return Ends(
        smallest,
        smallest - run.hidden_below(t, error),
        largest,
        largest + run.hidden_above(t, error),
        run.betas[-1] * abs(float(coefficients[-1, 0])),
        roundoff,
        max(2 * error / t, roundoff),
    )


def lambda_min(
    operator: Any,
    dim: int | None = None,
    *,
    tol: float | None = None,
    confidence: float = Effort.confidence,
    starts: int = Effort.starts,
    seed: int = Effort.seed,
    max_hvp: int = Effort.max_hvp,
    dense_below: int = Effort.dense_below,
    max_bytes: int = Effort.max_bytes,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Spectrum:
    """Smallest eigenvalue of a symmetric matrix that is known by its products with vectors.

    Args:
        operator: a torch callable v -> Hv (with `dim`), a dense matrix, or an object with `shape`
            and `@`: a scipy LinearOperator or sparse matrix, a curvlinops operator, a
            `ModelHessian`.
        dim: order of the matrix, for a callable.
        tol: stop when upper - lower <= tol; by default a thousandth of the spectrum's width.
        confidence: probability, over the random starts, that the eigenvalue is not below `lower`.
        starts: independent random starts.
        seed: seed of the starts.
        max_hvp: products allowed; when they run out, the bounds are wider and still hold. One
            more product is spent on the residual.
        dense_below: up to this dimension the matrix is assembled from `dim` products.
        max_bytes: memory for basis vectors, 2 GiB by default. Where it is too small for all, the
            recurrence goes on without them, and building the eigenvector costs the products again.
        dtype, device: of the vectors v given to the operator; float64 on the CPU unless the
            operator says otherwise.

    >>> H = torch.diag(torch.linspace(-0.01, 1, 500, dtype=torch.float64))
    >>> end = lambda_min(lambda v: H @ v, 500, tol=0.01)
    >>> end.lower <= -0.01 <= end.upper, end.upper - end.lower <= 0.01, end.num_hvp < 500
    (True, True, True)
    """
    require(tol is None or tol > 0, "tol", tol, "a positive number, or None for 0.001 of the width")
    effort = Effort(confidence, starts, seed, max_hvp, dense_below, max_bytes)
    matrix = as_operator(operator, dim, dtype=dtype, device=device)
    before = matrix.num_hvp

    def allowed(ends: Ends) -> float:
        return 1e-3 * (ends.largest - ends.smallest) if tol is None else tol

    def judge(ends: Ends) -> Enough:
        is_close = ends.smallest + ends.roundoff - ends.lower <= allowed(ends)
        return Enough.HERE if is_close else Enough.NO

    search = SpectrumSearch(matrix, judge, effort)
    vector, value, residual = search.smallest_vector()
    ends = search.ends
    is_close = search.is_enough and value - ends.smallest <= allowed(ends)
    return Spectrum(
        value=value,
        lower=min(ends.lower, value - ends.roundoff),
        upper=value + ends.roundoff,
        vector=vector,
        residual=residual,
        confidence=1.0 if search.is_exact else confidence,
        other_end=ends.largest,
        num_hvp=matrix.num_hvp - before,
        is_converged=search.is_exact or is_close,
    )


def lambda_max(operator: Any, dim: int | None = None, **options: Any) -> Spectrum:
    """Largest eigenvalue; the arguments are those of `lambda_min`.

    >>> lambda_max(torch.diag(torch.tensor([1.0, 5.0, -7.0]))).value
    5.0
    """
    dtype, device = options.pop("dtype", None), options.pop("device", None)
    matrix = as_operator(operator, dim, dtype=dtype, device=device)
    negated = SymmetricOperator(
        lambda v: -matrix(v), matrix.dim, dtype=matrix.dtype, device=matrix.device
    )
    end = lambda_min(negated, **options)
    return replace(
        end, value=-end.value, lower=-end.upper, upper=-end.lower, other_end=-end.other_end
    )
