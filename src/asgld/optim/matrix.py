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
from asgld.optim import exchange, polar, shapes
from asgld.optim.exchange import MatrixItem
from asgld.optim.functional import Tensors, coefficients, read_count, working_dtype
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
        self._tensors = tensors
        self._sums = [
            [state[name] for name in shapes.sizes_of_sums(p.shape, rule)]
            for p, state in zip(params, states, strict=True)
        ]
        self._momenta: list[Tensor | None] = [None] * len(params)
        if rule.is_polar and rule.momentum != 0.0:
            self._momenta = [local(state["momentum"]) for state in states]
        self._dtypes = [working_dtype(p) for p in tensors.params]
        self._sizes = [shapes.size_of(p.shape, rule.blocks) for p in params]

    def looks_of_directions(self, rule: Rule) -> list[Tensor]:
        """Return tensors without memory that look like the directions of a polar form."""
        return [
            torch.empty(
                p.shape,
                dtype=polar.product_dtype(p.device, working_dtype(p), rule.polar_by),
                device="meta",
            )
            for p in self._tensors.params
        ]

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
            grads = torch._foreach_neg(list(grads)) if grads else []
        return self._polar(grads, rule) if rule.is_polar else self._predictable(grads, rule)

    # ---------------------------------------------------------------------------- D from the past

    def _predictable(
        self, grads: Sequence[Tensor], rule: Rule
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        plan, tensors = self._exchange, self._tensors
        dtypes = self._dtypes
        sources = [g.to(dtype) for g, dtype in zip(grads, dtypes, strict=True)]
        scales_noise = rule.has_noise and rule.beta != 0.0
        directions, spreads, sums = [], [], []
        for number, whole in zip(plan.mine, plan.gather(sources), strict=True):
            item = plan.items[number]
            g = whole.reshape(self._sizes[item.param])
            k = read_count(tensors.steps[item.param], rule)
            c = coefficients(rule, k, g.dtype)
            own = self._sums_of(item)
            metric = shapes.Metric(own, c, rule.shape)
            directions.append(metric.apply(g, rule.alpha).view(item.shape))
            if scales_noise:
                z = self._normals(item, k, rule, g)
                spreads.append(metric.apply(z, rule.beta).view(item.shape))
            sums.append(
                [
                    total + new if rule.decay is None else total.lerp(new, 1.0 - rule.decay)
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
        travels = any(len(ranks) > 1 for ranks in plan.ranks)
        for side in range(max(map(len, self._sums), default=0)):
            kept = [self._sums_of(item)[side] for item in plan.items]
            values = [sums[side] for sums in new]
            if travels:
                shapes_of_all = [tuple(total.shape) for total in kept]
                dtype = torch.float64 if torch.float64 in self._dtypes else torch.float32
                values = plan.share_copies(values, shapes_of_all, dtype, kept[0].device)
                numbers = [i for i, ranks in enumerate(plan.ranks) if plan.rank in ranks]
                values = [values[i] for i in numbers]
            for i, value in zip(numbers, values, strict=True):
                kept[i].copy_(value)

    # ------------------------------------------------------------------------ D from the momentum

    def _polar(self, grads: Sequence[Tensor], rule: Rule) -> tuple[list[Tensor], None]:
        plan = self._exchange
        sources = _sources(grads, self._momenta, self._dtypes, rule)
        wholes = plan.gather(sources)
        batches: dict[Any, list[int]] = {}
        for position, number in enumerate(plan.mine):
            item, whole = plan.items[number], wholes[position]
            kind = self._sizes[item.param], whole.dtype, whole.device
            batches.setdefault(kind, []).append(position)
        directions: list[Any] = [None] * len(wholes)
        sums: list[Any] = [[] for _ in wholes]
        for (size, _, _), members in batches.items():
            items = [plan.items[plan.mine[i]] for i in members]
            averages = None
            if rule.shape == "polar-row":
                averages = torch.stack([self._sums_of(item)[0] for item in items])
            batch = torch.stack([wholes[i].reshape(size) for i in members])
            if batch.numel():
                factors = polar.polar_factors(batch, rule.polar_by, rule.delta)
                batch = polar.scale_rows(factors, averages, rule.decay)
            for place, (i, item) in enumerate(zip(members, items, strict=True)):
                directions[i] = batch[place].reshape(item.shape)
                if averages is not None:
                    sums[i] = [averages[place]]
        self._store(sums)
        return plan.scatter(directions, [s.dtype for s in sources]), None


def _sources(
    grads: Sequence[Tensor],
    momenta: Sequence[Tensor | None],
    dtypes: Sequence[torch.dtype],
    rule: Rule,
) -> list[Tensor]:
    """Update the momenta and return them after a look ahead, in the dtype of products."""
    sources = [g.to(dtype) for g, dtype in zip(grads, dtypes, strict=True)]
    if rule.momentum != 0.0 and sources:
        averages = [m for m in momenta if m is not None]
        torch._foreach_lerp_(averages, sources, 1.0 - rule.momentum)
        sources = list(torch._foreach_lerp(sources, averages, rule.momentum))
    return [
        s.to(polar.product_dtype(s.device, dtype, rule.polar_by))
        for s, dtype in zip(sources, dtypes, strict=True)
    ]
