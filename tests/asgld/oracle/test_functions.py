"""User functions: one evaluation for value and gradient, exact counts, precision, Hessians."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import asgld
from asgld.oracle.functions import UserFunction, numpy_function, torch_function

DIM = 3


def points(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def smooth(x: Tensor) -> Tensor:
    return (x**4).sum() / 4 + x[0] * x[1] - torch.cos(x[2])


def smooth_grad(x: Tensor) -> Tensor:
    return x**3 + torch.stack((x[1], x[0], torch.sin(x[2])))


def smooth_hess(x: Tensor) -> Tensor:
    mixed = torch.zeros(3, 3, dtype=x.dtype)
    mixed[0, 1] = mixed[1, 0] = 1.0
    return torch.diag(3 * x**2) + mixed + torch.diag(torch.tensor([0, 0, 1])) * torch.cos(x[2])


def branching(x: Tensor) -> Tensor:  # vmap refuses it
    return smooth(x) if x[0] > 0 else smooth(x) * 1.0


class Counted:
    """A callable that counts its calls itself, for comparison."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call, self.calls = call, 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self.call(*arguments)


def in_numpy(call: Callable[..., Tensor]) -> Callable[..., Any]:
    return lambda *arrays: call(*(torch.from_numpy(a) for a in arrays)).numpy()


GIVEN: dict[str, dict[str, Callable[..., Tensor]]] = {
    "fun alone": {},
    "jac": {"jac": smooth_grad},
    "hvp": {"jac": smooth_grad, "hvp": lambda x, v: smooth_hess(x) @ v},
    "hess": {"jac": smooth_grad, "hess": smooth_hess},
    "hvp and hess": {"hvp": lambda x, v: smooth_hess(x) @ v, "hess": smooth_hess},
}


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("language", ["torch", "numpy", "torch without vmap"])
def test_every_call_of_every_callable_is_counted(language: str, given: str, rows: int) -> None:
    fun = branching if language == "torch without vmap" else smooth
    callables = {"fun": fun, **GIVEN[given]}
    if language == "numpy":
        callables = {name: in_numpy(call) for name, call in callables.items()}
    counted = {name: Counted(call) for name, call in callables.items()}
    make = numpy_function if language == "numpy" else torch_function
    function = make(counted["fun"], DIM, **{k: c for k, c in counted.items() if k != "fun"})
    x = points(rows, DIM)
    for _ in range(2):
        function.value(x)
        function.grad(x)
        function.value_and_grad(x)
        function.hvp(x, x)
        function.hessian(x)
        assert function.calls == {name: call.calls for name, call in counted.items()}


def test_calls_that_fail_are_counted() -> None:
    def fragile(x: Tensor) -> Tensor:
        raise ZeroDivisionError

    for rows in (1, 3):
        fun = Counted(fragile)
        function = torch_function(fun, DIM)
        for call in (function.value, function.grad, function.value_and_grad, function.hessian):
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                call(points(rows, DIM))
            assert function.calls["fun"] == fun.calls > 0


def test_a_failure_at_one_point_does_not_give_up_autograd() -> None:
    def partial(x: Tensor) -> Tensor:
        if bool((x < 0).any()):
            raise ValueError("outside of the domain")
        return torch.log(x).sum()

    function = torch_function(partial, 2)
    inside = torch.ones(1, 2, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="outside of the domain"):
        function.hvp(-inside, inside)
    torch.testing.assert_close(function.hvp(inside, inside), -inside)
    assert function.notes["hvp"] == "autograd of `fun`, reverse over reverse"


# ---------------------------------------------------------------------------- errors of the user


class MineError(Exception):
    """An error of the user's own."""


@pytest.mark.parametrize("kind", ["value", "grad", "value_and_grad", "hvp", "hessian"])
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 4])
def test_an_error_that_does_not_come_again_goes_up_and_changes_nothing(
    rows: int, number: int, kind: str
) -> None:
    """Whichever call of `fun` raises, on whatever way: no other way is taken for it."""
    calls = 0

    def fun(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == number:
            raise MineError("mine")
        return smooth(x)

    x = points(rows, DIM)
    function, clean = torch_function(fun, DIM), torch_function(smooth, DIM)
    given = (x, x) if kind == "hvp" else (x,)

    def outcome() -> Any:
        try:
            return getattr(function, kind)(*given)
        except RuntimeError as error:
            return error

    outcomes = [outcome() for _ in range(5)]
    (error,) = (found for found in outcomes if isinstance(found, RuntimeError))
    assert "MineError: mine" in str(error)
    assert isinstance(error.__cause__, MineError)
    for found in outcomes:
        if found is not error:
            torch.testing.assert_close(found, getattr(clean, kind)(*given))
    assert function.notes == clean.notes
    before = function.calls["fun"]
    function.grad(x)
    assert function.calls["fun"] == before + 1


def test_a_refusal_of_vmap_may_come_late_and_is_noted() -> None:
    calls = 0

    def fun(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return branching(x) if calls > 3 else smooth(x)

    x = points(4, DIM)
    function = torch_function(fun, DIM)
    for _ in range(3):
        function.grad(x)
    assert "rows" not in function.notes
    torch.testing.assert_close(function.grad(x), torch.stack([smooth_grad(row) for row in x]))
    assert "one by one, since vmap failed: vmap" in function.notes["rows"]
    before = calls
    function.grad(x)
    assert calls == before + 4  # vmap is not asked again


class Alarm(RuntimeError):
    """What a user raises to end a call that takes too long; torch raises RuntimeError, too."""


@pytest.fixture
def alarm() -> Iterator[Callable[[], None]]:
    """Sleep until the alarm of the user rings, and raises."""

    def ring(number: int, frame: Any) -> None:
        raise Alarm("too long")

    def wait() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.1)
        try:
            while True:
                time.sleep(0.001)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    before = signal.signal(signal.SIGALRM, ring)
    yield wait
    signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="alarms are those of Unix")
@pytest.mark.parametrize("language", ["torch", "numpy", "float32", "torch without vmap"])
@pytest.mark.parametrize("replicas", [None, 3])
def test_what_a_signal_handler_raises_goes_up_as_it_is(
    alarm: Callable[[], None], replicas: int | None, language: str
) -> None:
    """In any call of a minimization, the search for a way to call `fun` included.

    `fun` is not called again: that call might wait for an alarm that has rung.
    """
    calls = number = 0

    def fun(x: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            alarm()
        if language == "numpy":
            return float(np.sum(x**4) + np.sum(x**2))
        if language == "float32":
            return (torch.ones(3) @ x) ** 2 + (x**2).sum()
        if language == "torch without vmap":
            return branching(x) + (x**2).sum()
        return (x**4).sum() + (x**2).sum()

    x0: Any = [0.5, 0.4, 0.3] if language == "numpy" else torch.tensor([0.5, 0.4, 0.3])
    for number in range(1, 16):
        calls = 0
        with pytest.raises(Alarm, match="too long") as caught:
            asgld.minimize(fun, x0, replicas=replicas)
        assert caught.value.__cause__ is None
        assert calls == number


@pytest.mark.parametrize("number", [1, 2, 5, 12])
@pytest.mark.parametrize("replicas", [None, 4])
@pytest.mark.parametrize("x0", [[1.0, 1.0, 1.0], torch.ones(3)])
def test_minimize_does_not_hide_an_error_that_comes_once(
    x0: Any, replicas: int | None, number: int
) -> None:
    calls = 0

    def fun(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == number:
            raise MineError("mine")
        return (x**4).sum() + (x**2).sum()

    with pytest.raises(RuntimeError, match="MineError: mine"):
        asgld.minimize(fun, x0, replicas=replicas)


@pytest.mark.parametrize("lead", [(), (1,), (4,), (2, 3)])
@pytest.mark.parametrize("fun", [smooth, branching])
def test_value_and_gradient_take_one_evaluation(fun: Any, lead: tuple[int, ...]) -> None:
    x = points(*lead, DIM)
    function = torch_function(fun, DIM)
    value, gradient = function.value_and_grad(x)
    assert function.notes["grad"] == "autograd of `fun`"
    before = function.calls["fun"]
    function.value_and_grad(x)
    rows = max(1, x.numel() // DIM)
    assert function.calls["fun"] - before == (rows if fun is branching else 1)
    assert value.shape == lead
    assert gradient.shape == x.shape
    torch.testing.assert_close(value, torch_function(fun, DIM).value(x))
    torch.testing.assert_close(gradient, torch_function(fun, DIM).grad(x))
    expected = torch.stack([smooth_grad(row) for row in x.reshape(-1, DIM)]).reshape(x.shape)
    torch.testing.assert_close(gradient, expected)


def test_value_and_gradient_of_numpy_functions_take_one_call_each() -> None:
    function = numpy_function(in_numpy(smooth), DIM, jac=in_numpy(smooth_grad))
    value, gradient = function.value_and_grad(points(1, DIM))
    assert function.calls == {"fun": 1, "jac": 1}
    torch.testing.assert_close(value[0], smooth(points(1, DIM)[0]))
    torch.testing.assert_close(gradient[0], smooth_grad(points(1, DIM)[0]))


# ---------------------------------------------------------------------------- Hessians


@pytest.mark.parametrize("dim", [1, 2, 5, 128, 150])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_hessian_takes_one_call_and_is_right(dim: int, rows: int) -> None:
    def fun(x: Tensor) -> Tensor:
        return torch.cos(x).sum() + x.sum() ** 3 / 6

    function = torch_function(fun, dim)
    x = points(rows, dim)
    function.hvp(x, x)
    before = function.calls["fun"]
    hessian = function.hessian(x)
    assert function.calls["fun"] == before + 1
    expected = torch.diag_embed(-torch.cos(x)) + x.sum(-1)[:, None, None]
    torch.testing.assert_close(hessian, expected)


class _NoVmap(torch.autograd.Function):
    """x^4 by hand, differentiable twice, which vmap refuses."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**4

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 4 * x**3 * grad


@pytest.mark.parametrize("rows", [1, 3])
def test_hessians_and_gradients_do_without_vmap(rows: int) -> None:
    function = torch_function(lambda x: _NoVmap.apply(x).sum() + x[0] * x[1], 2)
    x = points(rows, 2)
    mixed = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(function.hessian(x), torch.diag_embed(12 * x**2) + mixed)
    torch.testing.assert_close(function.grad(x), 4 * x**3 + x.flip(-1))


def test_linear_and_partly_used_coordinates_have_zero_curvature() -> None:
    x = points(2, DIM)
    for fun in (lambda x: 3 * x.sum(), lambda x: x[0] ** 2 + 0 * x[1]):
        function = torch_function(fun, DIM)
        hessian = function.hessian(x)
        expected = torch.zeros(2, DIM, DIM, dtype=torch.float64)
        expected[:, 0, 0] = 2.0 if fun(torch.ones(DIM)) == 1.0 else 0.0
        torch.testing.assert_close(hessian, expected)
        torch.testing.assert_close(function.hvp(x, x), (expected @ x[..., None])[..., 0])


def test_weights_that_require_gradients_do_not_hide_a_value_cut_off_from_x() -> None:
    weights = torch.ones(DIM, dtype=torch.float64, requires_grad=True)
    function = torch_function(lambda x: (weights * x.detach()).sum(), DIM)
    with pytest.raises(RuntimeError, match="does not depend on x"):
        function.grad(points(1, DIM))
    function = torch_function(lambda x: (weights * x).square().sum(), DIM)
    torch.testing.assert_close(function.grad(points(2, DIM)), 2 * points(2, DIM))
    assert weights.grad is None


def test_a_function_may_keep_or_change_its_x() -> None:
    kept = []

    def jac(x: Tensor) -> Tensor:
        kept.append(x)
        x *= 2
        return x

    def fun(x: Tensor) -> Tensor:
        kept.append(x)
        return (x**2).sum()

    x = points(1, DIM)
    before = x.clone()
    function = torch_function(fun, DIM)
    for call in (function.value, function.grad):
        x = before.clone()
        call(x)
        x += 1.0  # an iterate moves on
        assert torch.equal(kept[-1].detach().reshape(1, DIM), before)
    x = before.clone()
    function = torch_function(fun, DIM, jac=jac)
    torch.testing.assert_close(function.grad(x), 2 * before)
    assert torch.equal(x, before)
    function = numpy_function(lambda x: float(x.sum()), DIM, jac=lambda x: np.multiply(x, 2, out=x))
    torch.testing.assert_close(function.grad(x), 2 * before)
    assert torch.equal(x, before)


def test_all_samples_are_meant_where_no_indices_are_given() -> None:
    data = points(5, 2, seed=3)

    def jac(x: Tensor, indices: Tensor) -> Tensor:
        return x - data[indices].mean(0)

    def fun(x: Tensor, indices: Tensor) -> Tensor:
        return ((data[indices] - x) ** 2).sum(-1).mean() / 2

    for given in ({}, {"jac": jac}):
        function = torch_function(fun, 2, num_samples=5, **given)
        for x in (points(1, 2), points(3, 2)):
            torch.testing.assert_close(function.grad(x), x - data.mean(0))
            indices = torch.tensor([1, 1, 4])
            torch.testing.assert_close(function.grad(x, indices), x - data[indices].mean(0))
            torch.testing.assert_close(function.hvp(x, x), x, rtol=1e-6, atol=1e-8)


# ---------------------------------------------------------------------------- precision

MATRIX = torch.linspace(-1.0, 1.0, 9).reshape(3, 3)


def network() -> Callable[[Tensor], Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    return lambda x: (model(x) ** 2).sum() + (x * x).sum()


FLOAT32: dict[str, Callable[[Tensor], Tensor]] = {
    "matmul": lambda x: ((MATRIX @ x) ** 2).sum() + (x**4).sum(),
    "dot": lambda x: torch.dot(MATRIX[0], x) ** 2 + (x**4).sum(),
    "einsum": lambda x: torch.einsum("i,ij,j->", x, MATRIX, x) + (x**4).sum(),
    "module": network(),
    "convolution": lambda x: nn.functional.conv1d(x[None, None], MATRIX[:, None]).square().sum(),
    "in place": lambda x: MATRIX[0].clone().mul_(x).square().sum(),
    "index": lambda x: torch.zeros(3).index_put((torch.arange(3),), x).square().sum(),
}


def doubled(name: str, x: Tensor) -> Tensor:
    """The gradient of the function, computed in float32."""
    leaf = x.float().requires_grad_(True)
    return torch.autograd.grad(FLOAT32[name](leaf), leaf)[0].double()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", FLOAT32)
def test_functions_that_compute_in_float32_are_given_float32(name: str, rows: int) -> None:
    function = torch_function(FLOAT32[name], DIM)
    x = points(rows, DIM)
    gradient = function.grad(x)
    assert gradient.dtype == torch.float64
    # Several rows are one product, whose sums a processor may round in another order.
    rounding = 16 * torch.finfo(torch.float32).eps
    expected = torch.stack([doubled(name, row) for row in x])
    torch.testing.assert_close(gradient, expected, rtol=rounding, atol=rounding)
    assert function.unit_roundoff == torch.finfo(torch.float32).eps
    assert "float32" in function.notes["dtype"]
    value, _ = function.value_and_grad(x)
    assert value.dtype == torch.float64
    product, hessian = function.hvp(x, x), function.hessian(x)
    torch.testing.assert_close(product, (hessian @ x[..., None])[..., 0], rtol=1e-4, atol=1e-4)
    assert "since" not in function.notes["hvp"]
    before = function.calls["fun"]
    function.grad(x)
    assert function.calls["fun"] - before in (1, rows)  # the type is found once


def test_precision_is_read_off_the_result() -> None:
    x = points(1, DIM)
    cases: list[tuple[UserFunction, float]] = [
        (torch_function(smooth, DIM), 2**-52),
        (torch_function(lambda x: (x.float() ** 2).sum(), DIM), 2**-23),
        (torch_function(lambda x: (x.float() ** 2).sum(), DIM, jac=lambda x: 2 * x), 2**-23),
        (numpy_function(lambda x: (x**2).sum(), DIM), 2**-52),
        (numpy_function(lambda x: (x.astype(np.float32) ** 2).sum(), DIM), 2**-23),
    ]
    for function, roundoff in cases:
        function.value(x)
        assert function.unit_roundoff == roundoff
        assert ("dtype" in function.notes) == (roundoff > 2**-52)


def test_differences_of_float32_values_take_longer_steps() -> None:
    x = points(1, DIM)
    function = numpy_function(lambda x: (x.astype(np.float32) ** 2).sum(), DIM)
    function.value(x)
    torch.testing.assert_close(function.grad(x), 2 * x, rtol=1e-3, atol=1e-3)


def test_types_that_no_cast_can_reconcile_are_an_error_that_says_what_to_do() -> None:
    function = torch_function(lambda x: (MATRIX.double() @ (MATRIX @ x)).sum(), DIM)
    with pytest.raises(RuntimeError, match=r"x is float64.*\.double\(\)"):
        function.grad(points(1, DIM))
    assert function.unit_roundoff == 2**-52
    assert "dtype" not in function.notes


def test_complex_results_are_an_error() -> None:
    function = torch_function(lambda x: (x * 1j).sum(), DIM)
    with pytest.raises(RuntimeError, match="real number"):
        function.value(points(1, DIM))


def test_derivatives_do_not_need_grad_mode_and_need_no_graph_of_x() -> None:
    x = points(1, DIM)
    expected = torch_function(smooth, DIM).hessian(x)
    with torch.no_grad():
        function = torch_function(smooth, DIM)
        torch.testing.assert_close(function.grad(x)[0], smooth_grad(x[0]))
        torch.testing.assert_close(function.hessian(x), expected)
        torch.testing.assert_close(function.hvp(x, x)[0], expected[0] @ x[0])
    watched = x.clone().requires_grad_(True)
    for result in (function.value(watched), function.grad(watched), function.hvp(watched, x)):
        assert not result.requires_grad
