"""What every benchmark shares: interleaved timing, and rows that say where they come from."""

from __future__ import annotations

import csv
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import asgld

RESULTS = Path(__file__).parent / "results"
# Options with a value that say where rows go and which of them are made.
CHANGES_NO_ROW = ("--out", "--only", "--seconds", "--workers")


def interleave(
    contenders: dict[str, Callable[[], Any]], *, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Time the contenders in turn, round after round, so that a slow spell of a shared machine hits
    all of them alike. Each round repeats a call for at least `seconds`. Return seconds per call."""
    repeats = {}
    for name, call in contenders.items():
        call()
        start = time.perf_counter()
        call()
        once = max(time.perf_counter() - start, 1e-7)
        repeats[name] = max(1, round(seconds / once))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - start) / repeats[name])
    return times


def summarize(times: list[float]) -> dict[str, float]:
    """Minimum and percentiles, in microseconds."""
    ordered = sorted(times)
    return {
        "min_us": 1e6 * ordered[0],
        "p20_us": 1e6 * ordered[len(ordered) // 5],
        "median_us": 1e6 * statistics.median(ordered),
        "p80_us": 1e6 * ordered[(4 * len(ordered)) // 5],
    }


def run_tasks(
    call: Callable[..., list[dict[str, Any]]], tasks: list[tuple[Any, ...]], *, in_place: bool
) -> list[dict[str, Any]]:
    """All rows of call(*task), in the order of the tasks: in this process, or one per core."""
    if in_place:
        return [row for task in tasks for row in call(*task)]
    with ProcessPoolExecutor(
        mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        waiting = [pool.submit(call, *task) for task in tasks]
        return [row for future in waiting for row in future.result()]


def environment(hardware: str | None = None) -> dict[str, str]:
    """Hardware, versions and command: part of every row."""
    if hardware is None:
        hardware = torch.cuda.get_device_name() if torch.cuda.is_available() else _processor()
    return {
        "hardware": hardware,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "asgld": asgld.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "command": command(sys.argv),
    }


def command(arguments: list[str]) -> str:
    """The command line that makes a row, wherever it writes to and whichever others it makes."""
    script, *rest = arguments
    kept, is_value = [], False
    for argument in rest:
        option, has_value, _ = argument.partition("=")
        if not is_value and option not in CHANGES_NO_ROW:
            kept.append(argument)
        is_value = not is_value and option in CHANGES_NO_ROW and not has_value
    return shlex.join(["python", f"benchmarks/{Path(script).name}", *kept])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def write_csv(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write the rows, each with the environment, in one piece: a reader never sees half a file.

    A row that has an environment, since it was read from a file, keeps its own.
    """
    here = environment()
    rows = [row | {name: value for name, value in here.items() if name not in row} for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    os.replace(temporary, path)


def merge_csv(path: Path, rows: Iterable[dict[str, Any]], keys: Iterable[str]) -> None:
    """Write the rows and those that the file has already, except where all keys are equal."""
    keys, kept = list(keys), []
    if path.exists():
        with path.open(newline="") as file:
            kept = list(csv.DictReader(file))
    merged = {tuple(str(row[key]) for key in keys): row for row in [*kept, *rows]}
    write_csv(path, merged.values())
