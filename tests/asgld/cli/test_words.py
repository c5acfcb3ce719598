"""The words of the command line: their order, a study that is missing, disks that fail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

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
@pytest.mark.parametrize("word", ["reproduce", "compare", "table1"])
def test_without_the_study_its_words_say_how_to_get_it(
    word: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch)
    shown = CliRunner().invoke(cli.build_app(), [word, *arguments])
    assert shown.exit_code == 1
    assert isinstance(shown.exception, SystemExit)  # no traceback
    (line,) = shown.output.strip().splitlines()
    assert f"`{word}`" in line
    assert "pip install asgld-study" in line


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
    assert (broken.exit_code, "joblib" in broken.output) == (1, True)
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


def test_an_option_is_a_key_and_a_value() -> None:
    assert cli.key_value("spectrum=(2, 1)") == ("spectrum", (2, 1))
    assert cli.key_value("loss=a=b") == ("loss", "a=b")
    with pytest.raises(ValueError, match=r"'lr'.*key=value"):
        cli.key_value("lr")
