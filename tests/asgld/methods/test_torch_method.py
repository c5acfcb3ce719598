"""The paper's family as methods of the comparison: where it arrives, and where it must not."""

from __future__ import annotations

from typing import Any

import pytest
from cell_cases import measured

from asgld.problems import problem
from asgld_study.cells import Cell

# name: options, and a step size for alpha = 0
PROBLEMS: dict[str, tuple[dict[str, Any], float]] = {
    "strict-saddle": ({"dim": 12, "num_negative": 2, "num_samples": 64, "noise": 0.1}, 0.1),
    "mixture": ({"dim": 5, "num_samples": 200}, 0.3),
    "factorization": ({"size": 4}, 0.03),
    "phase-retrieval": ({"dim": 4, "num_samples": 80}, 0.03),
    "orthogonal-tensor": ({"dim": 4}, 0.05),
    "deep-linear": ({}, 0.1),
    "octopus": ({"dim": 3}, 0.09),
    "digits": ({"hidden": 2, "num_samples": 60, "l2": 0.01}, 0.3),
}


def from_saddle(name: str, method: str, **options: Any) -> Cell:
    shape = PROBLEMS[name][0]
    saddles = problem(name, **shape).facts.saddles
    strict = next(i for i, saddle in enumerate(saddles) if saddle.is_strict)
    return Cell(name, method, shape, options, "saddle", strict, replicas=2, max_steps=1500,
                eps=0.05, gamma=0.05)  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("label", ["agld", "sgld", "asgld", "asgld-batch"])
def test_langevin_reaches_a_second_order_point_from_an_exact_saddle(name: str, label: str) -> None:
    lr = PROBLEMS[name][1]
    cell = from_saddle(name, label, lr=lr, sigma=0.01 if label == "agld" else 0.003)
    if label == "asgld":
        # With alpha = 1 a step is a distance.
        cell = from_saddle(name, "asgld", lr=min(5 * lr, 0.5), sigma=0.01, delta=1e-3)
    elif label == "asgld-batch":
        growth = (
            {"batch_size": 1, "batch_slope": 1.0} if "num_samples" in cell.problem_options else {}
        )
        cell = from_saddle(name, "asgld", lr=lr, sigma=0.01, alpha=0.0, beta=1.0, **growth)
    result = measured(cell)
    assert not result.error
    assert result.share("sosp") == 1.0


def test_asg_needs_samples_that_differ_at_the_saddle() -> None:
    """The samples of `strict-saddle` differ at 0; those of the others all have a gradient of 0."""
    asg = {"lr": 0.5, "delta": 1e-3, "batch_size": 16}
    assert measured(from_saddle("strict-saddle", "asg", **asg)).share("sosp") == 1.0
    for name in ("mixture", "phase-retrieval", "deep-linear"):
        stuck = measured(from_saddle(name, "asg", **asg), max_steps=200)
        assert stuck.ends["final_grad_norm"] == pytest.approx([0.0, 0.0], abs=1e-12)
        assert stuck.share("leave") == 0.0
