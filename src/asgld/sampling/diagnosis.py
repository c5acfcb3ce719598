"""Whether chains have mixed, and what their draws are worth.

Every function takes draws of shape (chains, draws) or (chains, draws, d) and returns a float64
array of shape () or (d,), a number for each column. Definitions are those of Vehtari, Gelman,
Simpson, Carpenter and Bürkner (2021), "Rank-normalization, folding, and localization: an improved
R-hat", as in arviz. A column is nan where nothing can be said: it is constant, it has a value that
is not finite, or its chains have fewer than 4 draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.float64]

BLOCK = 1 << 20  # values worked on at once
ROUNDING = 1e-15  # a column whose range is smaller, relative to its values, is constant


def rhat(draws: npt.ArrayLike) -> Array:
    """Rank-normalized split R-hat, the larger of bulk and folded; nan for fewer than 2 chains.

    Values near 1 say that the chains agree. Draws are fit for use below 1.01.
    """
    return _by_columns(_rhat, draws, least_chains=2)


def ess_bulk(draws: npt.ArrayLike) -> Array:
    """Effective sample size of the bulk: that of the mean of rank-normalized draws."""
    return _by_columns(lambda x: _ess(_normal_scores(_split(x))), draws)


def ess_tail(draws: npt.ArrayLike) -> Array:
    """Effective sample size of the tails: the smaller one of the 5 % and the 95 % quantile."""
    return _by_columns(_ess_tail, draws)


def ess_mean(draws: npt.ArrayLike) -> Array:
    """Effective sample size of the mean of the draws themselves."""
    return _by_columns(lambda x: _ess(_split(x)), draws)


def ess_sd(draws: npt.ArrayLike) -> Array:
    """Effective sample size of the standard deviation: that of squared distances to the mean."""
    return _by_columns(lambda x: _ess(_split(_squares(x))), draws)


def mcse_mean(draws: npt.ArrayLike) -> Array:
    """Standard error of the mean of all draws."""
    return _by_columns(lambda x: np.std(x, axis=(1, 2), ddof=1) / np.sqrt(_ess(_split(x))), draws)


def mcse_sd(draws: npt.ArrayLike) -> Array:
    """Standard error of the standard deviation of all draws."""
    return _by_columns(_mcse_sd, draws)


def average_ranks(values: Array) -> Array:
    """Ranks within each row of (rows, n), from 1 to n; equal values share the average rank."""
    ranks = np.empty(values.shape)
    for row, into in zip(values, ranks, strict=True):
        _, places, counts = np.unique(row, return_inverse=True, return_counts=True)
        into[:] = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks


# Below, arrays have the shape (columns, chains, draws).


def _by_columns(
    estimate: Callable[[Array], Array], draws: npt.ArrayLike, *, least_chains: int = 1
) -> Array:
    """Apply an estimate to blocks of the columns that have one; the others get nan."""
    draws = np.asarray(draws, dtype=np.float64)
    if draws.ndim not in (2, 3):
        raise ValueError(f"draws have shape (chains, draws) or (chains, draws, d): {draws.shape}")
    columns = np.moveaxis(draws[..., None] if draws.ndim == 2 else draws, 2, 0)
    found = np.full(len(columns), np.nan)
    if draws.shape[0] >= least_chains and draws.shape[1] >= 4:
        step = max(1, BLOCK // (draws.shape[0] * draws.shape[1]))
        with np.errstate(all="ignore"):
            for start in range(0, len(columns), step):
                block = np.ascontiguousarray(columns[start : start + step])
                fit = np.isfinite(block).all(axis=(1, 2)) & ~_constant(block)
                if fit.any():
                    found[start : start + step][fit] = estimate(block[fit])
    return found.reshape(draws.shape[2:])


def _constant(x: Array) -> npt.NDArray[np.bool_]:
    low, high = x.min(axis=(1, 2)), x.max(axis=(1, 2))
    return np.asarray(high - low <= ROUNDING * np.maximum(np.abs(low), np.abs(high)))


def _split(x: Array) -> Array:
    """Each chain in two halves; the middle one of an odd number of draws is left out."""
    half = x.shape[2] // 2
    return np.concatenate((x[:, :, :half], x[:, :, -half:]), axis=1)


def _squares(x: Array) -> Array:
    return np.asarray(np.square(x - x.mean(axis=(1, 2), keepdims=True)))


def _normal_scores(x: Array) -> Array:
    """Replace draws by the normal quantiles of their ranks among all chains."""
    ranks = average_ranks(x.reshape(len(x), -1))
    levels = torch.from_numpy((ranks - 3 / 8) / (ranks.shape[1] + 1 / 4))
    return np.asarray(torch.special.ndtri(levels)).reshape(x.shape)


def _rhat(x: Array) -> Array:
    halves = _split(x)
    folded = np.abs(halves - np.median(halves, axis=(1, 2), keepdims=True))
    n = halves.shape[2]
    found = []
    for scores in (_normal_scores(halves), _normal_scores(folded)):
        between = n * np.var(scores.mean(axis=2), axis=1, ddof=1)
        within = np.var(scores, axis=2, ddof=1).mean(axis=1)
        found.append(np.sqrt((between / within + n - 1) / n))
    return np.asarray(np.fmax(*found))  # two values may fold to a constant, which has no R-hat


def _ess(chains: Array) -> Array:
    """Number of draws over their autocorrelation time, by Geyer's initial monotone sequence."""
    _, m, n = chains.shape
    means = chains.mean(axis=2, keepdims=True)
    size = 1 << (2 * n - 1).bit_length()  # room for every lag without wrapping around
    spectrum = np.fft.rfft(chains - means, size, axis=2)
    power = (spectrum.real**2 + spectrum.imag**2).mean(axis=1)
    covariance = np.fft.irfft(power, size, axis=1)[:, :n] / n
    variance = covariance[:, :1] + np.var(means, axis=1, ddof=1)
    last = max(0, (n - 3) // 2)  # of the pairs of lags (0, 1), (2, 3), ...
    within = covariance[:, :1] * n / (n - 1)
    rho = 1 - (within - covariance[:, : 2 * last + 2]) / variance
    rho[:, 0] = 1
    pairs = rho[:, ::2] + rho[:, 1::2]
    positive = np.logical_and.accumulate(pairs[:, :last] > 0, axis=1)
    total = np.where(positive, np.minimum.accumulate(pairs[:, :last], axis=1), 0).sum(axis=1)
    at, end = np.arange(len(rho)), positive.sum(axis=1)
    even = rho[at, 2 * end]  # the first lag after the sequence counts once
    even = np.where(pairs[at, end] < 0, np.maximum(even, 0), even)
    time = np.maximum(2 * total - 1 + even, 1 / math.log10(m * n))
    time[np.isnan(rho[:, 1])] = np.nan  # squares of the draws overflow or vanish
    return np.asarray(np.where(_constant(chains), m * n, m * n / time))


def _ess_tail(x: Array) -> Array:
    ordered = np.sort(x.reshape(len(x), -1), axis=1)
    n, found = ordered.shape[1], []
    for p in (0.05, 0.95):
        place = n * p + (1 - p)  # from 1, type 7 of Hyndman and Fan
        below = min(max(math.floor(place), 1), n - 1)
        low, high, part = ordered[:, below - 1], ordered[:, below], place - below
        quantile = np.where(low == high, low, (1 - part) * low + part * high)
        found.append(_ess(_split((x <= quantile[:, None, None]).astype(np.float64))))
    return np.asarray(np.minimum(*found))


def _mcse_sd(x: Array) -> Array:
    squares = _squares(x)
    variance = squares.mean(axis=(1, 2))
    spread = (squares**2).mean(axis=(1, 2)) - variance**2
    return np.asarray(np.sqrt(np.maximum(spread, 0) / _ess(_split(squares)) / variance / 4))
