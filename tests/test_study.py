"""The paper's simulation study at a small size: what is declared, measured and written."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from asgld import cli, report
from asgld.experiments import paper


def _outcome(number: str, *, replicas: int = 4, steps: int = 60, seed: int = 0) -> paper.Outcome:
    (configuration,) = (c for c in paper.CONFIGURATIONS if c.number == number)
    return paper.run_configuration(configuration, replicas=replicas, steps=steps, seed=seed)


def test_study_declares_the_paper_s_configurations() -> None:
    knobs = [
        (c.build().optimizer([paper.torch.zeros(1)], **c.build().options).param_groups[0])
        for c in paper.CONFIGURATIONS
        if c.number != "8"
    ]
    assert len(paper.CONFIGURATIONS) == 13
    assert [(g["alpha"], g["beta"]) for g in knobs[3:6]] == [(1.0, 1.0), (1.0, 1.0), (0.0, 1.0)]
    assert {g["d_init"] for g in knobs} == {1.0}
    batches = [c.build().batch_size_at(9, 10_000) for c in paper.CONFIGURATIONS]
    assert batches == [1, 10, 10, 1, 10, 10, 10, 10, 1, None, None, None, None]


def test_study_measures_errors_and_hits() -> None:
    outcome = _outcome("10")
    assert outcome.steps[0] == 0
    # from x = (1, 1): (1 - 0.1)^2 + (1 - 10)^2
    np.testing.assert_allclose(outcome.errors[0], 81.81)
    assert (outcome.errors[-1] < paper.HIT).all()
    assert ((outcome.hits > 10) & (outcome.hits < 40)).all()
    assert (outcome.tail_shares == 1).all()
    assert (outcome.samples == 60 * 10_000).all()
    # near the end AGLD sits at the maximum-likelihood point, not at the truth
    assert np.median(outcome.mle_errors[-1]) < np.median(outcome.errors[-1])


def test_study_counts_samples_of_growing_batches() -> None:
    assert (_outcome("6", steps=20).samples == sum(range(1, 21))).all()


def test_study_is_reproducible_and_depends_on_the_seed() -> None:
    first, again, other = _outcome("5"), _outcome("5"), _outcome("5", seed=1)
    assert (first.errors == again.errors).all()
    assert not (first.errors == other.errors).any(axis=1)[1:].any()


def test_never_hitting_reads_as_never() -> None:
    summary = _outcome("4", steps=20).summary()
    assert summary["median_hit"] == np.inf
    assert summary["share_hit"] < 0.5
    assert report.format_number(summary["median_hit"]) == "never"


def test_command_writes_table_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "CONFIGURATIONS", paper.CONFIGURATIONS[9:11])
    result = CliRunner().invoke(
        cli.build_app(), ["reproduce", "--out", str(tmp_path), "--steps", "20", "--replicas", "3"]
    )
    assert result.exit_code == 0, result.output
    assert "AGLD (0, 2)" in result.output
    with (tmp_path / "study.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["number"] for row in rows] == ["10", "11"]
    assert {"q10", "median", "q90", "median_hit"} <= rows[0].keys()
    figures = sorted(p.name for p in (tmp_path / "figures").iterdir())
    assert figures == sorted(
        ["study.png", *(f"error-{i:02d}.{kind}" for i in (10, 11) for kind in ("png", "svg"))]
    )


def test_figures_are_the_same_bytes_for_the_same_results() -> None:
    outcome = _outcome("10", steps=30)
    first, second = (report.as_bytes(report.study_figure(outcome), "png") for _ in range(2))
    assert first == second


def test_interrupted_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.csv"
    report.write_text(path, "old")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(report.os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        report.write_text(path, "new")
    assert path.read_text() == "old"


def test_doctor_passes_here() -> None:
    result = CliRunner().invoke(cli.build_app(), ["doctor"])
    assert result.exit_code == 0, result.output
    assert "loop" in result.output
    assert "FAILED" not in result.output
