"""The simulation study: the five sentences that the paper says of its figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asgld_study.reproduction.claims.tolerances import CONVERGED
from asgld_study.reproduction.ledger import Checks, at_least, at_most, claim
from asgld_study.reproduction.runner import Outcomes
from asgld_study.reproduction.statistics import earlier, mean, share


@claim(
    "X1",
    "SGLD and its variants suffer the convergence issue.",
    "Experiment",
    "study",
    "settings",
    note="At the smallest step and noise its plateau lies near the truth for most of the time.",
)
def x1(o: Outcomes) -> Checks:
    for number in ("1", "2", "3"):
        value = o["study"].one(number=number)
        yield at_most(_time_near(value["label"]), mean(value["tail_shares"]), CONVERGED)
    yield at_most(
        "SGLD_B, other lr and sigma: the largest such time",
        max(_times_near(o, "2")),
        CONVERGED,
        core=False,
    )


@claim(
    "X2",
    "ASGLD and its variants converge fast for beta > alpha/2.",
    "Experiment",
    "study",
    "settings",
    "spaces",
    note="Fast only in log space and with a step that is not small.",
)
def x2(o: Outcomes) -> Checks:
    for number in ("4", "5", "6", "7"):
        value = o["study"].one(number=number)
        yield at_least(_time_near(value["label"]), mean(value["tail_shares"]), CONVERGED)
    yield at_least(
        "ASGLD_B, other lr and sigma: the smallest such time",
        min(_times_near(o, "5")),
        CONVERGED,
        core=False,
    )
    value = o["spaces"].one(number="5", space="project")
    yield at_least(
        "ASGLD_B in x, projected: such time", mean(value["tail_shares"]), CONVERGED, core=False
    )


@claim(
    "X3",
    "alpha = 1, beta = 0.3 does not converge but hits the truth quickly.",
    "Experiment",
    "study",
)
def x3(o: Outcomes) -> Checks:
    hot, cool = o["study"].one(number="8"), o["study"].one(number="5")
    yield at_most(_time_near("(1, 0.3)"), mean(hot["tail_shares"]), CONVERGED)
    yield at_least(
        "share of data sets where (1, 0.3) hits before (1, 1)",
        earlier(hot["hits"], cool["hits"]),
        0.5,
    )
    yield at_least(
        "(1, 0.3): share of data sets that hit at all", share(np.isfinite(hot["hits"])), 0.75
    )


@claim(
    "X4",
    "ASG converges stably but slower than ASGLD.",
    "Experiment",
    "study",
    note="At equal batch the two are alike; the difference is that of B = 1 to B = 10.",
)
def x4(o: Outcomes) -> Checks:
    for asg, asgld, batch in (("9", "4", 1), ("9b", "5", 10)):
        mine, other = o["study"].one(number=asg), o["study"].one(number=asgld)
        yield at_least(
            f"B = {batch}: ASG's time near the truth, last tenth of the run",
            mean(mine["tail_shares"]),
            CONVERGED,
        )
        yield at_least(
            f"B = {batch}: share of data sets where ASGLD hits before ASG",
            earlier(other["hits"], mine["hits"]),
            0.5,
        )
    yield at_least(
        "ASG at B = 1 against ASGLD_B at B = 10, as the paper shows them: share where ASGLD is "
        "first",
        earlier(_hits(o, "5"), _hits(o, "9")),
        0.5,
        core=False,
    )


@claim(
    "X5",
    "AGLD converges even faster than ASGLD.",
    "Experiment",
    "study",
    note="Per iteration. It is alpha = 0 that makes it fast, and per sample it is far dearer.",
)
def x5(o: Outcomes) -> Checks:
    agld = _hits(o, "10")
    for number in ("4", "5"):
        other = o["study"].one(number=number)
        yield at_least(
            f"share of data sets where AGLD (0, 1) hits before {other['label']}",
            earlier(agld, other["hits"]),
            0.5,
        )
    yield at_least(
        "the same with alpha = 1 in both: AGLD (1, 1) before ASGLD_B",
        earlier(_hits(o, "10b"), _hits(o, "5")),
        0.5,
        core=False,
    )
    yield at_least(
        "AGLD (0, 1) before ASGLD (1, 1), B = 1, counted in single-sample gradients",
        earlier((10_000.0 * np.array(agld)).tolist(), _hits(o, "4")),
        0.5,
        core=False,
    )


CLAIMS = (x1, x2, x3, x4, x5)


def _time_near(label: str) -> str:
    return f"{label}: time near the truth, last tenth of the run"


def _times_near(o: Outcomes, number: str) -> list[float]:
    """Such times of a configuration under other settings."""
    return [mean(v["tail_shares"])["value"] for v in o["settings"].select(number=number)]


def _hits(o: Outcomes, number: str) -> Sequence[float]:
    times: Sequence[float] = o["study"].one(number=number)["hits"]
    return times
