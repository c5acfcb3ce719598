"""Tables and figures as text and bytes, written atomically."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as comma-separated text."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as a Markdown table, numbers to three digits."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(format_number(row[n]) for n in names) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def format_number(value: Any) -> str:
    """Three digits; "never" for an infinite time."""
    if not isinstance(value, float):
        return str(value)
    if np.isinf(value):
        return "never"
    if value == round(value) and abs(value) < 1e6:
        return str(round(value))
    return f"{value:.3g}"


def write_text(path: Path, text: str) -> None:
    """Write a file in one piece: a reader, or an interrupted run, never leaves half of one."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """See :func:`write_text`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:  # a full disk leaves no half of a file either
        temporary.unlink(missing_ok=True)


def as_bytes(figure: Any, kind: str) -> bytes:
    """A figure as PNG, SVG or PDF, without a date, so that equal results give equal files."""
    content = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    figure.savefig(content, format=kind, dpi=150, metadata=metadata)
    return content.getvalue()


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
