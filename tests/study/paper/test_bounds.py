"""Powers of the accumulator, and the three terms of Theorem 1."""

from __future__ import annotations

import numpy as np
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


def test_exponents_and_growth_of_terms_are_those_of_their_means() -> None:
    """The terms of the whole sample, fitted again by hand; intervals hold the numbers."""
    value = bounds.measure_terms("ASGLD (1, 1)", "waves", 3, steps=300, replicas=20)
    k = np.array(value["k"], dtype=float)
    is_late = k >= 30
    for name in bounds.TERMS:
        k_late, term = k[is_late], np.array(value["corrected"][name])[is_late]
        exponent, growth = value["exponents"][name], value["growth"][name]
        by_hand = -np.polyfit(np.log(k_late), np.log(term), 1)[0]
        assert exponent["value"] == pytest.approx(by_hand)
        grown = term[-1] / term[0] * (k_late[-1] / k_late[0]) ** 0.5
        assert growth["value"] == pytest.approx(grown)
        for number in (exponent, growth):
            assert number["low"] < number["value"] < number["high"]
    published = sum(np.array(value["published"][name]) for name in bounds.TERMS)
    worst = value["worst"]["published"]
    assert worst["value"] == pytest.approx(np.max(np.array(value["smallest"]) / published))
    assert worst["low"] <= worst["value"] <= worst["high"]


def test_numbers_decide_on_the_bound(outcomes: Outcomes) -> None:
    def bend(o: Outcomes, good: bool) -> None:
        worst = dict.fromkeys(("published", "corrected"), point(0.5 if good else 2.0))
        change(o, "terms", lambda v: v.update(worst=worst))

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
