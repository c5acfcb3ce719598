"""What the ranks of the tests of `asgld.optim.exchange` run: parameters in every layout."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from helpers import make_tensor
from ranks import process_group
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from asgld.optim.exchange import MatrixItem, plan_exchange
from asgld.optim.state import local


class Given(NamedTuple):
    """A parameter in its layout, the whole of it, and how many matrices it holds."""

    param: Tensor
    whole: Tensor
    blocks: int = 1


class Case(NamedTuple):
    """Parameters, and how many collectives a rank joins to gather, to scatter and to share copies.

    Some counts depend on the rank, or on the number of ranks.
    """

    make: Callable[[], list[Given]]
    collectives: Callable[[int, int], tuple[int, int, int]] = lambda rank, ranks: (1, 1, 1)
    share: bool = False


class Outcome(NamedTuple):
    items: list[MatrixItem]
    mine: list[int]
    owners: list[int]
    wholes: list[Tensor]
    blocks: list[int]
    parts: list[Tensor]  # what this rank held before
    gathered: list[Tensor]
    scattered: list[Tensor]  # after doubling
    halves: list[Tensor]  # the same, in bfloat16
    copies: list[Tensor]
    collectives: tuple[int, int, int]


def _spread(
    mesh: DeviceMesh, placements: Sequence[Any], *shapes: tuple[int, ...], **options: Any
) -> list[Given]:
    dtype, blocks = options.get("dtype", torch.float32), options.get("blocks", 1)
    wholes = [make_tensor(*shape, seed=i, dtype=dtype) for i, shape in enumerate(shapes)]
    # Each rank cuts its own part. Sent by the first rank, the parts of a mesh of ranks that are not
    # in order get to the wrong ones (torch 2.13).
    return [
        Given(distribute_tensor(w, mesh, placements, src_data_rank=None), w, blocks) for w in wholes
    ]


def _line() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def _square(*names: str) -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=names or None)


def _module(style: Any = None, hybrid: bool = False) -> list[Given]:
    """A model sharded by fully_shard: alone, inside tensor parallelism, or with replicas."""
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3, bias=False), nn.Linear(3, 1))
    wholes = [make_tensor(*p.shape, seed=i) for i, p in enumerate(model.parameters())]
    for p, whole in zip(model.parameters(), wholes, strict=True):
        p.data = whole.clone()
    mesh = _square("data", "tensor")
    if style is not None:
        model = parallelize_module(model, mesh["tensor"], dict.fromkeys("012", style))
        fully_shard(model, mesh=mesh["data"])
    else:
        fully_shard(model, mesh=mesh if hybrid else _line())
    return [Given(p, whole) for p, whole in zip(model.parameters(), wholes, strict=True)]


def _plain(*shapes: tuple[int, ...], blocks: int = 1) -> list[Given]:
    wholes = [make_tensor(*shape, seed=i) for i, shape in enumerate(shapes)]
    return [Given(whole.clone(), whole, blocks) for whole in wholes]


def _several_meshes() -> list[Given]:
    """All ranks, and the last one alone, of whose parameter the others hold nothing."""
    last = DeviceMesh("cpu", [dist.get_world_size() - 1])
    return [
        *_spread(_line(), [Shard(0)], (6, 5), (5, 6)),
        *_spread(last, [Shard(0)], (3, 2)),
        *_plain((4, 4)),
    ]


def _overlapping() -> list[Given]:
    """Meshes of two dimensions that have no group of their own, and share ranks. Each rank lists
    the parameters of its own meshes only."""
    given = _spread(_line(), [Shard(0)], (8, 4), (6, 6), (4, 4))
    for ranks in ([0, 1], [1, 2], [2, 3], [0, 3]):
        if max(ranks) < dist.get_world_size():
            mesh = DeviceMesh("cpu", [ranks])
            if dist.get_rank() in ranks:
                given += _spread(mesh, [Replicate(), Shard(1)], (5, 3), (2, 6))
    return given


def _overlaps(rank: int, ranks: int) -> tuple[int, int, int]:
    sets = 1 if ranks == 2 else 3
    return sets, sets, sets


def _nothing(rank: int, ranks: int) -> tuple[int, int, int]:
    return 0, 0, 0


def _results_only(rank: int, ranks: int) -> tuple[int, int, int]:
    return 0, 1, 1


def _copies_only(rank: int, ranks: int) -> tuple[int, int, int]:
    return 0, 0, 1


SHAPES = ((8, 6), (4, 4), (8, 3))
CASES: dict[str, Case] = {
    "even": Case(lambda: _spread(_line(), [Shard(0)], *SHAPES)),
    "uneven": Case(lambda: _spread(_line(), [Shard(0)], (7, 5), (5, 9), (3, 2), (9,))),
    "empty": Case(lambda: _spread(_line(), [Shard(0)], (1, 5), (3, 2), (0, 4), (5, 0), (1,))),
    "columns": Case(lambda: _spread(_line(), [Shard(1)], (8, 6), (5, 7), (4, 1), (2, 3, 4))),
    "reversed": Case(
        lambda: _spread(
            DeviceMesh("cpu", list(reversed(range(dist.get_world_size())))), [Shard(0)], *SHAPES
        )
    ),
    "mesh": Case(lambda: _spread(_square(), [Shard(0), Shard(1)], (8, 6), (5, 7), (1, 3))),
    "mesh-one-dimension": Case(lambda: _spread(_square(), [Shard(0), Shard(0)], (9, 2), (3, 4))),
    "hybrid": Case(lambda: _spread(_square(), [Replicate(), Shard(0)], (7, 5), (4, 4), (2, 3))),
    "hybrid-columns": Case(
        lambda: _spread(_square(), [Shard(1), Replicate()], (7, 5), (4, 4)),
        lambda rank, ranks: (0, 0, 0) if ranks == 2 else (1, 1, 1),
    ),
    "fsdp": Case(_module),
    "fsdp-hybrid": Case(lambda: _module(hybrid=True)),
    "fsdp-rows": Case(lambda: _module(ColwiseParallel())),
    "fsdp-columns": Case(lambda: _module(RowwiseParallel())),
    "stack": Case(
        lambda: _spread(_line(), [Shard(0)], (4, 3, 5), (8, 2, 2), blocks=4), _copies_only
    ),
    "stack-replicas": Case(
        lambda: _spread(_square(), [Replicate(), Shard(0)], (4, 3, 5), blocks=4),
        lambda rank, ranks: (0, 0 if ranks == 2 else 1, 1),
    ),
    "stack-columns": Case(lambda: _spread(_line(), [Shard(2)], (4, 3, 5), blocks=4)),
    "fused": Case(lambda: _spread(_line(), [Shard(0)], (12, 5), (6, 6), (3, 2), blocks=3)),
    "dtypes": Case(
        lambda: [
            given
            for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float16)
            for given in _spread(_line(), [Shard(0)], (5, 3), (2, 4), dtype=dtype)
        ],
        lambda rank, ranks: (4, 4, 1),
    ),
    "replicated": Case(lambda: _spread(_line(), [Replicate()], (4, 4), (), blocks=1), _nothing),
    "plain": Case(lambda: _plain((6, 3), (2, 2), (2,), blocks=2), _nothing),
    "replicated-shared": Case(
        lambda: _spread(_square(), [Replicate(), Replicate()], (4, 4), (3, 5), ()),
        _results_only,
        share=True,
    ),
    "plain-shared": Case(
        lambda: [*_plain((6, 3), (4, 2), blocks=2), *_plain((5, 5), (3,), ())],
        _results_only,
        share=True,
    ),
    "several-meshes": Case(_several_meshes),
    "overlapping": Case(_overlapping, _overlaps),
}


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """Count the calls of all_to_all_single in the first entry of a list."""
    count, call = [0], dist.all_to_all_single

    def counting(*args: Any, **options: Any) -> Any:
        count[0] += 1
        return call(*args, **options)

    dist.all_to_all_single = counting
    try:
        yield count
    finally:
        dist.all_to_all_single = call


def run_case(case: Case) -> Outcome:
    given = case.make()
    params, wholes, blocks = ([g[k] for g in given] for k in range(3))
    exchange = plan_exchange(params, blocks, share=case.share)
    parts = [local(p.detach()) for p in params]
    with counted() as gathers:
        gathered = exchange.gather(parts)
    doubled = [2 * whole for whole in gathered]
    with counted() as scatters:
        scattered = exchange.scatter(doubled)
    halves = exchange.scatter(doubled, dtype=torch.bfloat16)
    # Of each item a number of values that depends on the item: its first ones.
    shapes = [(min(3, torch.Size(item.shape).numel()),) for item in exchange.items]
    firsts = [
        whole.reshape(-1)[: shapes[i][0]] for i, whole in zip(exchange.mine, gathered, strict=True)
    ]
    with counted() as shares:
        copies = exchange.share_copies(firsts, shapes, torch.float64, "cpu")
    return Outcome(
        exchange.items,
        exchange.mine,
        exchange.owners,
        wholes,
        blocks,
        [part.clone() for part in parts],
        gathered,
        scattered,
        halves,
        copies,
        (gathers[0], scatters[0], shares[0]),
    )


def run_cases(rank: int, world_size: int, folder: Path) -> None:
    """Run all cases on this rank and leave the outcomes in `folder`."""
    with process_group(rank, world_size, folder / "rendezvous"):
        outcomes = {name: run_case(case) for name, case in CASES.items()}
    torch.save(outcomes, folder / f"rank-{rank}.pt")
