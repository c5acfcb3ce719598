"""What `--check` of the speed benchmarks lets pass, and how two commits are compared."""

from __future__ import annotations

import csv
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT

BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
gpu = importlib.import_module("step_time_gpu")
commits = importlib.import_module("step_time_commits")
sys.path.remove(str(BENCHMARKS))

SMALL, LARGE = "ResNet-50 list", "GPT list"
REPLAY, CAPTURABLE = "ASGLD, graph replay", "ASGLD, capturable"
MESH = "ASGLD, sharded on one rank"


def _rows(workload: str, **changes: float | None) -> list[dict[str, Any]]:
    """Rows that keep all bounds of a workload, but for the changes; None leaves a row out."""
    times: dict[str, float | None] = {name: 100.0 for _, name, _ in gpu.BOUNDS}
    times |= {gpu.ADAMW: 1000.0, gpu.COPY: 100.0, gpu.SAME_BYTES: 100.0, CAPTURABLE: 100.0}
    if workload == LARGE:
        times[gpu.ADAMW] = 200.0
    times |= changes
    return [
        {"workload": workload, "contender": name, "median_us": time}
        for name, time in times.items()
        if time is not None
    ]


@pytest.mark.parametrize(
    ("workload", "changes", "is_kept"),
    [
        (SMALL, {}, True),
        # At most 0.20 of AdamW's time, or at most 1.1 of a copy's: one is enough.
        (SMALL, {gpu.ADAMW: 500.0, gpu.SAME_BYTES: 10.0}, True),
        (SMALL, {gpu.ADAMW: 499.0, gpu.SAME_BYTES: 91.0}, True),
        (SMALL, {gpu.ADAMW: 499.0, gpu.SAME_BYTES: 90.0}, False),
        # A copy that was not measured excuses nothing, and is not missed where AdamW decides.
        (SMALL, {gpu.ADAMW: 499.0, gpu.SAME_BYTES: None}, False),
        (SMALL, {gpu.SAME_BYTES: None}, True),
        # The large list has no such way out.
        (LARGE, {gpu.ADAMW: 161.0}, False),
        # A graph is compared with the optimizer that it was made from, and with no other.
        (SMALL, {REPLAY: 120.0, CAPTURABLE: 120.0}, True),
        (SMALL, {REPLAY: 100.1}, False),
        (LARGE, {REPLAY: 100.1}, False),
        (SMALL, {MESH: 125.0}, True),
        (SMALL, {MESH: 126.0}, False),
        (LARGE, {MESH: 105.0}, True),
        (LARGE, {MESH: 106.0}, False),
        # What could not run has missed its bounds.
        (SMALL, {MESH: None}, False),
    ],
)
def test_bounds_on_the_lists(
    workload: str, changes: dict[str, float | None], is_kept: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert gpu.check(_rows(workload, **changes)) is is_kept
    output = capsys.readouterr().out
    assert output.count("MISSED") == (0 if is_kept else 1)
    assert f"{'2^28':18s}" not in output  # without rows, nothing is said


def test_rows_written_before_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, changes in (("kept", {}), ("missed", {MESH: 130.0})):
        rows = _rows(SMALL, **changes)
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    for names, options, status in (
        (["kept"], ["--check"], 0),
        (["kept", "missed"], ["--check"], 1),
        (["missed"], [], 0),
    ):
        files = [str(tmp_path / f"{name}.csv") for name in names]
        monkeypatch.setattr(sys, "argv", ["step_time_gpu.py", *options, "--rows", *files])
        with pytest.raises(SystemExit) as ended:
            gpu.main()
        assert int(ended.value.code or 0) == status


def test_every_bound_names_what_is_measured() -> None:
    with (BENCHMARKS / "results" / "step_time_gpu.csv").open(newline="") as file:
        measured = {(row["workload"], row["contender"]) for row in csv.DictReader(file)}
    for workload, contender, limits in gpu.BOUNDS:
        for name in (contender, *limits):
            assert (workload, name) in measured


# ----------------------------------------------------------------------------------------------
# Two commits
# ----------------------------------------------------------------------------------------------

# A package whose step sleeps. It is none of the installed one's.
PACKAGE = """
import time
from types import SimpleNamespace

class ASGLD:
    backends = [SimpleNamespace(name="fused", reason="of a test")]
    def __init__(self, params):
        self.params = params
    def zero_grad(self, set_to_none):
        for p in self.params:
            p.grad = None
    def step(self):
        assert all(p.grad is not None for p in self.params)
        print("not a reply")
        time.sleep(0.001)

class Unserved(ASGLD):
    backends = [SimpleNamespace(name="foreach", reason="of a test")]

NetworkASGLD = ASGLD
"""


def test_two_commits_are_measured_in_turn_and_a_step_without_a_kernel_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    package = tmp_path / "tree" / "src" / "asgld"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE)
    tree = (tmp_path / "tree").resolve()
    with commits.Worker(tree, "cpu", None) as worker:  # one process in both places
        times = commits.compare(
            [worker, worker], [(2, (3,)), (1, (2, 2))], "cpu", makes=2, rounds=2, seconds=0.02
        )
        worker.ask("make", [(1, (2,))])
        with pytest.raises(commits.Refused, match=r"tree: .*Unserved: of a test"):
            worker.ask("build", "Unserved")
    assert set(times) == {(o, m, "wall") for o in commits.OPTIMIZERS for m in (False, True)}
    for old_times, new_times in times.values():
        row = commits.row_of(old_times, new_times)
        assert row["rounds"] == 4
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
    assert commits.build_native(tree, tmp_path / "native") is not None  # there is no source


def test_a_tree_is_called_by_its_commit_only_if_it_is_a_checkout(tmp_path: Path) -> None:
    assert commits.name_of((BENCHMARKS / "results").resolve()) == "results"
    assert commits.name_of(tmp_path) == tmp_path.name


def test_interval_of_a_median() -> None:
    # 18 values: the fifth and the fourteenth hold the median in 96.9 of 100 cases.
    assert commits.interval([float(i) for i in range(18, 0, -1)]) == (5.0, 14.0)
    assert commits.interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
