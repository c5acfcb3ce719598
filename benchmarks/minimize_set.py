r"""75 smooth functions of 2 to 100 variables, from three named collections, to measure `minimize`.

    python benchmarks/minimize_set.py        # the list

- "mgh": all 35 problems of J. J. Moré, B. S. Garbow, K. E. Hillstrom, "Testing unconstrained
  optimization software", ACM Transactions on Mathematical Software 7 (1981), 17-41, as sums of
  squares, with their standard starts. Problems of free dimension have the dimension stated here.
- "dixon-szego": the seven functions of L. C. W. Dixon, G. P. Szegő, "The global optimization
  problem: an introduction", in Towards Global Optimisation 2, North-Holland (1978), 1-15.
- "surjanovic-bingham": S. Surjanovic, D. Bingham, "Virtual library of simulation experiments: test
  functions and datasets", Simon Fraser University (2013), the part on optimization: all functions
  of at least two variables that are twice differentiable and not among the above (Beale, Branin,
  Colville = Wood, Goldstein-Price, Hartmann 3 and 6, Powell, Shekel are). Left out: Ackley, Bukin
  6, cross-in-tray, eggholder, Hölder table and Schwefel, which have kinks, Gramacy-Lee and
  Forrester, which have one variable.

Not everywhere twice differentiable, and yet here, since leaving out would make the collection
incomplete: mgh helical_valley jumps at x1 = 0, x2 < 0 and has a kink at x1 = x2 = 0; mgh gulf has
kinks where x2 is one of its data, all above 25.6. Their boxes are clear of these places. Kowalik,
Bard and Meyer are rational, or exponentials of rational functions, with poles outside their boxes.
drop_wave and schaffer4 are written so that the root and the absolute value, of which they are even
functions, do not show.

Each function is written once, for a vector x of shape (d,) of one of these kinds: a torch tensor,
a NumPy array of any float type, a NumPy array of mpmath numbers, or any class with the arithmetic
of an array and a method `apply(name)`. Constants are float64 everywhere, so that what is computed
in higher precision is the same function.

A third of the functions is held out: no choice is made by looking at them. These are the third of
the names that comes first in the order of their SHA-256.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import torch
from torch import Tensor

MGH = "mgh"
DIXON_SZEGO = "dixon-szego"
LIBRARY = "surjanovic-bingham"
CITATIONS = {
    MGH: "Moré, Garbow, Hillstrom, ACM TOMS 7 (1981), 17-41",
    DIXON_SZEGO: "Dixon, Szegő, Towards Global Optimisation 2 (1978), 1-15",
    LIBRARY: "Surjanovic, Bingham, Virtual Library of Simulation Experiments (2013)",
}

Vector = Any
Function = Callable[[Vector], Any]


@dataclass(frozen=True)
class TestFunction:
    """A function with its source, its starts, and what is published of its minima.

    Attributes:
        start: the standard start; None where the collection has none.
        low, high: corners of the box for random starts.
        minima: published values of local or global minima.
        minimizer: a published point of the first of `minima`, if that is short to write.
        number: of the problem within its collection, where they are numbered.
    """

    name: str
    collection: str
    dim: int
    fun: Function
    low: tuple[float, ...]
    high: tuple[float, ...]
    start: tuple[float, ...] | None = None
    minima: tuple[float, ...] = ()
    minimizer: tuple[float, ...] | None = None
    number: int | None = None

    @property
    def citation(self) -> str:
        problem = "" if self.number is None else f", problem {self.number}"
        return CITATIONS[self.collection] + problem

    @property
    def is_held_out(self) -> bool:
        return self.name in HELD_OUT


def random_start(function: TestFunction, index: int) -> np.ndarray:
    """Start number `index`, uniform in the box; the same in every run."""
    digest = hashlib.sha256(f"{function.name} {index}".encode()).digest()
    random = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    return random.uniform(function.low, function.high)


# ----- numbers of all kinds


def _apply(name: str) -> Callable[[Any], Any]:
    """The function of that name in torch, NumPy or mpmath, whatever x is made of."""
    in_torch = getattr(torch, name)
    in_numpy = getattr(np, name)
    in_mpmath = np.frompyfunc(abs if name == "abs" else getattr(mpmath, name), 1, 1)

    def function(x: Any) -> Any:
        if isinstance(x, Tensor):
            return in_torch(x)
        if hasattr(x, "apply"):
            return x.apply(name)
        if isinstance(x, mpmath.mpf) or (isinstance(x, np.ndarray) and x.dtype == object):
            return in_mpmath(x)
        return in_numpy(x)

    return function


exp, log, sin, cos = _apply("exp"), _apply("log"), _apply("sin"), _apply("cos")
sqrt, absolute = _apply("sqrt"), _apply("abs")


class Data:
    """Constants: `data(x)` has the kind of x."""

    def __init__(self, values: Any) -> None:
        self.array = np.asarray(values, dtype=np.float64)
        self.tensor = torch.from_numpy(self.array.copy())

    def __call__(self, x: Vector) -> Any:
        return self.tensor if isinstance(x, Tensor) else self.array


def join(parts: Sequence[Vector]) -> Vector:
    """Vectors, one after the other."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    return type(first).join(parts)


def squares(*parts: Any) -> Any:
    """Sum of the squares of numbers and of the entries of vectors."""
    total = 0.0
    for part in parts:
        square = part**2
        total = total + (square.sum() if hasattr(square, "sum") else square)
    return total


def angle(y: Any, x: Any) -> Any:
    """The angle of the point (x, y), above -pi and up to pi."""
    if isinstance(x, Tensor):
        return torch.atan2(y, x)
    if isinstance(x, mpmath.mpf):
        return mpmath.atan2(y, x)
    return y.angle(x) if hasattr(y, "angle") else np.arctan2(y, x)


def cos_of_root(s: Any) -> Any:
    """cos(sqrt(s)), which has all derivatives at s = 0, unlike the root."""
    series, term = 1.0, 1.0
    for k in range(1, 16):
        term = term * s * (-1.0 / ((2 * k - 1) * (2 * k)))
        series = series + term
    if isinstance(s, Tensor):
        is_small = s < 0.01
        return torch.where(is_small, series, torch.cos(torch.sqrt(torch.where(is_small, 1.0, s))))
    return series if s < 0.01 else cos(sqrt(s))


def count(n: int) -> Data:
    """1, ..., n"""
    return Data(np.arange(1.0, n + 1))


# ----- Moré, Garbow, Hillstrom


def rosenbrock(x: Vector) -> Any:
    return squares(10 * (x[1] - x[0] ** 2), 1 - x[0])


def freudenstein_roth(x: Vector) -> Any:
    u, v = x[0], x[1]
    return squares(-13 + u + ((5 - v) * v - 2) * v, -29 + u + ((v + 1) * v - 14) * v)


def powell_badly_scaled(x: Vector) -> Any:
    return squares(1e4 * x[0] * x[1] - 1, exp(-x[0]) + exp(-x[1]) - 1.0001)


def brown_badly_scaled(x: Vector) -> Any:
    return squares(x[0] - 1e6, x[1] - 2e-6, x[0] * x[1] - 2)


def beale(x: Vector) -> Any:
    u, v = x[0], x[1]
    return squares(1.5 - u * (1 - v), 2.25 - u * (1 - v**2), 2.625 - u * (1 - v**3))


TEN = count(10)


def jennrich_sampson(x: Vector) -> Any:
    i = TEN(x)
    return squares(2 + 2 * i - (exp(i * x[0]) + exp(i * x[1])))


def helical_valley(x: Vector) -> Any:
    # The angle of (x1, x2), in turns, from -1/4 to 3/4.
    turn = 0.25 + angle(-x[0], x[1]) / (2 * math.pi)
    radius = sqrt(x[0] ** 2 + x[1] ** 2)
    return squares(10 * (x[2] - 10 * turn), 10 * (radius - 1), x[2])


BARD_Y = Data(
    [0.14, 0.18, 0.22, 0.25, 0.29, 0.32, 0.35, 0.39, 0.37, 0.58, 0.73, 0.96, 1.34, 2.10, 4.39]
)
BARD_U = count(15)
BARD_V = Data(16 - BARD_U.array)
BARD_W = Data(np.minimum(BARD_U.array, BARD_V.array))


def bard(x: Vector) -> Any:
    return squares(BARD_Y(x) - (x[0] + BARD_U(x) / (BARD_V(x) * x[1] + BARD_W(x) * x[2])))


_HALF = [0.0009, 0.0044, 0.0175, 0.0540, 0.1295, 0.2420, 0.3521]
GAUSSIAN_Y = Data([*_HALF, 0.3989, *_HALF[::-1]])
GAUSSIAN_T = Data((8 - np.arange(1.0, 16)) / 2)


def gaussian(x: Vector) -> Any:
    return squares(x[0] * exp(-x[1] * (GAUSSIAN_T(x) - x[2]) ** 2 / 2) - GAUSSIAN_Y(x))


MEYER_Y = Data([
    34780, 28610, 23650, 19630, 16370, 13720, 11540, 9744,
    8261, 7030, 6005, 5147, 4427, 3820, 3307, 2872,
])  # fmt: skip
MEYER_T = Data(45 + 5 * np.arange(1.0, 17))


def meyer(x: Vector) -> Any:
    return squares(x[0] * exp(x[1] / (MEYER_T(x) + x[2])) - MEYER_Y(x))


GULF_T = Data(np.arange(1, 100) / 100)
GULF_Y = Data(25 + (-50 * np.log(GULF_T.array)) ** (2 / 3))


def gulf(x: Vector) -> Any:
    # The misprint of the paper corrected: |y - x2| in the place of |y m i x2|.
    power = exp(x[2] * log(absolute(GULF_Y(x) - x[1])))
    return squares(exp(-power / x[0]) - GULF_T(x))


BOX_T = Data(0.1 * np.arange(1.0, 11))
BOX_C = Data(np.exp(-BOX_T.array) - np.exp(-10 * BOX_T.array))


def box3(x: Vector) -> Any:
    t = BOX_T(x)
    return squares(exp(-t * x[0]) - exp(-t * x[1]) - x[2] * BOX_C(x))


def powell_singular(x: Vector) -> Any:
    return extended_powell(x)


def wood(x: Vector) -> Any:
    return (
        100 * (x[1] - x[0] ** 2) ** 2
        + (1 - x[0]) ** 2
        + 90 * (x[3] - x[2] ** 2) ** 2
        + (1 - x[2]) ** 2
        + 10 * (x[1] + x[3] - 2) ** 2
        + (x[1] - x[3]) ** 2 / 10
    )


KOWALIK_Y = Data(
    [0.1957, 0.1947, 0.1735, 0.1600, 0.0844, 0.0627, 0.0456, 0.0342, 0.0323, 0.0235, 0.0246]
)
KOWALIK_U = Data([4, 2, 1, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625])


def kowalik_osborne(x: Vector) -> Any:
    u = KOWALIK_U(x)
    return squares(KOWALIK_Y(x) - x[0] * (u**2 + u * x[1]) / (u**2 + u * x[2] + x[3]))


DENNIS_T = Data(np.arange(1.0, 21) / 5)
DENNIS_EXP, DENNIS_SIN, DENNIS_COS = (
    Data(f(DENNIS_T.array)) for f in (np.exp, np.sin, np.cos)
)  # fmt: skip


def brown_dennis(x: Vector) -> Any:
    first = x[0] + DENNIS_T(x) * x[1] - DENNIS_EXP(x)
    second = x[2] + DENNIS_SIN(x) * x[3] - DENNIS_COS(x)
    return squares(first**2 + second**2)


OSBORNE1_Y = Data([
    0.844, 0.908, 0.932, 0.936, 0.925, 0.908, 0.881, 0.850, 0.818, 0.784, 0.751,
    0.718, 0.685, 0.658, 0.628, 0.603, 0.580, 0.558, 0.538, 0.522, 0.506, 0.490,
    0.478, 0.467, 0.457, 0.448, 0.438, 0.431, 0.424, 0.420, 0.414, 0.411, 0.406,
])  # fmt: skip
OSBORNE1_T = Data(10 * np.arange(33.0))


def osborne1(x: Vector) -> Any:
    t = OSBORNE1_T(x)
    return squares(OSBORNE1_Y(x) - (x[0] + x[1] * exp(-t * x[3]) + x[2] * exp(-t * x[4])))


BIGGS_T = Data(0.1 * np.arange(1.0, 14))
BIGGS_Y = Data(
    np.exp(-BIGGS_T.array) - 5 * np.exp(-10 * BIGGS_T.array) + 3 * np.exp(-4 * BIGGS_T.array)
)


def biggs_exp6(x: Vector) -> Any:
    t = BIGGS_T(x)
    model = x[2] * exp(-t * x[0]) - x[3] * exp(-t * x[1]) + x[5] * exp(-t * x[4])
    return squares(model - BIGGS_Y(x))


OSBORNE2_Y = Data([
    1.366, 1.191, 1.112, 1.013, 0.991, 0.885, 0.831, 0.847, 0.786, 0.725, 0.746, 0.679, 0.608,
    0.655, 0.616, 0.606, 0.602, 0.626, 0.651, 0.724, 0.649, 0.649, 0.694, 0.644, 0.624, 0.661,
    0.612, 0.558, 0.533, 0.495, 0.500, 0.423, 0.395, 0.375, 0.372, 0.391, 0.396, 0.405, 0.428,
    0.429, 0.523, 0.562, 0.607, 0.653, 0.672, 0.708, 0.633, 0.668, 0.645, 0.632, 0.591, 0.559,
    0.597, 0.625, 0.739, 0.710, 0.729, 0.720, 0.636, 0.581, 0.428, 0.292, 0.162, 0.098, 0.054,
])  # fmt: skip
OSBORNE2_T = Data(np.arange(65) / 10)


def osborne2(x: Vector) -> Any:
    t = OSBORNE2_T(x)
    model = x[0] * exp(-t * x[4])
    for k in (1, 2, 3):
        model = model + x[k] * exp(-((t - x[k + 7]) ** 2) * x[k + 4])
    return squares(OSBORNE2_Y(x) - model)


def watson(n: int) -> Function:
    t = np.arange(1.0, 30)[:, None] / 29
    powers = np.arange(n)
    values = Data(t**powers)
    slopes = Data(powers[1:] * t ** (powers[1:] - 1))

    def fun(x: Vector) -> Any:
        return squares(
            slopes(x) @ x[1:] - (values(x) @ x) ** 2 - 1, x[0], x[1] - x[0] ** 2 - 1
        )  # fmt: skip

    return fun


def extended_rosenbrock(x: Vector) -> Any:
    odd, even = x[0::2], x[1::2]
    return squares(10 * (even - odd**2), 1 - odd)


def extended_powell(x: Vector) -> Any:
    a, b, c, d = (x[k::4] for k in range(4))
    return squares(a + 10 * b) + 5 * squares(c - d) + squares((b - 2 * c) ** 2) + (
        10 * squares((a - d) ** 2)
    )  # fmt: skip


def penalty1(x: Vector) -> Any:
    return 1e-5 * squares(x - 1) + ((x**2).sum() - 0.25) ** 2


def penalty2(n: int) -> Function:
    i = np.arange(2.0, n + 1)
    y = Data(np.exp(i / 10) + np.exp((i - 1) / 10))
    weights = Data(np.arange(n, 0.0, -1))

    def fun(x: Vector) -> Any:
        e = exp(x / 10)
        small = squares(e[1:] + e[:-1] - y(x), e[1:] - math.exp(-0.1))
        return squares(x[0] - 0.2, (weights(x) * x**2).sum() - 1) + 1e-5 * small

    return fun


def variably_dimensioned(n: int) -> Function:
    j = count(n)

    def fun(x: Vector) -> Any:
        s = (j(x) * (x - 1)).sum()
        return squares(x - 1) + s**2 + s**4

    return fun


def trigonometric(n: int) -> Function:
    i = count(n)

    def fun(x: Vector) -> Any:
        c = cos(x)
        return squares(n - c.sum() + i(x) * (1 - c) - sin(x))

    return fun


def brown_almost_linear(x: Vector) -> Any:
    n = x.shape[0]
    return squares(x[:-1] + x.sum() - (n + 1), x.prod() - 1)


def _differences(n: int, low: float, middle: float, high: float) -> Data:
    matrix = middle * np.eye(n) + low * np.eye(n, k=-1) + high * np.eye(n, k=1)
    return Data(matrix)


def discrete_boundary(n: int) -> Function:
    h = 1 / (n + 1)
    t = Data(h * np.arange(1.0, n + 1))
    second = _differences(n, -1, 2, -1)

    def fun(x: Vector) -> Any:
        return squares(second(x) @ x + (h**2 / 2) * (x + t(x) + 1) ** 3)

    return fun


def discrete_integral(n: int) -> Function:
    h = 1 / (n + 1)
    t = h * np.arange(1.0, n + 1)
    kernel = np.where(t[None, :] <= t[:, None], (1 - t[:, None]) * t, t[:, None] * (1 - t))
    matrix, points = Data(h / 2 * kernel), Data(t)

    def fun(x: Vector) -> Any:
        return squares(x + matrix(x) @ (x + points(x) + 1) ** 3)

    return fun


def broyden_tridiagonal(n: int) -> Function:
    coupling = _differences(n, -1, 3, -2)

    def fun(x: Vector) -> Any:
        return squares(coupling(x) @ x - 2 * x**2 + 1)

    return fun


def broyden_banded(n: int) -> Function:
    i, j = np.indices((n, n))
    band = Data((j >= i - 5) & (j <= i + 1) & (j != i))

    def fun(x: Vector) -> Any:
        return squares(x * (2 + 5 * x**2) + 1 - band(x) @ (x * (1 + x)))

    return fun


def linear_full_rank(n: int, m: int) -> Function:
    def fun(x: Vector) -> Any:
        s = 2 / m * x.sum()
        return squares(x - s - 1) + (m - n) * (s + 1) ** 2

    return fun


def linear_rank1(n: int, m: int) -> Function:
    i, j = count(m), count(n)

    def fun(x: Vector) -> Any:
        return squares(i(x) * (j(x) * x).sum() - 1)

    return fun


def linear_rank1_zero(n: int, m: int) -> Function:
    i = Data([0.0, *range(1, m - 1), 0.0])
    j = Data([0.0, *range(2, n), 0.0])

    def fun(x: Vector) -> Any:
        return squares(i(x) * (j(x) * x).sum() - 1)

    return fun


def chebyquad(x: Vector) -> Any:
    """Means of the shifted Chebyshev polynomials 1, ..., n against their integrals."""
    n = x.shape[0]
    y = 2 * x - 1
    before, now = 1.0, y
    total = 0.0
    for k in range(1, n + 1):
        integral = -1 / (k**2 - 1) if k % 2 == 0 else 0.0
        total = total + (now.sum() / n - integral) ** 2
        before, now = now, 2 * y * now - before
    return total


# ----- Dixon, Szegő


def branin(x: Vector) -> Any:
    u, v = x[0], x[1]
    bend = v - 5.1 / (4 * math.pi**2) * u**2 + 5 / math.pi * u - 6
    return bend**2 + 10 * (1 - 1 / (8 * math.pi)) * cos(u) + 10


def goldstein_price(x: Vector) -> Any:
    u, v = x[0], x[1]
    one = 19 - 14 * u + 3 * u**2 - 14 * v + 6 * u * v + 3 * v**2
    two = 18 - 32 * u + 12 * u**2 + 48 * v - 36 * u * v + 27 * v**2
    return (1 + (u + v + 1) ** 2 * one) * (30 + (2 * u - 3 * v) ** 2 * two)


HARTMANN_C = (1.0, 1.2, 3.0, 3.2)
HARTMANN3_A = ((3, 10, 30), (0.1, 10, 35), (3, 10, 30), (0.1, 10, 35))
HARTMANN3_P = (
    (0.3689, 0.1170, 0.2673),
    (0.4699, 0.4387, 0.7470),
    (0.1091, 0.8732, 0.5547),
    (0.03815, 0.5743, 0.8828),
)
HARTMANN6_A = (
    (10, 3, 17, 3.5, 1.7, 8),
    (0.05, 10, 17, 0.1, 8, 14),
    (3, 3.5, 1.7, 10, 17, 8),
    (17, 8, 0.05, 10, 0.1, 14),
)
HARTMANN6_P = (
    (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886),
    (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
    (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650),
    (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
)


def hartmann(a: Any, p: Any, shift: float = 0.0, scale: float = 1.0) -> Function:
    rows = [(c, Data(weights), Data(center)) for c, weights, center in
            zip(HARTMANN_C, a, p, strict=True)]  # fmt: skip

    def fun(x: Vector) -> Any:
        total = shift
        for c, weights, center in rows:
            total = total - c * exp(-(weights(x) * (x - center(x)) ** 2).sum())
        return total / scale

    return fun


SHEKEL_A = (
    (4, 4, 4, 4), (1, 1, 1, 1), (8, 8, 8, 8), (6, 6, 6, 6), (3, 7, 3, 7),
    (2, 9, 2, 9), (5, 5, 3, 3), (8, 1, 8, 1), (6, 2, 6, 2), (7, 3.6, 7, 3.6),
)  # fmt: skip
SHEKEL_C = (0.1, 0.2, 0.2, 0.4, 0.4, 0.6, 0.3, 0.7, 0.5, 0.5)


def shekel(m: int) -> Function:
    columns = [Data(column) for column in np.array(SHEKEL_A[:m]).T]
    c = Data(SHEKEL_C[:m])

    def fun(x: Vector) -> Any:
        distance = c(x)
        for k in range(4):
            distance = distance + (x[k] - columns[k](x)) ** 2
        return -(1 / distance).sum()

    return fun


# ----- Surjanovic, Bingham


def drop_wave(x: Vector) -> Any:
    s = (x**2).sum()
    return -(1 + cos_of_root(144 * s)) / (0.5 * s + 2)


def griewank(n: int) -> Function:
    roots = Data(1 / np.sqrt(np.arange(1.0, n + 1)))

    def fun(x: Vector) -> Any:
        return (x**2).sum() / 4000 - cos(x * roots(x)).prod() + 1

    return fun


LANGERMANN = ((1, 3, 5), (2, 5, 2), (5, 2, 1), (2, 1, 4), (3, 7, 9))
LANGERMANN_C, LANGERMANN_A, LANGERMANN_B = (Data(column) for column in np.array(LANGERMANN).T)


def langermann(x: Vector) -> Any:
    distance = (x[0] - LANGERMANN_A(x)) ** 2 + (x[1] - LANGERMANN_B(x)) ** 2
    return (LANGERMANN_C(x) * exp(-distance / math.pi) * cos(math.pi * distance)).sum()


def levy(x: Vector) -> Any:
    w = 1 + (x - 1) / 4
    inner, last = w[:-1], w[-1]
    return (
        sin(math.pi * w[0]) ** 2
        + ((inner - 1) ** 2 * (1 + 10 * sin(math.pi * inner + 1) ** 2)).sum()
        + (last - 1) ** 2 * (1 + sin(2 * math.pi * last) ** 2)
    )


def levy13(x: Vector) -> Any:
    u, v = x[0], x[1]
    return (
        sin(3 * math.pi * u) ** 2
        + (u - 1) ** 2 * (1 + sin(3 * math.pi * v) ** 2)
        + (v - 1) ** 2 * (1 + sin(2 * math.pi * v) ** 2)
    )


def rastrigin(x: Vector) -> Any:
    return 10 * x.shape[0] + (x**2 - 10 * cos(2 * math.pi * x)).sum()


def schaffer2(x: Vector) -> Any:
    wave = sin(x[0] ** 2 - x[1] ** 2) ** 2 - 0.5
    return 0.5 + wave / (1 + 0.001 * (x[0] ** 2 + x[1] ** 2)) ** 2


def schaffer4(x: Vector) -> Any:
    # cos(sin |u|) = cos(sin u)
    wave = cos(sin(x[0] ** 2 - x[1] ** 2)) ** 2 - 0.5
    return 0.5 + wave / (1 + 0.001 * (x[0] ** 2 + x[1] ** 2)) ** 2


FIVE = count(5)


def shubert(x: Vector) -> Any:
    i = FIVE(x)
    return (i * cos((i + 1) * x[0] + i)).sum() * (i * cos((i + 1) * x[1] + i)).sum()


def bohachevsky1(x: Vector) -> Any:
    u, v = x[0], x[1]
    return (
        u**2 + 2 * v**2 - 0.3 * cos(3 * math.pi * u) - 0.4 * cos(4 * math.pi * v) + 0.7
    )  # fmt: skip


def bohachevsky2(x: Vector) -> Any:
    u, v = x[0], x[1]
    return u**2 + 2 * v**2 - 0.3 * cos(3 * math.pi * u) * cos(4 * math.pi * v) + 0.3


def bohachevsky3(x: Vector) -> Any:
    u, v = x[0], x[1]
    return u**2 + 2 * v**2 - 0.3 * cos(3 * math.pi * u + 4 * math.pi * v) + 0.3


def perm0(n: int, beta: float) -> Function:
    weights = Data(np.arange(1.0, n + 1) + beta)
    targets = [Data(np.arange(1.0, n + 1) ** -i) for i in range(n + 1)]

    def fun(x: Vector) -> Any:
        return squares(
            *((weights(x) * (x**i - targets[i](x))).sum() for i in range(1, n + 1))
        )  # fmt: skip

    return fun


def rotated_ellipsoid(x: Vector) -> Any:
    return (x**2).cumsum(0).sum()


def sphere(x: Vector) -> Any:
    return (x**2).sum()


def sum_of_powers(x: Vector) -> Any:
    # |x_i|^(i + 1); |x|^3 is twice differentiable.
    total = 0.0
    for i in range(x.shape[0]):
        power = x[i] ** (i + 2)
        total = total + (power if i % 2 == 0 else absolute(x[i]) * x[i] ** (i + 1))
    return total


def sum_squares(n: int) -> Function:
    i = count(n)

    def fun(x: Vector) -> Any:
        return (i(x) * x**2).sum()

    return fun


def trid(x: Vector) -> Any:
    return ((x - 1) ** 2).sum() - (x[1:] * x[:-1]).sum()


def booth(x: Vector) -> Any:
    return squares(x[0] + 2 * x[1] - 7, 2 * x[0] + x[1] - 5)


def matyas(x: Vector) -> Any:
    return 0.26 * (x[0] ** 2 + x[1] ** 2) - 0.48 * x[0] * x[1]


def mccormick(x: Vector) -> Any:
    return sin(x[0] + x[1]) + (x[0] - x[1]) ** 2 - 1.5 * x[0] + 2.5 * x[1] + 1


def power_sum(x: Vector) -> Any:
    sums = (8, 18, 44, 114)
    return squares(*((x**i).sum() - b for i, b in enumerate(sums, start=1)))


def zakharov(n: int) -> Function:
    i = Data(0.5 * np.arange(1.0, n + 1))

    def fun(x: Vector) -> Any:
        s = (i(x) * x).sum()
        return (x**2).sum() + s**2 + s**4

    return fun


def camel3(x: Vector) -> Any:
    u, v = x[0], x[1]
    return 2 * u**2 - 1.05 * u**4 + u**6 / 6 + u * v + v**2


def camel6(x: Vector) -> Any:
    u, v = x[0], x[1]
    return (4 - 2.1 * u**2 + u**4 / 3) * u**2 + u * v + (-4 + 4 * v**2) * v**2


def dixon_price(n: int) -> Function:
    i = Data(np.arange(2.0, n + 1))

    def fun(x: Vector) -> Any:
        return (x[0] - 1) ** 2 + (i(x) * (2 * x[1:] ** 2 - x[:-1]) ** 2).sum()

    return fun


def chained_rosenbrock(x: Vector) -> Any:
    return 100 * squares(x[1:] - x[:-1] ** 2) + squares(x[:-1] - 1)


DE_JONG_A = Data([-32, -16, 0, 16, 32] * 5)
DE_JONG_B = Data(np.repeat([-32, -16, 0, 16, 32], 5))
DE_JONG_I = count(25)


def de_jong5(x: Vector) -> Any:
    foxholes = DE_JONG_I(x) + (x[0] - DE_JONG_A(x)) ** 6 + (x[1] - DE_JONG_B(x)) ** 6
    return 1 / (0.002 + (1 / foxholes).sum())


def easom(x: Vector) -> Any:
    distance = (x[0] - math.pi) ** 2 + (x[1] - math.pi) ** 2
    return -cos(x[0]) * cos(x[1]) * exp(-distance)


def michalewicz(n: int) -> Function:
    i = Data(np.arange(1.0, n + 1) / math.pi)

    def fun(x: Vector) -> Any:
        return -(sin(x) * sin(i(x) * x**2) ** 20).sum()

    return fun


def perm(n: int, beta: float) -> Function:
    j = np.arange(1.0, n + 1)
    weights = [Data(j**i + beta) for i in range(n + 1)]
    inverse = Data(1 / j)

    def fun(x: Vector) -> Any:
        y = x * inverse(x)
        return squares(*((weights[i](x) * (y**i - 1)).sum() for i in range(1, n + 1)))

    return fun


def styblinski_tang(x: Vector) -> Any:
    return (x**4 - 16 * x**2 + 5 * x).sum() / 2


# ----- the list


def _mgh(
    number: int,
    name: str,
    fun: Function,
    start: Sequence[float],
    minima: Sequence[float],
    minimizer: Sequence[float] | None = None,
    width: Sequence[float] | float | None = None,
) -> TestFunction:
    """A box around the start reaches as far as the start is from 0, or 1 where it is 0."""
    center = np.asarray(start, dtype=np.float64)
    if width is None:
        half = np.where(center == 0, 1.0, np.abs(center))
    else:
        half = np.broadcast_to(np.asarray(width, dtype=np.float64), center.shape)
    return TestFunction(
        name, MGH, len(center), fun, tuple(center - half), tuple(center + half), tuple(center),
        tuple(minima), None if minimizer is None else tuple(minimizer), number,
    )  # fmt: skip


def _boxed(
    collection: str,
    name: str,
    fun: Function,
    dim: int,
    low: float | Sequence[float],
    high: float | Sequence[float],
    minima: Sequence[float] = (),
    minimizer: float | Sequence[float] | None = None,
) -> TestFunction:
    corners = [tuple(np.broadcast_to(np.asarray(corner, float), (dim,))) for corner in (low, high)]
    if minimizer is not None:
        minimizer = tuple(np.broadcast_to(np.asarray(minimizer, float), (dim,)))
    return TestFunction(
        name, collection, dim, fun, *corners, minima=tuple(minima), minimizer=minimizer
    )


def _mgh_collection() -> list[TestFunction]:
    def ramp(n: int) -> np.ndarray:
        return np.arange(1.0, n + 1)

    t = ramp(50) / 51  # of discrete_boundary
    s = ramp(30) / 31  # of discrete_integral
    return [
        _mgh(1, "rosenbrock", rosenbrock, (-1.2, 1), (0,), (1, 1)),
        _mgh(2, "freudenstein_roth", freudenstein_roth, (0.5, -2), (0, 48.98425), (5, 4)),
        _mgh(3, "powell_badly_scaled", powell_badly_scaled, (0, 1), (0,), (1.098e-5, 9.106)),
        _mgh(4, "brown_badly_scaled", brown_badly_scaled, (1, 1), (0,), (1e6, 2e-6)),
        _mgh(5, "beale", beale, (1, 1), (0,), (3, 0.5)),
        _mgh(6, "jennrich_sampson", jennrich_sampson, (0.3, 0.4), (124.362,), (0.2578, 0.2578)),
        _mgh(7, "helical_valley", helical_valley, (-1, 0, 0), (0,), (1, 0, 0)),
        _mgh(8, "bard", bard, (1, 1, 1), (8.21487e-3,)),
        _mgh(9, "gaussian", gaussian, (0.4, 1, 0), (1.12793e-8,)),
        # Half as far: the exponent has a pole at the end of the larger box.
        _mgh(10, "meyer", meyer, (0.02, 4000, 250), (87.9458,), None, (0.01, 2000, 125)),
        _mgh(11, "gulf", gulf, (5, 2.5, 0.15), (0,), (50, 25, 1.5)),
        _mgh(12, "box3", box3, (0, 10, 20), (0,), (1, 10, 1)),
        _mgh(13, "powell_singular", powell_singular, (3, -1, 0, 1), (0,), (0, 0, 0, 0)),
        _mgh(14, "wood", wood, (-3, -1, -3, -1), (0,), (1, 1, 1, 1)),
        _mgh(15, "kowalik_osborne", kowalik_osborne, (0.25, 0.39, 0.415, 0.39), (3.07505e-4,)),
        _mgh(16, "brown_dennis", brown_dennis, (25, 5, -5, -1), (85822.2,)),
        _mgh(17, "osborne1", osborne1, (0.5, 1.5, -1, 0.01, 0.02), (5.46489e-5,)),
        _mgh(18, "biggs_exp6", biggs_exp6, (1, 2, 1, 1, 1, 1), (0, 5.65565e-3),
             (1, 10, 1, 5, 4, 3)),
        _mgh(19, "osborne2", osborne2, (1.3, 0.65, 0.65, 0.7, 0.6, 3, 5, 7, 2, 4.5, 5.5),
             (4.01377e-2,)),
        _mgh(20, "watson", watson(9), (0,) * 9, (1.39976e-6,)),
        _mgh(21, "extended_rosenbrock", extended_rosenbrock, (-1.2, 1) * 25, (0,), (1,) * 50),
        _mgh(22, "extended_powell", extended_powell, (3, -1, 0, 1) * 15, (0,), (0,) * 60),
        _mgh(23, "penalty1", penalty1, ramp(10), (7.08765e-5,)),
        _mgh(24, "penalty2", penalty2(10), (0.5,) * 10, (2.93660e-4,)),
        _mgh(25, "variably_dimensioned", variably_dimensioned(40), 1 - ramp(40) / 40, (0,),
             (1,) * 40),
        _mgh(26, "trigonometric", trigonometric(30), (1 / 30,) * 30, (0,), (0,) * 30, 0.5),
        _mgh(27, "brown_almost_linear", brown_almost_linear, (0.5,) * 20, (0, 1), (1,) * 20),
        _mgh(28, "discrete_boundary", discrete_boundary(50), t * (t - 1), (0,), None, 0.5),
        _mgh(29, "discrete_integral", discrete_integral(30), s * (s - 1), (0,), None, 0.5),
        _mgh(30, "broyden_tridiagonal", broyden_tridiagonal(60), (-1,) * 60, (0,)),
        _mgh(31, "broyden_banded", broyden_banded(40), (-1,) * 40, (0,)),
        _mgh(32, "linear_full_rank", linear_full_rank(20, 30), (1,) * 20, (10,), (-1,) * 20),
        _mgh(33, "linear_rank1", linear_rank1(10, 20), (1,) * 10, (20 * 19 / (2 * 41),)),
        _mgh(34, "linear_rank1_zero", linear_rank1_zero(10, 20), (1,) * 10,
             ((400 + 60 - 6) / (2 * 37),)),
        _mgh(35, "chebyquad", chebyquad, ramp(8) / 9, (3.51687e-3,), None, 0.1),
    ]  # fmt: skip


def _dixon_szego_collection() -> list[TestFunction]:
    box = functools.partial(_boxed, DIXON_SZEGO)
    six = (0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573)
    return [
        box("branin", branin, 2, (-5, 0), (10, 15), (0.397887,), (math.pi, 2.275)),
        box("goldstein_price", goldstein_price, 2, -2, 2, (3,), (0, -1)),
        box("hartmann3", hartmann(HARTMANN3_A, HARTMANN3_P), 3, 0, 1, (-3.86278,),
            (0.114614, 0.555649, 0.852547)),
        box("hartmann6", hartmann(HARTMANN6_A, HARTMANN6_P), 6, 0, 1, (-3.32237,), six),
        box("shekel5", shekel(5), 4, 0, 10, (-10.1532,), 4),
        box("shekel7", shekel(7), 4, 0, 10, (-10.4029,), 4),
        box("shekel10", shekel(10), 4, 0, 10, (-10.5364,), 4),
    ]  # fmt: skip


def _library_collection() -> list[TestFunction]:
    box = functools.partial(_boxed, LIBRARY)
    i30, i40 = np.arange(1.0, 31), np.arange(1.0, 41)
    return [
        # with many local minima
        box("drop_wave", drop_wave, 2, -5.12, 5.12, (-1,), 0),
        box("griewank", griewank(100), 100, -600, 600, (0,), 0),
        box("langermann", langermann, 2, 0, 10),
        box("levy", levy, 20, -10, 10, (0,), 1),
        box("levy13", levy13, 2, -10, 10, (0,), 1),
        box("rastrigin", rastrigin, 50, -5.12, 5.12, (0,), 0),
        box("schaffer2", schaffer2, 2, -100, 100, (0,), 0),
        box("schaffer4", schaffer4, 2, -100, 100, (0.292579,), (0, 1.25313)),
        box("shubert", shubert, 2, -10, 10, (-186.7309,)),
        # bowls
        box("bohachevsky1", bohachevsky1, 2, -100, 100, (0,), 0),
        box("bohachevsky2", bohachevsky2, 2, -100, 100, (0,), 0),
        box("bohachevsky3", bohachevsky3, 2, -100, 100, (0,), 0),
        box("perm0", perm0(6, 10.0), 6, -6, 6, (0,), 1 / np.arange(1.0, 7)),
        box("rotated_ellipsoid", rotated_ellipsoid, 100, -65.536, 65.536, (0,), 0),
        box("sphere", sphere, 50, -5.12, 5.12, (0,), 0),
        box("sum_of_powers", sum_of_powers, 10, -1, 1, (0,), 0),
        box("sum_squares", sum_squares(100), 100, -10, 10, (0,), 0),
        box("trid", trid, 30, -900, 900, (-4930,), i30 * (31 - i30)),
        # plates
        box("booth", booth, 2, -10, 10, (0,), (1, 3)),
        box("matyas", matyas, 2, -10, 10, (0,), 0),
        box("mccormick", mccormick, 2, (-1.5, -3), (4, 4), (-1.9133,), (-0.54719, -1.54719)),
        box("power_sum", power_sum, 4, 0, 4, (0,), (1, 2, 2, 3)),
        box("zakharov", zakharov(20), 20, -5, 10, (0,), 0),
        # valleys
        box("camel3", camel3, 2, -5, 5, (0,), 0),
        box("camel6", camel6, 2, (-3, -2), (3, 2), (-1.0316,), (0.0898, -0.7126)),
        box("dixon_price", dixon_price(40), 40, -10, 10, (0,),
            2.0 ** -((2**i40 - 2) / 2**i40)),
        box("chained_rosenbrock", chained_rosenbrock, 80, -5, 10, (0,), 1),
        # steep
        box("de_jong5", de_jong5, 2, -65.536, 65.536, (0.998004,), -32),
        box("easom", easom, 2, -100, 100, (-1,), math.pi),
        box("michalewicz", michalewicz(10), 10, 0, math.pi, (-9.66015,)),
        # others
        # The value in circulation, -3.135474, is below what this formula takes anywhere.
        box("hartmann4", hartmann(np.array(HARTMANN6_A)[:, :4], np.array(HARTMANN6_P)[:, :4],
                                  1.1, 0.839), 4, 0, 1),
        box("perm", perm(4, 0.5), 4, -4, 4, (0,), (1, 2, 3, 4)),
        box("styblinski_tang", styblinski_tang, 60, -5, 5, (-39.16599 * 60,), -2.903534),
    ]  # fmt: skip


FUNCTIONS = {
    function.name: function
    for function in (*_mgh_collection(), *_dixon_szego_collection(), *_library_collection())
}


HELD_OUT = frozenset(
    sorted(FUNCTIONS, key=lambda name: hashlib.sha256(name.encode()).digest())[
        : len(FUNCTIONS) // 3
    ]
)


def select(names: Sequence[str] = (), *, held_out: bool | None = False) -> list[TestFunction]:
    """The functions of these names, or all; the held-out third only if asked (None: both parts)."""
    unknown = [name for name in names if name not in FUNCTIONS]
    if unknown:
        raise ValueError(f"functions={unknown[0]!r}: need names of {', '.join(FUNCTIONS)}")
    chosen = [FUNCTIONS[name] for name in names or FUNCTIONS]
    return [f for f in chosen if held_out is None or f.is_held_out == held_out]


def main() -> None:
    for function in FUNCTIONS.values():
        part = "held out" if function.is_held_out else ""
        print(f"{function.name:22s} {function.dim:4d}  {function.collection:20s} {part}")
    held_out = sum(function.is_held_out for function in FUNCTIONS.values())
    print(f"{len(FUNCTIONS)} functions, {held_out} of them held out")


if __name__ == "__main__":
    main()
