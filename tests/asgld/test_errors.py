"""Bad input: what is refused, with which words, and that nothing is lost by it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import BACKENDS, make_parameters, take_steps

import asgld

# knobs, exception, words that the message must contain
BAD_KNOBS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"lr": -0.1}, ValueError, r"Invalid learning rate: -0\.1"),
    ({"lr": math.nan}, ValueError, "Invalid learning rate: nan"),
    ({"lr": math.inf}, ValueError, "Invalid learning rate: inf"),
    ({"lr": torch.tensor([0.1, 0.2])}, ValueError, "Tensor lr must be 1-element"),
    ({"alpha": -0.5}, ValueError, r"Invalid alpha value: -0\.5: need 0 <= alpha <= 2"),
    ({"alpha": 2.5}, ValueError, r"Invalid alpha value: 2\.5"),
    ({"alpha": math.nan}, ValueError, "Invalid alpha value: nan"),
    ({"beta": -1.0}, ValueError, r"Invalid beta value: -1\.0.*use asgld\.ASG or sigma=0"),
    ({"beta": math.nan}, ValueError, "Invalid beta value: nan"),
    ({"sigma": -1.0}, ValueError, r"Invalid sigma value: -1\.0"),
    ({"sigma": math.inf}, ValueError, "Invalid sigma value: inf"),
    ({"delta": -1e-3}, ValueError, "Invalid delta value"),
    ({"weight_decay": -1.0}, ValueError, "Invalid weight_decay value"),
    ({"d_init": 0.0}, ValueError, r"Invalid d_init value: 0\.0: need a positive number"),
    ({"d_init": -1.0, "alpha": 0.0, "sigma": 0.0}, ValueError, "Invalid d_init value"),
    ({"seed": -1}, ValueError, "seed=-1"),
    ({"seed": 1.5}, TypeError, r"seed=1\.5"),
    ({"sum_dtype": torch.int32}, ValueError, "Invalid sum_dtype value"),
    ({"fused": True, "foreach": True}, RuntimeError, "`fused` and `foreach` cannot be `True`"),
    ({"fused": True, "differentiable": True}, RuntimeError, "`fused` does not support `diff"),
    ({"lr": torch.tensor(0.1), "foreach": True}, ValueError, "lr as a Tensor is not supported"),
]


@pytest.mark.parametrize(("knobs", "error", "message"), BAD_KNOBS)
def test_bad_knobs_are_refused(knobs: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        asgld.ASGLD(make_parameters([(3,)]), **knobs)


@pytest.mark.parametrize(("knobs", "error", "message"), BAD_KNOBS)
def test_bad_knobs_in_a_later_group_leave_the_optimizer_as_it_was(
    knobs: dict[str, Any], error: type[Exception], message: str
) -> None:
    optimizer = asgld.ASGLD(make_parameters([(3,)]))
    with pytest.raises(error, match=message):
        optimizer.add_param_group({"params": make_parameters([(2,)]), **knobs})
    assert len(optimizer.param_groups) == 1
    assert len(optimizer.state) == 1
    take_steps(optimizer, 1)


def _duplicate() -> asgld.ASGLD:
    p = make_parameters([(3,)])[0]
    return asgld.ASGLD([{"params": [p]}, {"params": [p]}])


BAD_PARAMS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: asgld.ASGLD([]), ValueError, "optimizer got an empty parameter list"),
    (lambda: asgld.ASGLD(torch.zeros(3)), TypeError, "iterable of Tensors or dicts"),
    (lambda: asgld.ASGLD([3.0]), TypeError, "optimizer can only optimize Tensors"),
    (_duplicate, ValueError, "some parameters appear in more than one parameter group"),
    (
        lambda: asgld.ASGLD([torch.zeros(3, requires_grad=True) * 2]),
        ValueError,
        "can't optimize a non-leaf Tensor",
    ),
    (
        lambda: asgld.ASGLD([{"params": make_parameters([(3,)]), "betta": 1.0}]),
        ValueError,
        "unknown option 'betta' in a parameter group; known are alpha, annealing, beta",
    ),
    (lambda: asgld.ASG(make_parameters([(3,)]), sigma=0.1), TypeError, r"ASG takes no sigma=0\.1"),
    (lambda: asgld.ASG(make_parameters([(3,)]), beta=1), TypeError, "ASG takes no beta=1"),
    (lambda: asgld.SGLD(make_parameters([(3,)]), alpha=1), TypeError, "SGLD takes no alpha=1"),
]


@pytest.mark.parametrize(("build", "error", "message"), BAD_PARAMS)
def test_bad_parameters_are_refused(
    build: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build()


def test_zero_d_init_is_allowed_where_nothing_divides_by_it() -> None:
    take_steps(asgld.SGLD(make_parameters([(3,)]), lr=0.1, d_init=0.0), 2)
    take_steps(asgld.ASGLD(make_parameters([(3,)]), alpha=0.0, sigma=0.0, d_init=0.0), 2)


@pytest.mark.parametrize(
    ("alpha", "beta", "words"),
    [(1.0, 0.3, "grows"), (1.0, 0.5, "stays fixed"), (2.0, 1.0, "stays fixed")],
)
def test_noise_that_does_not_anneal_warns_once_and_runs(
    alpha: float, beta: float, words: str
) -> None:
    with pytest.warns(UserWarning, match=f"beta={beta} with alpha={alpha}: .*{words}") as caught:
        optimizer = asgld.ASGLD(make_parameters([(3,)]), alpha=alpha, beta=beta)
    assert len(caught) == 1
    take_steps(optimizer, 2)  # warnings are errors here


@pytest.mark.parametrize("backend", BACKENDS)
def test_sparse_gradients_fail_before_anything_moves(backend: str) -> None:
    params = make_parameters([(4, 3), (5, 3)])
    optimizer = asgld.ASGLD(
        [{"params": [params[0]]}, {"params": [params[1]]}], sigma=0.1, **BACKENDS[backend]
    )
    take_steps(optimizer, 1)
    before = [p.detach().clone() for p in params]
    sums = [optimizer.state[p]["sum"].clone() for p in params]
    params[0].grad = torch.ones(4, 3)
    params[1].grad = torch.ones(5, 3).to_sparse()
    with pytest.raises(RuntimeError, match=r"does not support sparse gradients.*to_dense"):
        optimizer.step()
    for p, x, total in zip(params, before, sums, strict=True):
        assert torch.equal(p, x)
        assert torch.equal(optimizer.state[p]["sum"], total)
        assert optimizer.state[p]["step"] == 1


def test_a_closure_that_raises_changes_nothing() -> None:
    (p,) = make_parameters([(4,)])
    optimizer = asgld.ASGLD([p], sigma=0.1)
    before = p.detach().clone()

    def closure() -> float:
        raise KeyError("data")

    with pytest.raises(KeyError):
        optimizer.step(closure)
    assert torch.equal(p, before)
    assert optimizer.state[p]["step"] == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_past_the_counter_are_refused(backend: str) -> None:
    (p,) = make_parameters([(4,)])
    optimizer = asgld.ASGLD([p], **BACKENDS[backend])
    optimizer.state[p]["step"].fill_(2**32)
    before = p.detach().clone()
    with pytest.raises(RuntimeError, match="past the noise counter's 32 bits"):
        take_steps(optimizer, 1)
    assert torch.equal(p, before)


def test_fused_says_why_it_cannot_serve() -> None:
    p = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"fused=True cannot be served: .*float64.*fused=None"):
        asgld.ASGLD([p], fused=True, sum_dtype=torch.float32)
