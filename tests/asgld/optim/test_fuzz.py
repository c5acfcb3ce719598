"""Random programs: every backend against the plain loop, operation by operation.

`fuzzing.twins` has the properties that hold after every operation. The cases are
the same in every run. `ASGLD_FUZZ_CASES` sets how many there are, in all:

    ASGLD_FUZZ_CASES=20000 python -m pytest tests/asgld/optim/test_fuzz.py

What crashes takes pytest with it: `python tests/fuzz_cases.py` runs cases in processes of their
own.
"""

from __future__ import annotations

import os

import pytest
from fuzzing.drawing import generate
from fuzzing.programs import BACKENDS, DEFAULTS, KNOBS, NO_KNOBS, OPTIMIZERS
from fuzzing.shrinking import check
from fuzzing.twins import run
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from asgld.optim import _native

# How often each backend runs, the kernel most.
SHARES = {"fused": 0.4, "foreach": 0.25, "default": 0.25, "loop": 0.1}
CASES = int(os.environ.get("ASGLD_FUZZ_CASES", "800"))
SLOW_CASES = 6000


def run_cases(backend: str, cases: int) -> None:
    if backend == "fused" and _native.unavailable_reason() is not None:
        pytest.skip("needs the compiled kernel")

    # Hypothesis draws the number of a case; what fails is made smaller by `check`, which knows
    # what a program is.
    @settings(
        max_examples=max(1, round(cases * SHARES[backend])),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(number=st.integers(0, 2**48))
    def run_one(number: int) -> None:
        check(number, backend)

    run_one()


@pytest.mark.parametrize("backend", SHARES)
def test_fuzz_backends_do_as_the_loop_does(backend: str) -> None:
    """Twins agree, raise together, and leave everything as it was where they raise."""
    run_cases(backend, CASES)


@pytest.mark.slow
@pytest.mark.parametrize("backend", SHARES)
def test_fuzz_backends_do_as_the_loop_does_in_thousands_of_cases(backend: str) -> None:
    run_cases(backend, SLOW_CASES)


def test_fuzz_draws_every_knob() -> None:
    """A knob that is new in the optimizer is in the fuzzer's list, too."""
    assert set(DEFAULTS) == {*KNOBS, *NO_KNOBS}


def test_fuzz_programs_are_the_same_every_time() -> None:
    assert [str(generate(number)) for number in range(20)] == [
        str(generate(number)) for number in range(20)
    ]


def test_fuzz_programs_have_all_optimizers_and_backends() -> None:
    programs = [generate(number) for number in range(300)]
    assert {program.optimizer for program in programs} == set(OPTIMIZERS)
    assert {program.backend for program in programs} == set(BACKENDS)


def test_fuzz_programs_make_optimizers() -> None:
    """Options without a meaning together are rare: nearly every case has something to run."""
    programs = [generate(number, "loop") for number in range(200)]
    made = [run(program.__class__(**{**vars(program), "operations": []})) for program in programs]
    assert sum(made) > 0.9 * len(made)
