"""Estimates: intervals that cover, slopes of known laws, and times of which some are censored."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tiny_report import point

from asgld_study.statistics import (
    bootstrap_medians,
    crossing_slope,
    earlier,
    fit_growth,
    fit_slope,
    mean,
    median,
    misfit,
    ratio_of_means,
    ratio_of_medians,
    scaled,
    share,
    slope,
    survival,
    survival_median,
    time_slope,
)


def test_intervals_cover_what_they_should() -> None:
    """Null: 95 % coverage. 200 samples each; fewer than 172 covers are 5 sigma away."""
    rng, x = np.random.default_rng(0), np.linspace(0.0, 4.0, 20)
    covers = dict.fromkeys(("share", "earlier", "ratio", "median", "mean", "slope"), 0)
    for _ in range(200):
        a, b = rng.exponential(size=(2, 60))
        columns = np.exp(-0.5 * x)[:, None] * rng.chisquare(4, size=(len(x), 60))
        for name, found, truth in (
            ("share", share(a < 1.0), 1 - math.exp(-1)),
            ("earlier", earlier(a.tolist(), b.tolist()), 0.5),
            ("ratio", ratio_of_medians(a.tolist(), b.tolist()), 1.0),
            ("median", median(a.tolist()), math.log(2)),
            ("mean", mean(a), 1.0),
            ("slope", slope(x, columns), -0.5),
        ):
            covers[name] += found["low"] <= truth <= found["high"]
    assert min(covers.values()) >= 172, covers


def test_infinite_times_are_late_and_not_missing() -> None:
    assert median([1.0, 2.0, math.inf, math.inf, math.inf])["value"] == math.inf
    always = earlier([5.0] * 9, [math.inf] * 9)
    assert always["value"] == always["high"] == 1.0
    assert 0.5 < always["low"] < 0.8
    assert earlier([math.inf] * 9, [math.inf] * 9)["value"] == 0.5
    assert ratio_of_medians([math.inf] * 5, [1.0] * 5)["value"] == math.inf


def test_slopes_and_ratios_of_known_laws() -> None:
    x, rows = [1.0, 2.0, 3.0], [[7.0 * math.exp(2.0 * t)] * 4 for t in (1.0, 2.0, 3.0)]
    for fit in (crossing_slope(x, rows), time_slope(x, rows)):
        assert [fit["low"], fit["value"], fit["high"]] == pytest.approx([2.0] * 3)
    assert math.isnan(crossing_slope(x, [[math.inf]] * 3)["value"])
    found = ratio_of_means(point(3.8, 4.2), point(1.9, 2.1))
    assert found["low"] < 2.0 < found["high"]
    assert found["value"] == pytest.approx(2.0)
    assert scaled(point(1.0, 3.0), -2.0) == point(-6.0, -2.0)
    assert mean([2.0]) == point(2.0)
    worst, best = misfit([2.0, 4.0, 8.0], np.array([[1.0, 1.0, 1.0], [1.0, 2.0, 4.0]]))
    assert (worst, best) == (pytest.approx(0.0), 1)


def test_median_is_that_of_the_sample_without_censoring() -> None:
    times = np.random.default_rng(0).exponential(size=31)
    assert survival_median(times, np.ones(31, bool)) == np.median(times)


def test_median_of_censored_times_is_unbiased_where_a_naive_one_is_not() -> None:
    # T and C exponential: the true median of T is ln 2. Standard error of the estimate over 4000
    # draws is below 0.02; the threshold is five of them.
    rng = np.random.default_rng(1)
    event, censor = rng.exponential(size=4000), rng.exponential(2.0, size=4000)
    times, is_event = np.minimum(event, censor), event <= censor
    assert abs(survival_median(times, is_event) - math.log(2)) < 0.1
    assert abs(np.median(times) - math.log(2)) > 0.1


def test_median_is_infinite_where_most_never_arrive() -> None:
    # Times censored at the time of an event were still at risk then.
    alive = survival([1.0, 2.0, 2.0], [True, True, False])[1]
    assert alive.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert survival_median([1.0, 2.0, *[np.inf] * 3], [True, True, *[False] * 3]) == math.inf
    assert survival([5.0, 5.0], [False, False])[0].size == 0


def test_slope_of_medians_covers_the_truth() -> None:
    # 40 seeds per point around 10 + 7 x; the interval is of 95 %, the fit must be within 5 sigma.
    rng = np.random.default_rng(2)
    x = [1.0, 2.0, 3.0, 4.0]
    samples = [(10 + 7 * a + rng.normal(size=40), np.ones(40, bool)) for a in x]
    fit = fit_slope(x, samples, log_time=False)
    assert abs(fit["value"] - 7.0) < 5 * 1.25 / math.sqrt(40 * 5)
    assert fit["low"] < fit["value"] < fit["high"]
    samples[1] = (np.full(40, np.inf), np.zeros(40, bool))
    assert fit_slope(x, samples, log_time=False)["points"] == 3
    assert math.isnan(fit_slope(x[:1], samples[:1], log_time=True)["value"])


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("log d", lambda d: 20 + 9 * np.log(d)),
        ("log^2 d", lambda d: 5 + 3 * np.log(d) ** 2),
        ("d^q", lambda d: 3 * d**0.7),
    ],
)
def test_growth_names_the_law(name: str, law: Callable[[Any], Any]) -> None:
    dims = np.array([4, 16, 64, 256, 1024, 4096])
    times = law(dims) * (1 + 0.01 * np.random.default_rng(3).normal(size=6))
    laws, power = fit_growth(dims, times)
    assert laws == name
    assert (power > 0.6) is (name == "d^q")
    assert fit_growth(dims[:3], times[:3])[0] == "too few points"


def test_bootstrap_has_the_medians_of_its_samples() -> None:
    rng = np.random.default_rng(4)
    times = rng.exponential(size=9)
    late = np.where(times < 1.0, times, 1.0)
    for sample in ((times, np.ones(9, bool)), (late, times < 1.0), (times, times < 0.8),
                   (times, rng.random(9) < 0.5)):  # fmt: skip
        found = bootstrap_medians(sample, 50, np.random.default_rng(5))
        draws = np.random.default_rng(5).integers(9, size=(50, 9))
        assert found.tolist() == [survival_median(sample[0][d], sample[1][d]) for d in draws]
