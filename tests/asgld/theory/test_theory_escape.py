"""Escape times: recursion against simulation, formula against recursion, limits, and Theorem 3."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from asgld.theory import (
    braking_onset,
    effective_curvature,
    escape_recursion,
    escape_time,
    published_escape_time,
    temperature,
)

BASE = {"lr": 0.1, "alpha": 1.0, "beta": 1.0, "sigma": 0.1, "delta": 0.01, "gradient_variance": 0.1}
AGLD = {**BASE, "alpha": 0.0, "gradient_variance": 0.0}
REPLICAS = 800


def simulate(gamma, *, dim, k0, aligned, criterion, drop=0.5, seed=0, horizon=4000, **rule):
    """Median escape time of the rule on a quadratic saddle, with its standard error."""
    rng = np.random.default_rng(seed)
    curvatures = np.ones(dim)
    curvatures[0] = -gamma
    axis = np.eye(dim)[0] if aligned else np.ones(dim) / np.sqrt(dim)
    mirror = axis - np.eye(dim)[0]
    mirror = mirror / max(np.linalg.norm(mirror), 1e-300)

    def rotate(points):
        return points - 2 * np.outer(points @ mirror, mirror)

    x = np.zeros((REPLICAS, dim))
    D = np.full_like(x, 1 + k0 * (rule["delta"] + rule["gradient_variance"]))
    times = np.full(REPLICAS, np.inf)
    for t in range(horizon):
        y = rotate(x)
        if criterion == "distance":
            out = np.abs(y[:, 0]) >= 1
        else:
            out = 0.5 * (y**2) @ curvatures <= -drop
        times = np.where(out & np.isinf(times), t, times)
        if np.mean(np.isfinite(times)) > 0.75:
            break
        G = rotate(y * curvatures) + np.sqrt(rule["gradient_variance"]) * rng.standard_normal(
            x.shape
        )
        spread = np.sqrt(2 * rule["lr"]) * rule["sigma"] * D ** (-rule["beta"] / 2)
        x = x - rule["lr"] * D ** (-rule["alpha"] / 2) * G + spread * rng.standard_normal(x.shape)
        D = D + G**2 + rule["delta"]
    ordered = np.sort(times)
    half_width = int(np.sqrt(REPLICAS) / 2)  # one standard error in ranks
    middle = REPLICAS // 2
    return ordered[middle], (ordered[middle + half_width] - ordered[middle - half_width]) / 2


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(
    ("alpha", "beta", "gradient_variance", "gamma", "k0", "dim", "criterion"),
    [
        (0.0, 1.0, 0.0, 0.5, 100, 8, "distance"),
        (0.0, 1.0, 0.0, 0.5, 0, 64, "value"),
        (0.0, 2.0, 0.1, 1.0, 10, 16, "value"),
        (0.5, 1.0, 0.1, 0.5, 100, 8, "distance"),
        (1.0, 1.0, 0.1, 0.5, 100, 8, "distance"),
        (1.0, 1.0, 0.1, 1.0, 0, 32, "value"),
        (1.0, 0.5, 0.1, 1.0, 300, 8, "value"),
        (1.5, 1.5, 0.1, 1.0, 10, 8, "distance"),
        (2.0, 2.0, 0.1, 1.0, 0, 8, "distance"),
    ],
)
def test_escape_recursion_against_simulation(
    alpha, beta, gradient_variance, gamma, k0, dim, criterion, aligned
):
    # Null: the recursion is within 10 % of the true median. 800 replicas, 5 standard errors on top.
    rule = {**BASE, "alpha": alpha, "beta": beta, "gradient_variance": gradient_variance}
    setting = {
        **rule,
        "dim": dim,
        "k0": k0,
        "criterion": criterion,
        "drop": 0.5,
        "aligned": aligned,
    }
    median, error = simulate(gamma, **setting)
    predicted = escape_recursion(gamma, **setting)
    assert abs(median - predicted) <= 0.1 * predicted + 5 * error
    assert error < 0.06 * median


def grid():
    """Settings of all kinds as columns, in one vectorized call each."""
    values = itertools.product(
        [(0, 1), (0.25, 1), (0.5, 0.5), (1, 0.75), (1, 1), (1, 2), (1.5, 1.5), (2, 2)],
        [0.2, 0.5],
        [0.0, 0.1],
        [0.01, 0.1],
        [0, 10, 100, 1000],
        [8, 512],
    )
    rows = [(*pair, *rest) for pair, *rest in values]
    names = ("alpha", "beta", "gamma", "gradient_variance", "delta", "k0", "dim")
    return dict(zip(names, np.array(rows, dtype=float).T, strict=True))


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("criterion", ["distance", "value"])
def test_escape_formula_against_recursion(criterion, aligned):
    columns = {**grid(), "lr": 0.1, "sigma": 0.1, "criterion": criterion, "aligned": aligned}
    columns = {**columns, "drop": 0.5}
    formula = escape_time(**columns)
    keep = formula.steps < 3000
    kept = {k: v[keep] if isinstance(v, np.ndarray) else v for k, v in columns.items()}
    ratio = formula.steps[keep] / escape_recursion(**kept, max_steps=20_000)
    reliable = formula.reliable[keep]
    assert reliable.sum() > 100
    assert np.all(np.abs(ratio[reliable] - 1) < 0.2)
    assert np.quantile(np.abs(ratio[reliable] - 1), 0.9) < 0.05
    assert 0.97 < np.median(ratio) < 1.03
    leading = formula.leading[keep] / (formula.steps[keep] / ratio)
    assert np.mean(np.abs(ratio - 1)) < np.mean(np.abs(leading - 1))


def simulate_columns(columns, *, chains=500, horizon=2500, seed=3):
    """First steps with |y| >= 1 along an axis, (chains, settings)."""
    rng = np.random.default_rng(seed)
    c = {name: np.asarray(value, dtype=float) for name, value in columns.items()}
    y = np.zeros((chains, c["gamma"].size))
    D = np.broadcast_to(1 + c["k0"] * (c["delta"] + c["gradient_variance"]), y.shape)
    times = np.full(y.shape, np.inf)
    for t in range(horizon):
        times = np.where((np.abs(y) >= 1) & np.isinf(times), t, times)
        G = -c["gamma"] * y + np.sqrt(c["gradient_variance"]) * rng.standard_normal(y.shape)
        spread = np.sqrt(2 * c["lr"]) * c["sigma"] * D ** (-c["beta"] / 2)
        y = y - c["lr"] * D ** (-c["alpha"] / 2) * G + spread * rng.standard_normal(y.shape)
        y = np.clip(y, -5, 5)
        D = D + G**2 + c["delta"]
    return times


def reliability_grid():
    values = itertools.product(
        [(0, 0.5), (1, 0.5), (1, 1), (1.5, 1), (2, 1), (2.5, 2)], [0.2, 1.0], [0.0, 0.1],
        [0.1, 0.3, 1.0], [0, 100, 1000], [0.5, 0.1],
    )  # fmt: skip
    rows = [(*pair, *rest) for pair, *rest in values]
    names = ("alpha", "beta", "gamma", "gradient_variance", "sigma", "k0", "failure")
    columns = dict(zip(names, np.array(rows, dtype=float).T, strict=True))
    return {**columns, "lr": 0.1, "delta": 0.01}


def test_escape_reliable_predictions_are_within_15_percent_of_simulations():
    # Null: a reliable quantile is within 15 %. 500 chains; a band of 5 standard errors in ranks
    # around the quantile, so that one setting fails by chance once in 1.7 million.
    columns = reliability_grid()
    found = escape_time(**columns)
    keep = found.reliable & (found.steps < 1500)
    assert keep.sum() > 40
    kept = {k: v[keep] if isinstance(v, np.ndarray) else v for k, v in columns.items()}
    times = np.sort(simulate_columns(kept), axis=0)
    chains, failure = len(times), kept["failure"]
    width = 5 * np.sqrt(chains * failure * (1 - failure))
    ranks = (1 - failure) * chains + np.array([[-1], [1]]) * width
    low, high = np.take_along_axis(times, np.clip(ranks, 0, chains - 1).astype(int), axis=0)
    predicted = found.steps[keep]
    assert np.all((predicted >= 0.85 * low) & (predicted <= 1.15 * high + 1))


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        # Inside the ball of the noise: sooner than predicted, by chance.
        ({"alpha": 1.0, "sigma": 0.5, "beta": 0.5, "gamma": 0.5}, 1.25),
        ({"alpha": 1.0, "sigma": 1.0, "beta": 0.5, "gamma": 0.5, "k0": 100, "failure": 0.1}, 2.0),
        # Braked escapes, where late chains are late because they braked.
        ({"alpha": 2.0, "sigma": 0.1, "beta": 0.5, "gamma": 1.0, "failure": 0.1}, 0.6),
        ({"alpha": 2.0, "sigma": 0.1, "beta": 1.0, "gamma": 1.0, "failure": 0.1}, 0.75),
    ],
)
def test_escape_says_where_its_quantiles_are_wrong(change, wrong):
    setting = {"lr": 0.1, "delta": 0.01, "gradient_variance": 0.0, "k0": 0.0, "failure": 0.5}
    setting = {**setting, **change}
    found = escape_time(**setting)
    columns = {name: [value] for name, value in setting.items()}
    truth = np.quantile(simulate_columns(columns, chains=1000), 1 - setting["failure"])
    ratio = found.steps / truth
    assert ratio > wrong if wrong > 1 else ratio < wrong
    assert not found.reliable


def test_escape_alpha_zero_is_the_closed_form():
    result = escape_time(0.5, **{**AGLD, "delta": 0.0}, k0=0, D=30.0)
    hot = temperature(30.0, 0, 1, 0.1)
    clock = 0.5 * np.log1p(0.5 / (0.6744897501960817**2 * hot))
    assert result.clock == pytest.approx(clock)
    assert result.steps == pytest.approx(clock / np.log1p(0.05)) == pytest.approx(result.leading)


def test_escape_alpha_two_is_the_limit_of_alpha_below_two():
    at = escape_time(0.5, **{**BASE, "alpha": 2.0, "beta": 2.0}, k0=50)
    near = escape_time(0.5, **{**BASE, "alpha": 2 - 1e-6, "beta": 2.0}, k0=50)
    assert near.leading == pytest.approx(at.leading, rel=1e-4)
    assert near.steps == pytest.approx(at.steps, rel=1e-4)
    drag, D = 0.11, 1 + 50 * 0.11
    pace = np.log1p(0.05 / D)
    frozen = 0.5 * np.log1p(0.5 / (0.6744897501960817**2 * temperature(
        D, 2, 2, 0.1, lr=0.1, gradient_variance=0.1)))  # fmt: skip
    assert at.leading == pytest.approx(D / drag * np.expm1(drag * frozen / (D * pace)))


def test_escape_without_drag_is_the_limit_of_little_drag():
    still = {
        **BASE,
        "gradient_variance": 0.0,
        "delta": 0.0,
        "D": 5.0,
        "dim": 1000,
        "aligned": False,
    }
    none = escape_time(0.5, **still, bath_curvature=0.0)
    little = escape_time(0.5, **{**still, "delta": 1e-9}, bath_curvature=0.0)
    assert none.leading == pytest.approx(little.leading, rel=1e-5)
    assert none.steps == pytest.approx(little.steps, rel=1e-5)


def test_escape_temperature_is_averaged_over_the_clock():
    # The integral of 2 exp(-2 Gamma) T(D(Gamma)), with D = D_0 + c Gamma / g at alpha = 0.
    found = escape_time(0.5, **{**AGLD, "delta": 0.2}).temperature
    clock = np.linspace(0, 30, 300_001)
    cooling = 2 * np.exp(-2 * clock) * 0.01 / (1 + 0.2 * clock / np.log1p(0.05))
    assert found == pytest.approx(np.sum(cooling) * clock[1], rel=1e-3)


def test_escape_late_saddles_cost_a_power_of_k0():
    k0 = np.array([1e8, 1e9])
    for alpha in (0.5, 1.0, 1.5):
        setting = {
            **BASE,
            "alpha": alpha,
            "beta": alpha / 2,
            "sigma": 0.1,
            "gradient_variance": 0.0,
        }
        steps = escape_time(0.5, **setting, k0=k0).steps
        assert np.diff(np.log(steps))[0] / np.log(10) == pytest.approx(alpha / 2, abs=0.01)
    steps = escape_time(0.5, **AGLD, k0=k0).steps
    assert np.diff(steps)[0] / np.log(10) == pytest.approx(1 / (2 * np.log1p(0.05)), rel=1e-3)


def test_escape_slope_in_beta_at_alpha_zero_is_half_log_D():
    beta = np.array([0.5, 1.0, 2.0])
    steps = escape_time(0.5, **{**AGLD, "beta": beta}, D=1e4).steps
    slope = np.log(1e4) / (2 * np.log1p(0.05))
    np.testing.assert_allclose(np.diff(steps) / np.diff(beta), slope, rtol=1e-3)


def test_escape_gamma_exponents_early_and_late():
    gamma = np.array([1e-4, 2e-4])

    def exponent(**change):
        setting = {**BASE, "gradient_variance": 1.0, "sigma": 0.0, "aligned": False, "dim": 10**6}
        setting = {**setting, "bath_curvature": 0.0, "radius": 1e6, **change}
        return -np.diff(np.log(escape_time(gamma, **setting).leading))[0] / np.log(2)

    assert exponent(alpha=0.0) == pytest.approx(1, abs=0.1)
    assert exponent(alpha=1.0, D=1e16) == pytest.approx(1, abs=0.1)
    assert exponent(alpha=1.0) == pytest.approx(2, abs=0.2)


def test_escape_distance_has_no_dimension_and_value_has_log_dimension():
    dim = np.array([1e3, 1e4, 1e5])
    distance = escape_time(0.5, **AGLD, k0=100, dim=dim).steps
    assert np.ptp(distance) == 0
    value = escape_time(0.5, **AGLD, k0=100, dim=dim, criterion="value").steps
    slopes = np.diff(value) / np.log(10)
    np.testing.assert_allclose(slopes, 1 / (2 * np.log1p(0.05)), rtol=0.06)
    shared = escape_time(0.5, **{**AGLD, "sigma": 1 / np.sqrt(dim)}, k0=100).steps
    np.testing.assert_allclose(np.diff(shared) / np.log(10), 1 / (2 * np.log1p(0.05)), rtol=0.01)


def test_escape_self_braking_breaks_log_dimension_when_aligned():
    dim = np.array([128.0, 2048.0])
    setting = {**BASE, "sigma": 1.0, "k0": 100, "criterion": "value", "drop": 0.5}

    def exponent(aligned):
        steps = escape_recursion(0.5, **setting, dim=dim, aligned=aligned)
        return np.diff(np.log(steps))[0] / np.log(16)

    assert exponent(aligned=True) > 0.5
    assert exponent(aligned=False) < 0.25


def test_escape_braking_onset_doubles_the_accumulator():
    gamma, lr, alpha, D = 0.5, 0.1, 1.0, 50.0
    onset = braking_onset(gamma, lr=lr, alpha=alpha, D=D)
    # Exponential growth up to the onset feeds int gamma^2 y^2 dt = gamma y^2 / (2 h) into D.
    assert gamma * onset**2 / (2 * lr * D ** (-alpha / 2)) == pytest.approx(D)


def test_escape_beyond_the_onset_grows_like_a_root():
    y, D, lr, gamma = 1.0, 1.0, 0.1, 0.5
    for _ in range(200_000):
        y, D = y * (1 + gamma * lr / np.sqrt(D)), D + gamma**2 * y**2
    assert y == pytest.approx(2 * np.sqrt(2) * lr * np.sqrt(200_000), rel=0.03)


def test_escape_needs_noise_along_the_direction():
    silent = {**BASE, "sigma": 0.0, "gradient_variance": 0.0}
    assert np.isinf(escape_time(0.5, **silent).steps)
    assert np.isinf(escape_recursion(0.5, **silent, max_steps=200))
    asg = escape_time(0.5, **{**BASE, "sigma": 0.0}).steps
    assert asg == escape_time(0.5, **{**BASE, "beta": np.inf}).steps
    assert np.isfinite(asg)
    assert asg > escape_time(0.5, **BASE).steps


def test_escape_beyond_alpha_two_may_never_happen():
    never = escape_time(0.05, **{**BASE, "alpha": 3.0, "beta": 3.0}, k0=100)
    assert np.isinf(never.leading)
    assert np.isinf(never.steps)


def test_escape_failure_probability_lengthens_the_wait():
    steps = escape_time(0.5, **AGLD, k0=100, failure=[0.5, 0.1, 0.01, 0.001]).steps
    assert np.all(np.diff(steps) > 0)
    # |N(0,1)| < z has probability 0.8 z, so ten times rarer costs ln 10 / ln(1 + lr gamma).
    assert steps[3] - steps[2] == pytest.approx(np.log(10) / np.log1p(0.05), rel=0.02)


def test_escape_broadcast_matches_scalars():
    k0, gamma = np.array([0, 100]), np.array([[0.3], [0.5], [1.0]])
    together = escape_recursion(gamma, **BASE, k0=k0)
    formula = escape_time(gamma, **BASE, k0=k0)
    assert together.shape == formula.steps.shape == formula.published.shape == (3, 2)
    for i, j in itertools.product(range(3), range(2)):
        assert together[i, j] == escape_recursion(gamma[i, 0], **BASE, k0=k0[j])
        one = escape_time(gamma[i, 0], **BASE, k0=k0[j])
        assert formula.steps[i, j] == pytest.approx(one.steps, rel=1e-12)
        assert isinstance(one.steps, float)
        assert isinstance(one.reliable, bool)


def test_published_escape_time_ignores_k0_and_needs_a_large_constant():
    early, late = (escape_time(0.5, **BASE, k0=k0, dim=100) for k0 in (0, 1e6))
    assert early.published == late.published
    assert late.steps > 100 * early.steps
    assert np.isnan(published_escape_time(0.5, 1, 1, 10, a3=0.1))
    assert published_escape_time(0.5, 0, 1, 10) < published_escape_time(0.5, 1, 1, 10)


def test_effective_curvature_obeys_ostrowski_and_predicts_growth():
    rng = np.random.default_rng(2)
    for alpha in (0.0, 0.5, 1.0):
        basis = np.linalg.qr(rng.standard_normal((12, 12)))[0]
        hessian = basis @ np.diag([-0.5, *rng.uniform(0.2, 2, 11)]) @ basis.T
        D = rng.uniform(1, 30, 12)
        found = effective_curvature(hessian, D, alpha)
        assert 0.5 * D.max() ** (-alpha / 2) <= found <= 0.5 * D.min() ** (-alpha / 2) + 1e-12
        x = rng.standard_normal(12)
        for _ in range(600):
            x = x - 0.1 * D ** (-alpha / 2) * (hessian @ x)
            size = np.linalg.norm(x)
            x = x / size
        assert size == pytest.approx(1 + 0.1 * found, rel=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": 0.0}, "negative curvature -gamma"),
        ({"lr": 0.0}, "lr=0.0"),
        ({"beta": -1.0}, "sigma=0"),
        ({"failure": 1.0}, "failure=1.0"),
        ({"criterion": "time"}, "criterion='time': need one of 'distance', 'value'"),
        ({"dim": 0}, "dim=0.0"),
        ({"D": 0.0}, "D=0.0"),
    ],
)
def test_escape_refuses_what_is_not_defined(change, message):
    for function in (escape_time, escape_recursion):
        with pytest.raises(ValueError, match=message):
            function(**{"gamma": 0.5, **BASE, **change})
    with pytest.raises(ValueError, match="do not fit"):
        effective_curvature(np.eye(3), np.ones(2), 1.0)
