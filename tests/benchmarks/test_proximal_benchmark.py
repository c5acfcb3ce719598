"""The benchmark of penalties: its parts run, its saddles are saddles, its committed rows agree."""

from __future__ import annotations

import csv
import importlib
import sys
from pathlib import Path

import pytest
from helpers import ROOT

from asgld import Kind, classify

sys.path.insert(0, str(ROOT / "benchmarks"))
proximal = importlib.import_module("proximal")
sys.path.remove(str(ROOT / "benchmarks"))
RESULTS = ROOT / "benchmarks" / "results"


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_small_regression_agrees_with_scikit_learn(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    proximal.main(["regression", "--quick", "--out", str(tmp_path / "rows.csv")])
    rows = read(tmp_path / "rows.csv")
    assert {row["method"] for row in rows} == {
        "auto", "fista", "fista-restart", "prox-gd", "sklearn",
    }  # fmt: skip
    assert all(float(row["gap"]) < 1e-8 for row in rows)


@pytest.mark.parametrize("make", ["factorization", "phase_retrieval"])
def test_saddles_are_stationary_and_curve_down(make: str) -> None:
    saddle = getattr(proximal, make)(0)
    point = classify(saddle.fun, saddle.x, prox=saddle.penalty)
    assert point.kind is Kind.STRICT_SADDLE
    assert 0 < int((saddle.x == 0).sum()) < len(saddle.x)
    stays = next(proximal.measure_saddle(saddle, 1))
    assert stays["method"] == "prox-gd"
    assert stays["left"] == 0


def test_quick_runs_replace_no_measurement() -> None:
    with pytest.raises(SystemExit):
        proximal.main(["saddles", "--quick"])


def test_committed_values_agree_to_1e_8() -> None:
    rows = read(RESULTS / "proximal_regression.csv")
    exact = [row for row in rows if row["method"] in ("auto", "sklearn")]
    assert len(exact) == 36
    assert all(float(row["gap"]) < 1e-8 for row in exact)
    assert all(row["kind"] == "MINIMUM" for row in exact if row["method"] == "auto")
