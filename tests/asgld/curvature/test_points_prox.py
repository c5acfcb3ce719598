"""Verdicts on points of f + g, against definitions: brute force around x, and known cases."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from asgld.curvature import Kind, classify
from asgld.oracle.composite import JoinedPenalty
from asgld.prox import L1, ElasticNet, GroupLasso, Penalty

NO_WEIGHT = {"l1": L1(0.0), "net": ElasticNet(0.0, 0.0), "groups": GroupLasso(0.0, torch.arange(3))}


def bowl(x: Tensor) -> Tensor:
    """1/2 |x - (2, 0.05)|^2, whose minimum with 0.1 |x|_1 added is (1.9, 0)."""
    return (x - torch.tensor([2.0, 0.05], dtype=x.dtype)).square().sum() / 2


def hill(x: Tensor) -> Tensor:
    """With 0.2 |x|_1 added it has a saddle at (1, 0), with x[1] at a kink."""
    t = x[0] - 1
    return -(t**2) / 2 + t**4 / 4 + x[1] ** 2 / 2 - 0.2 * x[0]


def point(*x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


@pytest.mark.parametrize(
    ("x", "weight", "kind"),
    [
        ((1.9, 0.0), 0.1, Kind.MINIMUM),
        ((2.0, 0.0), 0.1, Kind.NOT_STATIONARY),  # the free entry moves
        ((0.0, 0.0), 0.1, Kind.NOT_STATIONARY),  # an entry leaves its kink
        ((1.9, 1e-3), 0.1, Kind.NOT_STATIONARY),  # an entry that belongs to its kink
        ((0.0, 0.0), 3.0, Kind.MINIMUM),  # all entries at their kinks
        ((0.0, 0.0), 2.0, Kind.MINIMUM),  # no slack, but f is a bowl along the ray
        ((1.95, 0.0), 0.05, Kind.MINIMUM),
    ],
)
@pytest.mark.parametrize("tolerances", [{}, {"eps": 1e-8, "gamma": 1e-4}])
def test_kinds(
    x: tuple[float, float], weight: float, kind: Kind, tolerances: dict[str, float]
) -> None:
    found = classify(bowl, point(*x), prox=L1(weight), **tolerances)
    assert found.kind is kind, found
    assert found.is_isolated == (kind is Kind.MINIMUM)


def test_saddle_on_the_manifold_has_a_direction_of_free_entries() -> None:
    found = classify(hill, point(1.0, 0.0), prox=L1(0.2))
    assert found.kind is Kind.STRICT_SADDLE
    assert found.lambda_min == pytest.approx(-1.0)
    assert found.direction is not None
    assert found.direction.abs().tolist() == [1.0, 0.0]
    # All free entries curve down, yet F rises along the other: no maximum.
    assert classify(hill, point(1.0, 0.0)).kind is Kind.NOT_STATIONARY


def test_an_entry_that_leaves_its_kink_comes_before_a_saddle() -> None:
    """x[1] is pulled out of its kink at a saddle of the free entry."""

    def f(x: Tensor) -> Tensor:
        return hill(x) - 0.3 * x[1]

    assert classify(f, point(1.0, 0.0), prox=L1(0.2)).kind is Kind.NOT_STATIONARY
    assert (
        classify(f, point(1.0, 0.0), prox=L1(torch.tensor([0.2, 0.4]))).kind is Kind.STRICT_SADDLE
    )


def test_direction_has_the_shape_of_x() -> None:
    def f(x: Tensor) -> Tensor:
        return hill(x.reshape(-1))

    found = classify(f, point(1.0, 0.0).reshape(2, 1), prox=GroupLasso(0.2))
    assert found.kind is Kind.STRICT_SADDLE
    assert found.direction is not None
    assert found.direction.shape == (2, 1)


@pytest.mark.parametrize("name", NO_WEIGHT)
@pytest.mark.parametrize("x", [(0.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.3, 0.0, 0.0)])
def test_no_weight_is_no_penalty(name: str, x: tuple[float, ...]) -> None:
    def f(x: Tensor) -> Tensor:
        return x[0] ** 2 - x[1] ** 2 / 2 + x[1] ** 4 / 4 + x[2] ** 2

    plain, found = classify(f, point(*x)), classify(f, point(*x), prox=NO_WEIGHT[name])
    assert found.kind is plain.kind
    assert found.lambda_min == pytest.approx(plain.lambda_min)


def test_gradient_norm_is_that_of_the_gradient_mapping() -> None:
    x, weight = point(0.5, 0.0), 0.1
    grad = point(-1.5, -0.05)
    step = x - grad
    mapping = x - step.sign() * (step.abs() - weight).clamp(min=0)
    found = classify(bowl, x, prox=L1(weight))
    assert found.gradient_norm == pytest.approx(float(mapping.norm()))


def test_group_lasso_counts_the_curvature_of_the_norm() -> None:
    """The norm of a group curves up across x by 1/|x|, which outweighs a slope of f here."""

    def f(x: Tensor) -> Tensor:
        return x[0] ** 2 / 2 - 2 * x[0] - x[1] ** 2 / 4

    # At (1, 0) with |x| added: curvature 1 along, and -1/2 + 1/|x| = 1/2 across.
    found = classify(f, point(1.0, 0.0), prox=GroupLasso(1.0, torch.tensor([0, 0])))
    assert found.kind is Kind.MINIMUM
    assert found.lambda_min == pytest.approx(0.5)
    # With l1 the second entry is at a kink instead.
    assert classify(f, point(1.0, 0.0), prox=L1(1.0)).lambda_min == pytest.approx(1.0)


def test_function_without_values_is_refused() -> None:
    class Bare:
        dim = 1

        def grad(self, x: Tensor) -> Tensor:
            return x

        def hvp(self, x: Tensor, v: Tensor) -> Tensor:
            return v

    with pytest.raises(TypeError, match="value"):
        classify(Bare(), point(0.0), prox=L1(1.0))


def lowest_around(
    f: Callable[[Tensor], Tensor], penalty: Penalty, x: Tensor, radius: float
) -> float:
    """The lowest F - F(x) within `radius`; half of the moves leave zeros where they are."""
    g = penalty.on(x.shape)
    generator = torch.Generator().manual_seed(7)
    base = float(f(x) + g.value(x))
    lowest = math.inf
    for size in (1.0, 0.1, 0.01):
        moves = torch.randn(300, len(x), generator=generator, dtype=x.dtype)
        moves *= 10.0 ** (-3 * torch.rand(moves.shape, generator=generator, dtype=x.dtype))
        moves[::2] *= g.is_free(x)
        moves *= size * radius / moves.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        moves = moves[moves.norm(dim=-1) > 0]
        lowest = min(lowest, *(float(f(x + m) + g.value(x + m)) - base for m in moves))
    return lowest


@pytest.mark.parametrize("seed", range(12))
def test_minima_of_random_polynomials_hold_against_brute_force(seed: int) -> None:
    """Stationary points of random quartics with kinks: a MINIMUM has nothing lower around it, a
    STRICT_SADDLE has. They are made: the gradient at x is chosen so that x is stationary."""
    generator = torch.Generator().manual_seed(seed)
    dim = 2 + seed % 2
    found = set()
    for _ in range(6):
        matrix = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
        hessian = (matrix + matrix.T) / 2 + 0.7 * torch.eye(dim, dtype=torch.float64)
        weight = 0.5
        x = torch.randn(dim, generator=generator, dtype=torch.float64)
        x[torch.rand(dim, generator=generator) < 0.4] = 0.0
        inside = weight * (1.8 * torch.rand(dim, generator=generator, dtype=x.dtype) - 0.9)
        grad = torch.where(x == 0, inside, -weight * x.sign())

        def f(y: Tensor, x: Tensor = x, grad: Tensor = grad, hessian: Tensor = hessian) -> Tensor:
            v = y - x
            return grad @ v + v @ hessian @ v / 2 + (v**4).sum()

        kind = classify(f, x, prox=L1(weight)).kind
        found.add(kind)
        lowest = lowest_around(f, L1(weight), x, 1e-3)
        if kind is Kind.MINIMUM:
            assert lowest > 0
        else:
            assert kind in (Kind.STRICT_SADDLE, Kind.MAXIMUM)
            assert lowest < 0
    assert found


def test_kinks_of_different_parts_of_x_are_different() -> None:
    """Group numbers may have gaps, so there may be more of them than entries."""

    def f(x: dict[str, Tensor]) -> Tensor:
        a, b = x["a"], x["b"]
        bowl = (a[0] ** 2 + b.square().sum() - b[2] ** 2) / 2 + (a[1] ** 4 + b[2] ** 4) / 100
        return -a[1] - b[2] - a[1] ** 2 / 2 - b[2] ** 2 / 2 + 2 * a[1] * b[2] + bowl

    x = {"a": torch.zeros(2, dtype=torch.float64), "b": torch.zeros(10, dtype=torch.float64)}
    prox = {"a": GroupLasso(1.0, torch.tensor([0, 5])), "b": L1(1.0)}
    lower = {**x, "a": point(0.0, 0.5)}
    assert float(f(lower)) + 0.5 < float(f(x))
    assert classify(f, x, prox=prox).kind is not Kind.MINIMUM
    assert classify(f, x, prox=dict(reversed(prox.items()))).kind is not Kind.MINIMUM
    parts = (GroupLasso(1.0, torch.tensor([0, 5])), L1(1.0), GroupLasso(1.0, torch.tensor([-1, 3])))
    sizes = (2, 0, 2)
    bound = tuple(part.on((size,)) for part, size in zip(parts, sizes, strict=True))
    assert len(set(JoinedPenalty(bound, sizes).units().tolist())) == 4
