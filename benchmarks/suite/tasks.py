"""TASKS: what is trained. One entry adds one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from suite import grown, networks
from suite.data import (
    NUM_IMAGES,
    Batch,
    DiffusedImages,
    Entries,
    FewNoisyImages,
    Images,
    PackageText,
    Sizes,
    Square,
    Table,
    Text,
)


@dataclass(frozen=True)
class Task:
    """A thing to train.

    ============  ==========================================================================
    field         meaning
    ============  ==========================================================================
    title         what a page calls the task
    data          a source of samples (`suite.data`) of sizes and a device
    model         a network of sizes
    loss          a number, of a network and a batch
    full          sizes; `steps` and `batch` are among them
    tiny          what is smaller, to run within seconds on a CPU
    autocast      to bfloat16 on CUDA
    is_low_rank   the target has low rank: documented to want one D per coordinate
    part          "suite"; "held back" until every default was set; "large", "grown" and "pilot" run
                  when they are asked for
    watch         another number to follow, of a network and sizes
    ============  ==========================================================================
    """

    title: str
    data: Callable[[Sizes, str], Any]
    model: Callable[[Sizes], nn.Module]
    loss: Callable[[nn.Module, Batch], Tensor]
    full: Sizes
    tiny: Sizes
    autocast: bool = False
    is_low_rank: bool = False
    part: str = "suite"
    watch: Callable[[nn.Module, Sizes], float] | None = None

    def sizes(self, size: str) -> Sizes:
        return self.full if size == "full" else self.full | self.tiny


# Of the grown transformers: `base` steps train the small network, which is copied.
_TRANSFORMER = {
    "steps": 800, "base": 800, "batch": 32, "context": 128, "layers": 3, "width": 128,
    "heads": 2, "head": 32, "inner": 128, "experts": 1, "copies": 4,
    "bytes": 5_000_000, "checks": 16,
}  # fmt: skip
_TINY_TRANSFORMER = {
    "steps": 10, "base": 5, "batch": 4, "context": 16, "layers": 1, "width": 16, "head": 4,
    "inner": 8, "copies": 2, "bytes": 50_000, "checks": 2,
}  # fmt: skip


def _grown(title: str, growth: grown.Growth, **sizes: int) -> Task:
    """A transformer that was grown."""
    return Task(title, Text, growth, networks.next_byte, _TRANSFORMER | sizes, _TINY_TRANSFORMER,
                part="grown", watch=growth.distance)  # fmt: skip


TASKS = {
    "gpt": Task(
        "GPT on bytes", Text, networks.GPT, networks.next_byte,
        {"steps": 500, "batch": 32, "context": 256, "layers": 4, "width": 256, "heads": 4,
         "bytes": 5_000_000, "checks": 16},
        {"steps": 10, "batch": 4, "context": 16, "layers": 1, "width": 16, "heads": 2,
         "bytes": 50_000, "checks": 2},
        autocast=True,
    ),
    "rnn": Task(
        "LSTM on bytes", Text, networks.Recurrent, networks.next_byte,
        {"steps": 500, "batch": 64, "context": 64, "layers": 2, "width": 256,
         "bytes": 5_000_000, "checks": 16},
        {"steps": 10, "batch": 4, "context": 16, "width": 16, "bytes": 50_000, "checks": 2},
    ),
    "vit": Task(
        "vision transformer", Images, networks.VisionTransformer, networks.right_label,
        {"steps": 500, "batch": 128, "layers": 4, "width": 192, "heads": 4,
         "images": NUM_IMAGES, "checks": 5},
        {"steps": 10, "batch": 8, "layers": 1, "width": 16, "heads": 2, "images": 90, "checks": 1},
        autocast=True,
    ),
    "cnn": Task(
        "CNN with batch norm", Images, networks.ResidualCNN, networks.right_label,
        {"steps": 500, "batch": 128, "width": 32, "images": NUM_IMAGES, "checks": 5},
        {"steps": 10, "batch": 8, "width": 4, "images": 90, "checks": 1},
        autocast=True,
    ),
    "tabular": Task(
        "MLP on a table", Table, networks.make_tabular, networks.right_number,
        {"steps": 1000, "batch": 256, "rows": 53_940, "features": 26, "width": 256, "layers": 4},
        {"steps": 10, "batch": 16, "rows": 90, "features": 10, "width": 16},
    ),
    "autoencoder": Task(
        "autoencoder", Images, networks.make_autoencoder, networks.same_image,
        {"steps": 600, "batch": 256, "width": 500, "images": NUM_IMAGES, "checks": 1},
        {"steps": 10, "batch": 8, "width": 40, "images": 90},
    ),
    "diffusion": Task(
        "diffusion model", DiffusedImages, networks.Denoiser, networks.right_noise,
        {"steps": 400, "batch": 64, "width": 32, "images": NUM_IMAGES, "checks": 10},
        {"steps": 10, "batch": 8, "width": 8, "images": 90, "checks": 1},
        autocast=True,
    ),
    "pinn": Task(
        "physics-informed network", Square, networks.make_field, networks.helmholtz,
        {"steps": 1000, "batch": 512, "points": 40_000, "width": 64, "layers": 4},
        {"steps": 10, "batch": 16, "points": 400, "width": 8},
    ),
    "factorization": Task(
        "low-rank factorization", Entries, networks.make_factors, networks.same_entry,
        {"steps": 1000, "batch": 1024, "width": 128, "layers": 4},
        {"steps": 10, "batch": 32, "width": 16},
        is_low_rank=True,
    ),
    "mixer": Task(
        "MLP-Mixer", Images, networks.Mixer, networks.right_label,
        {"steps": 500, "batch": 128, "layers": 4, "width": 128, "images": NUM_IMAGES, "checks": 5},
        {"steps": 10, "batch": 8, "layers": 1, "width": 16, "images": 90, "checks": 1},
        autocast=True, part="held back",
    ),
    "linear": Task(
        "linear denoiser", FewNoisyImages, networks.make_linear, networks.clean_image,
        {"steps": 1000, "batch": 256, "width": 256, "images": 10_000, "few": 1000, "checks": 1},
        {"steps": 10, "batch": 8, "width": 16, "images": 90, "few": 30},
        is_low_rank=True, part="held back",
    ),
    "gpt-large": Task(
        "GPT, 86 million parameters", PackageText, networks.GPT, networks.next_byte,
        {"steps": 500, "batch": 32, "context": 512, "layers": 12, "width": 768, "heads": 12,
         "bytes": 40_000_000, "checks": 16},
        {"steps": 10, "batch": 4, "context": 16, "layers": 2, "width": 16, "heads": 2,
         "bytes": 50_000, "checks": 2},
        autocast=True, part="large",
    ),
    "grown-mlp": Task(
        "widened MLP", Images, grown.PERCEPTRON, networks.right_label,
        {"steps": 2000, "base": 1500, "batch": 128, "inner": 8, "copies": 8,
         "images": NUM_IMAGES, "checks": 5},
        {"steps": 10, "base": 5, "batch": 8, "copies": 2, "images": 90, "checks": 1},
        part="grown", watch=grown.PERCEPTRON.distance,
    ),
    "grown-mlp-few": Task(  # half of the images and more passes over them: the first version
        "widened MLP, few images", Images, grown.PERCEPTRON, networks.right_label,
        {"steps": 3000, "base": 1500, "batch": 64, "inner": 8, "copies": 8,
         "images": NUM_IMAGES // 2, "checks": 5},
        {"steps": 10, "base": 5, "batch": 8, "copies": 2, "images": 90, "checks": 1},
        part="pilot", watch=grown.PERCEPTRON.distance,
    ),
    "grown-layers": _grown("widened feed-forward layers", grown.LAYERS, copies=8),
    "grown-experts": _grown("experts of a dense layer", grown.EXPERTS),
    "grown-heads": _grown("copied heads", grown.HEADS),
}  # fmt: skip
