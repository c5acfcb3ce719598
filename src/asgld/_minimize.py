"""The front door: minimize a function, and say what the point is at which it ended.

`minimize` = function + oracle + method + run + judgment. By default ("auto") plain descent does the
work: L-BFGS goes down, the point is judged, and where it is a saddle or a plateau noise and the
direction of negative curvature lead away from it; then down again. With a noisy method the search
is that method's, and descent brings what it found to rest. The result tells the parts apart.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

from asgld._minimization import Landscape, Minimization, Watch
from asgld._result import Result
from asgld.arguments import require
from asgld.methods import LBFGS, METHODS, KnowsProx, Method
from asgld.methods import method as make_method
from asgld.methods.torch import LANGEVIN
from asgld.oracle.box import Box
from asgld.oracle.composite import bind
from asgld.oracle.forms import contradicts_values, read_start, user_function
from asgld.run import Progress
from asgld.run.history import Record

# Words of scipy for what we call otherwise, and those that have no counterpart.
ALIASES = {"maxiter": "max_steps", "gtol": "tol", "maxfev": "budget", "maxfun": "budget"}
_NO_COUNTERPART = {
    "ftol": "the descent goes on until no step lowers f by more than rounding",
    "xtol": "the descent goes on until no step lowers f by more than rounding",
    "xatol": "the descent goes on until no step lowers f by more than rounding",
    "fatol": "the descent goes on until no step lowers f by more than rounding",
    "hessp": "give the product as hvp(x, v)",
    "disp": "print(result), or progress=True",
    "constraints": "only bounds are known",
}
# Words of other functions for an argument of `minimize`.
_FOREIGN = {
    "eps": "tol, the gradient norm of a minimum",
    "steps": "max_steps",
    "max_iter": "max_steps",
    "timeout": "max_seconds",
    "grad": "jac",
    "hessian": "hess",
    "penalty": "prox",
}


def minimize(
    fun: Any,
    x0: Any,
    *,
    args: tuple[Any, ...] = (),
    method: str | Method = "auto",
    jac: Callable[..., Any] | None = None,
    hvp: Callable[..., Any] | None = None,
    hess: Callable[..., Any] | None = None,
    bounds: Any = None,
    prox: Any = None,
    num_samples: int | None = None,
    replicas: int | None = None,
    tol: float | None = None,
    gamma: float | None = None,
    accept_flat: bool = False,
    budget: float | None = None,
    max_steps: int = 10_000,
    max_seconds: float | None = None,
    seed: int = 0,
    callback: Callable[[Progress], object] | None = None,
    progress: bool = False,
    escape: bool | None = None,
    polish: bool = True,
    transform: str = "log",
    record: Record | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Result:
    r"""Minimize `fun` from `x0` and say what the point is that was reached.

    Args:
        fun: fun(x, *args) with a scalar result, in torch or NumPy; fun(x, *args, indices) with
            `num_samples`; or a problem. Derivatives of a torch function come from autograd. A
            NumPy function needs `jac`, or differences are used and `notes` says so.
        x0: start: an array or tensor of any shape, a number, a list, a dict or tuple of arrays.
            `fun` gets x in this form, and results come back in it. Tensors mean that callables are
            torch functions; otherwise torch is tried first and kept if its gradient is right.
        args: further arguments of all callables.
        method: "auto", or a name from `asgld.methods.method_names()`, or a Method.
        jac, hvp, hess: derivatives jac(x), hvp(x, v), hess(x), in the same language as `fun`.
        bounds: pairs (low, high), None for no bound, as in scipy. The search takes place in
            coordinates without bounds; see `asgld.oracle.box`.
        prox: a penalty g of `asgld.prox`, or, where x0 is a dict or tuple, penalties in its form,
            None for none. F = fun + g is minimized: "auto" goes down by proximal steps and judges
            the end on the active manifold of g, see `asgld.curvature.nonsmooth`. Methods that know
            it: "prox-gd", "fista" and the Langevin methods. It cannot be joined with `bounds`.
        num_samples: n, where `fun` is a mean over n samples; then `batch_size=` may be given.
        replicas: number of independent chains, run as one; x0 may then have a leading axis of as
            many starts.
        tol: largest gradient norm of a minimum; with bounds, of the projected gradient; with
            `prox`, of the gradient mapping x - prox(x - grad f(x)). None, the default, is relative:
            what the gradient promises, see `asgld.curvature.relative`.
        gamma: curvatures above -gamma count as not negative; None is relative, too.
        accept_flat: count a point as success at which curvature vanishes along some direction and
            f was not found to fall along it: a valley of minimizers, a plateau.
        budget: gradient-equivalents that each replica may spend, the judgment included.
        max_steps: of the search, and again of all descents after it.
        max_seconds: time limit, looked at after each step.
        seed: of all randomness.
        callback: called after each step with a Progress; returning True stops. Its `x` has a row
            of all coordinates for each replica, whatever the form of x0.
        progress: show a line on standard error.
        escape: leave saddles and plateaus, by noise and along the direction that leads down, and
            descend again. By default only "auto" does so after its search.
        polish: bring the result to the precision of rounding. After a noisy search this begins by
            L-BFGS. It is left out where constant noise (SGLD) is the method's point; x is then
            judged at its noise floor.
        transform: "log" or "softplus", for one-sided bounds.
        record: what to write into the history.
        checkpoint: file of the search, see `asgld.run`.
        **options: of the method. For the Langevin methods `lr`, `d_init`, `delta` and `sigma` are
            measured at x0 unless given. scipy's `maxiter` and `gtol` are `max_steps` and `tol`.

    >>> import torch, asgld
    >>> saddle = torch.zeros(2)
    >>> f = lambda x: x[0] ** 2 - x[1] ** 2 / 2 + x[1] ** 4 / 4
    >>> result = minimize(f, saddle)
    >>> result.kind.name, round(result.fun, 6), result.success
    ('MINIMUM', -0.25, True)
    >>> minimize(f, saddle, method="asg").kind.name       # without noise it cannot leave
    'STRICT_SADDLE'
    """
    for theirs, ours in ALIASES.items():
        if theirs in options:
            given = {ours: options.pop(theirs)}
            tol, budget = given.get("tol", tol), given.get("budget", budget)
            max_steps = given.get("max_steps", max_steps)
    is_count = isinstance(max_steps, int) and not isinstance(max_steps, bool) and max_steps >= 0
    require(is_count, "max_steps", max_steps, "a whole number of at least 0")
    require(isinstance(seed, int) and 0 <= seed < 2**64, "seed", seed, "a whole number below 2^64")
    is_price = budget is None or (isinstance(budget, int | float) and budget > 0)
    require(is_price, "budget", budget, "a positive number of gradient-equivalents, or None")
    require(record is None or isinstance(record, Record), "record", record, "a Record, or None")
    if tol is not None and not (tol > 0 and math.isfinite(tol)):
        raise ValueError(
            f"tol={tol!r}: need a positive number, the gradient norm of a minimum, or None"
        )
    if gamma is not None and not (gamma > 0 and math.isfinite(gamma)):
        raise ValueError(f"gamma={gamma!r}: need a positive number, or None for a relative one")
    if max_seconds is not None and not max_seconds > 0:
        raise ValueError(f"max_seconds={max_seconds!r}: need a positive number")
    if prox is not None and bounds is not None:
        raise ValueError(
            f"prox={prox!r} with bounds: need one of both; a penalty acts on x, and bounds change "
            "the coordinates of the search"
        )
    form, start = read_start(x0, replicas)
    penalty = None if prox is None else bind(prox, form)
    dim = start.shape[-1]
    stated = None if bounds is None else Box.of(bounds, dim, transform)
    box = None if stated is None else stated.without_far_bounds(start)
    if box is not None and not bool((box.has_lower | box.has_upper).any()):
        box = None
    limits = None if stated is None else (stated.lower, stated.upper)
    function = user_function(
        fun, form, start, args=args, jac=jac, hvp=hvp, hess=hess, num_samples=num_samples,
        bounds=limits,
    )  # fmt: skip
    if function.dim != dim:
        raise ValueError(f"x0 has {dim} coordinates, the problem has {function.dim}")
    is_auto = isinstance(method, str) and method == "auto"
    chosen = LBFGS() if is_auto else method
    if isinstance(chosen, str):
        if chosen not in METHODS:
            known = ", ".join(("auto", *METHODS))
            raise ValueError(f"method={chosen!r}: known are {known}")
        chosen = make_method(chosen, **options)
    elif options:
        _refuse(sorted(options)[0], method)
    if "prox" in getattr(chosen, "options", {}):
        raise ValueError(f"method={method!r} has a prox of its own: give prox to minimize instead")
    knows_prox = isinstance(chosen, KnowsProx) and chosen.knows_prox
    if penalty is not None and not is_auto and not knows_prox:
        known = ", ".join(map(repr, ("auto", "prox-gd", "fista", *LANGEVIN)))
        raise ValueError(f"method={method!r} knows no prox={prox!r}: those that do are {known}")

    def solve(box: Box | None) -> Minimization:
        task = Minimization(
            land=Landscape(function, box, start, budget, penalty),
            method=chosen,
            is_auto=is_auto,
            form=form,
            tol=tol,
            given_gamma=gamma,
            max_steps=max_steps,
            seed=seed,
            watch=Watch(callback, progress, max_seconds),
        )
        task.search(record or Record(), checkpoint)
        task.finish(escape=is_auto if escape is None else escape, polish=polish)
        return task

    task = solve(box)
    if stated is not None and not stated.contains(task.land.to_user(task.z)):
        task = solve(stated)  # it did matter, far away as it was
    if jac is not None and callable(jac) and contradicts_values(function, start[0]):
        task.notes["jac"] = "`jac` contradicts differences of `fun` at x0: check it"
    return task.result(accept_flat)


def _refuse(name: str, method: Any) -> None:
    if name in _NO_COUNTERPART:
        raise TypeError(f"option {name!r} has no counterpart: {_NO_COUNTERPART[name]}")
    if name in _FOREIGN:
        raise TypeError(f"unknown option {name!r}: in minimize it is {_FOREIGN[name]}")
    if method == "auto":
        reason = "takes no options; a Langevin method, such as method='agld', does"
        if name.startswith("batch"):
            reason = "uses all samples; method='asgld' takes batches"
    else:
        reason = "has its options already"
    raise TypeError(f"unknown option {name!r}: method={method!r} {reason}")
