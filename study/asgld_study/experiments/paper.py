"""The paper's simulation study: two variances of a Gaussian, twelve configurations and three more.

The paper gives neither step size nor noise nor start, and its figures are empty. All configurations
therefore run under one documented setting: the variable is z = log x, in which both curvatures at
the optimum are 1; lr = 0.1, which is 1 over the largest curvature at the start; d_init = 1, delta =
0.01, sigma = 0.1; start x = (1, 1). Each replica has its own data set of 10,000 draws. Batches are
drawn by index, with replacement; a batch of all samples is the full gradient.

    error = (x_1 - 0.1)^2 + (x_2 - 10)^2
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asgld.problems import problem
from asgld.run.history import Record
from asgld_study.experiments.chains import Chains, Gradient
from asgld_study.experiments.declare import Size, Task

FloatArray = npt.NDArray[np.float64]

SETTING: dict[str, float] = {"lr": 0.1, "d_init": 1.0, "delta": 0.01}
SIGMA = 0.1
# A replica has hit the truth when its error is below this.
HIT = 0.5
# The part of the run at its end over which the share of time near the truth is taken.
TAIL = 0.1
# Of the variables: the least x that a projection leaves, and the largest |log x|.
FLOOR, _CLAMP = 0.01, 30.0
BATCH_OPTIONS = ("batch_size", "batch_slope")


@dataclass(frozen=True)
class Batches:
    """Batch sizes B_k = min(n, floor(B + s k)); no B stands for full gradients."""

    batch_size: int | None = None
    batch_slope: float = 0.0

    def size_at(self, step: int, num_samples: int) -> int:
        if self.batch_size is None:
            return num_samples
        return min(math.floor(self.batch_size + self.batch_slope * step), num_samples)

    def gradient(self, data: Any, seed: int) -> Gradient:
        """Means over indices drawn with replacement; a batch of all samples is the gradient."""
        generator = torch.Generator().manual_seed(seed)

        def gradient(x: Tensor, step: int) -> Tensor:
            size = self.size_at(step, data.num_samples)
            if size == data.num_samples:
                full: Tensor = data.grad(x)
                return full
            indices = torch.randint(data.num_samples, (len(x), size), generator=generator)
            sampled: Tensor = data.sample_grad(x, indices)
            return sampled

        return gradient


@dataclass(frozen=True)
class Configuration:
    """One line of the paper's list: a method of the family and how it gets its gradients."""

    number: str
    label: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """All options, those of the study included."""
        noise = {} if self.method == "asg" else {"sigma": SIGMA}
        return {**SETTING, **noise, **self.options}

    @property
    def alpha(self) -> float:
        fallback = 0.0 if self.method in ("agld", "sgld") else 1.0
        return float(self.options.get("alpha", fallback))


CONFIGURATIONS = (
    Configuration("1", "SGLD, B = 1", "sgld", {"batch_size": 1}),
    Configuration("2", "SGLD_B, B = 10", "sgld", {"batch_size": 10}),
    Configuration(
        "3", "SGLD_A, B = 10, lr 1/(1+t)", "sgld", {"batch_size": 10, "lr": 1.0, "lr_decay": 1.0}
    ),
    Configuration("4", "ASGLD (1, 1), B = 1", "asgld", {"batch_size": 1}),
    Configuration("5", "ASGLD_B (1, 1), B = 10", "asgld", {"batch_size": 10}),
    Configuration(
        "6", "ASGLD_I (0, 1), B = k", "asgld", {"alpha": 0.0, "batch_size": 1, "batch_slope": 1.0}
    ),
    Configuration("7", "ASGLD2 (1, 2), B = 10", "asgld", {"beta": 2.0, "batch_size": 10}),
    Configuration("8", "ASGLD3 (1, 0.3), B = 10", "asgld", {"beta": 0.3, "batch_size": 10}),
    Configuration("9", "ASG (1), B = 1", "asg", {"batch_size": 1}),
    Configuration("10", "AGLD (0, 1)", "agld"),
    Configuration("11", "AGLD (0, 2)", "agld", {"beta": 2.0}),
    Configuration("12", "AGLD (0, 0.3)", "agld", {"beta": 0.3}),
    # The paper's list says 0.3 where its figure's caption says 0.5.
    Configuration("13", "AGLD (0, 0.5)", "agld", {"beta": 0.5}),
)
# Not in the paper: what its comparisons lack, the same batch and the same alpha.
CONTROLS = (
    Configuration("9b", "ASG (1), B = 10", "asg", {"batch_size": 10}),
    Configuration("10b", "AGLD (1, 1)", "agld", {"alpha": 1.0}),
)
BY_NUMBER = {c.number: c for c in (*CONFIGURATIONS, *CONTROLS)}


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a configuration did. R replicas, T recorded steps.

    ==============  ========  ==============================================================
    field           shape     meaning
    ==============  ========  ==============================================================
    steps           (T,)      recorded steps
    errors          (T, R)    squared distance to the true variances
    mle_errors      (T, R)    squared distance to the replica's maximum-likelihood point
    hits            (R,)      first step with error < HIT; inf if there was none
    tail_shares     (R,)      share of the last tenth of the run with error < HIT
    samples                   single-sample gradients used by each replica
    ==============  ========  ==============================================================
    """

    configuration: Configuration
    steps: npt.NDArray[np.int64]
    errors: FloatArray
    mle_errors: FloatArray
    hits: FloatArray
    tail_shares: FloatArray
    samples: int

    def summary(self) -> dict[str, float]:
        """Median, q10 and q90 of the final error, median hitting time, share near the truth."""
        q10, median, q90 = np.quantile(self.errors[-1], [0.1, 0.5, 0.9])
        return {
            "q10": float(q10),
            "median": float(median),
            "q90": float(q90),
            # nearest rank, so that a majority that never hits reads as never
            "median_hit": float(np.quantile(self.hits, 0.5, method="higher")),
            "share_hit": float(np.isfinite(self.hits).mean()),
            "tail_share": float(self.tail_shares.mean()),
            "samples": self.samples,
        }


def run_configuration(
    configuration: Configuration,
    *,
    replicas: int,
    steps: int,
    seed: int = 0,
    space: str = "log",
    **changes: float,
) -> Outcome:
    """Run one configuration on `replicas` data sets at once.

    Args:
        space: "log"; or "project" and "reflect", which run in x itself and keep it positive by a
            floor of 0.01 or by its absolute value.
        changes: of lr, sigma, d_init or delta.
    """
    options = {**configuration.settings, **changes}
    batches = Batches(**{k: options.pop(k) for k in BATCH_OPTIONS if k in options})
    decay = options.pop("lr_decay", 0.0)
    data = _data(replicas, seed, "log" if space == "log" else "x")
    chains = Chains(
        configuration.method, batches.gradient(data, seed), data.start(replicas), seed=seed,
        **options,
    )  # fmt: skip
    keep, lr = _KEEPERS[space], options["lr"]

    def path() -> Iterator[Tensor]:
        while True:
            if decay:
                chains.optimizer.param_groups[0]["lr"] = lr * (1.0 + chains.step) ** -decay
            yield keep(chains.advance())

    return watch(configuration, data, path(), batches, steps)


def watch(
    configuration: Configuration, data: Any, path: Iterator[Tensor], batches: Batches, steps: int
) -> Outcome:
    """Follow a path of so many steps."""
    truth = torch.tensor(data.truth, dtype=torch.float64)
    start = data.start(data.data_sets)
    tail_start = steps - round(TAIL * steps)
    hits = torch.full((data.data_sets,), math.inf, dtype=torch.float64)
    near = torch.zeros(data.data_sets, dtype=torch.float64)
    record = Record(per_decade=30)
    seen, recorded = [start.clone()], [0]
    for step in range(1, steps + 1):
        x = next(path)
        is_near = squared_distance(data, x, truth) < HIT
        hits[is_near & hits.isinf()] = float(step)
        if step > tail_start:
            near += is_near
        if record.is_due(step) or step == steps:
            seen.append(x.clone())
            recorded.append(step)
    points = torch.stack(seen)
    return Outcome(
        configuration=configuration,
        steps=np.array(recorded),
        errors=squared_distance(data, points, truth).numpy(),
        mle_errors=squared_distance(data, points, data.estimate).numpy(),
        hits=hits.numpy(),
        tail_shares=(near / max(steps - tail_start, 1)).numpy(),
        samples=sum(batches.size_at(k, data.num_samples) for k in range(steps)),
    )


def squared_distance(data: Any, x: Tensor, target: Tensor) -> Tensor:
    """Between the variances that points stand for and a target."""
    distance: Tensor = (data.variances(x) - target).square().sum(-1)
    return distance


@lru_cache(maxsize=4)
def _data(replicas: int, seed: int, space: str) -> Any:
    return problem("variance", data_sets=replicas, seed=1000 * seed, space=space)


_KEEPERS: dict[str, Callable[[Tensor], Tensor]] = {
    # Far beyond any variance, so that a run that goes off does not overflow.
    "log": lambda z: z.clamp_(-_CLAMP, _CLAMP),
    "project": lambda x: x.clamp_(min=FLOOR),
    # An x of exactly 0 has no gradient.
    "reflect": lambda x: x.abs_().clamp_(min=1e-12),
}


def measure(number: str, *, replicas: int, steps: int, seed: int = 0) -> dict[str, Any]:
    """The configuration's outcome as plain lists."""
    outcome = run_configuration(BY_NUMBER[number], replicas=replicas, steps=steps, seed=seed)
    bands = {
        name: dict(zip(("q10", "median", "q90"), np.quantile(of, [0.1, 0.5, 0.9], axis=1).tolist(),
                       strict=True))
        for name, of in (("errors", outcome.errors), ("mle_errors", outcome.mle_errors))
    }  # fmt: skip
    return {
        "number": number,
        "label": outcome.configuration.label,
        "steps": outcome.steps.tolist(),
        "bands": bands,
        "final": outcome.errors[-1].tolist(),
        "final_mle": outcome.mle_errors[-1].tolist(),
        "hits": outcome.hits.tolist(),
        "tail_shares": outcome.tail_shares.tolist(),
        "summary": outcome.summary(),
    }


def tasks(size: Size) -> list[Task]:
    replicas, steps = size.study
    return [
        Task(measure, {"number": number, "replicas": replicas, "steps": steps})
        for number in BY_NUMBER
    ]
