"""What an experiment is: a name, a question, and tasks that can run anywhere and in any order.

A task is a function of this package and plain options. Its key is a hash of both, of the code of
the experiment, and of the version of the numerics, so that a stored result is used again exactly as
long as it would come out the same.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from asgld_study.sweep.engine import NUMERICS


@dataclass(frozen=True)
class Size:
    """How much is measured.

    ================  ==============================================================
    field             meaning
    ================  ==============================================================
    study             data sets and steps of the simulation study
    sweep             the same for its sweeps over settings, spaces and starts
    chains, steps     chains and steps where exponents are fitted
    grid              steps of each point of a map over (alpha, beta), and of bounds
    minima            largest number of steps from a saddle to a minimum
    escapes           chains of each escape
    dims              dimensions of the saddle
    ================  ==============================================================
    """

    name: str
    study: tuple[int, int]
    sweep: tuple[int, int]
    chains: int
    steps: int
    grid: int
    minima: int
    escapes: int
    dims: tuple[int, ...]


SIZES = {
    # Only to see that everything runs: no verdict of this size means anything.
    "tiny": Size("tiny", (4, 200), (3, 100), 6, 200, 100, 400, 8, (4, 8, 16, 32)),
    "reduced": Size(
        "reduced", (32, 8_000), (16, 2_000), 48, 6_000, 3_000, 12_000, 100, (8, 32, 128, 512)
    ),
    "full": Size(
        "full", (100, 20_000), (100, 10_000), 100, 100_000, 30_000, 100_000, 200,
        (8, 32, 128, 512, 2048, 8192),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Task:
    """One piece of an experiment: `function(**options)` returns what JSON can hold."""

    function: Callable[..., Mapping[str, Any]]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        content = {
            "function": f"{self.function.__module__}.{self.function.__qualname__}",
            "options": dict(self.options),
            "code": _code(self.function.__module__),
            "numerics": NUMERICS,
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Experiment:
    """A question to the optimizers.

    Args:
        name: on the command line and in the report.
        title, question: for the report.
        tasks: the tasks at a size.
    """

    name: str
    title: str
    question: str
    tasks: Callable[[Size], list[Task]]


@lru_cache
def _code(module: str) -> str:
    """A hash of a module's code, comments and layout aside, and of the experiments it imports."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        if name and name.startswith("asgld_study.experiments.") and name in sys.modules
    }
    parts = [ast.dump(tree), *(_code(name) for name in sorted(imported - {__name__}))]
    return hashlib.sha256("".join(parts).encode()).hexdigest()
