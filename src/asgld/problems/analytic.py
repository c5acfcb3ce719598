"""Single saddles given by a formula: where escape can be computed by hand."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asgld._require import require, require_at_least, require_positive
from asgld.problems.base import Facts, FiniteSum, Problem, Saddle, data_rng, project

__all__ = ["MonkeySaddle", "StrictSaddle"]


@dataclass(frozen=True)
class StrictSaddle(FiniteSum):
    r"""A strict saddle at 0, confined by quartic walls: the clean measure of escape time.

    f(x) = 1/2 \sum_i l_i y_i^2 + c/4 \sum_{i < m} y_i^4,   y = Q' x

    ============= ================== =========================================================
    symbol        option             meaning
    ============= ================== =========================================================
    d             dim                number of variables
    gamma         gamma              l_i = -gamma for i < m
    m             num_negative       number of escape directions
    l_max         curvature          largest positive eigenvalue; the others are spaced
                  condition          geometrically down to curvature / condition
    c             confinement        height of the walls
    Q             rotated, seed      identity, or an orthogonal matrix (m reflections) that sends
                                     the first m axes to a uniformly random frame
    b_i           num_samples        if given, f is the mean of n terms f + b_i' x, \sum_i b_i = 0
    z             noise              (mean \|b_i\|^2)^(1/2), the strength of the gradient noise
    \             noise_space        "all", or "stable": no noise along the escape directions
    ============= ================== =========================================================

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
        require_at_least(self, dim=1)
        negative = self.num_negative
        require(1 <= negative <= self.dim, "num_negative", negative, f"1 to dim={self.dim}")
        require_positive(self, "gamma", "curvature", "confinement")
        require_at_least(self, condition=1)
        if self.num_samples is not None:
            require(self.num_samples >= 2, "num_samples", self.num_samples, "None or at least 2")
        spaces = ("all", "stable")
        require(self.noise_space in spaces, "noise_space", self.noise_space, f"one of {spaces}")
        stable = self.noise_space == "stable"
        require(
            not (stable and negative == self.dim), "noise_space", "stable", "a stable direction"
        )

    @cached_property
    def _eigenvalues(self) -> Tensor:
        stable = np.geomspace(
            self.curvature / self.condition, self.curvature, self.dim - self.num_negative
        )
        return torch.from_numpy(np.concatenate([np.full(self.num_negative, -self.gamma), stable]))

    @cached_property
    def _quartic(self) -> Tensor:
        weights = torch.zeros(self.dim, dtype=torch.float64)
        weights[: self.num_negative] = self.confinement
        return weights

    @cached_property
    def _reflectors(self) -> tuple[Tensor, ...]:
        """Householder vectors of a QR factorization of a random (d, m) matrix."""
        if not self.rotated:
            return ()
        rng, reflectors = data_rng(self.seed), list[NDArray[np.float64]]()
        for column in range(self.num_negative):
            target = rng.standard_normal(self.dim)
            for unit in reflectors:
                target -= 2.0 * (target @ unit) * unit
            target[:column] = 0.0
            target[column] += math.copysign(float(np.linalg.norm(target)), target[column])
            reflectors.append(target / np.linalg.norm(target))
        return tuple(torch.from_numpy(unit) for unit in reflectors)

    def _to_eigenbasis(self, x: Tensor) -> Tensor:
        for unit in self._reflectors:
            x = x - 2.0 * (x @ unit).unsqueeze(-1) * unit
        return x

    def _from_eigenbasis(self, y: Tensor) -> Tensor:
        for unit in reversed(self._reflectors):
            y = y - 2.0 * (y @ unit).unsqueeze(-1) * unit
        return y

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
    def _rows(self) -> tuple[Tensor, ...]:
        rng = data_rng(self.seed, 1)
        tilts = torch.from_numpy(rng.standard_normal((self.num_samples or 0, self.dim)))
        if self.noise_space == "stable":
            tilts[:, : self.num_negative] = 0.0
        tilts = self._from_eigenbasis(tilts - tilts.mean(0))
        return (tilts * (self.noise / tilts.square().sum(-1).mean().sqrt()),)

    def _mean_value(self, x: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        return self.value(x) + project(rows[0], x).mean(-1)

    def _mean_grad(self, x: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        return self.grad(x) + rows[0].mean(-2)

    def _mean_hvp(self, x: Tensor, v: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        return self.hvp(x, v)  # the samples differ by linear terms

    def _draw_start(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return rng.standard_normal(shape) * math.sqrt(self.gamma / self.confinement / self.dim)

    def _state_facts(self) -> Facts:
        negative, well = self.num_negative, math.sqrt(self.gamma / self.confinement)
        depth = self.gamma**2 / (4.0 * self.confinement)
        radius = 2.0 * well

        def point(signs: tuple[float, ...]) -> Tensor:
            y = torch.zeros(self.dim, dtype=torch.float64)
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
                None if self.num_samples is None else float(self._rows[0].square().mean(0).max())
            ),
        )


@dataclass(frozen=True)
class MonkeySaddle(Problem):
    r"""A degenerate saddle, the control for classifiers: ways down without negative curvature.

    f(x) = x_1^3 - 3 x_1 x_2^2 + c/4 (x_1^2 + x_2^2)^2 + 1/2 \sum_{i > 2} x_i^2

    ============= ============ ==============================================================
    symbol        option       meaning
    ============= ============ ==============================================================
    d             dim          number of variables, at least 2
    c             confinement  height of the walls
    ============= ============ ==============================================================

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

    def _draw_start(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return rng.standard_normal(shape) / self.confinement

    def _state_facts(self) -> Facts:
        wall, radius = self.confinement, 4.0 / self.confinement
        minimum, origin = -27.0 / (4.0 * wall**3), torch.zeros(self.dim, dtype=torch.float64)
        angles = torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64) * (math.pi / 3.0)
        minimizers = torch.zeros(3, self.dim, dtype=torch.float64)
        minimizers[:, :2] = 3.0 / wall * torch.stack([angles.cos(), angles.sin()], dim=-1)
        return Facts(
            minimum=minimum,
            minimizers=minimizers,
            saddles=(Saddle(origin, 0.0, 0.0, minimum),),
            smoothness=max(1.0, 6.0 * radius + 3.0 * wall * radius**2),
            hessian_lipschitz=6.0 + 6.0 * wall * radius,
            radius=radius,
        )
