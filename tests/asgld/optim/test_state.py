"""Loading a state: all of it is checked before any of it is taken, and an error names the entry."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import assert_equal, make_model, make_parameters, snapshot, take_steps
from torch import Tensor

import asgld

Saved = dict[str, Any]


def make(build: Any = asgld.ASGLD, **options: Any) -> tuple[asgld.ASGLD, list[Tensor]]:
    params = make_parameters([(4, 3), (5,), (6,)])
    groups = [{"params": params[:2]}, {"params": params[2:], "lr": 0.05}]
    optimizer = build(groups, lr=0.1, **options)
    take_steps(optimizer, 3)
    return optimizer, params


def in_state(entry: str, value: Any) -> Callable[[Saved], Any]:
    """Put a value into the state of the last parameter."""
    return lambda saved: saved["state"][2].update({entry: value})


def in_group(**knobs: Any) -> Callable[[Saved], Any]:
    return lambda saved: saved["param_groups"][1].update(knobs)


# What is damaged, and what the error names.
DAMAGED: dict[str, tuple[Callable[[Saved], Any], str]] = {
    "an empty step": (in_state("step", torch.tensor([], dtype=torch.int64)), "'step'"),
    "a step below zero": (in_state("step", torch.tensor(-1)), "'step' is -1"),
    "a huge step": (in_state("step", torch.tensor(2**40)), "'step' is 1099511627776"),
    "half a step": (in_state("step", torch.tensor(1.5)), "'step' is"),
    "a step that is not a number": (in_state("step", torch.tensor(math.nan)), "'step' is"),
    "a sum on meta": (in_state("sum", torch.zeros(6, device="meta")), "'sum' is of"),
    "a state that is a list": (lambda saved: saved.update(state=[]), "must be a dict"),
    "a group that is a list": (
        lambda saved: saved["param_groups"].__setitem__(1, ["params"]),
        "param_groups|parameter group|dict",
    ),
    "a step that is text": (in_state("step", "3"), "'step'"),
    "no step": (lambda saved: saved["state"][2].pop("step"), "'step' missing"),
    "no sum": (lambda saved: saved["state"][2].pop("sum"), "'sum' missing"),
    "no stream": (lambda saved: saved["state"][2].pop("stream"), "'stream' missing"),
    "no momentum": (lambda saved: saved["state"][2].pop("momentum"), "'momentum' is missing"),
    "a sum of another shape": (in_state("sum", torch.zeros(2, 3)), r"'sum' has shape \(2, 3\)"),
    "a sum of whole numbers": (in_state("sum", torch.zeros(6, dtype=torch.int64)), "'sum' is of"),
    "a sum below zero": (in_state("sum", torch.full((6,), -1.0)), "'sum' holds negative"),
    "a sum that is text": (in_state("sum", "zero"), "'sum' is a str"),
    "a momentum of another shape": (in_state("momentum", torch.zeros(1)), "'momentum' has shape"),
    "a stream out of range": (in_state("stream", torch.tensor(2**32)), "'stream' is 4294967296"),
    "a stream below zero": (in_state("stream", -1), "'stream' is -1"),
    "a stream twice": (in_state("stream", 0), "'stream' 0 belongs to two parameters"),
    "a state that is no dict": (lambda saved: saved["state"].update({2: 7}), "need a dict"),
    "no state of a parameter": (lambda saved: saved["state"].pop(2), "parameter 0 of group 1"),
    "lr not a number": (in_group(lr=math.nan), r"param_groups\[1\].*learning rate: nan"),
    "a decay of two": (in_group(decay=2.0), r"param_groups\[1\].*decay value: 2.0"),
    "a momentum of one": (in_group(momentum=1.0), r"param_groups\[1\].*momentum value: 1.0"),
    "two backends": (in_group(fused=True, foreach=True), r"param_groups\[1\].*cannot be"),
    "no entry 'state'": (lambda saved: saved.pop("state"), "'state' and 'param_groups'"),
    "fewer groups": (lambda saved: saved["param_groups"].pop(), "number of parameter groups"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_state_is_refused_and_leaves_no_trace(kind: str) -> None:
    source, _ = make(momentum=0.9)
    saved = copy.deepcopy(source.state_dict())
    damage, names = DAMAGED[kind]
    damage(saved)
    target, params = make(momentum=0.9)
    take_steps(target, 2, first=3)
    seen, given = snapshot(target), copy.deepcopy(saved)
    with pytest.raises((ValueError, TypeError, RuntimeError), match=names):
        target.load_state_dict(saved)
    assert_equal(seen, snapshot(target))
    assert str(given) == str(saved)
    twin, others = make(momentum=0.9)
    take_steps(twin, 2, first=3)
    take_steps(twin, 2, first=5)
    take_steps(target, 2, first=5)
    for p, q in zip(params, others, strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize(
    ("build", "options", "names"),
    [
        (torch.optim.Adagrad, {}, "another optimizer's"),
        (torch.optim.AdamW, {}, "betas"),
        (torch.optim.SGD, {"momentum": 0.9}, "nesterov"),
        (torch.optim.SGD, {}, "nesterov"),
        (torch.optim.RMSprop, {}, "another optimizer's"),
    ],
)
def test_state_of_another_optimizer_is_named_as_such(
    build: Any, options: dict[str, Any], names: str
) -> None:
    target, params = make()
    other = build([{"params": params[:2]}, {"params": params[2:]}], lr=0.1, **options)
    take_steps(other, 2)
    seen = snapshot(target)
    with pytest.raises(ValueError, match=names):
        target.load_state_dict(other.state_dict())
    # With our own groups around it, the entries tell.
    saved = target.state_dict()
    saved["state"] = other.state_dict()["state"] or {0: {}}
    with pytest.raises(ValueError, match=r"missing"):
        target.load_state_dict(saved)
    assert_equal(seen, snapshot(target))


@pytest.mark.parametrize("steps", [0, 2])
def test_state_of_another_optimizer_is_named_before_groups_are_counted(steps: int) -> None:
    """More groups would not make it fit."""
    model = make_model()
    other = torch.optim.AdamW(model.parameters())
    take_steps(other, steps)
    optimizer = asgld.NetworkASGLD(model)
    seen = snapshot(optimizer)
    owner = "Adam or AdamW" if steps else "another optimizer"
    with pytest.raises(ValueError, match=f"so the state is that of {owner}") as caught:
        optimizer.load_state_dict(other.state_dict())
    assert "same groups" not in str(caught.value)
    assert_equal(seen, snapshot(optimizer))


def test_state_of_another_model_is_told_by_both_shapes() -> None:
    def optimizer_of(width: int) -> asgld.ASGLD:
        return asgld.NetworkASGLD(torch.nn.Linear(width, 1), shape="coordinate")

    with pytest.raises(ValueError, match=r"\(1, 8\).*of shape \(1, 9\).*that of another model"):
        optimizer_of(9).load_state_dict(optimizer_of(8).state_dict())


def test_whole_numbers_as_earlier_versions_saved_them_load() -> None:
    """A stream was an int; a step of another dtype is as good."""
    source, params = make()
    saved = copy.deepcopy(source.state_dict())
    for state in saved["state"].values():
        state["stream"] = int(state["stream"])
        state["step"] = state["step"].to(torch.float32).reshape(1)
    target, others = make()
    target.load_state_dict(saved)
    take_steps(source, 2, first=3)
    take_steps(target, 2, first=3)
    for p, q in zip(params, others, strict=True):
        assert torch.equal(p, q)


def test_pickle_of_an_earlier_version_goes_on() -> None:
    optimizer, _ = make()
    for state in optimizer.state.values():
        state["stream"] = int(state["stream"])
    for group in optimizer.param_groups:
        del group["noise"], group["noise_bound"]
    twin = pickle.loads(pickle.dumps(optimizer))
    take_steps(twin, 2, first=3)
    straight, others = make()
    take_steps(straight, 2, first=3)
    for p, q in zip((p for g in twin.param_groups for p in g["params"]), others, strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("sigma", [0.0, 0.02])
def test_network_preset_saved_without_noise_keeps_its_sigma_and_says_so(sigma: float) -> None:
    """Above all, a run without noise must not wake up with the default."""
    source, _ = make(asgld.NetworkASGLD)
    saved = copy.deepcopy(source.state_dict())
    for group in saved["param_groups"]:
        group["sigma"] = sigma
        del group["noise"], group["noise_bound"]
    target, _ = make(asgld.NetworkASGLD)
    with pytest.warns(UserWarning, match=f"sigma={sigma}"):
        target.load_state_dict(saved)
    for group in target.param_groups:
        assert (group["noise"], group["sigma"]) == (None, sigma)
    take_steps(target, 1)


def test_own_state_loads_without_a_word() -> None:
    for build in (asgld.NetworkASGLD, asgld.PSGLD, asgld.SGLD):
        source, _ = make(build)
        target, _ = make(build)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            target.load_state_dict(source.state_dict())


def test_momentum_that_rests_survives_a_round_trip() -> None:
    source, params = make(momentum=0.9)
    for group in source.param_groups:
        group["momentum"] = 0.0
    target, others = make(momentum=0.9)
    target.load_state_dict(copy.deepcopy(source.state_dict()))
    for p, q in zip(params, others, strict=True):
        assert torch.equal(source.state[p]["momentum"], target.state[q]["momentum"])


def test_frozen_parameter_left_out_of_a_state_keeps_what_it_has() -> None:
    """Distributed checkpoints leave out the state of what does not require gradients."""
    source, _ = make()
    saved = copy.deepcopy(source.state_dict())
    del saved["state"][2]
    target, params = make()
    params[2].requires_grad_(False)
    before = copy.deepcopy(target.state[params[2]])
    target.load_state_dict(saved)
    for name, value in before.items():
        assert torch.equal(target.state[params[2]][name], value)


@pytest.mark.parametrize("options", [{}, {"capturable": True}, {"momentum": 0.9}])
def test_state_loaded_before_its_parameters_are_materialized_goes_on(options: Any) -> None:
    """On the device "meta" there is nothing to keep a state in: it waits elsewhere."""
    (p,) = make_parameters([(3,)])
    source = asgld.ASGLD([p], lr=0.1, **options)
    take_steps(source, 2)
    q = torch.nn.Parameter(torch.empty(3, device="meta"))
    target = asgld.ASGLD([q], lr=0.1, **options)
    target.load_state_dict(target.state_dict())
    target.load_state_dict(source.state_dict())
    torch.utils.swap_tensors(q, torch.nn.Parameter(p.detach().clone()))
    take_steps(source, 2, first=2)
    take_steps(target, 2, first=2)
    assert torch.equal(p, q)
    assert torch.equal(source.state[p]["sum"], target.state[q]["sum"])
    assert int(target.state[q]["step"]) == 4


@pytest.mark.parametrize("names", [["a", "b"], ["a", 3, "c"], ["a", "a", "b"], ["c", "b", "a"]])
def test_names_in_disorder_are_refused(names: list[Any]) -> None:
    """States go by position: the same names in another order would mix them up."""

    def build() -> asgld.ASGLD:
        return asgld.ASGLD(list(zip("abc", make_parameters([(2,), (2,), (2,)]), strict=True)))

    saved = build().state_dict()
    saved["param_groups"][0]["param_names"] = names
    with pytest.raises(ValueError, match="param_groups"):
        build().load_state_dict(saved)


def test_knobs_from_numpy_are_saved_as_pythons_own() -> None:
    """`torch.load` refuses others by default."""
    import io

    import numpy as np

    params = make_parameters([(3,)])
    optimizer = asgld.ASGLD(params, lr=np.float64(0.1), sigma=np.float32(0.5), alpha=np.int64(1))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert loaded["param_groups"][0]["sigma"] == 0.5


def test_state_loaded_in_inference_mode_goes_on_outside() -> None:
    source, params = make()
    target, others = make()
    with torch.inference_mode():
        target.load_state_dict(copy.deepcopy(source.state_dict()))
    take_steps(source, 2, first=3)
    take_steps(target, 2, first=3)
    for p, q in zip(params, others, strict=True):
        assert torch.equal(p, q)


def test_what_is_no_state_dict_is_refused() -> None:
    target, _ = make()
    for given in (5, None, [1]):
        with pytest.raises(TypeError, match="state_dict"):
            target.load_state_dict(given)  # type: ignore[arg-type]
