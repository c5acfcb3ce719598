"""One trajectory in every layout: 1 = 2 = 4 processes, bit for bit.

Each world size starts its processes once, trains its table in them (`distributed_cases`), and
the tests, one per row, compare what every rank saw with a run in a single process.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed_cases import (
    FEW_ROWS,
    LAYOUTS,
    PLACINGS,
    ROUNDED_LAYOUTS,
    ROUNDED_ROWS,
    ROWS,
    SHARED_WORK,
    WHOLE,
    Layout,
    Outcome,
    Placing,
    Row,
    batch,
    count_products,
    expected,
    measure_gradients,
    plain,
    train_placed,
    train_table,
)
from helpers import BACKENDS, make_tensor
from ranks import run_ranks
from torch.testing._internal.distributed.fake_pg import FakeStore

import asgld
from asgld import noise
from asgld.noise import Draw

WORLD_SIZES = [2, pytest.param(4, marks=pytest.mark.slow)]
# Parameters and sums are of order one; a sum of 32 terms of float64 in another order differs by a
# few units in the last place, and three steps carry that on.
ROUNDING = {"rtol": 16 * 2.0**-52, "atol": 16 * 2.0**-52}
Outcomes = list[dict[str, dict[Any, Any]]]


@pytest.fixture(scope="session")
def outcomes_of(
    run_once: Callable[..., Path], request: pytest.FixtureRequest
) -> Callable[[int], Outcomes]:
    """Return what each rank saw, by world size."""
    rows = ROWS if request.config.getoption("--slow") else FEW_ROWS

    @functools.cache
    def outcomes(world_size: int) -> Outcomes:
        folder = run_once(
            f"table-{world_size}",
            lambda folder: run_ranks(train_table, world_size, folder, rows),
        )
        return [
            torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(world_size)
        ]

    return outcomes


def _compare(seen: list[Outcome], layout: Layout, row: Row, **tolerance: Any) -> None:
    """Every rank has the truth of what it holds, and together they hold everything."""
    truth = expected(layout, row)
    for outcome in seen:
        for name, value in outcome.params.items():
            torch.testing.assert_close(value, truth.params[name], **tolerance, msg=name)
        for name, value in outcome.state.items():
            torch.testing.assert_close(value, truth.state[name], **tolerance, msg=name)
        for name, step in outcome.steps.items():
            assert step == truth.steps[name]
        if outcome.communications is not None:
            assert outcome.communications == layout.communications
    for field in ("params", "state", "steps"):
        assert set().union(*(getattr(o, field) for o in seen)) == set(getattr(truth, field))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize(
    "row",
    [row if row in FEW_ROWS else pytest.param(row, marks=pytest.mark.slow) for row in ROWS],
    ids=str,
)
def test_layout_gives_the_bits_of_one_process(
    row: Row, world_size: int, outcomes_of: Callable[[int], Outcomes]
) -> None:
    seen = [rank["exact"][row] for rank in outcomes_of(world_size)]
    _compare(seen, LAYOUTS[row.layout], row, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("row", ROUNDED_ROWS, ids=str)
def test_network_agrees_up_to_the_order_of_summation(
    row: Row, world_size: int, outcomes_of: Callable[[int], Outcomes]
) -> None:
    seen = [rank["rounded"][row] for rank in outcomes_of(world_size)]
    _compare(seen, ROUNDED_LAYOUTS[row.layout], row, **ROUNDING)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("layout", WHOLE)
def test_scale_of_gradients_is_that_of_one_process(
    layout: str, world_size: int, outcomes_of: Callable[[int], Outcomes]
) -> None:
    mean_square, scales = measure_gradients(plain(LAYOUTS[layout].kind))
    for rank in outcomes_of(world_size):
        seen, seen_scales = rank["measured"][layout]
        assert seen == pytest.approx(mean_square, rel=1e-13)
        assert seen_scales == pytest.approx(scales, rel=1e-13)
        assert rank["measured"][layout] == outcomes_of(world_size)[0]["measured"][layout]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("placing", PLACINGS, ids=str)
def test_gradient_is_moved_to_where_its_parameter_is(
    placing: Placing, world_size: int, outcomes_of: Callable[[int], Outcomes]
) -> None:
    truth = train_placed(placing, mesh=None)
    for rank in outcomes_of(world_size):
        for value, expected_value in zip(rank["placed"][str(placing)], truth, strict=True):
            assert torch.equal(value, expected_value)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("name", SHARED_WORK)
def test_ranks_share_the_products_of_matrices(
    name: str, world_size: int, outcomes_of: Callable[[int], Outcomes]
) -> None:
    """Eight equal matrices: each rank multiplies its share of them, and no product is done twice.
    Plain replicas multiply all, unless they are asked to share."""
    all_products, params = count_products(None)
    for rank in outcomes_of(world_size):
        products, seen = rank["products"][name]
        assert products == (all_products if name == "ddp" else all_products // world_size)
        for key, value in seen.items():
            assert torch.equal(value, params[key]), key


@pytest.mark.parametrize("kind", ["gradient", "size"])
def test_ranks_that_cannot_share_say_so_before_anything_moves(
    kind: str, outcomes_of: Callable[[int], Outcomes]
) -> None:
    for rank in outcomes_of(2):
        assert "share_work" in rank["refused"][kind]
        assert rank["refused"][kind].endswith("kept True")


@pytest.fixture
def second_of_two() -> Iterator[None]:
    """A stand-in process group, of which this process is the second rank."""
    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("second_of_two")
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_torch_refuses_to_shard_what_tensor_parallelism_left_empty() -> None:
    """Why the table has no "mesh-rows-empty": a torch that takes it fails here, so that the row is
    added and the limit struck from the documentation."""
    wrap = LAYOUTS["mesh-rows"].wrap
    wrap("uneven").backward(batch(0, torch.float32))
    with pytest.raises(RuntimeError, match="_chunk_cat expects non-empty tensor"):
        wrap("empty").backward(batch(0, torch.float32))


@pytest.mark.parametrize("backend", BACKENDS)
def test_replaced_state_is_used(backend: str) -> None:
    """ZeroRedundancyOptimizer loads by giving a parameter a new dictionary of state."""
    p = make_tensor(8, seed=0).requires_grad_()
    p.grad = torch.ones(8)
    optimizer = asgld.ASGLD([p], **BACKENDS[backend])
    optimizer.step()
    state = copy.deepcopy(optimizer.state[p])
    state["step"] += 5
    state["sum"] += 3.0
    optimizer.state[p] = state
    optimizer.step()
    assert int(optimizer.state[p]["step"]) == 7
    assert torch.equal(optimizer.state[p]["sum"], torch.full((8,), 5.0))


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
