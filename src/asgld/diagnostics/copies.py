r"""Noise for networks that were grown by copying.

Copied neurons, heads or experts get equal gradients. Then, but for rounding, no rule without noise
separates them: the network is at a saddle. :func:`calibrate_copies` finds the copies, measures the
curvature along their differences, and chooses the noise that separates them. What counts as a copy
is said in `asgld.diagnostics.symmetry`.

**Differences.** Let A average over all copies of a slice, along every dimension, and over all
copies of a parameter. Gradients at points of the range of A lie in it, hence the Hessian H maps it
into itself, and the range of P = I - A too. The smallest eigenvalue of H there decides whether
copies part on their own once they differ. With one D per coordinate, equal for all copies, a
difference v changes by -lr D^(-1/2) H v per step, so the fastest grows by the factor
exp(lr |lambda|), lambda being the smallest eigenvalue of P D^(-1/4) H D^(-1/4) P. Weights without
gradients do not move in this.
"""

from __future__ import annotations

import copy
import inspect
import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from asgld.arguments import require
from asgld.curvature import ModelHessian
from asgld.curvature.lanczos import Krylov
from asgld.curvature.operator import SymmetricOperator
from asgld.diagnostics.symmetry import Average, Weights, find_symmetry
from asgld.optim import NetworkASGLD, network_groups
from asgld.optim.rule import SHAPES

# How far all noise together carries a weight, in units of the weights' size.
SIZE = 0.3
# The noise that NetworkASGLD has if nobody says otherwise.
_DEFAULT_NOISE: float = inspect.signature(NetworkASGLD).parameters["noise"].default
# A coordinate has no gradient if D is smaller than this, relative to its mean.
_FLOOR = 1e-8
# The residual of the smallest eigenvalue, relative to itself, or to the spectrum's width. The
# error is of second order in it. Products that may be spent, and memory for their vectors.
_ACCURACY, _ACCURACY_OF_WIDTH = 2e-3, 1e-5
_MAX_HVP, _MAX_BYTES = 300, 2**31
# Other dtypes are too coarse for a curvature.
_PRECISE = (torch.float32, torch.float64)
# A product is rounding if it is so small, relative to usual ones, in units in the last place.
_ROUNDING = 1000
_SHOWN = 3


@dataclass(frozen=True)
class Copies:
    """Which weights are copies, and the noise that separates them; see `calibrate_copies`.

    ===========  ==========================================================================
    field        meaning
    ===========  ==========================================================================
    lr, steps    as given
    size         how far all noise carries these weights, in units of their size
    shape        of D for hidden matrices
    noise        of each parameter with copies, by name
    counts       of each parameter with copies: how many slices, along all dimensions, are
                 copies, and how many of these are distinct; a copied parameter is a slice
    curvature    the smallest along differences of copies; None without copies or a Hessian, and
                 in half precision
    rate         the fastest differences grow like exp(rate k) in k steps with one D per
                 coordinate, as long as gradients and curvature stay as in the batches; 0
                 where the curvature is not negative, None where it is None
    groups       of parameters, for :class:`asgld.NetworkASGLD`
    ===========  ==========================================================================
    """

    lr: float
    steps: int
    size: float
    shape: str
    noise: dict[str, float]
    counts: dict[str, tuple[int, int]]
    curvature: float | None
    rate: float | None
    groups: list[dict[str, Any]] = field(repr=False)

    def __str__(self) -> str:
        if not self.noise:
            return (
                "No copies: no slices and no parameters are equal with equal gradients.\n"
                "The groups have the default noise."
            )
        told = [f"{name} ({a} slices, {b} distinct)" for name, (a, b) in self.counts.items()]
        lines = [
            f"{len(self.counts)} parameters have copies: {_listed(told)}.",
            "Copies get equal gradients, so without noise they stay equal.",
            *self._said_of_curvature(),
            f"Noise that adds up to {self.size:g} of the size of these weights in {self.steps} "
            f"steps at lr={self.lr:g}, and no less than the default:",
            *self._said_of_noise(),
        ]
        return "\n".join(lines)

    def _said_of_curvature(self) -> list[str]:
        if self.curvature is None or self.rate is None:
            return [
                "The curvature was not measured: it needs a ModelHessian in float32 or float64."
            ]
        if self.rate == 0.0:
            return [
                f"The curvature along their differences is {self.curvature:.3g}, not negative: "
                "noise alone must part the copies."
            ]
        return [
            f"The curvature along their differences is {self.curvature:.3g}, negative: copies that "
            "differ can part on their own.",
            f"At lr={self.lr:g}, with one D per coordinate, a difference grows by a factor of e in "
            f"{1 / self.rate:.3g} steps at the fastest; with batches most grow far slower.",
        ]

    def _said_of_noise(self) -> list[str]:
        levels: dict[float, list[str]] = {}
        for name, noise in self.noise.items():
            levels.setdefault(noise, []).append(name)
        ordered = sorted(levels, reverse=True)
        lines = [f"  noise={noise:.3g} for {_listed(levels[noise])}" for noise in ordered[:_SHOWN]]
        if len(ordered) > _SHOWN:
            lines.append(f"  and {len(ordered) - _SHOWN} smaller levels for others")
        return lines


def calibrate_copies(
    source: ModelHessian | nn.Module,
    *,
    lr: float,
    steps: int,
    shape: str | None = None,
    size: float = SIZE,
    schedule: Callable[[int], float] | None = None,
    seed: int = 0,
) -> Copies:
    r"""Find copied weights of a network, and the noise with which NetworkASGLD separates them.

    Networks are grown by copying: neurons whose readers are divided by the number of copies, heads,
    experts under a router of zeros. A parameter with copies gets the noise nu whose steps add up
    to `size` times the root mean square w of its weights that are not zero,

    .. math:: \nu\, \mathrm{lr}\, \sqrt{\textstyle\sum_{0 \le k < steps} s_k^2 / \max(k, 1)}
              = size \cdot w,

    s_k being the schedule's factor of lr, but no less than the default noise. The noise is rounded
    to a power of sqrt(2) times the default, so that groups are few. All elements of a parameter get
    its noise, those that are no copies too. All other parameters keep the default, norms among
    them. Nothing of the model is changed.

    To resume, save `noise`: the same groups come from `network_groups(model, noise=noise)`.

    The curvature and `rate` are for reading; the noise does not depend on them. Both are estimates
    from one side: the chance of few batches looks like negative curvature, and training turns the
    directions of fastest growth. `benchmarks/suite/separation.py` measures how much slower copies
    part. Of ReLU the Hessian does not see the kinks, so there the rate says little.

    Args:
        source: a :class:`asgld.ModelHessian` of the grown network, with batches as large as those
            of training: their squared gradients are D in `rate`. Or the network itself after one
            backward pass, sharded or not: then no curvature is measured.
        lr: of the training to come; with a schedule, its largest.
        steps: of the training to come.
        shape: of D for hidden matrices, as for :class:`asgld.NetworkASGLD`.
        size: how far all noise carries the weights, in units of their size.
        schedule: the factor of lr at step 0, 1, ..., as for `torch.optim.lr_scheduler.LambdaLR`; by
            default 1.
        seed: of the search for the smallest curvature.

    Example:
        >>> import torch, asgld
        >>> small, model = (torch.nn.Sequential(torch.nn.Linear(2, n), torch.nn.Tanh(),
        ...                 torch.nn.Linear(n, 1)) for n in (3, 6))
        >>> with torch.no_grad():
        ...     _ = model[0].weight.copy_(small[0].weight.repeat(2, 1))
        ...     _ = model[0].bias.copy_(small[0].bias.repeat(2))
        ...     _ = model[2].weight.copy_(small[2].weight.repeat(1, 2) / 2)
        >>> batches = [(torch.randn(8, 2), torch.randn(8, 1)) for _ in range(3)]
        >>> source = asgld.ModelHessian(model, torch.nn.functional.mse_loss, batches)
        >>> advice = calibrate_copies(source, lr=4e-3, steps=2000)
        >>> advice.counts
        {'0.weight': (6, 3), '0.bias': (6, 3), '2.weight': (6, 3)}
        >>> optimizer = asgld.NetworkASGLD(advice.groups, lr=4e-3)
    """
    lr, size = _number("lr", lr), _number("size", size)
    require(0.0 < lr < math.inf, "lr", lr, "a positive finite number")
    require(
        isinstance(steps, numbers.Integral) and steps >= 1, "steps", steps, "a whole number >= 1"
    )
    require(0.0 <= size < math.inf, "size", size, "a finite number of at least 0")
    require(
        shape is None or shape in SHAPES, "shape", shape, f"one of {', '.join(SHAPES)}, or None"
    )
    if schedule is not None and not callable(schedule):
        raise TypeError(
            f"schedule is {type(schedule).__name__}: need a function of the step that returns the "
            "factor of lr, as LambdaLR takes"
        )
    if not isinstance(source, ModelHessian | nn.Module):
        raise TypeError(f"source is {type(source).__name__}: need a ModelHessian or a model")
    shape = "polar-row" if shape is None else shape
    unit = _sum_of_noise(lr, int(steps), schedule)
    model = source.model if isinstance(source, ModelHessian) else source
    squares, weights = _look(source)
    symmetry = find_symmetry(weights)
    noise = {name: _noise(weights.size(name), unit, size) for name in symmetry.counts}
    curvature = rate = None
    if noise and isinstance(source, ModelHessian) and source.dtype in _PRECISE:
        average = Average(symmetry, _selected(source))
        curvature = _smallest(source, average, torch.ones_like(squares), seed)
        scaled = _smallest(source, average, _quarter_root(average(squares)), seed)
        rate = lr * max(0.0, -scaled)
    louder = {name: level for name, level in noise.items() if level > _DEFAULT_NOISE}
    groups = network_groups(model, shape, noise=louder)
    return Copies(lr, int(steps), size, shape, noise, symmetry.counts, curvature, rate, groups)


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}={value!r}: need a number") from None


def _listed(told: list[str]) -> str:
    """The first few."""
    rest = len(told) - _SHOWN
    return ", ".join(told[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


# --- The noise ---


def _sum_of_noise(lr: float, steps: int, schedule: Callable[[int], float] | None) -> float:
    """Standard deviation of the sum of all noise steps, at noise 1."""
    factors = [1.0 if schedule is None else float(schedule(k)) for k in range(steps)]
    total = sum(factor**2 / max(k, 1) for k, factor in enumerate(factors))
    if not 0.0 < total < math.inf:
        raise ValueError(f"schedule: need finite factors of lr in {steps} steps, not all zero")
    return lr * math.sqrt(total)


def _noise(weight: float, unit: float, size: float) -> float:
    """The noise that carries weights of this size so far; see `calibrate_copies`."""
    wanted = size * weight / unit / _DEFAULT_NOISE
    if wanted <= 1.0:
        return _DEFAULT_NOISE
    return float(_DEFAULT_NOISE * 2.0 ** (round(2.0 * math.log2(wanted)) / 2.0))


# --- What is looked at ---


def _look(source: ModelHessian | nn.Module) -> tuple[Tensor, Weights]:
    """D for a ModelHessian, flat, and the weights with their gradients."""
    if isinstance(source, nn.Module):
        params = {name: p for name, p in source.named_parameters() if p.requires_grad}
        gradients = {name: p.grad for name, p in params.items() if p.grad is not None}
        if not gradients:
            raise ValueError("no parameter has a gradient: run one backward pass before this")
        return torch.empty(0), Weights(params, gradients)
    params = _selected(source)
    if any(hasattr(p, "full_tensor") for p in params.values()):
        raise ValueError(
            "the model is sharded, and a ModelHessian needs whole parameters: run one backward "
            "pass and give the model itself, without curvature"
        )
    gradient, squares = _gradient_and_squares(source)
    pieces = torch.split(gradient, [p.numel() for p in params.values()])
    views = {name: g.view(p.shape) for (name, p), g in zip(params.items(), pieces, strict=True)}
    trained = {name: p for name, p in params.items() if p.requires_grad}
    return squares, Weights(trained, {name: views[name] for name in trained})


def _selected(source: ModelHessian) -> dict[str, nn.Parameter]:
    """The parameters of the flat vector, in its order."""
    return source._params


def _gradient_and_squares(source: ModelHessian) -> tuple[Tensor, Tensor]:
    """The gradient, and the mean of squared gradients of batches; both without weight decay, which
    would give a gradient to weights that have none."""
    plain = copy.copy(source)
    plain.weight_decay = 0.0
    x, count, batches = source.x, 0, 0
    gradient, squares = torch.zeros_like(x), torch.zeros_like(x)
    for part in plain.batches():
        of_batch = plain.mean_grad(x, [part])
        gradient += part[1] * of_batch
        squares += of_batch.square()
        count, batches = count + part[1], batches + 1
    return gradient / count, squares / batches


# --- Curvature along differences of copies ---


def _quarter_root(squares: Tensor) -> Tensor:
    """D^(-1/4), and 0 where there is no gradient, as in a router of zeros: there D follows the
    differences, and no linear rule holds."""
    is_known = squares > _FLOOR * float(squares.mean())
    return torch.where(is_known, squares, 1.0).pow(-0.25) * is_known


def _smallest(source: ModelHessian, average: Average, scale: Tensor, seed: int) -> float:
    """Smallest eigenvalue of S H S on differences of copies; S is diagonal, equal for copies.

    The start is a difference, and so is all that follows. In float32 bounds that hold for sure
    would be wide; a small residual ends the search.
    """
    x = source.x

    def product(v: Tensor) -> Tensor:
        result = scale * source.hvp(x, scale * (v - average(v)))
        return result - average(result)

    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(source.dim, generator=generator, dtype=torch.float64).to(x)
    start = direction - average(direction)
    operator = SymmetricOperator(product, source.dim, dtype=x.dtype, device=x.device)
    usual = torch.linalg.vector_norm(scale * source.hvp(x, scale * direction))
    if torch.linalg.vector_norm(product(start)) <= _ROUNDING * operator.unit_roundoff * usual:
        return 0.0  # f is linear along differences
    run = Krylov(operator, start, _MAX_BYTES // (source.dim * x.element_size()))
    for _ in run.checkpoints(_MAX_HVP):
        values, vectors = run.ritz()
        residual = run.betas[-1] * abs(vectors[-1, 0])
        width = values[-1] - values[0]
        if residual <= max(_ACCURACY * abs(values[0]), _ACCURACY_OF_WIDTH * width):
            break
    return float(run.ritz()[0][0])
