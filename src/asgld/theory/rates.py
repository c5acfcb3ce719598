"""Orders in k: how fast the bound on the squared gradient falls, for every (alpha, beta, theta).

Section 4.1 of the paper bounds the smallest squared gradient of the first k iterates by three
terms. Written with sums over the accumulator D_j, which grows like j, they are

    I1 = (2 f_gap / lr) / S(alpha/2)                        what is left of the start
    I2 = M lr C d S(alpha + theta) / S(alpha/2)             sampling noise, batch B_j ~ j^theta
    I3 = 2 M sigma^2 d S(beta) / S(alpha/2)                 injected noise

    S(phi) = sum_{j<k} j^-phi = Theta(k^(1-phi)), Theta(log k), Theta(1)   for phi < 1, = 1, > 1

`version="published"` gives what Theorem 2, the batch theorem and Proposition 6 print, nothing
added; `version="corrected"` follows from the sums above. The two differ because Lemma 2 of the
paper uses k^(1-phi) for phi > 1 too, where it tends to zero while the sum does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asgld.theory._arguments import BoolArray, FloatArray, Number, choice, floats, unwrap

METHODS = ("asgld", "agld", "asg", "sgld")
VERSIONS = ("published", "corrected")
GOALS = ("converge", "escape", "balanced")
ORACLES = ("full", "stochastic")

# Exponents are typed in by people (0.7 + 0.3), so a border is met when it is met to rounding.
_TIE = 1e-12


class Order(NamedTuple):
    """The order k^power (log k)^log_power; power = -inf stands for a term that is zero."""

    power: FloatArray
    log_power: FloatArray


@dataclass(frozen=True)
class Rate:
    """How the bound on the squared gradient behaves: k^-exponent (log k)^log_power.

    Every field is a scalar for scalar arguments and an array of the broadcast shape otherwise.

    Attributes:
        method, version, alpha, beta, theta: what was asked.
        exponent: NaN where the published version makes no statement; negative where it grows.
        log_power: 1, 0 or -1; in the published version 1 wherever the paper writes O-tilde.
        converges: whether the bound tends to zero.
        dominant: the term or terms of this order, such as "I2" or "I1+I3".
        region: see `region`.
        last_iterate: exponent of E|grad f(x_k)|^2 = Tr(H) T_eff(D_k) in a strongly convex basin:
            min(alpha + theta, beta) - alpha/2 = tau; tau/(1 + tau) where tau < 0 heats, since the
            noise's own gradients then feed D; NaN: no statement.
        orders: order of each term, by name.
    """

    method: str
    version: str
    alpha: Number
    beta: Number
    theta: Number
    exponent: Number
    log_power: Number
    converges: bool | BoolArray
    dominant: str | NDArray[np.str_]
    region: str | NDArray[np.str_]
    last_iterate: Number
    orders: dict[str, Order]

    @property
    def formula(self) -> Any:
        """The order as text, `k^-0.5 log k`; an array of texts for array arguments."""
        return _each(_formula, self.exponent, self.log_power)

    @property
    def sentence(self) -> Any:
        """One sentence for a reader; an array of sentences for array arguments."""

        def speak(alpha: float, beta: float, theta: float, kind: str, term: str, order: str) -> str:
            where = f"{self.method.upper()} at alpha={alpha:g}, beta={beta:g}"
            where += f", batches growing like k^{theta:g}" if theta else ""
            return f"{where}: {_VERDICTS[kind].format(order=order, term=term)} ({self.version})."

        return _each(
            speak, self.alpha, self.beta, self.theta, self.region, self.dominant, self.formula
        )


_VERDICTS = {
    "converges": "the bound on the squared gradient falls like {order}, set by {term}",
    "plateau": "the bound stops at a constant floor, set by {term}",
    "grows": "the bound grows like {order}, set by {term}",
    "frozen": "alpha > 2 makes the sum of all steps finite, so no convergence can be promised",
    "not covered": "the paper makes no statement",
}


def rate(
    alpha: ArrayLike,
    beta: ArrayLike = np.inf,
    *,
    method: str = "asgld",
    theta: ArrayLike = 0.0,
    version: str = "corrected",
) -> Rate:
    """Order of the bound on the squared gradient after k steps.

        min_{j<k} |grad f(x_j)|^2 ~ k^-(min(1, alpha + theta, beta) - alpha/2) (log k)^l,  alpha < 2

    with l = 1 exactly when min(alpha + theta, beta) = 1. AGLD drops alpha + theta, ASG drops beta;
    alpha = 2 leaves 1/log k if beta > 1; alpha > 2 never converges.

    ======  ========  =======================================================
    symbol  argument  meaning
    ======  ========  =======================================================
    alpha   alpha     exponent of D in the step,  lr D^(-alpha/2)
    beta    beta      exponent of D in the noise, D^(-beta/2); inf: no noise
    theta   theta     batch growth, B_k ~ k^theta
    ======  ========  =======================================================

    Args:
        alpha: >= 0, scalar or array.
        beta: >= 0, scalar or array; not read for method "asg".
        method: "asgld", "agld" (full gradients), "asg" (no injected noise) or "sgld" (both
            exponents 0).
        theta: >= 0, scalar or array; must be 0 for "agld", whose gradients have no batch.
        version: "published" or "corrected".

    >>> rate(1, 1).formula
    'k^-0.5 log k'
    >>> print(rate(1.5, 2).exponent, rate(1.5, 2, version="published").exponent)
    0.25 1.25
    >>> rate(0, 0, method="sgld").sentence
    'SGLD at alpha=0, beta=0: the bound stops at a constant floor, set by I2+I3 (corrected).'

    References: Sang and Liu, Theorem 2 (4.4), batch theorem (4.5), Proposition 6 (4.6).
    """
    choice("method", method, METHODS)
    choice("version", version, VERSIONS)
    a, b, t = np.broadcast_arrays(
        floats("alpha", alpha),
        floats("beta", beta, remedy="for no injected noise use beta=inf or method='asg'"),
        floats("theta", theta, remedy="shrinking batches are not analyzed"),
    )
    if method == "agld" and np.any(t > 0):
        raise ValueError(f"theta={float(t.max())!r}: AGLD uses full gradients, so theta must be 0")
    if method == "sgld" and (np.any(a > 0) or np.any((b > 0) & np.isfinite(b))):
        raise ValueError("method='sgld' means alpha = beta = 0; for other exponents use 'asgld'")
    if method == "asg":
        b = np.full_like(b, np.inf)
    if method == "sgld":
        b = np.zeros_like(b)

    orders = _term_orders(a, b, t, method)
    if version == "corrected":
        worst = _slowest(orders)
        exponent, log_power = -worst.power + 0.0, worst.log_power
        dominant = _names_of(worst, orders)
        last = _last_iterate(a, b, t, method)
    else:
        exponent, log_power, dominant = _published(a, b, t, method)
        last = np.full_like(a, np.nan)
    kind = _region(a, exponent, log_power)
    return Rate(
        method,
        version,
        unwrap(a),
        unwrap(b),
        unwrap(t),
        unwrap(exponent),
        unwrap(log_power),
        unwrap(kind == "converges"),
        unwrap(dominant),
        unwrap(kind),
        unwrap(last),
        orders,
    )


def region(alpha: ArrayLike, beta: ArrayLike = np.inf, **options: Any) -> str | NDArray[np.str_]:
    """The place of (alpha, beta) on the map of Figure 1; the arguments are those of `rate`.

    "converges": the bound tends to zero. "plateau": it stops at a constant (a fixed temperature).
    "grows": the noise heats, beta < alpha/2. "frozen": alpha > 2, the steps sum to a finite length.
    "not covered": the published version says nothing there.

    >>> region([0.5, 1.0, 1.0], [0.5, 0.5, 0.3]).tolist()
    ['converges', 'plateau', 'grows']
    >>> region(0, 1), region(0, 1, theta=0.5), region(0, 1, method="agld")
    ('plateau', 'converges', 'converges')
    """
    return rate(alpha, beta, **options).region


def sum_order(phi: ArrayLike, *, version: str = "corrected") -> Order:
    """Order in k of sum_{j<k} Tr D_j^-phi for each entry of D growing like j (Lemma 2).

    >>> for phi in (0.5, 1.0, 1.5):
    ...     print(*(float(sum_order(phi, version=version).power) for version in VERSIONS))
    0.5 0.5
    0.0 0.0
    -0.5 0.0
    """
    choice("version", version, VERSIONS)
    exponent = floats("phi", phi)
    at_one = np.abs(exponent - 1) <= _TIE
    power = np.where(at_one, 0.0, 1 - exponent)
    if version == "corrected":
        power = np.maximum(power, 0.0)
    return Order(np.asarray(power), np.asarray(at_one, dtype=np.float64))


def _term_orders(a: FloatArray, b: FloatArray, t: FloatArray, method: str) -> dict[str, Order]:
    """Order of I1, I2, I3: an order of sums over the order of S(alpha/2)."""
    clock = sum_order(a / 2)
    absent = Order(np.full_like(a, -np.inf), np.zeros_like(a))

    def ratio(sums: Order) -> Order:
        return Order(sums.power - clock.power, sums.log_power - clock.log_power)

    i1 = ratio(Order(np.zeros_like(a), np.zeros_like(a)))
    i2 = absent if method == "agld" else ratio(sum_order(a + t))
    i3 = ratio(sum_order(np.where(np.isinf(b), 2.0, b)))
    i3 = Order(np.where(np.isinf(b), -np.inf, i3.power), np.where(np.isinf(b), 0.0, i3.log_power))
    return {"I1": i1, "I2": i2, "I3": i3}


def _slowest(orders: dict[str, Order]) -> Order:
    """The order of a sum: largest power, among equals the largest log power."""
    power = np.max([order.power for order in orders.values()], axis=0)
    candidates = [
        np.where(order.power >= power - _TIE, order.log_power, -np.inf) for order in orders.values()
    ]
    power = np.where(np.abs(power) <= _TIE, 0.0, power)
    return Order(np.asarray(power), np.asarray(np.max(candidates, axis=0)))


def _names_of(worst: Order, orders: dict[str, Order]) -> NDArray[np.str_]:
    """The names of all terms that have the order `worst`, joined by '+'."""
    names = np.full(worst.power.shape, "", dtype="<U8")
    for name, order in orders.items():
        equal = (np.abs(order.power - worst.power) <= _TIE) & (order.log_power == worst.log_power)
        joined = np.char.add(np.where(names == "", "", np.char.add(names, "+")), name)
        names = np.where(equal, joined, names)
    return names


def _last_iterate(a: FloatArray, b: FloatArray, t: FloatArray, method: str) -> FloatArray:
    """Exponent of T_eff(D_k) in a quadratic basin, where E|grad|^2 = Tr(H) T_eff.

    A falling temperature leaves D ~ k. A rising one (tau < 0) feeds D by its own gradients,
    dD/dk ~ D^-tau, hence D ~ k^(1/(1+tau)). No statement where steps shrink like 1/k or faster,
    since the coordinate then lags behind the temperature: alpha >= 2, or alpha >= 1 + beta heating.
    """
    drift = b if method == "agld" else np.minimum(a + t, b)
    tau = drift - a / 2
    heats = tau < 0
    with np.errstate(invalid="ignore", divide="ignore"):
        exponent = np.where(heats, tau / (1 + tau), tau)
    follows = np.where(heats, a < 1 + b - _TIE, a < 2 - _TIE)
    return np.where(follows, exponent, np.nan)


def _region(a: FloatArray, exponent: FloatArray, log_power: FloatArray) -> NDArray[np.str_]:
    falls = (exponent > 0) | ((exponent == 0) & (log_power < 0))
    return np.select(
        [np.isnan(exponent), a > 2 + _TIE, falls, exponent == 0],
        ["not covered", "frozen", "converges", "plateau"],
        "grows",
    )


def _published(
    a: FloatArray, b: FloatArray, t: FloatArray, method: str
) -> tuple[FloatArray, FloatArray, NDArray[np.str_]]:
    """Exponent, log power and deciding term as printed; NaN where the paper is silent.

    Each row: condition, exponent, log power (1 for O-tilde), deciding term.
    """
    one, two = np.abs(a - 1) <= _TIE, np.abs(a - 2) <= _TIE
    zero, inside = a == 0, (a > 0) & (a < 2 - _TIE)
    fixed, admissible = t == 0, (b > a / 2 + _TIE) & np.isfinite(b)
    at_least_one = b >= 1 - _TIE
    Row = tuple[BoolArray, FloatArray | float, float, str]
    rows: list[Row]
    if method == "agld":
        rows = [
            (two & admissible, 0.0, -1, "I1"),
            (inside & at_least_one & admissible, 1 - a / 2, 0, "I1"),
            (inside & admissible, b - a / 2, 0, "I3"),
            (zero & at_least_one & admissible, 1.0, 1, "I3"),
            (zero & admissible, b, 0, "I3"),
        ]
    elif method == "asg":
        rows = [
            (fixed & two, 0.0, -1, "I1"),
            (fixed & inside & (a >= 1 - _TIE), 1 - a / 2, 0, "I1"),
            (fixed & inside, a / 2, 0, "I2"),
        ]
    else:
        linear = np.abs(t - 1) <= _TIE
        case = fixed & admissible
        rows = [
            (fixed & zero & (b == 0), 0.0, 0, "I2+I3"),
            (case & two, 0.0, -1, "I1"),
            (case & inside & (a > 1 + _TIE) & at_least_one, b - a / 2, 1, "I3"),
            (case & inside & (a > 1 + _TIE), 1 - a / 2, 0, "I1"),
            (case & one & (b > 1 + _TIE), 0.5, 1, "I2"),
            (case & one, b - 0.5, 0, "I3"),
            (case & inside & (b > a + _TIE), a / 2, 0, "I2"),
            (case & inside, b - a / 2, 0, "I3"),
            (~fixed & zero & admissible, np.minimum(1.0, np.minimum(t, b)), 1, "not stated"),
            (linear & one & (np.abs(b - 1) <= _TIE), 0.5, 1, "I1+I2+I3"),
        ]
    conditions = [row[0] for row in rows]
    exponent = np.select(conditions, [np.broadcast_to(row[1], a.shape) for row in rows], np.nan)
    log_power = np.select(conditions, [row[2] for row in rows], np.nan)
    dominant = np.select(conditions, [row[3] for row in rows], "not stated")
    return exponent, log_power, dominant


def _formula(exponent: float, log_power: float) -> str:
    if np.isnan(exponent):
        return "no statement"
    power = "" if exponent == 0 else f"k^{-exponent:.4g}"
    log = {1: "log k", 0: "", -1: "/log k"}[int(log_power)]
    if not power:
        return {1: "log k", 0: "constant", -1: "1/log k"}[int(log_power)]
    return f"{power}{log}" if log.startswith("/") else f"{power} {log}".strip()


def _each(function: Any, *values: Any) -> Any:
    """Apply a function of scalars to scalars or element by element to arrays."""
    if all(np.ndim(value) == 0 for value in values):
        return function(*values)
    return np.vectorize(function, otypes=[object])(*values)


@dataclass(frozen=True)
class Advice:
    """Exponents for a goal, with reasons.

    Attributes:
        method: "agld" or "asgld".
        alpha, beta, theta: exponents of the step, of the noise and of the batch size.
        rate: what the corrected theory promises for them.
        reasons: one sentence for each of alpha, beta and theta.
    """

    method: str
    alpha: float
    beta: float
    theta: float
    rate: Rate
    reasons: tuple[str, str, str]


_ALPHA_ZERO_FULL = (
    "alpha=0: full gradients carry no sampling noise to damp, I1 falls like 1/k at once, and the "
    "time to leave a saddle met late grows only like log k0."
)
_ALPHA_ZERO_BATCH = (
    "alpha=0: the growing batch damps the sampling noise, so the step need not shrink and the time "
    "to leave a saddle met late grows only like log k0."
)
_ALPHA_ONE = (
    "alpha=1: with a constant batch only a shrinking step damps the sampling noise, and alpha=1 "
    "balances it with the start; a larger alpha improves no guarantee and slows escape."
)
_ALPHA_HALF = (
    "alpha=0.5: late saddles cost k0^(1/4) steps in place of the k0^(1/2) of alpha=1; the bound "
    "pays with k^-1/4. alpha=0 would escape soonest but leaves a floor at a constant batch."
)
_BETA_TWO = (
    "beta=2: above 1 the injected noise sums to a constant and costs no order; it adds "
    "(beta/2) log D to the clock of an escape."
)
_BETA_ONE = (
    "beta=1: the slowest cooling whose noise costs no more than a log factor, so the noise stays "
    "as strong as the best exponent allows."
)
_BETA_HALF = (
    "beta=0.5: noise stays strong, so escapes start from a higher floor; the bound falls like "
    "k^-(beta - alpha/2) only."
)
_THETA_NONE_FULL = "theta=0: full gradients have no batch to grow."
_THETA_NONE = (
    "theta=0: a growing batch never beats N^-1/2 in samples N, and at alpha=1 it would not "
    "change the order at all: at beta=1 even the log stays, because I3 keeps it."
)
_THETA_IDLE = (
    "theta=0: at beta=0.5 the injected noise sets the rate, so a growing batch would not raise it."
)
_THETA_ONE = (
    "theta=1: on the line alpha + theta = 1 the bound is N^-1/2 up to a log in samples N, the best "
    "there is; theta=1 needs the fewest iterations on it."
)
_THETA_HALF = "theta=0.5: matches the rate of the injected noise, alpha + theta = beta."

_TABLE: dict[tuple[str, str, bool], tuple[float, float, float, tuple[str, str, str]]] = {
    ("converge", "full", False): (0.0, 2.0, 0.0, (_ALPHA_ZERO_FULL, _BETA_TWO, _THETA_NONE_FULL)),
    ("balanced", "full", False): (0.0, 1.0, 0.0, (_ALPHA_ZERO_FULL, _BETA_ONE, _THETA_NONE_FULL)),
    ("escape", "full", False): (0.0, 0.5, 0.0, (_ALPHA_ZERO_FULL, _BETA_HALF, _THETA_NONE_FULL)),
    ("converge", "stochastic", False): (1.0, 2.0, 0.0, (_ALPHA_ONE, _BETA_TWO, _THETA_NONE)),
    ("balanced", "stochastic", False): (1.0, 1.0, 0.0, (_ALPHA_ONE, _BETA_ONE, _THETA_NONE)),
    ("escape", "stochastic", False): (0.5, 0.5, 0.0, (_ALPHA_HALF, _BETA_HALF, _THETA_IDLE)),
    ("converge", "stochastic", True): (0.0, 2.0, 1.0, (_ALPHA_ZERO_BATCH, _BETA_TWO, _THETA_ONE)),
    ("balanced", "stochastic", True): (0.0, 1.0, 1.0, (_ALPHA_ZERO_BATCH, _BETA_ONE, _THETA_ONE)),
    ("escape", "stochastic", True): (0.0, 0.5, 0.5, (_ALPHA_ZERO_BATCH, _BETA_HALF, _THETA_HALF)),
}


def recommend(
    goal: str = "balanced", *, oracle: str = "stochastic", growing_batch: bool = False
) -> Advice:
    """Exponents for a goal.

    Args:
        goal: "converge" (best order of the bound), "escape" (leave saddles soon and still converge)
            or "balanced" (the slowest cooling that costs no more than a log).
        oracle: "full" or "stochastic" gradients.
        growing_batch: whether the batch may grow; means nothing with full gradients.

    >>> advice = recommend("balanced")
    >>> advice.alpha, advice.beta, advice.rate.formula
    (1.0, 1.0, 'k^-0.5 log k')
    >>> recommend("converge", oracle="full").rate.formula
    'k^-1'
    """
    choice("goal", goal, GOALS)
    choice("oracle", oracle, ORACLES)
    key = (goal, oracle, growing_batch and oracle == "stochastic")
    alpha, beta, theta, reasons = _TABLE[key]
    method = "agld" if oracle == "full" else "asgld"
    return Advice(
        method, alpha, beta, theta, rate(alpha, beta, method=method, theta=theta), reasons
    )
