"""Counts for README.md and the pages: verdicts on the paper's claims, methods, problems."""

from __future__ import annotations

import re
from collections import Counter

from asgld.methods import method_names
from asgld.problems import problem_names
from pages.results import ROOT, Values


def values() -> Values:
    # `asgld reproduce --size full` writes this page: a row for each claim, its verdict in bold.
    page = (ROOT / "docs" / "paper.md").read_text()
    verdicts = dict(re.findall(r"^\| (\w+) \| \*\*([^*]+)\*\* \|", page, re.MULTILINE))
    counts = Counter(verdicts.values())
    rivals = Counter(verdicts[f"M{row}"] for row in range(1, 11))
    paper = Counter(verdicts[f"M{row}"] for row in range(11, 15))
    numbers = {
        "claims.all": len(verdicts),
        "claims.hold": counts["holds"],
        "claims.consistent": counts["consistent"],
        "claims.corrected": counts["holds with correction"],
        "claims.refuted": counts["refuted"],
        "claims.open": counts["not supported"] + counts["not testable"],
        "rivals.all": rivals.total(),
        "rivals.consistent": rivals["consistent"],
        "rivals.untested": rivals["not testable"],
        "paper-rows.refuted": paper["refuted"],
        "methods.all": len(method_names()),
        "methods.others": len(method_names()) - 1,
        "problems.all": len(problem_names()),
    }
    return Values({name: str(count) for name, count in numbers.items()}, {})
