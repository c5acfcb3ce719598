"""A D of another shape: equal to the reference, to Muon, to full-matrix Adagrad."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers import HEATING, make_tensor, pairwise, take_steps
from torch import Tensor

import asgld
from asgld import noise, reference
from asgld.optim import polar, shapes
from asgld.optim.rule import SHAPES

pytestmark = pytest.mark.filterwarnings(HEATING)

OTHERS = [shape for shape in SHAPES if shape != "coordinate"]
POLAR = [shape for shape in OTHERS if shape.startswith("polar")]
PREDICTABLE = [shape for shape in OTHERS if shape not in POLAR]
# Shapes of a parameter, and how many matrices it holds.
SIZES = [
    ((3, 5), 1), ((6, 4), 1), ((5, 5), 1), ((7,), 1), ((), 1), ((1, 4), 1), ((4, 1), 1),
    ((6, 4), 3), ((4, 3, 5), 4), ((5, 2, 3), 1), ((3, 2, 2, 2), 1),
]  # fmt: skip
EXPONENTS = [
    (1.0, 1.0),
    (1.0, 0.5),
    (0.0, 1.0),
    (0.7, 1.3),
    (2.0, 2.0),
    (1.0, 0.0),
    (1.0, math.inf),
]
WIDER: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.1, "maximize": True},
    {"decay": 0.9},
    {"decay": 0.9, "d_init": 0.0, "delta": 1e-3},
    {"momentum": 0.8},
    {"clip": 0.25, "d_init": 0.1},
    {"momentum": 0.8, "opposed": 0.0},
    {
        "decay": 0.99,
        "momentum": 0.9,
        "clip": 0.25,
        "annealing": 1.0,
        "d_init": 0.0,
        "opposed": -0.3,
    },
    {"sigma": 0.0, "noise": 2.0, "annealing": 1.0},
    {"noise_bound": 0.5},
]
RULE: dict[str, Any] = {
    "lr": 0.05,
    "alpha": 1.0,
    "beta": 1.0,
    "sigma": 0.3,
    "delta": 0.01,
    "d_init": 1.0,
}


def _reference_path(start: Tensor, steps: int, **knobs: Any) -> np.ndarray:
    """Return the last iterate of the reference, for the gradients of `take_steps`."""
    count = iter(range(steps))
    seed = knobs.pop("seed", 0)

    def gradient(x: np.ndarray) -> np.ndarray:
        k = next(count)
        return make_tensor(*x.shape, seed=1000 * k, dtype=torch.float64).numpy() + 0.5 * x

    def normals(k: int) -> np.ndarray:
        return noise.normal(seed, 0, k, np.arange(start.numel())).reshape(start.shape)

    path = reference.asgld(gradient, start.numpy().copy(), normals, **knobs)
    return [next(path) for _ in range(steps)][-1]


def _assert_equals_the_reference(size: tuple[int, ...], **knobs: Any) -> None:
    p = make_tensor(*size, seed=1, dtype=torch.float64).requires_grad_()
    expected = _reference_path(p.detach(), 12, **knobs)
    take_steps(asgld.ASGLD([p], **knobs), 12)
    np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("shape", "size", "exponents", "wider"), pairwise(PREDICTABLE, SIZES, EXPONENTS, WIDER)
)
def test_rule_equals_the_reference(
    shape: str,
    size: tuple[tuple[int, ...], int],
    exponents: tuple[float, float],
    wider: dict[str, Any],
) -> None:
    knobs = {**RULE, "alpha": exponents[0], "beta": exponents[1], **wider}
    if "noise_bound" in wider and knobs["beta"] == 0.0:
        knobs["beta"] = 1.0
    _assert_equals_the_reference(size[0], shape=shape, blocks=size[1], seed=3, **knobs)


@pytest.mark.parametrize(
    ("shape", "size", "wider", "polar_by", "fused"),
    pairwise(
        POLAR,
        SIZES,
        [w for w in WIDER if not w.keys() & {"clip", "opposed", "noise_bound"}],
        ["express", "muon", "svd"],
        [None, False],
    ),
)
def test_polar_forms_equal_the_reference(
    shape: str, size: tuple[tuple[int, ...], int], wider: dict[str, Any], polar_by: str, fused: Any
) -> None:
    knobs = {**RULE, "beta": 0.0, **wider}
    p = make_tensor(*size[0], seed=1, dtype=torch.float64).requires_grad_()
    knobs |= {"shape": shape, "blocks": size[1], "polar_by": polar_by, "seed": 3}
    expected = _reference_path(p.detach(), 12, **knobs)
    take_steps(asgld.ASGLD([p], fused=fused, **knobs), 12)
    np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-10, atol=1e-10)


def test_blocks_are_matrices_of_their_own() -> None:
    """A weight of three blocks takes the step of three weights."""
    for shape in OTHERS:
        quiet = {**RULE, "sigma": 0.0, "shape": shape}
        whole = make_tensor(6, 4, seed=1, dtype=torch.float64).requires_grad_()
        parts = [part.clone().requires_grad_() for part in whole.detach().split(2)]
        together = asgld.ASGLD([whole], blocks=3, **quiet)
        apart = asgld.ASGLD(parts, **quiet)
        for k in range(4):
            whole.grad = make_tensor(6, 4, seed=k, dtype=torch.float64)
            for part, grad in zip(parts, whole.grad.split(2), strict=True):
                part.grad = grad.clone()
            together.step()
            apart.step()
        torch.testing.assert_close(
            whole.detach(), torch.cat(parts).detach(), rtol=1e-13, atol=1e-13
        )


# ----------------------------------------------------------------------------------------------
# Special cases, written independently
# ----------------------------------------------------------------------------------------------


def _torch_muon(params: list[Tensor], **options: Any) -> torch.optim.Optimizer:
    return torch.optim.Muon(params, adjust_lr_fn="match_rms_adamw", **options)


def _steps_of_both(dtype: torch.dtype, steps: int = 5) -> list[tuple[Tensor, Tensor]]:
    sizes = [(8, 5), (5, 8), (6, 6), (40, 70), (64, 16)]
    pairs = []
    for i, size in enumerate(sizes):
        p = make_tensor(*size, seed=i, dtype=dtype)
        pairs.append((p.clone().requires_grad_(), p.clone().requires_grad_()))
    ours = asgld.ASGLD(
        [a for a, _ in pairs], lr=0.02, weight_decay=0.1, momentum=0.95, sigma=0.0, delta=0.0,
        shape="polar", polar_by="muon",
    )  # fmt: skip
    theirs = _torch_muon([b for _, b in pairs], lr=0.02, weight_decay=0.1, momentum=0.95)
    for k in range(steps):
        for i, (a, b) in enumerate(pairs):
            a.grad = make_tensor(*a.shape, seed=100 * k + i, dtype=dtype)
            b.grad = a.grad.clone()
        ours.step()
        theirs.step()
    return pairs


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_polar_form_is_muon(
    dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's Muon computes products in bfloat16. With that conversion taken out, both have the
    products of `dtype`, and what is left is the order of sums in a product."""
    monkeypatch.setattr(Tensor, "bfloat16", lambda self: self.clone())
    for ours, theirs in _steps_of_both(dtype):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def test_polar_form_is_muon_within_the_rounding_of_bfloat16() -> None:
    """A step is lr 0.2 sqrt(max(n, m)) times a polar factor; bfloat16 has 8 bits."""
    for ours, theirs in _steps_of_both(torch.float32, steps=1):
        step = 0.02 * 0.2 * math.sqrt(max(ours.shape))
        assert float((ours - theirs).detach().abs().max()) < 0.05 * step


def test_left_of_a_vector_is_full_matrix_adagrad() -> None:
    """Duchi, Hazan and Singer (2011), with the lag of one step; inverse roots by a Schur-free
    Newton iteration, so that nothing is shared with the library."""

    def inverse_root(matrix: np.ndarray) -> np.ndarray:
        scale = np.trace(matrix)
        y, z = matrix / scale, np.eye(len(matrix))
        for _ in range(60):  # Denman and Beavers
            y, z = 0.5 * (y + np.linalg.inv(z)), 0.5 * (z + np.linalg.inv(y))
        return z / math.sqrt(scale)

    x = make_tensor(6, seed=1, dtype=torch.float64).requires_grad_()
    expected, full = x.detach().numpy().copy(), np.eye(6)
    optimizer = asgld.ASG([x], lr=0.1, delta=0.01, d_init=1.0, shape="left")
    for k in range(20):
        g = make_tensor(6, seed=k, dtype=torch.float64)
        x.grad = g
        optimizer.step()
        expected = expected - 0.1 * inverse_root(full) @ g.numpy()
        full = full + np.outer(g.numpy(), g.numpy()) + 0.01 * np.eye(6)
    np.testing.assert_allclose(x.detach().numpy(), expected, rtol=1e-10, atol=1e-10)


def _rotation(size: int, seed: int) -> Tensor:
    return torch.linalg.qr(make_tensor(size, size, seed=seed, dtype=torch.float64)).Q


@pytest.mark.parametrize(
    ("shape", "sides"), [("left", 1), ("both", 2), ("scalar", 2), ("polar", 2)]
)
def test_matrix_shapes_follow_rotations(shape: str, sides: int) -> None:
    """Rotate the gradients, and the path rotates; a D per coordinate has no such property."""
    left = _rotation(4, 1)
    right = _rotation(3, 2) if sides == 2 else torch.eye(3, dtype=torch.float64)
    quiet = {**RULE, "sigma": 0.0, "momentum": 0.5}

    def run(word: str, is_rotated: bool) -> Tensor:
        p = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
        optimizer = asgld.ASGLD([p], shape=word, **quiet)
        for k in range(6):
            g = make_tensor(4, 3, seed=k, dtype=torch.float64)
            p.grad = left @ g @ right if is_rotated else g
            optimizer.step()
        return p.detach()

    torch.testing.assert_close(run(shape, True), left @ run(shape, False) @ right)
    assert not torch.allclose(run("coordinate", True), left @ run("coordinate", False) @ right)


def test_polar_factor_has_singular_values_close_to_one() -> None:
    """Polar Express promises them within a few percent for singular values down to 1e-3 of the
    norm; Muon's coefficients end between 0.65 and 1.25."""
    for n, m in [(32, 32), (20, 60), (60, 20)]:
        batch = make_tensor(3, n, m, seed=n + m, dtype=torch.float64)
        exact = polar.polar_factors(batch, "svd", 0.0)
        torch.testing.assert_close(
            torch.linalg.svdvals(exact), torch.ones(3, min(n, m), dtype=torch.float64)
        )
        for word, low, high in [("express", 0.85, 1.15), ("muon", 0.6, 1.3)]:
            values = torch.linalg.svdvals(polar.polar_factors(batch, word, 0.0))
            kept = torch.linalg.svdvals(batch) > 3e-3 * batch.norm(dim=(1, 2))[:, None]
            assert low < float(values[kept].min()) <= float(values.max()) < high


def test_zero_gradients_move_a_polar_form_by_noise_alone() -> None:
    for shape in POLAR:
        for fused in (None, False):
            p = torch.zeros(4, 3, requires_grad=True)
            p.grad = torch.zeros(4, 3)
            asgld.ASGLD([p], lr=0.1, beta=0.0, sigma=0.0, shape=shape, fused=fused).step()
            assert not p.any()
            asgld.ASGLD([p], lr=0.1, beta=0.0, sigma=1.0, shape=shape, fused=fused).step()
            expected = noise.normal(0, 0, 0, np.arange(12)).reshape(4, 3) * math.sqrt(0.2)
            np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-5, atol=1e-6)


def test_units_of_the_loss_do_not_change_a_polar_form() -> None:
    """Powers of two, so that all but the exponents of floating point stays as it is."""
    ends = []
    for scale in (1.0, 2.0**-20, 2.0**30):
        p = make_tensor(8, 6, seed=0).requires_grad_()
        group = {"params": [p], "shape": "polar-row", "delta": 0.0}
        optimizer = asgld.NetworkASGLD([group], lr=0.01)
        for k in range(3):
            p.grad = scale * make_tensor(8, 6, seed=k)
            optimizer.step()
        ends.append(p.detach())
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


def test_a_row_that_wakes_up_does_not_take_the_step() -> None:
    """A row without gradients for long has an average of zero. Its first gradient counts in its own
    average, so the row is at most 1 / sqrt(1 - decay) times as long as others."""
    p = torch.zeros(6, 8, requires_grad=True)
    optimizer = asgld.NetworkASGLD(
        [{"params": [p], "shape": "polar-row", "momentum": 0.0}], lr=1.0, noise=0.0
    )
    for k in range(30):
        p.grad = make_tensor(6, 8, seed=k)
        if k < 29:
            p.grad[3] = 0.0
        before = p.detach().clone()
        optimizer.step()
    rows = (p.detach() - before).norm(dim=1)
    assert 0.0 < rows[3] < 10.0 * rows[:3].max()
    assert float((p.detach() - before).square().mean().sqrt()) == pytest.approx(0.2, rel=0.1)


# ----------------------------------------------------------------------------------------------
# Knobs
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "knobs", "word"),
    [
        ("diagonal", {}, "shape"),
        ("polar", {"beta": 1.0}, "beta"),
        ("polar", {"beta": 0.0, "alpha": 0.5}, "alpha"),
        ("polar-row", {"beta": 0.0, "clip": 0.1}, "clip"),
        ("polar", {"beta": 0.0, "momentum": 0.9, "opposed": 0.0}, "opposed"),
        ("polar", {"beta": 0.0, "polar_by": "newton"}, "polar_by"),
        ("polar", {"beta": 0.0, "polar_by": "svd", "capturable": True}, "capturable"),
        ("left", {"capturable": True}, "capturable"),
        ("row", {"sum_dtype": torch.bfloat16}, "sum_dtype"),
        ("row", {"differentiable": True}, "differentiable"),
        ("row", {"fused": True}, "fused"),
        ("both", {"foreach": True}, "foreach"),
        ("row", {"blocks": 0}, "blocks"),
        ("row", {"blocks": 3}, "blocks"),
        ("row", {"blocks": True}, "blocks"),
        ("row", {"share_work": "yes"}, "share_work"),
        ("row", {"share_work": True, "capturable": True}, "share_work"),
    ],
)
def test_knob_that_does_not_go_with_a_shape_is_refused_by_name(
    shape: str, knobs: dict[str, Any], word: str
) -> None:
    p = torch.zeros(4, 3, requires_grad=True)
    with pytest.raises((ValueError, TypeError), match=word):
        asgld.ASGLD([p], shape=shape, **knobs)


@pytest.mark.parametrize("shape", OTHERS)
def test_complex_parameters_are_refused(shape: str) -> None:
    p = torch.zeros(4, 3, dtype=torch.complex64, requires_grad=True)
    with pytest.raises(ValueError, match="complex"):
        asgld.ASGLD([p], beta=0.0, shape=shape)


@pytest.mark.parametrize("shape", OTHERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_at_random_without_bias(shape: str, dtype: torch.dtype) -> None:
    """A step of a sixteenth of a unit in the last place is lost by rounding to nearest. Rounded at
    random it is taken on average: 4096 elements, 5 standard errors."""
    p = torch.ones(64, 64, dtype=dtype, requires_grad=True)
    unit = float(torch.finfo(dtype).eps)
    options: dict[str, Any] = {"delta": 0.0, "sigma": 0.0, "shape": shape}
    # All rows and columns alike, so every element gets the same step.
    p.grad = torch.ones_like(p)
    step = 0.2 if shape.startswith("polar") else 1.0
    optimizer = asgld.ASGLD([p], lr=unit / 16 / step, stochastic_rounding=True, **options)
    optimizer.step()
    if shape.startswith("polar"):  # a matrix of rank one has a polar factor 64 times as small
        expected = unit / 16 / 64 * 8 * 8 / 8
    else:
        expected = unit / 16
    mean = float((1.0 - p.detach().float()).mean())
    deviation = math.sqrt(expected * unit / 4096)
    assert abs(mean - expected) < 5 * deviation + 0.3 * expected * shape.startswith("polar")
    assert mean > 0.0


# ----------------------------------------------------------------------------------------------
# States
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", OTHERS)
def test_state_resumes_bit_for_bit(shape: str) -> None:
    options = {**RULE, "beta": 0.0 if shape in POLAR else 1.0, "momentum": 0.9, "shape": shape}
    p = make_tensor(6, 4, seed=1).requires_grad_()
    optimizer = asgld.ASGLD([("w", p)], blocks=2, **options)
    take_steps(optimizer, 3)
    other = p.detach().clone().requires_grad_()
    resumed = asgld.ASGLD([("w", other)], **options | {"shape": "coordinate", "beta": 1.0})
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    take_steps(optimizer, 3, first=3)
    take_steps(resumed, 3, first=3)
    assert torch.equal(p, other)
    for name, value in optimizer.state[p].items():
        assert torch.equal(value, resumed.state[other][name])


@pytest.mark.parametrize("shape", OTHERS)
def test_changed_shape_is_refused_and_nothing_moves(shape: str) -> None:
    p = make_tensor(6, 4, seed=1).requires_grad_()
    optimizer = asgld.ASGLD([p], lr=0.1, beta=0.0, sigma=0.0)
    take_steps(optimizer, 2)
    before = p.detach().clone()
    optimizer.param_groups[0]["shape"] = shape
    p.grad = torch.ones_like(p)
    if shape == "polar":  # it needs no sum
        optimizer.step()
        return
    with pytest.raises(ValueError, match=r"sum|right"):
        optimizer.step()
    assert torch.equal(p, before)


@pytest.mark.parametrize("shape", ["left", "both"])
def test_gradient_that_is_not_finite_shows_in_the_parameter(shape: str) -> None:
    p = torch.ones(3, 2, requires_grad=True)
    optimizer = asgld.ASGLD([p], lr=0.1, sigma=0.0, shape=shape)
    for value in (1.0, math.nan, 1.0):
        p.grad = torch.full_like(p, value)
        optimizer.step()
    assert not bool(p.isfinite().any())


@pytest.mark.parametrize("shape", OTHERS)
@pytest.mark.parametrize(
    "change", ["strided", "channels", "alias", "half gradient", "empty", "negated", "expanded"]
)
def test_odd_tensors_take_the_step_of_plain_ones(shape: str, change: str) -> None:
    options = {**RULE, "beta": 0.0, "momentum": 0.5, "shape": shape}
    size = (0, 3) if change == "empty" else (4, 3, 2, 2) if change == "channels" else (4, 3)
    plain = make_tensor(*size, seed=1).requires_grad_()
    odd = plain.detach().clone()
    if change == "strided":
        odd = odd.t().contiguous().t()
    if change == "channels":
        odd = odd.contiguous(memory_format=torch.channels_last)
    odd.requires_grad_()
    first, second = asgld.ASGLD([plain], **options), asgld.ASGLD([odd], **options)
    for k in range(3):
        grad = make_tensor(*size, seed=5 + k)
        if change == "alias" and k:
            grad = second.state[odd]["momentum"].clone()
        if change == "half gradient":
            grad = grad.bfloat16().float()
        if change == "expanded":
            grad = grad[:1].expand(size)
        plain.grad, odd.grad = grad.clone(), grad
        if change == "alias" and k:
            odd.grad = second.state[odd]["momentum"]
        if change == "half gradient":
            odd.grad_dtype = None
            odd.grad = grad.bfloat16()
        if change == "negated":
            odd.grad = torch._neg_view(-grad)
        first.step()
        second.step()
    torch.testing.assert_close(plain, odd, rtol=0.0, atol=0.0)


def test_size_of_a_parameter_as_a_matrix() -> None:
    assert shapes.size_of((), 1) == (1, 1)
    assert shapes.size_of((7,), 1) == (7, 1)
    assert shapes.size_of((8, 3, 5, 5), 1) == (8, 75)
    assert shapes.size_of((8, 3, 5), 8) == (3, 5)
    assert shapes.size_of((8, 3), 8) == (1, 3)


@pytest.mark.parametrize("polar_by", ["express", "muon", "svd"])
def test_matrix_that_is_not_finite_spoils_no_other(polar_by: str) -> None:
    params = [make_tensor(3, 4, seed=i).requires_grad_() for i in range(2)]
    optimizer = asgld.ASGLD(
        params, lr=0.1, beta=0.0, sigma=0.0, momentum=0.9, shape="polar", polar_by=polar_by
    )
    for p in params:
        p.grad = torch.ones_like(p)
    params[0].grad[0, 0] = math.nan  # type: ignore[index]
    optimizer.step()
    assert bool(params[0].isnan().any())
    assert bool(params[1].isfinite().all())


@pytest.mark.parametrize("shape", PREDICTABLE)
def test_one_huge_gradient_shows_where_its_square_overflows(shape: str) -> None:
    """As with a D per coordinate. Matrices have sums of double precision, which hold it."""
    p = torch.zeros(6, 4, requires_grad=True)
    optimizer = asgld.NetworkASGLD([p], shape=shape, noise=0.0)
    for k, scale in enumerate((1.0, 1e20, 1.0, 1.0)):
        p.grad = scale * make_tensor(6, 4, seed=k)
        optimizer.step()
    assert bool(p.isfinite().all() if shape in ("left", "both") else p.isnan().all())


# On both sides of the sizes from which other products serve on a CPU; wide, tall, square, odd.
LARGE = [(3, 100, 140), (2, 131, 200), (2, 200, 131), (1, 515, 530), (1, 1031, 515)]


@pytest.mark.parametrize("size", LARGE, ids=str)
@pytest.mark.parametrize("polar_by", ["express", "muon"])
def test_large_polar_factors_are_as_exact_as_small_ones(
    size: tuple[int, int, int], polar_by: str
) -> None:
    """A factor has the norm of about one per row. It is the same alone and in a batch."""
    batch = make_tensor(*size, seed=1)
    found = polar.polar_factors(batch, polar_by, 0.0)
    exact = polar.polar_factors(batch.double(), polar_by, 0.0)
    assert float((found - exact).abs().max()) < 1e-5
    if size[0] > 1 and min(size[1:]) >= polar._LARGE:
        alone = [polar.polar_factors(one[None], polar_by, 0.0) for one in batch]
        assert torch.equal(torch.cat(alone), found)


def test_products_on_a_cpu_are_of_bfloat16_where_torch_may_take_them() -> None:
    if not torch.cpu._is_avx512_bf16_supported():
        pytest.skip("this processor has no bfloat16")
    batch = make_tensor(1, 200, 150, seed=1)
    exact = polar.polar_factors(batch.double(), "express", 0.0)
    errors, setting = [], torch.backends.mkldnn.matmul
    before = setting.fp32_precision
    try:
        for word in ("ieee", "bf16"):
            setting.fp32_precision = word
            found = polar.polar_factors(batch, "express", 0.0)
            assert found.dtype == torch.float32
            errors.append(float((found - exact).norm() / exact.norm()))
    finally:
        setting.fp32_precision = before
    assert errors[0] < 1e-5 < 1e-3 < errors[1] < 0.03


def test_singular_values_that_do_not_converge_have_a_fallback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = make_tensor(2, 5, 8, seed=1, dtype=torch.float64)
    expected = [polar.polar_factors(b, "svd", 0.0) for b in (batch, batch.mT)]

    def fail(*_: Any, **__: Any) -> Any:
        raise torch.linalg.LinAlgError("no convergence")

    monkeypatch.setattr(torch.linalg, "svd", fail)
    for b, exact in zip((batch, batch.mT), expected, strict=True):
        torch.testing.assert_close(polar.polar_factors(b, "svd", 0.0), exact)


@pytest.mark.parametrize("shape", ["row", "both", "polar-row"])
def test_state_in_the_memory_of_its_parameter_is_refused(shape: str) -> None:
    p = make_tensor(4, 4, seed=1).requires_grad_()
    optimizer = asgld.ASGLD([p], beta=0.0, sigma=0.0, momentum=0.5, shape=shape)
    take_steps(optimizer, 1)
    optimizer.state[p]["momentum"] = p.detach()
    before = p.detach().clone()
    with pytest.raises(RuntimeError, match="share memory"):
        optimizer.step()
    assert torch.equal(p, before)


@pytest.mark.parametrize("shape", PREDICTABLE)
def test_empty_parameters_keep_their_sums(shape: str) -> None:
    for size in ((0,), (3, 0), (0, 4)):
        p = torch.zeros(size, requires_grad=True)
        optimizer = asgld.ASGLD([p], shape=shape)
        take_steps(optimizer, 2)
        state = optimizer.state[p]
        assert all(bool(state[name].isfinite().all()) for name in ("sum", "right") if name in state)
