"""What a point can be, and what is known of one that was judged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torch import Tensor


class Kind(Enum):
    """The kind of a point; the values are sentences."""

    MINIMUM = "a minimum: the gradient vanishes and no direction leads down"
    STRICT_SADDLE = "a strict saddle: the gradient vanishes and a direction curves down"
    DEGENERATE = "degenerate: the gradient vanishes, and so does the curvature in some direction"
    MAXIMUM = "a maximum: the gradient vanishes and every direction curves down"
    NOT_STATIONARY = "not stationary: the gradient does not vanish"
    UNBOUNDED = "unbounded: the function falls without end"
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
    eps, gamma      the tolerances: as given, or what the relative ones mean at x, in units of the
                    gradient along itself and of the curvature along the lowest direction
    direction       unit vector that leads down: along negative curvature at a strict saddle or a
                    maximum, of the descent found at a degenerate point; else None
    is_isolated     at a minimum: whether f is a bowl around it. With `gamma` given: whether every
                    curvature is at least gamma, otherwise the minimum may be flat
    drop, distance  at a degenerate point: f(x + distance * direction) = f(x) - drop; None where f
                    was not found to fall
    num_flat        directions along which curvature vanishes, of those that were computed
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
    num_flat: int = 0
    value: float | None = None
    num_hvp: int = 0

    def __str__(self) -> str:
        return f"{self.kind.name}: {self.summary}"

    def __repr__(self) -> str:
        return f"<Point {self}>"
