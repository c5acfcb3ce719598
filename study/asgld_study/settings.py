"""Two ways to set the options of a rival: by its own theorem, or by a random search.

`SETTINGS` has an entry for each method outside the paper's family. `theory` gives the options that
the method's theorem asks for, `unverified` names those whose constants are known up to a factor
only, or are not proved at all. A random search draws log-uniformly from `ranges`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asgld.arguments import require, require_positive

# Times the root of the published order of `oja_steps`: the lowest direction then gains a factor of
# (d / failure)^2 in a run, so that a random iterate is aligned with it more often than not.
_OJA_CONSTANT = 4.0
# The memory of Adam's second mean, and the damping of psgld: the methods' own defaults.
_ADAM_BETA2, _PSGLD_DAMPING = 0.999, 1e-5
# scipy's largest trust radius.
_MAX_TRUST = 1000.0


@dataclass(frozen=True)
class Proved:
    """What a problem proves about itself and what is asked of a method.

    >>> Proved(4.0, 1.0, 0.01, 0.1, 10, 1.0).condition
    40.0
    """

    smoothness: float  # M: the gradient is M-Lipschitz
    hessian_lipschitz: float  # rho: the Hessian is rho-Lipschitz
    eps: float  # wanted: |grad f| <= eps
    gamma: float  # wanted: lambda_min >= -gamma
    dim: int
    gap: float  # f(x0) - min f, or a bound on it
    failure: float = 0.1  # allowed probability of failure
    variance: float = 1.0  # a bound on that of a sample gradient

    def __post_init__(self) -> None:
        require_positive(self, "smoothness", "hessian_lipschitz", "eps", "gamma", "dim", "gap")
        require_positive(self, "variance")
        require(0.0 < self.failure < 1.0, "failure", self.failure, "a probability in (0, 1)")

    @property
    def condition(self) -> float:
        """kappa = M / gamma."""
        return self.smoothness / self.gamma

    @property
    def scale(self) -> float:
        """gamma^2 / rho: the gradient norm that belongs to gamma; eps where gamma^2 = rho eps."""
        return self.gamma**2 / self.hessian_lipschitz

    @property
    def reach(self) -> float:
        """gamma / rho: where the quadratic model of a saddle ends."""
        return self.gamma / self.hessian_lipschitz


@dataclass(frozen=True)
class Setting:
    """How to set the options of one method; see the module."""

    theory: Callable[[Proved], dict[str, Any]]
    ranges: dict[str, tuple[float, float]]
    unverified: tuple[str, ...] = ()


def _perturbed_gd(k: Proved) -> dict[str, Any]:
    # gamma is a constant of its own, where the paper has (rho eps)^(1/2).
    log = math.log(k.dim * k.smoothness * k.gap / (k.eps**2 * k.failure))
    chi = 3.0 * max(log, 4.0)
    return {
        "lr": 1.0 / k.smoothness,
        "radius": k.scale / (chi**2 * k.smoothness),
        "grad_threshold": min(k.scale / chi**2, k.eps),
        "value_threshold": k.gamma**3 / (k.hessian_lipschitz**2 * chi**3),
        "wait": math.ceil(chi * k.condition),
    }


def _saddle_ngd(k: Proved) -> dict[str, Any]:
    # The last jumps, of length lr, may leave a gradient of M lr / 2.
    lr = min(2.0 * k.eps / k.smoothness, k.reach / k.dim**2)
    return {"lr": lr, "period": math.ceil(math.sqrt(k.reach / lr)), "noise": 1.0}


def _neon(k: Proved) -> dict[str, Any]:
    log = math.log(k.dim * k.condition / k.failure)
    search_lr = 1.0 / (32.0 * k.smoothness)
    # How far from x the search is governed by the Hessian at x.
    spread = math.sqrt(search_lr * k.smoothness) * k.gamma / (k.hessian_lipschitz * log)
    return {
        "lr": 1.0 / k.smoothness,
        "grad_threshold": k.eps,
        "gamma": k.gamma,
        "hessian_lipschitz": k.hessian_lipschitz,
        "search_lr": search_lr,
        "radius": spread / (k.condition * log),
        "reach": 4.0 * spread,
        "max_search": math.ceil(log / (search_lr * k.gamma)),
        "test": "value",
        "value_threshold": spread**2 * k.gamma / log,
    }


def _fast_cubic(k: Proved) -> dict[str, Any]:
    # Of eps and gamma^2 / rho the stricter counts.
    rho, eps = k.hessian_lipschitz, min(k.eps, k.scale)
    num_steps = 1.0 + k.gap * 2.4e6 * math.sqrt(rho / eps**3)
    return {"hessian_lipschitz": rho, "eps": eps, "failure": k.failure / num_steps}


def _carmon_accelerated(k: Proved) -> dict[str, Any]:
    # All searches share the failure.
    rho, eps, gamma = k.hessian_lipschitz, k.eps, k.gamma
    num_moves = k.gap * 12.0 * rho**2 / gamma**3
    num_phases = k.gap * math.sqrt(10.0) * rho / (gamma * eps)
    return {
        "smoothness": k.smoothness,
        "hessian_lipschitz": rho,
        "eps": eps,
        "gamma": gamma,
        "failure": k.failure / (1.0 + num_moves + num_phases),
    }


def _carmon_cubic(k: Proved) -> dict[str, Any]:
    rho, eps = k.hessian_lipschitz, min(k.eps, k.scale)
    num_steps = 1.0 + k.gap * 100.0 * math.sqrt(rho / eps**3)
    found = {"hessian_lipschitz": rho, "eps": eps, "failure": k.failure / num_steps}
    return {"smoothness": k.smoothness, **found}


def _natasha2(k: Proved) -> dict[str, Any]:
    # The constants that the paper leaves inside Theta(.) are 1, but for `oja_steps`.
    rho, smoothness, variance = k.hessian_lipschitz, k.smoothness, k.variance
    # Larger gammas gain nothing, and would make the epochs' problem non-convex.
    gamma = min(k.gamma, (variance * k.eps * rho**3 / smoothness**2) ** 0.25)
    root = (variance * k.eps) ** (1.0 / 3.0)
    if rho * root >= smoothness * gamma:
        scale = proximal = rho * root / gamma
    else:
        scale = smoothness
        proximal = max(
            variance * k.eps * rho**3 / (smoothness**2 * gamma**3),
            k.eps * smoothness / math.sqrt(variance),
        )
        proximal = min(max(proximal, gamma), smoothness)
    batch = math.ceil(variance / k.eps**2)
    parts = math.ceil((proximal**2 * batch / scale**2) ** (1.0 / 3.0))
    log = math.log(k.dim / k.failure)
    oja_steps = math.ceil((_OJA_CONSTANT * smoothness / gamma * max(1.0, log)) ** 2)
    rate = 1.0 / math.sqrt(oja_steps)
    return {
        "gamma": gamma,
        "radius": gamma / rho,
        "smoothness": smoothness,
        "lr": proximal / (parts**2 * scale**2),
        "proximal": proximal,
        "epoch_batch": batch,
        "batch_size": 1,
        "sub_epochs": parts,
        "sub_steps": math.ceil(batch / parts),
        "oja_steps": oja_steps,
        "oja_batch": 1,
        # I + rate (I - H/M)/2 is a multiple of I - oja_lr H.
        "oja_lr": rate / ((2.0 + rate) * smoothness),
        "oja_runs": math.ceil(max(1.0, math.log(1.0 / k.failure))),
        "max_epochs": math.ceil(proximal * k.gap / (parts * k.eps**2)),
        "output": "random",
        "sign": "random",
        "polish_steps": batch,
    }


def _trace(k: Proved) -> dict[str, Any]:
    return {
        "radius": k.reach,
        "max_radius": 10.0 * k.reach,
        "min_ratio": 1e-2 * k.hessian_lipschitz,
        "max_ratio": 1e2 * k.hessian_lipschitz,
        "eps": k.eps,
        "gamma": k.gamma,
    }


def _perturbed_agd(k: Proved) -> dict[str, Any]:
    lr, eps, rho = 0.25 / k.smoothness, min(k.eps, k.scale), k.hessian_lipschitz
    chi = max(1.0, math.log(k.dim * k.smoothness * k.gap / (rho * eps * k.failure)))
    theta = min(1.0, 0.25 / math.sqrt(k.condition))
    return {
        "lr": lr,
        "theta": theta,
        "concavity": theta**2 / lr,
        "side_step": theta**2 / (4.0 * lr * rho),
        "radius": lr * eps * chi**-5,
        "grad_threshold": eps,
        "wait": math.ceil(math.sqrt(k.condition) * chi),
        "min_drop": math.sqrt(eps**3 / rho) * chi**-5,
    }


_TRUST = Setting(
    lambda k: {"radius": min(k.reach, _MAX_TRUST), "grad_tol": k.eps},
    {"radius": (1e-2, 1e1)},
    ("radius: where the quadratic model is trusted; no rate to a second-order point is proved",),
)
SETTINGS: dict[str, Setting] = {
    "noisy-sgd": Setting(
        # Descent lemma: |grad f|^2 is at most 2 gap / (lr T) + lr M on average; eps^2 / 2 each.
        lambda k: {"lr": min(1.0 / k.smoothness, 0.5 * k.eps**2 / k.smoothness), "noise": 1.0},
        {"lr": (1e-4, 1.0), "noise": (1e-3, 1.0), "burn_in": (1e2, 1e4)},
        ("lr: the theorem gives the order O~(eps^2) below an unspecified power of 1/d",),
    ),
    "perturbed-gd": Setting(
        _perturbed_gd,
        {"lr": (1e-3, 1.0), "radius": (1e-4, 1e-1), "wait": (3e1, 1e3)},
        ("c: the theorem holds below an unspecified absolute constant; here c = 1",),
    ),
    "saddle-ngd": Setting(
        _saddle_ngd,
        {"lr": (1e-3, 1.0), "noise": (1e-1, 1e1), "period": (3.0, 1e2), "lr_decay": (1e-1, 1.0)},
        ("lr, period, noise: the orders 1/d^2, lr^(-1/2) and lr are all that is known of them",),
    ),
    "neon": Setting(
        _neon,
        {"lr": (1e-3, 1.0), "gamma": (1e-3, 1.0), "hessian_lipschitz": (1e-1, 1e2)},
        (
            "radius, reach, value_threshold, max_search: orders only, with absolute constants set "
            "to 1",
            "search_lr: 1/(32 M), small enough for the value test to prove curvature",
            "momentum: the order of NEON+",
        ),
    ),
    "fast-cubic": Setting(
        _fast_cubic,
        {"hessian_lipschitz": (1e-2, 1e3), "eps": (1e-4, 1e-1), "solve_tol": (1e-8, 1e-1)},
        ("solve_tol: the published accuracy is out of reach of float64",),
    ),
    "carmon-accelerated": Setting(
        _carmon_accelerated,
        {"smoothness": (1e-1, 1e3), "hessian_lipschitz": (1e-2, 1e3), "eps": (1e-4, 1e-1)},
        (
            "failure: the number of searches that share it was not checked against the paper",
            "eps: nor was the accuracy of the proximal problems, eps / 2 sqrt(3 gamma / 50 L)",
        ),
    ),
    "carmon-cubic": Setting(
        _carmon_cubic,
        {
            "smoothness": (1e-1, 1e3),
            "hessian_lipschitz": (1e-2, 1e3),
            "eps": (1e-4, 1e-1),
            "decrease": (1e-3, 1.0),
        },
        (
            "perturbation: right in its units; the constant was not checked against the paper",
            "inner_steps: right up to a constant factor",
        ),
    ),
    "natasha2": Setting(
        _natasha2,
        {
            "smoothness": (1e-1, 1e2),
            "radius": (1e-2, 1e1),
            "oja_steps": (8.0, 200.0),
            "sub_steps": (4.0, 64.0),
        },
        (
            "lr, proximal, sub_epochs, epoch_batch, max_epochs: orders only, with constants 1",
            "oja_steps: order only; the constant makes most random iterates good ones",
            "oja_lr: public implementations disagree; here 1/sqrt(oja_steps) for (I - H/M)/2",
            "polish_steps: taken as epoch_batch; the schedule of that SGD is a textbook one",
            "the variance of a sample gradient, 1 unless given",
        ),
    ),
    "cubic-newton": Setting(
        lambda k: {
            "regularization": k.hessian_lipschitz,
            "is_adaptive": False,
            "eps": k.eps,
            "gamma": k.gamma,
        },
        {"regularization": (1e-2, 1e2), "min_regularization": (1e-8, 1.0)},
    ),
    "trace": Setting(
        _trace,
        {"radius": (1e-2, 1e1), "acceptance": (1e-4, 0.5), "min_ratio": (1e-4, 1.0)},
        (
            "radius, max_radius: free in the paper; here gamma/rho and ten times that",
            "min_ratio, max_ratio: free in the paper; here rho/100 and 100 rho",
            "gamma: the second-order rate max(eps^(-3/2), gamma^(-3)) is quoted from memory",
        ),
    ),
    "gd": Setting(lambda k: {"lr": 1.0 / k.smoothness}, {"lr": (1e-3, 1e1)}),
    "sgd": Setting(
        lambda k: {"lr": 1.0 / k.smoothness},
        {"lr": (1e-4, 1e1), "lr_decay": (1e-1, 1.0)},
        ("lr: 1/M is proved for exact gradients; with noise the variance, not given, decides",),
    ),
    "psgld": Setting(
        # Under exp(-f / sigma^2) the mean of |grad f|^2 is sigma^2 times that of the Laplacian.
        lambda k: {
            "lr": _PSGLD_DAMPING / k.smoothness,
            "sigma": k.eps / math.sqrt(2.0 * k.smoothness * k.dim),
        },
        {"lr": (1e-5, 1e-1), "sigma": (1e-5, 1e-1), "damping": (1e-5, 1.0)},
        (
            "lr, sigma: stable steps and a stationary mean of |grad f|^2 below eps^2; no "
            "finite-time theorem is known",
        ),
    ),
    "adagrad": Setting(
        # 2 gap / lr + lr d M is smallest here.
        lambda k: {"lr": math.sqrt(2.0 * k.gap / (k.dim * k.smoothness))},
        {"lr": (1e-3, 1e1)},
        (
            "lr: minimizes the bound of Defossez et al. on the gradient norm without its "
            "logarithm; nothing is proved about saddles",
        ),
    ),
    "adam": Setting(
        lambda k: {"lr": math.sqrt((1.0 - _ADAM_BETA2) * (2.0 * k.gap / (k.dim * k.smoothness)))},
        {"lr": (1e-4, 1.0), "damping": (1e-8, 1e-2)},
        (
            "lr: Adagrad's over the root of the memory 1/(1 - beta2); nothing is proved about "
            "saddles",
        ),
    ),
    "perturbed-agd": Setting(
        _perturbed_agd,
        {"lr": (1e-3, 1.0), "theta": (1e-2, 1.0), "radius": (1e-4, 1e-1), "side_step": (1e-3, 1.0)},
        ("c: the theorem holds above an unspecified absolute constant; here c = 1",),
    ),
    "lbfgs": Setting(
        lambda k: {"scale": 1.0 / k.smoothness},
        {"scale": (1e-3, 1e1)},
        ("scale: nothing is proved about saddles",),
    ),
    "trust-krylov": _TRUST,
    "trust-exact": _TRUST,
}
