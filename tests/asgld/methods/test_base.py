"""The protocols of methods, the table of methods by name, and what an import loads."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from torch import Tensor

import asgld
from asgld.diagnostics.calibration import start_options
from asgld.methods import (
    LBFGS,
    METHODS,
    Adjustable,
    FitsItself,
    KnowsItsNoise,
    Method,
    SeededState,
    Surroundings,
    TorchMethod,
    langevin,
    method,
    method_names,
    normals,
)
from asgld.methods.rivals.first_order import PerturbedGD
from asgld.methods.torch import LANGEVIN
from asgld.oracle import Oracle
from asgld.oracle.functions import torch_function
from asgld.run import run


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


_FINDS_ITS_SCALE = ("lbfgs", "prox-gd", "fista")


@pytest.mark.parametrize("name", METHODS)
def test_methods_have_the_protocols_that_they_should(name: str) -> None:
    made = method(name)
    assert isinstance(made, Method)
    assert made.name == name
    assert isinstance(made, KnowsItsNoise)
    if name not in _FINDS_ITS_SCALE:
        assert isinstance(made, Adjustable)
        assert isinstance(made, FitsItself) == (name not in LANGEVIN)


# Scales of one function, in its own units and after f and x were multiplied.
HERE = Surroundings(20.0, 4.0, 3.0, 5.0, 2.0, 4, 1e-3, 0.2)


def scaled(around: Surroundings, of_f: float, of_x: float) -> Surroundings:
    return Surroundings(
        around.curvature * of_f / of_x**2,
        around.max_square * (of_f / of_x) ** 2,
        around.hessian_lipschitz * of_f / of_x**3,
        around.fall * of_f,
        around.length * of_x,
        around.dim,
        around.eps * of_f / of_x,
        around.gamma * of_f / of_x**2,
    )


# lbfgs starts with a step of length 1, the acceptance of trace may not pass 1, and scipy's solver
# inside trust-krylov has absolute tolerances.
_HAS_UNITS = (*_FINDS_ITS_SCALE, "trace", "trust-krylov")


@pytest.mark.parametrize("name", [n for n in METHODS if n not in (*LANGEVIN, *_FINDS_ITS_SCALE)])
def test_rivals_fit_open_options_and_keep_those_given(name: str) -> None:
    made = method(name)
    assert isinstance(made, FitsItself)
    options = start_options(made, HERE, HERE.dim)
    assert made.open_options <= options.keys()
    assert made.open_options
    fitted = made.with_options(options)
    assert not fitted.open_options
    assert {key: fitted.knobs[key] for key in options} == options
    for chosen in made.open_options - {"batch_size"}:
        value = made.knobs[chosen] or 0.5
        kept = method(name, **{chosen: value})
        assert isinstance(kept, FitsItself)
        assert chosen not in kept.open_options
        assert start_options(kept, HERE, HERE.dim)[chosen] == value


@pytest.mark.parametrize("name", [n for n in METHODS if n not in _HAS_UNITS])
@pytest.mark.parametrize(("of_f", "of_x"), [(1e6, 1.0), (1e-6, 1.0), (1.0, 1e3), (1.0, 1e-3)])
def test_fitted_methods_do_not_depend_on_units(name: str, of_f: float, of_x: float) -> None:
    """The first steps on f and on of_f * f(x / of_x) are the same, in their units."""

    def f(x: Tensor) -> Tensor:
        return (20 * x[0] ** 2 - x[1] ** 2 + x[1] ** 4 / 4 + torch.cos(x).sum()) / 2

    x0 = torch.tensor([0.7, 0.3, -0.4, 0.2], dtype=torch.float64)
    ends = []
    for a, b in ((1.0, 1.0), (of_f, of_x)):
        made = method(name)
        assert isinstance(made, Adjustable)
        fitted = made.with_options(start_options(made, scaled(HERE, a, b), 4))
        function = torch_function(lambda x, a=a, b=b: a * f(x / b), dim=4)
        steps = 110 if name == "natasha2" else 7  # it searches for a hundred steps first
        ends.append(run(Oracle(function), fitted, b * x0, max_steps=steps).x[0] / b)
    assert not torch.equal(ends[0], x0)
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-5, atol=1e-7)


def test_an_object_knows_which_of_its_options_were_given() -> None:
    rival = PerturbedGD(0.1, wait=30.0)
    assert rival.options == {"lr": 0.1, "wait": 30.0}
    assert rival.open_options == {"radius", "grad_threshold", "value_threshold"}
    assert copy.deepcopy(rival).options == rival.options
    assert pickle.loads(pickle.dumps(rival)).options == rival.options
    assert rival == PerturbedGD(0.1, wait=30.0)


def test_a_range_stays_one_when_half_of_it_was_given() -> None:
    for given, length in (({"radius": 900.0}, 1e-3), ({"max_radius": 1.5}, 1e3)):
        made = method("trust-exact", **given)
        assert isinstance(made, FitsItself)
        options = start_options(made, replace(HERE, length=length), HERE.dim)
        assert options["radius"] <= options["max_radius"]
        made.with_options(options)


@pytest.mark.parametrize("name", ["neon", "lbfgs", "trust-exact", "agld", "gd"])
def test_an_unknown_option_is_named_with_those_known(name: str) -> None:
    with pytest.raises(TypeError, match=rf"unknown option 'bogus' of method '{name}'"):
        method(name, bogus=1.0)


class Named(torch.optim.SGD):
    """An optimizer that takes named parameters and nothing else."""

    def __init__(self, named: list[tuple[str, Tensor]], lr: float = 0.1) -> None:
        super().__init__([tensor for _, tensor in named], lr=lr)


@pytest.mark.parametrize(
    "made",
    [
        TorchMethod("network", asgld.NetworkASGLD),
        TorchMethod("psgld", asgld.PSGLD, {"lr": 0.01}),
        TorchMethod("named", Named),
        TorchMethod(
            "muon",
            lambda p, **o: torch.optim.Muon([p[0].view(2, 3)], **o),
            {"lr": 0.05, "weight_decay": 0.0},
            is_batched=False,
        ),
    ],
    ids=lambda made: made.name,
)
def test_any_torch_optimizer_is_a_method(made: TorchMethod, tmp_path: Path) -> None:
    def f(x: Tensor) -> Tensor:
        return (x - 1.0).square().sum()

    def go(steps: int, **options: Any) -> Any:
        oracle = Oracle(torch_function(f, dim=6))
        return run(oracle, made, torch.zeros(2, 6), max_steps=steps, **options)

    straight = go(60)
    assert bool((straight.values < 6.0).all())
    if made.name != "muon":  # a checkpoint knows its method by the text of it, a lambda has none
        go(30, checkpoint=tmp_path / "run")
        assert torch.equal(go(60, checkpoint=tmp_path / "run").x, straight.x)
    assert asgld.minimize(f, torch.zeros(6), method=made).fun < 1e-2


def test_presets_tell_noise_and_open_options_of_their_own() -> None:
    network, psgld = (TorchMethod("x", kind) for kind in (asgld.NetworkASGLD, asgld.PSGLD))
    assert network.open_options == {"lr"}
    assert psgld.open_options == {"lr", "sigma"}
    assert (network.has_noise, network.anneals) == (True, True)
    assert (psgld.has_noise, psgld.anneals) == (True, False)
    assert not TorchMethod("x", asgld.NetworkASGLD, {"noise": 0.0}).has_noise


def test_an_optimizer_that_needs_a_matrix_says_so() -> None:
    muon = TorchMethod("muon", torch.optim.Muon, is_batched=False)
    oracle = Oracle(torch_function(lambda x: x.square().sum(), dim=6))
    with pytest.raises(TypeError, match=r"Muon.*matrix.*\(6,\).*view"):
        run(oracle, muon, torch.ones(6), max_steps=1)
    with pytest.raises(ValueError, match="learning rate"):  # what the optimizer itself says
        run(oracle, TorchMethod("adam", torch.optim.Adam, {"lr": -1.0}), torch.ones(6), max_steps=1)


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


def test_what_a_method_may_tell_of_itself_is_public() -> None:
    protocols = {
        name
        for name, kind in vars(asgld.methods.base).items()
        if getattr(kind, "_is_protocol", False) and kind.__module__ == "asgld.methods.base"
    }
    assert {"KnowsItsNoise", "KnowsProx"} <= protocols
    assert protocols <= set(asgld.methods.__all__)
