"""Convergence exponents, the region of convergence and the floor of SGLD."""

from __future__ import annotations

from typing import Any

from tiny_report import assert_flips, change, point, verdicts

from asgld_study.engine import Outcomes
from asgld_study.paper import rates
from asgld_study.paper.rates import Case


def test_exponents_of_short_runs_tell_the_versions_apart() -> None:
    """(1.5, 2) on the flat function: published 1.25, corrected 0.25; (0, 0.5): both say 0.5."""
    cases = Case("asgld", 1.5, 2, function="flat"), Case("agld", 0, 0.5)
    flat, waves = (rates.measure_case(**vars(c), steps=2000, replicas=24) for c in cases)
    assert (flat["published"], flat["corrected"]) == (1.25, 0.25)
    assert flat["two_decades"]["last"]["high"] < 0.75
    average = flat["two_decades"]["average"]
    assert average["low"] <= average["value"] <= average["high"]
    assert waves["corrected"] == 0.5
    assert abs(waves["two_decades"]["last"]["value"] - 0.5) < 0.15


def test_floor_of_sgld_is_d_times_the_published_one() -> None:
    """On the bowl, by the stationary law; 200 chains of 100 steps have an error near 1 %."""
    value = rates.measure_plateau(10, 1, steps=200, replicas=200)
    ratio = value["late"]["value"] / (10 * (value["I2"] + value["I3"]))
    assert 0.5 < ratio < 1.0
    assert value["ratio"]["low"] < 1.0 < value["ratio"]["high"]


def test_numbers_decide_on_rates(outcomes: Outcomes) -> None:
    def bend(o: Outcomes, good: bool) -> None:
        change(o, "exponents", lambda v: v.update(last=point(9.0 if good else -9.0)))

    assert_flips(outcomes, ["R2", "R3", "R4", "R6", "R7", "B1"], bend, ["consistent"])
    for name in ("R5", "P2", "P3", "P4"):  # with details of their own
        bend(outcomes, False)
        assert verdicts(outcomes, [name]) == {"refuted"}
    change(outcomes, "exponents", lambda v: v.update(last=point(v["published"])))
    assert verdicts(outcomes, ["R4", "R6", "R7", "B1"]) == {"holds"}
    change(outcomes, "exponents", lambda v: v.update(last=point(v["published"] + 0.5)))
    assert verdicts(outcomes, ["R4", "R6", "R7", "B1"]) == {"consistent"}


def test_numbers_decide_on_alpha_two(outcomes: Outcomes) -> None:
    """The weighted average falls faster than 1/log k, like it, or not at all."""

    def bend(o: Outcomes, good: bool) -> None:
        change(o, "exponents", lambda v: v.update(per_log=point(1.0 if good else 0.1)))

    assert_flips(outcomes, ["R1", "P1"], bend)
    # ASG too, whatever its other exponents are
    change(outcomes, "exponents", lambda v: v.update(last=point(v["published"])))
    assert verdicts(outcomes, ["P4"]) == {"refuted"}
    change(outcomes, "exponents", lambda v: v.update(per_log=point(1.3)))
    assert verdicts(outcomes, ["R1", "P1"]) == {"consistent"}


def _law(v: dict[str, Any], **powers: float) -> None:
    """Terms that are powers of k."""
    v["exponents"] = {name: point(power) for name, power in powers.items()}
    v["growth"] = {name: point(10.0 ** (0.5 - power)) for name, power in powers.items()}


def _arrive(o: Outcomes, power: float) -> None:
    """Steps to a minimum that are a power of 1/eps."""

    def law(v: dict[str, Any]) -> None:
        v["steps"] = {eps: 10.0 * float(eps) ** -power for eps in v["steps"]}
        v["bootstraps"] = {eps: [steps] * 3 for eps, steps in v["steps"].items()}

    change(o, "minima", law)


def test_numbers_decide_on_the_fastest_exponents(outcomes: Outcomes) -> None:
    def bend(o: Outcomes, good: bool) -> None:
        def law(v: dict[str, Any]) -> None:
            is_balanced = v["alpha"] == 1 and v["beta"] == 1
            v.update(last=point(0.5 if is_balanced or good else 0.7))

        change(o, "exponents", law)
        _arrive(o, 4.0)

    assert_flips(outcomes, ["R12"], bend)
    bend(outcomes, True)
    _arrive(outcomes, 6.0)
    assert verdicts(outcomes, ["R12"]) == {"refuted"}
    # The slower of the two functions counts.
    bend(outcomes, True)
    change(
        outcomes,
        "exponents",
        lambda v: v.update(last=point(2.0)) if v["function"] == "waves" else None,
    )
    assert verdicts(outcomes, ["R12"]) == {"holds"}


def test_a_logarithm_counts_where_the_paper_prints_none(outcomes: Outcomes) -> None:
    """P2, P4 and R5 print O, R10 prints O up to logs: a log k is a fault of the first three."""
    change(
        outcomes,
        "exponents",
        lambda v: v.update(last=point(v["published"]), per_log=point(1.0)),
    )
    _arrive(outcomes, 4.0)
    change(outcomes, "terms", lambda v: _law(v, I1=0.5, I2=0.5, I3=0.5))
    assert verdicts(outcomes, ["P2", "P4", "R5", "R10"]) == {"holds"}
    change(outcomes, "terms", lambda v: _law(v, I1=0.5, I2=0.4, I3=0.4))
    assert verdicts(outcomes, ["P2", "P4", "R5"]) == {"holds with correction"}
    assert verdicts(outcomes, ["R10"]) == {"holds"}
    change(outcomes, "terms", lambda v: _law(v, I1=0.5, I2=0.5, I3=0.2))
    assert verdicts(outcomes, ["R10"]) == {"refuted"}


def test_numbers_decide_on_the_terms_against_alpha(outcomes: Outcomes) -> None:
    def bend(o: Outcomes, good: bool) -> None:
        def law(v: dict[str, Any]) -> None:
            alpha = float(v["label"].partition("(")[2].partition(",")[0].rstrip(")") or 0.0)
            _law(v, I1=1.0 - alpha / 2, I2=alpha / 2 if good else 1.0 - alpha / 2)

        change(o, "terms", lambda v: law(v) if "(" in v["label"] else None)

    assert_flips(outcomes, ["R11"], bend)


def test_numbers_decide_on_slow_growth_of_batches(outcomes: Outcomes) -> None:
    def bend(o: Outcomes, good: bool) -> None:
        rate = point(1.0) if good else point(0.0)
        change(o, "slopes", lambda v: v.update(last=rate, steps=10**6, final=point(1.0)))

    assert_flips(outcomes, ["B3"], bend)


def test_numbers_decide_on_the_region(outcomes: Outcomes) -> None:
    def bend(o: Outcomes, good: bool) -> None:
        def fall(region: str) -> dict[str, float]:
            return point(0.5 if (region == "converges") is good else -0.1)

        change(o, "region", lambda v: v.update(last=fall(v["region"])))

    assert_flips(outcomes, ["R8"], bend)


def test_numbers_decide_on_the_floor(outcomes: Outcomes) -> None:
    def bend(o: Outcomes, good: bool) -> None:
        change(o, "plateau", lambda v: v.update(ratio=point(1.0 if good else 0.1)))

    assert_flips(outcomes, ["R9"], bend, ["holds with correction"])
