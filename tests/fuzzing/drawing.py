"""Random programs. A number is a case, the same in every run."""

from __future__ import annotations

import random
from typing import Any

from fuzzing.operations import DAMAGES
from fuzzing.programs import (
    BACKENDS,
    BESIDE_MATRICES,
    BESIDE_POLAR,
    CHANGEABLE,
    DTYPES,
    GRADIENTS,
    ILLEGAL,
    KNOBS,
    LARGE,
    LAYOUTS,
    MAX_STEP,
    OPTIMIZERS,
    POLAR,
    REFUSED,
    SHAPES,
    Program,
    Spec,
)  # fmt: skip

# Entries of a state that operations change.
STATES = ["sum", "momentum", "momentum", "right"]
_STATE_LAYOUTS = ["contiguous", "strided", "transposed", "negative"]


def generate(number: int, backend: str | None = None) -> Program:
    """Return the program of a number; `backend` replaces the drawn one."""
    r = random.Random(number)
    optimizer = r.choices(list(OPTIMIZERS), [6, 1, 1, 1, 1, 2])[0]
    options = _draw_options(r, optimizer)
    if r.random() < 0.3:
        forms = [form for form in KNOBS["shape"] if form not in POLAR or optimizer not in REFUSED]
        knobs = _draw_matrices(r, forms if optimizer != "NetworkASGLD" else KNOBS["shape"])
        options |= {k: v for k, v in knobs.items() if k not in REFUSED.get(optimizer, ())}
    dtypes = r.choices(list(DTYPES), [10, 3, 3, 2, 2, 1], k=1 if r.random() < 0.6 else 4)
    total = r.randint(1, 4)
    groups: list[tuple[dict[str, Any], list[Spec]]] = []
    left = total
    for i in range(min(r.randint(1, 3), total)):
        count = left if i == 2 else r.randint(1, left)
        own = {}
        if r.random() < 0.3:
            own = {
                name: value
                for name, value in _draw_options(r, optimizer).items()
                if name in ("lr", "sigma", "weight_decay", "maximize", "seed", "delta")
            }
            if options.get("noise") is not None:
                own.pop("sigma", None)
            if options.get("prox") is not None:
                own.pop("maximize", None)
        if r.random() < 0.15:
            own |= _draw_matrices(r, KNOBS["shape"])
        beside = {**options, **own}
        groups.append((own, [_draw_spec(r, r.choice(dtypes), beside) for _ in range(count)]))
        left -= count
        if left == 0:
            break
    drawn = r.choices(list(BACKENDS), [1, 3, 5, 2])[0]
    operations: list[tuple[Any, ...]] = [("step",)] if r.random() < 0.8 else []
    for _ in range(r.randint(2, 10)):
        operations += _draw_block(r)
    return Program(
        number, optimizer, options, groups, r.random() < 0.4, backend or drawn, operations
    )


def _draw_options(r: random.Random, optimizer: str) -> dict[str, Any]:
    share = r.choice([0.15, 0.5])
    names = [n for n in KNOBS if n not in (*REFUSED.get(optimizer, ()), "shape", "blocks")]
    options = {name: r.choice(KNOBS[name]) for name in names if r.random() < share}
    options.setdefault("lr", r.choice([0.1, 0.3]))
    if optimizer == "ASGLD":
        options.setdefault("sigma", r.choice([0.1, 0.0]))
    if options.get("noise") is not None and optimizer != "NetworkASGLD":
        options["sigma"] = 0.0
    if options.get("beta") == 0.0:
        options.pop("noise_bound", None)
    if not options.get("momentum") and optimizer != "NetworkASGLD":
        options.pop("opposed", None)
    if options.get("momentum") == 0.0:
        options.pop("opposed", None)
    if options.get("prox") is not None:
        options.pop("maximize", None)
    if options.get("decay") is not None and r.random() < 0.5:
        options["d_init"] = 0.0
    if "decay" in options and options["decay"] is None and optimizer in ("PSGLD", "NetworkASGLD"):
        options["d_init"] = 1.0
    return options


def _draw_matrices(r: random.Random, forms: list[str]) -> dict[str, Any]:
    """Return a shape of D, and the knobs beside it that make it legal."""
    form, blocks = r.choice(forms), r.choice([1, 1, *KNOBS["blocks"]])
    knobs = {"shape": form, "blocks": blocks, "polar_by": r.choice(KNOBS["polar_by"])}
    if form == "coordinate":
        return knobs
    beside = {**(BESIDE_POLAR if form in POLAR else BESIDE_MATRICES), **knobs}
    if form not in ("left", "both") and (form not in POLAR or knobs["polar_by"] != "svd"):
        beside["capturable"] = r.choice(KNOBS["capturable"])
    return beside


def _draw_spec(r: random.Random, dtype: str, options: dict[str, Any] | None = None) -> Spec:
    """Return a parameter that suits the options of its group, nearly always."""
    form, blocks = (options or {}).get("shape", "coordinate"), (options or {}).get("blocks", 1)
    shapes, large = SHAPES, LARGE
    if form != "coordinate":
        shapes = [shape for shape in SHAPES if (shape or (1,))[0] % blocks == 0]
        large = [(72,), (24, 40), (6, 300)] if form not in ("left", "both") else [(24, 40)]
    is_real = form != "coordinate" or (options or {}).get("prox") is not None
    if is_real and dtype.startswith("complex") and r.random() < 0.95:
        dtype = "float32"
    shape = r.choice(large) if r.random() < 0.08 else r.choice(shapes)
    return Spec(shape, dtype, r.choice(LAYOUTS), r.randrange(2**31))


def _draw_block(r: random.Random) -> list[tuple[Any, ...]]:
    """Return operations that belong together: a change, gradients, and a step."""
    i, seed = r.randrange(12), r.randrange(2**31)
    kind = r.random()
    if kind < 0.15:
        return [("gradients", seed), ("step",)]
    if kind < 0.3:
        return [("rewrite", seed), ("step",)]
    if kind < 0.55:
        gradient = ("gradient", i, r.choice(GRADIENTS), seed)
        return (
            [gradient, ("step",)] if r.random() < 0.7 else [("rewrite", seed), gradient, ("step",)]
        )
    if kind < 0.78:
        change = _draw_change(r, i, seed)
        then = r.choice([[], [("rewrite", seed + 1)], [("gradients", seed + 1)]])
        return [change, *then, ("step",), *([("step",)] if r.random() < 0.2 else [])]
    if kind < 0.92:
        return [_draw_error(r, i, seed)]
    if kind < 0.97:
        return [("load", r.choice(["own", "own", *DAMAGES]), i, seed), ("step",)]
    return [(r.choice(["deepcopy", "pickle"]), seed), ("step",)]


def _draw_change(r: random.Random, i: int, seed: int) -> tuple[Any, ...]:
    """Return a legal operation."""
    kind = r.choice(
        ["move", "slice", "narrow", "restride", "share", "knob", "knob", "knob", "knob", "groups",
         "groups", "replace", "reorder", "step count", "stream", "clone state", "clone state",
         "forget", "backend", "lr in place", "share state", "reshape"]
    )  # fmt: skip
    if kind == "knob":
        name = r.choice(CHANGEABLE)
        return ("knob", i, name, r.choice(KNOBS[name]))
    if kind == "groups":
        return r.choice([("reverse",), ("delete", i), _draw_addition(r)])
    if kind == "replace":
        return ("replace", i, _draw_spec(r, r.choice([*DTYPES])))
    if kind == "step count":
        return ("count", i, r.choice([0, 1, 7, 10**6, MAX_STEP]), r.choice(["fill", "replace"]))
    if kind == "stream":
        return ("stream", i, r.choice([99, 2**32 - 1]), r.choice(["fill", "replace"]))
    if kind == "clone state":
        return ("clone", i, r.choice(STATES), r.choice(_STATE_LAYOUTS))
    if kind == "share state":
        return ("share_state", i, r.randrange(12), r.choice(STATES))
    if kind == "reshape":
        return ("reshape", i, _draw_matrices(r, KNOBS["shape"]))
    if kind == "forget":
        return r.choice([("forget", i), ("forget_all",)])
    if kind == "backend":
        return ("backend", r.choice(list(BACKENDS)))
    if kind == "share":
        return ("share", i, r.randrange(12), r.choice([0, 0, 1, 3]))
    return (kind.replace(" ", "_"), i, seed)


def _draw_addition(r: random.Random) -> tuple[Any, ...]:
    own = _draw_matrices(r, KNOBS["shape"]) if r.random() < 0.4 else {}
    return ("add", _draw_spec(r, r.choice([*DTYPES]), own), own)


def _draw_error(r: random.Random, i: int, seed: int) -> tuple[Any, ...]:
    """Return an operation that breaks something, expects a step to raise, and mends it."""
    kind = r.choice(
        ["knob", "knob", "knob", "expand", "slice", "transpose", "state shape", "state dtype",
         "count", "count", "count shape", "sparse", "overlap"]
    )  # fmt: skip
    if kind == "knob":
        return ("illegal_knob", i, *r.choice(ILLEGAL))
    if kind == "count":
        return ("illegal_count", i, r.choice([2**32, -1, 2**40]), r.choice(["fill", "replace"]))
    if kind.startswith("state"):
        return (f"wrong_{kind.replace(' ', '_')}", i, r.choice(STATES), seed)
    if kind == "overlap":
        return ("illegal_overlap", i, r.choice(STATES), seed)
    return (f"illegal_{kind.replace(' ', '_')}", i, seed)
