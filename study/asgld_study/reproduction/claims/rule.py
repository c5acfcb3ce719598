"""Sections 1 and 3: what the update rule is, and what it is said to be good for."""

from __future__ import annotations

from typing import Any

import numpy as np

from asgld_study.experiments import features
from asgld_study.reproduction.claims.tolerances import SLACK
from asgld_study.reproduction.ledger import Checks, at_least, at_most, claim
from asgld_study.reproduction.runner import Outcomes
from asgld_study.reproduction.statistics import mean, mean_difference, ratio_of_medians


@claim(
    "S1",
    "alpha = beta = 0 with sigma^2 = 1/u is SGLD.",
    "section 3",
    "identities",
    item="Special cases",
)
def s1(o: Outcomes) -> Checks:
    yield at_most("largest difference to a hand-written SGLD, 200 steps", _cases(o)["sgld"], 1e-9)


@claim(
    "S2",
    "beta to infinity gives ASG at alpha = 1 and SGD at alpha = 0.",
    "sections 1, 3",
    "identities",
    note="beta = infinity as sigma = 0 does; a large finite beta only where D > 1, while for D < 1 "
    "the noise grows without bound.",
    item="Special cases",
)
def s2(o: Outcomes) -> Checks:
    cases = _cases(o)
    yield at_most("beta = inf, alpha = 1: largest difference to ASG", cases["asg"], 0.0)
    yield at_most("beta = inf, alpha = 0: largest difference to torch's SGD", cases["sgd"], 1e-12)
    for d_init in (4, 0.25):
        gap = cases["limits"][f"beta=64, d_init={d_init:g}"]
        yield at_most(
            f"beta = 64, D from {d_init:g}: largest difference to ASG", gap, 1e-3, core=False
        )


@claim(
    "S3",
    "ASG is AGLD with beta = alpha, the sampling noise taking the place of e.",
    "section 3",
    "identities",
    note="With sigma^2 = lr C / 2 and Gaussian noise one step has the same law. Whole runs differ, "
    "because noisy gradients also feed D, together with the very noise that moved x; raising "
    "delta by C narrows the gap and does not close it.",
    item="Special cases",
)
def s3(o: Outcomes) -> Checks:
    for matched, steps, core in (
        ("sigma", 1, True),
        ("sigma", 100, False),
        ("sigma and delta", 100, False),
    ):
        found = o["identities"].one(matched=matched, steps=steps)
        yield at_most(
            f"distance of the two distributions after {steps} steps, {matched} matched "
            "(critical value at 1 %)",
            found["distance"],
            found["critical"],
            core=core,
        )


@claim(
    "S4",
    "No temperature needs to be specified.",
    "section 1",
    "settings",
    "starts",
    "region",
    note="sigma, delta and d_init are the temperature schedule, T = sigma^2 D^-(beta - alpha/2).",
)
def s4(o: Outcomes) -> Checks:
    quiet, loud = (
        o["settings"].one(number="5", lr=0.1, sigma=sigma)["final"] for sigma in (0.03, 0.3)
    )
    yield at_most(
        "final error at sigma = 0.3 over that at 0.03", ratio_of_medians(loud, quiet), 2.0
    )
    small, one = (o["starts"].one(number="5", lr=0.1, d_init=d)["final"] for d in (1e-8, 1.0))
    yield at_most(
        "final error with D from 1e-8 over that from 1", ratio_of_medians(small, one), 2.0
    )
    yield at_least("exponent at a constant step, (1, 1)", _exponent(o, 1.0, 1.0), 0.2, core=False)


@claim("S5", "A constant step converges where SGLD does not.", "section 3", "region")
def s5(o: Outcomes) -> Checks:
    yield at_most("exponent of SGLD over the last decade", _exponent(o, 0.0, 0.0), SLACK)
    yield at_least("exponent of ASGLD (1, 1)", _exponent(o, 1.0, 1.0), 0.2)


@claim(
    "S6",
    "Infrequent features get larger steps, which is more efficient in high dimension.",
    "sections 1, 3",
    "features",
)
def s6(o: Outcomes) -> Checks:
    gains = {}
    for zipf in (True, False):
        best = {label: _tuned_features(o, label, zipf) for label in features.KINDS}
        for mine, plain in (("ASGLD (1, 1)", "SGLD"), ("ASG (1)", "SGD")):
            gains[mine, zipf] = np.log(best[mine]) - np.log(best[plain])
            if zipf:
                yield at_most(
                    f"log objective of {mine} less that of {plain}, both tuned, rare features",
                    mean(gains[mine, zipf].tolist()),
                    0.0,
                )
    yield at_most(
        "the same gap of ASGLD, rare features less equally frequent ones",
        mean_difference(gains["ASGLD (1, 1)", True], gains["ASGLD (1, 1)", False]),
        0.0,
        core=False,
    )


@claim(
    "S7",
    "The rule works dimension by dimension and can be distributed.",
    "section 3",
    "identities",
)
def s7(o: Outcomes) -> Checks:
    gaps = _cases(o)["shards"]
    yield at_most("one tensor or two halves: largest difference of 200 steps", gaps["steps"], 0.0)
    yield at_most("noise of a half against its place in the whole", gaps["noise"], 0.0)


CLAIMS = (s1, s2, s3, s4, s5, s6, s7)


def _cases(o: Outcomes) -> dict[str, Any]:
    (found,) = (v for v in o["identities"].values if "shards" in v)
    return found


def _exponent(o: Outcomes, alpha: float, beta: float) -> dict[str, float]:
    exponent: dict[str, float] = o["region"].one(alpha=alpha, beta=beta)["last"]
    return exponent


def _tuned_features(o: Outcomes, label: str, zipf: bool) -> Any:
    """Final objectives at the lr that was best on other data."""
    tried = o["features"].select(label=label, zipf=zipf, seed=1)
    lr = min(tried, key=lambda v: float(np.mean(v["final"])))["lr"]
    return np.array(o["features"].one(label=label, zipf=zipf, seed=0, lr=lr)["final"])
