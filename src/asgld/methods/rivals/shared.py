"""Parts that rival methods share: batches, masks, and points on spheres."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from asgld._require import require
from asgld.methods.base import SeededState, draw_batch, gradient, gradient_needs, normals
from asgld.oracle import Oracle


def require_batch(batch_size: int | None) -> None:
    """Reject a batch size that is no number of samples."""
    is_valid = batch_size is None or batch_size >= 1
    require(is_valid, "batch_size", batch_size, "at least 1, or None for full gradients")


def require_probability(option: str, value: float) -> None:
    """Reject a probability that is 0, 1 or outside."""
    require(0.0 < value < 1.0, option, value, "a probability in (0, 1)")


class GradientMethod:
    """One gradient for each step, over `batch_size` samples of its own or over everything."""

    batch_size: int | None
    is_batched: ClassVar[bool] = True

    @property
    def needs(self) -> frozenset[str]:
        return gradient_needs(self.batch_size)

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> SeededState:
        return SeededState(x=x0.clone(), seed=seed)

    def _gradient(self, oracle: Oracle, state: SeededState) -> Tensor:
        indices = draw_batch(oracle, state.x, self.batch_size, state.seed, state.step)
        return gradient(oracle, state.x, indices)


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
