"""The polar factor of a batch of matrices on a GPU, and what a step needs around it.

    squares = sources(grads, momenta, mu, batches)      momentum; bfloat16 copies; their norms
    factors = polars(batches, coefficients, squares)    each X by its polar factor, about
    scale_rows(factor, averages, ...)                   one number per row

An iteration of Newton and Schulz is X <- p(X X') X with p(R) = a I + b R + c R R. The polynomials
of R commute and are symmetric, so `symmetric_product` computes their products from the tiles on
and below the diagonal. Of a wide X they are smaller than X: several iterations act on R and on the
product Q of their polynomials, and X is multiplied once, by Q. A rounding error of R in a
direction where R is small grows by a^2 at each iteration. So R is computed anew from X before the
error has grown by more than `_GROWTH`. For 23 kinds of matrices with 512 rows and Muon's
coefficients, the distance to the iteration in float64 was then at most 0.75 of that of the plain
iteration in bfloat16. The roundings of many rows average out, those of few do not. So small
matrices, and square ones, which gain nothing, get R anew at each iteration.

All products are of float16. A matrix of norm 1 has the range for it, and eight times the precision
of bfloat16. Sums are of float32.

Nothing here waits for the GPU. With TRITON_INTERPRET=1 in the environment when this file is
imported, the kernels run on the CPU, for tests.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from asgld.optim._triton_kernels import IS_INTERPRETED

MUON = ((3.4445, -4.7750, 2.0315),) * 5

_GROWTH = 150.0
_WIDE, _LARGE = 1.5, 256  # the least ratio of the sides, and shorter side, of a wide matrix
_EPS = 1e-7

_PART = 1024  # elements per program of an elementwise kernel
_ROWS, _COLUMNS = 16, 256  # of a block of the kernel that sums over rows
_GROUP = 8  # tiles that are neighbours in a column, so that they find its rows in the cache

_TYPES = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


class Tile(NamedTuple):
    """How `symmetric_product` is cut up."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    has_tma: bool  # Hopper's copy engine; needs rows of a multiple of 16 bytes


# (largest size of the result, tile): set from benchmarks/matrix_time_gpu.py --tiles on an H200.
_TILES: tuple[tuple[float, Tile], ...] = (
    (256, Tile(64, 64, 64, 4, 3, False)),
    (math.inf, Tile(128, 128, 64, 4, 3, False)),
)
_TILES_OF_HOPPER: tuple[tuple[float, Tile], ...] = (
    (256, Tile(64, 64, 64, 4, 3, False)),
    # The copy engine would gain a tenth here, but its descriptors take the host longer than that.
    (1536, Tile(128, 128, 64, 4, 3, False)),
    (math.inf, Tile(128, 128, 64, 4, 3, True)),
)
_SMALLEST = Tile(64, 64, 32, 4, 2, False)  # for GPUs with little shared memory


# Kernels that are compiled, by all that they are compiled for. Triton's own look-up inspects every
# argument, and takes several times as long as the launch.
_launchers: dict[Any, Any] = {}


def _launch(
    kernel: Any,
    number: int,
    tensors: Sequence[Any],
    integers: tuple[int, ...],
    floats: tuple[float, ...],
    constants: tuple[Any, ...],
    **options: Any,
) -> None:
    """Launch `number` programs of a kernel, whose arguments come in this order."""
    grid = (number, 1, 1)
    if IS_INTERPRETED or isinstance(tensors[0], TensorDescriptor):
        kernel[grid](*tensors, *integers, *floats, *constants, **options)
        return
    addresses = [tensor.data_ptr() for tensor in tensors]
    # Triton compiles for dtypes, for addresses that 16 divides and for integers, not for floats.
    dtypes = [tensor.dtype for tensor in tensors]
    are_aligned = [address % 16 == 0 for address in addresses]
    device = torch.cuda.current_device()
    key = (
        id(kernel),
        number,
        device,
        integers,
        constants,
        *options.values(),
        *dtypes,
        *are_aligned,
    )
    launch = _launchers.get(key)
    if launch is not None:
        launch(*addresses, *integers, *floats, *constants)
        return
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "the fused step cannot begin inside a CUDA graph: take at least one step with these "
            "settings before the capture"
        )
    arguments = (*tensors, *integers, *floats, *constants)
    _launchers[key] = kernel[grid](*arguments, **options)[grid]


# ----------------------------------------------------------------------------------------------
# Symmetric products
# ----------------------------------------------------------------------------------------------


@triton.jit
def _triangle(place):
    """Return row and column of a number that counts a lower triangle row by row."""
    row = ((tl.sqrt(8.0 * place.to(tl.float32) + 1.0) - 1.0) * 0.5).to(tl.int32)
    row = tl.where(row * (row + 1) // 2 > place, row - 1, row)
    row = tl.where((row + 1) * (row + 2) // 2 <= place, row + 1, row)
    return row, place - row * (row + 1) // 2


@triton.jit
def _grouped_triangle(place, number, group: tl.constexpr):
    """Return row and column of the tile `place`: groups of rows, each column by column."""
    row, column = _triangle(place)
    first = row // group * group  # as many tiles are above a group in both orders
    height = tl.minimum(group, number - first)
    place -= first * (first + 1) // 2
    row, column = _triangle(tl.maximum(place - first * height, 0))
    is_left = place < first * height  # of the triangle at the end of the group
    row = tl.where(is_left, place % height, row)
    column = tl.where(is_left, place // height, first + column)
    return first + row, column


@triton.jit
def multiply_symmetric(
    x, y, c, out, mirror, size, inner, number,
    x_matrix, x_row, x_column, y_matrix, y_row, y_column, c_matrix, c_row, out_matrix, out_row,
    alpha, beta, diagonal,
    is_turned: tl.constexpr, has_c: tl.constexpr, is_mixed: tl.constexpr, is_whole: tl.constexpr,
    has_tma: tl.constexpr, out_type: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, depth: tl.constexpr, group: tl.constexpr,
):  # fmt: skip
    """Compute one tile of out = alpha x y' + beta c + diagonal I, and write it and its mirror
    image. With `has_tma` x, y, c, out and mirror are descriptors, else addresses with strides. A
    square of `side` rows is cut into parts if tiles are not square. With `is_mixed` y is not x,
    tiles are square, and roundings would make a tile on the diagonal differ from its mirror
    image."""
    side: tl.constexpr = rows if rows > columns else columns
    across: tl.constexpr = side // columns
    parts: tl.constexpr = side // rows * across
    per_matrix = number * (number + 1) // 2 * parts
    matrix = tl.program_id(0) // per_matrix
    place = tl.program_id(0) % per_matrix
    below, right = _grouped_triangle(place // parts, number, group)
    first_row = below * side + place % parts // across * rows
    first_column = right * side + place % across * columns

    total = tl.zeros((rows, columns), tl.float32)
    i = first_row + tl.arange(0, rows)
    j = first_column + tl.arange(0, columns)
    if has_tma:
        for k in range(0, inner, depth):
            if is_turned:
                part = x.load([matrix, k, first_row]).reshape(depth, rows).T
                other = y.load([matrix, k, first_column]).reshape(depth, columns)
            else:
                part = x.load([matrix, first_row, k]).reshape(rows, depth)
                other = y.load([matrix, first_column, k]).reshape(columns, depth).T
            total = tl.dot(part, other, total)
    else:
        k = tl.arange(0, depth)
        x += matrix.to(tl.int64) * x_matrix
        y += matrix.to(tl.int64) * y_matrix
        x += i.to(tl.int64)[:, None] * x_row + k.to(tl.int64)[None, :] * x_column
        y += j.to(tl.int64)[:, None] * y_row + k.to(tl.int64)[None, :] * y_column
        for begin in range(0, inner, depth):
            if is_whole:
                part = tl.load(x)
                other = tl.load(y)
            else:
                is_inside = (begin + k < inner)[None, :]
                part = tl.load(x, (i < size)[:, None] & is_inside, other=0.0)
                other = tl.load(y, (j < size)[:, None] & is_inside, other=0.0)
            total = tl.dot(part, other.T, total)
            x += depth * x_column
            y += depth * y_column

    mask = (i < size)[:, None] & (j < size)[None, :]
    total = total * alpha
    if has_c:
        if has_tma:
            old = c.load([matrix, first_row, first_column]).reshape(rows, columns)
        else:
            c += matrix.to(tl.int64) * c_matrix
            old = tl.load(c + i.to(tl.int64)[:, None] * c_row + j[None, :], mask, other=0.0)
        total += beta * old.to(tl.float32)
    if below == right:
        total += tl.where(i[:, None] == j[None, :], diagonal, 0.0)
        if is_mixed:
            total = tl.where(i[:, None] >= j[None, :], total, total.T)
    result = total.to(out_type)
    if has_tma:
        out.store([matrix, first_row, first_column], result.reshape(1, rows, columns))
        if below != right:
            mirror.store([matrix, first_column, first_row], result.T.reshape(1, columns, rows))
    else:
        out += matrix.to(tl.int64) * out_matrix
        tl.store(out + i.to(tl.int64)[:, None] * out_row + j[None, :], result, mask)
        if below != right:
            turned = out + j.to(tl.int64)[:, None] * out_row + i[None, :]
            tl.store(turned, result.T, mask.T)


def symmetric_product(
    X: Tensor,
    out: Tensor | None = None,
    C: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    transpose: bool = False,
    *,
    Y: Tensor | None = None,
    diagonal: float = 0.0,
    tile: Tile | None = None,
) -> Tensor:
    """Return alpha X X' + beta C + diagonal I for each matrix of a batch; with `transpose` X' X.

    X has the shape (B, n, m) and bfloat16 or float16 elements; sums are of float32. `out` and C
    have rows without gaps. C must be symmetric. Y stands for the second X: then the caller
    promises that X Y' is symmetric but for roundings. The result is: entries below the diagonal
    count. `tile` overrides the table.
    """
    Y = X if Y is None else Y
    if X.dim() != 3 or X.shape != Y.shape or X.dtype != Y.dtype or X.dtype not in _TYPES:
        raise ValueError(
            f"X has shape {tuple(X.shape)} of {X.dtype}, Y {tuple(Y.shape)} of {Y.dtype}: need "
            "equal shapes (B, n, m) of bfloat16 or float16"
        )
    number, inner, size = X.shape if transpose else (X.shape[0], X.shape[2], X.shape[1])
    if out is None:
        out = torch.empty(number, size, size, dtype=X.dtype, device=X.device)
    c = out if C is None else C
    for name, square in (("out", out), ("C", c)):
        if square.shape != (number, size, size) or (size > 1 and square.stride(2) != 1):
            raise ValueError(
                f"{name} has shape {tuple(square.shape)} and strides {square.stride()}: need "
                f"{(number, size, size)} and rows without gaps"
            )
    if not number:
        return out
    with _device_of(X):
        _launch_product(
            tile or _tile_for(size, X.device), X, Y, None if C is None else c, out,
            (number, size, inner), (alpha, beta, diagonal), transpose,
        )  # fmt: skip
    return out


def _launch_product(
    tile: Tile,
    X: Tensor,
    Y: Tensor,
    C: Tensor | None,
    out: Tensor,
    sizes: tuple[int, int, int],
    numbers: tuple[float, float, float],
    is_turned: bool,
) -> None:
    number, size, inner = sizes
    c = out if C is None else C
    is_mixed = Y is not X
    rows, columns, depth = tile.rows, tile.rows if is_mixed else tile.columns, tile.depth
    side = max(rows, columns)
    tiles = -(-size // side)
    has_tma = tile.has_tma and all(map(_fits_tma, (X, Y, c, out)))
    operands: tuple[Any, ...] = (X, Y, c, out, out)
    if has_tma:
        operands = (
            _describe(X, (depth, rows) if is_turned else (rows, depth)),
            _describe(Y, (depth, columns) if is_turned else (columns, depth)),
            _describe(c, (rows, columns)),
            _describe(out, (rows, columns)),
            _describe(out, (columns, rows)),
        )
    x, y, old, new = X.stride(), Y.stride(), c.stride(), out.stride()
    if is_turned:
        x, y = (x[0], x[2], x[1]), (y[0], y[2], y[1])
    programs = tiles * (tiles + 1) // 2 * (side // rows) * (side // columns) * number
    is_whole = size % side == 0 and inner % depth == 0
    constants = (
        is_turned, C is not None, is_mixed, is_whole, has_tma,
        _TYPES[out.dtype], rows, columns, depth, _GROUP,
    )  # fmt: skip
    _launch(
        multiply_symmetric, programs, operands, (size, inner, tiles, *x, *y, *old[:2], *new[:2]),
        numbers, constants, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


@functools.cache
def _tile_for(size: int, device: torch.device) -> Tile:
    table = _TILES
    if device.type == "cuda" and torch.version.hip is None:
        capability = torch.cuda.get_device_capability(device)
        if capability == (9, 0):
            table = _TILES_OF_HOPPER
        elif capability != (8, 0) and capability < (9, 0):
            return _SMALLEST
    return next(tile for largest, tile in table if size <= largest)


def _fits_tma(tensor: Tensor) -> bool:
    matrix, row, column = tensor.stride()
    return column == 1 and tensor.data_ptr() % 16 == 0 and matrix % 8 == 0 and row % 8 == 0


def _describe(tensor: Tensor, block: tuple[int, int]) -> Any:
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, *block])


# ----------------------------------------------------------------------------------------------
# Polar factors
# ----------------------------------------------------------------------------------------------


@triton.jit
def _visible(metric):
    """What is divided by an infinite D is zero, and would look like a matrix that waits."""
    return tl.where(metric < float("inf"), metric, float("nan"))


@triton.jit(do_not_specialize=["first"])
def _scale_part(x, out, squares, first, numel, per_matrix, eps, size: tl.constexpr):
    matrix = (tl.program_id(0) // per_matrix).to(tl.int64)
    j = tl.program_id(0) % per_matrix * size + tl.arange(0, size)
    mask = j < numel
    norm = _visible(tl.maximum(tl.sqrt(tl.load(squares + first + matrix)), eps))
    scale = 1.0 / tl.where(norm == 0.0, 1.0, norm)  # NaN stays NaN
    value = tl.load(x + matrix * numel + j, mask).to(tl.float32) * scale
    tl.store(out + matrix * numel + j, value.to(out.dtype.element_ty), mask)


def normalize(X: Tensor, squares: Tensor, eps: float = _EPS, *, first: int = 0) -> Tensor:
    """Return each matrix of a batch over the root of its number in `squares`, at least eps, as
    float16 in the memory of X. The numbers of the batch begin at `first`."""
    out = X.view(torch.float16)
    numel = X.shape[1] * X.shape[2]
    per_matrix = -(-numel // _PART)
    with _device_of(X):
        numbers = (first, numel, per_matrix)
        _launch(
            _scale_part, len(X) * per_matrix, (X, out, squares), numbers, (float(eps),), (_PART,)
        )
    return out


def polar(
    X: Tensor,
    coefficients: Sequence[tuple[float, float, float]] = MUON,
    squares: Tensor | None = None,
) -> Tensor:
    """Return the polar factor of each matrix of a batch, about; see `polars`."""
    return polars([X], coefficients, squares)[0]


def polars(
    batches: Sequence[Tensor],
    coefficients: Sequence[tuple[float, float, float]] = MUON,
    squares: Tensor | None = None,
    floors: Sequence[float] | None = None,
) -> list[Tensor]:
    """Return the polar factors of the matrices in several batches, about, as float16.

    Each matrix is divided by its norm, or by the floor of its batch if that is larger. Then X <- a
    X + (b R + c R R) X with R = X X' for each triple (a, b, c). A batch has the shape (B, n, m),
    bfloat16 or float16 elements and no gaps. It is overwritten, and a result may have its memory.
    `squares` has the squared norms of all matrices; without it they are computed. Batches with
    equal shorter sides share launches.
    """
    for X in batches:
        if X.dim() != 3 or X.dtype not in (torch.bfloat16, torch.float16) or not X.is_contiguous():
            raise ValueError(
                f"a batch has shape {tuple(X.shape)}, strides {X.stride()} and dtype {X.dtype}: "
                "need (B, n, m) without gaps, of bfloat16 or float16"
            )
    results = []
    begin = 0
    for X, eps in zip(batches, floors or [_EPS] * len(batches), strict=True):
        if squares is None:
            norms = torch.linalg.vector_norm(X, dim=(1, 2), dtype=torch.float32)
            results.append(normalize(X, norms.square(), eps))
        else:
            results.append(normalize(X, squares, eps, first=begin))
        begin += len(X)
    groups: dict[tuple[int, bool], list[int]] = {}
    for i, X in enumerate(results):
        short, long = sorted(X.shape[1:])
        if X.numel():
            is_wide = short >= _LARGE and long >= _WIDE * short
            groups.setdefault((short, is_wide), []).append(i)
    for (_, is_wide), members in groups.items():
        turned = _iterate([results[i] for i in members], _segments(coefficients, is_wide))
        for i, X in zip(members, turned, strict=True):
            results[i] = X
    return results


def _segments(
    coefficients: Sequence[tuple[float, float, float]], is_wide: bool
) -> list[list[tuple[float, float, float]]]:
    """Cut the iterations into runs that share one R."""
    runs: list[list[tuple[float, float, float]]] = []
    growth = math.inf
    for triple in coefficients:
        if not is_wide or growth > _GROWTH:
            runs.append([])
            growth = 1.0
        runs[-1].append(triple)
        # A large b makes p depend much on R.
        growth *= max(triple[0], abs(triple[1]) / 1.5) ** 2
    return runs


def _iterate(
    batches: list[Tensor], runs: Sequence[Sequence[tuple[float, float, float]]]
) -> list[Tensor]:
    """Return the batches after all iterations; all have one shorter side."""
    size = min(batches[0].shape[1:])
    is_tall = [X.shape[1] > X.shape[2] for X in batches]
    ends = [sum(len(X) for X in batches[: i + 1]) for i in range(len(batches))]
    parts = [slice(end - len(X), end) for X, end in zip(batches, ends, strict=True)]
    others: list[Tensor | None] = [None] * len(batches)
    for run in runs:
        R = batches[0].new_empty(ends[-1], size, size)
        for X, part, turned in zip(batches, parts, is_tall, strict=True):
            symmetric_product(X, R[part], transpose=turned)
        Q = None
        for i, (a, b, c) in enumerate(run):
            P = symmetric_product(R, C=R, alpha=c, beta=b, diagonal=a)
            Q = P if Q is None else symmetric_product(Q, Y=P)
            if i + 1 < len(run):
                R = symmetric_product(symmetric_product(R, Y=P), R, Y=P)
        assert Q is not None
        for i, (X, part, turned) in enumerate(zip(batches, parts, is_tall, strict=True)):
            new = others[i] if others[i] is not None else torch.empty_like(X)
            factors = (X, Q[part]) if turned else (Q[part], X)
            others[i], batches[i] = X, torch.bmm(*factors, out=new)
    return batches


# ----------------------------------------------------------------------------------------------
# Lists of tensors
# ----------------------------------------------------------------------------------------------

# Addresses that captured graphs read. They stay forever: there is no way to learn when a graph
# ends. A graph takes them from the rest of `_spare`, which is allocated before the capture.
_captured: list[Tensor] = []
_spare = torch.empty(0, dtype=torch.int64)


def _send(addresses: list[int], device: torch.device) -> Tensor:
    """Return addresses on the GPU. They are sent at each call: a tensor may move at any time."""
    global _spare  # noqa: PLW0603
    numbers = torch.tensor(addresses, dtype=torch.int64)
    if device.type == "cpu":
        return numbers
    if torch.cuda.is_current_stream_capturing():
        if len(_spare) < len(numbers):
            raise RuntimeError(
                "the fused step cannot begin inside a CUDA graph: take at least one step with "
                "these settings before the capture"
            )
        on_host, _spare = _spare[: len(numbers)], _spare[len(numbers) :]
        _captured.append(on_host.copy_(numbers))
        return on_host.to(device, non_blocking=True)
    if len(_spare) < 16 * len(numbers):
        _spare = torch.empty(max(4096, 64 * len(numbers)), dtype=torch.int64).pin_memory()
    return numbers.pin_memory().to(device, non_blocking=True)


def _addresses(tensors: Sequence[Tensor], numels: Sequence[int], name: str) -> list[int]:
    """Return the addresses of tensors without gaps and with these numbers of elements."""
    if len(tensors) != len(numels):
        raise ValueError(f"{len(tensors)} {name} for {len(numels)} matrices: need one for each")
    dtype, device = tensors[0].dtype, tensors[0].device
    for tensor, numel in zip(tensors, numels, strict=True):
        is_equal = tensor.dtype == dtype and tensor.device == device
        if not is_equal or tensor.numel() != numel or not tensor.is_contiguous():
            raise ValueError(
                f"one of {name} has shape {tuple(tensor.shape)}, strides {tensor.stride()}, dtype "
                f"{tensor.dtype}, on {tensor.device}: need {numel} elements without gaps, of "
                f"{dtype}, on {device}"
            )
    return [tensor.data_ptr() for tensor in tensors]


@triton.jit
def _mix(start, end, weight, rest, is_small: tl.constexpr):
    """As torch.lerp does; `rest` is 1 - weight."""
    if is_small:
        return tl.fma(end - start, weight, start)
    else:
        return tl.fma(start - end, rest, end)


@triton.jit(do_not_specialize=["first", "number"])
def _source_part(
    addresses, out, sums, first, number, numel, per_matrix, mu, rest,
    grad_type: tl.constexpr, has_momentum: tl.constexpr, is_small: tl.constexpr,
    is_rest_small: tl.constexpr, is_aligned: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    """Advance `size` elements of a momentum, and write the source and the sum of its squares."""
    matrix = (tl.program_id(0) // per_matrix).to(tl.int64)
    j = tl.program_id(0) % per_matrix * size + tl.arange(0, size)
    mask = j < numel
    grad = tl.load(addresses + first + matrix).to(tl.pointer_type(grad_type))
    if is_aligned:
        grad = tl.multiple_of(grad, 16)
    g = tl.load(grad + j, mask, other=0.0).to(tl.float32)
    source = g
    if has_momentum:
        average = tl.load(addresses + number + first + matrix).to(tl.pointer_type(tl.float32))
        if is_aligned:
            average = tl.multiple_of(average, 16)
        m = _mix(tl.load(average + j, mask, other=0.0), g, rest, mu, is_rest_small)
        tl.store(average + j, m, mask)
        source = _mix(g, m, mu, rest, is_small)
    rounded = source.to(out.dtype.element_ty)
    tl.store(out + matrix * numel + j, rounded, mask)
    wide = rounded.to(tl.float32)
    tl.store(sums + tl.program_id(0), tl.sum(wide * wide, 0))


def sources(
    grads: Sequence[Tensor],
    momenta: Sequence[Tensor] | None,
    mu: float,
    outs: Tensor | Sequence[Tensor],
) -> Tensor:
    """Advance momenta, write what is to be orthogonalized, and return its squared norms.

        m <- lerp(m, g, 1 - mu),   out <- lerp(g, m, mu)         without momenta: out <- g

    `outs` is a batch (B, n, m) of bfloat16, or several, whose matrices take the gradients in
    order. Gradients have one dtype, momenta are float32. The result does not depend on scheduling.
    """
    batches = [outs] if isinstance(outs, Tensor) else outs
    numels = [X.shape[1] * X.shape[2] for X in batches for _ in range(len(X))]
    squares = torch.empty(len(numels), device=batches[0].device)
    if not numels:
        return squares
    table = _addresses(grads, numels, "grads")
    if momenta is not None:
        table += _addresses(momenta, numels, "momenta")
        if momenta[0].dtype != torch.float32:
            raise ValueError(f"momenta have dtype {momenta[0].dtype}: need float32")
    is_aligned = all(address % 16 == 0 for address in table)
    with _device_of(batches[0]):
        addresses = _send(table, batches[0].device)
        begin = 0
        for X in batches:
            end = begin + len(X)
            numel = X.shape[1] * X.shape[2]
            per_matrix = -(-numel // _PART)
            sums = torch.empty(len(X), per_matrix, device=X.device)
            constants = (
                _TYPES[grads[0].dtype], momenta is not None, mu < 0.5, 1.0 - mu < 0.5,
                is_aligned, _PART,
            )  # fmt: skip
            _launch(
                _source_part, len(X) * per_matrix, (addresses, X, sums),
                (begin, len(numels), numel, per_matrix), (float(mu), 1.0 - mu), constants,
                enable_fp_fusion=False,
            )  # fmt: skip
            torch.sum(sums, 1, out=squares[begin:end])
            begin = end
    return squares


# ----------------------------------------------------------------------------------------------
# A number per row
# ----------------------------------------------------------------------------------------------


@triton.jit
def _mean_squares(x, means, number, width, rows: tl.constexpr, columns: tl.constexpr):
    """Mean of the squares of each row."""
    i = tl.program_id(0) * rows + tl.arange(0, rows)
    j = tl.arange(0, columns)
    x += i.to(tl.int64)[:, None] * width + j[None, :]
    total = tl.zeros((rows, columns), tl.float32)
    for begin in range(0, width, columns):
        mask = (i < number)[:, None] & (begin + j < width)[None, :]
        value = tl.load(x + begin, mask, other=0.0).to(tl.float32)
        total += value * value
    tl.store(means + i, tl.sum(total, 1) / width, i < number)


@triton.jit
def _advance(averages, means, mask, decay, weight):
    """Return the new averages of rows, their inverse roots, and the mean squares."""
    r = tl.load(means, mask, other=0.0)
    v = decay * tl.load(averages, mask, other=0.0) + weight * r
    # A row without a gradient so far has the average 0, and stays 0.
    return v, 1.0 / tl.sqrt(tl.where(v == 0.0, 1.0, _visible(v))), r


@triton.jit
def _row_factors(means, averages, height, decay, weight, factor, size: tl.constexpr):
    """Turn the mean squares of a matrix into the multipliers of its rows; advance the averages."""
    means += tl.program_id(0).to(tl.int64) * height
    averages += tl.program_id(0).to(tl.int64) * height
    i = tl.arange(0, size)
    before = tl.zeros((size,), tl.float32)
    after = tl.zeros((size,), tl.float32)
    for begin in range(0, height, size):
        mask = begin + i < height
        _, w, r = _advance(averages + begin + i, means + begin + i, mask, decay, weight)
        before += r
        after += r * w * w
    norm = tl.sum(after, 0)
    scale = factor * tl.sqrt(tl.sum(before, 0) / tl.where(norm == 0.0, 1.0, norm))
    for begin in range(0, height, size):
        mask = begin + i < height
        v, w, _ = _advance(averages + begin + i, means + begin + i, mask, decay, weight)
        tl.store(means + begin + i, w * scale, mask)
        tl.store(averages + begin + i, v, mask)


@triton.jit
def _scale_row_part(
    x, multipliers, number, width, across, rows: tl.constexpr, columns: tl.constexpr
):
    i = tl.program_id(0) // across * rows + tl.arange(0, rows)
    j = tl.program_id(0) % across * columns + tl.arange(0, columns)
    place = i.to(tl.int64)[:, None] * width + j[None, :]
    mask = (i < number)[:, None] & (j < width)[None, :]
    scale = tl.load(multipliers + i, i < number, other=0.0)
    value = tl.load(x + place, mask, other=0.0).to(tl.float32) * scale[:, None]
    if x.dtype.element_ty == tl.float16:
        value = tl.clamp(value, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(x + place, value.to(x.dtype.element_ty), mask)


def row_scales(X: Tensor, v: Tensor, decay: float | None, factor: float) -> Tensor:
    """Return the numbers (B, n) that multiply the rows of a batch (B, n, m), and advance v.

        r = mean of X^2 over a row,     v <- decay v + (1 - decay) r,  without a decay v + r
        multiplier = factor v^(-1/2) sqrt(sum r / sum r / v), sums over the rows of a matrix

    So the norm of a matrix is `factor` times what it was. `v` (B, n) is float32.
    """
    number, height, width = X.shape
    if v.shape != (number, height) or v.dtype != torch.float32 or not v.is_contiguous():
        raise ValueError(
            f"v has shape {tuple(v.shape)} of {v.dtype}: need {(number, height)} without gaps, of "
            "float32"
        )
    if not X.is_contiguous():
        raise ValueError(f"X has strides {X.stride()}: need a batch without gaps")
    means = torch.empty_like(v)
    kept, weight = (1.0, 1.0) if decay is None else (float(decay), 1.0 - decay)
    if X.numel():
        with _device_of(X):
            programs, block = -(-number * height // _ROWS), (_ROWS, _COLUMNS)
            _launch(_mean_squares, programs, (X, means), (number * height, width), (), block)
            numbers = (kept, weight, float(factor))
            _launch(_row_factors, number, (means, v), (height,), numbers, (_PART,))
    return means


def scale_rows(X: Tensor, v: Tensor, decay: float | None, factor: float) -> None:
    """Multiply the rows of X by `row_scales`. Numbers that float16 cannot hold become its
    largest."""
    multipliers = row_scales(X, v, decay, factor)
    if not X.numel():
        return
    number, height, width = X.shape
    across = -(-width // _COLUMNS)
    programs = -(-number * height // _ROWS) * across
    with _device_of(X):
        sizes = (number * height, width, across)
        _launch(_scale_row_part, programs, (X, multipliers), sizes, (), (_ROWS, _COLUMNS))


def _device_of(tensor: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Kernels are launched on the current device."""
    if IS_INTERPRETED or tensor.device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(tensor.device)
