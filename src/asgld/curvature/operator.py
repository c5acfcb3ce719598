"""One form for every symmetric matrix whose eigenvalues are asked for: products with a vector.

A Hessian arrives as a torch callable v -> Hv, as a dense matrix, or as an object with `shape` and
`@`: a scipy LinearOperator or sparse matrix (NumPy vectors), a curvlinops operator or a
`ModelHessian` (torch vectors; such objects have a `device`). `SymmetricOperator` checks every
product and counts it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Relative asymmetry that no rounding explains, while differences of gradients stay below it.
_ASYMMETRY = 1e-3


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
        if not bool(torch.isfinite(result).all()):
            bad = int((~torch.isfinite(result)).sum())
            raise ValueError(
                f"the Hessian-vector product has {bad} of {self.dim} entries NaN or infinite "
                f"(call {self.num_hvp}); check that the function is twice differentiable at x"
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
    """Turn what users have into a SymmetricOperator; see the module's docstring for what that is.

    >>> A = as_operator(np.diag([2.0, -1.0]))
    >>> A(torch.tensor([1.0, 1.0], dtype=torch.float64)), A.num_hvp
    (tensor([ 2., -1.], dtype=torch.float64), 1)
    """
    if isinstance(operator, SymmetricOperator):
        return operator
    if isinstance(operator, np.ndarray | Tensor):
        matrix = torch.as_tensor(operator)
        _check_square(tuple(matrix.shape), dim)
        dtype = dtype or torch.float64
        if matrix.is_complex():
            raise ValueError(f"operator has dtype {matrix.dtype}: need a real symmetric matrix")
        matrix = matrix.to(dtype=dtype, device=device)
        check_symmetric(matrix)
        return SymmetricOperator(
            lambda v: matrix @ v, len(matrix), dtype=dtype, device=matrix.device
        )
    if hasattr(operator, "shape") and hasattr(operator, "__matmul__"):
        _check_square(tuple(operator.shape), dim)
        if hasattr(operator, "device"):  # torch vectors, as in curvlinops
            own = getattr(operator, "dtype", None)
            return SymmetricOperator(
                lambda v: operator @ v,
                operator.shape[0],
                dtype=dtype or (own if isinstance(own, torch.dtype) else torch.float64),
                device=device or operator.device,
            )
        return SymmetricOperator(
            lambda v: torch.from_numpy(np.asarray(operator @ v.cpu().numpy())),
            operator.shape[0],
            dtype=dtype or torch.float64,
            device=device,
        )
    if callable(operator):
        if dim is None:
            raise ValueError("dim=None: a callable v -> Hv needs dim, the length of v")
        if not isinstance(dim, int) or dim < 1:
            raise ValueError(f"dim={dim!r}: need a positive integer, the length of v")
        return SymmetricOperator(operator, dim, dtype=dtype or torch.float64, device=device)
    raise TypeError(
        f"operator is {type(operator).__name__}: need a callable v -> Hv with dim=, a square "
        "matrix, or an object with shape and @ (a scipy LinearOperator, a ModelHessian)"
    )


def check_symmetric(matrix: Tensor) -> float:
    """Largest asymmetry of a matrix; an error where it is too large to be rounding."""
    if not bool(torch.isfinite(matrix).all()):
        raise ValueError("the matrix has NaN or infinite entries")
    asymmetry = float((matrix - matrix.T).abs().max()) if matrix.numel() else 0.0
    require_symmetric(asymmetry, float(matrix.abs().max()) if matrix.numel() else 0.0)
    return asymmetry


def require_symmetric(asymmetry: float, scale: float) -> None:
    if asymmetry > _ASYMMETRY * scale:
        raise ValueError(
            f"the operator is not symmetric: entries differ from their mirror image by "
            f"{asymmetry:.1e} where its size is {scale:.1e}; eigenvalues here need a symmetric "
            "matrix such as a Hessian, the same one at every call"
        )


def _check_square(shape: tuple[int, ...], dim: int | None) -> None:
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1:
        raise ValueError(f"operator has shape {shape}: need a square matrix")
    if dim is not None and dim != shape[0]:
        raise ValueError(f"dim={dim} but operator has shape {shape}: leave dim out")
