"""What is sampled: the density exp(-U(x)), with U made of a mean loss and a prior, or given.

    U(x) = (n loss(x) + |x / prior_sd|^2 / 2) / temperature          a loss, a mean over n data
    U(x) = -log_density(x) / temperature                             a log density

Everything else in this room works on U at temperature 1.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asgld.arguments import require
from asgld.oracle.forms import Form, user_function
from asgld.oracle.functions import Function


@dataclass(frozen=True, eq=False)
class Potential:
    """U as a Function: `scale` times the inner function, plus the energy of a normal prior."""

    inner: Any
    scale: float
    precision: Tensor  # (d,): of the prior, zeros where there is none

    @property
    def dim(self) -> int:
        return int(self.inner.dim)

    @property
    def num_samples(self) -> int | None:
        return self.inner.num_samples  # type: ignore[no-any-return]

    @property
    def notes(self) -> dict[str, str]:
        return dict(getattr(self.inner, "notes", {}))

    @property
    def remarks(self) -> dict[str, str]:
        """Notes on how the user's function is called, where that is not the usual way."""
        return {name: text for name, text in self.notes.items() if name in ("dtype", "rows")}

    @property
    def charges(self) -> dict[str, Mapping[str, int]]:
        return dict(getattr(self.inner, "charges", {}))

    @property
    def unit_roundoff(self) -> float:
        return float(getattr(self.inner, "unit_roundoff", torch.finfo(torch.float64).eps))

    def value(self, x: Tensor) -> Tensor:
        return self._with_energy(self.inner.value(x), x)

    def grad(self, x: Tensor) -> Tensor:
        return self._with_slope(self.inner.grad(x), x)

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not hasattr(self.inner, "value_and_grad"):
            return self.value(x), self.grad(x)
        value, grad = self.inner.value_and_grad(x)
        return self._with_energy(value, x), self._with_slope(grad, x)

    def hvp(self, x: Tensor, v: Tensor) -> Tensor:
        return self._with_slope(self.inner.hvp(x, v), v)

    def hessian(self, x: Tensor) -> Tensor:
        matrix: Tensor = self.scale * self.inner.hessian(x) + torch.diag(self.precision)
        return matrix

    def sample_value(self, x: Tensor, indices: Tensor) -> Tensor:
        return self._with_energy(self.inner.sample_value(x, indices), x)

    def sample_grad(self, x: Tensor, indices: Tensor) -> Tensor:
        return self._with_slope(self.inner.sample_grad(x, indices), x)

    def sample_hvp(self, x: Tensor, v: Tensor, indices: Tensor) -> Tensor:
        return self._with_slope(self.inner.sample_hvp(x, v, indices), v)

    def _with_energy(self, value: Tensor, x: Tensor) -> Tensor:
        return self.scale * value + 0.5 * (self.precision * x * x).sum(-1)

    def _with_slope(self, slope: Tensor, x: Tensor) -> Tensor:
        return self.scale * slope + self.precision * x


def read_target(
    target: Any,
    form: Form,
    start: Tensor,
    *,
    num_data: int | None,
    prior_sd: Any,
    log_density: bool,
    temperature: float,
    batch_size: int | None,
) -> Potential:
    """Return U for what the user gave, or say what is missing."""
    require(_is_number(temperature) and 0 < temperature < math.inf, "temperature", temperature,
            "a positive number; 1 is the posterior itself")  # fmt: skip
    if log_density:
        for name, value in (("num_data", num_data), ("prior_sd", prior_sd)):
            if value is not None:
                raise ValueError(
                    f"{name}={value!r} with log_density=True: a log density has its data and its "
                    f"prior inside; leave {name} out"
                )
        if batch_size is not None:
            raise ValueError(
                f"batch_size={batch_size} with log_density=True: batches need a loss that is a "
                "mean over data; give loss(x, indices) and num_data"
            )
        inner = user_function(target, form, start)
        return Potential(inner, -1.0 / temperature, torch.zeros(form.dim, dtype=torch.float64))
    if num_data is None:
        raise TypeError(
            "num_data is missing: a loss that is a mean over n data needs n, which sets how narrow "
            "the posterior is; for a log density say log_density=True"
        )
    is_count = isinstance(num_data, int | np.integer) and not isinstance(num_data, bool)
    need = "a whole number of at least 1: the number of data behind the loss"
    require(is_count and num_data >= 1, "num_data", num_data, need)
    num_data = int(num_data)
    takes_indices = _takes_indices(target, is_wanted=batch_size is not None)
    if batch_size is not None:
        is_size = isinstance(batch_size, int) and 1 <= batch_size <= num_data
        require(is_size, "batch_size", batch_size, f"a whole number from 1 to num_data={num_data}")
        if not takes_indices:
            raise TypeError(f"batch_size={batch_size}: need loss(x, indices), a mean over indices")
    inner = user_function(target, form, start, num_samples=num_data if takes_indices else None)
    if takes_indices and inner.num_samples is not None:
        _refuse_missing(inner, start[:1], num_data)
        _refuse_sums(inner, start[:1], num_data)
    precision = _precision(prior_sd, form)
    return Potential(inner, num_data / temperature, precision / temperature)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _takes_indices(target: Any, is_wanted: bool) -> bool:
    """Whether the loss takes indices: a problem over samples, or a second argument.

    A second argument that has a default is for indices where they are wanted.
    """
    if isinstance(target, Function):
        return target.num_samples is not None
    if not callable(target):
        return False  # `user_function` says so
    return _takes(target, 2) and (is_wanted or not _takes(target, 1))


def _takes(call: Any, arguments: int) -> bool:
    try:
        inspect.signature(call).bind(*(None for _ in range(arguments)))
    except (TypeError, ValueError):  # ValueError: a callable that does not tell
        return False
    return True


def _refuse_missing(inner: Any, x: Tensor, num_data: int) -> None:
    """Raise if the loss has fewer data."""
    try:
        inner.value(x)
    except RuntimeError as error:
        if isinstance(error.__cause__, IndexError):
            raise ValueError(f"{error}; num_data={num_data} says how many there are") from error
        raise


def _refuse_sums(inner: Any, x: Tensor, num_data: int) -> None:
    """Raise if the loss of data taken twice is not their loss: a sum would double."""
    once = torch.arange(min(num_data, 8))
    value = float(inner.sample_value(x, once))
    twice = float(inner.sample_value(x, torch.cat((once, once))))
    if abs(twice - value) > 1e-3 * abs(value) and abs(twice - 2 * value) < 1e-3 * abs(value):
        raise ValueError(
            f"the loss of {len(once)} data is {value:.6g}, and {twice:.6g} if each is taken twice: "
            "it is a sum; need a mean over the indices (.mean() in place of .sum())"
        )


def _precision(prior_sd: Any, form: Form) -> Tensor:
    """1 / prior_sd^2 of each coordinate; zeros for a flat prior."""
    if prior_sd is None:
        return torch.zeros(form.dim, dtype=torch.float64)
    if _is_number(prior_sd) or np.ndim(prior_sd) == 0:
        sd = torch.full((form.dim,), float(prior_sd), dtype=torch.float64)
    else:
        try:
            sd = form.flat(prior_sd)
        except ValueError as error:
            raise ValueError(f"prior_sd: {error}") from error
    require(bool((sd > 0).all()), "prior_sd", prior_sd, "positive numbers, one or like x0")
    return 1.0 / sd**2
