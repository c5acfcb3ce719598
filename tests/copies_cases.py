"""Networks that were grown by copying, small and in float64; and what ranks find in one of them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranks import process_group
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

import asgld

INPUTS, OUTPUTS, WIDTHS = 4, 2, (3, 4)
Batches = list[tuple[Tensor, Tensor]]


def batches_of(*shape: int) -> Batches:
    """Three batches of 16 random inputs of this shape, and targets that depend on them."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(3):
        x = torch.randn(16, *shape, generator=generator, dtype=torch.float64)
        flat = x.flatten(1)
        found.append((x, torch.stack([flat[:, 0] * flat[:, 1], flat[:, 2].sin()], 1)))
    return found


VECTORS = batches_of(INPUTS)


def hessian(model: nn.Module, batches: Batches = VECTORS, **options: Any) -> asgld.ModelHessian:
    return asgld.ModelHessian(model, functional.mse_loss, batches, **options)


def backward(model: nn.Module, batches: Batches = VECTORS) -> None:
    """Gradients of the mean over all batches."""
    model.zero_grad()
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    functional.mse_loss(model(x), y).backward()


def perceptron(*widths: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    parts = [part for layer in layers for part in (layer, nn.Tanh())]
    return nn.Sequential(*parts[:-1]).double()


@torch.no_grad()
def widen(small: Any, into: Any, outputs: int, inputs: int) -> None:
    """Copy the outputs of a layer; who reads copies takes their mean."""
    repeats = (outputs, inputs) + (1,) * (small.weight.dim() - 2)
    into.weight.copy_(small.weight.repeat(repeats) / inputs)
    into.bias.copy_(small.bias.repeat(outputs))


@functools.cache
def trained() -> nn.Sequential:
    model = perceptron(INPUTS, *WIDTHS, OUTPUTS)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(100):
        backward(model)
        optimizer.step()
    return model


def widened(count: int = 2) -> nn.Sequential:
    """A trained perceptron whose hidden neurons are copied."""
    small = trained()
    large = perceptron(INPUTS, *(count * width for width in WIDTHS), OUTPUTS)
    for layer, outputs, inputs in ((0, count, 1), (2, count, count), (4, 1, count)):
        widen(small[layer], large[layer], outputs, inputs)
    return large


class Heads(nn.Module):
    """Attention over the rows of the input, then a mean and a layer."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(3, 2 * heads) for _ in range(3))
        self.join, self.output = nn.Linear(2 * heads, 3), nn.Linear(3, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.output((x + self.join(mixed)).mean(1))


def copied_heads(count: int = 3) -> nn.Module:
    torch.manual_seed(0)
    small, large = Heads(2).double(), Heads(2 * count).double()
    for name in ("query", "key", "value"):
        widen(getattr(small, name), getattr(large, name), count, 1)
    widen(small.join, large.join, 1, count)
    widen(small.output, large.output, 1, 1)
    return large


class Experts(nn.Module):
    """Experts as modules, and a router of zeros."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(INPUTS, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(INPUTS, 5), nn.GELU(), nn.Linear(5, INPUTS))
            for _ in range(count)
        )
        nn.init.zeros_(self.router.weight)
        nn.init.zeros_(self.router.bias)
        for expert in self.experts:
            expert.load_state_dict(self.experts[0].state_dict())

    def forward(self, x: Tensor) -> Tensor:
        shares = self.router(x).softmax(-1)
        return x + sum(shares[:, i, None] * expert(x) for i, expert in enumerate(self.experts))


def layers_of_experts(count: int = 3) -> nn.Module:
    """Two such layers. Biases are zero, so those of both layers are equal."""
    torch.manual_seed(0)
    layers = nn.Sequential(Experts(count), Experts(count), nn.Linear(INPUTS, OUTPUTS)).double()
    for name, p in layers.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(p)
    return layers


class Stack(nn.Module):
    """Experts as one tensor of three dimensions; the neurons of each are copied as well."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(INPUTS, count, bias=False)
        nn.init.zeros_(self.router.weight)
        into, back = 0.5 * torch.randn(1, INPUTS, 3), 0.5 * torch.randn(1, 3, INPUTS)
        self.experts_in = nn.Parameter(into.repeat(count, 1, 2))
        self.experts_out = nn.Parameter(back.repeat(count, 2, 1) / 2)
        self.output = nn.Linear(INPUTS, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.einsum("bi,eij->ebj", x, self.experts_in).tanh()
        each = torch.einsum("ebj,ejk->ebk", inner, self.experts_out)
        shares = self.router(x).softmax(-1)
        return self.output(x + torch.einsum("be,ebk->bk", shares, each))


def stack(count: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return Stack(count).double()


def convolutions(count: int = 2) -> nn.Module:
    """Channels are copied."""
    torch.manual_seed(0)

    def build(channels: int) -> nn.Sequential:
        first, second = nn.Conv2d(1, channels, 3), nn.Conv2d(channels, 2, 3)
        return nn.Sequential(first, nn.Tanh(), second, nn.Flatten(), nn.Linear(8, OUTPUTS)).double()

    small, large = build(3), build(3 * count)
    for layer, outputs, inputs in ((0, count, 1), (2, 1, count), (4, 1, 1)):
        widen(small[layer], large[layer], outputs, inputs)
    return large


# name -> the network, the shape of its inputs, and its copies: slices and distinct ones
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, tuple[int, int]]]] = {
    "widened": (
        widened, (INPUTS,),
        {"0.weight": (6, 3), "0.bias": (6, 3), "2.weight": (6 + 8, 3 + 4), "2.bias": (8, 4),
         "4.weight": (8, 4)},
    ),
    "heads": (
        copied_heads, (5, 3),
        {f"{part}.{name}": (12, 4) for part in ("query", "value") for name in ("weight", "bias")}
        | {"key.weight": (12, 4), "join.weight": (12, 4)},
    ),
    "experts": (
        layers_of_experts, (INPUTS,),
        {f"{layer}.experts.{i}.{part}.{name}": (3, 1)
         for layer in (0, 1) for i in range(3) for part in (0, 2) for name in ("weight", "bias")},
    ),
    "stack": (stack, (INPUTS,), {"experts_in": (3 + 6, 1 + 3), "experts_out": (3 + 6, 1 + 3)}),
    "convolutions": (
        convolutions, (1, 6, 6), {"0.weight": (6, 3), "0.bias": (6, 3), "2.weight": (6, 3)},
    ),
}  # fmt: skip


# --- Ranks ---


def described(advice: Any) -> list[Any]:
    """What can be compared between processes."""
    groups = [
        {key: value for key, value in group.items() if key != "params"} for group in advice.groups
    ]
    return [groups, advice.noise, advice.counts]


def find_sharded(rank: int, world_size: int, folder: Path) -> None:
    """Shard the widened network over all ranks and save what each of them finds."""
    with process_group(rank, world_size, folder / "rendezvous"):
        model = widened()
        mesh = init_device_mesh("cpu", (world_size,))
        fully_shard(model[2], mesh=mesh)
        fully_shard(model, mesh=mesh)
        backward(model)
        advice = asgld.calibrate_copies(model, lr=0.01, steps=50)
        optimizer = asgld.NetworkASGLD(advice.groups, lr=0.01)
        optimizer.step()
        dist.barrier()
        torch.save(described(advice), folder / f"rank-{rank}.pt")
