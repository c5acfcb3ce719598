"""Flat directions: does f fall along them?

At a critical point with a zero eigenvalue the Hessian decides nothing: x^4, -x^4 and a valley of
minimizers look alike. The way f moves along the flat directions tells them apart. Along rays in the
flat space, and along descent paths that start on them (a valley may be curved), the **first exit**
of f(y) - f(x) from a tolerance decides: below it, the point is no minimum; above it, the path
climbs and ends. The first exit, not the lowest value, keeps the test local: the basin behind a
barrier does not count. Finding no way down is evidence, not proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# Distances along a flat ray double from this part of the radius to all of it.
_FIRST_DISTANCE = 2.0**-14
_DESCENT_STEPS = 40
_MEMORY = 8
_MAX_HALVINGS = 12


@dataclass(frozen=True)
class Descent:
    """A witness that x is no minimum: f(x + distance * direction) = f(x) - drop."""

    direction: Tensor
    distance: float
    drop: float


class FlatProbe:
    """f and its gradient around x, with the tolerance by which x would count as a minimum.

    Args:
        value, grad: f and its gradient.
        x: the point.
        radius: how far to look.
        tolerance: tolerance(t), by how much f may fall at distance t.
        value0: f(x).
        barrier: how far f may rise above the tolerance before a ray is given up.
    """

    def __init__(
        self,
        value: Callable[[Tensor], float],
        grad: Callable[[Tensor], Tensor],
        x: Tensor,
        *,
        radius: float,
        tolerance: Callable[[float], float],
        value0: float,
        barrier: float = 0.0,
    ) -> None:
        self.value, self.grad, self.x = value, grad, x
        self.radius, self._tolerance, self._f0 = radius, tolerance, value0
        self._barrier = barrier

    def find_descent(
        self, basis: Tensor, num_rays: int, generator: torch.Generator
    ) -> Descent | None:
        """Search `num_rays` lines in the span of `basis`, (dim, k), to both sides of x.

        The first line follows the first column, the others are random.
        """
        for number in range(num_rays if basis.shape[1] > 1 else 1):
            direction = basis[:, 0]
            if number > 0:
                mix = torch.randn(basis.shape[1], generator=generator, dtype=torch.float64)
                direction = basis @ mix.to(basis)
                direction = direction / torch.linalg.vector_norm(direction)
            ends = []
            for ray in (direction, -direction):
                witness, (distance, change) = self._walk(ray)
                if witness is not None:
                    return witness
                ends.append((change, distance * ray))
            # Descend from the lower of the two ends: the other side rises.
            witness = self._descend(self.x + min(ends, key=lambda end: end[0])[1])
            if witness is not None:
                return witness
        return None

    def _walk(self, ray: Tensor) -> tuple[Descent | None, tuple[float, float]]:
        """Go along a ray until f leaves the tolerance; also the last (distance, change) within."""
        distance = _FIRST_DISTANCE * self.radius
        last_inside = (0.0, 0.0)
        while distance <= self.radius:
            change = self.value(self.x + distance * ray) - self._f0
            allowed = self._tolerance(distance)
            if change < -allowed:
                return Descent(ray, distance, -change), last_inside
            if not change <= allowed + self._barrier:  # climbs, or is not a number
                break
            if distance <= self.radius / 4:
                last_inside = (distance, change)
            distance *= 2
        return None, last_inside

    def _descend(self, start: Tensor) -> Descent | None:
        """Follow L-BFGS downhill from `start` until f leaves the tolerance or the radius."""
        y, f = start, self.value(start)
        g = self.grad(y)
        pairs: list[tuple[Tensor, Tensor]] = []
        for _ in range(_DESCENT_STEPS):
            step = _quasi_newton_step(g, pairs)
            if not float(torch.dot(step, g)) < 0:
                return None
            # No leaps: a step may double the distance from x, not more.
            length = float(torch.linalg.vector_norm(step))
            distance = float(torch.linalg.vector_norm(y - self.x))
            step = step * min(1.0, max(distance, _FIRST_DISTANCE * self.radius) / length)
            y_next, f_next = self._line_search(y, f, step)
            if not f_next < f:
                return None
            g_next = self.grad(y_next)
            change, bend = y_next - y, g_next - g
            if float(torch.dot(change, bend)) > 1e-12 * float(torch.dot(bend, bend)):
                pairs = [*pairs[1 - _MEMORY :], (change, bend)]
            y, f, g = y_next, f_next, g_next
            away = y - self.x
            distance = float(torch.linalg.vector_norm(away))
            if distance > self.radius:
                return None
            if f - self._f0 < -self._tolerance(distance):
                return Descent(away / distance, distance, self._f0 - f)
        return None

    def _line_search(self, y: Tensor, f: float, step: Tensor) -> tuple[Tensor, float]:
        """Double or halve the step, whichever lowers f; the best point found."""
        best, f_best = y, f
        scale = 1.0
        for _ in range(_MAX_HALVINGS):
            f_new = self.value(y + scale * step)
            if f_new < f_best:
                best, f_best = y + scale * step, f_new
                if scale < 1.0 or scale >= 4.0:
                    break
                scale *= 2
            elif scale > 1.0:
                break
            else:
                scale /= 4
        return best, f_best


def _quasi_newton_step(g: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """-H g, H the L-BFGS inverse Hessian (Nocedal and Wright, Algorithm 7.4)."""
    step = -g
    weights = []
    for change, bend in reversed(pairs):
        weight = torch.dot(change, step) / torch.dot(change, bend)
        step = step - weight * bend
        weights.append(weight)
    if pairs:
        change, bend = pairs[-1]
        step = step * (torch.dot(change, bend) / torch.dot(bend, bend))
    for (change, bend), weight in zip(pairs, reversed(weights), strict=True):
        step = step + change * (weight - torch.dot(bend, step) / torch.dot(change, bend))
    return step
