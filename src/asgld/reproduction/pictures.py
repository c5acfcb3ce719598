"""Figures of the report: each is made from the outcomes alone.

Text and axes are drawn in `INK`, which the page replaces by the color of its text, so that a figure
is readable in light and dark. Colors are Okabe and Ito's, told apart by readers with any color
vision, and every color comes with a marker or a line style of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asgld import figures as theory_figures
from asgld.experiments import minima
from asgld.experiments.accumulator import POWERS
from asgld.experiments.paper import HIT
from asgld.figures import COLORS
from asgld.report import as_bytes
from asgld.reproduction.checks import CONVERGED
from asgld.reproduction.rows import table_rows
from asgld.reproduction.runner import Outcomes
from asgld.reproduction.statistics import median

INK = "#1a1c23"
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "asgld",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(
        (
            "text.color",
            "axes.edgecolor",
            "axes.labelcolor",
            "xtick.color",
            "ytick.color",
            "axes.titlecolor",
        ),
        INK,
    ),
}
_GRID = {"color": "#8a8f9c", "alpha": 0.35, "linewidth": 0.5}


@dataclass(frozen=True)
class Picture:
    """A figure of an experiment.

    Args:
        name: of its files.
        experiment: whose outcome it shows.
        title: its heading.
        caption: what to look at.
        alt: what is drawn, for those who do not see it.
        draw: outcomes -> matplotlib Figure.
        paper: whether it needs a white background in dark pages too.
    """

    name: str
    experiment: str
    title: str
    caption: str
    alt: str
    draw: Callable[[Outcomes], Any]
    paper: bool = False

    def render(self, outcomes: Outcomes) -> dict[str, bytes]:
        """The figure as SVG and as PDF; equal outcomes give equal bytes."""
        try:
            import matplotlib as mpl
        except ImportError as error:
            raise ImportError("figures need matplotlib: pip install 'asgld[plot]'") from error
        with mpl.rc_context(_STYLE):
            figure = self.draw(outcomes)
            if not self.paper:
                for part in (figure, *figure.axes):
                    part.patch.set_alpha(0.0)
            drawn = {"svg": as_bytes(figure, "svg")}
            figure.set_layout_engine("none")  # it is laid out now, and that took most of the time
            return {**drawn, "pdf": as_bytes(figure, "pdf")}


def _panels(rows: int, columns: int, height: float, **shared: Any) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    for panel in axes.flat:
        panel.grid(**_GRID)
        panel.set_axisbelow(True)
    return figure, axes


def _series(i: int) -> dict[str, Any]:
    return {"color": COLORS[i % len(COLORS)], "marker": _MARKERS[i % len(_MARKERS)]}


def _clipped(values: Any, low: float = 1e-5, high: float = 1e6) -> Any:
    return np.clip(np.nan_to_num(np.asarray(values, dtype=np.float64), nan=high), low, high)


def _plain(axis: Any, at: Sequence[float] | None = None) -> None:
    """Plain numbers on a logarithmic axis: where given, or at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(FixedLocator(list(at)) if at else LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_locator(NullLocator())


def _legend(figure: Any, panel: Any, columns: int = 4) -> None:
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=columns)


# ------------------------------------------------------------------------------------ the study


def _study_paths(o: Outcomes) -> Any:
    values = o["study"].values
    rows = -(-len(values) // 3)
    figure, axes = _panels(rows, 3, 1.75 * rows + 0.4, sharex=True, sharey=True)
    for panel, value in zip(axes.flat, values, strict=False):
        steps, bands = np.array(value["steps"][1:]), value["bands"]["errors"]
        low, middle, high = (_clipped(bands[q][1:]) for q in ("q10", "median", "q90"))
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
    _legend(figure, axes[0, 0])
    return figure


def _study_ends(o: Outcomes) -> Any:
    values = o["study"].values
    figure, axes = _panels(1, 2, 0.24 * len(values) + 1.1, sharey=True)
    height = np.arange(len(values))[::-1]
    for i, (key, words) in enumerate((("final", "truth"), ("final_mle", "maximum likelihood"))):
        ends = _clipped([np.quantile(v[key], [0.1, 0.5, 0.9]) for v in values])
        axes[0, 0].hlines(
            height + 0.15 - 0.3 * i, ends[:, 0], ends[:, 2], color=COLORS[i], linewidth=1.2
        )
        axes[0, 0].plot(
            ends[:, 1],
            height + 0.15 - 0.3 * i,
            linestyle="none",
            **_series(i),
            label=f"to the {words}",
        )
    axes[0, 0].set(xscale="log", xlabel="squared error at the end, q10 to q90")
    axes[0, 0].set_yticks(height, [f"{v['number']}  {v['label']}" for v in values])
    _never_scatter(axes[0, 1], [v["hits"] for v in values], height, values[0]["steps"][-1])
    axes[0, 1].set_xlabel(f"first iteration with error < {HIT}")
    _legend(figure, axes[0, 0])
    return figure


def _never_scatter(panel: Any, times: Sequence[Sequence[float]], height: Any, limit: float) -> None:
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


def _settings(o: Outcomes) -> Any:
    values = o["settings"].values
    labels = list(dict.fromkeys(v["label"] for v in values))
    figure, axes = _panels(2, 4, 3.9, sharex=True, sharey=True)
    for panel, label in zip(axes.flat, labels, strict=False):
        mine = [v for v in values if v["label"] == label]
        lrs = sorted({v["lr"] for v in mine})
        for i, sigma in enumerate(sorted({v.get("sigma", 0.0) for v in mine})):
            row = [
                next(v for v in mine if v["lr"] == lr and v.get("sigma", 0.0) == sigma)
                for lr in lrs
            ]
            shares = [float(np.mean(v["tail_shares"])) for v in row]
            panel.plot(lrs, shares, **_series(i), label=rf"$\sigma = {sigma:g}$")
        panel.axhline(CONVERGED, color=INK, linestyle=":", linewidth=0.9)
        panel.set(xscale="log", ylim=(-0.05, 1.05))
        panel.set_title(label, fontsize=7.5)
        _plain(panel.xaxis, lrs)
    for panel in axes.flat[len(labels) :]:
        panel.set_axis_off()
    for panel in axes[-1]:
        panel.set_xlabel("lr")
    for panel in axes[:, 0]:
        panel.set_ylabel("time near the truth")
    _legend(figure, axes[0, 0])
    return figure


def _spaces(o: Outcomes) -> Any:
    numbers = [v["number"] for v in o["spaces"].select(space="project")]
    labels = [f"{v['number']}  {v['label']}" for v in o["spaces"].select(space="project")]
    figure, axes = _panels(1, 1, 0.24 * len(numbers) + 1.1)
    panel, height = axes[0, 0], np.arange(len(numbers))[::-1]
    groups = [("project", "x, projected"), ("reflect", "x, reflected")]
    for i, (space, words) in enumerate(groups):
        finals = [o["spaces"].one(space=space, number=n)["final"] for n in numbers]
        ends = _clipped([np.quantile(f, [0.1, 0.5, 0.9]) for f in finals], high=1e9)
        panel.hlines(height + 0.15 - 0.3 * i, ends[:, 0], ends[:, 2], color=COLORS[i])
        panel.plot(ends[:, 1], height + 0.15 - 0.3 * i, linestyle="none", **_series(i), label=words)
    panel.axvline(HIT, color=INK, linestyle=":", linewidth=0.9)
    panel.set(xscale="log", xlabel="squared error at the end, q10 to q90")
    panel.set_yticks(height, labels)
    _legend(figure, panel)
    return figure


def _starts(o: Outcomes) -> Any:
    values = o["starts"].values
    lrs = sorted({v["lr"] for v in values})
    figure, axes = _panels(1, len(lrs), 3.1, sharey=True)
    for panel, lr in zip(axes.flat, lrs, strict=True):
        for i, label in enumerate(dict.fromkeys(v["label"] for v in values)):
            mine = [v for v in values if v["label"] == label and v["lr"] == lr]
            panel.plot(
                [v["d_init"] for v in mine],
                _clipped([np.median(v["final"]) for v in mine], high=1e26),
                **_series(i),
                label=label,
            )
        panel.set(
            xscale="log", yscale="log", title=f"lr = {lr:g}", xlabel="D before the first step"
        )
    axes[0, 0].set_ylabel("median squared error at the end")
    _legend(figure, axes[0, 0], 3)
    return figure


def _lag(o: Outcomes) -> Any:
    labels = list(dict.fromkeys(v["label"] for v in o["lag"].values))
    figure, axes = _panels(1, 1, 2.3)
    panel, height = axes[0, 0], np.arange(len(labels))[::-1]
    for i, (lag, words) in enumerate((("ONE", "one step"), ("TWO", "two steps, as printed"))):
        ends = _clipped(
            [
                np.quantile(o["lag"].one(label=label, lag=lag)["final"], [0.1, 0.5, 0.9])
                for label in labels
            ]
        )
        panel.hlines(height + 0.12 - 0.24 * i, ends[:, 0], ends[:, 2], color=COLORS[i])
        panel.plot(
            ends[:, 1], height + 0.12 - 0.24 * i, linestyle="none", **_series(i), label=words
        )
    panel.set(xscale="log", xlabel="squared error at the end, q10 to q90")
    panel.set_yticks(height, labels)
    _legend(figure, panel)
    return figure


# ------------------------------------------------------------------------------------ convergence


def _features(o: Outcomes) -> Any:
    figure, axes = _panels(1, 2, 3.0, sharey=True)
    for panel, (zipf, title) in zip(
        axes.flat, ((True, "most features rare"), (False, "all equally frequent")), strict=True
    ):
        for i, label in enumerate(dict.fromkeys(v["label"] for v in o["features"].values)):
            mine = o["features"].select(label=label, zipf=zipf, seed=0)
            panel.plot(
                [v["lr"] for v in mine],
                [np.mean(v["final"]) for v in mine],
                **_series(i),
                label=label,
            )
        panel.set(xscale="log", ylim=(0.0, 1.0), title=title, xlabel="lr")
    axes[0, 0].set_ylabel("objective at the end")
    _legend(figure, axes[0, 0])
    return figure


def _accumulator(o: Outcomes) -> Any:
    figure, axes = _panels(1, 2, 3.0)
    for i, value in enumerate(o["accumulator"].values):
        label = f"{value['label']}, $\\delta$ = {value['delta']:g}"
        for panel, key, sign in ((axes[0, 0], "powers", -1), (axes[0, 1], "sums", 1)):
            panel.plot(
                POWERS,
                [sign * value[key][str(phi)]["value"] for phi in POWERS],
                linestyle="none",
                **_series(i),
                label=label,
            )
    phi = np.linspace(0.4, 2.1, 50)
    axes[0, 0].plot(phi, phi, color=INK, linewidth=0.9, label="Lemma")
    axes[0, 1].plot(phi, 1 - phi, color=INK, linewidth=0.9)
    axes[0, 1].plot(
        phi, np.maximum(1 - phi, 0), color=INK, linewidth=0.9, linestyle="--", label="corrected"
    )
    axes[0, 0].set(title="Lemma 1", xlabel=r"$\phi$", ylabel=r"exponent of $E\,D^{-\phi}$")
    axes[0, 1].set(title="Lemma 2", xlabel=r"$\phi$", ylabel=r"exponent of $\sum Tr\,D^{-\phi}$")
    _legend(figure, axes[0, 0], 3)
    return figure


def _terms(o: Outcomes) -> Any:
    labels = ("ASGLD (1, 1)", "AGLD (0, 1)", "ASG (1)")
    figure, axes = _panels(2, 3, 4.6, sharex=True, sharey="row")
    for column, label in enumerate(labels):
        for i, value in enumerate(o["terms"].select(label=label)):
            for row, version in enumerate(("published", "corrected")):
                bound = np.sum([value[version][name] for name in ("I1", "I2", "I3")], axis=0)
                axes[row, column].plot(
                    value["k"],
                    np.array(value["smallest"]) / bound,
                    color=COLORS[i],
                    linestyle=("-", "--", "-.", ":")[i],
                    label=f"d = {value['dim']}",
                )
        axes[0, column].set_title(label)
        axes[1, column].set_xlabel("k")
    for row, version in enumerate(("published", "corrected")):
        axes[row, 0].set_ylabel(f"measured / {version}")
        for panel in axes[row]:
            panel.axhline(1.0, color=INK, linewidth=1.0)
            panel.set(xscale="log", yscale="log")
    _legend(figure, axes[0, 0])
    return figure


def _plateau(o: Outcomes) -> Any:
    figure, axes = _panels(1, 1, 2.8)
    panel, values = axes[0, 0], o["plateau"].select(batch=1)
    dims = np.array([v["dim"] for v in values])
    panel.plot(
        dims,
        [v["late"]["value"] for v in values],
        **_series(0),
        linestyle="none",
        label="measured floor",
    )
    floor = values[0]["I2"] + values[0]["I3"]
    panel.plot(dims, np.full(len(dims), floor), color=INK, linestyle="--", label="I2 + I3")
    panel.plot(dims, dims * floor, color=COLORS[2], label="d (I2 + I3)")
    panel.set(xscale="log", yscale="log", xlabel="d", ylabel=r"$E|\nabla f|^2$ of the last half")
    _legend(figure, panel)
    return figure


def _exponents(o: Outcomes) -> Any:
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
    figure = theory_figures.measured_exponents(rows)
    figure.set_size_inches(7.4, 0.2 * len(rows) + 1.3)
    return figure


def _delta(o: Outcomes) -> Any:
    figure, axes = _panels(1, 2, 2.9, sharey=True)
    deltas = sorted({v["delta"] for v in o["delta"].values})
    for panel, delta in zip(axes.flat, deltas, strict=True):
        for i, value in enumerate(o["delta"].select(delta=delta)):
            name = f"({value['alpha']:g}, {value['beta']:g}): exponent {value['last']['value']:.2f}"
            panel.plot(
                value["path"]["k"],
                value["path"]["last"],
                color=COLORS[i],
                linestyle=("-", "--", "-.", ":")[i],
                label=name,
            )
        panel.set(xscale="log", yscale="log", xlabel="k", title=rf"$\delta$ = {delta:g}")
        panel.legend(loc="lower left")
    axes[0, 0].set_ylabel(r"$E|\nabla f(x_k)|^2$")
    return figure


def _region(o: Outcomes) -> Any:
    figure, axes = _panels(1, 1, 4.2)
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
    panel.plot([0, 2], [0, 1], color=INK, linewidth=1.4)
    panel.text(1.55, 0.71, r"$\beta = \alpha/2$", rotation=16, fontsize=8)
    panel.set(xlim=(-half, 2 + half), ylim=(-half, top), xlabel=r"$\alpha$", ylabel=r"$\beta$")
    panel.grid(False)
    return figure


# ------------------------------------------------------------------------------------ escape


def _dimension(o: Outcomes) -> Any:
    figure, axes = _panels(2, 3, 5.0, sharex=True)
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
                    **_series(i),
                    linestyle="--" if rotated else "-",
                    label=f"{words}, {'rotated' if rotated else 'aligned'}",
                )
                i += 1
        panel.set(xscale="log", yscale="log", title=f"{label}, {titles[sweep]}")
        _plain(panel.xaxis, [v["dim"] for v in mine][:: -(-len(mine) // 4)])
        _plain(panel.yaxis)
    axes[1, 2].set_axis_off()
    for panel in axes[:, 0]:
        panel.set_ylabel("median steps to escape")
    for panel in axes[1, :2]:
        panel.set_xlabel("d")
    axes[0, 2].xaxis.set_tick_params(labelbottom=True)
    axes[0, 2].set_xlabel("d")
    axes[1, 2].legend(*axes[0, 0].get_legend_handles_labels(), loc="center")
    return figure


def _escape(o: Outcomes) -> Any:
    figure, axes = _panels(2, 2, 5.2)
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
                **_series(i),
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


def _noise(o: Outcomes) -> Any:
    figure, axes = _panels(1, 1, 2.8)
    panel = axes[0, 0]
    for i, value in enumerate(o["noise"].values):
        steps = np.geomspace(1, value["limit"], 80)
        out = [(np.array(value["times"]) <= step).mean() for step in steps]
        panel.plot(
            steps,
            out,
            color=COLORS[i],
            linestyle=("-", "--", "-.", ":")[i],
            label=f"{value['label']}, gradient noise: {value['noise']}",
        )
    panel.set(xscale="log", xlabel="step", ylabel="share of chains that left", ylim=(-0.03, 1.03))
    _legend(figure, panel, 2)
    return figure


def _directions(o: Outcomes) -> Any:
    figure, axes = _panels(1, 2, 2.9, sharey=True)
    for panel, spread in zip(axes.flat, (1.0, 10.0), strict=True):
        i = 0
        for alpha in (0.0, 1.0):
            mine = o["directions"].select(alpha=alpha, spread=spread)
            for key, words in (("first", "first"), ("last", "last")):
                panel.plot(
                    [v["lr"] for v in mine],
                    [median(v[key])["value"] for v in mine],
                    **_series(i),
                    linestyle="-" if key == "last" else "--",
                    label=rf"$\alpha$ = {alpha:g}, {words} direction",
                )
                i += 1
        words = "equal curvatures" if spread == 1.0 else "curvatures over a factor of ten"
        panel.set(xscale="log", yscale="log", xlabel="lr", title=words)
        _plain(panel.xaxis, [v["lr"] for v in mine])
    axes[0, 0].set_ylabel("median steps to escape")
    _legend(figure, axes[0, 0])
    return figure


def _front(o: Outcomes) -> Any:
    figure, axes = _panels(1, 1, 3.6)
    panel = axes[0, 0]
    for i, alpha in enumerate(sorted({v["alpha"] for v in o["front"].values})):
        mine = o["front"].select(alpha=alpha)
        x = [median(v["distance"])["value"] for v in mine]
        y = [o["region"].one(alpha=alpha, beta=v["beta"])["final"]["value"] for v in mine]
        panel.plot(x, y, **_series(i), linewidth=0.8, label=rf"$\alpha$ = {alpha:g}")
        for v, a, b in zip(mine, x, y, strict=True):
            panel.annotate(
                f"{v['beta']:g}", (a, b), textcoords="offset points", xytext=(4, 4), fontsize=7
            )
    panel.set(
        xscale="log",
        yscale="log",
        xlabel="median steps to leave a saddle met at step 1000",
        ylabel=r"$E|\nabla f|^2$ at the end",
    )
    _legend(figure, panel)
    return figure


def _minima(o: Outcomes) -> Any:
    figure, axes = _panels(1, 3, 3.2, sharey=True)
    for i, label in enumerate(dict.fromkeys(v["label"] for v in o["minima"].values)):
        eps = minima.accuracies(label)
        value = o["minima"].one(label=label, dim=4, noise="fixed")
        axes[0, 0].plot(
            [1 / e for e in eps], [value["steps"][str(e)] for e in eps], **_series(i), label=label
        )
        key = str(minima.COMPARED[eps])
        for panel, noise in ((axes[0, 1], "fixed"), (axes[0, 2], "total")):
            mine = o["minima"].select(label=label, noise=noise)
            panel.plot([v["dim"] for v in mine], [v["steps"][key] for v in mine], **_series(i))
    for panel, title, name in zip(
        axes.flat,
        ("d = 4", "noise fixed per coordinate", "noise fixed in total"),
        ("1 / eps", "d", "d"),
        strict=True,
    ):
        panel.set(xscale="log", yscale="log", title=title, xlabel=name)
        _plain(panel.xaxis, [4, 8, 16, 32, 64] if name == "d" else [2, 4, 8, 16])
    axes[0, 0].set_ylabel("steps to a minimum")
    _legend(figure, axes[0, 0], 3)
    return figure


def _table1(o: Outcomes) -> Any:
    rows = table_rows(o)
    figure, axes = _panels(1, 2, 0.24 * len(rows) + 1.1)
    panel, height = axes[0, 0], np.arange(len(rows))[::-1]
    printed = [row.printed.eps_power for row in rows]
    panel.scatter(printed, height, marker="|", s=150, color=INK, label="printed bound")
    measured = [row.power["value"] if row.informative else math.nan for row in rows]
    panel.plot(measured, height, linestyle="none", **_series(0), label="measured on the chain")
    panel.set_yticks(height, [f"{i}  {row.method}" for i, row in enumerate(rows, start=1)])
    panel.set_xlabel("exponent of 1/eps in the cost")
    for i, row in enumerate(row for row in rows if row.times):
        dims = sorted(row.times)
        line = ("-", "--", ":")[i // len(COLORS)]
        axes[0, 1].plot(
            dims,
            [row.median_steps[dim] for dim in dims],
            linestyle=line,
            **_series(i),
            label=row.method,
        )
    axes[0, 1].set(xscale="log", yscale="log", xlabel="d", ylabel="median steps to leave a saddle")
    handles, names = (
        [x for part in pair for x in part]
        for pair in zip(*(p.get_legend_handles_labels() for p in axes.flat), strict=True)
    )
    figure.legend(handles, names, loc="outside lower center", ncols=5, fontsize=7)
    return figure


PICTURES = (
    Picture(
        "study-paths",
        "study",
        "Error of every configuration",
        "One panel per configuration, over data sets. A band that keeps falling converges; one "
        "that runs flat above the dashed line has reached its floor without finding the truth.",
        "Fifteen panels of squared error against iteration on logarithmic axes, each with a median "
        "line, a band from the tenth to the ninetieth percentile and a dashed line at 0.5.",
        _study_paths,
    ),
    Picture(
        "study-ends",
        "study",
        "Where each configuration ended, and when it first came near",
        "Left: the error against the truth and against the maximum-likelihood point of the same "
        "data; a method that reaches the second has nothing left to find. Right: the median first "
        "iteration near the truth.",
        "Two dot plots with one row per configuration: final squared errors with bars from the "
        "tenth to the ninetieth percentile, and median hitting times.",
        _study_ends,
    ),
    Picture(
        "settings",
        "settings",
        "The same with other step sizes and other noise",
        "The share of the last tenth of the run that is spent near the truth. A verdict that hangs "
        "on one setting shows as lines that cross the dotted line.",
        "Seven panels of the share of time near the truth against lr, one line per sigma.",
        _settings,
    ),
    Picture(
        "spaces",
        "spaces",
        "In x instead of log x",
        "Projected and reflected ends of the same configurations; compare with the logarithmic "
        "space above. Left of the dotted line is near the truth.",
        "A dot plot of final squared errors, one row per configuration, projected and reflected.",
        _spaces,
    ),
    Picture(
        "starts",
        "starts",
        "What a small start of D does",
        "The further left, the smaller D before the first step. Where a line climbs to the left, "
        "the first steps are too long to recover from.",
        "Two panels of median final error against the initial accumulator, one line per method.",
        _starts,
    ),
    Picture(
        "lag",
        "lag",
        "One step of lag or two",
        "Pairs of the same configuration: where they overlap, the indexing makes no difference.",
        "A dot plot of final squared errors, two rows per configuration, one for each lag.",
        _lag,
    ),
    Picture(
        "features",
        "features",
        "Rare features",
        "Lower is better. Compare the lowest point of each line, and how wide its valley is.",
        "Two panels of the final objective against lr, one line per method.",
        _features,
    ),
    Picture(
        "accumulator",
        "accumulator",
        "Powers of D and their sums",
        "Points on the solid line agree with the lemma. On the right, points above the solid line "
        "for phi > 1 show sums that do not vanish.",
        "Two panels of measured exponents against phi with the lemmas' lines.",
        _accumulator,
    ),
    Picture(
        "terms",
        "terms",
        "Theorem 1: measured over bound",
        "Above the line at 1 the bound is violated. Top: as published. Bottom: with the largest "
        "entry of D in place of the trace.",
        "Six panels of the ratio of the smallest expected squared gradient to the bound against k, "
        "one line per dimension.",
        _terms,
    ),
    Picture(
        "plateau",
        "plateau",
        "The floor of SGLD against dimension",
        "The published floor is the dashed line, which knows no d.",
        "Measured floor of SGLD against dimension with the published and the corrected formula.",
        _plateau,
    ),
    Picture(
        "exponents",
        "exponents",
        "Exponents, case by case",
        "A bound is violated where a measured point lies to the left of a published cross. Bars "
        "are 95 % intervals.",
        "A dot plot with one row per case: measured exponents with intervals beside published and "
        "corrected ones.",
        _exponents,
    ),
    Picture(
        "delta",
        "delta",
        "Full gradients with a tiny and with a real delta",
        "Same exponents, same noise; only delta differs, and with it the slope.",
        "Two panels of the squared gradient against k for four pairs of exponents.",
        _delta,
    ),
    Picture(
        "region",
        "region",
        "Where the gradient keeps falling",
        "Numbers are exponents over the last decade; green falls, gray stays, orange grows. The "
        "line is the border that Theorem 2 draws.",
        "A map over alpha and beta with a measured exponent in each cell and the line beta = "
        "alpha/2.",
        _region,
    ),
    Picture(
        "region-theory",
        "region",
        "The same map by theory, published and corrected",
        "Red marks exponents that no choice can have.",
        "Two maps of the exponent of the bound over alpha and beta, as published and corrected.",
        lambda o: theory_figures.region_map(resolution=120),
        paper=True,
    ),
    Picture(
        "dimension",
        "dimension",
        "Escape against dimension",
        "Straight and steep on these axes is a power of d; flat is free of d. Solid lines are "
        "saddles along an axis, dashed ones rotated.",
        "Five panels of median escape time against dimension, two criteria, aligned and rotated.",
        _dimension,
    ),
    Picture(
        "escape",
        "escape",
        "What the escape time depends on",
        "Points are measured, lines are predicted by the mean-field recursion; no parameter is "
        "fitted.",
        "Four panels of median escape time against curvature, time of meeting, alpha and beta.",
        _escape,
    ),
    Picture(
        "noise",
        "noise",
        "Escape by gradient noise",
        "A line that stays at zero belongs to chains that never leave.",
        "Share of chains that left the saddle against the step, for four kinds of noise.",
        _noise,
    ),
    Picture(
        "directions",
        "directions",
        "Eight escape directions at once",
        "Compare the lowest solid points of both values of alpha: the time until the last of eight "
        "directions has left, at the best step.",
        "Two panels of the time until the first and the last of eight directions have left.",
        _directions,
    ),
    Picture(
        "front",
        "front",
        "Escape time against final accuracy",
        "Down and left is better. Numbers beside points are beta.",
        "Scatter of final squared gradient against escape time, one line per alpha.",
        _front,
    ),
    Picture(
        "minima",
        "minima",
        "Steps to a minimum",
        "Slopes are exponents. With noise fixed per coordinate the steps grow with d; with the "
        "total fixed they need not.",
        "Three panels of steps against accuracy and against dimension, one line per method.",
        _minima,
    ),
    Picture(
        "table1",
        "table1",
        "Table 1: powers of 1/eps, and escape against d",
        "Left: a point to the right of its bar would violate the printed bound; one to the left is "
        "consistent with it and proves nothing. Right: methods whose line rises like a straight "
        "one on these axes pay a power of d for an escape.",
        "Left, printed and measured exponents, one row per method; right, median steps to leave a "
        "saddle against dimension, one line per method.",
        _table1,
    ),
)
