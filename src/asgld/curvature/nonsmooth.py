r"""What kind of point is x for F = f + g, with a penalty g that has kinks?

Entries at a kink of g (zeros of the l1 norm, groups of zeros) stay there as long as the gradient of
f is smaller than the weight: the difference is the *slack*, and F rises along them in first order.
The other entries are free. Along them, on the active manifold, F is smooth and is judged as ever.

Where a slack is 0 within rounding, or negative, the first order does not tell. Such entries may
leave their kink along a ray, and F is judged on the manifold with these rays. There a smooth branch
stands for g, which is g along the rays and lies below g elsewhere, since g is convex: a minimum of
f + branch is one of F.

===============  =======================================================================
NOT_STATIONARY   a step along the manifold, or out of a kink, would lower F
STRICT_SADDLE    F curves down along free entries, or along rays
MINIMUM          F is a bowl on the manifold, rays included; all other slacks are positive
UNDECIDED        the branch curves down along rays of both signs: F there was not computed
===============  =======================================================================

An entry that is not 0, but would be after a proximal step, counts as 0 if F hardly knows the
difference: other solvers leave 1e-12 where this one has zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from asgld.curvature.kinds import Kind, Point
from asgld.curvature.operator import Neighborhood
from asgld.curvature.relative import VISIBLE_PART, Examination
from asgld.oracle.composite import ActiveManifold, gradient_mapping
from asgld.prox import BoundPenalty

# A slack counts as 0 below this part of its weight, or so many roundings of it.
_SLACK_PART, _SLACK_ROUNDINGS = 1e-6, 1e3
# Rounding errors of a gradient, in units of unit roundoff times its terms.
_GRADIENT_ROUNDINGS = 1e2
# The slack at the stationary point nearby may differ by so many times what the model says.
_SAFETY = 10.0
# Curvatures below this part of the largest count as that part in bounds on the way to that point.
_FLOOR = 1e-6
# Entries count as zero if F differs by at most this part of itself: no step would pay. Their terms
# of g are then at most the other part.
_SAME_PART, _TINY_PART = 1e-10, 1e-8

# So many Newton steps lead far down where F is unbounded.
_FAR = 32.0

# Judges F on a manifold; the examination is there if tolerances are relative.
Judgment = Callable[[ActiveManifold], tuple[Point, Examination | None]]


class Penalized:
    """F = f + g around one point, of a neighborhood of f: values of F, derivatives of f."""

    def __init__(self, around: Neighborhood, penalty: BoundPenalty) -> None:
        if not around.has_values:
            raise TypeError("fun has no value(x), which a judgment with prox needs: add it")
        self._around, self._penalty = around, penalty
        self.unit_roundoff = around.unit_roundoff
        self.grad, self.hvp = around.grad, around.product

    def value(self, x: Tensor) -> Tensor:
        return self._penalty.value(x) + self._around.value(x)


def at_kinks(penalty: BoundPenalty, x: Tensor, grad: Tensor, size: float) -> list[Tensor]:
    """Return x with entries moved to a kink at which they would stay, or nothing.

    The first of two has entries as well that stay there within rounding, if a term of g so small
    as theirs is none in an F of this size.
    """
    zero = torch.zeros_like(x)
    slack, weights = penalty.slack(zero, grad), penalty.slack(zero, zero)
    clear = slack > _SLACK_PART * weights
    small = (slack >= -_SLACK_PART * weights) & (weights * x.abs() <= _TINY_PART * size)
    found: list[Tensor] = []
    for is_held in (clear | small, clear):
        near = torch.where(is_held & torch.isfinite(slack), 0.0, x)
        if not any(torch.equal(near, other) for other in (x, *found)):
            found.append(near)
    return found


class Kinks:
    """Which entries of x are at a kink of g, and how firmly.

    Args:
        source: values of F and derivatives of f, one point (d,) at a time.
        penalty: g.
        x: the point.
        grad: the gradient of f there.
        scale: the scale of the entries (d,).
        fall: how far F fell to get here.
    """

    def __init__(
        self,
        source: Any,
        penalty: BoundPenalty,
        x: Tensor,
        grad: Tensor,
        *,
        scale: Tensor,
        fall: float,
    ) -> None:
        self.source, self.penalty, self.x, self.grad = source, penalty, x, grad
        self.scale, self.fall = torch.maximum(scale.to(x), x.abs()), fall
        self.is_free = penalty.is_free(x)
        self.norm = float(torch.linalg.vector_norm(gradient_mapping(penalty, x, grad)))
        none = x.new_zeros(0, len(x)), torch.zeros_like(x)
        self.manifold = ActiveManifold(source, penalty, x, self.is_free, *none)

    @classmethod
    def nearby(
        cls,
        source: Any,
        penalty: BoundPenalty,
        x: Tensor,
        grad: Tensor,
        eps: float | None,
        *,
        scale: Tensor,
        fall: float,
    ) -> Kinks:
        """The kinks at x, where entries that are almost at one count as there."""
        here = cls(source, penalty, x, grad, scale=scale, fall=fall)
        if eps is not None:
            if here.norm > eps:
                return here
            # The mapping is small, and so are the entries that its step sets to zero.
            candidates = [torch.where(penalty.shrink(x - grad, 1.0) == 0.0, 0.0, x)]
            same = math.inf
        else:
            size = max(abs(float(source.value(x))), fall)
            candidates, same = at_kinks(penalty, x, grad, size), _SAME_PART * size
        for near in candidates:
            if torch.equal(near, x):
                continue
            if abs(float(source.value(near)) - float(source.value(x))) <= same:
                there = cls(source, penalty, near, source.grad(near), scale=scale, fall=fall)
                there.norm = here.norm
                return there
        return here

    def tolerance(self, manifold: ActiveManifold, eps: float | None) -> float | None:
        """The gradient norm on a manifold that counts as zero, for one of the mapping."""
        if eps is None or self.norm > eps:
            return eps
        grad = manifold.grad(manifold.start)
        return max(eps, float(torch.linalg.vector_norm(grad)))

    def judged(self, judge: Judgment, eps: float | None) -> Point:
        """The verdict on x, by a judgment of smooth functions on the manifold."""
        point, exam = (None, None) if not self.manifold.dim else judge(self.manifold)
        return self.completed(point, exam, judge, eps)

    def completed(
        self, point: Point | None, exam: Examination | None, judge: Judgment, eps: float | None
    ) -> Point:
        """The verdict on x, from the one on the manifold; None where no entry is free.

        `exam` tells how far the stationary point is, whose slack counts.
        """
        if eps is not None and self.norm > eps:
            text = f"the gradient mapping has norm {self.norm:.3g} > eps = {eps:.3g}"
            return Point(
                Kind.NOT_STATIONARY, self.norm, eps, math.nan, text,
                value=float(self.source.value(self.x)),
            )  # fmt: skip
        if point is None:
            text = "every entry is at a kink of the penalty"
            point = Point(
                Kind.MINIMUM, self.norm, math.inf if eps is None else eps, 0.0, text,
                is_isolated=True, value=float(self.source.value(self.x)),
            )  # fmt: skip
        if bool(self.is_free.all()):
            return self._of_all(point, self.manifold, exam, eps)
        if point.kind is Kind.NOT_STATIONARY:
            return self._of_all(point, self.manifold, exam, eps)
        slack = self.penalty.slack(self.x, self.grad)
        is_weak = ~self.is_free & (slack <= self._doubt(point, exam))
        if point.kind in (Kind.STRICT_SADDLE, Kind.MAXIMUM):
            is_weak &= slack < 0.0  # what leaves its kink comes before what curves down
        if not bool(is_weak.any()):
            point = self._of_all(point, self.manifold, exam, eps)
            if point.kind not in (Kind.MINIMUM, Kind.DEGENERATE):
                return point
            least = float(slack[~self.is_free].min())
            text = f"{point.summary}; the smallest slack of the others is {least:.3g}"
            return replace(point, summary=text)
        away = torch.where(is_weak, -self.grad, 0.0)
        wide = replace(self.manifold, rays=self._rays(is_weak), away=away)
        point, exam = judge(wide)
        if point.direction is not None:
            point = self._feasible(point, wide)
        point = self._of_all(point, wide, exam, eps)
        worst = int(torch.where(is_weak, slack, math.inf).argmin())
        text = f"{point.summary}; the slack of x[{worst}], at a kink, is {float(slack[worst]):.2g}"
        return replace(point, summary=text)

    def _of_all(
        self, point: Point, manifold: ActiveManifold, exam: Examination | None, eps: float | None
    ) -> Point:
        """A verdict on the manifold in terms of all entries and of the gradient mapping."""
        point = self._checked(point, manifold, exam)
        text, kind, tolerance = point.summary, point.kind, point.eps
        if point.gradient_norm > 0.0 and math.isfinite(point.eps):
            tolerance = point.eps * self.norm / point.gradient_norm
        if kind is Kind.NOT_STATIONARY and point.gradient_norm > point.eps:
            text = f"the gradient mapping has norm {self.norm:.3g} > eps = {tolerance:.3g}"
            if exam is not None:
                text += f": a step would lower F by about {exam.promise:.2g}"
        elif manifold.dim and not bool(self.is_free.all()):
            text += f"; judged among the {manifold.num_free} entries that are free"
            if len(manifold.rays):
                text += f" and {len(manifold.rays)} ways out of a kink"
        if kind is Kind.MAXIMUM and not bool(self.is_free.all()):
            kind = Kind.STRICT_SADDLE
        direction = point.direction
        if direction is not None:
            direction = manifold.lifted(direction.reshape(-1))
            direction = direction / torch.linalg.vector_norm(direction)
        return replace(
            point, kind=kind, summary=text, direction=direction, gradient_norm=self.norm,
            eps=tolerance if eps is None else eps,
        )  # fmt: skip

    def _checked(self, point: Point, manifold: ActiveManifold, exam: Examination | None) -> Point:
        """The verdict, if F falls where the branch, which is lower beyond kinks, was found to."""
        start, value = manifold.start, float(self.source.value(self.x))
        if point.drop is not None and point.distance is not None:
            assert point.direction is not None
            far = start + point.distance * point.direction.reshape(-1)
            drop = value - float(self.source.value(manifold.full(far)))
            if drop > 0.0:
                return replace(point, drop=drop)
        elif point.kind is Kind.UNBOUNDED and exam is not None:
            far = start + _FAR * exam.newton_step(exam.grad)
            if float(self.source.value(manifold.full(far))) < value:
                return point
        else:
            return point
        text = "curvature vanishes along some directions, and F was not found to fall along them"
        return replace(
            point, kind=Kind.DEGENERATE, summary=text, direction=None, drop=None, distance=None
        )

    def _doubt(self, point: Point, exam: Examination | None) -> Tensor:
        """How small a slack (d,) leaves open whether its entry stays at the kink."""
        unit = self.source.unit_roundoff
        zero = torch.zeros_like(self.x)
        weights = self.penalty.slack(self.x, zero)
        size = self.grad.abs() + self.source.hvp(self.x, self.x).abs()
        rounding = _GRADIENT_ROUNDINGS * unit * (weights - self.penalty.slack(self.x, size))
        doubt: Tensor = max(_SLACK_PART, _SLACK_ROUNDINGS * unit) * weights + rounding
        # A slack that F does not show along the whole scale of x is none.
        scale = torch.where(self.scale > 0, self.scale, self.scale.max())
        scale = torch.where(scale > 0, scale, 1.0)
        doubt = torch.maximum(doubt, self._visible(exam, scale) / scale)
        if exam is not None and exam.is_complete:
            step = self.manifold.lifted(exam.newton_step(exam.grad))
            moved = self.source.hvp(self.x, step)
            return doubt + _SAFETY * (weights - self.penalty.slack(self.x, moved))
        if point.lambda_min is None:
            return doubt
        steepest = max(abs(point.lambda_max or 0.0), abs(point.lambda_min))
        reduced = float((self.grad + self.penalty.grad(self.x))[self.is_free].norm())
        lowest = max(point.lambda_min, _FLOOR * steepest, 1e-300)
        return doubt + min(steepest / lowest * reduced, 1e300)

    def _visible(self, exam: Examination | None, scale: Tensor) -> float:
        if exam is not None:
            return exam.visible
        size = max(abs(float(self.source.value(self.x))), self.fall)
        if size == 0.0:  # then curvature over the scale of x says what can be seen
            signs = torch.randint(2, scale.shape, generator=torch.Generator().manual_seed(0))
            move = scale * (signs.to(scale) * 2 - 1)
            size = abs(float(move @ self.source.hvp(self.x, move))) / 2
        return VISIBLE_PART * size

    def _rays(self, is_weak: Tensor) -> Tensor:
        """Unit vectors (k, d): the ways out of the kinks of these entries."""
        units = self.penalty.units().to(self.x.device)
        rays = []
        for unit in sorted(set(units[is_weak].tolist())):
            is_mine = is_weak & (units == unit)
            ray = torch.where(is_mine, -self.grad, 0.0)
            ray = ray if bool(ray.any()) else is_mine.to(self.x)
            rays.append(ray / torch.linalg.vector_norm(ray))
        return torch.stack(rays)

    @staticmethod
    def _feasible(point: Point, manifold: ActiveManifold) -> Point:
        """The verdict, if its direction leads out of the kinks along the rays, or its opposite
        does; UNDECIDED otherwise."""
        assert point.direction is not None
        direction = point.direction.reshape(-1)
        along = direction[manifold.num_free :]
        least = -1e-6 * float(direction.abs().max())
        if bool((along >= least).all()):
            return point
        if point.drop is None and bool((-along >= least).all()):
            return replace(point, direction=-direction)
        text = "beyond several kinks at once F may fall: what lies there was not computed"
        return replace(point, kind=Kind.UNDECIDED, summary=text, direction=None, is_isolated=False)
