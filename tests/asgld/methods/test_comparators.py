"""The methods users know: optimizers of torch, pSGLD, perturbed AGD, L-BFGS, trust regions."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from method_cases import FAST, assert_second_order, go
from torch import Tensor

from asgld.methods import LBFGS, METHODS, Method, comparator
from asgld.methods.rivals.comparators import PerturbedAGD, PreconditionedSGLD
from asgld.methods.rivals.scipy_trust import TrustExact, TrustKrylov
from asgld.methods.rivals.shared import norm
from asgld.oracle import Oracle
from asgld.oracle.functions import torch_function
from asgld.problems import Problem, problem
from asgld.run import run
from asgld.run.history import Record
from asgld.run.stopping import Stop, StopWhen

NAMES = ("gd", "sgd", "psgld", "adagrad", "adam", "perturbed-agd", "lbfgs", "trust-krylov",
         "trust-exact")  # fmt: skip
EVERY_STEP = Record("linear", every=1, iterates=True)
TRUST = ("trust-krylov", "trust-exact")
# Full gradients and no noise: nothing moves them at an exact saddle.
CONTROLS: dict[str, Method] = {
    "gd": comparator("gd", lr=0.1),
    "sgd": comparator("sgd", lr=0.1, batch_size=None),
    "adagrad": comparator("adagrad", lr=0.1),
    "adam": comparator("adam", lr=0.01),
    "lbfgs": LBFGS(),
    "trust-krylov": TrustKrylov(),
    "trust-exact": TrustExact(),
}


def kicked(f: Problem, replicas: int, length: float = 0.02) -> Tensor:
    saddle = f.facts.saddles[0].point
    generator = torch.Generator().manual_seed(5)
    kick = torch.randn(replicas, f.dim, generator=generator, dtype=torch.float64)
    return saddle + length * kick / norm(kick)[:, None]


# ---------------------------------------------------------------------------------- all of them


@pytest.mark.parametrize("name", CONTROLS)
def test_comparator_without_noise_stays_at_an_exact_saddle(name: str) -> None:
    f = problem("strict-saddle", dim=8, rotated=True)
    result, _ = go(f, CONTROLS[name], f.facts.saddles[0].point.expand(2, -1), 100)
    assert float(result.x.abs().max()) == 0.0
    if name in TRUST:
        assert result.stops == (Stop.FINISHED, Stop.FINISHED)


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("name", sorted(set(NAMES) - {"trust-krylov"}))
def test_comparator_reaches_a_second_order_point_from_a_kicked_saddle(
    name: str, rotated: bool
) -> None:
    f = problem("strict-saddle", dim=12, rotated=rotated, num_samples=100, noise=0.1)
    table: dict[str, tuple[Method, int]] = {
        **{key: (method, 800) for key, method in CONTROLS.items()},
        "sgd": (comparator("sgd", lr=0.1, batch_size=8, lr_decay=0.3), 1500),
        "psgld": (PreconditionedSGLD(lr=0.01, sigma=1e-3, damping=0.1), 800),
        "perturbed-agd": (PerturbedAGD(lr=0.05, theta=0.2, min_drop=1e-8), 800),
    }
    method, steps = table[name]
    result, _ = go(f, method, kicked(f, 2), steps)
    assert_second_order(f, result, eps=0.02, gamma=0.01)


def test_trust_krylov_may_end_at_a_saddle() -> None:
    # From a point of the stable manifold its Krylov space never contains the way down.
    f = problem("strict-saddle", dim=2)
    x0 = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    result, _ = go(f, TrustKrylov(), x0, 50)
    assert result.stop is Stop.FINISHED
    assert float(norm(result.x)) < 1e-4
    exact, _ = go(f, TrustExact(), x0, 50)
    assert float(exact.values) == pytest.approx(-0.25)


def test_gd_is_trapped_by_the_octopus_and_perturbed_agd_is_not() -> None:
    f = problem("octopus", dim=6)
    assert f.facts.minimum is not None
    goal = StopWhen(target=f.facts.minimum + 0.05)
    x0, lr = f.start(3, seed=1), 0.25 / math.e
    trapped, _ = go(f, comparator("gd", lr=lr), x0, 1500, stop=goal)
    assert set(trapped.stops) == {Stop.MAX_STEPS}
    agd = PerturbedAGD(lr=lr, theta=0.3, radius=0.03, grad_threshold=0.03, side_step=0.1, wait=20)
    free, _ = go(f, agd, x0, 1500, stop=goal)
    assert set(free.stops) == {Stop.TARGET}


def test_sgd_needs_noise_along_the_way_down() -> None:
    # Daneshmand et al. 2018: with all noise in the stable directions there is no escape.
    for space in ("all", "stable"):
        f = problem("strict-saddle", dim=6, num_samples=100, noise_space=space)
        result, _ = go(f, comparator("sgd", lr=0.05, batch_size=1), torch.zeros(3, 6), 300)
        assert bool((result.x[:, 0] == 0.0).all()) == (space == "stable")
        if space == "all":
            assert float(result.x[:, 0].abs().min()) > 0.3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", ["mixture", "factorization", "phase-retrieval"])
def test_comparator_lowers_the_learning_problems(name: str, case: str) -> None:
    f = problem(case, **({"size": 4} if case == "factorization" else {"dim": 4}))
    saddle = f.facts.saddles[0]
    table: dict[str, Method] = {
        **CONTROLS,
        "gd": comparator("gd", lr=0.03),
        "sgd": comparator("sgd", lr=0.03, batch_size=16 if f.num_samples else None),
        "psgld": PreconditionedSGLD(lr=0.01, damping=0.1),
        "perturbed-agd": PerturbedAGD(lr=0.02, theta=0.2, min_drop=1e-8),
    }
    result, _ = go(f, table[name], kicked(f, 1, 0.1), 400)
    assert f.facts.minimum is not None
    # At least 90 % of the way from the saddle to the minimum.
    assert float(result.values) - f.facts.minimum < 0.1 * (saddle.value - f.facts.minimum)


def gentle(name: str) -> Method:
    """The method with full gradients and steps that the narrow valley of Rosenbrock allows."""
    options: dict[str, Any] = {} if name in (*TRUST, "lbfgs") else {"lr": 3e-4}
    if name == "sgd":
        options["batch_size"] = None
    method: Any = METHODS[name](**options)
    return method


@pytest.mark.parametrize("name", NAMES)
def test_comparator_goes_on_from_a_checkpoint_with_the_same_bits(name: str, tmp_path: Path) -> None:
    f = problem("rosenbrock", dim=4)
    method = gentle(name)
    x0 = f.start(2, seed=4)
    whole, _ = go(f, method, x0, 25)
    file = tmp_path / "run.pt"
    for steps in (1, 4, 7, 8, 16, 25):
        part, _ = go(f, method, x0, steps, checkpoint=file)
    assert torch.equal(part.x, whole.x)
    assert part.counts.total() == whole.counts.total()


@pytest.mark.parametrize("name", NAMES)
def test_comparator_budget_is_kept(name: str) -> None:
    f = problem("rosenbrock", dim=4)
    oracle = Oracle(f, budget=12)
    result = run(oracle, gentle(name), f.start(2, seed=4), max_steps=100)
    assert result.stops == (Stop.BUDGET, Stop.BUDGET)
    assert oracle.counts.spent.max() <= 12
    assert bool(torch.isfinite(result.x).all())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: comparator("gd", lr=-1.0), "lr=-1.0: need a positive finite number"),
        (lambda: comparator("sgd", momentum=1.0), "momentum=1.0: need 0 <= momentum < 1"),
        (lambda: comparator("sgd", batch_size=0), "batch_size=0"),
        (lambda: comparator("adagrad", damping=-1.0), "damping=-1.0"),
        (lambda: comparator("adam", beta2=1.0), "beta2=1.0: need 0 <= beta2 < 1"),
        (lambda: PreconditionedSGLD(memory=1.0), "memory=1.0"),
        (lambda: PreconditionedSGLD(damping=0.0), "damping=0.0"),
        (lambda: PerturbedAGD(theta=0.0), "theta=0.0: need 0 < theta <= 1"),
        (lambda: PerturbedAGD(min_drop=-1.0), "min_drop=-1.0"),
        (lambda: TrustExact(grad_tol=0.0), "grad_tol=0.0"),
        (lambda: TrustKrylov(radius=2.0, max_radius=1.0), "radius=2.0: need <= max_radius=1.0"),
    ],
)
def test_comparator_rejects_bad_options(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match="^" + message):
        make()


# ---------------------------------------------------------------------------------- torch


@pytest.mark.parametrize(
    ("method", "optimizer", "options"),
    [
        (comparator("gd", lr=0.02), torch.optim.SGD, {"lr": 0.02}),
        (
            comparator("sgd", lr=0.02, momentum=0.9, batch_size=None),
            torch.optim.SGD,
            {"lr": 0.02, "momentum": 0.9},
        ),
        (comparator("adagrad", lr=0.3), torch.optim.Adagrad, {"lr": 0.3}),
        (
            comparator("adam", lr=0.05, beta1=0.8, beta2=0.95, damping=1e-6),
            torch.optim.Adam,
            {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6},
        ),
    ],
)
def test_torch_comparator_is_the_optimizer_of_torch(
    method: Method, optimizer: Any, options: dict[str, Any]
) -> None:
    f = problem("mixture", dim=4, num_samples=100)
    x0 = f.start(3)
    result, oracle = go(f, method, x0, 40)
    x = x0.clone()
    torch_optimizer = optimizer([x], **options)
    for _ in range(40):
        x.grad = f.grad(x)
        torch_optimizer.step()
    assert torch.equal(result.x, x)
    assert oracle.counts.total()["grad"] == 3 * 40


# ---------------------------------------------------------------------------------- pSGLD


def test_psgld_without_noise_is_rmsprop() -> None:
    f = problem("mixture", dim=4, num_samples=100)
    x0 = f.start(3)
    result, _ = go(f, PreconditionedSGLD(lr=0.01, sigma=0.0, memory=0.9, damping=1e-3), x0, 40)
    x = x0.clone()
    optimizer = torch.optim.RMSprop([x], lr=0.01, alpha=0.9, eps=1e-3)
    for _ in range(40):
        x.grad = f.grad(x)
        optimizer.step()
    torch.testing.assert_close(result.x, x, atol=1e-13, rtol=1e-12)


def test_psgld_noise_has_the_variance_of_its_preconditioner() -> None:
    # Null: on f = 0, Var x_K = 2 lr K sigma^2 / damping. 5000 coordinates, 5 sigma.
    f = torch_function(lambda x: 0.0 * x.sum(), dim=50)
    method = PreconditionedSGLD(lr=0.01, sigma=0.1, damping=0.5)
    result = run(Oracle(f), method, torch.zeros(100, 50), max_steps=10)
    expected = 2 * 0.01 * 10 * 0.1**2 / 0.5
    variance = float((result.x**2).mean())
    assert abs(variance / expected - 1) < 5 * math.sqrt(2 / 5000)
    # With unit gradients V tends to 1 and P to 1 / (damping + 1).
    slope = torch_function(lambda x: x.sum(), dim=50)
    steady = PreconditionedSGLD(lr=0.01, sigma=0.1, damping=0.5, memory=0.0)
    result = run(Oracle(slope), steady, torch.zeros(100, 50), max_steps=10)
    centered = result.x + 0.01 * 10 / 1.5
    variance = float((centered**2).mean())
    assert abs(variance / (2 * 0.01 * 10 * 0.1**2 / 1.5) - 1) < 5 * math.sqrt(2 / 5000)


# ---------------------------------------------------------------------------------- perturbed AGD


def test_perturbed_agd_energy_falls_but_for_kicks() -> None:
    lr = 0.25 / 20.0
    f = problem("orthogonal-tensor", dim=5)
    method = PerturbedAGD(lr=lr, theta=0.1, concavity=0.1, side_step=0.05, wait=30, radius=0.01)
    oracle = Oracle(f, replicas=6)
    state = method.init(oracle, 0.8 * f.start(6, seed=2), seed=0)
    num_kicks = num_exploited = 0
    for _ in range(600):
        energy = f.value(state.x) + norm(state.momentum) ** 2 / (2 * lr)
        was_moving = norm(state.momentum) > 0
        state = method.step(oracle, state)
        after = f.value(state.x) + norm(state.momentum) ** 2 / (2 * lr)
        is_kicked = state.kicked_at == state.step - 1
        assert bool((after <= energy + 1e-12)[~is_kicked].all())
        num_kicks += int(is_kicked.sum())
        num_exploited += int((was_moving & (norm(state.momentum) == 0)).sum())
    # The test is void unless both happened.
    assert num_kicks > 0
    assert num_exploited > 0


def test_perturbed_agd_with_theta_one_is_gradient_descent() -> None:
    f = problem("mixture", dim=4, num_samples=100)
    x0 = f.start(3)
    plain, _ = go(f, comparator("gd", lr=0.1), x0, 50)
    method = PerturbedAGD(lr=0.1, theta=1.0, grad_threshold=0.0)
    momentum_free, _ = go(f, method, x0, 50)
    torch.testing.assert_close(momentum_free.x, plain.x, atol=1e-13, rtol=0)


def test_perturbed_agd_is_accelerated_on_convex_functions() -> None:
    curvatures = torch.tensor([1.0, 3e-3], dtype=torch.float64)
    f: Any = torch_function(lambda x: 0.5 * (curvatures * x * x).sum(-1), dim=2)
    x0 = torch.ones(1, 2, dtype=torch.float64)
    goal = StopWhen(target=1e-6, every=1)
    plain, _ = go(f, comparator("gd", lr=0.25), x0, 5000, stop=goal)
    method = PerturbedAGD(lr=0.25, theta=0.5 * math.sqrt(3e-3), grad_threshold=0.0)
    fast, _ = go(f, method, x0, 5000, stop=goal)
    assert fast.steps[0] < 0.1 * plain.steps[0]


def test_perturbed_agd_moves_to_the_lower_side_of_a_ridge() -> None:
    # f = -x^2/2 with slow momentum: the certificate holds, and the step is one of x +- s.
    f: Any = torch_function(lambda x: -0.5 * (x * x).sum(-1), dim=1)
    method = PerturbedAGD(lr=0.1, theta=0.1, concavity=0.1, side_step=0.5, grad_threshold=0.0)
    oracle = Oracle(f, replicas=2)
    state = method.init(oracle, torch.tensor([[0.01], [-0.01]], dtype=torch.float64), seed=0)
    state = method.step(oracle, state)
    x, momentum = state.x.clone(), state.momentum.clone()
    assert float(norm(momentum).min()) > 0
    state = method.step(oracle, state)
    torch.testing.assert_close(state.x, x + 0.5 * x.sign())
    assert float(norm(state.momentum).max()) == 0.0
    # Fast momentum is dropped without a side step.
    state.momentum = torch.ones_like(x)
    x = state.x.clone()
    state = method.step(oracle, state)
    assert torch.equal(state.x, x)


def test_perturbed_agd_returns_from_a_minimum_only_if_asked() -> None:
    f = problem("strict-saddle", dim=6)
    assert f.facts.minimizers is not None
    x0 = f.facts.minimizers[:1]
    ends, _ = go(f, PerturbedAGD(wait=20, min_drop=1e-8), x0, 200)
    assert ends.stop is Stop.FINISHED
    assert ends.steps[0] == 21
    assert torch.equal(ends.x, x0)
    goes_on, _ = go(f, PerturbedAGD(wait=20), x0, 200)
    assert goes_on.stop is Stop.MAX_STEPS


def test_perturbed_agd_pays_for_the_gradient_at_x_only_when_kicks_are_due() -> None:
    f = problem("strict-saddle", dim=6)
    oracle = Oracle(f)
    method = PerturbedAGD(wait=1000, concavity=100.0)
    run(oracle, method, torch.zeros(1, 6), max_steps=11, record=FAST)
    # Step 0: f and gradient at x, kick, f there, gradient at y. Then f at x and gradient at y.
    counts = oracle.counts.total()
    assert counts["grad"] == 2 + 10
    assert counts["value"] == 1 + 10


# ---------------------------------------------------------------------------------- scipy


@pytest.mark.parametrize("name", TRUST)
@pytest.mark.parametrize(
    ("case", "seed"), [("rosenbrock", 1), ("rosenbrock", 2), ("octopus", 1), ("phase-retrieval", 1)]
)
def test_trust_region_makes_the_steps_and_calls_of_uninterrupted_scipy(
    name: str, case: str, seed: int
) -> None:
    from scipy.optimize import minimize

    f = problem(case)
    x0 = f.start(seed=seed)
    calls = {"value": 0, "grad": 0, "hvp": 0, "hessian": 0}

    def counted(kind: str) -> Any:
        def call(*arguments: Any) -> Any:
            calls[kind] += 1
            return getattr(f, kind)(*(torch.from_numpy(np.array(a)) for a in arguments)).numpy()

        return call

    path: list[Any] = []
    curvature = (
        {"hessp": counted("hvp")} if name == "trust-krylov" else {"hess": counted("hessian")}
    )
    reference = minimize(
        lambda x: float(counted("value")(x)),
        x0.numpy(),
        jac=counted("grad"),
        method=name,
        options={"gtol": 1e-5, "maxiter": 60, "max_trust_radius": 3.0},
        callback=lambda xk: path.append(xk.copy()),
        **curvature,
    )
    method: Any = METHODS[name](grad_tol=1e-5, max_radius=3.0)
    result, oracle = go(f, method, x0, 60, record=EVERY_STEP)
    assert result.history.iterates is not None
    steps = result.history.iterates[1:, 0]
    assert len(steps) == len(path)
    assert np.array_equal(steps, np.stack(path))
    total = oracle.counts.total()
    assert {kind: total.get(kind, 0) for kind in calls} == calls
    assert (result.stop is Stop.FINISHED) == reference.success
    assert str(reference.message) in result.messages[0] or not reference.success


def test_trust_region_steps_back_from_values_that_are_not_finite() -> None:
    f: Any = torch_function(lambda x: (x - torch.log(x)).sum(-1), dim=2)
    x0 = torch.full((1, 2), 5.0, dtype=torch.float64)
    for name in TRUST:
        result, _ = go(f, METHODS[name](radius=20.0), x0, 100)
        assert result.stop is Stop.FINISHED
        torch.testing.assert_close(result.x, torch.ones_like(x0), atol=1e-3, rtol=0)


def test_trust_region_stops_where_derivatives_are_not_finite() -> None:
    # Value 1 at x = 0, but the derivatives of |x|^(1/2) are infinite there.
    def value(x: Tensor) -> Tensor:
        return torch.where(x > 0.5, (x - 2.0) ** 2, x.abs().sqrt()).sum(-1)

    f: Any = torch_function(value, dim=1)
    x0 = torch.tensor([[0.25]], dtype=torch.float64)
    for name in TRUST:
        result, _ = go(f, METHODS[name](radius=0.25), x0, 50)
        assert bool(torch.isfinite(result.x).all())


def test_trust_region_ends_when_steps_vanish() -> None:
    # The next number below 1e16 is 2 away: x + s = x, and f does not fall as predicted.
    f: Any = torch_function(lambda x: (x - 1e16).sum(-1), dim=1)
    x0 = torch.tensor([[1e16]], dtype=torch.float64)
    for name in TRUST:
        result, _ = go(f, METHODS[name](radius=0.5), x0, 100)
        assert result.stop is Stop.FINISHED
        assert "below the rounding" in result.messages[0]


def test_trust_region_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    f = problem("rosenbrock")
    with pytest.raises(ImportError, match=r"pip install 'asgld\[scipy\]'"):
        go(f, TrustExact(), f.start(), 1)
