"""The GPU kernel against the loop: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import itertools
import os
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    EXPONENTS,
    FORMS,
    RULE,
    WIDER,
    assert_plan_follows_what_changes,
    make_parameters,
    make_tensor,
    pairwise,
    take_kernel_step,
    take_steps,
)
from torch import Tensor

import asgld
from asgld import noise
from asgld.noise import Layout
from asgld.optim import _native, functional
from asgld.optim.functional import Tensors
from asgld.optim.rule import Rule

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)
IS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if IS_GPU else "cpu"
if not IS_GPU:  # the kernels are bound to the interpreter when they are defined
    os.environ["TRITON_INTERPRET"] = "1"
try:
    from asgld.optim import _triton
finally:
    if not IS_GPU:
        del os.environ["TRITON_INTERPRET"]


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    if not IS_GPU:
        monkeypatch.setenv("TRITON_INTERPRET", "1")


SEED, STREAM, STEP = 2**63 + 12345, 2**32 - 7, 41
# Without a GPU a fused multiply-add is two roundings, which near u = 1 costs the logarithm bits.
NORMAL_ULP = 5 if IS_GPU else None
# Of the largest term of an update: normals, powers by exp2 and log2, and four roundings.
ULP = 24


def problem(
    *shape: int, dtype: torch.dtype = torch.float32, sum_dtype: torch.dtype | None = None
) -> list[Tensor]:
    """Return a parameter, its gradient, its sum of squares and its momentum."""
    double = dtype == torch.float64
    return [
        make_tensor(*shape, seed=1, dtype=dtype).to(DEVICE),
        make_tensor(*shape, seed=2, dtype=dtype).to(DEVICE),
        make_tensor(*shape, seed=3).square().to(DEVICE, sum_dtype or dtype),
        make_tensor(*shape, seed=4).to(DEVICE, torch.float64 if double else torch.float32),
    ]


def kernel_step(
    tensors: list[Tensor], *, row: tuple[int, int, int] | None = None, k: int = STEP, **knobs: Any
) -> None:
    param, grad, total, momentum = tensors
    momenta = [momentum] if knobs.get("momentum") else None
    knobs = {"seed": SEED, **knobs}
    take_kernel_step(
        _triton.GpuTable, [param], [grad], [total], [STREAM], [k], [row], momenta, **knobs
    )


def loop_step(
    tensors: list[Tensor], *, layout: Layout | None = None, k: int = STEP, **knobs: Any
) -> None:
    param, grad, total, momentum = tensors
    layouts = [layout or Layout.whole(param.numel())]
    momenta = [momentum if knobs.get("momentum") else None]
    tensors_of = Tensors([param], [grad], [total], [torch.tensor(k)], [STREAM], layouts, momenta)
    functional.asgld(tensors_of, Rule(**{**RULE, "seed": SEED, **knobs}))


def assert_close(
    ours: list[Tensor], loop: list[Tensor], start: Tensor, is_random: bool = False
) -> None:
    """Parameters to ULP units of the largest term, sums to a rounding, momenta likewise."""
    for mine, theirs, name in zip(ours, loop, ("x", "g", "S", "m"), strict=True):
        if mine.dtype in (torch.bfloat16, torch.float16):
            # Of results that agree to a few ulp of float32, few fall on two sides of a boundary.
            wide = (mine.double() - theirs.double()).abs()
            unit = torch.finfo(mine.dtype).eps * theirs.double().abs().clamp(min=1e-3)
            assert (wide <= unit).all(), name
            # The interpreter cuts off where a GPU rounds to nearest.
            is_cut_off = mine.dtype == torch.bfloat16 and not IS_GPU and not is_random
            assert is_cut_off or (mine != theirs).float().mean() < 0.01, name
        else:
            size = theirs.abs().clamp(min=1.0) + (
                start.abs().to(theirs.dtype) if name == "x" else 0
            )
            unit = torch.finfo(mine.dtype).eps
            assert ((mine - theirs).abs() <= ULP * unit * size).all(), name


def copies(tensors: list[Tensor]) -> list[Tensor]:
    return [t.clone() for t in tensors]


# ----------------------------------------------------------------------------------------------
# Normals, as a step shows them
# ----------------------------------------------------------------------------------------------


def normals(start: int, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the kernel's normals: from x = 0 and g = 0 a step leads to sqrt(2 lr) sigma z = z."""
    tensors = [torch.zeros(count, dtype=dtype, device=DEVICE) for _ in range(4)]
    knobs = {"lr": 0.5, "sigma": 1.0, "alpha": 0.0, "beta": 0.0}
    kernel_step(tensors, row=(start, count, 0), **knobs)
    return tensors[0]


@pytest.mark.parametrize("start", [0, 2**36 - 512, 7, 2**35 + 3])
def test_triton_normals_are_made_of_the_words_of_the_contract(start: int) -> None:
    """A wrong word is a normal that has nothing to do with the right one."""
    exact = noise.normal(SEED, STREAM, STEP, np.arange(start, start + 1500, dtype=np.uint64))
    np.testing.assert_allclose(normals(start, 1500).cpu(), exact, rtol=0, atol=1e-5)
    doubles = normals(start, 1500, torch.float64).cpu()
    np.testing.assert_allclose(doubles, exact, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("start", [0, 2**36 - 512, 7])
def test_triton_rounds_by_the_words_of_the_contract(start: int, dtype: torch.dtype) -> None:
    """Bit by bit what the contract says, for a parameter and for its sum."""
    param, grad, total, _ = problem(1500, dtype=dtype, sum_dtype=torch.bfloat16)
    knobs = {"alpha": 0.0, "sigma": 0.0, "lr": 0.5}
    words = noise.words(SEED, STREAM, STEP, np.arange(start, start + 1500, dtype=np.uint64), 1)
    word = torch.from_numpy(words.astype(np.int64)).to(DEVICE)
    wide = [param.float() - 0.5 * grad.float(), total.float() + grad.float() ** 2]
    kernel_step(
        [param, grad, total, total], row=(start, 1500, 0), stochastic_rounding=True, **knobs
    )
    for stored, value, half in zip((param, total), wide, (word, word >> 16), strict=True):
        assert torch.equal(stored, noise.round_stochastically(value, half, stored.dtype))


def exact_normals(count: int) -> np.ndarray:
    """Normals in double precision of the uniforms that float32 holds."""
    word = noise.words(SEED, STREAM, STEP, np.arange(count))
    uniform = (word[0::2] >> 1).astype(np.float32) * np.float32(2.0**-31) + np.float32(2.0**-32)
    angle = word[1::2].view(np.int32).astype(np.float32).astype(np.float64) * 2.0**-31 * np.pi
    radius = np.sqrt(-2.0 * np.log(uniform.astype(np.float64)))
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1).ravel()


def test_triton_normals_are_accurate() -> None:
    count = 2_000_000 if IS_GPU else 4096
    exact = exact_normals(count)
    error = np.abs(normals(0, count).cpu().numpy() - exact)
    if NORMAL_ULP is not None:
        assert (error <= NORMAL_ULP * np.spacing(np.abs(exact).astype(np.float32))).all()
    assert error.max() < 3e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_triton_normals_do_not_depend_on_how_they_are_made(dtype: torch.dtype) -> None:
    """An offset of 5 makes each element compute its own block of four."""
    assert torch.equal(normals(0, 2048, dtype)[5:2005], normals(5, 2000, dtype))


# ----------------------------------------------------------------------------------------------
# The rule
# ----------------------------------------------------------------------------------------------


def name_of(form: Any) -> str | None:
    """Name the dtypes of a form in the name of a test."""
    is_form = isinstance(form, tuple) and len(form) == 3
    return "-".join(map(str, form)).replace("torch.", "") if is_form else None


# The interpreter is slow: each pair of exponents in one form there, and each form with one pair.
CASES = [*itertools.product(EXPONENTS, FORMS)]
if not IS_GPU:
    CASES = [(pair, FORMS[i % len(FORMS)]) for i, pair in enumerate(EXPONENTS)]
    CASES += [((0.7, 1.3), form) for form in FORMS]


@pytest.mark.parametrize(("exponents", "form"), CASES, ids=name_of)
def test_triton_step_is_the_loop(
    exponents: tuple[float, float], form: tuple[torch.dtype, torch.dtype, bool]
) -> None:
    (alpha, beta), (dtype, sum_dtype, is_random) = exponents, form
    ours = problem(1307, dtype=dtype, sum_dtype=sum_dtype)
    loop, start = copies(ours), ours[0].clone()
    knobs = {"alpha": alpha, "beta": beta, "stochastic_rounding": is_random, "weight_decay": 0.1}
    kernel_step(ours, **knobs)
    loop_step(loop, **knobs)
    assert_close(ours, loop, start, is_random)


WIDER_CASES = ([torch.float32, torch.float64, torch.bfloat16], WIDER, [0, 1, 1000])


@pytest.mark.parametrize(
    ("dtype", "name", "k"), [*(itertools.product if IS_GPU else pairwise)(*WIDER_CASES)]
)
def test_triton_step_is_the_loop_for_the_wider_rule(dtype: torch.dtype, name: str, k: int) -> None:
    ours = problem(1100, dtype=dtype, sum_dtype=torch.float32 if dtype.itemsize == 2 else dtype)
    loop, start = copies(ours), ours[0].clone()
    kernel_step(ours, k=k, **WIDER[name])
    loop_step(loop, k=k, **WIDER[name])
    assert_close(ours, loop, start)


@pytest.mark.parametrize("opposed", [0.3, 0.0, -0.3, -1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_triton_step_waits_where_there_is_no_gradient(dtype: torch.dtype, opposed: float) -> None:
    ours = problem(700, dtype=dtype)
    ours[1][::3], ours[1][1::3] = 0.0, -0.0
    loop, start = copies(ours), ours[0].clone()
    knobs = {"sigma": 0.0, "momentum": 0.8, "opposed": opposed}
    kernel_step(ours, **knobs)
    loop_step(loop, **knobs)
    assert_close(ours, loop, start)
    moves = ours[3] != 0
    if opposed <= 0.0:
        moves = ours[1] != 0 if opposed < 0.0 else ours[1] * ours[3] > 0
    assert torch.equal(ours[0] != start, moves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["clip", "decay", "all", "opposed dropped"])
def test_triton_step_shows_what_is_lost(dtype: torch.dtype, name: str) -> None:
    """An infinite D, or a gradient that is not a number, as in tests/.../test_infinite_metric.py:
    a clip hides neither."""
    pairs = [(1.0, 1.0)] if name != "clip" else [(0.7, 1.3), (2.0, 1.0), (0.0, 1.0), (1.0, 0.0)]
    for alpha, beta in pairs:
        ours = problem(300, dtype=dtype, sum_dtype=torch.float32 if dtype.itemsize == 2 else dtype)
        start = copies(ours)
        ours[2][4], ours[1][9] = torch.inf, torch.nan
        kernel_step(ours, alpha=alpha, beta=beta, **WIDER[name])
        kernel_step(start, alpha=alpha, beta=beta, **WIDER[name])
        assert ours[0].isnan().nonzero().flatten().tolist() == [4, 9]
        kept = ~ours[0].isnan()
        assert torch.equal(ours[0][kept], start[0][kept])


@pytest.mark.parametrize(
    "knobs",
    [{"sigma": 0.0}, {"maximize": True}, {"lr": 0.0}, {"alpha": 0.0, "beta": 0.0}, {"delta": 0.0}],
    ids=str,
)
def test_triton_step_obeys_the_other_knobs(knobs: dict[str, Any]) -> None:
    ours = problem(515)
    loop, start = copies(ours), ours[0].clone()
    kernel_step(ours, **knobs)
    loop_step(loop, **knobs)
    assert_close(ours, loop, start)


def test_triton_step_reads_lr_from_a_tensor() -> None:
    ours, theirs = problem(300), problem(300)
    kernel_step(ours, lr=torch.tensor(0.03, dtype=torch.float64, device=DEVICE))
    kernel_step(theirs, lr=0.03)
    assert torch.equal(ours[0], theirs[0])


def test_triton_step_unscales_and_skips() -> None:
    plain, scaled = problem(1100), problem(1100)
    scaled[1] *= 1024
    kernel_step(plain)
    kernel_step(scaled, grad_scale=torch.tensor(1024.0, device=DEVICE))
    assert torch.equal(plain[0], scaled[0])
    assert torch.equal(plain[2], scaled[2])
    before = copies(plain)
    for found, steps in ((1.0, [7]), (0.0, [8])):
        taken = take_kernel_step(
            _triton.GpuTable,
            *([t] for t in plain[:3]),
            [STREAM],
            [7],
            found_inf=torch.tensor(found, device=DEVICE),
        )
        assert taken == steps
        assert torch.equal(plain[0], before[0]) == bool(found)


# ----------------------------------------------------------------------------------------------
# Bits that may not depend on where an element is
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_triton_shards_are_parts_of_the_whole(form: tuple[torch.dtype, torch.dtype, bool]) -> None:
    dtype, sum_dtype, is_random = form
    rows, columns = 24, 100
    start = problem(rows, columns, dtype=dtype, sum_dtype=sum_dtype)
    whole = copies(start)
    knobs = {"stochastic_rounding": is_random, "alpha": 0.7, "beta": 1.3}
    kernel_step(whole, **knobs)
    blocks = [
        (slice(3, 20), slice(0, columns)),  # rows: one run, in fours
        (slice(0, rows), slice(40, 80)),  # columns, in fours
        (slice(0, rows), slice(1, 100)),  # columns, not in fours
        (slice(2, 9), slice(7, 60)),
        (slice(5, 5), slice(0, columns)),  # nothing
    ]
    for down, across in blocks:
        shard = [t.clone()[down, across].contiguous() for t in start]
        layout = Layout.of_block(shard[0].shape, (rows, columns), (down.start, across.start))
        kernel_step(shard, row=layout.rows, **knobs)
        assert torch.equal(shard[0], whole[0][down, across])
        assert torch.equal(shard[2], whole[2][down, across])


def test_triton_step_is_independent_of_list_and_order() -> None:
    counts = [3, 5000, 0, 129, 2048]
    alone = [problem(n) for n in counts]
    for i, tensors in enumerate(alone):
        take_kernel_step(_triton.GpuTable, *([t] for t in tensors[:3]), [i], [STEP + i])
    for order in (range(5), reversed(range(5))):
        order = list(order)
        together = [problem(n) for n in counts]
        columns = [[together[i][column] for i in order] for column in range(3)]
        taken = take_kernel_step(_triton.GpuTable, *columns, order, [STEP + i for i in order])
        assert taken == [STEP + i + 1 for i in order]
        for one, other in zip(alone, together, strict=True):
            assert torch.equal(one[0], other[0])
            assert torch.equal(one[2], other[2])


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_triton_step_is_the_same_whoever_counts(
    form: tuple[torch.dtype, torch.dtype, bool],
) -> None:
    dtype, sum_dtype, is_random = form
    found = []
    for host_counts in (False, True):
        lists = [[], [], []]
        for count in (5, 9000 if IS_GPU or sum_dtype == torch.bfloat16 else 2100, 0, 1030):
            tensors = problem(count, dtype=dtype, sum_dtype=sum_dtype)[:3]
            for column, tensor in zip(lists, tensors, strict=True):
                column.append(tensor)
        taken = take_kernel_step(
            _triton.GpuTable,
            *lists,
            list(range(4)),
            [0, 7, 7, STEP],
            num_steps=2,
            table_options={"host_counts": host_counts},
            stochastic_rounding=is_random,
            weight_decay=0.1,
        )
        assert taken == [2, 9, 9, STEP + 2]
        found.append(torch.cat([t.double() for t in lists[0] + lists[2]]))
    assert torch.equal(*found)


@pytest.mark.parametrize("begin", [0, 1, 64])
def test_triton_step_neither_reads_nor_writes_past_a_tensor(begin: int) -> None:
    count = 1111
    inside = problem(count)
    surrounded = []
    for tensor in problem(count):
        memory = torch.full((begin + count + 100,), torch.nan, device=DEVICE)
        memory[begin : begin + count] = tensor
        surrounded.append(memory[begin : begin + count])
    kernel_step(inside)
    kernel_step(surrounded)
    for mine, theirs in zip(surrounded, inside, strict=True):
        assert torch.equal(mine, theirs)
        memory = mine._base
        assert memory is not None
        assert memory[:begin].isnan().all()
        assert memory[begin + count :].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_triton_rounding_has_no_bias(dtype: torch.dtype) -> None:
    # Half a million roundings of one value; 5 sigma of their mean, with a sigma of at most half a
    # unit each.
    count = 500_000 if IS_GPU else 20_000
    param = torch.ones(count, dtype=dtype, device=DEVICE)
    grad = torch.full_like(param, 0.3)
    total = torch.zeros(count, device=DEVICE)
    kernel_step(
        [param, grad, total, total],
        lr=1e-3, alpha=0.0, sigma=0.0, stochastic_rounding=True,
    )  # fmt: skip
    unit = torch.finfo(dtype).eps
    expected = 1.0 - 1e-3 * float(grad[0])
    assert abs(param.double().mean().item() - expected) < 5 * 0.5 * unit / count**0.5
    assert set(param.unique().tolist()) == {1.0, 1.0 - unit / 2}


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3e38])
def test_triton_rounding_keeps_what_is_not_finite(value: float) -> None:
    param = torch.full((8,), value, dtype=torch.bfloat16, device=DEVICE)
    total = torch.zeros(8, device=DEVICE)
    kernel_step([param, torch.zeros_like(param), total, total], stochastic_rounding=True, sigma=0.0)
    assert torch.equal(param.isnan(), torch.full((8,), np.isnan(value), device=DEVICE))
    assert np.isnan(value) or (param.isinf() == np.isinf(value)).all()


@pytest.fixture(params=[False, True], ids=["device counts", "host counts"])
def triton_for_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter for a GPU, from the optimizer down: plans, tables and launches."""
    if IS_GPU:
        pytest.skip("tests/asgld/optim/test_gpu.py has the same on the GPU")

    def table(*columns: Any) -> Any:
        return _triton.GpuTable(*columns, host_counts=request.param)

    monkeypatch.setattr(_native, "unavailable_reason", lambda: None)
    monkeypatch.setattr(_native, "CpuTable", table)


@pytest.mark.usefixtures("triton_for_cpu")
@pytest.mark.parametrize("triton_for_cpu", [True], ids=["host counts"], indirect=True)
def test_plan_of_the_kernel_follows_what_changes() -> None:
    assert_plan_follows_what_changes(lambda: make_parameters([(5, 7), (100,), (11, 3), (0, 3), ()]))


@pytest.mark.usefixtures("triton_for_cpu")
def test_optimizer_takes_its_steps_in_the_kernel() -> None:
    found = []
    for options in ({"fused": True}, {"foreach": False, "fused": False}):
        params = make_parameters([(5, 7), (130,), (), (3, 0)])
        optimizer = asgld.ASGLD([{"params": params[:2]}, {"params": params[2:], "lr": 0.2}], lr=0.1,
                                sigma=0.1, **options)  # fmt: skip
        take_steps(optimizer, 3)
        optimizer.param_groups[0]["sigma"] = 0.3  # knobs may change between steps
        optimizer.state[params[1]]["step"].fill_(20)  # and so may counts
        take_steps(optimizer, 3, first=3)
        assert [int(optimizer.state[p]["step"]) for p in params] == [6, 23, 6, 6]
        found.append(torch.cat([p.detach().flatten() for p in params]))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
