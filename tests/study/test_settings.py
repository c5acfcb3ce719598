"""Settings of the rivals: by theory they are the papers', and both ways give methods."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from method_cases import CONSTANTS, assert_second_order, go, method_by_theory, saddle_of

from asgld.methods import METHODS, Method
from asgld.methods.torch import LANGEVIN, Comparator
from asgld.oracle import Oracle
from asgld.oracle.functions import torch_function
from asgld.problems import problem
from asgld.run import run
from asgld.run.history import Record
from asgld.run.stopping import Stop
from asgld_study.settings import SETTINGS, Proved


def test_every_method_outside_the_family_has_settings() -> None:
    # Methods for penalties have no row of Table 1.
    others = (*LANGEVIN, "asgld-printed", "prox-gd", "fista")
    assert list(SETTINGS) == [name for name in METHODS if name not in others]


@pytest.mark.parametrize("name", SETTINGS)
def test_both_ways_to_tune_give_methods(name: str) -> None:
    """Theory, and either end of every range."""
    setting = SETTINGS[name]
    method = method_by_theory(name, **CONSTANTS)
    assert isinstance(method, Method)
    assert method.name == name
    options = (
        set(method.options)
        if isinstance(method, Comparator)
        else {
            f.name
            for f in dataclasses.fields(method)  # type: ignore[arg-type]
        }
    )
    assert 1 <= len(setting.ranges) <= 4
    assert set(setting.ranges) <= options
    assert all(0.0 < low < high for low, high in setting.ranges.values())
    for end in (0, 1):
        METHODS[name](**{option: bounds[end] for option, bounds in setting.ranges.items()})
    assert all(": " in note or name == "natasha2" for note in setting.unverified)


@pytest.mark.parametrize("name", ["fast-cubic", "carmon-accelerated", "carmon-cubic"])
def test_theory_takes_the_stricter_of_eps_and_gamma(name: str) -> None:
    method = method_by_theory(
        name,
        smoothness=4.0,
        hessian_lipschitz=2.0,
        eps=0.5,
        gamma=0.1,
        dim=10,
        gap=1.0,
        failure=0.2,
    )
    options = dataclasses.asdict(method)
    assert options["hessian_lipschitz"] == 2.0
    assert options.get("smoothness", 4.0) == 4.0
    has_gamma = "gamma" in options
    assert options["eps"] == (0.5 if has_gamma else pytest.approx(0.1**2 / 2.0))
    assert options.get("gamma", 0.1) == 0.1
    assert 0.0 < options["failure"] < 0.2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"eps": 0.0}, "eps=0.0"), ({"failure": 1.0}, "failure=1.0"), ({"gap": -1.0}, "gap=-1.0")],
)
def test_proved_constants_are_checked(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Proved(**{**CONSTANTS, **wrong})


def test_noisy_sgd_theory_keeps_the_floor_below_eps() -> None:
    # On the quadratic with curvature M everywhere the floor of |grad f|^2 is
    # lr M / (2 - lr M) = lr M / 2 to first order, half of what the descent lemma allows: eps^2 / 4.
    # Null: the mean over 800 steps of 20 chains. The squared norm has relative deviation sqrt(2/d)
    # per independent draw, and a draw is forgotten after 1 / (lr M) steps; 5 sigma.
    d, curvature, eps = 4, 2.0, 0.5
    method = method_by_theory(
        "noisy-sgd", **{**CONSTANTS, "smoothness": curvature, "eps": eps, "dim": d}
    )
    f = torch_function(lambda x: 0.5 * curvature * (x**2).sum(), dim=d)
    record = Record("linear", every=10)
    result = run(Oracle(f), method, torch.zeros(20, d), max_steps=1000, record=record)
    floor = float(np.mean(result.history.grad_norms[20:] ** 2))
    draws = 20 * 800 * method.lr * curvature
    expected = method.lr * curvature / (2 - method.lr * curvature)
    assert abs(floor - expected) < 5 * expected * math.sqrt(2 / d / draws)
    assert floor < eps**2 / 2


def test_perturbed_gd_theory_follows_the_paper() -> None:
    # At gamma = sqrt(rho eps) the settings are the paper's, with its constant c = 1.
    m, rho, eps, d, gap, delta = 5.0, 2.0, 0.02, 50, 3.0, 0.05
    method = method_by_theory(
        "perturbed-gd",
        smoothness=m,
        hessian_lipschitz=rho,
        eps=eps,
        gamma=math.sqrt(rho * eps),
        dim=d,
        gap=gap,
        failure=delta,
    )
    chi = 3 * max(math.log(d * m * gap / (eps**2 * delta)), 4)
    assert method.lr == pytest.approx(1 / m)
    assert method.radius == pytest.approx(eps / (chi**2 * m))
    assert method.grad_threshold == pytest.approx(eps / chi**2)
    assert method.value_threshold == pytest.approx(math.sqrt(eps**3 / rho) / chi**3)
    assert method.wait == math.ceil(chi * m / math.sqrt(rho * eps))


def test_perturbed_gd_theory_settings_work() -> None:
    f = problem("strict-saddle", dim=16, rotated=True)
    method = method_by_theory("perturbed-gd", **CONSTANTS)
    result, _ = go(f, method, saddle_of(f, 3), 4000)
    assert set(result.stops) == {Stop.FINISHED}
    assert_second_order(f, result, CONSTANTS["eps"], CONSTANTS["gamma"])


def test_perturbed_agd_theory_follows_the_paper() -> None:
    m, rho, eps, d, gap = 5.0, 2.0, 0.02, 50, 3.0
    gamma = math.sqrt(rho * eps)
    method = method_by_theory(
        "perturbed-agd", smoothness=m, hessian_lipschitz=rho, eps=eps, gamma=gamma, dim=d, gap=gap
    )
    kappa = m / gamma
    chi = max(1, math.log(d * m * gap / (rho * eps * 0.1)))
    assert method.lr == pytest.approx(1 / (4 * m))
    assert method.theta == pytest.approx(1 / (4 * math.sqrt(kappa)))
    assert method.concavity == pytest.approx(method.theta**2 / method.lr)
    assert method.side_step == pytest.approx(method.concavity / (4 * rho))
    assert method.wait == math.ceil(math.sqrt(kappa) * chi)
    assert method.radius == pytest.approx(method.lr * eps / chi**5)
    f = problem("strict-saddle", dim=16, rotated=True)
    result, _ = go(f, method_by_theory("perturbed-agd", **CONSTANTS), torch.zeros(3, 16), 2000)
    assert set(result.stops) == {Stop.FINISHED}
    assert_second_order(f, result, CONSTANTS["eps"], CONSTANTS["gamma"])


def test_neon_theory_follows_the_paper() -> None:
    method = method_by_theory("neon", **CONSTANTS)
    k = Proved(**CONSTANTS)
    eta, m, rho, gamma = method.search_lr, k.smoothness, k.hessian_lipschitz, k.gamma
    assert eta is not None
    log = math.log(k.dim * m / gamma / 0.1)
    f = eta * gamma**3 * m / rho**2 / log**3
    assert method.value_threshold == pytest.approx(f)
    assert method.radius == pytest.approx(math.sqrt(eta / m) * gamma**2 / rho / log**2)
    assert method.reach == pytest.approx(4 * (math.sqrt(eta * m) * f / rho) ** (1 / 3))
    assert method.max_search == math.ceil(log / (eta * gamma))


def test_natasha2_theory_has_both_regimes() -> None:
    """The proximal weight exceeds M for gamma = sqrt(rho eps), is gamma for gamma = eps^(1/4)."""
    eps = 1e-3
    constants = {"smoothness": 1.0, "hessian_lipschitz": 1.0, "dim": 10, "gap": 1.0, "eps": eps}
    small = method_by_theory("natasha2", **constants, gamma=math.sqrt(eps))
    large = method_by_theory("natasha2", **constants, gamma=eps**0.25)
    larger = method_by_theory("natasha2", **constants, gamma=0.9)
    assert small.proximal > 1.0
    assert small.lr == pytest.approx(1.0 / (small.sub_epochs**2 * small.proximal))
    assert large.proximal == pytest.approx(large.gamma)
    assert larger == large
    for method in (small, large):
        assert method.sub_epochs * method.sub_steps >= method.epoch_batch == 10**6
        assert method.oja_lr <= 1.0 / 2.0
    # Samples in all epochs: eps^-3.5 and eps^-3.25.
    for method, power in ((small, 3.5), (large, 3.25)):
        samples = method.max_epochs * method.epoch_batch
        assert samples == pytest.approx(eps**-power, rel=0.2)
