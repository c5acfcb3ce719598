"""One trajectory in every layout: 1 = 2 = 4 processes, bit for bit.

Each world size starts its processes once, trains the whole table in them (`distributed_cases`), and
the tests, one per row, compare what every rank saw with a run in a single process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed_cases import (
    LAYOUTS,
    ROUNDED_LAYOUTS,
    ROUNDED_ROWS,
    ROWS,
    Outcome,
    Row,
    expected,
    train_table,
)
from torch.multiprocessing import spawn

from asgld import noise
from asgld.noise import Draw

WORLD_SIZES = [2, pytest.param(4, marks=pytest.mark.slow)]
# Parameters and sums are of order one; a sum of 32 terms of float64 in another order differs by a
# few units in the last place, and three steps carry that on.
ROUNDING = {"rtol": 16 * 2.0**-52, "atol": 16 * 2.0**-52}
Outcomes = list[dict[str, dict[Row, Outcome]]]


@pytest.fixture(scope="session")
def outcomes_of(run_once: Callable[..., Path]) -> Callable[[int], Outcomes]:
    """Return what each rank saw, by world size."""

    @functools.cache
    def outcomes(world_size: int) -> Outcomes:
        folder = run_once(
            f"table-{world_size}",
            lambda folder: spawn(train_table, (world_size, folder), nprocs=world_size),
        )
        return [
            torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(world_size)
        ]

    return outcomes


def _compare(seen: list[Outcome], truth: Outcome, **tolerance: Any) -> None:
    """Every rank has the truth of what it holds, and together they hold everything."""
    for outcome in seen:
        for name, value in outcome.params.items():
            torch.testing.assert_close(value, truth.params[name], **tolerance, msg=name)
        for name, value in outcome.state.items():
            torch.testing.assert_close(value, truth.state[name], **tolerance, msg=name)
        for name, step in outcome.steps.items():
            assert step == truth.steps[name]
        assert outcome.communications == 0
    for field in ("params", "state", "steps"):
        assert set().union(*(getattr(o, field) for o in seen)) == set(getattr(truth, field))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_layout_gives_the_bits_of_one_process(
    row: Row, world_size: int, outcomes_of: Callable[[int], Outcomes]
) -> None:
    seen = [rank["exact"][row] for rank in outcomes_of(world_size)]
    _compare(seen, expected(LAYOUTS[row.layout], row), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("row", ROUNDED_ROWS, ids=str)
def test_network_agrees_up_to_the_order_of_summation(
    row: Row, world_size: int, outcomes_of: Callable[[int], Outcomes]
) -> None:
    seen = [rank["rounded"][row] for rank in outcomes_of(world_size)]
    _compare(seen, expected(ROUNDED_LAYOUTS[row.layout], row), **ROUNDING)


def test_rows_of_noise_are_the_noise_of_the_contract() -> None:
    """What the table compares with is itself what `asgld.noise` says, by name and index."""
    row = Row("ddp", "loop", "noise")
    truth = expected(LAYOUTS["ddp"], row)
    start = expected(LAYOUTS["ddp"], row, steps=0)
    for name, value in truth.params.items():
        x = start.params[name]
        stream = noise.stream_of_name(name)
        for step in range(truth.steps[name]):
            draw = Draw(stream, step, noise.Layout.whole(x.numel()))
            x = x + noise.torch_normals(11, [draw], x.dtype)[0].view(x.shape)
        assert torch.equal(value, x)
