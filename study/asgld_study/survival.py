"""Statistics of times of which some are only known to be longer: medians, intervals, fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
# Times and whether each is that of the event, as one sample.
Sample = tuple[FloatArray, BoolArray]

MODELS = ("log d", "log^2 d", "d^q")


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


def median(times: npt.ArrayLike, is_event: npt.ArrayLike) -> float:
    """The first time at which at most half survive; inf if more do.

    >>> median([3, 1, 2], [True, True, True]), median([3, 1, 2], [False, True, False])
    (2.0, inf)
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
    return np.array([median(times[draw], is_event[draw]) for draw in draws])


@dataclass(frozen=True)
class Slope:
    """A fitted slope with its 95 % bootstrap interval, over `points` finite medians of `of`."""

    value: float
    low: float
    high: float
    points: int
    of: int


def fit_slope(
    x: Sequence[float],
    samples: Sequence[Sample],
    *,
    log_time: bool,
    last: int | None = None,
    seed: int = 0,
    count: int = 200,
) -> Slope:
    """Slope of the median time, or of its log, against x; nan with fewer than two finite medians.

    Args:
        x: positions, one per sample.
        samples: times and event masks.
        log_time: take logs of the medians.
        last: use only so many of the last positions whose median is finite.
        count: bootstrap samples; medians at all positions are drawn anew in each.
    """
    rng = np.random.default_rng(seed)
    medians = np.array([median(*sample) for sample in samples])
    kept = np.flatnonzero(np.isfinite(medians) & (medians > 0))[-(last or len(x)) :]
    if len(kept) < 2:
        return Slope(math.nan, math.nan, math.nan, len(kept), len(x))
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
    return Slope(value, float(low), float(high), len(kept), len(x))


@dataclass(frozen=True)
class Growth:
    """T against d by three laws: their parameters, and AICc of the log residuals."""

    best: str
    scores: dict[str, float]
    laws: str  # all whose score is within 2 of the best, which data cannot tell apart
    slope_log: float  # b of T = a + b ln d
    slope_square: float  # b of T = a + b ln^2 d
    power: float  # q of T = a d^q


def fit_growth(dims: Sequence[float], times: Sequence[float]) -> Growth:
    """Fit T = a + b ln d, a + b ln^2 d and a d^q by relative least squares; finite times only.

    >>> fit_growth([4, 16, 64, 256, 1024], [14, 28, 42, 56, 70]).best
    'log d'
    """
    d, t = np.asarray(dims, dtype=np.float64), np.asarray(times, dtype=np.float64)
    is_kept = np.isfinite(t) & (t > 0)
    log_d, t = np.log(d[is_kept]), t[is_kept]
    if len(t) < 4:
        return Growth("too few points", {}, "too few points", math.nan, math.nan, math.nan)
    scores, slopes = {}, {}
    for name, column in (("log d", log_d), ("log^2 d", log_d**2)):
        design = np.stack([np.ones_like(t), column], axis=1)
        a, b = np.linalg.lstsq(design / t[:, None], np.ones_like(t), rcond=None)[0]
        scores[name], slopes[name] = _aicc(np.log(np.clip(a + b * column, 1e-9, None) / t)), b
    power, start = np.polyfit(log_d, np.log(t), 1)
    scores["d^q"] = _aicc(start + power * log_d - np.log(t))
    best = min(scores, key=lambda name: scores[name])
    laws = " or ".join(name for name in MODELS if scores[name] <= scores[best] + 2.0)
    return Growth(
        best, scores, laws, float(slopes["log d"]), float(slopes["log^2 d"]), float(power)
    )


def _aicc(residuals: FloatArray) -> float:
    """Akaike's criterion of two parameters and a variance, corrected for few points."""
    n, k = len(residuals), 3
    # Rounding to whole steps leaves no fit perfect; this keeps the log finite.
    variance = max(float(np.mean(residuals**2)), 1e-12)
    # From n = k + 2 on the correction is finite; below, all models share it anyway.
    correction = 2 * k * (k + 1) / (n - k - 1) if n > k + 1 else 0.0
    return n * math.log(variance) + 2 * k + correction
