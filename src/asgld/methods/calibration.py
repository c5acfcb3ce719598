"""Step size and noise from what a function shows at the start point."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asgld.methods.base import normals
from asgld.oracle import Oracle

_POWER_STEPS = 10
_MAX_DOUBLINGS = 40
# The noise never has more energy than this, summed over coordinates, in units of f or of curvature.
_TOTAL_SIGMA = 0.1
# One draw of `normals` that no method uses.
_STREAM = 0xCA11B


@dataclass(frozen=True)
class Scales:
    """What was measured: the largest curvature M and the largest squared gradient entry."""

    curvature: float
    squared_gradient: float


def measure_scales(oracle: Oracle, x0: Tensor, *, seed: int = 0) -> Scales:
    """Measure curvature and gradient at the start points, (R, d); the largest over rows count.

    Power iteration on Hessian-vector products estimates M from below. Then M is doubled until the
    gradient step of length 1/M lowers f as a function of curvature M must,
    f(x - g/M) <= f(x) - |g|^2 / (4 M). All calls are counted.
    """
    # A trial step may leave the domain, which is no fault of the user's.
    trials = oracle.open(len(x0), name="measurement", needs=frozenset({"value"}))
    if bool((x0 == x0[0]).all()):
        # Equal starts need one measurement.
        oracle, trials, x0 = oracle.rows(0), trials.rows(0), x0[:1]
    value, grad = oracle.value_and_grad(x0)
    direction = normals(seed, 0, x0, stream=_STREAM)
    curvature = torch.zeros(len(x0), dtype=x0.dtype)
    for _ in range(_POWER_STEPS):
        direction = direction / torch.linalg.vector_norm(direction, dim=-1, keepdim=True)
        product = oracle.hvp(x0, direction)
        norm = torch.linalg.vector_norm(product, dim=-1)
        curvature = torch.maximum(curvature, norm)
        direction = torch.where(norm[:, None] > 0, product, direction)
    squared = (grad * grad).sum(-1)
    # Without curvature the start is flat; a step of the gradient's own length is as good as any.
    curvature = torch.where(curvature > 0, curvature, torch.sqrt(squared).clamp(min=1.0))
    for _ in range(_MAX_DOUBLINGS):
        trial = trials.value(x0 - grad / curvature[:, None])
        is_long = ~(trial <= value - squared / (4.0 * curvature) + 1e-12 * value.abs())
        if not bool(is_long.any()):
            break
        curvature = torch.where(is_long, 2.0 * curvature, curvature)
    return Scales(float(curvature.max()), float((grad * grad).max()))


def langevin_defaults(scales: Scales, dim: int, options: dict[str, Any]) -> dict[str, Any]:
    r"""Fill in what `options` leaves open, by one rule for the whole family.

    .. math::
        d_\mathrm{init} = \max(1, \max_i g_i^2) \text{ if } \alpha > 0 \text{ else } 1, \quad
        \delta = d_\mathrm{init} / 100, \quad
        \mathrm{lr} = d_\mathrm{init}^{\alpha/2} / M, \quad
        \sigma = 0.1 \sqrt{\min(1, M) / d}

    The first step then is a gradient step of length 1/M whatever alpha is. The noise is small on
    purpose: the time to leave a saddle grows with log(1/sigma) only.
    """
    alpha = float(options["alpha"])
    filled = dict(options)
    d_init = filled.setdefault("d_init", max(1.0, scales.squared_gradient) if alpha > 0 else 1.0)
    filled.setdefault("delta", 1e-2 * d_init)
    filled.setdefault("lr", d_init ** (alpha / 2) / scales.curvature)
    filled.setdefault("sigma", _TOTAL_SIGMA * math.sqrt(min(1.0, scales.curvature) / dim))
    return filled
