"""Derivatives by differences, with steps that follow the point; and a test of other derivatives.

A central difference over a step h has a truncation error of order h^2 and a rounding error of
order eps / h, both relative to how fast f varies. So h must be a fixed part, eps^(1/3), of the
length over which f varies, and that length may differ from one coordinate to the next: a fixed h is
wrong at x = 1e6 and at x = 1e-8. Its best guess is the coordinate's own magnitude. A coordinate
that happens to be near zero has too small a magnitude; the difference is then lost in rounding,
which shows, and the step is lengthened until it is not, up to eps^(1/3) for coordinates below 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Bounds = tuple[Tensor, Tensor]

# A difference is believed where f changes by this part of what it would change by at its own scale.
_VISIBLE = 0.03
# Coordinates closer to zero than this, relative to the largest, have no magnitude of their own.
_TINY = 1e-12
_MAX_TRIALS = 6
_MIN_LENGTHENING = 10.0
# The test of a product: steps in units of eps^(1/3), and how far differences may be from each other
# relative to their distance from the product.
_FACTORS = (4.0, 1.0, 16.0)
_CONTRADICTION = 0.1
_CERTAINTY = 100.0


def magnitudes(x: Tensor) -> Tensor:
    """The length scale of each coordinate of x, (..., d): its magnitude, and a floor near zero.

    A coordinate that is zero says nothing of its scale. It gets that of the others, their geometric
    mean, so that points of 1e-8 are moved by less than that; but at most 1, since others that are
    large (a date, a population) say nothing about it. Where all are zero it is 1.
    """
    size = x.abs()
    largest = size.amax(-1, keepdim=True)
    is_zero = size <= _TINY * largest.clamp(max=1.0)
    logs = torch.where(is_zero, 0.0, size.clamp(min=1e-300).log())
    count = (~is_zero).sum(-1, keepdim=True)
    mean = (logs.sum(-1, keepdim=True) / count.clamp(min=1)).exp()
    floor = torch.where(count > 0, mean.clamp(max=1.0), torch.ones_like(mean))
    return torch.where(is_zero, floor, size)


def gradient_of_values(
    value: Callable[[Tensor], float], x: Tensor, *, eps: float, bounds: Bounds | None = None
) -> Tensor:
    """Gradient at x, (d,), by central differences of values: 2 d of them, a few more near zero.

    At a bound, differences are one-sided, of second order, and stay inside.
    """
    step = eps ** (1 / 3)
    result = torch.empty_like(x)
    center: float | None = None

    def at(i: int, distance: float) -> tuple[float, float]:
        """The value at a distance along coordinate i, and the distance as rounded."""
        point = x.clone()
        point[i] += distance
        return value(point), float(point[i] - x[i])

    for i, scale in enumerate(magnitudes(x).tolist()):
        low, high = math.inf, math.inf
        if bounds is not None:
            low, high = float(x[i] - bounds[0][i]), float(bounds[1][i] - x[i])
        h, longest = step * scale, min(step * max(scale, 1.0), max(low, high) / 2)
        for _ in range(_MAX_TRIALS):
            is_central = h <= min(low, high)
            if not is_central:  # a bound is too close: two steps away from it
                center = value(x) if center is None else center
                h = min(h, max(low, high) / 2)
                inward = h if high >= low else -h
                (near, a), (far, b) = at(i, inward), at(i, 2 * inward)
                result[i] = ((near - center) * b / a - (far - center) * a / b) / (b - a)
            else:
                (near, a), (far, b) = at(i, h), at(i, -h)
                result[i] = (near - far) / (a - b)
            size = max(abs(near), abs(far))
            rise = abs(near - far)
            if _MIN_LENGTHENING * h > longest or not rise < _VISIBLE * step * size:
                break
            center = value(x) if center is None else center
            bend = abs((near - center) + (far - center)) if is_central else 0.0
            if not bend < _VISIBLE**2 * step**2 * size:
                break
            h = min(longest, h * _lengthening(rise, bend, size, step, eps))
    return result


def _lengthening(rise: float, bend: float, size: float, step: float, eps: float) -> float:
    """By how much a step is to grow until f changes visibly."""
    noise = 4 * eps * size
    by_rise = step * size / rise if rise > noise else math.inf
    by_bend = math.sqrt(step**2 * size / bend) if bend > noise else math.inf
    return min(max(min(by_rise, by_bend), _MIN_LENGTHENING), 1000.0)


def product_of_gradients(
    grad: Callable[..., Tensor],
    x: Tensor,
    v: Tensor,
    *indices: Tensor,
    eps: float,
    bounds: Bounds | None = None,
) -> Tensor:
    """Hessian times v by central differences of gradients, at rows x and v of shape (R, d).

    The step is as long as it may be for the coordinate that v moves most, relative to its scale.

    Args:
        grad: gradients of rows, with the rows of `indices` where they are given.
        eps: relative error of a gradient.
    """
    step = eps ** (1 / 3)
    scale = magnitudes(x)
    speed, slowest = (v.abs() / scale).amax(-1), (v.abs() / scale.clamp(min=1.0)).amax(-1)
    h, longest = step / speed.clamp(min=1e-300), step / slowest.clamp(min=1e-300)
    result = torch.zeros_like(x)
    reach = torch.full_like(h, math.inf)
    if bounds is not None:
        room = torch.minimum(x - bounds[0], bounds[1] - x)
        reach = torch.where(v != 0, room / v.abs(), math.inf).amin(-1)
    todo = (speed > 0).nonzero()[:, 0]
    for _ in range(_MAX_TRIALS):
        is_blocked = h[todo] > reach[todo]
        for row in todo[is_blocked].tolist():
            own = [t[row : row + 1] for t in (x, v, *indices)]
            assert bounds is not None
            lengths = (float(h[row]), float(longest[row]))
            result[row] = _product_at_bound(grad, *own, lengths=lengths, step=step, bounds=bounds)
        todo = todo[~is_blocked]
        if len(todo) == 0:
            break
        move = h[todo, None] * v[todo]
        rows = torch.cat((x[todo] + move, x[todo] - move))
        ahead, behind = grad(rows, *(t[todo].repeat(2, 1) for t in indices)).chunk(2)
        rise = ahead - behind
        result[todo] = rise / (2.0 * h[todo, None])
        signal = (scale[todo] * rise).norm(dim=-1)
        size = (scale[todo] * (ahead.abs() + behind.abs())).norm(dim=-1)
        is_lost = (signal < _VISIBLE * step * size) & (_MIN_LENGTHENING * h[todo] <= longest[todo])
        factor = (step * size / signal.clamp(min=1e-300)).clamp(_MIN_LENGTHENING, 1e4)
        h[todo] = torch.minimum(longest[todo], h[todo] * factor)
        todo = todo[is_lost]
    return result


def _product_at_bound(
    grad: Callable[..., Tensor],
    x: Tensor,
    v: Tensor,
    *indices: Tensor,
    lengths: tuple[float, float],
    step: float,
    bounds: Bounds,
) -> Tensor:
    """Hessian times v for one row, by one-sided differences into the box.

    v is split in two: coordinates that it moves away from their nearer bound, and the others, which
    are moved backward.
    """
    low, high = x - bounds[0], bounds[1] - x
    inward = torch.where(high >= low, 1.0, -1.0).to(v)
    scale = magnitudes(x)
    result = torch.zeros_like(x)
    center = grad(x, *indices)
    for sign in (1.0, -1.0):
        part = torch.where(sign * v * inward > 0, v, torch.zeros_like(v))
        if not bool(part.any()):
            continue
        room = torch.where(part != 0, torch.maximum(low, high) / part.abs(), math.inf).amin()
        h, longest = (min(length, float(room) / 2) for length in lengths)
        for _ in range(_MAX_TRIALS):
            near = grad(x + sign * h * part, *indices)
            far = grad(x + 2 * sign * h * part, *indices)
            product = sign * (4 * (near - center) - (far - center)) / (2 * h)
            signal = float((scale * (far - center)).norm())
            size = float((scale * (far.abs() + center.abs())).norm())
            if _MIN_LENGTHENING * h > longest or not signal < _VISIBLE * step * size:
                break
            factor = step * size / max(signal, 1e-300)
            h = min(longest, h * min(max(factor, _MIN_LENGTHENING), 1e4))
        result += product
    return result[0]


def contradicts(
    grad: Callable[..., Tensor],
    product: Callable[..., Tensor],
    x: Tensor,
    *indices: Tensor,
    eps: float,
) -> bool:
    """Whether gradients prove wrong what `product` says of the Hessian at x, a single row (1, d).

    The product is believed unless the proof is complete, for at least one coordinate:

    - central differences over three steps agree with each other, so that neither rounding nor a
      step longer than the scale of f can be at work;
    - they are `_CERTAINTY` times farther from the product than from each other and than rounding
      can explain, and farther than a tenth of its size;
    - the product itself is the same at both ends of the shortest step. By the fundamental theorem a
      difference is the mean of the products along the step: where those vary, there is something
      finer than the step, and nothing is proved.

    The direction moves every coordinate by a random part of its own scale, and coordinates are
    compared one by one, so that the test does not depend on units. It takes two gradients and a
    product where the first difference agrees, six gradients and three products at most.
    """
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(2, x.shape[-1], generator=generator, dtype=x.dtype).to(x.device)
    scale = magnitudes(x)
    v = scale * (0.5 + 0.5 * draws[0]) * torch.where(draws[1] < 0.5, -1.0, 1.0)
    found = product(x, v, *indices)
    shortest = min(_FACTORS) * eps ** (1 / 3)
    quotients, noise = [], torch.zeros_like(x)
    for factor in _FACTORS:
        h = factor * eps ** (1 / 3)
        ahead, behind = grad(x + h * v, *indices), grad(x - h * v, *indices)
        size = ahead.abs() + behind.abs()
        # Rounding of a coordinate's gradient, its own or what the largest leaves behind.
        noise = torch.maximum(noise, eps * torch.maximum(size, (scale * size).amax() / scale) / h)
        quotients.append((ahead - behind) / (2 * h))
        gap = (quotients[-1] - found).abs()
        larger = torch.maximum(quotients[-1].abs(), found.abs())
        if not bool(torch.isfinite(gap).all()):
            return False
        if bool((gap <= _CONTRADICTION * larger + noise).all()):
            return False
    several = torch.stack(quotients)
    spread = several.amax(0) - several.amin(0)
    least = several.abs().amin(0)
    gap = (several - found).abs().amin(0)
    larger = torch.maximum(several.abs().amax(0), found.abs())
    is_wrong = (gap > _CONTRADICTION * larger) & (gap > _CERTAINTY * torch.maximum(spread, noise))
    is_wrong &= least > 0
    if not bool(is_wrong.any()):
        return False
    ends = torch.stack([product(x + s * shortest * v, v, *indices) for s in (1.0, -1.0)])
    variation = (ends - found).abs().amax(0)
    return bool((is_wrong & (variation <= _CONTRADICTION * gap)).any())
