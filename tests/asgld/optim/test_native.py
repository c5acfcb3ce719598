"""The C kernel against NumPy in higher precision, and against itself cut up in other ways."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from helpers import FORMS, take_kernel_step
from native_cases import KNOBS, NEEDS_KERNEL, SEED, STEP, STREAM, problem, step
from torch import Tensor

import asgld
from asgld import noise
from asgld.optim import _native

pytestmark = NEEDS_KERNEL

# Every way to compute a factor with every other, ties among them, and no noise.
EXPONENTS = [(a, b) for a in (0.0, 1.0, 2.0, 0.7) for b in (0.0, 1.0, 2.0, 0.7, 1.3)]
SIZES = [0, 1, 2, 3, 4, 5, 7, 15, 16, 17, 31, 32, 33, 63, 65, 1000, 4099]


def expected(
    param: Tensor, grad: Tensor, total: Tensor, *, index: Any = None, **knobs: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x and S after a step, in float64 from the rounded D on, and the size of x's terms."""
    k = {**KNOBS, "maximize": False, **knobs}
    x, g, s = (t.double().numpy() for t in (param, grad, total))
    g = -g if k["maximize"] else g
    shift = k["d_init"] + k["delta"] * STEP
    d = s + shift if param.dtype == torch.float64 else np.float32(s) + np.float32(shift)
    d = d.astype(np.float64)
    index = np.arange(x.size) if index is None else index
    kept = x * (1 - k["lr"] * k["weight_decay"])
    with np.errstate(all="ignore"):
        drift = k["lr"] * d ** (-k["alpha"] / 2) * g
        kick = np.zeros_like(x)
        if k["sigma"]:
            wide = np.float64 if param.dtype == torch.float64 else np.float32
            z = (
                exact_normals(index)
                if wide == np.float32
                else noise.normal(SEED, STREAM, STEP, index)
            )
            kick = math.sqrt(2 * k["lr"]) * k["sigma"] * d ** (-k["beta"] / 2) * z
        return kept - drift + kick, s + g * g, np.abs(kept) + np.abs(drift) + np.abs(kick)


def exact_normals(index: Any) -> np.ndarray:
    """Return the normals of the contract's float32 u and t, transformed in extended precision."""
    index = np.asarray(index, dtype=np.uint64)
    even = index & ~np.uint64(1)
    radius_word = noise.words(SEED, STREAM, STEP, even)
    angle_word = noise.words(SEED, STREAM, STEP, even + np.uint64(1)).view(np.int32)
    scale = np.float32(2.0**-31)
    u = (radius_word >> np.uint32(1)).astype(np.float32) * scale + np.float32(2.0**-32)
    angle = (angle_word.astype(np.float32) * scale).astype(np.longdouble) * PI
    wave = np.where(index & np.uint64(1), np.sin(angle), np.cos(angle))
    return (np.sqrt(-2 * np.log(u.astype(np.longdouble))) * wave).astype(np.float64)


PI = np.longdouble("3.14159265358979323846264338327950288")


# ----------------------------------------------------------------------------------------------
# Normals, as a step shows them
# ----------------------------------------------------------------------------------------------


def normals(start: int, count: int, dtype: torch.dtype = torch.float32) -> np.ndarray:
    """Return the kernel's normals: from x = 0 and g = 0 a step leads to sqrt(2 lr) sigma z = z."""
    x, g, total = (torch.zeros(count, dtype=dtype) for _ in range(3))
    knobs = {"lr": 0.5, "sigma": 1.0, "alpha": 0.0, "beta": 0.0}
    step(x, g, total, layout=(start, max(count, 1), 0), **knobs)
    return x.numpy()


@pytest.mark.parametrize("build", _native.available_builds())
@pytest.mark.parametrize("start", [0, 1, 6, 31, 2**34 - 50, 2**40 + 3, 2**62 + 1])
def test_native_normals_are_made_of_the_words_of_the_contract(build: str, start: int) -> None:
    """A wrong word is a normal that has nothing to do with the right one."""
    _native.set_build(build)
    index = np.arange(start, start + 101, dtype=np.uint64)
    exact = noise.normal(SEED, STREAM, STEP, index)
    np.testing.assert_allclose(normals(start, 101), exact, rtol=0, atol=1e-5)
    np.testing.assert_allclose(normals(start, 101, torch.float64), exact, rtol=0, atol=4e-15)


def test_native_normals_are_within_five_ulp() -> None:
    index = np.arange(3, 200_000)
    exact = exact_normals(index)
    ulp = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    assert (np.abs(normals(3, index.size) - exact) < 5 * ulp).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_native_normals_do_not_depend_on_where_they_begin(dtype: torch.dtype) -> None:
    start = 2**34 - 40
    parts = [normals(start + i, 1, dtype)[0] for i in range(100)]
    np.testing.assert_array_equal(normals(start, 100, dtype), np.array(parts))


# ----------------------------------------------------------------------------------------------
# The rule
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "beta"), [*EXPONENTS, (1.0, math.inf), (0.0, 5.0), (0.7, 3.0)])
@pytest.mark.parametrize("sigma", [0.3, 0.0])
def test_native_step_is_the_rule(alpha: float, beta: float, sigma: float) -> None:
    """Within 6 ulp of the largest term: normals have 5, powers 3, and four roundings a half each;
    errors of drift and noise are ulps of terms that are not larger."""
    knobs = {"alpha": alpha, "beta": beta, "sigma": 0.0 if math.isinf(beta) else sigma}
    for count in SIZES:
        param, grad, total = problem(count)
        x, s, size = expected(param, grad, total, **knobs)
        step(param, grad, total, **{**knobs, "sigma": sigma})
        ulp = np.spacing(size.astype(np.float32)).astype(np.float64)
        assert (np.abs(param.numpy() - x) <= 6 * ulp).all()
        assert (np.abs(total.numpy() - s) <= np.spacing(s.astype(np.float32))).all()


@pytest.mark.parametrize(("alpha", "beta"), EXPONENTS)
def test_native_step_in_double_is_the_rule(alpha: float, beta: float) -> None:
    for count in (0, 1, 33, 1000):
        param, grad, total = problem(count, torch.float64)
        x, s, size = expected(param, grad, total, alpha=alpha, beta=beta)
        step(param, grad, total, alpha=alpha, beta=beta)
        assert (np.abs(param.numpy() - x) <= 1e-14 * size).all()
        np.testing.assert_allclose(total.numpy(), s, rtol=1e-15)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sum_dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_native_step_in_half_precision_rounds_the_rule(
    dtype: torch.dtype, sum_dtype: torch.dtype
) -> None:
    """The float32 result, then rounded as torch rounds."""
    for count in (1, 33, 5000):
        param, grad, total = problem(count, dtype, sum_dtype)
        wide = param.float(), grad.float(), total.float().clone()
        step(*wide)
        step(param, grad, total)
        assert torch.equal(param, wide[0].to(dtype))
        assert torch.equal(total, wide[2].to(sum_dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_native_step_decays_maximizes_and_unscales(dtype: torch.dtype) -> None:
    knobs = {"weight_decay": 0.1, "maximize": True}
    param, grad, total = problem(1000, dtype)
    x, s, size = expected(param, grad, total, **knobs)
    step(param, grad * 1024, total, grad_scale=1024.0, **knobs)
    relative = 1e-14 if dtype == torch.float64 else 6 * 2.0**-23
    assert (np.abs(param.numpy() - x) <= relative * size).all()
    np.testing.assert_allclose(total.numpy(), s, rtol=relative)


@pytest.mark.parametrize("seed", [0, 1])
def test_native_step_without_noise_has_no_seed(seed: int) -> None:
    first, second = problem(1000), problem(1000)
    step(*first, sigma=0.0, seed=SEED)
    step(*second, beta=math.inf, seed=seed)
    assert torch.equal(first[0], second[0])


@pytest.mark.parametrize(("alpha", "beta"), [(0.7, 1.3), (0.7, 0.7), (1.0, 0.7), (0.7, 3.0)])
def test_native_powers_cover_all_floats(alpha: float, beta: float) -> None:
    """A metric that is tiny, huge or not a number gives what a power gives; infinite ones show."""
    sums = [0.0, *(2.0**e for e in range(-120, 128)), 3e38, math.inf, math.nan]
    total = torch.tensor(sums)
    for d_init in (0.0, 1e-12, 1.0, 1e30):
        knobs = {"alpha": alpha, "beta": beta, "d_init": d_init, "delta": 0.0}
        ours = torch.ones_like(total), torch.full_like(total, 1e-3), total.clone()
        x, _, size = expected(*ours, **knobs)
        step(*ours, **knobs)
        for sum_i, ours_i, x_i, size_i in zip(sums, ours[0].tolist(), x, size, strict=True):
            if not math.isfinite(sum_i):
                assert math.isnan(ours_i)
            elif math.isfinite(size_i) and size_i < 1e38:
                assert abs(ours_i - x_i) <= 8 * 2.0**-24 * max(size_i, 1e-30)
            else:
                assert not math.isfinite(ours_i) or abs(ours_i) > 1e37


def test_native_step_counts_steps_per_tensor() -> None:
    tensors = [problem(500) for _ in range(3)]
    steps = [0, 5, 1_000_000]
    lists = [list(column) for column in zip(*tensors, strict=True)]
    knobs = {**KNOBS, "alpha": 0.7, "delta": 1.0}
    take_kernel_step(_native.CpuTable, *lists, [STREAM] * 3, steps, **knobs)
    for (param, _, _), k in zip(tensors, steps, strict=True):
        alone = problem(500)
        take_kernel_step(_native.CpuTable, *([t] for t in alone), [STREAM], [k], **knobs)
        assert torch.equal(param, alone[0])
    assert not torch.equal(tensors[0][0], tensors[1][0])


# ----------------------------------------------------------------------------------------------
# Bits that may not depend on how the work is cut up
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.7, 1.3), (0.0, 1.0)])
@pytest.mark.parametrize(("dtype", "sum_dtype", "is_random"), FORMS)
def test_native_builds_give_the_same_bits(
    alpha: float, beta: float, dtype: torch.dtype, sum_dtype: torch.dtype, is_random: bool
) -> None:
    results = []
    for build in _native.available_builds():
        _native.set_build(build)
        tensors = problem(3001, dtype, sum_dtype)
        step(*tensors, alpha=alpha, beta=beta, weight_decay=0.1, stochastic_rounding=is_random)
        results.append(tensors)
    for param, _, total in results[1:]:
        assert torch.equal(param, results[0][0])
        assert torch.equal(total, results[0][2])


@pytest.mark.parametrize(("alpha", "beta"), EXPONENTS)
def test_native_builds_give_the_same_bits_for_all_exponents(alpha: float, beta: float) -> None:
    results = []
    for build in _native.available_builds():
        _native.set_build(build)
        tensors = problem(777)
        step(*tensors, alpha=alpha, beta=beta)
        results.append(tensors[0])
    assert all(torch.equal(param, results[0]) for param in results)


@pytest.mark.parametrize(("dtype", "sum_dtype", "is_random"), FORMS)
def test_native_step_is_independent_of_threads(
    dtype: torch.dtype, sum_dtype: torch.dtype, is_random: bool
) -> None:
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        lists = [[], [], []]
        for count in (40_001, 5, 0, 30_000):
            for column, tensor in zip(lists, problem(count, dtype, sum_dtype), strict=True):
                column.append(tensor)
        take_kernel_step(
            _native.CpuTable,
            *lists,
            list(range(4)),
            [STEP] * 4,
            stochastic_rounding=is_random,
            **KNOBS,
        )
        results.append(torch.cat([*lists[0], *(t.to(dtype) for t in lists[2])]))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_native_step_is_independent_of_list_order() -> None:
    counts = [3, 70_000, 0, 129, 4096]
    forward, backward = [problem(n) for n in counts], [problem(n) for n in counts]
    streams = list(range(len(counts)))
    torch.set_num_threads(2)
    for tensors, order in ((forward, streams), (backward, streams[::-1])):
        lists = [[tensors[i][column] for i in order] for column in range(3)]
        take_kernel_step(_native.CpuTable, *lists, order, [STEP] * len(order), **KNOBS)
    for first, second in zip(forward, backward, strict=True):
        assert torch.equal(first[0], second[0])


@pytest.mark.parametrize("build", _native.available_builds())
@pytest.mark.parametrize(("dtype", "sum_dtype", "is_random"), FORMS)
@pytest.mark.parametrize("width", [1, 2, 5, 33, 90])
def test_native_shards_get_the_noise_of_their_place(
    build: str, dtype: torch.dtype, sum_dtype: torch.dtype, is_random: bool, width: int
) -> None:
    """Columns of a matrix, and unaligned runs of its rows, give what the whole matrix gives."""
    _native.set_build(build)
    rows, columns = 7, 91
    whole = problem(rows * columns, dtype, sum_dtype)
    shards = [
        (
            [t.view(rows, columns)[:, at : at + width].contiguous() for t in whole],
            (at, min(width, columns - at), columns),
        )
        for at in range(0, columns, width)
    ]
    pieces = [
        ([t[at : at + 101].clone() for t in whole], (at, 101, 0))
        for at in range(0, rows * columns, 101)
    ]
    step(*whole, stochastic_rounding=is_random)
    for tensors, layout in (*shards, *pieces):
        step(*tensors, layout=layout, stochastic_rounding=is_random)
    joined = torch.cat([tensors[0] for tensors, _ in shards], dim=1)
    assert torch.equal(joined.flatten(), whole[0])
    assert torch.equal(torch.cat([tensors[0] for tensors, _ in pieces]), whole[0])
    assert torch.equal(torch.cat([tensors[2] for tensors, _ in pieces]), whole[2])


@pytest.mark.parametrize("offset", [2**34 - 100, 2**50 + 1])
def test_native_step_reaches_far_indices(offset: int) -> None:
    param, grad, total = problem(300)
    x, _, size = expected(param, grad, total, index=np.arange(offset, offset + 300))
    step(param, grad, total, layout=(offset, 300, 0))
    assert (np.abs(param.numpy() - x) <= 6 * np.spacing(size.astype(np.float32))).all()


@pytest.mark.parametrize("build", _native.available_builds())
@pytest.mark.parametrize(("dtype", "sum_dtype", "is_random"), FORMS)
@pytest.mark.parametrize("sigma", [0.3, 0.0])
def test_native_step_stays_in_its_tensors(
    build: str, dtype: torch.dtype, sum_dtype: torch.dtype, is_random: bool, sigma: float
) -> None:
    """NaN around a tensor neither leaks into it nor is written over."""
    _native.set_build(build)
    for count in (0, 1, 5, 31, 32, 45, 2049):
        for begin in (1, 8, 19):
            framed = [
                torch.full((count + 64,), math.nan, dtype=t) for t in (dtype, dtype, sum_dtype)
            ]
            inner = [t[begin : begin + count] for t in framed]
            for tensor, value in zip(inner, problem(count, dtype, sum_dtype), strict=True):
                tensor.copy_(value)
            step(*inner, sigma=sigma, stochastic_rounding=is_random, layout=(begin, count, 0))
            for tensor, part in zip(framed, inner, strict=True):
                assert part.isfinite().all()
                assert tensor.isnan().sum() == 64


# ----------------------------------------------------------------------------------------------
# Stochastic rounding
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_native_stochastic_rounding_is_that_of_the_contract(dtype: torch.dtype) -> None:
    """Same words, same rounding: bit by bit what the eager path stores."""
    param, grad, total = problem(5000, dtype, torch.bfloat16)
    param[:6] = torch.tensor([math.inf, math.nan, 6e4, 1e-5, -1e-6, 0.0]).to(dtype)
    wide = param.float(), grad.float(), total.float().clone()
    step(*wide)
    step(param, grad, total, stochastic_rounding=True)
    words = noise.words(SEED, STREAM, STEP, np.arange(5000), noise.Purpose.ROUND)
    word = torch.from_numpy(words.astype(np.int64))
    for stored, value, half in ((param, wide[0], word), (total, wide[2], word >> 16)):
        rounded = noise.round_stochastically(value, half, stored.dtype)
        torch.testing.assert_close(stored, rounded, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_native_stochastic_rounding_is_unbiased(dtype: torch.dtype) -> None:
    """Null: the mean of the rounding error is 0. n = 2^18; threshold 5 standard errors."""
    count = 2**18
    param = torch.ones(count, dtype=dtype)
    grad = torch.ones(count, dtype=dtype)
    total = torch.zeros(count)
    # A step far below half a unit in the last place, which rounding to nearest would lose.
    knobs = {"sigma": 0.0, "alpha": 0.0, "lr": 2.0**-12 / 3, "maximize": True}
    step(param, grad, total, stochastic_rounding=True, **knobs)
    moved = param.double() - 1.0
    standard_error = moved.std() / math.sqrt(count)
    assert moved.unique().numel() == 2
    assert abs(moved.mean() - 2.0**-12 / 3) < 5 * standard_error


# ----------------------------------------------------------------------------------------------
# The boundary
# ----------------------------------------------------------------------------------------------


def test_native_step_refuses_what_it_cannot_read() -> None:
    param, grad, total = problem(12)
    with pytest.raises(ValueError, match="contiguous"):
        step(param.view(3, 4).T, grad, total)
    with pytest.raises(ValueError, match="of one size"):
        step(param, grad, total[:5])
    with pytest.raises(TypeError, match="float64"):
        step(param.double(), grad.double(), total)
    with pytest.raises(TypeError, match="int32"):
        step(param.int(), grad.int(), total)
    with pytest.raises(ValueError, match="of one size"):
        step(param, grad, total, param[:5], momentum=0.9)
    with pytest.raises(TypeError, match="a momentum of"):
        step(param, grad, total, param.double(), momentum=0.9)
    with pytest.raises(ValueError, match="`momenta`"):
        step(param, grad, total, momentum=0.9)
    with pytest.raises(ValueError, match="available here"):
        _native.set_build("avx1024")


def test_native_step_of_nothing_is_nothing() -> None:
    take_kernel_step(_native.CpuTable, [], [], [], [], [], **KNOBS)


def test_native_absence_has_a_reason(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASGLD_NATIVE_DIR", str(tmp_path))
    _native._load.cache_clear()
    try:
        assert _native.available_builds() == []
        assert "not built" in str(_native.unavailable_reason())
        with pytest.raises(RuntimeError, match="not built"):
            step(*problem(3))
        (tmp_path / "libasgld_portable.so").write_text("not a library")
        _native._load.cache_clear()
        assert "does not load" in str(_native.unavailable_reason())
    finally:
        _native._load.cache_clear()


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_native_kernel_and_torch_share_one_pool() -> None:
    # In a process of its own: other packages of this one may bring runtimes that nobody uses.
    code = """
import torch
from asgld.optim import _native
assert _native.unavailable_reason() is None
with open("/proc/self/maps") as maps:
    print(len({line.split()[-1] for line in maps if "libgomp" in line or "libiomp" in line}))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(found.stdout) <= 1


@pytest.mark.skipif(sys.platform != "linux", reason="libgomp is the runtime of Linux")
def test_native_kernel_finds_a_runtime_that_torch_keeps_to_itself() -> None:
    # Most builds of torch show their runtime to the whole process. This one is kept from that.
    code = """
import ctypes
shown = ctypes.CDLL
ctypes.CDLL = lambda name, mode=0, **options: shown(name, ctypes.RTLD_LOCAL, **options)
import torch
ctypes.CDLL = shown
from asgld.optim import _native
print(_native.unavailable_reason())
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "None"


def test_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would misread the addresses it is given."""
    monkeypatch.setattr(_native, "_INTERFACE", _native._INTERFACE + 1)
    _native._load.cache_clear()
    try:
        assert "built from other sources" in str(_native.unavailable_reason())
        p = torch.zeros(3, requires_grad=True)
        assert asgld.ASGLD([p]).backends[0].name == "foreach"
    finally:
        monkeypatch.undo()
        _native._load.cache_clear()
    assert _native.unavailable_reason() is None
