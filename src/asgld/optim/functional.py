"""The update on lists of tensors, in torch's own operations: one by one, or as lists.

`_single_tensor_asgld` reads like the equation and is the truth in torch. `_multi_tensor_asgld` does
the same operations in the same order on lists. `asgld.optim.plan` has the step in a kernel, and
`asgld.reference` the same rule in NumPy. The noise of all is that of `asgld.noise`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor

from asgld import noise
from asgld.noise import Draw, Layout, Purpose
from asgld.optim import _memory
from asgld.optim.rule import Rule


class Tensors(NamedTuple):
    """The tensors of a step: lists with one entry per parameter."""

    params: list[Tensor]
    grads: list[Tensor]
    sums: list[Tensor | None]  # None where a step takes no power of D, and keeps no sum
    steps: list[Tensor]
    streams: list[int]
    layouts: list[Layout]
    momenta: list[Tensor | None]

    def written(self) -> list[Tensor]:
        """Return the tensors that a step writes to."""
        optional = [t for t in (*self.sums, *self.momenta) if t is not None]
        return [*self.params, *optional, *self.steps]

    def select(self, members: list[int]) -> Tensors:
        """Return the entries at these positions."""
        picked: Any = ([entries[i] for i in members] for entries in self)
        return Tensors(*picked)


def resolved(tensors: Tensors, beside: Sequence[Tensor] = ()) -> Tensors:
    """Return tensors with plain gradients: not negated or conjugated, with separate real and
    imaginary parts, in memory that the step does not write to. `beside` are further tensors that
    the step writes to."""
    written = _memory.Spans([*tensors.written(), *beside])
    if written.overlap():
        check_apart(tensors)
    grads = [_memory.real(g.resolve_conj()).resolve_neg() for g in tensors.grads]
    sizes = np.array([_memory.extent(g) for g in grads], np.uint64)
    for i in np.flatnonzero(written.meet([g.data_ptr() for g in grads], sizes)):
        grads[i] = grads[i].clone()
    return tensors._replace(grads=grads)


def check_apart(tensors: Tensors, beside: Sequence[Tensor] = ()) -> None:
    """Raise if a parameter shares memory with its own state, of which `beside` is a part."""
    for i, p in enumerate(tensors.params):
        if _memory.overlap([*tensors.select([i]).written(), *beside]):
            raise RuntimeError(
                f"a parameter of shape {tuple(p.shape)} and its state share memory; clone() one"
            )


def check_sums(are_complete: bool, rule: Rule) -> None:
    """Raise if a parameter has no sum of squares but the step divides by a power of D."""
    if not are_complete and rule.divides:
        raise ValueError(
            f"alpha={rule.alpha}, beta={rule.beta}: a parameter has no sum of squares, so it has "
            "no D to divide by; need alpha=0, and beta=0 or no noise. Or give it a sum"
        )


def asgld(
    tensors: Tensors,
    rule: Rule,
    *,
    as_lists: bool = False,
    normals: Sequence[Tensor] | None = None,
) -> None:
    """Take one step of the rule in place, in torch's own operations.

    Args:
        tensors: real tensors and their step counts; see `asgld.optim.state.collect`.
        rule: the knobs.
        as_lists: work on lists of tensors, with fewer calls.
        normals: the noise, in place of that of `asgld.noise`, if another D has scaled it.
    """
    check_sums(all(total is not None for total in tensors.sums), rule)
    lr = rule.lr
    if isinstance(lr, Tensor):
        rule = rule._replace(lr=lr.squeeze() if lr.dim() else lr)
    if as_lists and normals is None:
        _multi_tensor_asgld(tensors, rule)
    else:
        _single_tensor_asgld(tensors, rule, normals)


class Coefficients(NamedTuple):
    """The numbers that all coordinates of a tensor share at step k. They are 0-dim tensors if k or
    lr is on a device, since the host must not wait for it."""

    lr: float | Tensor
    noise: float | Tensor  # standard deviation before D scales it
    keep: float | Tensor  # factor of x after weight decay
    correction: float | Tensor  # D = correction S + shift
    shift: float | Tensor
    bound: Any  # of the normalized gradient
    gain: float | Tensor  # weight of the newest gradient step in the momentum


def coefficients(rule: Rule, k: int | Tensor, dtype: torch.dtype) -> Coefficients:
    """Return the coefficients of step k. The kernels have the same formulas."""
    lr = rule.lr
    gain: float | Tensor = 1.0 - rule.momentum
    at: Any = k.double() if isinstance(k, Tensor) else k
    later = at.clamp(min=1.0) if isinstance(k, Tensor) else max(k, 1)
    scale = _noise_scale(rule)
    if rule.annealing != 0.0:
        scale = scale * _narrow(later ** (-rule.annealing / 2), dtype)
    bound = math.inf if rule.clip is None else _power(later, rule.clip)
    correction: Any = 1.0
    if rule.decay is None:
        shift = rule.d_init + rule.delta * at
    elif not rule.fills:
        shift = rule.delta + rule.decay**at * rule.d_init
    else:
        shift = rule.delta
    if rule.noise_bound is not None and rule.has_noise:
        shift = shift + _floor(rule, scale, later)
    if rule.fills:
        correction = 1.0 / (1.0 - rule.decay**later)  # type: ignore[operator]
        # There is no D yet to scale the first gradient: the gradient only enters the average.
        is_first = at == 0
        if isinstance(is_first, Tensor):
            moves = (~is_first).to(dtype)
            lr, scale, gain = lr * moves, scale * moves, gain * moves
            shift = torch.where(is_first, 1.0, shift + 0.0 * at)  # in double, as `at` is
            correction = torch.where(is_first, 0.0, correction)
        elif is_first:
            return Coefficients(0.0, 0.0, 1.0, 0.0, 1.0, bound, 0.0)
    keep = 1.0 - lr * rule.weight_decay
    return Coefficients(
        lr, scale, keep, _narrow(correction, dtype), _narrow(shift, dtype),
        _narrow(bound, dtype), gain,
    )  # fmt: skip


class Guard:
    """Undoes a step if its count or lr is on a device, so that the host has not checked it, and is
    illegal."""

    def __init__(self, lr: float | Tensor, k: int | Tensor, written: list[Tensor]) -> None:
        self._is_legal: Tensor | None = None
        if _is_unseen(k):
            self._is_legal = (k >= 0) & (k <= noise.MAX_STEP)
        if _is_unseen(lr):
            is_legal = (lr >= 0) & (lr < math.inf)
            self._is_legal = is_legal if self._is_legal is None else self._is_legal & is_legal
        self._written = [] if self._is_legal is None else [(t, t.clone()) for t in written]

    def restore(self) -> None:
        """Write back what was there, if the count or lr is illegal."""
        for tensor, before in self._written:
            assert self._is_legal is not None
            tensor.copy_(torch.where(self._is_legal.to(tensor.device), tensor, before))

    def finish(self, step: Tensor) -> None:
        self.restore()
        step.add_(1 if self._is_legal is None else self._is_legal.to(step.device, step.dtype))


def _is_unseen(value: Any) -> TypeGuard[Tensor]:
    """Whether the host has not checked a value, since it would have to wait for a device."""
    return isinstance(value, Tensor) and (not value.is_cpu or torch.compiler.is_compiling())


def _noise_scale(rule: Rule) -> float | Tensor:
    if rule.noise is not None:
        return rule.lr * rule.noise
    if isinstance(rule.lr, Tensor):
        return torch.sqrt(2.0 * rule.lr) * rule.sigma
    return math.sqrt(2.0 * rule.lr) * rule.sigma


def _floor(rule: Rule, scale: float | Tensor, later: Any) -> Any:
    """Return the least D at which the noise step is within its bound."""
    assert rule.noise_bound is not None
    bound = rule.noise_bound * rule.lr * later**0.5
    if isinstance(bound, Tensor):
        return torch.where(bound > 0.0, (scale / bound) ** (2.0 / rule.beta), 0.0).double()
    return _power(scale / bound, 2.0 / rule.beta) if bound > 0.0 else 0.0


def _power(base: Any, exponent: float) -> Any:
    try:
        return base**exponent
    except OverflowError:  # of floats; tensors and C have an infinity there
        return math.inf


def _narrow(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) else value


def _single_tensor_asgld(
    tensors: Tensors, rule: Rule, normals: Sequence[Tensor] | None = None
) -> None:
    for i, row in enumerate(zip(*tensors, strict=True)):
        param, grad, total, step, stream, layout, momentum = row
        k = read_count(step, rule)
        dtype = working_dtype(param)
        c = coefficients(rule, k, dtype)
        guard = Guard(rule.lr, k, [t for t in (param, total, momentum) if t is not None])
        x = param.to(dtype)  # the parameter itself where no conversion is needed
        g = -grad.to(dtype) if rule.maximize else grad.to(dtype)

        if rule.weight_decay != 0.0:
            x.mul_(c.keep)
        if rule.divides:
            assert total is not None
            metric = metric_of(total.to(dtype), c, rule)
        drift = g if rule.alpha == 0.0 else g * inverse_power(metric, rule.alpha)
        if rule.clip is not None:
            drift = drift.clamp(-c.bound, c.bound)
        if rule.momentum != 0.0:
            assert momentum is not None
            _add_scaled(momentum.mul_(rule.momentum), drift, c.gain)
            # Autograd may save this tensor, so the next step must not change it.
            average = momentum.clone() if torch.is_grad_enabled() else momentum
            drift = _heeded([average], [g], rule.opposed)[0]
        _add_scaled(x, drift, -c.lr)
        if rule.has_noise:
            if normals is None:
                z = noise.torch_normals(rule.seed, [Draw(stream, k, layout)], dtype, x.device)[0]
                z = z.view(x.shape)
            else:
                z = normals[i]
            if rule.beta != 0.0:
                z.mul_(inverse_power(metric, rule.beta))
            _add_scaled(x, z, c.noise)

        if total is not None:
            squared = total.to(dtype)
            if rule.decay is None:
                squared.addcmul_(g, g)
            else:
                squared.mul_(rule.decay).addcmul_(g, g, value=1.0 - rule.decay)
            if squared is not total:
                store(total, squared, Draw(stream, k, layout), rule, shift=16)
        if x is not param:
            store(param, x, Draw(stream, k, layout), rule)
        guard.finish(step)


def _multi_tensor_asgld(tensors: Tensors, rule: Rule) -> None:
    written = tensors.written()
    # Tensors that share memory are updated one by one. torch's lists take no negated tensors.
    if _memory.overlap(written) or any(t.is_neg() for t in written):
        _single_tensor_asgld(tensors, rule)
        return
    groups: dict[tuple[torch.device, torch.dtype, torch.dtype | None], list[int]] = {}
    for i, (param, total) in enumerate(zip(tensors.params, tensors.sums, strict=True)):
        sum_dtype = None if total is None else total.dtype
        groups.setdefault((param.device, param.dtype, sum_dtype), []).append(i)
    for members in groups.values():
        _multi_tensor_group(tensors.select(members), rule)


def _multi_tensor_group(tensors: Tensors, rule: Rule) -> None:
    params, grads, all_sums, steps, streams, layouts, momenta = tensors
    sums = [total for total in all_sums if total is not None]  # all of them, or none
    ks = [read_count(step, rule) for step in steps]
    dtype = working_dtype(params[0])
    device = params[0].device
    each = [coefficients(rule, k, dtype) for k in ks]
    guards = [
        Guard(rule.lr, k, [t for t in written if t is not None])
        for k, *written in zip(ks, params, all_sums, momenta, strict=True)
    ]
    xs = [param.to(dtype) for param in params]
    gs = [grad.to(dtype) for grad in grads]
    if rule.maximize:
        gs = list(torch._foreach_neg(gs))
    working_sums = [total.to(dtype) for total in sums]

    if rule.weight_decay != 0.0:
        _foreach_multiply(xs, [c.keep for c in each])
    if rule.divides:
        metric = working_sums
        if rule.decay is not None:
            metric = [total.clone() for total in working_sums]
            _foreach_multiply(metric, [c.correction for c in each])
        metric = _foreach_shift(metric, [c.shift for c in each])
        torch._foreach_add_(metric, metric, alpha=0)  # as `visible` does
        inverse = _foreach_inverse_power(metric, rule.alpha)
    drift = gs if rule.alpha == 0.0 else list(torch._foreach_mul(gs, inverse))
    if rule.clip is not None:
        drift = [u.clamp(-c.bound, c.bound) for u, c in zip(drift, each, strict=True)]
    if rule.momentum != 0.0:
        averages = [m for m in momenta if m is not None]
        torch._foreach_mul_(averages, rule.momentum)
        _foreach_add_scaled(averages, drift, [c.gain for c in each])
        drift = _heeded(averages, gs, rule.opposed)
    _foreach_add_scaled(xs, drift, [c.lr for c in each], sign=-1)
    draws = [Draw(s, k, layout) for s, k, layout in zip(streams, ks, layouts, strict=True)]
    if rule.has_noise:
        flat = noise.torch_normals(rule.seed, draws, dtype, device)
        zs = [z.view(x.shape) for z, x in zip(flat, xs, strict=True)]
        if rule.beta != 0.0:
            if rule.beta != rule.alpha:
                inverse = _foreach_inverse_power(metric, rule.beta)
            torch._foreach_mul_(zs, inverse)
        _foreach_add_scaled(xs, zs, [c.noise for c in each])

    if sums:
        if rule.decay is None:
            torch._foreach_addcmul_(working_sums, gs, gs)
        else:
            torch._foreach_mul_(working_sums, rule.decay)
            torch._foreach_addcmul_(working_sums, gs, gs, value=1.0 - rule.decay)
        for total, squared, draw in zip(sums, working_sums, draws, strict=True):
            if squared is not total:
                store(total, squared, draw, rule, shift=16)
    for param, x, draw in zip(params, xs, draws, strict=True):
        if x is not param:
            store(param, x, draw, rule)
    for step, guard in zip(steps, guards, strict=True):
        guard.finish(step)


def working_dtype(param: Tensor) -> torch.dtype:
    """Return the dtype in which a parameter's step is worked out."""
    return torch.float64 if param.dtype in (torch.float64, torch.complex128) else torch.float32


def read_count(step: Tensor, rule: Rule) -> int | Tensor:
    """Return k as a number, or as a tensor if the host must not wait for it."""
    if rule.capturable or torch.compiler.is_compiling():
        return step.clone()  # the noise needs this value after the counter has changed
    return int(step)


def _add_scaled(into: Tensor, value: Tensor, scale: float | Tensor) -> None:
    if isinstance(scale, Tensor):
        into.add_(value * scale)
    else:
        into.add_(value, alpha=scale)


def _heeded(momenta: list[Tensor], grads: list[Tensor], opposed: float) -> list[Tensor]:
    """Return momenta with the factor `opposed` where they point against the newest gradients."""
    if opposed == 1.0:
        return momenta
    agreement = torch._foreach_sign(momenta)
    torch._foreach_mul_(agreement, torch._foreach_sign(grads))
    torch._foreach_clamp_min_(agreement, opposed)
    return list(torch._foreach_mul(momenta, agreement))


def metric_of(total: Tensor, c: Coefficients, rule: Rule) -> Tensor:
    """Return D of a sum, or of an average, in the working dtype."""
    return visible((total if rule.decay is None else total * c.correction) + c.shift)


def visible(metric: Tensor) -> Tensor:
    """Return D, with NaN where it is infinite. What is divided by an infinite D is zero, and would
    look like a coordinate that waits, for ever."""
    return metric.add(metric, alpha=0)  # D + 0 D


def inverse_power(metric: Tensor, exponent: float) -> Tensor:
    """Return D^(-exponent/2). The common exponents cost a fraction of a general power."""
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


def _foreach_shift(values: list[Tensor], by: list[float | Tensor]) -> list[Tensor]:
    if isinstance(by[0], Tensor):
        return [value + c for value, c in zip(values, by, strict=True)]
    return list(torch._foreach_add(values, [float(c) for c in by]))


def _foreach_multiply(values: list[Tensor], by: list[float | Tensor]) -> None:
    if isinstance(by[0], Tensor):
        for value, c in zip(values, by, strict=True):
            value.mul_(c)
    else:
        torch._foreach_mul_(values, [float(c) for c in by])


def _foreach_add_scaled(
    into: list[Tensor], values: list[Tensor], scales: list[float | Tensor], sign: int = 1
) -> None:
    first = sign * scales[0]
    # Comparing tensors would wait for the device.
    is_mixed = any(s is not scales[0] and (isinstance(s, Tensor) or s != scales[0]) for s in scales)
    if is_mixed:
        for x, value, scale in zip(into, values, scales, strict=True):
            _add_scaled(x, value, sign * scale)
    elif isinstance(first, Tensor):
        torch._foreach_add_(into, torch._foreach_mul(values, first))
    else:
        torch._foreach_add_(into, values, alpha=first)


def store(
    into: Tensor,
    value: Tensor,
    draw: Draw,
    rule: Rule,
    shift: int = 0,
    purpose: Purpose = Purpose.ROUND,
) -> None:
    """Round `value` to the narrower dtype of `into`, in place. `purpose` and `shift` select the
    random bits of an element: `shift` a half of its word."""
    if rule.stochastic_rounding and into.dtype in (torch.bfloat16, torch.float16):
        word = noise.torch_words(rule.seed, draw, purpose, value.device) >> shift
        into.copy_(noise.round_stochastically(value.float().contiguous(), word, into.dtype))
    else:
        into.copy_(value)
