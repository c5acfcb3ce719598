"""The measured Table 1: its declarations, its laws at a small size, its verdicts and its page."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import typer.testing

from asgld.methods import method as make_method
from asgld.oracle import Oracle
from asgld.oracle.costs import Costs
from asgld.problems import problem
from asgld.run import files, run
from asgld.theory import table1 as printed_rows
from asgld_study import commands
from asgld_study.comparison import analysis, figures, page
from asgld_study.experiments import escape, table1
from asgld_study.sweep.catalog import BY_LABEL, CONTENDERS
from asgld_study.sweep.engine import Cell, Store, measure, run_cells, start_points
from asgld_study.sweep.survival import Slope, fit_slope

FEW = ("agld", "asg", "asgld-batch", "carmon-cubic", "cubic-newton", "gd", "perturbed-gd")
TINY = table1.Size(
    "tiny",
    escape.Size(
        4, (4,), (4,), 2, (1.0,), (0, 10), (0.0, 1.0), 60, control_steps=100, rotations=(True,)
    ),
    seeds=2,
    trials=1,
    tuning_seeds=2,
    families=(table1.SADDLE, table1.OCTOPUS),
    octopus_dims=(1, 2),
    octopus_steps=200,
    octopus_eps=(1.0,),
    chain_eps=(1.0,),
    chain_steps=50,
    shrink=0.05,
)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> table1.Study:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(table1.SIZES, "tiny", TINY)
        patch.setattr(table1, "CONTENDERS", tuple(BY_LABEL[label] for label in FEW))
        yield table1.run_study("tiny", store=Store(tmp_path_factory.mktemp("cells")))


# ------------------------------------------------------------------------------------ declarations


def test_contenders_are_the_fourteen_rows_in_order() -> None:
    rows = table1.contenders_of_table()
    assert [c.row for c in rows] == list(range(1, 15))
    assert [c.method for c in rows] == [row.method for row in printed_rows()]


@pytest.mark.parametrize("size", ["ci", "full"])
def test_cells_differ_and_have_enough_seeds(size: str) -> None:
    cells = [*escape.all_cells(table1.SIZES[size].escape), *table1.chain_cells(table1.SIZES[size])]
    assert len({cell.key for cell in cells}) == len(cells)
    if size == "full":
        assert table1.SIZES[size].seeds >= 30
        # On the chain all replicas start at one point: without randomness they are one.
        is_certain = {*escape.KICKED, *escape.HESSIAN}
        for cell in cells:
            if cell.tags["sweep"] != "chain" or cell.label in escape.NOISY:
                assert cell.replicas >= 30
            else:
                assert cell.replicas >= 10 or cell.label in is_certain
        assert {c.label for c in cells if c.problem_options.get("dim") == 4096} >= {
            *escape.NOISY, *escape.KICKED, *escape.CURVATURE,
        }  # fmt: skip


def test_noise_has_equal_energy_or_equal_size_per_coordinate() -> None:
    for dim in (4, 64, 1024):
        sigma = escape.settings("agld", dim, "equal")["sigma"]
        assert math.isclose(2 * escape.LR * sigma**2 * dim, escape.ENERGY**2)
        assert escape.settings("perturbed-gd", dim, "equal")["radius"] == escape.ENERGY
    native = {escape.settings("agld", dim, "native")["sigma"] for dim in (4, 64, 1024)}
    assert native == {escape.settings("agld", 64, "equal")["sigma"]}


def test_every_method_gets_the_same_number_of_trials_on_other_seeds() -> None:
    searches = table1.searches(table1.SIZES["full"])
    for family in table1.FAMILIES:
        tasks = [task for (name, _), task in searches.items() if name == family.name]
        assert len(tasks) == len(CONTENDERS)
        assert len({len(task.draws()) for task in tasks}) == 1
        assert {task.seed for task in tasks}.isdisjoint({0})


# ------------------------------------------------------------------------------------ laws


@pytest.mark.parametrize("label", ["agld", "perturbed-gd"])
def test_escape_time_grows_by_the_predicted_steps_per_log_dimension(label: str) -> None:
    # The log of the start along the way out has a standard deviation of about 1.1, which is 23
    # steps; a median over 100 has a standard error of 2.8, the slope over these d one of 0.7.
    dims = (4, 64, 1024)
    cells = [
        Cell("strict-saddle", label, escape.saddle_options(dim),
             escape.settings(label, dim, "equal"), "saddle", replicas=100, max_steps=600,
             until="fall")
        for dim in dims
    ]  # fmt: skip
    samples = [measure(cell).times("fall") for cell in cells]
    slope = fit_slope(np.log(dims).tolist(), samples, log_time=False)
    assert abs(slope.value - analysis.predicted_slope()) < 5 * 0.7


def test_late_saddles_hold_alpha_one_and_not_alpha_zero() -> None:
    times = {}
    for cell in escape.late_cells(dataclasses.replace(escape.CI, k0s=(0, 1000), seeds=9)):
        if cell.tags["alpha"] != 0.5:
            times[cell.tags["alpha"], cell.tags["k0"]] = measure(cell).median("leave")
    # At full size the ratios are 5.1 and 1.4; a median of nine is within a fifth of them.
    assert times[1.0, 1000] / times[1.0, 0] > 3.0
    assert times[0.0, 1000] / times[0.0, 0] < 2.2


def test_worst_case_chain_shows_the_exponents() -> None:
    size = dataclasses.replace(table1.SIZES["ci"], chain_eps=(1.0, 0.5, 0.25))
    wanted = [c for c in table1.chain_cells(size) if c.tags["label"] in ("gd", "cubic-newton")]
    results = run_cells(wanted)
    found = table1.Study("ci", results)
    # No chance is involved. The slopes tend to 2 and 3/2 as eps falls.
    assert 1.5 < analysis.eps_slope(found, "gd", "chain").value < 2.0
    assert 1.0 < analysis.eps_slope(found, "cubic-newton", "chain").value < 1.5


def test_octopus_holds_gradient_descent_and_not_its_perturbed_form() -> None:
    times = {}
    for label in ("gd", "perturbed-gd"):
        for dim in (2, 3, 4):
            cell = table1.family_cell(
                table1.OCTOPUS,
                BY_LABEL[label],
                table1.SIZES["full"],
                problem_options={"dim": dim},
                options=table1.octopus_settings(label),
                replicas=8,
            )
            times[label, dim] = measure(cell).median("sosp")
    assert times["gd", 4] / times["gd", 3] > 2.5
    assert times["perturbed-gd", 4] / times["perturbed-gd", 3] < 2.0


def test_controls_stay_at_the_saddle() -> None:
    few = dataclasses.replace(escape.CI, second_order_seeds=3, control_steps=500)
    cells = escape.control_cells(few)
    left = {(c.label, c.tags["noise"]): measure(c).share("leave") for c in cells}
    for label in ("gd", "asg", "adagrad", "adam", "lbfgs"):
        assert left[label, "none"] == 0.0
    assert left["asg", "samples, stable directions, aligned"] == 0.0
    assert left["asg", "samples, all directions"] == 1.0
    for name in ("mixture", "phase-retrieval", "deep-linear"):
        assert left["asg", f"samples, all 0 at the saddle of {name}"] == 0.0


# ------------------------------------------------------------------------------------ verdicts


@pytest.mark.parametrize(
    ("slope", "bound", "expected"),
    [
        (Slope(1.9, 1.8, 2.0, 3, 3), 2.0, "consistent"),
        (Slope(0.2, 0.1, 0.3, 3, 3), 2.0, "consistent"),
        (Slope(2.5, 2.3, 2.7, 3, 3), 2.0, "violates"),
        (Slope(2.1, 1.9, 2.3, 3, 3), 2.0, "consistent"),
        (Slope(1.0, 0.1, 1.9, 3, 3), 2.0, "uninformative"),
        (Slope(1.0, 0.9, 1.1, 2, 3), 2.0, "uninformative"),
        (Slope(math.nan, math.nan, math.nan, 0, 3), 2.0, "uninformative"),
        (Slope(1.0, 0.9, 1.1, 3, 3), math.nan, "uninformative"),
    ],
)
def test_verdict(slope: Slope, bound: float, expected: str) -> None:
    assert analysis.verdict(slope, bound) == expected


# ------------------------------------------------------------------------------------ prices


@pytest.mark.parametrize(
    ("label", "options"),
    [
        ("natasha2", {"batch_size": 4, "gamma": 0.25, "radius": 0.3, "smoothness": 1.0,
                      "oja_steps": 20, "sub_steps": 6, "epoch_batch": 50}),
        ("fast-cubic", {"hessian_lipschitz": 1.0}),
        ("cubic-newton", {}),
        ("agld", {"lr": 0.2, "sigma": 0.01}),
    ],
)  # fmt: skip
def test_cost_at_other_prices_is_that_of_an_oracle_with_them(label: str, options) -> None:
    shape = {**escape.saddle_options(6), "num_samples": 64, "noise": 0.1}
    cell = Cell("strict-saddle", label, shape, options, "kicked", replicas=1, max_steps=1000,
                eps=0.05, gamma=0.25)  # fmt: skip
    result = measure(cell)
    assert result.share("sosp") == 1.0
    subject = problem("strict-saddle", **shape)
    for hvp, hessian in analysis.PRICES:
        again = run(
            Oracle(subject, costs=Costs(hvp=hvp, hessian=hessian * subject.dim)),
            make_method(label, **options),
            start_points(subject, cell),
            max_steps=int(result.events["sosp"]["steps"][0]),
        )
        expected = float(again.counts.spent[0])
        assert analysis.cost_at(result, hvp, hessian) == pytest.approx(expected)


def test_ranks_that_move_are_flagged(study: table1.Study) -> None:
    rows = [r for r in analysis.sensitivity_rows(study) if r["problem"] == "saddle"]
    cheap, dear = (
        {r["method"]: r[f"hvp {hvp:g}, hessian {hessian:g} d"] for r in rows}
        for hvp, hessian in (analysis.PRICES[0], analysis.PRICES[-1])
    )
    standard = study.select("standard", family="saddle", mode="practical")
    assert cheap == {r.label: r.median("sosp", "spent") for r in standard}
    assert dear["cubic-newton"] > cheap["cubic-newton"]
    assert dear["gd"] == cheap["gd"]
    for row in rows:
        assert row["moves"] == (math.isfinite(cheap[row["method"]]) and
                                len(set(row["ranks"].split())) > 1)  # fmt: skip


# ------------------------------------------------------------------------------------ the whole


def test_study_measures_all_modes_and_fails_nowhere(study: table1.Study) -> None:
    assert analysis.failures(study.results) == []
    for family, mode in (("saddle", "theory"), ("saddle", "practical"), ("octopus", "practical")):
        found = study.select("standard", family=family, mode=mode)
        assert {r.label for r in found} == set(FEW)
    assert {r.label for r in study.select("dimension")} >= set(escape.NOISY)


def test_page_holds_the_table_and_names_the_claims(study: table1.Study) -> None:
    manifest = page.manifest(study, "asgld table1", {"cores": 1})
    text = page.page(study, manifest, page.tables(study))
    for label in BY_LABEL:
        assert label in text
    assert "Claims that do not survive" in text
    assert "| nan" not in text
    json.dumps(manifest)


def test_tables_are_rows_that_can_be_written(study: table1.Study) -> None:
    for name, rows in page.tables(study).items():
        if rows:
            text = files.as_csv(commands._filled(rows))
            assert len(text.splitlines()) >= 1 + len(rows), name
    assert [row["row"] for row in analysis.table_rows(study)] == list(range(1, 15))


def test_figures_are_drawn(study: table1.Study) -> None:
    drawn = figures.all_figures(study)
    assert len(drawn) == 8
    for figure in drawn.values():
        assert files.as_bytes(figure, "png").startswith(b"\x89PNG")


# ------------------------------------------------------------------------------------ commands


@pytest.fixture
def invoke():
    app = typer.Typer()
    app.command()(commands.compare)
    app.command()(commands.table1)
    return lambda *words: typer.testing.CliRunner().invoke(app, list(words))


def test_compare_writes_a_table_and_a_figure_and_resumes(invoke, tmp_path: Path) -> None:
    words = ("compare", "--problem", "strict-saddle", "-o", "dim=4", "--methods",
             "gd,agld,cubic-newton", "--seeds", "4", "--start", "kicked", "--trials", "2",
             "--eps", "0.05", "--gamma", "0.5", "--max-steps", "400", "--out",
             str(tmp_path))  # fmt: skip
    first = invoke(*words)
    assert first.exit_code == 0, first.output
    table = (tmp_path / "compare.csv").read_text()
    assert {line.split(",")[0] for line in table.splitlines()} == {
        "method", "gd", "agld", "cubic-newton",
    }  # fmt: skip
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")
    kept = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "cells").iterdir()}
    assert invoke(*words).exit_code == 0
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "cells").iterdir()} == kept
    assert (tmp_path / "compare.csv").read_text() == table


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--problem", "sadle"), "unknown problem 'sadle'"),
        (("--problem", "octopus", "--methods", "magic"), "methods='magic'"),
        (("--problem", "octopus", "-o", "dim"), "need key=value"),
        (("--problem", "octopus", "--set", "adam.lr=1"), "with one of the methods"),
        (("--problem", "digits", "--mode", "theory"), "proves no constants"),
    ],
)
def test_compare_says_what_is_wrong(invoke, words: tuple[str, ...], message: str) -> None:
    result = invoke("compare", *words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_compare_takes_settings_and_theory(invoke) -> None:
    common = ("compare", "--problem", "strict-saddle", "-o", "dim=3", "--methods", "gd", "--seeds",
              "2", "--start", "kicked", "--max-steps", "20")  # fmt: skip
    assert invoke(*common, "--mode", "theory").exit_code == 0
    assert invoke(*common, "--mode", "default", "--set", "gd.lr=0.2").exit_code == 0
