"""Full gradients plus Gaussian noise of known variance: what the theory's constants are about."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from asgld.methods import TorchMethod, langevin, normals
from asgld.methods.torch import TorchState
from asgld.oracle import Oracle

# A stream of `normals` that no optimizer uses.
_STREAM = 0x6A55


@dataclass(frozen=True)
class GaussianGradient(TorchMethod):
    r"""A torch optimizer fed with :math:`\nabla f(x) + N(0, C / B_k)`, :math:`B_k = (1+k)^\theta`.

    The noise of a mean over a batch of B Gaussian samples is exactly this, for any B, at the price
    of one draw.
    """

    variance: float = 0.0
    theta: float = 0.0

    def _gradient(self, oracle: Oracle, state: TorchState) -> Tensor:
        gradient = oracle.grad(state.x)
        if self.variance == 0.0:
            return gradient
        scale = math.sqrt(self.variance * (1.0 + state.step) ** -self.theta)
        return gradient + scale * normals(state.seed, state.step, state.x, stream=_STREAM)


def with_gaussian_noise(
    name: str, *, variance: float, theta: float = 0.0, **options: float
) -> GaussianGradient:
    """A method of the paper's family with Gaussian gradient noise of variance C per coordinate."""
    plain = langevin(name, **options)
    return GaussianGradient(
        plain.name, plain.optimizer, plain.options, variance=variance, theta=theta
    )
