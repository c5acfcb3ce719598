"""Measured exponents and escape times: docs/theory.md."""

from __future__ import annotations

import statistics

from pages.results import Values, read, table


def values() -> Values:
    escapes = read("escape_times")
    numbers = {"escape.settings": str(len(escapes))}
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
    return Values(numbers, {"escape": table(header, rows)})
