"""A byte-level GPT on the source of the standard library: validation loss against lr.

Every optimizer gets learning rates a factor of two apart, without a schedule and with one, and
those that are compared closely sqrt(2) apart. All seeds of a setting run at once: the rules are
element-wise, so tensors with a leading axis are that many runs.
"""

from __future__ import annotations

import math
import statistics
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import merge_csv
from torch import Tensor
from torch.nn import functional

import asgld

Build = Callable[[list[Tensor], float, float], torch.optim.Optimizer]
Forward = Callable[[Tensor], Tensor]
NUM_SEEDS = 3
# What names a row: a run of parts replaces the rows it repeats and leaves the others.
KEYS = ("optimizer", "schedule", "lr", "seed")
# Of the first noise step to the first gradient step, where a rule has no unit of its own.
RATIO = 0.1
# Others than the default of what becomes of momentum that points against the newest gradient; what
# turns it round bears more of it.
KEPT: dict[str, Any] = {"opposed": 1.0}
TURNED: dict[str, Any] = {"momentum": 0.95, "opposed": -1.0}
# A floor under D, in units of the mean square of a coordinate of the first gradient.
FLOOR = 1e-4


def grid(first: float, count: int = 7, ratio: float = 2.0) -> list[float]:
    return [float(f"{first * ratio**i:.4g}") for i in range(count)]


def paper(noise: float, **calibration: Any) -> Build:
    """The paper's rule, scaled to the gradients at the start."""

    def build(params: list[Tensor], lr: float, _: float) -> torch.optim.Optimizer:
        groups = asgld.groups_from_gradients(params, lr=lr, noise=noise, **calibration)
        return asgld.ASGLD(groups, lr)

    return build


def devinterp_psgld(params: list[Tensor], lr: float, mean_square: float) -> torch.optim.Optimizer:
    """The peer's preconditioned SGLD; its lr is twice ours."""
    from devinterp.optim.sgmcmc import SGMCMC

    noise = RATIO * math.sqrt(lr / 4) * mean_square**0.25
    return SGMCMC.rmsprop_sgld(params, lr=lr, noise_level=noise, nbeta=1.0, eps=1e-5)


class HeedfulAdamW(torch.optim.AdamW):
    """AdamW whose steps against the newest gradient are dropped or turned round."""

    def __init__(self, params: list[Tensor], lr: float, opposed: float) -> None:
        super().__init__(params, lr, betas=(0.9, 0.99), weight_decay=0.0, fused=True)
        self.opposed = opposed

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        params = [p for group in self.param_groups for p in group["params"]]
        before = [p.clone() for p in params]
        super().step()
        for p, old in zip(params, before, strict=True):
            agreement = (old - p).sign() * p.grad.sign()
            p.copy_(old + (p - old) * agreement.clamp(min=self.opposed))


# Each takes parameters with first gradients, lr, and the mean square of those gradients.
CONTENDERS: dict[str, tuple[Build, list[float]]] = {
    "AdamW": (
        lambda p, lr, _: torch.optim.AdamW(p, lr, betas=(0.9, 0.99), weight_decay=0.0, fused=True),
        [*grid(1.25e-4, 11, math.sqrt(2)), 8e-3, 1.6e-2],
    ),
    "NetworkASGLD, no noise": (
        lambda p, lr, _: asgld.NetworkASGLD(p, lr, noise=0.0),
        grid(5e-4, 10, math.sqrt(2)),
    ),
    "NetworkASGLD": (lambda p, lr, _: asgld.NetworkASGLD(p, lr), grid(5e-4, 10, math.sqrt(2))),
    "AdamW, opposed dropped": (
        lambda p, lr, _: HeedfulAdamW(p, lr, 0.0),
        grid(2.5e-4, 10, math.sqrt(2)),
    ),
    "NetworkASGLD, no noise, opposed kept": (
        lambda p, lr, _: asgld.NetworkASGLD(p, lr, noise=0.0, **KEPT),
        [*grid(2.5e-4, 9, math.sqrt(2)), 8e-3, 1.6e-2],
    ),
    "NetworkASGLD, opposed kept": (
        lambda p, lr, _: asgld.NetworkASGLD(p, lr, **KEPT),
        [*grid(2.5e-4, 9, math.sqrt(2)), 8e-3, 1.6e-2],
    ),
    "NetworkASGLD, no noise, opposed kept, clip 1/4": (
        lambda p, lr, _: asgld.NetworkASGLD(p, lr, noise=0.0, clip=0.25, **KEPT),
        [*grid(2.5e-4, 9, math.sqrt(2)), 8e-3, 1.6e-2],
    ),
    "NetworkASGLD, no noise, opposed turned": (
        lambda p, lr, _: asgld.NetworkASGLD(p, lr, noise=0.0, **TURNED),
        grid(5e-4, 12, math.sqrt(2)),
    ),
    "NetworkASGLD, opposed turned": (
        lambda p, lr, _: asgld.NetworkASGLD(p, lr, **TURNED),
        grid(5e-4, 12, math.sqrt(2)),
    ),
    "AdamW, opposed turned": (
        lambda p, lr, _: HeedfulAdamW(p, lr, -1.0),
        grid(5e-4, 11, math.sqrt(2)),
    ),
    "NetworkASGLD, no noise, floor": (
        lambda p, lr, ms: asgld.NetworkASGLD(p, lr, noise=0.0, delta=FLOOR * ms),
        grid(5e-4, 12, math.sqrt(2)),
    ),
    "NetworkASGLD, floor": (
        lambda p, lr, ms: asgld.NetworkASGLD(p, lr, delta=FLOOR * ms),
        grid(5e-4, 12, math.sqrt(2)),
    ),
    "AdamW, floor": (
        lambda p, lr, ms: torch.optim.AdamW(
            p, lr, betas=(0.9, 0.99), eps=math.sqrt(FLOOR * ms), weight_decay=0.0, fused=True
        ),
        grid(5e-4, 9, math.sqrt(2)),
    ),
    "Adagrad": (
        lambda p, lr, _: torch.optim.Adagrad(p, lr, foreach=True),
        [*grid(2.5e-4, 13, math.sqrt(2)), 3.2e-2],
    ),
    "ASGLD, calibrated": (paper(RATIO), grid(5e-4, 11, math.sqrt(2))),
    "ASG, calibrated": (paper(0.0), grid(5e-4, 11, math.sqrt(2))),
    "ASGLD, calibrated, warmup 1e-4": (paper(RATIO, warmup=1e-4), grid(5e-4, 11, math.sqrt(2))),
    "ASG, calibrated, warmup 1e-4": (paper(0.0, warmup=1e-4), grid(5e-4, 11, math.sqrt(2))),
    "ASG, calibrated, warmup 1": (paper(0.0, warmup=1.0), grid(5e-4, 6)),
    "ASG, calibrated, one scale": (paper(0.0, per_tensor=False, warmup=1.0), grid(5e-4, 6)),
    "ASG, calibrated, no clip": (paper(0.0, clip=None, warmup=100.0), grid(5e-4, 6)),
    "PSGLD": (
        lambda p, lr, ms: asgld.PSGLD(p, lr, sigma=RATIO * math.sqrt(lr / 2) * ms**0.25),
        grid(3.125e-5, 7),
    ),
    "pSGLD of devinterp": (devinterp_psgld, grid(1.25e-4, 6)),
    "SGD, momentum": (lambda p, lr, _: torch.optim.SGD(p, lr, momentum=0.9), grid(5e-3, 6)),
    "SGLD": (
        lambda p, lr, ms: asgld.SGLD(p, lr, sigma=RATIO * math.sqrt(lr * ms / 2)),
        grid(2.5e-2, 6),
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

    def __init__(self, seeds: range, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads, self.layers = heads, layers
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
                for s in seeds
            ]
            self.start[name] = scale * torch.stack(drawn)
        self.start |= {name: torch.zeros(len(seeds), 1, size) for name, size in vectors.items()}
        self.start |= {name: torch.ones(len(seeds), 1, 1, width) for name in gains}
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

    def __init__(
        self, quick: bool, device: str, *, batch: int, compiles: bool, first_seed: int
    ) -> None:
        self.is_quick, self.steps = quick, 10 if quick else 1000
        self.context, self.batch = (32, 4) if quick else (256, batch)
        size = (1, 32, 2) if quick else (6, 384, 6)
        self.seeds = range(first_seed, first_seed + NUM_SEEDS)
        self.model = ReplicatedGPT(self.seeds, *size, self.context).to(device)
        self.model.start = {name: value.to(device) for name, value in self.model.start.items()}
        source = library_source(200_000 if quick else 5_500_000).to(device).long()
        cut = len(source) * 9 // 10
        self.train, self.check = source[:cut], source[cut:]
        shape = (self.steps, NUM_SEEDS, self.batch)
        limit = len(self.train) - self.context - 1
        # What is checked on is the same for all seeds, drawn after the batches of the first three.
        generator = torch.Generator().manual_seed(7)
        offsets = torch.randint(limit, shape, generator=generator)
        if first_seed:
            other = torch.Generator().manual_seed(7 + first_seed)
            offsets = torch.randint(limit, shape, generator=other)
        self.offsets = offsets.to(device)
        limit = len(self.check) - self.context - 1
        shape = (1, 1, 16) if quick else (8, 1, 64)
        self.check_offsets = torch.randint(limit, shape, generator=generator).to(device)
        self.check_offsets = self.check_offsets.expand(-1, NUM_SEEDS, -1)
        self.chosen = self.offsets[0].clone()
        self.loss = torch.zeros(NUM_SEEDS, device=device)
        self.forward = torch.compile(self.model) if compiles else self.model
        self.device = device
        self.compute = self._capture() if device == "cuda" else self._compute

    def _tokens(self, text: Tensor, offsets: Tensor) -> Tensor:
        return text[offsets[..., None] + torch.arange(self.context + 1, device=text.device)]

    def _losses(self, forward: Forward, text: Tensor, offsets: Tensor) -> Tensor:
        kind = torch.bfloat16 if self.device == "cuda" else torch.float32
        enabled = self.device == "cuda"
        with torch.autocast(self.device, kind, enabled=enabled, cache_enabled=False):
            return forward(self._tokens(text, offsets))

    def _compute(self) -> None:
        for p in self.model.parameters():
            p.grad = None
        losses = self._losses(self.forward, self.train, self.chosen)
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
            found = [self._losses(self.model, self.check, each) for each in self.check_offsets]
        return torch.stack(found).mean(0)

    def mean_square(self) -> float:
        """Mean square of a coordinate of the first gradient."""
        self.model.reset()
        self.compute()
        return asgld.mean_square_gradient(self.model.parameters())

    def run(
        self, build: Build, lr: float, schedule: str, mean_square: float
    ) -> dict[int, list[float]]:
        """Validation losses of all seeds at a few steps; infinite once training has broken down."""
        self.model.reset()
        self.chosen.copy_(self.offsets[0])
        self.compute()  # who calibrates sees the gradients of the start, not those of a last run
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
    work: GPTWork, seconds: float, out: Path | None, only: list[str]
) -> list[dict[str, Any]]:
    mean_square = work.mean_square()
    begun, rows = time.time(), []
    chosen = [row.split("/") for row in only]  # optimizer/schedule/lr, the last two optional
    for name, (build, rates) in CONTENDERS.items():
        for schedule in ("constant", "warm-up and cosine"):
            for lr in rates[:1] if work.is_quick else rates:
                row = [name, schedule, f"{lr:g}"]
                if only and not any(row[: len(wanted)] == wanted for wanted in chosen):
                    continue
                if time.time() - begun > seconds:
                    print(f"out of time before {name}, lr {lr:g}, {schedule}")
                    continue
                try:
                    found = work.run(build, lr, schedule, mean_square)
                except ImportError as error:
                    print(f"left out: {name} ({error})")
                    break
                for i, seed in enumerate(work.seeds):
                    rows.append({"optimizer": name, "schedule": schedule, "lr": lr, "seed": seed,
                                 **{f"loss_{mark}": round(losses[i], 4)
                                    for mark, losses in found.items()}})  # fmt: skip
                last = list(found.values())[-1]
                spent = f"({time.time() - begun:.0f} s)"
                print(
                    f"{schedule:18s} {name:24s} lr {lr:<9g} {statistics.median(last):.4f}  {spent}"
                )
            if out is not None and rows:
                merge_csv(out, rows, KEYS)
    return rows
