"""Draws against known posteriors, and their price next to other libraries: docs/sampling.md."""

from __future__ import annotations

from collections.abc import Mapping

from pages.results import Values, read, table

# Benchmarks, from the folder that pages.results adds to the path.
from sampling_suite import summary  # isort: skip

TITLES = {
    "linear": "linear regression, 8 weights",
    "linear-1e4": "the same, condition number 1e4",
    "gaussian-1000": "normal, 1,000 dimensions",
    "banana": "banana, 4 dimensions",
    "mixture": "two overlapping modes, 3 dimensions",
    "logistic": "logistic regression, 31 weights",
}
BATCHES = {
    "default": "the default",
    "correct both": "both",
    "correct noise": "lowered noise",
    "correct control": "control variates",
    "correct none": "none",
}
Row = Mapping[str, str]


def values() -> Values:
    accuracy, rivals, times = (read(f"sampling_{w}") for w in ("accuracy", "rivals", "walltime"))
    full = [row for row in accuracy if row["gradients"] == "full" and row["variant"] == "default"]
    plain = {r["target"]: r for r in accuracy if r["variant"] == "no look back"}
    batch = [row for row in accuracy if row["gradients"] == "batch" and row["variant"] in BATCHES]
    order = list(TITLES)
    full.sort(key=lambda row: order.index(row["target"]))
    batch.sort(key=lambda row: (order.index(row["target"]), list(BATCHES).index(row["variant"])))
    tables = {
        "sampling.accuracy": table(
            ["full gradients", "worst mean", "worst sd", "worst sd, plain rule"],
            [
                [TITLES[name], _of(r, "mean"), _of(r, "sd"), _of(plain.get(name), "sd")]
                for r in full
                for name in [r["target"]]
            ],
        ),
        "sampling.batches": table(
            ["batches of 10 %", "correction", "worst mean", "worst sd"],
            [
                [TITLES[r["target"]], BATCHES[r["variant"]], _of(r, "mean"), _of(r, "sd")]
                for r in batch
            ],
        ),
        "sampling.rivals": table(
            ["gradients for an effective draw", "gradients", "ours", "ours, step tuned", "blackjax",
             "posteriors", "ours / best", "tuned / best"],
            _rival_rows(rivals),
        ),
        "sampling.walltime": table(
            ["1,000 chains", "ours", "blackjax", "ours / blackjax"], _time_rows(times)
        ),
    }  # fmt: skip
    defaults = [row for row in batch if row["variant"] == "default"]
    numbers = {
        "sampling.worst-sd": _worst(full),
        "sampling.worst-batch": _worst(defaults),
        "sampling.targets": str(len(full)),
    }
    return Values(numbers, tables)


def _worst(rows: list[dict[str, str]]) -> str:
    """The largest error of an sd, in per cent."""
    return f"{max(100 * float(row['sd_error']) for row in rows):.1f}"


def _of(row: Row | None, moment: str) -> str:
    """An error in per cent of an sd, with its standard error."""
    if row is None:
        return ""
    error, noise = float(row[f"{moment}_error"]), float(row[f"mcse_{moment}"])
    return f"{100 * error:.1f} % ± {100 * noise:.1f}"


def _rival_rows(rows: list[dict[str, str]]) -> list[list[str]]:
    lines = []
    places = [(t, g) for t in TITLES for g in ("full", "batch")]
    for target, gradients in places:
        here = [r for r in rows if (r["target"], r["gradients"]) == (target, gradients)]
        price = {
            r["contender"]: float(r["gradients_per_ess"])
            for r in here
            if summary.is_true(r["meets"]) and r["gradients_per_ess"]
        }
        if "asgld" not in price:
            continue
        theirs = {k: v for k, v in price.items() if not k.startswith("asgld")}
        best = min(theirs.values())
        ours, tuned = price["asgld"], price.get("asgld, step tuned")
        exact = min((v for k, v in theirs.items() if k.startswith("SGLD")), default=None)

        def of(name: str, theirs: dict[str, float] = theirs, exact: float | None = exact) -> str:
            found = [v for k, v in theirs.items() if k.startswith(name)]
            if found:
                return f"{min(found):.3g}"
            return "" if exact is None else f"{exact:.3g} (theory)"

        lines.append(
            [TITLES[target], "all" if gradients == "full" else "10 %", f"{ours:.3g}",
             "" if tuned is None else f"{tuned:.3g}", of("blackjax"), of("posteriors"),
             f"{ours / best:.2g}", "" if tuned is None else f"{tuned / best:.2g}"]
        )  # fmt: skip
    return lines


def _time_rows(rows: list[dict[str, str]]) -> list[list[str]]:
    lines = []
    for target, title in TITLES.items():
        here = {r["contender"]: r for r in rows if r["target"] == target and r["part"] == "draws"}
        if not here:
            continue
        ours, theirs = here["asgld"], here["blackjax"]
        seconds = [f"{float(row['s_per_1000_ess']):.2g} s" for row in (ours, theirs)]
        lines.append([title, *seconds, f"{float(ours['over_blackjax']):.2g}"])
    return lines
