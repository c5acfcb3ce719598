"""Which weights of a network are copies of each other.

Copies are slices of a parameter, or whole parameters, that are equal bit for bit and whose
gradients are equal up to rounding. Weights that merely start alike, as zeros do, have different
gradients. `find_symmetry` looks for copies; `Average` averages flat vectors over them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# Equal gradients differ by less than this, relative to their size; and by a few units in the last
# place of their type.
_TOLERANCE, _UNITS = 1e-3, 4
# Weights of zero have no gradient if it is so small, relative to all gradients: in units in the
# last place, and in any case.
_ZERO_UNITS, _LARGEST_ZERO = 100, 1e-3
# Elements that are hashed at once; the seed of the multipliers.
_CHUNK, _HASH_SEED = 2**22, 0xC0B1E5


class Weights:
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


class Partition(NamedTuple):
    """Slices along a dimension. `labels` has for each the first that is equal to it. Copies whose
    weights and gradients are zero, as in a router, are not counted."""

    labels: Tensor
    copies: int
    distinct: int


class Symmetry(NamedTuple):
    """By name and dimension which slices are copies; which parameters are copies of each other."""

    partitions: dict[str, dict[int, Partition]]
    twins: list[list[str]]
    counts: dict[str, tuple[int, int]]


def find_symmetry(weights: Weights) -> Symmetry:
    found: dict[str, dict[int, Partition]] = {}
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
    return Symmetry({name: parts for name, parts in found.items() if parts}, twins, counts)


def _slices(weights: Weights, name: str) -> dict[int, Partition]:
    """Copies along the first two dimensions of a parameter, or the three of a stack of matrices."""
    value, gradient = weights.value(name), weights.gradient(name)
    num_dims = weights.params[name].dim()
    found: dict[int, Partition] = {}
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
    weights: Weights, name: str, matrices: dict[str, dict[int, Partition]]
) -> dict[int, Partition]:
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

    def partition(self, dim: int) -> dict[int, Partition]:
        """The copies along this dimension, if there are any; all other rows are alone."""
        is_kept = self.counted | self.silent
        if not bool(is_kept.any()):
            return {}
        alone = self.members[~is_kept[self.places]]
        labels = self.labels.index_copy(0, alone, alone)
        count = int(self.sizes[self.counted].sum())
        return {dim: Partition(labels, count, int(self.counted.sum()))}


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
    # Flat, since a column of one element may count as contiguous with any stride.
    flat = rows.contiguous().flatten().view(kinds[rows.element_size()])
    return flat.view(len(rows), -1)


def _codes(bits: Tensor) -> Tensor:
    """A hash of each row, on the CPU: a sum of odd multiples that wraps around."""
    generator = torch.Generator().manual_seed(_HASH_SEED)
    width = bits.shape[1]
    odd = 1 + 2 * torch.randint(-(2**62), 2**62, (width,), generator=generator)
    odd = odd.to(bits.device)
    parts = torch.split(bits, max(1, _CHUNK // max(width, 1)))
    return torch.cat([(part.long() * odd).sum(1).cpu() for part in parts])


def _twins(weights: Weights) -> tuple[list[list[str]], dict[str, int]]:
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


def _equal_tensors(weights: Weights) -> list[list[str]]:
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


def _are_copies(weights: Weights, first: str, other: str) -> bool:
    values = torch.stack([weights.value(name).reshape(-1) for name in (first, other)])
    bits = _bits(values)
    if not torch.equal(bits[0], bits[1]):
        return False
    gradients = torch.stack([weights.gradient(name).reshape(-1) for name in (first, other)])
    together = torch.zeros(2, dtype=torch.int64)
    return bool(_Judged(values, gradients, together, weights.zero(first)).agreed)


def _kind(weights: Weights, name: str) -> tuple[bool, bool]:
    """Whether copies of this parameter are silent, and whether they count, as in `_Judged`."""
    norm = float(torch.linalg.vector_norm(weights.gradient(name), dtype=torch.float64))
    is_small = norm <= weights.zero(name) * math.sqrt(weights.params[name].numel())
    is_silent = is_small and not bool(weights.value(name).any())
    return is_silent, norm > 0.0 and not is_silent


class Average:
    """A: flat vectors averaged over all copies. Parameters without copies stay as they are."""

    def __init__(self, symmetry: Symmetry, params: dict[str, nn.Parameter]) -> None:
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
