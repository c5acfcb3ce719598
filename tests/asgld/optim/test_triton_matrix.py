"""The kernels for matrices against torch in float64: on a GPU where there is one, else in Triton's
interpreter."""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
from collections.abc import Sequence

import pytest
import torch
from helpers import make_tensor, pairwise
from torch import Tensor

import asgld
from asgld.optim import polar

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)
IS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if IS_GPU else "cpu"
if not IS_GPU:  # the kernels are bound to the interpreter when they are defined
    os.environ["TRITON_INTERPRET"] = "1"
try:
    from asgld.optim import _triton_matrix as matrix
finally:
    if not IS_GPU:
        del os.environ["TRITON_INTERPRET"]

Triples = Sequence[tuple[float, float, float]]
# Rounding of operands and results, as a part of the norm.
ROUNDING = {torch.float16: 1e-3, torch.bfloat16: 8e-3}
# Muon's; those of the polar express, whose first steps are long; one that converges slowly.
EXPRESS = [
    (8.2051, -22.9019, 16.4607), (4.0664, -2.8612, 0.5184), (3.9096, -2.8234, 0.5250),
    (3.2856, -2.4153, 0.4853), (2.2779, -1.6198, 0.3985),
]  # fmt: skip
CUBIC = [(1.5, -0.5, 0.0)] * 4


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    if not IS_GPU:
        monkeypatch.setenv("TRITON_INTERPRET", "1")


def normal(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return make_tensor(*shape, seed=seed).to(DEVICE, dtype)


def error_of(found: Tensor, exact: Tensor) -> float:
    """Distance over the norm; infinite if a number is none."""
    error = float((found.double() - exact.double()).norm() / exact.double().norm())
    return error if math.isfinite(error) else math.inf


# ----------------------------------------------------------------------------------------------
# Symmetric products
# ----------------------------------------------------------------------------------------------

SMALL = [(1, 5, 7), (1, 1, 9), (1, 9, 1), (2, 72, 200), (2, 200, 72), (3, 64, 64), (1, 1, 1)]
LARGE = [(12, 768, 3072), (12, 3072, 768), (3, 2048, 2048), (2, 1000, 1544), (1, 777, 333)]
TILES = [
    matrix.Tile(*blocks, 4, 2, has_tma)
    for blocks in ((64, 64, 32), (64, 128, 32), (128, 64, 32))
    for has_tma in (False, True)
]
# The interpreter multiplies the bits of bfloat16.
PRODUCT_TYPES = [torch.float16, torch.bfloat16] if IS_GPU else [torch.float16]
if IS_GPU:
    TILES += [matrix.Tile(128, 128, 64, 4, 3, True), matrix.Tile(128, 256, 64, 8, 3, True)]


def name_of(value: object) -> str | None:
    return "x".join(map(str, value)) if isinstance(value, tuple) else None


def check_product(shape: tuple[int, int, int], turned: bool, dtype: torch.dtype, **options) -> None:
    number, n, m = shape
    size = m if turned else n
    X = normal(*shape, dtype=dtype)
    C = normal(number, size, size, seed=2)
    C = (C + C.mT).to(dtype)
    wide = X.double()
    product = wide.mT @ wide if turned else wide @ wide.mT
    one = torch.eye(size, dtype=torch.float64, device=DEVICE)
    for has_c in (False, True):
        memory = torch.full((number + 2, size, size), torch.nan, dtype=dtype, device=DEVICE)
        out = memory[1:-1]
        if has_c:
            exact = 0.5 * product - 2.0 * C.double() + 3.0 * one
            result = matrix.symmetric_product(X, out, C, 0.5, -2.0, turned, diagonal=3.0, **options)
        else:
            exact = product
            result = matrix.symmetric_product(X, out, transpose=turned, **options)
        assert result is out
        assert error_of(out, exact) < ROUNDING[dtype]
        assert memory[0].isnan().all()
        assert memory[-1].isnan().all()
        below = torch.tril(out, -1)
        far = 256  # a tile on the diagonal is its own mirror image, but for roundings
        assert torch.equal(torch.tril(out, -far), torch.triu(out, far).mT)
        assert error_of(torch.triu(out, 1).mT, below) < ROUNDING[dtype] or size == 1


@pytest.mark.parametrize("turned", [False, True], ids=["wide", "tall"])
@pytest.mark.parametrize("shape", SMALL, ids=name_of)
def test_symmetric_product_is_the_product(shape: tuple[int, int, int], turned: bool) -> None:
    check_product(shape, turned, torch.float16)


@pytest.mark.parametrize("dtype", PRODUCT_TYPES, ids=str)
@pytest.mark.parametrize("tile", TILES, ids=name_of)
def test_symmetric_product_is_the_product_in_every_tiling(
    tile: matrix.Tile, dtype: torch.dtype
) -> None:
    for turned in (False, True):
        for shape in ((2, 136, 72), (1, 72, 200), (1, 67, 35)):  # an odd row has no descriptor
            check_product(shape, turned, dtype, tile=tile)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("turned", [False, True], ids=["wide", "tall"])
@pytest.mark.parametrize("shape", LARGE, ids=name_of)
def test_symmetric_product_is_the_product_in_real_sizes(
    shape: tuple[int, int, int], turned: bool, dtype: torch.dtype
) -> None:
    check_product(shape, turned, dtype)


@pytest.mark.parametrize("number", [1, 7, 8, 9, 19])
def test_every_tile_is_computed(number: int) -> None:
    """More rows of tiles than a group has, and a last group that is not full."""
    size = 16 * number - 3
    X = normal(1, size, 16, dtype=torch.float16)
    tile = matrix.Tile(16, 16, 16, 1, 2, False)
    out = torch.full((1, size, size), torch.nan, dtype=torch.float16, device=DEVICE)
    matrix.symmetric_product(X, out, tile=tile)
    assert error_of(out, X.double() @ X.double().mT) < 1e-3


def test_symmetric_product_takes_parts_of_larger_tensors() -> None:
    memory = normal(6, 90, 130, dtype=torch.float16)
    for X in (memory[::2, 3:70, 5:77], memory[:, :, ::3], memory.mT):
        for turned in (False, True):
            wide = X.double()
            exact = wide.mT @ wide if turned else wide @ wide.mT
            assert error_of(matrix.symmetric_product(X, transpose=turned), exact) < 1e-3


def test_symmetric_product_of_two_matrices_that_commute() -> None:
    X = normal(2, 70, 80)
    R = (X @ X.mT / 400).half()
    P = (R.double() @ R.double()).half()
    for tile in TILES:
        found = matrix.symmetric_product(R, Y=P, tile=tile)
        assert error_of(found, R.double() @ P.double()) < 2e-3
        assert torch.equal(found, found.mT)


def test_symmetric_product_of_no_matrix() -> None:
    assert matrix.symmetric_product(normal(0, 4, 5, dtype=torch.float16)).shape == (0, 4, 4)


def test_symmetric_product_refuses_what_it_cannot_multiply() -> None:
    X = normal(2, 4, 5, dtype=torch.float16)
    with pytest.raises(ValueError, match="X has shape"):
        matrix.symmetric_product(X[0])
    with pytest.raises(ValueError, match="X has shape"):
        matrix.symmetric_product(X, Y=X[:1])
    with pytest.raises(ValueError, match="out has shape"):
        matrix.symmetric_product(X, out=X)
    with pytest.raises(ValueError, match="C has shape"):
        matrix.symmetric_product(X, C=X)


# ----------------------------------------------------------------------------------------------
# Polar factors
# ----------------------------------------------------------------------------------------------


def spread(number: int, n: int, m: int, decades: float) -> Tensor:
    """Matrices whose singular values are spread evenly over decades."""
    k = min(n, m)
    left, _ = torch.linalg.qr(normal(number, n, k, seed=3).double())
    right, _ = torch.linalg.qr(normal(number, m, k, seed=4).double())
    values = 10 ** (-decades * torch.linspace(0, 1, k, dtype=torch.float64, device=DEVICE))
    return ((left * values) @ right.mT).float()


def iterate(X: Tensor, coefficients: Triples, dtype: torch.dtype) -> Tensor:
    """The plain iteration in a dtype."""
    X = (X.double() / X.double().norm(dim=(1, 2), keepdim=True)).to(dtype)
    is_tall = X.shape[1] > X.shape[2]
    X = X.mT if is_tall else X
    for a, b, c in coefficients:
        A = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return X.mT if is_tall else X


KINDS = {
    "normal": normal,
    "spread over 4 decades": lambda *shape: spread(*shape, decades=4.0),
    "rank 3 and noise": lambda b, n, m: (
        normal(b, n, 3) @ normal(b, 3, m, seed=2) + 1e-3 * normal(b, n, m, seed=3)
    ),
    "a common row": lambda b, n, m: normal(b, n, m) + 3.0 * normal(b, 1, m, seed=2),
}
POLAR_SHAPES = [(1, 256, 400), (1, 400, 256), (2, 40, 136), (1, 136, 40), (2, 72, 72)]
if IS_GPU:
    POLAR_SHAPES += [(12, 768, 3072), (12, 3072, 768), (12, 768, 768), (2, 2048, 8192)]
POLAR_CASES = [*itertools.product(POLAR_SHAPES, KINDS, (matrix.MUON, EXPRESS, CUBIC))]
if not IS_GPU:
    POLAR_CASES = [
        *((POLAR_SHAPES[0], kind, matrix.MUON) for kind in KINDS),
        *((POLAR_SHAPES[0], "spread over 4 decades", triples) for triples in (EXPRESS, CUBIC)),
        *((shape, "normal", matrix.MUON) for shape in POLAR_SHAPES[1:]),
    ]


@pytest.mark.parametrize(("shape", "kind", "coefficients"), POLAR_CASES, ids=name_of)
def test_polar_is_as_good_as_the_plain_iteration(
    shape: tuple[int, int, int], kind: str, coefficients: Triples
) -> None:
    """No further from the iteration in float64 than one and a half times bfloat16 is."""
    X = KINDS[kind](*shape).bfloat16()
    exact = iterate(X, coefficients, torch.float64)
    plain = error_of(iterate(X, coefficients, torch.bfloat16), exact)
    found = error_of(matrix.polar(X.clone(), coefficients), exact)
    assert found < 1.5 * plain


@pytest.mark.parametrize("shape", [(3, 1, 7), (3, 7, 1), (1, 1, 1)], ids=name_of)
def test_polar_of_a_vector_has_its_direction(shape: tuple[int, int, int]) -> None:
    X = normal(*shape, dtype=torch.bfloat16)
    exact = iterate(X, matrix.MUON, torch.float64)
    assert error_of(matrix.polar(X), exact) < 3e-3


def test_polar_of_nothing_and_of_zero() -> None:
    assert matrix.polar(normal(0, 3, 4, dtype=torch.bfloat16)).shape == (0, 3, 4)
    assert (matrix.polar(torch.zeros(2, 5, 8, dtype=torch.bfloat16, device=DEVICE)) == 0).all()


@pytest.mark.parametrize("scale", [2.0**-50, 2.0**-20, 2.0**20, 2.0**50])
def test_polar_does_not_depend_on_the_scale(scale: float) -> None:
    X = normal(1, 20, 50, dtype=torch.bfloat16)
    exact = iterate(X, matrix.MUON, torch.float64)
    found = matrix.polars([(X.float() * scale).bfloat16()], floors=[0.0])[0]
    assert error_of(found, exact) < 1e-2


@pytest.mark.parametrize("lost", [math.inf, math.nan])
def test_polar_of_what_overflows_is_lost(lost: float) -> None:
    """The norm of finite numbers may be infinite; their factor must not be zero then."""
    X = normal(2, 5, 7, dtype=torch.float16)
    if math.isnan(lost):
        X[0, 1, 1] = lost
    found = matrix.polar(X, squares=torch.tensor([lost, 35.0], device=DEVICE))
    assert found[0].isnan().all()
    assert found[1].isfinite().all()


def test_polars_are_the_polars_of_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "_LARGE", 32)
    shapes = [(2, 40, 136), (1, 136, 40), (2, 40, 40), (1, 30, 50), (0, 40, 136)]
    batches = [normal(*shape, seed=i, dtype=torch.bfloat16) for i, shape in enumerate(shapes)]
    squares = torch.cat([X.float().square().sum((1, 2)) for X in batches])
    alone = [matrix.polar(X.clone()) for X in batches]
    together = matrix.polars([X.clone() for X in batches], squares=squares)
    for one, other in zip(alone, together, strict=True):
        assert one.shape == other.shape
        assert one.numel() == 0 or error_of(other, one) < 2e-3


def test_polar_refuses_what_it_would_not_multiply() -> None:
    for X in (normal(2, 3, 4), normal(3, 4, dtype=torch.half), normal(2, 3, 4).half().mT):
        with pytest.raises(ValueError, match="a batch has shape"):
            matrix.polar(X)


def test_runs_end_before_an_error_has_grown() -> None:
    lengths = [[len(run) for run in matrix._segments(c, True)] for c in (matrix.MUON, EXPRESS)]
    assert lengths == [[3, 2], [1, 2, 2]]
    assert [len(run) for run in matrix._segments(matrix.MUON, False)] == [1] * 5


# ----------------------------------------------------------------------------------------------
# Lists of tensors
# ----------------------------------------------------------------------------------------------

BATCHES = [(2, 5, 7), (1, 33, 65), (2, 8, 16), (1, 1, 1)]
if IS_GPU:
    BATCHES += [(12, 768, 3072)]


def matrices(shapes: list[tuple[int, int, int]], seed: int, dtype: torch.dtype) -> list[Tensor]:
    return [
        normal(n, m, seed=100 * seed + 10 * i + j, dtype=dtype)
        for i, (number, n, m) in enumerate(shapes)
        for j in range(number)
    ]


def poisoned(shapes: list[tuple[int, int, int]], dtype: torch.dtype) -> list[Tensor]:
    return [torch.full(shape, torch.nan, dtype=dtype, device=DEVICE) for shape in shapes]


@pytest.mark.parametrize("mu", [0.95, 0.5, 0.3, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_sources_are_those_of_torch(dtype: torch.dtype, mu: float) -> None:
    grads = matrices(BATCHES, 1, dtype)
    momenta = matrices(BATCHES, 2, torch.float32)
    expected = [torch.lerp(m, g.float(), 1.0 - mu) for m, g in zip(momenta, grads, strict=True)]
    wanted = [torch.lerp(g.float(), m, mu) for m, g in zip(expected, grads, strict=True)]
    outs = poisoned(BATCHES, torch.bfloat16)
    squares = matrix.sources(grads, momenta, mu, outs)
    for m, exact in zip(momenta, expected, strict=True):
        torch.testing.assert_close(m, exact, rtol=1e-6, atol=1e-6)
    rows = [X for batch in outs for X in batch]
    for X, exact in zip(rows, wanted, strict=True):
        # The interpreter cuts off where a GPU rounds to nearest.
        torch.testing.assert_close(X.float(), exact, rtol=2**-8 if IS_GPU else 2**-7, atol=1e-6)
    exact = torch.stack([X.double().square().sum() for X in rows])
    torch.testing.assert_close(squares.double(), exact, rtol=1e-5, atol=0)


def test_sources_without_momenta_are_the_gradients() -> None:
    grads = matrices(BATCHES[:1], 1, torch.bfloat16)
    (out,) = poisoned(BATCHES[:1], torch.bfloat16)
    squares = matrix.sources(grads, None, 0.95, out)
    assert torch.equal(out, torch.stack(grads))
    torch.testing.assert_close(squares, out.float().square().sum((1, 2)))


def test_sources_are_the_same_every_time() -> None:
    shape = (3, 100, 300)
    grads = matrices([shape], 1, torch.float32)
    found = []
    for _ in range(3):
        (out,) = poisoned([shape], torch.bfloat16)
        momenta = matrices([shape], 2, torch.float32)
        found.append(matrix.sources(grads, momenta, 0.95, out))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_sources_refuse_lists_that_do_not_fit() -> None:
    (out,) = poisoned([(2, 5, 7)], torch.bfloat16)
    good = matrices([(2, 5, 7)], 1, torch.float32)
    for bad, name in (
        (good[:1], "1 grads for 2 matrices"),
        ([good[0], good[1][:4]], "one of grads has shape"),
        ([good[0], good[1].half()], "one of grads has shape"),
        ([good[0], normal(7, 5).T], "one of grads has shape"),
    ):
        with pytest.raises(ValueError, match=name):
            matrix.sources(bad, good, 0.9, out)
    with pytest.raises(ValueError, match="momenta have dtype"):
        matrix.sources(good, [g.half() for g in good], 0.9, out)


# ----------------------------------------------------------------------------------------------
# A number per row
# ----------------------------------------------------------------------------------------------

ROW_SHAPES = [(2, 5, 7), (1, 40, 300), (3, 1, 9), (1, 1100, 3)]
if IS_GPU:
    ROW_SHAPES += [(12, 3072, 768), (2, 2048, 8192)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", ROW_SHAPES, ids=name_of)
def test_rows_are_scaled_by_their_averages(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    number, n, m = shape
    for decay in (0.95, None):
        X, v = normal(*shape, dtype=dtype), normal(number, n, seed=2).abs()
        r = X.double().square().mean(2)
        average = 0.95 * v.double() + 0.05 * r if decay else v.double() + r
        w = average.rsqrt()
        factor = 0.2 * math.sqrt(max(n, m))
        scale = factor * (r.sum(1) / (r * w * w).sum(1)).sqrt()
        exact = X.double() * w[..., None] * scale[:, None, None]
        multipliers = matrix.row_scales(X, v.clone(), decay, factor)
        torch.testing.assert_close(multipliers.double(), w * scale[:, None], rtol=1e-5, atol=1e-6)
        matrix.scale_rows(X, v, decay, factor)
        torch.testing.assert_close(v.double(), average, rtol=1e-5, atol=1e-6)
        assert error_of(X, exact) < {torch.float32: 1e-6, **ROUNDING}[dtype]


def test_rows_of_zeros_stay_zero() -> None:
    """A matrix of zeros as well; nothing is infinite, and what is not a number stays so."""
    X = normal(3, 4, 6, dtype=torch.float16)
    X[0, 2] = 0.0
    X[1] = 0.0
    X[2, 0, 0] = math.nan
    v = torch.zeros(3, 4, device=DEVICE)
    matrix.scale_rows(X, v, 0.5, 1.0)
    assert (X[0, 2] == 0).all()
    assert (X[0, [0, 1, 3]] != 0).all()
    assert (X[1] == 0).all()
    assert X[2].isnan().all()
    assert v[:2].isfinite().all()
    large = torch.full((1, 2, 2), 6e4, dtype=torch.float16, device=DEVICE)
    matrix.scale_rows(large, torch.ones(1, 2, device=DEVICE), 0.5, 100.0)
    assert large.isfinite().all()


def test_rows_with_an_infinite_average_are_lost() -> None:
    X, v = normal(2, 4, 6, dtype=torch.float16), torch.ones(2, 4, device=DEVICE)
    v[0, 2] = math.inf
    matrix.scale_rows(X, v, 0.5, 1.0)
    assert X[0].isnan().all()
    assert X[1].isfinite().all()


def test_rows_refuse_averages_that_do_not_fit() -> None:
    X, v = normal(2, 4, 6, dtype=torch.float16), torch.ones(2, 4, device=DEVICE)
    for name, arguments in (
        ("v has shape", (X, v[:, :3])),
        ("v has shape", (X, v.half())),
        ("X has strides", (X.mT.contiguous().mT, v)),
    ):
        with pytest.raises(ValueError, match=name):
            matrix.row_scales(*arguments, 0.9, 1.0)


# ----------------------------------------------------------------------------------------------
# A whole step in a graph
# ----------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_graph_repeats_the_step() -> None:
    shapes = [(2, 256, 768), (3, 768, 256), (2, 256, 256)]
    found = []
    for is_captured in (False, True):
        grads, momenta = (matrices(shapes, i, torch.float32) for i in (2, 3))
        averages = [torch.ones(shape[:2], device=DEVICE) for shape in shapes]
        results = poisoned(shapes, torch.float16)

        def step() -> None:
            batches = poisoned(shapes, torch.bfloat16)
            squares = matrix.sources(grads, momenta, 0.95, batches)  # noqa: B023
            batches = matrix.polars(batches, squares=squares)
            for X, v, result in zip(batches, averages, results, strict=True):  # noqa: B023
                matrix.scale_rows(X, v, 0.95, 2.0)
                result.copy_(X)

        step()
        again = step
        if is_captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            again = graph.replay
        for k in range(3):
            for i, g in enumerate(grads):
                g.copy_(normal(*g.shape, seed=1000 * k + i))
            again()
        torch.cuda.synchronize()
        found.append(torch.cat([t.flatten().float() for t in [*results, *momenta, *averages]]))
    assert torch.equal(*found)


# ----------------------------------------------------------------------------------------------
# The step of the optimizer
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "blocks", "polar_by", "is_odd"),
    pairwise(["polar", "polar-row"], [1, 3], ["express", "muon"], [False, True]),
)
def test_step_in_kernels_is_the_step_in_torch(
    shape: str, blocks: int, polar_by: str, is_odd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a percent of a step, and both keep the same momenta: float16 against float32 products.
    Where there is no GPU, tensors on the CPU stand in for those of a GPU."""
    sizes = [(6, 10), (12, 5), (9, 9), (6, 10)]

    def run(in_kernels: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        params = [normal(*size, seed=i).requires_grad_() for i, size in enumerate(sizes)]
        optimizer = asgld.NetworkASGLD(
            [{"params": params, "shape": shape, "blocks": blocks, "polar_by": polar_by}],
            lr=0.01, noise=0.5, fused=None if in_kernels or not IS_GPU else False,
        )  # fmt: skip
        with monkeypatch.context() as patch:
            if in_kernels and not IS_GPU:
                patch.setattr(polar, "kernels_for", lambda device, rule: matrix)
                patch.setattr(polar, "product_dtype", lambda *_: torch.bfloat16)
            elif not in_kernels:
                patch.setattr(polar, "product_dtype", lambda device, dtype, rule: dtype)
            for k in range(2):
                for i, p in enumerate(params):
                    p.grad = normal(*p.shape, seed=10 * k + i)
                    if is_odd:
                        p.grad = p.grad.t().contiguous().t()
                optimizer.step()
        return [p.detach() for p in params], [optimizer.state[p]["momentum"] for p in params]

    found, momenta = run(True)
    expected, kept = run(False)
    for p, q in zip(momenta, kept, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-6)
    for p, q, size in zip(found, expected, sizes, strict=True):
        step = 2 * 0.01 * 0.2 * math.sqrt(math.prod(size))  # norm of two steps
        assert float((p - q).norm()) < 0.03 * step
