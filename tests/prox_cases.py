"""What the processes of the tests of sharded penalties run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from helpers import make_tensor
from ranks import process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import asgld
from asgld.prox import L1, GroupLasso, Penalty


def shard_rows(rank: int, world_size: int, folder: Path) -> None:
    """Take steps on a matrix whose rows are sharded, and leave the outcomes in `folder`."""
    with process_group(rank, world_size, folder / "rendezvous"):
        mesh = init_device_mesh("cpu", (world_size,))

        def sharded(placement: Placement) -> Any:
            return distribute_tensor(make_tensor(7, 5, seed=0), mesh, [placement]).requires_grad_()

        def refusal(placement: Placement, prox: Penalty) -> str:
            try:
                asgld.ASGLD([sharded(placement)], prox=prox)
            except ValueError as error:
                return str(error)
            return "no error"

        def refusal_of_parts(make: Callable[[Any], Penalty], whole: Any) -> str:
            try:
                make(distribute_tensor(whole, mesh, [Shard(0)]))
            except TypeError as error:
                return str(error)
            return "no error"

        x = sharded(Shard(0))
        optimizer = asgld.ASGLD([x], lr=0.3, sigma=0.2, prox=GroupLasso(2.5), seed=11)
        messages = 0
        for k in range(4):
            grad = make_tensor(7, 5, seed=1000 * k)
            grad = grad + 0.5 * x.detach().full_tensor()
            x.grad = distribute_tensor(grad, mesh, [Shard(0)])
            with CommDebugMode() as watch:
                optimizer.step()
            messages += watch.get_total_counts()
        numbered = GroupLasso(0.9, torch.zeros(7, 5, dtype=torch.int64))
        asgld.ASGLD([sharded(Replicate())], prox=numbered)  # every rank holds whole groups
        outcomes = {
            "rows": x.detach().full_tensor(),
            "messages": messages,
            "columns": refusal(Shard(1), GroupLasso(0.9)),
            "numbered": refusal(Shard(0), numbered),
            "weights": refusal(Shard(0), L1(torch.ones(7, 5))),
            "sharded weights": refusal_of_parts(L1, torch.ones(7, 5)),
            "sharded groups": refusal_of_parts(
                lambda groups: GroupLasso(1.0, groups), torch.zeros(7, 5, dtype=torch.int64)
            ),
        }
    torch.save(outcomes, folder / f"rank-{rank}.pt")
