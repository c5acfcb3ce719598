r"""Is this point a minimum? `classify` answers: a kind, the numbers behind it, a sentence.

At a critical point with a zero eigenvalue the Hessian decides nothing: x^4, -x^4 and a valley of
minimizers look alike. The way f moves along the flat directions tells them apart. A point is
accepted with tolerances (eps, gamma), and these allow f, at distance t, to change by

    tolerance(t) = eps t + gamma t^2 / 2 + rounding.

Along rays in the flat space, and along descent paths that start on them (a valley may be
curved), the **first exit** of f(y) - f(x) from this tolerance decides: below it, f falls faster
than an (eps, gamma) second-order point allows and the point is no minimum; above it, the path
climbs and ends. The first exit, not the lowest value, keeps the test local: the basin behind a
barrier does not count. Finding no way down is evidence, not proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asgld.arguments import require
from asgld.curvature.operator import Neighborhood
from asgld.curvature.spectrum import Effort, Ends, Enough, SpectrumSearch

# Flat directions kept of each Lanczos run to be searched for a way down.
_FLAT_DIRECTIONS = 4
# Residual, relative to the eigenvalue, at which a direction of negative curvature is reported.
_PURITY = 0.05
# Distances along a flat ray double from this part of the radius to all of it.
_FIRST_DISTANCE = 2.0**-14
_DESCENT_STEPS = 40
_MEMORY = 8
_MAX_HALVINGS = 12


class Kind(Enum):
    """The kind of a point; the values are sentences."""

    MINIMUM = "a minimum: the gradient vanishes and no direction leads down"
    STRICT_SADDLE = "a strict saddle: the gradient vanishes and a direction curves down"
    DEGENERATE = "degenerate: curvature vanishes in a direction in which the function falls"
    MAXIMUM = "a maximum: the gradient vanishes and every direction curves down"
    NOT_STATIONARY = "not stationary: the gradient does not vanish"
    UNDECIDED = "undecided: what was computed does not settle it"


@dataclass(frozen=True, eq=False)
class Point:
    """The answer of `classify`.

    ==============  ====================================================================
    kind            the verdict
    gradient_norm   norm of the gradient, compared with `eps`
    lambda_min      smallest curvature found, compared with -`gamma`; None if not computed
    lower           lambda_min is at least this, with probability >= `confidence`
    lambda_max      largest curvature found
    residual        norm of H v - lambda_min v
    confidence      1.0 where no chance is involved: an assembled Hessian, a direction found
    direction       unit vector that leads down: of curvature lambda_min at a strict saddle or a
                    maximum, of the descent found at a degenerate point; else None
    is_isolated     at a minimum: whether every curvature is at least gamma. Otherwise the minimum
                    is flat, or curved by less than gamma in some direction
    drop, distance  at a degenerate point: f(x + distance * direction) = f(x) - drop
    value           f(x), None if unavailable
    num_hvp         Hessian-vector products used
    ==============  ====================================================================
    """

    kind: Kind
    gradient_norm: float
    eps: float
    gamma: float
    summary: str
    lambda_min: float | None = None
    lower: float | None = None
    lambda_max: float | None = None
    residual: float | None = None
    confidence: float = 1.0
    direction: Tensor | None = None
    is_isolated: bool = False
    drop: float | None = None
    distance: float | None = None
    value: float | None = None
    num_hvp: int = 0

    def __str__(self) -> str:
        return f"{self.kind.name}: {self.summary}"

    def __repr__(self) -> str:
        return f"<Point {self}>"


def classify(
    fun: Any,
    x: Tensor | NDArray[np.floating[Any]],
    *,
    eps: float,
    gamma: float,
    confidence: float = Effort.confidence,
    seed: int = Effort.seed,
    starts: int = Effort.starts,
    max_hvp: int = 2000,
    dense_below: int = Effort.dense_below,
    max_bytes: int = Effort.max_bytes,
    num_rays: int = 6,
    radius: float | None = None,
) -> Point:
    r"""Tell what kind of critical point x is, at tolerances eps and gamma.

    ===============  =======================================================================
    NOT_STATIONARY   \|grad f(x)\| > eps; curvature is not computed
    MAXIMUM          every eigenvalue of the Hessian is below -gamma
    STRICT_SADDLE    the smallest one is below -gamma (and the point is no maximum)
    MINIMUM          the smallest is at least -gamma and nothing leads down. If it is at least
                     gamma, that is the second-order test, and the minimum is isolated. If it lies
                     in between, flat directions were followed and f did not fall
    DEGENERATE       the smallest is in [-gamma, gamma) and f falls along a flat direction by more
                     than the tolerances explain
    UNDECIDED        the bounds on the smallest eigenvalue include -gamma, or flat directions
                     exist but f has no values to follow
    ===============  =======================================================================

    A strict saddle is proved by its direction. A minimum is a statement about all directions: up to
    `dense_below` dimensions the Hessian is decomposed, above, the eigenvalue bound holds with
    probability `confidence` (`asgld.curvature.lanczos` has the proof). That no way down
    was found along the flat directions of a minimum that is not isolated is evidence, not proof.

    Args:
        fun: a torch function of x with a scalar value; or an object with `grad(x)` and `hvp(x, v)`,
            and `value(x)` to follow flat directions: a Problem, an Oracle (through its `free()`
            view, so that nothing is counted), a `ModelHessian`.
        x: the point, of any shape for a function, of shape (dim,) for an object.
        eps: largest gradient norm that counts as zero.
        gamma: curvatures within [-gamma, gamma) count as flat. For eps-accurate points of a
            function with rho-Lipschitz Hessian gamma = sqrt(rho eps) is the usual choice.
        confidence, seed, starts, max_hvp, dense_below, max_bytes: see `lambda_min`.
        num_rays: flat lines to follow, to both sides.
        radius: how far to follow them; by default max(1, \|x\| / 10).

    >>> saddle = classify(lambda x: x[0] ** 2 - x[1] ** 2, torch.zeros(2), eps=1e-6, gamma=1e-3)
    >>> saddle.kind.name, saddle.lambda_min, saddle.direction.abs().tolist()
    ('STRICT_SADDLE', -2.0, [0.0, 1.0])
    >>> classify(lambda x: (x[0] * x[1] - 1) ** 2, torch.ones(2), eps=1e-6, gamma=1e-3).kind.name
    'MINIMUM'
    >>> classify(lambda x: x[0] ** 3, torch.zeros(2), eps=1e-6, gamma=1e-3).kind.name
    'DEGENERATE'
    """
    require(0 < eps < math.inf, "eps", eps, "a positive finite number")
    require(0 < gamma < math.inf, "gamma", gamma, "a positive finite number")
    require(radius is None or radius > 0, "radius", radius, "a positive number, or None")
    is_count = isinstance(num_rays, int) and num_rays >= 1
    require(is_count, "num_rays", num_rays, "a positive integer")
    effort = Effort(confidence, starts, seed, max_hvp, dense_below, max_bytes)
    around = Neighborhood(fun, x)
    gradient = around.grad(around.x)
    gradient_norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    value = around.value(around.x) if around.has_values else None
    if gradient_norm > eps:
        summary = f"the gradient has norm {gradient_norm:.3g} > eps = {eps:.3g}"
        return Point(Kind.NOT_STATIONARY, gradient_norm, eps, gamma, summary, value=value)
    operator = around.hessian()
    search = SpectrumSearch(operator, lambda ends: _judge(ends, gamma), effort)
    vector, smallest, residual = search.smallest_vector()
    descent = None
    kind = _second_order_kind(search, smallest, gamma)
    if kind is None and around.has_values:
        if radius is None:
            radius = max(1.0, float(torch.linalg.vector_norm(around.x)) / 10)
        probe = FlatProbe(around.value, around.grad, around.x, eps, gamma, radius)
        flat = search.vectors_below(gamma, _FLAT_DIRECTIONS)
        descent = probe.find_descent(flat, num_rays, torch.Generator().manual_seed(seed))
        kind = Kind.MINIMUM if descent is None else Kind.DEGENERATE
    kind = kind or Kind.UNDECIDED
    leads_down = kind in (Kind.STRICT_SADDLE, Kind.MAXIMUM)
    direction = vector if leads_down else descent.direction if descent else None
    is_certain = search.is_exact or kind is Kind.STRICT_SADDLE
    return Point(
        kind=kind,
        gradient_norm=gradient_norm,
        eps=eps,
        gamma=gamma,
        summary=_summary(kind, smallest, search, confidence, descent, gamma, around.has_values),
        lambda_min=smallest,
        lower=min(search.ends.lower, smallest),
        lambda_max=search.ends.largest,
        residual=residual,
        confidence=1.0 if is_certain else confidence,
        direction=None if direction is None else direction.reshape(around.shape),
        is_isolated=kind is Kind.MINIMUM and search.ends.lower >= gamma,
        drop=descent.drop if descent else None,
        distance=descent.distance if descent else None,
        value=value,
        num_hvp=operator.num_hvp,
    )


def _judge(ends: Ends, gamma: float) -> Enough:
    """Whether the bounds of one start suffice for one of the kinds."""
    if ends.smallest + ends.roundoff >= -gamma:
        is_flat = ends.lower >= -gamma and ends.smallest < gamma
        return Enough.HERE if ends.lower >= gamma or is_flat else Enough.NO
    if ends.largest <= -gamma:
        return Enough.HERE if ends.upper < -gamma else Enough.NO
    # Curvature below -gamma and curvature above it: a saddle. A little more work gives a direction
    # that deserves the name.
    return Enough.PROVED if ends.residual <= _PURITY * abs(ends.smallest) else Enough.NO


def _second_order_kind(search: SpectrumSearch, smallest: float, gamma: float) -> Kind | None:
    """The kind as far as the Hessian decides; None where flat directions must be followed."""
    ends = search.ends
    if smallest + ends.roundoff < -gamma:
        return Kind.MAXIMUM if ends.upper < -gamma else Kind.STRICT_SADDLE
    if ends.lower >= gamma:
        return Kind.MINIMUM
    # An assembled Hessian has no chance to it, only rounding, which gamma outweighs or not.
    if ends.lower >= -gamma or (search.is_exact and ends.smallest >= -gamma):
        return None
    return Kind.UNDECIDED


def _summary(
    kind: Kind,
    smallest: float,
    search: SpectrumSearch,
    confidence: float,
    descent: Descent | None,
    gamma: float,
    has_values: bool,
) -> str:
    ends = search.ends
    how = "" if search.is_exact else f" with confidence {confidence:.7g}"
    near_zero = f"smallest curvature {smallest:.2g} is within gamma = {gamma:.3g} of 0"
    if kind is Kind.STRICT_SADDLE:
        return f"curvature {smallest:.4g} < -gamma = {-gamma:.3g} along `direction`"
    if kind is Kind.MAXIMUM:
        return f"all curvatures are in [{smallest:.4g}, {ends.upper:.4g}], below -gamma{how}"
    if kind is Kind.MINIMUM:
        bound = f"all curvatures are at least {ends.lower:.4g}{how}"
        if ends.lower >= gamma:
            return bound
        return f"{bound}; f does not fall along the directions flatter than gamma = {gamma:.3g}"
    if descent is not None:
        where = f"at distance {descent.distance:.3g} along `direction`"
        return f"{near_zero}, and f falls by {descent.drop:.3g} {where}"
    if ends.lower >= -gamma and not has_values:
        return (
            f"{near_zero}, and there are no function values to follow it; give an object with "
            "value(x)"
        )
    remedy = "; allow more products with max_hvp"
    if ends.is_at_floor:
        remedy = ", and rounding allows no better; use float64, a larger gamma, or more starts"
    return (
        f"smallest curvature is in [{ends.lower:.4g}, {smallest:.4g}]{how}, which includes "
        f"-gamma = {-gamma:.3g}{remedy}"
    )


@dataclass(frozen=True)
class Descent:
    """A witness that x is no minimum: f(x + distance * direction) = f(x) - drop."""

    direction: Tensor
    distance: float
    drop: float


class FlatProbe:
    """f and its gradient around x, with the tolerance by which x would count as a minimum."""

    def __init__(
        self,
        value: Callable[[Tensor], float],
        grad: Callable[[Tensor], Tensor],
        x: Tensor,
        eps: float,
        gamma: float,
        radius: float,
    ) -> None:
        self.value, self.grad, self.x = value, grad, x
        self.eps, self.gamma, self.radius = eps, gamma, radius
        self._f0 = value(x)
        self._rounding = 64 * float(torch.finfo(x.dtype).eps) * max(abs(self._f0), 1e-300)

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

    def _tolerance(self, distance: float) -> float:
        return self.eps * distance + self.gamma * distance**2 / 2 + self._rounding

    def _walk(self, ray: Tensor) -> tuple[Descent | None, tuple[float, float]]:
        """Go along a ray until f leaves the tolerance; also the last (distance, change) within."""
        distance = _FIRST_DISTANCE * self.radius
        last_inside = (0.0, 0.0)
        while distance <= self.radius:
            change = self.value(self.x + distance * ray) - self._f0
            allowed = self._tolerance(distance)
            if change < -allowed:
                return Descent(ray, distance, -change), last_inside
            if not change <= allowed:  # climbs, or is not a number
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
