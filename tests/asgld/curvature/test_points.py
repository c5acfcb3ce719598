"""What kind of point it is: quadratic forms, random saddles, degenerate points, flat minima."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from quadratic import Quadratic, normal, zeros
from torch import Tensor

from asgld.curvature import Kind, classify
from asgld.curvature.flat import FlatProbe

EPS, GAMMA = 1e-6, 1e-3

SIGNATURES = [
    (negative, zero, dim - negative - zero)
    for dim in (1, 2, 3, 5)
    for negative in range(dim + 1)
    for zero in range(dim + 1 - negative)
]


@pytest.mark.parametrize("dense_below", [128, 0], ids=["eigh", "lanczos"])
@pytest.mark.parametrize(("negative", "zero", "positive"), SIGNATURES)
def test_classify_quadratic_forms(
    negative: int, zero: int, positive: int, dense_below: int
) -> None:
    values = [-0.7] * negative + [0.0] * zero + [1.3] * positive
    f = Quadratic(torch.tensor(values, dtype=torch.float64), normal(3, len(values), seed=8))
    point = classify(f, zeros(len(values)), eps=EPS, gamma=GAMMA, dense_below=dense_below)
    if negative == len(values):
        expected = Kind.MAXIMUM
    elif negative:
        expected = Kind.STRICT_SADDLE
    else:
        expected = Kind.MINIMUM
    assert point.kind is expected, str(point)
    assert point.is_isolated == (negative == zero == 0)
    assert point.lambda_min == pytest.approx(min(values), abs=1e-9)
    assert (point.direction is not None) == (negative > 0)
    if point.direction is not None:
        assert float(f.value(point.direction)) == pytest.approx(-0.35, abs=1e-9)


def count_verdicts(num_saddles: int) -> dict[Kind, int]:
    """Verdicts on random saddles with one small negative eigenvalue, of dimension up to 2,000."""
    rng = np.random.default_rng(0)
    counts = dict.fromkeys(Kind, 0)
    for number in range(num_saddles):
        dim = int(np.exp(rng.uniform(np.log(2), np.log(2000))))
        depth = 10 ** rng.uniform(-3, -1)
        others = {
            0: lambda d: rng.uniform(0, 1, d),  # the bulk touches zero
            1: lambda d: rng.uniform(0.1, 1, d),  # a gap
            2: lambda d: 10 ** rng.uniform(-6, 0, d),  # many flat directions
            3: np.ones,  # two distinct values: one overlap decides
        }[number % 4](dim - 1)
        eigenvalues = torch.from_numpy(np.concatenate([[-depth], others]))
        f = Quadratic(eigenvalues, torch.from_numpy(rng.standard_normal((number % 3, dim))))
        point = classify(f, zeros(dim), eps=EPS, gamma=depth / 2, seed=number)
        counts[point.kind] += 1
        if point.kind is Kind.STRICT_SADDLE:
            assert point.direction is not None
            assert 2 * float(f.value(point.direction)) < -depth / 2
            assert point.confidence == 1.0
    return counts


def test_classify_never_takes_a_saddle_for_a_minimum() -> None:
    counts = count_verdicts(60)
    assert counts[Kind.STRICT_SADDLE] == 60, counts


@pytest.mark.slow
def test_classify_never_takes_one_of_1000_saddles_for_a_minimum() -> None:
    counts = count_verdicts(1000)
    print(f"1,000 saddles: {counts[Kind.STRICT_SADDLE]} found, {counts[Kind.MINIMUM]} false minima")
    assert counts[Kind.STRICT_SADDLE] == 1000, counts


def monkey_saddle(x: Tensor) -> Tensor:
    return x[0] ** 3 - 3 * x[0] * x[1] ** 2 + (x @ x) ** 2 / 4


INPUTS, TEACHER = normal(6, 40, seed=3), normal(4, 6, seed=4)
TARGET = normal(10, 3, seed=5)


def deep_linear(w: Tensor) -> Tensor:
    """Loss of a three-layer linear network, 6 -> 5 -> 5 -> 4; at 0 its Hessian vanishes."""
    w1, w2, w3 = w[:30].reshape(5, 6), w[30:55].reshape(5, 5), w[55:].reshape(4, 5)
    return (w3 @ w2 @ w1 @ INPUTS - TEACHER @ INPUTS).square().sum() / 80


def low_rank(u: Tensor) -> Tensor:
    return (u @ u.T - TARGET @ TARGET.T).square().sum() / 4


DEGENERATE: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "monkey saddle": (monkey_saddle, zeros(2)),
    "near the monkey saddle": (monkey_saddle, torch.tensor([1e-5, -1e-5])),
    "cubic": (lambda x: x[0] ** 3 + x[1] ** 2, zeros(2)),
    "quartic maximum": (lambda x: -(x**4).sum(), zeros(3)),
    "quartic saddle": (lambda x: (x[1:] ** 4).sum() - x[0] ** 4, zeros(50)),
    "quartic saddle, confined": (lambda x: (x[1:] ** 4).sum() - x[0] ** 4 + x[0] ** 6, zeros(9)),
    "deep linear network": (deep_linear, zeros(75)),
    # Along every straight line through 0 both rise; they fall along parabolas.
    "curved valley": (lambda x: (x[1] - x[0] ** 2) * (x[1] - 3 * x[0] ** 2), zeros(2)),
    "curved cubic": (lambda x: (x[1] - x[0] ** 2) ** 2 - x[0] ** 5, zeros(2)),
    "monkey saddle in 300": (lambda x: monkey_saddle(x) + (x[2:] ** 2).sum(), zeros(300)),
    "quartic in 200 flat of 300": (
        lambda x: (x[1:200] ** 4).sum() - x[0] ** 4 + (x[200:] ** 2).sum(),
        zeros(300),
    ),
}


@pytest.mark.parametrize("gamma", [1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("name", DEGENERATE)
def test_classify_degenerate_points(name: str, gamma: float) -> None:
    fun, x = DEGENERATE[name]
    point = classify(fun, x, eps=EPS, gamma=gamma)
    assert point.kind is Kind.DEGENERATE, str(point)
    assert point.direction is not None
    assert point.distance is not None
    assert point.drop is not None
    assert point.drop > gamma * point.distance**2 / 2
    fallen = fun(x.double() + point.distance * point.direction) - fun(x.double())
    assert float(fallen) == pytest.approx(-point.drop, rel=1e-6)


ROTATION = torch.linalg.qr(normal(3, 3, seed=6))[0]
FLAT_MINIMA: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "factorization": (low_rank, TARGET @ ROTATION),
    "factorization with spare columns": (low_rank, torch.cat([TARGET, zeros(10, 2)], 1)),
    "product": (lambda x: (x[0] * x[1] - 1) ** 2, torch.tensor([2.0, 0.5])),
    "circle": (lambda x: (x @ x - 1) ** 2, torch.tensor([0.6, 0.8], dtype=torch.float64)),
    "constant": (lambda x: 0 * x.sum(), zeros(4)),
    "quartic": (lambda x: (x**4).sum(), zeros(3)),
    "quartic in 300": (lambda x: (x**4).sum(), zeros(300)),
    "valley of 100 in 300": (
        lambda x: (x[100:] ** 2).sum(),
        normal(300) * (torch.arange(300) < 100),
    ),
    "curved valley": (lambda x: (x[1] - x[0] ** 2) ** 2, zeros(2)),
    # These fall lower than the minimum, behind a barrier.
    "quartic in a well": (lambda x: (x**4 - 4 * x**6).sum(), zeros(1)),
    "upper of two wells": (lambda x: (x**2 - 1).square().sum() + 0.3 * x.sum(), None),
}


@pytest.mark.parametrize("gamma", [1e-4, 1e-2, 20.0])
@pytest.mark.parametrize("name", FLAT_MINIMA)
def test_classify_flat_minima(name: str, gamma: float) -> None:
    fun, x = FLAT_MINIMA[name]
    if name == "upper of two wells":
        x = torch.tensor([float(np.roots([4, 0, -4, 0.3]).max())], dtype=torch.float64)
    point = classify(fun, x, eps=EPS, gamma=gamma, radius=0.5 if gamma > 1 else None)
    assert point.kind is Kind.MINIMUM, str(point)
    assert point.is_isolated == (name == "upper of two wells" and gamma < 1)
    assert point.direction is None
    assert point.lower is not None
    assert point.lower >= -1e-6


def test_flat_directions_are_followed_to_both_sides() -> None:
    # A gradient that says nothing leaves the two rays alone to find the way down.
    for sign in (1.0, -1.0):
        probe = FlatProbe(
            lambda x: float(x[0] ** 3),
            torch.zeros_like,
            zeros(1),
            radius=1.0,
            tolerance=lambda t: EPS * t + GAMMA * t**2 / 2,
            value0=0.0,
        )
        basis = torch.full((1, 1), sign).double()
        descent = probe.find_descent(basis, 1, torch.Generator())
        assert descent is not None
        assert float(descent.direction) == -1.0


def test_classify_works_near_a_minimum_as_at_it() -> None:
    x = TARGET @ ROTATION
    for seed in range(5):
        near = x + 1e-5 * normal(10, 3, seed=seed)
        gradient_norm = classify(low_rank, near, eps=1.0, gamma=1.0).gradient_norm
        point = classify(low_rank, near, eps=1.1 * gradient_norm, gamma=0.05)
        assert point.kind is Kind.MINIMUM, str(point)


def test_classify_reports_what_it_compared() -> None:
    far = classify(lambda x: (x**2).sum(), torch.ones(3), eps=EPS, gamma=GAMMA)
    assert far.kind is Kind.NOT_STATIONARY
    assert far.gradient_norm == pytest.approx(2 * math.sqrt(3))
    assert far.value == 3.0
    assert far.lambda_min is None
    assert far.num_hvp == 0
    assert str(far) == "NOT_STATIONARY: the gradient has norm 3.46 > eps = 1e-06"
    saddle = classify(lambda x: (x[0] * x[1]).sum(), zeros(2), eps=EPS, gamma=GAMMA)
    assert repr(saddle) == (
        "<Point STRICT_SADDLE: curvature -1 < -gamma = -0.001 along `direction`>"
    )
    assert (saddle.lambda_min, saddle.lambda_max) == pytest.approx((-1.0, 1.0))
    assert saddle.confidence == 1.0
    lanczos = classify(lambda x: (x**2).sum(), zeros(300), eps=EPS, gamma=GAMMA)
    assert lanczos.confidence == 1 - 1e-6
    assert "all curvatures are at least 2 with confidence 0.999999" in lanczos.summary
    assert all(kind.value[0].islower() and len(kind.value) > 20 for kind in Kind)


def test_classify_keeps_the_shape_of_x() -> None:
    point = classify(low_rank, zeros(10, 3), eps=EPS, gamma=GAMMA)
    assert point.direction is not None
    assert point.direction.shape == (10, 3)
    largest = float(torch.linalg.eigvalsh(TARGET @ TARGET.T)[-1])
    assert point.lambda_min == pytest.approx(-largest)
    from_numpy = classify(lambda x: (x**2).sum(), np.zeros(2), eps=EPS, gamma=GAMMA)
    assert from_numpy.kind is Kind.MINIMUM


def test_classify_reads_an_oracle_through_its_free_view() -> None:
    class Counting(Quadratic):
        counted = 0

        def grad(self, x: Tensor) -> Tensor:
            type(self).counted += 1
            return super().grad(x)

        def free(self) -> Quadratic:
            return Quadratic(self.eigenvalues)

    f = Counting(torch.tensor([1.0, 0.0, -1.0]).double())
    assert classify(f, zeros(3), eps=EPS, gamma=GAMMA).kind is Kind.STRICT_SADDLE
    assert Counting.counted == 0


def test_classify_is_undecided_without_function_values() -> None:
    class NoValues:
        def __init__(self, *eigenvalues: float) -> None:
            self.eigenvalues = torch.tensor(eigenvalues).double()

        def grad(self, x: Tensor) -> Tensor:
            return self.eigenvalues * x

        def hvp(self, x: Tensor, v: Tensor) -> Tensor:
            return self.eigenvalues * v

    flat = classify(NoValues(1.0, 0.0), zeros(2), eps=EPS, gamma=GAMMA)
    assert flat.kind is Kind.UNDECIDED
    assert "no function values" in flat.summary
    assert flat.value is None
    assert classify(NoValues(1.0, 2.0), zeros(2), eps=EPS, gamma=GAMMA).kind is Kind.MINIMUM
    assert classify(NoValues(1.0, -1.0), zeros(2), eps=EPS, gamma=GAMMA).kind is Kind.STRICT_SADDLE


def test_classify_is_undecided_when_products_run_out() -> None:
    f = Quadratic(torch.linspace(0.01, 1, 1000, dtype=torch.float64))
    point = classify(f, zeros(1000), eps=EPS, gamma=1e-3, max_hvp=20)
    assert point.kind is Kind.UNDECIDED
    assert "max_hvp" in point.summary
    assert point.num_hvp <= 21
    assert classify(f, zeros(1000), eps=EPS, gamma=1e-3).kind is Kind.MINIMUM


def test_classify_is_undecided_below_rounding() -> None:
    class Single(Quadratic):
        dtype = torch.float32

    f = Single(torch.linspace(0, 1, 1000))
    point = classify(f, torch.zeros(1000), eps=EPS, gamma=1e-7)
    assert point.kind is Kind.UNDECIDED
    assert "rounding" in point.summary


@pytest.mark.parametrize(
    ("fun", "x", "options", "error", "message"),
    [
        (lambda x: x, zeros(2), {}, Exception, "scalar|shape"),
        (lambda x: x.sum(), zeros(0), {}, ValueError, "x is empty"),
        (lambda x: x.sum(), torch.tensor([0.0, math.nan]), {}, ValueError, "1 of 2 entries NaN"),
        (lambda x: x.sqrt().sum(), -torch.ones(2), {}, ValueError, "grad.*NaN"),
        (lambda x: x.abs().pow(1.5).sum(), zeros(2), {}, ValueError, "NaN or infinite"),
        (7, zeros(2), {}, TypeError, "fun is int"),
        (lambda x: x.sum(), zeros(2), {"eps": 0.0}, ValueError, "eps=0"),
        (lambda x: x.sum(), zeros(2), {"gamma": -1.0}, ValueError, "gamma=-1"),
        (lambda x: x.sum(), zeros(2), {"gamma": math.inf}, ValueError, "gamma=inf"),
        (lambda x: x.sum(), zeros(2), {"radius": 0.0}, ValueError, "radius=0"),
        (lambda x: x.sum(), zeros(2), {"num_rays": 0}, ValueError, "num_rays=0"),
        (Quadratic(torch.ones(3).double()), zeros(2, 3), {}, ValueError, r"\(2, 3\).*one by one"),
        (Quadratic(torch.ones(3).double()), zeros(2), {}, ValueError, r"shape \(2,\)"),
    ],
)
def test_classify_errors(
    fun: Any, x: Tensor, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        classify(fun, x, **{"eps": EPS, "gamma": GAMMA, **options})
