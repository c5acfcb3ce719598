"""Escapes from one strict saddle: against dimension, curvature, the step k0, and the exponents.

f(x) = 1/2 y' diag(l) y + 1/4 y_1^4 with l_1 = -gamma, the others 1, and y = Q'x; minima at
y_1 = +-gamma^(1/2). All methods take steps of lr = 0.1. Noise is scaled in two ways:

- "equal": every method gets the energy E|noise|^2 = r^2 per step, or per kick, r = 0.001,
  whatever the dimension (sigma^2 = r^2 / (2 lr d));
- "native": as the method's authors have it: sigma fixed per coordinate for Langevin methods (the
  one that is equal at d = 64), noise of gradient length 1 for noisy SGD, kicks as by theory.

A saddle that is met at step k0 is met with D = 1 + delta k0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asgld.problems import problem
from asgld_study.sweep.catalog import BY_LABEL, proved_options
from asgld_study.sweep.engine import Cell

LR, GAMMA, ENERGY, DELTA = 0.1, 0.5, 0.001, 0.01
# The growth of D while the dependence on k0 is measured.
DELTA_LATE = 0.1
_NATIVE_DIM, _LARGE = 64, 1024
_EPS, _TARGET_GAMMA = 0.05, 0.25

LANGEVIN = ("agld", "asgld", "sgld")
NOISY = (*LANGEVIN, "psgld", "noisy-sgd", "perturbed-gd", "saddle-ngd", "neon", "perturbed-agd")
# Without randomness of their own: started beside the saddle, where it would hold them for ever.
KICKED = ("gd", "asg", "adagrad", "adam", "lbfgs")
# Those that run aligned with the axes beyond d = 1024.
LARGEST = ("agld", "asgld", "sgld", "perturbed-gd", "noisy-sgd")
CURVATURE = ("natasha2", "fast-cubic", "carmon-accelerated", "carmon-cubic", "trust-krylov")
HESSIAN = ("cubic-newton", "trace", "trust-exact")


@dataclass(frozen=True)
class Size:
    """How large the sweeps are."""

    seeds: int
    dims: tuple[int, ...]
    hessian_dims: tuple[int, ...]
    second_order_seeds: int
    gammas: tuple[float, ...]
    k0s: tuple[int, ...]
    exponents: tuple[float, ...]
    map_steps: int
    control_steps: int = 2000
    rotations: tuple[bool, ...] = (True, False)


CI = Size(48, (4, 32, 256), (4, 32), 4, (0.2, 0.5, 1.0), (0, 100, 1000), (0.0, 1.0), 400,
          rotations=(True,))  # fmt: skip
FULL = Size(
    60,
    (4, 16, 64, 256, 1024, 4096),
    (4, 16, 64, 256, 1024),
    30,
    (0.05, 0.1, 0.2, 0.5, 1.0),
    (0, 100, 1000, 10_000),
    (0.0, 0.5, 1.0, 1.5, 2.0),
    1500,
)


def saddle_options(dim: int, *, rotated: bool = True, gamma: float = GAMMA) -> dict[str, Any]:
    return {"dim": dim, "gamma": gamma, "rotated": rotated}


def sigma_for(dim: int, noise: str, lr: float = LR) -> float:
    """Noise per coordinate, so that a step has the energy asked for."""
    return ENERGY / math.sqrt(2.0 * lr * (dim if noise == "equal" else _NATIVE_DIM))


def settings(label: str, dim: int, noise: str, gamma: float = GAMMA) -> dict[str, Any]:
    """Options of a method on this saddle, with the step and the noise that all have."""
    subject = problem("strict-saddle", **saddle_options(dim, gamma=gamma))
    rho = subject.facts.hessian_lipschitz
    assert rho is not None
    wait = math.ceil(40.0 / (LR * gamma))
    if label in LANGEVIN:
        growth = {} if label == "sgld" else {"delta": DELTA}
        return {"lr": LR, "sigma": sigma_for(dim, noise), **growth}
    if label == "psgld":
        # With damping 1 its step where gradients vanish is lr, as for the others.
        return {"lr": LR, "damping": 1.0, "sigma": sigma_for(dim, noise)}
    if label == "noisy-sgd":
        return {"lr": LR, "noise": ENERGY / LR if noise == "equal" else 1.0}
    proved = proved_options(BY_LABEL[label], subject, eps=_EPS, gamma=gamma / 2, gap=gamma**2 / 4)
    assert proved is not None
    if label == "perturbed-gd":
        radius = ENERGY if noise == "equal" else proved["radius"]
        return {"lr": LR, "radius": radius, "grad_threshold": 1e-4, "wait": wait}
    if label == "saddle-ngd":
        return {"lr": ENERGY, "noise": 1.0} if noise == "equal" else proved
    if label == "natasha2":
        # lr = 0.3 / M; runs of Oja's method as long as practice has them, 4 (1 / gamma) ln d.
        return {"batch_size": None, "gamma": gamma / 2, "radius": gamma / rho,
                "smoothness": 0.3 / LR, "oja_steps": math.ceil(4.0 / gamma * math.log(dim)),
                "max_epochs": 10_000}  # fmt: skip
    if label == "neon":
        start = {"radius": ENERGY} if noise == "equal" else {}
        return {"lr": LR, "gamma": gamma, "hessian_lipschitz": rho, **start}
    if label == "perturbed-agd":
        return {**proved, "radius": ENERGY} if noise == "equal" else proved
    return {"lr": LR} if label in ("gd", "asg", "adagrad", "adam") else proved


def _cell(label: str, options: dict[str, Any], sweep: str, **rest: Any) -> Cell:
    tags = {"label": label, "sweep": sweep, **rest.pop("tags", {})}
    chosen = {"eps": _EPS, "gamma": _TARGET_GAMMA, "start": "saddle", "until": "hold", **rest}
    return Cell("strict-saddle", BY_LABEL[label].method, options=options, tags=tags, **chosen)


def dimension_cells(size: Size) -> list[Cell]:
    """T against d, both scalings of the noise, aligned and rotated; and what needs a kick."""
    cells = []
    for dim in size.dims:
        for rotated in size.rotations:
            is_few = dim > _LARGE and not rotated
            shape = saddle_options(dim, rotated=rotated)
            common = {
                "problem_options": shape,
                "replicas": size.seeds if dim < 1024 else max(size.seeds // 2, 30),
                "max_steps": 1500,
            }
            for noise in ("equal", "native"):
                cells += [
                    _cell(name, settings(name, dim, noise), "dimension", **common,
                          tags={"noise": noise})
                    for name in (LARGEST if is_few else NOISY)
                ]  # fmt: skip
            cells += [
                _cell(name, settings(name, dim, "equal"), "dimension", **common, start="kicked",
                      tags={"noise": "none"})
                for name in (() if is_few else KICKED)
            ]  # fmt: skip
        for name in (*CURVATURE, *(HESSIAN if dim in size.hessian_dims else ())):
            # scipy's methods return at once from an exact saddle.
            start = "kicked" if name.startswith("trust-") else "saddle"
            cells.append(
                _cell(
                    name,
                    settings(name, dim, "native"),
                    "dimension",
                    problem_options=saddle_options(dim),
                    replicas=size.second_order_seeds,
                    max_steps=1500,
                    start=start,
                    tags={"noise": "native"},
                )
            )
    return cells


def curvature_cells(size: Size) -> list[Cell]:
    """T against gamma at equal noise."""
    return [
        _cell(
            name,
            settings(name, _NATIVE_DIM, "equal", gamma),
            "gamma",
            problem_options=saddle_options(_NATIVE_DIM, gamma=gamma),
            replicas=size.seeds,
            max_steps=max(3000, int(200 / (LR * gamma))),
            gamma=gamma / 2,
            tags={"noise": "equal"},
        )
        for gamma in size.gammas
        for name in ("agld", "asgld", "sgld", "perturbed-gd", "noisy-sgd", "neon")
    ]


def late_cells(size: Size) -> list[Cell]:
    """T against the step k0 at which the saddle is met, for three exponents of the step."""
    return [
        _cell(
            "asgld",
            {
                "lr": LR,
                "alpha": alpha,
                "beta": 1.0,
                "sigma": sigma_for(_NATIVE_DIM, "equal"),
                "delta": DELTA_LATE,
                "d_init": 1.0 + DELTA_LATE * k0,
            },
            "k0",
            problem_options=saddle_options(_NATIVE_DIM),
            replicas=size.seeds,
            max_steps=10_000,
            until="leave",
            tags={"alpha": alpha, "k0": k0},
        )
        for alpha in (0.0, 0.5, 1.0)
        for k0 in size.k0s
    ]


def exponent_cells(size: Size) -> list[Cell]:
    """Escape time and final gradient over (alpha, beta)."""
    return [
        _cell(
            "asgld",
            {
                "lr": LR,
                "alpha": alpha,
                "beta": beta,
                "sigma": sigma_for(_NATIVE_DIM, "equal"),
                "delta": DELTA,
            },
            "exponents",
            problem_options=saddle_options(_NATIVE_DIM),
            replicas=max(size.seeds // 2, 8),
            max_steps=size.map_steps,
            until=None,
            tags={"alpha": alpha, "beta": beta},
        )
        for alpha in size.exponents
        for beta in size.exponents
        if beta >= alpha / 2  # below, the noise heats instead of annealing
    ]


def control_cells(size: Size) -> list[Cell]:
    """What must not escape: exact gradients at the exact saddle, and noise that misses the way."""
    shape = saddle_options(16)
    silent = {**shape, "num_samples": 256, "noise": 0.3, "noise_space": "stable"}
    sampled = {
        "all directions": {**silent, "noise_space": "all"},
        # The metric of a rotated problem is not diagonal, and D leaks noise into the way down.
        "stable directions, rotated": silent,
        "stable directions, aligned": {**silent, "rotated": False},
    }
    common = {"replicas": size.second_order_seeds, "max_steps": size.control_steps}
    cells = [
        _cell(name, settings(name, 16, "equal"), "control", problem_options=shape, **common,
              tags={"noise": "none"})
        for name in ("gd", "asg", "adagrad", "adam", "lbfgs")
    ]  # fmt: skip
    cells += [
        _cell("asg", {"lr": LR, "delta": DELTA, "batch_size": 16}, "control",
              problem_options=options, **common, tags={"noise": f"samples, {kind}"})
        for kind, options in sampled.items()
    ]  # fmt: skip
    # At the symmetric points of these problems the gradient of every single sample is 0.
    cells += [
        Cell(name, "asg", {}, {"lr": LR, "delta": DELTA, "batch_size": 16}, "saddle", **common,
             until="leave", tags={"label": "asg", "sweep": "control",
                                  "noise": f"samples, all 0 at the saddle of {name}"})
        for name in ("mixture", "phase-retrieval", "deep-linear")
    ]  # fmt: skip
    return cells


def all_cells(size: Size) -> list[Cell]:
    """Everything above."""
    groups: Sequence[list[Cell]] = (
        dimension_cells(size),
        curvature_cells(size),
        late_cells(size),
        exponent_cells(size),
        control_cells(size),
    )
    return [cell for group in groups for cell in group]
