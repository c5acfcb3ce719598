"""Objectives F = f + g: f smooth, g a penalty of `asgld.prox`, convex and not smooth.

A method that knows penalties needs the gradient of f and the proximal step of g. A judgment needs
derivatives of F where F is smooth: along the active manifold, on which zeros stay zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_unflatten

from asgld.oracle.forms import Form
from asgld.oracle.functions import AroundFunction, Function
from asgld.prox import L1, BoundPenalty, Branch, Penalty


@dataclass(frozen=True, eq=False)
class Composite(AroundFunction):
    """F = f + g for proximal methods: values are those of F, derivatives those of f alone."""

    function: Function
    penalty: BoundPenalty

    @property
    def charges(self) -> dict[str, Mapping[str, int]]:
        return dict(getattr(self.function, "charges", {}))

    def value(self, x: Tensor) -> Tensor:
        return self.function.value(x) + self.penalty.value(x)

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not hasattr(self.function, "value_and_grad"):
            return self.value(x), self.grad(x)
        value, grad = self.function.value_and_grad(x)
        return value + self.penalty.value(x), grad

    def grad(self, x: Tensor) -> Tensor:
        return self.function.grad(x)

    def hvp(self, x: Tensor, v: Tensor) -> Tensor:
        return self.function.hvp(x, v)

    def hessian(self, x: Tensor) -> Tensor:
        return self.function.hessian(x)

    def sample_value(self, x: Tensor, indices: Tensor) -> Tensor:
        inner: Any = self.function
        values: Tensor = inner.sample_value(x, indices) + self.penalty.value(x)
        return values

    def sample_grad(self, x: Tensor, indices: Tensor) -> Tensor:
        inner: Any = self.function
        gradients: Tensor = inner.sample_grad(x, indices)
        return gradients

    def sample_hvp(self, x: Tensor, v: Tensor, indices: Tensor) -> Tensor:
        inner: Any = self.function
        products: Tensor = inner.sample_hvp(x, v, indices)
        return products


@dataclass(frozen=True, eq=False)
class ActiveManifold:
    """F as a function of the entries that are free at x, the others held at their kink.

    `source` has values of F and derivatives of f, one point (d,) at a time: a Composite, or an
    oracle of one. Here g stands for its smooth branch around x.

    `rays` are unit vectors (k, d) along which held entries may leave their kink: the distances are
    further coordinates, behind the free entries. Only distances of at least 0 are on the branch,
    whose lines along the rays are as steep as `away` (d,), or as g if that is less.
    """

    source: Any
    penalty: BoundPenalty
    x: Tensor
    is_free: Tensor
    rays: Tensor
    away: Tensor

    @property
    def dim(self) -> int:
        return self.num_free + len(self.rays)

    @property
    def num_free(self) -> int:
        return int(self.is_free.sum())

    @property
    def unit_roundoff(self) -> float:
        return float(self.source.unit_roundoff)

    @cached_property
    def _branch(self) -> Branch:
        return self.penalty.branch(self.x, self.away)

    @property
    def start(self) -> Tensor:
        """x in the coordinates of the manifold."""
        return self.reduced(self.x)

    def full(self, y: Tensor) -> Tensor:
        """The point (d,) with these coordinates."""
        free = self.x.masked_scatter(self.is_free, y[: self.num_free])
        return free + y[self.num_free :] @ self.rays

    def lifted(self, v: Tensor) -> Tensor:
        """A direction of the manifold as one of all entries."""
        free = torch.zeros_like(self.x).masked_scatter(self.is_free, v[: self.num_free])
        return free + v[self.num_free :] @ self.rays

    def reduced(self, v: Tensor) -> Tensor:
        """The part of a vector (..., d) along the manifold."""
        return torch.cat([v[..., self.is_free], v @ self.rays.T], -1)

    def lengths(self, scale: Tensor) -> Tensor:
        """The scales of the coordinates, from those of the entries."""
        return torch.cat([scale[self.is_free], (self.rays * scale).norm(dim=-1)])

    def is_on_branch(self, y: Tensor) -> bool:
        """Whether the branch is g at this point: no entry has crossed its kink."""
        return float(self._branch.gap(self.full(y))) == 0.0

    def value(self, y: Tensor) -> Tensor:
        x = self.full(y)
        values: Tensor = self.source.value(x) + self._branch.gap(x)
        return values

    def grad(self, y: Tensor) -> Tensor:
        x = self.full(y)
        return self.reduced(self.source.grad(x) + self._branch.grad(x))

    def value_and_grad(self, y: Tensor) -> tuple[Tensor, Tensor]:
        x = self.full(y)
        value, grad = self.source.value_and_grad(x)
        return value + self._branch.gap(x), self.reduced(grad + self._branch.grad(x))

    def hvp(self, y: Tensor, v: Tensor) -> Tensor:
        x, v = self.full(y), self.lifted(v)
        return self.reduced(self.source.hvp(x, v) + self._branch.hvp(x, v))

    def hessian(self, y: Tensor) -> Tensor:
        """Of all entries at once where most are free, else column by column."""
        x, eye = self.full(y), torch.eye(self.dim, dtype=y.dtype, device=y.device)
        if not hasattr(self.source, "hessian") or 2 * self.dim < len(x):
            return torch.stack([self.hvp(y, column) for column in eye])
        columns = torch.stack([self.lifted(column) for column in eye])
        products = columns @ self.source.hessian(x)
        return self.reduced(products + self._branch.hvp(x.expand_as(columns), columns))


def gradient_mapping(penalty: BoundPenalty, x: Tensor, grad: Tensor) -> Tensor:
    """x - prox(x - grad): the gradient of f where g is 0, and 0 where F is stationary."""
    return x - penalty.shrink(x - grad, 1.0)


def bind(prox: Any, form: Form) -> BoundPenalty:
    """A penalty, or penalties in the form of x with None for none, on flat points of that form."""
    if isinstance(prox, Penalty):
        return prox.on(form.shapes[0] if form.is_single else (form.dim,))
    need = "need a penalty of asgld.prox, or penalties in the form of x0, with None for none"
    if form.is_single:
        raise TypeError(f"prox={prox!r}: need a penalty of asgld.prox")
    if faults := _faults(prox, form):
        raise TypeError(f"prox={prox!r}{faults}: {need}")
    try:
        leaves = form.spec.flatten_up_to(prox)  # in the order of x0's keys
    except ValueError as error:
        raise TypeError(f"prox={prox!r}: {need}; {error}") from None
    if not all(isinstance(leaf, Penalty | None) for leaf in leaves):
        raise TypeError(f"prox={prox!r}: {need}")
    parts = zip(leaves, form.shapes, strict=True)
    return JoinedPenalty(
        tuple((L1(0.0) if leaf is None else leaf).on(shape) for leaf, shape in parts),
        tuple(math.prod(shape) for shape in form.shapes),
    )


def _faults(prox: Any, form: Form) -> str:
    """Say which parts of x0 have no entry in a structure of penalties, and which x0 does not have.

    Empty where `prox` is no structure.
    """
    stated = _paths(prox)
    if () in stated:
        return ""
    parts = _paths(tree_unflatten(range(len(form.shapes)), form.spec))
    missing = [keystr(path) for path in parts if path not in stated]
    unknown = [keystr(path) for path in stated if path not in parts]
    said = [(" has no ", missing), (" has the unknown ", unknown)]
    return " and".join(word + ", ".join(found) for word, found in said if found)


def _paths(structure: Any) -> list[Any]:
    paths, _ = tree_flatten_with_path(structure, is_leaf=lambda part: part is None)
    return [path for path, _ in paths]


class JoinedPenalty(BoundPenalty):
    """Penalties of the parts of a point, one after the other."""

    def __init__(self, parts: tuple[BoundPenalty, ...], sizes: tuple[int, ...]) -> None:
        self._parts, self._sizes = parts, sizes
        self.is_separable = all(part.is_separable for part in parts)

    @property
    def dim(self) -> int:
        return sum(self._sizes)

    def value(self, x: Tensor) -> Tensor:
        return torch.stack([part.value(y) for part, y in self._split(x)]).sum(0)

    def shrink(self, x: Tensor, step: float | Tensor) -> Tensor:
        steps = torch.as_tensor(step, dtype=x.dtype, device=x.device).expand(x.shape)
        return self._joined(part.shrink(y, t) for part, y, t in self._split(x, steps))

    def is_free(self, x: Tensor) -> Tensor:
        return self._joined(part.is_free(y) for part, y in self._split(x))

    def grad(self, x: Tensor) -> Tensor:
        return self._joined(part.grad(y) for part, y in self._split(x))

    def hvp(self, x: Tensor, v: Tensor) -> Tensor:
        return self._joined(part.hvp(y, w) for part, y, w in self._split(x, v))

    def slack(self, x: Tensor, grad_f: Tensor) -> Tensor:
        return self._joined(part.slack(y, g) for part, y, g in self._split(x, grad_f))

    def units(self) -> Tensor:
        found, used = [], 0
        for numbers in (part.units() for part in self._parts):
            found.append(numbers + used)
            used += int(numbers.max()) + 1 if numbers.numel() else 0
        return torch.cat(found)

    def branch(self, x: Tensor, away: Tensor) -> Branch:
        branches = [part.branch(y, a) for part, y, a in self._split(x, away)]
        smooth, kinked = (
            JoinedPenalty(tuple(getattr(b, name) for b in branches), self._sizes)
            for name in ("smooth", "kinked")
        )
        return Branch(smooth, kinked, torch.cat([b.slope for b in branches]))

    def _split(self, *tensors: Tensor) -> Any:
        pieces = (torch.split(t, list(self._sizes), -1) for t in tensors)
        return zip(self._parts, *pieces, strict=True)

    @staticmethod
    def _joined(parts: Any) -> Tensor:
        return torch.cat(list(parts), -1)
