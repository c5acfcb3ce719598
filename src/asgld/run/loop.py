"""The only loop: a method, an oracle, start points, and a Run that says what happened.

Every replica stops for its own reason and keeps its own last finite point; a budget, a non-finite
number, a keyboard interrupt are results. A checkpoint holds everything that the next step depends
on, so that a run killed at any moment goes on with the same bits.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asgld.methods.base import KnownState, Method, State, as_mask, replica_seed
from asgld.oracle import BudgetExhausted, Oracle
from asgld.oracle.base import Session
from asgld.oracle.costs import Counts
from asgld.run.files import read_checkpoint, write_checkpoint
from asgld.run.history import History, Record, Writer
from asgld.run.stopping import Settling, Stop, StopWhen, look


class Progress:
    """The run after a step, as a callback sees it. A callback that returns True stops the run.

    ========  ==============================================================================
    field     meaning
    ========  ==============================================================================
    step      steps taken
    x         (R, d): the last finite point of each replica
    active    (R,): which replicas still run
    counts    what each replica has used in this run
    state     the method's own :class:`State`, for a method that steps all replicas at once. It is
              live: the next step changes it, and rows of stopped replicas mean nothing
    ========  ==============================================================================

    `x`, `active` and `counts` are copies, made when the callback reads them, which costs nothing
    where it does not. Keep the copies, not the Progress.
    """

    def __init__(
        self,
        loop: _Loop,
        step: int,
        change: Callable[[Tensor], Tensor] | None = None,
        before: int = 0,
    ) -> None:
        self._loop, self._own_step, self._change = loop, step, change
        self.step = before + step

    @functools.cached_property
    def x(self) -> Tensor:
        x = self._current.x.clone()
        return x if self._change is None else self._change(x)

    @functools.cached_property
    def active(self) -> npt.NDArray[np.bool_]:
        return self._current.session.active.copy()

    @functools.cached_property
    def counts(self) -> Counts:
        return self._current.used

    @property
    def state(self) -> State:
        loop = self._current
        if not loop.method.is_batched:
            raise ValueError(
                f"method {loop.method.name!r} has a state for each replica: Progress.state "
                "is for methods that step all replicas at once (is_batched)"
            )
        return loop.states[0]

    def through(self, change: Callable[[Tensor], Tensor], before: int = 0) -> Progress:
        """The same with change(x) in place of x, and with the steps of runs before this one."""
        return Progress(self._loop, self._own_step, change, before)

    @property
    def _current(self) -> _Loop:
        if self._loop.step != self._own_step:
            raise RuntimeError(
                f"Progress of step {self._own_step} read at step {self._loop.step}: read it inside "
                "the callback and keep what you need, such as `news.x`"
            )
        return self._loop


@dataclass(frozen=True, eq=False)
class Run:
    """What happened. Tensors and arrays have one row per replica.

    ============  ==========================================================================
    field         meaning
    ============  ==========================================================================
    x             (R, d): the last finite point of each replica
    values        (R,): f there
    grad_norms    (R,): norm of the gradient there
    stops         why each replica stopped
    messages      the same in words, with what is known of the cause
    steps         (R,): complete steps
    counts        what each replica used in this run
    history       what was recorded on the way
    seconds       time inside the method
    method        the method, as text
    seed          the seed
    notes         how derivatives were obtained
    ============  ==========================================================================
    """

    x: Tensor
    values: Tensor
    grad_norms: Tensor
    stops: tuple[Stop, ...]
    messages: tuple[str, ...]
    steps: npt.NDArray[np.int64]
    counts: Counts
    history: History
    seconds: float
    method: str
    seed: int
    notes: dict[str, str]

    @property
    def best(self) -> int:
        """The replica with the lowest value."""
        return int(torch.argmin(torch.nan_to_num(self.values, nan=torch.inf)))

    @property
    def stop(self) -> Stop:
        """Why the best replica stopped."""
        return self.stops[self.best]


def run(
    oracle: Oracle,
    method: Method,
    x0: Tensor,
    *,
    max_steps: int,
    stop: StopWhen | None = None,
    record: Record | None = None,
    callback: Callable[[Progress], object] | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1000,
    progress: bool = False,
    max_seconds: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> Run:
    """Run `method` from `x0`.

    Args:
        oracle: the door to f. Its counts go on from where they are; its budget holds per replica.
        method: the update rule.
        x0: start points, (d,) for one replica or (R, d).
        max_steps: the largest number of steps.
        stop: when to stop a replica earlier; by default never.
        record: what to write down; by default values and gradient norms, 20 times per decade.
        callback: called after each step with a :class:`Progress`; returning True stops the run.
        seed: of all randomness of the method.
        checkpoint: a file. If it exists, the run goes on from it, with the same bits as a run that
            was never interrupted; it is replaced every `checkpoint_every` steps and at the end.
        progress: show a line on standard error.
        max_seconds: time limit, looked at after each step.
        dtype: of the iterates.

    >>> from asgld.oracle.functions import torch_function
    >>> from asgld.methods import method
    >>> oracle = Oracle(torch_function(lambda x: (x**2).sum(), dim=3))
    >>> result = run(oracle, method("agld", lr=0.1, sigma=0.0), torch.ones(3), max_steps=50)
    >>> result.stop.value, float(result.grad_norms) < 1e-4
    ('the largest number of steps was taken', True)
    """
    loop = _Loop(oracle, method, x0, stop or StopWhen(), record or Record(), seed, dtype)
    path = None if checkpoint is None else Path(checkpoint)
    if max_steps < 0 or checkpoint_every < 1:
        raise ValueError(
            f"max_steps={max_steps!r}, checkpoint_every={checkpoint_every!r}: need at least 0 and 1"
        )
    meter = _Meter(method.name, max_steps) if progress else None
    deadline = math.inf if max_seconds is None else time.perf_counter() + max_seconds
    if path is not None and path.exists():
        loop.load(path)
    else:
        loop.start()
    try:
        while loop.step < max_steps and not loop.session.is_over:
            loop.advance()
            if callback is not None and callback(Progress(loop, loop.step)):
                loop.halt(Stop.CALLBACK)
            if max_seconds is not None and time.perf_counter() >= deadline:
                loop.halt(Stop.TIME)
            if path is not None and loop.step % checkpoint_every == 0:
                loop.save(path)
            if meter is not None:
                meter.show(loop)
    except KeyboardInterrupt:
        # The state may be in the middle of a step: what is on disk stays as it is.
        result = loop.finish(Stop.INTERRUPTED)
    else:
        if path is not None:
            loop.save(path)
        result = loop.finish(Stop.MAX_STEPS)
    if meter is not None:
        meter.close(loop)
    return result


class _Loop:
    """The state of a run between steps."""

    def __init__(
        self,
        oracle: Oracle,
        method: Method,
        x0: Tensor,
        when: StopWhen,
        record: Record,
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        if not isinstance(x0, Tensor) or x0.dim() not in (1, 2) or x0.shape[-1] != oracle.dim:
            shape = tuple(x0.shape) if isinstance(x0, Tensor) else type(x0).__name__
            raise ValueError(
                f"x0 is {shape}: need a tensor of shape ({oracle.dim},) or (replicas, {oracle.dim})"
            )
        if not isinstance(method, Method):
            raise TypeError(
                f"method={method!r}: need name, needs, is_batched, init and step; make one by "
                "asgld.methods.method(name, ...)"
            )
        self.x0 = x0.detach().to("cpu", dtype).reshape(-1, oracle.dim).clone()
        self.x = self.x0.clone()
        self.seen = self.x0.clone()  # where the values were last looked at, and finite
        self.method, self.when, self.seed = method, when, seed
        self.replicas = len(self.x)
        self.oracle = oracle.open(
            self.replicas, name=method.name, needs=method.needs, is_batched=method.is_batched
        )
        assert self.oracle.session is not None
        self.session = self.oracle.session
        self.free = oracle.free()
        self.counts_before = oracle.counts.copy()
        self.states: list[State] = []
        self.stops: list[Stop | None] = [None] * self.replicas
        self.messages = [""] * self.replicas
        self.steps = np.zeros(self.replicas, np.int64)  # a batch writes it late: _count_steps
        self.ask_after = np.zeros(self.replicas, np.int64)
        self.step = self.next_look = 0
        self.seconds = 0.0
        self.writer = Writer(record)
        self.values = self.norms = torch.full((self.replicas,), torch.nan, dtype=torch.float64)
        self.settling: Settling | None = None
        self.keeper = _Keeper()

    @property
    def used(self) -> Counts:
        """What each replica has used in this run."""
        return self.oracle.counts.since(self.counts_before)

    # ---------------------------------------------------------------------------- steps

    def start(self) -> None:
        if not self.method.is_batched:  # a batch goes on without the rows that are not finite
            self._check_start()
        began = time.perf_counter()
        self.states = self._initial_states(self.oracle)
        self.seconds += time.perf_counter() - began
        if self.method.is_batched:
            self._check_start()
        self._stop_rows(self.session.broke, Stop.BUDGET)
        self._observe()

    def _known(self) -> tuple[Tensor, Tensor] | None:
        """Values and gradients at x, where the method has them."""
        state = self.states[0] if self.states and self.method.is_batched else None
        is_known = isinstance(state, KnownState) and torch.equal(state.x, self.x)
        return (state.value, state.grad) if isinstance(state, KnownState) and is_known else None

    def _initial_states(self, oracle: Oracle) -> list[State]:
        if self.method.is_batched:
            return [self._initial_state(oracle, self.x, self.seed)]
        seeds = [replica_seed(self.seed, r) for r in range(self.replicas)]
        return [
            self._initial_state(oracle.rows(r), self.x[r], seed) for r, seed in enumerate(seeds)
        ]

    def _initial_state(self, oracle: Oracle, x: Tensor, seed: int) -> State:
        try:
            return self.method.init(oracle, x.clone(), seed=seed)
        except BudgetExhausted:
            return State(x=x.clone())  # its replicas are bankrupt: it is never stepped

    def _check_start(self) -> None:
        """Reject starts where f is not finite; spare the other replicas if only some are bad."""
        known = None if self.session.broke.any() else self._known()
        values, grads = known or (self.free.value(self.x), self.free.grad(self.x))
        for call, result in (("value", values[:, None]), ("grad", grads)):
            is_bad = ~torch.isfinite(result).all(-1)
            if bool(is_bad.all()):
                row = self.x[0].numpy()
                raise ValueError(
                    f"oracle call `{call}` is not finite at x0 = "
                    f"{np.array2string(row, precision=6, threshold=6)}: choose a start inside the "
                    "domain of f, or give bounds"
                )
            for r in np.flatnonzero(is_bad.numpy()).tolist():
                self.session.nonfinite.setdefault(r, call)
            self._stop_rows(is_bad.numpy(), Stop.NON_FINITE)

    def advance(self) -> None:
        """Take one step with every active replica, then look."""
        began = time.perf_counter()
        if self.method.is_batched:
            self._advance_together()
        else:
            for r in np.flatnonzero(self.session.active).tolist():
                self._advance_one(r)
            self.step += 1
        self.seconds += time.perf_counter() - began
        if self.step >= self.next_look:
            self._observe()

    def _advance_together(self) -> None:
        session = self.session
        try:
            state = self.states[0] = self.method.step(self.oracle, self.states[0])
        except BudgetExhausted:
            self._stop_rows(session.broke, Stop.BUDGET)
            self.step += 1
            return
        if not (session.is_complete and self.keeper.keep(state.x, self.x, session)):
            session.check_last_call()
            self._stop_rows(session.broke, Stop.BUDGET)
            is_finite = torch.isfinite(state.x).all(-1).numpy()
            self._stop_rows(session.active & ~is_finite, Stop.NON_FINITE)
            active = torch.from_numpy(session.active)
            self.x[active] = state.x[active]
        self.step += 1
        if state.finished is not False:
            finished = as_mask(state.finished, self.replicas).numpy()
            self._stop_rows(finished & session.active, Stop.FINISHED, state.message)

    def _count_steps(self) -> None:
        """Bring `steps` up to date: a batch has taken every step with all its active replicas."""
        if self.method.is_batched:
            self.steps[self.session.active] = self.step

    def _advance_one(self, r: int) -> None:
        mask = np.arange(self.replicas) == r
        try:
            state = self.method.step(self.oracle.rows(r), self.states[r])
        except BudgetExhausted:
            self._stop_rows(mask, Stop.BUDGET)
            return
        self.states[r] = state
        if not bool(torch.isfinite(state.x).all()):
            self._stop_rows(mask, Stop.NON_FINITE)
            return
        self.x[r] = state.x
        self.steps[r] += 1
        if bool(state.finished):
            self._stop_rows(mask, Stop.FINISHED, state.message)

    def _stop_rows(self, mask: npt.NDArray[np.bool_], reason: Stop, detail: str = "") -> None:
        if not mask.any():
            return
        for r in np.flatnonzero(mask).tolist():
            if self.stops[r] is not None:
                continue
            self.stops[r] = reason
            if self.method.is_batched:
                self.steps[r] = self.step
            cause = detail
            if reason is Stop.NON_FINITE and r in self.session.nonfinite:
                call = self.session.nonfinite[r]
                cause = f"first in oracle call `{call}`, noticed after step {self.step}"
            self.messages[r] = f"{reason.value}: {cause}" if cause else reason.value
        self.session.drop(mask)

    def halt(self, reason: Stop) -> None:
        self._stop_rows(self.session.active.copy(), reason)

    # ---------------------------------------------------------------------------- looking

    def _observe(self) -> None:
        """Record and test, as far as either is due."""
        record, when = self.writer.record, self.when
        is_due = record.is_due(self.step)
        is_test = when.is_active and self.step % when.every == 0
        self.next_look = record.next_due(self.step)
        if when.is_active:
            self.next_look = min(self.next_look, self.step - self.step % when.every + when.every)
        if not (is_due or is_test):
            return
        with_grad = (is_due and record.grad_norms) or when.grad_tol is not None
        self._refresh(with_grad)
        if is_test:
            self._test()
        if is_due:
            self._write()

    def _refresh(self, with_grad: bool) -> None:
        """Look at all replicas. One whose value is not finite goes back to where it last was."""
        known = self._known()
        if known is not None and bool(torch.isfinite(known[0]).all()):
            self.values, self.norms = known[0].clone(), self.when.size(self.x, known[1])
            self.seen.copy_(self.x)
            return
        self.values, self.norms = look(self.free, self.x, self.when, with_grad)
        is_bad = ~torch.isfinite(self.values)
        if bool(is_bad.any()):
            lost = is_bad.numpy() & self.session.active
            for r in np.flatnonzero(lost).tolist():
                self.session.nonfinite.setdefault(r, "value")
            self._stop_rows(lost, Stop.NON_FINITE)
            self.x[is_bad] = self.seen[is_bad]
            self.values, self.norms = look(self.free, self.x, self.when, with_grad)
        self.seen.copy_(self.x)

    def _test(self) -> None:
        when, active = self.when, self.session.active
        if when.target is not None:
            self._stop_rows(active & (self.values <= when.target).numpy(), Stop.TARGET)
        if when.grad_tol is not None:
            is_small = (
                active & (self.norms <= when.grad_tol).numpy() & (self.step >= self.ask_after)
            )
            confirmed = self._confirmed(is_small, Stop.GRADIENT)
            # A replica that rests at a saddle passes each test: ask again at twice the step.
            self.ask_after[is_small & ~confirmed] = 2 * self.step
            self._stop_rows(confirmed, Stop.GRADIENT)
        if when.settles:
            if self.settling is None:
                self.settling = Settling.start(self.values)
            elif self.step:
                self._stop_settled(self.settling)

    def _stop_settled(self, settling: Settling) -> None:
        has_settled = self.session.active & settling.test(self.step, self.values).numpy()
        is_patient = (settling.refusals < self.when.patience).numpy()
        confirmed = self._confirmed(has_settled & is_patient, Stop.SETTLED)
        settling.refusals += torch.from_numpy(has_settled & is_patient & ~confirmed)
        self._stop_rows(confirmed | (has_settled & ~is_patient), Stop.SETTLED)

    def _confirmed(self, mask: npt.NDArray[np.bool_], reason: Stop) -> npt.NDArray[np.bool_]:
        if self.when.confirm is None or not mask.any():
            return mask
        confirmed = mask.copy()
        confirmed[mask] = self.when.confirm(self.x[torch.from_numpy(mask)], reason)
        return confirmed

    def _write(self) -> None:
        self.writer.write(self.step, self.seconds, self.x, self.values, self.norms, self.used)

    def finish(self, reason: Stop) -> Run:
        """Stop whatever still runs, for `reason`, and say what happened."""
        self._stop_rows(self.session.broke, Stop.BUDGET)  # of a step that was interrupted
        self._refresh(with_grad=True)
        self.halt(reason)
        if self.writer.last_step != self.step:
            self._write()
        stops = tuple(s for s in self.stops if s is not None)
        assert len(stops) == self.replicas
        return Run(
            x=self.x.clone(),
            values=self.values,
            grad_norms=self.norms,
            stops=stops,
            messages=tuple(self.messages),
            steps=self.steps.copy(),
            counts=self.used,
            history=self.writer.history(),
            seconds=self.seconds,
            method=repr(self.method),
            seed=self.seed,
            notes=self.oracle.notes,
        )

    # ---------------------------------------------------------------------------- checkpoints

    def _identity(self) -> dict[str, Any]:
        # The slopes of a penalty, and how these change, tell its weights and groups.
        penalty, slopes = self.oracle.penalty, None
        if penalty is not None:
            points = torch.linspace(1.0, 2.0, self.oracle.dim).to(self.x0)
            slopes = torch.stack([penalty.grad(points), penalty.hvp(points, points)])
        return {
            "method": repr(self.method),
            "seed": self.seed,
            "x0": self.x0,
            "prox": slopes,
        }

    def save(self, path: Path) -> None:
        """Replace the file at `path` in one move, so that a kill leaves the old or the new one."""
        self._count_steps()
        content = {
            **self._identity(),
            "step": self.step,
            "seconds": self.seconds,
            "x": self.x,
            "seen": self.seen,
            "steps": torch.from_numpy(self.steps.copy()),
            "ask_after": torch.from_numpy(self.ask_after.copy()),
            "stops": [None if s is None else s.name for s in self.stops],
            "messages": list(self.messages),
            "nonfinite": dict(self.session.nonfinite),
            "counts": self.used.pack(),
            "history": self.writer.pack(),
            "settling": None if self.settling is None else self.settling.pack(),
            "states": [state.pack() for state in self.states],
        }
        write_checkpoint(path, content)

    def load(self, path: Path) -> None:
        content = read_checkpoint(path)
        for name, value in self._identity().items():
            saved = content.get(name)
            if not _is_same(saved, value):
                differs = f"its {name} is {saved!r}, this run's is {value!r}"
                if name == "prox":  # these are slopes, of which nobody knows the penalty
                    differs = "its prox, or the weights or groups of it, are not this run's"
                raise ValueError(
                    f"checkpoint={str(path)!r} belongs to another run: {differs}; use another "
                    "file, or remove it to start anew"
                )
        fresh = self._initial_states(self.free)
        self.states = [
            s.restored(packed) for s, packed in zip(fresh, content["states"], strict=True)
        ]
        self.step, self.seconds = content["step"], content["seconds"]
        self.x, self.seen = content["x"], content["seen"]
        self.steps, self.ask_after = content["steps"].numpy(), content["ask_after"].numpy()
        self.stops = [None if name is None else Stop[name] for name in content["stops"]]
        self.messages = content["messages"]
        self.session.nonfinite.update(content["nonfinite"])
        self.session.drop(np.array([s is not None for s in self.stops]))
        self.oracle.counts.add(Counts.unpacked(content["counts"]))
        self.writer.unpack(content["history"])
        if content["settling"] is not None:
            self.settling = Settling(**content["settling"])


def _is_same(saved: Any, value: Any) -> bool:
    if isinstance(saved, Tensor) and isinstance(value, Tensor):
        return torch.equal(saved, value)
    return type(saved) is type(value) and bool(saved == value)


class _Keeper:
    """Copies the iterates of a step if all are finite.

    Most methods change their iterates in place. Views of them, made once, then spare most of the
    time that small tensors take.
    """

    # Beyond this size torch is faster, and threads of NumPy would compete with those of torch.
    LARGEST = 8192

    def __init__(self) -> None:
        self.x: Tensor | None = None
        self.address = -1

    def keep(self, x: Tensor, kept: Tensor, session: Session) -> bool:
        """Copy x to `kept`, if x is finite and so is the session's last call; return whether so."""
        if self.x is None:
            self._view(x, kept)
        if x is not self.x or x.data_ptr() != self.address:
            # A finite sum means finite numbers, at a third of the price of asking each.
            if not math.isfinite(float(x.sum())):
                return False
            kept.copy_(x)
            return True
        try:
            # A product of two vectors is finite only if both are.
            last = self.array if session.unchecked is None else session.unchecked[1].numpy()
            product = np.vdot(self.array, last)
        except (RuntimeError, TypeError, ValueError):  # a result of another shape or kind
            session.check_last_call()
            product = np.vdot(self.array, self.array)
        if not math.isfinite(product):
            return False
        session.unchecked = None
        self.target[:] = self.source
        return True

    def _view(self, x: Tensor, kept: Tensor) -> None:
        self.x = x
        is_plain = x.is_contiguous() and not x.requires_grad and x.dtype == kept.dtype
        if is_plain and x.numel() <= self.LARGEST:
            self.address, self.array = x.data_ptr(), x.numpy()
            # Python itself moves bytes with the least ado.
            self.source, self.target = self.array.data.cast("B"), kept.numpy().data.cast("B")


class _Meter:
    """One line on standard error, a few times per second."""

    def __init__(self, name: str, max_steps: int) -> None:
        self.name, self.max_steps = name, max_steps
        self.shown = 0.0

    def show(self, loop: _Loop) -> None:
        now = time.perf_counter()
        if now - self.shown >= 0.2:
            self.shown = now
            self._print(loop)

    def _print(self, loop: _Loop) -> None:
        done = loop.step / max(self.max_steps, 1)
        bar = "#" * round(20 * done)
        lowest = float(torch.nan_to_num(loop.values, nan=torch.inf).min())
        sys.stderr.write(
            f"\r{self.name} [{bar:<20}] {loop.step}/{self.max_steps}  lowest f {lowest:.6g}  "
            f"{int(loop.session.active.sum())}/{loop.replicas} running  {loop.seconds:.1f} s "
        )
        sys.stderr.flush()

    def close(self, loop: _Loop) -> None:
        self._print(loop)
        sys.stderr.write("\n")
