"""What the rows of the suite say: best losses, ranges of good lr, times, ratios and intervals.

A best loss is the mean of the seeds at the best lr, where lr is on a grid of factors of two and has
as many seeds as any other. Ratios compare means of the same seeds.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from training_saddles import median_interval
from training_summary import Curve as RateCurve
from training_summary import octaves

Rows = list[dict[str, Any]]
SCHEDULES = ("constant", "cosine")


class Curve(NamedTuple):
    """A contender on a task under a schedule: what lr is tuned for."""

    task: str
    contender: str
    schedule: str


def read_rows(path: Path) -> Rows:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def loss_of(row: dict[str, Any]) -> float:
    """The validation loss at the end; infinite if the training diverged."""
    value = float(row["validation_loss"])
    return math.inf if str(row["diverged"]) == "True" or not math.isfinite(value) else value


def is_on_grid(lr: float) -> bool:
    """Whether lr is 1e-3 times a power of two."""
    power = math.log2(lr / 1e-3)
    return abs(power - round(power)) < 1e-6


class Losses:
    """Losses of a curve, lr -> seed -> loss, and the rows they come from."""

    def __init__(self) -> None:
        self.by_rate: dict[float, dict[int, float]] = {}
        self.rows: dict[tuple[float, int], dict[str, Any]] = {}

    def add(self, row: dict[str, Any]) -> None:
        lr, seed = float(row["lr"]), int(row["seed"])
        self.by_rate.setdefault(lr, {})[seed] = loss_of(row)
        self.rows[lr, seed] = row

    @property
    def search(self) -> dict[float, float]:
        """Those of the first seed, in order of lr."""
        return {lr: self.by_rate[lr][0] for lr in sorted(self.by_rate) if 0 in self.by_rate[lr]}

    @cached_property
    def best_lr(self) -> float:
        rates = {lr: found for lr, found in self.by_rate.items() if is_on_grid(lr)}
        most = max(map(len, rates.values()))
        means = {
            lr: statistics.fmean(found.values())
            for lr, found in rates.items()
            if len(found) == most
        }
        return min(means, key=means.__getitem__)

    @property
    def best(self) -> dict[int, float]:
        """The losses at the best lr, by seed."""
        return self.by_rate[self.best_lr]

    @property
    def is_inside(self) -> bool:
        """Whether the best lr has a neighbour on each side."""
        rates = [lr for lr in self.search if is_on_grid(lr)]
        return min(rates) < self.best_lr < max(rates)

    def mean(self) -> float:
        return statistics.fmean(self.best.values())

    def ratio_at(self, lr: float) -> float:
        """Of the loss at an lr to the best."""
        return ratio(self.by_rate[lr], self.best)

    def octaves(self) -> tuple[float, bool]:
        """How many octaves of lr end within 5 % of the best loss of the first seed; whether the
        grid shows where they end."""
        found = {lr: loss for lr, loss in self.search.items() if is_on_grid(lr)}
        curve = RateCurve(list(found), [{0: loss} for loss in found.values()])
        good = curve.good_range()
        return octaves(good), curve.ends_inside(good)

    def points(self) -> list[float]:
        """The curve of the validation loss at the best lr, from a tenth of the steps on: the mean
        of the seeds."""
        found = [self.rows[self.best_lr, seed]["points"].split() for seed in self.best]
        return [statistics.fmean(map(float, values)) for values in zip(*found, strict=True)]

    def share_until(self, level: float) -> float:
        """The share of the steps until the curve is at the level, interpolated; or infinity."""
        before, points = math.inf, self.points()
        for i, point in enumerate(points):
            if point <= level:
                part = 1.0 if math.isinf(before) else (before - level) / (before - point)
                return (i + part) / len(points)
            before = point
        return math.inf


def ratio(ours: dict[int, float], theirs: dict[int, float]) -> float:
    """Of the means over the seeds that both have."""
    shared = ours.keys() & theirs.keys()
    mine, others = (statistics.fmean(found[seed] for seed in shared) for found in (ours, theirs))
    return mine / others


class Suite:
    """All curves."""

    def __init__(self, rows: Rows) -> None:
        self.curves: dict[Curve, Losses] = {}
        for row in rows:
            curve = Curve(row["task"], row["contender"], row["schedule"])
            self.curves.setdefault(curve, Losses()).add(row)

    def of(self, task: str, contender: str, schedule: str) -> Losses:
        return self.curves[Curve(task, contender, schedule)]

    def ratio(self, task: str, schedule: str, ours: str, theirs: str = "adamw") -> float:
        return ratio(self.of(task, ours, schedule).best, self.of(task, theirs, schedule).best)

    def ratios(self, tasks: Iterable[str], ours: str, theirs: str) -> list[float]:
        """Over tasks and both schedules."""
        return [self.ratio(t, schedule, ours, theirs) for t in tasks for schedule in SCHEDULES]


class Middle(NamedTuple):
    """A median, and an interval that covers it with a probability of at least 95 %."""

    median: float
    low: float
    high: float


def middle(values: list[float]) -> Middle:
    return Middle(statistics.median(values), *median_interval(values))


def table(rows: Rows, baseline: str = "adamw") -> str:
    """For each task and schedule: each contender's best loss, relative to AdamW's, and its lr."""
    suite, lines = Suite(rows), []
    for task, schedule in dict.fromkeys((c.task, c.schedule) for c in suite.curves):
        base = suite.curves.get(Curve(task, baseline, schedule))
        lines.append(f"\n{task}, {schedule}")
        group = {
            c.contender: found
            for c, found in suite.curves.items()
            if (c.task, c.schedule) == (task, schedule)
        }
        for name, found in sorted(group.items(), key=lambda item: item[1].mean()):
            said = "" if found.is_inside else "AT THE EDGE"
            spread = " ".join(f"{loss:.4g}" for loss in found.best.values())
            times = found.mean() / base.mean() if base else math.nan
            curve = " ".join(f"{lr:g}:{loss:.4g}" for lr, loss in found.search.items())
            lines.append(
                f"  {name:22s} {times:6.4f}  lr {found.best_lr:<8g} {spread:24s} {said} [{curve}]"
            )
    return "\n".join(lines)
