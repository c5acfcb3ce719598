"""The paper's simulation study: two variances of a Gaussian, twelve configurations and three more.

The paper gives neither step size nor noise nor start, and its figures are empty. All configurations
therefore run under one documented setting: the variable is z = log x, in which both curvatures at
the optimum are 1; lr = 0.1, which is 1 over the largest curvature at the start; d_init = 1, delta =
0.01, sigma = 0.1; start x = (1, 1). Each replica has its own data set of 10,000 draws. Batches are
drawn by index, with replacement; a batch of all samples is the full gradient.

    error = (x_1 - 0.1)^2 + (x_2 - 10)^2

A verdict should not hang on one choice of these, so the study also runs under other settings, in
other spaces, from other starts and with another lag.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asgld import reference
from asgld.problems import problem
from asgld.run.history import Record
from asgld.theory.plots import COLORS
from asgld_study import drawing as draw
from asgld_study.chains import Feed, View, follow
from asgld_study.engine import Outcomes, Size, Task, experiment, task
from asgld_study.judge import Checks, at_least, at_most, claim
from asgld_study.page import DataTable, Row, table
from asgld_study.statistics import earlier, mean, median, share

SETTING: dict[str, float] = {"lr": 0.1, "d_init": 1.0, "delta": 0.01}
SIGMA = 0.1
# A replica has hit the truth when its error is below this.
HIT = 0.5
# The part of the run at its end over which the share of time near the truth is taken.
TAIL = 0.1
# A chain has converged when it spends this share of the last tenth of the run near the truth.
CONVERGED = 0.9
# In x the curvature at the solution is 100, and lr = d_init^(alpha/2) / 100 makes every first step
# as long as that allows.
_X_D_INIT = 1e4
# How iterates are kept where they may be: in log x far beyond any variance, so that a run that goes
# off does not overflow; in x by a floor, or by the absolute value, of which 0 has no gradient.
_KEEPERS: dict[str, Callable[[Tensor], Tensor]] = {
    "log": lambda z: z.clamp_(-30.0, 30.0),
    "project": lambda x: x.clamp_(min=0.01),
    "reflect": lambda x: x.abs_().clamp_(min=1e-12),
}


# ------------------------------------------------------------------------------------ runs


@dataclass(frozen=True)
class Configuration:
    """One line of the paper's list: a method of the family and how it gets its gradients."""

    number: str  # in the paper's list
    label: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    batch: int | None = None  # B of B_k = min(n, floor(B + s k)); None stands for full gradients
    slope: float = 0.0  # s
    lr_decay: float = 0.0  # q, for the step size lr (1 + k)^-q

    @property
    def settings(self) -> dict[str, Any]:
        """All options, those of the study included."""
        noise = {} if self.method == "asg" else {"sigma": SIGMA}
        return {**SETTING, **noise, **self.options}

    @property
    def alpha(self) -> float:
        fallback = 0.0 if self.method in ("agld", "sgld") else 1.0
        return float(self.options.get("alpha", fallback))

    def batch_at(self, step: int, num_samples: int) -> int:
        if self.batch is None:
            return num_samples
        return min(math.floor(self.batch + self.slope * step), num_samples)

    def feed(self, num_samples: int, seed: int) -> Feed:
        """Means over indices drawn with replacement; a batch of all samples is the gradient."""
        generator = torch.Generator().manual_seed(seed)

        def feed(door: Any, x: Tensor, step: int) -> Tensor:
            size = self.batch_at(step, num_samples)
            if size == num_samples:
                full: Tensor = door.grad(x)
                return full
            indices = torch.randint(num_samples, (len(x), size), generator=generator)
            sampled: Tensor = door.sample_grad(x, indices)
            return sampled

        return feed


CONFIGURATIONS = (
    Configuration("1", "SGLD, B = 1", "sgld", batch=1),
    Configuration("2", "SGLD_B, B = 10", "sgld", batch=10),
    Configuration("3", "SGLD_A, B = 10, lr 1/(1+t)", "sgld", {"lr": 1.0}, batch=10, lr_decay=1.0),
    Configuration("4", "ASGLD (1, 1), B = 1", "asgld", batch=1),
    Configuration("5", "ASGLD_B (1, 1), B = 10", "asgld", batch=10),
    Configuration("6", "ASGLD_I (0, 1), B = k", "asgld", {"alpha": 0.0}, batch=1, slope=1.0),
    Configuration("7", "ASGLD2 (1, 2), B = 10", "asgld", {"beta": 2.0}, batch=10),
    Configuration("8", "ASGLD3 (1, 0.3), B = 10", "asgld", {"beta": 0.3}, batch=10),
    Configuration("9", "ASG (1), B = 1", "asg", batch=1),
    Configuration("10", "AGLD (0, 1)", "agld"),
    Configuration("11", "AGLD (0, 2)", "agld", {"beta": 2.0}),
    Configuration("12", "AGLD (0, 0.3)", "agld", {"beta": 0.3}),
    # The paper's list says 0.3 where its figure's caption says 0.5.
    Configuration("13", "AGLD (0, 0.5)", "agld", {"beta": 0.5}),
)
# Not in the paper: what its comparisons lack, the same batch and the same alpha.
CONTROLS = (
    Configuration("9b", "ASG (1), B = 10", "asg", batch=10),
    Configuration("10b", "AGLD (1, 1)", "agld", {"alpha": 1.0}),
)
BY_NUMBER = {c.number: c for c in (*CONFIGURATIONS, *CONTROLS)}


class _Watch:
    """The errors of a path of so many steps: at some steps, at the end, and the first hits."""

    def __init__(self, data: Any, steps: int) -> None:
        self.data, self.steps = data, steps
        self.truth = torch.tensor(data.truth, dtype=torch.float64)
        self.tail_start = steps - round(TAIL * steps)
        self.hits = torch.full((data.data_sets,), math.inf, dtype=torch.float64)
        self.near = torch.zeros(data.data_sets, dtype=torch.float64)
        self.record, self.seen = Record(per_decade=30), dict[int, Tensor]()

    def see(self, step: int, x: Tensor) -> None:
        is_near = self._error(x, self.truth) < HIT
        self.hits[is_near & self.hits.isinf()] = float(step)
        if step > self.tail_start:
            self.near += is_near
        if self.record.is_due(step) or step == self.steps:
            self.seen[step] = x.clone()

    def found(self) -> dict[str, Any]:
        """Quantiles of the error on the way, errors at the end, hits and time near the truth."""
        points = torch.stack(list(self.seen.values()))
        errors = self._error(points, self.truth)
        bands = np.quantile(errors.numpy(), [0.1, 0.5, 0.9], axis=1).tolist()
        return {
            "steps": list(self.seen),
            "bands": dict(zip(("q10", "median", "q90"), bands, strict=True)),
            "final": errors[-1].tolist(),
            "final_mle": self._error(points[-1], self.data.estimate).tolist(),
            "hits": self.hits.tolist(),
            "tail_shares": (self.near / max(self.steps - self.tail_start, 1)).tolist(),
        }

    def _error(self, x: Tensor, target: Tensor) -> Tensor:
        """Squared distance of the variances that points stand for."""
        distance: Tensor = (self.data.variances(x) - target).square().sum(-1)
        return distance


@lru_cache(maxsize=4)
def _data(replicas: int, seed: int, space: str) -> Any:
    return problem("variance", data_sets=replicas, seed=1000 * seed, space=space)


def measure_study(
    number: str,
    *,
    replicas: int,
    steps: int,
    seed: int = 0,
    space: str = "log",
    lag: str = "",
    **changes: float,
) -> dict[str, Any]:
    """Run one configuration on `replicas` data sets at once.

    Args:
        space: "log"; or "project" and "reflect", which run in x itself and keep it positive by a
            floor of 0.01 or by its absolute value.
        lag: "ONE" or "TWO" runs the literal algorithm, with a lag of so many steps.
        changes: of lr, sigma, d_init or delta.
    """
    configuration = BY_NUMBER[number]
    options = {**configuration.settings, **changes}
    data = _data(replicas, seed, "log" if space == "log" else "x")
    x0, feed = data.start(replicas), configuration.feed(data.num_samples, seed)
    watch = _Watch(data, steps)
    if lag:
        taken, rng = itertools.count(), np.random.default_rng(seed)
        path = reference.asgld(
            lambda z: feed(data, torch.from_numpy(z), next(taken)).numpy(),
            x0.numpy(),
            lambda _: rng.standard_normal(x0.shape),
            lag=reference.Lag[lag],
            **{"beta": 1.0, **options, "alpha": configuration.alpha},
        )
        watch.see(0, x0)
        for step, z in enumerate(itertools.islice(path, steps), start=1):
            watch.see(step, torch.from_numpy(z))
    else:
        options |= {"seed": seed, "keep": _KEEPERS[space], "lr_decay": configuration.lr_decay}

        def look(view: View) -> None:
            watch.see(view.step, view.x)

        follow(configuration.method, data, x0, look, steps=steps, feed=feed, **options)
    samples = sum(configuration.batch_at(k, data.num_samples) for k in range(steps))
    names = {"number": number, "label": configuration.label, "space": space, "lag": lag}
    return {**names, **changes, "samples": samples, **watch.found()}


def _runs(amount: tuple[int, int], **options: Any) -> Task:
    """A configuration on so many data sets for so many steps."""
    return task(measure_study, replicas=amount[0], steps=amount[1], **options)


@experiment("study", "The simulation study")
def study_tasks(size: Size) -> list[Task]:
    """Two variances of a Gaussian: which of the paper's twelve configurations find them?"""
    return [_runs(size.study, number=number) for number in BY_NUMBER]


@experiment("settings", "The study under other settings")
def setting_tasks(size: Size) -> list[Task]:
    """Do the comparisons survive another step size and another noise?"""
    # lr and sigma over a factor of ten each, for the configurations that claims compare.
    sigmas = [{"sigma": sigma} for sigma in (0.03, 0.1, 0.3)]
    return [
        _runs(size.sweep, number=number, lr=lr, **noise)
        for number in ("2", "4", "5", "8", "9", "9b", "10")
        for lr in (0.03, 0.1, 0.3)
        for noise in (sigmas if BY_NUMBER[number].method != "asg" else [{}])
    ]


@experiment("spaces", "The study in x instead of log x")
def space_tasks(size: Size) -> list[Task]:
    """What changes if positivity is kept by force, by projection or by reflection?"""
    # x in place of log x, kept positive in two ways; it takes longer there.
    numbers = BY_NUMBER if size.name == "full" else ("2", "4", "5", "7", "9b", "10")
    tasks = []
    for space, number in itertools.product(("project", "reflect"), numbers):
        configuration = BY_NUMBER[number]
        lr = configuration.options.get("lr", _X_D_INIT ** (configuration.alpha / 2) / 100.0)
        amount = (size.sweep[0], size.study[1])
        tasks.append(_runs(amount, number=number, space=space, lr=lr, d_init=_X_D_INIT))
    return tasks


@experiment("starts", "The start of the accumulator")
def start_tasks(size: Size) -> list[Task]:
    """What does a small positive delta as the start of D do?"""
    # D from 1e-8, which the paper's "small positive delta" may mean, up to 100.
    lrs = (0.01, 0.1, 1.0) if size.name == "full" else (0.1,)
    return [
        _runs(size.sweep, number=number, lr=lr, d_init=d_init, delta=min(d_init, 0.01))
        for number in ("5", "7", "9b", "10", "11")
        for d_init in (1e-8, 1e-4, 1e-2, 1.0, 100.0)
        for lr in lrs
    ]


@experiment("lag", "One step of lag or two")
def lag_tasks(size: Size) -> list[Task]:
    """Does the literal indexing of Algorithm 1 behave differently?"""
    # Both indexings of the accumulator that the paper prints.
    return [
        _runs(size.sweep, number=number, lag=lag)
        for number in ("4", "5", "7", "10")
        for lag in ("ONE", "TWO")
    ]


# ------------------------------------------------------------------------------------ claims


def _time_near(label: str) -> str:
    return f"{label}: time near the truth, last tenth of the run"


def _times_near(o: Outcomes, number: str) -> list[float]:
    """Such times of a configuration under other settings."""
    return [mean(v["tail_shares"])["value"] for v in o["settings"].select(number=number)]


def _hits(o: Outcomes, number: str) -> Sequence[float]:
    times: Sequence[float] = o["study"].one(number=number)["hits"]
    return times


@claim("X1", "Experiment", "study", "settings")
def x1(o: Outcomes) -> Checks:
    """SGLD and its variants suffer the convergence issue.

    At the smallest step and noise its plateau lies near the truth for most of the time.
    """
    for number in ("1", "2", "3"):
        value = o["study"].one(number=number)
        yield at_most(_time_near(value["label"]), mean(value["tail_shares"]), CONVERGED)
    largest = max(_times_near(o, "2"))
    says = "SGLD_B, other lr and sigma: the largest such time"
    yield at_most(says, largest, CONVERGED, core=False)


@claim("X2", "Experiment", "study", "settings", "spaces")
def x2(o: Outcomes) -> Checks:
    """ASGLD and its variants converge fast for beta > alpha/2.

    Fast only in log space and with a step that is not small.
    """
    for number in ("4", "5", "6", "7"):
        value = o["study"].one(number=number)
        yield at_least(_time_near(value["label"]), mean(value["tail_shares"]), CONVERGED)
    smallest = min(_times_near(o, "5"))
    says = "ASGLD_B, other lr and sigma: the smallest such time"
    yield at_least(says, smallest, CONVERGED, core=False)
    projected = mean(o["spaces"].one(number="5", space="project")["tail_shares"])
    yield at_least("ASGLD_B in x, projected: such time", projected, CONVERGED, core=False)


@claim("X3", "Experiment", "study")
def x3(o: Outcomes) -> Checks:
    """alpha = 1, beta = 0.3 does not converge but hits the truth quickly."""
    hot, cool = o["study"].one(number="8"), o["study"].one(number="5")
    yield at_most(_time_near("(1, 0.3)"), mean(hot["tail_shares"]), CONVERGED)
    first = earlier(hot["hits"], cool["hits"])
    yield at_least("share of data sets where (1, 0.3) hits before (1, 1)", first, 0.5)
    hit = share(np.isfinite(hot["hits"]))
    yield at_least("(1, 0.3): share of data sets that hit at all", hit, 0.75)


@claim("X4", "Experiment", "study")
def x4(o: Outcomes) -> Checks:
    """ASG converges stably but slower than ASGLD.

    At equal batch the two are alike; the difference is that of B = 1 to B = 10.
    """
    for asg, asgld, batch in (("9", "4", 1), ("9b", "5", 10)):
        near = mean(o["study"].one(number=asg)["tail_shares"])
        says = f"B = {batch}: ASG's time near the truth, last tenth of the run"
        yield at_least(says, near, CONVERGED)
        first = earlier(_hits(o, asgld), _hits(o, asg))
        says = f"B = {batch}: share of data sets where ASGLD hits before ASG"
        yield at_least(says, first, 0.5)
    first = earlier(_hits(o, "5"), _hits(o, "9"))
    says = "ASG at B = 1 against ASGLD_B at B = 10, as the paper shows them: share where ASGLD is "
    yield at_least(f"{says}first", first, 0.5, core=False)


@claim("X5", "Experiment", "study")
def x5(o: Outcomes) -> Checks:
    """AGLD converges even faster than ASGLD.

    Per iteration. It is alpha = 0 that makes it fast, and per sample it is far dearer.
    """
    agld = _hits(o, "10")
    for number in ("4", "5"):
        says = f"share of data sets where AGLD (0, 1) hits before {BY_NUMBER[number].label}"
        yield at_least(says, earlier(agld, _hits(o, number)), 0.5)
    first = earlier(_hits(o, "10b"), _hits(o, "5"))
    says = "the same with alpha = 1 in both: AGLD (1, 1) before ASGLD_B"
    yield at_least(says, first, 0.5, core=False)
    first = earlier((10_000.0 * np.array(agld)).tolist(), _hits(o, "4"))
    says = "AGLD (0, 1) before ASGLD (1, 1), B = 1, counted in single-sample gradients"
    yield at_least(says, first, 0.5, core=False)


# ------------------------------------------------------------------------------------ pictures

_ENDS = "squared error at the end, q10 to q90"


@draw.picture("study-paths", "study")
def study_paths(o: Outcomes) -> Any:
    """Error of every configuration

    One panel per configuration, over data sets. A band that keeps falling converges; one that runs
    flat above the dashed line has reached its floor without finding the truth.

    Fifteen panels of squared error against iteration on logarithmic axes, each with a median line,
    a band from the tenth to the ninetieth percentile and a dashed line at 0.5.
    """
    values = o["study"].values
    rows = -(-len(values) // 3)
    shape = (rows, 3, 1.75 * rows + 0.4, len(values))
    figure, axes = draw.panels(*shape, sharex=True, sharey=True)
    for panel, value in zip(axes.flat, values, strict=False):
        steps, bands = np.array(value["steps"][1:]), value["bands"]
        low, middle, high = (draw.clipped(bands[q][1:]) for q in ("q10", "median", "q90"))
        band = {"color": COLORS[5], "alpha": 0.45, "linewidth": 0}
        panel.fill_between(steps, low, high, **band, label="q10 to q90")
        panel.plot(steps, middle, color=COLORS[0], label="median")
        panel.axhline(HIT, color=COLORS[1], linestyle="--", linewidth=0.9, label=f"error {HIT}")
        draw.log_log(panel, ylim=(1e-5, 1e6), title=f"{value['number']}  {value['label']}")
    draw.outer(axes, "iteration", "squared error")
    draw.legend(figure, axes[0, 0])
    return figure


@draw.picture("study-ends", "study")
def study_ends(o: Outcomes) -> Any:
    """Where each configuration ended, and when it first came near

    Left: the error against the truth and against the maximum-likelihood point of the same data; a
    method that reaches the second has nothing left to find. Right: the median first iteration near
    the truth.

    Two dot plots with one row per configuration: final squared errors with bars from the tenth to
    the ninetieth percentile, and median hitting times.
    """
    values = o["study"].values
    figure, axes = draw.panels(1, 2, 0.24 * len(values) + 1.1, sharey=True)
    left, right = axes[0]
    height = draw.rows_of_dots(left, [f"{v['number']}  {v['label']}" for v in values])
    for i, (key, words) in enumerate((("final", "truth"), ("final_mle", "maximum likelihood"))):
        draw.ranges(left, i, [v[key] for v in values], height, f"to the {words}", linewidth=1.2)
    left.set(xscale="log", xlabel=_ENDS)
    # Medians that most chains never had are at the right edge, with an arrow.
    limit, beside = values[0]["steps"][-1], {"ha": "right", "va": "center", "fontsize": 7}
    right.set(xscale="log", xlabel=f"first iteration with error < {HIT}")
    for y, v in zip(height, values, strict=True):
        if math.isfinite(first := median(v["hits"])["value"]):
            right.plot(first, y, color=COLORS[0], marker="o", linestyle="none")
        else:
            right.plot(limit, y, color=COLORS[1], marker=">", linestyle="none")
            at = {"textcoords": "offset points", "xytext": (-6, 0)}
            right.annotate("never", (limit, y), **at, **beside)
    draw.legend(figure, left)
    return figure


@draw.picture("settings")
def times_near_by_setting(o: Outcomes) -> Any:
    """The same with other step sizes and other noise

    The share of the last tenth of the run that is spent near the truth. A verdict that hangs on one
    setting shows as lines that cross the dotted line.

    Seven panels of the share of time near the truth against lr, one line per sigma.
    """
    values = o["settings"].values
    labels = list(dict.fromkeys(v["label"] for v in values))
    figure, axes = draw.panels(2, 4, 3.9, len(labels), sharex=True, sharey=True)
    for panel, label in zip(axes.flat, labels, strict=False):
        mine = [v for v in values if v["label"] == label]
        for i, sigma in enumerate(sorted({v.get("sigma", 0.0) for v in mine})):
            row = [v for v in mine if v.get("sigma", 0.0) == sigma]
            lrs, shares = [v["lr"] for v in row], [float(np.mean(v["tail_shares"])) for v in row]
            draw.plot(panel, i, lrs, shares, rf"$\sigma = {sigma:g}$")
        panel.axhline(CONVERGED, color=draw.INK, linestyle=":", linewidth=0.9)
        panel.set(xscale="log", ylim=(-0.05, 1.05))
        panel.set_title(label, fontsize=7.5)
        draw.plain(panel.xaxis, lrs)
    draw.outer(axes, "lr", "time near the truth")
    draw.legend(figure, axes[0, 0])
    return figure


def _pair_of_ends(o: Outcomes, name: str, key: str, pair: dict[str, str], **style: Any) -> Any:
    """Final errors, one row per configuration, with a dot for each of two values of `key`."""
    first, second = (o[name].select(**{key: value}) for value in pair)
    figure, panel = draw.one_panel(0.24 * len(first) + 1.1)
    height = draw.rows_of_dots(panel, [f"{v['number']}  {v['label']}" for v in first])
    for i, (values, words) in enumerate(zip((first, second), pair.values(), strict=True)):
        draw.ranges(panel, i, [v["final"] for v in values], height, words, **style)
    panel.set(xscale="log", xlabel=_ENDS)
    draw.legend(figure, panel)
    return figure


@draw.picture("spaces")
def ends_by_space(o: Outcomes) -> Any:
    """In x instead of log x

    Projected and reflected ends of the same configurations; compare with the logarithmic space
    above. Left of the dotted line is near the truth.

    A dot plot of final squared errors, one row per configuration, projected and reflected.
    """
    pair = {"project": "x, projected", "reflect": "x, reflected"}
    figure = _pair_of_ends(o, "spaces", "space", pair, most=1e9)
    figure.axes[0].axvline(HIT, color=draw.INK, linestyle=":", linewidth=0.9)
    return figure


@draw.picture("starts")
def ends_by_start(o: Outcomes) -> Any:
    """What a small start of D does

    The further left, the smaller D before the first step. Where a line climbs to the left, the
    first steps are too long to recover from.

    Median final error against the initial accumulator, one panel per lr, one line per method.
    """
    values = o["starts"].values
    lrs = sorted({v["lr"] for v in values})
    figure, axes = draw.panels(1, len(lrs), 3.1, sharey=True)
    for panel, lr in zip(axes.flat, lrs, strict=True):
        for i, label in enumerate(dict.fromkeys(v["label"] for v in values)):
            mine = o["starts"].select(label=label, lr=lr)
            ends = draw.clipped([np.median(v["final"]) for v in mine], high=1e26)
            draw.plot(panel, i, [v["d_init"] for v in mine], ends, label)
        draw.log_log(panel, title=f"lr = {lr:g}")
    draw.outer(axes, "D before the first step", "median squared error at the end")
    draw.legend(figure, axes[0, 0], 3)
    return figure


@draw.picture("lag")
def ends_by_lag(o: Outcomes) -> Any:
    """One step of lag or two

    Pairs of the same configuration: where they overlap, the indexing makes no difference.

    A dot plot of final squared errors, two rows per configuration, one for each lag.
    """
    pair = {"ONE": "one step", "TWO": "two steps, as printed"}
    return _pair_of_ends(o, "lag", "lag", pair, gap=0.24)


@table("study")
def study_rows(o: Outcomes) -> list[Row]:
    """Squared error at the end over data sets, and hitting times."""
    rows = []
    for v in o["study"].values:
        q10, middle, q90 = np.quantile(v["final"], [0.1, 0.5, 0.9]).tolist()
        rows.append(
            {
                "no.": v["number"],
                "configuration": v["label"],
                "q10": q10,
                "median": middle,
                "q90": q90,
                "to max. likelihood": float(np.median(v["final_mle"])),
                # nearest rank, so that a majority that never hits reads as never
                "first hit": float(np.quantile(v["hits"], 0.5, method="higher")),
                "hit at all": float(np.isfinite(v["hits"]).mean()),
                "near, last tenth": float(np.mean(v["tail_shares"])),
                "samples": v["samples"],
            }
        )
    return rows


def variant_rows(name: str, *keys: str) -> Callable[[Outcomes], list[Row]]:
    def rows(o: Outcomes) -> list[Row]:
        return [
            {
                "no.": v["number"],
                "configuration": v["label"],
                **{key: v.get(key, "") for key in keys},
                "median error": float(np.median(v["final"])),
                "q90": float(np.quantile(v["final"], 0.9)),
                "first hit": median(v["hits"])["value"],
                "near, last tenth": float(np.mean(v["tail_shares"])),
            }
            for v in o[name].values
        ]

    return rows


VARIANTS = tuple(
    DataTable(name, name, caption, variant_rows(name, *keys))
    for name, caption, keys in (
        ("settings", "Every setting.", ("lr", "sigma")),
        ("spaces", "In x.", ("space", "lr", "d_init")),
        ("starts", "Every start of D.", ("lr", "d_init", "delta")),
        ("lag", "By the literal algorithm.", ("lag",)),
    )
)
