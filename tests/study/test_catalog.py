"""Searches and settings by theory: the best trial wins, and every method can be built."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from cell_cases import ESCAPE, NEWTON, measured

from asgld.methods import method as make_method
from asgld.oracle import Oracle
from asgld.problems import problem
from asgld.run import run
from asgld_study.catalog import (
    BY_LABEL,
    CONTENDERS,
    HELD_OUT_SEED,
    Contender,
    SettingSearch,
    options_by_theory,
    proved_options,
    run_searches,
)
from asgld_study.cells import Cell

DESCENT = dataclasses.replace(ESCAPE, method="gd", options={}, start="kicked", max_steps=300)


def test_search_finds_the_best_trial() -> None:
    search = SettingSearch(DESCENT, {"lr": (1e-2, 1.0)}, trials=5)
    (tuned,) = run_searches([search])
    costs = {
        draw["lr"]: measured(DESCENT, options=draw, seed=HELD_OUT_SEED).median("sosp", "spent")
        for draw in search.draws()
    }
    assert tuned.cost == min(costs.values())
    assert costs[tuned.options["lr"]] == tuned.cost


def test_first_draws_do_not_depend_on_their_number_and_lie_in_the_ranges() -> None:
    search = SettingSearch(DESCENT, {"lr": (1e-3, 1.0), "wait": (2, 50)}, trials=9)
    draws = search.draws()
    assert draws[:3] == dataclasses.replace(search, trials=3).draws()
    assert draws[0] == {"lr": 0.0316, "wait": 10}  # the middle, on a logarithmic scale
    for draw in draws:
        assert 1e-3 <= draw["lr"] <= 1.0
        assert isinstance(draw["wait"], int)
    assert SettingSearch(DESCENT, {}, trials=2).draws() == [{}, {}]


def test_search_goes_on_after_a_failed_trial_and_keeps_the_middle_if_none_arrives() -> None:
    broken = SettingSearch(DESCENT, {"momentum": (0.1, 1.0)}, trials=2)
    hopeless = SettingSearch(
        dataclasses.replace(DESCENT, max_steps=1), {"lr": (1e-3, 1.0)}, trials=2
    )
    failed, late = run_searches([broken, hopeless])
    assert len(failed.failed) == 2
    assert "momentum" in failed.failed[0]
    assert math.isinf(late.cost)
    assert late.options == hopeless.draws()[0]


def test_searches_are_kept(tmp_path: Path) -> None:
    searches = [
        SettingSearch(NEWTON, {"regularization": (1e-2, 1e2)}, trials=2),
        SettingSearch(dataclasses.replace(ESCAPE, options={"sigma": 0.01}), {"lr": (0.01, 1)}, 2),
    ]
    first = run_searches(searches, folder=tmp_path)
    assert run_searches(searches, folder=tmp_path) == first
    assert first[1].options["sigma"] == 0.01


@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda c: c.label)
@pytest.mark.parametrize("samples", [None, 64])
def test_settings_by_theory_and_by_search_build_every_method(
    contender: Contender, samples: int | None
) -> None:
    subject = problem("strict-saddle", dim=6, num_samples=samples, noise=0.1)
    proved = proved_options(contender, subject, eps=0.1, gamma=0.3, gap=0.1)
    assert proved is not None
    drawn = {k: math.sqrt(low * high) for k, (low, high) in contender.search_ranges.items()}
    for options in (proved, {**contender.base(subject), **drawn}):
        method = make_method(contender.method, **options)
        start = torch.full((2, 6), 0.1, dtype=torch.float64)
        assert run(Oracle(subject), method, start, max_steps=2).steps.min() >= 1


def test_problems_without_constants_have_no_settings_by_theory() -> None:
    digits = problem("digits", hidden=2, num_samples=20)
    cell = Cell("digits", "gd", eps=0.1, gamma=0.1)
    assert options_by_theory(BY_LABEL["gd"], digits, cell) is None
