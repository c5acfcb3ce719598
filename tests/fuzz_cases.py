"""Run cases of the fuzzer, in processes of their own, so that a crash is a finding.

    python tests/fuzz_cases.py --cases 2000            # the kinds of findings, crashes included
    python tests/fuzz_cases.py --start 17 --cases 1    # one case, in words

The package `fuzzing` has the cases: `programs` and `drawing` say what a case is, `sides` and
`operations` what can be done to an optimizer, `twins` which properties hold, and `shrinking` makes
a failing case small.
"""

from __future__ import annotations

import argparse
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from fuzzing.drawing import generate
from fuzzing.programs import BACKENDS, Program
from fuzzing.shrinking import first_fault, shrink

from asgld.optim import _native


def in_child(work: Callable[[Callable[[str], None]], None]) -> tuple[list[str], int]:
    """Run `work(say)` in a forked process; return the lines it said, and its exit code."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            work(lambda text: (os.write(writer, f"{text}\n".encode()), None)[1])
            code = 0
        except BaseException as error:
            os.write(writer, f"harness: {type(error).__name__}: {error!s:.300}\n".encode())
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read().splitlines()
    _, status = os.waitpid(child, 0)
    return said, os.waitstatus_to_exitcode(status)


def crash_of(code: int) -> str:
    return f"crash by {signal.Signals(-code).name}" if code < 0 else f"crash with exit code {code}"


def shrink_in_child(program: Program, fault: str, margin: int) -> Program:
    """Return a smaller program with the same fault; running it may crash."""
    if fault.startswith("crash"):

        def crashes(candidate: Program) -> bool:
            said, code = in_child(lambda say: say(first_fault(candidate, margin) or ""))
            return code != 0 and not said and crash_of(code) == fault

        return shrink(program, crashes)

    def work(say: Callable[[str], None]) -> None:
        small = shrink(program, lambda candidate: first_fault(candidate, margin) == fault)
        say(pickle.dumps(small).hex())

    said, code = in_child(work)
    return pickle.loads(bytes.fromhex(said[0])) if code == 0 else program


def survey(
    numbers: Sequence[int], backend: str | None, margin: int, builds: Sequence[str | None]
) -> Iterator[tuple[int, str]]:
    """Yield the number and the fault of every case that has one."""
    left = list(numbers)
    while left:
        batch = left[:200]

        def work(say: Callable[[str], None], batch: list[int] = batch) -> None:
            for number in batch:
                say(f"{number}")
                _native.set_build(builds[number % len(builds)])
                fault = first_fault(generate(number, backend), margin)
                if fault is not None:
                    say(fault)
                    return  # the memory of this process may be damaged

        said, code = in_child(work)
        last = max(i for i, line in enumerate(said) if line.isdigit())
        number = int(said[last])
        if code != 0 and last == len(said) - 1:
            yield number, crash_of(code)
        elif last < len(said) - 1:
            yield number, said[last + 1]
        left = left[left.index(number) + 1 :]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run cases of the fuzzer in child processes.")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--backend", choices=BACKENDS, help="in place of the one that is drawn")
    parser.add_argument("--exact", action="store_true", help="no guards: for a sanitizer")
    parser.add_argument("--builds", action="store_true", help="take turns with the kernel's builds")
    parser.add_argument("--no-shrink", action="store_true", help="do not look for smaller programs")
    parser.add_argument("--show", action="store_true", help="print the smallest program of a kind")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    margin = 0 if given.exact else 16
    builds: list[str | None] = [*_native.available_builds()] if given.builds else [None]
    begin, kinds = time.perf_counter(), dict[str, list[int]]()
    smallest: dict[str, Program] = {}
    numbers = range(given.start, given.start + given.cases)
    if given.cases == 1:
        print(generate(given.start, given.backend))
    for number, fault in survey(numbers, given.backend, margin, builds):
        program = generate(number, given.backend)
        kind = f"{fault} ({program.backend})"
        if not given.no_shrink:
            _native.set_build(builds[number % len(builds)])
            program = shrink_in_child(program, fault, margin)
            what = [" ".join(a for a in op if isinstance(a, str)) for op in program.operations]
            kind = f"{kind} <- {', '.join(what)}"
        if kind not in kinds:
            print(f"case {number}: {kind}", flush=True)
            smallest[kind] = program
            if given.show or given.cases == 1:
                print(program, flush=True)
        kinds.setdefault(kind, []).append(number)
    print(f"\n{given.cases} cases in {time.perf_counter() - begin:.0f} s, ", end="")
    print(f"{sum(map(len, kinds.values()))} with a finding, of {len(kinds)} kinds")
    for kind, found in sorted(kinds.items(), key=lambda item: -len(item[1])):
        print(f"{len(found):5} first {found[0]:5}: {kind}")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
