"""The form of a user's x: a vector, an array of any shape, a dict or tuple of tensors.

Everything inside works on flat rows of float64. `read_start` makes them of whatever `x0` is and
remembers how it looked as a :class:`Form`; `user_function` wraps the user's callables, so that they
see x in that form and may answer in it. Results go back through the same form.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from asgld.oracle.differences import Bounds, magnitudes
from asgld.oracle.functions import (
    Function,
    UserFunction,
    numpy_function,
    torch_function,
    tried,
)

_CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Form:
    """How the user's x looks: the structure around its arrays, and the shape of each.

    >>> form, start = read_start({"w": torch.zeros(2, 3), "b": torch.ones(2)}, None)
    >>> start.shape
    torch.Size([1, 8])
    >>> form.to_user(start[0])["b"]
    tensor([1., 1.], dtype=torch.float64)
    """

    is_torch: bool  # x0 had tensors: callables are torch functions, results are tensors
    spec: TreeSpec
    shapes: tuple[tuple[int, ...], ...]
    devices: tuple[torch.device, ...]

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def is_single(self) -> bool:
        """Whether x is one array, not a structure of several."""
        return bool(self.spec.is_leaf())

    @property
    def is_vector(self) -> bool:
        """Whether x is a plain vector, so that flat rows are already in its form."""
        return self.is_single and len(self.shapes[0]) == 1

    def to_user(self, flat: Tensor) -> Any:
        """A flat point, (d,), in the user's form: float64, a copy, on x0's device."""
        return self._to_user(flat, ())

    def rows_to_user(self, rows: Tensor) -> Any:
        """Points (R, d) in the user's form, with a leading axis R on every array."""
        return self._to_user(rows, (len(rows),))

    def flat(self, value: Any) -> Tensor:
        """What has the user's form, or is flat already, as a vector (d,) of float64 on the CPU."""
        if isinstance(value, Tensor):
            value = value.detach()
        flat = self.joined(value)
        tensor = flat if isinstance(flat, Tensor) else torch.from_numpy(np.array(flat, np.float64))
        if tensor.shape != (self.dim,):
            raise ValueError(
                f"value of shape {tuple(tensor.shape)}: need ({self.dim},) or x's form"
            )
        return tensor.detach().to(_CPU, torch.float64, copy=True)

    def _to_user(self, rows: Tensor, lead: tuple[int, ...]) -> Any:
        parts = torch.split(rows.detach().to(_CPU, torch.float64), self._sizes, -1)
        leaves: list[Any] = [
            part.reshape(lead + shape).to(device, copy=True)
            for part, shape, device in zip(parts, self.shapes, self.devices, strict=True)
        ]
        if not self.is_torch:
            leaves = [leaf.numpy() for leaf in leaves]
        return tree_unflatten(leaves, self.spec)

    # -------------------------------------------------------------------------------- for callables

    @property
    def _sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    def split_tensor(self, flat: Tensor) -> Any:
        """A flat tensor in the form, by operations that autograd and vmap follow."""
        if self.is_single:
            return self._placed(flat, self.shapes[0], self.devices[0])
        parts = torch.split(flat, self._sizes)
        leaves = map(self._placed, parts, self.shapes, self.devices)
        return tree_unflatten(list(leaves), self.spec)

    @staticmethod
    def _placed(part: Tensor, shape: tuple[int, ...], device: torch.device) -> Tensor:
        part = part if part.shape == shape else part.reshape(shape)
        return part if part.device == device else part.to(device)

    def split_array(self, flat: np.ndarray[Any, Any]) -> Any:
        """A flat array in the form."""
        if self.is_single:
            return flat.reshape(self.shapes[0])
        parts = np.split(flat, np.cumsum(self._sizes)[:-1])
        leaves = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return tree_unflatten(leaves, self.spec)

    def joined(self, value: Any) -> Any:
        """What a callable returned in the form, flat; what is flat or has another shape, as it is.

        The oracle names the callable that returned a wrong shape.
        """
        if self.is_single:
            return self._flattened(value, self.shapes[0])
        if isinstance(value, Tensor | np.ndarray) and tuple(value.shape) == (self.dim,):
            return value
        try:
            leaves = self.spec.flatten_up_to(value)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"need the form of x, or a flat vector ({self.dim},): {error}"
            ) from error
        flat = []
        for leaf, shape in zip(leaves, self.shapes, strict=True):
            part = self._flattened(leaf, shape)
            if tuple(part.shape) != (math.prod(shape),):
                raise ValueError(f"a part has shape {tuple(part.shape)}: need {shape}, as in x")
            flat.append(part)
        if any(isinstance(part, Tensor) for part in flat):
            device = next(part.device for part in flat if isinstance(part, Tensor))
            device = device if len(set(self.devices)) == 1 else _CPU
            return torch.cat([torch.as_tensor(part, device=device) for part in flat])
        return np.concatenate(flat)

    def joined_pair(self, pair: Any) -> Any:
        """Value and gradient, the gradient flat."""
        is_pair = isinstance(pair, tuple | list) and len(pair) == 2
        return (pair[0], self.joined(pair[1])) if is_pair else pair

    @staticmethod
    def _flattened(value: Any, shape: tuple[int, ...]) -> Any:
        if value is None or isinstance(value, str):
            return value
        array = _as_array(value)
        return array.reshape(-1) if tuple(array.shape) == shape else array

    def matrix(self, value: Any) -> Any:
        """A Hessian as (d, d): of a single array of shape s it may come as s + s."""
        if value is None or not self.is_single or self.is_vector:
            return value
        array = _as_array(value)
        is_tensor_of_tensors = tuple(array.shape) == self.shapes[0] * 2
        return array.reshape(self.dim, self.dim) if is_tensor_of_tensors else array


def _as_array(value: Any) -> Any:
    """A callable's answer as a tensor or array; a list of tensors is stacked."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, list | tuple) and any(isinstance(part, Tensor) for part in value):
        return torch.stack([torch.as_tensor(part) for part in value])
    return np.asarray(value)


# ------------------------------------------------------------------------------------ reading x0


def read_start(x0: Any, replicas: int | None = None) -> tuple[Form, Tensor]:
    """The form of `x0`, and its starts as rows (R, d) of float64 on the CPU.

    Args:
        x0: a number, a list of numbers, a NumPy array or a tensor of any shape, or a dict, tuple,
            list or named tuple of those, nested too. A list or tuple of numbers alone is an array.
            Integers become float64. It is copied.
        replicas: R. An array (R, ...) of two or more axes then is R starts; so is a structure, each
            of whose arrays has a leading axis R. Another x0 is one start, R times. Without
            `replicas` x0 is one start.
    """
    if replicas is not None and (isinstance(replicas, bool) or int(replicas) != replicas):
        raise ValueError(f"replicas={replicas!r}: need a whole number")
    if replicas is not None and replicas < 1:
        raise ValueError(f"replicas={replicas!r}: need at least 1")
    leaves, spec = tree_flatten(x0, is_leaf=_is_numbers)
    if not leaves:
        raise ValueError(f"x0={x0!r} is empty: need at least one coordinate")
    is_torch = any(isinstance(leaf, Tensor) for leaf in leaves)
    if is_torch and any(isinstance(leaf, np.ndarray) for leaf in leaves):
        raise TypeError("x0 has tensors and NumPy arrays: need one kind, for `fun` gets x so")
    tensors = [_as_tensor(leaf) for leaf in leaves]
    if sum(t.numel() for t in tensors) == 0:
        raise ValueError(f"x0 has shape {tuple(tensors[0].shape)}: need at least one coordinate")
    if not all(bool(torch.isfinite(t).all()) for t in tensors):
        raise ValueError("x0 has entries that are NaN or infinite")
    has_rows = _has_rows(tensors, replicas, spec.is_leaf())
    lead = (replicas,) if has_rows and replicas is not None else (1,)
    shapes = tuple(tuple(t.shape[1:] if has_rows else t.shape) for t in tensors)
    devices = tuple(leaf.device if isinstance(leaf, Tensor) else _CPU for leaf in leaves)
    form = Form(is_torch, spec, shapes, devices)
    parts = zip(tensors, shapes, strict=True)
    rows = torch.cat([t.reshape(lead[0], math.prod(shape)) for t, shape in parts], -1)
    return form, rows.expand(replicas or 1, -1).clone()


def _has_rows(tensors: list[Tensor], replicas: int | None, is_single: bool) -> bool:
    """Whether the leading axis counts starts."""
    if replicas is None:
        return False
    if is_single and tensors[0].dim() < 2:
        return False  # a vector is one start, whatever its length
    if all(t.dim() > 0 and len(t) == replicas for t in tensors):
        return True
    if is_single and tensors[0].dim() == 2:
        rows, columns = tensors[0].shape
        raise ValueError(
            f"replicas={replicas} but x0 has {rows} rows, one start each: give as many, or one "
            f"start of shape (d,); for matrices as starts ({replicas}, {rows}, {columns})"
        )
    return False


def _is_numbers(value: Any) -> bool:
    """Whether a list or tuple holds numbers alone, so that an array is meant."""
    if type(value) not in (list, tuple) or len(value) == 0:
        return False
    return all(isinstance(v, int | float | complex | np.number) or _is_numbers(v) for v in value)


def _as_tensor(leaf: Any) -> Tensor:
    """An array of x0 as float64 on the CPU; it may share memory."""
    if isinstance(leaf, Tensor):
        if leaf.is_complex():
            raise TypeError(f"x0 has dtype {leaf.dtype}: need real numbers")
        if leaf.layout is not torch.strided:
            raise TypeError(f"x0 has layout {leaf.layout}: need a dense tensor")
        return leaf.detach().to(_CPU, torch.float64)
    if np.ma.is_masked(leaf):
        raise ValueError("x0 has masked entries: need a value for each coordinate")
    try:
        array = np.asarray(leaf)
        if np.iscomplexobj(array):
            raise TypeError(f"x0 has dtype {array.dtype}: need real numbers")
        if array.dtype.kind in "SUmM" or leaf is None:
            raise TypeError(f"x0={leaf!r}: need numbers")
        return torch.from_numpy(np.array(array, dtype=np.float64))
    except (TypeError, ValueError) as error:
        if str(error).startswith("x0"):
            raise
        raise TypeError(
            f"x0 has an entry {leaf!r}: need numbers, arrays or tensors of regular shape, or a "
            f"dict, tuple or list of those ({error})"
        ) from error


# ------------------------------------------------------------------------------------ callables


def user_function(
    fun: Any,
    form: Form,
    start: Tensor,
    *,
    args: tuple[Any, ...] = (),
    jac: Callable[..., Any] | bool | None = None,
    hvp: Callable[..., Any] | None = None,
    hess: Callable[..., Any] | None = None,
    num_samples: int | None = None,
    bounds: Bounds | None = None,
) -> Function:
    """`fun`, a callable of x in its form, as a Function of flat rows.

    Args:
        fun: fun(x, *args), or fun(x, indices, *args) with `num_samples`, in torch or NumPy; or a
            Function such as a problem, which is returned as it is.
        form, start: of x0, see `read_start`. Where x0 has no tensors, torch is tried first, and
            kept if its gradient at the start is right.
        args: further arguments of all callables.
        jac: jac(x, *args), the gradient in x's form or flat; or True, where `fun` returns value and
            gradient. False is None.
        hvp: hvp(x, v, *args), with v and the product in x's form; the product may be flat.
        hess: hess(x, *args), (d, d), or shape + shape where x is one array.
        num_samples: n, where `fun` is a mean over n samples.
        bounds: lower and upper limits, each (d,), which differences do not cross.
    """
    returns_both, jac = jac is True, None if isinstance(jac, bool) else jac
    given = {"jac": jac, "hvp": hvp, "hess": hess}
    has_derivatives = returns_both or any(call is not None for call in given.values())
    if isinstance(fun, Function):
        if has_derivatives or num_samples is not None or args:
            raise ValueError(
                "args, jac, hvp, hess and num_samples come with the problem: leave them out"
            )
        return fun
    for name, call in {"fun": fun, **given}.items():
        if not callable(call) and (name == "fun" or call is not None):
            need = "a function of x, or a problem" if name == "fun" else "a function of x, or None"
            raise TypeError(f"{name}={call!r}: need {need}")
    args = args if isinstance(args, tuple) else (args,)

    def build(make: Callable[..., UserFunction], split: Callable[[Any], Any]) -> UserFunction:
        changes: dict[str, tuple[int, Callable[[Any], Any]]] = {
            "jac": (1, form.joined),
            "hvp": (2, form.joined),
            "hess": (1, form.matrix),
        }
        wrapped: dict[str, Any] = {
            name: _in_form(call, form, split, *changes[name], args)
            for name, call in given.items()
            if call is not None
        }
        if returns_both:
            wrapped["jac"] = True
        return make(
            _in_form(fun, form, split, 1, form.joined_pair if returns_both else None, args),
            form.dim,
            num_samples=num_samples,
            bounds=bounds,
            **wrapped,
        )

    if form.is_torch:
        return build(torch_function, form.split_tensor)
    num_calls = 0
    if not has_derivatives:
        trial = build(torch_function, form.split_tensor)
        if _differentiates(trial, start[:1]):
            return trial
        num_calls = trial.calls["fun"]
    function = build(numpy_function, form.split_array)
    function.calls["fun"] += num_calls
    return function


def _in_form(
    call: Callable[..., Any],
    form: Form,
    split: Callable[[Any], Any],
    num_points: int,
    join: Callable[[Any], Any] | None,
    args: tuple[Any, ...],
) -> Callable[..., Any]:
    """`call` as a callable of flat points, of which it takes one or two."""
    if form.is_vector and all(device == _CPU for device in form.devices):
        return (lambda *row: call(*row, *args)) if args else call
    if join is None:
        return lambda x, *indices: call(split(x), *indices, *args)

    def wrapped(*row: Any) -> Any:
        points = (split(point) for point in row[:num_points])
        return join(call(*points, *row[num_points:], *args))

    return wrapped


def _differentiates(function: UserFunction, x: Tensor) -> bool:
    """Whether autograd differentiates `fun` rightly, judged by a difference along one direction.

    A NumPy function may run on tensors and yet lose part of its gradient, by `float(x[0])` say. A
    function that runs and is not finite here is of torch: nothing speaks against its gradient.
    """
    generator = torch.Generator().manual_seed(0)
    scale = magnitudes(x)
    shift, v = scale * torch.randn(2, *x.shape, generator=generator, dtype=x.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for point in (x + 1e-3 * shift, x):  # off x0, which may be a critical point
            step = function.unit_roundoff ** (1 / 3)
            found, _ = tried(functools.partial(_along, function, point, step * v))
            if found is None:
                return False
            value, gradient, ahead, behind = found
            slope, rise = float((gradient * v).sum()), ahead - behind
            if math.isfinite(slope) and math.isfinite(rise):
                # Each part of the slope must be seen, so it is compared with their sum of sizes.
                size = float((gradient * v).abs().sum()) + abs(rise) / (2 * step)
                noise = function.unit_roundoff * (abs(float(value)) + abs(ahead)) / step
                return bool(abs(slope - rise / (2 * step)) <= 1e-4 * size + 10 * noise)
    return True


def _along(function: UserFunction, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor, float, float]:
    """Value and gradient at x, and the values at x + v and x - v."""
    ahead, behind = (float(function.value(x + sign * v)) for sign in (1, -1))
    return *function.value_and_grad(x), ahead, behind


def contradicts_values(function: Function, x: Tensor) -> bool:
    """Whether the gradient at x contradicts differences of values; four values are spent.

    Two step sizes must agree with each other before they are believed.
    """
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(len(x), generator=generator, dtype=torch.float64) * magnitudes(x)
    slope = float(function.grad(x[None])[0] @ v)
    slopes = []
    for step in (1e-4, 1e-5):
        ends = [float(function.value((x + sign * step * v)[None])) for sign in (1.0, -1.0)]
        slopes.append((ends[0] - ends[1]) / (2 * step))
    size = max(map(abs, (slope, *slopes)))
    if not math.isfinite(size):
        return False
    agree = abs(slopes[0] - slopes[1])
    rounding = 1e-10 * abs(float(function.value(x[None])))
    return agree <= 1e-3 * size and abs(slope - slopes[1]) > 0.05 * size + 10 * agree + rounding
