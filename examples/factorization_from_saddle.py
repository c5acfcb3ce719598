"""Matrix factorization, started at the worst place: U = 0, an exact saddle.

Minimize |U U' - A|^2 / 4 over n x r matrices U. At U = 0 the gradient vanishes, so gradient descent
and quasi-Newton methods stop at once. Noise leaves, and the result says what the end is.

    python examples/factorization_from_saddle.py
"""

from __future__ import annotations

import numpy as np
import torch

from asgld import Result, minimize

SIZE, RANK = 8, 2


def main() -> dict[str, Result]:
    factor = torch.from_numpy(np.random.default_rng(0).normal(size=(SIZE, RANK)))
    target = factor @ factor.T

    def misfit(x: torch.Tensor) -> torch.Tensor:
        u = x.reshape(SIZE, RANK)
        return ((u @ u.T - target) ** 2).sum() / 4

    start = torch.zeros(SIZE * RANK)
    results = {name: minimize(misfit, start, method=name) for name in ("lbfgs", "asg", "agld")}
    # Four chains at once, each with noise of its own.
    results["agld, 4 chains"] = minimize(misfit, start, method="agld", replicas=4)
    # Without noise, but told to go on from a saddle along its direction of negative curvature.
    results["asg, escape"] = minimize(misfit, start, method="asg", escape=True)

    for name, result in results.items():
        curvature = float("nan") if result.lambda_min is None else result.lambda_min
        print(
            f"{name:16} f = {result.fun:8.1e}   {result.kind.name:14} lambda_min {curvature:8.1e}"
        )
    return results


if __name__ == "__main__":
    main()
