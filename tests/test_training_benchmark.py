"""The small versions of benchmarks/training.py, and what its statistics and files promise."""

from __future__ import annotations

import csv
import importlib
import itertools
import math
import statistics
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
measure = importlib.import_module("measure")
training = importlib.import_module("training")
figures = importlib.import_module("training_figures")
gpt = importlib.import_module("training_gpt")
saddles = importlib.import_module("training_saddles")
summary = importlib.import_module("training_summary")
sys.path.remove(str(BENCHMARKS))

Rows = list[dict[str, str]]
Curves = dict[tuple[str, str], Any]
WITHOUT_NOISE = {"SGD", "SGD, momentum", "AdamW", "Adagrad", "ASG", "NetworkASGLD, no noise"}


def _run(patch: pytest.MonkeyPatch, *arguments: str) -> None:
    patch.setattr(sys, "argv", ["training.py", *arguments])
    training.main()


def _read(path: Path) -> Rows:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the CSV files of the quick versions of all parts."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        for part in ("gpt", "saddles", "few-data"):
            out = folder / f"training_{part.replace('-', '_')}.csv"
            _run(patch, part, "--quick", "--out", str(out))
        out = folder / "training_gpt_64.csv"
        _run(patch, "gpt", "--quick", "--batch", "64", "--only", "AdamW", "--out", str(out))
    return folder


def _losses(rows: Rows, column: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        found[row["optimizer"]].append(float(row[column]))
    return found


def test_a_small_gpt_learns(results: Path) -> None:
    rows = _read(results / "training_gpt.csv")
    expected = set(gpt.CONTENDERS)
    if find_spec("devinterp") is None:
        expected.remove("pSGLD of devinterp")
    assert {row["optimizer"] for row in rows} == expected
    assert len(rows) == len(expected) * 2 * gpt.NUM_SEEDS
    marks = [name for name in rows[0] if name.startswith("loss_")]
    for row in rows:
        assert all(math.isfinite(float(row[mark])) for mark in marks), row
    for name in ("NetworkASGLD", "NetworkASGLD, no noise"):
        first, last = (statistics.median(_losses(rows, m)[name]) for m in (marks[0], marks[-1]))
        assert last < first < math.log(256) + 0.1  # a guess, and what the initial weights add to it


def test_other_seeds_are_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "seeds.csv"
    for first in ("0", "3"):
        _run(monkeypatch, "gpt", "--quick", "--only", "AdamW/constant", "--first-seed", first,
             "--out", str(out))  # fmt: skip
    rows = _read(out)
    assert [row["seed"] for row in rows] == list("012345")
    assert len({row["loss_20"] for row in rows}) == 6


def test_a_small_network_fits_few_data(results: Path) -> None:
    rows = _read(results / "training_few_data.csv")
    before, after = (_losses(rows, column) for column in ("start_loss", "train_loss"))
    for name in before:
        assert all(b > a > 0.0 for a, b in zip(after[name], before[name], strict=True)), name


def test_an_exact_saddle_is_left_with_noise_and_never_without(results: Path) -> None:
    rows = [r for r in _read(results / "training_saddles.csv") if r["start"] == "exact saddle"]
    names = {row["optimizer"] for row in rows}
    assert names > WITHOUT_NOISE
    for row in rows:
        if row["optimizer"] in WITHOUT_NOISE:
            assert row["left"] == "0", row
            assert float(row["final_median"]) == pytest.approx(7.5)  # of the saddle itself
        elif row["is_best"] == "True":
            assert row["left"] == row["replicas"], row


def test_near_a_saddle_all_leave_and_the_best_lr_is_the_soonest(results: Path) -> None:
    rows = [r for r in _read(results / "training_saddles.csv") if r["start"] != "exact saddle"]
    for name in {row["optimizer"] for row in rows}:
        all_left = [r for r in rows if r["optimizer"] == name and r["left"] == r["replicas"]]
        (best,) = (r for r in rows if r["optimizer"] == name and r["is_best"] == "True")
        soonest = min(float(row["steps_median"]) for row in all_left)
        assert best in all_left
        assert float(best["steps_median"]) == soonest


def test_committed_saddles_say_what_the_page_says() -> None:
    """Everybody with noise leaves, nobody without does, and ours is never worse than SGLD: the
    interval of its median does not lie beyond that of SGLD's."""
    rows = [
        row for row in _read(measure.RESULTS / "training_saddles.csv") if row["is_best"] == "True"
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
    assert len(table) == 19
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
    assert len(table) == 10
    for title, *cells in table:
        assert cells == _best(curves, title), title


def test_ranges_of_lr_are_those_of_the_page(page: str) -> None:
    for name, words in (
        ("training_gpt_64", "batches of 64 it is {} without a schedule and {} with one"),
        ("training_gpt", "batches of 16, {} and {}."),
    ):
        curves = _curves(name)
        widths = [
            [f"{summary.octaves(curves[who, kind].good_range()):.2f}" for kind in SCHEDULES]
            for who in ("NetworkASGLD, no noise", "AdamW")
        ]
        pairs = [" against ".join(pair) for pair in zip(*widths, strict=True)]
        assert words.format(*pairs) in page
    of_64 = _curves("training_gpt_64")
    for curves in (_curves("training_gpt"), of_64):
        for kind in SCHEDULES:
            level = summary.GOOD * curves["NetworkASGLD, no noise", kind].best[0]
            width = summary.octaves(curves["AdamW", kind].good_range(level))
            is_large_with_schedule = curves is of_64 and kind == SCHEDULES[1]
            assert f"{width:.2f}" == ("1.60" if is_large_with_schedule else "0.00")
    assert "in three of the four cases, and 1.60 octaves with a schedule and batches of 64" in page


def test_a_floor_widens_the_range_as_the_page_says(page: str) -> None:
    ours, floor, adamw = "NetworkASGLD, no noise", "NetworkASGLD, no noise, floor", "AdamW"
    kind = SCHEDULES[1]
    own, wider, common, worse = [], [], [], []
    for name in ("training_gpt_64", "training_gpt"):
        curves = _curves(name)
        low, high = curves[floor, kind].good_range()
        assert curves[floor, kind].rates[0] < low < high < curves[floor, kind].rates[-1]
        widths = {who: summary.octaves(curves[who, kind].good_range()) for who in (floor, adamw)}
        own.append(f"{widths[floor]:.2f}")
        wider.append(f"{widths[floor] / widths[adamw]:.1f}")
        least = min(curve.best[0] for (_, schedule), curve in curves.items() if schedule == kind)
        for who in (floor, adamw):
            found = curves[who, kind].good_range(summary.GOOD * least)
            common.append(f"{summary.octaves(found):.2f}")
        ratio = summary.ratio_of_losses(curves[floor, kind], curves[ours, kind])
        worse.append(100 * (ratio - 1))
    assert "it has {} octaves with batches of 64 and {} with batches of 16".format(*own) in page
    assert f"{worse[0]:.1f} % worse and {-worse[1]:.1f} % better" in page
    assert "not twice AdamW's, but {} and {} times".format(*wider) in page
    assert common[3] == "0.00"
    words = "{} octaves against {} with batches of 64, and {} against none with batches of 16"
    assert words.format(*common[:3]) in page
    of_16, of_64 = _curves("training_gpt"), _curves("training_gpt_64")
    loss = summary.ratio_of_losses(of_16[floor, "constant"], of_16[ours, "constant"])
    assert f"its best loss is {100 * (loss - 1):.1f} % worse" in page
    assert of_16[floor, "constant"].good_range()[0] == of_16[floor, "constant"].rates[0]
    loss = summary.ratio_of_losses(of_64["AdamW, floor", kind], of_64[adamw, kind])
    assert len(of_64["AdamW, floor", kind].rates) == 2
    assert f"two learning rates, {100 * (loss - 1):.1f} % behind AdamW" in page


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


def _curve(rates: list[float], losses: list[float]) -> Any:
    return summary.Curve(rates, [{0: loss} for loss in losses])


def test_losses_are_compared_on_the_seeds_that_both_have() -> None:
    ours = summary.Curve([1.0, 2.0], [{0: 5.0}, {0: 1.0, 1: 2.0, 2: 2.2}])
    theirs = summary.Curve([4.0, 8.0], [{0: 2.0, 7: 0.1}, {0: 9.0, 1: 9.0}])
    assert summary.ratio_of_losses(ours, theirs) == pytest.approx(0.5)


def test_range_of_good_rates_is_interpolated_in_octaves() -> None:
    curve = _curve([1.0, 2.0, 4.0, 8.0], [1.2, 1.0, 1.1, math.inf])
    assert curve.best == (1.0, 2.0)
    assert curve.good_range() == pytest.approx((2.0 ** (1 - 0.25), 2.0 ** (1 + 0.5)))
    assert summary.octaves(curve.good_range(1.15)) == pytest.approx(2 - 0.25)  # not into infinity
    assert curve.good_range(0.9) is None
    assert summary.octaves(curve.good_range(2.0)) == pytest.approx(2.0)  # the grid ends at 1


def test_summary_fails_when_a_bound_is_missed(capsys: pytest.CaptureFixture[str]) -> None:
    good = _curve([1.0, 2.0, 4.0, 8.0, 16.0], [1.2, 1.0, 1.0, 1.0, 1.2])
    narrow = _curve([1.0, 2.0, 4.0], [1.2, 1.0, 1.2])
    names = ("NetworkASGLD, no noise", "NetworkASGLD", "ASGLD, calibrated")
    curves = {(name, "constant"): good for name in names}
    curves |= {(name, "constant"): narrow for name in ("AdamW", "Adagrad")}
    assert summary.summarize(curves)
    assert not summary.summarize({**curves, ("NetworkASGLD, no noise", "constant"): narrow})
    assert "MISSED range of lr" in capsys.readouterr().out


def test_committed_few_data_say_what_the_page_says(page: str) -> None:
    """The table, and that no strength of noise changes the test loss beyond chance."""
    rows = _read(measure.RESULTS / "training_few_data.csv")

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


def test_noise_energy_counts_the_kicks_that_were_given() -> None:
    """Against noise steps seen: where the gradient is zero, an update is noise alone."""
    from asgld.diagnostics import calibrate
    from asgld.problems import problem

    function = problem("factorization")
    advice = calibrate(function, function.facts.saddles[0].point, alpha=1.0, beta=1.0)
    for name, (build, sizes) in saddles.contenders(advice).items():
        x = torch.zeros(1, 40_000, dtype=torch.float64)
        optimizer = build(x, sizes[len(sizes) // 2])
        for step in range(4):
            before, expected = x.clone(), saddles.noise_energy(optimizer)
            x.grad = torch.zeros_like(x)
            optimizer.step()
            seen = float((x - before).square().mean()) / saddles.KICK**2
            # Five standard deviations of a mean of 40,000 squares: a false alarm in 2e6 steps.
            assert seen == pytest.approx(float(expected), rel=5 * math.sqrt(2 / 40_000)), name
            if saddles.has_noise(optimizer) and step == (1 if name == "NetworkASGLD" else 0):
                assert float(expected) == pytest.approx(1.0), name
        assert saddles.has_noise(optimizer) == (name not in WITHOUT_NOISE)


def test_what_comes_back_has_not_left() -> None:
    """f falls below the level, rises above it, and falls again for good."""

    class Clock:
        """The objective is a function of time; the optimizer counts steps in x."""

        def value(self, x: torch.Tensor) -> torch.Tensor:
            k = x[..., 0]
            return 1.0 - ((k >= 10) & (k != 20)).to(x.dtype)

        def grad(self, x: torch.Tensor) -> torch.Tensor:
            return -torch.ones_like(x)

    x0 = torch.zeros(3, 1, dtype=torch.float64)

    def build(x: torch.Tensor, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD([x], lr)

    (departure,) = saddles.leave(Clock(), build, [1.0], x0, level=0.5, limit=100)
    assert departure.steps.tolist() == [21.0] * 3
    (late,) = saddles.leave(Clock(), build, [1.0], x0, level=0.5, limit=20)
    assert late.steps.tolist() == [math.inf] * 3


def test_figures_are_drawn_from_the_files(results: Path, tmp_path: Path) -> None:
    figures.draw(tmp_path, results)
    for name in ("gpt", "gpt-64", "saddles", "saddles-lr", "few-data"):
        for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
            assert (tmp_path / f"{name}.{kind}").read_bytes().startswith(start)


def test_a_run_of_parts_replaces_its_rows_and_keeps_the_others(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "part.csv"
    before = _read(results / "training_gpt.csv")
    for row in before:
        row["date"] = "1999-12-31"
    measure.write_csv(out, before)
    assert _read(out) == before  # rows that say where they come from keep saying so
    lr = next(row["lr"] for row in before if row["optimizer"] == "SGLD")
    _run(monkeypatch, "gpt", "--quick", "--only", f"SGLD/constant/{lr}", "--out", str(out))
    after = _read(out)
    assert len(after) == len(before)
    for old, new in zip(before, after, strict=True):
        is_measured_again = (new["optimizer"], new["schedule"]) == ("SGLD", "constant")
        assert (new["date"] != "1999-12-31") == is_measured_again
        assert [new[key] for key in gpt.KEYS] == [old[key] for key in gpt.KEYS]
        if not is_measured_again:
            assert new == old


@pytest.mark.parametrize("name", ["gpt", "gpt_64", "saddles", "few_data"])
def test_keys_name_every_committed_row(name: str) -> None:
    rows = _read(measure.RESULTS / f"training_{name}.csv")
    keys = importlib.import_module(f"training_{name.removesuffix('_64')}").KEYS
    assert len({tuple(row[key] for key in keys) for row in rows}) == len(rows)


def test_a_row_that_does_not_exist_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="Adam2"):
        _run(monkeypatch, "gpt", "--quick", "--only", "Adam2", "--out", str(tmp_path / "x.csv"))
    assert not (tmp_path / "x.csv").exists()


def test_schedule_warms_up_and_falls_to_a_tenth() -> None:
    factors = [gpt.scheduled("warm-up and cosine", step, 100) for step in range(101)]
    assert factors[:10] == pytest.approx([(k + 1) / 10 for k in range(10)])
    assert max(factors) == factors[10] == 1.0
    assert all(a > b for a, b in itertools.pairwise(factors[10:]))
    assert factors[55] == pytest.approx(0.55)
    assert factors[100] == pytest.approx(0.1)
    assert {gpt.scheduled("constant", step, 100) for step in range(100)} == {1.0}


@pytest.mark.parametrize(("hits", "count"), [(0, 30), (30, 30), (7, 12), (1, 40)])
def test_interval_of_a_share_is_wilsons(hits: int, count: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(hits, count).proportion_ci(0.95, method="wilson")
    assert saddles.wilson(hits, count) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize("count", [6, 10, 12, 30, 40])
def test_interval_of_a_median_is_the_shortest_that_covers(count: int) -> None:
    """Coverage of [x_(i), x_(n-1-i)]: that between i + 1 and n - i - 1 values are below the median,
    in (0, 1, ..., n - 1) with infinities at the end."""
    stats = pytest.importorskip("scipy.stats")
    low, high = saddles.median_interval([float(i) for i in range(count)])
    assert low + high == count - 1

    def coverage(cut: float) -> float:
        return float(1 - 2 * stats.binom.cdf(cut, count, 0.5))

    assert coverage(low) >= 0.95 > coverage(low + 1)


def test_interval_of_a_median_may_be_infinite() -> None:
    values = [1.0] * 6 + [math.inf] * 6
    assert saddles.median_interval(values) == (1.0, math.inf)
    assert saddles.median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
