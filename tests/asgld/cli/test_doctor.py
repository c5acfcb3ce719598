"""`asgld doctor`."""

from __future__ import annotations

from typer.testing import CliRunner

from asgld import cli


def test_doctor_passes_here() -> None:
    result = CliRunner().invoke(cli.build_app(), ["doctor"])
    assert result.exit_code == 0, result.output
    assert "FAILED" not in result.output
