"""Problems by name: values, options, and the errors that name them."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys

import pytest
import torch
from problem_cases import CASES

from asgld.problems import problem, problem_names, problem_options


def test_problem_names_are_all_covered_here() -> None:
    assert {name for name, _ in CASES.values()} == set(problem_names())
    assert len(set(problem_names())) == len(problem_names()) == 14


@pytest.mark.parametrize("name", problem_names())
def test_problem_is_a_value(name: str) -> None:
    chosen = problem(name)
    assert chosen.name == name
    assert chosen == problem(name, **problem_options(name))
    assert hash(chosen) == hash(problem(name))
    field = dataclasses.fields(chosen)[0].name  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(chosen, field, 3)
    x = chosen.start(2, seed=1)
    copy = pickle.loads(pickle.dumps(chosen))
    assert torch.equal(copy.grad(x), chosen.grad(x))


def test_a_problem_is_loaded_when_it_is_asked_for() -> None:
    code = (
        "import sys, asgld.problems as p; p.problem('octopus'); p.Rosenbrock; "
        "print(sorted(m for m in sys.modules if m.startswith('asgld.problems.')))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "['asgld.problems.analytic', 'asgld.problems.base']"


def test_problem_unknown_name_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"unknown problem 'octopuss'.*octopus, .*monkey-saddle"):
        problem("octopuss")
    with pytest.raises(ValueError, match="unknown problem"):
        problem_options("?")


def test_problem_unknown_option_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"'dimension' of problem 'mixture'.*dim, num_samples"):
        problem("mixture", dimension=3)


BAD_OPTIONS = [
    ("strict-saddle", {"dim": 0}, "dim=0"),
    ("strict-saddle", {"dim": 3, "num_negative": 4}, "num_negative=4: need 1 to dim=3"),
    ("strict-saddle", {"gamma": 0.0}, "gamma=0.0"),
    ("strict-saddle", {"curvature": -1.0}, "curvature=-1.0"),
    ("strict-saddle", {"confinement": 0.0}, "confinement=0.0"),
    ("strict-saddle", {"condition": 0.5}, "condition=0.5"),
    ("strict-saddle", {"num_samples": 1}, "num_samples=1"),
    ("strict-saddle", {"noise_space": "some"}, "noise_space='some'"),
    ("strict-saddle", {"dim": 1, "noise_space": "stable"}, "a stable direction"),
    ("octopus", {"dim": 0}, "dim=0"),
    ("octopus", {"tau": 0.0}, "tau=0.0"),
    ("octopus", {"rho": 0.0}, "rho=0.0"),
    ("octopus", {"gamma": 1.0, "eps": 0.1}, "either gamma or eps"),
    ("octopus", {"eps": -0.1}, "eps=-0.1"),
    ("octopus", {"gamma": -1.0}, "gamma=-1.0"),
    ("octopus", {"gamma": 3.0}, "curvature="),
    ("factorization", {"rank": 9}, "rank=9"),
    ("factorization", {"spectrum": (1.0, 2.0)}, "falling order"),
    ("factorization", {"spectrum": (0.0,)}, "falling order"),
    ("factorization", {"spectrum": ()}, "falling order"),
    ("sensing", {"rank": 0}, "rank=0"),
    ("sensing", {"num_samples": 0}, "num_samples=0"),
    ("phase-retrieval", {"dim": 0}, "dim=0"),
    ("phase-retrieval", {"num_samples": 0}, "num_samples=0"),
    ("orthogonal-tensor", {"dim": 0}, "dim=0"),
    ("orthogonal-tensor", {"penalty": 1.0}, "penalty=1.0"),
    ("deep-linear", {"hidden": 0}, "hidden=0"),
    ("deep-linear", {"depth": 1}, "depth=1"),
    ("deep-linear", {"num_samples": 4}, "num_samples=4: need at least inputs=5"),
    ("digits", {"hidden": 0}, "hidden=0"),
    ("digits", {"l2": -1.0}, "l2=-1.0"),
    ("digits", {"num_samples": 9}, "num_samples=9"),
    ("robust-regression", {"dim": 0}, "dim=0"),
    ("robust-regression", {"num_samples": 0}, "num_samples=0"),
    ("robust-regression", {"loss": "huber"}, "loss='huber'"),
    ("robust-regression", {"outliers": 2.0}, "outliers=2.0"),
    ("robust-regression", {"noise": -1.0}, "noise=-1.0"),
    ("mixture", {"dim": 0}, "dim=0"),
    ("mixture", {"num_samples": 0}, "num_samples=0"),
    ("mixture", {"separation": 0.0}, "separation=0.0"),
    ("variance", {"num_samples": 0}, "num_samples=0"),
    ("variance", {"data_sets": 0}, "data_sets=0"),
    ("variance", {"space": "exp"}, "space='exp'"),
    ("rosenbrock", {"dim": 1}, "dim=1"),
    ("worst-case-chain", {"eps": 0.0}, "eps=0.0"),
    ("worst-case-chain", {"length": 0}, "length=0"),
    ("monkey-saddle", {"dim": 1}, "dim=1"),
    ("monkey-saddle", {"confinement": 0.0}, "confinement=0.0"),
]


@pytest.mark.parametrize(("name", "options", "message"), BAD_OPTIONS)
def test_problem_rejects_an_option_by_name(
    name: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        problem(name, **options)


def test_digits_without_scikit_learn_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    chosen = problem("digits")
    with pytest.raises(ImportError, match=r"pip install 'asgld\[data\]'"):
        chosen.value(chosen.start())
