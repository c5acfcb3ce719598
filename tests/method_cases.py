"""How the tests run a method, the constants they tune it by, and what every one must satisfy."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from asgld.methods import Method
from asgld.oracle import Oracle
from asgld.problems import Problem
from asgld.run import Run, run
from asgld.run.history import Record

FAST = Record(per_decade=1, grad_norms=False)
CONSTANTS: dict[str, Any] = {
    "smoothness": 11.0,
    "hessian_lipschitz": 12.0,
    "eps": 0.03,
    "gamma": 0.6,
    "dim": 16,
    "gap": 0.25,
}


def go(
    f: Problem, method: Method, x0: Tensor, steps: int, *, seed: int = 0, **options: Any
) -> tuple[Run, Oracle]:
    oracle = Oracle(f)
    options.setdefault("record", FAST)
    return run(oracle, method, x0, max_steps=steps, seed=seed, **options), oracle


def saddle_of(f: Problem, replicas: int) -> Tensor:
    strict = next(s for s in f.facts.saddles if s.is_strict)
    return strict.point.expand(replicas, -1).clone()


def assert_second_order(f: Problem, result: Run, eps: float, gamma: float) -> None:
    lowest = torch.linalg.eigvalsh(f.hessian(result.x))[..., 0]
    assert float(result.grad_norms.max()) <= eps
    assert float(lowest.min()) >= -gamma


def assert_can_be_tuned(name: str, kind: Any) -> None:
    """Both ways to choose its options give a method: theory, and either end of every range."""
    method = kind.theory(**CONSTANTS)
    assert isinstance(method, Method)
    assert method.name == name
    assert 1 <= len(kind.ranges) <= 4
    assert set(kind.ranges) <= {f.name for f in dataclasses.fields(kind)}
    for end in (0, 1):
        kind(**{option: bounds[end] for option, bounds in kind.ranges.items()})
    for note in kind.unverified:
        assert ": " in note
