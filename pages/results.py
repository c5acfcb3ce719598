"""What the modules that compute values share: the committed results, and Markdown tables."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
Rows = list[dict[str, str]]
# The statistics of a benchmark are in its own module.
sys.path.append(str(ROOT / "benchmarks"))


class Values(NamedTuple):
    """Numbers and tables as pages show them, by the names of their marks."""

    numbers: dict[str, str]
    tables: dict[str, str]


def read(name: str) -> Rows:
    """The rows of a file in benchmarks/results."""
    with (RESULTS / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(cells)} |\n" for cells in (header, *rows)]
    lines.insert(1, f"|{'---|' * len(header)}\n")
    return "".join(lines).replace("|  |", "| |").replace("|  |", "| |")


def bold(text: str, is_bold: bool = True) -> str:
    return f"**{text}**" if is_bold else text
