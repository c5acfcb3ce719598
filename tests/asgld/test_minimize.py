"""`minimize`: from saddles to minima, in torch and NumPy, and from the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from saddle_cases import saddle_jac, saddle_numpy, saddle_torch
from torch import Tensor

import asgld
from asgld._minimize import minimize
from asgld.curvature.points import Kind
from asgld.diagnostics.calibration import measure_start
from asgld.methods import TorchMethod, langevin
from asgld.oracle import Oracle
from asgld.oracle.functions import torch_function
from asgld.problems import Problem, problem, problem_names
from asgld.run.history import Record
from asgld.run.stopping import Stop

pytest.importorskip("scipy.optimize")

# Options that keep the zoo quick; all else is default.
SMALL: dict[str, dict[str, Any]] = {
    "digits": {"hidden": 4, "num_samples": 300, "l2": 1e-2},
    "octopus": {"dim": 3},
}
STRICT = [
    (name, i)
    for name in problem_names()
    for i, saddle in enumerate(problem(name, **SMALL.get(name, {})).facts.saddles)
    if saddle.is_strict
]


def build(name: str) -> Problem:
    return problem(name, **SMALL.get(name, {}))


# ---------------------------------------------------------------------------- the zoo


# Their minima are not isolated: a rotation of the factors, a scale between layers changes nothing.
VALLEYS = {"factorization", "sensing", "deep-linear"}


@pytest.mark.parametrize("method", ["auto", "asgld", "agld"])
@pytest.mark.parametrize(("name", "number"), STRICT)
def test_every_strict_saddle_is_left_for_a_minimum(name: str, number: int, method: str) -> None:
    p = build(name)
    saddle = p.facts.saddles[number]
    result = minimize(p, saddle.point, method=method, max_steps=600, accept_flat=name in VALLEYS)
    assert result.kind is (Kind.DEGENERATE if name in VALLEYS else Kind.MINIMUM), str(result)
    assert result.success
    assert result.fun < saddle.value
    assert float(torch.as_tensor(result.jac).norm()) <= 1e-3
    # The noise, not the polish, left the saddle. (Rosenbrock's lies 0.007 above a minimum, which is
    # less than the noise lifts the iterate.)
    is_quiet = method == "auto" or name == "rosenbrock"
    assert is_quiet or float(result.search.values[0]) < saddle.value
    if p.facts.minimum is not None:
        assert result.fun >= p.facts.minimum - 1e-9


@pytest.mark.parametrize(("name", "number"), STRICT)
def test_without_noise_the_result_says_saddle(name: str, number: int) -> None:
    p = build(name)
    saddle = p.facts.saddles[number]
    result = minimize(p, saddle.point, method="asg")
    assert result.kind in (Kind.STRICT_SADDLE, Kind.MAXIMUM)
    assert not result.success
    assert torch.equal(torch.as_tensor(result.x), saddle.point)
    assert result.lambda_min == pytest.approx(saddle.lambda_min, rel=1e-2)
    assert result.point.lower is not None
    assert result.point.lower <= saddle.lambda_min * (1 - 1e-9)
    assert result.message.startswith(f"{result.kind.name}: ")


@pytest.mark.parametrize("name", sorted({name for name, _ in STRICT} - {"digits", "rosenbrock"}))
def test_sgld_leaves_too_and_is_judged_at_its_noise_floor(name: str) -> None:
    p = build(name)
    saddle = p.facts.saddles[0]
    result = minimize(p, saddle.point, method="sgld", max_steps=1000)
    assert result.fun < saddle.value
    assert not result.success
    assert result.noise_floor is not None
    assert result.point.eps == pytest.approx(2 * result.noise_floor)
    assert result.kind not in (Kind.STRICT_SADDLE, Kind.MAXIMUM)
    assert "Constant noise keeps the gradient norm near" in result.message
    assert result.polish is None


@pytest.mark.parametrize(
    ("name", "options"), [("monkey-saddle", {}), ("deep-linear", {"depth": 3})]
)
def test_degenerate_controls_are_called_degenerate(name: str, options: dict[str, Any]) -> None:
    p = problem(name, **options)
    degenerate = next(s for s in p.facts.saddles if not s.is_strict)
    result = minimize(p, degenerate.point, method="asg")
    assert result.kind is Kind.DEGENERATE
    assert not result.success


# ---------------------------------------------------------------------------- what it says


def test_result_tells_search_and_polish_apart() -> None:
    result = minimize(saddle_torch, torch.zeros(2), method="agld")
    assert result.polish is not None
    assert result.search.stop is Stop.SETTLED
    assert float(result.search.grad_norms[0]) > 1e-3 >= float(result.polish.grad_norms[0])
    assert float(result.search.values[0]) > result.fun
    assert "steps of agld: f from 0 to" in result.message
    assert "steps of lbfgs: f from" in result.message
    total = result.counts.total()
    used = [part.counts.total()["gradient_equivalents"] for part in (result.search, result.polish)]
    assert total["gradient_equivalents"] > sum(used)  # measuring the step size is counted too
    assert result.history.steps[-1] == result.search.steps[0] + result.polish.steps[0]
    assert np.all(np.diff(result.history.spent[:, 0]) >= 0)
    assert result.num_steps == result.history.steps[-1]
    assert result.options["lr"] == pytest.approx(0.5, rel=0.01)  # 1 / largest curvature


def test_search_waits_where_curvature_is_negative() -> None:
    # Curvature -0.012 in one of 40 directions: for hundreds of steps the noise in the others hides
    # that the value falls. (With this seed the search would settle at step 130.)
    def slow(x: Tensor) -> Tensor:
        return (x[1:] ** 2).sum() / 2 - 0.006 * x[0] ** 2 + 1e-4 * x[0] ** 4

    quiet = {"tol": 1e-4, "gamma": 5e-3, "sigma": 3e-3, "delta": 0.0}
    result = minimize(slow, torch.zeros(40), method="agld", seed=3, **quiet)
    assert result.success
    assert float(result.search.values[0]) < -0.08  # the noise left, not the polish
    assert int(result.search.steps[0]) > 300


def test_search_without_polish_is_judged_as_it_is() -> None:
    result = minimize(saddle_torch, torch.zeros(2), method="agld", polish=False)
    assert result.polish is None
    assert result.kind is Kind.NOT_STATIONARY
    assert not result.success


def test_escape_goes_on_from_a_saddle() -> None:
    stuck = minimize(saddle_torch, torch.zeros(2), method="asg")
    assert stuck.kind is Kind.STRICT_SADDLE
    free = minimize(saddle_torch, torch.zeros(2), method="asg", escape=True)
    assert free.success
    assert free.num_escapes == 1
    assert free.fun == pytest.approx(-0.25, abs=1e-6)
    assert next(phase.name for phase in free.phases if phase.steps) == "escape"
    # A chain of saddles, one behind the other, takes several; a small budget ends it earlier.
    p = problem("octopus", dim=3)
    chain = minimize(p, torch.zeros(3), method="asg", escape=True)
    assert chain.success
    assert chain.num_escapes >= 1
    assert p.facts.minimum is not None
    assert chain.fun == pytest.approx(p.facts.minimum)
    poor = minimize(p, torch.zeros(3), method="asg", escape=True, budget=40.0)
    assert not poor.success
    assert poor.counts.spent[0] <= 40.0
    monkey = problem("monkey-saddle")
    assert minimize(monkey, torch.zeros(2), method="asg", escape=True).success


def test_replicas_run_at_once_and_all_are_returned() -> None:
    result = minimize(saddle_torch, torch.zeros(2), method="agld", replicas=20, seed=1)
    assert result.all_x.shape == (20, 2)
    assert result.all_fun.shape == (20,)
    assert result.fun == float(result.all_fun.min())
    ends = torch.as_tensor(result.all_x)[:, 1]
    assert float((ends.abs() - 1).abs().max()) < 1e-2
    # Null: each side is as likely. 20 draws: all on one side has probability 2e-6.
    assert 0 < int((ends > 0).sum()) < 20
    starts = torch.tensor([[0.5, 0.5], [0.5, -0.5]], dtype=torch.float64)
    both = minimize(saddle_torch, starts, method="agld", replicas=2)
    assert torch.as_tensor(both.all_x)[:, 1].sign().tolist() == [1.0, -1.0]


def test_same_seed_same_bits_other_seed_other_bits() -> None:
    first, again, other = (
        minimize(saddle_torch, torch.zeros(2), method="asgld", seed=seed, polish=False)
        for seed in (1, 1, 2)
    )
    assert torch.equal(torch.as_tensor(first.x), torch.as_tensor(again.x))
    assert not torch.equal(torch.as_tensor(first.x), torch.as_tensor(other.x))


@pytest.mark.parametrize("budget", [0.5, 5.0, 25.0, 60.0, 150.0])
def test_budget_is_a_result_wherever_it_ends(budget: float) -> None:
    result = minimize(saddle_torch, torch.zeros(2), method="agld", budget=budget)
    assert result.counts.spent[0] <= budget
    assert not result.success
    assert "budget" in result.message


def test_step_size_is_shortened_where_the_start_misled() -> None:
    # Flat at the start, steep beyond: curvature 0.1 at 0, some 100 at the minima.
    def fun(x: Tensor) -> Tensor:
        return -0.05 * (x**2).sum() - 10 * (x**4).sum() + 10 * (x**6).sum()

    result = minimize(fun, torch.zeros(2), method="agld", max_steps=500)
    assert result.success
    assert "shortened" in result.notes["lr"]
    given = minimize(fun, torch.zeros(2), method=langevin("agld", lr=1e-3), max_steps=100)
    assert given.options["lr"] == 1e-3
    fixed = minimize(fun, torch.zeros(2), method="agld", max_steps=100, lr=1e-3)
    assert fixed.options["lr"] == 1e-3
    assert "lr" not in fixed.notes


def test_scales_are_measured_and_counted() -> None:
    def bowl(x: Tensor) -> Tensor:
        return (x**2 @ torch.tensor([1.0, 25.0], dtype=torch.float64)) / 2

    oracle = Oracle(torch_function(bowl, 2))
    starts = torch.ones(3, 2, dtype=torch.float64)
    scales = measure_start(oracle, starts)
    assert scales.curvature == pytest.approx(25.0, rel=1e-3)
    assert scales.max_square == 625.0
    assert oracle.counts.spent[0] >= 21.0
    assert oracle.counts.spent[1:].tolist() == [0.0, 0.0]  # equal starts are measured once

    # Nearly straight at the start, with a wall beyond, where a long step overflows.
    wall = Oracle(torch_function(lambda x: (torch.exp(20 * (x - 0.5)) - x).sum(), 1))
    zero = torch.zeros(1, 1, dtype=torch.float64)
    step = -wall.free().grad(zero) / measure_start(wall, zero).curvature
    assert float(wall.free().value(step)) < float(wall.free().value(zero))
    assert 0.1 < float(step) < 1.0


def test_search_that_diverges_does_not_take_the_result_along() -> None:
    result = minimize(saddle_torch, torch.ones(2), method="agld", lr=10.0)
    assert result.search.stop is Stop.NON_FINITE
    assert "polished from there" in result.notes["polish"]
    assert result.success
    assert "a number was not finite" in result.message


def test_method_objects_are_taken_as_they_are() -> None:
    adam = TorchMethod("adam", torch.optim.Adam, {"lr": 0.01})
    result = minimize(saddle_torch, torch.full((2,), 0.1), method=adam)
    assert result.success
    assert "steps of adam" in result.message
    filled = minimize(saddle_torch, torch.zeros(2), method=langevin("asgld", alpha=0.5))
    assert (filled.options["alpha"], filled.options["lr"]) == (0.5, pytest.approx(0.5, rel=1e-2))


@pytest.mark.parametrize("name", ["perturbed-gd", "carmon-cubic", "cubic-newton"])
def test_rival_methods_enter_by_the_same_door(name: str) -> None:
    result = minimize(saddle_torch, torch.zeros(2), method=name, max_steps=300)
    assert result.success
    assert f"steps of {name}: f from 0 to -0.2" in result.message


def test_callback_and_checkpoint_reach_the_loop(tmp_path: Path) -> None:
    seen = []

    def callback(news: Any) -> bool:
        seen.append(news.x)
        return len(seen) == 7

    bounded = minimize(
        lambda x: (x - x.log()).sum(),
        2 * torch.ones(2),
        method="asgld",
        bounds=[(0, None)] * 2,
        callback=callback,
    )
    assert len(seen) == 7
    assert bounded.search.stop is Stop.CALLBACK
    assert bool((torch.stack(seen) > 0).all())  # in the user's coordinates
    path = tmp_path / "search.pt"
    how: dict[str, Any] = {"method": "asgld", "polish": False}
    whole = minimize(saddle_torch, torch.zeros(2), max_steps=90, **how)
    minimize(saddle_torch, torch.zeros(2), max_steps=40, checkpoint=path, **how)
    rest = minimize(saddle_torch, torch.zeros(2), max_steps=90, checkpoint=path, **how)
    assert torch.equal(torch.as_tensor(whole.x), torch.as_tensor(rest.x))


# ---------------------------------------------------------------------------- torch and NumPy


def test_functions_are_recognized() -> None:
    def half_torch(x: Any) -> Any:
        return x[0] ** 2 + float(x[1] - 1) ** 2  # runs on tensors, loses half of the gradient

    cases: list[tuple[Any, dict[str, Any], str]] = [
        (saddle_torch, {}, "autograd of `fun`"),
        (saddle_numpy, {}, "central differences of values"),
        (saddle_numpy, {"jac": saddle_jac}, "the given `jac`"),
        (half_torch, {}, "central differences of values"),
    ]
    for fun, options, note in cases:
        result = minimize(fun, [0.3, 0.4], method="agld", **options)
        assert result.notes["grad"] == note
        assert isinstance(result.x, np.ndarray)
        assert result.success
    assert isinstance(minimize(saddle_torch, torch.zeros(2)).x, Tensor)
    assert minimize(saddle_torch, torch.zeros(2, dtype=torch.float32)).x.dtype == torch.float64


def test_numpy_minibatches_are_served() -> None:
    data = np.random.default_rng(0).normal(3.0, 1.0, size=(50, 2))

    def fun(x: np.ndarray, indices: np.ndarray) -> float:
        return float(((data[indices] - x) ** 2).sum(-1).mean() / 2)

    def jac(x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        return x - data[indices].mean(0)

    result = minimize(
        fun, [0.0, 0.0], jac=jac, method="asgld", num_samples=50, batch_size=5, max_steps=300
    )
    assert result.success
    np.testing.assert_allclose(result.x, data.mean(0), atol=2e-3)
    assert result.counts.calls["sample_grad"][0] > 0


# ---------------------------------------------------------------------------- command line


def test_command_line_shows_a_table_and_draws_a_figure(tmp_path: Path) -> None:
    typer = pytest.importorskip("typer")
    testing = pytest.importorskip("typer.testing")
    pytest.importorskip("matplotlib")
    from asgld.cli.problem import minimize as command

    app = typer.Typer()
    app.command()(command)

    def invoke(*arguments: str) -> Any:
        return testing.CliRunner().invoke(app, list(arguments))

    figure = tmp_path / "run.png"
    done = invoke("mixture", "-o", "dim=3", "--method", "agld", "--figure", str(figure))
    assert done.exit_code == 0
    assert "a minimum" in done.output
    assert "the value stopped" in done.output
    assert "lambda_min" in done.output
    assert figure.stat().st_size > 1000
    stuck = invoke("mixture", "-o", "dim=3", "--method", "asg")
    assert "STRICT_SADDLE" in stuck.output
    for arguments, words in (
        (("nope",), "unknown problem 'nope'"),
        (("mixture", "-o", "lr"), "need key=value"),
        (("mixture", "-o", "foo=1"), "unknown option 'foo'"),
        (("variance",), "no known saddle"),
        (("mixture", "--start", "top"), "need 'random' or 'saddle'"),
    ):
        failed = invoke(*arguments)
        assert failed.exit_code == 2
        text = " ".join(failed.output.replace("│", " ").split())
        assert words in text


# ---------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"method": "agld", "no_such": 1}, TypeError, "unknown option .no_such.*known are alpha"),
        ({"lr": 1.0}, TypeError, "unknown option 'lr'.*method="),
        ({"ftol": 1.0}, TypeError, "'ftol'"),
        ({"method": "newton"}, ValueError, "method='newton': known are auto, asgld, agld"),
        ({"tol": 0.0}, ValueError, "tol=0.0"),
        ({"max_seconds": 0}, ValueError, "max_seconds=0"),
        ({"gamma": -1.0}, ValueError, "gamma=-1.0"),
        ({"x0": torch.tensor([0.0, torch.nan])}, ValueError, "x0 has entries that are NaN"),
        ({"replicas": 0}, ValueError, "replicas=0"),
        ({"replicas": 3, "x0": torch.zeros(2, 2)}, ValueError, "replicas=3 but x0 has 2 rows"),
        ({"fun": 3}, TypeError, "fun=3"),
        ({"bounds": [(0, 1)]}, ValueError, "need 2 pairs"),
        ({"bounds": [(0, 1), (2, 1)]}, ValueError, r"bounds\[1\]=\(2.0, 1.0\): need low < high"),
        ({"bounds": [(1, 2), (0, 1)]}, ValueError, "not inside its bounds"),
        ({"bounds": [(-1, 1)] * 2, "transform": "exp"}, ValueError, "transform='exp'"),
        ({"fun": lambda x: torch.log(x).sum()}, ValueError, "not finite at x0"),
        ({"fun": problem("monkey-saddle"), "jac": max}, ValueError, "come with the problem"),
        ({"fun": problem("strict-saddle")}, ValueError, "x0 has 2 coordinates, the problem has 16"),
        ({"method": asgld.methods.LBFGS(), "lr": 1.0}, TypeError, "unknown option 'lr'"),
        ({"lr": 1.0}, TypeError, r"takes no options; a Langevin method, .*='agld', does$"),
        ({"eps": 1e-2}, TypeError, "unknown option 'eps': in minimize it is tol, the gradient"),
        (
            {"method": asgld.methods.LBFGS(), "max_iter": 9},
            TypeError,
            "'max_iter': in minimize it is max_steps",
        ),
        ({"batch_size": 3}, TypeError, "'batch_size'.*; method='asgld' takes batches$"),
        ({"method": "agld", "batch_size": 3}, ValueError, "not a mean over samples"),
    ],
)
def test_arguments_are_checked(
    arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    arguments = {"fun": saddle_torch, "x0": torch.zeros(2), **arguments}
    with pytest.raises(error, match=match):
        minimize(**arguments)


def test_failing_user_function_is_named_in_the_middle_of_a_run() -> None:
    calls = 0

    def fragile(x: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls == 60:
            raise ZeroDivisionError("no more")
        return saddle_jac(x)

    with pytest.raises(RuntimeError, match=r"`jac` raised ZeroDivisionError: no more.*`grad`"):
        minimize(saddle_numpy, [0.0, 0.0], jac=fragile, method="agld")


@pytest.mark.parametrize("operation", [torch.matmul, torch.dot])
def test_functions_of_torchs_default_type_are_served_in_it(
    operation: Callable[..., Tensor],
) -> None:
    constants = torch.tensor([1.0, 2.0])

    def fun(x: Tensor) -> Tensor:
        return (operation(constants, x) - 3) ** 2 + (x[0] - 1) ** 2

    result = minimize(fun, torch.zeros(2))
    assert result.success
    assert "dtype" in result.notes
    torch.testing.assert_close(result.x, torch.ones(2).double(), atol=1e-3, rtol=0)


def test_value_cut_off_from_x_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"leave out \.item\(\)"):
        minimize(lambda x: (x**2).sum().item(), torch.ones(2))


def test_message_says_how_many_replicas_there_were() -> None:
    result = minimize(lambda x: (x**2).sum(), torch.ones(2, 3), replicas=2)
    assert "the best of 2 replicas of 3 coordinates" in result.message
    assert "replicas" not in minimize(lambda x: (x**2).sum(), torch.ones(9)).message


def test_record_is_passed_on() -> None:
    record = Record("linear", every=25, iterates=True)
    result = minimize(
        saddle_torch,
        torch.zeros(2),
        method="asgld",
        bounds=[(-3, 3)] * 2,
        max_steps=100,
        record=record,
    )
    assert result.history.steps[:5].tolist() == [0, 25, 50, 75, 100]
    assert result.history.iterates is not None
    np.testing.assert_allclose(result.history.iterates[0], 0.0, atol=1e-12)
