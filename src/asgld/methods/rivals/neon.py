"""NEON (Yi Xu, Rong Jin, Tianbao Yang, 2017): negative curvature from gradients alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from asgld.arguments import require, require_positive
from asgld.methods.base import (
    SeededState,
    Surroundings,
    draw_batch,
    gradient,
    gradient_needs,
    normals,
)
from asgld.methods.rivals.shared import Rival, given, norm, pick, require_batch, unit_sphere
from asgld.oracle import Oracle

# Signs of steps have a stream of normals of their own.
_SIGN_STREAM = 2
# Practical settings: the search starts so much shorter than it ends, and ends so far from where
# the Hessian may have changed by gamma.
_START_SHARE = 1e-4
_REACH_SHARE = 0.3
# For the length of a search when nothing is said about failure.
_FAILURE = 0.1


@dataclass(kw_only=True)
class NeonState(SeededState):
    """A replica either descends (age -1, offset 0) or searches around x, which then rests."""

    age: Tensor  # (R,): steps of the search so far
    offset: Tensor  # (R, d): u
    previous: Tensor  # (R, d): the search point before momentum, of the last step
    anchor_grad: Tensor  # (R, d): the gradient at x, over the batch of the search
    anchor_value: Tensor  # (R,)
    indices: Tensor  # (R, B): the batch of the search; (R, 0) for full gradients


@dataclass(frozen=True)
class Neon(Rival):
    r"""Gradient descent; where the gradient is small, a search for negative curvature.

    .. math::
        u_0 \sim U(S_r), \qquad
        u_{t+1} = u_t - \eta\,(G_B(x + u_t) - G_B(x)), \qquad
        x^+ = x \pm \frac{2 |q|}{\rho} \frac{u}{\|u\|}, \quad
        q = \frac{u^\top (G_B(x + u) - G_B(x))}{\|u\|^2}

    The search is a power iteration on :math:`I - \eta H` whose products are differences of
    gradients over the same batch B. It ends when u is longer than U, or after T steps; x is
    returned if no curvature was found, and else moves with a random sign, which lowers f by
    :math:`\tfrac23 |q|^3 / \rho^2` at least, on average over the sign.

    NEON with gradient descent (or SGD) as its companion, Algorithm 1 and the NEON-SGD of Xu et al.;
    differs from it in the length of the step (measured curvature, not gamma), in ending the search
    as soon as it succeeds, and, with test="curvature", in the test: q <= -gamma/2, which needs no
    values. test="value" is the paper's, f(x + u) - f(x) - u'G(x) <= -2.5 F for a u inside U.
    One step is one gradient, of descent or of a search.

    Args:
        lr: of the descent.
        grad_threshold: eps, where a search starts.
        gamma: the curvature searched for.
        hessian_lipschitz: rho.
        search_lr: eta; by default lr.
        radius, reach: r and U; by default U = 0.3 gamma/rho and r = U / 10^4.
        max_search: T, rounded up; by default ln(10 d / (eta gamma)) / (eta gamma), and with
            momentum the same logarithm over (eta gamma)^(1/2) / 2.
        momentum: zeta of the accelerated search of NEON+, which goes on from
            (1 + zeta) u_{t+1} - zeta u_t; 1 - (eta gamma)^(1/2) is its order.
        test: "curvature" or "value".
        value_threshold: F of test="value".
        batch_size: of G, or None for full gradients.

    >>> Neon(gamma=0.5, hessian_lipschitz=3.0, reach=0.1).search_radius
    1e-05

    References:
        Y. Xu, R. Jin, T. Yang: First-order stochastic algorithms for escaping from saddle points in
        almost linear time. NeurIPS 2018, arXiv 1711.01944.  The same: NEON+: accelerated gradient
        methods for extracting negative curvature for non-convex optimization. arXiv 1712.01033.
    """

    lr: float = 1e-1
    grad_threshold: float = 1e-3
    gamma: float = 1e-1
    hessian_lipschitz: float = 1.0
    search_lr: float | None = None
    radius: float | None = None
    reach: float | None = None
    max_search: float | None = None
    momentum: float = 0.0
    test: Literal["curvature", "value"] = "curvature"
    value_threshold: float = 0.0
    batch_size: int | None = None

    name: ClassVar[str] = "neon"
    is_batched: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive(self, "lr", "grad_threshold", "gamma", "hessian_lipschitz")
        require_positive(self, *given(self, "search_lr", "radius", "reach", "max_search"))
        require(0.0 <= self.momentum < 1.0, "momentum", self.momentum, "0 <= momentum < 1")
        require(self.test in ("curvature", "value"), "test", self.test, "'curvature' or 'value'")
        if self.test == "value":
            require_positive(self, "value_threshold")
        require_batch(self.batch_size)

    def fitted(self, around: Surroundings) -> dict[str, Any]:
        return {
            "lr": 1.0 / around.curvature,
            "grad_threshold": around.eps,
            "gamma": around.gamma,
            "hessian_lipschitz": around.hessian_lipschitz,
            # What a search would find at the curvature looked for.
            "value_threshold": 0.1 * around.gamma**3 / around.hessian_lipschitz**2,
        }

    @property
    def needs(self) -> frozenset[str]:
        calls = set(gradient_needs(self.batch_size))
        if self.test == "value":
            calls |= {"value"} if self.batch_size is None else {"value", "sample_value"}
        return frozenset(calls)

    @property
    def search_reach(self) -> float:
        """U."""
        share = _REACH_SHARE * self.gamma / self.hessian_lipschitz
        return share if self.reach is None else self.reach

    @property
    def search_radius(self) -> float:
        """r."""
        return _START_SHARE * self.search_reach if self.radius is None else self.radius

    def search_length(self, dim: int) -> int:
        """T."""
        if self.max_search is not None:
            return math.ceil(self.max_search)
        rate = (self.search_lr or self.lr) * self.gamma
        log = math.log(max(dim / (rate * _FAILURE), math.e))
        # Momentum turns a growth of eta gamma per step into 0.6 (eta gamma)^(1/2).
        return math.ceil(log / (0.5 * math.sqrt(rate) if self.momentum else rate))

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> NeonState:
        rows, zero = x0.shape[:-1], torch.zeros_like(x0)
        indices = draw_batch(oracle, x0, self.batch_size, seed, 0)
        return NeonState(
            x=x0.clone(),
            finished=torch.zeros(rows, dtype=torch.bool),
            seed=seed,
            age=torch.full(rows, -1),
            offset=zero,
            previous=zero.clone(),
            anchor_grad=zero.clone(),
            anchor_value=x0.new_zeros(rows),
            indices=torch.zeros((*rows, 0), dtype=torch.int64) if indices is None else indices,
        )

    def step(self, oracle: Oracle, state: NeonState) -> NeonState:
        is_search = state.age >= 0
        indices = draw_batch(oracle, state.x, self.batch_size, state.seed, state.step)
        if indices is not None:
            indices = pick(is_search, state.indices, indices)
        value, grad = self._look(oracle, state.x + state.offset, indices)

        is_found, is_lost, curvature = self._judge(state, value, grad)
        is_new = ~is_search & (norm(grad) <= self.grad_threshold)
        is_going_on = is_search & ~is_found & ~is_lost

        x = pick(is_search | is_new, state.x, state.x - self.lr * grad)
        pulled = state.offset - (self.search_lr or self.lr) * (grad - state.anchor_grad)
        offset = pulled + self.momentum * (pulled - state.previous)
        offset = pick(is_going_on, offset, torch.zeros_like(offset))
        if bool(is_found.any()):
            x = pick(is_found, x + self._jump(state, curvature), x)
        if bool(is_new.any()):
            start = self.search_radius * unit_sphere(state.seed, state.step, x)
            offset, pulled = pick(is_new, start, offset), pick(is_new, start, pulled)

        state.x, state.offset, state.previous = x, offset, pulled
        state.anchor_grad = pick(is_new, grad, state.anchor_grad)
        state.anchor_value = torch.where(is_new, value, state.anchor_value)
        state.age = torch.where(is_going_on, state.age + 1, torch.where(is_new, 0, -1))
        if indices is not None:
            state.indices = indices
        state.finished = is_lost
        state.message = "no negative curvature was found" if bool(is_lost.any()) else ""
        state.step += 1
        return state

    def _look(self, oracle: Oracle, point: Tensor, indices: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.test == "curvature":
            return point.new_zeros(point.shape[:-1]), gradient(oracle, point, indices)
        if indices is None:
            return oracle.value_and_grad(point)
        return oracle.sample_value(point, indices), oracle.sample_grad(point, indices)

    def _judge(
        self, state: NeonState, value: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Which searches have found curvature, which are over without, and the curvature q."""
        u, length = state.offset, norm(state.offset)
        curvature = (u * (grad - state.anchor_grad)).sum(-1) / length**2
        is_over = (length >= self.search_reach) | (state.age >= self.search_length(u.shape[-1]))
        if self.test == "curvature":
            has_proof = is_over & (curvature <= -0.5 * self.gamma)
        else:
            excess = value - state.anchor_value - (u * state.anchor_grad).sum(-1)
            has_proof = (length <= self.search_reach) & (excess <= -2.5 * self.value_threshold)
        is_search = state.age >= 0
        is_found = is_search & has_proof & (curvature < 0)
        return is_found, is_search & is_over & ~is_found, curvature

    def _jump(self, state: NeonState, curvature: Tensor) -> Tensor:
        """The step along the direction found, of a length that the Hessian's change allows."""
        sign = normals(state.seed, state.step, state.x[..., :1], stream=_SIGN_STREAM).sign()
        length = 2.0 * curvature.abs() / self.hessian_lipschitz / norm(state.offset)
        return sign * length[..., None] * state.offset
