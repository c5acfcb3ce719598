"""What kernels must know of tensors, since they work on addresses: where tensors lie in memory.

`Looks` and `Places` are how a plan made for some tensors proves that it still fits them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# What torch.compile guards its own code with: type, dtype, device, shape, strides, and the bits for
# conjugation and negation of each tensor, compared in one call.
_TensorGuards = torch._C._dynamo.guards.TensorGuards
# One call in place of one per tensor; torch's builds for CUDA have it.
_are_at = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None)


class Looks:
    """How tensors looked: type, dtype, device, shape, strides, bits that conjugate or negate."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._guards = _TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)

    def fit(self, tensors: Sequence[Tensor]) -> bool:
        """Whether tensors, which may lie elsewhere, are read as those before them were."""
        return bool(self._guards.check(*tensors))


class Places:
    """Where tensors lay."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.addresses = list(map(Tensor.data_ptr, tensors))
        self._all = list(range(len(tensors)))

    def changed(self, tensors: list[Tensor]) -> list[int]:
        """Return which tensors lie elsewhere. Their new addresses are then the ones remembered."""
        if _are_at is not None and _are_at(tensors, self.addresses, self._all):
            return []
        found = list(map(Tensor.data_ptr, tensors))
        if found == self.addresses:
            return []
        both = enumerate(zip(found, self.addresses, strict=True))
        moved = [i for i, (now, then) in both if now != then]
        self.addresses = found
        return moved


class Storages:
    """What tensors are parts of, and how large it was. Storages can be resized in place."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._storages = [tensor.untyped_storage() for tensor in tensors]
        self._sizes = self._now()

    def _now(self) -> list[int]:
        return list(map(torch.UntypedStorage.nbytes, self._storages))

    def are_as_large(self) -> bool:
        return self._now() == self._sizes


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is memory and nothing else: no subclass that stands for other tensors."""
    dispatch = type(tensor).__torch_dispatch__
    return dispatch is torch._C._disabled_torch_dispatch_impl


def is_whole(tensor: Tensor) -> bool:
    """Whether a tensor's storage holds all of its elements: it may have been resized."""
    before = tensor.storage_offset() * tensor.element_size()
    return extent(tensor) == 0 or extent(tensor) <= tensor.untyped_storage().nbytes() - before


def repeats(tensor: Tensor) -> bool:
    """Whether two elements of a tensor share their memory, or are not known not to."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def extent(tensor: Tensor) -> int:
    """Return the bytes from the first to behind the last element of a tensor."""
    if tensor.numel() == 0:
        return 0
    reach = sum(s * (n - 1) for s, n in zip(tensor.stride(), tensor.shape, strict=True))
    return (reach + 1) * tensor.element_size()


def real(tensor: Tensor) -> Tensor:
    """A complex number is two real coordinates, each with its own noise and its own D."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


class Spans:
    """Where tensors lie in memory, to ask what shares it with them. Devices have addresses of their
    own, or, unified, share them: neither makes two tensors look apart that are not."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        ranges = ((t.data_ptr(), t.data_ptr() + extent(t)) for t in tensors)
        spans = sorted(span for span in ranges if span[0] < span[1])
        self._begins = np.array([begin for begin, _ in spans], np.uint64)
        # The furthest end so far: of spans that begin before an address, whether any ends after it.
        self._ends = np.maximum.accumulate(np.array([end for _, end in spans], np.uint64))

    def overlap(self) -> bool:
        """Whether any two of the tensors share memory."""
        return bool((self._ends[:-1] > self._begins[1:]).any())

    def meet(self, addresses: Sequence[int], sizes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Say, for runs of bytes, which of them share memory with one of the tensors."""
        if len(self._begins) == 0:
            return np.zeros(len(addresses), bool)
        begins = np.asarray(addresses, np.uint64)
        last = np.searchsorted(self._begins, begins + sizes, "left").astype(np.int64) - 1
        meets: npt.NDArray[Any] = (last >= 0) & (self._ends[last] > begins)
        return meets


def overlap(tensors: Sequence[Tensor]) -> bool:
    """Whether any two tensors share memory."""
    return Spans(tensors).overlap()
