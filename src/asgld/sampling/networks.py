"""Weights of a network drawn from their posterior, by Langevin steps on batches of the data.

The sampled density is proportional to exp(-(n loss(w) + |w|^2 / (2 prior_sd^2)) / temperature),
where n is the number of data and loss is the mean over them. The steps and the noise are those of
:class:`asgld.SGLD` or :class:`asgld.PSGLD`. Batches are a function of seed, chain and step. So a
chain is the same on any number of ranks, up to rounding, and after any kill, bit for bit.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from asgld.arguments import require
from asgld.data.batches import _map
from asgld.optim.state import local
from asgld.sampling.diagnosis import rhat
from asgld.sampling.network_chain import (
    LARGEST_SHARE,
    METHODS,
    ChainSettings,
    NetworkChain,
    kept_lr,
)
from asgld.sampling.network_parts import (
    Loss,
    Reader,
    check_model,
    evaluating,
    hash_of,
    largest_curvature,
    named,
)


def posterior_options(
    num_data: int, prior_sd: float | None = None, temperature: float = 1.0
) -> dict[str, float]:
    """Return the options of :class:`asgld.SGLD` for a posterior, with gradients of a MEAN loss.

    Args:
        num_data: n, the size of the data set, not of a batch.
        prior_sd: standard deviation of a Gaussian prior on every weight; None is a flat prior.
        temperature: 1 is the posterior; a lower one makes it narrower.

    Example:
        >>> posterior_options(400, prior_sd=0.5)
        {'sigma': 0.05, 'weight_decay': 0.01}
    """
    require(num_data >= 1, "num_data", num_data, "the number of samples, at least 1")
    require(0.0 < temperature < math.inf, "temperature", temperature, "a positive finite number")
    fits = prior_sd is None or 0.0 < prior_sd < math.inf
    require(fits, "prior_sd", prior_sd, "a positive finite number, or None for a flat prior")
    precision = 0.0 if prior_sd is None else 1.0 / (num_data * prior_sd**2)
    return {"sigma": math.sqrt(temperature / num_data), "weight_decay": precision}


def sample_network(
    model: nn.Module,
    *,
    data: Any,
    loss: Loss,
    lr: float | None = None,
    num_data: int | None = None,
    prior_sd: float | None = None,
    temperature: float = 1.0,
    method: str = "sgld",
    batch_size: int | None = None,
    draws: int = 100,
    burn_in: int = 1000,
    thin: int = 100,
    correct: bool = True,
    seed: int = 0,
    chain: int = 0,
    folder: str | Path | None = None,
    checkpoint_every: int = 100,
    progress: bool = False,
) -> NetworkSamples:
    """Draw the trainable weights of a network from their posterior.

    The chain begins at the weights of the model and moves them. It runs when the result is iterated
    or collected. Afterwards the model is at the last weights of the chain.

    Args:
        model: plain, in DistributedDataParallel, or sharded by `fully_shard`. It runs in the mode
            that it is in; dropout must be off.
        data: tensors with samples along the first dimension (one, or a tuple, list or dict), or a
            map-style data set. Every rank has all of the data and takes its part of each batch.
        loss: `loss(model, batch)`, the MEAN over the samples of the batch.
        lr: step size, for gradients of the mean loss. None, for "sgld", is a tenth of the inverse
            of the largest curvature at the weights that the model has: train it first.
        num_data: n; by default the length of `data`.
        prior_sd, temperature: see :func:`asgld.posterior_options`.
        method: "sgld", or "psgld", which scales the steps of each weight.
        batch_size: samples of a step, over all ranks, drawn with replacement; None is all data.
        draws: number of draws.
        burn_in, thin: steps before the first interval, and steps of the interval before each draw.
        correct: lower the injected noise of each parameter by the noise of its batch gradients, if
            their share of the variance is below 0.9. The noise is averaged over a parameter.
        seed, chain: key of the noise and of the batches. No two pairs share noise.
        folder: write the draws there, one `<name>.npy` of shape (draws, ...) per parameter, in
            which draws to come are nan, and a checkpoint. The same call goes on after a kill, on
            any number of ranks. All ranks must see the folder.
        checkpoint_every: steps between checkpoints.
        progress: count the draws on stderr.

    Example:
        >>> x = torch.linspace(-1, 1, 50)[:, None]
        >>> loss = lambda model, batch: (model(batch[0]) - batch[1]).square().mean() / 2
        >>> model = torch.nn.Linear(1, 1)
        >>> samples = sample_network(model, data=(x, 2 * x), loss=loss, lr=0.1, draws=5, thin=20)
        >>> len(samples.collect()), samples.draws["weight"].shape
        (5, (5, 1, 1))
    """
    whole = {"draws": (draws, 1), "burn_in": (burn_in, 0), "thin": (thin, 1), "seed": (seed, 0),
             "chain": (chain, 0), "checkpoint_every": (checkpoint_every, 1)}  # fmt: skip
    for name, (value, least) in whole.items():
        is_whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
        require(is_whole, name, value, f"a whole number of at least {least}")
    need = "True or False: for a network the noise of batches is lowered, or not"
    require(isinstance(correct, bool), "correct", correct, need)
    require(callable(loss), "loss", loss, "a function of the model and a batch")
    require(method in METHODS, "method", method, "'sgld' or 'psgld'")
    fits = lr is None or 0.0 < lr < math.inf
    require(fits, "lr", lr, "a positive finite number, or None to measure it")
    steps = burn_in + draws * thin
    require(steps < 2**32, "draws", draws, f"burn_in + draws * thin < 2**32, not {steps}")
    reader = Reader(data, model)
    n = len(reader)
    num_data = n if num_data is None else num_data
    target = posterior_options(num_data, prior_sd, temperature)
    fits = batch_size is None or 1 <= batch_size <= n
    require(fits, "batch_size", batch_size, f"1 to {n}, the number of samples, or None for all")
    batch_size = n if batch_size is None else batch_size
    if correct and batch_size < n:
        why = "to measure the gradient noise, or correct=False"
        require(batch_size >= 2, "batch_size", batch_size, f"at least 2 {why}")
        require(burn_in >= 20, "burn_in", burn_in, f"at least 20 {why}")
    some = reader.take(torch.linspace(0, n - 1, min(n, 16)).long())
    if lr is None:
        if method == "psgld":
            raise TypeError("lr is missing: PSGLD needs one, about the size of a step of a weight")
        many = reader.take(torch.linspace(0, n - 1, min(n, 1024)).long())
        lr = kept_lr(folder)
        if lr is None:
            lr = 0.1 / (largest_curvature(model, loss, many) + target["weight_decay"])
    parameters = str([(name, *p.shape, p.dtype) for name, p in named(model).items()])
    settings = ChainSettings(
        method=method, lr=lr, num_data=num_data, prior_sd=prior_sd, temperature=temperature,
        batch_size=batch_size, draws=draws, burn_in=burn_in, thin=thin, correct=correct, seed=seed,
        chain=chain, data=f"{n} samples, hash {hash_of(some)}", parameters=hash_of(parameters),
    )  # fmt: skip
    place = None if folder is None else Path(folder)
    with warnings.catch_warnings(record=True) as equal_noise:
        warnings.simplefilter("always")
        chained = NetworkChain(
            model, settings, target, loss, reader, place, checkpoint_every, progress
        )
    check_model(model, loss, some)
    chained.open()
    if equal_noise and chained.step == 0:
        warnings.warn(
            f"another sampler of this process had seed={seed} and chain={chain}, and so the same "
            f"noise and batches; for another chain say chain={chain + 1}",
            stacklevel=3,
        )
    return NetworkSamples(chained)


class Prediction(NamedTuple):
    """Mean and standard deviation over draws; the latter is nan for a single draw."""

    mean: Tensor
    sd: Tensor


class NetworkSamples:
    """Draws of a network's weights, made when they are asked for.

    It is an iterator over the draws, each a dict of names and CPU tensors, whole on every rank. A
    `for` loop begins at the first draw; draws that exist are read, not made again. All ranks must
    iterate, collect and predict together.

    ============  ==========================================================================
    member        meaning
    ============  ==========================================================================
    model         the model, at the weights that the chain has reached
    settings      what the draws depend on
    draws         the draws so far: arrays (draws, ...) by name; those in a folder stay there
    losses        the mean loss in the interval before each draw
    noise_share   by name: the variance that gradient noise adds, in units of the right variance,
                  before it is corrected; nan if it was not measured
    step          steps so far
    message       why the chain stopped early; "" if it did not
    ============  ==========================================================================
    """

    def __init__(self, chain: NetworkChain) -> None:
        self._chain, self._position = chain, 0
        self.model, self.settings = chain.model, chain.settings

    def __iter__(self) -> NetworkSamples:
        self._position = 0
        return self

    def __next__(self) -> dict[str, Tensor]:
        while len(self) <= self._position and not self._chain.is_done:
            self._chain.advance()
        if len(self) <= self._position:
            raise StopIteration
        self._position += 1
        return self[self._position - 1]

    def __len__(self) -> int:
        """Return the number of draws so far."""
        return len(self._chain.losses)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        if not -len(self) <= number < len(self):
            raise IndexError(f"draw {number}: there are {len(self)} draws so far")
        return {name: torch.from_numpy(np.array(a[number])) for name, a in self.draws.items()}

    def collect(self) -> NetworkSamples:
        """Run the chain to its end."""
        while not self._chain.is_done:
            self._chain.advance()
        return self

    @property
    def draws(self) -> dict[str, npt.NDArray[Any]]:
        return self._chain.draws

    @property
    def losses(self) -> npt.NDArray[np.float64]:
        return np.array(self._chain.losses)

    @property
    def noise_share(self) -> dict[str, float]:
        return self._chain.noise_share

    @property
    def step(self) -> int:
        return self._chain.step

    @property
    def message(self) -> str:
        return self._chain.message

    def predict(self, inputs: Any, function: Callable[[Any], Tensor] | None = None) -> Prediction:
        """Return mean and standard deviation of `function(model(inputs))` over the draws so far.

        The model is in evaluation mode meanwhile. It gets its weights and its mode back.

        Args:
            inputs: what the model takes: a tensor, or tensors in tuples, lists and dicts.
            function: of the output, such as `lambda y: y.softmax(-1)`; None is the output itself.
        """
        if not len(self):
            raise ValueError("there are no draws yet; call collect() first")
        chain, device = self._chain, self._chain.reader.device
        inputs = _map(inputs, lambda tensor: tensor.to(device))
        held = [local(p.detach()).clone() for p in chain.params.values()]
        mean = squares = torch.zeros((), device=device)
        try:
            for number in range(len(self)):
                chain.set_weights(self[number])
                with evaluating(self.model):
                    output = self.model(inputs)
                    value = output if function is None else function(output)
                value = value if value.is_floating_point() else value.float()
                gap = value - mean
                mean = mean + gap / (number + 1)
                squares = squares + gap * (value - mean)
        finally:
            for p, before in zip(chain.params.values(), held, strict=True):
                local(p.detach()).copy_(before)
        return Prediction(mean, (squares / (len(self) - 1 or math.nan)).sqrt())

    def __repr__(self) -> str:
        s, (name, share) = self.settings, max(self.noise_share.items(), key=lambda pair: pair[1])
        text = "gradient noise: not measured"
        if share < LARGEST_SHARE:
            text = f"gradient noise: adds {share:.1%} to the variance at most ({name})"
            text += ", corrected" if s.correct and share and self.step >= s.burn_in else ""
        elif not math.isnan(share):
            text = f"gradient noise: adds {share:.0%} to the variance ({name}), too much to correct"
            text += f"; use lr={0.5 * s.lr / share:.2g} or larger batches"
        lines = [
            f"NetworkSamples: {len(self)} of {s.draws} draws, {self.step} of {s.steps} steps",
            f"{s.method}, lr={s.lr:g}, temperature={s.temperature:g}, batches of {s.batch_size} "
            f"from {len(self._chain.reader)} samples, seed={s.seed}, chain={s.chain}",
            text,
        ]
        half = len(self) // 2
        found = float(rhat(np.array([self.losses[:half], self.losses[len(self) - half :]])))
        if not math.isnan(found):
            advice = "; not settled: raise burn_in, thin or draws" if found > 1.05 else ""
            lines.append(f"loss: R-hat of the two halves {found:.3f}{advice}")
        return "\n    ".join(lines + [f"stopped: {self.message}"] * bool(self.message))
