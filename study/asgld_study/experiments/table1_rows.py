"""The fourteen methods of Table 1 on two problems that test what the table claims of them.

The worst-case chain is where gradient descent needs eps^-2 steps and a cubic method eps^-1.5: it
tests powers of 1/eps. The rotated saddle, all methods with noise of equal energy, tests logarithms
of d. `asgld table1` compares all methods, tuned, on many more problems, in half an hour.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from asgld_study.experiments import escape, table1
from asgld_study.experiments.declare import Size, Task
from asgld_study.sweep.engine import Cell
from asgld_study.sweep.engine import measure as measure_cell

# size -> what of the chain and of the saddle
_SIZES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tiny": (
        {"seeds": 2, "chain_eps": (1.0,), "chain_steps": 100},
        {"seeds": 4, "dims": (4, 8), "hessian_dims": (4,), "second_order_seeds": 2},
    ),
    "reduced": (
        {"seeds": 4, "chain_eps": (1.0, 0.5, 0.25), "chain_steps": 3_000},
        {"seeds": 24, "dims": (4, 32, 256), "hessian_dims": (4, 32), "second_order_seeds": 3},
    ),
    "full": (
        {"seeds": 8},
        {"dims": (4, 16, 64, 256, 1024), "hessian_dims": (4, 16, 64, 256), "second_order_seeds": 8},
    ),
}


def measure(cell: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a cell, less its time."""
    result = measure_cell(Cell(**cell))
    if result.error:
        raise RuntimeError(f"{result.label}: {result.error}")
    return {**dataclasses.asdict(result), "seconds": 0.0}


def tasks(size: Size) -> list[Task]:
    """Cells of the rows of the table alone; an escape ends with the fall."""
    of_chain, of_saddle = _SIZES[size.name]
    chain = dataclasses.replace(table1.SIZES["full"], **of_chain)
    saddle = dataclasses.replace(escape.FULL, **of_saddle, rotations=(True,))
    rows = {contender.label for contender in table1.contenders_of_table()}
    escapes = [
        dataclasses.replace(cell, until="fall")
        for cell in escape.dimension_cells(saddle)
        if not (cell.label in escape.NOISY and cell.tags["noise"] == "native")
    ]
    return [
        Task(measure, {"cell": cell.as_dict()})
        for cell in (*table1.chain_cells(chain), *escapes)
        if cell.label in rows
    ]
