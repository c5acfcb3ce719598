"""Pictures of chains: traces, and histograms of ranks.

Each function takes draws of shape (chains, draws, d) and a name for each coordinate. It returns a
matplotlib Figure and shows nothing; save it with `figure.savefig(path)`. The first 6 coordinates
are drawn; of more than 8 chains, those whose ranks are least uniform. Needs the extra `plot`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from asgld.sampling.diagnosis import Array, average_ranks
from asgld.theory.plots import COLORS, PRINTED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COORDINATES, CHAINS, LETTERS = 6, 8, 20  # the most of each that are drawn
BAND, CHAIN_COLORS = "#d9d9d9", (*COLORS, PRINTED, "#8a8f9c")


def plot_trace(draws: npt.ArrayLike, names: Sequence[str]) -> Figure:
    """Draws in their order, a line for each chain, and at the right how they are distributed.

    Lines of mixed chains cannot be told apart. The gray area is the histogram of all chains.
    """
    draws, _, shown = _ranked(draws, names)
    figure, axes = _rows("Traces", draws, names, 2, width_ratios=(5, 1))
    for (trace, margin), column, chains in zip(axes, np.moveaxis(draws, 2, 0), shown, strict=True):
        finite = column[np.isfinite(column)]
        edges = np.linspace(finite.min(), finite.max(), 31) if finite.size else np.arange(2.0)
        side = {"edges": edges, "orientation": "horizontal"}
        margin.stairs(np.histogram(finite, edges)[0] / column.size, fill=True, color=BAND, **side)
        for color, chain in zip(CHAIN_COLORS, chains, strict=False):
            line = {"color": color, "linewidth": 0.6, "rasterized": column.shape[1] > 5_000}
            trace.plot(column[chain], label=f"chain {chain + 1}", **line)
            share = np.histogram(column[chain], edges)[0] / column.shape[1]
            margin.stairs(share, color=color, **side)
        trace.margins(x=0)
        trace.tick_params(labelbottom=trace is axes[-1, 0])
        margin.set(xticks=[], xlim=(0, None))
    axes[-1, 0].set_xlabel("draw", fontsize=9)
    axes[-1, 1].set_xlabel("share of draws", fontsize=9)
    if len(draws) <= CHAINS:
        style = {"loc": "outside lower center", "frameon": False, "labelcolor": "linecolor"}
        figure.legend(handles=axes[0, 0].get_lines(), ncols=CHAINS, **style)
    return figure


def plot_ranks(draws: npt.ArrayLike, names: Sequence[str]) -> Figure:
    """Histograms of the ranks that each chain's draws have among all draws.

    Ranks of a mixed chain are uniform. The line is the number of draws expected in a bin. The band
    holds 99 % of the bars if draws are independent, fewer if they mix slowly. Others are red.
    """
    draws, counts, shown = _ranked(draws, names)
    n, bins = draws.shape[1], counts.shape[2]
    low, high = _band(n, 1 / bins)
    title = "Ranks (gray: 99 % of the bars, were all draws independent)"
    figure, axes = _rows(title, draws, names, shown.shape[1], sharex=True)
    for (row, at), chain in np.ndenumerate(shown):
        panel, heights = axes[row, at], counts[row, chain]
        colors = np.where((heights < low) | (heights > high), COLORS[1], COLORS[0])
        panel.axhspan(low, high, color=BAND, linewidth=0, zorder=0)
        panel.bar((np.arange(bins) + 0.5) / bins, heights, 0.8 / bins, color=colors)
        panel.axhline(n / bins, color=PRINTED, linewidth=0.8)
        if row == 0 or len(draws) > CHAINS:
            panel.set_title(f"chain {chain + 1}", fontsize=8)
        panel.set(xlim=(0, 1), xticks=[0, 1])
    figure.supxlabel("rank among all draws (0: lowest, 1: highest)", fontsize=9)
    return figure


def _ranked(draws: npt.ArrayLike, names: Sequence[str]) -> tuple[Array, Any, Any]:
    """Coordinates to draw, counts of ranks (d, chains, bins), and chains to draw (d, shown)."""
    draws = np.asarray(draws, dtype=np.float64)
    if draws.ndim != 3 or draws.size == 0 or draws.shape[2] != len(names):
        raise ValueError(f"draws of shape {draws.shape} are not (chains, draws, {len(names)})")
    m, n, d = (draws := draws[:, :, :COORDINATES]).shape
    ranks = average_ranks(np.moveaxis(draws, 2, 0).reshape(d, -1)).reshape(d, m, n)
    bins = min(max(n // 10, 2), 20)
    into = ((ranks - 0.5) * bins / (m * n)).astype(np.int64)
    counts = np.stack([(into == each).sum(axis=2) for each in range(bins)], axis=2)
    order = np.argsort(-np.square(counts - n / bins).sum(axis=2), axis=1, kind="stable")
    return draws, counts, np.sort(order[:, :CHAINS], axis=1)


def _band(n: int, p: float) -> npt.NDArray[np.int64]:
    """The 0.5 % and the 99.5 % quantile of the binomial distribution."""
    k = torch.arange(n + 1, dtype=torch.float64)
    choices = torch.lgamma(k[-1] + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    below = torch.cumsum(torch.exp(choices + k * np.log(p) + (n - k) * np.log1p(-p)), 0)
    return np.searchsorted(np.asarray(below), (0.005, 0.995))


def _rows(
    title: str, draws: Array, names: Sequence[str], columns: int, **shared: Any
) -> tuple[Figure, Any]:
    """A figure 1,000 pixels wide, and its panels: a row for each coordinate."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "pictures need matplotlib: pip install 'asgld[plot]', or '.[plot]' in a clone"
        ) from error
    figure = Figure(figsize=(10, 1.45 * draws.shape[2] + 1), dpi=100, layout="constrained")
    axes = figure.subplots(draws.shape[2], columns, squeeze=False, sharey="row", **shared)
    for panel in axes.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
        panel.locator_params(axis="y", nbins=4)
    for panel, name in zip(axes[:, 0], names, strict=False):
        short = name if len(name) <= LETTERS else f"…{name[1 - LETTERS :]}"
        panel.set_ylabel(short, fontsize=9, parse_math=False)
    which = f": the {CHAINS} least uniform of {len(draws)} chains" if len(draws) > CHAINS else ""
    figure.suptitle(title + which, fontsize=11)
    return figure, axes
