"""One pass in a kernel: which kernel serves, and what it needs of a list of tensors.

Kernels work on addresses. Collecting those of a few hundred tensors takes Python longer than a GPU
takes for the whole step, so a `Plan` holds them from step to step and checks only what can change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Protocol

import torch
from torch import Tensor

from asgld.noise import Layout
from asgld.optim.functional import Rule, Tensors


class Table(Protocol):
    """Tensors of one device as its kernel sees them."""

    def step(
        self,
        grads: Sequence[int],
        rule: Rule,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None:
        """Take one step, in place; every step count grows by one, unless `found_inf` is not 0.

        Args:
            grads: addresses of contiguous gradients of the parameters' dtypes.
            rule: the knobs.
            grad_scale: what the gradients were multiplied by.
            found_inf: if not zero, the gradients overflowed, and nothing changes.
        """


def unavailable_reason(
    params: Sequence[Tensor], layouts: Sequence[Layout], rule: Rule | None = None
) -> str | None:
    """Return why no kernel can serve these parameters, or None where one can."""
    for device in {param.device.type for param in params}:
        if device == "cpu":
            from asgld.optim import _native

            reason = _native.unavailable_reason(rule)
        elif device == "cuda":
            reason = _triton_reason()
        else:
            reason = f"there is no kernel for device {device!r}, only for 'cpu' and 'cuda'"
        if reason is not None:
            return reason
    if any(layout.rows is None for layout in layouts):
        return "a parameter is sharded along two inner dimensions, which no kernel addresses"
    return None


def _triton_reason() -> str | None:
    try:
        from asgld.optim import _triton
    except ImportError as error:
        return f"Triton does not import: {error}"
    return _triton.unavailable_reason()


def step(tensors: Tensors, rule: Rule, grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
    """Take one step on lists of tensors of any strides."""
    if torch.compiler.is_compiling():
        _step_as_operator(tensors, rule, grad_scale, found_inf)
        return
    # A kernel wants memory in row-major order; what is not gets a copy for the length of the call.
    dense = Tensors(*([_dense(t) for t in column] for column in tensors))
    for members, table in _tables(dense):
        table.step([dense.grads[i].data_ptr() for i in members], rule, grad_scale, found_inf)
    for kept, changed in zip(
        (*tensors.params, *tensors.sums, *tensors.momenta),
        (*dense.params, *dense.sums, *dense.momenta),
        strict=True,
    ):
        if kept is not None and changed is not None and changed is not kept:
            kept.copy_(changed)


def _step_as_operator(
    tensors: Tensors, rule: Rule, grad_scale: Tensor | None, found_inf: Tensor | None
) -> None:
    """Take one step as one opaque operator of torch, which is what a compiler can place."""
    lr = rule.lr
    rows = [layout.rows or (0, 0, 0) for layout in tensors.layouts]
    _operator(
        tensors.params,
        tensors.grads,
        tensors.sums,
        tensors.steps,
        [m for m in tensors.momenta if m is not None],
        tensors.streams,
        [number for row in rows for number in row],
        lr if isinstance(lr, Tensor) else None,
        [math.nan if value is None else float(value) for value in _floats(rule, lr)],
        [rule.seed & 0xFFFFFFFF, rule.seed >> 32, *(getattr(rule, name) for name in _INTEGERS)],
        grad_scale,
        found_inf,
    )


_FLOATS = (
    "lr", "alpha", "beta", "sigma", "delta", "d_init", "weight_decay", "decay", "momentum", "clip",
    "annealing", "opposed",
)  # fmt: skip

_INTEGERS = ("maximize", "stochastic_rounding")


def _floats(rule: Rule, lr: float | Tensor) -> list[Any]:
    first = 0.0 if isinstance(lr, Tensor) else lr
    return [first, *(getattr(rule, name) for name in _FLOATS[1:])]


@torch.library.custom_op("asgld::fused_step", mutates_args=("params", "sums", "steps", "momenta"))
def _operator(
    params: list[Tensor],
    grads: list[Tensor],
    sums: list[Tensor],
    steps: list[Tensor],
    momenta: list[Tensor],
    streams: list[int],
    rows: list[int],
    lr: Tensor | None,
    floats: list[float],
    integers: list[int],
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
) -> None:
    knobs: dict[str, Any] = dict(zip(_FLOATS, floats, strict=True))
    for name in ("decay", "clip"):
        knobs[name] = None if math.isnan(knobs[name]) else knobs[name]
    low, high, maximize, stochastic_rounding = integers
    rule = Rule(
        **{**knobs, "lr": knobs["lr"] if lr is None else lr},
        seed=low | high << 32,
        maximize=bool(maximize),
        stochastic_rounding=bool(stochastic_rounding),
    )
    layouts = [
        Layout((p.numel(),), (1,), offset)
        if stride == 0
        else Layout((p.numel() // length, length), (stride, 1), offset)
        for p, offset, length, stride in zip(params, rows[::3], rows[1::3], rows[2::3], strict=True)
    ]
    kept: list[Tensor | None] = [*momenta] if momenta else [None] * len(params)
    step(Tensors(params, grads, sums, steps, streams, layouts, kept), rule, grad_scale, found_inf)


def _dense(value: Any) -> Any:
    return value.contiguous() if isinstance(value, Tensor) else value


def _tables(tensors: Tensors, host_counts: bool = False) -> list[tuple[list[int], Table]]:
    """Return a table per device and, on a GPU, per kind of tensor: which entries, and the table."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, (param, total) in enumerate(zip(tensors.params, tensors.sums, strict=True)):
        kinds = () if param.is_cpu else (param.dtype, total.dtype, tensors.layouts[i].is_in_fours)
        groups.setdefault((param.device, *kinds), []).append(i)
    tables: list[tuple[list[int], Table]] = []
    for (device, *_), members in groups.items():
        params, _, sums, steps, streams, layouts, momenta = tensors.select(members)
        rows = [layout.rows for layout in layouts]
        columns = (params, sums, steps, streams, rows, momenta)
        if device.type == "cpu":
            from asgld.optim import _native

            tables.append((members, _native.Table(*columns)))
        else:
            from asgld.optim import _triton

            tables.append((members, _triton.Table(*columns, host_counts=host_counts)))
    return tables


class Plan:
    """A parameter group as kernels see it: worked out once, checked at every step.

    Args:
        group: the parameter group.
        owners: those of its parameters that have a gradient.
        states: the optimizer's state.
        tensors: what this process holds of the owners.
    """

    def __init__(
        self,
        group: dict[str, Any],
        owners: Sequence[Tensor],
        states: dict[Tensor, dict[str, Any]],
        tensors: Tensors,
    ) -> None:
        held = set(map(id, owners))
        self._settings = _settings(group)
        self._absent = [p for p in group["params"] if id(p) not in held]
        self._owners = list(owners)
        self._shards = [i for i, p in enumerate(owners) if hasattr(p, "to_local")]
        placed, specs = _specs(owners, self._shards), _specs([p.grad for p in owners], self._shards)
        self._specs = specs if specs == placed else placed
        places = {id(state): i for i, state in enumerate(states.values())}
        self._num_states = len(states)
        self._states = [
            (places[id(s)], s, s["sum"], s["step"], s.get("momentum"))
            for s in (states[p] for p in owners)
        ]
        self._all = list(range(len(owners)))
        self._addresses = [param.data_ptr() for param in tensors.params]
        self._grads = [grad.data_ptr() for grad in tensors.grads]
        # What has one dimension, torch keeps dense.
        self._matrices = [i for i, grad in enumerate(tensors.grads) if grad.dim() > 1]
        self._watched = _watched(tensors.steps)
        self._edits = _count_edits(self._watched)
        self._tables = _tables(tensors, host_counts=not group["capturable"])

    @staticmethod
    def serves(tensors: Tensors) -> bool:
        """Whether kernels can work on the tensors' own memory, now and at later steps."""
        momenta = (t for t in tensors.momenta if t is not None)
        return all(
            t.is_contiguous() for t in (*tensors.params, *tensors.grads, *tensors.sums, *momenta)
        )

    def gradients(self, group: dict[str, Any], states: list[dict[str, Any]]) -> list[int] | None:
        """Return the addresses of this step's gradients, or None if the plan no longer fits.

        `states` are the values of the optimizer's state: tensors are slow keys.
        """
        if self._settings != _settings(group) or len(states) != self._num_states:
            return None
        if any(p.grad is not None for p in self._absent):
            return None
        # That a gradient has its parameter's shape, dtype and device, torch sees to.
        params: Any = self._owners
        grads: Any = _gradients_of_shards(params) if self._shards else [p.grad for p in params]
        try:
            if self._shards:
                # Lists do not ask objects that are the same, as FSDP's are at every step.
                if _specs(grads, self._shards) != self._specs:
                    return None
                params, grads = _held(params, self._shards), _held(grads, self._shards)
            self._grads = _addresses(grads, self._grads, self._all)
            fits = (
                _addresses(params, self._addresses, self._all) is self._addresses
                and all(map(Tensor.is_contiguous, map(grads.__getitem__, self._matrices)))
                and self._has_states(states)
                and _count_edits(self._watched) == self._edits
            )
        except (AttributeError, RuntimeError, TypeError):  # a sparse gradient, or none
            return None
        return self._grads if fits else None

    def _has_states(self, states: list[dict[str, Any]]) -> bool:
        for place, state, total, step, momentum in self._states:
            if states[place] is not state:
                return False
            if state["sum"] is not total or state["step"] is not step:
                return False
            if momentum is not None and state["momentum"] is not momentum:
                return False
        return True

    def step(
        self,
        grads: list[int],
        rule: Rule,
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
    ) -> None:
        for members, table in self._tables:
            chosen = grads if len(self._tables) == 1 else [grads[i] for i in members]
            table.step(chosen, rule, grad_scale, found_inf)


# One call in place of one per tensor; torch's builds for CUDA have it.
_are_at = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None)


def _addresses(tensors: list[Tensor], last: list[int], indices: list[int]) -> list[int]:
    """Return where the tensors lie: `last` itself, if they lie there."""
    if _are_at is not None and _are_at(tensors, last, indices):
        return last
    found = list(map(Tensor.data_ptr, tensors))
    return last if found == last else found


def _watched(steps: Sequence[Tensor]) -> Sequence[Tensor]:
    """Those step counts whose versions tell of a write to any: one, if they share theirs."""
    before = [step._version for step in steps]
    torch.autograd.graph.increment_version(steps[0])
    if all(step._version == version + 1 for step, version in zip(steps, before, strict=True)):
        return steps[:1]
    return steps


def _count_edits(steps: Sequence[Tensor]) -> int:
    """How often step counts were written by others than kernels."""
    return sum(map(attrgetter("_version"), steps))


def _specs(tensors: Sequence[Any], shards: Sequence[int]) -> list[Any]:
    """How DTensors are placed."""
    return [tensors[i]._spec for i in shards]


def _gradients_of_shards(params: Sequence[Tensor]) -> list[Tensor | None]:
    # torch would ask the class of each whether it has a way of its own; DTensor has none.
    with torch._C.DisableTorchFunctionSubclass():
        return [p.grad for p in params]


def _held(tensors: list[Any], shards: Sequence[int]) -> list[Any]:
    """What this process holds of DTensors; to_local() would build autograd nodes around it."""
    if len(shards) == len(tensors):
        return [tensor._local_tensor for tensor in tensors]
    held = list(tensors)
    for i in shards:
        held[i] = held[i]._local_tensor
    return held


def _settings(group: dict[str, Any]) -> tuple[Any, ...]:
    names = ("fused", "foreach", "differentiable", "capturable")
    return (*map(group.__getitem__, names), len(group["params"]))
