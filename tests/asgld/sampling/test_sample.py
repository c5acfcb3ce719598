"""Draws of `asgld.sample` against densities whose moments are known.

Statistical tests compare a moment with its exact value. They allow 5 standard errors, measured by
`mcse_mean` and `mcse_sd`, plus a bias that is stated: a false alarm in about 6e-7 for one moment.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import asgld
from asgld import sampling
from asgld.prox import L1
from asgld.sampling import diagnosis
from asgld.sampling.chains import Chains, Whitening, chain_key
from asgld.sampling.samples import Samples
from asgld.sampling.tuning import corrected

F64 = torch.float64


class Regression:
    """Gaussian linear regression with unit noise and a normal prior: an exact posterior."""

    def __init__(self, n: int = 300, dim: int = 4, condition: float = 1.0, seed: int = 0) -> None:
        g = torch.Generator().manual_seed(seed)
        scales = torch.logspace(0, -math.log10(condition) / 2, dim, dtype=F64)
        turn = torch.linalg.qr(torch.randn(dim, dim, generator=g, dtype=F64))[0]
        self.inputs = torch.randn(n, dim, generator=g, dtype=F64) * scales @ turn
        truth = torch.randn(dim, generator=g, dtype=F64)
        self.targets = self.inputs @ truth + torch.randn(n, generator=g, dtype=F64)
        self.n, self.dim, self.prior_sd = n, dim, 50.0
        precision = self.inputs.T @ self.inputs + torch.eye(dim, dtype=F64) / self.prior_sd**2
        covariance = torch.linalg.inv(precision)
        self.mean = (covariance @ (self.inputs.T @ self.targets)).numpy()
        self.sd = covariance.diagonal().sqrt().numpy()

    def loss(self, x: Tensor, indices: Tensor) -> Tensor:
        return (self.targets[indices] - self.inputs[indices] @ x).square().mean() / 2

    def sample(self, **options: Any) -> Samples:
        options = {"chains": 64, "draws": 100, "step_check": False, **options}
        return asgld.sample(
            self.loss, torch.zeros(self.dim), num_data=self.n, prior_sd=self.prior_sd, **options
        )


def errors(found: Samples, mean: Any, sd: Any) -> tuple[float, float]:
    """The largest errors of means and sds beyond 5 standard errors, in units of the sd."""
    away = np.abs(found.mean - mean) - 5 * diagnosis.mcse_mean(found.draws)
    wide = np.abs(found.sd - sd) - 5 * diagnosis.mcse_sd(found.draws)
    return float((away / sd).max()), float((wide / sd).max())


# ------------------------------------------------------------------------------- exact posteriors


@pytest.mark.parametrize("condition", [1.0, 1e4])
def test_regression_has_its_exact_posterior(condition: float) -> None:
    problem = Regression(condition=condition)
    found = problem.sample(thin=3, draws=150, step_check=True)
    assert max(errors(found, problem.mean, problem.sd)) < 0.0  # a normal density has no bias
    assert found.is_mixed
    assert found.findings == []
    assert "VERDICT: mixed, and no sign of a wrong spread" in str(found)


def test_batches_are_corrected_by_default_and_their_noise_is_named_where_not() -> None:
    problem = Regression()
    found = problem.sample(batch_size=30)
    assert max(errors(found, problem.mean, problem.sd)) < 0.02
    plain = problem.sample(batch_size=30, correct="none", lr=0.15, thin=4)
    assert (plain.sd / problem.sd).min() > 1.15  # 6 and more standard errors
    assert any("spread" in text for text in plain.findings)
    assert plain.noise_share is not None
    assert np.sqrt(1 + plain.noise_share) == pytest.approx((plain.sd / problem.sd).max(), rel=0.1)
    lowered = problem.sample(batch_size=30, correct="noise", lr=0.05, thin=5)
    assert max(errors(lowered, problem.mean, problem.sd)) < 0.05


def test_the_plain_rule_is_too_wide_by_its_formula() -> None:
    """Without the half step back the variance is 1 / (1 - lr / 2) of the right one."""
    problem = Regression()
    found = problem.sample(look_back=False, lr=0.5)
    assert np.mean(found.sd / problem.sd) == pytest.approx(1 / math.sqrt(0.75), rel=0.02)
    assert found.temperatures.mean() == pytest.approx(1 / 0.75, rel=0.04)
    assert any("lr" in text for text in found.findings)


def test_banana_and_overlapping_modes() -> None:
    def banana(x: Tensor) -> Tensor:
        return -(x[0] ** 2) / 2 - (x[1] - 0.4 * (x[0] ** 2 - 1)) ** 2 / (2 * 0.7**2)

    start = torch.tensor([1.0, 1.0])
    options: Any = {"log_density": True, "chains": 64, "draws": 100, "step_check": False}
    found = asgld.sample(banana, start, **options)
    assert max(errors(found, np.zeros(2), np.array([1.0, math.hypot(0.7, 0.4 * 2**0.5)]))) < 0.02

    def mixture(x: Tensor) -> Tensor:
        parts = [0.4, 0.0], [0.6, 2.0]
        terms = [math.log(w) - ((x - m) ** 2).sum() / 2 for w, m in parts]
        return torch.logsumexp(torch.stack(terms), 0)

    found = asgld.sample(mixture, torch.zeros(1), **options)
    assert max(errors(found, np.array([1.2]), np.array([math.sqrt(1 + 0.24 * 4)]))) < 0.02


def test_temperature_and_prior_scale_the_density() -> None:
    problem = Regression()
    hot = problem.sample(temperature=4.0)
    assert max(errors(hot, problem.mean, 2 * problem.sd)) < 0.0
    flat = lambda x: 0.0 * x.sum()  # noqa: E731
    prior = asgld.sample(
        flat, torch.ones(2), num_data=1, prior_sd=[0.5, 3.0], chains=64, draws=100, step_check=False
    )
    assert max(errors(prior, np.zeros(2), np.array([0.5, 3.0]))) < 0.0


def test_psgld_says_how_large_the_missing_term_is() -> None:
    problem = Regression(dim=3)
    found = problem.sample(method="psgld")
    assert max(errors(found, problem.mean, problem.sd)) < 0.1
    assert found.gamma_part is not None
    assert 0.002 < found.gamma_part < 0.05
    assert "Gamma" in str(found)


def test_the_bias_of_the_step_is_seen_by_half_of_it() -> None:
    problem = Regression()
    found = problem.sample(look_back=False, lr=0.6, step_check=True, draws=700)
    assert found.step_check is not None
    bias = 1 / math.sqrt(0.7) - 1  # of the sd, in units of the right one
    assert found.step_check.sd.mean() == pytest.approx(bias, abs=0.05)
    assert "finite step" in str(found)


def wells(x: Tensor) -> Tensor:
    return -(x**2).sum() - x[0] ** 4 / 9


def student(x: Tensor) -> Tensor:
    return -2 * torch.log1p(x**2 / 3).sum()


def one_tail(x: Tensor) -> Tensor:
    return student(x[:1]) - (x[1:] ** 2).sum() / 2


@pytest.mark.parametrize(("log_density", "dim"), [(student, 1), (one_tail, 10)])
def test_a_check_that_sees_little_is_no_verdict_on_the_spread(log_density: Any, dim: int) -> None:
    """Student's t with 3 degrees of freedom has sds whose errors are large, and not known well."""
    found = asgld.sample(log_density, torch.zeros(dim), log_density=True, seed=1)
    assert found.is_mixed
    (finding,) = found.findings
    assert re.search(r"^mixed; the spread could not be checked \(a bias below \d+% of", finding)
    assert "of x[0] would not show" in finding
    assert f"VERDICT: {finding}" in str(found)
    assert "no sign of a wrong spread" not in str(found)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"step_check": False}, "step_check=False"),
        ({"chains": 2, "draws": 239, "thin": 6, "seed": 4}, "too few effective draws"),
    ],
)
def test_a_check_that_was_not_made_is_no_verdict_on_the_spread(
    options: dict[str, Any], why: str
) -> None:
    found = asgld.sample(lambda x: -(x**2).sum(), torch.zeros(1), log_density=True, **options)
    assert found.is_mixed
    (finding,) = found.findings
    assert finding.startswith(f"mixed; the spread could not be checked ({why}")
    assert "no sign of a wrong spread" not in str(found)


@pytest.mark.parametrize("seed", range(3))
def test_ordinary_densities_have_a_spread_that_is_checked(seed: int) -> None:
    inputs = torch.randn(200, 5, generator=torch.Generator().manual_seed(0), dtype=F64)
    labels = (inputs.sum(1) > 0.3).to(F64)

    def logistic(x: Tensor, indices: Tensor) -> Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(
            inputs[indices] @ x, labels[indices]
        )

    normal = asgld.sample(
        lambda x: -(x**2).sum(), torch.zeros(30), log_density=True, seed=seed, draws=1000
    )
    regression = asgld.sample(logistic, torch.zeros(5), num_data=200, prior_sd=2.0, seed=seed)
    for found in (normal, regression):
        assert found.findings == []
        assert str(found).endswith("VERDICT: mixed, and no sign of a wrong spread")


def test_quartic_density_whose_curvature_vanishes_at_the_mode() -> None:
    sd = math.sqrt(math.gamma(0.75) / math.gamma(0.25))
    found = asgld.sample(
        lambda x: -(x**4).sum(),
        torch.ones(2),
        log_density=True,
        chains=64,
        draws=60,
        step_check=False,
    )
    assert max(errors(found, np.zeros(2), np.full(2, sd))) < 0.03


# ------------------------------------------------------------------------------- chains and seeds


@pytest.mark.parametrize("seeds", [(0, 1), (0, 2**63), (7, 7 + 0x9E3779B97F4A7C15)])
def test_chains_are_independent_whatever_the_seeds(seeds: tuple[int, int]) -> None:
    """Correlations of any two chains of two calls are below 5 / sqrt(N): once in 6e-7 for a pair,
    and there are 120 pairs."""
    problem = Regression(dim=2)
    parts = [problem.sample(seed=seed, chains=8, thin=6, draws=200).draws for seed in seeds]
    rows = np.concatenate(parts)[:, :, 0]
    matrix = np.corrcoef(rows)
    off = matrix[np.triu_indices(len(rows), 1)]
    assert np.abs(off).max() < 5 / math.sqrt(rows.shape[1])


def test_keys_differ_by_seed_and_by_use() -> None:
    keys = {chain_key(seed, use) for seed in range(100) for use in ("draws", "check", "pilot0")}
    assert len(keys) == 300


def test_two_samplers_with_one_seed_are_named() -> None:
    def chain(seed: int) -> asgld.SGLD:
        layer = torch.nn.Linear(3, 2)
        optimizer = asgld.SGLD(layer.named_parameters(), lr=0.1, sigma=0.1, seed=seed)
        layer(torch.ones(3)).sum().backward()
        optimizer.step()
        return optimizer

    kept = [chain(401), chain(402)]
    with pytest.warns(UserWarning, match="seed=401"):
        chain(401)
    del kept
    with pytest.warns(UserWarning, match="seed=402"):  # it took a step, so its noise is used
        chain(402)


@pytest.mark.parametrize("rhat", [1.0101, 1.01000001, 1.0149, 1.2, 5.318])
def test_a_finding_shows_that_r_hat_is_above_its_limit(rhat: float) -> None:
    found = asgld.sample(wells, torch.ones(2), log_density=True, draws=50, step_check=False)
    found.rhat = np.array([1.0, rhat])
    (shown,) = re.findall(r"R-hat ([\d.]+) of x\[1\], more than 1\.01", found.findings[0])
    assert float(shown) > 1.01
    assert float(shown) == pytest.approx(rhat, abs=0.005)


def test_a_scale_that_varies_is_named_where_chains_do_not_mix() -> None:
    def funnel(x: Tensor) -> Tensor:
        return -(x[0] ** 2) / 18 - (x[1:] ** 2).sum() * torch.exp(-x[0]) / 2 - 2 * x[0]

    found = asgld.sample(funnel, torch.full((5,), 0.1), log_density=True, draws=100)
    assert "another parametrization" in found.findings[0]
    assert not any("another parametrization" in text for text in found.findings[1:])


def test_far_modes_are_flagged() -> None:
    def log_density(x: Tensor) -> Tensor:
        return torch.logaddexp(-x.square().sum() / 2, -(x - 9.0).square().sum() / 2)

    starts = torch.tensor([[0.0, 0.0], [9.0, 9.0]] * 2)
    found = asgld.sample(log_density, starts, log_density=True, draws=200, step_check=False)
    assert not found.is_mixed
    assert "modes" in found.findings[0]
    annealed = asgld.sample(
        log_density, starts, log_density=True, draws=200, start="anneal", step_check=False
    )
    assert "modes" in annealed.findings[0]


# ------------------------------------------------------------------------------- files and resume

_WORKER = """
    import sys, torch, asgld
    torch.set_num_threads(1)
    data = torch.linspace(-1, 1, 60, dtype=torch.float64)
    def loss(x, i):
        return ((data[i] - x[0] - x[1] * data[i] ** 2) ** 2).mean() / 2
    found = asgld.sample(loss, torch.zeros(2), num_data=60, prior_sd=3.0, batch_size=12, draws=300,
                         thin=3, burn_in=50, folder=sys.argv[1], checkpoint_every=40)
    print(found.gradients, found.temperatures.tolist())
"""


def _worker(folder: Path, seconds: float | None = None) -> str:
    command = [sys.executable, "-c", textwrap.dedent(_WORKER), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    if seconds is not None:
        while not (folder / "draws.pt").exists() and process.poll() is None:
            time.sleep(0.01)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
    return process.communicate()[0]


def test_a_killed_run_goes_on_with_the_same_draws(tmp_path: Path) -> None:
    whole = _worker(tmp_path / "whole")
    broken = tmp_path / "broken"
    _worker(broken, 0.05)
    resumed = _worker(broken)
    for name in ("draws.npy", "check.npy"):
        assert np.array_equal(np.load(tmp_path / "whole" / name), np.load(broken / name))
    assert resumed.split("[")[1] == whole.split("[")[1]  # temperatures, too


def test_a_folder_refuses_another_run_and_returns_a_finished_one(tmp_path: Path) -> None:
    problem = Regression(dim=2)
    first = problem.sample(folder=tmp_path, draws=50, step_check=True)
    again = problem.sample(folder=tmp_path, draws=50, step_check=True)
    assert isinstance(again.draws, np.memmap)
    assert np.array_equal(first.draws, again.draws)
    assert np.array_equal(first.temperatures, again.temperatures)
    with pytest.raises(ValueError, match="seed"):
        problem.sample(folder=tmp_path, draws=50, step_check=True, seed=1)
    problem.prior_sd = 0.01  # U(x0) stays as it is
    with pytest.raises(ValueError, match="density"):
        problem.sample(folder=tmp_path, draws=50, step_check=True)
    problem.prior_sd = 50.0
    memory = problem.sample(draws=50, step_check=True)
    assert np.array_equal(first.draws, memory.draws)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="limits of files are those of Unix")
def test_a_full_disk_is_an_error_before_the_draws(tmp_path: Path) -> None:
    code = """
        import resource, signal, sys, torch, asgld
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        try:
            asgld.sample(lambda x: -(x**2).sum(), torch.ones(3), log_density=True, draws=1000,
                         folder=sys.argv[1])
        except OSError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "d")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "draws.npy" in said
    assert not (tmp_path / "d" / "draws.npy").exists()


# ------------------------------------------------------------------------------- errors and stops


class MineError(Exception):
    """An error of the user's own."""


@pytest.mark.parametrize("number", [1, 2, 5, 20, 60, 130, 300, 700])
def test_an_error_of_the_user_ends_the_call(number: int) -> None:
    calls = 0

    def log_density(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == number:
            raise MineError("mine")
        return wells(x)

    with pytest.raises(RuntimeError, match="`fun` raised MineError: mine") as caught:
        asgld.sample(log_density, torch.ones(2), log_density=True, draws=500)
    assert isinstance(caught.value.__cause__, MineError)
    # Rows are tried once more one by one, and a product once more by differences.
    assert calls <= number + 2


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="alarms are those of Unix")
@pytest.mark.parametrize("seconds", [0.002, 0.01, 0.05, 0.2])
def test_an_alarm_of_the_user_ends_the_call(seconds: float) -> None:
    def ring(number: int, frame: Any) -> None:
        raise MineError("too long")

    # torch loads parts of itself at the first call, and hides errors meanwhile.
    asgld.sample(wells, torch.ones(2), log_density=True, draws=10)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        # Python itself hides what rings in a finalizer; then it rings again.
        signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
        with pytest.raises(MineError, match="too long"):
            asgld.sample(wells, torch.ones(2), log_density=True, draws=100_000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("start", ["mode", "anneal"])
def test_an_interruption_ends_the_call_or_is_told(start: str) -> None:
    """Whenever it comes: in the search, the pilot, the draws or the check."""
    number = calls = 0

    def log_density(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == number:
            raise KeyboardInterrupt
        return wells(x)

    kept = 0
    for number in range(1, 2000, 23):
        calls = 0
        try:
            found = asgld.sample(
                log_density, torch.ones(2), log_density=True, draws=100, thin=1, start=start
            )
        except KeyboardInterrupt:
            continue
        if calls < number:
            break
        kept += 1
        assert "interrupted" in " ".join(found.notes.values())
        assert "no sign of a wrong spread" not in str(found)
    else:
        pytest.fail("no call came to its end")
    assert kept > 3


def test_rows_that_are_evaluated_one_by_one_are_noted() -> None:
    def branching(x: Tensor) -> Tensor:
        return -(x**2).sum() if x[0] > 0 else -2 * (x**2).sum()

    found = asgld.sample(branching, torch.ones(2), log_density=True, draws=20, step_check=False)
    assert "evaluated one by one, since vmap failed" in str(found)
    usual = asgld.sample(wells, torch.ones(2), log_density=True, draws=20, step_check=False)
    assert usual.notes == {}


def gamma(x: Tensor) -> Tensor:
    return (2 * torch.log(x) - x).sum()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"x0": torch.ones(1)}, r"since the curvature is up to \d+ times.*parametrization.*thin"),
        ({"x0": torch.zeros(1), "lr": 1e-3}, r"1,000 for each draw, since lr=0\.001 is short"),
    ],
)
def test_many_steps_are_warned_of_before_they_are_made(options: dict[str, Any], text: str) -> None:
    """Warnings are errors here, so that the call ends before the steps."""
    x0 = options.pop("x0")
    log_density = gamma if bool(x0.any()) else wells
    with pytest.raises(UserWarning, match=text):
        asgld.sample(log_density, x0, log_density=True, **options)
    asgld.sample(log_density, x0, log_density=True, **options, draws=5, thin=2, burn_in=0)


def test_the_warning_of_noisy_batches_names_them() -> None:
    inputs = torch.randn(2000, 1, generator=torch.Generator().manual_seed(0), dtype=F64)

    def loss(x: Tensor, indices: Tensor) -> Tensor:
        return (inputs[indices] - x).square().mean() * 200

    with pytest.raises(UserWarning, match="since batches are noisy: take a larger batch_size"):
        asgld.sample(loss, torch.zeros(1), num_data=2000, batch_size=2, correct="noise")


# ------------------------------------------------------------------------------- bad input


def test_a_chain_that_leaves_the_domain_stops_alone() -> None:
    def log_density(x: Tensor) -> Tensor:  # it has an end on the left
        return torch.where(x[0] > -3.0, -(x**2).sum() / 2, torch.nan)

    found = asgld.sample(
        log_density, torch.zeros(1), log_density=True, chains=64, draws=400, lr=0.7, metric="none",
        step_check=False,
    )  # fmt: skip
    assert 0 < len(found.messages) < 64
    lost = min(found.messages)
    assert np.isnan(found.draws[lost, -1]).all()
    assert np.isfinite(found.whole).all()
    assert len(found.whole) == 64 - len(found.messages)
    assert "stopped early" in found.findings[0]
    assert np.isfinite(found.mean).all()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"num_data": None}, TypeError, "num_data is missing"),
        ({"num_data": 0}, ValueError, "num_data=0"),
        ({"temperature": 0.0}, ValueError, "temperature=0.0"),
        ({"temperature": -1.0}, ValueError, "temperature=-1.0"),
        ({"log_density": True}, ValueError, "num_data"),
        ({"method": "hmc"}, ValueError, "method='hmc'"),
        ({"correct": "yes"}, ValueError, "correct='yes'"),
        ({"prior_sd": -1.0}, ValueError, "prior_sd"),
        ({"batch_size": 1000}, ValueError, "batch_size=1000"),
        ({"draws": 0}, ValueError, "draws=0"),
        ({"thin": 0}, ValueError, "thin=0"),
        ({"lr": -1.0}, ValueError, "lr=-1.0"),
        ({"chains": 2.5}, ValueError, "chains=2.5"),
        ({"seed": -1}, ValueError, "seed=-1"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], error: type, text: str) -> None:
    problem = Regression(n=30, dim=2)
    given = {"num_data": 30, **options}
    with pytest.raises(error, match=text):
        asgld.sample(problem.loss, torch.zeros(2), **given)


@pytest.mark.parametrize(
    "log_density",
    [
        lambda x: (x**2).sum(),  # the wrong sign
        lambda x: 0.0 * x.sum(),
        lambda x: -torch.nn.functional.softplus(-x).sum(),  # falls on one side
        lambda x: -((x[0] + x[1]) ** 2),
    ],
)
def test_a_density_without_finite_mass_is_refused(log_density: Any) -> None:
    with pytest.raises(ValueError, match="no finite mass"):
        asgld.sample(log_density, torch.zeros(2), log_density=True, draws=10)


def test_data_that_a_plane_separates_need_a_prior() -> None:
    """The likelihood then rises without end, ever more slowly: it has no mode and no mass."""
    torch.manual_seed(3)
    # With these data the search ends where f is 7e-20, and calls that end not stationary.
    inputs = torch.cat([torch.ones(400, 1), torch.randn(400, 3)], 1).double()
    labels = (inputs @ torch.tensor([-0.5, 1.5, -1.0, 0.0], dtype=F64) > 0).double()

    def loss(w: Tensor, indices: Tensor) -> Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(
            inputs[indices] @ w, labels[indices]
        )

    with pytest.raises(ValueError, match=r"no mode was found.*give a prior"):
        asgld.sample(loss, torch.zeros(4), num_data=400, draws=10)
    found = asgld.sample(loss, torch.zeros(4), num_data=400, prior_sd=2.0, draws=50)
    assert np.isfinite(found.draws).all()


def test_a_flat_mode_is_a_mode() -> None:
    """x^4 is flat at its mode, wherever the search begins."""
    for start in (0.0, 1e-9, 2.0):
        found = asgld.sample(
            lambda x: -(x**4).sum(), torch.full((1,), start), log_density=True, draws=50
        )
        assert np.isfinite(found.draws).all()


def test_a_spike_is_not_taken_for_infinite_mass() -> None:
    """Eight schools as they are written down: the density has no bound where tau goes to 0."""
    effects = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], dtype=F64)
    errors_of = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], dtype=F64)

    def schools(x: Tensor) -> Tensor:
        mu, log_tau, theta = x[0], x[1], x[2:]
        prior = -(mu**2) / 50 - torch.log1p((log_tau.exp() / 5) ** 2) + log_tau
        inner = -((theta - mu) / log_tau.exp()).square().sum() / 2 - 8 * log_tau
        return prior + inner - ((effects - theta) / errors_of).square().sum() / 2

    with pytest.raises(ValueError, match="may have no finite mass, or rise to a spike"):
        asgld.sample(schools, torch.full((10,), 0.1), log_density=True)


@pytest.mark.parametrize(
    ("log_density", "x0"),
    [
        (lambda x: torch.where(x > 0, -x, -torch.inf).sum(), 1.0),
        (lambda x: torch.where(x[0] > 0.5, -(x**2).sum() / 2, -torch.inf), 1.0),
        (gamma, -1.0),
    ],
)
def test_a_density_that_ends_asks_for_the_logarithm(log_density: Any, x0: float) -> None:
    with pytest.raises(ValueError, match=r"finite.*y = log\(x\), and add y\.sum\(\)") as caught:
        asgld.sample(log_density, torch.full((2,), x0), log_density=True)
    assert "give bounds" not in str(caught.value)


def test_the_logarithm_with_its_jacobian_has_the_right_moments() -> None:
    """What the message says: x is of a Gamma density of shape 3, whose mean is 3."""
    found = asgld.sample(
        lambda y: gamma(y.exp()) + y.sum(), torch.zeros(1), log_density=True, chains=64, draws=100,
        step_check=False,
    )  # fmt: skip
    x = np.exp(found.draws)
    assert abs(x.mean() - 3.0) < 5 * diagnosis.mcse_mean(x)[0]


def test_unknown_options_are_named_with_those_that_are_known() -> None:
    options: dict[str, Any] = {"num_data": 30}
    problem, layer = Regression(n=30, dim=2), torch.nn.Linear(1, 1)
    with pytest.raises(TypeError, match="unknown option 'step'; known are num_data, prior_sd"):
        asgld.sample(problem.loss, torch.zeros(2), **options, step=0.1)
    with pytest.raises(TypeError, match=r"bounds: a chain has none; .*y = log\(x\).*Jacobian"):
        asgld.sample(problem.loss, torch.zeros(2), **options, bounds=[(0, 1)] * 2)
    with pytest.raises(TypeError, match="unknown option 'draw'; known are data, loss"):
        asgld.sample(layer, data=torch.ones(3, 1), loss=lambda m, b: m(b).mean(), draw=3)


@pytest.mark.parametrize("call", [sampling.sample_function, sampling.sample_network])
def test_help_names_the_options(call: Any) -> None:
    parameters = inspect.signature(call).parameters.values()
    names = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    shown = asgld.sample.__doc__ or ""
    assert len(names) > 10
    assert [name for name in names if not re.search(rf"\b{name}\b", shown)] == []
    assert f"help(asgld.sampling.{call.__name__})" in shown


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_more_data_than_there_are_is_named(kind: str) -> None:
    data = torch.linspace(-1, 1, 100, dtype=F64)

    def loss(x: Any, indices: Any) -> Any:
        if kind == "numpy":
            return float(((data.numpy()[indices] - x) ** 2).mean())
        return ((data[indices] - x) ** 2).mean()

    x0 = np.zeros(1) if kind == "numpy" else torch.zeros(1)
    with pytest.raises(ValueError, match=r"index 100 .*; num_data=200 says how many there are"):
        asgld.sample(loss, x0, num_data=200)


def test_chains_that_run_away_are_named() -> None:
    found = asgld.sample(
        lambda x: -(x**2).sum(), torch.zeros(2), log_density=True, draws=40, lr=3.0
    )
    assert any("run away" in text for text in found.findings)


def test_psgld_does_not_depend_on_units() -> None:
    found = [
        asgld.sample(
            lambda x, unit=unit: -((x / unit) ** 2).sum() / 2, torch.zeros(1), log_density=True,
            method="psgld", draws=20, step_check=False,
        )
        for unit in (1.0, 1e-3, 1e3)
    ]  # fmt: skip
    assert len({one.settings["thin"] for one in found}) == 1


def test_a_penalty_is_refused_as_a_proximal_step() -> None:
    with pytest.raises(TypeError, match="prox"):
        asgld.sample(lambda x: -x.abs().sum(), torch.zeros(1), log_density=True, prox=L1(1.0))
    layer = torch.nn.Linear(1, 1)
    with pytest.raises(TypeError, match="prox"):
        asgld.sample(layer, data=torch.ones(3, 1), loss=lambda m, b: m(b).mean(), prox=L1(1.0))


def test_a_penalty_in_the_loss_is_a_laplace_prior() -> None:
    """Null: means move by -covariance @ sign(x) * weight, exactly where no sign changes."""
    target, weight = Regression(), 2.0
    signs = torch.from_numpy(target.mean).sign()

    def loss(x: Tensor, indices: Tensor) -> Tensor:
        return target.loss(x, indices) + weight * x.abs().sum() / target.n

    found = asgld.sample(
        loss, torch.from_numpy(target.mean), num_data=target.n, prior_sd=target.prior_sd,
        chains=64, draws=100, step_check=False,
    )  # fmt: skip
    assert (np.sign(found.draws) == signs.numpy()).all()
    covariance = torch.linalg.inv(
        target.inputs.T @ target.inputs + torch.eye(4, dtype=F64) / target.prior_sd**2
    )
    mean = target.mean - weight * (covariance @ signs).numpy()
    assert max(errors(found, mean, target.sd)) <= 0.0


def test_a_sum_is_refused() -> None:
    problem = Regression(n=30, dim=2)

    def total(x: Tensor, indices: Tensor) -> Tensor:
        return problem.loss(x, indices) * len(indices)

    with pytest.raises(ValueError, match="sum"):
        asgld.sample(total, torch.zeros(2), num_data=30)
    with pytest.raises(TypeError, match="indices"):
        asgld.sample(lambda x: x.sum(), torch.zeros(2), num_data=30, batch_size=3)
    with pytest.raises(TypeError, match="x0"):
        asgld.sample(total, num_data=30)  # type: ignore[call-overload]


# ------------------------------------------------------------------------------- the result


def test_draws_have_the_form_of_x0_and_go_to_arviz() -> None:
    arviz = pytest.importorskip("arviz")

    def loss(x: dict[str, Tensor]) -> Tensor:
        return (x["w"].square().sum() + (x["b"] - 1.0) ** 2) / 2

    start = {"w": torch.zeros(2, 3), "b": torch.zeros(())}
    found = asgld.sample(loss, start, num_data=10, draws=50, step_check=False)
    tree = found.to_user()
    assert tuple(tree["w"].shape) == (4, 50, 2, 3)
    assert tuple(tree["b"].shape) == (4, 50)
    assert found.names[0] == "b" or found.names[0].startswith("w[")
    assert len(found.names) == 7
    data = found.to_arviz()
    assert data.posterior["w"].shape == (4, 50, 2, 3)
    ess = arviz.ess(data)["b"]
    column = found.names.index("b")
    assert float(ess) == pytest.approx(float(found.ess_bulk[column]), rel=1e-6)


def test_numpy_functions_are_sampled() -> None:
    def loss(x: np.ndarray) -> float:
        return float(np.sum((x - np.arange(2)) ** 2)) / 2

    found = asgld.sample(loss, np.zeros(2), num_data=4, draws=200, step_check=False)
    assert max(errors(found, np.arange(2), np.full(2, 0.5))) < 0.0


# ------------------------------------------------------------------------------- the rule


def test_without_metric_and_look_back_the_rule_is_sgld_bit_for_bit() -> None:
    from asgld.oracle import Oracle
    from asgld.oracle.functions import torch_function

    oracle = Oracle(torch_function(lambda x: (x**4).sum() / 4, dim=3), replicas=2)
    x0 = torch.tensor([[1.0, -1.0, 0.5], [0.2, 0.1, 0.0]], dtype=F64)
    ones = torch.ones(3, dtype=F64)
    chains = Chains("sgld", 0.1, Whitening(torch.zeros(3, dtype=F64), ones, ones), looks_back=False)
    state = chains.init(oracle, x0, seed=3)
    x = x0.clone()
    optimizer = asgld.SGLD([x], lr=0.1, sigma=1.0, seed=3)
    for _ in range(20):
        state = chains.step(oracle, state)
        x.grad = oracle.free().grad(x)
        optimizer.step()
        assert torch.equal(state.x, x)


def test_looking_back_takes_half_the_noise_back() -> None:
    """x_k = w_k - n_k / 2, with n_k the noise that the optimizer drew."""
    from asgld import noise
    from asgld.oracle import Oracle
    from asgld.oracle.functions import torch_function

    oracle = Oracle(torch_function(lambda x: (x**2).sum() / 2, dim=2), replicas=3)
    ones = torch.ones(2, dtype=F64)
    chains = Chains("sgld", 0.3, Whitening(torch.zeros(2, dtype=F64), ones, ones))
    state = chains.init(oracle, torch.ones(3, 2, dtype=F64), seed=5)
    stream = int(state.optimizer.state[state.w]["stream"])
    for k in range(5):
        state = chains.step(oracle, state)
        draw = noise.Draw(stream, k, noise.Layout.whole(6))
        drawn = math.sqrt(0.6) * noise.torch_normals(5, [draw], F64)[0].view(3, 2)
        torch.testing.assert_close(state.x, state.w - drawn / 2, rtol=1e-12, atol=1e-12)


def test_the_corrected_metric_leaves_out_the_noise_of_batches() -> None:
    """A S A' + lr / (2 - lr) C is the identity, in coordinates of curvature 1."""
    g = torch.Generator().manual_seed(0)
    root = torch.randn(3, 3, generator=g, dtype=F64)
    covariance, lr = 0.3 * root @ root.T, 0.4
    eye = torch.eye(3, dtype=F64)
    for part in (covariance, covariance.diagonal()):
        metric = corrected(Whitening(torch.zeros(3, dtype=F64), eye, eye), part, lr)
        whole = torch.diag(part) if part.dim() == 1 else part
        injected = metric.push @ metric.push.T
        torch.testing.assert_close(injected + lr / (2 - lr) * whole, eye)
        torch.testing.assert_close(metric.push @ metric.pull.T, eye)
