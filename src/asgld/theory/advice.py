"""Advice on the exponents and the batch growth for a stated goal."""

from __future__ import annotations

from dataclasses import dataclass

from asgld.theory._arguments import choice
from asgld.theory.rates import Rate, rate

GOALS = ("converge", "escape", "balanced")
ORACLES = ("full", "stochastic")


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
