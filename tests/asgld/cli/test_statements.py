"""`asgld theory`: what it says, refuses and draws."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from asgld import cli


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["published", "corrected", "k^-0.5 log k"]),
        (["--alpha", "1.5", "--beta", "2"], ["k^-1.25", "k^-0.25"]),
        (["--alpha", "1", "--beta", "0.3"], ["anneal"]),
        (["--method", "agld", "--alpha", "0"], ["k^-1 log k"]),
        (["--item", "Theorem 3"], ["refuted"]),
        (["--item", "all"], ["Lemma 2", "Theorem 4"]),
    ],
)
def test_theory_tells_what_theory_says(arguments: list[str], words: list[str]) -> None:
    result = CliRunner().invoke(cli.build_app(), ["theory", *arguments])
    assert result.exit_code == 0, result.output
    for word in words:
        assert word in result.output


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--beta", "-1"], "beta=-1"),
        (["--alpha", "nan"], "alpha=nan"),
        (["--lr", "0"], "lr=0"),
        (["--gamma", "-1"], "gamma=-1"),
        (["--method", "adam"], "'adam'"),
        (["--item", "Theorem 9"], "Theorem 9"),
        (["--measure", "escape", "--out", "nowhere/rows.csv"], "nowhere"),
        (["--plot", __file__], "is a file"),
    ],
)
def test_theory_refuses_nonsense(arguments: list[str], word: str) -> None:
    result = CliRunner().invoke(cli.build_app(), ["theory", *arguments])
    assert result.exit_code == 2
    assert word in result.stderr
    assert not result.stdout
    assert len(result.stderr.splitlines()) == 1


def test_theory_draws_the_maps(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.build_app(), ["theory", "--plot", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert len(list(tmp_path.glob("*.png"))) == 3
