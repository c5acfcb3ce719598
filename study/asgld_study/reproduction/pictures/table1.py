"""Picture of Table 1: table1."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from asgld.theory.plots import COLORS
from asgld_study.reproduction.pictures.drawing import INK, panels, picture, series
from asgld_study.reproduction.rows import table_rows
from asgld_study.reproduction.runner import Outcomes


@picture(
    "table1",
    "table1",
    "Table 1: powers of 1/eps, and escape against d",
    "Left: a point to the right of its bar would violate the printed bound; one to the left is "
    "consistent with it and proves nothing. Right: methods whose line rises like a straight "
    "one on these axes pay a power of d for an escape.",
    "Left, printed and measured exponents, one row per method; right, median steps to leave a "
    "saddle against dimension, one line per method.",
)
def table1(o: Outcomes) -> Any:
    rows = table_rows(o)
    figure, axes = panels(1, 2, 0.24 * len(rows) + 1.1)
    panel, height = axes[0, 0], np.arange(len(rows))[::-1]
    printed = [row.printed.eps_power for row in rows]
    panel.scatter(printed, height, marker="|", s=150, color=INK, label="printed bound")
    measured = [row.power["value"] if row.informative else math.nan for row in rows]
    panel.plot(measured, height, linestyle="none", **series(0), label="measured on the chain")
    panel.set_yticks(height, [f"{i}  {row.method}" for i, row in enumerate(rows, start=1)])
    panel.set_xlabel("exponent of 1/eps in the cost")
    for i, row in enumerate(row for row in rows if row.times):
        dims = sorted(row.times)
        line = ("-", "--", ":")[i // len(COLORS)]
        axes[0, 1].plot(
            dims,
            [row.median_steps[dim] for dim in dims],
            linestyle=line,
            **series(i),
            label=row.method,
        )
    axes[0, 1].set(xscale="log", yscale="log", xlabel="d", ylabel="median steps to leave a saddle")
    handles, names = (
        [x for part in pair for x in part]
        for pair in zip(*(p.get_legend_handles_labels() for p in axes.flat), strict=True)
    )
    figure.legend(handles, names, loc="outside lower center", ncols=5, fontsize=7)
    return figure


PICTURES = (table1,)
