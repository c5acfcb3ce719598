"""Noise as a pure function: z = normal(seed, stream, step, index).

The library draws the noise of an update in no other way. A draw depends on the parameter
(`stream`), on the step, and on the element's index in the *whole* parameter. So it is the same on
one worker or on sixty-four, in any order, in any chunking, and after a resume.

The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as
1, 2, 3", SC 2011). One call gives four words, which serve four consecutive elements:

    key      = (seed low, seed high)
    counter  = (q low, q high | purpose << 29, step, stream),     q = index // 4
    word     = philox(counter, key)[index % 4]

Words (0, 1) and (2, 3) make two pairs of normals by Box and Muller:

    u = (w_even >> 1) 2^-31 + 2^-32  in (0, 1],     t = signed(w_odd) 2^-31  in [-1, 1)
    z_even = sqrt(-2 ln u) cos(pi t),               z_odd = sqrt(-2 ln u) sin(pi t)

so |z| reaches 6.66. Words are bit-equal on every backend. Normals agree to a few units in the last
place across backends and are bit-equal within one.

Words for stochastic rounding get seven rounds, not ten. Seven pass all of BigCrush too (the same
paper). With ten rounds, Philox and not memory would set the pace of a kernel for half precision.

Limits: 32 bits for `step` and `stream`, 64 for `seed`, 61 for q.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MAX_STEP = MAX_STREAM = 2**32 - 1
_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF
# Blocks (of four elements) per chunk of the eager torch path. Its dozen temporaries of eight bytes
# per block then stay in a core's second-level cache.
_CHUNK_BLOCKS = 1 << 14


class Purpose(enum.IntEnum):
    """The use of random words. Each purpose has counters that no other purpose can reach."""

    UPDATE = 0
    ROUND = 1  # the lower half of a word for the parameter, the upper half for its sum
    SHRINK = 2  # rounding after a proximal step
    BATCH = 3


def rounds_of(purpose: int) -> int:
    """Return how many rounds of Philox the words of a purpose get."""
    return 7 if purpose == Purpose.ROUND else 10


def check_seed(seed: int) -> int:
    """Return `seed` if it fits the 64-bit key, else raise."""
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise TypeError(f"seed={seed!r}: need an int in [0, 2**64)")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed={seed}: need 0 <= seed < 2**64, the size of a Philox key")
    return seed


# ----------------------------------------------------------------------------------------------
# Streams: which parameter
# ----------------------------------------------------------------------------------------------

# Wrappers put these words in front of the name of the same parameter.
_WRAPPERS = re.compile(
    r"(?:^|(?<=\.))(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)


def canonical_name(name: str) -> str:
    """Strip the prefixes that DDP, torch.compile, FSDP and activation checkpointing add to a name.

    >>> canonical_name("module._orig_mod.layers.0.weight")
    'layers.0.weight'
    """
    return _WRAPPERS.sub("", name)


def stream_of_name(name: str, attempt: int = 0) -> int:
    """Return the 32-bit stream of a parameter name, the same in every process and release."""
    text = canonical_name(name) + (f"#{attempt}" if attempt else "")
    return int.from_bytes(hashlib.blake2s(text.encode(), digest_size=4).digest(), "little")


def streams_of_names(names: Iterable[str], taken: Iterable[int] = ()) -> list[int]:
    """Return one stream per name, all different from each other and from `taken`.

    Two names with the same hash would share their noise. The later name in sorted order is hashed
    again, so the outcome does not depend on the order of the list.
    """
    names, used = list(names), set(taken)
    stream: dict[str, int] = {}
    for name in sorted(names):
        attempt = 0
        while (candidate := stream_of_name(name, attempt)) in used:
            attempt += 1
        used.add(candidate)
        stream[name] = candidate
    return [stream[name] for name in names]


# ----------------------------------------------------------------------------------------------
# Layouts: where the elements of a (shard of a) parameter lie in the whole of it
# ----------------------------------------------------------------------------------------------


class Layout(NamedTuple):
    """Global row-major index of each element of a local block: offset + sum_i j_i * strides_i.

    Dimensions that continue each other are merged. So a whole tensor and a shard along its first
    dimension have one dimension, and a shard along another dimension has two.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def of_block(
        cls, local_shape: Sequence[int], global_shape: Sequence[int], offsets: Sequence[int]
    ) -> Layout:
        """Lay out the block of `local_shape` that begins at `offsets` in a `global_shape` tensor.

        >>> Layout.of_block((4, 3), (8, 3), (2, 0))          # rows 2 to 5
        Layout(shape=(12,), strides=(1,), offset=6)
        >>> Layout.of_block((8, 2), (8, 3), (0, 1))          # the last two columns
        Layout(shape=(8, 2), strides=(3, 1), offset=1)
        """
        if not len(local_shape) == len(global_shape) == len(offsets):
            raise ValueError(
                f"local_shape={tuple(local_shape)}, global_shape={tuple(global_shape)}, "
                f"offsets={tuple(offsets)}: need the same number of dimensions"
            )
        if math.prod(local_shape) == 0:
            return cls((0,), (1,))
        for local, whole, start in zip(local_shape, global_shape, offsets, strict=True):
            if start < 0 or start + local > whole:
                raise ValueError(
                    f"offsets={tuple(offsets)}: a block of {tuple(local_shape)} that begins there "
                    f"does not fit in {tuple(global_shape)}"
                )
        strides = [math.prod(global_shape[i + 1 :]) for i in range(len(global_shape))]
        offset = sum(o * s for o, s in zip(offsets, strides, strict=True))
        merged: list[tuple[int, int]] = []  # size and stride
        for size, stride in zip(local_shape, strides, strict=True):
            if merged and merged[-1][1] == size * stride:
                merged[-1] = merged[-1][0] * size, stride
            elif size != 1:
                merged.append((size, stride))
        if not merged or merged[-1][1] != 1:
            merged.append((1, 1))
        shape_out, strides_out = zip(*merged, strict=True)
        return cls(shape_out, strides_out, offset)

    @staticmethod
    @functools.cache
    def whole(numel: int) -> Layout:
        """Lay out a parameter that is not sharded."""
        return Layout((numel,), (1,))

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        return len(self.shape) == 1

    @property
    def rows(self) -> tuple[int, int, int] | None:
        """(offset, row_length, row_stride) for a kernel; None if there are more dimensions."""
        if len(self.shape) == 1:
            return self.offset, max(self.shape[0], 1), 0
        if len(self.shape) == 2:
            return self.offset, self.shape[1], self.strides[0]
        return None

    @property
    def is_in_fours(self) -> bool:
        """Whether local elements 4i to 4i + 3 share one block of words, for every i."""
        outer = (*self.shape[1:], *self.strides[:-1])
        return self.offset % 4 == 0 and all(number % 4 == 0 for number in outer)

    def indices(self, device: torch.device | str = "cpu") -> Tensor:
        """Return the global index of every element, flat, in local row-major order."""
        index = torch.full((1,), self.offset, dtype=torch.int64, device=device)
        for size, stride in zip(self.shape, self.strides, strict=True):
            steps = torch.arange(size, dtype=torch.int64, device=device) * stride
            index = (index[:, None] + steps).reshape(-1)
        return index


def layout_of(tensor: Tensor) -> Layout:
    """Return the layout of this process's part of `tensor`, which may be a DTensor.

    A complex number counts as two elements, real part first, as in torch.view_as_real.
    """
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return Layout.whole(tensor.numel() * (2 if tensor.is_complex() else 1))
    parts = (2,) if tensor.is_complex() else ()
    mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
    local, offsets = _local_block(tensor.shape, mesh.shape, mesh.get_coordinate(), placements)
    return Layout.of_block(
        (*local, *parts), (*tensor.shape, *parts), (*offsets, *(0 for _ in parts))
    )


def _local_block(
    shape: Sequence[int],
    mesh_shape: Sequence[int],
    coordinate: Sequence[int] | None,
    placements: Sequence[Any],
) -> tuple[list[int], list[int]]:
    """Return the shape and the first index of a rank's block.

    torch's own function is wrong where FSDP and tensor parallelism split one dimension unevenly (a
    strided shard): 7 rows over (3, 2) ranks (torch 2.13).
    """
    local, offsets = list(shape), [0] * len(shape)
    if coordinate is None:  # this process is not part of the mesh
        return [0] * len(shape), offsets
    for dim in range(len(shape)):
        for mesh_dim in _order_of_splits(dim, mesh_shape, placements):
            chunk = -(-local[dim] // mesh_shape[mesh_dim])
            start = min(coordinate[mesh_dim] * chunk, local[dim])
            offsets[dim] += start
            local[dim] = min(chunk, local[dim] - start)
    return local, offsets


def _order_of_splits(dim: int, mesh_shape: Sequence[int], placements: Sequence[Any]) -> list[int]:
    """Return the mesh dimensions that split a dimension of a tensor, the first split first."""
    order: list[int] = []
    for mesh_dim in reversed(range(len(placements))):
        placement = placements[mesh_dim]
        if getattr(placement, "dim", None) != dim:
            continue
        # A strided shard comes after the splits on its right that make up its split factor.
        position, splits = 0, 1
        while splits < getattr(placement, "split_factor", 1):
            splits *= mesh_shape[order[position]]
            position += 1
        order.insert(position, mesh_dim)
    return order


# ----------------------------------------------------------------------------------------------
# NumPy: the readable statement of the contract
# ----------------------------------------------------------------------------------------------


def philox(
    counter: Sequence[npt.ArrayLike], key: tuple[int, int], rounds: int = 10
) -> tuple[npt.NDArray[np.uint64], ...]:
    """Return the four words, in [0, 2^32), of Philox4x32 for four arrays of counter words.

    >>> [f"{int(w):08x}" for w in philox((0, 0, 0, 0), (0, 0))]   # Random123's known answer
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(c, dtype=np.uint64) for c in counter))
    k0, k1 = key
    shift, mask = np.uint64(32), np.uint64(_MASK)
    for _ in range(rounds):
        product_0 = c0 * np.uint64(_MULTIPLIER_0)
        product_1 = c2 * np.uint64(_MULTIPLIER_1)
        c0 = product_1 >> shift
        c0 ^= c1
        c0 ^= np.uint64(k0)
        c2 = product_0 >> shift
        c2 ^= c3
        c2 ^= np.uint64(k1)
        c1, c3 = product_1 & mask, product_0 & mask
        k0, k1 = (k0 + _WEYL_0) & _MASK, (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def _philox_of_blocks(
    block: npt.NDArray[np.uint64],
    step: npt.ArrayLike,
    stream: npt.ArrayLike,
    seed: int,
    purpose: int,
) -> tuple[npt.NDArray[np.uint64], ...]:
    """Return the four words of each block number."""
    high = (block >> np.uint64(32)) | np.uint64(purpose << 29)
    counter = (block & np.uint64(_MASK), high, step, stream)
    return philox(counter, (seed & _MASK, seed >> 32), rounds_of(purpose))


def words(
    seed: int, stream: int, step: int, index: npt.ArrayLike, purpose: int = Purpose.UPDATE
) -> npt.NDArray[np.uint32]:
    """Return the random word of each element index."""
    index = np.asarray(index, dtype=np.uint64)
    four = _philox_of_blocks(index >> np.uint64(2), step, stream, seed, purpose)
    chosen = np.choose((index & np.uint64(3)).astype(np.intp), four)
    return chosen.astype(np.uint32)


def normal(
    seed: int, stream: int, step: int, index: npt.ArrayLike, dtype: npt.DTypeLike = np.float64
) -> npt.NDArray[Any]:
    """Return the standard normal of each element index, computed in `dtype`.

    >>> z = normal(seed=0, stream=7, step=3, index=[0, 1, 2, 3])
    >>> bool((z[2:] == normal(0, 7, 3, [2, 3])).all())            # no order, no state
    True
    """
    index = np.asarray(index, dtype=np.uint64)
    even = index & ~np.uint64(1)
    radius_word = words(seed, stream, step, even)
    angle_word = words(seed, stream, step, even + np.uint64(1)).view(np.int32)
    real: Any = np.dtype(dtype).type
    uniform = (radius_word >> np.uint32(1)).astype(dtype) * real(2.0**-31) + real(2.0**-32)
    angle = angle_word.astype(dtype) * real(2.0**-31) * real(np.pi)
    is_odd = (index & np.uint64(1)).astype(bool)
    z: npt.NDArray[Any] = np.sqrt(real(-2.0) * np.log(uniform)) * np.where(
        is_odd, np.sin(angle), np.cos(angle)
    )
    return z


# ----------------------------------------------------------------------------------------------
# torch: the same words on any device; the step may be a number or a tensor
# ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """One parameter's noise for one step. `step` is a 0-dim int64 tensor where the host must not
    read it (graph capture, torch.compile)."""

    stream: int
    step: int | Tensor
    layout: Layout


def _philox_on_device(
    block: Tensor, step: int | Tensor, stream: int | Tensor, seed: int, purpose: int
) -> tuple[Tensor, ...]:
    """Return the four words of each block by torch's integer operations, for GPUs and compilers."""
    c0: Tensor = block & _MASK
    c1: Any = (block >> 32) | (purpose << 29)
    c2: Any = step
    c3: Any = stream
    k0, k1 = seed & _MASK, seed >> 32
    for _ in range(rounds_of(purpose)):
        product_0 = c0 * _MULTIPLIER_0
        product_1 = c2 * _MULTIPLIER_1
        # The product fills 64 bits, so its sign bit may be set: shift, then mask the copies of it.
        c0, c1 = (product_1 >> 32) & _MASK ^ c1 ^ k0, product_1 & _MASK
        c2, c3 = (product_0 >> 32) & _MASK ^ c3 ^ k1, product_0 & _MASK
        k0, k1 = (k0 + _WEYL_0) & _MASK, (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def _box_muller(
    radius_word: Tensor, angle_word: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    radius = (radius_word >> 1).to(dtype).mul_(2.0**-31).add_(2.0**-32).log_().mul_(-2.0).sqrt_()
    # [0, 2^32) to [-2^31, 2^31): flip the sign bit's weight.
    signed = (angle_word ^ 0x80000000) - 0x80000000
    angle = signed.to(dtype).mul_(2.0**-31).mul_(math.pi)
    return radius * torch.cos(angle), radius * torch.sin(angle)


def _drawn(
    block: Tensor,
    step: int | Tensor,
    stream: int | Tensor,
    seed: int,
    purpose: int,
    dtype: torch.dtype,
) -> Tensor:
    """Return four values per block, flat: normals of `dtype`, or words if `dtype` is int64."""
    if block.device.type == "cpu" and not torch.compiler.is_compiling():
        # NumPy has unsigned integers, and its calls cost a third of torch's. The words are equal.
        number = block.numpy().view(np.uint64)
        at, which = (v.numpy() if isinstance(v, Tensor) else v for v in (step, stream))
        found = _philox_of_blocks(number, at, which, seed, purpose)
        values = tuple(torch.from_numpy(word.view(np.int64)) for word in found)
    else:
        values = _philox_on_device(block, step, stream, seed, purpose)
    if dtype != torch.int64:
        w0, w1, w2, w3 = values
        values = (*_box_muller(w0, w1, dtype), *_box_muller(w2, w3, dtype))
    return torch.stack(values, -1).view(-1)


def _fill(out: Tensor, draw: Draw, seed: int, purpose: int) -> None:
    """Write one parameter's values into the flat `out`: normals, or words if `out` is int64."""

    def values(block: Tensor) -> Tensor:
        return _drawn(block, draw.step, draw.stream, seed, purpose, out.dtype)

    chunk = _CHUNK_BLOCKS
    if torch.compiler.is_compiling() or out.device.type != "cpu":
        chunk = max(draw.layout.numel, 1)  # one kernel per operation; a compiler fuses them all
    if not draw.layout.is_contiguous:
        # Neighbors need not share a block here, so each element computes its own block.
        index = draw.layout.indices(out.device)
        for part, into in zip(torch.split(index, chunk), torch.split(out, chunk), strict=True):
            four = values(part >> 2).view(-1, 4)
            into.copy_(four.gather(1, (part & 3)[:, None])[:, 0])
        return
    first, begin = draw.layout.offset // 4, draw.layout.offset % 4
    last = (draw.layout.offset + draw.layout.numel + 3) // 4
    position = 0
    for start in range(first, last, chunk):
        stop = min(start + chunk, last)
        # Inductor folds a range of length one into constants, and its constants do not wrap at 64
        # bits as tensors do (torch 2.13). A second block, not used, keeps the range a tensor.
        block = torch.arange(start, max(stop, start + 2), dtype=torch.int64, device=out.device)
        drawn = values(block)[begin : begin + out.numel() - position]
        out[position : position + drawn.numel()] = drawn
        position += drawn.numel()
        begin = 0


def _fill_together(outs: Sequence[Tensor], draws: Sequence[Draw], seed: int) -> None:
    """Write normals of several small whole parameters in one pass over their joined blocks."""
    counts = [(draw.layout.numel + 3) // 4 for draw in draws]
    blocks = [torch.arange(n, dtype=torch.int64, device=outs[0].device) for n in counts]

    def column(values: Iterable[int | Tensor]) -> Tensor:
        pairs = zip(blocks, values, strict=True)
        return torch.cat(
            [
                v.to(b.device).expand(b.shape) if isinstance(v, Tensor) else torch.full_like(b, v)
                for b, v in pairs
            ]
        )

    step, stream = column(d.step for d in draws), column(d.stream for d in draws)
    drawn = _drawn(torch.cat(blocks), step, stream, seed, Purpose.UPDATE, outs[0].dtype)
    for out, four in zip(outs, torch.split(drawn, [4 * n for n in counts]), strict=True):
        out.copy_(four[: out.numel()])


def torch_normals(
    seed: int, draws: Sequence[Draw], dtype: torch.dtype, device: torch.device | str = "cpu"
) -> list[Tensor]:
    """Return the update noise of each draw, flat, in `dtype` (float32 or float64), on `device`."""
    outs = [torch.empty(draw.layout.numel, dtype=dtype, device=device) for draw in draws]
    small: list[int] = []  # small whole parameters, for one pass of at most _CHUNK_BLOCKS
    room = _CHUNK_BLOCKS

    def flush() -> None:
        if len(small) == 1:
            _fill(outs[small[0]], draws[small[0]], seed, Purpose.UPDATE)
        elif small:
            _fill_together([outs[i] for i in small], [draws[i] for i in small], seed)
        small.clear()

    for i, draw in enumerate(draws):
        layout, blocks = draw.layout, (draw.layout.numel + 3) // 4
        is_whole = layout.is_contiguous and layout.offset == 0
        if not is_whole or blocks >= _CHUNK_BLOCKS or torch.compiler.is_compiling():
            _fill(outs[i], draw, seed, Purpose.UPDATE)
        elif blocks:
            if blocks > room:
                flush()
                room = _CHUNK_BLOCKS
            small.append(i)
            room -= blocks
    flush()
    return outs


def torch_words(
    seed: int, draw: Draw, purpose: int = Purpose.UPDATE, device: torch.device | str = "cpu"
) -> Tensor:
    """Return the random words of one draw, flat, as int64 in [0, 2^32)."""
    out = torch.empty(draw.layout.numel, dtype=torch.int64, device=device)
    _fill(out, draw, seed, purpose)
    return out


def round_stochastically(values: Tensor, word: Tensor, dtype: torch.dtype) -> Tensor:
    """Round float32 `values` to bfloat16 or float16 so that the expected result is the value.

    The bits of `word` are added below the kept mantissa bits, and the sum is cut off there. A value
    that is not finite, or outside float16's normal range, is rounded to nearest.
    """
    dropped = {torch.bfloat16: 16, torch.float16: 13}[dtype]
    bits = values.view(torch.int32)
    # int64 words hold [0, 2^32), so the masked low bits fit int32.
    noisy = bits + (word.view(values.shape) & ((1 << dropped) - 1)).to(torch.int32)
    rounded = (noisy & -(1 << dropped)).view(torch.float32)
    is_plain = torch.isfinite(values)
    if dtype == torch.float16:
        size = values.abs()
        is_plain = (size >= 2.0**-14) & (size < 65504.0)
    return torch.where(is_plain, rounded, values).to(dtype)
