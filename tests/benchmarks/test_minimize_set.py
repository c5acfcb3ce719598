"""The functions that `minimize` is measured on, against what is published of them."""

from __future__ import annotations

import importlib
import sys

import mpmath
import numpy as np
import pytest
import torch
from helpers import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
collection = importlib.import_module("minimize_set")
sys.path.remove(str(ROOT / "benchmarks"))
FUNCTIONS = collection.FUNCTIONS

# f at the standard start. Squares of the norms in Moré, Garbow, Hillstrom, User guide for
# MINPACK-1, ANL-80-74 (1980), and of J. Moré, S. Wild, SIAM J. Optim. 20 (2009), table 2, or exact.
AT_START = {
    "rosenbrock": 24.2,
    "freudenstein_roth": 400.5,
    "powell_badly_scaled": 1.135262,
    "brown_badly_scaled": 999998000003.0,
    "beale": 14.203125,
    "jennrich_sampson": 4171.306,
    "helical_valley": 2500,
    "bard": 41.68170,
    "gaussian": 3.888107e-6,
    "meyer": 1.693608e9,
    "gulf": 12.11070,
    "box3": 1031.154,
    "powell_singular": 215,
    "wood": 19192,
    "kowalik_osborne": 5.313172e-3,
    "brown_dennis": 7.926693e6,
    "osborne1": 0.8790262,
    "biggs_exp6": 0.7790701,
    "osborne2": 2.093420,
    "watson": 30,
    "extended_rosenbrock": 25 * 24.2,
    "extended_powell": 15 * 215,
}
# Here the value is published and the point is not, or only to few digits: descend from the start,
# or from the published point.
TO_DESCEND = (
    "jennrich_sampson", "bard", "gaussian", "meyer", "kowalik_osborne", "brown_dennis", "osborne1",
    "osborne2", "watson", "penalty1", "penalty2", "linear_rank1", "linear_rank1_zero", "chebyquad",
    "powell_badly_scaled", "hartmann3", "hartmann6", "shekel5", "shekel7", "shekel10",
    "styblinski_tang", "schaffer4", "branin", "de_jong5", "discrete_boundary",
    "discrete_integral", "broyden_tridiagonal", "broyden_banded",
)  # fmt: skip


def _tensor(values: object) -> torch.Tensor:
    return torch.tensor(np.asarray(values, dtype=np.float64))


def test_the_collections_are_complete() -> None:
    by_number = sorted(f.number for f in FUNCTIONS.values() if f.collection == collection.MGH)
    assert by_number == list(range(1, 36))
    sizes = [sum(f.collection == name for f in FUNCTIONS.values()) for name in collection.CITATIONS]
    assert sizes == [35, 7, 33]
    dims = [f.dim for f in FUNCTIONS.values()]
    assert min(dims) == 2
    assert max(dims) == 100
    assert len(collection.HELD_OUT) == len(FUNCTIONS) // 3
    assert not {f.name for f in collection.select()} & collection.HELD_OUT


@pytest.mark.parametrize("name", AT_START)
def test_the_start_has_the_published_value(name: str) -> None:
    function = FUNCTIONS[name]
    assert float(function.fun(_tensor(function.start))) == pytest.approx(AT_START[name], rel=1e-6)


@pytest.mark.parametrize("name", [n for n, f in FUNCTIONS.items() if f.minimizer is not None])
def test_the_published_point_has_the_published_value(name: str) -> None:
    function = FUNCTIONS[name]
    found = float(function.fun(_tensor(function.minimizer)))
    assert found == pytest.approx(function.minima[0], rel=1e-4, abs=1e-7)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("name", TO_DESCEND)
def test_the_published_value_is_a_minimum(name: str) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    function = FUNCTIONS[name]
    gradient, hessian = torch.func.grad(function.fun), torch.func.hessian(function.fun)
    found = optimize.minimize(
        lambda x: float(function.fun(_tensor(x))),
        np.asarray(function.start if function.minimizer is None else function.minimizer),
        jac=lambda x: gradient(_tensor(x)).numpy(),
        hess=lambda x: hessian(_tensor(x)).numpy(),
        method="trust-exact",
        options={"gtol": 1e-9, "maxiter": 2000},
    )
    assert found.fun == pytest.approx(function.minima[0], rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_formula_for_all_kinds_of_numbers(name: str) -> None:
    function = FUNCTIONS[name]
    x = collection.random_start(function, 0)
    with mpmath.workdps(40):
        exact = function.fun(np.array([mpmath.mpf(entry) for entry in x], dtype=object))
        assert isinstance(exact, mpmath.mpf)
        size = 1 + abs(float(exact))
        assert abs(float(function.fun(x.astype(np.longdouble)) - np.longdouble(str(exact)))) <= (
            1e-14 * size
        )
    in_torch = float(function.fun(_tensor(x)))
    assert in_torch == pytest.approx(float(exact), rel=1e-11, abs=1e-11)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_by_all_transforms(name: str) -> None:
    function = FUNCTIONS[name]
    points = _tensor([collection.random_start(function, k) for k in range(2)])
    direction = torch.ones(function.dim, dtype=torch.float64)
    gradient = torch.func.grad(function.fun)

    def product(x: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(gradient, (x,), (direction,))[1]

    hessians = torch.func.vmap(torch.func.hessian(function.fun))(points)
    expected = hessians @ direction
    torch.testing.assert_close(
        torch.func.vmap(product)(points), expected, rtol=1e-9,
        atol=1e-11 * float(hessians.abs().max()) + 1e-300,
    )  # fmt: skip
    # Along a line, f changes by what its gradient says.
    step = 1e-5 * (1 + points[0].abs().max())
    ends = [function.fun(points[0] + side * step * direction) for side in (1, -1)]
    slope = float((ends[0] - ends[1]) / (2 * step))
    bend = float(hessians[0].abs().max()) * float(step)
    size = abs(float(ends[0])) / float(step) * 1e-13
    assert slope == pytest.approx(float(gradient(points[0]).sum()), rel=1e-4, abs=bend + size)
