"""The page that shows how to add a problem: its example runs, and the new name is known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import ROOT
from typer.testing import CliRunner

from asgld.problems import PROBLEMS, FiniteSum, problem, problem_names, problem_options

PAGE = ROOT / "docs" / "how-to" / "adding-a-problem.md"


@pytest.fixture(scope="module")
def names() -> Iterator[dict[str, Any]]:
    """The names that the example defines; the registry is left as it was."""
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    namespace: dict[str, Any] = {"__name__": "example"}
    # Without `dont_inherit` this file's `annotations` import would reach the example, whose
    # dataclass would then look up its annotations in a module that does not exist.
    exec(compile(block, PAGE.name, "exec", dont_inherit=True), namespace)
    yield namespace
    del PROBLEMS["double-wells"]


def test_example_leaves_its_saddle(names: dict[str, Any]) -> None:
    assert float(names["result"].values.max()) < 0.01


def test_a_registered_problem_is_known_by_name(names: dict[str, Any]) -> None:
    assert problem_names()[-1] == "double-wells"
    assert problem_options("double-wells") == {"dim": 4}
    assert problem("double-wells", dim=3) == names["DoubleWells"](dim=3)
    with pytest.raises(ValueError, match=r"'size'.*dim"):
        problem("double-wells", size=3)


def test_the_command_line_minimizes_a_registered_problem(names: dict[str, Any]) -> None:
    from asgld.cli import build_app

    shown = CliRunner().invoke(build_app(), ["minimize", "double-wells", "-o", "dim=3"])
    assert shown.exit_code == 0, shown.output
    assert "MINIMUM" in shown.output or "minimum" in shown.output


def test_a_finite_sum_needs_data_and_a_mean_only() -> None:
    class Spread(FiniteSum):
        dim, num_samples = 2, 3
        rows = (torch.arange(6, dtype=torch.float64).reshape(3, 2),)

        def mean_value(self, x, rows):
            return (rows[0] - x.unsqueeze(-2)).square().sum(-1).mean(-1)

        def mean_grad(self, x, rows):
            return 2.0 * (x - rows[0].mean(-2))

        def state_facts(self):
            raise NotImplementedError

    spread, x = Spread(), torch.ones(2, dtype=torch.float64)
    assert spread.sample_grad(x, torch.tensor([0])).tolist() == [2.0, 0.0]
    assert spread.sample_value(x, torch.tensor([0])).item() == 1.0
    assert spread.hessian(x).tolist() == [[2.0, 0.0], [0.0, 2.0]]
    assert spread.start(4, seed=1).shape == (4, 2)
