"""The paper's simulation study: two variances of a Gaussian, twelve configurations and one more.

The paper gives neither step size nor noise nor start, and its figures are empty. All configurations
therefore run under one documented setting: the variable is z = log x, in which both curvatures at
the optimum are 1; lr = 0.1, which is 1 over the largest curvature at the start; d_init = 1, delta =
0.01, sigma = 0.1; start x = (1, 1). Each replica has its own data set of 10,000 draws. Batches are
drawn by index, with replacement; a batch of all samples is the full gradient.

    error = (x_1 - 0.1)^2 + (x_2 - 10)^2
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asgld.methods import TorchMethod, langevin
from asgld.oracle import Oracle
from asgld.problems import problem
from asgld.run import Progress, run
from asgld.stopping import Record

FloatArray = npt.NDArray[np.float64]

SETTING: dict[str, float] = {"lr": 0.1, "d_init": 1.0, "delta": 0.01}
SIGMA = 0.1
# A replica has hit the truth when its error is below this.
HIT = 0.5
# The part of the run at its end over which the share of time near the truth is taken.
TAIL = 0.1


@dataclass(frozen=True)
class Configuration:
    """One line of the paper's list: a method of the family and how it gets its gradients."""

    number: str
    label: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)

    def build(self) -> TorchMethod:
        noise = {} if self.method == "asg" else {"sigma": SIGMA}
        return langevin(self.method, **{**SETTING, **noise, **self.options})


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
    samples         (R,)      single-sample gradients used
    seconds                   time inside the method
    ==============  ========  ==============================================================
    """

    configuration: Configuration
    steps: npt.NDArray[np.int64]
    errors: FloatArray
    mle_errors: FloatArray
    hits: FloatArray
    tail_shares: FloatArray
    samples: npt.NDArray[np.int64]
    seconds: float

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
            "samples": float(np.median(self.samples)),
        }


def run_configuration(
    configuration: Configuration,
    *,
    replicas: int,
    steps: int,
    seed: int = 0,
    report: Callable[[int], None] | None = None,
) -> Outcome:
    """Run one configuration on `replicas` data sets at once; `report` hears of each step."""
    data: Any = problem("variance", data_sets=replicas, seed=1000 * seed)
    truth = torch.tensor(data.truth, dtype=torch.float64)
    hits = torch.full((replicas,), torch.inf, dtype=torch.float64)
    tail_hits = torch.zeros(replicas, dtype=torch.float64)
    tail_start = steps - round(TAIL * steps)

    def squared_distance(z: Tensor, target: Tensor) -> Tensor:
        distance: Tensor = ((data.variances(z) - target) ** 2).sum(-1)
        return distance

    def watch(progress: Progress) -> None:
        is_near = squared_distance(progress.x, truth) < HIT
        is_first = is_near & hits.isinf()
        hits[is_first] = float(progress.step)
        if progress.step > tail_start:
            tail_hits.add_(is_near)
        if report is not None:
            report(progress.step)

    with warnings.catch_warnings():
        # Configuration 8 heats on purpose: the paper wants to see what happens.
        warnings.filterwarnings("ignore", message="beta=0.3 with alpha=1.0")
        result = run(
            Oracle(data),
            configuration.build(),
            data.start(replicas),
            max_steps=steps,
            record=Record(per_decade=30, grad_norms=False, iterates=True),
            callback=watch,
            seed=seed,
        )
    assert result.history.iterates is not None
    path = torch.from_numpy(result.history.iterates)
    return Outcome(
        configuration=configuration,
        steps=result.history.steps,
        errors=squared_distance(path, truth).numpy(),
        mle_errors=squared_distance(path, data.estimate).numpy(),
        hits=hits.numpy(),
        tail_shares=(tail_hits / max(steps - tail_start, 1)).numpy(),
        samples=result.counts.samples,
        seconds=result.seconds,
    )


def run_study(
    *,
    replicas: int,
    steps: int,
    seed: int = 0,
    report: Callable[[Configuration, int], None] | None = None,
) -> Iterator[Outcome]:
    """Run the configurations one after another, yielding each outcome as it is there."""
    for configuration in CONFIGURATIONS:

        def tell(step: int, configuration: Configuration = configuration) -> None:
            if report is not None:
                report(configuration, step)

        yield run_configuration(
            configuration, replicas=replicas, steps=steps, seed=seed, report=tell
        )
