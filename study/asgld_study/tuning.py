"""Settings by theory, and practical ones: a random search with as many trials for every method.

A trial draws each option log-uniformly from its range; the first trial is the middle of the ranges.
The cost of a trial is the median cost, in gradient-equivalents, of the event that ends the cell. A
trial that has cost more than the best one so far is given up, which cannot change the winner.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asgld.problems import Problem
from asgld_study import engine
from asgld_study.catalog import Contender, proved_options
from asgld_study.cells import Cell, CellResult, measure_cell, start_points

# Seeds of a search start here; no measurement uses them.
HELD_OUT_SEED = 1_000_003
_WHOLE_NUMBERS = ("burn_in", "wait", "period", "oja_steps", "sub_steps")


def options_by_theory(contender: Contender, subject: Problem, cell: Cell) -> dict[str, Any] | None:
    """Options by theory at the cell's eps and gamma; None where the problem proves no constants.

    The gap f(x0) - min f is that of the cell's first start; f >= 0 where min f is unknown.
    """
    x0 = start_points(subject, dataclasses.replace(cell, replicas=1))
    gap = max(float(subject.value(x0)[0]) - (subject.facts.minimum or 0.0), 1e-3)
    return proved_options(contender, subject, eps=cell.eps, gamma=cell.gamma, gap=gap)


@dataclass(frozen=True)
class SettingSearch:
    """A search: the cell whose options are wanted, the ranges, and the number of trials."""

    cell: Cell
    ranges: Mapping[str, tuple[float, float]]
    trials: int

    def draws(self) -> list[dict[str, float]]:
        """Options of all trials; the first ones do not depend on how many there are."""
        rng = np.random.default_rng(HELD_OUT_SEED)
        names = sorted(self.ranges)
        low, high = np.log([self.ranges[name] for name in names]).reshape(-1, 2).T
        rows = np.concatenate(
            [np.full((1, len(names)), 0.5), rng.uniform(size=(max(self.trials - 1, 0), len(names)))]
        )
        return [
            {name: _rounded(name, math.exp(v)) for name, v in zip(names, row, strict=True)}
            for row in low + rows * (high - low)
        ]

    @property
    def task(self) -> engine.Task:
        """The search as a task of the engine."""
        return engine.Task(search_settings, dataclasses.asdict(self), self.cell.label)


@dataclass(frozen=True)
class Tuned:
    """The best options found and their median cost; inf if no trial got there."""

    options: dict[str, Any]
    cost: float = math.inf
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0


def run_searches(searches: Sequence[SettingSearch], **how: Any) -> list[Tuned]:
    """What the searches find, in order; `how` as for `asgld_study.engine.measure`."""
    found = engine.measure([search.task for search in searches], **how)
    for search, f in zip(searches, found, strict=True):
        if f.error:
            raise ValueError(f"the search for settings of {search.cell.label} failed: {f.error}")
    return [Tuned(**f.value, seconds=f.seconds) for f in found if f.value is not None]


def search_settings(
    cell: Mapping[str, Any], ranges: Mapping[str, tuple[float, float]], trials: int
) -> dict[str, Any]:
    """Run a search; where no trial gets there, the middle of the ranges is kept."""
    wanted = Cell(**{**cell, "seed": HELD_OUT_SEED})
    draws = SettingSearch(wanted, ranges, trials).draws()
    best, cost = draws[0], math.inf
    failed: list[str] = []
    for draw in draws:
        trial = dataclasses.replace(
            wanted,
            options={**wanted.options, **draw},
            budget=wanted.budget if math.isinf(cost) else cost,
        )
        try:
            result = CellResult(**measure_cell(**dataclasses.asdict(trial)))
        except Exception as error:  # such as an option out of its range: the next trial may do
            failed.append(f"{type(error).__name__}: {error}")
            continue
        assert trial.until is not None
        found = result.median(trial.until, "spent")
        if found < cost:
            best, cost = draw, found
    return {"options": {**wanted.options, **best}, "cost": cost, "failed": failed}


def _rounded(name: str, value: float) -> float:
    """Three digits are enough for a setting, and can be typed."""
    return round(value) if name in _WHOLE_NUMBERS else float(f"{value:.3g}")
