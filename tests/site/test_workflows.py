"""The files for a public forge: they parse, and they name what this tree has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import ROOT

FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def test_there_are_tests_wheels_and_docs() -> None:
    assert {path.stem for path in FILES} == {"tests", "wheels", "docs"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_steps_are_whole(path: Path) -> None:
    for step in _steps(path):
        assert ("run" in step) != ("uses" in step), step
        if "uses" in step:  # an action without a version would change under us
            assert re.fullmatch(r"[\w.-]+/[\w.-]+@[\w./-]+", step["uses"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_targets_exist(path: Path) -> None:
    commands = "\n".join(step.get("run", "") for step in _steps(path))
    assert set(re.findall(r"\bmake (\w+)", commands)) <= TARGETS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_jobs_need_jobs_that_are_there(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text())["jobs"]
    assert {name for job in jobs.values() for name in job.get("needs", [])} <= set(jobs)


def test_every_supported_python_is_tested() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    supported = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    job = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == supported
