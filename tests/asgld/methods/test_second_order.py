"""Cubic-regularized Newton and TRACE: guarantees of each step, and where runs end."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from asgld.methods.rivals.natasha import Natasha2
from asgld.methods.rivals.second_order import CubicNewton, Trace
from asgld.methods.rivals.subproblem import Eigen, trust_region_exact
from asgld.oracle import Oracle
from asgld.oracle.functions import torch_function
from asgld.problems import Problem, problem
from asgld.run import Run, run
from asgld.run.stopping import Stop, StopWhen

F64 = torch.float64
HESSIAN_METHODS = {
    "adaptive": CubicNewton(),
    "krylov": CubicNewton(solver="krylov"),
    "trace": Trace(),
}
PROBLEMS: dict[str, dict[str, Any]] = {
    "strict-saddle": {"dim": 12, "num_negative": 2, "condition": 10.0},
    "octopus": {"dim": 4},
    "factorization": {"size": 5},
    "sensing": {"size": 4, "num_samples": 60},
    "phase-retrieval": {"dim": 4, "num_samples": 80},
    "orthogonal-tensor": {"dim": 5},
    "deep-linear": {"inputs": 3, "outputs": 2, "hidden": 2, "num_samples": 40},
    "mixture": {"dim": 4, "num_samples": 200},
    "robust-regression": {"dim": 4, "num_samples": 100},
}


def lowest_curvature(f: Problem, x: Tensor) -> float:
    return float(torch.linalg.eigvalsh(f.hessian(x))[0])


def assert_second_order(f: Problem, result: Run, *, eps: float, gamma: float) -> None:
    """The gradient and the curvature; and, no spurious minima being known, the value."""
    for r, x in enumerate(result.x):
        assert float(result.grad_norms[r]) <= eps
        assert lowest_curvature(f, x) >= -gamma
        if f.facts.minimum is not None:
            assert float(result.values[r]) <= f.facts.minimum + 1e-6 + eps


def assert_declared_calls_only(result: Run, method: Any) -> None:
    used = {kind for kind, n in result.counts.calls.items() if n.any()}
    assert used - {"eigh", "subproblem"} <= method.needs


# ------------------------------------------------------------------------------------ both


@pytest.mark.parametrize("solver", HESSIAN_METHODS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_second_order_reaches_a_second_order_point(name: str, solver: str) -> None:
    f, method = problem(name, **PROBLEMS[name]), HESSIAN_METHODS[solver]
    starts = [f.start(seed=1)]
    starts += [saddle.point for saddle in f.facts.saddles[:1] if saddle.is_strict]
    result = run(Oracle(f, replicas=len(starts)), method, torch.stack(starts), max_steps=300)
    assert set(result.stops) == {Stop.FINISHED}
    assert_second_order(f, result, eps=method.eps, gamma=method.gamma)
    assert_declared_calls_only(result, method)


@pytest.mark.parametrize("solver", HESSIAN_METHODS)
def test_second_order_takes_the_same_way_in_any_frame(solver: str) -> None:
    values = []
    for rotated in (False, True):
        f = problem("strict-saddle", dim=10, rotated=rotated)
        result = run(Oracle(f), HESSIAN_METHODS[solver], torch.zeros(10), max_steps=100)
        assert_second_order(f, result, eps=1e-6, gamma=1e-3)
        values.append((int(result.steps[0]), float(result.values[0])))
    assert values[0] == pytest.approx(values[1], rel=1e-9)


@pytest.mark.parametrize("solver", HESSIAN_METHODS)
def test_second_order_stays_and_finishes_at_a_minimum(solver: str) -> None:
    f = problem("strict-saddle", dim=6, rotated=True)
    assert f.facts.minimizers is not None
    result = run(Oracle(f), HESSIAN_METHODS[solver], f.facts.minimizers[0], max_steps=10)
    assert (result.stop, int(result.steps[0])) == (Stop.FINISHED, 1)
    assert torch.equal(result.x, f.facts.minimizers[:1])


def test_second_order_does_not_finish_at_a_saddle_with_small_curvature_only() -> None:
    """gamma is honored: curvature -0.3 is left for gamma = 0.2, and kept for gamma = 0.4."""
    f = problem("strict-saddle", dim=5, gamma=0.3)
    for method in (CubicNewton(gamma=0.2), Trace(gamma=0.2)):
        assert float(run(Oracle(f), method, torch.zeros(5), max_steps=100).values) < -0.01
        still = dataclasses.replace(method, gamma=0.4)
        assert float(run(Oracle(f), still, torch.zeros(5), max_steps=100).values) == 0.0


@pytest.mark.parametrize(
    "method", [CubicNewton(), CubicNewton(8.0, is_adaptive=False), Trace()], ids=lambda m: m.name
)
def test_second_order_prefers_the_lower_side_of_a_saddle(method: Any) -> None:
    """At 0 the model is symmetric, and f is lower for negative x; where f is symmetric, chance."""
    f = torch_function(lambda x: -(x[0] ** 2) / 2 + x[0] ** 3 / 5 + x[0] ** 4 / 4 + x[1] ** 2, 2)
    even = torch_function(lambda x: -(x[0] ** 2) / 2 + x[0] ** 4 / 4 + x[1] ** 2, 2)
    ends = []
    for seed in range(8):
        assert float(run(Oracle(f), method, torch.zeros(2), max_steps=50, seed=seed).x[0, 0]) < 0
        ends.append(
            float(run(Oracle(even), method, torch.zeros(2), max_steps=50, seed=seed).x[0, 0])
        )
    assert min(ends) == pytest.approx(-1.0, abs=1e-6)
    assert max(ends) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("method", [CubicNewton(regularization=0.1), Trace()], ids=lambda m: m.name)
def test_second_order_survives_values_that_are_not_finite(method: Any) -> None:
    """x - log x, from a point whose Newton step leaves the domain."""
    f = torch_function(lambda x: (x - torch.log(x)).sum(), 2)
    result = run(Oracle(f), method, torch.tensor([8.0, 0.3]), max_steps=100)
    assert result.stop is Stop.FINISHED
    assert torch.allclose(result.x, torch.ones(1, 2, dtype=F64), atol=1e-5)


def test_cubic_newton_ends_at_the_last_finite_point_of_a_function_without_floor() -> None:
    falling = torch_function(lambda x: -(x**4).sum() + x[0].log(), dim=3)
    result = run(Oracle(falling), CubicNewton(), torch.full((2, 3), 2.0, dtype=F64), max_steps=30)
    assert bool(result.x.isfinite().all())
    assert bool((falling.value(result.x) < falling.value(torch.full((2, 3), 2.0, dtype=F64))).all())


@pytest.mark.parametrize("call", ["grad", "hessian", "hvp"])
@pytest.mark.parametrize("solver", HESSIAN_METHODS)
def test_second_order_gives_up_a_step_whose_derivatives_are_not_finite(
    solver: str, call: str
) -> None:
    method = HESSIAN_METHODS[solver]
    if call not in method.needs:
        return
    bad = torch.full((2,), math.nan, dtype=F64)
    f = torch_function(
        lambda x: (x * x).sum(),
        2,
        jac=lambda x: bad if call == "grad" else 2.0 * x,
        hess=lambda x: bad.expand(2, 2),
        hvp=lambda x, v: bad,
    )
    oracle = Oracle(f).open(1, name=method.name, needs=method.needs, is_batched=False)
    state = method.init(oracle.rows(0), torch.ones(2, dtype=F64), seed=0)
    assert bool(method.step(oracle.rows(0), state).x.isnan().all())
    assert oracle.session is not None
    assert oracle.session.nonfinite == {0: call}


@pytest.mark.parametrize(
    "method",
    [*HESSIAN_METHODS.values(), Natasha2(batch_size=4, oja_steps=5, sub_steps=3, radius=0.5)],
    ids=lambda m: f"{m.name}-{getattr(m, 'solver', '')}",
)
def test_second_order_resumes_with_the_same_bits(method: Any, tmp_path: Path) -> None:
    f = problem("phase-retrieval", dim=3, num_samples=30)
    x0 = f.start(2, seed=3)
    whole = run(Oracle(f), method, x0, max_steps=40, seed=5)
    for steps in (3, 11, 40):
        part = run(Oracle(f), method, x0, max_steps=steps, seed=5, checkpoint=tmp_path / "run.pt")
    assert torch.equal(part.x, whole.x)
    assert np.array_equal(part.counts.spent, whole.counts.spent)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (CubicNewton, {"regularization": 0.0}, "regularization=0.0: need a positive"),
        (CubicNewton, {"min_regularization": math.inf}, "min_regularization=inf"),
        (CubicNewton, {"solver": "cg"}, "solver='cg': need one of"),
        (CubicNewton, {"eps": -1.0}, "eps=-1.0"),
        (CubicNewton, {"max_trials": 0}, "max_trials=0"),
        (CubicNewton, {"failure": 0.0}, "failure=0.0"),
        (Trace, {"acceptance": 1.0}, "acceptance=1.0: need 0 < acceptance < 1"),
        (Trace, {"expansion": 1.0}, "expansion=1.0: need expansion > 1"),
        (Trace, {"radius": 20.0}, "radius=20.0: need at most max_radius=10.0"),
        (Trace, {"min_ratio": 1e3}, "min_ratio=1000.0: need at most max_ratio"),
        (Natasha2, {"batch_size": 0}, "batch_size=0"),
        (Natasha2, {"oja_steps": 0}, "oja_steps=0: need"),
        (Natasha2, {"output": "best"}, "output='best'"),
        (Natasha2, {"proximal": 0.0, "polish_steps": 3}, "proximal=0.0: need proximal > 0"),
    ],
)
def test_second_order_rejects_bad_options(kind: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kind(**options)


# ------------------------------------------------------------------------------------ cubic Newton


@pytest.mark.parametrize("solver", ["exact", "krylov"])
@pytest.mark.parametrize("rotated", [False, True])
def test_cubic_newton_leaves_an_exact_saddle_by_two_gamma_over_m(
    solver: Any, rotated: bool
) -> None:
    f = problem("strict-saddle", dim=7, gamma=0.8, rotated=rotated)
    for is_adaptive in (False, True):
        method = CubicNewton(16.0, is_adaptive=is_adaptive, solver=solver)
        result = run(Oracle(f), method, torch.zeros(7), max_steps=1)
        assert float(result.x.norm()) == pytest.approx(2 * 0.8 / 16.0, rel=1e-9)


@pytest.mark.parametrize("is_adaptive", [True, False])
@pytest.mark.parametrize("name", ["rosenbrock", "factorization", "strict-saddle"])
def test_cubic_newton_lowers_f_as_guaranteed(name: str, is_adaptive: bool) -> None:
    """By (M/12) |s|^3 with the M that was accepted, which is 2 rho at most."""
    f = problem(name)
    weight = 1.0 if is_adaptive else {"rosenbrock": 3000.0}.get(name, 30.0)
    method, oracle = CubicNewton(weight, is_adaptive=is_adaptive), Oracle(f, replicas=1)
    state = method.init(oracle, f.start(seed=2), seed=0)
    for _ in range(60):
        before, value = state.x, float(f.value(state.x))
        state = method.step(oracle, state)
        used = 2.0 * state.regularization if is_adaptive else weight
        fall, cube = value - float(f.value(state.x)), float((state.x - before).norm()) ** 3
        assert fall >= used / 12.0 * cube * (1 - 1e-9) - 1e-14 * abs(value)
        if state.finished:
            break
    assert state.finished or not is_adaptive


def test_cubic_newton_keeps_its_regularization_below_twice_rho() -> None:
    f = problem("strict-saddle", dim=6)
    rho = f.facts.hessian_lipschitz
    assert rho is not None
    method, oracle = CubicNewton(1e-6), Oracle(f, replicas=1)
    state = method.init(oracle, f.start(seed=0), seed=0)
    while not state.finished:
        state = method.step(oracle, state)
        assert method.min_regularization <= state.regularization <= rho  # halved already


def test_cubic_newton_needs_one_factorization_for_all_trials() -> None:
    f = problem("rosenbrock", dim=6)
    total = run(Oracle(f), CubicNewton(1e-3), f.start(), max_steps=200).counts.total()
    assert total["eigh"] == total["hessian"] == total["grad"]
    assert total["subproblem"] > total["eigh"] + 5
    assert total["value"] == 1 + total["subproblem"]  # one for x0, one for each trial


def test_cubic_newton_fixed_asks_for_no_values() -> None:
    f = problem("mixture", dim=3, num_samples=50)
    result = run(Oracle(f), CubicNewton(5.0, is_adaptive=False), f.start(), max_steps=200)
    assert result.stop is Stop.FINISHED
    assert "value" not in result.counts.total()


def test_cubic_newton_krylov_follows_exact() -> None:
    f = problem("rosenbrock", dim=6)
    ends = [
        run(Oracle(f), CubicNewton(solver=solver), f.start(seed=4), max_steps=8)
        for solver in ("exact", "krylov")
    ]
    assert torch.allclose(ends[0].x, ends[1].x, rtol=1e-6)
    assert "hessian" not in ends[1].counts.total()


def test_cubic_newton_krylov_does_not_mistake_a_saddle_for_a_minimum() -> None:
    """Near it g may be an eigenvector, whose Krylov space shows no negative curvature."""
    f = problem("octopus", dim=4)
    result = run(
        Oracle(f), CubicNewton(solver="krylov"), f.start(12, seed=0), max_steps=300, seed=1
    )
    assert set(result.stops) == {Stop.FINISHED}
    assert_second_order(f, result, eps=1e-6, gamma=1e-3)


def test_cubic_newton_has_its_exponent_on_the_worst_case_chain() -> None:
    """Steps grow by 2^1.5 for each halving of eps, up to the chain's length being finite."""
    steps = []
    for eps in (0.5, 0.25, 0.125):
        f = problem("worst-case-chain", eps=eps)
        stop = StopWhen(grad_tol=eps, every=1)
        result = run(Oracle(f), CubicNewton(), f.start(), max_steps=1000, stop=stop)
        assert result.stop is Stop.GRADIENT
        steps.append(int(result.steps[0]))
    slopes = np.diff(np.log2(steps))
    assert np.all(slopes > 1.0)
    assert np.all(slopes < 1.6)


# ------------------------------------------------------------------------------------ TRACE


@pytest.mark.parametrize("name", ["rosenbrock", "strict-saddle", "factorization"])
def test_trace_obeys_its_rules_at_each_iteration(name: str) -> None:
    f = problem(name)
    rho_scale = {"rosenbrock": 3000.0}.get(name, 30.0)
    method, oracle = Trace(), Oracle(f, replicas=1)
    state = method.init(oracle, f.start(seed=2), seed=0)
    moves = {"accept": 0, "contract": 0, "expand": 0}
    while not state.finished:
        old, state = state, method.step(oracle, state)
        if state.finished:
            break
        length = float((state.x - old.x).norm())
        if length > 0.0:
            moves["accept"] += 1
            fall = old.value - float(f.value(state.x))
            assert fall >= method.acceptance * length**3 * (1 - 1e-9) - 1e-15 * abs(old.value)
            assert state.max_radius >= old.max_radius
            grown = min(state.max_radius, max(old.radius, 2.0 * length))
            assert state.radius == pytest.approx(grown, rel=1e-12)
        elif state.was_contracted:
            moves["contract"] += 1
            assert state.radius < old.radius
        else:
            moves["expand"] += 1
            assert old.radius < state.radius <= state.max_radius
        assert state.ratio >= old.ratio
        assert state.ratio <= max(method.max_ratio, rho_scale)
    assert moves["accept"] > 0
    assert moves["contract"] > 0
    total = oracle.counts.total()
    assert total["hessian"] == total["grad"] == moves["accept"] + 1
    assert total["subproblem"] == sum(moves.values())


@pytest.mark.parametrize(
    ("name", "options", "most"),
    [("strict-saddle", {"dim": 20}, 20), ("rosenbrock", {"dim": 10}, 90)],
)
def test_trace_takes_few_iterations(name: str, options: dict[str, int], most: int) -> None:
    f = problem(name, **options)
    x0 = torch.zeros(20) if name == "strict-saddle" else f.start(seed=1)
    result = run(Oracle(f), Trace(), x0, max_steps=most)
    assert result.stop is Stop.FINISHED


def contracted(eigenvalues: list[float], gradient: list[float], radius: float) -> tuple[Any, ...]:
    """A contraction of the default method at a point with these derivatives."""
    method = Trace()
    f = torch_function(lambda x: (x * x).sum(), len(gradient))
    state = method.init(Oracle(f), torch.zeros(len(gradient), dtype=F64), seed=0)
    eigen = Eigen(torch.tensor(eigenvalues, dtype=F64), torch.eye(len(gradient), dtype=F64))
    state = dataclasses.replace(
        state,
        gradient=torch.tensor(gradient, dtype=F64),
        eigenvalues=eigen.values,
        eigenvectors=eigen.vectors,
    )
    solution = trust_region_exact(state.gradient, eigen, radius)
    length = float(solution.step.norm())
    new = method._contracted(state, solution, length)
    again = trust_region_exact(state.gradient, eigen, new)
    return solution, length, new, again


@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0, 1e3])
def test_trace_contraction_gives_a_multiplier_in_range(size: float) -> None:
    """An interior step has multiplier 0: the new one is in the range of ratios, times |s|."""
    for eigenvalues in ([1.0, 2.0], [1e-3, 1.0], [-1e-9, 1.0]):
        solution, length, new, again = contracted(eigenvalues, [size, size], 1e8)
        assert solution.multiplier < 1e-2 * length
        assert new < length
        ratio = again.multiplier / float(again.step.norm())
        assert 1e-2 * (1 - 1e-9) <= ratio <= 1e2 * (1 + 1e-9)


def test_trace_contraction_chooses_the_multiplier_of_the_paper() -> None:
    """sqrt(min_ratio |g|), where that puts the ratio in range."""
    _, _, _, again = contracted([1.0, 2.0], [3.0, 4.0], 1e8)
    assert again.multiplier == pytest.approx(math.sqrt(1e-2 * 5.0))


def test_trace_accepts_full_steps_and_remembers_their_ratio() -> None:
    """A slope of 5 and max_radius = 1: the multiplier is 5, far more than min_ratio |s|."""
    f = torch_function(lambda x: 5.0 * x.sum(), 1)
    method, oracle = Trace(radius=1.0, max_radius=1.0), Oracle(f, replicas=1)
    state = method.step(oracle, method.init(oracle, torch.zeros(1, dtype=F64), seed=0))
    assert float(state.x) == pytest.approx(-1.0)
    assert state.ratio == pytest.approx(5.0)
    assert (state.radius, state.max_radius) == pytest.approx((2.0, 2.0))


def test_trace_contraction_grows_a_large_multiplier() -> None:
    solution, length, new, again = contracted([-1.0, 2.0], [1.0, 1.0], 0.5)
    assert solution.multiplier >= 1e-2 * length
    if new > 0.5 * length * (1 + 1e-9):
        assert again.multiplier == pytest.approx(2.0 * solution.multiplier)
    assert 0.5 * length <= new < length


def test_trace_contraction_halves_the_radius_where_the_gradient_vanishes() -> None:
    for eigenvalues in ([-1.0, 2.0], [-1e-9, 2.0]):
        _, length, new, _ = contracted(eigenvalues, [0.0, 0.0], 0.25)
        assert (length, new) == (0.25, 0.125)
    # The hard case with a multiplier so small that no shift puts the ratio in range.
    _, length, new, _ = contracted([-1e-9, 1e6], [0.0, 1e-14], 0.25)
    assert 0.0 < new < length
