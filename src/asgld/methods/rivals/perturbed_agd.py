"""Momentum that escapes: Nesterov's method with kicks and a test for negative curvature."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from asgld.methods.rivals.shared import (
    Constants,
    Rival,
    SeededState,
    norm,
    pick,
    require,
    require_at_least_zero,
    require_positive,
    unit_ball,
)
from asgld.oracle import Oracle

# ------------------------------------------------------------------------------------------------
# Perturbed accelerated gradient descent: Chi Jin, Praneeth Netrapalli, Michael Jordan, 2018
# ------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class PerturbedAGDState(SeededState):
    """Momentum, and the last kick of each replica: its step, and point and energy before it."""

    momentum: Tensor  # (R, d)
    kicked_at: Tensor  # (R,)
    anchor: Tensor  # (R, d)
    anchor_energy: Tensor  # (R,)


@dataclass(frozen=True)
class PerturbedAGD(Rival):
    r"""Nesterov's momentum, kicks where the gradient is small, and negative curvature put to use.

    .. math:: y_k = x_k + (1 - \theta) v_k, \qquad
              x_{k+1} = y_k - \mathrm{lr}\, \nabla f(y_k), \qquad v_{k+1} = x_{k+1} - x_k

    Where f between x and y is too concave,
    :math:`f(x) < f(y) + \nabla f(y)^\top (x - y) - \tfrac{c}{2} \|x - y\|^2`, the momentum is
    dropped, after moving by :math:`\pm s\, v / \|v\|` to the lower side if :math:`\|v\| < s`. The
    energy :math:`f(x) + \|v\|^2 / (2\, \mathrm{lr})` then never rises but by kicks.

    Algorithm 2 of Jin, Netrapalli and Jordan (2018), with Algorithm 3 for the curvature; differs
    from it in the strict < above (with <= it would hold at v = 0 and stop all motion), and in an
    optional way to end: the paper lets it run.

    Args:
        lr: step size.
        theta: 1 - theta is the momentum.
        concavity: c.
        side_step: s.
        radius: of the ball of kicks.
        grad_threshold: eps, where kicks are due.
        wait: least number of steps between kicks, rounded up.
        min_drop: return the point before a kick if the energy has fallen by less in `wait` steps;
            None never returns.

    References:
        C. Jin, P. Netrapalli, M. Jordan: Accelerated gradient descent escapes saddle points faster
        than gradient descent. COLT 2018.
    """

    lr: float = 2.5e-2
    theta: float = 1e-1
    concavity: float = 1e-1
    side_step: float = 1e-2
    radius: float = 1e-2
    grad_threshold: float = 1e-3
    wait: float = 50.0
    min_drop: float | None = None

    name: ClassVar[str] = "perturbed-agd"
    ranges: ClassVar[dict[str, tuple[float, float]]] = {
        "lr": (1e-3, 1.0),
        "theta": (1e-2, 1.0),
        "radius": (1e-4, 1e-1),
        "side_step": (1e-3, 1.0),
    }
    unverified: ClassVar[tuple[str, ...]] = (
        "c: the theorem holds above an unspecified absolute constant; here c = 1",
    )

    def __post_init__(self) -> None:
        require_positive(self, "lr", "radius", "wait")
        require(0.0 < self.theta <= 1.0, "theta", self.theta, "0 < theta <= 1")
        require_at_least_zero(self, "concavity", "side_step", "grad_threshold")
        if self.min_drop is not None:
            require_at_least_zero(self, "min_drop")

    @classmethod
    def _proved(cls, constants: Constants) -> Self:
        k, lr = constants, 0.25 / constants.smoothness
        eps = min(k.eps, k.scale)
        chi = max(
            1.0, math.log(k.dim * k.smoothness * k.gap / (k.hessian_lipschitz * eps * k.failure))
        )
        theta = min(1.0, 0.25 / math.sqrt(k.condition))
        return cls(
            lr=lr,
            theta=theta,
            concavity=theta**2 / lr,
            side_step=theta**2 / (4.0 * lr * k.hessian_lipschitz),
            radius=lr * eps * chi**-5,
            grad_threshold=eps,
            wait=math.ceil(math.sqrt(k.condition) * chi),
            min_drop=math.sqrt(eps**3 / k.hessian_lipschitz) * chi**-5,
        )

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"grad", "value"})

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> PerturbedAGDState:
        rows = x0.shape[:-1]
        return PerturbedAGDState(
            x=x0.clone(),
            finished=torch.zeros(rows, dtype=torch.bool),
            seed=seed,
            momentum=torch.zeros_like(x0),
            kicked_at=torch.full(rows, -math.ceil(self.wait) - 1),
            anchor=x0.clone(),
            anchor_energy=x0.new_full(rows, math.inf),
        )

    def step(self, oracle: Oracle, state: PerturbedAGDState) -> PerturbedAGDState:
        age, wait = state.step - state.kicked_at, math.ceil(self.wait)
        value, size = _value_and_norm(oracle, state.x, age > wait)
        energy = value + norm(state.momentum) ** 2 / (2.0 * self.lr)
        is_in_vain = torch.zeros_like(age, dtype=torch.bool)
        if self.min_drop is not None:
            is_in_vain = (age == wait) & (energy - state.anchor_energy > -self.min_drop)
        x = state.x
        is_kicked = (age > wait) & (size <= self.grad_threshold)
        if bool(is_kicked.any()):
            state.anchor = pick(is_kicked, x, state.anchor)
            state.anchor_energy = torch.where(is_kicked, energy, state.anchor_energy)
            state.kicked_at = torch.where(is_kicked, state.step, state.kicked_at)
            x = pick(is_kicked, x + self.radius * unit_ball(state.seed, state.step, x), x)
            value[is_kicked] = oracle.rows(is_kicked).value(x[is_kicked])

        ahead = x + (1.0 - self.theta) * state.momentum
        value_ahead, grad = oracle.value_and_grad(ahead)
        gap = x - ahead
        chord = value_ahead + (grad * gap).sum(-1) - 0.5 * self.concavity * norm(gap) ** 2
        is_concave = (value < chord) & (norm(state.momentum) > 0)
        moved = ahead - self.lr * grad
        momentum = moved - x
        if bool(is_concave.any()):
            momentum = pick(is_concave, torch.zeros_like(x), momentum)
            moved = pick(is_concave, x, moved)
            is_slow = is_concave & (norm(state.momentum) < self.side_step)
            if bool(is_slow.any()):
                sides = oracle.rows(is_slow)
                moved[is_slow] = self._lower_side(sides, x[is_slow], state.momentum[is_slow])
        state.x = pick(is_in_vain, state.anchor, moved)
        state.momentum = momentum
        state.finished = is_in_vain
        state.message = "a kick did not lower the energy" if bool(is_in_vain.any()) else ""
        state.step += 1
        return state

    def _lower_side(self, oracle: Oracle, x: Tensor, momentum: Tensor) -> Tensor:
        shift = self.side_step * momentum / norm(momentum)[..., None]
        is_ahead = oracle.value(x + shift) <= oracle.value(x - shift)
        return pick(is_ahead, x + shift, x - shift)


def _value_and_norm(oracle: Oracle, x: Tensor, wants_norm: Tensor) -> tuple[Tensor, Tensor]:
    """Values at x, and gradient norms of the rows that want them, which alone pay for gradients."""
    value = x.new_full(x.shape[:-1], math.nan)
    size = torch.full_like(value, math.nan)
    if bool(wants_norm.any()):
        value[wants_norm], grad = oracle.rows(wants_norm).value_and_grad(x[wants_norm])
        size[wants_norm] = norm(grad)
    rest = ~wants_norm
    if bool(rest.any()):
        value[rest] = oracle.rows(rest).value(x[rest])
    return value, size
