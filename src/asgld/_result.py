"""What a minimization returns: the point, the verdict on it, and the parts of the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves

from asgld.curvature.kinds import Kind, Point
from asgld.oracle.costs import Counts
from asgld.run import Run
from asgld.run.history import History

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Phase:
    """A part of a minimization: what was done, what it took, and what came of it.

    ==============  =========================================================================
    name            "search", "descent", "escape", "judgment" or "polish"
    method          by what
    steps           steps of it, 0 for a judgment
    spent           gradient-equivalents, of the replica that spent most
    before, after   f of the best replica
    message         why it ended, or what was found
    ==============  =========================================================================
    """

    name: str
    method: str
    steps: int
    spent: float
    before: float
    after: float
    message: str

    def __str__(self) -> str:
        steps = f", {self.steps} steps" if self.steps else ""
        return (
            f"{self.name} ({self.method}{steps}): f from {self.before:.6g} to {self.after:.6g}, "
            f"{self.spent:g} gradient-equivalents, {self.message.rstrip('.')}"
        )


@dataclass(frozen=True, eq=False)
class Result:
    """Where `minimize` ended, what that point is, and what it took.

    ==============  =========================================================================
    x               the best point, in x0's form (float64), in the user's coordinates
    fun, jac        f(x) and the gradient there; with `prox`, f(x) + g(x) and the gradient of f
    kind, point     what x is: MINIMUM, STRICT_SADDLE, ...; with lambda_min, direction, ...
    success         True only at a MINIMUM that is not judged at a noise floor, or where
                    `accept_flat` was given at a flat point along which f does not fall
    message         a sentence on the point and one on each part of the work
    phases          the parts of the work, as Phases
    counts          what each replica used: calls by kind, samples, gradient-equivalents. What the
                    loop only looks at, to record and to stop, is not in it
    calls           calls of the user's own functions, every one: "fun", "jac", "hvp", "hess"
    history         the searches and descents, one after the other; gradient norms in user's
                    coordinates
    search, polish  the first run, and the last one, in search coordinates; polish is None if there
                    was one run only
    all_x, all_fun  the last point of every replica and its value
    noise_floor     gradient norm around which constant noise keeps the iterate (median over the
                    second half of the history); x was judged at twice that, see `point.eps` and
                    `point.gamma`. None where the noise dies out
    num_escapes     saddles and plateaus that were left
    options         the method's options, as measured or given
    num_free        with `prox`: entries of x that are not at a kink of the penalty; else None
    notes           how derivatives were obtained, and other remarks
    ==============  =========================================================================
    """

    x: Any
    fun: float
    jac: Any
    kind: Kind
    point: Point
    success: bool
    message: str
    phases: tuple[Phase, ...]
    counts: Counts
    calls: dict[str, int]
    history: History
    search: Run
    polish: Run | None
    all_x: Any
    all_fun: Any
    noise_floor: float | None
    num_escapes: int
    options: dict[str, Any]
    notes: dict[str, str]
    num_free: int | None = None

    @property
    def lambda_min(self) -> float | None:
        """Smallest curvature at x, where it was computed."""
        return self.point.lambda_min

    @property
    def num_steps(self) -> int:
        """Steps of all parts together."""
        return int(self.history.steps[-1])

    @property
    def nit(self) -> int:
        """scipy's word for `num_steps`."""
        return self.num_steps

    @property
    def nfev(self) -> int:
        """All calls of `fun`; for a torch function gradients and products are calls of it too."""
        return self.calls.get("fun", 0)

    @property
    def njev(self) -> int:
        """All calls of `jac`."""
        return self.calls.get("jac", 0)

    @property
    def nhev(self) -> int:
        """All calls of `hvp` and `hess`."""
        return self.calls.get("hvp", 0) + self.calls.get("hess", 0)

    def __repr__(self) -> str:
        return f"<Result {self.kind.name}: f = {self.fun:.6g}, success={self.success}>"

    def __str__(self) -> str:
        """At most fifteen lines."""
        point = self.point
        rows = {
            "kind": f"{self.kind.name}, success={self.success}",
            "because": point.summary,
            "fun": f"{self.fun:.12g}",
            "x": _short(self.x),
            "gradient norm": f"{point.gradient_norm:.3g}",
        }
        if point.lambda_min is not None:
            sure = "" if point.confidence == 1.0 else f", confidence {point.confidence:.7g}"
            rows["lambda_min"] = f"{point.lambda_min:.6g} (tolerance {point.gamma:.2g}{sure})"
        if self.num_free is not None:
            size = sum(np.asarray(leaf).size for leaf in tree_leaves(self.x))
            rows["entries"] = f"{self.num_free} free, {size - self.num_free} at a kink (zero)"
        totals = self.counts.total()
        spent = totals.pop("gradient_equivalents")
        totals.pop("samples")
        used = ", ".join(f"{n:g} {kind}" for kind, n in totals.items())
        rows["cost"] = f"{spent:g} gradient-equivalents ({used})"
        parts = [f"{phase.name}: {phase.steps} steps of {phase.method}, f = {phase.after:.6g}"
                 for phase in self.phases if phase.steps]  # fmt: skip
        shown = (
            parts if len(parts) <= 5 else [*parts[:2], f"... {len(parts) - 4} more", *parts[-2:]]
        )
        rows["work"] = ("\n" + " " * 15).join(shown)
        return "\n".join(f"{name:>13}: {text}" for name, text in rows.items())

    def plot(self) -> Figure:
        """A figure of value and gradient norm against cost; needs matplotlib."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError("plot needs matplotlib: pip install 'asgld[plot]'") from error
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        end = np.full((1, self.history.spent.shape[1]), self.counts.spent.max())
        spent = np.concatenate([self.history.spent, end])
        lowest = min(float(np.nanmin(self.history.values)), self.fun)
        gap = np.concatenate([self.history.values - lowest, np.full_like(end, self.fun - lowest)])
        norms = np.concatenate(
            [self.history.grad_norms, np.full_like(end, self.point.gradient_norm)]
        )
        for axes, rows, title in (
            (left, gap, "f above the lowest value seen"),
            (right, norms, "gradient norm"),
        ):
            axes.plot(spent, rows, marker=".", linewidth=1)
            # Zeros have no place on a logarithmic axis: a straight part around 0 shows them.
            size = rows[np.isfinite(rows) & (rows > 0)]
            if size.size:
                axes.set_yscale("symlog", linthresh=max(float(size.min()), 1e-300))
            axes.set_ylim(bottom=0.0)
            axes.set_title(title)
        for axes in (left, right):
            axes.set_xlabel("gradient-equivalents")
            axes.grid(alpha=0.3)
        figure.suptitle(f"{self.kind.name}: f = {self.fun:.6g}")
        return figure


def _short(x: Any) -> str:
    if isinstance(x, Tensor):
        x = x.detach().cpu().numpy()
    if isinstance(x, np.ndarray | np.floating):
        text = np.array2string(np.asarray(x), precision=6, threshold=8, edgeitems=3)
        return " ".join(text.split())
    text = " ".join(str(x).split())
    return text if len(text) <= 100 else f"{text[:97]}..."
