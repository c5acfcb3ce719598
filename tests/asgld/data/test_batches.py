"""Growing batches: their sizes, their law, their parts, and means that are exact.

Statistical tests use a fixed seed and reject at 5 standard errors, a false-alarm rate of 6e-7 each,
had the seed been random.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from helpers import make_model, make_tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, TensorDataset

import asgld
from asgld import GrowingBatchSampler, accumulate, full_gradient
from asgld.data.batches import part

# ----------------------------------------------------------------------------------------------
# Sizes
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("initial", "slope", "power"),
    [
        ("1", "1", "1"),
        ("1", "1", "2"),
        ("1", "1", "1/2"),
        ("5/2", "3/8", "2/3"),
        ("1", "1", "4/5"),
        ("16", "0", "1"),
        ("16", "1/4", "0"),
    ],
)
def test_sizes_are_exact_in_a_million_steps(initial: str, slope: str, power: str) -> None:
    """B = ceil(a + b k^(p/q)) says B is the least integer with (B - a)^q >= b^q k^p."""
    exponent, a, b = Fraction(power), Fraction(initial), Fraction(slope)
    sampler = GrowingBatchSampler(2**32 - 1, float(a), float(b), float(exponent))
    # Every step at first, then some; among them m^2, m^3 and m^5, whose powers are whole numbers.
    roots = [m**q for q in (2, 3, 5) for m in range(1, 1000) if m**q < 10**6]
    steps = np.unique([*range(20_000), *range(0, 10**6, 101), *range(10**6 - 5, 10**6), *roots])
    sizes = np.array([sampler.batch_size(int(k)) for k in steps])
    p, q = exponent.numerator, exponent.denominator
    scale = math.lcm(a.denominator, b.denominator)  # makes integers of a and b
    growth = (int(b * scale) ** q) * steps.astype(object) ** p

    def grown(size: Any) -> Any:
        return (size.astype(object) * scale - int(a * scale)) ** q

    is_capped = sizes == sampler.num_samples
    assert (grown(sizes) >= growth)[~is_capped].all()
    # One less would be too little; where nothing has grown yet, it falls below a itself.
    assert ((grown(sizes - 1) < growth) | (sizes - 1 < a))[~is_capped].all()
    assert (growth >= grown(sizes - 1))[is_capped].all()
    assert is_capped.any() == (power == "2")


def test_size_is_capped_at_the_data() -> None:
    sampler = GrowingBatchSampler(10, 1, 1.0)
    assert [sampler.batch_size(k) for k in (0, 8, 9, 10, 2**32 - 1)] == [1, 9, 10, 10, 10]
    assert sorted(sampler.indices(50)) == list(range(10))
    assert GrowingBatchSampler(10, 1, 1e300, 8.0).batch_size(5) == 10


# ----------------------------------------------------------------------------------------------
# Indices
# ----------------------------------------------------------------------------------------------


@given(
    num_samples=st.integers(8, 3000),
    initial=st.floats(8, 20),
    slope=st.floats(0, 5),
    power=st.floats(0, 2),
    replacement=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
    step=st.integers(0, 2**32 - 1),
    world_size=st.integers(1, 8),
)
@settings(max_examples=200, deadline=None)
def test_ranks_partition_every_batch(
    num_samples: int,
    initial: float,
    slope: float,
    power: float,
    replacement: bool,
    seed: int,
    step: int,
    world_size: int,
) -> None:
    def make(rank: int, world_size: int) -> GrowingBatchSampler:
        return GrowingBatchSampler(
            num_samples, initial, slope, power,
            replacement=replacement, seed=seed, rank=rank, world_size=world_size,
        )  # fmt: skip

    whole = make(0, 1)
    batch = whole.indices(step)
    assert len(batch) == whole.batch_size(step)
    assert all(0 <= index < num_samples for index in batch)
    assert replacement or len(set(batch)) == len(batch)
    parts = [make(rank, world_size).indices(step) for rank in range(world_size)]
    assert [index for one in parts for index in one] == batch
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(count=st.integers(0, 10**12), world_size=st.integers(1, 4096))
@settings(max_examples=50, deadline=None)
def test_parts_are_disjoint_and_cover(count: int, world_size: int) -> None:
    parts = [part(count, rank, world_size) for rank in range(world_size)]
    assert parts[0].start == 0
    assert parts[-1].stop == count
    assert all(a.stop == b.start for a, b in itertools.pairwise(parts))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_batches_differ_by_step_and_by_seed() -> None:
    first, second = (GrowingBatchSampler(10**6, 50, 0.0, seed=seed) for seed in (0, 1))
    batches = [tuple(s.indices(k)) for s in (first, second) for k in range(20)]
    assert len(set(batches)) == 40
    assert first.indices(7) == first.indices(7)


@pytest.mark.parametrize("replacement", [False, True])
def test_every_index_is_drawn_equally_often(replacement: bool) -> None:
    """Null: 3,000 batches of 5 of 16; a count is binomial, or nearly, with p = 5/16 per batch."""
    sampler = GrowingBatchSampler(16, 5, 0.0, seed=3, replacement=replacement)
    batches = np.array([sampler.indices(k) for k in range(3000)])
    counts = np.bincount(batches.ravel(), minlength=16)
    probability = 5 / 16
    per_batch = 5 * (1 / 16) * (15 / 16) if replacement else probability * (1 - probability)
    assert (np.abs(counts - 3000 * probability) < 5 * math.sqrt(3000 * per_batch)).all()
    # The place in the batch, which decides the rank, does not matter either.
    first = np.bincount(batches[:, 0], minlength=16)
    assert (np.abs(first - 3000 / 16) < 5 * math.sqrt(3000 * 15 / 256)).all()


@pytest.mark.parametrize("size", [2, 3])
def test_every_subset_is_drawn_equally_often(size: int) -> None:
    """Null: the 10 subsets of 2 (drawn) or of 3 (by what stays out) of 5 are equally likely."""
    sampler = GrowingBatchSampler(5, size, 0.0, seed=9)
    found: dict[tuple[int, ...], int] = {}
    for k in range(3000):
        subset = tuple(sorted(sampler.indices(k)))
        found[subset] = found.get(subset, 0) + 1
    assert len(found) == 10
    assert all(abs(n - 300) < 5 * math.sqrt(3000 * 0.1 * 0.9) for n in found.values())


def test_batches_share_no_words_with_the_update_noise() -> None:
    """The same seed serves both: the purposes have different counters."""
    draws = GrowingBatchSampler(2**31, 1000, 0.0, seed=5, replacement=True).indices(0)
    words = asgld.noise.words(5, 0, 0, np.arange(2000))[::2] >> 1
    assert not set(draws) & {int(w) for w in words}


# ----------------------------------------------------------------------------------------------
# As a batch sampler, and after a resume
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loader_gives_the_batches_in_order(num_workers: int) -> None:
    sampler = GrowingBatchSampler(100, 3, 2.0, seed=1, num_steps=6)
    loader = DataLoader(
        TensorDataset(torch.arange(100)), batch_sampler=sampler, num_workers=num_workers
    )
    assert len(loader) == 6
    seen = [batch[0].tolist() for batch in loader]
    assert seen == [sampler.indices(k) for k in range(6)]


def test_resume_is_exact_though_the_loader_reads_ahead() -> None:
    def loader_of(sampler: GrowingBatchSampler) -> Any:
        data = TensorDataset(torch.arange(100))
        return DataLoader(data, batch_sampler=sampler, num_workers=2, prefetch_factor=4)

    sampler = GrowingBatchSampler(100, 3, 1.5, 0.7, seed=2, num_steps=12)
    whole = [batch[0].tolist() for batch in loader_of(sampler)]
    begun = []
    for batch in loader_of(sampler):
        begun.append(batch[0].tolist())
        sampler.step += 1
        if sampler.step == 5:
            break
    resumed = GrowingBatchSampler(100, 3, 1.5, 0.7, seed=2, num_steps=12)
    resumed.load_state_dict(sampler.state_dict())
    assert len(resumed) == 7
    assert begun + [batch[0].tolist() for batch in loader_of(resumed)] == whole


def test_resume_on_other_ranks_sees_the_same_batches() -> None:
    saved = GrowingBatchSampler(100, 8, 1.0, rank=2, world_size=4)
    saved.step = 30
    parts = []
    for rank in range(2):
        sampler = GrowingBatchSampler(100, 8, 1.0, rank=rank, world_size=2)
        sampler.load_state_dict(saved.state_dict())
        parts.append(next(iter(sampler)))
    assert parts[0] + parts[1] == GrowingBatchSampler(100, 8, 1.0).indices(30)


def test_state_of_other_batches_is_refused() -> None:
    state = GrowingBatchSampler(100, 8, seed=1).state_dict()
    with pytest.raises(ValueError, match="seed=2, but the saved sampler had 1"):
        GrowingBatchSampler(100, 8, seed=2).load_state_dict(state)


def test_state_that_is_not_whole_is_refused_by_name() -> None:
    sampler = GrowingBatchSampler(100, 8)
    with pytest.raises(ValueError, match=r"no num_samples, initial, .*seed: .*attribute `step`"):
        sampler.load_state_dict({"step": 2})
    with pytest.raises(ValueError, match="no step: "):
        sampler.load_state_dict({k: v for k, v in sampler.state_dict().items() if k != "step"})
    assert sampler.step == 0


def test_endless_sampler_has_no_length() -> None:
    with pytest.raises(TypeError, match="num_steps"):
        len(GrowingBatchSampler(10))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "num_samples=0"),
        ({"num_samples": 2**32}, "num_samples=4294967296"),
        ({"initial": 0.5}, "initial=0.5"),
        ({"initial": math.nan}, "initial=nan"),
        ({"slope": -1.0}, "slope=-1.0"),
        ({"power": 9.0}, "power=9.0"),
        ({"rank": 2, "world_size": 2}, "rank=2"),
        ({"initial": 3, "world_size": 4}, "at least one per rank"),
        ({"num_steps": -1}, "num_steps=-1"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GrowingBatchSampler(**{"num_samples": 10, **options})


def test_step_past_the_counter_is_refused() -> None:
    with pytest.raises(ValueError, match="step=4294967296"):
        GrowingBatchSampler(10).indices(2**32)


# ----------------------------------------------------------------------------------------------
# Means
# ----------------------------------------------------------------------------------------------

INPUTS, TARGETS = (make_tensor(23, n, seed=n, dtype=torch.float64) for n in (5, 1))
# Sums of 23 terms in another order: a few units in the last place of the largest term.
CLOSE = {"rtol": 0.0, "atol": 23 * 2.0**-52}


def _mean_loss(model: torch.nn.Module, batch: Any) -> Tensor:
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def _gradient(model: torch.nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def _one_shot() -> tuple[Tensor, Tensor]:
    model = make_model().double()
    loss = _mean_loss(model, (INPUTS, TARGETS))
    loss.backward()
    return loss.detach(), _gradient(model)


@pytest.mark.parametrize("micro_batch_size", [1, 2, 5, 8, 22, 23, 100])
def test_accumulated_gradient_is_that_of_the_whole_batch(micro_batch_size: int) -> None:
    model = make_model().double()
    loss = accumulate(lambda b: _mean_loss(model, b), (INPUTS, TARGETS), micro_batch_size)
    expected_loss, expected = _one_shot()
    torch.testing.assert_close(loss, expected_loss, **CLOSE)
    torch.testing.assert_close(_gradient(model), expected, **CLOSE)


@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_average_over_uneven_ranks_is_the_gradient_of_the_batch(world_size: int) -> None:
    terms, gradients = [], []
    for rank in range(world_size):
        mine = part(23, rank, world_size)
        model = make_model().double()
        batch = (INPUTS[mine.start : mine.stop], TARGETS[mine.start : mine.stop])
        weights = {"batch_size": 23, "world_size": world_size}
        terms.append(accumulate(lambda b, m=model: _mean_loss(m, b), batch, 3, **weights))
        gradients.append(_gradient(model))
    expected_loss, expected = _one_shot()
    torch.testing.assert_close(torch.stack(terms).mean(), expected_loss, **CLOSE)
    torch.testing.assert_close(torch.stack(gradients).mean(0), expected, **CLOSE)


@pytest.mark.parametrize("batch_size", [1, 4, 23])
def test_full_gradient_is_exact_and_starts_from_zero(batch_size: int) -> None:
    model = make_model().double()
    loader = DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=batch_size)
    optimizer = asgld.AGLD(model.parameters(), lr=0.0)
    closure = full_gradient(lambda b: _mean_loss(model, b), loader, optimizer)
    expected_loss, expected = _one_shot()
    for _ in range(2):  # a second call must not add to the first
        torch.testing.assert_close(optimizer.step(closure), expected_loss, **CLOSE)
        torch.testing.assert_close(_gradient(model), expected, **CLOSE)


class Pair(NamedTuple):
    inputs: Tensor
    targets: Tensor


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x, y: {"inputs": x, "targets": y},
        lambda x, y: [x, y],
        Pair,
        lambda x, y: ({"inputs": x}, [y]),
    ],
    ids=["dict", "list", "named-tuple", "nested"],
)
def test_batches_keep_their_structure(wrap: Any) -> None:
    shapes = []
    whole = wrap(INPUTS, TARGETS)

    def loss(batch: Any) -> Tensor:
        assert type(batch) is type(whole)
        tensors = tree_leaves(batch)
        shapes.append([tuple(t.shape) for t in tensors])
        return (weight * tensors[0]).mean()

    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    accumulate(loss, whole, 10)
    assert shapes == [[(10, 5), (10, 1)], [(10, 5), (10, 1)], [(3, 5), (3, 1)]]


@pytest.mark.parametrize(
    ("batch", "size", "error", "message"),
    [
        (torch.zeros(4), 0, ValueError, "micro_batch_size=0"),
        (torch.zeros(0), 2, ValueError, "no samples"),
        ((torch.zeros(4), torch.zeros(5)), 2, ValueError, r"first dimensions \[4, 5\]"),
        ({"x": torch.zeros(4), "name": "a"}, 2, TypeError, "holds a str"),
    ],
)
def test_wrong_batches_are_named(
    batch: Any, size: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        accumulate(lambda b: b.sum(), batch, size)


def test_loader_that_leaves_samples_out_is_refused() -> None:
    optimizer = asgld.AGLD([torch.zeros(1, requires_grad=True)])
    loader: Any = DataLoader(TensorDataset(INPUTS), batch_size=4, drop_last=True)
    with pytest.raises(ValueError, match="drop_last=True"):
        full_gradient(lambda b: b[0].sum(), loader, optimizer)
    with pytest.raises(ValueError, match="no `dataset`"):
        full_gradient(lambda b: b[0].sum(), [INPUTS], optimizer)
    closure = full_gradient(lambda b: b[0].sum(), [], optimizer, num_samples=4)
    with pytest.raises(ValueError, match="gave no batch"):
        closure()
