"""The bare loop of the experiments: the same optimizer as everywhere, and statistics on top."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from asgld.methods import langevin
from asgld.oracle import Oracle
from asgld.run import run
from asgld_study.experiments import accumulator, minima
from asgld_study.experiments.chains import Chains, due_steps, mean, noisy, slope
from asgld_study.experiments.exponents import Waves

OPTIONS: dict[str, dict[str, Any]] = {
    "asgld": {"alpha": 1.0, "beta": 1.0, "sigma": 0.3, "delta": 0.1, "d_init": 2.0},
    "agld": {"beta": 0.5, "sigma": 0.3},
    "asg": {"alpha": 0.5},
    "sgld": {"sigma": 0.3},
}


def _start() -> torch.Tensor:
    return torch.linspace(0.5, 2.5, 30, dtype=torch.float64).view(3, 10)


@pytest.mark.parametrize("name", OPTIONS)
def test_chains_take_the_steps_of_the_loop_that_counts(name: str) -> None:
    chains = Chains(name, noisy(Waves()), _start(), seed=4, lr=0.1, **OPTIONS[name])
    for _ in range(20):
        chains.advance()
    counted = run(
        Oracle(Waves()), langevin(name, lr=0.1, **OPTIONS[name]), _start(), max_steps=20, seed=4
    )
    assert torch.equal(chains.x, counted.x)


def test_accumulator_is_what_the_next_step_divides_by() -> None:
    chains = Chains("asg", noisy(Waves()), _start(), lr=0.1, alpha=2.0, delta=0.1, d_init=3.0)
    expected = torch.full((3, 10), 3.0, dtype=torch.float64)
    for _ in range(5):
        gradient = chains.x.sin()
        torch.testing.assert_close(chains.accumulator, expected)
        before = chains.x.clone()
        chains.advance()
        torch.testing.assert_close(before - chains.x, 0.1 * gradient / expected)
        expected = expected + gradient.square() + 0.1


def test_masked_noise_reaches_only_what_the_mask_lets_through() -> None:
    mask = torch.zeros(10, dtype=torch.float64)
    mask[3:] = 1.0
    gradient = noisy(Waves(), 1.0, mask=mask)(_start(), 0)
    is_exact = (gradient == _start().sin()).all(0)
    assert is_exact.tolist() == [True] * 3 + [False] * 7


def test_slopes_cover_the_truth() -> None:
    """Null: slope -0.5 with 95 % intervals; of 200, fewer than 172 covers are 5 sigma away."""
    rng = np.random.default_rng(0)
    x = np.log(np.array(due_steps(1000)))
    covers = 0
    for _ in range(200):
        columns = np.exp(-0.5 * x)[:, None] * rng.chisquare(4, size=(len(x), 60))
        fit = slope(x, columns)
        covers += fit["low"] <= -0.5 <= fit["high"]
    assert covers >= 172


def test_due_steps_span_the_decades_and_end_at_the_last() -> None:
    steps = due_steps(5000, decades=1.0)
    assert steps[0] == 500
    assert steps[-1] == 5000
    assert steps == sorted(set(steps))


def test_mean_of_one_value_has_no_width() -> None:
    assert mean([2.0]) == {"value": 2.0, "low": 2.0, "high": 2.0}


def test_crossing_times_of_a_known_law() -> None:
    """|grad f|^2 = 10 / k, all chains arrived: eps is met at k = 10 / eps^2."""
    ks = np.array(due_steps(10_000, decades=4.0, per_decade=40))
    squares = np.repeat(10.0 / ks[:, None], 8, axis=1)
    rows = minima.crossing_times((1.0, 0.1), ks, squares, np.ones_like(squares))
    for eps, (time, *again) in zip((1.0, 0.1), rows, strict=True):
        assert abs(math.log(time * eps**2 / 10.0)) < 0.1
        assert set(again) == {time}
    nobody = minima.crossing_times((1.0,), ks, squares, np.zeros_like(squares))
    assert nobody[0][0] == math.inf


def test_samples_of_batches_are_their_sum() -> None:
    assert minima.samples_of(1000.0, 0.0) == 1000.0
    assert minima.samples_of(1000.0, 1.0) == pytest.approx(np.arange(1, 1001).sum(), rel=1e-2)


def test_first_term_of_the_bound_is_exact_for_one_plain_step() -> None:
    """f = |x|^2 / 2, lr = 1/2, k = 1: published I1 = (2/lr)(f_0 - f_1)/d, and E|grad|^2 = |x|^2.

    f_0 - f_1 = (3/8) |x|^2, so the ratio is d / 1.5: above 1 from d = 2 on.
    """
    for dim in (1, 2, 10):
        value = accumulator.measure_terms("plain descent", "bowl", dim, steps=1, replicas=4)
        ratio = value["smallest"][0] / value["published"]["I1"][0]
        assert ratio == pytest.approx(dim / 1.5)
        assert value["published"]["I2"] == value["published"]["I3"] == [0.0]
