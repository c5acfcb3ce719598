"""Update rules by name. The files of `rivals` are the row groups of the paper's Table 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from importlib import import_module
from typing import Any

from asgld.methods.base import (
    Adjustable,
    FitsItself,
    KnowsItsNoise,
    KnowsProx,
    Method,
    SeededState,
    State,
    Surroundings,
    batch_indices,
    normals,
    replica_seed,
)
from asgld.methods.lbfgs import LBFGS
from asgld.methods.proximal import FISTA, ProxGD, ProximalDescent
from asgld.methods.torch import LANGEVIN, TorchMethod, check_names, comparator, langevin


def _late(module: str, kind: str, **options: Any) -> Method:
    """Make a method whose module is imported now, so that `import asgld.methods` stays small."""
    return _made(vars(import_module(f"asgld.methods.{module}"))[kind], **options)


def _made(kind: Any, **options: Any) -> Method:
    """Make a method whose options are the fields of a dataclass."""
    check_names(kind.name, options, [field.name for field in fields(kind) if field.init])
    made: Method = kind(**options)
    return made


# name -> what makes the method from its options; add entries at will
METHODS: dict[str, Callable[..., Method]] = {
    **{name: partial(langevin, name) for name in LANGEVIN},
    "asgld-printed": partial(_late, "printed", "PrintedASGLD"),
    "noisy-sgd": partial(_late, "rivals.first_order", "NoisySGD"),
    "perturbed-gd": partial(_late, "rivals.first_order", "PerturbedGD"),
    "saddle-ngd": partial(_late, "rivals.first_order", "SaddleNGD"),
    "neon": partial(_late, "rivals.neon", "Neon"),
    "fast-cubic": partial(_late, "rivals.hessian_vector", "FastCubic"),
    "carmon-accelerated": partial(_late, "rivals.hessian_vector", "CarmonAccelerated"),
    "carmon-cubic": partial(_late, "rivals.hessian_vector", "CarmonCubic"),
    "natasha2": partial(_late, "rivals.natasha", "Natasha2"),
    "cubic-newton": partial(_late, "rivals.second_order", "CubicNewton"),
    "trace": partial(_late, "rivals.second_order", "Trace"),
    "gd": partial(comparator, "gd"),
    "sgd": partial(comparator, "sgd"),
    "psgld": partial(_late, "rivals.comparators", "PreconditionedSGLD"),
    "adagrad": partial(comparator, "adagrad"),
    "adam": partial(comparator, "adam"),
    "perturbed-agd": partial(_late, "rivals.comparators", "PerturbedAGD"),
    "lbfgs": partial(_made, LBFGS),
    "prox-gd": partial(_made, ProxGD),
    "fista": partial(_made, FISTA),
    "trust-krylov": partial(_late, "rivals.scipy_trust", "TrustKrylov"),
    "trust-exact": partial(_late, "rivals.scipy_trust", "TrustExact"),
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
    "FISTA",
    "LBFGS",
    "METHODS",
    "Adjustable",
    "FitsItself",
    "KnowsItsNoise",
    "KnowsProx",
    "Method",
    "ProxGD",
    "ProximalDescent",
    "SeededState",
    "State",
    "Surroundings",
    "TorchMethod",
    "batch_indices",
    "comparator",
    "langevin",
    "method",
    "method_names",
    "normals",
    "replica_seed",
]
