"""Parts of a chain of networks: ranks and shards, data, and checks."""

from __future__ import annotations

import contextlib
import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset, default_collate

from asgld import noise
from asgld.arguments import require
from asgld.data.batches import _map
from asgld.optim.state import local

Loss = Callable[[nn.Module, Any], Tensor]
_POWER_STEPS = 15

# ----------------------------------------------------------------------------------------------
# Ranks and shards
# ----------------------------------------------------------------------------------------------


class Ranks(NamedTuple):
    """The processes that work on one chain."""

    rank: int = 0
    size: int = 1
    group: Any = None

    @classmethod
    def of(cls, model: nn.Module, params: Mapping[str, Any]) -> Ranks:
        inner: Any = getattr(model, "_orig_mod", model)
        sharded = [p for p in params.values() if hasattr(p, "device_mesh")]
        if isinstance(inner, DistributedDataParallel):
            group: Any = inner.process_group
        elif not sharded:
            return cls()
        else:
            mesh = sharded[0].device_mesh
            splits = max(sum(place.is_shard() for place in p.placements) for p in sharded)
            is_whole = hasattr(inner, "set_requires_gradient_sync") and len(sharded) == len(params)
            is_all = mesh.ndim == 1 or mesh.size() == dist.get_world_size()
            need = "a plain model, DistributedDataParallel, or fully_shard of the whole model"
            fits = is_whole and is_all and splits == 1
            require(fits, "model", type(inner).__name__, f"{need}, without tensor parallelism")
            group = mesh.get_group() if mesh.ndim == 1 else dist.group.WORLD
        return cls(dist.get_rank(group), dist.get_world_size(group), group)

    def sum(self, entries: list[Tensor], device: torch.device) -> Tensor:
        """Return the sums over ranks, on the CPU."""
        real = torch.float32 if device.type == "mps" else torch.float64
        values = torch.stack([entry.detach().to(device, real) for entry in entries])
        if self.size > 1:
            dist.all_reduce(values, group=self.group)
        return values.cpu().double()

    def share(self, value: Any) -> Any:
        """Return the first rank's value on all ranks."""
        values = [value]
        if self.size > 1:
            dist.broadcast_object_list(values, group=self.group, group_src=0)
        return values[0]


def named(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters by the names that they have without wrappers."""
    named = {k: p for k, p in model.named_parameters() if p.requires_grad and p.numel()}
    require(bool(named), "model", type(model).__name__, "parameters that require a gradient")
    for name, p in named.items():
        require(p.is_floating_point(), "parameter", name, f"real numbers, not {p.dtype}")
    plain = {noise.canonical_name(k): p for k, p in named.items()}
    return plain if len(plain) == len(named) else named


def part_of(whole: Tensor, like: Any) -> Tensor:
    """Return this rank's part of a whole tensor."""
    if not hasattr(like, "device_mesh"):
        return whole
    from torch.distributed.tensor import distribute_tensor

    mesh, places = like.device_mesh, like.placements
    whole = whole.to(mesh.device_type)
    placed: Tensor = distribute_tensor(whole, mesh, places, src_data_rank=None)
    return local(placed)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Be in evaluation mode, without gradients, until the end."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
        inner: Any
        for inner in model.modules():
            if hasattr(inner, "set_requires_gradient_sync"):
                inner.reshard()  # fully_shard would keep these weights for the next pass


# ----------------------------------------------------------------------------------------------
# Data, checks, and arrays in files
# ----------------------------------------------------------------------------------------------


class Reader:
    """The data as batches of given indices, on the device of the model."""

    def __init__(self, data: Any, model: nn.Module) -> None:
        p: Any = next(iter(named(model).values()))
        self.device = torch.device(
            getattr(getattr(p, "device_mesh", None), "device_type", p.device)
        )
        data = data.tensors if isinstance(data, TensorDataset) else data
        held = list(data.values()) if isinstance(data, Mapping) else data
        held = list(held) if isinstance(held, (list, tuple)) else [held]
        self._data, self._has_tensors = data, all(isinstance(value, Tensor) for value in held)
        need = "tensors with samples along the first dimension, or a map-style data set"
        is_set = hasattr(data, "__getitem__") and hasattr(data, "__len__") and len(data)
        sizes = [len(value) if value.dim() else 0 for value in held] if self._has_tensors else []
        require(bool(is_set), "data", type(data).__name__, need)
        require(len({*sizes}) <= 1 and 0 not in sizes, "data", sizes, f"{need}, as many in each")
        self._size = sizes[0] if sizes else len(data)

    def __len__(self) -> int:
        return self._size

    def take(self, rows: Tensor) -> Any:
        if self._has_tensors:
            batch = _map(self._data, lambda value: value[rows.to(value.device)])
        elif hasattr(self._data, "__getitems__"):
            batch = default_collate(self._data.__getitems__(rows.tolist()))
        else:
            batch = default_collate([self._data[i] for i in rows.tolist()])
        return _map(batch, lambda value: value.to(self.device))


def check_model(model: nn.Module, loss: Loss, batch: Any) -> None:
    """Raise if there is no posterior to sample: dropout is on, or the loss is no mean."""
    for name, module in model.named_modules():
        rate = getattr(module, "p" if isinstance(module, _DropoutNd) else "dropout", 0.0)
        if module.training and isinstance(rate, float) and rate > 0.0:
            raise ValueError(
                f"model: {name!r} has dropout={rate:g}, so the loss is random and has no "
                "posterior; call model.eval() first"
            )
        if module.training and isinstance(module, _BatchNorm):
            warnings.warn(
                f"model: {name!r} normalizes by each batch, so the draws depend on batch_size and "
                "on the number of ranks; model.eval() keeps its averages fixed",
                stacklevel=3,
            )
    with evaluating(model):
        once = float(loss(model, batch))
        twice = float(loss(model, _map(batch, lambda value: torch.cat([value, value]))))
    if not math.isfinite(once):
        raise ValueError(f"loss: it is {once} at the start; need a finite number")
    if abs(twice - once) > 0.25 * abs(once):
        raise ValueError(
            f"loss: it is {once:.4g} for a batch but {twice:.4g} for that batch twice over, like a "
            "sum; need the mean over the samples"
        )


def largest_curvature(model: nn.Module, loss: Loss, batch: Any) -> float:
    """Return the largest curvature of the loss of a batch, by power steps, to some per cent."""
    inner: Any = model.module if isinstance(model, DistributedDataParallel) else model
    params = list(named(inner).values())
    if any(hasattr(p, "device_mesh") for p in params):
        raise TypeError("lr is missing: for a sharded model it is not measured; give one")
    generator = torch.Generator().manual_seed(0)
    v = [torch.randn(p.shape, generator=generator).to(p) for p in params]
    size = 0.0
    for _ in range(_POWER_STEPS):
        norm = math.sqrt(sum(float(part.double().square().sum()) for part in v))
        v = [part / max(norm, 1e-30) for part in v]
        grads = torch.autograd.grad(
            loss(inner, batch), params, create_graph=True, materialize_grads=True
        )
        v = list(torch.autograd.grad(grads, params, v, materialize_grads=True))
        size = max(size, math.sqrt(sum(float(part.double().square().sum()) for part in v)))
    return size


def hash_of(value: Any) -> str:
    """Return a short hash of a text, or of tensors in tuples, lists and dicts."""
    digest = hashlib.blake2s(value.encode() if isinstance(value, str) else b"", digest_size=8)

    def add(tensor: Tensor) -> None:
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())

    if not isinstance(value, str):
        _map(value, add)
    return digest.hexdigest()


def kind_of(p: Tensor) -> str:
    return "float64" if p.dtype == torch.float64 else "float32"
