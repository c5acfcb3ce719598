"""Plain descent: what finishes a noisy run, and the control that stays at a saddle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from asgld.methods.base import State
from asgld.oracle import Oracle

_ARMIJO = 1e-4
# Rounding of f: a step may "rise" by this much relative to |f| and still count as descent.
_ROUNDING = 1e-15


@dataclass(kw_only=True)
class LBFGSState(State):
    """Pairs s = x' - x, y = g' - g of the last steps, newest last; an unused pair has rho = 0."""

    value: Tensor  # (R,)
    grad: Tensor  # (R, d)
    steps_s: Tensor  # (memory, R, d)
    steps_y: Tensor  # (memory, R, d)
    rho: Tensor  # (memory, R): 1 / s'y
    scale: Tensor  # (R,): the inverse curvature that stands for the unknown rest


@dataclass(frozen=True)
class LBFGS:
    r"""Limited-memory BFGS with backtracking, all replicas at once; f never rises.

    .. math:: x_{k+1} = x_k - t\, H_k \nabla f(x_k), \qquad
              f(x_{k+1}) \le f(x_k) + 10^{-4}\, t\, \nabla f(x_k)^\top p_k

    Differs from the textbook in that pairs of negative curvature (:math:`s^\top y \le 0`) are left
    out, and after one the next step may be twice as long, and in the absence of a Wolfe condition,
    which those pairs make needless.

    Args:
        memory: number of pairs kept.
        scale: length of the first step in units of the gradient, 1 / curvature; by default the
            first step has length min(1, \|g\|).
        max_halvings: of one line search; when they do not suffice the replica is finished.

    References:
        Nocedal and Wright: Numerical Optimization, 2nd edition, Algorithm 7.4. Springer 2006.
    """

    memory: int = 10
    scale: float | None = None
    max_halvings: int = 40
    # Both are shown by repr, which checkpoints compare.
    name: str = field(default="lbfgs", init=False)
    is_batched: bool = field(default=True, init=False)
    needs: ClassVar[frozenset[str]] = frozenset({"value", "grad"})
    has_noise: ClassVar[bool] = False
    anneals: ClassVar[bool] = True

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> LBFGSState:
        value, grad = oracle.value_and_grad(x0)
        norm = torch.linalg.vector_norm(grad, dim=-1)
        if self.scale is None:
            scale = 1.0 / norm.clamp(min=1.0)
        else:
            scale = torch.full_like(norm, self.scale)
        pairs = x0.new_zeros(self.memory, *x0.shape)
        return LBFGSState(
            x=x0.clone(),
            finished=torch.zeros(norm.shape, dtype=torch.bool),
            value=value,
            grad=grad,
            steps_s=pairs,
            steps_y=pairs.clone(),
            rho=x0.new_zeros(self.memory, *norm.shape),
            scale=scale,
        )

    def step(self, oracle: Oracle, state: LBFGSState) -> LBFGSState:
        direction = _two_loop(state)
        slope = _dot(direction, state.grad)
        # Rounding can spoil the recursion; the gradient is always a descent direction.
        is_bad = ~(slope < 0)
        direction = torch.where(is_bad[..., None], -state.scale[..., None] * state.grad, direction)
        slope = torch.where(is_bad, -state.scale * _dot(state.grad, state.grad), slope)

        length, is_found = self._backtrack(oracle, state, direction, slope)
        moved = torch.where(is_found, length, torch.zeros_like(length))[..., None] * direction
        x = torch.where(is_found[..., None], state.x + moved, state.x)
        value, grad = oracle.value_and_grad(x)
        return self._updated(state, x, value, grad, ~is_found)

    def _backtrack(
        self, oracle: Oracle, state: LBFGSState, direction: Tensor, slope: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Halve the step of each replica until its value falls enough."""
        length = torch.ones_like(slope)
        is_found = torch.zeros_like(slope, dtype=torch.bool)
        allowance = _ROUNDING * state.value.abs()
        is_open = slope < 0
        for _ in range(self.max_halvings):
            if not bool(is_open.any()):
                break
            trial = state.x[is_open] + length[is_open][..., None] * direction[is_open]
            value = torch.full_like(slope, torch.inf)
            value[is_open] = oracle.rows(is_open).value(trial)
            goal = state.value + _ARMIJO * length * slope + allowance
            is_found = is_found | (is_open & (value <= goal))
            is_open = is_open & ~is_found
            length = torch.where(is_open, 0.5 * length, length)
        return length, is_found

    def _updated(
        self, state: LBFGSState, x: Tensor, value: Tensor, grad: Tensor, is_stuck: Tensor
    ) -> LBFGSState:
        s, y = x - state.x, grad - state.grad
        curvature = _dot(s, y)
        squared = _dot(y, y)
        is_useful = curvature > 1e-12 * torch.sqrt(_dot(s, s) * squared)
        rho = torch.where(is_useful, 1.0 / curvature, torch.zeros_like(curvature))
        scale = torch.where(is_useful, curvature / squared, 2.0 * state.scale)
        return LBFGSState(
            x=x,
            finished=is_stuck,
            message="the line search found no lower value" if bool(is_stuck.any()) else "",
            value=value,
            grad=grad,
            steps_s=torch.cat((state.steps_s[1:], s[None])),
            steps_y=torch.cat((state.steps_y[1:], y[None])),
            rho=torch.cat((state.rho[1:], rho[None])),
            scale=scale,
        )


def _two_loop(state: LBFGSState) -> Tensor:
    """The direction -H g (Nocedal and Wright, Algorithm 7.4), for each replica."""
    q = state.grad.clone()
    memory = len(state.rho)
    weights = torch.zeros_like(state.rho)
    for i in reversed(range(memory)):
        weights[i] = state.rho[i] * _dot(state.steps_s[i], q)
        q -= weights[i][..., None] * state.steps_y[i]
    q *= state.scale[..., None]
    for i in range(memory):
        correction = weights[i] - state.rho[i] * _dot(state.steps_y[i], q)
        q += correction[..., None] * state.steps_s[i]
    return -q


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1)
