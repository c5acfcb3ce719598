"""Steps that take no power of D need no sum of squares: without one, every backend gives the same
bits to parameters, momenta and counts, and a rule that divides by D is refused."""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import FORMS, RULE, make_tensor, pairwise
from torch import Tensor

from asgld.noise import Layout
from asgld.optim import _native, functional, plan
from asgld.optim.functional import Tensors
from asgld.optim.rule import Rule

HAS_TRITON = importlib.util.find_spec("triton") is not None
IS_GPU = torch.cuda.is_available()
if HAS_TRITON:
    if not IS_GPU:  # the kernels are bound to the interpreter when they are defined
        os.environ["TRITON_INTERPRET"] = "1"
    try:
        from asgld.optim import _triton
    finally:
        if not IS_GPU:
            del os.environ["TRITON_INTERPRET"]

LISTS = ["loop", "foreach"]
BUILDS = _native.available_builds()
TRITON = ["triton", "triton, host counts"] if HAS_TRITON else []
BACKENDS = [*LISTS, *BUILDS, *TRITON]

# Rules that take no power of D, by what they add to alpha = beta = 0.
KNOBS: dict[str, dict[str, Any]] = {
    "plain": {},
    "noise in units of lr": {"sigma": 0.0, "noise": 0.5},
    "noise that D does not reach": {"sigma": 0.0, "beta": 1.0},
    "no noise by an infinite beta": {"beta": math.inf},
    "noise far above lr": {"lr": 1e-30, "sigma": 1e15},  # no one factor serves both
    "weight decay": {"weight_decay": 0.3},
    "maximize": {"maximize": True},
    "momentum": {"momentum": 0.8},
    "opposed dropped": {"momentum": 0.8, "opposed": 0.0},
    "opposed turned in part": {"momentum": 0.8, "opposed": -0.3, "weight_decay": 0.3},
    "clip": {"clip": 0.25},
    "annealing": {"annealing": 1.0},
    "decay": {"decay": 0.9},
    "filled by the first": {"decay": 0.9, "d_init": 0.0, "weight_decay": 0.3},
    "all": {
        "decay": 0.9, "d_init": 0.0, "momentum": 0.9, "opposed": -0.5, "clip": 0.25,
        "annealing": 1.0, "weight_decay": 0.3, "maximize": True,
    },
}  # fmt: skip
SIGMAS = [0.0, 0.3]
DIVIDING: dict[str, dict[str, Any]] = {
    "alpha": {"alpha": 1.0},
    "beta": {"beta": 1.0},
    "beta, and noise in units of lr": {"beta": 0.5, "sigma": 0.0, "noise": 0.5},
}
# The count of steps, and the number of elements: none, one, parts and multiples of a block.
SIZES = [(0, 1), (1, 3), (9, 0), (0, 37), (1, 512), (7, 611)]


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if HAS_TRITON and not IS_GPU:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    _native.set_build(None)


def rule_of(**knobs: Any) -> Rule:
    return Rule(**{**RULE, "alpha": 0.0, "beta": 0.0, "seed": 2**63 + 5, **knobs})


def problem(
    rule: Rule,
    dtype: torch.dtype = torch.float32,
    sum_dtype: torch.dtype | None = None,
    *,
    device: str = "cpu",
    sizes: list[tuple[int, int]] = SIZES,
) -> Tensors:
    """Return parameters with sums that a step could only read by mistake: they are large."""
    working = torch.float64 if dtype == torch.float64 else torch.float32
    found = Tensors([], [], [], [], [], [], [])
    for i, (k, count) in enumerate(sizes):
        x, g, s, m = (make_tensor(count, seed=4 * i + j) for j in range(4))
        g[4::5] = 0.0
        found.params.append(x.to(device, dtype))
        found.grads.append(g.to(device, dtype))
        found.sums.append((100.0 + s.square()).to(device, sum_dtype or working))
        found.steps.append(torch.tensor(k, device=device))
        found.streams.append(2**32 - 1 - i)
        found.layouts.append(Layout.whole(count))
        found.momenta.append(m.to(device, working) if rule.momentum else None)
    return found


def bare(tensors: Tensors) -> Tensors:
    """Return copies without sums."""

    def copy(column: list[Any]) -> list[Any]:
        return [t.clone() if isinstance(t, Tensor) else t for t in column]

    copies = Tensors(*map(copy, tensors))
    return copies._replace(sums=[None] * len(tensors.params))


def take_steps(
    backend: str,
    tensors: Tensors,
    rule: Rule,
    num_steps: int = 2,
    *,
    grad_scale: Tensor | None = None,
) -> None:
    if backend in LISTS:
        for _ in range(num_steps):
            functional.asgld(functional.resolved(tensors), rule, as_lists=backend == "foreach")
        return
    with pytest.MonkeyPatch.context() as patch:
        if backend in BUILDS:
            _native.set_build(backend)
        elif not IS_GPU:  # the interpreter stands for a GPU
            patch.setattr(
                _native,
                "CpuTable",
                lambda *columns: _triton.GpuTable(*columns, host_counts="host" in backend),
            )
        kernels = plan.Kernels(tensors, host_counts="host" in backend)
        addresses = [g.data_ptr() for g in tensors.grads]
        for _ in range(num_steps):
            kernels.step(tensors.grads, addresses, rule, grad_scale, None)


def assert_same(ours: Tensors, theirs: Tensors) -> None:
    for name in ("params", "momenta", "steps"):
        for mine, other in zip(getattr(ours, name), getattr(theirs, name), strict=True):
            if mine is None:
                assert other is None
            else:
                assert torch.equal(mine, other), name


def assert_sum_does_not_matter(backend: str, start: Tensors, rule: Rule, **options: Any) -> None:
    ours, before = bare(start), start.params[-1].clone()
    take_steps(backend, start, rule, **options)
    take_steps(backend, ours, rule, **options)
    assert ours.sums == [None] * len(ours.params)
    assert_same(ours, start)
    assert not torch.equal(start.params[-1], before)


def device_of(backend: str) -> str:
    return "cuda" if IS_GPU and backend in TRITON else "cpu"


def name_of(value: Any) -> str | None:
    """Name the dtypes of a form in the name of a test."""
    return "-".join(map(str, value)).replace("torch.", "") if isinstance(value, tuple) else None


CASES = pairwise([*LISTS, *BUILDS], KNOBS, FORMS)
if IS_GPU:
    CASES += itertools.product(TRITON, KNOBS, FORMS)
elif TRITON:  # the interpreter is slow: each rule in one form, and each form with two rules
    CASES += [("triton", name, FORMS[i % len(FORMS)]) for i, name in enumerate(KNOBS)]
    CASES += [(TRITON[1], "plain", form) for form in FORMS]
    CASES += [("triton", "all", form) for form in FORMS]


@pytest.mark.parametrize(("backend", "name", "form"), CASES, ids=name_of)
def test_steps_without_a_sum_have_the_same_bits(
    backend: str, name: str, form: tuple[torch.dtype, torch.dtype, bool]
) -> None:
    dtype, sum_dtype, is_random = form
    for sigma in SIGMAS:
        rule = rule_of(**{"sigma": sigma, "stochastic_rounding": is_random, **KNOBS[name]})
        start = problem(rule, dtype, sum_dtype, device=device_of(backend))
        assert_sum_does_not_matter(backend, start, rule)


@pytest.mark.parametrize("name", ["plain", "filled by the first", "all"])
@pytest.mark.parametrize("backend", LISTS)
def test_steps_without_a_sum_count_on_a_device(backend: str, name: str) -> None:
    """The coefficients are tensors then."""
    lr = torch.tensor(0.1, dtype=torch.float64)
    rule = rule_of(capturable=True, **{**KNOBS[name], "lr": lr})
    assert_sum_does_not_matter(backend, problem(rule), rule)


@pytest.mark.parametrize("backend", LISTS)
def test_illegal_steps_without_a_sum_move_nothing(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = rule_of(lr=torch.tensor(math.nan), capturable=True, momentum=0.9)
    tensors = bare(problem(rule))
    before = bare(tensors)
    monkeypatch.setattr(functional, "_is_unseen", lambda value: isinstance(value, Tensor))
    take_steps(backend, tensors, rule)
    assert_same(tensors, before)


@pytest.mark.parametrize("name", ["plain", "momentum"])
@pytest.mark.parametrize("backend", [*BUILDS, *TRITON])
def test_kernels_without_a_sum_unscale(backend: str, name: str) -> None:
    rule = rule_of(**KNOBS[name])
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        start = problem(rule, dtype, device=device_of(backend))
        scale = torch.tensor(1024.0, device=device_of(backend))
        assert_sum_does_not_matter(backend, start, rule, grad_scale=scale)


@pytest.mark.parametrize("name", ["plain", "all"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_without_a_sum_serve_shards_and_strides(backend: str, name: str) -> None:
    rule = rule_of(**KNOBS[name])
    for dtype in (torch.float32, torch.float64):
        start = problem(rule, dtype, device=device_of(backend), sizes=[(0, 17 * 53), (7, 17 * 53)])
        layout = Layout.of_block((17, 53), (40, 61), (5, 7))
        momenta = [m if m is None else m.view(17, 53) for m in start.momenta]
        start = start._replace(
            # The first parameter is not row-major.
            params=[start.params[0].view(53, 17).t(), start.params[1].view(17, 53)],
            grads=[g.view(17, 53) for g in start.grads],
            sums=[s.view(17, 53) for s in start.sums if s is not None],
            layouts=[layout, layout],
            momenta=momenta,
        )
        assert_sum_does_not_matter(backend, start, rule)


@pytest.mark.parametrize("name", ["plain", "weight decay", "all"])
@pytest.mark.parametrize("build", BUILDS)
def test_threads_without_a_sum_have_the_same_bits(build: str, name: str) -> None:
    torch.set_num_threads(3)
    for sigma, dtype in itertools.product(SIGMAS, (torch.float32, torch.float64, torch.float16)):
        rule = rule_of(sigma=sigma, **KNOBS[name])
        sizes = [(0, 5), (2, 50_000), (0, 700), (1, 9001)]
        assert_sum_does_not_matter(build, problem(rule, dtype, sizes=sizes), rule)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_list_may_have_sums_and_none(backend: str) -> None:
    for name in ("plain", "all"):
        rule = rule_of(**KNOBS[name])
        start = problem(rule, device=device_of(backend))
        mixed = bare(start)
        sums = [None if s is None else s.clone() for s in start.sums]
        mixed = mixed._replace(sums=[s if i % 2 else None for i, s in enumerate(sums)])
        take_steps(backend, start, rule)
        take_steps(backend, mixed, rule)
        assert_same(mixed, start)
        for ours, theirs in zip(mixed.sums[1::2], start.sums[1::2], strict=True):
            assert ours is not None
            assert theirs is not None
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("build", BUILDS)
def test_a_table_of_the_c_kernel_may_have_sums_and_none(build: str) -> None:
    _native.set_build(build)
    rule = rule_of(**KNOBS["all"])
    start = problem(rule)
    mixed = bare(start)
    mixed = mixed._replace(sums=[None if i % 2 else s for i, s in enumerate(start.sums)])
    take_steps(build, start, rule, 1)
    rows = [None] * len(SIZES)
    columns = (mixed.params, mixed.sums, mixed.steps, mixed.streams, rows, mixed.momenta)
    _native.CpuTable(*columns).step([g.data_ptr() for g in mixed.grads], rule)
    assert_same(mixed, start)


# ----------------------------------------------------------------------------------------------
# What needs a sum
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DIVIDING)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rule_that_divides_needs_all_sums(backend: str, name: str) -> None:
    """It raises before the parameters that have a sum move."""
    rule = rule_of(**DIVIDING[name])
    start = problem(rule, device=device_of(backend))
    mixed = start._replace(sums=[*start.sums[:-1], None])
    before = bare(start)
    with pytest.raises(ValueError, match=r"no sum of squares.*need alpha=0"):
        take_steps(backend, mixed, rule)
    assert_same(start, before)


def test_tables_refuse_a_rule_that_divides() -> None:
    tables: list[Any] = [_native.CpuTable] if BUILDS else []
    if HAS_TRITON and not IS_GPU:
        tables.append(_triton.GpuTable)
    rule = rule_of(alpha=1.0)
    for table in tables:
        tensors = bare(problem(rule, sizes=[(0, 5)]))
        columns = (tensors.params, tensors.sums, tensors.steps, tensors.streams, [None])
        with pytest.raises(ValueError, match="no sum of squares"):
            table(*columns).step([g.data_ptr() for g in tensors.grads], rule)


@pytest.mark.skipif(not TRITON, reason="Triton is not installed")
def test_a_table_of_the_gpu_kernel_has_all_sums_or_none() -> None:
    tensors = problem(rule_of(), device=device_of("triton"), sizes=[(0, 5), (0, 5)])
    columns = (tensors.params, [tensors.sums[0], None], tensors.steps, tensors.streams)
    with pytest.raises(ValueError, match="some of `sums` are None"):
        _triton.GpuTable(*columns, [None, None])


def test_the_operator_of_a_compiled_step_needs_all_sums() -> None:
    rule = rule_of(lr=torch.tensor(0.1))
    with pytest.raises(RuntimeError, match="needs a sum for every parameter"):
        plan.step_as_operator(bare(problem(rule)), rule, None, None)
