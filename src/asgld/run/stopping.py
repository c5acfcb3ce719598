"""When a run stops, and why."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asgld.oracle import Oracle

FloatArray = npt.NDArray[np.float64]

# The first window of the settling test, in steps; each window is as long as all before it.
_FIRST_WINDOW = 64
# A chain has settled when a window lowers the mean value by less than this part of the whole fall.
_SETTLED_PART = 0.02


class Stop(enum.Enum):
    """Why a replica stopped, in words."""

    GRADIENT = "the gradient norm fell to the tolerance"
    TARGET = "the value fell to the target"
    SETTLED = "the value stopped falling"
    FINISHED = "the method had nothing more to do"
    MAX_STEPS = "the largest number of steps was taken"
    BUDGET = "the budget of gradient-equivalents was spent"
    NON_FINITE = "a number was not finite; the last finite point is kept"
    TIME = "the time limit was reached"
    CALLBACK = "the callback asked to stop"
    INTERRUPTED = "interrupted from the keyboard; the last complete step is kept"


@dataclass(frozen=True)
class StopWhen:
    """When to stop a replica before `max_steps`. Tests look through the free view of the oracle.

    Args:
        grad_tol: stop at a gradient norm of at most this.
        target: stop at a value of at most this.
        settles: stop when the mean value over the second half of the steps so far is lower than
            over the quarter before it by less than 2 % of the whole fall.
        every: test after so many steps, and before the first.
        confirm: confirm(x, stop), asked about the points (m, d) of replicas that meet `grad_tol` or
            `settles`; the mask it returns, or one bool, says which may stop. A noisy run asks
            about saddles. About small gradients it is asked again when the steps have doubled.
        patience: after so many refusals in a row a replica that has settled stops nevertheless.
        measure: replaces the gradient norm by measure(x, grad), of shape (...).
    """

    grad_tol: float | None = None
    target: float | None = None
    settles: bool = False
    every: int = 10
    confirm: Callable[[Tensor, Stop], npt.ArrayLike] | None = None
    patience: int = 3
    measure: Callable[[Tensor, Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every={self.every!r}: need at least 1 step")
        if self.grad_tol is not None and not self.grad_tol >= 0:
            raise ValueError(f"grad_tol={self.grad_tol!r}: need at least 0, or None for no test")

    @property
    def is_active(self) -> bool:
        return self.settles or self.grad_tol is not None or self.target is not None

    def size(self, x: Tensor, grad: Tensor) -> Tensor:
        """The gradient norm, or what stands for it."""
        if self.measure is not None:
            return self.measure(x, grad)
        norm: Tensor = torch.linalg.vector_norm(grad, dim=-1)
        return norm


@dataclass
class Settling:
    """Running means of values, for `StopWhen.settles`."""

    top: Tensor
    total: Tensor
    previous: Tensor
    refusals: Tensor
    count: int = 0
    window_end: int = _FIRST_WINDOW

    @classmethod
    def start(cls, values: Tensor) -> Settling:
        nothing = torch.full_like(values, math.nan)
        return cls(values.clone(), torch.zeros_like(values), nothing, torch.zeros_like(values))

    def test(self, step: int, values: Tensor) -> Tensor:
        """Take in the values at `step`; return the mask of replicas that have settled."""
        self.total = self.total + values
        self.count += 1
        if step < self.window_end:
            return torch.zeros_like(values, dtype=torch.bool)
        mean = self.total / self.count
        self.top = torch.maximum(self.top, mean)
        has_settled = self.previous - mean <= _SETTLED_PART * (self.top - mean)
        self.refusals = torch.where(has_settled, self.refusals, 0.0)
        self.previous, self.total = mean, torch.zeros_like(mean)
        self.count, self.window_end = 0, 2 * self.window_end
        return has_settled

    def pack(self) -> dict[str, Any]:
        return dict(vars(self))


def look(free: Oracle, x: Tensor, when: StopWhen, with_grad: bool) -> tuple[Tensor, Tensor]:
    """Values and gradient norms at x, uncounted."""
    values = free.value(x)
    norms = torch.full_like(values, math.nan)
    return values, when.size(x, free.grad(x)) if with_grad else norms
