"""Files that are either the old one or the new one, whatever happens in between."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch


def write_atomically(path: Path, content: dict[str, Any]) -> None:
    """Replace the file at `path` in one move: a kill at any moment leaves a whole file."""
    temporary = path.with_name(f".{path.name}.partial")
    with open(temporary, "wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    if hasattr(os, "O_DIRECTORY"):
        directory = os.open(path.parent, os.O_DIRECTORY)
        try:
            os.fsync(directory)  # the rename itself must reach the disk
        finally:
            os.close(directory)


def read(path: Path) -> dict[str, Any]:
    """Return what :func:`write_atomically` wrote; only tensors, numbers and text are loaded."""
    try:
        content: dict[str, Any] = torch.load(path, weights_only=True)
    except Exception as error:
        raise ValueError(
            f"checkpoint={str(path)!r} cannot be read ({error}); remove it to start anew"
        ) from error
    return content
