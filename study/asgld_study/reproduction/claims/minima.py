"""Theorem 4: steps from a saddle to a minimum, against the accuracy and against d."""

from __future__ import annotations

import math

from asgld_study.experiments import minima
from asgld_study.reproduction.claims.tolerances import LOG_D, LOGS
from asgld_study.reproduction.ledger import Checks, at_most, claim
from asgld_study.reproduction.runner import Outcomes
from asgld_study.reproduction.statistics import Estimate, crossing_slope


@claim(
    "E8",
    "To a minimum: log d / eps^4 (ASGLD, ASG), log d / eps^2 (AGLD, and ASGLD with B = k).",
    "Theorem 4",
    "minima",
    note="At fixed noise per coordinate the steps grow like d at alpha = 0 and like d^2 at "
    "alpha = 1; free of d if sigma^2 and C shrink like 1/d.",
    item="Theorem 4",
)
def e8(o: Outcomes) -> Checks:
    for label, power in (
        ("AGLD (0, 1)", 2.0),
        ("ASGLD (1, 1)", 4.0),
        ("ASG (1)", 4.0),
        ("ASGLD (0, 1), B = k", 2.0),
    ):
        yield at_most(f"{label}: exponent of 1/eps", eps_power(o, label), power * LOGS)
        for noise, words, core in (
            ("fixed", "per coordinate", True),
            ("total", "in total", False),
        ):
            small, large, grown = dim_growth(o, label, noise)
            yield at_most(
                f"{label}, noise fixed {words}: T({large}) over T({small}), in units of log d",
                grown,
                LOG_D,
                core=core,
            )


CLAIMS = (e8,)


def eps_power(o: Outcomes, label: str, *, samples: bool = False) -> Estimate:
    """From the three smallest eps, where the escape itself no longer counts."""
    value = o["minima"].one(label=label, dim=4, noise="fixed")
    chosen, rows = minima.accuracies(label)[-3:], []
    for eps in chosen:
        row = [value["steps"][str(eps)], *value["bootstraps"][str(eps)]]
        rows.append([minima.samples_of(t, value["theta"]) for t in row] if samples else row)
    return crossing_slope([-math.log(eps) for eps in chosen], rows)


def dim_growth(o: Outcomes, label: str, noise: str) -> tuple[int, int, Estimate]:
    """From the middle dimension to the largest: both, and the ratio of times over log d."""
    found = sorted(o["minima"].select(label=label, noise=noise), key=lambda v: v["dim"])
    small, large = found[len(found) // 2 - 1], found[-1]
    key = str(minima.COMPARED[minima.accuracies(label)])
    rows = [[v["steps"][key], *v["bootstraps"][key]] for v in (small, large)]
    power = crossing_slope([math.log(v["dim"]) for v in (small, large)], rows)
    dims = large["dim"] / small["dim"]
    allowed = math.log(large["dim"]) / math.log(small["dim"])
    grown = {name: dims**x / allowed for name, x in power.items()}
    return small["dim"], large["dim"], grown
