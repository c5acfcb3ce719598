"""Plain descent: the fast part of a minimization, and the control that stays at a saddle."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asgld.methods.base import KnownState
from asgld.oracle import Oracle

Array = npt.NDArray[np.float64]

# Wolfe conditions: f falls by this part of the slope, and the slope shrinks to that part.
_ARMIJO, _WOLFE = 1e-4, 0.9
# A trial step grows by at most this factor where no upper end is known.
_LARGEST_GROWTH = 8.0
# A trial stays this part of the bracket away from its ends.
_MARGIN = 0.1
# After so many trials any step that lowers f is taken.
_PATIENCE = 10
# The first step, in units of the start's length.
_FIRST_STEP = 0.1
# Rounding of f: values that differ by less are equal, and slopes decide.
_ROUNDING = 8.0
# A step that promises less than this many roundings of f is not worth taking.
_INVISIBLE = 1e-3
# Nor is one that promises less than this part of the whole fall of f.
_UNDERFLOW = 1e-22


@dataclass(kw_only=True)
class LBFGSState(KnownState):
    """Pairs s = x' - x, y = g' - g of the last steps; an unused pair has rho = 0."""

    steps_s: Tensor  # (memory, R, d), written in turn
    steps_y: Tensor  # (memory, R, d)
    rho: Tensor  # (memory, R): 1 / s'y
    num_pairs: int = 0  # written so far
    scale: Tensor  # (R,): the inverse curvature that stands for the unknown rest
    is_fresh: Tensor  # (R,): no pair is known, so that the next step is a gradient step
    highest: Tensor  # (R,): the value at the start
    values: Tensor  # (memory, R): the values before the steps of the pairs


@dataclass(frozen=True)
class LBFGS:
    r"""Limited-memory BFGS with a strong Wolfe line search, all replicas at once; f never rises.

    With the gradient g and the direction p = -H g a step is x' = x + t p, where t meets

    .. math:: f(x') \le f(x) + 10^{-4}\, t\, g^\top p

    .. math:: |g'^\top p| \le 0.9\, |g^\top p|

    Where values differ by rounding only, slopes decide alone (Hager and Zhang), so that the
    gradient comes down to its rounding level. A replica is finished when a gradient step, too,
    finds no lower value, or when the next step promises less than a thousandth of f's rounding or
    less than `rest` of what the last `memory` steps gained.

    Args:
        memory: number of pairs kept.
        scale: length of the first step in units of the gradient, 1 / curvature; by default the
            first step is a tenth of the start's length, or 1 at the origin.
        rest: finished where the predicted decrease is at most this part of the recent fall of f.
        gained: how far f fell before the start.
        metric: a matrix P, (d, d): P P' stands for the inverse Hessian as far as pairs do not know
            it, in place of the identity. `scale` then is 1 by default.
        max_trials: of one line search.

    References:
        Nocedal and Wright: Numerical Optimization, 2nd edition, Algorithms 3.5 and 7.4. Springer
        2006.  Hager and Zhang: A new conjugate gradient method with guaranteed descent and an
        efficient line search. SIAM J. Optim. 16 (2005).
    """

    memory: int = 10
    scale: float | None = None
    rest: float = 0.0
    gained: float = 0.0
    metric: Tensor | None = field(default=None, repr=False, compare=False)
    max_trials: int = 25
    # Both are shown by repr, which checkpoints compare.
    name: str = field(default="lbfgs", init=False)
    is_batched: bool = field(default=True, init=False)
    needs: ClassVar[frozenset[str]] = frozenset({"value", "grad"})
    has_noise: ClassVar[bool] = False
    anneals: ClassVar[bool] = True

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> LBFGSState:
        value, grad = oracle.value_and_grad(x0)
        norm = torch.linalg.vector_norm(grad, dim=-1)
        if self.scale is None and self.metric is not None:
            scale = torch.ones_like(norm)
        elif self.scale is None:
            length = _FIRST_STEP * torch.linalg.vector_norm(x0, dim=-1)
            scale = torch.where(length > 0, length, 1.0) / norm
        else:
            scale = torch.full_like(norm, self.scale)
        pairs = x0.new_zeros(self.memory, *x0.shape)
        return LBFGSState(
            x=x0.clone(),
            value=value,
            grad=grad,
            steps_s=pairs,
            steps_y=pairs.clone(),
            rho=x0.new_zeros(self.memory, *norm.shape),
            scale=torch.where(norm > 0, scale, 0.0),
            is_fresh=torch.ones_like(norm, dtype=torch.bool),
            highest=value.clone(),
            values=value.expand(self.memory, *norm.shape).clone(),
        )

    def step(self, oracle: Oracle, state: LBFGSState) -> LBFGSState:
        with np.errstate(all="ignore"):  # rows that have stopped hold nan
            return self._step(oracle, state)

    def _step(self, oracle: Oracle, state: LBFGSState) -> LBFGSState:
        grad = state.grad.numpy()
        direction = self._direction(state)
        slope = _dot(direction, grad)
        is_bad = ~(slope < 0)  # rounding can spoil the recursion; the gradient always descends
        if is_bad.any():
            descent = -state.scale.numpy()[:, None] * self._lifted(self._lowered(grad))
            direction = np.where(is_bad[:, None], descent, direction)
            slope = _dot(direction, grad)
        value = state.value.numpy()
        # A start far up says nothing of the scale of f further down: recent steps do.
        recent = state.values.numpy()[state.num_pairs % self.memory] - value
        whole = self.gained + state.highest.numpy() - value
        little = np.maximum(self.rest * recent, _UNDERFLOW * whole)
        little = np.maximum(little, _INVISIBLE * oracle.unit_roundoff * np.abs(value))
        is_resting = (-0.5 * slope <= little) & ~state.is_fresh.numpy() & (slope < 0)
        search = _LineSearch(oracle, state, direction, slope)
        search.run((slope < 0) & ~is_resting & active(oracle, len(slope)).numpy(), self.max_trials)
        return self._updated(state, search, is_resting)

    def _direction(self, state: LBFGSState) -> Array:
        """The direction -H g (Nocedal and Wright, Algorithm 7.4), for each replica."""
        q: Array = -state.grad.numpy()
        all_s, all_y, all_rho = state.steps_s.numpy(), state.steps_y.numpy(), state.rho.numpy()
        count, memory = state.num_pairs, len(all_rho)
        newest_first = [(count - 1 - j) % memory for j in range(min(count, memory))]
        weights = []
        for i in newest_first:
            weight = all_rho[i] * _dot(all_s[i], q)
            q = q - weight[:, None] * all_y[i]
            weights.append(weight)
        q = self._lifted(self._lowered(q)) * state.scale.numpy()[:, None]
        for i, weight in zip(reversed(newest_first), reversed(weights), strict=True):
            correction = weight - all_rho[i] * _dot(all_y[i], q)
            q = q + correction[:, None] * all_s[i]
        return q

    def _lowered(self, gradients: Array) -> Array:
        """P' g for each row."""
        return gradients if self.metric is None else gradients @ self.metric.numpy()

    def _lifted(self, rows: Array) -> Array:
        """P q for each row."""
        return rows if self.metric is None else rows @ self.metric.numpy().T

    def _updated(
        self, state: LBFGSState, search: _LineSearch, is_resting: npt.NDArray[np.bool_]
    ) -> LBFGSState:
        found = search.is_found
        s, y = search.x - state.x.numpy(), search.grad - state.grad.numpy()
        lowered = self._lowered(y)
        curvature, squared = _dot(s, y), _dot(lowered, lowered)
        is_useful = found & (curvature > 1e-12 * np.sqrt(_dot(s, s) * _dot(y, y)))
        rho = np.where(is_useful, 1.0 / curvature, 0.0)
        scale = np.where(is_useful, curvature / squared, 2.0 * state.scale.numpy())
        was_fresh = state.is_fresh.numpy()
        at = state.num_pairs % self.memory
        state.steps_s[at], state.steps_y[at] = torch.from_numpy(s), torch.from_numpy(y)
        state.rho[at] = torch.from_numpy(rho)
        state.values[at] = state.value
        # A search that failed is repeated along the gradient; if that fails too, this is the end.
        is_lost = ~found & ~was_fresh & ~is_resting
        if is_lost.any():
            state.rho[:, torch.from_numpy(is_lost)] = 0.0
            scale = np.where(is_lost, state.scale.numpy(), scale)
        is_over = is_resting | (~found & was_fresh)
        return LBFGSState(
            x=torch.from_numpy(search.x),
            finished=torch.from_numpy(is_over) if is_over.any() else False,
            message=_AT_REST if (is_over & is_resting).any() else "no step lowers f",
            value=torch.from_numpy(search.value),
            grad=torch.from_numpy(search.grad),
            steps_s=state.steps_s,
            steps_y=state.steps_y,
            rho=state.rho,
            num_pairs=state.num_pairs + 1,
            scale=torch.from_numpy(scale),
            is_fresh=torch.from_numpy(np.where(found, ~is_useful & was_fresh, True)),
            highest=state.highest,
            values=state.values,
        )


_AT_REST = "no further step would lower f by more than rounding"


class _LineSearch:
    """Steps t for all rows at once: each row keeps a bracket [low, high] of its own.

    At `low` f has fallen enough and still falls; `high` is too long. A trial that is neither too
    short nor too long is taken.
    """

    def __init__(self, oracle: Oracle, state: LBFGSState, direction: Array, slope: Array) -> None:
        self.oracle, self.start, self.direction, self.slope = (
            oracle,
            state.x.numpy(),
            direction,
            slope,
        )
        self.value0 = state.value.numpy()
        rows = len(slope)
        # What is returned: the low end of the bracket, or the trial that was taken.
        self.x, self.value = self.start.copy(), self.value0.copy()
        self.grad = state.grad.numpy().copy()
        self.is_found = np.zeros(rows, np.bool_)
        self.low, self.low_value, self.low_slope = np.zeros(rows), self.value0.copy(), slope.copy()
        self.high = np.full(rows, np.inf)
        self.high_value, self.high_slope = np.full(rows, np.nan), np.full(rows, np.nan)
        self.allowance = _ROUNDING * oracle.unit_roundoff * np.abs(self.value0)

    def run(self, is_open: npt.NDArray[np.bool_], max_trials: int) -> None:
        length = np.ones(len(self.slope))
        for number in range(max_trials):
            if number > _PATIENCE:  # a step that lowers f will do
                is_open &= ~self.is_found
            rows = np.flatnonzero(is_open)
            if len(rows) == 0:
                return
            is_done = self._try(rows, length[rows])
            is_open[rows[is_done]] = False
            for r in rows[~is_done].tolist():
                length[r] = self._next(r, length[r])
                is_open[r] = not math.isnan(length[r])

    def _try(self, rows: npt.NDArray[np.int64], t: Array) -> npt.NDArray[np.bool_]:
        """Evaluate the trials of some rows, and move their brackets; return who is done."""
        direction, slope = self.direction[rows], self.slope[rows]
        x = self.start[rows] + t[:, None] * direction
        view = self.oracle if len(rows) == len(self.slope) else self.oracle.rows(rows)
        values, grads = view.value_and_grad(torch.from_numpy(x))
        value, grad = values.numpy(), grads.numpy()
        trial_slope = _dot(grad, direction)
        change = value - self.value0[rows]
        is_lower = change <= _ARMIJO * t * slope
        # Within rounding the slope stands for the value.
        is_flat = np.abs(change) <= self.allowance[rows]
        is_lower |= is_flat & (trial_slope <= -(1 - 2 * _ARMIJO) * slope)
        is_lower &= np.isfinite(trial_slope)
        is_short = is_lower & (trial_slope < _WOLFE * slope)
        is_done: npt.NDArray[np.bool_] = is_lower & (np.abs(trial_slope) <= -_WOLFE * slope)
        is_kept = is_short | is_done
        kept = rows[is_kept]
        self.x[kept], self.value[kept], self.grad[kept] = x[is_kept], value[is_kept], grad[is_kept]
        self.is_found[kept] = True
        self.low_before = self.low.copy(), self.low_slope.copy()
        short = rows[is_short]
        self.low[short], self.low_value[short] = t[is_short], value[is_short]
        self.low_slope[short] = trial_slope[is_short]
        is_long = ~is_kept
        long = rows[is_long]
        self.high[long], self.high_value[long] = t[is_long], value[is_long]
        self.high_slope[long] = trial_slope[is_long]
        return is_done

    def _next(self, r: int, t: float) -> float:
        """The next trial of a row; nan where the bracket has shrunk to nothing."""
        low, high, slope = float(self.low[r]), float(self.high[r]), float(self.low_slope[r])
        if math.isinf(high):
            before, slope_before = (float(a[r]) for a in self.low_before)
            bend = (slope - slope_before) / (low - before) if low > before else 0.0
            guess = low - slope / bend if bend > 0 else math.inf
            return min(max(guess, 2.0 * low), _LARGEST_GROWTH * low)
        width = high - low
        if width <= 1e-14 * high:
            return math.nan
        guess = math.nan
        high_value, high_slope = float(self.high_value[r]), float(self.high_slope[r])
        if math.isfinite(high_value) and math.isfinite(high_slope):
            rise = high_value - float(self.low_value[r])
            if abs(rise) <= float(self.allowance[r]):
                guess = low - slope * width / (high_slope - slope) if high_slope > 0 else math.nan
            else:
                guess = low + width * _cubic(rise / width, slope, high_slope)
        if math.isnan(guess):
            guess = low + (0.5 if low > 0 else _MARGIN) * width
        return min(max(guess, low + _MARGIN * width), high - _MARGIN * width)


def _cubic(rise: float, slope: float, end_slope: float) -> float:
    """Where a cubic on [0, 1] with these end slopes, and this rise, has its minimum; or nan."""
    a = slope + end_slope - 3.0 * rise
    root = a * a - slope * end_slope
    if not root >= 0:
        return math.nan
    root = math.sqrt(root)
    bottom = end_slope - slope + 2.0 * root
    return 1.0 - (end_slope + root - a) / bottom if bottom > 0 else math.nan


def _dot(a: Array, b: Array) -> Array:
    products: Array = np.einsum("ij,ij->i", a, b)
    return products


def active(oracle: Oracle, rows: int) -> Tensor:
    """Which replicas still run, as a mask: the others get no answers."""
    if oracle.session is None:
        return torch.ones(rows, dtype=torch.bool)
    return torch.from_numpy(oracle.session.active.copy())
