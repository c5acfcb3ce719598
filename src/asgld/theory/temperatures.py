"""The temperature reading of the two exponents, and when the accumulator begins to grow like k."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from asgld.theory._arguments import FloatArray, floats, unwrap


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
) -> float | FloatArray:
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
    value: float | FloatArray = unwrap(injected + gradient)
    return value


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
