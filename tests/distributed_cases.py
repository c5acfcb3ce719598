"""What the processes of the distributed tests run: one small model, trained in many layouts.

The model is linear in its parameters and its data are small integers, so that gradients are exact
in float32 whatever the order of summation. Bits can then be compared between layouts, though DDP
adds up by ranks and a single process by samples.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from helpers import BACKENDS, OPTIMIZERS, make_tensor
from ranks import process_group
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

import asgld
from asgld.data.batches import accumulate, part
from asgld.distributed import keyed_by_name

STEPS, BATCH, INPUTS = 3, 32, 5

# ----------------------------------------------------------------------------------------------
# Models
# ----------------------------------------------------------------------------------------------


class Head(nn.Module):
    """Adds a weighted sum of the outputs of one layer to the last column; passes the rest on."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(INPUTS, width)

    def forward(self, columns: Tensor) -> Tensor:
        x, total = columns[:, :INPUTS], columns[:, INPUTS:]
        y = self.linear(x)
        weights = torch.arange(1, y.shape[1] + 1, dtype=y.dtype)
        return torch.cat([x, total + (y * weights).sum(1, keepdim=True)], 1)


class Heads(nn.Module):
    """Gradients do not depend on the parameters: products of integers below 9, divided by 32."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({str(i): Head(width) for i, width in enumerate(widths)})

    def forward(self, columns: Tensor) -> Tensor:
        for head in self.heads.values():
            columns = head(columns)
        return columns


class Network(nn.Module):
    """A model like any other, in float64: results agree up to the order of summation."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(INPUTS, 8)
        self.norm = nn.LayerNorm(8)
        self.outer = nn.Linear(8, 1)

    def forward(self, columns: Tensor) -> Tensor:
        return self.outer(self.norm(torch.tanh(self.inner(columns[:, :INPUTS]))))


WIDTHS = {
    "even": (8, 4, 8, 4),
    "uneven": (7, 5, 3, 6),
    "empty": (1, 8, 1, 2),
    "equal": (8,) * 8,
}


def build(kind: str) -> nn.Module:
    """Return a model whose parameters depend on their names alone."""
    model = Network().double() if kind == "network" else Heads(WIDTHS[kind])
    for i, (_, p) in enumerate(model.named_parameters()):
        p.data = make_tensor(*p.shape, seed=i, dtype=p.dtype)
    return model


def batch(step: int, dtype: torch.dtype) -> Tensor:
    """Return the samples of a step: integers in [-1, 1], and a column of zeros for the sum."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randint(-1, 2, (BATCH, INPUTS), generator=generator)
    return torch.cat([x, torch.zeros(BATCH, 1)], 1).to(dtype)


def mean_loss(output: Tensor) -> Tensor:
    return output[:, -1].mean()


# ----------------------------------------------------------------------------------------------
# Layouts: what surrounds the model, and how a gradient comes about in it
# ----------------------------------------------------------------------------------------------


class Wrapped(NamedTuple):
    """A model in its layout. `backward` fills `.grad` from the samples of one step."""

    model: nn.Module
    backward: Callable[[Tensor], None]
    has_zero: bool = False


def _data_parallel(model: nn.Module, rank: int, ranks: int, **options: Any) -> Wrapped:
    def backward(samples: Tensor) -> None:
        mine = part(len(samples), rank, ranks)
        mean_loss(model(samples[mine.start : mine.stop]).float()).backward()

    return Wrapped(model, backward, **options)


def plain(kind: str) -> Wrapped:
    """One process, no wrapper: what all others must equal."""
    return _data_parallel(build(kind), 0, 1)


def _ddp(kind: str, **options: Any) -> Wrapped:
    model = DistributedDataParallel(build(kind))
    return _data_parallel(model, dist.get_rank(), dist.get_world_size(), **options)


def _shard(model: nn.Module, mesh: DeviceMesh, **policy: Any) -> None:
    """Shard one layer as a unit of its own and the rest as another."""
    fully_shard(model.get_submodule(_linears(model)[0]), mesh=mesh, **policy)
    fully_shard(model, mesh=mesh, **policy)


def _fsdp(kind: str, policy: dict[str, Any] | None = None, **options: Any) -> Wrapped:
    model = build(kind)
    _shard(model, init_device_mesh("cpu", (dist.get_world_size(),)), **(policy or {}))
    return _data_parallel(model, dist.get_rank(), dist.get_world_size(), **options)


def _accumulating(wrapped: Wrapped) -> Wrapped:
    """The same, four samples at a time; gradients are exchanged once."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def backward(samples: Tensor) -> None:
        mine = part(BATCH, rank, ranks)
        accumulate(
            lambda x: mean_loss(wrapped.model(x)),
            samples[mine.start : mine.stop],
            4,
            batch_size=BATCH,
            world_size=ranks,
            model=wrapped.model,
        )

    return wrapped._replace(backward=backward)


def _linears(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]


def _tensor_parallel(kind: str, style: Any, mesh: DeviceMesh) -> nn.Module:
    model = build(kind)
    return parallelize_module(model, mesh, dict.fromkeys(_linears(model), style))


def _tensor(kind: str, style: Any) -> Wrapped:
    """Tensor parallel over all ranks, each of which sees every sample."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return _data_parallel(_tensor_parallel(kind, style, mesh), 0, 1)


def _columns() -> Any:
    return RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())


def _rows() -> Any:
    return ColwiseParallel(output_layouts=Replicate())


def _mesh_2d(kind: str, style: Any) -> Wrapped:
    """Tensor parallel inside, sharded data parallel outside."""
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("data", "tensor"))
    model = _tensor_parallel(kind, style, mesh["tensor"])
    _shard(model, mesh["data"])
    return _data_parallel(model, mesh["data"].get_local_rank(), ranks // 2)


def _hybrid(kind: str) -> Wrapped:
    """Sharded by pairs, replicated over the pairs."""
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("replicas", "shards"))
    model = build(kind)
    _shard(model, mesh)
    return _data_parallel(model, dist.get_rank(), ranks)


def _sequence(kind: str) -> Wrapped:
    """Tensor parallel around a norm with split samples: its gradient arrives as partial sums."""
    styles = {
        "inner": ColwiseParallel(output_layouts=Shard(0)),
        "norm": SequenceParallel(sequence_dim=0),
        "outer": RowwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()),
    }
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return _data_parallel(parallelize_module(build(kind), mesh, styles), 0, 1)


def _pipeline(kind: str) -> Wrapped:
    """Each rank holds some of the heads, under the names that they have in the whole model."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = build(kind)
    heads = model.heads
    assert isinstance(heads, nn.ModuleDict)
    mine = part(len(heads), rank, ranks)
    for i in range(len(heads)):
        if i not in mine:
            del heads[str(i)]
    stage = PipelineStage(model, rank, ranks, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=lambda output, _: mean_loss(output))

    def backward(samples: Tensor) -> None:
        inputs = (samples,) if rank == 0 else ()
        schedule.step(*inputs, target=samples if rank == ranks - 1 else None)

    return Wrapped(model, backward)


_BF16 = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
_OFFLOAD = {"offload_policy": CPUOffloadPolicy(pin_memory=False)}


class Layout(NamedTuple):
    """How to wrap a model, which model, where its gradients are clipped, and how often a step of
    the optimizer communicates: once for each gradient that torch leaves as partial sums."""

    wrap: Callable[[str], Wrapped]
    kind: str = "uneven"
    max_norm: float | None = None
    communications: int = 0


LAYOUTS: dict[str, Layout] = {
    "ddp": Layout(_ddp),
    "ddp-accumulated": Layout(lambda kind: _accumulating(_ddp(kind))),
    "fsdp-even": Layout(_fsdp, "even"),
    "fsdp-uneven": Layout(_fsdp),
    "fsdp-empty": Layout(_fsdp, "empty"),
    "fsdp-mixed-precision": Layout(lambda kind: _fsdp(kind, _BF16)),
    "fsdp-offload": Layout(lambda kind: _fsdp(kind, _OFFLOAD)),
    "fsdp-accumulated": Layout(lambda kind: _accumulating(_fsdp(kind))),
    "fsdp-hybrid": Layout(_hybrid),
    "tensor-rows": Layout(lambda kind: _tensor(kind, _rows())),
    "tensor-rows-empty": Layout(lambda kind: _tensor(kind, _rows()), "empty"),
    "tensor-columns": Layout(lambda kind: _tensor(kind, _columns())),
    "mesh-rows": Layout(lambda kind: _mesh_2d(kind, _rows())),
    "mesh-columns": Layout(lambda kind: _mesh_2d(kind, _columns())),
    "mesh-columns-empty": Layout(lambda kind: _mesh_2d(kind, _columns()), "empty"),
    "zero": Layout(lambda kind: _ddp(kind, has_zero=True)),
    "pipeline": Layout(_pipeline),
}
# Those in which every rank has a part of every parameter.
WHOLE = [name for name in LAYOUTS if name != "pipeline"]
# Sums that are not exact: these agree up to rounding.
ROUNDED_LAYOUTS: dict[str, Layout] = {
    "ddp": Layout(_ddp, "network"),
    "ddp-clipped": Layout(_ddp, "network", max_norm=0.1),
    "fsdp": Layout(_fsdp, "network"),
    "fsdp-clipped": Layout(_fsdp, "network", max_norm=0.1),
    "tensor-sequence": Layout(_sequence, "network", communications=2),  # the norm's
    "zero": Layout(lambda kind: _ddp(kind, has_zero=True), "network"),
}
# NetworkASGLD has all that has a state or a schedule; "matrix" is the same for hidden matrices,
# which are all weights here. "noise" is a step without a gradient: what moves a parameter is its
# noise alone. "sparse" has a proximal step.
PRESETS: dict[str, dict[str, Any]] = {
    "ASGLD": {"lr": 0.1, "sigma": 0.5},
    "AGLD": {"lr": 0.1, "sigma": 0.5},
    "ASG": {"lr": 0.1},
    "SGLD": {"lr": 0.1, "sigma": 0.5},
    "PSGLD": {"lr": 0.1, "sigma": 0.5},
    "NetworkASGLD": {"lr": 0.1, "weight_decay": 0.1},
    "matrix": {"lr": 0.1, "weight_decay": 0.1},
    "noise": {"lr": 0.5, "sigma": 1.0},
    "sparse": {"lr": 0.1, "sigma": 0.5, "prox": asgld.prox.ElasticNet(1.0, 0.5)},
}
CLASSES = {
    **OPTIMIZERS,
    "PSGLD": asgld.PSGLD,
    "NetworkASGLD": asgld.NetworkASGLD,
    "matrix": asgld.NetworkASGLD,
    "noise": asgld.SGLD,
    "sparse": asgld.ASGLD,
}
# No backend can be asked for by name that serves matrices and coordinates alike.
OPTIONS = {**BACKENDS, "best": {}}


class Row(NamedTuple):
    layout: str
    backend: str
    preset: str

    def __str__(self) -> str:
        return "-".join(self)


def backends_of(preset: str) -> list[str]:
    """Return the backends that serve a preset, the best last."""
    if preset == "matrix":
        return ["loop", "best"]
    best = CLASSES[preset]([torch.zeros(1)], **PRESETS[preset]).backends[0].name
    return [backend for backend in BACKENDS if backend in ("loop", "foreach", best)]


ROWS = [
    Row(layout, backend, preset)
    for layout, preset in itertools.product(LAYOUTS, PRESETS)
    for backend in backends_of(preset)
]
# Every preset in its best backend, and one preset in every backend: what the quick suite trains.
FEW_ROWS = [
    row for row in ROWS if row.preset == "ASGLD" or row.backend == backends_of(row.preset)[-1]
]
ROUNDED_ROWS = [
    *(Row(layout, b, "ASGLD") for layout in ROUNDED_LAYOUTS for b in BACKENDS),
    *(Row(layout, b, "matrix") for layout in ROUNDED_LAYOUTS for b in backends_of("matrix")),
]

# ----------------------------------------------------------------------------------------------
# Training
# ----------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What one rank can see after training: whole tensors by name, and what a step communicated.

    A name in `state` is a parameter's, with ".sum" or ".momentum" at its end.
    """

    params: dict[str, Tensor]
    state: dict[str, Tensor]
    steps: dict[str, int]
    communications: int | None  # None if nobody looked


def train(wrapped: Wrapped, row: Row, max_norm: float | None = None, steps: int = STEPS) -> Outcome:
    """Train from the parameters that the model has now."""
    optimizer = make_optimizer(wrapped, row)
    communications = take_steps(wrapped, optimizer, row, range(steps), max_norm)
    return observe(wrapped.model, optimizer, communications)


def take_steps(
    wrapped: Wrapped, optimizer: Any, row: Row, steps: range, max_norm: float | None = None
) -> int | None:
    """Take steps and return how often the optimizer communicated in the last of them."""
    dtype = next(wrapped.model.parameters()).dtype
    communications = None
    for step in steps:
        optimizer.zero_grad()
        if row.preset == "noise":
            for p in wrapped.model.parameters():
                p.grad = torch.zeros_like(p)
        else:
            wrapped.backward(batch(step, dtype))
        if max_norm is not None:
            nn.utils.clip_grad_norm_(wrapped.model.parameters(), max_norm)
        # Watching a step is slow, and all presets run the same code. ZeRO sends parameters around.
        is_watched = row.preset == "ASGLD" and step == steps[-1] and not wrapped.has_zero
        with CommDebugMode() if is_watched else contextlib.nullcontext() as watch:
            optimizer.step()
        if watch is not None:
            communications = watch.get_total_counts()
    return communications


def make_optimizer(wrapped: Wrapped, row: Row) -> Any:
    optimizer_class = CLASSES[row.preset]
    options = {**PRESETS[row.preset], **OPTIONS[row.backend], "seed": 11}
    params: Any = wrapped.model.named_parameters()
    if row.preset == "matrix":
        # Without the pattern the last layer, on each stage of a pipeline, would be an output layer.
        params = asgld.network_groups(wrapped.model, matrices=["*.weight"])
    if not wrapped.has_zero:
        return optimizer_class(params, **options)
    assert isinstance(optimizer_class, type)
    return ZeroRedundancyOptimizer(
        params if row.preset == "matrix" else wrapped.model.parameters(),
        optimizer_class=keyed_by_name(optimizer_class, wrapped.model.named_parameters()),  # type: ignore[arg-type]
        **options,
    )


def observe(model: nn.Module, optimizer: Any, communications: int | None = None) -> Outcome:
    state = getattr(optimizer, "optim", optimizer).state  # ZeRO keeps the rank's own inside
    named = {asgld.noise.canonical_name(name): p for name, p in model.named_parameters()}
    return Outcome(
        {name: _whole(p) for name, p in named.items()},
        {
            f"{name}.{key}": _whole(state[p][key])
            for name, p in named.items()
            for key in ("sum", "momentum")
            if key in state.get(p, {})
        },
        {name: int(state[p]["step"]) for name, p in named.items() if p in state},
        communications,
    )


def _whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def expected(layout: Layout, row: Row, steps: int = STEPS) -> Outcome:
    """Train a row in this process alone, without any layout."""
    return train(plain(layout.kind), row, layout.max_norm, steps)


def train_rows(layouts: dict[str, Layout], rows: list[Row]) -> dict[Row, Outcome]:
    """Train every row, wrapping each layout's model once."""
    outcomes = {}
    for name, layout in layouts.items():
        wrapped = layout.wrap(layout.kind)
        start = [p.detach().clone() for p in wrapped.model.parameters()]
        for row in rows:
            if row.layout != name:
                continue
            with torch.no_grad():
                for p, value in zip(wrapped.model.parameters(), start, strict=True):
                    p.copy_(value)
            outcomes[row] = train(wrapped, row, layout.max_norm)
    return outcomes


def measure_gradients(wrapped: Wrapped) -> tuple[float, dict[str, float]]:
    """Mean square of the first gradient, and the d_init of each parameter that follows from it."""
    wrapped.backward(batch(0, next(wrapped.model.parameters()).dtype))
    named = [(asgld.noise.canonical_name(name), p) for name, p in wrapped.model.named_parameters()]
    groups = asgld.groups_from_gradients(named, lr=0.1)
    scales = {name: group["d_init"] for (name, _), group in zip(named, groups, strict=True)}
    return asgld.mean_square_gradient(named), scales


# ----------------------------------------------------------------------------------------------
# Who multiplies matrices
# ----------------------------------------------------------------------------------------------

# Layouts of eight equal matrices, and whether ranks that hold all of them share the work.
SHARED_WORK: dict[str, tuple[str, bool]] = {
    "fsdp": ("fsdp-even", False),
    "tensor-columns": ("tensor-columns", False),
    "ddp": ("ddp", False),
    "ddp-shared": ("ddp", True),
}


def count_products(name: str | None) -> tuple[int, dict[str, Tensor]]:
    """Take two steps; return the multiplications in one step of this rank, and the parameters. The
    layout None is one process."""
    layout, share = SHARED_WORK.get(name or "", ("", False))
    wrapped = LAYOUTS[layout].wrap("equal") if name else plain("equal")
    groups = asgld.network_groups(wrapped.model, matrices=["*.weight"])
    optimizer = asgld.NetworkASGLD(groups, lr=0.1, share_work=share, seed=11)
    for step in range(2):
        optimizer.zero_grad()
        wrapped.backward(batch(step, torch.float32))
        with FlopCounterMode(display=False) as counter:
            optimizer.step()
    return counter.get_total_flops(), observe(wrapped.model, optimizer).params


def refuse_to_share(kind: str) -> str:
    """Take a step in which ranks do not have the same to share; return what it says, and whether
    anything moved."""
    rank = dist.get_rank()
    sizes = [(4, 3)] * 3 if kind == "gradient" else [(4 + rank, 3)] * 3
    params = [make_tensor(*size, seed=i).requires_grad_() for i, size in enumerate(sizes)]
    group = {"params": params, "shape": "polar-row", "share_work": True}
    optimizer = asgld.NetworkASGLD([group], lr=0.1)
    for p in params[: 2 + rank] if kind == "gradient" else params:
        p.grad = torch.ones_like(p)
    before = [p.detach().clone() for p in params]
    try:
        optimizer.step()
    except RuntimeError as error:
        kept = all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
        still = all(not state["momentum"].any() for state in optimizer.state.values())
        return f"{error}; kept {kept and still}"
    return "no error"


# ----------------------------------------------------------------------------------------------
# Gradients that are not placed as their parameter is
# ----------------------------------------------------------------------------------------------


class Placing(NamedTuple):
    backend: str
    param: Placement
    grad: Placement

    def __str__(self) -> str:
        return f"{self.backend}-{self.param}-{self.grad}"


PLACINGS = [
    Placing(backend, param, grad)
    for backend in BACKENDS
    for param, grad in [
        (Replicate(), Partial()),
        (Shard(0), Replicate()),
        (Shard(0), Partial()),
        (Shard(1), Shard(0)),
    ]
]


def train_placed(placing: Placing, mesh: DeviceMesh | None) -> tuple[Tensor, Tensor]:
    """Take two steps and return the whole parameter and sum; without a mesh, in one process."""
    p, grad = make_tensor(4, 3, seed=0), make_tensor(4, 3, seed=1)
    if mesh is not None:
        p = distribute_tensor(p, mesh, [placing.param])
        if placing.grad.is_partial():  # powers of two divide exactly
            grad = DTensor.from_local(grad / mesh.size(), mesh, [placing.grad])
        else:
            grad = distribute_tensor(grad, mesh, [placing.grad])
    p.requires_grad_()
    optimizer = asgld.ASGLD([p], lr=0.1, sigma=0.5, seed=11, **BACKENDS[placing.backend])
    for _ in range(2):  # the second may follow a plan
        p.grad = grad.clone()
        optimizer.step()
    return _whole(p), _whole(optimizer.state[p]["sum"])


# ----------------------------------------------------------------------------------------------
# All of it on one rank
# ----------------------------------------------------------------------------------------------


def train_table(rank: int, world_size: int, folder: Path, rows: list[Row]) -> None:
    """Train the rows on this rank and leave the outcomes in `folder`."""
    with process_group(rank, world_size, folder / "rendezvous"):
        mesh = init_device_mesh("cpu", (world_size,))
        outcomes = {
            "exact": train_rows(LAYOUTS, rows),
            "rounded": train_rows(ROUNDED_LAYOUTS, ROUNDED_ROWS),
            "measured": {
                name: measure_gradients(LAYOUTS[name].wrap(LAYOUTS[name].kind)) for name in WHOLE
            },
            "placed": {str(placing): train_placed(placing, mesh) for placing in PLACINGS},
            "products": {name: count_products(name) for name in SHARED_WORK},
            "refused": {kind: refuse_to_share(kind) for kind in ("gradient", "size")},
        }
    torch.save(outcomes, folder / f"rank-{rank}.pt")
