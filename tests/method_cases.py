"""How the tests run a method, the constants they tune it by, and what every one must satisfy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asgld.methods import Method
from asgld.methods import method as make_method
from asgld.oracle import Oracle
from asgld.problems import Problem
from asgld.run import Run, run
from asgld.run.history import Record
from asgld_study.settings import SETTINGS, Proved

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


def method_by_theory(name: str, **constants: Any) -> Any:
    """A rival with the options that its theorem asks for."""
    return make_method(name, **SETTINGS[name].theory(Proved(**constants)))
