"""Constants that theory asks for, measured: curvature, gradient variance, gradient scale.

Each comes as an `Estimate`, with an interval and its confidence. The source is a `ModelHessian`, or
a Problem or Oracle together with a point x; an Oracle is read through its `free()` view.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import torch
from torch import Tensor

from asgld.arguments import require
from asgld.curvature.model import ModelHessian
from asgld.curvature.operator import Neighborhood, as_operator
from asgld.curvature.spectrum import Effort, Ends, Enough, SpectrumSearch

# Single-sample gradients of an oracle asked for in one call.
_CHUNK_BYTES = 2**26


@dataclass(frozen=True)
class Estimate:
    """A measured constant: it lies in [lower, upper] with probability about `confidence`."""

    value: float
    lower: float
    upper: float
    confidence: float
    how: str

    def __str__(self) -> str:
        return (
            f"{self.value:.4g} in [{self.lower:.4g}, {self.upper:.4g}] "
            f"(confidence {self.confidence:.4g}; {self.how})"
        )


def largest_curvature(
    source: Any,
    x: Tensor | None = None,
    *,
    rtol: float = 0.01,
    confidence: float = 0.999,
    **effort: int,
) -> Estimate:
    """Largest absolute eigenvalue of the Hessian at x: the smoothness constant M, locally.

    M of a region is at least the largest of this over its points.

    Args:
        source: anything `classify` takes, with x; or anything `lambda_min` takes, without x, such
            as a `ModelHessian` at the model's present parameters or a matrix.
        rtol: stop when the interval is narrower than this part of the value.
        confidence: of the interval.
        effort: starts, seed, max_hvp, dense_below, max_bytes as in `lambda_min`.

    >>> largest_curvature(lambda x: x[0] ** 2 - 3 * x[1] ** 2, torch.zeros(2)).value
    6.0
    """
    operator = as_operator(source) if x is None else Neighborhood(source, x).hessian()

    def bounds(ends: Ends) -> tuple[float, float]:
        return max(-ends.smallest, ends.largest, 0.0), max(-ends.lower, ends.upper, 0.0)

    def judge(ends: Ends) -> Enough:
        low, high = bounds(ends)
        return Enough.HERE if high - low <= rtol * low else Enough.NO

    half_risk = (1 + confidence) / 2  # for each end
    search = SpectrumSearch(operator, judge, Effort(half_risk, **effort))
    low, high = bounds(search.ends)
    if search.is_exact:
        return Estimate(low, low, high, 1.0, "assembled Hessian")
    return Estimate(low, low, high, confidence, f"Lanczos, {operator.num_hvp} products")


def gradient_variance(
    source: Any,
    x: Tensor | None = None,
    *,
    num_samples: int | None = None,
    method: Literal["samples", "batches"] = "samples",
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    r"""Variance of a single-sample gradient, summed over coordinates.

    .. math:: \sigma^2 = E \|\nabla f_i(x) - \nabla f(x)\|^2

    A minibatch of B samples, drawn independently, has variance sigma^2 / B.

    Args:
        source: a `ModelHessian`, or an object with sample_grad(x, indices) and num_samples.
        x: the point; by default a model's present parameters.
        num_samples: look at this many samples; None for all, which makes the value exact. Of a
            model they are the first of its loader, which should then shuffle; of an oracle they
            are drawn.
        method: "samples" uses single-sample gradients; "batches", for models only, the spread of
            batch gradients, much cheaper and less certain. It supposes a shuffled loader.
        confidence: of the interval, by the normal approximation.
        seed: of the samples drawn of an oracle.
    """
    require(method in ("samples", "batches"), "method", method, "'samples' or 'batches'")
    is_count = num_samples is None or num_samples >= 2
    require(is_count, "num_samples", num_samples, "at least 2, or None for all")
    if isinstance(source, ModelHessian):
        squares, is_all = _model_deviations(source, x, num_samples, method), num_samples is None
    else:
        require(method == "samples", "method", method, "'samples', or a ModelHessian for 'batches'")
        squares, is_all = _oracle_deviations(source, x, num_samples, seed)
    count = len(squares)
    if count < 2:
        raise ValueError(f"only {count} {method} to compare: need at least 2")
    if is_all and method == "samples":
        value = float(squares.mean())
        return Estimate(value, value, value, 1.0, f"all {count} samples")
    value = float(squares.sum()) / (count - 1)
    standard_error = float(squares.std()) / math.sqrt(count)
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * standard_error
    return Estimate(value, max(0.0, value - reach), value + reach, confidence, f"{count} {method}")


def gradient_scale(
    source: Any, x: Tensor | None = None, *, batch_size: int = 1, **options: Any
) -> Estimate:
    r"""Root mean square of one coordinate of a minibatch gradient.

    .. math:: \sqrt{(\|\nabla f(x)\|^2 + \sigma^2 / B) / d}

    An adaptive method squares and sums numbers of this scale. The other arguments are those of
    `gradient_variance`; a source without samples has a gradient and no variance.
    """
    require(batch_size >= 1, "batch_size", batch_size, "at least 1")
    is_model = isinstance(source, ModelHessian)
    if is_model:
        gradient = source.grad(source.x if x is None else x)
    else:
        around = Neighborhood(source, _need(x))
        gradient = around.grad(around.x)
    square = float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) ** 2

    def scale(variance: float) -> float:
        return math.sqrt((square + variance / batch_size) / gradient.numel())

    if not is_model and getattr(source, "num_samples", None) is None:
        return Estimate(scale(0.0), scale(0.0), scale(0.0), 1.0, "full gradient")
    found = gradient_variance(source, x, **options)
    value, lower, upper = map(scale, (found.value, found.lower, found.upper))
    return Estimate(value, lower, upper, found.confidence, f"full gradient and {found.how}")


def _model_deviations(
    source: ModelHessian, x: Tensor | None, num_samples: int | None, method: str
) -> Tensor:
    """|g_i - mean|^2 of samples, or n_b |g_b - mean|^2 of batches."""
    x = source.x if x is None else x
    batches = source.batches
    if num_samples is not None:
        kept, seen = [], 0
        for part in source.batches():
            kept.append(part)
            seen += part[1]
            if seen >= num_samples:
                break
        batches = kept.__iter__
    mean = source.mean_grad(x, batches())
    found: list[Tensor] = []
    for part in batches():
        if method == "batches":
            found.append(part[1] * _squares((source.mean_grad(x, [part]) - mean)[None]))
        else:
            found.extend(_squares(rows - mean) for rows in source.sample_grads(x, part[0]))
    return torch.cat(found)


def _oracle_deviations(
    source: Any, x: Tensor | None, num_samples: int | None, seed: int
) -> tuple[Tensor, bool]:
    """|g_i - mean|^2 of samples, and whether these are all samples."""
    f = source.free() if hasattr(source, "free") else source
    n = getattr(f, "num_samples", None)
    if n is None or not hasattr(f, "sample_grad"):
        raise TypeError(
            f"source is {type(source).__name__}: need a ModelHessian, or an object with "
            "sample_grad(x, indices) and num_samples; a full gradient has no variance"
        )
    x = _need(x)
    if x.dim() != 1:
        raise ValueError(f"x has shape {tuple(x.shape)}: need one point of shape (dim,)")
    count = n if num_samples is None else min(num_samples, n)
    indices = torch.arange(n)
    if count < n:
        indices = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:count]
    rows = max(1, _CHUNK_BYTES // (8 * x.numel()))
    chunks = [
        f.sample_grad(x.expand(len(part), -1), part[:, None]) for part in torch.split(indices, rows)
    ]
    mean = sum((chunk.sum(0) for chunk in chunks), torch.zeros_like(x)) / count
    return torch.cat([_squares(chunk - mean) for chunk in chunks]), count == n


def _need(x: Tensor | None) -> Tensor:
    if x is None:
        raise ValueError("x=None: need a point; only a ModelHessian has one of its own")
    return x


def _squares(rows: Tensor) -> Tensor:
    squares: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square()
    return squares
