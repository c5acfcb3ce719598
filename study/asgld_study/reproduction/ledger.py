"""From numbers to verdicts: what a claim is, what a check is, and the one rule that judges.

A check compares a measured number and its 95 % interval with what the claim says. It passes if the
whole interval does, fails if none of it does, and is open otherwise. Checks are of two kinds: those
without which nothing of the claim is left (core), and what it says beyond that (detail).

    ======================  =======================================================
    verdict                 when
    ======================  =======================================================
    refuted                 a core check fails
    not supported           no core check fails, one is open
    holds with correction   all core checks pass, a detail fails
    holds                   all core checks pass, no detail fails
    not testable            there is nothing to check, or the experiment failed
    ======================  =======================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asgld.theory.published import VERDICTS
from asgld_study.reproduction.runner import Outcomes

__all__ = [
    "VERDICTS", "Check", "Checks", "Claim", "Finding", "at_least", "at_most", "between", "claim",
    "judge",
]  # fmt: skip

Estimate = Mapping[str, float]


@dataclass(frozen=True)
class Check:
    """A number, what is asked of it, and whether it is so (None: open)."""

    says: str
    value: float
    low: float
    high: float
    asked: str
    passed: bool | None
    core: bool = True


Checks = Iterator[Check]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper.

    Args:
        name: short, such as "E1".
        says: the claim in our words.
        where: in the paper.
        experiments: what `checks` reads.
        checks: outcomes -> checks.
        note: what is true instead, where that is known; shown unless the claim holds.
        item: the statement in `asgld.theory.items`, whose verdict by proof stands beside ours.
    """

    name: str
    says: str
    where: str
    experiments: tuple[str, ...]
    checks: Callable[[Outcomes], Checks]
    note: str = ""
    item: str = ""


def claim(
    name: str, says: str, where: str, *experiments: str, note: str = "", item: str = ""
) -> Callable[[Callable[[Outcomes], Checks]], Claim]:
    """Turn the function that checks a claim into the claim; see :class:`Claim`."""
    return lambda checks: Claim(name, says, where, experiments, checks, note, item)


@dataclass(frozen=True)
class Finding:
    """A claim with its verdict."""

    claim: Claim
    verdict: str
    checks: tuple[Check, ...] = ()
    failure: str = ""


def verdict(checks: Sequence[Check]) -> str:
    """See the module's docstring.

    >>> verdict([at_least("speed", 2.0, 1.0), at_most("cost", 5.0, 1.0, core=False)])
    'holds with correction'
    """
    core = [check.passed for check in checks if check.core]
    if not core:
        return "not testable"
    if False in core:
        return "refuted"
    if None in core:
        return "not supported"
    is_exact = all(check.passed is not False for check in checks)
    return "holds" if is_exact else "holds with correction"


def judge(claims: Sequence[Claim], outcomes: Outcomes) -> list[Finding]:
    """Judge the claims all of whose experiments were run."""
    findings = []
    for claim in claims:
        if not all(name in outcomes for name in claim.experiments):
            continue
        broken = [name for name in claim.experiments if outcomes[name].errors]
        try:
            checks = tuple(claim.checks(outcomes))
        except Exception as error:  # one claim that cannot be computed must not cost the report
            cause = f"{', '.join(broken)} failed" if broken else f"{type(error).__name__}: {error}"
            findings.append(Finding(claim, "not testable", failure=cause))
            continue
        findings.append(Finding(claim, verdict(checks), checks))
    return findings


# ------------------------------------------------------------------------------------ checks


def _estimate(of: Estimate | float) -> tuple[float, float, float]:
    if isinstance(of, Mapping):
        return of["value"], of["low"], of["high"]
    return of, of, of


def at_least(says: str, of: Estimate | float, bound: float, *, core: bool = True) -> Check:
    """Is the number at least `bound`?"""
    value, low, high = _estimate(of)
    passed = True if low >= bound else False if high < bound else None
    return Check(says, value, low, high, f"at least {_short(bound)}", _known(value, passed), core)


def at_most(says: str, of: Estimate | float, bound: float, *, core: bool = True) -> Check:
    """Is the number at most `bound`?"""
    value, low, high = _estimate(of)
    passed = True if high <= bound else False if low > bound else None
    return Check(says, value, low, high, f"at most {_short(bound)}", _known(value, passed), core)


def between(
    says: str, of: Estimate | float, least: float, most: float, *, core: bool = True
) -> Check:
    """Does the number lie in a range? Passes if it does, fails if its interval misses it."""
    value, low, high = _estimate(of)
    passed = True if least <= value <= most else False if high < least or low > most else None
    asked = f"{_short(least)} to {_short(most)}"
    return Check(says, value, low, high, asked, _known(value, passed), core)


def _known(value: float, passed: bool | None) -> bool | None:
    return None if math.isnan(value) else passed


def _short(number: float) -> str:
    return f"{number:.3g}"


def tally(findings: Sequence[Finding]) -> dict[str, int]:
    """How many claims got each verdict."""
    names = [finding.verdict for finding in findings]
    return {name: names.count(name) for name in VERDICTS}


def as_row(finding: Finding) -> dict[str, Any]:
    """A finding as a flat record, for files."""
    return {
        "claim": finding.claim.name,
        "says": finding.claim.says,
        "where": finding.claim.where,
        "experiments": " ".join(finding.claim.experiments),
        "verdict": finding.verdict,
        "checks": "; ".join(words(check) for check in finding.checks) or finding.failure,
    }


def words(check: Check) -> str:
    """A check as a phrase: what, how much, what was asked, what came out."""
    answer = {True: "yes", False: "no", None: "open"}[check.passed]
    return f"{check.says}: {number(check)} (asked: {check.asked}; {answer})"


def number(check: Check) -> str:
    """The number with its interval, where it has one."""
    value = _shown(check.value)
    if check.low == check.high or math.isnan(check.low):
        return value
    return f"{value} [{_shown(check.low)}, {_shown(check.high)}]"


def _shown(value: float) -> str:
    if math.isinf(value):
        return "never" if value > 0 else "-inf"
    return "unknown" if math.isnan(value) else f"{value:.3g}"
