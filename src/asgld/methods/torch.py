"""Any torch optimizer as a method; the family of the paper by its names.

The shipped optimizer classes run here on a tensor of shape (replicas, d). Their rule works on each
element by itself, so that *is* as many independent chains, and there is no other implementation.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim import Optimizer

from asgld.methods.base import State, batch_indices
from asgld.methods.calibration import Scales, langevin_defaults
from asgld.optim import AGLD, ASG, ASGLD, SGLD
from asgld.oracle import Oracle

LANGEVIN: dict[str, type[Optimizer]] = {"asgld": ASGLD, "agld": AGLD, "asg": ASG, "sgld": SGLD}


@dataclass(kw_only=True)
class TorchState(State):
    """The iterate is the optimizer's only parameter."""

    optimizer: Optimizer
    seed: int
    step: int = 0

    def pack(self) -> dict[str, Any]:
        return {
            "x": self.x.clone(),
            "step": self.step,
            "seed": self.seed,
            "optimizer": self.optimizer.state_dict(),
        }

    def restored(self, packed: Mapping[str, Any]) -> Self:
        self.x.copy_(packed["x"])
        self.optimizer.load_state_dict(packed["optimizer"])
        self.step, self.seed = packed["step"], packed["seed"]
        return self


@dataclass(frozen=True)
class TorchMethod:
    """A torch optimizer, fed with full gradients or with batches of size B_k.

    .. math:: B_k = \\min(n, \\lfloor B + s\\, k^p \\rfloor), \\qquad
              \\mathrm{lr}_k = \\mathrm{lr}\\, (1 + k)^{-q}

    Args:
        name: the word for it in tables and legends.
        optimizer: its class, called as ``optimizer([x], **options)``.
        options: its options; a `seed` is added where it takes one.
        batch_size: B, or None for full gradients. Batches are drawn with replacement and
            independently for each replica; a batch of n is the full gradient.
        batch_slope, batch_power: s and p.
        lr_decay: q.
        is_batched: False for optimizers that mix the elements of a tensor, such as Muon.

    >>> adam = TorchMethod("adam", torch.optim.Adam, {"lr": 0.1})
    >>> sorted(adam.needs)
    ['grad']
    """

    name: str
    optimizer: Callable[..., Optimizer]
    options: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int | None = None
    batch_slope: float = 0.0
    batch_power: float = 1.0
    lr_decay: float = 0.0
    is_batched: bool = True

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size!r}: need at least 1, or None for all")
        if self.batch_slope and self.batch_size is None:
            raise ValueError(
                f"batch_slope={self.batch_slope!r} without batch_size: a full batch cannot grow"
            )
        if self.batch_slope < 0 or self.batch_power < 0 or self.lr_decay < 0:
            raise ValueError("batch_slope, batch_power and lr_decay must be at least 0")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"grad"} if self.batch_size is None else {"grad", "sample_grad"})

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> TorchState:
        x = x0.detach().clone()
        options = dict(self.options)
        if "seed" in inspect.signature(self.optimizer).parameters or self.is_langevin:
            options.setdefault("seed", seed)
        return TorchState(x=x, optimizer=self.optimizer([x], **options), seed=seed)

    def step(self, oracle: Oracle, state: TorchState) -> TorchState:
        if self.lr_decay:
            # The groups hold the decayed rate; the first one is in the defaults.
            for group in state.optimizer.param_groups:
                lr = state.optimizer.defaults["lr"]
                group["lr"] = lr * (1.0 + state.step) ** -self.lr_decay
        state.x.grad = self._gradient(oracle, state)
        state.optimizer.step()
        state.step += 1
        return state

    def _gradient(self, oracle: Oracle, state: TorchState) -> Tensor:
        size = self.batch_size_at(state.step, oracle.num_samples)
        if size is None:
            return oracle.grad(state.x)
        assert oracle.num_samples is not None
        rows = math.prod(state.x.shape[:-1])
        indices = batch_indices(state.seed, state.step, size, oracle.num_samples, rows)
        return oracle.sample_grad(state.x, indices.view(*state.x.shape[:-1], size))

    def batch_size_at(self, step: int, num_samples: int | None) -> int | None:
        """B_k, or None where it is the full batch."""
        if self.batch_size is None:
            return None
        if num_samples is None:
            raise ValueError(
                f"batch_size={self.batch_size}: the function is not a mean over samples; give "
                "num_samples= or leave batch_size out"
            )
        size = math.floor(self.batch_size + self.batch_slope * step**self.batch_power)
        return None if size >= num_samples else size

    @property
    def is_langevin(self) -> bool:
        return isinstance(self.optimizer, type) and issubclass(self.optimizer, ASGLD)

    @property
    def knobs(self) -> dict[str, Any]:
        """The optimizer's options, defaults included."""
        point = torch.zeros(1, dtype=torch.float64)
        groups = self.optimizer([point], **self.options).param_groups
        return {name: value for name, value in groups[0].items() if name != "params"}

    @property
    def has_noise(self) -> bool:
        """Whether two seeds give two runs: injected noise, or sampled gradients."""
        return self.batch_size is not None or self.temperature(1.0) > 0.0

    @property
    def anneals(self) -> bool:
        """Whether the injected noise dies out, so that the iterate can come to rest."""
        return self.temperature(2.0) < self.temperature(1.0) or self.temperature(1.0) == 0.0

    def temperature(self, metric: float) -> float:
        """T = sigma^2 D^(alpha/2 - beta) where D = `metric`; 0 for other optimizers."""
        if not self.is_langevin:
            return 0.0
        knobs = self.knobs
        if knobs["sigma"] == 0.0 or math.isinf(knobs["beta"]):
            return 0.0
        return float(knobs["sigma"] ** 2 * metric ** (knobs["alpha"] / 2 - knobs["beta"]))

    def calibrated(self, scales: Scales, dim: int) -> TorchMethod:
        """Fill in options that were not given, from measurements; see `langevin_defaults`."""
        if not self.is_langevin:
            return self
        given = dict(self.options)
        alpha = self.knobs["alpha"]
        filled = langevin_defaults(scales, dim, {"alpha": alpha, **given})
        # Presets fix some exponents and take no argument for them.
        for name in ("alpha", "sigma"):
            if name not in given and name not in self._arguments:
                del filled[name]
        return replace(self, options=filled)

    @property
    def _arguments(self) -> set[str]:
        """Options that this optimizer takes, beyond what it forbids."""
        forbidden = {SGLD: {"alpha", "beta"}, ASG: {"beta", "sigma"}}
        everything = set(inspect.signature(ASGLD).parameters)
        return everything - forbidden.get(self.optimizer, set())  # type: ignore[arg-type]


def langevin(name: str, **options: Any) -> TorchMethod:
    """A method of the paper's family: "asgld", "agld", "asg" or "sgld".

    Options are those of the optimizer class and `batch_size`, `batch_slope`, `batch_power`,
    `lr_decay` of :class:`TorchMethod`.

    >>> langevin("agld", lr=0.1, sigma=0.01).options
    {'lr': 0.1, 'sigma': 0.01}
    """
    if name not in LANGEVIN:
        raise ValueError(f"name={name!r}: known are {', '.join(LANGEVIN)}")
    known = langevin_options()
    if unknown := sorted(options.keys() - known):
        raise TypeError(
            f"unknown option {unknown[0]!r} of method {name!r}; known are "
            f"{', '.join(sorted(known))}"
        )
    mine = {f.name for f in fields(TorchMethod)} - {"name", "optimizer", "options"}
    return TorchMethod(
        name,
        LANGEVIN[name],
        {key: value for key, value in options.items() if key not in mine},
        **{key: value for key, value in options.items() if key in mine},
    )


def langevin_options() -> set[str]:
    """Names of the options of :func:`langevin`."""
    optimizer = set(inspect.signature(ASGLD).parameters) - {"params", "maximize", "differentiable"}
    method = {f.name for f in fields(TorchMethod)} - {"name", "optimizer", "options", "is_batched"}
    return optimizer | method
