"""Small cells that several tests measure."""

from __future__ import annotations

import dataclasses
from typing import Any

from asgld_study.cells import Cell, CellResult, measure_cells

SADDLE = {"dim": 8, "gamma": 0.5, "rotated": True}
ESCAPE = Cell("strict-saddle", "agld", SADDLE, {"lr": 0.1, "sigma": 0.003}, "saddle",
              replicas=6, max_steps=800, eps=0.05, gamma=0.25)  # fmt: skip
NEWTON = Cell("strict-saddle", "cubic-newton", SADDLE, {}, "saddle", replicas=3, max_steps=50,
              eps=0.05, gamma=0.25)  # fmt: skip
BROKEN = Cell("strict-saddle", "agld", SADDLE, {"lr": -1.0}, "saddle", replicas=2)


def measured(cell: Cell, **changes: Any) -> CellResult:
    """The result of the cell with these changes."""
    (result,) = measure_cells([dataclasses.replace(cell, **changes)])
    return result


def content(result: CellResult) -> dict[str, object]:
    """All that does not differ between runs."""
    return {k: v for k, v in dataclasses.asdict(result).items() if k != "seconds"}
