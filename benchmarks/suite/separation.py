"""How fast copies part on their own, and what the curvature at the start says about it.

    python benchmarks/training.py separation

The widened MLP starts from equal copies, which a kick sets apart: normal noise on the hidden
weights, of a given size relative to them. Then batches of 128 train it at a constant lr, without
noise. "kept" is NetworkASGLD with one D per coordinate that keeps its momentum, "waits" the preset,
whose coordinates wait while momentum opposes the gradient. The MLP of the task has ReLU, "relu";
"gelu" is the same with GELU, since the Hessian of ReLU does not know the kinks.

A kick of 1e-4 in float32 is what happens in practice. A kick of 1e-8 in float64 stays small for
long, so that differences obey a linear law, if they obey one.

================  ==========================================================================
column            meaning
================  ==========================================================================
distance          of copies from their mean, relative to the weights (`Growth.distance`)
fitted_rate       slope of log(distance) against steps in the window
begin, end        the window: from where the distance is three times the kick, and growth shows,
                  to where it is 0.003, since growth slows down beyond; if the distance does not
                  get that far, the second half of the run
predicted_rate    `calibrate_copies(...).rate` at the start, from 16 batches
many_rate         the same from 256 batches
window_rate       from 16 batches where the window begins, of the network with averaged copies
path_rate         of the mean Hessian along the window, each point with its own batch; for "kept"
                  and the small kick alone
================  ==========================================================================

What is found. With GELU differences grow exponentially, by all three rules about alike, but slower
than every prediction. Predictions from more batches are smaller: chance looks like negative
curvature. The mean Hessian of the path, of some hundred batches, still predicts too much; the
directions of fastest growth do not last. With ReLU a kick of 1e-8 hardly grows, while one of 1e-4
does, in float64 too, so no linear law holds. The Hessian that autograd knows is made of gradients
there, which have no lasting sign; what parts copies are, we think, the kinks, the sooner the larger
the kick.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from measure import RESULTS, run_tasks, write_csv
from torch import Tensor, nn
from torch.nn import functional

import asgld
from suite import grown
from suite.running import load_data
from suite.tasks import TASKS, Task

LR, STEPS, EVERY = 2e-3, 1000, 10
FEW, MANY = 16, 256
# Points of a path whose Hessians are averaged, at most.
NUM_POINTS = 250
GROWN, LARGEST, FEWEST = 3.0, 3e-3, 5
RULES = ("kept", "waits", "adamw")
# network, kick, precision
SETTINGS = (
    ("relu", 1e-4, torch.float32), ("relu", 1e-8, torch.float64), ("gelu", 1e-8, torch.float64),
)  # fmt: skip


class Smooth(grown.Perceptron):
    """The same perceptron with GELU."""

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.gelu(self.first(x.flatten(1)))
        return self.output(functional.gelu(self.second(inner)))


_SMOOTH = grown.Growth("mlp-gelu", Smooth, "inner", grown.widen_perceptron, grown.perceptron_copies)
_TASK = TASKS["grown-mlp"]
_NETWORKS: dict[str, Task] = {
    "relu": _TASK,
    "gelu": dataclasses.replace(_TASK, model=_SMOOTH, watch=_SMOOTH.distance),
}


class Setting(NamedTuple):
    """What is trained, and how."""

    network: str
    kick: float
    dtype: torch.dtype
    seed: int
    size: str

    @property
    def task(self) -> Task:
        return _NETWORKS[self.network]

    @property
    def sizes(self) -> dict[str, int]:
        return self.task.sizes(self.size)

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        x, y = load_data(self.task.data, tuple(self.sizes.items()), "cpu").batch(index)
        return x.to(self.dtype), y

    def order(self, count: int, seed: int) -> Tensor:
        """Indices of random batches."""
        size = load_data(self.task.data, tuple(self.sizes.items()), "cpu").size
        drawn = torch.Generator().manual_seed(seed)
        return torch.randint(size, (count, self.sizes["batch"]), generator=drawn)

    def start(self) -> Any:
        torch.manual_seed(self.seed)
        return self.task.model(self.sizes).to(self.dtype)

    def distance(self, model: nn.Module) -> float:
        assert self.task.watch is not None
        return self.task.watch(model, self.sizes)


@torch.no_grad()
def kick(model: Any, size: float, seed: int) -> None:
    drawn = torch.Generator().manual_seed(3000 + seed)
    for weight in (model.first.weight, model.second.weight):
        noise = torch.randn(weight.shape, generator=drawn).to(weight.dtype)
        weight += size * weight.norm() / noise.norm() * noise


@torch.no_grad()
def averaged(model: Any, count: int) -> Any:
    """The network whose copies are equal again: each is the mean of all."""
    model = copy.deepcopy(model)
    layers = ((model.first, count, 1), (model.second, count, count), (model.output, 1, count))
    for layer, outputs, inputs in layers:
        blocks = layer.weight.unflatten(1, (inputs, -1)).unflatten(0, (outputs, -1))
        layer.weight.copy_(blocks.mean((0, 2)).repeat(outputs, inputs))
        layer.bias.copy_(layer.bias.unflatten(0, (outputs, -1)).mean(0).repeat(outputs))
    return model


def build(model: nn.Module, rule: str) -> torch.optim.Optimizer:
    if rule == "adamw":
        return torch.optim.AdamW(model.parameters(), LR, weight_decay=0.0)
    opposed = 1.0 if rule == "kept" else 0.0
    return asgld.NetworkASGLD(model, LR, shape="coordinate", noise=0.0, opposed=opposed)


# --- Predictions ---


def rate_at(setting: Setting, model: nn.Module, count: int, steps: int) -> float:
    """The predicted rate at a network of equal copies, from so many batches."""
    batches = [setting.batch(index) for index in setting.order(count, 4000 + setting.seed)]
    return _rate(model, batches, steps)


def _rate(model: nn.Module, batches: list[Any], steps: int) -> float:
    source = asgld.ModelHessian(model, functional.cross_entropy, batches)
    return asgld.calibrate_copies(source, lr=LR, steps=steps).rate or 0.0


class Along(nn.Module):
    """A network at many points: the first and its distances to the others. Inputs come with the
    number of their point, so the mean loss has the mean Hessian of all points."""

    def __init__(self, points: list[nn.Module]) -> None:
        super().__init__()
        self.model = copy.deepcopy(points[0])
        first = dict(points[0].named_parameters())
        self.moved = [
            {name: (p - first[name]).detach() for name, p in point.named_parameters()}
            for point in points
        ]

    def forward(self, inputs: tuple[Tensor, int]) -> Tensor:
        x, number = inputs
        here = {name: p + self.moved[number][name] for name, p in self.model.named_parameters()}
        return torch.func.functional_call(self.model, here, (x,))


# --- Runs ---


def measure(network: str, size: float, dtype: torch.dtype, seed: int, steps: int,
            scale: str) -> list[dict[str, Any]]:  # fmt: skip
    """All rules from one start."""
    setting = Setting(network, size, dtype, seed, scale)
    start = setting.start()
    known = {
        "predicted_rate": rate_at(setting, start, FEW, steps),
        "many_rate": rate_at(setting, start, MANY if scale == "full" else FEW, steps),
    }
    rows = []
    for rule in RULES:
        distances, points = follow(setting, rule, steps)
        begin, end = window(distances)
        found = known | {
            "window_rate": rate_at(setting, points[begin * EVERY], FEW, steps),
            "path_rate": "",
            "fitted_rate": slope(distances[begin:end]),
            "begin": begin * EVERY,
            "end": (end - 1) * EVERY,
        }
        if rule == "kept" and dtype == torch.float64:
            found["path_rate"] = path_rate(setting, points, begin * EVERY, (end - 1) * EVERY, steps)
        told = {key: value if value == "" else f"{value:.4g}" for key, value in found.items()}
        print({"network": network, "kick": size, "seed": seed, "rule": rule} | told, flush=True)
        rows += [
            {"network": network, "kick": f"{size:g}", "seed": seed, "rule": rule,
             "step": EVERY * look, "distance": f"{distance:.4g}", **told}
            for look, distance in enumerate(distances)
        ]  # fmt: skip
    return rows


def follow(setting: Setting, rule: str, steps: int) -> tuple[list[float], list[Any]]:
    """Train after a kick: the distance every few steps, and averaged networks of all steps."""
    model, count = setting.start(), setting.sizes["copies"]
    kick(model, setting.kick, setting.seed)
    optimizer = build(model, rule)
    distances, points = [], []
    for step, index in enumerate(setting.order(steps + 1, 1000 + setting.seed)):
        points.append(averaged(model, count))
        if step % EVERY == 0:
            distances.append(setting.distance(model))
        optimizer.zero_grad()
        setting.task.loss(model, setting.batch(index)).backward()
        optimizer.step()
    return distances, points


def path_rate(setting: Setting, points: list[Any], begin: int, end: int, steps: int) -> float:
    """The rate of the mean Hessian between two steps."""
    order = setting.order(steps + 1, 1000 + setting.seed)
    chosen = range(begin, end, math.ceil((end - begin) / NUM_POINTS))
    batches = [setting.batch(order[step]) for step in chosen]
    numbered = [((x, number), y) for number, (x, y) in enumerate(batches)]
    return _rate(Along([points[step] for step in chosen]), numbered, steps)


def window(distances: list[float]) -> tuple[int, int]:
    """Where growth is seen and still small, as a range of looks; see the table above."""
    found = np.asarray(distances)
    shown = np.flatnonzero(found > GROWN * found[0])
    large = np.flatnonzero(found > LARGEST)
    begin, end = (int(part[0]) if len(part) else len(found) for part in (shown, large))
    return (begin, end) if end - begin >= FEWEST else (len(found) // 2, len(found))


def slope(distances: list[float]) -> float:
    return float(np.polyfit(EVERY * np.arange(len(distances)), np.log(distances), 1)[0])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("training.py separation", description="How copies part.")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--size", choices=["full", "tiny"], default="full")
    parser.add_argument("--out", type=Path, default=RESULTS / "training_separation.csv")
    given = parser.parse_args(arguments)
    tasks = [
        (*setting, int(seed), given.steps, given.size)
        for setting in SETTINGS
        for seed in given.seeds.split(",")
    ]
    write_csv(given.out, run_tasks(measure, tasks, in_place=True))
    print(f"written to {given.out}")
