"""Penalties: docs/proximal.md, from benchmarks/proximal.py."""

from __future__ import annotations

from statistics import mean, median

from pages.results import Rows, Values, read, table

METHODS = {
    "auto": "`auto`",
    "fista-restart": "`fista`, restarts",
    "fista": "`fista`",
    "prox-gd": "`prox-gd`",
    "sklearn": "scikit-learn",
}
STARTED = ("prox-gd", "fista", "auto", "agld", "asgld")
SADDLES = {"factorization": "sparse factorization", "phase": "sparse phase retrieval"}


def values() -> Values:
    rows, exits = read("proximal_regression"), read("proximal_saddles")
    gaps = [float(row["gap"]) for row in rows if row["method"] in ("auto", "sklearn")]
    saddles = {(row["problem"], row["instance"]) for row in exits}
    problems = {(row["problem"], row["part"]) for row in rows}
    numbers = {
        "proximal.gap": f"{max(gaps):.0e}",
        "proximal.regressions": str(len(problems)),
        "proximal.saddles": str(len(saddles)),
    }
    tables = {"proximal.costs": _costs(rows), "proximal.saddles": _exits(exits)}
    return Values(numbers, tables)


def _costs(rows: Rows) -> str:
    """A row for each problem, with what each method spent on it."""
    shown = []
    for key in dict.fromkeys((row["problem"], row["part"]) for row in rows):
        own = {row["method"]: row for row in rows if (row["problem"], row["part"]) == key}
        size = f"{own['auto']['rows']} x {own['auto']['columns']}"
        costs = [_cost(own[method]) for method in METHODS]
        shown.append([f"{key[0]}, {key[1]}", size, *costs])
    return table(["problem", "size", *METHODS.values()], shown)


def _cost(row: dict[str, str]) -> str:
    return "-" if row["cost"] == "nan" else f"{float(row['cost']):.0f}"


def _exits(rows: Rows) -> str:
    """Shares of runs that left, and what they cost."""
    shown = []
    for problem, title in SADDLES.items():
        for method in STARTED:
            own = [r for r in rows if (r["problem"], r["method"]) == (problem, method)]
            share = 100 * mean(int(row["left"]) for row in own)
            cost = median(float(row["cost"]) for row in own)
            shown.append([title, f"`{method}`", str(len(own)), f"{share:.0f} %", f"{cost:.0f}"])
    return table(["problem", "method", "runs", "left", "gradient-equivalents, median"], shown)
