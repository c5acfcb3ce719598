"""Every matrix gets to one owner, whole, and its result gets back to all who hold a part."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import pickle
import queue
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from exchange_cases import CASES, Outcome, run_cases
from helpers import make_tensor
from ranks import run_ranks
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from asgld.optim import exchange
from asgld.optim.exchange import (
    Exchange,
    Holder,
    MatrixItem,
    Spread,
    balance,
    key_of,
    plan_exchange,
    plan_for_rank,
)

WORLD_SIZES = [2, pytest.param(4, marks=pytest.mark.slow)]

# ----------------------------------------------------------------------------------------------
# One process
# ----------------------------------------------------------------------------------------------


def test_plain_tensors_stay_where_they_are() -> None:
    params = [make_tensor(6, 4, seed=0), make_tensor(5, seed=1), make_tensor(seed=2)]
    plan = plan_exchange(params, [3, 1, 1])
    assert plan.items == [
        MatrixItem(0, 0, (2, 4)),
        MatrixItem(0, 2, (2, 4)),
        MatrixItem(0, 4, (2, 4)),
        MatrixItem(1, 0, (5,)),
        MatrixItem(2, 0, (1,)),
    ]
    assert plan.mine == [0, 1, 2, 3, 4]
    wholes = plan.gather(params)
    for item, whole in zip(plan.items, wholes, strict=True):
        source = params[item.param].reshape(-1)
        width = math.prod(item.shape[1:])
        assert whole.shape == item.shape
        assert whole.data_ptr() == source[item.begin * width :].data_ptr()
    results = [2 * whole for whole in wholes]
    parts = plan.scatter(results)
    for part, param in zip(parts, params, strict=True):
        assert part.shape == param.shape
        assert torch.equal(part, 2 * param)
    # A result that is a whole parameter is handed on, not copied.
    assert [p.data_ptr() for p in parts[1:]] == [r.data_ptr() for r in results[3:]]


def test_results_are_returned_in_the_dtype_of_the_parameter_or_in_that_asked_for() -> None:
    params = [make_tensor(4, 4, seed=0), make_tensor(2, 2, seed=1, dtype=torch.float64)]
    plan = plan_exchange(params, [1, 1])
    wholes = plan.gather([p.bfloat16() for p in params])
    assert [w.dtype for w in wholes] == [torch.bfloat16] * 2
    assert [p.dtype for p in plan.scatter(wholes)] == [torch.float32, torch.float64]
    halves = plan.scatter(wholes, dtype=torch.bfloat16)
    assert [h.data_ptr() for h in halves] == [w.data_ptr() for w in wholes]
    each = plan.scatter(wholes, dtype=[torch.float64, torch.bfloat16])
    assert [p.dtype for p in each] == [torch.float64, torch.bfloat16]


def test_every_copy_is_known_where_nothing_travels() -> None:
    params = [make_tensor(6, 4, seed=0), make_tensor(5, 2, seed=1)]
    plan = plan_exchange(params, [2, 1])
    sums = [whole.sum(1) for whole in plan.gather(params)]
    copies = plan.share_copies(sums, [(3,), (3,), (5,)], torch.float64, "cpu")
    assert all(torch.equal(c, s.double()) for c, s in zip(copies, sums, strict=True))


def test_sharing_without_a_process_group_is_working_alone() -> None:
    assert plan_exchange([torch.zeros(2, 2)] * 3, [1] * 3, share=True).mine == [0, 1, 2]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)])
def test_empty_parameter(shape: tuple[int, ...]) -> None:
    plan = plan_exchange([torch.zeros(shape)], [1])
    (whole,) = plan.gather([torch.zeros(shape)])
    assert whole.shape == shape
    assert plan.scatter([whole])[0].shape == shape


@pytest.mark.parametrize(("shape", "blocks"), [((7, 3), 3), ((4, 2), 0), ((4, 2), -2), ((), 2)])
def test_blocks_that_do_not_divide_are_refused(shape: tuple[int, ...], blocks: int) -> None:
    with pytest.raises(ValueError) as caught:
        plan_exchange([torch.zeros(shape)], [blocks])
    assert f"blocks={blocks}" in str(caught.value)
    assert str(shape) in str(caught.value)


def test_shapes_that_are_not_those_of_the_plan_are_refused() -> None:
    plan = plan_exchange([torch.zeros(4, 2)], [2])
    with pytest.raises(ValueError, match=r"sources have shapes \[\(2, 4\)\]: need \[\(4, 2\)\]"):
        plan.gather([torch.zeros(2, 4)])
    with pytest.raises(ValueError, match=r"results have shapes .*need \[\(2, 2\), \(2, 2\)\]"):
        plan.scatter([torch.zeros(2, 2)])
    with pytest.raises(ValueError, match="results have shapes"):
        plan.share_copies([torch.zeros(3)] * 2, [(2,), (2,)], torch.float32, "cpu")


@pytest.fixture
def third_of_four() -> Iterator[None]:
    """A stand-in process group, of which this process is the third rank."""
    dist.init_process_group("fake", rank=2, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("third_of_four")
def test_key_tells_what_a_plan_depends_on() -> None:
    line, square = DeviceMesh("cpu", [0, 1, 2, 3]), DeviceMesh("cpu", [[0, 1], [2, 3]])

    def sharded(mesh: DeviceMesh, *placements: Any, dtype: torch.dtype = torch.float32) -> Tensor:
        return DTensor.from_local(torch.zeros(2, 2, dtype=dtype), mesh, placements)

    params = [
        torch.zeros(8, 2),
        torch.zeros(2, 8),
        torch.zeros(8, 2, dtype=torch.float64),
        torch.zeros(8, 2, device="meta"),
        sharded(line, Shard(0)),
        sharded(line, Shard(1)),
        sharded(line, Shard(0), dtype=torch.float64),
        sharded(DeviceMesh("cpu", [3, 2, 1, 0]), Shard(0)),
        sharded(square, Shard(0), Shard(0)),
        sharded(square, _StridedShard(0, split_factor=2), Shard(0)),
    ]
    keys = {key_of([p]) for p in params}
    assert len(keys) == len(params)
    again = sharded(DeviceMesh("cpu", [0, 1, 2, 3]), Shard(0))
    assert key_of([again, params[0]]) == key_of([params[4], params[0]])
    assert key_of([params[4]]) != key_of([params[4]] * 2)


@pytest.mark.usefixtures("third_of_four")
def test_a_replica_shares_its_work_only_if_asked() -> None:
    mesh = DeviceMesh("cpu", [0, 1, 2, 3])
    copies = [DTensor.from_local(torch.zeros(3, 3), mesh, [Replicate()]) for _ in range(8)]
    for params in (copies, [torch.zeros(3, 3)] * 8):
        assert plan_exchange(params, [1] * 8).mine == list(range(8))
        assert plan_exchange(params, [1] * 8, share=True).mine == [2, 6]


def test_plan_can_be_copied_and_saved() -> None:
    plan = plan_for_rank(1, [_on_mesh((7, 4), 1, (2, 2), (Replicate(), Shard(0)))])
    assert copy.deepcopy(plan) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan


# ----------------------------------------------------------------------------------------------
# Owners: of plans for many ranks, made in this process
# ----------------------------------------------------------------------------------------------


def _on_mesh(
    shape: tuple[int, ...],
    blocks: int,
    mesh_shape: tuple[int, ...],
    placements: tuple[Any, ...],
    ranks: tuple[int, ...] | None = None,
) -> Spread:
    ranks = tuple(range(math.prod(mesh_shape))) if ranks is None else ranks
    return Spread(shape, blocks, exchange._holders(shape, mesh_shape, ranks, placements))


def _loads(plan: Exchange, ranks: int) -> list[float]:
    loads = [0.0] * ranks
    for item, owner in zip(plan.items, plan.owners, strict=True):
        loads[owner] += exchange._work(item.shape)
    return loads


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("count", [1, 5, 24, 100])
def test_equal_items_are_spread_evenly(ranks: int, count: int) -> None:
    spread = _on_mesh((256, 64), 1, (ranks,), (Shard(0),))
    plan = plan_for_rank(0, [spread] * count)
    loads = _loads(plan, ranks)
    assert max(loads) - min(loads) <= exchange._work((256, 64))


def test_unequal_items_are_spread_within_the_largest() -> None:
    draw = random.Random(0)
    spreads = [
        _on_mesh((8 * draw.randint(1, 64), 8 * draw.randint(1, 64)), 1, (8,), (Shard(0),))
        for _ in range(200)
    ]
    plan = plan_for_rank(0, spreads)
    loads = _loads(plan, 8)
    assert max(loads) - min(loads) <= max(exchange._work(item.shape) for item in plan.items)
    # Greedy, largest first, is at most a third above the best (Graham 1969); here it is far better.
    assert max(loads) <= 1.01 * sum(loads) / 8


def test_what_has_one_candidate_is_given_first() -> None:
    load = {0: 0.0, 1: 0.0}
    assert balance([(0, 1), (0,), (0, 1)], [5.0, 4.0, 1.0], load) == [1, 0, 0]
    assert load == {0: 5.0, 1: 5.0}


def test_small_sets_of_ranks_know_what_larger_ones_have_taken() -> None:
    large = [_on_mesh((8, 8), 1, (4,), (Shard(0),)), _on_mesh((6, 6), 1, (4,), (Shard(0),))]
    small = [_on_mesh((4, 4), 1, (2,), (Shard(0),), ranks) for ranks in ((0, 1), (2, 3))]
    assert plan_for_rank(0, [*small, *large]).owners == [1, 2, 0, 1]


def test_who_holds_all_of_an_item_owns_it() -> None:
    """Experts over ranks: nothing travels. With replicas only results do, and all replicas work."""
    plan = plan_for_rank(2, [_on_mesh((8, 4, 6), 8, (4,), (Shard(0),))])
    assert plan.owners == [0, 0, 1, 1, 2, 2, 3, 3]
    assert not plan._inward.travels
    assert not plan._outward.travels
    plan = plan_for_rank(2, [_on_mesh((8, 4, 6), 8, (2, 2), (Replicate(), Shard(0)))])
    assert sorted(plan.owners) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert not plan._inward.travels
    assert plan._outward.travels == list(range(8))


def test_work_is_that_of_the_matrix() -> None:
    assert exchange._work((3, 5)) == exchange._work((5, 3)) == 4 * 9 * 5 + 2 * 27
    assert exchange._work((1, 3, 5)) == exchange._work((3, 5))
    assert exchange._work((3, 5, 2)) == exchange._work((3, 10))
    assert exchange._work((7,)) == exchange._work((7, 1))
    plan = plan_for_rank(
        0, [_on_mesh((4, 4), 1, (2,), (Shard(0),))] * 3, lambda shape: float(shape[0])
    )
    assert plan.owners == [0, 1, 0]


def test_a_part_is_sent_by_the_replica_of_the_owner() -> None:
    spread = _on_mesh((8, 4), 1, (2, 4), (Replicate(), Shard(0)))
    for rank in range(8):
        plan = plan_for_rank(rank, [spread] * 8)
        assert len(plan.mine) == 1
        assert {m.peer // 4 for m in plan._inward.receives} == {rank // 4}
        assert len(plan._inward.receives) == 3


def test_ranks_of_a_mesh_agree_though_each_knows_other_meshes() -> None:
    """Each rank lists the parameters of its own meshes: all ranks, halves, and a ring of pairs."""
    draw = random.Random(1)
    sets = [tuple(range(6)), (0, 1, 2), (3, 4, 5), *((a, (a + 1) % 6) for a in range(6))]
    params = [
        _on_mesh((draw.randint(2, 9), draw.randint(2, 9)), 1, (len(ranks),), (Shard(1),), ranks)
        for ranks in sets * 7
    ]
    owners = defaultdict(set)
    for rank in range(6):
        known = [i for i, spread in enumerate(params) if rank in exchange._ranks_of(spread)]
        plan = plan_for_rank(rank, [params[i] for i in known])
        for i, owner in zip(known, plan.owners, strict=True):
            owners[i].add(owner)
    assert all(len(found) == 1 for found in owners.values())
    assert len(owners) == len(params)


# ----------------------------------------------------------------------------------------------
# Messages: threads play the ranks
# ----------------------------------------------------------------------------------------------


class Post:
    """Mail between threads, in place of all_to_all: `swap` is what `exchange._swap` is."""

    def __init__(self) -> None:
        self.who = threading.local()
        self.lock = threading.Lock()
        self.boxes: dict[Any, queue.Queue[Any]] = defaultdict(queue.Queue)

    def box(self, *address: Any) -> queue.Queue[Any]:
        with self.lock:
            return self.boxes[address]

    def swap(self, ranks: Any, outgoing: Any, incoming: Any, kind: Any) -> list[Tensor]:
        me = self.who.rank
        for peer in ranks:
            letters = [t.reshape(-1) for to, t in outgoing if to == peer]
            self.box(me, peer, ranks, kind[0]).put(letters)
        mail = {peer: self.box(peer, me, ranks, kind[0]).get(timeout=20) for peer in ranks}
        found = [mail[peer].pop(0) for peer, _ in incoming]
        assert not any(mail.values()), "a letter that nobody expects"
        assert [t.numel() for t in found] == [length for _, length in incoming]
        assert all(t.dtype == kind[0] for t in found)
        return found

    def run(self, ranks: int, work: Callable[[int], None]) -> None:
        errors: list[BaseException] = []

        def play(rank: int) -> None:
            self.who.rank = rank
            try:
                work(rank)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=play, args=(rank,)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


def _random_spread(draw: random.Random, ranks: int) -> Spread:
    meshes = [m for m in itertools.product(range(1, ranks + 1), repeat=2) if math.prod(m) <= ranks]
    mesh_shape = draw.choice([(n,) for n in range(1, ranks + 1)] + meshes)
    blocks = draw.choice([1, 1, 2, 3])
    sizes = [blocks * draw.randint(0, 5), *(draw.randint(0, 6) for _ in range(draw.randint(0, 2)))]
    kinds = [Replicate(), *(Shard(dim) for dim in range(len(sizes)))]
    placements = tuple(draw.choice(kinds) for _ in mesh_shape)
    if placements[0] == placements[-1] == Shard(0) and len(placements) == 2 and draw.random() < 0.7:
        placements = _StridedShard(0, split_factor=mesh_shape[1]), Shard(0)
    members = tuple(draw.sample(range(ranks), math.prod(mesh_shape)))
    return _on_mesh(tuple(sizes), blocks, mesh_shape, placements, members)


def _block(whole: Tensor, box: exchange.Box) -> Tensor:
    return whole[tuple(slice(a, b) for a, b in box)].clone()


@pytest.mark.parametrize("seed", range(40))
def test_random_layouts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    ranks = draw.randint(1, 8)
    spreads = [_random_spread(draw, ranks) for _ in range(draw.randint(1, 6))]
    wholes = [make_tensor(*spread.shape, seed=i) for i, spread in enumerate(spreads)]
    post = Post()
    monkeypatch.setattr(exchange, "_swap", post.swap)
    owned: Counter[int] = Counter()

    def held(rank: int, param: int) -> Tensor:
        boxes = [h.box for h in spreads[param].holders if h.rank == rank]
        return _block(wholes[param], boxes[0]) if boxes else torch.empty(0)

    def work(rank: int) -> None:
        plan = plan_for_rank(rank, spreads)
        owned.update(plan.mine)
        truth = [wholes[i.param][i.begin : i.begin + i.shape[0]] for i in plan.items]
        gathered = plan.gather([held(rank, param) for param in range(len(spreads))])
        for i, whole in zip(plan.mine, gathered, strict=True):
            assert torch.equal(whole, truth[i])
        parts = plan.scatter([2 * whole for whole in gathered], dtype=torch.float64)
        for param, part in enumerate(parts):
            assert torch.equal(part, 2 * held(rank, param).double())
        shapes = [item.shape[1:] for item in plan.items]
        copies = plan.share_copies(
            [whole.sum(0) for whole in gathered], shapes, torch.float32, "cpu"
        )
        for item, copied, whole in zip(plan.items, copies, truth, strict=True):
            is_member = any(h.rank == rank for h in spreads[item.param].holders)
            assert torch.equal(copied, whole.sum(0) if is_member else torch.empty(0))

    post.run(ranks, work)
    assert set(owned.values()) == {1}


def test_every_element_travels_once_to_the_owner() -> None:
    spread = _on_mesh((8, 4), 1, (2, 3), (Replicate(), Shard(1)))
    plans = [plan_for_rank(rank, [spread] * 5) for rank in range(6)]
    sent = [m for plan in plans for m in plan._inward.sends]
    assert len({(m.peer, m.item, m.box) for m in sent}) == len(sent)
    elements = sum(math.prod(exchange._shape(m.box)) for m in sent)
    kept = sum(
        math.prod(exchange._shape(box))
        for plan in plans
        for i in plan.mine
        if (box := plan._own[i]) is not None
    )
    assert elements + kept == 5 * 32


# ----------------------------------------------------------------------------------------------
# Processes
# ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def exchanged(run_once: Callable[..., Path]) -> Callable[[int], list[dict[str, Outcome]]]:
    """Return what each rank saw, by world size."""

    @functools.cache
    def outcomes(world_size: int) -> list[dict[str, Outcome]]:
        folder = run_once(
            f"exchange-{world_size}", lambda folder: run_ranks(run_cases, world_size, folder)
        )
        return [
            torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(world_size)
        ]

    return outcomes


def _truth(outcome: Outcome) -> list[Tensor]:
    return [
        (
            outcome.wholes[item.param].reshape(-1)
            if item.shape == (1,)
            else outcome.wholes[item.param]
        )[item.begin : item.begin + item.shape[0]]
        for item in outcome.items
    ]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("case", CASES)
def test_owner_gets_the_whole_and_holders_get_their_parts(
    case: str, world_size: int, exchanged: Callable[[int], list[dict[str, Outcome]]]
) -> None:
    for rank, outcomes in enumerate(exchanged(world_size)):
        seen = outcomes[case]
        truth = _truth(seen)
        assert [whole.shape for whole in truth] == [item.shape for item in seen.items]
        for i, whole in zip(seen.mine, seen.gathered, strict=True):
            assert torch.equal(whole, truth[i])
        for part, doubled, half in zip(seen.parts, seen.scattered, seen.halves, strict=True):
            assert doubled.dtype == part.dtype
            assert torch.equal(doubled, 2 * part)
            assert torch.equal(half, (2 * part).bfloat16())
        for copied, whole in zip(seen.copies, truth, strict=True):
            first = whole.reshape(-1)[:3].double()
            assert torch.equal(copied, first) or (case == "several-meshes" and not len(copied))
        assert seen.collectives == CASES[case].collectives(rank, world_size)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("case", [c for c in CASES if c not in ("overlapping", "several-meshes")])
def test_each_item_has_one_owner_unless_all_hold_all(
    case: str, world_size: int, exchanged: Callable[[int], list[dict[str, Outcome]]]
) -> None:
    ranks = [outcomes[case] for outcomes in exchanged(world_size)]
    assert all(outcome.items == ranks[0].items for outcome in ranks)
    for i, item in enumerate(ranks[0].items):
        works = [rank for rank, outcome in enumerate(ranks) if i in outcome.mine]
        whole = ranks[0].wholes[item.param]
        everywhere = all(torch.equal(outcome.parts[item.param], whole) for outcome in ranks)
        if everywhere and not CASES[case].share:
            assert works == list(range(world_size))
        else:
            assert works == [ranks[0].owners[i]]


def test_a_holder_is_a_rank_with_a_block() -> None:
    spread = _on_mesh((5, 2), 1, (2,), (Shard(0),), (7, 3))
    assert spread.holders == (
        Holder(3, (1,), ((3, 5), (0, 2))),
        Holder(7, (0,), ((0, 3), (0, 2))),
    )
