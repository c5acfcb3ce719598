"""`minimize` next to SciPy: docs/minimize.md and README.md, from benchmarks/minimize_quality.py."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict

from pages.results import RESULTS, Values, read, table

# Lines of the summary, by the names of their marks.
LINES = {
    "minimize.calls": "calls until BFGS's gradient norm / BFGS, median",
    "minimize.all-calls": "(all calls - 2 d) / BFGS, median",
    "minimize.seconds": "processor seconds / BFGS, median",
    "minimize.left": "from exact saddles to a genuine minimum, share",
    "minimize.withheld": "minima withheld, share",
    "minimize.units": "verdicts changed by units, share",
    "minimize.large-calls": "20,000 unknowns: calls and products",
    "minimize.large-seconds": "20,000 unknowns: seconds / L-BFGS-B from beside the saddle",
}
METHODS = {"asgld": "`asgld.minimize`", "BFGS": "SciPy, BFGS", "L-BFGS-B": "SciPy, L-BFGS-B"}


def values() -> Values:
    summary = json.loads((RESULTS / "minimize_quality.json").read_text())
    found = {line["line"]: float(line["value"]) for line in summary["lines"]}
    numbers = {mark: _short(found[line]) for mark, line in LINES.items()}
    for mark in ("left", "withheld", "units"):
        numbers[f"minimize.{mark}"] = f"{100 * found[LINES[f'minimize.{mark}']]:.1f}"
    rows = read("minimize_quality")
    starts = [row for row in rows if row["part"] == "starts"]
    saddles = [row for row in rows if row["part"] == "saddles"]
    numbers["minimize.functions"] = str(len({row["function"] for row in starts}))
    ends = Counter(row["truth"] for row in saddles if row["method"] == "asgld")
    numbers["minimize.left-flat"] = f"{100 * ends['flat'] / sum(ends.values()):.1f}"
    numbers["minimize.stayed"] = str(ends["saddle"])
    numbers["minimize.most-calls"] = _short(max(_calls_over_bfgs(starts).values()))
    numbers["minimize.saddles"] = str(sum(row["method"] == "asgld" for row in saddles))
    return Values(numbers, {"minimize.verdicts": _verdicts(starts, saddles)})


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}" if value < 1 else f"{value:.1f}"


def _calls_over_bfgs(starts: list[dict[str, str]]) -> dict[str, float]:
    """All calls but those of a Hessian, over BFGS's: the median over the starts of a function."""
    runs: dict[tuple[str, str], dict[str, dict[str, str]]] = defaultdict(dict)
    for row in starts:
        runs[row["function"], row["index"]][row["method"]] = row
    ratios = defaultdict(list)
    for (function, _), row in runs.items():
        calls = float(row["asgld"]["calls"]) - 2 * float(row["asgld"]["dim"])
        ratios[function].append(calls / float(row["BFGS"]["calls"]))
    return {function: statistics.median(found) for function, found in ratios.items()}


def _verdicts(starts: list[dict[str, str]], saddles: list[dict[str, str]]) -> str:
    """Where runs end, and how often a success is none."""
    shown = []
    for part, rows in (("random starts", starts), ("exact saddles", saddles)):
        for method, title in METHODS.items():
            own = [row for row in rows if row["method"] == method]
            if not own:
                continue
            ends = Counter(row["truth"] for row in own)
            false = sum(row["success"] == "1" and row["truth"] != "minimum" for row in own)
            cells = [str(ends[kind]) for kind in ("minimum", "flat", "saddle", "none")]
            shown.append([part, title, str(len(own)), *cells, str(false)])
    header = ["from", "method", "runs", "minimum", "flat", "saddle", "none", "false success"]
    return table(header, shown)
