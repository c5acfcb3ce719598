"""What is particular to one problem: published formulas, limits, special cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from problem_cases import build, facts_of, single_gradients
from scipy import optimize

from asgld.problems import problem


def test_strict_saddle_noise_has_zero_mean_and_the_stated_energy() -> None:
    for case, energy in (("strict-saddle-samples", 0.09), ("strict-saddle-stable-noise", 1.0)):
        chosen = build(case)
        noise = single_gradients(chosen, chosen.start()) - chosen.grad(chosen.start())
        assert float(noise.mean(0).abs().max()) < 1e-14
        assert float(noise.square().sum(-1).mean()) == pytest.approx(energy)
    unstable = torch.linalg.eigh(chosen.hessian(torch.zeros(5, dtype=torch.float64)))[1][:, :2]
    assert float((noise @ unstable).abs().max()) < 1e-13


def test_strict_saddle_rotation_hides_the_escape_direction() -> None:
    chosen = problem("strict-saddle", dim=400, rotated=True, num_negative=3)
    identity = torch.eye(400, dtype=torch.float64)
    frame = chosen._from_eigenbasis(identity)
    torch.testing.assert_close(frame @ frame.mT, identity, atol=1e-12, rtol=0)
    torch.testing.assert_close(chosen._to_eigenbasis(frame), identity, atol=1e-12, rtol=0)
    # 1200 coordinates, each about N(0, 1/400): the largest stays below 5 standard deviations.
    assert float(frame[:3].abs().max()) < 5.0 / math.sqrt(400)


def test_strict_saddle_takes_a_hundred_thousand_variables() -> None:
    chosen = problem("strict-saddle", dim=100_000, rotated=True)
    x = chosen.start(2)
    assert torch.isfinite(chosen.hvp(x, chosen.grad(x))).all()
    assert chosen.facts.saddles[0].lambda_min == -1.0


def test_octopus_equals_the_published_tube_function() -> None:
    """Inside the tube f is one of two cases of Du et al. (2017); here written from the article."""
    level, tau, gamma, dim = math.e, math.e, 1.0, 4
    chosen = problem("octopus", dim=dim)
    nu = (13 * gamma + 37 * level) * tau**2 / 6

    def arm(a: float) -> float:
        if a <= tau:
            return -gamma * a**2
        u = a - tau
        return (
            -gamma * a**2
            + (-14 * level + 10 * gamma) / (3 * tau) * u**3
            + (5 * level - 3 * gamma) / (2 * tau**2) * u**4
        )

    def mix(a: float) -> float:
        t = (a - tau) / tau
        return (
            -gamma
            - 10 * (level + gamma) * (t - 1) ** 3
            - 15 * (level + gamma) * (t - 1) ** 4
            - 6 * (level + gamma) * (t - 1) ** 5
        )

    rng = np.random.default_rng(0)
    for _ in range(300):
        done = int(rng.integers(0, dim))
        x = rng.uniform(0, tau, dim)
        x[:done] = rng.uniform(2 * tau, 6 * tau, done)
        expected = level * np.sum((x[:done] - 4 * tau) ** 2) - done * nu
        if rng.random() < 0.5:  # still near the saddle
            expected += -gamma * x[done] ** 2 + level * np.sum(x[done + 1 :] ** 2)
        else:  # on the way to the next one
            x[done] = rng.uniform(tau, 2 * tau)
            expected += arm(x[done]) + level * np.sum(x[done + 2 :] ** 2)
            if done + 1 < dim:
                expected += mix(x[done]) * x[done + 1] ** 2
        signs = rng.choice([-1.0, 1.0], dim)
        assert float(chosen.value(torch.from_numpy(signs * x))) == pytest.approx(expected, abs=1e-9)


def test_octopus_runs_end_only_in_its_minima() -> None:
    """60 trust-exact runs from the box: each ends at 4 tau times signs."""
    chosen = problem("octopus", dim=4)
    rng = np.random.default_rng(1)
    for _ in range(60):
        result = optimize.minimize(
            lambda x: float(chosen.value(torch.from_numpy(x))),
            rng.uniform(-5 * math.e, 5 * math.e, 4),
            jac=lambda x: chosen.grad(torch.from_numpy(x)).numpy(),
            hess=lambda x: chosen.hessian(torch.from_numpy(x)).numpy(),
            method="trust-exact",
        )
        assert np.abs(np.abs(result.x) - 4 * math.e).max() < 1e-4


def test_octopus_eps_sets_the_curvature_of_its_saddles() -> None:
    for eps in (0.01, 0.25):
        saddles = problem("octopus", dim=2, eps=eps, rho=4.0).facts.saddles
        assert {saddle.lambda_min for saddle in saddles} == {-math.sqrt(4.0 * eps)}


def test_rosenbrock_equals_scipy() -> None:
    chosen = problem("rosenbrock", dim=7)
    x = chosen.start(20)
    for row in x:
        assert float(chosen.value(row)) == pytest.approx(optimize.rosen(row.numpy()))
        np.testing.assert_allclose(chosen.grad(row), optimize.rosen_der(row.numpy()))
        np.testing.assert_allclose(chosen.hessian(row), optimize.rosen_hess(row.numpy()))


@pytest.mark.parametrize("dim", [4, 5, 7, 8, 20, 60, 300])
def test_rosenbrock_has_a_second_minimum_from_four_variables_on(dim: int) -> None:
    chosen = problem("rosenbrock", dim=dim)
    x0 = np.r_[-1.0, np.ones(dim - 1)]
    found = optimize.minimize(
        lambda x: float(chosen.value(torch.from_numpy(x))),
        x0,
        jac=lambda x: chosen.grad(torch.from_numpy(x)).numpy(),
        hess=lambda x: chosen.hessian(torch.from_numpy(x)).numpy(),
        method="trust-exact",
    )
    lowest = float(torch.linalg.eigvalsh(chosen.hessian(torch.from_numpy(found.x)))[0])
    assert lowest > 0.3
    assert 3.7 < found.fun < 4.0
    (saddle,) = chosen.facts.saddles
    assert saddle.is_strict
    assert saddle.next_value == pytest.approx(found.fun, abs=1e-6)


@pytest.mark.parametrize("dim", [4, 5, 12])
def test_rosenbrock_saddle_separates_the_two_minima(dim: int) -> None:
    """Short trust-region steps down either side of the saddle end in one minimum each."""
    chosen = problem("rosenbrock", dim=dim)
    (saddle,) = chosen.facts.saddles
    push = 1e-2 * torch.linalg.eigh(chosen.hessian(saddle.point))[1][:, 0].numpy()
    ends = [
        optimize.minimize(
            lambda x: float(chosen.value(torch.from_numpy(x))),
            saddle.point.numpy() + sign * push,
            jac=lambda x: chosen.grad(torch.from_numpy(x)).numpy(),
            hess=lambda x: chosen.hessian(torch.from_numpy(x)).numpy(),
            method="trust-exact",
            options={"max_trust_radius": 0.02, "initial_trust_radius": 0.01, "maxiter": 5000},
        ).fun
        for sign in (1.0, -1.0)
    ]
    assert sorted(ends) == pytest.approx([0.0, saddle.next_value], abs=1e-6)


@pytest.mark.parametrize("rotated", [False, True])
def test_worst_case_chain_has_a_large_gradient_until_the_last_link(rotated: bool) -> None:
    chosen = problem("worst-case-chain", eps=0.3, length=8, rotated=rotated)
    rng = np.random.default_rng(2)
    links = rng.uniform(-3.0, 3.0, (5000, 8))
    links[np.arange(5000), rng.integers(0, 8, 5000)] = rng.uniform(-1.0, 1.0, 5000)
    x = torch.from_numpy(links) * math.sqrt(0.3)
    if chosen._frame is not None:
        x = x @ chosen._frame.mT
    assert float(chosen.grad(x).norm(dim=-1).min()) > 0.3
    lowest = optimize.minimize(
        lambda z: float(chosen.value(torch.from_numpy(z))), np.ones(8), method="L-BFGS-B"
    ).fun
    start = float(chosen.value(chosen.start()))
    assert 0.0 < start - lowest < 12 * 8 * 0.3**1.5
    assert problem("worst-case-chain", eps=0.25).dim == 32


def test_worst_case_chain_opens_one_link_per_gradient() -> None:
    """From 0 the gradient touches the first link only: what makes the chain slow."""
    chosen = problem("worst-case-chain", eps=1.0, length=6)
    x = chosen.start()
    assert chosen.grad(x).nonzero().flatten().tolist() == [0]
    x[0] = 1.0
    assert chosen.grad(x).nonzero().flatten().tolist() == [0, 1]


def test_phase_retrieval_equator_approaches_the_population_values() -> None:
    """n = 20,000: value 2/3, smallest eigenvalue -2, |x|^2 = 1/3, each to 10 percent."""
    chosen = problem("phase-retrieval", dim=4, num_samples=20_000)
    top, equator = chosen.facts.saddles
    assert top.lambda_min == pytest.approx(-3.0, rel=0.1)
    assert equator.value == pytest.approx(2 / 3, rel=0.1)
    assert equator.lambda_min == pytest.approx(-2.0, rel=0.1)
    assert float(equator.point.square().sum()) == pytest.approx(1 / 3, rel=0.1)


def test_deep_linear_depth_decides_whether_zero_is_strict() -> None:
    assert facts_of("deep-linear").saddles[0].is_strict
    three = build("deep-linear-three")
    assert not three.facts.saddles[0].is_strict
    assert float(three.hessian(torch.zeros(three.dim, dtype=torch.float64)).abs().max()) == 0.0


def test_digits_saddle_curvature_repeats_for_every_hidden_unit() -> None:
    chosen = build("digits")
    saddle = chosen.facts.saddles[0]
    spectrum = torch.linalg.eigvalsh(chosen.hessian(saddle.point))
    repeated = (spectrum - saddle.lambda_min).abs() < 1e-10
    assert int(repeated.sum()) == 2
    assert problem("digits").dim == 1210


def test_digits_full_network_has_a_strict_saddle() -> None:
    chosen = problem("digits")
    saddle = chosen.facts.saddles[0]
    assert float(chosen.grad(saddle.point).norm()) < 1e-12
    assert saddle.lambda_min < -0.1
    pixels, onehot = chosen.rows
    left, _, right = torch.linalg.svd((onehot - onehot.mean(0)).mT @ pixels)
    direction = torch.zeros(1210, dtype=torch.float64)
    direction[:64], direction[65 * 16 : 75 * 16 : 16] = right[0], left[:, 0]
    direction /= math.sqrt(2.0)
    product = chosen.hvp(saddle.point, direction)
    torch.testing.assert_close(product, saddle.lambda_min * direction, atol=1e-12, rtol=0)


def test_mixture_with_close_centers_has_no_saddle() -> None:
    chosen = problem("mixture", dim=1, num_samples=50, separation=0.01, seed=2)
    curvature = float(chosen.hessian(torch.zeros(1, dtype=torch.float64)))
    assert (curvature < 0) == bool(chosen.facts.saddles)


def test_robust_regression_recovers_the_truth_despite_outliers() -> None:
    chosen = problem("robust-regression", loss="geman-mcclure", num_samples=2000)
    x = chosen._solution
    for _ in range(200):
        x = x - 0.3 * chosen.grad(x)
    assert float((x - chosen._solution).abs().max()) < 0.02


def test_variance_is_the_articles_objective() -> None:
    chosen = problem("variance")
    assert (chosen.num_samples, chosen.dim, chosen.truth) == (10_000, 2, (0.1, 10.0))
    # Standard error of a mean of squares is (2/n)^(1/2) of the variance: 5 of them here.
    ratio = chosen.estimate / torch.tensor(chosen.truth, dtype=torch.float64)
    assert float((ratio - 1.0).abs().max()) < 5 * math.sqrt(2 / 10_000)
    plain = problem("variance", space="x")
    z = torch.tensor([[0.3, -0.2], [-2.0, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(chosen.value(z), plain.value(z.exp()))
    torch.testing.assert_close(chosen.grad(z), plain.grad(z.exp()) * z.exp())
    assert torch.equal(chosen.variances(z), z.exp())
    assert torch.equal(plain.variances(z), z)
    torch.testing.assert_close(chosen.variances(chosen.facts.minimizers[0]), chosen.estimate)
    assert torch.equal(plain.start(2), torch.ones(2, 2, dtype=torch.float64))
    assert torch.equal(chosen.start(2), torch.zeros(2, 2, dtype=torch.float64))


def test_variance_in_x_ends_at_zero() -> None:
    plain = problem("variance", space="x", num_samples=10)
    x = torch.tensor([[1.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    assert plain.value(x).tolist() == [math.inf, math.inf]
    assert plain.grad(x).isnan().tolist() == [[False, True], [True, False]]


@pytest.mark.parametrize("space", ["log", "x"])
def test_variance_data_sets_belong_to_replicas(space: str) -> None:
    """Replica r behaves as the problem with seed + r alone, in every oracle."""
    options = {"num_samples": 40, "space": space}
    many = problem("variance", data_sets=3, seed=5, **options)
    alone = [problem("variance", seed=5 + r, **options) for r in range(3)]
    rng = np.random.default_rng(6)
    x = torch.from_numpy(rng.uniform(0.5, 2.0, (3, 2)))
    v = torch.from_numpy(rng.standard_normal((3, 2)))
    own = torch.from_numpy(rng.integers(0, 40, (3, 7)))
    for r, single in enumerate(alone):
        for batched, expected in (
            (many.estimate[r], single.estimate),
            (many.value(x)[r], single.value(x[r])),
            (many.grad(x)[r], single.grad(x[r])),
            (many.hvp(x, v)[r], single.hvp(x[r], v[r])),
            (many.hessian(x)[r], single.hessian(x[r])),
            (many.sample_value(x, own)[r], single.sample_value(x[r], own[r])),
            (many.sample_grad(x, own)[r], single.sample_grad(x[r], own[r])),
            (many.sample_hvp(x, v, own)[r], single.sample_hvp(x[r], v[r], own[r])),
            (many.sample_grad(x, own[0])[r], single.sample_grad(x[r], own[0])),
            (many.grad(x.expand(2, 3, 2))[1, r], single.grad(x[r])),
        ):
            torch.testing.assert_close(batched, expected, rtol=1e-13, atol=1e-13)
    assert many.facts.minimum is None
    assert many.facts.minimizers is None
    if space == "log":
        constants = [single.facts.smoothness for single in alone]
        assert many.facts.smoothness == pytest.approx(max(constants))


def test_strict_saddle_lists_one_minimizer_when_there_are_many() -> None:
    facts = problem("strict-saddle", dim=8, num_negative=7).facts
    assert facts.minimizers.shape == (1, 8)
    assert problem("strict-saddle", dim=8, num_negative=3).facts.minimizers.shape == (8, 8)
    assert [saddle.value for saddle in facts.saddles] == [-0.25 * j for j in range(7)]


def test_factorization_with_a_tie_has_no_swapped_saddle() -> None:
    facts = problem("factorization", size=4, rank=1, spectrum=(2.0, 2.0)).facts
    assert [saddle.lambda_min for saddle in facts.saddles] == [-2.0]


def test_phase_retrieval_on_a_line_has_only_the_maximum() -> None:
    (maximum,) = problem("phase-retrieval", dim=1, num_samples=20).facts.saddles
    assert float(maximum.point) == 0.0
