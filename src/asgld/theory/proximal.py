"""A certificate for f + g with a convex g that is not smooth: the proximal step of the rule.

The step is x <- shrink(x - h (grad f + xi) + n, h), with h = lr D^(-alpha/2) fixed before it. The
gradient mapping takes the place of the gradient. `proximal_step` turns each step into a weight and
a price, `proximal_certificate` turns their sums into a bound that holds along the path, at all
times at once, with probability 1 - p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from asgld.arguments import require
from asgld.theory._arguments import FloatArray, Number, floats, number

PROXIMAL_TILTS = (0.5, 0.25, 0.125, 0.0625, 0.03125)


@dataclass(frozen=True)
class ProximalCertificate:
    """A bound on the weighted average (hence on the smallest) squared gradient mapping so far.

    Attributes:
        bound: on sum_j w_j |G(x_j)|^2 / sum_j w_j, where G is the gradient mapping of step
            1/envelope. Infinite for a run that has left the conditions of the proof.
        start, moved, noise, rounding: the parts of the bound due to f_gap, to the mean size of the
            noise, to kappa log(1/p) and to finite precision.
        tilt: the tilt that gave the smallest bound.
        p: probability that the bound fails at any time.
    """

    bound: Number
    start: Number
    moved: Number
    noise: Number
    rounding: Number
    tilt: Number
    p: float


class ProximalStep(NamedTuple):
    """What steps add to the sums of `proximal_certificate`; the first axis is that of the tilts."""

    weight: FloatArray
    noise: FloatArray  # infinite for a step outside the proof


def proximal_noise_scale(
    noise: ArrayLike, longest: ArrayLike, *, smoothness: float, envelope: float, spread: float = 1.0
) -> float:
    """kappa of `proximal_certificate`: the noise of the first step over its contraction.

        kappa = nu / r,    r = 1 - (max(|1 - E h|, |1 - E h/spread|) + M h)^2,    E = envelope

    Any kappa that was fixed before the run is allowed; this one is safe. Let E h <= 1 and
    beta >= alpha/2. Then D >= d_init gives nu_j / h_j <= nu / h for the longest steps h_j, and
    h / r falls as h does. So tilt nu_j / kappa <= tilt r_j < r_j at every step with
    max h_j <= spread min h_j, and no such step is outside the proof.

    Args:
        noise: nu, the largest variance of one coordinate's noise,
            2 lr sigma^2 D^-beta + h^2 C with D = d_init.
        longest: h, the longest step, lr d_init^(-alpha/2).
        smoothness, envelope: see `proximal_certificate`.
        spread: bound on the longest over the shortest step of the run; 1 for alpha = 0.

    >>> proximal_noise_scale(0.75, 0.25, smoothness=1.0, envelope=3.0)
    1.0
    """
    h = floats("longest", longest, strict=True)
    parts = float(floats("spread", spread, low=1.0))
    left = 1 - _contraction(h / parts, h, smoothness, envelope) ** 2
    require(
        bool(np.all(left > 0)),
        "longest",
        longest,
        f"smoothness * spread < envelope and longest steps below 2 / (envelope + smoothness); "
        f"smoothness={smoothness!r}, envelope={envelope!r}, spread={spread!r}",
    )
    return float(np.max(floats("noise", noise) / left))


def proximal_step(
    *,
    shortest: ArrayLike,
    longest: ArrayLike,
    noise: ArrayLike,
    total_noise: ArrayLike,
    smoothness: float,
    envelope: float,
    kappa: float,
    tilts: Sequence[float] = PROXIMAL_TILTS,
) -> ProximalStep:
    """Weight and price of steps, for `proximal_certificate`.

        rho = max(|1 - E h_min|, |1 - E h_max|) + M h_max,    r = 1 - rho^2,    mu = tilt nu / kappa
        weight = (r - mu) / (1 - mu),                         price = total log(1/(1 - mu)) / mu

    The price of a step with r < mu, which is outside the proof, is infinite. So are the sum of
    prices and the bound, from this step on.

    Args:
        shortest, longest: h_min and h_max, the step sizes lr D^(-alpha/2) over all coordinates.
        noise: nu, the largest variance of one coordinate's noise, 2 lr sigma^2 D^-beta + h^2 C.
        total_noise: the sum of these variances over all coordinates.
        smoothness, envelope, kappa, tilts: see `proximal_certificate`.

    >>> step = proximal_step(
    ...     shortest=0.25, longest=0.25, noise=0.75, total_noise=1.5, smoothness=1.0, envelope=3.0,
    ...     kappa=1.0, tilts=(0.5,),
    ... )
    >>> step.weight.round(6).tolist(), step.noise.round(6).tolist()
    ([0.6], [1.880015])
    """
    c = _tilts(tilts)
    h_min, h_max, nu, total = np.broadcast_arrays(
        floats("shortest", shortest),
        floats("longest", longest),
        floats("noise", noise),
        floats("total_noise", total_noise),
    )
    scale = float(floats("kappa", kappa))
    rho = _contraction(h_min, h_max, smoothness, envelope)
    left = np.where(rho <= 1, 1 - rho**2, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        heat = np.where(nu > 0, nu / scale, 0.0)
    mu = c.reshape(-1, *[1] * heat.ndim) * heat
    # A tilt of inf, for a kappa of 0 in a run with noise, is outside the proof as well.
    proved = (mu <= left) & (mu < 1)
    safe = np.where(proved, mu, 0.0)
    with np.errstate(invalid="ignore"):
        excess = np.where(safe > 0, -np.log1p(-safe) / np.where(safe > 0, safe, 1.0), 1.0)
        weight = np.where(proved, (left - safe) / (1 - safe), 0.0)
    return ProximalStep(weight, np.where(proved, excess * total, np.inf))


def proximal_certificate(
    *,
    sum_weight: ArrayLike,
    sum_noise: ArrayLike,
    f_gap: ArrayLike,
    smoothness: float,
    envelope: float,
    kappa: float,
    p: float = 0.05,
    tilts: Sequence[float] = PROXIMAL_TILTS,
    sum_rounding: ArrayLike = 0.0,
    sum_sq_rounding: ArrayLike = 0.0,
) -> ProximalCertificate:
    """Pathwise, anytime bound on the gradient mappings of one run of the proximal rule.

    Let F = f + g be bounded below, f with an M-Lipschitz gradient everywhere, g convex, and E > M
    the number `envelope`. Given the past, the gradient noise xi is a sub-Gaussian vector of
    constant C: the mean of exp(b'xi) is at most exp(C |b|^2 / 2) for all b. With probability at
    least 1 - p, for all k at once and every tilt c of the m tilts

        sum_j w_j |G(x_j)|^2 <= (E + M)^2 [ 2 f_gap / E + sum_j price_j + (2 kappa/c) log(m/p) ]

    where G(x) = E (x - prox(x - grad f(x)/E)) is the gradient mapping of step 1/E, prox is that of
    g/E, and `proximal_step` has w_j and price_j. The smallest right side over sum_j w_j is the
    bound. g must be separable, or the step sizes equal (alpha = 0, one lr) within what g ties
    together: otherwise no two points move apart in the metric of D_j, but that metric changes from
    step to step. For alpha = 0 the steps need lr < 2 / (E + M) only; for alpha > 0 the contraction
    needs E > M max h_j / min h_j, so a larger E bears a larger spread of D.

    Why: let F_E(x) = min_u F(u) + E/2 |u - x|^2, let y be the minimizer u, and v = x - y. The
    proximal step leaves y + h (E v - grad f(y)) at y, whatever h, and moves no two points apart,
    so |x+ - y| <= |a + w| with the noise w = n - h xi and a = v - h (E v + grad f(x) - grad f(y)),
    |a| <= rho |v|. F_E(x+) <= F(y) + E/2 |x+ - y|^2 then gives

        F_E(x+) - F_E(x) <= (E/2) [ -(1 - rho^2) |v|^2 + 2 a'w + |w|^2 ] .

    For a sub-Gaussian w, E exp(b'w + t |w|^2) is at most the product over coordinates of
    (1 - 2 t nu_i)^(-1/2) exp(nu_i b_i^2 / (2 (1 - 2 t nu_i))). With t = c/(2 kappa), b = 2 t a and
    mu = c nu / kappa the sums of 2 a'w + |w|^2 less mu rho^2 |v|^2 / (1 - mu) and less the price
    are the logarithm of a supermartingale, times kappa/c * 2. Ville's inequality adds
    (2 kappa/c) log(1/p) for all k, and r - mu (1 - r)/(1 - mu) is the weight. Last,
    |G(x)| <= (E + M) |v|, since y is the proximal step from x - grad f(y)/E. All that a step adds
    is fixed before its noise is drawn, so conditions are checked as the run goes on, and a bound
    that was given stays true if they break later.

    Rounding: if x+ is off by e_j and the whole step is s_j, |x+ - y|^2 grows by at most
    2 |e_j| (|s_j| + |v_j|), so X = sum w_j |v_j|^2 is at most the root of
    X = [...] + 2 sum |e_j| |s_j| + 2 sqrt(X sum |e_j|^2 / w_j).

    ===============  ================================================================
    argument         meaning
    ===============  ================================================================
    sum_weight       sum of the weights of `proximal_step`, the first axis over tilts
    sum_noise        sum of its prices
    f_gap            F(x_0) - F_low; F(x_k) must not take the place of F_low
    smoothness       M, Lipschitz constant of the gradient of f
    envelope         E > M; 3 M makes the price of the noise smallest
    kappa            fixed before the run, see `proximal_noise_scale`
    p                probability of failure
    tilts            in (0, 1), fixed before the run
    sum_rounding     sum of |e_j| |s_j|
    sum_sq_rounding  sum of |e_j|^2 / w_j, the first axis over tilts
    ===============  ================================================================

    >>> found = proximal_certificate(
    ...     sum_weight=[8.0], sum_noise=[0.5], f_gap=3.0, smoothness=1.0, envelope=3.0, kappa=0.0,
    ...     tilts=(0.5,),
    ... )
    >>> found.start, found.moved, found.bound
    (4.0, 1.0, 5.0)
    """
    require(0 < p < 1, "p", p, "0 < p < 1, the probability that the bound may fail")
    c = _tilts(tilts)
    M, E = _constants(smoothness, envelope)
    weight = floats("sum_weight", sum_weight)
    prices = floats("sum_noise", sum_noise)
    lost = floats("sum_sq_rounding", sum_sq_rounding)
    fits = weight.shape[:1] == prices.shape[:1] == c.shape
    require(fits, "sum_weight", weight.shape, f"a first axis of {c.size} tilts, as in sum_noise")
    gap, drift = floats("f_gap", f_gap, low=-np.inf), floats("sum_rounding", sum_rounding)
    chance = 2 * float(floats("kappa", kappa)) / c * np.log(c.size / p)
    rank = max(weight.ndim - 1, prices.ndim - 1, gap.ndim, drift.ndim)
    chance = chance.reshape(-1, *[1] * rank)
    gaps, weight, prices, chance, lost, drift = np.broadcast_arrays(
        2 * gap / E, weight, prices, chance, lost, 2 * drift
    )
    exact = gaps + prices + chance + drift
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.sqrt(lost) + np.sqrt(np.maximum(lost + exact, 0.0))
        extra = np.where(lost > 0, root**2 - exact, 0.0)
        factor = (E + M) ** 2 / weight
        bounds = np.where((weight > 0) & np.isfinite(exact), factor * (exact + extra), np.inf)
        best = np.argmin(bounds, axis=0)[None]

        def part(values: FloatArray) -> Number:
            return number(np.take_along_axis(factor * values, best, axis=0)[0])

        return ProximalCertificate(
            number(np.take_along_axis(bounds, best, axis=0)[0]),
            part(gaps),
            part(prices),
            part(chance),
            part(drift + extra),
            number(c[best[0]]),
            p,
        )


def _contraction(
    shortest: FloatArray, longest: FloatArray, smoothness: float, envelope: float
) -> FloatArray:
    """rho: how much of the distance to the envelope's minimizer a step without noise leaves."""
    M, E = _constants(smoothness, envelope)
    return np.maximum(np.abs(1 - E * shortest), np.abs(1 - E * longest)) + M * longest


def _constants(smoothness: float, envelope: float) -> tuple[float, float]:
    M = float(floats("smoothness", smoothness))
    E = float(floats("envelope", envelope, strict=True))
    require(M < E < np.inf, "envelope", envelope, f"a finite number above smoothness={M!r}")
    return M, E


def _tilts(tilts: Sequence[float]) -> FloatArray:
    c = np.asarray(tilts, dtype=np.float64)
    is_valid = c.ndim == 1 and c.size > 0 and bool(np.all((c > 0) & (c < 1)))
    require(is_valid, "tilts", tilts, "at least one number, each between 0 and 1")
    return c
