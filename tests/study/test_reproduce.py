"""The runner: same numbers however it is run, whatever happens on the way; and its command."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from asgld import cli
from asgld_study.experiments import declare
from asgld_study.experiments.declare import Experiment, Task
from asgld_study.experiments.declared import EXPERIMENTS
from asgld_study.reproduction import page, runner

# Experiments that take little time and yet have several tasks, figures and claims.
FEW = ("identities", "lag", "plateau", "noise")


def _square(x: int) -> dict[str, Any]:
    return {"x": x, "square": x * x}


def _fail(x: int) -> dict[str, Any]:
    raise RuntimeError(f"no luck with {x}")


def _experiment(name: str, *functions: Any) -> Experiment:
    tasks = [Task(function, {"x": i}) for i, function in enumerate(functions)]
    return Experiment(name, name, "?", lambda size: tasks)


def _values(outcomes: runner.Outcomes) -> dict[str, Any]:
    return {name: outcome.values for name, outcome in outcomes.items()}


def test_number_of_processes_changes_nothing(tmp_path: Path) -> None:
    chosen = runner.choose(FEW)
    one, two = (
        runner.run(chosen, "tiny", folder=tmp_path / str(jobs), jobs=jobs) for jobs in (1, 2)
    )
    assert _values(one) == _values(two)


def test_stored_results_are_used_again_and_equal_fresh_ones(tmp_path: Path) -> None:
    calls: list[int] = []

    def counted(x: int) -> dict[str, Any]:
        calls.append(x)
        return {"x": x, "third": 1 / 3}

    experiment = _experiment("one", counted, counted)
    first = runner.run([experiment], "tiny", folder=tmp_path)
    again = runner.run([experiment], "tiny", folder=tmp_path)
    assert calls == [0, 1]
    assert _values(first) == _values(again)


def test_a_half_written_result_is_measured_again(tmp_path: Path) -> None:
    experiment = _experiment("one", _square)
    runner.run([experiment], "tiny", folder=tmp_path)
    (path,) = tmp_path.glob("*.json")
    path.write_text(path.read_text()[:20])
    assert runner.run([experiment], "tiny", folder=tmp_path)["one"].values == [_square(0)]
    json.loads(path.read_text())


def test_keys_depend_on_options_and_on_the_function() -> None:
    keys = {Task(f, {"x": x}).key for f in (_square, _fail) for x in (0, 1)}
    assert len(keys) == 4
    assert Task(_square, {"x": 0}).key in keys


def test_keys_depend_on_the_code_but_not_on_its_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(source: str) -> str:
        monkeypatch.setattr(declare.inspect, "getsource", lambda _: source)
        declare._code.cache_clear()
        return Task(_square, {"x": 0}).key

    plain, spaced, changed = (key(source) for source in ("a = 1", "a  =  1  # why", "a = 2"))
    declare._code.cache_clear()
    assert plain == spaced
    assert plain != changed


def test_code_of_an_experiment_includes_what_it_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of the loop that experiments share must not leave their old results in use."""
    task = runner.choose(["lag"])[0].tasks(declare.SIZES["tiny"])[0]
    before, original = task.key, declare.inspect.getsource

    def edited(module: Any) -> str:
        extra = "changed = True" if module.__name__ == "asgld_study.experiments.chains" else ""
        return f"{original(module)}\n{extra}"

    monkeypatch.setattr(declare.inspect, "getsource", edited)
    declare._code.cache_clear()
    assert task.key != before
    declare._code.cache_clear()


def test_a_failing_experiment_is_shown_and_stops_nothing(tmp_path: Path) -> None:
    chosen = [_experiment("bad", _square, _fail), _experiment("good", _square)]
    outcomes = runner.run(chosen, "tiny", folder=tmp_path)
    assert outcomes["good"].errors == []
    assert outcomes["bad"].values == [_square(0)]
    assert "no luck with 1" in outcomes["bad"].errors[0]
    text = page.page(outcomes, [], {}, page.Context("tiny", {}, {}))
    assert "no luck with 1" in text
    # a failure is not kept, and equal tasks are kept once
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="only='nonsense': known are study"):
        runner.choose(["nonsense"])
    with pytest.raises(ValueError, match="size='huge'"):
        runner.run([], "huge", folder=Path("nowhere"))


def test_command_lists_refuses_and_writes(tmp_path: Path) -> None:
    app = cli.build_app()
    listed = CliRunner().invoke(app, ["reproduce", "--list"])
    assert listed.exit_code == 0
    for experiment in EXPERIMENTS:
        assert experiment.name in listed.output
    refused = CliRunner().invoke(app, ["reproduce", "--only", "nonsense"])
    assert refused.exit_code == 2
    assert "nonsense" in refused.output
    result = CliRunner().invoke(app, _arguments(tmp_path))
    assert result.exit_code == 0, result.output
    assert str(tmp_path / "report.html") in result.output.replace("\n", "")
    made = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert {"report.html", "ledger.csv", "ledger.json", "paper.md"} <= made
    for picture in ("lag", "plateau", "noise"):
        assert {f"figures/{picture}.svg", f"figures/{picture}.pdf"} <= made
    # claims whose experiments were not asked for are left out, not guessed
    claims = {row["claim"] for row in json.loads((tmp_path / "ledger.json").read_text())}
    assert claims == {"S1", "S2", "S3", "S7", "R9", "E5"}


@pytest.mark.slow
def test_killed_ten_times_the_report_is_the_same_byte_for_byte(tmp_path: Path) -> None:
    """kill -9 after each of ten numbers of results, then to the end; and once undisturbed."""
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    rng = random.Random(7)
    for _ in range(10):
        process = _start(broken)
        target = _stored(broken) + rng.randint(1, 3)
        while process.poll() is None and _stored(broken) < target:
            time.sleep(0.01)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for out in (broken, whole):
        process = _start(out)
        assert process.wait() == 0, (out / "log").read_text()
    for name in ("report.html", "ledger.csv", "paper.md", "figures/lag.svg", "figures/lag.pdf"):
        one, two = ((out / name).read_bytes() for out in (broken, whole))
        if name == "report.html":
            one, two = (page.without_times(text.decode()).encode() for text in (one, two))
        assert one == two, name


def _arguments(out: Path) -> list[str]:
    names = [part for name in FEW for part in ("--only", name)]
    return ["reproduce", "--size", "tiny", "--jobs", "1", "--out", str(out), *names]


def _start(out: Path) -> subprocess.Popen[bytes]:
    out.mkdir(exist_ok=True)
    with (out / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "asgld", *_arguments(out)],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _stored(out: Path) -> int:
    return len(list((out / "results").glob("*.json")))
