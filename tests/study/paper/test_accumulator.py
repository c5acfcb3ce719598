"""Powers of the accumulator."""

from __future__ import annotations

import pytest
from tiny_report import assert_flips, change, point

from asgld_study.engine import Outcomes
from asgld_study.paper import accumulator


def test_without_gradients_the_accumulator_grows_by_delta_alone() -> None:
    """With delta = 1e6 the gradients do not count: D_k = 1e6 k but for the start, D^-1 ~ k^-1."""
    value = accumulator.measure_powers("ASG (1)", 1e6, steps=400, replicas=2)
    for phi in accumulator.POWERS:
        assert value["powers"][str(phi)]["value"] == pytest.approx(-phi, abs=0.05)


def test_numbers_decide_on_sums_of_powers(outcomes: Outcomes) -> None:
    def bend(o: Outcomes, good: bool) -> None:
        def law(phi: str) -> dict[str, float]:
            return point(1 - float(phi) if good else 0.5)

        change(o, "accumulator", lambda v: v.update(sums={phi: law(phi) for phi in v["sums"]}))

    assert_flips(outcomes, ["L2"], bend)
