"""A coordinate whose D is infinite shows as NaN at the next step. What is divided by an infinite D
is zero, so the coordinate would look like one that waits, for ever."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers import BACKENDS, EXPONENTS, HEATING, make_tensor, pairwise
from torch import Tensor

import asgld
from asgld import noise, reference
from asgld.optim import _native, functional, shapes
from asgld.optim.rule import Rule
from asgld.prox import L1, GroupLasso

pytestmark = pytest.mark.filterwarnings(HEATING)
# A step is in error where D is infinite, and not where D scales nothing.
DIVIDING = [pair for pair in EXPONENTS if Rule(alpha=pair[0], beta=pair[1]).divides]
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "weight decay": {"weight_decay": 0.1},
    "clip": {"clip": 0.125},
    "decay": {"decay": 0.9},
    "all": {
        "decay": 0.9, "d_init": 0.0, "momentum": 0.9, "opposed": 0.0, "clip": 0.125,
        "annealing": 1.0,
    },
    "turned": {"momentum": 0.9, "opposed": -0.5, "clip": 0.125},
    "capturable": {"capturable": True, "clip": 0.125},
}  # fmt: skip
PLACE = 4


def huge(dtype: torch.dtype) -> float:
    """A finite number whose square is not, in the working precision."""
    working = torch.float64 if dtype == torch.float64 else torch.float32
    return 100.0 * math.sqrt(torch.finfo(working).max)


def run(
    lost: float | None, size: tuple[int, ...], dtype: torch.dtype, **knobs: Any
) -> tuple[Tensor, asgld.ASGLD]:
    """Take six steps, the third with a lost gradient at one place; return the parameter."""
    x = make_tensor(*size, seed=1, dtype=dtype).requires_grad_()
    optimizer = asgld.ASGLD([x], lr=0.05, **knobs)
    for k in range(6):
        x.grad = make_tensor(*size, seed=k + 2, dtype=dtype)
        if k == 2 and lost is not None:
            x.grad.view(-1)[PLACE] = lost
        optimizer.step()
        if k == 3 and lost is not None:
            assert x.detach().view(-1)[PLACE].isnan()  # at the next step
    return x.detach(), optimizer


def assert_lost_alone(dtype: torch.dtype, lost: float, **knobs: Any) -> None:
    whole, _ = run(None, (70,), dtype, **knobs)
    found, _ = run(lost, (70,), dtype, **knobs)
    assert torch.equal(found.isnan().nonzero().flatten(), torch.tensor([PLACE]))
    others = torch.arange(70) != PLACE
    assert torch.equal(found[others], whole[others])


@pytest.mark.parametrize(
    ("backend", "exponents", "name", "dtype", "how"),
    pairwise(
        BACKENDS, DIVIDING, RULES, [torch.float32, torch.float64, torch.bfloat16],
        ["inf", "-inf", "overflow"],
    ),
)  # fmt: skip
def test_an_infinite_metric_shows(
    backend: str, exponents: tuple[float, float], name: str, dtype: torch.dtype, how: str
) -> None:
    lost = huge(dtype) if how == "overflow" else float(how)
    (alpha, beta), knobs = exponents, {"sigma": 0.1, **RULES[name], **BACKENDS[backend]}
    assert_lost_alone(dtype, lost, alpha=alpha, beta=beta, **knobs)


@pytest.mark.usefixtures("best_build")
@pytest.mark.parametrize("build", _native.available_builds())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", RULES)
def test_an_infinite_metric_shows_in_every_build(build: str, dtype: torch.dtype, name: str) -> None:
    _native.set_build(build)
    for alpha, beta in DIVIDING:
        knobs = {"sigma": 0.1, **RULES[name], "fused": True}
        assert_lost_alone(dtype, huge(dtype), alpha=alpha, beta=beta, **knobs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_metric_that_scales_nothing_may_be_infinite(backend: str) -> None:
    """With alpha = 0 and without noise a step takes no power of D."""
    knobs = {"alpha": 0.0, "sigma": 0.0, "clip": 0.125, **BACKENDS[backend]}
    x = torch.zeros(9, requires_grad=True)
    optimizer = asgld.ASGLD([x], lr=0.05, **knobs)
    for k in range(4):
        x.grad = torch.ones(9)
        x.grad[PLACE] = math.inf if k == 1 else 1.0
        optimizer.step()
    assert torch.equal(x, x[:1].expand(9))


def test_a_network_shows_an_infinite_gradient() -> None:
    """As a stranger found it: the coordinate stopped far from the minimum, and was finite."""
    for lost in (math.inf, -math.inf, huge(torch.float32)):
        x = torch.nn.Parameter(torch.tensor([5.0, 5.0]))
        optimizer = asgld.NetworkASGLD([x], lr=0.05, noise=0.0)
        for k in range(300):
            optimizer.zero_grad()
            (x - 1.0).square().sum().backward()
            assert x.grad is not None
            if k == 10:
                x.grad[0] = lost
            optimizer.step()
        assert x[0].isnan()
        assert abs(float(x[1].detach()) - 1.0) < 1e-3


@pytest.mark.parametrize("shape", ["scalar", "row", "left", "both", "polar", "polar-row"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("knobs", [{}, {"decay": 0.9, "momentum": 0.9}], ids=str)
@pytest.mark.parametrize("backend", ["loop", "foreach"])
def test_an_infinite_metric_of_a_matrix_shows(
    backend: str, shape: str, dtype: torch.dtype, knobs: dict[str, Any]
) -> None:
    """Where D is one matrix the whole parameter is lost, where it has a number per row the row."""
    is_polar = shape.startswith("polar")
    options = {"shape": shape, **knobs, **BACKENDS[backend], "foreach": None}
    options |= {"sigma": 0.0} if is_polar else {"sigma": 0.1, "clip": 0.125}
    for lost in (math.inf, -math.inf, huge(dtype)):
        if shape in ("left", "both") and dtype == torch.float32 and math.isfinite(lost):
            continue  # these sums have double precision, and do not overflow
        found, _ = run(lost, (3, 5), dtype, **options)
        if shape == "row":
            rows = torch.arange(3) == PLACE // 5
            assert torch.equal(found.isnan(), rows[:, None].expand(3, 5))
        else:
            assert found.isnan().all()


@pytest.mark.parametrize("lost", [math.inf, -math.inf])
def test_an_infinite_momentum_shows_in_exact_polar_factors(lost: float) -> None:
    knobs = {"sigma": 0.0, "momentum": 0.9, "polar_by": "svd"}
    for shape in ("polar", "polar-row"):
        assert run(lost, (3, 5), torch.float32, shape=shape, **knobs)[0].isnan().all()


def test_an_infinite_average_of_a_row_shows() -> None:
    x = make_tensor(3, 5, seed=1).requires_grad_()
    optimizer = asgld.NetworkASGLD([{"params": [x], "shape": "polar-row"}])
    x.grad = make_tensor(3, 5, seed=2)
    optimizer.step()
    optimizer.state[x]["sum"][0, 1] = math.inf
    optimizer.step()
    assert x[1].isnan().all()


@pytest.mark.parametrize("penalty", [L1(1e-3), GroupLasso(10.0)], ids=["l1", "groups"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_penalty_hides_no_infinite_metric(penalty: Any, backend: str) -> None:
    """Also where the group would shrink to zero."""
    knobs = {"sigma": 0.0, "clip": 0.125, "prox": penalty, **BACKENDS[backend]}
    found, _ = run(math.inf, (3, 5), torch.float32, **knobs)
    assert found.view(-1)[PLACE].isnan()
    assert found[1:].isfinite().all()


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        *(("coordinate", name) for name in RULES if name != "capturable"),
        *((shape, "all") for shape in ("scalar", "row", "left", "both")),
        *((shape, "polar") for shape in ("polar", "polar-row")),
    ],
)
@pytest.mark.parametrize("how", ["inf", "overflow"])
def test_the_reference_shows_the_same(shape: str, name: str, how: str) -> None:
    lost = huge(torch.float64) if how == "overflow" else math.inf
    knobs: dict[str, Any] = {
        "lr": 0.05, "alpha": 1.0, "beta": 1.0, "sigma": 0.1, "delta": 0.01, "d_init": 1.0,
        "shape": shape, **RULES.get(name, {"momentum": 0.9, "decay": 0.9, "beta": 0.0}),
    }  # fmt: skip
    if shape in ("left", "both"):
        knobs["opposed"] = 1.0  # the sign of a step that is a sum of many terms may be either
    x = make_tensor(3, 5, seed=1, dtype=torch.float64).requires_grad_()
    optimizer = asgld.ASGLD([x], seed=9, foreach=False, fused=False, **knobs)

    def gradient(_: np.ndarray) -> np.ndarray:
        assert x.grad is not None
        return x.grad.numpy()

    def normals(k: int) -> np.ndarray:
        return noise.normal(9, 0, k, np.arange(15)).reshape(3, 5)

    path = reference.asgld(gradient, x.detach().numpy().copy(), normals, **knobs)
    for k in range(5):
        x.grad = make_tensor(3, 5, seed=k + 2, dtype=torch.float64)
        if k == 2:
            x.grad.view(-1)[PLACE] = lost
        with np.errstate(all="ignore"):
            expected = next(path)
        optimizer.step()
        np.testing.assert_allclose(x.detach().numpy(), expected, rtol=1e-9, atol=1e-9)
    assert np.isnan(expected).any()


def test_a_finite_metric_keeps_its_bits() -> None:
    for dtype in (torch.float32, torch.float64):
        finfo = torch.finfo(dtype)
        values = torch.tensor(
            [0.0, finfo.smallest_normal, 1.0, 1.0 + finfo.eps, finfo.max], dtype=dtype
        )
        assert torch.equal(functional.visible(values), values)
        assert functional.visible(torch.tensor([math.inf, math.nan], dtype=dtype)).isnan().all()


def test_a_spectrum_of_an_infinite_matrix_is_lost() -> None:
    metric = torch.eye(4, dtype=torch.float64)
    metric[2, 2] = math.inf
    coefficients = functional.coefficients(Rule(), 1, torch.float64)
    for shape, sums in (("left", [metric]), ("both", [metric, torch.eye(3).double()])):
        held = copy.deepcopy(sums)
        found = shapes.Metric(held, coefficients, shape).apply(torch.ones(4, 3), 1.0)
        assert found.isnan().all()
