"""I1, I2, I3 in numbers, the counterexample to Theorem 1, complexity, temperature, onset."""

from __future__ import annotations

import numpy as np
import pytest

from asgld.theory import (
    Constants,
    complexity,
    expected_certificate,
    growth_onset,
    predicted_sums,
    running_sums,
    temperature,
    terms,
)


def gradient_descent(dim, steps, lr=0.5, smoothness=1.0):
    """Gradient descent on M|x|^2/2: squared gradients of the steps, and all values."""
    x = np.full(dim, 1.0)
    squares, values = [], [0.5 * smoothness * x @ x]
    for _ in range(steps):
        gradient = smoothness * x
        squares.append(gradient @ gradient)
        x = x - lr * gradient
        values.append(0.5 * smoothness * x @ x)
    return np.array(squares), np.array(values)


@pytest.mark.parametrize("dim", [1, 2, 10, 100])
@pytest.mark.parametrize("lr", [0.1, 0.5, 0.9])
def test_theorem_one_counterexample(dim, lr):
    squares, values = gradient_descent(dim, 1, lr=lr)
    sums = running_sums(np.ones((1, dim)), alpha=0, beta=np.inf)
    run = {"lr": lr, "smoothness": 1.0, "f_gap": values[0] - values[1]}
    printed = terms(sums, **run, version="published").total
    assert (squares[0] <= printed) == (dim <= 2 - lr)
    assert squares[0] <= terms(sums, **run).total
    # On a quadratic of curvature M the repaired bound is an equality at k = 1.
    repaired = expected_certificate(sums, **run, alpha=0, d_init=1.0)
    assert squares[0] == pytest.approx(float(repaired[0]))


def test_theorem_one_repaired_bound_holds_along_a_whole_run():
    squares, values = gradient_descent(20, 50, lr=0.3)
    sums = running_sums(np.ones((50, 20)), alpha=0, beta=np.inf)
    bound = terms(sums, lr=0.3, smoothness=1.0, f_gap=values[0] - values[1:]).total
    assert np.all(np.minimum.accumulate(squares) <= bound)


def test_terms_published_is_smaller_by_the_dimension():
    history = np.linspace(1, 9, 30)[:, None] * np.ones(7)
    sums = running_sums(history, alpha=1, beta=1, batch_size=4)
    run = {"lr": 0.1, "smoothness": 2.0, "f_gap": 3.0, "sigma": 0.2, "gradient_variance": 0.5}
    correct, printed = terms(sums, **run), terms(sums, **run, version="published")
    for ours, theirs in zip(correct, printed, strict=True):
        np.testing.assert_allclose(ours, 7 * theirs)


def test_terms_against_a_loop():
    rng = np.random.default_rng(3)
    history = np.cumsum(rng.uniform(0.1, 1, size=(12, 5)), axis=0)
    batches = np.arange(1.0, 13.0)
    result = terms(
        running_sums(history, alpha=0.8, beta=1.3, batch_size=batches),
        lr=0.2,
        smoothness=3.0,
        f_gap=1.5,
        sigma=0.4,
        gradient_variance=0.7,
    )
    clock = sample = noise = 0.0
    for diagonal, batch in zip(history, batches, strict=True):
        clock += max(diagonal) ** -0.4
        sample += sum(entry**-0.8 for entry in diagonal) / batch
        noise += sum(entry**-1.3 for entry in diagonal)
    assert result.I1[-1] == pytest.approx(2 * 1.5 / 0.2 / clock)
    assert result.I2[-1] == pytest.approx(3 * 0.2 * 0.7 * sample / clock)
    assert result.I3[-1] == pytest.approx(2 * 3 * 0.16 * noise / clock)
    assert result.total[-1] == pytest.approx(result.I1[-1] + result.I2[-1] + result.I3[-1])
    assert result.dominant in ("I1", "I2", "I3")


@pytest.mark.parametrize("theta", [0.0, 0.5])
def test_predicted_sums_against_direct_summation(theta):
    problem = Constants(smoothness=1.0, f_gap=1.0, dim=3, lr=0.1, delta=0.05, gradient_variance=0.2)
    k = 300_000
    j = np.arange(k)
    sums = predicted_sums(k, 1.2, 0.7, problem, theta=theta)
    growth = 0.05 + 1.0 + 3 * 0.2
    assert problem.growth == pytest.approx(growth)
    assert sums.min_step == pytest.approx(np.sum((1 + growth * j) ** -0.6), rel=1e-7)
    sampled = 3 * np.sum((1 + 0.05 * j) ** -1.2 * (1.0 + j) ** -theta)
    assert sums.trace_sample == pytest.approx(sampled, rel=1e-7)
    assert sums.trace_noise == pytest.approx(3 * np.sum((1 + 0.05 * j) ** -0.7), rel=1e-7)


def test_complexity_powers_of_the_balanced_points():
    assert complexity(alpha=1, beta=1).iteration_power == 4
    assert complexity(alpha=0, beta=1, method="agld").iteration_power == 2
    assert complexity(alpha=1, method="asg").iteration_power == 4
    batch = complexity(alpha=0, beta=1, theta=1)
    assert (batch.iteration_power, batch.sample_power) == (2, 4)
    assert np.isinf(complexity(alpha=2, beta=2).iteration_power)
    assert np.isinf(complexity(alpha=1, beta=0.5).iteration_power)
    assert np.isnan(complexity(alpha=0, beta=1, version="published").iteration_power)


def test_complexity_no_batch_growth_beats_four_in_samples():
    alpha, beta, theta = np.meshgrid(
        np.linspace(0, 1.9, 39), np.linspace(0.2, 3, 15), np.linspace(0, 3, 61), indexing="ij"
    )
    power = complexity(alpha=alpha, beta=beta, theta=theta).sample_power
    assert np.min(power) == pytest.approx(4)
    best = np.isclose(power, 4)
    np.testing.assert_array_equal(best, np.isclose(alpha + theta, 1) & (beta >= 1 - 1e-12))


def test_complexity_dimension_power():
    assert complexity(alpha=0, beta=1, method="agld").dim_power == 1
    assert complexity(alpha=1, beta=1).dim_power == 2
    assert complexity(alpha=1, beta=1, noise="total").dim_power == 0
    assert complexity(alpha=1, beta=1, version="published").dim_power == 0
    assert complexity(alpha=0, beta=np.inf, method="agld").dim_power == 0


def test_complexity_numbers_are_the_first_to_meet_the_target():
    problem = Constants(
        smoothness=2.0, f_gap=1.0, dim=4, lr=0.4, sigma=0.1, gradient_variance=0.1, delta=0.1
    )

    def bound(k):
        return terms(
            predicted_sums(k, 1.0, 1.0, problem),
            lr=0.4, smoothness=2.0, f_gap=1.0, sigma=0.1, gradient_variance=0.1,
        ).total  # fmt: skip

    cost = complexity(0.8, 1, 1, constants=problem)
    assert cost.samples == cost.iterations > 100
    assert bound(cost.iterations) <= 0.64 < bound(cost.iterations * (1 - 1e-8) - 1)


@pytest.mark.parametrize(
    ("alpha", "beta", "theta", "method"),
    [
        (0.0, 2.0, 0.0, "agld"),
        (0.0, 0.5, 0.0, "agld"),
        (0.0, 2.0, 2.0, "asgld"),
        (0.5, 2, 0, "asg"),
    ],
)
def test_complexity_numbers_follow_the_powers(alpha, beta, theta, method):
    problem = Constants(
        smoothness=1.0, f_gap=1.0, dim=5, lr=0.5, sigma=0.1, gradient_variance=0.1, num_samples=7
    )
    eps = np.array([1e-4, 1e-5])
    cost = complexity(eps, alpha, beta, theta=theta, method=method, constants=problem)
    slope = -np.diff(np.log(cost.iterations)) / np.diff(np.log(eps))
    assert slope[0] == pytest.approx(cost.iteration_power, rel=0.03)
    slope = -np.diff(np.log(cost.samples)) / np.diff(np.log(eps))
    assert slope[0] == pytest.approx(cost.sample_power, rel=0.03)
    if method == "agld":
        np.testing.assert_allclose(cost.samples, 7 * cost.iterations)


def test_complexity_numbers_grow_linearly_in_dim_for_agld():
    def iterations(dim):
        problem = Constants(smoothness=1.0, f_gap=1.0, dim=dim, lr=0.5, sigma=0.1)
        return complexity(1e-4, 0, 2, method="agld", constants=problem).iterations

    assert iterations(10**6) / iterations(10**5) == pytest.approx(10, rel=0.01)


def test_complexity_reports_what_cannot_be_reached():
    problem = Constants(smoothness=1.0, f_gap=1.0, dim=5, lr=0.5, sigma=0.1, gradient_variance=0.1)
    assert np.isinf(complexity(1e-2, 0, 1, constants=problem).iterations)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Constants(smoothness=0.0, f_gap=1.0, dim=2, lr=0.1), "smoothness=0.0"),
        (lambda: Constants(smoothness=1.0, f_gap=-1.0, dim=2, lr=0.1), "f_gap=-1.0"),
        (
            lambda: complexity(
                0.1, 0, 1, constants=Constants(smoothness=1.0, f_gap=1.0, dim=2, lr=3.0)
            ),
            "lower lr or raise d_init",
        ),
        (
            lambda: complexity(constants=Constants(smoothness=1.0, f_gap=1.0, dim=2, lr=0.1)),
            "eps=None",
        ),
        (
            lambda: complexity(
                0.1, [0, 1], constants=Constants(smoothness=1.0, f_gap=1.0, dim=2, lr=0.1)
            ),
            "call once per setting",
        ),
        (lambda: complexity(alpha=1, noise="none"), "noise='none'"),
        (lambda: temperature(0.0, 1, 1, 1), "D=0.0: need D > 0"),
        (lambda: growth_onset(curvature=1, sigma=1, delta=0, alpha=0, beta=1), "delta=0 never"),
        (lambda: growth_onset(curvature=1, sigma=1, delta=1, alpha=2, beta=1), "nothing anneals"),
    ],
)
def test_bounds_refuse_what_is_not_defined(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("alpha", "beta", "trend"), [(1.0, 1.0, -0.5), (1.0, 0.5, 0.0), (1.0, 0.3, 0.2), (0.0, 1.0, -1)]
)
def test_temperature_anneals_samples_or_heats(alpha, beta, trend):
    D = np.array([1.0, 10.0, 100.0])
    np.testing.assert_allclose(temperature(D, alpha, beta, 0.3), 0.09 * D**trend)


def test_temperature_is_the_variance_of_a_basin():
    # Stationary variance of x <- (1 - h) x - h xi + sqrt(2 lr) D^(-beta/2) e is T_eff up to O(h).
    lr, alpha, beta, sigma, C, D = 1e-3, 0.8, 0.9, 0.3, 0.5, 3.0
    h = lr * D ** (-alpha / 2)
    variance = (h**2 * C + 2 * lr * sigma**2 * D**-beta) / (1 - (1 - h) ** 2)
    reading = temperature(D, alpha, beta, sigma, lr=lr, gradient_variance=C)
    assert variance == pytest.approx(reading, rel=1e-3)


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 1.0), (0.0, 2.0), (1.0, 1.0), (1.0, 2.0)])
def test_growth_onset_separates_the_two_exponents(alpha, beta):
    curvature, sigma, delta = 2.0, 0.5, 1e-3
    onset = growth_onset(curvature=curvature, sigma=sigma, delta=delta, alpha=alpha, beta=beta)
    tau = beta - alpha / 2
    heat = curvature * sigma**2
    # dD/dk = delta + heat D^-tau as a quadrature for k(D), exact up to the grid.
    D = onset.accumulator * np.geomspace(1e-6, 1e6, 40_001)
    k = np.concatenate(
        [[0], np.cumsum(np.diff(D) / (delta + heat * (D[1:] * D[:-1]) ** (-tau / 2)))]
    )
    crossing = np.interp(onset.accumulator, D, k)
    assert 0.5 < crossing / onset.steps < 2

    def slope(k0):
        low, high = np.interp([k0, 2 * k0], k, D)
        return tau * np.log(high / low) / np.log(2)

    assert slope(1e-3 * onset.steps) == pytest.approx(onset.exponent_before, abs=0.06)
    assert slope(1e3 * onset.steps) == pytest.approx(onset.exponent_after, rel=0.06)


def test_growth_onset_does_not_depend_on_the_unit_of_the_gradient():
    # Loss in other units: gradients times c, D and delta times c^2; keep lambda sigma^2 D^-tau.
    c, tau = 7.0, 0.5
    one = growth_onset(curvature=1.0, sigma=0.3, delta=1e-3, alpha=1, beta=1, d_init=0.01)
    other = growth_onset(
        curvature=1.0,
        sigma=0.3 * c ** (1 + tau),
        delta=1e-3 * c**2,
        alpha=1,
        beta=1,
        d_init=0.01 * c**2,
    )
    assert other.steps == pytest.approx(one.steps)
    assert other.accumulator == pytest.approx(c**2 * one.accumulator)
