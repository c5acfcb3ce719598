"""What the rows of the suite say."""

from __future__ import annotations

import csv
import math
import statistics
from pathlib import Path
from typing import Any, NamedTuple

Rows = list[dict[str, Any]]


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


class Losses(NamedTuple):
    """Losses of a curve: lr -> seed -> loss."""

    by_rate: dict[float, dict[int, float]]

    @property
    def search(self) -> dict[float, float]:
        """Those of the first seed, in order of lr."""
        return {lr: self.by_rate[lr][0] for lr in sorted(self.by_rate) if 0 in self.by_rate[lr]}

    @property
    def best_lr(self) -> float:
        """Of the learning rates with the most seeds, that of the least mean loss."""
        most = max(map(len, self.by_rate.values()))
        means = {
            lr: statistics.fmean(found.values())
            for lr, found in self.by_rate.items()
            if len(found) == most
        }
        return min(means, key=means.__getitem__)

    def mean(self, lr: float | None = None) -> float:
        return statistics.fmean(self.by_rate[self.best_lr if lr is None else lr].values())


def losses(rows: Rows) -> dict[Curve, Losses]:
    found: dict[Curve, Losses] = {}
    for row in rows:
        curve = Curve(row["task"], row["contender"], row["schedule"])
        of_rate = found.setdefault(curve, Losses({})).by_rate.setdefault(float(row["lr"]), {})
        of_rate[int(row["seed"])] = loss_of(row)
    return found


def table(rows: Rows, baseline: str = "adamw") -> str:
    """For each task and schedule: each contender's best loss, relative to AdamW's, and its lr."""
    found, lines = losses(rows), []
    for task, schedule in dict.fromkeys((c.task, c.schedule) for c in found):
        base = found.get(Curve(task, baseline, schedule))
        lines.append(f"\n{task}, {schedule}")
        group = {c.contender: f for c, f in found.items() if (c.task, c.schedule) == (task, schedule)}
        for name, of_curve in sorted(group.items(), key=lambda item: item[1].mean()):
            lr, rates = of_curve.best_lr, sorted(of_curve.search)
            said = "" if rates and rates[0] < lr < rates[-1] else "AT THE EDGE"
            spread = " ".join(f"{loss:.4g}" for loss in of_curve.by_rate[lr].values())
            ratio = of_curve.mean() / (base.mean() if base else math.nan)
            curve = " ".join(f"{rate:g}:{loss:.4g}" for rate, loss in of_curve.search.items())
            lines.append(f"  {name:18s} {ratio:6.4f}  lr {lr:<8g} {spread:28s} {said} [{curve}]")
    return "\n".join(lines)
