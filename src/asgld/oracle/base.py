"""The only door to f: it checks, counts and prices every call.

A method sees an :class:`Oracle` and nothing else of the problem. Points have shape (..., d) with
replicas as leading axis; a call on R rows counts once for each row that still runs. The price of a
call is stated in gradient-equivalents:

    ============  ==================  ========================================================
    call          price               comment
    ============  ==================  ========================================================
    value         0.5
    grad          1                   ``value_and_grad`` costs the same: the value is a by-product
    hvp           2
    hessian       d
    sample_*      price * B / n       B samples of n
    ============  ==================  ========================================================

A derivative that is made of other calls is charged as those: a gradient by central differences is
2 d values. Monitoring goes through :meth:`Oracle.free`, which counts nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asgld.oracle.costs import KINDS, Costs, Counts, IntArray
from asgld.oracle.functions import AroundFunction, Function
from asgld.prox import BoundPenalty

BoolArray = npt.NDArray[np.bool_]

_COUNTED_AS = {"value_and_grad": "grad"}


class BudgetExhausted(RuntimeError):
    """No replica can pay for the call. Inside `asgld.run` this ends the run, as a result."""


class _Charge(NamedTuple):
    """What a call costs one replica."""

    price: float
    calls: tuple[tuple[str, int], ...]
    samples: int


class _Known(NamedTuple):
    """A call that was checked once for all replicas: at points of this shape it needs no check."""

    shape: torch.Size
    charge: _Charge
    charge_all: Callable[[_Charge], bool]
    call: Callable[..., Tensor]


class _Ledger:
    """Counts and budget, shared by an oracle and its views.

    Calls that every replica makes are noted as plain numbers, one for all replicas; `counts` adds
    them to the arrays when someone reads it.
    """

    def __init__(self, replicas: int | None, budget: float | None) -> None:
        self.budget = math.inf if budget is None else float(budget)
        self.limit = self.budget * (1.0 + 1e-12)
        self._counts = None if replicas is None else Counts.zeros(replicas)
        self._calls: dict[str, int] = {}
        self._samples = 0
        self._spent: float | None = None  # by each replica; None where it may differ

    def num_replicas(self, default: int) -> int:
        if self._counts is None:
            self._counts = Counts.zeros(default)
        return self._counts.replicas

    @property
    def counts(self) -> Counts:
        """The counts of each replica. The reader may change them."""
        if self._counts is None:
            self._counts = Counts.zeros(1)
        elif self._spent is not None:
            for kind, times in self._calls.items():
                self._counts.calls[kind] += times
            self._counts.samples += self._samples
            self._counts.spent[:] = self._spent
            self._calls, self._samples, self._spent = {}, 0, None
        return self._counts

    def charge(self, replicas: IntArray, charge: _Charge) -> None:
        for kind, times in charge.calls:
            self.counts.calls[kind][replicas] += times
        self.counts.spent[replicas] += charge.price
        self.counts.samples[replicas] += charge.samples

    def charge_all(self, charge: _Charge) -> bool:
        """Charge every replica, if all have spent the same and all can pay; return whether so."""
        spent = self._spent
        if spent is None:
            each = self.counts.spent
            if not (each == each[0]).all():
                return False
            spent = float(each[0])
        if spent + charge.price > self.limit:
            return False
        self._spent = spent + charge.price
        self._samples += charge.samples
        for kind, times in charge.calls:
            self._calls[kind] = self._calls.get(kind, 0) + times
        return True


def nonfinite_rows(result: Tensor, num_rows: int) -> list[int]:
    """Numbers of the rows of a call's result in which a number is not finite."""
    # A finite sum means finite numbers, at a third of the price of asking each.
    if math.isfinite(float(result.sum())):
        return []
    is_bad = ~torch.isfinite(result).reshape(num_rows, -1).all(1)
    rows: list[int] = is_bad.nonzero()[:, 0].tolist()
    return rows


class Session:
    """Which replicas of a run are active, and which calls went wrong in which."""

    def __init__(self, replicas: int, name: str, needs: frozenset[str], is_batched: bool) -> None:
        self.name = name
        self.needs = needs
        self.is_batched = is_batched
        self.active: BoolArray = np.ones(replicas, np.bool_)
        self.is_complete = True  # all are active: the common case, where no call needs a mask
        self.is_over = False  # none is
        self.broke: BoolArray = np.zeros(replicas, np.bool_)
        self.known: dict[str, _Known] = {}
        self.unchecked: tuple[str, Tensor] | None = None  # the last call, and what it returned
        self._nonfinite: dict[int, str] = {}

    @property
    def nonfinite(self) -> dict[int, str]:
        """The first call that gave a replica a number that is not finite."""
        self.check_last_call()
        return self._nonfinite

    def keep_unchecked(self, kind: str, result: Tensor) -> Tensor:
        """Return a result for all replicas, which is to be checked before the next; see `run`."""
        if self.unchecked is not None:
            self.check_last_call()
        self.unchecked = (kind, result)
        return result

    def check_last_call(self) -> None:
        if self.unchecked is not None:
            kind, result = self.unchecked
            self.unchecked = None
            for replica in nonfinite_rows(result, len(self.active)):
                self._nonfinite.setdefault(replica, kind)

    def drop(self, replicas: IntArray | BoolArray) -> None:
        self.active[replicas] = False
        num_active = np.count_nonzero(self.active)
        self.is_complete, self.is_over = num_active == len(self.active), num_active == 0

    def bankrupt(self, replicas: IntArray) -> None:
        self.broke[replicas] = True
        self.drop(replicas)

    def can_go_on(self, keep: BoolArray) -> bool:
        """Whether a call may return with the rows outside `keep` unanswered.

        A batched method goes on for the replicas that are left; a method that runs one replica at
        a time has nothing left to do.
        """
        return not self.is_over if self.is_batched else bool(keep.any())


class Oracle(AroundFunction):
    r"""Counts, prices and guards the calls of a function.

    Args:
        function: a problem of `asgld.problems`, or what `torch_function` / `numpy_function` give.
        replicas: R, how many rows a point has; by default what the first call shows.
        budget: gradient-equivalents that each replica may spend; None is no limit.
        costs: the price list.

    >>> from asgld.oracle.functions import torch_function
    >>> oracle = Oracle(torch_function(lambda x: (x * x).sum(), dim=2))
    >>> x = torch.ones(3, 2, dtype=torch.float64)
    >>> oracle.grad(x).shape, oracle.hvp(x, x).shape
    (torch.Size([3, 2]), torch.Size([3, 2]))
    >>> oracle.counts.total()
    {'grad': 3, 'hvp': 3, 'samples': 6, 'gradient_equivalents': 9.0}
    """

    def __init__(
        self,
        function: Function,
        *,
        replicas: int | None = None,
        budget: float | None = None,
        costs: Costs | None = None,
    ) -> None:
        missing = [name for name in ("dim", "value", "grad") if not hasattr(function, name)]
        if missing:
            raise TypeError(
                f"function={function!r} has no {missing[0]!r}: give a problem, or wrap a callable "
                "by asgld.oracle.functions.torch_function or numpy_function"
            )
        if budget is not None and not budget > 0:
            raise ValueError(f"budget={budget!r}: need a positive number of gradient-equivalents")
        if replicas is not None and replicas < 1:
            raise ValueError(f"replicas={replicas!r}: need at least 1")
        self.function = function
        self.costs = Costs() if costs is None else costs
        self._ledger: _Ledger | None = _Ledger(replicas, budget)
        self.session: Session | None = None
        self._rows: IntArray | None = None  # replica of each row; None is all, in order

    # -------------------------------------------------------------------------------- what it is

    @property
    def penalty(self) -> BoundPenalty | None:
        """g, where values are those of f + g and derivatives those of f; see `composite`."""
        penalty = getattr(self.function, "penalty", None)
        return penalty if isinstance(penalty, BoundPenalty) else None

    @property
    def is_free(self) -> bool:
        return self._ledger is None

    @property
    def counts(self) -> Counts:
        """The counts so far. Copy them to keep them; within a run, read them anew."""
        if self._ledger is None:
            raise ValueError("a free view has no counts; ask the oracle it came from")
        return self._ledger.counts

    @property
    def budget(self) -> float:
        return math.inf if self._ledger is None else self._ledger.budget

    # -------------------------------------------------------------------------------- views

    def free(self) -> Oracle:
        """A view for monitoring: no counts, no budget, no declared needs, any number of rows."""
        view = copy.copy(self)
        view._ledger = view.session = view._rows = None
        return view

    def rows(self, index: int | Tensor | npt.ArrayLike) -> Oracle:
        """A view of some replicas: their calls are counted for them alone.

        `index` is a replica's number, several, or a mask. Points given to the view have one row
        per replica of it, in that order; for a single number the shape (d,) will do.
        """
        if self._ledger is None:
            return self
        numbers = np.arange(self.counts.replicas) if self._rows is None else self._rows
        view = copy.copy(self)
        key = index.cpu().numpy() if isinstance(index, Tensor) else np.asarray(index)
        view._rows = np.atleast_1d(numbers[key])
        return view

    def open(
        self, replicas: int, *, name: str, needs: frozenset[str], is_batched: bool = True
    ) -> Oracle:
        """A view for the method of one run, which may make the calls it declared, no other.

        Replicas leave it one by one, when they cannot pay; their rows then read nan.
        """
        if unknown := needs - set(KINDS):
            raise ValueError(
                f"method {name!r} needs {sorted(unknown)[0]!r}: known calls are {', '.join(KINDS)}"
            )
        assert self._ledger is not None
        counted = self._ledger.num_replicas(default=replicas)
        if counted != replicas:
            raise ValueError(
                f"this oracle counts for {counted} replicas, x0 has {replicas}: make a new Oracle"
            )
        view = copy.copy(self)
        view.session = Session(replicas, name, needs, is_batched)
        return view

    # -------------------------------------------------------------------------------- calls

    def value(self, x: Tensor) -> Tensor:
        """f(x), of shape (...)."""
        return self._call("value", x)

    def grad(self, x: Tensor) -> Tensor:
        """The gradient at x, of x's shape."""
        return self._call("grad", x)

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both, at the price of the gradient."""
        self._check_needs("value")
        joint = self._call("value_and_grad", x)
        return joint[..., -1], joint[..., :-1]

    def hvp(self, x: Tensor, v: Tensor) -> Tensor:
        """The Hessian at x times v, of x's shape."""
        return self._call("hvp", x, self._like(x, v))

    def hessian(self, x: Tensor) -> Tensor:
        """The Hessian, of shape (..., d, d)."""
        return self._call("hessian", x)

    def sample_value(self, x: Tensor, indices: Tensor) -> Tensor:
        """The mean of the samples in `indices`, of shape (B,) or (..., B)."""
        return self._call("sample_value", x, indices=indices)

    def sample_grad(self, x: Tensor, indices: Tensor) -> Tensor:
        """The gradient of that mean."""
        return self._call("sample_grad", x, indices=indices)

    def sample_hvp(self, x: Tensor, v: Tensor, indices: Tensor) -> Tensor:
        """The Hessian of that mean times v."""
        return self._call("sample_hvp", x, self._like(x, v), indices=indices)

    def tally(self, work: str, times: int = 1) -> None:
        """Note work that is no call of f (say "eigh"): counted for each row, at no price."""
        if self._ledger is None:
            return
        calls = self.counts.calls
        counter = calls.setdefault(work, np.zeros(self.counts.replicas, np.int64))
        counter[slice(None) if self._rows is None else self._rows] += times

    # -------------------------------------------------------------------------------- inside

    def _call(
        self,
        kind: str,
        x: Tensor,
        *vectors: Tensor,
        indices: Tensor | None = None,
        is_charged: bool = True,
    ) -> Tensor:
        session = self.session
        if session is not None and session.is_complete and self._rows is None and is_charged:
            known = session.known.get(kind)
            if known is not None and known.shape == x.shape and known.charge_all(known.charge):
                return session.keep_unchecked(kind, known.call(x, *vectors))
        if x.dim() == 0 or x.shape[-1] != self.dim:
            raise ValueError(
                f"x of shape {tuple(x.shape)} in oracle call `{kind}`: need (..., {self.dim})"
            )
        if indices is not None:
            self._check_batch(kind, x, indices)
        self._check_needs(kind)
        keep = self._admit(kind, x, indices, is_charged)
        call = self._function_of(kind)
        if keep is None:
            result: Tensor = call(x, *vectors) if indices is None else call(x, *vectors, indices)
            if session is not None and self._rows is None:
                return session.keep_unchecked(kind, result)
            self._note_nonfinite(kind, x, result, None)
            return result
        shape = (*x.shape[:-1], *self._result_shape(kind))
        if not keep.any():
            return x.new_full(shape, math.nan)
        # Evaluate only the rows that take part: the others may hold anything.
        mask = torch.from_numpy(keep).to(x.device)
        arguments = [a.reshape(-1, self.dim)[mask] for a in (x, *vectors)]
        if indices is not None:
            is_shared = indices.dim() == 1
            rows = indices if is_shared else indices.reshape(-1, indices.shape[-1])[mask]
            arguments.append(rows)
        result = call(*arguments)
        self._note_nonfinite(kind, arguments[0], result, keep)
        full = result.new_full((len(keep), *result.shape[1:]), math.nan)
        full[mask] = result
        return full.reshape(shape)

    def _function_of(self, kind: str) -> Callable[..., Tensor]:
        call: Callable[..., Any] = getattr(self.function, kind, self._value_and_grad)
        if kind == "value_and_grad":
            # One tensor: the gradient, and the value as its last entry.
            return lambda x: torch.cat([part.view(*x.shape[:-1], -1) for part in call(x)[::-1]], -1)
        return call

    def _value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.function.value(x), self.function.grad(x)

    def _result_shape(self, kind: str) -> tuple[int, ...]:
        if kind.endswith("value"):
            return ()
        if kind == "value_and_grad":
            return (self.dim + 1,)
        return (self.dim, self.dim) if kind == "hessian" else (self.dim,)

    def _check_needs(self, kind: str) -> None:
        session = self.session
        kind = _COUNTED_AS.get(kind, kind)
        if session is not None and kind not in session.needs:
            raise RuntimeError(
                f"method {session.name!r} called oracle.{kind}, but its `needs` declares only "
                f"{', '.join(sorted(session.needs)) or 'nothing'}: add {kind!r} to it"
            )

    def _like(self, x: Tensor, v: Tensor) -> Tensor:
        if v.shape[-1:] != x.shape[-1:]:
            raise ValueError(f"v of shape {tuple(v.shape)}: need x's shape {tuple(x.shape)}")
        return v.expand(x.shape)

    def _check_batch(self, kind: str, x: Tensor, indices: Tensor) -> None:
        if self.num_samples is None:
            raise ValueError(
                f"oracle call `{kind}`: the function is not a mean over samples; give num_samples= "
                "or use a method with full gradients"
            )
        size = indices.shape[-1] if indices.dim() else 0
        if size == 0 or (indices.dim() > 1 and indices.shape[:-1] != x.shape[:-1]):
            raise ValueError(
                f"indices of shape {tuple(indices.shape)} in oracle call `{kind}`: need (batch,) "
                f"or {(*x.shape[:-1], 'batch')}, with at least one sample"
            )
        low, high = torch.aminmax(indices)
        if int(low) < 0 or int(high) >= self.num_samples:
            raise ValueError(
                f"indices in oracle call `{kind}` run from {int(low)} to {int(high)}: need "
                f"0 <= index < num_samples = {self.num_samples}"
            )

    def _admit(
        self, kind: str, x: Tensor, indices: Tensor | None, is_charged: bool
    ) -> BoolArray | None:
        """Charge the rows that can pay. Return their mask, or None where all rows can."""
        ledger, session = self._ledger, self.session
        if ledger is None:
            return None
        num_rows = math.prod(x.shape[:-1])
        counted = ledger.num_replicas(num_rows) if self._rows is None else len(self._rows)
        if num_rows != counted:
            raise ValueError(
                f"x has {num_rows} rows in oracle call `{kind}`, but this oracle counts for "
                f"{counted}: use oracle.rows(...) for some of the replicas, oracle.free() to look"
            )
        stated = getattr(self.function, "charges", None)
        charge = self._charge(kind, indices, stated or {}) if is_charged else None
        is_complete = session is None or session.is_complete
        if session is not None and is_complete and self._rows is None:
            if charge is None:
                return None
            if ledger.charge_all(charge):
                if indices is None and stated is None:
                    call = self._function_of(kind)
                    session.known[kind] = _Known(x.shape, charge, ledger.charge_all, call)
                return None
        replicas = np.arange(num_rows) if self._rows is None else self._rows
        keep = None if session is None or is_complete else session.active[replicas]
        if charge is not None:
            can_pay = ledger.counts.spent[replicas] + charge.price <= ledger.limit
            if not can_pay.all():
                if session is None:
                    raise BudgetExhausted(self._budget_message(kind))
                session.bankrupt(replicas[~can_pay if keep is None else keep & ~can_pay])
                keep = can_pay if keep is None else keep & can_pay
        if keep is not None and session is not None and not session.can_go_on(keep):
            raise BudgetExhausted(self._budget_message(kind))
        if charge is not None:
            ledger.charge(replicas if keep is None else replicas[keep], charge)
        return keep

    def _charge(
        self, kind: str, indices: Tensor | None, stated: Mapping[str, Mapping[str, int]]
    ) -> _Charge:
        kind = _COUNTED_AS.get(kind, kind)
        n = 1 if self.num_samples is None else self.num_samples
        batch = n if indices is None else indices.shape[-1]
        prefix = "sample_" if kind.startswith("sample_") else ""
        charges = stated.get(kind, {kind: 1}).items()
        calls = tuple((prefix + name.removeprefix("sample_"), times) for name, times in charges)
        price = sum(self.costs.of(name, self.dim) * times for name, times in calls) * (batch / n)
        return _Charge(price, calls, batch * sum(times for _, times in calls))

    def _budget_message(self, kind: str) -> str:
        return (
            f"oracle call `{kind}` would pass the budget of {self.budget:g} gradient-equivalents; "
            "raise budget="
        )

    def _note_nonfinite(self, kind: str, x: Tensor, result: Tensor, keep: BoolArray | None) -> None:
        if self._ledger is None or not (bad := nonfinite_rows(result, math.prod(x.shape[:-1]))):
            return
        if self.session is None:
            row = x.reshape(-1, self.dim)[bad[0]]
            raise ValueError(
                f"oracle call `{kind}` gave a non-finite number at row {bad[0]}, "
                f"x = {np.array2string(row.detach().cpu().numpy(), precision=6, threshold=6)}: "
                "f must be finite where it is evaluated; check the start point and the domain"
            )
        rows = np.array(bad) if keep is None else np.flatnonzero(keep)[bad]
        replicas = rows if self._rows is None else self._rows[rows]
        for replica in replicas.tolist():
            self.session.nonfinite.setdefault(replica, kind)
