"""Random programs that two optimizers run in step: the plain loop, and another backend.

A case is a number. `generate` makes a `Program` of it, which is plain data and prints as what a
person can follow: an optimizer, its parameters, and a list of operations. `run` carries it out and
raises `Finding` where a property does not hold. Over the twins:

* both raise or neither does, and what they raise is for users (`ERRORS`);
* what must raise does, and what is legal does not;
* after an error parameters, state and knobs are bit for bit as before;
* otherwise parameters, sums and momenta agree within the tolerances below, and counts exactly;
* a step writes to nothing but the parameters that have a gradient, and their state.

The loop is the truth, and gets gradients that are plain: what the twin gets strided, expanded,
negated, conjugated or in its parameter's own memory, the loop gets as a contiguous copy.

    python tests/fuzz_cases.py --cases 2000            # what fails, by kind, crashes included
    python tests/fuzz_cases.py --start 17 --cases 1    # one case, in words
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import itertools
import math
import os
import pickle
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

import asgld
from asgld.optim import _native

# ----------------------------------------------------------------------------------------------
# What cases are made of
# ----------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    name: getattr(asgld, name) for name in ("ASGLD", "AGLD", "ASG", "SGLD", "PSGLD", "NetworkASGLD")
}
REFUSED = {
    "ASG": ("sigma", "beta", "noise"),
    "SGLD": ("alpha", "beta", "noise_bound"),
    "PSGLD": ("alpha", "beta"),
    "NetworkASGLD": ("alpha", "beta", "sigma", "noise_bound"),
}
BACKENDS: dict[str, dict[str, Any]] = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": None},
    "fused": {"foreach": None, "fused": True},
    "default": {"foreach": None, "fused": None},
}
# Legal values of every knob. Those that the optimizer does not have are left out.
_LEGAL: dict[str, list[Any]] = {
    "lr": [0.1, 0.03, 0.5, 0.0, "tensor 0.05", "tensor [0.1]"],
    "alpha": [0.0, 1.0, 2.0, 0.7, 1.5],
    "beta": [0.0, 0.5, 1.0, 2.0, 1.3, math.inf],
    "sigma": [0.0, 0.1, 0.02],
    "delta": [0.01, 0.5, 1e-3],
    "d_init": [1.0, 0.3, 3.0],
    "weight_decay": [0.0, 0.1, 0.5],
    "seed": [0, 77, 2**63 + 5],
    "maximize": [False, True],
    "sum_dtype": [None, torch.float32, torch.bfloat16, torch.float64],
    "stochastic_rounding": [False, True],
    "decay": [None, 0.9, 0.99],
    "momentum": [0.0, 0.9, 0.5],
    "clip": [None, 0.25, 0.0],
    "annealing": [0.0, 1.0, 0.5],
    "opposed": [1.0, 0.0, -0.3, -1.0],
    "noise": [None, 0.3],
    "noise_bound": [None, 2.0],
}
ILLEGAL: list[tuple[str, Any]] = [
    ("lr", -1.0),
    ("lr", math.nan),
    ("lr", "fast"),
    ("lr", None),
    ("lr", "tensor [0.1, 0.2]"),
    ("lr", "tensor nan"),
    ("alpha", 3.0),
    ("alpha", "one"),
    ("beta", -1.0),
    ("sigma", -1.0),
    ("sigma", math.nan),
    ("delta", -0.1),
    ("d_init", math.inf),
    ("weight_decay", math.inf),
    ("seed", -1),
    ("seed", 0.5),
    ("decay", 2.0),
    ("momentum", 1.5),
    ("clip", -1.0),
    ("annealing", math.nan),
    ("opposed", 2.0),
    ("fused and foreach", True),
]
DEFAULTS = asgld.ASGLD([torch.zeros(1)]).defaults
KNOBS = {name: values for name, values in _LEGAL.items() if name in DEFAULTS}
NO_KNOBS = {"foreach", "fused", "capturable", "differentiable"}
# A sum keeps the dtype that it was made with.
CHANGEABLE = [name for name in KNOBS if name != "sum_dtype"]

SHAPES = [(), (0,), (3, 0), (1,), (2,), (5,), (16,), (33,), (4, 4), (3, 5), (8, 6), (2, 3, 4, 2)]
LARGE = [(70,), (300,), (16, 40), (4099,), (20_000,)]
LAYOUTS = ["contiguous"] * 4 + ["transposed", "strided", "channels-last", "offset", "padded"]
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}
OTHER_DTYPES = {
    torch.float32: [torch.float64, torch.bfloat16, torch.float16],
    torch.float64: [torch.float32],
    torch.bfloat16: [torch.float32, torch.float16],
    torch.float16: [torch.float32, torch.bfloat16],
    torch.complex64: [torch.complex128],
    torch.complex128: [torch.complex64],
}
NARROWER = {torch.float32: [torch.bfloat16, torch.float16], torch.float64: [torch.float32]}
HAS_GRAD_DTYPE = hasattr(torch.zeros(1), "grad_dtype")
GRADIENTS = [
    "fresh", "none", "zero", "nan", "inf", "strided", "expanded", "expanded rows", "transposed",
    "channels-last", "offset", "padded", "negative", "conjugated", "alias", "alias transposed",
    "other dtype",
]  # fmt: skip
MAX_STEP = 2**32 - 1

# What users may get to see. A KeyError, say, is a mistake of ours and not of theirs.
ERRORS = (ValueError, TypeError, RuntimeError)

# How far twins may be apart after one step from equal values of the size of one: relative, and
# absolute. Normals have 5 units in the last place and powers 3, of terms that may cancel. A result
# in half precision is rounded, perhaps at random, from numbers that differ so: one unit more.
TOLERANCES = {
    torch.float32: (1e-5, 1e-5),
    torch.float64: (1e-12, 1e-12),
    torch.bfloat16: (2.0**-7, 1e-5),
    torch.float16: (2.0**-10, 1e-5),
}


class Finding(AssertionError):
    """A property that does not hold: what, the worst first, and after which operation."""

    def __init__(self, faults: list[str], place: str) -> None:
        self.faults, self.place = faults, place
        super().__init__("; ".join(faults) + f" (at {place})")


@dataclasses.dataclass(frozen=True)
class Spec:
    """A parameter."""

    shape: tuple[int, ...]
    dtype: str
    layout: str
    seed: int


@dataclasses.dataclass(frozen=True)
class Program:
    """A case, as plain data."""

    number: int
    optimizer: str
    options: dict[str, Any]
    groups: list[tuple[dict[str, Any], list[Spec]]]
    is_named: bool
    backend: str
    operations: list[tuple[Any, ...]]

    def __str__(self) -> str:
        def knobs(options: dict[str, Any]) -> str:
            return ", ".join(f"{name}={value!r}" for name, value in options.items())

        lines = [
            f"case {self.number}: {self.optimizer}({knobs(self.options)}), "
            f"{'named' if self.is_named else 'unnamed'}, {self.backend} against the loop"
        ]
        i = 0
        for number, (options, specs) in enumerate(self.groups):
            lines.append(f"  group {number}: {knobs(options)}")
            for spec in specs:
                lines.append(f"    parameter {i}: {spec.dtype} {spec.shape} {spec.layout}")
                i += 1
        for number, (name, *arguments) in enumerate(self.operations):
            lines.append(f"  {number}. {name.replace('_', ' ')} {' '.join(map(str, arguments))}")
        return "\n".join(lines)


# ----------------------------------------------------------------------------------------------
# Drawing a program
# ----------------------------------------------------------------------------------------------


def generate(number: int, backend: str | None = None) -> Program:
    """Return the program of a number; `backend` replaces the one that it draws."""
    r = random.Random(number)
    optimizer = r.choices(list(OPTIMIZERS), [6, 1, 1, 1, 1, 2])[0]
    options = _draw_options(r, optimizer)
    dtypes = r.choices(list(DTYPES), [10, 3, 3, 2, 2, 1], k=1 if r.random() < 0.6 else 4)
    total = r.randint(1, 4)
    groups: list[tuple[dict[str, Any], list[Spec]]] = []
    left = total
    for i in range(min(r.randint(1, 3), total)):
        count = left if i == 2 else r.randint(1, left)
        own = {}
        if r.random() < 0.3:
            own = {
                name: value
                for name, value in _draw_options(r, optimizer).items()
                if name in ("lr", "sigma", "weight_decay", "maximize", "seed", "delta")
            }
            if options.get("noise") is not None:
                own.pop("sigma", None)
        groups.append((own, [_draw_spec(r, r.choice(dtypes)) for _ in range(count)]))
        left -= count
        if left == 0:
            break
    drawn = r.choices(list(BACKENDS), [1, 3, 5, 2])[0]
    operations: list[tuple[Any, ...]] = [("step",)] if r.random() < 0.8 else []
    for _ in range(r.randint(2, 10)):
        operations += _draw_block(r)
    return Program(
        number, optimizer, options, groups, r.random() < 0.4, backend or drawn, operations
    )


def _draw_options(r: random.Random, optimizer: str) -> dict[str, Any]:
    share = r.choice([0.15, 0.5])
    names = [n for n in KNOBS if n not in REFUSED.get(optimizer, ())]
    options = {name: r.choice(KNOBS[name]) for name in names if r.random() < share}
    options.setdefault("lr", r.choice([0.1, 0.3]))
    if optimizer == "ASGLD":
        options.setdefault("sigma", r.choice([0.1, 0.0]))
    if options.get("noise") is not None and optimizer != "NetworkASGLD":
        options["sigma"] = 0.0
    if options.get("beta") == 0.0:
        options.pop("noise_bound", None)
    if not options.get("momentum") and optimizer != "NetworkASGLD":
        options.pop("opposed", None)
    if options.get("momentum") == 0.0:
        options.pop("opposed", None)
    if options.get("decay") is not None and r.random() < 0.5:
        options["d_init"] = 0.0
    if "decay" in options and options["decay"] is None and optimizer in ("PSGLD", "NetworkASGLD"):
        options["d_init"] = 1.0
    return options


def _draw_spec(r: random.Random, dtype: str) -> Spec:
    shape = r.choice(LARGE) if r.random() < 0.08 else r.choice(SHAPES)
    return Spec(shape, dtype, r.choice(LAYOUTS), r.randrange(2**31))


def _draw_block(r: random.Random) -> list[tuple[Any, ...]]:
    """Return what belongs together: something that changes, gradients, and a step."""
    i, seed = r.randrange(12), r.randrange(2**31)
    kind = r.random()
    if kind < 0.15:
        return [("gradients", seed), ("step",)]
    if kind < 0.3:
        return [("rewrite", seed), ("step",)]
    if kind < 0.55:
        gradient = ("gradient", i, r.choice(GRADIENTS), seed)
        return (
            [gradient, ("step",)] if r.random() < 0.7 else [("rewrite", seed), gradient, ("step",)]
        )
    if kind < 0.78:
        change = _draw_change(r, i, seed)
        then = r.choice([[], [("rewrite", seed + 1)], [("gradients", seed + 1)]])
        return [change, *then, ("step",), *([("step",)] if r.random() < 0.2 else [])]
    if kind < 0.92:
        return [_draw_error(r, i, seed)]
    if kind < 0.97:
        return [("load", r.choice(["own", "own", *DAMAGES]), i, seed), ("step",)]
    return [(r.choice(["deepcopy", "pickle"]), seed), ("step",)]


def _draw_change(r: random.Random, i: int, seed: int) -> tuple[Any, ...]:
    """Return an operation that is legal."""
    kind = r.choice(
        ["move", "slice", "narrow", "restride", "share", "knob", "knob", "knob", "groups", "groups",
         "replace", "reorder", "step count", "stream", "clone state", "clone state", "forget",
         "backend", "lr in place"]
    )  # fmt: skip
    if kind == "knob":
        name = r.choice(CHANGEABLE)
        return ("knob", i, name, r.choice(KNOBS[name]))
    if kind == "groups":
        return r.choice([("reverse",), ("delete", i), ("add", _draw_spec(r, r.choice([*DTYPES])))])
    if kind == "replace":
        return ("replace", i, _draw_spec(r, r.choice([*DTYPES])))
    if kind == "step count":
        return ("count", i, r.choice([0, 1, 7, 10**6, MAX_STEP]), r.choice(["fill", "replace"]))
    if kind == "stream":
        return ("stream", i, r.choice([99, 2**32 - 1]), r.choice(["fill", "replace"]))
    if kind == "clone state":
        return ("clone", i, r.choice(["sum", "momentum"]), r.choice(["contiguous", "strided"]))
    if kind == "forget":
        return r.choice([("forget", i), ("forget_all",)])
    if kind == "backend":
        return ("backend", r.choice(list(BACKENDS)))
    if kind == "share":
        return ("share", i, r.randrange(12), r.choice([0, 0, 1, 3]))
    return (kind.replace(" ", "_"), i, seed)


def _draw_error(r: random.Random, i: int, seed: int) -> tuple[Any, ...]:
    """Return an operation that breaks something, sees that a step says so, and mends it."""
    kind = r.choice(
        ["knob", "knob", "knob", "expand", "slice", "transpose", "state shape", "state dtype",
         "count", "count", "count shape", "sparse"]
    )  # fmt: skip
    if kind == "knob":
        return ("illegal_knob", i, *r.choice(ILLEGAL))
    if kind == "count":
        return ("illegal_count", i, r.choice([2**32, -1, 2**40]), r.choice(["fill", "replace"]))
    if kind.startswith("state"):
        return (f"wrong_{kind.replace(' ', '_')}", i, r.choice(["sum", "momentum"]), seed)
    return (f"illegal_{kind.replace(' ', '_')}", i, seed)


# ----------------------------------------------------------------------------------------------
# Tensors with guards around them
# ----------------------------------------------------------------------------------------------

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
    """Return all of the memory that a tensor lies in."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def covered(tensor: Tensor, mask: Tensor) -> None:
    """Mark the bytes of its storage that a tensor lies in."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if real.numel() == 0:
        return
    elements = mask.view(_INTEGERS[real.element_size()])
    elements.as_strided(real.shape, real.stride(), real.storage_offset()).fill_(-1)


def as_lr(value: Any) -> Any:
    """Return a knob's value: a tensor is written as text, since each side needs its own."""
    if not isinstance(value, str) or not value.startswith("tensor "):
        return value
    text = value.removeprefix("tensor ")
    numbers = [float(part) for part in text.strip("[]").split(",")]
    return torch.tensor(numbers if text.startswith("[") else numbers[0])


# ----------------------------------------------------------------------------------------------
# One of the twins
# ----------------------------------------------------------------------------------------------


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
            groups.append({"params": [self.make(spec) for spec in specs], **knobs})
        options = {name: self.knob(name, value) for name, value in program.options.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.optimizer = OPTIMIZERS[program.optimizer](
                groups, **options, **BACKENDS[self.backend]
            )
        for i, p in enumerate(self.params):
            self.give(i, "fresh", 1000 + i, p)

    def knob(self, name: str, value: Any) -> Any:
        """Return a knob's value; lists do not take a tensor as step size."""
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
        """Return a gradient and its kind: where a kind has no meaning, the next best."""
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
        elif kind == "other dtype" and HAS_GRAD_DTYPE:
            others = OTHER_DTYPES[p.dtype]
            values = values.to(others[seed % len(others)])
        return "fresh", place(values, kind if kind in LAYOUTS else "contiguous", self.margin)

    def rewrite(self, seed: int) -> None:
        """Write other values to the memory of the gradients that lie in memory of their own."""
        for i, p in enumerate(self.params):
            if p.grad is not None and self.kinds[i] in ("fresh", "negative", "conjugated"):
                p.grad.copy_(make_values(p.shape, p.grad.dtype, seed + i))

    def follow_aliases(self) -> None:
        """Where the twin's gradient is its parameter's memory, copy what is there now."""
        for i, p in enumerate(self.params):
            if self.is_plain and p.grad is not None and self.kinds[i].startswith("alias"):
                now = p.detach() if self.kinds[i] == "alias" else p.detach().t()
                p.grad = now.clone(memory_format=torch.contiguous_format)

    def has_shared_memory(self, p: Tensor) -> bool:
        where = p.untyped_storage().data_ptr()
        return sum(q.untyped_storage().data_ptr() == where for q in self.params) > 1

    def drop_gradients(self) -> None:
        for i in range(len(self.params)):
            self.give(i, "none", 0)

    # -- what must not change ------------------------------------------------------------------

    def memory(self) -> dict[int, Tensor]:
        """Return all memory that parameters and gradients lie in, by its address."""
        found: dict[int, Tensor] = {}
        for p in (*self.params, *self.retired):
            for t in (p.detach(), p.grad):
                if t is not None and not t.is_sparse:
                    where = t.untyped_storage().data_ptr()
                    if where and where not in found:
                        found[where] = storage_bytes(t)
        return found

    def written_outside(self, before: dict[int, tuple[Tensor, Tensor]]) -> bool:
        """Whether a step has written to memory that is no parameter's with a gradient."""
        updated = [p for p in self.params if p.grad is not None]
        for where, (memory, old) in before.items():
            if torch.equal(memory, old):
                continue
            mask = torch.zeros_like(memory)
            for p in updated:
                if p.untyped_storage().data_ptr() == where:
                    covered(p.detach(), mask)
            if bool(((memory != old) & (mask == 0)).any()):
                return True
        return False

    def snapshot(self) -> dict[str, Any]:
        return {
            "memory": {w: (m, m.clone()) for w, m in self.memory().items()},
            "state": self._state(),
            "knobs": [
                {name: _kept(value) for name, value in group.items()}
                for group in self.optimizer.param_groups
            ],
        }

    def _state(self) -> list[tuple[int, dict[str, Any]]]:
        return [
            (id(p), {name: _kept(value) for name, value in state.items()})
            for p, state in self.optimizer.state.items()
            if state
        ]

    def moved(self, before: dict[str, Any]) -> list[str]:
        """Return what is not bit for bit as before."""
        found = []
        if not all(torch.equal(m, old) for m, old in before["memory"].values()):
            found.append("parameters")
        if not _same(self._state(), before["state"]):
            found.append("state")
        knobs = [
            {name: _kept(value) for name, value in group.items()}
            for group in self.optimizer.param_groups
        ]
        if not _same(knobs, before["knobs"]):
            found.append("knobs")
        return found


def _kept(value: Any) -> Any:
    """Return a copy of a value of a group or a state that a later change cannot reach."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    return list(value) if isinstance(value, list) else value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
            return False
        if a is b:
            return True
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        plain = [t.clone(memory_format=torch.contiguous_format).view(-1) for t in (a, b)]
        return torch.equal(*(t.view(torch.uint8) for t in plain))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a is b or a == b or (a != a and b != b))


def disagreement(ours: Tensor, theirs: Tensor, precision: float = 0.0) -> str | None:
    """Return how two tensors differ by more than rounding, or `precision`; or None."""
    if ours.shape != theirs.shape:
        return f"shapes {tuple(theirs.shape)} and {tuple(ours.shape)}"
    if ours.dtype != theirs.dtype:
        return f"dtypes {theirs.dtype} and {ours.dtype}"
    if torch.equal(ours, theirs):
        return None
    a, b = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in (ours, theirs))
    relative, absolute = TOLERANCES[a.dtype]
    limit = torch.finfo(a.dtype).max
    # What is all but infinite may be rounded to infinity.
    a, b = (t.double().clamp(-limit, limit) for t in (a, b))
    if not torch.equal(a.isnan(), b.isnan()):
        return "not a number in other places"
    apart = (a - b).abs()
    wrong = apart > max(relative, precision) * b.abs() + max(absolute, precision)
    if not bool(wrong.any()):
        return None
    at = int(wrong.reshape(-1).nonzero()[0])
    return f"element {at}: {float(b.reshape(-1)[at])!r} and {float(a.reshape(-1)[at])!r}"


# ----------------------------------------------------------------------------------------------
# Both twins
# ----------------------------------------------------------------------------------------------


class World:
    """Twins, and what can be done to them."""

    def __init__(self, program: Program, margin: int) -> None:
        self.program = program
        self.place = "construction"
        backend = program.backend
        made: list[Any] = []
        for name, is_plain in (("loop", True), (backend, False)):
            try:
                made.append(Side(program, name, margin, is_plain))
            except Exception as error:
                # Where fused=True is refused outright, the best that serves takes its place.
                if name == "fused" and "cannot be served" in str(error):
                    made.append(Side(program, "default", margin, is_plain))
                else:
                    made.append(error)
        self.is_refused = all(isinstance(side, Exception) for side in made)
        faults = self._faults_of_errors([s if isinstance(s, Exception) else None for s in made])
        if faults:
            raise Finding(faults, self.place)
        if not self.is_refused:
            self.loop, self.twin = made
            self.sides: tuple[Side, Side] = (self.loop, self.twin)

    def _names(self) -> tuple[str, str]:
        return "loop", self.program.backend if self.program.backend != "loop" else "loop twin"

    def _faults_of_errors(
        self, errors: Sequence[Exception | None], must_raise: bool | None = None
    ) -> list[str]:
        faults = []
        pairs = list(zip(self._names(), errors, strict=True))[::-1]
        for name, error in pairs:
            if error is not None and not isinstance(error, ERRORS):
                faults.append(f"{_kind(error)} from {name}")
        for name, error in pairs:
            if must_raise is True and error is None:
                faults.append(f"no error from {name}")
            elif must_raise is False and isinstance(error, ERRORS):
                faults.append(f"needless {_kind(error)} from {name}")
        if must_raise is None and (errors[0] is None) != (errors[1] is None):
            name, error = next(pair for pair in pairs if pair[1] is not None)
            faults.append(f"{_kind(error)} from {name} alone")
        return faults

    def attempt(self, call: Callable[[Side], Any], must_raise: bool | None) -> bool:
        """Do the same to both and compare; return whether they raised."""
        before = [side.snapshot() for side in self.sides]
        errors: list[Exception | None] = []
        for side in self.sides:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    call(side)
                errors.append(None)
            except Exception as error:
                errors.append(error)
        faults = []
        for side, old, error, name in list(
            zip(self.sides, before, errors, self._names(), strict=True)
        )[::-1]:
            if side.written_outside(old["memory"]):
                faults.append(f"writes outside by {name}")
            elif error is not None and (moved := side.moved(old)):
                faults.append(f"{' and '.join(moved)} moved before the error from {name}")
        texts = self._faults_of_errors(errors, must_raise)
        faults += texts
        if not any(errors) and not faults:
            faults += self.compare()
        if faults:
            told = [f"{type(e).__name__}: {e}"[:200] for e in errors if e is not None]
            raise Finding(faults, ", ".join([self.place, *told]))
        return any(e is not None for e in errors)

    def compare(self) -> list[str]:
        """Return where the twins differ, then set the twin's values to the loop's."""
        faults = []
        # A step size that is a float32 tensor makes the scale of the noise one, too.
        sizes = [group["lr"] for group in self.loop.optimizer.param_groups]
        is_single = any(isinstance(lr, Tensor) and lr.dtype == torch.float32 for lr in sizes)
        precision = 1e-6 if is_single else 0.0
        for i, (p, q) in enumerate(zip(self.loop.params, self.twin.params, strict=True)):
            if text := disagreement(q.detach(), p.detach(), precision):
                faults.append(f"parameter differs ({i}, {text})")
            ours, theirs = self.twin.state(q), self.loop.state(p)
            if ours.keys() != theirs.keys():
                faults.append(f"state differs ({i}, {sorted(ours)} for {sorted(theirs)})")
                continue
            for name, value in theirs.items():
                if name in ("sum", "momentum"):
                    if text := disagreement(ours[name], value, precision):
                        faults.append(f"{name} differs ({i}, {text})")
                elif not _same(_number(ours[name]), _number(value)):
                    faults.append(f"{name} differs ({i}, {ours[name]} for {value})")
        if not faults:
            for p, q in zip(self.loop.params, self.twin.params, strict=True):
                ours, theirs = self.twin.state(q), self.loop.state(p)
                pairs = [(q, p), *((ours[n], theirs[n]) for n in ("sum", "momentum") if n in ours)]
                for mine, other in pairs:
                    if not torch.equal(mine, other):
                        mine.data.copy_(other.data)  # .data: the write must not show
        return faults

    # -- operations that may raise -------------------------------------------------------------

    def step(self, must_raise: bool | None = False) -> bool:
        self.loop.follow_aliases()
        counts = [self.loop.state(p).get("step", torch.tensor(0)) for p in self.loop.params]
        over = [
            i
            for i, (p, count) in enumerate(zip(self.loop.params, counts, strict=True))
            if p.grad is not None and count.dim() == 0 and not 0 <= int(count) <= MAX_STEP
        ]
        if must_raise is not None:
            must_raise = must_raise or bool(over)
        has_raised = self.attempt(_step, must_raise)
        for side in self.sides:
            for i in over:
                side.state(side.params[i])["step"].fill_(3)
        return has_raised

    def broken(
        self, change: Callable[[Side], Callable[[], Any] | None], must_raise: bool | None = True
    ) -> None:
        """Break something on both sides, take a step, and mend it."""
        mends = [change(side) for side in self.sides]
        if None not in mends:
            self.step(must_raise)
        for mend in mends:
            if mend is not None:
                mend()

    def do(self, number: int, operation: tuple[Any, ...]) -> None:
        name, *arguments = operation
        self.place = f"{number}. {' '.join(map(str, operation))}"
        if name == "step":
            self.step()
        elif name == "load":
            self.load(*arguments)
        elif name == "knob":
            self.set_knob(*arguments)
        elif name == "backend":
            self.set_backend(*arguments)
        elif name == "lr_in_place":
            self.write_lr(*arguments)
        elif name.startswith(("illegal", "wrong")):
            must_raise = None if name == "wrong_state_dtype" else True
            self.broken(lambda side: BREAKS[name](side, *arguments), must_raise)
        else:
            for side in self.sides:
                CHANGES[name](side, *arguments)

    def set_knob(self, g: int, name: str, value: Any) -> None:
        """Change a knob. Where it has no meaning beside the others, a step says so."""
        groups = [side.group(g) for side in self.sides]
        old = [group[name] for group in groups]
        for side, group in zip(self.sides, groups, strict=True):
            group[name] = side.knob(name, value)
        if all(map(_is_legal, groups)):
            return

        def change(side: Side) -> Callable[[], Any]:
            group = side.group(g)
            _give_gradients(side, group)
            return lambda: group.update({name: old[self.sides.index(side)]})

        self.broken(change)

    def write_lr(self, g: int, seed: int) -> None:
        """Write to a step size that is a tensor, which groups may share; set one that is not."""
        value, chosen = 0.03125 * (1 + seed % 5), self.loop.group(g)
        groups = [group["lr"] is chosen["lr"] for group in self.loop.optimizer.param_groups]
        for side in self.sides:
            for group, is_same in zip(side.optimizer.param_groups, groups, strict=True):
                if is_same and isinstance(group["lr"], Tensor):
                    group["lr"].fill_(value)
                elif is_same:
                    group["lr"] = value
            # Groups to come have the same tensor.
            if self.loop.optimizer.defaults["lr"] is chosen["lr"] and side is self.twin:
                side.optimizer.defaults["lr"] = side.optimizer.param_groups[g % len(groups)]["lr"]

    def set_backend(self, name: str) -> None:
        """Let another backend run the twin from here on."""
        for group in self.twin.optimizer.param_groups:
            knobs = {**group, **BACKENDS[name]}
            if not _is_legal(knobs):
                return
        for group in self.twin.optimizer.param_groups:
            group.update(BACKENDS[name])
        self.twin.backend = name

    def load(self, kind: str, i: int, seed: int) -> None:
        """Load a state: one's own, or one that is damaged, which must raise."""
        for side in self.sides:
            for p in side.retired:  # torch's state_dict() fails on state that belongs to no group
                side.optimizer.state.pop(p, None)
        is_whole = all(side.state(p) for side in self.sides for p in side.params)
        if kind == "own":
            states = [copy.deepcopy(side.optimizer.state_dict()) for side in self.sides]
            must_raise = False if is_whole else None
        elif is_whole:
            states = [DAMAGES[kind](side, i) for side in self.sides]
            must_raise = True
            if any(state is None for state in states):
                return
        else:
            return
        given = iter(states)
        if kind == "own":
            self.attempt(lambda side: side.optimizer.load_state_dict(next(given)), must_raise)
            return
        has_raised = self.attempt(
            lambda side: side.optimizer.load_state_dict(next(given)), must_raise
        )
        assert has_raised


def _step(side: Side) -> None:
    """Take a step. Where fused=True is refused outright, the best that serves takes its place."""
    groups = side.optimizer.param_groups
    asked = [group["fused"] for group in groups]
    try:
        side.optimizer.step()
    except RuntimeError as error:
        if "cannot be served" not in str(error):
            raise
        for group in groups:
            group["fused"] = group["fused"] and None
        try:
            side.optimizer.step()
        except Exception:
            for group, fused in zip(groups, asked, strict=True):
                group["fused"] = fused
            raise


def _kind(error: Exception | None) -> str:
    kind = type(error)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _number(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def _is_legal(group: dict[str, Any]) -> bool:
    """Whether the constructor takes a group's knobs: at a step they mean the same."""
    knobs = {name: group[name] for name in DEFAULTS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            asgld.ASGLD([torch.zeros(1)], **knobs)
        except (ValueError, TypeError, RuntimeError):
            return False
    return True


def _give_gradients(side: Side, group: dict[str, Any]) -> None:
    """Give a gradient to what has none in a group, so that a step has something to do there."""
    for i, p in enumerate(side.params):
        if p.grad is None and any(p is q for q in group["params"]):
            side.give(i, "fresh", i)


# ----------------------------------------------------------------------------------------------
# What is legal
# ----------------------------------------------------------------------------------------------


def _gradients(side: Side, seed: int) -> None:
    for i in range(len(side.params)):
        side.give(i, "fresh", seed + i)


def _set_data(side: Side, i: int, data: Tensor, seed: int) -> None:
    """Replace a parameter's data, with a gradient that suits."""
    i, p = side.find(i)
    side.give(i, "none", 0)
    p.data = data
    side.give(i, "fresh", seed)


def _move(side: Side, i: int, seed: int) -> None:
    """Other memory, the same strides."""
    _, p = side.find(i)
    memory = storage_bytes(p.detach()).clone().view(p.dtype)
    p.data = memory.as_strided(p.shape, p.stride(), p.storage_offset())
    if side.kinds[side.find(i)[0]].startswith("alias"):
        side.give(i, "fresh", seed)


def _slice(side: Side, i: int, seed: int) -> None:
    """The first half of the same memory, and no state."""
    _, p = side.find(i)
    if p.dim() == 0:
        return
    _set_data(side, i, p.data[: p.shape[0] // 2], seed)
    side.optimizer.state.pop(p, None)


def _narrow(side: Side, i: int, seed: int) -> None:
    """The same memory as another dtype, the same shape. The state of one of half precision is that
    of float32; for one of float32 that of float64 is not."""
    _, p = side.find(i)
    dtypes = NARROWER.get(p.dtype)
    if dtypes is None or not p.is_contiguous() or p.numel() == 0:
        return
    if p.dtype == torch.float64:
        side.optimizer.state.pop(p, None)
    dtype = dtypes[seed % len(dtypes)]
    flat = p.data.as_strided((p.numel(),), (1,), p.storage_offset())
    data = flat.view(dtype)[: p.numel()].view(p.shape)
    data.copy_(make_values(p.shape, dtype, seed))
    _set_data(side, i, data, seed)


def _restride(side: Side, i: int, seed: int) -> None:
    """The same memory and shape, with strides as of a transpose."""
    _, p = side.find(i)
    if p.dim() < 2 or not p.is_contiguous() or p.numel() == 0:
        return
    strides, step = [], 1
    for size in p.shape:
        strides.append(step)
        step *= size
    _set_data(side, i, p.data.as_strided(p.shape, strides, p.storage_offset()), seed)


def _share(side: Side, i: int, j: int, offset: int) -> None:
    """Let a parameter lie in the memory of another."""
    (i, p), (j, q) = side.find(i), side.find(j)
    if p is q or p.dtype != q.dtype or p.numel() == 0:
        return
    if p.shape == q.shape:
        data = q.data
    elif q.is_contiguous() and q.numel() >= p.numel() + offset:
        data = q.data.view(-1)[offset : offset + p.numel()].view(p.shape)
    else:
        return
    _set_data(side, i, data, i)
    side.give(j, "fresh", 100 + j)


def _reverse(side: Side) -> None:
    side.optimizer.param_groups.reverse()


def _delete(side: Side, g: int) -> None:
    groups = side.optimizer.param_groups
    if len(groups) < 2:
        return
    gone = groups.pop(g % len(groups))["params"]
    _renumber(side, [p for p in side.params if not any(p is q for q in gone)])
    side.retired += gone


def _renumber(side: Side, params: list[Tensor]) -> None:
    kinds = {id(p): side.kinds[i] for i, p in enumerate(side.params)}
    side.kinds = {i: kinds.get(id(p), "none") for i, p in enumerate(params)}
    side.params = params


def _add(side: Side, spec: Spec) -> None:
    made = [side.make(spec)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            side.optimizer.add_param_group({"params": made, **BACKENDS[side.backend]})
        except RuntimeError as error:
            if "cannot be served" not in str(error):
                raise
            side.optimizer.add_param_group({"params": made, **BACKENDS["default"]})
    side.give(len(side.params) - 1, "fresh", spec.seed + 1)


def _replace(side: Side, i: int, spec: Spec) -> None:
    """Put another parameter in the place of one, as those do who edit `param_groups`."""
    i, p = side.find(i)
    group = side.group_of(p)
    made = side.make(spec)
    new = side.params.pop()
    side.params[i] = new
    side.retired.append(p)
    place = next(k for k, q in enumerate(group["params"]) if q is p)
    group["params"][place] = new
    if side.is_named:
        group["param_names"][place] = made[0]
    side.give(i, "fresh", spec.seed + 1)


def _reorder(side: Side, g: int, _: int) -> None:
    group = side.group(g)
    for name in ("params", "param_names"):
        if name in group:
            group[name].reverse()


def _set_count(side: Side, p: Tensor, value: int, how: str) -> None:
    state = side.state(p)
    if "step" not in state:
        return
    if how == "fill":
        state["step"].fill_(value)
    else:
        state["step"] = torch.full_like(state["step"], value)


def _count(side: Side, i: int, value: int, how: str) -> None:
    _set_count(side, side.find(i)[1], value, how)


def set_stream(state: dict[str, Any], value: int, how: str) -> None:
    """Set which noise a parameter gets, in the form that the state has it in."""
    if "stream" not in state:
        return
    if not isinstance(state["stream"], Tensor):
        state["stream"] = value
    elif how == "fill":
        state["stream"].fill_(value)
    else:
        state["stream"] = torch.full_like(state["stream"], value)


def _stream(side: Side, i: int, value: int, how: str) -> None:
    i, p = side.find(i)
    set_stream(side.state(p), value - i, how)


def _clone(side: Side, i: int, name: str, layout: str) -> None:
    state = side.state(side.find(i)[1])
    if name in state:
        state[name] = place(state[name], layout, side.margin)


def _forget(side: Side, i: int) -> None:
    side.optimizer.state.pop(side.find(i)[1], None)


def _forget_all(side: Side) -> None:
    side.optimizer.state.clear()


def _copied(side: Side, duplicate: Callable[[Any], Any], seed: int) -> None:
    """Go on with a copy of the optimizer and its parameters."""
    side.drop_gradients()
    for p in side.retired:
        p.grad = None
    everything = (side.optimizer, side.params, side.retired)
    side.optimizer, side.params, side.retired = duplicate(everything)
    _gradients(side, seed)


CHANGES: dict[str, Callable[..., Any]] = {
    "gradient": Side.give,
    "gradients": _gradients,
    "rewrite": Side.rewrite,
    "move": _move,
    "slice": _slice,
    "narrow": _narrow,
    "restride": _restride,
    "share": _share,
    "reverse": _reverse,
    "delete": _delete,
    "add": _add,
    "replace": _replace,
    "reorder": _reorder,
    "count": _count,
    "stream": _stream,
    "clone": _clone,
    "forget": _forget,
    "forget_all": _forget_all,
    "deepcopy": lambda side, seed: _copied(side, copy.deepcopy, seed),
    "pickle": lambda side, seed: _copied(side, lambda o: pickle.loads(pickle.dumps(o)), seed),
}


# ----------------------------------------------------------------------------------------------
# What is not: each returns what mends it, or None where there is nothing to break
# ----------------------------------------------------------------------------------------------


def _illegal_knob(side: Side, g: int, name: str, value: Any) -> Callable[[], Any] | None:
    group = side.group(g)
    old = dict(group)
    _give_gradients(side, group)
    if name == "fused and foreach":
        group.update(fused=True, foreach=True)
    else:
        group[name] = as_lr(value)
    return lambda: group.update(old)


def _with_data(side: Side, i: int, data: Tensor, seed: int) -> Callable[[], Any]:
    i, p = side.find(i)
    old = p.data
    _set_data(side, i, data, seed)
    return lambda: _set_data(side, i, old, seed)


def _illegal_expand(side: Side, i: int, seed: int) -> Callable[[], Any] | None:
    """Elements that share their memory."""
    _, p = side.find(i)
    if p.numel() < 2 or not side.state(p):
        return None
    data = p.data.as_strided(p.shape, [0] * p.dim(), p.storage_offset())
    return _with_data(side, i, data, seed)


def _illegal_slice(side: Side, i: int, seed: int) -> Callable[[], Any] | None:
    """Half of the same memory, with the state of the whole; and for some its gradient."""
    i, p = side.find(i)
    if p.dim() == 0 or p.shape[0] < 2 or p.numel() == 0 or not side.state(p):
        return None
    side.give(i, "fresh", seed)
    old_grad = p.grad
    mend = _with_data(side, i, p.data[: p.shape[0] // 2], seed)
    if seed % 3 == 0:
        whole = p.data
        p.grad = None
        p.data = whole.as_strided(old_grad.shape, [0] * old_grad.dim(), whole.storage_offset())
        p.grad = old_grad
        p.data = whole
    return mend


def _illegal_transpose(side: Side, i: int, seed: int) -> Callable[[], Any] | None:
    """The same elements in another shape than the state's."""
    _, p = side.find(i)
    if p.dim() < 2 or p.shape[0] == p.shape[1] or p.numel() == 0 or not side.state(p):
        return None
    return _with_data(side, i, p.data.transpose(0, 1), seed)


def _illegal_sparse(side: Side, i: int, seed: int) -> Callable[[], Any] | None:
    side.give(i, "sparse", seed)
    return lambda: side.give(i, "fresh", seed)


def _illegal_count(side: Side, i: int, value: int, how: str) -> Callable[[], Any] | None:
    i, p = side.find(i)
    if not side.state(p):
        return None
    if p.grad is None:
        side.give(i, "fresh", i)
    _set_count(side, p, value, how)
    return lambda: _set_count(side, p, 3, how)


def _illegal_count_shape(side: Side, i: int, seed: int) -> Callable[[], Any] | None:
    i, p = side.find(i)
    state = side.state(p)
    if not state:
        return None
    if p.grad is None:
        side.give(i, "fresh", i)
    old = state["step"]
    state["step"] = torch.zeros(0 if seed % 2 else 2, dtype=torch.int64)
    return lambda: state.update(step=old)


def _break_state(side: Side, i: int, name: str, value: Callable[[Tensor], Tensor]) -> Any:
    i, p = side.find(i)
    state = side.state(p)
    if name not in state or (name == "momentum" and side.group_of(p)["momentum"] == 0.0):
        return None
    if p.grad is None:
        side.give(i, "fresh", i)
    old = state[name]
    state[name] = value(old)
    return lambda: state.update({name: old})


def _wrong_state_shape(side: Side, i: int, name: str, seed: int) -> Callable[[], Any] | None:
    """As many elements in another shape, or other elements."""

    def reshaped(old: Tensor) -> Tensor:
        if seed % 2 and old.numel():
            return torch.zeros(old.numel() + 3, dtype=old.dtype)
        return old.clone().unsqueeze(-1) if old.dim() < 2 else old.transpose(0, -1).unsqueeze(0)

    return _break_state(side, i, name, reshaped)


def _wrong_state_dtype(side: Side, i: int, name: str, seed: int) -> Callable[[], Any] | None:
    """A dtype that is not what the optimizer makes: both sides take it, or neither."""
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64)
    return _break_state(side, i, name, lambda old: old.to(dtypes[seed % len(dtypes)], copy=True))


BREAKS: dict[str, Callable[..., Callable[[], Any] | None]] = {
    "illegal_knob": _illegal_knob,
    "illegal_expand": _illegal_expand,
    "illegal_slice": _illegal_slice,
    "illegal_transpose": _illegal_transpose,
    "illegal_sparse": _illegal_sparse,
    "illegal_count": _illegal_count,
    "illegal_count_shape": _illegal_count_shape,
    "wrong_state_shape": _wrong_state_shape,
    "wrong_state_dtype": _wrong_state_dtype,
}


def _damage(change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Callable[..., Any]:
    """Return a maker of a state in which one parameter's entry, or its group, is changed."""

    def make(side: Side, i: int) -> dict[str, Any]:
        state = copy.deepcopy(side.optimizer.state_dict())
        g = i % len(state["param_groups"])
        group = state["param_groups"][g]
        change(state["state"][group["params"][i % len(group["params"])]], group)
        return state

    return make


def _foreign(make: Callable[[list[Tensor]], torch.optim.Optimizer]) -> Callable[..., Any]:
    """Return a maker of the state of another optimizer over tensors of the same shapes."""

    def state(side: Side, i: int) -> dict[str, Any]:
        groups = []
        for group in side.optimizer.param_groups:
            params = [torch.zeros_like(p).requires_grad_() for p in group["params"]]
            groups.append({"params": params})
        optimizer = make(groups)  # type: ignore[arg-type]
        for group in groups:
            for p in group["params"]:
                p.grad = torch.ones_like(p)
        optimizer.step()
        return optimizer.state_dict()

    return state


def _repeated_stream(side: Side, i: int) -> dict[str, Any] | None:
    state = copy.deepcopy(side.optimizer.state_dict())
    entries = list(state["state"].values())
    if len(entries) < 2:
        return None
    entries[1]["stream"] = copy.deepcopy(entries[0]["stream"])
    return state


def _reshaped(entry: dict[str, Any]) -> None:
    entry["sum"] = entry["sum"].unsqueeze(-1)


def _too_few(side: Side, i: int) -> dict[str, Any]:
    state = copy.deepcopy(side.optimizer.state_dict())
    state["param_groups"][-1]["params"].append(999)
    return state


DAMAGES: dict[str, Callable[[Side, int], dict[str, Any] | None]] = {
    "without sum": _damage(lambda entry, _: entry.pop("sum")),
    "without step": _damage(lambda entry, _: entry.pop("step")),
    "without stream": _damage(lambda entry, _: entry.pop("stream")),
    "other shape": _damage(lambda entry, _: _reshaped(entry)),
    "negative step": _damage(lambda entry, _: entry.update(step=torch.tensor(-1))),
    "huge step": _damage(lambda entry, _: entry.update(step=torch.tensor(2**40))),
    "empty step": _damage(lambda entry, _: entry.update(step=torch.zeros(0, dtype=torch.int64))),
    "repeated stream": _repeated_stream,
    "negative stream": _damage(lambda entry, _: set_stream(entry, -1, "replace")),
    "huge stream": _damage(lambda entry, _: set_stream(entry, 2**32, "replace")),
    "lr nan": _damage(lambda _, group: group.update(lr=math.nan)),
    "decay 2": _damage(lambda _, group: group.update(decay=2.0)),
    "fused and foreach": _damage(lambda _, group: group.update(fused=True, foreach=True)),
    "too many parameters": _too_few,
    "of Adagrad": _foreign(torch.optim.Adagrad),
    "of AdamW": _foreign(torch.optim.AdamW),
    "of SGD": _foreign(lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9)),
}


# ----------------------------------------------------------------------------------------------
# Running
# ----------------------------------------------------------------------------------------------


def run(program: Program, margin: int = 16) -> bool:
    """Carry out a program; return False where no optimizer could be made of it.

    Args:
        program: the case.
        margin: guard elements around every tensor; 0 for a sanitizer, which sees the end of memory.
    """
    world = World(program, margin)
    if world.is_refused:
        return False
    for number, operation in enumerate(program.operations):
        world.do(number, operation)
    return True


def shrink(program: Program, still: Callable[[Program], bool]) -> Program:
    """Leave out what a finding does not need."""

    def smaller(program: Program) -> Iterator[Program]:
        ops = program.operations
        for i in reversed(range(len(ops))):
            yield dataclasses.replace(program, operations=ops[:i] + ops[i + 1 :])
        for name in program.options:
            left = {k: v for k, v in program.options.items() if k != name}
            yield dataclasses.replace(program, options=left)
        for g, (options, specs) in enumerate(program.groups):
            others = program.groups[:g], program.groups[g + 1 :]
            if len(program.groups) > 1:
                yield dataclasses.replace(program, groups=[*others[0], *others[1]])
            if options:
                yield dataclasses.replace(program, groups=[*others[0], ({}, specs), *others[1]])
            for i in range(len(specs) if len(specs) > 1 else 0):
                rest = (options, specs[:i] + specs[i + 1 :])
                yield dataclasses.replace(program, groups=[*others[0], rest, *others[1]])
        if program.is_named:
            yield dataclasses.replace(program, is_named=False)

    is_done = False
    while not is_done:
        is_done, place = True, 0
        # What could not be left out before is not tried again until all else was.
        while (
            candidate := next(itertools.islice(smaller(program), place, None), None)
        ) is not None:
            if still(candidate):
                program, is_done = candidate, False
            else:
                place += 1
    return program


def first_fault(program: Program, margin: int = 16) -> str | None:
    """Return the worst that is wrong with a case, without numbers, or None."""
    try:
        run(program, margin)
    except Finding as finding:
        return finding.faults[0].split(" (")[0]
    return None


def check(number: int, backend: str | None = None, margin: int = 16) -> None:
    """Run a case; what fails is shown in as few operations as show it."""
    program = generate(number, backend)
    try:
        run(program, margin)
    except Finding as finding:
        fault = finding.faults[0].split(" (")[0]
        small = shrink(program, lambda candidate: first_fault(candidate, margin) == fault)
        try:
            run(small, margin)
        except Finding as again:
            finding = again
        raise AssertionError(f"{finding}\n{small}") from None


# ----------------------------------------------------------------------------------------------
# For people: cases in processes of their own
# ----------------------------------------------------------------------------------------------


def in_child(work: Callable[[Callable[[str], None]], None]) -> tuple[list[str], int]:
    """Run `work(say)` in a forked process; return what it said and its signal or exit code."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            work(lambda text: (os.write(writer, f"{text}\n".encode()), None)[1])
            code = 0
        except BaseException as error:
            os.write(writer, f"harness: {type(error).__name__}: {error!s:.300}\n".encode())
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read().splitlines()
    _, status = os.waitpid(child, 0)
    return said, os.waitstatus_to_exitcode(status)


def crash_of(code: int) -> str:
    return f"crash by {signal.Signals(-code).name}" if code < 0 else f"crash with exit code {code}"


def shrink_in_child(program: Program, fault: str, margin: int) -> Program:
    """Leave out what a finding does not need, where running it may crash."""
    if fault.startswith("crash"):

        def crashes(candidate: Program) -> bool:
            said, code = in_child(lambda say: say(first_fault(candidate, margin) or ""))
            return code != 0 and not said and crash_of(code) == fault

        return shrink(program, crashes)

    def work(say: Callable[[str], None]) -> None:
        small = shrink(program, lambda candidate: first_fault(candidate, margin) == fault)
        say(pickle.dumps(small).hex())

    said, code = in_child(work)
    return pickle.loads(bytes.fromhex(said[0])) if code == 0 else program


def survey(
    numbers: Sequence[int], backend: str | None, margin: int, builds: Sequence[str | None]
) -> Iterator[tuple[int, str]]:
    """Yield the number and the fault of every case that has one."""
    left = list(numbers)
    while left:
        batch = left[:200]

        def work(say: Callable[[str], None], batch: list[int] = batch) -> None:
            for number in batch:
                say(f"{number}")
                _native.set_build(builds[number % len(builds)])
                fault = first_fault(generate(number, backend), margin)
                if fault is not None:
                    say(fault)
                    return  # what follows would run in memory that was perhaps written to

        said, code = in_child(work)
        last = max(i for i, line in enumerate(said) if line.isdigit())
        number = int(said[last])
        if code != 0 and last == len(said) - 1:
            yield number, crash_of(code)
        elif last < len(said) - 1:
            yield number, said[last + 1]
        left = left[left.index(number) + 1 :]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run cases of the fuzzer in child processes.")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--backend", choices=BACKENDS, help="in place of the one that is drawn")
    parser.add_argument("--exact", action="store_true", help="no guards: for a sanitizer")
    parser.add_argument("--builds", action="store_true", help="take turns with the kernel's builds")
    parser.add_argument("--no-shrink", action="store_true", help="do not look for smaller programs")
    parser.add_argument("--show", action="store_true", help="print the smallest program of a kind")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    margin = 0 if given.exact else 16
    builds: list[str | None] = [*_native.available_builds()] if given.builds else [None]
    begin, kinds = time.perf_counter(), dict[str, list[int]]()
    smallest: dict[str, Program] = {}
    numbers = range(given.start, given.start + given.cases)
    if given.cases == 1:
        print(generate(given.start, given.backend))
    for number, fault in survey(numbers, given.backend, margin, builds):
        program = generate(number, given.backend)
        kind = f"{fault} ({program.backend})"
        if not given.no_shrink:
            _native.set_build(builds[number % len(builds)])
            program = shrink_in_child(program, fault, margin)
            what = [" ".join(a for a in op if isinstance(a, str)) for op in program.operations]
            kind = f"{kind} <- {', '.join(what)}"
        if kind not in kinds:
            print(f"case {number}: {kind}", flush=True)
            smallest[kind] = program
            if given.show or given.cases == 1:
                print(program, flush=True)
        kinds.setdefault(kind, []).append(number)
    print(f"\n{given.cases} cases in {time.perf_counter() - begin:.0f} s, ", end="")
    print(f"{sum(map(len, kinds.values()))} with a finding, of {len(kinds)} kinds")
    for kind, found in sorted(kinds.items(), key=lambda item: -len(item[1])):
        print(f"{len(found):5} first {found[0]:5}: {kind}")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
