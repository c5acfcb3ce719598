r"""The chains as a method of the loop: the shipped optimizers, on coordinates in which U is round.

A chain is a row. The optimizer steps w, and x is where its gradients are taken:

.. math:: w_{k+1} = w_k - \mathrm{lr}\, B^\top \nabla U(x_k) + n_k, \qquad
          n_k = \sqrt{2\, \mathrm{lr}}\, z_k, \qquad x_k = c + A (w_k - n_{k-1} / 2)

Half of the last noise is taken back before the gradient. This is the scheme of Leimkuhler and
Matthews (2013) in other words: its error is of second order in lr, and none for a normal density,
where the plain rule (x = c + A w) widens the density by 1 / (1 - lr curvature / 2). The gradients
are the same in number.

With A = B = H^(-1/2) all curvatures are about 1, so one lr fits all directions. Batches add noise
of covariance C to B' grad U. With S = I - lr C / (2 - lr), A = H^(-1/2) S^(1/2) and
B = H^(-1/2) S^(-1/2) the noise of the rule has the covariance that C leaves to do.

References:
    B. Leimkuhler, C. Matthews: Rational construction of stochastic numerical methods for molecular
    sampling. Applied Mathematics Research eXpress, 2013.  G. Vilmart: Postprocessed integrators for
    the high order integration of ergodic SDEs. SIAM Journal on Scientific Computing, 2015.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from asgld.methods.base import SeededState, draw_batch, gradient, gradient_needs
from asgld.optim import ASGLD, PSGLD, SGLD
from asgld.oracle import Oracle

QUARTERS = 4


def chain_key(seed: int, use: str) -> int:
    """The key of the noise of one use: a pilot, the draws, the check. No two uses share a key."""
    text = f"asgld.sample/{seed}/{use}".encode()
    return int.from_bytes(hashlib.blake2s(text, digest_size=8).digest(), "little")


@dataclass(frozen=True, eq=False)
class Whitening:
    """The linear maps between w and x: matrices (d, d), or vectors (d,) for diagonal ones."""

    center: Tensor  # c
    push: Tensor  # A: x = c + A w
    pull: Tensor  # B: the optimizer gets B' grad

    def to_x(self, w: Tensor) -> Tensor:
        return self.center + (w * self.push if self.push.dim() == 1 else w @ self.push.T)

    def to_w(self, x: Tensor) -> Tensor:
        away = x - self.center
        if self.push.dim() == 1:
            return away / self.push
        solved: Tensor = torch.linalg.solve(self.push, away.T).T
        return solved.contiguous()

    def pulled(self, grad: Tensor) -> Tensor:
        return grad * self.pull if self.pull.dim() == 1 else grad @ self.pull

    def pushed(self, grad: Tensor) -> Tensor:
        """A' grad: the gradient with respect to w."""
        return grad * self.push if self.push.dim() == 1 else grad @ self.push

    def digest(self) -> str:
        parts = (self.center, self.push, self.pull)
        content = b"".join(part.contiguous().numpy().tobytes() for part in parts)
        return hashlib.blake2s(content, digest_size=8).hexdigest()


@dataclass(kw_only=True)
class ChainState(SeededState):
    """The optimizer, its iterate w, and u = A^(-1) (x - c). Means of u times A' grad U, over each
    quarter of the steps that count, are the configurational temperatures."""

    optimizer: ASGLD
    w: Tensor
    u: Tensor
    virial: Tensor  # (quarters, R, d)

    def pack(self) -> dict[str, Any]:
        optimizer = self.optimizer.state_dict()
        tensors = {name: getattr(self, name).clone() for name in ("x", "w", "u", "virial")}
        return {**tensors, "step": self.step, "seed": self.seed, "optimizer": optimizer}

    def restored(self, packed: Mapping[str, Any]) -> Self:
        self.x, self.u, self.virial = packed["x"], packed["u"], packed["virial"]
        self.w.copy_(packed["w"])
        self.optimizer.load_state_dict(packed["optimizer"])
        self.step, self.seed = packed["step"], packed["seed"]
        return self


@dataclass(frozen=True, eq=False)
class Chains:
    """SGLD or PSGLD at temperature 1, all chains as one tensor.

    Args:
        rule: "sgld" or "psgld".
        lr: in the units of w.
        metric: the maps between w and x.
        batch_size: of the gradients; None is all data.
        center_grad: the gradient at the center. If given, each batch has its own gradient there
            taken away and this one added, so that the noise of batches vanishes at the center.
        looks_back: take gradients half a noise step back; see above.
        counted: first and last step (exclusive) between which the temperature is measured.
    """

    rule: str
    lr: float
    metric: Whitening
    batch_size: int | None = None
    center_grad: Tensor | None = None
    looks_back: bool = True
    counted: tuple[int, int] = (0, 0)

    is_batched: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return self.rule

    @property
    def needs(self) -> frozenset[str]:
        return gradient_needs(self.batch_size)

    def __repr__(self) -> str:
        return (
            f"Chains({self.rule}, lr={self.lr!r}, metric={self.metric.digest()}, "
            f"batch_size={self.batch_size}, is_controlled={self.center_grad is not None}, "
            f"looks_back={self.looks_back}, counted={self.counted})"
        )

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> ChainState:
        w = self.metric.to_w(x0)
        kind = {"sgld": SGLD, "psgld": PSGLD}[self.rule]
        optimizer = kind([w], lr=self.lr, sigma=1.0, seed=seed)
        virial = x0.new_zeros(QUARTERS, *x0.shape)
        return ChainState(
            x=x0.clone(), seed=seed, optimizer=optimizer, w=w, u=w.clone(), virial=virial
        )

    def step(self, oracle: Oracle, state: ChainState) -> ChainState:
        grad = self.gradient(oracle, state.x, state.seed, state.step)
        pulled = self.metric.pulled(grad)
        first, last = self.counted
        if first <= state.step < last:
            quarter = QUARTERS * (state.step - first) // (last - first)
            pushed = self.metric.pushed(grad)
            state.virial[quarter].addcmul_(state.u, pushed, value=QUARTERS / (last - first))
        w = state.w
        before = w.clone() if self.looks_back else None
        w.grad = pulled
        state.optimizer.step()
        # w minus half the noise is half way from w before its noise to w after it.
        state.u = w if before is None else before.add_(w).sub_(pulled, alpha=self.lr).mul_(0.5)
        state.x = self.metric.to_x(state.u)
        state.step += 1
        return state

    def gradient(self, oracle: Oracle, x: Tensor, seed: int, step: int) -> Tensor:
        """The gradient of U at x, over all data or over a batch of each row."""
        indices = draw_batch(oracle, x, self.batch_size, seed, step)
        grad = gradient(oracle, x, indices)
        if indices is None or self.center_grad is None:
            return grad
        return (
            grad - oracle.sample_grad(self.metric.center.expand_as(x), indices) + self.center_grad
        )
