"""Measurements before the draws: a mode, the metric, the step size, the noise of batches.

The step size follows from the largest curvature that a pilot of the chains meets, in coordinates in
which the curvature at the mode is 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from asgld._minimize import minimize
from asgld.curvature.kinds import Kind
from asgld.methods.base import normals
from asgld.oracle import Oracle
from asgld.run import Run, run
from asgld.run.history import Record
from asgld.run.stopping import Stop
from asgld.sampling.chains import Chains, Whitening, chain_key
from asgld.sampling.target import Potential

# Up to here the Hessian at the mode is a matrix; beyond, its diagonal is estimated.
LARGEST_DENSE = 1024
# lr times the largest curvature met: with gradients half a noise step back, and for the plain rule.
STEP, PLAIN_STEP = 1.0, 0.1
# The largest part of the variance that the noise of batches may have before lr is lowered. With
# control variates it is smaller: their noise grows with the distance from the mode, so less of it
# can be corrected.
_LARGEST_SHARE, _LARGEST_CONTROLLED = 0.3, 0.1
# The pilot: looks at the curvature, the time before the last one (each takes twice the time of the
# one before; 1 is that of a mean curvature), and the limits of steps between two.
_PILOT_LOOKS, _PILOT_TIME, _LEAST_STEPS, _MOST_STEPS = 12, 3.0, 5, 4000
# The pilot has at least so many chains, and as many points at which curvature is measured.
_PILOT_CHAINS, _LANCZOS_STEPS, _PROBES = 16, 8, 32
# Then the spread is measured for so many units of time, and curvature at so many of them. Another
# metric must cost at most this part of the steps.
_SPREAD_TIME, _SPREAD_LOOKS, _GAIN = 12, 4, 0.8
# Curvatures below this part of the largest count as none. Where U rises by less or more than this
# over the sd that a curvature stands for (1/2 is right), the sd is searched.
_FLAT = 1e-9
_LEAST_RISE, _LARGEST_RISE = 0.05, 3.0
_NO_MASS = (
    "it may have no finite mass, or rise to a spike (a scale parameter that goes to 0: "
    "reparametrize). Check the sign of the loss or log density, or give a prior"
)
# Gradients of batches behind a covariance, for each of its columns; with fewer, its diagonal.
_DRAWS_PER_COLUMN, _LEAST_DRAWS, _MOST_DRAWS = 20, 400, 4000


@dataclass
class Tuning:
    """What was measured, and what follows for the chains.

    ===========  ==========================================================================
    field        meaning
    ===========  ==========================================================================
    metric       the coordinates of the chains
    lr           step size in them
    curvature    the largest curvature met, in them
    pace         the mean curvature at the mode, in them: 1 unless the metric is not that of U
    x            (chains, d): where the pilot ended, and the draws begin
    center_grad  the gradient at the center, for control variates, or None
    covariance   of the pulled gradients of batches: (d, d), or its diagonal (d,); None for full
                 gradients
    correct      what is done about the noise of batches
    is_scaled    the covariance is that of gradients divided by D, as PSGLD does
    gradients    gradient-equivalents spent so far, by all chains
    notes        remarks for the result
    ===========  ==========================================================================
    """

    metric: Whitening
    lr: float
    curvature: float
    pace: float
    x: Tensor
    center_grad: Tensor | None = None
    covariance: Tensor | None = None
    correct: str = "none"
    is_scaled: bool = False
    gradients: float = 0.0
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def share(self) -> float | None:
        """The largest part of the variance of a direction that batches add, uncorrected."""
        if self.covariance is None:
            return None
        # lr is a length for PSGLD, whose steps are short.
        factor = self.lr / 2.0 if self.is_scaled else self.lr / (2.0 - self.lr)
        return factor * _largest(self.covariance)

    @property
    def thin(self) -> int:
        """Steps to a new draw."""
        return max(1, round(1.0 / (self.lr * self.pace)))

    def pack(self) -> dict[str, Any]:
        plain = {**vars(self)}
        metric = plain.pop("metric")
        return {**plain, "center": metric.center, "push": metric.push, "pull": metric.pull}

    @classmethod
    def unpacked(cls, packed: dict[str, Any]) -> Tuning:
        plain = dict(packed)
        parts = {name: plain.pop(name) for name in ("center", "push", "pull")}
        return cls(Whitening(**parts), **plain)


class Tuner:
    """Measures U around its mode and along a pilot."""

    def __init__(self, potential: Potential, start: Tensor, seed: int, rule: str) -> None:
        self.potential, self.start, self.seed, self.rule = potential, start, seed, rule
        self.oracle = Oracle(potential, replicas=len(start))
        self.free = self.oracle.free()
        self.doors: list[Oracle] = []
        self.spent = 0.0  # by minimize
        self.notes: dict[str, str] = {}
        self.cloud: list[Tensor] = []  # points of the pilot, spread as the density is
        self.pace = 1.0  # mean curvature at the center, in the coordinates of the chains
        self.is_restored = False  # the measurements are those of an earlier process

    @property
    def gradients(self) -> float:
        """Gradient-equivalents so far, of all chains."""
        return self.spent + sum(float(o.counts.spent.sum()) for o in (self.oracle, *self.doors))

    def door(self, rows: int) -> Oracle:
        """Counted calls at so many points."""
        self.doors.append(Oracle(self.potential, replicas=rows))
        return self.doors[-1]

    # -------------------------------------------------------------------------------- the mode

    def begin(self, start: str) -> Tensor:
        """Return the center, and move the starts of the chains where `start` says so."""
        if start == "anneal":
            found = minimize(
                self.potential, self.start, method="asgld", replicas=len(self.start),
                seed=self.seed, polish=False,
            )  # fmt: skip
            self.spent += float(found.counts.spent.sum())
            _refuse_part(found.polish or found.search)
            self.start = torch.as_tensor(found.all_x).clone()
        values = self.free.value(self.start)
        best = self.start[int(torch.argmin(torch.nan_to_num(values, nan=math.inf)))]
        found = minimize(self.potential, best.clone(), seed=self.seed)
        self.spent += float(found.counts.spent.sum())
        _refuse_part(found.polish or found.search)
        center = torch.as_tensor(found.x)
        is_lost = found.kind is Kind.UNBOUNDED or not bool(torch.isfinite(center).all())
        if is_lost or (found.kind is not Kind.MINIMUM and self._is_level(best, center)):
            text = "no mode was found: the density grows without end from x0"
            if start != "x0":
                raise ValueError(f"{text}: {_NO_MASS}; start='x0' samples around x0 nevertheless")
            self.notes["mode"] = text
            return best
        if start == "mode" and bool((self.start == self.start[0]).all()):
            self.start = center.expand_as(self.start).clone()
        return center

    def _is_level(self, start: Tensor, center: Tensor) -> bool:
        """Whether U rises nowhere on the line that leads from the start to the center, and on."""
        way = center - start
        length = float(torch.linalg.vector_norm(way))
        if length == 0.0:
            return False
        far = max(length, float(torch.linalg.vector_norm(center)), 1.0)
        steps = far * torch.tensor([[1e3], [1e6], [1e9]], dtype=center.dtype)
        rises = self.free.value(center + steps * (way / length)) - self.free.value(center[None])
        return bool((rises < 1.0).all())

    # -------------------------------------------------------------------------------- the metric

    def metric(self, center: Tensor, kind: str) -> Whitening:
        """The coordinates in which U has curvature 1 at the center, as far as `kind` lets them."""
        dim = self.potential.dim
        if kind == "auto":
            kind = "dense" if dim <= LARGEST_DENSE and self.rule == "sgld" else "diagonal"
        if kind == "dense":
            hessian = self.door(1).hessian(center[None])[0]
            values, vectors = torch.linalg.eigh(0.5 * (hessian + hessian.T))
            scale = self._curvatures(center, values, vectors.T) ** -0.5
            root = (vectors * scale) @ vectors.T
            return Whitening(center, root, root)
        diagonal = self.diagonal(center)
        axes = torch.eye(dim, dtype=torch.float64) if dim <= LARGEST_DENSE else None
        scale = self._curvatures(center, diagonal, axes) ** -0.5
        if self.rule == "psgld":  # D^(-1/2) is the square of these coordinates
            scale = scale**0.5
        elif kind == "none":
            scale = torch.ones_like(scale)
        self.pace = max(float((diagonal.abs() * scale**2).mean()), 1e-300)
        return Whitening(center, scale, scale)

    def diagonal(self, x: Tensor) -> Tensor:
        """The diagonal of the Hessian: exact in few dimensions, else by Rademacher probes."""
        dim = self.potential.dim
        if dim <= LARGEST_DENSE:
            diagonal: Tensor = self.door(1).hessian(x[None])[0].diagonal()
            return diagonal
        total, door = torch.zeros_like(x), self.door(1)
        for number in range(_PROBES):
            v = normals(chain_key(self.seed, "probes"), number, x).sign()
            total += v * door.hvp(x[None], v[None])[0]
        return total / _PROBES

    def _curvatures(self, center: Tensor, values: Tensor, rows: Tensor | None) -> Tensor:
        """Positive curvatures of the directions `rows`, which must tell how far U rises by 1/2.

        Where they do not, since U is flat, falls, or is no parabola, that distance is searched.
        """
        floor = max(_FLAT * float(values.abs().max()), 1e-300)
        is_odd = values <= floor
        typical = 1.0 if bool(is_odd.all()) else float(values[~is_odd].median())
        known = torch.where(is_odd, typical, values)
        if rows is None:
            return known
        lengths = known[:, None] ** -0.5
        ends = torch.cat((center[None], center + lengths * rows, center - lengths * rows))
        levels = self.door(len(ends)).value(ends)
        rise = torch.maximum(*(levels[1:] - levels[0]).view(2, -1))
        is_odd |= ~((rise > _LEAST_RISE) & (rise < _LARGEST_RISE))
        for i in is_odd.nonzero()[:, 0].tolist():
            known[i] = self._reach(center, rows[i], float(known[i])) ** -2
        return known

    def _reach(self, center: Tensor, direction: Tensor, curvature: float) -> float:
        """How far one goes along a direction until U rises by 1/2, on the nearer side."""
        lengths = curvature**-0.5 * 2.0 ** torch.arange(-40, 21, dtype=torch.float64)
        sides = torch.cat((torch.zeros(1, dtype=torch.float64), lengths, -lengths))
        levels = self.door(len(sides)).value(center + sides[:, None] * direction)
        is_above = ~(levels - levels[0] < 0.5)
        if not bool(is_above[1 : len(lengths) + 1].any() and is_above[len(lengths) + 1 :].any()):
            raise ValueError(
                "the density does not fall along a direction through the mode, as far as "
                f"{float(lengths[-1]):.2g}: {_NO_MASS}"
            )
        return float(sides.abs()[is_above].min())

    # -------------------------------------------------------------------------------- the step

    def pilot(
        self, metric: Whitening, step: float, lr: float | None, looks_back: bool, adapts: bool
    ) -> Tuning:
        """Let the chains spread, and measure the largest curvature where they go."""
        chains = len(self.start)
        x = self.start.repeat(math.ceil(_PILOT_CHAINS / chains), 1)
        door, key = self.door(len(x)), chain_key(self.seed, "start")
        x += 0.1 * self.pace**-0.5 * (metric.to_x(normals(key, 0, x)) - metric.center)
        # Where the curvature at the mode vanishes, that of the metric stands for it.
        steepest = max(self._steepest(metric, x, 0), self.pace)
        shrink = 1.0
        for look in range(_PILOT_LOOKS):
            time = _PILOT_TIME * 2.0 ** (look + 1 - _PILOT_LOOKS) / self.pace
            longest = shrink * step / steepest if lr is None else lr
            now = min(longest, time / _LEAST_STEPS)
            rule = Chains("sgld", now, metric, looks_back=looks_back)  # for PSGLD, with D fixed
            found = run(
                door, rule, x, max_steps=min(math.ceil(time / now), _MOST_STEPS), record=RARELY,
                seed=chain_key(self.seed, f"pilot{look}"),
            )  # fmt: skip
            _refuse_part(found)
            is_lost = self._are_lost(metric.center, x, found)
            x = torch.where(is_lost[:, None], x, found.x)
            self.cloud.append(x)
            shrink *= 0.5 if bool(is_lost.any()) else 1.0
            steepest = max(steepest, self._steepest(metric, x, look + 1))
        chosen = shrink * step / steepest if lr is None else lr
        tuning = Tuning(self._plain(metric), chosen, steepest, self.pace, x)
        if self.rule == "sgld" and lr is None and adapts:
            self._widen(tuning, shrink * step, door, looks_back)
        tuning.x = tuning.x[:chains].clone()
        return tuning

    def _widen(self, tuning: Tuning, step: float, door: Oracle, looks_back: bool) -> None:
        """Measure the spread along the directions of the metric, and divide it out if that pays.

        A density that is no parabola may be wider than its curvature at the mode says. The number
        of steps to a new draw is about the largest variance times the largest curvature.
        """
        metric, path = tuning.metric, []
        rule = Chains(self.rule, tuning.lr, metric, looks_back=looks_back)
        steps = min(math.ceil(1.0 / (tuning.lr * self.pace)), _MOST_STEPS)
        for number in range(_SPREAD_TIME):
            found = run(
                door, rule, tuning.x, max_steps=steps, record=RARELY,
                seed=chain_key(self.seed, f"spread{number}"),
            )  # fmt: skip
            _refuse_part(found)
            if Stop.NON_FINITE in found.stops:
                return
            tuning.x = found.x
            path.append(found.x)
        self.cloud = path
        variances = metric.to_w(torch.cat(path)).var(0)
        # Draws one unit of time apart count about half; most of the rest is within 4 errors.
        error = math.sqrt(2.0 / (0.45 * len(path) * len(tuning.x)))
        is_odd = variances.log().abs() > 4.0 * error
        if not bool(is_odd.any()):
            return
        scale = torch.where(is_odd, variances, 1.0) ** 0.5
        other = Whitening(metric.center, metric.push * scale, metric.pull * scale)
        looks = path[:: len(path) // _SPREAD_LOOKS]
        now, then = (
            max(self._steepest(one, x, 100 + number) for number, x in enumerate(looks))
            for one in (metric, other)
        )
        now = max(now, tuning.curvature)
        tuning.curvature, tuning.lr = now, step / now
        left = variances / scale**2
        if (
            then > 0.1 * self.pace
            and float(left.max()) * then < _GAIN * float(variances.max()) * now
        ):
            tuning.metric, tuning.curvature, tuning.lr = other, then, step / then

    def _are_lost(self, center: Tensor, before: Tensor, found: Run) -> Tensor:
        """Which chains ran away: further up than they began and than chance takes them."""
        is_stopped = torch.tensor([stop is Stop.NON_FINITE for stop in found.stops])
        usual = self.free.value(center[None]) + 2.0 * len(center) + 50.0
        return is_stopped | ~(found.values <= torch.maximum(self.free.value(before), usual))

    def _plain(self, metric: Whitening) -> Whitening:
        """PSGLD has its own metric: the chains see x less the center."""
        if self.rule == "sgld":
            return metric
        ones = torch.ones_like(metric.center)
        return Whitening(metric.center, ones, ones)

    def _steepest(self, metric: Whitening, x: Tensor, number: int) -> float:
        """The largest curvature at some of the points, in the coordinates of the metric.

        A few Lanczos steps from random vectors, all points at once: a lower bound within a few
        per cent.
        """
        rows = x[:: len(x) // _PILOT_CHAINS][:_PILOT_CHAINS]
        count = min(_LANCZOS_STEPS, self.potential.dim)
        q = normals(chain_key(self.seed, "curvature"), number, rows)
        q = q / q.norm(dim=-1, keepdim=True)
        basis, diagonal, beside, door = [q], [], [], self.door(len(rows))
        for _ in range(count):
            v = basis[-1]
            pushed = v * metric.push if metric.push.dim() == 1 else v @ metric.push.T
            y = metric.pulled(door.hvp(rows, pushed))
            diagonal.append((v * y).sum(-1))
            for other in basis:
                y = y - (other * y).sum(-1, keepdim=True) * other
            size = y.norm(dim=-1, keepdim=True)
            is_over = size <= 1e-9 * diagonal[-1].abs()[:, None]  # the space is invariant
            size = torch.where(is_over, 0.0, size)
            beside.append(size[:, 0])
            basis.append(torch.where(is_over, 0.0, y / size))
        matrix = torch.diag_embed(torch.stack(diagonal, -1))
        if count > 1:
            off = torch.stack(beside[:-1], -1)
            matrix = matrix + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
        matrix = torch.nan_to_num(matrix, nan=0.0, posinf=0.0, neginf=0.0)
        return max(float(torch.linalg.eigvalsh(matrix).max()), 1e-300)

    # -------------------------------------------------------------------------------- batches

    def fit_batches(self, tuning: Tuning, size: int, correct: str, is_open: bool) -> str:
        """Measure the noise of batches, shorten lr for it, and return the correction.

        "auto" is "both" or "noise", whichever needs fewer gradients: control variates take two
        gradients for each step and allow longer steps where the posterior is narrow.
        """
        known = {"auto": ("both", "noise")}.get(correct, (correct,))
        if self.rule == "psgld":  # its noise cannot be lowered
            known = ("control",) if correct in ("auto", "both", "control") else ("none",)
        found = {}
        for word in known:
            is_controlled = word in ("both", "control")
            grad = self.door(1).grad(tuning.metric.center[None])[0] if is_controlled else None
            covariance = self._covariance(tuning, Chains("sgld", 0.0, tuning.metric, size, grad))
            longest = self._longest_step(covariance, is_controlled)
            lr = min(tuning.lr, longest) if is_open else tuning.lr
            found[word] = (1 + is_controlled) / lr, lr, grad, covariance
        best = min(found, key=lambda word: found[word][0])
        _, tuning.lr, tuning.center_grad, tuning.covariance = found[best]
        return best

    def _longest_step(self, covariance: Tensor, is_controlled: bool) -> float:
        """The lr at which batches have the largest part of the variance that is allowed."""
        share = _LARGEST_CONTROLLED if is_controlled else _LARGEST_SHARE
        largest = _largest(covariance)
        return 2.0 * share / (largest + (share if self.rule == "sgld" else 0.0))

    def _covariance(self, tuning: Tuning, chains: Chains) -> Tensor:
        """The covariance of the pulled gradients of batches around the whole gradients.

        A matrix where there are enough of them, else its diagonal, as a vector.
        """
        x, dim = torch.cat(self.cloud[-_SPREAD_TIME // 2 :]), self.potential.dim
        wanted = min(max(_LEAST_DRAWS, _DRAWS_PER_COLUMN * dim), _MOST_DRAWS)
        repeats = math.ceil(wanted / len(x))
        door = self.door(len(x))
        whole = tuning.metric.pulled(door.grad(x))
        is_matrix = repeats * len(x) >= _DRAWS_PER_COLUMN * dim and tuning.metric.push.dim() == 2
        total = torch.zeros((dim, dim) if is_matrix else (dim,), dtype=torch.float64)
        squares, key = torch.zeros(dim, dtype=torch.float64), chain_key(self.seed, "batches")
        for number in range(repeats):
            batch = tuning.metric.pulled(chains.gradient(door, x, key, number))
            squares += (batch * batch).sum(0)
            away = batch - whole
            total += away.T @ away if is_matrix else (away * away).sum(0)
        count = repeats * len(x)
        if self.rule == "psgld":  # its D holds the squares of these gradients
            tuning.is_scaled = True
            return total / count / (squares / count).sqrt().clamp_min(1e-300)
        return total / count


RARELY = Record(per_decade=1, grad_norms=False)


def _refuse_part(found: Run) -> None:
    """Measurements that the user interrupted are of no use: the interruption goes up."""
    if Stop.INTERRUPTED in found.stops:
        raise KeyboardInterrupt


def _largest(covariance: Tensor) -> float:
    is_matrix = covariance.dim() == 2
    return float((torch.linalg.eigvalsh(covariance) if is_matrix else covariance).max())


def corrected(metric: Whitening, covariance: Tensor, lr: float) -> Whitening:
    """The metric whose noise leaves out what the batches add; see `asgld.sampling.chains`."""
    part = lr / (2.0 - lr) * covariance
    if covariance.dim() == 1:
        left = (1.0 - part).clamp_min(0.05)
        push, pull = metric.push * left**0.5, metric.pull * left**-0.5
        return Whitening(metric.center, push, pull)
    values, vectors = torch.linalg.eigh(torch.eye(len(part), dtype=part.dtype) - part)
    values = values.clamp_min(0.05)
    root, inverse = ((vectors * values**power) @ vectors.T for power in (0.5, -0.5))
    return Whitening(metric.center, metric.push @ root, metric.pull @ inverse)
