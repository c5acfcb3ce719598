"""The update on lists of tensors: one functional form, three ways to run it.

`_single_tensor_asgld` reads like the equation and is the truth in torch; `_multi_tensor_asgld` does
the same operations in the same order on lists; `asgld.optim.fused` makes one pass in a kernel. All
three take their noise from the contract in `asgld.noise`. `asgld.reference` has the same rule in
NumPy.
"""

from __future__ import annotations

import math
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
    decay: float | None = None
    momentum: float = 0.0
    clip: float | None = None
    annealing: float = 0.0
    opposed: float = 1.0

    @property
    def has_noise(self) -> bool:
        return self.sigma != 0.0 and not math.isinf(self.beta)

    @property
    def fills(self) -> bool:
        """Whether the first gradient only fills the average, since there is no d_init before it."""
        return self.decay is not None and self.d_init == 0.0


class Tensors(NamedTuple):
    """What a step works on: lists with one entry per parameter."""

    params: list[Tensor]
    grads: list[Tensor]
    sums: list[Tensor]
    steps: list[Tensor]
    streams: list[int]
    layouts: list[Layout]
    momenta: list[Tensor | None]

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
    momenta: list[Tensor | None] | None = None,
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
        sums: S, the sums (with `decay`: averages) of squared gradients, shaped like
            `torch.view_as_real` of complex params.
        steps: k, 0-dim int64 tensors.
        streams, layouts: which noise each parameter gets; see `asgld.noise`.
        momenta: averages of normalized gradients, shaped like `sums`; needed with momentum alone.
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
    tensors = Tensors(params, grads, sums, steps, streams, layouts, momenta or [None] * len(params))
    if backend == "fused":
        from asgld.optim import fused

        fused.step(tensors, rule, grad_scale, found_inf)
    elif backend == "foreach":
        _multi_tensor_asgld(tensors, rule, capturable)
    else:
        _single_tensor_asgld(tensors, rule, capturable)


class Coefficients(NamedTuple):
    """The numbers that are the same for all coordinates of a tensor at step k. They are 0-dim
    tensors where they depend on what the host must not wait for: k or lr on a device."""

    lr: float | Tensor
    noise: float | Tensor  # standard deviation before D scales it
    keep: float | Tensor  # what weight decay leaves of x
    correction: float | Tensor  # D = correction S + shift
    shift: float | Tensor
    bound: Any  # of the normalized gradient
    gain: float | Tensor  # weight of the newest in the momentum


def coefficients(
    rule: Rule, k: int | Tensor, noise_scale: float | Tensor, dtype: torch.dtype
) -> Coefficients:
    """Return the coefficients of step k. This is the one place that knows how they change."""
    lr = rule.lr
    gain: float | Tensor = 1.0 - rule.momentum
    at: Any = k.double() if isinstance(k, Tensor) else k
    later = at.clamp(min=1.0) if isinstance(k, Tensor) else max(k, 1)
    if rule.annealing != 0.0:
        noise_scale = noise_scale * _narrow(later ** (-rule.annealing / 2), dtype)
    bound = math.inf if rule.clip is None else later**rule.clip
    correction: Any = 1.0
    if rule.decay is None:
        shift = rule.d_init + rule.delta * at
    elif not rule.fills:
        shift = rule.delta + rule.decay**at * rule.d_init
    else:
        shift = rule.delta
        correction = 1.0 / (1.0 - rule.decay**later)
        # The first gradient has no D to be scaled by: it only enters the average.
        is_first = at == 0
        if isinstance(is_first, Tensor):
            moves = (~is_first).to(dtype)
            lr, noise_scale, gain = lr * moves, noise_scale * moves, gain * moves
            shift = torch.where(is_first, 1.0, shift + 0.0 * at)  # in double, as `at` is
            correction = torch.where(is_first, 0.0, correction)
        elif is_first:
            return Coefficients(0.0, 0.0, 1.0, 0.0, 1.0, bound, 0.0)
    keep = 1.0 - lr * rule.weight_decay
    return Coefficients(
        lr, noise_scale, keep, _narrow(correction, dtype), _narrow(shift, dtype),
        _narrow(bound, dtype), gain,
    )  # fmt: skip


def _noise_scale(rule: Rule) -> float | Tensor:
    if isinstance(rule.lr, Tensor):
        return torch.sqrt(2.0 * rule.lr) * rule.sigma
    return math.sqrt(2.0 * rule.lr) * rule.sigma


def _narrow(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) else value


def _single_tensor_asgld(tensors: Tensors, rule: Rule, capturable: bool) -> None:
    scale = _noise_scale(rule)
    for param, grad, total, step, stream, layout, momentum in zip(*tensors, strict=True):
        k = _read(step, capturable)
        dtype = working_dtype(param)
        c = coefficients(rule, k, scale, dtype)
        x = param.to(dtype)  # the parameter itself where no conversion is needed
        g = -grad.to(dtype) if rule.maximize else grad.to(dtype)

        if rule.weight_decay != 0.0:
            x.mul_(c.keep)
        metric = total.to(dtype) + c.shift
        if rule.decay is not None:
            metric = total.to(dtype) * c.correction + c.shift
        drift = g if rule.alpha == 0.0 else g * _inverse_power(metric, rule.alpha)
        if rule.clip is not None:
            drift = drift.clamp(-c.bound, c.bound)
        if momentum is not None:
            _add_scaled(momentum.mul_(rule.momentum), drift, c.gain)
            # What autograd may hold on to must not change at the next step.
            average = momentum.clone() if torch.is_grad_enabled() else momentum
            drift = _heeded([average], [g], rule.opposed)[0]
        _add_scaled(x, drift, -c.lr)
        if rule.has_noise:
            z = noise.torch_normals(rule.seed, [Draw(stream, k, layout)], dtype, x.device)[0]
            z = z.view(x.shape)
            if rule.beta != 0.0:
                z.mul_(_inverse_power(metric, rule.beta))
            _add_scaled(x, z, c.noise)

        keep, weight = (1.0, 1.0) if rule.decay is None else (rule.decay, 1.0 - rule.decay)
        squared = total if total.dtype == dtype else total.to(dtype)
        if keep != 1.0:
            squared.mul_(keep)
        squared.addcmul_(g, g, value=weight)
        if squared is not total:
            _store(total, squared, Draw(stream, k, layout), rule, shift=16)
        if x is not param:
            _store(param, x, Draw(stream, k, layout), rule)
        step.add_(1)


def _multi_tensor_asgld(tensors: Tensors, rule: Rule, capturable: bool) -> None:
    groups: dict[tuple[torch.device, torch.dtype, torch.dtype], list[int]] = {}
    for i, (param, total) in enumerate(zip(tensors.params, tensors.sums, strict=True)):
        groups.setdefault((param.device, param.dtype, total.dtype), []).append(i)
    for members in groups.values():
        _multi_tensor_group(tensors.select(members), rule, capturable)


def _multi_tensor_group(tensors: Tensors, rule: Rule, capturable: bool) -> None:
    params, grads, sums, steps, streams, layouts, momenta = tensors
    ks = [_read(step, capturable) for step in steps]
    dtype = working_dtype(params[0])
    device = params[0].device
    scale = _noise_scale(rule)
    each = [coefficients(rule, k, scale, dtype) for k in ks]
    xs = [param.to(dtype) for param in params]
    gs = [grad.to(dtype) for grad in grads]
    if rule.maximize:
        gs = list(torch._foreach_neg(gs))
    working_sums = [total.to(dtype) for total in sums]

    if rule.weight_decay != 0.0:
        _foreach_multiply(xs, [c.keep for c in each])
    metric = working_sums
    if rule.decay is not None:
        metric = [total.clone() for total in working_sums]
        _foreach_multiply(metric, [c.correction for c in each])
    metric = _foreach_shift(metric, [c.shift for c in each])
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

    keep, weight = (1.0, 1.0) if rule.decay is None else (rule.decay, 1.0 - rule.decay)
    if keep != 1.0:
        torch._foreach_mul_(working_sums, keep)
    torch._foreach_addcmul_(working_sums, gs, gs, value=weight)
    for total, squared, draw in zip(sums, working_sums, draws, strict=True):
        if squared is not total:
            _store(total, squared, draw, rule, shift=16)
    for param, x, draw in zip(params, xs, draws, strict=True):
        if x is not param:
            _store(param, x, draw, rule)
    torch._foreach_add_(steps, 1)


def working_dtype(param: Tensor) -> torch.dtype:
    """Return the dtype in which a parameter's step is worked out."""
    return torch.float64 if param.dtype in (torch.float64, torch.complex128) else torch.float32


def _read(step: Tensor, capturable: bool) -> int | Tensor:
    """Return k as a number, or as the tensor itself where the host must not wait for it."""
    if capturable or torch.compiler.is_compiling():
        return step.clone()  # the noise needs its value after the counter has moved on
    return checked(int(step))


def checked(k: int) -> int:
    if k > noise.MAX_STEP:
        raise RuntimeError(
            f"step {k} is past the noise counter's 32 bits; start a new optimizer with another seed"
        )
    return k


def _add_scaled(into: Tensor, value: Tensor, scale: float | Tensor) -> None:
    if isinstance(scale, Tensor):
        into.add_(value * scale)
    else:
        into.add_(value, alpha=scale)


def _heeded(momenta: list[Tensor], grads: list[Tensor], opposed: float) -> list[Tensor]:
    """Return what a step takes of momenta, whose signs may not be those of the newest gradients."""
    if opposed == 1.0:
        return momenta
    agreement = torch._foreach_sign(momenta)
    torch._foreach_mul_(agreement, torch._foreach_sign(grads))
    torch._foreach_clamp_min_(agreement, opposed)
    return list(torch._foreach_mul(momenta, agreement))


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
    # Tensors are not compared: that would wait for the device.
    is_mixed = any(s is not scales[0] and (isinstance(s, Tensor) or s != scales[0]) for s in scales)
    if is_mixed:
        for x, value, scale in zip(into, values, scales, strict=True):
            _add_scaled(x, value, sign * scale)
    elif isinstance(first, Tensor):
        torch._foreach_add_(into, torch._foreach_mul(values, first))
    else:
        torch._foreach_add_(into, values, alpha=first)


def _store(into: Tensor, value: Tensor, draw: Draw, rule: Rule, shift: int = 0) -> None:
    """Round float32 `value` to the narrower dtype of `into`, in place; `shift` says which half of
    its random word an element takes."""
    if rule.stochastic_rounding and into.dtype in (torch.bfloat16, torch.float16):
        word = noise.torch_words(rule.seed, draw, Purpose.ROUND, value.device) >> shift
        into.copy_(noise.round_stochastically(value.contiguous(), word, into.dtype))
    else:
        into.copy_(value)
