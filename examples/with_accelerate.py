"""NetworkASGLD under Hugging Face Accelerate, with its saved states.

Needs the extra `frameworks`.

    python examples/with_accelerate.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import asgld


def fit(epochs: range, load: Path | None = None, save: Path | None = None) -> dict[str, Tensor]:
    """Train for some epochs, from a saved state if there is one; return the parameters."""
    torch.manual_seed(0)
    inputs = torch.randn(2000, 8)
    data = TensorDataset(inputs, torch.sin(2 * inputs[:, :1]))
    network = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    accelerator = Accelerator()
    model, optimizer, loader = accelerator.prepare(
        network,
        asgld.NetworkASGLD(network, lr=3e-2, seed=1),
        DataLoader(data, batch_size=100),
    )
    if load is not None:
        accelerator.load_state(str(load))
    for epoch in epochs:
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}")
    if save is not None:
        accelerator.save_state(str(save))
    return {name: p.detach().clone() for name, p in network.named_parameters()}


def main() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the parameters of a run in one piece and of one that was interrupted."""
    whole = fit(range(8))
    with TemporaryDirectory() as name:
        state = Path(name) / "state"
        fit(range(4), save=state)
        resumed = fit(range(4, 8), load=state)
    same = all(torch.equal(whole[k], resumed[k]) for k in whole)
    print(f"resumed after 4 epochs, the same bits: {same}")
    return whole, resumed


if __name__ == "__main__":
    main()
