"""Decay, momentum, clip and annealing: equal to the reference, and to what coincides with them."""

from __future__ import annotations

import copy
import math
from typing import Any

import helpers
import numpy as np
import pytest
import torch
from helpers import BACKENDS, HEATING, RULE, make_parameters, make_tensor, pairwise, take_steps
from torch import Tensor

import asgld
from asgld import noise, reference, theory
from asgld.optim import plan
from asgld.optim.rule import Rule

pytestmark = pytest.mark.filterwarnings(HEATING)
WIDER: dict[str, dict[str, Any]] = {
    **helpers.WIDER,
    "all, general powers": {
        "decay": 0.9, "momentum": 0.5, "clip": 0.1, "annealing": 0.6, "alpha": 0.7, "beta": 1.3,
    },
}  # fmt: skip


def options_of(backend: str, knobs: dict[str, Any]) -> dict[str, Any]:
    """The backend's options, or a skip where its kernel does not serve these knobs."""
    rule = Rule(**{**RULE, **knobs})
    if backend == "fused":
        reason = plan.unavailable_reason([torch.zeros(1)], rule)
        if reason is not None:
            pytest.skip(reason)
    return BACKENDS[backend]


@pytest.mark.parametrize(("backend", "maximize", "name"), pairwise(BACKENDS, [False, True], WIDER))
def test_wider_rule_equals_the_reference(backend: str, maximize: bool, name: str) -> None:
    knobs: dict[str, Any] = {
        "lr": 0.05, "alpha": 1.0, "beta": 1.0, "sigma": 0.3, "delta": 0.01, "d_init": 1.0,
        "weight_decay": 0.1, "maximize": maximize, **WIDER[name],
    }  # fmt: skip
    options = options_of(backend, knobs)
    p = make_tensor(3, 5, seed=1, dtype=torch.float64).requires_grad_()
    gradients = iter(range(40))

    def gradient(x: np.ndarray) -> np.ndarray:
        k = next(gradients)
        return make_tensor(3, 5, seed=1000 * k, dtype=torch.float64).numpy() + 0.5 * x

    path = reference.asgld(
        gradient,
        p.detach().numpy().copy(),
        lambda k: noise.normal(9, 0, k, np.arange(15)).reshape(3, 5),
        **knobs,
    )
    expected = [next(path) for _ in range(40)][-1]
    take_steps(asgld.ASGLD([p], seed=9, **knobs, **options), 40)
    np.testing.assert_allclose(p.detach().numpy(), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("opposed", [0.3, 0.0, -0.3, -1.0])
def test_momentum_against_its_gradient_has_a_factor(
    backend: str, dtype: torch.dtype, opposed: float
) -> None:
    """Where momentum points the other way a step is `opposed` times what it was; what has no
    gradient takes no such turn; and the momentum that is stored is the one that all have."""
    x = make_tensor(70, seed=1, dtype=dtype).requires_grad_()
    knobs: dict[str, Any] = {"decay": 0.9, "momentum": 0.9, "sigma": 0.0, "opposed": opposed}
    optimizer = asgld.ASGLD([x], lr=0.05, **knobs, **options_of(backend, knobs))
    other = x.detach().clone().requires_grad_()
    plain = asgld.ASGLD([other], lr=0.05, **{**knobs, "opposed": 1.0}, fused=False)
    num_opposed = 0
    for k in range(20):
        gradient = make_tensor(70, seed=k + 2, dtype=dtype)
        gradient[k % 7 :: 7], gradient[(k + 3) % 7 :: 7] = 0.0, -0.0  # after some that were not
        x.grad, other.grad, before = gradient, gradient, x.detach().clone()
        optimizer.step()
        plain.step()
        move, momentum = before - x.detach(), optimizer.state[x]["momentum"]
        agrees, against = momentum * gradient > 0, momentum * gradient < 0
        num_opposed += int(against.sum())
        factor = torch.where(agrees, 1.0, torch.where(against, opposed, max(opposed, 0.0)))
        torch.testing.assert_close(move, 0.05 * momentum * factor, rtol=1e-4, atol=1e-7)
        assert torch.equal(move != 0, (momentum != 0) & (factor != 0))
        torch.testing.assert_close(momentum, plain.state[other]["momentum"])
    assert num_opposed > 100


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("opposed", [0.3, 0.0, -0.3, -1.0])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_lost_gradient_shows_in_the_parameter(backend: str, opposed: float, sign: float) -> None:
    """A coordinate that is not a number must not look like one that waits."""
    x = torch.zeros(9, requires_grad=True)
    knobs: dict[str, Any] = {"decay": 0.9, "momentum": 0.9, "sigma": 0.0, "opposed": opposed}
    optimizer = asgld.ASGLD([x], lr=0.05, **knobs, **options_of(backend, knobs))
    x.grad = torch.full((9,), sign)
    optimizer.step()
    x.grad = torch.full((9,), -1.0)
    x.grad[4] = math.nan
    optimizer.step()
    assert torch.equal(x.isnan().nonzero().flatten(), torch.tensor([4]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("opposed", [0.3, 0.0, -0.3, -1.0])
@pytest.mark.parametrize("lost", [math.inf, -math.inf, math.nan])
def test_a_lost_momentum_shows_where_there_is_no_gradient(
    backend: str, dtype: torch.dtype, opposed: float, lost: float
) -> None:
    """All backends multiply the momentum by max(opposed, sign(m) sign(g)): inf by 0 is NAN."""
    knobs: dict[str, Any] = {"momentum": 0.9, "sigma": 0.0, "opposed": opposed}
    found = []
    for options in ({"foreach": False, "fused": False}, options_of(backend, knobs)):
        x = torch.zeros(40, dtype=dtype, requires_grad=True)
        optimizer = asgld.ASGLD([x], lr=0.05, **knobs, **options)
        x.grad = torch.ones_like(x)
        optimizer.step()
        optimizer.state[x]["momentum"][::3] = lost
        x.grad = torch.zeros_like(x)
        optimizer.step()
        found.append(x.detach())
    torch.testing.assert_close(*found, equal_nan=True)
    assert not found[1][::3].isfinite().any()


@pytest.mark.parametrize("name", WIDER)
@pytest.mark.parametrize("capturable", [False, True])
def test_wider_lists_are_the_loop_bit_for_bit(name: str, capturable: bool) -> None:
    found = []
    for foreach in (False, True):
        params = make_parameters([(3, 4), (7,), ()], dtype=torch.float32)
        options = {"foreach": foreach, "fused": False, "capturable": capturable}
        take_steps(asgld.ASGLD(params, lr=0.05, sigma=0.1, **WIDER[name], **options), 5)
        found.append(torch.cat([p.detach().flatten() for p in params]))
    assert torch.equal(*found)


@pytest.mark.parametrize("name", WIDER)
def test_wider_steps_counted_on_the_device_are_the_same(name: str) -> None:
    found = []
    for capturable in (False, True):
        params = make_parameters([(3, 4), (7,)], dtype=torch.float64)
        options = {"foreach": False, "fused": False, "capturable": capturable}
        take_steps(asgld.ASGLD(params, lr=0.05, sigma=0.1, **WIDER[name], **options), 8)
        found.append(torch.cat([p.detach().flatten() for p in params]))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


# ----------------------------------------------------------------------------------------------
# What coincides with others
# ----------------------------------------------------------------------------------------------


def steady_gradients(steps: int) -> list[Tensor]:
    """Gradients of changing sign and, per coordinate, steady size: squares are their own average,
    so it does not matter whether D holds the newest one."""
    size = make_tensor(20, seed=0, dtype=torch.float64).abs() + 0.1
    return [size * make_tensor(20, seed=k, dtype=torch.float64).sign() for k in range(1, steps + 1)]


def follow(optimizer: torch.optim.Optimizer, x: Tensor, gradients: list[Tensor]) -> Tensor:
    for gradient in gradients:
        x.grad = gradient.clone()
        optimizer.step()
    return x.detach()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_decay_is_rmsprop_where_both_know_the_size(momentum: float) -> None:
    gradients = steady_gradients(200)
    x, y = (torch.zeros(20, dtype=torch.float64, requires_grad=True) for _ in range(2))
    theirs = torch.optim.RMSprop([x], lr=0.01, alpha=0.95, eps=0.0, momentum=momentum)
    x.grad = torch.zeros_like(x)
    for group in theirs.param_groups:
        group["lr"] = 0.0
    theirs.step()  # creates the state
    with torch.no_grad():
        x.zero_()
    theirs.state[x]["square_avg"].copy_(gradients[0] ** 2)
    theirs.state[x].get("momentum_buffer", torch.zeros(())).zero_()
    theirs.param_groups[0]["lr"] = 0.01
    ours = asgld.ASGLD(
        [y], lr=0.01 / (1 - momentum), sigma=0.0, delta=1e-300, d_init=0.0, decay=0.95,
        momentum=momentum,
    )  # fmt: skip
    follow(ours, y, gradients[:1])  # fills the average
    assert (y == 0).all()
    follow(ours, y, gradients)
    follow(theirs, x, gradients)
    torch.testing.assert_close(y, x, rtol=1e-10, atol=1e-10)


def test_momentum_is_adams_where_the_size_is_steady() -> None:
    """After a long time, when Adam's corrections for its beginning are gone."""
    gradients = steady_gradients(200)
    x, y = (torch.zeros(20, dtype=torch.float64, requires_grad=True) for _ in range(2))
    theirs = torch.optim.Adam([x], lr=0.01, betas=(0.9, 0.95), eps=0.0)
    x.grad = torch.zeros_like(x)
    theirs.step()
    theirs.state[x]["step"].fill_(100_000)
    theirs.state[x]["exp_avg_sq"].copy_(gradients[0] ** 2)
    theirs.state[x]["exp_avg"].zero_()
    with torch.no_grad():
        x.zero_()
    ours = asgld.ASGLD([y], lr=0.01, sigma=0.0, delta=1e-300, d_init=0.0, decay=0.95, momentum=0.9)
    follow(ours, y, gradients[:1])
    follow(ours, y, gradients)
    follow(theirs, x, gradients)
    torch.testing.assert_close(y, x, rtol=1e-10, atol=1e-10)


def test_average_of_squares_is_rmsprops() -> None:
    x, y = (torch.zeros(20, dtype=torch.float64, requires_grad=True) for _ in range(2))
    gradients = [make_tensor(20, seed=k, dtype=torch.float64) for k in range(50)]
    theirs = torch.optim.RMSprop([x], lr=0.0, alpha=0.9)
    ours = asgld.ASGLD([y], lr=0.0, decay=0.9)
    follow(theirs, x, gradients)
    follow(ours, y, gradients)
    torch.testing.assert_close(
        ours.state[y]["sum"], theirs.state[x]["square_avg"], rtol=1e-10, atol=0
    )


def test_a_loss_in_other_units_gives_the_same_path() -> None:
    found = []
    for unit in (1.0, 1e4):
        x = make_tensor(30, seed=0, dtype=torch.float64).requires_grad_()
        optimizer = asgld.NetworkASGLD([x], lr=0.01, delta=1e-300)
        for _ in range(50):
            x.grad = unit * (x.detach() ** 3 - x.detach())
            optimizer.step()
        found.append(x.detach())
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


# ----------------------------------------------------------------------------------------------
# Presets and state
# ----------------------------------------------------------------------------------------------


def test_network_preset_drops_what_is_opposed_where_there_is_momentum() -> None:
    x = torch.zeros(2, requires_grad=True)
    assert asgld.NetworkASGLD([x]).param_groups[0]["opposed"] == 0.0
    assert asgld.NetworkASGLD([x], opposed=-0.5).param_groups[0]["opposed"] == -0.5
    assert asgld.NetworkASGLD([x], momentum=0.0).param_groups[0]["opposed"] == 1.0


def test_network_preset_has_noise_of_the_size_it_says() -> None:
    """With gradients of zero, steps are noise alone: 2e5 draws, variance to 5 sigma."""
    x = torch.zeros(200_000, requires_grad=True)
    optimizer = asgld.NetworkASGLD([x], lr=1e-2, noise=0.5)
    for k in range(5):
        before = x.detach().clone()
        x.grad = torch.zeros_like(x)
        optimizer.step()
        step = (x.detach() - before).double()
        if k == 0:
            assert (step == 0).all()
        else:
            expected = (0.5 * 1e-2) ** 2 / k
            assert abs(step.square().mean() / expected - 1) < 5 * math.sqrt(2 / 200_000)


def test_psgld_samples_at_its_temperature() -> None:
    """A Gaussian of variance sigma^2 / curvature; 2000 chains x 40 nearly independent draws have
    a standard error of 0.5 %, and a step of 0.02 a bias of 1 %."""
    curvature = torch.tensor([1.0, 4.0], dtype=torch.float64)
    x = torch.zeros(2000, 2, dtype=torch.float64, requires_grad=True)
    optimizer = asgld.PSGLD([x], lr=0.02, sigma=0.5, decay=0.999, d_init=1.0)
    variances = []
    for k in range(2500):
        x.grad = curvature * x.detach()
        optimizer.step()
        if k >= 500 and k % 50 == 0:
            variances.append(x.detach().square().mean(0))
    found = torch.stack(variances).mean(0)
    torch.testing.assert_close(found * curvature / 0.25, torch.ones_like(found), rtol=0, atol=0.06)


@pytest.mark.parametrize("build", [asgld.PSGLD, asgld.NetworkASGLD])
def test_presets_resume_bit_for_bit(build: Any) -> None:
    straight = make_parameters([(4, 3), (5,)])
    take_steps(build(straight), 9)
    first = make_parameters([(4, 3), (5,)])
    optimizer = build(first)
    take_steps(optimizer, 4)
    second = [p.detach().clone().requires_grad_() for p in first]
    resumed = build(second)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    take_steps(resumed, 5, first=4)
    for p, q in zip(second, straight, strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize(
    ("build", "knobs", "error", "message"),
    [
        (asgld.ASGLD, {"decay": 1.0}, ValueError, "decay value: 1.0: need 0 < decay < 1"),
        (asgld.ASGLD, {"momentum": 1.0}, ValueError, "momentum value: 1.0"),
        (asgld.ASGLD, {"clip": -0.1}, ValueError, "clip value: -0.1"),
        (asgld.ASGLD, {"annealing": -1.0}, ValueError, "annealing value: -1.0"),
        (asgld.ASGLD, {"opposed": 0.0}, ValueError, "opposed value: 0.0 with momentum=0"),
        *(
            (
                asgld.ASGLD,
                {"opposed": value, "momentum": 0.9},
                kind,
                f"opposed value: {value!r}: need",
            )
            for value, kind in (
                (True, TypeError),
                ("drop", TypeError),
                (math.nan, ValueError),
                (1.1, ValueError),
                (-1.1, ValueError),
            )
        ),
        (asgld.NetworkASGLD, {"noise": -1.0}, ValueError, "noise value: -1.0"),
        (asgld.NetworkASGLD, {"sigma": 1.0}, TypeError, "takes no sigma=1.0"),
        (asgld.PSGLD, {"beta": 1.0}, TypeError, "takes no beta=1.0"),
    ],
)
def test_bad_knobs_are_refused(
    build: Any, knobs: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build([torch.zeros(2, requires_grad=True)], **knobs)


def test_temperature_anneals_with_the_step() -> None:
    falling = theory.temperature(1.0, 1.0, 0.0, 0.5, step=[1.0, 4.0, 100.0], annealing=1.0)
    np.testing.assert_allclose(falling, [0.25, 0.0625, 0.0025])
