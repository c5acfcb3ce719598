"""Lemmas 1 and 2, Theorem 1 and its two propositions: powers of D, and the three terms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from asgld_study.experiments.accumulator import POWERS
from asgld_study.reproduction.claims.tolerances import SLACK
from asgld_study.reproduction.ledger import Checks, Claim, at_most, between, claim
from asgld_study.reproduction.runner import Outcomes
from asgld_study.reproduction.statistics import scaled

TERMS = ("I1", "I2", "I3")


@claim(
    "L1",
    "E D_k^-phi is of order k^-phi.",
    "Lemma 1",
    "accumulator",
    note="Only once delta k exceeds what the gradients feed; with a tiny delta and full gradients "
    "D grows like k^(1/(1 + tau)), tau = beta - alpha/2.",
    item="Lemma 1",
)
def l1(o: Outcomes) -> Checks:
    for label, delta, core in (
        ("ASGLD (1, 1)", 0.1, True),
        ("AGLD (0, 1)", 0.1, True),
        ("AGLD (0, 1)", 1e-8, False),
    ):
        powers = o["accumulator"].one(label=label, delta=delta)["powers"]
        for phi in (0.5, 1.0, 2.0):
            yield between(
                f"{label}, delta = {delta:g}: exponent of E D^-{phi:g}",
                scaled(powers[str(phi)], -1.0),
                (1 - SLACK) * phi,
                (1 + SLACK) * phi,
                core=core,
            )


@claim(
    "L2",
    "The sum of Tr D_j^-phi over j < k is of order d k^(1 - phi) for all phi but 0 and 1.",
    "Lemma 2",
    "accumulator",
    note="For phi > 1 the sum tends to a positive constant.",
    item="Lemma 2",
)
def l2(o: Outcomes) -> Checks:
    sums = o["accumulator"].one(label="ASGLD (1, 1)", delta=0.1)["sums"]
    for phi in POWERS:
        if phi != 1.0:
            yield between(
                f"exponent of the sum of Tr D^-{phi:g}",
                sums[str(phi)],
                1 - phi - SLACK,
                1 - phi + SLACK,
            )


def _terms(labels: Sequence[str], o: Outcomes) -> Checks:
    found = [value for label in labels for value in o["terms"].select(label=label)]
    for version, core in (("published", True), ("corrected", False)):
        for value in found:
            total = np.sum([value[version][name] for name in TERMS], axis=0)
            worst = float(np.max(np.array(value["smallest"]) / total))
            yield at_most(
                f"{value['label']} on the {value['function']}, d = {value['dim']}: smallest "
                f"E|grad f|^2 over the {version} bound, at its worst k",
                worst,
                1.0,
                core=core,
            )


CLAIMS = (
    l1,
    l2,
    Claim(
        "T1",
        "ASGLD: the smallest expected squared gradient is at most I1 + I2 + I3.",
        "Theorem 1",
        ("terms",),
        partial(_terms, ("ASGLD (1, 1)", "plain descent")),
        "The denominators need (max D)^(-alpha/2) where the theorem has a trace: a factor of d or "
        "more.",
        "Theorem 1",
    ),
    *(
        Claim(
            name,
            f"{label.split()[0]}: the same with {terms}.",
            place,
            ("terms",),
            partial(_terms, (label,)),
            "As for Theorem 1.",
            place,
        )
        for name, label, terms, place in (
            ("T1a", "AGLD (0, 1)", "I1 + I3", "Proposition 2"),
            ("T1b", "ASG (1)", "I1 + I2", "Proposition 3"),
        )
    ),
)


def late(k: Sequence[float], y: Sequence[float]) -> tuple[Any, Any]:
    """The last decade of a curve."""
    steps, values = np.array(k, dtype=np.float64), np.array(y)
    is_late = steps >= steps[-1] / 10.0
    return steps[is_late], values[is_late]


def growth(value: dict[str, Any], name: str) -> float:
    """By which factor a term times k^(1/2) grows over the last decade: that of its logarithm."""
    k, term = late(value["k"], value["corrected"][name])
    return float(term[-1] * math.sqrt(k[-1]) / (term[0] * math.sqrt(k[0])))
