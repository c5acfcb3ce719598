"""Additions to torch.distributed: names for ZeRO, and checkpoints that survive a kill.

DistributedDataParallel, fully_shard, tensor parallelism and pipeline stages need nothing from this
module. Give the optimizer `model.named_parameters()`, and every element has the same noise as in
one process. See docs/scale.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer

from asgld import noise
from asgld.optim import ASGLD

# torch writes this file last, by a move, when every rank has written its part.
_SEAL = ".metadata"


def keyed_by_name(
    optimizer_class: type[ASGLD], named_parameters: Iterable[tuple[str, Tensor]]
) -> Callable[..., ASGLD]:
    """Return `optimizer_class` for torch's ZeroRedundancyOptimizer, which takes no names.

    That class distributes the parameters over ranks and makes one optimizer per rank. Without names
    a position in the list of a rank would key the noise: parameters on different ranks would share
    noise, and the run would depend on the number of ranks.

    Give the class that this returns, and groups::

        make = keyed_by_name(asgld.NetworkASGLD, model.named_parameters())
        ZeroRedundancyOptimizer(asgld.network_groups(model), optimizer_class=make, lr=4e-3)

    Args:
        optimizer_class: :class:`asgld.ASGLD` or one of its presets.
        named_parameters: those of the whole model.

    Example:
        >>> import asgld
        >>> model = torch.nn.Linear(3, 2)
        >>> make = keyed_by_name(asgld.NetworkASGLD, model.named_parameters())
        >>> optimizer = make([{"params": [model.bias]}], lr=0.1)    # as the second rank does
        >>> optimizer.param_groups[0]["param_names"]
        ['bias']
    """
    named = dict(named_parameters)
    name_of = {parameter: name for name, parameter in named.items()}
    # Streams of all names: two names with the same hash may be on different ranks.
    stream_of = dict(zip(named.values(), noise.streams_of_names(named), strict=True))

    def make(groups: Iterable[dict[str, Any]], **options: Any) -> ASGLD:
        optimizer = optimizer_class(
            [{**group, "param_names": [name_of[p] for p in group["params"]]} for group in groups],
            **options,
        )
        for parameter, state in optimizer.state.items():
            state["stream"].fill_(stream_of[parameter])
        return optimizer

    return make


def save(
    directory: str | Path,
    step: int,
    model: torch.nn.Module,
    optimizer: Optimizer,
    *,
    others: Mapping[str, Any] | None = None,
    asynchronous: bool = False,
) -> Future[Any] | None:
    """Save a checkpoint of `step`, every rank its own part, beside those of earlier steps.

    After a kill at any moment, the earlier checkpoints are unchanged, and this one is either whole
    or ignored by :func:`latest`. Call `save` on all ranks; any number of ranks can load.

    Args:
        directory: the same on all ranks, on a file system that they share.
        step: names the checkpoint; steps taken so far.
        model, optimizer: sharded or not.
        others: more objects with `state_dict` and `load_state_dict`, by name: a sampler, a
            scheduler.
        asynchronous: copy the state, return, and write in the background. Wait for the returned
            future before the next save and before the end.
    """
    path = Path(directory) / f"step-{step:010d}"
    if torch.distributed.get_rank() == 0:
        # The seal of an older checkpoint of this step must not seal the new one. No rank writes
        # before rank 0, here, has planned the save.
        (path / _SEAL).unlink(missing_ok=True)
    state = _state(model, optimizer, others)
    if asynchronous:
        future: Any = state_dict_saver.async_save(
            state, checkpoint_id=path, process_group=_background_group()
        )
        return future  # type: ignore[no-any-return]
    state_dict_saver.save(state, checkpoint_id=path)
    return None


def load(
    directory: str | Path,
    model: torch.nn.Module,
    optimizer: Optimizer,
    *,
    others: Mapping[str, Any] | None = None,
) -> int:
    """Load the latest whole checkpoint and return its step; 0 where there is none.

    The number of ranks and the layout may differ from those of `save`. Call `load` on all ranks.
    Rank 0 chooses the checkpoint, since ranks may see different states of a shared file system.
    """
    found = [latest(directory)]
    torch.distributed.broadcast_object_list(found, src=0)
    path = found[0]
    if path is None:
        return 0
    state = _state(model, optimizer, others)
    state_dict_loader.load(state, checkpoint_id=path)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    return int(path.name.removeprefix("step-"))


def latest(directory: str | Path) -> Path | None:
    """Return the whole checkpoint of the most steps, or None."""
    return max((seal.parent for seal in Path(directory).glob(f"step-*/{_SEAL}")), default=None)


@functools.cache
def _group_beside(world: Any) -> Any:
    return torch.distributed.new_group(backend="gloo")


def _background_group() -> Any:
    """Return a group for the background; its messages must not mix with those of the training."""
    return _group_beside(torch.distributed.group.WORLD)


def _state(
    model: torch.nn.Module, optimizer: Optimizer, others: Mapping[str, Any] | None
) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    # torch itself calls `state_dict` and `load_state_dict` of the others.
    return {"model": model_state, "optimizer": optimizer_state, **(others or {})}
