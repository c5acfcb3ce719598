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

DOCS, TABLES = ROOT / "docs", ROOT / "benchmarks" / "tables"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
# Files of the root that are pages of the site too, see pages/mkdocs_appendix.py.
OF_THE_ROOT = [ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]


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
    assert re.search(r"STRICT_SADDLE\nMINIMUM ", output)
    printed = re.search(r"loss ([\d.]+)", output)
    assert printed is not None
    # targets have variance near 0.5
    assert float(printed[1]) < 0.1
    assert "VERDICT: mixed" in output


def _num_words(page: Path) -> int:
    """Words of text and tables: no code, no marks, a formula is one word."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
    text = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$", " formula ", text, flags=re.DOTALL)
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def test_pages_are_short() -> None:
    lengths = {p: _num_words(p) for p in PAGES if p.parent.name != "api"}
    assert sum(lengths.values()) <= 22_000
    # Evidence and architecture are for other readers; the rest is for users, in one sitting.
    long = {"paper.md", "theory.md", "architecture.md"}
    too_long = {p.name: n for p, n in lengths.items() if n > 900 and p.name not in long}
    assert not too_long


@pytest.mark.parametrize("page", [*PAGES, *OF_THE_ROOT], ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            # pages/mkdocs_appendix.py shows the tables beside the benchmarks as appendices.
            beside = (page.parent / target).resolve()
            if beside.parent == DOCS / "appendix":
                beside = TABLES / beside.name
            if beside in {DOCS / file.name.lower() for file in OF_THE_ROOT}:
                continue
            assert beside.exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", [*PAGES, *OF_THE_ROOT], ids=lambda p: p.name)
def test_pages_name_no_place_on_a_machine(page: Path) -> None:
    assert not re.findall(r"(?<![\w.])/(?:home|root|tmp|work|Users)/\S*", page.read_text())
