r"""The two models that second-order methods minimize at each step, and four ways to do it.

    cubic           m(s) = g's + s'Hs/2 + (M/6) \|s\|^3
    trust region    m(s) = g's + s'Hs/2   subject to   \|s\| <= R

Both have a global minimizer, characterized by a multiplier l >= 0 with

    (H + l I) s = -g,    H + l I positive semidefinite,

and l = M \|s\| / 2, or l (R - \|s\|) = 0.  The regularization is Nesterov and Polyak's M; it is
twice the sigma of Cartis, Gould and Toint and twice the rho of Carmon and Duchi, who divide the
cube by 3.

=========================  ==================  ====================================================
solver                     touches H through   for
=========================  ==================  ====================================================
cubic_exact                one `eigh`          the truth; re-solves share an :class:`Eigen`
trust_region_exact         one `eigh`          likewise
cubic_krylov               products H v        large d; exact once the Krylov space is H-invariant
cubic_descent              products H v        gradient descent on m
=========================  ==================  ====================================================

References:
    Y. Nesterov, B. Polyak, Cubic regularization of Newton method and its global performance
    (Mathematical Programming 108, 2006).  A. Conn, N. Gould, P. Toint, Trust-region methods (2000),
    section 7.3: the secular equation and the hard case.  Y. Carmon, J. Duchi, Gradient descent
    finds the cubic-regularized nonconvex Newton step (SIAM Journal on Optimization 29, 2019), and
    Analysis of Krylov subspace solutions of regularized nonconvex quadratic problems (2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from asgld.arguments import require
from asgld.curvature.lanczos import overlap

Hvp = Callable[[Tensor], Tensor]

# Parts of a vector below this share of it are rounding of the eigenvectors that gave them.
_NEGLIGIBLE = 1e-14
# Below this a gradient is zero: the multiplier it would ask for may underflow.
_TINY = 1e-250
# What the Krylov solver may overlook, as a share of the largest eigenvalue, and how probably.
_HIDDEN, _MISS = 1e-3, 1e-3
# The largest dimension of its space, and its residual in units of |g| + M |s|^2 / 2.
_MAX_KRYLOV, _RESIDUAL = 200, 1e-10
_EPS = torch.finfo(torch.float64).eps
_MAX_NEWTON = 500


@dataclass(frozen=True, eq=False)
class Solution:
    r"""A minimizer of the model, or an approximation of one.

    ================  ======================================================================
    field             meaning
    ================  ======================================================================
    step              s
    multiplier        l
    model_decrease    m(0) - m(s), at least 0 for the exact solvers
    residual          \|g + (H + l I) s\|, 0 up to rounding for the exact solvers
    num_hvp           products H v used
    is_hard_case      g has no part in the eigenspace of the smallest eigenvalue, and s needs one
    mirror            in the hard case the other solution, with the opposite part; else None
    ================  ======================================================================
    """

    step: Tensor
    multiplier: float
    model_decrease: float
    residual: float = 0.0
    num_hvp: int = 0
    is_hard_case: bool = False
    mirror: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Eigen:
    """Eigenvalues, ascending, and eigenvectors (columns) of a symmetric matrix."""

    values: Tensor
    vectors: Tensor

    @classmethod
    def of(cls, hessian: Tensor) -> Self:
        if hessian.dim() != 2 or hessian.shape[0] != hessian.shape[1]:
            raise ValueError(f"hessian of shape {tuple(hessian.shape)}: need a square matrix")
        values, vectors = torch.linalg.eigh(0.5 * (hessian + hessian.mT))
        return cls(values, vectors)

    @property
    def smallest(self) -> float:
        return float(self.values[0])

    def coordinates(self, vector: Tensor) -> Tensor:
        return self.vectors.mT @ vector


# ------------------------------------------------------------------------------------ exact solvers


def cubic_exact(gradient: Tensor, hessian: Tensor | Eigen, regularization: float) -> Solution:
    """Minimize the cubic model to rounding.

    >>> at_saddle = cubic_exact(torch.zeros(2), torch.diag(torch.tensor([-1.0, 2.0])), 4.0)
    >>> at_saddle.is_hard_case, at_saddle.multiplier, at_saddle.step.abs()
    (True, 1.0, tensor([0.5000, 0.0000]))
    """
    _check_positive("regularization", regularization)
    eigen = hessian if isinstance(hessian, Eigen) else Eigen.of(hessian)
    shift = max(0.0, -eigen.smallest)
    ratio = 2.0 / regularization
    return _solve(gradient, eigen, ratio * shift, ratio, regularization)


def trust_region_exact(gradient: Tensor, hessian: Tensor | Eigen, radius: float) -> Solution:
    """Minimize the quadratic model in the ball, to rounding.

    >>> hessian = torch.diag(torch.tensor([1.0, 2.0]))
    >>> trust_region_exact(torch.tensor([1.0, 2.0]), hessian, 10.0).step
    tensor([-1., -1.])
    >>> trust_region_exact(torch.tensor([0.0, 6.0]), hessian, 1.0).multiplier
    4.0
    """
    _check_positive("radius", radius)
    eigen = hessian if isinstance(hessian, Eigen) else Eigen.of(hessian)
    return _solve(gradient, eigen, radius, 0.0, 0.0)


def _solve(
    gradient: Tensor, eigen: Eigen, length: float, slope: float, regularization: float
) -> Solution:
    r"""Solve (H + l I) s = -g, \|s\| = length + slope t, in the shifted multiplier t >= 0.

    l = t + max(0, -lambda_1), so that the small differences lambda_i - lambda_1 that decide near
    the hard case are formed once, and t keeps all its digits.
    """
    if gradient.shape != eigen.values.shape:
        raise ValueError(
            f"gradient of shape {tuple(gradient.shape)}: need {tuple(eigen.values.shape)}, one "
            "entry per row of hessian"
        )
    shift = max(0.0, -eigen.smallest)
    gaps = (eigen.values + shift).clamp(min=0.0)
    parts = eigen.coordinates(gradient)
    norm = float(parts.norm())
    if norm < _TINY:
        parts = torch.zeros_like(parts)
    is_lowest = gaps <= _NEGLIGIBLE * float(eigen.values.abs().max())
    rest = torch.where(is_lowest, 0.0, parts)
    is_orthogonal = float(parts[is_lowest].norm()) <= _NEGLIGIBLE * norm
    limit = rest if is_orthogonal else parts
    missing = length**2 - float(_divide(limit, gaps).square().sum())

    escape = 0.0
    if missing >= 0.0:
        # No shift beyond max(0, -lambda_1) is needed: an interior point, or the hard case, where
        # the eigenvector of lambda_1 makes up for the missing length at no cost to the equation.
        parts, t = limit, 0.0
        escape = math.sqrt(missing) if shift > 0.0 else 0.0
    else:
        t = _secular_root(parts, gaps, length, slope)
    coordinates = -_divide(parts, gaps + t)
    coordinates[0] += escape
    step = eigen.vectors @ coordinates
    multiplier = shift + t
    size = float(coordinates.norm())
    # Equal to m(0) - m(s) by the equation for s, and free of cancellation.
    decrease = 0.5 * float(((gaps + t) * coordinates.square()).sum()) + 0.5 * multiplier * size**2
    decrease -= regularization / 6.0 * size**3
    return Solution(
        step=step,
        multiplier=multiplier,
        model_decrease=decrease,
        residual=float(((eigen.values + multiplier) * coordinates + parts).norm()),
        is_hard_case=escape > 0.0,
        mirror=step - 2.0 * escape * eigen.vectors[:, 0] if escape > 0.0 else None,
    )


def _secular_root(parts: Tensor, gaps: Tensor, length: float, slope: float) -> float:
    r"""The t > 0 with \|parts / (gaps + t)\| = length + slope t.

    The difference of the reciprocals of both sides increases and is concave, so that Newton's
    method from the left of the root converges, and never passes it.
    """
    # A single term of the sum, or the sum with the largest gap for all, gives a lower bound.
    heights = torch.cat((parts.abs(), parts.norm().reshape(1)))
    widths = torch.cat((gaps, gaps[-1:]))
    excess = (heights - length * widths).clamp(min=0.0)
    linear = length + slope * widths
    root = torch.sqrt(linear**2 + 4.0 * slope * excess)
    t = float(_divide(2.0 * excess, linear + root).max())
    for _ in range(_MAX_NEWTON):
        shifted = gaps + t
        terms = _divide(parts, shifted)
        size = float(terms.norm())
        target = length + slope * t
        if size <= target:
            break
        weights = (terms / size).square()
        decay = float(_divide(weights, shifted).sum()) + slope * size / target**2
        move = (size / target - 1.0) / decay
        t += move
        if move <= 2.0 * _EPS * t:
            break
    return t


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The quotient, with 0 / 0 = 0."""
    return torch.where(numerator == 0.0, 0.0, numerator / denominator)


# ------------------------------------------------------------------------------------ matrix-free


def cubic_krylov(
    gradient: Tensor, hvp: Hvp, regularization: float, *, probe: Tensor | None = None
) -> Solution:
    r"""Minimize the cubic model over the Krylov space of g, or of g and a probe.

    Lanczos with full orthogonalization; with two start vectors, the band form of it. All
    multipliers share the space, so that the projected model is solved exactly. It stops after 200
    products, or once the residual is rounding and, with a probe, a lower eigenvalue than those seen
    is unlikely.

    Args:
        gradient: g, of shape (d,).
        hvp: v -> H v.
        regularization: M.
        probe: a random vector, or better an approximation of the lowest eigenvector. Without one
            neither the hard case nor the way out of g = 0 can be seen: the Krylov space of g never
            leaves the invariant subspaces that hold g.

    >>> hessian = torch.diag(torch.tensor([-1.0, 2.0, 3.0], dtype=torch.float64))
    >>> gradient = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
    >>> solution = cubic_krylov(gradient, hessian.mv, 1.0, probe=torch.ones_like(gradient))
    >>> solution.num_hvp, round(float(solution.step.norm()), 9)
    (3, 2.0)
    """
    _check_positive("regularization", regularization)
    max_dim = min(len(gradient), _MAX_KRYLOV)
    basis: list[Tensor] = []
    for vector in (gradient, probe):
        if vector is not None:
            _append(basis, vector)
    solution, is_done = Solution(torch.zeros_like(gradient), 0.0, 0.0), False
    products: list[Tensor] = []
    next_check = len(basis)  # what the probe tells is known once it was multiplied
    while not is_done and len(products) < min(len(basis), max_dim):
        products.append(hvp(basis[len(products)]))
        _append(basis, products[-1])
        is_last = len(products) == min(len(basis), max_dim)
        if is_last or len(products) >= next_check:
            next_check = len(products) + max(1, len(products) // 8)
            solution, is_done = _project(gradient, basis, products, regularization, probe)
    return solution


def _append(basis: list[Tensor], vector: Tensor) -> None:
    """Add the part of the vector that is new, normalized, if there is one."""
    size = float(vector.norm())
    if size < _TINY:
        return
    new = vector / size
    frame = torch.stack(basis) if basis else vector.new_zeros(0, len(vector))
    for _ in range(2):  # twice is enough (Kahan, Parlett)
        new = new - frame.mT @ (frame @ new)
        size = float(new.norm())
        if size <= 1e2 * _EPS:
            return
        new = new / size
    basis.append(new)


def _project(
    gradient: Tensor,
    basis: list[Tensor],
    products: list[Tensor],
    regularization: float,
    probe: Tensor | None,
) -> tuple[Solution, bool]:
    """Solve the model in the span of the vectors that were multiplied; say if that is enough."""
    num = len(products)
    frame, images = torch.stack(basis[:num]), torch.stack(products)
    eigen = Eigen.of(frame @ images.mT)
    inner = cubic_exact(frame @ gradient, eigen, regularization)
    step = frame.mT @ inner.step
    residual = float((gradient + images.mT @ inner.step + inner.multiplier * step).norm())
    size = float(step.norm())
    is_done = residual <= _RESIDUAL * (float(gradient.norm()) + 0.5 * regularization * size**2)
    if probe is not None and len(basis) > num:
        coupling = images @ torch.stack(basis[num:]).mT
        is_done &= not _may_hide_lower(eigen, frame @ (probe / probe.norm()), coupling, len(probe))
    mirror = None if inner.mirror is None else frame.mT @ inner.mirror
    return replace(inner, step=step, residual=residual, num_hvp=num, mirror=mirror), is_done


def _may_hide_lower(eigen: Eigen, probe: Tensor, coupling: Tensor, dim: int) -> bool:
    r"""Whether H may have an eigenvalue below the Ritz values, by 0.1 % of the largest or more.

    A unit eigenvector v of such a lambda has (T - lambda) V'v = -B z with \|z\| <= 1, for the
    projection T and its coupling B to the next basis vectors, so that its part along the probe is
    at most \|p'(T - lambda)^{-1} B\|: too little to be true of a random probe.
    """
    least = overlap(max(dim, 3), _MISS)
    weights, sides = eigen.coordinates(probe), eigen.vectors.mT @ coupling
    depth = _HIDDEN * float(eigen.values.abs().max())
    for _ in range(round(-math.log2(_HIDDEN)) + 1):
        part = (weights / (eigen.values - eigen.smallest + depth)) @ sides
        if float(part.norm()) > least:
            return True
        depth *= 2.0
    return False


def cubic_descent(
    gradient: Tensor,
    hvp: Hvp,
    regularization: float,
    *,
    smoothness: float,
    perturbation: Tensor | None = None,
    from_zero: bool = False,
    max_steps: int = 1000,
    tolerance: float = 0.0,
    target_decrease: float = math.inf,
) -> Solution:
    r"""Minimize the cubic model by gradient descent (Carmon and Duchi).

    .. math:: s \leftarrow s - h\, (b + H s + \tfrac{M}{2} \|s\| s), \qquad b = g + p, \qquad
              h = 1 / 4 (\|H\| + M R / 2) \text{ with R a bound on the solution}

    Args:
        gradient: g, of shape (d,).
        hvp: v -> H v.
        regularization: M.
        smoothness: at least \|H\|; sets the step size.
        perturbation: p, a small random vector, without which the hard case and g = 0 cannot be
            left. The decrease and the residual refer to g.
        from_zero: start at 0 instead of at the Cauchy point, the minimizer along -b.
        max_steps: each costs one product.
        tolerance: stop once the gradient of the (perturbed) model is at most this.
        target_decrease: stop once the model has fallen by this much.

    >>> hessian = torch.diag(torch.tensor([-1.0, 1.0], dtype=torch.float64))
    >>> gradient = torch.tensor([0.1, 1.0], dtype=torch.float64)
    >>> by_descent = cubic_descent(gradient, hessian.mv, 1.0, smoothness=1.0)
    >>> bool(torch.allclose(by_descent.step, cubic_exact(gradient, hessian, 1.0).step))
    True
    """
    _check_positive("regularization", regularization)
    _check_positive("smoothness", smoothness)
    target = gradient if perturbation is None else gradient + perturbation
    size = float(target.norm())
    if size < _TINY:
        return Solution(torch.zeros_like(gradient), 0.0, 0.0)
    half = 0.5 * regularization
    num_hvp = 0
    if from_zero:
        step, image = torch.zeros_like(target), torch.zeros_like(target)
    else:
        direction = -target / size
        image = hvp(direction)
        num_hvp += 1
        length = cauchy_length(size, float(direction @ image), regularization)
        step, image = length * direction, length * image
    reach = smoothness / (2.0 * half)
    radius = reach + math.sqrt(reach**2 + size / half)
    step_size = 1.0 / (4.0 * (smoothness + half * radius))
    for _ in range(max_steps):
        slope = target + image + half * step.norm() * step
        if float(slope.norm()) <= tolerance:
            break
        if _cubic_decrease(gradient, step, image, regularization) >= target_decrease:
            break
        step = step - step_size * slope
        image = hvp(step)
        num_hvp += 1
    multiplier = half * float(step.norm())
    return Solution(
        step=step,
        multiplier=multiplier,
        model_decrease=_cubic_decrease(gradient, step, image, regularization),
        residual=float((gradient + image + multiplier * step).norm()),
        num_hvp=num_hvp,
    )


def cauchy_length(gradient_norm: float, curvature: float, regularization: float) -> float:
    r"""The t >= 0 that minimizes -\|g\| t + curvature t^2/2 + M t^3/6, without cancellation."""
    root = math.sqrt(curvature**2 + 2.0 * regularization * gradient_norm)
    if curvature > 0.0:
        return 2.0 * gradient_norm / (curvature + root)
    return (root - curvature) / regularization


def _cubic_decrease(gradient: Tensor, step: Tensor, image: Tensor, regularization: float) -> float:
    cube = float(step.norm()) ** 3
    return -float(gradient @ step + 0.5 * (step @ image)) - regularization / 6.0 * cube


def _check_positive(name: str, value: float) -> None:
    require(0.0 < value < math.inf, name, value, "a positive finite number")
