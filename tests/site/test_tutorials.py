"""The tutorials run, and print what their pages show.

`python tests/site/test_tutorials.py` runs them and writes what they print into the pages.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
# The page of errors shows messages, which are printed too.
PAGES = [
    *sorted(page for page in TUTORIALS.glob("*.md") if page.stem != "index"),
    ROOT / "docs" / "errors.md",
]
# Of this page one block shows what it prints.
SAMPLING = ROOT / "docs" / "sampling.md"
PAIR = re.compile(r"^```python\n(.*?)^```\n\n^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?")


def outputs(page: Path) -> Iterator[tuple[str, str]]:
    """What each block of a page shows as its output, and what it prints."""
    module = types.ModuleType(f"tutorial_{page.stem}")
    sys.modules[module.__name__] = module
    try:
        for code, shown in PAIR.findall(page.read_text()):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, str(page), "exec", dont_inherit=True), module.__dict__)
            yield shown, printed.getvalue()
    finally:
        del sys.modules[module.__name__]


def test_there_are_five_tutorials() -> None:
    assert len(PAGES) >= 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_shows_its_output(page: Path) -> None:
    blocks = re.findall(r"^```python\n", page.read_text(), re.MULTILINE)
    assert len(PAIR.findall(page.read_text())) == len(blocks) > 0


@pytest.mark.parametrize("page", [*PAGES, SAMPLING], ids=lambda page: page.stem)
def test_tutorial_prints_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Threads of processes that a tutorial starts would wait for each other.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for shown, printed in outputs(page):
        # Words must be equal; numbers to 5 %, since sums are rounded differently elsewhere.
        assert NUMBER.sub("#", shown).split() == NUMBER.sub("#", printed).split()
        for one, other in zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True):
            assert float(one) == pytest.approx(float(other), rel=0.05), f"{shown}\n{printed}"


def write(page: Path) -> None:
    """Put what the blocks print into the page."""
    text = page.read_text()
    found = iter([printed for _, printed in outputs(page)])
    page.write_text(
        PAIR.sub(lambda pair: f"```python\n{pair[1]}```\n\n```text\n{next(found)}```", text)
    )


if __name__ == "__main__":
    os.chdir(ROOT)
    for path in [
        page for page in [*PAGES, SAMPLING] if not sys.argv[1:] or page.stem in sys.argv[1:]
    ]:
        write(path)
