"""Parts that rival methods share: batches, masks, spheres, and the search for curvature."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from asgld.arguments import require, require_positive
from asgld.curvature.lanczos import Krylov, overlap
from asgld.curvature.operator import SymmetricOperator
from asgld.methods.base import (
    SeededState,
    Surroundings,
    draw_batch,
    gradient,
    gradient_needs,
    normals,
)
from asgld.oracle import Oracle


def given(options: object, *names: str) -> list[str]:
    """Those of the names whose option is not None."""
    return [name for name in names if getattr(options, name) is not None]


def require_batch(batch_size: int | None) -> None:
    """Reject a batch size that is no number of samples."""
    is_valid = batch_size is None or batch_size >= 1
    require(is_valid, "batch_size", batch_size, "at least 1, or None for full gradients")


def require_probability(option: str, value: float) -> None:
    """Reject a probability that is 0, 1 or outside."""
    require(0.0 < value < 1.0, option, value, "a probability in (0, 1)")


class Rival:
    """A frozen dataclass of options, open until they are given: the base of all rivals.

    `fitted` states the options in the units of f; those among them that the caller did not give are
    open. Two seeds are taken to give two runs, and the noise to die out, unless a class says so.
    """

    has_noise: ClassVar[bool] = True
    anneals: ClassVar[bool] = True
    _given: frozenset[str]

    def __new__(cls, *values: Any, **options: Any) -> Self:
        made = super().__new__(cls)
        names = [f.name for f in _options(cls)]
        object.__setattr__(made, "_given", frozenset((*names[: len(values)], *options)))
        return made

    @property
    def options(self) -> dict[str, Any]:
        """The options that were given."""
        return {name: value for name, value in self.knobs.items() if name in self._given}

    @property
    def knobs(self) -> dict[str, Any]:
        """All options, defaults included."""
        return {f.name: getattr(self, f.name) for f in _options(type(self))}

    @property
    def open_options(self) -> frozenset[str]:
        """The options that were not given and depend on the scales of f."""
        return frozenset(self.fitted(_UNITS)) - self._given

    def with_options(self, options: Mapping[str, Any]) -> Self:
        return type(self)(**options)

    def fitted(self, around: Surroundings) -> dict[str, Any]:
        """The options that depend on the scales of f, from these scales."""
        raise NotImplementedError

    def _range(self, low: str, high: str, least: float, most: float) -> dict[str, float]:
        """Two options of which `low` may not be above `high`, whichever of them was given."""
        given = self.options
        return {low: min(least, given.get(high, least)), high: max(most, given.get(low, most))}


def _options(kind: Any) -> list[Any]:
    return [f for f in fields(kind) if f.init]


# Any scales serve to ask which options there are.
_UNITS = Surroundings(1.0, 1.0, 1.0, 1.0, 1.0, 1, 1e-3, 0.1)


class GradientMethod(Rival):
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


# ------------------------------------------------------------------------------------ curvature

S = TypeVar("S", bound=SeededState)
_SECOND_ORDER = "the gradient and the curvature meet the tolerances"


class CurvatureMethod(Rival, ABC):
    """One replica at a time; where f is not finite the loop keeps the point before the step."""

    is_batched: ClassVar[bool] = False

    def step(self, oracle: Oracle, state: Any) -> Any:
        try:
            moved = self._advance(oracle, state)
        except (FloatingPointError, OverflowError):
            moved = replace(state, x=torch.full_like(state.x, torch.nan))
        return replace(moved, step=state.step + 1)

    @abstractmethod
    def _advance(self, oracle: Oracle, state: Any) -> Any:
        """One step; FloatingPointError or OverflowError where f is not finite."""


@dataclass(frozen=True, kw_only=True)
class HessianVectorMethod(CurvatureMethod):
    """The options that all methods with Hessian-vector products have, and a plain state.

    Args:
        hessian_lipschitz: rho: the Hessian is rho-Lipschitz.
        eps: target norm of the gradient.
        failure: probability that one search for negative curvature misses.
    """

    hessian_lipschitz: float = 1.0
    eps: float = 1e-3
    failure: float = 1e-3

    needs: ClassVar[frozenset[str]] = frozenset({"grad", "hvp"})

    def __post_init__(self) -> None:
        require_positive(self, "hessian_lipschitz", "eps")
        require_probability("failure", self.failure)

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> SeededState:
        return SeededState(x=x0.clone(), seed=seed)

    def fitted(self, around: Surroundings) -> dict[str, Any]:
        return {"hessian_lipschitz": around.hessian_lipschitz, "eps": around.eps}


def at_second_order(state: S, is_done: bool = True, **changes: Any) -> S:
    """The state with changes; finished, if it is done, at a second-order stationary point."""
    return replace(state, finished=is_done, message=_SECOND_ORDER if is_done else "", **changes)


def lowest_curvature(
    hessian: SymmetricOperator, start: Tensor, accuracy: float, failure: float
) -> tuple[float, Tensor]:
    """A unit v with v'Hv <= lambda_min + accuracy, up to a chance of `failure` over the start.

    The sign of v is that of the start: random, and independent of f.
    """
    # In one or two dimensions the space is exhausted before chance matters.
    t = overlap(max(hessian.dim, 3), failure)
    run = Krylov(hessian, start, hessian.dim)
    for _ in run.checkpoints():
        if run.is_exhausted or run.hidden_below(t) <= accuracy:
            break
    values, vectors = run.ritz()
    vector = run.vectors(vectors[:, :1])[:, 0]
    return float(values[0]), vector / vector.norm()


def hessian_at(oracle: Oracle, x: Tensor) -> SymmetricOperator:
    """The Hessian at x, as its products with vectors, each of them counted."""
    return SymmetricOperator(
        lambda v: finite(oracle.hvp(x, v)), len(x), dtype=x.dtype, device=x.device
    )


def finite(result: Tensor) -> Tensor:
    """The result itself, or FloatingPointError."""
    if not bool(torch.isfinite(result).all()):
        raise FloatingPointError("a derivative of f is not finite")
    return result
