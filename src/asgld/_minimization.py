"""The work behind `minimize`: descend, judge, polish, escape, and again.

:class:`Landscape` is the function in the user's coordinates and in those of the search;
:class:`Minimization` goes through the parts and notes each as a Phase.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asgld._result import Phase, Result
from asgld.curvature.kinds import Kind, Point
from asgld.curvature.nonsmooth import Kinks, at_kinks
from asgld.curvature.operator import Neighborhood, UnusableDerivative
from asgld.curvature.points import classify
from asgld.curvature.relative import Examination, examine
from asgld.curvature.scaling import equilibration, estimated_equilibration
from asgld.curvature.spectrum import Effort
from asgld.diagnostics.calibration import (
    StartScales,
    measure_start,
    measure_surroundings,
    start_options,
)
from asgld.methods import (
    LBFGS,
    Adjustable,
    FitsItself,
    KnowsItsNoise,
    Method,
    ProximalDescent,
    Surroundings,
    normals,
)
from asgld.oracle import BudgetExhausted, Oracle
from asgld.oracle.box import Box, Face, Reparametrized
from asgld.oracle.composite import ActiveManifold, Composite, gradient_mapping
from asgld.oracle.forms import Form
from asgld.oracle.functions import Function
from asgld.prox import BoundPenalty
from asgld.run import Progress, Run, run
from asgld.run.history import History, Record
from asgld.run.stopping import Stop, StopWhen

_LinAlgError: Any = torch.linalg.LinAlgError  # type: ignore[attr-defined]
# The descent rests where its next step promises less than this part of the whole fall of f; where
# the judgment wants more, it goes on to the next part.
_RESTS = (1e-14, 1e-18, 1e-26)
_MEMORY, _SMALL_MEMORY, _LARGE_DIM = 30, 10, 1000
_MAX_ESCAPES = 100
# Noise of an escape: in units of the step along the direction, and of the scale of x on a plateau.
_NOISE_PART, _PLATEAU_NOISES = 0.1, (0.01, 0.1, 1.0)
_MAX_DOUBLINGS = 40
_MAX_NEWTON_STEPS, _MAX_HESSIANS = 8, 3
# A Newton step that moves x by more than this part of its scale needs a new Hessian.
_LONG_WAY = 1e-3
_NUM_RAYS = 3
_NOISE_STREAM = 0xE5CA
# Steps of a descent between two looks at the Hessian, in few dimensions.
_STRETCH, _STRETCH_PER_DIM = 50, 5
# The whole fall of f counts as this part of itself next to the recent fall.
_WHOLE_PART = 1e-6
# An iterate that came this many times as far as its start is from the origin runs away.
_RUNAWAY = 1e8
# Measured step sizes that prove too long are shortened.
_MAX_RETRIES = 4
_RETRY_FACTOR = 0.25
# A noisy search rests where no curvature is below minus this, or minus this part of the largest.
_SEARCH_GAMMA = 0.03
# Up to here the Hessians of all replicas are assembled at once to look for negative curvature.
_DENSE_DIM = 64
# Gradient tolerance that any point meets, to ask for curvature alone.
_ANY_GRADIENT = 1e300
# Without `tol` a search stops at this part of the first gradient's norm.
_GRADIENT_PART = 1e-6
# A coordinate this near to its bound, in units of its scale, is held by it.
_HELD_PART, _GAIN_PART = 1e-5, 1e-10
_FINAL = frozenset({Kind.MINIMUM, Kind.UNBOUNDED, Kind.UNDECIDED})
_ENDS = frozenset({Stop.BUDGET, Stop.INTERRUPTED, Stop.CALLBACK, Stop.TIME})


@dataclass
class Watch:
    """What the user sees and limits while a minimization runs."""

    callback: Callable[[Progress], object] | None
    progress: bool
    max_seconds: float | None

    def __post_init__(self) -> None:
        self.began = time.perf_counter()
        self.is_stopped = False  # by the callback

    @property
    def seconds_left(self) -> float | None:
        if self.max_seconds is None:
            return None
        return max(self.max_seconds - (time.perf_counter() - self.began), 0.0)

    @property
    def is_over(self) -> bool:
        return self.is_stopped or self.seconds_left == 0.0


class Landscape:
    """The function in both coordinate systems."""

    def __init__(
        self,
        function: Function,
        box: Box | None,
        start: Tensor,
        budget: float | None,
        penalty: BoundPenalty | None = None,
    ) -> None:
        self.function, self.box, self.penalty = function, box, penalty
        inner: Function = function if box is None else Reparametrized(function, box)
        if penalty is not None:
            inner = Composite(inner, penalty)
        self.start = start if box is None else box.to_search(start)
        self.oracle = Oracle(inner, replicas=len(start), budget=budget)

    @property
    def is_plain(self) -> bool:
        """Whether f itself is searched, without bounds and penalty."""
        return self.box is None and self.penalty is None

    def to_user(self, z: Tensor) -> Tensor:
        return z if self.box is None else self.box.to_user(z)

    def measure(self, z: Tensor, grad: Tensor) -> Tensor:
        """Norm of the (projected) gradient in the user's coordinates, or of the mapping."""
        if self.penalty is not None:
            grad = gradient_mapping(self.penalty, z, grad)
        if self.box is not None:
            x, slope, _ = self.box.derivatives(z)
            grad = self.box.projected_gradient(x, grad / slope)
        norm: Tensor = torch.linalg.vector_norm(grad, dim=-1)
        return norm

    def door(self, row: int, *, is_user: bool = False) -> Oracle:
        """Counted calls for one replica; f may be non-finite there, which is no fault."""
        needs = frozenset({"value", "grad", "hvp", "hessian"})
        replicas = self.oracle.counts.replicas
        view = self.oracle.open(replicas, name="judgment", needs=needs, is_batched=False).rows(row)
        if is_user:
            view.function = self.function
        return view

    def held(
        self, x: Tensor, grad: Tensor, scale: Tensor, f_scale: float, tol: float | None
    ) -> Tensor:
        """Which coordinates their bounds hold: f would fall further beyond them."""
        assert self.box is not None
        if tol is not None:  # where a step along the gradient would leave the box
            return ~((x - grad > self.box.lower) & (x - grad < self.box.upper))
        gap = torch.where(grad > 0, x - self.box.lower, self.box.upper - x)
        is_near = gap <= _HELD_PART * torch.minimum(scale, self._width(scale))
        # What is left to gain on the way to the bound must not count.
        return is_near & (grad != 0) & (gap * grad.abs() <= _GAIN_PART * f_scale)

    def _width(self, scale: Tensor) -> Tensor:
        assert self.box is not None
        width = self.box.upper - self.box.lower
        return torch.where(torch.isfinite(width), width, scale)

    def extreme_curvatures(self, z: Tensor, gamma: float, seed: int) -> tuple[Tensor, Tensor]:
        """Smallest and largest Hessian eigenvalue, in the user's coordinates, at each row of z."""
        x = self.to_user(z)
        if self.function.dim <= _DENSE_DIM and self.penalty is None:
            hessians = self.function.hessian(x)
            is_finite = torch.isfinite(hessians).all(-1).all(-1)
            values = torch.full_like(x, math.nan)
            values[is_finite] = torch.linalg.eigvalsh(hessians[is_finite])
            return values[:, 0], values[:, -1]
        points = [
            classify(
                self.function, row, prox=self.penalty, eps=_ANY_GRADIENT, gamma=gamma, seed=seed
            )
            for row in x
        ]
        lowest = [math.nan if p.lambda_min is None else p.lambda_min for p in points]
        highest = [math.nan if p.lambda_max is None else p.lambda_max for p in points]
        return torch.tensor(lowest).double(), torch.tensor(highest).double()


class _Counted:
    """An oracle's calls without its `free` view, so that a judgment is counted like all else.

    Where time is limited there is no `hessian`: it is made of products, with a look at the clock
    before each.
    """

    def __init__(self, oracle: Oracle, watch: Watch) -> None:
        self.dim, self.num_samples = oracle.dim, oracle.num_samples
        self.unit_roundoff, self._oracle, self._watch = oracle.unit_roundoff, oracle, watch
        if watch.max_seconds is None:
            self.hessian = oracle.hessian

    def value(self, x: Tensor) -> Tensor:
        return self._in_time().value(x)

    def grad(self, x: Tensor) -> Tensor:
        return self._in_time().grad(x)

    def hvp(self, x: Tensor, v: Tensor) -> Tensor:
        return self._in_time().hvp(x, v)

    def _in_time(self) -> Oracle:
        if self._watch.seconds_left == 0.0:
            raise BudgetExhausted("the time limit was reached")
        return self._oracle


@dataclass(eq=False)
class Minimization:
    """One minimization: search, judge, escape, polish."""

    land: Landscape
    method: Method
    is_auto: bool
    form: Form
    tol: float | None
    given_gamma: float | None
    max_steps: int
    seed: int
    watch: Watch
    runs: list[Run] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    num_escapes: int = 0
    noise_floor: float | None = None

    def __post_init__(self) -> None:
        self.scales: StartScales | None = None
        self.is_lr_measured = False
        self.steps_left = self.max_steps
        self.z, self.values = self.land.start, torch.full((len(self.land.start),), math.nan)
        self.polishes = False
        self.point: Point | None = None
        self.exam: Examination | None = None
        if self.is_auto:
            self.method = self._descent(_RESTS[0])
        else:
            self._measure()
        self.has_noise = self.anneals = True
        if isinstance(self.method, KnowsItsNoise):
            self.has_noise = self.method.has_noise
            self.anneals = self.method.anneals or not self.has_noise

    def _measure(self) -> None:
        """Fit the open options of the method to the start."""
        try:
            self.scales = measure_start(self.land.oracle, self.land.start, seed=self.seed)
        except BudgetExhausted:
            self.notes["measurement"] = "the budget did not suffice to measure curvature at x0"
            self.scales = StartScales(1.0, 0.0)
        if isinstance(self.method, Adjustable):
            self.is_lr_measured = "lr" in self.method.open_options
            seen: StartScales | Surroundings = self.scales
            if isinstance(self.method, FitsItself) and self.method.open_options:
                seen = measure_surroundings(
                    self.land.oracle, self.land.start, self.scales, tol=self.tol, seed=self.seed
                )
            options = start_options(self.method, seen, self.land.oracle.dim)
            self.method = self.method.with_options(options)

    @property
    def knobs(self) -> dict[str, Any]:
        """The options of the method's update, where it tells them."""
        return dict(self.method.knobs) if isinstance(self.method, Adjustable) else {}

    @property
    def best(self) -> int:
        return int(torch.argmin(torch.nan_to_num(self.values, nan=torch.inf)))

    @property
    def spent(self) -> float:
        return float(self.land.oracle.counts.spent.max())

    def _note(
        self, name: str, method: str, steps: int, before: float, spent: float, why: str
    ) -> None:
        after = float(self.values[self.best])
        self.phases.append(Phase(name, method, steps, self.spent - spent, before, after, why))

    # ------------------------------------------------------------------------- search and descent

    def search(self, record: Record, checkpoint: str | os.PathLike[str] | None) -> None:
        """Run the method; where its step size was measured and proves too long, shorten it."""
        if self.is_auto:
            result = self._run(self.method, self.z, "descent", record, checkpoint)
            self.start_values = torch.from_numpy(result.history.values[0].copy())
            return
        spent = self.spent
        when = StopWhen(
            # Constant noise does not rest where a gradient is small: it passes by.
            grad_tol=self._search_tol() if self.anneals else None,
            settles=self.has_noise,
            confirm=self._may_stop if self.has_noise else None,
            measure=self.land.measure,
        )
        for attempt in range(_MAX_RETRIES + 1):
            result = run(
                self.land.oracle,
                self.method,
                self.z,
                max_steps=self.max_steps,
                stop=when,
                record=record,
                callback=self._callback,
                seed=self.seed,
                checkpoint=checkpoint if attempt == 0 else None,
                progress=self.watch.progress,
                max_seconds=self.watch.seconds_left,
            )
            if not (self.is_lr_measured and self._has_diverged(result)):
                break
            self._shorten_step(_RETRY_FACTOR ** (attempt + 1), result)
            self.notes["lr"] = f"shortened {attempt + 1} times, since the search did not descend"
        self.start_values = torch.from_numpy(result.history.values[0].copy())
        self._take(result, "search", self.method.name, float(self.start_values.min()), spent)
        if not self.anneals:
            norms = result.history.grad_norms[len(result.history.steps) // 2 :, result.best]
            self.noise_floor = float(np.nanmedian(norms))

    def _search_tol(self) -> float:
        if self.tol is not None:
            return self.tol
        assert self.scales is not None
        first = self.land.measure(self.z, self.land.oracle.free().grad(self.z))
        # A gradient is known to the rounding of x times the curvature.
        rounding = (
            100 * self.land.oracle.unit_roundoff * self.scales.curvature * self.z.norm(dim=-1)
        )
        return float(torch.maximum(_GRADIENT_PART * first, rounding).max())

    @property
    def _callback(self) -> Callable[[Progress], object] | None:
        callback = self.watch.callback
        if callback is None:
            return None

        def seen(news: Progress) -> bool:
            self.watch.is_stopped = bool(callback(news.through(self.land.to_user, before)))
            return self.watch.is_stopped

        before = sum(int(part.steps.max()) for part in self.runs)
        return seen

    def _take(self, result: Run, name: str, method: str, before: float, spent: float) -> None:
        self.runs.append(result)
        self.z, self.values = result.x, result.values
        best = self.best
        self._note(name, method, int(result.steps[best]), before, spent, result.messages[best])

    def _descent(self, rest: float, *, is_away: bool = False) -> LBFGS:
        memory = _MEMORY if self.land.oracle.dim <= _LARGE_DIM else _SMALL_MEMORY
        steepest = None if self.scales is None else self.scales.curvature
        gained = 0.0
        metric = None
        if self.exam is not None and self.land.is_plain:
            steepest = self.exam.largest if self.exam.largest > 0 else steepest
            # Away from the point that was judged only the scales of the coordinates are the same.
            metric = self.exam.diagonal if is_away else self.exam.metric
        if self.runs:
            gained = max(float(self.start_values[self.best] - self.values[self.best]), 0.0)
        rest = rest if self.tol is None else 0.0
        scale = 1.0 / steepest if steepest and metric is None else None
        if self.land.penalty is not None:
            sizes = self._inverse_curvatures() if self.runs else None
            return ProximalDescent(
                memory=memory, scale=scale, rest=rest, gained=gained, sizes=sizes
            )
        return LBFGS(memory=memory, scale=scale, metric=metric, rest=rest, gained=gained)

    def _inverse_curvatures(self) -> Tensor | None:
        """Inverse curvatures of the coordinates at the best replica, as far as they are known."""
        source, x = _Counted(self.land.door(self.best), self.watch), self.z[self.best]
        try:
            if source.dim <= Effort.dense_below:
                s = equilibration(Neighborhood(source, x).dense_hessian()[0])
            else:
                s = estimated_equilibration(lambda v: source.hvp(x, v), x)
        except (UnusableDerivative, ArithmeticError):
            return None
        # A coordinate without curvature gets the longest step.
        longest = float(s.max())
        s = torch.where(s > 0, s, longest)
        sizes = s.square()
        return (
            sizes if longest > 0 and bool(torch.isfinite(sizes).all() & (sizes > 0).all()) else None
        )

    @property
    def _stretch(self) -> int:
        """Steps after which a look at the curvature pays: it tells the scales of coordinates."""
        dim = self.land.oracle.dim
        pays = self.land.box is None and len(self.z) == 1
        if self.land.penalty is None:
            pays &= dim <= Effort.dense_below
        if not pays:
            return self.max_steps
        return _STRETCH + _STRETCH_PER_DIM * min(dim, Effort.dense_below)

    def _run(
        self,
        method: Method,
        z: Tensor,
        name: str,
        record: Record | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Run:
        """Descend, all replicas."""
        spent = self.spent
        before = float(self.values[self.best])
        when = StopWhen(grad_tol=self.tol, every=1, measure=self.land.measure)
        result = run(
            self.land.oracle,
            method,
            z,
            max_steps=min(self.steps_left, self._stretch),
            stop=StopWhen() if self.tol is None else when,
            record=record,
            callback=self._callback,
            checkpoint=checkpoint,
            progress=self.watch.progress,
            max_seconds=self.watch.seconds_left,
        )
        self.steps_left -= int(result.steps.max())
        if math.isnan(before):
            before = float(result.history.values[0].min())
        self._take(result, name, method.name, before, spent)
        return result

    def _may_stop(self, rows: Tensor, reason: Stop) -> Tensor:
        """A noisy search may rest where no curvature is clearly negative."""
        assert self.scales is not None
        rows, which = torch.unique(rows, dim=0, return_inverse=True)  # many may share a saddle
        if reason is Stop.GRADIENT and self.given_gamma is None:
            x = self.land.to_user(rows)
            kinds = [
                classify(self.land.function, row, prox=self.land.penalty, eps=_ANY_GRADIENT).kind
                for row in x
            ]
            return torch.tensor([kind is Kind.MINIMUM for kind in kinds])[which]
        gamma = self.given_gamma or _SEARCH_GAMMA * min(1.0, self.scales.curvature)
        lowest, highest = self.land.extreme_curvatures(rows, gamma, self.seed)
        return (self._is_too_long(highest) | (lowest >= -gamma))[which]

    def _is_too_long(self, curvature: Tensor) -> Tensor:
        """Whether a gradient step of this length oscillates, which looks like having settled."""
        # Without alpha lr may be a distance, not a time.
        if not self.is_lr_measured or self.knobs.get("alpha", math.nan) != 0.0:
            return torch.zeros_like(curvature, dtype=torch.bool)
        return float(self.knobs["lr"]) * curvature > 2.0

    def _curvature_at_end(self, result: Run) -> Tensor:
        assert self.scales is not None
        end = result.x[result.best : result.best + 1]
        gamma = _SEARCH_GAMMA * self.scales.curvature
        return self.land.extreme_curvatures(end, gamma, self.seed)[1]

    def _has_diverged(self, result: Run) -> bool:
        if any(stop in _ENDS for stop in result.stops):
            return False
        if Stop.NON_FINITE in result.stops:
            return True
        if result.stop is Stop.SETTLED and self._is_too_long(self._curvature_at_end(result)):
            return True
        return bool(self._is_above_start(result).double().mean() > 0.5)

    def _shorten_step(self, factor: float, result: Run) -> None:
        assert isinstance(self.method, Adjustable)
        lr = self.method.options["lr"] * factor
        if result.stop is Stop.SETTLED:
            steepest = float(self._curvature_at_end(result))
            lr = min(lr, 1.0 / max(steepest, 1e-300))
        self.method = self.method.with_options({**self.method.options, "lr": lr})

    def _is_above_start(self, result: Run) -> Tensor:
        """Which replicas ended clearly higher than they began."""
        first = torch.from_numpy(result.history.values[0])
        heat = 10.0 * self.land.oracle.dim * float(self.knobs.get("sigma", 0.0)) ** 2
        return ~(result.values <= first + heat + 0.05 * first.abs())

    # ------------------------------------------------------------------------- after the search

    def finish(self, *, escape: bool, polish: bool) -> None:
        """Bring the search to rest, judge where it is, and go on where that is no minimum."""
        self.polishes = polish and self.anneals
        if Stop.INTERRUPTED in self.runs[-1].stops:
            return
        try:
            if not self.is_auto and not self.has_noise:
                self._judge()  # a saddle at which the search rests is its result
            if polish and not self.is_auto and self._needs_descent():
                self._rest_from_search()
                self.point = None
            if self.point is None:
                self._back_to_start()
                self._judge()
            rests = list(_RESTS[1:])
            while self.point is not None and self._may_go_on(self.point):
                kind = self.point.kind
                if escape and kind is not Kind.NOT_STATIONARY and self._leave(self.point):
                    continue
                # A saddle that could not be left may be one of rounding: f may fall on beside it.
                is_open = kind is Kind.NOT_STATIONARY or (escape and kind is not Kind.DEGENERATE)
                if not (is_open and (self.is_auto or polish) and self._descend_on(rests)):
                    break
        except BudgetExhausted:
            limit = "time" if self.watch.seconds_left == 0.0 else "budget"
            self.notes[limit] = f"the {limit} was spent before the judgment was complete"

    def _may_go_on(self, point: Point) -> bool:
        return not (
            point.kind in _FINAL
            or self.noise_floor is not None
            or self.watch.is_over
            or self.steps_left <= 0
            or set(self.runs[-1].stops) & _ENDS
        )

    def _back_to_start(self) -> None:
        """Replicas that ended above their start have found nothing: their start is their result."""
        is_lost = ~(self.values <= self.start_values) & torch.isfinite(self.start_values)
        if self.noise_floor is None and bool(is_lost.any()):
            self.z = torch.where(is_lost[:, None], self.land.start, self.z)
            self.values = torch.where(is_lost, self.start_values, self.values)

    def _needs_descent(self) -> bool:
        """Constant noise has no end that descent could stand for, and a saddle none at all."""
        is_saddle = self.point is not None and self.point.kind is not Kind.NOT_STATIONARY
        return self.anneals and not is_saddle and not set(self.runs[-1].stops) & _ENDS

    def _rest_from_search(self) -> None:
        is_lost = self._is_above_start(self.runs[-1])
        if bool(is_lost.any()):
            self.notes["polish"] = (
                f"{int(is_lost.sum())} replicas ended above their start: polished from there"
            )
        z = torch.where(is_lost[:, None], self.land.start, self.z)
        self._run(self._descent(_RESTS[0]), z, "polish")

    def _scale(self) -> Tensor:
        """How large the coordinates of the best replica are, and how far they came."""
        x = self.land.to_user(self.z[self.best])
        return torch.maximum(x.abs(), (x - self.land.to_user(self.land.start[self.best])).abs())

    def _judge(self) -> None:
        """Judge the best replica, in the user's coordinates; at a bound, among the others."""
        spent, before = self.spent, float(self.values[self.best])
        self.exam = None
        try:
            self.point = self._judged()
        except BudgetExhausted:
            self.point = None
            raise
        except (UnusableDerivative, ArithmeticError, _LinAlgError) as error:
            reason = str(error).splitlines()[0]
            norm = float(self.runs[-1].grad_norms[self.best])
            self.point = Point(Kind.UNDECIDED, norm, math.nan, math.nan, f"no judgment: {reason}")
        point = self.point
        x, x0 = (self.land.to_user(z[self.best]) for z in (self.z, self.land.start))
        if (penalty := self.land.penalty) is not None:  # entries that it holds do not run away
            is_loose = penalty.is_free(torch.zeros_like(x))
            x, x0 = x[is_loose], x0[is_loose]
        is_lost = runs_away(x, before, x0, float(self.start_values[self.best]))
        if point.kind is not Kind.MINIMUM and is_lost:
            length = float(self.land.to_user(self.z[self.best]).norm())
            value = float(self.values[self.best])
            text = f"f fell to {value:.3g} at |x| = {length:.3g}, and goes on falling"
            self.point = replace(point, kind=Kind.UNBOUNDED, summary=text)
        self._note("judgment", "curvature", 0, before, spent, self.point.kind.name)

    def _tolerances(self) -> tuple[float | None, float | None]:
        """The gradient norm and the curvature that count as zero, None for relative ones."""
        eps, gamma = self.tol, self.given_gamma
        if self.noise_floor is not None:
            assert self.scales is not None
            eps = max(self.tol or 0.0, 2.0 * self.noise_floor, 1e-300)
            gamma = gamma or max(math.sqrt(eps) * min(1.0, self.scales.curvature), 1e-300)
        return eps, gamma

    def _judged_among_free(self, penalty: BoundPenalty) -> Point:
        """Judge f + g on the active manifold of g."""
        best, fall, scale = self.best, self._recent_fall(), self._scale()
        source = _Counted(self.land.door(best), self.watch)
        eps, gamma = self._tolerances()
        effort = Effort(seed=self.seed, max_hvp=2000)

        def kinks_at(grad: Tensor) -> Kinks:
            return Kinks(source, penalty, self.z[best], grad, scale=scale, fall=fall)

        def examined(manifold: ActiveManifold) -> Examination:
            around = Neighborhood(manifold, manifold.start)
            return examine(around, effort, scale=manifold.lengths(scale), fall=fall)

        def judge(
            manifold: ActiveManifold, exam: Examination | None = None
        ) -> tuple[Point, Examination | None]:
            within = kinks.tolerance(manifold, eps)
            if gamma is not None:
                return classify(
                    manifold, manifold.start, eps=within, gamma=gamma,
                    scale=manifold.lengths(scale), fall=fall, seed=self.seed,
                ), None  # fmt: skip
            exam = exam or examined(manifold)
            rays = _NUM_RAYS if exam.is_complete else 1
            return exam.point(within, num_rays=rays, seed=self.seed), exam

        kinks = kinks_at(self._snapped(source, penalty))
        if gamma is not None or not kinks.manifold.dim:
            return kinks.judged(judge, eps)
        self.exam = examined(kinks.manifold)
        for _ in range(_MAX_HESSIANS if self.polishes else 0):
            needs_hessian = self._newton(self.exam, kinks.manifold)
            if self.exam.drift > 0.0:
                kinks = kinks_at(source.grad(self.z[best]))
            if not needs_hessian:
                break
            self.exam = examined(kinks.manifold)
        point, exam = judge(kinks.manifold, self.exam)
        return kinks.completed(point, exam, judge, eps)

    def _snapped(self, source: _Counted, penalty: BoundPenalty) -> Tensor:
        """Set entries to zero that would stay there, if F does not rise by that.

        Return the gradient of f at the end.
        """
        best = self.best
        x, value = self.z[best], float(self.values[best])
        grad = source.grad(x)
        for near in at_kinks(penalty, x, grad, max(abs(value), self._recent_fall())):
            if (found := float(source.value(near))) <= value + source.unit_roundoff * abs(value):
                self.z, self.values = self.z.clone(), self.values.clone()
                self.z[best], self.values[best] = near, found
                return source.grad(near)
        return grad

    def _judged(self) -> Point:
        if self.land.penalty is not None:
            return self._judged_among_free(self.land.penalty)
        best = self.best
        x, scale = self.land.to_user(self.z[best]), self._scale()
        source: Any = _Counted(self.land.door(best, is_user=True), self.watch)
        around = Neighborhood(source, x)
        fall = self._recent_fall()
        eps, gamma = self._tolerances()
        held = None
        if self.land.box is not None:
            f_scale = max(abs(float(self.values[best])), fall, 1e-300)
            is_held = self.land.held(x, around.gradient, scale, f_scale, eps)
            if bool(is_held.any()):
                held = ", ".join(f"x[{i}]" for i in is_held.nonzero().flatten().tolist()[:5])
                if bool(is_held.all()):
                    return self._held_point(around, held, eps)
                source, scale = Face(source, x, ~is_held), scale[~is_held]
                x = x[~is_held]
                around = Neighborhood(source, x)
        effort = Effort(seed=self.seed, max_hvp=2000)
        if gamma is None:
            self.exam = examine(around, effort, scale=scale, fall=fall)
            for _ in range(_MAX_HESSIANS if held is None and self.polishes else 0):
                if not self._newton(self.exam):
                    break
                around = Neighborhood(source, self.z[best])
                self.exam = examine(around, effort, scale=scale, fall=fall)
            rays = _NUM_RAYS if self.exam.is_complete else 1
            point = self.exam.point(eps, num_rays=rays, seed=self.seed)
        else:
            point = classify(
                source, x, eps=eps, gamma=gamma, scale=scale, fall=fall, seed=self.seed
            )
        if held is None:
            return point
        self.exam = None
        direction = point.direction
        if direction is not None:
            full = torch.zeros_like(self.z[best])
            direction = full.masked_scatter(~is_held, direction)
        summary = f"{point.summary}; {held} at a bound, judged among the other coordinates"
        return replace(point, direction=direction, summary=summary)

    def _held_point(self, around: Neighborhood, held: str, eps: float | None) -> Point:
        assert self.land.box is not None
        projected = self.land.box.projected_gradient(around.x, around.gradient)
        norm = float(torch.linalg.vector_norm(projected))
        is_small = eps is None or norm <= eps
        text = f"the projected gradient has norm {norm:.3g}; {held} at a bound"
        kind = Kind.MINIMUM if is_small else Kind.NOT_STATIONARY
        return Point(kind, norm, math.inf if eps is None else eps, 0.0, text)

    def _recent_fall(self) -> float:
        """How far the best replica fell in the second half of its steps.

        A start far up says little of the scale of f further down.
        """
        best = self.best
        whole = float(self.start_values[best] - self.values[best])
        steps = np.concatenate([[0], np.cumsum([r.steps[best] for r in self.runs])])
        for part, before in zip(reversed(self.runs), reversed(steps[:-1].tolist()), strict=True):
            is_early = before + part.history.steps <= steps[-1] / 2
            if is_early.any():
                recent = float(part.history.values[is_early, best][-1] - self.values[best])
                is_known = math.isfinite(recent) and recent <= whole  # a noisy search may rise
                return max(recent, _WHOLE_PART * whole) if is_known else whole
        return whole

    def _descend_on(self, rests: list[float]) -> bool:
        """Go on where the descent stopped too early; return whether there is something to judge."""
        if self.runs[-1].stop is Stop.MAX_STEPS:  # of its stretch
            rest = _RESTS[-1 - len(rests)]
        elif rests and self.tol is None:
            rest = rests.pop(0)
        else:
            return False
        self._run(self._descent(rest), self.z, "descent")
        self._judge()
        return True

    # ------------------------------------------------------------------------- leaving

    def _leave(self, point: Point) -> bool:
        """Leave a saddle or a plateau for something lower; return whether that was found."""
        if self.num_escapes >= _MAX_ESCAPES:
            return False
        if point.direction is not None:
            return self._try(self._kick(point.direction, point.distance), "escape")
        if point.kind is not Kind.DEGENERATE or not self._is_plateau():
            return False
        scale = self._kick_scale()
        for number, size in enumerate(_PLATEAU_NOISES):
            z = self.z.clone()
            noise = normals(self.seed, number, z[self.best], stream=_NOISE_STREAM)
            z[self.best] = self._moved(self.best, size * scale * noise)
            if self._try(z, "escape"):
                return True
        return False

    def _kick_scale(self) -> Tensor:
        """The scale of the coordinates; the largest, or 1, for those that have none."""
        scale = self._scale()
        return torch.where(scale > 0, scale, scale.max() if bool(scale.max() > 0) else 1.0)

    def _is_plateau(self) -> bool:
        """Noise is spent where most directions are flat; else the point is in a valley's bottom."""
        if self.exam is None or self.point is None:
            return False
        if not self.exam.is_complete:
            return abs(self.exam.largest) <= self.exam.noise
        return 2 * self.point.num_flat > self.exam.around.dim

    def _moved(self, row: int, move: Tensor) -> Tensor:
        """A replica displaced by `move` in the user's coordinates, kept inside the bounds."""
        z, box = self.z[row], self.land.box
        if box is None:
            return z + move
        slope = box.derivatives(z)[1]
        return z + torch.where(slope > 0, move / slope, 0.0).clamp(-1.0, 1.0)

    def _kick(self, direction: Tensor, distance: float | None) -> Tensor:
        """The replicas, the best of them moved down along a direction, with noise around it.

        The noise is a step of the paper's rule: it leads out of subspaces in which the gradient,
        and with it plain descent, would stay.
        """
        best = self.best
        door = self.land.door(best)
        base, top = float(self.values[best]), distance
        if top is None:
            length = float(torch.linalg.vector_norm(direction / self._kick_scale()))
            top = 0.1 / max(length, 1e-300)
        found, lowest = top * direction, math.inf
        for side in (1.0, -1.0):
            length, last = top, math.inf
            for _ in range(_MAX_DOUBLINGS):  # longer while that helps, shorter where it does not
                value = float(door.value(self._moved(best, side * length * direction)))
                if not value < min(last, base) and last < base:
                    break
                if value < lowest:
                    found, lowest = side * length * direction, value
                last = value
                length *= 2.0 if value < base else 0.25
                if distance is not None and value < base:
                    break
        z = self.z.clone()
        noise = normals(self.seed, self.num_escapes + 8, z[best], stream=_NOISE_STREAM)
        size = _NOISE_PART * float(torch.linalg.vector_norm(found)) / math.sqrt(len(noise))
        z[best] = self._moved(best, found + size * noise)
        return z

    def _try(self, z: Tensor, name: str) -> bool:
        """Descend from z and keep the end if it is lower; return whether so."""
        kept = self.z, self.values, self.point, self.exam
        old = float(self.values[self.best])
        visible = 0.0 if self.exam is None else self.exam.visible
        free = self.land.oracle.free()
        if not bool(torch.isfinite(free.value(z)).all()):
            return False
        self._run(self._descent(_RESTS[0], is_away=True), z, name)
        size = max(abs(old), abs(float(self.values[self.best])))
        rounding = 64 * self.land.oracle.unit_roundoff * size
        gain = old - float(self.values[self.best])
        if not gain > rounding:
            self.z, self.values, self.point, self.exam = kept
            return False
        self.num_escapes += gain > visible
        self._judge()
        return gain > visible

    # ------------------------------------------------------------------------- polish

    def _newton(self, exam: Examination, manifold: ActiveManifold | None = None) -> bool:
        """Newton steps with the Hessian of a judgment, as long as they shorten the gradient.

        With a penalty they stay on its active manifold. Return whether the Hessian must be computed
        anew to judge the end.
        """
        if not exam.is_nearly_convex or self.land.box is not None or exam.newton_energy == 0.0:
            return False
        best, spent = self.best, self.spent
        door: Any = self.land.door(best)
        if manifold is not None:
            door = replace(manifold, source=door)
        x, value, grad = exam.x, float(self.values[best]), exam.grad
        first, energy, steps = value, exam.newton_energy, 0
        for _ in range(_MAX_NEWTON_STEPS):
            trial = x + exam.newton_step(grad)
            values, grads = door.value_and_grad(trial)
            left = exam.energy(grads)
            # Where the gradient shrinks well, f may rise by its rounding.
            rounding = 8 * self.land.oracle.unit_roundoff * abs(value)
            is_lower = float(values) <= value + (rounding if left < 0.25 * energy else 0.0)
            is_lower &= manifold is None or door.is_on_branch(trial)
            if not (is_lower and left < energy):
                break
            is_done = left >= 0.25 * energy
            x, value, grad, energy, steps = trial, float(values), grads, left, steps + 1
            if is_done or energy == 0.0:
                break
        if steps == 0:
            return False
        is_slow = energy > 0.25 ** (steps + 1) * exam.newton_energy
        self.z, self.values = self.z.clone(), self.values.clone()
        self.z[best] = x if manifold is None else manifold.full(x)
        self.values[best] = value
        exam.move(x, value, grad)
        self._note("polish", "newton", steps, first, spent, "steps no longer shorten the gradient")
        return is_slow or exam.is_blurred or exam.drift > _LONG_WAY

    # ------------------------------------------------------------------------- the result

    def result(self, accept_flat: bool) -> Result:
        best = self.best
        point = self.point
        if point is None:
            norm = float(self.runs[-1].grad_norms[best])
            text = "the point could not be judged any more"
            point = Point(Kind.UNDECIDED, norm, math.nan, math.nan, text)
        all_x = self.land.to_user(self.z)
        is_flat = point.kind is Kind.DEGENERATE and point.direction is None
        is_success = point.kind is Kind.MINIMUM or (accept_flat and is_flat)
        calls: Mapping[str, int] = getattr(self.land.function, "calls", {})
        jac = self.land.function.grad(all_x[best : best + 1])[0]
        return Result(
            x=self.form.to_user(all_x[best]),
            fun=float(self.values[best]),
            jac=self.form.to_user(jac),
            kind=point.kind,
            point=point,
            success=is_success and self.noise_floor is None and "jac" not in self.notes,
            message=self._message(point),
            phases=tuple(self.phases),
            counts=self.land.oracle.counts.copy(),
            calls=dict(calls),
            history=_joined([r.history for r in self.runs], self.land),
            search=self.runs[0],
            polish=self.runs[-1] if len(self.runs) > 1 else None,
            all_x=self.form.rows_to_user(all_x),
            all_fun=self._as_user(self.values),
            noise_floor=self.noise_floor,
            num_escapes=self.num_escapes,
            options=self.knobs,
            num_free=self._num_free(),
            notes={**self.land.oracle.notes, **self.notes},
        )

    def _num_free(self) -> int | None:
        penalty = self.land.penalty
        return None if penalty is None else int(penalty.is_free(self.z[self.best]).sum())

    def _as_user(self, values: Tensor) -> Any:
        return values.clone() if self.form.is_torch else values.numpy().copy()

    def _message(self, point: Point) -> str:
        parts = [f"{point.kind.name}: {point.summary}."]
        if "jac" in self.notes:
            parts.append(f"It is no success: {self.notes['jac']}.")
        replicas, dim = self.z.shape
        if replicas > 1:
            parts.append(f"It is the best of {replicas} replicas of {dim} coordinates.")
        if self.noise_floor is not None:
            parts.append(
                f"Constant noise keeps the gradient norm near {self.noise_floor:.3g}; the point "
                "was judged at twice that. It is no success, since the iterate cannot rest. For "
                "draws from the density, and a diagnosis of them, there is asgld.sample."
            )
        for phase in self.phases:
            if phase.name == "judgment":
                continue
            parts.append(
                f"{phase.steps} step{'' if phase.steps == 1 else 's'} of {phase.method}: f from "
                f"{phase.before:.6g} to {phase.after:.6g}, {phase.message.rstrip('.')}."
            )
        return " ".join(parts)


def runs_away(x: Tensor, value: float, x0: Tensor, value0: float) -> bool:
    """Whether f fell without end on the way from x0 to x."""
    is_far = float(x.norm()) > _RUNAWAY * max(float(x0.norm()), 1.0)
    is_deep = value < -(_RUNAWAY**2) * (1.0 + abs(value0))
    return value < value0 and (is_far or is_deep)


def _joined(parts: list[History], land: Landscape) -> History:
    """Histories one after the other, iterates in the user's coordinates."""
    columns: dict[str, list[Any]] = {}
    before = {"steps": 0, "spent": 0.0, "samples": 0, "seconds": 0.0}
    for part in parts:
        for name, rows in vars(part).items():
            if rows is None or (name == "iterates" and part is not parts[0]):
                continue
            columns.setdefault(name, []).append(rows + before.get(name, 0))
        before = {name: columns[name][-1][-1] for name in before}
    joined = {name: np.concatenate(rows) for name, rows in columns.items()}
    if "iterates" in joined:
        joined["iterates"] = land.to_user(torch.from_numpy(joined["iterates"])).numpy()
    return History(**joined)
