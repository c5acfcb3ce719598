"""Functions given by a formula: single saddles, and chains of them.

In a chain each variable speaks to its neighbors only, so the Hessian is tridiagonal.  The constants
of a chain come from Gershgorin's discs: its Hessian has entries (i, i), (i, i+1), its third
derivative has entries (i, i, i), (i, i, i+1), (i, i+1, i+1), and bounds on them bound M and rho.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.polynomial import Polynomial
from torch import Tensor

from asgld.arguments import require, require_at_least, require_positive
from asgld.problems.base import (
    Facts,
    FiniteSum,
    FloatArray,
    Problem,
    Rng,
    Rows,
    Saddle,
    critical_point,
    data_rng,
    gaussian,
    orthonormal,
    project,
    zeros,
)

__all__ = ["MonkeySaddle", "Octopus", "Rosenbrock", "StrictSaddle", "WorstCaseChain"]


@dataclass(frozen=True)
class StrictSaddle(FiniteSum):
    r"""A strict saddle at 0, confined by quartic walls: the clean measure of escape time.

    f(x) = 1/2 \sum_i l_i y_i^2 + c/4 \sum_{i < m} y_i^4,   y = Q' x

    Args:
        dim: d, the number of variables.
        gamma: l_i = -gamma for i < m.
        num_negative: m, the number of escape directions.
        curvature: l_max, the largest positive eigenvalue.
        condition: the positive eigenvalues fall geometrically to curvature / condition.
        confinement: c, the height of the walls.
        rotated: Q is the identity, or an orthogonal matrix (m reflections) that sends the first m
            axes to a uniformly random frame.
        num_samples: if given, f is the mean of n terms f + b_i' x with \sum_i b_i = 0.
        noise: (mean \|b_i\|^2)^(1/2), the strength of the gradient noise.
        noise_space: "all", or "stable": no noise along the escape directions.

    Facts: the critical points have y_i in {0, \pm (gamma/c)^(1/2)} for i < m and 0 elsewhere.
    Listed are those with the first j < m entries positive, value -j gamma^2 / 4c and smallest
    eigenvalue -gamma (sign and order give the rest), and all 2^m minimizers (one if m > 6).  In the
    ball of radius R = 2 (gamma/c)^(1/2): M = max(l_max, 3cR^2 - gamma), rho = 6cR.

    References:
        R. Ge, F. Huang, C. Jin, Y. Yuan, Escaping from saddle points (COLT 2015): the strict-saddle
        property.  H. Daneshmand, J. Kohler, A. Lucchi, T. Hofmann, Escaping saddles with stochastic
        gradients (ICML 2018): why noise must reach the escape direction.
    """

    name: ClassVar[str] = "strict-saddle"
    dim: int = 16
    gamma: float = 1.0
    num_negative: int = 1
    curvature: float = 1.0
    condition: float = 1.0
    confinement: float = 1.0
    rotated: bool = False
    num_samples: int | None = None
    noise: float = 1.0
    noise_space: Literal["all", "stable"] = "all"
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, dim=1, condition=1)
        require_positive(self, "gamma", "curvature", "confinement")
        negative, count, space = self.num_negative, self.num_samples, self.noise_space
        require(1 <= negative <= self.dim, "num_negative", negative, f"1 to dim={self.dim}")
        require(count is None or count >= 2, "num_samples", count, "None or at least 2")
        require(space in ("all", "stable"), "noise_space", space, "'all' or 'stable'")
        has_room = space == "all" or negative < self.dim
        require(has_room, "noise_space", space, "a stable direction, num_negative < dim")

    @cached_property
    def _eigenvalues(self) -> Tensor:
        stable = np.geomspace(
            self.curvature / self.condition, self.curvature, self.dim - self.num_negative
        )
        return torch.from_numpy(np.concatenate([np.full(self.num_negative, -self.gamma), stable]))

    @cached_property
    def _quartic(self) -> Tensor:
        weights = zeros(self.dim)
        weights[: self.num_negative] = self.confinement
        return weights

    @cached_property
    def _reflectors(self) -> tuple[Tensor, ...]:
        """Householder vectors of a QR factorization of a random (d, m) matrix."""
        if not self.rotated:
            return ()
        rng, reflectors = data_rng(self.seed), list[FloatArray]()
        for column in range(self.num_negative):
            target = rng.standard_normal(self.dim)
            for unit in reflectors:
                target -= 2.0 * (target @ unit) * unit
            target[:column] = 0.0
            target[column] += math.copysign(float(np.linalg.norm(target)), target[column])
            reflectors.append(target / np.linalg.norm(target))
        return tuple(torch.from_numpy(unit) for unit in reflectors)

    def _to_eigenbasis(self, x: Tensor) -> Tensor:
        return _reflected(x, self._reflectors)

    def _from_eigenbasis(self, y: Tensor) -> Tensor:
        return _reflected(y, self._reflectors[::-1])

    def value(self, x: Tensor) -> Tensor:
        squares = self._to_eigenbasis(x).square()
        return (squares * (0.5 * self._eigenvalues + 0.25 * self._quartic * squares)).sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        y = self._to_eigenbasis(x)
        return self._from_eigenbasis(y * (self._eigenvalues + self._quartic * y.square()))

    def hvp(self, x: Tensor, v: Tensor) -> Tensor:
        y, w = self._to_eigenbasis(x), self._to_eigenbasis(v)
        return self._from_eigenbasis(w * (self._eigenvalues + 3.0 * self._quartic * y.square()))

    @cached_property
    def rows(self) -> Rows:
        tilts = gaussian(data_rng(self.seed, 1), self.num_samples or 0, self.dim)
        if self.noise_space == "stable":
            tilts[:, : self.num_negative] = 0.0
        tilts = self._from_eigenbasis(tilts - tilts.mean(0))
        return (tilts * (self.noise / tilts.square().sum(-1).mean().sqrt()),)

    def mean_value(self, x: Tensor, rows: Rows) -> Tensor:
        return self.value(x) + project(rows[0], x).mean(-1)

    def mean_grad(self, x: Tensor, rows: Rows) -> Tensor:
        return self.grad(x) + rows[0].mean(-2)

    def mean_hvp(self, x: Tensor, v: Tensor, rows: Rows) -> Tensor:
        return self.hvp(x, v)  # the samples differ by linear terms

    def draw_start(self, rng: Rng, shape: tuple[int, ...]) -> FloatArray:
        return rng.standard_normal(shape) * math.sqrt(self.gamma / self.confinement / self.dim)

    def state_facts(self) -> Facts:
        negative, well = self.num_negative, math.sqrt(self.gamma / self.confinement)
        depth = self.gamma**2 / (4.0 * self.confinement)
        radius = 2.0 * well

        def point(signs: tuple[float, ...]) -> Tensor:
            y = zeros(self.dim)
            y[: len(signs)] = well * torch.tensor(signs, dtype=torch.float64)
            return self._from_eigenbasis(y)

        patterns = itertools.product((1.0, -1.0), repeat=negative)
        minimizers = patterns if negative <= 6 else iter([(1.0,) * negative])
        return Facts(
            minimum=-negative * depth,
            minimizers=torch.stack([point(signs) for signs in minimizers]),
            saddles=tuple(
                Saddle(point((1.0,) * j), -j * depth, -self.gamma, -(j + 1) * depth)
                for j in range(negative)
            ),
            smoothness=max(self.curvature, 3.0 * self.confinement * radius**2 - self.gamma),
            hessian_lipschitz=6.0 * self.confinement * radius,
            radius=radius,
            gradient_variance=(
                None if self.num_samples is None else float(self.rows[0].square().mean(0).max())
            ),
        )


def _reflected(x: Tensor, units: tuple[Tensor, ...]) -> Tensor:
    for unit in units:
        x = x - 2.0 * (x @ unit).unsqueeze(-1) * unit
    return x


@dataclass(frozen=True)
class MonkeySaddle(Problem):
    r"""A degenerate saddle, the control for classifiers: ways down without negative curvature.

    f(x) = x_1^3 - 3 x_1 x_2^2 + c/4 (x_1^2 + x_2^2)^2 + 1/2 \sum_{i > 2} x_i^2

    Args:
        dim: d, the number of variables, at least 2.
        confinement: c, the height of the walls.

    Facts: the Hessian at 0 has a double eigenvalue 0 and else 1: a degenerate saddle, not a
    minimum. The other critical points are the three minimizers at distance 3/c, with value -27 /
    4c^3.  In the ball of radius R = 4/c: M = max(1, 6R + 3cR^2), rho = 6 + 6cR.

    References:
        D. Hilbert, S. Cohn-Vossen, Anschauliche Geometrie (1932), section 29.
    """

    name: ClassVar[str] = "monkey-saddle"
    dim: int = 2
    confinement: float = 1.0

    def __post_init__(self) -> None:
        require_at_least(self, dim=2)
        require_positive(self, "confinement")

    def value(self, x: Tensor) -> Tensor:
        a, b, rest = x[..., 0], x[..., 1], x[..., 2:]
        walls = 0.25 * self.confinement * (a * a + b * b).square()
        return a**3 - 3.0 * a * b * b + walls + 0.5 * rest.square().sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        a, b, rest = x[..., :1], x[..., 1:2], x[..., 2:]
        push = self.confinement * (a * a + b * b)
        return torch.cat([3.0 * (a * a - b * b) + push * a, -6.0 * a * b + push * b, rest], dim=-1)

    def draw_start(self, rng: Rng, shape: tuple[int, ...]) -> FloatArray:
        return rng.standard_normal(shape) / self.confinement

    def state_facts(self) -> Facts:
        wall, radius = self.confinement, 4.0 / self.confinement
        minimum = -27.0 / (4.0 * wall**3)
        angles = torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64) * (math.pi / 3.0)
        minimizers = zeros(3, self.dim)
        minimizers[:, :2] = 3.0 / wall * torch.stack([angles.cos(), angles.sin()], dim=-1)
        return Facts(
            minimum=minimum,
            minimizers=minimizers,
            saddles=(Saddle(zeros(self.dim), 0.0, 0.0, minimum),),
            smoothness=max(1.0, 6.0 * radius + 3.0 * wall * radius**2),
            hessian_lipschitz=6.0 + 6.0 * wall * radius,
            radius=radius,
        )


class Chain(Problem):
    """A function of links z = Q' x whose Hessian in z is tridiagonal."""

    @property
    def _frame(self) -> Tensor | None:
        """Q; None for the identity."""
        return None

    @abstractmethod
    def _bands(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Diagonal (..., d) and off-diagonal (..., d - 1) of the Hessian in z."""

    def hvp(self, x: Tensor, v: Tensor) -> Tensor:
        diagonal, side = self._bands(x)
        w = v if self._frame is None else v @ self._frame
        product = diagonal * w
        product[..., :-1] += side * w[..., 1:]
        product[..., 1:] += side * w[..., :-1]
        return product if self._frame is None else product @ self._frame.mT

    def hessian(self, x: Tensor) -> Tensor:
        diagonal, side = self._bands(x)
        bands = diagonal.diag_embed() + side.diag_embed(1) + side.diag_embed(-1)
        return bands if self._frame is None else self._frame @ bands @ self._frame.mT


def _third_derivative_bound(pure: float, mixed: float) -> float:
    """Bound on rho from |f_iii| <= pure and |f_iij| + |f_ijj| <= mixed for neighbors i, j.

    The derivative of the Hessian along a unit vector v has in row i the absolute sum
    (pure + mixed) |v_i| + mixed (|v_{i-1}| + |v_{i+1}|); Cauchy-Schwarz does the rest.
    """
    return math.hypot(pure + mixed, mixed, mixed)


@dataclass(frozen=True)
class Octopus(Chain):
    r"""d strict saddles in a row, each met on the way out of the one before.

    f(x) = \sum_i [ (1 - S_{i-1}) L x_i^2 + S_{i-1} g(|x_i|) ],   S_0 = 1,  S_i = S(|x_i|)

    g(a) = -gamma a^2 up to tau, L (a - 4 tau)^2 - nu from 2 tau on, a C^2 quartic between;
    S(a) = t^3 (10 - 15 t + 6 t^2) with t = (a - tau)/tau clipped to [0, 1].

    Args:
        dim: d, the number of variables, and of saddles.
        tau: width of a saddle region.
        curvature: L; the stable eigenvalues are 2 L.
        gamma: the unstable eigenvalue is -2 gamma; 1 if neither gamma nor eps is given.
        eps, rho: coupled form, gamma = (rho eps)^(1/2) / 2, so that the saddles lie on the edge of
            the usual second-order condition at accuracy eps.

    Inside the tube of the original construction f is that function; the smooth switch S extends it
    to all of R^d.  With nu = (13 gamma + 37 L) tau^2 / 6 the minimum is -d nu, attained at 4 tau
    (\pm 1, ..., \pm 1): the only local minima, of which the positive one is listed. Saddle j has
    its first j entries 4 tau (up to sign) and zeros after, value -j nu, smallest eigenvalue -2
    gamma; descent leads from it to saddle j + 1.  M and rho are stated for the box |x_i| <= 5 tau
    and come from bounds on the pieces (off the tube the function is far steeper: at d = 6 and
    default options the largest curvature sampled is about 35 in the tube, 490 in the box).

    References:
        S. Du, C. Jin, J. Lee, M. Jordan, B. Poczos, A. Singh, Gradient descent can take exponential
        time to escape saddle points (NeurIPS 2017).
    """

    name: ClassVar[str] = "octopus"
    dim: int = 8
    tau: float = math.e
    curvature: float = math.e
    gamma: float | None = None
    eps: float | None = None
    rho: float = 1.0

    def __post_init__(self) -> None:
        require_at_least(self, dim=1)
        require_positive(self, "tau", "rho")
        is_one = self.gamma is None or self.eps is None
        require(is_one, "gamma", self.gamma, f"either gamma or eps, not both (eps={self.eps})")
        require(self.eps is None or self.eps > 0, "eps", self.eps, "eps > 0")
        slope = self._gamma
        require(slope > 0, "gamma", slope, "gamma > 0")
        require(self.curvature >= slope, "curvature", self.curvature, f"at least gamma={slope}")

    @property
    def _gamma(self) -> float:
        if self.eps is not None:
            return math.sqrt(self.rho * self.eps) / 2.0
        return 1.0 if self.gamma is None else self.gamma

    @property
    def _depth(self) -> float:
        return (13.0 * self._gamma + 37.0 * self.curvature) * self.tau**2 / 6.0

    @property
    def _joint(self) -> tuple[float, float]:
        """Coefficients of (a - tau)^3 and (a - tau)^4 that make g twice differentiable."""
        cubic = (10.0 * self._gamma - 14.0 * self.curvature) / (3.0 * self.tau)
        return cubic, (5.0 * self.curvature - 3.0 * self._gamma) / (2.0 * self.tau**2)

    def _arm(self, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """g(a) - L a^2 and its first two derivatives."""
        level, tau, drop = self.curvature, self.tau, self._gamma + self.curvature
        cubic, quartic = self._joint
        u, is_near = (a - tau).clamp(min=0.0), a <= 2.0 * tau
        value = -drop * a * a + u**3 * (cubic + quartic * u)
        slope = -2.0 * drop * a + u**2 * (3.0 * cubic + 4.0 * quartic * u)
        bend = -2.0 * drop + u * (6.0 * cubic + 12.0 * quartic * u)
        return (
            torch.where(is_near, value, 8.0 * level * tau * (2.0 * tau - a) - self._depth),
            torch.where(is_near, slope, -8.0 * level * tau),
            torch.where(is_near, bend, 0.0),
        )

    def _switch(self, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """S(a) and its first two derivatives."""
        t = ((a - self.tau) / self.tau).clamp(0.0, 1.0)
        rest = 1.0 - t
        return (
            t**3 * (10.0 - 15.0 * t + 6.0 * t * t),
            30.0 / self.tau * (t * rest) ** 2,
            60.0 / self.tau**2 * t * rest * (rest - t),
        )

    def value(self, x: Tensor) -> Tensor:
        a = x.abs()
        arm, switch = self._arm(a)[0], self._switch(a[..., :-1])[0]
        return self.curvature * a.square().sum(-1) + arm[..., 0] + (switch * arm[..., 1:]).sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        a = x.abs()
        (arm, slope, _), (switch, turn, _) = self._arm(a), self._switch(a[..., :-1])
        result = 2.0 * self.curvature * a
        result[..., 0] += slope[..., 0]
        result[..., 1:] += switch * slope[..., 1:]
        result[..., :-1] += turn * arm[..., 1:]
        return x.sign() * result

    def _bands(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = x.abs()
        (arm, slope, bend), (switch, turn, twist) = self._arm(a), self._switch(a[..., :-1])
        first = 2.0 * self.curvature + bend[..., :1]
        diagonal = torch.cat([first, 2.0 * self.curvature + switch * bend[..., 1:]], dim=-1)
        diagonal[..., :-1] += twist * arm[..., 1:]
        sign = x.sign()
        return diagonal, sign[..., :-1] * sign[..., 1:] * turn * slope[..., 1:]

    def draw_start(self, rng: Rng, shape: tuple[int, ...]) -> FloatArray:
        return rng.uniform(size=shape)

    def state_facts(self) -> Facts:
        tau, level, radius = self.tau, self.curvature, 5.0 * self.tau
        cubic, quartic = self._joint
        shift, near = Polynomial([-tau, 1.0]), Polynomial([0.0, 0.0, -(self._gamma + level)])
        far = Polynomial([16.0 * level * tau**2 - self._depth, -8.0 * level * tau])
        middle = near + shift**3 * (cubic + quartic * shift)
        pieces = ((near, 0.0, tau), (middle, tau, 2.0 * tau), (far, 2.0 * tau, radius))

        def arm(order: int, offset: float = 0.0) -> float:
            """Largest |k-th derivative of the arm + offset| in the box."""
            return max(_largest(piece.deriv(order) + offset, lo, hi) for piece, lo, hi in pieces)

        # Largest first, second and third derivative of S.
        switch = (15.0 / (8.0 * tau), 10.0 / math.sqrt(3.0) / tau**2, 60.0 / tau**3)
        if self.dim == 1:
            switch = (0.0, 0.0, 0.0)  # nothing to switch
        bend = max(2.0 * level, arm(2, 2.0 * level)) + switch[1] * arm(0)
        third = arm(3) + switch[2] * arm(0)
        mixed = switch[0] * arm(2) + switch[1] * arm(1)
        points = torch.full((self.dim, self.dim), 4.0 * tau, dtype=torch.float64).tril(-1)
        return Facts(
            minimum=-self.dim * self._depth,
            minimizers=torch.full((1, self.dim), 4.0 * tau, dtype=torch.float64),
            saddles=tuple(
                Saddle(points[j], -j * self._depth, -2.0 * self._gamma, -(j + 1) * self._depth)
                for j in range(self.dim)
            ),
            smoothness=bend + 2.0 * switch[0] * arm(1),
            hessian_lipschitz=_third_derivative_bound(third, mixed),
            radius=radius,
            norm=math.inf,
        )


def _largest(polynomial: Polynomial, lo: float, hi: float) -> float:
    """max |polynomial| on [lo, hi]."""
    turning = np.asarray(polynomial.deriv().roots(), dtype=np.complex128)
    inside = [root.real for root in turning if abs(root.imag) < 1e-9 and lo < root.real < hi]
    return max(abs(float(polynomial(a))) for a in (lo, hi, *inside))


@dataclass(frozen=True)
class Rosenbrock(Chain):
    r"""The Rosenbrock chain: a long curved valley that tests convergence rather than escape.

    f(x) = \sum_{i < d} [ 100 (x_{i+1} - x_i^2)^2 + (1 - x_i)^2 ]

    Args:
        dim: d, the number of variables, at least 2.

    Facts: minimum 0 at (1, ..., 1).  From d = 4 on there is another local minimum near
    (-1, 1, ..., 1), with value about 4, and a strict saddle between the two, found by Newton's
    method and listed for 4 <= d <= 1000; other saddles exist for large d and are not listed.
    M and rho are stated for the box |x_i| <= 2.

    References:
        H. Rosenbrock, An automatic method for finding the greatest or least value of a function
        (Computer J. 1960).  S. Kok, C. Sandrock, Locating and characterizing the stationary points
        of the extended Rosenbrock function (Evol. Comput. 2009).
    """

    name: ClassVar[str] = "rosenbrock"
    dim: int = 4

    def __post_init__(self) -> None:
        require_at_least(self, dim=2)

    def value(self, x: Tensor) -> Tensor:
        head, tail = x[..., :-1], x[..., 1:]
        return (100.0 * (tail - head.square()).square() + (1.0 - head).square()).sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        head, tail = x[..., :-1], x[..., 1:]
        gap, end = 200.0 * (tail - head.square()), torch.zeros_like(x[..., :1])
        down = -2.0 * head * gap - 2.0 * (1.0 - head)
        return torch.cat([down, end], dim=-1) + torch.cat([end, gap], dim=-1)

    def _bands(self, x: Tensor) -> tuple[Tensor, Tensor]:
        head, tail = x[..., :-1], x[..., 1:]
        diagonal = torch.cat([1200.0 * head.square() - 400.0 * tail + 2.0, x[..., :1] * 0.0], -1)
        diagonal[..., 1:] += 200.0
        return diagonal, -400.0 * head

    def draw_start(self, rng: Rng, shape: tuple[int, ...]) -> FloatArray:
        return rng.uniform(-2.0, 2.0, size=shape)

    def state_facts(self) -> Facts:
        radius, ones = 2.0, torch.ones(self.dim, dtype=torch.float64)
        return Facts(
            minimum=0.0,
            minimizers=ones.unsqueeze(0),
            saddles=self._valley_saddle() if 4 <= self.dim <= 1000 else (),
            smoothness=1200.0 * radius**2 + 1200.0 * radius + 202.0,
            hessian_lipschitz=_third_derivative_bound(2400.0 * radius, 400.0),
            radius=radius,
            norm=math.inf,
        )

    def _valley_saddle(self) -> tuple[Saddle, ...]:
        guess = torch.full((self.dim,), 0.01, dtype=torch.float64)
        guess[:4] = torch.tensor([-0.57, 0.36, 0.13, 0.03], dtype=torch.float64)
        other = torch.ones(self.dim, dtype=torch.float64)
        other[0] = -1.0
        saddle, dent = critical_point(self, guess), critical_point(self, other)
        assert saddle is not None
        assert dent is not None
        lowest = float(torch.linalg.eigvalsh(self.hessian(saddle))[0])
        return (Saddle(saddle, float(self.value(saddle)), lowest, float(self.value(dent))),)


@dataclass(frozen=True)
class WorstCaseChain(Chain):
    r"""The chain on which no gradient method can be fast: it shows the exponent of 1/eps.

    f(x) = s^3 F(Q' x / s),  s = eps^(1/2)

    F(z) = -Psi(1) Phi(z_1) + \sum_{i > 1} [ Psi(-z_{i-1}) Phi(-z_i) - Psi(z_{i-1}) Phi(z_i) ]

    Psi(t) = exp(1 - (2t - 1)^-2) for t > 1/2, else 0;  Phi(t) = e^(1/2) \int_{-oo}^t e^(-s^2/2) ds

    Args:
        eps: the accuracy the instance is built for.
        length: T, the number of links and of variables; 4 eps^(-3/2), rounded up, if None.
        rotated: Q is the identity, or a random orthogonal matrix.

    Facts: \|grad f\| > eps while any |z_i| < 1, so a method that starts at 0 and sees one new link
    per gradient needs T of them.  Everywhere M = 152 s and rho = 1960 (independent of eps).  f(0) -
    inf f is below 12 T s^3; the minimum itself and the saddles are unknown (None, empty).

    References:
        Y. Carmon, J. Duchi, O. Hinder, A. Sidford, Lower bounds for finding stationary points I
        (Math. Program. 2020).
    """

    name: ClassVar[str] = "worst-case-chain"
    eps: float = 0.25
    length: int | None = None
    rotated: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive(self, "eps")
        require(self.length is None or self.length >= 1, "length", self.length, "None or >= 1")

    @property
    def dim(self) -> int:
        return math.ceil(4.0 * math.pow(self.eps, -1.5)) if self.length is None else self.length

    @cached_property
    def _frame(self) -> Tensor | None:
        return orthonormal(data_rng(self.seed), self.dim, self.dim) if self.rotated else None

    def _links(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """z, the sign of each gate z_{i-1}, and Phi(sign z_i) behind it: Psi acts on |z_{i-1}|."""
        z = (x if self._frame is None else x @ self._frame) / math.sqrt(self.eps)
        sign = z[..., :-1].sign()
        return z, sign, _phi(sign * z[..., 1:])

    def value(self, x: Tensor) -> Tensor:
        z, sign, behind = self._links(x)
        total = _phi(z[..., 0]) + (sign * _psi(z[..., :-1].abs())[0] * behind).sum(-1)
        return -math.pow(self.eps, 1.5) * total

    def grad(self, x: Tensor) -> Tensor:
        z, _, behind = self._links(x)
        gate, slope, _ = _psi(z[..., :-1].abs())
        result = _phi_slope(z)
        result[..., 1:] *= gate
        result[..., :-1] += slope * behind
        return -self.eps * (result if self._frame is None else result @ self._frame.mT)

    def _bands(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z, sign, behind = self._links(x)
        gate, slope, bend = _psi(z[..., :-1].abs())
        hill = _phi_slope(z)
        diagonal = z * hill
        diagonal[..., 1:] *= gate
        diagonal[..., :-1] -= sign * bend * behind
        scale = math.sqrt(self.eps)
        return scale * diagonal, -scale * sign * slope * hill[..., 1:]

    def draw_start(self, rng: Rng, shape: tuple[int, ...]) -> FloatArray:
        return np.zeros(shape)

    def state_facts(self) -> Facts:
        return Facts(smoothness=152.0 * math.sqrt(self.eps), hessian_lipschitz=1960.0)


def _psi(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """exp(1 - (2t - 1)^-2) right of 1/2, else 0, and its first two derivatives."""
    is_open = t > 0.5
    # 1 in place of widths <= 0 keeps the masked branch finite.
    inverse = torch.where(is_open, 2.0 * t - 1.0, 1.0).reciprocal()
    square = inverse * inverse
    value = torch.where(is_open, torch.exp(1.0 - square), 0.0)
    slope = 4.0 * square * inverse * value
    return value, slope, (16.0 * square - 24.0) * square * square * value


def _phi(t: Tensor) -> Tensor:
    return math.sqrt(math.e * math.pi / 2.0) * torch.erfc(-t / math.sqrt(2.0))


def _phi_slope(t: Tensor) -> Tensor:
    return torch.exp(0.5 - 0.5 * t * t)
