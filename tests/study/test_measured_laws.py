"""Theory against runs of the shipped optimizer: escape times and exponents, and their command."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from gaussian_noise import with_gaussian_noise
from typer.testing import CliRunner

from asgld import cli
from asgld.oracle import Oracle
from asgld_study.experiments import escape_law, exponents
from asgld_study.experiments.chains import Chains, noisy
from asgld_study.experiments.escape_law import Setting

SETTINGS = [
    Setting(alpha=0.0, beta=1.0, gamma=0.5, k0=0, dim=8, rotated=False),
    Setting(alpha=0.0, beta=2.0, gamma=1.0, k0=100, dim=64, rotated=True),
    Setting(alpha=0.5, beta=1.0, gamma=0.5, k0=100, dim=8, rotated=True),
    Setting(alpha=1.0, beta=1.0, gamma=0.5, k0=100, dim=8, rotated=False),
    Setting(alpha=1.0, beta=2.0, gamma=1.0, k0=0, dim=64, rotated=False),
]


def test_recursion_predicts_escape_times_of_the_optimizer() -> None:
    """Ratio of medians over 200 chains. The times have a coefficient of variation near 0.5, so a
    median over 200 has a standard error near 5 %: single settings may err by 5 of those, the
    median over the settings by 10 %."""
    timings = [escape_law.measure(setting) for setting in SETTINGS]
    for criterion in ("distance", "value"):
        ratios = [timing.row()[f"{criterion}_ratio"] for timing in timings]
        assert max(abs(np.log(ratios))) < 0.25
        assert 0.9 <= np.median(ratios) <= 1.1


@pytest.mark.slow
def test_recursion_predicts_escape_times_over_the_whole_grid() -> None:
    assert len(escape_law.GRID) >= 100
    rows = [timing.row() for timing in escape_law.measure_all()]
    for criterion in ("distance", "value"):
        assert 0.9 <= np.median([row[f"{criterion}_ratio"] for row in rows]) <= 1.1


def test_published_escape_time_misses_what_matters() -> None:
    """Theorem 3 does not know when the saddle is met; at alpha = 1 the optimizer does."""
    early, late = (
        escape_law.measure(
            Setting(alpha=1.0, beta=1.0, gamma=1.0, k0=k0, dim=8, rotated=False), replicas=60
        )
        for k0 in (0, 1000)
    )
    assert early.published == late.published
    assert late.distance > 3 * early.distance


def test_exponents_of_short_runs_tell_the_versions_apart() -> None:
    """(1.5, 2) on the flat function: published 1.25, corrected 0.25; (0, 0.5): both say 0.5."""
    flat = exponents.measure(exponents.Case("asgld", 1.5, 2, function="flat"), steps=2000)
    assert flat.published == 1.25
    assert flat.corrected == 0.25
    assert flat.last_high < 0.75
    assert flat.average_low <= flat.average <= flat.average_high
    waves = exponents.measure(exponents.Case("agld", 0, 0.5), steps=2000)
    assert waves.corrected == 0.5
    assert abs(waves.last - 0.5) < 0.15


def test_gaussian_gradients_have_the_stated_variance() -> None:
    """Null: variance C (1 + k)^-theta; 40,000 coordinates, relative standard error sqrt(2/n)."""
    n, variance, theta = 40_000, 0.3, 0.5

    class Zero:
        def grad(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(x)

    gradient = noisy(Zero(), variance, theta=theta, seed=2)
    chains = Chains("asg", gradient, torch.zeros(1, n, dtype=torch.float64), alpha=0.0, lr=1.0)
    for k in range(3):
        before = chains.x.clone()
        measured = float((chains.advance() - before).square().mean())
        assert abs(measured / (variance * (1 + k) ** -theta) - 1) < 5 * np.sqrt(2 / n)


def test_gaussian_gradients_of_a_method_have_the_stated_variance() -> None:
    """The same for the method that counts its calls."""
    n, variance, theta = 40_000, 0.3, 0.5

    class Zero:
        dim, num_samples = n, None

        def value(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum(-1) * 0

        def grad(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(x)

    method = with_gaussian_noise("asg", variance=variance, theta=theta, alpha=0.0, lr=1.0)
    oracle = Oracle(Zero())
    state = method.init(oracle, torch.zeros(1, n, dtype=torch.float64), seed=2)
    for k in range(3):
        before = state.x.clone()
        state = method.step(oracle, state)
        measured = float((state.x - before).square().mean())
        assert abs(measured / (variance * (1 + k) ** -theta) - 1) < 5 * np.sqrt(2 / n)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["published", "corrected", "k^-0.5 log k", "Balanced choice"]),
        (["--alpha", "1.5", "--beta", "2"], ["k^-1.25", "k^-0.25"]),
        (["--alpha", "1", "--beta", "0.3"], ["does not anneal"]),
        (["--method", "agld", "--alpha", "0"], ["k^-1 log k"]),
        (["--item", "Theorem 3"], ["refuted", "Instead"]),
        (["--item", "all"], ["Lemma 2", "Theorem 4"]),
    ],
)
def test_command_tells_what_theory_says(arguments: list[str], words: list[str]) -> None:
    result = CliRunner().invoke(cli.build_app(), ["theory", *arguments])
    assert result.exit_code == 0, result.output
    for word in words:
        assert word in result.output


@pytest.mark.parametrize(
    ("arguments", "word"), [(["--beta", "-1"], "beta=-1"), (["--item", "Theorem 9"], "Theorem 9")]
)
def test_command_refuses_nonsense(arguments: list[str], word: str) -> None:
    result = CliRunner().invoke(cli.build_app(), ["theory", *arguments])
    assert result.exit_code == 2
    assert word in result.output


@pytest.mark.parametrize("what", ["exponents", "escape"])
def test_command_measures_to_a_file(tmp_path: Path, what: str) -> None:
    out = tmp_path / "rows.csv"
    result = CliRunner().invoke(
        cli.build_app(),
        ["theory", "--measure", what, "--steps", "200", "--replicas", "6", "--limit", "2",
         "--out", str(out)],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    with out.open() as file:
        assert len(list(csv.DictReader(file))) == 2


def test_command_draws_the_maps(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.build_app(), ["theory", "--plot", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert len(list(tmp_path.glob("*.png"))) == 3
