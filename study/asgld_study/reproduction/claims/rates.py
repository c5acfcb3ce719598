"""Theorem 2, the batch theorem and Proposition 6: how fast the squared gradient falls, and where.

Most claims are a list of cases, (method, alpha, beta) and then theta and function if they are not 0
and "waves", each of which must fall at least as fast as published.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from asgld_study.reproduction.claims.bounds import TERMS, growth, late
from asgld_study.reproduction.claims.minima import eps_power
from asgld_study.reproduction.claims.tolerances import LOGS, SLACK
from asgld_study.reproduction.ledger import Checks, Claim, at_least, at_most, between, claim
from asgld_study.reproduction.runner import Outcomes
from asgld_study.reproduction.statistics import scaled

Case = tuple[Any, ...]


def _rate(cases: Sequence[Case], o: Outcomes) -> Checks:
    for name, alpha, beta, *rest in cases:
        theta = rest[0] if rest else 0.0
        function = rest[1] if len(rest) > 1 else "waves"
        value = o["exponents"].one(
            method=name, alpha=alpha, beta=beta, theta=theta, function=function
        )
        yield at_least(
            f"{value['label']}: exponent of E|grad f|^2 over the last decade",
            value["last"],
            value["published"] - min(SLACK, value["published"] / 2),
        )


def _slow_rate(method: str, o: Outcomes) -> Checks:
    """alpha = 2: the weighted average falls at least like 1/log k.

    On the flat function the clock, log k, is too short at any k to leave the start.
    """
    value = o["exponents"].one(method=method, alpha=2, beta=1.5, function="waves")
    yield at_least(
        f"{value['label']}: exponent of log k in the weighted average", value["per_log"], 0.8
    )


def _theorem_2(name: str, case: int, says: str, *cases: Case, note: str = "") -> Claim:
    check = partial(_rate, cases)
    return Claim(
        name, says, "Theorem 2", ("exponents",), check, note, item=f"Theorem 2 case {case}"
    )


@claim(
    "R1",
    "alpha = 2, beta > 1: 1/log k.",
    "Theorem 2",
    "exponents",
    item="Theorem 2 case 1",
)
def r1(o: Outcomes) -> Checks:
    yield from _slow_rate("asgld", o)


r2 = _theorem_2(
    "R2",
    2,
    "1 < alpha < 2, beta >= 1: k^-(beta - alpha/2).",
    *(("asgld", alpha, beta) for alpha, beta in ((1.5, 1.5), (1.5, 2), (1.75, 2))),
    *(("asgld", alpha, beta, 0, "flat") for alpha, beta in ((1.5, 2), (1.5, 3), (1.75, 2))),
    note="k^-(1 - alpha/2), times log k at beta = 1: the slowest of the three terms decides.",
)
r3 = _theorem_2(
    "R3",
    2,
    "1 < alpha < 2, beta < 1: k^-(1 - alpha/2).",
    ("asgld", 1.25, 0.75),
    note="k^-(beta - alpha/2).",
)
r4 = _theorem_2(
    "R4",
    3,
    "alpha = 1, beta > 1: k^-1/2 up to logs.",
    ("asgld", 1, 2),
    ("asgld", 1, 2, 0, "flat"),
)


@claim(
    "R5",
    "alpha = 1, 1/2 < beta <= 1: k^-(beta - 1/2).",
    "Theorem 2",
    "exponents",
    "terms",
    note="At beta = 1 the bound carries a log k.",
    item="Theorem 2 case 3",
)
def r5(o: Outcomes) -> Checks:
    yield from _rate([("asgld", 1, 0.75), ("asgld", 1, 1), ("asgld", 1, 1, 0, "flat")], o)
    value = o["terms"].one(label="ASGLD (1, 1)", dim=10)
    yield at_most(
        "(1, 1): growth of I3 k^(1/2) over the last decade", growth(value, "I3"), 1.1, core=False
    )


r6 = _theorem_2(
    "R6",
    4,
    "0 < alpha < 1, beta > alpha: k^-(alpha/2).",
    ("asgld", 0.5, 1),
    ("asgld", 0.5, 1, 0, "flat"),
)
r7 = _theorem_2(
    "R7",
    4,
    "0 < alpha < 1, alpha/2 < beta <= alpha: k^-(beta - alpha/2).",
    ("asgld", 0.5, 0.5),
    ("asgld", 0.5, 0.35),
)


@claim(
    "R8",
    "ASGLD converges exactly for alpha in (0, 2] and beta > alpha/2.",
    "Theorem 2, Figure 1",
    "region",
    item="Theorem 2",
)
def r8(o: Outcomes) -> Checks:
    falls, stays = [], []
    for value in o["region"].values:
        if value["region"] == "converges":
            falls.append(value["last"]["low"] > 0.03)
        else:
            stays.append(value["last"]["value"] < SLACK)
    yield at_least(
        "share of points inside the region where the gradient falls", float(np.mean(falls)), 0.95
    )
    yield at_least("share of points outside where it does not", float(np.mean(stays)), 0.95)


@claim(
    "R9",
    "SGLD stays in a neighborhood given by I2 = M lr C / B and I3 = 2 M sigma^2.",
    "Theorem 2, remark i",
    "plateau",
    note="The floor is there; both formulas lack a factor d.",
    item="Theorem 2 remark i",
)
def r9(o: Outcomes) -> Checks:
    for value in o["plateau"].values:
        where = f"d = {value['dim']}, B = {value['batch']}"
        yield between(
            f"{where}: mean |grad f|^2 of the last half over that before", value["ratio"], 0.9, 1.1
        )
        floor = value["I2"] + value["I3"]
        for words, formula in (("I2 + I3", floor), ("d (I2 + I3)", value["dim"] * floor)):
            yield at_most(
                f"{where}: floor over {words}", scaled(value["late"], 1 / formula), 1.0, core=False
            )


@claim(
    "R10",
    "At alpha = beta = 1 all three terms are of order k^-1/2.",
    "section 4.1",
    "terms",
    note="I2 and I3 carry a log k.",
)
def r10(o: Outcomes) -> Checks:
    value = o["terms"].one(label="ASGLD (1, 1)", dim=10)
    for name in TERMS:
        k, term = late(value["k"], value["corrected"][name])
        exponent = -float(np.polyfit(np.log(k), np.log(term), 1)[0])
        yield between(f"exponent of {name} over the last decade", exponent, 0.35, 0.65)
    for name in ("I2", "I3"):
        yield at_most(
            f"growth of {name} k^(1/2) over the last decade", growth(value, name), 1.1, core=False
        )


@claim(
    "B1",
    "alpha = 0 and batches of k^theta: k^-min(1, theta, beta).",
    "batch theorem",
    "exponents",
    item="Batch theorem",
)
def b1(o: Outcomes) -> Checks:
    yield from _rate([("asgld", 0, 1, theta) for theta in (0.25, 0.5, 1)], o)


@claim(
    "B2",
    "Batches of k: eps^-4 at (1, 1) and eps^-2 at (0, 1).",
    "batch theorem",
    "minima",
    note="These are iterations. In samples (0, 1) costs eps^-4, no less than a constant batch.",
    item="Batch theorem",
)
def b2(o: Outcomes) -> Checks:
    for label, power in (("ASGLD (1, 1), B = k", 4.0), ("ASGLD (0, 1), B = k", 2.0)):
        yield at_most(f"{label}: exponent of 1/eps in the steps", eps_power(o, label), power * LOGS)
    yield at_most(
        "ASGLD (0, 1), B = k: exponent of 1/eps in the samples",
        eps_power(o, "ASGLD (0, 1), B = k", samples=True),
        2.0 * LOGS,
        core=False,
    )


@claim(
    "P1",
    "AGLD, alpha = 2, beta > 1: 1/log k.",
    "Proposition 6",
    "exponents",
    item="Proposition 6",
)
def p1(o: Outcomes) -> Checks:
    yield from _slow_rate("agld", o)


@claim(
    "P2",
    "AGLD, 0 < alpha < 2: k^-(1 - alpha/2) for beta >= 1, k^-(beta - alpha/2) below.",
    "Proposition 6",
    "exponents",
    item="Proposition 6",
)
def p2(o: Outcomes) -> Checks:
    yield from _rate([("agld", 1, beta) for beta in (0.75, 1, 2)], o)
    yield from _rate([("agld", 1, beta, 0, "flat") for beta in (1, 2)], o)


@claim(
    "P3",
    "AGLD, alpha = 0: k^-min(1, beta), so eps^-2 at (0, 1).",
    "Proposition 6",
    "exponents",
    "minima",
    "delta",
    note="Not while delta is too small to feed D: then k^-1/2 at (0, 1), eps^-4.",
    item="Proposition 6",
)
def p3(o: Outcomes) -> Checks:
    yield from _rate([("agld", 0, beta) for beta in (0.5, 1, 2)], o)
    yield from _rate([("agld", 0, 2, 0, "flat")], o)
    yield at_most(
        "(0, 1): exponent of 1/eps in the steps to a minimum",
        eps_power(o, "AGLD (0, 1)"),
        2.0 * LOGS,
    )
    tiny = o["delta"].one(alpha=0.0, beta=1.0, delta=1e-8)
    yield at_least(
        "(0, 1) with delta = 1e-8: exponent of E|grad f|^2", tiny["last"], 0.9, core=False
    )


@claim(
    "P4",
    "ASG: k^-(min(1, alpha) - alpha/2), so eps^-4 at alpha = 1.",
    "Proposition 6",
    "exponents",
    "minima",
    "terms",
    note="At alpha = 1 the bound carries a log k.",
    item="Proposition 6",
)
def p4(o: Outcomes) -> Checks:
    yield from _rate([("asg", alpha, math.inf) for alpha in (0.5, 1, 1.5)], o)
    yield at_most(
        "exponent of 1/eps in the steps to a minimum", eps_power(o, "ASG (1)"), 4.0 * LOGS
    )
    value = o["terms"].one(label="ASG (1)", dim=10)
    yield at_most(
        "alpha = 1: growth of I2 k^(1/2) over the last decade",
        growth(value, "I2"),
        1.1,
        core=False,
    )


CLAIMS = (r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, b1, b2, p1, p2, p3, p4)
