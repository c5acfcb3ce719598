"""Losses and saddles: docs/training.md, and what README.md says of them.

A case is the size of a batch and the schedule: 16c and 16s are batches of 16 with a constant lr and
with warm-up and cosine, 64c and 64s the same with batches of 64.
"""

from __future__ import annotations

import math
import statistics

from pages.results import RESULTS, Rows, Values, bold, read, table

# Benchmarks, from the folder that pages.results adds to the path.
import training_figures as figures  # isort: skip
import training_saddles as saddles  # isort: skip
import training_summary as summary  # isort: skip

KINDS = {"c": "constant", "s": "warm-up and cosine"}
FILES = {"16": "training_gpt", "64": "training_gpt_64"}
ADAMW, OURS, NOISY = "AdamW", "NetworkASGLD, no noise", "NetworkASGLD"
KEPT, TURNED = f"{OURS}, opposed kept", f"{OURS}, opposed turned"
FLOOR, DROPPED, RAISED = f"{OURS}, floor", "AdamW, opposed dropped", "AdamW, floor"
PAPER, QUIET = "ASGLD, calibrated", "ASG, calibrated"
TITLES = {
    f"{KEPT}, clip 1/4": f"{KEPT}, clip 1/4 as in ADOPT",
    QUIET: "ASG(1), calibrated",
    PAPER: "ASGLD(1, 1), calibrated",
    f"{QUIET}, no clip": "ASG(1), calibrated, without clip",
}
# Variants of the calibration, which the text mentions.
LEFT_OUT = ("warmup", "one scale")
RANGES = (OURS, NOISY, FLOOR, "NetworkASGLD, floor", ADAMW, DROPPED)
MATRICES = "NetworkASGLD, matrices"
LEAVERS = ("SGLD", "PSGLD", "AGLD", "ASGLD", "ASGLD, calibrated", NOISY, MATRICES)
NO_NOISE, NO_DECAY = "NetworkASGLD, noise 0", "AdamW, no weight decay"
STRENGTHS = ("0.3", "1", "3", "10")

Case = dict[str, summary.Curve]


def values() -> Values:
    cases = {
        f"{batch}{letter}": {name: curve for (name, k), curve in curves.items() if k == kind}
        for batch, file in FILES.items()
        for curves in [summary.read(RESULTS / f"{file}.csv")]
        for letter, kind in KINDS.items()
    }
    tables = {f"gpt.{batch}": _losses(cases[f"{batch}c"], cases[f"{batch}s"]) for batch in FILES}
    tables["gpt.ranges"] = _ranges(cases)
    numbers = _gains(cases) | _widths(cases) | _paper(cases)
    for part in (_saddles(), _few_data()):
        numbers |= part.numbers
        tables |= part.tables
    return Values(numbers, tables)


def gain(case: Case, name: str, than: str) -> float:
    """By how many percent the best loss is lower, on the seeds that both have."""
    return 100 * (1 - summary.ratio_of_losses(case[name], case[than]))


def _losses(constant: Case, scheduled: Case) -> str:
    names = [name for name in constant if not any(word in name for word in LEFT_OUT)]
    is_16 = "Adagrad" in constant
    rows = [
        [TITLES.get(name, name)]
        + [
            bold(f"{case[name].best[0]:.3f}", name in (OURS, NOISY))
            for case in (constant, scheduled)
        ]
        for name in sorted(names, key=lambda name: constant[name].best)
    ]
    first = "optimizer" if is_16 else "batches of 64"
    return table([first, "lr constant", "warm-up and cosine"], rows)


def _ranges(cases: dict[str, Case]) -> str:
    def cell(curve: summary.Curve) -> str:
        found = curve.good_range()
        return f"{summary.octaves(found):.2f}" if curve.ends_inside(found) else "not shown"

    order = ("64c", "64s", "16c", "16s")
    header = ["octaves of good lr", "64, constant", "64, schedule", "16, constant", "16, schedule"]
    return table(header, [[name, *(cell(cases[case][name]) for case in order)] for name in RANGES])


def _gains(cases: dict[str, Case]) -> dict[str, str]:
    """Differences of best losses, in percent."""
    numbers = {}
    low, defaults, changes, behind = [], [], [], []
    for key, case in cases.items():
        for what, name, than in (
            ("gain", OURS, ADAMW),
            ("drop", OURS, KEPT),
            ("drop-adamw", DROPPED, ADAMW),
            ("left", OURS, DROPPED),
        ):
            numbers[f"{what}.{key}"] = f"{gain(case, name, than):.1f}"
        turned = gain(case, TURNED, OURS) * (1 if key.startswith("16") else -1)
        numbers[f"turn.{key}"] = f"{turned:.1f}"
        if key.startswith("16"):
            numbers[f"best.{key}"] = f"{case[NOISY].best[0]:.2f}"
        ours = case[OURS]
        for lr, found in ((2e-3, low), (4e-3, defaults)):
            nearest = min(ours.rates, key=lambda rate: abs(math.log(rate / lr)))
            found.append(100 * (ours.losses[ours.rates.index(nearest)] / ours.best[0] - 1))
        changes.append(abs(gain(case, NOISY, OURS)))
        behind.append(-gain(case, RAISED, ADAMW))
    curve = cases["16c"][TURNED]
    at, best = curve.losses.index(curve.best[0]), cases["16c"][OURS].best[0]
    for side, i in (("below", at - 1), ("above", at + 1)):
        numbers[f"turn.{side}"] = f"{100 * (1 - curve.losses[i] / best):.1f}"
    fast = [cases["16s"][name] for name in (ADAMW, OURS)]
    for name, curve in zip(("adamw", "ours"), fast, strict=True):
        numbers[f"fast.{name}"] = f"{curve.losses[curve.rates.index(4e-3)]:.2f}"
    # What a constant lr costs.
    constant = [
        100 * (cases[f"{batch}c"][OURS].best[0] / cases[f"{batch}s"][OURS].best[0] - 1)
        for batch in FILES
    ]
    numbers |= {
        "turn.adamw": f"{-gain(cases['64s'], TURNED, ADAMW):.1f}",
        "noise.most": f"{max(changes):.1f}",
        "low-lr.most": f"{max(low):.1f}",
        "default-lr.most": f"{max(defaults):.1f}",
        "eps.least": f"{min(behind):.1f}",
        "eps.most": f"{max(behind):.1f}",
        "floor.64s": f"{-gain(cases['64s'], FLOOR, OURS):.1f}",
        "floor.16s": f"{gain(cases['16s'], FLOOR, OURS):.1f}",
        "floor.64c": f"{-gain(cases['64c'], FLOOR, OURS):.1f}",
        "floor.16c": f"{-gain(cases['16c'], FLOOR, OURS):.1f}",
        "constant.least": f"{min(constant):.0f}",
        "constant.most": f"{max(constant):.0f}",
    }
    return numbers


def _widths(cases: dict[str, Case]) -> dict[str, str]:
    """Ranges of good lr, in octaves and as factors."""
    numbers = {}
    for key, case in cases.items():
        ours, adamw = case[OURS], case[ADAMW]
        numbers[f"width.{key}"] = f"{summary.ratio_of_widths(ours, adamw):.1f}"
        each = summary.ratios_of_widths(ours, adamw)
        numbers[f"width.{key}.low"], numbers[f"width.{key}.high"] = (
            f"{f(each):.1f}" for f in (min, max)
        )
        common = summary.GOOD * min(curve.best[0] for curve in case.values())
        for name, curve in (("floor", case[FLOOR]), ("adamw", adamw)):
            if key.endswith("s"):
                width = summary.octaves(curve.good_range())
                numbers[f"{name}-fold.{key}"] = f"{2**width:.1f}"
                shared = summary.octaves(curve.good_range(common))
                numbers[f"{name}-common.{key}"] = f"{shared:.2f}"
        if key.endswith("s"):
            numbers[f"floor-width.{key}"] = f"{summary.ratio_of_widths(case[FLOOR], adamw):.1f}"
        level = summary.GOOD * ours.best[0]
        numbers[f"adamw-at-ours.{key}"] = f"{summary.octaves(adamw.good_range(level)):.2f}"
    widest = summary.octaves(cases["64c"][OURS].good_range())
    return numbers | {"octaves.64c": f"{widest:.2f}", "fold.64c": f"{2**widest:.1f}"}


def _paper(cases: dict[str, Case]) -> dict[str, str]:
    """The paper's rule beside Adagrad."""
    numbers = {}
    for letter in KINDS:
        case = cases[f"16{letter}"]
        numbers[f"paper.{letter}"] = f"{gain(case, PAPER, 'Adagrad'):.1f}"
        numbers[f"paper-best.{letter}"] = f"{case[PAPER].best[0]:.2f}"
        numbers[f"adagrad-best.{letter}"] = f"{case['Adagrad'].best[0]:.2f}"
        numbers[f"adamw-best.{letter}"] = f"{case[ADAMW].best[0]:.2f}"
        for key, name in (
            ("warmup1", f"{QUIET}, warmup 1"),
            ("warmup1e-4", f"{PAPER}, warmup 1e-4"),
            ("warmup1e-4-quiet", f"{QUIET}, warmup 1e-4"),
        ):
            numbers[f"{key}.{letter}"] = f"{case[name].best[0]:.3f}"
    case = cases["16s"]
    ours, theirs = case[PAPER].best_run, case["Adagrad"].best_run
    return numbers | {
        "quiet.c": f"{gain(cases['16c'], QUIET, 'Adagrad'):.1f}",
        "quiet.s": f"{-gain(case, QUIET, 'Adagrad'):.1f}",
        "paper.wins": str(sum(ours[seed] < theirs[seed] for seed in range(9))),
    }


def _saddles() -> Values:
    every = read("training_saddles")
    rows = [row for row in every if row["is_best"] == "True"]
    best = {(row["problem"], row["start"], row["optimizer"]): row for row in rows}

    def line(problem: str) -> list[str]:
        medians = [float(best[problem, "exact saddle", name]["steps_median"]) for name in LEAVERS]
        return [problem, *(bold(f"{m:g}", m == min(medians)) for m in medians)]

    problems = figures.in_order(rows, "problem")
    exact = [row for row in rows if row["start"] == "exact saddle"]
    numbers = {}
    for key, of_kind in (
        ("saddles", [row for row in exact if row["problem"] != "digits"]),
        ("saddles.digits", [row for row in exact if row["problem"] == "digits"]),
    ):
        noisy = [row for row in of_kind if row["optimizer"] in LEAVERS]
        quiet = [row for row in of_kind if row["optimizer"] not in LEAVERS]
        numbers[f"{key}.low"] = f"{min(float(row['share_low']) for row in noisy):.2f}"
        numbers[f"{key}.high"] = f"{max(float(row['share_high']) for row in quiet):.2f}"
        (numbers[f"{key}.runs"],) = {row["replicas"] for row in of_kind}
    for key, name in (("energy", NOISY), ("energy.matrices", MATRICES)):
        energy = {
            problem: float(best[problem, "exact saddle", name]["energy_median"])
            / float(best[problem, "exact saddle", "SGLD"]["energy_median"])
            for problem in problems
        }
        numbers[f"{key}.digits"] = f"{energy.pop('digits'):.2f}"
        numbers[f"{key}.most"] = f"{max(energy.values()):.2f}"
    numbers |= _matrices_at_saddles(every)
    for key, name in (("slower", "ASGLD"), ("slower.calibrated", "ASGLD, calibrated")):
        numbers[key] = f"{_slower_at_one_step(every, name):.0f}"
    header = ["median steps from the exact saddle", *LEAVERS]
    return Values(numbers, {"saddles": table(header, map(line, problems))})


def _matrices_at_saddles(rows: Rows) -> dict[str, str]:
    """The rule for matrices beside the one per coordinate, from the exact saddle."""
    found = {
        (row["problem"], row["optimizer"], float(row["lr"])): row
        for row in rows
        if row["start"] == "exact saddle"
    }
    rates = sorted(lr for problem, name, lr in found if (problem, name) == ("digits", MATRICES))
    numbers = {
        "saddles.matrices.lr.low": f"{rates[0]:g}",
        "saddles.matrices.lr.high": f"{rates[-1]:g}",
    }
    for key, lr in (("low", rates[0]), ("high", rates[-1])):
        for letter, name in (("", MATRICES), (".coordinate", NOISY)):
            steps = float(found["factorization", name, lr]["steps_median"])
            numbers[f"saddles.matrices.steps.{key}{letter}"] = f"{steps:g}"
    bests = {
        (problem, name): row
        for (problem, name, _), row in found.items()
        if row["is_best"] == "True"
    }
    at_end = [float(row["lr"]) == rates[-1] for (_, name), row in bests.items() if name == MATRICES]
    numbers["saddles.matrices.at-end"] = str(sum(at_end))
    for letter, name in (("", MATRICES), (".coordinate", NOISY)):
        for problem in ("sensing", "digits"):
            value = f"{float(bests[problem, name]['final_median']):.1g}"
            numbers[f"saddles.matrices.{problem}{letter}"] = value.replace("e-0", "e-")
    return numbers


def _slower_at_one_step(rows: Rows, name: str) -> float:
    """By how many percent a rule leaves later than SGLD on digits, at most, with the same first
    step."""
    ours, theirs = (
        {
            row["step_size"]: float(row["steps_median"])
            for row in rows
            if (row["problem"], row["start"], row["optimizer"]) == ("digits", "exact saddle", who)
            and row["left"] == row["replicas"]
        }
        for who in (name, "SGLD")
    )
    return max(100 * (ours[size] / theirs[size] - 1) for size in ours.keys() & theirs.keys())


def _few_data() -> Values:
    rows = read("training_few_data")
    sizes, names = (figures.in_order(rows, column) for column in ("train_size", "optimizer"))
    losses = {
        (size, name): figures.best_losses(rows, size, name) for size in sizes for name in names
    }
    medians = {key: statistics.median(found) for key, found in losses.items()}
    least = {size: min(medians[size, name] for name in names) for size in sizes}

    def spread(size: str, name: str, than: str) -> tuple[float, float, float]:
        """The change of the test loss in percent, seed by seed: median and its interval."""
        pairs = zip(losses[size, name], losses[size, than], strict=True)
        changes = [100 * (loss / base - 1) for loss, base in pairs]
        return statistics.median(changes), *saddles.median_interval(changes)

    noise = {
        (s, n): spread(s, f"NetworkASGLD, noise {n}", NO_NOISE) for s in sizes for n in STRENGTHS
    }
    middles = [middle for middle, _, _ in noise.values()]
    odd = noise["100", "3"]
    numbers = {
        "noise.least": f"{min(middles):+.1f}",
        "noise.highest": f"{max(middles):+.1f}",
        "noise.cases": str(len(noise)),
        "noise.with-zero": str(sum(low < 0.0 < high for _, low, high in noise.values())),
        **dict(zip(("odd", "odd.low", "odd.high"), (f"{x:.1f}" for x in odd), strict=True)),
    }
    for size in sizes:
        middle, low, high = spread(size, "AdamW, weight decay 0.1", NO_DECAY)
        for key, x in (("", middle), (".low", high), (".high", low)):  # gains are falls
            numbers[f"decay.{size}{key}"] = f"{-x:.1f}"
    for size in ("300", "900"):
        for key, x in zip(("", ".low", ".high"), spread(size, NO_DECAY, NO_NOISE), strict=True):
            numbers[f"few.{size}{key}"] = f"{x:.1f}"
    floors = [abs(spread(size, f"{NO_NOISE}, floor", NO_NOISE)[0]) for size in sizes]
    numbers["few.floor.most"] = f"{max(floors):.2f}"
    for size, sign in (("100", 1), ("300", 1), ("900", -1)):
        lower = 100 * (1 - _ratio_at_the_largest_lr(rows, size))
        numbers[f"few.floor.{size}"] = f"{sign * lower:.1f}"
    cells = [
        [name, *(bold(f"{medians[s, name]:.3f}", medians[s, name] == least[s]) for s in sizes)]
        for name in names
    ]
    header = ["median test loss", *(f"{size} samples" for size in sizes)]
    return Values(numbers, {"few-data": table(header, cells)})


def _ratio_at_the_largest_lr(rows: Rows, size: str) -> float:
    """Of the medians with and without a floor under D."""
    of_size = [row for row in rows if row["train_size"] == size]
    floor = f"{NO_NOISE}, floor"
    largest = max(float(row["lr"]) for row in of_size if row["optimizer"] == floor)

    def median(name: str) -> float:
        wanted = (name, largest)
        found = [row for row in of_size if (row["optimizer"], float(row["lr"])) == wanted]
        return statistics.median(float(row["test_loss"]) for row in found)

    return median(floor) / median(NO_NOISE)
