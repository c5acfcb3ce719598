"""A certificate that a run writes about itself: :class:`CertificateTracker`."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from asgld.diagnostics.proximal import ProximalSums, StepScales, pull_of, ties_coordinates
from asgld.methods.torch import TorchMethod
from asgld.optim import ASGLD
from asgld.optim.rule import Rule
from asgld.theory.certificates import Certificate, certificate, noise_scale
from asgld.theory.proximal import ProximalCertificate

_KEY = "certificate"
# Attributes that a checkpoint holds, and attributes that must be equal in the checkpoint.
_SUMS = ("sum_sq_step", "sum_weight", "sum_sq_rounding", "f_start")
_CONSTANTS = ("gradient_variance", "p", "is_batched")

# The knobs in the proof of `asgld.theory.certificate`. Any other knob must have the paper's value,
# which is ASGLD's default. A new knob is refused until a proof covers it and its name is here.
_COVERED = {
    *("lr", "alpha", "beta", "sigma", "noise", "delta", "d_init"),
    *("decay", "momentum", "clip", "annealing", "noise_bound"),
    # These change no mathematics: D is read from the sum as it is stored.
    *("foreach", "fused", "capturable", "differentiable", "seed"),
    *("sum_dtype", "stochastic_rounding"),
    # These have no effect on a D per coordinate, and the tracker refuses any other.
    *("blocks", "polar_by", "share_work"),
    # `_look_at_penalties` checks this one.
    "prox",
}
_WHY_NOT = {
    "shape": "the tracker sums up the steps of a D per coordinate",
    "weight_decay": "weight decay moves the iterate in a way the bound does not cover",
    "maximize": "the bound is about descent, and this run ascends",
}
_PAPER = Rule._field_defaults
# What a subclass may override: the tracker reads before every step what this makes.
_NO_PART_OF_A_STEP = {"add_param_group"}
_DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


@dataclass(frozen=True)
class Report:
    """A certificate and its conditions."""

    certificate: Certificate | ProximalCertificate  # its bound is infinite if a condition is broken
    given: dict[str, float]  # constants taken on trust
    broken: tuple[str, ...]  # conditions that the run has broken

    @property
    def holds(self) -> bool:
        return not self.broken

    def __str__(self) -> str:
        if self.broken:
            return "no certificate: " + "; ".join(self.broken)
        trust = ", ".join(f"{name} = {value:g}" for name, value in self.given.items())
        norm = math.sqrt(max(np.max(self.certificate.bound), 0.0))
        of = "gradient mapping" if "envelope" in self.given else "gradient"
        return (
            f"with probability {1 - self.certificate.p:g}, some iterate so far has a {of} norm "
            f"of at most {norm:.4g}, given {trust}"
        )


class _Sight(NamedTuple):
    """One parameter before a step."""

    p: Tensor
    group: dict[str, Any]
    before: Tensor
    step: Tensor
    momentum: Tensor | None
    lag: float  # z = x - lag * momentum
    inverse: Tensor  # D^(-alpha/2), of every coordinate where a clip may act, else the smallest
    scales: StepScales | None  # with a penalty


class CertificateTracker:
    r"""Bounds the squared gradients of a run from what its optimizer did.

    .. math:: \min_{j<k} \|\nabla f(x_j)\|^2 \le \mathrm{mean} \le \text{bound}

    .. math:: \mathrm{mean} = \frac{\sum_j w_j \|\nabla f(x_j)\|^2}{\sum_j w_j}

    .. math:: w_j = \min_i \mathrm{lr}\, D_{j,i}^{-\alpha/2}

    with probability 1 - p, for all k at once; `asgld.theory.certificate` has the formula and its
    proof. The tracker hooks itself to the optimizer. A step costs one copy of the parameters and
    four norms, but no gradient. The sums are in float64 and in the optimizer's `state_dict`, so a
    resumed run goes on with them.

    The proof does not cover all settings. Before every step the tracker checks all knobs of all
    groups, and ``report().broken`` names every knob outside the proof.

    =================  ========================================================================
    setting            what the tracker does
    =================  ========================================================================
    ``decay``          covered if delta > 0: D may fall, but never below delta
    ``annealing``      covered: it only lowers the noise
    ``noise_bound``    covered: it adds to D what is known before the step
    ``momentum``       covered at constant lr and momentum, with another sum of squares; the bound
                       needs f_low, and cannot use f at the present iterate
    ``clip``           covered while it never acts, and without noise of any kind also later; else
                       the bound of this replica is infinite
    float32            covered: the bound has a term for rounding
    beta < alpha/2     broken: the noise heats
    higher lr, sigma   broken where they raise kappa, which was fixed at the start
    ``maximize``       broken
    ``weight_decay``   broken; add the penalty to f instead
    ``shape``          broken unless it is "coordinate"
    half precision     broken: its rounding is not small next to a step
    ``prox``           covered by another bound, on the gradient mapping, see below; not with
                       ``momentum`` or ``clip``, nor for groups with alpha > 0
    any other knob     broken unless it has the paper's value
    other writes       broken: parameters or momentum changed between steps
    =================  ========================================================================

    With a penalty (``prox``) the bound is `asgld.theory.proximal_certificate`. It is about the
    gradient mapping of step 1/envelope of f + g. f_start and f_low are then those of f + g, and
    smoothness that of f. Steps must be shorter than 2 / (envelope + M). For alpha > 0 the longest
    step of each time must be shorter than envelope / M times the shortest. From a step on that
    breaks this the bound is infinite.

    The tracker cannot check two conditions: knobs may depend on past gradients, not on the newest,
    and the gradient must be unbiased given the past (new batches, not the rest of an epoch).

    Args:
        optimizer: an ASGLD or one of its presets.
        smoothness: M, taken on trust; `asgld.curvature.largest_curvature` measures it locally. With
            momentum it must also hold between the iterates and z = x - lr mu/(1-mu) m.
        f_start: f where the optimizer begins.
        f_low: a lower bound of f; 0 for most losses.
        gradient_variance: C, such that v'(G - grad f) is sub-Gaussian with variance proxy C |v|^2
            given the past; for a Gaussian the variance of one coordinate. Divide by the batch size.
            0 for full gradients.
        p: probability that the bound fails at any time.
        is_batched: parameters are (replicas, d), and each replica has its own certificate.
        envelope: with a penalty, a number above M. By default 3 M for alpha = 0 and 6 M otherwise,
            less where the first steps are long.

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
        envelope: float | None = None,
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
        self._penalties = [group["prox"] for group in optimizer.param_groups]
        self._proximal = self._proximal_sums(envelope)
        self.kappa = max(self._noise_scale(group) for group in optimizer.param_groups)
        self.num_steps = 0
        self.sum_sq_step = torch.zeros((), dtype=torch.float64)
        self.sum_weight = torch.zeros((), dtype=torch.float64)
        self.sum_sq_rounding = torch.zeros((), dtype=torch.float64)
        self._is_clipped = torch.zeros((), dtype=torch.bool)  # a clip acted that voids the bound
        self._lags = [0.0] * len(list(self._params()))
        self._broken: dict[str, str] = {}
        self._before: list[_Sight] = []
        # Parameters and momenta after the last step, to notice other writes.
        self._after: dict[int, tuple[Tensor, Tensor | None]] = {}
        self._is_moved = torch.zeros((), dtype=torch.bool)
        self._loaded: dict[str, Any] = {}
        self._look_at_class()
        self._look_at_settings()
        self._handles = [
            optimizer.register_step_pre_hook(self._look_before),
            optimizer.register_step_post_hook(self._look_after),
            optimizer.register_state_dict_post_hook(self._save),
            optimizer.register_load_state_dict_pre_hook(self._check_loaded),
            optimizer.register_load_state_dict_post_hook(self._load),
        ]

    def detach(self) -> None:
        """Take the hooks off the optimizer."""
        for handle in self._handles:
            handle.remove()

    def report(self, value: float | Tensor | None = None) -> Report:
        """Return the bound so far; `value`, f at the present iterate, is sharper than f_low.

        The bound of a replica is infinite if its clip acted, if its numbers are not finite, if its
        bound is below 0, or if it has not moved yet. If no replica has a bound, `broken` says why.
        """
        if self.num_steps == 0 and not self._broken:
            raise RuntimeError("no step was taken yet: a certificate is about steps")
        if self._proximal is not None:
            return self._proximal_report(self._proximal, value)
        if value is not None and any(self._lags):
            raise ValueError(
                f"value={value!r}: with momentum the bound needs f at x - lr mu/(1-mu) m, not at "
                "x; leave value out, and f_low is taken"
            )
        end = torch.as_tensor(self.f_low if value is None else value, dtype=torch.float64)
        gap = self.f_start.cpu() - end.cpu()
        found = (self.sum_sq_step, self.sum_weight, self.sum_sq_rounding, gap, self._is_clipped)
        squares, weight, lost, gaps, is_clipped = np.broadcast_arrays(
            *(value.detach().cpu().numpy() for value in found)
        )
        self._look_at_moves()
        is_finite = np.isfinite(squares) & np.isfinite(weight)
        usable = is_finite & (weight > 0) & np.isfinite(lost) & ~is_clipped
        result = certificate(
            sum_sq_step=np.where(usable, squares, 0.0),
            sum_weight=np.where(usable, weight, 1.0),
            sum_sq_rounding=np.where(usable, lost, 0.0),
            f_gap=gaps,
            smoothness=self.smoothness,
            kappa=self.kappa,
            p=self.p,
        )
        is_negative = usable & (np.asarray(result.bound) < 0)
        usable = usable & ~is_negative
        broken = list(self._broken.values())
        if not usable.any():
            causes = {
                "clip: it acted in a run with noise, which the proof does not cover": is_clipped,
                "the numbers of the run are not finite": ~is_finite,
                "the bound is below 0, so smoothness, f_start, f_low or gradient_variance is "
                "false": is_negative,
                "no step has moved anything yet": (weight == 0) & (not broken),
            }
            broken += [text for text, where in causes.items() if where.any()]
        bound = np.where(usable & (not broken), result.bound, np.inf)
        result = dataclasses.replace(result, bound=bound.item() if bound.ndim == 0 else bound)
        given = {"smoothness": self.smoothness, "gradient_variance": self.gradient_variance}
        if value is None:
            given["f_low"] = self.f_low
        return Report(result, given, tuple(sorted(broken)))

    def _proximal_report(self, sums: ProximalSums, value: float | Tensor | None) -> Report:
        if value is not None:
            raise ValueError(
                f"value={value!r}: with a penalty the bound needs the smallest value of f + g, not "
                "that at x; leave value out, and f_low is taken"
            )
        self._look_at_moves()
        result = sums.certificate(self.f_start - self.f_low, self.p)
        broken = list(self._broken.values())
        if not broken and not np.isfinite(result.bound).any():
            broken.append(
                "steps: too long or too unequal for the envelope, without any length, or with more "
                "noise than at the start"
            )
        bound = np.where(not broken, result.bound, np.inf)
        result = dataclasses.replace(result, bound=bound.item() if bound.ndim == 0 else bound)
        given = {"smoothness": self.smoothness, "gradient_variance": self.gradient_variance}
        given |= {"f_low": self.f_low, "envelope": sums.envelope}
        return Report(result, given, tuple(sorted(broken)))

    # ---------------------------------------------------------------------------------- settings

    def _proximal_sums(self, envelope: float | None) -> ProximalSums | None:
        """Return the sums of a run with a penalty, with constants fixed by its first steps."""
        if all(penalty is None for penalty in self._penalties):
            if envelope is not None:
                raise ValueError(f"envelope={envelope!r}: need None for a run without a penalty")
            return None
        groups = self.optimizer.param_groups
        first = [_first_scales(group, self.gradient_variance) for group in groups]
        return ProximalSums(
            smoothness=self.smoothness,
            envelope=envelope,
            longest=max(float(metric.size) for metric in first),
            noise=max(float(metric.variance) for metric in first),
            is_even=all(group["alpha"] == 0.0 for group in groups),
        )

    def _look_at_penalties(self) -> None:
        """Note penalties, and knobs beside them, outside the proof."""
        penalties = [group["prox"] for group in self.optimizer.param_groups]
        has_changed = any(g is not None and g.has_changed for g in self._penalties)
        if has_changed or penalties != self._penalties:
            self._break("prox", "it changed during the run, and with it what is minimized")
        for group, p in self._params():
            penalty = group["prox"]
            for name, paper in (("momentum", 0.0), ("clip", None)):
                if self._proximal is not None and group[name] != paper:
                    self._break(name, "the bound for penalties does not cover it")
            if penalty is None or not ties_coordinates(p, penalty):
                continue
            if group["alpha"] != 0.0:
                self._break("prox", "groups are covered at alpha = 0 only, where steps are equal")
            if self.is_batched and getattr(penalty, "groups", None) is not None:
                self._break("prox", "its groups may tie replicas together")

    def _params(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if p.numel():  # one without coordinates has no step
                    yield group, p

    def _break(self, what: str, why: str) -> None:
        self._broken.setdefault(what, f"{what}: {why}")

    def _look_at_class(self) -> None:
        """Note the methods that a subclass overrides, since no knob shows them."""
        for base in type(self.optimizer).__mro__:
            if base is ASGLD:
                break
            for name, member in vars(base).items():
                is_ours = callable(member) and not name.startswith("__") and hasattr(ASGLD, name)
                if is_ours and name not in _NO_PART_OF_A_STEP:
                    self._break(f"{base.__name__}.{name}", "it overrides that of asgld.ASGLD")

    def _look_at_moves(self) -> None:
        if bool(self._is_moved):
            self._break("params", "they, or their momentum, changed between steps")

    def _look_at_settings(self) -> None:
        """Note the settings outside the proof."""
        for group in self.optimizer.param_groups:
            for name in (_PAPER.keys() | self.optimizer.defaults.keys()) - _COVERED:
                if name not in group:
                    continue
                value, is_known = group[name], name in _PAPER and not torch.is_tensor(group[name])
                if not (is_known and value == _PAPER[name]):
                    why = _WHY_NOT.get(name, "a setting that the proof does not cover")
                    self._break(name, f"{why} ({name}={value!r})")
            half, beta = group["alpha"] / 2, group["beta"]
            if _heats(group) and self._proximal is None:
                self._break("beta", f"{beta} < alpha/2 = {half}, so the noise heats as D grows")
            if _least_metric(group) <= 0.0:
                name = "d_init" if group["decay"] is None else "delta"
                self._break(name, f"at {group[name]}, D may be 0 and its power infinite")
            # The proof needs a kappa that is fixed at the start.
            is_hotter = self._noise_scale(group) > self.kappa * (1 + 1e-12)
            if is_hotter and self._proximal is None:
                why = "lr, sigma or noise is above its value at the start, or the least D below"
                self._break("kappa", why)
        self._look_at_penalties()
        for _, p in self._params():
            if hasattr(p, "placements"):
                raise TypeError("a parameter is a DTensor: certificates need whole parameters")
            if p.dtype not in _DTYPES:
                self._break(str(p.dtype), "rounding this coarse is not in the proof")

    def _noise_scale(self, group: dict[str, Any]) -> float:
        """Return kappa of a group, which is infinite if nothing bounds the noise."""
        least = _least_metric(group)
        if least <= 0.0 or _heats(group):
            return math.inf
        return noise_scale(
            least,
            alpha=group["alpha"],
            beta=group["beta"],
            sigma=_sigma(group),
            lr=float(group["lr"]),
            gradient_variance=self.gradient_variance,
        )

    # ------------------------------------------------------------------------------------- steps

    @torch.no_grad()
    def _look_before(self, *_: Any) -> None:
        self._look_at_settings()
        members = list(self._params())
        if len(members) > len(self._lags):
            self._break("params", "some were added after the start")
            self._lags += [0.0] * (len(members) - len(self._lags))
        self._before = []
        for i, (group, p) in enumerate(members):
            state, mu = self.optimizer.state.get(p) or {}, group["momentum"]
            if group["shape"] != "coordinate":
                continue  # broken already
            if "sum" not in state:
                self._break("state", "it was deleted, or its parameter was added later")
                continue
            momentum = state.get("momentum")
            before, past = self._as_left(i, _real(p), momentum)
            lag = float(group["lr"]) * mu / (1 - mu)
            # z does not jump if the lag stays, or if momentum is zero.
            if lag != self._lags[i] and momentum is not None and bool((momentum != 0).any()):
                why = "it was not zero when lr or momentum changed or the tracker was attached"
                self._break("momentum", why)
            self._lags[i] = lag
            squares, step = state["sum"].detach(), state["step"].detach().clone()
            metric = None
            if self._proximal is not None:
                metric = _scales_of_step(group, step, squares, self.gradient_variance)
            if group["clip"] is None:
                # D grows with the sum, so the largest sum has the shortest step.
                is_used = group["alpha"] != 0.0
                squares = self._reduce(squares, torch.amax) if is_used else squares.new_zeros(())
            inverse = _inverse_power(group, step, squares)
            past = past if lag else None
            self._before.append(_Sight(p, group, before, step, past, lag, inverse, metric))

    def _as_left(self, i: int, x: Tensor, momentum: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return copies of a parameter and its momentum, made after the last step if possible."""
        past = None if momentum is None else momentum.detach()
        left = self._after.get(i)
        if left is None or left[0].shape != x.shape or left[0].device != x.device:
            return x.clone(), None if past is None else past.clone()
        is_moved = (left[0] != x).any()
        if past is not None and left[1] is not None:
            is_moved = is_moved | (left[1] != past).any()
        self._is_moved = self._is_moved.to(is_moved.device) | is_moved
        return left[0], past.clone() if left[1] is None and past is not None else left[1]

    @torch.no_grad()
    def _look_after(self, *_: Any) -> None:
        if not self._before:
            return
        for i, sight in enumerate(self._before):
            momentum = self.optimizer.state[sight.p].get("momentum")
            kept = None if momentum is None or not sight.lag else momentum.detach().clone()
            self._after[i] = _real(sight.p).clone(), kept
        home = self._before[0].p.device
        nothing = torch.zeros((), dtype=torch.float64, device=home)
        # Of this step, per replica: |dz|^2, |z - x|^2, |r|^2 and w.
        squares, lagged, lost, weight = nothing, nothing, nothing, nothing + math.inf
        for sight in self._before:
            moved, behind, rounded = self._moves(sight)
            squares = squares + moved.to(home) ** 2
            lagged = lagged + behind.to(home) ** 2
            lost = lost + rounded.to(home) ** 2
            if sight.p.grad is None:
                self._break("gradient", "a parameter had none in some step")
            inverse = sight.inverse
            if sight.group["clip"] is not None:
                inverse, acted = self._clipped(sight)
                self._is_clipped = self._is_clipped.to(home) | acted.to(home)
            weight = torch.minimum(weight, float(sight.group["lr"]) * inverse.to(home))
        # 0 where a gradient scaler skipped the step: then no weight counts either.
        first = self._before[0]
        taken = (self.optimizer.state[first.p]["step"] - first.step).to(home)
        # A parameter that does not move is not rounded.
        share = torch.where((weight == 0) & (squares == 0), 0.0, lost / weight)
        self.sum_sq_step = (
            self.sum_sq_step.to(home) + squares + 2 * torch.sqrt(lagged) * torch.sqrt(squares)
        )
        self.sum_weight = self.sum_weight.to(home) + weight * taken
        self.sum_sq_rounding = self.sum_sq_rounding.to(home) + share * taken
        if self._proximal is not None and bool(taken > 0):
            self._add_proximal(self._proximal, torch.sqrt(squares), home)
        self.num_steps += 1
        self._before = []

    def _add_proximal(self, sums: ProximalSums, moved: Tensor, home: torch.device) -> None:
        """Add a step to the sums of a run with a penalty."""
        sizes, noises, off = [], [], torch.zeros_like(moved)
        for sight in self._before:
            assert sight.scales is not None
            x, (size, variance) = _real(sight.p), sight.scales
            sizes += [self._reduce(size, how).to(home) for how in (torch.amin, torch.amax)]
            noises += [self._reduce(variance, how).to(home) for how in (torch.amax, torch.sum)]
            # Two roundings before the proximal step, at most two in it.
            length = self._norm(sight.before) + self._norm(x)
            if sight.group["prox"] is not None:
                length = length + self._norm(pull_of(x, sight.group["prox"], size))
            off = off + torch.finfo(x.dtype).eps * length.to(home)
        largest = functools.partial(functools.reduce, torch.maximum)
        smallest = functools.reduce(torch.minimum, sizes[0::2])
        total = functools.reduce(torch.add, noises[1::2])
        sums.add(smallest, largest(sizes[1::2]), largest(noises[0::2]), total, moved, off)

    def _moves(self, sight: _Sight) -> tuple[Tensor, Tensor, Tensor]:
        """Return |dz| for z = x - lag m, |z - x| before the step, and a bound on the rounding."""
        before, after = sight.before, _real(sight.p)
        unit = torch.finfo(after.dtype).eps
        # The gradient step and the noise step each round their result by at most half a unit.
        rounded = unit / 2 * (self._norm(before) + self._norm(after))
        if not sight.lag:
            moved = self._norm(after - before)
            return moved, torch.zeros_like(moved), rounded
        present = self.optimizer.state[sight.p]["momentum"].detach().double()
        past = torch.zeros_like(present) if sight.momentum is None else sight.momentum.double()
        moved = self._norm((after - before) - sight.lag * (present - past))
        rounded = rounded + unit * sight.lag / sight.group["momentum"] * self._norm(present)
        return moved, sight.lag * self._norm(past), rounded

    def _clipped(self, sight: _Sight) -> tuple[Tensor, Tensor]:
        """Return the smallest factor of a gradient after the clip, and whether the clip voids the
        bound."""
        if getattr(self.optimizer, "grad_scale", None) is not None:
            self._break("clip", "a gradient scaler inside the step hides what was clipped")
        if sight.p.grad is None:  # `_look_after` reports this
            unknown = self._reduce(torch.zeros_like(sight.inverse), torch.amin)
            return unknown, unknown > 0
        size = _real(sight.p.grad).double().abs()
        bound = sight.step.to(size.device).double().clamp(min=1.0) ** sight.group["clip"]
        acted = self._reduce((sight.inverse * size > bound).double(), torch.amax) > 0
        inverse = sight.inverse
        if self.kappa == 0.0:
            # Without any noise, a clipped coordinate takes a part of its own gradient.
            inverse = torch.minimum(inverse, bound / size)
            acted = torch.zeros_like(acted)
        return self._reduce(inverse, torch.amin), acted

    def _norm(self, values: Tensor) -> Tensor:
        norm = functools.partial(torch.linalg.vector_norm, dtype=torch.float64)
        return self._reduce(values, norm) if self._axes(values) else values.abs().double()

    def _reduce(self, values: Tensor, how: Callable[..., Tensor]) -> Tensor:
        axes = self._axes(values)
        return how(values, dim=axes) if axes else values

    def _axes(self, values: Tensor) -> tuple[int, ...]:
        """Return the axes of coordinates: all but that of the replicas."""
        return tuple(range(int(self.is_batched), values.dim()))

    # --------------------------------------------------------------------------------- checkpoints

    def _save(self, _: Optimizer, state_dict: dict[str, Any]) -> None:
        self._look_at_moves()
        state_dict[_KEY] = {
            "num_steps": self.num_steps,
            "is_clipped": self._is_clipped.clone(),
            "lags": list(self._lags),
            "broken": dict(self._broken),
            "kappa": self.kappa,
            **{name: getattr(self, name).clone() for name in _SUMS},
            **{name: getattr(self, name) for name in _CONSTANTS},
            **({} if self._proximal is None else {"proximal": self._proximal.state()}),
        }

    def _check_loaded(self, _: Optimizer, state_dict: dict[str, Any]) -> None:
        """Check a state before it is loaded. Nothing changes: the optimizer may yet refuse it."""
        saved = state_dict.get(_KEY)
        if saved is None:
            raise ValueError(
                f"the state has no {_KEY!r}: it was saved without a tracker. Load it before the "
                "tracker is attached, with f_start at the loaded parameters"
            )
        members = [p for _, p in self._params()]
        shapes = [(), *(tuple(p.shape[:1]) for p in members[:1] if self.is_batched)]

        def is_tensor(value: Any, dtype: torch.dtype = torch.float64) -> bool:
            is_right = torch.is_tensor(value) and value.dtype == dtype
            return is_right and tuple(value.shape) in shapes

        def is_text(value: Any) -> bool:
            return isinstance(value, dict) and all(
                isinstance(word, str) for pair in value.items() for word in pair
            )

        def is_lags(value: Any) -> bool:
            is_list = isinstance(value, list) and len(value) == len(members)
            return is_list and all(isinstance(lag, float) for lag in value)

        right: dict[str, Callable[[Any], bool]] = {
            "num_steps": lambda value: type(value) is int and value >= 0,
            "is_clipped": lambda value: is_tensor(value, torch.bool),
            "lags": is_lags,
            "broken": is_text,
            "kappa": lambda value: isinstance(value, float) and value >= 0.0,
            **dict.fromkeys(_SUMS, is_tensor),
        }
        for name in (*right, *_CONSTANTS):
            if not isinstance(saved, dict) or name not in saved:
                raise ValueError(f"the saved {_KEY!r} has no {name!r}")
        for name, is_right in right.items():
            if not is_right(saved[name]):
                raise ValueError(
                    f"the saved {_KEY!r} has {name}={saved[name]!r}: not the value of a tracker of "
                    "these parameters"
                )
        for name in _CONSTANTS:
            if saved[name] != getattr(self, name):
                raise ValueError(
                    f"{name}={getattr(self, name)!r}, but the saved {_KEY!r} has {saved[name]!r}: "
                    "it must not change during a run"
                )
        if self._proximal is not None:
            problem = self._proximal.problem_with(saved.get("proximal"), shapes)
            if problem:
                raise ValueError(f"the saved {_KEY!r} has other proximal sums: {problem}")
        self._loaded = dict(saved)

    def _load(self, _: Optimizer) -> None:
        saved, self._loaded = self._loaded, {}
        self.num_steps, self.kappa = saved["num_steps"], saved["kappa"]
        for name in _SUMS:
            setattr(self, name, saved[name].clone())
        self._is_clipped = saved["is_clipped"].clone()
        if self._proximal is not None:
            self._proximal.load(saved["proximal"])
        self._lags, self._broken = list(saved["lags"]), dict(saved["broken"])
        self._before, self._after = [], {}
        self._is_moved = torch.zeros((), dtype=torch.bool)


class Tracked:
    """A Langevin method whose runs have a certificate for each replica.

    Give `method` to `asgld.run.run` and read `tracker` afterwards. The constants are arguments of
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
        # A checkpoint is identified by this text, so it must be the same in every process.
        return f"Tracked({getattr(self._make, '__name__', self._make)!s})"


def _sigma(group: dict[str, Any]) -> float:
    """Return sigma, also if `noise` gives the noise in units of a gradient step."""
    if group.get("noise") is None:
        return float(group["sigma"])
    return float(group["noise"]) * math.sqrt(float(group["lr"]) / 2)


def _has_noise(group: dict[str, Any]) -> bool:
    return _sigma(group) > 0.0 and not math.isinf(group["beta"])


def _heats(group: dict[str, Any]) -> bool:
    """Whether the noise grows as D does."""
    return _has_noise(group) and bool(group["beta"] < group["alpha"] / 2)


def _least_metric(group: dict[str, Any]) -> float:
    """Return the smallest D of any run, or 1 if no power of D is taken."""
    if group["alpha"] == 0.0 and not (_has_noise(group) and group["beta"] > 0.0):
        return 1.0
    return float(group["d_init"] if group["decay"] is None else group["delta"])


def _inverse_power(group: dict[str, Any], step: Tensor, squares: Tensor) -> Tensor:
    """Return D^(-alpha/2) at this step count; `squares` is the `sum` of the state."""
    inverse: Tensor = _metric(group, step, squares) ** (-group["alpha"] / 2)
    if group["decay"] is not None and group["d_init"] == 0.0:
        # The first gradient only fills the average, and moves nothing.
        inverse = torch.where(step.to(inverse.device) > 0, inverse, 0.0)
    return inverse


def _first_scales(group: dict[str, Any], gradient_variance: float) -> StepScales:
    """Return the largest step size and variance that the least D allows."""
    least = torch.tensor(_least_metric(group), dtype=torch.float64)
    size = float(group["lr"]) * least ** (-group["alpha"] / 2)
    return StepScales(size, _variance(group, size, least, gradient_variance))


def _scales_of_step(
    group: dict[str, Any], step: Tensor, squares: Tensor, gradient_variance: float
) -> StepScales:
    """Return step sizes and variances of every coordinate at this step count."""
    size = float(group["lr"]) * _inverse_power(group, step, squares)
    variance = _variance(group, size, _metric(group, step, squares), gradient_variance)
    return StepScales(size, torch.where(size > 0.0, variance, 0.0))


def _variance(
    group: dict[str, Any], size: Tensor, metric: Tensor, gradient_variance: float
) -> Tensor:
    """Return the variance of the noise; `annealing` lowers it, and is left out."""
    variance: Tensor = gradient_variance * size**2
    if _has_noise(group):
        variance = variance + 2 * float(group["lr"]) * _sigma(group) ** 2 * metric ** -group["beta"]
    return variance


def _metric(group: dict[str, Any], step: Tensor, squares: Tensor) -> Tensor:
    """Return D at this step count."""
    k, squares = step.to(squares.device).double(), squares.double()
    d_init, delta, decay = group["d_init"], group["delta"], group["decay"]
    if decay is None:
        metric = squares + (d_init + delta * k)
    elif d_init > 0.0:
        metric = squares + (delta + d_init * decay**k)
    else:
        metric = squares / (1 - decay ** k.clamp(min=1.0)) + delta
    found: Tensor = metric + _addition(group, k)
    return found


def _addition(group: dict[str, Any], k: Tensor) -> Tensor | float:
    """Return the addition of `noise_bound` to D, which bounds the noise step."""
    bound, lr = group["noise_bound"], float(group["lr"])
    if bound is None or lr == 0.0 or not _has_noise(group):
        return 0.0
    later = k.clamp(min=1.0)
    size = math.sqrt(2 * lr) * _sigma(group) * later ** (-group["annealing"] / 2)
    added: Tensor = (size / (bound * lr * later.sqrt())) ** (2 / group["beta"])
    return added


def _real(tensor: Tensor) -> Tensor:
    """Return a complex tensor as real coordinates, two per number."""
    tensor = tensor.detach()
    return torch.stack([tensor.real, tensor.imag], -1) if tensor.is_complex() else tensor
