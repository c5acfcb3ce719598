"""FastCubic and the two methods of Carmon and co-authors: steps, certificates, cost."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from method_cases import method_by_theory
from torch import Tensor

from asgld.methods.rivals.hessian_vector import CarmonAccelerated, CarmonCubic, FastCubic
from asgld.methods.rivals.shared import HessianVectorMethod, hessian_at, lowest_curvature
from asgld.methods.rivals.subproblem import cubic_exact
from asgld.methods.torch import TorchMethod
from asgld.oracle import Oracle
from asgld.problems import Problem, problem
from asgld.run import Run, run
from asgld.run.stopping import Stop

FLOAT = torch.float64
METHODS: dict[str, type[Any]] = {
    kind.name: kind for kind in (FastCubic, CarmonAccelerated, CarmonCubic)
}
# Smoothness 11, Hessian-Lipschitz constant 12, minimum -1/4.
SADDLES = {
    "aligned": problem("strict-saddle", dim=10),
    "rotated": problem("strict-saddle", dim=10, rotated=True, num_negative=2, condition=4.0),
}


class Quadratic:
    """g'x + x'Hx/2 with H given in full, or by its diagonal."""

    num_samples = None

    def __init__(self, hessian: Tensor, gradient: Tensor | float = 0.0) -> None:
        self.hessian_matrix, self.dim = hessian, len(hessian)
        self.gradient = gradient + torch.zeros(self.dim, dtype=FLOAT)

    def product(self, v: Tensor) -> Tensor:
        matrix = self.hessian_matrix
        return matrix * v if matrix.dim() == 1 else v @ matrix

    def value(self, x: Tensor) -> Tensor:
        return (x * (self.gradient + 0.5 * self.product(x))).sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        return self.gradient + self.product(x)

    def hvp(self, x: Tensor, v: Tensor) -> Tensor:
        return self.product(v)


def proved(name: str, f: Problem, x0: Tensor, *, eps: float, **replaced: float) -> Any:
    """A method with the constants that the problem states, or others where given."""
    facts = f.facts
    constants = {
        "smoothness": facts.smoothness,
        "hessian_lipschitz": facts.hessian_lipschitz,
        "gap": float(f.value(x0)) - (facts.minimum or 0.0) + 0.1,
        **replaced,
    }
    gamma = math.sqrt(constants["hessian_lipschitz"] * eps)
    return method_by_theory(name, eps=eps, gamma=gamma, dim=f.dim, **constants)


def check_second_order(f: Problem, result: Run, method: HessianVectorMethod) -> None:
    x = result.x[0]
    assert result.stop is Stop.FINISHED, result.messages
    assert float(f.grad(x).norm()) <= method.eps
    smallest = float(torch.linalg.eigvalsh(f.hessian(x))[0])
    assert smallest >= -math.sqrt(method.hessian_lipschitz * method.eps)


# ------------------------------------------------------------------------------------ every method


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("place", SADDLES)
def test_methods_leave_the_exact_saddle_and_finish_at_a_minimum(name: str, place: str) -> None:
    f = SADDLES[place]
    x0 = torch.zeros(f.dim, dtype=FLOAT)
    method = proved(name, f, x0, eps=1e-2)
    result = run(Oracle(f), method, x0, max_steps=2000)
    check_second_order(f, result, method)
    assert float(result.values[0]) == pytest.approx(f.facts.minimum, abs=1e-4)
    used = set(result.counts.total()) - {"samples", "gradient_equivalents"}
    assert used == method.needs == {"grad", "hvp"}


@pytest.mark.parametrize("name", METHODS)
def test_methods_pass_all_saddles_of_the_octopus(name: str) -> None:
    f = problem("octopus", dim=3)
    x0 = f.facts.saddles[0].point
    # The stated constants hold in the whole box; along the path these suffice.
    method = proved(name, f, x0, eps=3e-2, smoothness=20.0, hessian_lipschitz=10.0)
    result = run(Oracle(f), method, x0, max_steps=3000)
    check_second_order(f, result, method)
    assert float(result.values[0]) == pytest.approx(f.facts.minimum, abs=1e-3)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("factorization", {"size": 3, "rank": 1, "spectrum": (2.0, 1.0)}),
        ("phase-retrieval", {"dim": 3}),
        ("mixture", {"dim": 4}),
        ("orthogonal-tensor", {"dim": 3}),
    ],
)
def test_methods_solve_learning_problems_from_a_saddle(
    name: str, task: str, options: dict[str, Any]
) -> None:
    f = problem(task, **options)
    x0 = next(s.point for s in f.facts.saddles if s.is_strict)
    method = proved(name, f, x0, eps=2e-2, smoothness=10.0, hessian_lipschitz=10.0)
    result = run(Oracle(f), method, x0, max_steps=3000)
    check_second_order(f, result, method)
    assert float(result.values[0]) == pytest.approx(f.facts.minimum, abs=1e-3)


@pytest.mark.parametrize("name", METHODS)
def test_methods_finish_at_once_where_they_start_at_a_minimum(name: str) -> None:
    f = SADDLES["aligned"]
    assert f.facts.minimizers is not None
    minimizer = f.facts.minimizers[0]
    method = proved(name, f, minimizer, eps=1e-2)
    result = run(Oracle(f), method, minimizer, max_steps=10)
    assert result.stop is Stop.FINISHED
    assert result.steps[0] == 1
    torch.testing.assert_close(result.x[0], minimizer, rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_methods_never_take_a_saddle_for_a_minimum(name: str) -> None:
    """The chance of a miss is at most 1e-3 for each of 15 starts. lambda_min is -1.5 gamma."""
    saddle = Quadratic(torch.linspace(-0.15, 1.0, 40, dtype=FLOAT))
    method: Any = METHODS[name](hessian_lipschitz=1.0, eps=1e-2)
    for seed in range(15):
        oracle = Oracle(saddle)
        state = method.init(oracle, torch.zeros(40, dtype=FLOAT), seed=seed)
        moved = method.step(oracle, state)
        assert not moved.finished
        assert float(saddle.value(moved.x)) < 0.0


@pytest.mark.parametrize("name", ["fast-cubic", "carmon-accelerated"])
def test_methods_stop_at_a_saddle_only_if_the_tolerance_says_so(name: str) -> None:
    f = SADDLES["aligned"]
    x0 = torch.zeros(f.dim, dtype=FLOAT)
    # sqrt(rho eps) is 4.9, the saddle has curvature -1.
    blind = METHODS[name](hessian_lipschitz=12.0, eps=2.0)
    result = run(Oracle(f), blind, x0, max_steps=1)
    has_moved = bool(result.x.any())
    # FastCubic takes the step whose model decides; the other decides by the curvature alone.
    assert has_moved == (name == "fast-cubic")
    assert (result.stop is Stop.FINISHED) == (name == "carmon-accelerated")


def test_gradient_descent_stays_at_the_saddle() -> None:
    f = SADDLES["rotated"]
    descent = TorchMethod("gd", torch.optim.SGD, {"lr": 1.0 / 11.0})
    result = run(Oracle(f), descent, torch.zeros(f.dim), max_steps=2000)
    assert not result.x.any()


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_functions_of_the_seed(name: str) -> None:
    f = SADDLES["rotated"]
    x0 = torch.zeros(f.dim, dtype=FLOAT)
    method = proved(name, f, x0, eps=1e-2)
    first, again, other = (
        run(Oracle(f), method, x0, max_steps=3, seed=seed).x for seed in (5, 5, 6)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    # Chance is a function of the number of steps as well, so that a miss is not repeated.
    oracle = Oracle(f)
    state = method.init(oracle, x0, seed=5)
    late = dataclasses.replace(state, step=7)
    assert not torch.equal(method.step(oracle, state).x, method.step(oracle, late).x)
    assert method.step(oracle, late).step == 8


@pytest.mark.parametrize(
    ("name", "break_at", "steps"),
    [
        ("fast-cubic", 2, 5),
        ("carmon-cubic", 2, 5),
        ("carmon-accelerated", 2, 60),
        ("carmon-accelerated", 40, 60),  # in the middle of an accelerated phase
    ],
)
def test_methods_resume_with_the_same_bits(
    name: str, break_at: int, steps: int, tmp_path: Path
) -> None:
    f = SADDLES["rotated"]
    x0 = torch.zeros(f.dim, dtype=FLOAT)
    method = proved(name, f, x0, eps=1e-2)
    straight = run(Oracle(f), method, x0, max_steps=steps)
    path = tmp_path / "checkpoint"
    run(Oracle(f), method, x0, max_steps=break_at, checkpoint=path)
    resumed = run(Oracle(f), method, x0, max_steps=steps, checkpoint=path)
    assert torch.equal(straight.x, resumed.x)
    assert straight.counts.total() == resumed.counts.total()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("broken", ["grad", "hvp"])
def test_methods_end_at_the_last_finite_point(name: str, broken: str) -> None:
    class Cliff(Quadratic):
        """Falls off to both sides and is undefined from 0.3 on."""

        def guarded(self, kind: str, x: Tensor, result: Tensor) -> Tensor:
            is_out = (x.norm(dim=-1) > 0.3) & (kind == broken)
            return torch.where(is_out[..., None], torch.nan, result)

        def grad(self, x: Tensor) -> Tensor:
            return self.guarded("grad", x, super().grad(x))

        def hvp(self, x: Tensor, v: Tensor) -> Tensor:
            return self.guarded("hvp", x, super().hvp(x, v))

    cliff = Cliff(torch.tensor([-1.0, 1.0, 2.0], dtype=FLOAT))
    method = METHODS[name](hessian_lipschitz=8.0, eps=1e-2)
    result = run(Oracle(cliff), method, torch.zeros(3), max_steps=100)
    assert result.stop is Stop.NON_FINITE
    assert broken in result.messages[0]
    assert bool(torch.isfinite(result.x).all())


def test_methods_keep_to_the_budget() -> None:
    f = SADDLES["aligned"]
    for kind in METHODS.values():
        result = run(Oracle(f, budget=50.0), kind(hessian_lipschitz=12.0), f.start(), max_steps=999)
        assert result.stop is Stop.BUDGET
        assert result.counts.spent[0] <= 50.0


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        *((name, "hessian_lipschitz", 0.0) for name in METHODS),
        *((name, "eps", math.inf) for name in METHODS),
        *((name, "failure", 1.0) for name in METHODS),
        ("fast-cubic", "solve_tol", 1.0),
        ("fast-cubic", "stop_constant", 0.0),
        ("carmon-accelerated", "smoothness", -1.0),
        ("carmon-accelerated", "gamma", 0.0),
        ("carmon-cubic", "smoothness", math.nan),
        ("carmon-cubic", "decrease", 0.0),
        ("carmon-cubic", "perturbation", 0.0),
        ("carmon-cubic", "inner_steps", 0),
    ],
)
def test_methods_reject_options_by_name(name: str, option: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{option}={value}: need"):
        METHODS[name](**{option: value})


# ------------------------------------------------------------------------------------ curvature


def test_lowest_curvature_misses_no_more_often_than_it_says() -> None:
    """Null: a miss has probability at most 0.05. 400 starts: at most 42 misses (5 sigma)."""
    f = Quadratic(torch.cat((torch.tensor([-1.0]), torch.linspace(0.0, 1.0, 299))).to(FLOAT))
    generator = torch.Generator().manual_seed(1)
    misses, products = 0, 0
    for _ in range(400):
        start = torch.randn(f.dim, generator=generator, dtype=FLOAT)
        hessian = hessian_at(Oracle(f), torch.zeros(f.dim, dtype=FLOAT))
        curvature, vector = lowest_curvature(hessian, start, accuracy=0.5, failure=0.05)
        assert float(vector @ f.hvp(vector, vector)) == pytest.approx(curvature, abs=1e-12)
        misses += curvature > -0.5
        products += hessian.num_hvp
    assert misses <= 42
    assert products / 400 < 15  # it does stop early


# ------------------------------------------------------------------------------------ fast-cubic


def _random_model(i: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A Hessian and a gradient; every fifth model is convex, every fourth hard, some have g = 0."""
    square = torch.randn(20, 20, generator=generator, dtype=FLOAT)
    hessian = (square + square.T) / (2.0 * math.sqrt(20.0))
    if i % 5 == 0:
        hessian = hessian @ hessian
    size = 10.0 ** float(6.0 * torch.rand((), generator=generator) - 4.0)
    gradient = size * torch.randn(20, generator=generator, dtype=FLOAT)
    if i % 4 == 1:
        lowest = torch.linalg.eigh(hessian)[1][:, 0]
        gradient = gradient - lowest * (lowest @ gradient)
    return hessian, gradient * (i % 8 != 2)


def test_fast_cubic_minimizes_the_model() -> None:
    generator = torch.Generator().manual_seed(0)
    method = FastCubic(hessian_lipschitz=2.0, eps=1e-3)
    num_hard = 0
    for i in range(80):
        hessian, gradient = _random_model(i, generator)
        exact = cubic_exact(gradient, hessian, 2.0)
        oracle = Oracle(Quadratic(hessian, gradient))
        state = method.init(oracle, torch.zeros(20, dtype=FLOAT), seed=i)
        found = method.minimize_model(oracle, state)
        s = found.step
        model = gradient @ s + 0.5 * s @ hessian @ s + s.norm() ** 3 / 3.0
        assert float(-model) == pytest.approx(found.model_decrease, rel=1e-9, abs=1e-14)
        assert 0.9999 * exact.model_decrease <= found.model_decrease
        assert found.model_decrease <= exact.model_decrease * (1.0 + 1e-9)
        assert found.num_hvp == oracle.counts.total().get("hvp", 0) <= 42
        num_hard += exact.is_hard_case
    assert num_hard >= 15


def test_fast_cubic_takes_products_like_the_fourth_root_of_eps() -> None:
    used = []
    for eps in (1e-1, 1e-2, 1e-3):
        spectrum = torch.linspace(-math.sqrt(eps), 1.0, 1500, dtype=FLOAT)
        oracle = Oracle(Quadratic(spectrum, eps / math.sqrt(1500.0)))
        method = FastCubic(eps=eps, solve_tol=1e-3)
        state = method.init(oracle, torch.zeros(1500, dtype=FLOAT), seed=0)
        used.append(method.minimize_model(oracle, state).num_hvp)
    slopes = [math.log10(after / before) for before, after in pairwise(used)]
    assert all(0.05 < slope < 0.25 for slope in slopes), used
    assert used[-1] < 600


@pytest.mark.parametrize("place", SADDLES)
def test_fast_cubic_lowers_f_by_what_the_model_says(place: str) -> None:
    f = SADDLES[place]
    method = FastCubic(hessian_lipschitz=12.0, eps=1e-3)
    for seed in range(2):
        oracle = Oracle(f)
        state = method.init(oracle, f.start(seed=seed), seed=seed)
        while not state.finished:
            decrease = method.minimize_model(oracle.free(), state).model_decrease
            moved = method.step(oracle, state)
            assert float(f.value(moved.x)) <= float(f.value(state.x)) - decrease + 1e-14
            state = moved
        assert decrease < 1e-3**1.5 / (2.4e6 * math.sqrt(12.0))


def test_fast_cubic_stops_sooner_with_a_smaller_constant() -> None:
    f, steps = SADDLES["rotated"], []
    for constant in (800.0, 2.4e6, 1e13):
        method = FastCubic(hessian_lipschitz=12.0, eps=1e-2, stop_constant=constant)
        steps.append(run(Oracle(f), method, f.start(), max_steps=99).steps[0])
    assert steps[0] < steps[1] < steps[2]


# ---------------------------------------------------------------------------- carmon-accelerated


def test_accelerated_curvature_steps_lower_f_by_the_guarantee() -> None:
    num_steps = 0
    for place, seed in ((p, s) for p in SADDLES for s in range(4)):
        f, oracle = SADDLES[place], Oracle(SADDLES[place])
        method = CarmonAccelerated(smoothness=11.0, hessian_lipschitz=12.0, eps=1e-2)
        start = 0.3 * f.start(seed=seed) if seed else torch.zeros(f.dim, dtype=FLOAT)
        state = method.init(oracle, start, seed=seed)
        while True:
            moved = method.step(oracle, state)
            if moved.is_accelerating or moved.finished:
                break
            s = moved.x - state.x
            length = float(s.norm())
            curvature = float(s @ f.hvp(state.x, s)) / length**2
            assert curvature <= -0.5 * method.curvature_tol
            assert length == pytest.approx(2.0 * abs(curvature) / 12.0)
            decrease = float(f.value(state.x) - f.value(moved.x))
            assert decrease >= 2.0 / 3.0 * abs(curvature) ** 3 / 12.0**2 - 1e-15
            num_steps += 1
            state = moved
    assert num_steps > 20


def test_accelerated_leaves_a_saddle_to_both_sides() -> None:
    """Null: both signs are equally likely. 100 seeds: 50 +- 25 positive ones (5 sigma)."""
    f = SADDLES["aligned"]
    method = CarmonAccelerated(smoothness=11.0, hessian_lipschitz=12.0, eps=1e-2)
    x0 = torch.zeros(f.dim, dtype=FLOAT)
    signs = []
    for seed in range(100):
        oracle = Oracle(f)
        signs.append(bool(method.step(oracle, method.init(oracle, x0, seed=seed)).x[0] > 0.0))
    assert 25 <= sum(signs) <= 75


def test_accelerated_phases_lower_f() -> None:
    f = SADDLES["rotated"]
    oracle = Oracle(f)
    method = CarmonAccelerated(smoothness=11.0, hessian_lipschitz=12.0, eps=1e-2)
    state = method.init(oracle, f.start(seed=3), seed=0)
    value, num_phases = float(f.value(state.x)), 0
    while not state.finished:
        was_accelerating = state.is_accelerating
        state = method.step(oracle, state)
        if was_accelerating and not state.is_accelerating:
            assert float(f.value(state.x)) < value
            # Only the penalty can hold against the gradient outside the ball.
            outside = (float(f.grad(state.x).norm()) + 0.5 * method.eps) / (2.0 * 11.0)
            reach = method.curvature_tol / 12.0 + outside
            assert float((state.x - state.anchor).norm()) <= reach
            num_phases += 1
        if not state.is_accelerating:
            value = float(f.value(state.x))
    assert num_phases > 3


def test_accelerated_needs_gradients_like_the_root_of_the_condition_number() -> None:
    used = []
    for gamma in (1e-1, 1e-2):
        f = Quadratic(torch.logspace(math.log10(gamma), 0.0, 30, dtype=FLOAT))
        method = CarmonAccelerated(
            smoothness=1.0, hessian_lipschitz=1e-3 * gamma, eps=1e-3 * gamma, gamma=gamma
        )
        result = run(Oracle(f), method, torch.ones(30), max_steps=8000)
        assert result.stop is Stop.FINISHED
        total = result.counts.total()
        used.append(total["grad"])
        # Two searches for negative curvature, at the start and at the end: no step along any.
        assert total["hvp"] <= 2 * 30
    # sqrt(10) = 3.2 times a logarithm; gradient descent would need 10 times as many.
    assert used[1] / used[0] < 5.0


def test_accelerated_cost_grows_no_faster_than_its_bound() -> None:
    spent = []
    for eps in (1e-1, 1e-2, 1e-3):
        f = problem("octopus", dim=1, eps=eps, tau=1.0)
        method = CarmonAccelerated(
            smoothness=20.0, hessian_lipschitz=10.0, eps=eps, gamma=math.sqrt(eps)
        )
        result = run(Oracle(f), method, torch.zeros(1), max_steps=5000)
        assert result.stop is Stop.FINISHED
        spent.append(float(result.counts.spent[0]))
    slopes = [math.log10(after / before) for before, after in pairwise(spent)]
    assert all(0.0 < slope <= 1.75 for slope in slopes), spent


# ------------------------------------------------------------------------------------ carmon-cubic


def test_cubic_steps_lower_f_by_the_guarantee() -> None:
    f = SADDLES["rotated"]
    method = CarmonCubic(smoothness=11.0, hessian_lipschitz=12.0, eps=1e-2)
    needed = 0.01 * math.sqrt(1e-2**3 / 12.0)
    for seed in range(4):
        oracle = Oracle(f)
        start = f.start(seed=seed) if seed else torch.zeros(f.dim, dtype=FLOAT)
        state = method.init(oracle, start, seed=seed)
        for _ in range(5):
            moved = method.step(oracle, state)
            assert not moved.finished
            assert float(f.value(moved.x)) <= float(f.value(state.x)) - needed
            state = moved


def test_cubic_last_descent_reaches_the_tolerance() -> None:
    f = Quadratic(torch.tensor([0.5, 1.0], dtype=FLOAT))
    oracle = Oracle(f)
    # No step lowers the model by that much, so that the first one is the last.
    method = CarmonCubic(smoothness=1.0, hessian_lipschitz=1.0, eps=1e-2, decrease=1e6)
    x0 = torch.full((2,), 0.1, dtype=FLOAT)
    state = method.step(oracle, method.init(oracle, x0, seed=0))
    assert state.finished
    s = state.x - x0
    assert 0.0 < float((f.grad(state.x) + 0.5 * s.norm() * s).norm()) <= 0.5e-2
