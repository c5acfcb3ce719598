"""Methods that see the Hessian: cubic-regularized Newton steps and the TRACE trust region.

One replica at a time. Both finish by themselves at a point with gradient norm at most eps and
smallest curvature at least -gamma, which the factorization of the Hessian tells for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from asgld.arguments import require, require_at_least, require_at_least_zero, require_positive
from asgld.methods.base import SeededState, Surroundings, normals
from asgld.methods.rivals.shared import (
    CurvatureMethod,
    at_second_order,
    finite,
    hessian_at,
    lowest_curvature,
    require_probability,
)
from asgld.methods.rivals.subproblem import (
    Eigen,
    Solution,
    cubic_exact,
    cubic_krylov,
    trust_region_exact,
)
from asgld.oracle import Oracle

# Rounding of f: a value may be above the bound by this much, relative to |f|, and still pass.
_ROUNDING = 4e-16
# The probe of the Krylov solver and the sign at a saddle have streams of normals of their own.
_PROBE_STREAM, _SIGN_STREAM = 1, 2
_STUCK = "no lower value was found within rounding"


def _best_trial(oracle: Oracle, state: SeededState, solution: Solution) -> tuple[Tensor, float]:
    """The point after the step, and f there.

    In the hard case the model cannot tell two steps apart: f does, and chance where f cannot.
    """
    x, steps = state.x, [solution.step]
    if solution.mirror is not None:
        steps.append(solution.mirror)
        if float(normals(state.seed, state.step, x[:1], _SIGN_STREAM)) < 0.0:
            steps.reverse()
    trials = [(x + s, float(oracle.value(x + s))) for s in steps]
    return min(trials, key=lambda trial: math.inf if math.isnan(trial[1]) else trial[1])


def _eigen(oracle: Oracle, x: Tensor) -> Eigen:
    hessian = finite(oracle.hessian(x))
    oracle.tally("eigh")
    return Eigen.of(hessian)


@dataclass(kw_only=True)
class CubicNewtonState(SeededState):
    value: float  # f(x); nan where it was not asked for
    regularization: float


@dataclass(frozen=True)
class CubicNewton(CurvatureMethod):
    r"""Newton steps on a model with a cubic term, which leave saddles as well.

    .. math:: x_{k+1} = x_k + \arg\min_s\; g^\top s + \tfrac12 s^\top H s + \tfrac{M_k}{6} \|s\|^3

    Algorithm (3.3) of the paper; differs from it in nothing with `is_adaptive=False`, where
    :math:`M_k` is fixed and every step is taken. By default :math:`M_k` doubles until the model
    bounds f at the new point, :math:`f(x_{k+1}) \le m(x_{k+1})`, and then halves for the next step:
    the paper leaves that search open (its section 5). All trials share the eigenvalues of one
    Hessian. Where g has no part along the lowest eigenvector, and above all at an exact saddle, the
    model has two minimizers; the one of lower f is taken.

    Each step lowers f by :math:`(M_k / 12) \|s\|^3` at least, if :math:`M_k \ge \rho` or adaptive.

    Args:
        regularization: M_k, or the first of them. Twice the sigma of Cartis, Gould and Toint.
        is_adaptive: search for M_k.
        min_regularization: lower bound on M_k.
        solver: "exact", by the eigenvalues of the Hessian, or "krylov", by Hessian-vector products,
            up to 200 for each trial, and as many as it takes to finish.
        failure: probability that "krylov" finishes in spite of a lower curvature.
        max_trials: of one step; when they do not suffice the method is finished.
        eps, gamma: where to finish: at \|g\| <= eps and lambda_min >= -gamma.

    >>> from asgld.problems import problem
    >>> saddle = Oracle(problem("strict-saddle", gamma=0.5))
    >>> method = CubicNewton(regularization=4.0, is_adaptive=False)
    >>> state = method.init(saddle, torch.zeros(16, dtype=torch.float64), seed=0)
    >>> float(method.step(saddle, state).x.norm())  # 2 gamma / M
    0.25

    References:
        Y. Nesterov, B. Polyak: Cubic regularization of Newton method and its global performance.
        Mathematical Programming 108, 2006.  C. Cartis, N. Gould, P. Toint: Adaptive cubic
        regularisation methods for unconstrained optimization. Mathematical Programming 127, 2011.
    """

    regularization: float = 1.0
    is_adaptive: bool = True
    min_regularization: float = 1e-8
    solver: Literal["exact", "krylov"] = "exact"
    failure: float = 1e-3
    max_trials: int = 60
    eps: float = 1e-6
    gamma: float = 1e-3

    name: ClassVar[str] = "cubic-newton"

    def __post_init__(self) -> None:
        require_positive(self, "regularization", "min_regularization")
        require_at_least_zero(self, "eps", "gamma")
        solvers = ("exact", "krylov")
        require(self.solver in solvers, "solver", self.solver, f"one of {solvers}")
        require_probability("failure", self.failure)
        require_at_least(self, max_trials=1)

    def fitted(self, around: Surroundings) -> dict[str, Any]:
        rho = around.hessian_lipschitz
        tolerances = {"eps": around.eps, "gamma": around.gamma}
        return {"regularization": rho, "min_regularization": 1e-8 * rho, **tolerances}

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"value", "grad", "hessian" if self.solver == "exact" else "hvp"})

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> CubicNewtonState:
        return CubicNewtonState(
            x=x0.clone(),
            seed=seed,
            value=float(oracle.value(x0)) if self.is_adaptive else math.nan,
            regularization=max(self.regularization, self.min_regularization),
        )

    def _advance(self, oracle: Oracle, state: CubicNewtonState) -> CubicNewtonState:
        gradient = finite(oracle.grad(state.x))
        is_small = float(gradient.norm()) <= self.eps
        solve, lowest = self._prepare(oracle, state, gradient, is_small)
        if is_small and lowest >= -self.gamma:
            return at_second_order(state)
        weight = state.regularization
        for _ in range(self.max_trials):
            solution = solve(weight)
            oracle.tally("subproblem")
            if not (self.is_adaptive or solution.is_hard_case):
                return replace(state, x=state.x + solution.step)
            x, value = _best_trial(oracle, state, solution)
            if not self.is_adaptive:
                return replace(state, x=x)
            bound = state.value - solution.model_decrease
            if value <= bound + _ROUNDING * abs(state.value):
                weight = max(0.5 * weight, self.min_regularization)
                return replace(state, x=x, value=value, regularization=weight)
            weight *= 2.0
        return replace(state, finished=True, message=_STUCK)

    def _prepare(
        self, oracle: Oracle, state: CubicNewtonState, gradient: Tensor, is_small: bool
    ) -> tuple[Callable[[float], Solution], float]:
        """A function that minimizes the model at x for a regularization, and lambda_min.

        By products it is a lower bound of lambda_min, found only where it decides.
        """
        if self.solver == "exact":
            eigen = _eigen(oracle, state.x)
            return partial(cubic_exact, gradient, eigen), eigen.smallest
        hessian, lowest = hessian_at(oracle, state.x), -math.inf
        probe = normals(state.seed, state.step, state.x, _PROBE_STREAM)
        if is_small:
            accuracy = 0.5 * self.gamma
            curvature, probe = lowest_curvature(hessian, probe, accuracy, self.failure)
            lowest = curvature - accuracy
        return partial(cubic_krylov, gradient, hessian, probe=probe), lowest


@dataclass(kw_only=True)
class TraceState(SeededState):
    """x, what is known of f there, and the trust region."""

    value: float
    gradient: Tensor
    eigenvalues: Tensor
    eigenvectors: Tensor
    is_known: bool  # the four above belong to x
    radius: float  # delta
    max_radius: float  # Delta
    ratio: float  # sigma
    was_contracted: bool


@dataclass(frozen=True)
class Trace(CurvatureMethod):
    r"""A trust region that is contracted and expanded by its multiplier: cubic rates without rho.

    .. math:: (s, \lambda):\; \min_s\; g^\top s + \tfrac12 s^\top H s,\;\; \|s\| \le \delta, \qquad
              r = \frac{f(x) - f(x + s)}{\|s\|^3}

    =========  ==========================  ====================================================
    what       when                        does
    =========  ==========================  ====================================================
    accept     r >= eta, and l <= sigma    x += s; Delta and delta grow to gamma_E \|s\|;
               \|s\| or \|s\| = Delta      sigma = max(sigma, l / \|s\|)
    contract   r < eta                     delta falls so that l / \|s\| is in the range of the
                                           ratios, or l grows by gamma_L
    expand     otherwise                   delta = min(Delta, l / sigma)
    =========  ==========================  ====================================================

    Algorithm 1 of the paper, one step for each of its iterations, of which only those that accept
    cost a new gradient and Hessian; differs from it at saddles, where the paper stops with g = 0:
    here the eigenvector of lambda_min gives the step, with the sign of lower f, and a contraction
    that would divide by g halves the radius.

    Args:
        radius, max_radius: the first delta and Delta.
        acceptance: eta, 0 < eta < 1.
        contraction, expansion: gamma_C < 1 and gamma_E > 1.
        multiplier_growth: gamma_L > 1.
        min_ratio, max_ratio: the range of l / \|s\| after a contraction, of the order of rho; the
            first sigma is min_ratio.
        eps, gamma: where to finish: at \|g\| <= eps and lambda_min >= -gamma.

    References:
        F. Curtis, D. Robinson, M. Samadi: A trust region algorithm with a worst-case iteration
        complexity of O(eps^(-3/2)) for nonconvex optimization. Mathematical Programming 162, 2017.
    """

    radius: float = 1.0
    max_radius: float = 10.0
    acceptance: float = 0.1
    contraction: float = 0.5
    expansion: float = 2.0
    multiplier_growth: float = 2.0
    min_ratio: float = 1e-2
    max_ratio: float = 1e2
    eps: float = 1e-6
    gamma: float = 1e-3

    name: ClassVar[str] = "trace"
    needs: ClassVar[frozenset[str]] = frozenset({"value", "grad", "hessian"})

    def __post_init__(self) -> None:
        require_positive(self, "radius", "max_radius", "min_ratio", "max_ratio")
        require_at_least_zero(self, "eps", "gamma")
        for name in ("acceptance", "contraction"):
            value = getattr(self, name)
            require(0.0 < value < 1.0, name, value, f"0 < {name} < 1")
        for name in ("expansion", "multiplier_growth"):
            value = getattr(self, name)
            require(1.0 < value < math.inf, name, value, f"{name} > 1")
        for low, high in (("radius", "max_radius"), ("min_ratio", "max_ratio")):
            value, bound = getattr(self, low), getattr(self, high)
            require(value <= bound, low, value, f"at most {high}={bound!r}")

    def fitted(self, around: Surroundings) -> dict[str, Any]:
        rho = around.hessian_lipschitz
        return {
            **self._range("radius", "max_radius", 0.1 * around.length, 1e3 * around.length),
            # A multiple of \|s\|^3, as rho is.
            "acceptance": min(1e-2 * rho, 0.5),
            **self._range("min_ratio", "max_ratio", 1e-2 * rho, 1e2 * rho),
            "eps": around.eps,
            "gamma": around.gamma,
        }

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> TraceState:
        return TraceState(
            x=x0.clone(),
            seed=seed,
            value=float(oracle.value(x0)),
            gradient=torch.zeros_like(x0),
            eigenvalues=torch.zeros_like(x0),
            eigenvectors=x0.new_zeros(len(x0), len(x0)),
            is_known=False,
            radius=self.radius,
            max_radius=self.max_radius,
            ratio=self.min_ratio,
            was_contracted=False,
        )

    def _advance(self, oracle: Oracle, state: TraceState) -> TraceState:
        if not state.is_known:
            state = self._look(oracle, state)
            if state.finished:
                return state
        eigen = Eigen(state.eigenvalues, state.eigenvectors)
        solution = trust_region_exact(state.gradient, eigen, state.radius)
        oracle.tally("subproblem")
        length = float(solution.step.norm())
        if length <= _ROUNDING * float(state.x.norm()) or length < 1e-100:
            return replace(state, finished=True, message=_STUCK)
        steepness = solution.multiplier / length
        ratio = max(state.ratio, steepness) if state.was_contracted else state.ratio

        x, value = _best_trial(oracle, state, solution)
        fall = state.value - value + _ROUNDING * abs(state.value)
        is_full = length >= state.max_radius * (1.0 - 1e-9)
        if not fall >= self.acceptance * length**3:
            radius = self._contracted(state, solution, length)
            return replace(state, ratio=ratio, radius=radius, was_contracted=True)
        if steepness > ratio and not is_full:
            radius = min(state.max_radius, solution.multiplier / ratio)
            return replace(state, ratio=ratio, radius=radius, was_contracted=False)
        max_radius = max(state.max_radius, self.expansion * length)
        return replace(
            state,
            x=x,
            value=value,
            is_known=False,
            max_radius=max_radius,
            radius=min(max_radius, max(state.radius, self.expansion * length)),
            ratio=max(ratio, steepness),
            was_contracted=False,
        )

    def _look(self, oracle: Oracle, state: TraceState) -> TraceState:
        """Derivatives at x, and whether to finish there."""
        gradient, eigen = finite(oracle.grad(state.x)), _eigen(oracle, state.x)
        is_done = float(gradient.norm()) <= self.eps and eigen.smallest >= -self.gamma
        return at_second_order(
            state,
            is_done,
            gradient=gradient,
            eigenvalues=eigen.values,
            eigenvectors=eigen.vectors,
            is_known=True,
        )

    def _contracted(self, state: TraceState, solution: Solution, length: float) -> float:
        """CONTRACT of the paper: a smaller radius, with a multiplier that is known beforehand."""
        parts = state.eigenvectors.mT @ state.gradient
        slope, multiplier = float(parts.norm()), solution.multiplier

        def size(shift: float) -> float:
            return float((parts / (state.eigenvalues + shift)).norm())

        shorter = self.contraction * length
        if slope == 0.0:
            return shorter
        if multiplier >= self.min_ratio * length:
            return max(shorter, size(self.multiplier_growth * multiplier))
        low, high = multiplier, multiplier + math.sqrt(self.min_ratio * slope)
        if high <= self.max_ratio * size(high):
            return size(high)
        for _ in range(100):
            middle = 0.5 * (low + high)
            span = size(middle)
            if middle > self.max_ratio * span:
                high = middle
            elif middle < self.min_ratio * span:
                low = middle
            else:
                return span
        # In the hard case the ratio jumps over the range.
        return shorter
