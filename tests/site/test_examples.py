"""The examples run, and show what they say."""

from __future__ import annotations

import runpy
from typing import Any

import pytest
from helpers import ROOT

from asgld.curvature.points import Kind

EXAMPLES = ROOT / "examples"


def run_example(name: str) -> Any:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()


def test_every_example_is_tested() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    here = {"positive_parameters", "factorization_from_saddle", "digits_network"}
    in_frameworks = {
        "ddp", "fsdp2", "plan_cluster",
        "with_accelerate", "with_lightning", "with_tensorboard", "with_trainer",
    }  # fmt: skip
    assert names == here | in_frameworks


def test_positive_parameters_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_example("positive_parameters")
    assert result.success
    # Five standard errors of 2000 draws: 0.075 and 0.0135, as the example prints them.
    assert abs(float(result.x[0]) - 2.5) < 5 * 0.075
    assert abs(float(result.x[1]) - 0.4) < 5 * 0.0135
    assert "+-" in capsys.readouterr().out


def test_factorization_leaves_its_saddle_by_noise_or_by_curvature() -> None:
    kinds = {name: result.kind for name, result in run_example("factorization_from_saddle").items()}
    assert kinds == {
        "lbfgs": Kind.STRICT_SADDLE,
        "asg": Kind.STRICT_SADDLE,
        # The factors may be rotated: minimizers form a valley.
        "agld": Kind.DEGENERATE,
        "agld, 4 chains": Kind.DEGENERATE,
        "asg, escape": Kind.DEGENERATE,
    }


def test_network_leaves_its_saddle_by_noise_alone(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    results = run_example("digits_network")
    assert results["asg"].kind is Kind.STRICT_SADDLE
    assert results["asgld"].kind is Kind.MINIMUM
    assert float(results["asgld"].search.values[0]) < 0.6 * results["asg"].fun
