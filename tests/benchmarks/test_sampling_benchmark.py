"""The targets of the sampling benchmark, the theory of SGLD, and what is made of rows."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
ROOMS = ("targets", "measures", "theory", "summary", "rivals")
targets, measures, theory, summary, rivals = (
    importlib.import_module(f"sampling_suite.{name}") for name in ROOMS
)
sampling = importlib.import_module("sampling")
sys.path.remove(str(ROOT / "benchmarks"))
SMALL = [name for name in targets.TARGETS if name != "gaussian-1000"]
WITH_DATA = ["linear", "linear-1e4", "logistic"]


def _target(name: str) -> Any:
    if name == "logistic":
        pytest.importorskip("sklearn")
    return targets.gaussian(20, 100.0) if name == "gaussian" else targets.target(name)


@pytest.mark.parametrize("name", [*SMALL, "gaussian"])
def test_gradients_of_torch_and_numpy_agree(name: str) -> None:
    target = _target(name)
    points = target.starts(5, seed=3)

    def log_density(x: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
        if target.data is None:
            return target.of_torch(x)
        prior = (x * x).sum() / (2 * target.prior_sd**2)
        return -target.num_data * target.of_torch(x, *indices) - prior

    tensor = torch.from_numpy(points)
    gradient = torch.func.vmap(torch.func.grad(log_density))
    np.testing.assert_allclose(gradient(tensor), target.gradient(points), rtol=1e-8, atol=1e-7)
    if target.data is not None:
        indices = np.random.default_rng(0).integers(target.num_data, size=(5, target.batch))
        found = gradient(tensor, torch.from_numpy(indices))
        np.testing.assert_allclose(found, target.gradient(points, indices), rtol=1e-8, atol=1e-7)


@pytest.mark.parametrize("name", [*SMALL, "gaussian"])
def test_moments_agree_with_a_long_simulation(name: str) -> None:
    """Langevin steps with half a noise step back (Leimkuhler and Matthews), in numpy."""
    target = _target(name)
    if name == "logistic" and not targets.NUTS_FILE.exists():
        pytest.skip("no NUTS moments")
    chains, steps = (100, 150) if name == "logistic" else (1000, 400)
    step = {"banana": 0.05, "logistic": 0.15}.get(name, 0.3)
    root = np.linalg.cholesky(target.covariance)
    random = np.random.default_rng(0)
    x = target.starts(chains, seed=1)
    noise = np.zeros_like(x)
    kept = []
    for k in range(steps):
        fresh = random.standard_normal(x.shape)
        drift = step * (target.gradient(x) @ root) @ root.T
        x = x + drift + math.sqrt(step / 2) * (noise + fresh) @ root.T
        noise = fresh
        if k >= steps // 3:
            kept.append(x)
    errors = measures.errors(np.stack(kept, 1), target)
    assert errors.excess <= 0.015
    assert errors.mcse_sd.max() < 0.03
    if not target.is_gaussian:
        wrong = measures.errors(1.1 * np.stack(kept, 1), target)
        assert not wrong.meets(0.05)


@pytest.mark.parametrize(("batch", "control"), [(None, False), (100, False), (100, True)])
def test_theory_of_sgld_agrees_with_a_simulation(batch: int | None, control: bool) -> None:
    target = targets.target("linear")
    step = 0.3 / target.curvatures[-1] if batch and not control else 1 / target.curvatures[-1]
    random, chains = np.random.default_rng(0), 1000 if batch is None else 200
    x = target.starts(chains, seed=2)
    kept = []
    for _ in range(180):
        drift = target.gradient(x)
        if batch is not None:
            indices = random.integers(target.num_data, size=(chains, batch))
            drift = target.gradient(x, indices)
            if control:
                drift = drift - target.gradient(np.broadcast_to(target.mode, x.shape), indices)
        x = x + step * drift + math.sqrt(2 * step) * random.standard_normal(x.shape)
        kept.append(x)
    draws = np.stack(kept[60:], 1)
    spread = theory.stationary(target, step, batch, control)
    errors = measures.errors(draws, target)
    expected = np.sqrt(np.diag(spread)) / target.sd - 1
    assert np.abs(expected).max() > 0.05
    assert (np.abs(errors.sd - expected) < 4 * errors.mcse_sd + 0.005).all()
    error, steps = theory.error_and_time(target, step, batch, control)
    assert error == pytest.approx(np.abs(expected).max())
    if batch is None:  # long enough to tell
        worth = (1 + expected) ** 2 / errors.mcse_mean**2
        assert chains * 120 / steps == pytest.approx(worth.min(), rel=0.25)


def test_too_long_a_step_has_no_stationary_state() -> None:
    target = targets.target("linear")
    assert theory.stationary(target, 2.01 / target.curvatures[-1]) is None
    assert theory.error_and_time(target, 1.9 / target.curvatures[-1], batch=2)[0] == math.inf


def test_conditions_are_as_said() -> None:
    for name, condition in (("linear", 10.0), ("linear-1e4", 1e4)):
        curvatures = targets.target(name).curvatures
        assert curvatures[-1] / curvatures[0] == pytest.approx(condition)


def test_errors_of_draws_that_are_not_finite_meet_no_goal() -> None:
    target = targets.target("mixture")
    draws = np.full((4, 10, 3), math.nan)
    assert measures.errors(draws, target).excess == math.inf


def test_effective_draws_of_independent_draws() -> None:
    pytest.importorskip("arviz")
    draws = np.random.default_rng(0).standard_normal((8, 500, 2))
    assert measures.effective_draws(draws) == pytest.approx(4000, rel=0.2)


def test_the_search_ends_at_the_longest_step_that_meets_the_goal() -> None:
    class Trial:
        def __init__(self, exponent: int) -> None:
            self.exponent = exponent

        def meets(self, goal: float) -> bool:
            return self.exponent <= goal

    for first in (-8, 0, 5):
        assert rivals.search(Trial, -4, first).exponent == -4
    assert rivals.search(Trial, -99, 0) is None


def _row(contender: str, per_ess: Any, meets: Any = True, target: str = "a") -> dict[str, Any]:
    return {
        "target": target, "gradients": "full", "contender": contender, "meets": str(meets),
        "gradients_per_ess": str(per_ess),
    }  # fmt: skip


def test_ratios_are_over_the_best_rival_that_meets_the_goal() -> None:
    rows = [
        _row("asgld", 6), _row("asgld, thin 1", 1), _row("blackjax", 12), _row("SGLD", 10),
        _row("posteriors", 2, meets=False), _row("none", "", meets=""),
        _row("asgld", 6, target="b"),
        _row("asgld", 6, meets=False, target="c"), _row("blackjax", 3, target="c"),
    ]  # fmt: skip
    found = summary.ratios(rows)
    assert found["a", "full"] == (0.6, "SGLD")
    assert found["b", "full"] == (0.0, "none")
    assert found["c", "full"][0] == math.inf
    assert summary.table(rows[:1], ("contender", "gradients_per_ess")).split() == [
        "contender", "gradients_per_ess", "asgld", "6",
    ]  # fmt: skip


def test_rows_that_are_there_are_not_wanted_again(tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    row = {"target": "banana", "gradients": "full", "variant": "default", "meets": True}
    sampling.Book("accuracy", out, [], False).add([row])
    book = sampling.Book("accuracy", out, ["banana/full", "linear"], False)
    assert not book.wants("banana", "full", "default")
    assert book.wants("banana", "full", "psgld")
    assert book.wants("linear", "batch", "default")
    assert not book.wants("banana", "batch", "default")
    assert not book.wants("linear-1e4", "full", "default")
    assert sampling.Book("accuracy", out, [], True).wants("banana", "full", "default")
    assert sampling.read(out)[0]["meets"] == "True"
