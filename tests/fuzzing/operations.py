"""Operations on one side: legal changes, illegal ones, and damaged states to load."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import asgld
from fuzzing.programs import (
    BACKENDS,
    DEFAULTS,
    MOST_ELEMENTS,
    NARROWER,
    Spec,
    backend_of,
    sizes_of_state,
)  # fmt: skip
from fuzzing.sides import Side, as_lr, make_values, place, storage_bytes

Mend = Callable[[], Any]
# Legal changes by name.
CHANGES: dict[str, Callable[..., Any]] = {"gradient": Side.give, "rewrite": Side.rewrite}
# Illegal changes by name. Each returns a function that mends it, or None if it does not apply.
BREAKS: dict[str, Callable[..., Mend | None]] = {}


def _register(table: dict[str, Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda function: table.setdefault(function.__name__, function)


_change, _break = _register(CHANGES), _register(BREAKS)


def is_legal(group: dict[str, Any]) -> bool:
    """Whether the constructor accepts a group's knobs; a step must agree."""
    knobs = {name: group[name] for name in DEFAULTS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            asgld.ASGLD([torch.zeros(knobs["blocks"])], **knobs)
        except (ValueError, TypeError, RuntimeError):
            return False
    return True


def suits(group: dict[str, Any], shape: tuple[int, ...], *, is_complex: bool) -> bool:
    """Whether a parameter can be in a group, as far as the shape of D and prox are concerned."""
    if group["shape"] == "coordinate":
        return group["prox"] is None or not is_complex
    return not is_complex and sizes_of_state(shape, group["shape"], group["blocks"]) is not None


def is_large(group: dict[str, Any], shape: tuple[int, ...]) -> bool:
    """Whether the state that a parameter needs in a group is too much for a case."""
    if group["shape"] not in ("left", "both"):
        return False
    sizes = sizes_of_state(shape, group["shape"], group["blocks"]) or {}
    return any(math.prod(size) > MOST_ELEMENTS for size in sizes.values())


def fits(side: Side, p: Tensor, group: dict[str, Any], shape: tuple[int, ...]) -> bool:
    """Whether the state of a parameter, if any, fits a shape and the knobs of a group."""
    state = side.state(p)
    sizes = sizes_of_state(shape, group["shape"], group["blocks"])
    if sizes is None:
        return False
    parts = (2,) if p.is_complex() else ()
    needed = {**sizes, **({"momentum": shape} if "momentum" in state else {})}
    return not state or all(
        name in state and tuple(state[name].shape) == (*size, *parts)
        for name, size in needed.items()
    )


def give_gradients(side: Side, group: dict[str, Any]) -> None:
    """Give a gradient to all parameters of a group without one."""
    for i, p in enumerate(side.params):
        if p.grad is None and any(p is q for q in group["params"]):
            side.give(i, "fresh", i)


@_change
def gradients(side: Side, seed: int) -> None:
    for i in range(len(side.params)):
        side.give(i, "fresh", seed + i)


def _set_data(side: Side, i: int, data: Tensor, seed: int) -> None:
    """Replace a parameter's data, with a gradient that suits."""
    i, p = side.find(i)
    side.give(i, "none", 0)
    p.data = data
    side.give(i, "fresh", seed)


@_change
def move(side: Side, i: int, seed: int) -> None:
    """Other memory, the same strides."""
    _, p = side.find(i)
    memory = storage_bytes(p.detach()).clone().view(p.dtype)
    p.data = memory.as_strided(p.shape, p.stride(), p.storage_offset())
    if side.kinds[side.find(i)[0]].startswith("alias"):
        side.give(i, "fresh", seed)


@_change
def slice(side: Side, i: int, seed: int) -> None:
    """Half of the same memory, and no state."""
    _, p = side.find(i)
    if p.dim() == 0:
        return
    half = p.data[: p.shape[0] // 2]
    if not suits(side.group_of(p), tuple(half.shape), is_complex=p.is_complex()):
        return
    _set_data(side, i, half, seed)
    side.optimizer.state.pop(p, None)


@_change
def narrow(side: Side, i: int, seed: int) -> None:
    """The same memory and shape with a narrower dtype. The state stays if the new dtype has the
    same working precision."""
    _, p = side.find(i)
    dtypes = NARROWER.get(p.dtype)
    if dtypes is None or not p.is_contiguous() or p.numel() == 0 or side.has_shared_memory(p):
        return  # rounding of a half would be large in a number that holds it
    if p.dtype == torch.float64:
        side.optimizer.state.pop(p, None)
    dtype = dtypes[seed % len(dtypes)]
    flat = p.data.as_strided((p.numel(),), (1,), p.storage_offset())
    data = flat.view(dtype)[: p.numel()].view(p.shape)
    data.copy_(make_values(p.shape, dtype, seed))
    _set_data(side, i, data, seed)


@_change
def restride(side: Side, i: int, seed: int) -> None:
    """The same memory and shape, with strides as of a transpose."""
    _, p = side.find(i)
    if p.dim() < 2 or not p.is_contiguous() or p.numel() == 0:
        return
    strides, step = [], 1
    for size in p.shape:
        strides.append(step)
        step *= size
    _set_data(side, i, p.data.as_strided(p.shape, strides, p.storage_offset()), seed)


@_change
def share(side: Side, i: int, j: int, offset: int) -> None:
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


@_change
def delete(side: Side, g: int) -> None:
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


def _suits_spec(group: dict[str, Any], spec: Spec) -> bool:
    is_complex = spec.dtype.startswith("complex")
    return suits(group, spec.shape, is_complex=is_complex) and not is_large(group, spec.shape)


@_change
def add(side: Side, spec: Spec, own: dict[str, Any]) -> None:
    optimizer: Any = side.optimizer
    shape = own.get("shape", optimizer.defaults["shape"])
    suited = optimizer._defaults_of_shape.get(shape, {}) if "shape" in own else {}
    merged = {**optimizer.defaults, **suited, **own, **BACKENDS["loop"]}
    if not is_legal(merged) or not _suits_spec(merged, spec):
        return
    made = [side.make(spec)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            knobs = {**own, **backend_of(side.backend, shape)}
            side.optimizer.add_param_group({"params": made, **knobs})
        except RuntimeError as error:
            if "cannot be served" not in str(error):
                raise
            side.optimizer.add_param_group({"params": made, **own, **BACKENDS["default"]})
    side.give(len(side.params) - 1, "fresh", spec.seed + 1)


@_change
def replace(side: Side, i: int, spec: Spec) -> None:
    """Put another parameter in the place of one, as users do who edit `param_groups`."""
    i, p = side.find(i)
    group = side.group_of(p)
    if not _suits_spec(group, spec):
        return
    made = side.make(spec)
    new = side.params.pop()
    side.params[i] = new
    side.retired.append(p)
    place = next(k for k, q in enumerate(group["params"]) if q is p)
    group["params"][place] = new
    if side.is_named:
        group["param_names"][place] = made[0]
    side.give(i, "fresh", spec.seed + 1)


@_change
def reorder(side: Side, g: int, _: int) -> None:
    group = side.group(g)
    for name in ("params", "param_names"):
        if name in group:
            group[name].reverse()


def set_number(state: dict[str, Any], name: str, value: int, how: str) -> None:
    """Set a count or a stream: write to the tensor, or replace it."""
    if isinstance(state.get(name), Tensor) and how == "fill":
        state[name].fill_(value)
    elif name in state:
        state[name] = torch.tensor(value)


@_change
def count(side: Side, i: int, value: int, how: str) -> None:
    set_number(side.state(side.find(i)[1]), "step", value, how)


@_change
def stream(side: Side, i: int, value: int, how: str) -> None:
    i, p = side.find(i)
    set_number(side.state(p), "stream", value - i, how)


@_change
def clone(side: Side, i: int, name: str, layout: str) -> None:
    state = side.state(side.find(i)[1])
    if name in state and layout == "negative":
        state[name] = torch._neg_view(place(-state[name], "contiguous", side.margin))
    elif name in state:
        state[name] = place(state[name], layout, side.margin)


@_change
def share_state(side: Side, i: int, j: int, name: str) -> None:
    """Let two parameters have one momentum, or one sum."""
    (i, p), (j, q) = side.find(i), side.find(j)
    mine, other = side.state(p).get(name), side.state(q).get(name)
    if mine is None or other is None or p is q:
        return
    if (mine.shape, mine.dtype) == (other.shape, other.dtype):
        side.state(p)[name] = other.detach()


@_change
def reshape(side: Side, g: int, knobs: dict[str, Any]) -> None:
    """Another shape of D, with states from the beginning."""
    group = side.group(g)
    new = {**group, **knobs, **backend_of(side.backend, knobs["shape"])}
    shapes = [(tuple(p.shape), p.is_complex()) for p in group["params"]]
    if not is_legal({**new, **BACKENDS["loop"]}) or not all(
        suits(new, shape, is_complex=c) and not is_large(new, shape) for shape, c in shapes
    ):
        return
    group.update(new)
    for p in group["params"]:
        side.optimizer.state.pop(p, None)


def _copied(side: Side, duplicate: Callable[[Any], Any], seed: int) -> None:
    """Go on with a copy of the optimizer and its parameters."""
    side.drop_gradients()
    for p in side.retired:
        p.grad = None
    everything = (side.optimizer, side.params, side.retired)
    side.optimizer, side.params, side.retired = duplicate(everything)
    gradients(side, seed)


CHANGES |= {
    "reverse": lambda side: side.optimizer.param_groups.reverse(),
    "forget": lambda side, i: side.optimizer.state.pop(side.find(i)[1], None),
    "forget_all": lambda side: side.optimizer.state.clear(),
    "deepcopy": lambda side, seed: _copied(side, copy.deepcopy, seed),
    "pickle": lambda side, seed: _copied(side, lambda o: pickle.loads(pickle.dumps(o)), seed),
}


# ----------------------------------------------------------------------------------------------
# Illegal changes
# ----------------------------------------------------------------------------------------------


@_break
def illegal_knob(side: Side, g: int, name: str, value: Any) -> Mend | None:
    group = side.group(g)
    old = dict(group)
    give_gradients(side, group)
    if name == "fused and foreach":
        group.update(fused=True, foreach=True)
    else:
        group[name] = as_lr(value)
    return lambda: group.update(old)


def _with_data(side: Side, i: int, data: Tensor, seed: int) -> Mend:
    i, p = side.find(i)
    old = p.data
    _set_data(side, i, data, seed)
    return lambda: _set_data(side, i, old, seed)


@_break
def illegal_expand(side: Side, i: int, seed: int) -> Mend | None:
    """Elements that share their memory."""
    _, p = side.find(i)
    if p.numel() < 2 or not side.state(p):
        return None
    data = p.data.as_strided(p.shape, [0] * p.dim(), p.storage_offset())
    return _with_data(side, i, data, seed)


@_break
def illegal_slice(side: Side, i: int, seed: int) -> Mend | None:
    """Half of the same memory, with the state and perhaps the gradient of the whole."""
    i, p = side.find(i)
    if p.dim() == 0 or p.shape[0] < 2 or p.numel() == 0 or not side.state(p):
        return None
    half = p.data[: p.shape[0] // 2]
    if fits(side, p, side.group_of(p), tuple(half.shape)):
        return None  # a polar form without momentum keeps nothing
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


@_break
def illegal_transpose(side: Side, i: int, seed: int) -> Mend | None:
    """The same elements in another shape than the state's."""
    _, p = side.find(i)
    if p.dim() < 2 or p.shape[0] == p.shape[1] or p.numel() == 0 or not side.state(p):
        return None
    data = p.data.transpose(0, 1)
    if fits(side, p, side.group_of(p), tuple(data.shape)):
        return None
    return _with_data(side, i, data, seed)


@_break
def illegal_sparse(side: Side, i: int, seed: int) -> Mend | None:
    side.give(i, "sparse", seed)
    return lambda: side.give(i, "fresh", seed)


def _with_gradient(side: Side, i: int) -> dict[str, Any]:
    """Return the state of a parameter. With a state, the parameter gets a gradient."""
    i, p = side.find(i)
    if p.grad is None and side.state(p):
        side.give(i, "fresh", i)
    return side.state(p)


@_break
def illegal_count(side: Side, i: int, value: int, how: str) -> Mend | None:
    state = _with_gradient(side, i)
    if not state:
        return None
    set_number(state, "step", value, how)
    return lambda: set_number(state, "step", 3, how)


@_break
def illegal_count_shape(side: Side, i: int, seed: int) -> Mend | None:
    state = _with_gradient(side, i)
    if not state:
        return None
    old = state["step"]
    state["step"] = torch.zeros(0 if seed % 2 else 2, dtype=torch.int64)
    return lambda: state.update(step=old)


def _break_state(side: Side, i: int, name: str, value: Callable[[Tensor], Tensor]) -> Any:
    _, p = side.find(i)
    group = side.group_of(p)
    needed = sizes_of_state(tuple(p.shape), group["shape"], group["blocks"]) or {}
    is_needed = name in needed if name != "momentum" else group["momentum"] != 0.0
    if name not in side.state(p) or not is_needed:
        return None
    state = _with_gradient(side, i)
    old = state[name]
    state[name] = value(old)
    return lambda: state.update({name: old})


@_break
def wrong_state_shape(side: Side, i: int, name: str, seed: int) -> Mend | None:
    """As many elements in another shape, or more elements."""

    def reshaped(old: Tensor) -> Tensor:
        if seed % 2 and old.numel():
            return torch.zeros(old.numel() + 3, dtype=old.dtype)
        return old.clone().unsqueeze(-1) if old.dim() < 2 else old.transpose(0, -1).unsqueeze(0)

    return _break_state(side, i, name, reshaped)


@_break
def wrong_state_dtype(side: Side, i: int, name: str, seed: int) -> Mend | None:
    """Another dtype than the optimizer's: both sides take it, or neither does."""
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64)
    return _break_state(side, i, name, lambda old: old.to(dtypes[seed % len(dtypes)], copy=True))


@_break
def illegal_overlap(side: Side, i: int, name: str, _: int) -> Mend | None:
    """A momentum or a sum in the memory of its own parameter."""
    _, p = side.find(i)
    old = side.state(p).get(name)
    if old is None or old.dtype != p.dtype or not p.is_contiguous() or not old.numel():
        return None
    if old.numel() > p.numel():
        return None
    return _break_state(side, i, name, lambda old: p.data.view(-1)[: old.numel()].view(old.shape))


# ----------------------------------------------------------------------------------------------
# Damaged states
# ----------------------------------------------------------------------------------------------


def _damage(
    change: Callable[[dict[str, Any], dict[str, Any]], Any], *names: str
) -> Callable[..., Any]:
    """Return a maker of a state in which one parameter's entry, or its group, is changed. `names`
    are the entries that the change needs."""

    def make(side: Side, i: int) -> dict[str, Any] | None:
        state = copy.deepcopy(side.optimizer.state_dict())
        g = i % len(state["param_groups"])
        group = state["param_groups"][g]
        place = i % len(group["params"])
        p = side.optimizer.param_groups[g]["params"][place]
        entry = state["state"][group["params"][place]]
        needed = sizes_of_state(tuple(p.shape), group["shape"], group["blocks"]) or {}
        if not {*names} <= {*needed, *({"momentum"} & entry.keys())}:
            return None  # a D of this shape does not need the entry
        change(entry, group)
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


def _too_many(side: Side, i: int) -> dict[str, Any]:
    state = copy.deepcopy(side.optimizer.state_dict())
    state["param_groups"][-1]["params"].append(999)
    return state


DAMAGES: dict[str, Callable[[Side, int], dict[str, Any] | None]] = {
    "without sum": _damage(lambda entry, _: entry.pop("sum"), "sum"),
    "without right": _damage(lambda entry, _: entry.pop("right"), "right"),
    "without step": _damage(lambda entry, _: entry.pop("step")),
    "without stream": _damage(lambda entry, _: entry.pop("stream")),
    "other shape": _damage(lambda entry, _: entry.update(sum=entry["sum"].unsqueeze(-1)), "sum"),
    "other momentum": _damage(
        lambda entry, _: entry.update(momentum=entry["momentum"].unsqueeze(0)), "momentum"
    ),
    "other right": _damage(
        lambda entry, _: entry.update(right=entry["right"].unsqueeze(0)), "right"
    ),
    "shape diagonal": _damage(lambda _, group: group.update(shape="diagonal")),
    "blocks 0": _damage(lambda _, group: group.update(blocks=0)),
    "negative step": _damage(lambda entry, _: entry.update(step=torch.tensor(-1))),
    "huge step": _damage(lambda entry, _: entry.update(step=torch.tensor(2**40))),
    "empty step": _damage(lambda entry, _: entry.update(step=torch.zeros(0, dtype=torch.int64))),
    "repeated stream": _repeated_stream,
    "negative stream": _damage(lambda entry, _: set_number(entry, "stream", -1, "replace")),
    "huge stream": _damage(lambda entry, _: set_number(entry, "stream", 2**32, "replace")),
    "lr nan": _damage(lambda _, group: group.update(lr=math.nan)),
    "decay 2": _damage(lambda _, group: group.update(decay=2.0)),
    "fused and foreach": _damage(lambda _, group: group.update(fused=True, foreach=True)),
    "too many parameters": _too_many,
    "of Adagrad": _foreign(torch.optim.Adagrad),
    "of AdamW": _foreign(torch.optim.AdamW),
    "of SGD": _foreign(lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9)),
}
