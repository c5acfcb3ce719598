"""Tasks, measured once: one store of results, one way to go on, one way to use many processes.

A task is a function of this package with plain options. Its key is a hash of both, of the code that
the function reaches inside this package, and of the version of the numerics. A stored result is
used again exactly as long as a new measurement would give the same.

- A stored result is checked before it is believed. A file that is no result of this engine is said
  so, and its task is measured again.
- Each result is kept as soon as it is there: a run that was killed goes on where it was.
- A task that fails stops nothing. Its failure is not kept, and the next run tries it again.
- The number of processes changes nothing but the time.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import json
import logging
import multiprocessing
import os
import pickle
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch

from asgld.run.files import write_text

# Part of every key: raise it when a change of the library alters trajectories or what is recorded.
NUMERICS = "2"
# Hears the number of finished tasks, the number of all, and the name of the last.
Progress = Callable[[int, int, str], None]
Part = TypeVar("Part")

_log = logging.getLogger(__name__)
_PACKAGE = __name__.partition(".")[0]
_WHOLE = ""  # in place of a name: all of a module


# ------------------------------------------------------------------------------------ tasks


@dataclass(frozen=True)
class Task:
    """`function(**options)`, which returns a mapping that JSON can hold."""

    # at the top level of a module, so that other processes find it
    function: Callable[..., Mapping[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)  # plain values
    label: str = ""  # for people; no part of the key

    @property
    def key(self) -> str:
        name = self.function.__qualname__
        content = {
            "function": f"{self.function.__module__}.{name}",
            "options": dict(self.options),
            "code": _code(self.function.__module__, name.partition(".")[0]),
            "numerics": NUMERICS,
        }
        return _digest(content)


def task(function: Callable[..., Mapping[str, Any]], /, **options: Any) -> Task:
    """`function(**options)` as a task."""
    return Task(function, options)


@dataclass(frozen=True)
class Found:
    """What a task gave: its value, or the reason why there is none; and its processor time."""

    value: dict[str, Any] | None
    error: str = ""
    seconds: float = 0.0


def execute(task: Task) -> Found:
    """Run one task in this process; an exception is a result."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums in another order give other bits
    began = time.process_time()
    try:
        # Through JSON, so that a fresh result equals a stored one.
        value = json.loads(json.dumps(task.function(**task.options)))
        if not isinstance(value, dict):
            raise TypeError(f"{task.function.__qualname__} gave {value!r}: need a mapping")
        return Found(value, seconds=time.process_time() - began)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        reason = f"{type(error).__name__}: {error} ({place})"
        return Found(None, reason, time.process_time() - began)
    finally:
        torch.set_num_threads(threads)


@cache
def _code(module: str, name: str) -> str:
    """A hash of a definition and of all definitions of this package that it reaches.

    Comments and layout do not count, nor do definitions that the function never names, such as
    the captions of the same file.
    """
    parts: dict[tuple[str, str], str] = {}
    places = [(module, name)]
    while places:
        place = places.pop()
        if place in parts:
            continue
        nodes = _bindings(place[0]).get(place[1]) or _bindings(place[0])[_WHOLE]
        parts[place] = "".join(ast.dump(node) for node in nodes)
        places += [named for node in nodes for named in _named(node, place[0])]
    return _digest(sorted(parts.items()))


@cache
def _bindings(module: str) -> dict[str, list[ast.stmt]]:
    """The names at the top level of a module, and the statements that bind them."""
    body = ast.parse(inspect.getsource(importlib.import_module(module))).body
    bound: dict[str, list[ast.stmt]] = {_WHOLE: body}
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names = {statement.name}
        elif isinstance(statement, ast.ImportFrom):
            names = {alias.asname or alias.name for alias in statement.names}
        else:
            names = {
                node.id
                for node in ast.walk(statement)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
        for name in names:
            bound.setdefault(name, []).append(statement)
    return bound


def _named(statement: ast.stmt, module: str) -> Iterator[tuple[str, str]]:
    """The definitions of this package that a statement names, as (module, name)."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and node.id in _bindings(module):
            yield module, node.id
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PACKAGE):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (inner, _WHOLE) if _is_module(inner) else (str(node.module), alias.name)


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is a module and no package
        return False


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# ------------------------------------------------------------------------------------ the store


@dataclass(frozen=True)
class Store:
    """Results in a folder, one file per key, each written in one move."""

    folder: Path

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def load(self, key: str) -> Found | None:
        """The result kept under the key; None if there is none, or a file that is none."""
        path = self.path(key)
        try:
            content = json.loads(path.read_bytes())
            value, seconds = content["value"], float(content["seconds"])
            is_whole = isinstance(value, dict) and content["digest"] == _digest(value)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            is_whole = False
        if not is_whole:
            _log.warning("%s is not a result of this study; its task is measured again", path)
            return None
        return Found(value, seconds=seconds)

    def save(self, key: str, found: Found) -> None:
        path = self.path(key)
        if path.is_dir():
            path.rename(path.with_name(f"{path.name}.set-aside"))
        content = {"value": found.value, "seconds": found.seconds, "digest": _digest(found.value)}
        write_text(path, json.dumps(content))


def measure(
    tasks: Iterable[Task],
    *,
    folder: Path | None = None,
    jobs: int = 1,
    report: Progress | None = None,
) -> list[Found]:
    """Measure the tasks that `folder` does not hold, and return the results of all, in order.

    Args:
        tasks: equal tasks are measured once.
        folder: where results are kept; None keeps them in memory alone.
        jobs: processes.
        report: hears of every finished task.
    """
    wanted = [(task.key, task) for task in tasks]
    by_key, store = dict(wanted), None if folder is None else Store(folder)
    found: dict[str, Found] = {}
    for key in by_key:
        kept = None if store is None else store.load(key)
        if kept is not None:
            found[key] = kept
    missing = [key for key in by_key if key not in found]
    if folder is not None and missing:
        folder.mkdir(parents=True, exist_ok=True)  # trouble shows before the work, not after
    if report is not None:
        report(len(found), len(by_key), "kept from before" if found else "begin")
    for i, result in in_parallel(execute, [by_key[key] for key in missing], jobs):
        key = missing[i]
        found[key] = result
        if store is not None and not result.error:
            store.save(key, result)
        if report is not None:
            report(len(found), len(by_key), by_key[key].label)
    return [found[key] for key, _ in wanted]


# ------------------------------------------------------------------------------------ processes


def in_parallel(
    function: Callable[[Any], Any], items: Sequence[Any], jobs: int
) -> Iterator[tuple[int, Any]]:
    """Yield (position, function(item)) as each is there, from `jobs` processes.

    Inside `joblib.parallel_config(backend="dask")`, or another backend, the items go there.
    """
    if jobs == 1 or len(items) <= 1:
        for i, item in enumerate(items):
            yield i, function(item)
        return
    try:
        import joblib
    except ImportError as error:
        raise ImportError("jobs > 1 needs joblib: pip install 'asgld[sweep]'") from error
    work, name = _watched(os.getpid()), pickle.dumps(function)
    parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")
    results = parallel(
        joblib.delayed(work)(i, name, pickle.dumps(item)) for i, item in enumerate(items)
    )
    try:
        for i, found in results:
            yield i, found
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # joblib advises against a stop half-way
            results.close()


def _watched(parent: int) -> Callable[[int, bytes, bytes], tuple[int, Any]]:
    """Work for another process, which ends when this one does.

    A killed process cannot tell its workers to end, so each looks for its parent. The functions
    are local, and so travel by value: a worker watches before it imports the package.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    def work(i: int, function: bytes, item: bytes) -> tuple[int, Any]:
        is_child = multiprocessing.current_process().name.startswith("Loky")
        if is_child and "parent" not in (thread.name for thread in threading.enumerate()):
            threading.Thread(target=watch, name="parent", daemon=True).start()
        return i, pickle.loads(function)(pickle.loads(item))

    return work


# ------------------------------------------------------------------------------------ experiments


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    name: str
    study: tuple[int, int]  # data sets and steps of the simulation study
    sweep: tuple[int, int]  # the same for its sweeps over settings, spaces and starts
    chains: int  # where exponents are fitted
    steps: int  # where exponents are fitted
    grid: int  # steps of each point of a map over (alpha, beta), and of bounds
    minima: int  # largest number of steps from a saddle to a minimum
    escapes: int  # chains of each escape
    dims: tuple[int, ...]  # of the saddle


SIZES = {
    # Only to see that everything runs: no verdict of this size means anything.
    "tiny": Size("tiny", (4, 200), (3, 100), 6, 200, 100, 400, 8, (4, 8, 16, 32)),
    "reduced": Size(
        "reduced", (32, 8_000), (16, 2_000), 48, 6_000, 3_000, 12_000, 100, (8, 32, 128, 512)
    ),
    "full": Size(
        "full", (100, 20_000), (100, 10_000), 100, 100_000, 30_000, 100_000, 200,
        (8, 32, 128, 512, 2048, 8192),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Experiment:
    """A question to the optimizers."""

    name: str  # on the command line and in the report
    title: str
    question: str
    tasks: Callable[[Size], list[Task]]

    def __reduce__(self) -> tuple[Any, ...]:
        return of_topic, (self.tasks.__module__, Experiment, self.name)


def experiment(name: str, title: str) -> Callable[[Callable[[Size], list[Task]]], Experiment]:
    """Turn the function that lists the tasks into the experiment; its docstring is the question."""
    return lambda tasks: Experiment(name, title, paragraphs(tasks)[0], tasks)


def paragraphs(function: Callable[..., Any]) -> list[str]:
    """The docstring of a function, each paragraph as one line."""
    return [" ".join(part.split()) for part in (function.__doc__ or "").split("\n\n")]


def parts_of(topic: Any, kind: type[Part]) -> tuple[Part, ...]:
    """The parts of a kind that a topic defines, alone or in a tuple, in the order of its file."""
    found = [part if isinstance(part, tuple) else (part,) for part in vars(topic).values()]
    return tuple(part for parts in found for part in parts if isinstance(part, kind))


def of_topic(module: str, kind: type[Any], name: str) -> Any:
    """A part of a topic by its name, for other processes.

    A decorated function cannot travel: its name stands for the part that it was turned into.
    """
    topic = importlib.import_module(module)
    return next(part for part in parts_of(topic, kind) if part.name == name)


@dataclass(frozen=True)
class Measured:
    """What an experiment gave: a value for each task that did not fail, and why others did."""

    experiment: Experiment
    values: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def select(self, **wanted: Any) -> list[dict[str, Any]]:
        """The values that have these entries."""
        return [v for v in self.values if all(v.get(key) == x for key, x in wanted.items())]

    def one(self, **wanted: Any) -> dict[str, Any]:
        """The only value that has these entries."""
        (value,) = self.select(**wanted)
        return value


Outcomes = dict[str, Measured]


def run_experiments(experiments: Sequence[Experiment], size: str, **how: Any) -> Outcomes:
    """What each experiment gave at a size of `SIZES`; `how` as for :func:`measure`."""
    if size not in SIZES:
        raise ValueError(f"size={size!r}: need one of {', '.join(SIZES)}")
    tasks = {e.name: e.tasks(SIZES[size]) for e in experiments}
    everything = [Task(t.function, t.options, name) for name, ts in tasks.items() for t in ts]
    results = iter(measure(everything, **how))
    outcomes = {}
    for experiment in experiments:
        found = [next(results) for _ in tasks[experiment.name]]
        outcomes[experiment.name] = Measured(
            experiment,
            [result.value for result in found if result.value is not None],
            [result.error for result in found if result.error],
            sum(result.seconds for result in found),
        )
    return outcomes
