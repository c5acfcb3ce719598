"""Methods side by side on a user's own function: one start, one budget, one judge.

`compare` = function + oracle + methods + run, for each method anew. What a method must know of the
scales of f (step sizes, Lipschitz constants, radii) is measured once, around the start, and every
method fits its open options to the same measurement. `classify` then judges where each of its runs
ended. "auto" stands for all that `asgld.minimize` does by itself.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asgld._minimization import Landscape, runs_away
from asgld._minimize import minimize
from asgld._result import Result
from asgld.curvature.kinds import Kind, Point
from asgld.curvature.points import classify
from asgld.diagnostics.calibration import (
    StartScales,
    as_surroundings,
    measure_start,
    measure_surroundings,
    start_options,
)
from asgld.methods import (
    Adjustable,
    KnowsItsNoise,
    Method,
    Surroundings,
    method_names,
    replica_seed,
)
from asgld.methods import method as make_method
from asgld.oracle.box import Box, Face
from asgld.oracle.forms import read_start, user_function
from asgld.oracle.functions import Function
from asgld.run import History, Progress, Record, Run, Stop, StopWhen, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FloatArray = npt.NDArray[np.float64]
Spec = str | Method | tuple[str, Mapping[str, Any]]

DEFAULT_METHODS: tuple[Spec, ...] = ("auto", "lbfgs", "agld", "perturbed-gd", "adam", "gd")
_DEFAULT_BUDGET = 1000.0
# A method that runs off is fitted anew to a function that is so many times steeper.
_STEEPER, _MAX_REFITS = 4.0, 6
# It runs off where most replicas are above their start by so many times the measured fall.
_ABOVE = 100.0
_LOOK_EVERY = 8
# A run ends where the gradient is this part of the largest that it met.
_TINY = 1e-8
# An end is taken for the point at which descent from there rests, if that is as near as this: in
# units of how far x came, and of the fall of f.
_NEAR, _VISIBLE = 1e-3, 1e-5
# Gradient-equivalents of that descent, which no method pays.
_REST_BUDGET = 200.0
# A descent this far, in units of the start, measures nothing.
_FAR = 1e6
# The figure shows nothing higher above the best, in units of the largest fall.
_HIGHEST = 1e6
# What `minimize` by itself may be told.
_AUTO_OPTIONS = ("escape", "polish")
# Verdicts that a descent to rest may change.
_OPEN = (Kind.MINIMUM, Kind.NOT_STATIONARY, Kind.DEGENERATE, Kind.UNDECIDED)
_LEGEND_LINE = 0.21  # inches
_SHORT = {
    Kind.MINIMUM: "minimum",
    Kind.STRICT_SADDLE: "saddle",
    Kind.DEGENERATE: "degenerate",
    Kind.MAXIMUM: "maximum",
    Kind.NOT_STATIONARY: "moving",
    Kind.UNBOUNDED: "unbounded",
    Kind.UNDECIDED: "undecided",
}
_REMARKS = {
    Kind.NOT_STATIONARY: "moving: not at rest, f can still be lowered from there",
    Kind.DEGENERATE: "degenerate: curvature vanishes along some direction, as in a valley; "
    "compare f",
    Kind.UNBOUNDED: "unbounded: f falls without end, and the lowest f is only how far a run got",
}
_RECORD = Record(per_decade=30)


@dataclass(frozen=True, eq=False)
class Trial:
    """Where one method ended with one seed, from one start.

    =============  ==========================================================================
    field          meaning
    =============  ==========================================================================
    method         its label in the comparison
    seed, start    the numbers of the seed and of the start
    f              f at the end; nan where the method failed
    gap            f - best, the lowest f of the whole comparison
    gradient_norm  norm of the (projected) gradient at the end
    kind           what the end is; UNDECIDED where the method failed
    lambda_min     smallest curvature there, or where descent from there rests
    cost           gradient-equivalents spent
    steps          complete steps
    seconds        time inside the method, shared evenly by the seeds that ran together
    stop           why it ended, or why it failed
    x              the end, in x0's form; None where the method failed
    has_failed     whether the method failed
    =============  ==========================================================================
    """

    method: str
    seed: int
    start: int
    f: float
    gap: float
    gradient_norm: float
    kind: Kind
    lambda_min: float | None
    cost: float
    steps: int
    seconds: float
    stop: str
    x: Any = None
    has_failed: bool = False

    @property
    def row(self) -> dict[str, Any]:
        """As plain numbers and text, without x; the kind of a failed one is FAILED."""
        names = [f.name for f in fields(self) if f.name not in ("x", "has_failed")]
        found = {name: getattr(self, name) for name in names}
        return {**found, "kind": "FAILED" if self.has_failed else self.kind.name}


@dataclass(frozen=True, eq=False)
class Curves:
    """f on the way: arrays with one row per record and one column per run."""

    spent: FloatArray
    values: FloatArray

    def at(self, costs: FloatArray) -> FloatArray:
        """f after so much was spent, (len(costs), runs): the last record until then; else nan."""
        found = np.full((len(costs), self.values.shape[1]), np.nan)
        for column in range(self.values.shape[1]):
            number = np.searchsorted(self.spent[:, column], costs, side="right") - 1
            is_known = number >= 0
            found[is_known, column] = self.values[number[is_known], column]
        return found


@dataclass(frozen=True, eq=False)
class Comparison:
    """What `compare` found. `print` it for a table; the best method comes first.

    ==========  =============================================================================
    field       meaning
    ==========  =============================================================================
    trials      one :class:`Trial` per method and seed; one for all seeds where a method has no
                noise
    best        the lowest f of all, on the way or at an end
    budget      gradient-equivalents that each run could spend
    eps, gamma  gradient norm and curvature that methods take for zero; also the judge, if given
    scales      what was measured around the start
    options     label -> the options with which the method ran
    curves      label -> f against gradient-equivalents, on the way
    notes       label -> remarks, such as a step size that had to be shortened; "scales"
    ==========  =============================================================================
    """

    trials: tuple[Trial, ...]
    best: float
    budget: float
    eps: float
    gamma: float
    scales: Surroundings
    options: dict[str, dict[str, Any]]
    curves: dict[str, Curves]
    notes: dict[str, str]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The trials as plain rows, for a table or a CSV file."""
        return [trial.row for trial in self.trials]

    @property
    def methods(self) -> list[str]:
        """Labels, best first: by the median of f - best, the share of minima, the median cost.

        Gaps below a millionth of the largest fall are a tie. Where a run found that f is unbounded
        there is no such scale: the median of f counts alone.
        """
        is_endless = any(t.kind is Kind.UNBOUNDED for t in self.trials)
        tie = 1e-6 * self._fall

        def rank(label: str) -> tuple[float, float, float]:
            mine = self.of(label)
            share = sum(t.kind is Kind.MINIMUM for t in mine) / len(mine)
            gap, cost = _median(t.gap for t in mine), _median(t.cost for t in mine)
            gap = math.inf if math.isnan(gap) else gap
            if is_endless and gap < math.inf:
                return _median(t.f for t in mine), -share, cost
            return gap if gap > tie else 0.0, -share, cost

        return sorted(dict.fromkeys(t.method for t in self.trials), key=rank)

    @property
    def _fall(self) -> float:
        """How far f fell from the highest start."""
        starts = [float(np.nanmax(curves.values[0])) for curves in self.curves.values()]
        return max([self.scales.fall, *(f - self.best for f in starts)])

    def of(self, label: str) -> list[Trial]:
        """The trials of one method."""
        found = [trial for trial in self.trials if trial.method == label]
        if not found:
            known = ", ".join(dict.fromkeys(t.method for t in self.trials))
            raise KeyError(f"label={label!r}: need one of {known}")
        return found

    def __str__(self) -> str:
        return "\n".join([self.table(), *(p for r in self.failures for p in _wrapped(r))])

    @property
    def failures(self) -> list[str]:
        """A line for each method that failed, with its reason."""
        reasons = {(t.method, t.stop): 0 for t in self.trials if t.has_failed}
        return [f"{label} failed: {reason}" for label, reason in reasons]

    def table(self) -> str:
        """What `print` shows, without the reasons of failures."""
        names = self.methods
        width = min(max(6, *(len(name) for name in names)), 22)
        lines = [
            f"{'method':{width}} {'kind':10} {'minima':>7} {'f':>11} {'f - best':>8} "
            f"{'|grad f|':>8} {'cost':>7}"
        ]
        kinds = set()
        for name in names:
            mine = self.of(name)
            shown = _clipped(name, width)
            ran = [t for t in mine if not t.has_failed]
            if not ran:
                lines.append(f"{shown:{width}} failed")
                continue
            kind = _most_frequent(t.kind for t in ran)
            kinds |= {kind, *(t.kind for t in ran if t.kind is Kind.UNBOUNDED)}
            count = sum(t.kind is Kind.MINIMUM for t in ran)
            f, gap, norm, cost = (
                _median(getattr(t, field) for t in ran)
                for field in ("f", "gap", "gradient_norm", "cost")
            )
            lines.append(
                f"{shown:{width}} {_SHORT[kind]:10} {f'{count}/{len(mine)}':>7} {f:11.4g} "
                f"{gap:8.2g} {norm:8.2g} {cost:7.0f}"
            )
        lines.append(
            f"medians over seeds; lowest f {self.best:.8g}; budget {self.budget:g} gradients a run"
        )
        if kinds:
            lines.append(f"kind: the most frequent; to {_NEAR:g} in x and {_VISIBLE:g} of f's fall")
        remarks = [text for kind, text in _REMARKS.items() if kind in kinds]
        remarks += [f"{name}: {note}" for name, note in self.notes.items()]
        return "\n".join(lines + [part for remark in remarks for part in _wrapped(remark)])

    def frame(self) -> Any:
        """The trials as a pandas data frame."""
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise ImportError("frame() needs pandas: pip install pandas") from error
        return pandas.DataFrame(self.rows)

    def plot(self) -> Figure:
        """f - best against gradient-equivalents: the median over seeds, and the middle half."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError("plot() needs matplotlib: pip install 'asgld[plot]'") from error
        names = [label for label in self.methods if label in self.curves]
        height = max(4.5, _LEGEND_LINE * len(names) + 0.5)
        figure = Figure(figsize=(8.0, height), layout="constrained")
        axes = figure.subplots()
        span = min(self._fall, 1e290)
        floor, top = max(1e-16 * span, 1e-300), max(_HIGHEST * span, 1e-290)
        lowest = math.inf
        for number, label in enumerate(names):
            curves = self.curves[label]
            costs = np.unique(curves.spent[np.isfinite(curves.values)])
            values = curves.at(costs)
            is_known = np.isfinite(values).any(axis=1)
            costs, values = costs[is_known], values[is_known]  # what is not finite ends the curve
            values = np.where(np.isfinite(values), values, np.nan)
            with np.errstate(over="ignore"):
                low, middle, high = (
                    np.clip(np.nan_to_num(np.nanquantile(values, q, axis=1) - self.best, nan=top),
                            floor, top)
                    for q in (0.25, 0.5, 0.75)
                )  # fmt: skip
            lowest = min(lowest, float(middle[middle > floor].min(initial=math.inf)))
            count = sum(t.kind is Kind.MINIMUM for t in self.of(label))
            words = f"{_clipped(label, 30)} ({count}/{len(self.of(label))} minima)"
            color, style = f"C{number % 10}", ("-", "--", ":", "-.")[number // 10 % 4]
            # A log axis has no zero: what was spent before the first step is drawn at its left end.
            costs = np.maximum(costs, 0.5)
            axes.plot(
                costs, middle, style, color=color, lw=1.6, label=words, drawstyle="steps-post"
            )
            axes.fill_between(costs, low, high, step="post", color=color, alpha=0.1, lw=0)
            axes.plot(costs[-1:], middle[-1:], "o", color=color, ms=4)
        axes.set_xscale("log")
        if math.isfinite(lowest):  # the one who found the best falls out of the picture there
            axes.set_yscale("log")
            axes.set_ylim(bottom=lowest / 10)
        else:  # no one ever was above the best
            axes.set_ylim(-0.05 * span, span)
        axes.set_xlabel("gradient-equivalents")
        axes.set_ylabel("f - lowest f found")
        axes.grid(alpha=0.3, lw=0.5)
        if names:
            figure.legend(loc="outside right upper", frameon=False, fontsize=9)
        return figure


def compare(
    fun: Any,
    x0: Any,
    methods: Iterable[Spec] | Mapping[str, Spec] | str = DEFAULT_METHODS,
    *,
    args: tuple[Any, ...] = (),
    budget: float = _DEFAULT_BUDGET,
    seeds: int = 10,
    starts: int | None = None,
    seed: int = 0,
    jac: Callable[..., Any] | None = None,
    hvp: Callable[..., Any] | None = None,
    hess: Callable[..., Any] | None = None,
    bounds: Any = None,
    num_samples: int | None = None,
    tol: float | None = None,
    gamma: float | None = None,
    max_steps: int = 100_000,
    max_seconds: float | None = None,
    transform: str = "log",
    progress: bool = False,
) -> Comparison:
    r"""Run methods on one function: same start, same budget, same judge.

    Scales are measured once around the start, at no charge, and all methods fit to them the options
    that were not given: step sizes, radii, Lipschitz constants, thresholds. A method that runs off
    nevertheless is fitted to a function four times as steep and starts again; what it spent counts.
    A run ends where the method is finished, with its budget, or where the gradient is 10^-8 of the
    largest that it met; with noise, only where that is a minimum. `classify` then judges the end,
    by its relative rule. An end that is not at rest counts as the point at which a short descent
    from there, at no charge, rests, if that moves x by at most 10^-3 of how far it came and f by at
    most 10^-5 of its fall. A method that fails is a row with its reason, and the others go on.

    Args:
        fun, jac, hvp, hess, bounds, num_samples, transform: as for `minimize`.
        x0: the start, in any form that `minimize` takes; with `starts`, with a leading axis of as
            many starts.
        methods: names (`asgld.methods.method_names()`), Method objects, pairs (name, options); or a
            mapping from labels to these; or the word "all". "auto" is what `minimize` does by
            itself.
        args: further arguments of fun, jac, hvp and hess.
        budget: gradient-equivalents that each run may spend: a value costs 0.5, a gradient 1, a
            product with the Hessian 2, a Hessian d.
        seeds: number of runs of each method from each start; a method without noise runs once.
        seed: of all randomness.
        tol: gradient norm at which runs end and a point is at rest; None, the default, is relative.
        gamma: curvatures above -gamma count as not negative; None, the default, is relative.
        max_steps: of a run.
        max_seconds: of all runs of one method together, and of measuring.
        progress: show a line on standard error.

    >>> import torch, asgld
    >>> f = lambda x: x[0] ** 2 - x[1] ** 2 / 2 + x[1] ** 4 / 4
    >>> found = asgld.compare(f, torch.zeros(2), ["gd", "agld"], seeds=3)
    >>> {trial.method: trial.kind.name for trial in found.trials}
    {'gd': 'STRICT_SADDLE', 'agld': 'MINIMUM'}
    """
    _check(budget, seeds, starts, seed, tol, gamma, max_steps, max_seconds)
    entries = _entries(methods)
    given = {"jac": jac, "hvp": hvp, "hess": hess}
    ground = _Ground(
        fun, x0, starts, bounds, transform, seed, tol, gamma, max_seconds, args=args,
        num_samples=num_samples, **given,
    )  # fmt: skip
    contest = _Contest(ground, budget, seeds, max_steps, max_seconds)
    meter = _Meter(len(entries)) if progress else None
    ended: list[_Ended] = []
    for number, (label, spec) in enumerate(entries.items()):
        if meter is not None:
            meter.begin(number, label)
        ended.append(contest.end_of(label, spec, meter))
        if ended[-1].is_interrupted:
            break
    if meter is not None:
        meter.close()
    return _comparison(ended, list(entries), contest)


def _check(
    budget: float,
    seeds: int,
    starts: int | None,
    seed: int,
    tol: float | None,
    gamma: float | None,
    max_steps: int,
    max_seconds: float | None,
) -> None:
    least = {"seeds": 1, "starts": 1, "seed": 0, "max_steps": 0}
    counts = {"seeds": seeds, "seed": seed, "max_steps": max_steps}
    if starts is not None:
        counts["starts"] = starts
    for name, count in counts.items():
        if not (_is_whole(count) and count >= least[name]):
            raise ValueError(f"{name}={count!r}: need a whole number of at least {least[name]}")
    if not (_is_number(budget) and 0 < budget < math.inf):
        raise ValueError(f"budget={budget!r}: need a positive number of gradient-equivalents")
    for name, value in (("tol", tol), ("gamma", gamma), ("max_seconds", max_seconds)):
        if value is not None and not (_is_number(value) and 0 < value < math.inf):
            raise ValueError(f"{name}={value!r}: need a positive number, or None")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or isinstance(value, float | np.floating)


def _entries(methods: Iterable[Spec] | Mapping[str, Spec] | str) -> dict[str, Spec]:
    """Label -> method. Names and options are checked before anything is run."""
    if isinstance(methods, str):
        methods = ("auto", *method_names()) if methods == "all" else (methods,)
    labeled = methods.items() if isinstance(methods, Mapping) else ((None, m) for m in methods)
    entries: dict[str, Spec] = {}
    for label, spec in labeled:
        pair = spec if isinstance(spec, tuple) else (spec, {})
        is_pair = len(pair) == 2 and isinstance(pair[1], Mapping)
        is_known = is_pair and isinstance(pair[0], str | Method)
        if not is_known or (pair[1] and not isinstance(pair[0], str)):
            raise TypeError(
                f"methods={spec!r}: need a name, a Method or a pair (name, options), such as "
                "('adam', {'lr': 0.1})"
            )
        name, options = pair
        if name == "auto":
            wrong = [option for option in options if option not in _AUTO_OPTIONS]
            if wrong:
                raise TypeError(
                    f"methods={spec!r}: unknown option {wrong[0]!r}; 'auto' has "
                    f"{' and '.join(_AUTO_OPTIONS)}"
                )
        elif isinstance(name, str):
            make_method(name, **options)  # raises for an unknown name or option
        if label is None:
            shown = ", ".join(f"{key}={value!r}" for key, value in options.items())
            label = name if isinstance(name, str) else name.name
            label += f"({shown})" if shown else ""
            copies = sum(other.split(" #")[0] == label for other in entries)
            label += f" #{copies + 1}" if copies else ""
        entries[label] = spec
    if not entries:
        raise ValueError("methods=(): need at least one name, Method or pair (name, options)")
    return entries


class _Ground:
    """The function with its scales, and the judge of points on it."""

    def __init__(
        self,
        fun: Any,
        x0: Any,
        starts: int | None,
        bounds: Any,
        transform: str,
        seed: int,
        tol: float | None,
        gamma: float | None,
        max_seconds: float | None,
        **given: Any,
    ) -> None:
        self.form, self.start = read_start(x0, starts)
        dim = self.start.shape[-1]
        self.box = None if bounds is None else Box.of(bounds, dim, transform)
        limits = None if self.box is None else (self.box.lower, self.box.upper)
        self.function: Function = user_function(fun, self.form, self.start, bounds=limits, **given)
        if self.function.dim != dim:
            raise ValueError(f"x0 has {dim} coordinates, the problem has {self.function.dim}")
        self.seed, self.tol, self.given_gamma, self.note = seed, tol, gamma, ""
        self.bounds, self.transform, self.max_seconds = bounds, transform, max_seconds
        self.land = self.landscape(self.start, None)
        # Judged is in the user's coordinates, searched perhaps in others.
        slope = 1.0
        if self.box is not None:
            slopes = self.box.derivatives(self.land.start)[1]
            slope = float(slopes.square().mean().sqrt())
        around = self._measure(None if tol is None else tol * slope)
        self.around = around if gamma is None else replace(around, gamma=gamma * slope**2)
        self.eps, self.gamma = self.around.eps / slope, self.around.gamma / slope**2
        self.length = self.around.length * slope

    def landscape(self, start: Tensor, budget: float | None) -> Landscape:
        return Landscape(self.function, self.box, start, budget)

    def _measure(self, tol: float | None) -> Surroundings:
        """The scales around the start, or guesses where f cannot be evaluated around it."""
        oracle, start, seed = self.land.oracle, self.land.start, self.seed
        free = oracle.free()
        value, grad = free.value(start), free.grad(start)  # a function that raises does so here
        if not bool(torch.isfinite(value).all() and torch.isfinite(grad).all()):
            raise ValueError("f or its gradient is not finite at x0: choose a start in its domain")
        square = float((grad * grad).max())
        guess = as_surroundings(StartScales(math.sqrt(square) or 1.0, square), oracle.dim)
        guess = guess if tol is None else replace(guess, eps=tol)
        self.values = value
        try:
            scales = measure_start(oracle, start, seed=seed)
            around = measure_surroundings(
                oracle, start, scales, tol=tol, seed=seed, max_seconds=self.max_seconds
            )
        except RuntimeError as error:
            self.note = f"guesses, since f fails near x0: {_first_line(error)}"
            return guess
        numbers = (around.curvature, around.max_square, around.hessian_lipschitz, around.fall)
        if not all(map(math.isfinite, numbers)):
            self.note = "guesses, since f overflows near x0: is it unbounded below?"
            return guess
        size = float(torch.linalg.vector_norm(start, dim=-1).max()) or 1.0
        if around.length > _FAR * size:
            self.note = "those of the start alone, since f falls without end near it"
            around = as_surroundings(scales, oracle.dim)
            return around if tol is None else replace(around, eps=tol)
        return around

    def minimize(self, x: Tensor, **options: Any) -> Result:
        """What `minimize` makes of the function by itself, from a point of the user's, (d,)."""
        return minimize(
            self.function,
            x,
            method="auto",
            bounds=self.bounds,
            transform=self.transform,
            **options,
        )

    def gradient_norm(self, x: Tensor, grad: Tensor) -> float:
        """Of the projected gradient; x and the gradient are the user's."""
        if self.box is not None:
            grad = self.box.projected_gradient(x, grad)
        return float(torch.linalg.vector_norm(grad))

    def judge(self, x: Tensor, start: int, seconds: float | None = None) -> _Verdict:
        """What a point of the user's is, (d,), that was reached from one of the starts.

        A short descent goes on from there; if it leads to a point that is the same within the
        tolerances, its verdict is taken. What is a saddle stays one.
        """
        first, begin = float(self.values[start]), self.start[start]
        value = float(self.function.value(x[None])[0])
        grad = self.function.grad(x[None])[0]
        norm = self.gradient_norm(x, grad)
        scale = torch.maximum(x.abs(), (x - begin).abs())
        lowest = None
        try:
            point = self._classified(x, grad, scale, max(first - value, 0.0))
            kind, lowest, direction = point.kind, point.lambda_min, point.direction
        except (ValueError, RuntimeError, ArithmeticError):  # a derivative that is not finite, say
            kind, direction = Kind.UNDECIDED, None
        if kind is not Kind.MINIMUM and runs_away(x, value, begin, first):
            kind = Kind.UNBOUNDED
        # Beside a valley f may look like a bowl, and at its bottom it is none.
        is_open = kind in _OPEN and not (kind is Kind.MINIMUM and norm == 0.0)
        is_over = seconds is not None and seconds <= 0.0
        if not is_open or is_over or (self.tol is not None and not norm <= self.tol):
            is_flat = kind is Kind.DEGENERATE and direction is None
            return _Verdict(kind, norm, lowest, kind is Kind.MINIMUM or is_flat)
        try:
            rested = self.minimize(
                x, tol=self.tol, gamma=self.given_gamma, escape=False, seed=self.seed,
                budget=_REST_BUDGET, max_seconds=seconds,
            )  # fmt: skip
        except (ValueError, RuntimeError, ArithmeticError):  # outside of the domain
            return _Verdict(kind, norm, lowest, kind is Kind.MINIMUM)
        moved = float(torch.linalg.vector_norm(torch.as_tensor(rested.x) - x))
        size = max(float(torch.linalg.vector_norm(scale)), self.length)
        fall = max(first - rested.fun, self.around.fall)
        is_same = moved <= _NEAR * size and value - rested.fun <= _VISIBLE * fall
        if not is_same or rested.kind is Kind.UNDECIDED:
            return _Verdict(kind, norm, lowest, kind is Kind.MINIMUM)
        lowest = lowest if rested.lambda_min is None else rested.lambda_min
        is_flat = rested.kind is Kind.DEGENERATE and rested.point.direction is None
        return _Verdict(rested.kind, norm, lowest, rested.kind is Kind.MINIMUM or is_flat)

    def has_run_away(self, x: Tensor, value: float, start: int) -> bool:
        return runs_away(x, value, self.start[start], float(self.values[start]))

    def _classified(self, x: Tensor, grad: Tensor, scale: Tensor, fall: float) -> Point:
        """By `classify`; coordinates that a bound holds stay where they are."""
        source: Any = self.function
        if self.box is not None:
            is_held = self.land.held(x, grad, scale, max(fall, 1e-300), self.tol)
            if bool(is_held.all()):
                norm = self.gradient_norm(x, grad)
                is_small = self.tol is None or norm <= self.tol
                kind = Kind.MINIMUM if is_small else Kind.NOT_STATIONARY
                return Point(kind, norm, math.inf, 0.0, "every coordinate is at a bound")
            if bool(is_held.any()):
                source = Face(self.function, x, ~is_held)
                x, scale = x[~is_held], scale[~is_held]
        return classify(
            source, x, eps=self.tol, gamma=self.given_gamma, scale=scale, fall=fall,
            seed=self.seed,
        )  # fmt: skip


class _Shrunk:
    """Gradient norm in units of the largest that a run met."""

    def __init__(self, land: Landscape) -> None:
        self.land = land
        self.largest: Tensor | None = None

    def __call__(self, z: Tensor, grad: Tensor) -> Tensor:
        norm = self.land.measure(z, grad)
        known = norm if self.largest is None else torch.fmax(self.largest, norm)
        self.largest = known
        return torch.where(norm == 0, 0.0, norm / known)


class _Verdict(NamedTuple):
    kind: Kind
    gradient_norm: float
    lambda_min: float | None
    may_rest: bool = False


@dataclass(eq=False)
class _Ended:
    """What became of one method: its trials without their gaps, its curves, its options."""

    label: str
    trials: list[Trial]
    curves: Curves | None = None
    options: dict[str, Any] | None = None
    note: str = ""
    is_interrupted: bool = False


@dataclass(eq=False)
class _Contest:
    """Runs one method after the other under the same rules."""

    ground: _Ground
    budget: float
    seeds: int
    max_steps: int
    max_seconds: float | None

    def end_of(self, label: str, spec: Spec, meter: _Meter | None) -> _Ended:
        try:
            name, options = spec if isinstance(spec, tuple) else (spec, {})
            if name == "auto":
                return self._auto(label, options)
            chosen = make_method(name, **options) if isinstance(name, str) else name
            return self._run(label, chosen, meter)
        except KeyboardInterrupt:
            return self._failed(label, "interrupted from the keyboard", is_interrupted=True)
        except Exception as error:  # any method may fail in any way: the others go on
            return self._failed(label, f"{type(error).__name__}: {_first_line(error)}")

    def _failed(self, label: str, reason: str, is_interrupted: bool = False) -> _Ended:
        nothing, kind = math.nan, Kind.UNDECIDED
        trial = Trial(
            label, 0, 0, nothing, nothing, nothing, kind, None, nothing, 0, nothing, reason,
            has_failed=True,
        )  # fmt: skip
        return _Ended(label, [trial], is_interrupted=is_interrupted)

    # ------------------------------------------------------------------------- one method

    def _run(self, label: str, method: Method, meter: _Meter | None) -> _Ended:
        """Fit the method and run it; where it runs off, fit it to a steeper function."""
        ground, began = self.ground, time.perf_counter()
        around, note = ground.around, ""
        fitted = _fitted(method, around)
        has_noise = fitted.has_noise if isinstance(fitted, KnowsItsNoise) else True
        seeds = self.seeds if has_noise else 1
        rows = ground.start.repeat_interleave(seeds, dim=0)
        land = ground.landscape(rows, self.budget)
        for refit in range(_MAX_REFITS + 1):
            watch = _Watch(self, land, is_last=refit == _MAX_REFITS, meter=meter)
            left = self._seconds_left(began)
            when = StopWhen(
                grad_tol=_TINY if ground.tol is None else ground.tol,
                confirm=self._confirm(began) if has_noise else None,
                measure=_Shrunk(land) if ground.tol is None else land.measure,
            )
            before = land.oracle.counts.spent.copy()
            result = run(
                land.oracle,
                fitted,
                land.start,
                max_steps=self.max_steps,
                stop=when,
                record=_RECORD,
                callback=watch,
                seed=ground.seed,
                max_seconds=None if left is None else max(left, 1e-9),
            )
            is_open = isinstance(method, Adjustable) and bool(method.open_options)
            is_broke = bool({Stop.BUDGET, Stop.TIME, Stop.INTERRUPTED} & set(result.stops))
            if refit == _MAX_REFITS or is_broke or not (is_open and watch.has_run_off(result)):
                break
            around = around.steeper(_STEEPER)
            fitted = _fitted(method, around)
            note = f"ran off {refit + 1} times; fitted to a curvature of {around.curvature:.3g}"
        return self._ended(label, fitted, land, result, seeds, note, before, began)

    def _seconds_left(self, began: float) -> float | None:
        if self.max_seconds is None:
            return None
        return max(self.max_seconds - (time.perf_counter() - began), 0.0)

    def _confirm(self, began: float) -> Callable[[Tensor, Stop], Tensor]:
        """A method with noise may rest at a minimum alone, or in a valley of them."""

        def is_minimum(rows: Tensor, reason: Stop) -> Tensor:
            rows, which = torch.unique(rows, dim=0, return_inverse=True)
            found = []
            for x in self.ground.land.to_user(rows):
                nearest = int((self.ground.start - x).norm(dim=-1).argmin())
                verdict = self.ground.judge(x, nearest, self._seconds_left(began))
                found.append(verdict.may_rest)
            return torch.tensor(found)[which]

        return is_minimum

    def _ended(
        self,
        label: str,
        method: Method,
        land: Landscape,
        result: Run,
        seeds: int,
        note: str,
        before: FloatArray,
        began: float,
    ) -> _Ended:
        spent = land.oracle.counts.spent
        xs = land.to_user(result.x)
        known: dict[tuple[Any, ...], _Verdict] = {}  # many may share a saddle
        trials = []
        for r, x in enumerate(xs):
            key = (r // seeds, *x.tolist())
            if key not in known:
                known[key] = self.ground.judge(x, r // seeds, self._seconds_left(began))
            verdict = known[key]
            trials.append(
                Trial(
                    method=label,
                    seed=r % seeds,
                    start=r // seeds,
                    f=float(result.values[r]),
                    gap=math.nan,
                    gradient_norm=verdict.gradient_norm,
                    kind=verdict.kind,
                    lambda_min=verdict.lambda_min,
                    cost=float(spent[r]),
                    steps=int(result.steps[r]),
                    seconds=result.seconds / len(xs),
                    stop=result.messages[r],
                    x=self.ground.form.to_user(xs[r].clone()),
                )
            )
        history = result.history
        curves = Curves(history.spent + before, history.values)
        options = dict(method.knobs) if isinstance(method, Adjustable) else {}
        is_interrupted = Stop.INTERRUPTED in result.stops
        return _Ended(label, trials, curves, options, note, is_interrupted)

    # ------------------------------------------------------------------------- "auto"

    def _auto(self, label: str, options: Mapping[str, Any]) -> _Ended:
        """`minimize` as it is, for each start and, where chance had a part in it, each seed."""
        ground, first = self.ground, time.perf_counter()
        trials, histories = [], []
        for start, row in enumerate(ground.start):
            for number in range(self.seeds):
                began, left = time.perf_counter(), self._seconds_left(first)
                if left == 0.0 and number > 0:
                    break
                result = ground.minimize(
                    row,
                    tol=ground.tol,
                    gamma=ground.given_gamma,
                    budget=self.budget,
                    max_steps=self.max_steps,
                    max_seconds=None if left is None else max(left, 1e-9),
                    seed=replica_seed(ground.seed, number),
                    **options,
                )
                seconds = time.perf_counter() - began
                x = torch.as_tensor(result.x)
                norm = ground.gradient_norm(x, torch.as_tensor(result.jac))
                verdict = _Verdict(result.kind, norm, result.lambda_min)
                if result.kind is Kind.UNDECIDED:  # its budget did not pay for a judgment
                    verdict = ground.judge(x, start, self._seconds_left(first))
                trials.append(
                    Trial(
                        method=label,
                        seed=number,
                        start=start,
                        f=result.fun,
                        gap=math.nan,
                        gradient_norm=verdict.gradient_norm,
                        kind=verdict.kind,
                        lambda_min=verdict.lambda_min,
                        cost=float(result.counts.spent.sum()),
                        steps=result.num_steps,
                        seconds=seconds,
                        stop=result.phases[-1].message,
                        x=ground.form.to_user(x),
                    )
                )
                histories.append(_with_judgments(result))
                if not result.num_escapes:
                    break
        return _Ended(label, trials, _side_by_side(histories), dict(options))


def _fitted(method: Method, around: Surroundings) -> Method:
    """The method with its open options set; one without any stays as it is."""
    if not isinstance(method, Adjustable):
        return method
    return method.with_options(start_options(method, around, around.dim))


class _Watch:
    """The callback of a run: shows progress, and ends what has run off."""

    def __init__(
        self, contest: _Contest, land: Landscape, *, is_last: bool, meter: _Meter | None
    ) -> None:
        self.land, self.meter, self.is_last = land, meter, is_last
        free = land.oracle.free()
        self.free, self.budget, self.ground = free, contest.budget, contest.ground
        self.top = free.value(land.start) + _ABOVE * contest.ground.around.fall
        self.is_off = False

    def __call__(self, news: Progress) -> bool:
        if self.meter is not None:
            self.meter.show(news, self.budget)
        # Where options are wrong they are wrong soon: looks become rare.
        if news.step % _LOOK_EVERY or (news.step > 256 and news.step & (news.step - 1)):
            return False
        self.is_off = self._is_above(self.free.value(news.x))
        return self.is_off and not self.is_last

    def _is_above(self, values: Tensor) -> bool:
        return float((~(values <= self.top)).double().mean()) > 0.5

    def has_run_off(self, result: Run) -> bool:
        rows = zip(self.land.to_user(result.x), result.values.tolist(), strict=True)
        each = len(result.stops) // len(self.ground.start)
        lost = [
            stop is Stop.NON_FINITE and not self.ground.has_run_away(x, value, r // each)
            for r, (stop, (x, value)) in enumerate(zip(result.stops, rows, strict=True))
        ]
        return self.is_off or self._is_above(result.values) or sum(lost) > len(lost) / 2


class _Meter:
    """One line on standard error, a few times per second."""

    def __init__(self, total: int) -> None:
        self.total, self.shown = total, 0.0
        self.title = ""

    def begin(self, number: int, label: str) -> None:
        self.title, self.shown = f"{number + 1}/{self.total} {_clipped(label, 22)}", 0.0

    def show(self, news: Progress, budget: float) -> None:
        now = time.perf_counter()
        if now - self.shown < 0.2:
            return
        self.shown = now
        done = float(news.counts.spent.max()) / budget
        bar = "#" * round(20 * min(done, 1.0))
        running = f"{int(news.active.sum())}/{len(news.active)} running"
        sys.stderr.write(f"\r{self.title:26} [{bar:<20}] {news.step} steps, {running} ")
        sys.stderr.flush()

    def close(self) -> None:
        sys.stderr.write("\n")


def _with_judgments(result: Result) -> History:
    """The history of a minimization, in which what was spent between its runs counts, too."""
    history = result.history
    spent, others = history.spent.copy(), []  # others: what was spent before each run, not in one
    waiting = 0.0
    for phase in result.phases:
        if phase.method in ("curvature", "newton"):
            waiting += phase.spent
        else:
            others.append(waiting)
    # A run begins with a record at the step at which the one before it ended.
    runs = np.concatenate([[0], np.cumsum(np.diff(history.steps) == 0)])
    if runs[-1] < len(others):
        spent += np.array(others)[runs][:, None]
    return replace(
        history,
        steps=np.append(history.steps, history.steps[-1]),
        spent=np.concatenate([spent, result.counts.spent[None]]),
        values=np.concatenate([history.values, [[result.fun]]]),
    )


def _side_by_side(histories: Sequence[History]) -> Curves:
    """Histories of single runs as columns; a shorter one stays at its end."""
    longest = max(len(h.steps) for h in histories)

    def padded(column: FloatArray) -> FloatArray:
        return np.concatenate([column, np.full(longest - len(column), column[-1])])

    spent, values = (
        np.stack([padded(getattr(h, name)[:, 0]) for h in histories], axis=1)
        for name in ("spent", "values")
    )
    return Curves(spent, values)


def _comparison(ended: list[_Ended], labels: list[str], contest: _Contest) -> Comparison:
    for label in labels[len(ended) :]:
        ended.append(contest._failed(label, "not run, since the comparison was interrupted"))
    lowest = [float(np.nanmin(e.curves.values)) for e in ended if e.curves is not None]
    lowest += [t.f for e in ended for t in e.trials if not math.isnan(t.f)]
    best = min(lowest, default=math.nan)
    ground = contest.ground
    notes = {e.label: e.note for e in ended if e.note}
    return Comparison(
        trials=tuple(
            replace(t, gap=0.0 if t.f == best else t.f - best) for e in ended for t in e.trials
        ),
        best=best,
        budget=contest.budget,
        eps=ground.eps,
        gamma=ground.gamma,
        scales=ground.around,
        options={e.label: e.options for e in ended if e.options is not None},
        curves={e.label: e.curves for e in ended if e.curves is not None},
        notes={**notes, "scales": ground.note} if ground.note else notes,
    )


def _median(numbers: Iterable[float]) -> float:
    known = [n for n in numbers if not math.isnan(n)]
    return float(np.median(known)) if known else math.nan


def _most_frequent(kinds: Iterable[Kind]) -> Kind:
    """Of several as frequent, the first as Kind lists them."""
    found = list(kinds)
    return max(Kind, key=found.count)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "no reason given")


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _wrapped(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, 80, subsequent_indent="  ")
