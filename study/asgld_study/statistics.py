"""Estimates with 95 % intervals as {"value", "low", "high"}; medians and fits of censored times."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Estimate = dict[str, float]
# Times, and whether each is that of the event; of the others it is known that they are later.
Sample = tuple[FloatArray, BoolArray]

UNKNOWN: Estimate = {"value": math.nan, "low": math.nan, "high": math.nan}
_BOOTSTRAPS, _SLOPE_BOOTSTRAPS = 1000, 500


# ------------------------------------------------------------------------------------ samples


def mean(values: npt.ArrayLike) -> Estimate:
    """Mean, by the normal law."""
    sample = np.asarray(values, dtype=np.float64)
    middle = float(sample.mean())
    half = 1.96 * float(sample.std(ddof=1)) / math.sqrt(len(sample)) if len(sample) > 1 else 0.0
    return {"value": middle, "low": middle - half, "high": middle + half}


def median(values: Sequence[float]) -> Estimate:
    """Median; infinite where half or more are."""
    sample = np.asarray(values, dtype=np.float64)
    return _bootstrap(lambda draw: _medians(sample[draw]), len(sample))


def share(is_so: npt.ArrayLike) -> Estimate:
    """Part of a sample that is so, with Wilson's interval."""
    sample = np.asarray(is_so, dtype=np.float64)
    n, p, z = len(sample), float(sample.mean()), 1.96
    center = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return {"value": p, "low": max(center - half, 0.0), "high": min(center + half, 1.0)}


def earlier(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """In which part of the pairs is the first time the earlier one? Ties count half.

    A time of infinity is later than all others. The interval is a bootstrap over pairs, or that of
    a share where all pairs agree.
    """
    a, b = np.asarray(first), np.asarray(second)
    score = np.where(a < b, 1.0, np.where(a == b, 0.5, 0.0))
    if bool(np.all(score == 0.0) | np.all(score == 1.0)):
        return share(score)
    return _bootstrap(lambda draw: score[draw].mean(axis=1), len(score))


def mean_difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Mean of paired differences, by the normal law."""
    return mean(np.asarray(first) - np.asarray(second))


def ratio_of_medians(top: Sequence[float], bottom: Sequence[float]) -> Estimate:
    """Median over median, from independent samples."""
    a, b = np.asarray(top, dtype=np.float64), np.asarray(bottom, dtype=np.float64)
    rng = np.random.default_rng(0)
    tops = _medians(a[rng.integers(len(a), size=(_BOOTSTRAPS, len(a)))])
    bottoms = _medians(b[rng.integers(len(b), size=(_BOOTSTRAPS, len(b)))])
    return _interval(_over(_medians(a[None]), _medians(b[None]))[0], _over(tops, bottoms))


def lies_inside(best: float, tried: Sequence[float]) -> bool:
    """Whether others were tried on both sides of the best."""
    return min(tried) < best < max(tried)


def ratio_of_means(top: Estimate, bottom: Estimate) -> Estimate:
    """Of two independent means, by the normal law of their logs."""
    parts = [(e["high"] - e["low"]) / (2.0 * e["value"]) for e in (top, bottom)]
    ratio, spread = top["value"] / bottom["value"], math.exp(math.hypot(*parts))
    return {"value": ratio, "low": ratio / spread, "high": ratio * spread}


def difference(first: Estimate, second: Estimate) -> Estimate:
    """Of two independent numbers, by the normal law."""
    halves = [(e["high"] - e["low"]) / 2.0 for e in (first, second)]
    value, half = first["value"] - second["value"], math.hypot(*halves)
    return {"value": value, "low": value - half, "high": value + half}


def scaled(of: Estimate, by: float) -> Estimate:
    """A multiple of a number; a negative one turns its interval round."""
    ends = (by * of["low"], by * of["high"])
    return {"value": by * of["value"], "low": min(ends), "high": max(ends)}


def named(name: str, of: Estimate) -> Estimate:
    """A number and its interval as columns of a table."""
    return {name: of["value"], "low": of["low"], "high": of["high"]}


def populations(chains: int, *, seed: int = 0) -> FloatArray:
    """Weights (1 + B, chains) that turn values of chains into means, with :func:`of_populations`.

    The first row takes the mean of all chains, each other that of a bootstrap sample.
    """
    draws = np.random.default_rng(seed).multinomial(
        chains, np.full(chains, 1.0 / chains), size=_SLOPE_BOOTSTRAPS
    )
    weights: FloatArray = np.vstack([np.ones(chains), draws]) / chains
    return weights


def of_populations(numbers: npt.ArrayLike) -> Estimate:
    """The first of the numbers, which is that of all chains; the others give its interval.

    >>> of_populations([2.0, 1.0, 3.0])
    {'value': 2.0, 'low': 1.0, 'high': 3.0}
    """
    value, *again = np.asarray(numbers, dtype=np.float64)
    return _interval(float(value), np.array(again))


def _bootstrap(statistic: Callable[[npt.NDArray[np.int64]], FloatArray], count: int) -> Estimate:
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


# ------------------------------------------------------------------------------------ slopes


def slope(x: npt.ArrayLike, columns: FloatArray, *, seed: int = 0) -> Estimate:
    """Slope of the log of the mean over chains against x, by a bootstrap over chains.

    The columns are of positive numbers, (T, chains), at the positions x, (T,).
    """
    position = np.asarray(x, dtype=np.float64)
    centered = position - position.mean()
    means = np.log(populations(columns.shape[1], seed=seed) @ columns.T)
    slopes = means @ centered / (centered @ centered)
    low, high = np.quantile(slopes[1:], [0.025, 0.975])
    return {"value": float(slopes[0]), "low": float(low), "high": float(high)}


def time_slope(x: Sequence[float], times: Sequence[Sequence[float]]) -> Estimate:
    """Slope of the log of the median of times against x."""
    samples = [(np.asarray(t, dtype=np.float64), np.isfinite(t)) for t in times]
    return fit_slope(x, samples, log_time=True)


def crossing_slope(x: npt.ArrayLike, rows: npt.ArrayLike) -> Estimate:
    """Slope of log of times against x; rows[i] has the time at x[i], then bootstrap times."""
    table = np.array(rows, dtype=np.float64)
    kept = np.isfinite(table[:, 0])
    if kept.sum() < 2:
        return UNKNOWN
    position, logs = np.asarray(x)[kept], np.log(table[kept])
    centered = position - position.mean()
    slopes = centered @ logs / (centered @ centered)
    return _interval(float(slopes[0]), slopes[1:])


def misfit(y: Sequence[float], laws: FloatArray) -> tuple[float, int]:
    """Largest |log| residual of the best law, each row of `laws` scaled freely, and its index.

    No law has a residual that is known where a number is infinite: nan, and the first.
    """
    if not np.isfinite(y).all():
        return math.nan, 0
    logs = np.log(np.asarray(y)) - np.log(laws)
    residuals = np.abs(logs - (logs.max(axis=1) + logs.min(axis=1))[:, None] / 2).max(axis=1)
    best = int(np.argmin(residuals))
    return float(residuals[best]), best


def law_misfit(times: Sequence[Sequence[float]], laws: FloatArray) -> tuple[Estimate, int]:
    """:func:`misfit` of the medians of samples of times, and the index of the best law."""
    samples = [(np.asarray(t, dtype=np.float64), np.isfinite(t)) for t in times]
    rng = np.random.default_rng(0)
    value, best = misfit([survival_median(*sample) for sample in samples], laws)
    again = np.stack([bootstrap_medians(sample, 200, rng) for sample in samples], axis=1)
    return _interval(value, np.array([misfit(row, laws)[0] for row in again])), best


# ------------------------------------------------------------------------------------ censoring


def survival(times: npt.ArrayLike, is_event: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Kaplan-Meier estimate of P(T > t): the times at which it falls, and its values from there.

    A time whose `is_event` is False says that the event came later, or never.

    >>> survival([1, 2, 2, 5], [True, True, False, True])
    (array([1., 2., 5.]), array([0.75, 0.5 , 0.  ]))
    """
    t = np.asarray(times, dtype=np.float64)
    happened = np.asarray(is_event, dtype=np.bool_)
    distinct = np.unique(t[happened])
    at_risk = len(t) - np.searchsorted(np.sort(t), distinct, side="left")
    events = np.searchsorted(np.sort(t[happened]), distinct, side="right")
    events = np.diff(events, prepend=0)
    alive: FloatArray = np.cumprod(1.0 - events / at_risk).astype(np.float64)
    return distinct, alive


def survival_median(times: npt.ArrayLike, is_event: npt.ArrayLike) -> float:
    """The first time at which at most half survive; inf if more do.

    >>> survival_median([3, 1, 2], [True, True, True])
    2.0
    >>> survival_median([3, 1, 2], [False, True, False])
    inf
    """
    falls, alive = survival(times, is_event)
    below = np.flatnonzero(alive <= 0.5 + 1e-12)
    return float(falls[below[0]]) if len(below) else math.inf


def bootstrap_medians(sample: Sample, count: int, rng: np.random.Generator) -> FloatArray:
    """Medians of `count` samples drawn with replacement."""
    times, is_event = sample
    size = len(times)
    draws = rng.integers(size, size=(count, size))
    last_event = times[is_event].max(initial=-math.inf)
    if np.all(times[~is_event] >= last_event):
        # Nothing is censored before an event: the median is an order statistic.
        known = np.sort(np.where(is_event, times, math.inf)[draws], axis=1)
        return np.asarray(known[:, (size + 1) // 2 - 1], dtype=np.float64)
    return np.array([survival_median(times[draw], is_event[draw]) for draw in draws])


def fit_slope(
    x: Sequence[float],
    samples: Sequence[Sample],
    *,
    log_time: bool,
    last: int | None = None,
    seed: int = 0,
    count: int = 200,
) -> Estimate:
    """Slope of the median time, or of its log, against x; nan with fewer than two finite medians.

    The number of medians that the fit uses is in the estimate as "points".

    Args:
        x: positions, one per sample.
        log_time: take logs of the medians.
        last: use only so many of the last positions whose median is finite.
        count: bootstrap samples; medians at all positions are drawn anew in each.
    """
    rng = np.random.default_rng(seed)
    medians = np.array([survival_median(*sample) for sample in samples])
    kept = np.flatnonzero(np.isfinite(medians) & (medians > 0))[-(last or len(x)) :]
    if len(kept) < 2:
        return {**UNKNOWN, "points": len(kept)}
    position = np.asarray(x, dtype=np.float64)[kept]

    def slopes(rows: FloatArray) -> FloatArray:
        y = np.log(rows) if log_time else rows
        centered = position - position.mean()
        fitted: FloatArray = y @ centered / (centered @ centered)
        return fitted

    value = float(slopes(medians[kept][None])[0])
    again = np.stack([bootstrap_medians(samples[i], count, rng) for i in kept], axis=1)
    again = slopes(again[np.isfinite(again).all(axis=1)])
    low, high = np.quantile(again, [0.025, 0.975]) if len(again) else (math.nan, math.nan)
    return {"value": value, "low": float(low), "high": float(high), "points": len(kept)}


def fit_growth(dims: Sequence[float], times: Sequence[float]) -> tuple[str, float]:
    """The laws that T follows in d, and q of T = a d^q; finite times only.

    T = a + b ln d, a + b ln^2 d and a d^q are fitted by relative least squares. Data cannot tell
    apart laws whose AICc of the log residuals is within 2 of the lowest: all of them are named.

    >>> fit_growth([4, 16, 64, 256, 1024], [14, 28, 42, 56, 70])[0]
    'log d'
    """
    d, t = np.asarray(dims, dtype=np.float64), np.asarray(times, dtype=np.float64)
    is_kept = np.isfinite(t) & (t > 0)
    log_d, t = np.log(d[is_kept]), t[is_kept]
    if len(t) < 4:
        return "too few points", math.nan
    scores = {}
    for name, column in (("log d", log_d), ("log^2 d", log_d**2)):
        design = np.stack([np.ones_like(t), column], axis=1)
        a, b = np.linalg.lstsq(design / t[:, None], np.ones_like(t), rcond=None)[0]
        scores[name] = _aicc(np.log(np.clip(a + b * column, 1e-9, None) / t))
    power, start = np.polyfit(log_d, np.log(t), 1)
    scores["d^q"] = _aicc(start + power * log_d - np.log(t))
    best = min(scores.values())
    return " or ".join(name for name in scores if scores[name] <= best + 2.0), float(power)


def _aicc(residuals: FloatArray) -> float:
    """Akaike's criterion of two parameters and a variance, corrected for few points."""
    n, k = len(residuals), 3
    # Rounding to whole steps leaves no fit perfect; this keeps the log finite.
    variance = max(float(np.mean(residuals**2)), 1e-12)
    # From n = k + 2 on the correction is finite; below, all models share it anyway.
    correction = 2 * k * (k + 1) / (n - k - 1) if n > k + 1 else 0.0
    return n * math.log(variance) + 2 * k + correction
