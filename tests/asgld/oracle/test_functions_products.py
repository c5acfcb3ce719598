"""Products by autograd are believed unless gradients prove them wrong, at any scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from asgld.oracle.differences import contradicts
from asgld.oracle.functions import UserFunction, torch_function

Scalar = Callable[[Tensor], Tensor]

WEIGHTS = torch.linspace(-1.0, 1.5, 12, dtype=torch.float64).reshape(3, 4)

SMOOTH: dict[str, Scalar] = {
    "quadratic": lambda x: (x * x).sum() - x[0] * x[1],
    "linear": lambda x: 3 * x.sum(),
    "quartic": lambda x: (x**4).sum() - (x**2).sum(),
    "rosenbrock": lambda x: (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum(),
    "bump": lambda x: (x[1] - 1) ** 2 - 0.5 * x[0] ** 2 * torch.exp(-(x[0] ** 2)) + x[2] ** 2,
    "bell": lambda x: -torch.exp(-(x * x).sum()),
    "waves": lambda x: torch.cos(x).sum() + torch.sin(2 * x[0]) * x[1],
    "logistic": lambda x: torch.nn.functional.softplus(WEIGHTS.T @ x[:3]).sum(),
    "cauchy": lambda x: torch.log1p(x * x).sum(),
    "ridge": lambda x: (x.sum() - 1) ** 4,
    "saddle": lambda x: x[0] ** 2 - x[1] ** 2 / 2 + x[1] ** 4 / 4 + x[2] ** 2,
    "monkey": lambda x: x[0] ** 3 - 3 * x[0] * x[1] ** 2 + x[2] ** 4,
    "root": lambda x: torch.sqrt(1 + (x * x).sum()),
    "product": lambda x: torch.prod(x) + torch.prod(1 + x),
    "rational": lambda x: 1 / (1 + (x * x).sum()),
    "exponential": lambda x: torch.exp(x).sum() - 2 * x.sum(),
    "network": lambda x: (torch.tanh(WEIGHTS.T @ x[:3]).sum() - 1) ** 2,
    "softmax": lambda x: torch.logsumexp(torch.cat((x, -x)), 0),
    "arctangent": lambda x: torch.atan(x).sum() ** 2 + (x[0] - x[1]) ** 2,
    "residual": lambda x: ((x[0] * torch.exp(-x[1] * WEIGHTS) - WEIGHTS) ** 2).sum() + x[2] ** 2,
}

POINTS = {
    "at zero": [0.0, 0.0, 0.0],
    "anywhere": [0.7, -1.3, 0.4],
    "near zero": [1e-9, 0.5, -1e-3],
    "on axes": [0.0, 1.0, 0.0],
}
COORDINATES: dict[str, list[float]] = {
    "one": [1.0, 1.0, 1.0],
    "small": [1e-4] * 3,
    "large": [1e4] * 3,
    "one small": [1e-6, 1.0, 1.0],
    "one large": [1.0, 1e6, 1.0],
    "all differ": [1e-6, 1.0, 1e6],
}


def scaled(fun: Scalar, factor: float, stretch: Tensor) -> Scalar:
    return lambda x: factor * fun(x / stretch)


def product_route(function: UserFunction) -> str:
    return function.notes["hvp"]


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_functions_keep_their_products_at_any_scale(name: str) -> None:
    assert len(SMOOTH) == 20
    for coordinates in COORDINATES.values():
        stretch = torch.tensor(coordinates, dtype=torch.float64)
        for factor in (1e-8, 1.0, 1e8):
            for point in POINTS.values():
                x = stretch * torch.tensor(point, dtype=torch.float64)
                function = torch_function(scaled(SMOOTH[name], factor, stretch), 3)
                function.hvp(x, torch.ones_like(x))
                where = f"{coordinates}, {factor}, {point}"
                assert product_route(function).startswith("autograd"), where
                assert "since" not in product_route(function), where


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("offset", [-1e6, 1e6])
def test_functions_whose_scale_is_far_below_x_keep_their_products(name: str, offset: float) -> None:
    for point in POINTS.values():
        x = offset + torch.tensor(point, dtype=torch.float64)
        function = torch_function(lambda y: SMOOTH[name](y - offset), 3)
        function.hvp(x, torch.ones_like(x))
        assert "since" not in product_route(function)


@pytest.mark.parametrize("name", SMOOTH)
def test_rounding_of_float32_is_no_contradiction(name: str) -> None:
    def coarse(x: Tensor) -> Tensor:
        return SMOOTH[name](x.float().double()).float().double()  # float64 by its type

    for fun in (coarse, lambda x: coarse(x).float()):
        for point in POINTS.values():
            x = torch.tensor(point, dtype=torch.float64)
            function = torch_function(fun, 3)
            function.hvp(x, torch.ones_like(x))
            assert "since" not in product_route(function)


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: x.abs().sum(),
        lambda x: torch.relu(x).sum() ** 2,
        lambda x: torch.relu(WEIGHTS.T @ x).square().sum(),
        lambda x: torch.maximum(x[0] ** 2, x[1]) + x[2] ** 2,
        lambda x: torch.floor(1e3 * x).sum() * 0 + (x * x).sum(),
        lambda x: (x * x).sum() + 1e-3 * torch.frac(100 * x).sum(),
        lambda x: x.norm(),
    ],
)
def test_kinks_and_jumps_prove_nothing(fun: Scalar) -> None:
    for point in POINTS.values():
        x = torch.tensor(point, dtype=torch.float64)
        function = torch_function(fun, 3)
        function.hvp(x, torch.ones_like(x))
        assert "since" not in product_route(function)


def test_a_narrow_bump_beside_a_large_coordinate_keeps_its_curvature() -> None:
    s = 1e6
    function = torch_function(
        lambda x: (x[1] - s) ** 2 / s - 0.5 * x[0] ** 2 * torch.exp(-(x[0] ** 2)), 2
    )
    hessian = function.hessian(torch.tensor([0.0, s], dtype=torch.float64))
    expected = torch.diag(torch.tensor([-1.0, 2 / s], dtype=torch.float64))
    torch.testing.assert_close(hessian, expected)


class _Detached(torch.autograd.Function):
    """x^4 by hand, whose derivative is computed outside torch: autograd takes it for constant."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**4

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.slope = 4 * inputs[0].detach() ** 3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return ctx.slope * grad


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("factor", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("stretch", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("rest", [0.0, 1.0])
def test_products_that_are_silently_zero_are_rejected_and_it_is_said(
    rows: int, factor: float, stretch: float, rest: float
) -> None:
    def fun(x: Tensor) -> Tensor:
        y = x / stretch
        return factor * (_Detached.apply(y).sum() + rest * (y[0] - y[1]) ** 2)

    x = stretch * torch.tensor([[0.5, -1.0], [2.0, 1.0], [1.0, 1.0]], dtype=torch.float64)[:rows]
    v = torch.ones_like(x)
    function = torch_function(fun, 2)
    mixed = torch.tensor([[2.0, -2.0], [-2.0, 2.0]], dtype=torch.float64)
    expected = factor * (12 * (x / stretch) ** 2 * v + rest * v @ mixed) / stretch**2
    torch.testing.assert_close(function.hvp(x, v), expected, rtol=1e-5, atol=0.0)
    assert "wrong product" in function.notes["hvp"]
    full = function.hessian(x)
    torch.testing.assert_close((full @ v[..., None])[..., 0], expected, rtol=1e-5, atol=0.0)


def test_a_zero_in_one_weak_coordinate_is_found_too() -> None:
    function = torch_function(lambda x: _Detached.apply(x[:1]).sum() + 1e5 * x[1] ** 2, 2)
    hessian = function.hessian(torch.ones(1, 2, dtype=torch.float64))
    expected = torch.tensor([[[12.0, 0.0], [0.0, 2e5]]], dtype=torch.float64)
    torch.testing.assert_close(hessian, expected, rtol=1e-4, atol=1e-3)


def test_the_check_costs_two_gradients_where_it_agrees_and_is_made_once() -> None:
    function = torch_function(SMOOTH["quartic"], 3)
    x = torch.tensor([POINTS["anywhere"]], dtype=torch.float64)
    function.hvp(x, x)
    assert function.calls == {"fun": 1 + 1 + 2}
    function.hvp(x, x)
    function.hessian(x)
    assert function.calls == {"fun": 1 + 1 + 2 + 2}


def test_the_check_never_takes_more_than_six_gradients() -> None:
    counts = {"grad": 0, "product": 0}

    def counted(name: str, call: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def wrapped(*rows: Tensor) -> Tensor:
            counts[name] += 1
            return call(*rows)

        return wrapped

    x = torch.tensor([[0.5, -1.0]], dtype=torch.float64)
    assert contradicts(
        counted("grad", lambda y: 4 * y**3),
        counted("product", lambda y, v: torch.zeros_like(y)),
        x,
        eps=2.2e-16,
    )
    assert counts == {"grad": 6, "product": 3}


def test_a_step_out_of_the_domain_proves_nothing() -> None:
    def fun(x: Tensor) -> Tensor:
        if bool((x < 1.0).any()):
            raise ZeroDivisionError("outside")
        return ((x - 1.0) ** 1.5).sum()

    function = torch_function(fun, 2)
    x = torch.full((1, 2), 1.0 + 1e-9, dtype=torch.float64)
    expected = 0.75 / np.sqrt(1e-9)
    assert float(function.hvp(x, torch.ones_like(x))[0, 0]) == pytest.approx(expected, rel=1e-6)
    assert math.isfinite(float(function.value(x)))


def test_gradients_that_do_not_move_prove_nothing() -> None:
    """Saturated: the gradient is absorbed by rounding, the product is not."""
    x = torch.tensor([[50.0, 60.0]], dtype=torch.float64)

    def grad(y: Tensor) -> Tensor:
        return 1 / (1 + torch.exp(-y)) - 1

    def product(y: Tensor, v: Tensor) -> Tensor:
        return v * torch.exp(-y) / (1 + torch.exp(-y)) ** 2

    assert not bool(grad(x).any())
    assert bool(product(x, torch.ones_like(x)).all())
    assert not contradicts(grad, product, x, eps=2.2e-16)
