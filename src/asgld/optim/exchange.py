"""Whole matrices for an optimizer whose parameters are spread over ranks.

A polar factor needs the whole matrix, but a rank may hold a shard only. Each matrix gets one owner.
The shards travel to the owner, once, and the result travels back: two collectives per step for all
matrices together, and no matrix is worked on twice. Where every rank holds everything, nothing
travels, unless the ranks are asked to share the work.

The plan follows from shapes, placements and meshes alone. So all ranks make the same plan without a
message. A rank need not know the parameters of meshes to which it does not belong.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from asgld import noise
from asgld.optim.state import local

Shape = tuple[int, ...]
Box = tuple[tuple[int, int], ...]  # the first index and the end, in each dimension of the whole
Ranks = tuple[int, ...]  # sorted
Kind = tuple[torch.dtype, torch.device]
Work = Callable[[Shape], float]


class MatrixItem(NamedTuple):
    """A matrix: rows of a parameter. The unit that has an owner."""

    param: int  # position of the parameter in the list
    begin: int  # first row of the item in the whole parameter
    shape: Shape  # rows, and the other dimensions of the whole parameter; a number counts as (1,)


class Holder(NamedTuple):
    """A rank of a mesh, its coordinate there, and the block of the parameter that it holds."""

    rank: int
    coordinate: tuple[int, ...]
    box: Box


class Spread(NamedTuple):
    """How a parameter lies on ranks. A rank that works on its own whole copy is the only holder."""

    shape: Shape
    blocks: int
    holders: tuple[Holder, ...]


class _Message(NamedTuple):
    peer: int  # the rank at the other end
    item: int
    box: Box


@dataclass
class _Trip:
    """The messages of one rank, and all items of its meshes of which some rank sends a part."""

    sends: list[_Message] = field(default_factory=list)
    receives: list[_Message] = field(default_factory=list)
    travels: list[int] = field(default_factory=list)

    def add(self, rank: int, sender: int, receiver: int, item: int, box: Box) -> None:
        """Note that a part goes from one rank to another; keep the message if it is this rank's."""
        if sender == receiver:
            return
        if item not in self.travels[-1:]:
            self.travels.append(item)
        if sender == rank:
            self.sends.append(_Message(receiver, item, box))
        elif receiver == rank:
            self.receives.append(_Message(sender, item, box))


# ----------------------------------------------------------------------------------------------
# Exchanging
# ----------------------------------------------------------------------------------------------


@dataclass
class Exchange:
    """Which rank works on which matrix, and the messages that take the matrices there and back.

    It holds no tensor and no process group. Keep it while `key_of` the parameters stays the same.
    """

    rank: int
    items: list[MatrixItem]  # of all parameters, in order; equal on all ranks that hold a part
    owners: list[int]  # of each item; this rank, if each rank works on its own copy
    mine: list[int]  # positions in `items` of those that this rank works on
    local_shapes: list[Shape]  # of the part of each parameter that this rank holds
    kinds: list[Kind]  # of each parameter
    ranks: list[Ranks]  # of the mesh of each item; all know of it, one works on it
    _own: list[Box | None]  # the part of each item that this rank holds
    _inward: _Trip
    _outward: _Trip

    def gather(self, sources: Sequence[Tensor]) -> list[Tensor]:
        """Return the whole items of `mine`, in that order.

        An item of which this rank holds all is a view of its source.

        Args:
            sources: what this rank holds of each parameter; a part may be empty. Items travel in
                the dtype of their source, which must be the same on all ranks.
        """
        _check("sources", sources, self.local_shapes)
        kinds = [(s.dtype, s.device) for s in sources]
        held: dict[int, Tensor] = {}  # the rows of each item that this rank holds
        row = [0] * len(sources)
        for i, (item, box) in enumerate(zip(self.items, self._own, strict=True)):
            if box is not None:
                source = sources[item.param].reshape(self.local_shapes[item.param] or (1,))
                held[i] = source.narrow(0, row[item.param], _shape(box)[0])
                row[item.param] += _shape(box)[0]
        trip = self._inward
        arrived = self._deliver(trip, [held[m.item] for m in trip.sends], kinds)
        parts: dict[int, list[tuple[Box, Tensor]]] = defaultdict(list)
        for m, part in zip(trip.receives, arrived, strict=True):
            parts[m.item].append((m.box, part))
        wholes, gaps, fillings = [], [], []
        for i in self.mine:
            item, own = self.items[i], self._own[i]
            if own is not None and _shape(own) == item.shape:
                wholes.append(held[i])
                continue
            dtype, device = kinds[item.param]
            wholes.append(torch.empty(item.shape, dtype=dtype, device=device))
            for box, part in [*parts[i], *([(own, held[i])] if own is not None else [])]:
                gaps.append(_cut(wholes[-1], item, box))
                fillings.append(part)
        if gaps:
            torch._foreach_copy_(gaps, fillings)
        return wholes

    def scatter(
        self,
        results: Sequence[Tensor],
        dtype: torch.dtype | Sequence[torch.dtype] | None = None,
    ) -> list[Tensor]:
        """Return what this rank holds of each parameter, made of the results of all owners.

        A part is fresh, or a view of a result where neither a message nor a join is needed.

        Args:
            results: one per `mine`, shaped like the item.
            dtype: in which results travel and are returned: one, or one per parameter; None: that
                of the parameter. All ranks must give the same, also those without a result.
        """
        _check("results", results, [self.items[i].shape for i in self.mine])
        if dtype is None or isinstance(dtype, torch.dtype):
            dtype = [dtype or own for own, _ in self.kinds]
        kinds = [(each, device) for each, (_, device) in zip(dtype, self.kinds, strict=True)]
        whole = {
            i: result.to(kinds[self.items[i].param][0])
            for i, result in zip(self.mine, results, strict=True)
        }
        trip = self._outward
        sent = [_cut(whole[m.item], self.items[m.item], m.box) for m in trip.sends]
        arrived = self._deliver(trip, sent, kinds)
        part = {m.item: tensor for m, tensor in zip(trip.receives, arrived, strict=True)}
        # An item spans all columns. So what a rank holds of a parameter is rows of items, stacked.
        stacks: list[list[Tensor]] = [[] for _ in kinds]
        for i, (item, box) in enumerate(zip(self.items, self._own, strict=True)):
            if box is not None:
                stacks[item.param].append(part[i] if i in part else _cut(whole[i], item, box))
        out = []
        for stack, shape, (own, device) in zip(stacks, self.local_shapes, kinds, strict=True):
            stack = stack or [torch.empty(shape, dtype=own, device=device)]
            out.append((torch.cat(stack) if len(stack) > 1 else stack[0]).reshape(shape))
        return out

    def share_copies(
        self,
        results: Sequence[Tensor],
        shapes: Sequence[Shape],
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> list[Tensor]:
        """Return a small tensor of every item, such as its row sums, on every rank of its mesh.

        Args:
            results: one per `mine`.
            shapes: of the tensors of all items. An item of a mesh to which this rank does not
                belong gets an empty tensor instead.
            dtype: of the tensors; results are converted to it.
            device: of the tensors.
        """
        _check("results", results, [tuple(shapes[i]) for i in self.mine])
        copies = {i: r.to(device, dtype) for i, r in zip(self.mine, results, strict=True)}
        trip = _Trip()
        for i, (owner, ranks) in enumerate(zip(self.owners, self.ranks, strict=True)):
            for rank in ranks if self.rank in ranks else ():
                trip.add(self.rank, owner, rank, i, _whole(shapes[i]))
        kinds = [(dtype, torch.device(device))] * len(self.kinds)
        arrived = self._deliver(trip, [copies[m.item] for m in trip.sends], kinds)
        copies |= {m.item: copy for m, copy in zip(trip.receives, arrived, strict=True)}
        nothing = torch.empty(0, dtype=dtype, device=device)
        return [copies.get(i, nothing) for i in range(len(self.items))]

    def _deliver(self, trip: _Trip, sent: Sequence[Tensor], kinds: Sequence[Kind]) -> list[Tensor]:
        """Return what arrives on a trip: one collective per set of ranks and kind of tensor."""
        bags = {}
        for i in trip.travels:
            dtype, device = kinds[self.items[i].param]
            bags[i] = _largest_first(self.ranks[i]), str(dtype), device.type
        arrived: dict[_Message, Tensor] = {}
        # In one order on all ranks, so that none waits for another in vain.
        for bag, i in sorted({bag: i for i, bag in bags.items()}.items()):
            pairs = zip(trip.sends, sent, strict=True)
            outgoing = [(m.peer, tensor) for m, tensor in pairs if bags[m.item] == bag]
            incoming = [m for m in trip.receives if bags[m.item] == bag]
            lengths = [(m.peer, math.prod(_shape(m.box))) for m in incoming]
            found = _swap(self.ranks[i], outgoing, lengths, kinds[self.items[i].param])
            for m, tensor in zip(incoming, found, strict=True):
                arrived[m] = tensor.view(_shape(m.box))
        return [arrived[m] for m in trip.receives]


def _swap(
    ranks: Ranks,
    outgoing: Sequence[tuple[int, Tensor]],
    incoming: Sequence[tuple[int, int]],
    kind: Kind,
) -> list[Tensor]:
    """Send tensors to peers among `ranks`; return what they send, flat. Peers and lengths of what
    comes in are known. Between two ranks the order is that of both lists."""
    group = _groups[ranks][1]
    place = {rank: i for i, rank in enumerate(dist.get_process_group_ranks(group))}
    to, come = [0] * len(place), [0] * len(place)
    for peer, tensor in outgoing:
        to[place[peer]] += tensor.numel()
    for peer, length in incoming:
        come[place[peer]] += length
    sent = [tensor.reshape(-1) for _, tensor in sorted(outgoing, key=lambda out: place[out[0]])]
    buffer = torch.empty(sum(come), dtype=kind[0], device=kind[1])
    dist.all_to_all_single(buffer, torch.cat([buffer[:0], *sent]), come, to, group=group)
    order = sorted(range(len(incoming)), key=lambda i: place[incoming[i][0]])
    parts = dict(zip(order, torch.split(buffer, [incoming[i][1] for i in order]), strict=True))
    return [parts[i] for i in range(len(incoming))]


# The group of a set of ranks, and the default group of that time: a process may start another.
_groups: dict[Ranks, tuple[Any, Any]] = {}


def _find_group(ranks: Ranks, mesh: Any) -> None:
    """Note the process group of a set of ranks: the mesh's own, the default one, or a new one."""
    world: Any = dist.group.WORLD
    if ranks in _groups and _groups[ranks][0] is world:
        return
    if mesh is not None and mesh.ndim == 1:
        group = mesh.get_group()
    elif len(ranks) == dist.get_world_size():
        group = world
    else:
        # torch names such a group by its ranks and by how many groups the process has, and waits
        # forever if that differs (2.13). So agree on a number, and reach it with groups of one.
        known = dist.distributed_c10d._world.pg_names
        number = torch.tensor(len(known), device=mesh.device_type)
        for dim in range(mesh.ndim):
            dist.all_reduce(number, dist.ReduceOp.MAX, mesh.get_group(dim))
        while len(known) < int(number):
            dist.new_group([dist.get_rank()], use_local_synchronization=True)
        group = dist.new_group(list(ranks), use_local_synchronization=True)
    _groups[ranks] = world, group


def _check(name: str, given: Sequence[Tensor], needed: Sequence[Shape]) -> None:
    shapes = [tuple(tensor.shape) for tensor in given]
    if shapes != list(needed):
        raise ValueError(f"{name} have shapes {shapes}: need {list(needed)}, those of the plan")


def _cut(whole: Tensor, item: MatrixItem, box: Box) -> Tensor:
    """Return the block of an item that lies at `box` in the whole parameter."""
    begins = (item.begin, *(0 for _ in box[1:]))
    return whole[tuple(slice(a - b, end - b) for (a, end), b in zip(box, begins, strict=True))]


def _shape(box: Box) -> Shape:
    return tuple(end - begin for begin, end in box)


def _whole(shape: Shape) -> Box:
    return tuple((0, size) for size in shape)


# ----------------------------------------------------------------------------------------------
# Planning
# ----------------------------------------------------------------------------------------------


def key_of(params: Iterable[Tensor]) -> tuple[Any, ...]:
    """Return all that a plan follows from. A plan is good as long as the key is the same."""
    world = id(dist.group.WORLD) if dist.is_initialized() else None
    names = ("shape", "dtype", "device", "device_mesh", "placements")
    return (world, *(tuple(getattr(p, name, None) for name in names) for p in params))


def plan_exchange(
    params: Sequence[Tensor],
    blocks: Sequence[int],
    *,
    share: bool = False,
    work: Work | None = None,
) -> Exchange:
    """Choose the owner of each matrix, and list the messages of this rank.

    Args:
        params: DTensors or plain tensors, in the same order on all ranks of a mesh.
        blocks: how many matrices each parameter holds along its first dimension.
        share: let ranks that hold the same matrices share the work: those of a mesh for a
            replicated DTensor, all ranks for a plain tensor. All ranks must then have equal lists.
        work: cost of a matrix of a given shape; None: that of its polar factor.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    spreads = [_spread(p, b, rank, share) for p, b in zip(params, blocks, strict=True)]
    plan = plan_for_rank(rank, spreads, work)
    plan.local_shapes = [tuple(local(p).shape) for p in params]
    plan.kinds = [(p.dtype, p.device) for p in params]
    meshes: dict[Ranks, Any] = {}
    for spread, p in zip(spreads, params, strict=True):
        ranks, mesh = _ranks_of(spread), getattr(p, "device_mesh", None)
        if ranks not in meshes or (mesh is not None and mesh.ndim == 1):
            meshes[ranks] = mesh
    # In one order on all ranks, as torch demands of groups that overlap.
    for ranks in sorted(meshes, key=_largest_first):
        if rank in ranks and len(ranks) > 1:
            _find_group(ranks, meshes[ranks])
    return plan


def plan_for_rank(rank: int, spreads: Sequence[Spread], work: Work | None = None) -> Exchange:
    """Return a rank's plan, for float32 on the CPU, from what lies where. No group is needed."""
    items: list[MatrixItem] = []
    ranks_of: list[Ranks] = []
    parts_of: list[dict[Box, list[Holder]]] = []
    for param, spread in enumerate(spreads):
        for begin, shape, parts in _parts(spread):
            items.append(MatrixItem(param, begin, shape))
            ranks_of.append(_ranks_of(spread))
            parts_of.append(parts)
    owners = _owners(items, ranks_of, parts_of, work or _work)
    own: list[Box | None] = [None] * len(items)
    inward, outward = _Trip(), _Trip()
    for i, (item, owner, ranks) in enumerate(zip(items, owners, ranks_of, strict=True)):
        if rank not in ranks:
            continue
        owning = spreads[item.param].holders[ranks.index(owner)]
        for box, holders in parts_of[i].items():
            inward.add(rank, _nearest(holders, owning), owner, i, box)
            for holder in holders:
                outward.add(rank, owner, holder.rank, i, box)
                if holder.rank == rank:
                    own[i] = box
    held = [[h.box for h in spread.holders if h.rank == rank] for spread in spreads]
    return Exchange(
        rank=rank,
        items=items,
        owners=owners,
        mine=[i for i, owner in enumerate(owners) if owner == rank],
        local_shapes=[_shape(boxes[0]) if boxes else (0,) for boxes in held],
        kinds=[(torch.float32, torch.device("cpu"))] * len(spreads),
        ranks=ranks_of,
        _own=own,
        _inward=inward,
        _outward=outward,
    )


def balance(
    candidates: Sequence[Ranks], works: Sequence[float], load: dict[int, float]
) -> list[int]:
    """Give each work to the least loaded of its candidates, the largest first; add to `load`.

    What has one candidate comes before all else, for it cannot make way.

    >>> balance([(0, 1), (0, 1), (0, 1), (1,)], [3.0, 2.0, 2.0, 1.0], {0: 0.0, 1: 0.0})
    [0, 1, 0, 1]
    """
    owners = [-1] * len(works)
    for i in sorted(range(len(works)), key=lambda i: (len(candidates[i]) > 1, -works[i], i)):
        owners[i] = min(candidates[i], key=lambda rank: (load[rank], rank))
        load[owners[i]] += works[i]
    return owners


def _owners(
    items: Sequence[MatrixItem],
    ranks_of: Sequence[Ranks],
    parts_of: Sequence[dict[Box, list[Holder]]],
    work: Work,
) -> list[int]:
    """Return the owner of each item: one that holds all of it, if there is any, else any rank.

    A set of ranks counts, besides its own work, what larger sets around it have taken. That is all
    that every rank of it knows: each may be in other sets, of which the rest know nothing.
    """
    works = [work(item.shape) for item in items]
    candidates = list(ranks_of)
    for i, parts in enumerate(parts_of):
        if len(parts) == 1:  # the whole item
            candidates[i] = tuple(holder.rank for holder in next(iter(parts.values())))
    owners = [-1] * len(items)
    for ranks in sorted(set(ranks_of), key=_largest_first):
        load = dict.fromkeys(ranks, 0.0)
        for i, owner in enumerate(owners):
            if owner in load and set(ranks_of[i]) > set(ranks):
                load[owner] += works[i]
        own = [i for i, found in enumerate(ranks_of) if found == ranks]
        chosen = balance([candidates[i] for i in own], [works[i] for i in own], load)
        for i, owner in zip(own, chosen, strict=True):
            owners[i] = owner
    return owners


def _work(shape: Shape) -> float:
    """Multiplications of a step towards the polar factor. Leading ones are those of a stack."""
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    short, long = sorted((shape[0], math.prod(shape[1:])))
    return 4.0 * short * short * long + 2.0 * short**3


def _largest_first(ranks: Ranks) -> tuple[int, Ranks]:
    return -len(ranks), ranks


def _nearest(holders: Sequence[Holder], owner: Holder) -> int:
    """Return which holder sends a part: the owner itself, or the one that differs from it in the
    fewest mesh dimensions. With replicas, that is the one in the owner's own replica."""

    def distance(holder: Holder) -> tuple[int, int]:
        pairs = zip(holder.coordinate, owner.coordinate, strict=True)
        return sum(a != b for a, b in pairs), holder.rank

    return min(holders, key=distance).rank if len(holders) > 1 else holders[0].rank


@functools.lru_cache(maxsize=1024)  # layers repeat
def _parts(spread: Spread) -> list[tuple[int, Shape, dict[Box, list[Holder]]]]:
    """Return the items of a parameter: first row, shape, and who holds each distinct part."""
    rows = spread.shape[0] // spread.blocks
    items = []
    for begin in range(0, spread.blocks * rows, rows) if rows else [0] * spread.blocks:
        parts: dict[Box, list[Holder]] = defaultdict(list)
        for holder in spread.holders:
            (first, end), *others = holder.box
            box = ((max(first, begin), min(end, begin + rows)), *others)
            if all(a < b for a, b in box):
                parts[box].append(holder)
        items.append((begin, (rows, *spread.shape[1:]), parts))
    return items


def _spread(p: Tensor, blocks: int, rank: int, share: bool) -> Spread:
    """Return how a parameter lies on the ranks, by its mesh and placements."""
    shape = tuple(p.shape) or (1,)
    if blocks < 1 or shape[0] % blocks:
        raise ValueError(
            f"blocks={blocks} for a parameter of shape {tuple(p.shape)}: need the number of "
            "matrices along the first dimension, which divides it"
        )
    mesh: Any = getattr(p, "device_mesh", None)
    if mesh is not None:
        ranks, placements = tuple(mesh.mesh.flatten().tolist()), p.placements  # type: ignore[attr-defined]
        holders = _holders(shape, tuple(mesh.shape), ranks, placements)
    else:
        world = dist.get_world_size() if share and dist.is_initialized() else 1
        holders = _holders(shape, (world,), tuple(range(world)) if world > 1 else (rank,), ())
    copies = [h for h in holders if h.box == _whole(shape)]
    if len(copies) == len(holders) and not share:
        holders = tuple(h for h in copies if h.rank == rank) or holders
    return Spread(shape, blocks, holders)


@functools.lru_cache(maxsize=1024)
def _holders(
    shape: Shape, mesh_shape: Shape, ranks: tuple[int, ...], placements: tuple[Any, ...]
) -> tuple[Holder, ...]:
    """Return what each rank of a mesh holds, by rank. `ranks` are those of the mesh, row by row."""
    found = []
    coordinates = itertools.product(*map(range, mesh_shape))
    for rank, coordinate in zip(ranks, coordinates, strict=True):
        sizes, begins = noise._local_block(shape, mesh_shape, coordinate, placements)
        box = tuple((begin, begin + size) for begin, size in zip(begins, sizes, strict=True))
        found.append(Holder(rank, coordinate, box))
    return tuple(sorted(found))


def _ranks_of(spread: Spread) -> Ranks:
    return tuple(holder.rank for holder in spread.holders)


def check_agreement(facts: Sequence[Any], device: torch.device) -> None:
    """Raise on all ranks of the default process group if one of them states other facts."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    digest = hashlib.blake2s(repr(facts).encode(), digest_size=7).digest()
    number = int.from_bytes(digest, "little")
    # The largest number, and the largest of the negated: equal only if all numbers are.
    both = torch.tensor([number, -number], dtype=torch.int64, device=device)
    dist.all_reduce(both, dist.ReduceOp.MAX)
    largest, negated = both.tolist()
    if largest != -negated:
        raise RuntimeError(
            "share_work=True: the ranks do not hold the same matrices, or not all have a gradient "
            "for the same ones. Work can be shared among replicas only, as under "
            "DistributedDataParallel; leave share_work out under ZeRO and in pipeline stages"
        )
