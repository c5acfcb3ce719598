"""The figures of docs/training.md, from the CSV files that training.py wrote."""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from measure import RESULTS
from suite import figures as suite_figures
from training_saddles import median_interval

Rows = list[dict[str, str]]
COLORS = {
    "AdamW": "#08519c", "NetworkASGLD": "#d94801", "NetworkASGLD, no noise": "#fdae6b",
    "NetworkASGLD, opposed turned": "#b30000", "NetworkASGLD, no noise, opposed turned": "#fc8d8d",
    "NetworkASGLD, opposed kept": "#7f4a1e", "NetworkASGLD, no noise, opposed kept": "#b98a5e",
    "NetworkASGLD, no noise, opposed kept, clip 1/4": "#d9c2a7",
    "NetworkASGLD, floor": "#8a6d00", "NetworkASGLD, no noise, floor": "#e6b800",
    "AdamW, floor": "#00b0b9",
    "AdamW, opposed dropped": "#4292c6", "AdamW, opposed turned": "#9ecae1",
    "Adagrad": "#756bb1", "ASGLD, calibrated": "#006d2c",
    "ASG, calibrated": "#74c476", "ASG, calibrated, one scale": "#a1d99b",
    "ASG, calibrated, no clip": "#c7e9c0", "PSGLD": "#e7298a", "pSGLD of devinterp": "#f7a8cf",
    "SGD, momentum": "#636363", "SGLD": "#a6a6a6", "ASGLD": "#41ab5d",
}  # fmt: skip
EXACT, NEAR = "#d94801", "#08519c"
# Columns of a median and its interval.
SPREAD = ("steps_median", "steps_low", "steps_high")


def draw(folder: Path, results: Path = RESULTS, dpi: int = 160) -> None:
    """Write all figures as PNG and SVG."""
    import matplotlib

    matplotlib.use("Agg")
    # Ids that are the same each time, so that a figure changes only with its data.
    matplotlib.rcParams["svg.hashsalt"] = "asgld"
    matplotlib.rcParams.update({"font.size": 9, "axes.titlesize": 10})
    folder.mkdir(parents=True, exist_ok=True)
    saddles, suite = read(results, "saddles"), read(results, "suite")
    figures = {
        "suite": suite_figures.suite_figure(suite),
        "suite-lr": suite_figures.rates_figure(suite),
        "grown": suite_figures.grown_figure(suite),
        "copies": suite_figures.copies_figure(suite),
        "separation": suite_figures.separation_figure(read(results, "separation")),
        "gpt": gpt_figure(read(results, "gpt")),
        "gpt-64": gpt_figure(read(results, "gpt_64"), height=5.8),
        "saddles": saddle_figure(saddles),
        "saddles-lr": saddle_rates_figure(saddles),
        "few-data": few_data_figure(read(results, "few_data")),
    }
    for name, figure in figures.items():
        for kind in ("png", "svg"):
            metadata = {"Date": None} if kind == "svg" else {}
            figure.savefig(folder / f"{name}.{kind}", dpi=dpi, metadata=metadata)
        print(f"{folder.name}/{name}")


def read(results: Path, name: str) -> Rows:
    with (results / f"training_{name}.csv").open() as file:
        return list(csv.DictReader(file))


def in_order(rows: Rows, column: str) -> list[str]:
    return list(dict.fromkeys(row[column] for row in rows))


def canvas(height: float, panels: int, **options: Any) -> tuple[Any, list[Any]]:
    """A row of panels, in all as wide as a page of text, so that letters keep their size there."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, height), layout="constrained")
    axes = list(figure.subplots(1, panels, squeeze=False, **options)[0])
    for panel in axes:
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def gpt_figure(rows: Rows, height: float = 8.0) -> Any:
    """Validation loss at the end against lr: median and range of the seeds."""
    column = [name for name in rows[0] if name.startswith("loss_")][-1]
    figure, panels = canvas(height, 2, sharey=True)
    medians: dict[tuple[str, str], dict[float, float]] = {}
    for panel, schedule in zip(panels, ("constant", "warm-up and cosine"), strict=True):
        for name, color in COLORS.items():
            found: dict[float, list[float]] = defaultdict(list)
            for row in rows:
                if (row["schedule"], row["optimizer"]) == (schedule, name):
                    found[float(row["lr"])].append(float(row[column]))
            rates = [lr for lr in sorted(found) if all(map(math.isfinite, found[lr]))]
            if not rates:
                continue
            middle = [statistics.median(found[lr]) for lr in rates]
            medians[name, schedule] = dict(zip(rates, middle, strict=True))
            # Dashed, so that the same rule with noise shows below it.
            style = "o--" if "no noise" in name else "o-"
            panel.plot(rates, middle, style, color=color, label=name, markersize=4)
            low, high = ([f(found[lr]) for lr in rates] for f in (min, max))
            panel.fill_between(rates, low, high, color=color, alpha=0.15, linewidth=0)
            best = min(rates, key=medians[name, schedule].__getitem__)
            panel.plot(best, medians[name, schedule][best], "o", color=color, markersize=8)
        panel.set(xscale="log", xlabel="lr", title=f"lr {schedule}")
        low, high = panel.get_xlim()
        if high < 100 * low:  # where powers of ten alone are too few
            plain_ticks(panel.xaxis)
    bests = [min(losses.values()) for losses in medians.values()]
    steps = int(column.removeprefix("loss_"))
    panels[0].set(
        ylabel=f"validation loss after {steps:,} steps (nats per byte)",
        ylim=(min(bests) - 0.05, max(bests) + 0.4),
    )
    for panel, schedule in zip(panels, ("constant", "warm-up and cosine"), strict=True):
        shown = [
            (min(medians[name, schedule].values()), line, name)
            for line, name in zip(*panel.get_legend_handles_labels(), strict=True)
        ]
        shown.sort(key=lambda entry: entry[0])
        panel.legend(
            [line for _, line, _ in shown], [f"{loss:.3f}  {name}" for loss, _, name in shown],
            fontsize=8, title="median at the best lr", title_fontsize=8, loc="upper center",
            bbox_to_anchor=(0.5, -0.12), frameon=False,
        )  # fmt: skip
    return figure


def saddle_figure(rows: Rows) -> Any:
    """Median steps to leave the saddle at the best lr, with the interval of the median."""
    problems, names = in_order(rows, "problem"), in_order(rows, "optimizer")
    figure, panels = canvas(5.6, len(problems), sharey=True, sharex=True)
    for panel, problem in zip(panels, problems, strict=True):
        starts = in_order([row for row in rows if row["problem"] == problem], "start")
        for start, color, shift in zip(starts, (EXACT, NEAR), (-0.16, 0.16), strict=True):
            for row in best_rows(rows, problem, start):
                y = names.index(row["optimizer"]) + shift
                middle, low, high = (float(row[column]) for column in SPREAD)
                if not math.isfinite(middle):
                    kind = "stays" if row["left"] == "0" else f"{row['left']} of {row['replicas']}"
                    panel.text(0.97, y, kind, color=color, fontsize=8, va="center", ha="right",
                               transform=panel.get_yaxis_transform())  # fmt: skip
                    continue
                panel.plot([low, high], [y, y], color=color, linewidth=2, solid_capstyle="round")
                panel.plot(middle, y, "o", color=color, markersize=5)
                panel.annotate(f"{middle:g}", (high, y), (5, 0), textcoords="offset points",
                               color=color, fontsize=8, va="center")  # fmt: skip
            panel.plot([], [], "o-", color=color, label=start)
        panel.set(xscale="log", title=problem, xlabel="steps to leave")
        plain_ticks(panel.xaxis)
        panel.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.13), frameon=False)
    # Room for the number beside the slowest, and for those who stay.
    ends = [float(row["steps_high"]) for row in rows if row["is_best"] == "True"]
    panels[0].set(xlim=(0.8, 5.0 * max(filter(math.isfinite, ends))))
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    return figure


def best_rows(rows: Rows, problem: str, start: str) -> Rows:
    wanted = (problem, start, "True")
    return [row for row in rows if (row["problem"], row["start"], row["is_best"]) == wanted]


def saddle_rates_figure(rows: Rows) -> Any:
    """Steps to leave the exact saddle against the size of the first step, for rules that move by a
    multiple of the gradient; a line ends with the largest at which all replicas leave."""
    problems = in_order(rows, "problem")
    figure, panels = canvas(3.2, len(problems), sharey=True)
    for panel, problem in zip(panels, problems, strict=True):
        for name, style in (("ASGLD, calibrated", "o-"), ("ASGLD", "o-"), ("SGLD", "k--")):
            wanted = (problem, "exact saddle", name)
            found = [
                (float(row["step_size"]), *(float(row[column]) for column in SPREAD))
                for row in rows
                if (row["problem"], row["start"], row["optimizer"]) == wanted
                and row["left"] == row["replicas"]
            ]
            if not found:
                continue
            sizes, middle, low, high = zip(*found, strict=True)
            (line,) = panel.plot(sizes, middle, style, markersize=3, label=name)
            line.set_color("black" if name == "SGLD" else COLORS[name])
            panel.fill_between(sizes, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
            panel.plot(sizes[-1], middle[-1], "D", color=line.get_color(), markersize=6)
        panel.set(xscale="log", yscale="log", title=problem, xlabel="step / gradient")
        plain_ticks(panel.xaxis)
    plain_ticks(panels[0].yaxis)
    panels[0].set(ylabel="median steps until it has left")
    panels[0].legend(fontsize=8)
    return figure


def plain_ticks(axis: Any) -> None:
    """Ticks of a logarithmic axis at 1, 3, 10, ..., written out."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def few_data_figure(rows: Rows) -> Any:
    """Test loss at the best lr: median over seeds, its interval, and the seeds themselves."""
    sizes, names = in_order(rows, "train_size"), in_order(rows, "optimizer")
    figure, panels = canvas(4.2, len(sizes), sharey=True)
    for panel, size in zip(panels, sizes, strict=True):
        for i, name in enumerate(names):
            losses = best_losses(rows, size, name)
            color = EXACT if name.startswith("NetworkASGLD") else NEAR
            panel.plot(losses, [i] * len(losses), "|", color=color, alpha=0.35, markersize=8)
            low, high = median_interval(losses)
            middle = statistics.median(losses)
            panel.plot([low, high], [i, i], color=color, linewidth=3, solid_capstyle="round")
            panel.plot(middle, i, "o", color=color, markersize=6)
            panel.annotate(f"{middle:.3f}", (middle, i), (0, 6), textcoords="offset points",
                           color=color, fontsize=8, ha="center")  # fmt: skip
        panel.set(title=f"{size} training samples", xlabel="test loss (nats)")
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylim(len(names) - 0.5, -0.7)
    return figure


def best_losses(rows: Rows, size: str, name: str) -> list[float]:
    """Test losses of all seeds at the lr with the lowest median."""
    of_rate: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if (row["train_size"], row["optimizer"]) == (size, name):
            of_rate[row["lr"]].append(float(row["test_loss"]))
    return min(of_rate.values(), key=statistics.median)
