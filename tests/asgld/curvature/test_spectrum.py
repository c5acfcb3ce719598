"""Bounds on extreme eigenvalues, and whether their stated confidence is honest."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from quadratic import Quadratic, normal, zeros
from torch import Tensor

from asgld.curvature import Kind, Spectrum, classify, lambda_max, lambda_min, steps_needed
from asgld.curvature.lanczos import Krylov, overlap
from asgld.curvature.operator import SymmetricOperator

SPECTRA: dict[str, Callable[[int], Tensor]] = {
    "uniform": lambda d: torch.linspace(-0.02, 1, d, dtype=torch.float64),
    "gap": lambda d: torch.cat([torch.tensor([-0.02]), torch.linspace(0.1, 1, d - 1)]).double(),
    "geometric": lambda d: torch.cat(
        [torch.tensor([-1e-3]), torch.logspace(-6, 0, d - 1)]
    ).double(),
    "few distinct": lambda d: torch.cat([torch.tensor([-0.5, -0.5]), torch.ones(d - 2)]).double(),
    "negative": lambda d: torch.linspace(-3, -1, d, dtype=torch.float64),
    "zero": zeros,
}


@pytest.mark.parametrize("max_bytes", [2**31, 0], ids=["basis kept", "basis recomputed"])
@pytest.mark.parametrize("dim", [3, 60, 200])
@pytest.mark.parametrize("name", SPECTRA)
def test_lambda_min_agrees_with_eigh(name: str, dim: int, max_bytes: int) -> None:
    a = Quadratic(SPECTRA[name](dim), normal(3, dim))
    eigenvalues = torch.linalg.eigvalsh(torch.stack([a.matvec(e) for e in torch.eye(dim).double()]))
    options: dict[str, Any] = {"dense_below": 0, "max_bytes": max_bytes, "max_hvp": 3 * dim}
    for end, truth in [
        (lambda_min(a.matvec, dim, **options), float(eigenvalues[0])),
        (lambda_max(a.matvec, dim, **options), float(eigenvalues[-1])),
    ]:
        width = float(eigenvalues[-1] - eigenvalues[0])
        rounding = 1e-14 * float(eigenvalues.abs().max())
        assert end.lower - rounding <= truth <= end.upper + rounding
        assert end.is_converged
        assert end.upper - end.lower <= 2e-3 * width + 1e-9
        assert abs(end.value - truth) <= 1e-3 * width + rounding
        residual = torch.linalg.vector_norm(a.matvec(end.vector) - end.value * end.vector)
        assert end.residual == pytest.approx(float(residual), abs=1e-12)
        assert float(torch.linalg.vector_norm(end.vector)) == pytest.approx(1)


def test_lambda_min_assembles_small_matrices() -> None:
    matrix = normal(40, 40)
    matrix = matrix + matrix.T
    end = lambda_min(matrix)
    truth = torch.linalg.eigvalsh(matrix)
    assert end.confidence == 1.0
    assert end.num_hvp == 41  # 40 columns and the residual
    assert end.value == pytest.approx(float(truth[0]), abs=1e-12)
    assert end.other_end == pytest.approx(float(truth[-1]), abs=1e-12)
    assert end.residual < 1e-12
    assert end.upper - end.lower < 1e-12


def test_lambda_min_takes_every_kind_of_operator() -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse")
    linalg = pytest.importorskip("scipy.sparse.linalg")
    dim = 300
    diagonal = np.linspace(-0.3, 2, dim)
    array = np.diag(diagonal)
    array[0, 1] = array[1, 0] = 0.1
    matrix = torch.from_numpy(array)

    class TorchOperator:
        shape, dtype, device = (dim, dim), torch.float64, torch.device("cpu")

        def __matmul__(self, v: Tensor) -> Tensor:
            return matrix @ v

    values = [
        lambda_min(operator, dim).value
        for operator in (
            lambda v: matrix @ v,
            matrix,
            array,
            scipy_sparse.csr_array(array),
            linalg.aslinearoperator(array),
            TorchOperator(),
        )
    ]
    assert np.ptp(values) < 1e-12
    arpack = linalg.eigsh(array, k=1, which="SA", rng=0)[0][0]
    assert values[0] == pytest.approx(arpack, abs=1e-6)


@pytest.mark.parametrize("dim", [130, 700])
def test_lambda_min_finds_axis_aligned_directions(dim: int) -> None:
    # A start that is itself a coordinate vector sees one axis only and would miss all others.
    for axis in range(0, dim, dim // 26):
        eigenvalues = torch.linspace(0.5, 2, dim, dtype=torch.float64)
        eigenvalues[axis] = -0.01
        point = classify(Quadratic(eigenvalues), zeros(dim), eps=1e-6, gamma=1e-3, seed=axis)
        assert point.kind is Kind.STRICT_SADDLE
        assert point.direction is not None
        assert float(point.direction[axis].abs()) > 0.9


def test_lambda_min_without_basis_repeats_the_run_bit_for_bit() -> None:
    a = Quadratic(SPECTRA["uniform"](300), normal(2, 300))
    runs = []
    for capacity in (200, 40, 2):
        run = Krylov(SymmetricOperator(a.matvec, 300), normal(300, seed=5), capacity)
        for _ in range(25):
            run.extend()
        runs.append(run.vectors(np.eye(25)))
    assert torch.allclose(runs[0], runs[2], atol=1e-9)
    assert torch.equal(runs[0], runs[1])


def test_lambda_min_survives_products_that_do_not_repeat() -> None:
    # A bulk and a few outliers, as networks have: without its basis Lanczos repeats the outliers,
    # and a second run with other rounding errors repeats them at other times.
    dim = 500
    noise = torch.Generator().manual_seed(0)
    eigenvalues = torch.cat([torch.linspace(-0.05, 0.1, dim - 3), torch.tensor([1.0, 3.0, 10.0])])

    def product(v: Tensor) -> Tensor:
        return eigenvalues * v * (1 + 1e-7 * torch.randn(dim, generator=noise))

    for max_bytes in (2**31, 0):
        options: dict[str, Any] = {"dtype": torch.float32, "max_bytes": max_bytes}
        end = lambda_min(product, dim, tol=3e-3, confidence=0.99, **options)
        assert end.is_converged
        assert end.vector.dtype == torch.float32
        assert end.lower <= -0.05 <= end.upper
        assert end.value == pytest.approx(-0.05, abs=1e-3)
        assert end.residual < 5e-3


def test_bounds_above_mirror_those_below() -> None:
    eigenvalues = SPECTRA["geometric"](300)
    runs = []
    for sign in (1.0, -1.0):
        operator = SymmetricOperator(lambda v, s=sign: s * eigenvalues * v, 300)
        run = Krylov(operator, normal(300), 100)
        for _ in range(30):
            run.extend()
        runs.append(run)
    assert runs[0].hidden_above(1e-4) == pytest.approx(runs[1].hidden_below(1e-4), rel=1e-6)
    assert runs[0].hidden_above(1e-4) != pytest.approx(runs[0].hidden_below(1e-4), rel=0.1)


@pytest.mark.parametrize(("max_steps", "end"), [(math.inf, 80), (50, 50), (1, 1)])
def test_krylov_pauses_ever_less_often_and_at_the_end(max_steps: float, end: int) -> None:
    eigenvalues = SPECTRA["uniform"](80)
    run = Krylov(SymmetricOperator(lambda v: eigenvalues * v, 80), normal(80), 80)
    looks = [run.num_steps for _ in run.checkpoints(max_steps)]
    assert looks[0] == 1
    assert looks[-1] == run.num_steps == end
    assert all(b == a + 1 + a // 10 for a, b in pairwise(looks[:-1]))


def test_lambda_min_says_when_it_ran_out_of_products() -> None:
    a = Quadratic(SPECTRA["uniform"](400))
    short = lambda_min(a.matvec, 400, max_hvp=10)
    long = lambda_min(a.matvec, 400, max_hvp=600)
    assert not short.is_converged
    assert short.num_hvp == 11
    assert long.is_converged
    assert short.lower < long.lower <= -0.02 <= long.upper < short.upper


def test_lambda_min_depends_on_the_seed_alone() -> None:
    a = Quadratic(SPECTRA["uniform"](200))
    first, again, other = (lambda_min(a.matvec, 200, seed=s, tol=0.05) for s in (1, 1, 2))
    assert torch.equal(first.vector, again.vector)
    assert not torch.equal(first.vector, other.vector)


def test_spectrum_reads_as_a_sentence() -> None:
    text = str(lambda_min(np.diag([1.0, 2.0])))
    assert text.startswith("1, in [1, 1] exactly")
    end = lambda_min(lambda v: v, 500)
    assert isinstance(end, Spectrum)
    assert "with confidence 0.999999" in repr(end)


def test_overlap_is_the_probability_of_a_small_component() -> None:
    # Null: P(|q'v| <= overlap(d, p)) <= p, and the density is flat enough for near equality.
    dim, p, count = 200, 0.1, 40_000
    q = normal(count, dim)
    overlaps = q[:, 0].abs() / torch.linalg.vector_norm(q, dim=1)
    rate = float((overlaps <= overlap(dim, p)).double().mean())
    assert abs(rate - p) < 5 * math.sqrt(p * (1 - p) / count)


def miss_rate(eigenvalues: Tensor, steps: int, p: float, count: int, capacity: int) -> float:
    """How often the true smallest eigenvalue lies below the bound of a single short run."""
    dim = len(eigenvalues)
    operator = SymmetricOperator(lambda v: eigenvalues * v, dim)
    generator = torch.Generator().manual_seed(steps)
    t, truth, misses = overlap(dim, p), float(eigenvalues.min()), 0
    for _ in range(count):
        start = torch.randn(dim, generator=generator, dtype=torch.float64)
        run = Krylov(operator, start, capacity)
        for _ in range(steps):
            run.extend()
        misses += truth < run.ritz()[0][0] - run.hidden_below(t)
    return misses / count


@pytest.mark.parametrize("capacity", [50, 2], ids=["basis kept", "recurrence alone"])
@pytest.mark.parametrize(
    ("name", "steps", "count"), [("two values", 1, 2500), ("gap", 14, 300), ("uniform", 8, 300)]
)
def test_stated_confidence_is_honest(name: str, steps: int, count: int, capacity: int) -> None:
    # Null: misses are at most p. With two distinct eigenvalues the bound is tight, so the rate must
    # also be near p: a bound that is vacuous, or wrong by a factor, fails.
    dim, p = 200, 0.1
    eigenvalues = -torch.ones(dim).double() if name == "two values" else SPECTRA[name](dim)
    if name == "two values":
        eigenvalues[1:] = 1.0
    rate = miss_rate(eigenvalues, steps, p, count, capacity)
    five_sigma = 5 * math.sqrt(p * (1 - p) / count)
    assert rate <= p + five_sigma
    if name == "two values":
        assert rate >= p - five_sigma


@pytest.mark.parametrize("starts", [1, 2, 3])
def test_classify_calls_a_saddle_a_minimum_no_oftener_than_stated(starts: int) -> None:
    # Null: P(false MINIMUM) <= 1 - confidence = 0.1, at the hardest place: two eigenvalues,
    # one just below -gamma, one step per start. There the bound is tight but for the half of t kept
    # for rounding, so that the rate is 0.1 / 2^starts; five standard deviations to both sides.
    dim, count = 150, 300
    eigenvalues = torch.ones(dim).double()
    eigenvalues[0] = -1.01e-3
    f = Quadratic(eigenvalues)
    options: dict[str, Any] = {"eps": 1e-6, "gamma": 1e-3, "confidence": 0.9, "starts": starts}
    kinds = [
        classify(f, zeros(dim), seed=seed, max_hvp=starts, **options).kind for seed in range(count)
    ]
    rate = 0.1 / 2**starts
    false = kinds.count(Kind.MINIMUM) / count
    assert abs(false - rate) <= 5 * math.sqrt(rate * (1 - rate) / count)
    assert set(kinds) == {Kind.MINIMUM, Kind.UNDECIDED}


def test_steps_needed_is_enough_for_the_bound() -> None:
    dim = 400
    for name in ("uniform", "gap", "geometric"):
        eigenvalues = SPECTRA[name](dim)
        width = float(eigenvalues.max() - eigenvalues.min())
        for accuracy in (0.1, 0.01, 2e-3):
            budget = steps_needed(dim, accuracy)
            end = lambda_min(lambda v: eigenvalues * v, dim, tol=accuracy * width, max_hvp=budget)  # noqa: B023
            assert end.value - float(eigenvalues.min()) <= accuracy * width
            # The certificate needs more than the accuracy itself: half of t pays for rounding.
            assert end.value - end.lower <= 1.3 * accuracy * width


def test_steps_needed_grows_slowly_with_dimension() -> None:
    assert steps_needed(10**3, 0.01) < steps_needed(10**7, 0.01) < 2 * steps_needed(10**3, 0.01)
    ratio = steps_needed(10**9, 1e-4) / steps_needed(10**9, 1e-2)
    assert ratio == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize(
    ("operator", "options", "error", "message"),
    [
        (lambda v: v, {}, ValueError, "dim=None"),
        (lambda v: v, {"dim": 0}, ValueError, "dim=0"),
        (lambda v: v[:2], {"dim": 3}, ValueError, r"returned shape \(2,\) for v of shape \(3,\)"),
        (lambda v: 1.0, {"dim": 3}, TypeError, "returned float"),
        (lambda v: v * math.nan, {"dim": 3}, ValueError, "3 of 3 entries NaN"),
        (lambda v: v * math.nan, {"dim": 300}, ValueError, "300 of 300 entries NaN"),
        (lambda v: v.cumsum(0), {"dim": 3}, ValueError, "not symmetric"),
        (lambda v: v.cumsum(0), {"dim": 300}, ValueError, "not symmetric"),
        (np.ones((2, 3)), {}, ValueError, r"shape \(2, 3\): need a square"),
        (np.eye(2), {"dim": 3}, ValueError, "dim=3 but"),
        (np.array([[0.0, 1.0], [0.0, 0.0]]), {}, ValueError, "not symmetric"),
        (np.eye(2) * 1j, {}, ValueError, "real symmetric"),
        (np.full((2, 2), np.nan), {}, ValueError, "NaN"),
        ("matrix", {}, TypeError, "operator is str"),
        (np.eye(2), {"tol": 0.0}, ValueError, "tol=0"),
        (np.eye(2), {"confidence": 1.0}, ValueError, "confidence=1.0"),
        (np.eye(2), {"starts": 0}, ValueError, "starts=0"),
        (np.eye(2), {"max_hvp": 1}, ValueError, "max_hvp=1"),
    ],
)
def test_lambda_min_errors(
    operator: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        lambda_min(operator, **options)


def test_steps_needed_errors() -> None:
    with pytest.raises(ValueError, match="accuracy=0"):
        steps_needed(10, 0.0)
