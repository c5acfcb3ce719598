"""Data parallel training with batches that grow: every replica draws the same noise by itself.

    python examples/ddp.py
    torchrun --standalone --nproc-per-node 2 examples/ddp.py

The noise is a function of (seed, parameter name, step, element), so the replicas stay equal to the
last bit without sending any of it. Batches are a function of (seed, step), split over the ranks.
Run it with another number of processes: the printed losses differ by rounding only.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import asgld

NUM_SAMPLES, NUM_STEPS = 4000, 160
MICRO_BATCH_SIZE = 64  # what fits the memory of one device


def main() -> None:
    on_gpu = torch.cuda.is_available()
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if on_gpu else "gloo", **alone)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if on_gpu else "cpu"

    torch.manual_seed(0)  # the same data and the same first parameters on every rank
    inputs = torch.randn(NUM_SAMPLES, 8)
    targets = torch.sin(2 * inputs[:, :1])
    network = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    model = DistributedDataParallel(network)
    optimizer = asgld.NetworkASGLD(model, lr=1e-2, seed=1)
    sampler = asgld.GrowingBatchSampler(
        NUM_SAMPLES, initial=64, slope=2.0, seed=1,
        rank=rank, world_size=world_size, num_steps=NUM_STEPS,
    )  # fmt: skip
    loader = DataLoader(TensorDataset(inputs, targets), batch_sampler=sampler)

    def loss(batch: list[torch.Tensor]) -> torch.Tensor:
        x, y = (part.to(device) for part in batch)
        return nn.functional.mse_loss(model(x), y)

    for step, batch in enumerate(loader):
        optimizer.zero_grad()
        batch_size = sampler.batch_size(step)
        mean = asgld.accumulate(
            loss, batch, MICRO_BATCH_SIZE,
            batch_size=batch_size, world_size=world_size, model=model,
        )  # fmt: skip
        optimizer.step()
        dist.all_reduce(mean)
        if rank == 0 and step % 40 == 39:
            print(f"step {step}: loss {mean.item() / world_size:.6f}, {batch_size} samples")

    # Every rank has the same bits.
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    of_rank_0 = mine.clone()
    dist.broadcast(of_rank_0, 0)
    assert torch.equal(mine, of_rank_0)


if __name__ == "__main__":
    main()
    # A process that tears down its gloo group aborts now and then (torch 2.13): end without.
    sys.stdout.flush()
    os._exit(0)
