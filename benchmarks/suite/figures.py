"""The figures of the suite."""

from __future__ import annotations

import math
import statistics
from typing import Any

from suite.contenders import BY_HAND, CONTENDERS
from suite.summary import SCHEDULES, Losses, Rows, Suite
from suite.tasks import TASKS

OURS, COORDINATE, MUON, ADAMW, HAND = "#d94801", "#fdae6b", "#08519c", "#636363", "#41ab5d"
SHOWN = {
    "sgd": ("SGD with momentum", "#bdbdbd"),
    "cautious": ("cautious AdamW", "#8c6bb1"),
    "muon": ("Muon + AdamW", MUON),
    "coordinate": ("NetworkASGLD, coordinates", COORDINATE),
    "matrix": ("NetworkASGLD(model)", OURS),
}
DEFAULT_LR = CONTENDERS["matrix"].default_lr
# How far a mark is from the middle of its row.
OFFSETS = {"sgd": 0.0, "cautious": -0.1, "coordinate": 0.1, "muon": -0.16, "matrix": 0.16}
# Ratios beyond are drawn at the edge, as arrows.
EDGES = (0.5, 2.0)


def suite_figure(rows: Rows) -> Any:
    """Best losses relative to AdamW's, a row for each task."""
    import matplotlib.pyplot as plt

    suite = Suite(rows)
    tasks = [name for name, task in TASKS.items() if task.part == "suite"][::-1]
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.6), sharey=True, layout="constrained")
    for axis, schedule in zip(axes, SCHEDULES, strict=True):
        axis.axvline(1.0, color=ADAMW, lw=1.5)
        for i, task in enumerate(tasks):
            for name, (_, color) in SHOWN.items():
                value = suite.ratio(task, schedule, name)
                is_ours = name == "matrix"
                shown = min(max(value, EDGES[0]), EDGES[1])
                mark = "o" if shown == value else "<" if value < shown else ">"
                height = i + OFFSETS[name]
                axis.plot(shown, height, mark, color=color, ms=7 if is_ours else 5.5, alpha=0.95)
        axis.set_xscale("log")
        axis.set_xlim(EDGES[0] / 1.06, EDGES[1] * 1.06)
        ticks = [0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0]
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=8)
        axis.minorticks_off()
        axis.grid(axis="x", lw=0.4, alpha=0.6)
        axis.set_title({"constant": "constant lr", "cosine": "warm-up and cosine"}[schedule])
        axis.set_xlabel("validation loss / AdamW's, each at its best lr")
    axes[0].set_yticks(range(len(tasks)), [TASKS[name].title for name in tasks])
    handles = [
        plt.Line2D([], [], color=color, marker="o", ls="", label=title)
        for title, color in SHOWN.values()
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=8,
        columnspacing=1.2, handletextpad=0.2,
    )  # fmt: skip
    return figure


def rates_figure(rows: Rows) -> Any:
    """Loss against lr, a panel for each task and schedule."""
    import matplotlib.pyplot as plt

    suite = Suite(rows)
    tasks = [name for name, task in TASKS.items() if task.part == "suite"]
    figure, axes = plt.subplots(
        2, len(tasks), figsize=(14.0, 4.2), sharex=True, sharey=True, layout="constrained"
    )
    places = [(task, schedule) for schedule in SCHEDULES for task in tasks]
    for axis, (task, schedule) in zip(axes.flat, places, strict=True):
        least = min(suite.of(task, name, schedule).mean() for name in ("adamw", "muon", "matrix"))
        for name, color in (("adamw", ADAMW), ("muon", MUON), ("matrix", OURS)):
            found = suite.of(task, name, schedule).search
            title = "AdamW" if name == "adamw" else SHOWN[name][0]
            values = [min(loss / least, 9.0) for loss in found.values()]
            axis.plot(list(found), values, "o-", color=color, ms=3, lw=1.2, label=title)
        axis.axvline(DEFAULT_LR, color=OURS, lw=0.6, ls=":")
        axis.set_xscale("log")
        axis.set_ylim(0.95, 2.05)
        axis.set_xlim(2e-4, 4e-2)
        axis.set_title(f"{TASKS[task].title},\n{schedule}", fontsize=7)
        axis.grid(lw=0.3, alpha=0.6)
    for axis in axes[-1]:
        axis.set_xlabel("lr")
    for axis in axes[:, 0]:
        axis.set_ylabel("loss / least of three", fontsize=8)
    handles, titles = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, titles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def best_by_hand(suite: Suite, task: str) -> tuple[float, Losses]:
    """The size of noise that served AdamW best, and its losses."""
    found = {size: suite.of(task, f"by-hand-{size:g}", "cosine") for size in BY_HAND}
    size = min(found, key=lambda size: found[size].mean())
    return size, found[size]


def grown_figure(rows: Rows) -> Any:
    """How far copies are from each other, and the loss, against the step."""
    import matplotlib.pyplot as plt

    suite = Suite(rows)
    tasks = [name for name, task in TASKS.items() if task.part == "grown"]
    figure, axes = plt.subplots(2, 4, figsize=(12.0, 5.4), layout="constrained")
    for (above, below), task in zip(axes.T, tasks, strict=True):
        size, by_hand = best_by_hand(suite, task)
        lines = [
            ("AdamW", ADAMW, suite.of(task, "adamw", "cosine")),
            ("AdamW, best noise by hand", HAND, by_hand),
            ("Muon + AdamW", MUON, suite.of(task, "muon", "cosine")),
            ("NetworkASGLD, default noise", COORDINATE, suite.of(task, "matrix", "cosine")),
            ("NetworkASGLD, calibrated", OURS, suite.of(task, "matrix-calibrated", "cosine")),
        ]
        steps = TASKS[task].full["steps"]
        for title, color, found in lines:
            watched, points = distances(found), found.points()
            at = [steps * i / (len(watched) - 1) for i in range(len(watched))]
            style: dict[str, Any] = {"color": color, "lw": 1.8, "label": title}
            if title.startswith("Muon"):  # its copies stay where AdamW's do
                style["ls"] = (0, (4, 3))
            above.plot(at, watched, **style)
            below.plot(at[1:], points, **style)
        lowest = min(min(found.points()) for *_, found in lines)
        highest = max(found.points()[4] for *_, found in lines)
        below.set_ylim(lowest - 0.05 * (highest - lowest), highest + 0.3 * (highest - lowest))
        above.set_ylim(-0.03, 1.0)
        above.set_title(f"{TASKS[task].title}\n(best by hand: {size:g} of the weights)", fontsize=9)
        below.set_xlabel("step")
        for axis in (above, below):
            axis.grid(lw=0.3, alpha=0.6)
    axes[0, 0].set_ylabel("distance between copies,\nrelative to the weights")
    axes[1, 0].set_ylabel("test loss")
    handles, titles = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, titles, loc="outside lower center", ncols=5, frameon=False)
    return figure


def copies_figure(rows: Rows) -> Any:
    """One grown network in one panel, with letters that a phone can show."""
    import matplotlib.pyplot as plt

    suite, task = Suite(rows), "grown-layers"
    steps = TASKS[task].full["steps"]
    figure, axis = plt.subplots(figsize=(7.0, 4.6), layout="constrained")
    for name, title, color, style, lift in (
        ("adamw", "AdamW", ADAMW, "-", 0.025),
        ("muon", "Muon + AdamW", MUON, (0, (4, 3)), 0.075),  # its copies stay where AdamW's do
        ("matrix", "NetworkASGLD(model)", OURS, "-", 0.025),
    ):
        found = suite.of(task, name, "cosine")
        watched = distances(found)
        at = [steps * i / (len(watched) - 1) for i in range(len(watched))]
        axis.plot(at, watched, color=color, ls=style, lw=3.5)
        label = f"{title}: test loss {found.mean():.2f}"
        axis.text(steps, watched[-1] + lift, label, color=color, fontsize=15, ha="right")
    axis.set_ylim(-0.02, 0.6)
    axis.set_title("Distance between copied neurons, relative to the weights", fontsize=14)
    axis.set_xlabel("step after the network was widened", fontsize=14)
    axis.set_xticks(range(0, steps + 1, steps // 4))
    axis.tick_params(labelsize=13)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(lw=0.4, alpha=0.6)
    return figure


def distances(found: Losses) -> list[float]:
    """Distance of copies against the step, at the best lr: the mean of the seeds."""
    watched = [found.rows[found.best_lr, seed]["watched"].split() for seed in found.best]
    return [statistics.fmean(map(float, values)) for values in zip(*watched, strict=True)]


RULES = {
    "kept": ("coordinates, momentum kept", COORDINATE),
    "waits": ("coordinates, the preset", OURS),
    "adamw": ("AdamW", ADAMW),
}


def separation_figure(rows: Rows) -> Any:
    """Distance of copies against the step after a tiny kick, and the growth that was predicted."""
    import matplotlib.pyplot as plt

    settings = list(dict.fromkeys((row["network"], row["kick"]) for row in rows))
    figure, axes = plt.subplots(1, len(settings), figsize=(3.7 * len(settings), 3.4),
                                layout="constrained")  # fmt: skip
    for axis, (network, kick) in zip(axes, settings, strict=True):
        here = [row for row in rows if (row["network"], row["kick"]) == (network, kick)]
        for rule, (_, color) in RULES.items():
            for seed in dict.fromkeys(row["seed"] for row in here):
                found = [row for row in here if (row["rule"], row["seed"]) == (rule, seed)]
                at = [int(row["step"]) for row in found]
                axis.plot(at, [float(row["distance"]) for row in found], color=color, lw=1.1)
        predicted = statistics.median(float(row["many_rate"]) for row in here)
        start, steps = float(kick), max(int(row["step"]) for row in here)
        end = min(steps, math.log(1.0 / start) / predicted)
        axis.plot(
            [0, end], [start, start * math.exp(predicted * end)], color="black", ls="--", lw=1
        )
        axis.set_yscale("log")
        axis.set_title(f"{network}, kick of {kick}", fontsize=9)
        axis.set_xlabel("step")
        axis.grid(lw=0.3, alpha=0.6)
    axes[0].set_ylabel("distance between copies,\nrelative to the weights")
    handles = [plt.Line2D([], [], color=color, label=title) for title, color in RULES.values()]
    handles.append(plt.Line2D([], [], color="black", ls="--", label="predicted by curvature"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure
