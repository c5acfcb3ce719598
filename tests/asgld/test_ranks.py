"""The distributed tests start again for a fault of gloo, and not for one of ours."""

from __future__ import annotations

import ctypes
import faulthandler
from collections.abc import Callable
from pathlib import Path

import pytest
from ranks import report_crash, run_ranks
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

Worker = Callable[[int, int, Path], None]


def time_out_at_first(rank: int, world_size: int, folder: Path) -> None:
    """Fail as gloo does, the first time."""
    if _is_first(folder):
        raise RuntimeError("Timed out waiting 30000ms for send operation to complete")


def crash_in_another_thread_at_first(rank: int, world_size: int, folder: Path) -> None:
    report_crash(rank, folder / "rendezvous")
    if _is_first(folder):
        libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
        libc.pthread_create(ctypes.byref(thread), None, libc.abort, None)
        libc.pthread_join(thread, None)


def crash(rank: int, world_size: int, folder: Path) -> None:
    report_crash(rank, folder / "rendezvous")
    _is_first(folder)
    faulthandler._sigsegv(True)  # type: ignore[attr-defined] # without the GIL, as in our kernel


def fail(rank: int, world_size: int, folder: Path) -> None:
    _is_first(folder)
    raise ValueError("a bug of ours")


def _is_first(folder: Path) -> bool:
    """Leave a trace of this call, and say whether there was none."""
    earlier = len(list(folder.glob("call-*")))
    (folder / f"call-{earlier}").touch()
    return earlier == 0


@pytest.mark.parametrize("worker", [time_out_at_first, crash_in_another_thread_at_first])
def test_ranks_start_again_when_gloo_loses_them(worker: Worker, tmp_path: Path) -> None:
    run_ranks(worker, 1, tmp_path)
    assert len(list(tmp_path.glob("call-*"))) == 2


@pytest.mark.parametrize(
    ("worker", "error"),
    [(fail, ProcessRaisedException), (crash, ProcessExitedException)],
)
def test_ranks_do_not_start_again_for_a_bug(
    worker: Worker, error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error, match=r"a bug of ours|SIGSEGV"):
        run_ranks(worker, 1, tmp_path)
    assert len(list(tmp_path.glob("call-*"))) == 1
