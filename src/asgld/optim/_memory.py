"""Where tensors lie in memory, for kernels, which work on addresses.

By `Looks`, `Places` and `Storages` a plan proves that it still fits its tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# The guards of torch.compile's own code. One call compares type, dtype, device, shape, strides, and
# the bits for conjugation and negation of all tensors.
_TensorGuards = torch._C._dynamo.guards.TensorGuards
# Compares all addresses in one call; only torch's builds for CUDA have it.
_are_at = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None)


class Looks:
    """The type, dtype, device, shape, strides, conjugation and negation of tensors."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._guards = _TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)

    def fit(self, tensors: Sequence[Tensor]) -> bool:
        """Whether other tensors have the same type, dtype and so on, at any address."""
        return bool(self._guards.check(*tensors))


class Places:
    """The addresses of tensors."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.addresses = list(map(Tensor.data_ptr, tensors))
        self._all = list(range(len(tensors)))

    def changed(self, tensors: list[Tensor]) -> list[int]:
        """Return the positions of tensors whose address has changed; remember the new addresses."""
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
    """The storages of tensors and their sizes, since a storage can be resized in place."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._storages = [tensor.untyped_storage() for tensor in tensors]
        self._sizes = self._now()

    def _now(self) -> list[int]:
        return list(map(torch.UntypedStorage.nbytes, self._storages))

    def are_as_large(self) -> bool:
        return self._now() == self._sizes


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is plain memory, not a subclass that stands for other tensors."""
    dispatch = type(tensor).__torch_dispatch__
    return dispatch is torch._C._disabled_torch_dispatch_impl


def is_whole(tensor: Tensor) -> bool:
    """Whether a tensor's storage, which may have been resized, holds all of its elements."""
    before = tensor.storage_offset() * tensor.element_size()
    return extent(tensor) == 0 or extent(tensor) <= tensor.untyped_storage().nbytes() - before


def repeats(tensor: Tensor) -> bool:
    """Whether two elements of a tensor share memory; True also if this is not certain."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def extent(tensor: Tensor) -> int:
    """Return the number of bytes from the first element of a tensor to the end of the last."""
    if tensor.numel() == 0:
        return 0
    reach = sum(s * (n - 1) for s, n in zip(tensor.stride(), tensor.shape, strict=True))
    return (reach + 1) * tensor.element_size()


def real(tensor: Tensor) -> Tensor:
    """View a complex number as two real coordinates, each with its own noise and its own D."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


class Spans:
    """The ranges of memory of tensors. Addresses of different devices may coincide by chance; then
    tensors seem to share memory that do not, which is safe."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        ranges = ((t.data_ptr(), t.data_ptr() + extent(t)) for t in tensors)
        spans = sorted(span for span in ranges if span[0] < span[1])
        self._begins = np.array([begin for begin, _ in spans], np.uint64)
        # The largest end so far tells whether any span that begins before an address ends after it.
        self._ends = np.maximum.accumulate(np.array([end for _, end in spans], np.uint64))

    def overlap(self) -> bool:
        """Whether any two of the tensors share memory."""
        return bool((self._ends[:-1] > self._begins[1:]).any())

    def meet(self, addresses: Sequence[int], sizes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Say for each run of bytes whether it shares memory with one of the tensors."""
        if len(self._begins) == 0:
            return np.zeros(len(addresses), bool)
        begins = np.asarray(addresses, np.uint64)
        last = np.searchsorted(self._begins, begins + sizes, "left").astype(np.int64) - 1
        meets: npt.NDArray[Any] = (last >= 0) & (self._ends[last] > begins)
        return meets


def overlap(tensors: Sequence[Tensor]) -> bool:
    """Whether any two tensors share memory."""
    return Spans(tensors).overlap()
