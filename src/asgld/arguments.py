"""Checks of arguments.  Every message names the argument, its value and the need."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["require", "require_at_least", "require_at_least_zero", "require_positive"]


def require(holds: bool, argument: str, value: object, need: str) -> None:
    """Raise a ValueError unless the condition holds."""
    if not holds:
        raise ValueError(f"{argument}={value!r}: need {need}")


def require_positive(options: Any, *names: str) -> None:
    """Reject attributes of ``options`` that are not positive finite numbers."""
    for name in names:
        value = getattr(options, name)
        require(0.0 < value < math.inf, name, value, "a positive finite number")


def require_at_least_zero(options: Any, *names: str) -> None:
    """Reject attributes of ``options`` that are negative, infinite or not a number."""
    for name in names:
        value = getattr(options, name)
        require(0.0 <= value < math.inf, name, value, "a finite number of at least 0")


def require_at_least(options: Any, **bounds: float) -> None:
    """Reject attributes below their bounds, as in ``require_at_least(self, dim=1)``."""
    for name, least in bounds.items():
        value = getattr(options, name)
        require(value >= least, name, value, f"{name} >= {least}")
