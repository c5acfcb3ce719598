"""Bounds by smooth reparametrization: search in z, where there are none.

Projection and reflection break Langevin dynamics at the boundary, where gradients of likelihoods
blow up; a smooth map from all of R^d onto the box does not. For x in (lower, upper):

    =====================  ==========================================  ==============
    bounds                 x(z)                                        name
    =====================  ==========================================  ==============
    lower < x              lower + exp(z)                              log
    lower < x              lower + log(1 + exp(z))                     softplus
    x < upper              upper - exp(-z), upper - log(1 + exp(-z))   the same two
    lower < x < upper      lower + (upper - lower) / (1 + exp(-z))     logit
    none                   z
    =====================  ==========================================  ==============
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from asgld.oracle.functions import AroundFunction, Function

TRANSFORMS = ("log", "softplus")
# A bound farther away than this many times x is no bound for a search that begins at x.
_FAR = 1e3


@dataclass(frozen=True, eq=False)
class Box:
    """Open box (lower, upper), each of shape (d,), infinite where there is no bound.

    >>> box = Box.of([(0, None), (-1, 1), (None, None)], dim=3)
    >>> x = torch.tensor([2.0, 0.5, -3.0], dtype=torch.float64)
    >>> torch.allclose(box.to_user(box.to_search(x)), x)
    True
    """

    lower: Tensor
    upper: Tensor
    transform: str = "log"

    @classmethod
    def of(cls, bounds: Any, dim: int, transform: str = "log") -> Box:
        """Read bounds as scipy does: pairs (low, high) with None for no bound, or a `Bounds`."""
        if transform not in TRANSFORMS:
            raise ValueError(f"transform={transform!r}: need one of {', '.join(TRANSFORMS)}")
        if hasattr(bounds, "lb") and hasattr(bounds, "ub"):
            pairs: Sequence[Any] = list(
                zip(np.broadcast_to(bounds.lb, dim), np.broadcast_to(bounds.ub, dim), strict=True)
            )
        else:
            pairs = list(bounds)
        pairs = [(None, None) if p is None else p for p in pairs]
        if len(pairs) != dim or any(np.ndim(p) != 1 or len(p) != 2 for p in pairs):
            raise ValueError(
                f"bounds={bounds!r}: need {dim} pairs (low, high), one per coordinate, with None "
                "for no bound"
            )
        lower = [-np.inf if low is None else float(low) for low, _ in pairs]
        upper = [np.inf if high is None else float(high) for _, high in pairs]
        for i, (low, high) in enumerate(zip(lower, upper, strict=True)):
            if not low < high:
                raise ValueError(f"bounds[{i}]=({low}, {high}): need low < high")
        as_tensor = torch.tensor([lower, upper], dtype=torch.float64)
        return cls(as_tensor[0], as_tensor[1], transform)

    def without_far_bounds(self, x: Tensor) -> Box:
        """The box without bounds so far from x that its map would lose the digits of x."""
        far = _FAR * x.abs().amax(0).clamp(min=1.0)
        lower = torch.where(x.amin(0) - self.lower > far, -torch.inf, self.lower)
        upper = torch.where(self.upper - x.amax(0) > far, torch.inf, self.upper)
        return Box(lower, upper, self.transform)

    def contains(self, x: Tensor) -> bool:
        return bool(((x >= self.lower) & (x <= self.upper)).all())

    @property
    def has_lower(self) -> Tensor:
        return torch.isfinite(self.lower)

    @property
    def has_upper(self) -> Tensor:
        return torch.isfinite(self.upper)

    def to_user(self, z: Tensor) -> Tensor:
        """x(z)."""
        return self.derivatives(z)[0]

    def to_search(self, x: Tensor) -> Tensor:
        """z(x), for x inside; a coordinate on a bound is moved off it by a hair."""
        x = self._off_bounds(x)
        outside = ~((x > self.lower) & (x < self.upper))
        if bool(outside.any()):
            where = tuple(int(i) for i in outside.nonzero()[0])
            i = where[-1]
            raise ValueError(
                f"x0{list(where)} = {float(x[where]):g} is not inside its bounds "
                f"({float(self.lower[i]):g}, {float(self.upper[i]):g}): move the start inside"
            )
        both = self.has_lower & self.has_upper
        below, above = x - self.lower, self.upper - x
        if self.transform == "log":
            one_sided = torch.where(self.has_lower, below.log(), -above.log())
        else:
            gap = torch.where(self.has_lower, below, above)
            inverse = gap + torch.log(-torch.expm1(-gap))
            one_sided = torch.where(self.has_lower, inverse, -inverse)
        z = torch.where(both, below.log() - above.log(), one_sided)
        return torch.where(self.has_lower | self.has_upper, z, x)

    def inside(self, x: Tensor, margin: float = 0.05) -> Tensor:
        """x moved strictly inside, by `margin` of the box's width, or of 1 where it is open."""
        width = torch.where(self.has_lower & self.has_upper, self.upper - self.lower, 1.0)
        step = margin * width
        return torch.minimum(torch.maximum(x, self.lower + step), self.upper - step)

    def _off_bounds(self, x: Tensor) -> Tensor:
        """x with coordinates that lie on a bound moved inside, by 1e-9 of the width or of x."""
        is_wide = torch.isinf(self.upper - self.lower)
        step = 1e-9 * torch.where(is_wide, x.abs().clamp(min=1.0), self.upper - self.lower)
        x = torch.where(x == self.lower, self.lower + step, x)
        return torch.where(x == self.upper, self.upper - step, x)

    def derivatives(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x, dx/dz and d2x/dz2, per coordinate."""
        # Upper bounds mirror lower ones: with w = -z, x = upper - map(w).
        sign = torch.where(self.has_upper & ~self.has_lower, -1.0, 1.0).to(z)
        w = sign * z
        logistic = torch.sigmoid(w)
        if self.transform == "log":
            gap = slope = bend = torch.exp(w)
        else:
            gap, slope, bend = softplus(w), logistic, logistic * (1 - logistic)
        base = torch.where(sign > 0, self.lower, self.upper)
        one_sided = (base + sign * gap, slope, sign * bend)
        width = self.upper - self.lower
        hill = logistic * (1 - logistic)
        # Written from the nearer bound, so that the distance to it keeps its digits.
        near = torch.where(
            w < 0, self.lower + width * logistic, self.upper - width * torch.sigmoid(-w)
        )
        two_sided = (near, width * hill, width * hill * (1 - 2 * logistic))
        free = (z, torch.ones_like(z), torch.zeros_like(z))
        both, none = self.has_lower & self.has_upper, ~(self.has_lower | self.has_upper)
        x, dx, ddx = (
            torch.where(none, f, torch.where(both, t, o))
            for f, t, o in zip(free, two_sided, one_sided, strict=True)
        )
        return x, dx, ddx

    def projected_gradient(self, x: Tensor, grad: Tensor) -> Tensor:
        """x - P(x - grad): the gradient, cut off where a step along it would leave the box."""
        return x - torch.minimum(torch.maximum(x - grad, self.lower), self.upper)


@dataclass(frozen=True, eq=False)
class Reparametrized(AroundFunction):
    r"""f(x(z)) as a Function of z, with derivatives by the chain rule.

    .. math:: \nabla_z = s \star \nabla_x, \qquad
              H_z v = s \star H_x (s \star v) + \nabla_x \star b \star v

    with s = dx/dz and b = d2x/dz2, per coordinate.
    """

    function: Function
    box: Box

    @property
    def charges(self) -> dict[str, Mapping[str, int]]:
        """As the inner function's; a product needs a gradient too."""
        inner: dict[str, Mapping[str, int]] = dict(getattr(self.function, "charges", {}))
        charges = dict(inner)
        for prefix in ("", "sample_"):
            for kind in ("hvp", "hessian"):
                total: dict[str, int] = {}
                for part in (prefix + kind, prefix + "grad"):
                    for name, times in inner.get(part, {part: 1}).items():
                        total[name] = total.get(name, 0) + times
                charges[prefix + kind] = total
        return charges

    def value(self, z: Tensor) -> Tensor:
        return self.function.value(self.box.to_user(z))

    def grad(self, z: Tensor) -> Tensor:
        x, slope, _ = self.box.derivatives(z)
        return slope * self.function.grad(x)

    def value_and_grad(self, z: Tensor) -> tuple[Tensor, Tensor]:
        if not hasattr(self.function, "value_and_grad"):
            return self.value(z), self.grad(z)
        x, slope, _ = self.box.derivatives(z)
        value, grad = self.function.value_and_grad(x)
        return value, slope * grad

    def hvp(self, z: Tensor, v: Tensor) -> Tensor:
        x, slope, bend = self.box.derivatives(z)
        return slope * self.function.hvp(x, slope * v) + self.function.grad(x) * bend * v

    def hessian(self, z: Tensor) -> Tensor:
        x, slope, bend = self.box.derivatives(z)
        inner = slope[..., :, None] * self.function.hessian(x) * slope[..., None, :]
        return inner + torch.diag_embed(self.function.grad(x) * bend)

    def sample_value(self, z: Tensor, indices: Tensor) -> Tensor:
        inner = cast(Any, self.function)
        return cast(Tensor, inner.sample_value(self.box.to_user(z), indices))

    def sample_grad(self, z: Tensor, indices: Tensor) -> Tensor:
        inner = cast(Any, self.function)
        x, slope, _ = self.box.derivatives(z)
        return cast(Tensor, slope * inner.sample_grad(x, indices))

    def sample_hvp(self, z: Tensor, v: Tensor, indices: Tensor) -> Tensor:
        inner = cast(Any, self.function)
        x, slope, bend = self.box.derivatives(z)
        product = slope * inner.sample_hvp(x, slope * v, indices)
        return cast(Tensor, product + inner.sample_grad(x, indices) * bend * v)


@dataclass(frozen=True, eq=False)
class Face:
    """f as a function of some coordinates, the others held at x: for judging a point at a bound."""

    function: Function
    x: Tensor
    is_free: Tensor

    @property
    def dim(self) -> int:
        return int(self.is_free.sum())

    def _embed(self, y: Tensor, base: Tensor) -> Tensor:
        full = base.expand(*y.shape[:-1], len(base)).clone()
        full[..., self.is_free] = y
        return full

    def value(self, y: Tensor) -> Tensor:
        return self.function.value(self._embed(y, self.x))

    def grad(self, y: Tensor) -> Tensor:
        return self.function.grad(self._embed(y, self.x))[..., self.is_free]

    def hvp(self, y: Tensor, v: Tensor) -> Tensor:
        direction = self._embed(v, torch.zeros_like(self.x))
        return self.function.hvp(self._embed(y, self.x), direction)[..., self.is_free]
