r"""What kind of point is x for F = f + g, with a penalty g that has kinks?

Entries at a kink of g (zeros of the l1 norm, groups of zeros) stay there as long as the gradient of
f is smaller than the weight: the difference is the *slack*, and F rises along them in first order.
The other entries are free. Along them, on the active manifold, F is smooth and is judged as ever.

===============  =======================================================================
NOT_STATIONARY   an entry would leave its kink, or the gradient of F does not vanish among the free
STRICT_SADDLE    F has negative curvature on the manifold; its direction is one of free entries
MINIMUM          F has a minimum on the manifold, and every slack is positive beyond rounding
UNDECIDED        F has a minimum on the manifold, but some slack is 0 within rounding
===============  =======================================================================

The last needs derivatives of higher order on both sides of the kink: they are not computed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from asgld.curvature.kinds import Kind, Point
from asgld.curvature.operator import Neighborhood
from asgld.curvature.relative import Examination
from asgld.oracle.composite import ActiveManifold, gradient_mapping
from asgld.prox import BoundPenalty

# A slack counts as 0 below this part of its weight, or so many roundings of it.
_SLACK_PART, _SLACK_ROUNDINGS = 1e-6, 1e3
# Rounding errors of a gradient, in units of unit roundoff times curvature times x.
_GRADIENT_ROUNDINGS = 1e2
# The slack at the stationary point nearby may differ by so many times what the model says.
_SAFETY = 10.0
# Curvatures below this part of the largest count as that part in bounds on the way to that point.
_FLOOR = 1e-6


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


class Kinks:
    """Which entries of x are at a kink of g, and how firmly.

    Args:
        source: values of F and derivatives of f, one point (d,) at a time.
        penalty: g.
        x: the point.
        grad: the gradient of f there.
    """

    def __init__(self, source: Any, penalty: BoundPenalty, x: Tensor, grad: Tensor) -> None:
        self.source, self.penalty, self.x, self.grad = source, penalty, x, grad
        self.is_free = penalty.is_free(x)
        self.norm = float(torch.linalg.vector_norm(gradient_mapping(penalty, x, grad)))
        self.manifold = ActiveManifold(source, penalty, x, self.is_free)

    @property
    def start(self) -> Tensor:
        """The free entries of x."""
        return self.x[self.is_free]

    @property
    def _is_held(self) -> Tensor:
        return ~self.is_free

    def _sizes(self, grad: Tensor) -> Tensor:
        """For entries at a kink, the size of a gradient that pulls at it: of the group's, say."""
        zero = torch.zeros_like(grad)
        weights, left = (self.penalty.slack(self.x, g)[self._is_held] for g in (zero, grad))
        return weights - left

    def judged(
        self, point: Point | None, exam: Examination | None = None, eps: float | None = None
    ) -> Point:
        """The verdict on x, from the one on the manifold; None where no entry is free.

        `exam` tells how far the stationary point is, whose slack counts.
        """
        if point is None:
            text = "every entry is at a kink of the penalty"
            point = Point(
                Kind.MINIMUM, self.norm, eps or math.inf, 0.0, text, is_isolated=True,
                value=float(self.source.value(self.x)),
            )  # fmt: skip
        elif point.direction is not None:
            point = replace(point, direction=self.manifold.lifted(point.direction.reshape(-1)))
        point = replace(point, gradient_norm=self.norm)
        if not bool(self._is_held.any()):
            return point
        slack = self.penalty.slack(self.x, self.grad)[self._is_held]
        tolerance = self._tolerance(point, exam)
        if self._pulls(slack, tolerance, eps):
            worst = int((slack + tolerance).argmin())
            excess = -float(slack[worst])
            text = (
                f"the gradient mapping has norm {self.norm:.3g}: {self._name(worst)} would leave "
                f"its kink, where the gradient of f exceeds the weight by {excess:.3g}"
            )
            return replace(
                point, kind=Kind.NOT_STATIONARY, summary=text, direction=None, is_isolated=False
            )
        num_free, among = int(self.is_free.sum()), point.summary
        if num_free:
            among += f"; judged among the {num_free} entries that are free"
        if point.kind is Kind.MAXIMUM:
            return replace(point, kind=Kind.STRICT_SADDLE, summary=among)
        least = int((slack - tolerance).argmin())
        if point.kind is not Kind.MINIMUM:
            return replace(point, summary=among)
        if not float(slack[least]) > float(tolerance[least]):
            text = (
                f"{self._name(least)} is at a kink of the penalty where the gradient of f is equal "
                f"to the weight, within {float(tolerance[least]):.2g}: whether F falls beyond the "
                "kink cannot be told"
            )
            return replace(point, kind=Kind.UNDECIDED, summary=text, is_isolated=False)
        text = f"{among}; the smallest slack of the others is {float(slack.min()):.3g}"
        return replace(point, summary=text)

    def _pulls(self, slack: Tensor, tolerance: Tensor, eps: float | None) -> bool:
        """Whether an entry leaves its kink, by more than rounding and more than eps allows."""
        is_out = bool((slack < -tolerance).any())
        return is_out and (eps is None or self.norm > eps)

    def _tolerance(self, point: Point, exam: Examination | None) -> Tensor:
        """How far the slack at the stationary point may be from the one at x."""
        unit = self.source.unit_roundoff
        weights = self.penalty.slack(self.x, torch.zeros_like(self.x))[self._is_held]
        steepest = max(abs(point.lambda_max or 0.0), abs(point.lambda_min or 0.0))
        size = float(self.x.norm())
        rounding = _GRADIENT_ROUNDINGS * unit * (steepest * size + float(self.grad.abs().max()))
        tolerance: Tensor = max(_SLACK_PART, _SLACK_ROUNDINGS * unit) * weights + rounding
        if point.lambda_min is None:
            return tolerance
        if exam is not None and exam.is_complete:
            step = self.manifold.lifted(exam.newton_step(exam.grad))
            return tolerance + _SAFETY * self._sizes(self.source.hvp(self.x, step))
        reduced = float((self.grad + self.penalty.grad(self.x))[self.is_free].norm())
        lowest = max(point.lambda_min, _FLOOR * steepest, 1e-300)
        return tolerance + min(steepest / lowest * reduced, 1e300)

    def _name(self, number: int) -> str:
        """The entry with this number among those at a kink."""
        return f"x[{int(self._is_held.nonzero().flatten()[number])}]"
