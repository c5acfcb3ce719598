"""Statistics with positive parameters: fit a gamma distribution by maximum likelihood.

The negative log likelihood of shape k and scale s is defined for k, s > 0 only, and its gradient
blows up at the boundary. `bounds` hides that: the search takes place in (log k, log s), and what
comes back is in (k, s). The curvature at the minimum is the observed information, so it also gives
standard errors.

    python examples/positive_parameters.py
"""

from __future__ import annotations

import numpy as np
import torch

from asgld import Result, minimize

SHAPE, SCALE, NUM_SAMPLES = 2.5, 0.4, 2000


def main() -> Result:
    data = torch.from_numpy(np.random.default_rng(0).gamma(SHAPE, SCALE, NUM_SAMPLES))
    mean, mean_log = data.mean(), data.log().mean()

    def deviance(x: torch.Tensor) -> torch.Tensor:
        """Mean negative log likelihood; it depends on the data through two averages."""
        shape, scale = x
        return (
            torch.lgamma(shape) + shape * torch.log(scale) + mean / scale - (shape - 1) * mean_log
        )

    result = minimize(deviance, torch.ones(2), bounds=[(0, None), (0, None)], tol=1e-6)

    information = NUM_SAMPLES * torch.func.hessian(deviance)(torch.as_tensor(result.x))
    errors = torch.linalg.inv(information).diagonal().sqrt()
    print(result.message)
    for name, true, found, error in zip(
        ("shape", "scale"), (SHAPE, SCALE), result.x, errors, strict=True
    ):
        print(f"{name}: {float(found):.4f} +- {float(error):.4f}   (data were drawn with {true})")
    return result


if __name__ == "__main__":
    main()
