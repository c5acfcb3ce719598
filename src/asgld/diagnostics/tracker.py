"""A certificate that a run writes about itself: :class:`CertificateTracker`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from asgld.methods.torch import TorchMethod
from asgld.optim import ASGLD
from asgld.optim.rule import Rule
from asgld.theory.certificates import Certificate, certificate, noise_scale

_KEY = "certificate"

# What the proof of `asgld.theory.certificate` covers. Any other knob must have the paper's value,
# which is ASGLD's own default; one that is added later is refused until it is proved and named.
_COVERED = {
    *("lr", "alpha", "beta", "sigma", "noise", "delta", "d_init"),
    *("decay", "momentum", "clip", "annealing", "noise_bound"),
    # These change no mathematics: D is read from the sum as it is stored.
    *("foreach", "fused", "capturable", "differentiable", "seed"),
    *("sum_dtype", "stochastic_rounding"),
}
_WHY_NOT = {
    "weight_decay": "weight decay moves the iterate in a way the bound does not cover",
    "maximize": "the bound is about descent, and this run ascends",
}
_PAPER = Rule._field_defaults
_DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


@dataclass(frozen=True)
class Report:
    """What a certificate says, and on which conditions.

    ============  ==========================================================================
    field         meaning
    ============  ==========================================================================
    certificate   the bound, see `asgld.theory.Certificate`; it is infinite if broken
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


class _Sight(NamedTuple):
    """One parameter before a step."""

    p: Tensor
    group: dict[str, Any]
    before: Tensor
    step: Tensor
    momentum: Tensor | None
    lag: float  # z = x - lag * momentum
    inverse: Tensor  # D^(-alpha/2), of every coordinate where a clip may act, else the smallest


class CertificateTracker:
    r"""Bounds the squared gradients of a run from what its optimizer did.

    .. math::
        \min_{j<k} \|\nabla f(x_j)\|^2 \le \frac{\sum_j w_j \|\nabla f(x_j)\|^2}{\sum_j w_j}
        \le \text{bound}, \qquad w_j = \min_i \mathrm{lr}\, D_{j,i}^{-\alpha/2}

    with probability 1 - p, for all k at once; `asgld.theory.certificate` has the formula and its
    proof. The tracker hooks itself to the optimizer. Each step costs one copy of the parameters and
    four norms, no gradient; sums are in float64. They travel in the optimizer's `state_dict`,
    so a resumed run goes on with them.

    The proof covers some settings and not others. All knobs of all groups are looked at before
    every step. One outside the proof makes ``report().broken`` name it; it is never ignored.

    =================  ========================================================================
    setting            what the tracker does
    =================  ========================================================================
    ``decay``          covered if delta > 0: D may fall, but never below delta
    ``annealing``      covered: it only lowers the noise
    ``noise_bound``    covered: it adds to D what is known before the step
    ``momentum``       covered at constant lr and momentum, with another sum of squares; it needs
                       f_low, and f at the present iterate is of no use
    ``clip``           covered while it never acts, and after that if there is no noise of any
                       kind; else the bound of this replica is infinite
    float32            covered: the bound has a term for rounding
    beta < alpha/2     broken: the noise heats
    higher lr, sigma   broken where they raise kappa, which was fixed at the start
    ``maximize``       broken
    ``weight_decay``   broken; add the penalty to f instead
    half precision     broken: its rounding is not small next to a step
    any other knob     broken unless it has the paper's value
    anything else      broken: parameters or momentum that others moved between steps
    =================  ========================================================================

    Two conditions it cannot see: knobs may depend on past gradients alone, not on the newest; and
    the gradient must be unbiased given the past (batches drawn anew, not the rest of an epoch).

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
        self.sum_sq_step = torch.zeros((), dtype=torch.float64)
        self.sum_weight = torch.zeros((), dtype=torch.float64)
        self.sum_sq_rounding = torch.zeros((), dtype=torch.float64)
        self._is_clipped = torch.zeros((), dtype=torch.bool)  # a clip acted where it must not
        self._lags = [0.0] * len(list(self._params()))
        self._broken: dict[str, str] = {}
        self._before: list[_Sight] = []
        # What the last step left, to see whether it is still there.
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

        The bound is infinite for a replica whose clip acted, that left the finite numbers, whose
        bound is below 0, or that has not moved yet. If that is so of all, `broken` says why.
        """
        if self.num_steps == 0:
            raise RuntimeError("no step was taken yet: a certificate is about steps")
        if value is not None and any(self._lags):
            raise ValueError(
                f"value={value!r}: with momentum the bound needs f at x - lr mu/(1-mu) m, not at "
                "x; leave value out, and f_low is taken"
            )
        end = torch.as_tensor(self.f_low if value is None else value, dtype=torch.float64)
        squares, weight, lost, gap, is_clipped = np.broadcast_arrays(
            _numpy(self.sum_sq_step),
            _numpy(self.sum_weight),
            _numpy(self.sum_sq_rounding),
            _numpy(self.f_start.cpu() - end.cpu()),
            _numpy(self._is_clipped),
        )
        self._look_at_moves()
        is_finite = np.isfinite(squares) & np.isfinite(weight)
        usable = is_finite & (weight > 0) & np.isfinite(lost) & ~is_clipped
        result = certificate(
            sum_sq_step=np.where(usable, squares, 0.0),
            sum_weight=np.where(usable, weight, 1.0),
            sum_sq_rounding=np.where(usable, lost, 0.0),
            f_gap=gap,
            smoothness=self.smoothness,
            kappa=self.kappa,
            p=self.p,
        )
        is_negative = usable & (np.asarray(result.bound) < 0)
        usable = usable & ~is_negative
        broken = list(self._broken.values())
        if not usable.any():
            causes = {
                "clip: it acted in a run with noise, and the clipped noise is not in the proof": (
                    is_clipped
                ),
                "the run left the finite numbers": ~is_finite,
                "the bound is below 0, so smoothness, f_start, f_low or gradient_variance is "
                "false": is_negative,
                "no step has moved anything yet": weight == 0,
            }
            broken += [text for text, where in causes.items() if where.any()]
        bound = np.where(usable & (not broken), result.bound, np.inf)
        result = dataclasses.replace(result, bound=bound.item() if bound.ndim == 0 else bound)
        given = {"smoothness": self.smoothness, "gradient_variance": self.gradient_variance}
        if value is None:
            given["f_low"] = self.f_low
        return Report(result, given, tuple(sorted(broken)))

    # ---------------------------------------------------------------------------------- settings

    def _params(self) -> Iterator[tuple[dict[str, Any], Tensor]]:
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                yield group, p

    def _break(self, what: str, why: str) -> None:
        self._broken.setdefault(what, f"{what}: {why}")

    def _look_at_class(self) -> None:
        """Note what a subclass does in its own way: no knob shows it."""
        for base in type(self.optimizer).__mro__:
            if base is ASGLD:
                break
            for name, member in vars(base).items():
                if callable(member) and not name.startswith("__") and hasattr(ASGLD, name):
                    self._break(f"{base.__name__}.{name}", "it is not that of asgld.ASGLD")

    def _look_at_moves(self) -> None:
        if bool(self._is_moved):
            self._break("params", "others than the optimizer moved them, or their momentum")

    def _look_at_settings(self) -> None:
        """Note what the proof does not cover."""
        for group in self.optimizer.param_groups:
            for name in _PAPER.keys() | self.optimizer.defaults.keys():
                if name in _COVERED or name not in group:
                    continue
                value, is_known = group[name], name in _PAPER and not torch.is_tensor(group[name])
                if not (is_known and value == _PAPER[name]):
                    why = _WHY_NOT.get(name, "a setting that the proof does not cover")
                    self._break(name, f"{why} ({name}={value!r})")
            alpha, beta = group["alpha"], group["beta"]
            if _has_noise(group) and beta < alpha / 2:
                self._break(
                    "beta", f"{beta} < alpha/2 = {alpha / 2}, so the noise heats as D grows"
                )
            if _least_metric(group) <= 0.0:
                name = "d_init" if group["decay"] is None else "delta"
                self._break(
                    name, f"at {group[name]}, D may be as small as 0 and its power infinite"
                )
            # kappa was fixed at the start, as the proof needs; a hotter setting voids it.
            if self._noise_scale(group) > self.kappa * (1 + 1e-12):
                self._break(
                    "kappa",
                    "lr, sigma or noise was raised above its value at the start, or the least D "
                    "was lowered",
                )
        for _, p in self._params():
            if hasattr(p, "placements"):
                raise TypeError("a parameter is a DTensor: certificates need whole parameters")
            if p.dtype not in _DTYPES:
                self._break(str(p.dtype), "rounding this coarse is not in the proof")

    def _noise_scale(self, group: dict[str, Any]) -> float:
        """kappa of a group; infinite where nothing bounds its noise."""
        least = _least_metric(group)
        if least <= 0.0 or (_has_noise(group) and group["beta"] < group["alpha"] / 2):
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
            if "sum" not in state:
                self._break("state", "it is gone, or its parameter was put in later")
                continue
            momentum = state.get("momentum")
            before, past = self._as_left(i, _real(p), momentum)
            lag = float(group["lr"]) * mu / (1 - mu)
            # z stays where it is if the lag does, or while there is no momentum.
            if lag != self._lags[i] and momentum is not None and bool((momentum != 0).any()):
                self._break(
                    "momentum", "it was under way when lr or momentum changed or the tracker came"
                )
            self._lags[i] = lag
            squares = state["sum"].detach()
            if group["clip"] is None:
                # D grows with the sum, so its largest entry has the shortest step.
                is_used = group["alpha"] != 0.0
                squares = self._reduce(squares, torch.amax) if is_used else squares.new_zeros(())
            self._before.append(
                _Sight(
                    p=p,
                    group=group,
                    before=before,
                    step=state["step"].detach().clone(),
                    momentum=past if lag else None,
                    lag=lag,
                    inverse=_inverse_power(group, state["step"].detach(), squares),
                )
            )

    def _as_left(self, i: int, x: Tensor, momentum: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Copies of a parameter and its momentum, those of the last step where there was one."""
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
        # What is not to move, and does not, is not rounded.
        share = torch.where((weight == 0) & (squares == 0), 0.0, lost / weight)
        self.sum_sq_step = (
            self.sum_sq_step.to(home) + squares + 2 * torch.sqrt(lagged) * torch.sqrt(squares)
        )
        self.sum_weight = self.sum_weight.to(home) + weight * taken
        self.sum_sq_rounding = self.sum_sq_rounding.to(home) + share * taken
        self.num_steps += 1
        self._before = []

    def _moves(self, sight: _Sight) -> tuple[Tensor, Tensor, Tensor]:
        """|dz|, the move of z = x - lag m; |z - x| before it; and the most that rounding adds."""
        before, after = sight.before, _real(sight.p)
        unit = torch.finfo(after.dtype).eps
        # The gradient step and the noise are each rounded by half a unit of what they lead to.
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
        """The smallest factor of a gradient after the clip; whether the clip voids the bound."""
        if getattr(self.optimizer, "grad_scale", None) is not None:
            self._break("clip", "a gradient scaler inside the step hides what was clipped")
        if sight.p.grad is None:  # the step is reported as broken
            unknown = self._reduce(torch.zeros_like(sight.inverse), torch.amin)
            return unknown, unknown > 0
        size = _real(sight.p.grad).double().abs()
        bound = sight.step.to(size.device).double().clamp(min=1.0) ** sight.group["clip"]
        acted = self._reduce((sight.inverse * size > bound).double(), torch.amax) > 0
        inverse = sight.inverse
        if self.kappa == 0.0:
            # With no noise at all a clipped coordinate takes a part of its own gradient.
            inverse = torch.minimum(inverse, bound / size)
            acted = torch.zeros_like(acted)
        return self._reduce(inverse, torch.amin), acted

    def _norm(self, values: Tensor) -> Tensor:
        axes = tuple(range(1 if self.is_batched else 0, values.dim()))
        if not axes:
            return values.abs().double()
        norm: Tensor = torch.linalg.vector_norm(values, dim=axes, dtype=torch.float64)
        return norm

    def _reduce(self, values: Tensor, how: Any) -> Tensor:
        axes = tuple(range(1 if self.is_batched else 0, values.dim()))
        reduced: Tensor = how(values, dim=axes) if axes else values
        return reduced

    # --------------------------------------------------------------------------------- checkpoints

    def _save(self, _: Optimizer, state_dict: dict[str, Any]) -> None:
        self._look_at_moves()
        state_dict[_KEY] = {
            "num_steps": self.num_steps,
            "sum_sq_step": self.sum_sq_step.clone(),
            "sum_weight": self.sum_weight.clone(),
            "sum_sq_rounding": self.sum_sq_rounding.clone(),
            "is_clipped": self._is_clipped.clone(),
            "f_start": self.f_start.clone(),
            "lags": list(self._lags),
            "broken": dict(self._broken),
            "kappa": self.kappa,
            "gradient_variance": self.gradient_variance,
            "p": self.p,
            "is_batched": self.is_batched,
        }

    def _check_loaded(self, _: Optimizer, state_dict: dict[str, Any]) -> None:
        """Check what is about to be loaded, and change nothing: the optimizer may yet refuse."""
        saved = state_dict.get(_KEY)
        if saved is None:
            raise ValueError(
                f"the state has no {_KEY!r}: it was saved without a tracker; load it before the "
                "tracker is attached, with f_start at the loaded parameters"
            )
        members = [p for _, p in self._params()]
        shapes = [(), tuple(members[0].shape[:1])] if self.is_batched else [()]

        def is_sum(value: Any) -> bool:
            is_real = torch.is_tensor(value) and value.dtype == torch.float64
            return is_real and tuple(value.shape) in shapes

        def is_text(value: Any) -> bool:
            return isinstance(value, dict) and all(
                isinstance(word, str) for pair in value.items() for word in pair
            )

        def is_lags(value: Any) -> bool:
            is_list = isinstance(value, list) and len(value) == len(members)
            return is_list and all(isinstance(lag, float) for lag in value)

        right: dict[str, Callable[[Any], bool]] = {
            "num_steps": lambda value: type(value) is int and value >= 0,
            "sum_sq_step": is_sum,
            "sum_weight": is_sum,
            "sum_sq_rounding": is_sum,
            "is_clipped": lambda value: (
                torch.is_tensor(value)
                and value.dtype == torch.bool
                and tuple(value.shape) in shapes
            ),
            "f_start": is_sum,
            "lags": is_lags,
            "broken": is_text,
            "kappa": lambda value: isinstance(value, float) and value >= 0.0,
        }
        constants = ("gradient_variance", "p", "is_batched")
        for name in (*right, *constants):
            if not isinstance(saved, dict) or name not in saved:
                raise ValueError(f"the saved {_KEY!r} has no {name!r}")
        for name, is_right in right.items():
            if not is_right(saved[name]):
                raise ValueError(
                    f"the saved {_KEY!r} has {name}={saved[name]!r}: not what a tracker of these "
                    "parameters saves"
                )
        for name in constants:
            if saved[name] != getattr(self, name):
                raise ValueError(
                    f"{name}={getattr(self, name)!r}, but the saved {_KEY!r} has {saved[name]!r}: "
                    "it must stay what it was at the start"
                )
        self._loaded = dict(saved)

    def _load(self, _: Optimizer) -> None:
        saved, self._loaded = self._loaded, {}
        self.num_steps, self.kappa = saved["num_steps"], saved["kappa"]
        self.sum_sq_step = saved["sum_sq_step"].clone()
        self.sum_weight = saved["sum_weight"].clone()
        self.sum_sq_rounding = saved["sum_sq_rounding"].clone()
        self._is_clipped, self.f_start = saved["is_clipped"].clone(), saved["f_start"].clone()
        self._lags, self._broken = list(saved["lags"]), dict(saved["broken"])
        self._before, self._after = [], {}
        self._is_moved = torch.zeros((), dtype=torch.bool)


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


def _sigma(group: dict[str, Any]) -> float:
    """sigma as the step uses it; `noise` says it in units of a gradient step."""
    noise = group.get("noise")
    if noise is None:
        return float(group["sigma"])
    return float(noise) * math.sqrt(float(group["lr"]) / 2)


def _has_noise(group: dict[str, Any]) -> bool:
    return _sigma(group) > 0.0 and not math.isinf(group["beta"])


def _least_metric(group: dict[str, Any]) -> float:
    """The smallest D a run can have; 1 where no power of D is taken."""
    if group["alpha"] == 0.0 and not (_has_noise(group) and group["beta"] > 0.0):
        return 1.0
    return float(group["d_init"] if group["decay"] is None else group["delta"])


def _inverse_power(group: dict[str, Any], step: Tensor, squares: Tensor) -> Tensor:
    """D^(-alpha/2) at this step count, from the sum or average of squares as it is stored."""
    k, squares = step.to(squares.device).double(), squares.double()
    d_init, delta, decay = group["d_init"], group["delta"], group["decay"]
    if decay is None:
        metric = squares + (d_init + delta * k)
    elif d_init > 0.0:
        metric = squares + (delta + d_init * decay**k)
    else:
        metric = squares / (1 - decay ** k.clamp(min=1.0)) + delta
    inverse: Tensor = (metric + _addition(group, k)) ** (-group["alpha"] / 2)
    if decay is not None and d_init == 0.0:
        # The first gradient only fills the average, and moves nothing.
        inverse = torch.where(k > 0, inverse, 0.0)
    return inverse


def _addition(group: dict[str, Any], k: Tensor) -> Tensor | float:
    """What `noise_bound` adds to D, so that noise is at most noise_bound lr sqrt(k)."""
    bound, lr = group["noise_bound"], float(group["lr"])
    if bound is None or lr == 0.0 or not _has_noise(group):
        return 0.0
    later = k.clamp(min=1.0)
    size = math.sqrt(2 * lr) * _sigma(group) * later ** (-group["annealing"] / 2)
    added: Tensor = (size / (bound * lr * later.sqrt())) ** (2 / group["beta"])
    return added


def _real(tensor: Tensor) -> Tensor:
    """A complex number is two real coordinates."""
    tensor = tensor.detach()
    return torch.stack([tensor.real, tensor.imag], -1) if tensor.is_complex() else tensor


def _numpy(value: Tensor) -> Any:
    return value.detach().cpu().numpy()
