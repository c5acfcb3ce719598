"""Objectives f + g: what `minimize(prox=)` costs, and whether it leaves saddles that have kinks.

    python benchmarks/proximal.py regression   lasso, elastic net, sparse logistic regression
    python benchmarks/proximal.py saddles      from exact saddles of two factorizations
    python benchmarks/proximal.py figure       docs/figures/proximal.png, from the files
    ... --quick                                small, in seconds; writes only where --out says
    ... --out FILE                             instead of benchmarks/results/proximal_PART.csv

**regression.** On data of scikit-learn and on made data, also with fewer rows than columns: the
value that each method ends at, and the gradient-equivalents until it is within 1e-8 of the lowest
value that any of them found. scikit-learn's coordinate descent (for logistic regression,
liblinear) ends at a tight tolerance; its cost is the least `max_iter` that comes as close, in
passes over the data, for liblinear in Newton steps, each of which makes several passes.

**saddles.** Stationary points of f + g with entries at kinks and others free, among which f + g
curves down. Those of the factorization 1/2 |U V' - A|^2 + w (|U|_1 + |V|_1) have two equal columns:
a descent from equal columns keeps them equal. Those of sparse phase retrieval are roots of the
gradient on a sign pattern. Each method starts there; it has left where the end is a minimum that
is lower.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from measure import RESULTS
from torch import Tensor

import asgld
from asgld.methods import ProximalDescent
from asgld.oracle import Oracle, torch_function
from asgld.oracle.composite import Composite
from asgld.prox import L1, ElasticNet, Penalty
from asgld.run import run

FIGURE = RESULTS.parent.parent / "docs" / "figures" / "proximal.png"
CLOSE = 1e-8
MAX_STEPS = 5000
# A saddle is left where F ends lower by this part of itself.
VISIBLE = 1e-6
# Of the gradient mapping, at which the other methods stop.
TOLERANCE = 1e-9
# A weight that is this part of the largest one that leaves x at 0.
PARTS = (0.1, 0.01)
# The same where the largest column alone sets the largest one.
PARTS_RAW = (1e-3, 1e-5)
TITLES = {
    "auto": "minimize, auto",
    "fista-restart": "FISTA, with restarts",
    "fista": "FISTA",
    "prox-gd": "proximal gradient",
    "agld": "proximal AGLD",
    "asgld": "proximal ASGLD",
    "sklearn": "scikit-learn",
}


class Regression(NamedTuple):
    """A linear model with a penalty; g = w |x|_1 + l2/2 |x|^2."""

    name: str
    matrix: Tensor
    target: Tensor
    is_logistic: bool
    part: float
    l2: float = 0.0

    def loss(self, x: Tensor) -> Tensor:
        margin = self.matrix @ x
        if self.is_logistic:
            return torch.nn.functional.softplus(-self.target * margin).mean()
        return (margin - self.target).square().mean() / 2

    @property
    def weight(self) -> float:
        start = torch.zeros(self.matrix.shape[1], dtype=torch.float64)
        return self.part * float(torch.func.grad(self.loss)(start).abs().max())

    @property
    def penalty(self) -> Penalty:
        return ElasticNet(self.weight, self.l2) if self.l2 else L1(self.weight)

    def value(self, x: Tensor) -> float:
        return float(self.loss(x) + self.penalty.on(x.shape).value(x))


def _centered(matrix: np.ndarray) -> Tensor:
    return torch.from_numpy(matrix - matrix.mean(0))


def _standard(matrix: np.ndarray) -> Tensor:
    spread = matrix.std(0)
    return torch.from_numpy((matrix - matrix.mean(0)) / np.where(spread > 0, spread, 1.0))


def _made(rows: int, columns: int, is_logistic: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    signal = torch.zeros(columns, dtype=torch.float64)
    signal[:8] = torch.randn(8, generator=generator, dtype=torch.float64)
    target = matrix @ signal + 0.1 * torch.randn(rows, generator=generator, dtype=torch.float64)
    return matrix, torch.where(target > 0, 1.0, -1.0) if is_logistic else target


def regressions(is_quick: bool) -> Iterator[Regression]:
    from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine

    inputs, outputs = load_diabetes(return_X_y=True)
    diabetes = _standard(inputs), _standard(outputs[:, None])[:, 0]
    parts = PARTS[:1] if is_quick else PARTS
    for part in parts:
        yield Regression("lasso, diabetes", *diabetes, False, part)
    if is_quick:
        return
    inputs, outputs = load_breast_cancer(return_X_y=True)
    cancer = _standard(inputs), torch.from_numpy(2.0 * outputs - 1)
    inputs, outputs = load_digits(return_X_y=True)
    digits = _standard(inputs), torch.from_numpy(2.0 * (outputs >= 5) - 1)
    for part in parts:
        yield Regression("lasso, made", *_made(100, 1000, False), False, part)
        yield Regression("elastic net, made", *_made(100, 1000, False), False, part, 0.1)
        yield Regression("elastic net, digits", *digits, False, part, 0.01)
        yield Regression("logistic, breast cancer", *cancer, True, part)
        yield Regression("logistic, digits", *digits, True, part)
        yield Regression("logistic, made", *_made(100, 300, True), True, part)
    # Columns whose sizes differ by factors of a thousand, and more.
    for name, load in (("wine", load_wine), ("breast cancer", load_breast_cancer)):
        inputs, outputs = load(return_X_y=True)
        raw = _centered(inputs), _standard(outputs[:, None].astype(float))[:, 0]
        for part in PARTS_RAW:
            yield Regression(f"lasso, {name} as measured", *raw, False, part)


class Trace:
    """Values of F and what they cost, step by step."""

    def __init__(self, problem: Regression) -> None:
        self.problem, self.before = problem, 0.0
        self.values, self.spent = [math.inf], [0.0]

    def __call__(self, news: Any) -> None:
        spent = float(news.counts.spent[0])
        if self.before + spent < self.spent[-1]:  # another part of the work
            self.before = self.spent[-1]
        self.spent.append(self.before + spent)
        self.values.append(self.problem.value(news.x[0]))

    def end(self, x: Tensor, spent: float) -> None:
        """Take the end, which Newton's steps may have found, at the price of all that was done."""
        self.spent.append(spent)
        self.values.append(self.problem.value(x))

    def cost_of(self, value: float) -> float:
        """What it cost to be within `CLOSE` of a value."""
        limit = value + CLOSE * abs(value)
        return next(
            (s for s, v in zip(self.spent, self.values, strict=True) if v <= limit), math.nan
        )


def _by_sklearn(problem: Regression, max_iter: int) -> tuple[Tensor, int]:
    from sklearn.linear_model import ElasticNet as SklearnNet
    from sklearn.linear_model import LogisticRegression

    matrix, target = problem.matrix.numpy(), problem.target.numpy()
    model: Any
    if problem.is_logistic:
        model = LogisticRegression(
            l1_ratio=1.0, C=1.0 / (len(target) * problem.weight), solver="liblinear",
            fit_intercept=False, tol=1e-12, max_iter=max_iter, random_state=0,
        )  # fmt: skip
    else:
        total = problem.weight + problem.l2
        model = SklearnNet(
            alpha=total, l1_ratio=problem.weight / total, fit_intercept=False, tol=1e-15,
            max_iter=max_iter,
        )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the tolerance, which it may not reach
        model.fit(matrix, target)
    return torch.from_numpy(np.ravel(model.coef_)), int(np.max(model.n_iter_))


def _sklearn_cost(problem: Regression, lowest: float) -> int:
    """The least number of its iterations after which it is within `CLOSE` of a value."""

    def is_enough(count: int) -> bool:
        value = problem.value(_by_sklearn(problem, count)[0])
        return value <= lowest + CLOSE * abs(lowest)

    high = 1
    while not is_enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def measure_regression(problem: Regression) -> list[dict[str, Any]]:
    start = torch.zeros(problem.matrix.shape[1], dtype=torch.float64)
    ends: dict[str, tuple[float, Trace | None, dict[str, Any]]] = {}
    for method in ("auto", "fista-restart", "fista", "prox-gd", "sklearn"):
        began = time.perf_counter()
        trace, row = Trace(problem), dict[str, Any]()
        if method == "sklearn":
            x, iterations = _by_sklearn(problem, MAX_STEPS)
            row = {"steps": iterations}
        else:
            name = method.removesuffix("-restart")
            options = {"restart": True} if name != method else {}
            result = asgld.minimize(
                problem.loss, start, prox=problem.penalty, method=name, callback=trace,
                max_steps=MAX_STEPS, polish=method == "auto",
                tol=None if method == "auto" else TOLERANCE, **options,
            )  # fmt: skip
            x = result.x
            trace.end(x, float(result.counts.spent[0]))
            row = {"steps": result.num_steps, "kind": result.kind.name,
                   "cost_all": float(result.counts.spent[0])}  # fmt: skip
        row["free"], row["seconds"] = int((x != 0).sum()), f"{time.perf_counter() - began:.3g}"
        ends[method] = problem.value(x), None if method == "sklearn" else trace, row
    lowest = min(value for value, _, _ in ends.values())
    rows, columns = problem.matrix.shape
    return [
        {
            "problem": problem.name,
            "part": problem.part,
            "rows": rows,
            "columns": columns,
            "method": method,
            "value": repr(value),
            "gap": f"{(value - lowest) / abs(lowest):.2g}",
            "cost": (_sklearn_cost(problem, lowest) if trace is None else trace.cost_of(lowest)),
            **row,
        }
        for method, (value, trace, row) in ends.items()
    ]


# ------------------------------------------------------------------------------------ saddles


class Saddle(NamedTuple):
    """A stationary point with kinks, among whose free entries F curves down."""

    problem: str
    instance: int
    fun: Callable[[Tensor], Tensor]
    penalty: Penalty
    x: Tensor


def factorization(instance: int) -> Saddle | None:
    """Two equal columns, at rest among such."""
    generator = torch.Generator().manual_seed(instance)
    rows, columns, weight = 6, 5, 0.05
    target = torch.zeros(rows, columns, dtype=torch.float64)
    target[:3, :2] = 1 + torch.rand(3, 2, generator=generator, dtype=torch.float64)
    target[3:, 2:] = 1 + torch.rand(3, 3, generator=generator, dtype=torch.float64)

    def fun(x: Tensor) -> Tensor:
        u, v = x[: 2 * rows].view(2, rows), x[2 * rows :].view(2, columns)
        return (u[0][:, None] * v[0] + u[1][:, None] * v[1] - target).square().sum() / 2

    half = torch.rand(rows + columns, generator=generator, dtype=torch.float64)
    u, v = half[:rows], half[rows:]
    penalty = L1(weight)
    oracle = Oracle(Composite(torch_function(fun, 22), penalty.on((22,))))
    x = run(oracle, ProximalDescent(), torch.cat([u, u, v, v]), max_steps=2000).x[0]
    return _checked(Saddle("factorization", instance, fun, penalty, x))


def phase_retrieval(instance: int) -> Saddle | None:
    """A root of the gradient on a random sign pattern, by Newton's method."""
    generator = torch.Generator().manual_seed(instance)
    dim, rows, weight = 8, 40, 0.05
    design = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    signal = torch.zeros(dim, dtype=torch.float64)
    signal[:3] = torch.tensor([1.0, -1.0, 1.0])
    squares = (design @ signal).square()

    def fun(x: Tensor) -> Tensor:
        return ((design @ x).square() - squares).square().mean() / 4

    gradient, hessian = torch.func.grad(fun), torch.func.hessian(fun)
    for _ in range(2000):
        support = torch.randperm(dim, generator=generator)[:3]
        signs = torch.randn(3, generator=generator).sign().double()
        x = torch.zeros(dim, dtype=torch.float64)
        x[support] = signs * torch.rand(3, generator=generator, dtype=torch.float64)
        for _ in range(50):
            slope = gradient(x)[support] + weight * signs
            x[support] -= torch.linalg.lstsq(hessian(x)[support][:, support], slope).solution
        is_right = bool((x[support].sign() == signs).all()) and bool(torch.isfinite(x).all())
        if is_right and (found := _checked(Saddle("phase", instance, fun, L1(weight), x))):
            return found
    return None


def _checked(saddle: Saddle) -> Saddle | None:
    """The saddle, if it is one."""
    point = asgld.classify(saddle.fun, saddle.x, prox=saddle.penalty)
    has_kinks = bool((saddle.x == 0).any())
    return saddle if point.kind is asgld.Kind.STRICT_SADDLE and has_kinks else None


def measure_saddle(saddle: Saddle, seeds: int) -> Iterator[dict[str, Any]]:
    """A row for each run of `auto`, and for each chain of the noisy methods."""
    g = saddle.penalty.on(saddle.x.shape)
    first = float(saddle.fun(saddle.x) + g.value(saddle.x))
    for method in ("prox-gd", "fista", "auto", "agld", "asgld"):
        chains = seeds if method in ("agld", "asgld") else None
        for seed in range(seeds if method == "auto" else 1):
            result = asgld.minimize(
                saddle.fun, saddle.x, prox=saddle.penalty, method=method, seed=seed,
                replicas=chains,
            )  # fmt: skip
            for chain, value in enumerate(result.all_fun.tolist()):
                fall = (first - value) / abs(first)
                yield {
                    "problem": saddle.problem,
                    "instance": saddle.instance,
                    "method": method,
                    "seed": seed + chain,
                    "free": int((saddle.x != 0).sum()),
                    "entries": len(saddle.x),
                    "kind": result.kind.name,
                    "fall": f"{fall:.6g}",
                    "left": int(fall > VISIBLE),
                    "cost": float(result.counts.spent[chain]),
                }


def saddles(is_quick: bool) -> Iterator[Saddle]:
    for make in (factorization, phase_retrieval):
        for instance in range(2 if is_quick else 8):
            if (saddle := make(instance)) is not None:
                yield saddle


# ------------------------------------------------------------------------------------ the figure


def figure() -> None:
    import matplotlib.pyplot as plt

    regression, exits = (_read(RESULTS / f"proximal_{part}.csv") for part in
                         ("regression", "saddles"))  # fmt: skip
    drawing, (left, right) = plt.subplots(
        1, 2, figsize=(11, 5), layout="constrained", width_ratios=(3, 2)
    )
    names = list(dict.fromkeys((row["problem"], row["part"]) for row in regression))
    marks = {"auto": "o", "fista-restart": "^", "fista": "v", "prox-gd": "s"}
    for method, mark in marks.items():
        costs = {(r["problem"], r["part"]): r["cost"] for r in regression if r["method"] == method}
        shown = [(float(costs[name]), y) for y, name in enumerate(names) if costs[name] != "nan"]
        left.plot(*zip(*shown, strict=True), mark, label=TITLES[method], alpha=0.85)
    left.set_xscale("log")
    left.set_yticks(range(len(names)), [f"{name}, {part}" for name, part in names])
    left.invert_yaxis()
    left.set_xlabel(f"gradient-equivalents to a relative gap of {CLOSE:g}; no mark: not reached")
    left.grid(alpha=0.3)
    left.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.3, 1), ncols=4)
    methods = list(dict.fromkeys(row["method"] for row in exits))
    for shift, problem in ((-0.2, "factorization"), (0.2, "phase")):
        shares = [
            np.mean([int(r["left"]) for r in exits if (r["problem"], r["method"]) == (problem, m)])
            for m in methods
        ]
        title = {"phase": "sparse phase retrieval", "factorization": "sparse factorization"}
        at = np.arange(len(methods)) + shift
        bars = right.barh(at, 100 * np.array(shares), 0.38, label=title[problem])
        right.bar_label(bars, fmt="%.0f %%", padding=3, fontsize="small")
    right.set_yticks(range(len(methods)), [TITLES[m] for m in methods])
    right.invert_yaxis()
    right.set_xlim(0, 119)  # room for the labels
    right.set_xticks(range(0, 101, 25))
    right.set_xlabel("saddles that were left, %")
    right.legend(fontsize="small", loc="upper right")
    drawing.savefig(FIGURE, dpi=110)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("part", choices=("regression", "saddles", "figure"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    if given.part == "figure":
        return figure()
    if given.quick and given.out is None:
        parser.error("--quick needs --out, so that it replaces no measurement")
    rows: list[dict[str, Any]] = []
    target = given.out or RESULTS / f"proximal_{given.part}.csv"
    if given.part == "regression":
        for problem in regressions(given.quick):
            rows += measure_regression(problem)
            _write(target, rows)
            print(*(f"{row['method']}: {row['gap']} {row['cost']}" for row in rows[-5:]), sep=", ")
    else:
        for saddle in saddles(given.quick):
            rows += measure_saddle(saddle, 2 if given.quick else 10)
            _write(target, rows)
            print(saddle.problem, saddle.instance, sum(row["left"] for row in rows), len(rows))
    return None


if __name__ == "__main__":
    main()
