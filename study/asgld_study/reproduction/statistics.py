"""Statistics of results, each a number with a 95 % interval as {"value", "low", "high"}."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from asgld_study.experiments.chains import mean
from asgld_study.sweep.survival import fit_slope

__all__ = [
    "crossing_slope", "earlier", "mean", "mean_difference", "median", "misfit", "ratio_of_means",
    "ratio_of_medians", "scaled", "share", "time_slope",
]  # fmt: skip

FloatArray = npt.NDArray[np.float64]
Estimate = dict[str, float]
_BOOTSTRAPS = 1000


def share(is_so: npt.ArrayLike) -> Estimate:
    """Part of a sample that is so, with Wilson's interval."""
    sample = np.asarray(is_so, dtype=np.float64)
    n, p, z = len(sample), float(sample.mean()), 1.96
    center = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return {"value": p, "low": max(center - half, 0.0), "high": min(center + half, 1.0)}


def earlier(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """In which part of the pairs is the first time the earlier one? Ties count half.

    A time of infinity is later than all others. The interval is a bootstrap over pairs.
    """
    a, b = np.asarray(first), np.asarray(second)
    score = np.where(a < b, 1.0, np.where(a == b, 0.5, 0.0))
    return _bootstrap(lambda draw: score[draw].mean(axis=1), len(score))


def ratio_of_medians(top: Sequence[float], bottom: Sequence[float]) -> Estimate:
    """Median over median, from independent samples."""
    a, b = np.asarray(top, dtype=np.float64), np.asarray(bottom, dtype=np.float64)
    rng = np.random.default_rng(0)
    tops = _medians(a[rng.integers(len(a), size=(_BOOTSTRAPS, len(a)))])
    bottoms = _medians(b[rng.integers(len(b), size=(_BOOTSTRAPS, len(b)))])
    return _interval(_over(_medians(a[None]), _medians(b[None]))[0], _over(tops, bottoms))


def ratio_of_means(top: Estimate, bottom: Estimate) -> Estimate:
    """Of two independent means, by the normal law of their logs."""
    parts = [(e["high"] - e["low"]) / (2.0 * e["value"]) for e in (top, bottom)]
    ratio, spread = top["value"] / bottom["value"], math.exp(math.hypot(*parts))
    return {"value": ratio, "low": ratio / spread, "high": ratio * spread}


def median(values: Sequence[float]) -> Estimate:
    """Median; infinite where half or more are."""
    sample = np.asarray(values, dtype=np.float64)
    return _bootstrap(lambda draw: _medians(sample[draw]), len(sample))


def mean_difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Mean of paired differences, by the normal law."""
    return mean(np.asarray(first) - np.asarray(second))


def scaled(of: Estimate, by: float) -> Estimate:
    """A multiple of a number; a negative one turns its interval round."""
    ends = (by * of["low"], by * of["high"])
    return {"value": by * of["value"], "low": min(ends), "high": max(ends)}


def time_slope(x: Sequence[float], times: Sequence[Sequence[float]], *, log: bool) -> Estimate:
    """Slope of the median of times, or of its log, against x."""
    samples = [(np.asarray(t, dtype=np.float64), np.isfinite(t)) for t in times]
    fit = fit_slope(x, samples, log_time=log)
    return {"value": fit.value, "low": fit.low, "high": fit.high}


def crossing_slope(x: Sequence[float], rows: Sequence[Sequence[float]]) -> Estimate:
    """Slope of log of times against x; rows[i] has the time at x[i], then bootstrap times."""
    table = np.array(rows, dtype=np.float64)
    kept = np.isfinite(table[:, 0])
    if kept.sum() < 2:
        return {"value": math.nan, "low": math.nan, "high": math.nan}
    position, logs = np.asarray(x)[kept], np.log(table[kept])
    centered = position - position.mean()
    slopes = centered @ logs / (centered @ centered)
    return _interval(float(slopes[0]), slopes[1:])


def misfit(y: Sequence[float], laws: FloatArray) -> tuple[float, int]:
    """Largest |log| residual of the best law, each row of `laws` scaled freely, and its index."""
    logs = np.log(np.asarray(y)) - np.log(laws)
    residuals = np.abs(logs - (logs.max(axis=1) + logs.min(axis=1))[:, None] / 2).max(axis=1)
    best = int(np.argmin(residuals))
    return float(residuals[best]), best


def _bootstrap(statistic: Any, count: int) -> Estimate:
    rng = np.random.default_rng(0)
    again = statistic(rng.integers(count, size=(_BOOTSTRAPS, count)))
    return _interval(float(statistic(np.arange(count)[None])[0]), again)


def _interval(value: float, again: FloatArray) -> Estimate:
    # By order statistics, which infinite times do not spoil.
    ordered = np.sort(again[~np.isnan(again)])
    if not len(ordered):
        return {"value": float(value), "low": math.nan, "high": math.nan}
    low, high = (ordered[round(q * (len(ordered) - 1))] for q in (0.025, 0.975))
    return {"value": float(value), "low": float(low), "high": float(high)}


def _medians(rows: FloatArray) -> FloatArray:
    """Of each row; the larger of two middle ones where that is infinite."""
    ordered, n = np.sort(rows, axis=1), rows.shape[1]
    low, high = ordered[:, (n - 1) // 2], ordered[:, n // 2]
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(high), high, (low + high) / 2)


def _over(a: FloatArray, b: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return a / b
