"""The noise contract: known answers, one function on every backend, and the laws it must obey.

Statistical tests use a fixed seed and reject at 5 standard errors, a false-alarm rate of 6e-7 each,
had the seed been random.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers import KNOWN_ANSWERS
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from asgld import noise
from asgld.noise import Draw, Layout, Purpose


def _hex(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "of_ten", "of_seven"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(counter: str, key: str, of_ten: str, of_seven: str) -> None:
    k0, k1 = _hex(key)
    assert [int(w) for w in noise.philox(_hex(counter), (k0, k1))] == _hex(of_ten)
    assert [int(w) for w in noise.philox(_hex(counter), (k0, k1), 7)] == _hex(of_seven)


@pytest.mark.parametrize(("counter", "key", "answer", "_"), KNOWN_ANSWERS)
def test_torch_philox_gives_the_known_answers(counter: str, key: str, answer: str, _: str) -> None:
    c, (k0, k1) = _hex(counter), _hex(key)
    # The block number is signed and its top three bits hold the purpose: take them apart again.
    purpose, block = c[1] >> 29, c[0] | (c[1] & 0x1FFFFFFF) << 32
    by_kind = {np.uint64: noise._philox_of_blocks, torch.int64: noise._philox_on_device}
    for dtype, philox in by_kind.items():
        kind = torch.tensor if dtype == torch.int64 else np.array
        words = philox(kind([block], dtype=dtype), c[2], c[3], k0 | k1 << 32, purpose)
        assert [int(w[0]) for w in words] == _hex(answer)


@given(
    seed=st.integers(0, 2**64 - 1),
    stream=st.integers(0, 2**32 - 1),
    step=st.integers(0, 2**32 - 1),
    offset=st.integers(0, 2**60),
    count=st.integers(0, 40),
    purpose=st.sampled_from(Purpose),
)
@settings(max_examples=100, deadline=None)
def test_numpy_words_equal_torch_words(
    seed: int, stream: int, step: int, offset: int, count: int, purpose: Purpose
) -> None:
    draw = Draw(stream, step, Layout((count,), (1,), offset))
    index = np.arange(offset, offset + count, dtype=np.uint64)
    expected = noise.words(seed, stream, step, index, purpose)
    assert (noise.torch_words(seed, draw, purpose).numpy() == expected).all()


@given(seed=st.integers(0, 2**64 - 1), step=st.integers(0, 2**32 - 1), first=st.integers(0, 2**60))
@settings(max_examples=50, deadline=None)
def test_torch_operations_give_the_same_words(seed: int, step: int, first: int) -> None:
    block = torch.arange(first, first + 5)
    stream = torch.arange(2**32 - 5, 2**32)
    for counters in ((step, 7), (torch.tensor(step), stream)):
        drawn = noise._drawn(block, *counters, seed, Purpose.BATCH, torch.int64).view(-1, 4)
        device = noise._philox_on_device(block, *counters, seed, Purpose.BATCH)
        assert all(torch.equal(a, b) for a, b in zip(drawn.T, device, strict=True))


def test_step_on_the_device_gives_the_same_words() -> None:
    number = noise.torch_words(1, Draw(2, 3, Layout.whole(50)))
    tensor = noise.torch_words(1, Draw(2, torch.tensor(3), Layout.whole(50)))
    assert torch.equal(number, tensor)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-15), (torch.float32, 6e-7)])
def test_normals_agree_with_numpy_to_a_few_ulp(dtype: torch.dtype, tolerance: float) -> None:
    z = noise.torch_normals(5, [Draw(7, 11, Layout.whole(100_000))], dtype)[0].numpy()
    expected = noise.normal(5, 7, 11, np.arange(100_000), z.dtype)
    assert np.abs(z - expected).max() <= tolerance * np.abs(expected).max()


def test_purposes_never_share_counters() -> None:
    index = np.arange(4096)
    drawn = [noise.words(3, 5, 8, index, purpose) for purpose in Purpose]
    for i, first in enumerate(drawn):
        for second in drawn[i + 1 :]:
            # 4096 equal pairs of 32-bit words are expected 1e-6 times.
            assert not (first == second).any()


# ----------------------------------------------------------------------------------------------
# Invariance
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 3, 4, 1000, 70_001, 200_003])
def test_noise_is_invariant_to_chunking(dtype: torch.dtype, size: int) -> None:
    whole = noise.torch_normals(1, [Draw(2, 3, Layout.whole(size))], dtype)[0]
    for cut in {min(c, size) for c in (1, 2, 3, size // 3, size - 1)}:
        parts = [
            noise.torch_normals(1, [Draw(2, 3, Layout((n,), (1,), start))], dtype)[0]
            for start, n in ((0, cut), (cut, size - cut))
        ]
        assert torch.equal(torch.cat(parts), whole)


def test_noise_is_invariant_to_grouping_and_order() -> None:
    sizes = [1, 7, 1024, 0, 70_000, 3, 65_536, 12]
    draws = [Draw(i, 5, Layout.whole(n)) for i, n in enumerate(sizes)]
    alone = [noise.torch_normals(1, [d], torch.float32)[0] for d in draws]
    together = noise.torch_normals(1, draws, torch.float32)
    backwards = noise.torch_normals(1, draws[::-1], torch.float32)[::-1]
    for a, b, c in zip(alone, together, backwards, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_noise_is_invariant_to_sharding(shape: list[int], data: st.DataObject) -> None:
    """Any block of a tensor, cut in any dimensions, gets the noise of its place in the whole."""
    begin = [data.draw(st.integers(0, n - 1)) for n in shape]
    end = [data.draw(st.integers(b, n)) for b, n in zip(begin, shape, strict=True)]
    local = [e - b for b, e in zip(begin, end, strict=True)]
    whole = noise.torch_normals(1, [Draw(2, 3, Layout.whole(math.prod(shape)))], torch.float32)[0]
    block = whole.view(shape)[tuple(slice(b, e) for b, e in zip(begin, end, strict=True))]
    layout = Layout.of_block(local, shape, begin)
    assert layout.numel == math.prod(local)
    drawn = noise.torch_normals(1, [Draw(2, 3, layout)], torch.float32)[0]
    assert torch.equal(drawn.view(local), block)
    if layout.rows is not None:
        offset, length, stride = layout.rows
        j = torch.arange(layout.numel)
        assert torch.equal(offset + j // length * stride + j % length, layout.indices())


def test_noise_is_invariant_to_the_number_of_threads() -> None:
    draws = [Draw(0, 1, Layout.whole(300_000))]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = noise.torch_normals(1, draws, torch.float32)[0]
        torch.set_num_threads(3)
        three = noise.torch_normals(1, draws, torch.float32)[0]
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, three)


# ----------------------------------------------------------------------------------------------
# The law of the noise
# ----------------------------------------------------------------------------------------------

N = 1_000_000


def _sample(stream: int = 0, step: int = 0, seed: int = 17) -> torch.Tensor:
    draw = Draw(stream, step, Layout.whole(N))
    return noise.torch_normals(seed, [draw], torch.float32)[0].double()


def test_normals_have_the_right_moments() -> None:
    z = _sample()
    # Moments 1 to 6 of N(0,1) and the variances of their estimates at sample size N.
    for order, moment in enumerate([0, 1, 0, 3, 0, 15], start=1):
        spread = {1: 1, 2: 2, 3: 15, 4: 96, 5: 945, 6: 10170}[order]
        assert abs((z**order).mean() - moment) < 5 * math.sqrt(spread / N)


def test_normals_have_the_right_tails() -> None:
    z = _sample().abs()
    for threshold in (1.0, 2.0, 3.0, 4.0):
        p = math.erfc(threshold / math.sqrt(2))
        assert abs((z > threshold).double().mean() - p) < 5 * math.sqrt(p * (1 - p) / N)


def test_normals_reach_far_and_stay_finite() -> None:
    """The smallest uniform is 2^-32, whose radius is 6.66; torch's own CPU normals end at 5.77."""
    for word, radius in ((0, math.sqrt(64 * math.log(2))), (2**32 - 1, 0.0)):
        z, _ = noise._box_muller(torch.tensor([word]), torch.tensor([0]), torch.float32)
        assert math.isclose(float(z), radius, rel_tol=1e-6)


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 5, 64, 1000])
def test_neighbors_are_uncorrelated(lag: int) -> None:
    z = _sample()
    assert abs((z[lag:] * z[:-lag]).mean()) < 5 / math.sqrt(N - lag)
    square = z**2 - 1
    assert abs((square[lag:] * square[:-lag]).mean()) < 5 * 2 / math.sqrt(N - lag)


@pytest.mark.parametrize(
    "other", [{"stream": 1}, {"step": 1}, {"seed": 18}, {"seed": 17 + 2**32}, {"stream": 2**31}]
)
def test_streams_steps_and_seeds_are_uncorrelated(other: dict[str, int]) -> None:
    assert abs((_sample() * _sample(**other)).mean()) < 5 / math.sqrt(N)


def test_words_are_uniform() -> None:
    word = noise.torch_words(4, Draw(0, 0, Layout.whole(N)))
    for bit in range(32):
        share = ((word >> bit) & 1).double().mean()
        assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(N)


# ----------------------------------------------------------------------------------------------
# Streams, layouts, rounding
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrapped",
    [
        "module.layers.0.weight",
        "_orig_mod.layers.0.weight",
        "module._orig_mod.layers.0.weight",
        "layers._fsdp_wrapped_module.0.weight",
        "layers.0._checkpoint_wrapped_module.weight",
    ],
)
def test_stream_ignores_wrappers(wrapped: str) -> None:
    assert noise.stream_of_name(wrapped) == noise.stream_of_name("layers.0.weight")


def test_stream_keeps_names_that_only_look_like_wrappers() -> None:
    assert noise.canonical_name("submodule.weight") == "submodule.weight"
    assert noise.canonical_name("my_module.weight") == "my_module.weight"


def test_stream_is_the_same_in_every_release() -> None:
    assert noise.stream_of_name("weight") == 447295584


def test_streams_that_collide_are_told_apart_in_any_order() -> None:
    seen: dict[int, str] = {}
    for i in range(400_000):
        name = f"layer{i}"
        stream = noise.stream_of_name(name)
        if stream in seen:
            break
        seen[stream] = name
    pair = [seen[stream], name]
    forward = noise.streams_of_names(pair)
    backward = noise.streams_of_names(pair[::-1])[::-1]
    assert forward == backward
    assert len(set(forward)) == 2


def test_layout_refuses_a_block_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"offsets=\(7, 0\): a block of \(4, 3\)"):
        Layout.of_block((4, 3), (8, 3), (7, 0))
    with pytest.raises(ValueError, match="same number of dimensions"):
        Layout.of_block((4,), (8, 3), (0, 0))


# ----------------------------------------------------------------------------------------------
# Sharded parameters
# ----------------------------------------------------------------------------------------------


@pytest.fixture
def many_ranks() -> Iterator[None]:
    """A stand-in process group, for meshes of which this process is any rank."""
    dist.init_process_group("fake", rank=0, world_size=16, store=FakeStore())
    yield
    dist.destroy_process_group()


def _shard(
    shape: tuple[int, ...],
    local_shape: tuple[int, ...],
    mesh_shape: tuple[int, int],
    rank: int,
    placements: tuple[Any, ...],
) -> DTensor:
    """Return a matrix as one rank of a mesh holds it, without its values."""
    ranks = torch.arange(math.prod(mesh_shape)).view(mesh_shape)
    return DTensor.from_local(
        torch.empty(local_shape, device="meta"),
        DeviceMesh("cpu", ranks, _init_backend=False, _rank=rank),
        placements,
        run_check=False,
        shape=torch.Size(shape),
        stride=(shape[1], 1),
    )


def _chunk(rows: list[int], count: int) -> list[list[int]]:
    """Split as torch does: the last chunks may be short, or missing."""
    chunks = [chunk.tolist() for chunk in torch.tensor(rows).chunk(count)] if rows else []
    return chunks + [[]] * (count - len(chunks))


@pytest.mark.usefixtures("many_ranks")
@pytest.mark.parametrize("size", [1, 4, 5, 7, 8, 11, 13, 16, 17, 23, 32])
@pytest.mark.parametrize("mesh_shape", [(2, 2), (3, 2), (2, 3), (5, 3), (4, 4)], ids=str)
def test_layout_of_rows_split_twice_is_what_fsdp_holds(
    mesh_shape: tuple[int, int], size: int
) -> None:
    """`fully_shard` chunks what tensor parallelism has chunked before."""
    data, tensor = mesh_shape
    placements = (_StridedShard(0, split_factor=tensor), Shard(0))
    for t, part in enumerate(_chunk(list(range(size)), tensor)):
        for d, rows in enumerate(_chunk(part, data)):
            shard = _shard((size, 3), (len(rows), 3), mesh_shape, d * tensor + t, placements)
            expected = [3 * row + column for row in rows for column in range(3)]
            assert noise.layout_of(shard).indices().tolist() == expected


@pytest.mark.usefixtures("many_ranks")
@pytest.mark.parametrize("shape", [(5, 3), (8, 8), (1, 7), (13, 2)], ids=str)
@pytest.mark.parametrize(
    "placements",
    [
        (Shard(0), Shard(0)),
        (Shard(0), Shard(1)),
        (Shard(1), Shard(0)),
        (Shard(1), Shard(1)),
        (Replicate(), Shard(0)),
        (Shard(1), Replicate()),
    ],
    ids=str,
)
def test_layout_of_plain_shards_is_what_torch_says(
    placements: tuple[Any, Any], shape: tuple[int, int]
) -> None:
    for rank in range(6):
        mesh = DeviceMesh("cpu", torch.arange(6).view(3, 2), _init_backend=False, _rank=rank)
        local_shape, offsets = compute_local_shape_and_global_offset(shape, mesh, placements)
        layout = noise.layout_of(_shard(shape, local_shape, (3, 2), rank, placements))
        assert layout.numel == math.prod(local_shape)
        if layout.numel:
            assert layout == Layout.of_block(local_shape, shape, offsets)


@pytest.mark.parametrize(
    ("seed", "error"), [(-1, ValueError), (2**64, ValueError), (0.5, TypeError)]
)
def test_seed_outside_the_key_is_refused(seed: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="seed="):
        noise.check_seed(seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [1.0 + 2**-12 * 0.3, -3.1415926, 1e-3, 12345.678])
def test_stochastic_rounding_is_unbiased(dtype: torch.dtype, value: float) -> None:
    word = noise.torch_words(3, Draw(0, 0, Layout.whole(200_000)), Purpose.ROUND)
    exact = torch.full((200_000,), value)
    rounded = noise.round_stochastically(exact, word, dtype).double()
    assert set(rounded.unique().tolist()) <= {
        float(torch.nextafter(torch.tensor(value, dtype=dtype), torch.tensor(t, dtype=dtype)))
        for t in (-math.inf, value, math.inf)
    }
    error = rounded.mean() - float(exact[0])
    assert abs(error) <= 5 * rounded.std() / math.sqrt(200_000)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_stochastic_rounding_keeps_exact_and_non_finite_values(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, 1.0, -2.5, math.inf, -math.inf, math.nan, 1e-8])
    word = torch.full((7,), 2**32 - 1)
    rounded = noise.round_stochastically(values, word, dtype)
    assert torch.equal(rounded[:5].float(), values[:5])
    assert rounded[5].isnan()
    assert rounded[6].isfinite()
