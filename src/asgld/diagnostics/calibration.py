r"""Settings from measurements. Three rules, one for each kind of user.

======================  =====================  ===================================================
rule                    d_init                 why
======================  =====================  ===================================================
`start_options`, for    max(1, max g^2), or    a function is minimized from one point: D must hold
:func:`asgld.minimize`  max g^2 where the      the largest squared gradient there, or the first
and `asgld.compare`     scale of f is known    step would be longer than 1/M
:func:`calibrate`       100 mean g^2           training goes on for long: D begins as if a hundred
                                               gradients had been seen, a warm-up in units of f
`groups_from_gradients` w mean g^2, w = 0.01   a clip bounds the first steps, so D may begin small
                                               and soon holds what was seen
======================  =====================  ===================================================

The first two choose lr = d_init^(alpha/2) / M: a first step of length 1/M whatever alpha is.
:func:`measure_start` looks at the start points alone, through the counting oracle, and costs a few
dozen calls. :func:`measure_scales` also descends for a while, uncounted, and so does
:func:`measure_surroundings`, which tells what any method needs to know.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from asgld.arguments import require
from asgld.curvature import ModelHessian, gradient_variance, largest_curvature
from asgld.methods.base import Adjustable, FitsItself, Surroundings, normals
from asgld.oracle import Oracle
from asgld.prox import BoundPenalty
from asgld.theory import recommend

# Streams of `normals` that no update uses.
_KICK_STREAM, _POWER_STREAM = 0xCA1, 0xCA11B
_POWER_STEPS = 10
_MAX_DOUBLINGS = 40
# Sigma of all coordinates together in `start_options`, in units of f or of curvature; and its
# square relative to the fall of f, where that is known.
_TOTAL_SIGMA = 0.1
_TOTAL_HEAT = 1e-8
# The first step of an optimizer whose steps are distances, in units of the length of the descent.
_DISTANCE = 1e-2
# The descent of `measure_surroundings`; where on it the Hessian is looked at, in parts of it; and
# the least change of the Hessian over its length, in units of M.
_PROBE_STEPS = 50
# It may not evaluate f more often than this, all starts together, nor go so many times as far as
# the start is from the origin: f has no minimum there.
_PROBE_CALLS, _RUNAWAY = 200, 1e8
_LOOKS = (0.1, 0.3, 1.0)
_LEAST_CHANGE = 0.1
# A point may still promise a relative decrease of f by this much and count as stationary.
_PROMISE = 1e-8
# Where gamma lies, in units of M, whatever rho and eps are.
_LEAST_GAMMA, _MOST_GAMMA = 1e-3, 0.1
# The kick that lets the probe leave an exact critical point, in units of the start's length.
_KICK = 1e-2
_MAX_SAMPLES = 256  # for the variance of a gradient


@dataclass(frozen=True)
class StartScales:
    """Measured at the start alone: the largest curvature M and the largest squared gradient."""

    curvature: float
    max_square: float


def measure_start(oracle: Oracle, x0: Tensor, *, seed: int = 0) -> StartScales:
    """Measure curvature and gradient at the start points, (R, d); the largest over rows count.

    Power iteration on Hessian-vector products estimates M from below. Then M is doubled until the
    gradient step of length 1/M lowers f as a function of curvature M must. All calls are counted.
    """
    # A trial step may leave the domain, which is no fault of the user's.
    trials = oracle.open(len(x0), name="measurement", needs=frozenset({"value"}))
    if bool((x0 == x0[0]).all()):
        # Equal starts need one measurement.
        oracle, trials, x0 = oracle.rows(0), trials.rows(0), x0[:1]
    value, grad = oracle.value_and_grad(x0)
    direction = normals(seed, 0, x0, stream=_POWER_STREAM)
    curvature = torch.zeros(len(x0), dtype=x0.dtype)
    for _ in range(_POWER_STEPS):
        direction = direction / torch.linalg.vector_norm(direction, dim=-1, keepdim=True)
        product = oracle.hvp(x0, direction)
        norm = torch.linalg.vector_norm(product, dim=-1)
        curvature = torch.maximum(curvature, norm)
        direction = torch.where(norm[:, None] > 0, product, direction)
    squared = (grad * grad).sum(-1)
    # Without curvature the start is flat; a step of the gradient's own length is as good as any.
    curvature = torch.where(curvature > 0, curvature, torch.sqrt(squared).clamp(min=1.0))
    for _ in range(_MAX_DOUBLINGS):
        trial = trials.value(x0 - grad / curvature[:, None])
        is_long = ~(trial <= _goal(value, squared, curvature) + 1e-12 * value.abs())
        if not bool(is_long.any()):
            break
        curvature = torch.where(is_long, 2.0 * curvature, curvature)
    return StartScales(float(curvature.max()), float((grad * grad).max()))


def start_options(
    method: Adjustable, scales: StartScales | Surroundings, dim: int
) -> dict[str, Any]:
    r"""Options of the method: those that were given, and the open ones as it fits them itself.

    The methods of the paper's family, and others that do not fit themselves, follow one rule:

    .. math::
        d_\mathrm{init} = \max(1, \max_i g_i^2) \text{ if } \alpha > 0 \text{ else } 1, \quad
        \delta = d_\mathrm{init} / 100, \quad
        \mathrm{lr} = d_\mathrm{init}^{\alpha/2} / M, \quad
        \sigma = 0.1 \sqrt{\min(1, M) / d}

    The noise is small on purpose: the time to leave a saddle grows with log(1/sigma) only. Where
    the fall F of f is known, d_init is the largest squared gradient alone, and all coordinates
    together begin at the temperature F / 10^8: the iterates then do not depend on units. Where D
    forgets, a step is a distance: lr is a hundredth of what one coordinate moved in a descent.
    """
    if isinstance(method, FitsItself):
        fitted = method.fitted(as_surroundings(scales, dim))
        chosen = {name: value for name, value in fitted.items() if name in method.open_options}
        return {**method.options, **chosen}
    knobs = method.knobs
    alpha, beta = float(knobs.get("alpha", 0.0)), float(knobs.get("beta", 0.0))
    filled = {"alpha": alpha, **method.options}
    if isinstance(scales, Surroundings):
        d_init = filled.setdefault("d_init", scales.max_square)
        heat = _TOTAL_HEAT * scales.fall / dim
        sigma = 0.0 if math.isinf(beta) else math.sqrt(heat) * d_init ** ((beta - alpha / 2) / 2)
    else:
        d_init = filled.setdefault("d_init", max(1.0, scales.max_square) if alpha > 0 else 1.0)
        sigma = _TOTAL_SIGMA * math.sqrt(min(1.0, scales.curvature) / dim)
    lr = d_init ** (alpha / 2) / scales.curvature
    if knobs.get("decay") is not None:
        around = as_surroundings(scales, dim)
        lr, sigma = _DISTANCE * around.coordinate, math.sqrt(_TOTAL_HEAT * around.fall / dim)
    filled.setdefault("delta", 1e-2 * d_init)
    filled.setdefault("lr", lr)
    filled.setdefault("sigma", sigma)
    known = method.options.keys() | method.open_options
    return {name: value for name, value in filled.items() if name in known}


def as_surroundings(scales: StartScales | Surroundings, dim: int) -> Surroundings:
    """The same with what was not measured: x is taken to have length 1, and f curvature M there."""
    if isinstance(scales, Surroundings):
        return scales
    curvature = scales.curvature
    eps, gamma = _tolerances(curvature, curvature, curvature)
    square = scales.max_square or curvature**2
    return Surroundings(curvature, square, curvature, curvature, 1.0, dim, eps, gamma)


def measure_surroundings(
    oracle: Oracle,
    x0: Tensor,
    scales: StartScales,
    *,
    tol: float | None = None,
    seed: int = 0,
    max_seconds: float | None = None,
) -> Surroundings:
    """Look around the start points, (R, d), by a kick and a short descent; nothing is counted.

    Of several starts the largest curvature, gradient and change of the Hessian count, and the
    median of fall and length. `tol` is the gradient norm that counts as small; by default that at
    which a step of length 1/M promises a relative decrease of 10^-8.
    """
    free = oracle.free()
    rows = torch.unique(x0, dim=0)
    most = max(_PROBE_CALLS // len(rows), 10)
    end = math.inf if max_seconds is None else time.perf_counter() + max_seconds
    found = [_descend(free, row, scales.curvature, seed, most, end) for row in rows]
    curvature, square, change = (max(values) for values in list(zip(*found, strict=True))[:3])
    fall, length = (
        sorted(values)[len(found) // 2] for values in list(zip(*found, strict=True))[3:]
    )
    fall = fall or curvature * length**2  # no step lowered f: it rests at a minimum already
    rho = max(change, _LEAST_CHANGE * curvature / length)
    eps, gamma = _tolerances(curvature, rho, fall, tol)
    square = max(square, scales.max_square) or curvature * fall / oracle.dim
    return Surroundings(
        curvature, square, rho, fall, length, oracle.dim, eps, gamma, oracle.num_samples
    )


def _tolerances(
    curvature: float, rho: float, fall: float, tol: float | None = None
) -> tuple[float, float]:
    """The gradient norm that counts as small, and the gamma that belongs to it."""
    eps = math.sqrt(2.0 * _PROMISE * curvature * fall) if tol is None else tol
    gamma = math.sqrt(rho * eps)
    return eps, min(max(gamma, _LEAST_GAMMA * curvature), _MOST_GAMMA * curvature)


def _descend(
    free: Oracle, x: Tensor, curvature: float, seed: int, most: int, end: float
) -> tuple[float, float, float, float, float]:
    """Descend from x, (d,): largest curvature, squared gradient and change of the Hessian; fall
    and length. A step is twice as long as the last one, or as short as f demands.
    """
    size = float(torch.linalg.vector_norm(x)) / math.sqrt(x.numel()) or 1.0
    before = float(free.value(x))
    point = x + _KICK * size * normals(seed, 0, x, stream=_KICK_STREAM)
    value = float(free.value(point))
    if not math.isfinite(value):  # a kick may leave the domain
        point, value = x, before
    grad = free.grad(point)
    step, path, squares = 1.0 / curvature, [point], [float((grad * grad).max())]
    for _ in range(_PROBE_STEPS):
        slope = float(grad @ grad)
        for _ in range(min(_MAX_DOUBLINGS, most)):
            trial = point - step * grad
            lower, most = float(free.value(trial)), most - 1
            is_tamed = float(torch.linalg.vector_norm(trial - x)) <= _RUNAWAY * size
            if is_tamed and -math.inf < lower <= value - 0.25 * step * slope:
                break
            step /= 2
        else:
            break
        if not lower < value or time.perf_counter() > end:
            break
        bend = free.grad(trial) - grad
        length = float(torch.linalg.vector_norm(trial - point))
        curvature = max(curvature, float(torch.linalg.vector_norm(bend)) / length)
        point, value, grad, step = trial, lower, grad + bend, 2 * step
        path.append(point)
        squares.append(float((grad * grad).max()))
    reach = max(float(torch.linalg.vector_norm(p - x)) for p in path)
    change = _hessian_change(free, x, path)
    return curvature, max(squares), change, max(before - value, 0.0), reach or size


def _hessian_change(free: Oracle, x: Tensor, path: list[Tensor]) -> float:
    """How fast the Hessian changes from x on along the path, in the direction of the path."""
    found = 0.0
    for part in _LOOKS:
        away = path[round(part * (len(path) - 1))] - x
        distance = float(torch.linalg.vector_norm(away))
        if distance == 0.0:
            continue
        bend = free.hvp(x + away, away) - free.hvp(x, away)
        change = float(torch.linalg.vector_norm(bend)) / distance**2
        found = max(found, change if math.isfinite(change) else 0.0)
    return found


def _goal(value: Any, square: Any, curvature: Any) -> Any:
    """Where f must be after a gradient step of length 1/M: half of what curvature M guarantees."""
    return value - square / (4 * curvature)


@dataclass(frozen=True)
class Scales:
    """What the function showed near the start, in its own units.

    ============  ==========================================================================
    field         meaning
    ============  ==========================================================================
    curvature     M: the largest curvature met by a short descent
    square        mean square of a coordinate of the gradient that the optimizer will see
    energy        how far f fell in that descent
    dim           number of coordinates
    ============  ==========================================================================
    """

    curvature: float
    square: float
    energy: float
    dim: int


@dataclass(frozen=True)
class Calibration:
    """Settings, each with one sentence of reason; `options` goes into :class:`asgld.ASGLD`."""

    lr: float
    alpha: float
    beta: float
    sigma: float
    delta: float
    d_init: float
    theta: float
    reasons: dict[str, str]
    scales: Scales

    @property
    def options(self) -> dict[str, float]:
        names = ("lr", "alpha", "beta", "sigma", "delta", "d_init")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        return "\n".join(self.reasons.values())


def calibrate(
    source: Any,
    x: Tensor | None = None,
    *,
    goal: str = "balanced",
    batch_size: int | None = None,
    growing_batch: bool = False,
    alpha: float | None = None,
    beta: float | None = None,
    noise: float = 0.01,
    warmup: float = 100.0,
    probe_steps: int = 50,
    seed: int = 0,
) -> Calibration:
    r"""Choose lr, d_init, delta and sigma, and if need be alpha, beta and batch growth.

    .. math:: d_\mathrm{init} = w\, \overline{g^2}, \quad \delta = d_\mathrm{init} / 100

    .. math:: \mathrm{lr} = d_\mathrm{init}^{\alpha/2} / M

    .. math:: \sigma^2 d\; d_\mathrm{init}^{-(\beta - \alpha/2)} = \nu^2 E

    The first step then is a gradient step of length 1/M, whatever alpha is, and it stays near that
    for about w steps. The noise begins with a total temperature of nu^2 times the fall E of f that
    a short descent found. D, delta and d_init have units of squared gradients: if f is multiplied
    by c, d_init and delta are by c^2, and the iterates stay where they were.

    Args:
        source: a :class:`asgld.curvature.ModelHessian`, or a problem or oracle with `x`. An oracle
            is read through its free view: nothing is counted. With a penalty, `prox` of the
            optimizer, the source is f alone: the optimizer's gradients are those of f.
        x: the start, (d,), or several, (R, d), of which the largest scales count; by default a
            model's present parameters.
        goal: "converge", "escape" or "balanced"; chooses alpha, beta and batch growth where these
            are not given. See `asgld.theory.recommend`.
        batch_size: samples per step; None for full gradients.
        growing_batch: whether the batch may grow; `theta` then says how fast.
        alpha, beta: fixed exponents.
        noise: nu, the root of the noise's energy relative to E; 0 for none.
        warmup: w: how many squared gradients D begins with.
        probe_steps: length of the descent that looks around.
        seed: of the kick that lets the descent leave an exact critical point.

    Example:
        >>> from asgld.problems import problem
        >>> saddle = problem("strict-saddle", dim=10)
        >>> advice = calibrate(saddle, saddle.facts.saddles[0].point)
        >>> advice.alpha, advice.lr * advice.scales.curvature
        (0.0, 1.0)
    """
    _check_source(source)
    require(0.0 <= noise < math.inf, "noise", noise, "a finite number of at least 0")
    require(0.0 < warmup < math.inf, "warmup", warmup, "a positive finite number")
    enough = batch_size is None or batch_size >= 1
    require(enough, "batch_size", batch_size, "at least 1, or None for full gradients")
    oracle = "full" if batch_size is None else "stochastic"
    advice = recommend(goal, oracle=oracle, growing_batch=growing_batch)
    reasons = dict(zip(("alpha", "beta", "theta"), advice.reasons, strict=True))
    theta = advice.theta
    if alpha is not None and alpha != advice.alpha:
        # The advised batch growth belongs to the advised alpha.
        reasons["alpha"], theta = f"alpha={alpha:g}: as asked for.", 0.0
        reasons["theta"] = "theta=0: the advice on batch growth goes with its own alpha."
    if beta is not None and beta != advice.beta:
        reasons["beta"] = f"beta={beta:g}: as asked for."
    alpha = advice.alpha if alpha is None else alpha
    beta = advice.beta if beta is None else beta
    measured = [
        measure_scales(source, row, batch_size=batch_size, probe_steps=probe_steps, seed=seed)
        for row in _starts(source, x)
    ]
    curvature, square, energy, dim = map(max, zip(*map(astuple, measured), strict=True))
    scales = Scales(curvature, square, energy, dim)

    d_init = warmup * scales.square
    lr = d_init ** (alpha / 2) / scales.curvature
    delta = 1e-2 * d_init
    temperature = noise**2 * scales.energy / scales.dim
    sigma = 0.0
    if temperature > 0.0 and not math.isinf(beta):
        sigma = math.sqrt(temperature * d_init ** (beta - alpha / 2))
    reasons |= {
        "d_init": f"d_init={d_init:.3g}: {warmup:g} times the mean squared gradient "
        f"{scales.square:.3g}, so that the first gradients do not change the step at once.",
        "delta": f"delta={delta:.3g}: a hundredth of d_init, so D grows even where gradients "
        "vanish; far less would slow the annealing near a minimum.",
        "lr": f"lr={lr:.3g}: with d_init^(-alpha/2) the first step has length 1/M, "
        f"M={scales.curvature:.3g} being the largest curvature met.",
        "sigma": f"sigma={sigma:.3g}: all {scales.dim} coordinates together begin at temperature "
        f"{noise * noise * scales.energy:.3g}, {noise * noise:.2g} of the fall {scales.energy:.3g} "
        "that a short descent found.",
    }
    return Calibration(lr, alpha, beta, sigma, delta, d_init, theta, reasons, scales)


def _check_source(source: Any) -> None:
    """Refuse what has no derivatives, and an objective f + g: its values are not those of f."""
    if not all(hasattr(source, name) for name in ("value", "grad", "hvp")):
        raise TypeError(
            f"source is a {type(source).__name__}: need a ModelHessian, a problem or an oracle; "
            "for a function of a tensor of d numbers, asgld.oracle.torch_function(fun, d)"
        )
    if isinstance(getattr(source, "penalty", None), BoundPenalty):
        raise ValueError(
            f"source is a {type(source).__name__} with a penalty: give f alone, and the penalty to "
            "the optimizer"
        )


def measure_scales(
    source: Any, x: Tensor, *, batch_size: int | None = None, probe_steps: int = 50, seed: int = 0
) -> Scales:
    """Look around x, (d,): its curvature, then a kick and a descent that doubles M as it must."""
    f = source.free() if isinstance(source, Oracle) else source
    curvature = largest_curvature(f, x, rtol=0.1).upper
    value, gradient = float(f.value(x)), f.grad(x)
    start_value, squares = value, [float(gradient.double().square().mean())]
    length = float(torch.linalg.vector_norm(x)) / math.sqrt(x.numel()) or 1.0
    if not math.isfinite(value):
        raise ValueError(f"f is {value} at the start: give a point where it is finite")
    if not curvature > 0.0:
        # A flat start; the gradient's own length is as good a step as any.
        curvature = float(torch.linalg.vector_norm(gradient)) / length or 1.0
    point = x + _KICK * length * normals(seed, 0, x, stream=_KICK_STREAM)
    value, gradient = float(f.value(point)), f.grad(point)
    for _ in range(probe_steps):
        square = float(gradient.square().sum())
        while True:
            trial = point - gradient / curvature
            trial_value = float(f.value(trial))
            if trial_value <= _goal(value, square, curvature) + 1e-14 * abs(value):
                break
            curvature *= 2
            if not math.isfinite(curvature):
                raise ValueError("no step along the gradient lowers f: is its gradient right?")
        point, value, gradient = trial, trial_value, f.grad(trial)
        squares.append(float(gradient.double().square().mean()))
    # The first gradient decides what the first steps do; later ones matter where it is zero.
    square = max(squares[0], sum(squares) / len(squares))
    if batch_size is not None:
        many = isinstance(f, ModelHessian) or (f.num_samples or math.inf) > _MAX_SAMPLES
        variance = gradient_variance(f, x, num_samples=_MAX_SAMPLES if many else None).value
        square += variance / x.numel() / batch_size
    if square == 0.0:
        raise ValueError("the gradient is 0 all around the start: nothing can be calibrated here")
    return Scales(curvature, square, max(start_value - value, 0.0), x.numel())


def _starts(source: Any, x: Tensor | None) -> Tensor:
    if x is None:
        if not isinstance(source, ModelHessian):
            raise ValueError("x=None: need a point; only a ModelHessian has one of its own")
        x = source.x
    if x.dim() not in (1, 2) or x.numel() == 0:
        raise ValueError(f"x has shape {tuple(x.shape)}: need (d,), or (R, d) for several starts")
    return x.detach().reshape(-1, x.shape[-1])


def groups_from_gradients(
    params: Iterable[Tensor] | Iterable[tuple[str, Tensor]],
    *,
    lr: float,
    alpha: float = 1.0,
    beta: float = 1.0,
    warmup: float = 0.01,
    clip: float | None = 0.0,
    noise: float = 0.1,
    per_tensor: bool = True,
) -> list[dict[str, Any]]:
    r"""Parameter groups for :class:`asgld.ASGLD` scaled to the gradients that parameters now have.

    .. math:: d_\mathrm{init} = w\,\overline{g^2}, \quad \delta = d_\mathrm{init} / 10^4

    .. math::
        \sigma = \nu \sqrt{\mathrm{lr}\, \overline{g^2} / 2}\; d_\mathrm{init}^{(\beta - \alpha)/2}

    D begins as if w such gradients had been seen. D lags by a step, so that a gradient far above
    all before it would move its coordinate far; the clip bounds every scaled gradient by
    ``k ** clip``, as Adagrad's are bounded by one. With the clip D may begin small. Without it
    (``clip=None``) D needs a warm-up of 100 or more, or the first steps tear a network's
    initialization apart. The first noise step is nu times a gradient step that is not clipped: by
    default as large as a clipped one, and a tenth of one as soon as D has seen a gradient. Call it
    after one backward pass. All ranks of DDP, FSDP2 or tensor parallelism get the same groups.

    Args:
        params: parameters, or pairs of name and parameter, with gradients.
        lr, alpha, beta: as for the optimizer.
        warmup: w. Far below ``noise ** 2`` the first noise step is much larger than a clipped one.
        clip: as for the optimizer.
        noise: nu; 0 for none.
        per_tensor: one group per tensor, scaled to its own gradient, not one for all, which is a
            launch per tensor.

    Example:
        >>> import torch, asgld
        >>> model = torch.nn.Linear(3, 1)
        >>> model(torch.ones(3)).sum().backward()
        >>> groups = groups_from_gradients(model.named_parameters(), lr=1e-2)
        >>> [group["d_init"] for group in groups]        # all gradients are one here
        [0.01, 0.01]
        >>> optimizer = asgld.ASGLD(groups, lr=1e-2)
    """
    require(0.0 < lr < math.inf, "lr", lr, "a positive number")
    require(0.0 < warmup < math.inf, "warmup", warmup, "a positive number")
    require(0.0 <= noise < math.inf, "noise", noise, "0 <= noise < infinity, in gradient steps")
    entries: list[Any] = list(params)
    squares, counts, overall = _squares(entries)
    everything = range(len(entries))
    groups: list[dict[str, Any]] = []
    for group in [[i] for i in everything] if per_tensor else [everything]:
        count = sum(counts[i] for i in group)
        # A tensor whose gradient happens to be zero takes the scale of all.
        mean_square = sum(squares[i] for i in group) / max(count, 1) or overall
        d_init = warmup * mean_square
        sigma = noise * math.sqrt(lr * mean_square / 2.0) * d_init ** ((beta - alpha) / 2.0)
        scaled = {"sigma": sigma, "delta": d_init / 1e4, "d_init": d_init, "clip": clip}
        members = {"params": [entries[i] for i in group]}
        groups.append({**members, "lr": lr, "alpha": alpha, "beta": beta, **scaled})
    return groups


def mean_square_gradient(params: Iterable[Tensor] | Iterable[tuple[str, Tensor]]) -> float:
    """Mean square of a coordinate of the gradients that parameters now have.

    The unit of delta and d_init, after one backward pass. All ranks of DDP, FSDP2 or tensor
    parallelism get the same number; under a pipeline it is that of the rank's own stage.

    Args:
        params: parameters, or pairs of name and parameter, with gradients.

    Example:
        >>> import torch, asgld
        >>> model = torch.nn.Linear(3, 1)
        >>> model(torch.full((3,), 2.0)).sum().backward()
        >>> mean_square_gradient(model.parameters())     # of three twos and a one
        3.25
        >>> delta = 1e-4 * mean_square_gradient(model.parameters())
        >>> optimizer = asgld.NetworkASGLD(model.named_parameters(), lr=2e-3, delta=delta)
    """
    return _squares(params)[-1]


def _squares(params: Iterable[Any]) -> tuple[list[float], list[int], float]:
    """Of each gradient the sum of squares and the number of coordinates; the mean over all."""
    squares, counts = [], []
    for i, entry in enumerate(params):
        tensor: Tensor = entry[1] if isinstance(entry, tuple) else entry
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"params[{i}] is a {type(tensor).__name__}: need tensors, or pairs of name and "
                "tensor; knobs of a group, such as prox, go to the optimizer or into the groups "
                "that this returns"
            )
        if tensor.grad is None:
            raise ValueError(f"params[{i}] has no gradient: run one backward pass before this")
        squares.append(_square(tensor.grad))
        counts.append(tensor.numel() * (2 if tensor.is_complex() else 1))
    if not squares:
        raise ValueError("params: need at least one parameter")
    overall = sum(squares) / max(sum(counts), 1)
    if overall == 0.0:
        raise ValueError("all gradients are zero: at a critical point they say nothing of scale")
    if not math.isfinite(overall):
        worst = next(i for i, square in enumerate(squares) if not math.isfinite(square))
        raise ValueError(f"the gradient of params[{worst}] is not finite: it says nothing of scale")
    return squares, counts, overall


def _square(grad: Tensor) -> float:
    """Sum of squares of all of a gradient, also of what other ranks hold."""
    real = torch.view_as_real(grad.detach()) if grad.is_complex() else grad.detach()
    total = real.to(torch.float64).square().sum()
    full_tensor = getattr(total, "full_tensor", None)
    return float(total if full_tensor is None else full_tensor())
