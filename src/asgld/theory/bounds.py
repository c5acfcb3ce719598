"""The three terms of Theorem 1 as numbers, and what they cost in iterations and samples.

A run is summed up by four sums over its accumulators (`Accumulators`). `terms` turns them into I1,
I2 and I3; `complexity` predicts them from constants of the problem and asks when they fall below
eps^2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from asgld.arguments import require_at_least_zero, require_positive
from asgld.theory._arguments import FloatArray, Number, choice, floats, number, unwrap
from asgld.theory.rates import VERSIONS, Rate, rate

_EXACT = 4096  # sums are exact up to here; beyond, the midpoint integral errs by less than 1e-7
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_LONGEST = 2.0**200


@dataclass(frozen=True)
class Accumulators:
    """What the terms need to know of a run of k steps.

    =============  ==========================================  =================================
    attribute      sum over j < k of                           enters
    =============  ==========================================  =================================
    trace_step     Tr D_j^(-alpha/2)                           denominator, published
    min_step       (max_i D_j,i)^(-alpha/2)                    denominator, corrected
    trace_sample   Tr D_j^(-alpha) / B_j                       I2
    trace_noise    Tr D_j^(-beta)                              I3
    =============  ==========================================  =================================

    Expectations may be averaged in. Each may be an array (over time or over replicas).
    """

    trace_step: Number
    min_step: Number
    trace_sample: Number
    trace_noise: Number


def running_sums(
    D: ArrayLike, alpha: float, beta: float, *, batch_size: ArrayLike = 1.0
) -> Accumulators:
    """Running sums after 1, 2, ..., k steps from a recorded history of the accumulator.

    A D of another shape has eigenvalues in place of entries: those of D, each m times, for a D that
    multiplies n x m matrices from the left; the products sqrt(l_i r_j) for L and R from both sides.
    The sums then have the same orders, since they telescope: if D grows by S_j >= 0,

        sum Tr D_{j+1}^-p S_j <= Tr F(D_k) - Tr F(D_0) <= sum Tr D_j^-p S_j,   F' = x^-p,

    by Klein's inequality for the concave F, whether the D_j commute or not. Let
    D_{j+1} <= rho D_j. The right sum is at most rho^q times the left one, with q = p for p <= 1, by
    Loewner and Heinz, and q = 2 for 1 < p <= 2: with X = D_j^(-1/2) D_{j+1} D_j^(-1/2) Hansen's
    inequality gives Tr D_{j+1}^-p S_j >= Tr D_j^(1-p) X^-2 (X - 1) >= rho^-2 Tr D_j^-p S_j. For
    p > 2 the right sum is at most rho^2 min(D_0)^(2-p) Tr D_0^-1. The rho^p of diagonals is false
    for matrices and 1 < p < 2: diag(1, 100) that grows by 100 z z' with z = (1, 10)'. Nor do powers
    above one fall along every direction: diag(1, 4) that grows by g g' with g = (2, 2)' raises an
    entry of D^-2 from 1/16 to 41/576. The proofs use eigenvalues and traces only. Squared steps are
    such sums: |D^(-alpha/2) G|^2 = Tr D^-alpha G G' from the left; from both sides at most the root
    of Tr L^-alpha G G' times Tr R^-alpha G' G.

    Args:
        D: shape (k, d), the diagonal used in each step, or the eigenvalues.
        alpha, beta: exponents of the run; beta = inf for no noise.
        batch_size: B_j, a number or shape (k,).

    >>> sums = running_sums([[1.0, 4.0], [4.0, 16.0]], alpha=1, beta=1)
    >>> sums.trace_step.tolist(), sums.min_step.tolist()
    ([1.5, 2.25], [0.5, 0.75])
    """
    history = np.atleast_2d(floats("D", D, strict=True))
    batches = np.broadcast_to(floats("batch_size", batch_size, strict=True), history.shape[:1])
    noise = np.zeros(len(history)) if math.isinf(beta) else np.sum(history**-beta, axis=1)
    return Accumulators(
        np.cumsum(np.sum(history ** (-alpha / 2), axis=1)),
        np.cumsum(history.max(axis=1) ** (-alpha / 2)),
        np.cumsum(np.sum(history**-alpha, axis=1) / batches),
        np.cumsum(noise),
    )


class Terms(NamedTuple):
    """I1 (start), I2 (sampling noise), I3 (injected noise)."""

    I1: Number
    I2: Number
    I3: Number

    @property
    def total(self) -> Number:
        """The bound itself."""
        return self.I1 + self.I2 + self.I3

    @property
    def dominant(self) -> str:
        """Name of the largest term (at the last entry, for arrays)."""
        last = [float(np.asarray(term).flat[-1]) for term in self]
        return self._fields[int(np.argmax(last))]


def terms(
    sums: Accumulators,
    *,
    lr: float,
    smoothness: float,
    f_gap: ArrayLike,
    sigma: float = 0.0,
    gradient_variance: float = 0.0,
    version: str = "corrected",
) -> Terms:
    """I1, I2 and I3 for given constants and sums.

        I1 = (2 f_gap / lr) / W
        I2 = M lr C (sum Tr D^-alpha / B) / W
        I3 = 2 M sigma^2 (sum Tr D^-beta) / W

    The two versions differ in W alone: published W = sum Tr D^(-alpha/2), corrected
    W = sum (max D)^(-alpha/2). The trace comes from v'Dv <= Tr(D) v'v, which the paper applies to a
    term with a minus sign; the published bound is smaller by d or more.

    Args:
        sums: see `Accumulators`.
        lr: eta. smoothness: M, Lipschitz constant of the gradient.
        f_gap: f(x_0) - f_low, or f(x_0) - E f(x_k).
        sigma: scale of the injected noise.
        gradient_variance: C, variance of one sample's gradient, per coordinate.
        version: "published" or "corrected".

    >>> sums = Accumulators(trace_step=10.0, min_step=1.0, trace_sample=10.0, trace_noise=10.0)
    >>> terms(sums, lr=0.5, smoothness=1.0, f_gap=2.0, sigma=0.1).I1
    8.0

    References: Sang and Liu, Theorem 1 (4.1).
    """
    choice("version", version, VERSIONS)
    step = float(floats("lr", lr, strict=True))
    smooth = float(floats("smoothness", smoothness))
    gap = floats("f_gap", f_gap, low=-np.inf)
    weight = np.asarray(sums.trace_step if version == "published" else sums.min_step)
    i1 = 2 * gap / step / weight
    i2 = smooth * step * gradient_variance * np.asarray(sums.trace_sample) / weight
    i3 = 2 * smooth * sigma**2 * np.asarray(sums.trace_noise) / weight
    return Terms(number(i1), number(i2), number(i3))


@dataclass(frozen=True)
class Constants:
    """What a prediction in numbers needs to know beyond the exponents.

    ==============  =====================================================================
    attribute       meaning
    ==============  =====================================================================
    smoothness      M, Lipschitz constant of the gradient
    f_gap           f(x_0) - f_low
    dim             d
    lr              eta; needs lr d_init^(-alpha/2) <= 1/M
    sigma           scale of the injected noise
    gradient_variance   C, variance of one sample's gradient, per coordinate
    grad_bound      L, largest |grad f| met
    delta, d_init   D_0 = d_init, D grows by delta each step on top of G^2
    batch_size      B_0 in B_j = B_0 (1 + j)^theta
    num_samples     n, the cost of one full gradient
    ==============  =====================================================================
    """

    smoothness: float
    f_gap: float
    dim: int
    lr: float
    sigma: float = 0.0
    gradient_variance: float = 0.0
    grad_bound: float = 1.0
    delta: float = 1e-2
    d_init: float = 1.0
    batch_size: float = 1.0
    num_samples: float = 1.0

    def __post_init__(self) -> None:
        require_positive(self, "smoothness", "dim", "lr", "delta", "d_init")
        require_positive(self, "batch_size", "num_samples")
        require_at_least_zero(self, "f_gap", "sigma", "gradient_variance", "grad_bound")

    @property
    def growth(self) -> float:
        """Lambda = delta + L^2 + d C / B_0: E max_i D_j <= d_init + j Lambda."""
        sampled = self.dim * self.gradient_variance / self.batch_size
        return self.delta + self.grad_bound**2 + sampled


def predicted_sums(
    k: float, alpha: float, beta: float, constants: Constants, *, theta: float = 0.0
) -> Accumulators:
    """Worst-case sums after k steps.

        d_init + j delta <= D_j,    E max_i D_j <= d_init + j Lambda

    >>> problem = Constants(smoothness=1.0, f_gap=1.0, dim=3, lr=0.1, delta=1.0)
    >>> predicted_sums(100, 0, 1, problem).min_step
    100.0
    """
    slow, fast, dim = constants.delta, constants.growth, constants.dim

    def power(phi: float, slope: float, batch: float = 0.0) -> float:
        return _sum_to(k, lambda j: (constants.d_init + slope * j) ** -phi * (1 + j) ** -batch)

    clock = power(alpha / 2, fast)
    sample = dim * power(alpha, slow, theta) / constants.batch_size
    noise = 0.0 if math.isinf(beta) else dim * power(beta, slow)
    return Accumulators(dim * clock, clock, sample, noise)


@dataclass(frozen=True)
class Complexity:
    """Cost of an eps-first-order stationary point, |grad f| <= eps.

        iterations = O~(eps^-iteration_power d^dim_power),   samples = O~(eps^-sample_power)

    Attributes:
        rate: the rate it follows from.
        iteration_power, sample_power: inf where the bound never gets there polynomially.
        log_power: power of log(1/eps) in the iterations.
        dim_power: power of d with sigma and C fixed per coordinate and Lambda fixed.
        iterations, samples: numbers, where constants were given (inf: not within the bound).
    """

    rate: Rate
    iteration_power: Number
    sample_power: Number
    log_power: Number
    dim_power: Number
    iterations: Number | None = None
    samples: Number | None = None


def complexity(
    eps: ArrayLike | None = None,
    alpha: ArrayLike = 1.0,
    beta: ArrayLike = 1.0,
    *,
    method: str = "asgld",
    theta: ArrayLike = 0.0,
    version: str = "corrected",
    noise: str = "per-coordinate",
    constants: Constants | None = None,
) -> Complexity:
    """Iterations and samples to reach |grad f| <= eps.

    A bound k^-e means eps^(-2/e) iterations, and with batches k^theta (eps^(-2/e))^(1 + theta)
    samples: N^-(e/(1 + theta)) in samples N, which is at most N^-1/2, reached exactly where
    alpha + theta = 1 and beta >= 1. For AGLD one iteration costs num_samples samples, a factor and
    not a power.

    The dimension: I2 and I3 are sums over d coordinates, so at fixed sigma and C per coordinate
    the bound is d k^-e and the iterations grow like d^(1/e). With noise="total" (sigma^2 =
    sigma_tot^2/d, C = C_tot/d) the power is 0. The published version has no d in I2 and I3. With
    Lambda of `Constants.growth` the iterations are about

        AGLD (0, 1)    K = [2 f_gap/lr + (2 M sigma^2 d/delta) log K] / eps^2
        ASGLD (1, 1)   K = Lambda [2 f_gap/lr + (d/delta)(M lr C + 2 M sigma^2) log K]^2 / (4 eps^4)

    Args:
        eps: target, scalar or array; needed with `constants` only.
        alpha, beta, theta: scalars when `constants` is given, else anything that broadcasts.
        method, version: as in `rate`.
        noise: "per-coordinate" or "total": what stays fixed as d grows.
        constants: give them to get numbers.

    >>> cost = complexity(alpha=0, beta=1, theta=1)
    >>> cost.iteration_power, cost.sample_power
    (2.0, 4.0)
    >>> problem = Constants(smoothness=1.0, f_gap=1.0, dim=10, lr=0.5, sigma=0.1)
    >>> cost = complexity(0.1, 0, 2, method="agld", constants=problem)
    >>> 1000 < cost.iterations < 10000
    True
    """
    choice("noise", noise, ("per-coordinate", "total"))
    order = rate(alpha, beta, method=method, theta=theta, version=version)
    exponent, falls = np.asarray(order.exponent), np.asarray(order.exponent) > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        power = np.where(falls, 2 / exponent, np.inf)
        logs = np.where(falls, np.asarray(order.log_power) / exponent, np.nan)
    powers = np.where(np.isnan(exponent), np.nan, power)
    quiet = np.isinf(np.asarray(order.beta)) & (method == "agld")
    d_free = quiet | (noise == "total") | (version == "published")
    iterations, samples = None, None
    if constants is not None:
        if eps is None:
            raise ValueError("eps=None: constants were given, so give the target accuracy too")
        if np.ndim(order.exponent):
            raise ValueError("alpha, beta, theta: numbers need scalars; call once per setting")
        targets = floats("eps", eps, strict=True)
        costs = [_numbers(float(target), order, constants) for target in targets.flat]
        iterations, samples = (
            unwrap(np.reshape([cost[i] for cost in costs], targets.shape)) for i in (0, 1)
        )
    return Complexity(
        order,
        unwrap(powers),
        unwrap(powers * (1 + np.asarray(order.theta))),
        unwrap(logs),
        unwrap(np.where(d_free, 0.0, powers / 2)),
        iterations,
        samples,
    )


def _numbers(eps: float, order: Rate, constants: Constants) -> tuple[float, float]:
    """First k whose bound is below eps^2, and the samples spent until then."""
    alpha, beta, theta = (float(np.asarray(x)) for x in (order.alpha, order.beta, order.theta))
    if constants.smoothness * constants.lr * constants.d_init ** (-alpha / 2) > 1 + 1e-12:
        raise ValueError(
            f"lr={constants.lr!r}: the bound needs lr * d_init**(-alpha/2) <= 1/smoothness; "
            f"lower lr or raise d_init"
        )
    variance = 0.0 if order.method == "agld" else constants.gradient_variance

    def bound(k: float) -> float:
        total = terms(
            predicted_sums(k, alpha, beta, constants, theta=theta),
            lr=constants.lr,
            smoothness=constants.smoothness,
            f_gap=constants.f_gap,
            sigma=0.0 if math.isinf(beta) else constants.sigma,
            gradient_variance=variance,
            version=order.version,
        ).total
        return float(total)

    k = _first(lambda k: bound(k) <= eps**2)
    if order.method == "agld":
        return k, k * constants.num_samples
    return k, constants.batch_size * _sum_to(k, lambda j: (1 + j) ** theta)


def _first(holds: Callable[[float], bool]) -> float:
    """Smallest integer k >= 1 at which a condition that stays true becomes true; inf for never."""
    high = 1.0
    while not holds(high):
        high *= 2
        if high > _LONGEST:
            return math.inf
    low = high / 2
    while high - low > max(1.0, 1e-9 * high):
        middle = float(math.floor((low + high) / 2))
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _sum_to(k: float, function: Callable[[FloatArray], FloatArray]) -> float:
    """sum_{0 <= j < k} function(j) for a smooth function that varies on the scale of 1 + j."""
    if math.isinf(k):
        return math.inf
    exact = float(np.sum(function(np.arange(min(k, _EXACT), dtype=np.float64))))
    if k <= _EXACT:
        return exact
    edges = np.geomspace(_EXACT - 0.5, k - 0.5, 2 + int(math.log2(k / _EXACT)))
    middle, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    points = middle[:, None] + half[:, None] * _NODES
    return exact + float(np.sum(half[:, None] * _WEIGHTS * function(points)))
