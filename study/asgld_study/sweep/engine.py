"""Problems x methods x seeds under one budget: parallel, cached by content, resumable.

A :class:`Cell` says everything on which its outcome depends, and its key is a hash of that. Results
are kept one file per cell, so that a killed run goes on where it was, and nothing is measured
twice. What a cell times, per replica, with all oracle counts at that moment:

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

A replica without the event is censored where it stopped; one that finished without it never has it.
Nothing is dropped.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asgld.methods import Method, replica_seed
from asgld.methods import method as make_method
from asgld.oracle import Oracle
from asgld.problems import Problem, problem
from asgld.run import Run, run
from asgld.run.history import Record
from asgld.run.stopping import Stop
from asgld_study.sweep.events import EVENTS, Watch
from asgld_study.sweep.survival import median

FloatArray = npt.NDArray[np.float64]

# Part of every key: raise it when a change alters trajectories or what is recorded.
NUMERICS = "2"
STARTS = ("saddle", "kicked", "random")
# A kicked start is uniform in a ball of this part of gamma / (2 rho) around the saddle.
_KICK = 1e-3
_POINTS_OF_PATH = 60


@dataclass(frozen=True)
class Cell:
    """One problem, one method, one start, R seeds, one budget.

    Args:
        problem, problem_options: as for `asgld.problems.problem`.
        method, options: as for `asgld.methods.method`.
        start: "saddle", exactly there; "kicked", close to it; "random", the problem's own.
        saddle: which of the problem's saddles.
        replicas, seed: R replicas, their randomness from `seed`.
        max_steps, budget: limits in steps and in gradient-equivalents, per replica.
        eps, gamma: of the event "sosp".
        until: the event that ends the cell once all replicas had it; "all" of them; None runs to
            the limit.
        tags: anything else that tells cells apart, such as how the noise was scaled.
    """

    problem: str
    method: str
    problem_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    start: str = "random"
    saddle: int = 0
    replicas: int = 30
    seed: int = 0
    max_steps: int = 10_000
    budget: float | None = None
    eps: float = 1e-2
    gamma: float = 1e-1
    until: str | None = "sosp"
    tags: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.start not in STARTS:
            raise ValueError(f"start={self.start!r}: need one of {', '.join(STARTS)}")
        if self.until not in (*EVENTS, "all", None):
            raise ValueError(
                f"until={self.until!r}: need one of {', '.join(EVENTS)}, 'all' or None"
            )
        if self.replicas < 1 or self.max_steps < 1:
            raise ValueError(
                f"replicas={self.replicas!r}, max_steps={self.max_steps!r}: need at least 1 of each"
            )

    @property
    def label(self) -> str:
        """The word for the method in tables."""
        return str(self.tags.get("label", self.method))

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def key(self) -> str:
        """A hash of all of the above and of the version of the numerics.

        >>> Cell("octopus", "gd").key == Cell("octopus", "gd", options={}).key
        True
        """
        content = json.dumps(
            {**self.as_dict(), "numerics": NUMERICS}, sort_keys=True, separators=(",", ":")
        )
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True)
class Result:
    """What a cell gave; lists have one entry per replica, None where an event did not happen.

    ==========  ============================================================================
    field       meaning
    ==========  ============================================================================
    cell        the cell, as a dictionary
    error       why it failed; empty if it did not
    events      event -> unit -> list; units are "steps", "spent" (gradient-equivalents),
                "samples", each kind of oracle call, and work such as "eigh"
    ends        "stop", "final_value", "final_grad_norm" and every unit, where a replica stopped
    path        quartiles over replicas of f, and median cost, at steps of a logarithmic grid
    seconds     processor time; the only entry that differs between runs
    ==========  ============================================================================
    """

    cell: dict[str, Any]
    error: str = ""
    events: dict[str, dict[str, list[float | None]]] = field(default_factory=dict)
    ends: dict[str, list[Any]] = field(default_factory=dict)
    path: dict[str, list[float]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def label(self) -> str:
        return str(self.cell["tags"].get("label", self.cell["method"]))

    def times(self, event: str, unit: str = "steps") -> tuple[FloatArray, npt.NDArray[np.bool_]]:
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
        if self.error or event not in self.events:
            return math.nan
        return median(*self.times(event, unit))

    def share(self, event: str) -> float:
        """The part of the replicas that had the event."""
        if self.error or event not in self.events:
            return math.nan
        return float(np.mean([t is not None for t in self.events[event]["steps"]]))


# ------------------------------------------------------------------------------------ one cell


def measure(cell: Cell) -> Result:
    """Measure one cell. An exception is a result too: one bad cell does not stop the rest."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums in another order give other bits
    began = time.process_time()
    try:
        result = _measure(cell)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        result = Result(cell.as_dict(), error=f"{type(error).__name__}: {error} ({place})")
    finally:
        torch.set_num_threads(threads)
    return dataclasses.replace(result, seconds=round(time.process_time() - began, 3))


def _measure(cell: Cell) -> Result:
    subject = problem(cell.problem, **cell.problem_options)
    method = make_method(cell.method, **cell.options)
    x0 = start_points(subject, cell)
    watch = Watch.of(subject, cell.saddle if cell.start != "random" else None,
                     eps=cell.eps, gamma=cell.gamma, until=cell.until)  # fmt: skip
    if method.is_batched:
        parts = [_run_rows(cell, subject, method, x0, cell.seed, watch)]
    else:
        # Each replica ends on its own, at its own event.
        parts = [
            _run_rows(cell, subject, method, x0[r : r + 1], replica_seed(cell.seed, r), watch)
            for r in range(cell.replicas)
        ]
    runs = [result for result, _ in parts]
    events = {name: _joined([found[name] for _, found in parts]) for name in watch.events}
    return Result(cell.as_dict(), "", events, _ends(runs), _path(runs))


def _joined(parts: list[dict[str, list[float | None]]]) -> dict[str, list[float | None]]:
    """Units of all parts; where a part has none of a unit, its replicas used 0."""
    units = dict.fromkeys(unit for part in parts for unit in part)
    return {
        unit: [
            None if step is None else used
            for part in parts
            for step, used in zip(
                part["steps"], part.get(unit, [0] * len(part["steps"])), strict=True
            )
        ]
        for unit in units
    }


def _run_rows(
    cell: Cell, subject: Problem, method: Method, x0: Tensor, seed: int, watch: Watch
) -> tuple[Run, dict[str, dict[str, list[float | None]]]]:
    oracle = Oracle(subject, budget=cell.budget)
    looker = watch.begin(oracle, len(x0))
    result = run(
        oracle,
        method,
        x0,
        max_steps=cell.max_steps,
        record=Record(per_decade=12, grad_norms=False),
        callback=looker,
        seed=seed,
    )
    return result, looker.finish(result)


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


def _ends(runs: list[Run]) -> dict[str, list[Any]]:
    ends: dict[str, list[Any]] = {
        "stop": [stop.name for part in runs for stop in part.stops],
        "final_value": [v for part in runs for v in part.values.tolist()],
        "final_grad_norm": [v for part in runs for v in part.grad_norms.tolist()],
        "steps": [k for part in runs for k in part.steps.tolist()],
        "spent": [s for part in runs for s in part.counts.spent.tolist()],
        "samples": [s for part in runs for s in part.counts.samples.tolist()],
    }
    for kind in dict.fromkeys(kind for part in runs for kind in part.counts.calls):
        zeros = [np.zeros(part.counts.replicas, np.int64) for part in runs]
        calls = [p.counts.calls.get(kind, z) for p, z in zip(runs, zeros, strict=True)]
        if any(n.any() for n in calls):
            ends[kind] = [c for n in calls for c in n.tolist()]
    return ends


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


# ------------------------------------------------------------------------------------ many cells


@dataclass(frozen=True)
class Store:
    """Results in a folder, one file per key, each written in one move."""

    folder: Path

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def load(self, key: str) -> dict[str, Any] | None:
        """What was saved under the key; None if there is nothing, or no whole file."""
        try:
            content: dict[str, Any] = json.loads(self.path(key).read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return content

    def save(self, key: str, content: Mapping[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f".{key}.{os.getpid()}"
        temporary.write_text(json.dumps(content))
        os.replace(temporary, self.path(key))


def run_tasks(
    function: Callable[[Any], Any], tasks: Iterable[Any], jobs: int
) -> Iterator[tuple[int, Any]]:
    """Yield (position, function(task)) as each is there, from `jobs` processes.

    Inside `joblib.parallel_config(backend="dask")`, or another backend, the tasks run there.
    """
    tasks = list(tasks)
    if jobs == 1 or len(tasks) <= 1:
        for i, task in enumerate(tasks):
            yield i, function(task)
        return
    try:
        import joblib
    except ImportError as error:
        raise ImportError("jobs > 1 needs joblib: pip install 'asgld[sweep]'") from error

    def numbered(i: int, task: Any) -> tuple[int, Any]:
        return i, function(task)

    parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")
    yield from parallel(joblib.delayed(numbered)(i, task) for i, task in enumerate(tasks))


def run_cells(
    cells: Iterable[Cell],
    *,
    store: Store | None = None,
    jobs: int = 1,
    report: Callable[[int, int, Result], None] | None = None,
) -> list[Result]:
    """Measure the cells that the store does not hold, and return the results of all, in order.

    Args:
        cells: what to measure; equal cells are measured once.
        store: where results are kept; None keeps them in memory alone. A cell that failed is tried
            again.
        jobs: number of processes. The results do not depend on it.
        report: hears (done, all, result) of each cell.
    """
    wanted = list(cells)
    by_key = {cell.key: cell for cell in wanted}
    results: dict[str, Result] = {}
    for key in by_key:
        saved = None if store is None else store.load(key)
        if saved is not None and not saved["error"]:
            results[key] = Result(**saved)
            if report is not None:
                report(len(results), len(by_key), results[key])
    missing = [key for key in by_key if key not in results]
    for i, result in run_tasks(measure, [by_key[key] for key in missing], jobs):
        # Through JSON either way, so that a fresh result equals a stored one.
        content = json.loads(json.dumps(dataclasses.asdict(result)))
        if store is not None:
            store.save(missing[i], content)
        results[missing[i]] = Result(**content)
        if report is not None:
            report(len(results), len(by_key), results[missing[i]])
    return [results[cell.key] for cell in wanted]
