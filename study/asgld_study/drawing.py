"""What a picture is, and the one way to draw: colors, markers, panels, legends.

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
from asgld_study.engine import Outcomes, of_topic, paragraphs

INK, GRAY = "#1a1c23", "#8a8f9c"
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":")
_INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color",
          "axes.titlecolor")  # fmt: skip
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
    **dict.fromkeys(_INKED, INK),
}
_GRID = {"color": GRAY, "alpha": 0.35, "linewidth": 0.5}


@dataclass(frozen=True)
class Picture:
    """A figure of an experiment, made from the outcomes alone."""

    name: str  # of its files
    experiment: str  # the experiment whose outcome it shows
    title: str
    caption: str  # what to look at
    alt: str  # what is drawn, for readers who do not see it
    draw: Callable[[Outcomes], Any]  # outcomes -> matplotlib Figure
    also: tuple[str, ...] = ()  # other experiments whose outcomes it reads
    paper: bool = False  # whether it needs a white background in dark pages too

    def render(self, outcomes: Outcomes, kinds: Sequence[str] = ("svg", "pdf")) -> dict[str, bytes]:
        """The figure in each kind of file; equal outcomes give equal bytes."""
        try:
            import matplotlib as mpl
        except ImportError as error:
            raise ImportError("figures need matplotlib: pip install 'asgld[plot]'") from error
        with mpl.rc_context(_STYLE):
            figure, drawn = self.draw(outcomes), {}
            if not self.paper:
                for part in (figure, *figure.axes):
                    part.patch.set_alpha(0.0)
            for kind in kinds:
                drawn[kind] = as_bytes(figure, kind)
                figure.set_layout_engine("none")  # the layout is done, and took most of the time
            return drawn

    def __reduce__(self) -> tuple[Any, ...]:
        return of_topic, (self.draw.__module__, Picture, self.name)


def picture(
    name: str, experiment: str = "", *, also: tuple[str, ...] = (), paper: bool = False
) -> Callable[[Callable[[Outcomes], Any]], Picture]:
    """Turn the function that draws a picture into the picture; see :class:`Picture`.

    The docstring of the function has the title, the caption and the text for those who do not see
    the picture, a paragraph each. The experiment has the name of the picture, unless it is given.
    """

    def made(draw: Callable[[Outcomes], Any]) -> Picture:
        title, caption, alt = paragraphs(draw)
        return Picture(name, experiment or name, title, caption, alt, draw, also, paper)

    return made


# ------------------------------------------------------------------------------------ panels


def panels(
    rows: int, columns: int, height: float, used: int | None = None, **shared: Any
) -> tuple[Any, Any]:
    """A figure of the page's width, and its axes as a 2-D array, of which the first are used."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    for panel in axes.flat:
        panel.grid(**_GRID)
        panel.set_axisbelow(True)
    for panel in axes.flat[used:] if used else ():
        panel.set_axis_off()
    return figure, axes


def one_panel(height: float) -> tuple[Any, Any]:
    """A figure of the page's width, and its only axes."""
    figure, axes = panels(1, 1, height)
    return figure, axes[0, 0]


def outer(axes: Any, x: str = "", y: str = "") -> None:
    """Name the axes once: x below the last row of panels, y left of the first column."""
    for panel in axes[-1]:
        panel.set_xlabel(x)
    for panel in axes[:, 0]:
        panel.set_ylabel(y)


def log_log(panel: Any, **words: Any) -> None:
    """Both axes logarithmic; `words` as for matplotlib's `Axes.set`."""
    panel.set(xscale="log", yscale="log", **words)


def legend(figure: Any, panels: Any, columns: int = 4, **style: Any) -> None:
    """One legend below the figure, with each label of the panels, or of the only one, once."""
    handles: dict[str, Any] = {}
    for panel in np.ravel(panels):
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    where = {"loc": "outside lower center", "ncols": columns}
    figure.legend(handles.values(), handles, **where, **style)


def plain(axis: Any, at: Sequence[float] | None = None) -> None:
    """Plain numbers on a logarithmic axis: where given, or at round ones, more if it is short."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    round_ones = (1.0, 2.0, 5.0) if high > 5.0 * low else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axis.set_major_locator(FixedLocator(list(at)) if at else LogLocator(subs=round_ones))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_locator(NullLocator())


# ------------------------------------------------------------------------------------ series


def series(i: int) -> dict[str, Any]:
    """Color and marker of the i-th group of points."""
    return {"color": COLORS[i % len(COLORS)], "marker": _MARKERS[i % len(_MARKERS)]}


def line(i: int) -> dict[str, Any]:
    """Color and dashes of the i-th line without points."""
    return {"color": COLORS[i], "linestyle": _DASHES[i]}


def plot(
    panel: Any, i: int, x: Any, y: Any, label: str = "", dashes: str = "-", **rest: Any
) -> None:
    """The i-th series: points joined by a line, or points alone where `dashes` is "none"."""
    panel.plot(x, y, **series(i), linestyle=dashes, label=label or None, **rest)


def curve(panel: Any, i: int, x: Any, y: Any, label: str = "") -> None:
    """The i-th series as a line without points."""
    panel.plot(x, y, **line(i), label=label or None)


def rows_of_dots(panel: Any, names: Sequence[str]) -> Any:
    """Name the rows of a dot plot, the first at the top, and return their heights."""
    height = np.arange(len(names))[::-1]
    panel.set_yticks(height, names)
    return height


def ranges(
    panel: Any,
    i: int,
    samples: Sequence[Sequence[float]],
    height: Any,
    label: str,
    *,
    gap: float = 0.3,
    most: float = 1e6,
    **bar: Any,
) -> None:
    """The i-th of two dots in each row, at the median, on a bar from q10 to q90."""
    ends = clipped([np.quantile(sample, [0.1, 0.5, 0.9]) for sample in samples], high=most)
    y = height + gap / 2 - gap * i
    panel.hlines(y, ends[:, 0], ends[:, 2], color=COLORS[i], **bar)
    plot(panel, i, ends[:, 1], y, label, "none")


def clipped(values: Any, low: float = 1e-5, high: float = 1e6) -> Any:
    """Values moved onto the axis; a NaN is at its top."""
    return np.clip(np.nan_to_num(np.asarray(values, dtype=np.float64), nan=high), low, high)
