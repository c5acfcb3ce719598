"""Sections 1 and 3: what the update rule is, and what it is said to be good for.

Special cases run beside the methods that they should be. Rare features: logistic regression where
feature j of 200 is 1 with probability 1/(1 + j)^1.2 and labels follow a logistic model with normal
weights. Each replica has its own data set, and each method's lr is chosen on other data sets than
those on which it is judged; the noise of the Langevin methods is small, sigma = 1e-3.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asgld.methods import normals
from asgld.noise import Draw, Layout, torch_normals
from asgld_study.chains import View, follow, noisy
from asgld_study.drawing import legend, outer, panels, picture, plot
from asgld_study.engine import Outcomes, Size, Task, experiment, task
from asgld_study.judge import SLACK, Checks, at_least, at_most, between, claim
from asgld_study.landscapes import LANDSCAPES, start
from asgld_study.page import Row, table
from asgld_study.paper.simulation import SIGMAS
from asgld_study.statistics import Estimate, mean, mean_difference, median, ratio_of_medians

# ------------------------------------------------------------------------------------ special cases

LR, SIGMA, STEPS, VARIANCE = 0.1, 0.3, 200, 0.3
_WAVES = LANDSCAPES["waves"]
# Two laws are the same as far as a study can tell when their distribution functions are this close.
SAME_LAW = 0.05


def _end(name: str, **options: Any) -> Tensor:
    """Where noisy gradients lead."""
    feed = noisy(VARIANCE, seed=1)
    return follow(name, _WAVES, start(8), steps=STEPS, feed=feed, lr=LR, **options)


def _gap(a: Tensor, b: Tensor) -> float:
    """Largest difference; infinite where a number is not finite."""
    return float(torch.nan_to_num((a - b).abs(), nan=math.inf).max())


def measure_cases() -> dict[str, Any]:
    """Ends of runs beside those of the methods they should be, with equal randomness."""
    u = 1.0 / SIGMA**2
    feed, x = noisy(VARIANCE, seed=1), start(8)
    for step in range(STEPS):
        noise = normals(0, step, x, stream=0)
        x = x - LR * feed(_WAVES, x, step) + math.sqrt(2.0 * LR / u) * noise
    feed, y = noisy(VARIANCE, seed=1), start(8)
    sgd = torch.optim.SGD([y], lr=LR)
    for step in range(STEPS):
        y.grad = feed(_WAVES, y, step)
        sgd.step()
    limits = {
        f"beta={beta:g}, d_init={d_init:g}": _gap(
            _end("asgld", alpha=1.0, beta=beta, sigma=SIGMA, d_init=d_init, delta=0.01),
            _end("asg", alpha=1.0, d_init=d_init, delta=0.01),
        )
        for beta in (4.0, 16.0, 64.0)
        for d_init in (0.25, 4.0)
    }
    asg = _end("asg", alpha=1.0)
    return {
        "sgld": _gap(_end("asgld", alpha=0.0, beta=0.0, sigma=SIGMA), x),
        "asg": _gap(_end("asgld", alpha=1.0, beta=math.inf, sigma=SIGMA), asg),
        "sgd": _gap(_end("asgld", alpha=0.0, beta=math.inf, sigma=SIGMA), y),
        "limits": limits,
        "shards": _shard_gaps(),
    }


def _shard_gaps() -> dict[str, float]:
    """The same run on one tensor and on two halves of it, and the noise of a half by its place.

    The rule is per coordinate, so without noise the halves know nothing of each other. The noise is
    a function of the place in the whole tensor, which a process that holds a half knows.
    """
    whole, *halves = (
        follow("asg", _WAVES, x, steps=STEPS, lr=LR) for x in (start(8), *start(8).chunk(2))
    )
    rows, columns = whole.shape
    blocks = [
        Layout.of_block((rows // 2, columns), (rows, columns), (row, 0)) for row in (0, rows // 2)
    ]
    draws = [Draw(stream=0, step=7, layout=block) for block in blocks]
    parts = torch_normals(0, draws, torch.float64, torch.device("cpu"))
    return {
        "steps": _gap(whole, torch.cat(halves)),
        "noise": _gap(
            normals(0, 7, whole, stream=0), torch.cat([part.view(-1, columns) for part in parts])
        ),
    }


def measure_law(matched: str, *, replicas: int, steps: int) -> dict[str, Any]:
    """ASG with Gaussian gradient noise beside AGLD with that noise injected at beta = alpha.

    Args:
        matched: "sigma": sigma^2 = lr C / 2; "sigma and delta": also delta raised by C, which the
            squares of noisy gradients add to D; "nothing": sigma = 0.3.
    """
    delta, x0 = 0.01, torch.full((replicas, 1), 1.0, dtype=torch.float64)
    common: dict[str, Any] = {"steps": steps, "lr": LR, "alpha": 1.0}
    asg = follow("asg", _WAVES, x0, feed=noisy(VARIANCE, seed=1), delta=delta, **common)
    sigma = SIGMA if matched == "nothing" else math.sqrt(LR * VARIANCE / 2.0)
    fed = VARIANCE if matched == "sigma and delta" else 0.0
    agld = follow("agld", _WAVES, x0, seed=2, beta=1.0, sigma=sigma, delta=delta + fed, **common)
    a, b = np.sort(asg[:, 0].numpy()), np.sort(agld[:, 0].numpy())
    grid = np.concatenate([a, b])
    distance = np.abs(
        np.searchsorted(a, grid, "right") / len(a) - np.searchsorted(b, grid, "right") / len(b)
    ).max()
    # The 95 % band of Kolmogorov and Smirnov for the distance of two samples of this size.
    half, value = 1.358 * math.sqrt(2.0 / replicas), float(distance)
    interval = {"value": value, "low": max(value - half, 0.0), "high": value + half}
    return {"matched": matched, "steps": steps, "distance": interval}


@experiment("identities", "Special cases")
def identity_tasks(size: Size) -> list[Task]:
    """Are SGLD, SGD and ASG members of the family, and is the rule local to coordinates?"""
    replicas = {"tiny": 200, "reduced": 4_000, "full": 20_000}[size.name]
    return [
        task(measure_cases),
        *(
            task(measure_law, matched=matched, replicas=replicas, steps=steps)
            for matched in ("nothing", "sigma", "sigma and delta")
            for steps in (1, 100)
        ),
    ]


# ------------------------------------------------------------------------------------ rare features

DIM, SAMPLES, BATCH, POWER, QUIET, RIDGE = 200, 1_000, 10, 1.2, 1e-3, 1e-4
# label -> method, options
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "ASGLD (1, 1)": ("asgld", {"alpha": 1.0, "sigma": QUIET}),
    "ASG (1)": ("asg", {"alpha": 1.0}),
    "SGLD": ("sgld", {"sigma": QUIET}),
    "SGD": ("asg", {"alpha": 0.0}),
}
LRS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
# So many of the rarest and of the most frequent features have their steps compared.
EXTREME = 20
# A step is larger when it is larger by this factor.
LARGER = 1.25
# D in units of the squared gradients of this problem, of which most are below 1e-3.
_D_INIT, _DELTA = 1e-2, 1e-6


@dataclass(frozen=True)
class _Logistic:
    """The mean logistic loss of each replica's data: features (R, n, d), labels +-1 (R, n)."""

    features: Tensor
    labels: Tensor
    num_samples: int = SAMPLES

    def value(self, x: Tensor) -> Tensor:
        margin = torch.bmm(self.features, x.unsqueeze(-1)).squeeze(-1) * self.labels
        loss = torch.nn.functional.softplus(-margin).mean(-1)
        return loss + 0.5 * RIDGE * x.square().sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        return self._mean_grad(x, self.features, self.labels)

    def sample_grad(self, x: Tensor, indices: Tensor) -> Tensor:
        rows = torch.arange(len(x)).unsqueeze(-1)
        return self._mean_grad(x, self.features[rows, indices], self.labels[rows, indices])

    def _mean_grad(self, x: Tensor, a: Tensor, y: Tensor) -> Tensor:
        margin = torch.bmm(a, x.unsqueeze(-1)).squeeze(-1) * y
        pull = -y * torch.sigmoid(-margin) / y.shape[-1]
        return torch.bmm(pull.unsqueeze(1), a).squeeze(1) + RIDGE * x


@lru_cache(maxsize=2)
def _data(replicas: int, seed: int, zipf: bool) -> _Logistic:
    rng = np.random.default_rng(seed)
    chance = np.arange(1, DIM + 1) ** -POWER
    if not zipf:
        chance = np.full(DIM, np.mean(chance))
    features = (rng.random((replicas, SAMPLES, DIM)) < chance).astype(np.float32)
    weights = rng.standard_normal((replicas, DIM, 1)).astype(np.float32)
    logits = (features @ weights)[..., 0]
    labels = np.where(rng.random(logits.shape) < 1.0 / (1.0 + np.exp(-logits)), 1.0, -1.0)
    return _Logistic(torch.from_numpy(features), torch.from_numpy(labels.astype(np.float32)))


def measure_features(
    label: str, lr: float, zipf: bool, *, steps: int, replicas: int, seed: int = 0
) -> dict[str, Any]:
    """Objective at the end of a run, for each replica."""
    method, options = KINDS[label]
    data, generator = _data(replicas, seed, zipf), torch.Generator().manual_seed(seed)

    def feed(door: Any, x: Tensor, step: int) -> Tensor:
        picked = torch.randint(SAMPLES, (replicas, BATCH), generator=generator)
        sampled: Tensor = door.sample_grad(x, picked)
        return sampled

    ratios: list[float] = []

    def look(view: View) -> None:
        if view.step == steps:
            size = view.D ** (-options.get("alpha", 0.0) / 2)
            ratios.extend((size[:, -EXTREME:].mean(-1) / size[:, :EXTREME].mean(-1)).tolist())

    settings = {"seed": seed, "lr": lr, "d_init": _D_INIT, "delta": _DELTA, **options}
    x = follow(method, data, torch.zeros(replicas, DIM), look, steps=steps, feed=feed, **settings)
    final = torch.nan_to_num(data.value(x), nan=1e6, posinf=1e6)
    names = {"label": label, "lr": lr, "zipf": zipf, "seed": seed}
    return {**names, "final": final.tolist(), "step_ratios": ratios}


@experiment("features", "Rare features")
def feature_tasks(size: Size) -> list[Task]:
    """Do adaptive steps pay where most features are rare?"""
    # Every lr on two sets of data: seed 1 to choose by, seed 0 to judge by.
    steps, replicas = {"tiny": (20, 3), "reduced": (500, 10), "full": (2_000, 20)}[size.name]
    run = partial(task, measure_features, steps=steps, replicas=replicas)
    return [
        run(label=label, lr=lr, zipf=zipf, seed=seed)
        for zipf, seed, label, lr in itertools.product((True, False), (0, 1), KINDS, LRS)
    ]


# ------------------------------------------------------------------------------------ claims


def _cases(o: Outcomes) -> dict[str, Any]:
    (found,) = (v for v in o["identities"].values if "shards" in v)
    return found


def _exponent(o: Outcomes, alpha: float, beta: float) -> Estimate:
    exponent: Estimate = o["region"].one(alpha=alpha, beta=beta)["last"]
    return exponent


@claim("S1", "section 3", "identities", item="Special cases")
def s1(o: Outcomes) -> Checks:
    """alpha = beta = 0 with sigma^2 = 1/u is SGLD."""
    yield at_most("largest difference to a hand-written SGLD, 200 steps", _cases(o)["sgld"], 1e-9)


@claim("S2", "sections 1, 3", "identities", item="Special cases")
def s2(o: Outcomes) -> Checks:
    """beta to infinity gives ASG at alpha = 1 and SGD at alpha = 0.

    beta = infinity as sigma = 0 does; a large finite beta only where D > 1, while for D < 1 the
    noise grows without bound.
    """
    cases = _cases(o)
    yield at_most("beta = inf, alpha = 1: largest difference to ASG", cases["asg"], 0.0)
    yield at_most("beta = inf, alpha = 0: largest difference to torch's SGD", cases["sgd"], 1e-12)
    for d_init in (4, 0.25):
        says = f"beta = 64, D from {d_init:g}: largest difference to ASG"
        yield at_most(says, cases["limits"][f"beta=64, d_init={d_init:g}"], 1e-3, core=False)


@claim("S3", "section 3", "identities", item="Special cases")
def s3(o: Outcomes) -> Checks:
    """ASG is AGLD with beta = alpha, the sampling noise taking the place of e.

    With sigma^2 = lr C / 2 and Gaussian noise one step has the same law. Whole runs differ, because
    noisy gradients also feed D, together with the very noise that moved x; raising delta by C
    narrows the gap and does not close it.
    """
    for matched, steps in (("sigma", 1), ("sigma", 100), ("sigma and delta", 100)):
        distance = o["identities"].one(matched=matched, steps=steps)["distance"]
        says = f"distance of the two distributions after {steps} steps, {matched} matched"
        yield at_most(says, distance, SAME_LAW, core=steps == 1)


def _louder(o: Outcomes, number: str, loud: dict[str, float], quiet: dict[str, float]) -> Estimate:
    """Median over data sets of the error in the last tenth at one setting over that at another.

    Both runs of a data set have equal batches and equal random numbers.
    """
    top, bottom = (
        np.array(o["temperature"].one(number=number, **options)["tail_errors"])
        for options in (loud, quiet)
    )
    return median((top / bottom).tolist())


@claim("S4", "section 1", "temperature", "starts", "region")
def s4(o: Outcomes) -> Checks:
    """No temperature needs to be specified.

    sigma, delta and d_init are the temperature schedule, T = sigma^2 D^-(beta - alpha/2). A chain
    cools by itself, at a rate that all of them share, so the factor that sigma sets stays. delta
    sets the steps as well, of ASG too, which has no noise.
    """
    least, most = min(SIGMAS), max(SIGMAS)
    ratio = _louder(o, "5", {"sigma": most}, {"sigma": least})
    yield at_most(f"error at sigma = {most:g} over that at {least:g}, equal data", ratio, 2.0)
    for low, high in itertools.pairwise(SIGMAS):
        ratio = _louder(o, "5", {"sigma": high}, {"sigma": low})
        yield at_most(f"error at sigma = {high:g} over that at {low:g}", ratio, 2.0, core=False)
    for number, label in (("5", "ASGLD_B"), ("9b", "ASG, which has no noise")):
        ratio = _louder(o, number, {"delta": 1e-4}, {"delta": 1.0})
        says = f"{label}: error at delta = 0.0001 over that at 1, D from 1"
        yield between(says, ratio, 0.5, 2.0, core=False)
        small, one = (
            o["starts"].one(number=number, lr=0.1, d_init=d_init)["final"] for d_init in (1e-8, 1.0)
        )
        says = f"{label}: error with D from 1e-8 over that from 1"
        yield at_most(says, ratio_of_medians(small, one), 2.0, core=False)
    yield at_least("exponent at a constant step, (1, 1)", _exponent(o, 1.0, 1.0), 0.2, core=False)


@claim("S5", "section 3", "region")
def s5(o: Outcomes) -> Checks:
    """A constant step converges where SGLD does not."""
    yield at_most("exponent of SGLD over the last decade", _exponent(o, 0.0, 0.0), SLACK)
    yield at_least("exponent of ASGLD (1, 1)", _exponent(o, 1.0, 1.0), 0.2)


@claim("S6", "sections 1, 3", "features")
def s6(o: Outcomes) -> Checks:
    """Infrequent features get larger steps, which is more efficient in high dimension."""

    def tuned(label: str, zipf: bool, key: str = "final") -> Any:
        """Results at the lr that was best on other data."""
        tried = o["features"].select(label=label, zipf=zipf, seed=1)
        lr = min(tried, key=lambda v: float(np.mean(v["final"])))["lr"]
        return np.array(o["features"].one(label=label, zipf=zipf, seed=0, lr=lr)[key])

    def gap(mine: str, plain: str, zipf: bool) -> Any:
        return np.log(tuned(mine, zipf)) - np.log(tuned(plain, zipf))

    for mine, plain in (("ASGLD (1, 1)", "SGLD"), ("ASG (1)", "SGD")):
        says = f"{mine}: step of the {EXTREME} rarest features over that of the most frequent"
        yield at_least(says, mean(tuned(mine, True, "step_ratios")), LARGER)
        says = f"log objective of {mine} less that of {plain}, both tuned, rare features"
        yield at_most(says, mean(gap(mine, plain, True)), 0.0)
    rare, common = (gap("ASGLD (1, 1)", "SGLD", zipf) for zipf in (True, False))
    says = "the same gap of ASGLD, rare features less equally frequent ones"
    yield at_most(says, mean_difference(rare, common), 0.0, core=False)


@claim("S7", "section 3", "identities")
def s7(o: Outcomes) -> Checks:
    """The rule works dimension by dimension and can be distributed."""
    gaps = _cases(o)["shards"]
    yield at_most("one tensor or two halves: largest difference of 200 steps", gaps["steps"], 0.0)
    yield at_most("noise of a half against its place in the whole", gaps["noise"], 0.0)


# ------------------------------------------------------------------------------------ pictures


@picture("features")
def rare_features(o: Outcomes) -> Any:
    """Rare features

    Lower is better. Compare the lowest point of each line, and how wide its valley is.

    Two panels of the final objective against lr, one line per method.
    """
    figure, axes = panels(1, 2, 3.0, sharey=True)
    titles = {True: "most features rare", False: "all equally frequent"}
    for panel, (zipf, title) in zip(axes.flat, titles.items(), strict=True):
        for i, label in enumerate(dict.fromkeys(v["label"] for v in o["features"].values)):
            mine = o["features"].select(label=label, zipf=zipf, seed=0)
            plot(panel, i, [v["lr"] for v in mine], [np.mean(v["final"]) for v in mine], label)
        panel.set(xscale="log", ylim=(0.0, 1.0), title=title)
    outer(axes, "lr", "objective at the end")
    legend(figure, axes[0, 0])
    return figure


@table("identities")
def identity_rows(o: Outcomes) -> list[Row]:
    """Largest differences after 200 steps, and distances of distributions."""
    cases = _cases(o)
    rows = {
        "ASGLD (0, 0) and a hand-written SGLD": cases["sgld"],
        "ASGLD (1, inf) and ASG": cases["asg"],
        "ASGLD (0, inf) and torch's SGD": cases["sgd"],
        **{f"ASGLD (1, beta) and ASG, {at}": gap for at, gap in cases["limits"].items()},
        **{
            f"law of ASG and AGLD, {v['steps']} steps, matched: {v['matched']}": v["distance"][
                "value"
            ]
            for v in o["identities"].values
            if "matched" in v
        },
    }
    return [{"comparison": name, "difference": gap} for name, gap in rows.items()]


@table("features")
def feature_rows(o: Outcomes) -> list[Row]:
    """Objective at the end."""
    return [
        {
            "features": "rare" if v["zipf"] else "equally frequent",
            "method": v["label"],
            "lr": v["lr"],
            "objective": float(np.mean(v["final"])),
        }
        for v in o["features"].select(seed=0)
    ]
