"""Chains of a Langevin method, followed step by step: how the topics of the study run a method."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asgld_study.experiments.chains import Chains

# feed(door, x, step): the gradient at x that step number `step` uses. The door has the calls of the
# function: grad(x), and sample_grad(x, indices) where the function is a mean over samples.
Feed = Callable[[Any, Tensor, int], Tensor]


@dataclass
class View:
    """Chains between two steps.

    ======  ===========================================================
    field   meaning
    ======  ===========================================================
    step    steps taken
    x       the iterates, (chains, d); the next step changes them
    D       the accumulator that the next step uses, (chains, d)
    ======  ===========================================================
    """

    chains: Chains

    @property
    def step(self) -> int:
        return self.chains.step

    @property
    def x(self) -> Tensor:
        return self.chains.x

    @property
    def D(self) -> Tensor:
        return self.chains.accumulator


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

    Args:
        name: "asgld", "agld", "asg" or "sgld".
        function: has value(x) and grad(x); and sample_grad(x, indices) and num_samples where the
            feed draws batches.
        x0: start points, (chains, d).
        look: called with a :class:`View` before the first step and after each; True ends the run.
        steps: the largest number of steps.
        feed: how a step gets its gradient; :func:`exact`, :func:`noisy`, or a function like them.
        seed: of the injected noise.
        keep: a projection of the iterates in place after each step, such as ``Tensor.abs_``.
        lr_decay: q, for the step size lr (1 + k)^-q.
        options: of the optimizer.
    """
    chains = Chains(name, lambda x, step: feed(function, x, step), x0, seed=seed, **options)
    group = chains.optimizer.param_groups[0]
    lr, view = group["lr"], View(chains)
    if look is not None and look(view):
        return chains.x
    for step in range(steps):
        if lr_decay:
            group["lr"] = lr * (1.0 + step) ** -lr_decay
        chains.advance()
        if keep is not None:
            keep(chains.x)
        if look is not None and look(view):
            break
    return chains.x


def due_steps(steps: int, decades: float = 2.0, per_decade: int = 12) -> list[int]:
    """Steps at which to look, evenly in log k over the last decades."""
    first = max(steps * 10.0**-decades, 1.0)
    count = round(decades * per_decade) + 1
    return [int(k) for k in np.unique(np.geomspace(first, steps, count).round())]
