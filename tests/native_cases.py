"""One parameter for the C kernel, and one step of it: what its tests share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import take_kernel_step
from torch import Tensor

from asgld.optim import _native

NEEDS_KERNEL = [
    pytest.mark.skipif(
        _native.unavailable_reason() is not None, reason=str(_native.unavailable_reason())
    ),
    pytest.mark.usefixtures("best_build"),
]

SEED, STREAM, STEP = 0x123456789ABCDEF0, 77, 9
KNOBS: dict[str, Any] = {
    "lr": 0.05,
    "alpha": 1.0,
    "beta": 1.0,
    "sigma": 0.3,
    "delta": 0.01,
    "d_init": 0.5,
    "weight_decay": 0.0,
    "seed": SEED,
}


def draw(count: int, *, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)).to(dtype)


def problem(
    count: int, dtype: torch.dtype = torch.float32, sum_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a parameter, its gradient and its sum of squares."""
    if sum_dtype is None:
        sum_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    total = draw(count, seed=3).square() * 10.0 ** (draw(count, seed=4) * 2)
    return draw(count, seed=1, dtype=dtype), draw(count, seed=2, dtype=dtype), total.to(sum_dtype)


def step(
    param: Tensor,
    grad: Tensor,
    total: Tensor,
    average: Tensor | None = None,
    *,
    layout: tuple[int, int, int] | None = None,
    k: int = STEP,
    **knobs: Any,
) -> None:
    """Take step k of the kernel on one parameter."""
    momenta = None if average is None else [average]
    knobs = {**KNOBS, **knobs}
    take_kernel_step(
        _native.CpuTable, [param], [grad], [total], [STREAM], [k], [layout], momenta, **knobs
    )
