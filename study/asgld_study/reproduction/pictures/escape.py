"""Pictures of escapes from a saddle: dimension, escape, noise, directions, front."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from asgld.theory.plots import COLORS
from asgld_study.reproduction.pictures.drawing import legend, line, panels, picture, plain, series
from asgld_study.reproduction.runner import Outcomes
from asgld_study.reproduction.statistics import median

# Of a point, where its label stands, by turns: large betas end at the same place.
_SIDES = ((4, 4), (-9, -10), (4, 4), (4, -10))


@picture(
    "dimension",
    "dimension",
    "Escape against dimension",
    "Straight and steep on these axes is a power of d; flat is free of d. Solid lines are "
    "saddles along an axis, dashed ones rotated.",
    "Five panels of median escape time against dimension, two criteria, aligned and rotated.",
)
def dimension(o: Outcomes) -> Any:
    figure, axes = panels(2, 3, 5.0, sharex=True)
    cells = (
        ("fixed", "AGLD (0, 1)"),
        ("fixed", "ASGLD (1, 1)"),
        ("fixed", "ASG (1)"),
        ("total", "AGLD (0, 1)"),
        ("hot", "ASGLD (1, 1)"),
    )
    titles = {"fixed": r"$\sigma = 0.1$", "total": r"$\sigma = d^{-1/2}$", "hot": r"$\sigma = 1$"}
    for panel, (sweep, label) in zip(axes.flat, cells, strict=False):
        i = 0
        for criterion, words in (("distance", "|u·x| ≥ 1"), ("value", "f ≤ -1/2")):
            for rotated in (False, True):
                mine = o["dimension"].select(sweep=sweep, label=label, rotated=rotated)
                mine.sort(key=lambda v: v["dim"])
                panel.plot(
                    [v["dim"] for v in mine],
                    [median(v[criterion])["value"] for v in mine],
                    **series(i),
                    linestyle="--" if rotated else "-",
                    label=f"{words}, {'rotated' if rotated else 'aligned'}",
                )
                i += 1
        panel.set(xscale="log", yscale="log", title=f"{label}, {titles[sweep]}")
        plain(panel.xaxis, [v["dim"] for v in mine][:: -(-len(mine) // 4)])
        plain(panel.yaxis)
    axes[1, 2].set_axis_off()
    for panel in axes[:, 0]:
        panel.set_ylabel("median steps to escape")
    for panel in axes[1, :2]:
        panel.set_xlabel("d")
    axes[0, 2].xaxis.set_tick_params(labelbottom=True)
    axes[0, 2].set_xlabel("d")
    axes[1, 2].legend(*axes[0, 0].get_legend_handles_labels(), loc="center")
    return figure


@picture(
    "escape",
    "escape",
    "What the escape time depends on",
    "Points are measured, lines are predicted by the mean-field recursion; no parameter is fitted.",
    "Four panels of median escape time against curvature, time of meeting, alpha and beta.",
)
def escape(o: Outcomes) -> Any:
    figure, axes = panels(2, 2, 5.2)
    for panel, (sweep, key, name) in zip(
        axes.flat,
        (
            ("gamma", "gamma", r"$\gamma$"),
            ("k0", "k0", "$k_0$"),
            ("alpha", "alpha", r"$\alpha$"),
            ("beta", "beta", r"$\beta$"),
        ),
        strict=True,
    ):
        mine = [v for v in o["escape"].select(sweep=sweep) if v[key] > 0 or sweep != "k0"]
        groups = (
            {"ASGLD": mine}
            if sweep == "alpha"
            else {
                label: [v for v in mine if v["label"] == label]
                for label in dict.fromkeys(v["label"] for v in mine)
            }
        )
        for i, (label, values) in enumerate(groups.items()):
            x = [v[key] for v in values]
            panel.plot(
                x,
                [median(v["distance"])["value"] for v in values],
                linestyle="none",
                **series(i),
                label=label,
            )
            panel.plot(x, [v["distance_predicted"] for v in values], color=COLORS[i], linewidth=1.0)
        panel.set(yscale="log", xlabel=name)
        if sweep in ("gamma", "k0"):
            panel.set_xscale("log")
        panel.legend()
    for panel in axes[:, 0]:
        panel.set_ylabel("median steps to escape")
    return figure


@picture(
    "noise",
    "noise",
    "Escape by gradient noise",
    "A line that stays at zero belongs to chains that never leave.",
    "Share of chains that left the saddle against the step, for four kinds of noise.",
)
def noise(o: Outcomes) -> Any:
    figure, axes = panels(1, 1, 2.8)
    panel = axes[0, 0]
    for i, value in enumerate(o["noise"].values):
        steps = np.geomspace(1, value["limit"], 80)
        out = [(np.array(value["times"]) <= step).mean() for step in steps]
        panel.plot(
            steps,
            out,
            **line(i),
            label=f"{value['label']}, gradient noise: {value['noise']}",
        )
    panel.set(xscale="log", xlabel="step", ylabel="share of chains that left", ylim=(-0.03, 1.03))
    legend(figure, panel, 2)
    return figure


@picture(
    "directions",
    "directions",
    "Eight escape directions at once",
    "Compare the lowest solid points of both values of alpha: the time until the last of eight "
    "directions has left, at the best step.",
    "Two panels of the time until the first and the last of eight directions have left.",
)
def directions(o: Outcomes) -> Any:
    figure, axes = panels(1, 2, 2.9, sharey=True)
    for panel, spread in zip(axes.flat, (1.0, 10.0), strict=True):
        i = 0
        for alpha in (0.0, 1.0):
            mine = o["directions"].select(alpha=alpha, spread=spread)
            for key, words in (("first", "first"), ("last", "last")):
                panel.plot(
                    [v["lr"] for v in mine],
                    [median(v[key])["value"] for v in mine],
                    **series(i),
                    linestyle="-" if key == "last" else "--",
                    label=rf"$\alpha$ = {alpha:g}, {words} direction",
                )
                i += 1
        words = "equal curvatures" if spread == 1.0 else "curvatures over a factor of ten"
        panel.set(xscale="log", yscale="log", xlabel="lr", title=words)
        plain(panel.xaxis, [v["lr"] for v in mine])
    axes[0, 0].set_ylabel("median steps to escape")
    legend(figure, axes[0, 0])
    return figure


@picture(
    "front",
    "front",
    "Escape time against final accuracy",
    "Down and left is better. Numbers beside points are beta.",
    "Scatter of final squared gradient against escape time, one line per alpha.",
    also=("region",),
)
def front(o: Outcomes) -> Any:
    figure, axes = panels(1, 1, 3.6)
    panel = axes[0, 0]
    for i, alpha in enumerate(sorted({v["alpha"] for v in o["front"].values})):
        mine = o["front"].select(alpha=alpha)
        x = [median(v["distance"])["value"] for v in mine]
        y = [o["region"].one(alpha=alpha, beta=v["beta"])["final"]["value"] for v in mine]
        panel.plot(x, y, **series(i), linewidth=0.8, label=rf"$\alpha$ = {alpha:g}")
        for v, a, b, side in zip(mine, x, y, itertools.cycle(_SIDES), strict=False):
            panel.annotate(
                f"{v['beta']:g}", (a, b), textcoords="offset points", xytext=side, fontsize=7
            )
    panel.set(
        xscale="log",
        yscale="log",
        xlabel="median steps to leave a saddle met at step 1000",
        ylabel=r"$E|\nabla f|^2$ at the end",
    )
    legend(figure, panel)
    return figure


PICTURES = (dimension, escape, noise, directions, front)
