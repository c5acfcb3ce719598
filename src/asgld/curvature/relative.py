r"""A verdict without units: is f a bowl around x?

Multiply f by c, or the coordinates of x by numbers of their own, and the verdict stays. With

    c_i    the scale of coordinate i: its size, how far it came, how far its curvature reaches
    F      the scale of f: |f|, how far it fell; its curvature over the scale of x if both are zero
    H^     the Hessian in coordinates y = x / s with s_i about 1 / sqrt(|H_ii|): entries up to 1

a point is judged by the decrease of f that its derivatives promise within the scale of x:

==============  ===================================================================================
NOT_STATIONARY  along the gradient f would fall by more than 1e-10 F
STRICT_SADDLE   along an eigenvector of H^ f would fall by more than rounding shows (by Sylvester's
                law the number of negative eigenvalues does not depend on s); MAXIMUM if along all
MINIMUM         H^ is positive definite beyond rounding, **and f is a bowl**: within the ellipsoid
                in which the quadratic model rises by tau, gradients agree with it to within a
                factor of 1.5 along every eigenvector, and the Newton step stays in its inner
                fifth. tau is 1e-12 F or less. Values of f along one way do not contradict
UNBOUNDED       no bowl, and Newton's step does not get shorter: exp(-x), 1 / x
DEGENERATE      no bowl: curvature vanishes along some direction. `drop` says whether f was found
                to fall along it
==============  ===================================================================================

The bowl is what separates a minimum from a plateau: on a plateau the Hessian may be positive
definite, but it does not tell how f goes on. Above `dense_below` dimensions the lowest eigenvalue
comes from Lanczos with its bound, in the coordinates as they are: saddles whose curvature is within
1 % of the largest may then be missed, `gamma` says so.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from asgld.curvature.flat import Descent, FlatProbe
from asgld.curvature.kinds import Kind, Point
from asgld.curvature.operator import Neighborhood
from asgld.curvature.scaling import equilibration
from asgld.curvature.spectrum import Effort, Ends, Enough, SpectrumSearch

# Part of F by which f may promise to fall along the gradient.
_GRADIENT_PART = 1e-10
# A fall of f is visible if it is more than this part of F, and so many roundings of f.
VISIBLE_PART, _VISIBLE_ROUNDINGS = 1e-14, 1e4
# The bowl rises by this part of F; then by less, if that fails.
_BOWL_PART = 1e-12
_BOWL_FACTORS = (1.0, 1e-4, 1e-8)
# Values contradict the bowl if f curves otherwise, by this part alike, over three steps.
_PROOF_FACTORS, _PROOF_SPREAD = (1.0, 3.0, 9.0), 0.1
# It reaches five times as far as the Newton step, and gradients agree to this factor.
_NEWTON_ROOM, _AGREEMENT = 5.0, 1.5
# Rounding errors of an eigenvalue of H^, in units of unit roundoff times the largest.
_EIGENVALUE_ROUNDINGS = 1e3
# Rounding errors of a gradient, in units of unit roundoff times curvature times x.
_GRADIENT_ROUNDINGS = 1e2
# Curvatures change by this many parts of the largest when x moves by the scale of x.
_DRIFT = 10.0
# Negative curvature below this part of the largest may be the slope of a valley's side.
_SLIGHT = 1e-4
# For steps, curvatures below this part of the largest count as that part.
_FLOOR = 1e-6
# Newton steps that shrink by less than this lead away for ever.
_SHRINKS, _FAR_STEPS = 0.9, (8.0, 32.0)
# A Newton step shorter than this part of the scale of x is rounding.
_SMALLEST_STEP = 1e-10
# The plain lowest eigenvector is the direction down if it promises this part of the most.
_MUCH = 0.1
# Along a flat direction f may first rise by this part of F, and fall only then.
_BARRIER_PART = 1e-6
# Lanczos: negative curvatures up to the first part of the largest may be missed, and positive ones
# below the second are not told from zero.
_LANCZOS_PART, _LANCZOS_RESOLUTION = 1e-2, 1e-6
_PURITY = 0.05
_FLAT_DIRECTIONS = 4


def examine(
    around: Neighborhood, effort: Effort, *, scale: Tensor | None = None, fall: float = 0.0
) -> Examination:
    """Compute what a judgment of the point at the centre of `around` needs; see the module.

    `scale` is the scale of the coordinates (|x|, or 1 where that is smaller, if not given), `fall`
    how far f fell to get here.
    """
    how = _Dense if around.dim <= max(effort.dense_below, 2) else _Lanczos
    return how(around, effort, scale, fall)


class Examination:
    """A point in coordinates y = x / s, with some directions and the curvatures along them."""

    # Set by the two ways to look at the Hessian:
    s: Tensor  # (d,)
    values: Tensor  # (k,), ascending
    vectors: Tensor  # (d, k), orthonormal
    rounding_noise: float  # rounding errors of the values
    smallest: float  # in the user's units
    lower: float
    largest: float
    gamma: float
    residual: float
    confidence: float
    is_complete: bool  # the directions span all, so that a positive verdict covers all
    num_hvp: int
    bowl: tuple[Tensor, float]  # a way from x, and the rise at its two ends, by the derivatives

    def __init__(
        self, around: Neighborhood, effort: Effort, scale: Tensor | None, fall: float
    ) -> None:
        self.around, self.effort, self.fall = around, effort, max(fall, 0.0)
        self.x = around.x
        self.value = around.value(self.x) if around.has_values else math.nan
        self.grad = around.gradient
        self.size = 0.0 if math.isnan(self.value) else abs(self.value)
        self.unit = around.unit_roundoff
        self.drift = 0.0  # how far x has moved since the Hessian was computed, in units of c
        own = self.x.abs()
        self.c = own.clamp(min=1.0) if scale is None else torch.maximum(own, scale.to(own))

    # ------------------------------------------------------------------------------ numbers

    def _finish(self, curvature_energy: float) -> None:
        """Numbers that follow from the spectrum, and from the model's rise over the scale of x."""
        self.curvature_energy = curvature_energy
        known = max(self.size, self.fall)
        self.f_scale = max(known if known > 0 else curvature_energy, 1e-300)
        # Where only x is known, it says how small a gradient can be called.
        self.loose_scale = self.f_scale if self.fall > 0 else max(known, curvature_energy, 1e-300)
        # A gradient is known to the rounding of x times the curvature.
        self.rounding = (_GRADIENT_ROUNDINGS * self.unit) ** 2 * curvature_energy
        self.widest = float(self.values.abs().max())
        self.slopes = self.vectors.T @ (self.s * self.grad)  # along the directions, in y
        # The Hessian changes on the way to the critical point, by about this part of itself.
        self.noise = self.rounding_noise
        left = float((self.newton_step(self.grad) / self.c).abs().max())
        self.noise += _DRIFT * min(self.drift + left, 1e-3) * self.widest
        # How far a direction leads until a coordinate has moved by its scale.
        lengths = torch.linalg.vector_norm((self.s / self.c)[:, None] * self.vectors, dim=0)
        self.reach = (1.0 / lengths).clamp(1e-150, 1e150)
        self.is_curved = self.values.abs() > self.noise
        steps = self.slopes.abs() / torch.where(self.is_curved, self.values.abs(), 1.0)
        falls = torch.where(
            self.is_curved & (steps <= self.reach),
            0.5 * steps * self.slopes.abs(),
            self.slopes.abs() * self.reach,
        )
        self.promise = float(falls.sum())
        self.newton_energy = self.energy(self.grad)

    @property
    def visible(self) -> float:
        """The smallest change of f that is no rounding."""
        by_f = max(VISIBLE_PART * self.f_scale, _VISIBLE_ROUNDINGS * self.unit * self.size)
        return max(by_f, self.rounding)

    def newton_step(self, grad: Tensor) -> Tensor:
        """The step that the model takes to where this gradient would vanish, by positive values."""
        slopes = self.vectors.T @ (self.s * grad)
        is_up = self.values > self.rounding_noise
        return self._along(torch.where(is_up, -slopes / self.values, 0.0))

    def energy(self, grad: Tensor) -> float:
        """By how much this gradient would let f fall in that step."""
        is_up = self.values > self.rounding_noise
        slopes = (self.vectors.T @ (self.s * grad))[is_up]
        return float((0.5 * slopes**2 / self.values[is_up]).sum())

    @property
    def metric(self) -> Tensor | None:
        """P with P P' about the inverse of |H|, if all of it is known: steps without units."""
        if not self.is_complete or self.widest == 0.0:
            return None
        sizes = self.values.abs().clamp(min=_FLOOR * self.widest)
        return self.s[:, None] * self.vectors / torch.sqrt(sizes)

    @property
    def diagonal(self) -> Tensor | None:
        """The same, as far as it is a matter of the coordinates' scales."""
        return torch.diag(self.s) if self.is_complete and self.widest > 0.0 else None

    @property
    def is_nearly_convex(self) -> bool:
        """Whether all curvatures are known and none is clearly negative: Newton's step helps."""
        return self.is_complete and float(self.values[0]) > -_SLIGHT * self.widest

    @property
    def is_blurred(self) -> bool:
        """Whether the lowest curvature is smaller than what moving x may have changed."""
        return abs(float(self.values[0])) <= self.noise and self.drift > 0.0

    def move(self, x: Tensor, value: float, grad: Tensor) -> None:
        """Take the judgment to a point nearby, with the Hessian that is known."""
        self.drift += float(((x - self.x) / self.c).abs().max())
        self.x, self.value, self.grad, self.size = x, value, grad, abs(value)
        self._finish(self.curvature_energy)

    def _along(self, weights: Tensor) -> Tensor:
        """The displacement in x that these weights of the directions mean."""
        return self.s * (self.vectors @ weights)

    # ------------------------------------------------------------------------------ the verdict

    def point(self, eps: float | None, num_rays: int, seed: int) -> Point:
        """The verdict. `eps` is a gradient norm that counts as zero whatever it promises."""
        norm = float(torch.linalg.vector_norm(self.grad, dtype=torch.float64))
        allowed = self._allowed_norm(norm) if eps is None else eps
        self.norm, self.eps = norm, allowed
        if norm > allowed:
            return self._say(
                Kind.NOT_STATIONARY,
                f"the gradient has norm {norm:.3g} > eps = {allowed:.3g}: a step would lower f by "
                f"about {self.promise:.2g}"
                if eps is None
                else f"the gradient has norm {norm:.3g} > eps = {eps:.3g}",
            )
        if (saddle := self._saddle()) is not None:
            return saddle
        if self.lower < -self.gamma and not self.is_complete:
            return self._say(
                Kind.UNDECIDED,
                f"smallest curvature is in [{self.lower:.4g}, {self.smallest:.4g}], which includes "
                f"-gamma = {-self.gamma:.3g}; allow more products with max_hvp",
            )
        is_flat = self._flat_directions(seed)
        how = "" if self.confidence == 1.0 else f" with confidence {self.confidence:.7g}"
        if not bool(is_flat.any()):
            if contradiction := self._contradiction():
                return self._say(Kind.UNDECIDED, contradiction)
            bowl = f"f is a bowl around x, the smallest curvature found is {self.smallest:.4g}"
            if not self.is_complete:
                bowl += f", and none is below {self.lower:.4g}{how}"
            return self._say(Kind.MINIMUM, bowl, is_isolated=True)
        if self._is_endless():
            return self._say(
                Kind.UNBOUNDED, "f goes on falling, and steps downhill do not get shorter"
            )
        if eps is None and self.newton_energy > self.visible:
            return self._say(
                Kind.NOT_STATIONARY,
                f"the gradient has norm {norm:.3g}, and x is in no bowl of f: more steps would "
                f"lower f by about {self.newton_energy:.2g}",
            )
        return self._flat_point(is_flat, num_rays, seed, how)

    def _allowed_norm(self, norm: float) -> float:
        """The gradient norm, in this direction, that promises the decrease which is allowed."""
        allowed = max(_GRADIENT_PART * self.loose_scale, self.rounding)
        if norm == 0.0:
            return math.inf
        factor = math.sqrt(allowed / self.promise) if self.promise > 0 else math.inf
        return norm * (max(factor, 1.0) if self.promise <= allowed else factor)

    def _saddle(self) -> Point | None:
        falls = torch.where(self.values < -self.noise, 0.5 * self.values.abs() * self.reach**2, 0.0)
        if not float(falls.max()) > self.visible:
            return None
        weights = torch.zeros_like(self.values)
        weights[int(falls.argmax())] = 1.0
        direction = self._preferred(self._along(weights), float(falls.max()))
        direction = direction / torch.linalg.vector_norm(direction)
        is_maximum = bool((falls > self.visible).all()) and self.is_complete
        return self._say(
            Kind.MAXIMUM if is_maximum else Kind.STRICT_SADDLE,
            f"curvature {self.smallest:.4g} is negative: within the scale of x f would fall by "
            f"about {float(falls.max()):.2g} along `direction`",
            direction=direction,
            confidence=1.0,
        )

    def _preferred(self, direction: Tensor, fall: float) -> Tensor:
        """The direction of `smallest`, where it promises about as much as another."""
        return direction

    def _flat_directions(self, seed: int) -> Tensor:
        """Which directions are flat by the spectrum, or because f is no bowl along them."""
        is_flat = self.values <= self.noise
        tested = (~is_flat).nonzero().flatten()
        if len(tested) == 0:
            return is_flat
        newton = (self.slopes[tested] / self.values[tested]).abs()
        most = max(_BOWL_PART * self.f_scale, self.visible)
        generator = torch.Generator().manual_seed(seed)
        signs = torch.randint(2, (len(tested),), generator=generator).to(self.values) * 2 - 1
        is_bad = torch.ones_like(tested, dtype=torch.bool)
        for factor in _BOWL_FACTORS:
            rooms = torch.sqrt(2 * factor * most / (self.values[tested] * len(tested)))
            weights = torch.zeros_like(self.values)
            weights[tested] = signs * torch.maximum(rooms, _NEWTON_ROOM * newton)
            move = self._along(weights)
            ahead, behind = (self.around.grad(self.x + sign * move) for sign in (1.0, -1.0))
            rise = self.vectors.T @ (self.s * (ahead - behind)) / 2
            ratio = rise[tested] / (self.values[tested] * weights[tested])
            is_good = (ratio > 1 / _AGREEMENT) & (ratio < _AGREEMENT)
            is_bad &= ~is_good
            self.bowl = move, float((self.values * weights**2).sum()) / 2
            if not bool((is_bad & (rooms > _NEWTON_ROOM * newton)).any()):
                break
        is_flat[tested] = is_bad
        return is_flat

    def _contradiction(self) -> str:
        """Say how values of f contradict the bowl that its derivatives show; empty if they do not.

        A proof is three steps along which f curves alike, and not as the derivatives say. Rounding
        of f, or something finer than a step, makes the three differ.
        """
        if not self.around.has_values:
            return ""
        move, rise = self.bowl
        quotients: list[float] = []
        for factor in _PROOF_FACTORS:
            ends = (self.around.value(self.x + sign * factor * move) for sign in (1.0, -1.0))
            quotients.append((sum(ends) - 2.0 * self.value) / (2.0 * factor**2 * rise))
            if 1 / _AGREEMENT**2 < quotients[-1] < _AGREEMENT**2:
                return ""
        largest = max(map(abs, quotients))
        spread = max(quotients) - min(quotients)
        if not (0.0 < largest < math.inf and spread <= _PROOF_SPREAD * largest):
            return ""
        return (
            f"values of f contradict its derivatives: along a direction in which these promise a "
            f"rise, f rises by {quotients[0]:.2g} times as much. Does a part of f leave torch "
            "(`.item()`, NumPy), or is `jac` wrong?"
        )

    def _is_endless(self) -> bool:
        """Whether Newton's step does not get shorter when it is taken."""
        move = self.newton_step(self.grad)
        noise = max(_VISIBLE_ROUNDINGS * self.unit * self.size, self.rounding)
        is_rounding = self.newton_energy <= noise
        is_short = not float((move / self.c).abs().max()) > _SMALLEST_STEP
        if is_rounding or is_short or self.drift > 0.0:  # with an old Hessian it is no Newton step
            return False
        slope = float(self.around.grad(self.x + move) @ move)
        bend = float(self.around.product(self.x + move, move) @ move)
        self.num_hvp += 1
        # -slope / bend is the length of the next step along this one. In a curved valley it does
        # not shrink either, but there a straight line soon leads up.
        if not (slope < 0 and -slope >= _SHRINKS * bend):
            return False
        return all(float(self.around.grad(self.x + t * move) @ move) < 0 for t in _FAR_STEPS)

    def _flat_point(self, is_flat: Tensor, num_rays: int, seed: int, how: str) -> Point:
        found: Descent | None = None
        if self.around.has_values:
            # Units of the scale of x: the probe then reaches as far as that.
            probe = FlatProbe(
                lambda y: self.around.value(self.x + self.c * y),
                lambda y: self.c * self.around.grad(self.x + self.c * y),
                torch.zeros_like(self.x),
                radius=1.0,
                tolerance=lambda _: self.visible,
                value0=self.value,
                barrier=_BARRIER_PART * self.f_scale,
            )
            basis = (self.s / self.c)[:, None] * self._flat_basis(is_flat)
            basis = torch.linalg.qr(basis)[0]
            found = probe.find_descent(basis, num_rays, torch.Generator().manual_seed(seed))
        count = int(is_flat.sum())
        flat = f"curvature vanishes along {count} of {len(is_flat)} directions"
        if found is None:
            return self._say(
                Kind.DEGENERATE,
                f"{flat}, and f was not found to fall along them{how}",
                num_flat=count,
            )
        move = self.c * found.direction * found.distance
        distance = float(torch.linalg.vector_norm(move))
        return self._say(
            Kind.DEGENERATE,
            f"{flat}, and f falls by {found.drop:.3g} at distance {distance:.3g} along `direction`",
            direction=move / distance,
            drop=found.drop,
            distance=distance,
            num_flat=count,
        )

    def _flat_basis(self, is_flat: Tensor) -> Tensor:
        return self.vectors[:, is_flat]

    def _say(
        self,
        kind: Kind,
        summary: str,
        direction: Tensor | None = None,
        confidence: float | None = None,
        is_isolated: bool = False,
        drop: float | None = None,
        distance: float | None = None,
        num_flat: int = 0,
    ) -> Point:
        return Point(
            kind=kind,
            gradient_norm=self.norm,
            eps=self.eps,
            gamma=self.gamma,
            summary=summary,
            lambda_min=self.smallest,
            lower=self.lower,
            lambda_max=self.largest,
            residual=self.residual,
            confidence=self.confidence if confidence is None else confidence,
            direction=None if direction is None else direction.reshape(self.around.shape),
            is_isolated=is_isolated,
            drop=drop,
            distance=distance,
            num_flat=num_flat,
            value=None if math.isnan(self.value) else self.value,
            num_hvp=self.num_hvp,
        )


class _Dense(Examination):
    """All eigenvectors of the scaled Hessian."""

    def __init__(
        self, around: Neighborhood, effort: Effort, scale: Tensor | None, fall: float
    ) -> None:
        super().__init__(around, effort, scale, fall)
        matrix, asymmetry = around.dense_hessian()
        self.num_hvp = around.dim
        self.matrix = matrix
        self.s = equilibration(matrix)
        known = max(self.size, self.fall)
        self.c = torch.maximum(self.c, self.s * math.sqrt(2 * known))
        # Where nothing else is known, a coordinate's scale is what its curvature says.
        energy = float((0.5 * torch.where(self.s > 0, self.c / self.s, 0.0) ** 2).sum())
        natural = self.s * math.sqrt(2 * energy if energy > 0 else 1.0)
        self.c = torch.where(self.c > 0, self.c, torch.where(natural > 0, natural, 1.0))
        # A coordinate without curvature gets a scale such that moving by c means an energy of F.
        energy = float((0.5 * torch.where(self.s > 0, self.c / self.s, 0.0) ** 2).sum())
        typical = math.sqrt(2 * max(known, energy)) or 1.0
        self.s = torch.where(self.s > 0, self.s, self.c / typical)
        scaled = self.s[:, None] * matrix * self.s
        self.values, self.vectors = torch.linalg.eigh(scaled)
        widest = float(self.values.abs().max())
        mirrored = float((self.s[:, None] * asymmetry * self.s).max())
        self.rounding_noise = _EIGENVALUE_ROUNDINGS * self.unit * widest + mirrored
        self.confidence, self.residual, self.is_complete = 1.0, 0.0, True
        self._finish(energy)

    def _finish(self, curvature_energy: float) -> None:
        super()._finish(curvature_energy)
        self._ends()

    def _preferred(self, direction: Tensor, fall: float) -> Tensor:
        values, vectors = torch.linalg.eigh(self.matrix)
        lowest = vectors[:, 0]
        reach = 1.0 / float(torch.linalg.vector_norm(lowest / self.c))
        return lowest if -0.5 * float(values[0]) * reach**2 >= _MUCH * fall else direction

    def _ends(self) -> None:
        """The extreme eigenvalues in the user's units, with digits where scales differ."""
        plain = torch.linalg.eigvalsh(self.matrix)
        self.smallest, self.largest = float(plain[0]), float(plain[-1])
        if float(self.values[0]) > self.noise:
            # The inverse has the small eigenvalues large, and so with all their digits.
            half = self.s[:, None] * self.vectors / torch.sqrt(self.values)
            self.smallest = 1.0 / max(float(torch.linalg.matrix_norm(half, ord=2) ** 2), 1e-300)
        elif float(self.values[0]) < -self.noise:
            direction = self.s * self.vectors[:, 0]
            direction = direction / torch.linalg.vector_norm(direction).clamp(min=1e-300)
            self.smallest = min(self.smallest, float(direction @ (self.matrix @ direction)))
        lowest = self.s * self.vectors[:, 0]
        square = max(float(lowest @ lowest), 1e-300)
        self.lower = self.smallest - self.noise / square
        if float(self.values[0]) > 2 * self.noise:
            self.lower = self.smallest * (1 - self.noise / float(self.values[0]))
        fall = 2 * self.visible / float(self.reach[0]) ** 2
        self.gamma = max(fall, self.noise) / square


class _Lanczos(Examination):
    """The lowest Ritz vector, and a bound on what it may have missed."""

    def __init__(
        self, around: Neighborhood, effort: Effort, scale: Tensor | None, fall: float
    ) -> None:
        super().__init__(around, effort, scale, fall)
        operator = around.hessian()
        self.search = SpectrumSearch(operator, self._is_enough, effort)
        vector, self.smallest, self.residual = self.search.smallest_vector()
        ends = self.search.ends
        self.largest = ends.largest
        self.gamma = _part_of(ends)
        self.lower = min(ends.lower, self.smallest)
        self.confidence, self.is_complete = effort.confidence, False
        self.s = torch.ones_like(self.x)
        widest = max(abs(self.smallest), abs(self.largest))
        length = float(torch.linalg.vector_norm(self.c))
        if length == 0.0:
            length = math.sqrt(2 * max(self.size, self.fall) / widest) if widest else 0.0
            length = length or math.sqrt(around.dim)
        self.c = torch.full_like(self.x, length)  # along a direction, not in every coordinate
        norm = float(torch.linalg.vector_norm(self.grad, dtype=torch.float64))
        self.values, self.vectors = torch.tensor([self.smallest]).to(vector), vector[:, None]
        self.rounding_noise = _LANCZOS_RESOLUTION * widest
        if norm > 0:  # the promise of the gradient itself: one more direction
            along = self.grad / norm
            bend = float(along @ operator(along))
            self.values = torch.cat([self.values, torch.tensor([bend]).to(vector)])
            self.vectors = torch.stack([vector, along], dim=1)
        self._finish(0.5 * widest * length**2)
        if norm > 0:
            self._without_gradient()
        self.num_hvp = operator.num_hvp

    def _without_gradient(self) -> None:
        """Keep what the gradient promises; the curvature along it says nothing of other ways."""
        step = self.slopes[1].abs() / self.values[1].abs()
        is_short = bool(self.values[1] > self.noise) and bool(step <= self.reach[1])
        reach = step / 2 if is_short else self.reach[1]
        self.promise = float(self.slopes[1].abs() * reach)
        self.values, self.vectors = self.values[:1], self.vectors[:, :1]
        self.slopes, self.reach = self.slopes[:1], self.reach[:1]
        self.newton_energy = self.energy(self.grad)

    @staticmethod
    def _is_enough(ends: Ends) -> Enough:
        gamma = _part_of(ends)
        if ends.smallest + ends.roundoff >= -gamma:
            return Enough.HERE if ends.lower >= -gamma else Enough.NO
        return Enough.PROVED if ends.residual <= _PURITY * abs(ends.smallest) else Enough.NO

    def _flat_basis(self, is_flat: Tensor) -> Tensor:
        return self.search.vectors_below(self.gamma, _FLAT_DIRECTIONS)


def _part_of(ends: Ends) -> float:
    return max(_LANCZOS_PART * max(abs(ends.smallest), abs(ends.largest)), 1e-300)
