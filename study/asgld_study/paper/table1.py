"""Table 1, row by row, and what section 2 says of it: experiment, claims, picture and verdicts.

The section of the report runs the methods where what they do against saddles must be done. The
staircase has eps^-1.5 saddles of curvature eps^0.5, the first of them met exactly: it tests powers
of 1/eps. One strict saddle, with spread curvatures for methods with products, tests logarithms of
d. The worst-case chain, which has no saddle, tests powers of 1/eps of methods that use curvature
everywhere. How often a method did what it does against saddles is counted: a check of a run in
which it did not is open. The paper's own rows rest on the way from a saddle to a minimum
(`asgld_study.paper.minima`).

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
from asgld_study import judge
from asgld_study.catalog import run_searches
from asgld_study.cells import CellResult, measure_cells
from asgld_study.drawing import INK, legend, panels, picture, series
from asgld_study.engine import Measured, Outcomes, Size, Task, experiment, run_experiments
from asgld_study.judge import (
    LOG_D,
    LOGS,
    SLACK,
    Check,
    Checks,
    Claim,
    at_least,
    at_most,
    between,
    claim,
    reaches,
)
from asgld_study.page import table
from asgld_study.paper import minima
from asgld_study.paper import table1_cells as cells
from asgld_study.paper.table1_tables import (
    MeasuredCells,
    TableRows,
    accuracy,
    growth_rows,
    least_acts,
)
from asgld_study.statistics import Estimate, ratio_of_medians

# ------------------------------------------------------------------------------------ the report

# size -> how much less than `asgld table1 --size full` is run for the report
_PLANS: dict[str, dict[str, Any]] = {
    "tiny": {
        "seeds": 2, "chain_eps": (1.0,), "chain_steps": 100,
        "saddle_seeds": 4, "dims": (4, 8), "hessian_dims": (4,), "second_order_seeds": 2,
        "stairs": (2,), "loose_seeds": 1, "trials": 1, "tuned_families": 1, "shrink": 0.02,
        "control_steps": 100,
    },
    "reduced": {
        "seeds": 4, "chain_eps": (1.0, 0.5, 0.25), "chain_steps": 3_000,
        "saddle_seeds": 24, "dims": (4, 32, 256), "hessian_dims": (4, 32), "second_order_seeds": 3,
        "stairs": (4, 8, 16), "loose_seeds": 4, "trials": 6, "tuned_families": 3, "shrink": 0.25,
    },
    "full": {
        "seeds": 8,
        "dims": (4, 16, 64, 256, 1024), "hessian_dims": (4, 16, 64, 256), "second_order_seeds": 8,
        "trials": 16, "shrink": 0.5,
    },
}  # fmt: skip


_ON_CHAIN = ("cubic-newton", "trace", "fast-cubic", "carmon-accelerated")


@experiment("table1", "Table 1")
def tasks(size: Size) -> list[Task]:
    """Do the fourteen methods of the paper's table keep to the powers and logarithms printed?"""
    # Cells of the rows of the table alone, and of SGLD; an escape ends with the fall.
    plan = dataclasses.replace(cells.EXTENTS["full"], **_PLANS[size.name], rotations=(True,))
    rows = {contender.label for contender in cells.contenders_of_table()}
    escapes = [
        dataclasses.replace(cell, until="fall")
        for cell in cells.dimension_cells(plan)
        if (cell.label in rows - {*cells.SPREAD} and cell.tags["noise"] != "native")
        or cell.label == "sgld"
    ]
    steep = [cell for cell in cells.chain_cells(plan) if cell.label in _ON_CHAIN]
    stairs, spread = cells.staircase_cells(plan), cells.spread_cells(plan)
    measured = (*steep, *escapes, *stairs, *spread, *cells.sampled_cells(plan))
    return [*(cell.task for cell in measured), *cells.tuned_tasks(plan)]


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
    report = partial(report, "minima")
    to_minima = run_experiments([minima.minima_tasks], plan.minima, **how, report=report)
    return MeasuredCells(results, tuned, to_minima)


def as_outcomes(found: MeasuredCells) -> Outcomes:
    """The comparison as what the experiment gave, for pictures."""
    values = [vars(result) for result in found.results if not result.error]
    errors = [result.error for result in found.results if result.error]
    return {"table1": Measured(tasks, values, errors)}


@dataclass(frozen=True)
class Evidence:
    """What was measured of one row: the only input of :func:`row_checks`."""

    printed: Table1Row
    label: str  # our word for the method
    chain: Mapping[str, Any] | None = None  # as `accuracy` gives it; None if it was not run there
    staircase: Mapping[str, Any] | None = None
    growth: Mapping[str, Any] | None = None  # as `growth_rows` gives it
    own: Mapping[str, Any] | None = None  # as `own_numbers` gives it


def evidence(tables: Mapping[str, TableRows]) -> list[Evidence]:
    """All fourteen rows, in the order printed, from the measured tables."""
    exponents = {(row["method"], row["sweep"]): row for row in tables["accuracy"]}
    # Of each method the last is taken: noise of equal energy before noise as its authors have it.
    ranks = ("native", "none", "equal", "spread")
    grown = sorted(tables.get("growth", ()), key=lambda row: ranks.index(row["noise"]))
    growth = {row["method"]: row for row in grown}
    own = {row["method"]: row for row in tables.get("minima", ())}
    return [
        Evidence(
            printed,
            contender.label,
            exponents.get((contender.label, "chain")),
            exponents.get((contender.label, "staircase")),
            growth.get(contender.label),
            own.get(_OWN_ROWS.get(contender.row, "")),
        )
        for printed, contender in zip(table1(), cells.contenders_of_table(), strict=True)
    ]


def measured_rows(o: Outcomes) -> list[Evidence]:
    """All fourteen, in the order printed, from what the experiments gave."""
    found = MeasuredCells.of(o)
    labels = [contender.label for contender in cells.contenders_of_table()]
    return evidence(
        {
            "accuracy": [
                accuracy(found, label, sweep)
                for sweep in ("chain", "staircase")
                for label in labels
                if found.select(sweep, label=label)
            ],
            "growth": growth_rows(found),
            "minima": minima.own_numbers(found.minima) if found.minima else [],
        }
    )


@table("table1")
def report_rows(o: Outcomes) -> TableRows:
    """Powers of 1/eps on the worst-case chain and on the staircase of saddles, and the growth of
    one escape in d. Tuned comparisons on more problems: asgld table1.
    """
    return [
        {
            "row": number,
            "method": row.label,
            "bound": row.printed.bound,
            "unit": row.printed.unit,
            "oracle": row.printed.oracle,
            "printed power": row.printed.eps_power,
            "chain": _shown(row.chain, "exponent"),
            "staircase": _shown(row.staircase, "exponent"),
            "power of d": _shown(row.growth, "power"),
        }
        for number, row in enumerate(measured_rows(o), start=1)
    ]


@picture("table1")
def table1_picture(o: Outcomes) -> Any:
    """Table 1: powers of 1/eps, and powers of d in an escape

    Left: a point to the right of its bar would violate the printed bound; a point to the left
    agrees with it and proves nothing. Right: a logarithm shows as a power near 0.2 at these d.

    Two panels with one row per method: left, printed and measured exponents of 1/eps; right,
    measured powers of d in the cost to leave a saddle.
    """
    rows = measured_rows(o)
    figure, axes = panels(1, 2, 0.24 * len(rows) + 1.1, sharey=True)
    panel, height = axes[0, 0], np.arange(len(rows))[::-1]
    printed = [row.printed.eps_power for row in rows]
    panel.scatter(printed, height, marker="|", s=150, color=INK, label="printed bound")
    for i, (name, words) in enumerate((("staircase", "staircase"), ("chain", "chain"))):
        found = [getattr(row, name) for row in rows]
        shown = [math.nan if f is None else f["exponent"] for f in found]
        panel.plot(shown, height, linestyle="none", **series(i), label=f"on the {words}")
    panel.set_yticks(height, [f"{i}  {row.label}" for i, row in enumerate(rows, start=1)])
    panel.set_xlabel("exponent of 1/eps in the cost")
    powers = [math.nan if row.growth is None else row.growth["power"] for row in rows]
    axes[0, 1].plot(powers, height, linestyle="none", **series(2), label="one escape")
    axes[0, 1].set_xlabel("power of d in the cost of an escape")
    legend(figure, axes, 4, fontsize=7)
    return figure


# ------------------------------------------------------------------------------------ claims


# Rows that are measured from the saddle to the minimum as well.
_OWN_ROWS = {
    11: "AGLD (0, 1)",
    12: "ASG (1)",
    13: "ASGLD (1, 1)",
    14: "ASGLD (0, 1), B = k",
}
# Rows whose steps use curvature wherever they are: the chain, which has no saddle, tests these.
_CURVED = (2, 3, 4, 5)
# Rows that print O up to logs.
_UP_TO_LOGS = (10, *_OWN_ROWS)
# The unit of row 10; the others count calls or iterations.
_ARITHMETIC = "arithmetic operations"
# Powers of d that are printed in place of logarithms.
_DIM_POWERS = {9: 3.0, 10: 1.0}


def row_checks(number: int, row: Evidence) -> Checks:
    """What decides a row of the table: for the ledger, for the page and for the items alike."""
    printed = row.printed
    power = printed.eps_power
    if number in _OWN_ROWS:
        yield from _own_checks(number, row)
    elif not math.isnan(power):
        yield power_check("staircase of saddles", row.staircase, power)
        if number in _CURVED:
            yield power_check("worst-case chain", row.chain, power)
    is_silent = number in _OWN_ROWS and row.growth is None  # full gradients cannot grow
    if (printed.log_power >= 1 and not is_silent) or number in _DIM_POWERS:
        yield _growth_check(number, row)
    # The oracle refuses all calls that a method does not declare, so the runs are the evidence.
    extra = sorted(_needs(printed.method) & _CURVATURE - printed.curvature_calls)
    says = f"kinds of calls that the runs make beyond those printed ({', '.join(extra) or 'none'})"
    yield at_most(says, len(extra), 0, core=False)
    if "hessian" in printed.curvature_calls:
        asked = len(_needs(printed.method) & {"hessian"})
        says = "kinds of calls of the runs for the whole Hessian, which is printed"
        yield at_least(says, asked, 1, core=False)


def power_check(
    place: str, row: Mapping[str, Any] | None, power: float, *, core: bool = True
) -> Check:
    """Is the exponent of 1/eps at most this? Open where too little was reached, or nothing done."""
    says = f"exponent of 1/eps on the {place}"
    bound = power + SLACK
    if row is None or not is_informative(row):
        says = f"{says} (too few accuracies in reach)"
    elif not row.get("acted", math.nan) >= 1:
        says = f"{says} (the method's own mechanism did not act)"
    else:
        return at_most(says, _estimate(row, "exponent"), bound, core=core, tight=power)
    return at_most(says, math.nan, bound, core=core, tight=power)


def _growth_check(number: int, row: Evidence) -> Check:
    """The growth of one escape in d, against the logarithm or the power that is printed."""
    grown, printed = row.growth, row.printed
    if grown is None or not grown["acted"] >= 1:
        return at_most(
            "one escape: growth in d (the method's own mechanism did not act)", math.nan, 1.0
        )
    small, large = grown["small"], grown["large"]
    says = f"one escape, from d = {small} to {large}: "
    logs = math.log(large) / math.log(small)
    if number in _DIM_POWERS:
        words, each = "power of d", 0.0
        if printed.unit == _ARITHMETIC:  # a call takes d operations
            words, each = "power of d in arithmetic operations", 1.0
        # Both are printed up to logs: this is the power that log d shows between the two.
        power, log_d = _DIM_POWERS[number], math.log(logs) / math.log(large / small)
        calls = _estimate(grown, "power")
        estimate = {name: round(x, 9) + each for name, x in calls.items()}
        most = power + log_d + SLACK
        return at_most(f"{says}{words}", estimate, most, tight=power, factor="d")
    ratio = {name: (large / small) ** x / logs for name, x in _estimate(grown, "power").items()}
    allowed = logs ** (printed.log_power - 1)
    words = f"{says}cost over cost, in units of log d"
    return at_most(words, ratio, LOG_D * allowed, tight=allowed, factor="d")


def _own_checks(number: int, row: Evidence) -> Checks:
    own, power = row.own, row.printed.eps_power
    if own is None:
        yield at_most("saddle to minimum: exponent of 1/eps in the steps", math.nan, power * LOGS)
        return
    units = ("steps", "samples") if number == 14 else ("steps",)
    for unit in units:
        says = f"saddle to minimum: exponent of 1/eps in the {unit}"
        estimate = {end: own[f"{unit}{tail}"] for end, tail in _ENDS.items()}
        yield at_most(says, estimate, power * LOGS, tight=power)
    readings = {"fixed": "per coordinate", "total": "in total"}
    for noise, words in readings.items():
        # The proofs have C and sigma^2 per coordinate: C Tr D^-alpha.
        says = f"to a minimum, C and sigma^2 fixed {words}: T({own['large']}) / T({own['small']})"
        says += " in units of log d"
        estimate = {end: own[f"{noise}{tail}"] for end, tail in _ENDS.items()}
        yield at_most(says, estimate, LOG_D, core=noise == "fixed")


_ENDS = {"value": "", "low": "_low", "high": "_high"}


def is_informative(row: Mapping[str, Any]) -> bool:
    """Whether there are three finite medians, and an interval no wider than 1."""
    return bool(row["points"] >= 3 and row["high"] - row["low"] <= 1.0)


def _estimate(row: Mapping[str, Any], name: str) -> Estimate:
    return {"value": row[name], "low": row["low"], "high": row["high"]}


_CURVATURE = {"hessian", "hvp", "sample_hvp"}


def _needs(name: str) -> frozenset[str]:
    return frozenset(method(name).needs)


def _row(number: int, o: Outcomes) -> Checks:
    yield from row_checks(number, measured_rows(o)[number - 1])


ROW_CLAIMS = tuple(
    Claim(
        f"M{i}",
        f"{row.statement} {row.bound}{' up to logs' * (i in _UP_TO_LOGS)}, by {row.oracle}.",
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
    """Two Hessian-vector methods leave saddles within log d / eps^1.25.

    7/4, as Table 1 prints for the same two papers. A staircase has eps^-1.5 saddles, which can only
    be left one by one.
    """
    for number in (4, 5):
        label = cells.contenders_of_table()[number - 1].label
        row = accuracy(MeasuredCells.of(o), label, "staircase", "clear")
        words = f"row {number}, until the last saddle is left, in gradients and products"
        yield power_check(f"staircase of saddles, {words}", row, 1.25)


@claim("M16", "section 2", "table1", item="Section 2")
def m16(o: Outcomes) -> Checks:
    """All existing methods need full gradients to find the way out; two of them, perturbed gradient
    descent and NEON, stop and try.

    The second half is right. Of the first: noisy SGD, Saddle-NGD, NEON and Natasha 2 reach
    second-order points without a full gradient, the first two of them without a stop.
    """
    found = {r.label: r for r in MeasuredCells.of(o).select("sampled")}
    free = [name for name, r in found.items() if _arrives(r) and not r.ends.get("grad", [0])[0]]
    says = f"rivals at a second-order point without a full gradient ({', '.join(free) or 'none'})"
    yield at_most(says, len(free), 0)
    going = [name for name in free if not found[name].times("sosp", "rests")[0].any()]
    says = f"of these without a step at rest ({', '.join(going) or 'none'})"
    yield at_most(says, len(going), 0, core=False)
    for label in ("perturbed-gd", "neon"):
        acts = least_acts([found[label]], "sosp")
        yield at_least(f"{label}: kicks, or steps at rest, of a run at least", acts, 1, core=False)


def _arrives(result: CellResult) -> bool:
    """Whether nine in ten replicas reach a second-order point."""
    return result.share("sosp") >= 0.9


@claim("M17", "introduction", "table1")
def m17(o: Outcomes) -> Checks:
    """SGLD's escape time grows polynomially in d.

    The strict saddle that was tried does not show it: steps grow like log d where the energy of the
    noise is fixed, and not at all where sigma is. The bound of the cited paper is polynomial, for
    the worst case.
    """
    rows = {r["noise"]: r for r in growth_rows(MeasuredCells.of(o)) if r["method"] == "sgld"}
    for noise, words in (("native", "per coordinate"), ("equal", "in total")):
        row = rows[noise]
        logs = math.log(row["large"]) / math.log(row["small"])
        # The power of d that a logarithm shows between these two, and the slack of an exponent.
        least = math.log(logs) / math.log(row["large"] / row["small"]) + SLACK
        says = f"noise fixed {words}, from d = {row['small']} to {row['large']}: power of d"
        yield reaches(says, _estimate(row, "power"), least)


@claim("M19", "section 2", "table1")
def m19(o: Outcomes) -> Checks:
    """Noisy SGD's escape time grows with d, to the power of four or more.

    The strict saddle that was tried does not show it.
    """
    grown = [r for r in growth_rows(MeasuredCells.of(o)) if r["method"] == "noisy-sgd"]
    for row in grown:
        says = f"from d = {row['small']} to {row['large']}: power of d"
        yield reaches(says, _estimate(row, "power"), 4.0)


@claim("M18", "abstract and section 2", "table1")
def m18(o: Outcomes) -> Checks:
    """The framework outperforms all known first-order methods.

    The best of three of its members against the best of four rivals, all tuned, on small problems:
    cheaper on most of them, without a clear lead on a row of saddles.
    """
    found = MeasuredCells.of(o)
    for family in dict.fromkeys(r.tags["family"] for r in found.select("tuned")):
        times = {}
        for r in found.select("tuned", family=family):
            spent, is_event = r.times("sosp", "spent")
            times[r.label] = np.where(is_event, spent, math.inf)
        # Half of the replicas choose, the others are compared.
        ours, theirs = (
            min(
                (x for x in times if (x in cells.OWN) is own),
                key=lambda x: np.median(times[x][::2]),
            )
            for own in (True, False)
        )
        ratio = ratio_of_medians(times[ours][1::2].tolist(), times[theirs][1::2].tolist())
        yield at_most(f"{family}: cost to a second-order point of {ours} over that of {theirs}",
                      ratio, 1.0)  # fmt: skip


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
    costs = {
        column: {row["method"]: row["spent"] for row in tables[f"standard-{name}"]}
        for column, name in (
            ("saddle_theory", "saddle-theory"),
            ("saddle", "saddle-practical"),
            ("octopus", "octopus-practical"),
        )
    }
    return [
        {
            "row": number,
            "method": row.label,
            "bound": row.printed.bound,
            "unit": row.printed.unit,
            "corrected": row.printed.correction or "as printed",
            "chain": _shown(row.chain, "exponent"),
            "staircase": _shown(row.staircase, "exponent"),
            "power_of_d": _shown(row.growth, "power"),
            "verdict": judge.verdict(list(row_checks(number, row))),
            **{name: cost.get(row.label, math.nan) for name, cost in costs.items()},
        }
        for number, row in enumerate(evidence(tables), start=1)
    ]


def _shown(row: Mapping[str, Any] | None, name: str) -> str:
    """A value and its interval, in two decimals."""
    if row is None:
        return "not run"
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
        if row["noise"].startswith("none") or "aligned" in row["noise"] or "all 0" in row["noise"]:
            says = f"{row['method']}, noise: {row['noise']}: share that left an exact saddle"
            yield at_most(says, row["left"], 0.0)


def _none_of(says: str, shares: Mapping[str, float], least: float) -> Check:
    """A check that no share is below the least."""
    below = [name for name, share in shares.items() if not share >= least]
    return at_most(f"{says} ({', '.join(below) or 'none'} of {len(shares)})", len(below), 0)
