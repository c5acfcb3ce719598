"""Update rules by name. The files are the row groups of the paper's Table 1."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from asgld.methods.base import Method, State, batch_indices, normals, replica_seed
from asgld.methods.rivals import comparators, first_order, hessian_vector, second_order
from asgld.methods.rivals.comparators import LBFGS
from asgld.methods.torch import LANGEVIN, TorchMethod, langevin

METHODS: dict[str, Callable[..., Method]] = {
    **{name: partial(langevin, name) for name in LANGEVIN},
    **first_order.METHODS,
    **hessian_vector.METHODS,
    **second_order.METHODS,
    **comparators.METHODS,
}


def method(name: str, **options: Any) -> Method:
    """Make a method by its name.

    >>> method("agld", lr=0.1).name
    'agld'
    """
    if name not in METHODS:
        raise ValueError(f"method={name!r}: known are {', '.join(METHODS)}")
    return METHODS[name](**options)


def method_names() -> list[str]:
    """The names that :func:`method` knows."""
    return list(METHODS)


__all__ = [
    "LBFGS",
    "METHODS",
    "Method",
    "State",
    "TorchMethod",
    "batch_indices",
    "langevin",
    "method",
    "method_names",
    "normals",
    "replica_seed",
]
