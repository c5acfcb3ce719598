"""The oracle: derivatives, counts, prices, budgets, and errors that name the call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from asgld.oracle import BudgetExhausted, Oracle
from asgld.oracle.costs import Costs
from asgld.oracle.functions import numpy_function, torch_function
from asgld.problems import problem, problem_names

DIM = 3


def quartic(x: Tensor) -> Tensor:
    return (x**4).sum() / 4 + x[0] * x[1] - torch.cos(x[2])


def quartic_numpy(x: np.ndarray) -> float:
    return float((x**4).sum() / 4 + x[0] * x[1] - np.cos(x[2]))


def quartic_jac(x: np.ndarray) -> np.ndarray:
    return x**3 + np.array([x[1], x[0], np.sin(x[2])])


def quartic_hess(x: np.ndarray) -> np.ndarray:
    matrix = np.diag(3 * x**2 + np.array([0.0, 0.0, np.cos(x[2])]))
    matrix[0, 1] = matrix[1, 0] = 1.0
    return matrix


def points(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


# ---------------------------------------------------------------------------- derivatives

FUNCTIONS: dict[str, tuple[Any, float]] = {
    "torch": (lambda: torch_function(quartic, DIM), 1e-12),
    "torch with jac": (
        lambda: torch_function(
            quartic, DIM, jac=lambda x: x**3 + torch.stack((x[1], x[0], torch.sin(x[2])))
        ),
        1e-6,
    ),
    "numpy": (lambda: numpy_function(quartic_numpy, DIM), 1e-3),
    "numpy with jac": (lambda: numpy_function(quartic_numpy, DIM, jac=quartic_jac), 1e-6),
    "numpy with hess": (
        lambda: numpy_function(quartic_numpy, DIM, jac=quartic_jac, hess=quartic_hess),
        1e-12,
    ),
    "numpy with hvp": (
        lambda: numpy_function(
            quartic_numpy, DIM, jac=quartic_jac, hvp=lambda x, v: quartic_hess(x) @ v
        ),
        1e-12,
    ),
}


@pytest.mark.parametrize("lead", [(), (1,), (4,), (2, 3)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_oracle_derivatives_are_right_for_any_leading_shape(
    name: str, lead: tuple[int, ...]
) -> None:
    build, tolerance = FUNCTIONS[name]
    oracle = Oracle(build()).free()
    x, v = points(*lead, DIM), points(*lead, DIM, seed=1)
    rows = x.reshape(-1, DIM).numpy()
    hessians = np.stack([quartic_hess(row) for row in rows]).reshape(*lead, DIM, DIM)
    expected = {
        "value": np.reshape([quartic_numpy(row) for row in rows], lead),
        "grad": np.reshape([quartic_jac(row) for row in rows], (*lead, DIM)),
        "hvp": (hessians @ v.numpy()[..., None])[..., 0],
        "hessian": hessians,
    }
    found = {
        "value": oracle.value(x),
        "grad": oracle.grad(x),
        "hvp": oracle.hvp(x, v),
        "hessian": oracle.hessian(x),
    }
    for kind, value in expected.items():
        np.testing.assert_allclose(
            found[kind].numpy(), value, atol=max(tolerance, 1e-9), err_msg=kind
        )


@pytest.mark.parametrize("name", [n for n in problem_names() if n != "digits"])
def test_oracle_of_a_problem_gives_its_derivatives(name: str) -> None:
    p = problem(name)
    oracle = Oracle(p)
    x = p.start(2)
    v = torch.ones_like(x)
    assert torch.equal(oracle.value(x), p.value(x))
    assert torch.equal(oracle.grad(x), p.grad(x))
    assert torch.equal(oracle.hvp(x, v), p.hvp(x, v))
    if p.num_samples is not None:
        indices = torch.tensor([[0, 1], [1, 0]])
        assert torch.equal(oracle.sample_grad(x, indices), p.sample_grad(x, indices))


class _NoForward(torch.autograd.Function):
    """x^4 by hand: reverse mode of both orders, no forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**4

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 4 * x**3 * grad


class _NoSecond(_NoForward):
    """x^4 by hand, whose derivative cannot be differentiated again."""

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 4 * x**3 * grad


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    ("power", "note", "charge"),
    [
        (lambda x: x**4, "autograd of `fun`, reverse over reverse", {"hvp": 1}),
        (_NoForward.apply, "autograd of `fun`, reverse over reverse", {"hvp": 1}),
        (_NoSecond.apply, "central differences of gradients, since", {"grad": 2}),
    ],
)
def test_hvp_falls_back_and_says_so(
    power: Any, note: str, charge: dict[str, int], rows: int
) -> None:
    oracle = Oracle(torch_function(lambda x: power(x).sum(), 2))
    x, v = points(rows, 2), points(rows, 2, seed=1)
    for _ in range(2):
        torch.testing.assert_close(oracle.hvp(x, v), 12 * x**2 * v, rtol=1e-6, atol=1e-6)
    assert note in oracle.notes["hvp"]
    # The first call finds the route; from then on it is charged as what it is.
    before = oracle.counts.copy()
    oracle.hvp(x, v)
    used = oracle.counts.since(before).total()
    assert {k: used[k] for k in charge} == {k: n * rows for k, n in charge.items()}


def test_rows_are_evaluated_one_by_one_where_vmap_cannot() -> None:
    def branching(x: Tensor) -> Tensor:
        return (x**2).sum() if x[0] > 0 else (3 * x**2).sum()

    oracle = Oracle(torch_function(branching, 2))
    x = torch.tensor([[1.0, 1.0], [-1.0, 1.0]], dtype=torch.float64)
    assert oracle.grad(x).tolist() == [[2.0, 2.0], [-6.0, 6.0]]
    assert oracle.hvp(x, x).tolist() == [[2.0, 2.0], [-6.0, 6.0]]
    assert "one by one" in oracle.notes["rows"]


def test_differences_of_values_do_not_cross_bounds() -> None:
    seen = []

    def log_barrier(x: np.ndarray) -> float:
        seen.append(x.min())
        return float((x - np.log(x)).sum())

    limits = (torch.zeros(2, dtype=torch.float64), torch.full((2,), torch.inf, dtype=torch.float64))
    function = numpy_function(log_barrier, 2, bounds=limits)
    x = torch.tensor([[1e-7, 0.5]], dtype=torch.float64)
    gradient = function.grad(x)
    assert min(seen) > 0
    assert float(gradient[0, 1]) == pytest.approx(-1.0, rel=1e-6)


def test_sampled_calls_average_over_the_batch() -> None:
    data = points(5, 2)

    def fun(x: Tensor, indices: Tensor) -> Tensor:
        return ((data[indices] - x) ** 2).sum(-1).mean() / 2

    oracle = Oracle(torch_function(fun, 2, num_samples=5))
    x = points(3, 2, seed=1)
    indices = torch.tensor([[0, 1], [2, 2], [4, 0]])
    expected = x - data[indices].mean(1)
    torch.testing.assert_close(oracle.sample_grad(x, indices), expected)
    torch.testing.assert_close(oracle.grad(x), x - data.mean(0))
    torch.testing.assert_close(oracle.sample_hvp(x, x, indices), x)
    torch.testing.assert_close(
        oracle.sample_value(x, indices), ((data[indices] - x[:, None]) ** 2).sum(-1).mean(-1) / 2
    )


# ---------------------------------------------------------------------------- counts and prices


def test_counts_are_per_replica_per_kind_and_per_sample() -> None:
    p = problem("mixture")
    n = p.num_samples
    assert n is not None
    oracle = Oracle(p, replicas=3)
    x = p.start(3)
    oracle.value(x)
    oracle.grad(x)
    oracle.hvp(x, x)
    oracle.hessian(x)
    oracle.sample_grad(x, torch.arange(7))
    oracle.rows(1).sample_hvp(x[1], x[1], torch.arange(5))
    oracle.value_and_grad(x)
    oracle.free().grad(x.repeat(2, 1))
    calls = {kind: counts.tolist() for kind, counts in oracle.counts.calls.items()}
    assert calls == {
        "value": [1, 1, 1],
        "sample_value": [0, 0, 0],
        "grad": [2, 2, 2],
        "sample_grad": [1, 1, 1],
        "hvp": [1, 1, 1],
        "sample_hvp": [0, 1, 0],
        "hessian": [1, 1, 1],
    }
    assert oracle.counts.samples.tolist() == [5 * n + 7, 5 * n + 12, 5 * n + 7]
    full = 0.5 + 2 + 2 + p.dim
    expected = [full + 7 / n, full + 7 / n + 2 * 5 / n, full + 7 / n]
    np.testing.assert_allclose(oracle.counts.spent, expected, rtol=1e-14)


def test_prices_are_adjustable() -> None:
    costs = Costs(value=1.0, grad=2.0, hvp=4.0, hessian=8.0)
    oracle = Oracle(torch_function(quartic, DIM), costs=costs)
    x = points(DIM)
    for call in (oracle.value, oracle.grad, oracle.hessian):
        call(x)
    oracle.hvp(x, x)
    assert oracle.counts.spent.tolist() == [15.0]


@pytest.mark.parametrize(
    ("given", "kind", "calls"),
    [
        ({}, "grad", {"value": 2 * DIM}),
        ({}, "hvp", {"value": 4 * DIM}),
        ({"jac": quartic_jac}, "hvp", {"grad": 2}),
        ({"jac": quartic_jac}, "hessian", {"grad": 2 * DIM}),
        ({"jac": quartic_jac, "hess": quartic_hess}, "hvp", {"hessian": 1}),
    ],
)
def test_differences_are_charged_as_the_calls_they_make(
    given: dict[str, Any], kind: str, calls: dict[str, int]
) -> None:
    made = dict.fromkeys(("fun", "jac", "hess"), 0)

    def counted(name: str, call: Any) -> Any:
        def wrapped(x: np.ndarray) -> Any:
            made[name] += 1
            return call(x)

        return wrapped

    wrapped = {name: counted(name, call) for name, call in given.items()}
    oracle = Oracle(numpy_function(counted("fun", quartic_numpy), DIM, **wrapped))
    x = points(DIM)
    if kind == "hvp":
        oracle.hvp(x, x)
    else:
        getattr(oracle, kind)(x)
    used = {k: int(n[0]) for k, n in oracle.counts.calls.items() if n.any()}
    assert used == calls
    names = {"value": "fun", "grad": "jac", "hessian": "hess"}
    assert {k: made[names[k]] for k in used} == used


def test_tally_counts_other_work_at_no_price() -> None:
    oracle = Oracle(torch_function(quartic, DIM), replicas=2)
    oracle.rows(1).tally("eigh", 3)
    assert oracle.counts.calls["eigh"].tolist() == [0, 3]
    assert oracle.counts.total()["gradient_equivalents"] == 0.0


# ---------------------------------------------------------------------------- guards


def test_budget_is_never_passed() -> None:
    oracle = Oracle(torch_function(quartic, DIM), budget=3.0)
    x = points(DIM)
    for _ in range(3):
        oracle.grad(x)
    with pytest.raises(BudgetExhausted, match="`value` would pass the budget of 3"):
        oracle.value(x)
    assert oracle.counts.spent.tolist() == [3.0]
    oracle.free().hessian(x)


def test_replicas_leave_a_session_one_by_one() -> None:
    evaluated = []

    class Watched:
        dim, num_samples = 2, None

        def value(self, x: Tensor) -> Tensor:
            return (x**2).sum(-1)

        def grad(self, x: Tensor) -> Tensor:
            evaluated.append(len(x))
            return 2 * x

    oracle = Oracle(Watched(), budget=2.0)  # type: ignore[arg-type]
    session = oracle.open(3, name="m", needs=frozenset({"value", "grad"}))
    x = points(3, 2)
    session.rows(1).grad(x[1:2])
    session.grad(x)
    result = session.grad(x)
    assert torch.isnan(result[1]).all()
    torch.testing.assert_close(result[[0, 2]], 2 * x[[0, 2]])
    assert evaluated == [1, 3, 2]
    assert session.session is not None
    assert session.session.active.tolist() == [True, False, True]
    assert torch.isnan(session.rows(1).value(x[1]))
    with pytest.raises(BudgetExhausted):
        session.grad(x)
    assert oracle.counts.spent.tolist() == [2.0, 2.0, 2.0]


def test_session_refuses_what_the_method_did_not_declare() -> None:
    oracle = Oracle(torch_function(quartic, DIM))
    session = oracle.open(1, name="frugal", needs=frozenset({"grad"}))
    session.grad(points(1, DIM))
    for call in (session.value, session.hessian, session.value_and_grad):
        with pytest.raises(RuntimeError, match=r"'frugal' called oracle.*declares only grad"):
            call(points(1, DIM))
    with pytest.raises(RuntimeError, match=r"called oracle\.hvp"):
        session.hvp(points(1, DIM), points(1, DIM))
    with pytest.raises(ValueError, match="needs 'hessain'"):
        oracle.open(1, name="typo", needs=frozenset({"hessain"}))


def test_free_view_has_no_limits() -> None:
    oracle = Oracle(torch_function(quartic, DIM), budget=1e-9)
    session = oracle.open(1, name="m", needs=frozenset())
    assert session.free().hessian(points(5, DIM)).shape == (5, DIM, DIM)
    with pytest.raises(ValueError, match="no counts"):
        _ = session.free().counts


# ---------------------------------------------------------------------------- errors

ONE = np.ones(DIM)


def _raise(x: Any, *_: Any) -> Any:
    raise ZeroDivisionError("division by zero")


ERRORS: list[tuple[str, dict[str, Any], str, type[Exception], str]] = [
    ("fun raises", {"fun": _raise}, "value", RuntimeError, r"`fun` raised ZeroDivision.*`value`"),
    (
        "jac raises",
        {"jac": _raise},
        "grad",
        RuntimeError,
        r"`jac` raised ZeroDivision.*`grad`.*row 0",
    ),
    ("hvp raises", {"hvp": _raise}, "hvp", RuntimeError, r"`hvp` raised ZeroDivision.*`hvp`"),
    ("hess raises", {"hess": _raise}, "hessian", RuntimeError, r"`hess` raised ZeroDivision"),
    (
        "fun not scalar",
        {"fun": lambda x: x},
        "value",
        ValueError,
        r"`fun`.*shape \(3,\), expected \(\)",
    ),
    ("jac short", {"jac": lambda x: x[:2]}, "grad", ValueError, r"`jac`.*\(2,\), expected \(3,\)"),
    (
        "hvp short",
        {"hvp": lambda x, v: v[:1]},
        "hvp",
        ValueError,
        r"`hvp`.*\(1,\), expected \(3,\)",
    ),
    ("hess flat", {"hess": lambda x: x}, "hessian", ValueError, r"`hess`.*expected \(3, 3\)"),
    ("fun text", {"fun": lambda x: "low"}, "value", TypeError, r"`fun`.*must return numbers"),
    ("jac None", {"jac": lambda x: None}, "grad", TypeError, r"`jac`.*must return numbers"),
    (
        "fun nan",
        {"fun": lambda x: np.nan},
        "value",
        ValueError,
        r"`value` gave a non-finite.*row 0",
    ),
    ("jac inf", {"jac": lambda x: ONE / 0.0}, "grad", ValueError, r"`grad` gave a non-finite"),
]


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(
    ("case", "given", "kind", "error", "match"), ERRORS, ids=[e[0] for e in ERRORS]
)
def test_faulty_numpy_functions_are_named(
    case: str, given: dict[str, Any], kind: str, error: type[Exception], match: str
) -> None:
    callables = {"fun": quartic_numpy, "jac": quartic_jac, **given}
    oracle = Oracle(numpy_function(callables.pop("fun"), DIM, **callables))
    x = points(1, DIM)
    with pytest.raises(error, match=match):
        oracle.hvp(x, x) if kind == "hvp" else getattr(oracle, kind)(x)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    ("fun", "kind", "error", "match"),
    [
        (_raise, "value", RuntimeError, "`fun` raised ZeroDivisionError"),
        (_raise, "hvp", RuntimeError, "`fun` raised ZeroDivisionError"),
        (lambda x: x, "grad", RuntimeError, r"must return a scalar, got shape \(3,\)"),
        (lambda x: 1.0, "value", RuntimeError, "must return a scalar tensor, got float"),
        (lambda x: torch.log(x - 10).sum(), "value", ValueError, "`value` gave a non-finite"),
        (
            lambda x: x.float().double().sum() * torch.nan,
            "grad",
            ValueError,
            "`grad` gave a non-fin",
        ),
    ],
)
def test_faulty_torch_functions_are_named(
    fun: Any, kind: str, error: type[Exception], match: str, rows: int
) -> None:
    oracle = Oracle(torch_function(fun, DIM))
    x = points(rows, DIM)
    with pytest.raises(error, match=match):
        oracle.hvp(x, x) if kind == "hvp" else getattr(oracle, kind)(x)


@pytest.mark.parametrize("rows", [1, 3])
def test_value_cut_off_from_x_is_an_error_not_a_zero_gradient(rows: int) -> None:
    oracle = Oracle(torch_function(lambda x: x.detach().sum(), DIM))
    with pytest.raises(RuntimeError, match="does not depend on x through torch operations"):
        oracle.grad(points(rows, DIM))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda o: o.grad(points(2)),
            r"x of shape \(2,\) in oracle call `grad`: need \(\.\.\., 3\)",
        ),
        (lambda o: o.hvp(points(2, DIM), points(2)), r"v of shape \(2,\)"),
        (lambda o: o.grad(points(5, DIM)), "x has 5 rows.*counts for 2"),
        (lambda o: o.sample_grad(points(2, DIM), torch.arange(2)), "not a mean over samples"),
    ],
)
def test_wrong_arguments_are_named(call: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        call(Oracle(torch_function(quartic, DIM), replicas=2))


def test_indices_out_of_range_are_named() -> None:
    oracle = Oracle(problem("mixture"))
    x = problem("mixture").start(2)
    with pytest.raises(ValueError, match="run from 0 to 100000: need"):
        oracle.sample_grad(x, torch.tensor([0, 100000]))
    with pytest.raises(ValueError, match=r"indices of shape \(3, 2\)"):
        oracle.sample_grad(x, torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="at least one sample"):
        oracle.sample_grad(x, torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"budget": 0.0}, ValueError, "budget=0.0"),
        ({"replicas": 0}, ValueError, "replicas=0"),
        ({"function": quartic}, TypeError, "has no 'dim'.*torch_function"),
    ],
)
def test_oracle_rejects_what_has_no_meaning(
    options: dict[str, Any], error: type[Exception], match: str
) -> None:
    options.setdefault("function", torch_function(quartic, DIM))
    with pytest.raises(error, match=match):
        Oracle(**options)


def test_finite_numbers_whose_sum_overflows_are_no_error() -> None:
    oracle = Oracle(torch_function(lambda x: 1e308 * x.sum(), 2))
    x = torch.ones(4, 2, dtype=torch.float64)
    assert torch.isfinite(oracle.grad(x)).all()
