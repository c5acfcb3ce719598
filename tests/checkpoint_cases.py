"""What the processes of the checkpoint tests run: save, be killed while saving, load elsewhere."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from distributed_cases import (
    LAYOUTS,
    Outcome,
    Row,
    Wrapped,
    backends_of,
    make_optimizer,
    observe,
    take_steps,
)
from ranks import process_group
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
)

from asgld import GrowingBatchSampler, distributed

SAVED, END = 2, 4
BEST = backends_of("ASGLD")[-1]
# Where each checkpoint is made, and where it is loaded: a layout may change with the world size.
ROUTES = {
    "ddp": (Row("ddp", "foreach", "NetworkASGLD"), "ddp"),
    "fsdp-uneven": (Row("fsdp-uneven", BEST, "ASGLD"), "fsdp-uneven"),
    "fsdp-empty": (
        Row("fsdp-empty", backends_of("NetworkASGLD")[-1], "NetworkASGLD"),
        "fsdp-empty",
    ),
    "mesh-columns": (Row("mesh-columns", "foreach", "PSGLD"), "fsdp-uneven"),
    "tensor-columns": (Row("tensor-columns", "loop", "NetworkASGLD"), "ddp"),
    "sparse": (Row("fsdp-uneven", BEST, "sparse"), "ddp"),
    "matrix-fsdp": (Row("fsdp-uneven", "best", "matrix"), "fsdp-uneven"),
    "matrix-mesh": (Row("mesh-columns", "loop", "matrix"), "ddp"),
}
SHARDED = ROUTES["fsdp-uneven"][0]
ZERO = Row("zero", BEST, "ASGLD")


def make_sampler() -> GrowingBatchSampler:
    return GrowingBatchSampler(
        100, 8, 1.0, rank=dist.get_rank(), world_size=dist.get_world_size(), seed=4
    )


def _start(row: Row) -> tuple[Wrapped, Any]:
    layout = LAYOUTS[row.layout]
    wrapped = layout.wrap(layout.kind)
    return wrapped, make_optimizer(wrapped, row)


def _start_elsewhere(row: Row) -> tuple[Wrapped, Any]:
    """A run that has already taken a step, on other samples, before it loads."""
    wrapped, optimizer = _start(row)
    take_steps(wrapped, optimizer, row, range(7, 8))
    return wrapped, optimizer


def save_all(rank: int, world_size: int, folder: Path) -> None:
    """Train, save in every way there is, and train on."""
    outcomes: dict[str, Any] = {}
    with process_group(rank, world_size, folder / f"rendezvous-save-{world_size}"):
        for name, (row, _) in ROUTES.items():
            wrapped, optimizer = _start(row)
            get_state_dict(wrapped.model, optimizer)
            outcomes[f"fresh-{name}"] = observe(wrapped.model, optimizer)
            take_steps(wrapped, optimizer, row, range(SAVED))
            sampler = make_sampler()
            sampler.step = SAVED
            others = {"sampler": sampler}
            distributed.save(folder / name, SAVED, wrapped.model, optimizer, others=others)
            future = distributed.save(
                folder / f"{name}-asynchronous",
                SAVED,
                wrapped.model,
                optimizer,
                others=others,
                asynchronous=True,
            )
            # The steps go on while the state is being written.
            take_steps(wrapped, optimizer, row, range(SAVED, END))
            assert future is not None
            future.result()
            outcomes[name] = observe(wrapped.model, optimizer)
        _save_whole_states(folder)
    torch.save(outcomes, folder / f"saved-{rank}.pt")


def _save_whole_states(folder: Path) -> None:
    """Save optimizer states that are not sharded: torch's full form, and ZeRO's."""
    wrapped, optimizer = _start(SHARDED)
    take_steps(wrapped, optimizer, SHARDED, range(SAVED))
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole = get_optimizer_state_dict(wrapped.model, optimizer, options=options)
    params = observe(wrapped.model, optimizer).params
    if dist.get_rank() == 0:
        torch.save((params, whole), folder / "full.pt")
    wrapped, optimizer = _start(ZERO)
    take_steps(wrapped, optimizer, ZERO, range(SAVED))
    optimizer.consolidate_state_dict(to=0)
    if dist.get_rank() == 0:
        params = observe(wrapped.model, optimizer).params
        torch.save((params, optimizer.state_dict()), folder / "zero.pt")


def load_all(rank: int, world_size: int, folder: Path) -> None:
    """Load every checkpoint and finish the run."""
    outcomes: dict[str, Any] = {}
    with process_group(rank, world_size, folder / f"rendezvous-load-{world_size}"):
        for name, (row, layout) in ROUTES.items():
            for way in ("", "-asynchronous"):
                outcomes[name + way] = _resume(folder / f"{name}{way}", row._replace(layout=layout))
        outcomes["full"] = _resume_full(folder / "full.pt")
        outcomes["zero"] = _resume_zero(folder / "zero.pt")
    torch.save(outcomes, folder / f"loaded-{world_size}-{rank}.pt")


def load_after_kill(rank: int, world_size: int, folder: Path) -> None:
    with process_group(rank, world_size, folder / "rendezvous-load"):
        outcome = _resume(folder / "killed", SHARDED)
    torch.save(outcome, folder / f"loaded-{rank}.pt")


def _resume(folder: Path, row: Row) -> tuple[Outcome, dict[str, Any]]:
    wrapped, optimizer = _start_elsewhere(row)
    sampler = make_sampler()
    step = distributed.load(folder, wrapped.model, optimizer, others={"sampler": sampler})
    take_steps(wrapped, optimizer, row, range(step, END))
    return observe(wrapped.model, optimizer), sampler.state_dict()


def _set_parameters(model: torch.nn.Module, values: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(values[name.removeprefix("module.")])


def _resume_full(path: Path) -> Outcome:
    """Load a full state into a plain or replicated model."""
    row = SHARDED._replace(layout="ddp")
    wrapped, optimizer = _start_elsewhere(row)
    params, whole = torch.load(path)
    _set_parameters(wrapped.model, params)
    options = StateDictOptions(full_state_dict=True)
    set_optimizer_state_dict(wrapped.model, optimizer, whole, options=options)
    take_steps(wrapped, optimizer, row, range(SAVED, END))
    return observe(wrapped.model, optimizer)


def _resume_zero(path: Path) -> Outcome:
    wrapped, optimizer = _start_elsewhere(ZERO)
    params, state = torch.load(path)
    _set_parameters(wrapped.model, params)
    optimizer.load_state_dict(state)
    take_steps(wrapped, optimizer, ZERO, range(SAVED, END))
    return observe(wrapped.model, optimizer)


def die_while_saving(rank: int, world_size: int, folder: Path, victim: int, where: str) -> None:
    """Save once, train a step, and lose a rank in the middle of the next save."""
    with process_group(rank, world_size, folder / "rendezvous-die"):
        row, others = SHARDED, {"sampler": make_sampler()}
        wrapped, optimizer = _start(row)
        take_steps(wrapped, optimizer, row, range(SAVED))
        distributed.save(folder / "killed", SAVED, wrapped.model, optimizer, others=others)
        take_steps(wrapped, optimizer, row, range(SAVED, SAVED + 1))
        if rank == victim:
            setattr(FileSystemWriter, where, _write_a_little_and_die)
        distributed.save(folder / "killed", SAVED + 1, wrapped.model, optimizer, others=others)


def _write_a_little_and_die(writer: Any, *_: Any, **__: Any) -> None:
    (Path(writer.path) / "__0_0.distcp").write_bytes(b"cut short")
    os.kill(os.getpid(), signal.SIGKILL)
