"""`asgld.sample` on a target, and how accurate it is with its defaults and other settings."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import asgld
from sampling_suite import measures
from sampling_suite.targets import Array, Target

CHAINS, DRAWS = 64, 1000
# Draws of variants that need many steps for each; their MCSE are at most 1.5 % of an sd.
FEW, SLOW = 250, ("psgld", "metric none", "metric diagonal", "no look back")
KEYS = ("target", "gradients", "variant")
# Options of `asgld.sample` by the name of a variant; the first is the default.
FULL: dict[str, dict[str, Any]] = {
    "default": {},
    "psgld": {"method": "psgld"},
    "metric none": {"metric": "none"},
    "metric diagonal": {"metric": "diagonal"},
    "no look back": {"look_back": False},
}
BATCH: dict[str, dict[str, Any]] = {
    "default": {},
    "correct both": {"correct": "both"},
    "correct noise": {"correct": "noise"},
    "correct control": {"correct": "control"},
    "correct none": {"correct": "none"},
    "psgld": {"method": "psgld"},
}
# In 1,000 dimensions draws take 8 MB per thousand, and a step 5 ms.
SIZES = {"gaussian-1000": {"chains": 32, "draws": 400}}


@dataclass(frozen=True)
class Found:
    """What a call gave: the draws of whole chains, what they cost, and what the result says."""

    draws: Array
    lost: int
    lr: float
    thin: int
    burn_in: int
    gradients: float
    sampling_gradients: float
    temperatures: Array
    findings: list[str]
    seconds: float


def run(target: Target, gradients: str, options: dict[str, Any], **sizes: Any) -> Found:
    """Sample with all data ("full") or with batches ("batch")."""
    settings: dict[str, Any] = {**sizes, **options}
    if target.data is None:
        settings["log_density"] = True
        call: Any = target.of_torch
    else:
        settings |= {"num_data": target.num_data, "prior_sd": target.prior_sd}
        if gradients == "batch":
            settings["batch_size"] = target.batch

            def call(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
                return target.of_torch(x, indices)
        else:

            def call(x: torch.Tensor) -> torch.Tensor:
                return target.of_torch(x)

    began = time.perf_counter()
    found = asgld.sample(call, torch.ones(target.dim, dtype=torch.float64), **settings)
    seconds = time.perf_counter() - began
    return Found(
        draws=np.asarray(found.whole), lost=len(found.messages), lr=found.lr,
        thin=found.settings["thin"], burn_in=found.settings["burn_in"], gradients=found.gradients,
        sampling_gradients=found.sampling_gradients, temperatures=found.temperatures,
        findings=found.findings, seconds=seconds,
    )  # fmt: skip


def variants(target: Target) -> list[tuple[str, str]]:
    """Pairs of gradients and variant."""
    pairs = [("full", name) for name in FULL]
    if target.data is not None:
        pairs += [("batch", name) for name in BATCH]
    return pairs


def measure(
    target: Target, gradients: str, variant: str, quick: bool = False, seed: int = 0
) -> dict[str, Any]:
    """One row: errors, whether they meet the goal, and what it cost."""
    options = (FULL if gradients == "full" else BATCH)[variant]
    sizes = {"chains": CHAINS, "draws": DRAWS} | SIZES.get(target.name, {})
    if variant in SLOW:
        sizes["draws"] = min(sizes["draws"], FEW)
    if quick:
        sizes = {"chains": 8, "draws": 50}
    row: dict[str, Any] = dict.fromkeys(COLUMNS, "") | {
        "target": target.name, "gradients": gradients, "variant": variant, "seed": seed,
        "goal": measures.GOALS[gradients], **sizes,
    }  # fmt: skip
    try:
        found = run(target, gradients, options, seed=seed, **sizes)
    except Exception as error:  # a row says so, and the others go on
        return row | {"meets": False, "findings": f"{type(error).__name__}: {error}"}
    row |= {
        "lost_chains": found.lost, "lr": _short(found.lr), "thin": found.thin,
        "burn_in": found.burn_in, "gradients_spent": round(found.gradients),
        "sampling_gradients": round(found.sampling_gradients),
        "seconds": round(found.seconds, 2), "findings": "; ".join(found.findings),
    }  # fmt: skip
    if len(found.draws) < 2:
        return row | {"meets": False}
    judged = measures.errors(found.draws, target)
    ess = measures.effective_draws(found.draws)
    heat = found.temperatures
    return row | judged.row() | {
        "meets": judged.meets(measures.GOALS[gradients]), "ess": round(ess),
        "sd_error_axes": measures.along_axes(found.draws, target) if target.is_gaussian else "",
        "gradients_per_ess": _short(found.sampling_gradients / ess),
        "all_gradients_per_ess": _short(found.gradients / ess),
        "temperature_low": _short(float(np.min(heat))),
        "temperature_high": _short(float(np.max(heat))),
    }  # fmt: skip


COLUMNS = (
    *KEYS, "seed", "chains", "draws", "goal", "mean_error", "mcse_mean", "sd_error", "mcse_sd",
    "meets", "sd_error_axes", "ess", "gradients_spent", "sampling_gradients", "gradients_per_ess",
    "all_gradients_per_ess", "temperature_low", "temperature_high", "lr", "thin", "burn_in",
    "lost_chains", "seconds", "findings",
)  # fmt: skip


def _short(value: float) -> float:
    return float(f"{value:.4g}")
