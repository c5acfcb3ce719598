"""A whole report at the size that only shows that everything runs, made once per test session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from asgld_study.experiments.declared import EXPERIMENTS
from asgld_study.reproduction import runner, write

RunOnce = Callable[[str, Callable[[Path], None]], Path]


def tiny_report(run_once: RunOnce) -> Path:
    """The folder with the report."""
    return run_once("tiny-report", _fill)


def tiny_outcomes(folder: Path) -> runner.Outcomes:
    """The outcomes of that report, from what it kept."""
    return runner.run(EXPERIMENTS, "tiny", folder=folder / "results")


def _fill(folder: Path) -> None:
    outcomes = runner.run(EXPERIMENTS, "tiny", folder=folder / "results", jobs=2)
    write.write(outcomes, size="tiny", out=folder, times={"begun": "now"}, jobs=2)
