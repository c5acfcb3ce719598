"""What users type: read as meant, or refused in one sentence that names it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asgld import cli
from asgld.cli import inputs


def test_an_option_is_a_key_and_a_value() -> None:
    assert cli.key_value("spectrum=(2, 1)") == ("spectrum", (2, 1))
    assert cli.key_value("loss=a=b") == ("loss", "a=b")
    assert math.isnan(cli.key_value("lr=nan")[1])
    assert cli.key_value("beta=inf") == ("beta", math.inf)
    for wrong in ("lr", "lr=", "=3", ""):
        with pytest.raises(ValueError, match=r"need key=value"):
            cli.key_value(wrong)


def test_text_is_refused_where_a_number_is_meant() -> None:
    types: dict[str, Any] = {"dim": "int", "lr": 0.1, "loss": "str", "size": "int | str"}
    inputs.check_numbers({"dim": 3, "lr": "1", "loss": "x", "size": "y"} | {"lr": 2.0}, types)
    for name in ("dim", "lr"):
        with pytest.raises(ValueError, match=f"{name}='abc': need a number"):
            inputs.check_numbers({name: "abc"}, types)


def test_starts_are_numbers_files_or_names(tmp_path: Path) -> None:
    np.testing.assert_array_equal(inputs.read_start("1, -2.5,3e2"), [1.0, -2.5, 300.0])
    np.testing.assert_array_equal(inputs.read_start("[1, 2]"), [1.0, 2.0])
    np.save(tmp_path / "x.npy", np.arange(3.0))
    np.testing.assert_array_equal(inputs.read_start(str(tmp_path / "x.npy")), [0.0, 1.0, 2.0])
    (tmp_path / "mine.py").write_text("x0 = [4.0, 5.0]\n")
    assert inputs.read_start(f"{tmp_path / 'mine.py'}:x0") == [4.0, 5.0]
    (tmp_path / "bad.npy").write_text("no array")
    for wrong in ("one,two", "", "1,,2", str(tmp_path / "bad.npy"), str(tmp_path / "none.npy")):
        with pytest.raises(ValueError, match="--x0="):
            inputs.read_start(wrong)


def test_bounds_are_pairs() -> None:
    assert inputs.read_bounds(None) is None
    assert inputs.read_bounds("(0, None), (-1, 1)") == [(0, None), (-1, 1)]
    assert inputs.read_bounds("[(0, 1)]") == [(0, 1)]
    assert inputs.read_bounds("(0, 1)") == [(0, 1)]
    for wrong in ("0, 1", "(0, 1, 2)", "(0,", "('a', 1)", "f()"):
        with pytest.raises(ValueError, match="--bounds="):
            inputs.read_bounds(wrong)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}/mine.py", "need file.py:name"),
        ("{}/none.py:f", "there is no file"),
        ("{}:f", "there is no file"),
        ("{}/mine.py:g", "no 'g'; it has f"),
        ("{}/mine.py:number", "is no function"),
        ("{}/broken.py:f", "raised SyntaxError"),
        ("{}/exits.py:f", "raised SystemExit"),
        ("{}/fails.py:f", "raised ZeroDivisionError"),
        ("{}/notes.txt:f", "no Python file"),
    ],
)
def test_a_function_that_cannot_be_had_is_named(text: str, words: str, tmp_path: Path) -> None:
    files = {
        "mine.py": "def f(x):\n    return x\nnumber = 3\n",
        "broken.py": "def (\n",
        "exits.py": "import sys\nsys.exit(3)\n",
        "fails.py": "1 / 0\n",
        "notes.txt": "f\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=words):
        inputs.read_function(text.format(tmp_path))


def test_a_file_may_import_its_neighbors(tmp_path: Path) -> None:
    (tmp_path / "neighbor_of_mine.py").write_text("scale = 2.0\n")
    (tmp_path / "mine.py").write_text(
        "from neighbor_of_mine import scale\ndef f(x):\n    return scale * x\n"
    )
    assert inputs.read_function(f"{tmp_path / 'mine.py'}:f")(3.0) == 6.0


@pytest.mark.parametrize("name", ["a.bmp", "a", "nowhere/a.png", "folder.png"])
def test_figures_that_cannot_be_written_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ValueError, match="--figure="):
        inputs.check_figure(tmp_path / name)
    inputs.check_figure(tmp_path / "a.PNG")


def test_folders_may_be_new_but_no_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    inputs.check_folder(tmp_path / "new" / "deep", "--out")
    for wrong in (tmp_path / "file", tmp_path / "file" / "deep"):
        with pytest.raises(ValueError, match="is a file"):
            inputs.check_folder(wrong, "--out")
