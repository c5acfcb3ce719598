"""Every claim of every problem: derivatives, saddles, minima, constants, samples, batching.

Each test is one property, run over all rows of the table of cases to which it applies.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from problem_cases import (
    CASES,
    FINITE_SUMS,
    WITH_CONSTANTS,
    WITH_MINIMUM,
    WITH_SADDLES,
    build,
    facts_of,
    points,
    single_gradients,
)
from scipy import optimize
from torch import Tensor

from asgld.problems import Problem

# --------------------------------------------------------------------------- derivatives


@pytest.mark.parametrize("case", CASES)
def test_problem_gradient_matches_central_differences(case: str) -> None:
    chosen = build(case)
    x = torch.cat([chosen.start(3, seed=1), points(case, 4)])
    h = 1e-5 * (1.0 + x.abs().amax(-1, keepdim=True))
    steps = h.unsqueeze(-1) * torch.eye(chosen.dim, dtype=torch.float64)
    middle = x.unsqueeze(-2)
    difference = chosen.value(middle + steps) - chosen.value(middle - steps)
    numeric = difference / (2.0 * h)
    scale = 1.0 + numeric.abs().amax(-1, keepdim=True) + chosen.value(x).abs().unsqueeze(-1)
    assert ((chosen.grad(x) - numeric).abs() <= 1e-6 * scale).all()


@pytest.mark.parametrize("case", CASES)
def test_problem_gradient_matches_automatic_differentiation(case: str) -> None:
    chosen = build(case)
    x = torch.cat([chosen.start(3, seed=2), points(case, 20)])
    torch.testing.assert_close(chosen.grad(x), Problem.grad(chosen, x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_problem_hessian_matches_central_differences(case: str) -> None:
    chosen = build(case)
    x = torch.cat([chosen.start(2, seed=3), points(case, 3)])
    h = 1e-5 * (1.0 + x.abs().amax(-1)).reshape(-1, 1, 1)
    steps = h * torch.eye(chosen.dim, dtype=torch.float64)
    middle = x.unsqueeze(-2)
    numeric = (chosen.grad(middle + steps) - chosen.grad(middle - steps)) / (2.0 * h)
    hessian = chosen.hessian(x)
    scale = 1.0 + numeric.abs().amax((-2, -1), keepdim=True)
    assert ((hessian - numeric).abs() <= 1e-5 * scale).all()
    assert ((hessian - hessian.mT).abs() <= 1e-10 * scale).all()


@pytest.mark.parametrize("case", CASES)
def test_problem_hvp_is_hessian_times_vector(case: str) -> None:
    chosen = build(case)
    x = torch.cat([chosen.start(2, seed=4), points(case, 8)])
    v = torch.from_numpy(np.random.default_rng(5).standard_normal(x.shape))
    expected = (chosen.hessian(x) @ v.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(chosen.hvp(x, v), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(chosen.hvp(x, v[0]), chosen.hvp(x, v[0].expand_as(x)))
    torch.testing.assert_close(chosen.hvp(x[0], v), chosen.hvp(x[0].expand_as(v), v))


# --------------------------------------------------------------------------- critical points


@pytest.mark.parametrize("case", WITH_SADDLES)
def test_saddle_is_critical_with_stated_value_and_curvature(case: str) -> None:
    chosen = build(case)
    for saddle in chosen.facts.saddles:
        assert saddle.point.shape == (chosen.dim,)
        assert saddle.point.dtype == torch.float64
        assert float(chosen.grad(saddle.point).norm()) < 1e-10
        assert float(chosen.value(saddle.point)) == pytest.approx(saddle.value, abs=1e-10)
        lowest = float(torch.linalg.eigvalsh(chosen.hessian(saddle.point))[0])
        assert lowest == pytest.approx(saddle.lambda_min, abs=1e-8)
        assert saddle.lambda_min <= 0.0
        assert saddle.is_strict == (saddle.lambda_min < 0.0)


@pytest.mark.parametrize("case", [case for case in WITH_SADDLES if "rosenbrock" not in case])
def test_saddle_next_value_is_where_descent_slows_down(case: str) -> None:
    """Gradient descent from the saddle, pushed along the lowest eigenvector, meets that value."""
    chosen = build(case)
    facts = chosen.facts
    for saddle in facts.saddles:
        if saddle.next_value is None:
            continue
        assert saddle.next_value < saddle.value
        assert facts.smoothness is not None
        direction = escape_direction(case, saddle.point)
        push = 1e-2 * (1.0 + float(saddle.point.norm())) * direction
        x = torch.stack([saddle.point + push, saddle.point - push])
        tolerance = 1e-5 * (saddle.value - saddle.next_value)
        for step in range(10_000):
            if step % 20 == 0:
                bend = torch.linalg.matrix_norm(chosen.hessian(x), 2).unsqueeze(-1)
                lr = 0.5 / bend.clamp(min=0.02 * facts.smoothness)  # long steps are safe
                gap = (chosen.value(x) - saddle.next_value).abs()
                is_flat = chosen.grad(x).norm(dim=-1) <= 10.0 * math.sqrt(tolerance)
                if ((gap <= tolerance) & is_flat).any():
                    break
            x = x - lr * chosen.grad(x)
        else:
            pytest.fail(f"no pause at {saddle.next_value}, ended at {chosen.value(x)}")


def escape_direction(case: str, point: Tensor) -> Tensor:
    """A lowest eigenvector; where it is not unique, one along which the symmetry is kept."""
    values, vectors = torch.linalg.eigh(build(case).hessian(point))
    if case.startswith("monkey"):  # no negative curvature: take one of the three ways down
        ways = torch.zeros_like(point)
        ways[0] = -1.0
        return ways
    if case.startswith("orthogonal-tensor"):
        basis = build(case).rows[0]
        signs = (basis @ point).abs() > 1e-9
        if not signs.any():
            return basis.sum(0) / basis.sum(0).norm()
        weights = signs.double() / signs.sum()
        weights[0] -= 1.0
        return weights @ basis / (weights @ basis).norm()
    if values[1] - values[0] > 1e-6 if len(values) > 1 else True:
        return vectors[:, 0]
    if case.startswith("strict-saddle"):  # one escape direction at a time, in the eigenbasis
        chosen = build(case)
        axes = chosen._from_eigenbasis(torch.eye(chosen.dim, dtype=torch.float64))
        stuck = [axis for axis in axes if abs(float(axis @ point)) < 1e-9]
        return stuck[0]
    assert case.startswith(("factorization", "deep-linear"))  # any of them leads to the same value
    return vectors[:, 0]


def test_saddle_next_value_of_the_digits_network_is_unknown() -> None:
    assert [saddle.next_value for saddle in facts_of("digits").saddles] == [None]


@pytest.mark.parametrize("case", WITH_MINIMUM)
def test_minimizers_attain_the_minimum_and_are_second_order_points(case: str) -> None:
    chosen = build(case)
    facts = chosen.facts
    assert facts.minimizers is not None
    for x in facts.minimizers:
        assert float(chosen.value(x)) == pytest.approx(facts.minimum, abs=1e-10)
        assert float(chosen.grad(x).norm()) < 1e-8
        assert float(torch.linalg.eigvalsh(chosen.hessian(x))[0]) > -1e-8
    distances = torch.cdist(facts.minimizers, facts.minimizers) + torch.eye(len(facts.minimizers))
    assert float(distances.min()) > 1e-3


@pytest.mark.parametrize("case", WITH_MINIMUM)
def test_minimum_is_reached_and_never_undercut(case: str) -> None:
    """20 L-BFGS and 5 trust-exact runs from random starts; the best of them is the minimum."""
    chosen = build(case)
    minimum = chosen.facts.minimum
    assert minimum is not None

    def value(x: np.ndarray) -> float:
        return float(chosen.value(torch.from_numpy(x)))

    def grad(x: np.ndarray) -> np.ndarray:
        return chosen.grad(torch.from_numpy(x)).nan_to_num().numpy()

    def hessian(x: np.ndarray) -> np.ndarray:
        return chosen.hessian(torch.from_numpy(x)).numpy()

    bounds = [(1e-3, None)] * chosen.dim if case == "variance-x" else None
    found = []
    for seed in range(20):
        x0 = chosen.start(seed=seed).numpy() + 0.1 * np.random.default_rng(seed).random(chosen.dim)
        found.append(optimize.minimize(value, x0, jac=grad, bounds=bounds, method="L-BFGS-B").fun)
        if seed < 5 and bounds is None:
            result = optimize.minimize(value, x0, jac=grad, hess=hessian, method="trust-exact")
            found.append(result.fun)
    scale = 1.0 + abs(minimum)
    assert min(found) >= minimum - 1e-10 * scale
    assert min(found) <= minimum + 1e-6 * scale


# --------------------------------------------------------------------------- constants


def pairs(chosen: Problem) -> int:
    """As many as a fixed cost allows; a Hessian takes d^2 numbers."""
    return max(300, min(4000, 50_000 // chosen.dim**2))


@pytest.mark.parametrize("case", WITH_CONSTANTS)
def test_smoothness_bounds_the_sampled_curvature(case: str) -> None:
    chosen = build(case)
    facts = chosen.facts
    assert facts.smoothness is not None
    count = pairs(chosen)
    x, y = points(case, count, seed=1), points(case, count, seed=2)
    bend = torch.linalg.eigvalsh(chosen.hessian(x)).abs().amax()
    change = (chosen.grad(x) - chosen.grad(y)).norm(dim=-1) / (x - y).norm(dim=-1).clamp(min=1e-9)
    sampled = max(float(bend), float(change.max()))
    assert sampled <= facts.smoothness * (1 + 1e-9)
    # A bound that is far too large would pass the line above and serve nobody.
    assert sampled >= 0.05 * facts.smoothness


@pytest.mark.parametrize("case", WITH_CONSTANTS)
def test_hessian_lipschitz_bounds_the_sampled_change(case: str) -> None:
    chosen = build(case)
    facts = chosen.facts
    assert facts.hessian_lipschitz is not None
    count = pairs(chosen)
    x, other = points(case, count, seed=3), points(case, count, seed=4)
    near = x + 1e-4 * (other - x)  # the region is convex
    sampled = 0.0
    for y in (other, near):
        change = torch.linalg.matrix_norm(chosen.hessian(x) - chosen.hessian(y), 2)
        sampled = max(sampled, float((change / (x - y).norm(dim=-1).clamp(min=1e-9)).max()))
    assert sampled <= facts.hessian_lipschitz * (1 + 1e-6)
    assert sampled >= 0.02 * facts.hessian_lipschitz


def test_constants_are_unknown_only_where_said() -> None:
    unknown = {case for case in CASES if case not in WITH_CONSTANTS}
    assert unknown == {"digits", "variance-x"}
    no_minimum = {case for case in CASES if case not in WITH_MINIMUM}
    assert no_minimum == {
        "digits",
        "robust-regression",
        "worst-case-chain",
        "worst-case-chain-rotated",
    }


# --------------------------------------------------------------------------- finite sums


@pytest.mark.parametrize("case", FINITE_SUMS)
def test_samples_average_to_the_full_objective(case: str) -> None:
    chosen = build(case)
    count = chosen.num_samples
    assert count is not None
    everyone = torch.arange(count).unsqueeze(-1)
    x = points(case, 2, seed=7)
    v = torch.from_numpy(np.random.default_rng(8).standard_normal(x.shape))
    for point, direction in zip(x, v, strict=True):
        many = point.expand(count, -1)
        for mean, full in (
            (chosen.sample_value(many, everyone).mean(0), chosen.value(point)),
            (single_gradients(chosen, point).mean(0), chosen.grad(point)),
            (chosen.sample_hvp(many, direction, everyone).mean(0), chosen.hvp(point, direction)),
        ):
            torch.testing.assert_close(mean, full, rtol=1e-9, atol=1e-9)
    permuted = torch.from_numpy(np.random.default_rng(9).permutation(count))
    torch.testing.assert_close(chosen.sample_grad(x, permuted), chosen.grad(x))


@pytest.mark.parametrize("case", FINITE_SUMS)
def test_sample_derivatives_are_those_of_the_sample_value(case: str) -> None:
    chosen = build(case)
    assert chosen.num_samples is not None
    x = points(case, 3, seed=10)
    indices = torch.from_numpy(np.random.default_rng(11).integers(0, chosen.num_samples, (3, 5)))
    expected: Tensor = torch.func.grad(lambda z: chosen.sample_value(z, indices).sum())(x)
    torch.testing.assert_close(chosen.sample_grad(x, indices), expected, rtol=1e-9, atol=1e-9)
    v = torch.from_numpy(np.random.default_rng(12).standard_normal(x.shape))
    h = 1e-6
    change = chosen.sample_grad(x + h * v, indices) - chosen.sample_grad(x - h * v, indices)
    product = chosen.sample_hvp(x, v, indices)
    scale = 1.0 + float(product.abs().max())
    assert float((product - change / (2 * h)).abs().max()) < 1e-6 * scale


@pytest.mark.parametrize("case", FINITE_SUMS)
def test_gradient_variance_bounds_every_coordinate(case: str) -> None:
    chosen = build(case)
    bound = chosen.facts.gradient_variance
    if bound is None:
        assert case in ("digits", "variance-x")
        return
    largest = max(
        float(single_gradients(chosen, x).var(0, correction=0).max())
        for x in points(case, 60, seed=13)
    )
    assert 0.0 < largest <= bound * (1 + 1e-9)


@pytest.mark.parametrize("case", [case for case in CASES if case not in FINITE_SUMS])
def test_problem_without_samples_says_so(case: str) -> None:
    chosen = build(case)
    x, indices = chosen.start(), torch.zeros(1, dtype=torch.int64)
    assert chosen.facts.gradient_variance is None
    for call in (
        lambda: chosen.sample_value(x, indices),
        lambda: chosen.sample_grad(x, indices),
        lambda: chosen.sample_hvp(x, x, indices),
    ):
        with pytest.raises(ValueError, match="not a finite sum"):
            call()


# --------------------------------------------------------------------------- replicas


@pytest.mark.parametrize("case", CASES)
def test_replicas_do_not_interact(case: str) -> None:
    chosen = build(case)
    x = points(case, 6, seed=14).reshape(2, 3, chosen.dim)
    v = torch.from_numpy(np.random.default_rng(15).standard_normal(x.shape))
    shapes = {
        "value": (2, 3),
        "grad": (2, 3, chosen.dim),
        "hessian": (2, 3, chosen.dim, chosen.dim),
    }
    for method, shape in shapes.items():
        batched = getattr(chosen, method)(x)
        assert batched.shape == shape
        single = torch.stack([getattr(chosen, method)(row) for row in x.reshape(6, -1)])
        torch.testing.assert_close(batched, single.reshape(shape), rtol=1e-12, atol=1e-12)
    single = torch.stack(
        [chosen.hvp(a, b) for a, b in zip(x.reshape(6, -1), v.reshape(6, -1), strict=True)]
    )
    torch.testing.assert_close(chosen.hvp(x, v), single.reshape(x.shape), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", FINITE_SUMS)
def test_sample_batches_are_shared_or_one_per_replica(case: str) -> None:
    chosen = build(case)
    assert chosen.num_samples is not None
    x = points(case, 6, seed=16).reshape(2, 3, chosen.dim)
    rng = np.random.default_rng(17)
    own = torch.from_numpy(rng.integers(0, chosen.num_samples, (2, 3, 4)))
    v = torch.from_numpy(rng.standard_normal(x.shape))
    flat = list(zip(x.reshape(6, -1), v.reshape(6, -1), own.reshape(6, -1), strict=True))
    for batched, single in (
        (chosen.sample_value(x, own), [chosen.sample_value(a, i) for a, _, i in flat]),
        (chosen.sample_grad(x, own), [chosen.sample_grad(a, i) for a, _, i in flat]),
        (chosen.sample_hvp(x, v, own), [chosen.sample_hvp(a, b, i) for a, b, i in flat]),
    ):
        stacked = torch.stack(single).reshape(batched.shape)
        torch.testing.assert_close(batched, stacked, rtol=1e-12, atol=1e-12)
    shared = own[0, 0]
    repeated = shared.expand(2, 3, 4)
    torch.testing.assert_close(chosen.sample_value(x, shared), chosen.sample_value(x, repeated))
    torch.testing.assert_close(chosen.sample_grad(x, shared), chosen.sample_grad(x, repeated))


@pytest.mark.parametrize("case", CASES)
def test_start_is_seeded_and_leaves_global_generators_alone(case: str) -> None:
    chosen = build(case)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    x = chosen.start(5, seed=3)
    assert torch.equal(before, torch.get_rng_state())
    assert x.shape == (5, chosen.dim)
    assert x.dtype == torch.float64
    assert torch.equal(x, chosen.start(5, seed=3))
    assert torch.equal(x[0], chosen.start(seed=3))
    assert torch.equal(x[:2], chosen.start(2, seed=3))
    assert torch.isfinite(chosen.value(x)).all()
    is_fixed = chosen.name in ("variance", "worst-case-chain")
    assert torch.equal(x, chosen.start(5, seed=4)) == is_fixed
