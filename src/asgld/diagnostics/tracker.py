"""A certificate that a run writes about itself: :class:`CertificateTracker`."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from asgld.methods.langevin import TorchMethod
from asgld.optim import ASGLD
from asgld.theory.certificate import Certificate, certificate, noise_scale

_KEY = "certificate"


@dataclass(frozen=True)
class Report:
    """What a certificate says, and on which conditions.

    ============  ==========================================================================
    field         meaning
    ============  ==========================================================================
    certificate   the bound, see `asgld.theory.Certificate`
    given         constants that were taken on trust
    broken        conditions that the run itself was seen to break; empty if the bound stands
    ============  ==========================================================================
    """

    certificate: Certificate
    given: dict[str, float]
    broken: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.broken

    def __str__(self) -> str:
        bound = np.max(self.certificate.bound)
        trust = ", ".join(f"{name} = {value:g}" for name, value in self.given.items())
        text = (
            f"with probability {1 - self.certificate.p:g}, some iterate so far has a gradient norm "
            f"of at most {math.sqrt(max(bound, 0.0)):.4g}, given {trust}"
        )
        if self.broken:
            text = "no certificate: " + "; ".join(self.broken)
        return text


class CertificateTracker:
    r"""Bounds the squared gradients of a run from what its optimizer did.

    .. math::
        \min_{j<k} \|\nabla f(x_j)\|^2 \le \frac{\sum_j w_j \|\nabla f(x_j)\|^2}{\sum_j w_j}
        \le \text{bound}, \qquad w_j = \min_i \mathrm{lr}\, D_{j,i}^{-\alpha/2}

    with probability 1 - p, for all k at once; `asgld.theory.certificate` has the formula and its
    proof. The tracker hooks itself to the optimizer. Each step costs one copy of the parameters and
    three reductions, no gradient; sums are in float64. They travel in the optimizer's `state_dict`,
    so a resumed run goes on with them.

    Args:
        optimizer: an ASGLD or one of its presets.
        smoothness: M, taken on trust; `asgld.curvature.largest_curvature` measures it locally.
        f_start: f where the optimizer begins.
        f_low: a lower bound of f; 0 for most losses.
        gradient_variance: C, such that v'(G - grad f) is sub-Gaussian with variance proxy C |v|^2;
            for a Gaussian the variance of one coordinate. Divide by the batch size. 0 for full
            gradients.
        p: probability that the bound fails at any time.
        is_batched: parameters are (replicas, d), and each replica has its own certificate.

    Example:
        >>> import torch, asgld
        >>> x = torch.tensor([3.0, -1.0], dtype=torch.float64, requires_grad=True)
        >>> optimizer = asgld.AGLD([x], lr=0.5, sigma=0.01)
        >>> tracker = CertificateTracker(optimizer, smoothness=1.0, f_start=5.0)
        >>> for _ in range(200):
        ...     x.grad = x.detach().clone()                     # f = |x|^2 / 2
        ...     optimizer.step()
        >>> report = tracker.report()
        >>> report.holds, bool(report.certificate.bound < 0.2)
        (True, True)
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        smoothness: float,
        f_start: float | Tensor,
        f_low: float = 0.0,
        gradient_variance: float = 0.0,
        p: float = 0.05,
        is_batched: bool = False,
    ) -> None:
        if not isinstance(optimizer, ASGLD):
            raise TypeError(
                f"optimizer is a {type(optimizer).__name__}: the certificate is about asgld.ASGLD "
                "and its presets"
            )
        for name, value in (("smoothness", smoothness), ("gradient_variance", gradient_variance)):
            if not 0.0 <= value < math.inf:
                raise ValueError(f"{name}={value!r}: need a finite number of at least 0")
        if not 0.0 < p < 1.0:
            raise ValueError(f"p={p!r}: need a probability between 0 and 1")
        start = torch.as_tensor(f_start, dtype=torch.float64)
        if not bool((start >= f_low).all()):
            raise ValueError(f"f_start={f_start!r} is below f_low={f_low!r}: need f_start >= f_low")
        self.optimizer = optimizer
        self.smoothness, self.gradient_variance, self.p = smoothness, gradient_variance, p
        self.f_start, self.f_low = start, f_low
        self.is_batched = is_batched
        self.kappa = max(self._noise_scale(group) for group in optimizer.param_groups)
        self.num_steps = 0
        self.sum_sq_step: Tensor | float = 0.0
        self.sum_weight: Tensor | float = 0.0
        self._broken: set[str] = set()
        self._before: list[tuple[Tensor, Tensor, Tensor]] = []
        self._weight: Tensor | float = math.inf
        self._handles = [
            optimizer.register_step_pre_hook(self._look_before),
            optimizer.register_step_post_hook(self._look_after),
            optimizer.register_state_dict_post_hook(self._save),
            optimizer.register_load_state_dict_pre_hook(self._load),
        ]

    def detach(self) -> None:
        """Take the hooks off the optimizer."""
        for handle in self._handles:
            handle.remove()

    def report(self, value: float | Tensor | None = None) -> Report:
        """Return the bound so far; `value`, f at the present iterate, is sharper than f_low."""
        if self.num_steps == 0:
            raise RuntimeError("no step was taken yet: a certificate is about steps")
        end = torch.as_tensor(self.f_low if value is None else value, dtype=torch.float64)
        bound = certificate(
            sum_sq_step=_numpy(self.sum_sq_step),
            sum_weight=_numpy(self.sum_weight),
            f_gap=_numpy(self.f_start - end),
            smoothness=self.smoothness,
            kappa=self.kappa,
            p=self.p,
        )
        given = {"smoothness": self.smoothness, "gradient_variance": self.gradient_variance}
        if value is None:
            given["f_low"] = self.f_low
        return Report(bound, given, tuple(sorted(self._broken)))

    # ------------------------------------------------------------------------------------- hooks

    def _noise_scale(self, group: dict[str, Any]) -> float:
        if group["beta"] < group["alpha"] / 2 and group["sigma"] > 0.0:
            raise ValueError(
                f"beta={group['beta']!r} with alpha={group['alpha']!r}: the noise heats, and a "
                "certificate needs beta >= alpha/2"
            )
        return noise_scale(
            group["d_init"] or 1.0,  # 0 is allowed only where no power of D is taken
            alpha=group["alpha"],
            beta=group["beta"],
            sigma=group["sigma"],
            lr=float(group["lr"]),
            gradient_variance=self.gradient_variance,
        )

    def _look_before(self, *_: Any) -> None:
        self._before = []
        self._weight = math.inf
        for group in self.optimizer.param_groups:
            if group["weight_decay"]:
                self._broken.add("weight decay moves the iterate in a way the bound does not cover")
            # kappa was fixed at the start, as the proof needs; a hotter setting voids it.
            if self._noise_scale(group) > self.kappa * (1 + 1e-12):
                self._broken.add("lr or sigma was raised above its value at the start")
            for p in group["params"]:
                if p.grad is None:
                    self._broken.add("a parameter had no gradient in some step")
                    continue
                if hasattr(p, "placements"):
                    raise TypeError("a parameter is a DTensor: certificates need whole parameters")
                count = self.optimizer.state[p]["step"].clone()
                self._before.append((p, p.detach().clone(), count))
                self._weight = _smaller(self._weight, self._smallest_step(group, p))

    def _smallest_step(self, group: dict[str, Any], p: Tensor) -> Tensor | float:
        """min_i lr D_i^(-alpha/2), per replica where there are several."""
        lr = float(group["lr"])
        if group["alpha"] == 0.0:
            return lr
        state = self.optimizer.state[p]
        largest = self._reduce(state["sum"], torch.amax).double()
        constant = group["d_init"] + group["delta"] * state["step"].to(largest.device).double()
        smallest: Tensor = lr * (largest + constant) ** (-group["alpha"] / 2)
        return smallest

    def _look_after(self, *_: Any) -> None:
        for p, before, _count in self._before:
            moved = (p.detach() - before).abs().double()
            self.sum_sq_step = self.sum_sq_step + self._reduce(moved * moved, torch.sum)
        if self._before:
            p, _before, count = self._before[0]
            # 0 where a gradient scaler skipped the step: then no weight counts either.
            taken = self.optimizer.state[p]["step"] - count
            self.sum_weight = self.sum_weight + self._weight * taken
            self.num_steps += 1
        self._before = []

    def _reduce(self, values: Tensor, how: Any) -> Tensor:
        axes = tuple(range(1 if self.is_batched else 0, values.dim()))
        reduced: Tensor = how(values, dim=axes) if axes else values
        return reduced

    def _save(self, _: Optimizer, state_dict: dict[str, Any]) -> None:
        state_dict[_KEY] = {
            "num_steps": self.num_steps,
            "sum_sq_step": torch.as_tensor(self.sum_sq_step).clone(),
            "sum_weight": torch.as_tensor(self.sum_weight).clone(),
            "kappa": self.kappa,
            "f_start": self.f_start,
            "broken": sorted(self._broken),
        }

    def _load(self, _: Optimizer, state_dict: dict[str, Any]) -> None:
        saved = state_dict.get(_KEY)
        if saved is None:
            raise ValueError(
                f"the state has no {_KEY!r}: it was saved without a tracker; load it before the "
                "tracker is attached, with f_start at the loaded parameters"
            )
        self.num_steps = saved["num_steps"]
        self.sum_sq_step = saved["sum_sq_step"].clone()
        self.sum_weight = saved["sum_weight"].clone()
        self.kappa, self.f_start = saved["kappa"], saved["f_start"]
        self._broken = set(saved["broken"])


class Tracked:
    """A Langevin method whose runs carry a certificate for each replica.

    Give `method` to `asgld.run.run` and read `tracker` afterwards; constants are those of
    :class:`CertificateTracker`.

    Example:
        >>> import torch
        >>> from asgld.methods import langevin
        >>> from asgld.oracle import Oracle
        >>> from asgld.problems import problem
        >>> from asgld.run import run
        >>> saddle = problem("strict-saddle", dim=4)
        >>> x0 = saddle.start(3)
        >>> tracked = Tracked(
        ...     langevin("agld", lr=0.2, sigma=0.01), smoothness=10.0,
        ...     f_start=saddle.value(x0), f_low=saddle.facts.minimum,
        ... )
        >>> result = run(Oracle(saddle), tracked.method, x0, max_steps=100)
        >>> tracked.tracker.report().certificate.bound.shape
        (3,)
    """

    tracker: CertificateTracker

    def __init__(self, method: TorchMethod, **constants: Any) -> None:
        self._make = method.optimizer
        self._constants = {"is_batched": True, **constants}
        self.method = dataclasses.replace(method, optimizer=self)

    def __call__(self, params: Any, *, seed: int = 0, **options: Any) -> Optimizer:
        """Make the optimizer and attach a tracker to it, as the run begins."""
        optimizer = self._make(params, seed=seed, **options)
        self.tracker = CertificateTracker(optimizer, **self._constants)
        return optimizer

    def __repr__(self) -> str:
        # Part of a checkpoint's identity, so it must be the same in another process.
        return f"Tracked({getattr(self._make, '__name__', self._make)!s})"


def _numpy(value: Tensor | float) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value


def _smaller(first: Tensor | float, second: Tensor | float) -> Tensor | float:
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        one, other = torch.as_tensor(first), torch.as_tensor(second)
        device = one.device if one.device.type != "cpu" else other.device
        return torch.minimum(one.to(device).double(), other.to(device).double())
    return min(first, second)
