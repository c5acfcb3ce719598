"""Losses over data: a network, robust regression, a mixture, the estimation of variances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from asgld.arguments import require, require_at_least, require_positive
from asgld.problems.base import (
    Facts,
    FiniteSum,
    FloatArray,
    Rng,
    Rows,
    Saddle,
    average,
    critical_point,
    data_rng,
    gather,
    gaussian,
    project,
    zeros,
)

__all__ = ["Digits", "Mixture", "RobustRegression", "Variance"]


@dataclass(frozen=True)
class Digits(FiniteSum):
    r"""A two-layer tanh network on scikit-learn's digits, with a saddle known exactly.

    f = mean cross-entropy(softmax(W_2 tanh(W_1 x + b_1) + b_2), label) + l/2 (\|W_1\|^2 +
    \|W_2\|^2)

    Args:
        hidden: h, the hidden units; d = 75 h + 10, in the order W_1, b_1, W_2, b_2.
        l2: l, the weight penalty; biases are free.
        num_samples: the first n of the 1797 images, pixels divided by 16.

    Facts: at W_1 = W_2 = 0, b_1 = 0, b_2 = log(class frequencies) the gradient is zero.  The
    Hessian couples W_1 and W_2 through C = mean((onehot - frequencies) x'), so its smallest
    eigenvalue is l - s_max(C), once for each hidden unit: a strict saddle with value the entropy of
    the labels. The minimum, M and rho are unknown.

    Needs scikit-learn: ``pip install 'asgld[data]'``.

    References:
        E. Alpaydin, C. Kaynak, Optical recognition of handwritten digits (UCI repository, 1998),
        the test part, as distributed with scikit-learn.
    """

    name: ClassVar[str] = "digits"
    hidden: int = 16
    l2: float = 1e-4
    num_samples: int = 1797

    def __post_init__(self) -> None:
        require_at_least(self, hidden=1, l2=0)
        # The first ten images are one of each class; with fewer a class frequency would be zero.
        require(10 <= self.num_samples <= 1797, "num_samples", self.num_samples, "10 to 1797")

    @property
    def dim(self) -> int:
        return 75 * self.hidden + 10

    @cached_property
    def rows(self) -> Rows:
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise ImportError(
                "the problem 'digits' needs scikit-learn: pip install 'asgld[data]'"
            ) from error
        pixels, labels = load_digits(return_X_y=True)
        x = torch.from_numpy(pixels[: self.num_samples] / 16.0)
        onehot = torch.nn.functional.one_hot(torch.from_numpy(labels[: self.num_samples]), 10)
        return x, onehot.double()

    def _layers(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        h, lead = self.hidden, x.shape[:-1]
        return (
            x[..., : 64 * h].reshape(*lead, h, 64),
            x[..., 64 * h : 65 * h].unsqueeze(-2),
            x[..., 65 * h : 75 * h].reshape(*lead, 10, h),
            x[..., 75 * h :].unsqueeze(-2),
        )

    def mean_value(self, x: Tensor, rows: Rows) -> Tensor:
        w1, b1, w2, b2 = self._layers(x)
        logits = torch.tanh(rows[0] @ w1.mT + b1) @ w2.mT + b2
        likelihood = (rows[1] * logits).sum(-1) - logits.logsumexp(-1)
        penalty = w1.square().sum((-2, -1)) + w2.square().sum((-2, -1))
        return 0.5 * self.l2 * penalty - likelihood.mean(-1)

    def mean_grad(self, x: Tensor, rows: Rows) -> Tensor:
        w1, b1, w2, b2 = self._layers(x)
        features = torch.tanh(rows[0] @ w1.mT + b1)
        error = (features @ w2.mT + b2).softmax(-1) - rows[1]
        error = error / rows[0].shape[-2]
        back = (error @ w2) * (1.0 - features.square())
        outer = error.mT @ features + self.l2 * w2
        return _join(back.mT @ rows[0] + self.l2 * w1, back, outer, error)

    def mean_hvp(self, x: Tensor, v: Tensor, rows: Rows) -> Tensor:
        """The gradient, differentiated along v line by line; names ending in _v are derivatives."""
        (w1, b1, w2, b2), (w1_v, b1_v, w2_v, b2_v) = self._layers(x), self._layers(v)
        count = rows[0].shape[-2]
        features = torch.tanh(rows[0] @ w1.mT + b1)
        slope = 1.0 - features.square()
        features_v = slope * (rows[0] @ w1_v.mT + b1_v)
        share = (features @ w2.mT + b2).softmax(-1)
        logits_v = features_v @ w2.mT + features @ w2_v.mT + b2_v
        error = (share - rows[1]) / count
        error_v = share * (logits_v - (share * logits_v).sum(-1, keepdim=True)) / count
        back_v = (error_v @ w2 + error @ w2_v) * slope
        back_v = back_v - (error @ w2) * 2.0 * features * features_v
        outer_v = error_v.mT @ features + error.mT @ features_v + self.l2 * w2_v
        return _join(back_v.mT @ rows[0] + self.l2 * w1_v, back_v, outer_v, error_v)

    def draw_start(self, rng: Rng, shape: tuple[int, ...]) -> FloatArray:
        scale = np.zeros(self.dim)
        scale[: 64 * self.hidden] = 1.0 / 8.0
        scale[65 * self.hidden : 75 * self.hidden] = 1.0 / math.sqrt(self.hidden)
        return rng.standard_normal(shape) * scale

    def state_facts(self) -> Facts:
        pixels, onehot = self.rows
        frequencies = onehot.mean(0)
        coupling = (onehot - frequencies).mT @ pixels / self.num_samples
        point = zeros(self.dim)
        point[75 * self.hidden :] = frequencies.log()
        entropy = -float((frequencies * frequencies.log()).sum())
        lowest = self.l2 - float(torch.linalg.matrix_norm(coupling, 2))
        return Facts(saddles=(Saddle(point, entropy, lowest),))


def _join(w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """One vector of two matrices and two biases, the biases summed over the batch."""
    return torch.cat([w1.flatten(-2), b1.sum(-2), w2.flatten(-2), b2.sum(-2)], dim=-1)


@dataclass(frozen=True)
class RobustRegression(FiniteSum):
    r"""Linear regression with a bounded or slowly growing loss, on data with outliers.

    f(w) = mean phi(y_i - x_i' w),   phi(r) = log(1 + r^2/2)  or  r^2 / (1 + r^2)

    Args:
        dim: d, the number of variables.
        num_samples: n, the number of observations.
        loss: "cauchy" (phi is the logarithm) or "geman-mcclure" (the fraction).
        outliers: fraction of the y_i replaced by 10 * N(0, 1).
        noise: y_i = x_i' w* + noise * N(0, 1), x_i and w* standard normal.

    Facts, everywhere, with G = mean(x_i x_i'): M = sup|phi''| \|G\|, rho = sup|phi'''| \|G\|
    max\|x_i\|, and each coordinate of a single-sample gradient has variance at most sup|phi'|^2
    max_j G_jj. The suprema of |phi'|, |phi''|, |phi'''| are 0.7072, 1, 1.0304 (cauchy) and 0.6496,
    2, 4.6686 (geman-mcclure), rounded up.  The minimum and the saddles are unknown, except without
    noise and outliers: then the minimum is 0 at w*.

    References:
        D. Geman, D. McClure, Statistical methods for tomographic image reconstruction (1987).  P.
        Holland, R. Welsch, Robust regression using iteratively reweighted least-squares (1977).
    """

    name: ClassVar[str] = "robust-regression"
    dim: int = 10
    num_samples: int = 500
    loss: Literal["cauchy", "geman-mcclure"] = "cauchy"
    outliers: float = 0.1
    noise: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, dim=1, num_samples=1)
        losses = ("cauchy", "geman-mcclure")
        require(self.loss in losses, "loss", self.loss, f"one of {losses}")
        require(0 <= self.outliers <= 1, "outliers", self.outliers, "a fraction, 0 to 1")
        require_at_least(self, noise=0)

    @cached_property
    def _solution(self) -> Tensor:
        return gaussian(data_rng(self.seed, 1), self.dim)

    @cached_property
    def rows(self) -> Rows:
        rng, count = data_rng(self.seed), self.num_samples
        x = gaussian(rng, count, self.dim)
        y = x @ self._solution + self.noise * gaussian(rng, count)
        wrong = round(self.outliers * count)
        y[:wrong] = 10.0 * gaussian(rng, wrong)
        return x, y

    def mean_value(self, x: Tensor, rows: Rows) -> Tensor:
        squares = (rows[1] - project(rows[0], x)).square()
        if self.loss == "cauchy":
            return torch.log1p(0.5 * squares).mean(-1)
        return (squares / (1.0 + squares)).mean(-1)

    def mean_grad(self, x: Tensor, rows: Rows) -> Tensor:
        residual = rows[1] - project(rows[0], x)
        squares = residual.square()
        if self.loss == "cauchy":
            slope = residual / (1.0 + 0.5 * squares)
        else:
            slope = 2.0 * residual / (1.0 + squares).square()
        return -average(slope, rows[0])

    def mean_hvp(self, x: Tensor, v: Tensor, rows: Rows) -> Tensor:
        squares = (rows[1] - project(rows[0], x)).square()
        if self.loss == "cauchy":
            bend = (1.0 - 0.5 * squares) / (1.0 + 0.5 * squares).square()
        else:
            bend = (2.0 - 6.0 * squares) / (1.0 + squares) ** 3
        return average(bend * project(rows[0], v), rows[0])

    def draw_start(self, rng: Rng, shape: tuple[int, ...]) -> FloatArray:
        return rng.standard_normal(shape)

    def state_facts(self) -> Facts:
        rows = self.rows[0]
        moments = rows.mT @ rows / self.num_samples
        size = float(torch.linalg.eigvalsh(moments)[-1])
        first, second, third = (
            (0.7072, 1.0, 1.0304) if self.loss == "cauchy" else (0.6496, 2.0, 4.6686)
        )
        is_clean = self.noise == 0 and round(self.outliers * self.num_samples) == 0
        return Facts(
            minimum=0.0 if is_clean else None,
            minimizers=self._solution.unsqueeze(0) if is_clean else None,
            smoothness=second * size,
            hessian_lipschitz=third * size * float(rows.square().sum(-1).max().sqrt()),
            gradient_variance=first**2 * float(moments.diagonal().max()),
        )


@dataclass(frozen=True)
class Mixture(FiniteSum):
    r"""Maximum likelihood for the symmetric mixture 1/2 N(t, I) + 1/2 N(-t, I).

    f(t) = 1/2 \|t\|^2 - mean log cosh(x_i' t)

    Args:
        dim: d, the number of variables.
        num_samples: n, the number of observations; x_i = \pm t* + N(0, I).
        separation: \|t*\|, the distance of the two centers from 0; the direction of t* is random.

    Facts: 0 is critical with Hessian I - S, S = mean(x_i x_i'), a strict saddle when the largest
    eigenvalue of S exceeds 1 (listed then).  The minimum is the value at the fixed point \pm t of
    the EM map t <- mean(tanh(x_i' t) x_i) near t*; that it is global is proved for infinite n and
    checked by random starts for the defaults.  Everywhere M = max(1, \|S\| - 1), rho = 4/27^(1/2)
    \|S\| max\|x_i\|, and the gradient variance is at most max_j S_jj.

    References:
        J. Xu, D. Hsu, A. Maleki, Global analysis of expectation maximization for mixtures of two
        Gaussians (NeurIPS 2016).
    """

    name: ClassVar[str] = "mixture"
    dim: int = 10
    num_samples: int = 1000
    separation: float = 1.5
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, dim=1, num_samples=1)
        require_positive(self, "separation")

    @cached_property
    def _center(self) -> Tensor:
        direction = gaussian(data_rng(self.seed, 1), self.dim)
        return direction * (self.separation / float(direction.norm()))

    @cached_property
    def rows(self) -> Rows:
        rng = data_rng(self.seed)
        signs = torch.from_numpy(rng.choice([-1.0, 1.0], size=(self.num_samples, 1)))
        return (signs * self._center + gaussian(rng, self.num_samples, self.dim),)

    def mean_value(self, x: Tensor, rows: Rows) -> Tensor:
        z = project(rows[0], x)
        log_cosh = torch.logaddexp(z, -z) - math.log(2.0)
        return 0.5 * x.square().sum(-1) - log_cosh.mean(-1)

    def mean_grad(self, x: Tensor, rows: Rows) -> Tensor:
        return x - average(torch.tanh(project(rows[0], x)), rows[0])

    def mean_hvp(self, x: Tensor, v: Tensor, rows: Rows) -> Tensor:
        bend = 1.0 - torch.tanh(project(rows[0], x)).square()
        return v - average(bend * project(rows[0], v), rows[0])

    def state_facts(self) -> Facts:
        (rows,) = self.rows
        moments = rows.mT @ rows / self.num_samples
        size = float(torch.linalg.eigvalsh(moments)[-1])
        estimate = self._center
        for _ in range(200):
            estimate = estimate - self.grad(estimate)
        polished = critical_point(self, estimate)
        estimate = estimate if polished is None else polished
        minimum = float(self.value(estimate))
        return Facts(
            minimum=minimum,
            minimizers=torch.stack([estimate, -estimate]),
            saddles=(Saddle(zeros(self.dim), 0.0, 1.0 - size, minimum),) if size > 1.0 else (),
            smoothness=max(1.0, size - 1.0),
            hessian_lipschitz=4.0 / math.sqrt(27.0) * size * float(rows.norm(dim=-1).max()),
            gradient_variance=float(moments.diagonal().max()),
        )


@dataclass(frozen=True)
class Variance(FiniteSum):
    r"""The two variances of a centered Gaussian, from its likelihood; it has no saddle.

    f(x) = log x_1 + log x_2 + s_1/x_1 + s_2/x_2,   s = mean(y_i^2),   y_i ~ N(0, diag(0.1, 10))

    Args:
        num_samples: n, the observations in a data set.
        seed: data set r is drawn with seed + r.
        data_sets: None: one data set for all replicas; R: replica r of points of shape (..., R, 2)
            has data set r.
        space: "log": the variable is z = log x, free of constraints; "x": x itself, f = inf and
            gradient nan where an x_j <= 0.

    Facts: the minimum is at x = s, the maximum-likelihood estimate (:attr:`estimate`), with value
    2 + log s_1 + log s_2; f is convex in z and has no other critical point.  In the box |z_j| <= 3,
    M = rho = e^3 max s_j.  In x curvature is unbounded at 0 and no constant is stated.  Several
    data sets have no common minimum; M and rho are then the largest.

    References:
        Adaptive stochastic gradient Langevin dynamics: taming convergence and saddle point escape
        time, simulation study; there f is the sum over i, here the mean.
    """

    name: ClassVar[str] = "variance"
    num_samples: int = 10_000
    seed: int = 0
    data_sets: int | None = None
    space: Literal["log", "x"] = "log"

    truth: ClassVar[tuple[float, float]] = (0.1, 10.0)

    def __post_init__(self) -> None:
        require_at_least(self, num_samples=1)
        sets = self.data_sets
        require(sets is None or sets >= 1, "data_sets", sets, "None or data_sets >= 1")
        require(self.space in ("log", "x"), "space", self.space, "one of ('log', 'x')")

    @property
    def dim(self) -> int:
        return 2

    def variances(self, x: Tensor) -> Tensor:
        """The variances a point stands for."""
        return x.exp() if self.space == "log" else x

    @cached_property
    def estimate(self) -> Tensor:
        """Maximum-likelihood estimate, (2,) or (data_sets, 2)."""
        return torch.view_as_real(self._squares.mean(-1))

    @cached_property
    def _squares(self) -> Tensor:
        """y_1^2 + i y_2^2, (n,) or (data_sets, n): a pair as one complex number is gathered and
        summed three times as fast as two columns."""
        scale = torch.tensor(self.truth, dtype=torch.float64)
        sets = [
            gaussian(data_rng(self.seed + r), self.num_samples, 2).square_().mul_(scale)
            for r in range(self.data_sets or 1)
        ]
        return torch.view_as_complex(sets[0] if self.data_sets is None else torch.stack(sets))

    @cached_property
    def _offsets(self) -> Tensor:
        """Where each data set begins."""
        return torch.arange(self.data_sets or 1).unsqueeze(-1) * self.num_samples

    # A batch acts through its mean square alone, so that is the only row.
    @property
    def rows(self) -> Rows:
        return (self.estimate,)

    def batch(self, indices: Tensor) -> Rows:
        where = indices if self.data_sets is None else indices + self._offsets
        total = gather(self._squares.reshape(-1), where).sum(-1)
        return (torch.view_as_real(total) / indices.shape[-1],)

    def mean_value(self, x: Tensor, rows: Rows) -> Tensor:
        if self.space == "log":
            return (x + rows[0] * torch.exp(-x)).sum(-1)
        is_valid = x > 0.0
        inside = torch.where(is_valid, x, 1.0)
        return torch.where(is_valid, inside.log() + rows[0] / inside, math.inf).sum(-1)

    def mean_grad(self, x: Tensor, rows: Rows) -> Tensor:
        if self.space == "log":
            return 1.0 - rows[0] * torch.exp(-x)
        return torch.where(x > 0.0, (1.0 - rows[0] / x) / x, math.nan)

    def hessian(self, x: Tensor) -> Tensor:
        """Diagonal, since the variances do not interact."""
        return self.hvp(x, torch.ones_like(x)).diag_embed()

    def draw_start(self, rng: Rng, shape: tuple[int, ...]) -> FloatArray:
        return np.full(shape, 0.0 if self.space == "log" else 1.0)

    def state_facts(self) -> Facts:
        is_single, is_log = self.data_sets is None, self.space == "log"
        solution, radius = (self.estimate.log() if is_log else self.estimate), 3.0
        bend = math.exp(radius) * float(self.estimate.max())
        spread = float(torch.view_as_real(self._squares).var(-2, correction=0).max())
        return Facts(
            minimum=float(self.value(solution)) if is_single else None,
            minimizers=solution.unsqueeze(0) if is_single else None,
            smoothness=bend if is_log else None,
            hessian_lipschitz=bend if is_log else None,
            radius=radius if is_log else math.inf,
            norm=math.inf,
            gradient_variance=math.exp(2.0 * radius) * spread if is_log else None,
        )
