"""Certificates: numbers a run can compute about itself that bound its squared gradients.

`certificate` holds along the path, at all times at once, with probability 1 - p, and needs neither
lr < 1/M nor D >= 1. `expected_certificate` holds for expectations. Both replace Theorem 1 of the
paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from asgld.arguments import require
from asgld.theory._arguments import Number, floats, number
from asgld.theory.bounds import Accumulators, terms
from asgld.theory.escape import temperature

TILTS = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)


def noise_scale(
    d_init: ArrayLike,
    *,
    alpha: float,
    beta: float,
    sigma: float,
    lr: float,
    gradient_variance: float = 0.0,
    largest_D: float | None = None,
) -> float:
    """kappa, the constant of the noise in `certificate`: twice the highest temperature of the run.

        kappa = max_i ( 2 sigma^2 D_i^(alpha/2 - beta) + lr C D_i^(-alpha/2) )

    For beta >= alpha/2 it falls as D grows, so the smallest D of the run bounds it. A sum starts at
    its smallest, D = d_init. A D that forgets (`decay`) is delta plus an average of squares: it may
    fall below where it began, but never below delta, so give delta as `d_init`. `annealing`
    multiplies the noise by at most 1 and leaves kappa a bound. For beta < alpha/2 the noise heats
    and a bound on D that was fixed before the run is needed. Several parameter groups: take the
    maximum.

    Args:
        d_init: the smallest D of the run, scalar or one entry per coordinate.
        alpha, beta, sigma, lr: of the run; beta = inf or sigma = 0 for no injected noise.
        gradient_variance: C with E exp(v'xi) <= exp(C |v|^2 / 2) for the gradient noise xi
            (the variance, if it is Gaussian); divide by the smallest batch size.
        largest_D: bound on D over the whole run, for beta < alpha/2 only.

    >>> noise_scale(1.0, alpha=1, beta=1, sigma=0.5, lr=0.1, gradient_variance=1.0)
    0.6
    """
    hottest = start = floats("d_init", d_init, strict=True)
    noisy = sigma > 0 and np.isfinite(beta)
    if noisy and beta < alpha / 2:
        if largest_D is None:
            raise ValueError(
                f"beta={beta!r}: below alpha/2={alpha / 2:g} the noise heats as D grows; "
                "give largest_D, a bound on D fixed before the run"
            )
        hottest = np.maximum(start, largest_D)
    injected = 2 * np.asarray(temperature(hottest, alpha, beta, sigma)) if noisy else 0.0
    sampled = lr * gradient_variance * start ** (-alpha / 2)
    return float(np.max(injected + sampled))


@dataclass(frozen=True)
class Certificate:
    """A bound on the weighted average (hence on the smallest) squared gradient so far.

    Attributes:
        bound: on sum_j w_j |grad f(x_j)|^2 / sum_j w_j.
        start, moved, noise, rounding: the parts of the bound due to f_gap, to |s|^2, to
            kappa log(1/p) and to finite precision.
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


def certificate(
    *,
    sum_sq_step: ArrayLike,
    sum_weight: ArrayLike,
    f_gap: ArrayLike,
    smoothness: float,
    kappa: float,
    p: float = 0.05,
    tilts: Sequence[float] = TILTS,
    sum_sq_rounding: ArrayLike = 0.0,
) -> Certificate:
    """Pathwise, anytime bound on the squared gradients of one run.

    With probability at least 1 - p, for all k at once and every tilt c of the m tilts

        sum_j w_j |grad_j|^2 <= [ f_gap + (M/2) sum_j |s_j|^2 + (kappa/c) log(m/p) ] / (1 - c/2)

    where s_j = x_{j+1} - x_j is the step taken and w_j = min_i lr D_j,i^(-alpha/2). The smallest
    right side is divided by sum_j w_j. A single tilt 1 gives the simple form 2 f_gap + M sum |s|^2
    + 2 kappa log(1/p).

    Why: f(x_k) <= f(x_0) - A + N + (M/2) sum |s|^2 with A = sum grad' h grad and N a sum of
    martingale differences. D_j is fixed before step j, so the increments of N are sub-Gaussian
    with proxies that sum to at most kappa A, and exp((c/kappa) N - (c^2/(2 kappa)) A) is a
    supermartingale. Ville's inequality gives N <= (c/2) A + (kappa/c) log(1/p) for all k. Tilts
    are fixed in advance and share p. One tilt loses a factor of two even on long runs; small tilts
    win it back, at the price of log m. For a D of any shape take its eigenvalues for its entries.

    What else the proof bears, since all it needs is a step -h (grad + xi) + n with D_j, hence h,
    fixed before it:

    - A D that forgets. kappa is that of its lower bound, see `noise_scale`.
    - Momentum m_j = mu m_{j-1} + (1 - mu) u_j with constant lr and mu. The point
      z_j = x_j - lr mu/(1-mu) m_{j-1} starts at x_0 and moves by dz_j = -lr u_j + n_j, the step
      without momentum. The descent lemma at z with |grad f(z) - grad f(x)| <= M |z - x| gives the
      same A and N, and |dz_j|^2 + 2 |z_j - x_j| |dz_j| for |s_j|^2. M must bound the curvature
      between x_j, z_j and z_{j+1} too, and f_gap must be f(x_0) - f_low.
    - A clip that never acted: the run is then the run without it. One that acted where kappa = 0:
      coordinate i takes c_i h_i of its gradient, c_i <= 1, so A >= sum w_j |grad_j|^2 with
      w_j = min_i c_j,i h_j,i.
    - Rounding. If s_j is off by r_j, A grows by at most sum |grad_j| |r_j|. With X =
      sum w_j |grad_j|^2 and R = sum |r_j|^2 / w_j that is at most sqrt(X R), and X is at most the
      larger root of (1 - c/2) X = [...] + sqrt(X R).

    ===============  ================================================================
    argument         meaning
    ===============  ================================================================
    sum_sq_step      sum of |s_j|^2 over all coordinates, as taken (noise included)
    sum_weight       sum of w_j, the smallest step multiplier lr D^(-alpha/2) of each step
    f_gap            f(x_0) - f_low, or f(x_0) - f(x_k) where f(x_k) is known
    smoothness       M, Lipschitz constant of the gradient along the path
    kappa            see `noise_scale`
    p                probability of failure
    tilts            in (0, 2), fixed before the run
    sum_sq_rounding  R, sum of |r_j|^2 / w_j with r_j the rounding error of step j
    ===============  ================================================================

    Sums and f_gap may be arrays (over time, over replicas). The same bound holds for an iterate
    drawn with probability proportional to w_j.

    >>> run = {"sum_sq_step": 4.0, "sum_weight": 8.0, "f_gap": 3.0, "smoothness": 2.0}
    >>> certificate(**run, kappa=0.0, tilts=(1.0,)).bound
    1.75
    """
    require(0 < p < 1, "p", p, "0 < p < 1, the probability that the bound may fail")
    c = np.asarray(tilts, dtype=np.float64)
    is_valid = c.ndim == 1 and c.size > 0 and bool(np.all((c > 0) & (c < 2)))
    require(is_valid, "tilts", tilts, "at least one number, each between 0 and 2")
    scale = float(floats("kappa", kappa))
    squares, gap, weight, lost = np.broadcast_arrays(
        0.5 * float(floats("smoothness", smoothness)) * floats("sum_sq_step", sum_sq_step),
        floats("f_gap", f_gap, low=-np.inf),
        floats("sum_weight", sum_weight, strict=True, remedy="take a step first"),
        floats("sum_sq_rounding", sum_sq_rounding),
    )
    noise = scale / c * np.log(c.size / p)
    column = (-1, *[1] * gap.ndim)
    share = (1 - c / 2).reshape(column)
    exact = (gap + squares + noise.reshape(column)) / share
    # The roots of X - exact - sqrt(X R)/share; without one, exact < 0 and a constant is false.
    half = np.sqrt(lost) / (2 * share)
    root = half + np.sqrt(np.maximum(half**2 + exact, 0.0))
    extra = 2 * half * np.where((half > 0) & (half**2 + exact >= 0), root, 0.0)
    best = np.argmin(exact + extra, axis=0)
    factor = 1 / ((1 - c[best] / 2) * weight)
    start, moved, chance = gap * factor, squares * factor, noise[best] * factor
    rounding = np.take_along_axis(extra, best[None], axis=0)[0] / weight
    return Certificate(
        number(start + moved + chance + rounding),
        number(start),
        number(moved),
        number(chance),
        number(rounding),
        number(c[best]),
        p,
    )


def expected_certificate(
    sums: Accumulators,
    *,
    lr: float,
    smoothness: float,
    f_gap: ArrayLike,
    alpha: float,
    d_init: float,
    sigma: float = 0.0,
    gradient_variance: float = 0.0,
) -> Number:
    """Bound on min_j (E|grad f(x_j)|)^2, the repaired form of Theorem 1.

        2 f_gap/lr + M lr C E sum Tr D^-alpha / B + 2 M sigma^2 E sum Tr D^-beta
        ------------------------------------------------------------------------
                                    (2 - theta_0) W

    theta_0 = M lr d_init^(-alpha/2), which must be below 2; at theta_0 <= 1 this is at most I1 +
    I2 + I3 of `terms`, and as little as half of it for small steps. For W use `sums.min_step` =
    sum_j (d_init + j Lambda)^(-alpha/2), where Lambda bounds the mean growth of the largest entry
    of D, and alpha <= 2; or, if every |G_i| is bounded, the same sum with that bound.

    Why: the descent lemma and h <= theta_0/M give

        (1 - theta_0/2) E sum grad' h grad <= f_gap + (M/2) E sum |noise|^2 .

    With w_j = (max_i D_j,i)^(-alpha/2), Cauchy and Schwarz give
    E[w_j |grad|^2] >= (E|grad|)^2 / E[1/w_j], and Jensen E[1/w_j] <= (d_init + j Lambda)^(alpha/2).

    Args:
        sums: expectations of the sums, see `Accumulators`.
        lr, smoothness, f_gap, sigma, gradient_variance: as in `terms`.
        alpha, d_init: of the run, for theta_0.

    >>> sums = Accumulators(trace_step=20.0, min_step=10.0, trace_sample=20.0, trace_noise=5.0)
    >>> expected_certificate(sums, lr=0.5, smoothness=1.0, f_gap=3.75, alpha=0, d_init=1.0)
    1.0
    """
    first = float(floats("smoothness", smoothness)) * lr * d_init ** (-alpha / 2)
    if first >= 2:
        raise ValueError(
            f"lr={lr!r}: smoothness * lr * d_init**(-alpha/2) = {first:g}, need < 2; "
            "lower lr or raise d_init, or use certificate(), which needs no such condition"
        )
    total = terms(
        sums,
        lr=lr,
        smoothness=smoothness,
        f_gap=f_gap,
        sigma=sigma,
        gradient_variance=gradient_variance,
    ).total
    return number(np.asarray(total) / (2 - first))
