"""Saddles of the functions of `minimize_set`, by root finding on the gradient.

    python benchmarks/minimize_saddles.py

From random starts in the box: Powell's hybrid method (`scipy.optimize.root`) with the Hessian as
its Jacobian, then Newton's method in 80 bits until it rests; and Newton's method from the start
itself. Kept are points within the box, enlarged by half its width on every side, whose lowest
scaled eigenvalue is below -1e-4 (`minimize_check`), at most `MOST` of a function, no two closer
than 1e-6 of the box. Written to results/minimize_saddles.json: for each function its saddles,
lowest f first.
"""

from __future__ import annotations

import json
import time

import numpy as np
import torch
from measure import RESULTS
from minimize_check import Check, equilibrate, lowest, newton
from minimize_set import FUNCTIONS, TestFunction, random_start

MOST = 12
STARTS = 80
# Where so many starts have found at most one critical point, there are no others to find.
FEW = 20
CURVATURE = -1e-4
# Where f bends by less than this across the box, as easom does far out, there is nothing to see.
FAINT = 1e-30
FILE = RESULTS / "minimize_saddles.json"


def find_saddles(function: TestFunction) -> list[dict[str, object]]:
    """Saddles of one function, with f, lowest scaled eigenvalue and what it promises."""
    from scipy.optimize import root

    gradient, hessian = torch.func.grad(function.fun), torch.func.hessian(function.fun)
    low, high = np.array(function.low), np.array(function.high)
    width = (high - low).astype(np.longdouble)
    check = Check(function.fun, function.low, function.high)
    found: list[dict[str, object]] = []
    points: list[np.ndarray] = []
    for index in range(STARTS):
        if len(found) == MOST or (index >= FEW and len(points) < 2):
            break
        start = random_start(function, 1000 + index)
        with np.errstate(all="ignore"):
            solution = root(
                lambda x: gradient(torch.from_numpy(x)).numpy(),
                start,
                jac=lambda x: hessian(torch.from_numpy(x)).numpy(),
                method="hybr",
                options={"maxfev": 200},
            )
            by_root = newton(function.fun, solution.x.astype(np.longdouble), width)
            directly = newton(function.fun, start.astype(np.longdouble), width, limit=1.0)
        for refined in (by_root, directly):
            x = refined.x.astype(np.float64)
            is_inside = bool(np.all((x >= low - (high - low) / 2) & (x <= high + (high - low) / 2)))
            is_new = all(np.max(np.abs(x - other) / (high - low)) > 1e-6 for other in points)
            if not (refined.has_converged and is_inside and is_new) or refined.is_linear:
                continue
            points.append(x)
            if float(np.max(np.abs(refined.hessian) * width[:, None] * width)) < FAINT:
                continue
            scaling = equilibrate(refined.hessian)
            if lowest(refined.hessian * scaling[:, None] * scaling)[0] > CURVATURE:
                continue
            truth = check(x)
            if truth.kind == "saddle" and truth.lowest < CURVATURE and len(found) < MOST:
                found.append(
                    {
                        "x": [float(entry) for entry in x],
                        "value": truth.value,
                        "lowest": float(f"{truth.lowest:.4g}"),
                        "decrease": float(f"{truth.decrease:.4g}"),
                    }
                )
    return sorted(found, key=lambda saddle: float(str(saddle["value"])))


def read_saddles() -> dict[str, list[np.ndarray]]:
    """The committed saddles, by function."""
    saddles = json.loads(FILE.read_text())
    return {name: [np.array(s["x"]) for s in of_one] for name, of_one in saddles.items()}


def main() -> None:
    torch.set_num_threads(1)
    saddles = {}
    for name, function in FUNCTIONS.items():
        began = time.perf_counter()
        of_one = find_saddles(function)
        if of_one:
            saddles[name] = of_one
        seconds = time.perf_counter() - began
        print(f"{name:22s} {len(of_one):3d} {seconds:6.1f} s", flush=True)
    lines = (
        json.dumps(name) + ": [\n " + ",\n ".join(json.dumps(s) for s in of_one) + "]"
        for name, of_one in saddles.items()
    )
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{sum(map(len, saddles.values()))} saddles of {len(saddles)} functions")


if __name__ == "__main__":
    main()
