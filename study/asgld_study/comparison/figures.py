"""Figures of the comparison: F1 to F8. Each function returns a matplotlib Figure.

Needs the extra `plot`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from asgld_study.comparison import analysis
from asgld_study.experiments.table1 import Study
from asgld_study.sweep.catalog import BY_LABEL
from asgld_study.sweep.engine import Result
from asgld_study.sweep.survival import survival

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette first, then darker mates; markers tell apart what colors cannot.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444", "#7a5c00",
           "#5b2a86", "#8a3b1c")  # fmt: skip
_MARKERS = "osD^vP*X<>hd"
_ORDER = tuple(BY_LABEL)
_ORACLES = ("stochastic", "gradient", "hvp", "hessian")


def dimension_figure(study: Study) -> Figure:
    """F1: escape time against d, one panel for each scaling of the noise and rotation."""
    rows = analysis.dimension_rows(study)
    rotations = [r for r in (True, False) if any(row["rotated"] is r for row in rows)]
    height = 4.2 * len(rotations)
    figure, axes = _subplots(len(rotations), 2, (12, height), sharex=True, sharey=True)
    for i, rotated in enumerate(rotations):
        for j, noise in enumerate(("equal", "native")):
            panel = axes[i, j]
            shown = [
                row for row in rows if row["rotated"] is rotated and row["noise"] in (noise, "none")
            ]
            for row in shown:
                dims = [int(k[2:]) for k in row if k.startswith("d=")]
                _line(panel, row["method"], dims, [row[f"d={d}"] for d in dims])
            panel.set_title(f"{noise} noise, {'rotated' if rotated else 'aligned'}", fontsize=10)
            panel.set_xscale("log", base=4)
            panel.set_yscale("log")
            _reference(panel, shown, analysis.predicted_slope())
    for panel in axes[-1]:
        panel.set_xlabel("dimension d")
    for panel in axes[:, 0]:
        panel.set_ylabel("median steps to fall below the saddle")
    _legend(figure, axes.flat)
    figure.suptitle("F1  Escape from a strict saddle against dimension")
    return figure


def accuracy_figure(study: Study) -> Figure:
    """F2: cost against 1/eps on the worst-case chain and on the eps-coupled octopus."""
    figure, axes = _subplots(1, 2, (12, 5.2))
    for panel, (sweep, title) in zip(
        axes[0],
        (("chain", "worst-case chain"), ("octopus eps", "octopus, curvature tied to eps")),
        strict=True,
    ):
        for label in _ORDER:
            found = sorted(study.select(sweep, label=label), key=lambda r: -r.cell["tags"]["eps"])
            x = [1.0 / r.cell["tags"]["eps"] for r in found]
            unit = analysis.unit_of(label)
            _line(panel, label, x, [r.median("sosp", unit) for r in found])
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("1/eps")
    axes[0, 0].set_ylabel("median gradient-equivalents\n(iterations for cubic-newton, trace)")
    _legend(figure, axes.flat)
    figure.suptitle("F2  Cost against accuracy")
    return figure


def curvature_figure(study: Study) -> Figure:
    """F3: escape time against gamma."""
    figure, axes = _subplots(1, 1, (6.6, 4.6))
    panel = axes[0, 0]
    for row in analysis.curvature_rows(study):
        gammas = [float(k[6:]) for k in row if k.startswith("gamma=")]
        _line(panel, row["method"], gammas, [row[f"gamma={g}"] for g in gammas])
    low, high = panel.get_xlim()
    panel.set(xscale="log", yscale="log", xlabel="gamma", ylabel="median steps to fall")
    line = np.geomspace(max(low, 0.05), max(high, 0.1), 20)
    panel.plot(line, 10.0 / line, color="black", linewidth=0.8, linestyle=":", label="1/gamma")
    panel.legend(fontsize=8, frameon=False)
    panel.set_title("F3  Escape against the curvature of the saddle")
    return figure


def late_figure(study: Study) -> Figure:
    """F4: escape time against the step k0 at which the saddle is met."""
    figure, axes = _subplots(1, 1, (6.6, 4.6))
    panel = axes[0, 0]
    for i, row in enumerate(analysis.late_rows(study)):
        k0s = [int(k[3:]) for k in row if k.startswith("k0=")]
        times = [row[f"k0={k}"] for k in k0s]
        label = f"alpha = {row['alpha']:g}: k0^{row['exponent']:.2f}, law k0^{row['law']:g}"
        panel.plot([max(k, 10) for k in k0s], times, "o-", color=_COLORS[i], label=label)
    panel.set(xscale="log", yscale="log", xlabel="step k0 at which the saddle is met (0 at left)",
              ylabel="median steps to leave")  # fmt: skip
    panel.legend(fontsize=8, frameon=False)
    panel.set_title("F4  Late saddles: the published escape time has no k0")
    return figure


def survival_figure(study: Study) -> Figure:
    """F5: which part of the replicas is still at the saddle after k steps."""
    dims = sorted({r.cell["problem_options"]["dim"] for r in study.select("dimension")})
    dim = max(d for d in dims if d <= 256)
    figure, axes = _subplots(1, 2, (12, 4.8), sharey=True)
    for panel, noise in zip(axes[0], ("equal", "native"), strict=True):
        for result in study.select("dimension", noise=noise):
            options = result.cell["problem_options"]
            if options["dim"] == dim and options["rotated"] and not result.error:
                _survival(panel, result, "fall")
        panel.set(xscale="log", xlabel="steps k", title=f"{noise} noise, d = {dim}")
    axes[0, 0].set_ylabel("share that has not fallen below the saddle")
    _legend(figure, axes.flat)
    figure.suptitle("F5  Survival at the saddle")
    return figure


def path_figure(study: Study) -> Figure:
    """F6: f above its lowest against cost, median and quartiles, tuned methods."""
    families = dict.fromkeys(
        r.cell["tags"]["family"] for r in study.select("standard", mode="practical")
    )
    columns = min(4, len(families))
    rows = -(-len(families) // columns)
    figure, axes = _subplots(rows, columns, (4.0 * columns, 3.4 * rows))
    for panel, family in zip(axes.flat, families, strict=False):
        found = study.select("standard", family=family, mode="practical")
        _paths(panel, [r for r in found if not r.error])
        panel.set_title(family, fontsize=10)
    for panel in axes.flat[len(families) :]:
        panel.set_axis_off()
    for panel in axes[:, 0]:
        panel.set_ylabel("f above the lowest value seen")
    _legend(figure, axes.flat)
    figure.suptitle("F6  Value against cost in gradient-equivalents, tuned methods")
    return figure


def profile_figure(study: Study) -> Figure:
    """F7: on which share of the problems a method costs at most tau times the best one."""
    rows = analysis.realistic_rows(study)
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    figure, axes = _subplots(1, 1 + len(_ORACLES), (17, 4.6), sharey=True)
    taus = np.geomspace(1, 1e3, 200)
    for panel, oracle in zip(axes[0], ("pooled", *_ORACLES), strict=True):
        chosen = [r for r in rows if oracle in ("pooled", r["oracle"])]
        best = {
            name: min((r["cost"] for r in chosen if r["problem"] == name), default=math.inf)
            for name in problems
        }
        for label in dict.fromkeys(r["method"] for r in chosen):
            ratios = np.array(
                [
                    r["cost"] / best[r["problem"]]
                    if math.isfinite(r["cost"]) and best[r["problem"]] > 0
                    else math.inf
                    for r in chosen
                    if r["method"] == label
                ]
            )
            shares = (ratios[:, None] <= taus).mean(axis=0)
            color, marker = _style(label)
            panel.plot(taus, shares, color=color, marker=marker, markevery=40, markersize=4,
                       linewidth=1.1, label=label)  # fmt: skip
        panel.set(xscale="log", xlabel="tau", title=oracle)
    axes[0, 0].set_ylabel(f"share of {len(problems)} problems within tau of the best")
    _legend(figure, axes.flat)
    figure.suptitle("F7  Performance profiles, median cost to a second-order point")
    return figure


def exponent_figure(study: Study) -> Figure:
    """F8: escape time and final gradient over (alpha, beta)."""
    found = study.select("exponents")
    alphas = sorted({r.cell["tags"]["alpha"] for r in found})
    betas = sorted({r.cell["tags"]["beta"] for r in found})
    steps = max(r.cell["max_steps"] for r in found)
    figure, axes = _subplots(1, 2, (11, 4.6))
    measures: tuple[tuple[str, Callable[[Result], float]], ...] = (
        ("median steps to leave the saddle", lambda r: r.median("leave")),
        (
            f"median |grad f| after {steps} steps",
            lambda r: float(np.median(r.ends["final_grad_norm"])),
        ),
    )
    for panel, (title, measure) in zip(axes[0], measures, strict=True):
        grid = np.full((len(betas), len(alphas)), np.nan)
        for r in found:
            i, j = betas.index(r.cell["tags"]["beta"]), alphas.index(r.cell["tags"]["alpha"])
            grid[i, j] = measure(r)
        shown = np.where(np.isfinite(grid), grid, np.nan)
        image = panel.imshow(np.log10(shown), origin="lower", cmap="viridis", aspect="auto")
        for i, j in np.ndindex(grid.shape):
            if not np.isnan(grid[i, j]):
                text = "never" if np.isinf(grid[i, j]) else f"{grid[i, j]:.3g}"
                panel.text(j, i, text, ha="center", va="center", fontsize=9,
                           bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0})  # fmt: skip
        panel.set_xticks(range(len(alphas)), [f"{a:g}" for a in alphas])
        panel.set_yticks(range(len(betas)), [f"{b:g}" for b in betas])
        panel.set(xlabel="alpha", ylabel="beta", title=title)
        figure.colorbar(image, ax=panel, label="log10")
    figure.suptitle("F8  Exponents of the step and of the noise (empty: beta < alpha/2, heats)")
    return figure


def all_figures(study: Study) -> dict[str, Figure]:
    """F1 to F8 by file name."""
    return {
        "f1-dimension": dimension_figure(study),
        "f2-accuracy": accuracy_figure(study),
        "f3-curvature": curvature_figure(study),
        "f4-late-saddles": late_figure(study),
        "f5-survival": survival_figure(study),
        "f6-paths": path_figure(study),
        "f7-profiles": profile_figure(study),
        "f8-exponents": exponent_figure(study),
    }


def compare_figure(results: Sequence[Result], title: str) -> Figure:
    """What `asgld compare` shows: value against cost, and who has not arrived yet."""
    figure, axes = _subplots(1, 2, (11, 4.4))
    _paths(axes[0, 0], results)
    axes[0, 0].set_ylabel("f above the lowest value seen")
    for result in results:
        _survival(axes[0, 1], result, "sosp", "spent")
    axes[0, 1].set(xscale="log", xlabel="gradient-equivalents",
                   ylabel="share not yet at a second-order point")  # fmt: skip
    _legend(figure, axes.flat)
    figure.suptitle(title)
    return figure


# ------------------------------------------------------------------------------------ parts


def _subplots(
    rows: int, columns: int, size: tuple[float, float], **shared: Any
) -> tuple[Figure, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install 'asgld[plot]'") from error
    # Figure, not pyplot: nothing global, no window, safe in threads.
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    for panel in axes.flat:
        panel.grid(alpha=0.25, linewidth=0.5)
    return figure, axes


def _style(label: str) -> tuple[str, str]:
    i = _ORDER.index(label)
    return _COLORS[i % len(_COLORS)], _MARKERS[i % len(_MARKERS)]


def _line(panel: Any, label: str, x: Sequence[float], y: Sequence[float]) -> None:
    """Medians; an infinite one is not drawn, and a nan neither."""
    kept = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(b) and b > 0]
    if kept:
        color, marker = _style(label)
        panel.plot(*zip(*kept, strict=True), color=color, marker=marker, markersize=5,
                   linewidth=1.2, label=label)  # fmt: skip


def _survival(panel: Any, result: Result, event: str, unit: str = "steps") -> None:
    falls, alive = survival(*result.times(event, unit))
    ends = [t for t in result.ends.get(unit, []) if t > 0]
    last = max([*falls.tolist(), *ends, 1.0])
    color, marker = _style(result.label)
    panel.step([0.5, *falls, last], [1.0, *alive, alive[-1] if len(alive) else 1.0], where="post",
               color=color, marker=marker, markersize=4, markevery=(0.1, 0.3), linewidth=1.2,
               label=result.label)  # fmt: skip


def _paths(panel: Any, results: Sequence[Result]) -> None:
    lowest = min(
        (v for r in results for v in r.ends["final_value"] if math.isfinite(v)), default=0.0
    )
    for result in results:
        path, (color, marker) = result.path, _style(result.label)
        x = np.maximum(path["spent"], 0.5)
        low, middle, high = (np.maximum(np.array(path[q]) - lowest, 1e-6)
                             for q in ("q25", "q50", "q75"))  # fmt: skip
        panel.plot(x, middle, color=color, marker=marker, markersize=4, markevery=(0.2, 0.3),
                   linewidth=1.1, label=result.label)  # fmt: skip
        panel.fill_between(x, low, high, color=color, alpha=0.12, linewidth=0)
    # A replica that runs off is not worth the axis.
    top = 30.0 * max((r.path["q50"][0] - lowest for r in results), default=1.0)
    panel.set(xscale="log", yscale="log", xlabel="gradient-equivalents", ylim=(5e-7, top))


def _reference(panel: Any, rows: Sequence[analysis.Row], slope: float) -> None:
    dims = [int(k[2:]) for row in rows for k in row if k.startswith("d=")]
    if not dims:
        return
    d = np.geomspace(min(dims), max(dims), 50)
    panel.plot(d, 60.0 + slope * np.log(d), color="black", linewidth=0.8, linestyle=":",
               label=f"60 + {slope:.1f} ln d")  # fmt: skip


def _legend(figure: Any, panels: Any) -> None:
    """One legend for all panels, each label once, in the order of the table."""
    handles: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    labels = sorted(handles, key=lambda name: _ORDER.index(name) if name in _ORDER else 99)
    figure.legend([handles[name] for name in labels], labels, loc="outside right upper", fontsize=8,
                  frameon=False)  # fmt: skip
