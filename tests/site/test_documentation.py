"""What the pages show is run: every python block of README and docs, and the claims around them."""

from __future__ import annotations

import copy
import re
import sys
import types
from pathlib import Path

import pytest
from helpers import ROOT

from asgld.methods import METHODS
from asgld.problems import PROBLEMS

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


# The tutorials are run by tests/site/test_tutorials.py, which also compares what they print, and
# the README by a test of its own.
RUN_HERE = [page for page in PAGES[1:] if page.parent.name != "tutorials" and _blocks(page)]


@pytest.mark.parametrize("page", RUN_HERE, ids=lambda p: p.name)
def test_code_on_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # A real module, since dataclasses look theirs up.
    module = types.ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    # A page may add a method or a problem of its own.
    monkeypatch.setattr("asgld.methods.METHODS", copy.copy(METHODS))
    monkeypatch.setattr("asgld.problems.PROBLEMS", copy.copy(PROBLEMS))
    for block in _blocks(page):
        exec(compile(block, str(page), "exec", dont_inherit=True), module.__dict__)


def test_readme_examples_do_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    for example in _blocks(ROOT / "README.md"):
        exec(compile(example, "README.md", "exec", dont_inherit=True), {})
    output = capsys.readouterr().out
    assert re.search(r"MINIMUM .*\nSTRICT_SADDLE", output)
    printed = re.search(r"loss ([\d.]+)", output)
    assert printed is not None
    # targets have variance near 0.5
    assert float(printed[1]) < 0.1


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_pages_name_no_place_on_a_machine(page: Path) -> None:
    assert not re.findall(r"(?<![\w.])/(?:home|root|tmp|work|Users)/\S*", page.read_text())
