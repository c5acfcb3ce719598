"""The pages of `asgld table1`, made from its tables and its manifest alone: a summary, all tables.

A run makes them from fresh tables, :func:`committed_pages` from files that an earlier run left.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import asgld
import asgld_study
from asgld.run.files import as_csv, write_text
from asgld_study.catalog import BY_LABEL
from asgld_study.drawing import Picture
from asgld_study.engine import NUMERICS, parts_of
from asgld_study.page import as_text, markdown, markdown_table
from asgld_study.paper import table1_cells as cells
from asgld_study.paper import table1_figures
from asgld_study.paper.table1 import judged_tables, predicted_slope
from asgld_study.paper.table1_figures import rows_picture
from asgld_study.paper.table1_findings import doubts, findings, moved, unverified
from asgld_study.paper.table1_tables import MeasuredCells, TableRows

Tables = Mapping[str, TableRows]
PICTURES = parts_of(table1_figures, Picture)
_ASSETS = Path(asgld_study.__file__).parent / "assets"


class Place(NamedTuple):
    """Where a page looks for its figures and for the other page."""

    figures: str
    other: str


class Pages(NamedTuple):
    """The summary, and the appendix that has all tables; the places of both, or their texts."""

    summary: Any
    appendix: Any


# In the folder of a run, and on the site.
RUN = Pages(Place("figures", "table1-tables.md"), Place("figures", "table1.md"))
SITE = Pages(
    Place("figures/table1", "appendix/table1.md"), Place("../figures/table1", "../table1.md")
)


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
    tables: dict[str, TableRows] = {name: [] for name in ("failures", "growth", "minima")}
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


def committed_pages(folder: Path) -> Pages:
    """The pages of the documentation, from the files of an earlier run; judged anew."""
    tables = read_tables(folder)
    made = json.loads((folder / "manifest.json").read_text())
    return pages({**tables, **judged_tables(tables)}, made, SITE)


# ------------------------------------------------------------------------------------ the pages


def pages(tables: Tables, made: Mapping[str, Any], places: Pages = RUN) -> Pages:
    """Both pages, in Markdown, of tables and manifest.

    The texts are `assets/table1.md` and `assets/table1-tables.md`, with a name in braces for each
    table, figure and number.
    """
    run = _run(made)
    summary = run | {
        "rows": _short_rows(tables["table1"]),
        "findings": findings(tables),
        "doubts": doubts(tables, made),
        "other": places.summary.other,
        "picture": _shown(rows_picture(tables["table1"]), places.summary),
    }
    appendix = run | _tables_of(tables) | _hopeless() | {"other": places.appendix.other}
    appendix |= {p.name[:2]: _shown(p, places.appendix) for p in PICTURES}
    failed = ["## Cells that failed", markdown_table(tables["failures"])]
    return Pages(
        markdown((_ASSETS / "table1.md").read_text().format(**summary)),
        markdown(
            (_ASSETS / "table1-tables.md").read_text().format(**appendix),
            *(failed if tables["failures"] else []),
        ),
    )


def pictures(tables: Tables) -> Sequence[Picture]:
    """The pictures of both pages."""
    return (rows_picture(tables["table1"]), *PICTURES)


def _shown(picture: Picture, place: Place) -> str:
    source = f"{place.figures}/{picture.name}.png"
    return f"![{picture.title}. {picture.alt}]({source})\n\n*{picture.caption}*"


def _short_rows(rows: TableRows) -> str:
    """Table 1 without intervals; a number that was not measured is a dash."""
    columns = ("method", "bound", "chain", "staircase", "saddle", "verdict")
    return markdown_table([{**row, **_short(row)} for row in rows], columns)


def _short(row: Mapping[str, Any]) -> dict[str, str]:
    values = {name: table1_figures.exponent_of(row[name]) for name in ("chain", "staircase")}
    shown = {name: "-" if math.isnan(x) else f"{x:.2f}" for name, x in values.items()}
    return {"method": f"{row['row']} {row['method']}", **shown}


def _tables_of(tables: Tables) -> dict[str, str]:
    """The tables of the page by their names in the text."""
    bounds = ("row", "method", "bound", "unit", "chain", "staircase", "power_of_d", "verdict")
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
        for name in ("checks", "late-saddles", "octopus", "controls", "minima", "criteria")
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
        "moved": moved(tables["sensitivity"]),
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
        "loose": plan.loose_seeds,
        "minutes": sum(made["processor_seconds"].values()) / 60,
        "limits": in_words,
        "control_steps": plan.control_steps,
        "gamma": cells.GAMMA,
        "lr": cells.LR,
        "slope": predicted_slope(),
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
    return "\n".join(f"- `{label}`: {'; '.join(words)}" for label, words in unverified().items())
