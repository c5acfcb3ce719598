r"""Is this point a minimum? `classify` answers: a kind, the numbers behind it, a sentence.

Tolerances are relative to the function unless the user gives them; `asgld.curvature.relative` has
that judgment. With `eps` and `gamma` given, a point is a minimum in the sense of theorems: gradient
at most eps, curvatures at least -gamma. Flat directions are then followed
(`asgld.curvature.flat`), and at distance t f may change by

    tolerance(t) = eps t + gamma t^2 / 2 + rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from asgld.arguments import require
from asgld.curvature.flat import Descent, FlatProbe
from asgld.curvature.kinds import Kind, Point
from asgld.curvature.nonsmooth import Kinks, Penalized
from asgld.curvature.operator import Neighborhood
from asgld.curvature.relative import Examination, examine
from asgld.curvature.spectrum import Effort, Ends, Enough, SpectrumSearch
from asgld.oracle.composite import ActiveManifold, bind
from asgld.oracle.forms import read_start
from asgld.prox import BoundPenalty, Penalty

__all__ = ["Kind", "Point", "classify"]

# Flat directions kept of each Lanczos run to be searched for a way down.
_FLAT_DIRECTIONS = 4
# Residual, relative to the eigenvalue, at which a direction of negative curvature is reported.
_PURITY = 0.05


def classify(
    fun: Any,
    x: Any,
    *,
    prox: Any = None,
    eps: float | None = None,
    gamma: float | None = None,
    scale: Any = None,
    fall: float = 0.0,
    confidence: float = Effort.confidence,
    seed: int = Effort.seed,
    starts: int = Effort.starts,
    max_hvp: int = 2000,
    dense_below: int = Effort.dense_below,
    max_bytes: int = Effort.max_bytes,
    num_rays: int = 6,
    radius: float | None = None,
) -> Point:
    r"""Tell what kind of critical point x is.

    By default tolerances are relative to the function: the verdict stays if f has other units, and
    if coordinates have, with `scale` in these units; see `asgld.curvature.relative`. With eps and
    gamma:

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
        x: the point, of any shape for a function, of shape (dim,) for an object. For a function it
            may be a dict or tuple of tensors, as for `minimize`; `direction` has its form, and
            `prox` may have it.
        prox: a penalty g of `asgld.prox`: x then is judged for F = f + g, on the active manifold of
            g; `asgld.curvature.nonsmooth` says how. The gradient norm is that of the gradient
            mapping x - prox(x - grad f(x)). Entries that this would set to zero count as zeros if F
            hardly changes by that.
        eps: largest gradient norm that counts as zero; None for one that promises a decrease of
            1e-10 of the scale of f.
        gamma: curvatures within [-gamma, gamma) count as flat; None for the relative judgment, in
            which a minimum is a bowl, and flat is DEGENERATE. For eps-accurate points of a
            function with rho-Lipschitz Hessian gamma = sqrt(rho eps) is the usual choice.
        scale: scale of the coordinates, of x's shape or a number; by default max(1, \|x_i\|). For
            coordinates much smaller than 1 say it.
        fall: how far f fell to get here, where that is known: a part of the scale of f.
        confidence, seed, starts, max_hvp, dense_below, max_bytes: see `lambda_min`.
        num_rays: flat lines to follow, to both sides.
        radius: how far to follow them; by default max(1, \|x\| / 10).

    >>> saddle = classify(lambda x: x[0] ** 2 - x[1] ** 2, torch.zeros(2))
    >>> saddle.kind.name, saddle.lambda_min, saddle.direction.abs().tolist()
    ('STRICT_SADDLE', -2.0, [0.0, 1.0])
    >>> classify(lambda x: (x[0] * x[1] - 1) ** 2, torch.ones(2), eps=1e-6, gamma=1e-3).kind.name
    'MINIMUM'
    >>> classify(lambda x: x[0] ** 3, torch.zeros(2), eps=1e-6, gamma=1e-3).kind.name
    'DEGENERATE'
    """
    for name, tolerance in (("eps", eps), ("gamma", gamma)):
        is_right = tolerance is None or 0 < tolerance < math.inf
        require(is_right, name, tolerance, "a positive finite number, or None for a relative one")
    require(radius is None or radius > 0, "radius", radius, "a positive number, or None")
    is_count = isinstance(num_rays, int) and num_rays >= 1
    require(is_count, "num_rays", num_rays, "a positive integer")
    effort = Effort(confidence, starts, seed, max_hvp, dense_below, max_bytes)
    form = None
    if isinstance(x, Mapping | tuple) and callable(fun):
        form, rows = read_start(x)
        of_parts, x = fun, rows[0]
        fun = lambda y: of_parts(form.split_tensor(y))  # noqa: E731
        prox = bind(prox, form) if isinstance(prox, Mapping | tuple) else prox
    if prox is not None and not isinstance(prox, Penalty | BoundPenalty):
        raise TypeError(
            f"prox={prox!r}: need a penalty of asgld.prox, or penalties in the form of x"
        )
    around = Neighborhood(fun, x)
    given = None if scale is None else torch.as_tensor(scale).to(around.x)
    if given is not None:
        is_right = given.numel() in (1, around.dim) and bool((given >= 0).all())
        require(is_right, "scale", scale, "numbers of at least 0, one or as many as x has")
        given = given.reshape(-1).expand(around.dim)
    inside = _Inside(effort, eps, gamma, fall, num_rays, radius)
    point = (
        inside.judged(around, given)[0]
        if prox is None
        else _with_penalty(around, prox, inside, given)
    )
    if point.direction is None:
        return point
    direction = point.direction.reshape(around.shape)
    return replace(point, direction=direction if form is None else form.to_user(direction))


def _with_penalty(
    around: Neighborhood, prox: Penalty | BoundPenalty, inside: _Inside, given: Tensor | None
) -> Point:
    """The verdict on f + g."""
    eps = inside.eps
    penalty = prox if isinstance(prox, BoundPenalty) else prox.on(around.shape)
    kinks = Kinks.nearby(
        Penalized(around, penalty),
        penalty,
        around.x,
        around.gradient,
        eps,
        scale=torch.ones_like(around.x) if given is None else given,
        fall=inside.fall,
    )

    def judge(manifold: ActiveManifold) -> tuple[Point, Examination | None]:
        scales = None if given is None else manifold.lengths(given)
        how = replace(inside, eps=kinks.tolerance(manifold, eps))
        return how.judged(Neighborhood(manifold, manifold.start), scales)

    return kinks.judged(judge, eps)


@dataclass(frozen=True)
class _Inside:
    """How a smooth function is judged."""

    effort: Effort
    eps: float | None
    gamma: float | None
    fall: float
    num_rays: int
    radius: float | None

    def judged(
        self, around: Neighborhood, scale: Tensor | None
    ) -> tuple[Point, Examination | None]:
        """The verdict, and the examination behind it if tolerances are relative."""
        exam, eps = None, self.eps
        if eps is None or self.gamma is None:
            exam = examine(around, self.effort, scale=scale, fall=self.fall)
            point = exam.point(eps, self.num_rays, self.effort.seed)
            if self.gamma is None or point.kind is Kind.NOT_STATIONARY:
                return point, exam
            eps = max(point.eps, point.gradient_norm, 1e-300)
            eps = eps if math.isfinite(eps) else 1e-300
        return _with_tolerances(
            around, self.effort, eps, self.gamma, self.num_rays, self.radius
        ), exam


def _with_tolerances(
    around: Neighborhood,
    effort: Effort,
    eps: float,
    gamma: float,
    num_rays: int,
    radius: float | None,
) -> Point:
    """The verdict of theorems: gradient at most eps, curvatures at least -gamma."""
    gradient = around.gradient
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
        assert value is not None
        rounding = 64 * float(torch.finfo(around.x.dtype).eps) * max(abs(value), 1e-300)
        probe = FlatProbe(
            around.value,
            around.grad,
            around.x,
            radius=radius,
            tolerance=lambda t: eps * t + gamma * t**2 / 2 + rounding,
            value0=value,
        )
        flat = search.vectors_below(gamma, _FLAT_DIRECTIONS)
        descent = probe.find_descent(flat, num_rays, torch.Generator().manual_seed(effort.seed))
        kind = Kind.MINIMUM if descent is None else Kind.DEGENERATE
    kind = kind or Kind.UNDECIDED
    leads_down = kind in (Kind.STRICT_SADDLE, Kind.MAXIMUM)
    direction = vector if leads_down else descent.direction if descent else None
    is_certain = search.is_exact or kind is Kind.STRICT_SADDLE
    confidence = effort.confidence
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
