"""Is this point a minimum? `classify` answers: a kind, the numbers behind it, a sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asgld.curvature.flat import Descent, FlatProbe
from asgld.curvature.operator import SymmetricOperator
from asgld.curvature.spectrum import (
    DEFAULT_CONFIDENCE,
    DENSE_BELOW,
    MAX_BYTES,
    Ends,
    Search,
    Verdict,
    search_spectrum,
)
from asgld.oracle.functions import torch_function

# Flat directions kept of each Lanczos run to be searched for a way down.
_FLAT_DIRECTIONS = 4
# Residual, relative to the eigenvalue, at which a direction of negative curvature is reported.
_PURITY = 0.05


class Kind(Enum):
    """What a point is; the values are sentences."""

    MINIMUM = "a minimum: the gradient vanishes and no direction leads down"
    STRICT_SADDLE = "a strict saddle: the gradient vanishes and a direction curves down"
    DEGENERATE = "degenerate: curvature vanishes in a direction in which the function falls"
    MAXIMUM = "a maximum: the gradient vanishes and every direction curves down"
    NOT_STATIONARY = "not stationary: the gradient does not vanish"
    UNDECIDED = "undecided: what was computed does not settle it"


@dataclass(frozen=True, eq=False)
class Point:
    """What `classify` found at a point.

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
    confidence: float = DEFAULT_CONFIDENCE,
    seed: int = 0,
    starts: int = 2,
    max_hvp: int = 2000,
    dense_below: int = DENSE_BELOW,
    max_bytes: int = MAX_BYTES,
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
    for name, tolerance in (("eps", eps), ("gamma", gamma)):
        if not (tolerance > 0 and math.isfinite(tolerance)):
            raise ValueError(f"{name}={tolerance}: need a positive finite number")
    if radius is not None and not radius > 0:
        raise ValueError(f"radius={radius}: need a positive number, or None")
    if not isinstance(num_rays, int) or num_rays < 1:
        raise ValueError(f"num_rays={num_rays!r}: need a positive integer")
    around = Neighborhood(fun, x)
    gradient = around.grad(around.x)
    gradient_norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    value = around.value(around.x) if around.has_values else None
    if gradient_norm > eps:
        return Point(
            Kind.NOT_STATIONARY,
            gradient_norm,
            eps,
            gamma,
            f"the gradient has norm {gradient_norm:.3g} > eps = {eps:.3g}",
            value=value,
        )
    operator = around.hessian()
    search = search_spectrum(
        operator,
        lambda ends: _judge(ends, gamma),
        confidence=confidence,
        starts=starts,
        seed=seed,
        max_hvp=max_hvp,
        dense_below=dense_below,
        max_bytes=max_bytes,
    )
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


def _judge(ends: Ends, gamma: float) -> Verdict:
    """Whether the bounds of one start suffice for one of the kinds."""
    if ends.smallest + ends.roundoff < -gamma:
        if ends.largest > -gamma:
            # Curvature below -gamma and curvature above it: a saddle. A little more work gives a
            # direction that deserves the name.
            is_pure = ends.residual <= _PURITY * abs(ends.smallest)
            return Verdict.PROVED if is_pure else Verdict.GO_ON
        return Verdict.ENOUGH if ends.upper < -gamma else Verdict.GO_ON
    if ends.lower >= gamma or (ends.lower >= -gamma and ends.smallest < gamma):
        return Verdict.ENOUGH
    return Verdict.GO_ON


def _second_order_kind(search: Search, smallest: float, gamma: float) -> Kind | None:
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
    search: Search,
    confidence: float,
    descent: Descent | None,
    gamma: float,
    has_values: bool,
) -> str:
    ends = search.ends
    how = "" if search.is_exact else f" with confidence {confidence:.7g}"
    if kind is Kind.STRICT_SADDLE:
        return f"curvature {smallest:.4g} < -gamma = {-gamma:.3g} along `direction`"
    if kind is Kind.MAXIMUM:
        return f"all curvatures are in [{smallest:.4g}, {ends.upper:.4g}], below -gamma{how}"
    if kind is Kind.DEGENERATE:
        assert descent is not None
        return (
            f"smallest curvature {smallest:.2g} is within gamma = {gamma:.3g} of 0, and f falls by "
            f"{descent.drop:.3g} at distance {descent.distance:.3g} along `direction`"
        )
    if kind is Kind.MINIMUM:
        bound = f"all curvatures are at least {ends.lower:.4g}{how}"
        if ends.lower >= gamma:
            return bound
        return f"{bound}; f does not fall along the directions flatter than gamma = {gamma:.3g}"
    if ends.lower >= -gamma and not has_values:
        return (
            f"smallest curvature {smallest:.2g} is within gamma = {gamma:.3g} of 0, and there are "
            "no function values to follow it; give an object with value(x)"
        )
    if ends.is_at_floor:
        return (
            f"smallest curvature is in [{ends.lower:.4g}, {smallest:.4g}]{how}, which includes "
            f"-gamma = {-gamma:.3g}, and rounding allows no better; use float64, a larger gamma, "
            "or more starts"
        )
    return (
        f"smallest curvature is in [{ends.lower:.4g}, {smallest:.4g}]{how}, which includes "
        f"-gamma = {-gamma:.3g}; allow more products with max_hvp"
    )


class Neighborhood:
    """f, its gradient and its Hessian on flat vectors around x, whatever the user brought."""

    def __init__(self, fun: Any, x: Any) -> None:
        point = torch.as_tensor(x).detach()
        if not point.is_floating_point():
            point = point.to(torch.float64)
        if point.numel() == 0:
            raise ValueError("x is empty: need at least one coordinate")
        if not bool(torch.isfinite(point).all()):
            bad = int((~torch.isfinite(point)).sum())
            raise ValueError(f"x has {bad} of {point.numel()} entries NaN or infinite")
        self.shape = point.shape
        if hasattr(fun, "grad") and hasattr(fun, "hvp"):
            if hasattr(fun, "free"):  # an oracle: look without being counted
                fun = fun.free()
            dim = getattr(fun, "dim", None)
            if point.dim() != 1 or (dim is not None and dim != point.numel()):
                raise ValueError(
                    f"x has shape {tuple(point.shape)}: need one point of shape "
                    f"({'dim' if dim is None else dim},); classify replicas one by one"
                )
            self._f = fun
            self._call_shape: tuple[int, ...] = (point.numel(),)
        elif callable(fun):
            self._f = torch_function(lambda y: fun(y.reshape(point.shape)), point.numel())
            self._call_shape = (1, point.numel())  # it takes rows
        else:
            raise TypeError(
                f"fun is {type(fun).__name__}: need a torch function of x, or an object with "
                "grad(x) and hvp(x, v)"
            )
        # A model computes where its parameters are, and in their type.
        dtype, device = getattr(fun, "dtype", None), getattr(fun, "device", None)
        self.x = point.reshape(-1).to(
            dtype=dtype if isinstance(dtype, torch.dtype) else torch.float64, device=device
        )
        self.has_values = hasattr(self._f, "value")

    def value(self, y: Tensor) -> float:
        result = torch.as_tensor(self._f.value(y.reshape(self._call_shape)))
        if result.numel() != 1:
            raise ValueError(
                f"value(x) has shape {tuple(result.shape)}: need a scalar at one point x"
            )
        return float(result)

    def grad(self, y: Tensor) -> Tensor:
        gradient = torch.as_tensor(self._f.grad(y.reshape(self._call_shape)))
        if gradient.shape != self._call_shape:
            raise ValueError(
                f"grad(x) has shape {tuple(gradient.shape)}: need the shape {tuple(y.shape)} of x"
            )
        gradient = gradient.detach().reshape(-1).to(self.x)
        if y is self.x and not bool(torch.isfinite(gradient).all()):
            bad = int((~torch.isfinite(gradient)).sum())
            raise ValueError(
                f"grad(x) has {bad} of {y.numel()} entries NaN or infinite: f is not "
                "differentiable at x"
            )
        return gradient

    def hessian(self) -> SymmetricOperator:
        x = self.x.reshape(self._call_shape)

        def product(v: Tensor) -> Tensor:
            result = torch.as_tensor(self._f.hvp(x, v.reshape(self._call_shape)))
            return result.reshape(-1) if result.shape == self._call_shape else result

        return SymmetricOperator(product, x.numel(), dtype=x.dtype, device=x.device)
