"""The C kernel with decay, momentum, clip and annealing: against the loop, and cut up otherwise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers import EXPONENTS as ALL_EXPONENTS
from helpers import FORMS, WIDER, make_parameters, take_kernel_step, take_steps
from native_cases import KNOBS, NEEDS_KERNEL, STEP, STREAM, draw, problem, step
from torch import Tensor

import asgld
from asgld.noise import Layout
from asgld.optim import _native, functional
from asgld.optim.functional import Tensors
from asgld.optim.rule import Rule

pytestmark = NEEDS_KERNEL

# Of the terms of an update, in units of the last place: normals, powers and a few roundings, of the
# kernel and of the loop.
ULP = 24


def wide_problem(
    count: int, dtype: torch.dtype = torch.float32, sum_dtype: torch.dtype | None = None
) -> list[Tensor]:
    """Return a parameter, its gradient, its sum of squares and its momentum."""
    working = torch.float64 if dtype == torch.float64 else torch.float32
    return [*problem(count, dtype, sum_dtype), draw(count, seed=5, dtype=working)]


def copies(tensors: list[Tensor]) -> list[Tensor]:
    return [t.clone() for t in tensors]


def loop_step(tensors: list[Tensor], *, k: int = STEP, **knobs: Any) -> None:
    param, grad, total, momentum = tensors
    rule = Rule(**{**KNOBS, "maximize": False, "stochastic_rounding": False, **knobs})
    layout = Layout.whole(param.numel())
    momenta = [momentum if rule.momentum else None]
    columns = ([param], [grad], [total], [torch.tensor(k)], [STREAM], [layout], momenta)
    functional.asgld(Tensors(*columns), rule)


def assert_step_is_the_loops(
    start: list[Tensor], k: int = STEP, grad_factor: float = 1.0, **knobs: Any
) -> None:
    """Compare to `ULP` units of the last place of the largest term, in the dtypes of the state."""
    ours, loop, quiet = copies(start), copies(start), copies(start)
    ours[1] *= grad_factor
    step(*ours, k=k, grad_scale=grad_factor, **knobs)
    loop_step(loop, k=k, **knobs)
    loop_step(quiet, k=k, **{**knobs, "sigma": 0.0, "stochastic_rounding": False})
    (x, _, s, m), (old, _, _, old_m) = ([t.double() for t in them] for them in (loop, start))
    drifted = quiet[0].double()
    sizes = {
        0: 1.0 + old.abs() + (drifted - old).abs() + (x - drifted).abs() + old_m.abs(),
        2: s.abs(),
        3: old_m.abs() + m.abs(),
    }
    for column, size in sizes.items():
        mine, theirs = ours[column], loop[column]
        error = (mine.double() - theirs.double()).abs()
        if mine.dtype in (torch.bfloat16, torch.float16):
            # Of results that agree to a few ulp of float32, few fall on two sides of a boundary.
            unit = torch.finfo(mine.dtype).eps * theirs.double().abs().clamp(min=1e-4)
            assert (error <= unit).all()
            assert (mine != theirs).double().mean() < 0.01
        else:
            assert (error <= ULP * torch.finfo(mine.dtype).eps * size).all()


@pytest.mark.parametrize("k", [0, 1, 1000])
@pytest.mark.parametrize("name", WIDER)
@pytest.mark.parametrize(("dtype", "sum_dtype", "is_random"), FORMS)
def test_native_wider_step_is_the_loop(
    dtype: torch.dtype, sum_dtype: torch.dtype, is_random: bool, name: str, k: int
) -> None:
    start = wide_problem(2500, dtype, sum_dtype)
    assert_step_is_the_loops(start, k, stochastic_rounding=is_random, **WIDER[name])


@pytest.mark.parametrize(("alpha", "beta"), ALL_EXPONENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_native_wider_step_is_the_loop_for_all_exponents(
    dtype: torch.dtype, alpha: float, beta: float
) -> None:
    for count in (1, 33, 700):
        assert_step_is_the_loops(wide_problem(count, dtype), alpha=alpha, beta=beta, **WIDER["all"])


@pytest.mark.parametrize("name", WIDER)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "knobs",
    [
        {"weight_decay": 0.1},
        {"maximize": True},
        {"weight_decay": 0.1, "maximize": True, "grad_factor": 1024.0},
        {"sigma": 0.0},
        {"lr": 0.0},
        {"beta": math.inf},
    ],
    ids=str,
)
def test_native_wider_step_obeys_the_other_knobs(
    knobs: dict[str, Any], dtype: torch.dtype, name: str
) -> None:
    assert_step_is_the_loops(wide_problem(515, dtype), **WIDER[name], **knobs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_native_first_gradient_only_fills_the_average(dtype: torch.dtype) -> None:
    sum_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    param, grad, _, momentum = wide_problem(100, dtype)
    total = torch.zeros(100, dtype=sum_dtype)
    momentum.zero_()
    before = param.clone()
    step(param, grad, total, momentum, k=0, weight_decay=0.1, **WIDER["all"])
    assert torch.equal(param, before)
    assert not momentum.any()
    torch.testing.assert_close(total, (1 - WIDER["all"]["decay"]) * grad.to(sum_dtype).square())


@pytest.mark.parametrize("exponent", [0.3, 0.7, 1.3, 1.9])
def test_native_wider_powers_cover_all_floats(exponent: float) -> None:
    """Within 8 ulp, whatever the metric: a D that forgets may be as small as a float can be."""
    normal = [m * 2.0**e for e in range(-126, 127) for m in (1.0, 1.2, 1.499, 1.5, 1.9)]
    total = torch.tensor([0.0, 1e-42, *normal, 3e38, math.inf, math.nan])
    param, grad = torch.zeros_like(total), torch.full_like(total, -1.0)
    decay, k = 0.5, 100  # which needs no correction
    metric = total.double().numpy()
    step(
        param, grad, total,
        lr=1.0, sigma=0.0, alpha=exponent, decay=decay, d_init=0.0, delta=0.0, k=k,
    )  # fmt: skip
    with np.errstate(divide="ignore"):
        powers = torch.from_numpy(metric ** (-exponent / 2)).float()  # the largest overflow
    powers[metric == math.inf] = math.nan  # an infinite D must show
    torch.testing.assert_close(param, powers, rtol=8 * 2.0**-24, atol=0, equal_nan=True)


def test_native_clip_keeps_what_is_not_a_number() -> None:
    for dtype in (torch.float32, torch.float64):
        for build in _native.available_builds():
            _native.set_build(build)
            param, grad, total, _ = wide_problem(40, dtype)
            grad[7], grad[8], grad[9] = math.nan, math.inf, -math.inf
            step(param, grad, total, clip=0.0, sigma=0.0)
            assert param.isnan().nonzero().flatten().tolist() == [7]


@pytest.mark.parametrize("name", WIDER)
@pytest.mark.parametrize(("dtype", "sum_dtype", "is_random"), FORMS)
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.7, 1.3), (2.0, 0.0)])
def test_native_builds_give_the_same_bits_for_the_wider_rule(
    alpha: float,
    beta: float,
    dtype: torch.dtype,
    sum_dtype: torch.dtype,
    is_random: bool,
    name: str,
) -> None:
    knobs = {"alpha": alpha, "beta": beta, "weight_decay": 0.1, **WIDER[name]}
    results = []
    for build in _native.available_builds():
        _native.set_build(build)
        tensors = wide_problem(1501, dtype, sum_dtype)
        step(*tensors, stochastic_rounding=is_random, **knobs)
        results.append(tensors)
    for tensors in results[1:]:
        assert all(map(torch.equal, tensors, results[0]))


@pytest.mark.parametrize(("dtype", "sum_dtype", "is_random"), FORMS)
def test_native_wider_step_is_independent_of_threads_and_order(
    dtype: torch.dtype, sum_dtype: torch.dtype, is_random: bool
) -> None:
    counts, ks = [40_001, 5, 0, 30_000, 129], [3, 0, 1, 3, 1000]
    knobs = {**KNOBS, "stochastic_rounding": is_random, **WIDER["all"]}
    results = []
    for threads, order in ((1, range(5)), (2, range(5)), (3, reversed(range(5)))):
        torch.set_num_threads(threads)
        order = list(order)
        tensors = [wide_problem(count, dtype, sum_dtype) for count in counts]
        params, grads, sums, momenta = ([tensors[i][column] for i in order] for column in range(4))
        streams, steps = order, [ks[i] for i in order]
        taken = take_kernel_step(
            _native.CpuTable, params, grads, sums, streams, steps, None, momenta, **knobs
        )
        assert taken == [k + 1 for k in steps]
        results.append([t for column in tensors for t in column])
    for other in results[1:]:
        assert all(map(torch.equal, other, results[0]))


@pytest.mark.parametrize("build", _native.available_builds())
@pytest.mark.parametrize(("dtype", "sum_dtype", "is_random"), FORMS)
def test_native_wider_shards_are_parts_of_the_whole(
    build: str, dtype: torch.dtype, sum_dtype: torch.dtype, is_random: bool
) -> None:
    """Columns of a matrix, and unaligned runs of its rows."""
    _native.set_build(build)
    rows, columns = 7, 191
    start = wide_problem(rows * columns, dtype, sum_dtype)
    whole = copies(start)
    knobs = {"stochastic_rounding": is_random, "alpha": 0.7, **WIDER["all"]}
    step(*whole, **knobs)
    for width in (1, 5, 33, 90):
        for at in range(0, columns, width):
            across = slice(at, at + width)
            shard = [t.view(rows, columns)[:, across].contiguous() for t in start]
            step(*shard, layout=(at, shard[0].shape[1], columns), **knobs)
            for mine, theirs in zip(shard, whole, strict=True):
                assert torch.equal(mine, theirs.view(rows, columns)[:, across])
    for at in range(0, rows * columns, 301):
        piece = [t[at : at + 301].clone() for t in start]
        step(*piece, layout=(at, 301, 0), **knobs)
        assert all(
            torch.equal(mine, t[at : at + 301]) for mine, t in zip(piece, whole, strict=True)
        )


@pytest.mark.parametrize("build", _native.available_builds())
@pytest.mark.parametrize(("dtype", "sum_dtype", "is_random"), FORMS)
def test_native_wider_step_stays_in_its_tensors(
    build: str, dtype: torch.dtype, sum_dtype: torch.dtype, is_random: bool
) -> None:
    """NaN around a tensor neither leaks into it nor is written over."""
    _native.set_build(build)
    for count in (0, 1, 5, 31, 32, 45, 300):
        for begin in (1, 8, 19):
            values = wide_problem(count, dtype, sum_dtype)
            framed = [torch.full((count + 64,), math.nan, dtype=t.dtype) for t in values]
            inner = [t[begin : begin + count] for t in framed]
            for tensor, value in zip(inner, values, strict=True):
                tensor.copy_(value)
            knobs = {"stochastic_rounding": is_random, **WIDER["all"]}
            step(*inner, layout=(begin, count, 0), **knobs)
            for tensor, part in zip(framed, inner, strict=True):
                assert part.isfinite().all()
                assert tensor.isnan().sum() == 64


@pytest.mark.parametrize("name", WIDER)
def test_native_kernel_serves_optimizers_with_the_wider_rule(name: str) -> None:
    knobs = {"lr": 0.05, "sigma": 0.1, "weight_decay": 0.1, "maximize": True, **WIDER[name]}
    paths = []
    for backend in ({}, {"foreach": True}):
        params = make_parameters([(7, 5), (3,), (300,)])
        optimizer = asgld.ASGLD(params, **knobs, **backend)
        paths.append(params)
        assert optimizer.backends[0].name == ("foreach" if backend else "fused")
        take_steps(optimizer, 10)
    for ours, theirs in zip(*paths, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
