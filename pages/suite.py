"""The training suite and grown networks: docs/training.md, training-evidence.md and grown.md."""

from __future__ import annotations

import math
import statistics
from typing import Any

from pages.results import RESULTS, Values, bold, read, table

# Benchmarks, from the folder that pages.results adds to the path.
from suite import figures, summary  # isort: skip
from suite.contenders import CONTENDERS  # isort: skip
from suite.summary import SCHEDULES, Suite  # isort: skip
from suite.tasks import TASKS  # isort: skip

SHOWN = (
    "adamw", "cautious", "sgd", "muon", "coordinate", "coordinate-quiet", "matrix", "matrix-quiet",
)  # fmt: skip
# Heads of columns.
HEADS = {
    "adamw": "AdamW, loss",
    "cautious": "cautious AdamW",
    "sgd": "SGD, momentum",
    "muon": "Muon + AdamW",
    "coordinate": "ours, coordinates",
    "coordinate-quiet": "the same, no noise",
    "matrix": "**ours, default**",
    "matrix-quiet": "the same, no noise",
}
OURS, MUON, ADAMW, COORDINATE = "matrix", "muon", "adamw", "coordinate"
# Pairs whose ratio is looked at over all tasks and schedules; a key makes numbers for the pages.
AGAINST = (
    ("ours / Muon", "muon", OURS, MUON),
    ("ours / AdamW", "adamw", OURS, ADAMW),
    ("Muon / AdamW", "", MUON, ADAMW),
    ("ours, coordinates / AdamW", "", COORDINATE, ADAMW),
    ("cautious AdamW / AdamW", "", "cautious", ADAMW),
    ("ours, noise / no noise", "noise", OURS, "matrix-quiet"),
    ("ours, coordinates, noise / no noise", "", COORDINATE, "coordinate-quiet"),
)
SIZES = ("0.1", "0.3", "1")
NEAR = 1.05  # how far above its best loss a default lr may end


def values() -> Values:
    rows = summary.read_rows(RESULTS / "training_suite.csv")
    suite = Suite(rows)
    parts = [part(suite) for part in (_best, _rates, _times, _others, _grown)]
    parts += [_sizes(), _separation()]
    numbers = {"suite.runs": f"{len(rows):,}"}
    tables: dict[str, str] = {}
    for part in parts:
        numbers |= part.numbers
        tables |= part.tables
    return Values(numbers, tables)


def named(part: str) -> list[str]:
    return [name for name, task in TASKS.items() if task.part == part]


def _ratio(value: float) -> str:
    if math.isinf(value):
        return "diverged"
    return f"{value:.3f}" if value >= 0.1 else f"{value:.2g}"


def _line(suite: Suite, task: str, schedule: str, who: tuple[str, ...]) -> list[str]:
    """A task, AdamW's loss, and the others relative to it; the least is bold."""
    found = {name: suite.ratio(task, schedule, name) for name in who}
    least = min(found.values())
    cells = [
        bold(_ratio(value) if name != ADAMW else f"{suite.of(task, name, schedule).mean():.4g}",
             value == least)
        for name, value in found.items()
    ]  # fmt: skip
    return [f"{TASKS[task].title}, {schedule}", *cells]


def _choice(task: str) -> str:
    """What the documentation says to use."""
    return COORDINATE if TASKS[task].is_low_rank else OURS


def _behind(suite: Suite, part: str) -> str:
    """By how many percent the documented choice is behind the better of AdamW and one D per
    coordinate, at most."""
    behind = [
        max(suite.ratio(task, schedule, _choice(task), other) for other in (ADAMW, COORDINATE))
        for task in named(part)
        for schedule in SCHEDULES
    ]
    return f"{100 * (max(behind) - 1):.1f}"


def _mean(suite: Suite, task: str, contender: str) -> float:
    """The geometric mean over schedules of the loss relative to AdamW's."""
    logs = [math.log(suite.ratio(task, schedule, contender)) for schedule in SCHEDULES]
    return math.exp(statistics.fmean(logs))


def _best(suite: Suite) -> Values:
    tasks = named("suite")
    lines = [_line(suite, t, s, SHOWN) for t in tasks for s in SCHEDULES]
    header = ["", *(HEADS[name] for name in SHOWN)]
    numbers = {"suite.pairs": str(len(lines)), "suite.tasks": str(len(tasks))}
    medians = []
    for title, key, ours, theirs in AGAINST:
        ratios = suite.ratios(tasks, ours, theirs)
        found, wins = summary.middle(ratios), sum(ratio < 1.0 for ratio in ratios)
        interval = f"{found.low:.3f} to {found.high:.3f}"
        cells = [f"{found.median:.3f}", interval, f"{wins} of {len(ratios)}", _ratio(max(ratios))]
        medians.append([title, *cells])
        if key:
            numbers[f"suite.{key}.median"] = f"{found.median:.3f}"
            numbers[f"suite.{key}.most"] = f"{max(ratios):.2f}"
    others = [task for task in tasks if not TASKS[task].is_low_rank]
    numbers["suite.muon.else"] = f"{max(suite.ratios(others, OURS, MUON)):.2f}"
    numbers["suite.choice.most"] = _behind(suite, "suite")
    inside = [f for c, f in suite.curves.items() if TASKS[c.task].part == "suite"]
    numbers["suite.curves"] = str(len(inside))
    numbers["suite.edges"] = str(sum(not found.is_inside for found in inside))
    tables = {
        "suite.best": table(header, lines),
        "suite.medians": table(["", "median", "95 % interval", "better in", "at worst"], medians),
        "suite.choice": _choices(suite),
    }
    return Values(numbers, tables)


def _choices(suite: Suite) -> str:
    """For users: a row for each kind of network."""
    who, lines = (OURS, COORDINATE, MUON), []
    for task in named("suite"):
        found = {name: _mean(suite, task, name) for name in who}
        least = min(1.0, *found.values())
        cells = [bold(f"{found[name]:.2f}", found[name] == least) for name in who]
        rates = [suite.of(task, OURS, schedule).best_lr for schedule in SCHEDULES]
        lines.append([TASKS[task].title, *cells, ", ".join(f"{lr:g}" for lr in rates)])
    header = [
        "your network",
        "ours",
        "ours, coordinates",
        "Muon + AdamW",
        "our best lr: constant, cosine",
    ]
    return table(header, lines)  # fmt: skip


def _rates(suite: Suite) -> Values:
    """Losses at the default lr, and how wide the range of good ones is."""
    who = (ADAMW, MUON, OURS)
    lines, near = [], dict.fromkeys(who, 0)
    widths: dict[str, list[float]] = {name: [] for name in who}
    for task in named("suite"):
        for schedule in SCHEDULES:
            at_default, wide = [], []
            for name in who:
                found = suite.of(task, name, schedule)
                default = CONTENDERS[name].default_lr
                assert default is not None
                ratio = found.ratio_at(default)
                near[name] += ratio <= NEAR
                at_default.append(f"{ratio:.2f}" if ratio < 100 else f"{ratio:.0f}")
                width, is_known = found.octaves()
                widths[name].append(width)
                wide.append(f"{'' if is_known else '> '}{width:.1f}")
            lines.append([f"{TASKS[task].title}, {schedule}", *at_default, *wide])
    header = ["", "AdamW at 1e-3", "Muon at 1e-3", "**ours at 4e-3**", "AdamW, octaves",
              "Muon, octaves", "**ours, octaves**"]  # fmt: skip
    numbers = {f"suite.default.{name}": str(near[name]) for name in who}
    for other in (2e-3, 5e-3, 8e-3):
        count = 0
        for task in named("suite"):
            for schedule in SCHEDULES:
                count += suite.of(task, OURS, schedule).ratio_at(other) <= NEAR
        numbers[f"suite.default.{other:g}"] = str(count)
    for name in who:
        numbers[f"suite.octaves.{name}"] = f"{statistics.median(widths[name]):.1f}"
    return Values(numbers, {"suite.rates": table(header, lines)})


def _times(suite: Suite) -> Values:
    """Times of a step, and how soon AdamW's best loss is reached."""
    ms = {
        (row["task"], row["contender"]): float(row["step_ms"])
        for row in read("training_step_time")
        if row["size"] == "full"
    }
    lines = []
    steps: dict[str, list[float]] = {MUON: [], OURS: []}
    clock: dict[str, list[float]] = {MUON: [], OURS: []}
    for task in named("suite"):
        for schedule in SCHEDULES:
            level = suite.of(task, ADAMW, schedule).points()[-1]
            cells = [f"{ms[task, name]:.1f}" for name in (ADAMW, MUON, COORDINATE, OURS)]
            for name in (MUON, OURS):
                share = suite.of(task, name, schedule).share_until(level)
                spent = share * ms[task, name] / ms[task, ADAMW]
                cells += ["never" if math.isinf(x) else f"{x:.2f}" for x in (share, spent)]
                steps[name].append(share)
                clock[name].append(spent)
            lines.append([f"{TASKS[task].title}, {schedule}", *cells])
    header = ["", "AdamW, ms", "Muon, ms", "coordinates, ms", "ours, ms", "Muon: steps",
              "Muon: time", "**ours: steps**", "**ours: time**"]  # fmt: skip
    large = "gpt-large"
    numbers = {
        "suite.step.least": f"{min(ms[t, OURS] / ms[t, ADAMW] for t in named('suite')):.1f}",
        "suite.step.most": f"{max(ms[t, OURS] / ms[t, ADAMW] for t in named('suite')):.1f}",
        "large.ms": f"{ms[large, OURS]:.0f}",
        "large.ms.adamw": f"{ms[large, ADAMW]:.0f}",
        "large.ms.muon": f"{ms[large, MUON]:.0f}",
    }
    for key, name in (("", OURS), (".muon", MUON)):
        numbers[f"suite.until.steps{key}"] = f"{statistics.median(steps[name]):.2f}"
        numbers[f"suite.until.time{key}"] = f"{statistics.median(clock[name]):.2f}"
        numbers[f"suite.until.slower{key}"] = str(sum(x > 1.0 for x in clock[name]))
    return Values(numbers, {"suite.times": table(header, lines)})


def _others(suite: Suite) -> Values:
    """More contenders on two tasks, the large model, the tasks that were held back."""
    who = ("soap", "schedule-free")
    lines = []
    for task in ("gpt", "cnn"):
        for schedule in SCHEDULES:
            cells = []
            for name in (*who, MUON, OURS):
                found = suite.curves.get(summary.Curve(task, name, schedule))
                edge = "" if found is None or found.is_inside else ", edge"
                cells.append("not run" if found is None else f"{found.mean():.4g}{edge}")
            lines.append([f"{TASKS[task].title}, {schedule}", *cells])
    tables = {"suite.more": table(["", "SOAP", "schedule-free AdamW", "Muon", "**ours**"], lines)}
    large = []
    for name in (ADAMW, MUON, OURS):
        found = suite.of("gpt-large", name, "cosine")
        cells = [f"{loss:.3f} at {lr:g}" for lr, loss in found.search.items()]
        large.append([CONTENDERS[name].title, *cells])
    tables["suite.large"] = table(["validation loss at lr", "", "", ""], large)
    best = {name: suite.of("gpt-large", name, "cosine").mean() for name in (ADAMW, MUON, OURS)}
    numbers = {f"large.{name}": f"{loss:.3f}" for name, loss in best.items()}
    short = (ADAMW, MUON, COORDINATE, OURS)
    held = [_line(suite, t, s, short) for t in named("held back") for s in SCHEDULES]
    tables["suite.held"] = table(["", *(HEADS[name] for name in short)], held)
    numbers["held.most"] = _behind(suite, "held back")
    for task in named("held back"):
        ratios = [suite.ratio(task, s, OURS, MUON) for s in SCHEDULES]
        numbers[f"held.{task}.low"] = f"{min(ratios):.2f}"
        numbers[f"held.{task}.high"] = f"{max(ratios):.2f}"
        numbers[f"held.{task}.default"] = (
            f"{max(suite.of(task, OURS, s).ratio_at(4e-3) for s in SCHEDULES):.2f}"
        )
    cost = max(suite.ratios(["linear"], COORDINATE, OURS))
    dip, base = (suite.of("linear", name, "constant") for name in (COORDINATE, ADAMW))
    numbers["held.linear.dip"] = f"{summary.ratio(dip.by_rate[8e-3], base.best):.1f}"
    numbers["held.linear.cost"] = f"{100 * (cost - 1):.0f}"
    return Values(numbers, tables)


def _grown(suite: Suite) -> Values:
    lines, numbers, wins, sizes = [], {}, 0, []
    for task in named("grown"):
        size, by_hand = figures.best_by_hand(suite, task)
        ours = suite.of(task, "matrix-calibrated", "cosine")
        found = {
            name: suite.of(task, name, "cosine")
            for name in (ADAMW, MUON, "coordinate-calibrated", "matrix-quiet", OURS)
        }
        losses = {
            "": found[ADAMW], "muon": found[MUON], "hand": by_hand,
            "coordinate": found["coordinate-calibrated"], "quiet": found["matrix-quiet"],
            "default": found[OURS], "ours": ours,
        }  # fmt: skip
        least = min(of_curve.mean() for of_curve in losses.values())
        cells = [
            bold(f"{of_curve.mean():.4g}", of_curve.mean() == least)
            + (f" (noise {size:g}, lr {by_hand.best_lr:g})" if key == "hand" else "")
            for key, of_curve in losses.items()
        ]
        ratio = summary.ratio(ours.best, by_hand.best)
        wins += ratio <= 1.0
        sizes.append(size)
        apart = [figures.distances(f)[-1] for f in (found[ADAMW], by_hand, ours)]
        cells += [f"{distance:.2g}" for distance in apart]
        lines.append([TASKS[task].title, *cells])
        key = task.removeprefix("grown-")
        numbers[f"grown.{key}"] = f"{100 * (ratio - 1):+.1f}"
        numbers[f"grown.{key}.adamw"] = (
            f"{100 * (1 - summary.ratio(ours.best, found[ADAMW].best)):.0f}"
        )
        alone = summary.ratio(ours.best, found["matrix-quiet"].best)
        numbers[f"grown.{key}.alone"] = f"{100 * (1 - alone):.0f}"
        change = summary.ratio(ours.best, found[OURS].best)
        numbers[f"grown.{key}.noise"] = f"{100 * (change - 1):+.1f}"
    numbers["grown.wins"] = str(wins)
    numbers["grown.hand-spread"] = f"{max(sizes) / min(sizes):g}"
    task = "grown-mlp-few"  # the pilot, at the default lr and at the best of three
    ours = suite.of(task, "matrix-calibrated", "cosine")
    _, by_hand = figures.best_by_hand(suite, task)
    at_default = ours.by_rate[CONTENDERS[OURS].default_lr or 0.0]
    for key, found in (("default", at_default), ("best", ours.best)):
        numbers[f"pilot.{key}"] = f"{100 * (summary.ratio(found, by_hand.best) - 1):+.0f}"
    base = suite.of(task, ADAMW, "cosine").best
    numbers["pilot.adamw"] = f"{100 * (summary.ratio(at_default, base) - 1):+.0f}"
    # The best noise by hand at an lr beyond the grid, on a processor.
    beyond = [
        summary.ratio(found.by_rate[1.6e-2], found.by_rate[8e-3])
        for found in Suite(summary.read_rows(RESULTS / "training_grown_check.csv")).curves.values()
    ]
    for key, value in (("low", min(beyond)), ("high", max(beyond))):
        numbers[f"grown.beyond.{key}"] = f"{100 * (value - 1):+.1f}"
    header = ["test loss", "AdamW", "Muon + AdamW", "AdamW, best noise by hand",
              "ours, coordinates, calibrated", "ours, no noise", "ours, default noise",
              "**ours, calibrated**", "AdamW: distance", "by hand: distance",
              "ours: distance"]  # fmt: skip
    return Values(numbers, {"grown": table(header, lines)})


def _sizes() -> Values:
    """The grid from which the size of the noise was chosen: best of two lr, one seed."""
    suite = Suite(summary.read_rows(RESULTS / "training_grown_sizes.csv"))
    lines = []
    for title, rule, start in (("matrices", "polar", OURS), ("coordinates", "coord", COORDINATE)):
        for name, size in ((start, "default noise"), *((f"{rule}-rho-{x}", x) for x in SIZES)):
            losses = [suite.of(task, name, "cosine").mean() for task in named("grown")]
            lines.append([f"{title}, {size}", *(f"{loss:.4g}" for loss in losses)])
    header = ["test loss", *(TASKS[task].title for task in named("grown"))]
    return Values({}, {"grown.sizes": table(header, lines)})


def _separation() -> Values:
    """How fast copies part on the widened MLP, and what curvature predicts: medians of seeds."""
    runs = {
        (row["network"], row["kick"], row["rule"], row["seed"]): row
        for row in read("training_separation")
    }
    lines, shares = [], []
    for network, kick in dict.fromkeys(key[:2] for key in runs):
        found = {key: row for key, row in runs.items() if key[:2] == (network, kick)}

        def median(column: str, rule: str, found: dict[Any, Any] = found) -> str:
            values = [float(r[column]) for key, r in found.items() if key[2] == rule and r[column]]
            return f"{statistics.median(values):.2g}" if values else "not computed"

        columns = [median(name, "kept") for name in ("predicted_rate", "many_rate", "path_rate")]
        columns += [median("fitted_rate", rule) for rule in ("kept", "waits", "adamw")]
        lines.append([f"{network}, kick of {kick}", *columns])
        shares += [float(r["fitted_rate"]) / float(r["predicted_rate"]) for r in found.values()]
    header = ["rate per step", "predicted, 16 batches", "256 batches", "along the path",
              "measured, momentum kept", "measured, the preset", "measured, AdamW"]  # fmt: skip
    numbers = {
        "separation.least": f"{min(shares):.3f}",
        "separation.most": f"{max(shares):.2f}",
        "separation.median": f"{statistics.median(shares):.2f}",
    }
    return Values(numbers, {"separation": table(header, lines)})
