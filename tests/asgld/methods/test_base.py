"""The protocols of methods, the table of methods by name, and what an import loads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import pytest
import torch
from torch import Tensor

import asgld
from asgld.methods import (
    LBFGS,
    METHODS,
    Adjustable,
    KnowsItsNoise,
    Method,
    SeededState,
    TorchMethod,
    langevin,
    method,
    method_names,
    normals,
)
from asgld.methods.torch import LANGEVIN
from asgld.oracle import Oracle


def saddle(x: Tensor) -> Tensor:
    return x[0] ** 2 - x[1] ** 2 / 2 + x[1] ** 4 / 4


@dataclass(frozen=True)
class Plain:
    """Noisy gradient descent with the five members of `Method` and no more."""

    lr: float = 0.1
    noise: float = 1e-3
    name = "plain"
    needs = frozenset({"grad"})
    is_batched = True

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> SeededState:
        return SeededState(x=x0.clone(), seed=seed)

    def step(self, oracle: Oracle, state: SeededState) -> SeededState:
        kick = self.noise / (1.0 + state.step) * normals(state.seed, state.step, state.x)
        x = state.x - self.lr * oracle.grad(state.x) + kick
        return replace(state, x=x, step=state.step + 1)


@dataclass(frozen=True)
class Tuned(Plain):
    """The same with an open learning rate."""

    options: Mapping[str, Any] = field(default_factory=dict)
    has_noise = True
    anneals = True

    @property
    def knobs(self) -> dict[str, Any]:
        return {"lr": self.lr, "noise": self.noise}

    @property
    def open_options(self) -> frozenset[str]:
        return frozenset({"lr"} - self.options.keys())

    def with_options(self, options: Mapping[str, Any]) -> Self:
        return replace(self, options=dict(options), **options)


@pytest.mark.parametrize("name", METHODS)
def test_methods_have_the_protocols_that_they_should(name: str) -> None:
    made = method(name)
    assert isinstance(made, Method)
    assert made.name == name
    assert isinstance(made, Adjustable) == (name in LANGEVIN)
    assert isinstance(made, KnowsItsNoise) == (name in LANGEVIN or name == "lbfgs")


def test_noise_and_open_options_are_told() -> None:
    assert not LBFGS().has_noise
    asg, sgld, agld = (langevin(name) for name in ("asg", "sgld", "agld"))
    assert (asg.has_noise, sgld.has_noise, agld.has_noise) == (False, True, True)
    assert (asg.anneals, sgld.anneals, agld.anneals) == (True, False, True)
    assert langevin("asg", batch_size=4).has_noise
    everything = {"alpha", "d_init", "delta", "lr", "sigma"}
    assert agld.open_options == everything
    assert asg.open_options == everything - {"sigma"}
    assert sgld.open_options == everything - {"alpha"}
    assert langevin("asgld", lr=0.1, sigma=0.0).open_options == {"alpha", "d_init", "delta"}
    adam = TorchMethod("adam", torch.optim.Adam, {"lr": 0.1})
    assert not adam.open_options
    assert not adam.has_noise
    assert adam.with_options({"lr": 0.2}).knobs["lr"] == 0.2


def test_minimize_takes_a_method_with_the_least_protocol() -> None:
    assert not isinstance(Plain(), KnowsItsNoise)
    result = asgld.minimize(saddle, torch.zeros(2), method=Plain())
    assert result.success
    assert result.options == {}


def test_minimize_sets_the_open_options_of_any_method() -> None:
    assert isinstance(Tuned(), Adjustable)
    result = asgld.minimize(lambda x: 50.0 * saddle(x), torch.zeros(2), method=Tuned(lr=1e9))
    assert result.success
    assert result.options["lr"] == pytest.approx(1.0 / 100.0, rel=0.1)
    given = Tuned(options={"lr": 0.003}, lr=0.003)
    assert asgld.minimize(saddle, torch.zeros(2), method=given).options["lr"] == 0.003


def test_table_of_methods_can_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = method_names()
    monkeypatch.setitem(METHODS, "plain", Plain)
    assert method_names() == [*names, "plain"]
    assert "plain" in METHODS
    assert asgld.minimize(saddle, torch.zeros(2), method="plain", lr=0.2).success
    with pytest.raises(ValueError, match=r"method='adamw'.*plain"):
        method("adamw")
    with pytest.raises(TypeError, match=r"unknown option 'beta9' of method 'adam'.*beta1"):
        method("adam", beta9=1.0)


def test_import_loads_few_modules_and_no_rival() -> None:
    code = """
import json, sys
import asgld
ours = lambda: [name for name in sys.modules if name.split(".")[0] == "asgld"]
at_import = ours()
asgld.methods.method_names(), asgld.minimize, asgld.Result
print(json.dumps([at_import, ours(), sorted(set(asgld.__all__) - set(dir(asgld)))]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    at_import, after, missing = json.loads(done.stdout)
    assert len(at_import) <= 35
    assert not [name for name in after if name.startswith("asgld.methods.rivals")]
    assert not missing


def test_unknown_names_of_the_package_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = asgld.no_such_name  # type: ignore[attr-defined]
    assert asgld.minimize is sys.modules["asgld._minimize"].minimize
