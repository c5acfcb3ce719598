"""Extreme eigenvalues of a matrix known by its products, with bounds that hold at a stated chance.

Up to `dense_below` dimensions the matrix is assembled and `eigh` is exact. Above, Lanczos runs from
several random starts; `asgld.curvature.lanczos` proves the bound. A fixed or an axis-aligned start
can be orthogonal to the direction sought and certify anything; random ones cannot, except with the
probability that is part of the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asgld.curvature.lanczos import Krylov, check_chance, dot, overlap
from asgld.curvature.operator import SymmetricOperator, as_operator, check_symmetric

DEFAULT_CONFIDENCE = 1 - 1e-6
DENSE_BELOW = 128
MAX_BYTES = 2**31
_MAX_REPAIRS, _REPAIR_STEPS = 5, 16


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


class Verdict(Enum):
    """What a caller says of the bounds reached so far."""

    GO_ON = 0
    ENOUGH = 1  # for this start; the others must agree
    PROVED = 2  # by a Rayleigh quotient: no other start can change it


@dataclass(frozen=True)
class Ends:
    """Both ends of the spectrum: Ritz values, and the bounds beyond them.

    `residual` is that of the smallest Ritz vector; `roundoff` the error of a Ritz value; `floor`
    the least that rounding lets a bound differ from it.
    """

    smallest: float
    lower: float
    largest: float
    upper: float
    residual: float = 0.0
    roundoff: float = 0.0
    floor: float = 0.0

    @property
    def is_at_floor(self) -> bool:
        """Whether rounding, not the number of steps, limits the bounds."""
        return max(self.smallest - self.lower, self.upper - self.largest) <= self.floor


class Search:
    """The runs behind an answer, kept to build eigenvectors from."""

    def __init__(self, operator: SymmetricOperator) -> None:
        self.operator = operator
        self.ends = Ends(np.inf, np.inf, -np.inf, -np.inf)
        self.is_exact = False
        self.is_enough = True
        self._runs: list[Krylov] = []
        self._values = torch.empty(0)
        self._vectors = torch.empty(0)

    def decompose(self) -> None:
        """Assemble the matrix and take all its eigenvalues."""
        operator = self.operator
        matrix = operator.dense()
        asymmetry = check_symmetric(matrix)
        self._values, self._vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
        smallest, largest = float(self._values[0]), float(self._values[-1])
        scale = max(abs(smallest), abs(largest))
        roundoff = 4 * operator.unit_roundoff * scale + asymmetry
        self.ends = Ends(
            smallest, smallest - roundoff, largest, largest + roundoff, 0.0, roundoff, roundoff
        )
        self.is_exact = True

    def add_run(
        self,
        start: Tensor,
        t: float,
        max_steps: int,
        capacity: int,
        judge: Callable[[Ends], Verdict],
    ) -> Verdict:
        """Run Lanczos from one start until `judge` has enough, and merge its bounds."""
        run = Krylov(self.operator, start, capacity)
        for _ in run.checkpoints(max_steps):
            ends = self._ends(run, t)
            verdict = judge(ends)
            if verdict is not Verdict.GO_ON or ends.is_at_floor:
                break
        self._runs.append(run)
        known = self.ends
        self.ends = Ends(
            min(known.smallest, ends.smallest),
            min(known.lower, ends.lower),
            max(known.largest, ends.largest),
            max(known.upper, ends.upper),
            min((known, ends), key=lambda e: e.smallest).residual,
            max(known.roundoff, ends.roundoff),
            max(known.floor, ends.floor),
        )
        self.is_enough = self.is_enough and verdict is not Verdict.GO_ON
        return verdict

    def _ends(self, run: Krylov, t: float) -> Ends:
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

    def vectors_below(self, cut: float, at_most: int) -> Tensor:
        """Orthonormal (Ritz) vectors of values below `cut`, but at least one, as (dim, k)."""
        if self.is_exact:
            count = max(1, int((self._values < cut).sum()))
            return self._vectors[:, :count]
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
        vector, quotient, residual = self._rayleigh(run.vectors(run.ritz()[1][:, :1])[:, 0])
        # Vectors computed again by products that do not repeat to the last bit come out impure.
        for _ in range(_MAX_REPAIRS):
            if quotient <= self.ends.smallest + residual / 10 + self.ends.roundoff:
                break
            run = Krylov(self.operator, vector, _REPAIR_STEPS)
            while run.num_steps < _REPAIR_STEPS and not run.is_exhausted:
                run.extend()
            vector, quotient, residual = self._rayleigh(run.vectors(run.ritz()[1][:, :1])[:, 0])
        return vector, quotient, residual

    def _rayleigh(self, vector: Tensor) -> tuple[Tensor, float, float]:
        vector = vector / torch.linalg.vector_norm(vector)
        product = self.operator(vector)
        quotient = dot(vector, product)
        residual = float(torch.linalg.vector_norm(product - quotient * vector))
        return vector, quotient, residual


def search_spectrum(
    operator: SymmetricOperator,
    judge: Callable[[Ends], Verdict],
    *,
    confidence: float,
    starts: int,
    seed: int,
    max_hvp: int,
    dense_below: int,
    max_bytes: int,
) -> Search:
    """Bound both ends of the spectrum until `judge` has enough of every start."""
    check_chance(confidence, starts)
    if not isinstance(max_hvp, int) or max_hvp < starts:
        raise ValueError(f"max_hvp={max_hvp!r}: need an integer of at least starts={starts}")
    search = Search(operator)
    if operator.dim <= max(dense_below, 2):  # the density in `overlap` needs three dimensions
        search.decompose()
        return search
    t = overlap(operator.dim, (1 - confidence) ** (1 / starts))
    itemsize = torch.finfo(operator.dtype).bits // 8
    capacity = max_bytes // (starts * operator.dim * itemsize)
    # Drawn on the CPU, so that a seed means the same starts on every device.
    generator = torch.Generator().manual_seed(seed)
    for _ in range(starts):
        start = torch.randn(operator.dim, generator=generator, dtype=torch.float64)
        start = start.to(device=operator.device, dtype=operator.dtype)
        verdict = search.add_run(start, t, min(max_hvp // starts, operator.dim), capacity, judge)
        if verdict is Verdict.PROVED:
            break
    return search


def lambda_min(
    operator: Any,
    dim: int | None = None,
    *,
    tol: float | None = None,
    confidence: float = DEFAULT_CONFIDENCE,
    starts: int = 2,
    seed: int = 0,
    max_hvp: int = 1000,
    dense_below: int = DENSE_BELOW,
    max_bytes: int = MAX_BYTES,
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
        max_hvp: products allowed; the bounds hold, if wider, when it runs out. One more
            is spent on the residual.
        dense_below: up to this dimension the matrix is assembled from `dim` products.
        max_bytes: memory for basis vectors, 2 GiB by default. Where it is too small for all, the
            recurrence goes on without them, and building the eigenvector costs the products again.
        dtype, device: of the vectors v given to the operator; float64 on the CPU unless the
            operator says otherwise.

    >>> H = torch.diag(torch.linspace(-0.01, 1, 500, dtype=torch.float64))
    >>> end = lambda_min(lambda v: H @ v, 500, tol=1e-3)
    >>> end.lower <= -0.01 <= end.upper, end.upper - end.lower <= 1e-3, end.num_hvp < 500
    (True, True, True)
    """
    if tol is not None and not tol > 0:
        raise ValueError(f"tol={tol}: need a positive number, or None for 0.001 of the width")
    matrix = as_operator(operator, dim, dtype=dtype, device=device)
    before = matrix.num_hvp

    def allowed(ends: Ends) -> float:
        return 1e-3 * (ends.largest - ends.smallest) if tol is None else tol

    def is_close(ends: Ends) -> bool:
        return ends.smallest + ends.roundoff - ends.lower <= allowed(ends)

    search = search_spectrum(
        matrix,
        lambda ends: Verdict.ENOUGH if is_close(ends) else Verdict.GO_ON,
        confidence=confidence,
        starts=starts,
        seed=seed,
        max_hvp=max_hvp,
        dense_below=dense_below,
        max_bytes=max_bytes,
    )
    vector, value, residual = search.smallest_vector()
    ends = search.ends
    return Spectrum(
        value=value,
        lower=min(ends.lower, value - ends.roundoff),
        upper=value + ends.roundoff,
        vector=vector,
        residual=residual,
        confidence=1.0 if search.is_exact else confidence,
        other_end=ends.largest,
        num_hvp=matrix.num_hvp - before,
        is_converged=search.is_exact
        or (search.is_enough and value - ends.smallest <= allowed(ends)),
    )


def lambda_max(operator: Any, dim: int | None = None, **options: Any) -> Spectrum:
    """Largest eigenvalue; the arguments are those of `lambda_min`.

    >>> lambda_max(np.diag([1.0, 5.0, -7.0])).value
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
