"""The scales of coordinates, by curvature: what one step of descent should be long in each."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

# Curvatures below this are zero: their products with scales lose all digits.
SMALLEST = 1e-290
_EQUILIBRATIONS = 8
# Products of an estimate, and those of them after which the scales are corrected.
_PRODUCTS, _ROUND = 8, 2


def equilibration(matrix: Tensor) -> Tensor:
    """Scales s, so that the largest entry of each row of s_i H_ij s_j is about 1; 0 for rows of 0.

    Each pass divides by the root of the largest entry of a row (Ruiz 2001, for max norms).
    """
    size = matrix.abs()
    diagonal = size.diagonal()
    s = torch.where(diagonal > 0, diagonal.rsqrt(), 0.0)
    top = float(size.max())
    if top <= SMALLEST:
        return torch.zeros_like(s)
    s = torch.where(s > 0, s, 1.0 / math.sqrt(top))
    for _ in range(_EQUILIBRATIONS):
        largest = (s[:, None] * size * s).amax(1)
        s = torch.where(largest > 0, s / torch.sqrt(largest), 0.0)
    return s


def estimated_equilibration(product: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """The same from a few products with random signs, up to a small factor.

    A product with random signs has, in each row, about the norm of the row (Bradley and Murray,
    "Matrix-free approximate equilibration", 2011).
    """
    generator = torch.Generator().manual_seed(0)
    s = torch.ones_like(like)
    for _ in range(_PRODUCTS // _ROUND):
        squares = torch.zeros_like(like)
        for _ in range(_ROUND):
            signs = torch.randint(2, like.shape, generator=generator).to(like) * 2 - 1
            squares += (s * product(s * signs)).square()
        rows = (squares / _ROUND).sqrt()
        s = torch.where(rows > SMALLEST, s / torch.sqrt(rows), 0.0)
    return s
