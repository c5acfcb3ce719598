"""The paper's simulation study at a small size: what is declared, measured and varied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_report import assert_flips, change

from asgld_study.engine import SIZES, Outcomes
from asgld_study.paper import simulation
from asgld_study.paper.simulation import BY_NUMBER, CONFIGURATIONS, HIT


def _value(number: str, *, replicas: int = 4, steps: int = 60, **rest: Any) -> dict[str, Any]:
    return simulation.measure_study(number, replicas=replicas, steps=steps, **rest)


def test_study_declares_the_paper_s_configurations() -> None:
    # twelve of the list, and the one of the figure
    assert [c.number for c in CONFIGURATIONS] == [str(i) for i in range(1, 14)]
    assert [c.alpha for c in CONFIGURATIONS] == [0, 0, 0, 1, 1, 0, 1, 1, 1, 0, 0, 0, 0]
    betas = [c.settings.get("beta", 0.0 if c.method == "sgld" else 1.0) for c in CONFIGURATIONS]
    assert betas == [0, 0, 0, 1, 1, 1, 2, 0.3, 1, 1, 2, 0.3, 0.5]
    tenth = [c.batch_at(9, 10_000) for c in CONFIGURATIONS]
    assert tenth == [1, 10, 10, 1, 10, 10, 10, 10, 1, *[10_000] * 4]
    assert {c.settings["d_init"] for c in CONFIGURATIONS} == {1.0}
    replicas, steps = SIZES["full"].study
    assert replicas >= 100
    assert steps >= 20_000


def test_study_measures_errors_and_hits() -> None:
    value = _value("10")
    assert (value["steps"][0], value["steps"][-1]) == (0, 60)
    # from x = (1, 1): (1 - 0.1)^2 + (1 - 10)^2
    assert [band[0] for band in value["bands"].values()] == pytest.approx([81.81] * 3)
    assert max(value["final"]) < HIT
    assert all(10 < hit < 40 for hit in value["hits"])
    assert set(value["tail_shares"]) == {1.0}
    assert value["samples"] == 60 * 10_000
    # near the end AGLD sits at the maximum-likelihood point, not at the truth
    assert np.median(value["final_mle"]) < np.median(value["final"])


def test_study_counts_samples_of_growing_batches() -> None:
    assert _value("6", steps=20)["samples"] == sum(range(1, 21))


def test_study_is_reproducible_and_depends_on_the_seed() -> None:
    first, again, other = _value("5"), _value("5"), _value("5", seed=1)
    assert first == again
    assert not set(first["final"]) & set(other["final"])


def test_data_sets_differ_and_batches_are_drawn_from_them() -> None:
    """B = n draws nothing; B = 10 of the same data is noisy around the full gradient."""
    full, sampled = _value("10", steps=1), _value("5", steps=1, sigma=0.0)
    assert len(set(full["final_mle"])) == 4
    assert not np.isclose(full["final"], sampled["final"]).any()


def test_never_hitting_reads_as_never(outcomes: Outcomes) -> None:
    change(outcomes, "study", lambda v: v.update(hits=[3.0, np.inf, np.inf]))
    rows = simulation.study_rows.rows(outcomes)
    assert {row["first hit"] for row in rows} == {np.inf}
    assert {row["hit at all"] for row in rows} == {1 / 3}


@pytest.mark.parametrize("space", ["project", "reflect"])
def test_spaces_keep_variances_positive(space: str) -> None:
    """With noise of 3 an iterate near 1 changes sign within a few steps, if nothing holds it."""
    assert np.isfinite(_value("2", space=space, lr=0.1, sigma=3.0)["final"]).all()


def test_lags_differ_after_the_first_step() -> None:
    """Both begin with D = d_init; from the second step on they use different sums."""
    for steps, is_same in ((1, True), (30, False)):
        one, two = (_value("5", lag=lag, steps=steps)["final"] for lag in ("ONE", "TWO"))
        assert (one == two) is is_same


def test_variants_change_what_they_say() -> None:
    plain = _value("5", steps=30)["final"]
    for change_of in ({"lr": 0.3}, {"sigma": 0.3}, {"d_init": 4.0}, {"delta": 1.0}):
        assert _value("5", steps=30, **change_of)["final"] != plain
    assert set(BY_NUMBER) > {"9b", "10b"}


def test_numbers_decide_on_the_five_sentences(outcomes: Outcomes) -> None:
    rank = {"10": 1.0, "10b": 1.0, "8": 20.0, "9": 99.0, "9b": 99.0}

    def bend(o: Outcomes, good: bool) -> None:
        def law(v: dict[str, Any]) -> None:
            converges = v["number"] not in ("1", "2", "3", "8")
            time = rank.get(v["number"], 50.0)
            v["tail_shares"] = [1.0 if converges is good else 0.0] * 20
            v["hits"] = [time if good else 100.0 - time] * 20

        change(o, "study", law)

    assert_flips(outcomes, ["X1", "X2", "X3", "X4", "X5"], bend)
