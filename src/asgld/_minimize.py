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
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asgld.curvature.points import Kind, Point, classify
from asgld.diagnostics.calibration import StartScales, measure_start, start_options
from asgld.methods import LBFGS, Adjustable, KnowsItsNoise, Method
from asgld.methods import method as make_method
from asgld.oracle import BudgetExhausted, Oracle
from asgld.oracle.box import Box, Face, Reparametrized
from asgld.oracle.costs import Counts
from asgld.oracle.functions import Function, numpy_function, torch_function
from asgld.run import Progress, Run, run
from asgld.run.history import History, Record
from asgld.run.stopping import Stop, StopWhen

Array = npt.NDArray[np.float64]

_MAX_ESCAPES = 100
_MAX_RETRIES = 4
_RETRY_FACTOR = 0.25
# Up to here the Hessians of all replicas are assembled at once to look for negative curvature.
_DENSE_DIM = 64
# Gradient tolerance that any point meets, to ask for curvature alone.
_ANY_GRADIENT = 1e300


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
            coordinates without bounds; see `asgld.oracle.box`.
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
    function = _as_function(fun, start, is_torch, box, num_samples, jac=jac, hvp=hvp, hess=hess)
    if function.dim != dim:
        raise ValueError(f"x0 has {dim} coordinates, the problem has {function.dim}")
    if isinstance(method, str):
        method = make_method(method, **options)
    elif options:
        raise TypeError(
            f"unknown option {sorted(options)[0]!r}: method={method!r} has its options already"
        )
    land = Landscape(function, box, start, budget)
    task = Minimization(land, method, tol, gamma, max_steps, seed, is_torch)
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
    point = point.reshape(1) if point.dim() == 0 else point
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
    fun: Any, start: Tensor, is_torch: bool, box: Box | None, num_samples: int | None, **given: Any
) -> Function:
    """`fun` with the derivatives that were given: jac, hvp, hess."""
    has_derivatives = any(derivative is not None for derivative in given.values())
    if isinstance(fun, Function):
        if has_derivatives or num_samples is not None:
            raise ValueError("jac, hvp, hess and num_samples come with the problem: leave them out")
        return fun
    if not callable(fun):
        raise TypeError(f"fun={fun!r}: need a function of x, or a problem")
    dim = start.shape[-1]
    if is_torch or (not has_derivatives and _is_torch_function(fun, start[0], num_samples)):
        return torch_function(fun, dim, num_samples=num_samples, **given)
    limits = None if box is None else (box.lower, box.upper)
    return numpy_function(fun, dim, num_samples=num_samples, bounds=limits, **given)


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


@dataclass(frozen=True, eq=False)
class Result:
    """Where `minimize` ended, what that point is, and what it took.

    ==============  =========================================================================
    x               the best point, of x0's type (float64), in the user's coordinates
    fun, jac        f(x) and the gradient there
    kind, point     what x is: MINIMUM, STRICT_SADDLE, ...; with lambda_min, direction, ...
    success         True only at a MINIMUM that was judged at `tol`
    message         a sentence on the point and one on each part of the work
    counts          what each replica used: calls, samples, gradient-equivalents. The Hessian-vector
                    products of the judgment are not in it, they are `point.num_hvp`
    history         search and polish, one after the other; gradient norms in user's coordinates
    search, polish  the two parts as Runs, in search coordinates; polish is None if there was none
    all_x, all_fun  the last point of every replica and its value
    noise_floor     gradient norm around which constant noise keeps the iterate (median over the
                    second half of the history); x was judged at twice that, see `point.eps` and
                    `point.gamma`. None where the noise dies out
    num_escapes     saddles left along their direction (`escape=True`)
    options         the method's options, as measured or given
    notes           how derivatives were obtained, and other remarks
    ==============  =========================================================================
    """

    x: Array | Tensor
    fun: float
    jac: Array | Tensor
    kind: Kind
    point: Point
    success: bool
    message: str
    counts: Counts
    history: History
    search: Run
    polish: Run | None
    all_x: Array | Tensor
    all_fun: Array | Tensor
    noise_floor: float | None
    num_escapes: int
    options: dict[str, Any]
    notes: dict[str, str]

    @property
    def lambda_min(self) -> float | None:
        """Smallest curvature at x, where it was computed."""
        return self.point.lambda_min

    @property
    def num_steps(self) -> int:
        """Steps of search and polish together."""
        return int(self.history.steps[-1])


class Landscape:
    """The function in both coordinate systems."""

    def __init__(
        self, function: Function, box: Box | None, start: Tensor, budget: float | None
    ) -> None:
        self.function, self.box = function, box
        inner: Function = function if box is None else Reparametrized(function, box)
        self.start = start if box is None else box.to_search(start)
        self.oracle = Oracle(inner, replicas=len(start), budget=budget)

    def to_user(self, z: Tensor) -> Tensor:
        return z if self.box is None else self.box.to_user(z)

    def measure(self, z: Tensor, grad: Tensor) -> Tensor:
        """Norm of the (projected) gradient in the user's coordinates."""
        if self.box is not None:
            x, slope, _ = self.box.derivatives(z)
            grad = self.box.projected_gradient(x, grad / slope)
        norm: Tensor = torch.linalg.vector_norm(grad, dim=-1)
        return norm

    def classify(self, z: Tensor, eps: float, gamma: float, seed: int) -> Point:
        """Judge the point in the user's coordinates; at a bound, among the others."""
        if self.box is None:
            return classify(self.oracle, z, eps=eps, gamma=gamma, seed=seed)
        x = self.box.to_user(z)
        grad = self.function.grad(x)
        norm = float(torch.linalg.vector_norm(self.box.projected_gradient(x, grad)))
        # Where a step along the gradient would leave the box, the bound holds the coordinate.
        is_free = (x - grad > self.box.lower) & (x - grad < self.box.upper)
        if bool(is_free.all()):
            return classify(self.function, x, eps=eps, gamma=gamma, seed=seed)
        held = ", ".join(f"x[{i}]" for i in (~is_free).nonzero().flatten().tolist()[:5])
        if norm > eps or not bool(is_free.any()):
            kind = Kind.NOT_STATIONARY if norm > eps else Kind.MINIMUM
            text = f"the projected gradient has norm {norm:.3g}; {held} at a bound"
            return Point(kind, norm, eps, gamma, text)
        face = Face(self.function, x, is_free)
        point = classify(face, x[is_free], eps=eps, gamma=gamma, seed=seed)
        direction = point.direction
        if direction is not None:
            direction = torch.zeros_like(x).masked_scatter(is_free, direction)
        summary = f"{point.summary}; {held} at a bound, judged among the other coordinates"
        return replace(point, direction=direction, summary=summary)

    def extreme_curvatures(self, z: Tensor, gamma: float, seed: int) -> tuple[Tensor, Tensor]:
        """Smallest and largest Hessian eigenvalue, in the user's coordinates, at each row of z."""
        x = self.to_user(z)
        if self.function.dim <= _DENSE_DIM:
            hessians = self.function.hessian(x)
            is_finite = torch.isfinite(hessians).all(-1).all(-1)
            values = torch.full_like(x, math.nan)
            values[is_finite] = torch.linalg.eigvalsh(hessians[is_finite])
            return values[:, 0], values[:, -1]
        points = [
            classify(self.function, row, eps=_ANY_GRADIENT, gamma=gamma, seed=seed) for row in x
        ]
        lowest = [math.nan if p.lambda_min is None else p.lambda_min for p in points]
        highest = [math.nan if p.lambda_max is None else p.lambda_max for p in points]
        return torch.tensor(lowest).double(), torch.tensor(highest).double()


@dataclass(eq=False)
class Minimization:
    """One minimization: search, polish, judge, escape."""

    land: Landscape
    method: Method
    tol: float
    given_gamma: float | None
    max_steps: int
    seed: int
    is_torch: bool
    runs: list[Run] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    num_escapes: int = 0
    noise_floor: float | None = None

    def __post_init__(self) -> None:
        try:
            self.scales = measure_start(self.land.oracle, self.land.start, seed=self.seed)
        except BudgetExhausted:
            self.notes["measurement"] = "the budget did not suffice to measure curvature at x0"
            self.scales = StartScales(1.0, 0.0)
        self.is_lr_measured = False
        if isinstance(self.method, Adjustable):
            self.is_lr_measured = "lr" in self.method.open_options
            options = start_options(self.method, self.scales, self.land.oracle.dim)
            self.method = self.method.with_options(options)
        self.has_noise = self.anneals = True
        if isinstance(self.method, KnowsItsNoise):
            self.has_noise, self.anneals = self.method.has_noise, self.method.anneals

    @property
    def knobs(self) -> dict[str, Any]:
        """The options of the method's update, where it tells them."""
        return dict(self.method.knobs) if isinstance(self.method, Adjustable) else {}

    @property
    def x(self) -> Tensor:
        """Where the replicas are, in search coordinates."""
        return self.runs[-1].x if self.runs else self.land.start

    def gamma(self, eps: float) -> float:
        """Curvatures above -gamma count as not negative at a point accepted with eps."""
        default = math.sqrt(eps) * min(1.0, self.scales.curvature)
        return default if self.given_gamma is None else self.given_gamma

    def search(
        self,
        callback: Callable[[Progress], object] | None,
        progress: bool,
        record: Record,
        checkpoint: str | os.PathLike[str] | None,
    ) -> None:
        """Run the method; where its step size was measured and proves too long, shorten it."""

        def seen(news: Progress) -> object:
            assert callback is not None
            return callback(news.through(self.land.to_user))

        when = StopWhen(
            grad_tol=self.tol,
            settles=self.has_noise,
            confirm=self._may_stop if self.has_noise else None,
            measure=self.land.measure,
        )
        for attempt in range(_MAX_RETRIES + 1):
            result = run(
                self.land.oracle,
                self.method,
                self.land.start,
                max_steps=self.max_steps,
                stop=when,
                record=record,
                callback=None if callback is None else seen,
                seed=self.seed,
                checkpoint=checkpoint if attempt == 0 else None,
                progress=progress,
            )
            if not (self.is_lr_measured and self._has_diverged(result)):
                break
            self._shorten_step(_RETRY_FACTOR ** (attempt + 1), result)
            self.notes["lr"] = f"shortened {attempt + 1} times, since the search did not descend"
        self.runs, self.labels = [result], [self.method.name]
        if not self.anneals:
            norms = result.history.grad_norms[len(result.history.steps) // 2 :, result.best]
            self.noise_floor = float(np.nanmedian(norms))

    def _may_stop(self, rows: Tensor, reason: Stop) -> Tensor:
        """A noisy search may rest at a minimum; where it settled, negative curvature forbids it."""
        rows, which = torch.unique(rows, dim=0, return_inverse=True)  # many may share a saddle
        gamma = self.gamma(self.tol)
        if reason is Stop.GRADIENT:
            kinds = [self.land.classify(z, self.tol, gamma, self.seed).kind for z in rows]
            return torch.tensor([kind is Kind.MINIMUM for kind in kinds])[which]
        lowest, highest = self.land.extreme_curvatures(rows, gamma, self.seed)
        return (self._is_too_long(highest) | (lowest >= -gamma))[which]

    def _is_too_long(self, curvature: Tensor) -> Tensor:
        """Whether a gradient step of this length oscillates, which looks like having settled."""
        if not self.is_lr_measured or self.knobs.get("alpha", 0.0) != 0.0:
            return torch.zeros_like(curvature, dtype=torch.bool)
        return float(self.knobs["lr"]) * curvature > 2.0

    def _curvature_at_end(self, result: Run) -> Tensor:
        end = result.x[result.best : result.best + 1]
        return self.land.extreme_curvatures(end, self.gamma(self.tol), self.seed)[1]

    def _has_diverged(self, result: Run) -> bool:
        if any(stop in (Stop.BUDGET, Stop.INTERRUPTED, Stop.CALLBACK) for stop in result.stops):
            return False
        if Stop.NON_FINITE in result.stops:
            return True
        if result.stop is Stop.SETTLED and self._is_too_long(self._curvature_at_end(result)):
            return True
        return bool(self._is_above_start(result).double().mean() > 0.5)

    def _shorten_step(self, factor: float, result: Run) -> None:
        assert isinstance(self.method, Adjustable)
        lr = self.method.options["lr"] * factor
        if result.stop is Stop.SETTLED:
            steepest = float(self._curvature_at_end(result))
            lr = min(lr, 1.0 / max(steepest, 1e-300))
        self.method = self.method.with_options({**self.method.options, "lr": lr})

    def _is_above_start(self, result: Run) -> Tensor:
        """Which replicas ended clearly higher than they began."""
        first = torch.from_numpy(result.history.values[0])
        heat = 10.0 * self.land.oracle.dim * float(self.knobs.get("sigma", 0.0)) ** 2
        return ~(result.values <= first + heat + 0.05 * first.abs())

    def polish(self) -> None:
        """Descend to the tolerance. Constant noise has no end that descent could stand for."""
        stops = set(self.runs[-1].stops)
        is_done = stops == {Stop.GRADIENT} or stops & {Stop.INTERRUPTED, Stop.CALLBACK}
        if not self.anneals or is_done:
            return
        is_lost = self._is_above_start(self.runs[-1])
        if bool(is_lost.any()):
            self.notes["polish"] = (
                f"{int(is_lost.sum())} replicas ended above their start: polished from there"
            )
        self._descend(torch.where(is_lost[:, None], self.land.start, self.x), "lbfgs")

    def _descend(self, z: Tensor, label: str) -> None:
        lbfgs = LBFGS(scale=1.0 / self.scales.curvature)
        when = StopWhen(grad_tol=self.tol, every=1, measure=self.land.measure)
        self.runs.append(run(self.land.oracle, lbfgs, z, max_steps=self.max_steps, stop=when))
        self.labels.append(label)

    def judge(self) -> Point:
        last = self.runs[-1]
        eps = self.tol if self.noise_floor is None else max(self.tol, 2.0 * self.noise_floor)
        return self.land.classify(last.x[last.best], eps, self.gamma(eps), self.seed)

    def escape(self, point: Point) -> Point:
        """Leave saddles along the direction that leads down."""
        while point.direction is not None and self.num_escapes < _MAX_ESCAPES:
            try:
                start = self._beside(point, point.direction)
            except BudgetExhausted:
                break
            self._descend(start, "lbfgs after a step along the direction down")
            self.num_escapes += 1
            if self.runs[-1].stop is Stop.BUDGET:
                break
            point = self.judge()
        return point

    def _beside(self, point: Point, direction: Tensor) -> Tensor:
        """The replicas, the best of them moved to the lowest of some points beside its saddle."""
        z = self.x.clone()
        best = self.runs[-1].best
        if self.land.box is not None:
            direction = direction / self.land.box.derivatives(z[best])[1]
        # A trial may leave the domain of f, which is no fault of the user's.
        door = self.land.oracle.open(
            len(z), name="escape", needs=frozenset({"value"}), is_batched=False
        ).rows(best)
        lengths = [point.distance] if point.distance else [2.0**-k for k in range(12)]
        trials = torch.stack([z[best] + s * t * direction for t in lengths for s in (1.0, -1.0)])
        values = torch.stack([door.value(trial) for trial in trials])
        z[best] = trials[int(torch.nan_to_num(values, nan=torch.inf).argmin())]
        return z

    # ------------------------------------------------------------------------- the result

    def result(self, point: Point) -> Result:
        last = self.runs[-1]
        best = last.best
        all_x = self.land.to_user(last.x)
        return Result(
            x=self._as_user(all_x[best]),
            fun=float(last.values[best]),
            jac=self._as_user(self.land.function.grad(all_x[best])),
            kind=point.kind,
            point=point,
            success=point.kind is Kind.MINIMUM and self.noise_floor is None,
            message=self._message(point),
            counts=self.land.oracle.counts.copy(),
            history=_joined([r.history for r in self.runs], self.land),
            search=self.runs[0],
            polish=last if len(self.runs) > 1 else None,
            all_x=self._as_user(all_x),
            all_fun=self._as_user(last.values),
            noise_floor=self.noise_floor,
            num_escapes=self.num_escapes,
            options=self.knobs,
            notes={**self.land.oracle.notes, **self.notes},
        )

    def _as_user(self, tensor: Tensor) -> Array | Tensor:
        return tensor.clone() if self.is_torch else tensor.numpy().copy()

    def _message(self, point: Point) -> str:
        parts = [f"{point.kind.name}: {point.summary}."]
        replicas, dim = self.runs[-1].x.shape
        if replicas > 1:
            parts.append(f"It is the best of {replicas} replicas of {dim} coordinates.")
        if self.noise_floor is not None:
            parts.append(
                f"Constant noise keeps the gradient norm near {self.noise_floor:.3g}; the point "
                "was judged at twice that. It is no success, since the iterate cannot come to rest."
            )
        before = float(self.runs[0].history.values[0].min())
        for label, part in zip(self.labels, self.runs, strict=True):
            best = part.best
            after, steps = float(part.values[best]), int(part.steps[best])
            parts.append(
                f"{steps} step{'' if steps == 1 else 's'} of {label}: f from {before:.6g} to "
                f"{after:.6g}, {part.messages[best].rstrip('.')}."
            )
            before = after
        return " ".join(parts)


def _joined(parts: list[History], land: Landscape) -> History:
    """Histories one after the other, iterates in the user's coordinates."""
    columns: dict[str, list[Any]] = {}
    before = {"steps": 0, "spent": 0.0, "samples": 0, "seconds": 0.0}
    for part in parts:
        for name, rows in vars(part).items():
            if rows is None or (name == "iterates" and part is not parts[0]):
                continue
            columns.setdefault(name, []).append(rows + before.get(name, 0))
        before = {name: columns[name][-1][-1] for name in before}
    joined = {name: np.concatenate(rows) for name, rows in columns.items()}
    if "iterates" in joined:
        joined["iterates"] = land.to_user(torch.from_numpy(joined["iterates"])).numpy()
    return History(**joined)
