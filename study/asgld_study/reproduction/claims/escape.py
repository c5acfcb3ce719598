"""Theorem 3 and its remarks: how long it takes to leave a saddle."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from asgld_study.reproduction.claims.tolerances import LOG_D
from asgld_study.reproduction.ledger import Checks, at_least, at_most, between, claim
from asgld_study.reproduction.runner import Outcomes
from asgld_study.reproduction.statistics import (
    median,
    misfit,
    ratio_of_means,
    ratio_of_medians,
    scaled,
    share,
    time_slope,
)


@claim(
    "E1",
    "ASGLD, AGLD and ASG leave a saddle within O(log d) steps.",
    "Theorem 3",
    "dimension",
    note="True at alpha = 0, and where the noise is quiet. At alpha > 0 an escape along an axis "
    "feeds its own D and brakes: a power of d once the heat of the other coordinates is what "
    "has to be beaten. |u'x| >= R has no d in it at all.",
    item="Theorem 3",
)
def e1(o: Outcomes) -> Checks:
    for sweep, label in (
        ("fixed", "AGLD (0, 1)"),
        ("fixed", "ASGLD (1, 1)"),
        ("fixed", "ASG (1)"),
        ("total", "AGLD (0, 1)"),
        ("hot", "ASGLD (1, 1)"),
    ):
        for rotated in (False, True):
            found = o["dimension"].select(sweep=sweep, label=label, rotated=rotated)
            found.sort(key=lambda v: v["dim"])
            (small, large) = found[len(found) // 2 - 1], found[-1]
            grown = ratio_of_medians(large["value"], small["value"])
            allowed = math.log(large["dim"]) / math.log(small["dim"])
            where = {"fixed": "sigma 0.1", "total": "sigma d^(-1/2)", "hot": "sigma 1"}[sweep]
            yield at_most(
                f"{label}, {where}, {'rotated' if rotated else 'aligned'}: T({large['dim']}) over "
                f"T({small['dim']}), in units of log d",
                scaled(grown, 1 / allowed),
                LOG_D,
            )


@claim(
    "E2",
    "The escape time is of order 1/(log gamma + a3).",
    "Theorem 3",
    "escape",
    note="1/gamma at alpha = 0, and up to gamma^(-2/(2 - alpha)) above.",
    item="Theorem 3",
)
def e2(o: Outcomes) -> Checks:
    for label in ("AGLD (0, 1)", "ASGLD (1, 1)"):
        found = o["escape"].select(sweep="gamma", label=label)
        gammas = [v["gamma"] for v in found]
        medians = [median(v["distance"])["value"] for v in found]
        a3 = -math.log(min(gammas)) + np.geomspace(1e-3, 1e3, 400)
        worst, best = misfit(medians, 1.0 / (np.log(gammas) + a3[:, None]))
        yield at_most(
            f"{label}: largest log residual of 1/(log gamma + a3), best a3 = {a3[best]:.2f}",
            worst,
            0.25,
        )
        fit = time_slope(np.log(gammas).tolist(), [v["distance"] for v in found], log=True)
        yield at_most(
            f"{label}: exponent of gamma (smaller gamma, later escape)", fit, 0.0, core=False
        )
        predicted = np.log([v["distance_predicted"] for v in found])
        yield at_most(
            f"{label}: largest log residual of the corrected law, nothing fitted",
            float(np.abs(np.log(medians) - predicted).max()),
            0.25,
            core=False,
        )


@claim(
    "E3",
    "The escape time grows with min(alpha, beta) and no other way with the exponents.",
    "Theorem 3",
    "escape",
    note="alpha multiplies it by D^(alpha/2); beta adds (beta - alpha/2) log D inside a logarithm.",
    item="Theorem 3",
)
def e3(o: Outcomes) -> Checks:
    few, many = (
        o["escape"].one(sweep="beta", label="alpha = 0", beta=beta)["distance"]
        for beta in (0.0, 4.0)
    )
    yield between(
        "alpha = 0, so min = 0: T(beta = 4) over T(beta = 0)",
        ratio_of_medians(many, few),
        0.8,
        1.25,
    )
    a, b = (
        o["escape"].one(sweep="pair", label=label)["distance"]
        for label in ("ASGLD (1, 0.5)", "ASGLD (0.5, 1)")
    )
    yield between("min = 0.5: T(1, 0.5) over T(0.5, 1)", ratio_of_medians(a, b), 0.8, 1.25)


@claim(
    "E4",
    "The escape time does not depend on when the saddle is met.",
    "Theorem 3",
    "escape",
    note="It grows like k0^(alpha/2), and like log k0 at alpha = 0.",
    item="Theorem 3",
)
def e4(o: Outcomes) -> Checks:
    for label in ("AGLD (0, 1)", "ASGLD (1, 1)", "ASG (1)"):
        found = [v for v in o["escape"].select(sweep="k0", label=label) if v["k0"] > 0]
        fit = time_slope(
            [math.log(v["k0"]) for v in found], [v["distance"] for v in found], log=True
        )
        yield at_most(f"{label}: exponent of k0 in the escape time", fit, 0.02)


@claim(
    "E5",
    "ASG leaves saddles too.",
    "Theorem 3",
    "noise",
    note="Only with gradient noise along the escape direction, of which no assumption speaks.",
    item="Theorem 3",
)
def e5(o: Outcomes) -> Checks:
    for noise, core in (("all", True), ("stable", False), ("none", False)):
        value = o["noise"].one(label="ASG (1)", noise=noise)
        where = {"all": "everywhere", "stable": "in stable directions only", "none": "nowhere"}
        yield at_least(
            f"gradient noise {where[noise]}: share that left within {value['limit']} steps",
            share(np.isfinite(value["times"])),
            0.9,
            core=core,
        )


@claim(
    "E6",
    "The adaptive D helps to leave along several directions at once.",
    "Theorem 3, remark i",
    "directions",
    note="Near a saddle gradients are small and D is the same in all directions; alpha > 0 only "
    "slows the clock.",
    item="Theorem 3 remark i",
)
def e6(o: Outcomes) -> Checks:
    for spread in (10.0, 1.0):
        best = {}
        for alpha in (0.0, 1.0):
            tried = o["directions"].select(alpha=alpha, spread=spread)
            best[alpha] = min(tried, key=lambda v: median(v["last"])["value"])
        words = "of different curvature" if spread > 1 else "of equal curvature"
        yield at_most(
            f"eight directions {words}: time until the last has left, alpha = 1 over alpha = 0, "
            "each at its best step",
            ratio_of_medians(best[1.0]["last"], best[0.0]["last"]),
            1.0,
        )


@claim(
    "E7",
    "A small beta escapes sooner and converges slower; alpha = beta = 1 balances.",
    "Theorem 3, remark iii",
    "front",
    "region",
    note="The exponent that decides late escapes is alpha.",
    item="Theorem 3 remark iii",
)
def e7(o: Outcomes) -> Checks:
    def left(alpha: float, beta: float) -> list[float]:
        times: list[float] = o["front"].one(alpha=alpha, beta=beta)["distance"]
        return times

    def final(alpha: float, beta: float) -> dict[str, float]:
        error: dict[str, float] = o["region"].one(alpha=alpha, beta=beta)["final"]
        return error

    # At alpha = 0 a constant batch leaves a floor that no beta changes.
    for alpha in (0.5, 1.0):
        yield at_least(
            f"alpha = {alpha:g}: T(beta = 2) over T(beta = 0.5)",
            ratio_of_medians(left(alpha, 2.0), left(alpha, 0.5)),
            1.0,
        )
        yield at_most(
            f"alpha = {alpha:g}: final E|grad f|^2 at beta = 2 over that at 0.5",
            ratio_of_means(final(alpha, 2.0), final(alpha, 0.5)),
            1.0,
        )

    def is_better(value: dict[str, Any]) -> bool:
        sooner = ratio_of_medians(value["distance"], left(1.0, 1.0))
        closer = ratio_of_means(final(value["alpha"], value["beta"]), final(1.0, 1.0))
        return sooner["high"] < 1.0 and closer["high"] < 1.0

    better = sum(is_better(value) for value in o["front"].values)
    yield at_most("exponents that beat (1, 1) in escape and in final error", better, 0, core=False)
    yield at_most(
        "T(1, 0.5) over T(0.5, 1): a smaller beta shortens escapes as much as a smaller alpha",
        ratio_of_medians(left(1.0, 0.5), left(0.5, 1.0)),
        1.0,
        core=False,
    )


CLAIMS = (e1, e2, e3, e4, e5, e6, e7)
