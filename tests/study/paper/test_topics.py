"""All topics together: no claim of the paper is missing, and every number of it is shown."""

from __future__ import annotations

import re
from pathlib import Path

from asgld.theory.published import VERDICTS
from asgld_study.drawing import Picture
from asgld_study.engine import Experiment, Outcomes, parts_of
from asgld_study.judge import judge_claims
from asgld_study.page import DataTable
from asgld_study.paper import CLAIMS, EXPERIMENTS, PICTURES, TABLES, TOPICS
from asgld_study.paper.second_reading import REVISIONS, revision_lines

ROOT = Path(__file__).parents[3]
NAMES = {experiment.name for experiment in EXPERIMENTS}


def test_every_claim_of_the_paper_has_a_row() -> None:
    expected = {f"S{i}" for i in range(1, 8)} | {"L1", "L2", "L3", "T1", "T1a", "T1b", "A1"}
    expected |= {f"R{i}" for i in range(1, 13)} | {f"P{i}" for i in range(1, 5)}
    expected |= {f"E{i}" for i in range(1, 12)} | {f"M{i}" for i in range(1, 20)}
    expected |= {f"X{i}" for i in range(1, 7)} | {"B1", "B2", "B3"}
    assert {claim.name for claim in CLAIMS} == expected
    assert len(CLAIMS) == len(expected)


def test_revisions_are_of_claims_and_say_what_a_verdict_was(measured: Outcomes) -> None:
    assert set(REVISIONS) <= {claim.name for claim in CLAIMS}
    assert all(r.before in {"", *VERDICTS} for r in REVISIONS.values())
    findings = judge_claims(CLAIMS, measured)
    lines = revision_lines(findings)
    assert len(lines) == len({revision.why for revision in REVISIONS.values()})
    for finding in findings:
        if finding.claim.name in REVISIONS:
            (line,) = (x for x in lines if f"**{finding.claim.name}** (" in x)
            words = line.split(f"**{finding.claim.name}** (")[1].split(")")[0]
            before = REVISIONS[finding.claim.name].before
            now = "as before" if before == finding.verdict else f"{before}, now {finding.verdict}"
            assert words == (now if before else "new")


def test_every_experiment_serves_a_claim_or_shows_a_choice() -> None:
    used = {name for claim in CLAIMS for name in claim.experiments}
    # the indexing of D is a choice of ours, of which the paper claims nothing
    assert NAMES - used == {"lag"}
    assert used <= NAMES


def test_every_experiment_is_shown_in_its_own_topic() -> None:
    for parts in (PICTURES, TABLES):
        names = [part.name for part in parts]
        assert len(set(names)) == len(names)
    assert {part.experiment for part in (*PICTURES, *TABLES)} == NAMES
    for topic in TOPICS:
        mine = {experiment.name for experiment in parts_of(topic, Experiment)}
        shown = (*parts_of(topic, Picture), *parts_of(topic, DataTable))
        assert {part.experiment for part in shown} == mine
    for picture in PICTURES:
        assert len(picture.alt) > 30, picture.name
        assert len(picture.caption) > 30, picture.name


def test_all_claims_can_be_judged_and_a_rerun_agrees(measured: Outcomes) -> None:
    findings = judge_claims(CLAIMS, measured)
    assert [f.claim.name for f in findings] == [c.name for c in CLAIMS]
    assert not [f.failure for f in findings if f.failure]
    again = judge_claims(CLAIMS, measured)
    assert [f.headline for f in findings] == [f.headline for f in again]


def test_all_experiments_run_and_fill_their_tables(measured: Outcomes) -> None:
    assert not [error for outcome in measured.values() for error in outcome.errors]
    for table in TABLES:
        rows = table.filled(measured)
        assert rows, table.name
        assert len({tuple(row) for row in rows}) == 1, table.name  # the same columns everywhere


def test_deciding_numbers_with_chance_have_an_interval() -> None:
    page = (ROOT / "docs" / "paper.md").read_text()
    rows = re.findall(r"^\| (\w+) \| \*\*[^*]+\*\* \| .* \| (.*) \| .* \|$", page, re.MULTILINE)
    assert {name for name, _ in rows} == {claim.name for claim in CLAIMS}
    without = {name for name, decided in rows if not re.search(r"\[.+, .+\]", decided)}
    # Identities, counts, methods without noise from one start, and races that all or none win.
    assert without <= {"S1", "S2", "S7", "M1", "M2", "M3", "M7", "M9", "M16", "X5"}
