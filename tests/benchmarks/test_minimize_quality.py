"""How the comparison counts at the function, and what it makes of verdicts."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
quality = importlib.import_module("minimize_quality")
collection = importlib.import_module("minimize_set")
sys.path.remove(str(ROOT / "benchmarks"))


def _tally() -> Any:
    return quality.Tally(collection.FUNCTIONS["wood"].fun)


def _counts(tally: Any) -> tuple[int, int, int]:
    return tally.values, tally.gradients, tally.products


def _gradient(tally: Any, x: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = x.clone().requires_grad_(True)
    return leaf, torch.autograd.grad(tally(leaf), leaf, **options)[0]


def test_values_and_gradients_are_counted_once() -> None:
    tally, x = _tally(), torch.ones(4, dtype=torch.float64)
    tally(x)
    assert _counts(tally) == (1, 0, 0)
    _, gradient = _gradient(tally, x + 1)
    assert _counts(tally) == (2, 1, 0)
    tally((x + 1).requires_grad_(True))  # never differentiated
    assert _counts(tally) == (3, 1, 0)
    assert tally.trajectory == [(3, pytest.approx(float(gradient.norm())))]
    _gradient(tally, x)
    assert tally.calls_until(1e-12) == 6
    assert tally.calls_until(-1) == math.inf


def test_products_and_hessians_are_counted_by_column() -> None:
    tally, x = _tally(), torch.ones(4, dtype=torch.float64)
    leaf, gradient = _gradient(tally, x, create_graph=True)
    torch.autograd.grad(gradient, leaf, x, retain_graph=True)
    assert _counts(tally) == (0, 0, 1)
    columns = torch.eye(4, dtype=torch.float64)
    torch.autograd.grad(gradient, leaf, columns, is_grads_batched=True)
    assert _counts(tally) == (0, 0, 5)
    assert tally.calls == 10


def test_rows_at_once_are_counted_each() -> None:
    tally = _tally()
    rows = torch.ones(3, 4, dtype=torch.float64, requires_grad=True)
    values = torch.func.vmap(tally)(rows)
    torch.autograd.grad(values.sum(), rows)
    assert _counts(tally) == (3, 3, 0)


def test_scipy_is_counted_as_it_counts_itself() -> None:
    pytest.importorskip("scipy")
    tally = _tally()
    outcome = quality.by_scipy("BFGS")(tally, np.zeros(4))
    assert outcome.success
    assert tally.calls == outcome.library_calls
    assert tally.values == tally.gradients


def test_other_units_are_the_same_function() -> None:
    function = collection.FUNCTIONS["wood"]
    x = collection.random_start(function, 0)
    for of_f, of_x in quality.variants(function).values():
        other = quality.scaled(function, of_f, of_x)
        value = float(other.fun(torch.from_numpy(of_x * x)))
        assert value == pytest.approx(of_f * float(function.fun(x)), rel=1e-10)
        assert np.all(of_x * x >= other.low)
        assert np.all(of_x * x <= other.high)


def _row(**changes: Any) -> dict[str, Any]:
    row = dict.fromkeys(quality.COLUMNS, "")
    row |= {"part": "starts", "function": "wood", "index": "0", "dim": "4", "method": quality.OURS}
    return row | changes


def test_false_and_withheld_minima() -> None:
    rows = [
        _row(kind="MINIMUM", truth="minimum"),
        _row(kind="MINIMUM", truth="saddle", decrease="1e-3"),
        _row(kind="MINIMUM", truth="saddle", decrease="1e-9"),
        _row(kind="MINIMUM", truth="none"),
        _row(kind="MINIMUM", truth="flat"),
        _row(kind="DEGENERATE", truth="minimum"),
        _row(kind="STRICT_SADDLE", truth="saddle"),
        _row(kind="RAISED", error="ValueError: no"),
        _row(kind="MINIMUM"),  # was not checked
    ]
    found = quality.confusion(rows)
    assert found["runs"] == 8
    assert found["false"] == 3
    assert found["false_with_promise"] == 1
    assert len(found["minimum_at_flat"]) == 1
    assert found["withheld"] == 1
    assert len(found["raised"]) == 1


def test_the_lines_are_medians_over_problems(tmp_path: Path) -> None:
    rows = []
    for function, factor in (("a", 1.0), ("b", 1.2), ("c", 50.0)):
        for index in range(3):
            common = {"function": function, "index": str(index), "truth": "minimum"}
            rows.append(
                _row(**common, method=quality.BFGS, calls="100", calls_to_target="100", seconds="1")
            )
            rows.append(
                _row(**common, kind="MINIMUM", calls=f"{factor * 100 + 8}", seconds="3",
                     calls_to_target=f"{factor * 100}")
            )  # fmt: skip
    figures, lines = quality.summarize(rows)
    values = {line["line"]: line["value"] for line in lines}
    assert values["calls until BFGS's gradient norm / BFGS, median"] == pytest.approx(1.2)
    assert values["(all calls - 2 d) / BFGS, median"] == pytest.approx(1.2)
    assert values["processor seconds / BFGS, median"] == pytest.approx(3)
    assert all(line["passed"] for line in lines)
    assert quality.table(figures, lines).count("passed") == len(lines)
    # What is written can be read, and new rows replace old ones.
    quality.write_rows(tmp_path / "rows.csv", rows)
    again = quality.read_rows(tmp_path / "rows.csv")
    assert len(quality.merge(again, rows[:1])) == len(rows)


def test_units_that_change_a_verdict_are_found() -> None:
    common = {"part": "scales", "truth": "minimum"}
    rows = [
        _row(**common, kind="MINIMUM"),
        _row(**common, kind="MINIMUM", variant="f 1e8"),
        _row(**common, kind="DEGENERATE", variant="x 1e4"),
    ]
    figures, lines = quality.summarize(rows)
    assert len(figures["scales"]["changed"]) == 1
    changed = next(line for line in lines if "units" in line["line"])
    assert changed["value"] == 0.5
    assert not changed["passed"]


def test_held_out_functions_are_not_run_unless_asked() -> None:
    tasks = [task for part in quality.NAMES for task in quality.tasks_of(part, collection.select())]
    assert not any(task.function.is_held_out for task in tasks)
    held_out = collection.select(held_out=True)
    assert all(task.function.is_held_out for task in quality.tasks_of("starts", held_out))
