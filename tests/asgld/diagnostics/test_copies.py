"""Copies of weights: they are found, others are not, and the noise separates them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from copies_cases import (
    CASES,
    INPUTS,
    OUTPUTS,
    VECTORS,
    WIDTHS,
    backward,
    batches_of,
    described,
    find_sharded,
    hessian,
    layers_of_experts,
    perceptron,
    widened,
)
from ranks import run_ranks
from torch import Tensor, nn
from torch.nn import functional

import asgld
from asgld.diagnostics import Copies, copies, symmetry

LR, STEPS = 0.01, 50


def advise(model: nn.Module, batches: Any = VECTORS, **options: Any) -> Copies:
    return asgld.calibrate_copies(hessian(model, batches), **{"lr": LR, "steps": STEPS, **options})


def average_of(source: asgld.ModelHessian) -> symmetry.Average:
    _, weights = copies._look(source)
    return symmetry.Average(symmetry.find_symmetry(weights), copies._selected(source))


# ----------------------------------------------------------------------------------------------
# Finding copies
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_copies_are_found_and_told_in_short(name: str) -> None:
    build, shape, counts = CASES[name]
    advice = advise(build(), batches_of(*shape))
    assert advice.counts == counts
    lines = str(advice).splitlines()
    assert lines[0].startswith(f"{len(counts)} parameters have copies: {next(iter(counts))} (")
    assert len(lines) <= 10
    assert max(map(len, lines)) < 200


@pytest.mark.parametrize("name", CASES)
def test_differences_are_a_space_that_the_hessian_maps_into_itself(name: str) -> None:
    build, shape, _ = CASES[name]
    source = hessian(build(), batches_of(*shape))
    average = average_of(source)
    v = torch.randn(source.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    w = torch.randn(source.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    close = {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(average(average(v)), average(v), **close)
    torch.testing.assert_close(average(v) @ w, v @ average(w), **close)
    torch.testing.assert_close(average(source.x), source.x, **close)
    torch.testing.assert_close(average(source.grad(source.x)), source.grad(source.x), **close)
    product = source @ (v - average(v))
    assert float(product.norm()) > 1e-3
    torch.testing.assert_close(average(product), torch.zeros_like(v), rtol=0.0, atol=1e-10)
    kept = source @ average(v)
    torch.testing.assert_close(average(kept), kept, rtol=1e-8, atol=1e-10)


class Plain(nn.Module):
    """What starts alike and is no copy: zeros, ones, rows that are never looked up, and two
    biases that are added up."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(7, 6)
        self.norms = nn.ModuleList(nn.LayerNorm(6) for _ in range(3))
        self.inner, self.zeros = nn.Linear(6, 6), nn.Linear(6, 6)
        self.unused = nn.Linear(6, 6)
        self.output = nn.Linear(6, OUTPUTS)
        for part in (self.zeros.weight, self.zeros.bias, self.inner.bias):
            nn.init.zeros_(part)
        nn.init.ones_(self.unused.weight)
        with torch.no_grad():
            self.token.weight[4:] = 0.5  # never looked up

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.token(tokens).sum(1)
        h = h + self.norms[1](self.inner(self.norms[0](h)).tanh())
        return self.output(self.norms[2](h + self.zeros(h)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_merely_starts_alike_is_no_copy(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Plain().to(dtype)
    generator = torch.Generator().manual_seed(2)
    batches = [
        (torch.randint(4, (16, 3), generator=generator), y.to(dtype)) for _, y in batches_of(INPUTS)
    ]
    for weight_decay in (0.0, 0.1):
        source = hessian(model, batches, weight_decay=weight_decay)
        advice = asgld.calibrate_copies(source, lr=LR, steps=STEPS)
        assert (advice.noise, advice.counts, advice.curvature, advice.rate) == ({}, {}, None, None)
        assert [list(group.values()) for group in advice.groups] == [
            list(group.values()) for group in asgld.network_groups(model)
        ]
        assert str(advice).startswith("No copies")


def test_a_neuron_that_is_read_differently_is_no_copy() -> None:
    model = widened()
    with torch.no_grad():
        model[4].weight[:, 0] += 0.1
        model[2].weight[:, 0] += 0.1
    expected = {"0.weight": (4, 2), "0.bias": (4, 2), "2.weight": (4 + 6, 2 + 3)}
    assert advise(model).counts == expected | {"2.bias": (6, 3), "4.weight": (6, 3)}


def test_entries_of_a_bias_are_copies_if_all_agree_with_the_weight() -> None:
    """The weight is square with equal columns, as in a layer that reads copies, or, transposed, in
    one that makes them."""
    model = nn.Linear(4, 4)
    columns = torch.randn(4, 2).repeat(1, 2)
    with torch.no_grad():
        model.weight.copy_(columns)
        model.bias.zero_()
    model.weight.grad = columns.clone()
    for gradient, is_copied in (([1.0, 5, 1, 7], False), ([1.0, 5, 1, 5], True)):
        model.bias.grad = torch.tensor(gradient)
        found = asgld.calibrate_copies(model, lr=LR, steps=STEPS).counts
        assert found == {"weight": (4, 2)} | ({"bias": (4, 2)} if is_copied else {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_copies_are_found_in_every_precision(dtype: torch.dtype) -> None:
    model = widened().to(dtype)
    backward(model, [(x.to(dtype), y.to(dtype)) for x, y in VECTORS])
    advice = asgld.calibrate_copies(model, lr=LR, steps=STEPS)
    assert advice.counts == CASES["widened"][2]


def test_complex_weights_and_sparse_gradients_are_understood() -> None:
    torch.manual_seed(0)
    model = nn.ParameterDict({"a": torch.randn(2, 3, dtype=torch.complex64).repeat(2, 1)})
    model["table"] = torch.randn(2, 3).repeat_interleave(2, 0)
    x = torch.randn(3, dtype=torch.complex64)
    loss = (model["a"] @ x).abs().square().sum()
    looked_up = functional.embedding(torch.tensor([0, 1]), model["table"], sparse=True)
    (loss + looked_up.square().sum()).backward()
    assert model["table"].grad.is_sparse
    advice = asgld.calibrate_copies(model, lr=LR, steps=STEPS)
    assert advice.counts == {"a": (4, 2), "table": (2, 1)}


def test_rows_that_differ_in_bits_are_told_apart() -> None:
    """Two changed signs, one changed bit, zeros of both signs."""
    row = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = row.repeat(5, 1)
    rows[1::2, :2] *= -1
    rows[2, 3] = torch.nextafter(rows[2, 3], rows.new_tensor(9.0))
    rows = torch.cat([rows, torch.tensor([[0.0], [-0.0], [0.0]]).double().expand(3, 6)])
    for dtype in (torch.float64, torch.float32):
        expected = [0, 1, 2 if dtype == torch.float64 else 0, 1, 0, 5, 6, 5]
        assert symmetry._equal_rows(symmetry._bits(rows.to(dtype))).tolist() == expected


def test_rows_of_equal_hash_are_still_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.tensor([[1.0], [2.0], [1.0], [2.0]])
    monkeypatch.setattr(symmetry, "_codes", lambda bits: torch.zeros(len(bits), dtype=torch.int64))
    assert symmetry._equal_rows(symmetry._bits(rows)).tolist() == [0, 1, 0, 3]


# ----------------------------------------------------------------------------------------------
# Curvature
# ----------------------------------------------------------------------------------------------


def independent_average(v: Tensor, count: int) -> Tensor:
    """The average over copies of the widened perceptron, from how it was widened."""
    first, second = WIDTHS
    shapes = [
        (count, first, 1, INPUTS), (count, first, 1, 1), (count, second, count, first),
        (count, second, 1, 1), (1, OUTPUTS, count, second), (1, OUTPUTS, 1, 1),
    ]  # fmt: skip
    pieces = torch.split(v, [math.prod(shape) for shape in shapes])
    views = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
    return torch.cat([t.mean((0, 2), keepdim=True).expand_as(t).reshape(-1) for t in views])


def dense_smallest(matrix: Tensor, project: Tensor) -> float:
    values, vectors = torch.linalg.eigh(project)
    basis = vectors[:, values > 0.5]
    return float(torch.linalg.eigvalsh(basis.T @ matrix @ basis)[0])


@pytest.mark.parametrize("count", [2, 3])
def test_curvature_and_rate_are_those_of_the_dense_hessian(count: int) -> None:
    source = hessian(widened(count))
    eye = torch.eye(source.dim, dtype=torch.float64)
    matrix = torch.stack([source @ e for e in eye])
    project = torch.stack([e - independent_average(e, count) for e in eye])
    gradients = [source.mean_grad(source.x, [part]) for part in source.batches()]
    root = torch.stack(gradients).square().mean(0).pow(-0.25)
    advice = asgld.calibrate_copies(source, lr=LR, steps=STEPS)
    assert advice.curvature == pytest.approx(dense_smallest(matrix, project), rel=1e-3)
    scaled = dense_smallest(root[:, None] * matrix * root, project)
    assert advice.curvature < 0 < advice.rate
    assert advice.rate == pytest.approx(-LR * scaled, rel=1e-3)
    assert "negative" in str(advice)


def test_full_gradients_part_copies_at_the_rate_of_the_curvature() -> None:
    """At a critical point of the small network the law is linear: (1 + lr |lambda|)^k, D = 1."""
    x, y = (torch.cat(parts) for parts in zip(*VECTORS, strict=True))
    small = perceptron(INPUTS, 2, OUTPUTS)
    search = torch.optim.LBFGS(small.parameters(), max_iter=2000, tolerance_grad=1e-13,
                               tolerance_change=0.0, line_search_fn="strong_wolfe")  # fmt: skip

    def closure() -> Tensor:
        search.zero_grad()
        loss = functional.mse_loss(small(x), y)
        loss.backward()
        return loss

    search.step(closure)  # type: ignore[no-untyped-call]
    model = perceptron(INPUTS, 4, OUTPUTS)
    with torch.no_grad():
        model[0].weight.copy_(small[0].weight.repeat(2, 1))
        model[0].bias.copy_(small[0].bias.repeat(2))
        model[2].weight.copy_(small[2].weight.repeat(1, 2) / 2)
        model[2].bias.copy_(small[2].bias)
    curvature = advise(model).curvature
    assert curvature is not None
    assert curvature < -0.01
    lr = 1.0 / asgld.curvature.largest_curvature(hessian(model), hessian(model).x).upper
    rate, rows = math.log1p(lr * abs(curvature)), model[0].weight
    with torch.no_grad():
        rows[:2] += 1e-9 * torch.randn(2, INPUTS, generator=torch.Generator().manual_seed(0),
                                       dtype=torch.float64)  # fmt: skip
    descent, logs = torch.optim.SGD(model.parameters(), lr), []
    for _ in range(round(12 / rate)):
        descent.zero_grad()
        functional.mse_loss(model(x), y).backward()
        descent.step()
        logs.append(float((rows[:2] - rows[2:]).detach().norm().log()))
    assert math.log(1e-6) < logs[-1] < math.log(1e-2)  # grown, and still small
    assert (logs[-1] - logs[-21]) / 20 == pytest.approx(rate, rel=0.02)


class Squares(nn.Module):
    """The mean of squared neurons, so too large an output makes the curvature positive."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(INPUTS, 6, bias=False).double()
        with torch.no_grad():
            self.inner.weight.copy_(self.inner.weight[:3].repeat(2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).square().mean(1, keepdim=True)


def test_curvature_that_is_not_negative_is_told() -> None:
    batches = [(x, torch.full((len(x), 1), -1.0, dtype=x.dtype)) for x, _ in VECTORS]
    source = hessian(Squares(), batches)
    matrix = torch.stack([source @ e for e in torch.eye(source.dim, dtype=torch.float64)])
    average = torch.kron(torch.ones(2, 2) / 2, torch.eye(source.dim // 2)).double()
    advice = asgld.calibrate_copies(source, lr=LR, steps=STEPS)
    expected = dense_smallest(matrix, torch.eye(source.dim).double() - average)
    assert advice.curvature == pytest.approx(expected, rel=1e-3)
    assert expected > 0 == advice.rate
    assert "noise alone must part the copies" in str(advice)


class Sum(nn.Module):
    """Three equal layers, added up: f does not change if they part."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleList(nn.Linear(INPUTS, 3, bias=False).double() for _ in range(3))
        self.output = nn.Linear(3, OUTPUTS).double()
        for part in self.parts:
            part.load_state_dict(self.parts[0].state_dict())

    def forward(self, x: Tensor) -> Tensor:
        return self.output(sum(part(x) for part in self.parts).tanh())


def test_copies_that_f_does_not_tell_apart_have_no_curvature() -> None:
    advice = advise(Sum())
    assert advice.counts == {f"parts.{i}.weight": (3, 1) for i in range(3)}
    assert (advice.curvature, advice.rate) == (0.0, 0.0)
    assert "noise alone must part the copies" in str(advice)


def test_rate_is_that_of_weights_with_gradients() -> None:
    """A router of zeros has none, so it has no D either; the curvature knows it."""
    model = layers_of_experts()
    moving = [name for name, _ in model.named_parameters() if "router" not in name]
    source = hessian(model, params=moving)
    alone, whole = asgld.calibrate_copies(source, lr=LR, steps=STEPS), advise(model)
    assert alone.rate == pytest.approx(whole.rate, rel=1e-3)
    assert whole.curvature < 1.1 * alone.curvature < 0


def test_units_of_the_loss_change_the_curvature_alone() -> None:
    model, factor = widened(), 1e6

    def scaled(a: Tensor, b: Tensor) -> Tensor:
        return factor * functional.mse_loss(a, b)

    here = advise(model)
    source = asgld.ModelHessian(model, scaled, VECTORS)
    there = asgld.calibrate_copies(source, lr=LR, steps=STEPS)
    assert (there.noise, there.counts) == (here.noise, here.counts)
    assert there.rate == pytest.approx(here.rate, rel=1e-6)
    assert there.curvature == pytest.approx(factor * here.curvature, rel=1e-6)


# ----------------------------------------------------------------------------------------------
# Noise and groups
# ----------------------------------------------------------------------------------------------


def _cosine(step: int) -> float:
    return 0.5 + 0.5 * math.cos(math.pi * step / STEPS)


@pytest.mark.parametrize("schedule", [None, _cosine])
def test_noise_carries_weights_as_far_as_was_asked(schedule: Callable[[int], float] | None) -> None:
    """The optimizer's own noise, without gradients: 40,000 sums of its steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 1))
    with torch.no_grad():
        model[0].weight[100:] = model[0].weight[:100]
        model[0].bias[100:] = model[0].bias[:100]
        model[1].weight[:, 100:] = model[1].weight[:, :100]
    model(torch.ones(3, 200)).sum().backward()
    advice = asgld.calibrate_copies(model, lr=1e-4, steps=STEPS, size=0.5, schedule=schedule)
    weight = model[0].weight
    begin, rms = weight.detach().clone(), float(weight.detach().square().mean().sqrt())
    optimizer = asgld.NetworkASGLD(advice.groups, lr=1e-4)
    factors = schedule or (lambda step: 1.0)
    changed = torch.optim.lr_scheduler.LambdaLR(optimizer, factors)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    for _ in range(STEPS):
        optimizer.step()
        changed.step()
    spread = float((weight.detach() - begin).square().mean().sqrt())
    exact = 0.5 * rms / (1e-4 * math.sqrt(sum(factors(k) ** 2 / max(k, 1) for k in range(STEPS))))
    # 1 / sqrt(2 * 40,000) is a standard error
    assert spread == pytest.approx(0.5 * rms * advice.noise["0.weight"] / exact, rel=0.02)
    assert 2**-0.25 <= advice.noise["0.weight"] / exact <= 2**0.25
    powers = [2 * math.log2(noise / 0.3) for noise in advice.noise.values()]
    assert powers == pytest.approx([round(power) for power in powers], abs=1e-9)


def test_noise_follows_the_weights_and_is_no_less_than_the_default() -> None:
    model = widened()
    with torch.no_grad():
        model[0].bias.zero_()  # of which nothing says how large it should become
        model[2].weight *= 64
    noise = advise(model, lr=1e-3).noise
    assert noise["0.bias"] == 0.3
    assert noise["2.weight"] > 8 * noise["0.weight"] > 8 * 0.3
    assert set(advise(model, lr=1e-3, size=0.0).noise.values()) == {0.3}
    assert set(advise(model, lr=1e3).noise.values()) == {0.3}
    assert advise(model, lr=5e-4).noise["0.weight"] == pytest.approx(2 * noise["0.weight"])
    sparse = nn.Linear(64, 2, bias=False)
    nn.init.ones_(sparse.weight)
    sparse.weight.grad = torch.ones(2, 64)
    whole = asgld.calibrate_copies(sparse, lr=1e-3, steps=STEPS)
    sparse.weight.data[:, 1:] = 0.0  # those that are not zero are as large as before
    assert asgld.calibrate_copies(sparse, lr=1e-3, steps=STEPS).noise == whole.noise


@pytest.mark.parametrize("shape", [None, "coordinate", "row"])
@pytest.mark.parametrize("name", ["widened", "experts"])
def test_groups_have_every_parameter_once_under_its_name(name: str, shape: str | None) -> None:
    build, inputs, _ = CASES[name]
    model = build()
    advice = advise(model, batches_of(*inputs), shape=shape, lr=1e-3)
    pairs = [
        pair
        for group in advice.groups
        for pair in zip(group["param_names"], group["params"], strict=True)
    ]
    assert len(pairs) == len(list(model.parameters()))
    assert all(dict(model.named_parameters())[key] is p for key, p in pairs)
    ours = asgld.NetworkASGLD(advice.groups, lr=1e-3)
    theirs = asgld.NetworkASGLD(model, lr=1e-3, shape=shape)
    knobs = {p: group for group in theirs.param_groups for p in group["params"]}
    for group in ours.param_groups:
        for key, p in zip(group["param_names"], group["params"], strict=True):
            other = knobs[p] | {"noise": advice.noise.get(key, 0.3)}
            named = ("params", "param_names")
            assert {k: v for k, v in group.items() if k not in named} == {
                k: v for k, v in other.items() if k not in named
            }
    assert len(advice.groups) <= 8
    assert advice.shape == (shape or "polar-row")


def _trained(model: nn.Module, groups: Any, **options: Any) -> nn.Module:
    """A copy of the model, trained with these groups."""
    model = copy.deepcopy(model)
    named = dict(model.named_parameters())
    groups = [{**g, "params": [named[name] for name in g["param_names"]]} for g in groups]
    optimizer = asgld.NetworkASGLD(groups, lr=LR, **options)
    for _ in range(STEPS):
        backward(model)
        optimizer.step()
    return model


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().norm() / a.detach().norm())


@pytest.mark.parametrize("shape", ["coordinate", "polar-row"])
def test_the_noise_separates_experts_that_stay_equal_without(shape: str) -> None:
    """Experts are computed alike, so not even rounding differs between them."""
    model: Any = layers_of_experts(2)
    ends = [
        _trained(model, asgld.network_groups(model, shape), noise=0.0),
        _trained(model, advise(model, shape=shape).groups),
    ]
    for layer in (0, 1):
        quiet, noisy = (
            _distance(*(expert[0].weight for expert in end[layer].experts)) for end in ends
        )
        assert quiet == 0.0
        assert noisy > 0.1


def test_the_noise_separates_neurons() -> None:
    """Rounding differs between equal rows of a product; that is all, with one D per coordinate."""
    model = widened()
    quiet: Any = _trained(model, asgld.network_groups(model, "coordinate"), noise=0.0)
    noisy: Any = _trained(model, advise(model, shape="coordinate").groups)
    assert _distance(*quiet[0].weight.chunk(2)) < 1e-9
    assert _distance(*noisy[0].weight.chunk(2)) > 0.1


# ----------------------------------------------------------------------------------------------
# Sources
# ----------------------------------------------------------------------------------------------


def test_a_model_with_gradients_gives_the_same_noise_without_curvature() -> None:
    model = widened()
    whole = advise(model)
    backward(model)
    advice = asgld.calibrate_copies(model, lr=LR, steps=STEPS)
    assert described(advice) == described(whole)
    assert (advice.curvature, advice.rate) == (None, None)
    assert "needs a ModelHessian" in str(advice)


def test_nothing_of_the_model_is_changed() -> None:
    model = nn.Sequential(nn.Linear(INPUTS, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 2))
    model = model.double()
    with torch.no_grad():
        model[0].weight.copy_(model[0].weight[:3].repeat(2, 1))
        model[0].bias.copy_(model[0].bias[:3].repeat(2))
        model[3].weight.copy_(model[3].weight[:, :3].repeat(1, 2))
    backward(model)
    state = copy.deepcopy(model.state_dict())
    gradients = [p.grad.clone() for p in model.parameters()]
    advice = advise(model)
    assert advice.counts == {"0.weight": (6, 3), "0.bias": (6, 3), "3.weight": (6, 3)}
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    after = [p.grad for p in model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(gradients, after, strict=True))
    assert all(module.training for module in model.modules())


def test_frozen_parameters_are_left_alone() -> None:
    model = widened()
    model[0].weight.requires_grad_(False)
    advice = advise(model)
    every = hessian(model, params=[name for name, _ in model.named_parameters()])
    for found in (advice, asgld.calibrate_copies(every, lr=LR, steps=STEPS)):
        assert "0.weight" not in found.counts
        assert "2.weight" in found.counts
    assert "0.weight" not in {name for group in advice.groups for name in group["param_names"]}


def test_ranks_find_what_one_process_finds(tmp_path: Path) -> None:
    run_ranks(find_sharded, 2, tmp_path)
    model = widened()
    backward(model)
    expected = described(asgld.calibrate_copies(model, lr=LR, steps=STEPS))
    for rank in range(2):
        assert torch.load(tmp_path / f"rank-{rank}.pt", weights_only=False) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, r"lr=0\.0: need a positive"),
        ({"lr": math.inf}, "lr=inf"),
        ({"steps": 0}, "steps=0: need"),
        ({"steps": 2.5}, "steps=2.5: need"),
        ({"size": -1.0}, r"size=-1\.0"),
        ({"schedule": lambda step: 0.0}, "schedule: need finite factors"),
        ({"shape": "round"}, "round"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        asgld.NetworkASGLD(advise(widened(), **options).groups, lr=LR)


def test_gradients_that_say_nothing_are_refused() -> None:
    model = perceptron(INPUTS, 3, OUTPUTS)
    with pytest.raises(ValueError, match="run one backward pass before this"):
        asgld.calibrate_copies(model, lr=LR, steps=STEPS)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with pytest.raises(ValueError, match="all gradients are zero"):
        asgld.calibrate_copies(model, lr=LR, steps=STEPS)
    model[2].bias.grad[0] = math.nan
    with pytest.raises(ValueError, match=r"gradient of '2\.bias' is not finite"):
        asgld.calibrate_copies(model, lr=LR, steps=STEPS)
    with pytest.raises(TypeError, match="need a ModelHessian or a model"):
        asgld.calibrate_copies([model], lr=LR, steps=STEPS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": "fast"}, "lr='fast': need a number"),
        ({"size": None}, "size=None: need a number"),
        ({"schedule": 0.5}, "schedule is float: need a function"),
    ],
)
def test_arguments_of_other_types_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        advise(widened(2), **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_layer_of_one_output_is_no_trouble(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).to(dtype)
    model(torch.ones(2, 4, dtype=dtype)).square().mean().backward()
    assert asgld.calibrate_copies(model, lr=torch.tensor([LR]), steps=STEPS).noise == {}


def test_half_precision_has_copies_and_no_curvature() -> None:
    half = [(x.bfloat16(), y.bfloat16()) for x, y in VECTORS]
    advice = advise(widened(2).bfloat16(), half)
    assert advice.counts == advise(widened(2)).counts
    assert advice.curvature is None
    assert "not measured" in str(advice)


def test_a_run_is_resumed_with_the_noise_that_was_saved() -> None:
    """Copies that are apart are not found again, so the noise is saved with the checkpoint."""
    model = widened(2)
    advice = advise(model)
    optimizer = asgld.NetworkASGLD(advice.groups, lr=LR)

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
        for _ in range(count):
            backward(model)
            optimizer.step()

    train(model, optimizer, 3)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), advice.noise))
    train(model, optimizer, 3)
    again = widened(2)
    again.load_state_dict(saved[0])
    resumed = asgld.NetworkASGLD(asgld.network_groups(again, noise=saved[2]), lr=LR)
    resumed.load_state_dict(saved[1])
    train(again, resumed, 3)
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q)
