"""What an update rule is to the rest of the package: the five protocols, and the state.

==================  ========================  ==================================================
protocol            read by                   says
==================  ========================  ==================================================
:class:`Method`     `run`, and so by all      name, needs, is_batched, init, step: the minimum
KnowsItsNoise       `minimize`, `compare`     whether there is noise, and whether it dies out
KnowsProx           `minimize`                whether steps take account of a penalty
Adjustable          `minimize`, `compare`     which options are open, and how to set them
FitsItself          `minimize`, `compare`     what its open options should be around a start
==================  ========================  ==================================================

A method touches f through the oracle alone and declares its calls in `needs`. It neither stops, nor
records, nor monitors: `asgld.run` does. Everything that changes from step to step lives in its
:class:`State`, so that a checkpoint of the state is a checkpoint of the run.
"""

from __future__ import annotations

import dataclasses
import math
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


@dataclass(kw_only=True)
class SeededState(State):
    """A state whose randomness is a function of the seed and the number of steps."""

    seed: int
    step: int = 0


@dataclass(kw_only=True)
class KnownState(State):
    """A state that knows f and its gradient at x: the loop looks here before it calls f again."""

    value: Tensor  # (R,)
    grad: Tensor  # (R, d)


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


@runtime_checkable
class KnowsItsNoise(Method, Protocol):
    """A method that describes its noise, from which `minimize` chooses how to stop and to polish.

    Any other method is taken to have noise that dies out.

    ============  ==========================================================================
    member        meaning
    ============  ==========================================================================
    has_noise     two seeds give two runs: injected noise, or sampled gradients
    anneals       the injected noise dies out, so that the iterate can come to rest; looked at only
                  where has_noise is true
    ============  ==========================================================================
    """

    @property
    def has_noise(self) -> bool: ...
    @property
    def anneals(self) -> bool: ...


@runtime_checkable
class KnowsProx(Method, Protocol):
    """A method that says whether its steps take account of `oracle.penalty`; no other's do."""

    @property
    def knows_prox(self) -> bool: ...


@runtime_checkable
class Adjustable(KnowsItsNoise, Protocol):
    """A method whose open options `minimize` sets from what it measured at the start.

    ============  ==========================================================================
    member        meaning
    ============  ==========================================================================
    options       the options that were given
    knobs         all options of the update, defaults included
    open_options  names of the options that were not given and may be set: "lr", "sigma", ...
    with_options  a copy with these options in place of those that were given
    ============  ==========================================================================
    """

    @property
    def options(self) -> Mapping[str, Any]: ...
    @property
    def knobs(self) -> Mapping[str, Any]: ...
    @property
    def open_options(self) -> frozenset[str]: ...
    def with_options(self, options: Mapping[str, Any]) -> Self: ...


@dataclass(frozen=True)
class Surroundings:
    """What f is like around the start: the units in which the options of a method are stated.

    =================  =====================================================================
    field              meaning
    =================  =====================================================================
    curvature          M: the largest curvature met
    max_square         the largest square of a coordinate of a gradient met
    hessian_lipschitz  rho: how fast the Hessian changes
    fall               F: how far f fell in a short descent
    length             X: how far that descent went
    dim                number of coordinates
    eps, gamma         a gradient norm of at most eps is small, a curvature above -gamma no way down
    num_samples        n, where f is a mean over n samples
    =================  =====================================================================
    """

    curvature: float
    max_square: float
    hessian_lipschitz: float
    fall: float
    length: float
    dim: int
    eps: float
    gamma: float
    num_samples: int | None = None

    @property
    def slope(self) -> float:
        """(M F)^(1/2): the gradient norm from which curvature M would fall by F / 2."""
        return math.sqrt(self.curvature * self.fall)

    @property
    def coordinate(self) -> float:
        """The part of X that one coordinate has."""
        return self.length / math.sqrt(self.dim)

    @property
    def kick(self) -> float:
        """A displacement that raises f by less than 10^-6 F."""
        return 1e-3 * math.sqrt(self.fall / self.curvature)

    @property
    def patience(self) -> int:
        """Steps of length 1/M in which a curvature of -gamma shows; at most 500."""
        return math.ceil(min(500.0, 5.0 * self.curvature / self.gamma))

    def steeper(self, factor: float) -> Self:
        """As if x were written in longer units: curvature grows by the factor, f stays."""
        return dataclasses.replace(
            self,
            curvature=self.curvature * factor,
            max_square=self.max_square * factor,
            hessian_lipschitz=self.hessian_lipschitz * factor**1.5,
            length=self.length / math.sqrt(factor),
        )


@runtime_checkable
class FitsItself(Adjustable, Protocol):
    """A method that knows how its options follow from the scales of f.

    ============  ==========================================================================
    member        meaning
    ============  ==========================================================================
    fitted        values of its open options, and perhaps of others, which are then ignored
    ============  ==========================================================================

    Options of any other `Adjustable` method are set by the rule of the Langevin methods.
    """

    def fitted(self, around: Surroundings) -> Mapping[str, Any]: ...


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


def draw_batch(
    oracle: Oracle, x: Tensor, batch_size: int | None, seed: int, step: int
) -> Tensor | None:
    """Sample indices (..., B), one batch per row of x; None where the batch is all samples."""
    if batch_size is None:
        return None
    if oracle.num_samples is None:
        raise ValueError(
            f"batch_size={batch_size}: the function is not a mean over samples; give num_samples= "
            "or leave batch_size out"
        )
    if batch_size >= oracle.num_samples:
        return None
    rows = math.prod(x.shape[:-1])
    indices = batch_indices(seed, step, batch_size, oracle.num_samples, rows)
    return indices.view(*x.shape[:-1], batch_size)


def gradient(oracle: Oracle, x: Tensor, indices: Tensor | None) -> Tensor:
    """The gradient at x, over a batch or over all samples."""
    return oracle.grad(x) if indices is None else oracle.sample_grad(x, indices)


def gradient_needs(batch_size: int | None) -> frozenset[str]:
    """The calls of :func:`gradient`: a batch of all samples or more is the full gradient."""
    return frozenset({"grad"} if batch_size is None else {"grad", "sample_grad"})


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
