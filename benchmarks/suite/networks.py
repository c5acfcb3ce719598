"""Networks and their losses. The last linear or convolutional layer of a network is its output."""

from __future__ import annotations

import functools
import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from suite.data import Batch, Sizes


class Block(nn.Module):
    """A layer of a transformer; one matrix makes queries, keys and values."""

    def __init__(self, width: int, heads: int, is_causal: bool) -> None:
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm_1(h)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        h = h + self.join(mixed.transpose(1, 2).flatten(2))
        return h + self.narrow(functional.gelu(self.widen(self.norm_2(h))))


def make_blocks(sizes: Sizes, is_causal: bool) -> nn.Sequential:
    """Layers with the initial weights of GPT-2."""
    depth = sizes["layers"]
    blocks = nn.Sequential(
        *(Block(sizes["width"], sizes["heads"], is_causal) for _ in range(depth))
    )
    for name, p in blocks.named_parameters():
        if p.ndim == 2:
            is_last = "join" in name or "narrow" in name
            nn.init.normal_(p, std=0.02 / math.sqrt(2 * depth if is_last else 1))
        elif name.endswith("bias"):
            nn.init.zeros_(p)
    return blocks


class GPT(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes["width"]
        self.token = nn.Embedding(256, width)
        self.place = nn.Parameter(0.02 * torch.randn(sizes["context"], width))
        self.blocks, self.norm = make_blocks(sizes, is_causal=True), nn.LayerNorm(width)
        self.output = nn.Linear(width, 256, bias=False)
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.output.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.token(tokens) + self.place[: tokens.shape[1]]
        return self.output(self.norm(self.blocks(h)))


class Recurrent(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes["width"]
        self.token = nn.Embedding(256, width)
        self.rnn = nn.LSTM(width, width, sizes["layers"], batch_first=True)
        self.output = nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.rnn(self.token(tokens))[0])


class VisionTransformer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes["width"]
        self.patch = nn.Conv2d(1, width, 4, 4)
        self.place = nn.Parameter(0.02 * torch.randn(49, width))
        self.blocks, self.norm = make_blocks(sizes, is_causal=False), nn.LayerNorm(width)
        self.output = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2) + self.place
        return self.output(self.norm(self.blocks(h)).mean(1))


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv_2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm_1, self.norm_2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        is_same = stride == 1 and inputs == outputs
        self.short = nn.Identity() if is_same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv_2(torch.relu(self.norm_1(self.conv_1(x))))
        return torch.relu(self.norm_2(inner) + self.short(x))


class ResidualCNN(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes["width"]
        self.stem, self.norm = nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(
            Residual(width, width, 1),
            Residual(width, 2 * width, 2),
            Residual(2 * width, 4 * width, 2),
        )
        self.output = nn.Linear(4 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.blocks(torch.relu(self.norm(self.stem(x)))).mean((2, 3)))


def make_autoencoder(sizes: Sizes) -> nn.Sequential:
    """Hinton and Salakhutdinov's shape, 784-1000-500-250-30 and back, with tanh."""
    half = [784, *(sizes["width"] * k // 100 for k in (100, 50, 25)), 30]
    widths, layers = [*half, *half[-2::-1]], []
    for fan_in, fan_out in itertools.pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def make_factors(sizes: Sizes) -> nn.Sequential:
    """A product of square matrices that starts near zero."""
    width = sizes["width"]
    factors = [nn.Linear(width, width, bias=False) for _ in range(sizes["layers"])]
    for factor in factors:
        nn.init.normal_(factor.weight, std=0.3 / math.sqrt(width))
    return nn.Sequential(*factors)


class Mixed(nn.Module):
    """A layer of an MLP-Mixer (Tolstikhin et al., arXiv 2105.01601): across places, then across
    channels."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.places = nn.Sequential(
            nn.Linear(places, 2 * places), nn.GELU(), nn.Linear(2 * places, places)
        )
        self.channels = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.places(self.norm_1(h).transpose(1, 2)).transpose(1, 2)
        return h + self.channels(self.norm_2(h))


class Mixer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes["width"]
        self.patch = nn.Conv2d(1, width, 4, 4)
        self.blocks = nn.Sequential(*(Mixed(49, width) for _ in range(sizes["layers"])))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        return self.output(self.norm(self.blocks(h)).mean(1))


class Timed(nn.Module):
    """Two convolutions beside a shortcut, told the time."""

    def __init__(self, inputs: int, outputs: int, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.GroupNorm(4, inputs), nn.GroupNorm(4, outputs)
        self.conv_1 = nn.Conv2d(inputs, outputs, 3, 1, 1)
        self.conv_2 = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.time = nn.Linear(width, outputs)
        self.short = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv_1(functional.silu(self.norm_1(x))) + self.time(time)[:, :, None, None]
        return self.short(x) + self.conv_2(functional.silu(self.norm_2(h)))


class Denoiser(nn.Module):
    """A small U-Net that tells the noise of a diffused image."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, inner = sizes["width"], 2 * sizes["width"]
        self.time = nn.Sequential(nn.Linear(16, inner), nn.SiLU(), nn.Linear(inner, inner))
        self.stem = nn.Conv2d(1, width, 3, 1, 1)
        self.fine, self.coarse = Timed(width, width, inner), Timed(inner, inner, inner)
        self.down, self.up = nn.Conv2d(width, inner, 3, 2, 1), nn.Conv2d(inner, width, 3, 1, 1)
        self.last, self.norm = Timed(2 * width, width, inner), nn.GroupNorm(4, width)
        self.output = nn.Conv2d(width, 1, 3, 1, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] * torch.arange(1, 9, device=x.device) * (math.pi / 2)
        told = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        fine = self.fine(self.stem(x), told)
        coarse = self.coarse(self.down(fine), told)
        up = self.up(functional.interpolate(coarse, scale_factor=2))
        return self.output(functional.silu(self.norm(self.last(torch.cat([fine, up], 1), told))))


def make_tabular(sizes: Sizes) -> nn.Sequential:
    width, layers = sizes["width"], [nn.Linear(sizes["features"], sizes["width"]), nn.ReLU()]
    for _ in range(sizes["layers"] - 1):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def make_field(sizes: Sizes) -> nn.Sequential:
    """A function of the plane, smooth."""
    width, layers = sizes["width"], [nn.Linear(2, sizes["width"]), nn.Tanh()]
    for _ in range(sizes["layers"] - 1):
        layers += [nn.Linear(width, width), nn.Tanh()]
    field = nn.Sequential(*layers, nn.Linear(width, 1))
    for layer in field[::2]:
        nn.init.xavier_normal_(layer.weight)
        nn.init.zeros_(layer.bias)
    return field


def make_linear(sizes: Sizes) -> nn.Sequential:
    """Images to images by a product of three matrices that starts small."""
    width = sizes["width"]
    layers = [nn.Linear(m, n) for m, n in ((784, width), (width, width), (width, 784))]
    for layer in layers:
        nn.init.normal_(layer.weight, std=0.3 / math.sqrt(layer.in_features))
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


# --- Losses. ---


def next_byte(model: nn.Module, batch: Batch) -> Tensor:
    (tokens,) = batch
    scores = model(tokens[:, :-1]).float()
    return functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())


def right_label(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch[0]).float(), batch[1])


def right_number(model: nn.Module, batch: Batch) -> Tensor:
    return functional.mse_loss(model(batch[0]).squeeze(1), batch[1])


def same_image(model: nn.Module, batch: Batch) -> Tensor:
    x = batch[0].flatten(1)
    return functional.mse_loss(model(x), x)


def clean_image(model: nn.Module, batch: Batch) -> Tensor:
    noisy, clean = (part.flatten(1) for part in batch)
    return functional.mse_loss(model(noisy), clean)


def right_noise(model: nn.Module, batch: Batch) -> Tensor:
    mixture, time, noise = batch
    return functional.mse_loss(model(mixture, time).float(), noise)


def same_entry(model: nn.Module, batch: Batch) -> Tensor:
    chosen, values = batch
    product = functools.reduce(lambda left, layer: layer.weight @ left, model[1:], model[0].weight)
    return functional.mse_loss(product.flatten()[chosen], values)


def helmholtz(model: nn.Module, batch: Batch) -> Tensor:
    """Mean squared residual of u_xx + u_yy + u = q inside and of u = 0 on the boundary, where
    u = sin(pi x) sin(4 pi y) is the solution (Wang, Teng and Perdikaris, arXiv 2001.04536)."""
    inside, on = batch
    pi, (x, y) = math.pi, inside.T
    solution = torch.sin(pi * x) * torch.sin(4 * pi * y)
    value, laplacian = with_laplacian(model, inside)
    residual = laplacian + value - (1 - 17 * pi**2) * solution
    return residual.square().mean() / (17 * pi**2) + 10 * model(on).square().mean()


def with_laplacian(field: nn.Module, points: Tensor) -> tuple[Tensor, Tensor]:
    """Values and Laplacians of linear layers with tanh between them, derivatives carried along:
    one pass forward, so that training differentiates once."""
    eye = torch.eye(2, device=points.device, dtype=points.dtype)
    value, slopes = points, eye[:, None, :].expand(2, len(points), 2)
    bends = torch.zeros_like(slopes)
    for layer in field:
        if isinstance(layer, nn.Linear):
            value = layer(value)
            slopes, bends = slopes @ layer.weight.T, bends @ layer.weight.T
        else:
            value = torch.tanh(value)
            rise = 1 - value.square()
            bends = rise * bends - 2 * value * rise * slopes.square()
            slopes = rise * slopes
    return value.squeeze(-1), bends.sum(0).squeeze(-1)
