"""Files: written in one move, and failures that leave nothing behind and say what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from asgld.run import files


def test_files_are_replaced_and_folders_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "table.csv"
    for text in ("one\n", "two\n"):
        files.write_text(path, text)
        assert path.read_text() == text
    assert [p.name for p in path.parent.iterdir()] == ["table.csv"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_failed_write_keeps_the_old_file_and_leaves_no_other(
    call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.pt"
    files.write_text(path, "old")

    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.os, call, fail)
    for write in (
        lambda: files.write_text(path, "new"),
        lambda: files.write_checkpoint(path, {"x": torch.ones(2)}),
    ):
        with pytest.raises(OSError, match=r"run\.pt") as caught:
            write()
        assert caught.value.errno == number
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["run.pt"]


def test_path_through_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"table\.csv"):
        files.write_text(tmp_path / "file" / "table.csv", "text")


def test_checkpoint_holds_what_was_written(tmp_path: Path) -> None:
    files.write_checkpoint(tmp_path / "run.pt", {"x": torch.arange(3), "step": 7, "word": "a"})
    content = files.read_checkpoint(tmp_path / "run.pt")
    assert (content["x"].tolist(), content["step"], content["word"]) == ([0, 1, 2], 7, "a")
