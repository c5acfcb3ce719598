"""The figures of docs/training.md, from the CSV files that training.py wrote."""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from measure import RESULTS

Rows = list[dict[str, str]]
COLORS = {
    "AdamW": "#08519c", "NetworkASGLD": "#d94801", "NetworkASGLD, no noise": "#fdae6b",
    "Adagrad": "#756bb1", "ASG, calibrated": "#31a354", "ASGLD, calibrated": "#006d2c",
    "PSGLD": "#e7298a", "SGD, momentum": "#636363", "SGLD": "#bdbdbd",
}  # fmt: skip


def read(name: str) -> Rows:
    with (RESULTS / f"training_{name}.csv").open() as file:
        return list(csv.DictReader(file))


def draw(folder: Path) -> None:
    """Write all figures as PNG and SVG."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    figures = {
        "gpt": gpt_figure(read("gpt")),
        "saddles": saddle_figure(read("saddles")),
        "few-data": few_data_figure(read("few_data")),
    }
    for name, figure in figures.items():
        for kind in ("png", "svg"):
            metadata = {"Date": None} if kind == "svg" else {}
            figure.savefig(folder / f"{name}.{kind}", dpi=110, metadata=metadata)
        print(f"{folder.name}/{name}")


def gpt_figure(rows: Rows) -> Any:
    """Validation loss at the end against lr: median and range of the seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, schedule in zip(panels, ("constant", "warm-up and cosine"), strict=True):
        found: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            if row["schedule"] == schedule:
                found[row["optimizer"]][float(row["lr"])].append(float(row["loss_1000"]))
        for name, color in COLORS.items():
            rates = [lr for lr in sorted(found[name]) if all(map(math.isfinite, found[name][lr]))]
            if not rates:
                continue
            middle = [statistics.median(found[name][lr]) for lr in rates]
            panel.plot(rates, middle, "o-", color=color, label=name, markersize=4)
            low, high = ([f(found[name][lr]) for lr in rates] for f in (min, max))
            panel.fill_between(rates, low, high, color=color, alpha=0.15, linewidth=0)
        panel.set(xscale="log", xlabel="lr", title=f"lr {schedule}")
        panel.grid(alpha=0.3)
    panels[0].set(ylabel="validation loss after 1,000 steps (nats per byte)", ylim=(1.4, 3.0))
    panels[0].legend(fontsize=8)
    return figure


def saddle_figure(rows: Rows) -> Any:
    """Median steps to leave the saddle at the best lr, with the interval of the median."""
    from matplotlib.figure import Figure

    problems = list(dict.fromkeys(row["problem"] for row in rows))
    names = list(dict.fromkeys(row["optimizer"] for row in rows))
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    panels = figure.subplots(1, len(problems), sharey=True)
    for panel, problem in zip(panels, problems, strict=True):
        for start, color, shift in (
            ("exact saddle", "#d94801", -0.15),
            ("1e-3 from it", "#08519c", 0.15),
        ):
            for i, name in enumerate(names):
                row = best(rows, problem, start, name)
                middle, low, high = (float(row[f"steps_{k}"]) for k in ("median", "low", "high"))
                if math.isfinite(middle):
                    end = high if math.isfinite(high) else middle
                    panel.plot([low, end], [i + shift] * 2, color=color, linewidth=2)
                    panel.plot(middle, i + shift, "o", color=color,
                               label=start if i == names.index("SGLD") else None)  # fmt: skip
                else:
                    panel.text(900, i + shift, "stays", color=color, fontsize=7, va="center")
        panel.set(xscale="log", xlim=(1, 3000), title=problem, xlabel="steps")
        panel.grid(alpha=0.3)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    panels[-1].legend(fontsize=8, loc="lower right")
    return figure


def best(rows: Rows, problem: str, start: str, name: str) -> dict[str, str]:
    """The lr at which most replicas left, and among those the soonest."""
    found = [
        r for r in rows if (r["problem"], r["start"], r["optimizer"]) == (problem, start, name)
    ]
    return min(found, key=lambda r: (-int(r["left"]), float(r["steps_median"])))


def few_data_figure(rows: Rows) -> Any:
    """Test loss at the best lr, over seeds."""
    from matplotlib.figure import Figure

    sizes = list(dict.fromkeys(row["train_size"] for row in rows))
    names = list(dict.fromkeys(row["optimizer"] for row in rows))
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    for panel, size in zip(figure.subplots(1, len(sizes)), sizes, strict=True):
        samples = []
        for name in names:
            of_rate: dict[str, list[float]] = defaultdict(list)
            for row in rows:
                if row["train_size"] == size and row["optimizer"] == name:
                    of_rate[row["lr"]].append(float(row["test_loss"]))
            samples.append(min(of_rate.values(), key=statistics.median))
        panel.boxplot(samples, orientation="horizontal", widths=0.6)
        panel.set_yticks(range(1, len(names) + 1), names, fontsize=8)
        panel.invert_yaxis()
        panel.set(title=f"{size} training samples", xlabel="test loss")
        panel.grid(alpha=0.3, axis="x")
    return figure
