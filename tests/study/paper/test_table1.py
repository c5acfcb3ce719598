"""The measured Table 1: its declarations, its laws at a small size, its verdicts and its page."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asgld.methods import method as make_method
from asgld.oracle import Oracle
from asgld.oracle.costs import Costs
from asgld.problems import problem
from asgld.run import run
from asgld.theory import table1 as printed_rows
from asgld.theory.published import VERDICTS
from asgld_study import commands
from asgld_study.catalog import BY_LABEL, CONTENDERS
from asgld_study.cells import Cell, CellResult, measure_cells, start_points
from asgld_study.engine import Measured, parts_of
from asgld_study.judge import Claim, Finding, judge_claims
from asgld_study.paper import table1, table1_cells, table1_page, table1_tables
from asgld_study.paper.table1 import MeasuredRow
from asgld_study.paper.table1_cells import EXTENTS
from asgld_study.paper.table1_tables import MeasuredCells
from asgld_study.statistics import fit_slope

ROOT = Path(__file__).parents[3]
FEW = ("agld", "asg", "asgld-batch", "carmon-cubic", "cubic-newton", "gd", "perturbed-gd")
TINY = dataclasses.replace(
    EXTENTS["ci"], saddle_seeds=4, second_order_seeds=2, dims=(4,), hessian_dims=(4,),
    gammas=(1.0,), k0s=(0, 10), map_steps=20, control_steps=200, seeds=2, trials=1, tuning_seeds=2,
    families=(table1_cells.SADDLE, table1_cells.OCTOPUS), octopus_dims=(1, 2), octopus_steps=200,
    octopus_eps=(1.0,), chain_eps=(1.0,), chain_steps=50, shrink=0.05,
)  # fmt: skip
# Fewer methods of each kind at the saddle.
SWEPT = {"NOISY": ("agld", "perturbed-gd"), "KICKED": ("gd", "asg"),
         "CURVATURE": ("carmon-cubic",), "HESSIAN": ("cubic-newton",)}  # fmt: skip


@contextlib.contextmanager
def few_methods() -> Iterator[None]:
    """`asgld table1` at a tiny size and for a few methods."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EXTENTS, "ci", TINY)
        patch.setattr(table1_cells, "CONTENDERS", tuple(BY_LABEL[label] for label in FEW))
        for name, labels in SWEPT.items():
            patch.setattr(table1_cells, name, labels)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that `asgld table1` writes."""
    folder = tmp_path_factory.mktemp("table1")
    with few_methods():
        commands.table1(commands.TableSize.CI, 1, folder)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> MeasuredCells:
    with few_methods():
        return table1.run_comparison(TINY, folder=folder / "cells")


@pytest.fixture(scope="module")
def tables(found: MeasuredCells) -> dict[str, Any]:
    return table1_tables.measured_tables(found)


def results(cells: list[Cell]) -> list[CellResult]:
    measured = measure_cells(cells)
    assert not [r.error for r in measured if r.error]
    return measured


# ------------------------------------------------------------------------------------ declarations


def test_contenders_are_the_fourteen_rows_in_order() -> None:
    rows = table1_cells.contenders_of_table()
    assert [c.row for c in rows] == list(range(1, 15))
    assert [c.method for c in rows] == [row.method for row in printed_rows()]


def test_logarithms_are_those_of_the_printed_bounds() -> None:
    for row in printed_rows():
        power = 4 if "log^4 d" in row.bound else 1 if "log d" in row.bound else 0
        assert row.log_power == power or math.isnan(row.log_power)


@pytest.mark.parametrize("size", ["ci", "full"])
def test_cells_differ_and_have_enough_seeds(size: str) -> None:
    plan = EXTENTS[size]
    cells = [*table1_cells.saddle_cells(plan), *table1_cells.chain_cells(plan)]
    fields = {json.dumps(dataclasses.asdict(cell), sort_keys=True) for cell in cells}
    assert len(fields) == len(cells)
    for cell in cells:
        assert make_method(cell.method, **cell.options).name == cell.method
    if size == "full":
        assert plan.seeds >= 30
        # On the chain all replicas start at one point: without randomness they are one.
        is_certain = {*table1_cells.KICKED, *table1_cells.HESSIAN}
        for cell in cells:
            if cell.tags["sweep"] != "chain" or cell.label in table1_cells.NOISY:
                assert cell.replicas >= 30
            else:
                assert cell.replicas >= 10 or cell.label in is_certain
        assert {c.label for c in cells if c.problem_options.get("dim") == 4096} >= {
            *table1_cells.NOISY, *table1_cells.KICKED, *table1_cells.CURVATURE,
        }  # fmt: skip


def test_noise_has_equal_energy_or_equal_size_per_coordinate() -> None:
    settings, energy = table1_cells.saddle_settings, table1_cells.ENERGY
    for dim in (4, 64, 1024):
        sigma = settings("agld", dim, "equal")["sigma"]
        assert math.isclose(2 * table1_cells.LR * sigma**2 * dim, energy**2)
        assert settings("perturbed-gd", dim, "equal")["radius"] == energy
    native = {settings("agld", dim, "native")["sigma"] for dim in (4, 64, 1024)}
    assert native == {settings("agld", 64, "equal")["sigma"]}


def test_every_method_gets_the_same_number_of_trials() -> None:
    searches = table1_cells.searches(EXTENTS["full"])
    for family in table1_cells.FAMILIES:
        mine = [search for (name, _), search in searches.items() if name == family.name]
        assert len(mine) == len(CONTENDERS)
        assert len({len(search.draws()) for search in mine}) == 1


# ------------------------------------------------------------------------------------ laws


@pytest.mark.parametrize("label", ["agld", "perturbed-gd"])
def test_escape_time_grows_by_the_predicted_steps_per_log_dimension(label: str) -> None:
    # The log of the start along the way out has a standard deviation of about 1.1, which is 23
    # steps; a median over 100 has a standard error of 2.8, the slope over these d one of 0.95.
    dims = (4, 32, 256)
    cells = [
        Cell("strict-saddle", label, table1_cells.saddle_options(dim),
             table1_cells.saddle_settings(label, dim, "equal"), "saddle", replicas=100,
             max_steps=600, until="fall")
        for dim in dims
    ]  # fmt: skip
    samples = [result.times("fall") for result in results(cells)]
    slope = fit_slope(np.log(dims).tolist(), samples, log_time=False)
    assert abs(slope["value"] - table1.predicted_slope()) < 5 * 0.95


def test_late_saddles_hold_alpha_one_and_not_alpha_zero() -> None:
    plan = dataclasses.replace(EXTENTS["ci"], k0s=(0, 1000), saddle_seeds=9)
    cells = [cell for cell in table1_cells.late_cells(plan) if cell.tags["alpha"] != 0.5]
    times = {(r.tags["alpha"], r.tags["k0"]): r.median("leave") for r in results(cells)}
    # At full size the ratios are 5.1 and 1.4; a median of nine is within a fifth of them.
    assert times[1.0, 1000] / times[1.0, 0] > 3.0
    assert times[0.0, 1000] / times[0.0, 0] < 2.2


def test_worst_case_chain_shows_the_exponents() -> None:
    plan = dataclasses.replace(EXTENTS["ci"], chain_eps=(1.0, 0.5, 0.25))
    found = MeasuredCells(results(table1_cells.chain_cells(plan)))
    # No chance is involved. The slopes tend to 2 and 3/2 as eps falls.
    assert 1.5 < table1_tables.accuracy(found, "gd", "chain")["exponent"] < 2.0
    assert 1.0 < table1_tables.accuracy(found, "cubic-newton", "chain")["exponent"] < 1.5


def test_octopus_holds_gradient_descent_and_not_its_perturbed_form() -> None:
    cells = [
        table1_cells.family_cell(
            table1_cells.OCTOPUS,
            BY_LABEL[label],
            EXTENTS["full"],
            problem_options={"dim": dim},
            options=table1_cells.octopus_settings(label),
            replicas=8,
            until="sosp",
            tags={"label": label, "dim": dim},
        )
        for label in ("gd", "perturbed-gd")
        for dim in (3, 4)
    ]
    times = {(r.label, r.tags["dim"]): r.median("sosp") for r in results(cells)}
    assert times["gd", 4] / times["gd", 3] > 2.5
    assert times["perturbed-gd", 4] / times["perturbed-gd", 3] < 2.0


def test_controls_stay_at_the_saddle(found: MeasuredCells) -> None:
    left = {(r.label, r.tags["noise"]): r.share("leave") for r in found.select("control")}
    for label in ("gd", "asg", "adagrad", "adam", "lbfgs"):
        assert left[label, "none"] == 0.0
    assert left["asg", "samples, stable directions, aligned"] == 0.0
    assert left["asg", "samples, all directions"] == 1.0
    for name in ("mixture", "phase-retrieval", "deep-linear"):
        assert left["asg", f"samples, all 0 at the saddle of {name}"] == 0.0


# ------------------------------------------------------------------------------------ verdicts


@pytest.mark.parametrize(
    ("low", "high", "points", "bound", "expected"),
    [
        (1.8, 2.0, 3, 2.0, "holds"),
        (0.1, 0.3, 3, 2.0, "holds"),
        (2.3, 2.7, 3, 2.0, "refuted"),
        (1.9, 2.3, 3, 2.0, "not supported"),
        (0.1, 1.9, 3, 2.0, "not testable"),
        (0.9, 1.1, 2, 2.0, "not testable"),
        (math.nan, math.nan, 0, 2.0, "not testable"),
        (0.9, 1.1, 3, math.nan, "not testable"),
    ],
)
def test_verdict_on_a_bound(
    low: float, high: float, points: int, bound: float, expected: str
) -> None:
    row = {"exponent": (low + high) / 2, "low": low, "high": high, "points": points}
    assert table1.bound_verdict(row, bound) == expected
    assert table1.bound_verdict(None, bound) == "not testable"


def point(value: float) -> dict[str, float]:
    return {"value": value, "low": value, "high": value}


def findings(
    monkeypatch: pytest.MonkeyPatch, numbers: Iterable[int], power: float, exponent: float
) -> dict[str, Finding]:
    """Claims M1 to M16 if all methods have this power of 1/eps and escape in d^exponent log d."""
    times = {d: [100 * math.log(d) * d**exponent] * 9 for d in (4, 32, 256)}
    chain = {"exponent": power, "low": power, "high": power, "points": 3}
    rows = [MeasuredRow(p, p.method, chain, times) for p in printed_rows()]
    monkeypatch.setattr(table1, "measured_rows", lambda _: rows)
    outcomes = {name: Measured(table1.tasks) for name in ("table1", "minima")}
    claims = parts_of(table1, Claim)
    wanted = [claims[number - 1] for number in numbers]
    return {f.claim.name: f for f in judge_claims(wanted, outcomes)}


def test_rows_are_judged_by_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    rivals = (2, 3, 4, 5, 6, 8, 10)
    good = findings(monkeypatch, rivals, 1.0, 0.0)
    assert {f.verdict for f in good.values()} <= {"holds", "holds with correction"}
    bad = findings(monkeypatch, rivals, 9.0, 0.0)
    assert {f.verdict for f in bad.values()} == {"refuted"}
    # A power of d is no logarithm, and bounds without a logarithm say nothing of it.
    found = findings(monkeypatch, rivals, 1.0, 1.0)
    refuted = {name for name, finding in found.items() if finding.verdict == "refuted"}
    assert refuted == {"M4", "M5", "M6", "M8"}


@pytest.mark.parametrize(("power", "growth", "is_refuted"), [
    (1.0, 1.0, False), (9.0, 1.0, True), (1.0, 9.0, True),
])  # fmt: skip
def test_own_rows_rest_on_the_way_to_a_minimum_as_well(
    monkeypatch: pytest.MonkeyPatch, power: float, growth: float, is_refuted: bool
) -> None:
    monkeypatch.setattr(table1, "eps_power", lambda *_, **__: point(power))
    monkeypatch.setattr(table1, "dim_growth", lambda *_: (4, 256, point(growth)))
    found = findings(monkeypatch, (11, 12, 13, 14), 1.0, 0.0)
    assert {f.verdict == "refuted" for f in found.values()} == {is_refuted}


def test_what_the_text_says_of_rivals_is_checked_against_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = findings(monkeypatch, (15, 16), 1.0, 0.0)
    assert {f.verdict for f in found.values()} == {"refuted"}
    assert "natasha2" in found["M16"].checks[0].says


def test_laws_are_refuted_by_other_numbers(tables: dict[str, Any]) -> None:
    bent = json.loads(json.dumps(tables))
    for row in bent["controls"]:
        row["left"] = 1.0
    for row in bent["late-saddles"]:
        row.update(exponent=3.0, low=2.9, high=3.1)
    for row in bent["octopus"]:
        row["share_past_saddles"] = 0.0
    checks = table1.judged_tables(bent)["checks"]
    refuted = [row["check"] for row in checks if row["verdict"] == "refuted"]
    for words in ("alpha = 0", "alpha = 1", "gd, noise: none", "octopus: methods with noise"):
        assert any(check.startswith(words) for check in refuted)


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
def test_cost_at_other_prices_is_that_of_an_oracle_with_them(
    label: str, options: dict[str, Any]
) -> None:
    shape = {**table1_cells.saddle_options(6), "num_samples": 64, "noise": 0.1}
    cell = Cell("strict-saddle", label, shape, options, "kicked", replicas=1, max_steps=1000,
                eps=0.05, gamma=0.25)  # fmt: skip
    (result,) = results([cell])
    assert result.share("sosp") == 1.0
    subject = problem("strict-saddle", **shape)
    for hvp, hessian in table1_tables.PRICES:
        again = run(
            Oracle(subject, costs=Costs(hvp=hvp, hessian=hessian * subject.dim)),
            make_method(label, **options),
            start_points(subject, cell),
            max_steps=int(result.events["sosp"]["steps"][0] or 0),
        )
        expected = float(again.counts.spent[0])
        assert table1_tables.cost_at(result, hvp, hessian) == pytest.approx(expected)


def test_ranks_that_move_are_flagged(found: MeasuredCells, tables: dict[str, Any]) -> None:
    rows = [r for r in tables["sensitivity"] if r["problem"] == "saddle"]
    cheap, dear = (
        {r["method"]: r[table1_tables.price_name(*prices)] for r in rows}
        for prices in (table1_tables.PRICES[0], table1_tables.PRICES[-1])
    )
    standard = found.select("standard", family="saddle", mode="practical")
    assert cheap == {r.label: r.median("sosp", "spent") for r in standard}
    assert dear["cubic-newton"] > cheap["cubic-newton"]
    assert dear["gd"] == cheap["gd"]
    for row in rows:
        is_moved = math.isfinite(cheap[row["method"]]) and len(set(row["ranks"].split())) > 1
        assert row["moves"] == is_moved


# ------------------------------------------------------------------------------------ the whole


def test_all_modes_are_measured_and_nothing_fails(
    found: MeasuredCells, tables: dict[str, Any]
) -> None:
    assert tables["failures"] == []
    for family, mode in (("saddle", "theory"), ("saddle", "practical"), ("octopus", "practical")):
        standard = found.select("standard", family=family, mode=mode)
        assert {r.label for r in standard} == set(FEW)
    assert {r.label for r in found.select("dimension")} >= set(SWEPT["NOISY"])


def test_command_writes_tables_figures_and_a_page(folder: Path, tables: dict[str, Any]) -> None:
    assert len(list((folder / "figures").glob("*.png"))) == 8
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["cells"] == len(tables["cells"])
    judged = table1.judged_tables(tables)
    assert [row["row"] for row in judged["table1"]] == list(range(1, 15))
    assert {row["verdict"] for row in judged["checks"]} <= set(VERDICTS)
    for name, rows in {**tables, **judged}.items():
        assert len(table1_page.read_tables(folder)[name]) == len(rows)
    page = (folder / "table1.md").read_text()
    assert "| nan" not in page
    for label in BY_LABEL:
        assert label in page
    # The page can be made again from the files alone.
    with few_methods():
        again = table1_page.committed_page(folder)
    assert again.replace("figures/table1/", "figures/") == page


def test_page_of_the_documentation_is_that_of_the_committed_results() -> None:
    page = table1_page.committed_page(ROOT / "benchmarks" / "results" / "table1")
    assert (ROOT / "docs" / "table1.md").read_text() == page
