"""FSDP2: parameters, sums and checkpoints in shards, and a resume on any number of ranks.

    torchrun --standalone --nproc-per-node 4 examples/fsdp2.py run --steps 30
    torchrun --standalone --nproc-per-node 2 examples/fsdp2.py run --steps 60

The second line goes on where the first ended. If a rank dies, start again (torchrun does with
`--max-restarts`): the run returns to the last whole checkpoint and ends with the same bits.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import asgld
from asgld import distributed

NUM_SAMPLES = 4000


def make_model() -> nn.Module:
    torch.manual_seed(0)  # before sharding: on a CPU mesh all shards would draw the same numbers
    model = nn.Sequential(
        nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 50), nn.Tanh(), nn.Linear(50, 1)
    )
    if torch.cuda.is_available():
        model.cuda()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def train(
    checkpoints: Path,
    num_steps: int,
    save_every: int = 10,
    after_step: Callable[[int], None] = lambda step: None,
) -> dict[str, Tensor]:
    """Train up to `num_steps`, beginning at the last whole checkpoint; return the parameters."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = make_model()
    optimizer = asgld.NetworkASGLD(model, lr=3e-2, seed=1)
    sampler = asgld.GrowingBatchSampler(
        NUM_SAMPLES, initial=64, slope=2.0, seed=1, rank=rank, world_size=world_size
    )
    sampler.step = distributed.load(checkpoints, model, optimizer)
    if rank == 0:
        print(f"begin at step {sampler.step} on {world_size} ranks")

    inputs = torch.randn(NUM_SAMPLES, 8, generator=torch.Generator().manual_seed(2))
    device = next(model.parameters()).device
    pending = None
    while sampler.step < num_steps:
        x = inputs[sampler.indices(sampler.step)].to(device)
        optimizer.zero_grad()
        loss = asgld.accumulate(
            lambda x: nn.functional.mse_loss(model(x), torch.sin(2 * x[:, :1])),
            x, 64,
            batch_size=sampler.batch_size(sampler.step), world_size=world_size, model=model,
        )  # fmt: skip
        optimizer.step()
        sampler.step += 1
        after_step(sampler.step)
        if sampler.step % save_every == 0 or sampler.step == num_steps:
            if pending is not None:
                pending.result()
            pending = distributed.save(
                checkpoints, sampler.step, model, optimizer, asynchronous=True
            )
            dist.all_reduce(loss)
            if rank == 0:
                print(f"step {sampler.step}: loss {loss.item() / world_size:.6f}")
    if pending is not None:
        pending.result()
    return {name: p.full_tensor().detach().cpu() for name, p in model.named_parameters()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoints", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    # gloo on the side: checkpoints are coordinated between processors, not between GPUs.
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    train(arguments.checkpoints, arguments.steps)
    dist.barrier()
    # A process that tears down its gloo group aborts now and then (torch 2.13): end without.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
