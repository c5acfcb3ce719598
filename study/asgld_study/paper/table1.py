"""Table 1, row by row, and what section 2 says of it: experiment, claims, picture and verdicts.

The section of the report runs the fourteen methods on two problems that test what the table claims
of them. The worst-case chain is where gradient descent needs eps^-2 steps and a cubic method
eps^-1.5: it tests powers of 1/eps. The rotated saddle, all methods with noise of equal energy,
tests logarithms of d.

`asgld table1` is the same topic at a larger size: all methods, tuned, on many more problems. Its
verdicts (:func:`judged_tables`) come from the numbers of `asgld_study.paper.table1_tables`, so that
they can be made again from committed files. A bound is an upper bound: an exponent below it agrees
with it and proves nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from asgld.methods import method
from asgld.theory import Table1Row, table1
from asgld.theory.plots import COLORS
from asgld_study import judge
from asgld_study.catalog import run_searches
from asgld_study.cells import measure_cells
from asgld_study.drawing import INK, legend, panels, picture, series
from asgld_study.engine import Measured, Outcomes, Size, Task, experiment
from asgld_study.judge import LOG_D, LOGS, SLACK, Check, Checks, Claim, at_most, between, claim
from asgld_study.page import table
from asgld_study.paper import table1_cells as cells
from asgld_study.paper.minima import dim_growth, eps_power
from asgld_study.paper.table1_tables import MeasuredCells, TableRows, accuracy
from asgld_study.statistics import Estimate, ratio_of_medians

# ------------------------------------------------------------------------------------ the report

# size -> how much less than `asgld table1 --size full` is run for the report
_PLANS: dict[str, dict[str, Any]] = {
    "tiny": {
        "seeds": 2, "chain_eps": (1.0,), "chain_steps": 100,
        "saddle_seeds": 4, "dims": (4, 8), "hessian_dims": (4,), "second_order_seeds": 2,
    },
    "reduced": {
        "seeds": 4, "chain_eps": (1.0, 0.5, 0.25), "chain_steps": 3_000,
        "saddle_seeds": 24, "dims": (4, 32, 256), "hessian_dims": (4, 32), "second_order_seeds": 3,
    },
    "full": {
        "seeds": 8,
        "dims": (4, 16, 64, 256, 1024), "hessian_dims": (4, 16, 64, 256), "second_order_seeds": 8,
    },
}  # fmt: skip


@experiment("table1", "Table 1")
def tasks(size: Size) -> list[Task]:
    """Do the fourteen methods of the paper's table keep to the powers and logarithms printed?"""
    # Cells of the rows of the table alone; an escape ends with the fall.
    plan = dataclasses.replace(cells.EXTENTS["full"], **_PLANS[size.name], rotations=(True,))
    rows = {contender.label for contender in cells.contenders_of_table()}
    escapes = [
        dataclasses.replace(cell, until="fall")
        for cell in cells.dimension_cells(plan)
        if not (cell.label in cells.NOISY and cell.tags["noise"] == "native")
    ]
    return [cell.task for cell in (*cells.chain_cells(plan), *escapes) if cell.label in rows]


def run_comparison(
    plan: cells.Extent, report: Callable[..., None] = lambda *_: None, **how: Any
) -> MeasuredCells:
    """Search for settings, then measure all cells of `asgld table1`.

    `how` is as for `asgld_study.engine.measure`; `report` hears (stage, done, all, what).
    """
    searches = cells.searches(plan)
    found = run_searches(list(searches.values()), **how, report=partial(report, "settings"))
    tuned = dict(zip(searches, found, strict=True))
    results = measure_cells(cells.all_cells(plan, tuned), **how, report=partial(report, "cells"))
    return MeasuredCells(results, tuned)


def as_outcomes(found: MeasuredCells) -> Outcomes:
    """The comparison as what the experiment gave, for pictures."""
    values = [vars(result) for result in found.results if not result.error]
    errors = [result.error for result in found.results if result.error]
    return {"table1": Measured(tasks, values, errors)}


@dataclass(frozen=True)
class MeasuredRow:
    """One method of the table."""

    printed: Table1Row
    label: str  # our word for the method
    chain: Mapping[str, Any] | None  # as `accuracy` gives it; None if the chain was not run
    times: dict[int, list[float]]  # dimension -> steps of each replica until the function fell

    @property
    def median_steps(self) -> dict[int, float]:
        """Median steps to fall, by dimension."""
        return {dim: float(np.median(times)) for dim, times in self.times.items()}

    @property
    def growth(self) -> tuple[int, int, Estimate] | None:
        """From the middle dimension to the largest: both, and the ratio of times over log d."""
        dims = sorted(self.times)
        if len(dims) < 2 or not np.isfinite(list(self.median_steps.values())).all():
            return None
        small, large = dims[(len(dims) - 1) // 2], dims[-1]
        ratio = ratio_of_medians(self.times[large], self.times[small])
        allowed = math.log(large) / math.log(small)
        return small, large, {name: x / allowed for name, x in ratio.items()}


def measured_rows(o: Outcomes) -> list[MeasuredRow]:
    """All fourteen, in the order printed."""
    found, rows = MeasuredCells.of(o), []
    for printed, contender in zip(table1(), cells.contenders_of_table(), strict=True):
        label, times = contender.label, {}
        for result in found.select("dimension", label=label):
            steps, is_event = result.times("fall")
            times[int(result.cell["problem_options"]["dim"])] = [
                float(t) for t in np.where(is_event, steps, math.inf)
            ]
        was_run = bool(found.select("chain", label=label))
        chain = accuracy(found, label, "chain") if was_run else None
        rows.append(MeasuredRow(printed, label, chain, times))
    return rows


@table("table1")
def report_rows(o: Outcomes) -> TableRows:
    """Powers of 1/eps on the worst-case chain, and steps until f fell below a saddle in d
    dimensions. Tuned comparisons on more problems: asgld table1.
    """
    rows = measured_rows(o)
    dims = sorted({dim for row in rows for dim in row.times})
    return [
        {
            "row": number,
            "method": row.label,
            "bound": row.printed.bound,
            "unit": row.printed.unit,
            "oracle": row.printed.oracle,
            "power of 1/eps": row.chain["exponent"] if row.chain else math.nan,
            "printed power": row.printed.eps_power,
            **{f"T, d = {dim}": row.median_steps.get(dim, math.nan) for dim in dims},
        }
        for number, row in enumerate(rows, start=1)
    ]


@picture("table1")
def table1_picture(o: Outcomes) -> Any:
    """Table 1: powers of 1/eps, and escape against d

    Left: a point to the right of its bar would violate the printed bound; a point to the left
    agrees with it and proves nothing. Right: methods whose line rises like a straight one on these
    axes pay a power of d for an escape.

    Left, printed and measured exponents, one row per method; right, median steps to leave a saddle
    against dimension, one line per method.
    """
    rows = measured_rows(o)
    figure, axes = panels(1, 2, 0.24 * len(rows) + 1.1)
    panel, height = axes[0, 0], np.arange(len(rows))[::-1]
    printed = [row.printed.eps_power for row in rows]
    panel.scatter(printed, height, marker="|", s=150, color=INK, label="printed bound")
    measured = [
        row.chain["exponent"]
        if row.chain and is_informative(row.chain, row.printed.eps_power)
        else math.nan
        for row in rows
    ]
    panel.plot(measured, height, linestyle="none", **series(0), label="measured on the chain")
    panel.set_yticks(height, [f"{i}  {row.label}" for i, row in enumerate(rows, start=1)])
    panel.set_xlabel("exponent of 1/eps in the cost")
    for i, row in enumerate(row for row in rows if row.times):
        dims, dashes = sorted(row.times), ("-", "--", ":")[i // len(COLORS)]
        steps = [row.median_steps[dim] for dim in dims]
        axes[0, 1].plot(dims, steps, linestyle=dashes, **series(i), label=row.label)
    axes[0, 1].set(xscale="log", yscale="log", xlabel="d", ylabel="median steps to leave a saddle")
    legend(figure, axes, 5, fontsize=7)
    return figure


# ------------------------------------------------------------------------------------ claims


def bound_check(says: str, row: Mapping[str, Any], bound: float, *, core: bool = True) -> Check:
    """Is the exponent of an accuracy at most this? Open where too little was reached to say."""
    if is_informative(row, bound):
        return at_most(says, _estimate(row, "exponent"), bound, core=core)
    return at_most(f"{says} (too few accuracies in reach)", math.nan, bound, core=core)


def is_informative(row: Mapping[str, Any], bound: float) -> bool:
    """Whether there is a bound, three finite medians, and an interval no wider than 1."""
    width = row["high"] - row["low"]
    return not math.isnan(bound) and row["points"] >= 3 and width <= 1.0


def _estimate(row: Mapping[str, Any], name: str) -> Estimate:
    return {"value": row[name], "low": row["low"], "high": row["high"]}


# Rows that are measured from the saddle to the minimum as well.
_OWN_ROWS = {
    11: "AGLD (0, 1)",
    12: "ASG (1)",
    13: "ASGLD (1, 1)",
    14: "ASGLD (0, 1), B = k",
}
_CURVATURE = {"hessian", "hvp", "sample_hvp"}


def _row(number: int, o: Outcomes) -> Checks:
    row = measured_rows(o)[number - 1]
    if row.chain is not None and not math.isnan(row.printed.eps_power):
        says = "exponent of 1/eps on the worst-case chain"
        yield bound_check(says, row.chain, row.printed.eps_power + SLACK)
    if row.printed.log_power >= 1 and row.growth is not None:
        small, large, grown = row.growth
        allowed = (math.log(large) / math.log(small)) ** (row.printed.log_power - 1)
        says = f"one escape: T({large}) over T({small}), in units of log d"
        yield at_most(says, grown, LOG_D * allowed)
    if number in _OWN_ROWS:
        yield from _own_row(number, o)
    extra = sorted(_needs(row.printed.method) & _CURVATURE - row.printed.curvature_calls)
    says = f"oracle calls beyond those printed ({', '.join(extra) or 'none'})"
    yield at_most(says, len(extra), 0, core=False)


def _own_row(number: int, o: Outcomes) -> Checks:
    label, power = _OWN_ROWS[number], table1()[number - 1].eps_power * LOGS
    yield at_most("saddle to minimum: exponent of 1/eps in the steps", eps_power(o, label), power)
    small, large, grown = dim_growth(o, label, "fixed")
    ratio = f"T({large}) over T({small}), in units of log d"
    says = f"saddle to minimum, noise fixed per coordinate: {ratio}"
    yield at_most(says, grown, LOG_D)
    if number == 14:
        in_samples = eps_power(o, label, samples=True)
        yield at_most("saddle to minimum: exponent of 1/eps in the samples", in_samples, power)


def _needs(name: str) -> frozenset[str]:
    return frozenset(method(name).needs)


ROW_CLAIMS = tuple(
    Claim(
        f"M{i}",
        f"{row.statement} {row.bound}, by {row.oracle}.",
        f"Table 1, row {i}",
        ("table1", "minima") if i in _OWN_ROWS else ("table1",),
        partial(_row, i),
        row.correction,
        row.name,
    )
    for i, row in enumerate(table1(), start=1)
)


@claim("M15", "section 2", "table1", item="Section 2")
def m15(o: Outcomes) -> Checks:
    """Two Hessian-vector methods need log d / eps^1.25.

    7/4, as Table 1 and the cited papers have it.
    """
    text_power = 1.25
    for number in (4, 5):
        row = measured_rows(o)[number - 1]
        says = f"row {number}: exponent that Table 1 itself prints"
        yield at_most(says, row.printed.eps_power, text_power)
        if row.chain is not None:
            says = f"row {number}: exponent measured on the worst-case chain"
            yield bound_check(says, row.chain, text_power + SLACK, core=False)


@claim("M16", "section 2", "table1", item="Section 2")
def m16(_: Outcomes) -> Checks:
    """All existing methods need full gradients and a step that stops and tries.

    Several rows of the same table work with stochastic gradients.
    """
    rivals = [row for row in table1() if row.method not in ("agld", "asg", "asgld")]
    free = [row.method for row in rivals if "grad" not in _needs(row.method)]
    says = f"rivals that need no full gradient at all ({', '.join(free) or 'none'})"
    yield at_most(says, len(free), 0)
    batched = [row.method for row in rivals if _takes_batches(row.method)]
    says = f"rivals that take stochastic gradients ({', '.join(batched) or 'none'})"
    yield at_most(says, len(batched), 0)


def _takes_batches(name: str) -> bool:
    try:
        return "sample_grad" in method(name, batch_size=4).needs
    except (TypeError, ValueError):
        return "sample_grad" in _needs(name)


# ------------------------------------------------------------------------------------ judged


def judged_tables(tables: Mapping[str, TableRows]) -> dict[str, TableRows]:
    """Table 1 with its verdicts, and the checks of known laws, from the measured tables."""
    laws = [
        {"check": c.says, "measured": c.number, "asked": c.asked, "verdict": judge.verdict([c])}
        for c in law_checks(tables)
    ]
    return {"table1": table_rows(tables), "checks": laws}


def table_rows(tables: Mapping[str, TableRows]) -> TableRows:
    """The measured Table 1: published bound, its unit, measured exponents and the verdict."""
    exponents = {(row["method"], row["sweep"]): row for row in tables["accuracy"]}
    rotated = [row for row in tables["dimension"] if row["rotated"]]
    # Rows at equal noise come last, and of each method the last row is taken.
    rotated.sort(key=lambda row: row["noise"] == "equal")
    escapes = {row["method"]: row for row in rotated}
    costs = {
        column: {row["method"]: row["spent"] for row in tables[f"standard-{name}"]}
        for column, name in (
            ("saddle_theory", "saddle-theory"),
            ("saddle", "saddle-practical"),
            ("octopus", "octopus-practical"),
        )
    }
    rows = []
    for printed, contender in zip(table1(), cells.contenders_of_table(), strict=True):
        label, escape = contender.label, escapes.get(contender.label)
        row = {
            "row": contender.row,
            "method": label,
            "bound": printed.bound,
            "unit": printed.unit,
            "corrected": printed.correction or "as printed",
        }
        for column, sweep in (("chain", "chain"), ("coupled", "octopus eps")):
            exponent = exponents.get((label, sweep))
            row[column] = "too few points" if exponent is None else _shown(exponent, "exponent")
            row[f"{column}_verdict"] = bound_verdict(exponent, printed.eps_power)
        row["per_ln_d"] = (
            "as agld: full gradients cannot grow" if escape is None else _shown(escape, "slope")
        )
        rows.append({**row, **{name: cost.get(label, math.nan) for name, cost in costs.items()}})
    return rows


def bound_verdict(row: Mapping[str, Any] | None, bound: float) -> str:
    """The verdict on a printed power of 1/eps; not testable where the numbers say nothing."""
    if row is None or not is_informative(row, bound):
        return judge.verdict([])
    return judge.verdict([bound_check("exponent of 1/eps", row, bound + SLACK)])


def _shown(row: Mapping[str, Any], name: str) -> str:
    """A value and its interval, in two decimals."""
    if math.isnan(row[name]):
        return "too few points"
    value, low, high = (round(row[k], 2) + 0.0 for k in (name, "low", "high"))  # no "-0.00"
    # Without chance, as on the chain, the interval is a point.
    return f"{value:.2f}" if low == high else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def predicted_slope(gamma: float = cells.GAMMA, lr: float = cells.LR) -> float:
    """Steps per ln d of a method whose unstable direction grows by 1 + lr gamma.

    >>> round(predicted_slope(), 2)
    10.25
    """
    return 1.0 / (2.0 * math.log1p(lr * gamma))


def law_checks(tables: Mapping[str, TableRows]) -> Iterator[Check]:
    """What theory predicts of these problems."""
    expected = predicted_slope()
    slopes = {(row["method"], row["noise"], row["rotated"]): row for row in tables["dimension"]}
    for label in ("perturbed-gd", "agld"):
        says = f"{label}: steps per ln d, by theory 1/(2 ln(1 + lr gamma)) = {expected:.2f}"
        estimate = _estimate(slopes[label, "equal", True], "slope")
        yield between(says, estimate, 0.8 * expected, 1.2 * expected)
    for row in tables["late-saddles"]:
        if row["alpha"] in (0.0, 1.0):
            says = f"alpha = {row['alpha']:g}: exponent of k0 in the escape time, up to logs"
            yield between(says, _estimate(row, "exponent"), row["law"] - 0.15, row["law"] + 0.15)
    chain = {row["method"]: row for row in tables["accuracy"] if row["sweep"] == "chain"}
    for label, power in (("gd", 2.0), ("cubic-newton", 1.5)):
        says = f"{label}: exponent of 1/eps on the worst-case chain, {power:g} as eps falls"
        yield between(says, _estimate(chain[label], "exponent"), power - 0.25, power + 0.25)
    octopus = {row["method"]: row for row in tables["octopus"]}
    largest = [name for name in octopus["gd"] if name.startswith("d=")][-1]
    steps = [octopus[name].get(largest, math.nan) for name in ("perturbed-gd", "gd")]
    with np.errstate(invalid="ignore"):  # if neither arrives
        ratio = np.divide(*steps)
    yield at_most(f"octopus, {largest}: steps of perturbed-gd over those of gd", float(ratio), 0.2)
    # scipy's method stops at saddles: that it does not look for curvature there is known.
    able = {*cells.NOISY, *cells.CURVATURE, *cells.HESSIAN} - {"trust-krylov"}
    past = {name: row["share_past_saddles"] for name, row in octopus.items() if name in able}
    yield _none_of("octopus: methods with noise or curvature that a saddle holds up", past, 0.5)
    arrived: dict[str, float] = {}
    for mode in ("theory", "practical"):
        for row in tables[f"standard-saddle-{mode}"]:
            if row.get("row"):
                arrived[row["method"]] = max(row["share"], arrived.get(row["method"], 0.0))
    says = "saddle: rows of the table at no second-order point, neither tuned nor by theory"
    yield _none_of(says, arrived, math.nextafter(0.5, 1.0))
    for row in tables["controls"]:
        if row["noise"] == "none" or "aligned" in row["noise"] or "all 0" in row["noise"]:
            says = f"{row['method']}, noise: {row['noise']}: share that left an exact saddle"
            yield at_most(says, row["left"], 0.0)


def _none_of(says: str, shares: Mapping[str, float], least: float) -> Check:
    """A check that no share is below the least."""
    below = [name for name, share in shares.items() if not share >= least]
    return at_most(f"{says} ({', '.join(below) or 'none'} of {len(shares)})", len(below), 0)
