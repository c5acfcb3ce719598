"""Checkpoints of sharded runs: any number of ranks loads them, bit for bit, after any kill."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint_cases as cases
import pytest
import torch
from distributed_cases import LAYOUTS, Outcome, Row, expected
from ranks import run_ranks
from torch.multiprocessing import ProcessExitedException

from asgld import distributed

# Saved on, loaded on.
MOVES = [(2, 1), pytest.param((4, 2), marks=pytest.mark.slow),
         pytest.param((4, 1), marks=pytest.mark.slow)]  # fmt: skip
WAYS = [f"{name}{way}" for name in cases.ROUTES for way in ("", "-asynchronous")]


def _read(folder: Path, pattern: str) -> list[Any]:
    return [torch.load(path, weights_only=False) for path in sorted(folder.glob(pattern))]


@pytest.fixture(scope="session")
def folder_of(run_once: Callable[..., Path]) -> Callable[[int, int], Path]:
    """Return the folder of a run that was saved on some ranks and loaded on others."""

    def folder(saved_on: int, loaded_on: int) -> Path:
        saved = run_once(
            f"saved-on-{saved_on}",
            lambda saved: run_ranks(cases.save_all, saved_on, saved),
        )
        run_once(
            f"saved-on-{saved_on}-loaded-on-{loaded_on}",
            lambda _: run_ranks(cases.load_all, loaded_on, saved),
        )
        return saved

    return folder


def _assert_uninterrupted(outcome: Outcome, row: Row) -> None:
    truth = expected(LAYOUTS[row.layout], row, cases.END)
    for name, value in outcome.params.items():
        assert torch.equal(value, truth.params[name]), name
    for name, value in outcome.state.items():
        assert torch.equal(value, truth.state[name]), name
    assert set(outcome.steps.values()) == {cases.END}


@pytest.mark.parametrize("move", MOVES, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_resume_on_other_ranks_is_bit_exact(
    way: str, move: tuple[int, int], folder_of: Callable[[int, int], Path]
) -> None:
    row, _ = cases.ROUTES[way.removesuffix("-asynchronous")]
    for outcomes in _read(folder_of(*move), f"loaded-{move[1]}-*.pt"):
        outcome, sampler = outcomes[way]
        _assert_uninterrupted(outcome, row)
        assert len(outcome.steps) == len(outcome.params)
        assert sampler["step"] == cases.SAVED


@pytest.mark.parametrize("move", MOVES, ids=str)
@pytest.mark.parametrize(("way", "row"), [("full", cases.SHARDED), ("zero", cases.ZERO)])
def test_whole_states_resume_bit_exactly(
    way: str, row: Row, move: tuple[int, int], folder_of: Callable[[int, int], Path]
) -> None:
    for outcomes in _read(folder_of(*move), f"loaded-{move[1]}-*.pt"):
        _assert_uninterrupted(outcomes[way], row)


@pytest.mark.parametrize("name", cases.ROUTES)
def test_saving_changes_nothing(name: str, folder_of: Callable[[int, int], Path]) -> None:
    """Not the run, which goes on as if not saved; not an optimizer that has not stepped yet."""
    for outcomes in _read(folder_of(2, 1), "saved-*.pt"):
        _assert_uninterrupted(outcomes[name], cases.ROUTES[name][0])
        fresh = outcomes[f"fresh-{name}"]
        assert set(fresh.steps.values()) == {0}
        assert not any(value.any() for value in fresh.state.values())


@pytest.mark.parametrize(
    ("victim", "where"), [(1, "write_data"), pytest.param(0, "finish", marks=pytest.mark.slow)]
)
def test_kill_during_a_save_leaves_the_previous_one(
    victim: int, where: str, tmp_path: Path
) -> None:
    with pytest.raises(ProcessExitedException, match=f"process {victim} .*SIGKILL"):
        run_ranks(cases.die_while_saving, 2, tmp_path, victim, where)
    assert len(list((tmp_path / "killed").iterdir())) == 2  # the second was begun
    latest = distributed.latest(tmp_path / "killed")
    assert latest is not None
    assert latest.name.endswith(f"{cases.SAVED}")
    run_ranks(cases.load_after_kill, 1, tmp_path)
    (outcome, _) = torch.load(tmp_path / "loaded-0.pt", weights_only=False)
    _assert_uninterrupted(outcome, cases.SHARDED)


def test_latest_is_none_where_nothing_is_whole(tmp_path: Path) -> None:
    (tmp_path / "step-0000000003").mkdir()
    assert distributed.latest(tmp_path) is None
    assert distributed.latest(tmp_path / "absent") is None
