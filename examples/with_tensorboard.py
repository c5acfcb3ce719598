"""What a run says about itself, in TensorBoard: temperature, certificate, smallest curvature.

A small network on noisy data starts at a saddle. The log shows the injected noise cool down, the
bound on the gradients fall, and the smallest eigenvalue of the Hessian rise from -1.2 to near 0.
AGLD has a certificate; to train without one, use NetworkASGLD. Needs the extra `frameworks`.

    python examples/with_tensorboard.py runs && tensorboard --logdir runs
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

import asgld
from asgld.curvature import lambda_min

NUM_STEPS, LOG_EVERY = 600, 50


def temperature(optimizer: asgld.ASGLD) -> Tensor:
    """Return sigma^2 D^-(beta - alpha/2), the temperature of the noise, of every coordinate."""
    found = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state[p]
            metric = group["d_init"] + group["delta"] * state["step"] + state["sum"]
            exponent = group["beta"] - group["alpha"] / 2
            found.append(group["sigma"] ** 2 * metric.flatten() ** -exponent)
    return torch.cat(found)


def main(folder: str | Path = "runs") -> None:
    torch.manual_seed(0)
    inputs = torch.randn(200, 3, dtype=torch.float64)
    targets = torch.sin(inputs[:, :1]) + 0.1 * torch.randn(200, 1, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    for p in model.parameters():
        nn.init.zeros_(p)  # a saddle: the weights have no gradient here
    hessian = asgld.ModelHessian(model, nn.functional.mse_loss, [(inputs, targets)])
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer = asgld.AGLD(model.named_parameters(), lr=0.3, sigma=0.01, seed=2)
    # The largest curvature on the way is 3.9; a certificate takes such a bound on trust.
    tracker = asgld.CertificateTracker(optimizer, smoothness=4.0, f_start=loss.detach())

    with SummaryWriter(str(folder)) as writer:
        for step in range(NUM_STEPS + 1):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            if step % LOG_EVERY == 0:
                hot = temperature(optimizer)
                writer.add_scalar("loss", loss.item(), step)
                writer.add_scalar("temperature/largest", hot.max().item(), step)
                writer.add_scalar("temperature/mean", hot.mean().item(), step)
                writer.add_scalar("curvature/lambda_min", lambda_min(hessian).value, step)
                if step > 0:
                    bound = tracker.report(loss.detach()).certificate.bound
                    writer.add_scalar("certificate/gradient_norm", float(bound) ** 0.5, step)
            optimizer.step()


if __name__ == "__main__":
    main(*sys.argv[1:])
