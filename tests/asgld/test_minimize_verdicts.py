"""`minimize` on functions that others wrote: units, plateaus, endless descents, odd scales."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from asgld import classify, minimize
from asgld.curvature.kinds import Kind
from asgld.methods import State
from asgld.oracle import Oracle, numpy_function
from asgld.run.stopping import Stop
from asgld.scipy import scipy_method


def vector(*entries: float) -> Tensor:
    return torch.tensor(entries, dtype=torch.float64)


def rosenbrock(x: Tensor) -> Tensor:
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def himmelblau(x: Tensor) -> Tensor:
    return (x[0] ** 2 + x[1] - 11) ** 2 + (x[0] + x[1] ** 2 - 7) ** 2


# Kowalik and Osborne, "Methods for unconstrained optimization problems" (1968): enzyme reaction.
_U = vector(4, 2, 1, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625)
_Y = vector(
    0.1957, 0.1947, 0.1735, 0.16, 0.0844, 0.0627, 0.0456, 0.0342, 0.0323, 0.0235, 0.0246
)  # fmt: skip


def kowalik(x: Tensor) -> Tensor:
    model = x[0] * (_U**2 + _U * x[1]) / (_U**2 + _U * x[2] + x[3])
    return ((_Y - model) ** 2).sum()


# Hartmann's function of three variables, see Dixon and Szego (1978).
_A = torch.tensor([[3.0, 10, 30], [0.1, 10, 35], [3, 10, 30], [0.1, 10, 35]], dtype=torch.float64)
_P = 1e-4 * torch.tensor(
    [[3689.0, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]],
    dtype=torch.float64,
)


def hartmann3(x: Tensor) -> Tensor:
    return -(vector(1, 1.2, 3, 3.2) * torch.exp(-(_A * (x - _P) ** 2).sum(1))).sum()


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: torch.exp(-x[0]),
        lambda x: -torch.log(1 + x[0] ** 2),
        lambda x: 1 / (1 + x[0] ** 2),
        lambda x: -(x[0] ** 2),
        lambda x: x[0],
    ],
)
def test_endless_descent_is_no_minimum(fun: Callable[[Tensor], Tensor]) -> None:
    result = minimize(fun, vector(1.0))
    assert result.kind in (Kind.UNBOUNDED, Kind.NOT_STATIONARY), str(result)
    assert not result.success
    assert result.fun <= float(fun(vector(1.0)))


def test_plateau_is_no_minimum() -> None:
    for fun in (
        lambda x: 1 + torch.exp(-x[0]),
        lambda x: torch.exp(-1e4 * (x[0] - 1)),  # soon 0, to the last digit
        lambda x: torch.tanh(-x[0] / 100),
        lambda x: torch.sigmoid(-x[0]) ** 2 + 0 * x[1],
    ):
        result = minimize(fun, vector(1.0, 1.0))
        assert result.kind is not Kind.MINIMUM
        assert not result.success
    flat = minimize(lambda x: (x[0] * x[1] - 1) ** 2, vector(2.0, 2.0))
    assert flat.kind is Kind.DEGENERATE
    assert not flat.success
    accepted = minimize(lambda x: (x[0] * x[1] - 1) ** 2, vector(2.0, 2.0), accept_flat=True)
    assert accepted.success


@pytest.mark.parametrize("of_f", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("of_x", [(1.0, 1.0), (1e-4, 1e-4), (1e4, 1e4), (1.0, 1e6), (1e-3, 1e3)])
def test_verdicts_do_not_depend_on_units(of_f: float, of_x: tuple[float, float]) -> None:
    units = vector(*of_x)
    for fun, start, minima in (
        (rosenbrock, vector(-1.2, 1.0), [0.0]),
        (himmelblau, vector(0.5, 0.5), [0.0]),
        (hartmann3, vector(0.5, 0.5, 0.5), [-3.862782, -3.089764]),
    ):
        unit = torch.cat([units, vector(1e2)])[: len(start)]
        result = minimize(lambda x, f=fun, u=unit: of_f * f(x / u), unit * start)
        assert result.kind is Kind.MINIMUM, str(result)
        assert min(abs(result.fun / of_f - value) for value in minima) < 1e-5
        assert result.num_steps > 0
    saddle = vector(0.08667750456, 2.884254701175)
    point = classify(lambda x: of_f * himmelblau(x / units), units * saddle, scale=units)
    assert point.kind is Kind.STRICT_SADDLE, str(point)
    left = minimize(lambda x: of_f * himmelblau(x / units), units * saddle)
    assert left.success
    assert left.fun / of_f < 1e-8


def test_minima_are_as_precise_as_rounding_allows() -> None:
    result = minimize(kowalik, vector(0.25, 0.39, 0.415, 0.39))
    assert result.success
    assert result.fun == pytest.approx(3.0750560385e-4, rel=1e-9)
    assert float(torch.linalg.vector_norm(torch.as_tensor(result.jac))) < 1e-13
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.normal(size=(60, 4)))
    labels = torch.from_numpy((rng.random(60) < 0.5).astype(float))

    def logistic(w: Tensor) -> Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(features @ w, labels)

    fitted = minimize(logistic, torch.zeros(4))
    assert fitted.success
    assert fitted.lambda_min is not None
    assert fitted.lambda_min > 0
    again = minimize(logistic, torch.ones(4))
    torch.testing.assert_close(fitted.x, again.x, atol=1e-12, rtol=0)


def test_a_network_for_exclusive_or_has_no_minimum_where_it_saturates() -> None:
    inputs = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]], dtype=torch.float64)
    targets = vector(0, 1, 1, 0)

    def loss(w: Tensor) -> Tensor:  # two hidden units, see Jamil and Yang (2013), "XOR"
        hidden = torch.sigmoid(inputs @ w[:4].reshape(2, 2) + w[4:6])
        return ((torch.sigmoid(hidden @ w[6:8] + w[8]) - targets) ** 2).sum()

    ends = []
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        start = 4 * torch.rand(9, generator=generator, dtype=torch.float64) - 2
        result = minimize(loss, start, max_steps=2000)
        assert result.fun <= float(loss(start))
        # The loss falls for ever, towards 0 at infinity, with curvatures of either sign around 0.
        assert result.kind is not Kind.MINIMUM, str(result)
        assert not result.success
        ends.append(result.fun)
    assert min(ends) < 1e-6


def test_autograd_products_are_believed_at_any_scale() -> None:
    s = 1e6

    def fun(x: Tensor) -> Tensor:
        return (x[1] - s) ** 2 / s - 0.5 * x[0] ** 2 * torch.exp(-(x[0] ** 2))

    for tolerances in ({}, {"eps": 1e-3, "gamma": 1e-2}):
        point = classify(fun, vector(0.0, s), **tolerances)
        assert point.kind is Kind.STRICT_SADDLE
        assert point.lambda_min == pytest.approx(-1.0)


def test_the_end_is_never_above_the_start() -> None:
    start = vector(0.6706, 0.5627, 0.0869)
    result = minimize(hartmann3, start)
    assert result.fun <= float(hartmann3(start))
    assert result.fun == min(result.fun, *(phase.after for phase in result.phases))
    assert result.success == (result.fun < -3.8)


def test_starts_where_f_is_about_zero() -> None:
    def schwefel36(x: Tensor) -> Tensor:
        return -x[0] * x[1] * (72 - 2 * x[0] - 2 * x[1])

    start = vector(2.35e-38, 36.0)
    result = minimize(schwefel36, start)
    assert result.num_steps < 500
    assert result.fun <= float(schwefel36(start))


def test_functions_without_derivatives_give_a_result() -> None:
    def bukin6(x: Tensor) -> Tensor:
        return 100 * torch.sqrt((x[1] - 0.01 * x[0] ** 2).abs()) + 0.01 * (x[0] + 10).abs()

    result = minimize(bukin6, vector(-12.3, 1.7), max_steps=500)
    assert result.fun < float(bukin6(vector(-12.3, 1.7)))
    assert not result.success or result.fun < 1e-6
    point = classify(lambda x: 1e-310 * (x**2).sum() + 3.0, vector(0.0, 0.0))
    assert point.kind is not Kind.STRICT_SADDLE


@pytest.mark.parametrize("seed", range(3))
def test_symmetric_tensor_decomposition_is_left_from_zeros(seed: int) -> None:
    """With orthogonal factors: for others the infimum may lie at infinity, where some seeds go."""
    generator = torch.Generator().manual_seed(seed)
    factors = torch.linalg.qr(torch.randn(4, 3, generator=generator, dtype=torch.float64))[0].T

    def cube(a: Tensor) -> Tensor:
        return torch.einsum("ri,rj,rk->ijk", a, a, a)

    def fun(a: Tensor) -> Tensor:
        return ((cube(a) - cube(factors)) ** 2).sum()

    result = minimize(fun, torch.zeros(3, 4), seed=seed)
    assert result.x.shape == (3, 4)
    assert result.num_escapes >= 1
    assert result.success
    assert result.fun < 1e-20


def test_many_dimensions_from_an_exact_saddle() -> None:
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(100, 5, generator=generator, dtype=torch.float64) / 10
    target = factor @ factor.T

    def fun(x: Tensor) -> Tensor:
        return ((x @ x.T - target) ** 2).sum() / 4

    result = minimize(fun, torch.zeros(100, 5), accept_flat=True)
    assert result.success, str(result)
    assert result.fun < 1e-10
    assert result.point.confidence < 1.0
    total = result.counts.total()
    assert total["value"] + total["grad"] + total["hvp"] <= 300


def test_default_retrieves_phases_in_few_calls() -> None:
    generator = torch.Generator().manual_seed(1)
    signal = torch.randn(8, generator=generator, dtype=torch.float64)
    sensing = torch.randn(64, 8, generator=generator, dtype=torch.float64)
    measured = (sensing @ signal) ** 2

    def fun(x: Tensor) -> Tensor:
        return (((sensing @ x) ** 2 - measured) ** 2).mean()

    result = minimize(fun, torch.zeros(8))
    assert result.success
    assert result.fun < 1e-20
    assert result.counts.spent[0] < 300


# ---------------------------------------------------------------------------- what users expect


def test_x_of_any_form_comes_back_in_it() -> None:
    target = {"w": torch.arange(6.0).reshape(2, 3).double(), "b": torch.ones(2).double()}

    def fun(p: dict[str, Tensor]) -> Tensor:
        return sum(((p[k] - target[k]) ** 2).sum() for k in target) + (p["b"] ** 4).sum()  # type: ignore[return-value]

    result = minimize(fun, {"w": torch.zeros(2, 3), "b": torch.zeros(2)})
    assert result.success
    torch.testing.assert_close(result.x["w"], target["w"])
    assert result.jac["b"].shape == (2,)
    square = minimize(lambda x: ((x - np.ones((2, 2))) ** 2).sum(), np.zeros((2, 2)))
    assert isinstance(square.x, np.ndarray)
    np.testing.assert_allclose(square.x, 1.0, atol=1e-7)
    number = minimize(lambda x: (x - 3.0) ** 2, 0.0)
    assert float(number.x) == pytest.approx(3.0)
    shifted = minimize(lambda x, a, b: ((x - a) ** 2).sum() + b, torch.zeros(2), args=(2.0, 1.0))
    assert shifted.fun == pytest.approx(1.0)


def test_calls_of_the_users_functions_are_counted_exactly() -> None:
    calls = {"fun": 0, "jac": 0}

    def fun(x: np.ndarray) -> float:
        calls["fun"] += 1
        return float(x[0] ** 2 - x[1] ** 2 / 2 + x[1] ** 4 / 4)

    def jac(x: np.ndarray) -> np.ndarray:
        calls["jac"] += 1
        return np.array([2 * x[0], x[1] ** 3 - x[1]])

    for method in ("auto", "agld"):
        calls.update(fun=0, jac=0)
        result = minimize(fun, [0.0, 0.0], jac=jac, method=method)
        assert {name: result.calls[name] for name in calls} == calls
    scipy_optimize = pytest.importorskip("scipy.optimize")
    calls.update(fun=0, jac=0)
    result = scipy_optimize.minimize(fun, [0.0, 0.0], jac=jac, method=scipy_method)
    assert (result.nfev, result.njev) == (calls["fun"], calls["jac"])


def test_limits_stop_and_say_so() -> None:
    seen: list[int] = []

    def stop(news: Any) -> bool:
        seen.append(news.step)
        return len(seen) == 5

    stopped = minimize(rosenbrock, vector(-1.2, 1.0), callback=stop)
    assert len(seen) == 5
    assert stopped.search.stop is Stop.CALLBACK
    assert not stopped.success
    short = minimize(rosenbrock, vector(-1.2, 1.0), maxiter=3)
    assert short.num_steps == 3
    assert not short.success
    late = minimize(rosenbrock, torch.full((50,), -1.2), max_seconds=1e-3)
    assert late.search.stop is Stop.TIME
    coarse = minimize(rosenbrock, vector(-1.2, 1.0), gtol=1e-2, polish=False)
    assert 1e-6 < coarse.point.gradient_norm <= 1e-2
    for budget in (0.5, 3.0, 20.0, 60.0):
        poor = minimize(rosenbrock, vector(-1.2, 1.0), budget=budget)
        assert poor.counts.spent[0] <= budget
        assert poor.fun <= float(rosenbrock(vector(-1.2, 1.0)))


@pytest.mark.parametrize("escape", [None, True, False])
def test_escape_is_a_choice(escape: bool | None) -> None:
    result = minimize(lambda x: x[0] ** 2 - x[1] ** 2 + x[1] ** 4, torch.zeros(2), escape=escape)
    assert result.success == (escape is not False)
    assert result.kind is (Kind.STRICT_SADDLE if escape is False else Kind.MINIMUM)


def test_result_prints_in_fifteen_lines_and_draws() -> None:
    for fun, x0 in (
        (rosenbrock, torch.full((9,), -1.2)),
        (lambda x: (x**4).sum(), torch.ones(3)),
        (lambda x: x[0], torch.ones(1)),
    ):
        result = minimize(fun, x0)
        assert len(str(result).splitlines()) <= 15
        assert result.kind.name in str(result)
    pytest.importorskip("matplotlib")
    figure = result.plot()
    assert len(figure.axes) == 2


def test_bounds_hold_and_are_judged() -> None:
    def fun(x: Tensor) -> Tensor:
        return ((x - vector(3.0, -2.0)) ** 2).sum()

    result = minimize(fun, vector(0.5, 0.5), bounds=[(0, 1), (None, None)])
    assert result.success, str(result)
    torch.testing.assert_close(result.x, vector(1.0, -2.0), atol=1e-6, rtol=0)
    inside = minimize(fun, vector(0.5, 0.5), bounds=[(0, 10), (-5, 5)])
    assert inside.success
    torch.testing.assert_close(inside.x, vector(3.0, -2.0), atol=1e-6, rtol=0)
    for start in (vector(0.5, 0.5), vector(1.0, 0.0)):  # inside, and at the corner itself
        corner = minimize(fun, start, bounds=[(0, 1), (0, 1)])
        assert corner.success
        torch.testing.assert_close(corner.x, vector(1.0, 0.0), atol=1e-6, rtol=0)


def test_bits_repeat_and_a_descent_goes_on_from_its_checkpoint(tmp_path: Any) -> None:
    start = torch.zeros(30, dtype=torch.float64)
    first, again = (minimize(rosenbrock, start, seed=4) for _ in range(2))
    assert torch.equal(first.x, again.x)
    path = tmp_path / "descent.pt"
    minimize(rosenbrock, start, max_steps=20, checkpoint=path)
    rest = minimize(rosenbrock, start, checkpoint=path)
    assert torch.equal(rest.x, minimize(rosenbrock, start).x)
    assert math.isclose(rest.fun, first.fun, abs_tol=1e-20)


# ---------------------------------------------------------------------------- what strangers found


@pytest.mark.parametrize("method", ["auto", "adam", "lbfgs", "agld"])
def test_bounds_that_hold_are_reached(method: str) -> None:
    result = minimize(
        lambda x: x.sum() + (x**2).sum(),
        torch.full((2,), 0.5),
        bounds=[(0, 1)] * 2,
        method=method,
        max_steps=2000,
    )
    assert result.success
    assert result.fun < 1e-9


def test_f_that_falls_to_a_bound_without_end_is_no_minimum() -> None:
    result = minimize(lambda x: torch.log(x).sum(), torch.ones(2), bounds=[(0, None)] * 2)
    assert result.kind is not Kind.MINIMUM


@pytest.mark.parametrize(
    "pair", [(-1e6, 1e6), (-1e16, None), (-1e10, 1e10), (None, 1e300), (-1e300, None), None]
)
def test_far_bounds_cost_no_digits(pair: Any) -> None:
    start = torch.full((2,), 0.7, dtype=torch.float64)
    for first in (start, start + 3):
        result = minimize(lambda x: ((x - 0.7) ** 2).sum(), first, bounds=[pair] * 2)
        assert result.success
        assert result.fun < 1e-28
    if pair == (None, 1e300):
        return
    far = minimize(lambda x: -x.sum(), torch.zeros(2), bounds=[(None, 1e9)] * 2)
    assert far.success
    torch.testing.assert_close(far.x, torch.full((2,), 1e9).double(), rtol=1e-9, atol=0)


def test_denormal_values_are_judged() -> None:
    for first in (26.0, 27.0, 30.0):
        result = minimize(lambda x: -torch.exp(-(x**2).sum()), torch.tensor([first, 5.0]))
        assert result.success == (result.fun < -0.5)


def test_time_limit_holds_in_the_judgment() -> None:
    clock = {"calls": 0}

    def slow(x: np.ndarray) -> float:
        clock["calls"] += 1
        time.sleep(1e-4)
        return float(np.sum(x**2))

    minimize(slow, np.ones(40), max_seconds=0.3)
    assert clock["calls"] < 4000  # a Hessian by differences alone takes 6,400


@dataclass(frozen=True)
class _Descent:
    """Gradient steps that say of their noise what the test wants."""

    has_noise: bool
    anneals: bool
    name: str = "mine"
    needs: frozenset[str] = frozenset({"grad"})
    is_batched: bool = True

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> State:
        return State(x=x0.clone())

    def step(self, oracle: Oracle, state: State) -> State:
        return State(x=state.x - 1e-3 * oracle.grad(state.x))


@pytest.mark.parametrize("polish", [True, False])
def test_without_noise_it_means_nothing_whether_noise_dies_out(polish: bool) -> None:
    start = vector(-1.2, 1.0)
    results = [
        minimize(rosenbrock, start, method=_Descent(*noise), polish=polish, max_steps=300)
        for noise in ((False, True), (False, False))
    ]
    for result in results:
        assert result.noise_floor is None
        assert "noise" not in result.message
        assert result.success == polish
    assert torch.equal(results[0].x, results[1].x)
    noisy = minimize(rosenbrock, start, method=_Descent(True, False), max_steps=300)
    assert noisy.noise_floor is not None


@pytest.mark.parametrize("method", ["agld", "adam", "asgld"])
def test_no_method_returns_a_point_above_its_start(method: str) -> None:
    start = vector(-1.2, 1.0)
    for budget in (2, 10, 40):
        result = minimize(rosenbrock, start, method=method, budget=budget)
        assert result.fun <= float(rosenbrock(start))
        assert result.kind is not Kind.UNBOUNDED


def test_errors_of_the_users_functions_are_not_swallowed() -> None:
    for last in range(2, 45, 7):
        calls = 0

        def fragile(x: Tensor, last: int = last) -> Tensor:
            nonlocal calls
            calls += 1
            if calls == last:
                raise KeyError("gone")
            return rosenbrock(x)

        with pytest.raises(RuntimeError, match="KeyError"):
            minimize(fragile, vector(-1.2, 1.0))
    for arguments in ({"seed": None}, {"seed": 1.5}, {"max_steps": None}, {"budget": "a"}):
        with pytest.raises(ValueError, match="need"):
            minimize(rosenbrock, vector(-1.2, 1.0), **arguments)  # type: ignore[arg-type]


def test_a_wrong_gradient_is_no_success() -> None:
    def fun(x: np.ndarray) -> float:
        return float(100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2)

    wrong = minimize(fun, [2.0, -3.0], jac=lambda x: x - np.array([2.0, -3.0]))
    assert not wrong.success
    assert "jac" in wrong.notes


def _detached(x: Tensor) -> Tensor:
    """A saddle at 0 for its values, and a bowl for torch, which does not see the first term."""
    return 3 * math.cos(x[0].item()) + x.square().sum()


def test_values_that_contradict_derivatives_are_no_minimum() -> None:
    result = minimize(_detached, vector(0.0, 0.0))
    assert result.kind is Kind.UNDECIDED
    assert not result.success
    assert "values of f contradict its derivatives" in result.message
    for seed in range(20):
        start = torch.randn(2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert minimize(_detached, start).kind is not Kind.MINIMUM
    assert classify(_detached, vector(0.0, 0.0)).kind is Kind.UNDECIDED
    # a wrong jac in NumPy, at a point where it is right by chance
    wrong = minimize(lambda x: 3 * math.cos(x[0]) + float(x @ x), np.zeros(2), jac=lambda x: 2 * x)
    assert wrong.kind is Kind.UNDECIDED


@pytest.mark.parametrize("noise", [1e-15, 1e-12, 1e-8, 1e-3])
def test_noise_of_values_contradicts_nothing(noise: float) -> None:
    """Null: values are rough and derivatives exact. A bowl stays one, for 30 roughnesses each."""
    for seed in range(30):

        def rough(x: Any, seed: int = seed) -> float:
            bits = np.frombuffer(np.ascontiguousarray(x).tobytes(), np.uint32).tolist()
            shift = float(np.random.default_rng([seed, *bits]).standard_normal())
            return float(x @ x) + noise * shift

        point = classify(numpy_function(rough, 2, jac=lambda x: 2 * x), vector(1e-9, 0.0))
        assert point.kind is Kind.MINIMUM, (seed, point)


def test_values_are_compared_by_two_calls() -> None:
    calls = 0

    def bowl(x: Any) -> float:
        nonlocal calls
        calls += 1
        return float(x @ x)

    counts = []
    for dim in (2, 50):
        calls = 0
        point = classify(numpy_function(bowl, dim, jac=lambda x: 2 * x), vector(*dim * [1e-9]))
        assert point.kind is Kind.MINIMUM
        counts.append(calls)
    assert counts == [3, 3]  # at the point, and at both ends of one way
