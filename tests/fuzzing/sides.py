"""One of the twins: an optimizer whose tensors have guards around them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fuzzing.programs import (
    DTYPES,
    HAS_GRAD_DTYPE,
    LAYOUTS,
    OPTIMIZERS,
    OTHER_DTYPES,
    TOLERANCES,
    Program,
    Spec,
    backend_of,
)  # fmt: skip

CANARY = 777.0


def make_values(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
    wide = torch.complex64 if dtype.is_complex else torch.float32
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tuple(shape), generator=generator, dtype=wide).to(dtype)


def place(values: Tensor, layout: str, margin: int) -> Tensor:
    """Return a copy with a layout, inside a buffer that has `margin` more elements on each side."""
    shape = values.shape
    order = list(range(values.dim()))
    if layout == "transposed":
        order.reverse()
    elif layout == "channels-last" and values.dim() == 4:
        order = [0, 2, 3, 1]
    strides, step = [1] * values.dim(), 2 if layout == "strided" else 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(shape[dim], 1)
        if layout == "padded" and dim == order[-1]:
            step += 3
    start = margin + {"offset": 1, "strided": 2}.get(layout, 0)
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    span = span if values.numel() else 0
    buffer = torch.full((start + span + margin,), CANARY, dtype=values.dtype)
    return buffer.as_strided(shape, strides, start).copy_(values)


def storage_bytes(tensor: Tensor) -> Tensor:
    """Return the whole storage of a tensor."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def covered(tensor: Tensor, mask: Tensor) -> None:
    """Mark the bytes of a tensor in a mask of its storage."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if real.numel() == 0:
        return
    elements = mask.view(_INTEGERS[real.element_size()])
    elements.as_strided(real.shape, real.stride(), real.storage_offset()).fill_(-1)


def as_lr(value: Any) -> Any:
    """Return a knob's value. A program has tensors as text, since each side needs its own."""
    if not isinstance(value, str) or not value.startswith("tensor "):
        return value
    text = value.removeprefix("tensor ")
    numbers = [float(part) for part in text.strip("[]").split(",")]
    return torch.tensor(numbers if text.startswith("[") else numbers[0])


class Side:
    """An optimizer with its parameters, and how each parameter got its gradient."""

    def __init__(self, program: Program, backend: str, margin: int, is_plain: bool) -> None:
        self.backend, self.margin, self.is_plain = backend, margin, is_plain
        self.params: list[Tensor] = []
        self.retired: list[Tensor] = []
        self.kinds: dict[int, str] = {}
        self.is_named, self.num_made = program.is_named, 0
        groups = []
        for options, specs in program.groups:
            knobs = {name: self.knob(name, value) for name, value in options.items()}
            shape = options.get("shape", program.options.get("shape", "coordinate"))
            knobs |= backend_of(backend, shape)
            groups.append({"params": [self.make(spec) for spec in specs], **knobs})
        options = {name: self.knob(name, value) for name, value in program.options.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            default = backend_of(backend, program.options.get("shape", "coordinate"))
            self.optimizer = OPTIMIZERS[program.optimizer](groups, **options, **default)
        for i, p in enumerate(self.params):
            self.give(i, "fresh", 1000 + i, p)

    def knob(self, name: str, value: Any) -> Any:
        """Return a knob's value; the foreach backend takes no tensor as step size."""
        value = as_lr(value)
        if isinstance(value, Tensor) and value.numel() == 1 and self.backend == "foreach":
            return float(value)
        return value

    def make(self, spec: Spec) -> Any:
        """Return a new parameter, with a name where parameters have names."""
        values = make_values(spec.shape, DTYPES[spec.dtype], spec.seed)
        p = place(values, spec.layout, self.margin).requires_grad_()
        self.params.append(p)
        self.num_made += 1
        return (f"layer.{self.num_made}", p) if self.is_named else p

    # -- looking things up ---------------------------------------------------------------------

    def find(self, i: int) -> tuple[int, Tensor]:
        i %= len(self.params)
        return i, self.params[i]

    def group(self, i: int) -> dict[str, Any]:
        return self.optimizer.param_groups[i % len(self.optimizer.param_groups)]

    def group_of(self, p: Tensor) -> dict[str, Any]:
        return next(g for g in self.optimizer.param_groups if any(p is q for q in g["params"]))

    def state(self, p: Tensor) -> dict[str, Any]:
        """Return a parameter's state, without making any."""
        return self.optimizer.state.get(p, {})

    # -- gradients -----------------------------------------------------------------------------

    def give(self, i: int, kind: str, seed: int, p: Tensor | None = None) -> None:
        """Give a parameter a gradient."""
        i, p = self.find(i) if p is None else (i, p)
        p.grad = None
        real_kind, grad = self._gradient(p, kind, seed)
        if HAS_GRAD_DTYPE:
            dtype = p.dtype if grad is None else grad.dtype
            if p.grad_dtype != dtype:
                p.grad_dtype = dtype
        self.kinds[i] = real_kind
        if grad is not None and self.is_plain and not grad.is_sparse:
            grad = place(grad.resolve_conj().resolve_neg(), "contiguous", self.margin)
        p.grad = grad

    def _gradient(self, p: Tensor, kind: str, seed: int) -> tuple[str, Tensor | None]:
        """Return a gradient and its kind. A kind that does not suit is replaced by another."""
        shares = self.has_shared_memory(p)
        values = make_values(p.shape, p.dtype, seed)
        if kind == "none":
            return kind, None
        if kind == "zero":
            values = torch.zeros_like(values)
        elif kind in ("nan", "inf") and p.numel():
            flat = values.reshape(-1)
            flat[seed % p.numel()] = math.nan if kind == "nan" else math.inf
            values = flat.view(p.shape)
        elif kind == "sparse":
            return kind, values.to_sparse()
        elif kind == "expanded" and p.dim():
            return kind, place(values.reshape(-1)[:1], "contiguous", self.margin).expand(p.shape)
        elif kind == "expanded rows" and p.dim() > 1:
            return kind, place(values[:1], "contiguous", self.margin).expand(p.shape)
        elif kind == "negative" or (kind == "conjugated" and not p.is_complex()):
            return "negative", torch._neg_view(place(values, "contiguous", self.margin))
        elif kind == "conjugated":
            return kind, place(values, "contiguous", self.margin).conj()
        elif kind == "alias" and not shares:
            return kind, p.detach()
        elif (
            kind == "alias transposed" and p.dim() == 2 and p.shape[0] == p.shape[1] and not shares
        ):
            return kind, p.detach().t()
        elif kind in ("alias momentum", "alias sum"):
            name = kind.removeprefix("alias ")
            found = [self.state(q).get(name) for q in self.group_of(p)["params"]]
            alike = [t for t in found if t is not None and (t.shape, t.dtype) == (p.shape, p.dtype)]
            if alike:
                return kind, alike[seed % len(alike)].detach()
        elif kind == "other dtype" and HAS_GRAD_DTYPE:
            others = OTHER_DTYPES[p.dtype]
            values = values.to(others[seed % len(others)])
        return "fresh", place(values, kind if kind in LAYOUTS else "contiguous", self.margin)

    def rewrite(self, seed: int) -> None:
        """Write other values into the gradients that have memory of their own."""
        for i, p in enumerate(self.params):
            if p.grad is not None and self.kinds[i] in ("fresh", "negative", "conjugated"):
                p.grad.copy_(make_values(p.shape, p.grad.dtype, seed + i))

    def follow_aliases(self, twin: Side) -> None:
        """Update copies of gradients that are the twin's parameters or states themselves."""
        for i, (p, q) in enumerate(zip(self.params, twin.params, strict=True)):
            if p.grad is not None and q.grad is not None and self.kinds[i].startswith("alias"):
                p.grad = q.grad.clone(memory_format=torch.contiguous_format)

    def has_shared_memory(self, p: Tensor) -> bool:
        where = p.untyped_storage().data_ptr()
        return sum(q.untyped_storage().data_ptr() == where for q in self.params) > 1

    def drop_gradients(self) -> None:
        for i in range(len(self.params)):
            self.give(i, "none", 0)

    # -- what must not change ------------------------------------------------------------------

    def memory(self) -> dict[int, Tensor]:
        """Return the storages of parameters and gradients by address."""
        found: dict[int, Tensor] = {}
        for p in (*self.params, *self.retired):
            for t in (p.detach(), p.grad):
                if t is not None and not t.is_sparse:
                    where = t.untyped_storage().data_ptr()
                    if where and where not in found:
                        found[where] = storage_bytes(t)
        return found

    def written_outside(self, before: dict[int, tuple[Tensor, Tensor]]) -> bool:
        """Whether a step has written outside the parameters that have a gradient."""
        updated = [p for p in self.params if p.grad is not None]
        for where, (memory, old) in before.items():
            if torch.equal(memory, old):
                continue
            mask = torch.zeros_like(memory)
            for p in updated:
                for t in (p.detach(), *self.state(p).values()):
                    if isinstance(t, Tensor) and t.untyped_storage().data_ptr() == where:
                        covered(t, mask)
            if bool(((memory != old) & (mask == 0)).any()):
                return True
        return False

    def snapshot(self) -> dict[str, Any]:
        memory = {where: (bytes_, bytes_.clone()) for where, bytes_ in self.memory().items()}
        return {"memory": memory, "state": self._state(), "knobs": self._knobs()}

    def _knobs(self) -> list[dict[str, Any]]:
        groups = self.optimizer.param_groups
        return [{name: _kept(value) for name, value in group.items()} for group in groups]

    def _state(self) -> list[tuple[int, dict[str, Any]]]:
        return [
            (id(p), {name: _kept(value) for name, value in state.items()})
            for p, state in self.optimizer.state.items()
            if state
        ]

    def moved(self, before: dict[str, Any]) -> list[str]:
        """Return the names of things that are not bit for bit as before."""
        is_same = {
            "parameters": all(torch.equal(m, old) for m, old in before["memory"].values()),
            "state": self._state() == before["state"],
            "knobs": self._knobs() == before["knobs"],
        }
        return [name for name, is_right in is_same.items() if not is_right]


def _kept(value: Any) -> Any:
    """Return a value of a group or a state as data that compares bit by bit and does not change."""
    if isinstance(value, Tensor):
        flat = value.detach().clone(memory_format=torch.contiguous_format).view(-1)
        return value.dtype, value.shape, flat.view(torch.uint8).numpy().tobytes()
    return list(value) if isinstance(value, list) else value


def disagreement(ours: Tensor, theirs: Tensor, precision: float = 0.0) -> str | None:
    """Return how two tensors differ by more than rounding or `precision`, or None."""
    if ours.shape != theirs.shape:
        return f"shapes {tuple(theirs.shape)} and {tuple(ours.shape)}"
    if ours.dtype != theirs.dtype:
        return f"dtypes {theirs.dtype} and {ours.dtype}"
    if torch.equal(ours, theirs):
        return None
    a, b = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in (ours, theirs))
    relative, absolute = TOLERANCES[a.dtype]
    limit = torch.finfo(a.dtype).max
    # A number close to the largest one may be rounded to infinity.
    a, b = (t.double().clamp(-limit, limit) for t in (a, b))
    if not torch.equal(a.isnan(), b.isnan()):
        return "not a number in other places"
    apart = (a - b).abs()
    wrong = apart > max(relative, precision) * b.abs() + max(absolute, precision)
    if not bool(wrong.any()):
        return None
    at = int(wrong.reshape(-1).nonzero()[0])
    return f"element {at}: {float(b.reshape(-1)[at])!r} and {float(a.reshape(-1)[at])!r}"
