"""The small versions of benchmarks/training.py, and what its statistics and files promise."""

from __future__ import annotations

import copy
import csv
import importlib
import itertools
import math
import shlex
import shutil
import statistics
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ROOT

import asgld

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
measure = importlib.import_module("measure")
training = importlib.import_module("training")
figures = importlib.import_module("training_figures")
gpt = importlib.import_module("training_gpt")
saddles = importlib.import_module("training_saddles")
summary = importlib.import_module("training_summary")
sys.path.remove(str(BENCHMARKS))

Rows = list[dict[str, str]]
WITHOUT_NOISE = {
    "SGD", "SGD, momentum", "AdamW", "Adagrad", "ASG", "NetworkASGLD, no noise",
    "NetworkASGLD, matrices, no noise",
}  # fmt: skip


def read_csv(path: Path) -> Rows:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _run(patch: pytest.MonkeyPatch, *arguments: str) -> None:
    patch.setattr(sys, "argv", ["training.py", *arguments])
    training.main()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the CSV files of the quick versions of all parts."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("training_suite.csv", "training_separation.csv"):  # tested elsewhere
            shutil.copy(measure.RESULTS / name, folder)
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
    rows = read_csv(results / "training_gpt.csv")
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
    rows = read_csv(out)
    assert [row["seed"] for row in rows] == list("012345")
    assert len({row["loss_6"] for row in rows}) == 6


def test_a_small_network_fits_few_data(results: Path) -> None:
    rows = read_csv(results / "training_few_data.csv")
    before, after = (_losses(rows, column) for column in ("start_loss", "train_loss"))
    for name in before:
        assert all(b > a > 0.0 for a, b in zip(after[name], before[name], strict=True)), name


def test_an_exact_saddle_is_left_with_noise_and_never_without(results: Path) -> None:
    rows = [r for r in read_csv(results / "training_saddles.csv") if r["start"] == "exact saddle"]
    names = {row["optimizer"] for row in rows}
    assert names > WITHOUT_NOISE
    for row in rows:
        if row["optimizer"] in WITHOUT_NOISE:
            assert row["left"] == "0", row
            assert float(row["final_median"]) == pytest.approx(7.5)  # of the saddle itself
        elif row["is_best"] == "True":
            assert row["left"] == row["replicas"], row


def test_near_a_saddle_all_leave_and_the_best_lr_is_the_soonest(results: Path) -> None:
    rows = [r for r in read_csv(results / "training_saddles.csv") if r["start"] != "exact saddle"]
    for name in {row["optimizer"] for row in rows}:
        all_left = [r for r in rows if r["optimizer"] == name and r["left"] == r["replicas"]]
        (best,) = (r for r in rows if r["optimizer"] == name and r["is_best"] == "True")
        soonest = min(float(row["steps_median"]) for row in all_left)
        assert best in all_left
        assert float(best["steps_median"]) == soonest


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
    assert curve.ends_inside(curve.good_range())
    assert curve.good_range(0.9) is None
    assert curve.ends_inside(None)
    assert summary.octaves(curve.good_range(2.0)) == pytest.approx(2.0)  # the grid ends at 1
    assert not curve.ends_inside(curve.good_range(2.0))


def test_widths_are_compared_seed_by_seed_where_both_ran_at_every_lr() -> None:
    rates = [1.0, 2.0, 4.0, 8.0]
    wide, narrow, lone = [1.2, 1.0, 1.0, 1.2], [1.2, 1.0, 1.2, 1.2], [math.inf, 1.0, math.inf, 2.0]
    ours = summary.Curve(rates, [{0: loss, 1: loss, 2: loss} for loss in wide])
    theirs = [{0: a, 1: b, 2: c} for a, b, c in zip(narrow, wide, lone, strict=True)]
    # A width is an octave and two ends of a quarter, or those ends alone.
    assert summary.ratios_of_widths(ours, summary.Curve(rates, theirs)) == pytest.approx(
        [3.0, 1.0, math.inf]
    )
    del theirs[3][1]
    assert summary.Curve(rates, theirs).seeds == {0, 2}


def test_summary_fails_when_a_bound_is_missed(capsys: pytest.CaptureFixture[str]) -> None:
    good = _curve([1.0, 2.0, 4.0, 8.0, 16.0], [1.2, 1.0, 1.0, 1.0, 1.2])
    narrow = _curve([1.0, 2.0, 4.0], [1.2, 1.0, 1.2])
    names = ("NetworkASGLD, no noise", "NetworkASGLD", "ASGLD, calibrated")
    curves = {(name, "constant"): good for name in names}
    curves |= {(name, "constant"): narrow for name in ("AdamW", "Adagrad")}
    assert summary.summarize(curves)
    assert not summary.summarize({**curves, ("NetworkASGLD, no noise", "constant"): narrow})
    assert "MISSED range of lr" in capsys.readouterr().out
    # Where the grid hides an end of theirs, ours is not known to be wider.
    cut = _curve([2.0, 4.0], [1.0, 1.2])
    assert not summary.summarize({**curves, ("AdamW", "constant"): cut})
    printed = capsys.readouterr().out
    assert ">" in printed
    assert "AdamW, whose end is not shown" in printed


def test_noise_energy_counts_the_kicks_that_were_given() -> None:
    """Against noise steps seen: where the gradient is zero, an update is noise alone."""
    for name, (build, sizes) in saddles.contenders("factorization").items():
        x = torch.zeros(2_500, 16, dtype=torch.float64)
        optimizer = build(x, sizes[len(sizes) // 2])
        for step in range(4):
            before, expected = x.clone(), saddles.noise_energy(optimizer)
            saddles.give_gradient(optimizer, x, torch.zeros_like(x))
            optimizer.step()
            seen = float((x - before).square().mean()) / saddles.KICK**2
            expected = float(torch.as_tensor(expected).mean())
            # Five standard deviations of a mean of 40,000 squares: a false alarm in 2e6 steps.
            assert seen == pytest.approx(expected, rel=5 * math.sqrt(2 / 40_000)), name
            if saddles.has_noise(optimizer) and step == (1 if name == "NetworkASGLD" else 0):
                assert expected == pytest.approx(1.0), name
        assert saddles.has_noise(optimizer) == (name not in WITHOUT_NOISE)


def test_noise_energy_of_a_network_is_the_average_over_all_parameters() -> None:
    """The hidden matrix is kicked at the first gradient, the others from the second on."""
    build, _ = saddles.contenders("digits")["NetworkASGLD, matrices"]
    x = torch.zeros(2, 1_210, dtype=torch.float64)
    optimizer = build(x, 0.1)
    expected = [64 * 16 / 1_210, 1.0, 1 / 2, 1 / 3]
    for energy in expected:
        assert saddles.noise_energy(optimizer) == pytest.approx(energy)
        saddles.give_gradient(optimizer, x, torch.zeros_like(x))
        optimizer.step()


@pytest.mark.parametrize("replicas", [1, 3])
def test_each_replica_of_the_matrix_rule_is_a_network_of_its_own(replicas: int) -> None:
    function = saddles.WORKS["digits"].function
    x = saddles.starts("digits")["tiny initialization"][:replicas].clone()
    build, _ = saddles.contenders("digits")["NetworkASGLD, matrices, no noise"]
    optimizer = build(x, 0.1)
    models = [copy.deepcopy(saddles.NETWORK).double() for _ in x]
    for model, point in zip(models, x.clone(), strict=True):
        torch.nn.utils.vector_to_parameters(point, model.parameters())
    own = [asgld.NetworkASGLD(model, 0.1, noise=0.0) for model in models]
    pixels, onehot = function.rows
    for _ in range(5):
        saddles.give_gradient(optimizer, x, function.grad(x))
        optimizer.step()
        for model, one in zip(models, own, strict=True):
            one.zero_grad()
            weights = [layer.weight for layer in model if hasattr(layer, "weight")]
            penalty = 0.5 * function.l2 * sum(w.square().sum() for w in weights)
            (torch.nn.functional.cross_entropy(model(pixels), onehot) + penalty).backward()
            one.step()
    for model, point in zip(models, x, strict=True):
        expected = torch.nn.utils.parameters_to_vector(model.parameters())
        assert point.tolist() == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-9)


def test_unknowns_are_the_matrices_of_the_problems() -> None:
    sizes = {name: [u.size for u in work.unknowns] for name, work in saddles.WORKS.items()}
    for name in ("factorization", "sensing"):
        function = saddles.WORKS[name].function
        assert sizes[name] == [(function.size, function.rank)]
    linear = saddles.WORKS["deep-linear"].function
    assert sizes["deep-linear"] == [(linear.hidden, linear.inputs), (linear.outputs, linear.hidden)]
    for name, work in saddles.WORKS.items():
        assert sum(map(math.prod, sizes[name])) == work.function.dim
    shapes = [u.shape for u in saddles.WORKS["digits"].unknowns]
    assert shapes == ["polar-row", "coordinate", "coordinate", "coordinate"]


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
    figures.draw(tmp_path, results, dpi=40)
    drawn = ("suite", "suite-lr", "grown", "separation", "gpt", "gpt-64", "saddles", "saddles-lr")
    for name in (*drawn, "copies", "few-data"):
        for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
            assert (tmp_path / f"{name}.{kind}").read_bytes().startswith(start)


def test_rows_name_the_command_that_makes_them_and_no_place_on_a_machine() -> None:
    given = [
        "/elsewhere/benchmarks/training.py",
        "gpt",
        "--only",
        "SGLD, a/constant",
        "--batch",
        "64",
    ]
    for more in (["--out", "/elsewhere/x.csv"], ["--out=x.csv", "--seconds", "9"], []):
        assert measure.command(given + more) == "python benchmarks/training.py gpt --batch 64"
    # A value is not an option, whatever it looks like, and one with spaces is quoted.
    given = ["training.py", "--out", "--only", "--name", "a b"]
    assert measure.command(given) == "python benchmarks/training.py --name 'a b'"
    for path in sorted(measure.RESULTS.rglob("*.csv")):
        for row in read_csv(path):
            if "command" in row:
                _, script, *rest = shlex.split(row["command"])
                assert (measure.RESULTS.parent.parent / script).is_file(), path
                assert measure.command([script, *rest]) == row["command"], path


def test_a_run_of_parts_replaces_its_rows_and_keeps_the_others(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "part.csv"
    before = read_csv(results / "training_gpt.csv")
    for row in before:
        row["date"] = "1999-12-31"
    measure.write_csv(out, before)
    assert read_csv(out) == before  # rows that say where they come from keep saying so
    lr = next(row["lr"] for row in before if row["optimizer"] == "SGLD")
    _run(monkeypatch, "gpt", "--quick", "--only", f"SGLD/constant/{lr}", "--out", str(out))
    after = read_csv(out)
    assert len(after) == len(before)
    for old, new in zip(before, after, strict=True):
        is_measured_again = (new["optimizer"], new["schedule"]) == ("SGLD", "constant")
        assert (new["date"] != "1999-12-31") == is_measured_again
        assert [new[key] for key in gpt.KEYS] == [old[key] for key in gpt.KEYS]
        if not is_measured_again:
            assert new == old


def test_saddles_are_measured_for_one_optimizer_alone(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, name = tmp_path / "saddles.csv", "NetworkASGLD, matrices"
    _run(monkeypatch, "saddles", "--quick", "--only", name, "--out", str(out))
    rows = [r for r in read_csv(results / "training_saddles.csv") if r["optimizer"] == name]
    assert read_csv(out) == [
        {**row, "date": new["date"]} for row, new in zip(rows, read_csv(out), strict=True)
    ]


def test_committed_runs_leave_with_noise_only_and_never_later_than_sgld() -> None:
    """The interval of a median of ours does not lie beyond that of SGLD's."""
    rows = [r for r in read_csv(measure.RESULTS / "training_saddles.csv") if r["is_best"] == "True"]
    found = {(row["problem"], row["start"], row["optimizer"]): row for row in rows}
    assert {problem for problem, _, _ in found} == set(saddles.WORKS)
    for (problem, start, name), row in found.items():
        stays = start == "exact saddle" and name in WITHOUT_NOISE
        assert row["left"] == ("0" if stays else row["replicas"])
        theirs = found[problem, start, "SGLD"]
        if name in ("AGLD", "ASGLD", "ASGLD, calibrated"):
            assert float(row["steps_low"]) <= float(theirs["steps_high"])
            assert float(row["energy_median"]) <= float(theirs["energy_median"])
        if name in ("NetworkASGLD", "NetworkASGLD, matrices"):
            assert float(row["steps_high"]) < float(theirs["steps_low"])
            assert float(row["energy_median"]) < 0.5 * float(theirs["energy_median"])


def test_committed_runs_of_the_papers_rule_differ_from_adagrad_by_chance_alone() -> None:
    wilcoxon = pytest.importorskip("scipy.stats").wilcoxon
    curves = summary.read(measure.RESULTS / "training_gpt.csv")
    for (name, kind), ours in curves.items():
        if name in ("ASGLD, calibrated", "ASG, calibrated"):
            theirs = curves["Adagrad", kind].best_run
            assert wilcoxon([ours.best_run[seed] - theirs[seed] for seed in range(9)]).pvalue > 0.05


@pytest.mark.parametrize("name", ["gpt", "gpt_64", "saddles", "few_data"])
def test_keys_name_every_committed_row(name: str) -> None:
    rows = read_csv(measure.RESULTS / f"training_{name}.csv")
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
