"""Tables, figures and checkpoints as files, each written in one move."""

from __future__ import annotations

import csv
import errno
import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

_FOLDER = "choose a folder that you may write to"
_REMEDIES = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room on the disk",
    errno.EACCES: _FOLDER,
    errno.EPERM: _FOLDER,
    errno.EROFS: _FOLDER,
    errno.ENOTDIR: "a part of the path is a file; choose another folder",
    errno.EEXIST: "a part of the path is a file; choose another folder",
    errno.EISDIR: "there is a folder of that name; choose another name",
}


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as comma-separated text."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_bytes(figure: Any, kind: str) -> bytes:
    """A figure as PNG, SVG or PDF, without a date, so that equal results give equal files."""
    content = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    figure.savefig(content, format=kind, dpi=150, metadata=metadata)
    return content.getvalue()


def format_number(value: Any) -> str:
    """Three digits; "never" for an infinite time."""
    if not isinstance(value, float):
        return str(value)
    if np.isinf(value):
        return "never"
    if value == round(value) and abs(value) < 1e6:
        return str(round(value))
    return f"{value:.3g}"


def write_bytes(path: Path, content: bytes) -> None:
    """Put `content` in place of the file at `path`, in one move.

    A kill at any moment leaves the old file or the new one, never half of one. Folders are made. A
    failure leaves nothing behind and is an OSError that says what to do.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise _explained(error, path) from error


def write_text(path: Path, text: str) -> None:
    """See :func:`write_bytes`."""
    write_bytes(path, text.encode())


def write_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Write tensors, numbers and text; see :func:`write_bytes`."""
    file = io.BytesIO()
    torch.save(content, file)
    write_bytes(path, file.getvalue())


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read what :func:`write_checkpoint` wrote: only tensors, numbers and text are loaded."""
    try:
        content: dict[str, Any] = torch.load(path, weights_only=True)
    except Exception as error:
        raise ValueError(
            f"checkpoint={str(path)!r} cannot be read ({error}); remove it to start anew"
        ) from error
    return content


def reserve_array(path: Path, shape: tuple[int, ...], kind: str = "float64") -> None:
    """Make a `.npy` file of nan of this shape.

    Its place on the disk is taken now. A disk that is too small then is an OSError here, and not a
    signal that kills the process where the array is written to.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                row = np.full(math.prod(shape[1:]), np.nan, kind)
                header = np.lib.format.header_data_from_array_1_0(row) | {"shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for _ in range(shape[0]):
                    file.write(row.data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _explained(error, path) from error


def _explained(error: OSError, path: Path) -> OSError:
    remedy = _REMEDIES.get(error.errno or 0, "check the folder")
    return OSError(error.errno, f"cannot write {str(path)!r}: {error.strerror}; {remedy}")


def _sync_folder(folder: Path) -> None:
    """Let a rename reach the disk, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
