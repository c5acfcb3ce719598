"""The command `compare`; `table1` is tested with its topic."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer.testing

from asgld_study import commands

Invoke = Callable[..., typer.testing.Result]


@pytest.fixture
def invoke() -> Invoke:
    app = typer.Typer()
    app.command()(commands.compare)
    app.command()(commands.table1)  # two commands, so that each keeps its word
    return lambda *words: typer.testing.CliRunner().invoke(app, list(words))


def test_compare_writes_a_table_and_a_figure_and_resumes(invoke: Invoke, tmp_path: Path) -> None:
    words = ("compare", "--problem", "strict-saddle", "-o", "dim=4", "--methods",
             "gd,agld,cubic-newton", "--seeds", "4", "--start", "kicked", "--trials", "2",
             "--eps", "0.05", "--gamma", "0.5", "--max-steps", "400", "--out",
             str(tmp_path))  # fmt: skip
    first = invoke(*words)
    assert first.exit_code == 0, first.output
    with (tmp_path / "compare.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {"gd", "agld", "cubic-newton"}
    costs = [float(row["cost"]) for row in rows]
    assert costs == sorted(costs)
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")
    kept = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "cells").iterdir()}
    table = (tmp_path / "compare.csv").read_text()
    assert invoke(*words).exit_code == 0
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "cells").iterdir()} == kept
    assert (tmp_path / "compare.csv").read_text() == table


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--problem", "sadle"), "'sadle'"),
        (("--problem", "octopus", "--methods", "magic"), "methods='magic'"),
        (("--problem", "octopus", "-o", "dim"), "'dim'"),
        (("--problem", "octopus", "--set", "adam.lr=1"), "'adam.lr=1'"),
        (("--problem", "digits", "--mode", "theory"), "mode='theory'"),
    ],
)
def test_compare_says_what_is_wrong(invoke: Invoke, words: tuple[str, ...], message: str) -> None:
    result = invoke("compare", *words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_compare_takes_settings_and_theory(invoke: Invoke, tmp_path: Path) -> None:
    common = ("compare", "--problem", "strict-saddle", "-o", "dim=3", "--methods", "gd", "--seeds",
              "2", "--start", "kicked", "--max-steps", "20")  # fmt: skip
    assert invoke(*common, "--mode", "theory").exit_code == 0
    kept = ("--mode", "default", "--set", "gd.lr=0.2", "--out", str(tmp_path))
    assert invoke(*common, *kept).exit_code == 0
    (path,) = (tmp_path / "cells").iterdir()
    assert json.loads(path.read_text())["value"]["cell"]["options"] == {"lr": 0.2}
