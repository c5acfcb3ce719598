"""`minimize` inside a box."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from saddle_cases import saddle_torch
from torch import Tensor

from asgld._minimize import minimize
from asgld.curvature.points import Kind
from asgld.oracle import Oracle
from asgld.oracle.box import Box, Face, Reparametrized
from asgld.oracle.functions import torch_function
from asgld.problems import problem

scipy_optimize = pytest.importorskip("scipy.optimize")

BOXES = {
    "lower": (0.5, np.inf),
    "upper": (-np.inf, -0.5),
    "both": (-1.0, 2.0),
    "none": (-np.inf, np.inf),
}


@pytest.mark.parametrize("transform", ["log", "softplus"])
def test_reparametrization_has_the_derivatives_it_states(transform: str) -> None:
    box = Box.of(list(BOXES.values()), 4, transform)
    z = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = box.to_user(z)
    assert bool(((x > box.lower) & (x < box.upper)).all())
    torch.testing.assert_close(box.to_search(x), z)

    def fun(y: Tensor) -> Tensor:
        return torch.sin(y).sum() + y[0] * y[1] * y[2] + y[3] ** 2 * y[0]

    def by_hand(w: Tensor) -> Tensor:
        rise = torch.exp if transform == "log" else torch.nn.functional.softplus
        y = (0.5 + rise(w[0]), -0.5 - rise(-w[1]), -1 + 3 * torch.sigmoid(w[2]), w[3])
        return fun(torch.stack(y))

    inner = Reparametrized(torch_function(fun, 4), box)
    outer = torch_function(by_hand, 4)
    v = torch.flip(z, (0,))
    for kind, arguments in (("value", (z,)), ("grad", (z,)), ("hvp", (z, v)), ("hessian", (z,))):
        found, expected = (getattr(f, kind)(*arguments) for f in (inner, outer))
        torch.testing.assert_close(found, expected)
    oracle = Oracle(inner)
    oracle.hvp(z, v)
    assert {k: int(n[0]) for k, n in oracle.counts.calls.items() if n.any()} == {
        "hvp": 1,
        "grad": 1,
    }


def test_face_is_the_function_of_the_free_coordinates() -> None:
    p = problem("strict-saddle", dim=4)
    x, free = p.start(seed=1), torch.tensor([True, False, True, False])
    face = Face(p, x, free)
    y, v = x[free] + 0.1, torch.ones(2, dtype=torch.float64)
    full = x.clone()
    full[free] = y
    torch.testing.assert_close(face.value(y), p.value(full))
    torch.testing.assert_close(face.grad(y), p.grad(full)[free])
    torch.testing.assert_close(face.hvp(y, v), p.hessian(full)[free][:, free] @ v)


@pytest.mark.parametrize("transform", ["log", "softplus"])
def test_bounds_give_the_constrained_minimum(transform: str) -> None:
    def fun(x: np.ndarray) -> float:
        return float((x[0] - 3) ** 2 + (x[1] + 1) ** 2 + (x[2] - 0.5) ** 2 + x[0] * x[2])

    bounds = [(0, 2), (0, None), (None, 0.25)]
    ours = minimize(fun, [1.0, 1.0, 0.0], method="agld", bounds=bounds, transform=transform)
    scipys = scipy_optimize.minimize(fun, [1.0, 1.0, 0.0], bounds=bounds, method="L-BFGS-B")
    np.testing.assert_allclose(ours.x, scipys.x, atol=5e-3)
    assert ours.success
    assert "at a bound" in ours.message
    low, high = np.array([0, 0, -np.inf]), np.array([2, np.inf, 0.25])
    assert np.all((ours.x >= low) & (ours.x <= high))


def test_positive_parameters_are_estimated_in_the_users_coordinates() -> None:
    p = problem("variance")  # its variables are logarithms
    data = np.random.default_rng(1).normal(size=(200, 2)) * np.sqrt([0.1, 10.0])
    squares = torch.from_numpy((data**2).mean(0))

    def deviance(x: Tensor) -> Tensor:
        return (torch.log(x) + squares / x).sum()

    result = minimize(deviance, torch.ones(2), bounds=[(0, None)] * 2, tol=1e-6)
    assert result.success
    torch.testing.assert_close(torch.as_tensor(result.x), squares, rtol=1e-3, atol=0.0)
    assert p.dim == 2
    assert result.lambda_min == pytest.approx(float((1 / squares**2).min()), rel=1e-2)


def test_saddle_inside_a_box_is_left_and_recognized() -> None:
    box = [(-2, 2), (-2, 2)]
    assert (
        minimize(saddle_torch, torch.zeros(2), method="asg", bounds=box).kind is Kind.STRICT_SADDLE
    )
    for options in ({"method": "agld"}, {"method": "asg", "escape": True}):
        result = minimize(saddle_torch, torch.zeros(2), bounds=box, **options)  # type: ignore[arg-type]
        assert result.success
        assert result.fun == pytest.approx(-0.25, abs=1e-5)
