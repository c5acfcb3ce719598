"""The paper's Table 1 as a measurement: every method, one cost count, one set of problems.

Declarations only: which problems, which settings, which sweeps; `comparison` reads what comes
out of them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from asgld.problems import Problem, problem
from asgld_study.experiments import escape
from asgld_study.sweep.catalog import BY_LABEL, CONTENDERS, Contender, proved_options
from asgld_study.sweep.engine import Cell, Result, Store, run_cells, start_points
from asgld_study.sweep.tuning import Search, Tuned, run_searches


@dataclass(frozen=True)
class Family:
    """A problem of the comparison, and a smaller one on which settings are searched for.

    Args:
        name, problem, options: the problem.
        small: what is different in the smaller one.
        start: of all methods, so that none is excluded: beside the saddle, or random.
        eps, gamma: of the second-order point that ends a run.
        max_steps: limit of a run; the search has a third of it.
        budget: limit in gradient-equivalents.
        trials: of the search at most, for every method alike.
    """

    name: str
    problem: str
    options: Mapping[str, Any]
    small: Mapping[str, Any]
    start: str
    eps: float
    gamma: float
    max_steps: int
    budget: float = 5_000.0
    trials: int = 16

    def build(self) -> Problem:
        return problem(self.problem, **self.options)


SADDLE = Family("saddle", "strict-saddle",
                {"dim": 64, "gamma": 0.5, "rotated": True, "num_samples": 512, "noise": 0.3},
                {"dim": 8}, "kicked", eps=0.05, gamma=0.25, max_steps=4000, trials=32)  # fmt: skip
OCTOPUS = Family("octopus", "octopus", {"dim": 8}, {"dim": 3}, "random",
                 eps=0.1, gamma=1.0, max_steps=5000, trials=32)  # fmt: skip
REALISTIC = (
    Family("digits", "digits",
           {"hidden": 4, "num_samples": 300, "l2": 0.001}, {"num_samples": 100}, "random",
           eps=0.03, gamma=0.03, max_steps=4000, budget=8_000.0),
    Family("factorization", "factorization",
           {"size": 12, "rank": 3}, {"size": 5, "rank": 2}, "random",
           eps=0.05, gamma=0.5, max_steps=4000),
    Family("phase-retrieval", "phase-retrieval",
           {"dim": 16, "num_samples": 320}, {"dim": 4, "num_samples": 80}, "random",
           eps=0.05, gamma=0.5, max_steps=2000),
    Family("robust-regression", "robust-regression",
           {"dim": 20, "num_samples": 400}, {"dim": 5, "num_samples": 100}, "random",
           eps=0.02, gamma=0.1, max_steps=2000),
    Family("mixture", "mixture",
           {"dim": 20, "num_samples": 800}, {"dim": 5, "num_samples": 200}, "random",
           eps=0.02, gamma=0.5, max_steps=2000),
)  # fmt: skip
FAMILIES = (SADDLE, OCTOPUS, *REALISTIC)

# The octopus of Du et al.: steps of 1/(4 L), kicks of e/100 where the gradient is below e/100.
_ARM = math.e
_OCTOPUS_LR, _OCTOPUS_KICK = 1.0 / (4.0 * _ARM), _ARM / 100.0
# On the chain steps are fixed: 1/60 is stable, though more than the guaranteed 1/152.
_CHAIN_LR, _CHAIN_RHO, _CHAIN_SMOOTHNESS = 1.0 / 60.0, 50.0, 60.0


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    name: str
    escape: escape.Size
    seeds: int
    trials: int
    tuning_seeds: int
    families: tuple[Family, ...]
    octopus_dims: tuple[int, ...]
    octopus_steps: int
    octopus_eps: tuple[float, ...]
    chain_eps: tuple[float, ...] = (1.0, 0.5, 0.25, 0.125, 0.0625)
    chain_steps: int = 20_000
    chain_methods: tuple[str, ...] = tuple(BY_LABEL)
    shrink: float = 1.0  # of the limits on steps and cost


SIZES = {
    "ci": Size("ci", escape.CI, 5, 8, 3, (SADDLE, OCTOPUS, REALISTIC[1]), (2, 3, 4), 2000,
               (1.0, 0.25), chain_methods=("gd", "cubic-newton"), shrink=0.25),
    "full": Size("full", escape.FULL, 30, 32, 5, FAMILIES, (2, 3, 4, 5, 6, 8), 4000,
                 (1.0, 0.5, 0.25, 0.125, 0.0625),
                 chain_methods=("gd", *(c.label for c in CONTENDERS if c.row))),
}  # fmt: skip


# ------------------------------------------------------------------------------------ settings


def target_options(
    contender: Contender, subject: Problem, eps: float, gamma: float
) -> dict[str, Any]:
    """Options that say what is wanted; a search leaves them alone."""
    base = contender.base(subject)
    if contender.method in ("perturbed-gd", "perturbed-agd", "neon"):
        base["grad_threshold"] = eps / 2.0
    if contender.method in ("cubic-newton", "trace", "natasha2"):
        base["gamma"] = gamma
    if contender.method in ("cubic-newton", "trace"):
        base["eps"] = eps / 2.0
    if contender.method == "natasha2":
        base["max_epochs"] = 10_000  # the budget ends it
    return base


def _is_batched(contender: Contender) -> bool:
    return contender.oracle in ("stochastic", "gradient") and contender.label != "natasha2"


def family_cell(family: Family, contender: Contender, size: Size, **changes: Any) -> Cell:
    """A run of one method on one problem, but for its options."""
    cell = Cell(
        family.problem,
        contender.method,
        problem_options=dict(family.options),
        start=family.start,
        replicas=size.seeds,
        max_steps=math.ceil(size.shrink * family.max_steps),
        budget=size.shrink * family.budget,
        eps=family.eps,
        gamma=family.gamma,
        until="all",
        tags={"label": contender.label, "family": family.name, "sweep": "standard"},
    )
    return dataclasses.replace(cell, **changes)


def searches(size: Size) -> dict[tuple[str, str], Search]:
    """One search for every method on every family: the same number of trials, other seeds."""
    found = {}
    for family in size.families:
        options = {**family.options, **family.small}
        subject = problem(family.problem, **options)
        for contender in CONTENDERS:
            cell = family_cell(
                family,
                contender,
                size,
                problem_options=options,
                replicas=size.tuning_seeds if _is_batched(contender) else 2,
                max_steps=math.ceil(size.shrink * family.max_steps / 3),
                until="sosp",
                options=target_options(contender, subject, family.eps, family.gamma),
            )
            ranges = contender.search_ranges
            trials = min(size.trials, family.trials)
            found[family.name, contender.label] = Search(cell, ranges, trials)
    return found


def proved(family: Family, contender: Contender) -> dict[str, Any] | None:
    """Options by theory, with f(x0) - min f of the first start; f >= 0 where min f is unknown."""
    subject = family.build()
    x0 = start_points(subject, Cell(family.problem, "gd", start=family.start, replicas=1))
    gap = float(subject.value(x0)[0]) - (subject.facts.minimum or 0.0)
    return proved_options(
        contender, subject, eps=family.eps, gamma=family.gamma, gap=max(gap, 1e-3)
    )


# ------------------------------------------------------------------------------------ cells


def standard_cells(size: Size, tuned: Mapping[tuple[str, str], Tuned]) -> list[Cell]:
    """Every method as tuned on every family, and by theory on the saddle.

    On the octopus the constants are those of a box in which the function is a hundred times as
    steep as on the way, and settings by theory arrive nowhere.
    """
    cells = []
    for family in size.families:
        for contender in CONTENDERS:
            options = {
                "theory": proved(family, contender),
                "practical": tuned[family.name, contender.label].options,
            }
            if family is not SADDLE:
                del options["theory"]
            for mode, chosen in options.items():
                if chosen is None:
                    continue
                cell = family_cell(family, contender, size, options=chosen)
                is_hopeless = contender.label == "natasha2" and mode == "theory"
                if is_hopeless:
                    # One search by Oja's method takes hundreds of thousands of steps there.
                    cell = dataclasses.replace(cell, max_steps=100)
                tags = {**cell.tags, "mode": mode}
                cells.append(dataclasses.replace(cell, tags=tags))
                if family is SADDLE and not is_hopeless:
                    exact = {**tags, "sweep": "exact saddle"}
                    cells.append(dataclasses.replace(cell, tags=exact, start="saddle"))
    return cells


def octopus_settings(label: str) -> dict[str, Any] | None:
    """Steps and noise as Du et al. have them; None for methods without such an option."""
    lr, kick = _OCTOPUS_LR, _OCTOPUS_KICK
    sigma = kick / math.sqrt(2.0 * lr)
    known: dict[str, dict[str, Any]] = {
        "gd": {"lr": lr},
        "perturbed-gd": {"lr": lr, "radius": kick, "grad_threshold": kick, "wait": 100},
        "noisy-sgd": {"lr": lr, "noise": kick / lr},
        "agld": {"lr": lr, "sigma": sigma},
        "sgld": {"lr": lr, "sigma": sigma},
        "neon": {"lr": lr, "grad_threshold": kick, "gamma": 1.0, "hessian_lipschitz": 4.0},
        "natasha2": {"smoothness": 0.3 / lr, "radius": _ARM, "gamma": 1.0, "batch_size": None,
                     "oja_steps": 20, "sub_steps": 16, "max_epochs": 10_000},
    }  # fmt: skip
    return known.get(label)


def octopus_cells(size: Size, tuned: Mapping[tuple[str, str], Tuned]) -> list[Cell]:
    """d saddles in a row, and saddles whose curvature is tied to eps."""
    cells = []
    for contender in CONTENDERS:
        options = octopus_settings(contender.label)
        if options is None:
            options = tuned["octopus", contender.label].options
        # Methods that run one replica at a time take ten times as long for a step.
        steps = size.octopus_steps // (1 if _is_batched(contender) else 2)
        for dim in size.octopus_dims:
            cells.append(
                family_cell(OCTOPUS, contender, size, problem_options={"dim": dim},
                            options=options, max_steps=steps, budget=8_000.0,
                            tags={"label": contender.label, "sweep": "octopus", "dim": dim})
            )  # fmt: skip
        for eps in size.octopus_eps:
            cells.append(
                family_cell(OCTOPUS, contender, size, problem_options={"dim": 3, "eps": eps},
                            options=_for_accuracy(contender, options, eps, 0.5 * math.sqrt(eps)),
                            eps=eps, gamma=0.5 * math.sqrt(eps),
                            max_steps=steps, budget=8_000.0,
                            tags={"label": contender.label, "sweep": "octopus eps", "eps": eps})
            )  # fmt: skip
    return cells


def _for_accuracy(
    contender: Contender, options: Mapping[str, Any], eps: float, gamma: float
) -> dict[str, Any]:
    """The options with the accuracy asked for, where the method has an option for it."""
    chosen = dict(options)
    for name, value in (("eps", eps / 2.0), ("grad_threshold", eps / 2.0), ("gamma", gamma)):
        if name in chosen:
            chosen[name] = value
    return chosen


def chain_settings(label: str, eps: float) -> dict[str, Any] | None:
    """Fixed steps on the worst-case chain; None for methods that are not run there."""
    lr, rho, smoothness = _CHAIN_LR, _CHAIN_RHO, _CHAIN_SMOOTHNESS
    curvature = {"hessian_lipschitz": rho, "eps": eps / 2.0}
    known: dict[str, dict[str, Any]] = {
        "gd": {"lr": lr},
        "perturbed-gd": {"lr": lr, "radius": 1e-2, "grad_threshold": eps / 2.0},
        "agld": {"lr": lr, "sigma": 1e-3},
        "sgld": {"lr": lr, "sigma": 1e-3},
        # With alpha = 1 a step is a distance, as for Adagrad, and not a multiple of the gradient.
        "asgld": {"lr": 0.3, "sigma": 1e-3},
        "asg": {"lr": 0.3},
        "noisy-sgd": {"lr": lr, "noise": 1e-2},
        "neon": {"lr": lr, "grad_threshold": eps / 2.0, "gamma": math.sqrt(eps),
                 "hessian_lipschitz": rho},
        "cubic-newton": {"eps": eps / 2.0, "gamma": 1e3},
        "trace": {"eps": eps / 2.0, "gamma": 1e3},
        "fast-cubic": curvature,
        "carmon-accelerated": {**curvature, "smoothness": smoothness},
        "carmon-cubic": {**curvature, "smoothness": smoothness},
        "perturbed-agd": {"lr": lr, "theta": 0.1, "grad_threshold": eps / 2.0},
        "lbfgs": {},
        "adam": {"lr": 1e-2},
    }  # fmt: skip
    return known.get(label)


def chain_cells(size: Size) -> list[Cell]:
    """The chain on which convergence, not escape, is slow: only |grad f| <= eps is asked."""
    cells = []
    for contender in CONTENDERS:
        if contender.label not in size.chain_methods:
            continue
        for eps in size.chain_eps:
            options = chain_settings(contender.label, eps)
            # With many replicas, or products, the finest accuracy takes too long.
            has_many = contender.label in (*escape.NOISY, *escape.CURVATURE)
            if options is None or (has_many and eps < 0.1):
                continue
            replicas = size.seeds if contender.label in escape.NOISY else 1
            if contender.label in escape.CURVATURE:
                # Only start vectors of Lanczos are random: costs differ by less than a tenth.
                replicas = max(size.seeds // 3, 1)
            cells.append(
                Cell("worst-case-chain", contender.method, {"eps": eps}, options,
                     replicas=replicas, max_steps=size.chain_steps,
                     budget=None if contender.oracle == "hessian" else float(size.chain_steps),
                     eps=eps, gamma=math.inf,
                     tags={"label": contender.label, "sweep": "chain", "eps": eps})
            )  # fmt: skip
    return cells


# ------------------------------------------------------------------------------------ the whole


@dataclass(frozen=True)
class Study:
    """All results, and the settings that were found."""

    size: str
    results: list[Result]
    tuned: dict[tuple[str, str], Tuned] = field(default_factory=dict)

    def select(self, sweep: str, **tags: Any) -> list[Result]:
        """Results of one sweep whose tags have these values; failed ones too."""
        wanted = {"sweep": sweep, **tags}
        return [
            r for r in self.results if all(r.cell["tags"].get(k) == v for k, v in wanted.items())
        ]


def run_study(
    size: str = "ci",
    *,
    store: Store | None = None,
    jobs: int = 1,
    report: Callable[[str, int, int, str], None] | None = None,
) -> Study:
    """Search, measure, and return everything; `report` hears (stage, done, all, what)."""
    if size not in SIZES:
        raise ValueError(f"size={size!r}: need one of {', '.join(SIZES)}")
    chosen = SIZES[size]

    def tell(stage: str) -> Callable[[int, int, Any], None]:
        def say(done: int, total: int, what: Any) -> None:
            if report is not None:
                report(stage, done, total, what.label if isinstance(what, Result) else what)

        return say

    tasks = searches(chosen)
    settings = run_searches(tasks.values(), store=store, jobs=jobs, report=tell("settings"))
    tuned = dict(zip(tasks, settings, strict=True))
    cells = [
        *escape.all_cells(chosen.escape),
        *standard_cells(chosen, tuned),
        *octopus_cells(chosen, tuned),
        *chain_cells(chosen),
    ]
    results = run_cells(cells, store=store, jobs=jobs, report=tell("cells"))
    return Study(size, results, tuned)


def contenders_of_table() -> list[Contender]:
    """The fourteen rows, in the paper's order."""
    return sorted((c for c in BY_LABEL.values() if c.row), key=lambda c: c.row)
