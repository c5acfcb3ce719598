"""The trust-region methods of scipy, one iteration per step, every call through the oracle.

`scipy.optimize.minimize` runs to its end and cannot be paused. Here each step is a call of it from
the current point, with the trust radius at which that point was reached and ``maxiter`` one more
than the steps already rejected there: those are repeated from memory, so that scipy's sub-problem
solver knows what it would know, and one new step is tried. The memory answers what was asked
before, nothing is charged twice, and points and counts are those of one uninterrupted call. scipy
does not report the radius that it ends with, but all that decides the radius passes through the
functions that scipy calls, so its rule is applied outside.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asgld.arguments import require, require_positive
from asgld.methods.base import State, Surroundings
from asgld.methods.rivals.shared import Rival
from asgld.oracle import Oracle

Array = npt.NDArray[np.float64]

# scipy's rule for the radius (Nocedal and Wright, Algorithm 4.1).
_POOR, _GOOD, _SHRINK, _GROW = 0.25, 0.75, 0.25, 2.0
# A step is at the boundary, or solves the Newton equation, up to this relative error.
_TOLERANCE = 1e-8


@dataclass(kw_only=True)
class TrustState(State):
    """The answers known at x, where the search stands; None is not yet computed.

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


class _Memory:
    """What scipy calls instead of f: each question goes to the oracle once.

    scipy looks at the current point, at the points it rejected before, of which the value alone
    matters, and at one new point, the proposed one.
    """

    def __init__(self, oracle: Oracle, state: TrustState) -> None:
        self.calls: dict[str, Callable[..., Tensor]] = {
            "value": oracle.value,
            "grad": oracle.grad,
            "hessian": oracle.hessian,
            "hvp": oracle.hvp,
        }
        self.here: Array = state.x.numpy().copy()
        self.proposed: Array | None = None
        self.last_product = np.zeros_like(self.here)
        points, values = state.rejected.numpy(), state.rejected_values.numpy()
        self.rejected: dict[bytes, Array] = {
            _key(x): np.array(value) for x, value in zip(points, values, strict=True)
        }
        # (kind, point, vector) -> answer
        self.answers: dict[tuple[str, bytes, bytes], Array] = {}
        known = {"value": state.value, "grad": state.grad, "hessian": state.hessian}
        for kind, answer in known.items():
            if answer is not None:
                self.answers[kind, _key(self.here), b""] = answer.numpy().copy()
        if state.vectors is not None and state.products is not None:
            for v, product in zip(state.vectors.numpy(), state.products.numpy(), strict=True):
                self.answers["hvp", _key(self.here), v.tobytes()] = product.copy()

    def ask(self, kind: str, x: Array, vector: Array | None = None) -> Array:
        if _key(x) in self.rejected:
            if kind == "value":
                return self.rejected[_key(x)]
            x = self.here  # derivatives at x are never used, but must be finite
        elif self.proposed is None and not np.array_equal(x, self.here):
            self.proposed = x.copy()
        question = kind, _key(x), b"" if vector is None else np.array(vector).tobytes()
        if question not in self.answers:
            # Copies: scipy reuses some of its arrays.
            arguments = [np.array(a, dtype=np.float64) for a in (x, vector) if a is not None]
            answer = self.calls[kind](*map(torch.from_numpy, arguments)).detach().numpy().copy()
            if not np.isfinite(answer).all():
                if kind != "value":
                    raise FloatingPointError
                # scipy would propose a point of value nan again and again; it rejects infinity.
                answer = self.rejected[_key(x)] = np.array(math.inf)
            self.answers[question] = answer
        if kind == "hvp":
            self.last_product = self.answers[question]
        return self.answers[question]

    def value(self, x: Array) -> float:
        return float(self.ask("value", x))

    def state(self, x: Array, radius: float, rejected: dict[bytes, Array]) -> TrustState:
        """The state of a search that stands at x."""
        here = {
            (kind, vector): torch.from_numpy(answer.copy())
            for (kind, point, vector), answer in self.answers.items()
            if point == _key(x)
        }
        products = {vector: answer for (kind, vector), answer in here.items() if kind == "hvp"}
        return TrustState(
            x=torch.from_numpy(x.copy()),
            radius=radius,
            rejected=_rows(rejected, len(x)),
            rejected_values=torch.from_numpy(np.array([*rejected.values()], dtype=np.float64)),
            value=here.get(("value", b"")),
            grad=here.get(("grad", b"")),
            hessian=here.get(("hessian", b"")),
            vectors=_rows(products, len(x)) if products else None,
            products=torch.stack(list(products.values())) if products else None,
        )


def _key(x: Array) -> bytes:
    """The point as a key; adding 0 makes 0 of -0, which compare equal."""
    return (x + 0.0).tobytes()


def _rows(keys: Collection[bytes], dim: int) -> Tensor:
    """The vectors that serve as keys."""
    return torch.from_numpy(np.frombuffer(b"".join(keys)).reshape(-1, dim).copy())


@dataclass(frozen=True)
class _ScipyTrust(Rival, ABC):
    """Common part of the two methods, which end where the gradient is small, at a saddle too.

    Args:
        radius: the first r.
        max_radius: the largest.
        grad_tol: end at a gradient norm below this.
    """

    radius: float = 1.0
    max_radius: float = 1000.0
    grad_tol: float = 1e-4

    name: ClassVar[str]
    is_batched: ClassVar[bool] = False
    has_noise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_positive(self, "radius", "max_radius", "grad_tol")
        allowed = f"<= max_radius={self.max_radius}"
        require(self.radius <= self.max_radius, "radius", self.radius, allowed)

    def fitted(self, around: Surroundings) -> dict[str, Any]:
        radii = self._range("radius", "max_radius", 0.1 * around.length, 1e3 * around.length)
        return {**radii, "grad_tol": around.eps}

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> TrustState:
        none = x0.new_zeros(0, len(x0))
        return TrustState(
            x=x0.clone(), radius=self.radius, rejected=none, rejected_values=none[:, 0]
        )

    def step(self, oracle: Oracle, state: TrustState) -> TrustState:
        memory = _Memory(oracle, state)
        num_rejected = len(memory.rejected)
        try:
            result = _import_minimize()(
                memory.value,
                memory.here.copy(),
                jac=partial(memory.ask, "grad"),
                method=self.name,
                options={
                    "initial_trust_radius": state.radius,
                    # The largest radius is seen to here; scipy refuses to start with it.
                    "max_trust_radius": math.inf,
                    "gtol": self.grad_tol,
                    "maxiter": num_rejected + 1,
                },
                **self._curvature(memory),
            )
        except FloatingPointError:
            state.x = torch.full_like(state.x, math.nan)
            return state
        proposed = memory.proposed
        if proposed is not None and np.array_equal(result.x, proposed):
            radius = self._next_radius(memory, proposed, state.radius * _SHRINK**num_rejected)
            after = memory.state(proposed, radius, {})
        else:
            if proposed is not None:
                memory.rejected[_key(proposed)] = memory.ask("value", proposed)
            after = memory.state(memory.here, state.radius, memory.rejected)
        if int(result.status) != 1:
            after.finished, after.message = True, str(result.message)
        elif proposed is None:
            after.finished, after.message = True, "steps are below the rounding of x"
        return after

    @abstractmethod
    def _curvature(self, memory: _Memory) -> dict[str, Any]:
        """What scipy is told of second derivatives."""

    def _next_radius(self, memory: _Memory, proposed: Array, radius: float) -> float:
        """scipy's rule after a step that it accepted."""
        x = memory.here
        grad, step = memory.ask("grad", x), proposed - x
        product = self._product(memory, step)
        predicted = -float(grad @ step + 0.5 * step @ product)
        ratio = (memory.value(x) - memory.value(proposed)) / predicted
        if ratio < _POOR:
            return _SHRINK * radius
        if ratio > _GOOD and self._hits_boundary(step, product, grad, radius):
            return min(_GROW * radius, self.max_radius)
        return radius

    @abstractmethod
    def _product(self, memory: _Memory, step: Array) -> Array:
        """The Hessian at the current point times the step, at no charge."""

    @abstractmethod
    def _hits_boundary(self, step: Array, product: Array, grad: Array, radius: float) -> bool:
        """Whether the solver says that the step ends at the trust radius."""


@dataclass(frozen=True)
class TrustKrylov(_ScipyTrust):
    r"""scipy's trust region in Krylov spaces of Hessian products.

    .. math:: x_{k+1} = x_k + \arg\min_{\|s\| \le r_k} \left( \nabla f(x_k)^\top s
              + \tfrac12 s^\top \nabla^2 f(x_k) s \right)

    ``scipy.optimize.minimize(method="trust-krylov")`` one iteration at a time. From an exact saddle
    it does not move.

    References:
        F. Lenders, C. Kirches, A. Potschka: trlib: a vector-free implementation of the GLTR method
        for iterative solution of the trust region problem. Optimization Methods and Software 2018.
    """

    name: ClassVar[str] = "trust-krylov"
    needs: ClassVar[frozenset[str]] = frozenset({"value", "grad", "hvp"})

    def _curvature(self, memory: _Memory) -> dict[str, Any]:
        return {"hessp": partial(memory.ask, "hvp")}

    def _product(self, memory: _Memory, step: Array) -> Array:
        # scipy's last product is the one with the step, for its prediction.
        return memory.last_product

    def _hits_boundary(self, step: Array, product: Array, grad: Array, radius: float) -> bool:
        return bool(np.linalg.norm(step) >= (1.0 - _TOLERANCE) * radius)


@dataclass(frozen=True)
class TrustExact(_ScipyTrust):
    r"""scipy's trust region with Cholesky factorizations of the Hessian.

    The step is that of :class:`TrustKrylov`, solved to 10 % by shifting the Hessian until it is
    positive definite and the step is short enough.

    ``scipy.optimize.minimize(method="trust-exact")`` one iteration at a time. It asks for the
    Hessian at every proposed point, also of rejected steps.

    References:
        J. Moré, D. Sorensen: Computing a trust region step. SIAM Journal on Scientific and
        Statistical Computing 1983.
    """

    name: ClassVar[str] = "trust-exact"
    needs: ClassVar[frozenset[str]] = frozenset({"value", "grad", "hessian"})

    def _curvature(self, memory: _Memory) -> dict[str, Any]:
        return {"hess": partial(memory.ask, "hessian")}

    def _product(self, memory: _Memory, step: Array) -> Array:
        product: Array = memory.ask("hessian", memory.here) @ step
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
