"""The first-order rows of Table 1: noisy SGD, perturbed GD, Saddle-NGD, NEON."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from method_cases import assert_second_order, go, saddle_of

from asgld.methods import Method
from asgld.methods.rivals.first_order import NoisySGD, PerturbedGD, SaddleNGD
from asgld.methods.rivals.neon import Neon
from asgld.methods.rivals.shared import norm, unit_ball, unit_sphere
from asgld.oracle import Oracle
from asgld.oracle.functions import torch_function
from asgld.problems import problem
from asgld.run import run
from asgld.run.history import Record
from asgld.run.stopping import Stop, StopWhen

METHODS = ("noisy-sgd", "perturbed-gd", "saddle-ngd", "neon")


def settings(name: str, lr: float, gamma: float, rho: float) -> tuple[Method, int]:
    """Options that a user would try for steps lr at a saddle of curvature -gamma, and a budget."""
    table: dict[str, tuple[Method, int]] = {
        "noisy-sgd": (NoisySGD(lr=lr, noise=0.05, burn_in=300), 1000),
        "perturbed-gd": (PerturbedGD(lr=lr, wait=20 / (lr * gamma)), 4000),
        "saddle-ngd": (SaddleNGD(lr=0.1, lr_decay=0.5), 2500),
        "neon": (Neon(lr=lr, gamma=gamma / 2, hessian_lipschitz=rho), 4000),
    }
    return table[name]


# ---------------------------------------------------------------------------------- all of them

PROBLEMS: dict[str, tuple[dict[str, Any], float]] = {
    # name: options and a step size
    "strict-saddle": ({"dim": 12, "num_negative": 2}, 0.1),
    "mixture": ({"dim": 5, "num_samples": 200}, 0.3),
    "factorization": ({"size": 4}, 0.03),
    "phase-retrieval": ({"dim": 4, "num_samples": 80}, 0.03),
    "orthogonal-tensor": ({"dim": 4}, 0.05),
    "deep-linear": ({}, 0.1),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("case", [*PROBLEMS, "strict-saddle rotated"])
def test_first_order_reaches_a_second_order_point_from_a_saddle(name: str, case: str) -> None:
    options, lr = PROBLEMS[case.split()[0]]
    if case.endswith("rotated"):
        options = {**options, "rotated": True}
    f = problem(case.split()[0], **options)
    saddle = next(s for s in f.facts.saddles if s.is_strict)
    rho = min(f.facts.hessian_lipschitz or 10.0, 30.0)
    method, steps = settings(name, lr, -saddle.lambda_min, rho)
    result, _ = go(f, method, saddle_of(f, 2), steps)
    assert_second_order(f, result, eps=0.02, gamma=0.01)


@pytest.mark.parametrize("name", METHODS)
def test_first_order_reaches_a_minimum_of_the_octopus(name: str) -> None:
    f = problem("octopus", dim=3)
    e = math.e
    table: dict[str, tuple[Method, int]] = {
        "noisy-sgd": (NoisySGD(lr=0.1, noise=0.1, burn_in=200), 1200),
        "perturbed-gd": (PerturbedGD(lr=0.25 / e, radius=e / 100, grad_threshold=e / 100), 1200),
        "saddle-ngd": (SaddleNGD(lr=0.5, lr_decay=0.5), 1200),
        "neon": (Neon(lr=0.25 / e, gamma=1.0, hessian_lipschitz=2.0), 1200),
    }
    method, steps = table[name]
    result, _ = go(f, method, f.start(2, seed=3), steps)
    assert f.facts.minimum is not None
    torch.testing.assert_close(
        result.values, torch.full((2,), f.facts.minimum, dtype=torch.float64), atol=0.05, rtol=0
    )


@pytest.mark.parametrize("name", METHODS)
def test_first_order_reaches_a_second_order_point_of_a_network(name: str) -> None:
    f = problem("digits", hidden=2, num_samples=60, l2=0.01)
    x0 = saddle_of(f, 1)
    method, _ = settings(name, 0.2, 0.2, 5.0)
    result, _ = go(f, method, x0, 2500)
    assert float(result.values) < float(f.value(x0)) - 0.5
    assert_second_order(f, result, eps=0.05, gamma=0.05)


@pytest.mark.parametrize("name", ["noisy-sgd", "saddle-ngd", "neon"])
def test_first_order_uses_samples_where_asked(name: str) -> None:
    f = problem("mixture", dim=5, num_samples=200)
    method, _ = settings(name, 0.1, 2.0, 10.0)
    sampled: Any = dataclasses.replace(method, batch_size=32)  # type: ignore[type-var]
    _, oracle = go(f, sampled, f.start(3), 10)
    assert oracle.counts.total() == {
        "sample_grad": 30,
        "samples": 30 * 32,
        "gradient_equivalents": pytest.approx(30 * 32 / 200),
    }
    # A batch of everything is the full gradient.
    _, oracle = go(f, dataclasses.replace(sampled, batch_size=200), f.start(3), 10)
    assert oracle.counts.total()["grad"] == 30
    with pytest.raises(ValueError, match="not a mean over samples"):
        go(problem("octopus"), sampled, problem("octopus").start(1), 1)


@pytest.mark.parametrize("name", METHODS)
def test_first_order_goes_on_from_a_checkpoint_with_the_same_bits(
    name: str, tmp_path: Path
) -> None:
    f = problem("strict-saddle", dim=5, rotated=True)
    method, _ = settings(name, 0.1, 1.0, 12.0)
    if name != "perturbed-gd":
        f = problem("strict-saddle", dim=5, num_samples=50, noise=1e-3)
        method = dataclasses.replace(method, batch_size=8)  # type: ignore[type-var]
    x0 = saddle_of(f, 3)
    whole, _ = go(f, method, x0, 240)
    file = tmp_path / "run.pt"
    for steps in (1, 70, 150, 240):
        part, _ = go(f, method, x0, steps, checkpoint=file)
    assert torch.equal(part.x, whole.x)
    assert part.counts.total() == whole.counts.total()
    assert not torch.equal(whole.x, x0)


@pytest.mark.parametrize("name", METHODS)
def test_first_order_replicas_do_not_depend_on_each_other(name: str) -> None:
    f = problem("strict-saddle", dim=6, rotated=True)
    method, _ = settings(name, 0.1, 1.0, 12.0)
    x0 = torch.cat([saddle_of(f, 2), f.start(2, seed=1)])
    many, _ = go(f, method, x0, 200)
    few, _ = go(f, method, x0[:3], 200)
    # Equal up to the order of sums in other batch sizes.
    torch.testing.assert_close(many.x[:3], few.x, atol=1e-9, rtol=0)
    assert not torch.equal(many.x[0], many.x[1])


@pytest.mark.parametrize("name", METHODS)
def test_first_order_budget_is_kept(name: str) -> None:
    f = problem("strict-saddle", dim=4)
    method, _ = settings(name, 0.1, 1.0, 12.0)
    oracle = Oracle(f, budget=7)
    result = run(oracle, method, torch.zeros(2, 4), max_steps=100)
    assert result.stops == (Stop.BUDGET, Stop.BUDGET)
    assert oracle.counts.spent.max() <= 7
    assert bool(torch.isfinite(result.x).all())


@pytest.mark.parametrize("name", METHODS)
def test_first_order_survives_a_function_without_a_floor(name: str) -> None:
    f = torch_function(lambda x: -(x**4).sum(), dim=3)
    method, _ = settings(name, 0.1, 1.0, 12.0)
    result = run(Oracle(f), method, torch.full((2, 3), 2.0), max_steps=300)
    assert bool(torch.isfinite(result.x).all())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NoisySGD(lr=0.0), "lr=0.0: need a positive finite number"),
        (lambda: NoisySGD(noise=-1.0), "noise=-1.0: need a finite number of at least 0"),
        (lambda: NoisySGD(burn_in=-5), "burn_in=-5"),
        (lambda: NoisySGD(batch_size=0), "batch_size=0: need at least 1, or None"),
        (lambda: PerturbedGD(radius=math.nan), "radius=nan"),
        (lambda: PerturbedGD(wait=0), "wait=0"),
        (lambda: SaddleNGD(law="cauchy"), "law='cauchy': need 'sphere' or 'gaussian'"),  # type: ignore[arg-type]
        (lambda: SaddleNGD(period=0), "period=0"),
        (lambda: Neon(momentum=1.0), "momentum=1.0: need 0 <= momentum < 1"),
        (lambda: Neon(test="hessian"), "test='hessian'"),  # type: ignore[arg-type]
        (lambda: Neon(test="value"), "value_threshold=0.0"),
        (lambda: Neon(reach=-1.0), "reach=-1.0"),
    ],
)
def test_first_order_rejects_bad_options(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match="^" + message.replace("(", r"\(")):
        make()


# ---------------------------------------------------------------------------------- spheres


def test_sphere_points_are_uniform() -> None:
    # Null: n has norm 1, mean 0, covariance I/d. 20 000 points, 5 sigma for each of 5 + 15 numbers.
    n, d = 20_000, 5
    points = unit_sphere(3, 0, torch.zeros(n, d, dtype=torch.float64))
    torch.testing.assert_close(norm(points), torch.ones(n, dtype=torch.float64))
    assert float(points.mean(0).abs().max()) < 5 * math.sqrt(1 / d / n)
    second = points.T @ points / n - torch.eye(5) / d
    # Var(n_i^2) = 2 (d - 1) / (d^2 (d + 2)); Var(n_i n_j) = 1 / (d (d + 2)).
    assert float(second.diagonal().abs().max()) < 5 * math.sqrt(2 * (d - 1) / (d**2 * (d + 2)) / n)
    off = second - torch.diag(second.diagonal())
    assert float(off.abs().max()) < 5 * math.sqrt(1 / (d * (d + 2)) / n)


@pytest.mark.parametrize("dim", [1, 3])
def test_ball_points_are_uniform(dim: int) -> None:
    # Null: |x|^d is uniform on [0, 1]. Its first two moments, 20 000 points, 5 sigma.
    n = 20_000
    points = unit_ball(5, 0, torch.zeros(n, dim, dtype=torch.float64))
    u = norm(points) ** dim
    assert float(u.max()) <= 1.0
    assert abs(float(u.mean()) - 1 / 2) < 5 * math.sqrt(1 / 12 / n)
    assert abs(float((u**2).mean()) - 1 / 3) < 5 * math.sqrt((1 / 5 - 1 / 9) / n)
    assert float(points.mean(0).abs().max()) < 5 * math.sqrt(1 / (dim + 2) / n)


# ---------------------------------------------------------------------------------- noisy SGD


def test_noisy_sgd_without_noise_stays_at_the_saddle() -> None:
    f = problem("strict-saddle", dim=8)
    result, _ = go(f, NoisySGD(lr=0.1, noise=0.0), saddle_of(f, 1), 50)
    assert torch.equal(result.x, saddle_of(f, 1))


def test_noisy_sgd_steps_have_the_length_of_the_noise_at_a_saddle() -> None:
    f = problem("strict-saddle", dim=8)
    result, _ = go(f, NoisySGD(lr=0.1, noise=0.3), saddle_of(f, 4), 1)
    torch.testing.assert_close(norm(result.x), torch.full((4,), 0.03, dtype=torch.float64))


def test_noisy_sgd_step_decays_after_the_burn_in() -> None:
    f = torch_function(lambda x: x.sum(), dim=1)
    result = run(Oracle(f), NoisySGD(lr=1.0, noise=0.0, burn_in=3), torch.zeros(1, 1), max_steps=7)
    # Steps 0..3 have rate 1; then 3/4, 3/5, 3/6.
    assert float(result.x) == pytest.approx(-(4 + 3 / 4 + 3 / 5 + 3 / 6))


# ---------------------------------------------------------------------------------- perturbed GD


def test_perturbed_gd_returns_a_minimum_untouched() -> None:
    f = problem("strict-saddle", dim=6, rotated=True)
    assert f.facts.minimizers is not None
    method = PerturbedGD(lr=0.1, radius=0.01, wait=30)
    result, oracle = go(f, method, f.facts.minimizers, 100)
    assert result.stops == (Stop.FINISHED, Stop.FINISHED)
    assert torch.equal(result.x, f.facts.minimizers)
    assert result.steps.tolist() == [31, 31]
    # One gradient per step and one more after the kick; values are by-products.
    assert oracle.counts.total()["grad"] == 2 * 32
    assert "value" not in oracle.counts.total()


def test_perturbed_gd_escape_time_grows_as_half_a_log_of_the_dimension() -> None:
    # Theory: 1 / (2 ln(1 + lr gamma)) = 10.2 steps per ln d, +-20 %. The time of one escape has
    # deviation 1.1 / ln(1 + lr gamma) = 23 steps, so the slope through four medians of 300 has
    # 0.35: 20 % are 5 sigma.
    lr, dims = 0.05, (4, 32, 256, 1024)
    medians = []
    for d in dims:
        f = problem("strict-saddle", dim=d)
        method = PerturbedGD(lr=lr, radius=0.01, wait=600)
        at_quarter = StopWhen(target=-0.0625, every=1)
        result, _ = go(f, method, saddle_of(f, 300), 500, stop=at_quarter)
        assert set(result.stops) == {Stop.TARGET}
        medians.append(np.median(result.steps))
    slope = np.polyfit(np.log(dims), medians, 1)[0]
    assert slope == pytest.approx(1 / (2 * math.log1p(lr)), rel=0.2)


def test_perturbed_gd_crosses_the_octopus_in_linear_time() -> None:
    e = math.e
    method = PerturbedGD(lr=0.25 / e, radius=e / 100, grad_threshold=e / 100, wait=20)
    times = []
    for d in (4, 8):
        f = problem("octopus", dim=d)
        assert f.facts.minimum is not None
        goal = StopWhen(target=f.facts.minimum + 0.05, every=1)
        result, _ = go(f, method, f.start(5, seed=1), 1000, stop=goal)
        assert set(result.stops) == {Stop.TARGET}
        times.append(float(np.median(result.steps)))
    assert 1.5 < times[1] / times[0] < 3.0
    assert times[1] < 500


# ---------------------------------------------------------------------------------- Saddle-NGD


def test_saddle_ngd_approaches_by_its_step_exactly() -> None:
    f = torch_function(lambda x: 0.5 * (x**2).sum(), dim=1)
    record = Record("linear", every=1, iterates=True)
    method = SaddleNGD(lr=0.125, noise=0.0)
    x0 = torch.ones(1, 1, dtype=torch.float64)
    result = run(Oracle(f), method, x0, max_steps=12, record=record)
    assert result.history.iterates is not None
    path = result.history.iterates[:, 0, 0]
    assert path[:9].tolist() == [1 - 0.125 * k for k in range(9)]
    assert path[8:].tolist() == [0.0] * 5  # a gradient of 0 gives no step


@pytest.mark.parametrize("law", ["sphere", "gaussian"])
def test_saddle_ngd_kicks_have_equal_energy_and_come_periodically(law: Any) -> None:
    # Null: E |kick|^2 = lr^2. At the saddle only kicks move. 2000 chains; for the gaussian law
    # |kick|^2 / lr^2 is chi^2_d / d, with deviation sqrt(2/d); 5 sigma.
    f = torch_function(lambda x: 0.0 * x.sum(), dim=8)
    method = SaddleNGD(lr=0.1, law=law, period=3)
    n, record = 2000, Record("linear", every=1, iterates=True)
    result = run(Oracle(f), method, torch.zeros(n, 8), max_steps=7, record=record)
    assert result.history.iterates is not None
    moved = np.diff(result.history.iterates, axis=0)
    lengths = (moved**2).sum(-1)
    for k in range(7):
        if k % 3 == 0:
            assert abs(lengths[k].mean() / 0.01 - 1) < 5 * math.sqrt(2 / 8 / n)
        else:
            assert lengths[k].max() == 0.0
    if law == "sphere":
        np.testing.assert_allclose(lengths[0], 0.01)


def test_saddle_ngd_leaves_flat_saddles_as_fast_as_steep_ones() -> None:
    # Murray et al. bound the time by the radius and the root of the condition number; descent
    # with the length of the gradient needs 1/gamma.
    times = {}
    for gamma in (1.0, 0.1):
        f = problem("strict-saddle", dim=2, gamma=gamma, confinement=gamma)
        x0 = torch.tensor([[1e-2, 1e-2]], dtype=torch.float64)
        for method in (SaddleNGD(lr=0.02, noise=0.0), NoisySGD(lr=0.02, noise=0.0)):
            goal = StopWhen(target=0.25 * -gamma / 4, every=1)
            result, _ = go(f, method, x0, 20_000, stop=goal)
            assert result.stop is Stop.TARGET
            times[method.name, gamma] = int(result.steps[0])
    assert times["saddle-ngd", 0.1] < 2 * times["saddle-ngd", 1.0]
    assert times["noisy-sgd", 0.1] > 8 * times["noisy-sgd", 1.0]
