"""NetworkASGLD in the Hugging Face Trainer, on a tiny language model with random weights.

The text repeats four letters, so that a model which has learned it has loss 0. Needs the extra
`frameworks`; nothing is downloaded.

    python examples/with_trainer.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import asgld

NUM_STEPS, SAVE_AT = 60, 30


def make_dataset() -> list[dict[str, Tensor]]:
    """64 texts of 12 letters, the same four in turn from different first letters."""
    texts = [(torch.arange(12) + start) % 4 for start in range(64)]
    return [{"input_ids": text, "labels": text} for text in texts]


def fit(folder: Path, resume_from: str | None = None) -> tuple[float, dict[str, Tensor]]:
    """Train; return the loss of the last step and the parameters."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=4, n_positions=12, n_embd=16, n_layer=1, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    optimizer = asgld.NetworkASGLD(model, lr=1e-2, seed=1)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder),
            max_steps=NUM_STEPS,
            per_device_train_batch_size=16,
            save_steps=SAVE_AT,
            logging_steps=NUM_STEPS,
            lr_scheduler_type="constant",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=make_dataset(),  # type: ignore[arg-type]
        optimizers=(optimizer, None),
    )
    trainer.train(resume_from_checkpoint=resume_from)
    loss = model(**_stack(make_dataset())).loss
    return loss.item(), {name: p.detach().clone() for name, p in model.named_parameters()}


def _stack(dataset: list[dict[str, Tensor]]) -> dict[str, Any]:
    return {key: torch.stack([item[key] for item in dataset]) for key in dataset[0]}


def main() -> dict[str, Any]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        loss, whole = fit(folder)
        _, resumed = fit(folder, resume_from=str(folder / f"checkpoint-{SAVE_AT}"))
    same = all(torch.equal(whole[k], resumed[k]) for k in whole)
    print(f"loss {loss:.3f}; resumed after {SAVE_AT} steps, the same bits: {same}")
    return {"loss": loss, "whole": whole, "resumed": resumed}


if __name__ == "__main__":
    main()
