"""The update on lists of tensors: one functional form, three ways to run it.

`_single_tensor_asgld` reads like the equation and is the truth in torch; `_multi_tensor_asgld` does
the same operations in the same order on lists; `_fused_asgld` makes one pass in a kernel. All three
take their noise from the contract in `asgld.noise`. `asgld.reference` has the same rule in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asgld import noise
from asgld.noise import Draw, Layout, Purpose


class Rule(NamedTuple):
    """The knobs of one parameter group."""

    lr: float | Tensor
    alpha: float
    beta: float
    sigma: float
    delta: float
    d_init: float
    weight_decay: float
    seed: int
    maximize: bool
    stochastic_rounding: bool

    @property
    def has_noise(self) -> bool:
        return self.sigma != 0.0 and not math.isinf(self.beta)


class Tensors(NamedTuple):
    """What a step works on: lists with one entry per parameter."""

    params: list[Tensor]
    grads: list[Tensor]
    sums: list[Tensor]
    steps: list[Tensor]
    streams: list[int]
    layouts: list[Layout]

    def select(self, members: list[int]) -> Tensors:
        """Return the entries with these positions."""
        picked: Any = ([entries[i] for i in members] for entries in self)
        return Tensors(*picked)


def asgld(
    params: list[Tensor],
    grads: list[Tensor],
    sums: list[Tensor],
    steps: list[Tensor],
    streams: list[int],
    layouts: list[Layout],
    *,
    backend: str,
    capturable: bool = False,
    rule: Rule,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """Take one step of the rule on lists of tensors, in place. See :class:`asgld.ASGLD`.

    Args:
        params, grads: what is updated, and its gradients.
        sums: S, the sums of squared gradients, shaped like `torch.view_as_real` of complex params.
        steps: k, 0-dim int64 tensors.
        streams, layouts: which noise each parameter gets; see `asgld.noise`.
        backend: "loop", "foreach" or "fused".
        capturable: keep the step count on the device; the host never reads it.
        rule: the knobs.
        grad_scale, found_inf: from a gradient scaler, for the fused backend alone.
    """
    if not params:
        return
    lr = rule.lr
    if isinstance(lr, Tensor):
        rule = rule._replace(lr=lr.squeeze() if lr.dim() else lr)
    # A complex number is two real coordinates, each with its own noise and its own D.
    params = [torch.view_as_real(p) if p.is_complex() else p for p in params]
    grads = [torch.view_as_real(g) if g.is_complex() else g for g in grads]
    tensors = Tensors(params, grads, sums, steps, streams, layouts)
    if backend == "fused":
        _fused_asgld(tensors, rule, grad_scale, found_inf)
    elif backend == "foreach":
        _multi_tensor_asgld(tensors, rule, capturable)
    else:
        _single_tensor_asgld(tensors, rule, capturable)


def _single_tensor_asgld(tensors: Tensors, rule: Rule, capturable: bool) -> None:
    for param, grad, total, step, stream, layout in zip(*tensors, strict=True):
        k = _read(step, capturable)
        dtype = _working_dtype(param)
        x = param.to(dtype)  # the parameter itself where no conversion is needed
        g = -grad.to(dtype) if rule.maximize else grad.to(dtype)

        if rule.weight_decay != 0.0:
            x.mul_(1.0 - rule.lr * rule.weight_decay)
        metric = total.to(dtype) + _constant(rule, k, dtype)
        drift = g if rule.alpha == 0.0 else g * _inverse_power(metric, rule.alpha)
        if isinstance(rule.lr, Tensor):
            x.sub_(rule.lr * drift)
        else:
            x.add_(drift, alpha=-rule.lr)
        if rule.has_noise:
            z = noise.torch_normals(rule.seed, [Draw(stream, k, layout)], dtype, x.device)[0]
            z = z.view(x.shape)
            if rule.beta != 0.0:
                z.mul_(_inverse_power(metric, rule.beta))
            scale = _noise_scale(rule)
            if isinstance(scale, Tensor):
                x.add_(z.mul_(scale))
            else:
                x.add_(z, alpha=scale)

        if total.dtype == dtype:
            total.addcmul_(g, g)
        else:
            squared = torch.addcmul(total.to(dtype), g, g)
            _store(total, squared, Draw(stream, k, layout), Purpose.ROUND_SUM, rule)
        if x is not param:
            _store(param, x, Draw(stream, k, layout), Purpose.ROUND_PARAMETER, rule)
        step.add_(1)


def _multi_tensor_asgld(tensors: Tensors, rule: Rule, capturable: bool) -> None:
    groups: dict[tuple[torch.device, torch.dtype, torch.dtype], list[int]] = {}
    for i, (param, total) in enumerate(zip(tensors.params, tensors.sums, strict=True)):
        groups.setdefault((param.device, param.dtype, total.dtype), []).append(i)
    for members in groups.values():
        _multi_tensor_group(tensors.select(members), rule, capturable)


def _multi_tensor_group(tensors: Tensors, rule: Rule, capturable: bool) -> None:
    params, grads, sums, steps, streams, layouts = tensors
    ks = [_read(step, capturable) for step in steps]
    dtype = _working_dtype(params[0])
    device = params[0].device
    xs = [param.to(dtype) for param in params]
    gs = [grad.to(dtype) for grad in grads]
    if rule.maximize:
        gs = list(torch._foreach_neg(gs))
    working_sums = [total.to(dtype) for total in sums]

    if rule.weight_decay != 0.0:
        torch._foreach_mul_(xs, 1.0 - rule.lr * rule.weight_decay)
    metric = _foreach_shift(working_sums, [_constant(rule, k, dtype) for k in ks])
    inverse = _foreach_inverse_power(metric, rule.alpha)
    drift = gs if rule.alpha == 0.0 else list(torch._foreach_mul(gs, inverse))
    if isinstance(rule.lr, Tensor):
        torch._foreach_sub_(xs, torch._foreach_mul(drift, rule.lr))
    else:
        torch._foreach_add_(xs, drift, alpha=-rule.lr)
    draws = [Draw(s, k, layout) for s, k, layout in zip(streams, ks, layouts, strict=True)]
    if rule.has_noise:
        flat = noise.torch_normals(rule.seed, draws, dtype, device)
        zs = [z.view(x.shape) for z, x in zip(flat, xs, strict=True)]
        if rule.beta != 0.0:
            if rule.beta != rule.alpha:
                inverse = _foreach_inverse_power(metric, rule.beta)
            torch._foreach_mul_(zs, inverse)
        scale = _noise_scale(rule)
        if isinstance(scale, Tensor):
            torch._foreach_mul_(zs, scale)
            torch._foreach_add_(xs, zs)
        else:
            torch._foreach_add_(xs, zs, alpha=scale)

    torch._foreach_addcmul_(working_sums, gs, gs)
    for total, squared, draw in zip(sums, working_sums, draws, strict=True):
        if squared is not total:
            _store(total, squared, draw, Purpose.ROUND_SUM, rule)
    for param, x, draw in zip(params, xs, draws, strict=True):
        if x is not param:
            _store(param, x, draw, Purpose.ROUND_PARAMETER, rule)
    torch._foreach_add_(steps, 1)


def _fused_asgld(
    tensors: Tensors, rule: Rule, grad_scale: Tensor | None, found_inf: Tensor | None
) -> None:
    from asgld.optim import _native

    if found_inf is not None and bool(found_inf):
        return  # parameters, sums, steps and with them the noise counters all stay
    params, grads, sums, steps, streams, layouts = tensors
    # A kernel wants memory in row-major order; what is not gets a copy for the length of the call.
    dense = [p if p.is_contiguous() else p.contiguous() for p in params]
    dense_sums = [s if s.is_contiguous() else s.contiguous() for s in sums]
    _native.step(
        dense,
        [g if g.is_contiguous() else g.contiguous() for g in grads],
        dense_sums,
        streams,
        [_checked(int(step)) for step in steps],
        [layout.rows for layout in layouts],
        grad_scale=None if grad_scale is None else float(grad_scale),
        **{**rule._asdict(), "lr": float(rule.lr), "sigma": rule.sigma if rule.has_noise else 0.0},
    )
    for copy, original in (*zip(dense, params, strict=True), *zip(dense_sums, sums, strict=True)):
        if copy is not original:
            original.copy_(copy)
    torch._foreach_add_(steps, 1)


def fused_unavailable_reason(params: Sequence[Tensor], layouts: Sequence[Layout]) -> str | None:
    """Return why no kernel can serve these parameters, or None where one can."""
    for param, layout in zip(params, layouts, strict=True):
        if param.device.type != "cpu":
            return f"there is no kernel for device {param.device.type!r} yet, only for 'cpu'"
        if layout.rows is None:
            return "a parameter is sharded along two inner dimensions, which no kernel addresses"
    try:
        from asgld.optim import _native
    except ImportError:
        return "the native kernel is not part of this installation"
    return _native.unavailable_reason()


def _working_dtype(param: Tensor) -> torch.dtype:
    return torch.float64 if param.dtype == torch.float64 else torch.float32


def _read(step: Tensor, capturable: bool) -> int | Tensor:
    """Return k as a number, or as the tensor itself where the host must not wait for it."""
    if capturable or torch.compiler.is_compiling():
        return step.clone()  # the noise needs its value after the counter has moved on
    return _checked(int(step))


def _checked(k: int) -> int:
    if k > noise.MAX_STEP:
        raise RuntimeError(
            f"step {k} is past the noise counter's 32 bits; start a new optimizer with another seed"
        )
    return k


def _constant(rule: Rule, k: int | Tensor, dtype: torch.dtype) -> float | Tensor:
    """Return d_init + delta k, the part of D that is the same for all coordinates."""
    if isinstance(k, Tensor):
        return (k.double() * rule.delta + rule.d_init).to(dtype)
    return rule.d_init + rule.delta * k


def _noise_scale(rule: Rule) -> float | Tensor:
    if isinstance(rule.lr, Tensor):
        return torch.sqrt(2.0 * rule.lr) * rule.sigma
    return math.sqrt(2.0 * rule.lr) * rule.sigma


def _inverse_power(metric: Tensor, exponent: float) -> Tensor:
    """Return D^(-exponent/2); the cases in use cost a fraction of a general power."""
    if exponent == 1.0:
        return metric.rsqrt()
    if exponent == 2.0:
        return metric.reciprocal()
    return metric.pow(-exponent / 2)


def _foreach_inverse_power(metric: list[Tensor], exponent: float) -> list[Tensor]:
    if exponent == 1.0:
        return list(torch._foreach_rsqrt(metric))
    if exponent == 2.0:
        return list(torch._foreach_reciprocal(metric))
    return list(torch._foreach_pow(metric, -exponent / 2))


def _foreach_shift(sums: list[Tensor], constants: list[float | Tensor]) -> list[Tensor]:
    if isinstance(constants[0], Tensor):
        return [total + c for total, c in zip(sums, constants, strict=True)]
    return list(torch._foreach_add(sums, [float(c) for c in constants]))


def _store(into: Tensor, value: Tensor, draw: Draw, purpose: Purpose, rule: Rule) -> None:
    """Round float32 `value` to the narrower dtype of `into`, in place."""
    if rule.stochastic_rounding and into.dtype in (torch.bfloat16, torch.float16):
        word = noise.torch_words(rule.seed, draw, purpose, value.device)
        into.copy_(noise.round_stochastically(value.contiguous(), word, into.dtype))
    else:
        into.copy_(value)
