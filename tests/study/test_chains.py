"""Chains on the one loop are the bare optimizer, bit for bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from asgld import reference
from asgld.methods import normals
from asgld.methods.torch import LANGEVIN
from asgld.problems import Variance
from asgld_study import chains
from asgld_study.landscapes import LANDSCAPES

OPTIONS: dict[str, dict[str, Any]] = {
    "asgld": {"alpha": 1.0, "beta": 1.0, "sigma": 0.3, "delta": 0.1, "d_init": 2.0},
    "agld": {"beta": 0.5, "sigma": 0.3},
    "asg": {"alpha": 0.5},
    "sgld": {"sigma": 0.3},
}


def _start() -> torch.Tensor:
    return torch.linspace(0.5, 2.5, 30, dtype=torch.float64).view(3, 10)


def test_masked_noise_reaches_only_what_the_mask_lets_through() -> None:
    mask = torch.zeros(10, dtype=torch.float64)
    mask[3:] = 1.0
    gradient = chains.noisy(1.0, mask=mask)(LANDSCAPES["waves"], _start(), 0)
    is_exact = (gradient == _start().sin()).all(0)
    assert is_exact.tolist() == [True] * 3 + [False] * 7


def test_due_steps_span_the_decades_and_end_at_the_last() -> None:
    steps = chains.due_steps(5000, decades=1.0)
    assert steps[0] == 500
    assert steps[-1] == 5000
    assert steps == sorted(set(steps))


# ------------------------------------------------------------------- follow: chains on the one loop


def _bare(
    name: str,
    gradient: Any,
    x0: torch.Tensor,
    steps: int,
    *,
    seed: int = 0,
    keep: Any = None,
    decay: float = 0.0,
    **options: Any,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Iterates and accumulators of a bare loop over the optimizer, after 0, 1, ... steps."""
    x = x0.clone()
    optimizer = LANGEVIN[name]([x], seed=seed, **options)  # type: ignore[call-arg]
    group, lr = optimizer.param_groups[0], optimizer.param_groups[0]["lr"]
    iterates, accumulators = [], []
    for step in range(steps + 1):
        iterates.append(x.clone())
        constant = group["d_init"] + step * group["delta"]
        accumulators.append(optimizer.state[x]["sum"] + constant)
        group["lr"] = lr * (1.0 + step) ** -decay
        x.grad = gradient(x, step)
        optimizer.step()
        if keep is not None:
            keep(x)
    return iterates, accumulators


def _noisy_waves(variance: float, theta: float = 0.0, mask: Any = 1.0) -> Any:
    generator = torch.Generator().manual_seed(5)

    def gradient(x: torch.Tensor, step: int) -> torch.Tensor:
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype) * mask
        return x.sin().add_(noise, alpha=math.sqrt(variance * (1.0 + step) ** -theta))

    return gradient


_MASK = torch.arange(10, dtype=torch.float64) % 2
FOLLOWED: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "exact": ({}, lambda: lambda x, step: x.sin(), {}),
    "noise": ({"feed": (0.3,)}, lambda: _noisy_waves(0.3), {}),
    "falling noise on some": (
        {"feed": (0.3, 1.0, _MASK)}, lambda: _noisy_waves(0.3, 1.0, _MASK), {},
    ),
    "kept positive, decaying": (
        {"feed": (2.0,), "keep": torch.Tensor.abs_, "lr_decay": 0.5},
        lambda: _noisy_waves(2.0),
        {"keep": torch.Tensor.abs_, "decay": 0.5},
    ),
    "in single precision": ({"dtype": torch.float32}, lambda: lambda x, step: x.sin(), {}),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLLOWED)
@pytest.mark.parametrize("name", OPTIONS)
def test_followed_chains_are_the_bare_optimizer_bit_for_bit(name: str, case: str) -> None:
    given, gradient, changes = FOLLOWED[case]
    given = dict(given)
    x0 = _start().to(given.pop("dtype", torch.float64))
    if "feed" in given:
        variance, theta, mask = (*given["feed"], 0.0, None)[:3]
        given["feed"] = chains.noisy(variance, theta=theta, seed=5, mask=mask)
    seen: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    last = chains.follow(
        name, LANDSCAPES["waves"], x0,
        lambda view: seen.append((view.step, view.x.clone(), view.D)),
        steps=20, seed=4, lr=0.1, **given, **OPTIONS[name],
    )  # fmt: skip
    iterates, accumulators = _bare(
        name, gradient(), x0, 20, seed=4, lr=0.1, **changes, **OPTIONS[name]
    )
    assert [step for step, _, _ in seen] == list(range(21))
    assert all(torch.equal(x, y) for (_, x, _), y in zip(seen, iterates, strict=True))
    assert all(torch.equal(x, y) for (_, _, x), y in zip(seen, accumulators, strict=True))
    assert torch.equal(last, iterates[-1])
    assert last.dtype == x0.dtype


def test_followed_chains_end_when_the_look_says_so_and_need_no_look() -> None:
    feed = chains.noisy(0.3, seed=5)
    last = chains.follow(
        "asg", LANDSCAPES["waves"], _start(), lambda v: v.step == 7, steps=20, feed=feed
    )
    alone = chains.follow(
        "asg", LANDSCAPES["waves"], _start(), steps=7, feed=chains.noisy(0.3, seed=5)
    )
    assert torch.equal(last, alone)
    at_once = chains.follow("asg", LANDSCAPES["waves"], _start(), lambda v: True, steps=20)
    assert torch.equal(at_once, _start())


def test_followed_batches_are_the_samples_of_the_feed() -> None:
    data = Variance(num_samples=50)
    drawn = torch.arange(6).view(3, 2)
    x0 = torch.zeros(3, 2, dtype=torch.float64)
    last = chains.follow(
        "sgld", data, x0, steps=3, lr=0.1, sigma=0.0,
        feed=lambda door, x, step: door.sample_grad(x, drawn + step),
    )  # fmt: skip
    x = x0
    for step in range(3):
        x = x - 0.1 * data.sample_grad(x, drawn + step)
    torch.testing.assert_close(last, x)


def test_chain_that_leaves_the_finite_numbers_is_nan_and_the_others_go_on() -> None:
    class Quartic:
        def grad(self, x: torch.Tensor) -> torch.Tensor:
            return x**3

    x0 = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    looks: list[int] = []
    last = chains.follow(
        "asg", Quartic(), x0, lambda view: looks.append(view.step), steps=30, lr=0.5, alpha=0.0
    )
    alone = chains.follow("asg", Quartic(), x0[:1], steps=30, lr=0.5, alpha=0.0)
    assert torch.equal(last[:1], alone)
    assert bool(last[1].isnan())
    assert looks == list(range(31))


def test_followed_printed_algorithm_is_the_literal_one_and_shows_its_accumulator() -> None:
    options: dict[str, Any] = {"lr": 0.1, "alpha": 1.0, "beta": 1.0, "sigma": 0.3, "delta": 0.2}
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    chains.follow(
        "asgld-printed", LANDSCAPES["waves"], _start(),
        lambda view: seen.append((view.x.clone(), view.D.clone())), steps=20, seed=4, **options,
    )  # fmt: skip
    path = reference.asgld(
        np.sin, _start().numpy(), lambda k: normals(4, k, _start(), stream=0).numpy(),
        lag=reference.Lag.TWO, d_init=0.2, **options,
    )  # fmt: skip
    for (x, _), literal in zip(seen[1:], path, strict=False):
        np.testing.assert_allclose(x.numpy(), literal, rtol=1e-12, atol=1e-12)
    first = _start().sin().square()
    torch.testing.assert_close(seen[0][1], torch.full_like(first, 0.2))
    torch.testing.assert_close(seen[2][1], 2.0 * first + 0.6)
