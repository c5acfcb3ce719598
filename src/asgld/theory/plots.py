"""Pictures of the theory: where it converges, how fast, and how long an escape takes.

Each function returns a matplotlib Figure and shows nothing; save it with `figure.savefig(path)`.
Needs the extra `plot`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from asgld.theory import escape_recursion, escape_time, published_escape_time, rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by readers with any color vision.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
PRINTED = "#444444"
TITLES = {"published": "As published", "corrected": "Corrected"}


def region_map(*, method: str = "asgld", theta: float = 0.0, resolution: int = 320) -> Figure:
    """The paper's Figure 1: convergence over (alpha, beta), published beside corrected.

    Colors give the exponent e of the bound k^-e. Exponents above the best one that the corrected
    theory allows anywhere are drawn in red: no choice of (alpha, beta) can have them.

    Args:
        method: "asgld", "agld" or "asg".
        theta: batch growth, B_k ~ k^theta.
        resolution: points per axis.
    """
    alpha, beta = np.meshgrid(
        (np.arange(resolution) + 0.5) * 2.3 / resolution,
        (np.arange(resolution) + 0.5) * 2.6 / resolution,
    )
    rates = {
        version: rate(alpha, beta, method=method, theta=theta, version=version)
        for version in TITLES
    }
    # Cell centers miss the ridge by half a cell, hence the rounding.
    best, claimed = (
        round(float(np.max(np.nan_to_num(rates[version].exponent))), 2)
        for version in ("corrected", "published")
    )
    figure = new_figure(11.5, 5.2)
    colors = _exponent_colors(best, max(claimed, best))
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    levels = best * np.array([0.2, 0.4, 0.6, 0.8])
    for panel, (version, found) in zip(panels, rates.items(), strict=True):
        exponent = np.where(found.converges, found.exponent, np.nan)
        shown = panel.pcolormesh(alpha, beta, exponent, **colors, rasterized=True)
        if np.any(found.converges):
            lines = panel.contour(
                alpha, beta, exponent, levels=levels, colors="white", linewidths=0.9
            )
            row = int(0.75 * resolution)
            gaps = np.abs(np.nan_to_num(exponent[row], nan=9.0)[:, None] - levels)
            spots = [(alpha[row, i], beta[row, 0]) for i in np.argmin(gaps, axis=0)]
            panel.clabel(lines, fmt=lambda level: f"{level:.2g}", fontsize=8, manual=spots)
        _mark_outside(panel, alpha, beta, np.asarray(found.region))
        panel.set_title(TITLES[version])
        panel.set_xlabel(r"$\alpha$ (exponent of the step)")
    _mark_logs(panels[1], method, theta)
    panels[0].set_ylabel(r"$\beta$ (exponent of the noise)")
    ticks = [best * i / 5 for i in range(6)]
    ticks += [level for level in (0.75, 1.0, 1.5, 2.0) if level > best + 0.1]
    bar = figure.colorbar(
        shown, ax=panels, shrink=0.95, ticks=[tick for tick in ticks if tick <= max(claimed, best)]
    )
    bar.set_label("exponent $e$ of the bound $k^{-e}$")
    growth = f", batches $k^{{{theta:g}}}$" if theta else ""
    figure.suptitle(f"Where {method.upper()}{growth} converges, and how fast")
    return figure


def rate_curves(
    betas: Sequence[float] = (0.5, 0.75, 1.0, 2.0), *, method: str = "asgld", theta: float = 0.0
) -> Figure:
    """Exponent of the bound against alpha, one panel for each beta, published and corrected."""
    alpha = np.linspace(0, 2, 801)
    best = float(np.max(rate(alpha, max(betas), method=method, theta=theta).exponent))
    figure = new_figure(3.1 * len(betas) + 0.6, 3.8)
    panels = np.atleast_1d(figure.subplots(1, len(betas), sharex=True, sharey=True))
    for panel, beta in zip(panels, betas, strict=True):
        for version, style in (
            ("corrected", {"color": COLORS[5], "linewidth": 4.0}),
            ("published", {"color": "black", "linestyle": "--", "linewidth": 1.4}),
        ):
            found = rate(alpha, beta, method=method, theta=theta, version=version)
            exponent = np.asarray(found.exponent).copy()
            exponent[1:][np.abs(np.diff(exponent)) > 0.05] = np.nan  # a jump is not a slope
            panel.plot(alpha, exponent, label=TITLES[version], **style)
        edge = min(2 * beta, 2.0)
        panel.axhline(0, color="black", linewidth=0.8)
        if edge < 2:
            panel.axvspan(edge, 2, color="#f3d9d0", zorder=0)
            panel.text((edge + 2) / 2, best + 0.1, "heats", ha="center", color="#8a3b1c")
        panel.set_title(rf"$\beta = {beta:g}$")
        panel.set_xlabel(r"$\alpha$")
        panel.set_xlim(0, 2)
    panels[0].set_ylabel("exponent $e$ of $k^{-e}$")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.suptitle(f"{method.upper()}: rate against the exponent of the step")
    return figure


def escape_curves(
    *,
    alphas: Sequence[float] = (0.0, 0.5, 1.0, 1.5),
    lr: float = 0.1,
    gamma: float = 0.5,
    sigma: float = 0.1,
    delta: float = 0.01,
    gradient_variance: float = 0.1,
    dim: int = 64,
    k0: float = 100.0,
) -> Figure:
    """Predicted median escape time against k0, against d and against gamma.

    Solid: corrected, beta = max(1, alpha). Dashed gray: T_max of Theorem 3 for alpha = 1, scaled to
    meet the corrected curve of alpha = 1 at the left end (its constants are free). k0 and gamma
    are shown for |y| >= 1, d for f <= f_saddle, axis-aligned and (dotted) spread over axes.
    """
    base = {"lr": lr, "sigma": sigma, "delta": delta, "gradient_variance": gradient_variance}
    steps_met, dims = np.geomspace(1, 1e6, 61), np.geomspace(4, 16384, 25)
    curvatures = np.geomspace(0.01, 1.0, 41)
    figure = new_figure(13.5, 4.3)
    by_k0, by_dim, by_gamma = figure.subplots(1, 3)
    kinds = [(alpha, gradient_variance, rf"$\alpha = {alpha:g}$") for alpha in alphas]
    kinds.append((0.0, 0.0, r"$\alpha = 0$, full gradients"))
    for color, (alpha, variance, label) in zip(COLORS, kinds, strict=False):
        rule: dict[str, Any] = {**base, "alpha": alpha, "beta": max(1.0, alpha)}
        rule["gradient_variance"] = variance
        style = {"color": color, "linewidth": 2.0}
        by_k0.plot(
            steps_met, escape_time(gamma, **rule, dim=dim, k0=steps_met).steps, label=label, **style
        )
        for aligned, line in ((True, "-"), (False, ":")):
            seen = escape_recursion(
                gamma, **rule, k0=k0, dim=dims, criterion="value", aligned=aligned, max_steps=50_000
            )
            by_dim.plot(dims, seen, linestyle=line, **style)
        found = escape_time(curvatures, **rule, dim=dim, k0=k0).steps
        by_gamma.plot(curvatures, found, **style)
    rule = {**base, "alpha": 1.0, "beta": 1.0}
    for panel, at, corrected, printed in (
        (
            by_k0,
            steps_met,
            escape_time(gamma, **rule, dim=dim, k0=steps_met).steps,
            np.full(steps_met.shape, published_escape_time(gamma, 1, 1, dim)),
        ),
        (
            by_dim,
            dims,
            escape_recursion(gamma, **rule, k0=k0, dim=dims, criterion="value"),
            published_escape_time(gamma, 1, 1, dims),
        ),
        (
            by_gamma,
            curvatures,
            escape_time(curvatures, **rule, dim=dim, k0=k0).steps,
            published_escape_time(curvatures, 1, 1, dim),
        ),
    ):
        scaled = np.asarray(printed) * np.asarray(corrected)[0] / np.asarray(printed)[0]
        panel.plot(at, scaled, color=PRINTED, linestyle="--", label="Theorem 3, scaled")
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.grid(True, which="major", color="#dddddd", linewidth=0.6)
    by_k0.set(xlabel="$k_0$, step at which the saddle is met", ylabel="median steps to escape")
    by_k0.set_title(r"late saddles: $k_0^{\alpha/2}$")
    by_dim.set(xlabel="$d$, dimension")
    by_dim.set_title("$f$ below the saddle (dotted: rotated)")
    by_gamma.set(xlabel=r"$\gamma$, negative curvature")
    by_gamma.set_title(r"curvature: $1/\gamma$ and steeper")
    by_k0.legend(frameon=False)
    figure.suptitle(
        rf"Predicted escape time ($\eta = {lr:g}$, $\gamma = {gamma:g}$, $\sigma = {sigma:g}$, "
        rf"$C = {gradient_variance:g}$, $\delta = {delta:g}$, $k_0 = {k0:g}$, $d = {dim}$)"
    )
    return figure


def new_figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        message = "asgld.theory.plots needs matplotlib: pip install 'asgld[plot]'"
        raise ImportError(message) from error
    return Figure(figsize=(width, height), layout="constrained")


def _exponent_colors(best: float, claimed: float) -> dict[str, Any]:
    """Blue to yellow up to the best exponent there is, red above it."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, Normalize

    inside = colormaps["viridis"](np.linspace(0.05, 0.9, 256))
    beyond = colormaps["Reds"](np.linspace(0.45, 0.95, round(256 * (claimed / best - 1))))
    return {
        "cmap": ListedColormap(np.concatenate([inside, beyond])),
        "norm": Normalize(0, claimed),
    }


def _mark_logs(panel: Any, method: str, theta: float) -> None:
    """Dotted lines where the bound carries an extra log k: min(alpha + theta, beta) = 1."""
    style = {"color": "black", "linestyle": ":", "linewidth": 1.6, "label": r"extra $\log k$"}
    ridge = 0.0 if method == "agld" else max(1 - theta, 0.0)
    drawn = []
    if method != "asg":
        drawn += panel.plot([ridge, 2], [1, 1], **style)
    if method != "agld" and ridge > 0:
        low = 1 if method == "asgld" else 0
        drawn += panel.plot([ridge, ridge], [low, panel.get_ylim()[1]], **style)
    panel.legend(handles=drawn[:1], loc="lower right", frameon=False)


def _mark_outside(panel: Any, alpha: Any, beta: Any, kind: Any) -> None:
    """Gray and name what does not converge."""
    from matplotlib.colors import ListedColormap

    shades = {
        "grows": ("#f3d9d0", r"heats: $\beta < \alpha/2$", (1.2, 0.28)),
        "frozen": ("#d9d9d9", r"frozen: $\alpha > 2$", (2.15, 1.4)),
        "plateau": ("#e8e2c8", "constant floor", (1.2, 0.28)),
        "not covered": ("#ececec", "no statement", (1.2, 0.28)),
    }
    for name, (shade, text, (x, y)) in shades.items():
        where = kind == name
        if where.mean() > 0.01:
            panel.pcolormesh(
                alpha,
                beta,
                np.where(where, 1.0, np.nan),
                cmap=ListedColormap([shade]),
                rasterized=True,
            )
            turn = 90 if name == "frozen" else 0
            panel.text(x, y, text, rotation=turn, ha="center", va="center", fontsize=9)
