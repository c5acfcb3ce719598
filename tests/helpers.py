"""Tables that the tests take products of."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import asgld
from asgld.optim import plan
from asgld.optim.rule import Rule

ROOT = Path(__file__).parent.parent
# (alpha, beta): the special cases, the paper's settings, ties, and general powers.
EXPONENTS = [
    (0.0, 0.0),
    (0.0, 1.0),
    (0.0, 2.0),
    (0.0, 0.3),
    (1.0, 0.3),
    (1.0, 0.5),
    (1.0, 1.0),
    (1.0, 2.0),
    (1.0, math.inf),
    (0.7, 1.3),
    (1.5, 1.0),
    (2.0, 1.0),
    (2.0, 2.0),
]
OPTIMIZERS: dict[str, Callable[..., asgld.ASGLD]] = {
    "ASGLD": asgld.ASGLD,
    "AGLD": asgld.AGLD,
    "ASG": asgld.ASG,
    "SGLD": asgld.SGLD,
}
BACKENDS: dict[str, dict[str, Any]] = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
}
if plan.unavailable_reason([torch.zeros(1)]) is None:
    BACKENDS["fused"] = {"fused": True}
RULE: dict[str, Any] = {
    "lr": 0.1,
    "alpha": 1.0,
    "beta": 1.0,
    "sigma": 0.1,
    "delta": 0.01,
    "d_init": 1.0,
    "weight_decay": 0.0,
    "seed": 0,
    "maximize": False,
    "stochastic_rounding": False,
}
# Knobs beyond the paper's rule, each alone and all together.
WIDER: dict[str, dict[str, Any]] = {
    "decay": {"decay": 0.9},
    "filled by the first": {"decay": 0.9, "d_init": 0.0, "delta": 1e-3},
    "momentum": {"momentum": 0.8},
    "clip": {"clip": 0.25, "d_init": 1e-4},
    "opposed dropped": {"momentum": 0.8, "opposed": 0.0},
    "opposed turned in part": {"momentum": 0.8, "opposed": -0.3},
    "annealing": {"annealing": 1.0},
    "all": {"decay": 0.99, "momentum": 0.9, "clip": 0.25, "annealing": 1.0, "d_init": 0.0},
}
# Types of a parameter and of its sum of squares, and whether rounding is stochastic.
FORMS = [
    (torch.float32, torch.float32, False),
    (torch.float64, torch.float64, False),
    (torch.bfloat16, torch.float32, True),
    (torch.bfloat16, torch.bfloat16, True),
    (torch.float16, torch.float32, True),
    (torch.float16, torch.bfloat16, False),
]
# Random123's kat_vectors for philox4x32: counter, key, answers after 10 and 7 rounds.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8", "5f6fb709 0d893f64 4f121f81 4f730a48"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd", "5207ddc2 45165e59 4d8ee751 8c52f662"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1", "4dfccaba 190a87f0 c47362ba b6b5242a"),
]  # fmt: skip
HEATING = "ignore:beta=.* with alpha=.*:UserWarning"


def pairwise(*columns: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return rows in which every two values of different columns meet, far fewer than a product."""
    values = [list(column) for column in columns]
    rows = list(itertools.product(*(range(len(column)) for column in values)))

    def pairs(row: tuple[int, ...]) -> set[Any]:
        return set(itertools.combinations(enumerate(row), 2))

    missing = set().union(*map(pairs, rows))
    chosen = []
    while missing:
        row = max(rows, key=lambda row: len(pairs(row) & missing))
        missing -= pairs(row)
        chosen.append(tuple(column[i] for column, i in zip(values, row, strict=True)))
    return chosen


def make_tensor(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a fixed standard normal tensor."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def make_parameters(
    shapes: list[tuple[int, ...]], *, dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[Tensor]:
    return [
        make_tensor(*shape, seed=seed + i, dtype=dtype).requires_grad_()
        for i, shape in enumerate(shapes)
    ]


def take_steps(optimizer: torch.optim.Optimizer, steps: int, *, first: int = 0) -> None:
    """Take steps with gradients that depend on the step and the parameter's place alone."""
    for k in range(first, first + steps):
        i = 0
        for group in optimizer.param_groups:
            for p in group["params"]:
                noise = make_tensor(*p.shape, seed=1000 * k + i, dtype=p.dtype)
                p.grad = noise + 0.5 * p.detach()
                i += 1
        optimizer.step()


def assert_plan_follows_what_changes(make: Callable[[], list[Tensor]], **options: Any) -> None:
    """An optimizer does the same as one that plans every step anew, after every kind of change:
    gradients move, vanish or become strided, parameters and states are replaced, counts are
    written, knobs change."""

    def run(optimizer: asgld.ASGLD, params: list[Tensor]) -> Tensor:
        matrix, vector, other = params[:3]
        state, knobs = optimizer.state, optimizer.param_groups[0]

        def replace(p: Tensor, name: str) -> None:
            if name in state[p]:
                state[p][name] = state[p][name] * 2

        # One at a time, with steps between them for which the plan made last serves.
        changes: list[Callable[[], Any]] = [
            lambda: setattr(other, "grad", None),
            lambda: setattr(matrix, "grad", matrix.grad.t().contiguous().t()),  # type: ignore[union-attr]
            lambda: knobs.update(sigma=0.5, seed=77),
            lambda: setattr(vector, "data", vector.data.clone()),
            lambda: state[matrix]["step"].fill_(100),
            lambda: replace(other, "sum"),
            lambda: replace(other, "step"),
            lambda: replace(other, "momentum"),
            lambda: state.update({vector: {**state[vector], "sum": vector.detach() ** 2}}),
        ]
        for k in range(2 * len(changes) + 2):
            for i, p in enumerate(params):
                p.grad = make_tensor(*p.shape, seed=100 * k + i, dtype=p.dtype).to(p.device)
            if k % 2 == 0 and k > 0:
                changes[k // 2 - 1]()
            knobs["lr"] = 0.1 / (k + 1)
            optimizer.step()
        assert [int(state[p]["step"]) for p in params[:3]] == [110, 20, 32]
        tensors = (*params, *(state[p]["sum"] for p in params))
        return torch.cat([t.detach().double().flatten() for t in tensors])

    planned, fresh = make(), make()
    with_plan, without = (asgld.ASGLD(params, fused=True, **options) for params in (planned, fresh))
    without.register_step_pre_hook(lambda optimizer, *_: optimizer._plans.clear())
    assert torch.equal(run(with_plan, planned), run(without, fresh))


def make_model(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def take_kernel_step(
    table: Any,
    params: list[Tensor],
    grads: list[Tensor],
    sums: list[Tensor],
    streams: list[int],
    steps: list[int],
    rows: list[tuple[int, int, int] | None] | None = None,
    momenta: list[Tensor] | None = None,
    *,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    num_steps: int = 1,
    table_options: dict[str, Any] | None = None,
    **knobs: Any,
) -> list[int]:
    """Take steps of a kernel, through its table, and return the step counts after them."""
    device = params[0].device if params else "cpu"
    counts = [torch.tensor(k, device=device) for k in steps]
    rule = Rule(**{**RULE, **knobs})
    columns = (params, sums, counts, streams, rows or [None] * len(params), momenta or [])
    where = table(*columns, **(table_options or {}))
    for _ in range(num_steps):
        where.step([g.data_ptr() for g in grads], rule, grad_scale, found_inf)
    return [int(count) for count in counts]


def snapshot(optimizer: asgld.ASGLD) -> list[Any]:
    """Everything that a step may move."""
    seen: list[Any] = []
    for group in optimizer.param_groups:
        seen.append({k: v for k, v in group.items() if k != "params"})
        for p in group["params"]:
            seen.append(p.detach().clone())
            seen += [(k, copy.deepcopy(v)) for k, v in sorted(optimizer.state[p].items())]
    return seen


def assert_equal(first: list[Any], second: list[Any]) -> None:
    for a, b in zip(first, second, strict=True):
        if isinstance(a, tuple):
            assert a[0] == b[0]
            a, b = a[1], b[1]
        if isinstance(a, Tensor):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        else:
            assert a == b
