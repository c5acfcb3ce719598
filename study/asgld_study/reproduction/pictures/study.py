"""Pictures of the simulation study and of its variants: study, settings, spaces, starts, lag."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from asgld.theory.plots import COLORS
from asgld_study.experiments.paper import HIT
from asgld_study.reproduction.claims.tolerances import CONVERGED
from asgld_study.reproduction.pictures.drawing import (
    INK,
    clipped,
    legend,
    panels,
    picture,
    plain,
    series,
)
from asgld_study.reproduction.runner import Outcomes
from asgld_study.reproduction.statistics import median


@picture(
    "study-paths",
    "study",
    "Error of every configuration",
    "One panel per configuration, over data sets. A band that keeps falling converges; one "
    "that runs flat above the dashed line has reached its floor without finding the truth.",
    "Fifteen panels of squared error against iteration on logarithmic axes, each with a median "
    "line, a band from the tenth to the ninetieth percentile and a dashed line at 0.5.",
)
def study_paths(o: Outcomes) -> Any:
    values = o["study"].values
    rows = -(-len(values) // 3)
    figure, axes = panels(rows, 3, 1.75 * rows + 0.4, sharex=True, sharey=True)
    for panel, value in zip(axes.flat, values, strict=False):
        steps, bands = np.array(value["steps"][1:]), value["bands"]["errors"]
        low, middle, high = (clipped(bands[q][1:]) for q in ("q10", "median", "q90"))
        panel.fill_between(
            steps, low, high, color=COLORS[5], alpha=0.45, linewidth=0, label="q10 to q90"
        )
        panel.plot(steps, middle, color=COLORS[0], label="median")
        panel.axhline(HIT, color=COLORS[1], linestyle="--", linewidth=0.9, label=f"error {HIT}")
        panel.set(xscale="log", yscale="log", ylim=(1e-5, 1e6))
        panel.set_title(f"{value['number']}  {value['label']}")
    for panel in axes.flat[len(values) :]:
        panel.set_axis_off()
    for panel in axes[:, 0]:
        panel.set_ylabel("squared error")
    for panel in axes[-1]:
        panel.set_xlabel("iteration")
    legend(figure, axes[0, 0])
    return figure


@picture(
    "study-ends",
    "study",
    "Where each configuration ended, and when it first came near",
    "Left: the error against the truth and against the maximum-likelihood point of the same "
    "data; a method that reaches the second has nothing left to find. Right: the median first "
    "iteration near the truth.",
    "Two dot plots with one row per configuration: final squared errors with bars from the "
    "tenth to the ninetieth percentile, and median hitting times.",
)
def study_ends(o: Outcomes) -> Any:
    values = o["study"].values
    figure, axes = panels(1, 2, 0.24 * len(values) + 1.1, sharey=True)
    height = np.arange(len(values))[::-1]
    for i, (key, words) in enumerate((("final", "truth"), ("final_mle", "maximum likelihood"))):
        finals = [v[key] for v in values]
        _ranges(axes[0, 0], i, finals, height, f"to the {words}", linewidth=1.2)
    axes[0, 0].set(xscale="log", xlabel="squared error at the end, q10 to q90")
    axes[0, 0].set_yticks(height, [f"{v['number']}  {v['label']}" for v in values])
    _first_times(axes[0, 1], [v["hits"] for v in values], height, values[0]["steps"][-1])
    axes[0, 1].set_xlabel(f"first iteration with error < {HIT}")
    legend(figure, axes[0, 0])
    return figure


@picture(
    "settings",
    "settings",
    "The same with other step sizes and other noise",
    "The share of the last tenth of the run that is spent near the truth. A verdict that hangs "
    "on one setting shows as lines that cross the dotted line.",
    "Seven panels of the share of time near the truth against lr, one line per sigma.",
)
def settings(o: Outcomes) -> Any:
    values = o["settings"].values
    labels = list(dict.fromkeys(v["label"] for v in values))
    figure, axes = panels(2, 4, 3.9, sharex=True, sharey=True)
    for panel, label in zip(axes.flat, labels, strict=False):
        mine = [v for v in values if v["label"] == label]
        lrs = sorted({v["lr"] for v in mine})
        for i, sigma in enumerate(sorted({v.get("sigma", 0.0) for v in mine})):
            row = [
                next(v for v in mine if v["lr"] == lr and v.get("sigma", 0.0) == sigma)
                for lr in lrs
            ]
            shares = [float(np.mean(v["tail_shares"])) for v in row]
            panel.plot(lrs, shares, **series(i), label=rf"$\sigma = {sigma:g}$")
        panel.axhline(CONVERGED, color=INK, linestyle=":", linewidth=0.9)
        panel.set(xscale="log", ylim=(-0.05, 1.05))
        panel.set_title(label, fontsize=7.5)
        plain(panel.xaxis, lrs)
    for panel in axes.flat[len(labels) :]:
        panel.set_axis_off()
    for panel in axes[-1]:
        panel.set_xlabel("lr")
    for panel in axes[:, 0]:
        panel.set_ylabel("time near the truth")
    legend(figure, axes[0, 0])
    return figure


@picture(
    "spaces",
    "spaces",
    "In x instead of log x",
    "Projected and reflected ends of the same configurations; compare with the logarithmic "
    "space above. Left of the dotted line is near the truth.",
    "A dot plot of final squared errors, one row per configuration, projected and reflected.",
)
def spaces(o: Outcomes) -> Any:
    numbers = [v["number"] for v in o["spaces"].select(space="project")]
    labels = [f"{v['number']}  {v['label']}" for v in o["spaces"].select(space="project")]
    figure, axes = panels(1, 1, 0.24 * len(numbers) + 1.1)
    panel, height = axes[0, 0], np.arange(len(numbers))[::-1]
    groups = [("project", "x, projected"), ("reflect", "x, reflected")]
    for i, (space, words) in enumerate(groups):
        finals = [o["spaces"].one(space=space, number=n)["final"] for n in numbers]
        _ranges(panel, i, finals, height, words, most=1e9)
    panel.axvline(HIT, color=INK, linestyle=":", linewidth=0.9)
    panel.set(xscale="log", xlabel="squared error at the end, q10 to q90")
    panel.set_yticks(height, labels)
    legend(figure, panel)
    return figure


@picture(
    "starts",
    "starts",
    "What a small start of D does",
    "The further left, the smaller D before the first step. Where a line climbs to the left, "
    "the first steps are too long to recover from.",
    "Median final error against the initial accumulator, one panel per lr, one line per method.",
)
def starts(o: Outcomes) -> Any:
    values = o["starts"].values
    lrs = sorted({v["lr"] for v in values})
    figure, axes = panels(1, len(lrs), 3.1, sharey=True)
    for panel, lr in zip(axes.flat, lrs, strict=True):
        for i, label in enumerate(dict.fromkeys(v["label"] for v in values)):
            mine = [v for v in values if v["label"] == label and v["lr"] == lr]
            panel.plot(
                [v["d_init"] for v in mine],
                clipped([np.median(v["final"]) for v in mine], high=1e26),
                **series(i),
                label=label,
            )
        panel.set(
            xscale="log", yscale="log", title=f"lr = {lr:g}", xlabel="D before the first step"
        )
    axes[0, 0].set_ylabel("median squared error at the end")
    legend(figure, axes[0, 0], 3)
    return figure


@picture(
    "lag",
    "lag",
    "One step of lag or two",
    "Pairs of the same configuration: where they overlap, the indexing makes no difference.",
    "A dot plot of final squared errors, two rows per configuration, one for each lag.",
)
def lag(o: Outcomes) -> Any:
    labels = list(dict.fromkeys(v["label"] for v in o["lag"].values))
    figure, axes = panels(1, 1, 2.3)
    panel, height = axes[0, 0], np.arange(len(labels))[::-1]
    for i, (lag, words) in enumerate((("ONE", "one step"), ("TWO", "two steps, as printed"))):
        finals = [o["lag"].one(label=label, lag=lag)["final"] for label in labels]
        _ranges(panel, i, finals, height, words, gap=0.24)
    panel.set(xscale="log", xlabel="squared error at the end, q10 to q90")
    panel.set_yticks(height, labels)
    legend(figure, panel)
    return figure


PICTURES = (study_paths, study_ends, settings, spaces, starts, lag)


def _ranges(
    panel: Any,
    i: int,
    samples: Sequence[Sequence[float]],
    height: Any,
    label: str,
    *,
    gap: float = 0.3,
    most: float = 1e6,
    **line: Any,
) -> None:
    """The i-th of two dots in each row, at the median, on a bar from q10 to q90."""
    ends = clipped([np.quantile(sample, [0.1, 0.5, 0.9]) for sample in samples], high=most)
    y = height + gap / 2 - gap * i
    panel.hlines(y, ends[:, 0], ends[:, 2], color=COLORS[i], **line)
    panel.plot(ends[:, 1], y, linestyle="none", **series(i), label=label)


def _first_times(panel: Any, times: Sequence[Sequence[float]], height: Any, limit: float) -> None:
    """Medians of times; those that most chains never had at the right edge, with an arrow."""
    medians = [median(t)["value"] for t in times]
    panel.set_xscale("log")
    for y, m in zip(height, medians, strict=True):
        if math.isinf(m):
            panel.plot(limit, y, marker=">", color=COLORS[1], linestyle="none")
            panel.annotate(
                "never",
                (limit, y),
                textcoords="offset points",
                xytext=(-6, 0),
                ha="right",
                va="center",
                fontsize=7,
            )
        else:
            panel.plot(m, y, color=COLORS[0], marker="o", linestyle="none")
