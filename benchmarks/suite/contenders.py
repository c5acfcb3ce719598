"""CONTENDERS: what trains. One entry adds one."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import asgld

# The package of SOAP and schedule-free AdamW, which is no requirement of ours.
OTHERS = "pytorch_optimizer"


@dataclass(frozen=True)
class Contender:
    """An optimizer.

    ============  ==========================================================================
    field         meaning
    ============  ==========================================================================
    title         what a page calls the contender
    build         an optimizer, of a model and lr
    default_lr    what its documentation gives, run with every seed; None: not looked at
    first_lrs     where the search begins, rising by factors of two
    tasks         the only tasks to run; () is all
    schedules     the only schedules to run
    part          "suite" is for all tasks, "grown" for networks that were grown
    needs_work    whether build also takes `work`: the task's loss, batches and number of steps
    why_not       why it cannot run here, or nothing
    ============  ==========================================================================
    """

    title: str
    build: Callable[..., Any]
    default_lr: float | None = None
    first_lrs: tuple[float, ...] = (1e-3, 2e-3, 4e-3)
    tasks: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ("constant", "cosine")
    part: str = "suite"
    needs_work: bool = False
    why_not: Callable[[], str] = str


class Work(NamedTuple):
    """What a contender may know of a task."""

    loss: Callable[[nn.Module, Any], Tensor]
    batches: list[Any]
    steps: int
    schedule: Callable[[int], float]


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


class CautiousAdamW(torch.optim.Optimizer):
    """AdamW that drops momentum against the gradient and scales up the rest, as its authors do
    (Liang, Chen, Liu and Liu, arXiv 2411.16085)."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.count = 0

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        self.count += 1
        first, second = 1 - 0.9**self.count, 1 - 0.999**self.count
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            grads: list[Tensor] = [p.grad for p in params]
            for p in params:
                if p not in self.state:
                    self.state[p] = {"m": torch.zeros_like(p), "v": torch.zeros_like(p)}
            m, v = ([self.state[p][key] for p in params] for key in "mv")
            torch._foreach_lerp_(m, grads, 0.1)
            torch._foreach_mul_(v, 0.999)
            torch._foreach_addcmul_(v, grads, grads, 0.001)
            scales = torch._foreach_sqrt(v)
            torch._foreach_div_(scales, second**0.5)
            torch._foreach_add_(scales, 1e-8)
            for p, grad, mean, scale in zip(params, grads, m, scales, strict=True):
                mask = (mean * grad > 0).to(p.dtype)
                mask.div_(mask.mean().clamp_(min=1e-3))
                p.addcdiv_(mean * mask, scale, value=-group["lr"] / first)


def adamw(params: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr, betas=(0.9, 0.999), weight_decay=0.0, fused=True)


def muon(model: nn.Module, lr: float) -> Together:
    hidden = hidden_weights(model)
    rest = [p for name, p in model.named_parameters() if name not in hidden]
    return Together(MatrixMuon(list(hidden.values()), lr), adamw(rest, lr))


def network(model: nn.Module, lr: float, **options: Any) -> torch.optim.Optimizer:
    return asgld.NetworkASGLD(model, lr, **options)


def _ours(title: str, default_lr: float | None = None, **options: Any) -> Contender:
    build = functools.partial(network, **options)
    return Contender(title, build, default_lr, (2e-3, 4e-3, 8e-3))


def _other(title: str, name: str, schedules: tuple[str, ...], **options: Any) -> Contender:
    """An optimizer of the package OTHERS, on two tasks."""

    def build(model: nn.Module, lr: float) -> Any:
        import pytorch_optimizer

        made = getattr(pytorch_optimizer, name)(model.parameters(), lr=lr, **options)
        if hasattr(made, "train"):
            made.train()
        return made

    def why_not() -> str:
        is_there = importlib.util.find_spec(OTHERS) is not None
        return "" if is_there else f"the package {OTHERS} is not installed"

    return Contender(title, build, None, (1e-3, 2e-3, 4e-3), ("gpt", "cnn"), schedules,
                     why_not=why_not)  # fmt: skip


def _by_hand(size: float) -> Contender:
    """AdamW, after noise was added to each weight once, in units of its standard deviation."""

    def build(model: nn.Module, lr: float) -> torch.optim.Optimizer:
        with torch.no_grad():
            for p in model.parameters():
                if p.numel() > 1:
                    p.add_(torch.randn_like(p), alpha=size * float(p.std()))
        return adamw(model.parameters(), lr)

    return Contender(f"AdamW, noise of {size:g} by hand", build, part="grown")


def _calibrated(title: str, shape: str) -> Contender:
    """Our rule with the noise that `calibrate_copies` finds."""

    def build(model: nn.Module, lr: float, work: Work) -> torch.optim.Optimizer:
        for batch in work.batches:
            work.loss(model, batch).backward()
        found = asgld.calibrate_copies(
            model, lr=lr, steps=work.steps, shape=shape, schedule=work.schedule
        )
        model.zero_grad(set_to_none=True)
        return asgld.NetworkASGLD(found.groups, lr)

    return Contender(title, build, first_lrs=(2e-3, 4e-3, 8e-3), part="grown", needs_work=True)


BY_HAND = (0.01, 0.1, 0.3, 1.0)
CONTENDERS = {
    "adamw": Contender("AdamW", lambda model, lr: adamw(model.parameters(), lr), 1e-3),
    "cautious": Contender(
        "cautious AdamW", lambda model, lr: CautiousAdamW(model.parameters(), lr)
    ),
    "sgd": Contender(
        "SGD with momentum",
        lambda model, lr: torch.optim.SGD(model.parameters(), lr, momentum=0.9, foreach=True),
        first_lrs=(0.032, 0.064, 0.128),
    ),
    "muon": Contender("Muon + AdamW", muon, 1e-3, (2e-3, 4e-3, 8e-3)),
    "coordinate": _ours("`NetworkASGLD`, coordinates", shape="coordinate"),
    "coordinate-quiet": _ours("the same, no noise", shape="coordinate", noise=0.0),
    "matrix": _ours("`NetworkASGLD(model)`", 4e-3),
    "matrix-quiet": _ours("the same, no noise", noise=0.0),
    "soap": _other("SOAP", "SOAP", ("constant", "cosine"), weight_decay=0.0),
    "schedule-free": _other(
        "schedule-free AdamW", "ScheduleFreeAdamW", ("constant",), weight_decay=0.0,
        warmup_steps=50,
    ),
    **{f"by-hand-{size:g}": _by_hand(size) for size in BY_HAND},
    "coordinate-calibrated": _calibrated("`NetworkASGLD`, coordinates, calibrated", "coordinate"),
    "matrix-calibrated": _calibrated("`NetworkASGLD`, calibrated", "polar-row"),
}  # fmt: skip
BASELINE = "adamw"
