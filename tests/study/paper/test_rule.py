"""The rule: special cases and rare features."""

from __future__ import annotations

from typing import Any

import numpy as np
from tiny_report import assert_flips, change

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

        change(o, "features", set_final)

    assert_flips(outcomes, ["S6"], bend)
