"""Any torch optimizer as a method; the family of the paper, and torch's own, by their names.

The shipped optimizer classes run here on a tensor of shape (replicas, d). Their rule works on each
element by itself, so that *is* as many independent chains, and there is no other implementation.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.optim import Optimizer

from asgld.arguments import require
from asgld.methods.base import (
    SeededState,
    Surroundings,
    draw_batch,
    gradient,
    gradient_needs,
)
from asgld.optim import AGLD, ASG, ASGLD, SGLD
from asgld.oracle import Oracle
from asgld.prox import BoundPenalty, Penalty

LANGEVIN: dict[str, type[ASGLD]] = {"asgld": ASGLD, "agld": AGLD, "asg": ASG, "sgld": SGLD}
# Options that measurements can set; where D forgets, it finds its own scale.
_MEASURED = frozenset({"alpha", "d_init", "delta", "lr", "sigma"})
_MEASURED_WHERE_D_FORGETS = frozenset({"lr", "sigma"})


@dataclass(kw_only=True)
class TorchState(SeededState):
    """The iterate is the optimizer's only parameter, or shares its memory with it."""

    optimizer: Optimizer
    parameter: Tensor

    def pack(self) -> dict[str, Any]:
        saved = self.optimizer.state_dict()
        for group in saved["param_groups"]:
            group.pop("prox", None)  # it belongs to the function, not to the state
        return {"x": self.x.clone(), "step": self.step, "seed": self.seed, "optimizer": saved}

    def restored(self, packed: Mapping[str, Any]) -> Self:
        self.x.copy_(packed["x"])
        groups = zip(packed["optimizer"]["param_groups"], self.optimizer.param_groups, strict=True)
        known = [
            {**group, "prox": own["prox"]} if "prox" in own else group for group, own in groups
        ]
        self.optimizer.load_state_dict({**packed["optimizer"], "param_groups": known})
        self.step, self.seed = packed["step"], packed["seed"]
        return self


@dataclass(frozen=True, eq=False)
class _EachRow(Penalty):
    """The penalty of an oracle's function on each row of a parameter of shape (replicas, d)."""

    row: BoundPenalty

    def on(self, shape: Sequence[int], *, device: torch.device | None = None) -> BoundPenalty:
        return self.row

    def fits_shards(self, cut: set[int]) -> bool:
        return False


@dataclass(frozen=True)
class TorchMethod:
    """A torch optimizer, fed with full gradients or with batches of size B_k.

    .. math:: B_k = \\min(n, \\lfloor B + s\\, k^p \\rfloor), \\qquad
              \\mathrm{lr}_k = \\mathrm{lr}\\, (1 + k)^{-q}

    Args:
        name: the word for it in tables and legends.
        optimizer: its class, called as ``optimizer([x], **options)``, or, where it asks for names,
            as ``optimizer([("x", x)], **options)``. One that needs matrices, such as Muon, gets a
            view: ``lambda p, **o: torch.optim.Muon([p[0].view(2, 3)], **o)``, is_batched=False.
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
        return gradient_needs(self.batch_size)

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> TorchState:
        x = x0.detach().clone()
        options = dict(self.options)
        if "seed" in inspect.signature(self.optimizer).parameters or self.is_langevin:
            options.setdefault("seed", seed)
        if oracle.penalty is not None and self.knows_prox:
            options["prox"] = _EachRow(oracle.penalty)
        optimizer = self._build(x, options)
        return TorchState(x=x, optimizer=optimizer, parameter=_parameter(optimizer, x), seed=seed)

    def _build(self, x: Tensor, options: Mapping[str, Any]) -> Optimizer:
        """The optimizer of x, which some want with a name and others as a matrix."""
        try:
            optimizer = self.optimizer([x], **options)
            _parameter(optimizer, x)
            return optimizer
        except Exception as error:  # an optimizer may refuse a tensor in any way
            if self.is_langevin:
                raise
            with contextlib.suppress(Exception):
                optimizer = self.optimizer([("x", x)], **options)
                _parameter(optimizer, x)
                return optimizer
            try:
                self.optimizer([torch.zeros(2, 2, dtype=x.dtype)], **options)
            except Exception:
                raise error from None  # the options are wrong, not the tensor
            name = getattr(self.optimizer, "__name__", "optimizer")
            raise TypeError(
                f"optimizer={name} of method {self.name!r} needs a matrix, and x has shape "
                f"{tuple(x.shape)}: give optimizer=lambda p, **options: "
                f"{name}([p[0].view(rows, columns)], **options) and is_batched=False"
            ) from error

    def step(self, oracle: Oracle, state: TorchState) -> TorchState:
        if self.lr_decay:
            # The groups hold the decayed rate; the first one is in the defaults.
            for group in state.optimizer.param_groups:
                lr = state.optimizer.defaults["lr"]
                group["lr"] = lr * (1.0 + state.step) ** -self.lr_decay
        grad = self._gradient(oracle, state)
        state.parameter.grad = grad.view(state.parameter.shape)
        state.optimizer.step()
        state.step += 1
        return state

    def _gradient(self, oracle: Oracle, state: TorchState) -> Tensor:
        size = self.batch_size
        if size is not None:
            size = math.floor(size + self.batch_slope * state.step**self.batch_power)
        return gradient(oracle, state.x, draw_batch(oracle, state.x, size, state.seed, state.step))

    @property
    def is_langevin(self) -> bool:
        return isinstance(self.optimizer, type) and issubclass(self.optimizer, ASGLD)

    @property
    def knows_prox(self) -> bool:
        """Whether it takes the proximal steps of the function's penalty."""
        return self.is_langevin and "prox" not in self.options

    @property
    def knobs(self) -> dict[str, Any]:
        """The optimizer's options, defaults included; those given, where it takes no vector."""
        try:
            groups = self._build(torch.zeros(1, dtype=torch.float64), self.options).param_groups
        except (RuntimeError, TypeError):
            if self.is_langevin:
                raise
            return dict(self.options)
        return {name: v for name, v in groups[0].items() if not name.startswith("param")}

    @property
    def has_noise(self) -> bool:
        """Whether two seeds give two runs: injected noise, or sampled gradients."""
        return self.batch_size is not None or self.temperature(1.0) > 0.0

    @property
    def anneals(self) -> bool:
        """Whether the injected noise dies out, so that the iterate can come to rest."""
        if self.is_langevin and self.knobs["annealing"] > 0.0:
            return True
        return self.temperature(2.0) < self.temperature(1.0) or self.temperature(1.0) == 0.0

    def temperature(self, metric: float) -> float:
        """T = sigma^2 D^(alpha/2 - beta) where D = `metric`; 0 for other optimizers.

        Where the noise is stated in units of lr, `noise` stands for it.
        """
        if not self.is_langevin:
            return 0.0
        knobs = self.knobs
        if knobs["noise"] is not None:
            return float(knobs["noise"])
        if knobs["sigma"] == 0.0 or math.isinf(knobs["beta"]):
            return 0.0
        return float(knobs["sigma"] ** 2 * metric ** (knobs["alpha"] / 2 - knobs["beta"]))

    @property
    def open_options(self) -> frozenset[str]:
        """Options of the paper's family that were not given; none for other optimizers."""
        if not self.is_langevin:
            return frozenset()
        knobs = self.knobs
        measured = _MEASURED if knobs["decay"] is None else _MEASURED_WHERE_D_FORGETS
        return frozenset(n for n in measured - self.options.keys() if self._takes(n, knobs[n]))

    def _takes(self, option: str, value: Any) -> bool:
        """Whether the optimizer may be given this option: a preset refuses those it fixes."""
        try:
            self.optimizer([torch.zeros(1)], **{**self.options, option: value})
        except (TypeError, ValueError):
            return False
        return True

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """The same method with other options of its optimizer."""
        return replace(self, options=dict(options))


def _parameter(optimizer: Optimizer, x: Tensor) -> Tensor:
    """What the optimizer steps: x, or a view of all of it."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if len(held) != 1 or held[0].numel() != x.numel() or held[0].data_ptr() != x.data_ptr():
        shapes = [tuple(p.shape) for p in held]
        raise ValueError(f"the optimizer holds {shapes}: need x, of shape {tuple(x.shape)}, alone")
    parameter: Tensor = held[0]
    return parameter


def langevin(name: str, **options: Any) -> TorchMethod:
    """A method of the paper's family: "asgld", "agld", "asg" or "sgld".

    Options are those of the optimizer class and `batch_size`, `batch_slope`, `batch_power`,
    `lr_decay` of :class:`TorchMethod`.

    >>> langevin("agld", lr=0.1, sigma=0.01).options
    {'lr': 0.1, 'sigma': 0.01}
    """
    if name not in LANGEVIN:
        raise ValueError(f"name={name!r}: known are {', '.join(LANGEVIN)}")
    check_names(name, options, langevin_options())
    mine = {f.name for f in fields(TorchMethod)} - {"name", "optimizer", "options"}
    return TorchMethod(
        name,
        LANGEVIN[name],
        {key: value for key, value in options.items() if key not in mine},
        **{key: value for key, value in options.items() if key in mine},
    )


def langevin_options() -> set[str]:
    """Names of the options of :func:`langevin`."""
    hidden = {"params", "maximize", "differentiable", "others", "prox"}
    optimizer = set(inspect.signature(ASGLD).parameters) - hidden
    method = {f.name for f in fields(TorchMethod)} - {"name", "optimizer", "options", "is_batched"}
    return optimizer | method


def check_names(name: str, options: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise a TypeError for the first option that the method does not have."""
    if unknown := sorted(options.keys() - known):
        raise TypeError(
            f"unknown option {unknown[0]!r} of method {name!r}; known are "
            f"{', '.join(sorted(known))}"
        )


# ------------------------------------------------------------------------ torch's own optimizers

# name -> its title, the class of torch, and the options with their defaults
COMPARATORS: dict[str, tuple[str, type[Optimizer], dict[str, Any]]] = {
    "gd": ("GD", torch.optim.SGD, {"lr": 1e-1}),
    "sgd": (
        "SGD",
        torch.optim.SGD,
        {"lr": 1e-2, "batch_size": 1, "momentum": 0.0, "lr_decay": 0.0},
    ),
    "adagrad": (
        "Adagrad",
        torch.optim.Adagrad,
        {"lr": 1e-2, "damping": 1e-10, "batch_size": None},
    ),
    "adam": (
        "Adam",
        torch.optim.Adam,
        {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "damping": 1e-8, "batch_size": None},
    ),
}


@dataclass(frozen=True, repr=False)
class Comparator:
    """A torch optimizer that users know, with the options of its paper; see :func:`comparator`."""

    title: str
    options: Mapping[str, Any]
    inner: TorchMethod
    given: frozenset[str] = frozenset()
    is_batched: ClassVar[bool] = True
    anneals: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def needs(self) -> frozenset[str]:
        return self.inner.needs

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> TorchState:
        return self.inner.init(oracle, x0, seed=seed)

    def step(self, oracle: Oracle, state: TorchState) -> TorchState:
        return self.inner.step(oracle, state)

    @property
    def has_noise(self) -> bool:
        return self.inner.has_noise

    @property
    def knobs(self) -> Mapping[str, Any]:
        return self.options

    @property
    def open_options(self) -> frozenset[str]:
        return frozenset(self.options.keys() & {"lr", "damping", "batch_size"}) - self.given

    def with_options(self, options: Mapping[str, Any]) -> Comparator:
        return comparator(self.name, **options)

    def fitted(self, around: Surroundings) -> dict[str, Any]:
        # A step of Adam or Adagrad is a distance, so many times the sign of the gradient.
        steps = {"adam": 3e-2 * around.coordinate, "adagrad": 0.3 * around.coordinate}
        # What is added to the root of squares is to stay far below it.
        root_square = math.sqrt(around.max_square) or around.slope
        values = {
            "lr": steps.get(self.name, 1.0 / around.curvature),
            "damping": COMPARATORS[self.name][2].get("damping", 0.0) * root_square,
            "batch_size": None if around.num_samples is None else self.options.get("batch_size"),
        }
        return {name: value for name, value in values.items() if name in self.options}

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{self.title}({shown})"


def comparator(name: str, **options: Any) -> Comparator:
    r"""One of torch's own optimizers: "gd", "sgd", "adagrad" or "adam".

    .. math:: \text{gd, sgd: } x - \mathrm{lr}\,(1 + k)^{-q}\, G(x)

    .. math:: \text{adagrad: } x - \mathrm{lr}\, \frac{G(x)}{\epsilon + S^{1/2}}

    .. math:: \text{adam: } x - \mathrm{lr}\, \frac{\hat m}{\hat v^{1/2} + \epsilon}

    =======  =====================================  =============================================
    name     options                                remarks
    =======  =====================================  =============================================
    gd       lr                                     full gradients: the control that stays at a
                                                    saddle
    sgd      lr, batch_size, momentum, lr_decay     q is lr_decay; the only noise is that of the
                                                    samples
    adagrad  lr, damping, batch_size                S sums squared gradients, the newest included;
                                                    damping is epsilon
    adam     lr, beta1, beta2, damping, batch_size  m, v: running means of gradients and squares
    =======  =====================================  =============================================

    ASG differs from Adagrad by leaving out the newest gradient and by what it adds to S. Adam's
    step nearly is the sign of the gradient along the axes, so it leaves an axis-aligned saddle
    faster than its theory explains: look at rotated problems too.

    >>> comparator("adam", lr=0.1)
    Adam(lr=0.1, beta1=0.9, beta2=0.999, damping=1e-08, batch_size=None)

    References:
        H. Robbins, S. Monro: A stochastic approximation method. Annals of Mathematical Statistics,
        1951.  J. Duchi, E. Hazan, Y. Singer: Adaptive subgradient methods for online learning and
        stochastic optimization. JMLR 2011.  D. Kingma, J. Ba: Adam: a method for stochastic
        optimization. ICLR 2015.
    """
    title, optimizer, defaults = COMPARATORS[name]
    check_names(name, options, defaults)
    chosen = {**defaults, **options}
    for option, value in chosen.items():
        if option == "lr":
            require(0.0 < value < math.inf, option, value, "a positive finite number")
        elif option in ("momentum", "beta1", "beta2"):
            require(0.0 <= value < 1.0, option, value, f"0 <= {option} < 1")
        elif option in ("damping", "lr_decay"):
            require(0.0 <= value < math.inf, option, value, "a finite number of at least 0")
    theirs: dict[str, Any] = {word: chosen[word] for word in ("lr", "momentum") if word in chosen}
    if "beta1" in chosen:
        theirs["betas"] = (chosen["beta1"], chosen["beta2"])
    if "damping" in chosen:
        theirs["eps"] = chosen["damping"]
    ours: dict[str, Any] = {
        word: chosen[word] for word in ("batch_size", "lr_decay") if word in chosen
    }
    inner = TorchMethod(name, optimizer, theirs, **ours)
    return Comparator(title, chosen, inner, frozenset(options))
