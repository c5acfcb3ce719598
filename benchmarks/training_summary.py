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
    """Final losses of one optimizer under one schedule, by seed, in order of lr."""

    rates: list[float]
    runs: list[dict[int, float]]

    @property
    def losses(self) -> list[float]:
        """Medians over seeds."""
        return [statistics.median(run.values()) for run in self.runs]

    @property
    def best(self) -> tuple[float, float]:
        """The least loss and its lr."""
        return min(zip(self.losses, self.rates, strict=True))

    @property
    def best_run(self) -> dict[int, float]:
        return self.runs[self.rates.index(self.best[1])]

    @property
    def seeds(self) -> set[int]:
        """Those that ran at every lr."""
        return set.intersection(*(set(run) for run in self.runs))

    def of_seed(self, seed: int) -> Curve:
        return Curve(self.rates, [{seed: run[seed]} for run in self.runs])

    def good_range(self, level: float | None = None) -> tuple[float, float] | None:
        """Where the loss, interpolated in log(lr), is below `level`, around its minimum. An end
        that the grid does not show is the grid's."""
        loss, _ = self.best
        level = GOOD * loss if level is None else level
        if loss > level:
            return None
        losses = self.losses
        middle = losses.index(loss)
        return self._crossing(losses, middle, -1, level), self._crossing(losses, middle, 1, level)

    def ends_inside(self, found: tuple[float, float] | None) -> bool:
        """Whether the grid shows where a good range ends; else it is at least so wide."""
        return found is None or self.rates[0] < found[0] <= found[1] < self.rates[-1]

    def _crossing(self, losses: list[float], i: int, way: int, level: float) -> float:
        while 0 <= i + way < len(self.rates):
            inside, outside = losses[i], losses[i + way]
            if outside > level:
                share = 0.0 if math.isinf(outside) else (level - inside) / (outside - inside)
                return self.rates[i] * (self.rates[i + way] / self.rates[i]) ** share
            i += way
        return self.rates[i]


def ratio_of_losses(ours: Curve, theirs: Curve) -> float:
    """Of the medians at the best lr of each, over the seeds that both have there: some seeds are
    harder than others."""
    shared = sorted(ours.best_run.keys() & theirs.best_run.keys())
    mine, others = (
        statistics.median(curve.best_run[seed] for seed in shared) for curve in (ours, theirs)
    )
    return mine / others


def ratio_of_widths(ours: Curve, theirs: Curve) -> float:
    """Of the good ranges, in octaves; infinite where theirs is a single lr."""
    mine, others = octaves(ours.good_range()), octaves(theirs.good_range())
    return mine / others if others else math.inf


def ratios_of_widths(ours: Curve, theirs: Curve) -> list[float]:
    """The same, seed by seed."""
    shared = sorted(ours.seeds & theirs.seeds)
    return [ratio_of_widths(ours.of_seed(seed), theirs.of_seed(seed)) for seed in shared]


def octaves(found: tuple[float, float] | None) -> float:
    return 0.0 if found is None else math.log2(found[1] / found[0])


def read(path: Path) -> dict[tuple[str, str], Curve]:
    """Curves by optimizer and schedule."""
    runs: dict[tuple[str, str], dict[float, dict[int, float]]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            of_rate = runs.setdefault((row["optimizer"], row["schedule"]), {})
            of_rate.setdefault(float(row["lr"]), {})[int(row["seed"])] = float(row["loss_1000"])
    return {
        key: Curve(sorted(found), [found[lr] for lr in sorted(found)])
        for key, found in runs.items()
    }


def summarize(curves: dict[tuple[str, str], Curve]) -> bool:
    """Print the table and the bounds; return whether all are kept."""
    schedules = sorted({schedule for _, schedule in curves})
    all_kept = True
    for schedule in schedules:
        of = {name: curve for (name, kind), curve in curves.items() if kind == schedule}
        least = min(curve.best[0] for curve in of.values())
        print(
            f"\n{schedule}\n{'':46s}   loss  lr       seeds  octaves of lr within 5 % of its best, "
            "of all (>: the grid ends first)"
        )
        for name, curve in sorted(of.items(), key=lambda item: item[1].best):
            loss, lr = curve.best
            own, common = (_width(curve, level) for level in (None, GOOD * least))
            seeds = len(curve.best_run)
            print(f"{name:46s} {loss:6.3f}  {lr:<9.4g}{seeds:5d}{own:>8s} {common:>8s}")
        for ours, theirs, bound in LOSS_BOUNDS:
            if not {ours, theirs} <= of.keys():
                continue
            ratio = ratio_of_losses(of[ours], of[theirs])
            all_kept &= _report(f"loss of {ours} / {theirs}", ratio, bound, ratio <= bound)
        ours, theirs, bound = WIDTH_BOUND
        ratio = ratio_of_widths(of[ours], of[theirs])
        is_known = of[theirs].ends_inside(of[theirs].good_range())
        what = f"range of lr of {ours} / {theirs}{'' if is_known else ', whose end is not shown'}"
        all_kept &= _report(what, ratio, bound, is_known and ratio >= bound)
        each = ratios_of_widths(of[ours], of[theirs])
        print(f"       seed by seed: {', '.join(f'{ratio:.2f}' for ratio in each)}")
    return all_kept


def _width(curve: Curve, level: float | None) -> str:
    found = curve.good_range(level)
    return f"{'' if curve.ends_inside(found) else '>'}{octaves(found):.2f}"


def _report(what: str, ratio: float, bound: float, kept: bool) -> bool:
    print(f"{'kept  ' if kept else 'MISSED'} {what}: {ratio:.3f} (bound {bound:g})")
    return kept
