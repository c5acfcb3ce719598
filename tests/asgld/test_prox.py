"""Penalties: proximal steps against brute force, derivatives, and plain data."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor

from asgld.prox import L1, BoundPenalty, ElasticNet, GroupLasso, Penalty

SHAPE = (3, 4)
D = 12
_WEIGHTS = torch.linspace(0.0, 1.1, D, dtype=torch.float64).reshape(SHAPE)
_GROUPS = torch.tensor([[0, 2, -1, 0], [1, 1, 2, -1], [2, 2, 0, 4]])
PENALTIES: dict[str, Penalty] = {
    "l1": L1(0.7),
    "l1-weights": L1(_WEIGHTS),
    "elastic": ElasticNet(0.4, 1.3),
    "elastic-weights": ElasticNet(_WEIGHTS, _WEIGHTS.flip(0)),
    "ridge": ElasticNet(0.0, 0.5),
    "rows": GroupLasso(0.9),
    "rows-weights": GroupLasso([0.0, 0.5, 1.5]),
    "groups": GroupLasso(0.8, _GROUPS),
    "groups-weights": GroupLasso([0.3, 0.0, 1.2, 9.0, 0.6], _GROUPS),
}
each_penalty = pytest.mark.parametrize("penalty", PENALTIES.values(), ids=PENALTIES.keys())


def _normals(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _uneven(seed: int, *shape: int) -> Tensor:
    """Return steps between about 0.01 and 30."""
    return (1.5 * _normals(seed, *shape)).exp()


def _literal(penalty: Penalty, x: np.ndarray) -> float:
    """Return g(x) as its definition reads."""
    if isinstance(penalty, GroupLasso):
        rows = np.repeat(np.arange(SHAPE[0]), SHAPE[1])
        index = rows if penalty.groups is None else penalty.groups.numpy().ravel()
        number = index.max() + 1
        weights = np.broadcast_to(np.asarray(penalty.weight), number)
        return sum(weights[g] * float(np.linalg.norm(x[index == g])) for g in range(number))
    if isinstance(penalty, ElasticNet):
        l1, l2 = (np.broadcast_to(np.asarray(w), SHAPE).ravel() for w in (penalty.l1, penalty.l2))
        return float(np.sum(l1 * np.abs(x) + l2 / 2 * x * x))
    assert isinstance(penalty, L1)
    return float(np.sum(np.broadcast_to(np.asarray(penalty.weight), SHAPE).ravel() * np.abs(x)))


@each_penalty
def test_value_is_the_definition(penalty: Penalty) -> None:
    x = _normals(0, 5, D)
    expected = [_literal(penalty, row.numpy()) for row in x]
    np.testing.assert_allclose(penalty.on(SHAPE).value(x).numpy(), expected, rtol=1e-14)


@each_penalty
@pytest.mark.parametrize("seed", range(4))
def test_step_minimizes(penalty: Penalty, seed: int) -> None:
    """No point that brute force finds, from several starts, has a lower value."""
    x, step = _normals(seed, D), _uneven(seed + 100, D)

    def objective(u: np.ndarray) -> float:
        return _literal(penalty, u) + float(np.sum((u - x.numpy()) ** 2 / (2 * step.numpy())))

    found = penalty.on(SHAPE).shrink(x, step).numpy()
    for start in (found, x.numpy(), 0.5 * x.numpy()):
        result = optimize.minimize(objective, start, method="Powell", options={"ftol": 1e-15})
        assert objective(found) <= result.fun + 1e-12 * abs(result.fun)
        # The objective is strongly convex with modulus 1 / step, so its values bound distances.
        excess = max(result.fun - objective(found), 0.0)
        distance = float(np.sum((result.x - found) ** 2 / (2 * step.numpy())))
        assert distance <= excess + 1e-12


@each_penalty
@pytest.mark.parametrize("steps", ["one", "equal", "uneven", "extreme"])
def test_step_satisfies_its_optimality_condition(penalty: Penalty, steps: str) -> None:
    """(x - u) / step is a subgradient of g at u: the gradient on free entries, and within the
    slack of the kink on others."""
    x = 3.0 * _normals(1, 200, D)
    step: float | Tensor = {
        "one": 0.3,
        "equal": torch.full((D,), 0.3, dtype=torch.float64),
        "uneven": _uneven(2, 200, D),
        "extreme": (8.0 * _normals(3, 200, D)).exp(),
    }[steps]
    bound = penalty.on(SHAPE)
    u = bound.shrink(x, step)
    subgradient = (x - u) / step
    free = bound.is_free(u)
    rounding = 1e-13 * (x.abs() / step + 1.0)
    assert ((subgradient - bound.grad(u)).abs() <= rounding)[free].all()
    assert (bound.slack(u, subgradient) >= -1e-13).all()
    assert (u[~free] == 0.0).all()


@each_penalty
def test_step_is_nonexpansive_in_its_metric(penalty: Penalty) -> None:
    x, y, step = _normals(1, 300, D), _normals(2, 300, D), _uneven(3, 300, D)
    bound = penalty.on(SHAPE)
    moved = ((bound.shrink(x, step) - bound.shrink(y, step)) ** 2 / step).sum(-1)
    assert (moved <= ((x - y) ** 2 / step).sum(-1) * (1 + 1e-12)).all()


@each_penalty
def test_replicas_are_independent(penalty: Penalty) -> None:
    x, v, step = _normals(1, 2, 3, D), _normals(2, 2, 3, D), _uneven(3, 2, 3, D)
    x[0, :, :6] = 0.0
    bound = penalty.on(SHAPE)
    calls: list[Callable[..., Tensor]] = [bound.shrink, bound.hvp, bound.slack]
    for call, second in zip(calls, (step, v, v), strict=True):
        whole = call(x, second)
        assert whole.shape == x.shape
        for i, j in np.ndindex(2, 3):
            assert torch.equal(whole[i, j], call(x[i, j], second[i, j]))
    for single in (bound.value, bound.grad, bound.is_free):
        assert torch.equal(single(x)[1, 2], single(x[1, 2]))


@each_penalty
def test_steps_of_zero_move_nothing(penalty: Penalty) -> None:
    x, step = _normals(1, 50, D), _uneven(2, 50, D)
    x[:, ::5] = 0.0
    bound = penalty.on(SHAPE)
    assert torch.equal(bound.shrink(x, 0.0), x)
    assert torch.equal(bound.shrink(x, torch.zeros(D, dtype=x.dtype)), x)
    step[:, ::3] = 0.0
    assert torch.equal(bound.shrink(x, step)[:, ::3], x[:, ::3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@each_penalty
def test_step_of_tiny_and_huge_numbers(penalty: Penalty, dtype: torch.dtype) -> None:
    """The step neither overflows nor divides zero by zero, and stays between 0 and x."""
    bound = penalty.on(SHAPE)
    for exponent in (-30, -12, 0, 12, 25):
        for step in (0.0, 1e-20, 1e-3, 1e8):
            x = 10.0**exponent * _normals(1, 20, D).to(dtype)
            x[:, :5] = 0.0
            u = bound.shrink(x, step)
            assert u.isfinite().all()
            assert (u * x.sign() >= 0.0).all()
            assert (u.abs() <= x.abs() * (1 + 1e-6)).all()
            assert bound.value(x).isfinite().all() or exponent == 25


@each_penalty
def test_single_precision_agrees_with_double(penalty: Penalty) -> None:
    x, step = 2.0 * _normals(1, 500, D), _uneven(2, 500, D)
    bound = penalty.on(SHAPE)
    single = bound.shrink(x.float(), step.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), bound.shrink(x, step), rtol=2e-5, atol=2e-6)


@each_penalty
def test_not_a_number_is_not_hidden(penalty: Penalty) -> None:
    x = _normals(1, D)
    x[1] = math.nan
    assert penalty.on(SHAPE).shrink(x, 0.1)[1].isnan()


def test_l1_is_the_soft_threshold() -> None:
    x = torch.tensor([-2.0, -0.5, 0.0, 0.25, 0.75])
    expected = torch.tensor([-1.5, 0.0, 0.0, 0.0, 0.25])
    assert torch.equal(L1(1.0).on((5,)).shrink(x, 0.5), expected)
    assert torch.equal(ElasticNet(1.0, 2.0).on((5,)).shrink(x, 0.5), expected / 2.0)


def test_group_of_equal_steps_is_the_closed_form() -> None:
    x = _normals(1, 400, 3, 4)
    norm = x.norm(dim=-1, keepdim=True)
    expected = x * (1.0 - 0.9 * 0.5 / norm).clamp(min=0.0)
    shrunk = GroupLasso(0.9).on(SHAPE).shrink(x.flatten(1), 0.5)
    torch.testing.assert_close(shrunk.view_as(x), expected, rtol=1e-14, atol=1e-14)


def test_rows_equal_the_same_groups_by_number() -> None:
    x, step = _normals(1, 40, D), _uneven(2, 40, D)
    numbers = torch.arange(3).repeat_interleave(4).reshape(SHAPE)
    rows, groups = GroupLasso(0.9).on(SHAPE), GroupLasso(0.9, numbers).on(SHAPE)
    torch.testing.assert_close(rows.shrink(x, step), groups.shrink(x, step), rtol=1e-13, atol=0.0)


def test_groups_of_one_entry_are_the_l1_norm() -> None:
    x, step = _normals(1, 100, D), _uneven(2, 100, D)
    single = GroupLasso(0.6, torch.arange(D)).on((D,))
    l1 = L1(0.6).on((D,))
    torch.testing.assert_close(single.shrink(x, step), l1.shrink(x, step), rtol=1e-12, atol=1e-14)
    assert torch.equal(single.is_free(x), l1.is_free(x))


@each_penalty
def test_derivatives_along_the_manifold(penalty: Penalty) -> None:
    """Against central differences of the definition in directions that leave zeros alone."""
    bound = penalty.on(SHAPE)
    x = bound.shrink(_normals(1, D), 0.9)
    free = bound.is_free(x)
    assert torch.equal(bound.grad(x)[~free], torch.zeros(int((~free).sum()), dtype=x.dtype))
    for seed in range(5):
        v = torch.where(free & (x != 0.0), _normals(2 + seed, D), 0.0)
        after, before = x + 1e-6 * v, x - 1e-6 * v
        slope = (_literal(penalty, after.numpy()) - _literal(penalty, before.numpy())) / 2e-6
        assert float(bound.grad(x) @ v) == pytest.approx(slope, rel=1e-6, abs=1e-7)
        change = (bound.grad(after) - bound.grad(before)) / 2e-6
        torch.testing.assert_close(bound.hvp(x, v), change, rtol=1e-6, atol=1e-7)
    assert (bound.hvp(x, _normals(2, D))[~free] == 0.0).all()


@each_penalty
def test_fixed_point_shows_in_the_slack(penalty: Penalty) -> None:
    """A point that is stationary does not move, with positive slack where it is at a kink."""
    bound = penalty.on(SHAPE)
    centre = _normals(4, D)
    x = bound.shrink(centre, 1.0)  # minimizes g + |u - centre|^2 / 2
    slack = bound.slack(x, x - centre)
    assert (slack > 0.0).all()
    assert (slack.isinf() == bound.is_free(x)).all()
    torch.testing.assert_close(bound.shrink(x - 0.1 * (x - centre), 0.1), x, rtol=1e-12, atol=1e-13)
    if isinstance(penalty, L1 | GroupLasso):
        assert bound.slack(torch.zeros_like(x), 1e6 * centre).min() < 0.0


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (1, 1, 2)])
def test_odd_shapes(shape: tuple[int, ...]) -> None:
    size = math.prod(shape)
    numbered = GroupLasso(0.5, torch.zeros(shape, dtype=torch.int32))
    penalties: list[Penalty] = [L1(0.5), ElasticNet(0.5, torch.ones(shape)), numbered]
    penalties += [GroupLasso(0.5)] if len(shape) > 1 else []
    for penalty in penalties:
        bound: BoundPenalty = penalty.on(shape)
        x = torch.ones(2, size)
        assert bound.shrink(x, 0.1).shape == x.shape
        assert bound.value(x).shape == (2,)
        assert bound.is_free(x).shape == bound.hvp(x, x).shape == x.shape
        assert bool((bound.value(x) > 0.0).all()) == (size > 0)


def test_entries_without_weight_are_free() -> None:
    zeros = torch.zeros(D)
    assert torch.equal(L1(_WEIGHTS).on(SHAPE).is_free(zeros), _WEIGHTS.flatten() == 0.0)
    assert torch.equal(GroupLasso(1.0, _GROUPS).on(SHAPE).is_free(zeros), _GROUPS.flatten() < 0)


@each_penalty
def test_penalties_are_plain_data(penalty: Penalty) -> None:
    again = pickle.loads(pickle.dumps(penalty))
    assert again == penalty
    assert hash(again) == hash(penalty)
    assert again is not penalty
    file = io.BytesIO()
    torch.save({"prox": penalty}, file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["prox"] == penalty
    assert [other for other in PENALTIES.values() if other == penalty] == [penalty]


def test_penalties_keep_their_own_weights() -> None:
    weight = torch.ones(2)
    penalty = L1(weight)
    weight.fill_(3.0)
    assert penalty == L1(torch.ones(2))
    assert L1(np.float64(0.5)) == L1(torch.tensor(0.5)) == L1(0.5)


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf, [1.0, -1.0], [math.nan]])
def test_illegal_weights(weight: object) -> None:
    for make in (L1, lambda w: ElasticNet(1.0, w), lambda w: ElasticNet(w, 1.0), GroupLasso):
        with pytest.raises(ValueError, match="need"):
            make(weight)


def test_illegal_types() -> None:
    with pytest.raises(TypeError, match="weight=True"):
        L1(True)
    with pytest.raises(TypeError, match="weight of"):
        L1(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(TypeError, match="groups of"):
        GroupLasso(1.0, torch.zeros(2))
    with pytest.raises(ValueError, match="groups=-2"):
        GroupLasso(1.0, torch.tensor([0, -2]))
    with pytest.raises(ValueError, match="weight"):
        GroupLasso(torch.ones(2, 2))


@pytest.mark.parametrize(
    ("make", "error", "start"),
    [
        (lambda: L1("a"), TypeError, "weight='a': need a number of at least 0, or a t"),
        (lambda: L1(None), TypeError, "weight=None: need a number of at least 0, or a t"),
        (lambda: ElasticNet(0.1, "a"), TypeError, "l2='a': need a number of at least 0"),
        (lambda: L1([[1.0], [1.0, 2.0]]), ValueError, "weight=[[1.0], [1.0, 2.0]]: need a nu"),
        (lambda: GroupLasso({1.0}), TypeError, "weight={1.0}: need a number of at least 0"),
        (
            lambda: GroupLasso(1.0, [[0, 1], [2, 3, 4]]),
            ValueError,
            "groups=[[0, 1], [2, 3, 4]]: need None, or integers of x's shape",
        ),
        (lambda: L1(10**400), ValueError, "weight=1000"),
        (lambda: GroupLasso(1.0, "rows"), TypeError, "groups='rows': need None, or integers"),
    ],
)
def test_what_is_no_tensor_is_named_and_the_need_told(
    make: Any, error: type[Exception], start: str
) -> None:
    with pytest.raises(error) as raised:
        make()
    assert str(raised.value).startswith(start)
    assert not any(word in str(raised.value) for word in ("ndarray", "dim 1", "inhomogeneous"))


def test_values_of_results_in_any_form() -> None:
    for x in (np.array([3.0, -4.0]), [3, -4], torch.tensor([3, -4])):
        assert float(L1(0.5).value(x)) == 3.5
        assert float(GroupLasso(0.5, [0, 0]).value(x)) == 2.5
    with pytest.raises(TypeError, match="real numbers"):
        L1(0.5).value(torch.zeros(2, dtype=torch.complex64))


def test_a_group_at_its_kink_has_no_gradient() -> None:
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    (grad,) = torch.autograd.grad(GroupLasso(0.5).value(x), x)
    torch.testing.assert_close(grad, torch.tensor([[0.0, 0.0], [0.3, 0.4]]))


def test_lists_and_arrays_are_read_alike() -> None:
    weight: Any = np.array([2, 0.1])[::-1]
    listed: Any = [0.1, 2]
    assert L1(listed) == L1(weight) == L1(torch.tensor(listed, dtype=torch.float64))
    groups: Any = [0, 1, -1]
    backwards: Any = np.array(groups)[::-1]
    assert GroupLasso(1.0, groups) == GroupLasso(1.0, torch.tensor(groups))
    assert GroupLasso(1.0, backwards) == GroupLasso(1.0, torch.tensor(groups).flip(0))


def test_weights_must_fit_the_shape() -> None:
    with pytest.raises(ValueError, match=r"weight of shape \(2,\)"):
        L1(torch.ones(2)).on((3,))
    with pytest.raises(ValueError, match=r"l2 of shape \(2,\)"):
        ElasticNet(1.0, torch.ones(2)).on((2, 1))
    with pytest.raises(ValueError, match=r"groups of shape \(2,\)"):
        GroupLasso(1.0, torch.tensor([0, 1])).on((3,))
    with pytest.raises(ValueError, match="weight of 2 groups: need 3"):
        GroupLasso([1.0, 2.0]).on((3, 2))
    with pytest.raises(ValueError, match="groups=None"):
        GroupLasso(1.0).on((3,))


@pytest.mark.parametrize(
    ("penalty", "name", "value", "match"),
    [
        (L1(1.0), "weight", -5.0, "weight=-5.0"),
        (ElasticNet(1.0, torch.ones(2)), "l2", torch.tensor([1.0, math.nan]), "l2="),
        (GroupLasso(1.0), "weight", torch.tensor([-1.0]), "weight="),
        (GroupLasso(1.0, torch.tensor([0, 1])), "groups", torch.tensor([0, -3]), "groups=-3"),
    ],
)
def test_penalties_from_files_are_checked(
    penalty: Penalty, name: str, value: object, match: str
) -> None:
    vars(penalty)[name] = value
    file = io.BytesIO()
    torch.save(penalty, file)
    file.seek(0)
    with pytest.raises(ValueError, match=match):
        torch.load(file, weights_only=True)
    with pytest.raises(ValueError, match=match):
        copy.deepcopy(penalty)
    with pytest.raises(ValueError, match=match):
        penalty.bound((2,))


def test_copies_and_bound_penalties_share_no_tensor_with_a_penalty() -> None:
    for penalty in (L1(torch.ones(2, 3)), GroupLasso(torch.ones(2)), ElasticNet(0.0, [1.0, 1.0])):
        shape = (2,) if isinstance(penalty, ElasticNet) else (2, 3)
        x = torch.full((math.prod(shape),), 2.0)
        bound, again, shallow = penalty.bound(shape), copy.deepcopy(penalty), copy.copy(penalty)
        assert penalty.bound(shape) is bound
        before = bound.value(x)
        for value in vars(penalty).values():
            if isinstance(value, Tensor):
                value.mul_(4.0)
        assert penalty.has_changed
        assert bound.value(x) == before
        for other in (again, shallow):
            assert not other.has_changed
            assert other.bound(shape).value(x) == before
        with pytest.raises(ValueError, match="set a new penalty"):
            penalty.bound(shape)
        assert penalty.on(shape).value(x) == 4.0 * before  # a new use takes the present weights


@dataclass(frozen=True, eq=False)
class _Own(Penalty):
    strength: Tensor

    def on(self, shape: Sequence[int], *, device: torch.device | None = None) -> BoundPenalty:
        return L1(self.strength).on(shape, device=device)

    def fits_shards(self, cut: set[int]) -> bool:
        return False


class _OwnWithoutFields(Penalty):
    def __init__(self, strength: Tensor) -> None:
        self.strength = strength

    on, fits_shards = _Own.on, _Own.fits_shards


@pytest.mark.parametrize("kind", [_Own, _OwnWithoutFields])
def test_penalties_of_users_are_compared_by_their_content(
    kind: Callable[[Tensor], Penalty],
) -> None:
    strength = torch.zeros(2)
    strength[0] = 1.0  # a write before the first use
    penalty, other = kind(strength), kind(torch.ones(2))
    assert penalty != other
    assert penalty == copy.deepcopy(penalty) == pickle.loads(pickle.dumps(penalty))
    assert penalty.bound((2,)).value(torch.ones(2)) == 1.0
    strength.add_(1.0)
    with pytest.raises(ValueError, match="set a new penalty"):
        penalty.bound((2,))
    assert len({L1(0.1), L1(0.1), L1(0.2)}) == 2
