"""Polar factors of matrices, in batches, in torch's own operations.

The polar factor of M is (M M^T)^(-1/2) M: the matrix with the singular vectors of M and all
singular values one. Muon steps along the polar factor of the momentum (Jordan et al., 2024).
`asgld.optim._triton_matrix` has the same for GPUs.

Products on a CPU are of float32. Those of bfloat16, which Muon takes everywhere, are faster on
processors that have them. Large matrices take them there if the user lets torch do so:
`torch.set_float32_matmul_precision("medium")`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from asgld.optim.functional import visible
from asgld.optim.rule import Rule

# Steps x <- a x + (b x x' + c (x x')^2) x that bring singular values close to one.
Polynomials = Sequence[tuple[float, float, float]]
# Amsel, Persson, Musco and Gower, arXiv 2505.16932, Algorithm 1: five steps, for x / 1.01, so that
# rounding cannot push a singular value out of the interval on which a step contracts.
_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
)
COEFFICIENTS: dict[str, Polynomials] = {
    "express": [(a / 1.01, b / 1.01**3, c / 1.01**5) for a, b, c in _EXPRESS],
    "muon": [(3.4445, -4.7750, 2.0315)] * 5,
}
# The root mean square of the entries of a direction, if the matrix has full rank: that of AdamW's
# steps (Liu et al., arXiv 2502.16982), so that lr means the same for all parameters.
STEP_SIZE = 0.2
# Shorter sides from which other products than torch.bmm's of float32 pay on a CPU, and symmetric
# ones by halves.
_LARGE, _HALVED = 128, 512


def polar_factors(batch: Tensor, polar_by: str, delta: float) -> Tensor:
    """Return the polar factor of each matrix of a batch (number, rows, columns).

    Args:
        batch: the matrices.
        polar_by: see the knob of this name.
        delta: the mean square of a matrix counts as at least delta, so the factor of a matrix that
            is almost zero is small. The factor of zero is zero.
    """
    norms = torch.linalg.vector_norm(batch, dim=(1, 2), keepdim=True, dtype=_sums(batch.dtype))
    floor = math.sqrt(delta * math.prod(batch.shape[1:]))
    if polar_by == "svd":
        exact = _exact(batch)
        return exact * (norms / floor).clamp(max=1.0) if floor else exact
    norms = visible(norms).clamp(min=floor)
    x = (batch / torch.where(norms == 0.0, 1.0, norms)).to(batch.dtype)
    is_tall = x.shape[1] > x.shape[2]
    if is_tall:
        x = x.mT
    x = _on_cpu(x, polar_by) if x.is_cpu and x.dtype == torch.float32 else _in_batch(x, polar_by)
    return x.mT if is_tall else x


def _in_batch(x: Tensor, polar_by: str) -> Tensor:
    """Return wide matrices after all iterations."""
    for a, b, c in COEFFICIENTS[polar_by]:
        gram = torch.bmm(x, x.mT)
        step = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, step, x, beta=a)
    return x


def _on_cpu(x: Tensor, polar_by: str) -> Tensor:
    """Return wide matrices of float32 after all iterations, by the fastest products."""
    if x.shape[1] >= _LARGE and len(x):
        may_round = torch.backends.mkldnn.matmul.fp32_precision == "bf16"  # type: ignore[attr-defined]
        if may_round and torch.cpu._is_avx512_bf16_supported():
            return _in_batch(x.bfloat16(), polar_by).float()
        if (multiply := _onednn()) is not None:
            return torch.stack([_iterated(one, polar_by, multiply) for one in x])
    return _in_batch(x, polar_by)


Product = Callable[[Tensor, Tensor], Tensor]


@functools.cache
def _onednn() -> Product | None:
    """Return (A, B) -> A B^T by oneDNN, or None where torch's own product is as fast. With AVX-512
    torch calls MKL, which on processors of AMD uses half the width."""
    linear = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if linear is None or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return None
    return lambda a, b: linear(a, b, None, "none", [], "")


def _iterated(x: Tensor, polar_by: str, multiply: Product) -> Tensor:
    """Return one wide matrix after all iterations."""
    for a, b, c in COEFFICIENTS[polar_by]:
        gram = _symmetric(multiply, x, x)
        step = gram * c
        step.diagonal().add_(b)
        step = _symmetric(multiply, step, gram)
        step.diagonal().add_(a)
        x = multiply(step, x.mT)
    return x


def _symmetric(multiply: Product, a: Tensor, b: Tensor) -> Tensor:
    """Return A B^T, which is symmetric, from its blocks on the diagonal and below."""
    if len(a) < _HALVED:
        return multiply(a, b)
    half = len(a) // 2
    above, below = slice(0, half), slice(half, len(a))
    out = a.new_empty(len(a), len(a))
    for block in (above, below):
        out[block, block] = _symmetric(multiply, a[block], b[block])
    out[below, above] = multiply(a[below], b[above])
    out[above, below] = out[below, above].mT
    return out


def _exact(batch: Tensor) -> Tensor:
    """Return polar factors by singular values. Those of a matrix that is not finite are NaN."""
    is_finite = batch.isfinite().all(2, keepdim=True).all(1, keepdim=True)
    u, values, v = _svd(torch.where(is_finite, batch, 0.0))
    least = values[:, :1] * max(batch.shape[1:]) * torch.finfo(batch.dtype).eps
    found: Tensor = (u * (values > least)[:, None, :]) @ v
    return torch.where(is_finite, found, math.nan)


def _svd(batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the SVD. Where the usual method does not converge, eigenvectors serve: the momentum
    has moved already, so nothing may raise here."""
    try:
        u, values, v = torch.linalg.svd(batch, full_matrices=False)
    except LinAlgError:
        wide, is_tall = batch.double(), batch.shape[1] > batch.shape[2]
        wide = wide.mT if is_tall else wide
        squares, u = torch.linalg.eigh(wide @ wide.mT)
        values, u = squares.flip(1).clamp(min=0.0).sqrt(), u.flip(2)
        v = u.mT @ wide / torch.where(values > 0.0, values, 1.0)[:, :, None]
        u, v = (v.mT, u.mT) if is_tall else (u, v)
    return u.to(batch.dtype), values.to(batch.dtype), v.to(batch.dtype)


def scale_rows(factors: Tensor, averages: Tensor | None, decay: float | None) -> Tensor:
    """Return directions of the step size. With `averages` of the mean squares of rows, update the
    averages, divide the rows by their roots, and restore the norm of each matrix.

    Args:
        factors: polar factors (number, rows, columns).
        averages: (number, rows), changed in place, or None.
        decay: of the averages; None lets them add up. Their common size does not matter.
    """
    size = STEP_SIZE * math.sqrt(max(factors.shape[1:]))
    if averages is None:
        return factors * size
    of_rows = factors.to(averages.dtype).square().mean(2)
    if decay is None:
        averages.add_(of_rows)
    else:
        averages.mul_(decay).add_(of_rows, alpha=1.0 - decay)
    # A row without a gradient so far has the average 0, and stays 0.
    inverse = torch.where(averages == 0.0, 1.0, visible(averages)).rsqrt()
    after = (of_rows * inverse.square()).sum(1, keepdim=True)
    restored = (of_rows.sum(1, keepdim=True) / torch.where(after == 0.0, 1.0, after)).sqrt()
    return factors * (inverse * restored * size).to(factors.dtype)[:, :, None]


def directions(
    batches: Sequence[Tensor],
    averages: Sequence[Tensor] | None,
    rule: Rule,
    squares: Tensor | None = None,
) -> list[Tensor]:
    """Return the directions of matrices in batches (number, rows, columns) of one dtype.

    Args:
        batches: sources, which may be overwritten.
        averages: of the mean squares of rows, for each batch; changed in place.
        rule: the knobs.
        squares: the squared norms of all sources, if they are known.
    """
    kernels = kernels_for(batches[0].device, rule) if batches else None
    if kernels is None or batches[0].dtype != torch.bfloat16:
        return [
            scale_rows(
                polar_factors(batch, rule.polar_by, rule.delta),
                None if averages is None else averages[i],
                rule.decay,
            )
            for i, batch in enumerate(batches)
        ]
    floors = [math.sqrt(rule.delta * math.prod(batch.shape[1:])) for batch in batches]
    found = kernels.polars(batches, COEFFICIENTS[rule.polar_by], squares, floors)
    for i, factors in enumerate(found):
        size = STEP_SIZE * math.sqrt(max(factors.shape[1:]))
        if averages is None:
            factors.mul_(size)
        else:
            kernels.scale_rows(factors, averages[i], rule.decay, size)
    return list(found)


def kernels_for(device: torch.device, rule: Rule) -> Any:
    """Return the module of kernels that serve a device, or None."""
    if device.type != "cuda" or rule.polar_by == "svd" or rule.fused is False:
        return None
    try:
        from asgld.optim import _triton, _triton_matrix
    except ImportError:
        return None
    return _triton_matrix if _triton.unavailable_reason() is None else None


def product_dtype(device: torch.device, dtype: torch.dtype, rule: Rule) -> torch.dtype:
    """Return the dtype of products for a working dtype: bfloat16 on a GPU, where it is many times
    faster than float32 and, as users of Muon found, precise enough."""
    is_half = device.type == "cuda" and dtype == torch.float32 and rule.polar_by != "svd"
    return torch.bfloat16 if is_half else dtype


def direction_dtype(device: torch.device, dtype: torch.dtype, rule: Rule) -> torch.dtype:
    """Return the dtype of `directions` for a working dtype. Kernels give float16: a direction has
    the range for it."""
    made_of = product_dtype(device, dtype, rule)
    is_half = made_of == torch.bfloat16 and kernels_for(device, rule) is not None
    return torch.float16 if is_half else made_of


def _sums(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype == torch.bfloat16 else dtype
