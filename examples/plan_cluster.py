"""Plan 7e10 parameters on 1,024 ranks, on a laptop, and check that each element has its own noise.

The model is built on torch's meta device, which stores nothing, and sharded by torch itself over a
stand-in process group: tensor parallel over 8 ranks, fully sharded data parallel over 128. For
every tensor and every rank the program asks `asgld.noise` where the rank's elements lie in the
whole tensor. If these blocks tile the tensor, and no two tensors share a stream, then no two
elements share a counter, and an element has the same one wherever it is stored.

    python examples/plan_cluster.py
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

import asgld
from asgld.noise import Layout, layout_of

HIDDEN, KEYS, INNER, VOCABULARY, NUM_LAYERS = 8192, 1024, 28672, 128256, 80


class Layer(nn.Module):
    """The parameters of a transformer layer with grouped queries and a gated inner layer."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.key = nn.Linear(HIDDEN, KEYS, bias=False)
        self.value = nn.Linear(HIDDEN, KEYS, bias=False)
        self.mix = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate = nn.Linear(HIDDEN, INNER, bias=False)
        self.up = nn.Linear(HIDDEN, INNER, bias=False)
        self.down = nn.Linear(INNER, HIDDEN, bias=False)
        self.norm_before = nn.RMSNorm(HIDDEN)
        self.norm_between = nn.RMSNorm(HIDDEN)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(NUM_LAYERS))
        self.norm = nn.RMSNorm(HIDDEN)
        self.output = nn.Linear(HIDDEN, VOCABULARY, bias=False)


def shard(model: Model, data: int, tensor: int) -> None:
    mesh = init_device_mesh("cpu", (data, tensor), mesh_dim_names=("data", "tensor"))
    rows, columns = ColwiseParallel(), RowwiseParallel()
    plan = dict.fromkeys(("query", "key", "value", "gate", "up"), rows)
    plan |= dict.fromkeys(("mix", "down"), columns)
    for layer in model.layers:
        parallelize_module(layer, mesh["tensor"], plan)
        fully_shard(layer, mesh=mesh["data"])
    parallelize_module(model, mesh["tensor"], {"embedding": columns, "output": rows})
    fully_shard(model, mesh=mesh["data"])


class Block(NamedTuple):
    """Rows and columns of a tensor, seen as a matrix, that a rank holds; begin and end of each."""

    rows: tuple[int, int]
    columns: tuple[int, int]


def block_of(layout: Layout, num_columns: int) -> Block:
    """Read a layout's global indices as a rectangle, and make sure that they are one."""
    row, column = divmod(layout.offset, num_columns)
    if layout.is_contiguous:
        height, width = divmod(layout.numel, num_columns)
        assert width == 0, "a contiguous block holds whole rows"
        return Block((row, row + height), (0, num_columns))
    assert layout.strides == (num_columns, 1)
    height, width = layout.shape
    return Block((row, row + height), (column, column + width))


def tile(intervals: Iterable[tuple[int, int]], size: int) -> bool:
    """Whether intervals follow each other from 0 to `size` without gap or overlap."""
    ordered = sorted(intervals)
    meet = all(a[1] == b[0] for a, b in itertools.pairwise(ordered))
    return meet and ordered[0][0] == 0 and ordered[-1][1] == size


@functools.cache
def views(mesh: DeviceMesh) -> list[DeviceMesh]:
    """Return the mesh as each of its ranks sees it."""
    names = mesh.mesh_dim_names
    return [
        DeviceMesh("cpu", mesh.mesh, mesh_dim_names=names, _init_backend=False, _rank=rank)
        for rank in mesh.mesh.flatten().tolist()
    ]


def blocks_of(parameter: DTensor) -> list[Block]:
    """Return the block of every rank of the parameter's mesh, from the layouts of the optimizer."""
    num_columns = parameter.shape[1] if parameter.dim() == 2 else 1
    local = parameter.detach().to_local()
    whole = {"shape": parameter.shape, "stride": parameter.stride()}
    blocks = []
    for view in views(parameter.device_mesh):
        seen = DTensor.from_local(local, view, parameter.placements, run_check=False, **whole)
        blocks.append(block_of(layout_of(seen), num_columns))
    return blocks


def is_tiled(parameter: DTensor, blocks: list[Block]) -> bool:
    """Whether the blocks hold every element of the parameter once."""
    rows_at = defaultdict(list)
    for block in blocks:
        rows_at[block.columns].append(block.rows)
    num_columns = parameter.shape[1] if parameter.dim() == 2 else 1
    return tile(rows_at, num_columns) and all(
        tile(rows, parameter.shape[0]) for rows in rows_at.values()
    )


def held(tensor: torch.Tensor) -> int:
    """Number of elements on this rank. The row averages of a matrix are whole on its ranks."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).numel()


def main(data: int = 128, tensor: int = 8) -> dict[str, Any]:
    ranks = data * tensor
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    with torch.device("meta"):
        model = Model()
    shard(model, data, tensor)
    optimizer = asgld.NetworkASGLD(model)

    parameters = dict(model.named_parameters())
    total = sum(p.numel() for p in parameters.values())
    local = sum(p.to_local().numel() for p in parameters.values())
    states = [optimizer.state[p] for p in parameters.values()]
    momenta, sums = (sum(held(state[name]) for state in states) for name in ("momentum", "sum"))
    streams = {int(state["stream"]) for state in states}
    # Layers are alike: what a tensor's blocks are depends on its shape and placements alone.
    kinds: dict[Any, DTensor] = {}
    for p in parameters.values():
        kinds.setdefault((p.shape, p.placements), p)
    checked = {kind: blocks_of(p) for kind, p in kinds.items()}
    tiled = all(is_tiled(kinds[kind], blocks) for kind, blocks in checked.items())
    dist.destroy_process_group()

    result = {
        "parameters": total,
        "tensors": len(parameters),
        "ranks": ranks,
        "local": local,
        "momenta": momenta,
        "sums": sums,
        "streams": len(streams),
        "largest_index": max(p.numel() for p in parameters.values()) - 1,
        "blocks": sum(len(checked[p.shape, p.placements]) for p in parameters.values()),
        "tiled": tiled,
    }
    print(f"{total:,} parameters in {len(parameters)} tensors on {ranks:,} ranks")
    size = 4 * (local + momenta + sums) / 1e9
    print(f"rank 0 holds {local:,} of them, {momenta:,} momenta, {sums:,} sums: {size:.2f} GB")
    print(f"streams: {len(streams)}, all different: {len(streams) == len(parameters)}")
    print(f"largest index: {result['largest_index']:,}, of 2^63")
    print(f"{result['blocks']:,} blocks; every element in exactly one of its mesh: {tiled}")
    return result


if __name__ == "__main__":
    main()
