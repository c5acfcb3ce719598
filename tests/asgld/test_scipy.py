"""`minimize` as a method of scipy's."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from saddle_cases import saddle_jac, saddle_numpy

from asgld.scipy import scipy_method

scipy_optimize = pytest.importorskip("scipy.optimize")


def test_scipy_protocol_is_obeyed() -> None:
    result = scipy_optimize.minimize(
        saddle_numpy,
        [0.0, 0.0],
        jac=saddle_jac,
        method=scipy_method,
        tol=1e-5,
        options={"rng": 3, "maxiter": 2000, "disp": True, "no_such_option": 1},
    )
    assert isinstance(result, scipy_optimize.OptimizeResult)
    expected = {"x", "fun", "jac", "success", "status", "message", "nit", "nfev", "njev"}
    assert expected | {"lambda_min", "kind"} <= set(result)
    assert (result.success, result.status, result.kind) == (True, 0, "MINIMUM")
    assert result.lambda_min == pytest.approx(2.0, rel=1e-3)
    assert np.linalg.norm(result.jac) <= 1e-5
    assert result.nfev > 0
    assert result.njev > result.nit


def test_scipys_own_methods_call_the_saddle_a_success_and_ours_does_not() -> None:
    theirs = scipy_optimize.minimize(saddle_numpy, [0.0, 0.0], jac=saddle_jac, method="BFGS")
    ours = scipy_optimize.minimize(
        saddle_numpy, [0.0, 0.0], jac=saddle_jac, method=scipy_method, options={"algorithm": "asg"}
    )
    assert theirs.success
    assert (ours.success, ours.status, ours.kind) == (False, 1, "STRICT_SADDLE")


@pytest.mark.parametrize("extras", list(itertools.product([False, True], repeat=2)))
def test_scipy_arguments_reach_us(extras: tuple[bool, bool]) -> None:
    def fun(x: np.ndarray, shift: float) -> float:
        return saddle_numpy(x - shift)

    options: dict[str, Any] = {}
    if extras[0]:
        options["hess"] = lambda x, shift: np.diag([2.0, 3 * (x[1] - shift) ** 2 - 1])
    if extras[1]:
        options["bounds"] = scipy_optimize.Bounds([-1.0, 0.4], [4.0, 4.0])
    result = scipy_optimize.minimize(
        fun,
        [0.5, 0.4],  # on the bound
        args=(0.5,),
        jac=lambda x, shift: saddle_jac(x - shift),
        method=scipy_method,
        **options,
    )
    assert result.success
    assert abs(result.x[1] - 0.5) == pytest.approx(1.0, abs=1e-2)
    assert (result.nhev > 0) == extras[0]


def test_scipy_callbacks_of_both_kinds_stop() -> None:
    def old(xk: np.ndarray) -> bool:
        return True

    def new(*, intermediate_result: Any) -> None:
        if intermediate_result.nit == 3:
            raise StopIteration

    for callback, steps in ((old, 1), (new, 3)):
        result = scipy_optimize.minimize(
            saddle_numpy, [0.0, 0.0], jac=saddle_jac, method=scipy_method, callback=callback
        )
        assert result.nit == steps
    with pytest.raises(ValueError, match="takes no constraints"):
        scipy_optimize.minimize(
            saddle_numpy, [0.0, 0.0], method=scipy_method, constraints={"type": "eq", "fun": max}
        )


def test_scipy_method_works_inside_basinhopping() -> None:
    def wells(x: np.ndarray) -> float:
        return float((x[0] ** 2 - 1) ** 2 + 0.3 * x[0] + x[1] ** 2)

    result = scipy_optimize.basinhopping(
        wells,
        [1.0, 0.5],
        niter=4,
        stepsize=2.0,
        rng=0,
        minimizer_kwargs={"method": scipy_method, "options": {"max_steps": 100, "rng": 1}},
    )
    assert result.fun == pytest.approx(-0.3054, abs=1e-3)
    assert result.lowest_optimization_result.kind == "MINIMUM"
