"""Methods side by side on a user's function: fair, unit-free, not stopped by one that fails."""

from __future__ import annotations

import io
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import asgld
from asgld import Comparison, Kind, compare
from asgld.diagnostics.calibration import measure_surroundings
from asgld.methods import METHODS, State, Surroundings, TorchMethod, method
from asgld.methods.rivals.first_order import PerturbedGD
from asgld.oracle import Oracle
from asgld.problems import problem


def saddle(x: Tensor) -> Tensor:
    return x[0] ** 2 - x[1] ** 2 / 2 + x[1] ** 4 / 4


def valley(x: Tensor) -> Tensor:
    """Rosenbrock's function."""
    return (100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2).sum()


ZERO = torch.zeros(2, dtype=torch.float64)
START = torch.tensor([-1.2, 1.0], dtype=torch.float64)
FEW = ("gd", "agld", "perturbed-gd", "cubic-newton", "adam")


@dataclass(frozen=True)
class Failing:
    """A method that fails at its third step."""

    name = "failing"
    needs = frozenset({"grad"})
    is_batched = True

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> State:
        return State(x=x0.clone())

    def step(self, oracle: Oracle, state: State) -> State:
        oracle.grad(state.x)
        if oracle.counts.spent[0] > 2:
            raise ArithmeticError("[bold]too far[/bold]")
        return state


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(saddle, ZERO, [*FEW, "lbfgs"], seeds=3, budget=300)


def test_noise_leaves_the_saddle_and_what_has_none_stays(found: Comparison) -> None:
    kinds = {label: {t.kind for t in found.of(label)} for label in found.methods}
    for label in ("agld", "perturbed-gd", "cubic-newton"):
        assert kinds[label] == {Kind.MINIMUM}
    for label in ("gd", "adam", "lbfgs"):
        assert kinds[label] == {Kind.STRICT_SADDLE}
        assert len(found.of(label)) == 1  # one run stands for all seeds
    assert {t.seed for t in found.of("agld")} == {0, 1, 2}
    assert set(found.methods[:3]) == {"agld", "perturbed-gd", "cubic-newton"}


def test_rows_say_what_the_ends_are(found: Comparison) -> None:
    for trial in found.trials:
        assert trial.x is not None
        assert trial.f == pytest.approx(float(saddle(trial.x)))
        assert trial.gap == pytest.approx(trial.f - found.best)
        assert trial.gap >= 0.0
        assert trial.cost <= found.budget
        assert trial.lambda_min is not None
        hessian = torch.autograd.functional.hessian(saddle, trial.x)
        assert trial.lambda_min == pytest.approx(float(torch.linalg.eigvalsh(hessian)[0]), abs=1e-2)
        assert trial.stop
    assert found.best == pytest.approx(-0.25)
    assert {row["kind"] for row in found.rows} == {"MINIMUM", "STRICT_SADDLE"}


def test_the_same_seed_gives_the_same_rows_and_another_seed_others() -> None:
    def ends(seed: int) -> list[float]:
        return [t.f for t in compare(saddle, ZERO, FEW, seeds=2, budget=60, seed=seed).trials]

    assert ends(0) == ends(0)
    assert ends(0) != ends(1)


def test_a_method_does_not_depend_on_its_rivals() -> None:
    alone = compare(saddle, ZERO, "agld", seeds=2, budget=60).trials
    among = compare(saddle, ZERO, ["adam", "agld", "neon"], seeds=2, budget=60).of("agld")
    assert [t.f for t in alone] == [t.f for t in among]
    few = compare(saddle, ZERO, "agld", seeds=1, budget=60).trials
    assert few[0].f == alone[0].f


@pytest.mark.parametrize("of_f", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("of_x", [1e-4, 1.0, 1e4])
def test_no_method_runs_off_whatever_the_units(of_f: float, of_x: float) -> None:
    """The steep wall and the flat valley of Rosenbrock's function, f and x multiplied."""

    def f(x: Tensor) -> Tensor:
        return of_f * valley(x / of_x)

    names = ["perturbed-gd", "neon", "carmon-accelerated", "perturbed-agd", "adam", "gd", "agld"]
    result = compare(f, of_x * START, names, seeds=1, budget=150)
    first = float(f(of_x * START))
    for trial in result.trials:
        assert not trial.has_failed, trial.stop
        assert trial.f < 0.5 * first, trial.method


def test_units_change_no_verdict() -> None:
    names = ["cubic-newton", "perturbed-agd", "trace", "agld", "gd"]
    kinds = []
    for of_f, of_x in ((1.0, 1.0), (1e8, 1.0), (1e-8, 1.0), (1.0, 1e4)):
        start = of_x * torch.tensor([0.3, 1e-3], dtype=torch.float64)
        result = compare(
            lambda x, a=of_f, b=of_x: a * saddle(x / b), start, names, seeds=2, budget=400
        )
        kinds.append([t.kind for t in result.trials])
    assert kinds.count(kinds[0]) == len(kinds)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_goes_down_from_a_steep_start(name: str) -> None:
    result = compare(lambda x: (x**4).sum(), torch.full((3,), 10.0), name, seeds=1, budget=1000)
    (trial,) = result.trials
    assert not trial.has_failed, trial.stop
    assert trial.f < 0.5 * 3e4


def test_a_flat_start_is_no_reason_to_run_off() -> None:
    """Curvature at the start is e^-20 of that on the way."""

    def f(x: Tensor) -> Tensor:
        return torch.exp(x).sum() - x.sum()

    result = compare(f, torch.tensor([-20.0, -1.0]), ["gd", "neon", "agld"], seeds=1, budget=800)
    for trial in result.trials:
        assert trial.f < 10.0


def test_a_method_that_runs_off_is_fitted_to_a_steeper_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The measurement missed how steep f is: curvature is 60 times larger than it says."""

    def missed(*arguments: Any, **options: Any) -> Surroundings:
        return measure_surroundings(*arguments, **options).steeper(1 / 60)

    monkeypatch.setattr("asgld._compare.measure_surroundings", missed)
    result = compare(valley, START, ["gd", "agld", "carmon-accelerated"], seeds=2, budget=500)
    for trial in result.trials:
        assert trial.f < 0.5 * float(valley(START)), trial
        assert trial.cost <= 500.0
    assert {"gd", "agld"} <= result.notes.keys()
    given = compare(valley, START, [("gd", {"lr": 0.1})], budget=500)  # as asked for
    assert not given.notes
    assert given.options["gd(lr=0.1)"]["lr"] == 0.1


def test_a_failing_method_is_a_row_and_the_others_go_on() -> None:
    result = compare(saddle, ZERO, ["gd", Failing(), "agld"], seeds=2, budget=50)
    (failed,) = result.of("failing")
    assert failed.has_failed
    assert "too far" in failed.stop
    assert math.isnan(failed.f)
    assert result.methods[-1] == "failing"
    assert {t.method for t in result.trials} == {"gd", "failing", "agld"}
    assert result.rows[1]["kind"] == "FAILED"
    assert "failing failed" in " ".join(str(result).split())
    assert "too far" not in result.table()
    assert len(result.failures) == 1
    assert {trial.kind.name for trial in result.trials}  # of failed ones, too
    assert failed.kind is Kind.UNDECIDED
    result.plot()


def test_a_function_that_fails_on_the_way_is_a_reason_and_at_the_start_an_error() -> None:
    def f(x: Tensor) -> Tensor:
        if float(x.detach().abs().max()) > 0.5:
            raise ArithmeticError("outside")
        return -x.sum()

    result = compare(f, ZERO, ["gd", "lbfgs"], seeds=1, budget=50)
    assert all(t.has_failed and "outside" in t.stop for t in result.trials)
    assert "outside" in result.notes["scales"]
    with pytest.raises(RuntimeError, match="outside"):
        compare(f, ZERO + 1.0, ["gd"])


def test_methods_may_be_names_objects_pairs_and_labels() -> None:
    given: list[Any] = [
        "adam",
        ("adam", {"lr": 0.1}),
        ("adam", {"lr": 0.1}),
        PerturbedGD(lr=0.05),
        TorchMethod("network", asgld.NetworkASGLD),
    ]
    result = compare(saddle, START, given, seeds=1, budget=30)
    labels = list(dict.fromkeys(t.method for t in result.trials))
    assert labels == ["adam", "adam(lr=0.1)", "adam(lr=0.1) #2", "perturbed-gd", "network"]
    assert not any(t.has_failed for t in result.trials)
    assert result.options["adam(lr=0.1)"]["lr"] == 0.1  # as given
    assert result.options["adam"]["lr"] != 1e-3  # as measured
    assert result.options["perturbed-gd"]["lr"] == 0.05
    assert result.options["perturbed-gd"]["radius"] != PerturbedGD().radius
    named: Mapping[str, Any] = {"mine": ("gd", {"lr": 0.1}), "theirs": method("lbfgs")}
    assert [t.method for t in compare(saddle, START, named, seeds=1).trials] == ["mine", "theirs"]


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"methods": ["gd", "adamw"]}, ValueError, "'adamw'"),
        ({"methods": [("gd", {"mu": 1.0})]}, TypeError, "'mu'"),
        ({"methods": [3]}, TypeError, "methods=3"),
        ({"methods": []}, ValueError, "at least one"),
        ({"methods": [("adam", 0.1)]}, TypeError, "0.1"),
        ({"methods": [("adam",)]}, TypeError, "adam"),
        ({"methods": [(method("gd"), {"lr": 0.1})]}, TypeError, "pair"),
        ({"methods": [("auto", {"lr": 1})]}, TypeError, "'lr'"),
        ({"budget": 0.0}, ValueError, "budget=0"),
        ({"budget": "many"}, ValueError, "budget='many'"),
        ({"budget": math.nan}, ValueError, "budget=nan"),
        ({"seeds": 0}, ValueError, "seeds=0"),
        ({"seeds": 2.5}, ValueError, "seeds=2.5"),
        ({"seeds": True}, ValueError, "seeds=True"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"seed": 0.5}, ValueError, "seed=0.5"),
        ({"seed": None}, ValueError, "seed=None"),
        ({"starts": 0}, ValueError, "starts=0"),
        ({"starts": 1.5}, ValueError, "starts=1.5"),
        ({"max_steps": -1}, ValueError, "max_steps=-1"),
        ({"max_seconds": 0}, ValueError, "max_seconds=0"),
        ({"gamma": "1"}, ValueError, "gamma='1'"),
        ({"tol": -1.0}, ValueError, "tol=-1"),
        ({"x0": [math.nan, 0.0]}, ValueError, "NaN"),
        ({"fun": 3}, TypeError, "fun=3"),
        ({"fun": lambda x: x.log().sum(), "x0": -START.abs()}, ValueError, "finite"),
    ],
)
def test_nonsense_is_refused_before_anything_runs(
    wrong: dict[str, Any], error: type[Exception], words: str
) -> None:
    calls = []

    def counted(x: Tensor) -> Tensor:
        calls.append(1)
        return saddle(x)

    with pytest.raises(error, match=words):
        compare(**{"fun": counted, "x0": START, "methods": ["gd"], **wrong})
    assert len(calls) < 30


def test_numpy_functions_with_arguments_and_a_gradient() -> None:
    def f(x: Any, a: float, center: Any) -> float:
        return float(a * np.sum((np.asarray(x) - center) ** 2))

    def jac(x: Any, a: float, center: Any) -> Any:
        return 2 * a * (x - center)

    center = np.array([1.0, -2.0, 3.0])
    for given in ({}, {"jac": jac}):
        result = compare(f, [0.0, 0.0, 0.0], ["gd", "lbfgs"], args=(5.0, center), **given)
        assert all(t.kind is Kind.MINIMUM for t in result.trials)
        for trial in result.trials:
            assert trial.x is not None
            np.testing.assert_allclose(trial.x, center, atol=1e-3)


def test_ends_stay_within_bounds_and_are_judged_there() -> None:
    bounds = [(0.5, None), (-1.0, 2.0)]
    result = compare(
        lambda x: x.square().sum(), START.abs(), ["lbfgs", "agld"], bounds=bounds, seeds=2
    )
    for trial in result.trials:
        assert trial.x is not None
        assert trial.x[0] >= 0.5
        assert trial.f == pytest.approx(0.25, abs=5e-3)
    assert result.of("lbfgs")[0].kind is Kind.MINIMUM


def test_starts_are_the_same_for_all() -> None:
    starts = torch.tensor([[0.0, 0.5], [0.0, -0.5], [1.0, 0.0]], dtype=torch.float64)
    result = compare(saddle, starts, ["gd", "agld"], starts=3, seeds=2, budget=200)
    assert [(t.start, t.seed) for t in result.of("gd")] == [(0, 0), (1, 0), (2, 0)]
    assert [(t.start, t.seed) for t in result.of("agld")] == [
        (start, seed) for start in range(3) for seed in range(2)
    ]
    sides = [float(t.x[1]) for t in result.of("gd") if t.x is not None]
    assert sides == pytest.approx([1.0, -1.0, 0.0], abs=1e-2)
    first = {label: curves.values[0] for label, curves in result.curves.items()}
    assert first["agld"].tolist() == np.repeat(first["gd"], 2).tolist()


def test_budgets_hold_and_may_be_too_small_for_one_call() -> None:
    result = compare(valley, START, [*FEW, "trace", "neon"], seeds=2, budget=40)
    assert all(t.cost <= 40.0 for t in result.trials)
    nothing = compare(valley, START, [*FEW, "trace", "lbfgs"], seeds=2, budget=0.1)
    for trial in nothing.trials:
        assert (trial.cost, trial.steps) == (0.0, 0)
        assert trial.f == pytest.approx(float(valley(START)))
    str(nothing)
    nothing.plot()


def test_samples_are_used_where_there_are_some() -> None:
    data = torch.arange(6.0, dtype=torch.float64)

    def f(x: Tensor, indices: Tensor) -> Tensor:
        return ((x - data[indices]) ** 2).mean()

    result = compare(f, torch.zeros(1), ["sgd", "gd"], num_samples=6, seeds=2, budget=20)
    assert result.options["sgd"]["batch_size"] == 1
    assert len(result.of("sgd")) == 2
    whole = compare(saddle, START, ["sgd", "natasha2"], seeds=2, budget=20)
    assert whole.options["sgd"]["batch_size"] is None
    assert len(whole.of("sgd")) == 1
    assert not any(t.has_failed for t in whole.trials)


def test_problems_can_be_compared_on() -> None:
    octopus = problem("octopus", dim=2)
    start = octopus.facts.saddles[0].point
    result = compare(octopus, start, ["agld", "gd"], seeds=2, budget=500)
    assert result.best == pytest.approx(octopus.facts.minimum, abs=1e-2)


def test_auto_is_what_minimize_does_by_itself() -> None:
    found = compare(saddle, ZERO, ["auto", "lbfgs"], seeds=2, budget=300)
    assert [t.kind for t in found.of("auto")] == [Kind.MINIMUM] * 2
    alone = asgld.minimize(saddle, ZERO, budget=300)
    first = found.of("auto")[0]
    assert (first.f, first.cost) == (alone.fun, float(alone.counts.spent.sum()))
    curves = found.curves["auto"]
    assert curves.spent[-1].tolist() == [t.cost for t in found.of("auto")]
    assert (np.diff(curves.spent, axis=0) >= 0).all()
    plain = compare(valley, START, "auto", seeds=5)  # no escape, so that no seed had a part in it
    (trial,) = plain.trials
    assert trial.kind is Kind.MINIMUM
    assert trial.f == pytest.approx(0.0, abs=1e-12)
    held = compare(valley, START, "auto", bounds=[(None, 0.5), (None, None)])
    assert held.trials[0].x[0] <= 0.5


def test_starts_have_any_form_and_ends_have_the_same() -> None:
    def f(x: Any) -> Any:
        return (x["a"] - 1.0).square().sum() + (x["b"] + 2.0) ** 2

    start = {"a": torch.zeros(2, 3), "b": torch.tensor(0.5)}
    for trial in compare(f, start, ["auto", "gd", "agld"], seeds=2).trials:
        assert trial.x["a"].shape == (2, 3)
        torch.testing.assert_close(trial.x["a"], torch.ones(2, 3).double(), atol=1e-2, rtol=0.0)
        assert float(trial.x["b"]) == pytest.approx(-2.0, abs=1e-2)
    matrix = compare(lambda x: float(((x - 3.0) ** 2).sum()), np.zeros((2, 2)), "lbfgs").trials[0]
    assert isinstance(matrix.x, np.ndarray)
    np.testing.assert_allclose(matrix.x, np.full((2, 2), 3.0), atol=1e-4)


def test_a_near_saddle_is_no_minimum() -> None:
    """Weak curvature, a thousandth of the largest: f still falls by all that there is to gain."""

    def f(x: Tensor) -> Tensor:
        return 500.0 * x[0] ** 2 - x[1] ** 2 / 2 + x[1] ** 4 / 4

    found = compare(f, torch.tensor([1e-3, 1e-9]).double(), ["gd"], budget=30)
    assert [t.kind for t in found.trials] == [Kind.STRICT_SADDLE]


def test_time_limit_ends_a_method() -> None:
    result = compare(valley, START, "gd", budget=1e6, max_seconds=0.05)
    assert result.trials[0].steps < 90_000
    assert not result.trials[0].has_failed


def test_table_fits_eighty_columns(found: Comparison) -> None:
    long = {"a method with a very long label, of which there are many": ("gd", {"lr": 1e-3})}
    wide = compare(lambda x: -1e-30 * saddle(1e20 * x), ZERO + 1.0, {**long, "agld": "agld"})
    for result in (found, wide):
        lines = str(result).splitlines()
        assert max(map(len, lines)) <= 80
        assert [line.split()[0] for line in lines[1 : 1 + len(result.methods)]] == [
            label.split()[0] for label in result.methods
        ]


def test_figure_has_a_line_for_each_method(found: Comparison) -> None:
    pytest.importorskip("matplotlib")
    figure = found.plot()
    (axes,) = figure.axes
    labels = [text.get_text().split(" (")[0] for text in figure.legends[0].get_texts()]
    assert labels == found.methods
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    for line in axes.get_lines():
        assert np.isfinite(line.get_ydata()).all()
        assert (np.asarray(line.get_ydata()) > 0).all()


def test_curves_begin_at_the_start_and_end_at_the_rows(found: Comparison) -> None:
    for label, curves in found.curves.items():
        assert (curves.values[0] == float(saddle(ZERO))).all()
        ends = curves.at(np.array([found.budget]))[0]
        assert ends.tolist() == pytest.approx([t.f for t in found.of(label)])
        assert (np.diff(curves.spent, axis=0) >= 0).all()


def test_frame_is_made_of_the_rows(found: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))  # type: ignore[arg-type]
    assert found.frame() == found.rows
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        found.frame()


def test_progress_is_shown_on_request_alone(capsys: pytest.CaptureFixture[str]) -> None:
    compare(saddle, ZERO, ["gd", "agld"], seeds=1, budget=20)
    assert capsys.readouterr().err == ""
    compare(saddle, ZERO, ["gd", "agld"], seeds=1, budget=20, progress=True)
    assert "2/2 agld" in capsys.readouterr().err


def test_an_interrupt_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Failing):
        name = "interrupted"

        def step(self, oracle: Oracle, state: State) -> State:
            raise KeyboardInterrupt

    result = compare(saddle, ZERO, ["agld", Interrupted(), "gd"], seeds=2, budget=100)
    assert all(t.kind is Kind.MINIMUM for t in result.of("agld"))
    assert "keyboard" in result.of("interrupted")[0].stop
    assert "interrupted" in result.of("gd")[0].stop
    assert result.of("gd")[0].has_failed


@pytest.mark.parametrize(
    ("start", "bounds"),
    [
        ([0.3, 0.4], [(-2, 0.5), (-2, 2)]),
        ([0.5, 0.4], [(-2, 0.5), (-2, 2)]),
        ([-1.2, 1.0], [(-2, 0.5), (None, None)]),
    ],
)
def test_at_a_bound_auto_says_what_minimize_says(start: list[float], bounds: Any) -> None:
    x0 = torch.tensor(start)
    result = compare(valley, x0, ["auto", "lbfgs", "gd"], bounds=bounds, budget=300, seeds=1)
    alone = asgld.minimize(valley, x0, bounds=bounds, budget=300, seed=0)
    (auto,), (lbfgs,) = result.of("auto"), result.of("lbfgs")
    assert auto.kind is lbfgs.kind is alone.kind is Kind.MINIMUM
    assert auto.f == pytest.approx(alone.fun)
    for trial in result.trials:
        assert math.isfinite(trial.gradient_norm)
    assert auto.gradient_norm < 1e-5


@pytest.mark.parametrize("decades", [5, 6])
def test_a_steep_start_cuts_no_method_off(decades: int) -> None:
    """Curvatures over many decades: the gradient at the start says nothing of those later on."""
    weights = torch.logspace(0, decades, 6, dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        return (weights * x**2).sum() / 2 + (x**4).sum() / 4

    result = compare(f, torch.ones(6).double(), ["auto", "lbfgs", "gd"], seeds=1)
    for label in ("auto", "lbfgs"):
        (trial,) = result.of(label)
        assert trial.kind is Kind.MINIMUM
        assert trial.f < 1e-6
    (slow,) = result.of("gd")
    assert slow.f > 1.0
    assert slow.kind is Kind.NOT_STATIONARY
    assert slow.cost == result.budget


def test_a_minimum_is_one_within_the_tolerances() -> None:
    """Whatever is called a minimum: the true one is at 1e-3 of x's way, 1e-5 of the fall."""
    weights = torch.logspace(0, 3, 4, dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        return (weights * x**2).sum() / 2

    first = float(f(torch.ones(4).double()))
    kinds = set()
    for budget in (20, 100, 1000, 8000):
        result = compare(f, torch.ones(4).double(), ["gd", "adam"], budget=budget)
        for trial in result.trials:
            kinds.add(trial.kind)
            if trial.kind is Kind.MINIMUM:
                assert trial.f <= 1.1e-5 * first
                assert float(trial.x.norm()) <= 1.1e-3 * 2.0
    assert kinds == {Kind.MINIMUM, Kind.NOT_STATIONARY}


def test_an_absolute_tolerance_stays_one() -> None:
    result = compare(lambda x: (x**2).sum() / 2, ZERO + 1.0, [("gd", {"lr": 0.01})], tol=0.1)
    (trial,) = result.trials
    assert 0.05 < trial.gradient_norm <= 0.1


def test_kinks_stop_no_method_and_cost_few_calls() -> None:
    calls = []

    def f(x: Tensor) -> Tensor:
        calls.append(1)
        return x.abs().sum()

    result = compare(f, torch.ones(3).double(), "lbfgs", seeds=1, budget=10)
    assert result.trials[0].cost > 5.0
    assert len(calls) < 700
    calls.clear()
    result = compare(f, torch.ones(3).double(), "gd", seeds=1, budget=10)
    assert result.trials[0].steps == 10
    assert result.trials[0].kind is Kind.NOT_STATIONARY
    assert len(calls) < 700


def test_the_time_limit_covers_measuring() -> None:
    calls = []

    def slow(x: Tensor) -> Tensor:
        calls.append(1)
        time.sleep(2e-3)
        return valley(x)

    compare(slow, START, "gd", max_seconds=1e-3)
    assert len(calls) < 120


def test_a_start_at_the_minimum_is_told_as_such() -> None:
    result = compare(lambda x: ((x - 1 / 3) ** 2).sum(), ZERO + 1 / 3, seeds=2, budget=50)
    assert {trial.kind for trial in result.trials} == {Kind.MINIMUM}


@pytest.mark.parametrize(
    ("f", "methods"),
    [
        (lambda x: (x**4).sum(), [("gd", {"lr": 10.0}), ("gd", {"lr": 0.6}), "lbfgs"]),
        (lambda x: -(x**4).sum(), ["auto", "gd"]),
        (lambda x: -torch.exp(x).sum(), ["auto", "gd"]),
        (lambda x: 0.0 * x.sum() + 3.0, ["auto", "gd"]),
    ],
)
def test_figures_of_what_diverges_or_stays(f: Any, methods: list[Any]) -> None:
    pytest.importorskip("matplotlib")
    figure = compare(f, ZERO + 1.0, methods, seeds=1, budget=100).plot()
    figure.savefig(io.BytesIO())
    for line in figure.axes[0].get_lines():
        assert np.isfinite(line.get_ydata()).all()
    low, high = figure.axes[0].get_ylim()
    assert math.isfinite(high)
    assert low < high


def test_no_legend_is_cut_off() -> None:
    pytest.importorskip("matplotlib")
    named = {f"number {i}": ("gd", {"lr": 1e-3 * (i + 1)}) for i in range(24)}
    figure = compare(saddle, START, named, seeds=1, budget=10).plot()
    figure.savefig(io.BytesIO())
    extent = figure.legends[0].get_window_extent()
    assert extent.y0 >= 0.0
    assert extent.y1 <= figure.bbox.y1 + 1.0
    assert extent.x1 <= figure.bbox.x1 + 1.0


def test_the_table_says_the_most_frequent_kind(found: Comparison) -> None:
    words = {line.split()[0]: line.split()[1] for line in found.table().splitlines()}
    assert words["agld"] == "minimum"
    assert words["gd"] == "saddle"
    flat = compare(lambda x: (x[0] * x[1] - 1) ** 2, ZERO + 2.0, ["lbfgs", "gd"], seeds=1)
    assert {trial.kind for trial in flat.trials} == {Kind.DEGENERATE}
    ring = compare(lambda x: (x.square().sum() - 1) ** 2, ZERO, "agld", seeds=3)
    assert {trial.kind for trial in ring.trials} == {Kind.DEGENERATE}
    words = {line.split()[0]: line.split()[1] for line in flat.table().splitlines()}
    assert words["lbfgs"] == words["gd"] == "degenerate"


def test_where_f_is_unbounded_it_is_said_and_the_lowest_comes_first() -> None:
    names = ["adam", "auto", "gd", "agld", "lbfgs"]
    for f in (lambda x: -(x**4).sum(), lambda x: -(x**2).sum(), lambda x: -torch.exp(x).sum()):
        result = compare(f, ZERO + 1.0, names, seeds=1, budget=600)
        assert not any(trial.has_failed for trial in result.trials)
        ends = [result.of(label)[0] for label in result.methods]
        assert [t.f for t in ends] == sorted(t.f for t in ends)
        assert ends[0].kind is result.of("auto")[0].kind is Kind.UNBOUNDED
        assert "scales" in result.notes


def test_an_unknown_label_is_refused(found: Comparison) -> None:
    with pytest.raises(KeyError, match="cubic-newton"):
        found.of("nope")
