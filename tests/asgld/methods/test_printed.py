"""Algorithm 1 as printed: the literal reference step by step, and a method like all others."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from method_cases import go
from torch import Tensor

import asgld
from asgld import reference
from asgld.methods import batch_indices, method, normals
from asgld.methods.printed import PrintedASGLD
from asgld.oracle import Oracle
from asgld.problems import problem
from asgld.run import run
from asgld.run.history import Record

SETTINGS: list[dict[str, Any]] = [
    {"lr": 0.05, "alpha": 1.0, "beta": 1.0, "sigma": 0.3, "delta": 0.1},
    {"lr": 0.02, "alpha": 0.0, "beta": 2.0, "sigma": 0.1, "delta": 0.5},
    {"lr": 1e-4, "alpha": 1.5, "beta": 0.5, "sigma": 0.02, "delta": 1e-3},
    {"lr": 0.03, "alpha": 1.0, "beta": math.inf, "sigma": 0.3, "delta": 0.2},
]
REPLICAS, STEPS, SEED = 3, 40, 7


def by_reference(
    gradient: Any, x0: Tensor, options: dict[str, Any], lag: reference.Lag = reference.Lag.TWO
) -> np.ndarray[Any, Any]:
    """The iterates of the literal algorithm, (steps, replicas, d)."""
    path = reference.asgld(
        lambda x: gradient(torch.from_numpy(x)).numpy(),
        x0.numpy(),
        lambda k: normals(SEED, k, x0, stream=0).numpy(),
        lag=lag,
        d_init=options["delta"],
        **options,
    )
    return np.stack(list(itertools.islice(path, STEPS)))


def by_method(f: Any, x0: Tensor, options: dict[str, Any]) -> np.ndarray[Any, Any]:
    every = Record("linear", every=1, iterates=True)
    result, _ = go(f, PrintedASGLD(**options), x0, STEPS, seed=SEED, record=every)
    assert result.history.iterates is not None
    return result.history.iterates[1:]


@pytest.mark.parametrize("options", SETTINGS)
def test_printed_is_the_reference_with_two_steps_of_lag(options: dict[str, Any]) -> None:
    f = problem("mixture", dim=4, num_samples=50)
    x0 = f.start(REPLICAS, seed=1)
    mine = by_method(f, x0, options)
    np.testing.assert_allclose(mine, by_reference(f.grad, x0, options), rtol=1e-12, atol=1e-12)
    # The lag of one step is another algorithm from the third step on.
    other = by_reference(f.grad, x0, options, reference.Lag.ONE)
    np.testing.assert_allclose(mine[:2], other[:2], rtol=1e-12, atol=1e-12)
    if options["alpha"] or not math.isinf(options["beta"]):
        assert np.abs(mine[2] - other[2]).max() > 1e-9


def test_printed_with_batches_is_the_reference_fed_with_the_same_batches() -> None:
    f = problem("mixture", dim=4, num_samples=50)
    x0, options = f.start(REPLICAS, seed=1), SETTINGS[0]
    taken = itertools.count()

    def sampled(x: Tensor) -> Tensor:
        return f.sample_grad(x, batch_indices(SEED, next(taken), 5, 50, REPLICAS))

    mine = by_method(f, x0, {**options, "batch_size": 5})
    theirs = by_reference(sampled, x0, options)
    np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)


def test_first_gradient_enters_twice_and_the_start_is_delta() -> None:
    """By hand, f = x^2 / 2 from 1 with alpha = 2, so that steps are gradients over D."""
    f = asgld.oracle.torch_function(lambda x: 0.5 * (x * x).sum(-1), dim=1)
    made = PrintedASGLD(lr=0.1, alpha=2.0, sigma=0.0, delta=0.25)
    oracle = Oracle(f, replicas=1)
    state = made.init(oracle, torch.ones(1, 1, dtype=torch.float64), seed=0)
    x, metrics = [1.0], [0.25, 0.25 + 1.0 + 0.25, 0.25 + 2.0 + 0.5]
    for metric in metrics:
        x.append(x[-1] - 0.1 * x[-1] / metric)
        state = made.step(oracle, state)
        assert float(state.x) == pytest.approx(x[-1], rel=1e-14)


def test_printed_goes_on_from_a_checkpoint_with_the_same_bits(tmp_path: Path) -> None:
    f = problem("mixture", dim=4, num_samples=50)
    made, x0 = PrintedASGLD(**SETTINGS[0], batch_size=5), f.start(2, seed=4)
    whole, _ = go(f, made, x0, 25)
    for steps in (1, 2, 8, 25):
        part, _ = go(f, made, x0, steps, checkpoint=tmp_path / "run.pt")
    assert torch.equal(part.x, whole.x)


def test_replicas_do_not_depend_on_each_other() -> None:
    f = problem("mixture", dim=4, num_samples=50)
    x0 = f.start(4, seed=4)
    made = PrintedASGLD(**{**SETTINGS[0], "sigma": 0.0})
    alone = run(Oracle(f), made, x0[:1], max_steps=20)
    together = run(Oracle(f), made, x0, max_steps=20)
    # Not bit for bit: products of matrices of other shapes round otherwise.
    torch.testing.assert_close(together.x[:1], alone.x, rtol=1e-12, atol=1e-12)


def test_minimize_leaves_a_saddle_by_the_printed_algorithm() -> None:
    def f(x: Tensor) -> Tensor:
        return x[0] ** 2 - x[1] ** 2 / 2 + x[1] ** 4 / 4

    result = asgld.minimize(f, torch.zeros(2, dtype=torch.float64), method="asgld-printed")
    assert result.kind.name == "MINIMUM"
    assert result.fun == pytest.approx(-0.25, abs=1e-8)


def test_noise_is_told_as_it_is() -> None:
    assert not PrintedASGLD(sigma=0.0).has_noise
    assert not PrintedASGLD(beta=math.inf).has_noise
    assert PrintedASGLD(sigma=0.0, batch_size=1).has_noise
    assert [PrintedASGLD(beta=beta).anneals for beta in (0.4, 0.6)] == [False, True]


def test_a_given_delta_sets_the_step_that_goes_with_it() -> None:
    """The first step is 1/M gradients long for every delta."""
    around = asgld.methods.Surroundings(20.0, 4.0, 3.0, 5.0, 2.0, 4, 1e-3, 0.2)
    for given in ({}, {"delta": 1e-8}, {"delta": 10.0, "alpha": 1.5}):
        fitted = PrintedASGLD(**given).fitted(around)
        first = fitted["lr"] * fitted["delta"] ** (-given.get("alpha", 1.0) / 2)
        assert first == pytest.approx(1.0 / 20.0)
        assert fitted["delta"] == given.get("delta", 4.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "lr=0.0: need a positive finite number"),
        ({"delta": 0.0}, "delta=0.0: need a positive finite number"),
        ({"alpha": -1.0}, "alpha=-1.0"),
        ({"beta": math.nan}, "beta=nan"),
        ({"sigma": math.inf}, "sigma=inf"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + message):
        method("asgld-printed", **options)


def test_knobs_of_the_optimizer_are_refused() -> None:
    for knob in ("d_init", "momentum", "decay", "clip", "annealing"):
        with pytest.raises(TypeError, match=f"unknown option '{knob}' of method 'asgld-printed'"):
            method("asgld-printed", **{knob: 0.5})
