"""Powers of the accumulator, and the three terms of Theorem 1."""

from __future__ import annotations

import pytest
from tiny_report import assert_flips, change, point

from asgld_study.engine import Outcomes
from asgld_study.paper import bounds


def test_first_term_of_the_bound_is_exact_for_one_plain_step() -> None:
    """f = |x|^2 / 2, lr = 1/2, k = 1: published I1 = (2/lr)(f_0 - f_1)/d, and E|grad|^2 = |x|^2.

    f_0 - f_1 = (3/8) |x|^2, so the ratio is d / 1.5: above 1 from d = 2 on.
    """
    for dim in (1, 2, 10):
        value = bounds.measure_terms("plain descent", "bowl", dim, steps=1, replicas=4)
        ratio = value["smallest"][0] / value["published"]["I1"][0]
        assert ratio == pytest.approx(dim / 1.5)
        assert value["published"]["I2"] == value["published"]["I3"] == [0.0]


def test_growth_of_a_term_is_that_of_its_logarithm() -> None:
    value = {"k": [1, 10, 100, 1000], "corrected": {"I2": [1.0, 2 / 10**0.5, 3 / 10, 4 / 10**1.5]}}
    assert bounds.growth(value, "I2") == pytest.approx(4 / 3)


def test_numbers_decide_on_the_bound(outcomes: Outcomes) -> None:
    def bend(o: Outcomes, good: bool) -> None:
        change(o, "terms", lambda v: v.update(smallest=[1e-6 if good else 1e6] * len(v["k"])))

    assert_flips(outcomes, ["T1", "T1a", "T1b"], bend)


def test_without_gradients_the_accumulator_grows_by_delta_alone() -> None:
    """With delta = 1e6 the gradients do not count: D_k = 1e6 k but for the start, D^-1 ~ k^-1."""
    value = bounds.measure_powers("ASG (1)", 1e6, steps=400, replicas=2)
    for phi in bounds.POWERS:
        assert value["powers"][str(phi)]["value"] == pytest.approx(-phi, abs=0.05)


def test_numbers_decide_on_sums_of_powers(outcomes: Outcomes) -> None:
    def bend(o: Outcomes, good: bool) -> None:
        def law(phi: str) -> dict[str, float]:
            return point(1 - float(phi) if good else 0.5)

        change(o, "accumulator", lambda v: v.update(sums={phi: law(phi) for phi in v["sums"]}))

    assert_flips(outcomes, ["L2"], bend)
