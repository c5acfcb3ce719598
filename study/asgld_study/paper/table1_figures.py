"""Figures F1 to F8 of `asgld table1`, that of its summary, and the figure of `asgld compare`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from asgld.theory import table1
from asgld_study import drawing as draw
from asgld_study.catalog import BY_LABEL
from asgld_study.cells import CellResult
from asgld_study.engine import Outcomes
from asgld_study.paper import table1_tables as numbers
from asgld_study.paper.table1 import predicted_slope
from asgld_study.paper.table1_tables import MeasuredCells, unit_of
from asgld_study.statistics import survival

_ORDER = tuple(BY_LABEL)


@draw.picture("f1-dimension", "table1", paper=True)
def dimension_figure(o: Outcomes) -> Any:
    """F1: escape from a strict saddle against dimension

    A straight line on these axes is a power of d; the dotted line is a logarithm with the slope
    that theory predicts at equal noise.

    Median steps to fall below the saddle against d, one line per method, one panel for each scaling
    of the noise and each rotation.
    """
    rows, slope = numbers.dimension_rows(MeasuredCells.of(o), "fall"), predicted_slope()
    rotations = [r for r in (True, False) if any(row["rotated"] is r for row in rows)]
    figure, axes = draw.panels(
        len(rotations), 2, 3.2 * len(rotations) + 0.9, sharex=True, sharey=True
    )
    cases = itertools.product(rotations, ("equal", "native"))
    for panel, (rotated, noise) in zip(axes.flat, cases, strict=True):
        for row in rows:
            if row["rotated"] is rotated and row["noise"] in (noise, "none"):
                dims = [int(k[2:]) for k in row if k.startswith("d=")]
                _line(panel, row["method"], dims, [row[f"d={d}"] for d in dims])
        low, high = panel.dataLim.intervalx
        d = np.geomspace(low, high, 50)
        law = 60.0 + slope * np.log(d)
        panel.plot(d, law, color=draw.INK, linestyle=":", label=f"60 + {slope:.1f} ln d")
        draw.log_log(panel, title=f"{noise} noise, {'rotated' if rotated else 'aligned'}")
    draw.plain(axes[0, 0].xaxis, sorted({int(k[2:]) for row in rows for k in row if k[:2] == "d="}))
    draw.outer(axes, "dimension d", "median steps to fall below the saddle")
    draw.legend(figure, axes, 6, fontsize=7)
    return figure


@draw.picture("f2-accuracy", "table1", paper=True)
def accuracy_figure(o: Outcomes) -> Any:
    """F2: cost against accuracy

    Slopes are exponents of 1/eps. Iterations are counted for cubic-newton and trace,
    gradient-equivalents for all others.

    Median cost against 1/eps, one line per method: left on the worst-case chain, right on a
    staircase of saddles.
    """
    found = MeasuredCells.of(o)
    figure, axes = draw.panels(1, 2, 4.4)
    sweeps = (("chain", "worst-case chain"), ("staircase", "staircase of saddles"))
    for panel, (sweep, title) in zip(axes[0], sweeps, strict=True):
        for label in _ORDER:
            results = sorted(found.select(sweep, label=label), key=lambda r: -r.tags["eps"])
            x = [1.0 / r.tags["eps"] for r in results]
            _line(panel, label, x, [r.median("sosp", unit_of(label)) for r in results])
        draw.log_log(panel, title=title)
        draw.plain(panel.xaxis, sorted({1.0 / r.tags["eps"] for r in found.select(sweep)}))
    draw.outer(axes, "1/eps", "median cost")
    draw.legend(figure, axes, 6, fontsize=7)
    return figure


@draw.picture("f3-curvature", "table1", paper=True)
def curvature_figure(o: Outcomes) -> Any:
    """F3: escape against the curvature of the saddle

    The dotted line falls like 1/gamma.

    Median steps to fall below the saddle against gamma, one line per method.
    """
    figure, panel = draw.one_panel(4.2)
    gammas: list[float] = []
    for row in numbers.curvature_rows(MeasuredCells.of(o)):
        gammas = [float(k[6:]) for k in row if k.startswith("gamma=")]
        _line(panel, row["method"], gammas, [row[f"gamma={g}"] for g in gammas])
    law = [50.0 / g for g in gammas]
    panel.plot(gammas, law, color=draw.INK, linestyle=":", label="50/gamma")
    draw.log_log(panel, xlabel="gamma", ylabel="median steps to fall")
    draw.plain(panel.xaxis, gammas)
    panel.legend()
    return figure


@draw.picture("f4-late-saddles", "table1", paper=True)
def late_figure(o: Outcomes) -> Any:
    """F4: late saddles

    The published escape time has no k0: its lines would be flat.

    Median steps to leave against the step k0 at which the saddle is met, one line per alpha.
    """
    figure, panel = draw.one_panel(4.2)
    for i, row in enumerate(numbers.late_rows(MeasuredCells.of(o))):
        k0s = [int(k[3:]) for k in row if k.startswith("k0=")]
        words = f"alpha = {row['alpha']:g}: k0^{row['exponent']:.2f}, law k0^{row['law']:g}"
        draw.plot(panel, i, [max(k, 10) for k in k0s], [row[f"k0={k}"] for k in k0s], words)
    draw.log_log(panel, xlabel="step k0 at which the saddle is met (0 at left)",
            ylabel="median steps to leave")  # fmt: skip
    panel.legend()
    return figure


@draw.picture("f5-survival", "table1", paper=True)
def survival_figure(o: Outcomes) -> Any:
    """F5: survival at the saddle

    All lines of a panel are of one dimension, the largest up to 256.

    Share of replicas that have not fallen below the saddle against steps, one line per method, for
    both scalings of the noise.
    """
    found = MeasuredCells.of(o)
    sizes = {r.cell["problem_options"]["dim"] for r in found.select("dimension")}
    dim = max(d for d in sizes if d <= 256)
    figure, axes = draw.panels(1, 2, 4.2, sharey=True)
    for panel, noise in zip(axes[0], ("equal", "native"), strict=True):
        for result in found.select("dimension", noise=noise):
            options = result.cell["problem_options"]
            if options["dim"] == dim and options["rotated"]:
                _survival(panel, result, "fall", "steps")
        panel.set(xscale="log", title=f"{noise} noise, d = {dim}")
    draw.outer(axes, "steps k", "share that has not fallen")
    draw.legend(figure, axes, 6, fontsize=7)
    return figure


@draw.picture("f6-paths", "table1", paper=True)
def path_figure(o: Outcomes) -> Any:
    """F6: value against cost, tuned methods

    Lines are medians, bands reach from the first to the third quartile of the replicas.

    f above the lowest value seen against gradient-equivalents, one line per method, one panel per
    problem.
    """
    families = numbers.tuned_families(MeasuredCells.of(o))
    columns = min(3, len(families))
    rows = -(-len(families) // columns)
    figure, axes = draw.panels(rows, columns, 2.5 * rows + 0.9, len(families))
    for panel, (family, results) in zip(axes.flat, families.items(), strict=False):
        _paths(panel, results)
        panel.set_title(family)
    draw.outer(axes, "gradient-equivalents", "f above the lowest")
    draw.legend(figure, axes, 6, fontsize=7)
    return figure


@draw.picture("f7-profiles", "table1", paper=True)
def profile_figure(o: Outcomes) -> Any:
    """F7: performance profiles

    The cost is the median to a second-order point; the best method is the cheapest of the panel.

    Share of the problems on which a method costs at most tau times the best one, against tau, for
    all methods and for each class of oracles.
    """
    rows = numbers.realistic_rows(MeasuredCells.of(o))
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    figure, axes = draw.panels(2, 3, 5.6, 5, sharey=True)
    taus = np.geomspace(1, 1e3, 200)
    oracles = ("all", "stochastic", "gradient", "hvp", "hessian")
    for panel, oracle in zip(axes.flat, oracles, strict=False):
        chosen = [r for r in rows if oracle in ("all", r["oracle"])]
        best = {
            name: min((r["cost"] for r in chosen if r["problem"] == name), default=math.inf)
            for name in problems
        }
        ratios: dict[str, list[float]] = {}
        for r in chosen:
            is_there = math.isfinite(r["cost"]) and best[r["problem"]] > 0
            ratio = r["cost"] / best[r["problem"]] if is_there else math.inf
            ratios.setdefault(r["method"], []).append(ratio)
        for label, found in ratios.items():
            shares = (np.array(found)[:, None] <= taus).mean(axis=0)
            _draw(panel, label, taus, shares, markevery=40)
        panel.set(xscale="log", title=oracle)
    draw.outer(axes, "tau", f"share of {len(problems)} problems")
    draw.legend(figure, axes, 6, fontsize=7)
    return figure


@draw.picture("f8-exponents", "table1", paper=True)
def exponent_figure(o: Outcomes) -> Any:
    """F8: exponents of the step and of the noise

    Fields without a number have beta < alpha/2, where the noise heats instead of annealing.

    Two maps over alpha and beta: median steps to leave the saddle, and the median gradient norm at
    the end.
    """
    found = MeasuredCells.of(o).select("exponents")
    alphas, betas = (sorted({r.tags[name] for r in found}) for name in ("alpha", "beta"))
    steps = max(r.cell["max_steps"] for r in found)
    maps: dict[str, Callable[[CellResult], float]] = {
        "median steps to leave the saddle": lambda r: r.median("leave"),
        f"median |grad f| after {steps} steps": lambda r: float(
            np.median(r.ends["final_grad_norm"])
        ),
    }
    figure, axes = draw.panels(1, 2, 3.4)
    for panel, (title, number) in zip(axes[0], maps.items(), strict=True):
        grid = np.full((len(betas), len(alphas)), np.nan)
        for r in found:
            grid[betas.index(r.tags["beta"]), alphas.index(r.tags["alpha"])] = number(r)
        shown = np.log10(np.where(np.isfinite(grid), grid, np.nan))
        panel.imshow(shown, origin="lower", cmap="viridis", aspect="auto")
        for i, j in np.argwhere(~np.isnan(grid)):
            words = "never" if np.isinf(grid[i, j]) else f"{grid[i, j]:.3g}"
            panel.text(j, i, words, ha="center", va="center",
                       bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0})  # fmt: skip
        panel.set_xticks(range(len(alphas)), [f"{a:g}" for a in alphas])
        panel.set_yticks(range(len(betas)), [f"{b:g}" for b in betas])
        panel.set(xlabel="alpha", ylabel="beta", title=title)
        panel.grid(visible=False)
    return figure


def rows_picture(rows: numbers.TableRows) -> draw.Picture:
    """The figure of the summary: bounds and exponents, and costs, of the judged Table 1."""

    def drawn(_: Outcomes) -> Any:
        # Narrow, with one panel below the other, so that a phone shows the words.
        figure, axes = draw.panels(2, 1, 1.0)
        figure.set_size_inches(4.4, 0.38 * len(rows) + 1.4)
        height = np.arange(len(rows))[::-1]
        bounds, costs = axes[:, 0]
        printed = [row.eps_power for row in table1()]
        bounds.scatter(printed, height, marker="|", s=150, color=draw.INK, label="printed bound")
        for i, sweep in enumerate(("staircase", "chain")):
            found = [exponent_of(row[sweep]) for row in rows]
            bounds.plot(found, height, linestyle="none", **draw.series(i), label=sweep)
        for panel in (bounds, costs):
            panel.set_yticks(height, [f"{row['row']}  {row['method']}" for row in rows])
        bounds.set_xlabel("exponent of 1/eps in the cost")
        for i, place in enumerate(("saddle", "octopus"), start=2):
            spent = [row[place] if math.isfinite(row[place]) else math.nan for row in rows]
            costs.plot(spent, height, linestyle="none", **draw.series(i), label=place)
        costs.set(xscale="log", xlabel="gradient-equivalents to arrive")
        draw.legend(figure, axes, 3)
        return figure

    return draw.Picture(
        "rows", "table1", "Table 1, printed and measured",
        "A point to the right of its bar would violate the bound. A missing cost: never arrived.",
        "Exponents and costs, a line per row.",
        drawn, paper=True,
    )  # fmt: skip


def exponent_of(shown: str) -> float:
    """The exponent in a cell of the judged Table 1, without its interval; NaN for words.

    >>> exponent_of("1.67 [1.66, 1.67]"), exponent_of("not run")
    (1.67, nan)
    """
    try:
        return float(shown.split()[0])
    except ValueError:
        return math.nan


def compare_picture(results: Sequence[CellResult], title: str) -> draw.Picture:
    """The figure of `asgld compare`: value against cost, and which replicas have not arrived."""

    def drawn(_: Outcomes) -> Any:
        figure, axes = draw.panels(1, 2, 4.0)
        _paths(axes[0, 0], results)
        axes[0, 0].set_ylabel("f above the lowest value seen")
        for result in results:
            if not result.error:
                _survival(axes[0, 1], result, "sosp", "spent")
        axes[0, 1].set(xscale="log", ylabel="share not yet at a second-order point")
        for panel in axes.flat:
            panel.set_xlabel("gradient-equivalents")
        draw.legend(figure, axes, 6, fontsize=7)
        figure.suptitle(title)
        return figure

    return draw.Picture("compare", "compare", title, "", "", drawn, paper=True)


# ------------------------------------------------------------------------------------ parts


def _draw(panel: Any, label: str, x: Any, y: Any, **rest: Any) -> None:
    """The line of a method, with the color and the marker that it has in all figures."""
    panel.plot(x, y, **draw.series(_ORDER.index(label)), linewidth=1.1, label=label, **rest)


def _line(panel: Any, label: str, x: Sequence[float], y: Sequence[float]) -> None:
    """Medians; an infinite one is not drawn, and a nan neither."""
    kept = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(b) and b > 0]
    if kept:
        _draw(panel, label, *zip(*kept, strict=True))


def _survival(panel: Any, result: CellResult, event: str, unit: str) -> None:
    falls, alive = survival(*result.times(event, unit))
    ends = [t for t in result.ends.get(unit, []) if t > 0]
    x = [0.5, *falls, max([*falls.tolist(), *ends, 1.0])]
    y = [1.0, *alive, alive[-1] if len(alive) else 1.0]
    _draw(panel, result.label, x, y, drawstyle="steps-post", markevery=(0.1, 0.3))


def _paths(panel: Any, results: Sequence[CellResult]) -> None:
    results = [r for r in results if not r.error]
    finite = [v for r in results for v in r.ends["final_value"] if math.isfinite(v)]
    lowest = min(finite, default=0.0)
    for result in results:
        x = np.maximum(result.path["spent"], 0.5)
        low, middle, high = (
            np.maximum(np.array(result.path[q]) - lowest, 1e-6) for q in ("q25", "q50", "q75")
        )
        _draw(panel, result.label, x, middle, markevery=(0.2, 0.3))
        color = draw.series(_ORDER.index(result.label))["color"]
        panel.fill_between(x, low, high, color=color, alpha=0.12, linewidth=0)
    # A replica that runs off is not worth the axis.
    top = 30.0 * max((r.path["q50"][0] - lowest for r in results), default=1.0)
    draw.log_log(panel, ylim=(5e-7, top))
