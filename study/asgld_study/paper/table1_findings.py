"""What the tables of `asgld table1` say in sentences: findings and doubts, chosen by numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from asgld_study.catalog import CONTENDERS
from asgld_study.page import as_text
from asgld_study.paper.table1 import predicted_slope
from asgld_study.paper.table1_tables import PRICES, TableRows, price_name
from asgld_study.settings import SETTINGS

Tables = Mapping[str, TableRows]
_OPEN = ("not supported", "not testable")


def findings(tables: Tables) -> str:
    """What was found, as a list in Markdown."""
    parts = (_own_rows, _dimension, _late, _silent, _cheapest)
    return _bullets(sentence for part in parts for sentence in part(tables))


def doubts(tables: Tables, made: Mapping[str, Any]) -> str:
    """What the numbers leave open, as a list in Markdown."""
    return _bullets((*_open_rows(tables), *_laws(tables), *_choices(tables, made)))


def moved(rows: TableRows) -> str:
    """How many methods change their rank with the prices, on each problem."""
    counts = []
    for name in dict.fromkeys(r["problem"] for r in rows):
        ours = price_name(*PRICES[0])
        arrived = [r for r in rows if r["problem"] == name and math.isfinite(r[ours])]
        counts.append(f"{sum(r['moves'] for r in arrived)} of {len(arrived)} on {name}")
    return ", ".join(counts)


def unverified() -> dict[str, tuple[str, ...]]:
    """Constants that are known up to a factor, by the methods whose settings rest on them."""
    known = {c.label: SETTINGS[c.method].unverified for c in CONTENDERS if c.method in SETTINGS}
    return {label: constants for label, constants in known.items() if constants}


# ------------------------------------------------------------------------------------ findings


def _own_rows(tables: Tables) -> Iterator[str]:
    refuted = {row["row"] for row in tables["table1"] if row["verdict"] == "refuted"}
    own = tables["minima"]
    if own and refuted >= {11, 12, 13, 14}:
        grown = " to ".join(as_text(pick(row["fixed"] for row in own)) for pick in (min, max))
        yield (
            f"**The paper's own bounds are exceeded.** From d = {own[0]['small']} to "
            f"{own[0]['large']} the steps to a minimum grow {grown} times more than log d."
        )


def _dimension(tables: Tables) -> Iterator[str]:
    rows = {(r["method"], r["noise"]): r for r in tables["dimension"] if r["rotated"]}
    slopes = " and ".join(
        f"{row['slope']:.1f} [{row['low']:.1f}, {row['high']:.1f}]"
        for row in (rows["agld", "equal"], rows["perturbed-gd", "equal"])
    )
    numbers = f"{slopes} steps per ln d at equal noise, {predicted_slope():.1f} by theory"
    if _holds(tables, "agld: steps per ln d") and _holds(tables, "perturbed-gd: steps per ln d"):
        yield (
            f"**AGLD and perturbed-gd leave a saddle in time linear in log d**: {numbers}. Row 8's "
            "log^4 d is a total."
        )
    else:
        yield f"**AGLD and perturbed-gd do not follow the law in log d here**: {numbers}."


def _late(tables: Tables) -> Iterator[str]:
    late = {row["alpha"]: row for row in tables["late-saddles"]}
    first, *_, last = (name for name in late[1.0] if name.startswith("k0="))
    numbers = ", ".join(
        f"{as_text(late[alpha][first])} and {as_text(late[alpha][last])} steps (alpha={alpha:g})"
        for alpha in (1.0, 0.0)
    )
    numbers = f"at {first} and {last}, {numbers}"
    if _holds(tables, "alpha = 1: exponent of k0"):
        yield f"**A saddle met late costs more where alpha > 0**: {numbers}."
    else:
        yield f"**Late saddles do not follow k0^(alpha/2) here**: {numbers}."


def _silent(tables: Tables) -> Iterator[str]:
    controls = {(row["method"], row["noise"]): row for row in tables["controls"]}
    left = controls["asg", "samples, stable directions, aligned"]["left"]
    if left == 0:
        yield (
            "**ASG needs sample noise along the way down.** On an aligned saddle without it no "
            "replica left."
        )
    else:
        yield f"**ASG without noise along the way down** left in {100 * left:.0f} % of runs."


def _cheapest(tables: Tables) -> Iterator[str]:
    best: dict[str, dict[str, Any]] = {}
    for row in tables["standard-saddle-practical"]:
        if math.isfinite(row["spent"]):
            known = best.setdefault(row["oracle"], row)
            best[row["oracle"]] = min(known, row, key=lambda r: float(r["spent"]))
    names = ", ".join(f"{r['method']} {as_text(r['spent'])} ({o})" for o, r in best.items())
    if names:
        yield f"**The cheapest on the saddle**, tuned, by oracle class: {names}."


def _holds(tables: Tables, check: str) -> bool:
    (verdict,) = (r["verdict"] for r in tables["checks"] if r["check"].startswith(check))
    return bool(verdict == "holds")


# ------------------------------------------------------------------------------------ doubts


def _open_rows(tables: Tables) -> Iterator[str]:
    undecided = [row["row"] for row in tables["table1"] if row["verdict"] in _OPEN]
    if undecided:
        which = (
            f"Row {undecided[0]} is" if len(undecided) == 1 else f"Rows {_numbers(undecided)} are"
        )
        yield (
            f"{which} open: runs that could decide are missing, too short or on both sides of the "
            "bound."
        )


def _laws(tables: Tables) -> Iterator[str]:
    laws = tables["checks"]
    failed = [row["check"].partition(",")[0] for row in laws if row["verdict"] != "holds"]
    words = f"Of {len(laws)} laws that theory predicts {len(laws) - len(failed)} hold"
    yield f"{words}{'; not: ' + '; '.join(failed) if failed else ''}."


def _choices(tables: Tables, made: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"Exponents rest on three accuracies, tuned settings on {made['search_trials']} random "
        "trials."
    )
    yield (
        "At other prices of Hessians and products ranks change: "
        f"{moved([r for r in tables['sensitivity'] if r['problem'] in ('saddle', 'octopus')])}."
    )
    yield f"Theorems of {len(unverified())} methods leave constants open."
    if made["failed_cells"]:
        yield f"{made['failed_cells']} cells failed."
    if made["size"] != "full":
        yield f"This run has the size {made['size']!r}, which is too small for verdicts."


# ------------------------------------------------------------------------------------ words


def _bullets(sentences: Iterator[str] | Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _numbers(rows: Sequence[int]) -> str:
    """Row numbers; runs of three or more as "11 to 14".

    >>> _numbers([1, 2, 4, 5, 6, 7])
    '1, 2, 4 to 7'
    """
    runs: list[list[int]] = []
    for row in rows:
        if runs and row == runs[-1][-1] + 1:
            runs[-1].append(row)
        else:
            runs.append([row])
    return ", ".join(
        f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )
