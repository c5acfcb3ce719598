"""What `asgld theory --measure` runs: exponents and escape times, one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from asgld.run import files
from asgld_study.experiments import escape_law, exponents


def measure(
    console: Console,
    what: str,
    steps: int,
    replicas: int | None,
    limit: int | None,
    out: Path | None,
    plot: Path | None,
) -> None:
    rows: list[dict[str, Any]] = []
    with Progress(console=console) as progress:
        if what == "exponents":
            cases = exponents.CASES[:limit]
            task = progress.add_task("exponents", total=len(cases))
            found: Iterator[Any] = exponents.measure_all(
                cases,
                steps=steps,
                replicas=replicas or 24,
                report=lambda n: progress.update(task, completed=n),
            )
        else:
            grid = escape_law.GRID[:limit]
            task = progress.add_task("escape times", total=len(grid))
            found = escape_law.measure_all(
                grid,
                replicas=replicas or 200,
                report=lambda n: progress.update(task, completed=n),
            )
        for each in found:
            rows.append(each.row())
            if out is not None:  # after every row: an interrupted run keeps what it has
                files.write_text(out, files.as_csv(rows))
    console.print(_exponent_table(rows) if what == "exponents" else _escape_table(rows))
    if out is not None:
        console.print(f"written to {out}")
    if plot is not None:
        from asgld_study import measured as plots

        draw = {
            "exponents": plots.measured_exponents,
            "escape": plots.measured_escapes,
        }[what]
        path = plot / f"{what}-measured.png"
        files.write_bytes(path, files.as_bytes(draw(rows), "png"))
        console.print(str(path))


def _exponent_table(rows: list[dict[str, Any]]) -> Table:
    table = Table("case", "average", "last iterate", "published", "corrected",
                  title="Exponents e of k^-e, with 95 % intervals")  # fmt: skip
    for row in rows:
        case = exponents.Case(*(row[n] for n in ("method", "alpha", "beta", "theta", "function")))
        table.add_row(
            case.label,
            *(
                f"{row[n]:.2f} [{row[n + '_low']:.2f}, {row[n + '_high']:.2f}]"
                for n in ("average", "last")
            ),
            *("-" if math.isnan(row[n]) else f"{row[n]:g}" for n in ("published", "corrected")),
        )
    return table


def _escape_table(rows: list[dict[str, Any]]) -> Table:
    table = Table("criterion", "settings", "median", "q10", "q90", "min", "max",
                  title="Measured over predicted median escape time")  # fmt: skip
    for criterion in ("distance", "value"):
        ratios = np.array([row[f"{criterion}_ratio"] for row in rows])
        numbers = (np.median(ratios), *np.quantile(ratios, [0.1, 0.9]), ratios.min(), ratios.max())
        table.add_row(criterion, str(len(ratios)), *(f"{n:.3f}" for n in numbers))
    return table
