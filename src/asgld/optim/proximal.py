"""The proximal step of f + g, after the step of any backend.

The backend steps for f. Then x <- argmin_u g(u) + sum_i (u_i - x_i)^2 / (2 h_i): each coordinate
has its own step size, h = lr D^(-alpha/2), with the D that the backend has used. One mechanism
serves all backends: h is computed before they run, since they add the newest gradient to D.

The result for half-precision parameters is worked out in float32 and rounded a second time. With
`stochastic_rounding` that rounding is stochastic too, with random bits of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from asgld.noise import Draw, Purpose
from asgld.optim.functional import (
    Tensors,
    coefficients,
    inverse_power,
    metric_of,
    store,
    working_dtype,
)
from asgld.optim.rule import Rule
from asgld.prox import BoundPenalty, Penalty


def problem_with(p: Tensor, penalty: Penalty) -> str:
    """Say why a penalty cannot serve a parameter, or nothing."""
    if p.is_complex():
        return f"is of {p.dtype}: a penalty is for real numbers"
    cut = _cut_dimensions(p)
    if cut and not penalty.fits_shards(cut):
        return (
            f"is sharded along {', '.join(f'dimension {d}' for d in sorted(cut))}: a weight must "
            "then be a number, and the groups of a GroupLasso whole slices along dimension 0, "
            "groups=None, that only dimension 0 is sharded along"
        )
    try:
        penalties_of([p], penalty)
    except ValueError as error:
        return f"of shape {tuple(p.shape)}: prox does not fit: {error}"
    return ""


def penalties_of(params: Sequence[Tensor], penalty: Penalty) -> list[BoundPenalty]:
    """Return a penalty for the parts of parameters that this process holds."""
    held = [getattr(p, "_local_tensor", p) for p in params]
    homes = [torch.device("cpu") if p.is_meta else p.device for p in held]
    return [penalty.bound(p.shape, device=d) for p, d in zip(held, homes, strict=True)]


def _cut_dimensions(p: Tensor) -> set[int]:
    """Return the dimensions along which ranks hold parts of a parameter."""
    placements = getattr(p, "placements", ())
    sizes = p.device_mesh.shape if placements else ()  # type: ignore[attr-defined]
    return {
        placement.dim
        for placement, size in zip(placements, sizes, strict=True)
        if size > 1 and hasattr(placement, "dim")
    }


def step(
    take: Callable[[], None], tensors: Tensors, rule: Rule, penalties: Sequence[BoundPenalty]
) -> None:
    """Take the step of a backend, then the proximal steps.

    Args:
        take: takes the step of the backend, and adds 1 to each count unless nothing moved.
        tensors: the tensors of the step; gradients are not read.
        rule: the knobs.
        penalties: one per parameter.
    """
    with torch.no_grad():
        counts = [int(count) if count.is_cpu else count.clone() for count in tensors.steps]
        columns = (tensors.params, tensors.sums, counts)
        sizes = [_size(*row, rule) for row in zip(*columns, strict=True)]
        take()
        for i, penalty in enumerate(penalties):
            draw = Draw(tensors.streams[i], counts[i], tensors.layouts[i])
            _shrink(tensors.params[i], sizes[i], penalty, tensors.steps[i], draw, rule)


def _size(param: Tensor, total: Tensor | None, k: int | Tensor, rule: Rule) -> float | Tensor:
    """Return h: a tensor like the parameter, or one number where D scales no gradient."""
    dtype = working_dtype(param)
    lr = rule.lr
    if isinstance(lr, Tensor):
        lr = float(lr) if lr.is_cpu else lr.reshape(())
    c = coefficients(rule._replace(lr=lr), k, dtype)
    if rule.alpha == 0.0:
        return c.lr
    assert total is not None
    return c.lr * inverse_power(metric_of(total.to(dtype), c, rule), rule.alpha)


def _shrink(
    param: Tensor, h: float | Tensor, penalty: BoundPenalty, step: Tensor, draw: Draw, rule: Rule
) -> None:
    # A step that was skipped, for gradients that overflowed or an illegal lr, was not counted.
    x = penalty.points(param.detach().to(working_dtype(param)))
    h = penalty.points(h) if isinstance(h, Tensor) and h.dim() else h
    if isinstance(draw.step, Tensor):
        h = torch.where(step > draw.step, h if isinstance(h, Tensor) else x.new_full((), h), 0.0)
    elif int(step) == draw.step:
        return
    # The norm of a group that is lost could count as zero, and the group as shrunk to it. A step of
    # size 0 times a weight that is infinite in x's dtype is no number.
    moves = x.isfinite() & (h != 0.0)
    shrunk = torch.where(moves, penalty.shrink(x, h), x)
    store(param, shrunk.reshape(param.shape), draw, rule, purpose=Purpose.SHRINK)
