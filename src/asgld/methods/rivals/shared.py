"""What the rival methods share: settings from proved constants, batches, and points on spheres."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from asgld.methods.base import State, batch_indices, normals
from asgld.oracle import Oracle


@dataclass(frozen=True)
class Constants:
    r"""What a problem proves about itself and what is asked of a method.

    ====================  ======================================================================
    field                 meaning
    ====================  ======================================================================
    smoothness            M: the gradient is M-Lipschitz
    hessian_lipschitz     rho: the Hessian is rho-Lipschitz
    eps, gamma            wanted: \|grad f\| <= eps and lambda_min >= -gamma
    dim                   number of variables
    gap                   f(x0) - min f, or a bound on it
    failure               allowed probability of failure
    ====================  ======================================================================

    >>> Constants(4.0, 1.0, 0.01, 0.1, 10, 1.0).condition
    40.0
    """

    smoothness: float
    hessian_lipschitz: float
    eps: float
    gamma: float
    dim: int
    gap: float
    failure: float = 0.1

    def __post_init__(self) -> None:
        require_positive(self, "smoothness", "hessian_lipschitz", "eps", "gamma", "dim", "gap")
        require(0.0 < self.failure < 1.0, "failure", self.failure, "a probability in (0, 1)")

    @property
    def condition(self) -> float:
        """kappa = M / gamma."""
        return self.smoothness / self.gamma

    @property
    def scale(self) -> float:
        """gamma^2 / rho: the gradient norm that belongs to gamma; eps where gamma^2 = rho eps."""
        return self.gamma**2 / self.hessian_lipschitz


@dataclass(kw_only=True)
class SeededState(State):
    """A state whose randomness is a function of the seed and the number of steps."""

    seed: int
    step: int = 0


class Rival(ABC):
    """A method of Table 1 or one that users know, with two ways to choose its options.

    `theory` follows the method's own theorem; `unverified` names options whose constants are only
    known up to a factor, or not proved at all. `ranges` are what a random search draws from,
    log-uniformly.
    """

    name: ClassVar[str]
    is_batched: ClassVar[bool] = True
    unverified: ClassVar[tuple[str, ...]] = ()
    ranges: ClassVar[dict[str, tuple[float, float]]]

    @property
    @abstractmethod
    def needs(self) -> frozenset[str]:
        """Names of the oracle calls it makes."""

    @abstractmethod
    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> State:
        """The state before the first step."""

    @abstractmethod
    def step(self, oracle: Oracle, state: Any) -> State:
        """One iteration, in the sense of the method's paper."""

    @classmethod
    def theory(
        cls,
        *,
        smoothness: float,
        hessian_lipschitz: float,
        eps: float,
        gamma: float,
        dim: int,
        gap: float,
        failure: float = 0.1,
    ) -> Self:
        """Settings from proved constants; see :class:`Constants` for their meaning."""
        return cls._proved(Constants(smoothness, hessian_lipschitz, eps, gamma, dim, gap, failure))

    @classmethod
    @abstractmethod
    def _proved(cls, constants: Constants) -> Self:
        """The settings that the method's theorem asks for."""


def require(holds: bool, argument: str, value: object, need: str) -> None:
    """Reject an option, saying its name, its value and what is allowed."""
    if not holds:
        raise ValueError(f"{argument}={value!r}: need {need}")


def require_positive(options: Any, *names: str) -> None:
    """Reject options that are not finite and positive."""
    for name in names:
        value = getattr(options, name)
        require(0.0 < value < math.inf, name, value, "a positive finite number")


def require_at_least_zero(options: Any, *names: str) -> None:
    """Reject options that are negative or not finite."""
    for name in names:
        value = getattr(options, name)
        require(0.0 <= value < math.inf, name, value, "a finite number of at least 0")


def require_batch(batch_size: int | None) -> None:
    """Reject a batch size that is no number of samples."""
    if batch_size is not None:
        require(batch_size >= 1, "batch_size", batch_size, "at least 1, or None for full gradients")


# ------------------------------------------------------------------------------------ gradients


def gradient_needs(batch_size: int | None) -> frozenset[str]:
    """What :func:`gradient` calls: a batch of all samples or more is the full gradient."""
    return frozenset({"grad"} if batch_size is None else {"grad", "sample_grad"})


def draw_batch(
    oracle: Oracle, x: Tensor, batch_size: int | None, seed: int, step: int
) -> Tensor | None:
    """Sample indices (R, B), one batch per row of x, or None for the full gradient."""
    if batch_size is None:
        return None
    if oracle.num_samples is None:
        raise ValueError(
            f"batch_size={batch_size}: the function is not a mean over samples; give num_samples= "
            "or leave batch_size out"
        )
    if batch_size >= oracle.num_samples:
        return None
    return batch_indices(seed, step, batch_size, oracle.num_samples, rows=len(x))


def gradient(oracle: Oracle, x: Tensor, indices: Tensor | None) -> Tensor:
    """The gradient at x, over a batch or over everything."""
    return oracle.grad(x) if indices is None else oracle.sample_grad(x, indices)


class GradientMethod(Rival):
    """One gradient for each step, over `batch_size` samples of its own or over everything."""

    batch_size: int | None

    @property
    def needs(self) -> frozenset[str]:
        return gradient_needs(self.batch_size)

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> SeededState:
        return SeededState(x=x0.clone(), seed=seed)

    def _gradient(self, oracle: Oracle, state: SeededState) -> Tensor:
        indices = draw_batch(oracle, state.x, self.batch_size, state.seed, state.step)
        return gradient(oracle, state.x, indices)


# ------------------------------------------------------------------------------------ geometry


def norm(x: Tensor) -> Tensor:
    """Euclidean norm of each row."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return length


def pick(mask: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
    """Rows of `chosen` where the mask holds, of `other` elsewhere."""
    return torch.where(mask[..., None], chosen, other)


def ball_penalty_slope(offset: Tensor, radius: float, weight: float) -> Tensor:
    """The gradient of weight [|offset| - radius]_+^2, for one offset of shape (d,)."""
    distance = float(offset.norm())
    excess = distance - radius
    return offset * (2.0 * weight * excess / distance if excess > 0.0 else 0.0)


def unit_sphere(seed: int, step: int, x: Tensor, stream: int = 1) -> Tensor:
    """Uniform points of the unit sphere, one for each row of x."""
    draw = normals(seed, step, x, stream)
    return draw / norm(draw)[..., None]


def unit_ball(seed: int, step: int, x: Tensor, stream: int = 1) -> Tensor:
    """Uniform points of the unit ball, one for each row of x.

    The first d of d + 2 coordinates of a uniform point of the sphere are uniform in the ball
    (Archimedes for d = 1).
    """
    sphere = unit_sphere(seed, step, x.new_empty(*x.shape[:-1], x.shape[-1] + 2), stream)
    return sphere[..., :-2]
