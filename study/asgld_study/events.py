"""What happens on the way, and when: leaving a saddle, arriving at a second-order point.

    ========  ================================================================================
    event     first step k with
    ========  ================================================================================
    fall      f(x_k) < f(saddle) - D, D a quarter of the way to the next critical value; where that
              is not known, the fall that one exact curvature step guarantees, gamma^3/(12 rho^2)
    hold      the same, and f < f(saddle) - D/2 for the 50 steps after: no bounce
    leave     |P (x_k - saddle)| >= gamma / (2 rho), with P the projection on eigenvectors of the
              saddle below -gamma/2: no matter how noisy the stable directions are
    clear     |x_k - saddle| >= gamma / rho and lambda_min >= -gamma/2, or the next event "sosp"
    sosp      |grad f(x_k)| <= eps and lambda_min >= -gamma: a second-order point
    mean      the mean of the last tenth of the iterates is one: an output that a noisy method could
              choose; where the method has finished, its point
    ========  ================================================================================

The free view of the oracle serves all looks. Looks are dense at first and then spaced by 1/256 of
the steps taken, so that times are exact up to step 512 and within 0.4 % after. Second-order tests
cost a gradient: they are spaced by 1/64, and ask for eigenvalues only where the gradient is small
and the direction of negative curvature that was found last has become stable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asgld.curvature import lambda_min
from asgld.oracle import Oracle
from asgld.oracle.costs import Counts
from asgld.problems import Problem
from asgld.run import Progress, Run
from asgld.run.stopping import Stop

EVENTS = ("fall", "hold", "leave", "clear", "sosp", "mean")
WITHOUT_SADDLE = ("sosp", "mean")
# Steps between looks are this part of the steps taken.
_LOOK, _SECOND_ORDER = 1 / 256, 1 / 64
# A fall holds if f does not bounce back over half of it within so many steps.
_HOLD_STEPS = 50
# The mean is over this part of the steps so far.
_TAIL = 0.1
# Below this dimension eigenvalues come from the whole Hessian.
_DENSE = 100

BoolArray = npt.NDArray[np.bool_]
Columns = dict[str, npt.NDArray[np.float64]]
# unit -> what each replica had used at the event; None for a replica without it
EventColumns = dict[str, list[float | None]]


@dataclass(frozen=True, eq=False)
class Exit:
    """A saddle that is being left: how far f must fall, and in which directions x must go."""

    level: float  # f below which the saddle has been left
    bounce: float  # f above which the fall was only a bounce
    center: Tensor
    basis: Tensor  # (d, m): the directions of negative curvature
    radius: float  # how far the quadratic model is trusted
    curvature: float  # -lambda_min

    @classmethod
    def of(cls, problem: Problem, number: int) -> Exit:
        known = problem.facts.saddles[number]
        curvature, rho = abs(known.lambda_min), problem.facts.hessian_lipschitz or 1.0
        if known.next_value is not None:
            drop = 0.25 * (known.value - known.next_value)
        else:
            drop = curvature**3 / (12.0 * rho**2)
        return cls(
            known.value - drop,
            known.value - 0.5 * drop,
            known.point,
            _escape_directions(problem, known.point, curvature),
            curvature / (2.0 * rho),
            curvature,
        )


class Looker:
    """A callback of `asgld.run.run` that notes when each replica has which event.

    Args:
        free: the free view of the oracle of the run.
        replicas: how many there are.
        door: the saddle that is being left; None for a start elsewhere.
        eps, gamma: of a second-order point.
        until: the event that ends the run once every replica had it, "all" of them, or None.
    """

    def __init__(
        self,
        free: Oracle,
        replicas: int,
        door: Exit | None,
        *,
        eps: float,
        gamma: float,
        until: str | None,
    ) -> None:
        self.free, self.replicas, self.door = free, replicas, door
        self.eps, self.gamma = eps, gamma
        events = WITHOUT_SADDLE if door is None else EVENTS
        self.awaited = events if until == "all" else () if until is None else (until,)
        self.found: dict[str, Columns] = {event: {} for event in events}
        self.is_found = {event: np.zeros(replicas, np.bool_) for event in events}
        self.steps = np.zeros(replicas)  # of each replica, while it runs
        self.rests = np.zeros(replicas)  # steps that left the point where it was
        self.last: Tensor | None = None
        self.next_look, self.next_test = 1, 1
        self.witnesses: dict[str, Tensor] = {}
        self.fell_at = np.full(replicas, math.nan)  # the fall that has not bounced back yet
        self.at_fall: Columns = {}
        self.tail = Tail()

    def __call__(self, progress: Progress) -> bool:
        self.steps[progress.active] = progress.step
        if self.last is not None:
            self.rests += (progress.x == self.last).all(-1).numpy() & progress.active
        self.last = progress.x
        self.tail.add(progress.x)
        if progress.step < self.next_look:
            return False
        self.next_look = progress.step + max(1, int(_LOOK * progress.step))
        used = {**used_by(self.steps, progress.counts), "rests": self.rests.copy()}
        self._look(progress.x, used)
        if progress.step >= self.next_test:
            self.next_test = progress.step + max(1, int(_SECOND_ORDER * progress.step))
            self._test(progress.x, used)
            self._note("mean", self._second_order("mean", self.tail.mean(), progress.active), used)
            self.tail.mark()
        return bool(self.awaited) and all(self.is_found[event].all() for event in self.awaited)

    def finish(self, result: Run) -> dict[str, EventColumns]:
        """Look a last time, where each replica ended, and return what was found."""
        self.steps = result.steps.astype(np.float64)
        used = {**used_by(self.steps, result.counts), "rests": self.rests}
        self._look(result.x, used)
        self._test(result.x, used)
        # A method that finished has chosen its output, and stays there.
        is_finished = np.array([stop is Stop.FINISHED for stop in result.stops])
        if self.door is not None:
            self._note("hold", is_finished & ~np.isnan(self.fell_at), self.at_fall)
        self._note("mean", self._second_order("mean", result.x, is_finished), used)
        if self.tail.count:
            is_last = ~is_finished & (result.steps == self.tail.count)
            self._note("mean", self._second_order("mean", self.tail.mean(), is_last), used)
        nothing = dict.fromkeys(("steps", "spent"), np.zeros(self.replicas))
        return {
            event: {
                unit: [float(v) if hit else None for hit, v in zip(mask, values, strict=True)]
                for unit, values in (self.found[event] or nothing).items()
            }
            for event, mask in self.is_found.items()
        }

    def _note(self, event: str, mask: BoolArray, used: Columns) -> None:
        new = mask & ~self.is_found[event]
        if new.any():
            _fill(self.found[event], new, used)
            self.is_found[event] |= new

    # ---------------------------------------------------------------------------- leaving

    def _look(self, x: Tensor, used: Columns) -> None:
        door = self.door
        if door is None:
            return
        if not self.is_found["hold"].all():
            values = self.free.value(x).numpy()
            self._note("fall", values < door.level, used)
            self._note_hold(values, door, used)
        if not self.is_found["leave"].all():
            distance = torch.linalg.vector_norm((x - door.center) @ door.basis, dim=-1)
            self._note("leave", (distance >= door.radius).numpy(), used)

    def _note_hold(self, values: npt.NDArray[np.float64], door: Exit, used: Columns) -> None:
        self.fell_at[~(values < door.bounce)] = math.nan
        new = (values < door.level) & np.isnan(self.fell_at)
        self.fell_at[new] = self.steps[new]
        _fill(self.at_fall, new, used)
        self._note("hold", self.steps - self.fell_at >= _HOLD_STEPS, self.at_fall)

    # ---------------------------------------------------------------------------- second order

    def _test(self, x: Tensor, used: Columns) -> None:
        everyone = np.ones(self.replicas, np.bool_)
        self._note("sosp", self._second_order("sosp", x, everyone), used)
        door = self.door
        if door is None or self.is_found["clear"].all():
            return
        is_far = (torch.linalg.vector_norm(x - door.center, dim=-1) >= 2.0 * door.radius).numpy()
        is_far &= ~self.is_found["clear"]
        is_clear = self._has_curvature_above("clear", x, is_far, 0.5 * door.curvature)
        self._note("clear", is_clear | self.is_found["sosp"], used)

    def _second_order(self, event: str, x: Tensor, mask: BoolArray) -> BoolArray:
        """Which replicas of the mask are at a second-order point, of those still without it."""
        mask = mask & ~self.is_found[event]
        if not mask.any():
            return mask
        norms = torch.linalg.vector_norm(self.free.grad(x), dim=-1)
        mask &= (norms <= self.eps).numpy()
        if math.isinf(self.gamma):
            return mask
        return self._has_curvature_above(event, x, mask, self.gamma)

    def _has_curvature_above(
        self, event: str, x: Tensor, mask: BoolArray, bound: float
    ) -> BoolArray:
        """Which replicas of the mask have lambda_min >= -bound."""
        if not mask.any():
            return mask
        mask = mask & ~self._refused(event, x, bound)
        for r in np.flatnonzero(mask).tolist():
            value, vector = self._lowest(x[r], 0.1 * bound)
            if value < -bound:
                mask[r] = False
                self.witnesses.setdefault(event, torch.zeros_like(x))[r] = vector
        return mask

    def _refused(self, event: str, x: Tensor, bound: float) -> BoolArray:
        """Replicas where the direction found last still has too negative a curvature.

        Near a saddle this spares the eigenvalues: v'Hv >= lambda_min for every unit v.
        """
        witness = self.witnesses.get(event)
        if witness is None:
            return np.zeros(self.replicas, np.bool_)
        curvature = (witness * self.free.hvp(x, witness)).sum(-1)
        refused: BoolArray = (curvature < -bound).numpy()
        return refused

    def _lowest(self, x: Tensor, tol: float) -> tuple[float, Tensor]:
        if len(x) <= _DENSE:
            values, vectors = torch.linalg.eigh(self.free.hessian(x))
            return float(values[0]), vectors[:, 0]
        end = lambda_min(
            lambda v: self.free.hvp(x, v),
            len(x),
            tol=tol,
            starts=1,
            confidence=1 - 1e-4,
            max_hvp=400,
            dense_below=0,
        )
        return end.value, end.vector


class Tail:
    """Means of the last tenth of a sequence, from its sums up to a few earlier steps.

    >>> tail = Tail()
    >>> for k in range(1, 31):
    ...     tail.add(torch.tensor(float(k)))
    ...     tail.mark()
    >>> float(tail.mean())  # of 28, 29 and 30
    29.0
    """

    def __init__(self) -> None:
        self.count = 0
        self.total = torch.zeros(())
        self.marks: list[tuple[int, Tensor]] = [(0, self.total)]

    def add(self, x: Tensor) -> None:
        self.count += 1
        self.total = self.total + x

    def mark(self) -> None:
        """Remember the sum so far: a later mean can begin here."""
        while len(self.marks) > 1 and self.marks[1][0] <= self._first:
            self.marks.pop(0)
        self.marks.append((self.count, self.total))

    def mean(self) -> Tensor:
        """The mean since the last mark that leaves out nine tenths at most."""
        step, total = next(m for m in reversed(self.marks) if m[0] <= self._first)
        return (self.total - total) / (self.count - step)

    @property
    def _first(self) -> int:
        return min(self.count - 1, math.floor((1.0 - _TAIL) * self.count + 1e-9))


def used_by(steps: npt.NDArray[np.float64], counts: Counts) -> Columns:
    """What each replica has used, in every unit that was used at all."""
    calls = {kind: n.astype(np.float64) for kind, n in counts.calls.items() if n.any()}
    samples = counts.samples.astype(np.float64)
    return {"steps": steps.copy(), "spent": counts.spent, "samples": samples, **calls}


def _fill(columns: Columns, rows: BoolArray, used: Columns) -> None:
    for unit, values in used.items():
        columns.setdefault(unit, np.zeros(len(rows)))[rows] = values[rows]


def _escape_directions(problem: Problem, point: Tensor, curvature: float) -> Tensor:
    """An orthonormal basis of eigenvectors below -curvature/2; of the lowest one if d is large."""
    if problem.dim <= 4 * _DENSE:
        values, vectors = torch.linalg.eigh(problem.hessian(point))
        basis: Tensor = vectors[:, values <= -0.5 * curvature]
        return basis
    end = lambda_min(lambda v: problem.hvp(point, v), problem.dim, tol=1e-3 * curvature)
    return end.vector[:, None]
