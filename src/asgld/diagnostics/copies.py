r"""Noise for networks that were grown by copying.

Copied neurons, heads or experts get equal gradients. Then, but for rounding, no rule without noise
separates them: the network is at a saddle. :func:`calibrate_copies` finds the copies, measures the
curvature along their differences, and chooses the noise that separates them.

**Copies** are slices of a parameter, or whole parameters, that are equal bit for bit and whose
gradients are equal up to rounding. Weights that merely start alike, as zeros do, have different
gradients.

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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from asgld.arguments import require
from asgld.curvature import ModelHessian
from asgld.curvature.lanczos import Krylov
from asgld.curvature.operator import SymmetricOperator
from asgld.optim import NetworkASGLD, network_groups

# How far all noise together carries a weight, in units of the weights' size.
SIZE = 0.3
# The noise that NetworkASGLD has if nobody says otherwise.
_DEFAULT_NOISE: float = inspect.signature(NetworkASGLD).parameters["noise"].default
# Equal gradients differ by less than this, relative to their size; and by a few units in the last
# place of their type.
_TOLERANCE, _UNITS = 1e-3, 4
# Weights of zero have no gradient if it is so small, relative to all gradients: in units in the
# last place, and in any case.
_ZERO_UNITS, _LARGEST_ZERO = 100, 1e-3
# A coordinate has no gradient if D is smaller than this, relative to its mean.
_FLOOR = 1e-8
# The residual of the smallest eigenvalue, relative to itself, or to the spectrum's width. The
# error is of second order in it. Products that may be spent, and memory for their vectors.
_ACCURACY, _ACCURACY_OF_WIDTH = 2e-3, 1e-5
_MAX_HVP, _MAX_BYTES = 300, 2**31
# A product is rounding if it is so small, relative to usual ones, in units in the last place.
_ROUNDING = 1000
# Elements that are hashed at once; the seed of the multipliers.
_CHUNK, _HASH_SEED = 2**22, 0xC0B1E5
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
    curvature    the smallest along differences of copies; None without copies or a Hessian
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
            f"steps at lr={self.lr:g}:",
            *self._said_of_noise(),
        ]
        return "\n".join(lines)

    def _said_of_curvature(self) -> list[str]:
        if self.curvature is None or self.rate is None:
            return ["The curvature was not measured: that needs a ModelHessian."]
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
    to a power of sqrt(2) times the default, so that groups are few. All other parameters keep the
    default. Nothing of the model is changed.

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
    require(0.0 < lr < math.inf, "lr", lr, "a positive finite number")
    require(isinstance(steps, int) and steps >= 1, "steps", steps, "a positive integer")
    require(0.0 <= size < math.inf, "size", size, "a finite number of at least 0")
    if not isinstance(source, ModelHessian | nn.Module):
        raise TypeError(f"source is {type(source).__name__}: need a ModelHessian or a model")
    shape = "polar-row" if shape is None else shape
    unit = _sum_of_noise(lr, steps, schedule)
    model = source.model if isinstance(source, ModelHessian) else source
    groups = network_groups(model, shape)
    squares, weights = _look(source)
    symmetry = _find(weights)
    noise = {name: _noise(weights.size(name), unit, size) for name in symmetry.counts}
    curvature = rate = None
    if noise and isinstance(source, ModelHessian):
        average = _Average(symmetry, _selected(source))
        curvature = _smallest(source, average, torch.ones_like(squares), seed)
        scaled = _smallest(source, average, _quarter_root(average(squares)), seed)
        rate = lr * max(0.0, -scaled)
    split = [part for group in groups for part in _split(group, noise)]
    return Copies(lr, steps, size, shape, noise, symmetry.counts, curvature, rate, split)


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


def _split(group: dict[str, Any], noise: dict[str, float]) -> Iterable[dict[str, Any]]:
    """Groups with one level of noise each; the default is for the optimizer to know."""
    knobs = {key: group[key] for key in group if key not in ("params", "param_names")}
    parts: dict[float, dict[str, Any]] = {}
    for name, p in zip(group["param_names"], group["params"], strict=True):
        level = noise.get(name, _DEFAULT_NOISE)
        own = {} if level == _DEFAULT_NOISE else {"noise": level}
        part = parts.setdefault(level, {"params": [], "param_names": [], **knobs, **own})
        part["params"].append(p)
        part["param_names"].append(name)
    return parts.values()


# --- What is looked at ---


class _Weights:
    """Values and gradients of the parameters that are trained: whole tensors, one at a time."""

    def __init__(self, params: dict[str, nn.Parameter], gradients: dict[str, Tensor]) -> None:
        self.params, self._gradients = params, gradients
        total = 0.0
        for name in gradients:
            square = float(torch.linalg.vector_norm(self.gradient(name), dtype=torch.float64)) ** 2
            if not math.isfinite(square):
                raise ValueError(f"the gradient of {name!r} is not finite: it says nothing")
            total += square
        if total == 0.0:
            raise ValueError("all gradients are zero: they do not tell which weights are copies")
        self._scale = math.sqrt(total / sum(p.numel() for p in params.values()))

    def value(self, name: str) -> Tensor:
        return _whole(self.params[name])

    def gradient(self, name: str) -> Tensor:
        found = self._gradients.get(name)
        return torch.zeros_like(self.value(name)) if found is None else _whole(found)

    def size(self, name: str) -> float:
        """Root mean square of the weights that are not zero."""
        value = self.value(name)
        norm = float(torch.linalg.vector_norm(value, dtype=torch.float64))
        return norm / math.sqrt(max(int(value.count_nonzero()), 1))

    def zero(self, name: str) -> float:
        """A gradient of less than this per coordinate is zero up to rounding."""
        eps = torch.finfo(self.params[name].dtype).eps
        return self._scale * min(_ZERO_UNITS * eps, _LARGEST_ZERO)


def _whole(tensor: Tensor) -> Tensor:
    """The values, those of other ranks too; a complex number is two."""
    full_tensor = getattr(tensor.detach(), "full_tensor", None)
    whole: Tensor = tensor.detach() if full_tensor is None else full_tensor()
    whole = whole.to_dense() if whole.is_sparse else whole
    return torch.view_as_real(whole.resolve_conj()) if whole.is_complex() else whole


def _look(source: ModelHessian | nn.Module) -> tuple[Tensor, _Weights]:
    """D for a ModelHessian, flat, and the weights with their gradients."""
    if isinstance(source, nn.Module):
        params = {name: p for name, p in source.named_parameters() if p.requires_grad}
        gradients = {name: p.grad for name, p in params.items() if p.grad is not None}
        if not gradients:
            raise ValueError("no parameter has a gradient: run one backward pass before this")
        return torch.empty(0), _Weights(params, gradients)
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
    return squares, _Weights(trained, {name: views[name] for name in trained})


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


# --- Finding copies ---


class _Partition(NamedTuple):
    """Slices along a dimension. `labels` has for each the first that is equal to it. Copies whose
    weights and gradients are zero, as in a router, are not counted."""

    labels: Tensor
    copies: int
    distinct: int


class _Symmetry(NamedTuple):
    """By name and dimension which slices are copies; which parameters are copies of each other."""

    partitions: dict[str, dict[int, _Partition]]
    twins: list[list[str]]
    counts: dict[str, tuple[int, int]]


def _find(weights: _Weights) -> _Symmetry:
    found: dict[str, dict[int, _Partition]] = {}
    for name, p in weights.params.items():
        found[name] = _slices(weights, name) if p.dim() >= 2 else {}
    matrices = dict(found)
    for name, p in weights.params.items():
        if p.dim() == 1:
            found[name] = _entries(weights, name, matrices)
    twins, counted = _twins(weights)
    for first, *others in twins:  # equal parameters have equal slices
        found |= dict.fromkeys(others, found[first])
    counts: dict[str, tuple[int, int]] = {}
    for name, parts in found.items():
        copies = sum(part.copies for part in parts.values()) + counted.get(name, 0)
        distinct = sum(part.distinct for part in parts.values()) + (name in counted)
        if copies:
            counts[name] = copies, distinct
    return _Symmetry({name: parts for name, parts in found.items() if parts}, twins, counts)


def _slices(weights: _Weights, name: str) -> dict[int, _Partition]:
    """Copies along the first two dimensions of a parameter, or the three of a stack of matrices."""
    value, gradient = weights.value(name), weights.gradient(name)
    num_dims = weights.params[name].dim()
    found: dict[int, _Partition] = {}
    for dim in range(3 if num_dims == 3 else 2):
        if value.shape[dim] < 2 or value.numel() == 0:
            continue
        rows, gradients = (t.movedim(dim, 0).reshape(t.shape[dim], -1) for t in (value, gradient))
        labels = _equal_rows(_bits(rows))
        if _members(labels).numel():
            judged = _Judged(rows, gradients, labels, weights.zero(name))
            found |= judged.partition(dim)
    return found


def _entries(
    weights: _Weights, name: str, matrices: dict[str, dict[int, _Partition]]
) -> dict[int, _Partition]:
    """Copies among the entries of a bias: the same as in a weight of its module.

    Those of the weight lie along its first dimension, or the second if it is stored transposed.
    """
    home, length = name.rpartition(".")[0], weights.params[name].numel()
    nearby = [found for other, found in matrices.items() if other.rpartition(".")[0] == home]
    known = [found[dim].labels for dim in (0, 1) for found in nearby if dim in found]
    candidates = [labels for labels in known if len(labels) == length]
    if not candidates:
        return {}
    rows = weights.value(name).reshape(length, -1)
    gradients = weights.gradient(name).reshape(length, -1)
    bits = _bits(rows)
    for labels in candidates:
        if bool((bits == bits[labels.to(bits.device)]).all()):
            judged = _Judged(rows, gradients, labels, weights.zero(name), are_numbers=True)
            if bool(judged.agreed.all()):
                return judged.partition(0)
    return {}


class _Judged:
    """What gradients say of classes of equal rows, class by class.

    ============  ==========================================================================
    agreed        the gradients are equal
    counted       they are, and not zero: copies
    silent        weights and gradients are zero, as in a router above copies
    ============  ==========================================================================

    A gradient of less than `zero` per coordinate may be rounding. Rows that are numbers, not
    vectors, say less: a small one may be rounding too, and the gradients of all are the measure.
    """

    def __init__(
        self,
        rows: Tensor,
        gradients: Tensor,
        labels: Tensor,
        zero: float,
        are_numbers: bool = False,
    ) -> None:
        self.labels, self.members = labels, _members(labels)
        self.firsts, self.places, self.sizes = torch.unique(
            labels[self.members], return_inverse=True, return_counts=True
        )
        norms, apart = self._lengths(gradients)
        least, measure = 0.0, norms
        if are_numbers:
            whole = float(torch.linalg.vector_norm(gradients, dtype=torch.float64))
            least, measure = zero, norms.clamp(min=whole / math.sqrt(len(rows)))
        is_blank = (rows[self.firsts.to(rows.device)] == 0).all(1).cpu()
        tolerance = max(_TOLERANCE, _UNITS * torch.finfo(gradients.dtype).eps)
        self.silent = is_blank & (norms <= zero * math.sqrt(rows.shape[1]))
        self.agreed = self.silent | (apart <= tolerance * measure) | (norms <= least)
        self.counted = self.agreed & ~self.silent & (norms > least)

    def _lengths(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Of each class the root mean square of lengths, and the largest distance from the mean."""
        chosen = gradients[self.members.to(gradients.device)]
        chosen = chosen.to(torch.promote_types(chosen.dtype, torch.float32))
        places = self.places.to(chosen.device)
        means = chosen.new_zeros(len(self.firsts), chosen.shape[1]).index_add_(0, places, chosen)
        means /= self.sizes.to(chosen)[:, None]
        lengths, away = (
            torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).cpu()
            for rows in (chosen, chosen - means[places])
        )
        empty = torch.zeros(len(self.firsts), dtype=torch.float64)
        squares = empty.index_add(0, self.places, lengths.square())
        return (squares / self.sizes).sqrt(), empty.scatter_reduce(0, self.places, away, "amax")

    def partition(self, dim: int) -> dict[int, _Partition]:
        """The copies along this dimension, if there are any; all other rows are alone."""
        is_kept = self.counted | self.silent
        if not bool(is_kept.any()):
            return {}
        alone = self.members[~is_kept[self.places]]
        labels = self.labels.index_copy(0, alone, alone)
        count = int(self.sizes[self.counted].sum())
        return {dim: _Partition(labels, count, int(self.counted.sum()))}


def _members(labels: Tensor) -> Tensor:
    """Rows that are not alone in their class."""
    return (torch.bincount(labels, minlength=len(labels))[labels] > 1).nonzero()[:, 0]


def _equal_rows(bits: Tensor) -> Tensor:
    """For each row the first one with the same bits, on the CPU."""
    _, inverse = torch.unique(_codes(bits), return_inverse=True)
    rows = torch.arange(len(bits))
    firsts = torch.full_like(rows, len(bits)).scatter_reduce(0, inverse, rows, "amin")
    labels = firsts[inverse]
    later = (labels != rows).nonzero()[:, 0]
    here, first = later.to(bits.device), labels[later].to(bits.device)
    differs = later[(bits[here] != bits[first]).any(1).cpu()]
    return labels.index_copy(0, differs, differs)


def _bits(rows: Tensor) -> Tensor:
    """Rows as integers of at most 32 bits: with 64, two signs would cancel in a sum of odd
    multiples."""
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
    return rows.contiguous().view(kinds[rows.element_size()])


def _codes(bits: Tensor) -> Tensor:
    """A hash of each row, on the CPU: a sum of odd multiples that wraps around."""
    generator = torch.Generator().manual_seed(_HASH_SEED)
    width = bits.shape[1]
    odd = 1 + 2 * torch.randint(-(2**62), 2**62, (width,), generator=generator)
    odd = odd.to(bits.device)
    parts = torch.split(bits, max(1, _CHUNK // max(width, 1)))
    return torch.cat([(part.long() * odd).sum(1).cpu() for part in parts])


def _twins(weights: _Weights) -> tuple[list[list[str]], dict[str, int]]:
    """Parameters that are copies of each other; for those that count, how many there are.

    Matrices count if they have gradients. All else, such as biases, belongs to copies only if
    matrices of the same modules do: two biases that are added up look like copies, and are none.
    """
    found: list[tuple[list[str], bool]] = []
    for left in _equal_tensors(weights):
        while len(left) > 1:
            same = [left[0], *(name for name in left[1:] if _are_copies(weights, left[0], name))]
            left = [name for name in left if name not in same]
            is_silent, is_counted = _kind(weights, same[0])
            if len(same) > 1 and (is_silent or is_counted):
                found.append((same, is_counted))
    homes = {
        _homes(same)
        for same, is_counted in found
        if is_counted and weights.params[same[0]].dim() > 1
    }
    kept = [(same, is_counted) for same, is_counted in found if _homes(same) in homes]
    counted = {name: len(same) for same, is_counted in kept if is_counted for name in same}
    return [same for same, _ in kept], counted


def _homes(names: list[str]) -> tuple[str, ...]:
    """The modules that are copies if parameters of these names are: up to where names differ."""
    parts = [name.split(".") for name in names]
    depth = next(i for i, column in enumerate(zip(*parts, strict=False)) if len(set(column)) > 1)
    return tuple(".".join(part[: depth + 1]) for part in parts)


def _equal_tensors(weights: _Weights) -> list[list[str]]:
    """Names of parameters whose bits have the same hash."""
    alike: dict[Any, list[str]] = {}
    for name, p in weights.params.items():
        if p.numel() > 1:  # one number is no evidence
            alike.setdefault((p.shape, p.dtype), []).append(name)
    found: dict[Any, list[str]] = {}
    for kind, names in alike.items():
        for name in names if len(names) > 1 else ():
            value = weights.value(name)
            rows = _codes(_bits(value.reshape(len(value), -1)))
            code = int(_codes(rows.view(torch.int32)[None]))
            found.setdefault((kind, code), []).append(name)
    return list(found.values())


def _are_copies(weights: _Weights, first: str, other: str) -> bool:
    values = torch.stack([weights.value(name).reshape(-1) for name in (first, other)])
    bits = _bits(values)
    if not torch.equal(bits[0], bits[1]):
        return False
    gradients = torch.stack([weights.gradient(name).reshape(-1) for name in (first, other)])
    together = torch.zeros(2, dtype=torch.int64)
    return bool(_Judged(values, gradients, together, weights.zero(first)).agreed)


def _kind(weights: _Weights, name: str) -> tuple[bool, bool]:
    """Whether copies of this parameter are silent, and whether they count, as in `_Judged`."""
    norm = float(torch.linalg.vector_norm(weights.gradient(name), dtype=torch.float64))
    is_small = norm <= weights.zero(name) * math.sqrt(weights.params[name].numel())
    is_silent = is_small and not bool(weights.value(name).any())
    return is_silent, norm > 0.0 and not is_silent


# --- Curvature along differences of copies ---


class _Average:
    """A: flat vectors averaged over all copies. Parameters without copies stay as they are."""

    def __init__(self, symmetry: _Symmetry, params: dict[str, nn.Parameter]) -> None:
        self._shapes = {name: p.shape for name, p in params.items()}
        self._lengths = [p.numel() for p in params.values()]
        self._twins = symmetry.twins
        self._labels = {
            name: {dim: part.labels.to(params[name].device) for dim, part in parts.items()}
            for name, parts in symmetry.partitions.items()
        }

    def __call__(self, v: Tensor) -> Tensor:
        pieces = dict(zip(self._shapes, torch.split(v, self._lengths), strict=True))
        for name, of_dims in self._labels.items():
            piece = pieces[name].view(self._shapes[name])
            for dim, labels in of_dims.items():
                piece = _class_means(piece, dim, labels.to(v.device))
            pieces[name] = piece.reshape(-1)
        for twins in self._twins:
            mean = torch.stack([pieces[name] for name in twins]).mean(0)
            pieces |= dict.fromkeys(twins, mean)
        return torch.cat(list(pieces.values()))


def _class_means(piece: Tensor, dim: int, labels: Tensor) -> Tensor:
    """Each slice becomes the mean of its class."""
    sums = torch.zeros_like(piece).index_add_(dim, labels, piece)
    sizes = torch.bincount(labels, minlength=len(labels)).clamp(min=1).to(piece)
    shape = [-1 if d == dim else 1 for d in range(piece.dim())]
    return (sums / sizes.view(shape)).index_select(dim, labels)


def _quarter_root(squares: Tensor) -> Tensor:
    """D^(-1/4), and 0 where there is no gradient, as in a router of zeros: there D follows the
    differences, and no linear rule holds."""
    is_known = squares > _FLOOR * float(squares.mean())
    return torch.where(is_known, squares, 1.0).pow(-0.25) * is_known


def _smallest(source: ModelHessian, average: _Average, scale: Tensor, seed: int) -> float:
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
