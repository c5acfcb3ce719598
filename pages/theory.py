"""Statements, measured exponents and escape times: docs/theory.md and its appendix."""

from __future__ import annotations

import statistics

from asgld.theory import item
from asgld_study.paper import CLAIMS
from pages.results import Values, read, table

# The statements of the paper, and the functions that compute what is true.
_FUNCTIONS = {
    "Algorithm 1": "",
    "Lemma 1": "growth_onset",
    "Lemma 2": "sum_order",
    "Theorem 1": "terms, certificate, expected_certificate",
    "Theorem 2": "rate, region",
    "Batch theorem": "complexity",
    "Proposition 6": "rate",
    "Lemma 3": "escape_time",
    "Theorem 3": "escape_time, escape_recursion",
    "Theorem 4": "complexity, escape_time",
    "Table 1": "table1",
    "Section 2": "",
}


def _items() -> str:
    """Each statement with its verdict by proof, its functions and the claims that measure it."""
    rows = []
    for name, functions in _FUNCTIONS.items():
        claims = [c.name for c in CLAIMS if c.item == name or c.item.startswith(f"{name} ")]
        code = ", ".join(f"`{function}`" for function in functions.split(", ") if function)
        rows.append([name, item(name).verdict, code, _spans(claims)])
    return table(["published", "verdict by proof", "functions", "claims"], rows)


def _spans(names: list[str]) -> str:
    """Claims of one letter in order; "E1 to E4" for numbers that follow each other."""
    spans: list[list[int]] = []
    for number in sorted(int(name[1:]) for name in names):
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    ends = [dict.fromkeys((span[0], span[-1])) for span in spans]
    return ", ".join(" to ".join(f"{names[0][0]}{n}" for n in pair) for pair in ends)


def values() -> Values:
    escapes = read("escape_times")
    ratios = [float(row[name]) for row in escapes for name in ("distance_ratio", "value_ratio")]
    numbers = {
        "escape.settings": str(len(escapes)),
        "escape.low": f"{min(ratios):.2f}",
        "escape.high": f"{max(ratios):.2f}",
    }
    # Case 2 of Theorem 2, where the published exponents and the corrected ones differ.
    flat = [
        row for row in read("exponents") if row["function"] == "flat" and float(row["alpha"]) > 1
    ]
    for i, row in enumerate(flat, 1):
        for column in ("published", "corrected"):
            numbers[f"exponent.{column}{i}"] = f"{float(row[column]):g}"
        numbers[f"exponent.last{i}"] = f"{float(row['last']):.2f}"
    rows = []
    for title, column in (
        (r"$\lvert u'x\rvert \ge 1$", "distance_ratio"),
        (r"$f \le f_\mathrm{saddle} - 1/2$", "value_ratio"),
    ):
        found = [float(row[column]) for row in escapes]
        tenths = statistics.quantiles(found, n=10, method="inclusive")
        rows.append(
            [title, str(len(found)), f"{statistics.median(found):.3f}",
             f"{tenths[0]:.3f}-{tenths[-1]:.3f}", f"{min(found):.3f}-{max(found):.3f}"]
        )  # fmt: skip
    header = ["criterion", "settings", "median", "10-90 %", "range"]
    return Values(numbers, {"escape": table(header, rows), "theory.items": _items()})
