r"""What a point of a function is, decided in higher precision and without asgld.

    check = Check(function.fun, function.low, function.high)
    truth = check(x, start)          # Truth(kind="minimum", ...)

Derivatives: `Jet` carries value, gradient and Hessian through the formula, exactly but for
rounding. Its numbers are 80-bit (`numpy.longdouble`, 64 bits of mantissa), and in up to `MP_DIM`
variables the decision is repeated with mpmath at 50 digits. Linear systems are solved by Gaussian
elimination written here. The lowest eigenvalue is that of the Hessian scaled by a diagonal to equal
sizes of rows, so that units of x do not matter: by mpmath.eigsy at 50 digits, or, in more
variables, by inverse iteration in 80 bits; that no other is lower is proved by a Cholesky
factorization in 80 bits of the matrix shifted by it.

Newton's method runs from the point, without a line search. The kinds:

- minimum: Newton's method contracts to a point nearby, where all scaled eigenvalues are above
  `FLAT`.
- saddle: it contracts to a point nearby, where a scaled eigenvalue is below -FLAT. `decrease` is by
  how much f falls along that eigenvector, either way, within the scale of x, relative to the scale
  of f.
- flat: it contracts to a point nearby with a scaled eigenvalue of about zero, or only linearly, as
  it does to a degenerate critical point; or f is constant to 1e-14 of its scale along the lowest
  curvature within the scale of x; or Newton's method leaves for less than 1e-12 of the scale of f.
- none: no critical point nearby.

Scale of x: in each coordinate the larger of |x| and the width of the function's box. Nearby: within
`NEAR` of it, `FAR` for degenerate points. Scale of f: the larger of |f| there and of 1e-8 of
what the run has descended from its start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import mpmath
import numpy as np

# Newton's method may move so much, relative to the scale of x.
NEAR = 1e-3
# To degenerate points, which it approaches slowly, so much.
FAR = 0.2
# Scaled eigenvalues below are not told apart from 0; float64 could not.
FLAT = 1e-12
# Up to so many variables, in mpmath.
MP_DIM = 12
DIGITS = 50
MAX_NEWTON = 120

Array = np.ndarray


class Jet:
    """An array of numbers, each with its gradient and Hessian in d variables.

    value: S; first: S + (d,); second: S + (d, d). Entries are 80-bit or mpmath numbers.
    """

    __array_ufunc__ = None  # so that array * jet comes here

    def __init__(self, value: Any, first: Array, second: Array) -> None:
        self.value, self.first, self.second = np.asarray(value), first, second

    @classmethod
    def variables(cls, x: Array) -> Jet:
        dim = len(x)
        zero = x[0] * 0
        first = np.full((dim, dim), zero, dtype=x.dtype)
        first[np.arange(dim), np.arange(dim)] = zero + 1
        return cls(x, first, np.full((dim, dim, dim), zero, dtype=x.dtype))

    @classmethod
    def join(cls, parts: Sequence[Jet]) -> Jet:
        return cls(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in cls._names)
        )

    _names = ("value", "first", "second")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def __getitem__(self, index: Any) -> Jet:
        return Jet(self.value[index], self.first[index], self.second[index])

    def sum(self) -> Jet:
        if not self.shape:
            return self
        return Jet(self.value.sum(0), self.first.sum(0), self.second.sum(0))

    def cumsum(self, axis: int) -> Jet:
        return Jet(*(np.cumsum(getattr(self, name), axis=axis) for name in self._names))

    def prod(self) -> Jet:
        result = self[0]
        for k in range(1, self.shape[0]):
            result = result * self[k]
        return result

    def __add__(self, other: Any) -> Jet:
        if isinstance(other, Jet):
            return Jet(
                self.value + other.value, self.first + other.first, self.second + other.second
            )
        value = self.value + other
        return Jet(value, *self._spread(np.shape(value)))

    def _spread(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """The derivatives of an array of that shape, all of whose entries are this number."""
        if shape == self.shape:
            return self.first, self.second
        dim = self.first.shape[-1]
        return (
            np.broadcast_to(self.first, (*shape, dim)),
            np.broadcast_to(self.second, (*shape, dim, dim)),
        )

    def __mul__(self, other: Any) -> Jet:
        if isinstance(other, Jet):
            u, v = self, other
            a, b = u.value[..., None], v.value[..., None]
            cross = u.first[..., :, None] * v.first[..., None, :]
            return Jet(
                u.value * v.value,
                a * v.first + b * u.first,
                a[..., None] * v.second + b[..., None] * u.second
                + cross + np.swapaxes(cross, -1, -2),
            )  # fmt: skip
        factor = np.asarray(other)
        return Jet(
            self.value * factor,
            self.first * factor[..., None],
            self.second * factor[..., None, None],
        )

    def chain(self, value: Any, slope: Any, curvature: Any) -> Jet:
        """phi of it, given phi, phi' and phi'' at its value."""
        slope, curvature = np.asarray(slope), np.asarray(curvature)
        outer = self.first[..., :, None] * self.first[..., None, :]
        return Jet(
            value,
            slope[..., None] * self.first,
            slope[..., None, None] * self.second + curvature[..., None, None] * outer,
        )

    def __pow__(self, n: int) -> Jet:
        v = self.value
        if n == 1:
            return self
        return self.chain(v**n, n * v ** (n - 1), n * (n - 1) * v ** (n - 2))

    def reciprocal(self) -> Jet:
        inverse = 1 / self.value
        return self.chain(inverse, -(inverse**2), 2 * inverse**3)

    def apply(self, name: str) -> Jet:
        v = self.value
        call = _functions(v)
        if name == "exp":
            e = call("exp", v)
            return self.chain(e, e, e)
        if name == "log":
            return self.chain(call("log", v), 1 / v, -1 / v**2)
        if name == "sqrt":
            root = call("sqrt", v)
            return self.chain(root, 1 / (2 * root), -1 / (4 * root * v))
        if name == "abs":
            sign = np.where(v < 0, -1, 1)
            return self.chain(sign * v, sign, 0 * sign)
        sine, cosine = call("sin", v), call("cos", v)
        if name == "sin":
            return self.chain(sine, cosine, -sine)
        if name == "cos":
            return self.chain(cosine, -sine, -cosine)
        raise ValueError(f"name={name!r}: need exp, log, sqrt, abs, sin or cos")

    def angle(self, x: Jet) -> Jet:
        """Of the point (x, self)."""
        y = self
        squared = x.value**2 + y.value**2
        # The gradient is (x y' - y x') / squared; its derivative by the quotient rule.
        cross = x.value * y.first - y.value * x.first
        growth = 2 * (x.value * x.first + y.value * y.first)
        inner = x.first[:, None] * y.first[None, :] - y.first[:, None] * x.first[None, :]
        second = (
            (x.value * y.second - y.value * x.second + inner.T) / squared
            - cross[:, None] * growth[None, :] / squared**2
        )  # fmt: skip
        if isinstance(y.value.item(), mpmath.mpf):
            value: Any = mpmath.atan2(y.value.item(), x.value.item())
        else:
            value = np.arctan2(y.value, x.value)
        return Jet(value, cross / squared, second)

    def __neg__(self) -> Jet:
        return self * -1

    def __sub__(self, other: Any) -> Jet:
        return self + (-other)

    def __rsub__(self, other: Any) -> Jet:
        return (-self) + other

    def __truediv__(self, other: Any) -> Jet:
        if isinstance(other, Jet):
            return self * other.reciprocal()
        # Not by the reciprocal, which would be rounded to float64.
        divisor = np.asarray(other)
        return Jet(
            self.value / divisor,
            self.first / divisor[..., None],
            self.second / divisor[..., None, None],
        )

    def __rtruediv__(self, other: Any) -> Jet:
        return self.reciprocal() * other

    def __rmatmul__(self, matrix: Array) -> Jet:
        return Jet(
            matrix @ self.value,
            matrix @ self.first,
            np.tensordot(matrix.astype(self.second.dtype), self.second, axes=(1, 0)),
        )

    def __lt__(self, bound: float) -> bool:
        return bool(self.value < bound)

    __radd__ = __add__
    __rmul__ = __mul__


def _functions(value: Array) -> Callable[[str, Array], Any]:
    if value.dtype == object:
        return lambda name, v: np.frompyfunc(getattr(mpmath, name), 1, 1)(v)
    return lambda name, v: getattr(np, name)(v)


def derivatives(fun: Callable[[Any], Any], x: Array) -> tuple[Any, Array, Array]:
    """f, its gradient and its Hessian at x, in the precision of x."""
    result = fun(Jet.variables(x))
    return result.value.item() if x.dtype == object else result.value[()], (
        np.array(result.first)
    ), np.array(result.second)  # fmt: skip


# ----- linear algebra in any precision


def solve(matrix: Array, right: Array) -> Array:
    """By Gaussian elimination with row pivots; raises ZeroDivisionError if it is singular."""
    a, b = matrix.copy(), right.copy()
    n = len(b)
    for k in range(n):
        pivot = k + int(np.argmax(np.abs(a[k:, k])))
        if a[pivot, k] == 0:
            raise ZeroDivisionError("singular matrix")
        if pivot != k:
            a[[k, pivot]], b[[k, pivot]] = a[[pivot, k]], b[[pivot, k]]
        factors = a[k + 1 :, k] / a[k, k]
        a[k + 1 :, k:] -= factors[:, None] * a[k, k:]
        b[k + 1 :] -= factors * b[k]
    x = b
    for k in range(n - 1, -1, -1):
        x[k] = (b[k] - (a[k, k + 1 :] * x[k + 1 :]).sum()) / a[k, k]
    return x


def is_positive_definite(matrix: Array) -> bool:
    """Whether the Cholesky factorization exists."""
    a = matrix.copy()
    for k in range(len(a)):
        if not a[k, k] > 0:
            return False
        factors = a[k + 1 :, k] / a[k, k]
        a[k + 1 :, k + 1 :] -= factors[:, None] * a[k, k + 1 :]
    return True


def equilibrate(matrix: Array) -> Array:
    """s such that the rows of s_i matrix_ij s_j have largest entries of about 1."""
    scale = np.full(len(matrix), matrix[0, 0] * 0 + 1, dtype=matrix.dtype)
    for _ in range(25):
        rows = np.abs(matrix * scale[:, None] * scale).max(axis=1)
        rows = np.where(rows == 0, 1, rows)
        scale = scale / _functions(rows)("sqrt", rows)
    return scale


def lowest(matrix: Array) -> tuple[Any, Array]:
    """The lowest eigenvalue and its unit eigenvector."""
    if matrix.dtype == object:
        values, vectors = mpmath.eigsy(mpmath.matrix(matrix.tolist()))
        k = min(range(len(values)), key=lambda i: values[i])
        return values[k], np.array([vectors[i, k] for i in range(len(values))], dtype=object)
    guesses, vectors = np.linalg.eigh(matrix.astype(np.float64))
    vector = vectors[:, 0].astype(matrix.dtype)
    value = np.longdouble(guesses[0])
    eye = np.eye(len(matrix), dtype=matrix.dtype)
    for _ in range(3):
        try:
            longer = solve(matrix - value * eye, vector)
        except ZeroDivisionError:
            break
        vector = longer / np.sqrt((longer**2).sum())
        value = vector @ (matrix @ vector)
    margin = np.longdouble(1e-16) * len(matrix)
    if not is_positive_definite(matrix - (value - margin) * eye):
        # Another one is lower: close to it, to float64.
        value = np.longdouble(guesses[0]) - margin
    return value, vector


# ----- the decision


@dataclass(frozen=True)
class Truth:
    """What a point is.

    kind: "minimum", "saddle", "flat" or "none".
    lowest: the lowest eigenvalue of the scaled Hessian, at the point that Newton's method went to.
    decrease: of f along that eigenvector within the scale of x, relative to the scale of f.
    moved: by Newton's method, relative to the scale of x.
    excess: f at the point minus f where Newton's method went to, relative to the scale of f.
    value: f there.
    digits: of the arithmetic that decided.
    """

    kind: str
    lowest: float
    decrease: float
    moved: float
    excess: float
    value: float
    digits: int
    x: tuple[float, ...] = ()


@dataclass
class Refined:
    """Where Newton's method went."""

    x: Array
    value: Any
    hessian: Array
    moved: float  # relative to the scale of x
    has_converged: bool
    is_linear: bool  # steps shrank by a constant factor: the Hessian is singular at the limit
    is_singular: bool  # the Hessian was, on the way


def newton(fun: Callable[[Any], Any], x: Array, width: Array, limit: float = NEAR) -> Refined:
    """Newton's method on the gradient, until it rests or has moved by `limit` of the scale of x."""
    start, scale = x, np.maximum(np.abs(x), width)
    sizes: list[float] = []
    rest = 1e-30 if x.dtype == object else 1e-17
    moved, has_converged, is_singular = 0.0, False, False
    value, gradient, hessian = derivatives(fun, x)
    for _ in range(MAX_NEWTON):
        if not all(np.isfinite(float(entry)) for entry in gradient):
            break
        if not any(gradient):
            has_converged = True
            break
        step, was_singular = newton_step(gradient, hessian)
        is_singular |= was_singular
        size = float(np.max(np.abs(step) / scale))
        # At rounding level steps stop to shrink.
        is_stuck = len(sizes) > 2 and size < 1e-8 and size > 0.95 * min(sizes[-3:])
        if size < rest or is_stuck:
            has_converged = True
            break
        sizes.append(size)
        moved = float(np.max(np.abs(x + step - start) / scale))
        if not moved < limit:
            break
        x = x + step
        value, gradient, hessian = derivatives(fun, x)
    ratios = np.array(sizes[-6:]) / np.array(sizes[-7:-1]) if len(sizes) > 6 else np.zeros(1)
    is_linear = bool(ratios.min() > 0.25) and float(np.ptp(ratios)) < 0.15
    return Refined(x, value, hessian, moved, has_converged, is_linear, is_singular)


def newton_step(gradient: Array, hessian: Array) -> tuple[Array, bool]:
    """-H^-1 g, and whether H is singular; then the step is the shortest, in scaled coordinates."""
    scaling = equilibrate(hessian)
    scaled = hessian * scaling[:, None] * scaling
    values, vectors = np.linalg.eigh(scaled.astype(np.float64))
    kept = np.abs(values) > 0.1 * FLAT
    if kept.all() or hessian.dtype == object:
        return -scaling * solve(scaled, scaling * gradient), False
    basis = vectors[:, kept]
    return -scaling * (basis @ (basis.T @ (scaling * gradient) / values[kept])), True


class Landscape(NamedTuple):
    """The lowest curvature at a point, scaled, and what f does along its direction."""

    lowest: float
    change: float  # of f, within the scale of x
    decrease: float
    digits: int  # of the arithmetic


class Check:
    """Decides what points of one function are; points that Newton's method joins are decided once.

    Args:
        fun: the function, for arrays of numbers of any kind.
        low, high: its box, whose width is the least scale of x.
    """

    def __init__(self, fun: Callable[[Any], Any], low: Sequence[float], high: Sequence[float]):
        self.fun = fun
        self.width = np.asarray(high, dtype=np.longdouble) - np.asarray(low, dtype=np.longdouble)
        self._known: list[tuple[Array, Landscape]] = []

    def __call__(self, x: Any, start: Any = None) -> Truth:
        with np.errstate(all="ignore"), mpmath.workdps(DIGITS):
            return self._decide(
                np.asarray(x, dtype=np.longdouble),
                None if start is None else np.asarray(start, dtype=np.longdouble),
            )

    def _decide(self, x: Array, start: Array | None) -> Truth:
        value = self.fun(x)
        if not (np.isfinite(x).all() and np.isfinite(value)):
            return Truth("none", np.nan, np.nan, np.nan, np.nan, float(value), 19)
        refined = newton(self.fun, x, self.width, limit=FAR)
        descent = 0.0 if start is None else abs(float(self.fun(start) - value))
        size = max(abs(float(refined.value)), 1e-8 * descent, 1e-300)
        landscape = self._landscape(refined, x)
        excess = float(value - refined.value) / size
        kind = self._kind(x, refined, landscape, size, excess)
        return Truth(
            kind, landscape.lowest, landscape.decrease / size, refined.moved, excess,
            float(refined.value), landscape.digits, tuple(float(entry) for entry in refined.x),
        )  # fmt: skip

    def _kind(
        self, x: Array, refined: Refined, landscape: Landscape, size: float, excess: float
    ) -> str:
        is_near = refined.moved < NEAR
        if refined.has_converged and is_near and not refined.is_linear:
            if abs(landscape.lowest) < FLAT or landscape.change <= 1e-14 * size:
                return "flat"
            return "minimum" if landscape.lowest > 0 else "saddle"
        is_degenerate = refined.is_linear or (refined.has_converged and refined.is_singular)
        if is_degenerate and refined.moved < FAR and excess < 1e-6:
            return "flat"
        if landscape.change <= 1e-14 * size or self._promise(x) <= 1e-12 * size:
            return "flat"
        return "none"

    def _landscape(self, refined: Refined, x: Array) -> Landscape:
        """Around where Newton's method went; the same for all that ends there."""
        scale = np.maximum(np.abs(x), self.width)
        is_regular = refined.has_converged and not refined.is_linear
        if is_regular:
            for known, landscape in self._known:
                if float(np.max(np.abs(known - refined.x) / scale)) < 1e-12:
                    return landscape
        found, vector, digits = self._lowest(refined)
        change, decrease = self._change(refined.x, refined.value, vector, scale)
        landscape = Landscape(found, change, decrease, digits)
        if is_regular:
            self._known.append((refined.x, landscape))
        return landscape

    def _lowest(self, refined: Refined) -> tuple[float, Array, int]:
        """Lowest scaled eigenvalue, its direction in x, and the digits it was decided with."""
        hessian, digits = refined.hessian, 19
        is_regular = refined.has_converged and not (refined.is_linear or refined.is_singular)
        can_repeat = len(hessian) <= MP_DIM and is_regular
        if can_repeat:
            x = np.array([mpmath.mpf(str(entry)) for entry in refined.x], dtype=object)
            width = np.array([mpmath.mpf(str(entry)) for entry in self.width], dtype=object)
            hessian = newton(self.fun, x, width).hessian
            digits = DIGITS
        scaling = equilibrate(hessian)
        value, vector = lowest(hessian * scaling[:, None] * scaling)
        direction = (scaling * vector).astype(np.longdouble)
        return float(value), direction, digits

    def _promise(self, x: Array) -> float:
        """What Newton's model at x promises to descend; infinite if the Hessian is not positive."""
        _, gradient, hessian = derivatives(self.fun, x)
        scaling = equilibrate(hessian)
        if not is_positive_definite(hessian * scaling[:, None] * scaling):
            return np.inf
        return -0.5 * float(gradient @ newton_step(gradient, hessian)[0])

    def _change(self, x: Array, value: Any, direction: Array, scale: Array) -> tuple[float, float]:
        """Largest change and largest decrease of f along a direction within the scale of x."""
        direction = direction / np.max(np.abs(direction) / scale)
        change = decrease = 0.0
        for k in range(24):
            for side in (1, -1):
                step = np.longdouble(side * 2.0**-k)
                here = float(self.fun(x + step * direction) - value)
                if np.isfinite(here):
                    change, decrease = max(change, abs(here)), max(decrease, -here)
        return change, decrease
