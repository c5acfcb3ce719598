"""Differences are right wherever x is: huge, tiny, zero, at a bound."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from asgld.oracle.differences import gradient_of_values, magnitudes, product_of_gradients
from asgld.oracle.functions import numpy_function

EPS = float(np.finfo(np.float64).eps)


def base(y: np.ndarray) -> float:
    return float(np.cos(y).sum() + y[0] * y[1] ** 2 + np.exp(y[2]))


def base_grad(y: np.ndarray) -> np.ndarray:
    return -np.sin(y) + np.array([y[1] ** 2, 2 * y[0] * y[1], np.exp(y[2])])


def base_hess(y: np.ndarray) -> np.ndarray:
    matrix = np.diag(-np.cos(y) + np.array([0.0, 2 * y[0], np.exp(y[2])]))
    matrix[0, 1] = matrix[1, 0] = 2 * y[1]
    return matrix


POINTS = [[0.7, -1.3, 0.4], [1.1, 0.6, -0.9]]
STRETCHES = [
    [1.0, 1.0, 1.0],
    [1e-8, 1e-8, 1e-8],
    [1e6, 1e6, 1e6],
    [1e-6, 1.0, 1e6],
    [1.0, 1e8, 1e-8],
]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("stretch", STRETCHES)
@pytest.mark.parametrize("factor", [1e-8, 1.0, 1e8])
def test_differences_do_not_depend_on_units(
    point: list[float], stretch: list[float], factor: float
) -> None:
    s, y = np.array(stretch), np.array(point)
    without_jac = numpy_function(lambda x: factor * base(x / s), 3)
    with_jac = numpy_function(
        lambda x: factor * base(x / s), 3, jac=lambda x: factor * base_grad(x / s) / s
    )
    x = torch.from_numpy(s * y)[None]
    # In units of the coordinates both must have the error that they have at scale one.
    gradient = without_jac.grad(x).numpy()[0] * s / factor
    np.testing.assert_allclose(gradient, base_grad(y), rtol=1e-8, atol=1e-8)
    for i, v in enumerate(np.diag(s)):
        column = with_jac.hvp(x, torch.from_numpy(v)[None]).numpy()[0] * s / factor
        np.testing.assert_allclose(column, base_hess(y)[i], rtol=1e-6, atol=1e-7)
        column = without_jac.hvp(x, torch.from_numpy(v)[None]).numpy()[0] * s / factor
        np.testing.assert_allclose(column, base_hess(y)[i], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("near", [0.0, 1e-300, 1e-20, 1e-10, 1e-5, -1e-3])
def test_a_coordinate_that_happens_to_be_near_zero_loses_no_digits(near: float) -> None:
    y = np.array([near, -1.3, near])
    function = numpy_function(base, 3)
    gradient = function.grad(torch.from_numpy(y)[None]).numpy()[0]
    np.testing.assert_allclose(gradient, base_grad(y), atol=1e-7)
    assert function.calls["fun"] <= 2 * 3 + 2 * 2 * 6 + 1
    with_jac = numpy_function(base, 3, jac=base_grad)
    v = np.array([0.3, -0.5, 0.8])
    product = with_jac.hvp(torch.from_numpy(y)[None], torch.from_numpy(v)[None]).numpy()[0]
    np.testing.assert_allclose(product, base_hess(y) @ v, atol=1e-6)


def test_away_from_zero_a_gradient_takes_two_values_for_each_coordinate() -> None:
    function = numpy_function(base, 3)
    function.grad(torch.tensor([[1.5, -2.0, 30.0]], dtype=torch.float64))
    assert function.calls == {"fun": 6}


def test_magnitudes_follow_the_point() -> None:
    x = torch.tensor([[0.0, 0.0], [0.0, 1e-8], [0.0, 1e6], [-3.0, 1e-4]], dtype=torch.float64)
    expected = [[1.0, 1.0], [1e-8, 1e-8], [1.0, 1e6], [3.0, 1e-4]]
    np.testing.assert_allclose(magnitudes(x).numpy(), expected)


def watched(
    call: Callable[[Tensor], Tensor], low: float, high: float
) -> Callable[[Tensor], Tensor]:
    def wrapped(x: Tensor) -> Tensor:
        assert bool((x >= low).all() and (x <= high).all()), "left the box"
        return call(x)

    return wrapped


@pytest.mark.parametrize(
    "point",
    [
        [0.0, 1.0, 0.5],
        [1.0, 0.0, 0.0],
        [1e-12, 1 - 1e-12, 1e-300],
        [0.3, 0.3, 0.3],
        [1.0, 1.0, 1.0],
    ],
)
def test_differences_stay_inside_the_bounds_and_are_right_at_them(point: list[float]) -> None:
    x = torch.tensor(point, dtype=torch.float64)
    bounds = (torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))

    def value(y: Tensor) -> float:
        return float(watched(lambda z: (z**3).sum() + z[0] * z[1], 0.0, 1.0)(y))

    def grad(y: Tensor) -> Tensor:
        swapped = torch.stack((y[:, 1], y[:, 0], torch.zeros_like(y[:, 0])), -1)
        return watched(lambda z: 3 * z**2, 0.0, 1.0)(y) + swapped

    found = gradient_of_values(value, x, eps=EPS, bounds=bounds)
    torch.testing.assert_close(found, grad(x[None])[0], rtol=1e-6, atol=1e-6)
    hessian = torch.diag(6 * x)
    hessian[0, 1] = hessian[1, 0] = 1.0
    for v in torch.tensor([[1.0, 2.0, -1.0], [-1.0, 0.5, 3.0], [0.0, 0.0, 1.0]]).double():
        product = product_of_gradients(grad, x[None], v[None], eps=EPS, bounds=bounds)[0]
        torch.testing.assert_close(product, hessian @ v, rtol=1e-5, atol=1e-5)


def test_rows_have_their_own_steps_and_a_zero_vector_has_a_zero_product() -> None:
    x = torch.tensor([[1e6, 1.0], [1e-8, 1e-8], [1.0, 2.0]], dtype=torch.float64)
    stretch = torch.tensor([[1e6, 1.0], [1e-8, 1e-8], [1.0, 1.0]], dtype=torch.float64)
    v = torch.tensor([[1e6, 1.0], [1e-8, 0.0], [0.0, 0.0]], dtype=torch.float64)
    calls = []

    def grad(y: Tensor) -> Tensor:
        scale = stretch[[0, 1, 0, 1]]  # the zero row is left out, ahead comes before behind
        calls.append(len(y))
        return torch.sin(y / scale) / scale

    product = product_of_gradients(grad, x, v, eps=EPS)
    expected = torch.cos(x / stretch) / stretch**2 * v
    torch.testing.assert_close(product, expected, rtol=1e-8, atol=0.0)
    assert calls == [4]
