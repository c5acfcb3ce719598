"""The shipped optimizers on many chains at once, without a count of calls.

`asgld.run.run` counts, records and checks at every step. Where an experiment only needs iterates of
a function with a known gradient, this costs a fifth of the time; the update is the same class.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.optim import Optimizer

from asgld.methods.torch import LANGEVIN

FloatArray = npt.NDArray[np.float64]
Gradient = Callable[[Tensor, int], Tensor]
_BOOTSTRAPS = 500


class Differentiable(Protocol):
    """What a chain needs of a function."""

    def grad(self, x: Tensor) -> Tensor: ...


class Chains:
    """One optimizer over a tensor of shape (chains, d), which is that many chains.

    Args:
        name: "asgld", "agld", "asg" or "sgld".
        gradient: called with the iterates and the number of steps taken.
        x0: start points.
        seed: of the injected noise.
        options: of the optimizer.
    """

    def __init__(
        self, name: str, gradient: Gradient, x0: Tensor, *, seed: int = 0, **options: Any
    ) -> None:
        self.x, self.gradient, self.step = x0.detach().clone(), gradient, 0
        with warnings.catch_warnings():
            # Experiments heat on purpose, to see what happens.
            warnings.filterwarnings("ignore", message="beta=.* with alpha=")
            make: Callable[..., Optimizer] = LANGEVIN[name]
            self.optimizer = make([self.x], seed=seed, **options)

    def advance(self) -> Tensor:
        """Take a step and return the iterates themselves, which the next step changes."""
        self.x.grad = self.gradient(self.x, self.step)
        self.optimizer.step()
        self.step += 1
        return self.x

    @property
    def accumulator(self) -> Tensor:
        """D, which the next step uses."""
        group = self.optimizer.param_groups[0]
        total: Tensor = self.optimizer.state[self.x]["sum"]
        constant: float = group["d_init"] + self.step * group["delta"]
        return total + constant


def noisy(
    function: Differentiable,
    variance: float = 0.0,
    *,
    theta: float = 0.0,
    seed: int = 0,
    mask: Tensor | None = None,
) -> Gradient:
    r"""Gradients with Gaussian noise of variance :math:`C (1+k)^{-\theta}` per coordinate.

    That is the noise of a mean over :math:`(1+k)^\theta` Gaussian samples. `mask` multiplies it.
    """
    generator = torch.Generator().manual_seed(seed)

    def gradient(x: Tensor, step: int) -> Tensor:
        exact = function.grad(x)
        if variance == 0.0:
            return exact
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        if mask is not None:
            noise *= mask
        return exact.add_(noise, alpha=math.sqrt(variance * (1.0 + step) ** -theta))

    return gradient


def due_steps(steps: int, decades: float = 2.0, per_decade: int = 12) -> list[int]:
    """Steps at which to look, evenly in log k over the last decades."""
    first = max(steps * 10.0**-decades, 1.0)
    count = round(decades * per_decade) + 1
    return [int(k) for k in np.unique(np.geomspace(first, steps, count).round())]


def slope(x: npt.ArrayLike, columns: FloatArray, *, seed: int = 0) -> dict[str, float]:
    """Slope of the log of the mean over chains against x, with its 95 % bootstrap interval.

    Args:
        x: positions, (T,).
        columns: positive numbers, (T, chains).
    """
    position = np.asarray(x, dtype=np.float64)
    centered = position - position.mean()
    rng, chains = np.random.default_rng(seed), columns.shape[1]
    # Counts of how often each chain is drawn turn the bootstrap into one product.
    draws = rng.multinomial(chains, np.full(chains, 1.0 / chains), size=_BOOTSTRAPS)
    means = np.log(np.vstack([np.ones(chains), draws]) @ columns.T / chains)
    slopes = means @ centered / (centered @ centered)
    low, high = np.quantile(slopes[1:], [0.025, 0.975])
    return {"value": float(slopes[0]), "low": float(low), "high": float(high)}


def mean(values: npt.ArrayLike) -> dict[str, float]:
    """Mean with its 95 % interval by the normal law."""
    sample = np.asarray(values, dtype=np.float64)
    middle = float(sample.mean())
    half = 1.96 * float(sample.std(ddof=1)) / math.sqrt(len(sample)) if len(sample) > 1 else 0.0
    return {"value": middle, "low": middle - half, "high": middle + half}
