"""What the ledger said at first, and why its claims were read again.

The first reading judged 57 claims. A critic took some of its checks apart: they tested another
statement than the printed one, could not fail, or left out a claim. The entries here say what the
verdict was and what changed; the verdicts of today are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from asgld_study.judge import Finding


class Revision(NamedTuple):
    """Why a claim was read again."""

    before: str  # the verdict of the first reading; empty for a claim that had no row
    why: str


_IN_X = "It was decided in log x; the variable of the paper is x."

REVISIONS: dict[str, Revision] = {
    "B1": Revision("holds", "One value of beta was run; now there are three."),
    "B3": Revision("", "The text of Theorem 4 on the slope of the growth; only slope 1 was run."),
    "E2": Revision(
        "refuted",
        "Each alpha was run at one beta, and the misfit had no interval. Now there are seven pairs "
        "of exponents, and an interval.",
    ),
    "E6": Revision(
        "refuted",
        "The grid of lr ended at 1, where all cells were best. Now each lr is best inside its "
        "grid, chosen on half of the chains and judged on the others; lr up to 1/M is judged "
        "apart.",
    ),
    "E9": Revision("", "Theorem 3, remark ii, was a detail of E2."),
    "E10": Revision("", "Theorem 3, remark i, gives D as the reason; only the effect had a row."),
    "E7": Revision(
        "holds with correction", "Its detail, the roles of alpha and beta, is a claim now, E11."
    ),
    "E11": Revision("", "Section 3's sentence on the roles of alpha and beta was a detail of E7."),
    "L3": Revision("", "Lemma 3 had no row."),
    "P2": Revision(
        "holds",
        "Proposition 6 prints O, not O up to logs, at beta = 1: the omission that R5 is corrected "
        "for.",
    ),
    "P4": Revision(
        "holds with correction",
        "The proposition prints O up to logs for ASG, and its proof a rate without; alpha = 2 was "
        "not run.",
    ),
    "R1": Revision("holds", "The average falls faster than the bound, which it does not reach."),
    "P1": Revision("holds", "The average falls faster than the bound, which it does not reach."),
    "R8": Revision("holds", "The paper says that the condition suffices, not that it is exact."),
    "R10": Revision("holds with correction", "The paper prints O up to logs."),
    "R12": Revision("", "The introduction's sentence on the fastest exponents had no row."),
    "R11": Revision("", "Theorem 2, remark ii, had no row."),
    "S3": Revision("holds with correction", "The distance now has an interval."),
    "S4": Revision(
        "refuted",
        "It was decided by a start of D at which ASG, which has no noise, diverges too. Now sigma "
        "decides, on equal data.",
    ),
    "S6": Revision("holds", "The steps of rare features are measured too."),
    "A1": Revision("", "Algorithm 1 as printed had no row."),
    "X1": Revision("holds", _IN_X),
    "X2": Revision("holds with correction", _IN_X),
    "X3": Revision("holds", _IN_X),
    "X4": Revision("not supported", _IN_X),
    "X5": Revision("holds with correction", _IN_X),
    "X6": Revision("", "The objective is printed as a sum; only the mean was run."),
    **{
        f"M{row}": Revision(
            before,
            "The method now runs where its own mechanism must act, on a staircase of saddles and "
            "on spread curvatures, and the check counts the unit of the bound. A bound holds only "
            "if a number reaches each of its factors.",
        )
        for row, before in {
            1: "not testable", 2: "holds", 3: "holds", 4: "holds", 5: "holds", 6: "holds",
            8: "holds", 9: "not testable", 10: "holds",
        }.items()
    },
    "M12": Revision("refuted", "Assumption 2 has two readings; both are judged."),
    "M13": Revision("refuted", "Assumption 2 has two readings; both are judged."),
    "M15": Revision(
        "refuted",
        "The constants were typed in; now the exponent of the cost to leave all saddles is "
        "measured.",
    ),
    "M16": Revision(
        "refuted",
        "This library's options were the evidence, and the text was misquoted. Now rivals run "
        "without full gradients.",
    ),
    "M17": Revision("", "The introduction's sentence on SGLD had no row."),
    "M19": Revision("", "Section 2's sentence on noisy SGD had no row."),
    "M18": Revision("", "The abstract's comparison with first-order methods had no row."),
}  # fmt: skip


def revision_lines(findings: Sequence[Finding]) -> list[str]:
    """A line for each reason: the claims that were read again for it, with the verdicts."""
    by_reason: dict[str, list[str]] = {}
    for finding in findings:
        revision = REVISIONS.get(finding.claim.name)
        if revision is not None:
            by_reason.setdefault(revision.why, []).append(_words(finding, revision.before))
    return [f"- {', '.join(claims)}: {why}" for why, claims in by_reason.items()]


def _words(finding: Finding, before: str) -> str:
    words = f"{before}, now {finding.verdict}"
    if not before:
        words = "new"
    elif before == finding.verdict:
        words = "as before"
    return f"**{finding.claim.name}** ({words})"
