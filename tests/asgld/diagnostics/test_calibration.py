"""Settings from measurements: units, reasons, and runs that do better than fixed defaults."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

import asgld
from asgld.curvature import ModelHessian
from asgld.diagnostics import calibrate
from asgld.diagnostics.calibration import measure_start, measure_surroundings
from asgld.methods import Surroundings, langevin
from asgld.oracle import Oracle
from asgld.oracle.composite import Composite
from asgld.oracle.functions import torch_function
from asgld.problems import problem, problem_names
from asgld.prox import L1
from asgld.run import run
from asgld.run.stopping import Stop

# problem, options, batch size or None
CASES = [
    (name, batch)
    for name in problem_names()
    for batch in ((None, 16) if problem(name).num_samples is not None else (None,))
]


@pytest.mark.parametrize(("name", "batch_size"), CASES)
def test_calibrated_runs_beat_the_defaults(name: str, batch_size: int | None) -> None:
    """Median value over 5 random starts, equal steps; a tie is within 0.1 % of the whole fall."""
    is_large = name == "digits"
    function = problem(name)
    x0 = function.start(2 if is_large else 5, seed=1)
    advice = calibrate(function, x0, batch_size=batch_size, probe_steps=10 if is_large else 50)
    method: str = "agld" if batch_size is None else "asgld"
    batch: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}
    steps = 30 if is_large else 150
    default = run(Oracle(function), langevin(method, **batch), x0, max_steps=steps)
    calibrated = run(Oracle(function), langevin("asgld", **advice.options, **batch), x0,
                     max_steps=steps)  # fmt: skip
    assert set(calibrated.stops) == {Stop.MAX_STEPS}
    fall = float((function.value(x0) - calibrated.values).median())
    assert fall > 0
    margin = 1e-3 * fall
    assert float(calibrated.values.median()) <= float(default.values.median()) + margin


class _Scaled:
    """c times a problem."""

    def __init__(self, inner: Any, factor: float) -> None:
        self.inner, self.factor = inner, factor
        self.dim, self.num_samples = inner.dim, inner.num_samples

    def value(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * self.inner.value(x)

    def grad(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * self.inner.grad(x)

    def hvp(self, x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.factor * self.inner.hvp(x, v)

    def sample_grad(self, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return self.factor * self.inner.sample_grad(x, indices)


@pytest.mark.parametrize("factor", [0.25, 3.0, 1e4])
@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 1.0), (1.0, 1.0), (0.7, 1.5)])
@pytest.mark.parametrize("batch_size", [None, 8])
def test_iterates_do_not_depend_on_the_units_of_the_loss(
    factor: float, alpha: float, beta: float, batch_size: int | None
) -> None:
    inner = problem("phase-retrieval", dim=4)
    x0 = inner.start(seed=3)
    ends = []
    for function in (inner, _Scaled(inner, factor)):
        advice = calibrate(function, x0, alpha=alpha, beta=beta, batch_size=batch_size)
        x = x0.clone().requires_grad_()
        optimizer = asgld.ASGLD([x], seed=1, **advice.options)
        for k in range(40):
            if batch_size is None:
                x.grad = function.grad(x.detach())
            else:
                indices = torch.arange(8 * k, 8 * k + 8) % inner.num_samples
                x.grad = function.sample_grad(x.detach(), indices)
            optimizer.step()
        ends.append(x.detach())
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-7, atol=1e-9)


def test_settings_have_the_stated_scales() -> None:
    function = problem("strict-saddle", dim=10)
    advice = calibrate(function, function.start(seed=2), alpha=1.0, beta=1.0, noise=0.2, warmup=50)
    scales = advice.scales
    assert advice.lr * advice.d_init**-0.5 == pytest.approx(1 / scales.curvature)
    assert advice.d_init == pytest.approx(50 * scales.square)
    assert advice.delta == pytest.approx(advice.d_init / 100)
    temperature = advice.sigma**2 * advice.d_init**-0.5
    assert 10 * temperature == pytest.approx(0.04 * scales.energy)
    assert scales.curvature >= function.facts.saddles[0].lambda_min * -1


def test_curvature_met_on_the_way_counts() -> None:
    """At the saddle no curvature exceeds 2; at the minima below it there is one of 4."""
    function = problem("strict-saddle", dim=4, gamma=2.0)
    advice = calibrate(function, function.facts.saddles[0].point)
    assert advice.scales.curvature == pytest.approx(4.0)
    # and the descent has reached one of them
    assert advice.scales.energy == pytest.approx(-function.facts.minimum, rel=1e-3)


def test_every_setting_has_one_sentence_of_reason() -> None:
    advice = calibrate(problem("mixture"), problem("mixture").start(), batch_size=4)
    assert set(advice.reasons) == {"alpha", "beta", "theta", "d_init", "delta", "lr", "sigma"}
    for name, reason in advice.reasons.items():
        assert reason.startswith(f"{name}=")
        assert reason.endswith(".")
        assert len(re.findall(r"[.;:] [A-Z]", reason)) == 0
    assert str(advice).count("\n") == 6


def test_goals_choose_exponents() -> None:
    function = problem("mixture")
    x = function.start()
    assert calibrate(function, x, goal="balanced", batch_size=4).alpha == 1.0
    assert calibrate(function, x, goal="balanced").alpha == 0.0
    growing = calibrate(function, x, goal="converge", batch_size=4, growing_batch=True)
    assert (growing.alpha, growing.theta) == (0.0, 1.0)
    fixed = calibrate(function, x, goal="converge", batch_size=4, growing_batch=True, alpha=1.0)
    assert fixed.theta == 0.0
    assert calibrate(function, x, beta=math.inf).sigma == 0.0
    assert calibrate(function, x, noise=0.0).sigma == 0.0


def test_a_model_calibrates_at_its_parameters() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    data = torch.randn(64, 5)
    loader = list(zip(data.split(16), data[:, :1].sin().split(16), strict=True))
    loss = torch.nn.functional.mse_loss
    before = [p.detach().clone() for p in model.parameters()]
    source = ModelHessian(model, loss, loader)
    first = float(source.value(source.x))
    advice = calibrate(source, batch_size=16, probe_steps=10)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    optimizer = asgld.ASGLD(model.named_parameters(), **advice.options)
    for _ in range(10):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()
    assert float(source.value(source.x)) < 0.5 * first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noise": -1.0}, r"noise=-1\.0"),
        ({"warmup": 0.0}, r"warmup=0\.0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"goal": "win"}, "goal='win'"),
        ({"x": None}, "x=None: need a point"),
        ({"x": torch.zeros(2, 2, 2)}, r"x has shape \(2, 2, 2\)"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    function = problem("monkey-saddle")
    arguments = {"x": torch.ones(2, dtype=torch.float64), **arguments}
    with pytest.raises(ValueError, match=message):
        calibrate(function, **arguments)


def test_a_constant_function_cannot_be_calibrated() -> None:
    class Constant:
        dim, num_samples = 3, None

        def value(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum(-1) * 0

        def grad(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(x)

        def hvp(self, x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(v)

    with pytest.raises(ValueError, match="the gradient is 0 all around the start"):
        calibrate(Constant(), torch.ones(3, dtype=torch.float64))


# ----------------------------------------------------------------------------------------------
# From gradients alone
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.0, 1.0), (1.0, 0.7)])
@pytest.mark.parametrize("per_tensor", [False, True])
def test_groups_from_gradients_have_noise_in_units_of_the_step(
    alpha: float, beta: float, per_tensor: bool
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    model(torch.ones(5, 4)).square().sum().backward()
    groups = asgld.groups_from_gradients(
        model.named_parameters(),
        lr=0.02, alpha=alpha, beta=beta, warmup=50.0, noise=0.2, per_tensor=per_tensor,
    )  # fmt: skip
    assert len(groups) == (4 if per_tensor else 1)
    optimizer = asgld.ASGLD(groups, lr=0.02)
    for group in optimizer.param_groups:
        gradients = torch.cat([p.grad.flatten() for p in group["params"]]).double()
        size = gradients.square().mean().sqrt().item()
        step = group["lr"] * group["d_init"] ** (-alpha / 2) * size
        jitter = (2 * group["lr"]) ** 0.5 * group["d_init"] ** (-beta / 2) * group["sigma"]
        assert group["d_init"] == pytest.approx(50.0 * size**2)
        assert jitter == pytest.approx(0.2 * step)


def test_groups_from_gradients_bound_the_first_step_by_lr() -> None:
    p = torch.zeros(1000, requires_grad=True)
    p.grad = torch.randn(1000, generator=torch.Generator().manual_seed(0)) ** 3  # heavy tails
    for clip, bound in (
        (0.0, 1.0),
        (None, float(p.grad.abs().max() / (0.01 * p.grad.square().mean()) ** 0.5)),
    ):
        q = p.detach().clone().requires_grad_()
        q.grad = p.grad
        groups = asgld.groups_from_gradients([q], lr=0.1, noise=0.0, clip=clip)
        asgld.ASGLD(groups, lr=0.1).step()
        assert float(q.detach().abs().max()) == pytest.approx(0.1 * bound, rel=1e-5)


def test_groups_from_gradients_give_a_zero_gradient_the_scale_of_all() -> None:
    p, q = (torch.zeros(2, requires_grad=True) for _ in range(2))
    p.grad, q.grad = torch.full((2,), 2.0), torch.zeros(2)
    groups = asgld.groups_from_gradients([p, q], lr=0.1)
    assert [group["d_init"] for group in groups] == [0.04, 0.02]


def test_a_penalty_belongs_to_the_optimizer() -> None:
    """Settings of f alone, and groups with `prox`, end at the sparse minimum of f + g."""
    inputs = torch.randn(30, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = inputs[:, :1] - 2 * inputs[:, 1:2]
    model = torch.nn.Linear(6, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    loss = torch.nn.functional.mse_loss
    advice = calibrate(ModelHessian(model, loss, [(inputs, targets)]), noise=0.0)
    groups = [{"params": [("weight", model.weight)], "prox": L1(0.2)}]
    optimizer = asgld.ASGLD(groups, **advice.options)
    for _ in range(2000):
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()
    best = asgld.minimize(
        lambda x: (inputs @ x - targets[:, 0]).square().mean(), torch.zeros(6), prox=L1(0.2)
    )
    torch.testing.assert_close(model.weight[0].detach(), best.x, rtol=1e-6, atol=1e-9)
    assert (model.weight == 0).sum() == 4


def test_an_objective_with_a_penalty_is_refused() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.square().sum()

    whole = Composite(torch_function(f, 3), L1(0.1).on((3,)))
    for source in (whole, Oracle(whole)):
        with pytest.raises(ValueError, match="penalty"):
            calibrate(source, torch.ones(3).double())
    with pytest.raises(TypeError, match="torch_function"):
        calibrate(f, torch.ones(3).double())


def test_groups_from_gradients_take_a_penalty_afterwards() -> None:
    layer = torch.nn.Linear(4, 2)
    layer(torch.ones(3, 4)).square().mean().backward()
    named = list(layer.named_parameters())
    with pytest.raises(TypeError, match=r"params\[0\] is a dict"):
        asgld.groups_from_gradients([{"params": named, "prox": L1(0.1)}], lr=0.1)  # type: ignore[list-item]
    groups = asgld.groups_from_gradients(named, lr=0.1)
    optimizer = asgld.ASGLD([{**groups[0], "prox": L1(0.1)}, groups[1]])
    assert [group["prox"] for group in optimizer.param_groups] == [L1(0.1), None]


def test_groups_from_gradients_refuse_what_says_nothing() -> None:
    p = torch.ones(3, requires_grad=True)
    with pytest.raises(ValueError, match=r"params\[0\] has no gradient"):
        asgld.groups_from_gradients([p], lr=0.1)
    p.grad = torch.zeros(3)
    with pytest.raises(ValueError, match="all gradients are zero"):
        asgld.groups_from_gradients([p], lr=0.1)
    with pytest.raises(ValueError, match="lr=0"):
        asgld.groups_from_gradients([p], lr=0)


def test_mean_square_is_that_of_all_coordinates() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    model(torch.ones(5, 4)).square().sum().backward()
    gradients = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
    expected = pytest.approx(gradients.square().mean().item(), rel=1e-12)
    assert asgld.mean_square_gradient(model.parameters()) == expected
    assert asgld.mean_square_gradient(model.named_parameters()) == expected
    p = torch.zeros(2, dtype=torch.complex64, requires_grad=True)
    p.grad = torch.tensor([3.0 + 4.0j, 0.0])
    assert asgld.mean_square_gradient([p]) == 6.25  # a complex number is two coordinates
    small = torch.zeros(2, dtype=torch.float16, requires_grad=True)
    small.grad = torch.full((2,), 2.0**-14, dtype=torch.float16)  # whose square is zero there
    assert asgld.mean_square_gradient([small]) == 2.0**-28


def test_mean_square_refuses_what_says_nothing() -> None:
    p, q = (torch.ones(3, requires_grad=True) for _ in range(2))
    with pytest.raises(ValueError, match="need at least one parameter"):
        asgld.mean_square_gradient([])
    p.grad = torch.ones(3)
    with pytest.raises(ValueError, match=r"params\[1\] has no gradient"):
        asgld.mean_square_gradient([p, q])
    q.grad = torch.tensor([0.0, math.nan, 0.0])
    with pytest.raises(ValueError, match=r"gradient of params\[1\] is not finite"):
        asgld.mean_square_gradient([p, q])
    p.grad.zero_()
    with pytest.raises(ValueError, match="all gradients are zero"):
        asgld.mean_square_gradient([p])


@pytest.mark.parametrize(("of_f", "of_x"), [(1e8, 1.0), (1e-8, 1.0), (1.0, 1e4), (1.0, 1e-4)])
def test_surroundings_have_the_units_of_the_function(of_f: float, of_x: float) -> None:
    def measured(a: float, b: float) -> Surroundings:
        function = torch_function(
            lambda x: a * ((x[1] - (x[0] / b) ** 2 * b) ** 2 / b**2 + (x[0] / b) ** 4), dim=2
        )
        oracle, x0 = Oracle(function), b * torch.tensor([[1.3, -0.4]], dtype=torch.float64)
        return measure_surroundings(oracle, x0, measure_start(oracle, x0))

    here, there = measured(1.0, 1.0), measured(of_f, of_x)
    powers = {"curvature": 2, "hessian_lipschitz": 3, "fall": 0, "length": -1, "eps": 1, "gamma": 2}
    for name, power in powers.items():
        unit = of_x**-power * (1.0 if name == "length" else of_f)
        assert getattr(there, name) == pytest.approx(unit * getattr(here, name), rel=1e-3), name
