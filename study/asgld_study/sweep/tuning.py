"""Practical settings: a random search with the same number of trials for every method.

Trials draw each option log-uniformly from its range; the first is the middle of the ranges. What
counts is the median cost, in gradient-equivalents, of the event that the cell ends with. A trial is
given up when it has cost more than the best so far, which cannot change the winner.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asgld_study.sweep.engine import NUMERICS, Cell, Store, measure, run_tasks

# Seeds of the search start here: none of them is used to measure.
HELD_OUT_SEED = 1_000_003
_WHOLE_NUMBERS = ("burn_in", "wait", "period", "oja_steps", "sub_steps")


@dataclass(frozen=True)
class Search:
    """A search: the cell whose options are wanted, the ranges, and the number of trials."""

    cell: Cell
    ranges: Mapping[str, tuple[float, float]]
    trials: int
    seed: int = HELD_OUT_SEED

    @property
    def key(self) -> str:
        content = json.dumps(
            {**dataclasses.asdict(self), "numerics": NUMERICS, "kind": "search"},
            sort_keys=True,
            separators=(",", ":"),
        )
        return hashlib.sha256(content.encode()).hexdigest()

    def draws(self) -> list[dict[str, float]]:
        """Options of all trials; the first ones do not depend on how many there are."""
        rng = np.random.default_rng(self.seed)
        names = sorted(self.ranges)
        low, high = np.log([self.ranges[name] for name in names]).T
        rows = np.concatenate(
            [np.full((1, len(names)), 0.5), rng.uniform(size=(max(self.trials - 1, 0), len(names)))]
        )
        return [
            {name: _rounded(name, math.exp(v)) for name, v in zip(names, row, strict=True)}
            for row in low + rows * (high - low)
        ]


@dataclass(frozen=True)
class Tuned:
    """The best options found and their median cost; inf if no trial got there."""

    options: dict[str, Any]
    cost: float
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0


def search(task: Search) -> Tuned:
    """Run a search.

    Where no trial gets there, the first one, the middle of the ranges, is kept.
    """
    best, cost = task.draws()[0], math.inf
    failed: list[str] = []
    seconds = 0.0
    for draw in task.draws():
        limit = task.cell.budget if math.isinf(cost) else cost
        cell = dataclasses.replace(
            task.cell,
            options={**task.cell.options, **draw},
            seed=HELD_OUT_SEED,
            budget=limit,
        )
        result = measure(cell)
        seconds += result.seconds
        if result.error:
            failed.append(result.error)
            continue
        assert cell.until is not None
        found = result.median(cell.until, "spent")
        if found < cost:
            best, cost = draw, found
    return Tuned({**task.cell.options, **best}, cost, failed, seconds)


def run_searches(
    searches: Iterable[Search],
    *,
    store: Store | None = None,
    jobs: int = 1,
    report: Callable[[int, int, str], None] | None = None,
) -> list[Tuned]:
    """Run the searches that the store does not hold; see `asgld_study.sweep.engine.run_cells`."""
    wanted = list(searches)
    by_key = {task.key: task for task in wanted}
    found: dict[str, Tuned] = {}
    for key in by_key:
        saved = None if store is None else store.load(key)
        if saved is not None:
            found[key] = Tuned(**saved)
    missing = [key for key in by_key if key not in found]
    for i, tuned in run_tasks(search, [by_key[key] for key in missing], jobs):
        found[missing[i]] = tuned
        if store is not None:
            store.save(missing[i], dataclasses.asdict(tuned))
        if report is not None:
            report(len(found), len(by_key), by_key[missing[i]].cell.label)
    return [found[task.key] for task in wanted]


def _rounded(name: str, value: float) -> float:
    """Three digits are enough for a setting, and can be typed."""
    return round(value) if name in _WHOLE_NUMBERS else float(f"{value:.3g}")
