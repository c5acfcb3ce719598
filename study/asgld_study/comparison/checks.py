"""What theory predicts of the problems of Table 1, and whether it was found."""

from __future__ import annotations

import math
from collections.abc import Sequence

from asgld_study.comparison.analysis import (
    Row,
    control_rows,
    dimension_rows,
    eps_slope,
    in_words,
    late_rows,
    octopus_rows,
    predicted_slope,
    slope_in_words,
)
from asgld_study.experiments import escape
from asgld_study.experiments.table1 import Study, contenders_of_table


def checks(study: Study) -> list[Row]:
    """What theory predicts of these problems, and whether it was found."""
    expected = predicted_slope()
    slopes = {(row["method"], row["noise"], row["rotated"]): row for row in dimension_rows(study)}
    rows = []
    for label in ("perturbed-gd", "agld"):
        row = slopes[label, "equal", True]
        off = abs(row["slope"] / expected - 1.0)
        rows.append(
            _check(
                f"{label}: steps per ln d within 20 % of 1/(2 ln(1 + lr gamma))",
                f"{expected:.2f}",
                in_words(row["slope"], row["low"], row["high"]),
                off <= 0.2,
            )
        )
    for row in late_rows(study):
        if row["alpha"] in (0.0, 1.0):
            rows.append(
                _check(
                    f"alpha = {row['alpha']:g}: exponent of k0 in the escape time",
                    f"{row['law']:.2f}, up to logs",
                    in_words(row["exponent"], row["low"], row["high"]),
                    abs(row["exponent"] - row["law"]) <= 0.15,
                )
            )
    for label, power in (("gd", 2.0), ("cubic-newton", 1.5)):
        slope = eps_slope(study, label, "chain")
        rows.append(
            _check(
                f"{label}: exponent of 1/eps on the worst-case chain",
                f"{power:g} as eps falls",
                slope_in_words(slope),
                abs(slope.value - power) <= 0.25,
            )
        )
    rows += [_octopus_check(study), _passage_check(study), _arrival_check(study)]
    for row in control_rows(study):
        must_stay = row["noise"] == "none" or "aligned" in row["noise"] or "all 0" in row["noise"]
        if must_stay:
            rows.append(
                _check(
                    f"{row['method']}, noise: {row['noise']}: stays at an exact saddle",
                    "share that left 0",
                    f"{row['left']:.2f}",
                    row["left"] == 0.0,
                )
            )
    return rows


def _octopus_check(study: Study) -> Row:
    """Gradient descent needs a factor more per saddle; the others a summand more."""
    by_label = {row["method"]: row for row in octopus_rows(study)}

    def times(label: str) -> list[float]:
        return [v for k, v in by_label[label].items() if k.startswith("d=")]

    plain, kicked = times("gd"), times("perturbed-gd")
    factor = _last_factor(plain)
    is_separated = (math.isinf(plain[-1]) or plain[-1] > 5.0 * kicked[-1]) and math.isfinite(
        kicked[-1]
    )
    return _check(
        "octopus: gd needs exponentially many steps in d, perturbed-gd does not",
        "gd grows by a factor per saddle",
        f"gd {_list(plain)} (factor {factor:.1f} per saddle); perturbed-gd {_list(kicked)}",
        is_separated,
    )


def _passage_check(study: Study) -> Row:
    """All but those that have neither noise nor curvature get past every saddle of the octopus."""
    # scipy's method stops at saddles: that it does not look for curvature there is known.
    able = {*escape.NOISY, *escape.CURVATURE, *escape.HESSIAN} - {"trust-krylov"}
    shares = {row["method"]: row["share_past_saddles"] for row in octopus_rows(study)}
    held = [name for name in shares if name in able and not shares[name] >= 0.5]
    return _check(
        "octopus: every method with noise or curvature has all saddles behind it",
        "held up: none",
        f"held up: {', '.join(held) or 'none'} of {len(able & set(shares))}",
        not held,
    )


def _arrival_check(study: Study) -> Row:
    """With one of its two settings most replicas of every row get away from the saddle."""
    shares: dict[str, float] = {}
    for c in contenders_of_table():
        for r in study.select("standard", family="saddle", label=c.label):
            shares[c.label] = max(r.share("sosp"), shares.get(c.label, 0.0))
    late = [name for name, share in shares.items() if not share > 0.5]
    return _check(
        "saddle: every row of the table reaches a second-order point, tuned or by theory",
        "not there: none",
        f"not there: {', '.join(late) or 'none'} of {len(shares)}",
        not late,
    )


def _last_factor(times: Sequence[float]) -> float:
    finite = [t for t in times if math.isfinite(t)]
    return finite[-1] / finite[-2] if len(finite) >= 2 else math.nan


def _list(times: Sequence[float]) -> str:
    return ", ".join("never" if math.isinf(t) else f"{t:.0f}" for t in times)


def _check(what: str, expected: str, measured: str, holds: bool) -> Row:
    return {"check": what, "expected": expected, "measured": measured, "holds": bool(holds)}
