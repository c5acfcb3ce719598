"""Cells: one problem, one method, one start, many seeds, one budget.

A :class:`Cell` says everything on which its outcome depends, so it is a task of
`asgld_study.engine`. For each replica a cell times the events of `asgld_study.events`, with all
oracle counts at that moment. A replica without the event is censored where it stopped; a replica
that finished without the event never has it. Nothing is dropped.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asgld.methods import Method, replica_seed
from asgld.methods import method as make_method
from asgld.oracle import Oracle
from asgld.problems import Problem, problem
from asgld.run import Run, run
from asgld.run.history import Record
from asgld.run.stopping import Stop
from asgld_study import engine
from asgld_study.events import EVENTS, WITHOUT_SADDLE, EventColumns, Exit, Looker, used_by
from asgld_study.statistics import BoolArray, FloatArray, survival_median

STARTS = ("saddle", "kicked", "random")
# A kicked start is uniform in a ball of this part of gamma / (2 rho) around the saddle.
_KICK = 1e-3
_POINTS_OF_PATH = 60


@dataclass(frozen=True)
class Cell:
    """One problem, one method, one start, R seeds, one budget per replica."""

    problem: str  # with its options, as for `asgld.problems.problem`
    method: str  # with its options, as for `asgld.methods.method`
    problem_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    start: str = "random"  # the problem's own; "saddle", exactly there; "kicked", close to it
    saddle: int = 0  # the number of the saddle among those of the problem
    replicas: int = 30
    seed: int = 0  # of all randomness
    max_steps: int = 10_000
    budget: float | None = None  # in gradient-equivalents
    eps: float = 1e-2  # of the event "sosp", as gamma
    gamma: float = 1e-1
    # The event that ends the cell once all replicas had it; "all" events; None runs to the limit.
    until: str | None = "sosp"
    # Anything else that tells cells apart, such as how the noise was scaled.
    tags: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.start not in STARTS:
            raise ValueError(f"start={self.start!r}: need one of {', '.join(STARTS)}")
        known = WITHOUT_SADDLE if self.start == "random" else EVENTS
        if self.until not in (*known, "all", None):
            raise ValueError(
                f"until={self.until!r}: need one of {', '.join(known)}, 'all' or None at "
                f"start={self.start!r}; a random start leaves no saddle"
            )
        if self.replicas < 1 or self.max_steps < 1:
            raise ValueError(
                f"replicas={self.replicas!r}, max_steps={self.max_steps!r}: need at least 1 of each"
            )

    @property
    def label(self) -> str:
        """The word for the method in tables."""
        return str(self.tags.get("label", self.method))

    @property
    def task(self) -> engine.Task:
        """The cell as a task of the engine."""
        return engine.Task(measure_cell, dataclasses.asdict(self), self.label)


@dataclass(frozen=True)
class CellResult:
    """What a cell gave; lists have one entry per replica, None where an event did not happen."""

    cell: dict[str, Any]  # the cell itself
    # event -> unit -> list; units are "steps", "spent" (gradient-equivalents), "samples", each kind
    # of oracle call, and work such as "eigh"
    events: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    # "stop", "final_value", "final_grad_norm" and every unit, where a replica stopped
    ends: dict[str, list[Any]] = field(default_factory=dict)
    # quartiles over replicas of f, and median cost, at steps of a logarithmic grid
    path: dict[str, list[float]] = field(default_factory=dict)
    error: str = ""  # why the cell failed; empty if it did not
    seconds: float = 0.0  # processor time; the only entry that differs between runs

    @property
    def label(self) -> str:
        """The word for the method in tables."""
        return str(self.cell["tags"].get("label", self.cell["method"]))

    @property
    def tags(self) -> dict[str, Any]:
        """The tags of the cell."""
        tags: dict[str, Any] = self.cell["tags"]
        return tags

    def times(self, event: str, unit: str = "steps") -> tuple[FloatArray, BoolArray]:
        """Time of the event, or of the end without it, and whether it is the event's.

        A replica that finished, or ran off, without the event is censored at infinity.
        """
        columns, nothing = self.events[event], [0.0] * len(self.ends["stop"])
        is_event = np.array([step is not None for step in columns["steps"]])
        is_over = np.isin(self.ends["stop"], [Stop.FINISHED.name, Stop.NON_FINITE.name])
        ends = np.where(is_over, np.inf, np.array(self.ends.get(unit, nothing), dtype=np.float64))
        found = columns.get(unit, nothing)  # a call that was not made has no column
        times = np.array([math.nan if t is None else t for t in found], dtype=np.float64)
        return np.where(is_event, times, ends), is_event

    def median(self, event: str, unit: str = "steps") -> float:
        """Kaplan-Meier median; inf where fewer than half of the replicas had the event."""
        return survival_median(*self.times(event, unit)) if event in self.events else math.nan

    def share(self, event: str) -> float:
        """The part of the replicas that had the event."""
        if event not in self.events:
            return math.nan
        return float(np.mean([t is not None for t in self.events[event]["steps"]]))


def measure_cells(cells: Sequence[Cell], **how: Any) -> list[CellResult]:
    """The results of the cells, in order; `how` as for `asgld_study.engine.measure`."""
    found = engine.measure([cell.task for cell in cells], **how)
    return [
        CellResult(**(f.value or {"cell": cell.task.options}), error=f.error, seconds=f.seconds)
        for cell, f in zip(cells, found, strict=True)
    ]


def measure_cell(**options: Any) -> dict[str, Any]:
    """Measure the cell of these fields: its events, ends and path as plain values."""
    cell = Cell(**options)
    subject = problem(cell.problem, **cell.problem_options)
    method = make_method(cell.method, **cell.options)
    x0 = start_points(subject, cell)
    door = None if cell.start == "random" else Exit.of(subject, cell.saddle)
    if method.is_batched:
        parts = [_run_rows(cell, subject, method, x0, cell.seed, door)]
    else:
        # Each replica ends on its own, at its own event.
        parts = [
            _run_rows(cell, subject, method, x0[r : r + 1], replica_seed(cell.seed, r), door)
            for r in range(cell.replicas)
        ]
    runs = [result for result, _ in parts]
    events = {name: _joined([found[name] for _, found in parts]) for name in parts[0][1]}
    return {
        "cell": options,
        "events": events,
        "ends": _joined([_ends(part) for part in runs]),
        "path": _path(runs),
    }


def start_points(subject: Problem, cell: Cell) -> Tensor:
    """Where the replicas start, (R, d); the first rows do not depend on R."""
    if cell.start == "random":
        return subject.start(cell.replicas, seed=cell.seed)
    saddles = subject.facts.saddles
    if cell.saddle >= len(saddles):
        raise ValueError(
            f"saddle={cell.saddle}: problem {cell.problem!r} lists {len(saddles)}; use "
            "start='random' where none is known"
        )
    saddle = saddles[cell.saddle]
    points = saddle.point.repeat(cell.replicas, 1)
    if cell.start == "kicked":
        rho = subject.facts.hessian_lipschitz or 1.0
        rng = np.random.default_rng((cell.seed, 7))
        draw = torch.from_numpy(rng.standard_normal((cell.replicas, subject.dim + 2)))
        ball = (draw / draw.norm(dim=-1, keepdim=True))[:, :-2]
        points += _KICK * abs(saddle.lambda_min) / (2.0 * rho) * ball
    return points


def _run_rows(
    cell: Cell, subject: Problem, method: Method, x0: Tensor, seed: int, door: Exit | None
) -> tuple[Run, dict[str, EventColumns]]:
    oracle = Oracle(subject, budget=cell.budget)
    looker = Looker(oracle.free(), len(x0), door, eps=cell.eps, gamma=cell.gamma, until=cell.until)
    record = Record(per_decade=12, grad_norms=False)
    result = run(
        oracle, method, x0, max_steps=cell.max_steps, record=record, callback=looker, seed=seed
    )
    return result, looker.finish(result)


def _joined(parts: list[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    """Units of all parts; where a part has none of a unit, its replicas used 0."""
    joined: dict[str, list[Any]] = {}
    for unit in dict.fromkeys(unit for part in parts for unit in part):
        joined[unit] = []
        for part in parts:
            nothing = [None if step is None else 0.0 for step in part["steps"]]
            joined[unit] += part.get(unit, nothing)
    return joined


def _ends(part: Run) -> dict[str, list[Any]]:
    """How each replica stopped, where, and after what use of every unit."""
    used = used_by(part.steps.astype(np.float64), part.counts)
    return {
        "stop": [stop.name for stop in part.stops],
        "final_value": part.values.tolist(),
        "final_grad_norm": part.grad_norms.tolist(),
        **{unit: column.tolist() for unit, column in used.items()},
    }


def _path(runs: list[Run]) -> dict[str, list[float]]:
    """Quartiles of f over all replicas; a replica that has ended stays where it is."""
    longest = max(part.history.steps[-1] for part in runs)
    grid = np.unique(np.geomspace(1, max(longest, 1), _POINTS_OF_PATH).round().astype(np.int64))
    grid = np.concatenate([[0], grid])
    values, spent = [], []
    for part in runs:
        at = np.searchsorted(part.history.steps, grid, side="right") - 1
        values.append(part.history.values[at])
        spent.append(part.history.spent[at])
    quartiles = np.quantile(np.concatenate(values, axis=1), [0.25, 0.5, 0.75], axis=1)
    cost = np.median(np.concatenate(spent, axis=1), axis=1)
    return {
        "steps": grid.tolist(),
        "spent": cost.tolist(),
        **{f"q{p}": q.tolist() for p, q in zip((25, 50, 75), quartiles, strict=True)},
    }
