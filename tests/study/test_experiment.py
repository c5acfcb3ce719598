"""The engine: keys, events, censoring, the store, resumption, and independence of workers."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from asgld.methods import method as make_method
from asgld.oracle import Oracle
from asgld.problems import Problem, problem
from asgld.run import run
from asgld.run.history import History, Record
from asgld_study.sweep import engine
from asgld_study.sweep.catalog import BY_LABEL, CONTENDERS, proved_options
from asgld_study.sweep.engine import Cell, Result, Store, measure, run_cells, start_points
from asgld_study.sweep.events import Tail
from asgld_study.sweep.survival import bootstrap_medians, fit_growth, fit_slope, median, survival
from asgld_study.sweep.tuning import HELD_OUT_SEED, Search, run_searches, search

SADDLE = {"dim": 8, "gamma": 0.5, "rotated": True}
ESCAPE = Cell("strict-saddle", "agld", SADDLE, {"lr": 0.1, "sigma": 0.003}, "saddle",
              replicas=6, max_steps=800, eps=0.05, gamma=0.25)  # fmt: skip
NEWTON = Cell("strict-saddle", "cubic-newton", SADDLE, {}, "saddle", replicas=3, max_steps=50,
              eps=0.05, gamma=0.25)  # fmt: skip
BROKEN = Cell("strict-saddle", "agld", SADDLE, {"lr": -1.0}, "saddle", replicas=2)


def content(result: Result) -> dict[str, object]:
    return {k: v for k, v in dataclasses.asdict(result).items() if k != "seconds"}


# ------------------------------------------------------------------------------------ cells


def test_key_depends_on_everything_and_on_nothing_else() -> None:
    changed = [
        dataclasses.replace(ESCAPE, **change)
        for change in (
            {"problem_options": {**SADDLE, "dim": 9}}, {"options": {"lr": 0.2, "sigma": 0.003}},
            {"start": "kicked"}, {"seed": 1}, {"replicas": 7}, {"max_steps": 900},
            {"budget": 100.0}, {"eps": 0.04}, {"gamma": 0.2}, {"until": "fall"},
            {"tags": {"noise": "equal"}}, {"method": "sgld"},
        )
    ]  # fmt: skip
    keys = {cell.key for cell in (ESCAPE, *changed)}
    assert len(keys) == len(changed) + 1
    reordered = dataclasses.replace(ESCAPE, options={"sigma": 0.003, "lr": 0.1})
    assert reordered.key == ESCAPE.key


def test_key_depends_on_the_version_of_the_numerics(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ESCAPE.key
    monkeypatch.setattr(engine, "NUMERICS", "next")
    assert ESCAPE.key != before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"start": "here"}, "start='here'"),
        ({"until": "dawn"}, "until='dawn'"),
        ({"replicas": 0}, "replicas=0"),
    ],
)
def test_cell_rejects_what_it_cannot_run(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(ESCAPE, **change)


def test_kicked_starts_are_small_random_and_do_not_depend_on_the_number() -> None:
    subject = problem("strict-saddle", **SADDLE)
    few, many = (
        start_points(subject, dataclasses.replace(ESCAPE, start="kicked", replicas=r))
        for r in (3, 5)
    )
    assert torch.equal(few, many[:3])
    radius = 0.5 / (2.0 * subject.facts.hessian_lipschitz)  # gamma / (2 rho)
    lengths = many.norm(dim=-1)
    assert float(lengths.max()) <= 1e-3 * radius
    assert float(lengths.min()) > 0.0


# ------------------------------------------------------------------------------------ events


def _every_step(subject: Problem) -> History:
    """The run of `ESCAPE`, with nothing left out."""
    return run(
        Oracle(subject),
        make_method("agld", lr=0.1, sigma=0.003),
        torch.zeros(6, 8, dtype=torch.float64),
        max_steps=400,
        record=Record(schedule="linear", every=1, grad_norms=True, iterates=True),
    ).history


def test_events_are_those_of_a_step_by_step_run() -> None:
    result = measure(ESCAPE)
    assert not result.error
    subject = problem("strict-saddle", **SADDLE)
    saddle = subject.facts.saddles[0]
    path = _every_step(subject)
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
    result = measure(cell)
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
    result = measure(dataclasses.replace(ESCAPE, until="all"))
    subject = problem("strict-saddle", **SADDLE)
    path = _every_step(subject)
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
    result = measure(noisy)
    assert (result.share("sosp"), result.share("mean")) == (0.0, 1.0)
    still = measure(dataclasses.replace(noisy, options={"lr": 0.1, "noise": 0.0}, eps=0.01))
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
    result = measure(ESCAPE)
    assert result.share("sosp") == 1.0
    assert min(result.events["sosp"]["steps"]) > max(0, min(result.events["leave"]["steps"]))
    stuck = measure(dataclasses.replace(ESCAPE, method="gd", options={"lr": 0.1}, max_steps=200))
    assert stuck.share("sosp") == 0.0
    assert math.isinf(stuck.median("sosp"))


def test_second_order_test_agrees_with_eigenvalues_in_high_dimension() -> None:
    shape = {**SADDLE, "dim": 150}  # above the size for which whole Hessians are formed
    result = measure(dataclasses.replace(ESCAPE, problem_options=shape, max_steps=1500))
    subject = problem("strict-saddle", **shape)
    assert result.share("sosp") == 1.0
    assert not result.error
    assert all(v < subject.facts.minimum + 0.01 for v in result.ends["final_value"])


def test_methods_that_run_alone_give_what_a_batch_of_them_gives() -> None:
    # This one draws its perturbation: replicas must differ, and each have the seed of its number.
    cell = dataclasses.replace(NEWTON, method="carmon-cubic", until=None, max_steps=2)
    result = measure(cell)
    together = run(
        Oracle(problem("strict-saddle", **SADDLE)),
        make_method("carmon-cubic"),
        torch.zeros(3, 8, dtype=torch.float64),
        max_steps=2,
    )
    assert result.ends["final_value"] == together.values.tolist()
    assert len(set(result.ends["final_value"])) == 3


def test_counts_at_an_event_are_those_of_its_step() -> None:
    result = measure(NEWTON)
    assert result.events["sosp"]["hessian"] == result.events["sosp"]["steps"]
    assert result.events["sosp"]["eigh"] == result.events["sosp"]["steps"]


def test_budget_censors_and_finishing_never_arrives() -> None:
    tight = measure(dataclasses.replace(ESCAPE, budget=20.0))
    times, is_event = tight.times("sosp", "spent")
    assert not is_event.any()
    assert times.tolist() == [20.0] * 6
    finished = measure(
        dataclasses.replace(ESCAPE, method="trust-krylov", options={}, replicas=2, max_steps=50)
    )
    assert set(finished.ends["stop"]) == {"FINISHED"}
    times, is_event = finished.times("sosp")
    assert np.isinf(times).all()
    assert not is_event.any()


def test_a_random_start_leaves_no_saddle() -> None:
    result = measure(dataclasses.replace(ESCAPE, start="random", until="fall"))
    assert "a random start leaves no saddle" in result.error
    assert math.isnan(result.median("fall"))


# ------------------------------------------------------------------------------------ many cells


def test_results_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    cells = [ESCAPE, NEWTON, BROKEN]
    alone = run_cells(cells, jobs=1)
    together = run_cells(cells, store=Store(tmp_path), jobs=2)
    assert [content(r) for r in alone] == [content(r) for r in together]


def test_cells_run_on_one_thread_and_give_the_others_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Sums over large tensors depend on the number of threads.
    seen = []

    def note(cell: Cell) -> Result:
        seen.append(torch.get_num_threads())
        raise RuntimeError("enough")

    monkeypatch.setattr(engine, "_measure", note)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert measure(ESCAPE).error.startswith("RuntimeError: enough")
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(threads)


def test_killed_run_resumes_with_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)

    def die(done: int, total: int, result: Result) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cells([ESCAPE, NEWTON], store=store, report=die)
    assert store.load(ESCAPE.key) is not None
    assert store.load(NEWTON.key) is None
    seen = []

    def count(cell: Cell) -> Result:
        seen.append(cell)
        return measure(cell)

    monkeypatch.setattr(engine, "measure", count)
    results = run_cells([ESCAPE, NEWTON], store=store)
    assert seen == [NEWTON]
    assert [content(r) for r in results] == [content(r) for r in run_cells([ESCAPE, NEWTON])]


def test_process_killed_without_warning_resumes_with_what_is_there(tmp_path: Path) -> None:
    cells = [dataclasses.replace(NEWTON, seed=seed) for seed in range(4)]
    script = (
        "import json, os, signal, sys, pathlib\n"
        "from asgld_study.sweep.engine import Cell, Store, run_cells\n"
        "def die(done, total, result):\n"
        "    if done == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "cells = [Cell(**cell) for cell in json.loads(sys.argv[2])]\n"
        "run_cells(cells, store=Store(pathlib.Path(sys.argv[1])), report=die)\n"
    )
    text = json.dumps([cell.as_dict() for cell in cells])
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path), text], check=False)
    assert ended.returncode == -signal.SIGKILL
    kept = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert {path.stem for path in kept} == {cell.key for cell in cells[:2]}
    resumed = run_cells(cells, store=Store(tmp_path))
    assert [content(r) for r in resumed] == [content(r) for r in run_cells(cells)]
    assert {path: path.read_bytes() for path in kept} == kept  # measured once


def test_half_a_file_is_measured_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    whole = run_cells([NEWTON], store=store)
    path = store.path(NEWTON.key)
    path.write_text(path.read_text()[:100])
    assert content(run_cells([NEWTON], store=store)[0]) == content(whole[0])
    assert json.loads(path.read_text())["error"] == ""
    assert [p.name for p in tmp_path.iterdir()] == [path.name]  # no temporary file is left


def test_a_failing_cell_is_shown_and_does_not_stop_the_rest(tmp_path: Path) -> None:
    heard: list[tuple[int, int, str]] = []
    results = run_cells(
        [BROKEN, NEWTON],
        store=Store(tmp_path),
        report=lambda done, total, r: heard.append((done, total, r.error)),
    )
    assert "ValueError" in results[0].error
    assert "learning rate: -1.0" in results[0].error
    assert not results[1].error
    assert [done for done, _, _ in heard] == [1, 2]
    assert "ValueError" in heard[0][2]


def test_equal_cells_are_measured_once() -> None:
    heard: list[int] = []
    results = run_cells([NEWTON, NEWTON], report=lambda done, total, r: heard.append(total))
    assert heard == [1]
    assert results[0] is results[1]


# ------------------------------------------------------------------------------------ settings


def test_search_finds_the_best_trial_and_stops_bad_ones_early() -> None:
    base = dataclasses.replace(ESCAPE, method="gd", options={}, start="kicked", max_steps=600)
    task = Search(base, {"lr": (1e-3, 1.0)}, trials=6)
    tuned = search(task)
    costs = {}
    for draw in task.draws():
        cell = dataclasses.replace(base, options=draw, seed=HELD_OUT_SEED)
        costs[draw["lr"]] = measure(cell).median("sosp", "spent")
    assert tuned.cost == min(costs.values())
    assert costs[tuned.options["lr"]] == tuned.cost
    assert task.draws()[:3] == dataclasses.replace(task, trials=3).draws()


def test_searches_are_kept_and_do_not_depend_on_workers(tmp_path: Path) -> None:
    tasks = [
        Search(dataclasses.replace(NEWTON, options={}), {"regularization": (1e-2, 1e2)}, trials=2),
        Search(dataclasses.replace(ESCAPE, options={"sigma": 0.01}), {"lr": (0.01, 1)}, trials=2),
    ]
    first = run_searches(tasks, store=Store(tmp_path), jobs=2)
    again = run_searches(tasks, store=Store(tmp_path))
    assert first == again
    assert [(t.options, t.cost) for t in run_searches(tasks)] == [
        (t.options, t.cost) for t in first
    ]


@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda c: c.label)
@pytest.mark.parametrize("samples", [None, 64])
def test_settings_by_theory_and_by_search_build_every_method(contender, samples) -> None:
    subject = problem("strict-saddle", dim=6, num_samples=samples, noise=0.1)
    proved = proved_options(contender, subject, eps=0.1, gamma=0.3, gap=0.1)
    assert proved is not None
    drawn = {k: math.sqrt(low * high) for k, (low, high) in contender.search_ranges.items()}
    for options in (proved, {**contender.base(subject), **drawn}):
        method = make_method(contender.method, **options)
        start = torch.full((2, 6), 0.1, dtype=torch.float64)
        assert run(Oracle(subject), method, start, max_steps=2).steps.min() >= 1


def test_problems_without_constants_have_no_settings_by_theory() -> None:
    digits = problem("digits", hidden=2, num_samples=20)
    assert proved_options(BY_LABEL["gd"], digits, eps=0.1, gamma=0.1, gap=1.0) is None


# ------------------------------------------------------------------------------------ statistics


def test_median_is_that_of_the_sample_without_censoring() -> None:
    rng = np.random.default_rng(0)
    times = rng.exponential(size=31)
    assert median(times, np.ones(31, bool)) == np.median(times)


def test_median_of_censored_times_is_unbiased_where_a_naive_one_is_not() -> None:
    # T and C exponential: the true median of T is ln 2. Standard error of the estimate over 4000
    # draws is below 0.02; the threshold is five of them.
    rng = np.random.default_rng(1)
    event, censor = rng.exponential(size=4000), rng.exponential(2.0, size=4000)
    times, is_event = np.minimum(event, censor), event <= censor
    assert abs(median(times, is_event) - math.log(2)) < 0.1
    assert abs(np.median(times) - math.log(2)) > 0.1


def test_median_is_infinite_where_most_never_arrive() -> None:
    # Those censored at the time of an event were still at risk then.
    alive = survival([1.0, 2.0, 2.0], [True, True, False])[1]
    assert alive.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert median([1.0, 2.0, np.inf, np.inf, np.inf], [True, True, False, False, False]) == math.inf
    assert survival([5.0, 5.0], [False, False])[0].size == 0


def test_slope_interval_covers_the_truth() -> None:
    # 40 seeds per point around 10 + 7 x; the interval is of 95 %, the fit must be within 5 sigma.
    rng = np.random.default_rng(2)
    x = [1.0, 2.0, 3.0, 4.0]
    samples = [(10 + 7 * a + rng.normal(size=40), np.ones(40, bool)) for a in x]
    slope = fit_slope(x, samples, log_time=False)
    assert abs(slope.value - 7.0) < 5 * 1.25 / math.sqrt(40 * 5)
    assert slope.low < slope.value < slope.high
    samples[1] = (np.full(40, np.inf), np.zeros(40, bool))
    assert fit_slope(x, samples, log_time=False).points == 3
    assert math.isnan(fit_slope(x[:1], samples[:1], log_time=True).value)


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("log d", lambda d: 20 + 9 * np.log(d)),
        ("log^2 d", lambda d: 5 + 3 * np.log(d) ** 2),
        ("d^q", lambda d: 3 * d**0.7),
    ],
)
def test_growth_names_the_law(name, law) -> None:
    dims = np.array([4, 16, 64, 256, 1024, 4096])
    times = law(dims) * (1 + 0.01 * np.random.default_rng(3).normal(size=6))
    growth = fit_growth(dims, times)
    assert growth.best == name
    assert fit_growth(dims[:3], times[:3]).best == "too few points"


def test_bootstrap_has_the_medians_of_its_samples() -> None:
    rng = np.random.default_rng(4)
    times = rng.exponential(size=9)
    late = np.where(times < 1.0, times, 1.0)
    for sample in ((times, np.ones(9, bool)), (late, times < 1.0), (times, times < 0.8),
                   (times, rng.random(9) < 0.5)):  # fmt: skip
        found = bootstrap_medians(sample, 50, np.random.default_rng(5))
        draws = np.random.default_rng(5).integers(9, size=(50, 9))
        expected = [median(sample[0][draw], sample[1][draw]) for draw in draws]
        assert found.tolist() == expected
