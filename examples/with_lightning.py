"""NetworkASGLD in a LightningModule; a run that is resumed ends with the bits of one that was not.

Needs the extra `frameworks`.

    python examples/with_lightning.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import asgld

STEPS_PER_EPOCH, NUM_EPOCHS = 30, 5


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.network(inputs), targets)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return asgld.NetworkASGLD(self, lr=3e-2, seed=1)

    def train_dataloader(self) -> Any:
        """Batches of one epoch. They depend on the step alone, so there is nothing to restore."""
        inputs = torch.randn(4000, 8, generator=torch.Generator().manual_seed(0))
        sampler = asgld.GrowingBatchSampler(
            4000, 64, 2.0, seed=1, num_steps=self.global_step + STEPS_PER_EPOCH
        )
        sampler.step = self.global_step
        data = TensorDataset(inputs, torch.sin(2 * inputs[:, :1]))
        return DataLoader(data, batch_sampler=sampler)


def fit(num_epochs: int, checkpoint: Path | None = None) -> lightning.Trainer:
    torch.manual_seed(0)
    trainer = lightning.Trainer(
        max_epochs=num_epochs,
        reload_dataloaders_every_n_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(), ckpt_path=checkpoint, weights_only=True)
    return trainer


def main() -> dict[str, Any]:
    whole = fit(NUM_EPOCHS)
    with TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "last.ckpt"
        fit(2).save_checkpoint(checkpoint)
        resumed = fit(NUM_EPOCHS, checkpoint)
    results = {
        "loss": float(whole.callback_metrics["loss"]),
        "whole": whole.lightning_module.state_dict(),
        "resumed": resumed.lightning_module.state_dict(),
    }
    same = all(torch.equal(results["whole"][k], v) for k, v in results["resumed"].items())
    print(f"loss {results['loss']:.3f}; resumed after 2 epochs, the same bits: {same}")
    return results


if __name__ == "__main__":
    main()
