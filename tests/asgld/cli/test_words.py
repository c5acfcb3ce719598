"""The words of the command line: their order, a study that is missing, disks that fail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import asgld
from asgld import cli


def offer(monkeypatch: pytest.MonkeyPatch, **words: Callable[[], Any]) -> None:
    """Let the installed packages offer these words and no others; each value loads a command."""
    entries = [SimpleNamespace(name=name, load=load) for name, load in words.items()]

    def entry_points(group: str, name: str | None = None) -> list[Any]:
        return [entry for entry in entries if name in (None, entry.name)]

    monkeypatch.setattr(cli, "entry_points", entry_points)


def shown_words(output: str) -> list[str]:
    columns = [line.strip("│ ").split(" ")[0] for line in output.splitlines()]
    return [word for word in columns if word in (*cli._WORDS, "extra")]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--size", "full"], ["some", "words"]])
@pytest.mark.parametrize("words", [["reproduce"], ["compare", "--problem", "octopus"], ["table1"]])
def test_without_the_study_its_words_say_how_to_get_it(
    words: list[str], arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch)
    shown = CliRunner().invoke(cli.build_app(), [*words, *arguments])
    assert shown.exit_code == 1
    assert isinstance(shown.exception, SystemExit)  # no traceback
    (line,) = shown.stderr.strip().splitlines()
    assert f"`{' '.join(words[:2])}`" in line
    assert "pip install asgld-study, or ./study in a clone" in line
    assert not shown.stdout


def test_a_missing_extra_is_named_for_an_index_and_for_a_clone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build_app() -> None:
        raise ImportError("no typer")

    monkeypatch.setattr(cli, "build_app", build_app)
    with pytest.raises(SystemExit, match=r"no typer: .*'asgld\[cli\]', or '\.\[cli\]' in a clone"):
        cli.main()


def test_comparing_on_a_problem_is_the_study_s_and_all_else_the_library_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def study(problem: str = "", jobs: int = 1) -> None:
        print(f"study: {problem}, {jobs}")

    offer(monkeypatch, compare=lambda: study)
    app = cli.build_app()
    for arguments in (["--problem", "octopus", "--jobs", "3"], ["--jobs=3", "--problem=octopus"]):
        shown = CliRunner().invoke(app, ["compare", *arguments])
        assert (shown.exit_code, shown.stdout) == (0, "study: octopus, 3\n")
    assert "--fun" in CliRunner().invoke(app, ["compare", "--help"]).stdout
    assert "--fun" not in CliRunner().invoke(app, ["compare", "--problem", "x", "--help"]).stdout
    assert CliRunner().invoke(app, ["compare"]).exit_code == 2
    assert "_compare" not in CliRunner().invoke(app, ["--help"]).stdout


def test_version_is_told() -> None:
    shown = CliRunner().invoke(cli.build_app(), ["--version"])
    assert (shown.exit_code, shown.stdout.strip()) == (0, f"asgld {asgld.__version__}")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["--nonsense"],
        ["minimize", "octopus", "--nonsense"],
        ["minimize", "octopus", "--replicas", "0"],
        ["minimize", "octopus", "--replicas", "few"],
        ["minimize", "[bold]octopus[/bold]"],
        ["doctor", "now"],
        ["theory", "--dim", "0"],
        ["compare", "--problem"],
    ],
)
def test_bad_usage_is_one_line_on_stderr_and_status_two(arguments: list[str]) -> None:
    shown = CliRunner().invoke(cli.build_app(), arguments)
    assert shown.exit_code == 2
    assert isinstance(shown.exception, SystemExit)
    assert not shown.stdout
    assert len(shown.stderr.strip().splitlines()) == 1


def test_text_of_users_is_no_markup() -> None:
    shown = CliRunner().invoke(cli.build_app(), ["theory", "--item", "[red]:smile:[/red]"])
    assert "[red]:smile:[/red]" in shown.stderr


def test_words_come_in_one_order_with_and_without_the_study(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = ["reproduce", "minimize", "compare", "table1", "theory", "doctor"]
    assert shown_words(CliRunner().invoke(cli.build_app(), ["--help"]).output) == order
    offer(monkeypatch, extra=lambda: lambda: None, _hidden=lambda: print)
    shown = CliRunner().invoke(cli.build_app(), ["--help"]).output
    assert shown_words(shown) == [*order, "extra"]
    assert "hidden" not in shown


def test_a_word_that_cannot_be_loaded_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load() -> None:
        raise ImportError("reproduce needs joblib: pip install joblib")

    offer(monkeypatch, reproduce=load)
    app = cli.build_app()
    broken = CliRunner().invoke(app, ["reproduce", "--help"])
    assert (broken.exit_code, "joblib" in broken.stderr) == (1, True)
    assert CliRunner().invoke(app, ["theory", "--item", "Theorem 3"]).exit_code == 0


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device", "paper.md"), PermissionError(13, "no", "x")]
)
def test_a_failing_disk_is_one_line(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    def spill() -> None:
        raise error

    offer(monkeypatch, spill=lambda: spill)
    monkeypatch.setattr(sys, "argv", ["asgld", "spill"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    message = caught.value.code  # text: it goes to stderr, and the status is 1
    assert isinstance(message, str)
    assert len(message.splitlines()) == 1
    assert error.strerror in message
    assert error.filename in message
