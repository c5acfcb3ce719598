"""The pages show what `python -m pages` writes, and a mark that shows something else is found."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

import pytest
from flows import FLOWS, entered
from helpers import ROOT

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")
sys.path.insert(0, str(ROOT))
marks: Any = importlib.import_module("pages.marks")
results: Any = importlib.import_module("pages.results")
sys.path.remove(str(ROOT))

VALUES = results.Values({"gain": "1.5", "share": "-0.2"}, {"all": "| a |\n|---|\n| 2 |\n"})


def test_pages_show_what_the_results_give() -> None:
    differences = marks.write(is_check=True)
    assert not differences, "run python -m pages:\n" + "\n\n".join(map(str, differences))


def test_numbers_and_tables_are_written_where_their_marks_are() -> None:
    text = "It is 7<!--gain--> %, or **-9.99<!--share-->**.\n\n<!-- table: all -->\n\n| old |\n\n."
    new, differences, found = marks.rewrite("page", text, VALUES)
    assert new == (
        "It is 1.5<!--gain--> %, or **-0.2<!--share-->**.\n\n"
        "<!-- table: all -->\n\n| a |\n|---|\n| 2 |\n\n."
    )
    assert [(d.page, d.mark, d.shown) for d in differences] == [
        ("page", "all", "| old |\n"),
        ("page", "gain", "7"),
        ("page", "share", "-9.99"),
    ]
    assert found == {"gain", "share", "all"}
    assert marks.rewrite("page", new, VALUES)[:2] == (new, [])


@pytest.mark.parametrize("text", ["3<!--unknown-->", "seven<!--gain-->", "<!-- table: no -->\n\n"])
def test_a_mark_without_a_number_or_a_value_is_found(text: str) -> None:
    new, (difference,), _ = marks.rewrite("page", text, VALUES)
    assert new == text
    assert difference.mark in text


def test_architecture_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:src|study|tests|native|benchmarks|pages)\b[\w/.]*)`", text))
    assert {"src/asgld/noise.py", "src/asgld/oracle/costs.py"} <= named
    named |= {folder for _, folder in marks.architecture.FLOW.values()}
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_a_flow_enters_the_files_whose_functions_it_calls() -> None:
    files = entered(FLOWS["step"])
    assert {"asgld/noise.py", "asgld/optim/rule.py"} <= set(files)
    assert "asgld/optim/presets.py" not in files  # imported, and not called
