"""Cells: what they refuse, where they start, how they count, and what an engine makes of them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from cell_cases import BROKEN, ESCAPE, NEWTON, SADDLE, content, measured

from asgld.methods import method as make_method
from asgld.oracle import Oracle
from asgld.problems import problem
from asgld.run import run
from asgld_study.cells import measure_cells, start_points


def test_key_depends_on_everything_and_on_nothing_else() -> None:
    changed = [
        dataclasses.replace(ESCAPE, **change)
        for change in (
            {"problem_options": {**SADDLE, "dim": 9}}, {"options": {"lr": 0.2, "sigma": 0.003}},
            {"start": "kicked"}, {"seed": 1}, {"replicas": 7}, {"max_steps": 900},
            {"budget": 100.0}, {"eps": 0.04}, {"gamma": 0.2}, {"until": "fall"},
            {"tags": {"noise": "equal"}}, {"method": "sgld"},
        )
    ]  # fmt: skip
    assert len({cell.task.key for cell in (ESCAPE, *changed)}) == len(changed) + 1
    reordered = dataclasses.replace(ESCAPE, options={"sigma": 0.003, "lr": 0.1})
    assert reordered.task.key == ESCAPE.task.key


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"start": "here"}, "start='here'"),
        ({"until": "dawn"}, "until='dawn'"),
        ({"until": "fall", "start": "random"}, "until='fall'"),
        ({"replicas": 0}, "replicas=0"),
    ],
)
def test_cell_rejects_what_it_cannot_run(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(ESCAPE, **change)


def test_kicked_starts_are_small_random_and_do_not_depend_on_the_number() -> None:
    subject = problem("strict-saddle", **SADDLE)
    few, many = (
        start_points(subject, dataclasses.replace(ESCAPE, start="kicked", replicas=r))
        for r in (3, 5)
    )
    assert torch.equal(few, many[:3])
    radius = 0.5 / (2.0 * subject.facts.hessian_lipschitz)  # gamma / (2 rho)
    lengths = many.norm(dim=-1)
    assert float(lengths.max()) <= 1e-3 * radius
    assert float(lengths.min()) > 0.0


def test_start_at_a_saddle_needs_one() -> None:
    with pytest.raises(ValueError, match="saddle=3"):
        start_points(problem("strict-saddle", **SADDLE), dataclasses.replace(ESCAPE, saddle=3))


def test_methods_that_run_alone_give_what_a_batch_of_them_gives() -> None:
    # This one draws its perturbation: replicas must differ, and each have the seed of its number.
    result = measured(NEWTON, method="carmon-cubic", until=None, max_steps=2)
    together = run(
        Oracle(problem("strict-saddle", **SADDLE)),
        make_method("carmon-cubic"),
        torch.zeros(3, 8, dtype=torch.float64),
        max_steps=2,
    )
    assert result.ends["final_value"] == together.values.tolist()
    assert result.ends["hvp"] == together.counts.calls["hvp"].tolist()
    assert len(set(result.ends["final_value"])) == 3


def test_counts_at_an_event_are_those_of_its_step() -> None:
    result = measured(NEWTON)
    assert result.events["sosp"]["hessian"] == result.events["sosp"]["steps"]
    assert result.events["sosp"]["eigh"] == result.events["sosp"]["steps"]


def test_budget_censors_and_finishing_never_arrives() -> None:
    times, is_event = measured(ESCAPE, budget=20.0).times("sosp", "spent")
    assert not is_event.any()
    assert times.tolist() == [20.0] * 6
    finished = measured(ESCAPE, method="trust-krylov", options={}, replicas=2, max_steps=50)
    assert set(finished.ends["stop"]) == {"FINISHED"}
    times, is_event = finished.times("sosp")
    assert np.isinf(times).all()
    assert not is_event.any()
    assert finished.median("sosp") == math.inf


def test_path_ends_at_the_final_values() -> None:
    result = measured(ESCAPE, max_steps=60, until=None)
    assert result.path["q50"][-1] == pytest.approx(np.median(result.ends["final_value"]))
    assert result.path["steps"][-1] == 60
    assert np.all(np.array(result.path["q25"]) <= np.array(result.path["q75"]))


def test_a_failing_cell_is_told_and_stops_nothing() -> None:
    broken, newton = measure_cells([BROKEN, NEWTON])
    assert "ValueError" in broken.error
    assert "-1.0" in broken.error
    assert broken.label == "agld"
    assert math.isnan(broken.median("sosp"))
    assert math.isnan(broken.share("sosp"))
    assert not newton.error


def test_stored_results_are_those_of_a_fresh_run(tmp_path: Path) -> None:
    fresh = measure_cells([NEWTON, BROKEN], folder=tmp_path)
    again = measure_cells([NEWTON, BROKEN], folder=tmp_path)
    assert [content(r) for r in fresh] == [content(r) for r in again]
    assert fresh[0].seconds == again[0].seconds  # measured once
