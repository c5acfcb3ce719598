"""Comparators that are no row of Table 1: preconditioned Langevin dynamics, escaping momentum."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from asgld.arguments import require, require_at_least_zero, require_positive
from asgld.methods.base import SeededState, Surroundings, normals
from asgld.methods.rivals.shared import (
    GradientMethod,
    Rival,
    given,
    norm,
    pick,
    require_batch,
    unit_ball,
)
from asgld.oracle import Oracle


@dataclass(kw_only=True)
class PreconditionedState(SeededState):
    """The running mean of squared gradients."""

    mean_square: Tensor


@dataclass(frozen=True)
class PreconditionedSGLD(GradientMethod):
    r"""Langevin dynamics with the preconditioner of RMSprop.

    .. math:: x_{k+1} = x_k - \mathrm{lr}\, P_k G(x_k) + (2\, \mathrm{lr}\, P_k)^{1/2} \sigma z_k,
              \qquad P_k = \frac{1}{\lambda + V_k^{1/2}}, \qquad
              V_k = a V_{k-1} + (1 - a)\, G(x_k)^2

    Algorithm 1 of Li et al. (2016) for a function instead of a posterior; differs from it in that
    lr stands for half their step, :math:`\sigma^2` for the temperature, and in leaving out the
    drift :math:`\Gamma` (the divergence of P), which the paper allows where P changes slowly.

    Args:
        lr: step size. Where gradients vanish, P is 1/lambda: lr / lambda is the true step there.
        sigma: noise; exp(-f / sigma^2) is the density it aims at.
        memory: a.
        damping: lambda.
        batch_size: of G, or None for full gradients.

    References:
        C. Li, C. Chen, D. Carlson, L. Carin: Preconditioned stochastic gradient Langevin dynamics
        for deep neural networks. AAAI 2016.
    """

    lr: float = 1e-3
    sigma: float = 1e-3
    memory: float = 0.99
    damping: float = 1e-5
    batch_size: int | None = None

    name: ClassVar[str] = "psgld"

    @property
    def anneals(self) -> bool:  # type: ignore[override]
        """Its temperature stays, as that of SGLD does."""
        return self.sigma == 0.0

    def __post_init__(self) -> None:
        require_positive(self, "lr", "damping")
        require_at_least_zero(self, "sigma")
        require(0.0 <= self.memory < 1.0, "memory", self.memory, "0 <= memory < 1")
        require_batch(self.batch_size)

    def fitted(self, around: Surroundings) -> dict[str, Any]:
        lr = 1e-2 * around.coordinate
        # The true step ends at 1/M, and f, by the noise, at F / 10^4 above its minimum.
        sigma = 1e-2 * math.sqrt(around.fall / around.dim)
        return {"lr": lr, "damping": lr * around.curvature, "sigma": sigma}

    def __repr__(self) -> str:
        # The method's published name, by which checkpoints know it.
        return f"PSGLD({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in fields(self))})"

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> PreconditionedState:
        return PreconditionedState(x=x0.clone(), seed=seed, mean_square=torch.zeros_like(x0))

    def step(self, oracle: Oracle, state: PreconditionedState) -> PreconditionedState:
        grad = self._gradient(oracle, state)
        state.mean_square = self.memory * state.mean_square + (1.0 - self.memory) * grad**2
        rate = self.lr / (self.damping + state.mean_square.sqrt())
        noise = self.sigma * normals(state.seed, state.step, state.x)
        state.x = state.x - rate * grad + (2.0 * rate).sqrt() * noise
        state.step += 1
        return state


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
    needs: ClassVar[frozenset[str]] = frozenset({"grad", "value"})
    is_batched: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive(self, "lr", "radius", "wait")
        require(0.0 < self.theta <= 1.0, "theta", self.theta, "0 < theta <= 1")
        require_at_least_zero(self, "concavity", "side_step", "grad_threshold")
        require_at_least_zero(self, *given(self, "min_drop"))

    def fitted(self, around: Surroundings) -> dict[str, Any]:
        lr = 0.25 / around.curvature
        theta = min(1.0, 0.25 * math.sqrt(around.gamma / around.curvature))
        return {
            "lr": lr,
            "theta": theta,
            "concavity": theta**2 / lr,
            "side_step": theta**2 / (4.0 * lr * around.hessian_lipschitz),
            "radius": around.kick,
            "grad_threshold": around.eps,
            "wait": around.patience,
        }

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
