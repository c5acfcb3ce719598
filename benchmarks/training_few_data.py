"""Few data: does annealed noise help the test loss of a network? Weight decay is the control.

A network with two hidden layers on 100, 300 or 900 of scikit-learn's digits, tested on 800 others.
All seeds (split, initialization) run at once, along the first axis of all tensors; batches and,
for a given lr, seeds are the same for all optimizers, so that differences are paired.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from measure import run_tasks
from torch import Tensor
from torch.nn import functional
from training_gpt import FLOOR, Build, grid

import asgld

# What names a row.
KEYS = ("train_size", "optimizer", "lr", "seed")
SIZES = (100, 300, 900)
NUM_TEST = 800
BATCH = 50


def contenders() -> dict[str, tuple[Build, list[float]]]:
    def adamw(weight_decay: float) -> Build:
        return lambda p, lr, _: torch.optim.AdamW(
            p, lr, betas=(0.9, 0.99), weight_decay=weight_decay
        )

    def ours(noise: float) -> Build:
        return lambda p, lr, _: asgld.NetworkASGLD(p, lr, noise=noise)

    def with_floor(params: list[Tensor], lr: float, mean_square: float) -> asgld.NetworkASGLD:
        return asgld.NetworkASGLD(params, lr, noise=0.0, delta=FLOOR * mean_square)

    rates = grid(2.5e-4, 6)
    return {
        "SGD, momentum": (lambda p, lr, _: torch.optim.SGD(p, lr, momentum=0.9), grid(2.5e-3, 6)),
        "AdamW, no weight decay": (adamw(0.0), rates),
        **{f"AdamW, weight decay {decay:g}": (adamw(decay), rates) for decay in (0.1, 1.0)},
        **{
            f"NetworkASGLD, noise {noise:g}": (ours(noise), rates)
            for noise in (0.0, 0.3, 1.0, 3.0, 10.0)
        },
        "NetworkASGLD, noise 0, floor": (with_floor, rates),
    }


def measure_few_data(quick: bool, only: list[str]) -> list[dict[str, Any]]:
    """Rows of all sizes, optimizers, learning rates and seeds, on all cores."""
    tasks = [
        (size, name, quick)
        for size in SIZES[: 1 if quick else None]
        for name in contenders()
        if not only or str(size) in only or name in only
    ]
    return run_tasks(measure_contender, tasks, in_place=quick)


def measure_contender(size: int, name: str, quick: bool) -> list[dict[str, Any]]:
    """Test loss and error of one optimizer, for all learning rates and seeds."""
    images, labels = load_images()
    seeds, steps, hidden = (2, 15, 16) if quick else (20, 1000, 32)
    order = torch.stack([torch.randperm(len(labels), generator=torch.Generator().manual_seed(s))
                         for s in range(seeds)])  # fmt: skip
    train, test = order[:, :size], order[:, -NUM_TEST:]
    measured = partial(losses_and_errors, images=images, labels=labels)
    build, rates = contenders()[name]
    rows: list[dict[str, Any]] = []
    for lr in rates[2:3] if quick else rates:
        params = make_networks(seeds, hidden)
        with torch.no_grad():
            start, _ = measured(params, train)
        set_gradients(params, measured(params, train[:, :BATCH])[0])
        optimizer = build(params, lr, asgld.mean_square_gradient(params))
        fit(params, optimizer, partial(measured, params), train, steps)
        with torch.no_grad():
            losses, errors = measured(params, test)
            fitted, _ = measured(params, train)
        rows += [
            {
                "train_size": size, "optimizer": name, "lr": lr, "seed": seed,
                "test_loss": round(float(losses[seed]), 4),
                "test_error": round(float(errors[seed]), 4),
                "train_loss": round(float(fitted[seed]), 5),
                "start_loss": round(float(start[seed]), 4),
            }
            for seed in range(seeds)
        ]  # fmt: skip
    print(f"{size} samples, {name}: done", flush=True)
    return rows


def load_images() -> tuple[Tensor, Tensor]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("few-data needs scikit-learn: pip install 'asgld[data]'") from error
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels / 16.0, dtype=torch.float32), torch.tensor(labels)


def make_networks(seeds: int, hidden: int) -> list[Tensor]:
    """Weights and biases of three layers, one network per seed."""
    generator = torch.Generator().manual_seed(5)
    params = []
    for fan_in, fan_out in ((64, hidden), (hidden, hidden), (hidden, 10)):
        scale = math.sqrt(2.0 / fan_in)
        params.append(scale * torch.randn(seeds, fan_in, fan_out, generator=generator))
        params.append(torch.zeros(seeds, 1, fan_out))
    return [p.requires_grad_() for p in params]


def fit(
    params: list[Tensor], optimizer: torch.optim.Optimizer, measured: Any, train: Tensor, steps: int
) -> None:
    """Train on random batches, drawn alike for all optimizers."""
    generator = torch.Generator().manual_seed(11)
    for _ in range(steps):
        picked = torch.randint(train.shape[1], (len(train), BATCH), generator=generator)
        set_gradients(params, measured(train.gather(1, picked))[0])
        optimizer.step()


def set_gradients(params: list[Tensor], losses: Tensor) -> None:
    for p, gradient in zip(params, torch.autograd.grad(losses.sum(), params), strict=True):
        p.grad = gradient


def losses_and_errors(
    params: list[Tensor], chosen: Tensor, images: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy and share of errors on the chosen images, per seed."""
    x, y = images[chosen], labels[chosen]
    for i in range(0, len(params), 2):
        x = torch.baddbmm(params[i + 1], x, params[i])
        if i + 2 < len(params):
            x = torch.relu(x)
    losses = functional.cross_entropy(x.flatten(0, 1), y.flatten(), reduction="none")
    return losses.view(y.shape).mean(1), (x.argmax(-1) != y).float().mean(1)
