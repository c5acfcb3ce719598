"""x in any form: it goes in and comes back as it was, and functions see it so."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

import asgld
from asgld.oracle import Oracle
from asgld.oracle.forms import Form, read_start, user_function
from asgld.oracle.functions import Function, UserFunction
from asgld.problems import problem


class Pair(NamedTuple):
    first: Any
    second: Any


# ---------------------------------------------------------------------------- round trips

SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)


def leaves(is_torch: bool) -> Any:
    def build(shape: tuple[int, ...], seed: int) -> Any:
        array = np.random.default_rng(seed).normal(size=shape)
        return torch.from_numpy(np.array(array)) if is_torch else np.array(array)

    return st.builds(build, SHAPES, st.integers(0, 10**6))


def trees(is_torch: bool) -> Any:
    def wider(children: Any) -> Any:
        return st.one_of(
            st.lists(children, min_size=1, max_size=3),
            st.lists(children, min_size=1, max_size=3).map(tuple),
            st.dictionaries(st.sampled_from("abcd"), children, min_size=1, max_size=3),
            st.builds(Pair, children, children),
        )

    return st.recursive(leaves(is_torch), wider, max_leaves=5)


def same(a: Any, b: Any) -> bool:
    (first, spec), (second, other) = tree_flatten(a), tree_flatten(b)
    return spec == other and all(
        type(x) is type(y) and x.shape == y.shape and bool((x == y).all())
        for x, y in zip(first, second, strict=True)
    )


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.booleans().flatmap(trees), st.integers(1, 3))
def test_any_form_comes_back_as_it_was(x0: Any, replicas: int) -> None:
    form, start = read_start(x0)
    assert start.shape == (1, form.dim)
    assert start.dtype == torch.float64
    assert form.dim == sum(int(np.prod(leaf.shape)) for leaf in tree_leaves(x0))
    back = form.to_user(start[0])
    assert same(back, x0)
    assert torch.equal(form.flat(x0), start[0])
    assert torch.equal(form.flat(start[0]), start[0])
    # Nothing is shared: what the user does to one does not reach the other.
    for leaf in tree_leaves(back):
        leaf += 1
    assert same(form.to_user(start[0]), x0)
    # Rows have a leading axis on every array.
    rows = torch.stack([start[0] + i for i in range(replicas)])
    every = form.rows_to_user(rows)
    for i in range(replicas):
        assert torch.equal(form.flat(tree_map(lambda leaf, i=i: leaf[i], every)), rows[i])


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.booleans().flatmap(trees), st.integers(2, 3))
def test_starts_with_a_leading_axis_are_rows(x0: Any, replicas: int) -> None:
    single, start = read_start(x0)
    stack = torch.stack if single.is_torch else np.stack
    many = tree_map(lambda leaf: stack([leaf + i for i in range(replicas)]), x0)
    form, rows = read_start(many, replicas)
    if single.is_single and single.shapes[0] == ():
        return  # a vector is one start
    assert form.shapes == single.shapes
    torch.testing.assert_close(rows, torch.stack([start[0] + i for i in range(replicas)]))


FORMS: dict[str, tuple[Any, tuple[tuple[int, ...], ...], bool]] = {
    "number": (1.5, ((),), False),
    "integer": (2, ((),), False),
    "NumPy scalar": (np.float32(2.0), ((),), False),
    "0-d array": (np.array(2.0), ((),), False),
    "0-d tensor": (torch.tensor(2.0), ((),), True),
    "list": ([1, 2.0], ((2,),), False),
    "tuple of numbers": ((1, np.float64(2)), ((2,),), False),
    "nested list": ([[1, 2], [3, 4], [5, 6]], ((3, 2),), False),
    "integers": (np.arange(3), ((3,),), False),
    "booleans": (np.array([True, False]), ((2,),), False),
    "objects": (np.array([1, 2.5], dtype=object), ((2,),), False),
    "masked": (np.ma.masked_array([1.0, 2.0]), ((2,),), False),
    "reversed view": (np.arange(4.0)[::-2], ((2,),), False),
    "transposed": (torch.arange(6.0).reshape(2, 3).T, ((3, 2),), True),
    "half": (torch.ones(3, dtype=torch.float16), ((3,),), True),
    "bfloat16": (torch.ones(3, dtype=torch.bfloat16), ((3,),), True),
    "integers of torch": (torch.arange(3), ((3,),), True),
    "parameter": (nn.Parameter(torch.ones(2, 2)), ((2, 2),), True),
    "requires grad": (torch.ones(2, requires_grad=True) * 2, ((2,),), True),
    "dict of numbers": ({"a": 1.0, "b": [1, 2]}, ((), (2,)), False),
    "ordered dict": (OrderedDict(a=torch.ones(2)), ((2,),), True),
    "state of a module": (nn.BatchNorm1d(2).state_dict(), ((2,), (2,), (2,), (2,), ()), True),
    "list of tensors": ([torch.ones(2), torch.tensor(1.0)], ((2,), ()), True),
    "tensors and numbers": ({"a": torch.ones(2), "b": 1.0}, ((2,), ()), True),
    "an empty part": ({"a": torch.ones(2), "b": torch.ones(0)}, ((2,), (0,)), True),
}


def snapshot(x0: Any) -> list[Any]:
    parts = tree_leaves(x0)
    return [p.detach().clone() if isinstance(p, Tensor) else np.array(p) for p in parts]


@pytest.mark.parametrize("name", FORMS)
def test_forms_are_read_and_left_alone(name: str) -> None:
    x0, shapes, is_torch = FORMS[name]
    before = snapshot(x0)
    form, start = read_start(x0)
    assert form.shapes == shapes
    assert form.is_torch == is_torch
    start += 1.0
    back = form.to_user(start[0])
    kind = Tensor if is_torch else np.ndarray
    for leaf, shape in zip(tree_leaves(back), shapes, strict=True):
        assert isinstance(leaf, kind)
        assert tuple(leaf.shape) == shape
        assert str(leaf.dtype).endswith("float64")
        assert not getattr(leaf, "requires_grad", False)
    assert all(bool((a == b).all()) for a, b in zip(before, snapshot(x0), strict=True))


class Series:
    """What np.asarray can read, as a data frame's column."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array([1.0, 2.0], dtype=dtype)


def test_what_numpy_can_read_is_an_array() -> None:
    form, start = read_start(Series())
    assert start.tolist() == [[1.0, 2.0]]
    assert isinstance(form.to_user(start[0]), np.ndarray)


@pytest.mark.parametrize(
    ("x0", "replicas", "shapes", "num_rows"),
    [
        (np.zeros(3), 3, ((3,),), 3),  # a vector is one start, whatever its length
        (np.zeros((3, 2)), 3, ((2,),), 3),
        (torch.zeros(3, 2, 2), 3, ((2, 2),), 3),
        (torch.zeros(5, 2, 2), 3, ((5, 2, 2),), 3),
        (np.zeros((3, 2)), None, ((3, 2),), 1),
        (np.zeros((1, 2)), 1, ((2,),), 1),
        (2.0, 4, ((),), 4),
        ({"w": torch.zeros(2, 3), "b": torch.zeros(2)}, 2, ((3,), ()), 2),
        ({"w": torch.zeros(2, 3), "b": torch.zeros(4)}, 2, ((2, 3), (4,)), 2),
        ({"w": torch.zeros(2, 3), "b": 0.0}, 2, ((2, 3), ()), 2),
    ],
)
def test_rows_are_starts_only_with_replicas(
    x0: Any, replicas: int | None, shapes: Any, num_rows: int
) -> None:
    form, start = read_start(x0, replicas)
    assert form.shapes == shapes
    assert start.shape == (num_rows, form.dim)


@pytest.mark.parametrize(
    ("x0", "replicas", "error", "match"),
    [
        ([], None, ValueError, "empty"),
        ({}, None, ValueError, "empty"),
        (np.zeros((2, 0)), None, ValueError, "at least one coordinate"),
        ([1.0, np.nan], None, ValueError, "NaN or infinite"),
        ({"a": torch.tensor(torch.inf)}, None, ValueError, "NaN or infinite"),
        (1j, None, TypeError, "real"),
        (torch.zeros(2, dtype=torch.complex64), None, TypeError, "real"),
        ([[1, 2], [3]], None, TypeError, "regular shape"),
        ("start", None, TypeError, "need numbers"),
        (None, None, TypeError, "need numbers"),
        ([1.0, "a"], None, TypeError, "need numbers"),
        (np.array([{}, 1]), None, TypeError, "need numbers"),
        (torch.eye(2).to_sparse(), None, TypeError, "dense"),
        (np.ma.masked_array([1.0, 2.0], [False, True]), None, ValueError, "masked"),
        ({"a": torch.zeros(2), "b": np.zeros(2)}, None, TypeError, "one kind"),
        ([1.0], 0, ValueError, "replicas=0"),
        ([1.0], 1.5, ValueError, "replicas=1.5"),
        (np.zeros((2, 2)), 3, ValueError, "replicas=3 but x0 has 2 rows"),
    ],
)
def test_starts_without_a_meaning_are_named(
    x0: Any, replicas: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        read_start(x0, replicas)


# ---------------------------------------------------------------------------- functions

TARGET = torch.tensor([0.5, -1.0, 2.0, 0.3, 1.0, -0.7], dtype=torch.float64)


def flat_value(x: Any) -> Any:
    d = x - (TARGET if isinstance(x, Tensor) else TARGET.numpy())
    return (d**2).sum() + d[0] * d[1] / 2 + (d[2:] ** 4).sum()


def flat_of(x: Any) -> Any:
    """Any form with six coordinates, flat, in its own language."""
    parts = tree_leaves(x)
    if isinstance(parts[0], Tensor):
        return torch.cat([part.reshape(-1) for part in parts])
    return np.concatenate([np.reshape(part, -1) for part in parts])


def starts(kind: str) -> Any:
    make = torch.zeros if kind == "torch" else np.zeros
    return {
        "vector": make(6),
        "matrix": make((2, 3)),
        "cube": make((1, 3, 2)),
        "dict": {"w": make((2, 2)), "b": make(2)},
        "nested": [make(1), {"a": (make((1, 2)), make(())), "b": make(2)}],
        "pair": Pair(make(5), make(())),
    }


@pytest.mark.parametrize("form_name", starts("numpy"))
@pytest.mark.parametrize("language", ["torch", "numpy", "numpy with derivatives"])
def test_gradient_steps_reach_the_same_minimum_in_every_form(form_name: str, language: str) -> None:
    kind = language.split()[0]
    x0 = starts(kind)[form_name]
    form, start = read_start(x0)
    expected_types = [type(leaf) for leaf in tree_leaves(x0)]

    def fun(x: Any) -> Any:
        assert tree_flatten(x)[1] == form.spec
        assert tuple(tuple(leaf.shape) for leaf in tree_leaves(x)) == form.shapes
        if language != "numpy":
            assert [type(leaf) for leaf in tree_leaves(x)] == expected_types
        return flat_value(flat_of(x))

    def jac(x: Any) -> Any:
        d = flat_of(x) - TARGET.numpy()
        gradient = 2 * d
        gradient[2:] += 4 * d[2:] ** 3
        gradient[:2] += d[:2][::-1] / 2
        return form.to_user(torch.from_numpy(gradient))

    options = {"jac": jac} if language == "numpy with derivatives" else {}
    function = user_function(fun, form, start, **options)
    x = start
    for _ in range(300):
        x = x - 0.1 * function.grad(x)
    torch.testing.assert_close(x[0], TARGET, rtol=1e-2, atol=2e-2)
    assert same(form.to_user(x[0]), form.to_user(form.flat(form.to_user(x[0]))))
    # The same steps, whatever the form.
    plain, vector = read_start(starts(kind)["vector"])
    other = user_function(flat_value, plain, vector)
    torch.testing.assert_close(other.grad(x), function.grad(x), rtol=1e-5, atol=1e-7)
    v = torch.ones_like(x)
    torch.testing.assert_close(function.hvp(x, v), other.hvp(x, v), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(function.hessian(x), other.hessian(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("form_name", starts("torch"))
@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("is_flat", [True, False])
def test_derivatives_may_come_in_the_form_or_flat(
    form_name: str, kind: str, is_flat: bool, rows: int
) -> None:
    form, start = read_start(starts(kind)[form_name])
    matrix = torch.diag(torch.arange(1.0, 7.0).double()) + 0.1

    def shaped(flat: Any) -> Any:
        if is_flat:
            return flat
        return form.split_tensor(flat) if kind == "torch" else form.split_array(flat)

    own = matrix if kind == "torch" else matrix.numpy()

    def hess(x: Any) -> Any:
        assert tree_flatten(x)[1] == form.spec
        return own if is_flat or not form.is_single else own.reshape(form.shapes[0] * 2)

    x, v = TARGET.repeat(rows, 1), torch.linspace(-1, 1, 6).double().repeat(rows, 1)
    calls: dict[str, Any] = {
        "jac": lambda x: shaped(own @ flat_of(x)),
        "hvp": lambda x, v: shaped(own @ flat_of(v) + 0 * flat_of(x)),
        "hess": hess,
    }
    function = user_function(lambda x: flat_of(x) @ own @ flat_of(x) / 2, form, start, **calls)
    torch.testing.assert_close(function.grad(x), x @ matrix)
    torch.testing.assert_close(function.hvp(x, v), v @ matrix)
    torch.testing.assert_close(function.hessian(x), matrix.expand(rows, 6, 6))
    torch.testing.assert_close(function.value(x), (x @ matrix * x).sum(-1) / 2)


def test_keys_in_another_order_are_put_in_order() -> None:
    form, start = read_start({"w": np.zeros(2), "b": np.zeros(1)})
    function = user_function(
        lambda x: float((x["w"] ** 2).sum() + 3 * x["b"][0]),
        form,
        start,
        jac=lambda x: {"b": [3.0], "w": 2 * x["w"]},
    )
    lone = user_function(lambda x: 1.0, form, start, jac=True)
    with pytest.raises(RuntimeError, match="jac=True: need"):
        lone.grad(start)
    x = torch.tensor([[1.0, 2.0, 5.0]], dtype=torch.float64)
    assert function.grad(x).tolist() == [[2.0, 4.0, 3.0]]


@pytest.mark.parametrize(
    ("jac", "match"),
    [
        (lambda x: {"w": x["w"]}, "form of x"),
        (lambda x: {"w": x["w"], "b": np.zeros(2)}, "a part has shape"),
        (lambda x: np.zeros(2), "form of x"),
        (lambda x: 1.0, "form of x"),
    ],
)
def test_derivatives_in_another_form_are_named(jac: Any, match: str) -> None:
    form, start = read_start({"w": np.zeros(2), "b": np.zeros(1)})
    function = user_function(lambda x: 0.0, form, start, jac=jac)
    with pytest.raises(RuntimeError, match=f"`jac` raised .*{match}"):
        function.grad(start)


def test_a_transposed_gradient_is_an_error() -> None:
    form, start = read_start(np.zeros((2, 3)))
    function = user_function(lambda x: float(x.sum()), form, start, jac=lambda x: np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"`jac`.*\(3, 2\), expected \(6,\)"):
        function.grad(start)


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_arguments_are_appended(kind: str) -> None:
    form, start = read_start(starts(kind)["matrix"])
    data = np.arange(4.0) if kind == "numpy" else torch.arange(4.0).double()

    def fun(x: Any, indices: Any, shift: float, scale: float) -> Any:
        return scale * ((x - shift) ** 2).sum() * data[indices].mean()

    def jac(x: Any, indices: Any, shift: float, scale: float) -> Any:
        return 2 * scale * (x - shift) * data[indices].mean()

    def hvp(x: Any, v: Any, indices: Any, shift: float, scale: float) -> Any:
        return 2 * scale * v * data[indices].mean()

    for given_too in ({}, {"jac": jac, "hvp": hvp}):
        function = user_function(fun, form, start, args=(1.0, 3.0), num_samples=4, **given_too)
        assert isinstance(function, UserFunction)
        tolerance: dict[str, float] = {"rtol": 1e-3, "atol": 1e-3}
        x = torch.full((2, 6), 2.0, dtype=torch.float64)
        torch.testing.assert_close(function.grad(x), 9.0 * torch.ones_like(x), **tolerance)
        indices = torch.tensor([2, 2])
        torch.testing.assert_close(function.grad(x, indices), 6 * x, **tolerance)
        torch.testing.assert_close(function.hvp(x, x, indices), 12 * x, **tolerance)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("form_name", starts("torch"))
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_a_function_may_return_value_and_gradient(form_name: str, kind: str, rows: int) -> None:
    form, start = read_start(starts(kind)[form_name])
    calls = 0

    def both(x: Any, factor: float) -> Any:
        nonlocal calls
        calls += 1
        flat = flat_of(x)
        gradient = form.split_tensor(flat) if kind == "torch" else form.split_array(flat)
        return factor * (flat**2).sum() / 2, tree_map(lambda part: factor * part, gradient)

    function = user_function(both, form, start, jac=True, args=(3.0,))
    assert isinstance(function, UserFunction)
    x = TARGET.repeat(rows, 1)
    value, gradient = function.value_and_grad(x)
    assert calls == (rows if kind == "numpy" else 1)
    torch.testing.assert_close(value, 1.5 * (x * x).sum(-1))
    torch.testing.assert_close(gradient, 3 * x)
    torch.testing.assert_close(function.value(x), value)
    torch.testing.assert_close(function.grad(x), gradient)
    torch.testing.assert_close(function.hvp(x, x), 3 * x)
    assert function.calls == {"fun": calls}


def test_languages_are_recognized_and_the_trial_is_counted() -> None:
    calls = 0

    def half_torch(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return x[0] ** 2 + float(x[1] - 1) ** 2  # runs on tensors, loses half of the gradient

    def in_torch(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return torch.cos(x).sum()

    def in_numpy(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return float(np.cos(x).sum())

    for scale in (1e-8, 1.0, 1e6):
        for fun, note in (
            (half_torch, "central differences of values"),
            (in_torch, "autograd of `fun`"),
            (in_numpy, "central differences of values"),
        ):
            calls = 0
            form, start = read_start([0.3 * scale, 0.4 * scale])
            function = user_function(lambda x, f=fun, s=scale: f(x / s), form, start)
            assert isinstance(function, UserFunction)
            function.grad(start)
            assert function.notes["grad"] == note
            assert function.calls["fun"] == calls


@pytest.mark.parametrize("x0", [[-1.0, 2.0], np.array([-1.0, 2.0]), torch.tensor([-1.0, 2.0])])
@pytest.mark.parametrize("fun", [lambda x: torch.log(x).sum(), lambda x: x.log().sum()])
def test_a_torch_function_is_one_outside_its_domain_too(fun: Any, x0: Any) -> None:
    with pytest.raises(
        ValueError, match=r"not finite at x0 = \[-1\.  2\.\]: choose a start inside"
    ):
        asgld.minimize(fun, x0)


def test_a_numpy_function_is_one_outside_its_domain_too() -> None:
    for fun in (
        lambda x: float(np.log(x).sum()),
        lambda x: float(np.where(x < 0, np.inf, x).sum()),
    ):
        function = user_function(fun, *read_start([-1.0, 2.0]))
        assert isinstance(function, UserFunction)
        with np.errstate(invalid="ignore"):
            function.grad(torch.tensor([[1.0, 2.0]], dtype=torch.float64))
        assert function.notes["grad"] == "central differences of values"


def test_problems_pass_and_bring_their_own_derivatives() -> None:
    p = problem("monkey-saddle")
    form, start = read_start(np.zeros(2))
    assert user_function(p, form, start) is p
    assert isinstance(p, Function)
    for option in ({"jac": max}, {"num_samples": 3}, {"args": (1,)}):
        with pytest.raises(ValueError, match="come with the problem"):
            user_function(p, form, start, **option)
    with pytest.raises(TypeError, match="fun=3"):
        user_function(3, form, start)
    with pytest.raises(TypeError, match="jac='2-point'"):
        user_function(max, form, start, jac="2-point")


def test_a_module_in_float32_is_a_function_of_its_parameters() -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    inputs, targets = torch.randn(20, 2), torch.randn(20, 1)
    weights = dict(model.named_parameters())
    before = {name: value.detach().clone() for name, value in weights.items()}

    def loss(x: dict[str, Tensor]) -> Tensor:
        return nn.functional.mse_loss(torch.func.functional_call(model, x, (inputs,)), targets)

    form, start = read_start(weights)
    function = user_function(loss, form, start)
    oracle = Oracle(function)
    x = start
    for _ in range(500):
        x = x - 0.1 * oracle.grad(x)
    design = torch.cat((inputs, torch.ones(20, 1)), 1).double()
    best = torch.linalg.lstsq(design, targets.double()).solution[:, 0]
    torch.testing.assert_close(form.flat(form.to_user(x[0])), best, rtol=1e-4, atol=1e-4)
    assert isinstance(function, UserFunction)
    assert function.unit_roundoff == 2**-23
    assert set(form.to_user(x[0])) == {"weight", "bias"}
    assert all(torch.equal(weights[name], before[name]) for name in before)
    assert all(value.grad is None for value in weights.values())


def test_a_form_says_what_it_is() -> None:
    form, _ = read_start(np.zeros((2, 3)))
    assert isinstance(form, Form)
    assert (form.dim, form.is_single, form.is_vector) == (6, True, False)
    assert read_start([0.0])[0].is_vector
    assert not read_start({"a": [0.0]})[0].is_single
    with pytest.raises(ValueError, match="need"):
        form.flat(np.zeros(5))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_tensors_on_a_gpu_stay_there_for_the_user() -> None:
    device = torch.device("cuda", 0)
    x0 = {"w": torch.ones(2, 2, device=device), "b": torch.zeros(3)}
    form, start = read_start(x0)
    assert start.device.type == "cpu"

    def fun(x: dict[str, Tensor]) -> Tensor:
        assert (x["w"].device, x["b"].device.type) == (device, "cpu")
        return (x["w"] ** 4).sum() + x["w"].sum() * x["b"].to(device).sum()

    function = user_function(fun, form, start)
    rows = start + torch.arange(3.0).double()[:, None]
    for x in (start, rows):
        value, gradient = function.value_and_grad(x)
        ahead = 4 * x[:, :4] ** 3 + x[:, 4:].sum(-1, keepdim=True)
        torch.testing.assert_close(gradient[:, :4], ahead)
        torch.testing.assert_close(gradient[:, 4:], x[:, :4].sum(-1, keepdim=True).expand(-1, 3))
        assert value.device.type == "cpu"
        assert function.hessian(x).shape == (len(x), 7, 7)
        torch.testing.assert_close(function.hvp(x, x)[:, 4:], gradient[:, 4:])
    back = form.to_user(start[0])
    assert back["w"].device == device
    assert torch.equal(form.flat(back), start[0])
    vector, start = read_start(torch.ones(3, device=device))
    plain = user_function(lambda x: (x**2).sum(), vector, start, jac=lambda x: 2 * x)
    assert plain.grad(start).tolist() == [[2.0, 2.0, 2.0]]
