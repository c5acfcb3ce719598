"""Batches that grow, as a pure function of (seed, step), and gradients that are exact means.

The theory of stochastic gradients asks for batches of B_k = k or B_k = k^theta samples. The samples
of a batch depend on the seed and the step alone: not on the number of workers, on earlier batches,
or on an interruption of the run. The random words are those of `asgld.noise`.

A large batch rarely fits the memory of one device. :func:`accumulate` splits it, and
:func:`full_gradient` runs over a whole data loader. Both weigh each part by its number of samples,
so the gradient is the mean over all samples.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Sampler

from asgld import noise
from asgld.noise import Draw, Layout, Purpose

# Relative tolerance for whole sizes, since machines round powers differently: without it, some
# machines make a batch of 10001 of 100000 ** 0.8 = 10000.
_ROUNDING = 2.0**-48
# The settings that must be equal for a resumed run to see the same batches.
_SETTINGS = ("num_samples", "initial", "slope", "power", "replacement", "seed")


class GrowingBatchSampler(Sampler[list[int]]):
    r"""Draw batches of :math:`B_k = \lceil \mathrm{initial} + \mathrm{slope}\, k^p \rceil` indices.

    Batch k is a pure function of (seed, k): a uniformly random subset of the data or, with
    replacement, independent draws. Every rank takes its own part of the batch. The parts are
    disjoint, make up the batch, and differ in size by one at most.

    Use it as the `batch_sampler` of a `torch.utils.data.DataLoader`. Iteration begins at the
    attribute `step` and does not change it, since a loader reads ahead of the training. Add 1 to
    `step` after each step of the optimizer, and save :meth:`state_dict` to resume exactly.

    Args:
        num_samples: size of the data set, below 2**32. No batch is larger.
        initial: size of the first batch; a fraction is rounded up with the rest. At least 1, and
            at least `world_size`, so that no rank is without samples.
        slope: growth, at least 0.
        power: exponent p of the step, in [0, 8]; 1 is the paper's B_k = k.
        replacement: draw with replacement.
        seed: key of the draws; it may equal the optimizer's, whose counters differ.
        rank, world_size: which part of each batch.
        num_steps: where iteration ends; None is never.

    Example:
        >>> sampler = GrowingBatchSampler(1000, initial=2, slope=1.0, seed=0, num_steps=3)
        >>> [len(batch) for batch in sampler]
        [2, 3, 4]
        >>> halves = [GrowingBatchSampler(1000, 2, 1.0, seed=0, rank=r, world_size=2)
        ...           for r in range(2)]
        >>> halves[0].indices(7) + halves[1].indices(7) == sampler.indices(7)
        True
    """

    def __init__(
        self,
        num_samples: int,
        initial: float = 1.0,
        slope: float = 1.0,
        power: float = 1.0,
        *,
        replacement: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        num_steps: int | None = None,
    ) -> None:
        given = locals()
        allowed = {
            "num_samples": (1 <= num_samples < 2**32, "1 <= num_samples < 2**32"),
            "initial": (1.0 <= initial < math.inf, "a finite number >= 1, the first batch"),
            "slope": (0.0 <= slope < math.inf, "a finite number >= 0: no batch shrinks"),
            "power": (0.0 <= power <= 8.0, "0 <= power <= 8"),
            "rank": (0 <= rank < world_size, f"0 <= rank < world_size={world_size}"),
            "num_steps": (
                num_steps is None or 0 <= num_steps <= noise.MAX_STEP + 1,
                "0 <= num_steps <= 2**32, or None",
            ),
        }
        for name, (is_allowed, need) in allowed.items():
            if not is_allowed:
                raise ValueError(f"{name}={given[name]}: need {need}")
        self.num_samples, self.num_steps, self.step = num_samples, num_steps, 0
        self.initial, self.slope, self.power = float(initial), float(slope), float(power)
        self.replacement, self.seed = replacement, noise.check_seed(seed)
        self.rank, self.world_size = rank, world_size
        if self.batch_size(0) < world_size:
            raise ValueError(
                f"initial={initial}, num_samples={num_samples}: the first batch has "
                f"{self.batch_size(0)} samples for world_size={world_size} ranks, and a rank "
                "without samples has no gradient; begin with at least one per rank"
            )

    def batch_size(self, step: int) -> int:
        """Return B_k, over all ranks together."""
        if not 0 <= step <= noise.MAX_STEP:
            raise ValueError(f"step={step}: need 0 <= step < 2**32, the noise counter's size")
        size = (self.initial + self.slope * float(step) ** self.power) * (1.0 - _ROUNDING)
        return self.num_samples if size >= self.num_samples else math.ceil(size)

    def indices(self, step: int) -> list[int]:
        """Return this rank's part of the batch of a step."""
        count = self.batch_size(step)
        mine = part(count, self.rank, self.world_size)
        if self.replacement:
            drawn = self._uniform(step, mine.start, len(mine))
        else:
            drawn = self._distinct(step, count)[mine.start : mine.stop]
        return [int(index) for index in drawn]

    def _uniform(self, step: int, first: int, count: int) -> npt.NDArray[np.int64]:
        """Return draws `first` to `first + count` of the step's endless sequence of uniform draws.

        A draw is floor(w n / 2^64) for a word w of 64 bits, so the probability of an index is 1 / n
        up to a relative error of n / 2^64.
        """
        pairs = noise.torch_words(
            self.seed, Draw(0, step, Layout((2 * count,), (1,), 2 * first)), Purpose.BATCH
        )
        high, low = pairs.numpy().view(np.uint64).reshape(count, 2).T
        size, shift = np.uint64(self.num_samples), np.uint64(32)
        drawn = (high * size + (low * size >> shift)) >> shift
        return drawn.astype(np.int64)

    def _distinct(self, step: int, count: int) -> npt.NDArray[np.int64]:
        """Return a uniformly random subset: the first `count` different values of the sequence."""
        if 2 * count > self.num_samples:
            # It is cheaper to draw the samples that are left out.
            left_out = self._distinct(step, self.num_samples - count)
            return np.delete(np.arange(self.num_samples), left_out)
        # A subset of at most half of the data takes 1.39 draws per member on average at worst.
        drawn = self._uniform(step, 0, count + count // 2)
        while True:
            _, first_seen = np.unique(drawn, return_index=True)
            if len(first_seen) >= count:
                return drawn[np.sort(first_seen)[:count]]
            drawn = np.concatenate((drawn, self._uniform(step, len(drawn), count + 1)))

    def __iter__(self) -> Iterator[list[int]]:
        step = self.step
        while self.num_steps is None or step < self.num_steps:
            yield self.indices(step)
            step += 1

    def __len__(self) -> int:
        if self.num_steps is None:
            raise TypeError("a GrowingBatchSampler has no length unless num_steps is given")
        return max(self.num_steps - self.step, 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the step and the settings; ranks are not part of it."""
        return {"step": self.step, **{name: getattr(self, name) for name in _SETTINGS}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from the step of a saved sampler with equal settings, on any number of ranks."""
        if missing := [name for name in ("step", *_SETTINGS) if name not in state_dict]:
            raise ValueError(
                f"the saved state has no {', '.join(missing)}: need the whole state_dict() of the "
                "sampler; to set the step alone, assign to its attribute `step`"
            )
        for name in _SETTINGS:
            if state_dict[name] != getattr(self, name):
                raise ValueError(
                    f"{name}={getattr(self, name)!r}, but the saved sampler had "
                    f"{state_dict[name]!r}: the batches would not be the same"
                )
        self.step = int(state_dict["step"])


def part(count: int, rank: int, world_size: int) -> range:
    """Return the range of a rank's part of `count` things; sizes differ by at most one.

    >>> [part(10, rank, 4) for rank in range(4)]
    [range(0, 2), range(2, 5), range(5, 7), range(7, 10)]
    """
    return range(count * rank // world_size, count * (rank + 1) // world_size)


# ----------------------------------------------------------------------------------------------
# Exact means over more samples than fit at once
# ----------------------------------------------------------------------------------------------


def accumulate(
    loss: Callable[[Any], Tensor],
    batch: Any,
    micro_batch_size: int,
    *,
    batch_size: int | None = None,
    world_size: int = 1,
    model: torch.nn.Module | None = None,
) -> Tensor:
    """Add the gradient of a batch's mean loss to `.grad`, a few samples at a time.

    Up to rounding, the gradient is that of one pass over the whole batch, even if the last part is
    smaller or ranks have parts of different sizes.

    Args:
        loss: takes a part of the batch and returns the mean loss over it.
        batch: a tensor, or (nested) tuples, lists and dicts of tensors that have the samples along
            their first dimension.
        micro_batch_size: samples at a time.
        batch_size: samples of the batch over all ranks, as returned by
            :meth:`GrowingBatchSampler.batch_size`; by default the samples of `batch`.
        world_size: the number of ranks over which DistributedDataParallel or fully_shard averages
            gradients afterwards.
        model: the model that one of them wraps; the last part then exchanges the gradients, once.

    Returns:
        The mean loss over the batch. On several ranks, this is the average of the returned values.

    Example:
        >>> x = torch.zeros((), dtype=torch.float64, requires_grad=True)
        >>> samples = torch.arange(7.0, dtype=torch.float64)
        >>> value = accumulate(lambda y: ((x - y) ** 2).mean(), samples, 3)
        >>> value.item(), x.grad.item()
        (13.0, -6.0)
    """
    if micro_batch_size < 1:
        raise ValueError(f"micro_batch_size={micro_batch_size}: need at least 1")
    count = _num_samples(batch)
    if count == 0:
        raise ValueError("batch: it holds no samples, so it has no mean loss")
    parts = (
        _map(batch, operator.itemgetter(slice(start, start + micro_batch_size)))
        for start in range(0, count, micro_batch_size)
    )
    return _add_gradients(loss, parts, world_size / (batch_size or count), model)


def full_gradient(
    loss: Callable[[Any], Tensor],
    loader: Iterable[Any],
    optimizer: torch.optim.Optimizer,
    *,
    num_samples: int | None = None,
    world_size: int = 1,
    model: torch.nn.Module | None = None,
) -> Callable[[], Tensor]:
    """Return a closure for `optimizer.step` that computes the gradient over all data.

    :class:`asgld.AGLD` needs such a gradient. The loader must visit every sample once. On several
    ranks load `torch.utils.data.Subset(data, part(len(data), rank, world_size))`:
    DistributedSampler repeats samples to make the parts equal.

    Args:
        loss: takes a batch of the loader and returns the mean loss over it.
        loader: usually a `torch.utils.data.DataLoader`; `drop_last` must be off.
        optimizer: its gradients are set to zero first.
        num_samples: over all ranks; by default the length of the loader's data set.
        world_size, model: as in :func:`accumulate`.

    Example:
        >>> import asgld
        >>> x = torch.zeros((), requires_grad=True)
        >>> data = torch.utils.data.TensorDataset(torch.arange(7.0))
        >>> loader = torch.utils.data.DataLoader(data, batch_size=3)
        >>> optimizer = asgld.AGLD([x], lr=0.5, sigma=1e-3)
        >>> closure = full_gradient(lambda batch: ((x - batch[0]) ** 2).mean(), loader, optimizer)
        >>> round(float(optimizer.step(closure)), 4)
        13.0
    """
    if getattr(loader, "drop_last", False):
        raise ValueError("loader: its drop_last=True leaves samples out of the gradient")
    if num_samples is None:
        dataset: Any = getattr(loader, "dataset", None)
        if dataset is None:
            raise ValueError("num_samples=None: this loader has no `dataset` to take it from")
        num_samples = len(dataset)

    def closure() -> Tensor:
        optimizer.zero_grad()
        return _add_gradients(loss, loader, world_size / num_samples, model)

    return closure


def _add_gradients(
    loss: Callable[[Any], Tensor],
    parts: Iterable[Any],
    weight: float,
    model: torch.nn.Module | None,
) -> Tensor:
    """Backpropagate the loss of every part, weighing each sample by `weight`; return the sum."""
    total: Tensor | None = None
    for one, is_last in _mark_last(parts):
        with _exchange(model, is_last):
            value = loss(one) * (_num_samples(one) * weight)
            value.backward()  # type: ignore[no-untyped-call]
        total = value.detach() if total is None else total + value.detach()
    if total is None:
        raise ValueError("loader: it gave no batch, so there is no gradient")
    return total


def _mark_last(parts: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Yield each part, and whether it is the last, for a number of parts that is not known."""
    waiting: list[Any] = []
    for one in parts:
        if waiting:
            yield waiting.pop(), False
        waiting.append(one)
    if waiting:
        yield waiting.pop(), True


def _exchange(model: Any, now: bool) -> contextlib.AbstractContextManager[Any]:
    """Let the backward pass inside exchange gradients between ranks, or not."""
    if hasattr(model, "set_requires_gradient_sync"):  # fully_shard
        model.set_requires_gradient_sync(now)
    elif hasattr(model, "no_sync") and not now:  # DistributedDataParallel
        deferred: contextlib.AbstractContextManager[Any] = model.no_sync()
        return deferred
    return contextlib.nullcontext()


def _map(batch: Any, function: Callable[[Tensor], Any]) -> Any:
    """Apply a function to every tensor of a batch."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: _map(value, function) for key, value in batch.items()}
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        values = (_map(value, function) for value in batch)
        # A named tuple takes its fields one by one.
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)  # type: ignore[call-arg]
    raise TypeError(
        f"batch: it holds a {type(batch).__name__}; need tensors, in tuples, lists and dicts"
    )


def _num_samples(batch: Any) -> int:
    sizes: set[int] = set()
    _map(batch, lambda tensor: sizes.add(len(tensor)))
    if len(sizes) != 1:
        raise ValueError(
            f"batch: its tensors have first dimensions {sorted(sizes)}; need the same in all, the "
            "number of samples"
        )
    return sizes.pop()
