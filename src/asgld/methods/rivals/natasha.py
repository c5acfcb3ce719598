"""Natasha2 (Zeyuan Allen-Zhu, 2018): stochastic gradients and Hessian products, by turns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from asgld.arguments import (
    require,
    require_at_least,
    require_at_least_zero,
    require_positive,
)
from asgld.methods.base import SeededState, Surroundings, batch_indices, gradient, normals
from asgld.methods.rivals.shared import (
    Rival,
    ball_penalty_slope,
    given,
    require_batch,
    unit_sphere,
)
from asgld.oracle import Oracle

# Streams of normals: start of Oja's method, sign of a kick, choice of an iterate, of a pair.
_OJA_STREAM, _SIGN_STREAM, _ITERATE_STREAM, _PAIR_STREAM = 1, 2, 3, 4
# Negative curvature counts as found below this share of -gamma.
_FOUND = 2.0 / 3.0

Phase = Literal["search", "epoch", "polish"]


@dataclass(kw_only=True)
class NatashaState(SeededState):
    """Where the method is: in a search at `anchor`, in an epoch from it, or polishing at the end.

    `count` counts the steps of the present Oja run, sub-epoch or polish, `round` the runs or
    sub-epochs before it. `kept` is the one iterate of it that counts, chosen in advance as number
    `keep_at`, or the mean of all so far.
    """

    phase: Phase = "search"
    round: int = 0
    count: int = 0
    keep_at: int = 0
    kept: Tensor
    anchor: Tensor  # y: center of the ball, and snapshot of the epoch
    mean_grad: Tensor  # mu: the gradient at the snapshot
    center: Tensor  # x-hat: start of the sub-epoch, center of its proximal term
    direction: Tensor  # w of Oja's method
    best_direction: Tensor
    best_curvature: float = math.inf
    pair_anchor: Tensor  # one of the epochs so far, chosen uniformly: where it began, and
    pair_center: Tensor  # where its last sub-epoch began
    num_epochs: int = 0
    num_kicks: int = 0


@dataclass(frozen=True)
class Natasha2(Rival):
    r"""Kicks along negative curvature where Oja's method finds some, else epochs of Natasha1.5.

    .. math::
        w \leftarrow \frac{(I - \eta_o H_B) w}{\|\cdot\|}, \qquad
        y \leftarrow y \pm R\, w \;\; \text{if}\;\; w^\top H w < -\tfrac23 \gamma

        x \leftarrow x - a\, (g_B(x) - g_B(y) + \mu + 2 \sigma (x - \hat x)), \qquad
        g = \nabla f + \nabla M \left[\|x - y\| - R\right]_+^2

    Args:
        gamma: the curvature searched for.
        radius: R = gamma / rho: length of a kick, and radius in which an epoch stays.
        smoothness: M: the gradient is M-Lipschitz.
        lr: a, of an epoch; by default 0.3 / M.
        proximal: sigma, the weight of the pull to the start of a sub-epoch; by default gamma.
        epoch_batch, batch_size: samples of mu and of a step; batch_size=None means all samples, by
            full gradients and products.
        sub_epochs, sub_steps: an epoch has p parts of m steps.
        oja_steps, oja_batch: T steps of one run of Oja's method, with so many samples each; the
            result is judged on T * oja_batch other samples.
        oja_lr: eta_o, at most 1/M; by default half of that.
        oja_runs: runs of which the best counts, ln(1 / failure).
        max_epochs: epochs after which the method finishes.
        output: what a run or sub-epoch gives: "last" (the last direction, the mean of the iterates)
            or "random", the paper's uniformly chosen iterate.
        sign: of a kick: "random", as in the paper, or "lower": to the side where f is lower on
            `epoch_batch` samples, which is counted.
        polish_steps: steps of SGD at the end, from a random stored pair; 0 returns y instead.

    Algorithms 1 (Natasha1.5) and 2 (Natasha2) of the paper with Oja's method for the search. Each
    step is one of Oja's method, of an epoch, or of the polish. Differs from the paper in batches
    of b samples where it takes one, in counting the iterates of a sub-epoch from 1, and by default,
    as its author advises for practice, in returning the last y and in means for random iterates,
    and in asking f for the better side of a kick: kicks of random sign make a random walk, which
    crosses a saddle region of width W in (W / R)^2 kicks, not in W / R.

    References:
        Z. Allen-Zhu: Natasha 2: faster non-convex optimization than SGD. NeurIPS 2018, arXiv
        1708.08694.
    """

    gamma: float = 0.1
    radius: float = 0.1
    smoothness: float = 1.0
    lr: float | None = None
    proximal: float | None = None
    epoch_batch: int = 1024
    batch_size: int | None = 8
    sub_epochs: int = 4
    sub_steps: int = 32
    oja_steps: int = 100
    oja_batch: int = 16
    oja_lr: float | None = None
    oja_runs: int = 1
    max_epochs: int = 100
    output: Literal["last", "random"] = "last"
    sign: Literal["lower", "random"] = "lower"
    polish_steps: int = 0

    name: ClassVar[str] = "natasha2"
    is_batched: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_positive(self, "gamma", "radius", "smoothness", *given(self, "lr", "oja_lr"))
        require_at_least_zero(self, "polish_steps", *given(self, "proximal"))
        require_batch(self.batch_size)
        require_at_least(self, epoch_batch=1, sub_epochs=1, sub_steps=1, max_epochs=1)
        require_at_least(self, oja_steps=1, oja_batch=1, oja_runs=1)
        for name, known in (("output", ("last", "random")), ("sign", ("lower", "random"))):
            require(getattr(self, name) in known, name, getattr(self, name), f"one of {known}")
        if self.polish_steps:
            require(self.proximal != 0.0, "proximal", self.proximal, "proximal > 0 to polish")

    def fitted(self, around: Surroundings) -> dict[str, Any]:
        return {
            "gamma": around.gamma,
            "radius": max(around.gamma / around.hessian_lipschitz, 0.1 * around.length),
            "smoothness": around.curvature,
            "batch_size": None if around.num_samples is None else type(self).batch_size,
        }

    @property
    def needs(self) -> frozenset[str]:
        calls = {"grad", "hvp"} | ({"value"} if self.sign == "lower" else set())
        return frozenset(calls if self.batch_size is None else {f"sample_{c}" for c in calls})

    @property
    def _weight(self) -> float:
        """sigma, the weight of the proximal term."""
        return self.gamma if self.proximal is None else self.proximal

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> NatashaState:
        if self.batch_size is not None and oracle.num_samples is None:
            raise ValueError(
                f"batch_size={self.batch_size}: the function is not a mean over samples; give "
                "num_samples=, or batch_size=None for full gradients"
            )
        zero = torch.zeros_like(x0)
        return NatashaState(
            x=x0.clone(),
            seed=seed,
            kept=x0,
            anchor=x0,
            mean_grad=zero,
            center=x0,
            direction=zero,
            best_direction=zero,
            pair_anchor=x0,
            pair_center=x0,
        )

    def step(self, oracle: Oracle, state: NatashaState) -> NatashaState:
        advance = {"search": self._search, "epoch": self._descend, "polish": self._polish}
        advance[state.phase](oracle, state)
        state.step += 1
        return state

    # ---------------------------------------------------------------------------- curvature

    def _search(self, oracle: Oracle, state: NatashaState) -> None:
        """One step of Oja's method; after the last one a kick, or the start of an epoch."""
        if state.count == 0:
            state.direction = unit_sphere(state.seed, state.step, state.x, _OJA_STREAM)
            self._choose(state, self.oja_steps)
        image = self._hvp(oracle, state, state.direction)
        rate = 0.5 / self.smoothness if self.oja_lr is None else self.oja_lr
        moved = state.direction - rate * image
        length = moved.norm()
        if length > 0.0:
            state.direction = moved / length
        state.count += 1
        if state.count == state.keep_at:
            state.kept = state.direction
        if state.count < self.oja_steps:
            return
        curvature = float(state.kept @ self._hvp(oracle, state, state.kept, self.oja_steps))
        if curvature < state.best_curvature:
            state.best_curvature, state.best_direction = curvature, state.kept
        state.count, state.round = 0, state.round + 1
        if state.round == self.oja_runs:
            self._decide(oracle, state)

    def _decide(self, oracle: Oracle, state: NatashaState) -> None:
        state.round = 0
        if state.best_curvature < -_FOUND * self.gamma:
            sign = normals(state.seed, state.step, state.x[:1], _SIGN_STREAM).sign()
            kick = sign * self.radius * state.best_direction
            if self.sign == "lower":
                sides = (state.anchor + kick, state.anchor - kick)
                if self.batch_size is None:
                    here, there = (float(oracle.value(side)) for side in sides)
                else:
                    batch = _batch(oracle, state, self.epoch_batch)
                    here, there = (float(oracle.sample_value(side, batch)) for side in sides)
                kick = kick if here <= there else -kick
            state.x = state.anchor + kick
            state.anchor = state.x
            state.num_kicks += 1
        else:
            state.phase = "epoch"
            state.center = state.anchor
        state.best_curvature = math.inf

    # ---------------------------------------------------------------------------- descent

    def _descend(self, oracle: Oracle, state: NatashaState) -> None:
        """One step of Natasha1.5; at the end of a sub-epoch the next, of an epoch a search."""
        if state.count == state.round == 0 and self.batch_size is not None:
            batch = _batch(oracle, state, self.epoch_batch)
            state.mean_grad = oracle.sample_grad(state.anchor, batch)
        if state.count == 0:
            self._choose(state, self.sub_steps)
            state.kept = torch.zeros_like(state.x)
        slope = self._penalized(state, self._reduced_grad(oracle, state))
        state.x = state.x - (0.3 / self.smoothness if self.lr is None else self.lr) * slope
        state.count += 1
        if self.output == "last":
            state.kept = state.kept + state.x / self.sub_steps
        elif state.count == state.keep_at:
            state.kept = state.x
        if state.count < self.sub_steps:
            return
        state.count, state.round = 0, state.round + 1
        began, state.center = state.center, state.kept
        state.x = state.center
        if state.round == self.sub_epochs:
            self._end_epoch(state, began)

    def _end_epoch(self, state: NatashaState, began: Tensor) -> None:
        state.round, state.num_epochs = 0, state.num_epochs + 1
        # Each of the epochs so far is the chosen one with equal probability.
        if _uniform(state, _PAIR_STREAM) * state.num_epochs < 1.0:
            state.pair_anchor, state.pair_center = state.anchor, began
        state.anchor, state.phase = state.center, "search"
        if state.num_epochs < self.max_epochs:
            return
        if self.polish_steps:
            state.phase = "polish"
            state.anchor, state.center = state.pair_anchor, state.pair_center
            state.x = state.kept = state.center
        else:
            self._finish(state)

    def _polish(self, oracle: Oracle, state: NatashaState) -> None:
        """SGD on the convex problem of one stored pair; later iterates count more in the mean."""
        state.count += 1
        size = self.batch_size
        batch = None if size is None else _batch(oracle, state, size)
        slope = self._penalized(state, gradient(oracle, state.x, batch))
        state.x = state.x - slope / (3.0 * self.smoothness + 0.5 * self._weight * state.count)
        state.kept = state.kept + (state.x - state.kept) * 2.0 / (state.count + 1.0)
        if state.count == self.polish_steps:
            state.x = state.kept
            self._finish(state)

    def _finish(self, state: NatashaState) -> None:
        state.finished = True
        state.message = f"all {self.max_epochs} epochs were taken, and {state.num_kicks} kicks"

    # ---------------------------------------------------------------------------- parts

    def _choose(self, state: NatashaState, length: int) -> None:
        """Decide in advance which iterate of the coming `length` will be kept."""
        chosen = int(length * _uniform(state, _ITERATE_STREAM))
        state.keep_at = length if self.output == "last" else min(chosen, length - 1) + 1

    def _penalized(self, state: NatashaState, slope: Tensor) -> Tensor:
        """The slope of f, and of what keeps x in the ball around y and near x-hat."""
        slope = slope + ball_penalty_slope(state.x - state.anchor, self.radius, self.smoothness)
        return slope + 2.0 * self._weight * (state.x - state.center)

    def _reduced_grad(self, oracle: Oracle, state: NatashaState) -> Tensor:
        """g_B(x) - g_B(y) + mu, with the same batch at both points."""
        if self.batch_size is None:
            # mu is then the gradient at y itself: the two cancel.
            return oracle.grad(state.x)
        batch = _batch(oracle, state, self.batch_size)
        here, there = (oracle.sample_grad(x, batch) for x in (state.x, state.anchor))
        return here - there + state.mean_grad

    def _hvp(self, oracle: Oracle, state: NatashaState, v: Tensor, times: int = 0) -> Tensor:
        """The Hessian at y times v over a batch of Oja's method, or over `times` as many others."""
        if self.batch_size is None:
            return oracle.hvp(state.anchor, v)
        size = self.oja_batch
        batch = _batch(oracle, state, size * (1 + times))
        if times and len(batch) == size * (1 + times):
            # Fresh samples: the next words of this step's batch, after those of the step itself.
            batch = batch[size:]
        return oracle.sample_hvp(state.anchor, v, batch)


def _batch(oracle: Oracle, state: NatashaState, size: int) -> Tensor:
    """Sample indices, each once if as many are asked for as there are."""
    num_samples = oracle.num_samples
    assert num_samples is not None
    if size >= num_samples:
        return torch.arange(num_samples)
    return batch_indices(state.seed, state.step, size, num_samples)[0]


def _uniform(state: NatashaState, stream: int) -> float:
    """A number in [0, 1], by the distribution function of the normal."""
    normal = float(normals(state.seed, state.step, state.x[:1], stream))
    return 0.5 * math.erfc(-normal / math.sqrt(2.0))
