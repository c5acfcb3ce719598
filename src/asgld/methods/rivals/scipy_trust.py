"""The trust-region methods of scipy, one iteration per step, every call through the oracle.

`scipy.optimize.minimize` runs to its end and cannot be paused. Here each step is a call of it from
the current point, with the trust radius at which that point was reached and ``maxiter`` one more
than the steps already rejected there: those are repeated from memory, so that scipy's sub-problem
solver knows what it would know, and one new step is tried. What was computed before is remembered,
nothing is charged twice, and points and counts are those of one uninterrupted call. scipy does not
report the radius that it ends with, but all that decides it passes through the functions it calls,
so its rule is applied outside.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asgld._require import require, require_positive
from asgld.methods.base import State
from asgld.oracle import Oracle

Array = npt.NDArray[np.float64]

# scipy's rule for the radius (Nocedal and Wright, Algorithm 4.1).
_POOR, _GOOD, _SHRINK, _GROW = 0.25, 0.75, 0.25, 2.0
# A step is at the boundary, or solves the Newton equation, up to this relative error.
_TOLERANCE = 1e-8


@dataclass(kw_only=True)
class TrustState(State):
    """What is known at x, where the search stands; None is not yet computed.

    `radius` is that with which x was reached; each rejected step has shrunk it since.
    """

    radius: float
    rejected: Tensor  # (m, d): points that were tried from x
    rejected_values: Tensor  # (m,)
    value: Tensor | None = None
    grad: Tensor | None = None
    hessian: Tensor | None = None
    vectors: Tensor | None = None  # (p, d): arguments of Hessian products at x
    products: Tensor | None = None  # (p, d)


@dataclass
class _Point:
    """A point and the answers of the oracle there."""

    x: Array
    value: float | None = None
    grad: Array | None = None
    hessian: Array | None = None
    products: dict[bytes, Array] = field(default_factory=dict)

    @classmethod
    def of(cls, state: TrustState) -> Self:
        point = cls(state.x.numpy().copy())
        if state.value is not None:
            point.value = float(state.value)
        if state.grad is not None:
            point.grad = state.grad.numpy().copy()
        if state.hessian is not None:
            point.hessian = state.hessian.numpy().copy()
        if state.vectors is not None and state.products is not None:
            pairs = zip(state.vectors.numpy(), state.products.numpy(), strict=True)
            point.products = {v.tobytes(): p.copy() for v, p in pairs}
        return point

    def state(self, radius: float, rejected: dict[bytes, float]) -> TrustState:
        state = TrustState(
            x=torch.from_numpy(self.x.copy()),
            radius=radius,
            rejected=_rows(rejected, len(self.x)),
            rejected_values=torch.tensor(list(rejected.values()), dtype=torch.float64),
        )
        if self.value is not None:
            state.value = torch.tensor(self.value, dtype=torch.float64)
        if self.grad is not None:
            state.grad = torch.from_numpy(self.grad.copy())
        if self.hessian is not None:
            state.hessian = torch.from_numpy(self.hessian.copy())
        if self.products:
            state.vectors = _rows(self.products, len(self.x))
            state.products = torch.from_numpy(np.stack(list(self.products.values())))
        return state


def _rows(keys: dict[bytes, Any], dim: int) -> Tensor:
    """The vectors that serve as keys."""
    return torch.from_numpy(np.frombuffer(b"".join(keys)).reshape(-1, dim).copy())


class _Watch:
    """What scipy calls instead of f: it asks the oracle once, and remembers.

    scipy looks at the current point, at the points it rejected before, of which the value alone
    matters, and at one new point.
    """

    def __init__(self, oracle: Oracle, state: TrustState) -> None:
        self.oracle = oracle
        self.here = _Point.of(state)
        self.rejected = {
            x.tobytes(): float(value)
            for x, value in zip(state.rejected.numpy(), state.rejected_values, strict=True)
        }
        self.proposed: _Point | None = None
        self.last_product = np.zeros_like(self.here.x)

    def _at(self, x: Array) -> _Point:
        if np.array_equal(x, self.here.x):
            return self.here
        if x.tobytes() in self.rejected:
            # Derivatives there are never used, but must be finite.
            return _Point(x, self.rejected[x.tobytes()], self.here.grad, self.here.hessian)
        if self.proposed is None:
            self.proposed = _Point(x.copy())
        assert np.array_equal(x, self.proposed.x)
        return self.proposed

    def value(self, x: Array) -> float:
        point = self._at(x)
        if point.value is None:
            value = float(self._ask(self.oracle.value, x))
            # scipy would propose a point of value nan again and again; it rejects infinity.
            point.value = value if math.isfinite(value) else math.inf
            if value != point.value:
                point.grad, point.hessian = self.here.grad, self.here.hessian
        return point.value

    def grad(self, x: Array) -> Array:
        point = self._at(x)
        if point.grad is None:
            point.grad = _finite(self._ask(self.oracle.grad, x))
        return point.grad

    def hessian(self, x: Array) -> Array:
        point = self._at(x)
        if point.hessian is None:
            point.hessian = _finite(self._ask(self.oracle.hessian, x))
        return point.hessian

    def hvp(self, x: Array, vector: Array) -> Array:
        known = self._at(x).products
        key = np.array(vector).tobytes()
        if key not in known:
            known[key] = _finite(self._ask(self.oracle.hvp, x, vector))
        self.last_product = known[key]
        return self.last_product

    def _ask(self, call: Callable[..., Tensor], *arguments: Array) -> Array:
        # Copies: scipy reuses some of its arrays.
        answer = call(*(torch.from_numpy(np.array(a, dtype=np.float64)) for a in arguments))
        return answer.detach().numpy().copy()


def _finite(answer: Array) -> Array:
    if not np.isfinite(answer).all():
        raise FloatingPointError
    return answer


@dataclass(frozen=True)
class _ScipyTrust(ABC):
    """Common part of the two methods."""

    radius: float = 1.0
    max_radius: float = 1000.0
    grad_tol: float = 1e-4

    name: ClassVar[str]
    is_batched: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_positive(self, "radius", "max_radius", "grad_tol")
        allowed = f"<= max_radius={self.max_radius}"
        require(self.radius <= self.max_radius, "radius", self.radius, allowed)

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> TrustState:
        return _Point(x0.detach().numpy().copy()).state(self.radius, {})

    def step(self, oracle: Oracle, state: TrustState) -> TrustState:
        watch = _Watch(oracle, state)
        num_rejected = len(watch.rejected)
        try:
            result = _import_minimize()(
                watch.value,
                watch.here.x.copy(),
                jac=watch.grad,
                method=self.name,
                options={
                    "initial_trust_radius": state.radius,
                    # The largest radius is seen to here; scipy refuses to start with it.
                    "max_trust_radius": math.inf,
                    "gtol": self.grad_tol,
                    "maxiter": num_rejected + 1,
                },
                **self._curvature(watch),
            )
        except FloatingPointError:
            state.x = torch.full_like(state.x, math.nan)
            return state
        proposed = watch.proposed
        if proposed is None:
            next_state = watch.here.state(state.radius, watch.rejected)
        elif np.array_equal(result.x, proposed.x):
            radius = self._next_radius(watch, proposed.x, state.radius * _SHRINK**num_rejected)
            next_state = proposed.state(radius, {})
        else:
            watch.rejected[proposed.x.tobytes()] = watch.value(proposed.x)
            next_state = watch.here.state(state.radius, watch.rejected)
        if int(result.status) != 1:
            next_state.finished, next_state.message = True, str(result.message)
        elif proposed is None:
            next_state.finished, next_state.message = True, "steps are below the rounding of x"
        return next_state

    @abstractmethod
    def _curvature(self, watch: _Watch) -> dict[str, Any]:
        """What scipy is told of second derivatives."""

    def _next_radius(self, watch: _Watch, proposed: Array, radius: float) -> float:
        """scipy's rule after a step that it accepted."""
        x, grad, step = watch.here.x, watch.grad(watch.here.x), proposed - watch.here.x
        product = self._product(watch, step)
        predicted = -float(grad @ step + 0.5 * step @ product)
        ratio = (watch.value(x) - watch.value(proposed)) / predicted
        if ratio < _POOR:
            return _SHRINK * radius
        if ratio > _GOOD and self._hits_boundary(step, product, grad, radius):
            return min(_GROW * radius, self.max_radius)
        return radius

    @abstractmethod
    def _product(self, watch: _Watch, step: Array) -> Array:
        """The Hessian at the current point times the step, at no charge."""

    @abstractmethod
    def _hits_boundary(self, step: Array, product: Array, grad: Array, radius: float) -> bool:
        """Whether the solver says that the step ends at the trust radius."""


# ---- trust-krylov: Felix Lenders, Christian Kirches, Andreas Potschka, 2018 ----


@dataclass(frozen=True)
class TrustKrylov(_ScipyTrust):
    r"""scipy's trust region in Krylov spaces of Hessian products.

    .. math:: x_{k+1} = x_k + \arg\min_{\|s\| \le r_k} \left( \nabla f(x_k)^\top s
              + \tfrac12 s^\top \nabla^2 f(x_k) s \right)

    ``scipy.optimize.minimize(method="trust-krylov")`` one iteration at a time. It ends where the
    gradient is small, at a saddle too; from an exact saddle it does not move.

    Args:
        radius: the first r.
        max_radius: the largest.
        grad_tol: end at a gradient norm below this.

    References:
        F. Lenders, C. Kirches, A. Potschka: trlib: a vector-free implementation of the GLTR method
        for iterative solution of the trust region problem. Optimization Methods and Software 2018.
    """

    name: ClassVar[str] = "trust-krylov"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"value", "grad", "hvp"})

    def _curvature(self, watch: _Watch) -> dict[str, Any]:
        return {"hessp": watch.hvp}

    def _product(self, watch: _Watch, step: Array) -> Array:
        # scipy's last product is the one with the step, for its prediction.
        return watch.last_product

    def _hits_boundary(self, step: Array, product: Array, grad: Array, radius: float) -> bool:
        return bool(np.linalg.norm(step) >= (1.0 - _TOLERANCE) * radius)


# ---- trust-exact: Jorge Moré, Danny Sorensen, 1983 ----


@dataclass(frozen=True)
class TrustExact(_ScipyTrust):
    r"""scipy's trust region with Cholesky factorizations of the Hessian.

    The step is that of :class:`TrustKrylov`, solved to 10 % by shifting the Hessian until it is
    positive definite and the step is short enough.

    ``scipy.optimize.minimize(method="trust-exact")`` one iteration at a time. It asks for the
    Hessian at every proposed point, also of rejected steps. It ends where the gradient is small, at
    a saddle too.

    Args:
        radius: the first r.
        max_radius: the largest.
        grad_tol: end at a gradient norm below this.

    References:
        J. Moré, D. Sorensen: Computing a trust region step. SIAM Journal on Scientific and
        Statistical Computing 1983.
    """

    name: ClassVar[str] = "trust-exact"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"value", "grad", "hessian"})

    def _curvature(self, watch: _Watch) -> dict[str, Any]:
        return {"hess": watch.hessian}

    def _product(self, watch: _Watch, step: Array) -> Array:
        product: Array = watch.hessian(watch.here.x) @ step
        return product

    def _hits_boundary(self, step: Array, product: Array, grad: Array, radius: float) -> bool:
        # The solver ends up to 10 % away from the boundary, and inside only by a Newton step.
        is_newton = np.linalg.norm(grad + product) <= _TOLERANCE * np.linalg.norm(grad)
        return bool(np.linalg.norm(step) > radius or not is_newton)


def _import_minimize() -> Callable[..., Any]:
    try:
        from scipy.optimize import minimize
    except ImportError as error:
        raise ImportError(
            "the trust-krylov and trust-exact methods need scipy: pip install 'asgld[scipy]'"
        ) from error
    function: Callable[..., Any] = minimize
    return function
