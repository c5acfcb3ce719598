"""What draws are worth: errors of means and sds, their Monte Carlo errors, effective draws.

Draws are (chains, draws, d). Chains are independent, so Monte Carlo errors (MCSE) come from how far
chains differ, which asks nothing of the draws within a chain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from asgld.sampling.diagnosis import ess_bulk
from sampling_suite.targets import Array, Target

# Worst error of a mean, in sds, and of an sd, as a share, that is allowed: full gradients, batches.
GOALS = {"full": 0.05, "batch": 0.10}
# An error that this many MCSE explain is no miss.
SLACK = 3.0


@dataclass(frozen=True)
class Errors:
    """Errors of one set of draws, each of d numbers: of means in sds, of sds as shares."""

    mean: Array
    sd: Array
    mcse_mean: Array
    mcse_sd: Array

    @property
    def excess(self) -> float:
        """The worst error beyond what MCSE explain; inf if draws are not finite."""
        beyond = [
            np.abs(self.mean) - SLACK * self.mcse_mean,
            np.abs(self.sd) - SLACK * self.mcse_sd,
        ]
        worst = float(np.max(beyond))
        return worst if math.isfinite(worst) else math.inf

    def meets(self, goal: float) -> bool:
        return self.excess <= goal

    def row(self) -> dict[str, float]:
        at_mean, at_sd = int(np.argmax(np.abs(self.mean))), int(np.argmax(np.abs(self.sd)))
        return {
            "mean_error": _round(abs(self.mean[at_mean])),
            "mcse_mean": _round(self.mcse_mean[at_mean]),
            "sd_error": _round(abs(self.sd[at_sd])),
            "mcse_sd": _round(self.mcse_sd[at_sd]),
        }


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def errors(draws: Array, target: Target) -> Errors:
    """Errors of the draws' means and sds, with the truth's own doubt in the MCSE."""
    chains = len(draws)
    with np.errstate(all="ignore"):
        scaled = (draws - target.mean) / target.sd
        of_chains = scaled.mean(1)
        mean = of_chains.mean(0)
        squares = ((scaled - mean) ** 2).mean(1)
        sd = np.sqrt(squares.mean(0))
        mcse_mean = of_chains.std(0, ddof=1) / math.sqrt(chains)
        mcse_sd = squares.std(0, ddof=1) / math.sqrt(chains) / (2 * sd)
    if target.doubt is not None:
        mcse_mean = np.hypot(mcse_mean, target.doubt[0])
        mcse_sd = np.hypot(mcse_sd, target.doubt[1])
    return Errors(mean, sd - 1, mcse_mean, mcse_sd)


def along_axes(draws: Array, target: Target) -> float:
    """The worst error of an sd along the principal axes of a Gaussian target, as a share."""
    values, axes = np.linalg.eigh(target.covariance)
    flat = (draws.reshape(-1, target.dim) - target.mean) @ axes
    return _round(float(np.abs(flat.std(0) / np.sqrt(values) - 1).max()))


def effective_draws(draws: Array) -> float:
    """The least bulk ESS over coordinates; a test compares `ess_bulk` with arviz."""
    return float(ess_bulk(draws).min())
