"""Where users already are: each framework runs the optimizer, and a resumed run has the same bits.

Frameworks warn of their own deprecations, which is not for these tests to judge.
"""

from __future__ import annotations

import logging
import os
import random
import re
import runpy
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ROOT

pytestmark = pytest.mark.filterwarnings("ignore")


def run_example(name: str, *arguments: Any) -> Any:
    return runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"](*arguments)


def torchrun(script: str, *arguments: object, ranks: int, restarts: int = 0) -> str:
    """Run a script of the repository on some ranks and return its output.

    Without restarts the ranks start by themselves: torch's launcher is one more import of torch.
    """
    script, environment = str(ROOT / script), {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [script, *map(str, arguments)]
    if restarts:
        command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        words = [*command, f"--max-restarts={restarts}", *words]
        # Else a restarted rank may read addresses of the first attempt (pytorch#135712).
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    processes = [
        subprocess.Popen(
            [sys.executable, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment
            if restarts
            else {**environment, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(1 if restarts else ranks)
    ]
    try:
        outputs = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, error) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, error
    return "".join(output for output, _ in outputs)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Frameworks set levels and handlers of loggers for good; take that back."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


def _assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


# ----------------------------------------------------------------------------------------------
# torchrun
# ----------------------------------------------------------------------------------------------


def _losses(output: str) -> list[float]:
    return [float(value) for value in re.findall(r"loss ([\d.]+)", output)]


def test_fsdp_example_resumes_on_another_number_of_ranks(tmp_path: Path) -> None:
    first = torchrun("examples/fsdp2.py", tmp_path, "--steps", 20, ranks=2)
    second = torchrun("examples/fsdp2.py", tmp_path, "--steps", 60, ranks=1)
    assert "begin at step 0 on 2 ranks" in first
    assert "begin at step 20 on 1 ranks" in second
    assert _losses(second)[-1] < 0.3  # targets have variance 0.5


@pytest.mark.slow
def test_killed_rank_restarts_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    torchrun("tests/fault_worker.py", whole, -1, 0, ranks=2)
    chance = random.Random(8)
    victim, fatal_step = chance.randrange(2), chance.randrange(9, 12)
    output = torchrun("tests/fault_worker.py", broken, victim, fatal_step, ranks=2, restarts=1)
    starts = [int(step) for step in re.findall(r"begin at step (\d+)", output)]
    # The save of step 4 was waited for; that of step 8 may or may not have ended before the kill.
    assert starts in ([0, 4], [0, 8])
    _assert_same(torch.load(broken / "params.pt"), torch.load(whole / "params.pt"))


# ----------------------------------------------------------------------------------------------
# A cluster, planned
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("data", "tensor"), [(8, 2), (5, 3)])  # the second, unevenly
def test_planned_cluster_gives_each_element_its_own_counter(data: int, tensor: int) -> None:
    result = run_example("plan_cluster", data, tensor)
    assert result["parameters"] == 70_553_706_496
    assert result["local"] == result["momenta"]
    assert result["sums"] < result["local"]  # matrices have one for each row
    assert result["streams"] == result["tensors"] == 723
    assert result["tiled"]


@pytest.mark.slow
def test_plan_of_a_large_cluster_is_what_the_page_shows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_example("plan_cluster")["tiled"]
    page = (ROOT / "benchmarks" / "tables" / "scale.md").read_text()
    for line in capsys.readouterr().out.splitlines():
        assert line in page


# ----------------------------------------------------------------------------------------------
# Frameworks
# ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quiet")
def test_lightning_resumes_bit_for_bit() -> None:
    pytest.importorskip("lightning")
    results = run_example("with_lightning")
    assert results["loss"] < 0.1
    _assert_same(results["whole"], results["resumed"])


@pytest.mark.usefixtures("quiet")
def test_accelerate_resumes_bit_for_bit(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("accelerate")
    whole, resumed = run_example("with_accelerate")
    assert _losses(capsys.readouterr().out)[-1] < 0.1
    _assert_same(whole, resumed)


@pytest.mark.usefixtures("quiet")
def test_trainer_resumes_bit_for_bit() -> None:
    pytest.importorskip("transformers")
    results = run_example("with_trainer")
    # log(4) = 1.39 without learning; only the first letter of twelve cannot be told.
    assert results["loss"] < 0.2
    _assert_same(results["whole"], results["resumed"])


@pytest.mark.usefixtures("quiet")
def test_tensorboard_shows_what_the_run_says(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run_example("with_tensorboard", tmp_path)
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    series = {tag: [e.value for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert series.keys() == {
        "loss",
        "temperature/largest",
        "temperature/mean",
        "curvature/lambda_min",
        "certificate/gradient_norm",
    }
    for tag in ("temperature/largest", "temperature/mean", "certificate/gradient_norm"):
        assert series[tag] == sorted(series[tag], reverse=True), tag
    assert series["curvature/lambda_min"][0] < -1.0
    assert series["curvature/lambda_min"][-1] > -0.1
    assert series["loss"][-1] < 0.1 * series["loss"][0]
