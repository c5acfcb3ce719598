"""Checks at the boundary of the theory package, and the array types it speaks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asgld.arguments import require

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Number = float | FloatArray


def floats(
    name: str, value: ArrayLike, *, low: float = 0.0, strict: bool = False, remedy: str = ""
) -> FloatArray:
    """`value` as float64, or a ValueError naming the argument if an entry is below `low` or NaN.

    Args:
        name: the argument as the user wrote it.
        value: a number or an array of numbers.
        low: smallest allowed entry; -inf for none.
        strict: whether `low` itself is forbidden.
        remedy: what to do instead, appended to the message.
    """
    array = np.asarray(value, dtype=np.float64)
    allowed = array > low if strict else array >= low
    if not np.all(allowed):
        need = f"{name} {'>' if strict else '>='} {low:g}{'; ' if remedy else ''}{remedy}"
        require(False, name, float(array[~allowed].flat[0]), need)
    return array


def choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """A ValueError that lists the allowed values, unless `value` is one of them."""
    require(value in allowed, name, value, f"one of {', '.join(map(repr, allowed))}")


def unwrap(array: NDArray[Any]) -> Any:
    """A Python scalar for a zero-dimensional array, the array itself otherwise."""
    return array.item() if array.ndim == 0 else array


def number(array: ArrayLike) -> Number:
    """`unwrap` for floats."""
    value: Number = unwrap(np.asarray(array, dtype=np.float64))
    return value
