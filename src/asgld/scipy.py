"""`scipy.optimize.minimize(fun, x0, jac=..., method=asgld.scipy_method)`, by scipy's protocol."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from asgld._minimize import ALIASES, minimize
from asgld._result import Result
from asgld.curvature.points import Kind
from asgld.methods.torch import langevin_options
from asgld.oracle.box import Box
from asgld.run import Progress

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult


def scipy_method(
    fun: Callable[..., Any],
    x0: Any,
    args: tuple[Any, ...] = (),
    *,
    jac: Any = None,
    hess: Any = None,
    hessp: Any = None,
    bounds: Any = None,
    constraints: Any = (),
    callback: Callable[..., Any] | None = None,
    rng: Any = None,
    **options: Any,
) -> OptimizeResult:
    """Minimize and judge the end, called as a custom method of `scipy.optimize.minimize`.

    Args:
        fun, x0, args, jac, hess, hessp, bounds: as scipy documents them; `jac` may be missing, then
            differences are used. A start on a bound is moved inside.
        constraints: none are allowed.
        callback: callback(xk), or callback(intermediate_result); raising StopIteration stops.
        rng: seed or numpy Generator.
        **options: `algorithm` ("auto", or a name from `asgld.methods.method_names()`), every
            option of :func:`asgld.minimize` and of the method; `maxiter` and `gtol` by their scipy
            names. Unknown ones are ignored, as the protocol demands.

    Returns:
        an OptimizeResult with x, fun, jac, success, status, message, nit, nfev, njev, nhev, and
        lambda_min and kind: `success` is True at a MINIMUM, or a flat point with `accept_flat`.
        status is 0 there, 1 at a saddle, a maximum or a degenerate point, 2 otherwise. nfev, njev
        and nhev are all calls of `fun`, of `jac`, and of `hess` and `hessp`.

    >>> import numpy as np, scipy.optimize
    >>> f = lambda x: x[0] ** 2 - x[1] ** 2 / 2 + x[1] ** 4 / 4
    >>> g = lambda x: np.array([2 * x[0], x[1] ** 3 - x[1]])
    >>> result = scipy.optimize.minimize(f, [0.0, 0.0], jac=g, method=scipy_method)
    >>> result.kind, result.success, round(float(result.fun), 6)
    ('MINIMUM', True, -0.25)
    """
    try:
        from scipy.optimize import OptimizeResult
    except ImportError as error:
        raise ImportError("scipy_method needs scipy: pip install 'asgld[scipy]'") from error
    if np.any(constraints) or (constraints and not np.size(constraints) == 0):
        raise ValueError("scipy_method takes no constraints: only bounds")
    start = np.atleast_1d(np.asarray(x0, dtype=np.float64)).ravel()
    if bounds is not None:
        start = Box.of(bounds, len(start)).inside(torch.from_numpy(start)).numpy()
    algorithm = options.pop("algorithm", "auto")
    known = set(ALIASES) | (set(inspect.signature(minimize).parameters) - {"options"})
    known |= set() if algorithm == "auto" else langevin_options()
    kept = {k: v for k, v in options.items() if k in known and v is not None}
    kept.setdefault("seed", _seed(rng))

    result = minimize(
        lambda x: fun(x, *args),
        start,
        method=algorithm,
        jac=(lambda x: jac(x, *args)) if callable(jac) else None,
        hess=(lambda x: np.asarray(hess(x, *args))) if callable(hess) else None,
        hvp=(lambda x, p: hessp(x, p, *args)) if callable(hessp) else None,
        bounds=bounds,
        callback=None if callback is None else _adapted(callback, OptimizeResult),
        **kept,
    )
    return OptimizeResult(**_fields(result))


def _fields(result: Result) -> dict[str, Any]:
    status = 2
    if result.success:
        status = 0
    elif result.kind in (Kind.STRICT_SADDLE, Kind.MAXIMUM, Kind.DEGENERATE):
        status = 1
    return {
        "x": result.x,
        "fun": result.fun,
        "jac": result.jac,
        "success": result.success,
        "status": status,
        "message": result.message,
        "nit": result.num_steps,
        "nfev": result.nfev,
        "njev": result.njev,
        "nhev": result.nhev,
        "lambda_min": result.lambda_min,
        "kind": result.kind.name,
    }


def _seed(rng: Any) -> int:
    if rng is None:
        return 0
    if isinstance(rng, int | np.integer):
        return int(rng)
    return int(np.random.default_rng(rng).integers(2**63))


def _adapted(callback: Callable[..., Any], result_type: Any) -> Callable[[Progress], bool]:
    """scipy's two callback signatures, told apart as scipy does."""
    wants_result = set(inspect.signature(callback).parameters) == {"intermediate_result"}

    def adapted(news: Progress) -> bool:
        x = news.x[0].numpy()
        try:
            if wants_result:
                callback(intermediate_result=result_type(x=x, nit=news.step))
                return False
            return bool(callback(x))
        except StopIteration:
            return True

    return adapted
