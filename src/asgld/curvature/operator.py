"""The two forms in which this package reads its input: a symmetric matrix, a function around x.

A Hessian arrives as a torch callable v -> Hv, as a dense matrix, or as an object with `shape` and
`@`: a scipy LinearOperator or sparse matrix (NumPy vectors), a curvlinops operator or a
`ModelHessian` (torch vectors; such objects have a `device`). `SymmetricOperator` checks every
product and counts it. A function arrives as a torch function, or as an object with derivatives;
`Neighborhood` gives both the same face.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asgld.arguments import require
from asgld.oracle.functions import torch_function

# Rounding never explains a larger relative asymmetry; differences of gradients stay below it.
_ASYMMETRY = 1e-3
# Below this numbers lose digits, since they are denormal: no statement on symmetry.
_SMALLEST = 1e-290


class UnusableDerivative(ValueError):
    """A derivative that is not finite, or a Hessian that is not symmetric."""


class SymmetricOperator:
    """Products Hv of a symmetric matrix H of order `dim`; `num_hvp` counts them."""

    def __init__(
        self,
        product: Callable[[Tensor], Tensor],
        dim: int,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        self.dim = dim
        self.dtype = dtype
        self.device = torch.device("cpu") if device is None else torch.device(device)
        self.num_hvp = 0
        self._product = product

    @property
    def unit_roundoff(self) -> float:
        return float(torch.finfo(self.dtype).eps)

    def __call__(self, v: Tensor) -> Tensor:
        self.num_hvp += 1
        result = self._product(v)
        if not isinstance(result, Tensor):
            raise TypeError(
                f"the Hessian-vector product returned {type(result).__name__}: "
                "need a tensor of the shape of v"
            )
        if result.shape != v.shape:
            raise ValueError(
                f"the Hessian-vector product returned shape {tuple(result.shape)} for v of shape "
                f"{tuple(v.shape)}: need the same shape"
            )
        result = result.detach().to(device=self.device, dtype=self.dtype)
        require_finite(
            result,
            "the Hessian-vector product",
            f" (call {self.num_hvp}); check that the function is twice differentiable at x",
        )
        return result

    def dense(self) -> Tensor:
        """The matrix itself, column by column."""
        eye = torch.eye(self.dim, dtype=self.dtype, device=self.device)
        return torch.stack([self(column) for column in eye], dim=1)


def as_operator(
    operator: Any,
    dim: int | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> SymmetricOperator:
    """The operator that a user's matrix, callable or object stands for; see the module.

    >>> A = as_operator(np.diag([2.0, -1.0]))
    >>> A(torch.tensor([1.0, 1.0], dtype=torch.float64)), A.num_hvp
    (tensor([ 2., -1.], dtype=torch.float64), 1)
    """
    if isinstance(operator, SymmetricOperator):
        return operator
    if isinstance(operator, np.ndarray):
        operator = torch.from_numpy(operator)
    if hasattr(operator, "shape") and hasattr(operator, "__matmul__"):
        shape = tuple(operator.shape)
        if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1:
            raise ValueError(f"operator has shape {shape}: need a square matrix")
        if dim is not None and dim != shape[0]:
            raise ValueError(f"dim={dim} but operator has shape {shape}: leave dim out")
        dim = shape[0]
        product: Callable[[Tensor], Tensor] = operator.__matmul__
        if isinstance(operator, Tensor):
            if operator.is_complex():
                raise ValueError(f"operator has dtype {operator.dtype}: need a real symmetric one")
            matrix = operator.to(dtype=dtype or torch.float64, device=device)
            check_symmetric(matrix)
            product, dtype, device = matrix.__matmul__, matrix.dtype, matrix.device
        elif hasattr(operator, "device"):  # torch vectors, as in curvlinops
            own, device = getattr(operator, "dtype", None), device or operator.device
            dtype = dtype or (own if isinstance(own, torch.dtype) else None)
        else:  # NumPy vectors
            product = lambda v: torch.from_numpy(np.asarray(operator @ v.cpu().numpy()))  # noqa: E731
    elif callable(operator):
        is_length = isinstance(dim, int) and dim >= 1
        require(is_length, "dim", dim, "a positive integer, the length of v in a callable v -> Hv")
        product = operator
    else:
        raise TypeError(
            f"operator is {type(operator).__name__}: need a callable v -> Hv with dim=, a square "
            "matrix, or an object with shape and @ (a scipy LinearOperator, a ModelHessian)"
        )
    assert dim is not None
    return SymmetricOperator(product, dim, dtype=dtype or torch.float64, device=device)


def check_symmetric(matrix: Tensor) -> float:
    """Largest asymmetry of a matrix; an error where it is too large to be rounding."""
    require_finite(matrix, "the matrix")
    asymmetry = float((matrix - matrix.T).abs().max())
    require_symmetric(asymmetry, float(matrix.abs().max()))
    return asymmetry


def require_symmetric(asymmetry: float, scale: float) -> None:
    if asymmetry > _ASYMMETRY * scale and scale > _SMALLEST:
        raise UnusableDerivative(
            f"the operator is not symmetric: entries differ from their mirror image by "
            f"{asymmetry:.1e} where its size is {scale:.1e}; eigenvalues here need a symmetric "
            "matrix such as a Hessian, the same one at every call"
        )


def require_finite(tensor: Tensor, what: str, hint: str = "") -> None:
    if not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise UnusableDerivative(
            f"{what} has {bad} of {tensor.numel()} entries NaN or infinite{hint}"
        )


class Neighborhood:
    """f, its gradient and its Hessian on flat vectors around x, whatever the user brought."""

    def __init__(self, fun: Any, x: Any) -> None:
        point = torch.as_tensor(x).detach()
        if not point.is_floating_point():
            point = point.to(torch.float64)
        if point.numel() == 0:
            raise ValueError("x is empty: need at least one coordinate")
        require_finite(point, "x")
        self.shape = point.shape
        self._call_shape: tuple[int, ...] = (point.numel(),)
        if hasattr(fun, "grad") and hasattr(fun, "hvp"):
            self._f = fun.free() if hasattr(fun, "free") else fun  # an oracle would count
            dim = getattr(self._f, "dim", None)
            if point.dim() != 1 or (dim is not None and dim != point.numel()):
                raise ValueError(
                    f"x has shape {tuple(point.shape)}: need one point of shape "
                    f"({'dim' if dim is None else dim},); classify replicas one by one"
                )
        elif callable(fun):
            self._f = torch_function(lambda y: fun(y.reshape(point.shape)), point.numel())
            self._call_shape = (1, point.numel())  # it takes rows
        else:
            raise TypeError(
                f"fun is {type(fun).__name__}: need a torch function of x, or an object with "
                "grad(x) and hvp(x, v)"
            )
        # A model computes where its parameters are, and in their type.
        dtype, device = getattr(self._f, "dtype", None), getattr(self._f, "device", None)
        self.x = point.reshape(-1).to(
            dtype=dtype if isinstance(dtype, torch.dtype) else torch.float64, device=device
        )
        self.has_values = hasattr(self._f, "value")
        self.dim = self.x.numel()
        self.unit_roundoff = max(
            float(getattr(self._f, "unit_roundoff", 0.0)), float(torch.finfo(self.x.dtype).eps)
        )

    @functools.cached_property
    def gradient(self) -> Tensor:
        """The gradient at x."""
        return self.grad(self.x)

    def value(self, y: Tensor) -> float:
        result = torch.as_tensor(self._f.value(y.reshape(self._call_shape)))
        if result.numel() != 1:
            raise ValueError(f"value(x) has shape {tuple(result.shape)}: need a scalar at a point")
        return float(result)

    def grad(self, y: Tensor) -> Tensor:
        gradient = torch.as_tensor(self._f.grad(y.reshape(self._call_shape)))
        if gradient.shape != self._call_shape:
            raise ValueError(
                f"grad(x) has shape {tuple(gradient.shape)}: need the shape {tuple(y.shape)} of x"
            )
        gradient = gradient.detach().reshape(-1).to(self.x)
        if y is self.x:
            require_finite(gradient, "grad(x)", ": f is not differentiable at x")
        return gradient

    def product(self, y: Tensor, v: Tensor) -> Tensor:
        """The Hessian at y times v."""
        shape = self._call_shape
        result = torch.as_tensor(self._f.hvp(y.reshape(shape), v.reshape(shape)))
        return result.detach().reshape(-1).to(self.x)

    def dense_hessian(self) -> tuple[Tensor, Tensor]:
        """The Hessian at x, made symmetric, and how far each entry is from its mirror image."""
        if hasattr(self._f, "hessian"):
            found = torch.as_tensor(self._f.hessian(self.x.reshape(self._call_shape)))
            matrix = found.detach().reshape(self.dim, self.dim).to(self.x)
        else:
            matrix = self.hessian().dense()
        check_symmetric(matrix)
        return (matrix + matrix.T) / 2, (matrix - matrix.T).abs()

    def hessian(self) -> SymmetricOperator:
        x = self.x.reshape(self._call_shape)

        def product(v: Tensor) -> Tensor:
            result = torch.as_tensor(self._f.hvp(x, v.reshape(self._call_shape)))
            return result.reshape(-1) if result.shape == self._call_shape else result

        return SymmetricOperator(product, x.numel(), dtype=x.dtype, device=x.device)
