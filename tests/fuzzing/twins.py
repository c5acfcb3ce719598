"""Twins that run one program in step: the plain loop, and another backend.

`run` raises `Finding` if a property does not hold:

* both twins raise or neither does, and the errors are errors for users (`ERRORS`);
* an illegal operation raises, and a legal one does not;
* after an error parameters, state and knobs are bit for bit as before;
* otherwise parameters, sums and momenta agree within tolerances, and counts exactly;
* a step writes to the parameters that have a gradient and their state, and to nothing else.

The loop is the truth, and gets plain gradients: contiguous copies of gradients that its twin gets
strided, expanded, negated, conjugated or in the memory of their parameter.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fuzzing.operations import (
    BREAKS,
    CHANGES,
    DAMAGES,
    Mend,
    fits,
    give_gradients,
    is_large,
    is_legal,
    suits,
)  # fmt: skip
from fuzzing.programs import ERRORS, MAX_STEP, TOLERANCES, Finding, Program, backend_of
from fuzzing.sides import Side, disagreement

# Entries of a state that are compared within tolerances.
_VALUES = ("sum", "right", "momentum")


class World:
    """Two optimizers that run the same program."""

    def __init__(self, program: Program, margin: int) -> None:
        self.program = program
        self.place = "construction"
        backend = program.backend
        made: list[Any] = []
        for name, is_plain in (("loop", True), (backend, False)):
            try:
                made.append(Side(program, name, margin, is_plain))
            except Exception as error:
                # If fused=True is refused, the best backend takes its place.
                if name == "fused" and "cannot be served" in str(error):
                    made.append(Side(program, "default", margin, is_plain))
                else:
                    made.append(error)
        self.is_refused = all(isinstance(side, Exception) for side in made)
        faults = self._faults_of_errors([s if isinstance(s, Exception) else None for s in made])
        if faults:
            raise Finding(faults, self.place)
        if not self.is_refused:
            self.loop, self.twin = made
            self.sides: tuple[Side, Side] = (self.loop, self.twin)

    def _names(self) -> tuple[str, str]:
        return "loop", self.program.backend if self.program.backend != "loop" else "loop twin"

    def _faults_of_errors(
        self, errors: Sequence[Exception | None], must_raise: bool | None = None
    ) -> list[str]:
        faults = []
        pairs = list(zip(self._names(), errors, strict=True))[::-1]
        for name, error in pairs:
            if error is not None and not isinstance(error, ERRORS):
                faults.append(f"{_kind(error)} from {name}")
        for name, error in pairs:
            if must_raise is True and error is None:
                faults.append(f"no error from {name}")
            elif must_raise is False and isinstance(error, ERRORS):
                faults.append(f"needless {_kind(error)} from {name}")
        if must_raise is None and (errors[0] is None) != (errors[1] is None):
            name, error = next(pair for pair in pairs if pair[1] is not None)
            faults.append(f"{_kind(error)} from {name} alone")
        return faults

    def attempt(self, call: Callable[[Side], Any], must_raise: bool | None) -> bool:
        """Do the same to both sides and compare; return whether they raised."""
        before = [side.snapshot() for side in self.sides]
        errors: list[Exception | None] = []
        for side in self.sides:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    call(side)
                errors.append(None)
            except Exception as error:
                errors.append(error)
        faults = []
        both = list(zip(self.sides, before, errors, self._names(), strict=True))
        for side, old, error, name in reversed(both):
            if side.written_outside(old["memory"]):
                faults.append(f"writes outside by {name}")
            elif error is not None and (moved := side.moved(old)):
                faults.append(f"{' and '.join(moved)} moved before the error from {name}")
        faults += self._faults_of_errors(errors, must_raise)
        if not any(errors) and not faults:
            faults += self.compare()
        if faults:
            told = [f"{type(e).__name__}: {e}"[:200] for e in errors if e is not None]
            raise Finding(faults, ", ".join([self.place, *told]))
        return any(e is not None for e in errors)

    def compare(self) -> list[str]:
        """Return where the twins differ, then set the twin's values to the loop's."""
        faults = []
        # With a step size that is a float32 tensor the scale of the noise is float32, too.
        sizes = [group["lr"] for group in self.loop.optimizer.param_groups]
        is_single = any(isinstance(lr, Tensor) and lr.dtype == torch.float32 for lr in sizes)
        precision = 1e-6 if is_single else 0.0
        for i, (p, q) in enumerate(zip(self.loop.params, self.twin.params, strict=True)):
            # A proximal step subtracts: its error is that of the number before it.
            has_prox = self.loop.group_of(p)["prox"] is not None
            rounding = TOLERANCES[p.dtype][0] if has_prox else 0.0
            if text := disagreement(q.detach(), p.detach(), max(precision, rounding)):
                faults.append(f"parameter differs ({i}, {text})")
            ours, theirs = self.twin.state(q), self.loop.state(p)
            if ours.keys() != theirs.keys():
                faults.append(f"state differs ({i}, {sorted(ours)} for {sorted(theirs)})")
                continue
            for name, value in theirs.items():
                if name in _VALUES:
                    if text := disagreement(ours[name], value, precision):
                        faults.append(f"{name} differs ({i}, {text})")
                elif _number(ours[name]) != _number(value):
                    faults.append(f"{name} differs ({i}, {ours[name]} for {value})")
        if not faults:
            for p, q in zip(self.loop.params, self.twin.params, strict=True):
                ours, theirs = self.twin.state(q), self.loop.state(p)
                pairs = [(q, p), *((ours[n], theirs[n]) for n in _VALUES if n in ours)]
                for mine, other in pairs:
                    if not torch.equal(mine, other):
                        mine.data.copy_(other.data)  # .data: the write must not show
        return faults

    # -- operations that may raise -------------------------------------------------------------

    def step(self, must_raise: bool | None = False) -> bool:
        self.loop.follow_aliases(self.twin)
        counts = [self.loop.state(p).get("step", torch.tensor(0)) for p in self.loop.params]
        over = [
            i
            for i, (p, count) in enumerate(zip(self.loop.params, counts, strict=True))
            if p.grad is not None and count.dim() == 0 and not 0 <= int(count) <= MAX_STEP
        ]
        if must_raise is not None:
            must_raise = must_raise or bool(over)
        has_raised = self.attempt(_step, must_raise)
        for side in self.sides:
            for i in over:
                side.state(side.params[i])["step"].fill_(3)
        return has_raised

    def broken(self, change: Callable[[Side], Mend | None], must_raise: bool | None = True) -> None:
        """Break something on both sides, take a step, and mend it."""
        mends = [change(side) for side in self.sides]
        if None not in mends:
            self.step(must_raise)
        for mend in mends:
            if mend is not None:
                mend()

    def do(self, number: int, operation: tuple[Any, ...]) -> None:
        name, *arguments = operation
        self.place = f"{number}. {' '.join(map(str, operation))}"
        own = {
            "step": self.step,
            "load": self.load,
            "knob": self.set_knob,
            "backend": self.set_backend,
            "lr_in_place": self.write_lr,
        }
        if name in own:
            own[name](*arguments)
        elif name.startswith(("illegal", "wrong")):
            must_raise = None if name == "wrong_state_dtype" else True
            self.broken(lambda side: BREAKS[name](side, *arguments), must_raise)
        else:
            for side in self.sides:
                CHANGES[name](side, *arguments)

    def set_knob(self, g: int, name: str, value: Any) -> None:
        """Change a knob. If it is illegal beside the others, or if the states do not fit the new
        shape of D, a step must raise."""
        groups = [side.group(g) for side in self.sides]
        shapes = [(tuple(p.shape), p.is_complex()) for p in groups[0]["params"]]
        new = {**groups[0], name: value}
        if name in ("shape", "blocks") and any(is_large(new, shape) for shape, _ in shapes):
            return
        old = [{key: group[key] for key in (name, "foreach", "fused")} for group in groups]
        for side, group in zip(self.sides, groups, strict=True):
            group[name] = side.knob(name, value)
            if name == "shape":
                group.update(backend_of(side.backend, value))
        if all(map(is_legal, groups)) and all(
            suits(groups[0], shape, is_complex=is_complex) and fits(self.loop, p, groups[0], shape)
            for p, (shape, is_complex) in zip(groups[0]["params"], shapes, strict=True)
        ):
            return

        def change(side: Side) -> Mend:
            group = side.group(g)
            give_gradients(side, group)
            return lambda: group.update(old[self.sides.index(side)])

        self.broken(change)

    def write_lr(self, g: int, seed: int) -> None:
        """Write to a step size that is a tensor, which groups may share, or set a number."""
        value, chosen = 0.03125 * (1 + seed % 5), self.loop.group(g)
        groups = [group["lr"] is chosen["lr"] for group in self.loop.optimizer.param_groups]
        for side in self.sides:
            for group, is_same in zip(side.optimizer.param_groups, groups, strict=True):
                if is_same and isinstance(group["lr"], Tensor):
                    group["lr"].fill_(value)
                elif is_same:
                    group["lr"] = value
            # Later groups have the same tensor.
            if self.loop.optimizer.defaults["lr"] is chosen["lr"] and side is self.twin:
                side.optimizer.defaults["lr"] = side.optimizer.param_groups[g % len(groups)]["lr"]

    def set_backend(self, name: str) -> None:
        """Let another backend run the twin from now on. Lists take no tensor as step size."""
        optimizer = self.twin.optimizer
        sizes = [knobs["lr"] for knobs in (optimizer.defaults, *optimizer.param_groups)]
        if name == "foreach" and any(isinstance(lr, Tensor) for lr in sizes):
            return
        for group in self.twin.optimizer.param_groups:
            if not is_legal({**group, **backend_of(name, group["shape"])}):
                return
        for group in self.twin.optimizer.param_groups:
            group.update(backend_of(name, group["shape"]))
        self.twin.backend = name

    def load(self, kind: str, i: int, seed: int) -> None:
        """Load the own state, or a damaged one, which must raise."""
        for side in self.sides:
            for p in side.retired:  # torch's state_dict() fails on a state outside all groups
                side.optimizer.state.pop(p, None)
        is_whole = all(side.state(p) for side in self.sides for p in side.params)
        is_own = kind == "own"
        if not is_own and not is_whole:
            return
        states = [
            copy.deepcopy(side.optimizer.state_dict()) if is_own else DAMAGES[kind](side, i)
            for side in self.sides
        ]
        if None in states:
            return
        given = iter(states)
        must_raise = not is_own if is_whole else None
        self.attempt(lambda side: side.optimizer.load_state_dict(next(given)), must_raise)


def _step(side: Side) -> None:
    """Take a step. If fused=True is refused, the best backend takes its place."""
    groups = side.optimizer.param_groups
    asked = [group["fused"] for group in groups]
    try:
        side.optimizer.step()
    except RuntimeError as error:
        if "cannot be served" not in str(error):
            raise
        for group in groups:
            group["fused"] = group["fused"] and None
        try:
            side.optimizer.step()
        except Exception:
            for group, fused in zip(groups, asked, strict=True):
                group["fused"] = fused
            raise


def _kind(error: Exception | None) -> str:
    kind = type(error)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _number(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def run(program: Program, margin: int = 16) -> bool:
    """Run a program; return False if no optimizer could be made.

    Args:
        program: the case.
        margin: guard elements around every tensor; 0 for a sanitizer, which checks the end itself.
    """
    world = World(program, margin)
    if world.is_refused:
        return False
    for number, operation in enumerate(program.operations):
        world.do(number, operation)
    return True
