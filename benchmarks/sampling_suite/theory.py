"""SGLD with a constant step on a Gaussian: its variance and its effective draws, exactly.

x' = x + h (g(x) + batch noise) + sqrt(2 h) z, where g(x) = -A (x - mean). The mean is right; the
covariance S solves S = (1 - h A) S (1 - h A) + 2 h + h^2 C(S), where C(S) is the covariance of the
batch noise; lag k has the covariance (1 - h A)^k S.
"""

from __future__ import annotations

import math

import numpy as np

from sampling_suite.targets import Array, Target


def batch_noise(target: Target, spread: Array, batch: int, control: bool) -> Array:
    """Covariance of the gradient of a batch drawn with replacement, where x has this covariance.

    Of a linear regression with noise of sd 1. With control variates around the mean what is left of
    a datum's residual is its slope.
    """
    assert target.data is not None
    x, y = target.data
    num = len(x)
    second = x.T @ x / num
    squares = np.einsum("nd,de,ne->n", x, spread, x)
    mean_gradient = second @ spread @ second
    if not control:
        residuals = y - x @ target.mean
        squares = squares + residuals**2
        average = x.T @ residuals / num
        mean_gradient = mean_gradient + np.outer(average, average)
    return num**2 / batch * ((x * squares[:, None]).T @ x / num - mean_gradient)


def stationary(
    target: Target, step: float, batch: int | None = None, control: bool = False
) -> Array | None:
    """Covariance of the draws; None if there is none, since the step is too long."""
    values, axes = np.linalg.eigh(np.linalg.inv(target.covariance))
    shrink = 1 - step * values
    if np.abs(shrink).max() >= 1:
        return None
    gap = 1 - np.outer(shrink, shrink)

    def solve(noise: Array) -> Array:
        inner = axes.T @ noise @ axes / gap
        return axes @ inner @ axes.T

    spread = solve(2 * step * np.eye(target.dim))
    if batch is None:
        return spread
    fixed = spread
    for _ in range(2000):
        noise = step**2 * batch_noise(target, spread, batch, control)
        last, spread = spread, fixed + solve(noise)
        if not np.isfinite(spread).all() or np.trace(spread) > 1e6 * np.trace(fixed):
            return None
        if np.abs(spread - last).max() < 1e-12 * np.abs(spread).max():
            return spread
    return None


def error_and_time(
    target: Target, step: float, batch: int | None = None, control: bool = False
) -> tuple[float, float]:
    """The worst error of an sd over coordinates, and the most steps per effective draw."""
    spread = stationary(target, step, batch, control)
    if spread is None:
        return math.inf, math.inf
    precision = np.linalg.inv(target.covariance)
    later = np.linalg.solve(step * precision, spread - step * precision @ spread)
    times = 1 + 2 * np.diag(later) / np.diag(spread)
    error = np.abs(np.sqrt(np.diag(spread)) / target.sd - 1).max()
    return float(error), float(times.max())
