"""The step in a kernel: which kernel serves, and the tables of addresses that it works on.

Python takes longer to collect the addresses than a GPU takes for the whole step. So a `Plan` keeps
them from step to step. Before each step it proves that it still fits: the group, its parameters and
their states are the same objects, and the tensors have the same addresses, shapes, strides and
dtypes. If anything differs, the addresses are collected anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter, is_
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from asgld.noise import Layout, layout_of
from asgld.optim import _memory, proximal
from asgld.optim.functional import Tensors, check_apart, check_sums, working_dtype
from asgld.optim.matrix import Matrices, applied
from asgld.optim.rule import FLAGS, NUMBERS, Rule, check, check_lr, rule_of
from asgld.optim.state import sum_dtype
from asgld.prox import BoundPenalty

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
# Sets of gradient addresses that a plan remembers.
_MOST_TAKEN = 16


class KernelTable(Protocol):
    """Tensors of one device as its kernel sees them."""

    def can_count(self) -> bool:
        """Whether the step counts fit the noise counter; counts on a device are not read."""

    def step(
        self,
        grads: Sequence[int],
        rule: Rule,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None:
        """Take one step in place, and add one to every step count.

        Args:
            grads: addresses of contiguous gradients.
            rule: the knobs.
            grad_scale: the factor that the gradients contain.
            found_inf: if not zero, the gradients overflowed, and nothing changes.
        """


def unavailable_reason(params: Sequence[Tensor], rule: Rule | None = None) -> str | None:
    """Return why no kernel can serve these parameters, or None where one can."""
    for device in {param.device.type for param in params}:
        reason: str | None
        if device not in ("cpu", "cuda"):
            return f"there is no kernel for device {device!r}, only for 'cpu' and 'cuda'"
        try:
            if device == "cpu":
                from asgld.optim import _native

                reason = _native.unavailable_reason()
            else:
                from asgld.optim import _triton

                reason = _triton.unavailable_reason()
        except ImportError as error:
            reason = f"Triton does not import: {error}"
        if reason is not None:
            return reason
    for param in params:
        dtype = _REAL.get(param.dtype, param.dtype)
        total = dtype if rule is None else sum_dtype(rule, param)
        if dtype not in _DTYPES or (dtype == torch.float64 and total != torch.float64):
            return f"no kernel serves a parameter of {param.dtype} with a sum of {total}"
        if not _memory.is_plain(getattr(param, "_local_tensor", param)):
            return f"a parameter is a {type(param).__name__}, which no kernel addresses"
    if any(layout_of(param).rows is None for param in params):
        return "a parameter is sharded along two inner dimensions, which no kernel addresses"
    return None


class Kernels:
    """One step in kernels on lists of tensors of any strides.

    A kernel needs row-major tensors, and gradients in memory that the step does not write to. A
    tensor that is otherwise is copied for the length of a step. Gradients may be complex, strided,
    negated or conjugated.
    """

    def __init__(self, tensors: Tensors, *, host_counts: bool = False) -> None:
        params, grads = tensors.params, tensors.grads
        self._written = _memory.Spans(tensors.written())
        self._needed = [_memory.extent(g) for g in grads]
        self._sizes = np.array(self._needed, np.uint64)
        self._types = [_grad_dtype(g, p) for g, p in zip(grads, params, strict=True)]
        self._copied = {i for i, g in enumerate(grads) if not _is_dense(g, self._types[i])}
        self._copied |= self._shared(list(map(Tensor.data_ptr, grads)))
        self._taken: set[tuple[int, ...]] = set()
        self._has_all_sums = all(total is not None for total in tensors.sums)
        in_turn = self._written.overlap()
        if in_turn:
            check_apart(tensors)
        self._parts = _parts(tensors, self._types, host_counts=host_counts, in_turn=in_turn)

    def _shared(self, addresses: list[int]) -> set[int]:
        """Return the positions of gradients in memory that the step writes to."""
        return set(np.flatnonzero(self._written.meet(addresses, self._sizes)).tolist())

    def can_count(self) -> bool:
        """Whether the step counts on the CPU fit the noise counter."""
        return all(part.table.can_count() for part in self._parts)

    def take(self, grads: Sequence[Tensor], moved: list[int], addresses: list[int]) -> bool:
        """Whether the storages of moved gradients are large enough, and whether the copies that the
        step already makes suffice. `moved` are positions, `addresses` those of all gradients."""
        for i in moved:
            before = grads[i].storage_offset() * grads[i].element_size()
            if grads[i].untyped_storage().nbytes() < before + self._needed[i]:
                return False
        known = tuple(addresses)  # gradients often return to an earlier place
        if known not in self._taken:
            if not self._shared(addresses) <= self._copied:
                return False
            if len(self._taken) == _MOST_TAKEN:
                self._taken.clear()
            self._taken.add(known)
        return True

    def step(
        self,
        grads: Sequence[Tensor],
        addresses: list[int],
        rule: Rule,
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
    ) -> None:
        """Take one step. `addresses` are those of the gradients."""
        check_sums(self._has_all_sums, rule)  # before the first part moves
        copies = {i: _dense_copy(grads[i], self._types[i]) for i in self._copied}
        if copies:
            addresses = list(addresses)
            for i, copy in copies.items():
                addresses[i] = copy.data_ptr()
        for part in self._parts:
            part.step(addresses, rule, grad_scale, found_inf)


class _Part(NamedTuple):
    """The parameters of one table, and copies of their tensors that are not row-major."""

    members: list[int] | None  # positions of the parameters; None is all of them, in order
    copies: list[tuple[Tensor, Tensor]]
    table: KernelTable

    def step(self, addresses: list[int], rule: Rule, *scaling: Tensor | None) -> None:
        chosen = addresses if self.members is None else [addresses[i] for i in self.members]
        if not self.copies:
            self.table.step(chosen, rule, *scaling)
            return
        with torch.no_grad():
            for kept, copy in self.copies:
                copy.copy_(kept)
            self.table.step(chosen, rule, *scaling)
            for kept, copy in self.copies:
                kept.copy_(copy)


def _parts(
    tensors: Tensors, grad_dtypes: Sequence[torch.dtype], *, host_counts: bool, in_turn: bool
) -> list[_Part]:
    """Return a part per device, with sums and without, and, on a GPU, per kind of tensor. With
    `in_turn` every parameter is a part: parameters that share memory are updated one after the
    other."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, (param, total) in enumerate(zip(tensors.params, tensors.sums, strict=True)):
        in_fours = tensors.layouts[i].is_in_fours
        sum_dtype = None if total is None else total.dtype
        kinds = () if param.is_cpu else (param.dtype, sum_dtype, grad_dtypes[i], in_fours)
        key = (param.device, total is None, *kinds, i if in_turn else None)
        groups.setdefault(key, []).append(i)
    parts = []
    for (device, *_), members in groups.items():
        part = tensors.select(members)
        copies = {id(t): (t, _empty(t)) for t in part.written() if not _is_dense(t, t.dtype)}

        def dense(column: Sequence[Any], copies: dict[int, Any] = copies) -> list[Any]:
            return [copies[id(t)][1] if id(t) in copies else t for t in column]

        columns = (
            dense(part.params), dense(part.sums), dense(part.steps), part.streams,
            [layout.rows for layout in part.layouts], dense(part.momenta),
            [grad_dtypes[i] for i in members],
        )  # fmt: skip
        table: KernelTable
        if device.type == "cpu":
            from asgld.optim import _native

            table = _native.CpuTable(*columns)
        else:
            from asgld.optim import _triton

            table = _triton.GpuTable(*columns, host_counts=host_counts)
        is_all = len(members) == len(tensors.params)
        parts.append(_Part(None if is_all else members, list(copies.values()), table))
    return parts


def _grad_dtype(grad: Tensor, param: Tensor) -> torch.dtype:
    """Return the dtype in which a kernel takes a gradient: its own dtype or the working one. The
    dtypes of gradient and parameter differ if `p.grad_dtype` is set."""
    dtype, working = _REAL.get(grad.dtype, grad.dtype), working_dtype(param)
    is_taken = working == torch.float32 and dtype in _DTYPES and dtype != torch.float64
    return dtype if is_taken else working


def _is_dense(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether a kernel can read a tensor without a copy."""
    is_right = _REAL.get(tensor.dtype, tensor.dtype) == _REAL.get(dtype, dtype)
    return is_right and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _empty(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty(tensor.shape, dtype=dtype or tensor.dtype, device=tensor.device)


def _dense_copy(grad: Tensor, dtype: torch.dtype) -> Tensor:
    resolved = _memory.real(grad.detach().resolve_conj())
    return _empty(resolved, dtype).copy_(resolved)


# ----------------------------------------------------------------------------------------------
# Under torch.compile: one opaque operator
# ----------------------------------------------------------------------------------------------


def step_as_operator(
    tensors: Tensors, rule: Rule, grad_scale: Tensor | None, found_inf: Tensor | None
) -> None:
    """Take one step as one operator of torch. `rule.lr` is a tensor."""
    assert isinstance(rule.lr, Tensor)
    sums = [total for total in tensors.sums if total is not None]
    if len(sums) < len(tensors.sums):
        raise RuntimeError("a fused step under torch.compile needs a sum for every parameter")
    rows = [layout.rows or (0, 0, 0) for layout in tensors.layouts]
    _operator(
        tensors.params,
        tensors.grads,
        sums,
        tensors.steps,
        [m for m in tensors.momenta if m is not None],
        tensors.streams,
        [number for row in rows for number in row],
        rule.lr,
        rule.numbers(),
        [rule.seed & 0xFFFFFFFF, rule.seed >> 32, *(int(getattr(rule, name)) for name in FLAGS)],
        grad_scale,
        found_inf,
    )


@torch.library.custom_op("asgld::fused_step", mutates_args=("params", "sums", "steps", "momenta"))
def _operator(
    params: list[Tensor],
    grads: list[Tensor],
    sums: list[Tensor],
    steps: list[Tensor],
    momenta: list[Tensor],
    streams: list[int],
    rows: list[int],
    lr: Tensor,
    numbers: list[float],
    integers: list[int],
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
) -> None:
    knobs: dict[str, Any] = {
        name: None if math.isnan(value) else value
        for name, value in zip(NUMBERS, numbers, strict=True)
    }
    low, high, *flags = integers
    for name, flag in zip(FLAGS, flags, strict=True):
        knobs[name] = bool(flag)
    # A compiled step has not checked lr yet.
    rule = Rule(**{**knobs, "lr": lr}, seed=low | high << 32)
    check_lr(lr)
    layouts = [
        Layout((p.numel(),), (1,), offset)
        if stride == 0
        else Layout((p.numel() // length, length), (stride, 1), offset)
        for p, offset, length, stride in zip(params, rows[::3], rows[1::3], rows[2::3], strict=True)
    ]
    kept: list[Tensor | None] = [*momenta] if momenta else [None] * len(params)
    tensors = Tensors(params, grads, [*sums], steps, streams, layouts, kept)
    addresses = list(map(Tensor.data_ptr, grads))
    Kernels(tensors).step(grads, addresses, rule, grad_scale, found_inf)


# ----------------------------------------------------------------------------------------------
# From step to step
# ----------------------------------------------------------------------------------------------


class Plan:
    """The step of a parameter group in kernels, and the facts that prove that it still fits.

    Args:
        group: the parameter group.
        rule: its knobs, checked.
        states: the optimizer's state.
        tensors: the tensors of the step.
        penalties: of the proximal steps, one per parameter, or none.
    """

    def __init__(
        self,
        group: dict[str, Any],
        rule: Rule,
        states: dict[Tensor, dict[str, Any]],
        tensors: Tensors,
        penalties: Sequence[BoundPenalty] = (),
    ) -> None:
        self.group, self._rule = group, rule
        self._params = list(group["params"])
        self._owners = [p for p in self._params if p.grad is not None]
        self._absent = [p for p in self._params if p.grad is None]
        self._dtypes = {working_dtype(p) for p in self._params}
        # The entries of the optimizer's state.
        place_of = {id(p): i for i, p in enumerate(states)}
        self._own = [place_of[id(p)] for p in self._owners]
        self._num_states = len(states)
        own = [states[p] for p in self._owners]
        self._entries = list(_entries(own))
        # The tensors that kernels read and write.
        names = ("sum", "right", *(("momentum",) if rule.momentum != 0.0 else ()))
        fixed = [*self._owners, *(state[name] for name in names for state in own if name in state)]
        self._fixed: list[Any] = fixed
        self._shards = _places_of_shards(fixed)
        self._shards_of_grads = _places_of_shards(self._owners)
        placed = _specs(self._owners, self._shards_of_grads)
        specs = _specs([p.grad for p in self._owners], self._shards_of_grads)
        self._specs = specs if specs == placed else placed  # FSDP reuses its objects: a fast ==
        self._steps = [state["step"] for state in own]
        self._looks = _memory.Looks(_held(fixed, self._shards))
        self._places = _memory.Places([*_held(fixed, self._shards), *self._steps])
        self._storages = _memory.Storages(_held(fixed, self._shards))
        self._grads: list[Any] = tensors.grads  # kept from a check to its step only
        self._looks_of_grads = _memory.Looks(tensors.grads)
        self._places_of_grads = _memory.Places(tensors.grads)
        # The tensors whose values the host has read.
        self._watched = [*_watched(self._steps), *_watched([state["stream"] for state in own])]
        self._versions = _versions(self._watched)
        self._tracked = [p for p in self._owners if not p.is_inference()]
        self._kernels = self._kernels_for(tensors, rule)
        self._penalties = penalties
        self._shrunk = tensors._replace(grads=[]) if penalties else None

    def _kernels_for(self, tensors: Tensors, rule: Rule) -> Kernels:
        return Kernels(tensors, host_counts=not rule.capturable)

    def fits(self, keys: list[Tensor], states: list[Any]) -> bool:
        """Whether the plan serves this step. Raise if a knob of the group is illegal.

        Args:
            keys, states: the optimizer's state as lists, since tensors are slow keys.
        """
        rule, last = rule_of(self.group), self._rule
        if _are_equal(rule[1:], last[1:]):
            check_lr(rule.lr)
        else:
            check(rule, self._dtypes)
            if not _are_equal(_settings(rule), _settings(last)):
                return False
        # The penalties of the plan are those that this object has made.
        if rule.prox is not last.prox or (rule.prox is not None and rule.prox.has_changed):
            return False
        self._rule = rule
        return self._holds_the_same(keys, states) and self._looks_the_same()

    def _holds_the_same(self, keys: list[Tensor], states: list[Any]) -> bool:
        """Whether the group and the state hold the same objects."""
        params = self.group["params"]
        if len(params) != len(self._params) or len(keys) != self._num_states:
            return False
        if not all(map(is_, params, self._params)):
            return False
        if not all(map(is_, map(keys.__getitem__, self._own), self._owners)):
            return False
        try:
            entries = list(_entries(map(states.__getitem__, self._own)))
        except TypeError:  # a state is not a dict
            return False
        return len(entries) == len(self._entries) and all(map(is_, entries, self._entries))

    def _looks_the_same(self) -> bool:
        """Whether the tensors have the same place and form. Gradients may have another place."""
        if any(p.grad is not None for p in self._absent):
            return False
        grads, fixed = _gradients(self._owners, bool(self._shards)), self._fixed
        try:
            if self._shards:
                if _specs(grads, self._shards_of_grads) != self._specs:
                    return False
                grads, fixed = _held(grads, self._shards_of_grads), _held(fixed, self._shards)
            looks_the_same = (
                self._looks_of_grads.fit(grads)
                and self._looks.fit(fixed)
                and not self._places.changed([*fixed, *self._steps])
                and self._storages.are_as_large()
                and _versions(self._watched) == self._versions
                and self._kernels.can_count()
            )
        except (AttributeError, RuntimeError, TypeError):  # a sparse gradient, or none
            return False
        if not looks_the_same:
            return False
        self._grads = grads
        places = self._places_of_grads
        moved = places.changed(grads)
        return not moved or self._takes_moved(grads, moved)

    def _takes_moved(self, grads: Sequence[Tensor], moved: list[int]) -> bool:
        return self._kernels.take(grads, moved, self._places_of_grads.addresses)

    def step(self, grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        """Take the step that `fits` has approved."""
        if self._shrunk is None:
            self._take(grad_scale, found_inf)
        else:
            take = partial(self._take, grad_scale, found_inf)
            proximal.step(take, self._shrunk, self._rule, self._penalties)
        self._grads = []
        # Autograd may have saved these parameters, and must notice that they have changed.
        torch.autograd.graph.increment_version(self._tracked)

    def _take(self, grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        addresses = self._places_of_grads.addresses
        self._kernels.step(self._grads, addresses, self._rule, grad_scale, found_inf)


class MatrixPlan(Plan):
    """The step of a group of matrices: directions in torch's operations, which kernels apply."""

    def __init__(
        self,
        group: dict[str, Any],
        rule: Rule,
        states: dict[Tensor, dict[str, Any]],
        tensors: Tensors,
        matrices: Matrices,
    ) -> None:
        self._matrices = matrices
        self._written_first = _memory.Spans(matrices.written())
        # The looks of gradients are proved at each step, so these stay as they are.
        self._sizes = np.array([_memory.extent(g) for g in tensors.grads], np.uint64)
        self._has_negated = any(g.is_neg() for g in tensors.grads)
        super().__init__(group, rule, states, tensors)

    def _kernels_for(self, tensors: Tensors, rule: Rule) -> Kernels:
        # Directions are new tensors in every step. Those on the device "meta" have their look.
        self._looks_like = self._matrices.looks_of_directions(rule)
        return super()._kernels_for(tensors._replace(grads=self._looks_like), applied(rule))

    def _takes_moved(self, grads: Sequence[Tensor], moved: list[int]) -> bool:
        return all(map(_memory.is_whole, map(grads.__getitem__, moved)))

    def step(self, grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        """Take the step that `fits` has approved."""
        grads = list(self._grads)
        addresses = self._places_of_grads.addresses
        for i in np.flatnonzero(self._written_first.meet(addresses, self._sizes)):
            grads[i] = grads[i].clone()
        if self._has_negated:
            grads = [g.resolve_neg() for g in grads]
        with torch.no_grad():
            found, _ = self._matrices.directions(grads, self._rule)
            # A kernel sees an address alone: the tensor there must look as the kernel expects.
            directions = [
                d.to(look.dtype).contiguous()
                for d, look in zip(found, self._looks_like, strict=True)
            ]
            addresses = list(map(Tensor.data_ptr, directions))
            self._kernels.step(directions, addresses, applied(self._rule), None, None)
        self._grads = []
        torch.autograd.graph.increment_version(self._tracked)


def _entries(states: Iterable[dict[str, Any]]) -> Iterator[Any]:
    """Return the values of all states, one after the other."""
    return chain.from_iterable(map(dict.values, states))


def _watched(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the tensors whose versions must be compared to notice a write to any of `tensors`: the
    first tensor, if all of them share one version counter, else all."""
    before = [tensor._version for tensor in tensors]
    torch.autograd.graph.increment_version(tensors[0])
    if all(t._version == then + 1 for t, then in zip(tensors, before, strict=True)):
        return tensors[:1]
    return tensors


def _are_equal(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    try:
        return first == second
    except (RuntimeError, ValueError):  # a knob of several elements, which has no truth value
        return False


def _settings(rule: Rule) -> tuple[Any, ...]:
    """Return the knobs on which the collected tensors and the backend depend."""
    return (*rule[rule._fields.index("sum_dtype") :], rule.momentum != 0.0)


def _versions(tensors: Iterable[Tensor]) -> int:
    """Return a number that grows whenever torch writes to one of the tensors."""
    return sum(map(attrgetter("_version"), tensors))


def _places_of_shards(tensors: Sequence[Tensor]) -> list[int]:
    return [i for i, tensor in enumerate(tensors) if hasattr(tensor, "to_local")]


def _specs(tensors: Sequence[Any], shards: Sequence[int]) -> list[Any]:
    """Return the placements of DTensors."""
    return [tensors[i]._spec for i in shards]


def _gradients(params: Sequence[Tensor], are_sharded: bool) -> list[Any]:
    if not are_sharded:
        return [p.grad for p in params]
    # This skips torch's look for a special `grad` in the class; DTensor has none.
    with torch._C.DisableTorchFunctionSubclass():
        return [p.grad for p in params]


def _held(tensors: list[Any], shards: Sequence[int]) -> list[Any]:
    """Return the local tensors of DTensors. to_local() would build autograd nodes."""
    if not shards:
        return tensors
    held = list(tensors)
    for i in shards:
        held[i] = held[i]._local_tensor
    return held
