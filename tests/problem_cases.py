"""Instances of every problem, each at least once, with the options that change its formula."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from asgld.problems import Facts, Problem, problem

CASES: dict[str, tuple[str, dict[str, object]]] = {
    "strict-saddle": ("strict-saddle", {"dim": 5}),
    "strict-saddle-rotated": (
        "strict-saddle",
        {
            "dim": 6,
            "num_negative": 2,
            "rotated": True,
            "gamma": 0.5,
            "curvature": 3.0,
            "condition": 10.0,
            "confinement": 2.0,
        },
    ),
    "strict-saddle-samples": ("strict-saddle", {"dim": 4, "num_samples": 30, "noise": 0.3}),
    "strict-saddle-stable-noise": (
        "strict-saddle",
        {"dim": 5, "num_negative": 2, "num_samples": 20, "noise_space": "stable", "rotated": True},
    ),
    "octopus": ("octopus", {"dim": 4}),
    "octopus-one": ("octopus", {"dim": 1, "gamma": 0.7}),
    "octopus-eps": ("octopus", {"dim": 3, "eps": 0.04, "tau": 1.0, "curvature": 2.0}),
    "factorization": ("factorization", {"size": 5, "rank": 2}),
    "factorization-exact": (
        "factorization",
        {"size": 4, "rank": 3, "spectrum": [2.0, 1.0], "seed": 1},
    ),
    "sensing": ("sensing", {"size": 4, "rank": 2, "num_samples": 60}),
    "phase-retrieval": ("phase-retrieval", {"dim": 5, "num_samples": 100}),
    "phase-retrieval-few": ("phase-retrieval", {"dim": 8, "num_samples": 50, "seed": 3}),
    "orthogonal-tensor": ("orthogonal-tensor", {"dim": 4}),
    "orthogonal-tensor-axes": ("orthogonal-tensor", {"dim": 3, "rotated": False, "penalty": 4.0}),
    "deep-linear": ("deep-linear", {"inputs": 4, "outputs": 3, "hidden": 2, "num_samples": 30}),
    "deep-linear-wide": ("deep-linear", {"inputs": 3, "outputs": 2, "hidden": 4, "noise": 1.0}),
    "deep-linear-three": ("deep-linear", {"inputs": 3, "outputs": 2, "hidden": 2, "depth": 3}),
    "digits": ("digits", {"hidden": 2, "num_samples": 150}),
    "robust-regression": ("robust-regression", {"dim": 4, "num_samples": 80}),
    "robust-regression-fraction": (
        "robust-regression",
        {"dim": 3, "num_samples": 60, "loss": "geman-mcclure", "outliers": 0.0, "noise": 0.0},
    ),
    "mixture": ("mixture", {"dim": 5, "num_samples": 300}),
    "variance": ("variance", {"num_samples": 500}),
    "variance-x": ("variance", {"num_samples": 500, "space": "x"}),
    "rosenbrock-2": ("rosenbrock", {"dim": 2}),
    "rosenbrock": ("rosenbrock", {"dim": 5}),
    "rosenbrock-long": ("rosenbrock", {"dim": 12}),
    "worst-case-chain": ("worst-case-chain", {"eps": 0.5}),
    "worst-case-chain-rotated": (
        "worst-case-chain",
        {"eps": 0.25, "length": 6, "rotated": True},
    ),
    "monkey-saddle": ("monkey-saddle", {}),
    "monkey-saddle-wide": ("monkey-saddle", {"dim": 4, "confinement": 2.0}),
}


@cache
def build(case: str) -> Problem:
    name, options = CASES[case]
    return problem(name, **options)


def facts_of(case: str) -> Facts:
    return build(case).facts


def points(case: str, count: int, seed: int = 0) -> Tensor:
    """Points at random in the stated region, or, without one, at many scales around 0."""
    chosen, rng = build(case), np.random.default_rng(seed)
    facts = chosen.facts
    direction = rng.standard_normal((count, chosen.dim))
    if case == "variance-x":
        return torch.from_numpy(np.exp(direction))
    if facts.norm == math.inf:
        box = rng.uniform(-1.0, 1.0, (count, chosen.dim)) * facts.radius
        corners = rng.random(count) < 0.2
        box[corners] = np.sign(box[corners]) * facts.radius
        return torch.from_numpy(box)
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    # A third of the directions are sparse: extremes often lie along few coordinates.
    sparse = rng.random(count) < 0.3
    direction[sparse] *= rng.random((int(sparse.sum()), chosen.dim)) < 0.4
    radii = rng.choice([1.0, 0.9, 0.5, 0.1], size=(count, 1))
    scale = facts.radius if facts.radius < math.inf else 10.0 ** rng.uniform(-1.5, 1.0, (count, 1))
    return torch.from_numpy(direction * radii * scale)


FINITE_SUMS = [case for case in CASES if build(case).num_samples is not None]
WITH_SADDLES = [case for case in CASES if facts_of(case).saddles]
WITH_MINIMUM = [case for case in CASES if facts_of(case).minimum is not None]
WITH_CONSTANTS = [case for case in CASES if facts_of(case).smoothness is not None]


def single_gradients(chosen: Problem, x: Tensor) -> Tensor:
    """(n, d): the gradient of every term at one point."""
    assert chosen.num_samples is not None
    everyone = torch.arange(chosen.num_samples).unsqueeze(-1)
    return chosen.sample_grad(x.expand(chosen.num_samples, -1), everyone)
