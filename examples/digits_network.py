"""A small torch network on handwritten digits, started exactly at a saddle, searched with batches.

All weights are zero and the output biases fit the class frequencies: there the full gradient
vanishes, and the gradient of any batch is zero for the weights. A stochastic gradient method can
shake the biases and nothing else, for ever. ASGLD leaves, L-BFGS finishes, and the curvature at the
end tells whether it is a minimum.

Needs the extra `data` (scikit-learn).

    python examples/digits_network.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call

from asgld import Result, minimize

NUM_IMAGES, HIDDEN, BATCH_SIZE, WEIGHT_PENALTY = 200, 6, 64, 1e-3


def main() -> dict[str, Result]:
    pixels, digits = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels[:NUM_IMAGES] / 16.0)
    labels = torch.from_numpy(digits[:NUM_IMAGES])
    network = nn.Sequential(nn.Linear(64, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 10)).double()
    shapes = {name: p.shape for name, p in network.named_parameters()}

    def output(x: Tensor, inputs: Tensor) -> Tensor:
        """The network with its weights read from one long vector."""
        parts = x.split([shape.numel() for shape in shapes.values()])
        weights = {name: part.view(shapes[name]) for name, part in zip(shapes, parts, strict=True)}
        return functional_call(network, weights, (inputs,))

    def loss(x: Tensor, indices: Tensor) -> Tensor:
        misfit = nn.functional.cross_entropy(output(x, images[indices]), labels[indices])
        return misfit + WEIGHT_PENALTY * (x @ x) / 2

    def accuracy(x: Tensor) -> float:
        return float((output(x, images).argmax(-1) == labels).double().mean())

    # The saddle: the weights stay zero, a short descent finds the output biases.
    start = torch.zeros(sum(shape.numel() for shape in shapes.values()), dtype=torch.float64)
    samples = {"num_samples": len(labels), "tol": 1e-3}
    start = torch.as_tensor(minimize(loss, start, method="lbfgs", **samples).x)

    results = {}
    for method in ("asg", "asgld"):
        results[method] = minimize(
            loss, start, method=method, batch_size=BATCH_SIZE, max_steps=400, **samples
        )
        result = results[method]
        print(f"{method}: accuracy {accuracy(torch.as_tensor(result.x)):.3f}. {result.message}")
    return results


if __name__ == "__main__":
    main()
