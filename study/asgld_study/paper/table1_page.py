"""The page of the measured Table 1: tables, text and manifest, made from results alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import asgld
from asgld_study.comparison import analysis
from asgld_study.comparison.checks import checks
from asgld_study.experiments import escape
from asgld_study.experiments.table1 import REALISTIC, SADDLE, SIZES, Size, Study, proved
from asgld_study.sweep.catalog import BY_LABEL, CONTENDERS, RIVALS
from asgld_study.sweep.engine import NUMERICS

Row = dict[str, Any]


def tables(study: Study) -> dict[str, list[Row]]:
    """All tables by file name."""
    found = {
        "table1": analysis.table_rows(study),
        "checks": checks(study),
        "dimension": analysis.dimension_rows(study),
        "dimension-leave": analysis.dimension_rows(study, "leave"),
        "gamma": analysis.curvature_rows(study),
        "late-saddles": analysis.late_rows(study),
        "octopus": analysis.octopus_rows(study),
        "controls": analysis.control_rows(study),
        "criteria": analysis.criteria_rows(study),
        "sensitivity": analysis.sensitivity_rows(study),
        "realistic": analysis.realistic_rows(study),
        "settings": analysis.setting_rows(study),
        "cells": analysis.cell_rows(study),
        "failures": analysis.failures(study.results),
    }
    for family, mode in (("saddle", "theory"), ("saddle", "practical"), ("octopus", "practical")):
        found[f"standard-{family}-{mode}"] = analysis.standard_rows(study, family, mode)
    for mode in ("theory", "practical"):
        found[f"exact-saddle-{mode}"] = analysis.standard_rows(
            study, "saddle", mode, "exact saddle"
        )
    return found


def manifest(study: Study, command: str, machine: dict[str, Any]) -> dict[str, Any]:
    """How the results came about."""
    size = SIZES[study.size]
    return {
        "command": command,
        "size": study.size,
        "asgld": asgld.__version__,
        "numerics": NUMERICS,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": machine,
        "seeds": {"all": 0, "searches": "from 1000003 on"},
        "replicas": {"escape": size.escape.seeds, "others": size.seeds},
        "dimensions": list(size.escape.dims),
        "search_trials": min(size.trials, SADDLE.trials),
        "search_trials_realistic": min(size.trials, REALISTIC[0].trials),
        "cells": len(study.results),
        "failed_cells": sum(bool(r.error) for r in study.results),
        "processor_seconds": {
            "cells": round(sum(r.seconds for r in study.results)),
            "searches": round(sum(t.seconds for t in study.tuned.values())),
        },
    }


def page(study: Study, made: dict[str, Any], found: dict[str, list[Row]]) -> str:
    """The page, in Markdown, of a study, its manifest and its tables."""
    seconds = sum(made["processor_seconds"].values())
    sections = [
        _HEAD.format(size=made["size"], cells=made["cells"], failed=made["failed_cells"],
                     seeds=made["replicas"]["others"], minutes=seconds / 60,
                     trials=made["search_trials"], few=made["search_trials_realistic"],
                     limits=_limits(SIZES[study.size])),
        "## The table\n\n" + _TABLE_NOTE,
        _markdown(found["table1"], ("row", "method", "bound", "unit", "chain", "chain_verdict",
                                    "coupled", "coupled_verdict", "per_ln_d")),
        "Median cost to a second-order point, in gradient-equivalents, on the strict saddle\n"
        "(settings by theory, and tuned) and on the octopus (tuned):",
        _markdown(found["table1"], ("row", "method", "saddle_theory", "saddle", "octopus")),
        _hopeless(),
        "What the cited papers prove, where the printed row says otherwise:",
        _markdown([r for r in found["table1"] if r["corrected"] != "as printed"],
                  ("row", "method", "corrected")),
        "## Claims that do not survive\n\n" + _claims(study, found),
        "## What theory predicts of these problems",
        _markdown(found["checks"], ("check", "expected", "measured", "holds")),
        "## Escape against dimension\n\n" + _DIMENSION_NOTE.format(
            slope=analysis.predicted_slope(), lr=escape.LR, gamma=escape.GAMMA),
        _markdown([r for r in found["dimension"] if r["rotated"]], None, drop=("rotated",)),
        "![F1](figures/table1/f1-dimension.png)",
        "The second criterion, distance along the escape direction, for the same runs:",
        _markdown([r for r in found["dimension-leave"] if r["rotated"]
                   and r["noise"] in ("equal", "native")
                   and r["method"] in ("agld", "asgld", "sgld", "perturbed-gd", "noisy-sgd")],
                  None, drop=("rotated",)),
        "## Saddles that are met late\n\n" + _LATE_NOTE,
        _markdown(found["late-saddles"], None),
        "![F4](figures/table1/f4-late-saddles.png)",
        "## Curvature of the saddle",
        _markdown(found["gamma"], None),
        "![F3](figures/table1/f3-curvature.png)",
        "## A row of saddles: the octopus\n\n" + _OCTOPUS_NOTE,
        _markdown(found["octopus"], None),
        "## Controls\n\n" + _CONTROL_NOTE,
        _markdown(found["controls"], None),
        "## Accuracy\n\n![F2](figures/table1/f2-accuracy.png)",
        "## Every count, on the strict saddle\n\n" + _STANDARD_NOTE,
        _markdown(_best_in_bold(found["standard-saddle-practical"], "spent"), None,
                  drop=("error", "seconds")),
        "Settings by theory:",
        _markdown(_best_in_bold(found["standard-saddle-theory"], "spent"), None,
                  drop=("error", "seconds")),
        "From the exact saddle, tuned:",
        _markdown(found["exact-saddle-practical"],
                  ("method", "oracle", "share", "steps", "spent")),
        "## What counts as an escape\n\n" + _CRITERIA_NOTE,
        _markdown(found["criteria"], None),
        "## If products and Hessians cost more\n\n" + _sensitivity_words(found["sensitivity"]),
        _markdown([r for r in found["sensitivity"] if r["problem"] in ("saddle", "octopus")],
                  None),
        "## Problems that users have\n\n" + _REALISTIC_NOTE,
        *_realistic(found["realistic"]),
        "![F7](figures/table1/f7-profiles.png)\n\n![F6](figures/table1/f6-paths.png)",
        "## Survival and exponents\n\n![F5](figures/table1/f5-survival.png)\n\n"
        "![F8](figures/table1/f8-exponents.png)",
        "## Constants that are not certain\n\n" + _unverified(),
        *_failures(found["failures"]),
    ]  # fmt: skip
    return "\n\n".join(section.strip() for section in sections) + "\n"


_HEAD = """# Table 1, measured

*For readers who choose a method to get away from saddle points.* The paper compares fourteen
methods by formulas in three different units. Here they run: every method on the same problems,
behind one oracle that counts every call. This page is made from the results of
`asgld table1 --size {size}` ({cells} cells, {failed} of them failed; {minutes:.0f} minutes of
processor time); the numbers behind it, and how they came about, are in
`benchmarks/results/table1/`.

Costs are in gradient-equivalents: a gradient 1, a value 1/2, a Hessian-vector product 2, a Hessian
d, a batch of B samples of n the part B/n of these. Medians are over {seeds} seeds or more; on the
worst-case chain, which has one start, methods without randomness run once, as nothing is left to
chance, and those with products run ten times, as only the first vectors of Lanczos are. A replica
that did not arrive counts as one that takes longer (Kaplan-Meier), and "never" says that at least
half did not arrive. Tuned settings are the best of {trials} random trials ({few}
on the problems that users have), the same number for every method, on other seeds and a smaller
problem. Runs end at their events, or by a limit: {limits} (steps, gradient-equivalents). In the
sweep over d on the octopus methods that run one replica at a time are allowed half of the steps of
the others, and the same cost."""

_TABLE_NOTE = """Bounds are as printed. Measured is the exponent of 1/eps, with its 95 % bootstrap
interval, over the last three accuracies: on the worst-case chain of Carmon et al., which is slow to
descend but has no saddle, and on an octopus whose saddles have the curvature (rho eps)^(1/2) that
belongs to eps. A bound is an upper bound: an exponent below it is *consistent*, and no more. It
*violates* the bound if the whole interval lies above it. It is *uninformative* if there were fewer
than three finite medians, or the bound is an unnamed polynomial. The last column is the escape from
one strict saddle: steps per unit of ln d, at equal noise for methods that have noise."""

_DIMENSION_NOTE = """One strict saddle with gamma = {gamma}, rotated, all replicas exactly on it
(methods without randomness: beside it, noise "none"); lr = {lr} wherever there is such an option.
Given are median steps until f has fallen by a quarter of the way to the minimum. Noise is "equal",
the same energy per step or kick whatever d, or "native", as the authors scale it. Theory predicts
{slope:.2f} steps per unit of ln d at equal noise, 1/(2 ln(1 + lr gamma)). `laws` are those of
a + b ln d, a + b ln^2 d and a d^q whose AICc is within 2 of the lowest; `power` is q. Where q is
below 0.1 no such range of d can tell the first from the last."""

_LATE_NOTE = """Median steps to leave a saddle that is met at step k0, where D = 1 + delta k0. The
published escape time does not contain k0."""

_OCTOPUS_NOTE = """d saddles in a row (Du et al. 2017), random start, median steps to the minimum.
gd, perturbed-gd, noisy-sgd, agld, sgld, neon and natasha2 have the step 1/(4 L) and the kicks of
that paper, the others tuned settings. The shares are of the largest d: replicas that arrived at
|grad f| <= 0.1, replicas of which the mean of the last tenth of the iterates did, and replicas that
have all saddles behind them. Where the last is 1 and the first is not, noise or a shrunken step
holds the gradient up, and not a saddle."""

_CONTROL_NOTE = """Started exactly at a saddle. Exact gradients and no noise must stay there for
ever; so must ASG when the noise of the samples has no part along the way down and the problem is
aligned with the axes, and where the gradient of every sample is 0 at the saddle. On a rotated
problem its diagonal metric mixes directions, and it leaves."""

_STANDARD_NOTE = """d = 64, rotated, a finite sum of 512 terms, start beside the saddle. Compare
within one oracle class, of which the cheapest is in bold; across classes only `spent` means
anything. `share mean` is that of replicas of which the mean of the last tenth of the iterates is a
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
method saw, and processor seconds per replica (batched methods share theirs). `share mean` is as
above: with batches of 16 samples the gradient at an iterate stays above eps, at a mean it need
not. A gap near 2.2 on digits is the plateau of a saturated network, to which steps lead that are
too long: by the letter a second-order point, and no solution."""


def _limits(size: Size) -> str:
    """What a run of each family may take, in words."""
    families: dict[tuple[float, float], list[str]] = {}
    for family in size.families:
        limit = (size.shrink * family.max_steps, size.shrink * family.budget)
        families.setdefault(limit, []).append(family.name)
    return "; ".join(
        f"{steps:,.0f} and {cost:,.0f} on {', '.join(names)}"
        for (steps, cost), names in families.items()
    )


def _claims(study: Study, found: dict[str, list[Row]]) -> str:
    """The paper's claims against these measurements, in words with numbers."""
    slopes = {(r["method"], r["noise"]): r for r in found["dimension"] if r["rotated"]}
    late = {r["alpha"]: r for r in found["late-saddles"]}
    cost = {r["method"]: r["saddle"] for r in found["table1"]}
    agld, kicked = slopes["agld", "equal"], slopes["perturbed-gd", "equal"]
    native = slopes["agld", "native"]
    k0s = [k for k in late[1.0] if k.startswith("k0=")]
    size = SIZES[study.size].escape
    controls = {(r["method"], r["noise"]): r for r in found["controls"]}
    silent = controls["asg", "samples, stable directions, aligned"]
    return "\n".join(
        [
            '1. **"O(log d) escape, significantly sharper than the O(log^4 d)" of perturbed '
            f"gradient descent.** At equal noise both are linear in ln d: {agld['slope']:.1f} "
            f"[{agld['low']:.1f}, {agld['high']:.1f}] steps per ln d for AGLD, "
            f"{kicked['slope']:.1f} [{kicked['low']:.1f}, {kicked['high']:.1f}] for perturbed-gd, "
            f"{analysis.predicted_slope():.1f} predicted for both. log^4 d is a total, not an "
            "escape. With sigma fixed per coordinate, as the paper has it, the energy of the noise "
            f"grows like d, and AGLD shows {native['slope']:.1f} "
            f"[{native['low']:.1f}, {native['high']:.1f}].",
            "2. **The escape time of ASGLD does not depend on when the saddle is met.** It does "
            f"for alpha > 0. At alpha = 1 the median time to leave grows from "
            f"{late[1.0][k0s[0]]:.0f} steps at {k0s[0]} to {late[1.0][k0s[-1]]:.0f} at {k0s[-1]} "
            f"(exponent {late[1.0]['exponent']:.2f}, by theory 1/2 up to logs); at alpha = 0 from "
            f"{late[0.0][k0s[0]]:.0f} to {late[0.0][k0s[-1]]:.0f}.",
            "3. **ASG escapes without injected noise.** Only if the noise of the samples has a "
            f"part along the way down: without one, {100 * silent['left']:.0f} % of the replicas "
            f"left within {size.control_steps:,} steps. That is no rare case: at the saddles of "
            "mixtures, phase retrieval and deep linear networks that symmetry makes, the gradient "
            "of every single sample is 0, and batches of any size have no noise.",
            "4. **One table, one unit.** The bounds of rows 2 and 3 count iterations, those of "
            "rows 4 to 8 oracle calls, that of row 10 arithmetic. Median gradient-equivalents to a "
            "second-order point of the same saddle, tuned: "
            + ", ".join(f"{name} {_number(value)}" for name, value in cost.items())
            + ".",
            "5. **log d / eps^2 for growing batches (row 14) counts iterations.** With batches of "
            "k samples, eps^-2 iterations touch eps^-4 samples; `samples` in the tables below is "
            "what to read.",
        ]
    )


def _hopeless() -> str:
    """Why a row of the table never arrives with its own theorem's settings."""
    options = proved(SADDLE, BY_LABEL["natasha2"])
    assert options is not None
    products = options["oja_runs"] * options["oja_steps"]
    cost = 2.0 * products * options["oja_batch"] / SADDLE.options["num_samples"]
    return (
        "By its theorem natasha2 does not arrive within any budget here: a single search for\n"
        f"curvature takes {products:,} products of one sample each, {cost:,.0f} of the "
        f"{SADDLE.budget:,.0f}\ngradient-equivalents that a run may spend, and it searches again "
        f"after every epoch of\n{options['sub_epochs'] * options['sub_steps']:,} steps of length "
        f"{options['lr']:.2g}. It was stopped after 100 steps."
    )


def _sensitivity_words(rows: list[Row]) -> str:
    first = "hvp 2, hessian 1 d"
    counts = []
    for name in dict.fromkeys(r["problem"] for r in rows):
        arrived = [r for r in rows if r["problem"] == name and math.isfinite(r[first])]
        counts.append(f"{sum(r['moves'] for r in arrived)} of {len(arrived)} on {name}")
    return (
        "A Hessian-vector product counts 2 gradients above, and a Hessian d. Made by other means\n"
        "they cost twice as much. Given are median costs to a second-order point of tuned methods\n"
        "by all four price lists, and the ranks; `moves` flags methods whose rank is not the same\n"
        f"by all of them, or that another one passes: {', '.join(counts)}."
    )


def _best_in_bold(rows: list[Row], column: str) -> list[Row]:
    """The rows, with the lowest finite value of each oracle class emphasized."""
    lowest: dict[str, float] = {}
    for row in rows:
        if math.isfinite(row[column]):
            lowest[row["oracle"]] = min(row[column], lowest.get(row["oracle"], math.inf))
    return [
        {**r, column: f"**{_number(r[column])}**"} if r[column] == lowest.get(r["oracle"]) else r
        for r in rows
    ]


def _realistic(rows: list[Row]) -> list[str]:
    sections = []
    for name in dict.fromkeys(row["problem"] for row in rows):
        if name in ("saddle", "octopus"):
            continue
        chosen = sorted(
            (r for r in rows if r["problem"] == name), key=lambda r: (r["oracle"], r["cost"])
        )
        columns = ("oracle", "method", "share", "share_mean", "cost", "steps", "gap", "seconds")
        sections += [f"### {name}", _markdown(_best_in_bold(chosen, "cost"), columns)]
    return sections


def _unverified() -> str:
    lines = [
        f"- `{c.label}`: {'; '.join(RIVALS[c.method].unverified)}"
        for c in CONTENDERS
        if c.method in RIVALS and RIVALS[c.method].unverified
    ]
    return "Settings by theory rest on these, which the methods name themselves:\n\n" + "\n".join(
        lines
    )


def _failures(rows: list[Row]) -> list[str]:
    return ["## Cells that failed", _markdown(rows, None)] if rows else []


def _markdown(rows: Sequence[Row], columns: Sequence[str] | None, drop: Sequence[str] = ()) -> str:
    """Rows as a table; columns that no row fills are left out."""
    if not rows:
        return "(nothing at this size)"
    names = list(dict.fromkeys(n for row in rows for n in row)) if columns is None else columns
    names = [n for n in names if n not in drop and any(_number(row.get(n, "")) for row in rows)]
    lines = ["| " + " | ".join(n.replace("_", " ") for n in names) + " |"]
    lines.append("|" + "---|" * len(names))
    lines += ["| " + " | ".join(_number(row.get(n, "")) for n in names) + " |" for row in rows]
    return "\n".join(lines)


def _number(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return ""
    if math.isinf(value):
        return "never"
    if abs(value - round(value)) < 1e-12 and abs(value) < 1e6:
        return str(round(value))
    return f"{value:.3g}"
