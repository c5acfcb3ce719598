"""The page of `asgld table1`, made from its tables and its manifest alone.

A run makes it from fresh tables, :func:`committed_page` from files that an earlier run left.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import asgld
import asgld_study
from asgld.run.files import as_csv, write_text
from asgld_study.catalog import BY_LABEL, CONTENDERS
from asgld_study.drawing import Picture
from asgld_study.engine import NUMERICS, parts_of
from asgld_study.page import as_text, markdown, markdown_table
from asgld_study.paper import table1_cells as cells
from asgld_study.paper import table1_figures
from asgld_study.paper.table1 import judged_tables, predicted_slope
from asgld_study.paper.table1_tables import PRICES, MeasuredCells, TableRows, price_name
from asgld_study.settings import SETTINGS

Tables = Mapping[str, TableRows]
PICTURES = parts_of(table1_figures, Picture)
_TEXT = Path(asgld_study.__file__).parent / "assets" / "table1.md"


def manifest(
    size: str, found: MeasuredCells, command: str, machine: Mapping[str, Any]
) -> dict[str, Any]:
    """How the results came about."""
    plan = cells.EXTENTS[size]
    return {
        "command": command,
        "size": size,
        "asgld": asgld.__version__,
        "numerics": NUMERICS,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": machine,
        "seeds": {"all": 0, "searches": "from 1000003 on"},
        "replicas": {"escape": plan.saddle_seeds, "others": plan.seeds},
        "dimensions": list(plan.dims),
        "search_trials": min(plan.trials, cells.SADDLE.trials),
        "search_trials_realistic": min(plan.trials, cells.REALISTIC[0].trials),
        "cells": len(found.results),
        "failed_cells": sum(bool(r.error) for r in found.results),
        "processor_seconds": {
            "cells": round(sum(r.seconds for r in found.results)),
            "searches": round(sum(t.seconds for t in found.tuned.values())),
        },
    }


# ------------------------------------------------------------------------------------ files


def write_tables(folder: Path, tables: Tables) -> None:
    """Each table that has rows as a CSV file, with all columns that any of its rows has."""
    for name, rows in tables.items():
        if rows:
            names = list(dict.fromkeys(n for row in rows for n in row))
            filled = [{n: row.get(n, "") for n in names} for row in rows]
            write_text(folder / f"{name}.csv", as_csv(filled))


def read_tables(folder: Path) -> dict[str, TableRows]:
    """The tables that :func:`write_tables` wrote; an empty field is left out of its row."""
    tables: dict[str, TableRows] = {"failures": []}
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="") as file:
            tables[path.stem] = [
                {name: _value(text) for name, text in row.items() if text}
                for row in csv.DictReader(file)
            ]
    return tables


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def committed_page(folder: Path) -> str:
    """The page of the documentation, from the files of an earlier run; judged anew."""
    tables = read_tables(folder)
    made = json.loads((folder / "manifest.json").read_text())
    return page({**tables, **judged_tables(tables)}, made, "figures/table1")


# ------------------------------------------------------------------------------------ the page


def page(tables: Tables, made: Mapping[str, Any], figures: str = "figures") -> str:
    """The page, in Markdown, of tables and manifest; `figures` is the folder of the figures.

    The text is in `assets/table1.md`, with a name in braces for each table, figure and number.
    """
    pictures = {
        p.name[:2]: f"![{p.title}. {p.alt}]({figures}/{p.name}.png)\n\n*{p.caption}*"
        for p in PICTURES
    }
    parts = {**_tables_of(tables), **pictures, **_run(made), **_claims(tables), **_hopeless()}
    failed = ["## Cells that failed", markdown_table(tables["failures"])]
    return markdown(
        _TEXT.read_text().format(**parts),
        *(failed if tables["failures"] else []),
    )


def _tables_of(tables: Tables) -> dict[str, str]:
    """The tables of the page by their names in the text."""
    bounds = ("row", "method", "bound", "unit", "chain", "chain_verdict", "coupled",
              "coupled_verdict", "per_ln_d")  # fmt: skip
    costs, exact = ("saddle_theory", "saddle", "octopus"), ("share", "steps", "spent")
    rotated = [row for row in tables["dimension"] if row["rotated"]]
    leaving = [
        row
        for row in tables["dimension-leave"]
        if row["rotated"] and row["noise"] != "none" and row["method"] in cells.LARGEST
    ]
    corrected = [row for row in tables["table1"] if row["corrected"] != "as printed"]
    two = [row for row in tables["sensitivity"] if row["problem"] in ("saddle", "octopus")]
    practical, theory = (
        _best_in_bold(tables[f"standard-saddle-{mode}"], "spent")
        for mode in ("practical", "theory")
    )
    shown: dict[str, str] = {
        name.replace("-", "_"): markdown_table(tables[name])
        for name in ("checks", "late-saddles", "octopus", "controls", "criteria")
    }
    return shown | {
        "bounds": markdown_table(tables["table1"], bounds),
        "costs_of_rows": markdown_table(tables["table1"], ("row", "method", *costs)),
        "corrected": markdown_table(corrected, ("row", "method", "corrected")),
        "dimension": markdown_table(rotated, drop=("rotated",)),
        "dimension_leave": markdown_table(leaving, drop=("rotated",)),
        "gammas": markdown_table(tables["gamma"]),
        "saddle_practical": markdown_table(practical, drop=("error", "seconds")),
        "saddle_theory": markdown_table(theory, drop=("error", "seconds")),
        "exact_saddle": markdown_table(
            tables["exact-saddle-practical"], ("method", "oracle", *exact)
        ),
        "sensitivity": markdown_table(two),
        "moved": _moved(tables["sensitivity"]),
        "realistic": _realistic(tables["realistic"]),
        "unverified": _unverified(),
    }


def _run(made: Mapping[str, Any]) -> dict[str, Any]:
    """The size of the run, and the limits of its cells."""
    plan = cells.EXTENTS[made["size"]]
    limits: dict[tuple[float, float], list[str]] = {}
    for family in plan.families:
        limit = (plan.shrink * family.max_steps, plan.shrink * family.budget)
        limits.setdefault(limit, []).append(family.name)
    in_words = "; ".join(
        f"{steps:,.0f} and {cost:,.0f} on {', '.join(names)}"
        for (steps, cost), names in limits.items()
    )
    copied = ("size", "cells", "failed_cells", "search_trials", "search_trials_realistic")
    return {name: made[name] for name in copied} | {
        "seeds": made["replicas"]["others"],
        "minutes": sum(made["processor_seconds"].values()) / 60,
        "limits": in_words,
        "control_steps": plan.control_steps,
        "gamma": cells.GAMMA,
        "lr": cells.LR,
        "slope": predicted_slope(),
    }


def _claims(tables: Tables) -> dict[str, Any]:
    """The numbers that speak about the paper's claims."""
    slopes = {(r["method"], r["noise"]): r for r in tables["dimension"] if r["rotated"]}
    late = {r["alpha"]: r for r in tables["late-saddles"]}
    controls = {(r["method"], r["noise"]): r for r in tables["controls"]}
    silent = controls["asg", "samples, stable directions, aligned"]
    k0s = [k for k in late[1.0] if k.startswith("k0=")]

    def slope(method: str, noise: str) -> str:
        row = slopes[method, noise]
        return f"{row['slope']:.1f} [{row['low']:.1f}, {row['high']:.1f}]"

    def grown(alpha: float) -> str:
        first, last = (late[alpha][k] for k in (k0s[0], k0s[-1]))
        return f"from {first:.0f} steps at {k0s[0]} to {last:.0f} at {k0s[-1]}"

    return {
        "agld_equal": slope("agld", "equal"),
        "agld_native": slope("agld", "native"),
        "perturbed_gd_equal": slope("perturbed-gd", "equal"),
        "late_0": grown(0.0),
        "late_1": grown(1.0),
        "late_exponent": late[1.0]["exponent"],
        "silent": 100 * silent["left"],
        "costs": ", ".join(f"{r['method']} {as_text(r['saddle'])}" for r in tables["table1"]),
    }


def _hopeless() -> dict[str, Any]:
    """Why natasha2 never arrives with its own theorem's settings."""
    options = cells.proved(cells.SADDLE, BY_LABEL["natasha2"])
    assert options is not None
    products = options["oja_runs"] * options["oja_steps"]
    return {
        "products": products,
        "oja_cost": 2.0 * products * options["oja_batch"] / cells.SADDLE.options["num_samples"],
        "budget": cells.SADDLE.budget,
        "epoch_steps": options["sub_epochs"] * options["sub_steps"],
        "natasha2_lr": options["lr"],
    }


def _moved(rows: TableRows) -> str:
    """How many methods change their rank with the prices, on each problem."""
    counts = []
    for name in dict.fromkeys(r["problem"] for r in rows):
        ours = price_name(*PRICES[0])
        arrived = [r for r in rows if r["problem"] == name and math.isfinite(r[ours])]
        counts.append(f"{sum(r['moves'] for r in arrived)} of {len(arrived)} on {name}")
    return ", ".join(counts)


def _best_in_bold(rows: TableRows, column: str) -> TableRows:
    """The rows, with the lowest finite value of each oracle class emphasized."""
    lowest: dict[str, float] = {}
    for row in rows:
        if math.isfinite(row[column]):
            lowest[row["oracle"]] = min(row[column], lowest.get(row["oracle"], math.inf))
    return [
        {**r, column: f"**{as_text(r[column])}**"} if r[column] == lowest.get(r["oracle"]) else r
        for r in rows
    ]


def _realistic(rows: TableRows) -> str:
    columns = ("oracle", "method", "share", "share_mean", "cost", "steps", "gap", "seconds")
    families: dict[str, TableRows] = {}
    for row in sorted(rows, key=lambda r: (r["oracle"], r["cost"])):
        families.setdefault(row["problem"], []).append(row)
    return "\n\n".join(
        f"### {name}\n\n{markdown_table(_best_in_bold(families[name], 'cost'), columns)}"
        for name in dict.fromkeys(row["problem"] for row in rows)
        if name not in ("saddle", "octopus")
    )


def _unverified() -> str:
    return "\n".join(
        f"- `{c.label}`: {'; '.join(SETTINGS[c.method].unverified)}"
        for c in CONTENDERS
        if c.method in SETTINGS and SETTINGS[c.method].unverified
    )
