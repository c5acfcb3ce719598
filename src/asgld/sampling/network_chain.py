"""A chain of weights of a network: its steps, the noise of its gradients, its draws and files.

A batch gradient has noise of its own, of variance C, which widens the density: the variance of the
draws grows by the share lr C / (2 sigma^2). C is measured in the second half of the burn-in. There
a batch of B samples is passed in two parts, of m_1 and m_2 samples with mean gradients g_1 and g_2
at the same weights, and (g_1 - g_2)^2 m_1 m_2 / B^2 has mean C exactly. It costs no more samples.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from asgld.arguments import require
from asgld.data.batches import _exchange, part
from asgld.methods.base import batch_indices
from asgld.optim import PSGLD, SGLD
from asgld.optim.functional import coefficients
from asgld.optim.rule import rule_of
from asgld.optim.state import local
from asgld.run.files import read_checkpoint, reserve_array, write_checkpoint
from asgld.sampling.chains import chain_key
from asgld.sampling.network_parts import Loss, Ranks, Reader, kind_of, named, part_of

METHODS = {"sgld": SGLD, "psgld": PSGLD}
CHECKPOINT = "checkpoint.pt"
MEASUREMENTS = 256  # of C at most; that of a single weight is then good to 9 %
LARGEST_SHARE = 0.9  # of gradient noise that less injected noise can make up for


@dataclass(frozen=True, kw_only=True)
class ChainSettings:
    """What the draws depend on. A folder is continued with the same settings alone."""

    method: str
    lr: float
    num_data: int
    prior_sd: float | None
    temperature: float
    batch_size: int
    draws: int
    burn_in: int
    thin: int
    correct: bool
    seed: int
    chain: int
    data: str  # the number of samples, and a hash of some
    parameters: str  # a hash of names, shapes and dtypes

    @property
    def steps(self) -> int:
        return self.burn_in + self.draws * self.thin

    def key(self, use: str) -> int:
        """Return 64 bits that no other seed, chain or use has."""
        return chain_key(self.seed, f"{self.chain}{use}")


def kept_lr(folder: str | Path | None) -> float | None:
    """Return the step size of the chain in a folder; None if there is no chain."""
    path = None if folder is None else Path(folder) / CHECKPOINT
    if path is None or not path.exists():
        return None
    return float(read_checkpoint(path)["settings"]["lr"])


class NetworkChain:
    """The state of one chain, on all of its ranks. What a kill must not lose is in a checkpoint.

    Args:
        model: it moves with the chain.
        settings: what the draws depend on.
        target: see :func:`asgld.posterior_options`.
        loss: of the model and a batch.
        reader: the data.
        folder: of the draws and the checkpoint; None keeps draws in memory.
        every: steps between checkpoints.
        progress: count the draws on stderr.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: ChainSettings,
        target: Mapping[str, float],
        loss: Loss,
        reader: Reader,
        folder: Path | None,
        every: int,
        progress: bool,
    ) -> None:
        self.model, self.settings, self.reader, self.folder = model, settings, reader, folder
        self.step, self.losses, self.message = 0, list[float](), ""
        self.params = named(model)
        self.is_exact = settings.batch_size == len(reader)
        self._loss, self._every, self._progress = loss, every, progress
        self._ranks = Ranks.of(model, self.params)
        self._saved, self._loss_sum = -1, 0.0
        self._measured = torch.zeros(2, len(self.params), dtype=torch.float64)  # sums, counts
        self._sigma, self._precision = target["sigma"], target["weight_decay"]
        # PSGLD would not scale a decay by D; there the prior's gradient is added to the loss's.
        decay = self._precision if settings.method == "sgld" else 0.0
        groups: Any = [{"params": [pair]} for pair in self.params.items()]
        self._optimizer = METHODS[settings.method](
            groups, lr=settings.lr, sigma=self._sigma, weight_decay=decay, seed=settings.key(""),
            stochastic_rounding=any(p.element_size() < 4 for p in self.params.values()),
        )  # fmt: skip
        self._kept: dict[str, npt.NDArray[Any]] = {}

    def open(self) -> None:
        """Make room for the draws, or go on with those in the folder."""
        shapes = {name: (self.settings.draws, *p.shape) for name, p in self.params.items()}
        kinds = {name: kind_of(p) for name, p in self.params.items()}
        folder = self.folder
        if folder is None:
            self._kept = {name: np.empty(shape, kinds[name]) for name, shape in shapes.items()}
        elif self._ranks.share((folder / CHECKPOINT).exists()):
            self._restore(read_checkpoint(folder / CHECKPOINT))
        else:

            def make() -> None:
                folder.mkdir(parents=True, exist_ok=True)
                for name, shape in shapes.items():
                    reserve_array(self._path(name), shape, kinds[name])

            self._write(make)
            self._save()

    @property
    def draws(self) -> dict[str, npt.NDArray[Any]]:
        count = len(self.losses)
        if self.folder is None:
            return {name: array[:count] for name, array in self._kept.items()}
        return {name: np.load(self._path(name), mmap_mode="r")[:count] for name in self.params}

    @property
    def noise_share(self) -> dict[str, float]:
        """By name: the variance that gradient noise adds, in units of the right variance."""
        total, count = self._measured
        share = self.settings.lr * total / count / (2.0 * self._sigma**2)
        share = torch.zeros_like(share) if self.is_exact else share
        return dict(zip(self.params, share.tolist(), strict=True))

    @property
    def is_done(self) -> bool:
        is_saved = self.folder is None or self._saved == self.step
        return bool(self.message) or (len(self.losses) == self.settings.draws and is_saved)

    def advance(self) -> None:
        """Do what is due: keep a draw, save, or step. What fails stays due."""
        s, step = self.settings, self.step
        saves = self.folder is not None and (step % self._every == 0 or step == s.steps)
        if len(self.losses) < (step - s.burn_in) // s.thin:
            self._keep()
        elif saves and step != self._saved:
            self._save()
        else:
            self._move()

    def set_weights(self, values: Mapping[str, Tensor]) -> None:
        """Give the model the weights of a draw."""
        for name, p in self.params.items():
            local(p.detach()).copy_(part_of(values[name], p))

    # ------------------------------------------------------------------------------------ steps

    def _move(self) -> None:
        """Take one step, or stop if the loss or the gradient is not finite."""
        s, params = self.settings, self.params.values()
        value, first = self._backward()
        grads = [local(p.grad) for p in params if p.grad is not None]
        is_bad = ~torch.stack([grad.isfinite().all() for grad in grads]).all()
        noises = [self._noise(i, first[i], grads[i]) for i in range(len(first))]
        counts = [torch.tensor(grad.numel()) for grad in grads[: len(first)]]
        found = self._ranks.sum([value, is_bad, *noises, *counts], self.reader.device)
        mean_loss = float(found[0]) / self._ranks.size
        if found[1] or not math.isfinite(mean_loss):
            is_finite = math.isfinite(mean_loss)
            what = "the gradient is not finite" if is_finite else f"the loss is {mean_loss}"
            self.message = f"{what} at step {self.step}; a smaller lr may help"
            return
        if first:
            self._measured += found[2:].view(2, -1)
        if s.method == "psgld":
            for grad, p in zip(grads, params, strict=True):
                grad.add_(local(p.detach()), alpha=self._precision)
        self._optimizer.step()
        self.step += 1
        if self.step > s.burn_in:
            self._loss_sum += mean_loss
        if self.step == s.burn_in and s.correct:
            shares = self.noise_share.values()
            for group, share in zip(self._optimizer.param_groups, shares, strict=True):
                if share < LARGEST_SHARE:
                    group["sigma"] = self._sigma * math.sqrt(1.0 - share)

    def _backward(self) -> tuple[Tensor, list[Tensor]]:
        """Fill `.grad` for this step. Return this rank's part of the loss and, where the noise is
        measured, the gradients of the first half of the batch."""
        s, (rank, ranks, _) = self.settings, self._ranks
        size, begin = s.batch_size, s.burn_in // 2
        indices = torch.arange(size)
        if not self.is_exact:
            indices = batch_indices(s.key("/batches"), self.step, size, len(self.reader))[0]
        every = max(1, (s.burn_in - begin) // MEASUREMENTS)
        measures = begin <= self.step < s.burn_in and (self.step - begin) % every == 0
        halves = [indices[: size // 2], indices[size // 2 :]]
        parts = halves if measures and size >= 2 and not self.is_exact else [indices]
        total, first = torch.zeros((), device=self.reader.device), list[Tensor]()
        for p in self.params.values():
            p.grad = None
        for some in parts:
            mine = part(len(some), rank, ranks)
            # A rank without samples passes one of weight 0, since the other ranks wait for it.
            rows = some[mine.start : mine.stop] if len(mine) else some[:1]
            with _exchange(self.model, True):
                value = self._loss(self.model, self.reader.take(rows)) * (len(mine) * ranks / size)
                value.backward()  # type: ignore[no-untyped-call]
            total = total + value.detach()
            for name, p in self.params.items():
                if p.grad is None:
                    need = "a loss that depends on it, or prior_sd, or requires_grad_(False)"
                    require(self._precision > 0.0, "parameter", name, need)
                    p.grad = torch.zeros_like(p)
                if some is halves[0]:
                    first.append(local(p.grad).clone())
        return total, first

    def _noise(self, number: int, first: Tensor, both: Tensor) -> Tensor:
        """Return the sum over elements of an estimate of C, in units of the temperature."""
        group, size = self._optimizer.param_groups[number], self.settings.batch_size
        rule, one, other = rule_of(group), size // 2, size - size // 2
        found = (first / one - (both - first) / other).square() * (one * other)
        if rule.alpha != rule.beta:  # D scales the gradient and the noise by different powers
            state = self._optimizer.state[group["params"][0]]
            scale = coefficients(rule, int(state["step"]), torch.float64)
            d = local(state["sum"]) * scale.correction + scale.shift
            found = found * d ** (rule.beta - rule.alpha)
        return found.sum()

    # ------------------------------------------------------------------------- draws and files

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name.replace('/', '%2F')}.npy"

    def _whole(self, tensor: Any, everywhere: bool = False) -> Tensor:
        """Return a tensor on the CPU, gathered from its shards; on other ranks than the first an
        empty one, unless it is wanted everywhere."""
        found = tensor.detach()
        found = found.full_tensor() if hasattr(found, "full_tensor") else found
        return found.cpu() if everywhere or self._ranks.rank == 0 else torch.empty(0)

    def _keep(self) -> None:
        """Keep the present weights as the next draw."""
        number, last, in_memory = len(self.losses), self.settings.draws, self.folder is None
        values = {
            name: self._whole(p, in_memory).to(getattr(torch, kind_of(p))).numpy()
            for name, p in self.params.items()
        }

        def put() -> None:
            for name, value in values.items():
                with open(self._path(name), "r+b") as file:
                    size = os.fstat(file.fileno()).st_size
                    file.seek(size - (last - number) * value.nbytes)
                    file.write(value.tobytes())
                    file.flush()
                    os.fsync(file.fileno())

        if in_memory:
            for name, value in values.items():
                self._kept[name][number] = value
        else:
            self._write(put)
        self.losses.append(self._loss_sum / self.settings.thin)
        self._loss_sum = 0.0
        if self._progress and self._ranks.rank == 0:
            end = "\n" if number + 1 == last else ""
            print(f"\rdraw {number + 1} of {last}", end=end, file=sys.stderr, flush=True)

    def _save(self) -> None:
        """Write a checkpoint of whole tensors, which any number of ranks can read."""
        assert self.folder is not None
        path, states = self.folder / CHECKPOINT, self._optimizer.state
        content = {
            "settings": asdict(self.settings),
            "step": self.step,
            "losses": self.losses,
            "loss_sum": self._loss_sum,
            "measured": self._measured,
            "sigma": [group["sigma"] for group in self._optimizer.param_groups],
            "weights": {name: self._whole(p) for name, p in self.params.items()},
            "sums": {name: self._whole(states[p]["sum"]) for name, p in self.params.items()},
            "buffers": [self._whole(buffer) for buffer in self.model.buffers()],
        }
        self._write(lambda: write_checkpoint(path, content))
        self._saved = self.step

    def _write(self, write: Callable[[], None]) -> None:
        """Let the first rank write. If it cannot, all ranks raise."""
        failure: tuple[int | None, str] | None = None
        if self._ranks.rank == 0:
            try:
                write()
            except OSError as error:
                failure = error.errno, error.strerror or str(error)
        failure = self._ranks.share(failure)
        if failure is not None:
            raise OSError(
                failure[0],
                f"folder={str(self.folder)!r}: {failure[1]}; need room for {self.settings.draws} "
                f"draws. The {len(self.losses)} so far are kept, and the same call goes on",
            )

    def _restore(self, content: Mapping[str, Any]) -> None:
        for name, value in asdict(self.settings).items():
            saved = content["settings"].get(name)
            if saved != value:
                raise ValueError(
                    f"{name}={value!r}: the chain in folder={str(self.folder)!r} has "
                    f"{name}={saved!r}; give the same arguments to go on, or another folder"
                )
        self.step = self._saved = content["step"]
        self.losses, self._loss_sum = content["losses"], content["loss_sum"]
        self._measured = content["measured"]
        self.set_weights(content["weights"])
        for buffer, value in zip(self.model.buffers(), content["buffers"], strict=True):
            buffer.copy_(value)
        for group, sigma in zip(self._optimizer.param_groups, content["sigma"], strict=True):
            group["sigma"] = sigma
        for name, p in self.params.items():
            state = self._optimizer.state[p]
            local(state["sum"]).copy_(part_of(content["sums"][name], p))
            state["step"].fill_(self.step)
