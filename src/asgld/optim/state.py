"""The state of a parameter: make it, check it, load it, and collect it for a step.

==========  =====================================================================================
entry       meaning
==========  =====================================================================================
sum         S, the sum (with `decay`: average) of squared gradients; shaped like the parameter,
            with separate real and imaginary parts. A D of another shape has another sum, a whole
            and plain tensor on every rank (`asgld.optim.shapes.sizes_of_sums`)
right       the sum on the right side, of the shape "both" alone
step        k, steps taken; 0-dim int64, on the CPU or on the device of the parameter
stream      key of the parameter's noise; 0-dim int64 on the CPU, see `asgld.noise`
momentum    average of scaled gradients, in the polar forms of gradients; shaped like the
            parameter, in the working precision; optional
==========  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from types import NoneType
from typing import Any, cast

import torch
from torch import Tensor

from asgld import noise
from asgld.optim import _memory, shapes
from asgld.optim.functional import Tensors, working_dtype
from asgld.optim.rule import Rule

State = dict[str, Any]

# Entries of floating point.
_VALUES = ("sum", "right", "momentum")
# An entry of another optimizer's state, and the name of that optimizer.
_FOREIGN = {
    "exp_avg_sq": "Adam or AdamW",
    "exp_inf": "Adamax",
    "square_avg": "RMSprop or Adadelta",
    "momentum_buffer": "SGD or Muon",
    "prev": "Rprop",
    "sum": "Adagrad",
}


def create(p: Tensor, rule: Rule, stream: int, *, count_on_device: bool) -> State:
    """Return the state before the first step, when D is d_init."""
    state = {
        "step": torch.zeros((), dtype=torch.int64, device=p.device if count_on_device else "cpu"),
        **_no_sums(p, rule),
        "stream": torch.tensor(stream, dtype=torch.int64),
    }
    if rule.momentum != 0.0:
        state["momentum"] = _no_momentum(p)
    return state


def share_versions(states: Sequence[State], rule: Rule) -> None:
    """Let all counts share one version counter, and all streams another. The memory stays separate.
    A write to any of the tensors then shows in the version of the first. (Views of one tensor share
    a version as well, but a compiled step on a GPU, torch 2.11, gave other results with views.)"""
    if rule.differentiable:
        return  # autograd would take a write to one count for a write to all
    for name in ("step", "stream"):
        first: dict[torch.device, Tensor] = {}
        for state in states:
            one = first.setdefault(state[name].device, state[name]).detach()
            one.data = state[name]
            state[name] = one


def _no_sums(p: Tensor, rule: Rule) -> State:
    """Return the entries that D is built of, before the first step."""
    dtype = sum_dtype(rule, p)
    if rule.shape == "coordinate":
        return {"sum": torch.zeros_like(_memory.real(p.detach()), dtype=dtype)}
    sizes = shapes.sizes_of_sums(p.shape, rule)
    return {name: torch.zeros(size, dtype=dtype, device=p.device) for name, size in sizes.items()}


def _no_momentum(p: Tensor) -> Tensor:
    return torch.zeros_like(_memory.real(p.detach()), dtype=working_dtype(p))


def sum_dtype(rule: Rule, p: Tensor) -> torch.dtype:
    if rule.shape in ("left", "both"):
        return torch.float64
    return working_dtype(p) if rule.sum_dtype is None else rule.sum_dtype


def settle(p: Tensor, state: State, rule: Rule, *, count_on_device: bool) -> None:
    """Move a state to the device of its parameter, and add momentum if the rule has it now."""
    home = p.device if count_on_device else torch.device("cpu")
    fresh = {**_no_sums(p, rule), "momentum": _no_momentum(p)} if _is_elsewhere(p, state) else {}
    for name, there in fresh.items():
        value = state.get(name)
        if value is not None and value.device != p.device:
            # A tensor on the device "meta" has no values to copy.
            state[name] = there if value.is_meta else there.copy_(value)
    for name in _VALUES if rule.shape != "coordinate" else ():
        if name in state and state[name].is_neg():  # batches of matrices take plain tensors
            state[name] = state[name].resolve_neg()
    if (step := state["step"]).device != home:
        state["step"] = torch.zeros_like(step, device=home) if step.is_meta else step.to(home)
    if not isinstance(state["stream"], Tensor):
        state["stream"] = torch.tensor(state["stream"], dtype=torch.int64)
    if rule.momentum != 0.0 and "momentum" not in state:
        state["momentum"] = _no_momentum(p)


def _is_elsewhere(p: Tensor, state: State) -> bool:
    return any(name in state and state[name].device != p.device for name in _VALUES)


# ----------------------------------------------------------------------------------------------
# Checks
# ----------------------------------------------------------------------------------------------


def check_parameter(p: Tensor, where: str) -> None:
    """Raise if a step cannot work on a parameter or its gradient."""
    if not (p.is_floating_point() or p.is_complex()):
        raise TypeError(f"{where} is of {p.dtype}: need floating point or complex numbers")
    grad = p.grad
    assert grad is not None
    if grad.layout != torch.strided:
        raise RuntimeError(
            f"{where}: its gradient has the layout {grad.layout}. ASGLD does not support sparse "
            "gradients, since delta and the noise reach every coordinate at every step; pass "
            "p.grad.to_dense()"
        )
    if grad.shape != p.shape or grad.device != p.device or grad.is_complex() != p.is_complex():
        raise RuntimeError(
            f"{where} has shape {tuple(p.shape)}, {p.dtype} on {p.device}, its gradient "
            f"{tuple(grad.shape)}, {grad.dtype} on {grad.device}: p.data was replaced after the "
            "gradient was computed; compute the gradient anew"
        )
    if hasattr(p, "placements") != hasattr(grad, "placements"):
        raise RuntimeError(f"{where} is a {type(p).__name__}, its gradient a {type(grad).__name__}")
    for what, tensor in ((where, _unwrapped(p)), (f"the gradient of {where}", _unwrapped(grad))):
        if _memory.is_plain(tensor) and not _memory.is_whole(tensor):
            raise RuntimeError(f"{what}: its storage was resized or freed")
    held = _unwrapped(p)
    if held.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError(f"{where} was made in inference mode; a step outside cannot change it")
    if held.is_conj() or _memory.repeats(held):
        raise RuntimeError(
            f"{where}: unsupported operation: more than one element of the written-to tensor "
            "refers to a single memory location, or it is the conjugate of another tensor. Please "
            "clone() the tensor before performing the operation."
        )


def check_state(p: Tensor, state: Any, rule: Rule, where: str) -> None:
    """Raise if a state does not fit its parameter. No value is read from a device."""
    if problem := _problem(p, state, rule):
        raise ValueError(f"state of {where}: {problem}")


def _problem(p: Tensor, state: Any, rule: Rule) -> str:
    if problem := _missing(p, state, rule):
        return problem
    for name in ("step", "stream", *_VALUES):
        value = state.get(name)
        # Earlier versions kept the stream as an int.
        if not isinstance(value, (Tensor, int) if name == "stream" else (Tensor, NoneType)):
            return f"{name!r} is a {type(value).__name__}; need a tensor"
    for name, (shape, dtype) in _forms(p, rule).items():
        value = state.get(name)
        if value is None:
            continue
        if value.shape != shape or value.dtype != dtype:
            return (
                f"{name!r} has shape {tuple(value.shape)} and {value.dtype}, but the parameter, "
                f"of shape {tuple(p.shape)}, needs {tuple(shape)} and {dtype}. A state that was "
                "loaded is perhaps that of another model; if p.data was replaced by another kind "
                "of tensor, or the shape of D was changed, make a new optimizer"
            )
        is_like_param = name == "momentum" or rule.shape == "coordinate"
        placements = getattr(p, "placements", None) if is_like_param else None
        if getattr(value, "placements", None) != placements:
            return f"{name!r} is not sharded as the parameter is"
        held = _unwrapped(value)
        if held.layout != torch.strided or (not held.is_meta and _memory.repeats(held)):
            return f"{name!r} is sparse, or its elements share their memory"
    for name, value in state.items():
        if not isinstance(value, Tensor):
            continue
        held = _unwrapped(value)
        if _memory.is_plain(held) and held.layout == torch.strided and not held.is_meta:
            if not _memory.is_whole(held):
                return f"the storage of {name!r} was resized or freed"
            if held.is_inference() and not torch.is_inference_mode_enabled():
                return f"{name!r} was made in inference mode; clone() it outside inference mode"
    for name in ("step", "stream"):
        value = torch.as_tensor(state[name])
        if value.shape != () or value.dtype != torch.int64:
            return f"{name!r} has shape {tuple(value.shape)} and {value.dtype}; need () and int64"
    if torch.as_tensor(state["stream"]).device.type != "cpu":
        return "'stream' is not on the CPU"
    if state["step"].is_cpu and not 0 <= int(state["step"]) <= noise.MAX_STEP + 1:
        return f"'step' is {int(state['step'])}: need 0 to 2**32 steps"
    if not 0 <= int(state["stream"]) <= noise.MAX_STREAM:
        return f"'stream' is {int(state['stream'])}: need 0 <= stream < 2**32"
    return ""


def _forms(p: Tensor, rule: Rule) -> dict[str, tuple[Any, torch.dtype]]:
    """Return the shape and dtype that each entry of floating point must have."""
    whole = _memory.real(p.detach()).shape
    sizes: dict[str, Any] = {"sum": whole}
    if rule.shape != "coordinate":
        sizes = {name: torch.Size(s) for name, s in shapes.sizes_of_sums(p.shape, rule).items()}
    forms = {name: (size, sum_dtype(rule, p)) for name, size in sizes.items()}
    return {**forms, "momentum": (whole, working_dtype(p))}


def check_count(state: State, where: str) -> None:
    """Raise if a step count on the CPU does not fit the noise counter."""
    if state["step"].is_cpu and int(state["step"]) > noise.MAX_STEP:
        raise RuntimeError(
            f"state of {where}: step {int(state['step'])} is past the noise counter's 32 bits; "
            "start a new optimizer with another seed"
        )


def check_streams(states: Iterable[State]) -> None:
    """Raise if two parameters would get the same noise."""
    streams = [int(state["stream"]) for state in states]
    if len(set(streams)) < len(streams):
        twice = next(s for i, s in enumerate(streams) if s in streams[:i])
        raise ValueError(f"'stream' {twice} belongs to two parameters, which would share noise")


# ----------------------------------------------------------------------------------------------
# Loading
# ----------------------------------------------------------------------------------------------


def restore(p: Tensor, saved: Any, rule: Rule, where: str, *, count_on_device: bool) -> State:
    """Return a checked copy of a saved state, in the dtypes and on the device of a parameter."""
    if problem := _missing(p, saved, rule):
        raise ValueError(f"state of {where}: {problem}")
    state = dict(saved)
    # A state that is loaded before its parameter is materialized stays on its device.
    device, home = p.device, p.device if count_on_device else torch.device("cpu")
    if p.is_meta:
        device, home = torch.device("cpu"), torch.device("cpu")
    step, stream = state["step"], state["stream"]
    if isinstance(step, Tensor) and step.is_meta:
        step = torch.zeros_like(step, device="cpu")
    for name, value in (("step", step), ("stream", stream)):
        is_one = isinstance(value, int) or (
            isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()
        )
        if not is_one or not float(value).is_integer():
            raise ValueError(f"state of {where}: {name!r} is {value!r}: need a whole number")
    # Earlier versions saved the stream as an int.
    state["stream"] = torch.as_tensor(stream).reshape(()).to("cpu", torch.int64, copy=True)
    state["step"] = torch.as_tensor(step).reshape(()).to(home, torch.int64, copy=True)
    for name, (_, dtype) in _forms(p, rule).items():
        value = state.get(name)
        if isinstance(value, Tensor):
            if not value.is_floating_point() or (value.is_meta and not p.is_meta):
                raise ValueError(
                    f"state of {where}: {name!r} is of {value.dtype} on {value.device}"
                )
            place = value.device if value.is_meta else device
            state[name] = value.detach().to(place, dtype, copy=True)
    if rule.momentum != 0.0 and "momentum" not in state:
        raise ValueError(
            f"state of {where}: 'momentum' is missing, but the group has "
            f"momentum={rule.momentum!r}; to go on without, set momentum to 0 in the saved group"
        )
    if not 0 <= int(step) <= noise.MAX_STEP + 1:
        raise ValueError(f"state of {where}: 'step' is {int(step)}: need 0 to 2**32 steps")
    check_state(p, state, rule, where)
    if "sum" in state and rule.shape not in ("left", "both"):
        total = _unwrapped(state["sum"])
        if not total.is_meta and bool((total < 0).any()):
            raise ValueError(f"state of {where}: 'sum' holds negative numbers, not sums of squares")
    return cast(State, state)


def _missing(p: Tensor, state: Any, rule: Rule) -> str:
    """Say which entries a state lacks, and which optimizer it may belong to."""
    if not isinstance(state, dict):
        return f"need a dict, not a {type(state).__name__}"
    needed = {"step", "stream", *_forms(p, rule)} - {"momentum"}
    missing = [name for name in sorted(needed) if state.get(name) is None]
    text = " and ".join(map(repr, missing)) + " missing"
    if (owner := _owner(state)) is not None:
        text += f"; the state looks like that of {owner}. {_REMEDY}"
    return text if missing else ""


def _owner(entries: Container[str]) -> str | None:
    """Return the name of the optimizer whose state has entries of these names."""
    return next((owner for entry, owner in _FOREIGN.items() if entry in entries), None)


_REMEDY = (
    "ASGLD cannot use another optimizer's state: begin with a new optimizer, or copy entries of "
    "the same meaning by hand (Adagrad's `sum` is ASGLD's)"
)


def check_owner(groups: Sequence[dict[str, Any]], entries: dict[Any, Any]) -> None:
    """Raise if a saved state is another optimizer's."""
    for number, saved in enumerate(groups):
        if missing := {"alpha", "beta", "sigma", "delta", "d_init"} - saved.keys():
            states = [s for s in entries.values() if isinstance(s, dict) and "stream" not in s]
            owner = _owner({name for s in states for name in s}) or "another optimizer"
            raise ValueError(
                f"param_groups[{number}] has no {sorted(missing)[0]!r} but "
                f"{', '.join(sorted(saved.keys()))}, so the state is that of {owner}. {_REMEDY}"
            )


def check_group(
    saved: dict[str, Any], group: dict[str, Any], where: str, elsewhere: set[str]
) -> None:
    """Raise if the names of a saved group do not fit. `elsewhere` are the names in other groups of
    this optimizer."""
    names, own = saved.get("param_names"), group.get("param_names")
    if names is not None:
        are_names = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if (
            not are_names
            or len(set(names)) != len(saved["params"])
            or len(names) != len(set(names))
        ):
            raise ValueError(f"{where} has param_names={names!r}: need one name per parameter")
        if own is not None and names != own and sorted(names) == sorted(own):
            raise ValueError(
                f"{where} has the parameters in another order, {names!r}: positions match states "
                "to parameters"
            )
        if own is not None and (strays := (set(names) - set(own)) & elsewhere):
            raise ValueError(
                f"{where} of the loaded state holds {sorted(strays)[0]!r}, which is in another "
                "group here; make the same groups first"
            )


# ----------------------------------------------------------------------------------------------
# Collecting
# ----------------------------------------------------------------------------------------------


def collect(p: Tensor, state: State, rule: Rule, into: Tensors) -> None:
    """Append a parameter with a gradient to the lists of a step: the local part, with separate real
    and imaginary parts. The gradient is not converted."""
    into.params.append(_memory.real(local(p)))
    into.grads.append(_unwrapped(_placed(p.grad, p)))
    into.sums.append(local(state["sum"]) if rule.shape == "coordinate" else None)
    into.steps.append(state["step"])
    into.streams.append(int(state["stream"]))
    into.layouts.append(noise.layout_of(p))
    has_momentum = rule.momentum != 0.0 and not rule.is_polar
    into.momenta.append(local(state["momentum"]) if has_momentum else None)


def local(tensor: Tensor) -> Tensor:
    """Return the part of a DTensor that this process holds. It shares memory with the DTensor."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else cast(Tensor, to_local())


def _unwrapped(tensor: Tensor) -> Tensor:
    """Return the local part of a tensor for reading; wait for a collective that is under way."""
    held = local(tensor)
    wait = getattr(held, "wait", None)
    return held if wait is None else cast(Tensor, wait())


def _placed(grad: Any, param: Any) -> Tensor:
    """Return a gradient with its parameter's placements, which differ in sequence parallelism."""
    placements = getattr(param, "placements", None)
    if placements is None or grad.placements == placements:
        return cast(Tensor, grad)
    return cast(Tensor, grad.redistribute(placements=placements))
