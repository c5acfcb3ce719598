"""Networks that are made larger by copying, as people do to go on from a trained one.

A small network is trained by AdamW. Then each neuron, head or layer becomes several equal copies,
and what reads them is divided by their number, so that the network computes the same function.
Copies get equal gradients: without noise nothing separates them. The larger network is the start of
a task; the small ones are trained once and kept in .bench-data.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from training_gpt import scheduled

from suite.data import FOLDER, Images, Sizes, Text
from suite.networks import next_byte, right_label

BASE_LR = 2e-3


class Expert(nn.Module):
    """A feed-forward layer."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.widen, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, h: Tensor) -> Tensor:
        return self.narrow(functional.gelu(self.widen(h)))


class Experts(nn.Module):
    """A mixture of feed-forward layers; the router's scores start at zero."""

    def __init__(self, width: int, inner: int, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(Expert(width, inner) for _ in range(count))
        nn.init.zeros_(self.router.weight)

    def forward(self, h: Tensor) -> Tensor:
        shares = self.router(h).softmax(-1)
        return sum(shares[..., i, None] * expert(h) for i, expert in enumerate(self.experts))


class Layer(nn.Module):
    """A layer of a transformer with any number of heads, inner neurons and experts."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, self.heads = sizes["width"], sizes["heads"]
        attended = self.heads * sizes["head"]
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, attended) for _ in range(3))
        self.join = nn.Linear(attended, width)
        if sizes["experts"] == 1:
            self.inner: nn.Module = Expert(width, sizes["inner"])
        else:
            self.inner = Experts(width, sizes["inner"], sizes["experts"])

    def forward(self, h: Tensor) -> Tensor:
        x = self.norm_1(h)
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.join(mixed.transpose(1, 2).flatten(2))
        return h + self.inner(self.norm_2(h))


class Transformer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes["width"]
        self.token = nn.Embedding(256, width)
        self.place = nn.Parameter(0.02 * torch.randn(sizes["context"], width))
        self.layers = nn.Sequential(*(Layer(sizes) for _ in range(sizes["layers"])))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.token(tokens) + self.place[: tokens.shape[1]]
        return self.output(self.norm(self.layers(h)))


class Perceptron(nn.Module):
    """784 inputs, two hidden layers, ten outputs."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes["inner"]
        self.first, self.second = nn.Linear(784, width), nn.Linear(width, width)
        self.output = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.second(self.first(x.flatten(1)).relu()).relu())


# --- Growing: `into` gets the weights of `small`, everything copied `count` times. ---


def copy_outputs(small: nn.Linear, into: nn.Linear, count: int) -> None:
    into.weight.copy_(small.weight.repeat(count, 1))
    into.bias.copy_(small.bias.repeat(count))


def copy_inputs(small: nn.Linear, into: nn.Linear, count: int) -> None:
    """Who reads copies takes the mean of them."""
    into.weight.copy_(small.weight.repeat(1, count) / count)
    into.bias.copy_(small.bias)


@torch.no_grad()
def widen_perceptron(small: Any, into: Any, count: int) -> None:
    copy_outputs(small.first, into.first, count)
    into.second.weight.copy_(small.second.weight.repeat(count, count) / count)
    into.second.bias.copy_(small.second.bias.repeat(count))
    copy_inputs(small.output, into.output, count)


def _copy_rest(small: Any, into: Any) -> None:
    """All that has the same shape."""
    theirs = dict(small.named_parameters())
    for name, p in into.named_parameters():
        if name in theirs and theirs[name].shape == p.shape:
            p.copy_(theirs[name])


@torch.no_grad()
def widen_layers(small: Any, into: Any, count: int) -> None:
    _copy_rest(small, into)
    for a, b in zip(small.layers, into.layers, strict=True):
        copy_outputs(a.inner.widen, b.inner.widen, count)
        copy_inputs(a.inner.narrow, b.inner.narrow, count)


@torch.no_grad()
def copy_heads(small: Any, into: Any, count: int) -> None:
    _copy_rest(small, into)
    for a, b in zip(small.layers, into.layers, strict=True):
        for name in ("query", "key", "value"):
            copy_outputs(getattr(a, name), getattr(b, name), count)
        copy_inputs(a.join, b.join, count)


@torch.no_grad()
def make_experts(small: Any, into: Any, count: int) -> None:
    _copy_rest(small, into)
    for a, b in zip(small.layers, into.layers, strict=True):
        for expert in b.inner.experts:
            expert.load_state_dict(a.inner.state_dict())


# --- How far copies are from each other: weights with a leading axis of copies. ---


def _rows(weights: list[Tensor], count: int) -> list[Tensor]:
    return [w.unflatten(0, (count, -1)) for w in weights]


def perceptron_copies(model: Any, count: int) -> list[Tensor]:
    return _rows([model.first.weight], count)


def layer_copies(model: Any, count: int) -> list[Tensor]:
    return _rows([layer.inner.widen.weight for layer in model.layers], count)


def head_copies(model: Any, count: int) -> list[Tensor]:
    return _rows([layer.value.weight for layer in model.layers], count)


def expert_copies(model: Any, _: int) -> list[Tensor]:
    return [
        torch.stack([expert.widen.weight for expert in layer.inner.experts])
        for layer in model.layers
    ]


@dataclass(frozen=True)
class Growth:
    """How a small network becomes the start of a task. `what` is the size that is multiplied."""

    name: str
    network: Callable[[Sizes], nn.Module]
    what: str
    copy: Callable[[Any, Any, int], None]
    copies: Callable[[Any, int], list[Tensor]]

    @property
    def is_text(self) -> bool:
        return self.network is Transformer

    def __call__(self, sizes: Sizes) -> nn.Module:
        """The network that is grown, of the seed that torch has now."""
        seed, count = torch.initial_seed() % 1000, sizes["copies"]
        small = self.small(sizes, seed)
        large = self.network({**sizes, self.what: count * sizes[self.what]})
        self.copy(small, large, count)
        return large

    def distance(self, model: nn.Module, sizes: Sizes) -> float:
        """Distance of copies from their mean, relative to the weights' length."""
        found = [w.detach().double() for w in self.copies(model, sizes["copies"])]
        apart = sum(float((w - w.mean(0)).square().sum()) for w in found)
        return math.sqrt(apart / sum(float(w.square().sum()) for w in found))

    def small(self, sizes: Sizes, seed: int) -> nn.Module:
        """The trained small network; kept on disk, since all contenders start from it."""
        told = "-".join(f"{sizes[key]}" for key in ("base", "batch", self.what))
        path = FOLDER / "grown" / f"{self.name}-{told}-{seed}.pt"
        torch.manual_seed(seed)
        model = self.network(sizes)
        if not path.exists():
            self.train(model, sizes, seed)
            path.parent.mkdir(parents=True, exist_ok=True)
            mine = path.with_suffix(f".{os.getpid()}")
            torch.save(model.state_dict(), mine)
            os.replace(mine, path)
        model.load_state_dict(torch.load(path, map_location="cpu"))
        return model

    def train(self, model: nn.Module, sizes: Sizes, seed: int) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        data = Text(sizes, device) if self.is_text else Images(sizes, device)
        loss = next_byte if self.is_text else right_label
        model.to(device)
        steps, drawn = sizes["base"], torch.Generator().manual_seed(2000 + seed)
        order = torch.randint(data.size, (steps, sizes["batch"]), generator=drawn).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), BASE_LR, weight_decay=0.0)
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = BASE_LR * scheduled("cosine", step, steps)
            optimizer.zero_grad()
            loss(model, data.batch(order[step])).backward()
            optimizer.step()
        model.cpu()


PERCEPTRON = Growth("mlp", Perceptron, "inner", widen_perceptron, perceptron_copies)
LAYERS = Growth("layers", Transformer, "inner", widen_layers, layer_copies)
HEADS = Growth("heads", Transformer, "heads", copy_heads, head_copies)
EXPERTS = Growth("experts", Transformer, "experts", make_experts, expert_copies)
