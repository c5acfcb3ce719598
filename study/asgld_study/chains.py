"""Chains of a Langevin method, followed step by step: how the topics of the study run a method."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from asgld.methods import Method, SeededState, method
from asgld.methods.printed import PrintedState
from asgld.methods.torch import TorchState
from asgld.oracle import Function, Oracle
from asgld.run import Progress, Record, Stop, run

# feed(door, x, step): the gradient at x that step number `step` uses. The door has the calls of the
# function: grad(x), and sample_grad(x, indices) where the function is a mean over samples.
Feed = Callable[[Any, Tensor, int], Tensor]


@dataclass
class View:
    """Chains between two steps."""

    state: TorchState | PrintedState

    @property
    def step(self) -> int:
        """Steps taken."""
        return self.state.step

    @property
    def x(self) -> Tensor:
        """The iterates, (chains, d); the next step changes them."""
        return self.state.x

    @property
    def D(self) -> Tensor:
        """The accumulator that the next step uses, (chains, d)."""
        if isinstance(self.state, PrintedState):
            return self.state.metric
        optimizer = self.state.optimizer
        group, total = optimizer.param_groups[0], optimizer.state[self.state.x]["sum"]
        D: Tensor = total + (group["d_init"] + self.state.step * group["delta"])
        return D


def exact(door: Any, x: Tensor, step: int) -> Tensor:
    """Feed the gradient itself."""
    gradient: Tensor = door.grad(x)
    return gradient


def noisy(
    variance: float, *, theta: float = 0.0, seed: int = 0, mask: Tensor | None = None
) -> Feed:
    r"""Feed gradients with Gaussian noise of variance :math:`C (1+k)^{-\theta}` per coordinate.

    That is the noise of a mean over :math:`(1+k)^\theta` Gaussian samples. `mask` multiplies it.
    Each call of `noisy` makes a feed with random numbers of its own.
    """
    if variance == 0.0:
        return exact
    generator = torch.Generator().manual_seed(seed)

    def feed(door: Any, x: Tensor, step: int) -> Tensor:
        gradient = exact(door, x, step)
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        if mask is not None:
            noise *= mask
        return gradient.add_(noise, alpha=math.sqrt(variance * (1.0 + step) ** -theta))

    return feed


def follow(
    name: str,
    function: Any,
    x0: Tensor,
    look: Callable[[View], object] | None = None,
    *,
    steps: int,
    feed: Feed = exact,
    seed: int = 0,
    keep: Callable[[Tensor], object] | None = None,
    lr_decay: float = 0.0,
    **options: Any,
) -> Tensor:
    """Run chains of a Langevin method, look at them after each step, return the last iterates.

    A chain that leaves the finite numbers is nan from then on; without any other the run ends.

    Args:
        name: "asgld", "agld", "asg" or "sgld"; or "asgld-printed", Algorithm 1 as printed.
        function: has grad(x); and sample_grad(x, indices) and num_samples where the feed draws
            batches. Equal points have equal gradients: chance is the feed's. None where the feed
            makes its gradients without a function.
        x0: start points, (chains, d).
        look: called with a :class:`View` before the first step and after each; True ends the run.
        steps: the largest number of steps.
        feed: how a step gets its gradient; :func:`exact`, :func:`noisy`, or a function like them.
        seed: of the injected noise.
        keep: a projection of the iterates in place after each step, such as ``Tensor.abs_``.
        lr_decay: q, for the step size lr (1 + k)^-q.
        options: of the method.
    """
    oracle = Oracle(cast(Function, _Followed(function, x0.shape[-1])))
    # The looks see the chains: the loop need not write anything down.
    options_of_run: dict[str, Any] = {
        "max_steps": steps,
        "record": Record("linear", every=steps + 1, grad_norms=False),
        "seed": seed,
        "dtype": x0.dtype,
    }
    with warnings.catch_warnings():
        # Experiments heat on purpose, to see what happens.
        warnings.filterwarnings("ignore", message="beta=.* with alpha=")
        decay = {"lr_decay": lr_decay} if lr_decay else {}
        fed = _Fed(method(name, **options, **decay), feed, keep)
        if look is None:
            result = run(oracle, fed, x0, **options_of_run)
        else:
            if look(View(fed.init(oracle, x0, seed=seed))):
                return x0.clone()

            def callback(news: Progress) -> object:
                assert isinstance(news.state, TorchState | PrintedState)
                return look(View(news.state))

            result = run(oracle, fed, x0, callback=callback, **options_of_run)
    is_lost = torch.tensor([stop is Stop.NON_FINITE for stop in result.stops])
    return result.x.masked_fill_(is_lost.unsqueeze(-1), math.nan)


@dataclass(frozen=True)
class _Followed:
    """A function of the study as an oracle opens it."""

    function: Any
    dim: int

    @property
    def num_samples(self) -> int | None:
        count: int | None = getattr(self.function, "num_samples", None)
        return count

    def value(self, x: Tensor) -> Tensor:
        # The loop asks for values at the start and at the end, and nobody reads them.
        return x.new_zeros(x.shape[:-1])

    def grad(self, x: Tensor) -> Tensor:
        if self.function is None:
            return torch.zeros_like(x)
        gradient: Tensor = self.function.grad(x)
        return gradient

    def sample_grad(self, x: Tensor, indices: Tensor) -> Tensor:
        gradient: Tensor = self.function.sample_grad(x, indices)
        return gradient


@dataclass(frozen=True)
class _Door:
    """The oracle as a method of full gradients sees it: the feed stands for the gradient."""

    oracle: Oracle
    feed: Feed
    step: int

    def grad(self, x: Tensor) -> Tensor:
        return self.feed(self.oracle, x, self.step)


@dataclass(frozen=True)
class _Fed:
    """A method of the family with a feed in place of plain gradients, and a projection."""

    rule: Method
    feed: Feed
    keep: Callable[[Tensor], object] | None
    needs: frozenset[str] = frozenset({"grad", "sample_grad"})
    is_batched: bool = True

    @property
    def name(self) -> str:
        return self.rule.name

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> Any:
        return self.rule.init(oracle, x0, seed=seed)

    def step(self, oracle: Oracle, state: SeededState) -> SeededState:
        door = cast(Oracle, _Door(oracle, self.feed, state.step))
        moved = cast(SeededState, self.rule.step(door, state))
        if self.keep is not None:
            self.keep(moved.x)
        return moved


def due_steps(steps: int, decades: float = 2.0, per_decade: int = 12) -> list[int]:
    """Steps at which to look, evenly in log k over the last decades."""
    first = max(steps * 10.0**-decades, 1.0)
    count = round(decades * per_decade) + 1
    return [int(k) for k in np.unique(np.geomspace(first, steps, count).round())]
