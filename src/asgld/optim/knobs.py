"""Which knobs of a parameter group have a meaning, alone and together."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from asgld import noise


def check_group(group: dict[str, Any]) -> None:
    """Raise if a knob, or a combination of knobs, has no meaning."""
    lr = group["lr"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if not 0.0 <= lr < math.inf:
        raise ValueError(f"Invalid learning rate: {lr}")
    alpha, beta = group["alpha"], group["beta"]
    if not 0.0 <= alpha <= 2.0:
        raise ValueError(
            f"Invalid alpha value: {alpha}: need 0 <= alpha <= 2; past 2 the steps sum up finitely"
        )
    if not beta >= 0.0:
        raise ValueError(
            f"Invalid beta value: {beta}: need beta >= 0; for no injected noise use asgld.ASG or "
            "sigma=0"
        )
    for name in ("sigma", "delta", "weight_decay"):
        if not 0.0 <= group[name] < math.inf:
            raise ValueError(f"Invalid {name} value: {group[name]}: need 0 <= {name} < infinity")
    decay, momentum = group["decay"], group["momentum"]
    if decay is not None and not 0.0 < decay < 1.0:
        raise ValueError(
            f"Invalid decay value: {decay}: need 0 < decay < 1, or None for the sum, which forgets "
            "nothing"
        )
    if not 0.0 <= momentum < 1.0:
        raise ValueError(f"Invalid momentum value: {momentum}: need 0 <= momentum < 1")
    opposed = group["opposed"]
    is_number = isinstance(opposed, (int, float)) and not isinstance(opposed, bool)
    if not (is_number and -1.0 <= opposed <= 1.0):
        raise ValueError(
            f"Invalid opposed value: {opposed!r}: need a number from -1, which turns round what "
            "points against the newest gradient, over 0, which drops it, to 1, which keeps it"
        )
    if opposed != 1.0 and momentum == 0.0:
        raise ValueError(
            f"Invalid opposed value: {opposed!r} with momentum=0.0: what momentum does not average "
            "never points against the newest gradient; set momentum, or leave opposed out"
        )
    for name in ("clip", "annealing"):
        if group[name] is not None and not 0.0 <= group[name] < math.inf:
            raise ValueError(f"Invalid {name} value: {group[name]}: need 0 <= {name} < infinity")
    has_noise = group["sigma"] != 0.0 and not math.isinf(beta)
    d_init = group["d_init"]
    needs_metric = decay is None and (alpha > 0.0 or (has_noise and beta > 0.0))
    if not (0.0 <= d_init < math.inf and (d_init > 0.0 or not needs_metric)):
        raise ValueError(
            f"Invalid d_init value: {d_init}: need a positive number, since the first step divides "
            "by its power; 1.0 is the default, and far below the squared gradients it makes the "
            "first steps huge"
        )
    noise.check_seed(group["seed"])
    if group["sum_dtype"] not in (None, torch.float64, torch.float32, torch.bfloat16):
        raise ValueError(
            f"Invalid sum_dtype value: {group['sum_dtype']}: need None, torch.float64, "
            "torch.float32 or torch.bfloat16"
        )
    if group["fused"]:
        if group["differentiable"]:
            raise RuntimeError("`fused` does not support `differentiable`")
        if group["foreach"]:
            raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
    if isinstance(lr, Tensor) and group["foreach"] and not group["capturable"]:
        raise ValueError("lr as a Tensor is not supported for capturable=False and foreach=True")


def warn_of_heating(group: dict[str, Any]) -> None:
    """Warn where the noise does not die down; `add_param_group` calls this."""
    alpha, beta = group["alpha"], group["beta"]
    if group["sigma"] == 0.0 or alpha == 0.0 or beta > alpha / 2 or group["decay"] is not None:
        return  # a D that forgets does not grow
    effect = "grows" if beta < alpha / 2 else "stays fixed, as in a sampler,"
    warnings.warn(
        f"beta={beta} with alpha={alpha}: the temperature of the noise {effect} while D grows; "
        f"for convergence use beta > alpha/2 = {alpha / 2}",
        stacklevel=5,  # past add_param_group and two constructors: where the user made it
    )
