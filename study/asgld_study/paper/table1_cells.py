"""Table 1 as a measurement: every method, one cost count, one set of problems.

Declarations only: which problems, which settings, which sweeps. `asgld_study.paper.table1` reads
the results. The sweeps at one strict saddle (dimension, gamma, k0, exponents, control) are of

    f(x) = 1/2 y' diag(l) y + 1/4 y_1^4, l_1 = -gamma, the others 1, y = Q'x,

with minima at y_1 = +-gamma^(1/2). All methods take steps of lr = 0.1 there. Noise is scaled in two
ways:

- "equal": every method gets the energy E|noise|^2 = r^2 per step, or per kick, r = 0.001,
  whatever the dimension (sigma^2 = r^2 / (2 lr d));
- "native": as the method's authors have it: sigma fixed per coordinate for Langevin methods (the
  sigma that is equal at d = 64), noise of gradient length 1 for noisy SGD, kicks as by theory.

A saddle that is met at step k0 is met with D = 1 + delta k0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asgld.problems import Problem, problem
from asgld_study import catalog
from asgld_study.catalog import BY_LABEL, CONTENDERS, Contender, SettingSearch, Tuned
from asgld_study.cells import Cell
from asgld_study.engine import Task

# (family, label) -> settings that a search found
Settings = Mapping[tuple[str, str], Tuned]

LR, GAMMA, ENERGY, DELTA = 0.1, 0.5, 0.001, 0.01
# The growth of D while the dependence on k0 is measured.
DELTA_LATE = 0.1
_NATIVE_DIM, _LARGE = 64, 1024
_EPS, _TARGET_GAMMA = 0.05, 0.25

LANGEVIN = ("agld", "asgld", "sgld")
NOISY = (*LANGEVIN, "psgld", "noisy-sgd", "perturbed-gd", "saddle-ngd", "neon", "perturbed-agd")
# Without randomness of their own: started beside the saddle, where it would hold them for ever.
KICKED = ("gd", "asg", "adagrad", "adam", "lbfgs")
# Methods that run aligned with the axes beyond d = 1024.
LARGEST = ("agld", "asgld", "sgld", "perturbed-gd", "noisy-sgd")
CURVATURE = ("natasha2", "fast-cubic", "carmon-accelerated", "carmon-cubic", "trust-krylov")
HESSIAN = ("cubic-newton", "trace", "trust-exact")
# Rows of the table that ask for products, and the curvature of their saddle.
SPREAD, _SPREAD_GAMMA = ("natasha2", "fast-cubic", "carmon-accelerated", "carmon-cubic"), 0.1


@dataclass(frozen=True)
class Family:
    """A problem of the comparison, and a smaller one on which settings are searched for."""

    name: str
    problem: str
    options: Mapping[str, Any]
    small: Mapping[str, Any]  # options that are different in the smaller problem
    start: str  # of all methods, so that none is excluded: beside the saddle, or random
    eps: float  # of the second-order point that ends a run
    gamma: float
    max_steps: int  # of a run; the search has a third of them
    budget: float = 5_000.0  # in gradient-equivalents
    trials: int = 16  # of the search at most, for every method alike


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


@dataclass(frozen=True)
class Extent:
    """How much is measured."""

    saddle_seeds: int  # replicas of a sweep at the saddle
    second_order_seeds: int  # the same for methods that run one replica at a time
    dims: tuple[int, ...]  # of the saddle
    hessian_dims: tuple[int, ...]  # dimensions with whole Hessians
    gammas: tuple[float, ...]  # curvatures of the saddle
    k0s: tuple[int, ...]  # steps at which the saddle is met
    exponents: tuple[float, ...]  # alpha and beta of the map
    map_steps: int
    seeds: int  # replicas of all other cells
    trials: int  # of a search
    tuning_seeds: int  # replicas of a trial
    families: tuple[Family, ...]  # problems of the comparison
    octopus_dims: tuple[int, ...]
    octopus_steps: int
    stairs: tuple[int, ...]  # numbers of saddles of the staircase
    chain_methods: tuple[str, ...]
    minima: str  # size of the way from a saddle to a minimum
    loose_seeds: int  # replicas of carmon-cubic on the staircase, whose costs vary by a quarter
    chain_eps: tuple[float, ...] = (1.0, 0.5, 0.25, 0.125, 0.0625)
    chain_steps: int = 20_000
    control_steps: int = 2000
    rotations: tuple[bool, ...] = (True, False)
    tuned_families: int = 4  # problems on which first-order rows are tuned for the report
    shrink: float = 1.0  # factor of the families' limits on steps and cost


EXTENTS = {
    "ci": Extent(
        saddle_seeds=48, second_order_seeds=4, dims=(4, 32, 256), hessian_dims=(4, 32),
        gammas=(0.2, 0.5, 1.0), k0s=(0, 100, 1000), exponents=(0.0, 1.0), map_steps=400,
        seeds=5, trials=8, tuning_seeds=3, families=(SADDLE, OCTOPUS, REALISTIC[1]),
        octopus_dims=(2, 3, 4), octopus_steps=2000, stairs=(2, 4, 8), minima="tiny",
        chain_methods=("gd", "cubic-newton"), loose_seeds=2, rotations=(True,), shrink=0.25,
    ),
    "full": Extent(
        saddle_seeds=60, second_order_seeds=30, dims=(4, 16, 64, 256, 1024, 4096),
        hessian_dims=(4, 16, 64, 256, 1024), gammas=(0.05, 0.1, 0.2, 0.5, 1.0),
        k0s=(0, 100, 1000, 10_000), exponents=(0.0, 0.5, 1.0, 1.5, 2.0), map_steps=1500,
        seeds=30, trials=32, tuning_seeds=5, families=FAMILIES,
        octopus_dims=(2, 3, 4, 5, 6, 8), octopus_steps=4000,
        stairs=(8, 16, 32, 64), minima="full",
        chain_methods=("gd", *(c.label for c in CONTENDERS if c.row)), loose_seeds=60,
    ),
}  # fmt: skip


def contenders_of_table() -> list[Contender]:
    """The fourteen rows, in the paper's order."""
    return sorted((c for c in BY_LABEL.values() if c.row), key=lambda c: c.row)


def all_cells(plan: Extent, tuned: Settings) -> list[Cell]:
    """Everything that `asgld table1` measures."""
    return [
        *saddle_cells(plan),
        *standard_cells(plan, tuned),
        *octopus_cells(plan, tuned),
        *chain_cells(plan),
        *staircase_cells(plan),
        *spread_cells(plan),
    ]


# ------------------------------------------------------------------------------------ one saddle


def saddle_options(dim: int, *, rotated: bool = True, gamma: float = GAMMA) -> dict[str, Any]:
    """Options of the strict saddle."""
    return {"dim": dim, "gamma": gamma, "rotated": rotated}


def sigma_for(dim: int, noise: str, lr: float = LR) -> float:
    """Noise per coordinate, so that a step has the energy asked for."""
    return ENERGY / math.sqrt(2.0 * lr * (dim if noise == "equal" else _NATIVE_DIM))


def saddle_settings(label: str, dim: int, noise: str, gamma: float = GAMMA) -> dict[str, Any]:
    """Options of a method on this saddle, with the step and the noise that all have."""
    subject = problem("strict-saddle", **saddle_options(dim, gamma=gamma))
    rho = subject.facts.hessian_lipschitz
    assert rho is not None
    if label in LANGEVIN:
        growth = {} if label == "sgld" else {"delta": DELTA}
        return {"lr": LR, "sigma": sigma_for(dim, noise), **growth}
    if label == "psgld":
        # With damping 1 its step where gradients vanish is lr, as for the others.
        return {"lr": LR, "damping": 1.0, "sigma": sigma_for(dim, noise)}
    if label == "noisy-sgd":
        return {"lr": LR, "noise": ENERGY / LR if noise == "equal" else 1.0}
    by_theory = catalog.proved_options(
        BY_LABEL[label], subject, eps=_EPS, gamma=gamma / 2, gap=gamma**2 / 4
    )
    assert by_theory is not None
    if label == "perturbed-gd":
        radius = ENERGY if noise == "equal" else by_theory["radius"]
        wait = math.ceil(40.0 / (LR * gamma))
        return {"lr": LR, "radius": radius, "grad_threshold": 1e-4, "wait": wait}
    if label == "saddle-ngd":
        return {"lr": ENERGY, "noise": 1.0} if noise == "equal" else by_theory
    if label == "natasha2":
        # lr = 0.3 / M; runs of Oja's method as long as practice has them, 4 (1 / gamma) ln d.
        return {"batch_size": None, "gamma": gamma / 2, "radius": gamma / rho,
                "smoothness": 0.3 / LR, "oja_steps": math.ceil(4.0 / gamma * math.log(dim)),
                "max_epochs": 10_000}  # fmt: skip
    if label == "neon":
        start = {"radius": ENERGY} if noise == "equal" else {}
        return {"lr": LR, "gamma": gamma, "hessian_lipschitz": rho, **start}
    if label == "perturbed-agd":
        return {**by_theory, "radius": ENERGY} if noise == "equal" else by_theory
    return {"lr": LR} if label in ("gd", "asg", "adagrad", "adam") else by_theory


def _saddle_cell(label: str, sweep: str, options: Mapping[str, Any], **rest: Any) -> Cell:
    tags = {"label": label, "sweep": sweep, **rest.pop("tags", {})}
    defaults = {
        "problem_options": saddle_options(_NATIVE_DIM),
        "eps": _EPS,
        "gamma": _TARGET_GAMMA,
        "start": "saddle",
        "until": "hold",
    }
    chosen = {**defaults, **rest}
    return Cell("strict-saddle", BY_LABEL[label].method, options=options, tags=tags, **chosen)


def saddle_cells(plan: Extent) -> list[Cell]:
    """All sweeps at the strict saddle."""
    return [
        *dimension_cells(plan),
        *curvature_cells(plan),
        *late_cells(plan),
        *exponent_cells(plan),
        *control_cells(plan),
    ]


def dimension_cells(plan: Extent) -> list[Cell]:
    """T against d, both scalings of the noise, aligned and rotated; and what needs a kick."""
    cells = []

    def add(names: tuple[str, ...], noise: str, scale: str, **rest: Any) -> None:
        for name in names:
            options = saddle_settings(name, rest["problem_options"]["dim"], scale)
            # scipy's methods return at once from an exact saddle.
            is_beside = noise == "none" or name.startswith("trust-")
            start = "kicked" if is_beside else "saddle"
            cells.append(
                _saddle_cell(name, "dimension", options, max_steps=1500, start=start,
                             tags={"noise": noise}, **rest)
            )  # fmt: skip

    for dim in plan.dims:
        seeds = plan.saddle_seeds if dim < 1024 else max(plan.saddle_seeds // 2, 30)
        for rotated in plan.rotations:
            is_few = dim > _LARGE and not rotated
            shape = saddle_options(dim, rotated=rotated)
            for noise in ("equal", "native"):
                names = LARGEST if is_few else NOISY
                add(names, noise, noise, problem_options=shape, replicas=seeds)
            if not is_few:
                add(KICKED, "none", "equal", problem_options=shape, replicas=seeds)
        names = (*CURVATURE, *(HESSIAN if dim in plan.hessian_dims else ()))
        add(names, "native", "native", problem_options=saddle_options(dim),
            replicas=plan.second_order_seeds)  # fmt: skip
    return cells


def spread_cells(plan: Extent) -> list[Cell]:
    """One escape of the methods with products where curvatures spread over two decades.

    With two distinct eigenvalues Lanczos would be exact after two products, whatever d.
    """
    shape = {"gamma": _SPREAD_GAMMA, "rotated": True, "condition": 100.0}
    return [
        _saddle_cell(label, "spread", _spread_settings(label, dim),
                     problem_options={"dim": dim, **shape},
                     replicas=plan.second_order_seeds, max_steps=4000, until="fall",
                     gamma=_SPREAD_GAMMA / 2)
        for label in SPREAD
        for dim in plan.dims
        if dim <= _LARGE
    ]  # fmt: skip


def _spread_settings(label: str, dim: int) -> dict[str, Any]:
    options = saddle_settings(label, dim, "native", _SPREAD_GAMMA)
    # The largest curvature on the way, where the box proves twelve times as much.
    return {**options, "smoothness": 1.0} if "smoothness" in options else options


def curvature_cells(plan: Extent) -> list[Cell]:
    """T against gamma at equal noise."""
    return [
        _saddle_cell(
            name,
            "gamma",
            saddle_settings(name, _NATIVE_DIM, "equal", gamma),
            problem_options=saddle_options(_NATIVE_DIM, gamma=gamma),
            replicas=plan.saddle_seeds,
            max_steps=max(3000, int(200 / (LR * gamma))),
            gamma=gamma / 2,
            tags={"noise": "equal"},
        )
        for gamma in plan.gammas
        for name in ("agld", "asgld", "sgld", "perturbed-gd", "noisy-sgd", "neon")
    ]


def _asgld_options(alpha: float, beta: float, **rest: float) -> dict[str, float]:
    sigma = sigma_for(_NATIVE_DIM, "equal")
    return {"lr": LR, "alpha": alpha, "beta": beta, "sigma": sigma, **rest}


def late_cells(plan: Extent) -> list[Cell]:
    """T against the step k0 at which the saddle is met, for three exponents of the step."""
    return [
        _saddle_cell(
            "asgld",
            "k0",
            _asgld_options(alpha, 1.0, delta=DELTA_LATE, d_init=1.0 + DELTA_LATE * k0),
            replicas=plan.saddle_seeds,
            max_steps=10_000,
            until="leave",
            tags={"alpha": alpha, "k0": k0},
        )
        for alpha in (0.0, 0.5, 1.0)
        for k0 in plan.k0s
    ]


def exponent_cells(plan: Extent) -> list[Cell]:
    """Escape time and final gradient over (alpha, beta)."""
    return [
        _saddle_cell(
            "asgld",
            "exponents",
            _asgld_options(alpha, beta, delta=DELTA),
            replicas=max(plan.saddle_seeds // 2, 8),
            max_steps=plan.map_steps,
            until=None,
            tags={"alpha": alpha, "beta": beta},
        )
        for alpha in plan.exponents
        for beta in plan.exponents
        if beta >= alpha / 2  # below, the noise heats instead of annealing
    ]


def control_cells(plan: Extent) -> list[Cell]:
    """What must not escape: exact gradients at the exact saddle, and noise that misses the way."""
    shape = saddle_options(16)
    silent = {**shape, "num_samples": 256, "noise": 0.3, "noise_space": "stable"}
    sampled = {
        "all directions": {**silent, "noise_space": "all"},
        # The metric of a rotated problem is not diagonal, and D leaks noise into the way down.
        "stable directions, rotated": silent,
        "stable directions, aligned": {**silent, "rotated": False},
    }
    common = {"replicas": plan.second_order_seeds, "max_steps": plan.control_steps}
    asg = {"lr": LR, "delta": DELTA, "batch_size": 16}
    cells = [
        _saddle_cell(name, "control", saddle_settings(name, 16, "equal"), problem_options=shape,
                     **common, tags={"noise": "none"})
        for name in ("gd", "asg", "adagrad", "adam", "lbfgs")
    ]  # fmt: skip
    cells += [
        _saddle_cell("asg", "control", asg, problem_options=options, **common,
                     tags={"noise": f"samples, {kind}"})
        for kind, options in sampled.items()
    ]  # fmt: skip
    # At the symmetric points of these problems the gradient of every single sample is 0.
    cells += [
        Cell(name, "asg", {}, asg, "saddle", **common, until="leave",
             tags={"label": "asg", "sweep": "control",
                   "noise": f"samples, all 0 at the saddle of {name}"})
        for name in ("mixture", "phase-retrieval", "deep-linear")
    ]  # fmt: skip
    return cells


# ------------------------------------------------------------------------------------ families


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


def family_cell(family: Family, contender: Contender, plan: Extent, **changes: Any) -> Cell:
    """A run of one method on one problem, but for its options."""
    cell = Cell(
        family.problem,
        contender.method,
        problem_options=dict(family.options),
        start=family.start,
        replicas=plan.seeds,
        max_steps=math.ceil(plan.shrink * family.max_steps),
        budget=plan.shrink * family.budget,
        eps=family.eps,
        gamma=family.gamma,
        until="all",
        tags={"label": contender.label, "family": family.name, "sweep": "standard"},
    )
    return dataclasses.replace(cell, **changes)


def searches(plan: Extent) -> dict[tuple[str, str], SettingSearch]:
    """One search for every method on every family: the same number of trials, other seeds."""
    found = {}
    for family in plan.families:
        options = {**family.options, **family.small}
        subject = problem(family.problem, **options)
        for contender in CONTENDERS:
            cell = family_cell(
                family,
                contender,
                plan,
                problem_options=options,
                replicas=plan.tuning_seeds if _is_batched(contender) else 2,
                max_steps=math.ceil(plan.shrink * family.max_steps / 3),
                until="sosp",
                options=target_options(contender, subject, family.eps, family.gamma),
            )
            trials = min(plan.trials, family.trials)
            found[family.name, contender.label] = SettingSearch(
                cell, contender.search_ranges, trials
            )
    return found


def proved(family: Family, contender: Contender) -> dict[str, Any] | None:
    """Options by theory on a family; None where the problem proves no constants."""
    subject = problem(family.problem, **family.options)
    cell = Cell(family.problem, "gd", start=family.start, eps=family.eps, gamma=family.gamma)
    return catalog.options_by_theory(contender, subject, cell)


def standard_cells(plan: Extent, tuned: Settings) -> list[Cell]:
    """Every method as tuned on every family, and by theory on the saddle.

    On the octopus the constants are those of a box in which the function is a hundred times as
    steep as on the way, and settings by theory arrive nowhere.
    """
    cells = []
    for family in plan.families:
        for contender in CONTENDERS:
            options: dict[str, dict[str, Any] | None] = {}
            if family is SADDLE:
                options["theory"] = proved(family, contender)
            options["practical"] = tuned[family.name, contender.label].options
            for mode, chosen in options.items():
                if chosen is None:
                    continue
                cell = family_cell(family, contender, plan, options=chosen)
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


# ------------------------------------------------------------------------------------ octopus


def octopus_settings(label: str) -> dict[str, Any] | None:
    """Steps and noise as Du et al. have them; None for methods without such an option."""
    arm = math.e
    lr, kick = 1.0 / (4.0 * arm), arm / 100.0  # 1/(4 L); kicked where the gradient is below `kick`
    sigma = kick / math.sqrt(2.0 * lr)
    known: dict[str, dict[str, Any]] = {
        "gd": {"lr": lr},
        "perturbed-gd": {"lr": lr, "radius": kick, "grad_threshold": kick, "wait": 100},
        "noisy-sgd": {"lr": lr, "noise": kick / lr},
        "agld": {"lr": lr, "sigma": sigma},
        "sgld": {"lr": lr, "sigma": sigma},
        "neon": {"lr": lr, "grad_threshold": kick, "gamma": 1.0, "hessian_lipschitz": 4.0},
        "natasha2": {"smoothness": 0.3 / lr, "radius": arm, "gamma": 1.0, "batch_size": None,
                     "oja_steps": 20, "sub_steps": 16, "max_epochs": 10_000},
    }  # fmt: skip
    return known.get(label)


def octopus_cells(plan: Extent, tuned: Settings) -> list[Cell]:
    """d saddles in a row."""
    cells = []
    for contender in CONTENDERS:
        options = octopus_settings(contender.label)
        if options is None:
            options = tuned["octopus", contender.label].options
        # Methods that run one replica at a time take ten times as long for a step.
        steps = plan.octopus_steps // (1 if _is_batched(contender) else 2)
        limits = {"max_steps": steps, "budget": 8_000.0}
        for dim in plan.octopus_dims:
            cells.append(
                family_cell(OCTOPUS, contender, plan, problem_options={"dim": dim},
                            options=options, **limits,
                            tags={"label": contender.label, "sweep": "octopus", "dim": dim})
            )  # fmt: skip
    return cells


# ------------------------------------------------------------------------------------ chain


def chain_settings(label: str, eps: float) -> dict[str, Any] | None:
    """Fixed steps on the worst-case chain; None for methods that are not run there."""
    # A step of 1/60 is stable, though longer than the guaranteed 1/152.
    lr, rho, smoothness = 1.0 / 60.0, 50.0, 60.0
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


def chain_cells(plan: Extent) -> list[Cell]:
    """The chain on which convergence, not escape, is slow: only |grad f| <= eps is asked."""
    cells = []
    for contender in CONTENDERS:
        label = contender.label
        if label not in plan.chain_methods:
            continue
        replicas = plan.seeds if label in NOISY else 1
        if label in CURVATURE:
            # Only start vectors of Lanczos are random: costs differ by less than a tenth.
            replicas = max(plan.seeds // 3, 1)
        for eps in plan.chain_eps:
            options = chain_settings(label, eps)
            # With many replicas, or products, the finest accuracy takes too long.
            if options is None or (label in (*NOISY, *CURVATURE) and eps < 0.1):
                continue
            cells.append(
                Cell("worst-case-chain", contender.method, {"eps": eps}, options,
                     replicas=replicas, max_steps=plan.chain_steps,
                     budget=None if contender.oracle == "hessian" else float(plan.chain_steps),
                     eps=eps, gamma=math.inf,
                     tags={"label": label, "sweep": "chain", "eps": eps})
            )  # fmt: skip
    return cells


# ------------------------------------------------------------------------------------ staircase


def staircase_eps(stairs: int) -> float:
    """The accuracy to which a staircase of so many saddles belongs: eps^-1.5 of them.

    >>> round(staircase_eps(32), 9)
    0.25
    """
    return math.pow(stairs / 4.0, -2.0 / 3.0)


def staircase_settings(label: str, eps: float) -> dict[str, Any] | None:
    """Steps of 1 / (8 e) at every accuracy, noise and kicks in the units of the saddles."""
    unit, lr = math.sqrt(eps), 1.0 / (8.0 * math.e)
    known = {"hessian_lipschitz": 1.0, "eps": eps / 4.0}
    wanted = {"eps": eps / 4.0, "gamma": unit / 2.0}
    settings: dict[str, dict[str, Any]] = {
        "gd": {"lr": lr},
        "natasha2": {"batch_size": None, "gamma": unit, "radius": unit, "smoothness": 0.3 / lr,
                     "oja_steps": math.ceil(5.0 / (lr * unit)), "max_epochs": 100_000},
        "cubic-newton": {**wanted, "regularization": 1.0},
        "trace": {**wanted, "radius": unit, "max_radius": 10.0 * unit, "min_ratio": 0.01,
                  "max_ratio": 100.0},
        "fast-cubic": known,
        "carmon-accelerated": {**known, "gamma": unit / 2.0, "smoothness": 1.0 / lr},
        "carmon-cubic": {**known, "smoothness": 1.0 / lr},
        "noisy-sgd": {"lr": lr, "noise": 0.03 * eps},
        "perturbed-gd": {"lr": lr, "radius": 0.03 * unit, "grad_threshold": eps / 4.0,
                         "wait": math.ceil(15.0 / (lr * unit))},
        "saddle-ngd": {"lr": 0.3 * unit, "noise": 0.1},
        "neon": {"lr": lr, "grad_threshold": eps / 4.0, "gamma": unit, "hessian_lipschitz": 1.0},
        "agld": {"lr": lr, "sigma": 0.03 * unit, "delta": 0.01},
    }  # fmt: skip
    return settings.get(label)


# Methods that run one replica at a time have fewer of them on the staircase.
_SHARES = {"natasha2": 10, **dict.fromkeys((*CURVATURE[1:], *HESSIAN), 3)}


def staircase_cells(plan: Extent) -> list[Cell]:
    """eps^-1.5 saddles in a row, all of them met: an octopus of the size eps^(1/2).

    f(x) = eps^1.5 F(x / eps^0.5) with the octopus F has saddles of curvature -eps^0.5, values that
    fall by a multiple of eps^1.5 from one to the next, and M, rho and the whole fall below
    constants that are free of eps. So is d: a shorter way starts at a later saddle. All replicas
    start exactly there, where no method moves but by what it does against saddles; gd must stay.
    """
    cells, dim = [], max(plan.stairs)
    for label in ("gd", *(c.label for c in contenders_of_table())):
        for number in plan.stairs:
            # Epochs of natasha2 take thousands of steps between two searches.
            stairs = number // 2 if label == "natasha2" else number
            eps = staircase_eps(stairs)
            unit, options = math.sqrt(eps), staircase_settings(label, eps)
            if options is None or (label == "gd" and number > min(plan.stairs)):
                continue
            replicas = max(plan.seeds // _SHARES.get(label, 1), 1)
            if label == "carmon-cubic":
                replicas = plan.loose_seeds
            shape = {"tau": math.e * unit, "curvature": math.e * unit, "gamma": 0.5 * unit}
            cell = Cell("octopus", BY_LABEL[label].method, {"dim": dim, **shape}, options, "saddle",
                        saddle=dim - stairs, max_steps=100_000, eps=eps, gamma=0.5 * unit,
                        replicas=replicas,
                        tags={"label": label, "sweep": "staircase", "eps": eps})  # fmt: skip
            if label == "gd":
                tags = {"label": label, "sweep": "control", "noise": "none, staircase"}
                cell = dataclasses.replace(cell, max_steps=plan.control_steps, tags=tags)
            cells.append(cell)
    return cells


# ------------------------------------------------------------------------------------ the report


def sampled_cells(plan: Extent) -> list[Cell]:
    """Rivals on a finite sum, from its saddle: with batches where they take any."""
    shape = {**saddle_options(16), "num_samples": 512, "noise": 0.1}
    lr = {"lr": LR, "batch_size": 64}
    curved = {"gamma": GAMMA, "hessian_lipschitz": 12.0}
    options: dict[str, dict[str, Any]] = {
        "natasha2": {"gamma": GAMMA, "radius": 0.2, "smoothness": 1.0, "batch_size": 16},
        "noisy-sgd": {**lr, "noise": 0.02},
        "perturbed-gd": {"lr": LR, "grad_threshold": _EPS / 4.0, "wait": 800},
        "saddle-ngd": {"lr": 0.03, "batch_size": 64, "lr_decay": 0.3},
        "neon": {**lr, **curved, "grad_threshold": 0.025},
    }
    return [
        _saddle_cell(label, "sampled", chosen, problem_options=shape, replicas=plan.seeds,
                     max_steps=6000, until="sosp")
        for label, chosen in options.items()
    ]  # fmt: skip


# First-order rows, and those of them that are the paper's.
FIRST_ORDER = ("noisy-sgd", "perturbed-gd", "saddle-ngd", "neon", "agld", "asgld", "asgld-batch")
OWN = ("agld", "asgld", "asgld-batch")
_TUNED = (SADDLE, OCTOPUS, *REALISTIC[1:3])


def tuned_tasks(plan: Extent) -> list[Task]:
    """First-order rows on small problems, each with the best of its trials on other seeds."""
    tasks = []
    for family in _TUNED[: plan.tuned_families]:
        options = {**family.options, **family.small}
        subject = problem(family.problem, **options)
        for label in FIRST_ORDER:
            contender = BY_LABEL[label]
            cell = family_cell(
                family,
                contender,
                plan,
                problem_options=options,
                options=target_options(contender, subject, family.eps, family.gamma),
                until="sosp",
                replicas=plan.saddle_seeds,
                tags={"label": label, "sweep": "tuned", "family": family.name},
            )
            search = SettingSearch(cell, contender.search_ranges, plan.trials)
            tasks.append(dataclasses.replace(search.task, function=catalog.measure_tuned))
    return tasks
