"""The proximal step of the optimizers: equal to the reference, exact in its special cases, the same
in every backend, and refused where it has no meaning."""

from __future__ import annotations

import copy
import io
import math
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pytest
import torch
from helpers import BACKENDS, HEATING, make_parameters, make_tensor, pairwise, take_steps
from prox_cases import shard_rows
from ranks import run_ranks
from torch import Tensor

import asgld
from asgld import noise, reference
from asgld.optim import proximal
from asgld.optim.rule import Rule
from asgld.prox import L1, ElasticNet, GroupLasso, Penalty

pytestmark = pytest.mark.filterwarnings(HEATING)

SHAPE = (3, 5)
WEIGHTS = torch.linspace(0.0, 0.4, 15, dtype=torch.float64).reshape(SHAPE)
GROUPS = torch.tensor([[0, 0, 1, 1, 1], [2, 2, 2, -1, -1], [0, 1, 2, 2, 3]])
ROWS = np.repeat(np.arange(3), 5).reshape(SHAPE)
# Each penalty, and the same written anew.
PENALTIES: dict[str, tuple[Penalty, reference.Prox]] = {
    "l1": (L1(0.2), reference.l1(0.2)),
    "weights": (L1(WEIGHTS), reference.l1(WEIGHTS.numpy())),
    "elastic": (ElasticNet(0.1, 0.3), reference.elastic_net(0.1, 0.3)),
    "rows": (GroupLasso(2.5), reference.group_lasso(2.5, ROWS)),
    "groups": (GroupLasso(1.5, GROUPS), reference.group_lasso(1.5, GROUPS.numpy())),
}
RULES: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "alpha 0": {"alpha": 0.0},
    "no noise": {"sigma": 0.0},
    "general powers": {"alpha": 1.5, "beta": 0.7, "d_init": 0.3},
    "weight decay": {"weight_decay": 0.3},
    "bounded noise": {"noise_bound": 0.5},
    **helpers.WIDER,
}


def _zeros(x: Tensor) -> int:
    return int((x == 0.0).sum())


# ----------------------------------------------------------------------------------------------
# The reference, and special cases
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("backend", "penalty", "rule"), pairwise(BACKENDS, PENALTIES, RULES))
def test_step_equals_the_reference(backend: str, penalty: str, rule: str) -> None:
    knobs: dict[str, Any] = {
        "lr": 0.1, "alpha": 1.0, "beta": 1.0, "sigma": 0.1, "delta": 0.01, "d_init": 1.0,
        **RULES[rule],
    }  # fmt: skip
    prox, literal = PENALTIES[penalty]
    p = make_tensor(*SHAPE, seed=1, dtype=torch.float64).requires_grad_()
    gradients = iter(range(40))

    def gradient(x: np.ndarray) -> np.ndarray:
        k = next(gradients)
        return make_tensor(*SHAPE, seed=1000 * k, dtype=torch.float64).numpy() + 0.5 * x

    path = reference.asgld(
        gradient,
        p.detach().numpy().copy(),
        lambda k: noise.normal(9, 0, k, np.arange(15)).reshape(SHAPE),
        prox=literal,
        **knobs,
    )
    optimizer = asgld.ASGLD([p], seed=9, prox=prox, **knobs, **BACKENDS[backend])
    num_zeros = 0
    for k in range(40):
        take_steps(optimizer, 1, first=k)
        np.testing.assert_allclose(p.detach().numpy(), next(path), rtol=1e-10, atol=1e-11)
        num_zeros += _zeros(p.detach())
    assert num_zeros > 0  # the penalty acts


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_l1_without_scaling_and_noise_is_ista_bit_for_bit(backend: str, dtype: torch.dtype) -> None:
    x = make_tensor(50, seed=1, dtype=dtype).requires_grad_()
    other = x.detach().clone()
    optimizer = asgld.ASG([x], lr=0.25, alpha=0.0, prox=L1(0.5), **BACKENDS[backend])
    for k in range(30):
        x.grad = x.detach() - make_tensor(50, seed=7 + k % 2, dtype=dtype)
        stepped = other - 0.25 * (other - make_tensor(50, seed=7 + k % 2, dtype=dtype))
        other = torch.nn.functional.softshrink(stepped, 0.125)
        optimizer.step()
        assert torch.equal(x.detach(), other)
    assert 0 < _zeros(other) < 50


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rule", helpers.WIDER)
@pytest.mark.parametrize(
    "nothing", [L1(0.0), ElasticNet(0.0, 0.0), GroupLasso(0.0)], ids=lambda g: type(g).__name__
)
def test_without_weight_a_penalty_changes_no_bit(
    backend: str, dtype: torch.dtype, rule: str, nothing: Penalty
) -> None:
    rounding = dtype == torch.bfloat16
    knobs = {"lr": 0.1, "sigma": 0.1, "stochastic_rounding": rounding, **helpers.WIDER[rule]}
    plain, shrunk = (make_parameters([(3, 5), (7, 2)], dtype=dtype) for _ in range(2))
    take_steps(asgld.ASGLD(plain, **knobs, **BACKENDS[backend]), 6)
    take_steps(asgld.ASGLD(shrunk, prox=nothing, **knobs, **BACKENDS[backend]), 6)
    for p, q in zip(plain, shrunk, strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("backend", BACKENDS)
def test_noise_alone_is_shrunk(backend: str) -> None:
    """Without gradients and scaling a step is the soft threshold of the plain step."""
    p, q = (make_tensor(200, seed=1).requires_grad_() for _ in range(2))
    knobs: dict[str, Any] = {"lr": 0.5, "sigma": 0.4, **BACKENDS[backend]}
    optimizer, plain = (
        asgld.SGLD([p], prox=L1(0.6), seed=3, **knobs),
        asgld.SGLD([q], seed=3, **knobs),
    )
    p.grad, q.grad = torch.zeros(200), torch.zeros(200)
    optimizer.step()
    plain.step()
    assert torch.equal(p.detach(), torch.nn.functional.softshrink(q.detach(), 0.3))


def test_minimum_is_that_of_coordinate_descent() -> None:
    """The lasso's objective, to 1e-10 of that of scikit-learn."""
    linear = pytest.importorskip("sklearn.linear_model")
    data = make_tensor(60, 20, seed=1, dtype=torch.float64)
    targets = data[:, :3].sum(1) + 0.1 * make_tensor(60, seed=2, dtype=torch.float64)
    model = linear.Lasso(alpha=0.1, fit_intercept=False, tol=1e-14, max_iter=100_000)
    found = torch.from_numpy(model.fit(data.numpy(), targets.numpy()).coef_)
    x = torch.zeros(20, dtype=torch.float64, requires_grad=True)
    optimizer = asgld.ASG([x], lr=0.3, alpha=1.0, delta=0.0, prox=L1(0.1))

    def objective(w: Tensor) -> Tensor:
        return ((data @ w - targets) ** 2).mean() / 2 + 0.1 * w.abs().sum()

    for _ in range(2000):
        x.grad = data.T @ (data @ x.detach() - targets) / 60
        optimizer.step()
    assert float(objective(x.detach())) == pytest.approx(float(objective(found)), rel=1e-10)
    assert torch.equal(x.detach() == 0.0, found == 0.0)


# ----------------------------------------------------------------------------------------------
# Backends
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "loop"])
@pytest.mark.parametrize("penalty", [L1(0.2), ElasticNet(0.1, 0.3)], ids=["l1", "elastic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_backends_agree_on_odd_shapes(backend: str, penalty: Penalty, dtype: torch.dtype) -> None:
    def make() -> list[Tensor]:
        made = make_parameters([(), (0,), (3, 0), (1,), (33,), (2, 3, 4), (70, 70)], dtype=dtype)
        strided = make_tensor(6, 8, seed=9, dtype=dtype)[:, ::2].requires_grad_()
        turned = make_tensor(5, 4, seed=8, dtype=dtype).t().detach().requires_grad_()
        return [*made, strided, turned]

    ours, theirs = make(), make()
    knobs: dict[str, Any] = {"lr": 0.1, "sigma": 0.1, "prox": penalty, "momentum": 0.5}
    knobs["stochastic_rounding"] = dtype != torch.float32
    optimizer = asgld.ASGLD(ours, **knobs, **BACKENDS[backend])
    loop = asgld.ASGLD(theirs, **knobs, **BACKENDS["loop"])
    # Rounding to half precision differs by a unit in the last place of numbers of order 4.
    tolerance = 1e-6 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
    for k in range(5):
        take_steps(optimizer, 1, first=k)
        take_steps(loop, 1, first=k)
        for p, q in zip(ours, theirs, strict=True):
            torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance)
            p.data.copy_(q.data)


@pytest.mark.parametrize("name", ["rows", "groups"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_groups_are_shrunk_as_a_whole(backend: str, name: str) -> None:
    """A group is zero in all of its entries or in none."""
    x = make_tensor(*SHAPE, seed=1).requires_grad_()
    optimizer = asgld.ASGLD([x], lr=0.3, prox=PENALTIES[name][0], **BACKENDS[backend])
    index = torch.from_numpy(ROWS) if name == "rows" else GROUPS
    seen = set()
    for k in range(30):
        take_steps(optimizer, 1, first=k)
        for group in range(int(index.max()) + 1):
            zeros = x.detach()[index == group] == 0.0
            assert zeros.all() or not zeros.any()
            seen.add(bool(zeros.all()))
    assert seen == {False, True}


@pytest.mark.parametrize("backend", BACKENDS)
def test_first_gradient_that_fills_the_average_moves_nothing(backend: str) -> None:
    x = make_tensor(20, seed=1).requires_grad_()
    before = x.detach().clone()
    knobs: dict[str, Any] = {"lr": 0.1, "decay": 0.9, "d_init": 0.0, "prox": L1(10.0)}
    optimizer = asgld.ASGLD([x], **knobs, **BACKENDS[backend])
    take_steps(optimizer, 1)
    assert torch.equal(x.detach(), before)
    take_steps(optimizer, 1, first=1)
    assert _zeros(x.detach()) > 0


@pytest.mark.skipif("fused" not in BACKENDS, reason="needs the compiled kernel")
def test_step_that_a_scaler_skips_shrinks_nothing() -> None:
    x = make_tensor(40, seed=1).requires_grad_()
    optimizer = asgld.ASGLD([x], lr=0.1, prox=L1(1.0), fused=True)
    take_steps(optimizer, 2)
    before = helpers.snapshot(optimizer)
    optimizer.found_inf, optimizer.grad_scale = torch.ones(()), torch.ones(())  # type: ignore[attr-defined]
    take_steps(optimizer, 1, first=2)
    helpers.assert_equal(helpers.snapshot(optimizer), before)
    optimizer.found_inf = torch.zeros(())  # type: ignore[attr-defined]
    take_steps(optimizer, 1, first=2)
    assert not torch.equal(x.detach(), before[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_lr_may_be_a_tensor(backend: str) -> None:
    """The shape () or (1,), in a plan or outside, and 0 moves nothing."""
    if backend == "foreach":
        options: dict[str, Any] = {"foreach": True, "capturable": True}
    else:
        options = BACKENDS[backend]
    by_number, by_tensor = (make_tensor(30, seed=1).double().requires_grad_() for _ in range(2))
    lr = torch.tensor([0.1], dtype=torch.float64)
    first = asgld.ASGLD([by_number], lr=0.1, prox=L1(0.5), **options)
    second = asgld.ASGLD([by_tensor], lr=lr, prox=L1(0.5), **options)
    take_steps(first, 3)
    take_steps(second, 3)
    torch.testing.assert_close(by_number, by_tensor, rtol=1e-13, atol=1e-14)
    assert _zeros(by_tensor.detach()) > 0
    lr.zero_()
    before = by_tensor.detach().clone()
    take_steps(second, 2, first=3)
    assert torch.equal(by_tensor.detach(), before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_penalty_of_a_group_may_change_between_steps(backend: str) -> None:
    def run(*, anew: bool) -> Tensor:
        x = make_tensor(4, 6, seed=1).requires_grad_()
        optimizer = asgld.ASGLD([x], lr=0.1, prox=L1(0.3), **BACKENDS[backend])
        for k, prox in enumerate([L1(0.3), L1(0.3), None, GroupLasso(0.5), ElasticNet(0.1, 1.0)]):
            optimizer.param_groups[0]["prox"] = prox
            if anew:
                optimizer._plans.clear()
            take_steps(optimizer, 2, first=2 * k)
        return x.detach()

    assert torch.equal(run(anew=False), run(anew=True))


def test_groups_have_their_own_penalties() -> None:
    sparse, dense = make_parameters([(30,), (30,)])
    optimizer = asgld.ASGLD([{"params": [sparse], "prox": L1(2.0)}, {"params": [dense]}], lr=0.1)
    take_steps(optimizer, 10)
    assert _zeros(sparse.detach()) > 0
    assert _zeros(dense.detach()) == 0


def test_compiled_step_is_the_plain_step() -> None:
    ours, theirs = make_parameters([(4, 6)]), make_parameters([(4, 6)])
    optimizer, plain = (asgld.ASGLD(p, lr=0.3, prox=GroupLasso(4.0)) for p in (ours, theirs))
    step = torch.compile(optimizer.step, backend="eager")
    for k in range(4):
        for p in (*ours, *theirs):
            p.grad = make_tensor(4, 6, seed=k)
        step()
        plain.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    assert _zeros(theirs[0].detach()) > 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("edit", [0.0, 4.0, math.nan])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_weight_that_changed_in_place_is_refused_before_anything_moves(
    backend: str, edit: float, is_replaced: bool
) -> None:
    """Equal penalties of other optimizers are other penalties, and go on as before."""
    first, second, third = (make_parameters([(4,)]) for _ in range(3))
    mine, theirs = L1(torch.ones(4)), L1(torch.ones(4))
    beside = make_tensor(4, seed=5).requires_grad_()
    knobs: dict[str, Any] = {"lr": 0.1, **BACKENDS[backend]}
    groups = [{"params": [beside]}, {"params": first, "prox": mine}]
    edited = asgld.ASGLD(groups, **knobs)
    other = asgld.ASGLD(second, prox=theirs, **knobs)
    alone = asgld.ASGLD(third, prox=L1(torch.ones(4)), **knobs)
    take_steps(edited, 2)
    if is_replaced:  # by an equal one
        edited.param_groups[1]["prox"] = mine = L1(torch.ones(4))
        take_steps(edited, 1, first=2)
    mine.weight.mul_(edit)  # type: ignore[union-attr]
    before = helpers.snapshot(edited)
    with pytest.raises(ValueError, match="changed in place: set a new penalty"):
        take_steps(edited, 1, first=3)
    helpers.assert_equal(helpers.snapshot(edited), before)
    take_steps(other, 4)
    take_steps(alone, 4)
    assert torch.equal(second[0], third[0])
    edited.param_groups[1]["prox"] = L1(2.0 * torch.ones(4))
    take_steps(edited, 1, first=3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_capturable", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("prox", [L1(1e39), L1(np.full(SHAPE, 1e39)), GroupLasso(0.3)])
def test_step_of_size_zero_moves_nothing(
    backend: str, is_capturable: bool, alpha: float, prox: Penalty
) -> None:
    x = make_tensor(*SHAPE, seed=1)
    x[0] = torch.tensor([1e-45, 3e-45, 1e-40, 0.0, 1.0])
    x[1] = 3e-45
    x.requires_grad_()
    before = x.detach().clone()
    knobs: dict[str, Any] = {"alpha": alpha, "capturable": is_capturable, **BACKENDS[backend]}
    optimizer = asgld.ASG([x], lr=0.0, prox=prox, **knobs)
    take_steps(optimizer, 2)
    assert torch.equal(x.detach(), before)


@pytest.mark.parametrize("prox", [L1(0.7), L1(1e39), GroupLasso(1e39)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counts_on_a_device_change_no_digit(dtype: torch.dtype, prox: Penalty) -> None:
    """Counts on the CPU are read; those of a device are tensors in the arithmetic."""
    rule = Rule(lr=0.1, alpha=0.0)
    for taken in (0, 1):
        found = []
        for count in (3, torch.tensor(3)):
            x = torch.ones(SHAPE, dtype=dtype)
            draw = noise.Draw(0, count, noise.layout_of(x))
            proximal._shrink(x, 0.1, prox.on(SHAPE), torch.tensor(3 + taken), draw, rule)
            found.append(x)
        torch.testing.assert_close(*found, rtol=torch.finfo(dtype).eps, atol=0.0)
        assert bool((found[0] == 1.0).all()) is (taken == 0)


# ----------------------------------------------------------------------------------------------
# Half precision
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_stochastic_rounding_keeps_small_shrinkage(backend: str) -> None:
    """Shrinking by an eighth of a unit in the last place, 64 times, by 8 units in all.

    A coordinate moves down by one unit with probability 1/8 in each step: the mean of 4,000 has a
    standard error of sqrt(64 * 7/64) / sqrt(4000) = 0.042 units. Five standard errors reject a fair
    rounding once in 1.7 million runs. Rounding to nearest moves nothing.
    """
    unit = 2.0**-7  # of bfloat16 in [1, 2)
    moved = {}
    for stochastic in (False, True):
        x = torch.full((4000,), 1.75, dtype=torch.bfloat16, requires_grad=True)
        optimizer = asgld.ASG(
            [x], lr=1.0, alpha=0.0, prox=L1(unit / 8), stochastic_rounding=stochastic,
            **BACKENDS[backend],
        )  # fmt: skip
        for _ in range(64):
            x.grad = torch.zeros_like(x)
            optimizer.step()
        moved[stochastic] = float((1.75 - x.detach().double()).mean() / unit)
    assert moved[False] == 0.0
    assert abs(moved[True] - 8.0) < 5 * 0.042


def test_second_rounding_has_random_bits_of_its_own() -> None:
    """The first rounding moves by half a unit and so does the second: with the same bits both would
    go up in the same coordinates. Null: independent bits, so half of the coordinates that the first
    moved up move on; 5 standard errors of a fraction of 8,000 are 0.028."""
    unit = 2.0**-7
    paths = []
    for weight in (0.0, unit / 2):
        x = torch.full((16_000,), 1.5, dtype=torch.bfloat16, requires_grad=True)
        optimizer = asgld.ASG([x], lr=1.0, alpha=0.0, prox=L1(weight), stochastic_rounding=True)
        x.grad = torch.full_like(x, -unit / 2)
        optimizer.step()
        paths.append((x.detach().double() - 1.5) / unit)
    first, second = paths[0], paths[1] - paths[0]
    assert set(first.unique().tolist()) == {0.0, 1.0}
    assert set(second.unique().tolist()) == {-1.0, 0.0}
    fraction = float((second[first == 1.0] == 0.0).double().mean())
    assert abs(fraction - 0.5) < 0.028


# ----------------------------------------------------------------------------------------------
# Checkpoints
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_resume_is_bit_exact(backend: str, penalty: str) -> None:
    prox = PENALTIES[penalty][0]
    whole, p = (make_parameters([SHAPE, SHAPE]) for _ in range(2))
    knobs: dict[str, Any] = {"lr": 0.1, "sigma": 0.1, "momentum": 0.5, **BACKENDS[backend]}
    take_steps(asgld.ASGLD(whole, prox=prox, **knobs), 9)
    optimizer = asgld.ASGLD(p, prox=prox, **knobs)
    take_steps(optimizer, 4)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    fresh = asgld.ASGLD(p, **knobs)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert fresh.param_groups[0]["prox"] == prox
    take_steps(fresh, 2, first=4)
    again = copy.deepcopy(fresh)
    take_steps(again, 3, first=6)
    for a, b in zip(again.param_groups[0]["params"], whole, strict=True):
        assert torch.equal(a, b)


def test_state_without_the_knob_goes_on_without_a_penalty() -> None:
    x = make_parameters([(3,)])
    optimizer = asgld.ASGLD(x, prox=L1(0.5))
    state = optimizer.state_dict()
    del state["param_groups"][0]["prox"]
    with pytest.warns(UserWarning, match="prox"):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["prox"] is None


def test_state_with_a_penalty_that_does_not_fit_is_refused() -> None:
    optimizer = asgld.ASGLD(make_parameters([(3,)]))
    before = helpers.snapshot(optimizer)
    state = optimizer.state_dict()
    state["param_groups"][0]["prox"] = L1(torch.ones(4))
    with pytest.raises(ValueError, match="weight of shape"):
        optimizer.load_state_dict(state)
    helpers.assert_equal(helpers.snapshot(optimizer), before)


# ----------------------------------------------------------------------------------------------
# Refusals
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knobs", "match"),
    [
        ({"shape": "row"}, "shape"),
        ({"shape": "polar", "momentum": 0.9, "beta": 0.0, "sigma": 0.0}, "shape"),
        ({"maximize": True}, "maximize"),
        ({"differentiable": True}, "differentiable"),
    ],
)
def test_knobs_that_do_not_go_with_a_penalty(knobs: dict[str, Any], match: str) -> None:
    x = make_tensor(3, 3, seed=0).requires_grad_()
    with pytest.raises(ValueError, match=f"{match} .*with prox"):
        asgld.ASGLD([x], prox=L1(0.1), **knobs)
    optimizer = asgld.ASGLD([x], **knobs)
    before = helpers.snapshot(optimizer)
    optimizer.param_groups[0]["prox"] = before[0]["prox"] = L1(0.1)
    x.grad = torch.ones_like(x)
    with pytest.raises(ValueError, match="with prox"):
        optimizer.step()
    helpers.assert_equal(helpers.snapshot(optimizer), before)


@pytest.mark.parametrize(
    "value", ["l1", 0.1, L1, torch.nn.functional.softshrink, np.array([1.0, 2.0]), torch.ones(2)]
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_no_penalty_is_refused(backend: str, value: Any) -> None:
    with pytest.raises(TypeError, match="prox"):
        asgld.ASGLD(make_parameters([(2,)]), prox=value, **BACKENDS[backend])
    optimizer = asgld.ASGLD(make_parameters([(2,)]), prox=L1(0.1), **BACKENDS[backend])
    take_steps(optimizer, 1)
    optimizer.param_groups[0]["prox"] = value
    with pytest.raises(TypeError, match="Invalid prox value"):
        take_steps(optimizer, 1)


@pytest.mark.parametrize(
    ("x", "prox", "match"),
    [
        (torch.zeros(2, dtype=torch.complex64), L1(0.1), "complex64"),
        (torch.zeros(2), L1([0.1, 0.2, 0.3]), "weight of shape"),
        (torch.zeros(2), GroupLasso(0.1), "groups=None"),
        (torch.zeros(2, 2), GroupLasso([0.1]), "weight of 1 groups"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_that_a_penalty_does_not_fit(
    backend: str, x: Tensor, prox: Penalty, match: str
) -> None:
    x = x.clone().requires_grad_()
    with pytest.raises(ValueError, match=f"parameter 0 of group 0.*{match}"):
        asgld.ASGLD([x], prox=prox, **BACKENDS[backend])
    optimizer = asgld.ASGLD([x], **BACKENDS[backend])
    x.grad = torch.ones_like(x)
    optimizer.param_groups[0]["prox"] = prox
    with pytest.raises(ValueError, match=match):
        optimizer.step()
    assert not x.detach().any()
    assert int(optimizer.state[x]["step"]) == 0


def test_state_with_an_illegal_weight_is_refused() -> None:
    optimizer = asgld.ASGLD(make_parameters([(3,)]), prox=L1(1.0))
    before = helpers.snapshot(optimizer)
    state = optimizer.state_dict()
    state["param_groups"][0]["prox"] = copy.deepcopy(L1(1.0))
    vars(state["param_groups"][0]["prox"])["weight"] = -5.0
    with pytest.raises(ValueError, match=r"weight=-5\.0"):
        optimizer.load_state_dict(state)
    helpers.assert_equal(helpers.snapshot(optimizer), before)


def test_network_matrices_take_no_penalty() -> None:
    with pytest.raises(ValueError, match=r"shape='coordinate', or .*network_groups\(model, prox="):
        asgld.NetworkASGLD(helpers.make_model(), prox=L1(0.1))
    by_coordinate = asgld.NetworkASGLD(helpers.make_model(), shape="coordinate", prox=L1(0.1))
    assert all(group["prox"] == L1(0.1) for group in by_coordinate.param_groups)


# ----------------------------------------------------------------------------------------------
# Shards
# ----------------------------------------------------------------------------------------------


def test_shards_of_groups(tmp_path: Path) -> None:
    """Rows that lie whole on their ranks give the bits of one process, without a message; groups
    that shards may cut, and weights that must be cut, are refused on every rank."""
    run_ranks(shard_rows, 2, tmp_path)
    x = make_tensor(7, 5, seed=0).requires_grad_()
    optimizer = asgld.ASGLD([x], lr=0.3, sigma=0.2, prox=GroupLasso(2.5), seed=11)
    take_steps(optimizer, 4)
    rows = (x.detach() == 0.0).all(1)
    assert rows.any()
    assert not rows.all()
    for rank in range(2):
        seen = torch.load(tmp_path / f"rank-{rank}.pt", weights_only=True)
        assert torch.equal(seen["rows"], x.detach())
        assert seen["messages"] == 0
        for name in ("columns", "numbered", "weights"):
            assert "is sharded along dimension" in seen[name]
        for name in ("sharded weights", "sharded groups"):
            assert "is a DTensor" in seen[name]
