"""The step of a group whose D is no coordinate's.

Whole matrices give directions; the update per coordinate, with alpha = beta = 0, applies them.

    gradients -> sources -> owners of matrices -> directions -> back -> x <- x - lr u + noise

The source of a polar form is the momentum, that of the other shapes the gradient. Where matrices
are sharded, `asgld.optim.exchange` takes the sources to the owners and the directions back. Weight
decay, clipping, momentum after D, isotropic noise, rounding and the step count are those of
`asgld.optim.functional` and of the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from asgld import noise
from asgld.noise import Draw, Layout
from asgld.optim import _memory, exchange, polar, shapes
from asgld.optim.exchange import MatrixItem
from asgld.optim.functional import (
    Guard,
    Tensors,
    check_apart,
    coefficients,
    read_count,
    working_dtype,
)
from asgld.optim.rule import Rule
from asgld.optim.state import local


def applied(rule: Rule) -> Rule:
    """Return the rule per coordinate that applies directions."""
    if rule.is_polar:  # its momentum is in the direction, and its first gradient moves
        rule = rule._replace(momentum=0.0, decay=None)
    if not rule.has_noise:
        rule = rule._replace(sigma=0.0, noise=None)
    return rule._replace(alpha=0.0, beta=0.0, noise_bound=None, maximize=False, shape="coordinate")


class Matrices:
    """The matrices of a group, and the entries of state that their D is built of.

    Args:
        params: the parameters that take part, sharded or not.
        states: their states.
        tensors: their tensors, as the update per coordinate sees them.
        rule: the knobs.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        states: Sequence[dict[str, Any]],
        tensors: Tensors,
        rule: Rule,
    ) -> None:
        blocks = [rule.blocks] * len(params)
        self._exchange = exchange.plan_exchange(params, blocks, share=rule.share_work)
        self._travels = any(len(ranks) > 1 for ranks in self._exchange.ranks)
        self._tensors = tensors
        self._dtypes = [working_dtype(p) for p in tensors.params]
        self._sizes = [shapes.size_of(p.shape, rule.blocks) for p in params]
        self._sums = [
            [state[name] for name in shapes.sizes_of_sums(p.shape, rule)]
            for p, state in zip(params, states, strict=True)
        ]
        self._momenta: list[Tensor | None] = [None] * len(params)
        if rule.is_polar and rule.momentum != 0.0:
            self._momenta = [local(state["momentum"]) for state in states]
        if _memory.overlap([*tensors.written(), *self.written()]):
            for i, (sums, m) in enumerate(zip(self._sums, self._momenta, strict=True)):
                check_apart(tensors.select([i]), [*sums, *([] if m is None else [m])])

    def looks_of_directions(self, rule: Rule) -> list[Tensor]:
        """Return tensors without memory that look like the directions of a polar form."""
        pairs = zip(self._tensors.params, self._direction_dtypes(rule), strict=True)
        return [torch.empty(p.shape, dtype=dtype, device="meta") for p, dtype in pairs]

    def _direction_dtypes(self, rule: Rule) -> list[torch.dtype]:
        pairs = zip(self._tensors.params, self._dtypes, strict=True)
        return [polar.direction_dtype(p.device, dtype, rule) for p, dtype in pairs]

    def written(self) -> list[Tensor]:
        """Return the tensors that `directions` writes to."""
        momenta = [m for m in self._momenta if m is not None]
        return [*(total for sums in self._sums for total in sums), *momenta]

    def directions(
        self, grads: Sequence[Tensor], rule: Rule
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        """Return the direction of each parameter's local part, and its noise if D scales it. The
        sums and the momenta of the polar forms are those of the next step when this returns."""
        if rule.maximize:
            grads = [-g for g in grads]
        guard = Guard(rule.lr, 0, self.written())
        spreads = None
        if not rule.is_polar:
            found, spreads = self._predictable(grads, rule)
        elif self._travels:
            found = self._polar_of_owners(grads, rule)
        else:
            found = self._polar(grads, rule)
        guard.restore()
        return found, spreads

    # ---------------------------------------------------------------------------- D from the past

    def _predictable(
        self, grads: Sequence[Tensor], rule: Rule
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        plan, tensors, dtypes = self._exchange, self._tensors, self._dtypes
        sources = [g.to(dtype) for g, dtype in zip(grads, dtypes, strict=True)]
        scales_noise = rule.has_noise and rule.beta != 0.0
        directions, spreads, sums = [], [], []
        for number, whole in zip(plan.mine, plan.gather(sources), strict=True):
            item = plan.items[number]
            g = whole.reshape(self._sizes[item.param])
            k = read_count(tensors.steps[item.param], rule)
            own = self._sums_of(item)
            if g.numel() == 0:  # the mean over no terms is not a number
                directions.append(whole)
                spreads += [whole] if scales_noise else []
                sums.append(own)
                continue
            metric = shapes.Metric(own, coefficients(rule, k, g.dtype), rule.shape)
            directions.append(metric.apply(g, rule.alpha).view(item.shape))
            if scales_noise:
                z = self._normals(item, k, rule, g)
                spreads.append(metric.apply(z, rule.beta).view(item.shape))
            sums.append(
                [
                    total + new
                    if rule.decay is None
                    else total * rule.decay + new * (1.0 - rule.decay)
                    for total, new in zip(own, shapes.squares(g, rule.shape), strict=True)
                ]
            )
        self._store(sums)
        found = plan.scatter(directions, dtypes)
        return found, plan.scatter(spreads, dtypes) if scales_noise else None

    def _normals(self, item: MatrixItem, k: int | Tensor, rule: Rule, like: Tensor) -> Tensor:
        """Draw the noise of a whole matrix, whose rows follow each other in the parameter."""
        numel = math.prod(item.shape)
        begin = item.begin * (numel // max(item.shape[0], 1))
        draw = Draw(self._tensors.streams[item.param], k, Layout((numel,), (1,), begin))
        return noise.torch_normals(rule.seed, [draw], like.dtype, like.device)[0].view_as(like)

    def _sums_of(self, item: MatrixItem) -> list[Tensor]:
        """Return views of the entries of state that belong to a matrix."""
        number = item.begin // max(item.shape[0], 1)
        return [total[number] for total in self._sums[item.param]]

    def _store(self, new: Sequence[Sequence[Tensor]]) -> None:
        """Write new sums of this rank's matrices, here and on all ranks that hold a part."""
        plan, numbers = self._exchange, self._exchange.mine
        for side in range(max(map(len, self._sums), default=0)):
            kept = [self._sums_of(item)[side] for item in plan.items]
            values = [sums[side] for sums in new]
            if self._travels:
                sizes = [tuple(total.shape) for total in kept]
                has_double = any(total.dtype == torch.float64 for total in kept)
                dtype = torch.float64 if has_double else torch.float32
                copies = plan.share_copies(values, sizes, dtype, kept[0].device)
                numbers = [i for i, ranks in enumerate(plan.ranks) if plan.rank in ranks]
                values = [copies[i] for i in numbers]
            for i, value in zip(numbers, values, strict=True):
                kept[i].copy_(value)

    # ------------------------------------------------------------------------ D from the momentum

    def _polar(self, grads: Sequence[Tensor], rule: Rule) -> list[Tensor]:
        """Return the directions of parameters that this rank holds as a whole."""
        units: list[Tensor | None] = [None] * len(grads)
        kinds: dict[Any, list[int]] = {}
        for i, (p, dtype) in enumerate(zip(self._tensors.params, self._dtypes, strict=True)):
            if p.numel():
                kinds.setdefault((p.device, dtype), []).append(i)
        for (device, dtype), members in kinds.items():
            sizes: dict[Any, list[int]] = {}
            for i in members:
                sizes.setdefault(self._sizes[i], []).append(i)
            batches, squares = self._sources_in_batches(grads, sizes, dtype, device, rule)
            averages = None
            if rule.shape == "polar-row":
                averages = [
                    torch.cat([self._sums[i][0] for i in sized]) for sized in sizes.values()
                ]
            found = polar.directions(batches, averages, rule, squares)
            for number, sized in enumerate(sizes.values()):
                if averages is not None:
                    new = torch.split(averages[number], rule.blocks)
                    torch._foreach_copy_([self._sums[i][0] for i in sized], new)
                parts = (
                    torch.split(found[number], rule.blocks) if rule.blocks > 1 else found[number]
                )
                for i, unit in zip(sized, parts, strict=True):
                    units[i] = unit
        return [
            torch.empty_like(g) if unit is None else unit.reshape(g.shape)
            for unit, g in zip(units, grads, strict=True)
        ]

    def _sources_in_batches(
        self,
        grads: Sequence[Tensor],
        sizes: dict[tuple[int, int], list[int]],
        dtype: torch.dtype,
        device: torch.device,
        rule: Rule,
    ) -> tuple[list[Tensor], Tensor | None]:
        """Update the momenta; return the sources of equal sizes in a batch each, and their squared
        norms if these are known."""
        blocks, members = rule.blocks, [i for sized in sizes.values() for i in sized]
        kernels = polar.kernels_for(device, rule) if dtype == torch.float32 else None
        own = [grads[i] for i in members]
        momenta = [m for i in members if (m := self._momenta[i]) is not None]
        is_dense = all(t.is_contiguous() for t in (*own, *momenta))
        if kernels is None or not is_dense or len({g.dtype for g in own}) > 1:
            sources = dict(zip(members, _sources(own, momenta, dtype, rule), strict=True))
            return [
                torch.cat([sources[i].reshape(blocks, *size) for i in sized])
                for size, sized in sizes.items()
            ], None
        batches = [
            torch.empty(blocks * len(sized), *size, dtype=torch.bfloat16, device=device)
            for size, sized in sizes.items()
        ]
        if blocks > 1:
            own = [part for g in own for part in g.view(blocks, -1)]
            momenta = [part for m in momenta for part in m.view(blocks, -1)]
        return batches, kernels.sources(own, momenta or None, rule.momentum, batches)

    def _polar_of_owners(self, grads: Sequence[Tensor], rule: Rule) -> list[Tensor]:
        """Return the directions of the local parts of parameters; owners work on the wholes."""
        plan = self._exchange
        momenta = [m for m in self._momenta if m is not None]
        sources: list[Tensor] = []
        for i, (g, dtype) in enumerate(zip(grads, self._dtypes, strict=True)):
            sources += _sources([g], momenta[i : i + 1], dtype, rule)
        wholes = plan.gather(sources)
        items = [plan.items[number] for number in plan.mine]
        kinds: dict[Any, list[int]] = {}
        for i, (item, whole) in enumerate(zip(items, wholes, strict=True)):
            kind = self._sizes[item.param], whole.dtype, whole.device
            kinds.setdefault(kind, []).append(i)
        results, sums = list(wholes), [self._sums_of(item) for item in items]
        for (size, _, _), members in kinds.items():
            if not math.prod(size):
                continue
            batch = torch.stack([wholes[i].reshape(size) for i in members])
            averages = None
            if rule.shape == "polar-row":
                averages = [torch.stack([sums[i][0] for i in members])]
            (found,) = polar.directions([batch], averages, rule)
            for place, i in enumerate(members):
                results[i] = found[place].reshape(items[i].shape)
                if averages is not None:
                    sums[i] = [averages[0][place]]
        self._store(sums)
        return plan.scatter(results, self._direction_dtypes(rule))


def _sources(
    grads: list[Tensor], momenta: list[Tensor], dtype: torch.dtype, rule: Rule
) -> list[Tensor]:
    """Update the momenta and return them after a look ahead, in the dtype of products."""
    sources = [g.to(dtype) for g in grads]
    if momenta and sources:
        torch._foreach_lerp_(momenta, sources, 1.0 - rule.momentum)
        sources = list(torch._foreach_lerp(sources, momenta, rule.momentum))
    return [s.to(polar.product_dtype(s.device, dtype, rule)) for s in sources]
