"""The knobs of a parameter group: name, default, range, meaning and message, each declared once.

`Rule` is the declaration. The checks of groups and of loaded states, error messages, the docstring
of :class:`asgld.ASGLD` and the arguments of the kernels come from it. Four places repeat the names
for readability, and a test compares each with `Rule`: the constructor of :class:`asgld.ASGLD`,
`asgld.reference`, and the arguments of the C and of the Triton kernel.
"""

from __future__ import annotations

import math
import numbers
import textwrap
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, get_type_hints

import torch
from torch import Tensor

from asgld import noise
from asgld.prox import Penalty


@dataclass(frozen=True)
class Knob:
    """The meaning of a knob and its allowed values.

    A knob with a `low` is a number. `low` belongs to the range if `opens`, `high` if `closes`.
    """

    meaning: str
    low: float | None = None
    high: float = math.inf
    opens: bool = True
    closes: bool = False
    optional: bool = False
    hint: str = ""

    def need(self, name: str) -> str:
        """Say which values are allowed."""
        if self.low is None:
            return self.hint
        if self.closes and math.isinf(self.high):
            allowed = f"{name} >= {self.low:g}"
        else:
            below, above = ("<=" if belongs else "<" for belongs in (self.opens, self.closes))
            high = "infinity" if math.isinf(self.high) else f"{self.high:g}"
            allowed = f"{self.low:g} {below} {name} {above} {high}"
        return f"need {allowed}{'; ' if self.hint else ''}{self.hint}"

    def admits(self, value: Any) -> bool:
        if value is None:
            return self.optional
        low = self.low if self.low is not None else -math.inf
        is_high = value <= self.high if self.closes else value < self.high
        return bool((value >= low if self.opens else value > low) and is_high)


class Rule(NamedTuple):
    """The knobs of one parameter group, with the defaults of :class:`asgld.ASGLD`."""

    lr: Annotated[float | Tensor, Knob("step size; a float or a one-element tensor", 0.0)] = 1e-2
    alpha: Annotated[
        float,
        Knob(
            "how strongly D shortens the gradient step. Use 0 with full gradients or growing "
            "batches, 1 with mini-batches; 1 is Adagrad's",
            0.0, 2.0, closes=True, hint="past 2 the steps sum up finitely",
        ),
    ] = 1.0  # fmt: skip
    beta: Annotated[
        float,
        Knob(
            "how strongly D quiets the noise; `math.inf` is no noise",
            0.0, closes=True, hint="for no injected noise use asgld.ASG or sigma=0",
        ),
    ] = 1.0  # fmt: skip
    sigma: Annotated[
        float,
        Knob(
            "standard deviation of the injected noise; 0 draws nothing. Total noise grows with the "
            "number of coordinates d: the theory keeps `sigma * sqrt(d)` fixed",
            0.0,
        ),
    ] = 1e-3
    delta: Annotated[
        float,
        Knob(
            "constant that every step adds to D, in units of squared gradients. A tiny delta, say "
            "1e-8, slows convergence: near a minimum only the noise then makes D grow",
            0.0,
        ),
    ] = 1e-2
    d_init: Annotated[
        float,
        Knob(
            "D before the first step; positive if a power of D is taken. "
            "`lr * d_init ** (-alpha / 2)` should not exceed 1 / (largest curvature)",
            0.0,
        ),
    ] = 1.0
    weight_decay: Annotated[float, Knob("decoupled weight decay, as in AdamW", 0.0)] = 0.0
    decay: Annotated[
        float | None,
        Knob(
            "forget: D is `delta` plus an exponential average of past squared gradients with this "
            "factor. The average begins at `d_init`; with `d_init=0` the first gradient fills the "
            "average and moves nothing. None is the paper's sum",
            0.0, 1.0, opens=False, optional=True, hint="None is the sum, which forgets nothing",
        ),
    ] = None  # fmt: skip
    momentum: Annotated[
        float,
        Knob(
            "factor of an exponential average of the gradient steps, taken after D scales them. "
            "The polar forms take the average of the gradients, before D, and look ahead as "
            "Nesterov does",
            0.0, 1.0,
        ),
    ] = 0.0  # fmt: skip
    clip: Annotated[
        float | None,
        Knob(
            "bound the scaled gradient by `k ** clip` in every coordinate; None is no bound",
            0.0, optional=True,
        ),
    ] = None  # fmt: skip
    annealing: Annotated[
        float,
        Knob(
            "multiply the noise by `k ** (-annealing / 2)`. The paper's D anneals the noise by "
            "growing; a D that forgets does not grow, and needs this knob",
            0.0,
        ),
    ] = 0.0
    opposed: Annotated[
        float,
        Knob(
            "factor of momentum in a coordinate where momentum points against the newest gradient. "
            "1 keeps momentum; 0 waits, as the cautious optimizers do (Liang, Chen, Liu and Liu, "
            "arXiv 2411.16085, who also scale up the other coordinates); -1 turns momentum round, "
            "as Grams does (Cao, Li and Song, arXiv 2412.17107). With a negative factor a "
            "coordinate whose gradient is 0 does not move. The stored momentum does not depend on "
            "this knob",
            -1.0, 1.0, closes=True, hint="-1 turns momentum round, 0 drops it, 1 keeps it",
        ),
    ] = 1.0  # fmt: skip
    noise: Annotated[
        float | None,
        Knob(
            "standard deviation of the noise in units of lr, before D scales it. It replaces "
            "`sigma`, which must be 0, and the noise step follows lr through every schedule. None "
            "leaves the noise to `sigma`",
            0.0, optional=True, hint="in gradient steps; None leaves the noise to sigma",
        ),
    ] = None  # fmt: skip
    noise_bound: Annotated[
        float | None,
        Knob(
            "bound the standard deviation of the noise step by `noise_bound * lr * sqrt(k)` at "
            "step k. The bound works by an addition to D that vanishes like a power of k, so at "
            "beta = alpha/2 the temperature stays. Without a bound, a D that has seen no gradient "
            "can make the noise huge",
            0.0, opens=False, optional=True, hint="None is no bound",
        ),
    ] = None  # fmt: skip
    seed: Annotated[
        int,
        Knob("key of the noise, a pure function of seed, parameter, step and element"),
    ] = 0
    maximize: Annotated[bool, Knob("ascend")] = False
    stochastic_rounding: Annotated[
        bool,
        Knob(
            "round half-precision results at random, without bias, so that small updates, below "
            "half a unit in the last place, are not lost"
        ),
    ] = False
    sum_dtype: Annotated[
        torch.dtype | None,
        Knob(
            "dtype of the sum of squares. None is the parameter's dtype, but float32 for half "
            "precision, in which a sum would soon stop growing"
        ),
    ] = None
    capturable: Annotated[bool, Knob("keep the step count on the device, for CUDA graphs")] = False
    differentiable: Annotated[bool, Knob("let autograd run through the step")] = False
    foreach: Annotated[
        bool | None,
        Knob("work on lists of tensors; None takes the fastest backend"),
    ] = None
    fused: Annotated[
        bool | None,
        Knob("work in one kernel; None takes the fastest backend"),
    ] = None
    shape: Annotated[
        str,
        Knob(
            "shape of D. `coordinate` is the paper's. `scalar` is one number for a matrix, `row` "
            "one for each row. `left` is a matrix that multiplies from the left, `both` one on "
            "each side. `polar` takes D from the momentum alone, as Muon does; `polar-row` then "
            "divides each row by its average size. A parameter counts as the matrix (first "
            "dimension, all others)"
        ),
    ] = "coordinate"
    blocks: Annotated[
        int,
        Knob(
            "number of matrices that a parameter holds along its first dimension: 3 for a weight "
            "that makes queries, keys and values, 4 for the gates of an LSTM, the number of "
            "experts for a stack of experts"
        ),
    ] = 1
    polar_by: Annotated[
        str,
        Knob(
            "how the polar forms find the polar factor. `express` is five steps of Polar Express "
            "(Amsel, Persson, Musco and Gower, arXiv 2505.16932), `muon` five steps with the "
            "coefficients of Muon, `svd` is exact"
        ),
    ] = "express"
    share_work: Annotated[
        bool,
        Knob(
            "let the ranks of the default process group share the matrices that all of them hold. "
            "A step then communicates, so all ranks must take it together. Sharded matrices are "
            "always shared"
        ),
    ] = False
    prox: Annotated[
        Penalty | None,
        Knob(
            "penalty g of `asgld.prox`: minimize f + g, where the gradients are those of f. After "
            "each step x shrinks by the proximal step of g, each coordinate with its own step "
            "size, `lr * D ** (-alpha / 2)`"
        ),
    ] = None

    @property
    def is_polar(self) -> bool:
        """Whether D comes from the momentum, not from the past."""
        return self.shape in POLAR_SHAPES

    @property
    def has_noise(self) -> bool:
        size = self.sigma if self.noise is None else self.noise
        return size != 0.0 and not math.isinf(self.beta)

    @property
    def fills(self) -> bool:
        """Whether the first gradient only fills the average, which does not begin at d_init."""
        return self.decay is not None and self.d_init == 0.0 and not self.is_polar

    @property
    def divides(self) -> bool:
        """Whether a step divides by a power of D."""
        return self.alpha > 0.0 or (self.has_noise and self.beta > 0.0)

    def numbers(self) -> list[float]:
        """Return the numbers among the knobs in order, as kernels take them: NaN for None, and 0
        for an lr that is a tensor, which kernels take as another argument."""
        lr = 0.0 if isinstance(self.lr, Tensor) else self.lr
        values: tuple[Any, ...] = (lr, *self[1 : len(NUMBERS)])
        return [math.nan if value is None else float(value) for value in values]


def _declared() -> dict[str, Knob]:
    hints = get_type_hints(Rule, include_extras=True)
    return {name: hints[name].__metadata__[0] for name in Rule._fields}


KNOBS = _declared()
NUMBERS = tuple(name for name, knob in KNOBS.items() if knob.low is not None)
FLAGS = ("maximize", "stochastic_rounding", "capturable", "differentiable")
_SWITCHES = (*FLAGS, "share_work")
_CHOICES = ("foreach", "fused")
POLAR_SHAPES = ("polar", "polar-row")
SHAPES = ("scalar", "row", "coordinate", "left", "both", *POLAR_SHAPES)
POLAR_METHODS = ("express", "muon", "svd")
_SUM_DTYPES = (None, torch.float64, torch.float32, torch.bfloat16)

# Arguments of other optimizers, and the same in terms of ASGLD.
FOREIGN = {
    "betas": "momentum=betas[0] and decay=betas[1]",
    "eps": "delta, which is added to squares: delta=eps**2",
    "amsgrad": "nothing: D never shrinks without decay",
    "nesterov": "nothing: the polar forms look ahead, the other shapes of D do not",
    "ns_coefficients": "polar_by='muon'",
    "ns_steps": "polar_by, always with five steps",
    "adjust_lr_fn": "nothing: lr is on AdamW's scale, as with 'match_rms_adamw'",
    "dampening": "nothing: momentum averages, so its gain is 1 - momentum",
    "initial_accumulator_value": "d_init",
    "lr_decay": "a scheduler of torch.optim.lr_scheduler",
    "rho": "decay",
    "temperature": "sigma, the square root of the temperature",
    "decoupled_weight_decay": "nothing: weight_decay is decoupled",
}


def rule_of(group: Mapping[str, Any]) -> Rule:
    """Return the knobs of a parameter group."""
    try:
        return Rule._make(map(group.__getitem__, Rule._fields))
    except KeyError as error:
        raise ValueError(f"a parameter group has no {error}") from None


def plain(knobs: dict[str, Any]) -> dict[str, Any]:
    """Return knobs with NumPy's numbers as Python's, which every checkpoint can hold."""

    def one(name: str, value: Any) -> Any:
        if (
            name in (*_SWITCHES, *_CHOICES)
            and isinstance(value, numbers.Integral)
            and value in (0, 1)
        ):
            return bool(value)
        is_number = isinstance(value, numbers.Real) and not isinstance(value, (int, float))
        is_float = isinstance(value, float) and type(value) is not float
        return float(value) if name in NUMBERS and (is_number or is_float) else value

    return {name: one(name, value) for name, value in knobs.items()}


def name_of_ours(word: str) -> str:
    """Say which knob an unknown word may mean."""
    if word in FOREIGN:
        return f"{word!r} is another optimizer's word; in ASGLD it is {FOREIGN[word]}"
    return f"unknown option {word!r}"


def check_lr(lr: Any) -> None:
    """Raise if lr is illegal. The kernel checks an lr on a device: the host would have to wait."""
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        if not lr.is_floating_point():
            raise TypeError(f"Invalid learning rate: a tensor of {lr.dtype}: need floating point")
        if lr.device.type != "cpu" or torch.compiler.is_compiling():
            return
        lr = float(lr.detach())
    elif type(lr) is not float:
        _check_number("lr", lr)
    if not 0.0 <= lr < math.inf:
        raise ValueError(f"Invalid learning rate: {lr}")


def check(rule: Rule, dtypes: Iterable[torch.dtype] = (torch.float64,)) -> None:
    """Raise if a knob or a combination of knobs is illegal.

    `dtypes` are the working dtypes of the parameters: the least D must be positive in them.
    """
    check_lr(rule.lr)
    for name in NUMBERS[1:]:
        value, knob = getattr(rule, name), KNOBS[name]
        if value is not None:
            _check_number(name, value)
        if not knob.admits(value):
            raise ValueError(f"Invalid {name} value: {value!r}: {knob.need(name)}")
    noise.check_seed(rule.seed)
    for name in (*_SWITCHES, *_CHOICES):
        value = getattr(rule, name)
        if not isinstance(value, bool) and not (name in _CHOICES and value is None):
            raise TypeError(f"Invalid {name} value: {value!r}: need True or False")
    if rule.sum_dtype not in _SUM_DTYPES:
        allowed = ", ".join(map(str, _SUM_DTYPES))
        raise ValueError(f"Invalid sum_dtype value: {rule.sum_dtype}: need one of {allowed}")
    for name, words in (("shape", SHAPES), ("polar_by", POLAR_METHODS)):
        if getattr(rule, name) not in words:
            raise ValueError(
                f"Invalid {name} value: {getattr(rule, name)!r}: need one of {', '.join(words)}"
            )
    if not isinstance(rule.blocks, int) or isinstance(rule.blocks, bool) or rule.blocks < 1:
        raise ValueError(
            f"Invalid blocks value: {rule.blocks!r}: need a whole number of at least 1"
        )
    if rule.shape != "coordinate":
        _check_shape(rule)
    if rule.prox is not None:
        _check_prox(rule)
    _check_together(rule, dtypes)


def _check_number(name: str, value: Any) -> None:
    if type(value) is float:
        return
    what = "learning rate" if name == "lr" else f"{name} value"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"Invalid {what}: {value!r}: need a number, not a {type(value).__name__}")
    try:
        float(value)
    except OverflowError:
        raise ValueError(f"Invalid {what}: too large for a float") from None


def _check_shape(rule: Rule) -> None:
    """Raise if a knob does not go with a D that is no coordinate's."""
    refused: dict[str, tuple[bool, str]] = {
        "fused": (bool(rule.fused), "no one kernel has this step; leave fused out"),
        "foreach": (bool(rule.foreach), "this step is no list operation; leave foreach out"),
        "differentiable": (rule.differentiable, "autograd does not run through this step"),
        "sum_dtype": (
            rule.sum_dtype is not None,
            "the sums of this D are small, or are matrices whose powers need all digits",
        ),
    }
    refused["share_work"] = (
        rule.share_work and rule.capturable,
        "ranks compare at each step what they share, which a graph cannot hold",
    )
    if rule.shape in ("left", "both"):
        refused["capturable"] = (
            rule.capturable,
            "a graph cannot hold the eigenvalues that this D needs",
        )
    if rule.is_polar:
        singular = "D comes from the momentum and is singular"
        refused |= {
            "alpha": (rule.alpha != 1.0, f"{singular}, so only alpha=1 has a meaning"),
            "beta": (
                rule.has_noise and rule.beta != 0.0,
                f"{singular}, so noise cannot be scaled by it; use beta=0, or no noise",
            ),
            "clip": (rule.clip is not None, "the polar factor is bounded by itself; use None"),
            "opposed": (rule.opposed != 1.0, "the direction is no average of steps; use 1"),
            "noise_bound": (rule.noise_bound is not None, "D does not scale the noise; use None"),
            "capturable": (
                rule.capturable and rule.polar_by == "svd",
                "a graph cannot hold an SVD; use another polar_by",
            ),
        }
    _refuse(rule, refused, f"shape={rule.shape!r}")


def _check_prox(rule: Rule) -> None:
    """Raise if the penalty is none, or does not go with another knob."""
    by_name = "penalize single parameters by asgld.network_groups(model, prox={'0.weight': ...})"
    if not isinstance(rule.prox, Penalty):
        raise TypeError(
            f"Invalid prox value: {rule.prox!r}: need None or a penalty, such as "
            f"asgld.prox.L1(0.1); {by_name}"
        )
    refused = {
        "shape": (
            rule.shape != "coordinate",
            f"the proximal step needs a D per coordinate; use shape='coordinate', or {by_name}",
        ),
        "maximize": (rule.maximize, "f + prox is minimized; negate f instead"),
        "differentiable": (rule.differentiable, "autograd does not run through this step"),
    }
    _refuse(rule, refused, "prox")


def _refuse(rule: Rule, refused: Mapping[str, tuple[bool, str]], beside: str) -> None:
    """Raise for the first knob that is refused, and say why."""
    for name, (is_refused, why) in refused.items():
        if is_refused:
            raise ValueError(f"Invalid {name} value: {getattr(rule, name)!r} with {beside}: {why}")


def _check_together(rule: Rule, dtypes: Iterable[torch.dtype]) -> None:
    if rule.opposed != 1.0 and rule.momentum == 0.0:
        raise ValueError(
            f"Invalid opposed value: {rule.opposed!r} with momentum=0.0: without momentum nothing "
            "points against the newest gradient; set momentum, or leave opposed out"
        )
    if rule.noise is not None and rule.sigma != 0.0:
        raise ValueError(
            f"Invalid noise value: {rule.noise!r} with sigma={rule.sigma!r}: both set the size of "
            "the noise; set sigma=0, or noise=None"
        )
    if rule.noise_bound is not None and rule.beta == 0.0:
        raise ValueError(
            f"Invalid noise_bound value: {rule.noise_bound!r} with beta=0: D does not scale this "
            "noise, so a larger D cannot bound it; set noise_bound=None"
        )
    if rule.divides and not rule.is_polar:
        # The least D: a sum begins at d_init, and an average may forget all but delta.
        name = "d_init" if rule.decay is None else "delta"
        least = getattr(rule, name)
        for dtype in dtypes:
            if not least >= torch.finfo(dtype).tiny:
                raise ValueError(
                    f"Invalid {name} value: {least!r}: need a positive number, at least "
                    f"{torch.finfo(dtype).tiny:.2g} in {dtype}. Without gradients D is as small, "
                    "and a step divides by a power of D. A value far below the squared gradients "
                    "makes the first steps huge"
                )
    if rule.fused:
        if rule.differentiable:
            raise RuntimeError("`fused` does not support `differentiable`")
        if rule.foreach:
            raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
    if isinstance(rule.lr, Tensor) and rule.foreach and not rule.capturable:
        raise ValueError("lr as a Tensor is not supported for capturable=False and foreach=True")


def warn_of_heating(rule: Rule) -> None:
    """Warn if the noise does not die down; `add_param_group` calls this."""
    alpha, beta = rule.alpha, rule.beta
    if (
        rule.is_polar
        or not rule.has_noise
        or alpha == 0.0
        or beta > alpha / 2
        or rule.decay is not None
    ):
        return  # a D that forgets does not grow
    effect = "grows" if beta < alpha / 2 else "stays fixed, as in a sampler,"
    warnings.warn(
        f"beta={beta} with alpha={alpha}: the temperature of the noise {effect} while D grows; "
        f"for convergence use beta > alpha/2 = {alpha / 2}",
        stacklevel=5,  # the user's line, behind add_param_group and two constructors
    )


def describe(indent: str = "") -> str:
    """Return the knobs as lines of a docstring's Args."""
    lines = []
    for name, knob in KNOBS.items():
        text = knob.meaning[0].upper() + knob.meaning[1:]
        if knob.low is not None and name != "lr":
            text += f" ({knob.need(name).partition(';')[0].removeprefix('need ')})"
        lines.append(
            textwrap.fill(
                f"{name}: {text}.",
                100 - len(indent),
                initial_indent=indent,
                subsequent_indent=indent + "    ",
            )
        )
    return "\n".join(lines)
