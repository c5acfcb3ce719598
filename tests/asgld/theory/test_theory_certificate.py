"""The certificates against plain simulations of the rule, and what happens when a constant lies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from helpers import ROOT

from asgld.theory import Accumulators, certificate, expected_certificate, noise_scale

P = 0.05
REPLICAS = 400
# A true failure rate of P leads to more failures than this once in 3.5 million (5 sigma).
ALLOWED = P * REPLICAS + 5 * np.sqrt(REPLICAS * P * (1 - P))


@dataclass(frozen=True)
class Config:
    """One setting of the rule, on f = sum 1 - cos x_i (M = 1) or on |x|^2/2 (M = 1)."""

    alpha: float
    beta: float
    lr: float = 0.5
    sigma: float = 0.3
    gradient_variance: float = 0.0
    batch_growth: float = 0.0
    convex: bool = False
    d_init: float = 1.0
    delta: float = 0.1
    dim: int = 10
    steps: int = 400

    @property
    def kappa(self):
        return noise_scale(
            self.d_init,
            alpha=self.alpha,
            beta=self.beta,
            sigma=self.sigma,
            lr=self.lr,
            gradient_variance=self.gradient_variance,
        )


CONFIGS = {
    "agld": Config(0.0, 1.0),
    "agld cooled fast": Config(0.0, 2.0, sigma=1.0),
    "asgld": Config(1.0, 1.0, gradient_variance=0.3),
    "asgld growing batch": Config(0.0, 1.0, gradient_variance=0.3, batch_growth=0.5),
    "asg": Config(1.0, np.inf, sigma=0.0, gradient_variance=1.0),
    "fixed temperature": Config(1.0, 0.5, gradient_variance=0.3),
    "nearly unstable step": Config(0.0, 1.0, lr=1.9, gradient_variance=0.05),
    "quadratic": Config(0.5, 1.0, gradient_variance=0.3, convex=True),
}


def simulate(config, seed=0):
    """Replicas of the rule; running sums of shape (steps, replicas)."""
    rng = np.random.default_rng(seed)
    shape = (REPLICAS, config.dim)
    x = rng.uniform(-2.5, 2.5, shape)
    D = np.full(shape, config.d_init)

    def value(x):
        return 0.5 * np.sum(x**2, 1) if config.convex else np.sum(1 - np.cos(x), 1)

    f0, records = value(x), []
    for k in range(config.steps):
        gradient = x if config.convex else np.sin(x)
        std = np.sqrt(config.gradient_variance / (1 + k) ** config.batch_growth)
        G = gradient + std * rng.standard_normal(shape)
        h = config.lr * D ** (-config.alpha / 2)
        step = -h * G
        if config.sigma:
            spread = np.sqrt(2 * config.lr) * config.sigma * D ** (-config.beta / 2)
            step = step + spread * rng.standard_normal(shape)
        weight = h.min(axis=1)
        squared = np.sum(gradient**2, 1)
        x, D = x + step, D + G**2 + config.delta
        records.append((np.sum(step**2, 1), weight, weight * squared, squared, f0 - value(x)))
    moved, weight, weighted, squared, gap = (np.array(part) for part in zip(*records, strict=True))
    return {
        "sum_sq_step": np.cumsum(moved, 0),
        "sum_weight": np.cumsum(weight, 0),
        "truth": np.cumsum(weighted, 0) / np.cumsum(weight, 0),
        "smallest": np.minimum.accumulate(squared, 0),
        "f_gap": gap,
        "f0": f0,
    }


@cache
def run_of(name):
    return CONFIGS[name], simulate(CONFIGS[name])


def failures(run, bound):
    """Replicas whose truth exceeds the bound at any time."""
    return int(np.sum(np.any(run["truth"] > bound, axis=0)))


def issue(config, run, *, smoothness=1.0, kappa=None, **options):
    return certificate(
        sum_sq_step=run["sum_sq_step"],
        sum_weight=run["sum_weight"],
        f_gap=options.pop("f_gap", run["f_gap"]),
        smoothness=smoothness,
        kappa=config.kappa if kappa is None else kappa,
        p=P,
        **options,
    )


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("tilts", [None, (1.0,)])
def test_certificate_fails_no_more_often_than_p(name, tilts):
    config, run = run_of(name)
    options = {} if tilts is None else {"tilts": tilts}
    result = issue(config, run, **options)
    assert failures(run, result.bound) <= ALLOWED
    lower = issue(config, run, f_gap=run["f0"], **options)
    assert np.all(lower.bound >= result.bound - 1e-12)
    assert failures({**run, "truth": run["smallest"]}, lower.bound) <= ALLOWED


@pytest.mark.parametrize("name", CONFIGS)
def test_certificate_is_within_a_factor_four_of_the_truth(name):
    config, run = run_of(name)
    ratio = np.median(issue(config, run).bound[-1] / run["truth"][-1])
    assert 1 <= ratio < 4


def test_certificate_many_tilts_beat_one_on_long_runs():
    config, run = run_of("quadratic")
    many, one = issue(config, run), issue(config, run, tilts=(1.0,))
    assert np.median(many.bound[-1] / one.bound[-1]) < 0.75
    assert many.tilt.min() < 1


@pytest.mark.parametrize("lie", ["smoothness", "kappa"])
def test_certificate_with_a_false_constant_is_caught(lie):
    # Constant temperature, one coordinate: the descent inequality is an equality and hides no lie.
    config = replace(CONFIGS["quadratic"], alpha=0.0, beta=0.0, sigma=0.5, dim=1)
    run = simulate(config, seed=1)
    false = {"smoothness": {"smoothness": 0.5}, "kappa": {"kappa": config.kappa / 20}}[lie]
    assert failures(run, issue(config, run).bound) <= ALLOWED
    assert failures(run, issue(config, run, **false).bound) > ALLOWED


def test_page_shows_what_these_runs_measure():
    page = (ROOT / "benchmarks" / "tables" / "theory.md").read_text()
    _, _, *rows = page[page.index("| setting | failed") :].split("\n\n")[0].splitlines()
    for name, row in zip(CONFIGS, rows, strict=True):
        config, run = run_of(name)
        bounds = [issue(config, run, **options).bound for options in ({}, {"tilts": (1.0,)})]
        ratios = [np.median(bound[-1] / run["truth"][-1]) for bound in bounds]
        shown = [float(cell) for cell in row.strip("|").split("|")[1:]]
        assert shown == [failures(run, bounds[0]), *(round(float(r), 2) for r in ratios)]


def test_certificate_parts_sum_and_keep_shape():
    config, run = run_of("asgld")
    result = issue(config, run)
    assert result.bound.shape == run["truth"].shape
    np.testing.assert_allclose(result.start + result.moved + result.noise, result.bound)
    one = certificate(sum_sq_step=1.0, sum_weight=2.0, f_gap=3.0, smoothness=4.0, kappa=0.1)
    assert isinstance(one.bound, float)
    simple = certificate(
        sum_sq_step=1.0, sum_weight=2.0, f_gap=3.0, smoothness=4.0, kappa=0.1, p=0.1, tilts=(1.0,)
    )
    assert simple.bound == pytest.approx((2 * 3 + 4 * 1 + 2 * 0.1 * np.log(10)) / 2)


def test_certificate_tilts_share_the_failure_probability():
    run = {"sum_sq_step": 3.0, "sum_weight": 2.0, "f_gap": 1.0, "smoothness": 4.0}
    both = certificate(**run, kappa=0.1, p=0.1, tilts=(1.0, 0.5))
    alone = [certificate(**run, kappa=0.1, p=0.05, tilts=(tilt,)).bound for tilt in (1.0, 0.5)]
    assert both.bound == pytest.approx(min(alone))
    assert alone[1] == pytest.approx((1 + 4 * 3 / 2 + 0.1 / 0.5 * np.log(20)) / 0.75 / 2)


def test_certificate_rounding_is_the_root_of_its_equation():
    run = {"sum_sq_step": [3.0, 1.0], "sum_weight": 2.0, "f_gap": 1.0, "smoothness": 4.0}
    for lost in (0.0, 1e-9, 0.3, 50.0):
        found = certificate(**run, kappa=0.1, tilts=(0.5, 1.0), sum_sq_rounding=lost)
        X = 2.0 * found.bound
        rest = 2.0 * (found.start + found.moved + found.noise)
        np.testing.assert_allclose(X, rest + np.sqrt(X * lost) / (1 - found.tilt / 2))
        np.testing.assert_allclose(rest + 2.0 * found.rounding, X)
    assert certificate(**run, kappa=np.inf).bound.tolist() == [np.inf, np.inf]


def test_certificate_bears_lost_steps():
    # Every step is lost to rounding: x stays, and so does its gradient of 1.
    lr, steps = 0.1, np.arange(1, 1001)
    run = {"sum_sq_step": 0 * steps, "sum_weight": lr * steps, "f_gap": 1.0, "smoothness": 1.0}
    assert certificate(**run, kappa=0.0).bound[-1] < 0.02
    lost = certificate(**run, kappa=0.0, sum_sq_rounding=steps * lr**2 / lr).bound
    assert np.all(lost >= 1.0)
    assert lost[-1] < 1.3


def test_certificate_is_monotone_in_what_it_is_told():
    base = {"sum_sq_step": 2.0, "sum_weight": 5.0, "f_gap": 1.0, "smoothness": 1.0, "kappa": 0.2}
    bound = certificate(**base).bound
    assert certificate(**base, sum_sq_rounding=1e-3).bound > bound
    for name in ("sum_sq_step", "f_gap", "smoothness", "kappa"):
        assert certificate(**{**base, name: 2 * base[name]}).bound > bound
    assert certificate(**{**base, "sum_weight": 10.0}).bound == pytest.approx(bound / 2)
    assert certificate(**base, p=0.01).bound > bound


def test_certificate_without_noise_is_deterministic_descent():
    x, lr, squares, moved = 2.0, 0.3, [], 0.0
    for _ in range(20):
        squares.append(x * x)
        moved += (lr * x) ** 2
        x -= lr * x
    result = certificate(
        sum_sq_step=moved, sum_weight=20 * lr, f_gap=2.0 - x * x / 2, smoothness=1.0, kappa=0.0
    )
    assert np.mean(squares) <= result.bound <= 1.05 * np.mean(squares)


def test_noise_scale_is_twice_the_hottest_temperature():
    d_init = [0.5, 1.0, 4.0]
    found = noise_scale(d_init, alpha=1, beta=1, sigma=0.3, lr=0.1, gradient_variance=2.0)
    assert found == pytest.approx(2 * 0.09 * 0.5**-0.5 + 0.1 * 2 * 0.5**-0.5)
    assert noise_scale(1.0, alpha=1, beta=np.inf, sigma=0.3, lr=0.1) == 0
    heated = noise_scale(1.0, alpha=1, beta=0.3, sigma=1.0, lr=0.1, largest_D=32.0)
    assert heated == pytest.approx(2 * 32**0.2)


@pytest.mark.parametrize("name", ["agld", "asgld growing batch", "quadratic"])
def test_expected_certificate_bounds_the_smallest_mean_gradient(name):
    config = CONFIGS[name]
    rng = np.random.default_rng(5)
    x = np.full((REPLICAS, config.dim), 1.5)
    D = np.full_like(x, config.d_init)
    clock, sample, noise, largest, norms = 0.0, 0.0, 0.0, [], []
    f0 = 0.5 * 1.5**2 * config.dim if config.convex else config.dim * (1 - np.cos(1.5))
    for k in range(config.steps):
        gradient = x if config.convex else np.sin(x)
        batch = (1.0 + k) ** config.batch_growth
        norms.append(np.mean(np.linalg.norm(gradient, axis=1)))
        largest.append(np.mean(D.max(axis=1)))
        clock += largest[-1] ** (-config.alpha / 2)
        sample += np.mean(np.sum(D**-config.alpha, 1)) / batch
        noise += np.mean(np.sum(D**-config.beta, 1))
        G = gradient + np.sqrt(config.gradient_variance / batch) * rng.standard_normal(x.shape)
        spread = np.sqrt(2 * config.lr) * config.sigma * D ** (-config.beta / 2)
        x = x - config.lr * D ** (-config.alpha / 2) * G + spread * rng.standard_normal(x.shape)
        D = D + G**2 + config.delta
    bound = expected_certificate(
        Accumulators(np.nan, clock, sample, noise),
        lr=config.lr,
        smoothness=1.0,
        f_gap=f0,
        alpha=config.alpha,
        d_init=config.d_init,
        sigma=config.sigma,
        gradient_variance=config.gradient_variance,
    )
    smallest = min(norms) ** 2
    assert smallest <= bound < 30 * smallest


def test_expected_certificate_loosens_as_the_first_step_grows():
    sums = Accumulators(1.0, 1.0, 0.0, 0.0)
    run = {"smoothness": 1.0, "f_gap": 1.0, "d_init": 1.0, "alpha": 1.0}
    scaled = [lr * expected_certificate(sums, lr=lr, **run) for lr in (0.1, 1.0, 1.5, 1.9)]
    np.testing.assert_allclose(scaled, [2 / 1.9, 2.0, 4.0, 20.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p": 0.0}, "p=0.0: need 0 < p < 1"),
        ({"kappa": -1.0}, "kappa=-1.0"),
        ({"sum_weight": 0.0}, "take a step first"),
        ({"tilts": (2.0,)}, "each between 0 and 2"),
        ({"tilts": ()}, "at least one number"),
        ({"smoothness": float("nan")}, "smoothness=nan"),
    ],
)
def test_certificate_refuses_what_is_not_defined(change, message):
    base = {"sum_sq_step": 2.0, "sum_weight": 5.0, "f_gap": 1.0, "smoothness": 1.0, "kappa": 0.2}
    with pytest.raises(ValueError, match=message):
        certificate(**{**base, **change})


def test_certificate_refuses_heating_and_overlong_steps():
    with pytest.raises(ValueError, match="give largest_D"):
        noise_scale(1.0, alpha=1, beta=0.3, sigma=1.0, lr=0.1)
    with pytest.raises(ValueError, match="need < 2"):
        expected_certificate(
            Accumulators(1, 1, 1, 1), lr=3.0, smoothness=1.0, f_gap=1.0, alpha=0, d_init=1.0
        )
