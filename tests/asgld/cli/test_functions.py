"""`asgld minimize` and `asgld compare` on problems and on a file's own functions."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import typer.testing
from typer.testing import CliRunner

from asgld import cli

Invoke = Callable[..., typer.testing.Result]

MINE = """
import numpy as np

x0 = [0.3, 0.2]

def saddle(x):
    return x[0] ** 2 - x[1] ** 2 / 2 + x[1] ** 4 / 4

def bowl(x):
    return float(np.sum((np.asarray(x) - 1.0) ** 2))

def slope(x):
    return 2.0 * (x - 1.0)

def raises(x):
    raise KeyError("[bold]nothing[/bold]")

def logs(x):
    import torch
    return torch.log(x).sum()

def narrow(x):
    if abs(float(x[0])) > 0.5:
        raise ArithmeticError("outside")
    return -x[0]
"""


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    app = cli.build_app()
    return lambda *words: CliRunner().invoke(app, list(words))


def assert_refused(shown: typer.testing.Result, words: str, status: int = 2) -> None:
    assert shown.exit_code == status, shown.output
    assert isinstance(shown.exception, SystemExit)
    (line,) = shown.stderr.strip().splitlines()
    assert words in line
    assert not shown.stdout


def test_a_start_outside_the_domain_is_named(invoke: Invoke) -> None:
    shown = invoke("minimize", "--fun", "mine.py:logs", "--x0=-1,2")
    assert_refused(shown, "is not finite at x0 = [-1. 2.]: choose a start inside the domain")


def test_minimize_tells_kinds_by_its_status(invoke: Invoke) -> None:
    found = invoke("minimize", "--fun", "mine.py:saddle", "--x0", "0,0", "--method", "agld")
    assert (found.exit_code, "MINIMUM" in found.stdout) == (0, True)
    stayed = invoke("minimize", "--fun", "mine.py:saddle", "--x0", "0,0", "--method", "asg")
    assert (stayed.exit_code, "STRICT_SADDLE" in stayed.stdout) == (1, True)
    problem = invoke("minimize", "octopus", "-o", "dim=2", "--method", "asg")
    assert problem.exit_code == 1
    assert invoke("minimize", "octopus", "-o", "dim=2", "--method", "agld").exit_code == 0


def test_minimize_reads_starts_gradients_and_bounds_and_writes_x(invoke: Invoke) -> None:
    common = ("minimize", "--fun", "mine.py:bowl", "--method", "lbfgs")
    free = invoke(*common, "--x0", "-1,3", "--jac", "mine.py:slope", "--out", "x.npy")
    assert free.exit_code == 0, free.output
    np.testing.assert_allclose(np.load("x.npy"), [1.0, 1.0], atol=1e-3)
    held = invoke(*common, "--x0", "x.npy", "--bounds", "(None, None), (-2, 0.5)")
    assert_refused(held, "bounds")  # the start is outside
    held = invoke(*common, "--x0", "mine.py:x0", "--bounds", "(None, None), (-2, 0.5)", "--out",
                  "y.npy", "--figure", "run.svg")  # fmt: skip
    assert held.exit_code in (0, 1), held.output
    assert np.load("y.npy")[1] <= 0.5
    assert "<svg" in Path("run.svg").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("minimize",), "--fun"),
        (("minimize", "octopus", "--fun", "mine.py:saddle"), "both"),
        (("minimize", "--fun", "mine.py:saddle", "--x0", "1,2", "--start", "random"), "--start"),
        (("minimize", "--fun", "mine.py:saddle", "--x0", "1,2", "--saddle", "0"), "--saddle"),
        (("minimize", "octopus", "--start", "random", "--saddle", "1"), "--saddle"),
        (("minimize", "octopus", "-o", "dims=3"), "dim,"),
        (("minimize", "octopus", "-o", "dims=3", "--method", "agld"), "dim,"),
        (("minimize", "octopus", "--x0", "1,2"), "--x0"),
        (("minimize", "octopus", "--bounds", "(0, 1)"), "--bounds"),
        (("minimize", "octopus", "--method", "adamw"), "'adamw'"),
        (("minimize", "octopus", "-o", "dim=abc"), "dim='abc'"),
        (("minimize", "octopus", "-o", "lr=nan", "--method", "agld"), "nan"),
        (("minimize", "octopus", "-o", "lr=1"), "'lr'"),
        (("minimize", "octopus", "-o", "lr=abc", "--method", "agld"), "lr='abc'"),
        (("minimize", "octopus", "-o", "bogus=1", "--method", "agld"), "'bogus'"),
        (("minimize", "octopus", "-o", "lr"), "key=value"),
        (("minimize", "octopus", "--start", "nowhere"), "'nowhere'"),
        (("minimize", "octopus", "--saddle", "99"), "99"),
        (("minimize", "octopus", "--tol", "-1"), "tol=-1"),
        (("minimize", "octopus", "--figure", "a.bmp"), "a.bmp"),
        (("minimize", "octopus", "--figure", "nowhere/a.png"), "nowhere"),
        (("minimize", "octopus", "--out", "x.txt"), ".npy"),
        (("minimize", "--fun", "mine.py:saddle"), "--x0"),
        (("minimize", "--fun", "mine.py:none", "--x0", "1,2"), "'none'"),
        (("minimize", "--fun", "none.py:f", "--x0", "1,2"), "none.py"),
        (("minimize", "--fun", "mine.py:bowl", "--x0", "a,b"), "'a,b'"),
        (("compare",), "--fun"),
        (("compare", "--fun", "mine.py:bowl"), "--x0"),
        (("compare", "--fun", "mine.py:bowl", "--x0", "1,2", "--methods", "gd,adamw"), "'adamw'"),
        (("compare", "--fun", "mine.py:bowl", "--x0", "1,2", "--set", "gd.lr=nan"), "lr=nan"),
        (("compare", "--fun", "mine.py:bowl", "--x0", "1,2", "--set", "gd.lr=abc"), "lr='abc'"),
        (("compare", "--fun", "mine.py:bowl", "--x0", "1,2", "--set", "asg.lr=1"), "asg.lr=1"),
        (("compare", "--fun", "mine.py:bowl", "--x0", "1,2", "--budget", "0"), "budget=0"),
        (("compare", "--fun", "mine.py:bowl", "--x0", "1,2", "--figure", "a.jpg"), "a.jpg"),
        (("compare", "--fun", "mine.py:bowl", "--x0", "1,2", "--out", "no/a.csv"), "'no'"),
        (("compare", "--fun", "mine.py:bowl", "--x0", "1,2", "--out", "a.txt"), ".csv"),
    ],
)
def test_nonsense_is_one_line_before_the_run(
    invoke: Invoke, words: tuple[str, ...], message: str
) -> None:
    assert_refused(invoke(*words), message)


@pytest.mark.parametrize("word", ["minimize", "compare"])
def test_a_function_that_raises_is_one_line_without_markup(invoke: Invoke, word: str) -> None:
    shown = invoke(word, "--fun", "mine.py:raises", "--x0", "1,2")
    assert_refused(shown, "[bold]nothing[/bold]", status=1)


def test_compare_shows_a_table_and_writes_rows_and_a_figure(invoke: Invoke) -> None:
    shown = invoke(
        "compare", "--fun", "mine.py:saddle", "--x0", "0,0", "--methods", "gd,agld", "--seeds", "3",
        "--budget", "200", "--set", "gd.lr=0.1", "--out", "rows.csv", "--figure", "figure.png",
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    assert not shown.stderr
    with open("rows.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["gd", "agld", "agld", "agld"]
    assert [row["kind"] for row in rows] == ["STRICT_SADDLE", "MINIMUM", "MINIMUM", "MINIMUM"]
    assert Path("figure.png").read_bytes().startswith(b"\x89PNG")
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_compare_has_status_one_where_a_method_failed(invoke: Invoke) -> None:
    shown = invoke("compare", "--fun", "mine.py:narrow", "--x0", "0", "--methods", "gd,lbfgs")
    assert shown.exit_code == 1
    assert all("outside" in line for line in shown.stderr.strip().splitlines())
    assert shown.output.count("gd failed") == shown.stderr.count("gd failed") == 1


def test_a_method_named_twice_runs_twice(invoke: Invoke) -> None:
    common = ("compare", "--fun", "mine.py:bowl", "--x0", "0,0", "--methods", "gd,lbfgs,gd")
    assert invoke(*common, "--set", "gd.lr=0.1", "--out", "rows.csv").exit_code == 0
    with open("rows.csv") as file:
        assert [row["method"] for row in csv.DictReader(file)] == ["gd", "lbfgs", "gd #2"]


def test_compare_has_a_row_where_a_method_failed(invoke: Invoke) -> None:
    shown = invoke("compare", "--fun", "mine.py:narrow", "--x0", "0", "--methods", "gd")
    assert "gd" in shown.stdout
