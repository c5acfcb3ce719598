"""What a tracker sums up of proximal steps, for `asgld.theory.proximal_certificate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from asgld.arguments import require
from asgld.optim.proximal import penalties_of
from asgld.prox import Penalty
from asgld.theory.proximal import (
    PROXIMAL_TILTS,
    ProximalCertificate,
    proximal_certificate,
    proximal_noise_scale,
    proximal_step,
)

_HUGE = 1e100
_SUMS = ("weight", "noise", "drift", "lost")


class StepScales(NamedTuple):
    """Step sizes and variances of the noise of one parameter, before a step."""

    size: Tensor  # h = lr D^(-alpha/2) of every coordinate
    variance: Tensor  # 2 lr sigma^2 D^-beta + h^2 C of every coordinate


class ProximalSums:
    """The sums of weights and prices over the steps of a run; the first axis is that of the tilts.

    Args:
        smoothness: M.
        envelope: E, or None for 3 M at alpha = 0 and 6 M above, less where the first step is long.
        longest: the longest step size at the start.
        noise: the largest variance of one coordinate's noise at the start.
        is_even: whether all step sizes stay equal, alpha = 0 everywhere.
    """

    def __init__(
        self, *, smoothness: float, envelope: float | None, longest: float, noise: float,
        is_even: bool,
    ) -> None:  # fmt: skip
        need = (
            "lr > 0 when the tracker is attached, since the constants of the bound are fixed there"
        )
        require(0.0 < longest < np.inf, "lr * d_init**(-alpha/2)", longest, need)
        if envelope is None:
            need = f"steps shorter than 1/smoothness; smoothness={smoothness!r}"
            require(1.0 / longest > smoothness, "lr * d_init**(-alpha/2)", longest, need)
            envelope = min((3.0 if is_even else 6.0) * smoothness or np.inf, 1.0 / longest)
        self.smoothness, self.envelope = smoothness, envelope
        spread = 1.0 if is_even or smoothness == 0.0 else max(1.0, envelope / (2 * smoothness))
        self.kappa = proximal_noise_scale(
            noise, longest, smoothness=smoothness, envelope=envelope, spread=spread
        )
        columns = (torch.zeros(len(PROXIMAL_TILTS), dtype=torch.float64) for _ in _SUMS)
        self.weight, self.noise, self.drift, self.lost = columns

    def add(
        self,
        shortest: Tensor,
        longest: Tensor,
        noise: Tensor,
        total: Tensor,
        moved: Tensor,
        off: Tensor,
    ) -> None:
        """Add a step: its sizes and variances, its length, and its rounding error."""
        step = proximal_step(
            shortest=_numpy(shortest), longest=_numpy(longest), noise=_numpy(noise),
            total_noise=_numpy(total), smoothness=self.smoothness, envelope=self.envelope,
            kappa=self.kappa,
        )  # fmt: skip
        weight, price = torch.from_numpy(step.weight), torch.from_numpy(step.noise)
        length, error = moved.cpu(), off.cpu()
        # A step of weight 0 that moves nothing is not rounded.
        share = torch.where((weight == 0) & (length == 0), 0.0, error**2 / weight)
        for name, added in zip(_SUMS, (weight, price, error * length, share), strict=True):
            added = added.expand(weight.shape) if added.dim() < weight.dim() else added
            old: Tensor = getattr(self, name)
            setattr(self, name, _widened(old, added) + added)

    def certificate(self, f_gap: Tensor, p: float) -> ProximalCertificate:
        return proximal_certificate(
            sum_weight=_numpy(self.weight), sum_noise=_numpy(self.noise), f_gap=_numpy(f_gap),
            smoothness=self.smoothness, envelope=self.envelope, kappa=self.kappa, p=p,
            sum_rounding=_numpy(self.drift[0]), sum_sq_rounding=_numpy(self.lost),
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        sums = {name: getattr(self, name).clone() for name in _SUMS}
        return {"kappa": self.kappa, "envelope": self.envelope, **sums}

    def problem_with(self, saved: Any, shapes: Sequence[tuple[int, ...]]) -> str:
        """Say why a state cannot be loaded, or nothing. `shapes` are those of a tilt's sums."""
        names = ("kappa", "envelope", *_SUMS)
        if not isinstance(saved, dict) or any(name not in saved for name in names):
            return f"need the sums {', '.join(names)}"
        if type(saved["kappa"]) is not float or not 0.0 <= saved["kappa"] < np.inf:
            return f"kappa={saved['kappa']!r}: need a finite number of at least 0"
        whole = [(len(PROXIMAL_TILTS), *shape) for shape in shapes]
        for name in _SUMS:
            value = saved[name]
            is_right = torch.is_tensor(value) and value.dtype == torch.float64
            if not is_right or tuple(value.shape) not in whole:
                return f"{name}={value!r}: need float64 numbers of shape {whole[-1]}"
            if bool((value < 0).any()) or (name == "weight" and not bool(value.isfinite().all())):
                return f"{name}={value!r}: need numbers of at least 0, and weights that are finite"
        if saved["envelope"] != self.envelope:
            return f"envelope={saved['envelope']!r}, not {self.envelope!r}"
        return ""

    def load(self, saved: dict[str, Any]) -> None:
        self.kappa = float(saved["kappa"])
        for name in _SUMS:
            setattr(self, name, saved[name].clone())


def pull_of(p: Tensor, penalty: Penalty, size: Tensor) -> Tensor:
    """Return a bound on how far the proximal step has moved each coordinate of p."""
    (bound,) = penalties_of([p], penalty)
    x = bound.points(p.detach().double())
    kink = torch.where(bound.is_free(x), 0.0, bound.slack(x, torch.zeros_like(x)))
    steepest = bound.grad(x).abs() + torch.nan_to_num(kink, posinf=0.0)
    return size.double() * steepest.reshape(p.shape)


def ties_coordinates(p: Tensor, penalty: Penalty) -> bool:
    """Whether the penalty ties coordinates of p together."""
    (bound,) = penalties_of([p], penalty)
    return not bound.is_separable


def _widened(old: Tensor, added: Tensor) -> Tensor:
    """Return a sum with the axis of the replicas that the first step shows."""
    missing = added.dim() - old.dim()
    return old.reshape(*old.shape, *[1] * missing) if missing > 0 else old


def _numpy(values: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return numbers for the theory; those of a run that overflowed are too large for it."""
    values = torch.nan_to_num(values.detach().double().cpu(), nan=_HUGE, posinf=torch.inf)
    return np.asarray(values.numpy())
