"""The page that shows how to add a method: its example runs, is short, and keeps its promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ROOT

from asgld.methods import Method
from asgld.oracle import Oracle
from asgld.problems import problem
from asgld.run import run

PAGE = ROOT / "docs" / "adding-a-method.md"


def execute(code: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "example"}
    # This file's `annotations` import must not reach the example: dataclasses would look up the
    # annotations, then strings, in a module that is not there.
    exec(compile(code, PAGE.name, "exec", dont_inherit=True), namespace)
    return namespace


@pytest.fixture(scope="module")
def example() -> str:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(block)


@pytest.fixture(scope="module")
def names(example: str) -> dict[str, Any]:
    """What the example defines, without the run at its end."""
    definitions, _, _ = example.partition("\noctopus = ")
    return execute(definitions)


def test_example_has_under_a_hundred_lines(example: str) -> None:
    assert len(example.splitlines()) < 100


def test_example_passes_all_saddles(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    namespace = execute(example)
    result, minimum = namespace["result"], namespace["octopus"].facts.minimum
    assert result.values.tolist() == pytest.approx([minimum] * 8, abs=1e-2)
    assert f"the minimum is {minimum:.3f}" in capsys.readouterr().out


def test_example_is_a_method_and_leaves_saddles_by_its_kicks(names: dict[str, Any]) -> None:
    kind = names["KickedHeavyBall"]
    assert isinstance(kind(), Method)
    f = problem("strict-saddle", dim=6, rotated=True)
    with_kicks, without = (
        run(Oracle(f), kind(lr=0.05, radius=radius), torch.zeros(2, 6), max_steps=400)
        for radius in (1e-2, 0.0)
    )
    assert bool((with_kicks.values < -0.2).all())
    assert set(with_kicks.counts.total()) == {"grad", "samples", "gradient_equivalents"}
    assert not without.x.any()


def test_example_resumes_with_the_same_bits(names: dict[str, Any], tmp_path: Path) -> None:
    f = problem("strict-saddle", dim=6)
    method = names["KickedHeavyBall"](lr=0.05)
    x0 = torch.zeros(3, 6)
    straight = run(Oracle(f), method, x0, max_steps=120)
    path = tmp_path / "checkpoint"
    run(Oracle(f), method, x0, max_steps=60, checkpoint=path)
    resumed = run(Oracle(f), method, x0, max_steps=120, checkpoint=path)
    assert torch.equal(straight.x, resumed.x)


def test_example_replicas_do_not_depend_on_each_other(names: dict[str, Any]) -> None:
    f = problem("strict-saddle", dim=6)
    method = names["KickedHeavyBall"](lr=0.05)
    three, two = (run(Oracle(f), method, torch.zeros(n, 6), max_steps=50).x for n in (3, 2))
    assert torch.equal(three[:2], two)


def test_example_rejects_wrong_options(names: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"momentum=1.0: need"):
        names["KickedHeavyBall"](momentum=1.0)
