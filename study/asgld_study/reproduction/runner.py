"""Run experiments: all their tasks over all processes, each result kept as soon as it is there.

A run that is killed goes on where it was. What a task returns depends on its options alone, so the
number of processes changes nothing but the time. A task that fails makes its experiment incomplete
and stops nothing.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from asgld_study.experiments.declare import SIZES, Experiment, Task
from asgld_study.experiments.declared import EXPERIMENTS
from asgld_study.sweep.engine import Store, run_tasks

# done tasks, all tasks, what was just done
Report = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Outcome:
    """What an experiment gave: a value for each task that did not fail, and why others did."""

    experiment: Experiment
    values: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def select(self, **wanted: Any) -> list[dict[str, Any]]:
        """The values whose entries have these values."""
        return [v for v in self.values if all(v.get(key) == x for key, x in wanted.items())]

    def one(self, **wanted: Any) -> dict[str, Any]:
        """The only such value."""
        (value,) = self.select(**wanted)
        return value


Outcomes = dict[str, Outcome]


def execute(task: Task) -> dict[str, Any]:
    """Run one task; an exception is a result."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums in another order give other bits
    began = time.process_time()
    found: dict[str, Any] = {"value": None, "error": ""}
    try:
        # Through JSON, so that a fresh result equals a stored one.
        found["value"] = json.loads(json.dumps(task.function(**task.options)))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        found["error"] = f"{type(error).__name__}: {error} ({place})"
    finally:
        torch.set_num_threads(threads)
    return {**found, "seconds": time.process_time() - began}


def choose(names: Sequence[str]) -> tuple[Experiment, ...]:
    """The experiments of these names, in the order of the report; all of them for no names."""
    known = {experiment.name: experiment for experiment in EXPERIMENTS}
    for name in names:
        if name not in known:
            raise ValueError(f"only={name!r}: known are {', '.join(known)}")
    return tuple(e for e in EXPERIMENTS if not names or e.name in names)


def run(
    experiments: Sequence[Experiment],
    size: str,
    *,
    folder: Path,
    jobs: int = 1,
    report: Report | None = None,
) -> Outcomes:
    """Run what `folder` does not hold yet and return everything.

    Args:
        experiments: see :func:`choose`.
        size: "tiny", "reduced" or "full".
        folder: where results are kept, one file per task.
        jobs: processes.
        report: hears of every finished task.
    """
    if size not in SIZES:
        raise ValueError(f"size={size!r}: need one of {', '.join(SIZES)}")
    chosen, store = SIZES[size], Store(folder)
    tasks = [(e.name, task) for e in experiments for task in e.tasks(chosen)]
    found: list[dict[str, Any] | None] = [store.load(task.key) for _, task in tasks]
    missing = [i for i, result in enumerate(found) if result is None]
    done = len(tasks) - len(missing)
    if report is not None:
        report(done, len(tasks), "kept from before" if done else "begin")
    for position, result in run_tasks(execute, [tasks[i][1] for i in missing], jobs):
        i = missing[position]
        found[i] = result
        if not result["error"]:
            store.save(tasks[i][1].key, result)
        done += 1
        if report is not None:
            report(done, len(tasks), tasks[i][0])
    outcomes = {}
    for experiment in experiments:
        mine = [r for (name, _), r in zip(tasks, found, strict=True) if name == experiment.name]
        results = [r for r in mine if r is not None]
        outcomes[experiment.name] = Outcome(
            experiment,
            [r["value"] for r in results if not r["error"]],
            [r["error"] for r in results if r["error"]],
            sum(r["seconds"] for r in results),
        )
    return outcomes
