"""Pictures of rates and of the region of convergence: plateau, exponents, delta, region."""

from __future__ import annotations

from typing import Any

import numpy as np

from asgld.theory import plots
from asgld.theory.plots import COLORS
from asgld_study import measured
from asgld_study.reproduction.pictures.drawing import INK, legend, line, panels, picture, series
from asgld_study.reproduction.runner import Outcomes


@picture(
    "plateau",
    "plateau",
    "The floor of SGLD against dimension",
    "The published floor is the dashed line, which knows no d.",
    "Measured floor of SGLD against dimension with the published and the corrected formula.",
)
def plateau(o: Outcomes) -> Any:
    figure, axes = panels(1, 1, 2.8)
    panel, values = axes[0, 0], o["plateau"].select(batch=1)
    dims = np.array([v["dim"] for v in values])
    panel.plot(
        dims,
        [v["late"]["value"] for v in values],
        **series(0),
        linestyle="none",
        label="measured floor",
    )
    floor = values[0]["I2"] + values[0]["I3"]
    panel.plot(dims, np.full(len(dims), floor), color=INK, linestyle="--", label="I2 + I3")
    panel.plot(dims, dims * floor, color=COLORS[2], label="d (I2 + I3)")
    panel.set(xscale="log", yscale="log", xlabel="d", ylabel=r"$E|\nabla f|^2$ of the last half")
    legend(figure, panel)
    return figure


@picture(
    "exponents",
    "exponents",
    "Exponents, case by case",
    "A bound is violated where a measured point lies to the left of a published cross. Bars "
    "are 95 % intervals.",
    "A dot plot with one row per case: measured exponents with intervals beside published and "
    "corrected ones.",
)
def exponents(o: Outcomes) -> Any:
    rows = []
    for value in o["exponents"].values:
        row = {
            k: value[k]
            for k in ("method", "alpha", "beta", "theta", "function", "published", "corrected")
        }
        for name in ("average", "last"):
            fit = value[name]
            row |= {name: fit["value"], f"{name}_low": fit["low"], f"{name}_high": fit["high"]}
        rows.append(row)
    figure = measured.measured_exponents(rows)
    figure.set_size_inches(7.4, 0.2 * len(rows) + 1.3)
    return figure


@picture(
    "delta",
    "delta",
    "Full gradients with a tiny and with a real delta",
    "Same exponents, same noise; only delta differs, and with it the slope.",
    "Two panels of the squared gradient against k for four pairs of exponents.",
)
def delta(o: Outcomes) -> Any:
    figure, axes = panels(1, 2, 2.9, sharey=True)
    deltas = sorted({v["delta"] for v in o["delta"].values})
    for panel, delta in zip(axes.flat, deltas, strict=True):
        for i, value in enumerate(o["delta"].select(delta=delta)):
            name = f"({value['alpha']:g}, {value['beta']:g}): exponent {value['last']['value']:.2f}"
            panel.plot(
                value["path"]["k"],
                value["path"]["last"],
                **line(i),
                label=name,
            )
        panel.set(xscale="log", yscale="log", xlabel="k", title=rf"$\delta$ = {delta:g}")
        panel.legend(loc="lower left")
    axes[0, 0].set_ylabel(r"$E|\nabla f(x_k)|^2$")
    return figure


@picture(
    "region",
    "region",
    "Where the gradient keeps falling",
    "Numbers are exponents over the last decade; green falls, gray stays, orange grows. The "
    "line is the border that Theorem 2 draws.",
    "A map over alpha and beta with a measured exponent in each cell and the line beta = alpha/2.",
)
def region(o: Outcomes) -> Any:
    figure, axes = panels(1, 1, 4.2)
    panel, values = axes[0, 0], o["region"].values
    alphas = sorted({v["alpha"] for v in values})
    half = (alphas[1] - alphas[0]) / 2 if len(alphas) > 1 else 0.25
    from matplotlib.patches import Rectangle

    for v in values:
        falls, grows = v["last"]["low"] > 0.03, v["last"]["high"] < -0.03
        color = COLORS[2] if falls else COLORS[1] if grows else "#8a8f9c"
        panel.add_patch(
            Rectangle(
                (v["alpha"] - half, v["beta"] - half),
                2 * half,
                2 * half,
                facecolor=color,
                alpha=0.3,
                linewidth=0,
            )
        )
        panel.text(
            v["alpha"],
            v["beta"],
            f"{v['last']['value']:.2f}",
            ha="center",
            va="center",
            fontsize=8 if half > 0.2 else 6,
        )
    top = max(v["beta"] for v in values) + half
    # thin and pale, since it crosses numbers
    panel.plot([0, 2], [0, 1], color=INK, linewidth=1.0, alpha=0.6, label=r"$\beta = \alpha/2$")
    panel.set(xlim=(-half, 2 + half), ylim=(-half, top), xlabel=r"$\alpha$", ylabel=r"$\beta$")
    panel.grid(False)
    legend(figure, panel)
    return figure


@picture(
    "region-theory",
    "region",
    "The same map by theory, published and corrected",
    "Red marks exponents that no choice can have.",
    "Two maps of the exponent of the bound over alpha and beta, as published and corrected.",
    paper=True,
)
def region_theory(_: Outcomes) -> Any:
    return plots.region_map(resolution=120)


PICTURES = (plateau, exponents, delta, region, region_theory)
