"""A D of any shape: what the theory page says of it, what it says fails, and escapes simulated."""

from __future__ import annotations

import numpy as np
import pytest

from asgld.theory import (
    braking_onset,
    certificate,
    effective_curvature,
    escape_recursion,
    escape_time,
    noise_scale,
    own_share,
)

SHAPES = ("scalar", "row", "coordinate", "left", "both")
RULE = {"lr": 0.1, "sigma": 0.1, "delta": 0.01}


def transposed(matrices):
    return np.swapaxes(matrices, -1, -2)


def power(matrices, *exponents):
    """Powers of symmetric matrices, all from one decomposition."""
    values, vectors = np.linalg.eigh(matrices)
    return [(vectors * values[..., None, :] ** p) @ transposed(vectors) for p in exponents]


def unit(array):
    return array / np.linalg.norm(array)


def polar(matrices):
    """U V' of the singular value decomposition U s V'; 0 of 0."""
    U, s, Vt = np.linalg.svd(matrices, full_matrices=False)
    return (U * (s > 0)[..., None, :]) @ Vt


class Literal:
    """The rule with a D of a given shape, as stated, for many replicas W of an n x m matrix."""

    def __init__(self, shape, W, start, *, alpha, beta, lr, sigma, delta):
        self.shape, self.W, self.alpha, self.beta = shape, W, alpha, beta
        self.lr, self.sigma, self.delta = lr, sigma, delta
        n, m = W.shape[-2:]
        sizes = {"scalar": (1, 1), "row": (n, 1), "coordinate": (n, m)}
        self.is_matrix = shape in ("left", "both")
        self.D = start * np.eye(n) if self.is_matrix else np.full(sizes[shape], start)
        self.R = start * np.eye(m)

    def apply(self, G, E):
        """D^(-alpha/2) G and D^(-beta/2) E."""
        a, b = self.alpha, self.beta
        if self.shape == "left":
            step, noise = power(self.D, -a / 2, -b / 2)
            return step @ G, noise @ E
        if self.shape == "both":
            step, noise = power(self.D, -a / 4, -b / 4)
            step_right, noise_right = power(self.R, -a / 4, -b / 4)
            return step @ G @ step_right, noise @ E @ noise_right
        return self.D ** (-a / 2) * G, self.D ** (-b / 2) * E

    def step(self, G, E):
        down, noise = self.apply(G, E)
        self.W = self.W - self.lr * down + np.sqrt(2 * self.lr) * self.sigma * noise
        n, m = G.shape[-2:]
        if self.is_matrix:
            self.D = self.D + G @ transposed(G) / m + self.delta * np.eye(n)
            self.R = self.R + transposed(G) @ G / n + self.delta * np.eye(m)
        else:
            axes = {"scalar": (-2, -1), "row": (-1,), "coordinate": ()}[self.shape]
            self.D = self.D + np.mean(G**2, axis=axes, keepdims=True) + self.delta

    def eigenvalues(self):
        """Of D as an operator on all n m entries."""
        if not self.is_matrix:
            return np.broadcast_to(self.D, self.W.shape)
        left = np.linalg.eigvalsh(self.D)[..., :, None]
        if self.shape == "left":
            return np.broadcast_to(left, self.W.shape)
        return np.sqrt(left * np.linalg.eigvalsh(self.R)[..., None, :])


def median_with_error(times):
    ordered, middle = np.sort(times), len(times) // 2
    half_width = int(np.sqrt(len(times)) / 2)  # one standard error in ranks
    return ordered[middle], (ordered[middle + half_width] - ordered[middle - half_width]) / 2


def simulate(shape, V, gamma, *, k0, radius, gradient_variance, criterion, drop, **rule):
    """Median escape time of 800 replicas along V, with its standard error."""
    rng = np.random.default_rng(0)
    start = 1 + k0 * (rule["delta"] + gradient_variance)
    run = Literal(shape, np.zeros((800, *V.shape)), start, **rule)
    times = np.full(800, np.inf)
    for t in range(4000):
        y = np.sum(run.W * V, axis=(1, 2))
        if criterion == "distance":
            out = np.abs(y) >= radius
        else:
            out = 0.5 * (np.sum(run.W**2, axis=(1, 2)) - (1 + gamma) * y**2) <= -drop
        times = np.where(out & np.isinf(times), t, times)
        if np.mean(np.isfinite(times)) > 0.6:
            break
        G = run.W - (1 + gamma) * y[:, None, None] * V
        G = G + np.sqrt(gradient_variance) * rng.standard_normal(G.shape)
        run.step(G, rng.standard_normal(G.shape))
    return median_with_error(times)


def directions():
    rng = np.random.default_rng(5)
    u, v = unit(rng.standard_normal((6, 1))), unit(rng.standard_normal((4, 1)))
    return {
        "vector": unit(rng.standard_normal((8, 1))),
        "rank one": u @ v.T,
        "full rank": unit(rng.standard_normal((6, 4))),
        "one row": np.eye(6)[:, :1] @ v.T,
    }


CASES = [
    ("left", "vector"),
    ("coordinate", "vector"),
    ("left", "rank one"),
    ("both", "rank one"),
    ("row", "one row"),
    ("scalar", "rank one"),
]
OTHER_CASES = [
    ("left", "full rank", 0.1, 0.1, "distance"),
    ("both", "full rank", 0.1, 0.1, "distance"),
    ("row", "rank one", 0.1, 0.1, "distance"),
    ("coordinate", "rank one", 0.1, 0.1, "distance"),
    # Full gradients: only delta and the noise's own gradients feed D until the escape does.
    ("left", "rank one", 0.3, 0.0, "distance"),
    ("both", "rank one", 0.3, 0.0, "distance"),
    ("left", "rank one", 0.3, 0.0, "value"),
    ("left", "vector", 0.1, 0.1, "value"),
    ("both", "rank one", 0.1, 0.1, "value"),
]


@pytest.mark.parametrize(
    ("alpha", "beta", "shape", "direction", "sigma", "gradient_variance", "criterion"),
    [(a, b, *case, 0.1, 0.1, "distance") for case in CASES for a in (0.5, 1.0) for b in (0.5, 1.0)]
    + [(1.0, 1.0, *case) for case in OTHER_CASES],
)
def test_shapes_escape_recursion_against_simulation(
    alpha, beta, shape, direction, sigma, gradient_variance, criterion
):
    # Null: the recursion is within 5 % of the true median. 800 replicas, 5 standard errors on top.
    V = directions()[direction]
    rule = {**RULE, "alpha": alpha, "beta": beta, "sigma": sigma}
    rule = {**rule, "k0": 10, "radius": 4.0, "drop": 3.0, "criterion": criterion}
    rule["gradient_variance"] = gradient_variance
    median, error = simulate(shape, V, 1.0, **rule)
    predicted = escape_recursion(1.0, share=own_share(shape, V), dim=V.size, **rule)
    assert abs(median - predicted) <= 0.05 * predicted + 5 * error
    assert error < 0.03 * median


def test_shapes_the_share_is_seen_in_escape_times():
    # So the simulations above would notice a wrong share.
    rule = {**RULE, "alpha": 1.0, "beta": 1.0, "k0": 10, "radius": 4.0, "gradient_variance": 0.1}
    steps = escape_recursion(1.0, share=[1.0, 1 / 4, 1 / 24], dim=24, **rule)
    assert np.all(steps[:-1] > 1.3 * steps[1:])


def test_shapes_escape_formula_against_recursion():
    share, k0, alpha = (
        x.ravel() for x in np.meshgrid([1 / 24, 1 / 8, 1 / 4, 1], [10, 100, 1000], [0, 0.5, 1])
    )
    rule = {**RULE, "beta": 1.0, "gradient_variance": 0.1, "dim": 24, "share": share, "k0": k0}
    formula = escape_time(0.5, alpha=alpha, **rule)
    ratio = formula.steps / escape_recursion(0.5, alpha=alpha, **rule)
    assert formula.reliable.sum() > 20
    assert np.all(np.abs(ratio[formula.reliable] - 1) < 0.05)


@pytest.mark.parametrize("criterion", ["distance", "value"])
def test_shapes_share_names_both_old_cases(criterion):
    rule = {**RULE, "alpha": 1.0, "beta": 1.0, "dim": [1, 8, 50], "criterion": criterion}
    for aligned, share in ((True, 1.0), (False, [1, 1 / 8, 1 / 50])):
        for function in (escape_recursion, lambda *a, **k: escape_time(*a, **k).steps):
            old, new = function(0.5, **rule, aligned=aligned), function(0.5, **rule, share=share)
            np.testing.assert_allclose(old, new, rtol=1e-12)


def test_shapes_share_is_the_growth_of_D_along_the_direction():
    rng = np.random.default_rng(1)
    for n, m in ((6, 4), (4, 6), (8, 1), (1, 5)):
        V = unit(rng.standard_normal((n, m)))
        for shape in SHAPES:
            run = Literal(shape, V, 1.0, alpha=1.0, beta=1.0, lr=1.0, sigma=0.0, delta=0.0)
            before = np.sum(V * run.apply(V, V)[0])
            run.step(1e-3 * V, V)
            growth = np.sum(V * run.apply(V, V)[0]) - before
            # <V, D^(-1/2) V> falls by half of what D grows by.
            assert growth == pytest.approx(-0.5e-6 * own_share(shape, V), rel=1e-4)
            assert 1 / (n * m) - 1e-12 <= own_share(shape, V) <= 1 + 1e-12


def test_shapes_braking_onset_follows_the_share():
    near, far = (braking_onset(0.5, lr=0.1, alpha=1, D=9.0, share=s) for s in (1, 1 / 4))
    assert far == 2 * near


# What carries over.


def potential(D, p):
    values = np.linalg.eigvalsh(D)
    return np.sum(np.log(values) if p == 1 else values ** (1 - p) / (1 - p), axis=-1)


@pytest.mark.parametrize("p", [0.25, 0.5, 1.0, 1.5, 2.0, 3.0])
def test_shapes_trace_inequalities(p):
    rng = np.random.default_rng(2)
    D = np.exp(rng.normal(size=(2000, 1, 1))) * np.eye(3)
    D = D + 5 * np.square(rng.standard_cauchy(size=(2000, 3, 1))) * np.eye(3)
    first = D
    sums = np.zeros((2, 2000))
    ratio = np.ones(2000)
    for _ in range(4):
        G = rng.standard_normal((2000, 3, 2)) * np.exp(rng.normal(size=(2000, 1, 1)))
        S = G @ transposed(G) / 2 + 0.01 * np.eye(3)
        whitener = power(D, -0.5)[0]
        ratio = np.maximum(ratio, np.linalg.eigvalsh(whitener @ (D + S) @ whitener)[:, -1])
        for i, matrix in enumerate((D + S, D)):
            sums[i] += np.trace(power(matrix, -p)[0] @ S, axis1=1, axis2=2)
        D = D + S
    middle = potential(D, p) - potential(first, p)
    slack = 1e-9 * np.abs(sums[1])
    assert np.all(sums[0] <= middle + slack)
    assert np.all(middle <= sums[1] + slack)
    factor = ratio ** (p if p <= 1 else 2)
    if p <= 2:
        assert np.all(sums[1] <= factor * sums[0] + slack)
    else:
        floor = np.linalg.eigvalsh(first)[:, 0]
        bound = ratio**2 * floor ** (2 - p) * np.trace(power(first, -1)[0], axis1=1, axis2=2)
        assert np.all(sums[1] <= bound + slack)


def test_shapes_squared_steps_of_two_sides_are_bounded_by_one_sided_traces():
    rng = np.random.default_rng(3)
    for alpha in (0.5, 1.0, 2.0):
        G = rng.standard_normal((500, 5, 3))
        L, R = (
            A @ transposed(A) for A in (rng.normal(size=(500, 5, 7)), rng.normal(size=(500, 3, 4)))
        )
        (left, l2), (right, r2) = power(L, -alpha / 4, -alpha), power(R, -alpha / 4, -alpha)
        step = np.sum((left @ G @ right) ** 2, axis=(1, 2))
        one_sided = np.sum(G * (l2 @ G), axis=(1, 2)) * np.sum(G * (G @ r2), axis=(1, 2))
        assert np.all(step <= np.sqrt(one_sided) * (1 + 1e-9))


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_certificate_holds_with_eigenvalues(shape):
    # f = sum 1 - cos w, M = 1. 300 replicas; at p = 0.05, 15 failures are allowed on average.
    rng = np.random.default_rng(4)
    lr, sigma, C = 0.5, 0.3, 0.3
    run = Literal(
        shape, np.full((300, 5, 3), 1.5), 1.0, alpha=1, beta=1, lr=lr, sigma=sigma, delta=0.05
    )
    kappa = noise_scale(1.0, alpha=1, beta=1, sigma=sigma, lr=lr, gradient_variance=C)
    moved, weight, truth, failed = np.zeros(300), np.zeros(300), np.zeros(300), np.zeros(300, bool)
    for _ in range(150):
        gradient, before = np.sin(run.W), run.W
        w = lr * np.max(run.eigenvalues(), axis=(-2, -1)) ** -0.5
        noise = np.sqrt(C) * rng.standard_normal(gradient.shape)
        run.step(gradient + noise, rng.standard_normal(gradient.shape))
        moved += np.sum((run.W - before) ** 2, axis=(1, 2))
        weight, truth = weight + w, truth + w * np.sum(gradient**2, axis=(1, 2))
        gap = 15 * (np.cos(run.W).mean(axis=(1, 2)) - np.cos(1.5))
        run_so_far = {"sum_sq_step": moved, "sum_weight": weight, "f_gap": gap}
        bound = certificate(**run_so_far, smoothness=1.0, kappa=kappa, p=0.05).bound
        failed |= truth / weight > bound
    assert failed.sum() <= 15
    assert np.median(bound * weight / truth) < 5


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.5), (1.0, 1.0), (0.5, 1.0)])
def test_shapes_energy_of_the_bath_is_half_the_trace_of_the_temperature(alpha, beta):
    rng = np.random.default_rng(6)
    basis = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    H = (basis * rng.uniform(0.5, 2, 5)) @ basis.T
    D = np.eye(5) + (A := rng.standard_normal((5, 5))) @ A.T
    step, noise, hot = power(D, -alpha / 2, -beta, alpha / 2 - beta)
    # Stationary covariance: step H X + X H step = 2 noise, one linear system.
    eye = np.eye(5)
    system = np.kron(step @ H, eye) + np.kron(eye, step @ H)
    X = np.linalg.solve(system, 2 * noise.ravel()).reshape(5, 5)
    assert np.trace(H @ X) == pytest.approx(np.trace(hot))
    is_gibbs = np.allclose(X, np.linalg.inv(H))
    assert is_gibbs == (beta == alpha / 2)


def rotations(n, m):
    rng = np.random.default_rng(7)
    return np.linalg.qr(rng.standard_normal((n, n)))[0], np.linalg.qr(rng.standard_normal((m, m)))[
        0
    ]


def is_equivariant(shape, transform, n, m):
    """Whether the rule commutes with a rotation of W, G and E, over 20 steps."""
    rng = np.random.default_rng(8)
    rule = {"alpha": 1.0, "beta": 1.0, "lr": 0.1, "sigma": 0.1, "delta": 0.01}
    W = rng.standard_normal((n, m))
    plain, turned = (Literal(shape, X, 1.0, **rule) for X in (W, transform(W)))
    for _ in range(20):
        G, E = rng.standard_normal((2, n, m))
        plain.step(G, E)
        turned.step(transform(G), transform(E))
    return np.allclose(transform(plain.W), turned.W, atol=1e-10)


def test_shapes_rotation_equivariance():
    U, V = rotations(5, 3)
    whole, _ = rotations(15, 1)
    groups = {
        "columns": lambda X: X @ V.T,
        "both sides": lambda X: U @ X @ V.T,
        "all entries": lambda X: (whole @ X.ravel()).reshape(5, 3),
    }
    found = {
        shape: [name for name, turn in groups.items() if is_equivariant(shape, turn, 5, 3)]
        for shape in SHAPES
    }
    assert found == {
        "scalar": ["columns", "both sides", "all entries"],
        "row": ["columns"],
        "coordinate": [],
        "left": ["columns", "both sides"],
        "both": ["columns", "both sides"],
    }
    assert is_equivariant("left", lambda X: U @ X, 5, 1)


def test_shapes_effective_curvature_of_matrices():
    rng = np.random.default_rng(9)
    n, m, alpha = 4, 3, 1.0
    basis = np.linalg.qr(rng.standard_normal((12, 12)))[0]
    H = (basis * [-0.5, *rng.uniform(0.2, 2, 11)]) @ basis.T
    L = np.eye(n) + (A := rng.standard_normal((n, n))) @ A.T
    R = np.eye(m) + (B := rng.standard_normal((m, m))) @ B.T
    whole = np.diag(rng.uniform(1, 9, 12))
    sides = {
        "left": (L, None, np.kron(L, np.eye(m))),
        "both": (L, R, np.kron(*(power(X, 0.5)[0] for X in (L, R)))),
        "vector": (whole, None, whole),
    }
    for D, right, operator in sides.values():
        rate = effective_curvature(H, D, alpha, right=right)
        values = np.linalg.eigvalsh(operator)
        assert 0.5 * values[-1] ** (-alpha / 2) <= rate <= 0.5 * values[0] ** (-alpha / 2)
        W = rng.standard_normal((n, m))
        left = power(D, -alpha / (2 if right is None else 4))[0]
        for _ in range(3000):
            G = (H @ W.ravel()).reshape(n, m)
            if right is not None:
                G = left @ G @ power(right, -alpha / 4)[0]
            else:
                G = (left @ G.reshape(len(D), -1)).reshape(n, m)
            W = W - 0.1 * G
            size = np.linalg.norm(W)
            W = W / size
        assert size == pytest.approx(1 + 0.1 * rate, rel=1e-6)
    assert effective_curvature(H, whole, alpha) == pytest.approx(
        effective_curvature(H, np.diag(whole), alpha)
    )


# What does not carry over.


def test_shapes_counterexample_a_power_above_one_of_a_growing_D_may_grow():
    D = np.diag([1.0, 4.0])
    G = np.array([[2.0], [2.0]])
    old, new = power(np.stack([D, D + G @ G.T]), -2.0)[0]
    assert new[1, 1] > old[1, 1] == 1 / 16
    assert np.trace(new) < np.trace(old)


def test_shapes_counterexample_to_the_diagonal_factor():
    # D_{k+1} <= rho D_k, yet the sum with the past inside is more than rho^1.5 times the other.
    D = np.diag([1.0, 100.0])
    z = np.array([[1.0], [10.0]])
    S, rho, p = 100 * z @ z.T, 201.0, 1.5
    whitener = power(D, -0.5)[0]
    assert np.linalg.eigvalsh(whitener @ (D + S) @ whitener)[-1] == pytest.approx(rho)
    past, present = (np.trace(power(X, -p)[0] @ S) for X in (D, D + S))
    assert rho**p < past / present < rho**2


def test_shapes_counterexample_a_present_D_is_biased():
    values, chances = np.array([3.0, -1.0]), np.array([0.3, 0.7])
    assert chances @ values > 0
    assert chances @ (values / np.sqrt(1 + values**2)) < 0
    assert chances @ np.sign(values) == pytest.approx(-0.4)  # the polar factor of a 1 x 1 matrix


def test_shapes_counterexample_momentum_does_not_cure_the_bias():
    # A gradient of mean +1: 199 with chance 0.01, else -1. Null: the direction is right at
    # least half of the time; 400 chains, 300 steps after 300 to forget the start.
    rng = np.random.default_rng(10)
    M, signs = np.zeros(400), []
    for _ in range(600):
        G = np.where(rng.random(400) < 0.01, 199.0, -1.0)
        M = 0.9 * M + 0.1 * G
        signs.append(np.sign(M))
    chains = np.mean(signs[300:], axis=0)
    assert np.mean(chains) < -5 * np.std(chains) / np.sqrt(400)


# The polar form.


def polar_escape(*, gamma, lr, sigma, radius, momentum=0.0, gradient_variance=0.0, replicas=200):
    """Median steps along u v' in 6 x 4, with standard error; direction: polar factor."""
    rng = np.random.default_rng(11)
    V = directions()["rank one"]
    W, M = np.zeros((2, replicas, 6, 4))
    times = np.full(replicas, np.inf)
    for t in range(4000):
        y = np.sum(W * V, axis=(1, 2))
        times = np.where((np.abs(y) >= radius) & np.isinf(times), t, times)
        if np.mean(np.isfinite(times)) > 0.6:
            break
        G = W - (1 + gamma) * y[:, None, None] * V
        if gradient_variance:
            G = G + np.sqrt(gradient_variance) * rng.standard_normal(W.shape)
        M = momentum * M + (1 - momentum) * G
        W = W - lr * polar(M) + np.sqrt(2 * lr) * sigma * rng.standard_normal(W.shape)
    return median_with_error(times)


def test_polar_of_nothing_is_nothing():
    # So an exact saddle is left by the noise alone, and by nothing without it.
    assert not polar(np.zeros((6, 4))).any()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_polar_escapes_in_radius_over_lr_whatever_the_noise(momentum):
    # Null: the start takes a number of steps that depends neither on lr nor on the noise.
    starts = []
    for lr, sigma in ((0.02, 1e-9), (0.02, 1e-4), (0.005, 1e-9)):
        median, _ = polar_escape(gamma=0.5, lr=lr, sigma=sigma, radius=1.0, momentum=momentum)
        starts.append(median - 1 / lr)
        rule = {"lr": lr, "sigma": sigma, "alpha": 0, "beta": 0, "delta": 0}
        assert median < escape_time(0.5, **rule).steps / 10
    assert 0 < min(starts) <= max(starts) <= min(starts) + 3
    assert max(starts) < 10


def test_polar_in_gradient_noise_is_linear_with_the_nuclear_norm():
    # E <u v', polar(N + s u v')> = s E|N|_* / nm to first order in s, by Stein's identity.
    rng = np.random.default_rng(12)
    V, N = directions()["rank one"], rng.standard_normal((20_000, 6, 4))
    response = np.mean(np.linalg.svd(N, compute_uv=False).sum(axis=1)) / 24
    each = np.sum(V * (polar(N + 0.05 * V) - polar(N - 0.05 * V)), axis=(1, 2)) / 0.1
    assert abs(np.mean(each) - response) < 5 * np.std(each) / np.sqrt(20_000) + 0.01 * response
    # So it escapes like the rule with alpha = 0, curvature gamma response / sqrt(C) and gradient
    # noise 1/max(n, m), while gamma y is small against sqrt(C). 400 replicas, within 5 %.
    rule = {"lr": 0.05, "sigma": 0.01, "radius": 1.0}
    median, error = polar_escape(gamma=0.3, gradient_variance=1.0, replicas=400, **rule)
    frozen = {**rule, "alpha": 0, "beta": 0, "delta": 0, "gradient_variance": 1 / 6}
    predicted = escape_recursion(0.3 * response, **frozen)
    assert abs(median - predicted) <= 0.05 * predicted + 5 * error


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: own_share("diagonal", [1.0]), "shape='diagonal': need one of 'scalar', 'row'"),
        (lambda: own_share("left", [0.0, 0.0]), "direction"),
        (lambda: own_share("left", np.ones((2, 2, 2))), "direction"),
        (lambda: escape_time(0.5, **RULE, alpha=1, beta=1, share=0.1, dim=4), "1/dim <= share"),
        (lambda: escape_recursion(0.5, **RULE, alpha=1, beta=1, share=2.0), "share <= 1"),
        (lambda: effective_curvature(np.eye(3), np.eye(2), 1.0), "do not fit"),
        (lambda: effective_curvature(np.eye(6), np.eye(3), 1.0, right=np.eye(3)), "do not fit"),
        (lambda: effective_curvature(np.eye(2), np.diag([1.0, -1.0]), 1.0), "eigenvalue of D"),
        (lambda: effective_curvature(np.eye(2), [[1.0, 1.0], [0.0, 1.0]], 1.0), "symmetric"),
    ],
)
def test_shapes_refuse_what_is_not_defined(call, message):
    with pytest.raises(ValueError, match=message):
        call()
