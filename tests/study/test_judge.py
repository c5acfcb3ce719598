"""The judge: by which rule claims are judged, and that the whole interval of a number counts."""

from __future__ import annotations

import math

import pytest

from asgld.theory.published import VERDICTS
from asgld_study import judge
from asgld_study.engine import Experiment, Measured, Outcomes
from asgld_study.judge import (
    Check,
    Checks,
    at_least,
    at_most,
    between,
    claim,
    judge_claims,
    reaches,
    verdict,
)


def _outcomes(*errors: str) -> Outcomes:
    return {"some": Measured(Experiment("some", "", "", lambda _: []), [{"x": 2.0}], list(errors))}


@claim("C1", "here", "some", item="Theorem 3")
def _claim(o: Outcomes) -> Checks:
    """The number is at most
    three.

    It is two.
    """
    yield at_most("x", o["some"].one(x=2.0)["x"], 3.0)


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
    kinds = [*((passed, True) for passed in core), *((passed, False) for passed in detail)]
    checks = [Check("", 0.0, 0.0, 0.0, 0.0, 1.0, passed, is_core) for passed, is_core in kinds]
    assert verdict(checks) == expected
    assert expected in VERDICTS


@pytest.mark.parametrize(
    ("check", "passed"),
    [
        (at_least("", {"value": 2, "low": 1.1, "high": 3}, 1.0), True),
        (at_least("", {"value": 2, "low": 0.9, "high": 3}, 1.0), None),
        (at_least("", {"value": 0.5, "low": 0.2, "high": 0.9}, 1.0), False),
        (at_most("", 1.0, 1.0), True),
        (at_most("", {"value": 1, "low": 0.5, "high": 1.2}, 1.0), None),
        (at_most("", math.inf, 1.0), False),
        (between("", {"value": 1, "low": 0.95, "high": 1.05}, 0.9, 1.1), True),
        (between("", {"value": 1, "low": 0.5, "high": 3}, 0.9, 1.1), None),
        (between("", {"value": 2, "low": 1.5, "high": 3}, 0.9, 1.1), False),
        (between("", {"value": 2, "low": 1.0, "high": 3}, 0.9, 1.1), None),
        (at_least("", math.nan, 1.0), None),
        # of a worst case a smaller number says nothing
        (reaches("", 2.0, 1.0), True),
        (reaches("", {"value": 2, "low": 0.9, "high": 3}, 1.0), None),
        (reaches("", 0.5, 1.0), None),
    ],
)
def test_checks_use_the_whole_interval(check: Check, passed: bool | None) -> None:
    assert check.passed is passed


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        ([at_most("", {"value": 1.5, "low": 1.4, "high": 1.6}, 2.1, tight=1.9)], "consistent"),
        ([at_most("", {"value": 1.5, "low": 1.4, "high": 1.95}, 2.1, tight=1.9)], "holds"),
        ([at_least("", {"value": 0.9, "low": 0.8, "high": 1.0}, 0.4, tight=0.6)], "consistent"),
        ([at_least("", {"value": 0.5, "low": 0.45, "high": 0.55}, 0.4, tight=0.6)], "holds"),
        ([at_most("", 1.5, 2.1, tight=1.9), at_most("", 2.0, 2.1, tight=1.9)], "holds"),
        ([at_most("", 1.5, 2.1, tight=1.9), at_most("", 3.0, 2.1, tight=1.9)], "refuted"),
        ([at_most("", 1.5, 2.1, tight=1.9), at_most("", 3.0, 2.1, core=False)], "consistent"),
        ([at_most("", 2.0, 2.1, tight=1.9), at_most("", 3.0, 2.1, core=False)],
         "holds with correction"),
    ],
)  # fmt: skip
def test_a_bound_that_no_number_reaches_is_consistent_and_no_more(
    checks: list[Check], expected: str
) -> None:
    assert verdict(checks) == expected


def test_a_claim_is_said_by_the_docstring_of_its_checks() -> None:
    assert _claim.says == "The number is at most three."
    assert _claim.note == "It is two."
    assert (_claim.name, _claim.where, _claim.experiments) == ("C1", "here", ("some",))


def test_claims_are_judged_where_their_experiments_were_run() -> None:
    (found,) = judge_claims([_claim], _outcomes())
    assert found.verdict == "holds"
    assert judge_claims([_claim], {}) == []
    (broken,) = judge_claims(
        [_claim], {"some": Measured(_outcomes()["some"].experiment, [], ["no"])}
    )
    assert broken.verdict == "not testable"
    assert "some" in broken.failure


def test_the_headline_is_the_clearest_failure_or_the_narrowest_success() -> None:
    def shown(*checks: Check) -> str:
        return judge.Finding(_claim, verdict(checks), checks).headline

    near, far = at_most("near", 1.9, 2.0), at_most("far", 0.1, 2.0)
    assert shown(far, near).startswith("near")
    slight, plain = at_most("slight", 2.1, 2.0), at_most("plain", math.inf, 2.0)
    assert shown(near, slight, plain).startswith("plain")
    detail = at_least("detail", 1.0, 2.0, core=False)
    assert shown(near, detail).startswith("detail")
    assert shown(near, at_most("open", math.nan, 2.0)).startswith("open")


def test_a_finding_as_a_row_has_its_numbers_and_counts_add_up() -> None:
    findings = judge_claims([_claim], _outcomes())
    row = judge.as_row(findings[0])
    assert row["verdict"] == "holds"
    assert "<= 3" in row["checks"]
    assert judge.tally(findings) == {name: int(name == "holds") for name in VERDICTS}
