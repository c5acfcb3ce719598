"""The numbers of Table 1: tables made from the results of its cells, without verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asgld.problems import problem
from asgld_study.catalog import BY_LABEL, CONTENDERS
from asgld_study.cells import CellResult
from asgld_study.engine import Outcomes
from asgld_study.events import EVENTS
from asgld_study.paper.minima import own_numbers
from asgld_study.paper.table1_cells import SPREAD, Settings
from asgld_study.statistics import fit_growth, fit_slope, named, survival_median

TableRows = list[dict[str, Any]]
UNITS = ("steps", "spent", "value", "grad", "sample_grad", "hvp", "sample_hvp", "hessian",
         "eigh", "samples")  # fmt: skip
# Outer iterations are the unit of these bounds; gradient-equivalents of all others.
_ITERATIONS = ("cubic-newton", "trace")
_CURVATURE = ("hvp", "sample_hvp", "hessian")


@dataclass(frozen=True)
class MeasuredCells:
    """Results of cells, and the settings that were found for them."""

    results: Sequence[CellResult]
    tuned: Settings = field(default_factory=dict)
    minima: Outcomes = field(default_factory=dict)  # of the experiment of that name

    @classmethod
    def of(cls, outcomes: Outcomes) -> MeasuredCells:
        """From the outcomes of the experiment "table1"."""
        minima = {name: found for name, found in outcomes.items() if name == "minima"}
        return cls([CellResult(**v) for v in outcomes["table1"].values], minima=minima)

    def select(self, sweep: str, **tags: Any) -> list[CellResult]:
        """Results of one sweep whose tags have these values; failed ones too."""
        wanted = {"sweep": sweep, **tags}
        return [r for r in self.results if all(r.tags.get(k) == v for k, v in wanted.items())]


def unit_of(label: str) -> str:
    """The unit in which the method's bound counts."""
    return "steps" if label in _ITERATIONS else "spent"


def accuracy(found: MeasuredCells, label: str, sweep: str, event: str = "sosp") -> dict[str, Any]:
    """Exponent of 1/eps in the cost, from the last three accuracies with a finite median."""
    by_x = _sorted_by(lambda r: -math.log(r.tags["eps"]), found.select(sweep, label=label))
    samples = [r.times(event, unit_of(label)) for r in by_x.values()]
    slope = fit_slope(list(by_x), samples, log_time=True, last=3)
    exponent = {**named("exponent", slope), "points": slope["points"]}
    acted = {"acted": least_acts(by_x.values(), event)}
    return {"method": label, "sweep": sweep, **exponent, **acted}


def least_acts(results: Iterable[CellResult], event: str) -> float:
    """How often a method did what it does against saddles, in the replica that did it least.

    That is a kick of perturbed-gd (a second gradient in a step), a step of a search of neon (x
    rests), a product or a Hessian of those that ask for them, and a step for methods with noise in
    each. Counted are replicas that had the event; nan without any.
    """
    counts: list[float] = []
    for r in results:
        steps, is_event = r.times(event)
        used = {unit: r.times(event, unit)[0][is_event] for unit in r.events[event]}
        label, acts = r.label, steps[is_event]
        if label == "perturbed-gd":
            acts = used["grad"] - acts
        elif label == "neon":
            acts = used["rests"]
        elif label in SPREAD or BY_LABEL[label].oracle in ("hvp", "hessian"):
            acts = sum((used[kind] for kind in _CURVATURE if kind in used), 0.0 * acts)
        counts += acts.tolist()
    return min(counts, default=math.nan)


def growth_rows(found: MeasuredCells) -> TableRows:
    """Cost of one escape from the middle dimension to the largest, for the rows of the table.

    Methods with products run where curvatures are spread, and pay gradient-equivalents.
    """
    rows = []
    for contender in CONTENDERS:
        label = contender.label
        for sweep, noise in (("spread", ""), ("dimension", "equal"), ("dimension", "native"),
                             ("dimension", "none")):  # fmt: skip
            tags = {"noise": noise} if noise else {}
            mine = [
                r
                for r in found.select(sweep, label=label, **tags)
                if r.cell["problem_options"]["rotated"]
            ]
            by_dim = _sorted_by(lambda r: r.cell["problem_options"]["dim"], mine)
            if len(by_dim) < 2 or (sweep == "dimension" and label in SPREAD):
                continue
            dims = list(by_dim)
            ends = [dims[(len(dims) - 1) // 2], dims[-1]]
            unit = "spent" if sweep == "spread" else "steps"
            samples = [by_dim[d].times("fall", unit) for d in ends]
            power = fit_slope(np.log(ends).tolist(), samples, log_time=True)
            acted = least_acts([by_dim[d] for d in ends], "fall")
            rows.append({"method": label, "noise": noise or "spread", "small": ends[0],
                         "large": ends[1], **named("power", power), "acted": acted})  # fmt: skip
    return rows


def measured_tables(found: MeasuredCells) -> dict[str, TableRows]:
    """The tables of `asgld table1` by file name: numbers alone, no verdicts."""
    families = (("saddle", "theory"), ("saddle", "practical"), ("octopus", "practical"))
    return {
        "accuracy": [
            accuracy(found, label, sweep)
            for sweep in ("chain", "staircase")
            for label in BY_LABEL
            if found.select(sweep, label=label)
        ],
        "growth": growth_rows(found),
        "minima": own_numbers(found.minima) if found.minima else [],
        "dimension": dimension_rows(found, "fall"),
        "dimension-leave": dimension_rows(found, "leave"),
        "gamma": curvature_rows(found),
        "late-saddles": late_rows(found),
        "octopus": octopus_rows(found),
        "controls": [
            {"method": r.label, "noise": r.tags["noise"], "left": r.share("leave"),
             "median": r.median("leave")}
            for r in found.select("control")
        ],
        "criteria": [
            {"method": r.label, **{event: r.median(event) for event in EVENTS}}
            for c in CONTENDERS
            for r in found.select("standard", family="saddle", mode="practical", label=c.label)
        ],
        "sensitivity": sensitivity_rows(found),
        "realistic": realistic_rows(found),
        "settings": [
            {"family": family, "method": label, "options": _words(tuned.options),
             "cost": tuned.cost, "failed_trials": len(tuned.failed)}
            for (family, label), tuned in found.tuned.items()
        ],
        "cells": cell_rows(found),
        "failures": failures(found.results),
        **{
            f"standard-{family}-{mode}": standard_rows(found, "standard", family, mode)
            for family, mode in families
        },
        **{
            f"exact-saddle-{mode}": standard_rows(found, "exact saddle", "saddle", mode)
            for mode in ("theory", "practical")
        },
    }  # fmt: skip


def cell_rows(found: MeasuredCells) -> TableRows:
    """Every cell: what it was, and its censored medians."""
    rows = []
    for result in found.results:
        cell, tags = result.cell, dict(result.tags)
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


def failures(results: Sequence[CellResult]) -> TableRows:
    """Cells that raised, and how."""
    return [
        {"method": r.label, "problem": r.cell["problem"], "error": r.error}
        for r in results
        if r.error
    ]


def standard_rows(found: MeasuredCells, sweep: str, family: str, mode: str) -> TableRows:
    """One row per method: share that got to a second-order point, and median costs of it."""
    return [
        {
            "row": contender.row or "",
            "method": contender.label,
            "oracle": contender.oracle,
            "share": result.share("sosp"),
            "share_mean": result.share("mean"),
            **{unit: result.median("sosp", unit) for unit in UNITS},
            "seconds": result.seconds / result.cell["replicas"],
            "error": result.error,
        }
        for contender in CONTENDERS
        for result in found.select(sweep, family=family, mode=mode, label=contender.label)
    ]


def dimension_rows(found: MeasuredCells, event: str) -> TableRows:
    """Escape time against d: medians, the slope per ln d, and the best of three laws."""
    groups: dict[tuple[str, str, bool], list[CellResult]] = {}
    for r in found.select("dimension"):
        key = (r.label, r.tags["noise"], r.cell["problem_options"]["rotated"])
        groups.setdefault(key, []).append(r)
    rows = []
    for (label, noise, rotated), results in groups.items():
        by_dim = _sorted_by(lambda r: r.cell["problem_options"]["dim"], results)
        samples = [r.times(event) for r in by_dim.values()]
        slope = fit_slope(np.log(list(by_dim)).tolist(), samples, log_time=False)
        laws, power = fit_growth(list(by_dim), [r.median(event) for r in by_dim.values()])
        rows.append(
            {
                "method": label,
                "noise": noise,
                "rotated": rotated,
                **_medians("d", by_dim, event),
                **named("slope", slope),
                "laws": laws,
                "power": power,
            }
        )
    return rows


def late_rows(found: MeasuredCells) -> TableRows:
    """Time to leave a saddle that is met at step k0, and its exponent in k0."""
    rows = []
    for alpha in sorted({r.tags["alpha"] for r in found.select("k0")}):
        by_k0 = _sorted_by(lambda r: r.tags["k0"], found.select("k0", alpha=alpha))
        late = [k0 for k0 in by_k0 if k0 > 0][-2:]
        samples = [by_k0[k0].times("leave") for k0 in late]
        slope = fit_slope([math.log(k0) for k0 in late], samples, log_time=True)
        medians = _medians("k0", by_k0, "leave")
        rows.append({"alpha": alpha, **medians, **named("exponent", slope), "law": alpha / 2})
    return rows


def curvature_rows(found: MeasuredCells) -> TableRows:
    """Time to fall against gamma, and its exponent in 1/gamma."""
    rows = []
    for label in dict.fromkeys(r.label for r in found.select("gamma")):
        mine = found.select("gamma", label=label)
        by_gamma = _sorted_by(lambda r: r.cell["problem_options"]["gamma"], mine)
        samples = [r.times("fall") for r in by_gamma.values()]
        slope = fit_slope([-math.log(g) for g in by_gamma], samples, log_time=True)
        medians = _medians("gamma", by_gamma, "fall")
        rows.append({"method": label, **medians, **named("exponent", slope)})
    return rows


def octopus_rows(found: MeasuredCells) -> TableRows:
    """Steps to the minimum of the octopus against d."""
    rows = []
    for contender in CONTENDERS:
        mine = found.select("octopus", label=contender.label)
        by_dim = _sorted_by(lambda r: r.tags["dim"], mine)
        if by_dim:
            medians, largest = _medians("d", by_dim, "sosp"), by_dim[max(by_dim)]
            rows.append(
                {
                    "method": contender.label,
                    **medians,
                    "share_arrived": largest.share("sosp"),
                    "share_mean": largest.share("mean"),
                    "share_past_saddles": _share_past_saddles(largest),
                    "power": fit_growth(list(by_dim), list(medians.values()))[1],
                }
            )
    return rows


def _sorted_by(
    key: Callable[[CellResult], Any], results: Sequence[CellResult]
) -> dict[Any, CellResult]:
    """The results that did not fail by their key, which rises."""
    found = {key(r): r for r in results if not r.error}
    return {x: found[x] for x in sorted(found)}


def _medians(name: str, results: Mapping[Any, CellResult], event: str) -> dict[str, float]:
    """A column for each key."""
    return {f"{name}={x}": r.median(event) for x, r in results.items()}


def _share_past_saddles(result: CellResult) -> float:
    """The part of the replicas that ended below the last saddle, by half of its depth."""
    facts = problem(result.cell["problem"], **result.cell["problem_options"]).facts
    assert facts.minimum is not None
    last = 0.5 * (facts.minimum + facts.saddles[-1].value)
    return float(np.mean(np.array(result.ends["final_value"]) < last))


def tuned_families(found: MeasuredCells) -> dict[str, list[CellResult]]:
    """Family -> results of all methods as tuned."""
    families: dict[str, list[CellResult]] = {}
    for r in found.select("standard", mode="practical"):
        families.setdefault(r.tags["family"], []).append(r)
    return families


def realistic_rows(found: MeasuredCells) -> TableRows:
    """Tuned methods on problems that users have: cost to a second-order point, and the end."""
    rows = []
    for family, results in tuned_families(found).items():
        ends = {r.label: r.ends.get("final_value", []) for r in results}
        finite = [v for values in ends.values() for v in values if math.isfinite(v)]
        lowest = min(finite, default=math.nan)
        for r in results:
            values = ends[r.label]
            rows.append(
                {
                    "problem": family,
                    "method": r.label,
                    "oracle": BY_LABEL[r.label].oracle,
                    "share": r.share("sosp"),
                    "share_mean": r.share("mean"),
                    "cost": r.median("sosp", "spent"),
                    "steps": r.median("sosp"),
                    "gap": float(np.median(values)) - lowest if values else math.nan,
                    "seconds": r.seconds / r.cell["replicas"],
                    "error": r.error,
                }
            )
    return rows


# Gradient-equivalents of a Hessian-vector product, and of a Hessian over d; the first are ours.
PRICES = ((2.0, 1.0), (4.0, 1.0), (2.0, 2.0), (4.0, 2.0))


def price_name(hvp: float, hessian: float) -> str:
    """The column of a price list."""
    return f"hvp {hvp:g}, hessian {hessian:g} d"


def sensitivity_rows(found: MeasuredCells) -> TableRows:
    """Costs and ranks of tuned methods under four price lists; `moves` where the rank changes."""
    names = [price_name(*prices) for prices in PRICES]
    rows = []
    for family, results in tuned_families(found).items():
        costs = np.array([[cost_at(r, *prices) for prices in PRICES] for r in results])
        ranks = 1 + (costs[None] < costs[:, None] - 1e-9).sum(axis=1)
        rows += [
            {
                "problem": family,
                "method": result.label,
                **dict(zip(names, cost.tolist(), strict=True)),
                "ranks": " ".join(str(r) for r in rank),
                "moves": bool(np.isfinite(cost[0]) and len(set(rank.tolist())) > 1),
            }
            for result, cost, rank in zip(results, costs, ranks, strict=True)
        ]
    return rows


def cost_at(result: CellResult, hvp: float, hessian: float, event: str = "sosp") -> float:
    """Median cost of the event if a product cost `hvp` gradients and a Hessian `hessian` d of them.

    What was spent holds products at 2 and Hessians at d, so only the difference in price is added.
    Whole products and Hessians are counted. Of products over batches the calls are counted and not
    their samples, P. These follow from two sums over all calls of n samples, with V the samples of
    values over batches:

        n spent - samples = n (products + (d - 1) Hessians - values / 2) + P - V / 2.
    """
    if event not in result.events:
        return math.nan
    subject = problem(result.cell["problem"], **result.cell["problem_options"])
    n, dim = subject.num_samples or 1, subject.dim
    spent, is_event = result.times(event, "spent")
    values, products, hessians, samples, sampled_values = (
        result.times(event, unit)[0]
        for unit in ("value", "hvp", "hessian", "samples", "sample_value")
    )
    # Only natasha2 asks for values over batches: one for each of its epochs.
    batch = min(result.cell["options"].get("epoch_batch", 1024), n)
    with np.errstate(invalid="ignore"):  # a replica that never arrives has used infinitely much
        sampled = n * spent - samples + 0.5 * (sampled_values * batch)
        sampled -= n * (products + (dim - 1) * hessians - 0.5 * values)
        extra = (hvp - 2.0) * (products + sampled / n) + (hessian - 1.0) * dim * hessians
    return survival_median(np.where(is_event, spent + extra, math.inf), is_event)


def _words(options: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}"
                    for k, v in options.items())  # fmt: skip
