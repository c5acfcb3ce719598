"""Processes of a gloo group for the distributed tests, started again after a crash in gloo."""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import functools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing import (
    ProcessExitedException,
    ProcessRaisedException,
    start_processes,
)


def run_ranks(worker: Callable[..., None], world_size: int, *arguments: Any) -> None:
    """Call `worker(rank, world_size, *arguments)` in a process per rank.

    At times ranks of gloo (torch 2.13) wait for each other in vain, or a thread of gloo crashes.
    Then all ranks start once more.
    """
    # The fork server imports torch once, for all ranks.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["asgld.distributed", "torch.distributed.pipelining", "torch.distributed.tensor.parallel"]
    )
    start = functools.partial(
        start_processes, worker, (world_size, *arguments), world_size, start_method="forkserver"
    )
    try:
        start()
    except (ProcessRaisedException, ProcessExitedException) as error:
        folders = [argument for argument in arguments if isinstance(argument, Path)]
        left_over = [path for folder in folders for path in folder.glob("rendezvous*")]
        if "Timed out waiting" not in str(error) and not _crashed_outside_python(left_over):
            raise
        for path in left_over:
            path.unlink()
        start()


@contextlib.contextmanager
def process_group(rank: int, world_size: int, rendezvous: Path) -> Iterator[None]:
    """Join a gloo group that meets at a file; a rank that is half a minute late is an error."""
    report_crash(rank, rendezvous)
    torch.set_num_threads(1)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    dist.init_process_group(
        "gloo",
        init_method=rendezvous.absolute().as_uri(),
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=30),
    )
    yield
    # The group ends with the process: tearing it down sometimes aborts (torch 2.13).


def report_crash(rank: int, rendezvous: Path) -> None:
    """Let this process write a traceback beside `rendezvous` when a signal kills it."""
    faulthandler.enable(rendezvous.with_name(f"{rendezvous.name}-crash-{rank}").open("w"))


def _crashed_outside_python(left_over: list[Path]) -> bool:
    """Whether ranks crashed, and all in threads that Python did not start. With one thread per rank
    our kernels run in Python's threads."""
    reports = [path.read_text() for path in left_over if "-crash-" in path.name]
    crashes = [report for report in reports if report]
    return bool(crashes) and not any("Current thread" in report for report in crashes)
