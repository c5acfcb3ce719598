"""`asgld.sample`: measure, draw, check. It has no loop, oracle or noise of its own."""

from __future__ import annotations

import inspect
import math
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from asgld import noise
from asgld.arguments import require
from asgld.methods.base import normals
from asgld.oracle.forms import read_start
from asgld.run import Progress, Run, run
from asgld.run.files import read_checkpoint, reserve_array, write_checkpoint
from asgld.run.stopping import Stop
from asgld.sampling import diagnosis
from asgld.sampling.chains import Chains, chain_key
from asgld.sampling.networks import NetworkSamples, sample_network
from asgld.sampling.samples import FloatArray, Samples, StepCheck
from asgld.sampling.target import read_target
from asgld.sampling.tuning import (
    PLAIN_STEP,
    RARELY,
    STEP,
    Tuner,
    Tuning,
    corrected,
)

METHODS = ("sgld", "psgld")
CORRECTIONS = ("auto", "both", "noise", "control", "none")
METRICS = ("auto", "dense", "diagonal", "none")
STARTS = ("mode", "x0", "anneal")
# The check by half the step makes one draw for so many, and takes twice the steps for each.
_CHECK_PART = 8
# It makes at least so many for each chain, and tells nothing below so many effective ones.
_LEAST_CHECK, _LEAST_EFFECTIVE = 25, 60.0
# A warning tells of more steps than so many times those for a normal density, of so many draws.
_LONG, _USUAL_DRAWS = 20, 1000
# What to do where the density ends.
_END = (
    "for x > 0 sample y = log(x), and add y.sum(), the log of the Jacobian, to the log density "
    "(subtract it from num_data * loss)"
)
# The memory of PSGLD's D, by default.
_DECAY = 0.99


@overload
def sample(target: nn.Module, **options: Any) -> NetworkSamples: ...


@overload
def sample(target: Any, x0: Any, **options: Any) -> Samples: ...


def sample(target: Any, x0: Any = None, **options: Any) -> Samples | NetworkSamples:
    """Draw from the posterior of a loss, from a density, or from that of a network's weights.

    Args:
        target: a loss, a log density, or a network.
        x0: a start in the form of x, as for :func:`asgld.minimize`; not for a network.
        **options: for a loss or a log density num_data, prior_sd, log_density, temperature,
            method, chains, draws, burn_in, thin, batch_size, correct, lr, metric, look_back, start,
            step_check, seed, folder, checkpoint_every and progress:
            ``help(asgld.sampling.sample_function)`` explains them. For a network data, loss, lr,
            num_data, prior_sd, temperature, method, batch_size, draws, burn_in, thin, correct,
            seed, chain, folder, checkpoint_every and progress:
            ``help(asgld.sampling.sample_network)``.

    >>> import torch, asgld
    >>> data = torch.tensor([1.2, 0.8, 1.1, 0.9], dtype=torch.float64)
    >>> loss = lambda x: ((data - x) ** 2).mean() / 2         # n loss(x) = -log likelihood
    >>> found = asgld.sample(loss, torch.zeros(1), num_data=4, draws=2000, chains=8)
    >>> abs(float(found.mean[0]) - 1.0) < 0.05, abs(float(found.sd[0]) - 0.5) < 0.03
    (True, True)
    """
    if "prox" in options:
        raise TypeError(
            "prox: a chain takes no proximal steps, which would draw from another density; add the "
            "penalty to the loss, divided by num_data, or to the log density"
        )
    if isinstance(target, nn.Module):
        if x0 is not None:
            raise TypeError("x0 with a network: its weights are the start; leave x0 out")
        if "chains" in options:
            raise TypeError("chains with a network: a call is one chain; use chain=0, 1, and so on")
        _refuse_unknown(options, sample_network)
        return sample_network(target, **options)
    _refuse_unknown(options, sample_function)
    if x0 is None:
        raise TypeError("x0 is missing: need a start in the form of x")
    return sample_function(target, x0, **options)


def _refuse_unknown(options: dict[str, Any], call: Callable[..., Any]) -> None:
    """Raise if a function takes no such options."""
    parameters = inspect.signature(call).parameters.values()
    known = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    if unknown := [name for name in options if name not in known]:
        what = f"bounds: a chain has none; {_END}" if "bounds" in unknown else repr(unknown[0])
        raise TypeError(f"unknown option {what}; known are {', '.join(known)}")


def sample_function(
    target: Any,
    x0: Any,
    *,
    num_data: int | None = None,
    prior_sd: Any = None,
    log_density: bool = False,
    temperature: float = 1.0,
    method: str = "sgld",
    chains: int = 4,
    draws: int = 1000,
    burn_in: int | None = None,
    thin: int | None = None,
    batch_size: int | None = None,
    correct: str = "auto",
    lr: float | None = None,
    metric: str = "auto",
    look_back: bool = True,
    start: str = "mode",
    step_check: bool = True,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1000,
    progress: bool = False,
) -> Samples:
    r"""Draw from exp(-n loss(x) - |x / prior_sd|^2 / 2), or from exp(log_density(x)).

    With U minus the log density, normal z and x = c + A (w - n' / 2), a step is

    .. math::
        w \leftarrow w - \eta B^\top \nabla U(x) + n, \quad n = \sqrt{2 \eta}\, z

    where n' is the noise of the step before: gradients are taken, and draws made, half of it back
    (Leimkuhler and Matthews 2013). c is the mode. A = B = H^(-1/2), with H the Hessian there, above
    1,024 dimensions its diagonal. Batches add noise of covariance C to the step; then
    A = H^(-1/2) S^(1/2) and B = H^(-1/2) S^(-1/2), with S = I - eta C / (2 - eta), so that both
    kinds of noise add up to the right spread.

    Args:
        target: loss(x) or loss(x, indices), the mean over `num_data` data or over those in
            `indices`: the loss of one datum is minus its log likelihood. Or, with
            ``log_density=True``, the log of the density up to a constant.
        x0: a start in the form of x, as for :func:`asgld.minimize`. An array with a leading axis of
            length `chains` is a start for each chain.
        num_data: n. It sets how narrow the posterior is.
        prior_sd: sd of a normal prior around 0: a number, or numbers in the form of x0. None is a
            flat prior.
        log_density: `target` is a log density.
        temperature: 1 is the posterior; other values sample its power 1 / temperature.
        method: "sgld", or "psgld" with a D that follows the gradients.
        chains: how many, run as one.
        draws: how many of each chain.
        burn_in: steps before the first draw, after the measurements; None is 10 / lr, and more
            where the metric leaves curvatures below 1.
        thin: steps between draws; None is 1 / lr, and more likewise.
        batch_size: data in a gradient; None is all.
        correct: what is done about the noise of batches. "control" takes away each batch's error at
            the mode, "noise" lowers the injected noise by that of the batches, "both" and "none"
            as the words say; "auto" is "both" or "noise", by which needs fewer gradients. PSGLD
            knows "control" alone.
        lr: step size in units of the inverse curvature at the mode; None is measured.
        metric: "dense", "diagonal" or "none": which part of the curvature at the mode is divided
            out. "auto" is dense up to 1,024 dimensions. PSGLD has a metric of its own.
        look_back: take gradients half a noise step back, which removes the error of first order in
            lr. PSGLD does not.
        start: "mode": chains begin at the mode that descent from x0 finds; where x0 has a row for
            each chain, there. "x0": at x0. "anneal": where a search by annealed ASGLD from x0 ends,
            for each chain. None of them finds every mode, and no verdict covers one that no chain
            has met.
        step_check: draw some more with half the step, to see the bias of the step. Without them
            the verdict says nothing of the spread.
        seed: of all randomness. Chains never share noise.
        folder: for draws on disk (`draws.npy`) and for checkpoints. A run that was killed goes on
            when it is called again with the same arguments, and gives the same draws.
        checkpoint_every: steps between checkpoints.
        progress: show a line on standard error.
    """
    choices = {
        "method": (method, METHODS), "correct": (correct, CORRECTIONS),
        "metric": (metric, METRICS), "start": (start, STARTS),
    }  # fmt: skip
    for name, (word, known) in choices.items():
        require(word in known, name, word, f"one of {', '.join(known)}")
    counts = {
        "chains": (chains, 1), "draws": (draws, 1), "checkpoint_every": (checkpoint_every, 1),
        "burn_in": (0 if burn_in is None else burn_in, 0), "thin": (1 if thin is None else thin, 1),
    }  # fmt: skip
    for name, (count, least) in counts.items():
        is_count = isinstance(count, int) and not isinstance(count, bool) and count >= least
        require(is_count, name, count, f"a whole number of at least {least}")
    is_step = lr is None or (isinstance(lr, int | float) and 0 < lr < math.inf)
    require(is_step, "lr", lr, "a positive number, or None")
    noise.check_seed(seed)
    form, rows = read_start(x0, chains)
    potential = read_target(
        target, form, rows, num_data=num_data, prior_sd=prior_sd, log_density=log_density,
        temperature=temperature, batch_size=batch_size,
    )  # fmt: skip
    settings: dict[str, Any] = {
        "num_data": num_data, "temperature": temperature, "method": method, "chains": chains,
        "draws": draws, "burn_in": burn_in, "thin": thin, "batch_size": batch_size,
        "correct": correct, "lr": lr, "metric": metric, "look_back": look_back, "start": start,
        "step_check": step_check, "seed": seed,
    }  # fmt: skip
    tuner = Tuner(potential, rows, seed, method)
    store = None if folder is None else Path(folder)
    try:
        tuning = _tuned(tuner, settings, store)
    except ValueError as error:
        if re.search("not finite|non-finite", str(error)) is None:
            raise
        text = str(error).replace(", or give bounds", "")
        raise ValueError(f"{text}. A chain has no bounds: {_END}") from error
    lr = tuning.lr
    if thin is None:
        _warn_of_steps(tuning, settings)
    settings |= {
        "correct": tuning.correct,
        "lr": lr,
        "burn_in": math.ceil(10.0 / (lr * tuning.pace)) if burn_in is None else burn_in,
        "thin": tuning.thin if thin is None else thin,
    }
    keeping = _Keeping(store, checkpoint_every, progress)
    main = _Part("draws", tuner, tuning, settings, keeping)
    if not main.draws.shape[1]:
        raise KeyboardInterrupt("no draw was made")
    check = None
    if step_check and not main.is_interrupted:
        half = {**settings, "lr": lr / 2, "burn_in": 0, "thin": 2 * settings["thin"],
                "draws": max(draws // _CHECK_PART, _LEAST_CHECK)}  # fmt: skip
        other = _Part("check", tuner, replace(tuning, x=main.run.x), half, keeping)
        check = _bias(main.draws, other.draws, order=2 if main.chains.looks_back else 1)
        if other.is_interrupted:
            main.notes["step"] = "the check of the step was interrupted"
        elif check is None:
            main.notes["step"] = "too few effective draws to see the bias of the step"
    heat, errors = main.temperatures()
    before = tuning.gradients if tuner.is_restored else 0.0
    return Samples(
        draws=main.draws, form=form, lr=lr, mode=tuning.metric.center.numpy(),
        temperatures=heat, temperature_errors=errors,
        curvature=tuning.curvature if tuning.metric.push.dim() == 2 else math.nan,
        noise_share=tuning.share,
        step_check=check, gamma_part=main.gamma_part(tuner), gradients=before + tuner.gradients,
        sampling_gradients=main.sampling_gradients, messages=main.lost, settings=settings,
        notes={**tuning.notes, **potential.remarks, **main.notes},
    )  # fmt: skip


def _tuned(tuner: Tuner, settings: dict[str, Any], store: Path | None) -> Tuning:
    """Measure, or read the measurements of a run that was interrupted."""
    x0 = tuner.start
    # Points around x0 tell one density from another.
    around = x0[:1] + (1.0 + x0[:1].abs()) * normals(
        chain_key(0, "identity"), 0, x0.new_empty(4, 1)
    )
    values = [f"{value:.12g}" for value in tuner.free.value(torch.cat((x0[:1], around))).tolist()]
    identity = {**settings, "x0": x0, "density around x0": ", ".join(values)}
    path = None if store is None else store / "tuning.pt"
    if path is not None and path.exists():
        saved = read_checkpoint(path)
        for name, value in identity.items():
            old = saved["identity"].get(name)
            same = torch.equal(old, value) if isinstance(value, Tensor) else old == value
            if not same:
                raise ValueError(
                    f"folder={str(store)!r} belongs to another run: its {name} is {old!r}, this "
                    f"run's is {value!r}; choose another folder, or empty it"
                )
        tuner.is_restored = True
        return Tuning.unpacked(saved["tuning"])
    tuning = _measured(tuner, settings)
    if path is not None:
        write_checkpoint(path, {"identity": identity, "tuning": tuning.pack()})
    return tuning


def _step(settings: dict[str, Any]) -> float:
    """The step in units of the inverse of the largest curvature."""
    is_plain = settings["method"] == "psgld" or not settings["look_back"]
    return PLAIN_STEP if is_plain else STEP


def _warn_of_steps(tuning: Tuning, settings: dict[str, Any]) -> None:
    """Warn of many steps for each draw, with their cause and what to do."""
    num_steps = settings["draws"] * tuning.thin
    usual = max(settings["draws"], _USUAL_DRAWS) / _step(settings)
    if num_steps <= _LONG * usual:
        return
    if settings["lr"] is not None:
        cause, remedy = f"lr={tuning.lr:.3g} is short", "leave lr out, or give thin"
    elif tuning.covariance is not None and tuning.lr * tuning.curvature < 0.5 * _step(settings):
        cause, remedy = "batches are noisy", "take a larger batch_size, or give thin"
    else:
        size = f"{tuning.curvature / tuning.pace:.0f} times its usual size"
        cause = f"the curvature is up to {size}"
        remedy = (
            "another parametrization may need fewer (the log of a positive parameter, effects in "
            "units of their scale); or give thin or lr"
        )
    text = f"{num_steps:,} steps, {tuning.thin:,} for each draw, since {cause}"
    tuning.notes["steps"] = text
    warnings.warn(f"{text}: {remedy}", stacklevel=4)


def _measured(tuner: Tuner, settings: dict[str, Any]) -> Tuning:
    """Find the mode, the metric, the step and the noise of batches."""
    center = tuner.begin(settings["start"])
    metric = tuner.metric(center, settings["metric"])
    step, adapts = _step(settings), settings["metric"] != "none"
    tuning = tuner.pilot(metric, step, settings["lr"], step == STEP, adapts)
    size = settings["batch_size"]
    if size is not None and size < (tuner.potential.num_samples or 0):
        is_open = settings["lr"] is None
        tuning.correct = tuner.fit_batches(tuning, size, settings["correct"], is_open)
    tuning.gradients, tuning.notes = tuner.gradients, tuner.notes
    return tuning


@dataclass(frozen=True)
class _Keeping:
    """Where draws and checkpoints go, how often, and whether the user sees a line."""

    store: Path | None
    every: int
    progress: bool

    def array(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        """An array of nan in memory or on disk, or the one that an interrupted run has left."""
        if self.store is None:
            return np.full(shape, np.nan)
        path = self.store / f"{name}.npy"
        if not path.exists():
            reserve_array(path, shape)
        found: FloatArray = np.load(path, mmap_mode="r+")
        return found


class _Part:
    """Draws of one step size: their run, and what it measured on the way."""

    def __init__(
        self, name: str, tuner: Tuner, tuning: Tuning, settings: dict[str, Any], keeping: _Keeping
    ) -> None:
        self.lr, self.burn_in, self.thin = (settings[w] for w in ("lr", "burn_in", "thin"))
        num_draws, dim = settings["draws"], tuner.potential.dim
        self.num_steps = self.burn_in + num_draws * self.thin
        metric, rule = tuning.metric, settings["method"]
        lowers_noise = rule == "sgld" and settings["correct"] in ("both", "noise")
        if tuning.covariance is not None and lowers_noise:
            metric = corrected(metric, tuning.covariance, self.lr)
        self.chains = Chains(
            rule, self.lr, metric, settings["batch_size"], tuning.center_grad,
            settings["look_back"] and rule == "sgld", (self.burn_in, self.num_steps),
        )  # fmt: skip
        self.keeping = keeping
        self.draws = keeping.array(name, (settings["chains"], num_draws, dim))
        self.state: dict[str, Any] | None = None
        path = None if keeping.store is None else keeping.store / f"{name}.pt"
        self.run: Run = run(
            tuner.oracle, self.chains, tuning.x, max_steps=self.num_steps, record=RARELY,
            callback=self._collect, seed=chain_key(settings["seed"], name), checkpoint=path,
            checkpoint_every=keeping.every, progress=keeping.progress,
        )  # fmt: skip
        if path is not None and path.exists():
            self.state = read_checkpoint(path)["states"][0]
        self.sampling_gradients = float(self.run.counts.spent.sum()) * (
            1.0 - self.burn_in / self.num_steps
        )
        self.lost = {
            c: text
            for c, (stop, text) in enumerate(zip(self.run.stops, self.run.messages, strict=True))
            if stop is Stop.NON_FINITE
        }
        self.is_interrupted = Stop.INTERRUPTED in self.run.stops
        self.notes = {}
        if self.is_interrupted:
            complete = max(int(self.run.steps.max()) - self.burn_in, 0) // self.thin
            self.draws = self.draws[:, :complete]
            self.notes["stop"] = f"interrupted: {complete} of {num_draws} draws were made"

    def _collect(self, news: Progress) -> None:
        number, rest = divmod(news.step - self.burn_in, self.thin)
        if number > 0 and rest == 0:
            self.draws[:, number - 1] = news.x.numpy()
            if not news.active.all():
                self.draws[~news.active, number - 1] = np.nan
        if isinstance(self.draws, np.memmap):
            if news.step % self.keeping.every == 0 or news.step == self.num_steps:
                self.draws.flush()  # before the checkpoint that counts them as drawn
        elif news.step == self.num_steps or not news.active.any():
            self.state = news.state.pack()

    def temperatures(self) -> tuple[FloatArray, FloatArray]:
        """Configurational temperatures of the coordinates, and their standard errors."""
        dim = self.draws.shape[-1]
        kept = [c for c in range(len(self.draws)) if c not in self.lost]
        if self.state is None or not kept or self.is_interrupted:
            return np.full(dim, np.nan), np.full(dim, np.nan)
        parts = self.state["virial"][:, kept].reshape(-1, dim).numpy()
        squares = parts.var(0, ddof=1) / len(parts)
        # Few parts tell their variance badly; all coordinates together tell it better.
        squares = (len(parts) * squares + 8 * squares.mean()) / (len(parts) + 8)
        return parts.mean(0), np.sqrt(squares)

    def gamma_part(self, tuner: Tuner) -> float | None:
        """Size of the term that PSGLD leaves out, as a part of its drift.

        With D the average of squared gradients, the term is (1 - decay) H D^(-1) times the drift,
        for each coordinate, H being the diagonal of the Hessian.
        """
        if self.chains.rule != "psgld" or self.state is None:
            return None
        sums = self.state["optimizer"]["state"][0]["sum"]
        curvature = tuner.diagonal(self.chains.metric.center).abs()
        return float((1.0 - _DECAY) * (curvature / sums.mean(0)).median())


def _bias(draws: FloatArray, half: FloatArray, order: int) -> StepCheck | None:
    """The bias of the step, from draws of the step and of half of it."""
    kept = np.isfinite(draws).all((1, 2)) & np.isfinite(half).all((1, 2))
    draws, half = np.asarray(draws[kept]), np.asarray(half[kept])
    if not all(diagnosis.ess_mean(rows).min() >= _LEAST_EFFECTIVE for rows in (draws, half)):
        return None  # too few, or nan
    means, sds, mean_errors, sd_errors = (
        [f(rows) for rows in (draws, half)]
        for f in (
            lambda rows: rows.mean((0, 1)),
            lambda rows: rows.std((0, 1), ddof=1),
            diagnosis.mcse_mean,
            diagnosis.mcse_sd,
        )
    )
    # bias(lr) - bias(lr / 2) = bias(lr) (1 - 2^-order)
    factor = 1.0 / (1.0 - 2.0**-order) / sds[0]
    return StepCheck(
        factor * (means[0] - means[1]),
        factor * (sds[0] - sds[1]),
        factor * np.hypot(*mean_errors),
        factor * np.hypot(*sd_errors),
    )
