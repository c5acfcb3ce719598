"""What the runs of the GPT say: best losses, ranges of good lr, and bounds kept or not."""

from __future__ import annotations

import csv
import math
import statistics
from pathlib import Path
from typing import NamedTuple

# How far above a best loss is still good, as a factor.
GOOD = 1.05

# (ours, theirs, largest ratio of best losses), with and without a schedule.
LOSS_BOUNDS = [
    ("NetworkASGLD, no noise", "AdamW", 1.005),
    ("NetworkASGLD", "AdamW", 1.01),
    ("ASGLD, calibrated", "Adagrad", 1.0),
]
# Of the width, in octaves of lr, of the range within GOOD of the best loss.
WIDTH_BOUND = ("NetworkASGLD, no noise", "AdamW", 2.0)


class Curve(NamedTuple):
    """Final losses of one optimizer under one schedule: medians over seeds, in order of lr."""

    rates: list[float]
    losses: list[float]

    @property
    def best(self) -> tuple[float, float]:
        """The least loss and its lr."""
        return min(zip(self.losses, self.rates, strict=True))

    def good_range(self, level: float | None = None) -> tuple[float, float] | None:
        """Where the loss, interpolated in log(lr), is below `level`, around its minimum. An end
        that the grid does not show is the grid's."""
        loss, _ = self.best
        level = GOOD * loss if level is None else level
        if loss > level:
            return None
        middle = self.losses.index(loss)
        return self._crossing(middle, -1, level), self._crossing(middle, 1, level)

    def _crossing(self, i: int, way: int, level: float) -> float:
        while 0 <= i + way < len(self.rates):
            inside, outside = self.losses[i], self.losses[i + way]
            if outside > level:
                share = 0.0 if math.isinf(outside) else (level - inside) / (outside - inside)
                return self.rates[i] * (self.rates[i + way] / self.rates[i]) ** share
            i += way
        return self.rates[i]


def octaves(found: tuple[float, float] | None) -> float:
    return 0.0 if found is None else math.log2(found[1] / found[0])


def read(path: Path) -> dict[tuple[str, str], Curve]:
    """Curves by optimizer and schedule."""
    losses: dict[tuple[str, str], dict[float, list[float]]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            of_rate = losses.setdefault((row["optimizer"], row["schedule"]), {})
            of_rate.setdefault(float(row["lr"]), []).append(float(row["loss_1000"]))
    return {
        key: Curve(sorted(found), [statistics.median(found[lr]) for lr in sorted(found)])
        for key, found in losses.items()
    }


def summarize(curves: dict[tuple[str, str], Curve]) -> bool:
    """Print the table and the bounds; return whether all are kept."""
    schedules = sorted({schedule for _, schedule in curves})
    all_kept = True
    for schedule in schedules:
        of = {name: curve for (name, kind), curve in curves.items() if kind == schedule}
        least = min(curve.best[0] for curve in of.values())
        print(
            f"\n{schedule}\n{'':28s}   loss  lr       octaves of lr within 5 % of its best, of all"
        )
        for name, curve in sorted(of.items(), key=lambda item: item[1].best):
            loss, lr = curve.best
            own, common = (octaves(curve.good_range(level)) for level in (None, GOOD * least))
            print(f"{name:28s} {loss:6.3f}  {lr:<9.4g}{own:8.2f} {common:8.2f}")
        for ours, theirs, bound in LOSS_BOUNDS:
            if not {ours, theirs} <= of.keys():
                continue
            ratio = of[ours].best[0] / of[theirs].best[0]
            all_kept &= _report(f"loss of {ours} / {theirs}", ratio, bound, ratio <= bound)
        ours, theirs, bound = WIDTH_BOUND
        ratio = octaves(of[ours].good_range()) / octaves(of[theirs].good_range())
        all_kept &= _report(f"range of lr of {ours} / {theirs}", ratio, bound, ratio >= bound)
    return all_kept


def _report(what: str, ratio: float, bound: float, kept: bool) -> bool:
    print(f"{'kept  ' if kept else 'MISSED'} {what}: {ratio:.3f} (bound {bound:g})")
    return kept
