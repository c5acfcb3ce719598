"""The check in higher precision: its derivatives, and what it calls points whose kind is known."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from helpers import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
collection = importlib.import_module("minimize_set")
checking = importlib.import_module("minimize_check")
sys.path.remove(str(ROOT / "benchmarks"))
FUNCTIONS = collection.FUNCTIONS


def _check(fun: Callable[[Any], Any], dim: int, width: float = 4.0) -> Any:
    return checking.Check(fun, [-width / 2] * dim, [width / 2] * dim)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_agree_with_autograd(name: str) -> None:
    function = FUNCTIONS[name]
    x = collection.random_start(function, 1)
    value, gradient, hessian = checking.derivatives(function.fun, x.astype(np.longdouble))
    tensor = torch.from_numpy(x)
    assert float(value) == pytest.approx(float(function.fun(tensor)), rel=1e-11, abs=1e-11)
    for found, transform in ((gradient, torch.func.grad), (hessian, torch.func.hessian)):
        expected = transform(function.fun)(tensor).numpy()
        atol = 1e-11 * float(np.abs(expected).max())
        np.testing.assert_allclose(found.astype(np.float64), expected, rtol=1e-11, atol=atol)


@pytest.mark.parametrize("name", ["helical_valley", "gulf", "kowalik_osborne", "drop_wave"])
def test_derivatives_agree_with_differences_at_fifty_digits(name: str) -> None:
    function = FUNCTIONS[name]
    with mpmath.workdps(50):
        x = np.array([mpmath.mpf(v) for v in collection.random_start(function, 2)], dtype=object)
        _, gradient, hessian = checking.derivatives(function.fun, x)
        step = mpmath.mpf(10) ** -15
        for k in range(function.dim):
            shift = np.array([step * (j == k) for j in range(function.dim)], dtype=object)
            ahead, behind = (checking.derivatives(function.fun, x + s * shift) for s in (1, -1))
            slope = (ahead[0] - behind[0]) / (2 * step)
            assert abs(slope - gradient[k]) < 1e-20 * (1 + abs(slope))
            column = (ahead[1] - behind[1]) / (2 * step)
            assert all(abs(column - hessian[k]) < 1e-20 * (1 + abs(hessian[k])))


@pytest.mark.parametrize("dtype", [np.longdouble, object])
def test_linear_algebra(dtype: Any) -> None:
    random = np.random.default_rng(0)
    a = random.standard_normal((6, 6))
    matrix = a + a.T
    if dtype is object:
        precise = np.array([[mpmath.mpf(v) for v in row] for row in matrix], dtype=object)
    else:
        precise = matrix.astype(dtype)
    x = checking.solve(precise, precise @ precise[0])
    assert float(np.abs(x - precise[0]).max()) < 1e-14
    value, vector = checking.lowest(precise)
    assert float(value) == pytest.approx(np.linalg.eigvalsh(matrix)[0], rel=1e-13)
    assert float(np.abs(precise @ vector - value * vector).max()) < 1e-14
    assert not checking.is_positive_definite(precise)
    assert checking.is_positive_definite(precise @ precise)
    scale = checking.equilibrate(precise)
    rows = np.abs(precise * scale[:, None] * scale).max(axis=1).astype(np.float64)
    np.testing.assert_allclose(rows, 1, rtol=1e-3)


@pytest.mark.parametrize(
    ("fun", "x", "kind"),
    [
        (lambda x: x[0] ** 2 + x[1] ** 2, [1e-9, 0.0], "minimum"),
        (lambda x: x[0] ** 2 + x[1] ** 2, [0.1, 0.0], "none"),
        (lambda x: x[0] ** 2 - x[1] ** 2, [0.0, 1e-9], "saddle"),
        (lambda x: x[0] * x[1], [0.0, 0.0], "saddle"),
        (lambda x: x[0] ** 2 - 1e-9 * x[1] ** 2, [0.0, 0.0], "saddle"),
        (lambda x: x[0] ** 2 + 1e-16 * x[1] ** 2 + x[0], [-0.5, 0.0], "flat"),
        (lambda x: x[0] ** 4 + x[1] ** 2, [1e-4, 0.0], "flat"),
        (lambda x: (x[0] + x[1]) ** 2, [0.3, -0.3], "flat"),
        (lambda x: collection.exp(-x[0]) + x[1] ** 2, [3.0, 0.0], "none"),
    ],
)
def test_kinds(fun: Callable[[Any], Any], x: list[float], kind: str) -> None:
    assert _check(fun, 2)(x, [1.0, 1.0]).kind == kind
    # In more variables, and in other units.
    dim = 2 + checking.MP_DIM

    def wide(y: Any) -> Any:
        return 1e8 * (fun(y * collection.Data([1e-5, 1e3, *[1.0] * (dim - 2)])(y)) + (
            y[2:] ** 2).sum())  # fmt: skip

    units = np.array([1e5, 1e-3, *[1.0] * (dim - 2)])
    check = checking.Check(wide, -2 * units, 2 * units)
    scaled = units * np.array([*x, *[0.0] * (dim - 2)])
    if kind != "flat":  # by what is flat to float64 alone, other units may be meant
        assert check(scaled, units).kind == kind


@pytest.mark.parametrize("name", ["rosenbrock", "kowalik_osborne", "wood", "chained_rosenbrock"])
def test_minima_of_the_set(name: str) -> None:
    function = FUNCTIONS[name]
    x = np.array([0.192807, 0.191282, 0.123057, 0.136062]) if function.minimizer is None else (
        np.array(function.minimizer)
    )  # fmt: skip
    check = checking.Check(function.fun, function.low, function.high)
    truth = check(x, function.low)
    assert truth.kind == "minimum"
    assert truth.value == pytest.approx(function.minima[0], rel=1e-5, abs=1e-12)
    assert check(x + 0.05, function.low).kind == "none"


def test_committed_saddles_are_saddles() -> None:
    saddles = json.loads((ROOT / "benchmarks/results/minimize_saddles.json").read_text())
    assert sum(map(len, saddles.values())) >= 200
    for name, of_one in saddles.items():
        function = FUNCTIONS[name]
        gradient, hessian = torch.func.grad(function.fun), torch.func.hessian(function.fun)
        for saddle in of_one[::4]:
            x = torch.tensor(saddle["x"], dtype=torch.float64)
            curved = hessian(x)
            slack = 1e-10 * float(curved.abs().max()) * (1 + float(x.abs().max()))
            assert float(gradient(x).abs().max()) <= slack
            assert float(torch.linalg.eigvalsh(curved)[0]) < 0
