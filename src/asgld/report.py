"""Outcomes as tables and figures, written atomically."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from asgld.experiments.paper import HIT, Outcome

_ERRORS_SHOWN = (1e-5, 1e5)
_BAND, _LINE, _TARGET = "#9ecae1", "#08519c", "#d94801"


def study_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One row per configuration: number, label, and the numbers of `Outcome.summary`."""
    return [
        {"number": o.configuration.number, "label": o.configuration.label, **o.summary()}
        for o in outcomes
    ]


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as comma-separated text."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as a Markdown table, numbers to three digits."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(format_number(row[n]) for n in names) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def format_number(value: Any) -> str:
    """Three digits; "never" for an infinite time."""
    if not isinstance(value, float):
        return str(value)
    if np.isinf(value):
        return "never"
    if value == round(value) and abs(value) < 1e6:
        return str(round(value))
    return f"{value:.3g}"


def write_text(path: Path, text: str) -> None:
    """Write a file in one piece: a reader, or an interrupted run, never leaves half of one."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """See :func:`write_text`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def study_figure(outcome: Outcome) -> Any:
    """Error against iteration: median and the band of the middle 80 % over replicas."""
    figure, axes = _subplots(1, 1, (6.4, 4.0))
    _draw_errors(axes[0, 0], outcome)
    axes[0, 0].set_xlabel("iteration")
    axes[0, 0].set_ylabel("squared error of the variances")
    axes[0, 0].legend(loc="lower left", frameon=False, fontsize=8)
    return figure


def study_overview(outcomes: Sequence[Outcome]) -> Any:
    """All configurations as small panels with common axes."""
    columns = min(4, len(outcomes))
    rows = -(-len(outcomes) // columns)
    figure, axes = _subplots(rows, columns, (3.2 * columns, 2.5 * rows), sharex=True, sharey=True)
    for panel, outcome in zip(axes.flat, outcomes, strict=False):
        _draw_errors(panel, outcome)
    for panel in axes.flat[len(outcomes) :]:
        panel.set_axis_off()
    for panel in axes[:, 0]:
        panel.set_ylabel("squared error")
    for column in range(columns):
        filled = [r for r in range(rows) if r * columns + column < len(outcomes)]
        axes[filled[-1], column].set_xlabel("iteration")
        axes[filled[-1], column].xaxis.set_tick_params(labelbottom=True)
    axes[0, 0].legend(loc="lower left", frameon=False, fontsize=7)
    return figure


def as_bytes(figure: Any, kind: str) -> bytes:
    """A figure as PNG, SVG or PDF, without a date, so that equal results give equal files."""
    content = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    figure.savefig(content, format=kind, dpi=150, metadata=metadata)
    return content.getvalue()


def _subplots(rows: int, columns: int, size: tuple[float, float], **shared: Any) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'asgld[plot]'") from error
    # Figure, not pyplot: nothing global, no window, safe in threads.
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def _draw_errors(axes: Any, outcome: Outcome) -> None:
    is_later = outcome.steps > 0
    steps = outcome.steps[is_later]
    # A chain that runs off overflows; the axis ends where the numbers mean nothing.
    low, high = _ERRORS_SHOWN
    errors = np.clip(outcome.errors[is_later], low / 10, high * 10)
    q10, median, q90 = np.quantile(errors, [0.1, 0.5, 0.9], axis=1)
    axes.fill_between(steps, q10, q90, color=_BAND, alpha=0.6, linewidth=0, label="q10 to q90")
    axes.plot(steps, median, color=_LINE, linewidth=1.5, label="median")
    axes.axhline(HIT, color=_TARGET, linewidth=0.8, linestyle="--", label=f"error {HIT}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.set_title(f"{outcome.configuration.number}  {outcome.configuration.label}", fontsize=9)
    axes.grid(alpha=0.25, linewidth=0.5)
