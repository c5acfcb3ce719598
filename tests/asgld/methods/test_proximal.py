"""Proximal methods: their steps against their definition, and their ends against known optima."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from asgld import Kind, minimize
from asgld.methods import FISTA, Method, ProxGD, ProximalDescent, method
from asgld.methods.proximal import _Here, _Search
from asgld.oracle import Oracle, torch_function
from asgld.oracle.composite import Composite, gradient_mapping
from asgld.prox import L1, BoundPenalty, ElasticNet, GroupLasso, Penalty
from asgld.run import Run, run
from asgld.run.stopping import StopWhen

METHODS: list[Method] = [ProxGD(), FISTA(), FISTA(restart=True), ProximalDescent()]
PENALTIES: dict[str, Penalty] = {
    "l1": L1(0.1),
    "some": L1(torch.linspace(0.0, 0.2, 12)),
    "net": ElasticNet(0.1, 0.3),
    "groups": GroupLasso(0.2, torch.arange(12) // 3),
}


def least_squares(seed: int = 0, rows: int = 8, dim: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    return matrix, torch.randn(rows, generator=generator, dtype=torch.float64)


def oracle_of(penalty: Penalty | None, matrix: Tensor, target: Tensor) -> Oracle:
    def f(x: Tensor) -> Tensor:
        return (matrix @ x - target).square().mean() / 2

    dim = matrix.shape[1]
    function = torch_function(f, dim)
    return Oracle(function if penalty is None else Composite(function, penalty.on((dim,))))


def bound(oracle: Oracle) -> BoundPenalty:
    assert oracle.penalty is not None
    return oracle.penalty


def at_rest(oracle: Oracle, made: Method, x0: Tensor, tol: float = 1e-9) -> Run:
    penalty = bound(oracle)

    def measure(x: Tensor, grad: Tensor) -> Tensor:
        norm: Tensor = gradient_mapping(penalty, x, grad).norm(dim=-1)
        return norm

    when = StopWhen(grad_tol=tol, every=1, measure=measure)
    return run(oracle, made, x0, max_steps=20_000, stop=when)


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("made", METHODS, ids=lambda m: f"{m.name}-{getattr(m, 'restart', '')}")
def test_all_end_at_the_same_stationary_point(made: Method, name: str) -> None:
    """f + g is convex here, so a gradient mapping of 0 is the optimum, whoever finds it."""
    oracle = oracle_of(PENALTIES[name], *least_squares())
    result = at_rest(oracle, made, torch.zeros(12, dtype=torch.float64))
    best = at_rest(
        oracle_of(PENALTIES[name], *least_squares()), ProxGD(), torch.ones(12).double(), 1e-11
    )
    assert float(result.grad_norms) <= 1e-8
    assert float(result.values) == pytest.approx(float(best.values), rel=1e-12)


def test_fixed_step_is_the_proximal_step() -> None:
    matrix, target = least_squares()
    x = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64)
    step = x - 0.05 * matrix.T @ (matrix @ x - target) / len(target)
    expected = step.sign() * (step.abs() - 0.05 * 0.1).clamp(min=0)
    for name in ("prox-gd", "fista"):
        result = run(oracle_of(L1(0.1), matrix, target), method(name, lr=0.05), x, max_steps=1)
        torch.testing.assert_close(result.x[0], expected)


def test_fista_follows_the_published_momentum() -> None:
    matrix, target = least_squares()
    x = torch.ones(12, dtype=torch.float64)
    before, theta, lr = x, 1.0, 0.05
    for _ in range(7):
        following = (1 + (1 + 4 * theta**2) ** 0.5) / 2
        y = x + (theta - 1) / following * (x - before)
        step = y - lr * matrix.T @ (matrix @ y - target) / len(target)
        before, x, theta = x, step.sign() * (step.abs() - lr * 0.1).clamp(min=0), following
    oracle = oracle_of(L1(0.1), matrix, target)
    result = run(oracle, FISTA(lr=lr), torch.ones(12).double(), max_steps=7)
    torch.testing.assert_close(result.x[0], x)


@pytest.mark.parametrize("made", [ProxGD(), ProximalDescent()], ids=lambda m: m.name)
def test_values_never_rise_where_f_is_not_convex(made: Method) -> None:
    def f(x: Tensor) -> Tensor:
        return (torch.cos(3 * x) + x**4 / 8).sum() + x.sum() ** 2 / 4

    function = Composite(torch_function(f, 5), L1(0.4).on((5,)))
    seen: list[Tensor] = []
    start = torch.randn(4, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def watch(news: object) -> None:
        seen.append(function.value(news.x))  # type: ignore[attr-defined]

    run(Oracle(function), made, start, max_steps=60, callback=watch)
    falls = torch.stack(seen).diff(dim=0)
    assert bool((falls <= 1e-14 * torch.stack(seen)[1:].abs()).all())


@pytest.mark.parametrize("made", METHODS, ids=lambda m: f"{m.name}-{getattr(m, 'restart', '')}")
def test_replicas_do_not_depend_on_each_other(made: Method) -> None:
    starts = torch.randn(3, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    data = least_squares()
    together = run(oracle_of(L1(0.1), *data), made, starts, max_steps=40)
    for row in range(3):
        alone = run(oracle_of(L1(0.1), *data), made, starts[row], max_steps=40)
        torch.testing.assert_close(together.x[row], alone.x[0], rtol=1e-9, atol=1e-12)


def test_descent_stays_at_a_stationary_point() -> None:
    """x is a saddle of f + g, where a proximal step moves nothing."""

    def f(x: Tensor) -> Tensor:
        return -(x[0] ** 2) / 2 + x[0] ** 4 / 4 + x[1] ** 2 / 2 + 0.1 * x[1]

    penalty = L1(torch.tensor([0.0, 0.2]))
    for made in METHODS:
        oracle = Oracle(Composite(torch_function(f, 2), penalty.on((2,))))
        result = run(oracle, made, torch.zeros(2, dtype=torch.float64), max_steps=50)
        assert result.x.tolist() == [[0.0, 0.0]]


def test_entries_that_would_change_sign_are_set_to_zero() -> None:
    """A step along the manifold crosses no kink; an entry without a weight has none."""
    penalty = L1(torch.tensor([0.1, 0.1, 0.1, 0.0])).on((4,))
    function = Composite(torch_function(lambda x: x.square().sum() / 2, 4), penalty)
    x = torch.tensor([[1.0, -1.0, 2.0, 1.0]], dtype=torch.float64)
    direction = torch.tensor([[-3.0, 1.5, -0.5, -1.5]], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    here = _Here(penalty, x, function.value(x), function.grad(x))
    follows = torch.tensor([True])
    search = _Search(Oracle(function, replicas=1), here, one, direction, -one, follows)
    search.run(follows, 1)
    assert search.is_found.item()
    assert search.x.tolist() == [[0.0, 0.0, 1.5, -0.5]]


def test_without_a_penalty_prox_gd_is_gradient_descent() -> None:
    matrix, target = least_squares()
    x = torch.ones(12, dtype=torch.float64)
    ends = [
        run(oracle_of(None, matrix, target), method(name, lr=0.05), x, max_steps=20).x
        for name in ("gd", "prox-gd")
    ]
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize("name", ["prox-gd", "fista", "agld", "asgld"])
def test_checkpoints_resume_and_know_their_penalty(name: str, tmp_path: Path) -> None:
    data, start = least_squares(), torch.ones(2, 12, dtype=torch.float64)
    options = {} if name in ("prox-gd", "fista") else {"lr": 0.05, "sigma": 0.01}
    made, path = method(name, **options), tmp_path / "run.pt"
    whole = run(oracle_of(L1(0.1), *data), made, start, max_steps=20, seed=5)
    run(oracle_of(L1(0.1), *data), made, start, max_steps=9, seed=5, checkpoint=path)
    with pytest.raises(ValueError, match="prox"):
        run(oracle_of(L1(0.2), *data), made, start, max_steps=20, seed=5, checkpoint=path)
    with pytest.raises(ValueError, match="prox"):
        run(oracle_of(None, *data), made, start, max_steps=20, seed=5, checkpoint=path)
    resumed = run(oracle_of(L1(0.1), *data), made, start, max_steps=20, seed=5, checkpoint=path)
    assert torch.equal(resumed.x, whole.x)


@pytest.mark.parametrize("name", ["l1", "some", "groups"])
def test_langevin_replicas_have_the_penalty_on_each_row(name: str) -> None:
    """Without noise a step of AGLD is a proximal step of every row."""
    data, penalty = least_squares(), PENALTIES[name]
    starts = torch.randn(3, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    agld = method("agld", lr=0.05, sigma=0.0)
    result = run(oracle_of(penalty, *data), agld, starts, max_steps=5)
    expected = run(oracle_of(penalty, *data), ProxGD(lr=0.05), starts, max_steps=5)
    torch.testing.assert_close(result.x, expected.x)


@pytest.mark.parametrize("name", ["prox-gd", "agld"])
def test_entries_beside_a_kink_are_judged_at_it(name: str) -> None:
    """0.05 x1 is flatter than the penalty: F falls towards x1 = 0, where a search never arrives."""

    def f(x: Tensor) -> Tensor:
        return (x[0] - 1) ** 2 / 2 + x[1] ** 2 / 2 + 0.05 * x[1]

    start = torch.tensor([0.9, 1e-7], dtype=torch.float64)
    found = minimize(f, start, method=name, prox=L1(0.1), max_steps=0, polish=False)
    assert found.x.tolist() == [0.9, 0.0]
    assert found.kind is Kind.MINIMUM
    assert found.fun == pytest.approx(float(f(found.x)) + 0.09, rel=1e-15)


def test_no_entry_is_set_to_zero_where_that_raises_f() -> None:
    """Where f is steep, a proximal step of length 1 from 3.03 lands at 0, far above."""
    start = torch.tensor([3.03], dtype=torch.float64)
    found = minimize(
        lambda x: 50 * (x[0] - 3) ** 2, start, method="prox-gd", prox=L1(0.1), max_steps=0,
        polish=False,
    )  # fmt: skip
    assert found.x.tolist() == [3.03]
    assert found.kind is Kind.NOT_STATIONARY


def test_bad_options_are_refused() -> None:
    for name in ("prox-gd", "fista"):
        with pytest.raises(ValueError, match="lr"):
            method(name, lr=-1.0)
        with pytest.raises(TypeError, match="momentum"):
            method(name, momentum=0.9)
