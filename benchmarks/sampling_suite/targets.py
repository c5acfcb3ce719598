"""Densities whose means and standard deviations are known, for torch, jax and numpy.

A target with data has a loss, the mean over the data of the negative log likelihood, and a normal
prior; one without has a log density. In numpy there is its gradient, by hand. The moments are exact
but for the logistic regression: those are of long NUTS draws (`sampling.py nuts`).
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from measure import RESULTS
from torch import Tensor
from torch.nn import functional

Array = np.ndarray[Any, np.dtype[np.float64]]
NUTS_FILE = RESULTS / "sampling_nuts.csv"
# A batch is this share of the data.
SHARE = 0.1


@dataclass(frozen=True)
class Target:
    """One density. `gradient` is of its log, for rows of points, and may be given rows of indices.

    `of_torch` is the loss(x, indices) where there are data, else the log density(x). `of_jax` makes
    (log prior, log likelihood of one datum) where there are data, else a log density. `mode` and
    `covariance` say where chains may start; for a Gaussian they are exact.
    """

    name: str
    mean: Array
    sd: Array
    mode: Array
    covariance: Array
    gradient: Callable[..., Array]
    of_torch: Callable[..., Tensor]
    of_jax: Callable[[], Any]
    data: tuple[Array, Array] | None = None
    prior_sd: float | None = None
    is_gaussian: bool = False
    # What is not known of the mean and the sd, in units of the sd.
    doubt: tuple[Array, Array] | None = None

    @property
    def dim(self) -> int:
        return len(self.mean)

    @property
    def num_data(self) -> int | None:
        return None if self.data is None else len(self.data[0])

    @property
    def batch(self) -> int | None:
        return None if self.num_data is None else round(SHARE * self.num_data)

    def starts(self, chains: int, seed: int) -> Array:
        """Points near the mode, spread like the target."""
        normal = np.random.default_rng(seed).standard_normal((chains, self.dim))
        return self.mode + normal @ np.linalg.cholesky(self.covariance).T

    @functools.cached_property
    def curvatures(self) -> Array:
        """Eigenvalues of the precision at the mode, lowest first."""
        return np.linalg.eigvalsh(np.linalg.inv(self.covariance))


def _rotation(dim: int, random: np.random.Generator) -> Array:
    q, r = np.linalg.qr(random.standard_normal((dim, dim)))
    return q * np.sign(np.diag(r))


def linear(name: str, condition: float, seed: int = 0) -> Target:
    """Linear regression with known noise of sd 1; the posterior precision has this condition."""
    num_data, dim, prior_sd, lowest = 1000, 8, 10.0, 30.0
    random = np.random.default_rng(seed)
    axes = _rotation(dim, random)
    precisions = lowest * np.geomspace(1, condition, dim)
    precision = (axes * precisions) @ axes.T
    columns = np.linalg.qr(random.standard_normal((num_data, dim)))[0]
    x = (columns * np.sqrt(precisions - prior_sd**-2)) @ axes.T
    y = x @ random.standard_normal(dim) + random.standard_normal(num_data)
    covariance = (axes / precisions) @ axes.T
    mean = covariance @ (x.T @ y)
    x_torch, y_torch = torch.from_numpy(x), torch.from_numpy(y)

    def gradient(points: Array, indices: Any = None) -> Array:
        if indices is None:
            return (mean - points) @ precision
        rows = x[indices]
        residuals = y[indices] - np.einsum("cbd,cd->cb", rows, points)
        likelihood = np.einsum("cb,cbd->cd", residuals, rows) * num_data / rows.shape[1]
        return likelihood - points / prior_sd**2

    def loss(w: Tensor, indices: Tensor | None = None) -> Tensor:
        if indices is None:
            return (y_torch - x_torch @ w).square().mean() / 2
        return (y_torch[indices] - x_torch[indices] @ w).square().mean() / 2

    def of_jax() -> Any:
        import jax.numpy as jnp

        return (
            lambda w: -jnp.sum(w**2) / (2 * prior_sd**2),
            lambda w, datum: -((datum[1] - jnp.dot(datum[0], w)) ** 2) / 2,
        )

    return Target(
        name=name, mean=mean, sd=np.sqrt(np.diag(covariance)), mode=mean, covariance=covariance,
        gradient=gradient, of_torch=loss, of_jax=of_jax, data=(x, y), prior_sd=prior_sd,
        is_gaussian=True,
    )  # fmt: skip


def logistic() -> Target:
    """Logistic regression on scikit-learn's breast cancer, standardized, prior sd 1."""
    signed, prior_sd = _signed_rows(), 1.0
    num_data = len(signed)
    ones = np.ones(num_data)
    mode, covariance = _laplace(signed, prior_sd)
    moments = read_moments("logistic")
    rows_torch = torch.from_numpy(signed)

    def gradient(points: Array, indices: Any = None) -> Array:
        if indices is None:
            return _sigmoid(-points @ signed.T) @ signed - points / prior_sd**2
        rows = signed[indices]
        weights = _sigmoid(-np.einsum("cbd,cd->cb", rows, points)) * num_data / rows.shape[1]
        return np.einsum("cb,cbd->cd", weights, rows) - points / prior_sd**2

    def loss(w: Tensor, indices: Tensor | None = None) -> Tensor:
        rows = rows_torch if indices is None else rows_torch[indices]
        return functional.softplus(-(rows @ w)).mean()

    def of_jax() -> Any:
        import jax
        import jax.numpy as jnp

        return (
            lambda w: -jnp.sum(w**2) / (2 * prior_sd**2),
            lambda w, datum: -jax.nn.softplus(-jnp.dot(datum[0], w)),
        )

    return Target(
        name="logistic", mean=moments["mean"], sd=moments["sd"], mode=mode, covariance=covariance,
        gradient=gradient, of_torch=loss, of_jax=of_jax, data=(signed, ones), prior_sd=prior_sd,
        doubt=(moments["mcse_mean"] / moments["sd"], moments["mcse_sd"] / moments["sd"]),
    )  # fmt: skip


@functools.cache
def _signed_rows() -> Array:
    """Rows of features and a one, times the label, which is 1 or -1."""
    from sklearn.datasets import load_breast_cancer

    features, labels = load_breast_cancer(return_X_y=True)
    features = (features - features.mean(0)) / features.std(0)
    rows = np.column_stack([np.ones(len(features)), features])
    return rows * (2.0 * labels - 1)[:, None]


def _sigmoid(z: Array) -> Array:
    return 0.5 * (1 + np.tanh(z / 2))


def _laplace(signed: Array, prior_sd: float) -> tuple[Array, Array]:
    """The mode, and the covariance that the curvature there gives."""
    w = np.zeros(signed.shape[1])
    for _ in range(50):
        p = _sigmoid(-(signed @ w))
        hessian = (signed * (p * (1 - p))[:, None]).T @ signed + np.eye(len(w)) / prior_sd**2
        step = np.linalg.solve(hessian, p @ signed - w / prior_sd**2)
        w = w + step
        if np.abs(step).max() < 1e-12:
            break
    return w, np.linalg.inv(hessian)


def read_moments(name: str) -> dict[str, Array]:
    """Moments that `sampling.py nuts` wrote; without its file, nan."""
    columns = ("mean", "sd", "mcse_mean", "mcse_sd")
    rows: list[dict[str, str]] = []
    if NUTS_FILE.exists():
        with NUTS_FILE.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["target"] == name]
    if not rows:
        return {column: np.full(_signed_rows().shape[1], math.nan) for column in columns}
    rows.sort(key=lambda row: int(row["coordinate"]))
    return {column: np.array([float(row[column]) for row in rows]) for column in columns}


def gaussian(dim: int = 1000, condition: float = 100.0, seed: int = 1) -> Target:
    """A Gaussian with precisions from 1 to the condition number, randomly rotated."""
    axes = _rotation(dim, np.random.default_rng(seed))
    precisions = np.geomspace(1, condition, dim)
    precision, covariance = (axes * precisions) @ axes.T, (axes / precisions) @ axes.T
    precision = (precision + precision.T) / 2
    of_torch, zero = torch.from_numpy(precision), np.zeros(dim)

    def of_jax() -> Any:
        import jax.numpy as jnp

        matrix = jnp.asarray(precision)
        return lambda x: -jnp.dot(x, matrix @ x) / 2

    return Target(
        name=f"gaussian-{dim}", mean=zero, sd=np.sqrt(np.diag(covariance)), mode=zero,
        covariance=(covariance + covariance.T) / 2, gradient=lambda points: -points @ precision,
        of_torch=lambda x: -(x @ (of_torch @ x)) / 2, of_jax=of_jax, is_gaussian=True,
    )  # fmt: skip


def banana(bend: float = 0.5, width: float = 0.5) -> Target:
    """x0 is normal, x1 given x0 is normal around bend * x0^2; two more are standard normal."""
    variance = 2 * bend**2 + width**2
    sd = np.sqrt([1.0, variance, 1.0, 1.0])

    def gradient(points: Array) -> Array:
        off = (points[:, 1] - bend * points[:, 0] ** 2) / width**2
        result = -points.copy()
        result[:, 0] += 2 * bend * points[:, 0] * off
        result[:, 1] = -off
        return result

    def of_torch(x: Tensor) -> Tensor:
        off = (x[1] - bend * x[0] ** 2) / width
        return -(x[0] ** 2 + off**2 + x[2] ** 2 + x[3] ** 2) / 2

    return Target(
        name="banana", mean=np.array([0, bend, 0, 0]), sd=sd, mode=np.zeros(4),
        covariance=np.diag([1, width**2, 1, 1.0]), gradient=gradient,
        of_torch=of_torch, of_jax=lambda: of_torch,
    )  # fmt: skip


def mixture(distance: float = 2.5, weight: float = 0.4) -> Target:
    """Two standard normals at this distance along the diagonal, the first with this weight."""
    dim = 3
    along = np.ones(dim) / math.sqrt(dim)
    half = distance / 2 * along
    mean = (1 - 2 * weight) * half
    covariance = np.eye(dim) + weight * (1 - weight) * distance**2 * np.outer(along, along)
    # The log density is that of one normal at 0 but for log(w exp(-u) + (1 - w) exp(u)), where
    # u = half . x.
    lean, slope = math.log(weight / (1 - weight)), distance / 2 / math.sqrt(dim)

    def gradient(points: Array) -> Array:
        second = _sigmoid(2 * points @ half - lean)
        return (2 * second - 1)[:, None] * half - points

    def of_torch(x: Tensor) -> Tensor:
        u = slope * x.sum()
        return functional.softplus(2 * u - lean) - u - (x * x).sum() / 2

    def of_jax() -> Any:
        import jax

        def log_density(x: Any) -> Any:
            u = slope * x.sum()
            return jax.nn.softplus(2 * u - lean) - u - (x * x).sum() / 2

        return log_density

    return Target(
        name="mixture", mean=mean, sd=np.sqrt(np.diag(covariance)), mode=mean,
        covariance=covariance, gradient=gradient, of_torch=of_torch, of_jax=of_jax,
    )  # fmt: skip


TARGETS: dict[str, Callable[[], Target]] = {
    "linear": functools.partial(linear, "linear", 10.0),
    "linear-1e4": functools.partial(linear, "linear-1e4", 1e4),
    "banana": banana,
    "mixture": mixture,
    "logistic": logistic,
    "gaussian-1000": gaussian,
}


@functools.cache
def target(name: str) -> Target:
    return TARGETS[name]()
