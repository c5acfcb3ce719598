"""How the rules train: a byte-level GPT, saddles of networks and matrices, networks on few data.

    python benchmarks/training.py gpt          losses against lr, with and without a schedule
    python benchmarks/training.py saddles      who leaves an exact saddle, who a small start, when
    python benchmarks/training.py few-data     does annealed noise help the test loss?
    python benchmarks/training.py figures      docs/figures/training from the CSV files
    ... --quick                                seconds on a CPU; nothing is written

Every optimizer gets the same number of learning rates, a factor of two apart. All seeds of a
setting run at once: the rules are element-wise, so tensors with a leading axis are that many runs.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import RESULTS, write_csv
from torch import Tensor
from torch.nn import functional

import asgld

Build = Callable[[list[Tensor], float, float], torch.optim.Optimizer]
FIGURES = Path(__file__).parent.parent / "docs" / "figures" / "training"
NUM_SEEDS = 3
# Of the first noise step to the first gradient step, where a rule has no unit of its own.
RATIO = 0.1


def grid(first: float, count: int = 7) -> list[float]:
    return [first * 2**i for i in range(count)]


# Each takes parameters, lr and the mean square of a first gradient.
CONTENDERS: dict[str, tuple[Build, list[float]]] = {
    "AdamW": (
        lambda p, lr, _: torch.optim.AdamW(p, lr, betas=(0.9, 0.99), weight_decay=0.0, fused=True),
        grid(1.25e-4, 8),
    ),
    "NetworkASGLD, no noise": (lambda p, lr, _: asgld.NetworkASGLD(p, lr, noise=0.0), grid(2.5e-4)),
    "NetworkASGLD": (lambda p, lr, _: asgld.NetworkASGLD(p, lr), grid(2.5e-4)),
    "Adagrad": (lambda p, lr, _: torch.optim.Adagrad(p, lr, foreach=True), grid(2.5e-4, 8)),
    "ASG, calibrated": (
        lambda p, lr, ms: asgld.ASG(p, lr, d_init=100 * ms, delta=ms),
        grid(1e-3),
    ),
    "ASGLD, calibrated": (
        lambda p, lr, ms: asgld.ASGLD(
            p, lr, d_init=100 * ms, delta=ms, sigma=RATIO * math.sqrt(lr * ms / 2)
        ),
        grid(1e-3),
    ),
    "PSGLD": (
        lambda p, lr, ms: asgld.PSGLD(p, lr, sigma=RATIO * math.sqrt(lr / 2) * ms**0.25),
        grid(2.5e-4),
    ),
    "SGD, momentum": (lambda p, lr, _: torch.optim.SGD(p, lr, momentum=0.9), grid(1e-2)),
    "SGLD": (
        lambda p, lr, ms: asgld.SGLD(p, lr, sigma=RATIO * math.sqrt(lr * ms / 2)),
        grid(5e-2),
    ),
}


def scheduled(kind: str, step: int, steps: int) -> float:
    """The factor of lr: one, or a warm-up over a tenth and a cosine down to a tenth."""
    if kind == "constant":
        return 1.0
    warm = steps / 10
    if step < warm:
        return (step + 1) / warm
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))


# ----------------------------------------------------------------------------------------------
# A byte-level GPT on the source of the standard library
# ----------------------------------------------------------------------------------------------


def library_source(limit: int) -> Tensor:
    """Up to `limit` bytes of the standard library's source, in the order of file names."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(f for f in root.rglob("*.py") if not {"test", "site-packages"} & set(f.parts))
    text = bytearray()
    for file in files:
        text += file.read_bytes()
        if len(text) >= limit:
            break
    return torch.frombuffer(text[:limit], dtype=torch.uint8)


class ReplicatedGPT(torch.nn.Module):
    """As many independent transformers as there are seeds, along the first axis of all tensors."""

    def __init__(self, seeds: int, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads, self.layers, self.seeds = heads, layers, seeds
        shapes: dict[str, tuple[tuple[int, ...], float]] = {
            "token": ((256, width), 0.02),
            "place": ((context, width), 0.02),
            "head": ((width, 256), 0.02),
        }
        for i in range(layers):
            out = 0.02 / math.sqrt(2 * layers)
            shapes |= {
                f"attend_{i}": ((width, 3 * width), 0.02),
                f"join_{i}": ((width, width), out),
                f"widen_{i}": ((width, 4 * width), 0.02),
                f"narrow_{i}": ((4 * width, width), out),
            }
        parts = (("attend_bias", 3), ("join_bias", 1), ("widen_bias", 4), ("narrow_bias", 1))
        vectors = {f"{name}_{i}": s * width for i in range(layers) for name, s in parts}
        gains = [f"gain_{i}" for i in range(2 * layers + 1)]
        self.start: dict[str, Tensor] = {}
        for name, (shape, scale) in shapes.items():
            drawn = [
                torch.randn(
                    shape, generator=torch.Generator().manual_seed(1000 * s + len(self.start))
                )
                for s in range(seeds)
            ]
            self.start[name] = scale * torch.stack(drawn)
        self.start |= {name: torch.zeros(seeds, 1, size) for name, size in vectors.items()}
        self.start |= {name: torch.ones(seeds, 1, 1, width) for name in gains}
        for name, value in self.start.items():
            self.register_parameter(name, torch.nn.Parameter(value.clone()))

    def reset(self) -> None:
        with torch.no_grad():
            for name, value in self.start.items():
                getattr(self, name).copy_(value)

    def _linear(self, h: Tensor, name: str, bias: str) -> Tensor:
        seeds, batch, context, width = h.shape
        out = torch.baddbmm(getattr(self, bias), h.reshape(seeds, -1, width), getattr(self, name))
        return out.view(seeds, batch, context, -1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Mean cross-entropy of the next byte, per seed; tokens are (seeds, batch, context + 1)."""
        inputs, targets = tokens[..., :-1], tokens[..., 1:]
        seeds, batch, context = inputs.shape
        shift = 256 * torch.arange(seeds, device=inputs.device).view(-1, 1, 1)
        h = functional.embedding(inputs + shift, self.token.flatten(0, 1)) + self.place[:, None]
        width = h.shape[-1]
        for i in range(self.layers):
            x = functional.layer_norm(h, (width,)) * getattr(self, f"gain_{2 * i}")
            q, k, v = (
                part.view(seeds * batch, context, self.heads, -1).transpose(1, 2)
                for part in self._linear(x, f"attend_{i}", f"attend_bias_{i}").chunk(3, -1)
            )
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            mixed = mixed.transpose(1, 2).reshape(seeds, batch, context, width)
            h = h + self._linear(mixed, f"join_{i}", f"join_bias_{i}")
            x = functional.layer_norm(h, (width,)) * getattr(self, f"gain_{2 * i + 1}")
            x = functional.gelu(self._linear(x, f"widen_{i}", f"widen_bias_{i}"))
            h = h + self._linear(x, f"narrow_{i}", f"narrow_bias_{i}")
        h = functional.layer_norm(h, (width,)) * getattr(self, f"gain_{2 * self.layers}")
        logits = torch.bmm(h.reshape(seeds, -1, width), self.head).float()
        losses = functional.cross_entropy(
            logits.flatten(0, 1), targets.reshape(-1), reduction="none"
        )
        return losses.view(seeds, -1).mean(1)


class GPTWork:
    """The model, its data, and one captured graph of loss and gradients that all settings share."""

    def __init__(self, quick: bool, device: str) -> None:
        self.steps = 20 if quick else 1000
        self.context, self.batch = (32, 4) if quick else (256, 16)
        size = (1, 32, 2) if quick else (6, 384, 6)
        self.model = ReplicatedGPT(NUM_SEEDS, *size, self.context).to(device)
        self.model.start = {name: value.to(device) for name, value in self.model.start.items()}
        source = library_source(200_000 if quick else 5_500_000).to(device).long()
        cut = len(source) * 9 // 10
        self.train, self.check = source[:cut], source[cut:]
        generator = torch.Generator().manual_seed(7)
        shape = (self.steps, NUM_SEEDS, self.batch)
        limit = len(self.train) - self.context - 1
        self.offsets = torch.randint(limit, shape, generator=generator).to(device)
        limit = len(self.check) - self.context - 1
        shape = (2 if quick else 8, 1, 4 * self.batch)
        self.check_offsets = torch.randint(limit, shape, generator=generator).to(device)
        self.check_offsets = self.check_offsets.expand(-1, NUM_SEEDS, -1)
        self.chosen = self.offsets[0].clone()
        self.loss = torch.zeros(NUM_SEEDS, device=device)
        self.device = device
        self.compute = self._capture() if device == "cuda" else self._compute

    def _tokens(self, text: Tensor, offsets: Tensor) -> Tensor:
        return text[offsets[..., None] + torch.arange(self.context + 1, device=text.device)]

    def _losses(self, text: Tensor, offsets: Tensor) -> Tensor:
        kind = torch.bfloat16 if self.device == "cuda" else torch.float32
        enabled = self.device == "cuda"
        with torch.autocast(self.device, kind, enabled=enabled, cache_enabled=False):
            return self.model(self._tokens(text, offsets))

    def _compute(self) -> None:
        for p in self.model.parameters():
            p.grad = None
        losses = self._losses(self.train, self.chosen)
        losses.sum().backward()
        self.loss.copy_(losses.detach())

    def _capture(self) -> Callable[[], None]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._compute()
        torch.cuda.current_stream().wait_stream(stream)
        for p in self.model.parameters():
            p.grad = None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._compute()
        return graph.replay

    def check_losses(self) -> Tensor:
        with torch.no_grad():
            found = [self._losses(self.check, offsets) for offsets in self.check_offsets]
        return torch.stack(found).mean(0)

    def mean_square(self) -> float:
        """Mean square of a coordinate of the first gradient."""
        self.model.reset()
        self.compute()
        squares = [p.grad.double().square().sum() for p in self.model.parameters()]
        return float(sum(squares)) / sum(p.numel() for p in self.model.parameters())

    def run(
        self, build: Build, lr: float, schedule: str, mean_square: float
    ) -> dict[int, list[float]]:
        """Validation losses of all seeds at a few steps; infinite once training has broken down."""
        self.model.reset()
        optimizer = build(list(self.model.parameters()), lr, mean_square)
        found: dict[int, list[float]] = {}
        marks = {max(1, self.steps // 10), max(1, 3 * self.steps // 10), self.steps}
        for step in range(self.steps):
            for group in optimizer.param_groups:
                group["lr"] = lr * scheduled(schedule, step, self.steps)
            self.chosen.copy_(self.offsets[step])
            self.compute()
            optimizer.step()
            if step + 1 in marks:
                losses = [v if math.isfinite(v) else math.inf for v in self.check_losses().tolist()]
                found[step + 1] = losses
                if min(losses) > 5.6:  # worse than a guess: it will not come back
                    break
        return {mark: found.get(mark, [math.inf] * NUM_SEEDS) for mark in sorted(marks)}


def measure_gpt(
    quick: bool, device: str, seconds: float, out: Path | None, only: list[str]
) -> list[dict[str, Any]]:
    work = GPTWork(quick, device)
    mean_square = work.mean_square()
    begun, rows = time.time(), []
    chosen = [row.split("/") for row in only]  # optimizer/schedule/lr, the last two optional
    for name, (build, rates) in CONTENDERS.items():
        for schedule in ("constant", "warm-up and cosine"):
            for lr in rates[:1] if quick else rates:
                row = [name, schedule, f"{lr:g}"]
                if only and not any(row[: len(wanted)] == wanted for wanted in chosen):
                    continue
                if time.time() - begun > seconds:
                    print(f"out of time before {name}, lr {lr:g}, {schedule}")
                    continue
                found = work.run(build, lr, schedule, mean_square)
                for seed in range(NUM_SEEDS):
                    rows.append({"optimizer": name, "schedule": schedule, "lr": lr, "seed": seed,
                                 **{f"loss_{mark}": round(losses[seed], 4)
                                    for mark, losses in found.items()}})  # fmt: skip
                last = list(found.values())[-1]
                spent = f"({time.time() - begun:.0f} s)"
                print(
                    f"{schedule:18s} {name:24s} lr {lr:<9g} {statistics.median(last):.4f}  {spent}"
                )
            if out is not None:
                write_csv(out, rows)
    return rows


# ----------------------------------------------------------------------------------------------
# Saddles: exact gradients, so that nothing but injected noise leads away
# ----------------------------------------------------------------------------------------------

# Standard deviation of the first noise step, in every coordinate, for all that have noise.
KICK = 1e-3


def saddle_contenders() -> dict[str, tuple[Callable[[Tensor, float], Any], list[float]]]:
    """Optimizers with equal noise energy at the first step."""

    def sigma(lr: float, root_d: float = 1.0) -> float:
        return KICK / math.sqrt(2 * lr) * root_d

    slow, fast = grid(1e-2, 5), grid(2.5e-3, 5)
    return {
        "SGD": (lambda x, lr: torch.optim.SGD([x], lr), slow),
        "SGD, momentum": (lambda x, lr: torch.optim.SGD([x], lr, momentum=0.9), slow),
        "AdamW": (lambda x, lr: torch.optim.AdamW([x], lr, weight_decay=0.0), fast),
        "Adagrad": (lambda x, lr: torch.optim.Adagrad([x], lr), slow),
        "ASG": (lambda x, lr: asgld.ASG([x], lr), slow),
        "SGLD": (lambda x, lr: asgld.SGLD([x], lr, sigma=sigma(lr)), slow),
        "PSGLD": (lambda x, lr: asgld.PSGLD([x], lr, sigma=sigma(lr), d_init=1.0), fast),
        "AGLD": (lambda x, lr: asgld.AGLD([x], lr, sigma=sigma(lr)), slow),
        "ASGLD": (lambda x, lr: asgld.ASGLD([x], lr, sigma=sigma(lr)), slow),
        "NetworkASGLD": (lambda x, lr: asgld.NetworkASGLD([x], lr, noise=KICK / lr), fast),
        "NetworkASGLD, no noise": (lambda x, lr: asgld.NetworkASGLD([x], lr, noise=0.0), fast),
    }


# problem: replicas, steps, learning rates
SADDLES = {
    "factorization": (30, 800, 3),
    "sensing": (30, 800, 3),
    "phase-retrieval": (30, 800, 3),
    "deep-linear": (30, 800, 3),
    "digits": (10, 300, 2),
}


def measure_saddles(quick: bool, only: list[str]) -> list[dict[str, Any]]:
    from asgld.problems import problem

    rows = []
    for title in only or (["factorization"] if quick else list(SADDLES)):
        replicas, steps, num_rates = (4, 50, 1) if quick else SADDLES[title]
        function = problem(title)
        saddle = function.facts.saddles[0]
        spread = make_noise(replicas, function.dim)
        for start, x0 in (("exact saddle", saddle.point.expand(replicas, -1)),
                          ("1e-3 from it", saddle.point + 1e-3 * spread)):  # fmt: skip
            curves: dict[tuple[str, float], Tensor] = {}
            for name, (build, rates) in saddle_contenders().items():
                for lr in rates[-num_rates - 1 : -1]:
                    curves[name, lr] = descend(function, build, lr, x0, steps)
            # Gone is who has fallen by a tenth of the deepest fall that anybody found.
            finite = [c[torch.isfinite(c)].min() for c in curves.values()]
            level = saddle.value - 0.1 * (saddle.value - float(min(finite)))
            for (name, lr), curve in curves.items():
                below = curve < level
                first = torch.where(below.any(0), below.int().argmax(0).double(), math.inf)
                settled = torch.isfinite(curve[-1]) & below[-1]
                low, high = wilson(int(settled.sum()), replicas)
                rows.append({
                    "problem": title, "dim": function.dim, "start": start, "optimizer": name,
                    "lr": lr, "replicas": replicas, "left": int(settled.sum()),
                    "share_low": round(low, 3), "share_high": round(high, 3),
                    **quantiles(first), "final_median": float(curve[-1].median()),
                })  # fmt: skip
        print(f"{title}: done", flush=True)
    return rows


def make_noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def descend(
    function: Any, build: Callable[[Tensor, float], Any], lr: float, x0: Tensor, steps: int
) -> Tensor:
    """Objective values, (steps + 1, replicas)."""
    x = x0.clone().contiguous().requires_grad_()
    optimizer = build(x, lr)
    curve = [function.value(x.detach())]
    for _ in range(steps):
        x.grad = function.grad(x.detach())
        optimizer.step()
        curve.append(function.value(x.detach()))
        if not bool(torch.isfinite(curve[-1]).any()):
            break
    curve += [curve[-1]] * (steps + 1 - len(curve))
    return torch.stack(curve)


def quantiles(times: Tensor) -> dict[str, float]:
    """Order statistics that infinite times leave well defined: quartiles and a 95 % interval of the
    median."""
    ordered = sorted(times.tolist())
    count = len(ordered)
    half = 0.98 * math.sqrt(count)  # of a binomial with probability one half
    low, high = max(0, math.floor(count / 2 - half)), min(count - 1, math.ceil(count / 2 + half))
    return {
        "steps_median": ordered[count // 2],
        "steps_low": ordered[low],
        "steps_high": ordered[high],
    }


def wilson(hits: int, count: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    z, share = 1.96, hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / count) ** 2 / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


# ----------------------------------------------------------------------------------------------
# Few data
# ----------------------------------------------------------------------------------------------


def measure_few_data(quick: bool, only: list[str]) -> list[dict[str, Any]]:
    """A network on a few hundred digits: test loss and error with and without noise."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    seeds, steps, hidden, batch = (2, 30, 16, 20) if quick else (20, 1000, 32, 50)
    order = torch.stack([torch.randperm(len(labels), generator=torch.Generator().manual_seed(s))
                         for s in range(seeds)])  # fmt: skip
    test = order[:, -800:]
    rows = []
    contenders: dict[str, Build] = {
        "AdamW": CONTENDERS["AdamW"][0],
        "SGD, momentum": CONTENDERS["SGD, momentum"][0],
        **{
            f"NetworkASGLD, noise {noise:g}": (
                lambda p, lr, _, noise=noise: asgld.NetworkASGLD(p, lr, noise=noise)
            )
            for noise in (0.0, 0.3, 1.0, 3.0, 10.0)
        },
    }
    for size in map(int, only or (["100"] if quick else ["100", "300", "900"])):
        train = order[:, :size]
        for name, build in contenders.items():
            for lr in grid(1e-2 if name.startswith("SGD") else 1e-3, 1 if quick else 3):
                params = few_data_network(seeds, hidden)
                optimizer = build(params, lr, 1.0)
                drawn = torch.Generator().manual_seed(11)
                for _ in range(steps):
                    picked = torch.randint(size, (seeds, min(batch, size)), generator=drawn)
                    chosen = train.gather(1, picked)
                    loss = few_data_losses(params, images[chosen], labels[chosen])[0].sum()
                    for p, g in zip(params, torch.autograd.grad(loss, params), strict=True):
                        p.grad = g
                    optimizer.step()
                with torch.no_grad():
                    losses, errors = few_data_losses(params, images[test], labels[test])
                    fitted, _ = few_data_losses(params, images[train], labels[train])
                for seed in range(seeds):
                    rows.append({"train_size": size, "optimizer": name, "lr": lr, "seed": seed,
                                 "test_loss": round(float(losses[seed]), 4),
                                 "test_error": round(float(errors[seed]), 4),
                                 "train_loss": round(float(fitted[seed]), 5)})  # fmt: skip
        print(f"{size} samples: done", flush=True)
    return rows


def few_data_network(seeds: int, hidden: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    params = []
    for fan_in, fan_out in ((64, hidden), (hidden, hidden), (hidden, 10)):
        scale = math.sqrt(2.0 / fan_in)
        params.append(scale * torch.randn(seeds, fan_in, fan_out, generator=generator))
        params.append(torch.zeros(seeds, 1, fan_out))
    return [p.requires_grad_() for p in params]


def few_data_losses(params: list[Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy and share of errors, per seed."""
    for i in range(0, len(params), 2):
        x = torch.baddbmm(params[i + 1], x, params[i])
        if i + 2 < len(params):
            x = torch.relu(x)
    losses = functional.cross_entropy(x.flatten(0, 1), y.flatten(), reduction="none")
    return losses.view(y.shape).mean(1), (x.argmax(-1) != y).float().mean(1)


# ----------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["gpt", "saddles", "few-data", "figures"])
    parser.add_argument("--quick", action="store_true", help="seconds on a CPU; writes nothing")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop gpt after this long")
    parser.add_argument("--only", action="append", default=[], help="a problem, a size, or a row")
    parser.add_argument("--out", help="CSV to write")
    arguments = parser.parse_args()
    if arguments.part == "figures":
        import training_figures

        training_figures.draw(FIGURES)
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if arguments.part == "gpt" and device == "cpu" and not arguments.quick:
        sys.exit("gpt needs a CUDA device; --quick runs a small one on the CPU")
    name = arguments.part.replace("-", "_")
    out = None if arguments.quick else Path(arguments.out or RESULTS / f"training_{name}.csv")
    if arguments.part == "gpt":
        rows = measure_gpt(arguments.quick, device, arguments.seconds, out, arguments.only)
    elif arguments.part == "saddles":
        rows = measure_saddles(arguments.quick, arguments.only)
    else:
        rows = measure_few_data(arguments.quick, arguments.only)
    if out is not None:
        write_csv(out, rows)
        print(f"written to {out}")


if __name__ == "__main__":
    main()
