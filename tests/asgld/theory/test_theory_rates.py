"""Orders in k: the table of terms, borders, ties, limits, and what the paper prints."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from asgld.theory import rate, region, sum_order

INF = np.inf
ALPHAS = np.array([0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0])
BETAS = np.array([0.0, 0.125, 0.25, 0.5, 0.625, 0.75, 0.875, 1.0, 1.5, 2.0, 5.0])
THETAS = np.array([0.0, 0.25, 0.5, 1.0, 2.0])
GRID = np.meshgrid(ALPHAS, BETAS, THETAS, indexing="ij")

# term, alpha, beta, theta, power of k, power of log k: a row for each cell of the table of orders.
CELLS = [
    ("I1", 0.0, 2.0, 0.0, -1.0, 0),
    ("I1", 0.5, 2.0, 0.0, -0.75, 0),
    ("I1", 1.5, 2.0, 0.0, -0.25, 0),
    ("I1", 2.0, 2.0, 0.0, 0.0, -1),
    ("I2", 0.0, 2.0, 0.0, 0.0, 0),
    ("I2", 0.0, 2.0, 0.3, -0.3, 0),
    ("I2", 0.5, 2.0, 0.25, -0.5, 0),
    ("I2", 0.0, 2.0, 1.0, -1.0, 1),
    ("I2", 0.5, 2.0, 0.5, -0.75, 1),
    ("I2", 1.0, 2.0, 0.0, -0.5, 1),
    ("I2", 0.0, 2.0, 1.5, -1.0, 0),
    ("I2", 1.5, 2.0, 0.0, -0.25, 0),
    ("I2", 2.0, 2.0, 0.0, 0.0, -1),
    ("I3", 0.0, 0.5, 0.0, -0.5, 0),
    ("I3", 0.5, 0.5, 0.0, -0.25, 0),
    ("I3", 2.0, 0.5, 0.0, 0.5, -1),
    ("I3", 0.0, 1.0, 0.0, -1.0, 1),
    ("I3", 0.5, 1.0, 0.0, -0.75, 1),
    ("I3", 2.0, 1.0, 0.0, 0.0, 0),
    ("I3", 0.0, 2.0, 0.0, -1.0, 0),
    ("I3", 1.5, 3.0, 0.0, -0.25, 0),
    ("I3", 2.0, 2.0, 0.0, 0.0, -1),
]


@pytest.mark.parametrize(("term", "alpha", "beta", "theta", "power", "log_power"), CELLS)
def test_rates_order_of_each_term_in_each_regime(term, alpha, beta, theta, power, log_power):
    order = rate(alpha, beta, theta=theta).orders[term]
    assert order.power == pytest.approx(power, abs=1e-12)
    assert order.log_power == log_power


@pytest.mark.parametrize(("term", "alpha", "beta", "theta", "power", "log_power"), CELLS)
def test_rates_order_of_each_term_matches_the_sums_themselves(
    term, alpha, beta, theta, power, log_power
):
    j = np.arange(1.0, 4e6)
    exponent = {"I1": None, "I2": alpha + theta, "I3": beta}[term]
    above = np.ones_like(j) if exponent is None else np.cumsum(j**-exponent)
    ratio = above / np.cumsum(j ** (-alpha / 2))
    k = np.array([4_000, 40_000, 400_000, 3_999_998])
    scaled = ratio[k] / (k**power * np.log(k) ** log_power)
    drift = np.diff(np.log(scaled)) / np.diff(np.log(k))
    # Sub-leading parts fade like k^(phi-1) or 1/log k: a wrong power would leave a drift of 0.25
    # or more, a wrong log one of 1/log k = 0.065 or more.
    assert np.abs(drift[-1]) < 0.045
    assert np.abs(drift[-1]) <= np.abs(drift[0]) + 1e-4


def test_rates_overall_formula_on_the_whole_grid():
    alpha, beta, theta = (axis[:-1] for axis in GRID)
    result = rate(alpha, beta, theta=theta)
    decider = np.minimum(alpha + theta, beta)
    np.testing.assert_allclose(result.exponent, np.minimum(1, decider) - alpha / 2, atol=1e-12)
    np.testing.assert_array_equal(result.log_power, decider == 1)
    np.testing.assert_array_equal(result.converges, np.minimum(alpha + theta, beta) > alpha / 2)


def test_rates_agld_drops_the_sampling_noise_and_asg_the_injected():
    alpha, beta = np.meshgrid(ALPHAS[:-1], BETAS)
    agld = rate(alpha, beta, method="agld")
    np.testing.assert_allclose(agld.exponent, np.minimum(1, beta) - alpha / 2, atol=1e-12)
    np.testing.assert_array_equal(agld.log_power, beta == 1)
    asg = rate(ALPHAS[:-1], method="asg")
    np.testing.assert_allclose(asg.exponent, np.minimum(1, ALPHAS[:-1]) - ALPHAS[:-1] / 2)
    np.testing.assert_array_equal(asg.log_power, ALPHAS[:-1] == 1)
    np.testing.assert_array_equal(asg.exponent, rate(ALPHAS[:-1], INF).exponent)


@pytest.mark.parametrize(
    ("alpha", "beta", "expected"),
    [(2.0, 1.5, "converges"), (2.0, 1.0, "plateau"), (2.0, 0.9, "grows"), (2.1, 3.0, "frozen")],
)
def test_rates_at_and_beyond_alpha_two(alpha, beta, expected):
    assert region(alpha, beta) == expected
    if expected == "converges":
        assert rate(alpha, beta).formula == "1/log k"


@pytest.mark.parametrize("alpha", [0.25, 0.5, 1.0, 1.5, 1.9])
def test_region_border_is_beta_equal_alpha_half(alpha):
    edge = alpha / 2
    found = region(alpha, [edge - 1e-6, edge, edge + 1e-6]).tolist()
    assert found == ["grows", "plateau", "converges"]


def test_region_alpha_zero_needs_full_gradients_or_growing_batches():
    assert region(0, 1) == "plateau"
    assert region(0, 1, theta=1e-3) == "converges"
    assert region(0, 1e-3, method="agld") == "converges"
    assert region(0, method="asg") == "plateau"
    assert region(0, 0, method="sgld") == region(0, 0) == "plateau"
    assert region(0, 0, method="sgld", theta=1.0) == "plateau"


def test_rates_ties_are_named_and_have_no_log_below_one():
    tie = rate(0.5, 0.5)
    assert (tie.exponent, tie.log_power, tie.dominant) == (0.25, 0, "I2+I3")
    assert rate(1, 1).dominant == "I2+I3"
    assert rate(1.5, 2).dominant == "I1+I2+I3"
    assert rate(1.5, 1).dominant == "I3"
    assert rate(0.5, 1).dominant == "I2"
    assert rate(0, INF, method="agld").dominant == "I1"


def test_rates_borders_survive_rounding():
    assert rate(0.7, 2, theta=0.1 + 0.2).log_power == 1
    assert rate(1 / 3, 0.1 + 0.2 + 0.7).log_power == 0
    assert rate(2.0, 0.1 * 3 + 0.7).region == "plateau"
    assert rate(0.2 * 3, 0.1 * 3).region == "plateau"


def test_rates_monotone_in_beta_and_theta():
    alpha, beta, theta = GRID
    by_beta = np.diff(rate(alpha, beta, theta=theta).exponent, axis=1)
    by_theta = np.diff(rate(alpha, beta, theta=theta).exponent, axis=2)
    assert np.all(by_beta >= -1e-12)
    assert np.all(by_theta >= -1e-12)


def test_rates_alpha_above_one_improves_no_guarantee():
    beta = np.linspace(0.6, 3, 25)
    best = rate(1.0, beta).exponent
    for alpha in np.linspace(1.01, 2, 12):
        assert np.all(rate(alpha, beta).exponent <= best + 1e-12)


def test_rates_limit_alpha_to_zero_of_agld_is_continuous():
    beta = np.array([0.3, 0.7, 2.0])
    near, at = rate(1e-9, beta, method="agld"), rate(0.0, beta, method="agld")
    np.testing.assert_allclose(near.exponent, at.exponent, atol=1e-8)


def test_rates_limit_beta_to_infinity_is_asg():
    for alpha, beta in itertools.product(ALPHAS, (2.0, 50.0, INF)):
        assert rate(alpha, beta).exponent == rate(alpha, method="asg").exponent


def test_rates_linear_batch_at_one_one_keeps_the_log():
    constant, linear = rate(1, 1), rate(1, 1, theta=1)
    assert (
        (linear.exponent, linear.log_power) == (constant.exponent, constant.log_power) == (0.5, 1)
    )
    assert linear.dominant == "I3"
    assert rate(1, 2, theta=1).log_power == 0


@pytest.mark.parametrize(
    ("alpha", "beta", "theta", "method", "expected"),
    [
        (1.0, 1.0, 0.0, "asgld", 0.5),
        (0.5, 2.0, 0.0, "asgld", 0.25),
        (1.5, 2.0, 0.0, "asgld", 0.75),
        (0.0, 2.0, 0.0, "agld", 2.0),
        (0.0, 1.0, 0.5, "asgld", 0.5),
        (1.0, 0.25, 0.0, "asgld", -1 / 3),
    ],
)
def test_rates_last_iterate_has_no_cap_at_one(alpha, beta, theta, method, expected):
    found = rate(alpha, beta, theta=theta, method=method).last_iterate
    assert found == pytest.approx(expected)


def test_rates_last_iterate_when_heating_follows_its_own_gradients():
    # E x^2 = v in a basin of curvature 1, fed by noise of variance 2 lr sigma^2 D^-beta.
    for alpha, beta in [(1.0, 0.25), (1.0, 0.4), (0.5, 0.0)]:
        v, D, squares = 0.0, 1.0, {}
        for k in range(100_001):
            if k in (10_000, 100_000):
                squares[k] = v
            h = 0.1 * D ** (-alpha / 2)
            v, D = (1 - h) ** 2 * v + 0.2 * 0.09 * D**-beta, D + v + 1e-3
        slope = np.log(squares[100_000] / squares[10_000]) / np.log(10)
        assert -slope == pytest.approx(rate(alpha, beta).last_iterate, abs=0.03)
    assert np.isnan(rate([1.0, 2.0], [0.0, 2.0]).last_iterate).all()


def test_published_theorem_two_case_by_case():
    def printed(alpha, beta):
        result = rate(alpha, beta, version="published")
        return result.exponent, result.log_power

    assert printed(2.0, 1.5) == (0.0, -1)
    assert printed(1.5, 2.0) == (1.25, 1)
    assert printed(1.5, 1.0) == (0.25, 1)
    assert printed(1.5, 0.9) == (0.25, 0)
    assert printed(1.0, 2.0) == (0.5, 1)
    assert printed(1.0, 1.0) == (0.5, 0)
    assert printed(1.0, 0.75) == (0.25, 0)
    assert printed(0.5, 1.0) == (0.25, 0)
    assert printed(0.5, 0.5) == (0.25, 0)
    assert printed(0.5, 0.375) == (0.125, 0)


def test_published_theorem_two_swaps_the_halves_of_case_two():
    for alpha in (1.1, 1.5, 1.9):
        above, below = 2.0, 0.5 * (alpha / 2 + 1)
        wrong, right = rate(alpha, above, version="published"), rate(alpha, above)
        assert wrong.exponent == pytest.approx(above - alpha / 2)
        assert right.exponent == pytest.approx(1 - alpha / 2)
        wrong, right = rate(alpha, below, version="published"), rate(alpha, below)
        assert wrong.exponent == pytest.approx(1 - alpha / 2)
        assert right.exponent == pytest.approx(below - alpha / 2)
        assert right.exponent < wrong.exponent


def test_published_is_never_slower_than_corrected_where_it_speaks():
    alpha, beta = np.meshgrid(np.linspace(0, 2, 41), np.linspace(0.05, 3, 60))
    for method in ("asgld", "agld"):
        printed = rate(alpha, beta, method=method, version="published")
        correct = rate(alpha, beta, method=method)
        speaks = ~np.isnan(printed.exponent)
        assert np.all(printed.exponent[speaks] >= correct.exponent[speaks] - 1e-9)
        assert np.all(correct.converges[speaks])


def test_published_batch_theorem_and_silence():
    assert rate(0, 1, theta=0.25, version="published").exponent == 0.25
    assert rate(0, 1, theta=1, version="published").exponent == 1
    assert rate(0, 0.5, theta=1, version="published").exponent == 0.5
    assert rate(1, 1, theta=1, version="published").exponent == 0.5
    for silent in (
        rate(0.5, 1, theta=0.5, version="published"),
        rate(1, 0.5, version="published"),
        rate(2.5, 3, version="published"),
        rate(0, 1, version="published"),
    ):
        assert np.isnan(silent.exponent)
        assert silent.region == "not covered"
        assert not silent.converges
        assert "no statement" in silent.sentence


def test_published_agld_and_asg_lack_logs():
    for alpha in (0.5, 1.0, 1.5):
        printed = rate(alpha, 1, method="agld", version="published")
        correct = rate(alpha, 1, method="agld")
        assert printed.exponent == correct.exponent
        assert (printed.log_power, correct.log_power) == (0, 1)
    printed, correct = (rate(1, method="asg", version=v) for v in ("published", "corrected"))
    assert (printed.log_power, correct.log_power) == (0, 1)
    assert rate(0, 2, method="agld", version="published").log_power == 1
    assert rate(0, 2, method="agld").log_power == 0


@pytest.mark.parametrize("phi", [0.0, 0.5, 1.0, 1.5, 2.0])
def test_lemma_two_against_numerical_sums(phi):
    j = np.arange(1.0, 2e6)
    sums = np.cumsum(j**-phi)
    k = np.array([1_000, 1_999_998])
    correct, printed = sum_order(phi), sum_order(phi, version="published")
    growth = np.log(sums[k[1]] / sums[k[0]]) / np.log(k[1] / k[0])
    if phi == 1:
        assert correct.log_power == printed.log_power == 1
        assert sums[k[1]] / sums[k[0]] == pytest.approx(np.log(k[1]) / np.log(k[0]), rel=0.06)
    else:
        assert growth == pytest.approx(correct.power, abs=0.02)
        assert (abs(growth - printed.power) < 0.02) == (phi < 1)


def test_rates_broadcast_and_match_scalars():
    result = rate(ALPHAS[:, None], BETAS[None, :], theta=0.5)
    assert result.exponent.shape == (len(ALPHAS), len(BETAS)) == result.sentence.shape
    for i, j in itertools.product(range(len(ALPHAS)), range(len(BETAS))):
        one = rate(ALPHAS[i], BETAS[j], theta=0.5)
        assert isinstance(one.exponent, float)
        assert isinstance(one.converges, bool)
        assert one.exponent == result.exponent[i, j]
        assert one.dominant == result.dominant[i, j]
        assert one.sentence == result.sentence[i, j]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((-1, 1), {}), "alpha=-1.0: need alpha >= 0"),
        (((1, -1), {}), "use beta=inf"),
        (((1, float("nan")), {}), "beta=nan"),
        (((1, 1), {"theta": -0.5}), "theta=-0.5"),
        (((1, 1), {"method": "adam"}), "method='adam': need one of 'asgld'"),
        (((1, 1), {"version": "new"}), "version='new'"),
        (((0, 1), {"method": "agld", "theta": 1}), "AGLD uses full gradients"),
        (((1, 1), {"method": "sgld"}), "alpha = beta = 0"),
    ],
)
def test_rates_refuse_what_is_not_defined(arguments, message):
    positional, named = arguments
    with pytest.raises(ValueError, match=message):
        rate(*positional, **named)
