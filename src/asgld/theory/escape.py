"""The temperature of the noise, and the steps to escape from a saddle.

`escape_time` is a closed form, `escape_recursion` iterates the spread step by step.

At a saddle with curvature -gamma along a unit vector u, y = u'x obeys

    y <- (1 + gamma h) y + noise,    h = lr D^(-alpha/2),    Var = h^2 C + 2 lr sigma^2 D^-beta

so its variance grows from the noise floor T_eff / gamma by the factor exp(2 Gamma), where the clock
Gamma = sum gamma h runs slower as D grows by c = delta + C per step. Two questions are answered:

    "distance"   when is |y| >= radius? There is no dimension in it.
    "value"      when is f <= f_saddle - drop? This must also pay for the heat (d-1) T_eff/2 of the
                 stable directions, and here log d enters.

Any shape of D (a number, rows, coordinates, matrices) enters by one number, `own_share`.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from asgld.arguments import require
from asgld.theory._arguments import BoolArray, FloatArray, Number, choice, floats, number, unwrap

CRITERIA = ("distance", "value")
SHAPES = ("scalar", "row", "coordinate", "left", "both")
PUBLISHED_CONSTANTS = (1.0, 1.0, 5.0)
# An escape is predicted well if D grows by less than this, and the criterion is this far outside
# the ball that the noise fills, gamma y^2 / T_bar.
RELIABLE_GROWTH = 5.0
RELIABLE_REACH = 20.0

_LAGUERRE = np.polynomial.laguerre.laggauss(24)
_LEGENDRE = np.polynomial.legendre.leggauss(48)


def temperature(
    D: ArrayLike,
    alpha: ArrayLike,
    beta: ArrayLike,
    sigma: ArrayLike,
    *,
    lr: ArrayLike = 0.0,
    gradient_variance: ArrayLike = 0.0,
    step: ArrayLike = 1.0,
    annealing: ArrayLike = 0.0,
) -> Number:
    """Temperature at which a coordinate with accumulator D moves.

        T_eff(D, k) = sigma^2 k^-annealing D^-(beta - alpha/2) + (1/2) lr C D^(-alpha/2)

    The injected noise has variance 2 lr sigma^2 D^-beta = 2 h T with step h = lr D^(-alpha/2),
    which is Langevin dynamics at temperature T = sigma^2 D^-(beta - alpha/2): beta > alpha/2
    anneals,
    beta = alpha/2 samples at the fixed temperature sigma^2, beta < alpha/2 heats. Gradient noise of
    variance C per coordinate adds the second part; leave `gradient_variance` at 0 for T alone.
    A D that forgets (the optimizers' `decay`) does not grow, so it anneals nothing; `annealing`
    then says how the temperature falls with the step k. Momentum leaves the injected noise as it is
    and changes neither part to first order in lr.

    For a D of any shape T = sigma^2 D^-tau is a matrix. In a basin with Hessian H and a fixed D the
    covariance X solves D^(-alpha/2) H X + X H D^(-alpha/2) = 2 sigma^2 D^-beta, to first order in
    lr. So the mean energy Tr(H X)/2 is Tr(T)/2, whether D and H commute or not, and beta = alpha/2
    gives X = sigma^2 H^-1 for any D. For other beta the law is that of a temperature per direction
    only if T and H commute.

    >>> temperature(100.0, alpha=1, beta=1, sigma=0.5)
    0.025
    >>> temperature(1.0, alpha=1, beta=0.5, sigma=0.5, step=100, annealing=1)
    0.0025
    >>> hot = temperature([1, 4], alpha=1, beta=0.5, sigma=0.5, lr=0.5, gradient_variance=2.0)
    >>> hot.tolist()
    [0.75, 0.5]
    """
    accumulator = floats("D", D, strict=True)
    a, b = floats("alpha", alpha), floats("beta", beta)
    rate, variance = floats("lr", lr), floats("gradient_variance", gradient_variance)
    with np.errstate(over="ignore"):
        injected = np.square(floats("sigma", sigma)) * accumulator ** (a / 2 - b)
        injected = injected * floats("step", step, strict=True) ** -floats("annealing", annealing)
    gradient = 0.5 * rate * variance * accumulator ** (-a / 2)
    return number(injected + gradient)


@dataclass(frozen=True)
class Onset:
    """When the accumulator starts to grow like k (see `growth_onset`).

    Attributes:
        accumulator: D at which delta and the noise's own gradients feed D equally.
        steps: iterations until D gets there.
        exponent_before: exponent of the squared gradient before, tau / (1 + tau).
        exponent_after: exponent of the squared gradient after, tau.
    """

    accumulator: float
    steps: float
    exponent_before: float
    exponent_after: float


def growth_onset(
    *,
    curvature: float,
    sigma: float,
    delta: float,
    alpha: float,
    beta: float,
    d_init: float = 0.0,
) -> Onset:
    """When Lemma 1's D ~ k becomes true for full gradients and a small delta.

    Near a minimum with curvature lambda the squared gradient is lambda T(D), T = sigma^2 D^-tau,
    tau = beta - alpha/2 > 0, so D obeys dD/dk = delta + lambda sigma^2 D^-tau. Until the first term
    wins, D^(1+tau) = d_init^(1+tau) + (1+tau) lambda sigma^2 k, and the squared gradient falls only
    like k^-(tau/(1+tau)). The change-over is at

        D* = (lambda sigma^2 / delta)^(1/tau)
        k* = (D*^(1+tau) - d_init^(1+tau)) / ((1+tau) lambda sigma^2)

    which is D* / ((1+tau) delta) for d_init = 0. Units: D and delta are squared gradients,
    lambda sigma^2 is a squared gradient to the power 1 + tau, so k* is a pure number. The change is
    gradual; k* is right within a factor of two.

    >>> onset = growth_onset(curvature=1.0, sigma=0.3, delta=1e-8, alpha=0, beta=1)
    >>> f"{onset.steps:.1e} steps, exponent {onset.exponent_before} before"
    '4.5e+14 steps, exponent 0.5 before'
    """
    heat = float(floats("curvature", curvature, strict=True)) * sigma**2
    growth = float(floats("delta", delta, strict=True, remedy="delta=0 never grows like k"))
    tau = float(beta - alpha / 2)
    if tau <= 0:
        raise ValueError(
            f"beta={beta!r}, alpha={alpha!r}: need beta > alpha/2, else nothing anneals"
        )
    crossing = (heat / growth) ** (1 / tau)
    steps = max(0.0, crossing ** (1 + tau) - d_init ** (1 + tau)) / ((1 + tau) * heat)
    return Onset(crossing, steps, tau / (1 + tau), tau)


@dataclass(frozen=True)
class EscapeTime:
    """Escape time by formula. Scalars, or arrays of the broadcast shape.

    Attributes:
        steps: T; inf if there is no noise along the direction or the clock stops before.
        leading: the closed form, with the temperature frozen and no self-braking.
        published: T_max of Theorem 3 with the constants given; only its shape means anything.
        clock: L, the log growth of y that is needed.
        temperature: T_bar, the temperature that counts.
        growth: D at the escape over D at the start, the direction's own gradients included.
        reliable: whether `steps` is within about 15 % of simulations, and a few percent from the
            recursion. Needs alpha = 0 or a growth below five, and a criterion outside the ball that
            the noise fills, gamma y^2 >= 20 T_bar. Inside of it chains meet the criterion by
            chance, sooner than predicted. Where D grows more, chains differ by how they braked:
            late ones may take several times the steps predicted for a small `failure`.
    """

    steps: Number
    leading: Number
    published: Number
    clock: Number
    temperature: Number
    growth: Number
    reliable: bool | BoolArray


def escape_time(
    gamma: ArrayLike,
    *,
    lr: ArrayLike,
    alpha: ArrayLike,
    beta: ArrayLike,
    sigma: ArrayLike,
    delta: ArrayLike = 1e-2,
    d_init: ArrayLike = 1.0,
    gradient_variance: ArrayLike = 0.0,
    k0: ArrayLike = 0.0,
    D: ArrayLike | None = None,
    dim: ArrayLike = 1,
    criterion: str = "distance",
    radius: ArrayLike = 1.0,
    drop: ArrayLike = 0.0,
    failure: ArrayLike = 0.5,
    aligned: bool = True,
    share: ArrayLike | None = None,
    bath_curvature: ArrayLike = 1.0,
    published_constants: tuple[float, float, float] = PUBLISHED_CONSTANTS,
) -> EscapeTime:
    """Steps to escape, by formula; costs the same for ten steps and for a million.

        L = (1/2) ln(1 + gamma radius^2 / (Z^2 T_eff))                  criterion "distance"
        L = (1/2) ln(1 + (d - 1 + 2 drop / T_eff) / Z^2)                criterion "value"

        g = ln(1 + gamma lr D^(-alpha/2))
        T = (D/c) { [1 + (1 - alpha/2) c L / (D g)]^(2/(2-alpha)) - 1 }

    with D and T_eff at step k0 and c = delta + C is the closed form, attribute `leading`. alpha =
    0 gives L / g, alpha = 2 the limit (D/c)(exp(c L/(D g)) - 1). Late saddles: T ~ D^(alpha/2)
    L/(gamma lr), so k0^(alpha/2). Early ones: T ~ c^(alpha/(2-alpha)) (L/(gamma
    lr))^(2/(2-alpha)). For alpha > 2 the clock is finite and T may be inf.

    `steps` adds what happens on the way, each by one quadrature over the clock: the noise cools,
    T_bar = int 2 exp(-2 Gamma) T_eff(D(Gamma)) dGamma in place of T_eff, and an axis-aligned
    direction brakes itself by feeding its own D (see `braking_onset`); spread over all axes, D is
    fed by the heat of the stable directions instead.

    ===============  =========================================================================
    argument         meaning
    ===============  =========================================================================
    gamma            minus the curvature along the escape direction, > 0
    lr ... d_init    of the optimizer
    gradient_variance    C along the direction, over the batch size; a lower bound on it if the
                     escape is to rest on it (ASG: sigma = 0)
    k0               step at which the saddle is met; D there is d_init + k0 (delta + C),
    D                unless the accumulator itself is given
    dim              d, all coordinates
    radius, drop     see the criteria above
    failure          probability of not having escaped by T; 0.5 gives the median
    aligned          whether the direction is a coordinate axis, which then receives all of its
                     squared gradient; otherwise every axis receives the mean
    share            the part of the direction's squared gradient that its own D receives, for any
                     shape of D (see `own_share`); by default 1 if aligned, else 1/dim
    bath_curvature   typical curvature of the stable directions
    ===============  =========================================================================

    The quadratic model behind it holds up to radius 3 gamma / rho, with rho the Lipschitz constant
    of the Hessian.

    >>> late = escape_time(0.5, lr=0.1, alpha=0, beta=1, sigma=0.1, k0=[1e2, 1e4])
    >>> np.round(late.steps).tolist()
    [56.0, 95.0]
    >>> escape_time(0.5, lr=0.1, alpha=1, beta=1, sigma=0).steps
    inf

    References: replaces Sang and Liu, Theorem 3 (4.7).
    """
    s = _setting(
        criterion, failure, D, d_init, k0, gamma=gamma, lr=lr, alpha=alpha, beta=beta, sigma=sigma,
        delta=delta, gradient_variance=gradient_variance, dim=dim, radius=radius, drop=drop,
        bath_curvature=bath_curvature, pool=_pool(share, dim, aligned),
    )  # fmt: skip
    pace = np.log1p(s.gamma * s.lr * s.D ** (-s.alpha / 2))
    drag = s.delta + s.gradient_variance

    def grown(clock: FloatArray) -> FloatArray:
        """D after a clock, fed by c alone; the clock may have one more axis than the setting."""
        return s.D[..., None] * np.exp(
            _stretch((drag / (pace * s.D))[..., None] * clock, s.alpha[..., None])
        )

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        start = s.temperature(s.D)
        nodes, weights = _LAGUERRE
        mean = s.temperature(grown(nodes / 2)) @ weights
        frozen_clock, _ = _needed(s, criterion, start, start)
        leading = s.D / drag * np.expm1(_stretch(drag * frozen_clock / (pace * s.D), s.alpha))
        leading = np.where(drag > 0, leading, frozen_clock / pace)

        bath = mean
        clock, reach2 = _needed(s, criterion, mean, bath)
        for _ in range(30 if criterion == "value" else 0):
            # The bath cools until the escape, the escape waits for the bath: damped fixed point.
            bath = (bath + s.temperature(grown(clock[..., None]))[..., 0]) / 2
            clock, reach2 = _needed(s, criterion, mean, bath)

        drag = drag + s.bath_curvature * mean * (s.pool - 1) / s.pool
        own = s.gamma**2 * reach2 / np.expm1(2 * clock) / s.pool

        def stretched(part: FloatArray) -> FloatArray:
            """D / D_k0 when the given part of the clock has run, the own gradients included."""
            run = clock * part
            fed = drag * run + own * (np.expm1(2 * run) / 2 - run)
            return np.exp(_stretch(fed / (pace * s.D), s.alpha))

        nodes, weights = _LEGENDRE
        slowdown = sum(
            weight / 2 * stretched(np.asarray((1 + node) / 2)) ** (s.alpha / 2)
            for node, weight in zip(nodes, weights, strict=True)
        )
        steps = clock / pace * slowdown
        growth = stretched(np.asarray(1.0))
        far = s.gamma * reach2 >= RELIABLE_REACH * mean
    silent = np.isinf(clock)
    steps, growth = np.where(silent, np.inf, steps), np.where(silent, np.inf, growth)
    a1, a2, a3 = published_constants
    published = published_escape_time(s.gamma, s.alpha, s.beta, s.dim, a1=a1, a2=a2, a3=a3)
    return EscapeTime(
        unwrap(steps),
        unwrap(leading),
        published,
        unwrap(clock),
        unwrap(mean),
        unwrap(growth),
        unwrap(far & ((growth < RELIABLE_GROWTH) | (s.alpha == 0))),
    )


def _needed(
    s: _Setting, criterion: str, hot: FloatArray, bath: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Clock L and squared distance at which the criterion is met."""
    if criterion == "distance":
        reach2 = s.radius**2
    else:
        reach2 = ((s.dim - 1) * bath + 2 * s.drop) / s.gamma
    ratio = np.where(hot > 0, s.gamma * reach2 / (s.z2 * hot), np.inf)
    return 0.5 * np.log1p(ratio), reach2


def escape_recursion(
    gamma: ArrayLike,
    *,
    lr: ArrayLike,
    alpha: ArrayLike,
    beta: ArrayLike,
    sigma: ArrayLike,
    delta: ArrayLike = 1e-2,
    d_init: ArrayLike = 1.0,
    gradient_variance: ArrayLike = 0.0,
    k0: ArrayLike = 0.0,
    D: ArrayLike | None = None,
    dim: ArrayLike = 1,
    criterion: str = "distance",
    radius: ArrayLike = 1.0,
    drop: ArrayLike = 0.0,
    failure: ArrayLike = 0.5,
    aligned: bool = True,
    share: ArrayLike | None = None,
    bath_curvature: ArrayLike = 1.0,
    max_steps: int = 1_000_000,
) -> Number:
    """Steps to escape, by iterating the variance v of y and the accumulator together.

        v <- (1 + gamma h)^2 v + h^2 C + 2 lr sigma^2 D^-beta,   D <- D + delta + C + gamma^2 Z^2 v

    until Z^2 v reaches what the criterion asks, where Z is the `failure` quantile of |N(0, 1)|.
    The stable directions, of curvature `bath_curvature`, follow the same recursion with the other
    sign. With a `share` below 1, 1/share directions feed one D and receive their mean squared
    gradient: the escape and 1/share - 1 stable ones; for a direction spread over all axes
    (aligned=False) these are all. Other arguments as in `escape_time`, whose `reliable` says where
    quantiles may be trusted: the recursion follows one D, that of a chain with |y| = Z sqrt(v).

    Returns:
        Steps, inf where `max_steps` were not enough. Costs one pass of vector operations per step.

    >>> escape_recursion(0.5, lr=0.1, alpha=1, beta=1, sigma=0.1, gradient_variance=0.1, k0=100)
    299.0
    """
    s = _setting(
        criterion, failure, D, d_init, k0, gamma=gamma, lr=lr, alpha=alpha, beta=beta, sigma=sigma,
        delta=delta, gradient_variance=gradient_variance, dim=dim, radius=radius, drop=drop,
        bath_curvature=bath_curvature, pool=_pool(share, dim, aligned),
    )  # fmt: skip
    shape = s.D.shape
    steps = np.full(s.D.size, np.inf)
    active = np.arange(s.D.size)
    live = s.flat()
    # Two accumulators: the escape's own, and that of the stable directions that do not share it.
    both_D = np.stack([live.D, live.D])
    v, v_bath = np.zeros(live.D.size), np.zeros((2, live.D.size))
    for t in range(max_steps + 1):
        spread, bathers = live.z2 * v, np.stack([live.pool - 1, live.dim - live.pool])
        if criterion == "distance":
            escaped = spread >= live.radius**2
        else:
            bath = np.sum(live.bath_curvature * bathers * v_bath, axis=0)
            escaped = live.gamma * spread > 2 * live.drop + bath
        if escaped.any():
            steps[active[escaped]] = t
            left = ~escaped
            active, live, bathers = active[left], live.take(left), bathers[:, left]
            both_D, v_bath = both_D[:, left], v_bath[:, left]
            v, spread = v[left], spread[left]
        if active.size == 0:
            break
        feed, feed_bath = live.gamma**2 * spread, live.bath_curvature**2 * v_bath
        h, noise = live.step(both_D)
        v = (1 + live.gamma * h[0]) ** 2 * v + noise[0]
        v_bath = np.where(bathers > 0, (1 - live.bath_curvature * h) ** 2 * v_bath + noise, 0.0)
        own = (feed + bathers[0] * feed_bath[0]) / live.pool
        drag = live.delta + live.gradient_variance
        both_D = both_D + drag + np.stack([own, feed_bath[1]])
    return number(steps.reshape(shape))


def published_escape_time(
    gamma: ArrayLike,
    alpha: ArrayLike,
    beta: ArrayLike,
    dim: ArrayLike,
    *,
    a1: float = PUBLISHED_CONSTANTS[0],
    a2: float = PUBLISHED_CONSTANTS[1],
    a3: float = PUBLISHED_CONSTANTS[2],
) -> Number:
    """T_max of Theorem 3 as printed: (a1 log d + a2 min(alpha, beta)) / (log gamma + a3).

    The paper leaves a1, a2 > 0 free and asks a3 to be large enough for a positive denominator; NaN
    where it is not. Note what is missing: lr, k0, the noise and the size of D.

    >>> float(np.round(published_escape_time(1.0, 0.0, 1.0, np.e**2, a3=4.0), 12))
    0.5
    """
    below = np.log(floats("gamma", gamma, strict=True)) + a3
    least = np.minimum(floats("alpha", alpha), floats("beta", beta))
    above = a1 * np.log(floats("dim", dim, low=1)) + a2 * least
    return number(np.where(below > 0, above / np.where(below > 0, below, 1), np.nan))


def braking_onset(
    gamma: ArrayLike,
    *,
    lr: ArrayLike,
    alpha: ArrayLike,
    D: ArrayLike,
    share: ArrayLike = 1.0,
) -> Number:
    """Distance |y| from which an escape brakes itself.

        y^2 = 2 lr D^(1 - alpha/2) / (gamma share)

    There the squared gradients of the escape itself have doubled D; `share` of them reach it, all
    for a direction along an axis (see `own_share`). Beyond, for alpha > 0, growth is no longer
    exponential but y ~ t^(1/alpha - 1/2); at alpha = share = 1, y = 2 sqrt(2) lr sqrt(t).

    >>> braking_onset(0.5, lr=0.1, alpha=1, D=100.0)
    2.0
    """
    step, a = floats("lr", lr, strict=True), floats("alpha", alpha)
    y2 = 2 * step * floats("D", D, strict=True) ** (1 - a / 2) / floats("gamma", gamma, strict=True)
    return number(np.sqrt(y2 / floats("share", share, strict=True)))


def own_share(shape: str, direction: ArrayLike) -> float:
    """The part of a direction's squared gradient that the direction's own D receives.

        share = <V, S(V) V>,    V the direction, of length 1

    where D grows by S(G) each step and S(V) V is that growth applied to V. A share is between
    1/d, everything spread, and 1. It is what `escape_time`, `escape_recursion` and `braking_onset`
    need to know of the shape: at a distance y, D grows along V in the mean by

        delta + C + share gamma^2 y^2 + (1 - share) lambda T_eff

    where lambda T_eff is the mean squared gradient of a stable direction, because every shape sends
    white noise to the identity. For an n x m matrix V:

    ==========  ======================================  ===================  ======================
    shape       S(G)                                    share                if V = u v'
    ==========  ======================================  ===================  ======================
    scalar      mean of G*G                             1 / nm               1 / nm
    row         mean of G*G over the columns            sum |V_i|^4 / m      sum u_i^4 / m
    coordinate  G*G, the paper                          sum V_ij^4           sum u_i^4 sum v_j^4
    left        G G' / m, from the left                 Tr (V V')^2 / m      1 / m
    both        G G' / m from the left, G' G / n from   Tr (V V')^2          1 / 2m + 1 / 2n
                the right, exponents halved               (1 / 2m + 1 / 2n)
    ==========  ======================================  ===================  ======================

    A vector is a matrix of one column: "left" then has the share 1 in every basis, and brakes like
    a coordinate along an axis. The shares of "left" and "both" do not change when V is rotated. A
    direction of full rank with equal singular values has 1 / (m min(n, m)) for "left". The share is
    exact while the growth of D due to the escape is small, and for all growth where V is an
    eigenvector of it: for "scalar", for u v' with "left", for u v' with "both" and n = m, for one
    row with "row" and one entry with "coordinate", or spread evenly over all.

    Args:
        shape: one of those above.
        direction: n x m, or a vector; its length does not matter.

    >>> own_share("coordinate", [1, 1, 0, 0]), own_share("left", [1, 1, 0, 0])
    (0.5, 1.0)
    >>> own_share("left", [[1, 1, 0, 0]]), own_share("row", [[1, 1, 0, 0]])
    (0.25, 0.25)
    """
    choice("shape", shape, SHAPES)
    V = np.asarray(direction, dtype=np.float64)
    V = V[:, None] if V.ndim == 1 else V
    squares = np.square(V)
    total = float(np.sum(squares))
    is_direction = V.ndim == 2 and total > 0 and bool(np.isfinite(total))
    require(is_direction, "direction", direction, "a vector or a matrix, finite and not zero")
    n, m = V.shape
    if shape == "scalar":
        return 1 / V.size
    if shape == "coordinate":
        fed = np.sum(squares**2)
    elif shape == "row":
        fed = np.sum(np.sum(squares, axis=1) ** 2) / m
    else:
        fed = np.sum((V.T @ V) ** 2) * (1 / m if shape == "left" else (1 / m + 1 / n) / 2)
    return float(fed) / total**2


def effective_curvature(
    hessian: ArrayLike, D: ArrayLike, alpha: float, *, right: ArrayLike | None = None
) -> float:
    """Escape rate per unit lr for any Hessian H and any D.

        -lambda_min(D^(-alpha/4) H D^(-alpha/4))

    D and H need not commute. D^(-alpha/2) H is similar to the matrix above, which by Sylvester's
    law has as many negative eigenvalues as H: no D closes a saddle. The value lies in gamma [max
    D^(-alpha/2), min D^(-alpha/2)] by Ostrowski's theorem, with max and min over eigenvalues and
    gamma = -lambda_min(H); negative if there is no direction to escape along.

    Args:
        hessian: d x d; that of an n x m matrix W is over the entries of W row by row.
        D: d numbers, a diagonal; or a matrix n x n that multiplies W from the left, d = n m. A
            vector of d unknowns is the case m = 1.
        alpha: of the run.
        right: m x m, if another matrix multiplies W from the right. The step is then
            D^(-alpha/4) G right^(-alpha/4).

    >>> round(effective_curvature([[1.0, 0.0], [0.0, -0.5]], [1.0, 4.0], alpha=1), 12)
    0.25
    >>> round(effective_curvature([[0.0, 0.5], [0.5, 0.0]], [[2.5, -1.5], [-1.5, 2.5]], 1), 12)
    0.25
    """
    matrix = np.asarray(hessian, dtype=np.float64)
    if right is not None:
        sides = [_power("D", D, -alpha / 8), _power("right", right, -alpha / 8)]
    elif np.ndim(D) == 2:
        side = _power("D", D, -alpha / 4)
        sides = [side, np.eye(len(matrix) // len(side))]
    else:
        sides = []
    scale = np.kron(*sides) if sides else floats("D", D, strict=True) ** (-alpha / 4)
    if (
        matrix.ndim != 2
        or matrix.shape[0] != matrix.shape[1]
        or scale.shape[-1:] != matrix.shape[:1]
    ):
        raise ValueError(
            f"hessian, D: shapes {matrix.shape}, {np.shape(D)} do not fit; need (d, d), (d,), or "
            "for matrices (n, n) with d = n m, and right (m, m)"
        )
    if not sides:
        return -float(np.linalg.eigvalsh(scale[:, None] * matrix * scale)[0])
    return -float(np.linalg.eigvalsh(scale @ matrix @ scale)[0])


def _power(name: str, matrix: ArrayLike, exponent: float) -> FloatArray:
    """A power of a symmetric positive definite matrix."""
    array = np.asarray(matrix, dtype=np.float64)
    square = array.ndim == 2 and array.shape[0] == array.shape[1]
    require(square and np.allclose(array, array.T), name, matrix, "a symmetric matrix")
    values, vectors = np.linalg.eigh(array)
    floats(f"the smallest eigenvalue of {name}", values[:1], strict=True)
    return np.asarray((vectors * values**exponent) @ vectors.T)


def _stretch(x: FloatArray, alpha: FloatArray) -> FloatArray:
    """ln D(t)/D(0) after a clock worth x: log(1 + e x)/e with e = 1 - alpha/2, and x at e = 0."""
    e = 1 - alpha / 2
    flat = np.abs(e) < 1e-9
    inside = np.maximum(np.where(flat, 0.0, e) * x, -1.0)
    return np.where(flat, x, np.log1p(inside) / np.where(flat, 1.0, e))


@dataclass
class _Setting:
    """The arguments, checked and broadcast to one shape."""

    gamma: FloatArray
    lr: FloatArray
    alpha: FloatArray
    beta: FloatArray
    sigma: FloatArray
    delta: FloatArray
    gradient_variance: FloatArray
    D: FloatArray
    dim: FloatArray
    radius: FloatArray
    drop: FloatArray
    z2: FloatArray
    bath_curvature: FloatArray
    pool: FloatArray

    def step(self, D: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Step multiplier and variance of the noise of one step."""
        h = self.lr * D ** (-self.alpha / 2)
        return h, h**2 * self.gradient_variance + 2 * self.lr * self.sigma**2 * D**-self.beta

    def temperature(self, D: FloatArray) -> FloatArray:
        """T_eff for accumulators D, which may have one more axis than the setting."""
        wide = self if D.ndim == self.D.ndim else self._wide()
        noise = wide.sigma**2 * D ** (wide.alpha / 2 - wide.beta)
        return np.asarray(noise + 0.5 * wide.lr * wide.gradient_variance * D ** (-wide.alpha / 2))

    def _wide(self) -> _Setting:
        return _Setting(**{name: value[..., None] for name, value in vars(self).items()})

    def flat(self) -> _Setting:
        return _Setting(**{name: value.reshape(-1) for name, value in vars(self).items()})

    def take(self, mask: BoolArray) -> _Setting:
        return _Setting(**{name: value[mask] for name, value in vars(self).items()})


# What each argument must satisfy; see `floats`.
_RULES: dict[str, dict[str, Any]] = {
    "gamma": {"strict": True, "remedy": "a saddle has negative curvature -gamma"},
    "lr": {"strict": True},
    "beta": {"remedy": "for no injected noise use sigma=0"},
    "dim": {"low": 1},
    "radius": {"strict": True},
}


def _pool(share: ArrayLike | None, dim: ArrayLike, aligned: bool) -> ArrayLike:
    """1/share: how many directions feed the D of the escape, itself included."""
    if share is None:
        return 1.0 if aligned else dim
    part, d = floats("share", share, strict=True), floats("dim", dim, low=1)
    fits = bool(np.all((part <= 1 + 1e-9) & (part * d >= 1 - 1e-9)))
    require(fits, "share", share, "1/dim <= share <= 1; dim counts all coordinates")
    return np.clip(1 / part, 1.0, d)


def _setting(
    criterion: str,
    failure: ArrayLike,
    D: ArrayLike | None,
    d_init: ArrayLike,
    k0: ArrayLike,
    **arguments: ArrayLike,
) -> _Setting:
    choice("criterion", criterion, CRITERIA)
    chance = np.asarray(failure, dtype=np.float64)
    is_chance = bool(np.all((chance > 0) & (chance < 1)))
    require(is_chance, "failure", failure, "a probability strictly between 0 and 1")
    values = {name: floats(name, x, **_RULES.get(name, {})) for name, x in arguments.items()}
    growth = values["delta"] + values["gradient_variance"]
    met = floats("d_init", d_init, strict=True) + floats("k0", k0) * growth
    values["D"] = met if D is None else floats("D", D, strict=True)
    # beta = inf means no noise; D^-inf would be 1 or inf for D <= 1.
    silent = np.isinf(values["beta"])
    for name in ("beta", "sigma"):
        values[name] = np.where(silent, 0.0, values[name])
    quantile: Any = np.vectorize(NormalDist().inv_cdf, otypes=[float])
    values["z2"] = quantile((1 + chance) / 2) ** 2
    arrays = np.broadcast_arrays(*values.values())
    return _Setting(**dict(zip(values, arrays, strict=True)))
