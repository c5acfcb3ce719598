"""From numbers to verdicts: what a claim is, what a check is, and the one rule that judges.

A check compares a measured number and its 95 % interval with what the claim says. It passes if the
whole interval does, fails if none of it does, and is open otherwise. Checks are of two kinds: those
without which nothing of the claim is left (core), and what it says beyond that (detail).

    ======================  =======================================================
    verdict                 when
    ======================  =======================================================
    refuted                 a core check fails
    not supported           no core check fails, one is open
    consistent              all core checks pass, but no number reaches a factor of a bound
    holds with correction   all core checks pass, a detail fails
    holds                   all core checks pass, no detail fails
    not testable            there is nothing to check, or the experiment failed
    ======================  =======================================================

An upper bound is met by every smaller number. A check of a bound therefore says from which number
on it is reached (`tight`), and which factor of the bound it is about. One number that reaches it is
enough, since a bound is about the worst case. A claim with a factor that no number reaches is
consistent with the measurement, which proves no more.

The words are `asgld.theory.published.VERDICTS`, which proofs are judged by as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from asgld.theory.published import VERDICTS
from asgld_study.engine import Outcomes, paragraphs

# How far a number may be from what a claim says before the claim is held to be wrong.
#
# An exponent may miss a claimed one by this, which is what a logarithm does to a slope over a
# decade.
SLACK = 0.1
# The bounds hide a log k. It raises the power of 1/eps that k^-e log k shows at finite k by a
# factor of 1/(1 - 1/(e log k)): 1.25 where k^e is near 150.
LOGS = 1.25
# A time that grows like log d may exceed that by this factor.
LOG_D = 1.25


@dataclass(frozen=True)
class Check:
    """A number with its interval, and whether it lies where the claim says."""

    says: str  # what the number is
    value: float
    low: float
    high: float
    least: float  # of the range that is asked for; infinite where it has no end
    most: float
    passed: bool | None  # None: open
    core: bool = True  # whether the claim stands and falls with it
    tight: float = math.nan  # of a bound: the number from which on it is reached
    factor: str = ""  # of a bound with several factors: which one

    @property
    def is_loose(self) -> bool:
        """Whether the whole interval stays short of a bound."""
        rounding = 1e-9 * abs(self.tight)
        if math.isinf(self.least):
            return self.high < self.tight - rounding
        return self.low > self.tight + rounding

    @property
    def asked(self) -> str:
        """The range in words."""
        if math.isinf(self.most):
            return f">= {self.least:.3g}"
        if math.isinf(self.least):
            return f"<= {self.most:.3g}"
        return f"{self.least:.3g} to {self.most:.3g}"

    @property
    def number(self) -> str:
        """The number with its interval, where it has one."""
        value = _shown(self.value)
        if self.low == self.high or math.isnan(self.low):
            return value
        return f"{value} [{_shown(self.low)}, {_shown(self.high)}]"

    @property
    def answer(self) -> str:
        """Whether it is so, in a word."""
        return {True: "yes", False: "no", None: "open"}[self.passed]

    @property
    def distance(self) -> float:
        """How far the number is from the nearest end of the range, in relative terms."""
        if math.isnan(self.value):
            return -1.0
        ends = [end for end in (self.least, self.most) if math.isfinite(end)]
        return min(abs(self.value - end) for end in ends) / (abs(ends[0]) + 0.1)


Checks = Iterator[Check]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper."""

    name: str  # short, such as "E1"
    says: str  # the claim in our words
    where: str  # the place in the paper
    experiments: tuple[str, ...]  # the experiments that `checks` reads
    checks: Callable[[Outcomes], Checks]
    note: str = ""  # what is true instead, where that is known; shown unless the claim holds
    item: str = ""  # the statement in `asgld.theory.items`, whose verdict by proof stands beside


def claim(
    name: str, where: str, *experiments: str, item: str = ""
) -> Callable[[Callable[[Outcomes], Checks]], Claim]:
    """Turn the function that checks a claim into the claim; see :class:`Claim`.

    The docstring of the function says the claim, and in a second paragraph what is true instead.
    """

    def made(checks: Callable[[Outcomes], Checks]) -> Claim:
        says, *note = paragraphs(checks)
        return Claim(name, says, where, experiments, checks, " ".join(note), item)

    return made


@dataclass(frozen=True)
class Finding:
    """A claim with its verdict."""

    claim: Claim
    verdict: str
    checks: tuple[Check, ...] = ()
    failure: str = ""

    @property
    def headline(self) -> str:
        """The check that decided, in words."""
        if self.verdict == "not testable":
            return self.failure or "no run within reach speaks for or against it"
        kinds = {
            "refuted": (True, False),
            "not supported": (True, None),
            "holds with correction": (False, False),
        }
        kind = kinds.get(self.verdict, (True, True))
        found = [check for check in self.checks if (check.core, check.passed) == kind]
        # A failure is shown by its clearest case, a success by its narrowest.
        pick = min if self.verdict in ("holds", "consistent") else max
        check = pick(found or self.checks, key=lambda c: c.distance)
        return f"{check.says}: {check.number}; asked {check.asked}"


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
    bounds: dict[str, list[bool]] = {}
    for check in checks:
        if check.core and not math.isnan(check.tight):
            bounds.setdefault(check.factor, []).append(check.is_loose)
    if any(all(loose) for loose in bounds.values()):
        return "consistent"
    is_faulty = any(check.passed is False for check in checks)
    return "holds with correction" if is_faulty else "holds"


def judge_claims(claims: Sequence[Claim], outcomes: Outcomes) -> list[Finding]:
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


def tally(findings: Sequence[Finding]) -> dict[str, int]:
    """How many claims got each verdict."""
    names = [finding.verdict for finding in findings]
    return {name: names.count(name) for name in VERDICTS}


def as_row(finding: Finding) -> dict[str, Any]:
    """A finding as a flat record, for files."""
    words = [f"{c.says}: {c.number} (asked: {c.asked}; {c.answer})" for c in finding.checks]
    return {
        "claim": finding.claim.name,
        "says": finding.claim.says,
        "where": finding.claim.where,
        "experiments": " ".join(finding.claim.experiments),
        "verdict": finding.verdict,
        "checks": "; ".join(words) or finding.failure,
    }


# ------------------------------------------------------------------------------------ checks


Number = Mapping[str, float] | float


def at_least(
    says: str, of: Number, bound: float, *, core: bool = True, tight: float = math.nan
) -> Check:
    """Is the number at least `bound`? A bound from below is reached at `tight` and below."""
    return _check(says, of, bound, math.inf, core, tight)


def at_most(
    says: str,
    of: Number,
    bound: float,
    *,
    core: bool = True,
    tight: float = math.nan,
    factor: str = "",
) -> Check:
    """Is the number at most `bound`? A bound from above is reached at `tight` and above."""
    return _check(says, of, -math.inf, bound, core, tight, factor)


def reaches(says: str, of: Number, bound: float) -> Check:
    """Does the number reach what the worst case is said to be? One that does not proves nothing."""
    check = at_least(says, of, bound)
    return replace(check, passed=check.passed or None)


def between(says: str, of: Number, least: float, most: float, *, core: bool = True) -> Check:
    """Does the number lie in a range?"""
    return _check(says, of, least, most, core)


def _check(
    says: str,
    of: Number,
    least: float,
    most: float,
    core: bool,
    tight: float = math.nan,
    factor: str = "",
) -> Check:
    number = of if isinstance(of, Mapping) else dict.fromkeys(("value", "low", "high"), of)
    value, low, high = number["value"], number["low"], number["high"]
    passed = None
    if not math.isnan(value):
        is_outside = high < least or low > most
        passed = True if least <= low and high <= most else False if is_outside else None
    return Check(says, value, low, high, least, most, passed, core, tight, factor)


def _shown(value: float) -> str:
    if math.isinf(value):
        return "never" if value > 0 else "-inf"
    return "unknown" if math.isnan(value) else f"{value:.3g}"
