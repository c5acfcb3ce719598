r"""Proximal methods for F = f + g, where g is a penalty of `asgld.prox`.

The oracle of F gives values of F and gradients of f; `oracle.penalty` is g. Without a penalty these
methods are gradient descent, its accelerated form, and L-BFGS. A proximal step of length t is

.. math:: x' = \operatorname{prox}_{t g}(x - t \nabla f(x))
             = \arg\min_u\; g(u) + \frac{1}{2t} |u - x + t \nabla f(x)|^2
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from asgld.arguments import require
from asgld.methods.base import KnownState, State
from asgld.methods.lbfgs import LBFGS, Array, LBFGSState, active
from asgld.oracle import Oracle
from asgld.prox import L1, BoundPenalty

# The first step, in units of the start's length; a step that was too long shrinks by this factor.
_FIRST_STEP, _SHORTER = 0.1, 0.5
_MAX_TRIALS = 60
# Rounding of F: values that differ by less are equal.
_ROUNDING = 8.0
# Quadratic terms below so many roundings of f tell nothing of its curvature.
_BLUR = 1e4
# Decrease of F that a step must bring, in units of what it promises.
_SUFFICIENT = 1e-4
# A step along which f does not curve up is followed by one this many times as long.
_LONGER = 4.0
# Steps in which the free entries stayed the same, before the descent follows their manifold.
_SETTLED = 2
# A line search on the manifold shortens its step to between these parts, a proximal step is
# shortened to between others: its first length may be far off.
_LEAST_PART, _MOST_PART = 0.1, 0.5
_LEAST_SHORTER = 1e-4
_AT_REST = "no further step promises a visible decrease of F"
# Steps that promise less than this part of the whole fall of F, or of its rounding, are not taken.
_UNDERFLOW, _INVISIBLE = 1e-22, 1e-3


def penalty_of(oracle: Oracle) -> BoundPenalty:
    """The penalty of the oracle's function; one of weight 0 where it has none."""
    return L1(0.0).on((oracle.dim,)) if oracle.penalty is None else oracle.penalty


@dataclass(frozen=True)
class _Backtracking:
    """A method of proximal steps whose length t is `lr`, or is found by backtracking."""

    lr: float | None = None
    needs: ClassVar[frozenset[str]] = frozenset({"value", "grad"})
    has_noise: ClassVar[bool] = False
    anneals: ClassVar[bool] = True
    knows_prox: ClassVar[bool] = True

    def __post_init__(self) -> None:
        is_right = self.lr is None or 0 < self.lr < math.inf
        need = "a positive number, or None to find the step by backtracking"
        require(is_right, "lr", self.lr, need)


@dataclass(kw_only=True)
class ProxGDState(KnownState):
    """The iterate, with F and the gradient of f there, and the step lengths (R,)."""

    step_size: Tensor


@dataclass(frozen=True)
class ProxGD(_Backtracking):
    r"""Proximal gradient descent (ISTA); F never rises where the step is found by backtracking.

    Args:
        lr: t, the step length; None finds 1/M by backtracking: t is halved until
            f(x') <= f(x) + grad f(x) (x' - x) + \|x' - x\|^2 / 2t.

    References:
        Beck and Teboulle: A fast iterative shrinkage-thresholding algorithm for linear inverse
        problems. SIAM J. Imaging Sci. 2 (2009).
    """

    name: str = field(default="prox-gd", init=False)
    is_batched: bool = field(default=True, init=False)

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> ProxGDState:
        value, grad = oracle.value_and_grad(x0)
        step = _first_step(x0, grad, self.lr)
        return ProxGDState(x=x0.clone(), value=value, grad=grad, step_size=step)

    def step(self, oracle: Oracle, state: ProxGDState) -> ProxGDState:
        penalty, x, t = penalty_of(oracle), state.x, state.step_size.clone()
        new, value, grad = x.clone(), state.value.clone(), state.grad.clone()
        rows = active(oracle, len(x)).nonzero().flatten()
        for _ in range(_MAX_TRIALS):
            trial = _prox_step(penalty, x[rows], state.grad[rows], t[rows])
            values, grads = _view(oracle, rows, len(x)).value_and_grad(trial)
            new[rows], value[rows], grad[rows] = trial, values, grads
            if self.lr is not None:
                break
            base = state.value[rows] - penalty.value(x[rows]), state.grad[rows]
            end = values - penalty.value(trial)
            is_long = _is_too_long(oracle, x[rows], *base, trial, end, t[rows])
            rows = rows[is_long]
            if len(rows) == 0:
                break
            t[rows] = _SHORTER * t[rows]
        finished = (new == x).all(-1)
        return ProxGDState(
            x=new,
            value=value,
            grad=grad,
            step_size=t,
            finished=finished if bool(finished.any()) else False,
            message="a proximal step moves nothing",
        )


@dataclass(kw_only=True)
class FISTAState(State):
    """Two iterates, the step lengths (R,), and the number that sets the momentum (R,)."""

    before: Tensor
    step_size: Tensor
    theta: Tensor


@dataclass(frozen=True)
class FISTA(_Backtracking):
    r"""Accelerated proximal gradient: a proximal step from y = x + m (x - x_before).

    The momentum m is that of Beck and Teboulle. For convex f F falls like 1/k^2, though not in
    every step; for other f there is no guarantee.

    Args:
        lr: t, the step length; None finds 1/M by backtracking, as in :class:`ProxGD`.
        restart: forget the momentum where it points uphill (O'Donoghue and Candes 2015).

    References:
        Beck and Teboulle: A fast iterative shrinkage-thresholding algorithm for linear inverse
        problems. SIAM J. Imaging Sci. 2 (2009).
    """

    restart: bool = False
    name: str = field(default="fista", init=False)
    is_batched: bool = field(default=True, init=False)

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> FISTAState:
        step = _first_step(x0, oracle.grad(x0), self.lr)
        return FISTAState(
            x=x0.clone(), before=x0.clone(), step_size=step, theta=torch.ones_like(step)
        )

    def step(self, oracle: Oracle, state: FISTAState) -> FISTAState:
        penalty, x, t = penalty_of(oracle), state.x, state.step_size.clone()
        theta = 0.5 + torch.sqrt(0.25 + state.theta**2)
        momentum = ((state.theta - 1) / theta)[:, None]
        y = x + momentum * (x - state.before)
        value, grad = oracle.value_and_grad(y)
        new, rows = x.clone(), active(oracle, len(x)).nonzero().flatten()
        for _ in range(_MAX_TRIALS):
            trial = new[rows] = _prox_step(penalty, y[rows], grad[rows], t[rows])
            if self.lr is not None:
                break
            base = value[rows] - penalty.value(y[rows]), grad[rows]
            end = _view(oracle, rows, len(x)).value(trial) - penalty.value(trial)
            rows = rows[_is_too_long(oracle, y[rows], *base, trial, end, t[rows])]
            if len(rows) == 0:
                break
            t[rows] = _SHORTER * t[rows]
        if self.restart:
            is_uphill = ((y - new) * (new - x)).sum(-1) > 0
            theta = torch.where(is_uphill, 1.0, theta)
        finished = ((new == x) & (x == state.before)).all(-1)
        return FISTAState(
            x=new,
            before=x,
            step_size=t,
            theta=theta,
            finished=finished if bool(finished.any()) else False,
            message="a proximal step moves nothing",
        )


# ------------------------------------------------------------------------------------ the descent


@dataclass(kw_only=True)
class DescentState(LBFGSState):
    """As of L-BFGS on the active manifold; `grad` is that of f."""

    step_size: Tensor  # (R,): of proximal steps
    num_same: Tensor  # (R,): steps since the manifold changed


@dataclass(frozen=True)
class ProximalDescent(LBFGS):
    r"""Proximal steps find which entries are zero, L-BFGS among the others gives the digits.

    The step length of a proximal step is that of Barzilai and Borwein, shortened until F falls.
    When the free entries have stayed the same, and zeros promise less than they do, the next step
    is one of L-BFGS on their manifold, where F is smooth; an entry that would change its sign is
    set to zero. F never rises, whether f is convex or not. A replica is finished when neither step
    promises a visible decrease.

    Args:
        memory, scale, rest, gained, max_trials: as for :class:`LBFGS`.
        sizes: inverse curvatures (d,) of the coordinates. Proximal steps have these lengths, all
            times one number. Without them coordinates of very different scales are slow.

    References:
        Wright, Nowak and Figueiredo: Sparse reconstruction by separable approximation. IEEE Trans.
        Signal Process. 57 (2009).  Wen, Yin, Goldfarb and Zhang: A fast algorithm for sparse
        reconstruction based on shrinkage, subspace optimization and continuation. SIAM J. Sci.
        Comput. 32 (2010).
    """

    sizes: Tensor | None = field(default=None, repr=False, compare=False)
    name: str = field(default="proximal descent", init=False)
    knows_prox: ClassVar[bool] = True

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> DescentState:
        state = super().init(oracle, x0, seed=seed)
        first = self.scale if self.sizes is None else 1.0
        return DescentState(
            **vars(state),
            step_size=_first_step(x0, state.grad, first),
            num_same=torch.zeros(len(x0), dtype=torch.long),
        )

    def _lowered(self, gradients: Array) -> Array:
        return gradients if self.sizes is None else gradients * self.sizes.sqrt().numpy()

    def _lifted(self, rows: Array) -> Array:
        return self._lowered(rows)

    def _step(self, oracle: Oracle, state: LBFGSState) -> DescentState:
        assert isinstance(state, DescentState)
        penalty = penalty_of(oracle)
        here = _Here(penalty, state.x, state.value, state.grad, self.sizes)
        is_fresh = (state.rho == 0).all(0)
        direction = torch.from_numpy(self._direction(replace(state, grad=here.reduced)))
        slope = (direction * here.reduced).sum(-1)
        is_usable = ~is_fresh & (slope < 0)
        follows = is_usable & (state.num_same >= _SETTLED) & here.is_settled
        search = _Search(oracle, here, state.step_size, direction, slope, follows)
        promise = torch.maximum(search.promise, torch.where(is_usable, -0.5 * slope, 0.0))
        little = self._little(oracle, state, here.size)
        is_resting = (promise <= little) & (~is_fresh | (promise == 0))
        search.run(active(oracle, len(state.x)) & ~is_resting, self.max_trials)
        return self._followed(state, penalty, here, search, is_resting)

    def _little(self, oracle: Oracle, state: LBFGSState, size: Tensor) -> Tensor:
        """A promise of F that is not worth a step."""
        recent = state.values[state.num_pairs % self.memory] - state.value
        whole = self.gained + state.highest - state.value
        little = torch.maximum(self.rest * recent, _UNDERFLOW * whole)
        return torch.maximum(little, _INVISIBLE * oracle.unit_roundoff * size)

    def _followed(
        self,
        state: DescentState,
        penalty: BoundPenalty,
        here: _Here,
        search: _Search,
        is_resting: Tensor,
    ) -> DescentState:
        there = _Here(penalty, search.x, search.value, search.grad, self.sizes)
        is_same = (there.pattern == here.pattern).all(-1)
        s, y, bend = there.x - here.x, there.reduced - here.reduced, there.grad - here.grad
        curvature, squared = (s * y).sum(-1), here.squared(y)
        is_useful = search.is_found & is_same
        is_useful &= curvature > 1e-12 * torch.sqrt(here.square(s) * squared)
        # The inverse curvature of f along the step is the length of the next proximal one.
        along = (s * bend).sum(-1)
        length = torch.where(along > 0, here.square(s) / along, _LONGER * search.step_size)
        length = torch.where(search.is_found & (length > 0), length, search.step_size)
        at = state.num_pairs % self.memory
        state.steps_s[at], state.steps_y[at] = s, y
        state.rho[at] = torch.where(is_useful, 1.0 / curvature, 0.0)
        state.values[at] = state.value
        # Pairs of another manifold, or a search on it that failed, are forgotten.
        state.rho[:, ~is_same | ~search.is_found] = 0.0
        scale = torch.where(is_useful, curvature / squared, 2.0 * state.scale)
        is_over = is_resting | (~search.is_found & ~search.follows)
        return DescentState(
            x=there.x,
            finished=is_over if bool(is_over.any()) else False,
            message=_AT_REST if bool(is_resting.any()) else "no step that was tried lowers F",
            value=there.value,
            grad=there.grad,
            steps_s=state.steps_s,
            steps_y=state.steps_y,
            rho=state.rho,
            num_pairs=state.num_pairs + 1,
            scale=torch.where(is_same, scale, length),
            is_fresh=state.is_fresh,
            highest=state.highest,
            values=state.values,
            step_size=length,
            num_same=torch.where(is_same & search.is_found, state.num_same + 1, 0),
        )


class _Here:
    """F at points (R, d): which entries are free, and the gradient among them."""

    def __init__(
        self,
        penalty: BoundPenalty,
        x: Tensor,
        value: Tensor,
        grad: Tensor,
        sizes: Tensor | None = None,
    ) -> None:
        self.penalty, self.x, self.value, self.grad = penalty, x, value, grad
        self.sizes = sizes
        is_free = penalty.is_free(x)
        self.reduced = torch.where(is_free, grad + penalty.grad(x), 0.0)
        # Entries that are held apart from 0 by their sign alone.
        has_sign = ~penalty.is_free(torch.zeros_like(x)) & penalty.is_separable
        self.signs = torch.where(has_sign, torch.sign(x), 0.0)
        self.pattern = torch.where(has_sign, self.signs, is_free.to(x))

    @property
    def is_settled(self) -> Tensor:
        """Whether entries at a kink want to leave it less than the others want to move."""
        violation = (-self.penalty.slack(self.x, self.grad)).clamp(min=0.0)
        is_less: Tensor = self.squared(violation) <= self.squared(self.reduced)
        return is_less

    def square(self, move: Tensor) -> Tensor:
        """The squared length of moves, in units of the sizes of the coordinates."""
        squares: Tensor = move * move if self.sizes is None else move * move / self.sizes
        return squares.sum(-1)

    def squared(self, gradients: Tensor) -> Tensor:
        """The squared length of gradients in the same units."""
        squares: Tensor = gradients * gradients
        return (squares if self.sizes is None else squares * self.sizes).sum(-1)

    def proximal(self, rows: Tensor, t: Tensor) -> Tensor:
        """Proximal steps of lengths t times the sizes."""
        step = t[:, None] if self.sizes is None else t[:, None] * self.sizes
        return self.penalty.shrink(self.x[rows] - step * self.grad[rows], step)

    @property
    def size(self) -> Tensor:
        """The size of the terms of F, whose rounding F has."""
        g = self.penalty.value(self.x)
        return (self.value - g).abs() + g


class _Search:
    """A step for each row: along `direction` where the row follows its manifold, else proximal."""

    def __init__(
        self,
        oracle: Oracle,
        here: _Here,
        step_size: Tensor,
        direction: Tensor,
        slope: Tensor,
        follows: Tensor,
    ) -> None:
        self.oracle, self.here, self.follows = oracle, here, follows
        self.direction, self.slope, self.step_size = direction, slope, step_size.clone()
        self.part = torch.ones_like(slope)
        self.x, self.value, self.grad = here.x.clone(), here.value.clone(), here.grad.clone()
        self.is_found = torch.zeros_like(follows)
        self.allowance = _ROUNDING * oracle.unit_roundoff * here.size
        move = self._trial(torch.arange(len(slope)), follows & False) - here.x
        self.promise = here.square(move) / (2 * self.step_size)

    def run(self, is_open: Tensor, max_trials: int) -> None:
        rows = is_open.nonzero().flatten()
        for _ in range(max_trials):
            if len(rows) == 0:
                return
            rows = rows[~self._try(rows)]

    def _trial(self, rows: Tensor, follows: Tensor) -> Tensor:
        here = self.here
        x, t = here.x[rows], self.step_size[rows]
        along = x + self.part[rows][:, None] * self.direction[rows]
        along = torch.where(along * here.signs[rows] < 0, 0.0, along)
        return torch.where(follows[:, None], along, here.proximal(rows, t))

    def _try(self, rows: Tensor) -> Tensor:
        """Evaluate one trial of each row; return who takes it, and shorten the others' steps."""
        here, follows = self.here, self.follows[rows]
        trial = self._trial(rows, follows)
        values, grads = _view(self.oracle, rows, len(here.x)).value_and_grad(trial)
        move, change = trial - here.x[rows], values - here.value[rows]
        square, t = here.square(move), self.step_size[rows]
        along = (move * here.reduced[rows]).sum(-1).clamp(max=0.0)
        promised = torch.where(follows, along, -square / (2 * t))
        is_lower = (change <= _SUFFICIENT * promised) & (change < 0)
        # Within rounding the gradient stands for the value.
        there = _Here(here.penalty, trial, values, grads, here.sizes)
        bend = ((grads - here.grad[rows]) * move).sum(-1)
        ends_lower = (there.reduced * move).sum(-1) <= -(1 - 2 * _SUFFICIENT) * along
        is_better = torch.where(follows, ends_lower, bend <= square / t)
        is_flat = change.abs() <= self.allowance[rows]
        moved = (square > 0) & torch.isfinite(values) & torch.isfinite(grads).all(-1)
        is_taken = (is_lower | (is_flat & is_better)) & moved
        taken = rows[is_taken]
        self.x[taken], self.value[taken] = trial[is_taken], values[is_taken]
        self.grad[taken], self.is_found[taken] = grads[is_taken], True
        # The parabola through F, its slope and the trial has its minimum here.
        c, slope = self.part[rows], self.slope[rows]
        guess = -slope * c * c / (2 * (change - slope * c))
        guess = torch.where(torch.isfinite(guess), guess, 0.0)
        self.part[rows] = torch.maximum(torch.minimum(guess, _MOST_PART * c), _LEAST_PART * c)
        # So has a parabola through f for proximal steps: their length is an inverse curvature.
        f_change = change - here.penalty.value(trial) + here.penalty.value(here.x[rows])
        guess = square / (2 * (f_change - (move * here.grad[rows]).sum(-1)))
        guess = torch.where(torch.isfinite(guess), guess, 0.0)
        shorter = torch.maximum(torch.minimum(guess, _SHORTER * t), _LEAST_SHORTER * t)
        is_long = ~is_taken & ~follows
        self.step_size[rows[is_long]] = shorter[is_long]
        return is_taken


# ------------------------------------------------------------------------------------ shared


def _first_step(x0: Tensor, grad: Tensor, lr: float | None) -> Tensor:
    """Step lengths (R,): as given, or such that the first gradient step is short."""
    norm = torch.linalg.vector_norm(grad, dim=-1)
    if lr is not None:
        return torch.full_like(norm, lr)
    length = _FIRST_STEP * torch.linalg.vector_norm(x0, dim=-1)
    return torch.where(length > 0, length, 1.0) / torch.where(norm > 0, norm, 1.0)


def _prox_step(penalty: BoundPenalty, x: Tensor, grad: Tensor, t: Tensor) -> Tensor:
    return penalty.shrink(x - t[:, None] * grad, t[:, None])


def _is_too_long(
    oracle: Oracle, x: Tensor, value: Tensor, grad: Tensor, end: Tensor, f_end: Tensor, t: Tensor
) -> Tensor:
    """Whether f at `end` is above its quadratic bound of curvature 1/t around x."""
    move = end - x
    rise = (move * move).sum(-1) / (2 * t)
    is_above = ~(f_end <= value + (grad * move).sum(-1) + rise)
    # Where the bound itself is rounding, values tell nothing.
    return is_above & ~(rise <= _BLUR * oracle.unit_roundoff * (value.abs() + f_end.abs()))


def _view(oracle: Oracle, rows: Tensor, total: int) -> Oracle:
    return oracle if len(rows) == total else oracle.rows(rows)
