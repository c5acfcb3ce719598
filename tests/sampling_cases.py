"""What the processes of the tests of sampled networks run: one small chain, in many layouts."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from ranks import process_group
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from asgld.sampling import NetworkSamples, sample_network

Arrays = dict[str, Any]
# An odd batch: its halves have 3 and 4 samples, so that on 4 ranks some parts are empty.
OPTIONS: dict[str, Any] = {
    "lr": 0.02, "batch_size": 7, "prior_sd": 1.0, "draws": 3, "burn_in": 20, "thin": 5, "seed": 3,
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "sgld": {},
    "psgld": {"method": "psgld", "lr": 1e-3},
    "all": {"batch_size": None},
    "noise": {"prior_sd": None},
}
INPUTS = torch.linspace(-1, 1, 6).view(2, 3)


class Small(nn.Module):
    """Hidden layers of 7 and 5, which 2 and 4 ranks do not divide; weights depend on `seed`."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 7), nn.Linear(7, 5)
        generator = torch.Generator().manual_seed(seed)
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=generator) / 2

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(x)))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(45, 3, generator=generator)
    return x, torch.sin(x.sum(1, keepdim=True)) + torch.arange(5.0)


def mean_loss(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def no_loss(model: nn.Module, batch: Any) -> Tensor:
    """A loss without a gradient: what moves the weights is noise alone."""
    return 0.0 * model(batch[0]).sum()


def start(model: nn.Module, name: str = "sgld", **options: Any) -> NetworkSamples:
    loss = no_loss if name == "noise" else mean_loss
    return sample_network(model, data=data(), loss=loss, **{**OPTIONS, **METHODS[name], **options})


def outcome(samples: NetworkSamples) -> Arrays:
    """Return copies of the draws, and what else a chain says."""
    samples.collect()
    return {
        **{name: np.array(array) for name, array in samples.draws.items()},
        "losses": samples.losses,
        "share": np.array([*samples.noise_share.values()]),
        "prediction": np.stack(samples.predict(INPUTS)),
    }


def ddp() -> nn.Module:
    return DistributedDataParallel(Small())


def fsdp(seed: int = 0) -> nn.Module:
    model = Small(seed)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model.inner, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


LAYOUTS: dict[str, Callable[[], nn.Module]] = {"ddp": ddp, "fsdp": fsdp}


def chains(world_size: int) -> list[str]:
    """Return the names of the chains that run on so many ranks, of which two cores take a few."""
    return [*METHODS] if world_size == 2 else ["sgld", "noise"]


def sample_all(rank: int, world_size: int, folder: Path) -> None:
    """Run the chains in every layout, and sharded ones that are broken off and begun again."""
    found: dict[str, Any] = {}
    with process_group(rank, world_size, folder / "rendezvous"):
        for name in chains(world_size):
            for layout, wrap in LAYOUTS.items():
                found[f"{layout}-{name}"] = outcome(start(wrap(), name))
        # A folder for one process to go on with.
        next(start(fsdp(), folder=folder / "moved", checkpoint_every=7))
        if world_size == 2:
            found |= _break_off(folder)
    torch.save(found, folder / f"rank-{rank}.pt")


def _break_off(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("sgld", "psgld"):
        options = {"folder": folder / f"broken-{name}", "checkpoint_every": 7}
        broken = start(fsdp(), name, **options)
        next(broken)
        next(broken)  # two steps after a checkpoint
        found[f"broken-{name}"] = outcome(start(fsdp(seed=5), name, **options))
    (folder / "file").touch()
    try:
        start(fsdp(), folder=folder / "file" / "below")
    except OSError as error:
        found["refused"] = str(error)
    return found


def killed_chain(rank: int, world_size: int, folder: Path, fatal_write: int, name: str) -> None:
    """Run a chain in one process, which dies at a write: after it, but before it is on the disk,
    and before a checkpoint is moved to its place."""
    torch.set_num_threads(1)
    writes, sync = 0, os.fsync

    def count(descriptor: int) -> None:
        nonlocal writes
        writes += 1
        if writes == fatal_write:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(descriptor)

    os.fsync = count
    start(Small(), name, folder=folder, checkpoint_every=7).collect()
