"""Algorithm 1 of the paper exactly as it is printed, two steps of lag and small start included."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from asgld.arguments import require, require_at_least_zero, require_positive
from asgld.methods.base import SeededState, Surroundings, normals
from asgld.methods.rivals.shared import GradientMethod, require_batch
from asgld.oracle import Oracle

# All coordinates together begin at this part of F as their temperature, as in the family.
_HEAT = 1e-8


@dataclass(kw_only=True)
class PrintedState(SeededState):
    """D_{k-1}, which step k uses, and the gradient that step k adds to it."""

    metric: Tensor
    previous: Tensor | None = None  # None before the first step, where x_0 = x_1


@dataclass(frozen=True)
class PrintedASGLD(GradientMethod):
    r"""Algorithm 1 as printed: D lags two steps and begins at delta.

    .. math:: x_{k+1} = x_k - \mathrm{lr}\, D_{k-1}^{-\alpha/2} G(x_k)
              + (2\, \mathrm{lr})^{1/2} D_{k-1}^{-\beta/2} \sigma z_k, \qquad
              D_k = D_{k-1} + G(x_{k-1})^2 + \delta, \qquad D_0 = \delta, \quad k = 1, 2, \dots

    The newest square inside the D of a step is that of the gradient two steps before. From
    :math:`x_0 = x_1` the first gradient enters D twice. The paper starts D at index -1 and never
    says how :math:`D_0` follows; here both are delta.

    The first step is :math:`\mathrm{lr}\, \delta^{-\alpha/2}` gradients long, so a small delta asks
    for a small lr. :class:`asgld.ASGLD` has the lag of one step of the paper's proofs, and a start
    of D of its own, `d_init`.

    Args:
        lr: step size.
        alpha, beta: exponents of D in the step and in the noise; an infinite beta is no noise.
        sigma: standard deviation of the noise before D scales it.
        delta: the start of D, and what each step adds to it.
        batch_size: of G, or None for full gradients.

    >>> from asgld.methods import method
    >>> method("asgld-printed", delta=1e-4)
    PrintedASGLD(lr=0.01, alpha=1.0, beta=1.0, sigma=0.001, delta=0.0001, batch_size=None)
    """

    lr: float = 1e-2
    alpha: float = 1.0
    beta: float = 1.0
    sigma: float = 1e-3
    delta: float = 1e-2
    batch_size: int | None = None

    name: ClassVar[str] = "asgld-printed"

    def __post_init__(self) -> None:
        require_positive(self, "lr", "delta")
        require_at_least_zero(self, "alpha", "sigma")
        require(self.beta >= 0.0, "beta", self.beta, "a number of at least 0, or infinity")
        require_batch(self.batch_size)

    @property
    def has_noise(self) -> bool:  # type: ignore[override]
        """Whether two seeds give two runs: injected noise, or sampled gradients."""
        return self.batch_size is not None or self._is_noisy

    @property
    def anneals(self) -> bool:  # type: ignore[override]
        """Whether the temperature sigma^2 D^(alpha/2 - beta) falls."""
        return not self._is_noisy or self.beta > self.alpha / 2

    @property
    def _is_noisy(self) -> bool:
        return self.sigma > 0.0 and not math.isinf(self.beta)

    def fitted(self, around: Surroundings) -> dict[str, Any]:
        delta = self.options.get("delta", around.max_square or around.slope**2)
        cooling = 0.0 if math.isinf(self.beta) else delta ** ((self.beta - self.alpha / 2) / 2)
        sigma = cooling * math.sqrt(_HEAT * around.fall / around.dim)
        lr = delta ** (self.alpha / 2) / around.curvature  # the first step is 1/M gradients long
        return {"delta": delta, "lr": lr, "sigma": sigma}

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> PrintedState:
        return PrintedState(x=x0.clone(), seed=seed, metric=torch.full_like(x0, self.delta))

    def step(self, oracle: Oracle, state: PrintedState) -> PrintedState:
        grad = self._gradient(oracle, state)
        metric = state.metric
        x = state.x - self.lr * metric ** (-self.alpha / 2) * grad
        if self._is_noisy:
            noise = self.sigma * normals(state.seed, state.step, x, stream=0)
            x = x + math.sqrt(2.0 * self.lr) * metric ** (-self.beta / 2) * noise
        past = grad if state.previous is None else state.previous
        state.metric, state.previous = metric + past * past + self.delta, grad
        state.x = x
        state.step += 1
        return state
