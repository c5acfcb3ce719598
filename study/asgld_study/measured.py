"""Figures of measured exponents and escape times beside what theory says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from asgld.theory.plots import COLORS, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def measured_escapes(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Measured against predicted median escape times, one point per setting, both criteria.

    Args:
        rows: as `asgld theory --measure escape` writes them.
    """
    figure = new_figure(9.5, 4.4)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    alphas = sorted({float(row["alpha"]) for row in rows})
    for panel, (criterion, title) in zip(
        panels,
        (("distance", "$|u'x| \\geq 1$"), ("value", "$f \\leq f_{saddle} - 1/2$")),
        strict=True,
    ):
        ends = [np.inf, 0.0]
        for color, alpha in zip(COLORS, alphas, strict=False):
            chosen = [row for row in rows if float(row["alpha"]) == alpha]
            x = np.array([float(row[f"{criterion}_predicted"]) for row in chosen])
            y = np.array([float(row[criterion]) for row in chosen])
            panel.scatter(x, y, s=14, color=color, alpha=0.7, label=rf"$\alpha = {alpha:g}$")
            ends = [min(ends[0], x.min()), max(ends[1], x.max())]
        panel.plot(ends, ends, color="black", linewidth=0.8)
        panel.set(xscale="log", yscale="log", xlabel="predicted steps", title=title)
        panel.grid(alpha=0.25, linewidth=0.5)
    panels[0].set_ylabel("measured steps")
    panels[0].legend(frameon=False)
    return figure


def measured_exponents(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Measured exponents with intervals beside the published and the corrected ones.

    Args:
        rows: as `asgld theory --measure exponents` writes them.
    """
    figure = new_figure(9.5, 0.26 * len(rows) + 1.6)
    panel = figure.subplots()
    height = np.arange(len(rows))[::-1]

    def column(name: str) -> Any:
        return np.array([float(row[name]) for row in rows])

    for name, label, color, shift in (
        ("average", "measured, weighted average", COLORS[0], 0.12),
        ("last", "measured, last iterate", COLORS[2], -0.12),
    ):
        center = column(name)
        spread = np.abs([center - column(f"{name}_low"), column(f"{name}_high") - center])
        panel.errorbar(
            center, height + shift, xerr=spread, fmt="o", markersize=4, color=color, label=label
        )
    panel.scatter(column("corrected"), height, marker="|", s=160, color="black", label="corrected")
    panel.scatter(
        column("published"), height, marker="x", s=36, color=COLORS[1], label="published", zorder=3
    )
    panel.set_yticks(height, [_case(row) for row in rows], fontsize=8)
    panel.set_xlabel("exponent $e$ of $k^{-e}$")
    panel.grid(alpha=0.25, linewidth=0.5)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    return figure


def _case(row: Mapping[str, Any]) -> str:
    beta, theta = float(row["beta"]), float(row["theta"])
    pair = f"{float(row['alpha']):g}" + ("" if np.isinf(beta) else f", {beta:g}")
    batch = f", batch $k^{{{theta:g}}}$" if theta else ""
    return f"{row['method']} ({pair}){batch}, {row['function']}"
