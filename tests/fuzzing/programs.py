"""What a case is: an optimizer, its parameters, and a list of operations, as plain data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch

import asgld
from asgld.prox import L1, ElasticNet

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    name: getattr(asgld, name) for name in ("ASGLD", "AGLD", "ASG", "SGLD", "PSGLD", "NetworkASGLD")
}
REFUSED = {
    "ASG": ("sigma", "beta", "noise"),
    "SGLD": ("alpha", "beta", "noise_bound"),
    "PSGLD": ("alpha", "beta"),
    "NetworkASGLD": ("alpha", "beta", "sigma", "noise_bound"),
}
BACKENDS: dict[str, dict[str, Any]] = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": None},
    "fused": {"foreach": None, "fused": True},
    "default": {"foreach": None, "fused": None},
}
POLAR = ("polar", "polar-row")
# The knobs that are illegal beside another shape of D than the paper's, with legal values.
BESIDE_MATRICES: dict[str, Any] = {"sum_dtype": None, "capturable": False, "prox": None}
BESIDE_POLAR: dict[str, Any] = {
    **BESIDE_MATRICES, "alpha": 1.0, "beta": 0.0, "clip": None, "opposed": 1.0, "noise_bound": None,
}  # fmt: skip


def backend_of(name: str, shape: Any) -> dict[str, Any]:
    """Return the knobs of a backend. A D that is no coordinate's has no kernel of its own and no
    lists: by default kernels apply directions, or lists do."""
    if shape == "coordinate":
        return BACKENDS[name]
    replaced = {"foreach": {"foreach": None, "fused": False}, "fused": BACKENDS["default"]}
    return replaced.get(name, BACKENDS[name])


def sizes_of_state(
    shape: tuple[int, ...], form: str, blocks: int
) -> dict[str, tuple[int, ...]] | None:
    """Return the shapes of the entries that a D of this form needs for a parameter, by name; None
    if the parameter does not hold as many matrices."""
    if form == "coordinate":
        return {"sum": shape}
    rows, *others = shape or (1,)
    if rows % blocks:
        return None
    if len(others) > 1 and 1 < blocks == rows:
        rows, *others = others
    else:
        rows //= blocks
    columns = math.prod(others)
    left, right = {"sum": (blocks, rows, rows)}, {"right": (blocks, columns, columns)}
    by_row = {"sum": (blocks, rows)}
    return {
        "scalar": {"sum": (blocks,)}, "row": by_row, "polar-row": by_row, "polar": {},
        "left": left, "both": {**left, **right},
    }[form]  # fmt: skip


# The elements of the largest sum that a case may need: "left" of a long vector is huge.
MOST_ELEMENTS = 10_000

# Legal values of every knob.
_LEGAL: dict[str, list[Any]] = {
    "lr": [0.1, 0.03, 0.5, 0.0, "tensor 0.05", "tensor [0.1]"],
    "alpha": [0.0, 1.0, 2.0, 0.7, 1.5],
    "beta": [0.0, 0.5, 1.0, 2.0, 1.3, math.inf],
    "sigma": [0.0, 0.1, 0.02],
    "delta": [0.01, 0.5, 1e-3],
    "d_init": [1.0, 0.3, 3.0],
    "weight_decay": [0.0, 0.1, 0.5],
    "seed": [0, 77, 2**63 + 5],
    "maximize": [False, True],
    "sum_dtype": [None, torch.float32, torch.bfloat16, torch.float64],
    "stochastic_rounding": [False, True],
    "decay": [None, 0.9, 0.99],
    "momentum": [0.0, 0.9, 0.5],
    "clip": [None, 0.25, 0.0],
    "annealing": [0.0, 1.0, 0.5],
    "opposed": [1.0, 0.0, -0.3, -1.0],
    "noise": [None, 0.3],
    "noise_bound": [None, 2.0],
    "capturable": [False, False, True],
    "shape": ["coordinate", "scalar", "row", "left", "both", *POLAR, *POLAR],
    "blocks": [1, 2, 3],
    "polar_by": ["express", "muon", "svd"],
    "share_work": [False, True],
    "prox": [None, L1(0.3), ElasticNet(0.1, 0.5)],
}
_ILLEGAL: dict[str, list[Any]] = {
    "lr": [-1.0, math.nan, "fast", None, "tensor [0.1, 0.2]", "tensor nan"],
    "alpha": [3.0, "one"],
    "beta": [-1.0],
    "sigma": [-1.0, math.nan],
    "delta": [-0.1],
    "d_init": [math.inf],
    "weight_decay": [math.inf],
    "seed": [-1, 0.5],
    "decay": [2.0],
    "momentum": [1.5],
    "clip": [-1.0],
    "annealing": [math.nan],
    "opposed": [2.0],
    "fused and foreach": [True],
    "shape": ["diagonal", None],
    "blocks": [0, -2, 1.5, "two"],
    "polar_by": ["newton", None],
    "share_work": ["yes", None],
    "prox": ["l1", 0.1],
}
ILLEGAL = [(name, value) for name, values in _ILLEGAL.items() for value in values]
DEFAULTS = asgld.ASGLD([torch.zeros(1)]).defaults
KNOBS = {name: values for name, values in _LEGAL.items() if name in DEFAULTS}
NO_KNOBS = {"foreach", "fused", "differentiable"}
# A sum keeps the dtype that it was made with.
CHANGEABLE = [*(name for name in KNOBS if name != "sum_dtype"), "shape", "shape", "blocks"]

SHAPES = [(), (0,), (3, 0), (1,), (2,), (5,), (16,), (33,), (4, 4), (3, 5), (8, 6), (2, 3, 4, 2),
          (3, 4, 5), (6, 4)]  # fmt: skip
LARGE = [(70,), (300,), (16, 40), (4099,), (20_000,)]
LAYOUTS = ["contiguous"] * 4 + ["transposed", "strided", "channels-last", "offset", "padded"]
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}
OTHER_DTYPES = {
    torch.float32: [torch.float64, torch.bfloat16, torch.float16],
    torch.float64: [torch.float32],
    torch.bfloat16: [torch.float32, torch.float16],
    torch.float16: [torch.float32, torch.bfloat16],
    torch.complex64: [torch.complex128],
    torch.complex128: [torch.complex64],
}
NARROWER = {torch.float32: [torch.bfloat16, torch.float16], torch.float64: [torch.float32]}
HAS_GRAD_DTYPE = hasattr(torch.zeros(1), "grad_dtype")
GRADIENTS = [
    "fresh", "none", "zero", "nan", "inf", "strided", "expanded", "expanded rows", "transposed",
    "channels-last", "offset", "padded", "negative", "conjugated", "alias", "alias transposed",
    "other dtype", "alias momentum", "alias sum",
]  # fmt: skip
MAX_STEP = 2**32 - 1

# Errors for users. Any other error, such as a KeyError, is a bug of the library.
ERRORS = (ValueError, TypeError, RuntimeError)

# Relative and absolute difference of twins after one step from equal values of the size of one.
# Normals are off by 5 units in the last place and powers by 3, and terms may cancel. Rounding to
# half precision, perhaps at random, adds one unit.
TOLERANCES = {
    torch.float32: (1e-5, 1e-5),
    torch.float64: (1e-12, 1e-12),
    torch.bfloat16: (2.0**-7, 1e-5),
    torch.float16: (2.0**-10, 1e-5),
}


class Finding(AssertionError):
    """Properties that do not hold, the worst first, and the operation after which they fail."""

    def __init__(self, faults: list[str], place: str) -> None:
        self.faults, self.place = faults, place
        super().__init__("; ".join(faults) + f" (at {place})")


@dataclasses.dataclass(frozen=True)
class Spec:
    """A parameter."""

    shape: tuple[int, ...]
    dtype: str
    layout: str
    seed: int


@dataclasses.dataclass(frozen=True)
class Program:
    """A case as plain data, which prints as text that a person can follow."""

    number: int
    optimizer: str
    options: dict[str, Any]
    groups: list[tuple[dict[str, Any], list[Spec]]]
    is_named: bool
    backend: str
    operations: list[tuple[Any, ...]]

    def __str__(self) -> str:
        def knobs(options: dict[str, Any]) -> str:
            return ", ".join(f"{name}={value!r}" for name, value in options.items())

        lines = [
            f"case {self.number}: {self.optimizer}({knobs(self.options)}), "
            f"{'named' if self.is_named else 'unnamed'}, {self.backend} against the loop"
        ]
        i = 0
        for number, (options, specs) in enumerate(self.groups):
            lines.append(f"  group {number}: {knobs(options)}")
            for spec in specs:
                lines.append(f"    parameter {i}: {spec.dtype} {spec.shape} {spec.layout}")
                i += 1
        for number, (name, *arguments) in enumerate(self.operations):
            lines.append(f"  {number}. {name.replace('_', ' ')} {' '.join(map(str, arguments))}")
        return "\n".join(lines)
