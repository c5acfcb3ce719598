"""The theory against brute force: direct sums, plain loops, bisection and quadrature.

Nothing here uses a formula of the package: orders come from sums that are added up, first times
from loops, and roots from bisection. Each list of cases holds settings; all of them are compared.
"""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest

from asgld.theory import (
    Accumulators,
    Constants,
    braking_onset,
    certificate,
    complexity,
    effective_curvature,
    escape_recursion,
    escape_time,
    expected_certificate,
    growth_onset,
    noise_scale,
    own_share,
    predicted_sums,
    proximal_certificate,
    proximal_step,
    rate,
    running_sums,
    temperature,
    terms,
)

ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5)
BETAS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)


def draws(seed, count, /, **ranges):
    """Random settings: a pair of numbers is a range, a list is a choice."""
    rng = np.random.default_rng(seed)

    def draw(among):
        if isinstance(among, list):
            return among[int(rng.integers(len(among)))]
        return float(rng.uniform(*among))

    return [{name: draw(among) for name, among in ranges.items()} for _ in range(count)]


RATES = [
    *(("asgld", *values) for values in itertools.product(ALPHAS, BETAS, (0.0, 0.5, 1.0))),
    *(("agld", *values, 0.0) for values in itertools.product(ALPHAS, BETAS)),
    *(("asg", alpha, math.inf, theta) for alpha, theta in itertools.product(ALPHAS, (0.0, 0.5))),
    ("sgld", 0.0, 0.0, 0.0),
]
COMPLEXITIES = [
    *itertools.product(
        ["asgld"], (0.0, 0.5, 1.0), (0.75, 1.0, 2.0), (0.0, 1.0), (1.2, 0.5), (2, 30)
    ),
    *itertools.product(["agld"], (0.0, 0.5, 1.0), (0.75, 1.0, 2.0), [0.0], (1.2, 0.5), (2, 30)),
]
TEMPERATURES = draws(
    1, 100, D=(0.1, 50), alpha=(0, 2.5), beta=(0, 3), sigma=(0, 2), lr=(0.001, 1),
    gradient_variance=(0, 3), step=[1, 7, 1000], annealing=[0.0, 0.5, 1.0],
)  # fmt: skip
CERTIFICATES = draws(
    2, 120, sum_sq_step=(0, 50), sum_weight=(0.1, 90), f_gap=(0, 20), smoothness=(0.1, 20),
    kappa=[0.0, 0.01, 0.4, 3.0], p=(0.001, 0.5), sum_sq_rounding=[0.0, 1e-6, 0.3],
)  # fmt: skip
HISTORIES = draws(
    3, 60, alpha=(0, 2), beta=[0.3, 1.0, 2.0, math.inf], sigma=(0, 1), lr=(0.01, 0.5),
    smoothness=(0.1, 1.9), gradient_variance=(0, 2), f_gap=(0.1, 5), steps=[1, 5, 60],
)  # fmt: skip
NOISES = draws(
    4, 60, alpha=(0, 2), excess=(0, 1.5), sigma=(0, 1), lr=(0.01, 0.5), gradient_variance=(0, 2)
)
PROXIMALS = draws(
    5, 80, longest=(0.02, 0.16), ratio=(0.5, 1.0), noise=(0, 0.02), smoothness=(0.5, 1.0),
    envelope=(3, 6), kappa=(0.03, 0.2), f_gap=(0, 9), p=(0.01, 0.4), steps=[1, 9], dim=[1, 5],
)  # fmt: skip
RECURSIONS = draws(
    6, 120, gamma=(0.3, 2), lr=(0.05, 0.4), alpha=[0.0, 0.5, 1.0, 1.5], beta=[0.5, 1.0, 2.0],
    sigma=(0.02, 0.5), delta=[0.0, 0.01, 0.1], gradient_variance=[0.0, 0.1], k0=[0, 20],
    dim=[1, 2, 9], criterion=["distance", "value"], radius=(0.5, 2), drop=(0.1, 1),
    failure=[0.5, 0.1], bath_curvature=[0.5, 1.0], aligned=[True, False],
)  # fmt: skip
CLOSED_FORMS = draws(
    7, 120, gamma=(0.1, 2), lr=(0.01, 0.5), alpha=[0.0, 0.5, 1.0, 1.5, 2.0], beta=[0.5, 1.0, 2.0],
    sigma=(0.02, 0.5), delta=(0.001, 0.1), gradient_variance=[0.0, 0.1], k0=[0, 10, 1000],
    radius=(0.5, 2), failure=[0.5, 0.1],
)  # fmt: skip
ONSETS = draws(
    8, 60, curvature=(0.2, 3), sigma=(0.1, 1), delta=(1e-4, 1e-2), alpha=[0.0, 0.5, 1.0],
    tau=[0.5, 1.0, 1.5], gamma=(0.1, 2), lr=(0.01, 0.5), D=(0.5, 100), share=(0.1, 1),
)  # fmt: skip
SADDLES = draws(9, 40, dim=[2, 5], alpha=(0, 2), largest=(1.5, 40), seed=list(range(1000)))
SHARES = list(
    itertools.product(("scalar", "row", "coordinate", "left", "both"), [(3, 1), (2, 4), (5, 3)])
)
PREDICTED = draws(
    10, 60, k=[1, 100, 4096, 20_000], alpha=(0, 2), beta=(0, 2), theta=[0.0, 0.5], delta=(0.01, 1),
    grad_bound=(0, 2), d_init=(0.5, 3),
)  # fmt: skip
ALL = (
    RATES, COMPLEXITIES, TEMPERATURES, CERTIFICATES, HISTORIES, NOISES, PROXIMALS, RECURSIONS,
    CLOSED_FORMS, ONSETS, SADDLES, SHARES, PREDICTED,
)  # fmt: skip


def test_there_are_a_thousand_settings():
    assert sum(map(len, ALL)) >= 1000


# --------------------------------------------------------------------------------- rates, regions


@cache
def order_of_sum(phi):
    """(power, log power) of sum j^-phi, from how the sums of octaves grow."""
    if math.isinf(phi):
        return -math.inf, 0
    k = 2**16
    sums = np.add.reduceat(np.arange(1.0, 4 * k) ** -phi, [0, k - 1, 2 * k - 1])
    slope = math.log2(sums[2] / sums[1])
    if abs(slope) < 1e-3:
        return 0.0, 1
    return (slope, 0) if slope > 0 else (0.0, 0)


def order_of_bound(method, alpha, beta, theta):
    """The slowest of the three terms, and the names of all terms of its order."""
    power, log = order_of_sum(alpha / 2)
    above = {"I1": (0.0, 0)}
    if method != "agld":
        above["I2"] = order_of_sum(alpha + theta)
    if math.isfinite(beta):
        above["I3"] = order_of_sum(beta)
    orders = {name: (top[0] - power, top[1] - log) for name, top in above.items()}
    slowest = max(orders.values(), key=lambda order: (round(order[0], 2), order[1]))
    names = [
        name
        for name, order in orders.items()
        if abs(order[0] - slowest[0]) < 0.01 and order[1] == slowest[1]
    ]
    return slowest, "+".join(names)


def test_rates_and_regions_are_those_of_direct_sums():
    for method, alpha, beta, theta in RATES:
        (power, log), names = order_of_bound(method, alpha, beta, theta)
        found = rate(alpha, beta, method=method, theta=theta)
        case = (method, alpha, beta, theta)
        assert found.exponent == pytest.approx(-power, abs=2e-3), case
        assert (found.log_power, found.dominant) == (log, names), case
        kind = "plateau"
        if alpha > 2:
            kind = "frozen"  # the sum of all steps is finite
            steps = [np.sum(np.arange(1.0, k) ** (-alpha / 2)) for k in (1e3, 1e4, 1e5)]
            assert steps[2] - steps[1] < 0.8 * (steps[1] - steps[0])
        elif power < -1e-3 or (abs(power) < 1e-3 and log < 0):
            kind = "converges"
        elif power > 1e-3 or log > 0:
            kind = "grows"
        assert found.region == kind, case
        cost = complexity(alpha=alpha, beta=beta, method=method, theta=theta)
        expected = -2 / power if power < -1e-3 else math.inf
        assert cost.iteration_power == pytest.approx(expected, rel=1e-2), case
        assert cost.sample_power == pytest.approx(expected * (1 + theta), rel=1e-2), case


def test_complexities_are_first_times_of_loops():
    reached, j = 0, np.arange(200_000.0)
    for method, alpha, beta, theta, eps, dim in COMPLEXITIES:
        problem = Constants(
            smoothness=1.5, f_gap=1.0, dim=dim, lr=0.4, sigma=0.02, gradient_variance=0.01,
            delta=0.1, grad_bound=0.5, num_samples=7.0, batch_size=2.0,
        )  # fmt: skip
        fast, slow = 1 + j * (0.1 + 0.25 + dim * 0.01 / 2), 1 + 0.1 * j
        weight = np.cumsum(fast ** (-alpha / 2))
        batches = 2.0 * (1 + j) ** theta
        variance = 0.0 if method == "agld" else 0.01
        sampled = 1.5 * 0.4 * variance * np.cumsum(dim * slow**-alpha / batches)
        injected = 2 * 1.5 * 0.02**2 * np.cumsum(dim * slow**-beta)
        below = (2 / 0.4 + sampled + injected) / weight <= eps**2
        found = complexity(eps, alpha, beta, method=method, theta=theta, constants=problem)
        if not below.any():
            assert found.iterations > j.size
            continue
        reached += 1
        k = int(np.argmax(below)) + 1
        assert found.iterations == pytest.approx(k, abs=1, rel=1e-6)
        samples = 7.0 * k if method == "agld" else np.sum(batches[:k])
        assert found.samples == pytest.approx(samples, rel=2 / k + 1e-6)
    assert reached > 80


def test_predicted_sums_are_direct_sums():
    for c in PREDICTED:
        problem = Constants(
            smoothness=1.0, f_gap=1.0, dim=3, lr=0.1, delta=c["delta"], d_init=c["d_init"],
            grad_bound=c["grad_bound"], gradient_variance=0.2, batch_size=2.0,
        )  # fmt: skip
        clock = sample = noise = 0.0
        j = np.arange(float(c["k"]))
        slow = c["d_init"] + j * c["delta"]
        fast = c["d_init"] + j * (c["delta"] + c["grad_bound"] ** 2 + 3 * 0.2 / 2)
        clock = math.fsum(fast ** (-c["alpha"] / 2))
        sample = 3 * math.fsum(slow ** -c["alpha"] / (2 * (1 + j) ** c["theta"]))
        noise = 3 * math.fsum(slow ** -c["beta"])
        found = predicted_sums(c["k"], c["alpha"], c["beta"], problem, theta=c["theta"])
        expected = (3 * clock, clock, sample, noise)
        np.testing.assert_allclose(list(vars(found).values()), expected, rtol=1e-6)


# --------------------------------------------------------------------------------- certificates


def test_temperatures_are_variances_over_twice_the_step():
    for c in TEMPERATURES:
        h = c["lr"] * math.exp(-c["alpha"] / 2 * math.log(c["D"]))
        noise = math.sqrt(2 * c["lr"]) * c["sigma"] * c["D"] ** (-c["beta"] / 2)
        noise *= c["step"] ** (-c["annealing"] / 2)
        expected = (noise**2 + h**2 * c["gradient_variance"]) / (2 * h)
        assert temperature(**c) == pytest.approx(expected, rel=1e-12)


def largest_root(excess, high=1.0):
    """Where an increasing excess that starts at or below 0 passes 0, by bisection."""
    while excess(high) < 0:
        high *= 2
    low = 0.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return high


def test_pathwise_certificates_are_roots_of_their_inequality():
    for c in CERTIFICATES:
        tilts = (1.5, 1.0, 0.3)
        bounds = []
        for tilt in tilts:
            right = c["f_gap"] + c["smoothness"] / 2 * c["sum_sq_step"]
            right += c["kappa"] / tilt * math.log(len(tilts) / c["p"])

            def excess(X, right=right, tilt=tilt, lost=c["sum_sq_rounding"]):
                return (1 - tilt / 2) * X - right - math.sqrt(X * lost)

            bounds.append(largest_root(excess) / c["sum_weight"])
        assert certificate(**c, tilts=tilts).bound == pytest.approx(min(bounds), rel=1e-9)


def test_expected_certificates_are_those_of_loops():
    rng = np.random.default_rng(12)
    for c in HISTORIES:
        D, history = 1 + rng.random(4), []
        for _ in range(c["steps"]):
            history.append(D)
            D = D + rng.random(4)
        clock = trace = sample = noise = 0.0
        for used in history:
            clock += max(used) ** (-c["alpha"] / 2)
            for entry in used:
                trace += entry ** (-c["alpha"] / 2)
                sample += entry ** -c["alpha"] / 3
                noise += 0.0 if math.isinf(c["beta"]) else entry ** -c["beta"]
        sums = running_sums(history, c["alpha"], c["beta"], batch_size=3.0)
        last = Accumulators(*(float(part[-1]) for part in vars(sums).values()))
        np.testing.assert_allclose(list(vars(last).values()), (trace, clock, sample, noise))
        M, lr = c["smoothness"], c["lr"]
        above = 2 * c["f_gap"] / lr + M * lr * c["gradient_variance"] * sample
        above += 2 * M * c["sigma"] ** 2 * noise
        given = {name: c[name] for name in ("lr", "smoothness", "f_gap", "sigma")}
        given["gradient_variance"] = c["gradient_variance"]
        assert terms(last, **given).total == pytest.approx(above / clock)
        assert terms(last, **given, version="published").total == pytest.approx(above / trace)
        found = expected_certificate(last, **given, alpha=c["alpha"], d_init=1.0)
        assert found == pytest.approx(above / clock / (2 - M * lr))


def test_noise_scales_are_the_hottest_of_the_run():
    grown = np.geomspace(0.7, 1e6, 4000)
    for c in NOISES:
        beta = c["alpha"] / 2 + c["excess"]
        h = c["lr"] * grown ** (-c["alpha"] / 2)
        variance = 2 * c["lr"] * c["sigma"] ** 2 * grown**-beta + h**2 * c["gradient_variance"]
        rule = {name: value for name, value in c.items() if name != "excess"}
        found = noise_scale([0.7, 2.0], beta=beta, **rule)
        assert found == pytest.approx(np.max(variance / h), rel=1e-9)


def test_proximal_certificates_are_those_of_loops():
    for c in PROXIMALS:
        E, M, h, low = c["envelope"], c["smoothness"], c["longest"], c["longest"] * c["ratio"]
        tilts, bounds = (0.6, 0.2), []
        for tilt in tilts:
            weight = price = 0.0
            for j in range(c["steps"]):
                nu = c["noise"] / (1 + j)
                rho = max(abs(1 - E * low), abs(1 - E * h)) + M * h
                mu = tilt * nu / c["kappa"]
                if rho > 1 or mu > 1 - rho**2:
                    price = math.inf
                    break
                # Half the log moment of each coordinate, in units of the tilt.
                price += -c["dim"] * math.log(1 - mu) * c["kappa"] / tilt if mu else 0.0
                weight += 1 - rho**2 - mu * rho**2 / (1 - mu)
            right = 2 * c["f_gap"] / E + price + 2 * c["kappa"] / tilt * math.log(2 / c["p"])
            bounds.append((E + M) ** 2 * right / weight if weight else math.inf)
        noise = c["noise"] / (1 + np.arange(c["steps"]))
        constants = {"smoothness": M, "envelope": E, "kappa": c["kappa"], "tilts": tilts}
        taken = proximal_step(
            shortest=low, longest=h, noise=noise, total_noise=c["dim"] * noise, **constants
        )
        found = proximal_certificate(
            sum_weight=taken.weight.sum(1), sum_noise=taken.noise.sum(1), f_gap=c["f_gap"],
            p=c["p"], **constants,
        )  # fmt: skip
        assert found.bound == pytest.approx(min(bounds), rel=1e-9)
        assert math.isfinite(found.bound)


# --------------------------------------------------------------------------------- escape


def quantile_of_folded_normal(chance):
    return largest_root(lambda z: math.erf(z / math.sqrt(2)) - chance)


def escape_loop(c, longest=20_000):
    """Steps of the mean-field recursion, number by number."""
    z2 = quantile_of_folded_normal(c["failure"]) ** 2
    C, gamma, lam, lr = c["gradient_variance"], c["gamma"], c["bath_curvature"], c["lr"]
    own = rest = 1 + c["k0"] * (c["delta"] + C)
    pool = 1 if c["aligned"] else c["dim"]
    v = near = far = 0.0
    for t in range(longest):
        if c["criterion"] == "distance":
            out = z2 * v >= c["radius"] ** 2
        else:
            heat = lam * ((pool - 1) * near + (c["dim"] - pool) * far)
            out = gamma * z2 * v > 2 * c["drop"] + heat
        if out:
            return t
        fed = (gamma**2 * z2 * v + (pool - 1) * lam**2 * near) / pool
        fed_rest = lam**2 * far
        h, h_rest = lr * own ** (-c["alpha"] / 2), lr * rest ** (-c["alpha"] / 2)
        noise = h**2 * C + 2 * lr * c["sigma"] ** 2 * own ** -c["beta"]
        noise_rest = h_rest**2 * C + 2 * lr * c["sigma"] ** 2 * rest ** -c["beta"]
        v = (1 + gamma * h) ** 2 * v + noise
        near = (1 - lam * h) ** 2 * near + noise if pool > 1 else 0.0
        far = (1 - lam * h_rest) ** 2 * far + noise_rest if c["dim"] > pool else 0.0
        own, rest = own + c["delta"] + C + fed, rest + c["delta"] + C + fed_rest
    return math.inf


def test_escape_recursions_are_plain_loops():
    # Settings are grouped by what must be a single word or truth value, and go in one call each.
    left = 0
    for criterion, aligned in itertools.product(("distance", "value"), (True, False)):
        cases = [c for c in RECURSIONS if (c["criterion"], c["aligned"]) == (criterion, aligned)]
        names = [name for name in cases[0] if name not in ("criterion", "aligned")]
        columns = {name: np.array([c[name] for c in cases]) for name in names}
        found = escape_recursion(**columns, criterion=criterion, aligned=aligned, max_steps=2000)
        expected = np.array([escape_loop(c, 2001) for c in cases], dtype=float)
        # A threshold that is met to rounding may move a step.
        finite = np.isfinite(expected)
        assert np.array_equal(np.isfinite(found), finite)
        assert np.max(np.abs(found[finite] - expected[finite])) <= 1
        assert np.mean(found[finite] == expected[finite]) > 0.95
        left += int(finite.sum())
    assert left > 90


def test_closed_forms_of_escapes_run_the_clock_that_is_needed():
    u = (np.arange(20_000) + 0.5) / 20_000
    for c in CLOSED_FORMS:
        drag = c["delta"] + c["gradient_variance"]
        D0 = 1 + c["k0"] * drag
        pace = math.log(1 + c["gamma"] * c["lr"] * D0 ** (-c["alpha"] / 2))
        hot = c["sigma"] ** 2 * D0 ** (c["alpha"] / 2 - c["beta"])
        hot += c["lr"] * c["gradient_variance"] * D0 ** (-c["alpha"] / 2) / 2
        z = quantile_of_folded_normal(c["failure"])
        needed = math.log(1 + c["gamma"] * c["radius"] ** 2 / (z * z * hot)) / 2
        found = escape_time(**c)
        # The clock runs like D^(-alpha/2), in steps that are even in log D.
        stretch = math.log(1 + drag * found.leading / D0)
        D = np.exp(stretch * u)
        clock = pace * D0 / drag * stretch * np.mean(D ** (1 - c["alpha"] / 2))
        assert clock == pytest.approx(needed, rel=1e-6)
        # T_bar is the temperature averaged over the clock, with the weight 2 exp(-2 clock).
        times = np.expm1(np.linspace(0, math.log(1 + 1e9), 40_001))
        D = 1 + times * drag / D0
        speed = pace * D ** (-c["alpha"] / 2)
        steps = np.diff(times)
        ran = np.concatenate([[0.0], np.cumsum(steps * (speed[1:] + speed[:-1]) / 2)])
        heat = c["sigma"] ** 2 * (D0 * D) ** (c["alpha"] / 2 - c["beta"])
        heat = heat + c["lr"] * c["gradient_variance"] * (D0 * D) ** (-c["alpha"] / 2) / 2
        share = np.exp(-2 * ran)
        mean = np.sum((heat[1:] + heat[:-1]) / 2 * -np.diff(share)) + heat[-1] * share[-1]
        assert found.temperature == pytest.approx(mean, rel=0.05)


def test_onsets_are_crossings_of_integrals():
    for c in ONSETS:
        heat, tau = c["curvature"] * c["sigma"] ** 2, c["tau"]
        given = {name: c[name] for name in ("curvature", "sigma", "delta", "alpha")}
        found = growth_onset(beta=tau + c["alpha"] / 2, d_init=0.5, **given)

        def excess(D, heat=heat, tau=tau, delta=c["delta"]):
            return delta - heat * D**-tau if D else -1.0

        crossing = largest_root(excess)
        assert found.accumulator == pytest.approx(crossing, rel=1e-9)
        D = np.geomspace(0.5, crossing, 20_001) if crossing > 0.5 else np.array([0.5, 0.5])
        rates = D**tau / heat
        steps = np.sum(np.diff(D) * (rates[1:] + rates[:-1]) / 2)
        assert found.steps == pytest.approx(steps, rel=1e-5)
        # Growth at a fixed rate feeds the sum of gamma^2 y^2 share into D, up to D itself.
        y = braking_onset(c["gamma"], lr=c["lr"], alpha=c["alpha"], D=c["D"], share=c["share"])
        pace = c["gamma"] * c["lr"] * c["D"] ** (-c["alpha"] / 2)
        past = y * np.exp(-pace * np.linspace(0, 20 / pace, 40_001))
        fed = c["share"] * c["gamma"] ** 2 * np.mean(past**2) * 20 / pace
        assert fed == pytest.approx(c["D"], rel=1e-2)


def test_effective_curvatures_are_eigenvalues_of_the_step():
    for c in SADDLES:
        rng = np.random.default_rng(c["seed"])
        hessian = rng.standard_normal((c["dim"], c["dim"]))
        hessian = hessian + hessian.T
        D = rng.uniform(1, c["largest"], c["dim"])
        step = np.diag(D ** (-c["alpha"] / 2)) @ hessian
        expected = -np.min(np.linalg.eigvals(step).real)
        assert effective_curvature(hessian, D, c["alpha"]) == pytest.approx(expected, abs=1e-9)


def grown(shape, V):
    """How much D grows by the gradient V, as a map that is applied to V."""
    n, m = V.shape
    squares = V * V
    if shape == "scalar":
        return np.mean(squares) * V
    if shape == "row":
        return np.mean(squares, axis=1, keepdims=True) * V
    if shape == "coordinate":
        return squares * V
    left = V @ V.T / m @ V
    return left if shape == "left" else (left + V @ (V.T @ V / n)) / 2


def test_shares_are_inner_products_with_the_growth():
    for seed, (shape, size) in enumerate(SHARES):
        V = np.random.default_rng(seed).standard_normal(size)
        unit = V / np.linalg.norm(V)
        expected = np.sum(unit * grown(shape, unit))
        assert own_share(shape, 3 * V) == pytest.approx(expected, rel=1e-12)
