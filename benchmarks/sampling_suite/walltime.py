"""Wall time of 1,000 chains: `asgld.sample` and blackjax's SGLD, in turn, on two cores.

Both are as accurate: blackjax's step is the one that `rivals` found, shortened by the factor of its
grid until these draws meet the goal too, since a thousand chains see errors that fewer could not.
What is timed of ours is the call with its defaults but for the check of the step (`whole`), and by
the difference of two calls, one with four times the draws of the other, the draws alone (`draws`).
Of blackjax it is a compiled call that goes on from where the last ended; compiling is timed apart
(`compile_s`), and tuning costs it nothing. Effective draws are arviz's bulk ESS, the least over
coordinates, of the same draws. `over_blackjax` is ours over blackjax's, of medians.

`load` is the highest load average of a minute before a round: what this benchmark itself keeps busy
is at most 2. `spread` is the longest time over the median: far from 1, others took the cores.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

from sampling_suite import jaxes, measures, ours
from sampling_suite.rivals import FACTOR
from sampling_suite.targets import Array, Target

TARGETS = ("linear", "logistic", "banana")
KEYS = ("target", "contender", "part")
CHAINS, ROUNDS = 1000, 5
# Steps of the shorter one of our calls, and of blackjax's; its draws per effective draw.
STEPS, THEIR_STEPS, PER_EFFECTIVE = 250, 3000, 6
LEAST_DRAWS = 25
# Rounds and blackjax's steps where a step takes some ten milliseconds.
SLOW = {"logistic": (3, 1500)}


class Theirs:
    """blackjax at a step, in calls of the same length."""

    def __init__(self, target: Target, step: float, chains: int, most: int) -> None:
        per_draw = (2 - step * target.curvatures[0]) / (step * target.curvatures[0])
        self.step, self.thin = step, max(1, int(per_draw / PER_EFFECTIVE))
        self.draws = max(most // self.thin, LEAST_DRAWS)
        self.sgld = jaxes.Sgld(target, chains=chains)
        self.compile_and_first_s = self.time()[0]  # its draws are burn-in

    def time(self) -> tuple[float, Array]:
        began = time.perf_counter()
        draws = self.sgld(self.step, self.draws, self.thin)
        return time.perf_counter() - began, draws


def accurate(target: Target, step: float, chains: int, most: int) -> Theirs:
    """blackjax at the longest step of the grid, from this one down, that meets the goal."""
    while True:
        theirs = Theirs(target, step, chains, most)
        if measures.errors(theirs.time()[1], target).meets(measures.GOALS["full"]):
            return theirs
        step /= FACTOR


def measure(target: Target, step: float, quick: bool = False) -> list[dict[str, Any]]:
    """Rows of both, measured in turn; `step` is blackjax's."""
    chains, rounds, most = (50, 2, 200) if quick else (CHAINS, ROUNDS, THEIR_STEPS)
    if target.name in SLOW and not quick:
        rounds, most = SLOW[target.name]
    sizes = {"chains": chains, "step_check": False}
    thin = ours.run(target, "full", {}, draws=4, **sizes).thin
    draws = max(STEPS // thin, LEAST_DRAWS)
    theirs = accurate(target, step, chains, most)
    times: dict[str, list[float]] = {"whole": [], "draws": [], "blackjax": []}
    loads = []
    for _ in range(rounds):
        loads.append(os.getloadavg()[0])
        long = ours.run(target, "full", {}, draws=4 * draws, **sizes)
        seconds, their_draws = theirs.time()
        brief = ours.run(target, "full", {}, draws=draws, **sizes)
        times["whole"].append(long.seconds)
        times["draws"].append(long.seconds - brief.seconds)
        times["blackjax"].append(seconds)
    our_ess, their_ess = map(measures.effective_draws, (long.draws, their_draws))
    of_ours, of_theirs = (measures.errors(found, target) for found in (long.draws, their_draws))

    rows = []
    for name, part, judged, done, ess in (
        ("asgld", "whole", of_ours, long.burn_in + 4 * draws * thin, our_ess),
        ("asgld", "draws", of_ours, 3 * draws * thin, 0.75 * our_ess),
        ("blackjax", "draws", of_theirs, theirs.draws * theirs.thin, their_ess),
    ):
        is_ours = name == "asgld"
        seconds_of = times[part if is_ours else name]
        median = statistics.median(seconds_of)
        rows.append(
            {
                "target": target.name, "contender": name, "part": part, "chains": chains,
                **judged.row(), "meets": judged.meets(measures.GOALS["full"]),
                "steps": done, "ess": round(ess), "min_s": round(min(seconds_of), 4),
                "median_s": round(median, 4), "max_s": round(max(seconds_of), 4),
                "spread": _short(max(seconds_of) / median), "load": round(max(loads), 2),
                "us_per_step": _short(1e6 * median / done),
                "s_per_1000_ess": _short(1e3 * median / ess),
                "compile_s": ""
                if is_ours
                else round(max(theirs.compile_and_first_s - median, 0.0), 2),
                "lr": _short(long.lr if is_ours else theirs.step),
                "versions": "" if is_ours else jaxes.versions("blackjax", "jax"),
            }
        )  # fmt: skip
    base = rows[-1]
    for row in rows:
        row["step_over_blackjax"] = _short(row["us_per_step"] / base["us_per_step"])
        row["over_blackjax"] = _short(row["s_per_1000_ess"] / base["s_per_1000_ess"])
    return rows


def _short(value: float) -> float:
    return float(f"{value:.4g}")
