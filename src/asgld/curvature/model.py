"""The Hessian of a network's loss over a data set, as a function of one flat parameter vector.

`ModelHessian` is what `classify`, `lambda_min` and `largest_curvature` need of a torch model:
value, gradient and Hessian-vector products, batch by batch, with nothing of size dim^2 anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map

from asgld.arguments import require

Leaves = dict[str, Tensor]
Part = tuple[Any, int, float]  # a batch, its samples, the weight of its loss


class ModelHessian:
    r"""Loss of a model over a data loader, its gradient, and its Hessian without a matrix.

    .. math:: f(x) = \frac1n \sum_{i=1}^n loss_i(x) + \frac{w}{2} \|x\|^2

    .. math:: H v = \nabla (\nabla f \cdot v)

    x is the flat vector of the chosen parameters; `h.x` is where the model is now. The mean is over
    samples, so an uneven last batch has its proper weight. The model is left as it was: parameters,
    `.grad`, buffers and training flags are untouched.

    Memory beyond the model's own: three vectors of length dim for a product, the graph of one batch
    for its double backward pass, and up to `max_bytes` of Lanczos vectors in `lambda_min`.

    Args:
        model: a module. With batches (inputs, targets) it is called as model(inputs); with any
            other batch as model(batch).
        loss_fn: loss_fn(output, targets), or loss_fn(output, batch), a scalar for the batch.
        loader: batches, iterated over again for every product: a DataLoader, a list.
        params: names of parameters or parameters; by default all that require gradients. The others
            stay fixed.
        weight_decay: w; decoupled or not, its stationary points are those of f.
        reduction: whether loss_fn is the "mean" over the samples of its batch, or their "sum".
        train: evaluate in training mode instead of evaluation mode. Batch normalization then uses
            the statistics of each batch; active dropout is refused, since it has no Hessian.

    >>> model = nn.Linear(3, 1).double()
    >>> data = [(torch.ones(4, 3).double(), torch.zeros(4, 1).double())]
    >>> h = ModelHessian(model, nn.functional.mse_loss, data)
    >>> h.dim, (h @ torch.ones(4).double()).tolist()  # 2 X'X / n, with a column for the bias
    (4, [8.0, 8.0, 8.0, 8.0])
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., Tensor],
        loader: Iterable[Any],
        params: Iterable[str | nn.Parameter] | None = None,
        *,
        weight_decay: float = 0.0,
        reduction: Literal["mean", "sum"] = "mean",
        train: bool = False,
    ) -> None:
        require(reduction in ("mean", "sum"), "reduction", reduction, "'mean' or 'sum', as loss_fn")
        require(weight_decay >= 0, "weight_decay", weight_decay, "a number >= 0")
        if iter(loader) is loader:
            raise TypeError(
                f"loader is {type(loader).__name__}, which can be read once only; it is read for "
                "every Hessian-vector product: give a DataLoader or a list of batches"
            )
        self.model = model
        self.loss_fn = loss_fn
        self.loader = loader
        self.weight_decay = weight_decay
        self.reduction = reduction
        self.train = train
        self._params = _select(model, params)
        first = next(iter(self._params.values()))
        self.device = first.device
        self.dtype = first.dtype
        for parameter in self._params.values():
            self.dtype = torch.promote_types(self.dtype, parameter.dtype)
        self.dim = sum(parameter.numel() for parameter in self._params.values())
        self.shape = (self.dim, self.dim)
        self._check_first_batch()

    def __repr__(self) -> str:
        return (
            f"ModelHessian({type(self.model).__name__}, {self.dim} parameters, {self.dtype}, "
            f"{self.device})"
        )

    @property
    def x(self) -> Tensor:
        """The model's present parameters, flat, as a copy."""
        return self._flatten(self._params.values())

    def __matmul__(self, v: Tensor) -> Tensor:
        """Hessian at the present parameters times v."""
        return self.hvp(self.x, v)

    def value(self, x: Tensor) -> Tensor:
        """f(x)."""
        leaves = self._split(x)
        total, count = torch.zeros((), dtype=torch.float64, device=self.device), 0
        with torch.no_grad(), self._mode():
            for batch, size, weight in self.batches():
                total += weight * self._loss(leaves, batch).double()
                count += size
        norm = torch.linalg.vector_norm(x, dtype=torch.float64)
        value: Tensor = total / count + self.weight_decay / 2 * norm**2
        return value

    def grad(self, x: Tensor) -> Tensor:
        """Gradient of f at x."""
        return self.mean_grad(x, self.batches())

    def mean_grad(self, x: Tensor, batches: Iterable[Part]) -> Tensor:
        """Gradient of the loss over some of the `batches()`, weight decay included."""
        leaves = self._split(x)
        return self._mean(lambda batch: self._gradients(leaves, batch), x, batches)

    def hvp(self, x: Tensor, v: Tensor) -> Tensor:
        """Hessian of f at x times v."""
        if v.shape != (self.dim,):
            raise ValueError(f"v has shape {tuple(v.shape)}: need ({self.dim},)")
        leaves, directions = self._split(x), self._split(v)

        def product(batch: Any) -> Iterable[Tensor]:
            gradients = self._gradients(leaves, batch, create_graph=True)
            pairs = zip(gradients, directions.values(), strict=True)
            curved = [(g, direction) for g, direction in pairs if g.requires_grad]
            if not curved:  # the loss of this batch is linear
                return [torch.zeros_like(leaf) for leaf in leaves.values()]
            outputs, weights = zip(*curved, strict=True)
            inputs = list(leaves.values())
            return torch.autograd.grad(outputs, inputs, weights, materialize_grads=True)

        # Fused attention kernels cannot be differentiated twice; the plain one can.
        with sdpa_kernel(SDPBackend.MATH):
            return self._mean(product, v, self.batches())

    def _mean(
        self,
        part: Callable[[Any], Iterable[Tensor]],
        decayed: Tensor,
        batches: Iterable[Part],
    ) -> Tensor:
        """Mean over samples of a vector computed batch by batch, and its weight decay."""
        total, count = torch.zeros(self.dim, dtype=self.dtype, device=self.device), 0
        with torch.enable_grad(), self._mode():
            for batch, size, weight in batches:
                total.add_(self._flatten(part(batch)), alpha=weight)
                count += size
        return total.div_(count).add_(decayed.to(total), alpha=self.weight_decay)

    def batches(self) -> Iterator[Part]:
        """Batches on the model's device, the number of samples of each, and the loss's weight."""
        is_empty = True
        for batch in self.loader:
            is_empty = False
            moved = tree_map(lambda t: t.to(self.device) if isinstance(t, Tensor) else t, batch)
            size = _batch_size(moved)
            yield moved, size, float(size) if self.reduction == "mean" else 1.0
        if is_empty:
            raise ValueError("loader has no batches: need at least one, each time it is read")

    def sample_grads(self, x: Tensor, batch: Any, max_bytes: int = 2**28) -> Iterator[Tensor]:
        """Gradients of the single samples of a batch, as chunks of shape (samples, dim).

        All samples of a chunk at once by vmap; one by one where the model does not allow that.
        """
        leaves = {name: leaf.detach() for name, leaf in self._split(x).items()}
        decay = self.weight_decay * x.to(self.device, self.dtype)

        def of_one(values: Leaves, sample: Any) -> Tensor:
            alone = tree_map(lambda t: t.unsqueeze(0) if isinstance(t, Tensor) else t, sample)
            return self._loss(values, alone)

        size = _batch_size(batch)
        itemsize = torch.finfo(self.dtype).bits // 8
        step = max(1, min(size, max_bytes // (self.dim * itemsize)))
        for begin in range(0, size, step):
            chunk = _slice(batch, begin, begin + step)
            with torch.enable_grad(), self._mode():
                try:
                    tree = torch.func.vmap(torch.func.grad(of_one), (None, 0))(leaves, chunk)
                    parts = [t.detach().flatten(1).to(self.dtype) for t in tree.values()]
                    gradients = torch.cat(parts, dim=1)
                except (RuntimeError, ValueError):
                    split = self._split(x)
                    single = (_slice(chunk, i, i + 1) for i in range(_batch_size(chunk)))
                    rows = [self._flatten(self._gradients(split, sample)) for sample in single]
                    gradients = torch.stack(rows)
            yield gradients + decay

    def _gradients(
        self, leaves: Leaves, batch: Any, *, create_graph: bool = False
    ) -> tuple[Tensor, ...]:
        loss, inputs = self._loss(leaves, batch), list(leaves.values())
        return torch.autograd.grad(loss, inputs, create_graph=create_graph, materialize_grads=True)

    def _loss(self, leaves: Leaves, batch: Any) -> Tensor:
        # Copies of the buffers take what batch normalization would write into the model's own.
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        is_pair = isinstance(batch, tuple | list) and len(batch) == 2
        inputs, targets = batch if is_pair else (batch, batch)
        output = torch.func.functional_call(self.model, {**buffers, **leaves}, (inputs,))
        loss = self.loss_fn(output, targets)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(
                f"loss_fn returned {found}: need a scalar tensor, the mean or sum over the batch "
                "(see reduction)"
            )
        return loss.reshape(())

    def _split(self, x: Tensor) -> Leaves:
        """Pieces of a flat vector in the shapes of the parameters, as leaves of a new graph."""
        if x.shape != (self.dim,):
            raise ValueError(
                f"x has shape {tuple(x.shape)}: need ({self.dim},), one entry per parameter; the "
                "model's own is `.x`"
            )
        pieces = torch.split(x.detach(), [p.numel() for p in self._params.values()])
        return {
            name: piece.view(parameter.shape).to(parameter).requires_grad_(True)
            for (name, parameter), piece in zip(self._params.items(), pieces, strict=True)
        }

    def _flatten(self, tensors: Iterable[Tensor]) -> Tensor:
        return torch.cat([t.detach().reshape(-1).to(self.device, self.dtype) for t in tensors])

    @contextmanager
    def _mode(self) -> Iterator[None]:
        flags = [(module, module.training) for module in self.model.modules()]
        self.model.train(self.train)
        try:
            yield
        finally:
            for module, flag in flags:
                module.training = flag

    def _check_first_batch(self) -> None:
        """A loss that differs between two evaluations has no Hessian."""
        batch, _, _ = next(self.batches())
        leaves = self._split(self.x)
        with torch.no_grad(), self._mode():
            first, second = (float(self._loss(leaves, batch)) for _ in range(2))
        if not abs(first - second) <= 1e-5 * abs(first) + 1e-12 and first == first:
            raise ValueError(
                f"the loss of the first batch is {first:.6g} and then {second:.6g}: the model is "
                "random (dropout?), and a random function has no Hessian; use train=False"
            )


def _select(
    model: nn.Module, params: Iterable[str | nn.Parameter] | None
) -> dict[str, nn.Parameter]:
    named = dict(model.named_parameters())
    if params is None:
        chosen = {name: p for name, p in named.items() if p.requires_grad}
    else:
        names = {id(parameter): name for name, parameter in named.items()}
        chosen = {}
        for entry in params:
            name = entry if isinstance(entry, str) else names.get(id(entry))
            if name not in named:
                known = ", ".join(list(named)[:8])
                shown = repr(entry) if isinstance(entry, str) else "a parameter not of this model"
                raise ValueError(f"params has {shown}: the model has {known}, ...")
            chosen[name] = named[name]
    if not chosen:
        raise ValueError("no parameters: need at least one that requires gradients, or params=")
    for name, parameter in chosen.items():
        if not parameter.is_floating_point():
            raise ValueError(f"parameter {name!r} has dtype {parameter.dtype}: need real floats")
    return chosen


def _slice(batch: Any, begin: int, end: int) -> Any:
    return tree_map(lambda t: t[begin:end] if isinstance(t, Tensor) else t, batch)


def _batch_size(batch: Any) -> int:
    for leaf in tree_leaves(batch):
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            return leaf.shape[0]
    raise ValueError("a batch of the loader has no tensor with a sample axis: need one per batch")
