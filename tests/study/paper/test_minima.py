"""From a saddle to a minimum: crossing times, samples, and the claims on them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tiny_report import assert_flips, change

from asgld_study.chains import due_steps
from asgld_study.engine import Outcomes
from asgld_study.paper import minima


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


def bend_minima(o: Outcomes, good: bool) -> None:
    """Steps like log d / eps, or like d^3 / eps^7."""

    def law(v: dict[str, Any]) -> None:
        for eps in minima.accuracies(v["label"]):
            steps = math.log(v["dim"]) * 10 / eps if good else v["dim"] ** 3.0 / eps**7
            v["steps"][str(eps)] = steps
            v["bootstraps"][str(eps)] = [steps] * 200

    change(o, "minima", law)


def test_numbers_decide_on_steps_to_a_minimum(outcomes: Outcomes) -> None:
    assert_flips(outcomes, ["E8", "B2"], bend_minima)
