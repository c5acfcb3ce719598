"""Gradients per effective draw, ours and the rivals', at equal accuracy.

The rivals are tuned with the truth at hand: of the steps 1.5^k / (highest curvature at the mode)
each takes the longest whose worst errors meet the goal (`measures.GOALS`). They start at the mode,
spread like the target; a tenth of the draws is burn-in. `blackjax, control` has blackjax's own
control variates around the mode, whose batches count twice. `posteriors, beta` takes off as much
noise as an average coordinate gets from batches.

Where a Gaussian target makes it exact, rows with `source` theory say what SGLD does (`theory`): the
longest step of the same grid whose sds are within the goal, and the least effective draws. There
the goal has no slack for Monte Carlo errors. On linear-1e4 there are only such rows: to draw as
many effective draws there as elsewhere would take SGLD some 1e9 gradients.

`gradients_per_ess` leaves burn-in out, for all. `over_rival` is ours over the best rival, whether
measured or by theory.
"""

from __future__ import annotations

import functools
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sampling_suite import jaxes, measures, ours, theory
from sampling_suite.targets import Array, Target

FACTOR = 1.5
KEYS = ("target", "gradients", "contender", "source")
# Only theory says what rivals do here.
BY_THEORY = ("linear-1e4",)
# A run is `steps_per_ess` long, times this, over all chains.
EFFECTIVE = 20_000
# The search starts here, if no theory says where it may end, and which theory speaks of whom.
FIRST, EXACT = 1, {"blackjax": "SGLD", "blackjax, control": "SGLD, control"}
LEAST_DRAWS, MOST_DRAWS = 100, 1000

# `asgld.sample` with its defaults, and with its step tuned as that of the rivals is: the longest
# of the grid, from its default on, that meets the goal.
OURS, TUNED = "asgld", "asgld, step tuned"

Runner = Callable[[float, int, int], Array]


@dataclass(frozen=True)
class Size:
    chains: int = 128
    effective: int = EFFECTIVE
    most_steps: int = 60_000


SIZES = {
    "logistic": Size(effective=10_000),
    "gaussian-1000": Size(chains=32, effective=8_000, most_steps=20_000),
}
QUICK = Size(chains=16, effective=300, most_steps=500)


def by_blackjax(target: Target, batch: int | None, size: Size, control: bool = False) -> Runner:
    sgld = jaxes.Sgld(target, batch=batch, control=control, chains=size.chains)

    def run(step: float, draws: int, thin: int) -> Array:
        sgld.restart(0)
        return sgld(step, draws, thin)

    return run


def by_posteriors(target: Target, batch: int | None, size: Size, beta: float = 0.0) -> Runner:
    """All chains as one parameter: the log posterior is the sum, so gradients are each chain's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own state classes
        from posteriors.sgmcmc import sgld

    chains, num = size.chains, target.num_data

    def log_posterior(x: torch.Tensor, indices: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if target.data is None:
            total = torch.func.vmap(target.of_torch)(x).sum()
        else:
            assert target.prior_sd is not None
            if indices is None:
                losses = torch.func.vmap(target.of_torch)(x)
            else:
                losses = torch.func.vmap(target.of_torch)(x, indices)
            total = -num * losses.sum() - x.square().sum() / (2 * target.prior_sd**2)
        return total, torch.zeros(0)

    def run(step: float, draws: int, thin: int) -> Array:
        torch.manual_seed(0)
        transform = sgld.build(log_posterior, lr=step, beta=beta)
        state = transform.init(torch.from_numpy(target.starts(chains, 0)))
        kept = np.empty((chains, draws, target.dim))
        for draw in range(draws):
            for _ in range(thin):
                indices = None if batch is None else torch.randint(num, (chains, batch))
                state, _ = transform.update(state, indices)
            kept[:, draw] = state.params.numpy()
        return kept

    return run


def gradient_noise(target: Target, batch: int) -> float:
    """Variance that a batch gives the gradient at the mode, of an average coordinate."""
    random = np.random.default_rng(0)
    assert target.num_data is not None
    indices = random.integers(target.num_data, size=(4000, batch))
    points = np.repeat(target.mode[None], len(indices), 0)
    return float(target.gradient(points, indices).var(0).mean())


@dataclass(frozen=True)
class Rival:
    make: Callable[[Target, int | None, Size], Runner]
    needs_batch: bool = False
    # Gradients of a batch that one step takes.
    cost: int = 1
    packages: tuple[str, ...] = ("blackjax", "jax")
    # Steps of its own search start where another's ended.
    after: str | None = None


def _with_beta(target: Target, batch: int | None, size: Size) -> Runner:
    assert batch is not None
    return by_posteriors(target, batch, size, beta=gradient_noise(target, batch))


RIVALS = {
    "blackjax": Rival(by_blackjax),
    "blackjax, control": Rival(
        functools.partial(by_blackjax, control=True), needs_batch=True, cost=2
    ),
    "posteriors": Rival(by_posteriors, packages=("posteriors", "torch"), after="blackjax"),
    "posteriors, beta": Rival(
        _with_beta, needs_batch=True, packages=("posteriors", "torch"), after="blackjax"
    ),
}


@dataclass(frozen=True)
class Trial:
    """One step size of a rival."""

    exponent: int
    step: float
    errors: measures.Errors | None
    draws: Array | None
    thin: int
    seconds: float

    def meets(self, goal: float) -> bool:
        return self.errors is not None and self.errors.meets(goal)


def steps_per_draw(target: Target, step: float) -> float:
    """Steps per effective draw along the flattest direction at the mode, in the long run."""
    product = min(step * float(target.curvatures[0]), 1.0)
    return (2 - product) / product


def attempt(target: Target, run: Runner, size: Size, exponent: int) -> Trial:
    """Run a rival at one step size, as long as its effective draws ask."""
    step = FACTOR**exponent / float(target.curvatures[-1])
    wanted = size.effective / size.chains * steps_per_draw(target, step)
    steps = int(min(max(wanted, LEAST_DRAWS), size.most_steps))
    draws = min(steps, MOST_DRAWS)
    thin = math.ceil(steps / draws)
    began = time.perf_counter()
    kept = run(step, draws, thin)
    seconds = time.perf_counter() - began
    kept = kept[:, draws // 10 :]
    if not np.isfinite(kept).all():
        return Trial(exponent, step, None, None, thin, seconds)
    return Trial(exponent, step, measures.errors(kept, target), kept, thin, seconds)


def search(trial: Callable[[int], Any], goal: float, first: int, lowest: int = -30) -> Any:
    """The trial of the largest exponent that meets the goal: up until one fails, or down."""
    best = trial(first)
    if best.meets(goal):
        while (longer := trial(best.exponent + 1)).meets(goal):
            best = longer
        return best
    while not best.meets(goal):
        if best.exponent <= lowest:
            return None
        best = trial(best.exponent - 1)
    return best


def measure_rival(
    target: Target, gradients: str, name: str, size: Size, first: int
) -> tuple[dict[str, Any], int]:
    """The row of a rival, and the exponent of its step."""
    rival, goal = RIVALS[name], measures.GOALS[gradients]
    batch = target.batch if gradients == "batch" else None
    run = rival.make(target, batch, size)

    def trial(exponent: int) -> Trial:
        result = attempt(target, run, size, exponent)
        worst = "not finite" if result.errors is None else f"{result.errors.excess:.3f}"
        print(
            f"  {target.name}, {gradients}, {name}: step {result.step:.3g}, worst error less "
            f"{measures.SLACK:g} MCSE {worst}, {result.seconds:.1f} s",
            flush=True,
        )
        return result

    best = search(trial, goal, first)
    row = empty_row(target, gradients, name, "measured") | {"goal": goal}
    row["versions"] = jaxes.versions(*rival.packages)
    if best is None:
        return row | {"note": "no step of the grid meets the goal"}, first
    cost = rival.cost * (1 if batch is None else batch / (target.num_data or 1))
    ess = measures.effective_draws(best.draws)
    count = best.draws.shape[0] * best.draws.shape[1] * best.thin * cost
    return row | best.errors.row() | {
        "meets": best.meets(goal), "step": best.step, "thin": best.thin, "ess": round(ess),
        "sampling_gradients": round(count), "gradients_per_ess": count / ess,
        "seconds": round(best.seconds, 2),
    }, best.exponent  # fmt: skip


def theory_rows(target: Target, gradients: str) -> list[dict[str, Any]]:
    """What SGLD does on a Gaussian target; none for others."""
    if not target.is_gaussian:
        return []
    goal = measures.GOALS[gradients]
    batch = target.batch if gradients == "batch" else None
    highest = float(target.curvatures[-1])
    rows = []
    for name, control in (("SGLD", False), ("SGLD, control", True)):
        if control and batch is None:
            continue
        for exponent in range(4, -60, -1):
            step = FACTOR**exponent / highest
            error, steps = theory.error_and_time(target, step, batch, control)
            if error <= goal:
                break
        cost = (1 + control) * (1 if batch is None else batch / (target.num_data or 1))
        rows.append(
            empty_row(target, gradients, name, "theory")
            | {
                "goal": goal, "mean_error": 0.0, "sd_error": error, "meets": True, "step": step,
                "thin": 1, "gradients_per_ess": steps * cost,
            }
        )  # fmt: skip
    return rows


def empty_row(target: Target, gradients: str, contender: str, source: str) -> dict[str, Any]:
    row = dict.fromkeys(COLUMNS, "")
    return row | {
        "target": target.name, "gradients": gradients, "contender": contender, "source": source,
    }  # fmt: skip


COLUMNS = (
    *KEYS, "goal", "mean_error", "mcse_mean", "sd_error", "mcse_sd", "meets", "step", "thin",
    "ess", "sampling_gradients", "gradients_per_ess", "all_gradients_per_ess",
    "seconds", "note", "versions",
)  # fmt: skip


def our_row(target: Target, gradients: str, size: Size, lr: float | None = None) -> dict[str, Any]:
    goal, draws = measures.GOALS[gradients], math.ceil(3 * size.effective / size.chains)
    options = {} if lr is None else {"lr": lr}
    found = ours.run(target, gradients, options, chains=size.chains, draws=draws)
    judged = measures.errors(found.draws, target)
    ess = measures.effective_draws(found.draws)
    name = OURS if lr is None else TUNED
    return empty_row(target, gradients, name, "measured") | judged.row() | {
        "goal": goal, "meets": judged.meets(goal) and not found.lost, "step": found.lr,
        "thin": found.thin, "ess": round(ess) if ess > 0 else 0,
        "sampling_gradients": round(found.sampling_gradients),
        "gradients_per_ess": found.sampling_gradients / ess,
        "all_gradients_per_ess": found.gradients / ess, "seconds": round(found.seconds, 2),
    }  # fmt: skip


def tuned_row(target: Target, gradients: str, size: Size) -> dict[str, Any]:
    """The row of the longest step that meets the goal; its measurements know nothing of it."""
    best = our_row(target, gradients, size)
    while True:
        row = our_row(target, gradients, size, FACTOR * best["step"])
        if not row["meets"] or row["gradients_per_ess"] > best["gradients_per_ess"]:
            return best | {"contender": TUNED}
        best = row


def measure(target: Target, gradients: str, book: Any, quick: bool = False) -> None:
    """Rows of theory, of ours and of the rivals, as far as the book wants them."""
    size = QUICK if quick else SIZES.get(target.name, Size())
    exact = theory_rows(target, gradients)
    for row in exact:
        if book.wants(*(row[key] for key in KEYS)):
            book.add([row])
    for name, row_of in ((OURS, our_row), (TUNED, tuned_row)):
        if book.wants(target.name, gradients, name, "measured"):
            book.add([row_of(target, gradients, size)])
    if target.name in BY_THEORY:
        return
    steps = {row["contender"]: row["step"] for row in exact}
    known = {name: _exponent(target, steps[of]) for name, of in EXACT.items() if of in steps}
    for name, rival in RIVALS.items():
        is_fit = gradients == "batch" or not rival.needs_batch
        if is_fit and book.wants(target.name, gradients, name, "measured"):
            first = known.get(name, known.get(rival.after or "", FIRST))
            row, known[name] = measure_rival(target, gradients, name, size, first)
            book.add([row])


def _exponent(target: Target, step: float) -> int:
    return round(math.log(step * float(target.curvatures[-1]), FACTOR))
