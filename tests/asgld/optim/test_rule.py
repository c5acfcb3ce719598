"""Every knob is declared once, in `asgld.optim.rule`. What repeats the names for its readers' sake
is compared with the declaration here."""

from __future__ import annotations

import ast
import inspect
import math
import re
from typing import Any

import pytest
import torch
from helpers import ROOT, make_parameters

import asgld
from asgld import reference
from asgld.optim import rule
from asgld.optim.rule import KNOBS, NUMBERS, Rule

# Knobs that say how a step is run, not what it computes.
HOW = (
    "seed",
    "stochastic_rounding",
    "sum_dtype",
    "capturable",
    "differentiable",
    "foreach",
    "fused",
    "share_work",
)


def test_constructor_has_every_knob_and_its_default() -> None:
    found = inspect.signature(asgld.ASGLD.__init__).parameters
    declared = {name: Rule._field_defaults[name] for name in KNOBS}
    given = {n: p.default for n, p in found.items() if n not in ("self", "params", "others")}
    assert given == declared
    assert asgld.ASGLD(make_parameters([(2,)])).defaults == declared


def test_reference_has_every_knob_that_changes_the_path() -> None:
    found = inspect.signature(reference.asgld).parameters
    beside = {"gradient", "x", "normals", "lag"}
    assert set(found) - beside == KNOBS.keys() - set(HOW)
    for name, parameter in found.items():
        if name not in beside and parameter.default is not inspect.Parameter.empty:
            assert parameter.default == Rule._field_defaults[name]


def test_c_kernel_takes_the_numbers_in_their_order() -> None:
    text = (ROOT / "native" / "asgld.c").read_text()
    (body,) = re.findall(r"typedef struct \{([^}]*)\} options;", text)
    doubles = re.findall(r"double ([^;]+);", re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL))
    names = [name.strip() for line in doubles for name in line.split(",")]
    assert names == [*NUMBERS, "grad_factor"]


def test_gpu_kernel_takes_the_numbers_in_their_order() -> None:
    """Read as text: importing the kernels needs Triton."""
    tree = ast.parse((ROOT / "src" / "asgld" / "optim" / "_triton_kernels.py").read_text())
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            found = [ast.unparse(name) for name in node.targets[0].elts]
            if names or found[0] == "LEARNING_RATE":
                names += found
            if found[-1] == "NOISE_BOUND":
                break
    other = {"LEARNING_RATE": "lr", "INERTIA": "momentum", "NOISE_RATIO": "noise"}
    assert [other.get(name, name.lower()) for name in names] == list(NUMBERS)


def test_help_describes_every_knob() -> None:
    text = str(asgld.ASGLD.__doc__)
    for name, knob in KNOBS.items():
        assert f"\n        {name}: " in text
        assert knob.meaning.split()[-1].lower() in text.lower()


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["1e-3", True, torch.ones(2), [0.1], math.nan, None, 1j])
def test_what_is_no_number_is_refused_with_the_knobs_name(name: str, value: Any) -> None:
    if value is None and KNOBS[name].optional:
        return
    word = "[Ll]earning rate|Tensor lr" if name == "lr" else name
    with pytest.raises((TypeError, ValueError), match=word):
        asgld.ASGLD(make_parameters([(2,)]), **{name: value})


@pytest.mark.parametrize("name", NUMBERS)
def test_ends_of_a_range_are_what_the_message_says(name: str) -> None:
    knob = KNOBS[name]
    assert knob.low is not None
    for value, belongs in ((knob.low, knob.opens), (knob.high, knob.closes)):
        assert knob.admits(value) == belongs
        sign = "<=" if belongs else "<"
        if math.isfinite(value):
            said = knob.need(name)
            assert (
                f"{value:g} {sign} {name}" in said
                or f"{name} {sign} {value:g}" in said
                or (f"{name} >= {value:g}" in said)
            )


@pytest.mark.parametrize(
    ("word", "ours"), [("betas", "momentum.*decay"), ("eps", "delta"), ("nesterov", "nothing")]
)
@pytest.mark.parametrize("build", [asgld.ASGLD, asgld.NetworkASGLD, asgld.SGLD, asgld.AGLD])
def test_words_of_adam_get_an_error_that_names_ours(word: str, ours: str, build: Any) -> None:
    with pytest.raises(TypeError, match=f"{word}.*{ours}"):
        build(make_parameters([(2,)]), **{word: 0.9})
    with pytest.raises(ValueError, match=f"{word}.*{ours}"):
        build([{"params": make_parameters([(2,)]), word: 0.9}])


@pytest.mark.parametrize("build", [asgld.ASGLD, asgld.NetworkASGLD, asgld.PSGLD])
@pytest.mark.parametrize("lr", [-1.0, math.nan, "1e-3"])
def test_bad_lr_is_named_by_every_preset(build: Any, lr: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="Invalid learning rate"):
        build(make_parameters([(2,)]), lr=lr)


@pytest.mark.parametrize(
    ("knobs", "dtype"),
    [
        ({"decay": 0.9, "d_init": 0.0, "delta": 0.0}, torch.float64),
        ({"decay": 0.9, "d_init": 1.0, "delta": 0.0}, torch.float32),
        ({"d_init": 1e-50, "delta": 0.0}, torch.float32),
        ({"d_init": 1e-50}, torch.bfloat16),
        ({"alpha": 0.0, "beta": 1.0, "d_init": 1e-50}, torch.complex64),
    ],
)
def test_a_metric_that_can_be_zero_is_refused(knobs: dict[str, Any], dtype: torch.dtype) -> None:
    """At a zero gradient it would give 0/0."""
    p = torch.zeros(2, dtype=dtype, requires_grad=True)
    with pytest.raises(ValueError, match="need a positive number"):
        asgld.ASGLD([p], **knobs)


def test_a_metric_that_is_tiny_in_float64_is_allowed_there() -> None:
    p = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = asgld.ASGLD([p], lr=1e-3, sigma=0.0, d_init=1e-50, delta=0.0)
    p.grad = torch.zeros_like(p)
    optimizer.step()
    assert (p == 0).all()


def test_declaration_has_a_meaning_for_every_knob() -> None:
    assert set(KNOBS) == set(Rule._fields)
    assert all(knob.meaning for knob in KNOBS.values())
    assert rule.describe().count("\n") >= len(KNOBS) - 1
