"""`asgld.minimize` next to SciPy on the functions of `minimize_set`: cost, verdicts, units.

    python benchmarks/minimize_quality.py                      # all parts, two thirds of the set
    python benchmarks/minimize_quality.py --parts starts --functions rosenbrock wood --no-check
    python benchmarks/minimize_quality.py --held-out           # the third that was kept back
    python benchmarks/minimize_quality.py --summary            # from the committed rows alone

Parts:

- starts: five random starts of each function. asgld next to SciPy's BFGS and L-BFGS-B, with the
  same torch gradients and default options.
- saddles: from the exact saddles of results/minimize_saddles.json.
- scales: f times 1e-8 and 1e8, x times 1e-4 and 1e4, and each coordinate times its own power of ten
  between 1 and 1e6; does the verdict change?
- large: |X X' - M|^2 / 4 with X 1000 x 20, M of rank 20, from the saddle at zeros; L-BFGS-B from
  1e-2 beside it.

Counting happens at the function, by a hook on what it is called with, whoever calls: a value counts
1, a gradient 1, both together 2, a product of the Hessian with a vector 2 and a Hessian 2 d, with
what their calls of the function include. The trajectory of gradient norms tells when the norm was
reached at which BFGS ended. Times are processor seconds of runs without the counting, by turns in
this process, on one thread.

Verdicts are compared with `minimize_check`, which decides in higher precision and without asgld.
A false minimum: MINIMUM is claimed (by SciPy: success) at a saddle or where there is no critical
point. Claimed at a flat point it is counted by itself. Withheld: a minimum that is not called one.

Rows go to results/minimize_quality.csv; rows of other functions, parts and methods there are kept.
With --resume only those are run that are missing. The summary is written beside it as .md and
.json, the performance profile as .svg.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import RESULTS, environment
from minimize_check import Check, Truth
from minimize_saddles import read_saddles
from minimize_set import Data, TestFunction, random_start, select
from torch import Tensor

import asgld

PARTS = ("starts", "saddles", "scales", "large")
STARTS = 5
SCALED_STARTS = 2
FILE = RESULTS / "minimize_quality.csv"
KEYS = ("part", "function", "index", "variant", "method")
COLUMNS = (
    *KEYS, "held_out", "dim", "kind", "success", "value", "gradient_norm", "calls", "target",
    "calls_to_target", "values", "gradients", "products", "library_calls", "seconds", "truth",
    "lowest", "decrease", "moved", "excess", "error",
)  # fmt: skip
OURS, BFGS, LBFGSB = "asgld", "BFGS", "L-BFGS-B"
# BFGS first: it sets the gradient norm to reach.
NAMES = {"starts": (BFGS, OURS, LBFGSB), "saddles": (BFGS, OURS), "scales": (OURS,)}
Row = dict[str, Any]
Fun = Callable[[Any], Any]


# ----- counting at the function


@dataclass
class Tally:
    """Counts every use of a torch function, and the gradient norms on the way."""

    fun: Fun
    values: int = 0
    gradients: int = 0
    products: int = 0
    # Calls so far and the norm, at every gradient.
    trajectory: list[tuple[int, float]] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return self.values + self.gradients + 2 * self.products

    def __call__(self, x: Tensor) -> Tensor:
        base, rows = x, 1
        while torch._C._functorch.is_batchedtensor(base):
            inner = torch._C._functorch.get_unwrapped(base)
            rows *= inner.numel() // base.numel()
            base = inner
        self.values += rows
        if base.requires_grad:
            self._watch(base, rows, x.shape[-1])
        return self.fun(x)

    def _watch(self, base: Tensor, rows: int, dim: int) -> None:
        passes = 0

        def see(gradient: Tensor) -> None:
            nonlocal passes
            passes += 1
            if passes > 1:
                if torch._C._functorch.is_legacy_batchedtensor(gradient):  # many vectors at once
                    gradient = torch._remove_batch_dim(gradient, 1, 1, 0)
                self.products += gradient.numel() // dim
            elif torch.is_grad_enabled():
                # The gradient is differentiated again: part of a product, which counts it.
                self.values -= rows
            else:
                self.gradients += rows
                norms = gradient.detach().reshape(-1, dim).norm(dim=1)
                self.trajectory.append((self.calls, float(norms.min())))

        base.register_hook(see)

    def calls_until(self, norm: float) -> float:
        """Calls until a gradient of at most that norm was seen."""
        return next((calls for calls, seen in self.trajectory if seen <= norm), np.inf)


# ----- the contenders


@dataclass
class Outcome:
    x: np.ndarray
    kind: str
    success: bool
    value: float
    gradient_norm: float
    library_calls: float = np.nan
    error: str = ""


def by_asgld(method: str, options: dict[str, Any]) -> Callable[[Fun, np.ndarray], Outcome]:
    def solve(fun: Fun, start: np.ndarray) -> Outcome:
        result = asgld.minimize(fun, torch.from_numpy(start.copy()), method=method, **options)
        calls = {kind: int(np.sum(n)) for kind, n in result.counts.calls.items()}
        products = calls["hvp"] + calls["sample_hvp"] + len(start) * calls["hessian"]
        return Outcome(
            np.asarray(result.x, dtype=np.float64), result.kind.name, bool(result.success),
            float(result.fun), float(np.linalg.norm(np.asarray(result.jac))),
            calls["value"] + calls["grad"] + 2 * products,
        )  # fmt: skip

    return solve


def by_scipy(method: str) -> Callable[[Fun, np.ndarray], Outcome]:
    def solve(fun: Fun, start: np.ndarray) -> Outcome:
        from scipy.optimize import minimize

        def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
            leaf = torch.from_numpy(x.copy()).requires_grad_(True)
            value = fun(leaf)
            (gradient,) = torch.autograd.grad(value, leaf)
            return float(value.detach()), gradient.numpy()

        with np.errstate(all="ignore"):
            result = minimize(value_and_gradient, start, jac=True, method=method)
        return Outcome(
            result.x, "MINIMUM" if result.success else "FAILED", bool(result.success),
            float(result.fun), float(np.linalg.norm(result.jac)), result.nfev + result.njev,
        )  # fmt: skip

    return solve


def attempt(solve: Callable[[Fun, np.ndarray], Outcome], fun: Fun, start: np.ndarray) -> Outcome:
    """What it returns; what it raises is an outcome as well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return solve(fun, start)
        except Exception as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            return Outcome(start, "RAISED", False, np.nan, np.nan, error=text)


# ----- the parts


@dataclass(frozen=True)
class Task:
    """A function and a start, possibly in other units."""

    part: str
    function: TestFunction
    index: int
    start: np.ndarray
    variant: str = ""

    @property
    def key(self) -> tuple[str, str, int, str]:
        return self.part, self.function.name, self.index, self.variant


def scaled(function: TestFunction, of_f: float, of_x: np.ndarray) -> TestFunction:
    """y = of_x x, and of_f f as a function of y."""
    inverse = Data(1 / of_x)
    return replace(
        function,
        fun=lambda y: of_f * function.fun(y * inverse(y)),
        low=tuple(of_x * function.low),
        high=tuple(of_x * function.high),
        minima=(),
        minimizer=None,
    )


def variants(function: TestFunction) -> dict[str, tuple[float, np.ndarray]]:
    """Factors of f and of x."""
    ones = np.ones(function.dim)
    random = np.random.default_rng(function.dim)
    return {
        "": (1.0, ones),
        "f 1e-8": (1e-8, ones),
        "f 1e8": (1e8, ones),
        "x 1e-4": (1.0, 1e-4 * ones),
        "x 1e4": (1.0, 1e4 * ones),
        "x_i 1 to 1e6": (1.0, 10 ** random.uniform(0, 6, function.dim)),
    }


def tasks_of(part: str, functions: list[TestFunction]) -> Iterator[Task]:
    if part == "starts":
        for function in functions:
            for index in range(STARTS):
                yield Task(part, function, index, random_start(function, index))
    elif part == "saddles":
        saddles = read_saddles()
        for function in functions:
            for index, saddle in enumerate(saddles.get(function.name, ())):
                yield Task(part, function, index, saddle)
    elif part == "scales":
        for function in functions:
            for index in range(SCALED_STARTS):
                for name, (of_f, of_x) in variants(function).items():
                    start = of_x * random_start(function, index)
                    yield Task(part, scaled(function, of_f, of_x), index, start, name)


@dataclass
class Bench:
    """Runs tasks; one check for each function in each of its units."""

    methods: dict[str, Callable[[Fun, np.ndarray], Outcome]]
    has_check: bool
    checks: dict[tuple[str, str], Check] = field(default_factory=dict)

    def run(self, task: Task) -> list[Row]:
        function, start = task.function, task.start
        rows, target = [], np.nan
        names = NAMES[task.part]
        for name in names:
            tally = Tally(function.fun)
            outcome = attempt(self.methods[name], tally, start)
            if name == BFGS:
                target = outcome.gradient_norm
            truth = self._truth(task, outcome)
            rows.append(_row(task, name, outcome, tally, target, truth))
        if task.part == "starts":
            for name, seconds in self._time(task, names).items():
                next(row for row in rows if row["method"] == name)["seconds"] = f"{seconds:.4g}"
        return rows

    def _truth(self, task: Task, outcome: Outcome) -> Truth | None:
        if not self.has_check or outcome.error:
            return None
        key = task.function.name, task.variant
        function = task.function
        if key not in self.checks:
            self.checks[key] = Check(function.fun, function.low, function.high)
        return self.checks[key](outcome.x, task.start)

    def _time(self, task: Task, names: tuple[str, ...]) -> dict[str, float]:
        """Processor seconds, the least of two rounds; of one, where that is long."""
        seconds = dict.fromkeys(names, np.inf)
        for _ in range(2):
            for name in names:
                before = time.process_time()
                attempt(self.methods[name], task.function.fun, task.start)
                seconds[name] = min(seconds[name], time.process_time() - before)
            if sum(seconds.values()) > 2:
                break
        return seconds


def _row(
    task: Task, method: str, outcome: Outcome, tally: Tally, target: float, truth: Truth | None
) -> Row:
    row: Row = dict.fromkeys(COLUMNS, "")
    row |= dict(zip(KEYS, (*task.key, method), strict=True))
    row |= {
        "held_out": int(task.function.is_held_out),
        "dim": task.function.dim,
        "kind": outcome.kind,
        "success": int(outcome.success),
        "value": f"{outcome.value:.9g}",
        "gradient_norm": f"{outcome.gradient_norm:.3g}",
        "calls": tally.calls,
        "values": tally.values,
        "gradients": tally.gradients,
        "products": tally.products,
        "library_calls": f"{outcome.library_calls:g}",
        "error": outcome.error,
    }
    if np.isfinite(target):
        row |= {"target": f"{target:.3g}", "calls_to_target": f"{tally.calls_until(target):g}"}
    if truth is not None:
        row["truth"] = truth.kind
        for name in ("lowest", "decrease", "moved", "excess"):
            row[name] = f"{getattr(truth, name):.3g}"
    return row


def run_large(methods: dict[str, Callable[[Fun, np.ndarray], Outcome]]) -> list[Row]:
    """20,000 unknowns; here seconds are of the clock of this process and include the counting.

    A rotation of the factors changes nothing, so that the minima form a valley: `accept_flat`.
    """
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(1000, 20, generator=generator, dtype=torch.float64) / 1000**0.5
    target_matrix = factor @ factor.T

    def fun(x: Tensor) -> Tensor:
        wide = x.reshape(1000, 20)
        return ((wide @ wide.T - target_matrix) ** 2).sum() / 4

    noise = np.random.default_rng(0).standard_normal(20_000)
    function = TestFunction("factorization", "", 20_000, fun, (), ())
    starts = {OURS: np.zeros(20_000), LBFGSB: 1e-2 * noise}
    rows = []
    for name, start in starts.items():
        tally = Tally(fun)
        before = time.process_time()
        outcome = attempt(methods[name], tally, start)
        seconds = time.process_time() - before
        row = _row(Task("large", function, 0, start), name, outcome, tally, np.nan, None)
        rows.append(row | {"seconds": f"{seconds:.4g}", "held_out": ""})
    return rows


# ----- the summary


def number(text: Any) -> float:
    return float(text) if text not in ("", None) else np.nan


def by_problem(
    rows: list[Row], ratio: Callable[[Row, Row], float], other: str = BFGS
) -> dict[str, float]:
    """For each function the median over its starts of a ratio of our row to SciPy's."""
    theirs = {(r["function"], r["index"]): r for r in rows if r["method"] == other}
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["method"] == OURS and (row["function"], row["index"]) in theirs:
            value = ratio(row, theirs[row["function"], row["index"]])
            if not np.isnan(value):
                found.setdefault(row["function"], []).append(value)
    return {name: statistics.median(values) for name, values in found.items()}


def confusion(rows: list[Row]) -> dict[str, Any]:
    """How claims compare with the truth, over rows that were checked."""
    known = [row for row in rows if row["truth"] or row["error"]]
    claimed = [row for row in known if row["kind"] == "MINIMUM"]
    false = [row for row in claimed if row["truth"] in ("saddle", "none")]
    withheld = [row for row in known if row["truth"] == "minimum" and row["kind"] != "MINIMUM"]
    total = max(1, len(known))
    return {
        "runs": len(known),
        "truth": dict(Counter(row["truth"] or "raised" for row in known)),
        "kinds": dict(Counter(row["kind"] for row in known)),
        "false": len(false),
        "false_share": len(false) / total,
        "false_with_promise": sum(
            row["truth"] == "saddle" and number(row["decrease"]) > 1e-6 for row in false
        ),
        "false_list": [_name(row) for row in false],
        "minimum_at_flat": [
            _name(row) for row in claimed if row["truth"] == "flat"
        ],
        "withheld": len(withheld),
        "withheld_share": len(withheld) / total,
        "withheld_list": [_name(row) for row in withheld],
        "raised": [_name(row) + ": " + row["error"] for row in known if row["error"]],
    }  # fmt: skip


def _name(row: Row) -> str:
    where = " ".join(str(row[key]) for key in ("part", "function", "index", "variant")).strip()
    return f"{where} ({row['kind']}, {row['truth']})"


def summarize(rows: list[Row]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """All figures, and the lines that are passed or not."""
    parts = {part: [row for row in rows if row["part"] == part] for part in PARTS}
    figures: dict[str, Any] = {}
    lines: list[dict[str, Any]] = []

    def line(text: str, value: float, bound: float, *, at_least: bool = False) -> None:
        passed = value >= bound if at_least else value <= bound
        lines.append({"line": text, "value": value, "bound": bound, "passed": bool(passed)})

    starts = parts["starts"]
    if starts:
        reached = by_problem(starts, lambda a, b: number(a["calls_to_target"]) / number(b["calls"]))
        total = by_problem(
            starts, lambda a, b: (number(a["calls"]) - 2 * number(a["dim"])) / number(b["calls"])
        )
        plain = by_problem(starts, lambda a, b: number(a["calls"]) / number(b["calls"]))
        seconds = by_problem(starts, lambda a, b: number(a["seconds"]) / number(b["seconds"]))
        figures["by_function"] = {
            name: {
                "calls_to_target": reached.get(name),
                "calls": plain.get(name),
                "seconds": seconds.get(name),
            }
            for name in plain
        }
        figures["starts"] = {
            method: confusion([row for row in starts if row["method"] == method])
            for method in (OURS, BFGS, LBFGSB)
        }
        line("calls until BFGS's gradient norm / BFGS, median", _median(reached), 1.5)
        line("(all calls - 2 d) / BFGS, median", _median(total), 2.5)
        if seconds:
            line("processor seconds / BFGS, median", _median(seconds), 4.0)
    saddles = parts["saddles"]
    if saddles:
        figures["saddles"] = {
            method: confusion([row for row in saddles if row["method"] == method])
            for method in (OURS, BFGS)
        }
        ours = [row for row in saddles if row["method"] == OURS]
        share = sum(row["truth"] == "minimum" for row in ours) / max(1, len(ours))
        line("from exact saddles to a genuine minimum, share", share, 0.95, at_least=True)
    judged = confusion([row for row in rows if row["method"] == OURS and row["part"] != "large"])
    figures["verdicts"] = judged
    if judged["runs"]:
        line("false MINIMUM, share", judged["false_share"], 0.01)
        line("false MINIMUM at saddles that promise 1e-6", judged["false_with_promise"], 0)
        line("minima withheld, share", judged["withheld_share"], 0.03)
    scales = parts["scales"]
    if scales:
        base = {(r["function"], r["index"]): r for r in scales if not r["variant"]}
        other = [row for row in scales if row["variant"]]
        changed = [
            row for row in other if row["kind"] != base[row["function"], row["index"]]["kind"]
        ]
        figures["scales"] = {
            "runs": len(other),
            "changed": [
                f"{_name(row)}, unscaled {base[row['function'], row['index']]['kind']}, "
                f"{base[row['function'], row['index']]['truth']}"
                for row in changed
            ],
        }
        line("verdicts changed by units, share", len(changed) / max(1, len(other)), 0.01)
    large = {row["method"]: row for row in parts["large"]}
    if len(large) == 2:
        ours, theirs = large[OURS], large[LBFGSB]
        figures["large"] = {name: _numbers(row) for name, row in large.items()}
        # A gradient is computed with its value: one call.
        work = number(ours["values"]) + number(ours["products"])
        line("20,000 unknowns: certified", number(ours["success"]), 1, at_least=True)
        line("20,000 unknowns: calls and products", work, 300)
        ratio = number(ours["seconds"]) / number(theirs["seconds"])
        line("20,000 unknowns: seconds / L-BFGS-B from beside the saddle", ratio, 10)
    return figures, lines


def _median(values: dict[str, float]) -> float:
    return float(statistics.median(values.values())) if values else np.nan


def _numbers(row: Row) -> dict[str, Any]:
    names = ("kind", "value", "gradient_norm", "values", "gradients", "products", "seconds")
    return {name: row[name] for name in names}


def table(figures: dict[str, Any], lines: list[dict[str, Any]]) -> str:
    """The summary in Markdown."""
    text = ["| | value | bound | |", "|---|---|---|---|"]
    text += [
        f"| {line['line']} | {line['value']:.4g} | {line['bound']:g} | "
        f"{'passed' if line['passed'] else 'missed'} |"
        for line in lines
    ]
    for part in ("starts", "saddles"):
        text += ["", f"| {part} | runs | ended at | false minimum | minimum at flat | withheld |",
                 "|---|---|---|---|---|---|"]  # fmt: skip
        for method, found in figures.get(part, {}).items():
            ended = ", ".join(f"{kind} {n}" for kind, n in sorted(found["truth"].items()))
            text.append(
                f"| {method} | {found['runs']} | {ended} | {found['false']} | "
                f"{len(found['minimum_at_flat'])} | {found['withheld']} |"
            )
    judged = figures.get("verdicts", {})
    lists = (
        ("False minima", judged.get("false_list", [])),
        ("Minima withheld", judged.get("withheld_list", [])),
        ("MINIMUM at flat points", judged.get("minimum_at_flat", [])),
        ("Verdicts changed by units", figures.get("scales", {}).get("changed", [])),
        ("Raised", judged.get("raised", [])),
    )
    for title, entries in lists:
        text += ["", f"{title}: {len(entries)}", *(f"- {entry}" for entry in entries)]
    if figures.get("by_function"):
        text += ["", "| over BFGS | calls to its norm | all calls | seconds |", "|---|---|---|---|"]
        for name, found in figures["by_function"].items():
            cells = (
                "" if found[key] is None else f"{found[key]:.2f}"
                for key in ("calls_to_target", "calls", "seconds")
            )
            text.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


def draw_profile(rows: list[Row], path: Path) -> None:
    """Share of runs that reach BFGS's gradient norm within a multiple of the fewest calls."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "asgld"
    from matplotlib import pyplot

    runs: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row["part"] == "starts" and row["calls_to_target"] != "":
            key = row["function"], row["index"]
            runs.setdefault(key, {})[row["method"]] = number(row["calls_to_target"])
    if not runs:
        return
    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    multiples = np.geomspace(1, 100, 300)
    for method, color in ((OURS, "#d94801"), (BFGS, "#08519c"), (LBFGSB, "#636363")):
        ratios = np.array([
            run[method] / min(run.values()) if np.isfinite(run.get(method, np.inf)) else np.inf
            for run in runs.values()
        ])  # fmt: skip
        shares = [(ratios <= multiple).mean() for multiple in multiples]
        axes.plot(multiples, shares, color=color, label=method)
    axes.set(
        xscale="log", ylim=(0, 1.02), xlabel="calls to BFGS's gradient norm / the fewest",
        ylabel=f"share of {len(runs)} runs",
    )  # fmt: skip
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


# ----- rows on disk


def read_rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def merge(old: list[Row], new: list[Row]) -> list[Row]:
    """New rows replace old ones of the same keys."""
    rows = {tuple(str(row[key]) for key in KEYS): row for row in (*old, *new)}
    return sorted(rows.values(), key=lambda row: PARTS.index(row["part"]))


def write_rows(path: Path, rows: list[Row]) -> None:
    temporary = path.with_name("." + path.name)
    with temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    temporary.replace(path)


def report(rows: list[Row], path: Path) -> None:
    """Print the summary, and write it with the profile beside the rows."""
    figures, lines = summarize(rows)
    text = table(figures, lines)
    print("\n" + text.split("\n\n")[0])
    path.with_suffix(".md").write_text(text)
    content = _finite({"environment": environment(), "lines": lines, "figures": figures})
    path.with_suffix(".json").write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    draw_profile(rows, path.with_name(path.stem + "_profile.svg"))


def _finite(content: Any) -> Any:
    """With words in the place of the numbers that JSON does not have."""
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list):
        return [_finite(value) for value in content]
    return str(content) if isinstance(content, float) and not np.isfinite(content) else content


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--functions", nargs="+", default=[], help="names of `minimize_set`")
    parser.add_argument("--held-out", action="store_true", help="the third that was kept back")
    parser.add_argument("--method", default="auto", help="of asgld.minimize")
    parser.add_argument("-o", "--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--no-check", action="store_true", help="leave verdicts unchecked")
    parser.add_argument("--resume", action="store_true", help="run only what has no row yet")
    parser.add_argument("--summary", action="store_true", help="run nothing")
    parser.add_argument("--out", type=Path, default=FILE)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = read_rows(chosen.out)
    if not chosen.summary:
        rows = _run_all(chosen, rows)
    report([row for row in rows if chosen.held_out or row["held_out"] != "1"], chosen.out)


def _run_all(chosen: argparse.Namespace, rows: list[Row]) -> list[Row]:
    options = {name: json.loads(value) for name, _, value in
               (option.partition("=") for option in chosen.option)}  # fmt: skip
    methods = {
        BFGS: by_scipy("BFGS"),
        OURS: by_asgld(chosen.method, options),
        LBFGSB: by_scipy("L-BFGS-B"),
    }
    functions = select(chosen.functions, held_out=chosen.held_out)
    left_out = len(chosen.functions) - len(functions)
    if left_out > 0:
        print(f"left out: {left_out} functions of the other part, see --held-out", file=sys.stderr)
    bench = Bench(methods, not chosen.no_check)
    done = {tuple(str(row[key]) for key in KEYS[:-1]) for row in rows} if chosen.resume else set()
    tasks = [task for part in chosen.parts for task in tasks_of(part, functions)]
    tasks = [task for task in tasks if tuple(map(str, task.key)) not in done]
    began = saved = time.monotonic()
    new: list[Row] = []
    for position, task in enumerate(tasks, start=1):
        new += bench.run(task)
        now = time.monotonic()
        show = f"{position}/{len(tasks)} {' '.join(map(str, task.key))}"
        print(f"\r{show:70.70s} {now - began:6.0f} s", end="", file=sys.stderr, flush=True)
        if now - saved > 20:
            rows, new, saved = merge(rows, new), [], now
            write_rows(chosen.out, rows)
    if "large" in chosen.parts and not chosen.functions:
        flat = by_asgld(chosen.method, {**options, "accept_flat": True})
        new += run_large(methods | {OURS: flat})
    print(file=sys.stderr)
    rows = merge(rows, new)
    write_rows(chosen.out, rows)
    return rows


if __name__ == "__main__":
    main()
