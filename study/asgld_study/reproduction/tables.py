"""Tables of the report: rows of plain values, made from the outcomes alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from asgld_study.experiments import minima
from asgld_study.paper.table1 import report_rows as as_records
from asgld_study.reproduction.runner import Outcomes
from asgld_study.reproduction.statistics import Estimate, median

Row = dict[str, Any]
_ALL_EPS = sorted({*minima.FAST, *minima.SLOW}, reverse=True)


@dataclass(frozen=True)
class Table:
    """A table of an experiment: its name, its heading and how its rows are made."""

    name: str
    experiment: str
    caption: str
    rows: Callable[[Outcomes], list[Row]]


def _study(o: Outcomes) -> list[Row]:
    rows = []
    for v in o["study"].values:
        s = v["summary"]
        rows.append(
            {
                "no.": v["number"],
                "configuration": v["label"],
                "q10": s["q10"],
                "median": s["median"],
                "q90": s["q90"],
                "to max. likelihood": float(np.median(v["final_mle"])),
                "first hit": s["median_hit"],
                "hit at all": s["share_hit"],
                "near, last tenth": s["tail_share"],
                "samples": s["samples"],
            }
        )
    return rows


def _ends(name: str, *keys: str) -> Callable[[Outcomes], list[Row]]:
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


def _identities(o: Outcomes) -> list[Row]:
    (cases,) = (v for v in o["identities"].values if "shards" in v)
    rows = [
        {"comparison": "ASGLD (0, 0) and a hand-written SGLD", "difference": cases["sgld"]},
        {"comparison": "ASGLD (1, inf) and ASG", "difference": cases["asg"]},
        {"comparison": "ASGLD (0, inf) and torch's SGD", "difference": cases["sgd"]},
        *(
            {"comparison": f"ASGLD (1, beta) and ASG, {setting}", "difference": gap}
            for setting, gap in cases["limits"].items()
        ),
    ]
    for v in o["identities"].values:
        if "matched" in v:
            rows.append(
                {
                    "comparison": f"law of ASG and AGLD, {v['steps']} steps, matched: "
                    f"{v['matched']} (critical {v['critical']:.3g})",
                    "difference": v["distance"],
                }
            )
    return rows


def _features(o: Outcomes) -> list[Row]:
    return [
        {
            "features": "rare" if v["zipf"] else "equally frequent",
            "method": v["label"],
            "lr": v["lr"],
            "objective": float(np.mean(v["final"])),
        }
        for v in o["features"].select(seed=0)
    ]


def _with_interval(name: str, of: Estimate) -> Row:
    return {name: of["value"], "low": of["low"], "high": of["high"]}


def _exponents(o: Outcomes) -> list[Row]:
    return [
        {
            "case": v["label"],
            **_with_interval("last", v["last"]),
            "weighted average": v["average"]["value"],
            "published": v["published"],
            "corrected": v["corrected"],
        }
        for v in o["exponents"].values
    ]


def _delta(o: Outcomes) -> list[Row]:
    return [
        {
            "alpha": v["alpha"],
            "beta": v["beta"],
            "delta": v["delta"],
            **_with_interval("exponent", v["last"]),
            "if delta feeds D": v["with_delta"],
            "if it does not": v["without_delta"],
        }
        for v in o["delta"].values
    ]


def _escape(name: str) -> Callable[[Outcomes], list[Row]]:
    def rows(o: Outcomes) -> list[Row]:
        return [
            {
                "sweep": v["sweep"],
                "method": v["label"],
                "d": v["dim"],
                "gamma": v["gamma"],
                "k0": v["k0"],
                "beta": v["beta"],
                "rotated": "yes" if v["rotated"] else "no",
                "distance": median(v["distance"])["value"],
                "predicted": v["distance_predicted"],
                "value": median(v["value"])["value"],
                "predicted value": v["value_predicted"],
            }
            for v in o[name].values
        ]

    return rows


def _plateau(o: Outcomes) -> list[Row]:
    return [
        {
            "d": v["dim"],
            "B": v["batch"],
            "floor": v["late"]["value"],
            "I2 + I3": v["I2"] + v["I3"],
            "d (I2 + I3)": v["dim"] * (v["I2"] + v["I3"]),
        }
        for v in o["plateau"].values
    ]


def _minima(o: Outcomes) -> list[Row]:
    return [
        {
            "method": v["label"],
            "d": v["dim"],
            "noise": v["noise"],
            **{f"eps = {eps:g}": v["steps"].get(str(eps), "") for eps in _ALL_EPS},
        }
        for v in o["minima"].values
    ]


TABLES = (
    Table("study", "study", "Squared error at the end over data sets, and hitting times.", _study),
    Table("settings", "settings", "Every setting.", _ends("settings", "lr", "sigma")),
    Table("spaces", "spaces", "In x.", _ends("spaces", "space", "lr", "d_init")),
    Table("starts", "starts", "Every start of D.", _ends("starts", "lr", "d_init", "delta")),
    Table("lag", "lag", "By the literal algorithm.", _ends("lag", "lag")),
    Table(
        "identities",
        "identities",
        "Largest differences after 200 steps, and distances of distributions.",
        _identities,
    ),
    Table("features", "features", "Objective at the end.", _features),
    Table("plateau", "plateau", "Mean squared gradient of SGLD.", _plateau),
    Table(
        "exponents",
        "exponents",
        "Exponents over the last decade, with 95 % intervals of the last iterate.",
        _exponents,
    ),
    Table("delta", "delta", "Exponents with a tiny and with a real delta.", _delta),
    Table("dimension", "dimension", "Median steps, measured and predicted.", _escape("dimension")),
    Table("escape", "escape", "Median steps, measured and predicted.", _escape("escape")),
    Table("front", "front", "Median steps, measured and predicted.", _escape("front")),
    Table("minima", "minima", "Steps to a minimum.", _minima),
    Table(
        "table1",
        "table1",
        "Powers of 1/eps on the worst-case chain, and steps until f fell below a saddle in d "
        "dimensions. Tuned comparisons on more problems: asgld table1.",
        as_records,
    ),
)
