"""The ledger: which claims there are, by which rule they are judged, and that numbers decide."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import ROOT
from tiny_report import RunOnce, tiny_outcomes, tiny_report

from asgld.theory import table1
from asgld_study.experiments import features, minima
from asgld_study.experiments.declared import EXPERIMENTS
from asgld_study.reproduction import ledger
from asgld_study.reproduction.claims import CLAIMS
from asgld_study.reproduction.claims import table1 as table_claims
from asgld_study.reproduction.ledger import Check, at_least, at_most, between, judge, verdict
from asgld_study.reproduction.rows import Row
from asgld_study.reproduction.runner import Outcome, Outcomes
from asgld_study.reproduction.statistics import (
    crossing_slope,
    earlier,
    median,
    ratio_of_means,
    ratio_of_medians,
    share,
)

BY_NAME = {claim.name: claim for claim in CLAIMS}


@pytest.fixture(scope="module")
def measured(run_once: RunOnce) -> Outcomes:
    """Real outcomes of all experiments, at the size that only shows that they run."""
    return tiny_outcomes(tiny_report(run_once))


@pytest.fixture
def outcomes(measured: Outcomes) -> Outcomes:
    """A copy to bend."""
    return copy.deepcopy(measured)


def test_every_claim_of_the_paper_has_a_row() -> None:
    expected = {f"S{i}" for i in range(1, 8)} | {"L1", "L2", "T1", "T1a", "T1b", "B1", "B2"}
    expected |= {f"R{i}" for i in range(1, 11)} | {f"P{i}" for i in range(1, 5)}
    expected |= {f"E{i}" for i in range(1, 9)} | {f"M{i}" for i in range(1, 17)}
    expected |= {f"X{i}" for i in range(1, 6)}
    assert set(BY_NAME) == expected
    assert len(CLAIMS) == len(expected)
    known = {experiment.name for experiment in EXPERIMENTS}
    for claim in CLAIMS:
        assert set(claim.experiments) <= known, claim.name


def test_every_experiment_serves_a_claim_or_shows_a_choice() -> None:
    used = {name for claim in CLAIMS for name in claim.experiments}
    # the indexing of D is a choice of ours, of which the paper claims nothing
    assert {experiment.name for experiment in EXPERIMENTS} - used == {"lag"}


@pytest.mark.parametrize(
    ("core", "detail", "expected"),
    [
        ([True], [], "holds"),
        ([True, True], [None], "holds"),
        ([True], [True, False], "holds with correction"),
        ([True, None], [False], "not supported"),
        ([None, False], [True], "refuted"),
        ([], [True], "not testable"),
    ],
)
def test_verdicts_follow_from_checks(
    core: list[bool | None], detail: list[bool | None], expected: str
) -> None:
    checks = [
        Check("", 0.0, 0.0, 0.0, "", passed, is_core)
        for passed, is_core in [*((p, True) for p in core), *((p, False) for p in detail)]
    ]
    assert verdict(checks) == expected
    assert expected in ledger.VERDICTS


@pytest.mark.parametrize(
    ("check", "passed"),
    [
        (at_least("", {"value": 2, "low": 1.1, "high": 3}, 1.0), True),
        (at_least("", {"value": 2, "low": 0.9, "high": 3}, 1.0), None),
        (at_least("", {"value": 0.5, "low": 0.2, "high": 0.9}, 1.0), False),
        (at_most("", 1.0, 1.0), True),
        (at_most("", {"value": 1, "low": 0.5, "high": 1.2}, 1.0), None),
        (at_most("", math.inf, 1.0), False),
        (between("", {"value": 1, "low": 0.5, "high": 3}, 0.9, 1.1), True),
        (between("", {"value": 2, "low": 1.5, "high": 3}, 0.9, 1.1), False),
        (between("", {"value": 2, "low": 1.0, "high": 3}, 0.9, 1.1), None),
        (at_least("", math.nan, 1.0), None),
    ],
)
def test_checks_use_the_whole_interval(check: Check, passed: bool | None) -> None:
    assert check.passed is passed


def test_all_claims_can_be_judged_and_a_rerun_agrees(outcomes: Outcomes) -> None:
    findings = judge(CLAIMS, outcomes)
    assert [f.claim.name for f in findings] == [c.name for c in CLAIMS]
    assert not [f.failure for f in findings if f.failure]
    assert [f.verdict for f in findings] == [f.verdict for f in judge(CLAIMS, outcomes)]


# ------------------------------------------------------------------------------------ perturbing


def _set(o: Outcomes, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    for value in o[name].values:
        change(value)


def _point(low: float, high: float | None = None) -> dict[str, float]:
    top = low if high is None else high
    return {"value": (low + top) / 2, "low": low, "high": top}


def _bend_s1(o: Outcomes, good: bool) -> None:
    _set(o, "identities", lambda v: v.update(sgld=0.0 if good else 0.1))


def _bend_s6(o: Outcomes, good: bool) -> None:
    def change(v: dict[str, Any]) -> None:
        is_adaptive = v["label"].startswith("AS")
        noise = 1e-3 * np.arange(len(v["final"]))
        v["final"] = ((1.0 if is_adaptive is good else 2.0) + noise).tolist()

    assert set(features.KINDS) >= {"SGLD", "SGD"}
    _set(o, "features", change)


def _bend_l2(o: Outcomes, good: bool) -> None:
    _set(
        o,
        "accumulator",
        lambda v: v.update(sums={p: _point(1 - float(p) if good else 0.5) for p in v["sums"]}),
    )


def _bend_t1(o: Outcomes, good: bool) -> None:
    _set(o, "terms", lambda v: v.update(smallest=[1e-6 if good else 1e6] * len(v["k"])))


def _bend_rates(o: Outcomes, good: bool) -> None:
    _set(o, "exponents", lambda v: v.update(last=_point(9.0 if good else -9.0)))


def _bend_r8(o: Outcomes, good: bool) -> None:
    _set(
        o,
        "region",
        lambda v: v.update(last=_point(0.5 if (v["region"] == "converges") is good else 0.0)),
    )


def _bend_r9(o: Outcomes, good: bool) -> None:
    _set(o, "plateau", lambda v: v.update(ratio=_point(1.0 if good else 0.1)))


def _bend_dimension(o: Outcomes, good: bool) -> None:
    def change(v: dict[str, Any]) -> None:
        v["value"] = [(math.log(v["dim"]) if good else v["dim"]) * 10.0] * 20

    _set(o, "dimension", change)


def _bend_gamma(o: Outcomes, good: bool) -> None:
    def change(v: dict[str, Any]) -> None:
        law = 1 / (math.log(v["gamma"]) + 5.0) if good else v["gamma"] ** -2.0
        v["distance"] = [1000 * law] * 20

    _set(o, "escape", change)


def _bend_times(o: Outcomes, good: bool) -> None:
    def change(v: dict[str, Any]) -> None:
        v["distance"] = [100.0 if good else 100.0 + v["k0"] + 1000 * v["beta"]] * 20

    _set(o, "escape", change)


def _bend_noise(o: Outcomes, good: bool) -> None:
    _set(o, "noise", lambda v: v.update(times=[5.0 if good else math.inf] * 50))


def _bend_directions(o: Outcomes, good: bool) -> None:
    _set(o, "directions", lambda v: v.update(last=[50.0 if (v["alpha"] == 1.0) is good else 99.0]))


def _bend_minima(o: Outcomes, good: bool) -> None:
    def change(v: dict[str, Any]) -> None:
        for eps in minima.accuracies(v["label"]):
            steps = math.log(v["dim"]) * 10 / eps if good else v["dim"] ** 3.0 / eps**7
            v["steps"][str(eps)] = steps
            v["bootstraps"][str(eps)] = [steps] * 200

    _set(o, "minima", change)


def _bend_study(o: Outcomes, good: bool) -> None:
    """Tails and hits as the five sentences want them, or the other way round."""

    def change(v: dict[str, Any]) -> None:
        converges = v["number"] not in ("1", "2", "3", "8")
        rank = {"10": 1.0, "10b": 1.0, "4": 50.0, "5": 50.0, "8": 20.0, "9": 99.0, "9b": 99.0}
        time = rank.get(v["number"], 50.0)
        v["tail_shares"] = [1.0 if converges is good else 0.0] * 20
        v["hits"] = [time if good else 100.0 - time] * 20

    _set(o, "study", change)


@pytest.mark.parametrize(
    ("names", "bend"),
    [
        (["S1"], _bend_s1),
        (["S6"], _bend_s6),
        (["L2"], _bend_l2),
        (["T1", "T1a", "T1b"], _bend_t1),
        (["R2", "R3", "R4", "R6", "R7", "B1", "P2"], _bend_rates),
        (["R8"], _bend_r8),
        (["R9"], _bend_r9),
        (["E1"], _bend_dimension),
        (["E2"], _bend_gamma),
        (["E3", "E4"], _bend_times),
        (["E5"], _bend_noise),
        (["E6"], _bend_directions),
        (["E8", "B2"], _bend_minima),
        (["X1", "X2", "X3", "X4", "X5"], _bend_study),
    ],
    ids=lambda x: x[0] if isinstance(x, list) else "",
)
def test_perturbing_a_result_flips_the_verdict(
    outcomes: Outcomes, names: list[str], bend: Callable[[Outcomes, bool], None]
) -> None:
    chosen = [BY_NAME[name] for name in names]
    bend(outcomes, True)
    for finding in judge(chosen, outcomes):
        assert finding.verdict in ("holds", "holds with correction"), finding
    bend(outcomes, False)
    for finding in judge(chosen, outcomes):
        assert finding.verdict == "refuted", finding


def test_rows_of_table_1_are_judged_by_their_numbers(
    outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(power: float, exponent: float) -> list[Row]:
        """Every method with this power of 1/eps, and escape times like d^exponent log d."""
        times = {d: [100 * math.log(d) * d**exponent] * 9 for d in (4, 32, 256)}
        return [Row(p, p.method, _point(power), True, True, times) for p in table1()]

    rivals = [BY_NAME[f"M{i}"] for i in (2, 3, 4, 5, 6, 8, 10)]
    for power, exponent, expected in (
        (1.0, 0.0, {"holds", "holds with correction"}),
        (9.0, 0.0, {"refuted"}),
    ):
        monkeypatch.setattr(table_claims, "table_rows", lambda _, a=power, b=exponent: rows(a, b))
        assert {f.verdict for f in judge(rivals, outcomes)} <= expected
    # a power of d is no logarithm, and bounds without one say nothing of it
    monkeypatch.setattr(table_claims, "table_rows", lambda _: rows(1.0, 1.0))
    found = {f.claim.name: f.verdict for f in judge(rivals, outcomes)}
    assert {name for name, verdict in found.items() if verdict == "refuted"} == {
        "M4",
        "M5",
        "M6",
        "M8",
    }
    # our own rows rest on the way from a saddle to a minimum as well
    own = [BY_NAME[f"M{i}"] for i in (11, 12, 13)]
    monkeypatch.setattr(table_claims, "table_rows", lambda _: rows(1.0, 0.0))
    for good in (True, False):
        _bend_minima(outcomes, good)
        assert {f.verdict == "refuted" for f in judge(own, outcomes)} == {not good}


def test_what_the_text_says_of_rivals_is_checked_against_the_table(outcomes: Outcomes) -> None:
    text, needs = judge([BY_NAME["M15"], BY_NAME["M16"]], outcomes)
    assert text.verdict == "refuted"
    assert needs.verdict == "refuted"
    assert "natasha2" in needs.checks[0].says


def test_claims_of_a_failed_experiment_are_not_testable(outcomes: Outcomes) -> None:
    broken = outcomes["plateau"]
    outcomes["plateau"] = Outcome(broken.experiment, [], ["RuntimeError: no"])
    (finding,) = judge([BY_NAME["R9"]], outcomes)
    assert finding.verdict == "not testable"


def test_claims_of_experiments_that_were_not_run_are_left_out(outcomes: Outcomes) -> None:
    del outcomes["plateau"]
    assert judge([BY_NAME["R9"]], outcomes) == []


# ------------------------------------------------------------------------------------ statistics


def test_intervals_cover_what_they_should() -> None:
    """Null: 95 % coverage. 200 samples each; fewer than 172 covers are 5 sigma away."""
    rng = np.random.default_rng(0)
    covers = {"share": 0, "earlier": 0, "ratio": 0, "median": 0}
    for _ in range(200):
        a, b = rng.exponential(size=(2, 60))
        found = share(a < 1.0)
        covers["share"] += found["low"] <= 1 - math.exp(-1) <= found["high"]
        found = earlier(a.tolist(), b.tolist())
        covers["earlier"] += found["low"] <= 0.5 <= found["high"]
        found = ratio_of_medians(a.tolist(), b.tolist())
        covers["ratio"] += found["low"] <= 1.0 <= found["high"]
        found = median(a.tolist())
        covers["median"] += found["low"] <= math.log(2) <= found["high"]
    assert min(covers.values()) >= 172, covers


def test_infinite_times_are_late_and_not_missing() -> None:
    assert median([1.0, 2.0, math.inf, math.inf, math.inf])["value"] == math.inf
    assert earlier([5.0] * 9, [math.inf] * 9)["value"] == 1.0
    assert earlier([math.inf] * 9, [math.inf] * 9)["value"] == 0.5
    assert ratio_of_medians([math.inf] * 5, [1.0] * 5)["value"] == math.inf


def test_slopes_and_ratios_of_known_laws() -> None:
    rows = [[7.0 * eps**-2.0] * 4 for eps in (0.5, 0.25, 0.125)]
    fit = crossing_slope([-math.log(eps) for eps in (0.5, 0.25, 0.125)], rows)
    assert fit["low"] == pytest.approx(2.0)
    assert fit["high"] == pytest.approx(2.0)
    found = ratio_of_means(_point(3.8, 4.2), _point(1.9, 2.1))
    assert found["low"] < 2.0 < found["high"]
    assert found["value"] == pytest.approx(2.0)


# ------------------------------------------------------------------------------------ pages


def _page() -> tuple[str, dict[str, str]]:
    """The documentation's page and its verdicts."""
    text = (ROOT / "docs" / "paper.md").read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return text, {row[0][2:]: row[1].strip("*") for row in rows[1:]}


def test_documentation_page_is_a_full_ledger_and_counts_its_rows() -> None:
    text, verdicts = _page()
    assert list(verdicts) == [claim.name for claim in CLAIMS]
    assert "`asgld reproduce --size full`" in text
    counts = Counter(verdicts.values())
    shown = ", ".join(f"{name} {counts[name]}" for name in ledger.VERDICTS if counts[name])
    assert f"`. Verdicts: {shown}." in text


def test_page_has_the_verdicts_that_the_readme_explains() -> None:
    verdicts = _page()[1]
    for expected, names in {
        "holds": ("R4", "R6", "R7", "R8"),
        "refuted": (
            "T1",
            "T1a",
            "T1b",
            "R2",
            "R3",
            "S4",
            "E1",
            "E4",
            "E8",
            "M11",
            "M12",
            "M13",
            "M14",
        ),
    }.items():
        assert {name: verdicts[name] for name in names} == dict.fromkeys(names, expected)
