"""Events: each is at the step that a run of single steps shows."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import torch
from cell_cases import ESCAPE, SADDLE, measured

from asgld.methods import method as make_method
from asgld.oracle import Oracle
from asgld.problems import problem
from asgld.run import run
from asgld.run.history import History, Record
from asgld_study.cells import Cell, start_points
from asgld_study.events import Tail


@functools.cache
def _every_step() -> History:
    """The run of `ESCAPE`, with nothing left out."""
    return run(
        Oracle(problem("strict-saddle", **SADDLE)),
        make_method("agld", lr=0.1, sigma=0.003),
        torch.zeros(6, 8, dtype=torch.float64),
        max_steps=400,
        record=Record(schedule="linear", every=1, grad_norms=True, iterates=True),
    ).history


def test_events_are_those_of_a_step_by_step_run() -> None:
    result = measured(ESCAPE, until="all")
    assert not result.error
    subject = problem("strict-saddle", **SADDLE)
    saddle = subject.facts.saddles[0]
    path = _every_step()
    level = saddle.value - 0.25 * (saddle.value - saddle.next_value)
    falls = (path.values < level).argmax(axis=0)
    assert result.events["fall"]["steps"] == falls.tolist()
    direction = subject.facts.minimizers[0] / subject.facts.minimizers[0].norm()
    distance = np.abs(path.iterates @ direction.numpy())
    leaves = (distance >= 0.5 / (2.0 * subject.facts.hessian_lipschitz)).argmax(axis=0)
    assert result.events["leave"]["steps"] == leaves.tolist()
    # One gradient per step, nothing else.
    assert result.events["fall"]["grad"] == falls.tolist()
    assert result.events["fall"]["spent"] == falls.tolist()


def test_a_fall_holds_if_f_does_not_bounce_back() -> None:
    # Adam overshoots: f falls, comes back over the saddle's neighborhood, and falls again.
    options = {"lr": 0.5, "beta1": 0.95}
    cell = dataclasses.replace(ESCAPE, method="adam", options=options, start="kicked", until="all")
    result = measured(cell)
    subject = problem("strict-saddle", **SADDLE)
    saddle = subject.facts.saddles[0]
    drop = 0.25 * (saddle.value - saddle.next_value)
    values = run(
        Oracle(subject),
        make_method("adam", **options),
        start_points(subject, cell),
        max_steps=400,
        record=Record(schedule="linear", every=1, grad_norms=False),
    ).history.values
    expected = []
    for f in (values - saddle.value).T:
        falls = np.flatnonzero(f < -drop).tolist()
        expected.append(next(k for k in falls if (f[k : k + 51] < -0.5 * drop).all()))
    assert result.events["hold"]["steps"] == expected
    assert result.events["fall"]["steps"] != expected
    assert result.events["hold"]["grad"] == expected  # counts are those of the fall


def test_saddle_is_clear_once_curvature_is_gone() -> None:
    result = measured(ESCAPE, until="all")
    subject = problem("strict-saddle", **SADDLE)
    path = _every_step()
    points = torch.from_numpy(path.iterates)
    lowest = torch.linalg.eigvalsh(subject.hessian(points))[..., 0]
    is_far = points.norm(dim=-1) >= 0.5 / subject.facts.hessian_lipschitz
    clear = (is_far & (lowest >= -0.25)).int().argmax(dim=0)
    # Second-order tests are spaced by 1/64 of the steps.
    found = np.array(result.events["clear"]["steps"])
    assert np.all((found >= clear.numpy()) & (found <= clear.numpy() * (1 + 1 / 64) + 1))


def test_mean_of_the_last_tenth_arrives_where_noise_keeps_the_iterate_away() -> None:
    # At lr = 0.1 a gradient noise of 2 per coordinate keeps |grad f| near 1; averaged over 400 of
    # 4000 steps, which are 20 correlation times, it is near 0.2.
    noisy = Cell("strict-saddle", "noisy-sgd", SADDLE, {"lr": 0.1, "noise": 5.0}, "kicked",
                 replicas=8, max_steps=4000, eps=0.35, gamma=0.25, until="all")  # fmt: skip
    result = measured(noisy)
    assert (result.share("sosp"), result.share("mean")) == (0.0, 1.0)
    still = measured(noisy, options={"lr": 0.1, "noise": 0.0}, eps=0.01)
    # Without noise the mean lags behind the iterate, by less than the tenth.
    iterate, mean = (np.array(still.events[e]["steps"]) for e in ("sosp", "mean"))
    assert np.all((mean >= iterate) & (mean <= iterate / 0.9 + 5))


def test_tail_is_the_mean_of_the_last_tenth() -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(500, 3)))
    tail = Tail()
    for k in range(1, 501):
        tail.add(x[k - 1])
        first = min(k - 1, math.floor(0.9 * k + 1e-9))
        assert torch.allclose(tail.mean(), x[first:k].mean(0), atol=1e-12)
        tail.mark()
    assert len(tail.marks) <= 52  # and not one for each step


def test_second_order_points_are_at_the_minimum_and_not_at_the_saddle() -> None:
    result = measured(ESCAPE)
    assert result.share("sosp") == 1.0
    assert min(result.events["sosp"]["steps"]) > max(0, min(result.events["leave"]["steps"]))
    stuck = measured(ESCAPE, method="gd", options={"lr": 0.1}, max_steps=200)
    assert stuck.share("sosp") == 0.0
    assert math.isinf(stuck.median("sosp"))


def test_second_order_test_agrees_with_eigenvalues_in_high_dimension() -> None:
    shape = {**SADDLE, "dim": 150}  # above the size for which whole Hessians are formed
    result = measured(ESCAPE, problem_options=shape, max_steps=1500)
    subject = problem("strict-saddle", **shape)
    assert result.share("sosp") == 1.0
    assert not result.error
    assert all(v < subject.facts.minimum + 0.01 for v in result.ends["final_value"])
