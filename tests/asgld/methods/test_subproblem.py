"""The sub-problems of second-order methods: optimality, the hard case, g = 0, agreement."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from asgld.methods.rivals import subproblem as sub

# A generic problem, and everything that makes naive solvers fail.
KINDS = (
    "generic",
    "convex",
    "hard",
    "hard-multiple",
    "nearly-hard",
    "zero-gradient",
    "zero-gradient-convex",
    "zero-hessian",
    "zero-hessian-aligned",
    "singular",
    "tiny-gradient",
    "huge",
)
SEEDS = range(12)


def make(kind: str, seed: int, dim: int = 12) -> tuple[Tensor, Tensor]:
    """A gradient and a Hessian in a random frame."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(dim, dim + 2, generator=generator, dtype=torch.float64)
    frame = torch.linalg.qr(draw[:, :dim])[0]
    values, parts = draw[:, dim].sort().values, draw[:, dim + 1].clone()
    if kind == "convex":
        values = values.abs().sort().values + 0.1
    elif kind == "hard":
        parts[0] = 0.0
        values[0] = -5.0
    elif kind == "hard-multiple":
        parts[:3] = 0.0
        values[:3] = -5.0
    elif kind == "nearly-hard":
        parts[0] = 1e-11
        values[0] = -5.0
    elif kind in ("zero-gradient", "zero-gradient-convex"):
        parts = torch.zeros_like(parts)
        if kind.endswith("convex"):
            values = values.abs().sort().values
    elif kind.startswith("zero-hessian"):
        values = torch.zeros_like(values)
        if kind.endswith("aligned"):
            frame, parts[1:] = torch.eye(dim, dtype=torch.float64), 0.0
    elif kind == "singular":
        values = values.abs().sort().values
        values[:4] = 0.0
    elif kind == "tiny-gradient":
        parts *= 1e-12
    elif kind == "huge":
        values, parts = 1e8 * values, 1e-3 * parts
    hessian = frame @ torch.diag(values) @ frame.mT
    return frame @ parts, 0.5 * (hessian + hessian.mT)


def cubic_model(gradient: Tensor, hessian: Tensor, regularization: float, step: Tensor) -> Tensor:
    """The model for steps of shape (..., d)."""
    cube = step.norm(dim=-1) ** 3
    return step @ gradient + 0.5 * ((step @ hessian) * step).sum(-1) + regularization / 6 * cube


def scale_of(gradient: Tensor, hessian: Tensor, step: Tensor) -> float:
    return float(gradient.norm() + torch.linalg.matrix_norm(hessian, 2) * step.norm())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("regularization", [1e-3, 1.0, 1e3])
def test_subproblem_cubic_exact_satisfies_optimality(kind: str, regularization: float) -> None:
    for seed in SEEDS:
        gradient, hessian = make(kind, seed)
        solution = sub.cubic_exact(gradient, hessian, regularization)
        step, size = solution.step, float(solution.step.norm())
        residual = gradient + hessian @ step + 0.5 * regularization * size * step
        assert float(residual.norm()) <= 1e-13 * scale_of(gradient, hessian, step)
        if kind != "huge":
            assert float(residual.norm()) <= 1e-8 * (1 + float(gradient.norm()))
        assert solution.multiplier == pytest.approx(0.5 * regularization * size, rel=1e-12)
        lowest = float(torch.linalg.eigvalsh(hessian)[0])
        norm = float(torch.linalg.matrix_norm(hessian, 2))
        assert lowest + solution.multiplier >= -1e-13 * norm
        # Nesterov and Polyak, Lemma 2; with equality at g = 0.
        guaranteed = regularization / 12 * size**3
        assert solution.model_decrease >= guaranteed * (1 - 1e-12)
        if kind.startswith("zero-gradient"):
            assert solution.model_decrease == pytest.approx(guaranteed, rel=1e-12)
            assert size == pytest.approx(2 * max(0.0, -lowest) / regularization, rel=1e-12)
        # The value by the definition; it cancels, so it is compared on the scale of its terms.
        value = float(cubic_model(gradient, hessian, regularization, step))
        terms = scale_of(gradient, hessian, step) * size
        assert value == pytest.approx(-solution.model_decrease, rel=1e-9, abs=1e-13 * terms)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("radius", [1e-4, 1.0, 1e4])
def test_subproblem_trust_region_exact_satisfies_optimality(kind: str, radius: float) -> None:
    for seed in SEEDS:
        gradient, hessian = make(kind, seed)
        solution = sub.trust_region_exact(gradient, hessian, radius)
        step, size = solution.step, float(solution.step.norm())
        residual = gradient + hessian @ step + solution.multiplier * step
        assert float(residual.norm()) <= 1e-13 * scale_of(gradient, hessian, step)
        assert size <= radius * (1 + 1e-12)
        lowest = float(torch.linalg.eigvalsh(hessian)[0])
        norm = float(torch.linalg.matrix_norm(hessian, 2))
        assert lowest + solution.multiplier >= -1e-13 * norm
        # Complementarity: a multiplier that is not rounding of 0 comes with a full step.
        if solution.multiplier > 1e-12 * norm:
            assert size == pytest.approx(radius, rel=1e-12)
        assert solution.model_decrease >= 0.5 * solution.multiplier * size**2 * (1 - 1e-12)


@pytest.mark.parametrize("kind", ["generic", "hard", "nearly-hard", "convex"])
def test_subproblem_exact_solvers_beat_random_search(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for seed in SEEDS:
        gradient, hessian = make(kind, seed, dim=5)
        points = torch.randn(1000, 5, generator=generator, dtype=torch.float64)
        points /= points.norm(dim=-1, keepdim=True)
        lengths = torch.rand(1000, 1, generator=generator, dtype=torch.float64)
        cubic = sub.cubic_exact(gradient, hessian, 2.0)
        trial = 2.0 * float(cubic.step.norm()) * lengths * points
        values = cubic_model(gradient, hessian, 2.0, trial)
        assert -cubic.model_decrease <= float(values.min())
        region = sub.trust_region_exact(gradient, hessian, 1.5)
        values = cubic_model(gradient, hessian, 0.0, 1.5 * lengths**0.2 * points)
        assert -region.model_decrease <= float(values.min())


def test_subproblem_hard_case_has_two_solutions() -> None:
    for kind in ("hard", "hard-multiple", "zero-gradient"):
        gradient, hessian = make(kind, 1)
        for solution in (
            sub.cubic_exact(gradient, hessian, 1.0),
            sub.trust_region_exact(gradient, hessian, 10.0),
        ):
            assert solution.is_hard_case
            assert solution.mirror is not None
            assert float((solution.mirror - solution.step).norm()) > 0.1
            assert float(solution.mirror.norm()) == pytest.approx(float(solution.step.norm()))
            values = [
                float(cubic_model(gradient, hessian, 1.0, s))
                for s in (solution.step, solution.mirror)
            ]
            assert values[0] == pytest.approx(values[1], rel=1e-12)


@pytest.mark.parametrize("kind", ["generic", "convex", "nearly-hard", "zero-gradient-convex"])
def test_subproblem_easy_case_is_not_called_hard(kind: str) -> None:
    gradient, hessian = make(kind, 1)
    assert not sub.cubic_exact(gradient, hessian, 1.0).is_hard_case
    solution = sub.trust_region_exact(gradient, hessian, 10.0)
    assert not solution.is_hard_case
    assert solution.mirror is None


def test_subproblem_nearly_hard_case_keeps_its_digits() -> None:
    """The step along e1 is |c1| / t with t of the size of c1: t must be relatively accurate."""
    for exponent in range(0, -40, -4):
        parts = torch.tensor([10.0**exponent, 1.0, 1.0], dtype=torch.float64)
        hessian = torch.diag(torch.tensor([-5.0, 1.0, 2.0], dtype=torch.float64))
        step = sub.cubic_exact(parts, hessian, 1.0).step
        residual = parts + hessian @ step + 0.5 * step.norm() * step
        assert float(residual.norm()) <= 1e-14 * scale_of(parts, hessian, step)


def test_subproblem_re_solves_share_one_factorization() -> None:
    gradient, hessian = make("generic", 0)
    eigen = sub.Eigen.of(hessian)
    for value in (0.1, 1.0, 10.0):
        direct = sub.cubic_exact(gradient, hessian, value)
        assert torch.equal(direct.step, sub.cubic_exact(gradient, eigen, value).step)
        direct = sub.trust_region_exact(gradient, hessian, value)
        assert torch.equal(direct.step, sub.trust_region_exact(gradient, eigen, value).step)


@pytest.mark.parametrize("kind", KINDS)
def test_subproblem_krylov_matches_exact(kind: str) -> None:
    for seed in SEEDS:
        gradient, hessian = make(kind, seed)
        probe = torch.randn(12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        exact = sub.cubic_exact(gradient, hessian, 1.0)
        krylov = sub.cubic_krylov(gradient, hessian.mv, 1.0, probe=probe)
        assert krylov.num_hvp <= 12
        assert krylov.model_decrease == pytest.approx(exact.model_decrease, rel=1e-8, abs=1e-14)
        assert krylov.multiplier == pytest.approx(exact.multiplier, rel=1e-8, abs=1e-12)
        value = float(cubic_model(gradient, hessian, 1.0, krylov.step))
        size = float(exact.step.norm())
        terms = scale_of(gradient, hessian, exact.step) * size
        assert value == pytest.approx(-exact.model_decrease, rel=1e-8, abs=1e-13 * terms)


def test_subproblem_krylov_without_probe_cannot_see_the_hard_case() -> None:
    gradient, hessian = make("hard", 0)
    blind = sub.cubic_krylov(gradient, hessian.mv, 1.0)
    assert blind.model_decrease < 0.9 * sub.cubic_exact(gradient, hessian, 1.0).model_decrease
    at_saddle = sub.cubic_krylov(torch.zeros_like(gradient), hessian.mv, 1.0)
    assert (float(at_saddle.step.norm()), at_saddle.num_hvp) == (0.0, 0)


def test_subproblem_krylov_looks_at_the_probe_before_it_stops() -> None:
    """g is an eigenvector: its Krylov space is exhausted after one product."""
    hessian = torch.diag(torch.tensor([-2.0, 1.0, 2.0, 3.0], dtype=torch.float64))
    gradient = torch.tensor([0.0, 1e-7, 0.0, 0.0], dtype=torch.float64)
    krylov = sub.cubic_krylov(gradient, hessian.mv, 1.0, probe=torch.ones_like(gradient))
    assert float(krylov.step.norm()) == pytest.approx(4.0, rel=1e-8)


def test_subproblem_krylov_needs_fewer_products_than_dimensions() -> None:
    """Eigenvalues in [1, 2] and one at -1/2: tens of products suffice for any d."""
    dim = 600
    values = torch.linspace(1.0, 2.0, dim, dtype=torch.float64)
    values[0] = -0.5
    generator = torch.Generator().manual_seed(0)
    gradient, probe = torch.randn(2, dim, generator=generator, dtype=torch.float64)
    gradient[0] = 0.0
    exact = sub.cubic_exact(gradient, torch.diag(values), 0.01)
    krylov = sub.cubic_krylov(gradient, values.mul, 0.01, probe=probe)
    assert exact.is_hard_case
    assert krylov.num_hvp < 80
    assert krylov.residual <= 1e-9 * float(gradient.norm())
    assert krylov.model_decrease == pytest.approx(exact.model_decrease, rel=1e-10)


def test_subproblem_krylov_counts_its_products_and_respects_the_cap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sub, "_MAX_KRYLOV", 7)
    gradient, hessian = make("generic", 0, dim=40)
    calls = []
    solution = sub.cubic_krylov(gradient, lambda v: (calls.append(1), hessian @ v)[1], 1.0)
    assert solution.num_hvp == len(calls) == 7
    exact = sub.cubic_exact(gradient, hessian, 1.0)
    assert 0.0 < solution.model_decrease <= exact.model_decrease


@pytest.mark.parametrize("from_zero", [False, True])
def test_subproblem_descent_has_monotone_norms_and_reaches_the_minimum(from_zero: bool) -> None:
    """Carmon and Duchi: norms grow monotonically and stay below that of the solution."""
    for seed in SEEDS:
        gradient, hessian = make("generic", seed, dim=8)
        exact = sub.cubic_exact(gradient, hessian, 1.0)
        norms: list[float] = []

        def hvp(v: Tensor, hessian: Tensor = hessian, norms: list[float] = norms) -> Tensor:
            norms.append(float(v.norm()))
            return hessian @ v

        solution = sub.cubic_descent(
            gradient,
            hvp,
            1.0,
            smoothness=float(torch.linalg.matrix_norm(hessian, 2)),
            from_zero=from_zero,
            max_steps=20_000,
            tolerance=1e-8,
        )
        # The first product is with the unit direction of the Cauchy point.
        steps = norms if from_zero else norms[1:]
        assert solution.num_hvp == len(norms)
        assert all(b >= a * (1 - 1e-12) for a, b in pairwise(steps))
        assert steps[-1] <= float(exact.step.norm()) * (1 + 1e-12)
        assert solution.model_decrease == pytest.approx(exact.model_decrease, rel=1e-6)


def test_subproblem_descent_starts_at_the_cauchy_point() -> None:
    for seed in SEEDS:
        gradient, hessian = make("generic", seed)
        cauchy = sub.cubic_descent(gradient, hessian.mv, 1.0, smoothness=1.0, max_steps=0)
        lengths = torch.linspace(0, 10, 5001, dtype=torch.float64)[:, None]
        along = cubic_model(gradient, hessian, 1.0, -lengths * gradient / gradient.norm())
        assert -cauchy.model_decrease <= float(along.min()) + 1e-12
        assert float(cauchy.step @ gradient) < 0


def test_subproblem_cauchy_length_keeps_its_digits() -> None:
    """At a small gradient the cube does not matter: t = |g| / curvature."""
    assert sub.cauchy_length(1e-18, 3.0, 1.0) == pytest.approx(1e-18 / 3.0, rel=1e-14)
    assert sub.cauchy_length(1e-18, -3.0, 1.0) == pytest.approx(6.0, rel=1e-14)


def test_subproblem_descent_leaves_a_saddle_only_with_perturbation() -> None:
    gradient, hessian = make("zero-gradient", 3)
    still = sub.cubic_descent(gradient, hessian.mv, 1.0, smoothness=4.0)
    assert (float(still.step.norm()), still.num_hvp) == (0.0, 0)
    noise = torch.randn(12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    moved = sub.cubic_descent(
        gradient, hessian.mv, 1.0, smoothness=4.0, perturbation=1e-6 * noise, max_steps=5000
    )
    exact = sub.cubic_exact(gradient, hessian, 1.0)
    assert moved.model_decrease == pytest.approx(exact.model_decrease, rel=1e-3)


def test_subproblem_descent_stops_at_the_target() -> None:
    gradient, hessian = make("generic", 0)
    exact = sub.cubic_exact(gradient, hessian, 1.0)
    goal = 0.9 * exact.model_decrease
    early = sub.cubic_descent(gradient, hessian.mv, 1.0, smoothness=4.0, target_decrease=goal)
    assert goal <= early.model_decrease <= exact.model_decrease
    full = sub.cubic_descent(gradient, hessian.mv, 1.0, smoothness=4.0)
    assert early.num_hvp < full.num_hvp


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda g, h: sub.cubic_exact(g, h, 0.0), "regularization=0.0"),
        (lambda g, h: sub.cubic_exact(g, h, math.inf), "regularization=inf"),
        (lambda g, h: sub.cubic_exact(g, h[:-1], 1.0), "hessian of shape"),
        (lambda g, h: sub.cubic_exact(g[:-1], h, 1.0), "gradient of shape"),
        (lambda g, h: sub.trust_region_exact(g, h, -1.0), "radius=-1.0"),
        (lambda g, h: sub.cubic_descent(g, h.mv, 1.0, smoothness=0.0), "smoothness=0.0"),
    ],
)
def test_subproblem_rejects_bad_arguments(call, words: str) -> None:
    gradient, hessian = make("generic", 0)
    with pytest.raises(ValueError, match=words):
        call(gradient, hessian)
