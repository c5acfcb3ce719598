"""User functions of one point, made into functions of many: value, gradient, Hessian.

A problem of `asgld.problems` states its own derivatives. A user brings `fun(x)` alone, in torch or
in NumPy. `torch_function` and `numpy_function` add what is missing, by automatic differentiation or
by differences, and note how each derivative is obtained, so that a result can say so. Points have
shape (..., dim), one row per replica; user callables see one row of shape (dim,) at a time, or all
rows at once under `torch.func.vmap`.
"""

from __future__ import annotations

import functools
import re
import signal
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from asgld.oracle.differences import Bounds, contradicts, gradient_of_values, product_of_gradients

RowCall = Callable[..., Any]
T = TypeVar("T")

_EPS = float(np.finfo(np.float64).eps)
# A gradient that is itself a difference carries rounding of eps^(2/3), and its own truncation: it
# counts as one with half of the digits.
_LOSS = 0.5
# Columns of a Hessian that are computed in one go, and numbers that such a batch may hold.
_MAX_COLUMNS = 128
_MAX_BATCH = 2**22


@runtime_checkable
class Function(Protocol):
    """What an oracle opens: f and its derivatives at points x of shape (..., dim).

    `num_samples` is n where f is a mean over n samples, else None; `sample_grad(x, indices)` then
    is the gradient of the mean over `indices`, of shape (batch,) or (..., batch). A function may
    also have `notes`, sentences on how derivatives are obtained, and `charges`, what a call really
    costs: {"hvp": {"grad": 2}} where a Hessian-vector product is a difference of two gradients;
    `value_and_grad(x)`, both in one evaluation; and `unit_roundoff`, the precision it computes in.
    """

    @property
    def dim(self) -> int: ...
    @property
    def num_samples(self) -> int | None: ...
    def value(self, x: Tensor) -> Tensor: ...
    def grad(self, x: Tensor) -> Tensor: ...
    def hvp(self, x: Tensor, v: Tensor) -> Tensor: ...
    def hessian(self, x: Tensor) -> Tensor: ...


class AroundFunction:
    """What an object around a function takes over from that function."""

    function: Function

    @property
    def dim(self) -> int:
        return self.function.dim

    @property
    def num_samples(self) -> int | None:
        return self.function.num_samples

    @property
    def notes(self) -> dict[str, str]:
        """How derivatives are obtained, where there is something to say."""
        return dict(getattr(self.function, "notes", {}))

    @property
    def unit_roundoff(self) -> float:
        """Relative rounding error of a number in the type in which f computes."""
        return float(getattr(self.function, "unit_roundoff", torch.finfo(torch.float64).eps))


@dataclass(frozen=True, eq=False)
class Route:
    """One way to compute one derivative, for rows: (x[, v][, indices]) -> (R, ...)."""

    call: RowCall
    argument: str  # which argument of the user it evaluates; errors name it
    note: str
    charge: Mapping[str, int] | None = None
    dense: RowCall | None = None  # of a product: the whole Hessian in one go
    is_automatic: bool = False  # of a product: it is compared with differences at its first use


class _Fault(Exception):
    """An error of a user's callable, where no other route would help; `build(kind)` is raised."""

    def __init__(self, build: Callable[[str], Exception]) -> None:
        super().__init__()
        self.build = build


@dataclass(eq=False)
class UserFunction:
    """A Function made of routes; see `torch_function`, `numpy_function`.

    The routes of a kind are tried in order, and the first that works is kept. The first product by
    automatic differentiation is compared with differences of gradients, see
    `asgld.oracle.differences.contradicts`: two gradients where they agree, six at most, once for
    each function (and once more where a route is rejected and the next one is automatic too).

    =============  ================================================================================
    notes          how each derivative is obtained, and other remarks
    calls          how often each callable of the user was called, failed calls included, by the
                   name of its argument; a call on all rows at once is one call
    unit_roundoff  relative spacing of the numbers that `fun` computes with: 2.2e-16, or 1.2e-7
                   where its result is float32
    dtype          the type in which x is given to torch functions; None is float64
    =============  ================================================================================
    """

    dim: int
    num_samples: int | None
    can_vectorize: bool
    routes: dict[str, list[Route]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    unit_roundoff: float = _EPS
    dtype: torch.dtype | None = None
    _other_dtypes: list[torch.dtype] = field(default_factory=list)
    _has_checked: bool = False
    _dropped: list[str] = field(default_factory=list)
    _noted: set[str] = field(default_factory=set)

    @property
    def charges(self) -> dict[str, Mapping[str, int]]:
        own = {kind: routes[0].charge for kind, routes in self.routes.items()}
        product = own["hvp"]
        if own.get("hessian") is None and product is not None:
            own["hessian"] = {kind: self.dim * times for kind, times in product.items()}
        return {
            name: charge
            for kind, charge in own.items()
            for name in (kind, f"sample_{kind}")
            if charge is not None
        }

    def value(self, x: Tensor, indices: Tensor | None = None) -> Tensor:
        values: Tensor = self._evaluate("value", x, indices=indices)
        return values.reshape(x.shape[:-1])

    def grad(self, x: Tensor, indices: Tensor | None = None) -> Tensor:
        gradients: Tensor = self._evaluate("grad", x, indices=indices)
        return gradients.reshape(x.shape)

    def value_and_grad(self, x: Tensor, indices: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Both, by one call of `fun` where it gives both."""
        if "value_and_grad" not in self.routes:
            return self.value(x, indices), self.grad(x, indices)
        values, gradients = self._evaluate("value_and_grad", x, indices=indices)
        return values.reshape(x.shape[:-1]), gradients.reshape(x.shape)

    def hvp(self, x: Tensor, v: Tensor, indices: Tensor | None = None) -> Tensor:
        products: Tensor = self._evaluate("hvp", x, v, indices=indices)
        return products.reshape(x.shape)

    def hessian(self, x: Tensor) -> Tensor:
        matrices: Tensor = self._evaluate("hessian", x)
        return matrices.reshape(*x.shape, self.dim)

    sample_value, sample_grad, sample_hvp = value, grad, hvp

    # -------------------------------------------------------------------------------- for routes

    def counted(self, argument: str, call: RowCall) -> RowCall:
        """`call`, counted under the name of its argument."""
        self.calls.setdefault(argument, 0)

        def wrapped(*arguments: Any) -> Any:
            self.calls[argument] += 1
            return call(*arguments)

        return wrapped

    def computes_in(self, dtype: torch.dtype) -> None:
        """Take note of the type of a result of `fun`."""
        if dtype.is_floating_point and torch.finfo(dtype).eps > self.unit_roundoff:
            self.unit_roundoff = float(torch.finfo(dtype).eps)
            self.notes.setdefault("dtype", f"`fun` computes in {_name(dtype)}")

    def by_row(self, argument: str, call: RowCall, shape: tuple[int, ...]) -> RowCall:
        """A callable of one row, (x[, v][, indices]) -> shape, as a callable of rows."""

        def rows_call(*rows: Tensor) -> Tensor:
            num_rows = len(rows[0])
            if num_rows > 1 and self.can_vectorize:
                result: Tensor = torch.func.vmap(call)(*rows)
                return _checked(result, (num_rows, *shape), argument, rows[0])
            results = []
            for number, row in enumerate(zip(*rows, strict=True)):
                try:
                    result = call(*row)
                except Exception as error:
                    raise _raised(argument, error, number, num_rows, row[0]) from error
                if argument == "fun":
                    self.computes_in(_dtype(result))
                results.append(_checked(result, shape, argument, row[0]))
            return torch.stack(results)

        return rows_call

    # -------------------------------------------------------------------------------- inside

    def _evaluate(self, kind: str, *points: Tensor, indices: Tensor | None = None) -> Any:
        rows = [p.detach() if p.requires_grad else p for p in points]
        if points[0].dim() != 2:
            rows = [row.reshape(-1, self.dim) for row in rows]
        if indices is not None:
            lead = points[0].shape[:-1]
            rows.append(indices.expand((*lead, indices.shape[-1])).reshape(len(rows[0]), -1))
        is_by_products = kind == "hessian" and kind not in self.routes
        routes = self.routes["hvp" if is_by_products else kind]
        while True:
            route = routes[0]
            call = self._columns(route) if is_by_products else route.call
            attempt = functools.partial(self._attempt, call, rows)
            is_new = route.is_automatic and not self._has_checked
            try:
                result, refusal = (attempt(), None) if len(routes) == 1 else tried(attempt)
                if isinstance(refusal, _Fault):
                    raise refusal
                is_wrong = is_new and refusal is None and self._is_wrong(route, rows)
            except _Fault as fault:
                raise fault.build(kind) from fault.__cause__
            except Exception as error:
                raised = _raised(route.argument, error, None, len(rows[0]), rows[0][0])
                raise raised.build(kind) from error
            if refusal is not None:
                self._drop(routes, f"failed: {_first_line(refusal)}")
                continue
            if is_wrong:
                self._drop(routes, "gave a wrong product")
                continue
            self._has_checked |= is_new
            if kind not in self._noted:
                self._noted.add(kind)
                if is_by_products:
                    self.notes["hessian"] = "columns by products"
                of = {"value_and_grad": "grad"} | ({"hessian": "hvp"} if is_by_products else {})
                self.notes.setdefault(of.get(kind, kind), route.note)
            return result

    def _drop(self, routes: list[Route], reason: str) -> None:
        """Give up the first of the routes of a product."""
        self._dropped.append(f"{routes.pop(0).note} {reason}")
        self.notes["hvp"] = f"{routes[0].note}, since {'; '.join(self._dropped)}"

    def _attempt(self, call: RowCall, rows: list[Tensor]) -> Any:
        """Call in the type that `fun` takes: float64, else the first smaller one that it takes."""
        try:
            return self._at_once(call, rows)
        except Exception as error:
            refusal = own_error(error)
        cause = refusal.__cause__ or refusal
        if self.dtype is not None or not _is_mismatch(cause):
            raise refusal
        while self._other_dtypes:
            self.dtype = self._other_dtypes.pop(0)
            try:
                result = self._at_once(call, rows)
            except Exception as error:
                self.dtype = None
                own_error(error)
                continue
            self.computes_in(self.dtype)
            self.notes["dtype"] = (
                f"x is given in {_name(self.dtype)}, since `fun` does not take float64: "
                f"{_first_line(cause)}"
            )
            return result
        raise refusal

    def _at_once(self, call: RowCall, rows: list[Tensor]) -> Any:
        """Call on all rows at once where the function can be vectorized, else one by one."""
        if len(rows[0]) == 1 or not self.can_vectorize:
            return call(*rows)
        result, refusal = tried(functools.partial(call, *rows))
        if refusal is None:
            return result
        self.can_vectorize = False  # vmap refuses in many ways; rows one by one decide
        try:
            result = call(*rows)
        except Exception:
            self.can_vectorize = True
            raise
        reason = _first_line(refusal)
        self.notes["rows"] = f"points are evaluated one by one, since vmap failed: {reason}"
        return result

    def _columns(self, route: Route) -> RowCall:
        """Hessians by products with the columns of the identity."""
        if route.dense is not None:
            return route.dense

        def columns(x: Tensor) -> Tensor:
            basis = torch.eye(self.dim, dtype=x.dtype, device=x.device)
            matrices: Tensor = route.call(x.repeat_interleave(self.dim, 0), basis.repeat(len(x), 1))
            return matrices

        return columns

    def _is_wrong(self, route: Route, rows: list[Tensor]) -> bool:
        """Whether gradients around the first row contradict the products of a route.

        torch returns zeros for some functions that it cannot differentiate twice, and curvature
        that is silently zero would pass for a minimum.
        """
        grad = self.routes["grad"][0].call
        indices = [r[:1] for r in rows[1:] if not r.is_floating_point()]
        check = functools.partial(
            contradicts, grad, route.call, rows[0][:1], *indices, eps=self.unit_roundoff
        )
        return bool(tried(check)[0])  # a step may leave the domain of f, which proves nothing


class _Autograd:
    """Routes of a torch function by automatic differentiation.

    Rows that are evaluated together are independent, so that the gradient of the sum of their
    values has the gradient of each in its row, and likewise the products.
    """

    def __init__(self, function: UserFunction, fun: RowCall) -> None:
        self.function, self.fun = function, fun
        self.calls = function.calls
        self.calls.setdefault("fun", 0)

    def row_value(self, x: Tensor, *indices: Tensor) -> Tensor:
        """f at one row, as a scalar of x's type."""
        self.calls["fun"] += 1
        dtype = self.function.dtype
        result = self.fun(x if dtype is None else x.to(dtype), *indices)
        if not isinstance(result, Tensor):
            raise TypeError(
                f"`fun` must return a scalar tensor, got {type(result).__name__}; leave out .item()"
                " and float(), which cut it off from x, or for NumPy functions use NumPy arrays as "
                "x0"
            )
        if result.dtype != x.dtype or result.device != x.device:
            if result.is_complex():
                raise TypeError(f"`fun` must return a real number, got {_name(result.dtype)}")
            self.function.computes_in(result.dtype)
            result = result.to(x)
        if result.dim() == 0:
            return result
        if result.numel() != 1:
            raise ValueError(f"`fun` must return a scalar, got shape {tuple(result.shape)}")
        return result.reshape(())

    def values(self, x: Tensor, *indices: Tensor) -> Tensor:
        """f at x, (d,) or (R, d)."""
        if x.dim() == 1:
            try:
                return self.row_value(x, *(i[0] for i in indices))
            except Exception as error:
                raise _raised("fun", error, 0, 1, x) from error
        if self.function.can_vectorize:
            together: Tensor = torch.func.vmap(self.row_value)(x, *indices)
            return together
        results = []
        for number, row in enumerate(zip(x, *indices, strict=True)):
            try:
                results.append(self.row_value(*row))
            except Exception as error:
                raise _raised("fun", error, number, len(x), row[0]) from error
        return torch.stack(results)

    def value(self, x: Tensor, *indices: Tensor) -> Tensor:
        return self.values(_leaf(x), *indices).detach()

    def graph(self, x: Tensor, *indices: Tensor) -> tuple[Tensor, Tensor]:
        """Values, and the copy of x that they are a function of."""
        leaf = _leaf(x).requires_grad_(True)
        if torch.is_grad_enabled():
            return self.values(leaf, *indices), leaf
        with torch.enable_grad():
            return self.values(leaf, *indices), leaf

    def value_and_grad(self, x: Tensor, *indices: Tensor) -> tuple[Tensor, Tensor]:
        values, leaf = self.graph(x, *indices)
        return values.detach(), self._gradient(values, leaf)

    def grad(self, x: Tensor, *indices: Tensor) -> Tensor:
        return self._gradient(*self.graph(x, *indices))

    def _gradient(self, values: Tensor, leaf: Tensor, create_graph: bool = False) -> Tensor:
        gradient: Tensor | None = None
        if values.requires_grad:
            total = values if values.dim() == 0 else values.sum()
            (gradient,) = torch.autograd.grad(
                total, leaf, create_graph=create_graph, allow_unused=True
            )
        if gradient is None:
            raise _cut_off(leaf)
        return gradient

    def product(self, x: Tensor, v: Tensor, *indices: Tensor) -> Tensor:
        """Reverse over reverse."""
        values, leaf = self.graph(x, *indices)
        gradient = self._gradient(values, leaf, create_graph=True)
        if not gradient.requires_grad:  # f is linear
            return torch.zeros_like(leaf)
        return torch.autograd.grad(gradient, leaf, v.reshape(leaf.shape), materialize_grads=True)[0]

    def hessian(self, x: Tensor) -> Tensor:
        """Reverse over reverse, for many columns of the identity at once."""
        num_rows, dim = x.shape
        at_once = max(1, _MAX_BATCH // dim**2)
        if num_rows > at_once:
            return torch.cat(
                [self.hessian(part).reshape(-1, dim, dim) for part in torch.split(x, at_once)]
            )
        values, leaf = self.graph(x)
        gradient = self._gradient(values, leaf, create_graph=True)
        if not gradient.requires_grad:
            return x.new_zeros(num_rows, dim, dim)
        basis = torch.eye(dim, dtype=x.dtype, device=x.device)
        if leaf.dim() == 2:
            basis = basis[:, None].expand(dim, num_rows, dim)
        parts = [_pullback(gradient, leaf, part) for part in torch.split(basis, _MAX_COLUMNS)]
        columns = parts[0] if len(parts) == 1 else torch.cat(parts)
        return columns if leaf.dim() == 1 else columns.movedim(0, 1)

    def forward_over_reverse(self, x: Tensor, v: Tensor, *indices: Tensor) -> Tensor:
        _load_forward_mode()

        def row_product(x: Tensor, v: Tensor, *batch: Tensor) -> Tensor:
            gradient = torch.func.grad(lambda y: self.row_value(y, *batch))
            product: Tensor = torch.func.jvp(gradient, (x,), (v,))[1]
            return product

        if len(x) > 1 and self.function.can_vectorize:
            together: Tensor = torch.func.vmap(row_product)(x, v, *indices)
            return together.detach()
        rows = zip(x, v, *indices, strict=True)
        return torch.stack([row_product(*row) for row in rows]).detach()


def _leaf(x: Tensor) -> Tensor:
    """Rows as what autograd differentiates: a copy, a single row without its leading axis."""
    return (x if len(x) > 1 else x[0]).detach().clone()


def _pullback(gradient: Tensor, leaf: Tensor, vectors: Tensor) -> Tensor:
    """The Hessian times each of the vectors, all at once where autograd can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of operations that vmap evaluates one by one
            together: Tensor = torch.autograd.grad(
                gradient,
                leaf,
                vectors,
                retain_graph=True,
                is_grads_batched=True,
                materialize_grads=True,
            )[0]
            return together
    except Exception as error:  # vmap refuses in many ways
        own_error(error)
        each = [
            torch.autograd.grad(gradient, leaf, v, retain_graph=True, materialize_grads=True)[0]
            for v in vectors
        ]
        return torch.stack(each)


def torch_function(
    fun: Callable[..., Tensor],
    dim: int,
    *,
    jac: RowCall | bool | None = None,
    hvp: RowCall | None = None,
    hess: RowCall | None = None,
    num_samples: int | None = None,
    bounds: Bounds | None = None,
) -> UserFunction:
    """Make a Function of a torch `fun(x)`, or `fun(x, indices)` with `num_samples`.

    x is given in float64. Where `fun` refuses that, since its own constants are float32, x is given
    in float32 and results are cast back; `unit_roundoff` and `notes` then say so.

    Args:
        fun: takes x of shape (dim,), returns a scalar tensor; with `num_samples`, the mean over the
            samples in `indices`.
        dim: number of coordinates.
        jac, hvp, hess: optional derivatives jac(x), hvp(x, v), hess(x), each with a last argument
            `indices` where `num_samples` is given. Without them autograd differentiates: products
            reverse over reverse, else forward over reverse, else by differences of gradients.
            jac=True means that `fun` returns value and gradient.
        num_samples: n, where `fun` is a mean over n samples.
        bounds: lower and upper limits of shape (dim,), which differences do not cross.

    >>> f = torch_function(lambda x: (x**4).sum() / 4, dim=2)
    >>> x = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    >>> f.grad(x), f.hvp(x, torch.ones_like(x))
    (tensor([[1., 8.]], dtype=torch.float64), tensor([[ 3., 12.]], dtype=torch.float64))
    >>> f.calls  # the first product is checked by two gradients and one product more
    {'fun': 5}
    """
    function = UserFunction(dim, num_samples, can_vectorize=True)
    function._other_dtypes.extend((torch.float32, torch.bfloat16, torch.float16))

    def with_samples(call: RowCall) -> RowCall:
        """Called without indices, a mean over samples is over all of them."""
        if num_samples is None:
            return call

        def wrapped(*row: Tensor) -> Any:
            if row[-1].is_floating_point():
                row = (*row, torch.arange(num_samples, device=row[0].device))
            return call(*row)

        return wrapped

    def given(name: str, call: RowCall, shape: tuple[int, ...]) -> RowCall:
        counted = function.counted(name, with_samples(call))

        def cast(*row: Tensor) -> Any:
            dtype = function.dtype or torch.float64
            points = (t.to(dtype, copy=True) if t.is_floating_point() else t for t in row)
            result = counted(*points)
            return result if isinstance(result, Tensor) else torch.as_tensor(np.asarray(result))

        return function.by_row(name, cast, shape)

    auto = _Autograd(function, with_samples(fun))
    value, joint = Route(auto.value, "fun", "the given `fun`"), None
    if jac is True:
        value, grad, joint = _pair_routes(given("fun", _joined(fun), (dim + 1,)))
    elif callable(jac):
        grad = Route(given("jac", jac, (dim,)), "jac", "the given `jac`")
    else:
        grad = Route(auto.grad, "fun", "autograd of `fun`")
        joint = Route(auto.value_and_grad, "fun", "autograd of `fun`")
    by_differences = _difference_route(function, grad, bounds)
    by_autograd = [
        Route(
            auto.product,
            "fun",
            "autograd of `fun`, reverse over reverse",
            dense=auto.hessian,
            is_automatic=True,
        ),
        Route(
            auto.forward_over_reverse,
            "fun",
            "autograd of `fun`, forward over reverse",
            is_automatic=True,
        ),
    ]
    # Autograd through `jac` would be silently wrong wherever `jac` detaches.
    products = [by_differences] if jac else [*by_autograd, by_differences]
    product = None if hvp is None else given("hvp", hvp, (dim,))
    matrix = None if hess is None else given("hess", hess, (dim, dim))
    return _assemble(function, value, grad, products, product, matrix, joint)


def numpy_function(
    fun: Callable[..., Any],
    dim: int,
    *,
    jac: RowCall | bool | None = None,
    hvp: RowCall | None = None,
    hess: RowCall | None = None,
    num_samples: int | None = None,
    bounds: Bounds | None = None,
) -> UserFunction:
    """Make a Function of NumPy callables, which get and return float64 arrays.

    Args:
        fun, jac, hvp, hess, num_samples: as for `torch_function`. Without `jac` the gradient is a
            central difference (2 dim values, and some more for coordinates near zero); without
            `hvp` and `hess` a Hessian-vector product is a central difference of gradients.
        dim: number of coordinates.
        bounds: lower and upper limits of shape (dim,), which differences do not cross.
    """
    function = UserFunction(dim, num_samples, can_vectorize=False)

    def given(name: str, call: RowCall, shape: tuple[int, ...]) -> RowCall:
        counted = function.counted(name, call)

        def wrapped(*row: Tensor) -> Any:
            arrays = [t.detach().cpu().numpy().copy() for t in row]
            if num_samples is not None and row[-1].is_floating_point():
                arrays.append(np.arange(num_samples))
            # What is not finite is found and reported by the oracle and the loop.
            with np.errstate(all="ignore"):
                return counted(*arrays)

        return function.by_row(name, wrapped, shape)

    value = Route(given("fun", fun, ()), "fun", "the given `fun`")
    joint = None

    def grad_by_differences(x: Tensor, *indices: Tensor) -> Tensor:
        rows = []
        for number, row in enumerate(x):
            batch = [i[number : number + 1] for i in indices]
            at = functools.partial(_number, value.call, batch)
            rows.append(gradient_of_values(at, row, eps=function.unit_roundoff, bounds=bounds))
        return torch.stack(rows)

    if jac is True:
        value, grad, joint = _pair_routes(given("fun", _joined(fun), (dim + 1,)))
    elif callable(jac):
        grad = Route(given("jac", jac, (dim,)), "jac", "the given `jac`")
    else:
        note = "central differences of values"
        grad = Route(grad_by_differences, "fun", note, {"value": 2 * dim})
    product = None if hvp is None else given("hvp", hvp, (dim,))
    matrix = None if hess is None else given("hess", hess, (dim, dim))
    by_differences = _difference_route(function, grad, bounds)
    return _assemble(function, value, grad, [by_differences], product, matrix, joint)


def _joined(fun: RowCall) -> RowCall:
    """A `fun` that returns value and gradient, as a function that returns them in one vector."""

    def joined(*row: Any) -> Any:
        pair = fun(*row)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(
                f"jac=True: need fun(x) -> (value, gradient), got {type(pair).__name__}"
            )
        if any(isinstance(part, Tensor) for part in pair):
            value, gradient = (torch.as_tensor(part).detach() for part in pair)
            return torch.cat((value.reshape(1), gradient.reshape(-1)))
        return np.concatenate([np.reshape(part, -1) for part in pair])

    return joined


def _pair_routes(both: RowCall) -> tuple[Route, Route, Route]:
    """Value, gradient, and both, of a callable that returns both in one vector."""
    note = "`fun` with jac=True"
    return (
        Route(lambda *rows: both(*rows)[:, 0], "fun", note),
        Route(lambda *rows: both(*rows)[:, 1:], "fun", note),
        Route(lambda *rows: torch.split(both(*rows), [1, rows[0].shape[-1]], -1), "fun", note),
    )


def _number(value: RowCall, batch: list[Tensor], x: Tensor) -> float:
    return float(value(x[None], *batch))


def _difference_route(function: UserFunction, grad: Route, bounds: Bounds | None) -> Route:
    """Products by differences of gradients, or of gradients that are differences themselves."""

    def product(x: Tensor, v: Tensor, *indices: Tensor) -> Tensor:
        eps = function.unit_roundoff
        eps = eps if grad.charge is None else eps**_LOSS
        return product_of_gradients(grad.call, x, v, *indices, eps=eps, bounds=bounds)

    if grad.charge is None:
        return Route(product, grad.argument, "central differences of gradients", {"grad": 2})
    note = "central differences of differences of values"
    return Route(product, grad.argument, note, {"value": 2 * grad.charge["value"]})


def _assemble(
    function: UserFunction,
    value: Route,
    grad: Route,
    products: list[Route],
    hvp: RowCall | None,
    hess: RowCall | None,
    joint: Route | None = None,
) -> UserFunction:
    """Join routes; `products` are taken where neither `hvp` nor `hess` is given."""
    if hvp is not None:
        products = [Route(hvp, "hvp", "the given `hvp`")]
    elif hess is not None:
        products = [_product_route(hess)]
    function.routes.update({"value": [value], "grad": [grad], "hvp": products})
    if joint is not None:
        function.routes["value_and_grad"] = [joint]
    if hess is not None:
        function.routes["hessian"] = [Route(hess, "hess", "the given `hess`", {"hessian": 1})]
    return function


def _product_route(hess: RowCall) -> Route:
    def product(x: Tensor, v: Tensor, *indices: Tensor) -> Tensor:
        matrices: Tensor = hess(x, *indices)
        return (matrices @ v[..., None])[..., 0]

    return Route(product, "hess", "products with the given `hess`", {"hessian": 1})


@functools.cache
def _load_forward_mode() -> None:
    """Let torch load its forward mode: torch 2.15 then warns of its own use of torch.jit, once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        with forward_ad.dual_level():
            forward_ad.make_dual(torch.zeros(()), torch.zeros(()))  # type: ignore[no-untyped-call]


# ------------------------------------------------------------------------------------ errors


def own_error(error: Exception) -> Exception:
    """Return an error that a call raised. What a signal handler raised goes up as it is.

    It may be an alarm that ends a call: no other way is tried after it, and it keeps its type.
    """
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    codes = {code for h in handlers if (code := getattr(h, "__code__", None)) is not None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            raise error
        trace = trace.tb_next
    return error


def tried(call: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """The result of a call, or the error that it raises each time.

    Such a call is refused, so that another route may do. An error that does not come again at the
    same points is no refusal: it goes up.
    """
    try:
        return call(), None
    except Exception as error:
        refusal = own_error(error)
    try:
        call()
    except Exception as error:
        if type(own_error(error).__cause__ or error) is type(refusal.__cause__ or refusal):
            return None, refusal
    raise refusal


def _raised(argument: str, error: Exception, row: int | None, num_rows: int, x: Tensor) -> _Fault:
    """A user's callable raised at a row; None is all rows at once, of which x is the first."""
    own_error(error)
    place = f"row {row or 0} of {num_rows}"
    if row is None and num_rows > 1:
        place = f"{num_rows} rows at once, the first"

    def build(kind: str) -> Exception:
        return RuntimeError(
            f"`{argument}` raised {type(error).__name__}: {error} (oracle call `{kind}`, {place}, "
            f"x = {_short(x)}){_remedy(error)}"
        )

    return _Fault(build)


def _cut_off(x: Tensor) -> _Fault:
    message = (
        "the value does not depend on x through torch operations, so autograd cannot differentiate "
        "it; give jac= or compute with torch only"
    )
    return _raised("fun", ValueError(message), 0, 1 if x.dim() == 1 else len(x), x)


def _checked(result: Any, shape: Sequence[int], argument: str, x: Tensor) -> Tensor:
    """Return a user's result as a tensor of the expected shape, or say what is wrong with it."""
    try:
        if result is None:
            raise TypeError("did it forget to return?")
        tensor = torch.as_tensor(
            result if isinstance(result, Tensor) else np.asarray(result, dtype=np.float64)
        )
    except (TypeError, ValueError) as error:
        message = f"must return numbers of shape {tuple(shape)}, got a {type(result).__name__}"
        problem = f"{message}: {error}"
        raise _Fault(
            lambda kind: TypeError(f"`{argument}` (oracle call `{kind}`) {problem}")
        ) from error
    if tensor.shape != torch.Size(shape):
        if tensor.numel() == 1 and not shape:
            tensor = tensor.reshape(())
        else:
            found = f"returned shape {tuple(tensor.shape)}, expected {tuple(shape)}"
            raise _Fault(
                lambda kind: ValueError(
                    f"`{argument}` (oracle call `{kind}`) {found} at x = {_short(x)}"
                )
            )
    return tensor.detach().to(dtype=x.dtype, device=x.device)


def _dtype(result: Any) -> torch.dtype:
    """The type of a user's result, float64 where it has none that torch knows."""
    if isinstance(result, Tensor):
        return result.dtype
    return torch.float32 if getattr(result, "dtype", None) == np.float32 else torch.float64


def _is_mismatch(error: BaseException) -> bool:
    """Whether torch complains that two types differ: its default is float32."""
    is_torchs = isinstance(error, RuntimeError | ValueError | TypeError)
    return is_torchs and bool(re.search("dtype|scalar type|[dD]ouble|float64", str(error)))


def _remedy(error: Exception) -> str:
    if isinstance(error, RuntimeError) and re.search("dtype|scalar type", str(error)):
        return "; x is float64: give the other tensors that type too, by .double()"
    if "numpy()" in str(error):
        return "; x is a torch tensor, as x0 is: for a function of arrays give x0 as an array"
    return ""


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _short(x: Tensor) -> str:
    return np.array2string(x.detach().cpu().numpy(), precision=6, threshold=6)
