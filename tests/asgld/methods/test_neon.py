"""NEON: negative curvature from differences of gradients."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from method_cases import CONSTANTS, FAST, assert_second_order, go, method_by_theory, saddle_of
from torch import Tensor

from asgld.methods.rivals.neon import Neon
from asgld.methods.rivals.shared import norm
from asgld.oracle import Oracle
from asgld.oracle.functions import torch_function
from asgld.problems import Problem, problem
from asgld.run import run
from asgld.run.stopping import Stop


def quadratic(seed: int, lowest: float, dim: int = 20) -> tuple[Problem, Tensor]:
    """x'Hx/2 with eigenvalue `lowest` and the others in [0, 1], and the matrix H."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))[0]
    values = torch.rand(dim, generator=generator, dtype=torch.float64)
    values[0] = lowest
    hessian = basis * values @ basis.T
    f: Any = torch_function(lambda x: 0.5 * x @ hessian @ x, dim=dim)
    return f, hessian


def test_neon_search_is_power_iteration_and_finds_the_direction() -> None:
    f, hessian = quadratic(0, -0.5)
    lowest = torch.linalg.eigh(hessian)[1][:, 0]
    method = Neon(lr=1.0, gamma=0.5, hessian_lipschitz=1.0, reach=1.0, radius=1e-5, max_search=99)
    oracle = Oracle(f)
    state = method.init(oracle, torch.zeros(3, 20, dtype=torch.float64), seed=0)
    state = method.step(oracle, state)
    torch.testing.assert_close(norm(state.offset), torch.full((3,), 1e-5, dtype=torch.float64))
    power = state.offset.clone()
    for _ in range(20):
        state = method.step(oracle, state)
        power = power - power @ hessian
        relative = norm(state.offset - power) / norm(power)
        assert float(relative.max()) < 1e-6
    steps = 21
    while bool((state.age >= 0).any()):
        before = dataclasses.replace(state)
        state = method.step(oracle, state)
        found = (before.age >= 0) & (state.age < 0)
        if bool(found.any()):
            cosine = (before.offset @ lowest).abs() / norm(before.offset)
            assert float(cosine[found].min()) > 1 - 2e-8
            # The step has length 2 |q| / rho along that direction.
            moved = norm(state.x - before.x)[found]
            torch.testing.assert_close(moved, torch.full_like(moved, 1.0), atol=1e-6, rtol=0)
        steps += 1
    # ln(10^5 sqrt(20)) / ln(1.5) = 32: a search is as long as the growth it needs.
    assert 25 < steps < 45


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_neon_returns_a_minimum_for_every_seed(momentum: float) -> None:
    f, _ = quadratic(1, 0.05)
    method = Neon(lr=0.9, gamma=0.1, momentum=momentum)
    for seed in range(5):
        x0 = torch.zeros(20, 20, dtype=torch.float64)
        result = run(Oracle(f), method, x0, max_steps=200, seed=seed, record=FAST)
        assert set(result.stops) == {Stop.FINISHED}
        assert torch.equal(result.x, x0)


def test_neon_steps_lower_f_by_what_curvature_guarantees() -> None:
    # f falls by (2/3) |q|^3 / rho^2 at least; at an exact saddle for either sign.
    f = problem("strict-saddle", dim=10, rotated=True)
    rho = f.facts.hessian_lipschitz
    assert rho is not None
    method = Neon(lr=0.1, gamma=0.9, hessian_lipschitz=rho)
    oracle = Oracle(f)
    state = method.init(oracle, saddle_of(f, 40), seed=1)
    moved = torch.zeros(40, dtype=torch.bool)
    num_along = 0
    while not bool(moved.all()):
        before, direction = state.x.clone(), state.offset.clone()
        state = method.step(oracle, state)
        step = state.x - before
        new = (norm(step) > 0) & ~moved
        q = norm(step) * rho / 2
        fall = f.value(before) - f.value(state.x)
        assert bool((fall >= 2 / 3 * q**3 / rho**2)[new].all())
        assert bool((q >= 0.45)[new].all())
        num_along += int(((step * direction).sum(-1) > 0)[new].sum())
        moved |= new
    # Null: signs are fair coins; 40 of them, 5 sigma.
    assert abs(num_along - 20) < 5 * math.sqrt(40) / 2


def test_neon_leaves_curvature_alone_that_is_weaker_than_asked_for() -> None:
    f, _ = quadratic(3, -0.03)
    x0 = torch.zeros(5, 20, dtype=torch.float64)
    for gamma, is_moved in ((0.1, False), (0.04, True)):
        method = Neon(lr=0.9, gamma=gamma, max_search=400)
        result = run(Oracle(f), method, x0, max_steps=402, record=FAST)
        assert bool((norm(result.x) > 0).all()) == is_moved
        assert bool((norm(result.x) > 0).any()) == is_moved


def test_neon_takes_both_gradients_over_the_same_batch() -> None:
    # Samples differ by a linear term, which cancels if and only if the batch is the same.
    f = problem("strict-saddle", dim=10, num_samples=200, noise=1.0)
    method = Neon(lr=0.1, gamma=0.9, hessian_lipschitz=12.0, grad_threshold=5.0, batch_size=4)
    oracle = Oracle(f)
    state = method.init(oracle, saddle_of(f, 20), seed=2)
    before = state.x.clone()
    while float(norm(state.x - before).min()) == 0.0:
        start = state.x.clone()
        state = method.step(oracle, state)
        new = norm(state.x - start) > 0
        step = (state.x - start)[new]
        if bool(new.any()):
            assert float((step[:, 0].abs() / norm(step)).min()) > 0.99
            before[new] = math.inf  # seen
    assert oracle.counts.total()["sample_grad"] > 0


def test_neon_momentum_shortens_the_search() -> None:
    f, _ = quadratic(2, -0.01)
    steps = {}
    for momentum in (0.0, 0.9):
        method = Neon(lr=0.9, gamma=0.01, momentum=momentum, max_search=5000)
        oracle = Oracle(f)
        state = method.init(oracle, torch.zeros(1, 20, dtype=torch.float64), seed=0)
        count = 0
        while float(norm(state.x)) == 0.0:
            state = method.step(oracle, state)
            assert not bool(torch.as_tensor(state.finished).any())
            count += 1
        steps[momentum] = count
    # Growth per step: 1 + 0.009 against about 1 + 0.6 (0.009)^(1/2).
    assert steps[0.9] < 0.25 * steps[0.0]


def test_neon_value_test_proves_what_it_says() -> None:
    f = problem("strict-saddle", dim=10)
    constants = {**CONSTANTS, "gamma": 1.0, "dim": 10}
    method = method_by_theory("neon", **constants, failure=1e-3)
    assert isinstance(method, Neon)
    assert method.needs == {"grad", "value"}
    # The certificate: curvature below -(5 F - rho U^3 / 3) / U^2, which must be negative.
    reach, rho = method.search_reach, method.hessian_lipschitz
    bound = -(5 * method.value_threshold - rho * reach**3 / 3) / reach**2
    assert bound < 0
    result, oracle = go(f, method, saddle_of(f, 3), 8000)
    assert set(result.stops) == {Stop.FINISHED}
    assert set(result.messages) == {
        "the method had nothing more to do: no negative curvature was found"
    }
    assert_second_order(f, result, CONSTANTS["eps"], CONSTANTS["gamma"])
    # Values are by-products of gradients.
    assert "value" not in oracle.counts.total()
