"""Penalties g of objectives f + g, convex and not smooth, with their proximal steps.

A penalty says what g is: `L1(weight)`, `ElasticNet(l1, l2)` or `GroupLasso(weight, groups)`. It is
plain data, so checkpoints hold it. `penalty.on(shape)` is g for tensors of one shape, flattened to
(..., d): its value, its proximal step in a diagonal metric, and its derivatives along the active
manifold, which is where zeros stay zeros.
"""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asgld.arguments import require

__all__ = ["L1", "BoundPenalty", "ElasticNet", "GroupLasso", "Penalty"]

# Newton's method for the norm of a group converges from below, and doubles the digits.
_NEWTON_STEPS = 12
_NUMBERS = "a number of at least 0, or a tensor of them"
# Where a penalty keeps what `bound` has made.
_MADE = "_made"


class BoundPenalty(ABC):
    """A penalty for tensors of one shape, flattened to d entries: all arguments are (..., d)."""

    is_separable: bool

    @property
    @abstractmethod
    def dim(self) -> int:
        """The number d of entries."""

    def points(self, x: Tensor) -> Tensor:
        """Return a parameter as points (n, d): most are one point, some are a replica per row."""
        return x.reshape(x.numel() // max(self.dim, 1), self.dim)

    @abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """Return g(x), without the last axis."""

    @abstractmethod
    def shrink(self, x: Tensor, step: float | Tensor) -> Tensor:
        """Return argmin_u g(u) + sum_i (u_i - x_i)^2 / (2 step_i). Steps of 0 move nothing."""

    @abstractmethod
    def is_free(self, x: Tensor) -> Tensor:
        """Return which entries are not at a kink of g."""

    @abstractmethod
    def grad(self, x: Tensor) -> Tensor:
        """Return the gradient of g along the active manifold: 0 on entries that are not free."""

    @abstractmethod
    def hvp(self, x: Tensor, v: Tensor) -> Tensor:
        """Return the Hessian of g along the active manifold times v."""

    @abstractmethod
    def slack(self, x: Tensor, grad_f: Tensor) -> Tensor:
        """Return how much the gradient of f may grow before an entry leaves its kink: inf on free
        entries, negative where a step would leave the kink."""

    # What judgments of one point need, and steps do not.

    @abstractmethod
    def units(self) -> Tensor:
        """Return numbers (d,): entries that leave their kink together have the same."""

    @abstractmethod
    def branch(self, x: Tensor, away: Tensor) -> Branch:
        """Return the smooth branch of g around x (d,).

        Entries at a kink leave it along `away` (d,), on a line with the slope of g or with |away|,
        if that is less steep.
        """


@dataclass(frozen=True)
class Branch:
    """A smooth function below g that is equal to g on one side of the kinks at x.

    Where g has a kink at 0, the branch goes on in a straight line: g lies above, since it is
    convex. A minimum of f + branch is therefore one of f + g.
    """

    smooth: BoundPenalty  # the part of g without kinks around x
    kinked: BoundPenalty  # the other part
    slope: Tensor  # (d,): the gradient of its straight lines

    def gap(self, x: Tensor) -> Tensor:
        """Return branch - g: 0 on this side of the kinks, negative beyond."""
        return (self.slope * x).sum(-1) - self.kinked.value(x)

    def grad(self, x: Tensor) -> Tensor:
        return self.smooth.grad(x) + self.slope

    def hvp(self, x: Tensor, v: Tensor) -> Tensor:
        return self.smooth.hvp(x, v)


@dataclass(frozen=True, eq=False)
class Penalty(ABC):
    """A convex function g that is not smooth. Penalties of equal content are equal.

    An optimizer takes the tensors of a penalty as they are when the penalty is set, and refuses
    steps after a write to these tensors. Set a new penalty instead. A write that torch does not
    count, through `.data` or NumPy, is not seen.
    """

    def value(self, x: Any) -> Tensor:
        """Return g(x) for one tensor, array or list.

        >>> L1(0.5).value(torch.tensor([1.0, -2.0]))
        tensor(1.5000)
        """
        x = x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x))
        if x.is_complex():
            raise TypeError(f"x of {x.dtype}: a penalty is for real numbers")
        x = x if x.is_floating_point() else x.double()
        bound = self.on(x.shape, device=x.device)
        return bound.value(bound.points(x)).sum()

    @abstractmethod
    def on(self, shape: Sequence[int], *, device: torch.device | None = None) -> BoundPenalty:
        """Return g for tensors of this shape; tensors among the weights are moved to the device."""

    @abstractmethod
    def fits_shards(self, cut: set[int]) -> bool:
        """Whether `on` the shape of a shard is g of that shard, where these dimensions are cut."""

    def bound(self, shape: Sequence[int], *, device: torch.device | None = None) -> BoundPenalty:
        """Return `on` this shape, made once. Raise if a tensor has changed in place since."""
        if self.has_changed:
            kind = type(self).__name__
            raise ValueError(f"a tensor of {kind} has changed in place: set a new penalty")
        made: dict[Any, BoundPenalty] = vars(self).get(_MADE, (0, {}))[1]
        key = tuple(shape), device
        if key not in made:
            made[key] = self.on(shape, device=device)
            vars(self)[_MADE] = self._version, made
        return made[key]

    @property
    def has_changed(self) -> bool:
        """Whether torch has written to a tensor of the penalty since `bound` was first called."""
        return bool(vars(self).get(_MADE, (self._version,))[0] != self._version)

    @property
    def _version(self) -> int:
        content = self.__getstate__().values()
        return sum(v._version for v in content if isinstance(v, Tensor) and not v.is_inference())

    def __post_init__(self) -> None:  # noqa: B027
        """Raise if the content is illegal."""

    # Copies and files have the content alone. They own their tensors, and are checked anew.

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != _MADE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        if type(other) is not type(self):
            return NotImplemented
        mine, theirs = self.__getstate__(), other.__getstate__()
        return mine.keys() == theirs.keys() and all(_equal(mine[n], theirs[n]) for n in mine)

    def __hash__(self) -> int:
        return hash(type(self))  # whatever the tensors hold


@dataclass(frozen=True, eq=False)
class ElasticNet(Penalty):
    """g(x) = l1 |x|_1 + l2/2 |x|^2.

    Args:
        l1, l2: numbers of at least 0, or tensors of x's shape, with 0 where x is not penalized.
    """

    l1: float | Tensor
    l2: float | Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "l1", _weight("l1", self.l1))
        object.__setattr__(self, "l2", _weight("l2", self.l2))

    def on(self, shape: Sequence[int], *, device: torch.device | None = None) -> BoundPenalty:
        l1, l2 = (_on_entries(n, getattr(self, n), shape, device) for n in ("l1", "l2"))
        return _Separable(l1, l2, math.prod(shape))

    def fits_shards(self, cut: set[int]) -> bool:
        return not isinstance(self.l1, Tensor) and not isinstance(self.l2, Tensor)


@dataclass(frozen=True, eq=False)
class L1(Penalty):
    """g(x) = weight |x|_1.

    Args:
        weight: a number of at least 0, or a tensor of x's shape, with 0 where x is not penalized.
    """

    weight: float | Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", _weight("weight", self.weight))

    def on(self, shape: Sequence[int], *, device: torch.device | None = None) -> BoundPenalty:
        weight = _on_entries("weight", self.weight, shape, device)
        return _Separable(weight, 0.0, math.prod(shape))

    def fits_shards(self, cut: set[int]) -> bool:
        return not isinstance(self.weight, Tensor)


@dataclass(frozen=True, eq=False)
class GroupLasso(Penalty):
    """g(x) = sum over groups of weight |x_group|_2.

    Args:
        weight: a number of at least 0, or one for each group.
        groups: None makes a group of each slice along x's first dimension, such as the rows of a
            matrix. Otherwise integers of x's shape, the number of the group of each entry from 0;
            entries with -1 are not penalized.
    """

    weight: float | Tensor
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        weight = _weight("weight", self.weight)
        if isinstance(weight, Tensor):
            require(weight.ndim == 1, "weight", weight, "a number, or one for each group")
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "groups", _groups(self.groups))

    def on(self, shape: Sequence[int], *, device: torch.device | None = None) -> BoundPenalty:
        shape, groups, weight = tuple(shape), _groups(self.groups), _weight("weight", self.weight)
        if groups is None and len(shape) < 2:
            raise ValueError(
                f"groups=None with x of shape {shape}: the groups are slices along the first of "
                "two or more dimensions; pass groups, integers of x's shape"
            )
        if groups is not None and groups.shape != shape:
            raise ValueError(f"groups of shape {tuple(groups.shape)}: need x's shape, {shape}")
        if groups is None:
            count = shape[0]
        else:
            count = int(groups.max()) + 1 if groups.numel() else 0
        if not isinstance(weight, Tensor):
            weight = torch.full((count,), weight, dtype=torch.float64)
        if len(weight) != count:
            raise ValueError(f"weight of {len(weight)} groups: need {count}, one for each group")
        if groups is None:
            return _Rows(weight.to(device), math.prod(shape[1:]))
        return _Numbered(weight.to(device), groups.flatten().to(device))

    def fits_shards(self, cut: set[int]) -> bool:
        return not isinstance(self.weight, Tensor) and self.groups is None and cut <= {0}


class _Separable(BoundPenalty):
    """The elastic net; l2 = 0 is the l1 norm."""

    is_separable = True

    def __init__(self, l1: float | Tensor, l2: float | Tensor, dim: int) -> None:
        self._l1, self._l2, self._dim = l1, l2, dim

    @property
    def dim(self) -> int:
        return self._dim

    def value(self, x: Tensor) -> Tensor:
        return (_like(self._l1, x) * x.abs() + _like(self._l2, x) / 2 * x * x).sum(-1)

    def shrink(self, x: Tensor, step: float | Tensor) -> Tensor:
        threshold = torch.as_tensor(step * _like(self._l1, x), dtype=x.dtype, device=x.device)
        u = x - x.clamp(-threshold, threshold)
        is_l1 = isinstance(self._l2, float) and self._l2 == 0.0
        return u if is_l1 else u / (1.0 + step * _like(self._l2, x))

    def is_free(self, x: Tensor) -> Tensor:
        return (x != 0.0) | (torch.as_tensor(self._l1, device=x.device) == 0.0)

    def grad(self, x: Tensor) -> Tensor:
        return _like(self._l1, x) * x.sign() + _like(self._l2, x) * x

    def hvp(self, x: Tensor, v: Tensor) -> Tensor:
        return torch.where(self.is_free(x), _like(self._l2, x) * v, 0.0)

    def slack(self, x: Tensor, grad_f: Tensor) -> Tensor:
        return torch.where(self.is_free(x), math.inf, _like(self._l1, x) - grad_f.abs())

    def units(self) -> Tensor:
        return torch.arange(self._dim)

    def branch(self, x: Tensor, away: Tensor) -> Branch:
        weights = torch.as_tensor(_like(self._l1, x), dtype=x.dtype, device=x.device)
        slope = torch.where(x != 0.0, weights * x.sign(), away.clamp(-weights, weights))
        smooth, kinked = _Separable(0.0, self._l2, self._dim), _Separable(self._l1, 0.0, self._dim)
        return Branch(smooth, kinked, slope)


class _Grouped(BoundPenalty):
    """The group lasso. Sums have a fixed order, so equal arguments give equal bits."""

    is_separable = False
    _weights: Tensor

    @abstractmethod
    def _totals(self, x: Tensor, of: str = "sum") -> Tensor:
        """Return for each group the sum or the maximum of its entries."""

    @abstractmethod
    def _spread(self, values: Tensor) -> Tensor:
        """Return for each entry the value of its group."""

    @abstractmethod
    def _weighted(self, weights: Tensor) -> BoundPenalty:
        """Return the same groups with other weights."""

    def value(self, x: Tensor) -> Tensor:
        return (self._weights.to(x) * self._norms(x)).sum(-1)

    def shrink(self, x: Tensor, step: float | Tensor) -> Tensor:
        # r, the new norm of a group, solves phi(r) = sum x_i^2 / (r + c_i)^2 = 1 for c = w step.
        # phi^(-1/2) is increasing and concave, so Newton's method for phi^(-1/2) = 1 climbs to r
        # from below, and is exact for equal c. The start has |x_i| <= r + c_i, so nothing
        # overflows.
        if not x.shape[-1]:
            return x.clone()
        c = self._spread(self._weights.to(x)) * torch.as_tensor(
            step, dtype=x.dtype, device=x.device
        )
        size = x.abs()
        vanishes = self._totals(torch.where(size > 0.0, size / c, 0.0).square()) <= 1.0
        r = self._totals(size - c, "max").clamp(min=0.0)
        tiny = torch.finfo(x.dtype).tiny
        for _ in range(_NEWTON_STEPS):
            below = (self._spread(r) + c).clamp(min=tiny)
            squares = (size / below).square()
            phi = self._totals(squares)
            slope = self._totals(squares / below).clamp(min=tiny)
            r = r + (phi * (phi.sqrt() - 1.0) / slope).clamp(min=0.0)
        r = self._spread(r)
        return torch.where(self._spread(vanishes), 0.0, x * (r / (r + c).clamp(min=tiny)))

    def is_free(self, x: Tensor) -> Tensor:
        return self._spread((self._norms(x) > 0.0) | (self._weights == 0.0))

    def grad(self, x: Tensor) -> Tensor:
        return self._spread(self._curvatures(x)) * x

    def hvp(self, x: Tensor, v: Tensor) -> Tensor:
        norms = self._norms(x)
        unit = x / self._spread(torch.where(norms > 0.0, norms, 1.0))
        return self._spread(self._curvatures(x)) * (v - unit * self._spread(self._totals(unit * v)))

    def slack(self, x: Tensor, grad_f: Tensor) -> Tensor:
        margin = self._spread(self._weights.to(x) - self._norms(grad_f))
        return torch.where(self.is_free(x), math.inf, margin)

    def units(self) -> Tensor:
        return self._spread(torch.arange(len(self._weights), device=self._weights.device))

    def branch(self, x: Tensor, away: Tensor) -> Branch:
        is_kinked, norms = self._norms(x) == 0.0, self._norms(away)
        factors = torch.where(norms > 0.0, self._weights.to(x) / norms, 0.0).clamp(max=1.0)
        return Branch(
            self._weighted(torch.where(is_kinked, 0.0, self._weights)),
            self._weighted(torch.where(is_kinked, self._weights, 0.0)),
            self._spread(torch.where(is_kinked, factors, 0.0)) * away,
        )

    def _curvatures(self, x: Tensor) -> Tensor:
        """Return weight / |x_group|, with 0 for groups at their kink."""
        norms = self._norms(x)
        return torch.where(norms > 0.0, self._weights.to(x) / norms, 0.0)

    def _norms(self, x: Tensor) -> Tensor:
        largest = self._totals(x.abs(), "max") if x.shape[-1] else self._totals(x)
        scale = torch.where(largest > 0.0, largest, 1.0)
        squares = self._totals((x / self._spread(scale)).square())
        # A root of 0 has no derivative; a group at its kink has the gradient 0.
        return scale * torch.where(
            squares == 0.0, 0.0, torch.where(squares == 0.0, 1.0, squares).sqrt()
        )


class _Rows(_Grouped):
    """Groups of equal width that follow each other."""

    def __init__(self, weights: Tensor, width: int) -> None:
        self._weights, self._width = weights, width

    @property
    def dim(self) -> int:
        return len(self._weights) * self._width

    def _totals(self, x: Tensor, of: str = "sum") -> Tensor:
        rows = x.reshape(*x.shape[:-1], len(self._weights), self._width)
        return rows.sum(-1) if of == "sum" else rows.amax(-1)

    def _spread(self, values: Tensor) -> Tensor:
        return values.repeat_interleave(self._width, dim=-1)

    def _weighted(self, weights: Tensor) -> BoundPenalty:
        return _Rows(weights, self._width)


class _Numbered(_Grouped):
    """Groups by number. Entries without a group, of number -1, are a last group of weight 0."""

    def __init__(self, weights: Tensor, index: Tensor) -> None:
        self._weights = torch.cat([weights, weights.new_zeros(1)])
        self._index = torch.where(index < 0, len(weights), index)
        self._order = self._index.argsort(stable=True)
        self._sizes = torch.bincount(self._index, minlength=len(self._weights))

    @property
    def dim(self) -> int:
        return len(self._index)

    def _totals(self, x: Tensor, of: str = "sum") -> Tensor:
        sorted_entries = x.movedim(-1, 0)[self._order].contiguous()
        return torch.segment_reduce(
            sorted_entries, of, lengths=self._sizes, unsafe=True, initial=0.0
        ).movedim(0, -1)

    def _spread(self, values: Tensor) -> Tensor:
        return values[..., self._index]

    def _weighted(self, weights: Tensor) -> BoundPenalty:
        return _Numbered(weights[:-1], torch.where(self._index < len(weights) - 1, self._index, -1))


def _weight(name: str, value: Any) -> float | Tensor:
    """Return a weight as a float or as a tensor of its own."""
    if isinstance(value, bool):
        raise TypeError(f"{name}={value!r}: need {_NUMBERS}")
    if isinstance(value, numbers.Real):
        try:
            number = float(value)
        except OverflowError:  # an integer beyond all floats
            number = math.inf
        require(0.0 <= number < math.inf, name, value, "a finite number of at least 0")
        return number
    weights = _own(name, value, _NUMBERS)
    if weights.is_complex() or weights.dtype == torch.bool:
        raise TypeError(f"{name} of {weights.dtype}: need numbers of at least 0")
    weights = weights if weights.is_floating_point() else weights.double()
    if not weights.ndim:
        return _weight(name, float(weights))
    is_legal = bool(((weights >= 0.0) & weights.isfinite()).all())
    require(is_legal, name, weights, "finite numbers of at least 0")
    return weights


def _groups(value: Any) -> Tensor | None:
    """Return the numbers of groups as a tensor of its own."""
    if value is None:
        return None
    groups = _own("groups", value, "None, or integers of x's shape")
    if groups.is_floating_point() or groups.is_complex() or groups.dtype == torch.bool:
        raise TypeError(f"groups of {groups.dtype}: need integers")
    least = int(groups.min()) if groups.numel() else 0
    require(least >= -1, "groups", least, "numbers from 0, or -1 for no group")
    return groups.long()


def _own(name: str, value: Any, need: str) -> Tensor:
    """Return a tensor that nothing else refers to, and whose version torch counts."""
    if hasattr(value, "placements"):
        raise TypeError(f"{name} is a DTensor: need a number, or a whole tensor on every rank")
    with torch.inference_mode(False):
        if isinstance(value, Tensor):
            return value.detach().clone()
        try:  # NumPy reads lists in double precision
            return torch.from_numpy(np.array(value, order="C"))
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            is_of_the_kind = isinstance(error, ValueError | OverflowError)
            kind = ValueError if is_of_the_kind else TypeError
            raise kind(f"{name}={value!r}: need {need}") from None


def _on_entries(
    name: str, weight: float | Tensor, shape: Sequence[int], device: torch.device | None
) -> float | Tensor:
    """Return a weight for the entries of a flattened tensor of this shape, checked and copied."""
    weight = _weight(name, weight)
    if not isinstance(weight, Tensor):
        return weight
    if weight.shape != tuple(shape):
        raise ValueError(
            f"{name} of shape {tuple(weight.shape)}: need a number, or x's shape, {tuple(shape)}"
        )
    return weight.flatten().to(device)


def _like(weight: float | Tensor, x: Tensor) -> float | Tensor:
    return weight.to(x) if isinstance(weight, Tensor) else weight


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu())
    return not isinstance(a, Tensor) and not isinstance(b, Tensor) and bool(a == b)


# `torch.load(weights_only=True)` then reads the state of an optimizer that has a penalty.
torch.serialization.add_safe_globals([L1, ElasticNet, GroupLasso])
