"""The simulation study under other settings, in other spaces, from other starts, with another lag.

The paper fixes none of these, so that a verdict should not hang on one choice of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asgld import reference
from asgld.problems import problem
from asgld.reference import Lag
from asgld_study.experiments.declare import Size, Task
from asgld_study.experiments.paper import (
    BATCH_OPTIONS,
    BY_NUMBER,
    Batches,
    Outcome,
    run_configuration,
    watch,
)

# In x the curvature at the solution is 100, and lr = d_init^(alpha/2) / 100 makes every first step
# as long as that allows.
_X_D_INIT = 1e4


def measure(
    number: str, *, replicas: int, steps: int, space: str = "log", **changes: Any
) -> dict[str, Any]:
    """One configuration with some of lr, sigma, d_init, delta changed, in one of three spaces."""
    outcome = run_configuration(
        BY_NUMBER[number], replicas=replicas, steps=steps, space=space, **changes
    )
    return {"space": space, **changes, **_ends(outcome)}


def measure_lag(
    number: str, *, lag: str, replicas: int, steps: int, seed: int = 0
) -> dict[str, Any]:
    """One configuration by the literal algorithm, with the lag of one step or of two."""
    configuration = BY_NUMBER[number]
    options = {"beta": 1.0, **configuration.settings, "alpha": configuration.alpha}
    batches = Batches(**{k: options.pop(k) for k in BATCH_OPTIONS if k in options})
    data: Any = problem("variance", data_sets=replicas, seed=1000 * seed)
    drawn, rng = batches.gradient(data, seed), np.random.default_rng(seed)
    taken, start = itertools.count(), data.start(replicas).numpy()

    def path() -> Iterator[Tensor]:
        iterates = reference.asgld(
            lambda z: drawn(torch.from_numpy(z), next(taken)).numpy(),
            start,
            lambda _: rng.standard_normal(start.shape),
            lag=Lag[lag],
            **options,
        )
        for z in iterates:
            yield torch.from_numpy(z)

    return {"lag": lag, **_ends(watch(configuration, data, path(), batches, steps))}


def _ends(outcome: Outcome) -> dict[str, Any]:
    return {
        "number": outcome.configuration.number,
        "label": outcome.configuration.label,
        "final": outcome.errors[-1].tolist(),
        "final_mle": outcome.mle_errors[-1].tolist(),
        "hits": outcome.hits.tolist(),
        "tail_shares": outcome.tail_shares.tolist(),
    }


def setting_tasks(size: Size) -> list[Task]:
    """lr and sigma over a factor of ten each, for the configurations that claims compare."""
    replicas, steps = size.sweep
    tasks = []
    for number in ("2", "4", "5", "8", "9", "9b", "10"):
        sigmas = (None,) if BY_NUMBER[number].method == "asg" else (0.03, 0.1, 0.3)
        for lr, sigma in itertools.product((0.03, 0.1, 0.3), sigmas):
            changes = {"lr": lr} | ({} if sigma is None else {"sigma": sigma})
            tasks.append(_task(measure, number, replicas, steps, **changes))
    return tasks


def space_tasks(size: Size) -> list[Task]:
    """x in place of log x, kept positive in two ways; it takes longer there."""
    replicas, steps = size.sweep[0], size.study[1]
    few = ("2", "4", "5", "7", "9b", "10")
    tasks = []
    for space, number in itertools.product(
        ("project", "reflect"), BY_NUMBER if size.name == "full" else few
    ):
        configuration = BY_NUMBER[number]
        lr = configuration.options.get("lr", _X_D_INIT ** (configuration.alpha / 2) / 100.0)
        changes = {"lr": lr, "d_init": _X_D_INIT}
        tasks.append(_task(measure, number, replicas, steps, space=space, **changes))
    return tasks


def start_tasks(size: Size) -> list[Task]:
    """D from 1e-8, which the paper's "small positive delta" may mean, up to 100."""
    replicas, steps = size.sweep
    return [
        _task(measure, number, replicas, steps, lr=lr, d_init=d_init, delta=min(d_init, 0.01))
        for number in ("5", "7", "9b", "10", "11")
        for d_init in (1e-8, 1e-4, 1e-2, 1.0, 100.0)
        for lr in ((0.01, 0.1, 1.0) if size.name == "full" else (0.1,))
    ]


def lag_tasks(size: Size) -> list[Task]:
    """Both indexings of the accumulator that the paper prints."""
    replicas, steps = size.sweep
    return [
        _task(measure_lag, number, replicas, steps, lag=lag)
        for number in ("4", "5", "7", "10")
        for lag in ("ONE", "TWO")
    ]


def _task(function: Any, number: str, replicas: int, steps: int, **options: Any) -> Task:
    return Task(function, {"number": number, "replicas": replicas, "steps": steps, **options})
