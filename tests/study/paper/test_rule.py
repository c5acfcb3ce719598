"""The rule: special cases and rare features."""

from __future__ import annotations

from typing import Any

import numpy as np
from tiny_report import assert_flips, change, point, verdicts

from asgld_study.engine import Outcomes
from asgld_study.paper import rule


def test_special_cases_are_the_methods_they_should_be() -> None:
    value = rule.measure_cases()
    assert value["sgld"] < 1e-9
    assert value["asg"] == value["shards"]["steps"] == value["shards"]["noise"] == 0.0
    assert value["sgd"] < 1e-12


def test_numbers_decide_on_special_cases(outcomes: Outcomes) -> None:
    def bend(o: Outcomes, good: bool) -> None:
        change(o, "identities", lambda v: v.update(sgld=0.0 if good else 0.1))

    assert_flips(outcomes, ["S1"], bend)


def test_numbers_decide_on_rare_features(outcomes: Outcomes) -> None:
    def bend(o: Outcomes, good: bool) -> None:
        def set_final(v: dict[str, Any]) -> None:
            is_adaptive = v["label"].startswith("AS")
            noise = 1e-3 * np.arange(len(v["final"]))
            v["final"] = ((1.0 if is_adaptive is good else 2.0) + noise).tolist()
            v["step_ratios"] = [3.0] * len(v["final"])

        change(o, "features", set_final)

    assert_flips(outcomes, ["S6"], bend)
    bend(outcomes, True)
    change(outcomes, "features", lambda v: v.update(step_ratios=[1.0] * len(v["final"])))
    assert verdicts(outcomes, ["S6"]) == {"refuted"}


def test_rare_features_have_larger_steps_only_where_steps_adapt() -> None:
    for label, is_adaptive in (("ASG (1)", True), ("SGD", False)):
        found = rule.measure_features(label, 0.3, True, steps=30, replicas=2)
        assert (min(found["step_ratios"]) > rule.LARGER) is is_adaptive
        assert is_adaptive or found["step_ratios"] == [1.0, 1.0]


def test_numbers_decide_on_the_law_of_one_step(outcomes: Outcomes) -> None:
    def bend(o: Outcomes, good: bool) -> None:
        for value in o["identities"].select(matched="sigma", steps=1):
            value["distance"] = point(0.0, 0.02) if good else point(0.2, 0.3)

    assert_flips(outcomes, ["S3"], bend, ["holds with correction"])
    for value in outcomes["identities"].select(matched="sigma", steps=1):
        value["distance"] = point(0.0, 0.1)  # too few chains to tell
    assert verdicts(outcomes, ["S3"]) == {"not supported"}


def test_the_measured_law_of_one_step_tells_matched_noise_from_other_noise() -> None:
    same, other = (
        rule.measure_law(matched, replicas=4000, steps=1)["distance"]
        for matched in ("sigma", "nothing")
    )
    assert same["high"] < rule.SAME_LAW < other["low"]


def _bend_temperature(o: Outcomes, good: bool) -> None:
    def law(v: dict[str, Any]) -> None:
        sigma = 1.0 if good else v.get("sigma", 0.1)
        v["tail_errors"] = (sigma**2 * np.linspace(1.0, 1e3, 20)).tolist()

    change(o, "temperature", law)


def test_sigma_decides_on_the_temperature(outcomes: Outcomes) -> None:
    assert_flips(outcomes, ["S4"], _bend_temperature, ["holds with correction"])


def test_the_start_of_d_does_not_decide_on_the_temperature(outcomes: Outcomes) -> None:
    """From 1e-8 ASG, which has no noise, goes off as well: that is no matter of temperature."""
    _bend_temperature(outcomes, True)
    change(
        outcomes, "starts", lambda v: v.update(final=[1e26 if v["d_init"] == 1e-8 else 1.0] * 20)
    )
    assert verdicts(outcomes, ["S4"]) == {"holds with correction"}
