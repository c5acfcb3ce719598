"""Shapes of D beside the paper's: one number, one per row, or a matrix on one side or on both.

A parameter counts as one or more matrices of n rows and m columns, see `size_of`. D is built of
S(G), and multiplies a gradient or noise by a power:

=======  ===================================  ==========================================
shape    S(G)                                 D^(-exponent/2) W
=======  ===================================  ==========================================
scalar   mean of G*G                          number times W
row      mean over columns of G*G             each row of W times its number
left     G G^T / m                            matrix times W
both     G G^T / m and G^T G / n              L^(-exponent/4) W R^(-exponent/4)
=======  ===================================  ==========================================

All of these divide by the number of terms, so D has the units and about the size of the squared
gradient of a coordinate. At m = 1 "left" is full-matrix Adagrad. `asgld.reference` has the same in
NumPy. `asgld.optim.polar` has the polar forms, whose D is not built from the past.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from asgld.optim.functional import Coefficients, visible
from asgld.optim.rule import Rule


def size_of(shape: Sequence[int], blocks: int) -> tuple[int, int]:
    """Return the rows and columns of each matrix in a parameter.

    >>> size_of((64, 3, 5, 5), 1)       # a convolution
    (64, 75)
    >>> size_of((96, 32), 3)            # queries, keys and values in one weight
    (32, 32)
    >>> size_of((8, 64, 32), 8)         # a stack of eight experts
    (64, 32)
    """
    first = shape[0] if len(shape) else 1
    if len(shape) > 2 and 1 < blocks == first:
        return shape[1], math.prod(shape[2:])
    return first // blocks, math.prod(shape[1:])


def problem_with(param: Tensor, rule: Rule) -> str:
    """Say why a parameter cannot have a D of this shape, or nothing."""
    if param.is_complex():
        return f"is complex, and shape={rule.shape!r} needs real numbers"
    first = param.shape[0] if param.dim() else 1
    if first % rule.blocks:
        return f"has {first} rows, which blocks={rule.blocks} does not divide"
    return ""


def sizes_of_sums(shape: Sequence[int], rule: Rule) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the entries of a state that D is built of, by name."""
    blocks, (rows, columns) = rule.blocks, size_of(shape, rule.blocks)
    sizes: dict[str, dict[str, tuple[int, ...]]] = {
        "scalar": {"sum": (blocks,)},
        "row": {"sum": (blocks, rows)},
        "left": {"sum": (blocks, rows, rows)},
        "both": {"sum": (blocks, rows, rows), "right": (blocks, columns, columns)},
        "polar": {},
        "polar-row": {"sum": (blocks, rows)},
    }
    return sizes[rule.shape]


def squares(g: Tensor, shape: str) -> list[Tensor]:
    """Return S(G) of a matrix: one for "sum", and for "both" one for "right"."""
    rows, columns = g.shape
    if shape == "scalar":
        return [g.square().mean()]
    if shape == "row":
        return [g.square().mean(1)]
    g = g.double()  # as the sums are: powers of a matrix need more digits than float32 has
    left = g @ g.mT / columns
    return [left] if shape == "left" else [left, g.mT @ g / rows]


class Metric:
    """D of one matrix at one step.

    Args:
        sums: the entries of the state that belong to the matrix.
        coefficients: those of the step; D = correction S + shift.
        shape: of D.
    """

    def __init__(self, sums: Sequence[Tensor], coefficients: Coefficients, shape: str) -> None:
        self._shape = shape
        correction, shift = coefficients.correction, coefficients.shift
        if shape in ("scalar", "row"):
            self._values = visible(sums[0] * correction + shift)
            return
        self._least = float(shift)
        self._spectra = []
        for total in sums:
            metric = total * correction
            metric.diagonal().add_(shift)
            self._spectra.append(_spectrum(metric))

    def apply(self, w: Tensor, exponent: float) -> Tensor:
        """Return D^(-exponent/2) W, in new memory."""
        if exponent == 0.0:
            return w.clone()
        if self._shape == "scalar":
            return w * self._values.pow(-exponent / 2)
        if self._shape == "row":
            return w * self._values.pow(-exponent / 2)[:, None]
        sides = len(self._spectra)
        wide = self._power(0, exponent / sides) @ w.double()
        if sides == 2:
            wide = wide @ self._power(1, exponent / sides)
        return wide.to(w.dtype)

    def _power(self, side: int, exponent: float) -> Tensor:
        values, vectors = self._spectra[side]
        # S is positive, so D has no eigenvalue below its shift but by rounding.
        scaled = values.clamp(min=self._least).pow(-exponent / 2)
        return (vectors * scaled) @ vectors.mT


def _spectrum(metric: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors. They are NaN if the matrix is not finite, so that a
    gradient that is not finite shows in the parameter, as with a D per coordinate."""
    try:
        found = torch.linalg.eigh(metric)
        # One NaN among the eigenvalues is enough: their powers are multiplied by whole vectors.
        return found.eigenvalues.add(metric.diagonal(), alpha=0), found.eigenvectors
    except LinAlgError:
        if not bool(metric.isfinite().all()):
            return torch.full_like(metric[0], math.nan), torch.full_like(metric, math.nan)
        # Rarely, eigh does not converge where eigenvalues repeat. The matrix is symmetric and
        # positive, so its singular vectors are its eigenvectors.
        vectors, values, _ = torch.linalg.svd(metric)
        return values, vectors
