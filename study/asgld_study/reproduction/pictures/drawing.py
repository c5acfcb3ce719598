"""What a picture is, and what all of them share: colors, axes, legends.

Text and axes are drawn in `INK`, which the page replaces by the color of its text, so that a figure
is readable in light and dark. Colors are Okabe and Ito's, told apart by readers with any color
vision, and every color comes with a marker or a line style of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asgld.run.files import as_bytes
from asgld.theory.plots import COLORS
from asgld_study.reproduction.runner import Outcomes

INK = "#1a1c23"
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":")
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "asgld",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(
        (
            "text.color",
            "axes.edgecolor",
            "axes.labelcolor",
            "xtick.color",
            "ytick.color",
            "axes.titlecolor",
        ),
        INK,
    ),
}
_GRID = {"color": "#8a8f9c", "alpha": 0.35, "linewidth": 0.5}


@dataclass(frozen=True)
class Picture:
    """A figure of an experiment, made from the outcomes alone.

    Args:
        name: of its files.
        experiment: whose outcome it shows.
        title: its heading.
        caption: what to look at.
        alt: what is drawn, for those who do not see it.
        draw: outcomes -> matplotlib Figure.
        also: other experiments whose outcomes it reads.
        paper: whether it needs a white background in dark pages too.
    """

    name: str
    experiment: str
    title: str
    caption: str
    alt: str
    draw: Callable[[Outcomes], Any]
    also: tuple[str, ...] = ()
    paper: bool = False

    def render(self, outcomes: Outcomes) -> dict[str, bytes]:
        """The figure as SVG and as PDF; equal outcomes give equal bytes."""
        try:
            import matplotlib as mpl
        except ImportError as error:
            raise ImportError("figures need matplotlib: pip install 'asgld[plot]'") from error
        with mpl.rc_context(_STYLE):
            figure = self.draw(outcomes)
            if not self.paper:
                for part in (figure, *figure.axes):
                    part.patch.set_alpha(0.0)
            drawn = {"svg": as_bytes(figure, "svg")}
            figure.set_layout_engine("none")  # it is laid out now, and that took most of the time
            return {**drawn, "pdf": as_bytes(figure, "pdf")}


def picture(
    name: str,
    experiment: str,
    title: str,
    caption: str,
    alt: str,
    *,
    also: tuple[str, ...] = (),
    paper: bool = False,
) -> Callable[[Callable[[Outcomes], Any]], Picture]:
    """Turn the function that draws a picture into the picture; see :class:`Picture`."""
    return lambda draw: Picture(name, experiment, title, caption, alt, draw, also, paper)


def panels(rows: int, columns: int, height: float, **shared: Any) -> tuple[Any, Any]:
    """A figure of the page's width, and its axes as a 2-D array."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    for panel in axes.flat:
        panel.grid(**_GRID)
        panel.set_axisbelow(True)
    return figure, axes


def series(i: int) -> dict[str, Any]:
    """Color and marker of the i-th group of points."""
    return {"color": COLORS[i % len(COLORS)], "marker": _MARKERS[i % len(_MARKERS)]}


def line(i: int) -> dict[str, Any]:
    """Color and dashes of the i-th line without points."""
    return {"color": COLORS[i], "linestyle": _DASHES[i]}


def clipped(values: Any, low: float = 1e-5, high: float = 1e6) -> Any:
    """What fits on an axis; a NaN is at its top."""
    return np.clip(np.nan_to_num(np.asarray(values, dtype=np.float64), nan=high), low, high)


def plain(axis: Any, at: Sequence[float] | None = None) -> None:
    """Plain numbers on a logarithmic axis: where given, or at round ones, more if it is short."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    round_ones = (1.0, 2.0, 5.0) if high > 5.0 * low else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axis.set_major_locator(FixedLocator(list(at)) if at else LogLocator(subs=round_ones))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_locator(NullLocator())


def legend(figure: Any, panel: Any, columns: int = 4) -> None:
    """One legend below all panels, from the labels of one of them."""
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=columns)
