"""The words of the command line: `asgld reproduce`, and `asgld theory --measure`."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import ROOT
from typer.testing import CliRunner

from asgld import cli
from asgld.theory.published import VERDICTS
from asgld_study import commands, page
from asgld_study.paper import CLAIMS, EXPERIMENTS

# Experiments that take little time and yet have several tasks, figures and claims.
FEW = ("lag", "plateau", "noise")


def _arguments(out: Path) -> list[str]:
    names = [part for name in FEW for part in ("--only", name)]
    return ["reproduce", "--size", "tiny", "--jobs", "1", "--out", str(out), *names]


def test_reproduce_lists_and_refuses() -> None:
    app = cli.build_app()
    listed = CliRunner().invoke(app, ["reproduce", "--list"])
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.output.splitlines()] == [e.name for e in EXPERIMENTS]
    refused = CliRunner().invoke(app, ["reproduce", "--only", "nonsense"])
    assert refused.exit_code == 2
    assert "nonsense" in refused.output


def test_reproduce_writes_all_files_of_the_experiments_asked_for(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.build_app(), _arguments(tmp_path))
    assert result.exit_code == 0, result.output
    assert str(tmp_path / "report.html") in result.output.replace("\n", "")
    made = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert {"report.html", "ledger.csv", "ledger.json", "paper.md"} <= made
    for name in FEW:
        assert {f"figures/{name}.svg", f"figures/{name}.pdf"} <= made
    # claims whose experiments were not asked for are left out, not guessed
    claims = {row["claim"] for row in json.loads((tmp_path / "ledger.json").read_text())}
    assert claims == {"R9", "E5"}


def test_choice_keeps_the_order_of_the_report() -> None:
    assert [e.name for e in commands.choose(["noise", "plateau"])] == ["plateau", "noise"]
    assert commands.choose([]) == EXPERIMENTS


@pytest.mark.parametrize("path", ["tiny", "docs"])
def test_page_of_the_paper_has_a_row_and_a_verdict_for_every_claim(
    path: str, report_folder: Path
) -> None:
    folder = report_folder if path == "tiny" else ROOT / "docs"
    lines = (folder / "paper.md").read_text().splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| ")][1:]
    assert [row[0][2:] for row in rows] == [claim.name for claim in CLAIMS]
    assert {row[1].strip("*") for row in rows} <= set(VERDICTS)
    assert {len(row) for row in rows} == {5}


@pytest.mark.parametrize("what", ["exponents", "escape"])
def test_theory_measures_to_a_file_and_draws(tmp_path: Path, what: str) -> None:
    out = tmp_path / "rows.csv"
    result = CliRunner().invoke(
        cli.build_app(),
        ["theory", "--measure", what, "--steps", "200", "--replicas", "6", "--limit", "2",
         "--out", str(out), "--plot", str(tmp_path)],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    with out.open() as file:
        assert len(list(csv.DictReader(file))) == 2
    assert (tmp_path / f"{what}-measured.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_killed_ten_times_the_report_is_the_same_byte_for_byte(tmp_path: Path) -> None:
    """kill -9 after each of ten numbers of results, then to the end; and once undisturbed."""
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    rng = random.Random(7)
    for _ in range(10):
        process = _start(broken)
        target = _stored(broken) + rng.randint(1, 3)
        while process.poll() is None and _stored(broken) < target:
            time.sleep(0.01)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for out in (broken, whole):
        process = _start(out)
        assert process.wait() == 0, (out / "log").read_text()
    for name in ("report.html", "ledger.csv", "paper.md", "figures/lag.svg", "figures/lag.pdf"):
        one, two = ((out / name).read_bytes() for out in (broken, whole))
        if name == "report.html":
            one, two = (page.without_times(text.decode()).encode() for text in (one, two))
        assert one == two, name


def _start(out: Path) -> subprocess.Popen[bytes]:
    out.mkdir(exist_ok=True)
    with (out / "log").open("wb") as log:
        command = [sys.executable, "-m", "asgld", *_arguments(out)]
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def _stored(out: Path) -> int:
    return len(list((out / "results").glob("*.json")))
