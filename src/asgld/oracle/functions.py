"""User functions of one point, made into functions of many: value, gradient, Hessian.

A problem of `asgld.problems` states its own derivatives. A user brings `fun(x)` alone, in torch or
in NumPy. `torch_function` and `numpy_function` add what is missing, by automatic differentiation or
by differences, and note how each derivative is obtained, so that a result can say so. Points have
shape (..., dim), one row per replica; user callables see one row of shape (dim,) at a time.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

# Steps of central differences in float64: they balance the truncation error of order h^2 against
# rounding of order eps / h. A gradient that is itself a difference carries rounding eps^(2/3).
_EPS = float(np.finfo(np.float64).eps)
_STEP = _EPS ** (1 / 3)
_STEP_OF_DIFFERENCES = _EPS ** (1 / 6)

RowCall = Callable[..., Any]


@runtime_checkable
class Function(Protocol):
    """What an oracle opens: f and its derivatives at points x of shape (..., dim).

    `num_samples` is n where f is a mean over n samples, else None; `sample_grad(x, indices)` then
    is the gradient of the mean over `indices`, of shape (batch,) or (..., batch). A function may
    also have `notes`, sentences on how derivatives are obtained, and `charges`, what a call really
    costs: {"hvp": {"grad": 2}} where a Hessian-vector product is a difference of two gradients.
    """

    @property
    def dim(self) -> int: ...
    @property
    def num_samples(self) -> int | None: ...
    def value(self, x: Tensor) -> Tensor: ...
    def grad(self, x: Tensor) -> Tensor: ...
    def hvp(self, x: Tensor, v: Tensor) -> Tensor: ...
    def hessian(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Route:
    """One way to compute one derivative, for one row: (x[, v], indices) -> array."""

    call: RowCall
    argument: str  # which argument of the user it evaluates; errors name it
    note: str
    charge: Mapping[str, int] | None = None


@dataclass
class UserFunction:
    """A Function made of routes that evaluate one row; see `torch_function`, `numpy_function`.

    The routes of a kind are tried in order, and the first that works is kept.
    """

    dim: int
    num_samples: int | None
    routes: dict[str, list[Route]]
    can_vectorize: bool
    notes: dict[str, str] = field(default_factory=dict)
    _has_checked_hvp: bool = False

    @property
    def charges(self) -> dict[str, Mapping[str, int]]:
        own = {kind: routes[0].charge for kind, routes in self.routes.items()}
        product = own["hvp"]
        if own["hessian"] is None and product is not None:
            own["hessian"] = {kind: self.dim * times for kind, times in product.items()}
        return {
            name: charge
            for kind, charge in own.items()
            for name in (kind, f"sample_{kind}")
            if charge is not None
        }

    def value(self, x: Tensor, indices: Tensor | None = None) -> Tensor:
        return self._evaluate("value", (), x, indices=indices)

    def grad(self, x: Tensor, indices: Tensor | None = None) -> Tensor:
        return self._evaluate("grad", (self.dim,), x, indices=indices)

    def hvp(self, x: Tensor, v: Tensor, indices: Tensor | None = None) -> Tensor:
        return self._evaluate("hvp", (self.dim,), x, v, indices=indices)

    def hessian(self, x: Tensor) -> Tensor:
        return self._evaluate("hessian", (self.dim, self.dim), x)

    sample_value, sample_grad, sample_hvp = value, grad, hvp

    def _evaluate(
        self, kind: str, shape: tuple[int, ...], *points: Tensor, indices: Tensor | None = None
    ) -> Tensor:
        lead = points[0].shape[:-1]
        rows = [p.detach().reshape(-1, self.dim) for p in points]
        if indices is not None:
            rows.append(indices.expand((*lead, indices.shape[-1])).reshape(len(rows[0]), -1))
        routes = self.routes[kind]
        while True:
            route = routes[0]
            try:
                result = self._map(kind, route, shape, rows)
            except (RuntimeError, TypeError, ValueError) as error:
                if len(routes) == 1:
                    raise
                routes.pop(0)
                reason = str(error.__cause__ or error).splitlines()[0]
                self.notes[kind] = f"{routes[0].note}, since {route.note} failed: {reason}"
                continue
            if kind == "hvp" and not self._has_checked_hvp:
                if len(routes) > 1 and self._is_wrong(rows, result):
                    routes.pop(0)
                    self.notes[kind] = f"{routes[0].note}, since {route.note} gave a wrong product"
                    continue
                self._has_checked_hvp = True
            self.notes.setdefault(kind, route.note)
            return result.reshape((*lead, *shape))

    def _is_wrong(self, rows: list[Tensor], products: Tensor) -> bool:
        """Whether differences of gradients contradict the first row's product.

        torch returns zeros for some functions that it cannot differentiate twice, and curvature
        that is silently zero would pass for a minimum. Two differences must agree with each other
        before they are believed.
        """
        grad = self.routes["grad"][0].call
        row = [r[0] for r in rows]
        fine, coarse = (_differences_of(grad, step)(*row) for step in (_STEP, 10 * _STEP))
        scale = float(torch.maximum(fine.norm(), products[0].norm()))
        is_consistent = float((fine - coarse).norm()) <= 1e-2 * scale
        return is_consistent and float((fine - products[0]).norm()) > 0.1 * scale

    def _map(self, kind: str, route: Route, shape: tuple[int, ...], rows: list[Tensor]) -> Tensor:
        """Evaluate a route on every row, all at once where the function can be vectorized."""
        num_rows = len(rows[0])
        if num_rows > 1 and self.can_vectorize:
            if kind == "grad" and kind not in self.notes:
                # Under vmap a value cut off from x has gradient zero; one row alone is an error.
                self._one_by_one(kind, route, shape, [r[:1] for r in rows])
            try:
                result: Tensor = torch.func.vmap(route.call)(*rows)
                return _checked(result, (num_rows, *shape), kind, route.argument, rows[0])
            except Exception as error:  # vmap refuses in many ways; rows one by one decide
                vmap_error = error
            results = self._one_by_one(kind, route, shape, rows)
            self.can_vectorize = False
            reason = str(vmap_error).strip().splitlines()[0] if str(vmap_error) else "no reason"
            self.notes["rows"] = f"evaluated one by one, since vmap failed: {reason}"
            return results
        return self._one_by_one(kind, route, shape, rows)

    def _one_by_one(
        self, kind: str, route: Route, shape: tuple[int, ...], rows: list[Tensor]
    ) -> Tensor:
        results = []
        for number, row in enumerate(zip(*rows, strict=True)):
            try:
                result = route.call(*row)
            except Exception as error:
                raise RuntimeError(
                    f"`{route.argument}` raised {type(error).__name__}: {error} "
                    f"(oracle call `{kind}`, row {number} of {len(rows[0])}, "
                    f"x = {_short(row[0])}){_remedy(error)}"
                ) from error
            results.append(_checked(result, shape, kind, route.argument, row[0]))
        return torch.stack(results)


def torch_function(
    fun: Callable[..., Tensor],
    dim: int,
    *,
    jac: RowCall | None = None,
    hvp: RowCall | None = None,
    hess: RowCall | None = None,
    num_samples: int | None = None,
) -> UserFunction:
    """Make a Function of a torch `fun(x)`, or `fun(x, indices)` with `num_samples`.

    Args:
        fun: takes x of shape (dim,), returns a scalar tensor; with `num_samples`, the mean over the
            samples in `indices`.
        dim: number of coordinates.
        jac, hvp, hess: optional derivatives jac(x), hvp(x, v), hess(x), each with a last argument
            `indices` where `num_samples` is given. Without them autograd differentiates: products
            forward over reverse, else reverse over reverse, else by differences of gradients.
        num_samples: n, where `fun` is a mean over n samples.

    >>> f = torch_function(lambda x: (x**4).sum() / 4, dim=2)
    >>> x = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    >>> f.grad(x), f.hvp(x, torch.ones_like(x))
    (tensor([[1., 8.]], dtype=torch.float64), tensor([[ 3., 12.]], dtype=torch.float64))
    """

    def at(x: Tensor, indices: Tensor | None) -> Callable[[Tensor], Tensor]:
        if num_samples is None:
            return lambda y: _scalar(fun(y))
        batch = torch.arange(num_samples, device=x.device) if indices is None else indices
        return lambda y: _scalar(fun(y, batch))

    def value(x: Tensor, indices: Tensor | None = None) -> Tensor:
        return at(x, indices)(x)

    def grad(x: Tensor, indices: Tensor | None = None) -> Tensor:
        f = at(x, indices)
        if torch._C._functorch.is_batchedtensor(x):
            batched: Tensor = torch.func.grad(f)(x)
            return batched
        with torch.enable_grad():
            point = x.detach().requires_grad_(True)
            result = f(point)
            if not result.requires_grad:
                raise ValueError(
                    "the value does not depend on x through torch operations, so autograd cannot "
                    "differentiate it; give jac= or compute with torch only"
                )
            gradient: Tensor = torch.autograd.grad(result, point)[0]
            return gradient

    def forward_over_reverse(x: Tensor, v: Tensor, indices: Tensor | None = None) -> Tensor:
        _load_forward_mode()
        product: Tensor = torch.func.jvp(torch.func.grad(at(x, indices)), (x,), (v,))[1]
        return product

    def reverse_over_reverse(x: Tensor, v: Tensor, indices: Tensor | None = None) -> Tensor:
        product: Tensor = torch.func.vjp(torch.func.grad(at(x, indices)), x)[1](v)[0]
        return product

    if jac is not None:
        grad_route = Route(_given(jac), "jac", "the given `jac`")
    else:
        grad_route = Route(grad, "fun", "autograd of `fun`")
    by_differences = Route(
        _differences_of(grad_route.call, _STEP),
        grad_route.argument,
        "central differences of gradients",
        {"grad": 2},
    )
    by_autograd = [
        Route(forward_over_reverse, "fun", "autograd of `fun`, forward over reverse"),
        Route(reverse_over_reverse, "fun", "autograd of `fun`, reverse over reverse"),
    ]
    # Autograd through `jac` would be silently wrong wherever `jac` detaches.
    routes = [by_differences] if jac is not None else [*by_autograd, by_differences]
    product = None if hvp is None else _given(hvp)
    return _assemble(dim, num_samples, value, grad_route, routes, product, hess, is_torch=True)


def numpy_function(
    fun: Callable[..., Any],
    dim: int,
    *,
    jac: RowCall | None = None,
    hvp: RowCall | None = None,
    hess: RowCall | None = None,
    num_samples: int | None = None,
    bounds: tuple[Tensor, Tensor] | None = None,
) -> UserFunction:
    """Make a Function of NumPy callables, which get and return float64 arrays.

    Args:
        fun, jac, hvp, hess, num_samples: as for `torch_function`. Without `jac` the gradient is a
            central difference (2 dim values); without `hvp` and `hess` a Hessian-vector product is
            a central difference of gradients.
        dim: number of coordinates.
        bounds: lower and upper limits of shape (dim,), which differences of values do not cross.
    """

    def in_numpy(call: RowCall) -> RowCall:
        def wrapped(*row: Tensor) -> Any:
            arrays = [t.detach().cpu().numpy().copy() for t in row]
            if num_samples is not None and (
                not arrays or not np.issubdtype(arrays[-1].dtype, np.integer)
            ):
                arrays.append(np.arange(num_samples))
            # What is not finite is found and reported by the oracle and the loop.
            with np.errstate(all="ignore"):
                return call(*arrays)

        return wrapped

    value = in_numpy(fun)

    def grad_by_differences(x: Tensor, *indices: Tensor) -> Tensor:
        step = _STEP * x.abs().clamp(min=1.0)
        if bounds is not None:
            room = torch.minimum(x - bounds[0], bounds[1] - x)
            step = torch.minimum(step, 0.5 * room)
        result = torch.empty_like(x)
        for i in range(dim):
            ahead, behind = x.clone(), x.clone()
            ahead[i] += step[i]
            behind[i] -= step[i]
            rise = float(value(ahead, *indices)) - float(value(behind, *indices))
            result[i] = rise / float(ahead[i] - behind[i])
        return result

    if jac is not None:
        given = in_numpy(jac)
        grad_route = Route(given, "jac", "the given `jac`")
        product = _differences_of(_given(given), _STEP)
        by_differences = Route(product, "jac", "central differences of gradients", {"grad": 2})
    else:
        grad_route = Route(
            grad_by_differences, "fun", "central differences of values", {"value": 2 * dim}
        )
        by_differences = Route(
            _differences_of(grad_by_differences, _STEP_OF_DIFFERENCES),
            "fun",
            "central differences of differences of values",
            {"value": 4 * dim},
        )
    calls = [None if call is None else in_numpy(call) for call in (hvp, hess)]
    return _assemble(dim, num_samples, value, grad_route, [by_differences], *calls, is_torch=False)


def _assemble(
    dim: int,
    num_samples: int | None,
    value: RowCall,
    grad: Route,
    products: list[Route],
    hvp: RowCall | None,
    hess: RowCall | None,
    *,
    is_torch: bool,
) -> UserFunction:
    """Join routes; `products` are taken where neither `hvp` nor `hess` is given."""
    if hvp is not None:
        products = [Route(hvp, "hvp", "the given `hvp`")]
    elif hess is not None:
        products = [_product_route(hess)]
    routes = {"value": [Route(value, "fun", "the given `fun`")], "grad": [grad], "hvp": products}
    function = UserFunction(dim, num_samples, routes, can_vectorize=is_torch)
    if hess is not None:
        routes["hessian"] = [Route(hess, "hess", "the given `hess`", {"hessian": 1})]
        return function

    def columns(x: Tensor) -> Tensor:
        basis = torch.eye(dim, dtype=x.dtype, device=x.device)
        return function.hvp(x.expand(dim, dim), basis)

    routes["hessian"] = [Route(columns, products[-1].argument, "columns by products")]
    return function


@functools.cache
def _load_forward_mode() -> None:
    """Let torch load its forward mode: torch 2.15 then warns of its own use of torch.jit, once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        with forward_ad.dual_level():
            forward_ad.make_dual(torch.zeros(()), torch.zeros(()))  # type: ignore[no-untyped-call]


def _given(call: RowCall) -> RowCall:
    return lambda *row: _as_row(call(*row))


def _product_route(hess: RowCall) -> Route:
    def product(x: Tensor, v: Tensor, *indices: Tensor) -> Tensor:
        matrix: Tensor = torch.as_tensor(hess(x, *indices), dtype=v.dtype)
        return matrix @ v

    return Route(product, "hess", "products with the given `hess`", {"hessian": 1})


def _differences_of(grad: RowCall, step: float) -> RowCall:
    def product(x: Tensor, v: Tensor, *indices: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(v)
        # A zero vector has product zero; clamping keeps the division defined under vmap too.
        h = step * (1.0 + torch.linalg.vector_norm(x)) / norm.clamp(min=1e-300)
        move = torch.where(norm > 0, h, torch.zeros_like(h)) * v
        rise: Tensor = grad(x + move, *indices) - grad(x - move, *indices)
        quotient: Tensor = rise / (2.0 * h)
        return quotient

    return product


def _as_row(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else torch.as_tensor(np.asarray(result))


def _scalar(result: Any) -> Tensor:
    if not isinstance(result, Tensor):
        raise TypeError(
            f"`fun` must return a scalar tensor, got {type(result).__name__}; leave out .item() "
            "and float(), which cut it off from x, or for NumPy functions use NumPy arrays as x0"
        )
    if result.numel() != 1:
        raise ValueError(f"`fun` must return a scalar, got shape {tuple(result.shape)}")
    return result.reshape(())


def _checked(result: Any, shape: Sequence[int], kind: str, argument: str, x: Tensor) -> Tensor:
    """Return a user's result as a tensor of the expected shape, or say what is wrong with it."""
    where = f"`{argument}` (oracle call `{kind}`)"
    try:
        if result is None:
            raise TypeError("did it forget to return?")
        tensor = torch.as_tensor(
            result if isinstance(result, Tensor) else np.asarray(result, dtype=np.float64)
        )
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{where} must return numbers of shape {tuple(shape)}, got a "
            f"{type(result).__name__}: {error}"
        ) from error
    if tensor.shape != torch.Size(shape):
        if tensor.numel() == 1 and not shape:
            tensor = tensor.reshape(())
        else:
            raise ValueError(
                f"{where} returned shape {tuple(tensor.shape)}, expected {tuple(shape)} "
                f"at x = {_short(x)}"
            )
    return tensor.detach().to(dtype=x.dtype, device=x.device)


def _remedy(error: Exception) -> str:
    """What to do where torch says only that two types differ: its default is float32."""
    if isinstance(error, RuntimeError) and re.search("dtype|scalar type", str(error)):
        return "; x is float64: give the other tensors that type too, by .double()"
    return ""


def _short(x: Tensor) -> str:
    return np.array2string(x.detach().cpu().numpy(), precision=6, threshold=6)
