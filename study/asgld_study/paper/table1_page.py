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
from asgld.run.files import as_csv, write_text
from asgld_study.catalog import BY_LABEL, CONTENDERS
from asgld_study.engine import NUMERICS
from asgld_study.page import as_text, markdown, markdown_table
from asgld_study.paper import table1_cells as cells
from asgld_study.paper.table1 import judged_tables, predicted_slope
from asgld_study.paper.table1_figures import PICTURES
from asgld_study.paper.table1_tables import PRICES, Comparison, TableRows, price_name
from asgld_study.settings import SETTINGS

Tables = Mapping[str, TableRows]


def manifest(
    size: str, found: Comparison, command: str, machine: Mapping[str, Any]
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
    """The page, in Markdown, of tables and manifest; `figures` is the folder of the figures."""
    pictures = {
        p.name[:2]: f"![{p.title}. {p.alt}]({figures}/{p.name}.png)\n\n*{p.caption}*"
        for p in PICTURES
    }
    rotated = [row for row in tables["dimension"] if row["rotated"]]
    leaving = [
        row
        for row in tables["dimension-leave"]
        if row["rotated"] and row["noise"] != "none" and row["method"] in cells.LARGEST
    ]
    bound_columns = ("row", "method", "bound", "unit", "chain", "chain_verdict", "coupled",
                     "coupled_verdict", "per_ln_d")  # fmt: skip
    corrected = [row for row in tables["table1"] if row["corrected"] != "as printed"]
    counts = ("error", "seconds")
    two = [row for row in tables["sensitivity"] if row["problem"] in ("saddle", "octopus")]
    return markdown(
        _head(made),
        f"## The table\n\n{_TABLE_NOTE}",
        markdown_table(tables["table1"], bound_columns),
        "Median cost to a second-order point, in gradient-equivalents, on the strict saddle\n"
        "(settings by theory, and tuned) and on the octopus (tuned):",
        markdown_table(tables["table1"], ("row", "method", "saddle_theory", "saddle", "octopus")),
        _hopeless(),
        "What the cited papers prove, where the printed row says otherwise:",
        markdown_table(corrected, ("row", "method", "corrected")),
        f"## Claims that do not survive\n\n{_claims(tables, made)}",
        f"## What theory predicts of these problems\n\n{_LAW_NOTE}",
        markdown_table(tables["checks"]),
        f"## Escape against dimension\n\n{_dimension_note()}",
        markdown_table(rotated, drop=("rotated",)),
        pictures["f1"],
        "The second criterion, distance along the escape direction, for the same runs:",
        markdown_table(leaving, drop=("rotated",)),
        f"## Saddles that are met late\n\n{_LATE_NOTE}",
        markdown_table(tables["late-saddles"]),
        pictures["f4"],
        "## Curvature of the saddle",
        markdown_table(tables["gamma"]),
        pictures["f3"],
        f"## A row of saddles: the octopus\n\n{_OCTOPUS_NOTE}",
        markdown_table(tables["octopus"]),
        f"## Controls\n\n{_CONTROL_NOTE}",
        markdown_table(tables["controls"]),
        f"## Accuracy\n\n{pictures['f2']}",
        f"## Every count, on the strict saddle\n\n{_STANDARD_NOTE}",
        markdown_table(_best_in_bold(tables["standard-saddle-practical"], "spent"), drop=counts),
        "Settings by theory:",
        markdown_table(_best_in_bold(tables["standard-saddle-theory"], "spent"), drop=counts),
        "From the exact saddle, tuned:",
        markdown_table(
            tables["exact-saddle-practical"], ("method", "oracle", "share", "steps", "spent")
        ),
        f"## What counts as an escape\n\n{_CRITERIA_NOTE}",
        markdown_table(tables["criteria"]),
        f"## If products and Hessians cost more\n\n{_sensitivity_note(tables['sensitivity'])}",
        markdown_table(two),
        f"## Problems that users have\n\n{_REALISTIC_NOTE}",
        *_realistic(tables["realistic"]),
        pictures["f7"],
        pictures["f6"],
        "## Survival and exponents",
        pictures["f5"],
        pictures["f8"],
        f"## Constants that are not certain\n\n{_unverified()}",
        *(["## Cells that failed", markdown_table(tables["failures"])] * bool(tables["failures"])),
    )


_TABLE_NOTE = """Bounds are as printed. Measured is the exponent of 1/eps, with its 95 % bootstrap
interval, over the last three accuracies: on the worst-case chain of Carmon et al., which is slow to
descend but has no saddle, and on an octopus whose saddles have the curvature (rho eps)^(1/2) that
belongs to eps. A bound is an upper bound, and a logarithm in it is worth 0.1 of an exponent. It
*holds* here if the whole interval lies below it, which proves nothing elsewhere. It is *refuted* if
the whole interval lies above it, and *not supported* if the interval lies on both sides. It is *not
testable* if the bound is an unnamed polynomial, if there were fewer than three finite medians, or
if the interval is wider than 1. The last column is the escape from one strict saddle: steps per
unit of ln d, at equal noise for methods that have noise."""

_LAW_NOTE = """A law *holds* if the number lies in the range asked for. It is *refuted* if the whole
interval of the number misses the range, and *not supported* otherwise."""

_LATE_NOTE = """Median steps to leave a saddle that is met at step k0, where D = 1 + delta k0. The
published escape time does not contain k0."""

_OCTOPUS_NOTE = """d saddles in a row (Du et al. 2017), random start, median steps to the minimum.
gd, perturbed-gd, noisy-sgd, agld, sgld, neon and natasha2 have the step 1/(4 L) and the kicks of
that paper, the others tuned settings. Three shares of replicas belong to the largest d: those that
arrived at |grad f| <= 0.1, those whose mean of the last tenth of the iterates did, and those that
have all saddles behind them. Where the last share is 1 and the first is not, noise or a shrunken
step keeps the gradient large, and not a saddle."""

_CONTROL_NOTE = """All replicas start exactly at a saddle. Methods with exact gradients and no noise
must stay there for ever. So must ASG where the noise of the samples has no part along the way down
and the problem is aligned with the axes, and where the gradient of every sample is 0 at the saddle.
On a rotated problem the diagonal metric of ASG mixes directions, and ASG leaves."""

_STANDARD_NOTE = """d = 64, rotated, a finite sum of 512 terms, start beside the saddle. Compare
within one oracle class, of which the cheapest is in bold; across classes only `spent` can be
compared. `share mean` is the share of replicas whose mean of the last tenth of the iterates is a
second-order point: an output that a noisy method could choose without being told when to stop.
Noise per coordinate that was found at d = 8 can keep the gradient above eps at d = 64: then the
share is 0, and that of the means is 1."""

_CRITERIA_NOTE = """Median steps of the same runs by six criteria: `fall`, f is a quarter of the
way to the minimum below the saddle; `hold`, it falls and does not bounce back over half of that in
the next 50 steps; `leave`, the distance along the way out exceeds gamma/(2 rho), where the
quadratic model ends; `clear`, the distance exceeds gamma/rho and no curvature below -gamma/2 is
left; `sosp`, a second-order point; `mean`, the mean of the last tenth of the iterates is one."""

_REALISTIC_NOTE = """Tuned settings, random starts: share of replicas that reach a second-order
point, median cost and steps, how far the median final value lies above the lowest value that any
method saw, and processor seconds per replica (methods that run all replicas at once share theirs).
`share mean` is as above: with batches of 16 samples the gradient at an iterate stays above eps, at
a mean it need not. A gap near 2.2 on digits is the plateau of a saturated network, which steps that
are too long lead to: by the letter a second-order point, and no solution."""


def _head(made: Mapping[str, Any]) -> str:
    plan = cells.EXTENTS[made["size"]]
    limits: dict[tuple[float, float], list[str]] = {}
    for family in plan.families:
        limit = (plan.shrink * family.max_steps, plan.shrink * family.budget)
        limits.setdefault(limit, []).append(family.name)
    in_words = "; ".join(
        f"{steps:,.0f} and {cost:,.0f} on {', '.join(names)}"
        for (steps, cost), names in limits.items()
    )
    minutes = sum(made["processor_seconds"].values()) / 60
    return f"""# Table 1, measured

*For readers who choose a method to get away from saddle points.* The paper compares fourteen
methods by formulas in three different units. Here they run: every method on the same problems,
behind one oracle that counts every call. This page is made from the results of
`asgld table1 --size {made["size"]}` ({made["cells"]} cells, {made["failed_cells"]} of them failed;
{minutes:.0f} minutes of processor time). The numbers behind it, and how they came about, are in
`benchmarks/results/table1/`.

Costs are in gradient-equivalents: a gradient 1, a value 1/2, a Hessian-vector product 2, a Hessian
d, a batch of B samples of n the part B/n of these. Medians are over {made["replicas"]["others"]}
seeds or more. The worst-case chain has one start: there methods without randomness run once, and
methods with products, where only the first vectors of Lanczos are random, run ten times. A replica
that did not arrive counts as one that takes longer (Kaplan-Meier), and "never" says that at least
half did not arrive. Tuned settings are the best of {made["search_trials"]} random trials
({made["search_trials_realistic"]} on the problems that users have), the same number for every
method, on other seeds and a smaller problem. Runs end at their events, or by a limit (steps,
gradient-equivalents): {in_words}.
In the sweep over d on the octopus, methods that run one replica at a time are allowed half of the
steps of the others, and the same cost."""


def _dimension_note() -> str:
    return f"""One strict saddle with gamma = {cells.GAMMA}, rotated, all replicas exactly on it
(methods without randomness: beside it, noise "none"); lr = {cells.LR} wherever there is such an
option. Given are median steps until f has fallen by a quarter of the way to the minimum. Noise is
"equal", the same energy per step or kick whatever d, or "native", as the authors scale it. Theory
predicts {predicted_slope():.2f} steps per unit of ln d at equal noise, 1/(2 ln(1 + lr gamma)).
`laws` are those of a + b ln d, a + b ln^2 d and a d^q whose AICc is within 2 of the lowest; `power`
is q. Where q is below 0.1 no such range of d can tell the first law from the last."""


def _claims(tables: Tables, made: Mapping[str, Any]) -> str:
    """The paper's claims against these measurements, in words with numbers."""
    slopes = {(r["method"], r["noise"]): r for r in tables["dimension"] if r["rotated"]}
    late = {r["alpha"]: r for r in tables["late-saddles"]}
    controls = {(r["method"], r["noise"]): r for r in tables["controls"]}
    silent = controls["asg", "samples, stable directions, aligned"]
    k0s = [k for k in late[1.0] if k.startswith("k0=")]
    costs = ", ".join(f"{r['method']} {as_text(r['saddle'])}" for r in tables["table1"])

    def slope(method: str, noise: str) -> str:
        row = slopes[method, noise]
        return f"{row['slope']:.1f} [{row['low']:.1f}, {row['high']:.1f}]"

    def grown(alpha: float) -> str:
        first, last = (late[alpha][k] for k in (k0s[0], k0s[-1]))
        return f"from {first:.0f} steps at {k0s[0]} to {last:.0f} at {k0s[-1]}"

    return f"""1. **"O(log d) escape, significantly sharper than the O(log^4 d)" of perturbed
   gradient descent.** At equal noise both are linear in ln d: {slope("agld", "equal")} steps per
   ln d for AGLD, {slope("perturbed-gd", "equal")} for perturbed-gd, {predicted_slope():.1f}
   predicted for both. log^4 d is a total, not an escape. With sigma fixed per coordinate, as the
   paper has it, the energy of the noise grows like d, and AGLD shows {slope("agld", "native")}.
2. **The escape time of ASGLD does not depend on when the saddle is met.** It does for alpha > 0. At
   alpha = 1 the median time to leave grows {grown(1.0)}
   (exponent {late[1.0]["exponent"]:.2f}, by theory 1/2 up to logs); at alpha = 0 it grows
   {grown(0.0)}.
3. **ASG escapes without injected noise.** It does only if the noise of the samples has a part along
   the way down: without such a part, {100 * silent["left"]:.0f} % of the replicas left within
   {cells.EXTENTS[made["size"]].control_steps:,} steps. That is no rare case: at the saddles of
   mixtures, phase retrieval and deep linear networks that symmetry makes, the gradient of every
   single sample is 0, and batches of any size have no noise.
4. **One table, one unit.** The bounds of rows 2 and 3 count iterations, those of rows 4 to 8 oracle
   calls, that of row 10 arithmetic. Median gradient-equivalents to a second-order point of the same
   saddle, tuned: {costs}.
5. **log d / eps^2 for growing batches (row 14) counts iterations.** With batches of k samples,
   eps^-2 iterations touch eps^-4 samples; `samples` in the tables below has their number."""


def _hopeless() -> str:
    """Why natasha2 never arrives with its own theorem's settings."""
    options = cells.proved(cells.SADDLE, BY_LABEL["natasha2"])
    assert options is not None
    products = options["oja_runs"] * options["oja_steps"]
    cost = 2.0 * products * options["oja_batch"] / cells.SADDLE.options["num_samples"]
    return f"""By its theorem natasha2 does not arrive within any budget here: a single search for
curvature takes {products:,} products of one sample each, {cost:,.0f} of the
{cells.SADDLE.budget:,.0f} gradient-equivalents that a run may spend, and natasha2 searches again
after every epoch of {options["sub_epochs"] * options["sub_steps"]:,} steps of length
{options["lr"]:.2g}. It was stopped after 100 steps."""


def _sensitivity_note(rows: TableRows) -> str:
    counts = []
    for name in dict.fromkeys(r["problem"] for r in rows):
        ours = price_name(*PRICES[0])
        arrived = [r for r in rows if r["problem"] == name and math.isfinite(r[ours])]
        counts.append(f"{sum(r['moves'] for r in arrived)} of {len(arrived)} on {name}")
    return f"""A Hessian-vector product counts 2 gradients above, and a Hessian d. Made by other
means they cost twice as much. Given are median costs to a second-order point of tuned methods by
all four price lists, and the ranks; `moves` flags methods whose rank is not the same by all of
them: {", ".join(counts)}."""


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


def _realistic(rows: TableRows) -> list[str]:
    columns = ("oracle", "method", "share", "share_mean", "cost", "steps", "gap", "seconds")
    families: dict[str, TableRows] = {}
    for row in sorted(rows, key=lambda r: (r["oracle"], r["cost"])):
        families.setdefault(row["problem"], []).append(row)
    return [
        f"### {name}\n\n{markdown_table(_best_in_bold(families[name], 'cost'), columns)}"
        for name in dict.fromkeys(row["problem"] for row in rows)
        if name not in ("saddle", "octopus")
    ]


def _unverified() -> str:
    lines = [
        f"- `{c.label}`: {'; '.join(SETTINGS[c.method].unverified)}"
        for c in CONTENDERS
        if c.method in SETTINGS and SETTINGS[c.method].unverified
    ]
    return "Settings by theory rest on these, which the methods name themselves:\n\n" + "\n".join(
        lines
    )
