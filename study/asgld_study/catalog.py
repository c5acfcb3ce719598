"""The rows of the comparison, and how to set their options: as proved, or as found by a search.

"theory" settings use nothing but the proved constants of the problem. "practical" settings are the
best of a random search, the same number of trials for every method, on seeds that are not used
again. Options that say which gradients a method sees (`batch_size`) are no part of either.

A trial of the search draws each option log-uniformly from its range; the first trial is the middle
of the ranges. The cost of a trial is the median cost, in gradient-equivalents, of the event that
ends the cell. A trial that has cost more than the best one so far is given up, which cannot change
the winner.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asgld.methods import Method
from asgld.methods import method as make_method
from asgld.methods.torch import Comparator
from asgld.problems import Problem
from asgld_study import engine
from asgld_study.cells import Cell, CellResult, measure_cell, start_points
from asgld_study.settings import SETTINGS, Proved

_LR, _ADAPTIVE_LR = {"lr": (1e-3, 1.0)}, {"lr": (1e-3, 1e1)}
_SIGMA, _DELTA = {"sigma": (1e-4, 1e-1)}, {"delta": (1e-4, 1e-1)}
# label -> ranges of a search in the paper's family, which has no settings of its own. With
# alpha = 1 a step is a distance, and not a multiple of the gradient.
_RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "agld": {**_LR, **_SIGMA, **_DELTA},
    "asg": {**_ADAPTIVE_LR, **_DELTA},
    "asgld": {**_ADAPTIVE_LR, **_SIGMA, **_DELTA},
    "asgld-batch": {**_LR, **_SIGMA, **_DELTA},
    "sgld": {**_LR, **_SIGMA},
}
# Seeds of a search start here; no measurement uses them.
HELD_OUT_SEED = 1_000_003
_WHOLE_NUMBERS = ("burn_in", "wait", "period", "oja_steps", "sub_steps")
_ROW_14 = {"alpha": 0.0, "beta": 1.0, "batch_slope": 1.0}


@dataclass(frozen=True)
class Contender:
    """A row of the comparison."""

    label: str  # its word in tables
    method: str
    oracle: str  # "stochastic", "gradient", "hvp" or "hessian"; rows of one class are compared
    fixed: Mapping[str, Any] = field(default_factory=dict)  # options that every run has
    batch: int | None = None  # samples per gradient of a finite sum; None for full gradients
    row: int = 0  # in the paper's Table 1; 0 for comparators

    @property
    def search_ranges(self) -> dict[str, tuple[float, float]]:
        """Ranges of the random search."""
        return dict(_RANGES.get(self.label) or SETTINGS[self.method].ranges)

    def base(self, problem: Problem) -> dict[str, Any]:
        """Options that hold in any mode."""
        fixed = dict(self.fixed)
        if self.batch is not None and problem.num_samples is not None:
            fixed["batch_size"] = self.batch
        elif "batch_slope" in fixed:
            del fixed["batch_slope"]  # full gradients cannot grow
        if self.method in ("sgd", "natasha2") and problem.num_samples is None:
            fixed["batch_size"] = None
        return fixed


_BATCH = 16
CONTENDERS = (
    Contender("natasha2", "natasha2", "stochastic", batch=_BATCH, row=1),
    Contender("cubic-newton", "cubic-newton", "hessian", row=2),
    Contender("trace", "trace", "hessian", row=3),
    Contender("fast-cubic", "fast-cubic", "hvp", row=4),
    Contender("carmon-accelerated", "carmon-accelerated", "hvp", row=5),
    Contender("carmon-cubic", "carmon-cubic", "hvp", row=6),
    Contender("noisy-sgd", "noisy-sgd", "stochastic", batch=_BATCH, row=7),
    Contender("perturbed-gd", "perturbed-gd", "gradient", row=8),
    Contender("saddle-ngd", "saddle-ngd", "gradient", row=9),
    Contender("neon", "neon", "gradient", row=10),
    Contender("agld", "agld", "gradient", row=11),
    Contender("asg", "asg", "stochastic", batch=_BATCH, row=12),
    Contender("asgld", "asgld", "stochastic", batch=_BATCH, row=13),
    Contender("asgld-batch", "asgld", "stochastic", _ROW_14, batch=1, row=14),
    Contender("gd", "gd", "gradient"),
    Contender("sgd", "sgd", "stochastic", batch=_BATCH),
    Contender("sgld", "sgld", "stochastic", batch=_BATCH),
    Contender("psgld", "psgld", "stochastic", batch=_BATCH),
    Contender("adagrad", "adagrad", "gradient"),
    Contender("adam", "adam", "gradient"),
    Contender("perturbed-agd", "perturbed-agd", "gradient"),
    Contender("lbfgs", "lbfgs", "gradient"),
    Contender("trust-krylov", "trust-krylov", "hvp"),
    Contender("trust-exact", "trust-exact", "hessian"),
)
BY_LABEL = {contender.label: contender for contender in CONTENDERS}


def proved_options(
    contender: Contender, problem: Problem, *, eps: float, gamma: float, gap: float
) -> dict[str, Any] | None:
    """Options from the constants that the problem proves; None where it proves none.

    The paper's family has no theorem with constants. Taken are lr = 1/M, as its theorems ask, D
    starting at 1, and the sigma at which the stationary mean of |grad f|^2 is eps^2 / 2.
    """
    smoothness, rho = problem.facts.smoothness, problem.facts.hessian_lipschitz
    if smoothness is None or rho is None:
        return None
    base = contender.base(problem)
    if contender.method in SETTINGS:
        proved = Proved(smoothness, rho, eps, gamma, problem.dim, gap)
        asked = SETTINGS[contender.method].theory(proved)
        options = _all_options(make_method(contender.method, **asked))
        # A setting of its own for the batch is part of the theorem; a missing one is ours to give.
        if options.get("batch_size") is not None and problem.num_samples is not None:
            base.pop("batch_size", None)
        return {**options, **base}
    options = {"lr": 1.0 / smoothness}
    if contender.method != "asg":
        options["sigma"] = eps / math.sqrt(2.0 * smoothness * problem.dim)
    return {**options, **base}


def _all_options(method: Method) -> dict[str, Any]:
    """The options of a rival, defaults included."""
    if isinstance(method, Comparator):
        return dict(method.options)
    assert dataclasses.is_dataclass(method)
    return {f.name: getattr(method, f.name) for f in dataclasses.fields(method) if f.init}


# ------------------------------------------------------------------------------------ searches


def options_by_theory(contender: Contender, subject: Problem, cell: Cell) -> dict[str, Any] | None:
    """Options by theory at the cell's eps and gamma; None where the problem proves no constants.

    The gap f(x0) - min f is that of the cell's first start; f >= 0 where min f is unknown.
    """
    x0 = start_points(subject, dataclasses.replace(cell, replicas=1))
    gap = max(float(subject.value(x0)[0]) - (subject.facts.minimum or 0.0), 1e-3)
    return proved_options(contender, subject, eps=cell.eps, gamma=cell.gamma, gap=gap)


@dataclass(frozen=True)
class SettingSearch:
    """A search: the cell whose options are wanted, the ranges, and the number of trials."""

    cell: Cell
    ranges: Mapping[str, tuple[float, float]]
    trials: int

    def draws(self) -> list[dict[str, float]]:
        """Options of all trials; the first ones do not depend on how many there are."""
        rng = np.random.default_rng(HELD_OUT_SEED)
        names = sorted(self.ranges)
        low, high = np.log([self.ranges[name] for name in names]).reshape(-1, 2).T
        rows = np.concatenate(
            [np.full((1, len(names)), 0.5), rng.uniform(size=(max(self.trials - 1, 0), len(names)))]
        )
        return [
            {name: _rounded(name, math.exp(v)) for name, v in zip(names, row, strict=True)}
            for row in low + rows * (high - low)
        ]

    @property
    def task(self) -> engine.Task:
        """The search as a task of the engine."""
        return engine.Task(search_settings, dataclasses.asdict(self), self.cell.label)


@dataclass(frozen=True)
class Tuned:
    """The best options found and their median cost; inf if no trial got there."""

    options: dict[str, Any]
    cost: float = math.inf
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0


def run_searches(searches: Sequence[SettingSearch], **how: Any) -> list[Tuned]:
    """What the searches find, in order; `how` as for `asgld_study.engine.measure`."""
    found = engine.measure([search.task for search in searches], **how)
    for search, f in zip(searches, found, strict=True):
        if f.error:
            raise ValueError(f"the search for settings of {search.cell.label} failed: {f.error}")
    return [Tuned(**f.value, seconds=f.seconds) for f in found if f.value is not None]


def search_settings(
    cell: Mapping[str, Any], ranges: Mapping[str, tuple[float, float]], trials: int
) -> dict[str, Any]:
    """Run a search; where no trial gets there, the middle of the ranges is kept."""
    wanted = Cell(**{**cell, "seed": HELD_OUT_SEED})
    draws = SettingSearch(wanted, ranges, trials).draws()
    best, cost = draws[0], math.inf
    failed: list[str] = []
    for draw in draws:
        trial = dataclasses.replace(
            wanted,
            options={**wanted.options, **draw},
            budget=wanted.budget if math.isinf(cost) else cost,
        )
        try:
            result = CellResult(**measure_cell(**dataclasses.asdict(trial)))
        except Exception as error:  # such as an option out of its range: the next trial may do
            failed.append(f"{type(error).__name__}: {error}")
            continue
        assert trial.until is not None
        found = result.median(trial.until, "spent")
        if found < cost:
            best, cost = draw, found
    return {"options": {**wanted.options, **best}, "cost": cost, "failed": failed}


def measure_tuned(
    cell: Mapping[str, Any], ranges: Mapping[str, tuple[float, float]], trials: int
) -> dict[str, Any]:
    """Search for settings, then measure the cell with the best, on its own seeds."""
    found = search_settings(cell, ranges, trials)
    return measure_cell(**{**cell, "options": found["options"]})


def _rounded(name: str, value: float) -> float:
    """Three digits are enough for a setting, and can be typed."""
    return round(value) if name in _WHOLE_NUMBERS else float(f"{value:.3g}")
