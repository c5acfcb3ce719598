"""What happens on the way, and when: leaving a saddle, arriving at a second-order point.

Everything is looked at through the free view of the oracle. Looks are dense at first and then
spaced by 1/256 of the steps taken, so that times are exact up to step 512 and within 0.4 % after;
the second-order test, which costs a gradient, is spaced by 1/64, and asks for eigenvalues only
where the gradient is small and the last direction of negative curvature is none any more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asgld.counts import Counts
from asgld.curvature import lambda_min
from asgld.oracle import Oracle
from asgld.problems import Problem
from asgld.run import Progress, Run

EVENTS = ("fall", "leave", "sosp")
# Steps between looks are this part of the steps taken.
_LOOK, _SECOND_ORDER = 1 / 256, 1 / 64
# Below this dimension eigenvalues come from the whole Hessian.
_DENSE = 100

BoolArray = npt.NDArray[np.bool_]
Columns = dict[str, npt.NDArray[np.float64]]
Found = dict[str, dict[str, list[float | None]]]


@dataclass(frozen=True, eq=False)
class Watch:
    """The events of a problem: thresholds, and the directions in which a saddle is left.

    `level`, `basis` and `radius` are None where no saddle is being left.
    """

    problem: Problem
    eps: float
    gamma: float
    until: str | None
    level: float | None = None
    center: Tensor | None = None
    basis: Tensor | None = None  # (d, m)
    radius: float | None = None

    @classmethod
    def of(
        cls, problem: Problem, saddle: int | None, *, eps: float, gamma: float, until: str | None
    ) -> Watch:
        """Watch a problem whose saddle of that number is the start; None for no saddle."""
        if saddle is None:
            if until not in ("sosp", None):
                raise ValueError(f"until={until!r}: a random start leaves no saddle; use 'sosp'")
            return cls(problem, eps, gamma, until)
        known = problem.facts.saddles[saddle]
        curvature, rho = abs(known.lambda_min), problem.facts.hessian_lipschitz or 1.0
        if known.next_value is not None:
            drop = 0.25 * (known.value - known.next_value)
        else:
            drop = curvature**3 / (12.0 * rho**2)
        return cls(
            problem,
            eps,
            gamma,
            until,
            known.value - drop,
            known.point,
            _escape_directions(problem, known.point, curvature),
            curvature / (2.0 * rho),
        )

    @property
    def events(self) -> tuple[str, ...]:
        return ("sosp",) if self.level is None else EVENTS

    def begin(self, oracle: Oracle, replicas: int) -> Looker:
        """Watch one run."""
        return Looker(self, oracle.free(), replicas)


class Looker:
    """A callback of `asgld.run.run` that notes when each replica has which event."""

    def __init__(self, watch: Watch, free: Oracle, replicas: int) -> None:
        self.watch, self.free, self.replicas = watch, free, replicas
        self.found: dict[str, Columns] = {e: {} for e in watch.events}
        self.is_found = {e: np.zeros(replicas, np.bool_) for e in watch.events}
        self.steps = np.zeros(replicas)  # of each replica, while it runs
        self.next_look, self.next_test = 1, 1
        self.witness: Tensor | None = None

    def __call__(self, progress: Progress) -> bool:
        self.steps[progress.active] = progress.step
        if progress.step < self.next_look:
            return False
        self.next_look = progress.step + max(1, int(_LOOK * progress.step))
        with_test = progress.step >= self.next_test
        if with_test:
            self.next_test = progress.step + max(1, int(_SECOND_ORDER * progress.step))
        self._look(progress.x, progress.counts, with_test)
        until = self.watch.until
        return until is not None and bool(self.is_found[until].all())

    def finish(self, result: Run) -> Found:
        """A last look, where each replica ended; then what was found."""
        self.steps = result.steps.astype(np.float64)
        self._look(result.x, result.counts, with_test=True)
        return {
            event: {
                unit: [None if not hit else _plain(v) for hit, v in zip(mask, values, strict=True)]
                for unit, values in self._columns(event).items()
            }
            for event, mask in self.is_found.items()
        }

    def _columns(self, event: str) -> Columns:
        columns = self.found[event]
        return columns or {"steps": np.zeros(self.replicas), "spent": np.zeros(self.replicas)}

    def _look(self, x: Tensor, counts: Counts, with_test: bool) -> None:
        watch = self.watch
        if watch.level is not None and not self.is_found["fall"].all():
            self._note("fall", (self.free.value(x) < watch.level).numpy(), counts)
        if watch.basis is not None and not self.is_found["leave"].all():
            assert watch.center is not None
            assert watch.radius is not None
            distance = torch.linalg.vector_norm((x - watch.center) @ watch.basis, dim=-1)
            self._note("leave", (distance >= watch.radius).numpy(), counts)
        if with_test and not self.is_found["sosp"].all():
            self._note("sosp", self._second_order(x), counts)

    def _note(self, event: str, mask: BoolArray, counts: Counts) -> None:
        new = mask & ~self.is_found[event]
        if not new.any():
            return
        columns = self.found[event]
        units = {"steps": self.steps, "spent": counts.spent, "samples": counts.samples}
        for unit, values in {**units, **counts.calls}.items():
            if unit in columns or unit in units or values.any():
                columns.setdefault(unit, np.zeros(self.replicas))[new] = values[new]
        self.is_found[event] |= new

    # ---------------------------------------------------------------------------- second order

    def _second_order(self, x: Tensor) -> BoolArray:
        """Which replicas are at a second-order point, of those not yet known to have been."""
        norms = torch.linalg.vector_norm(self.free.grad(x), dim=-1)
        mask: BoolArray = (norms <= self.watch.eps).numpy() & ~self.is_found["sosp"]
        if math.isinf(self.watch.gamma) or not mask.any():
            return mask
        for r in np.flatnonzero(mask & ~self._refused(x)).tolist():
            value, vector = self._lowest(x[r])
            if value < -self.watch.gamma:
                mask[r] = False
                if self.witness is None:
                    self.witness = torch.zeros_like(x)
                self.witness[r] = vector
        accepted: BoolArray = mask & ~self._refused(x)
        return accepted

    def _refused(self, x: Tensor) -> BoolArray:
        """Replicas where the direction found last still has too negative a curvature.

        Near a saddle this spares the eigenvalues: v'Hv >= lambda_min for every unit v.
        """
        if self.witness is None:
            return np.zeros(self.replicas, np.bool_)
        curvature = (self.witness * self.free.hvp(x, self.witness)).sum(-1)
        refused: BoolArray = (curvature < -self.watch.gamma).numpy()
        return refused

    def _lowest(self, x: Tensor) -> tuple[float, Tensor]:
        if len(x) <= _DENSE:
            values, vectors = torch.linalg.eigh(self.free.hessian(x))
            return float(values[0]), vectors[:, 0]
        end = lambda_min(
            lambda v: self.free.hvp(x, v),
            len(x),
            tol=0.1 * self.watch.gamma,
            starts=1,
            confidence=1 - 1e-4,
            max_hvp=400,
            dense_below=0,
        )
        return end.value, end.vector


def _escape_directions(problem: Problem, point: Tensor, curvature: float) -> Tensor:
    """An orthonormal basis of eigenvectors below -curvature/2; of the lowest one if d is large."""
    if problem.dim <= 4 * _DENSE:
        values, vectors = torch.linalg.eigh(problem.hessian(point))
        basis: Tensor = vectors[:, values <= -0.5 * curvature]
        return basis
    end = lambda_min(lambda v: problem.hvp(point, v), problem.dim, tol=1e-3 * curvature)
    return end.vector[:, None]


def _plain(value: float) -> float:
    """As an integer where it is one."""
    return int(value) if float(value).is_integer() else float(value)
