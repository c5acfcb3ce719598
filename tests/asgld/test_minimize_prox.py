"""`minimize` with a penalty: known optima, verdicts that hold around x, saddles that are left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor

import asgld
from asgld import Kind, minimize
from asgld.methods.torch import TorchMethod
from asgld.prox import L1, ElasticNet, GroupLasso

LANGEVIN = ("asgld", "agld", "asg")


def lasso(seed: int = 0, rows: int = 20, dim: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    signal = torch.zeros(dim, dtype=torch.float64)
    signal[:3] = torch.tensor([2.0, -1.0, 0.5])
    noise = 0.1 * torch.randn(rows, generator=generator, dtype=torch.float64)
    return matrix, matrix @ signal + noise


def loss(x: Tensor, matrix: Tensor, target: Tensor) -> Tensor:
    return (matrix @ x - target).square().mean() / 2


def hill(x: Tensor) -> Tensor:
    """With 0.2 |x|_1 added: a saddle at (1, 0), minima at (0, 0) and (2, 0)."""
    t = x[0] - 1
    return -(t**2) / 2 + t**4 / 4 + x[1] ** 2 / 2 - 0.2 * x[0]


SADDLE = torch.tensor([1.0, 0.0], dtype=torch.float64)


@pytest.mark.parametrize("weight", [0.05, 0.5, 1.0])
def test_orthonormal_lasso_is_soft_thresholding(weight: float) -> None:
    q = torch.linalg.qr(lasso()[0])[0]
    target = torch.linspace(-2.0, 2.0, 20, dtype=torch.float64)
    start = torch.zeros(8, dtype=torch.float64)
    result = minimize(lambda x: (q @ x - target).square().sum() / 2, start, prox=L1(weight))
    z = q.T @ target
    expected = z.sign() * (z.abs() - weight).clamp(min=0)
    assert result.kind is Kind.MINIMUM
    assert result.success
    torch.testing.assert_close(result.x, expected, rtol=1e-12, atol=1e-13)
    assert result.num_free == int((expected != 0).sum())
    assert f"{result.num_free} free" in str(result)


@pytest.mark.parametrize(("rows", "dim"), [(20, 8), (15, 40)])
def test_optimality_conditions_of_the_lasso_hold_to_rounding(rows: int, dim: int) -> None:
    data, weight = lasso(1, rows, dim), 0.1
    start = torch.zeros(dim, dtype=torch.float64)
    result = minimize(loss, start, args=data, prox=L1(weight))
    grad = torch.as_tensor(result.jac)
    assert result.kind is Kind.MINIMUM
    is_zero = result.x == 0
    assert 0 < int(is_zero.sum()) < dim
    assert float(grad[is_zero].abs().max()) < weight
    slopes = grad[~is_zero] + weight * result.x[~is_zero].sign()
    assert float(slopes.abs().max()) < 1e-13
    value = float(loss(result.x, *data) + weight * result.x.abs().sum())
    assert result.fun == pytest.approx(value, rel=1e-14)


@pytest.mark.parametrize("method", ["fista", "prox-gd", *LANGEVIN])
def test_named_methods_find_the_optimum(method: str) -> None:
    data, start = lasso(), torch.zeros(8, dtype=torch.float64)
    best = minimize(loss, start, args=data, prox=L1(0.1))
    result = minimize(loss, start, args=data, prox=L1(0.1), method=method)
    assert result.kind is Kind.MINIMUM
    assert result.fun == pytest.approx(best.fun, rel=1e-12)
    assert result.num_free == best.num_free


@pytest.mark.parametrize("prox", [L1(0.0), ElasticNet(0.0, 0.0), L1(torch.zeros(2))])
@pytest.mark.parametrize("start", [(0.0, 0.0), (1.0, 0.0), (0.3, -0.2)])
def test_no_weight_gives_the_plain_verdict(prox: Any, start: tuple[float, float]) -> None:
    def f(x: Tensor) -> Tensor:
        return x[0] ** 2 - x[1] ** 2 / 2 + x[1] ** 4 / 4

    plain = minimize(f, torch.tensor(start))
    result = minimize(f, torch.tensor(start), prox=prox)
    assert result.kind is plain.kind is Kind.MINIMUM
    assert result.fun == pytest.approx(plain.fun)
    assert plain.num_free is None
    assert result.num_free == 2


def test_saddle_is_left_by_noise_and_by_auto_alone() -> None:
    for method in ("fista", "prox-gd", "asg"):
        stays = minimize(hill, SADDLE, prox=L1(0.2), method=method)
        assert stays.kind is Kind.STRICT_SADDLE
        assert torch.equal(stays.x, SADDLE)
        assert not stays.success
    for method in ("auto", "agld", "asgld"):
        result = minimize(hill, SADDLE, prox=L1(0.2), method=method)
        assert result.kind is Kind.MINIMUM
        assert result.fun < -0.2
    assert minimize(hill, SADDLE, prox=L1(0.2)).num_escapes == 1


@pytest.mark.parametrize("excess", [0.0, 1e-9, -1e-9])
@pytest.mark.parametrize(("sign", "kind"), [(1.0, Kind.MINIMUM), (-1.0, Kind.STRICT_SADDLE)])
def test_curvature_decides_where_the_gradient_at_a_kink_is_the_weight(
    excess: float, sign: float, kind: Kind
) -> None:
    """f - x^2 falls beyond the kink, f + x^2 does not."""

    def f(x: Tensor) -> Tensor:
        return (x[0] - 1) ** 2 / 2 - (1 + excess) * x[1] + sign * x[1] ** 2 + x[1] ** 4

    prox = L1(torch.tensor([0.0, 1.0]))
    start = torch.tensor([0.0, 0.0], dtype=torch.float64)
    assert asgld.classify(f, start, prox=prox).kind is Kind.NOT_STATIONARY
    stays = torch.tensor([1.0, 0.0], dtype=torch.float64)
    point = asgld.classify(f, stays, prox=prox)
    assert point.kind is kind
    if kind is Kind.STRICT_SADDLE:
        assert point.direction is not None
        assert float(f(stays + 0.1 * point.direction)) + 0.1 < float(f(stays))
    found = minimize(f, stays, prox=prox)
    assert found.kind is Kind.MINIMUM
    assert found.fun == pytest.approx(0.0 if kind is Kind.MINIMUM else -0.25, abs=1e-8)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", ["l1", "groups"])
def test_every_minimum_has_nothing_lower_around_it(kind: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    dim = 3
    matrix = torch.randn(dim, dim, generator=generator, dtype=torch.float64)
    shift = torch.randn(dim, generator=generator, dtype=torch.float64)
    prox = L1(0.5) if kind == "l1" else GroupLasso(0.5, torch.tensor([0, 0, 1]))

    def f(x: Tensor) -> Tensor:
        return torch.sin(matrix @ x + shift).sum() + (x**4).sum() / 10

    start = torch.randn(dim, generator=generator, dtype=torch.float64)
    result = minimize(f, start, prox=prox, seed=seed)
    assert result.kind is Kind.MINIMUM
    g = prox.on((dim,))
    base = f(result.x) + g.value(result.x)
    assert result.fun == pytest.approx(float(base), rel=1e-13)
    for radius in (1e-2, 1e-3, 1e-4):
        moves = torch.randn(200, dim, generator=generator, dtype=torch.float64)
        moves[::2] *= g.is_free(result.x)
        moves = radius * moves[moves.norm(dim=-1) > 0]
        around = torch.stack([f(result.x + m) + g.value(result.x + m) for m in moves])
        assert float((around - base).min()) > -1e-15


def test_forms_of_x() -> None:
    def f(x: dict[str, Tensor]) -> Tensor:
        return (x["w"] - 0.3).square().sum() / 2 + (x["b"] - 0.3).square().sum() / 2

    x0 = {"w": torch.zeros(2, 3), "b": torch.zeros(2)}
    result = minimize(f, x0, prox={"w": L1(0.1), "b": None})
    torch.testing.assert_close(result.x["w"], torch.full((2, 3), 0.2, dtype=torch.float64))
    torch.testing.assert_close(result.x["b"], torch.full((2,), 0.3, dtype=torch.float64))
    everywhere = minimize(f, x0, prox=L1(0.1))
    torch.testing.assert_close(everywhere.x["b"], torch.full((2,), 0.2, dtype=torch.float64))
    rows = minimize(f, x0, prox={"w": GroupLasso(1.0), "b": None})
    assert rows.num_free == 2
    assert not rows.x["w"].any()
    assert rows.kind is Kind.MINIMUM


def test_numpy_and_groups_of_a_matrix() -> None:
    target = np.array([[3.0, 4.0], [0.3, 0.4]])

    def f(x: Any) -> Any:
        return ((x - target) ** 2).sum() / 2

    result = minimize(f, np.zeros((2, 2)), jac=lambda x: x - target, prox=GroupLasso(1.0))
    np.testing.assert_allclose(result.x, [[2.4, 3.2], [0.0, 0.0]], atol=1e-12)
    assert result.kind is Kind.MINIMUM


def test_tolerance_is_of_the_gradient_mapping() -> None:
    data, start = lasso(), torch.zeros(8, dtype=torch.float64)
    result = minimize(loss, start, args=data, prox=L1(0.1), tol=1e-3, polish=False)
    step = result.x - torch.as_tensor(result.jac)
    mapping = result.x - step.sign() * (step.abs() - 0.1).clamp(min=0)
    assert float(mapping.norm()) <= 1e-3
    assert result.point.gradient_norm == pytest.approx(float(mapping.norm()), rel=1e-6, abs=1e-12)
    exact = minimize(loss, start, args=data, prox=L1(0.1))
    assert result.counts.spent[0] < exact.counts.spent[0]


def test_replicas_budget_callback_and_checkpoint(tmp_path: Any) -> None:
    data = lasso()
    given: dict[str, Any] = {"args": data, "prox": L1(0.1)}
    starts = torch.randn(3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    result = minimize(loss, starts, replicas=3, **given)
    assert result.all_x.shape == (3, 8)
    np.testing.assert_allclose(result.all_fun, result.fun, rtol=1e-9)
    assert float(minimize(loss, starts[0], budget=10, **given).counts.spent.max()) <= 10
    seen: list[int] = []
    minimize(loss, starts[0], callback=lambda news: seen.append(news.step), **given)
    assert seen == list(range(1, len(seen) + 1))
    path = tmp_path / "run.pt"
    first = minimize(loss, starts[0], method="agld", checkpoint=path, max_steps=50, **given)
    again = minimize(loss, starts[0], method="agld", checkpoint=path, max_steps=50, **given)
    assert torch.equal(first.search.x, again.search.x)


def test_samples() -> None:
    matrix, target = lasso(rows=40)

    def f(x: Tensor, indices: Tensor) -> Tensor:
        return (matrix[indices] @ x - target[indices]).square().mean() / 2

    given: dict[str, Any] = {"num_samples": 40, "prox": L1(0.1), "x0": torch.zeros(8)}
    best = minimize(f, **given)
    result = minimize(f, method="asgld", batch_size=10, **given)
    assert result.kind is best.kind is Kind.MINIMUM
    assert result.fun == pytest.approx(best.fun, rel=1e-12)


def test_scipy_passes_the_penalty_on() -> None:
    matrix, target = (t.numpy() for t in lasso())
    found = scipy.optimize.minimize(
        lambda x: ((matrix @ x - target) ** 2).mean() / 2,
        np.zeros(8),
        jac=lambda x: matrix.T @ (matrix @ x - target) / len(target),
        method=asgld.scipy_method,
        options={"prox": L1(0.1)},
    )
    best = minimize(loss, torch.zeros(8), args=lasso(), prox=L1(0.1))
    assert found.success
    assert found.fun == pytest.approx(best.fun, rel=1e-12)


@pytest.mark.parametrize(
    ("error", "words", "given"),
    [
        (ValueError, ["prox", "bounds"], {"bounds": [(0, 1)] * 2}),
        (ValueError, ["adam", "fista", "agld"], {"method": "adam"}),
        (ValueError, ["lbfgs", "fista"], {"method": "lbfgs"}),
        (ValueError, ["weight"], {"prox": L1(torch.ones(3))}),
        (ValueError, ["groups"], {"prox": GroupLasso(1.0)}),
        (TypeError, ["prox", "0.1"], {"prox": 0.1}),
        (TypeError, ["prox"], {"prox": {"w": L1(0.1)}}),
        (
            ValueError,
            ["prox of its own"],
            {"prox": None, "method": TorchMethod("own", asgld.ASGLD, {"prox": L1(0.1)})},
        ),
    ],
)
def test_wrong_requests_are_refused(
    error: type[Exception], words: list[str], given: dict[str, Any]
) -> None:
    with pytest.raises(error) as raised:
        minimize(hill, SADDLE, **{"prox": L1(0.2), **given})
    assert all(word in str(raised.value) for word in words)


@pytest.mark.parametrize(
    ("prox", "words"),
    [
        ({"w": L1(0.1)}, "prox={'w'.*} has no ['b']: need a penalty"),
        ({"w": None, "b": None, "c": None}, " has the unknown ['c']: "),
        ({"w": None, "c": L1(0.1)}, " has no ['b'] and has the unknown ['c']: "),
        ({}, " has no ['w'], ['b']: "),
        ({"w": None, "b": [None, None]}, " has no ['b'] and has the unknown ['b'][0], ['b'][1]: "),
        ([None, None], "and has the unknown [0], [1]: "),
        ({"w": 0.1, "b": None}, "need a penalty"),
    ],
)
def test_keys_of_penalties_that_x_does_not_have_are_named(prox: Any, words: str) -> None:
    x0 = {"w": torch.zeros(3), "b": torch.zeros(())}
    with pytest.raises(TypeError) as raised:
        minimize(lambda p: p["w"].square().sum() + p["b"], x0, prox=prox)
    assert all(word in str(raised.value) for word in words.split(".*"))
    assert "arity" not in str(raised.value)


@pytest.mark.parametrize("weight", [1.0, [1.0, 0.0], None])
def test_an_unbounded_verdict_tells_the_length_of_its_point(weight: Any) -> None:
    prox = None if weight is None else L1(weight)
    result = minimize(lambda x: -2 * x[0], torch.zeros(2), prox=prox)
    assert result.kind is Kind.UNBOUNDED
    length = float(result.x.norm())
    assert length > 1e8
    assert f"f fell to {result.fun:.3g} at |x| = {length:.3g}," in result.message


def test_compare_refuses_a_penalty() -> None:
    compare: Any = asgld.compare
    with pytest.raises(TypeError, match="prox"):
        compare(hill, SADDLE, prox=L1(0.1))
    with pytest.raises(TypeError, match="prox"):
        compare(hill, SADDLE, [("agld", {"prox": L1(0.1)})], seeds=1)


# ----------------------------------------------------------------------------------------------
# Coordinates of other scales, and points at the edge of a kink
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [1e-12, 1e-9, 1e-6, 1e-3, 1e3, 1e6, 1e9])
@pytest.mark.parametrize("dim", [8, 150])
def test_units_of_columns_change_nothing(unit: float, dim: int) -> None:
    """Half of the columns in another unit, each weight with its column: the same problem."""
    matrix, target = lasso(rows=2 * dim, dim=dim)
    scale = torch.ones(dim, dtype=torch.float64)
    scale[::2] = unit
    plain = minimize(lambda x: loss(x, matrix, target), torch.zeros(dim), prox=L1(0.1))
    scaled = minimize(
        lambda x: loss(scale * x, matrix, target), torch.zeros(dim), prox=L1(0.1 * scale)
    )
    assert scaled.kind is plain.kind is Kind.MINIMUM
    assert scaled.fun == pytest.approx(plain.fun, rel=1e-12)
    assert torch.equal(scaled.x != 0, plain.x != 0)


def test_a_first_step_that_is_far_too_long_is_shortened() -> None:
    result = minimize(lambda b: (b[0] * 1e8 - 1) ** 2 / 2, torch.zeros(1), prox=L1(0.1))
    assert result.success
    assert float(result.x) == pytest.approx(1e-8, rel=1e-6)
    assert result.counts.spent.max() < 50


def test_raw_columns_reach_the_optimum_of_scikit_learn() -> None:
    """Scales of columns from 1e-3 to 1e3; the optimality conditions are those of a convex F."""
    data = pytest.importorskip("sklearn.datasets").load_breast_cancer()
    inputs = torch.tensor(data.data, dtype=torch.float64)
    targets = torch.tensor(data.target, dtype=torch.float64)

    def f(p: dict[str, Tensor]) -> Tensor:
        return (inputs @ p["w"] + p["b"] - targets).square().mean() / 2

    start = {"w": torch.zeros(30, dtype=torch.float64), "b": torch.zeros((), dtype=torch.float64)}
    result = minimize(f, start, prox={"w": L1(1e-4), "b": None})
    assert result.kind is Kind.MINIMUM
    model = pytest.importorskip("sklearn.linear_model").Lasso(1e-4, max_iter=10**6, tol=1e-12)
    model.fit(data.data, data.target)
    theirs = {"w": torch.tensor(model.coef_), "b": torch.tensor(model.intercept_)}
    assert result.fun <= float(f(theirs) + 1e-4 * theirs["w"].abs().sum()) * (1 + 1e-12)
    assert asgld.classify(f, result.x, prox={"w": L1(1e-4), "b": None}).kind is Kind.MINIMUM


BEYOND = [0.0, *(sign * 10.0 ** (k / 2) for k in range(-26, -5) for sign in (1.0, -1.0))]


@pytest.mark.parametrize("excess", BEYOND)
def test_a_bowl_has_a_minimum_however_near_its_kink(excess: float) -> None:
    """f is strongly convex: the minimum is at the kink, or `excess` beyond it."""
    away = torch.tensor([0.6, 0.8], dtype=torch.float64)
    groups = GroupLasso(1.0, torch.tensor([0, 0]))
    of_group = minimize(
        lambda x: (x - (1 + excess) * away).square().sum() / 2, torch.zeros(2), prox=groups
    )
    of_entry = minimize(lambda x: (x - 1 - excess) ** 2 / 2, 0.0, prox=L1(1.0))
    for result in (of_group, of_entry):
        assert result.kind is Kind.MINIMUM
        value = (1 + excess) ** 2 / 2 if excess < 0 else 0.5 + excess
        assert result.fun == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("weight", [1e-300, 1e-30])
@pytest.mark.parametrize("others", [0, 1])
def test_a_weight_that_f_does_not_show_holds_nothing(weight: float, others: int) -> None:
    """x^4 - x^2 falls beyond a kink whose barrier is far below rounding."""

    def f(x: Tensor) -> Tensor:
        return x[0] ** 4 - x[0] ** 2 + (x[1:] - 1).square().sum()

    result = minimize(f, torch.zeros(1 + others), prox=L1(weight))
    assert result.kind is Kind.MINIMUM
    assert result.fun == pytest.approx(-0.25, abs=1e-9)


def test_a_small_entry_counts_as_zero_where_f_hardly_knows_it() -> None:
    matrix, target = lasso()

    def f(x: Tensor) -> Tensor:
        return loss(x, matrix, target)

    x = minimize(f, torch.zeros(8), prox=L1(0.1)).x.clone()
    zero = int((x == 0).nonzero()[0])
    for off, kind in ((1e-13, Kind.MINIMUM), (1e-3, Kind.NOT_STATIONARY)):
        x[zero] = off
        point = asgld.classify(f, x, prox=L1(0.1))
        assert point.kind is kind
        assert (point.gradient_norm <= point.eps) is (kind is Kind.MINIMUM)
        assert point.gradient_norm == pytest.approx(off, rel=0.1)


def test_a_tolerance_counts_for_the_mapping_at_kinks_too() -> None:
    matrix, target = lasso()

    def f(x: Tensor) -> Tensor:
        return loss(x, matrix, target)

    most = float((matrix.T @ target / len(target)).abs().max())
    start = torch.zeros(8, dtype=torch.float64)
    for eps, kind in ((1e-2, Kind.MINIMUM), (1e-3, Kind.NOT_STATIONARY)):
        point = asgld.classify(f, start, prox=L1(most - 5e-3), eps=eps)
        assert point.kind is kind
        assert point.gradient_norm == pytest.approx(5e-3)


def test_groups_that_f_pulls_out_of_their_kink() -> None:
    """The gradient of a group has the norm of its weight: curvature along it decides."""
    away = torch.tensor([0.6, 0.8], dtype=torch.float64)
    groups = GroupLasso(1.0, torch.tensor([0, 0, -1]))
    start = torch.zeros(3, dtype=torch.float64)
    for bend, kind in ((1.0, Kind.MINIMUM), (-1.0, Kind.STRICT_SADDLE)):

        def f(x: Tensor, bend: float = bend) -> Tensor:
            along = x[:2] @ away
            return (
                -along
                + bend * along**2
                + along**4
                + (x[:2] - along * away).square().sum()
                + x[2] ** 2
            )

        point = asgld.classify(f, start, prox=groups)
        assert point.kind is kind
        if point.direction is not None:
            torch.testing.assert_close(point.direction[:2], away)
        assert minimize(f, start, prox=groups).fun == pytest.approx(0.0 if bend > 0 else -0.25)


def test_dicts_are_judged_as_they_are_minimized() -> None:
    def f(p: dict[str, Tensor]) -> Tensor:
        return (p["a"] - 1).square().sum() / 2 + p["b"] ** 4 - p["b"] ** 2

    start = {"a": torch.zeros(2, dtype=torch.float64), "b": torch.zeros((), dtype=torch.float64)}
    prox = {"a": L1(0.5), "b": None}
    result = minimize(f, start, prox=prox)
    assert minimize(f, start, prox=dict(reversed(prox.items()))).fun == result.fun
    assert asgld.classify(f, result.x, prox=prox).kind is Kind.MINIMUM
    saddle = {"a": torch.full_like(start["a"], 0.5), "b": start["b"]}
    point = asgld.classify(f, saddle, prox=prox)
    assert point.kind is Kind.STRICT_SADDLE
    assert isinstance(point.direction, dict)
    assert float(point.direction["b"].abs()) == pytest.approx(1.0)
    with pytest.raises(TypeError, match="prox="):
        asgld.classify(f, saddle, prox={"a": L1(0.5)})


def test_a_checkpoint_of_another_penalty_is_refused_in_one_dimension(tmp_path: Any) -> None:
    """At x = 1 the slopes of these penalties are equal."""
    given: dict[str, Any] = {"x0": torch.ones(1), "method": "agld", "max_steps": 5}
    given["checkpoint"] = tmp_path / "run.pt"
    minimize(lambda x: (x**2).sum(), prox=ElasticNet(0.1, 0.3), **given)
    with pytest.raises(ValueError, match="belongs to another run: its prox"):
        minimize(lambda x: (x**2).sum(), prox=L1(0.4), **given)


@pytest.mark.parametrize("name", ["lasso", "sparse logistic regression"])
def test_named_methods_end_at_one_objective(name: str) -> None:
    matrix, target = lasso(3, rows=60)
    signs = target.sign()

    def f(x: Tensor) -> Tensor:
        if name == "lasso":
            return loss(x, matrix, target)
        return torch.nn.functional.softplus(-signs * (matrix @ x)).mean()

    start = torch.zeros(8, dtype=torch.float64)
    found = [
        minimize(f, start, prox=L1(0.05), method=method).fun
        for method in ("prox-gd", "fista", "auto")
    ]
    assert found == pytest.approx([found[-1]] * 3, rel=1e-8)
    assert 0.0 < found[-1] < float(f(start))
