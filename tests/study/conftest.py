"""The tiny report, shared by all tests of the study."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from tiny_report import RunOnce, tiny_outcomes, tiny_report

from asgld_study.engine import Outcomes


@pytest.fixture(scope="session")
def report_folder(run_once: RunOnce) -> Path:
    """A folder with a whole report."""
    return tiny_report(run_once)


@pytest.fixture(scope="session")
def measured(report_folder: Path) -> Outcomes:
    """Real outcomes of all experiments, at the size that only shows that they run."""
    return tiny_outcomes(report_folder)


@pytest.fixture
def outcomes(measured: Outcomes) -> Outcomes:
    """A copy to bend."""
    return copy.deepcopy(measured)
