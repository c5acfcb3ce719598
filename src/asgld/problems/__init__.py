"""Functions to minimize, with what is known about them.

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
from typing import Any

from asgld.problems.analytic import MonkeySaddle, StrictSaddle
from asgld.problems.base import Facts, FiniteSum, Problem, Saddle
from asgld.problems.learning import Digits, Mixture, RobustRegression, Variance
from asgld.problems.matrix import DeepLinear, Factorization, OrthogonalTensor
from asgld.problems.recovery import PhaseRetrieval, Sensing
from asgld.problems.sequential import Octopus, Rosenbrock, WorstCaseChain

__all__ = [
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

_PROBLEMS: dict[str, Any] = {
    kind.name: kind
    for kind in (
        StrictSaddle,
        Octopus,
        Factorization,
        Sensing,
        PhaseRetrieval,
        OrthogonalTensor,
        DeepLinear,
        Digits,
        RobustRegression,
        Mixture,
        Variance,
        Rosenbrock,
        WorstCaseChain,
        MonkeySaddle,
    )
}


def problem(name: str, **options: Any) -> Problem:
    """The problem of that name; options as listed by :func:`problem_options`."""
    known = problem_options(name)
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ValueError(
            f"unknown option {unknown[0]!r} of problem {name!r}: it has {', '.join(known)}"
        )
    built: Problem = _PROBLEMS[name](**options)
    return built


def problem_names() -> tuple[str, ...]:
    """All problem names, as on the command line."""
    return tuple(_PROBLEMS)


def problem_options(name: str) -> dict[str, Any]:
    """Options of a problem with their defaults.

    >>> problem_options("monkey-saddle")
    {'dim': 2, 'confinement': 1.0}
    """
    if name not in _PROBLEMS:
        raise ValueError(f"unknown problem {name!r}: known are {', '.join(_PROBLEMS)}")
    return {field.name: field.default for field in dataclasses.fields(_PROBLEMS[name])}
