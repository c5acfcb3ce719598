"""What the rows say: tables of each part, and ratios of ours over the best rival."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

# Ours may take this many times the gradients of the better rival.
BOUND = 1.1

Row = dict[str, Any]


def ratios(rows: Iterable[Row]) -> dict[tuple[str, str], tuple[float, str]]:
    """Gradients per effective draw, ours over the best rival that meets the goal, and its name.

    By target and gradients; inf if ours misses the goal, 0 if no rival meets it.
    """
    found: dict[tuple[str, str], tuple[float, str]] = {}
    rows = list(rows)
    for own in rows:
        if own["contender"] != "asgld":
            continue
        place = (own["target"], own["gradients"])
        rivals = [
            (float(row["gradients_per_ess"]), row["contender"])
            for row in rows
            if (row["target"], row["gradients"]) == place
            and not row["contender"].startswith("asgld")
            and is_true(row["meets"])
        ]
        best, name = min(rivals, default=(math.inf, "none"))
        ours = float(own["gradients_per_ess"]) if is_true(own["meets"]) else math.inf
        found[place] = (ours / best, name)
    return found


def is_true(value: Any) -> bool:
    return str(value) == "True"


def table(rows: Iterable[Row], columns: Sequence[str]) -> str:
    """Rows as aligned text."""
    texts = [list(columns), *([_text(row.get(column, "")) for column in columns] for row in rows)]
    widths = [max(len(line[k]) for line in texts) for k in range(len(columns))]
    lines = ("  ".join(text.ljust(n) for text, n in zip(line, widths, strict=True))
             for line in texts)  # fmt: skip
    return "\n".join(line.rstrip() for line in lines)


def _text(value: Any) -> str:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return f"{number:.3g}" if abs(number) < 1e5 else f"{number:.2e}"
