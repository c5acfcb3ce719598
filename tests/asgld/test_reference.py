"""The update rule: equal to the reference, exact in its special cases, right in distribution."""

from __future__ import annotations

import inspect
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from helpers import BACKENDS, EXPONENTS, HEATING, make_parameters, make_tensor, pairwise, take_steps
from scipy import optimize

import asgld
from asgld import noise, reference

pytestmark = pytest.mark.filterwarnings(HEATING)


def _reference_path(x0: np.ndarray, steps: int, *, stream: int = 0, **knobs: Any) -> np.ndarray:
    index = np.arange(x0.size)
    seed = knobs.pop("seed")
    gradients = iter(range(steps))

    def gradient(x: np.ndarray) -> np.ndarray:
        k = next(gradients)
        return make_tensor(*x.shape, seed=1000 * k, dtype=torch.float64).numpy() + 0.5 * x

    path = reference.asgld(
        gradient,
        x0,
        lambda k: noise.normal(seed, stream, k, index).reshape(x0.shape),
        **knobs,
    )
    return [next(path) for _ in range(steps)][-1]


@pytest.mark.parametrize(
    ("backend", "exponents", "others"),
    pairwise(BACKENDS, EXPONENTS, [(0.01, 1.0, 0.0), (0.0, 0.3, 0.1), (0.5, 20.0, 0.01)]),
)
def test_rule_equals_the_reference(
    backend: str, exponents: tuple[float, float], others: tuple[float, float, float]
) -> None:
    (alpha, beta), (delta, d_init, weight_decay) = exponents, others
    knobs: dict[str, Any] = {
        "lr": 0.05, "alpha": alpha, "beta": beta, "sigma": 0.3, "delta": delta,
        "d_init": d_init, "weight_decay": weight_decay, "seed": 2**40 + 1,
    }  # fmt: skip
    p = make_tensor(3, 5, seed=1, dtype=torch.float64).requires_grad_()
    expected = _reference_path(p.detach().numpy().copy(), 60, **knobs)
    take_steps(asgld.ASGLD([p], **knobs, **BACKENDS[backend]), 60)
    np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_rule_equals_the_reference_when_maximizing() -> None:
    knobs: dict[str, Any] = {
        "lr": 0.05, "alpha": 1.0, "beta": 1.0, "sigma": 0.3, "delta": 0.01,
        "d_init": 1.0, "maximize": True, "seed": 4,
    }  # fmt: skip
    p = make_tensor(7, seed=1, dtype=torch.float64).requires_grad_()
    expected = _reference_path(p.detach().numpy().copy(), 100, **knobs)
    take_steps(asgld.ASGLD([p], **knobs), 100)
    np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_reference_presets_are_its_special_cases() -> None:
    x0 = make_tensor(4, seed=0, dtype=torch.float64).numpy()
    common: dict[str, Any] = {"lr": 0.1, "delta": 0.01, "d_init": 1.0}

    def draw(k: int) -> np.ndarray:
        return noise.normal(0, 0, k, np.arange(4))

    agld = reference.agld(lambda x: x, x0, draw, sigma=0.5, **common)
    plain = reference.asgld(lambda x: x, x0, draw, alpha=0.0, beta=1.0, sigma=0.5, **common)
    asg = reference.asg(lambda x: x, x0, **common)
    quiet = reference.asgld(lambda x: x, x0, None, alpha=1.0, beta=1.0, sigma=0.0, **common)
    for _ in range(5):
        assert (next(agld) == next(plain)).all()
        assert (next(asg) == next(quiet)).all()


@pytest.mark.parametrize("knobs", [{"sigma": 1.0}, {"sigma": 0.0, "noise": 1.0}])
@pytest.mark.parametrize("others", [{}, {"decay": 0.9}, {"shape": "row"}])
def test_reference_without_noise_says_so(knobs: dict[str, Any], others: dict[str, Any]) -> None:
    """The call raises, not the first iterate."""
    with pytest.raises(ValueError, match=r"normals=None with (sigma|noise)=1.0"):
        reference.agld(lambda x: x, [1.0], None, lr=0.1, delta=0.1, d_init=1.0, **knobs, **others)


PRINTED: dict[str, Any] = {
    "lr": 0.1, "alpha": 1.0, "beta": 1.0, "sigma": 0.3, "delta": 0.1, "d_init": 0.1,
    "lag": reference.Lag.TWO,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weight_decay", 0.1),
        ("maximize", True),
        ("decay", 0.9),
        ("momentum", 0.5),
        ("clip", 0.0),
        ("annealing", 1.0),
        ("opposed", 0.0),
        ("noise", 0.0),
        ("noise_bound", 1.0),
        ("shape", "row"),
        ("blocks", 2),
        ("polar_by", "svd"),
    ],
)
def test_printed_algorithm_refuses_what_it_does_not_print(name: str, value: Any) -> None:
    """The call raises, not the first iterate."""
    start, normals = np.ones((2, 2)), np.ones_like
    with pytest.raises(ValueError, match=f"{name}=.*Lag.TWO"):
        reference.asgld(lambda x: x, start, normals, **PRINTED, **{name: value})


def test_printed_algorithm_refuses_every_knob_that_it_lacks() -> None:
    """A new knob of the reference is refused as well, or stands in this list."""
    printed = {"gradient", "x", "normals", "lr", "alpha", "beta", "sigma", "delta", "d_init"}
    refused = set(inspect.signature(reference.asgld).parameters) - printed - {"lag", "prox"}
    marks = test_printed_algorithm_refuses_what_it_does_not_print.pytestmark  # type: ignore[attr-defined]
    assert {name for name, _ in marks[0].args[1]} == refused


# ----------------------------------------------------------------------------------------------
# The proximal step
# ----------------------------------------------------------------------------------------------

GROUPS = np.array([0, 0, 0, 1, 1, -1])
PENALTIES = {
    "l1": (reference.l1(0.4), lambda u: 0.4 * np.abs(u).sum()),
    "elastic": (
        reference.elastic_net(0.4, 0.7),
        lambda u: 0.4 * np.abs(u).sum() + 0.35 * (u * u).sum(),
    ),
    "groups": (
        reference.group_lasso(0.6, GROUPS),
        lambda u: 0.6 * (np.linalg.norm(u[:3]) + np.linalg.norm(u[3:5])),
    ),
}


@pytest.mark.parametrize("name", PENALTIES)
def test_literal_proximal_step_minimizes(name: str) -> None:
    prox, penalty = PENALTIES[name]
    random = np.random.default_rng(0)
    for _ in range(5):
        x, step = random.normal(size=6), np.exp(random.normal(size=6))

        def objective(u: np.ndarray, x: Any = x, step: Any = step, g: Any = penalty) -> float:
            return float(g(u) + np.sum((u - x) ** 2 / (2 * step)))

        found = prox(x, step)
        for start in (x, found):
            best = optimize.minimize(objective, start, method="Powell", options={"ftol": 1e-15})
            assert objective(found) <= best.fun * (1 + 1e-12)
            np.testing.assert_allclose(found, best.x, atol=3e-6)


@pytest.mark.parametrize(
    "knobs",
    [{}, {"lag": reference.Lag.TWO}, {"momentum": 0.6, "decay": 0.9, "d_init": 0.0, "clip": 0.5}],
)
def test_proximal_step_has_the_metric_of_its_step(knobs: dict[str, Any]) -> None:
    """The sizes that `prox` is told are those by which the rule scales a gradient."""
    told: list[Any] = []

    def gradient(x: np.ndarray) -> np.ndarray:
        return 0.5 * x + 1.0

    def prox(x: np.ndarray, step: np.ndarray) -> np.ndarray:
        told.append(step)
        return 0.9 * x

    fixed = {**PRINTED, "sigma": 0.0, "lag": reference.Lag.ONE, **knobs}
    path = reference.asgld(gradient, [1.0, 2.0], None, prox=prox, **fixed)
    iterates = [np.array([1.0, 2.0]), *(next(path) for _ in range(8))]
    first = 1 if "momentum" in knobs else 0  # the first gradient only fills the average
    assert len(told) == 8 - first
    if first:
        assert (iterates[0] == iterates[1]).all()
        return
    for x, new, step in zip(iterates, iterates[1:], told, strict=False):
        np.testing.assert_allclose(new, 0.9 * (x - step * gradient(x)), rtol=1e-12)


def test_proximal_step_needs_a_metric_per_coordinate() -> None:
    with pytest.raises(ValueError, match="shape='row'"):
        reference.asg(lambda x: x, [1.0], lr=0.1, delta=0.1, d_init=1.0, shape="row",
                      prox=reference.l1(0.1))  # fmt: skip


def test_printed_indexing_lags_by_two() -> None:
    """With Lag.TWO the accumulator that scales gradient k ends at gradient k-2, and the first
    gradient is in it twice, because the paper starts from x_0 = x_1."""
    gradients = [np.array([g]) for g in (1.0, 2.0, 3.0, 4.0)]
    expected = {
        reference.Lag.ONE: [1.0, 2.1, 6.2, 15.3],
        # 1; then + G(x_0)^2 + delta; then + G(x_1)^2 + delta, the same gradient; then G(x_2)^2
        reference.Lag.TWO: [1.0, 2.1, 3.2, 7.3],
    }
    for lag, metrics in expected.items():
        feed = iter(gradients)
        path = reference.asg(
            lambda x, feed=feed: next(feed),
            [0.0],
            alpha=2.0,
            lr=1.0,
            delta=0.1,
            d_init=1.0,
            lag=lag,
        )
        x, found = 0.0, []
        for g in gradients:
            new = float(next(path)[0])
            found.append(float(g[0]) / (x - new))
            x = new
        np.testing.assert_allclose(found, metrics, rtol=1e-12)


# ----------------------------------------------------------------------------------------------
# Special cases
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("quiet", [{"sigma": 0.0}, {"sigma": 1.0, "beta": math.inf}])
def test_alpha_zero_without_noise_is_torch_sgd_bit_for_bit(
    backend: str, dtype: torch.dtype, quiet: dict[str, float]
) -> None:
    ours = make_parameters([(5, 3), (7,)], dtype=dtype)
    theirs = make_parameters([(5, 3), (7,)], dtype=dtype)
    take_steps(asgld.ASGLD(ours, lr=0.037, alpha=0.0, **quiet, **BACKENDS[backend]), 50)
    take_steps(torch.optim.SGD(theirs, lr=0.037), 50)
    for a, b in zip(ours, theirs, strict=True):
        if backend == "fused" and dtype == torch.float64:
            # The kernel rounds lr * g before it adds it; torch does not.
            torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-15)
        else:
            assert torch.equal(a, b)


def test_alpha_beta_zero_is_sgld() -> None:
    """x - lr G + sqrt(2 lr / u) e with e ~ N(0, 1), u = 1 / sigma^2: the paper's equation (2)."""
    u, lr = 4.0, 0.05
    p = make_tensor(9, seed=1, dtype=torch.float64).requires_grad_()
    x = p.detach().numpy().copy()
    optimizer = asgld.SGLD([p], lr=lr, sigma=u**-0.5, seed=5)
    for k in range(50):
        gradient = make_tensor(9, seed=1000 * k, dtype=torch.float64).numpy() + 0.5 * x
        e = noise.normal(5, 0, k, np.arange(9))
        x = x - lr * gradient + math.sqrt(2 * lr / u) * e
        take_steps(optimizer, 1, first=k)
    np.testing.assert_allclose(p.detach().numpy(), x, rtol=1e-12, atol=1e-12)


def test_asg_is_adagrad_with_the_lag() -> None:
    """Adagrad at step k divides by the root of a sum that holds gradient k; ASG's ends at k-1. So
    torch's Adagrad with its sum set back by the newest square takes the same step."""
    lr, d_init, delta = 0.1, 0.7, 0.02
    p = torch.ones(4, dtype=torch.float64, requires_grad=True)
    optimizer = asgld.ASG([p], lr=lr, d_init=d_init, delta=delta)
    total = torch.full((4,), d_init, dtype=torch.float64)
    x = torch.ones(4, dtype=torch.float64)
    for k in range(60):
        g = make_tensor(4, seed=1000 * k, dtype=torch.float64) + 0.5 * x
        # torch's Adagrad on one step: start its sum so that adding g^2 gives the lagged D.
        q = x.clone().requires_grad_()
        adagrad = torch.optim.Adagrad([q], lr=lr, eps=0.0)
        adagrad.state[q]["sum"].copy_(total - g * g)
        q.grad = g.clone()
        adagrad.step()
        x = q.detach()
        total = total + g * g + delta
        take_steps(optimizer, 1, first=k)
        torch.testing.assert_close(p.detach(), x, rtol=1e-12, atol=1e-12)


OPTIONS: list[dict[str, Any]] = [
    {}, {"maximize": True}, {"weight_decay": 0.1}, {"capturable": True}
]  # fmt: skip


@pytest.mark.parametrize(
    ("alpha", "beta", "options"),
    [
        *((*pair, OPTIONS[i % 4]) for i, pair in enumerate(EXPONENTS)),
        *((0.7, 1.3, options) for options in OPTIONS),
    ],
)
def test_foreach_equals_loop_bit_for_bit(
    alpha: float, beta: float, options: dict[str, Any]
) -> None:
    shapes: list[tuple[int, ...]] = [(3, 5), (), (17,), (0,), (2, 3, 4)]
    mixed = [torch.float32, torch.float64, torch.bfloat16, torch.float32, torch.float16]
    results = []
    for backend in ("loop", "foreach"):
        params = [
            make_tensor(*shape, seed=i, dtype=dtype).requires_grad_()
            for i, (shape, dtype) in enumerate(zip(shapes, mixed, strict=True))
        ]
        optimizer = asgld.ASGLD(
            params, lr=0.1, alpha=alpha, beta=beta, sigma=0.2, **BACKENDS[backend], **options
        )
        take_steps(optimizer, 8)
        results.append((params, [optimizer.state[p] for p in params]))
    for a, b in zip(results[0][0], results[1][0], strict=True):
        assert torch.equal(a, b)
    for a, b in zip(results[0][1], results[1][1], strict=True):
        assert torch.equal(a["sum"], b["sum"])
        assert torch.equal(a["step"], b["step"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensor_lr_equals_float_lr(backend: str) -> None:
    results = []
    for lr in (
        0.05,
        torch.tensor(0.05, dtype=torch.float64),
        torch.tensor([0.05], dtype=torch.float64),
    ):
        p = make_parameters([(6,)], dtype=torch.float64)
        optimizer = asgld.ASGLD(
            p, lr=lr, sigma=0.3, weight_decay=0.1, capturable=True, **BACKENDS[backend]
        )
        take_steps(optimizer, 30)
        results.append(p[0].detach())
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, rtol=1e-12, atol=1e-12)


def test_complex_parameters_are_pairs_of_real_ones() -> None:
    z = torch.view_as_complex(make_tensor(6, 2, seed=3, dtype=torch.float64)).requires_grad_()
    x = make_tensor(6, 2, seed=3, dtype=torch.float64).requires_grad_()
    complex_one = asgld.ASGLD([z], lr=0.1, sigma=0.5)
    real_one = asgld.ASGLD([x], lr=0.1, sigma=0.5)
    for k in range(20):
        x.grad = make_tensor(6, 2, seed=k, dtype=torch.float64)
        z.grad = torch.view_as_complex(x.grad.clone())
        complex_one.step()
        real_one.step()
    assert torch.equal(torch.view_as_real(z.detach()), x.detach())
    assert (z.detach().imag != torch.view_as_complex(x.detach() * 0).imag).all()


def test_strided_parameters_get_the_noise_of_their_logical_place() -> None:
    plain = make_tensor(6, 4, seed=3).requires_grad_()
    strided = make_tensor(6, 4, seed=3).t().contiguous().t().requires_grad_()
    assert not strided.is_contiguous()
    for p in (plain, strided):
        take_steps(asgld.ASGLD([p], lr=0.1, sigma=0.5), 10)
    torch.testing.assert_close(plain, strided, rtol=1e-6, atol=1e-6)


# ----------------------------------------------------------------------------------------------
# Distribution. Each test states its null and rejects at 5 standard errors.
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (0.0, 1.0), (1.0, 2.0), (1.0, 0.7)])
def test_noise_without_gradients_has_the_stated_variance(alpha: float, beta: float) -> None:
    """Null: x_K ~ N(0, 2 lr sigma^2 sum_k D_k^-beta), D_k = d_init + k delta; 200,000 coordinates,
    whose squared sum has relative standard error sqrt(2 / n)."""
    n, lr, sigma, delta, d_init, steps = 200_000, 0.1, 0.7, 0.3, 2.0, 10
    x = torch.zeros(n, requires_grad=True)
    optimizer = asgld.ASGLD(
        [x], lr=lr, alpha=alpha, beta=beta, sigma=sigma, delta=delta, d_init=d_init, seed=9
    )
    x.grad = torch.zeros(n)
    for _ in range(steps):
        optimizer.step()
    variance = 2 * lr * sigma**2 * sum((d_init + k * delta) ** -beta for k in range(steps))
    measured = float((x.detach().double() ** 2).mean())
    assert abs(measured / variance - 1) < 5 * math.sqrt(2 / n)
    assert abs(float(x.detach().double().mean())) < 5 * math.sqrt(variance / n)


def test_sgld_samples_the_right_gaussian() -> None:
    """Null: chains x+ = x - lr A (x - m) + sqrt(2 lr T) e are stationary with mean m and covariance
    C = (I - lr A) C (I - lr A) + 2 lr T I, i.e. C = T (A - lr A^2 / 2)^-1. 20,000 independent
    chains after 400 steps; the slowest direction forgets at rate lr 0.7 per step."""
    chains, lr, temperature = 20_000, 0.1, 0.8
    a = torch.tensor([[2.0, 0.6], [0.6, 1.0]], dtype=torch.float64)
    mean = torch.tensor([1.0, -2.0], dtype=torch.float64)
    x = torch.zeros(chains, 2, dtype=torch.float64, requires_grad=True)
    optimizer = asgld.SGLD([x], lr=lr, sigma=math.sqrt(temperature), seed=3)
    for _ in range(400):
        x.grad = (x.detach() - mean) @ a
        optimizer.step()
    covariance = temperature * torch.linalg.inv(a - lr / 2 * a @ a)
    sample = x.detach()
    error = (sample.mean(0) - mean) / torch.sqrt(covariance.diag() / chains)
    assert (error.abs() < 5).all()
    centered = sample - mean
    measured = centered.T @ centered / chains
    d = covariance.diag()
    spread = torch.sqrt((torch.outer(d, d) + covariance**2) / chains)
    assert ((measured - covariance).abs() < 5 * spread).all()


def test_replicas_are_independent_chains() -> None:
    """Null: correlation between two rows of one parameter is 0; 4,000 columns."""
    x = torch.zeros(2, 4000, requires_grad=True)
    optimizer = asgld.ASGLD([x], lr=0.1, sigma=1.0)
    x.grad = torch.zeros_like(x)
    for _ in range(3):
        optimizer.step()
    first, second = x.detach()
    correlation = (first * second).mean() / (first.std() * second.std())
    assert abs(float(correlation)) < 5 / math.sqrt(4000)


def test_quiet_settings_draw_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("noise was drawn")

    monkeypatch.setattr(noise, "torch_normals", refuse)
    for optimizer_of in (
        lambda p: asgld.ASG(p, fused=False),
        lambda p: asgld.ASGLD(p, sigma=0.0, fused=False),
        lambda p: asgld.ASGLD(p, beta=math.inf, foreach=False),
    ):
        take_steps(optimizer_of(make_parameters([(3,)])), 2)


def test_large_beta_is_not_the_limit_where_the_metric_is_below_one() -> None:
    """The paper's "beta to infinity is ASG" fails for D < 1: D^(-beta/2) grows without bound."""
    size = []
    for beta in (2.0, 20.0):
        x = torch.zeros(1000, requires_grad=True)
        x.grad = torch.zeros(1000)
        asgld.ASGLD([x], lr=0.1, beta=beta, sigma=1.0, d_init=0.5).step()
        size.append(float(x.detach().abs().mean()))
    assert size[1] > 100 * size[0]


# ----------------------------------------------------------------------------------------------
# Half precision
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_a_growing_sum(dtype: torch.dtype) -> None:
    x = torch.zeros(4, dtype=dtype, requires_grad=True)
    optimizer = asgld.ASG([x], lr=1e-3)
    x.grad = torch.ones(4, dtype=dtype)
    for _ in range(2000):
        optimizer.step()
    assert optimizer.state[x]["sum"].dtype == torch.float32
    assert (optimizer.state[x]["sum"] == 2000).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_stochastic_rounding_keeps_small_updates(backend: str) -> None:
    """Null: 100 steps of -2e-4 from 1, each a twentieth of bfloat16's spacing below 1 (2^-8), lose
    nothing on average; rounding to nearest loses all of them. 40,000 coordinates."""
    moved = {}
    for stochastic in (False, True):
        x = torch.ones(40_000, dtype=torch.bfloat16, requires_grad=True)
        optimizer = asgld.ASG(
            [x], lr=2e-4, alpha=0.0, stochastic_rounding=stochastic, **BACKENDS[backend]
        )
        x.grad = torch.ones(40_000, dtype=torch.bfloat16)
        for _ in range(100):
            optimizer.step()
        moved[stochastic] = 1 - x.detach().double()
    assert (moved[False] == 0).all()
    standard_error = moved[True].std() / math.sqrt(40_000)
    assert abs(moved[True].mean() - 0.02) < 5 * standard_error


def test_bfloat16_sum_grows_with_stochastic_rounding() -> None:
    """Null: the expected sum of 400 unit squares is 400; nearest rounding stalls at 256."""
    x = torch.zeros(4000, dtype=torch.bfloat16, requires_grad=True)
    x.grad = torch.ones(4000, dtype=torch.bfloat16)
    optimizer = asgld.ASG(
        [x], lr=1e-3, sum_dtype=torch.bfloat16, stochastic_rounding=True, fused=False
    )
    for _ in range(400):
        optimizer.step()
    total = optimizer.state[x]["sum"].double()
    assert optimizer.state[x]["sum"].dtype == torch.bfloat16
    assert abs(total.mean() - 400) < 5 * total.std() / math.sqrt(4000)


def test_defaults_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for optimizer in (asgld.ASGLD, asgld.AGLD, asgld.ASG, asgld.SGLD):
            # A seed of its own: two samplers with the same noise are worth a warning.
            optimizer([torch.zeros(2, requires_grad=True)], seed=387)
