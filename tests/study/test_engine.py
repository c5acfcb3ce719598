"""The engine: keys, the store, which results are believed, and what is left by any trouble."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from asgld import cli
from asgld_study import engine
from asgld_study.commands import choose
from asgld_study.engine import Experiment, Store, Task, measure, run_experiments, task
from asgld_study.paper import EXPERIMENTS, rates

# Experiments that take little time and yet have several tasks.
FEW = ("lag", "plateau", "noise")


def _square(x: int) -> dict[str, Any]:
    return {"x": x, "square": x * x, "third": x / 3}


def _fail(x: int) -> dict[str, Any]:
    raise RuntimeError(f"no luck with {x}")


def _threads() -> dict[str, Any]:
    return {"threads": torch.get_num_threads()}


def _list() -> Any:
    return [1, 2]


# ------------------------------------------------------------------------------------ keys


def test_keys_depend_on_function_and_options_and_not_on_the_label() -> None:
    keys = {task(f, x=x).key for f in (_square, _fail) for x in (0, 1)}
    assert len(keys) == 4
    assert Task(_square, {"x": 0}, "label").key in keys
    assert task(_square, x=0, y=1).key == Task(_square, {"y": 1, "x": 0}).key


def test_keys_depend_on_the_version_of_the_numerics(monkeypatch: pytest.MonkeyPatch) -> None:
    before = task(_square, x=0).key
    monkeypatch.setattr(engine, "NUMERICS", "next")
    assert task(_square, x=0).key != before


@pytest.mark.parametrize(
    ("module", "old", "new", "is_other"),
    [
        ("asgld_study.paper.rates", "weighted.add_(squares", "weighted.sub_(squares", True),
        (
            "asgld_study.chains",
            "geomspace(first, steps, count)",
            "linspace(first, steps, count)",
            True,
        ),
        ("asgld_study.landscapes", "lambda x: x.sin()", "lambda x: x.cos()", True),
        ("asgld_study.statistics", "np.log(populations", "np.log1p(populations", True),
        ("asgld_study.landscapes", "lambda x: x.sin()", "lambda x:  x.sin()", False),
        ("asgld_study.paper.rates", "The floor of SGLD against", "The bottom of SGLD", False),
        ("asgld_study.drawing", 'INK, GRAY = "#1a', 'INK, GRAY = "#2b', False),
    ],
)
def test_keys_depend_on_the_code_that_a_task_reaches(
    module: str, old: str, new: str, is_other: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop that topics share counts; the layout and the captions of the same file do not."""
    (subject,) = rates.case_tasks(rates.CASES[:1], 200, 6)
    before, original = subject.key, engine.inspect.getsource

    def edited(code: Any) -> str:
        source: str = original(code)
        if code.__name__ != module:
            return source
        assert old in source
        return source.replace(old, new)

    monkeypatch.setattr(engine.inspect, "getsource", edited)
    for cached in (engine._code, engine._bindings):
        cached.cache_clear()
    try:
        assert (subject.key != before) is is_other
    finally:
        for cached in (engine._code, engine._bindings):
            cached.cache_clear()


# ------------------------------------------------------------------------------------ results


def test_stored_results_are_used_again_and_equal_fresh_ones(tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    tasks = [task(_square, x=0), task(_square, x=1), task(_square, x=0)]
    first = measure(
        tasks, folder=tmp_path, report=lambda done, total, _: heard.append((done, total))
    )
    # equal tasks are measured once
    assert heard == [(0, 2), (1, 2), (2, 2)]
    assert [found.value for found in first] == [_square(0), _square(1), _square(0)]
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert measure(tasks, folder=tmp_path) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == kept
    assert [found.value for found in measure(tasks)] == [found.value for found in first]


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x80\x00\xff", b"{}", b"[]", b"7", b"null", b'{"value": null, "error": ""}',
        b'{"value": {}, "seconds": 0.0}', b'{"value": [1], "seconds": 0.0, "digest": ""}', "half",
        "changed", "folder",
    ],
)  # fmt: skip
def test_a_file_that_is_no_result_is_said_so_and_measured_again(
    content: bytes | str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    subject = task(_square, x=3)
    first = measure([subject], folder=tmp_path)
    path = Store(tmp_path).path(subject.key)
    if content == "folder":
        path.unlink()
        (path / "inside").mkdir(parents=True)
    elif isinstance(content, str):
        text = path.read_text()
        path.write_text(
            text[:20] if content == "half" else text.replace('"square": 9', '"square": 8')
        )
    else:
        path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        again = measure([subject], folder=tmp_path)
    assert again[0].value == first[0].value
    assert len(caplog.records) == 1
    assert path.name in caplog.text
    caplog.clear()
    assert measure([subject], folder=tmp_path) == again
    assert not caplog.records


def test_a_failure_stops_nothing_is_not_kept_and_is_tried_again(tmp_path: Path) -> None:
    failed, fine, shapeless = measure(
        [task(_fail, x=1), task(_square, x=2), task(_list)], folder=tmp_path
    )
    assert failed.value is None
    assert "no luck with 1" in failed.error
    assert fine.value == _square(2)
    assert "mapping" in shapeless.error
    assert len(list(tmp_path.iterdir())) == 1


def test_tasks_run_on_one_thread_and_give_the_others_back() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert measure([task(_threads)])[0].value == {"threads": 1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_number_of_processes_changes_nothing() -> None:
    one, two = (run_experiments(choose(FEW), "tiny", jobs=jobs) for jobs in (1, 2))
    assert {n: o.values for n, o in one.items()} == {n: o.values for n, o in two.items()}
    assert not [error for outcome in two.values() for error in outcome.errors]


def test_experiments_get_their_own_values_and_errors() -> None:
    def tasks(size: engine.Size) -> list[Task]:
        return [task(_square, x=0), task(_fail, x=1), task(_square, x=2)]

    found = run_experiments(
        [Experiment("bad", "", "", tasks), Experiment("good", "", "", lambda _: tasks(_)[:1])],
        "tiny",
    )
    assert found["bad"].values == [_square(0), _square(2)]
    assert len(found["bad"].errors) == 1
    assert found["good"].one(x=0) == _square(0)
    assert found["bad"].select(square=4) == [_square(2)]
    with pytest.raises(ValueError, match="size='huge'"):
        run_experiments([], "huge")


def test_names_of_experiments_are_their_own() -> None:
    names = [experiment.name for experiment in EXPERIMENTS]
    assert len(set(names)) == len(names)


# ------------------------------------------------------------------------------------ trouble


def _start(out: Path, *names: str) -> subprocess.Popen[str]:
    """`asgld reproduce` with two workers, in a group of its own."""
    words = [word for name in names for word in ("--only", name)]
    return subprocess.Popen(
        [sys.executable, "-m", "asgld", "reproduce", "--size", "tiny", "--jobs", "2", "--out",
         str(out), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )  # fmt: skip


def _wait_for(count: int, out: Path, process: subprocess.Popen[str]) -> None:
    while process.poll() is None and len(list((out / "results").glob("*.json"))) < count:
        time.sleep(0.02)


def _children(process: subprocess.Popen[str]) -> list[Path]:
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [Path("/proc") / child for child in found]


def _is_running(process: Path) -> bool:
    try:
        return process.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_stopped_run_leaves_no_process_and_goes_on(how: signal.Signals, tmp_path: Path) -> None:
    process = _start(tmp_path, "region")
    _wait_for(2, tmp_path, process)
    children = _children(process)
    assert len(children) >= 2
    if how is signal.SIGKILL:
        process.kill()
    else:
        os.killpg(process.pid, how)
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Traceback" not in output
    deadline = time.monotonic() + 5.0  # the watch looks five times a second
    while any(map(_is_running, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [child for child in children if _is_running(child)]
    kept = {p: p.read_bytes() for p in (tmp_path / "results").glob("*.json")}
    assert len(kept) >= 2
    resumed = run_experiments(choose(["region"]), "tiny", folder=tmp_path / "results")
    assert resumed["region"].values == run_experiments(choose(["region"]), "tiny")["region"].values
    assert {path: path.read_bytes() for path in kept} == kept  # measured once


@pytest.mark.parametrize("trouble", ["a file in place of the folder", "a full disk"])
def test_a_folder_that_cannot_be_written_ends_with_one_line(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    if trouble == "a full disk":

        def fail(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "replace", fail)
    else:
        out.touch()
    arguments = ["reproduce", "--size", "tiny", "--jobs", "1", "--only", "noise", "--out", str(out)]
    result = CliRunner().invoke(cli.build_app(), arguments)
    assert result.exit_code == (1 if trouble == "a full disk" else 2)  # that is seen before the run
    assert isinstance(result.exception, SystemExit)  # and no traceback
    assert str(out) in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path != out]


def test_results_are_plain_files(tmp_path: Path) -> None:
    subject = task(_square, x=1)
    measure([subject], folder=tmp_path)
    content = json.loads(Store(tmp_path).path(subject.key).read_text())
    assert content["value"] == _square(1)
