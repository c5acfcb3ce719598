"""The paper's simulation study at a small size: what is declared, measured and varied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from asgld import cli
from asgld.run import files
from asgld_study.experiments import paper, study_variants
from asgld_study.experiments.declare import SIZES


def _outcome(number: str, *, replicas: int = 4, steps: int = 60, **rest: Any) -> paper.Outcome:
    return paper.run_configuration(paper.BY_NUMBER[number], replicas=replicas, steps=steps, **rest)


def test_study_declares_the_paper_s_configurations() -> None:
    listed = paper.CONFIGURATIONS
    # twelve of the list, and the one of the figure
    assert [c.number for c in listed] == [str(i) for i in range(1, 14)]
    assert [c.alpha for c in listed] == [0, 0, 0, 1, 1, 0, 1, 1, 1, 0, 0, 0, 0]
    betas = [c.settings.get("beta", 0.0 if c.method == "sgld" else 1.0) for c in listed]
    assert betas == [0, 0, 0, 1, 1, 1, 2, 0.3, 1, 1, 2, 0.3, 0.5]
    tenth = [
        paper.Batches(**{k: v for k, v in c.options.items() if k in paper.BATCH_OPTIONS}).size_at(
            9, 10_000
        )
        for c in listed
    ]
    assert tenth == [1, 10, 10, 1, 10, 10, 10, 10, 1, *[10_000] * 4]
    assert {c.settings["d_init"] for c in listed} == {1.0}


def test_study_measures_errors_and_hits() -> None:
    outcome = _outcome("10")
    assert outcome.steps[0] == 0
    assert outcome.steps[-1] == 60
    # from x = (1, 1): (1 - 0.1)^2 + (1 - 10)^2
    np.testing.assert_allclose(outcome.errors[0], 81.81)
    assert (outcome.errors[-1] < paper.HIT).all()
    assert ((outcome.hits > 10) & (outcome.hits < 40)).all()
    assert (outcome.tail_shares == 1).all()
    assert outcome.samples == 60 * 10_000
    # near the end AGLD sits at the maximum-likelihood point, not at the truth
    assert np.median(outcome.mle_errors[-1]) < np.median(outcome.errors[-1])


def test_study_counts_samples_of_growing_batches() -> None:
    assert _outcome("6", steps=20).samples == sum(range(1, 21))


def test_study_is_reproducible_and_depends_on_the_seed() -> None:
    first, again, other = _outcome("5"), _outcome("5"), _outcome("5", seed=1)
    assert (first.errors == again.errors).all()
    assert not (first.errors == other.errors).any(axis=1)[1:].any()


def test_data_sets_differ_and_batches_are_drawn_from_them() -> None:
    """B = n draws nothing; B = 10 of the same data is noisy around the full gradient."""
    full, sampled = _outcome("10", steps=1), _outcome("5", steps=1, sigma=0.0)
    assert len(np.unique(full.mle_errors[0])) == 4
    assert not np.isclose(full.errors[1], sampled.errors[1]).any()


def test_never_hitting_reads_as_never() -> None:
    summary = _outcome("4", steps=20).summary()
    assert summary["median_hit"] == np.inf
    assert summary["share_hit"] < 0.5
    assert files.format_number(summary["median_hit"]) == "never"


@pytest.mark.parametrize("space", ["project", "reflect"])
def test_spaces_keep_variances_positive(space: str) -> None:
    """With noise of 3 an iterate near 1 changes sign within a few steps, if nothing holds it."""
    outcome = _outcome("2", space=space, lr=0.1, sigma=3.0)
    assert np.isfinite(outcome.errors).all()


def test_lags_differ_after_the_first_step() -> None:
    """Both begin with D = d_init; from the second step on they use different sums."""
    for steps, is_same in ((1, True), (30, False)):
        one, two = (
            study_variants.measure_lag("5", lag=lag, replicas=3, steps=steps)["final"]
            for lag in ("ONE", "TWO")
        )
        assert (one == two) is is_same


def test_variants_change_what_they_say() -> None:
    plain = study_variants.measure("5", replicas=3, steps=30)
    assert plain["final"] == _outcome("5", replicas=3, steps=30).errors[-1].tolist()
    for change in ({"lr": 0.3}, {"sigma": 0.3}, {"d_init": 4.0}, {"delta": 1.0}):
        assert (
            study_variants.measure("5", replicas=3, steps=30, **change)["final"] != (plain["final"])
        )


def test_full_size_has_the_paper_s_replicates() -> None:
    replicas, steps = SIZES["full"].study
    assert replicas >= 100
    assert steps >= 20_000


def test_interrupted_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.csv"
    files.write_text(path, "old")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        files.write_text(path, "new")
    assert path.read_text() == "old"


def test_doctor_passes_here() -> None:
    result = CliRunner().invoke(cli.build_app(), ["doctor"])
    assert result.exit_code == 0, result.output
    assert "loop" in result.output
    assert "FAILED" not in result.output
