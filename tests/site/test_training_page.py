"""The committed runs of benchmarks/training.py say what docs/training.md and the README say."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from training_cases import (
    BENCHMARKS,
    WITHOUT_NOISE,
    Rows,
    figures,
    measure,
    read_csv,
    saddles,
    summary,
)

Curves = dict[tuple[str, str], Any]


def test_committed_saddles_say_what_the_page_says() -> None:
    """Everybody with noise leaves, nobody without does, and ours is never worse than SGLD: the
    interval of its median does not lie beyond that of SGLD's."""
    rows = [
        row
        for row in read_csv(measure.RESULTS / "training_saddles.csv")
        if row["is_best"] == "True"
    ]
    found = {(row["problem"], row["start"], row["optimizer"]): row for row in rows}
    starts = dict.fromkeys((problem, start) for problem, start, _ in found)
    assert {problem for problem, _ in starts} == set(saddles.WORKS)
    for problem, start in starts:
        for name in {row["optimizer"] for row in rows}:
            row = found[problem, start, name]
            stays = start == "exact saddle" and name in WITHOUT_NOISE
            assert row["left"] == ("0" if stays else row["replicas"])
        for name in ("AGLD", "ASGLD", "ASGLD, calibrated", "NetworkASGLD"):
            ours, theirs = found[problem, start, name], found[problem, start, "SGLD"]
            assert float(ours["steps_low"]) <= float(theirs["steps_high"])
            assert float(ours["energy_median"]) <= float(theirs["energy_median"])

    names, *table = _table_of_the_page("median steps from the exact saddle")
    assert len(table) == len(saddles.WORKS)
    for problem, *cells in table:
        medians = [float(found[problem, "exact saddle", name]["steps_median"]) for name in names]
        assert [float(cell) for cell in cells] == medians


SCHEDULES = ("constant", "warm-up and cosine")


def _best(curves: Curves, name: str, digits: int = 3) -> list[str]:
    return [
        f"{curves[name, kind].best[0]:.{digits}f}" if (name, kind) in curves else "not run"
        for kind in SCHEDULES
    ]


def _curves(name: str) -> Curves:
    return summary.read(measure.RESULTS / f"{name}.csv")


@pytest.fixture
def page() -> str:
    """docs/training.md without line breaks."""
    return " ".join((BENCHMARKS.parent / "docs" / "training.md").read_text().split())


def test_committed_gpt_says_what_the_page_says(page: str) -> None:
    curves = _curves("training_gpt")
    titles = {
        "NetworkASGLD, no noise, opposed kept, clip 1/4 as in ADOPT": (
            "NetworkASGLD, no noise, opposed kept, clip 1/4"
        ),
        "ASG(1), calibrated": "ASG, calibrated",
        "ASGLD(1, 1), calibrated": "ASGLD, calibrated",
        "ASG(1), calibrated, without clip": "ASG, calibrated, no clip",
    }
    _, *table = _table_of_the_page("optimizer")
    assert len(table) == 21
    for title, *cells in table:
        assert cells == _best(curves, titles.get(title, title)), title
    for warmup, words in (
        ("ASG, calibrated, warmup 1", "it was {} and {}."),
        ("ASGLD, calibrated, warmup 1e-4", "it was {} and {} with noise"),
        ("ASG, calibrated, warmup 1e-4", "but {} and {} without"),
    ):
        assert words.format(*_best(curves, warmup)) in page
    readme = " ".join((BENCHMARKS.parent / "README.md").read_text().split())
    names = ("ASGLD, calibrated", "Adagrad", "AdamW", "NetworkASGLD")
    constant, scheduled = zip(*(_best(curves, name, 2) for name in names), strict=True)
    words = (
        "of {}, calibrated; Adagrad {}, AdamW {}, `NetworkASGLD` {}; with one, {}, {}, {} and {}"
    )
    assert words.format(*constant, *scheduled) in readme


def test_the_papers_rule_differs_from_adagrad_by_chance_alone(page: str) -> None:
    from scipy.stats import wilcoxon

    curves = _curves("training_gpt")
    gains, wins = {}, {}
    for name in ("ASGLD, calibrated", "ASG, calibrated"):
        for kind in SCHEDULES:
            ours, theirs = curves[name, kind], curves["Adagrad", kind]
            gaps = [ours.best_run[seed] - theirs.best_run[seed] for seed in range(9)]
            assert wilcoxon(gaps).pvalue > 0.05
            gains[name, kind] = 100 * (1 - summary.ratio_of_losses(ours, theirs))
            wins[name, kind] = sum(gap < 0 for gap in gaps)
    first, second, third, fourth = gains.values()
    assert f"its median is {first:.1f} % better than that of torch's without a schedule" in page
    assert f"and {second:.0f} % with one, where seven seeds of nine are better" in page
    assert wins["ASGLD, calibrated", "warm-up and cosine"] == 7
    assert f"without noise it is {third:.1f} % better and {-fourth:.1f} % worse" in page


def test_committed_gpt_of_large_batches_says_what_the_page_says(page: str) -> None:
    curves = _curves("training_gpt_64")
    _, *table = _table_of_the_page("batches of 64")
    assert len(table) == 11
    for title, *cells in table:
        assert cells == _best(curves, title), title


def test_ranges_of_lr_are_those_of_the_page(page: str) -> None:
    of_64, of_16 = _curves("training_gpt_64"), _curves("training_gpt")
    cases = [(curves, kind) for curves in (of_64, of_16) for kind in SCHEDULES]
    _, *table = _table_of_the_page("octaves of good lr")
    assert len(table) == 6
    for name, *cells in table:
        for cell, (curves, kind) in zip(cells, cases, strict=True):
            curve = curves[name, kind]
            found = curve.good_range()
            shown = f"{summary.octaves(found):.2f}" if curve.ends_inside(found) else "not shown"
            assert cell == shown, (name, kind)
    ours, theirs = ([float(cell) for cell in cells] for cells in (table[0][1:], table[4][1:]))
    first, *others = (mine / other for mine, other in zip(ours, theirs, strict=True))
    assert f"it is {first:.1f} times AdamW's with batches of 64 and a constant lr" in page
    assert "three cases:** {:.1f}, {:.1f} and {:.1f} times".format(*others) in page
    spreads = []
    for curves, kind in cases:
        both = curves["NetworkASGLD, no noise", kind], curves["AdamW", kind]
        ratios = summary.ratios_of_widths(*both)
        assert len(ratios) == 3
        widest = both[0].of_seed(ratios.index(max(ratios)))
        is_known = widest.ends_inside(widest.good_range())
        limit = f"{'' if is_known else 'at least '}{max(ratios):.1f}"
        spreads.append(f"{min(ratios):.1f} to {limit}")
    assert "Seed by seed it is {}, {}, {} and {} times".format(*spreads) in page
    assert f"{ours[0]:.2f} octaves are learning rates up to {2 ** ours[0]:.1f} times" in page
    for curves, kind in cases:
        level = summary.GOOD * curves["NetworkASGLD, no noise", kind].best[0]
        width = summary.octaves(curves["AdamW", kind].good_range(level))
        is_large_with_schedule = curves is of_64 and kind == SCHEDULES[1]
        assert f"{width:.2f}" == ("1.60" if is_large_with_schedule else "0.00")
    assert "in three of the four cases, and 1.60 octaves with a schedule and batches of 64" in page


def test_a_floor_widens_the_range_as_the_page_says(page: str) -> None:
    ours, floor, adamw = "NetworkASGLD, no noise", "NetworkASGLD, no noise, floor", "AdamW"
    kind = SCHEDULES[1]
    wider, folds, common, worse = [], {floor: [], adamw: []}, [], []
    for name in ("training_gpt_64", "training_gpt"):
        curves = _curves(name)
        widths = {who: summary.octaves(curves[who, kind].good_range()) for who in folds}
        wider.append(widths[floor] / widths[adamw])
        least = min(curve.best[0] for (_, schedule), curve in curves.items() if schedule == kind)
        for who, width in widths.items():
            folds[who].append(2**width)
            found = curves[who, kind].good_range(summary.GOOD * least)
            common.append(f"{summary.octaves(found):.2f}")
        ratio = summary.ratio_of_losses(curves[floor, kind], curves[ours, kind])
        worse.append(100 * (ratio - 1))
    words = "is {:.1f} times AdamW's with batches of 64 and {:.1f} times with batches of 16"
    assert words.format(*wider) in page
    assert f"{worse[0]:.1f} % worse and {-worse[1]:.1f} % better" in page
    words = "is {:.1f} and {:.1f} times the smallest, with AdamW {:.1f} and {:.1f} times"
    assert words.format(*folds[floor], *folds[adamw]) in page
    assert common[3] == "0.00"
    words = "{} octaves against {} with batches of 64, and {} against none with batches of 16"
    assert words.format(*common[:3]) in page


def test_a_floor_without_a_schedule_or_for_adamw_is_as_the_page_says(page: str) -> None:
    ours, floor, adamw = "NetworkASGLD, no noise", "NetworkASGLD, no noise, floor", "AdamW"
    words = "loss is {:.1f} % worse with batches of 64 and {:.1f} % worse with batches of 16"
    losses, behind = [], []
    for name in ("training_gpt_64", "training_gpt"):
        curves = _curves(name)
        constant = [curves[name, "constant"] for name in (floor, ours)]
        losses.append(summary.ratio_of_losses(*constant))
        for kind in SCHEDULES:
            raised = curves["AdamW, floor", kind]
            assert len(raised.rates) == 2
            behind.append(100 * (summary.ratio_of_losses(raised, curves[adamw, kind]) - 1))
    assert words.format(*(100 * (loss - 1) for loss in losses)) in page
    assert f"it is {min(behind):.1f} to {max(behind):.1f} % behind AdamW" in page


def test_dropping_opposed_momentum_gains_what_the_page_says(page: str) -> None:
    of_16, of_64 = _curves("training_gpt"), _curves("training_gpt_64")
    ours, adamw = "NetworkASGLD, no noise", "AdamW"
    kept, turned, dropped = (
        f"{ours}, opposed kept",
        f"{ours}, opposed turned",
        "AdamW, opposed dropped",
    )

    def gains(curves: Curves, name: str, than: str) -> list[float]:
        ratios = [summary.ratio_of_losses(curves[name, k], curves[than, k]) for k in SCHEDULES]
        return [100 * (1 - ratio) for ratio in ratios]

    for words, numbers in (
        ("{} % better than AdamW without a schedule and {} % with one", gains(of_16, ours, adamw)),
        ("with one; with batches of 64, {} and {} %.**", gains(of_64, ours, adamw)),
        ("our rule {} % better without a schedule and {} % with one", gains(of_16, ours, kept)),
        ("(with batches of 64, {} and {} %), and would", gains(of_64, ours, kept)),
        ("make AdamW {} and {} % better", gains(of_16, dropped, adamw)),
        ("% better ({} and {} %). What", gains(of_64, dropped, adamw)),
        ("better still with batches of 16, by {} % and {} %", gains(of_16, turned, ours)),
        ("of 64, by {} and {} %, where", [-gain for gain in gains(of_64, turned, ours)]),
        ("with a schedule it is {} % behind AdamW", [-gains(of_64, turned, adamw)[1]]),
    ):
        assert words.format(*(f"{number:.1f}" for number in numbers)) in page
    curve = of_16[turned, "constant"]
    at, best = curve.losses.index(curve.best[0]), of_16[ours, "constant"].best[0]
    beside = [100 * (1 - curve.losses[i] / best) for i in (at - 1, at + 1)]
    assert "at those next to it the gain is {:.1f} and {:.1f} %".format(*beside) in page
    left = [gains(curves, ours, dropped) for curves in (of_16, of_64)]
    assert "with a schedule, {:.1f} % and {:.1f} %".format(*(gain[1] for gain in left)) in page
    assert "without one it is {:.1f} and {:.1f} %".format(*(gain[0] for gain in left)) in page
    for curves in (of_16, of_64):
        assert max(map(abs, gains(curves, "NetworkASGLD", ours))) < 0.8
        for kind in SCHEDULES:  # the default lr
            curve = curves[ours, kind]
            assert curve.losses[curve.rates.index(2e-3)] < 1.013 * curve.best[0]


def test_committed_few_data_say_what_the_page_says(page: str) -> None:
    """The table, and that no strength of noise changes the test loss beyond chance."""
    rows = read_csv(measure.RESULTS / "training_few_data.csv")

    def change(size: str, name: str, reference: str) -> list[float]:
        pairs = zip(*(figures.best_losses(rows, size, n) for n in (name, reference)), strict=True)
        return [100 * (loss / base - 1) for loss, base in pairs]

    headers, *table = _table_of_the_page("median test loss")
    sizes = [header.removesuffix(" samples") for header in headers]
    assert sizes == figures.in_order(rows, "train_size")
    assert [line[0] for line in table] == figures.in_order(rows, "optimizer")
    for name, *cells in table:
        for size, cell in zip(sizes, cells, strict=True):
            assert cell == f"{statistics.median(figures.best_losses(rows, size, name)):.3f}"
    quiet = "NetworkASGLD, noise 0"
    for size in sizes:
        for noise in ("0.3", "1", "3", "10"):
            changes = change(size, f"NetworkASGLD, noise {noise}", quiet)
            low, high = saddles.median_interval(changes)
            assert (low < 0.0 < high) or (size, noise) == ("100", "3")
            assert -4.5 <= round(statistics.median(changes), 1) <= 0.9
    odd = change("100", "NetworkASGLD, noise 3", quiet)
    assert [round(x, 1) for x in (statistics.median(odd), *saddles.median_interval(odd))] == [
        -0.4, -1.0, -0.1,
    ]  # fmt: skip
    for size in sizes:
        changes = change(size, f"{quiet}, floor", quiet)
        low, high = saddles.median_interval(changes)
        assert low < 0.0 < high
        assert abs(statistics.median(changes)) < 0.1
    at_most = [_ratio_at_the_largest_lr(rows, size, f"{quiet}, floor", quiet) for size in sizes]
    words = "median {:.1f} % and {:.1f} % lower at 100 and 300 samples and {:.1f} % higher at 900"
    assert words.format(*(100 * (1 - x) for x in at_most[:2]), 100 * (at_most[2] - 1)) in page
    losses = [change(size, "AdamW, no weight decay", quiet) for size in sizes]
    low, high = saddles.median_interval(losses[0])
    assert low < 0.0 < high
    for found, numbers in zip(losses[1:], ([3.7, 1.5, 5.8], [4.1, 0.1, 6.6]), strict=True):
        spread = (statistics.median(found), *saddles.median_interval(found))
        assert [round(x, 1) for x in spread] == numbers
    found = [change(size, "AdamW, weight decay 0.1", "AdamW, no weight decay") for size in sizes]
    assert [round(statistics.median(changes), 1) for changes in found] == [-2.0, -4.7, -9.5]
    intervals = [saddles.median_interval(changes) for changes in found]
    assert [(round(low, 1), round(high, 1)) for low, high in intervals] == [
        (-2.6, -1.4), (-5.1, -3.7), (-23.5, 1.9),
    ]  # fmt: skip


def _ratio_at_the_largest_lr(rows: Rows, size: str, name: str, reference: str) -> float:
    """Of the medians of two optimizers."""
    of_size = [row for row in rows if row["train_size"] == size]
    largest = max(float(row["lr"]) for row in of_size if row["optimizer"] == name)
    ours, theirs = (
        statistics.median(
            float(row["test_loss"])
            for row in of_size
            if (row["optimizer"], float(row["lr"])) == (who, largest)
        )
        for who in (name, reference)
    )
    return ours / theirs


def _table_of_the_page(title: str) -> list[list[str]]:
    """The table of docs/training.md that begins with this cell: names of columns, then rows."""
    page = (BENCHMARKS.parent / "docs" / "training.md").read_text()
    lines = page[page.index(f"| {title} |") :].split("\n\n")[0].splitlines()
    header, _, *rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]
    return [header[1:], *rows]
