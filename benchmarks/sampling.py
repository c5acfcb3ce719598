"""Sampling: how accurate `asgld.sample` is, and what it costs next to blackjax and posteriors.

    python benchmarks/sampling.py nuts        moments of the logistic regression, by long NUTS draws
    python benchmarks/sampling.py accuracy    means and sds of `asgld.sample` against the truth
    python benchmarks/sampling.py rivals      gradients per effective draw, at equal accuracy
    python benchmarks/sampling.py walltime    seconds of 1,000 chains, ours and blackjax's in turn
    python benchmarks/sampling.py table       run nothing, print what the files say
    ... --only NAME                           a target, target/gradients or target/gradients/variant
    ... --again                               also rows that the file has
    ... --quick                               small, in seconds; writes only where --out says
    ... --out FILE                            instead of benchmarks/results/sampling_PART.csv

The modules of `sampling_suite` that are named after the parts say how they are measured. A row that
the file has is not run again, so a run that was stopped goes on. rivals and walltime need
`pip install -c constraints.txt -e '.[bench]'`.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from measure import RESULTS, merge_csv
from sampling_suite import jaxes, nuts, ours, rivals, summary, walltime
from sampling_suite.targets import NUTS_FILE, TARGETS, Target, target

PARTS = ("nuts", "accuracy", "rivals", "walltime")
KEYS = {
    "nuts": ("target", "coordinate"),
    "accuracy": ours.KEYS,
    "rivals": rivals.KEYS,
    "walltime": walltime.KEYS,
}
SHOWN = {
    "accuracy": (
        "target", "gradients", "variant", "mean_error", "mcse_mean", "sd_error", "mcse_sd",
        "meets", "sd_error_axes", "ess", "gradients_per_ess", "all_gradients_per_ess",
        "temperature_low", "temperature_high", "lr", "thin", "seconds", "findings",
    ),
    "rivals": (
        "target", "gradients", "contender", "source", "mean_error", "sd_error", "mcse_sd", "meets",
        "step", "thin", "ess", "gradients_per_ess", "all_gradients_per_ess", "seconds", "note",
    ),
    "walltime": (
        "target", "contender", "part", "steps", "ess", "median_s", "us_per_step",
        "s_per_1000_ess", "step_over_blackjax", "over_blackjax", "compile_s", "meets", "spread",
        "load",
    ),
}  # fmt: skip


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class Book:
    """The rows of a part: which are wanted, which are there, and where new ones go."""

    def __init__(self, part: str, out: Path | None, only: list[str], again: bool) -> None:
        self.part, self.out, self.only, self.keys = part, out, only, KEYS[part]
        rows = [] if out is None or again else read(out)
        self.known = {tuple(row[key] for key in self.keys) for row in rows}

    def wants(self, *key: str) -> bool:
        """Whether a row, or any row of a place, is asked for and not there yet."""
        place = "/".join(key)
        is_asked = not self.only or any(
            place == name or place.startswith(f"{name}/") or name.startswith(f"{place}/")
            for name in self.only
        )
        return is_asked and key not in self.known

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        rows = list(rows)
        print(summary.table(rows, SHOWN.get(self.part, tuple(rows[0]))), flush=True)
        if self.out is not None:
            merge_csv(self.out, rows, self.keys)


def run_accuracy(book: Book, quick: bool) -> None:
    asked = [(one, *pair) for one in targets() for pair in ours.variants(one)]
    for one, gradients, variant in sorted(asked, key=lambda job: job[2] in ours.SLOW):
        if book.wants(one.name, gradients, variant):
            book.add([ours.measure(one, gradients, variant, quick)])


def run_rivals(book: Book, quick: bool) -> None:
    jaxes.load()
    for one in targets():
        for gradients in ("full", "batch") if one.data is not None else ("full",):
            rivals.measure(one, gradients, book, quick)


def run_walltime(book: Book, quick: bool) -> None:
    steps = {
        row["target"]: float(row["step"])
        for row in read(RESULTS / "sampling_rivals.csv")
        if row["contender"] == "blackjax" and row["gradients"] == "full"
    }
    for one in targets():
        name = one.name
        if name not in walltime.TARGETS or not book.wants(name, "blackjax", "draws"):
            continue
        if name not in steps:
            sys.exit(f"no step of blackjax for {name}: run `rivals --only {name}/full` first")
        book.add(walltime.measure(one, steps[name], quick))


def targets() -> Iterable[Target]:
    return (target(name) for name in TARGETS)


def show() -> None:
    for part in PARTS[1:]:
        rows = read(RESULTS / f"sampling_{part}.csv")
        if rows:
            print(f"\n{part}\n{summary.table(rows, SHOWN[part])}")
        if part == "rivals" and rows:
            print(f"\nours over the best rival (goal: at most {summary.BOUND})")
            for (name, gradients), (ratio, rival) in summary.ratios(rows).items():
                print(f"{name:14} {gradients:6} {ratio:8.3g} x {rival}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=[*PARTS, "table"])
    parser.add_argument("--only", action="append", default=[], help="a target or a row of it")
    parser.add_argument("--again", action="store_true", help="also rows that the file has")
    parser.add_argument("--quick", action="store_true", help="small, and write nothing")
    parser.add_argument("--threads", type=int, help="of torch: 2 for walltime, else 1")
    parser.add_argument("--out", type=Path, help="CSV to write")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads or (2 if arguments.part == "walltime" else 1))
    if arguments.part == "table":
        show()
        return
    unknown = [name for name in arguments.only if name.split("/")[0] not in TARGETS]
    if unknown:
        sys.exit(f"--only {unknown[0]}: there is no such target; know {', '.join(TARGETS)}")
    default = None if arguments.quick else RESULTS / f"sampling_{arguments.part}.csv"
    book = Book(arguments.part, arguments.out or default, arguments.only, arguments.again)
    if arguments.part == "nuts":
        if book.wants("logistic", "0"):
            book.add(nuts.measure(target("logistic"), 300 if arguments.quick else nuts.DRAWS))
    elif not NUTS_FILE.exists():
        sys.exit(f"{NUTS_FILE} is missing: run `nuts` first")
    else:
        parts = {"accuracy": run_accuracy, "rivals": run_rivals, "walltime": run_walltime}
        parts[arguments.part](book, arguments.quick)


if __name__ == "__main__":
    main()
