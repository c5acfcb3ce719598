"""Functions to minimize, with the facts known about them.

>>> from asgld.problems import problem, problem_names
>>> octopus = problem("octopus", dim=3)
>>> octopus.value(octopus.start(replicas=5)).shape
torch.Size([5])
>>> [round(saddle.lambda_min, 3) for saddle in octopus.facts.saddles]
[-2.0, -2.0, -2.0]
>>> "rosenbrock" in problem_names()
True
"""

from __future__ import annotations

import dataclasses
from collections import UserDict
from collections.abc import MutableMapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from asgld.problems.base import Facts, FiniteSum, Problem, Saddle

if TYPE_CHECKING:  # at run time a problem's module is loaded when somebody asks for the problem
    from asgld.problems.analytic import (
        MonkeySaddle,
        Octopus,
        Rosenbrock,
        StrictSaddle,
        WorstCaseChain,
    )
    from asgld.problems.learning import Digits, Mixture, RobustRegression, Variance
    from asgld.problems.matrix import (
        DeepLinear,
        Factorization,
        OrthogonalTensor,
        PhaseRetrieval,
        Sensing,
    )

__all__ = [
    "PROBLEMS",
    "DeepLinear",
    "Digits",
    "Factorization",
    "Facts",
    "FiniteSum",
    "Mixture",
    "MonkeySaddle",
    "Octopus",
    "OrthogonalTensor",
    "PhaseRetrieval",
    "Problem",
    "RobustRegression",
    "Rosenbrock",
    "Saddle",
    "Sensing",
    "StrictSaddle",
    "Variance",
    "WorstCaseChain",
    "problem",
    "problem_names",
    "problem_options",
]

# name -> the module and the class
_OURS = {
    "strict-saddle": "analytic.StrictSaddle",
    "octopus": "analytic.Octopus",
    "factorization": "matrix.Factorization",
    "sensing": "matrix.Sensing",
    "phase-retrieval": "matrix.PhaseRetrieval",
    "orthogonal-tensor": "matrix.OrthogonalTensor",
    "deep-linear": "matrix.DeepLinear",
    "digits": "learning.Digits",
    "robust-regression": "learning.RobustRegression",
    "mixture": "learning.Mixture",
    "variance": "learning.Variance",
    "rosenbrock": "analytic.Rosenbrock",
    "worst-case-chain": "analytic.WorstCaseChain",
    "monkey-saddle": "analytic.MonkeySaddle",
}


class _Registry(UserDict[str, Any]):
    """Classes by name; a place such as "analytic.Octopus" is loaded when its name is read."""

    def __getitem__(self, name: str) -> Any:
        kind = super().__getitem__(name)
        return _load(kind) if isinstance(kind, str) else kind


def _load(place: str) -> Any:
    module, title = place.split(".")
    return vars(import_module(f"asgld.problems.{module}"))[title]


#: The classes by name. ``PROBLEMS["mine"] = Mine`` makes a problem known, also to the command line.
PROBLEMS: MutableMapping[str, type[Problem]] = _Registry(_OURS)


def problem(name: str, **options: Any) -> Problem:
    """The problem of that name; options as listed by :func:`problem_options`."""
    known = problem_options(name)
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ValueError(
            f"unknown option {unknown[0]!r} of problem {name!r}: it has {', '.join(known)}"
        )
    return PROBLEMS[name](**options)


def problem_names() -> tuple[str, ...]:
    """All problem names, as on the command line."""
    return tuple(PROBLEMS)


def problem_options(name: str) -> dict[str, Any]:
    """Options of a problem with their defaults.

    >>> problem_options("monkey-saddle")
    {'dim': 2, 'confinement': 1.0}
    """
    if name not in PROBLEMS:
        raise ValueError(f"unknown problem {name!r}: known are {', '.join(PROBLEMS)}")
    fields = dataclasses.fields(PROBLEMS[name])  # type: ignore[arg-type]  # a dataclass
    return {field.name: field.default for field in fields}


def __getattr__(title: str) -> Any:
    for place in _OURS.values():
        if place.endswith(f".{title}"):
            return _load(place)
    raise AttributeError(f"module {__name__!r} has no attribute {title!r}")
