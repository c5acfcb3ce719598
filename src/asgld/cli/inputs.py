"""What users type, read and checked before anything is run: functions, starts, options, files."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_FIGURES = (".png", ".svg", ".pdf")
_NUMBERS = {"nan", "inf", "-inf", "+inf", "infinity", "-infinity"}


def key_value(text: str) -> tuple[str, Any]:
    """Read an option as it is typed; a value that is no Python literal is text.

    >>> key_value("lr=0.1"), key_value("loss=cauchy"), key_value("beta=inf")
    (('lr', 0.1), ('loss', 'cauchy'), ('beta', inf))
    """
    key, sign, value = text.partition("=")
    key = key.strip()
    if not sign or not key or not value.strip():
        raise ValueError(f"option {text!r}: need key=value, for example lr=0.1")
    if value.strip().lower() in _NUMBERS:
        return key, float(value)
    try:
        return key, ast.literal_eval(value.strip())
    except (ValueError, SyntaxError):
        return key, value


def check_numbers(options: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    """Refuse text where an option is a number. `types` has annotations, or values for defaults."""
    for name, value in options.items():
        kind = types.get(name)
        written = kind if isinstance(kind, str) else type(kind).__name__
        is_number = any(word in written for word in ("int", "float"))
        if isinstance(value, str) and is_number and "str" not in written:
            raise ValueError(f"{name}={value!r}: need a number")


def read_object(text: str, argument: str) -> Any:
    """What a Python file calls by a name, `file.py:name`."""
    place, sign, name = text.rpartition(":")
    if not sign or not name or not place:
        raise ValueError(f"{argument}={text!r}: need file.py:name")
    path = Path(place)
    if not path.is_file():
        raise ValueError(f"{argument}={text!r}: there is no file {place!r}")
    spec = importlib.util.spec_from_file_location(f"asgld_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{argument}={text!r}: {place!r} is no Python file, which ends in .py")
    module = sys.modules.get(spec.name)
    if module is None or getattr(module, "__file__", None) != str(path):
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look theirs up
        sys.path.insert(0, str(path.parent.resolve()))  # its own imports
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[spec.name]
            raise ValueError(
                f"{argument}={text!r}: {place} raised {type(error).__name__}: {error}"
            ) from error
        finally:
            sys.path.pop(0)
    if name not in vars(module):
        known = [key for key in vars(module) if not key.startswith("_")]
        raise ValueError(
            f"{argument}={text!r}: {place} has no {name!r}; it has {', '.join(known) or 'nothing'}"
        )
    return vars(module)[name]


def read_function(text: str, argument: str = "--fun") -> Any:
    """A function, or a problem, of a Python file."""
    found = read_object(text, argument)
    if not callable(found) and not hasattr(found, "value"):
        raise ValueError(f"{argument}={text!r}: {found!r} is no function")
    return found


def read_start(text: str) -> Any:
    """A start: numbers with commas between, a .npy file, or file.py:x0.

    >>> read_start("1, -2e3")
    array([ 1.e+00, -2.e+03])
    """
    if text.endswith(".npy"):
        try:
            return np.load(text, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ValueError(f"--x0={text!r} cannot be read: {error}") from error
    try:
        return np.array([float(part) for part in text.strip("[]() ").split(",")])
    except ValueError as error:
        if ":" in text:
            return read_object(text, "--x0")
        raise ValueError(
            f"--x0={text!r}: need numbers with commas between, a .npy file, or file.py:x0"
        ) from error


def read_bounds(text: str | None) -> Any:
    """Bounds as pairs of Python: "(0, None), (-1, 1)"."""
    if text is None:
        return None
    try:
        found = ast.literal_eval(f"[{text}]")
        pairs = found[0] if len(found) == 1 and not _is_pair(found[0]) else found
        if not all(_is_pair(pair) for pair in pairs):
            raise ValueError("no pairs")
    except (TypeError, ValueError, SyntaxError) as error:
        raise ValueError(f'--bounds={text!r}: need pairs, such as "(0, None), (-1, 1)"') from error
    return pairs


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) == 2
        and all(v is None or isinstance(v, int | float) for v in value)
    )


def check_figure(path: Path | None) -> None:
    """Refuse a figure that could not be written later."""
    if path is None:
        return
    if path.suffix.lower() not in _FIGURES:
        raise ValueError(f"--figure={str(path)!r}: need a name that ends in .png, .svg or .pdf")
    check_file(path, "--figure")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ValueError(
            "--figure needs matplotlib: pip install 'asgld[plot]', or '.[plot]' in a clone"
        ) from error


def check_file(path: Path | None, argument: str) -> None:
    """Refuse a file whose folder is not there or may not be written to."""
    if path is None:
        return
    if path.is_dir():
        raise ValueError(f"{argument}={str(path)!r}: there is a folder of that name")
    if not path.parent.is_dir():
        raise ValueError(f"{argument}={str(path)!r}: there is no folder {str(path.parent)!r}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{argument}={str(path)!r}: you may not write there")


def check_folder(path: Path | None, argument: str) -> None:
    """Refuse a folder that could not be made or written to."""
    if path is None:
        return
    known = next((p for p in (path, *path.absolute().parents) if p.exists()), None)
    if known is not None and not known.is_dir():
        raise ValueError(f"{argument}={str(path)!r}: {str(known)!r} is a file, not a folder")
    if known is not None and not os.access(known, os.W_OK):
        raise ValueError(f"{argument}={str(path)!r}: you may not write to {str(known)!r}")
