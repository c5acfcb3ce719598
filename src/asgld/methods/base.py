"""What an update rule is to the loop: frozen configuration, `init`, and a pure-looking `step`.

A method touches f through the oracle alone and declares what it will ask for in `needs`. It neither
stops, nor records, nor monitors: `asgld.run` does. Everything that changes from step to step lives
in its :class:`State`, so that a checkpoint of the state is a checkpoint of the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from asgld import noise
from asgld.noise import Draw, Layout, Purpose
from asgld.oracle import Oracle

# 2^64 divided by the golden ratio: an odd number, so multiples of it never meet modulo 2^64.
_SEED_STRIDE = 0x9E3779B97F4A7C15


@dataclass(kw_only=True)
class State:
    """What a method carries from step to step. Extend it by fields of tensors, numbers and strings.

    ============  ==========================================================================
    field         meaning
    ============  ==========================================================================
    x             the iterate, of x0's shape
    finished      the method has nothing more to do: a bool, or a mask with one entry per replica;
                  x then is the point it returns
    message       why it finished, in words
    ============  ==========================================================================
    """

    x: Tensor
    finished: bool | Tensor = False
    message: str = ""

    def pack(self) -> dict[str, Any]:
        """As tensors, numbers and strings, which `torch.load(weights_only=True)` reads."""
        return {f.name: _plain(f.name, getattr(self, f.name)) for f in dataclasses.fields(self)}

    def restored(self, packed: Mapping[str, Any]) -> Self:
        """Return the state that `pack` described; self is one fresh from `init`."""
        return dataclasses.replace(self, **packed)


@runtime_checkable
class Method(Protocol):
    """An update rule. Implementations are frozen dataclasses whose fields are its options.

    ============  ==========================================================================
    member        meaning
    ============  ==========================================================================
    name          the word for it on the command line and in legends
    needs         names of oracle calls it makes: "value", "grad", "sample_grad", "hvp", ...
    is_batched    True: `init` and `step` get all replicas at once, as (R, d), and no replica's step
                  depends on another. False: one replica at a time, as (d,), with a state each.
    ============  ==========================================================================

    A step may modify its state in place or return a new one. A budget may run out inside any oracle
    call: the rows concerned then read nan until the step ends (batched), or the step is abandoned
    (one at a time); either way the loop keeps the iterate from before the step, and a method need
    not care. Randomness must be a function of `seed` and of the state.
    """

    @property
    def name(self) -> str: ...
    @property
    def needs(self) -> frozenset[str]: ...
    @property
    def is_batched(self) -> bool: ...
    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> State: ...
    def step(self, oracle: Oracle, state: Any) -> State: ...


def replica_seed(seed: int, replica: int) -> int:
    """The seed of one replica, where replicas run one at a time; replica 0 keeps `seed`."""
    return (noise.check_seed(seed) + replica * _SEED_STRIDE) % 2**64


def batch_indices(seed: int, step: int, size: int, num_samples: int, rows: int = 1) -> Tensor:
    """Sample indices, with replacement, of shape (rows, size): a function of seed and step alone.

    Row r does not depend on how many rows are drawn. The map of 32-bit words to indices favors no
    index by more than num_samples / 2^32.

    >>> two, three = (batch_indices(0, 5, 4, 100, rows=rows) for rows in (2, 3))
    >>> bool((three[:2] == two).all())
    True
    """
    draw = Draw(stream=0, step=step, layout=Layout.whole(rows * size))
    word = noise.torch_words(seed, draw, Purpose.BATCH)
    return ((word * num_samples) >> 32).view(rows, size)


def normals(seed: int, step: int, x: Tensor, stream: int = 1) -> Tensor:
    """Standard normals of x's shape: a function of seed, stream, step and position.

    Stream 0 is the update noise of the optimizers; other uses take another.
    """
    draw = Draw(stream=stream, step=step, layout=Layout.whole(x.numel()))
    return noise.torch_normals(seed, [draw], x.dtype, x.device)[0].view(x.shape)


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return type(value)(_plain(name, v) for v in value)
    if isinstance(value, dict):
        return {k: _plain(name, v) for k, v in value.items()}
    raise TypeError(
        f"state field {name!r} holds a {type(value).__name__}: keep tensors, numbers, strings, and "
        "lists or dicts of them, or override pack and restored"
    )


def as_mask(finished: bool | Tensor, replicas: int) -> Tensor:
    """`State.finished` as a mask with one entry per replica."""
    return torch.as_tensor(finished, dtype=torch.bool).expand(replicas)
