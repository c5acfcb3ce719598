"""The front door: minimize a function, and say what the point is at which it ended.

`minimize` = function + oracle + method + run. A search with a noisy method leaves saddles but
cannot come to rest, since its noise dies out slowly. So plain descent (L-BFGS) then brings what it
found to the gradient tolerance, and `classify` judges the point. The result tells both parts apart.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asgld.bounds import Box
from asgld.functions import Function, numpy_function, torch_function
from asgld.methods import METHODS, Method, method_names
from asgld.minimization import Landscape, Minimization, Result
from asgld.run import Progress
from asgld.stopping import Record

__all__ = ["Result", "minimize"]


def minimize(
    fun: Any,
    x0: Any,
    *,
    method: str | Method = "asgld",
    jac: Callable[..., Any] | None = None,
    hvp: Callable[..., Any] | None = None,
    hess: Callable[..., Any] | None = None,
    bounds: Any = None,
    num_samples: int | None = None,
    replicas: int | None = None,
    tol: float = 1e-3,
    budget: float | None = None,
    max_steps: int = 10_000,
    seed: int = 0,
    callback: Callable[[Progress], object] | None = None,
    progress: bool = False,
    gamma: float | None = None,
    escape: bool = False,
    polish: bool = True,
    transform: str = "log",
    record: Record | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Result:
    r"""Minimize `fun` from `x0` and classify the point that was reached.

    Args:
        fun: fun(x) with x of shape (d,) and a scalar result, in torch or NumPy; fun(x, indices)
            with `num_samples`; or a problem. Derivatives of a torch function come from autograd. A
            NumPy function needs `jac`, or differences are used and `notes` says so.
        x0: start, (d,); with `replicas` also (replicas, d), one start each. A torch tensor means
            that callables are torch functions; otherwise torch is tried first and kept if its
            gradient is right.
        method: a name from `asgld.methods.method_names()`, or a Method.
        jac, hvp, hess: derivatives jac(x), hvp(x, v), hess(x), in the same language as `fun`.
        bounds: pairs (low, high), None for no bound, as in scipy. The search takes place in
            coordinates without bounds; see `asgld.bounds`.
        num_samples: n, where `fun` is a mean over n samples; then `batch_size=` may be given.
        replicas: number of independent chains, run as one.
        tol: largest gradient norm of a minimum; with bounds, of the projected gradient.
        budget: gradient-equivalents that each replica may spend.
        max_steps: of the search, and again of the polish.
        seed: of all randomness.
        callback: called after each step with a Progress; returning True stops.
        progress: show a line on standard error.
        gamma: curvatures above -gamma count as not negative. By default sqrt(tol) min(1, M), with M
            the curvature measured at x0: the usual coupling, for a Hessian whose Lipschitz constant
            is about 1.
        escape: after stopping at a saddle, step along its direction of negative curvature and
            descend again, until the point is none or the budget is spent.
        polish: bring the end of the search to `tol` by L-BFGS. It is left out where constant noise
            (SGLD) is the method's point; x is then judged at its noise floor.
        transform: "log" or "softplus", for one-sided bounds.
        record: what to write into the history.
        checkpoint: file of the search, see `asgld.run`.
        **options: of the method. For the Langevin methods `lr`, `d_init`, `delta` and `sigma` are
            measured at x0 unless given.

    >>> import torch, asgld
    >>> saddle = torch.zeros(2)
    >>> f = lambda x: x[0] ** 2 - x[1] ** 2 / 2 + x[1] ** 4 / 4
    >>> result = minimize(f, saddle, method="agld")
    >>> result.kind.name, round(result.fun, 6), result.success
    ('MINIMUM', -0.25, True)
    >>> minimize(f, saddle, method="asg").kind.name       # without noise it cannot leave
    'STRICT_SADDLE'
    """
    if not (tol > 0 and math.isfinite(tol)):
        raise ValueError(f"tol={tol!r}: need a positive number, the gradient norm of a minimum")
    start, is_torch = _read_start(x0, replicas)
    dim = start.shape[-1]
    box = None if bounds is None else Box.of(bounds, dim, transform)
    function = _as_function(fun, start, is_torch, jac, hvp, hess, num_samples, box)
    if function.dim != dim:
        raise ValueError(f"x0 has {dim} coordinates, the problem has {function.dim}")
    task = Minimization(
        Landscape(function, box, start, budget),
        _as_method(method, options),
        tol=tol,
        gamma=gamma,
        max_steps=max_steps,
        seed=seed,
        is_torch=is_torch,
    )
    task.search(callback, progress, record or Record(), checkpoint)
    if polish:
        task.polish()
    point = task.judge()
    if escape:
        point = task.escape(point)
    return task.result(point)


def _read_start(x0: Any, replicas: int | None) -> tuple[Tensor, bool]:
    """x0 as (R, d) in float64, and whether it came as a tensor."""
    is_torch = isinstance(x0, Tensor)
    point = x0.detach() if is_torch else torch.from_numpy(np.array(x0, dtype=np.float64))
    point = point.to("cpu", torch.float64)
    if point.dim() == 0:
        point = point.reshape(1)
    if point.dim() > 2 or point.numel() == 0:
        raise ValueError(
            f"x0 has shape {tuple(point.shape)}: need (d,); flatten larger shapes and reshape "
            "inside fun"
        )
    if not bool(torch.isfinite(point).all()):
        raise ValueError("x0 has entries that are NaN or infinite")
    if replicas is not None and replicas < 1:
        raise ValueError(f"replicas={replicas!r}: need at least 1")
    if point.dim() == 1:
        return point.expand(replicas or 1, -1).clone(), is_torch
    if replicas is None:  # rows may be meant as those of a matrix, which `fun` would not get
        raise ValueError(
            f"x0 has shape {tuple(point.shape)}: to minimize over a matrix, flatten it and reshape "
            f"inside fun; for {len(point)} starts say replicas={len(point)}"
        )
    if replicas != len(point):
        raise ValueError(
            f"replicas={replicas} but x0 has {len(point)} rows, one start each: give as many, or "
            "one start of shape (d,)"
        )
    return point.clone(), is_torch


def _as_function(
    fun: Any,
    start: Tensor,
    is_torch: bool,
    jac: Callable[..., Any] | None,
    hvp: Callable[..., Any] | None,
    hess: Callable[..., Any] | None,
    num_samples: int | None,
    box: Box | None,
) -> Function:
    has_derivatives = not jac is hvp is hess is None
    if isinstance(fun, Function):
        if has_derivatives or num_samples is not None:
            raise ValueError("jac, hvp, hess and num_samples come with the problem: leave them out")
        return fun
    if not callable(fun):
        raise TypeError(f"fun={fun!r}: need a function of x, or a problem")
    given = {"jac": jac, "hvp": hvp, "hess": hess, "num_samples": num_samples}
    dim = start.shape[-1]
    if is_torch or (not has_derivatives and _is_torch_function(fun, start[0], num_samples)):
        return torch_function(fun, dim, **given)  # type: ignore[arg-type]
    limits = None if box is None else (box.lower, box.upper)
    return numpy_function(fun, dim, **given, bounds=limits)  # type: ignore[arg-type]


def _is_torch_function(fun: Callable[..., Any], x: Tensor, num_samples: int | None) -> bool:
    """Whether autograd differentiates `fun` rightly, judged by a difference along one direction.

    A NumPy function may run on tensors and yet lose part of its gradient, by `float(x[0])` say.
    """
    function = torch_function(fun, len(x), num_samples=num_samples)
    generator = torch.Generator().manual_seed(0)
    shift, v = torch.randn(2, len(x), generator=generator, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for point in (x + 1e-3 * shift, x):  # off x0, which may be a critical point
            step = 1e-6 * (1.0 + float(x.abs().max()))
            try:
                slope = float(function.grad(point[None]) @ v)
                rise = float(function.value((point + step * v)[None]))
                rise -= float(function.value((point - step * v)[None]))
            except (RuntimeError, TypeError, ValueError):
                return False
            if math.isfinite(slope) and math.isfinite(rise):
                difference = rise / (2 * step)
                return abs(slope - difference) <= 1e-4 * (1.0 + abs(slope) + abs(difference))
    return False


def _as_method(method: str | Method, options: dict[str, Any]) -> Method:
    if not isinstance(method, str):
        if options:
            raise TypeError(
                f"unknown option {sorted(options)[0]!r}: method={method!r} has its options already"
            )
        return method
    if method not in METHODS:
        raise ValueError(f"method={method!r}: known are {', '.join(method_names())}")
    return METHODS[method](**options)
