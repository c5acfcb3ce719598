"""The rows of Table 1 as measured: powers of 1/eps on the chain, growth with d on the saddle."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from asgld.theory import Table1Row, table1
from asgld_study.comparison import analysis
from asgld_study.experiments.table1 import Study, contenders_of_table
from asgld_study.reproduction.runner import Outcomes
from asgld_study.reproduction.statistics import Estimate, ratio_of_medians
from asgld_study.sweep.engine import Result


@dataclass(frozen=True)
class Row:
    """One method of the table.

    Args:
        printed: what the paper prints, and what is known of it.
        method: its label here.
        power: exponent of 1/eps on the chain, NaN if it was not run or got there too rarely.
        informative: whether that exponent can tell anything about the bound.
        was_run: whether the chain was tried at all.
        times: dimension -> steps of each replica until the function fell.
    """

    printed: Table1Row
    method: str
    power: Estimate
    informative: bool
    was_run: bool
    times: dict[int, list[float]]

    @property
    def median_steps(self) -> dict[int, float]:
        """Median steps to fall, by dimension."""
        return {dim: float(np.median(times)) for dim, times in self.times.items()}

    @property
    def growth(self) -> tuple[int, int, Estimate] | None:
        """From the middle dimension to the largest: both, and the ratio of times over log d."""
        dims = sorted(self.times)
        if len(dims) < 2 or not all(np.isfinite(np.median(self.times[d])) for d in dims):
            return None
        small, large = dims[(len(dims) - 1) // 2], dims[-1]
        ratio = ratio_of_medians(self.times[large], self.times[small])
        allowed = math.log(large) / math.log(small)
        return small, large, {name: x / allowed for name, x in ratio.items()}


def table_rows(outcomes: Outcomes) -> list[Row]:
    """All fourteen, in the order printed."""
    results = [Result(**value) for value in outcomes["table1"].values]
    study = Study("rows", results)
    rows = []
    for printed, contender in zip(table1(), contenders_of_table(), strict=True):
        slope = analysis.eps_slope(study, contender.label, "chain")
        rows.append(
            Row(
                printed,
                contender.label,
                {"value": slope.value, "low": slope.low, "high": slope.high},
                analysis.verdict(slope, printed.eps_power) != "uninformative",
                bool(study.select("chain", label=contender.label)),
                {
                    int(result.cell["problem_options"]["dim"]): _steps(result)
                    for result in study.select("dimension", label=contender.label)
                },
            )
        )
    return rows


def _steps(result: Result) -> list[float]:
    times, is_event = result.times("fall")
    return [float(t) for t in np.where(is_event, times, math.inf)]


def as_records(outcomes: Outcomes) -> list[dict[str, Any]]:
    """The rows for a table of the report."""
    records = []
    for number, row in enumerate(table_rows(outcomes), start=1):
        steps = row.median_steps
        records.append(
            {
                "row": number,
                "method": row.method,
                "bound": row.printed.bound,
                "unit": row.printed.unit,
                "oracle": row.printed.oracle,
                "power of 1/eps": row.power["value"],
                "printed power": row.printed.eps_power,
                **{f"T, d = {dim}": steps.get(dim, math.nan) for dim in _dims(outcomes)},
            }
        )
    return records


def _dims(outcomes: Outcomes) -> list[int]:
    return sorted({dim for row in table_rows(outcomes) for dim in row.times})
