"""Algorithms 1, 2 and 3 of the paper in NumPy, float64, one line per line: the truth for tests.

The caller passes noise and gradients, so nothing here is random. This file and `asgld.optim` never
import each other, so their agreement is evidence.

The paper writes its accumulator in three ways that contradict each other. This file has two:

- `Lag.ONE` (the default, and what the optimizers do): D_k holds the squares of G_0 ... G_{k-1}.
  This is the indexing of the paper's equation (3), of its Lemma 1 and of the proof of its
  Theorem 4.1. The paper leaves D_0 undefined; here D_0 = d_init.
- `Lag.TWO` (as Algorithm 1 prints it): step 3 adds G(x_{k-1}) to D_k, but step 4 uses D_{k-1}, so
  the newest square inside is that of G(x_{k-2}). From x_0 = x_1 and D_{-1} = d_init, the first
  gradient enters twice: once as G(x_0), once as G(x_1).

In both D is known before the gradient that it scales is drawn, so neither makes a step biased.

An infinite D, after a gradient whose square overflows, counts as NaN. What it divides would be
zero, and the coordinate would look like one that waits.
"""

from __future__ import annotations

import enum
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Gradient = Callable[[Array], npt.ArrayLike]
Prox = Callable[[Array, Array], Array]


class Lag(enum.Enum):
    """How far the accumulator is behind the iterate that it scales."""

    ONE = "D_k holds the squared gradients up to the previous step"
    TWO = "D_{k-1} holds them up to the step before the previous one, as Algorithm 1 prints it"


def asgld(
    gradient: Gradient,
    x: npt.ArrayLike,
    normals: Callable[[int], npt.ArrayLike] | None,
    *,
    lr: float,
    alpha: float,
    beta: float,
    sigma: float,
    delta: float,
    d_init: float,
    weight_decay: float = 0.0,
    maximize: bool = False,
    lag: Lag = Lag.ONE,
    decay: float | None = None,
    momentum: float = 0.0,
    clip: float | None = None,
    annealing: float = 0.0,
    opposed: float = 1.0,
    noise: float | None = None,
    noise_bound: float | None = None,
    shape: str = "coordinate",
    blocks: int = 1,
    polar_by: str = "express",
    prox: Prox | None = None,
) -> Iterator[Array]:
    """Return x_1, x_2, ... of Algorithm 1 without end.

        x <- x - lr D^(-alpha/2) G + sqrt(2 lr) D^(-beta/2) e,     e = sigma normals(k)
        x <- prox(x, lr D^(-alpha/2)),                             for f + g alone

    The arguments from `decay` on are not in the paper. `_widened` below has the rule with them,
    `_shaped` the rule with a D of another shape than the paper's. The algorithm as printed,
    `Lag.TWO`, takes none of them but `prox`.

    Args:
        gradient: G, called once per step with the current iterate.
        x: the first iterate.
        normals: k -> standard normals of x's shape, k = 0, 1, ...; not called without noise.
        lr, alpha, beta, sigma, delta, d_init: the symbols of the rule.
        weight_decay: decoupled, applied to x before the step.
        maximize: ascend instead of descend.
        lag: which of the paper's two indexings of D.
        decay: let D be an average that forgets.
        momentum: average the scaled gradients.
        clip: bound the scaled gradient by max(k, 1)^clip.
        annealing: scale the noise by max(k, 1)^(-annealing/2).
        opposed: factor of the average where its sign differs from that of G: 1 keeps it, 0 drops
            it, -1 turns it round. Where G is zero the factor is max(opposed, 0).
        noise: standard deviation of the noise, before D scales it, over lr; replaces sigma.
        noise_bound: bound the noise step by noise_bound lr sqrt(max(k, 1)), by an addition to D_k.
        shape: "scalar", "row", "coordinate", "left", "both", "polar" or "polar-row".
        blocks: how many matrices x holds along its first dimension.
        polar_by: "express", "muon" or "svd".
        prox: the proximal step of g for f + g, such as `l1(0.1)`: a function of the iterate and of
            the step size of each of its entries.
    """
    name, size = ("sigma", sigma) if noise is None else ("noise", noise)
    if size != 0.0 and not math.isinf(beta) and normals is None:
        raise ValueError(f"normals=None with {name}={size}: pass normals, or {name}=0")
    if lag is Lag.TWO:
        _check_printed(
            weight_decay=weight_decay, maximize=maximize, decay=decay, momentum=momentum, clip=clip,
            annealing=annealing, opposed=opposed, noise=noise, noise_bound=noise_bound,
            shape=shape, blocks=blocks, polar_by=polar_by,
        )  # fmt: skip
    if shape != "coordinate":
        if prox is not None:
            raise ValueError(f"prox with shape={shape!r}: the step needs a D per coordinate")
        return _shaped(
            gradient, x, normals, lr=lr, alpha=alpha, beta=beta, sigma=sigma, delta=delta,
            d_init=d_init, weight_decay=weight_decay, sign=-1.0 if maximize else 1.0, decay=decay,
            momentum=momentum, clip=clip, annealing=annealing, opposed=opposed, noise=noise,
            noise_bound=noise_bound, shape=shape, blocks=blocks, polar_by=polar_by,
        )  # fmt: skip
    is_wider = decay is not None or momentum != 0.0 or clip is not None or annealing != 0.0
    if is_wider or noise is not None or noise_bound is not None:
        return _widened(
            gradient, x, normals, lr=lr, alpha=alpha, beta=beta, sigma=sigma, delta=delta,
            d_init=d_init, weight_decay=weight_decay, sign=-1.0 if maximize else 1.0, decay=decay,
            momentum=momentum, clip=clip, annealing=annealing, opposed=opposed, noise=noise,
            noise_bound=noise_bound, prox=prox,
        )  # fmt: skip
    return _plain(
        gradient, x, normals, lr=lr, alpha=alpha, beta=beta, sigma=sigma, delta=delta,
        d_init=d_init, weight_decay=weight_decay, sign=-1.0 if maximize else 1.0, lag=lag,
        prox=prox,
    )  # fmt: skip


def _check_printed(**knobs: Any) -> None:
    """Raise if a knob that Algorithm 1 does not print has another value than its default."""
    defaults = inspect.signature(asgld).parameters
    for name, value in knobs.items():
        if value != (default := defaults[name].default):
            raise ValueError(
                f"{name}={value!r} with Lag.TWO: the algorithm as printed has no {name}; need "
                f"{default!r}"
            )


def _plain(
    gradient: Gradient,
    start: npt.ArrayLike,
    normals: Callable[[int], npt.ArrayLike] | None,
    *,
    lr: float,
    alpha: float,
    beta: float,
    sigma: float,
    delta: float,
    d_init: float,
    weight_decay: float,
    sign: float,
    lag: Lag,
    prox: Prox | None,
) -> Iterator[Array]:
    """Yield the iterates of the paper's rule, with either lag."""
    x: Array = np.array(start, dtype=np.float64)
    # Lag.ONE uses the newest D; Lag.TWO the one before it, and both begin at d_init.
    older = np.full_like(x, d_init)
    newest = older.copy()
    previous_gradient: Array | None = None
    k = 0
    while True:
        g = sign * np.asarray(gradient(x), dtype=np.float64)
        if lag is Lag.TWO:
            before = g if previous_gradient is None else previous_gradient
            older, newest = newest, newest + before * before + delta
            previous_gradient = g
        metric = _visible(newest if lag is Lag.ONE else older)
        x = x * (1.0 - lr * weight_decay) - lr * metric ** (-alpha / 2) * g
        if sigma != 0.0 and not math.isinf(beta):
            assert normals is not None
            e = sigma * np.asarray(normals(k), dtype=np.float64)
            x = x + math.sqrt(2.0 * lr) * metric ** (-beta / 2) * e
        if prox is not None:
            x = prox(x, lr * metric ** (-alpha / 2))
        if lag is Lag.ONE:
            newest = newest + g * g + delta
        k += 1
        yield x


def _widened(
    gradient: Gradient,
    start: npt.ArrayLike,
    normals: Callable[[int], npt.ArrayLike] | None,
    *,
    lr: float,
    alpha: float,
    beta: float,
    sigma: float,
    delta: float,
    d_init: float,
    weight_decay: float,
    sign: float,
    decay: float | None,
    momentum: float,
    clip: float | None,
    annealing: float,
    opposed: float,
    noise: float | None,
    noise_bound: float | None,
    prox: Prox | None,
) -> Iterator[Array]:
    """Yield the iterates of the rule with all of its knobs.

    With `decay`, D_k = delta + an average of d_init, G_0^2, ..., G_{k-1}^2. The newest square has
    weight 1 - decay, and every step multiplies the older weights by decay. With d_init = 0 the
    average is over G_0^2, ..., G_{k-1}^2 alone, with weights scaled to sum to one, and the first
    gradient moves nothing.

    `scale` is the standard deviation of the noise before D scales it. With `noise_bound`, D_k also
    contains the least F with scale F^(-beta/2) <= noise_bound lr sqrt(k).
    """
    x: Array = np.array(start, dtype=np.float64)
    squares: list[Array] = []
    average = np.zeros_like(x)
    k = 0
    while True:
        g = sign * np.asarray(gradient(x), dtype=np.float64)
        if decay is None:
            metric = d_init + sum((s + delta for s in squares), np.zeros_like(x))
        else:
            weights = [(1.0 - decay) * decay ** (k - 1 - j) for j in range(k)]
            past = sum((w * s for w, s in zip(weights, squares, strict=True)), np.zeros_like(x))
            if d_init == 0.0:
                metric = delta + past / max(sum(weights), 1e-300)
            else:
                metric = delta + past + decay**k * d_init
        scale = math.sqrt(2.0 * lr) * sigma if noise is None else lr * noise
        scale *= max(k, 1) ** (-annealing / 2)
        is_noisy = scale != 0.0 and not math.isinf(beta)
        if noise_bound is not None and is_noisy:
            metric = metric + (scale / (noise_bound * lr * math.sqrt(max(k, 1)))) ** (2.0 / beta)
        metric = _visible(metric)
        squares.append(g * g)
        if decay is None or d_init != 0.0 or k > 0:
            step = metric ** (-alpha / 2) * g
            if clip is not None:
                step = np.clip(step, -(max(k, 1) ** clip), max(k, 1) ** clip)
            average = momentum * average + (1.0 - momentum) * step
            move = average * np.maximum(np.sign(average) * np.sign(g), opposed)
            x = x * (1.0 - lr * weight_decay) - lr * move
            if is_noisy:
                assert normals is not None
                z = np.asarray(normals(k), dtype=np.float64)
                x = x + scale * metric ** (-beta / 2) * z
            if prox is not None:
                x = prox(x, lr * metric ** (-alpha / 2))
        k += 1
        yield x


def _shaped(
    gradient: Gradient,
    start: npt.ArrayLike,
    normals: Callable[[int], npt.ArrayLike] | None,
    *,
    lr: float,
    alpha: float,
    beta: float,
    sigma: float,
    delta: float,
    d_init: float,
    weight_decay: float,
    sign: float,
    decay: float | None,
    momentum: float,
    clip: float | None,
    annealing: float,
    opposed: float,
    noise: float | None,
    noise_bound: float | None,
    shape: str,
    blocks: int,
    polar_by: str,
) -> Iterator[Array]:
    """Yield the iterates of the rule with a D of another shape than the paper's.

    The iterate is a stack of matrices W. D is built from the past, as in `_widened`, of S(G):

        scalar   mean of G*G                       row    mean over columns of G*G
        left     G G^T / columns                   both   G G^T / columns and G^T G / rows

    "left" multiplies by D^(-alpha/2) from the left. "both" multiplies by L^(-alpha/4) from the left
    and by R^(-alpha/4) from the right. `delta`, `d_init` and `noise_bound` add multiples of the
    identity. The noise is scaled in the same way.

    The polar forms take D from the momentum M (after a look ahead): (M M^T)^(-1/2) M is the polar
    factor O of M. Its entries are scaled to a root mean square of 0.2, as if O had full rank.
    "polar-row" divides the rows of O by the roots of an average of their mean squares, present
    ones included, and restores the norm of O.
    """
    x: Array = np.array(start, dtype=np.float64)
    squares: list[list[tuple[Array, ...]]] = []
    average = np.zeros_like(x)
    row_averages: list[Array] = [np.zeros((len(w), 1)) for w in _matrices(x, blocks)]
    k = 0
    while True:
        g = sign * np.asarray(gradient(x), dtype=np.float64)
        scale = math.sqrt(2.0 * lr) * sigma if noise is None else lr * noise
        scale *= max(k, 1) ** (-annealing / 2)
        is_noisy = scale != 0.0 and not math.isinf(beta)
        z = np.zeros_like(x)
        if is_noisy:
            assert normals is not None
            z = np.array(normals(k), dtype=np.float64).reshape(x.shape)
        moves = True
        if shape in ("polar", "polar-row"):
            average = momentum * average + (1.0 - momentum) * g
            move = np.array(momentum * average + (1.0 - momentum) * g)
            for i, w in enumerate(_matrices(move, blocks)):
                w[:] = _polar(w, polar_by, delta)
                if shape == "polar-row":
                    of_rows = np.mean(w * w, axis=1, keepdims=True)
                    kept, weight = (1.0, 1.0) if decay is None else (decay, 1.0 - decay)
                    row_averages[i] = kept * row_averages[i] + weight * of_rows
                    norm = np.linalg.norm(w)
                    per_row = _visible(row_averages[i])
                    w[:] = w / np.sqrt(np.where(per_row == 0.0, 1.0, per_row))
                    w[:] = w * (norm / max(float(np.linalg.norm(w)), 1e-300))
                w[:] = w * (0.2 * math.sqrt(max(w.shape)))
        else:
            moves = decay is None or d_init != 0.0 or k > 0
            step = np.array(g)
            for i, (u, e) in enumerate(
                zip(_matrices(step, blocks), _matrices(z, blocks), strict=True)
            ):
                metrics = []
                for side in range(2 if shape == "both" else 1):
                    one = np.eye(u.shape[side]) if shape in ("left", "both") else np.ones(())
                    past = [matrices[i][side] for matrices in squares]
                    metric = _past(past, one, decay=decay, delta=delta, d_init=d_init)
                    if noise_bound is not None and is_noisy:
                        most = noise_bound * lr * math.sqrt(max(k, 1))
                        metric = metric + (scale / most) ** (2.0 / beta) * one
                    metrics.append(_visible(metric))
                if moves:
                    u[:] = _multiplied(metrics, alpha, u, shape)
                    e[:] = _multiplied(metrics, beta, e, shape) if is_noisy else 0.0
            squares.append([_squares(w, shape) for w in _matrices(g, blocks)])
            if moves:
                if clip is not None:
                    step = np.clip(step, -(max(k, 1) ** clip), max(k, 1) ** clip)
                average = momentum * average + (1.0 - momentum) * step
                move = average * np.maximum(np.sign(average) * np.sign(step), opposed)
        if moves:
            x = x * (1.0 - lr * weight_decay) - lr * move + scale * z
        k += 1
        yield x


def _visible(metric: Array) -> Array:
    """Return D, with NaN where it is infinite."""
    return np.where(metric < np.inf, metric, np.nan)


def elastic_net(weight: npt.ArrayLike, ridge: npt.ArrayLike) -> Prox:
    """Return the proximal step of weight |x|_1 + ridge/2 |x|^2: argmin_u of it and of
    sum_i (u_i - x_i)^2 / (2 step_i)."""

    def prox(x: Array, step: Array) -> Array:
        shrunk = np.sign(x) * np.maximum(np.abs(x) - step * np.asarray(weight), 0.0)
        return np.asarray(shrunk / (1.0 + step * np.asarray(ridge)))

    return prox


def l1(weight: npt.ArrayLike) -> Prox:
    """Return the proximal step of weight |x|_1."""
    return elastic_net(weight, 0.0)


def group_lasso(weight: float, groups: npt.ArrayLike) -> Prox:
    """Return the proximal step of weight times the sum of |x_group|; -1 is no group.

    The new norm r of a group solves sum_i x_i^2 / (r + weight step_i)^2 = 1. The left side falls
    with r and is at most 1 at r = |x|, so bisection finds r.
    """
    index = np.asarray(groups)

    def prox(x: Array, step: Array) -> Array:
        u = x.copy()
        for group in range(int(index.max()) + 1):
            y, c = x[index == group], weight * step[index == group]

            def left(r: float, y: Array = y, c: Array = c) -> float:
                return float(np.sum((y / (r + c)) ** 2))

            if left(0.0) <= 1.0:
                u[index == group] = 0.0
                continue
            low, high = 0.0, float(np.linalg.norm(y))
            for _ in range(200):
                middle = (low + high) / 2
                low, high = (middle, high) if left(middle) > 1.0 else (low, middle)
            u[index == group] = y * high / (high + c)
        return u

    return prox


def _matrices(x: Array, blocks: int) -> list[Array]:
    """Return views of the matrices in x: (first dimension, all others) each. With several blocks
    the first dimension is split; a stack (blocks, n, m) holds matrices of n rows."""
    if x.ndim > 2 and blocks > 1 and len(x) == blocks:
        return [part.reshape(len(part), -1) for part in x]
    rows = x.reshape(len(x) if x.ndim else 1, -1)
    return np.split(rows, blocks)


def _squares(g: Array, shape: str) -> tuple[Array, ...]:
    """Return S(G), for "both" one for each side."""
    rows, columns = g.shape
    if shape == "scalar":
        return (np.mean(g * g, keepdims=True),)
    if shape == "row":
        return (np.mean(g * g, axis=1, keepdims=True),)
    left = g @ g.T / columns
    return (left,) if shape == "left" else (left, g.T @ g / rows)


def _past(
    squares: list[Array], one: Array, *, decay: float | None, delta: float, d_init: float
) -> Array:
    """Return D of past squares; `one` is the identity of its shape."""
    k = len(squares)
    if decay is None:
        return d_init * one + sum((s + delta * one for s in squares), 0.0 * one)
    weights = [(1.0 - decay) * decay ** (k - 1 - j) for j in range(k)]
    past = sum((w * s for w, s in zip(weights, squares, strict=True)), 0.0 * one)
    if d_init == 0.0:
        return delta * one + past / max(sum(weights), 1e-300)
    return (delta + decay**k * d_init) * one + past


def _multiplied(metrics: list[Array], exponent: float, w: Array, shape: str) -> Array:
    """Return D^(-exponent/2) W."""
    if shape in ("scalar", "row"):
        return np.asarray(metrics[0] ** (-exponent / 2) * w)
    if shape == "left":
        return _power(metrics[0], -exponent / 2) @ w
    return _power(metrics[0], -exponent / 4) @ w @ _power(metrics[1], -exponent / 4)


def _power(metric: Array, exponent: float) -> Array:
    if np.isnan(metric).any():
        return np.full_like(metric, np.nan)
    values, vectors = np.linalg.eigh(metric)
    return np.asarray((vectors * values**exponent) @ vectors.T)


# Steps x <- a x + (b x x' + c (x x')^2) x that bring singular values close to one. Polar Express
# (Amsel et al., arXiv 2505.16932, Algorithm 1) has five different ones, for x / 1.01. Those of Muon
# (torch.optim.Muon) are all the same.
_EXPRESS = [
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
]
_COEFFICIENTS = {
    "express": [(a / 1.01, b / 1.01**3, c / 1.01**5) for a, b, c in _EXPRESS],
    "muon": [(3.4445, -4.7750, 2.0315)] * 5,
}


def _polar(w: Array, polar_by: str, delta: float) -> Array:
    """Return the polar factor of a matrix whose root mean square counts as at least
    sqrt(delta)."""
    if not w.any():
        return np.zeros_like(w)
    floor = math.sqrt(delta * w.size)
    norm = float(np.linalg.norm(w))
    if not np.isfinite(w).all() or (polar_by != "svd" and norm == np.inf):
        return np.full_like(w, np.nan)
    if polar_by == "svd":
        u, values, v = np.linalg.svd(w, full_matrices=False)
        keep = values > values[0] * max(w.shape) * 2.0**-52
        factor = (u * keep) @ v
        return np.asarray(factor * min(1.0, norm / floor) if floor else factor)
    x = w / max(norm, floor)
    for a, b, c in _COEFFICIENTS[polar_by]:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def agld(
    full_gradient: Gradient,
    x: npt.ArrayLike,
    normals: Callable[[int], npt.ArrayLike] | None,
    *,
    alpha: float = 0.0,
    beta: float = 1.0,
    **options: Any,
) -> Iterator[Array]:
    """Yield the iterates of Algorithm 2: Algorithm 1 fed with full gradients."""
    return asgld(full_gradient, x, normals, alpha=alpha, beta=beta, **options)


def asg(
    gradient: Gradient, x: npt.ArrayLike, *, alpha: float = 1.0, **options: Any
) -> Iterator[Array]:
    """Yield the iterates of Algorithm 3: Algorithm 1 without injected noise (beta = infinity)."""
    return asgld(gradient, x, None, alpha=alpha, beta=math.inf, sigma=0.0, **options)
