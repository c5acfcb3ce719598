"""Smaller programs with the same fault."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator

from fuzzing.drawing import generate
from fuzzing.programs import Finding, Program
from fuzzing.twins import run


def shrink(program: Program, still: Callable[[Program], bool]) -> Program:
    """Return a smaller program for which `still` holds: leave out parts one by one."""

    def smaller(program: Program) -> Iterator[Program]:
        ops = program.operations
        for i in reversed(range(len(ops))):
            yield dataclasses.replace(program, operations=ops[:i] + ops[i + 1 :])
        for name in program.options:
            left = {k: v for k, v in program.options.items() if k != name}
            yield dataclasses.replace(program, options=left)
        for g, (options, specs) in enumerate(program.groups):
            others = program.groups[:g], program.groups[g + 1 :]
            if len(program.groups) > 1:
                yield dataclasses.replace(program, groups=[*others[0], *others[1]])
            if options:
                yield dataclasses.replace(program, groups=[*others[0], ({}, specs), *others[1]])
            for i in range(len(specs) if len(specs) > 1 else 0):
                rest = (options, specs[:i] + specs[i + 1 :])
                yield dataclasses.replace(program, groups=[*others[0], rest, *others[1]])
        if program.is_named:
            yield dataclasses.replace(program, is_named=False)

    is_done = False
    while not is_done:
        is_done, place = True, 0
        # A part that is needed is tried again after all the others.
        while (
            candidate := next(itertools.islice(smaller(program), place, None), None)
        ) is not None:
            if still(candidate):
                program, is_done = candidate, False
            else:
                place += 1
    return program


def first_fault(program: Program, margin: int = 16) -> str | None:
    """Return the worst fault of a case, without numbers, or None."""
    try:
        run(program, margin)
    except Finding as finding:
        return finding.faults[0].split(" (")[0]
    return None


def check(number: int, backend: str | None = None, margin: int = 16) -> None:
    """Run a case. If it fails, show the smallest program with the same fault."""
    program = generate(number, backend)
    try:
        run(program, margin)
    except Finding as finding:
        fault = finding.faults[0].split(" (")[0]
        small = shrink(program, lambda candidate: first_fault(candidate, margin) == fault)
        try:
            run(small, margin)
        except Finding as again:
            finding = again
        raise AssertionError(f"{finding}\n{small}") from None
