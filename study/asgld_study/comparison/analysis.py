"""From the results of Table 1 to rows: what was measured, and what it says.

A bound is an upper bound: a measured exponent below it is consistent with it and proves nothing.
Verdicts are therefore three: "violates", the whole interval of the fitted exponent lies above the
bound; "uninformative", there are fewer than three finite medians or the interval is wider than 1;
and otherwise "consistent".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from asgld.problems import problem
from asgld.theory import table1
from asgld_study.experiments import escape
from asgld_study.experiments.table1 import Study, contenders_of_table
from asgld_study.sweep.catalog import BY_LABEL, CONTENDERS
from asgld_study.sweep.engine import Result
from asgld_study.sweep.events import EVENTS
from asgld_study.sweep.survival import Slope, fit_growth, fit_slope, median

UNITS = ("steps", "spent", "value", "grad", "sample_grad", "hvp", "sample_hvp", "hessian",
         "eigh", "samples")  # fmt: skip
# An exponent may lie above a bound by this much before it counts: logs are part of every bound.
_LOGS = 0.1
# Outer iterations are the unit of these bounds; gradient-equivalents of all others.
_ITERATIONS = ("cubic-newton", "trace")
Row = dict[str, Any]


def cell_rows(study: Study) -> list[Row]:
    """Every cell: what it was, and its censored medians."""
    rows = []
    for result in study.results:
        cell, tags = result.cell, dict(result.cell["tags"])
        row = {
            "sweep": tags.pop("sweep"),
            "method": result.label,
            "problem": cell["problem"],
            "problem_options": _words(cell["problem_options"]),
            "options": _words(cell["options"]),
            "start": cell["start"],
            "tags": _words({k: v for k, v in tags.items() if k != "label"}),
            "seeds": cell["replicas"],
            "eps": cell["eps"],
            "gamma": cell["gamma"],
        }
        for event in EVENTS:
            row[f"share_{event}"] = result.share(event)
            row[f"steps_{event}"] = result.median(event)
            row[f"cost_{event}"] = result.median(event, "spent")
        rows.append({**row, "seconds": result.seconds, "error": result.error})
    return rows


def setting_rows(study: Study) -> list[Row]:
    """What the searches found."""
    return [
        {
            "family": family,
            "method": label,
            "options": _words(tuned.options),
            "cost": tuned.cost,
            "failed_trials": len(tuned.failed),
        }
        for (family, label), tuned in study.tuned.items()
    ]


def failures(results: Sequence[Result]) -> list[Row]:
    """Cells that raised, and how."""
    return [
        {"method": r.label, "problem": r.cell["problem"], "error": r.error}
        for r in results
        if r.error
    ]


# ------------------------------------------------------------------------------------ Table 1


def standard_rows(study: Study, family: str, mode: str, sweep: str = "standard") -> list[Row]:
    """One row per method: share that got to a second-order point, and median costs of it."""
    rows = []
    for contender in CONTENDERS:
        for result in study.select(sweep, family=family, mode=mode, label=contender.label):
            medians = {unit: result.median("sosp", unit) for unit in UNITS}
            rows.append(
                {
                    "row": contender.row or "",
                    "method": contender.label,
                    "oracle": contender.oracle,
                    "share": result.share("sosp"),
                    "share_mean": result.share("mean"),
                    **medians,
                    "seconds": result.seconds / result.cell["replicas"],
                    "error": result.error,
                }
            )
    return rows


def table_rows(study: Study) -> list[Row]:
    """The measured Table 1: published bound, its unit, measured exponents and the verdict."""
    printed = {row.name: row for row in table1()}
    escapes = {r["method"]: r for r in dimension_rows(study) if r["rotated"]}
    escapes |= {
        r["method"]: r for r in dimension_rows(study) if r["rotated"] and r["noise"] == "equal"
    }
    rows = []
    for contender in contenders_of_table():
        published = printed[f"Table 1 row {contender.row}"]
        chain, coupled = (
            eps_slope(study, contender.label, sweep) for sweep in ("chain", "octopus eps")
        )
        standard = {
            name: (study.select("standard", family=family, mode=mode, label=contender.label))
            for name, family, mode in (
                ("saddle_theory", "saddle", "theory"),
                ("saddle", "saddle", "practical"),
                ("octopus", "octopus", "practical"),
            )
        }
        rows.append(
            {
                "row": contender.row,
                "method": contender.label,
                "bound": published.bound,
                "unit": published.unit,
                "corrected": published.correction or "as printed",
                "chain": slope_in_words(chain),
                "chain_verdict": verdict(chain, published.eps_power),
                "coupled": slope_in_words(coupled),
                "coupled_verdict": verdict(coupled, published.eps_power),
                "per_ln_d": _escape_words(escapes.get(contender.label)),
                **{
                    name: (found[0].median("sosp", "spent") if found else math.nan)
                    for name, found in standard.items()
                },
            }
        )
    return rows


def _escape_words(row: Row | None) -> str:
    if row is None:
        return "as agld: full gradients cannot grow"
    return in_words(row["slope"], row["low"], row["high"])


def unit_of(label: str) -> str:
    """The unit in which the method's bound counts."""
    return "steps" if label in _ITERATIONS else "spent"


def eps_slope(study: Study, label: str, sweep: str) -> Slope:
    """Exponent of 1/eps in the cost, from the last three accuracies with a finite median."""
    results = sorted(study.select(sweep, label=label), key=lambda r: -r.cell["tags"]["eps"])
    results = [r for r in results if not r.error]
    x = [-math.log(r.cell["tags"]["eps"]) for r in results]
    samples = [r.times("sosp", unit_of(label)) for r in results]
    return fit_slope(x, samples, log_time=True, last=3)


def verdict(slope: Slope, bound: float) -> str:
    """See the module's docstring."""
    if math.isnan(bound) or slope.points < 3 or not slope.high - slope.low <= 1.0:
        return "uninformative"
    return "violates" if slope.low > bound + _LOGS else "consistent"


# ------------------------------------------------------------------------------------ sweeps


def dimension_rows(study: Study, event: str = "fall") -> list[Row]:
    """Escape time against d: medians, the slope per ln d, and the best of three laws."""
    rows = []
    groups = {
        (r.label, r.cell["tags"]["noise"], r.cell["problem_options"]["rotated"]): None
        for r in study.select("dimension")
    }
    for label, noise, rotated in groups:
        found = [
            r
            for r in study.select("dimension", label=label, noise=noise)
            if r.cell["problem_options"]["rotated"] == rotated and not r.error
        ]
        found.sort(key=lambda r: r.cell["problem_options"]["dim"])
        dims = [r.cell["problem_options"]["dim"] for r in found]
        medians = [r.median(event) for r in found]
        slope = fit_slope(np.log(dims).tolist(), [r.times(event) for r in found], log_time=False)
        growth = fit_growth(dims, medians)
        rows.append(
            {
                "method": label,
                "noise": noise,
                "rotated": rotated,
                **{f"d={d}": m for d, m in zip(dims, medians, strict=True)},
                "slope": slope.value,
                "low": slope.low,
                "high": slope.high,
                "laws": growth.laws,
                "power": growth.power,
            }
        )
    return rows


def predicted_slope(gamma: float = escape.GAMMA, lr: float = escape.LR) -> float:
    """Steps per ln d of a method whose unstable direction grows by 1 + lr gamma.

    >>> round(predicted_slope(), 2)
    10.25
    """
    return 1.0 / (2.0 * math.log1p(lr * gamma))


def late_rows(study: Study) -> list[Row]:
    """Time to leave a saddle that is met at step k0, and its exponent in k0."""
    rows = []
    for alpha in sorted({r.cell["tags"]["alpha"] for r in study.select("k0")}):
        found = sorted(study.select("k0", alpha=alpha), key=lambda r: r.cell["tags"]["k0"])
        late = [r for r in found if r.cell["tags"]["k0"] > 0][-2:]
        slope = fit_slope(
            [math.log(r.cell["tags"]["k0"]) for r in late],
            [r.times("leave") for r in late],
            log_time=True,
        )
        rows.append(
            {
                "alpha": alpha,
                **{f"k0={r.cell['tags']['k0']}": r.median("leave") for r in found},
                "exponent": slope.value,
                "low": slope.low,
                "high": slope.high,
                "law": alpha / 2,
            }
        )
    return rows


def curvature_rows(study: Study) -> list[Row]:
    """Time to fall against gamma, and its exponent in 1/gamma."""
    rows = []
    for label in dict.fromkeys(r.label for r in study.select("gamma")):
        found = sorted(
            study.select("gamma", label=label), key=lambda r: r.cell["problem_options"]["gamma"]
        )
        gammas = [r.cell["problem_options"]["gamma"] for r in found]
        slope = fit_slope(
            [-math.log(g) for g in gammas], [r.times("fall") for r in found], log_time=True
        )
        rows.append(
            {
                "method": label,
                **{f"gamma={g}": r.median("fall") for g, r in zip(gammas, found, strict=True)},
                "exponent": slope.value,
                "low": slope.low,
                "high": slope.high,
            }
        )
    return rows


def octopus_rows(study: Study) -> list[Row]:
    """Steps to the minimum of the octopus against d."""
    rows = []
    for contender in CONTENDERS:
        found = study.select("octopus", label=contender.label)
        found.sort(key=lambda r: r.cell["tags"]["dim"])
        if not found:
            continue
        dims = [r.cell["tags"]["dim"] for r in found]
        medians = [r.median("sosp") for r in found]
        growth = fit_growth(dims, medians)
        rows.append(
            {
                "method": contender.label,
                **{f"d={d}": m for d, m in zip(dims, medians, strict=True)},
                "share_arrived": found[-1].share("sosp"),
                "share_mean": found[-1].share("mean"),
                "share_past_saddles": _share_past_saddles(found[-1]),
                "power": growth.power,
            }
        )
    return rows


def _share_past_saddles(result: Result) -> float:
    """The part of the replicas that ended below the last saddle, by half of its depth."""
    if result.error:
        return math.nan
    facts = problem(result.cell["problem"], **result.cell["problem_options"]).facts
    assert facts.minimum is not None
    last = 0.5 * (facts.minimum + facts.saddles[-1].value)
    return float(np.mean(np.array(result.ends["final_value"]) < last))


def control_rows(study: Study) -> list[Row]:
    """What must stay at an exact saddle, and what need not."""
    return [
        {
            "method": r.label,
            "noise": r.cell["tags"]["noise"],
            "left": r.share("leave"),
            "median": r.median("leave"),
        }
        for r in study.select("control")
    ]


def realistic_rows(study: Study) -> list[Row]:
    """Tuned methods on problems that users have: cost to a second-order point, and the end."""
    rows = []
    families = dict.fromkeys(
        r.cell["tags"]["family"] for r in study.select("standard", mode="practical")
    )
    for family in families:
        found = study.select("standard", family=family, mode="practical")
        finite = [
            v for r in found if not r.error for v in r.ends["final_value"] if math.isfinite(v)
        ]
        lowest = min(finite) if finite else math.nan
        for result in found:
            values = [] if result.error else result.ends["final_value"]
            rows.append(
                {
                    "problem": family,
                    "method": result.label,
                    "oracle": BY_LABEL[result.label].oracle,
                    "share": result.share("sosp"),
                    "share_mean": result.share("mean"),
                    "cost": result.median("sosp", "spent"),
                    "steps": result.median("sosp"),
                    "gap": float(np.median(values)) - lowest if values else math.nan,
                    "seconds": result.seconds / result.cell["replicas"],
                    "error": result.error,
                }
            )
    return rows


def criteria_rows(study: Study) -> list[Row]:
    """Median steps to each event beside the strict saddle, tuned: what counts as an escape."""
    return [
        {"method": r.label, **{event: r.median(event) for event in EVENTS}}
        for c in CONTENDERS
        for r in study.select("standard", family="saddle", mode="practical", label=c.label)
    ]


# ------------------------------------------------------------------------------------ prices

# Gradient-equivalents of a Hessian-vector product, and of a Hessian over d.
PRICES = ((2.0, 1.0), (4.0, 1.0), (2.0, 2.0), (4.0, 2.0))


def cost_at(result: Result, hvp: float, hessian: float, event: str = "sosp") -> float:
    """Median cost of the event if products and Hessians had other prices than 2 and d.

    Calls over samples are not counted by kind. What products over samples cost follows from the
    sums over all samples and over all prices.
    """
    if result.error or event not in result.events:
        return math.nan
    subject = problem(result.cell["problem"], **result.cell["problem_options"])
    n, dim = subject.num_samples or 1, subject.dim
    spent, is_event = result.times(event, "spent")
    value, product, matrix, samples, sample_values = (
        result.times(event, unit)[0]
        for unit in ("value", "hvp", "hessian", "samples", "sample_value")
    )
    with np.errstate(invalid="ignore"):  # a replica that never arrives has used infinitely much
        valued = sample_values * min(result.cell["options"].get("epoch_batch", 1024), n)
        sampled = n * spent - samples + 0.5 * valued
        sampled -= n * (product + (dim - 1) * matrix - 0.5 * value)
        extra = (hvp - 2.0) * (product + sampled / n) + (hessian - 1.0) * dim * matrix
    return median(np.where(is_event, spent + extra, math.inf), is_event)


def sensitivity_rows(study: Study) -> list[Row]:
    """Costs and ranks of tuned methods under four price lists; `moves` where the rank changes."""
    rows = []
    found = study.select("standard", mode="practical")
    for family in dict.fromkeys(r.cell["tags"]["family"] for r in found):
        results = [r for r in found if r.cell["tags"]["family"] == family]
        costs = np.array([[cost_at(r, *prices) for prices in PRICES] for r in results])
        ranks = 1 + (costs[None] < costs[:, None] - 1e-9).sum(axis=1)
        for result, cost, rank in zip(results, costs, ranks, strict=True):
            names = [f"hvp {hvp:g}, hessian {hessian:g} d" for hvp, hessian in PRICES]
            rows.append(
                {
                    "problem": family,
                    "method": result.label,
                    **dict(zip(names, cost.tolist(), strict=True)),
                    "ranks": " ".join(str(r) for r in rank),
                    "moves": bool(np.isfinite(cost[0]) and len(set(rank.tolist())) > 1),
                }
            )
    return rows


# ------------------------------------------------------------------------------------ words


def slope_in_words(slope: Slope) -> str:
    """A fitted exponent and its interval."""
    return in_words(slope.value, slope.low, slope.high)


def in_words(value: float, low: float, high: float) -> str:
    """A value and its interval."""
    if math.isnan(value):
        return "too few points"
    value, low, high = (round(v, 2) + 0.0 for v in (value, low, high))  # no minus before a zero
    # Without chance, as on the chain, the interval is a point.
    return f"{value:.2f}" if low == high else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _words(options: dict[str, Any]) -> str:
    return " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}"
                    for k, v in options.items())  # fmt: skip
