"""First-order rows of Table 1: gradients, full or sampled, and noise that finds the way down."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

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
    unit_sphere,
)
from asgld.oracle import Oracle


@dataclass(frozen=True)
class NoisySGD(GradientMethod):
    r"""Gradient steps, each with a kick of fixed length in a random direction.

    .. math:: x_{k+1} = x_k - \mathrm{lr}_k \,(G(x_k) + s\, n_k), \qquad
              \mathrm{lr}_k = \mathrm{lr} / \max(1, k / K), \qquad n_k \sim U(S^{d-1})

    Algorithm 1 of Ge et al. (2015); differs from it in the scale s of the noise, which is 1 there,
    in the burn-in K after which the step decays as 1/k (there the step is constant and the result
    hovers at a distance of order lr^(1/2)), and in having no constraint set.

    Args:
        lr: step size. Proved: O~(eps^2), below a power of 1/d.
        noise: s.
        burn_in: K in steps, or None for a constant step.
        batch_size: of G, or None for full gradients.

    >>> NoisySGD(lr=0.01).needs
    frozenset({'grad'})

    References:
        R. Ge, F. Huang, C. Jin, Y. Yuan: Escaping from saddle points: online stochastic gradient
        for tensor decomposition. COLT 2015.
    """

    lr: float = 1e-2
    noise: float = 1.0
    burn_in: float | None = None
    batch_size: int | None = None

    name: ClassVar[str] = "noisy-sgd"

    def __post_init__(self) -> None:
        require_positive(self, "lr", *given(self, "burn_in"))
        require_at_least_zero(self, "noise")
        require_batch(self.batch_size)

    def fitted(self, around: Surroundings) -> dict[str, Any]:
        # The noise keeps f above its minimum by about noise^2 / M, here F / 10^4.
        return {"lr": 0.5 / around.curvature, "noise": 1e-2 * around.slope}

    def step(self, oracle: Oracle, state: SeededState) -> SeededState:
        grad, lr = self._gradient(oracle, state), self.lr
        if self.burn_in is not None:
            lr /= max(1.0, state.step / self.burn_in)
        if self.noise:
            grad = grad + self.noise * unit_sphere(state.seed, state.step, state.x)
        state.x = state.x - lr * grad
        state.step += 1
        return state


@dataclass(kw_only=True)
class PerturbedState(SeededState):
    """The last kick of each replica: the step it was at, the point before it, and f there."""

    kicked_at: Tensor  # (R,)
    anchor: Tensor  # (R, d)
    anchor_value: Tensor  # (R,)


@dataclass(frozen=True)
class PerturbedGD(Rival):
    r"""Gradient descent that is kicked where the gradient is small, and stops if that was in vain.

    .. math:: x_{k+1} = x_k + \xi_k - \mathrm{lr}\, \nabla f(x_k + \xi_k), \qquad
              \xi_k \sim U(B_r) \text{ if } \|\nabla f(x_k)\| \le g_\mathrm{thres}
              \text{ and the last kick is more than } t_\mathrm{thres} \text{ steps ago, else } 0

    If f has not fallen by f_thres when t_thres steps have passed since a kick, the point before the
    kick is returned.

    Algorithm 2 of Jin et al. (2017). f(x) is a by-product of the gradient.

    Args:
        lr: step size.
        radius: r of the ball of kicks.
        grad_threshold: g_thres.
        value_threshold: f_thres.
        wait: t_thres, rounded up.

    References:
        C. Jin, R. Ge, P. Netrapalli, S. Kakade, M. Jordan: How to escape saddle points efficiently.
        ICML 2017.
    """

    lr: float = 1e-1
    radius: float = 1e-2
    grad_threshold: float = 1e-3
    value_threshold: float = 1e-6
    wait: float = 100.0

    name: ClassVar[str] = "perturbed-gd"
    needs: ClassVar[frozenset[str]] = frozenset({"grad", "value"})
    is_batched: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive(self, "lr", "radius", "wait")
        require_at_least_zero(self, "grad_threshold", "value_threshold")

    def fitted(self, around: Surroundings) -> dict[str, Any]:
        return {
            "lr": 1.0 / around.curvature,
            "radius": around.kick,
            "grad_threshold": around.eps,
            "value_threshold": 0.1 * around.gamma**3 / around.hessian_lipschitz**2,
            "wait": around.patience,
        }

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> PerturbedState:
        rows = x0.shape[:-1]
        return PerturbedState(
            x=x0.clone(),
            finished=torch.zeros(rows, dtype=torch.bool),
            seed=seed,
            kicked_at=torch.full(rows, -math.ceil(self.wait) - 1),
            anchor=x0.clone(),
            anchor_value=x0.new_full(rows, math.inf),
        )

    def step(self, oracle: Oracle, state: PerturbedState) -> PerturbedState:
        x = state.x
        value, grad = oracle.value_and_grad(x)
        age, wait = state.step - state.kicked_at, math.ceil(self.wait)
        is_in_vain = (age == wait) & (value - state.anchor_value > -self.value_threshold)
        is_kicked = (age > wait) & (norm(grad) <= self.grad_threshold)
        if bool(is_kicked.any()):
            state.anchor = pick(is_kicked, x, state.anchor)
            state.anchor_value = torch.where(is_kicked, value, state.anchor_value)
            state.kicked_at = torch.where(is_kicked, state.step, state.kicked_at)
            kick = self.radius * unit_ball(state.seed, state.step, x)
            x = pick(is_kicked, x + kick, x)
            grad[is_kicked] = oracle.rows(is_kicked).grad(x[is_kicked])
        state.x = pick(is_in_vain, state.anchor, x - self.lr * grad)
        if bool(is_in_vain.any()):
            state.finished = is_in_vain
            state.message = "a kick did not lower the value"
        state.step += 1
        return state


@dataclass(frozen=True)
class SaddleNGD(GradientMethod):
    r"""Steps of fixed length along the gradient, with a kick every N steps.

    .. math:: x_{k+1} = x_k - \mathrm{lr}_k \frac{G(x_k)}{\|G(x_k)\|}
              + \mathrm{lr}_k\, s\, n_k\, [N \text{ divides } k], \qquad
              \mathrm{lr}_k = \mathrm{lr}\,(1 + k)^{-q}

    Saddle-NGD of Levy (2016); differs from it in the decay q of the steps (0 there: the iterate
    ends by jumping to and fro over a distance of lr), and in that a gradient of exactly 0 gives no
    step instead of 0/0. The law of the noise is an option, of equal energy for both choices.

    Args:
        lr: length of a step. Proved: O~(1/d^2) at most.
        noise: s, the length of a kick in units of the step.
        period: N, rounded up; of order lr^(-1/2).
        lr_decay: q.
        law: "sphere", or "gaussian" for N(0, I/d).
        batch_size: of G, or None for full gradients. The direction of a small batch is biased.

    >>> SaddleNGD(lr=0.1).period
    20.0

    References:
        K. Levy: The power of normalization: faster evasion of saddle points. arXiv 1611.04831.
    """

    lr: float = 1e-2
    noise: float = 1.0
    period: float = 20.0
    lr_decay: float = 0.0
    law: Literal["sphere", "gaussian"] = "sphere"
    batch_size: int | None = None

    name: ClassVar[str] = "saddle-ngd"

    def __post_init__(self) -> None:
        require_positive(self, "lr", "period")
        require_at_least_zero(self, "noise", "lr_decay")
        require(self.law in ("sphere", "gaussian"), "law", self.law, "'sphere' or 'gaussian'")
        require_batch(self.batch_size)

    def fitted(self, around: Surroundings) -> dict[str, Any]:
        return {"lr": 1e-2 * around.length}

    def step(self, oracle: Oracle, state: SeededState) -> SeededState:
        x, lr = state.x, self.lr * (1.0 + state.step) ** -self.lr_decay
        grad = self._gradient(oracle, state)
        length = norm(grad)[..., None]
        state.x = x - lr * torch.where(length == 0, grad, grad / length)
        if self.noise and state.step % math.ceil(self.period) == 0:
            state.x = state.x + lr * self.noise * self._kick(state, x)
        state.step += 1
        return state

    def _kick(self, state: SeededState, x: Tensor) -> Tensor:
        if self.law == "sphere":
            return unit_sphere(state.seed, state.step, x)
        return normals(state.seed, state.step, x) / math.sqrt(x.shape[-1])
