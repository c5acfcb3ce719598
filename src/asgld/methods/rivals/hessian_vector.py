"""Methods that see curvature through Hessian-vector products: Table 1's middle rows.

All three look for a point with gradient norm at most eps and smallest curvature at least -gamma,
gamma = sqrt(rho eps) unless said otherwise, and finish there. They run one replica at a time.

==================  ==================================================================  ==========
name                one step is                                                         calls
==================  ==================================================================  ==========
fast-cubic          a cubic-regularized Newton step, found by accelerated solvers       eps^(-7/4)
carmon-accelerated  a search for negative curvature, or a gradient of the descent       eps^(-7/4)
carmon-cubic        a cubic-regularized Newton step, found by descent on the model      eps^(-2)
==================  ==================================================================  ==========
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from asgld.arguments import require, require_positive
from asgld.curvature.lanczos import Krylov, overlap
from asgld.curvature.operator import SymmetricOperator
from asgld.methods.base import SeededState, Surroundings, normals
from asgld.methods.rivals.shared import (
    HessianVectorMethod,
    at_second_order,
    ball_penalty_slope,
    finite,
    given,
    hessian_at,
    lowest_curvature,
)
from asgld.methods.rivals.subproblem import Eigen, Solution, cubic_descent, cubic_exact
from asgld.oracle import Oracle


@dataclass(frozen=True, kw_only=True)
class FastCubic(HessianVectorMethod):
    r"""Cubic-regularized Newton steps by accelerated linear algebra; f falls at each.

    .. math:: m(h) = g^\top h + \tfrac12 h^\top H h + \tfrac{\rho}{6} \|h\|^3, \qquad
              v = -(H + \lambda I)^{-1} g, \quad \lambda = \tfrac{\rho}{2} \|v\|, \qquad
              w^\top H w \le \lambda_{\min} + \tfrac{1}{10 \kappa}

    with kappa = 30 / sqrt(rho eps). The algorithms FastCubic and FastCubicMin of the paper, in the
    form for one function rather than a finite sum; differs from them in that

    - the Krylov space of g serves all multipliers lambda at once, where the paper solves a linear
      system by accelerated gradient descent for each; the multiplier ends at the same root, or
      1 / (2 kappa) above -lambda_min where that is larger;
    - w comes from one Lanczos run, not from power iterations on the inverse;
    - h minimizes m over the span of v and w, where the paper takes the better of v and a multiple
      of w: with the same guarantee, and right in the hard case;
    - systems are solved to `solve_tol`: the paper's 10^-4 max(...)^-20 is no float64 number.

    Args:
        hessian_lipschitz, eps, failure: see :class:`HessianVectorMethod`.
        solve_tol: relative residual of v.
        stop_constant: c; stop after a step with m(h) > -eps^(3/2) / (c sqrt(rho)). In the paper it
            is 3000 * 800; a smaller one, down to about 800, saves last steps.

    >>> from asgld.problems import problem
    >>> from asgld.run import run
    >>> saddle = problem("strict-saddle", dim=8, rotated=True)
    >>> method = FastCubic(hessian_lipschitz=12.0)
    >>> result = run(Oracle(saddle), method, torch.zeros(8), max_steps=100)
    >>> result.stop.name, bool(torch.isclose(result.values[0], torch.tensor(-0.25).double()))
    ('FINISHED', True)

    References:
        N. Agarwal, Z. Allen-Zhu, B. Bullins, E. Hazan, T. Ma: Finding approximate local minima
        faster than gradient descent. STOC 2017.
    """

    solve_tol: float = 1e-8
    stop_constant: float = 2.4e6

    name: ClassVar[str] = "fast-cubic"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "stop_constant")
        require(0.0 < self.solve_tol < 1.0, "solve_tol", self.solve_tol, "a number in (0, 1)")

    def _advance(self, oracle: Oracle, state: SeededState) -> SeededState:
        solution = self.minimize_model(oracle, state)
        least = self.eps**1.5 / (self.stop_constant * math.sqrt(self.hessian_lipschitz))
        return at_second_order(state, solution.model_decrease < least, x=state.x + solution.step)

    def minimize_model(self, oracle: Oracle, state: SeededState) -> Solution:
        """FastCubicMin: minimize the cubic model at `state.x`, to the accuracy that is needed."""
        rho, margin = self.hessian_lipschitz, math.sqrt(self.hessian_lipschitz * self.eps) / 60.0
        gradient = finite(oracle.grad(state.x))
        hessian = hessian_at(oracle, state.x)
        curvature, direction = lowest_curvature(
            hessian, normals(state.seed, state.step, state.x), margin / 5.0, self.failure
        )
        directions = [direction] if curvature < 0.0 else []
        if float(gradient.norm()) > 0.0:
            lowest = max(0.0, margin - curvature)
            directions.append(_newton_direction(hessian, gradient, rho, lowest, self.solve_tol))
        if not directions:
            return Solution(torch.zeros_like(gradient), 0.0, 0.0, num_hvp=hessian.num_hvp)
        # The exact minimizer among combinations of the one or two directions.
        basis = torch.linalg.qr(torch.stack(directions, dim=1))[0]
        images = torch.stack([hessian(column) for column in basis.mT], dim=1)
        inner = cubic_exact(basis.mT @ gradient, basis.mT @ images, rho)
        return replace(inner, step=basis @ inner.step, mirror=None, num_hvp=hessian.num_hvp)


def _newton_direction(
    hessian: SymmetricOperator, gradient: Tensor, rho: float, lowest: float, tolerance: float
) -> Tensor:
    r"""-(H + l I)^{-1} g for the larger of `lowest` and the l that makes its norm 2 l / rho.

    Conjugate gradients for all l at once: the Krylov space of g does not depend on the shift.
    """
    size = torch.linalg.vector_norm(gradient)
    run = Krylov(hessian, gradient, hessian.dim)
    for _ in run.checkpoints():
        values, vectors = map(torch.from_numpy, run.ritz())
        projected = torch.zeros(len(values), dtype=values.dtype)
        projected[0] = size
        solution = cubic_exact(projected, Eigen(values, vectors), rho)
        if solution.multiplier < lowest:
            solution_step = -vectors @ (vectors[0] * size / (values + lowest))
        else:
            solution_step = solution.step
        residual = run.betas[-1] * abs(float(solution_step[-1]))
        if residual <= tolerance * float(size):
            break
    return run.vectors(solution_step.unsqueeze(1).numpy())[:, 0]


@dataclass(kw_only=True)
class AcceleratedState(SeededState):
    """The points of an accelerated phase; x is where its next gradient is taken."""

    is_accelerating: bool
    anchor: Tensor  # where the phase began: the center of the penalty
    center: Tensor  # of the proximal problem
    previous: Tensor  # the last point before momentum


@dataclass(frozen=True, kw_only=True)
class CarmonAccelerated(HessianVectorMethod):
    r"""Steps along negative curvature until there is none, then accelerated gradient descent.

    .. math:: x \leftarrow x - \tfrac{2 |q|}{\rho}\, \mathrm{sign}(v^\top g)\, v, \qquad
              q = v^\top H v \le -\tfrac{\gamma}{2}, \quad \|v\| = 1

    and where Lanczos finds no such v, minimization to gradient norm eps / 2, by proximal steps
    of weight 3 gamma, each solved by Nesterov's method, of the almost convex

    .. math:: f_k(y) = f(y) + M \left[\|y - x\| - \tfrac{\gamma}{\rho}\right]_+^2

    The paper's negative curvature descent and accelerated descent of almost convex functions, in
    turns; differs from it in that Lanczos stops by a bound computed on the way, not after a fixed
    number of products, and in that a gradient known from the test before is not taken anew. Where
    v'g = 0 the sign is that of v, which is random.

    Args:
        hessian_lipschitz, eps, failure: see :class:`HessianVectorMethod`.
        smoothness: M: the gradient is M-Lipschitz.
        gamma: target curvature, by default sqrt(rho eps).

    References:
        Y. Carmon, J. Duchi, O. Hinder, A. Sidford: Accelerated methods for nonconvex optimization.
        SIAM Journal on Optimization 28, 2018.
    """

    smoothness: float = 1.0
    gamma: float | None = None

    name: ClassVar[str] = "carmon-accelerated"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "smoothness", *given(self, "gamma"))

    def fitted(self, around: Surroundings) -> dict[str, Any]:
        constants = {"smoothness": around.curvature, "gamma": around.gamma}
        return {**super().fitted(around), **constants}

    @property
    def curvature_tol(self) -> float:
        return math.sqrt(self.hessian_lipschitz * self.eps) if self.gamma is None else self.gamma

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> AcceleratedState:
        x = x0.clone()
        return AcceleratedState(
            x=x, seed=seed, is_accelerating=False, anchor=x, center=x, previous=x
        )

    def _advance(self, oracle: Oracle, state: AcceleratedState) -> AcceleratedState:
        gradient = finite(oracle.grad(state.x))
        if state.is_accelerating:
            radius = self.curvature_tol / self.hessian_lipschitz
            pull = ball_penalty_slope(state.x - state.anchor, radius, self.smoothness)
            return self._accelerate(state, gradient + pull)
        return self._follow_curvature(oracle, state, gradient)

    def _follow_curvature(
        self, oracle: Oracle, state: AcceleratedState, gradient: Tensor
    ) -> AcceleratedState:
        """Move along negative curvature; without any, finish or begin an accelerated phase."""
        x = state.x
        start = normals(state.seed, state.step, x)
        curvature, direction = lowest_curvature(
            hessian_at(oracle, x), start, self.curvature_tol / 2.0, self.failure
        )
        if curvature <= -self.curvature_tol / 2.0:
            length = 2.0 * abs(curvature) / self.hessian_lipschitz
            slope = float(direction @ gradient)
            return replace(state, x=x - math.copysign(length, slope) * direction)
        if float(gradient.norm()) <= self.eps:
            return at_second_order(state)
        phase = replace(state, is_accelerating=True, anchor=x, center=x, previous=x)
        return self._accelerate(phase, gradient)

    def _accelerate(self, state: AcceleratedState, gradient: Tensor) -> AcceleratedState:
        """One step of Nesterov's method, given the gradient of f_k at x."""
        x, center, previous = state.x, state.center, state.previous
        weight = 3.0 * self.curvature_tol
        smoothness = 5.0 * self.smoothness + 2.0 * weight
        target = self.eps / 2.0
        proximal = gradient + 2.0 * weight * (x - center)
        if float(proximal.norm()) <= target * math.sqrt(weight / (50.0 * smoothness)):
            if float(gradient.norm()) <= target:
                return replace(state, is_accelerating=False)
            center, previous, proximal = x, x, gradient
        point = x - proximal / smoothness
        root = math.sqrt(smoothness / weight)
        x = point + (root - 1.0) / (root + 1.0) * (point - previous)
        return replace(state, x=x, center=center, previous=point)


@dataclass(frozen=True, kw_only=True)
class CarmonCubic(HessianVectorMethod):
    r"""Cubic-regularized Newton steps whose model is minimized by gradient descent.

    .. math:: s \leftarrow s - \eta \left(g + \sigma q + H s + \tfrac{\rho}{2} \|s\| s\right),
              \qquad x \leftarrow x + s \quad\text{once}\quad m(s) \le -c \sqrt{\epsilon^3 / \rho}

    When the model does not fall by that much, x is nearly second-order stationary: a last descent
    without perturbation, to a slope of eps / 2, gives the point that is returned. This is the
    paper's method for smooth functions, which starts each descent at the Cauchy point; differs from
    it in that a descent also ends when its slope is below what the perturbation alone puts on the
    lowest eigenvector: as long as the multiplier of s is less than -lambda_min, that part of the
    slope cannot shrink.

    Args:
        hessian_lipschitz, eps, failure: see :class:`HessianVectorMethod`; gamma = sqrt(rho eps).
        smoothness: M: the gradient is M-Lipschitz; sets eta.
        decrease: c: what the model must fall by.
        perturbation: sigma in units of eps gamma / M; q is uniform on the sphere.
        inner_steps: most descents in one step; by default 10 M / gamma times the logarithm of
            3 sqrt(d) / (perturbation failure).

    References:
        Y. Carmon, J. Duchi: Gradient descent finds the cubic-regularized nonconvex Newton step.
        SIAM Journal on Optimization 29, 2019.  N. Tripuraneni, M. Stern, C. Jin, J. Regier,
        M. Jordan: Stochastic cubic regularization for fast nonconvex optimization. NeurIPS 2018:
        c = 1/100.
    """

    smoothness: float = 1.0
    decrease: float = 0.01
    perturbation: float = 1.0 / 24.0
    inner_steps: int | None = None

    name: ClassVar[str] = "carmon-cubic"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "smoothness", "decrease", "perturbation")
        steps = self.inner_steps
        require(steps is None or steps >= 1, "inner_steps", steps, "at least 1, or None")

    def fitted(self, around: Surroundings) -> dict[str, Any]:
        return {**super().fitted(around), "smoothness": around.curvature}

    def _advance(self, oracle: Oracle, state: SeededState) -> SeededState:
        x, rho, dim = state.x, self.hessian_lipschitz, oracle.dim
        gradient = finite(oracle.grad(x))
        hessian = hessian_at(oracle, x)
        gamma = math.sqrt(rho * self.eps)
        growth = math.log1p(3.0 * math.sqrt(dim) / (self.perturbation * self.failure))
        max_steps = self.inner_steps or math.ceil(10.0 * self.smoothness / gamma * growth)
        sigma = self.perturbation * self.eps * gamma / self.smoothness
        direction = normals(state.seed, state.step, x)
        needed = self.decrease * math.sqrt(self.eps**3 / rho)
        descend = partial(
            cubic_descent, gradient, hessian, rho, smoothness=self.smoothness, max_steps=max_steps
        )
        solution = descend(
            perturbation=direction * (sigma / float(direction.norm())),
            # The least slope along the lowest eigenvector, but for the chance of `failure`.
            tolerance=0.5 * sigma * overlap(max(dim, 3), self.failure),
            target_decrease=needed,
        )
        if solution.model_decrease >= needed:
            return replace(state, x=x + solution.step)
        last = descend(from_zero=True, tolerance=self.eps / 2.0)
        return at_second_order(state, x=x + last.step)
