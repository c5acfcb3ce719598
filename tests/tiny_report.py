"""A whole report at the size that only shows that everything runs, made once per test session."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from asgld_study import commands, page
from asgld_study.engine import Outcomes, run_experiments
from asgld_study.judge import judge_claims
from asgld_study.paper import CLAIMS, EXPERIMENTS

RunOnce = Callable[[str, Callable[[Path], None]], Path]
# Changes results so that they speak for the claims (True), or against them (False).
Bend = Callable[[Outcomes, bool], None]


def tiny_report(run_once: RunOnce) -> Path:
    """The folder with the report."""
    return run_once("tiny-report", _fill)


def tiny_outcomes(folder: Path) -> Outcomes:
    """The outcomes of that report, from its stored results."""
    return run_experiments(EXPERIMENTS, "tiny", folder=folder / "results")


def _fill(folder: Path) -> None:
    outcomes = run_experiments(EXPERIMENTS, "tiny", folder=folder / "results", jobs=2)
    told = commands.report_of(outcomes, "tiny", {"begun": "now"})
    page.write(told, folder, jobs=2)
    (folder / "paper.md").write_text(commands.paper_page(told.findings, "tiny"))


# ------------------------------------------------------------------------------------ bending


def change(outcomes: Outcomes, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change every value of an experiment in place."""
    for value in outcomes[name].values:
        change(value)


def point(low: float, high: float | None = None) -> dict[str, float]:
    """A number with its interval."""
    top = low if high is None else high
    return {"value": (low + top) / 2, "low": low, "high": top}


def verdicts(outcomes: Outcomes, names: Sequence[str]) -> set[str]:
    """The verdicts of the claims of these names."""
    return {f.verdict for f in judge_claims([c for c in CLAIMS if c.name in names], outcomes)}


def assert_flips(
    outcomes: Outcomes, names: Sequence[str], bend: Bend, good: Collection[str] = ("holds",)
) -> None:
    """Numbers decide: bent one way the claims get a good verdict, bent the other way they are
    refuted."""
    bend(outcomes, True)
    assert verdicts(outcomes, names) == set(good)
    bend(outcomes, False)
    assert verdicts(outcomes, names) == {"refuted"}
