"""What the methods that see curvature share: steps that can fail, options, the search for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from asgld._require import require_positive
from asgld.curvature.lanczos import Krylov, overlap
from asgld.curvature.operator import SymmetricOperator
from asgld.methods.base import SeededState
from asgld.methods.rivals.shared import require_probability
from asgld.oracle import Oracle

# What a method says that finishes by itself.
SECOND_ORDER = "the gradient and the curvature meet the tolerances"


class CurvatureMethod(ABC):
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
    """The options that all methods with Hessian-vector products have, and a plain state."""

    hessian_lipschitz: float = 1.0
    eps: float = 1e-3
    failure: float = 1e-3

    needs: ClassVar[frozenset[str]] = frozenset({"grad", "hvp"})

    def __post_init__(self) -> None:
        require_positive(self, "hessian_lipschitz", "eps")
        require_probability("failure", self.failure)

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> SeededState:
        return SeededState(x=x0.clone(), seed=seed)


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
