"""R-hat, effective sample sizes and standard errors: against arviz, by hand, and by simulation."""

from __future__ import annotations

import math
import tracemalloc
import warnings
from statistics import NormalDist

import numpy as np
import pytest
import torch

from asgld.sampling import diagnosis
from asgld.sampling.diagnosis import (
    average_ranks,
    ess_bulk,
    ess_mean,
    ess_sd,
    ess_tail,
    mcse_mean,
    mcse_sd,
    rhat,
)

FUNCTIONS = (rhat, ess_bulk, ess_tail, ess_mean, ess_sd, mcse_mean, mcse_sd)
SIZES = (ess_bulk, ess_tail, ess_mean, ess_sd)


def ar1(seed, chains, draws, d, rho):
    """Stationary chains x' = rho x + noise with variance 1."""
    x = np.random.default_rng(seed).standard_normal((chains, draws, d))
    x[:, 1:] *= math.sqrt(1 - rho**2)
    for t in range(1, draws):
        x[:, t] += rho * x[:, t - 1]
    return x


@pytest.fixture(scope="module")
def arviz():
    """Functions of arviz, by the names of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # arviz 0.23 announces arviz 1 when it is imported
        az = pytest.importorskip("arviz")
    if not az.__version__.startswith("0."):
        pytest.skip("arviz 1 has other functions")

    def of(method, estimate):
        return lambda x: float(estimate(x, method=method))

    return {
        "rhat": of("rank", az.rhat),
        **{f"ess_{method}": of(method, az.ess) for method in ("bulk", "tail", "mean", "sd")},
        **{f"mcse_{method}": of(method, az.mcse) for method in ("mean", "sd")},
    }


# ---------------------------------------------------------------------------------- arviz


def assert_equal_to_arviz(arviz, x):
    for function in FUNCTIONS:
        expected = [arviz[function.__name__](x[:, :, i]) for i in range(x.shape[2])]
        np.testing.assert_allclose(function(x), expected, rtol=1e-10, err_msg=function.__name__)


@pytest.mark.parametrize("chains", [1, 2, 4, 64])
@pytest.mark.parametrize("draws", [4, 5, 6, 7, 8, 9, 21, 50, 101, 333])
@pytest.mark.parametrize("rho", [-0.8, 0.0, 0.5, 0.95])
def test_equal_to_arviz(arviz, chains, draws, rho):
    x = ar1(draws, chains, draws, 2, rho)
    x[:, :, 1] = 7 + 1e-3 * x[:, :, 1]
    assert_equal_to_arviz(arviz, x)


@pytest.mark.parametrize("apart", [0.3, 3.0, 100.0])
@pytest.mark.parametrize("chains", [2, 4, 64])
def test_equal_to_arviz_where_chains_disagree(arviz, chains, apart):
    x = ar1(0, chains, 201, 3, 0.7)
    x[:, :, 0] += apart * np.arange(chains)[:, None]
    x[:, :, 1] *= 1 + apart * np.arange(chains)[:, None]
    x[:, :, 2] += apart * np.linspace(0, 1, 201)
    assert_equal_to_arviz(arviz, x)


def test_equal_to_arviz_where_draws_repeat(arviz):
    x = np.round(ar1(3, 4, 300, 4, 0.6), 1)  # the tails are apart: arviz rounds their quantiles
    for function in (rhat, ess_bulk, ess_mean, ess_sd, mcse_mean, mcse_sd):
        expected = [arviz[function.__name__](x[:, :, i]) for i in range(4)]
        np.testing.assert_allclose(function(x), expected, rtol=1e-10)


# --------------------------------------------------------------------------- exact cases


def test_rhat_by_hand():
    quantile = NormalDist().inv_cdf
    x = np.array([[1.0, 3.0, 2.0, 8.0], [4.0, 7.0, 5.0, 6.0]])  # ranks are the values
    z = [[quantile((rank - 3 / 8) / 8.25) for rank in half] for half in x.reshape(4, 2)]
    folded = np.array([[8, 4], [6, 8], [2, 6], [2, 4]])  # |x - 4.5| is 3.5 1.5 2.5 3.5 0.5 ...
    average = {2: 1.5, 4: 3.5, 6: 5.5, 8: 7.5}
    assert np.array_equal(2 * average_ranks(np.abs(x - 4.5).reshape(1, 8)), 2 * np.array(
        [[average[rank] for rank in folded.ravel()]]
    ))  # fmt: skip
    y = [[quantile((average[rank] - 3 / 8) / 8.25) for rank in half] for half in folded]
    values = []
    for scores in (np.array(z), np.array(y)):
        within = np.mean(np.diff(scores, axis=1) ** 2 / 2)
        between = 2 * np.sum((scores.mean(axis=1) - scores.mean()) ** 2) / 3
        values.append(math.sqrt((between / within + 1) / 2))
    assert rhat(x) == pytest.approx(max(values), rel=1e-12)


def test_effective_size_by_hand():
    # Halves (0, 1): variance 1/4, covariance -1/8, hence negative at once: the size is capped.
    assert ess_mean([[0.0, 1.0, 0.0, 1.0]]) == pytest.approx(4 * math.log10(4), rel=1e-12)
    # Halves (0, 0, 0, 1, 1, 1): covariances of lags 0 .. 3 are 1/4, 1/8, 0, -1/8.
    x = np.array([[0, 0, 0, 1, 1, 1] * 2], dtype=float)
    rho = [1 - (0.3 - each) / 0.25 for each in (0.125, 0.0)]
    time = 2 * (1 + rho[0]) - 1 + max(rho[1], 0)
    assert ess_mean(x) == pytest.approx(12 / time, rel=1e-12)


def test_standard_errors_are_spread_over_root_of_size():
    x = ar1(1, 3, 100, 5, 0.4)
    np.testing.assert_allclose(mcse_mean(x), x.std(axis=(0, 1), ddof=1) / np.sqrt(ess_mean(x)))
    centered = x - x.mean(axis=(0, 1))
    var_of_var = np.var(centered**2, axis=(0, 1)) / ess_sd(x)
    np.testing.assert_allclose(mcse_sd(x), np.sqrt(var_of_var) / (2 * x.std(axis=(0, 1))))


def test_alternating_draws_are_worth_more_than_they_are():
    x = np.tile([-1.0, 1.0], (4, 50))
    assert ess_mean(x) == pytest.approx(400 * math.log10(400), rel=1e-12)


def test_ranks_of_ties_are_averaged():
    ranks = average_ranks(np.array([[3.0, 1.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0]]))
    assert ranks.tolist() == [[3.5, 1.0, 3.5, 2.0], [2.5, 2.5, 2.5, 2.5]]


# -------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize("function", FUNCTIONS)
def test_shapes_and_types(function):
    x = ar1(2, 4, 30, 3, 0.5)
    found = function(x)
    assert (found.shape, found.dtype) == ((3,), np.float64)
    one = function(x[:, :, 1])
    assert isinstance(one, np.ndarray)
    assert (one.shape, one.dtype) == ((), np.float64)
    assert one == found[1]
    assert function(x[:, :, :0]).shape == (0,)
    np.testing.assert_array_equal(function(torch.from_numpy(x)), found)
    np.testing.assert_array_equal(function(np.asfortranarray(x)), found)
    for wrong in (x[0, :, 0], x[None]):
        with pytest.raises(ValueError, match="chains, draws"):
            function(wrong)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_blocks_change_nothing(function, monkeypatch):
    x = ar1(4, 3, 41, 7, 0.5)
    x[1, 2, 3] = np.nan
    whole = function(x)
    monkeypatch.setattr(diagnosis, "BLOCK", 2 * 3 * 41)
    np.testing.assert_array_equal(function(x), whole)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_memory_does_not_grow_with_columns(function, monkeypatch):
    monkeypatch.setattr(diagnosis, "BLOCK", 1 << 13)

    def peak(x):
        tracemalloc.start()
        function(x)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    x = ar1(5, 4, 64, 512, 0.5)
    peak(x[:, :, :32])  # what is imported and cached once
    assert peak(x) < 1.3 * peak(x[:, :, :64]) < 32 * 8 * diagnosis.BLOCK


# ---------------------------------------------------------------------------- edge cases


@pytest.mark.parametrize("function", FUNCTIONS)
def test_columns_without_an_answer_are_nan(function):
    x = ar1(6, 4, 40, 6, 0.3)
    expected = function(x)
    x[:, :, 0] = 0.1
    x[2, 7, 1] = np.nan
    x[0, 0, 2] = np.inf
    x[:, :, 3] = 1e20
    found = function(x)
    assert np.isnan(found[:4]).all()
    np.testing.assert_array_equal(found[4:], expected[4:])
    assert np.isfinite(found[4:]).all()


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("draws", [0, 1, 2, 3])
def test_too_few_draws_are_nan(function, draws):
    assert np.isnan(function(np.ones((4, draws, 2)) * np.arange(4)[:, None, None])).all()
    assert np.isnan(function(np.zeros((0, draws, 2)))).all()


def test_one_chain_has_no_rhat_but_sizes():
    x = ar1(7, 1, 100, 2, 0.0)
    assert np.isnan(rhat(x)).all()
    for function in (*SIZES, mcse_mean, mcse_sd):
        assert (function(x) > 0).all()


def test_chains_that_stand_still_apart():
    x = np.repeat(np.array([[0.0], [1.0], [3.0]]), 20, axis=1)
    assert rhat(x) > 1e6
    assert ess_mean(x) < 6  # halves of chains, not draws, are what was seen


def test_draws_of_two_values():
    x = np.sign(ar1(8, 4, 200, 3, 0.0))
    assert (rhat(x) < 1.05).all()
    assert all((function(x) > 0).all() for function in SIZES)
    balanced = np.tile([-1.0, 1.0, 1.0, -1.0], (4, 10))
    assert ess_sd(balanced) == 160  # squares are all 1
    assert mcse_sd(balanced) == 0


@pytest.mark.parametrize("scale", [1e-60, 1e60])
def test_extreme_scales(scale):
    x = ar1(9, 4, 100, 2, 0.5)
    for function in FUNCTIONS:
        right = function(x) * (scale if function in (mcse_mean, mcse_sd) else 1)
        np.testing.assert_allclose(function(scale * x), right, rtol=1e-8)


def test_squares_that_overflow_are_nan():
    x = 1e300 * ar1(9, 4, 100, 2, 0.5)
    for function in (ess_mean, ess_sd, mcse_mean, mcse_sd):
        assert np.isnan(function(x)).all()
    for function in (rhat, ess_bulk, ess_tail):
        assert np.isfinite(function(x)).all()


# ---------------------------------------------------------------------------- properties


def test_ranks_do_not_see_the_scale():
    x = ar1(10, 4, 101, 3, 0.5)
    np.testing.assert_allclose(ess_bulk(np.exp(x)), ess_bulk(x), rtol=1e-12)
    for function in (rhat, *SIZES):
        np.testing.assert_allclose(function(3 - 2 * x[::-1])[:1], function(-x)[:1], rtol=1e-9)
    for function in (mcse_mean, mcse_sd):
        np.testing.assert_allclose(function(5 - 2 * x), 2 * function(x), rtol=1e-9)


def test_two_far_modes_are_seen():
    x = ar1(11, 4, 500, 20, 0.5)
    x[:2] += 10
    assert (rhat(x) > 1.5).all()
    assert (ess_bulk(x) < 10).all()


def test_different_spreads_are_seen_by_folding():
    x = ar1(12, 4, 500, 20, 0.0)
    x[0] *= 5
    assert (rhat(x) > 1.1).all()


def test_drift_is_seen_by_splitting():
    x = ar1(13, 4, 500, 20, 0.0) + np.linspace(0, 3, 500)[:, None]
    assert (rhat(x) > 1.1).all()


def test_independent_draws_pass():
    """False alarms have a rate below 1e-12 for a column.

    8 halves of 500 draws pass 1.01 when chi2(7) / 7 > 1 + 500 (1.01^2 - 1) = 11, in bulk or folded.
    """
    x = np.random.default_rng(14).standard_normal((4, 1000, 300))
    assert (rhat(x) < 1.01).all()


@pytest.mark.parametrize("rho", [-0.3, 0.5, 0.8, 0.9])
def test_effective_sizes_of_autoregressive_chains(rho):
    x = ar1(15, 4, 1000, 250, rho)
    for function, ratio in (
        (ess_mean, (1 - rho) / (1 + rho)),
        (ess_bulk, (1 - rho) / (1 + rho)),
        (ess_sd, (1 - rho**2) / (1 + rho**2)),
    ):
        found, expected = function(x), 4000 * ratio
        sigma = found.std()
        if function is not ess_sd:
            assert (np.abs(found - expected) < 5 * sigma).all()
        # The cut of the sequence leaves a bias of at most 5 %.
        assert abs(found.mean() - expected) < 5 * sigma / math.sqrt(250) + 0.05 * expected


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_standard_errors_are_the_spread_of_estimates(rho):
    columns = 400
    x = ar1(16, 4, 500, columns, rho)
    for function, estimate in ((mcse_mean, np.mean), (mcse_sd, np.std)):
        seen = estimate(x, axis=(0, 1)).std()
        ratio = seen / np.sqrt(np.mean(function(x) ** 2))
        assert abs(ratio - 1) < 5 / math.sqrt(2 * columns)


def test_tails_of_independent_draws_are_worth_their_number():
    found = ess_tail(ar1(17, 4, 1000, 200, 0.0))
    assert abs(found.mean() / 4000 - 1) < 0.1
