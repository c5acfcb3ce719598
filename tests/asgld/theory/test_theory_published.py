"""The catalog of published statements, and the advice that follows from the corrected ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from asgld.theory import VERDICTS, escape_time, item, items, rate, recommend, table1


@pytest.mark.parametrize(
    ("cited", "name"),
    [
        ("Lemma 1", "Lemma 1"),
        ("lemma a.2", "Lemma 2"),
        ("Theorem 4.1", "Theorem 1"),
        ("Proposition 4.2", "Proposition 2"),
        ("Lemma 4.3", "Proposition 3"),
        ("Theorem 4.4", "Theorem 2"),
        ("Theorem  4.5", "Batch theorem"),
        ("proposition 6", "Proposition 6"),
        ("Theorem 4.7", "Theorem 3"),
        ("Theorem 4.8", "Theorem 4"),
        ("Theorem 4", "Theorem 4"),
    ],
)
def test_published_items_answer_to_both_numberings(cited, name):
    assert item(cited).name == name


def test_published_items_are_complete_and_unambiguous():
    names = [alias.lower() for entry in items() for alias in (entry.name, *entry.aliases)]
    assert len(names) == len(set(names))
    for entry in items():
        assert entry.verdict in VERDICTS
        assert entry.statement.endswith(".")
        assert entry.reason.endswith(".")
        assert entry.verdict != "holds" or not entry.correction, entry.name
        is_wrong = entry.verdict in ("holds with correction", "refuted")
        assert entry.correction or not is_wrong, entry.name


def test_published_unknown_item_lists_the_known():
    with pytest.raises(ValueError, match=r"Theorem 5.*known are Equation 3"):
        item("Theorem 5")


def test_published_table_one_has_fourteen_rows_with_bound_and_oracle():
    rows = table1()
    assert [row.name for row in rows] == [f"Table 1 row {i}" for i in range(1, 15)]
    assert all(row.bound and row.oracle and row.unit and row.method and row.regime for row in rows)
    powers = [3.25, 1.5, 1.5, 1.75, 1.75, 2, np.nan, 2, np.nan, 3.5, 2, 4, 4, 2]
    np.testing.assert_array_equal([row.eps_power for row in rows], powers)
    assert [row.regime for row in rows].count("first order") == 8


def test_published_verdicts_agree_with_the_functions():
    # Case 2 of Theorem 2 is refuted, case 4 holds: the two versions of rate() say the same.
    assert item("Theorem 2 case 2").verdict == "refuted"
    assert rate(1.5, 2, version="published").exponent != rate(1.5, 2).exponent
    for alpha, beta in itertools.product((0.25, 0.5, 0.75), (0.45, 0.5, 0.75, 1.0, 2.0)):
        if beta > alpha / 2:
            printed, correct = rate(alpha, beta, version="published"), rate(alpha, beta)
            assert printed.exponent == pytest.approx(correct.exponent)
            assert printed.log_power == correct.log_power
    assert item("Theorem 2 case 4").verdict == "holds"
    assert item("Theorem 2 case 1").verdict == "holds"
    assert rate(2, 1.5, version="published").formula == rate(2, 1.5).formula


@pytest.mark.parametrize("goal", ["converge", "escape", "balanced"])
@pytest.mark.parametrize(
    ("oracle", "growing"), [("full", False), ("stochastic", False), ("stochastic", True)]
)
def test_advice_converges_and_states_its_own_rate(goal, oracle, growing):
    advice = recommend(goal, oracle=oracle, growing_batch=growing)
    assert advice.rate.converges
    assert advice.alpha <= 1
    assert (
        advice.rate.exponent
        == rate(advice.alpha, advice.beta, method=advice.method, theta=advice.theta).exponent
    )
    for symbol, value, reason in zip(
        ("alpha", "beta", "theta"),
        (advice.alpha, advice.beta, advice.theta),
        advice.reasons,
        strict=True,
    ):
        assert reason.startswith(f"{symbol}={value:g}")


@pytest.mark.parametrize(
    ("oracle", "growing"), [("full", False), ("stochastic", False), ("stochastic", True)]
)
def test_advice_trades_rate_for_escape(oracle, growing):
    advice = {
        goal: recommend(goal, oracle=oracle, growing_batch=growing)
        for goal in ("converge", "balanced", "escape")
    }
    exponents = [entry.rate.exponent for entry in advice.values()]
    assert exponents == sorted(exponents, reverse=True)
    variance = 0.0 if oracle == "full" else 0.1
    times = [
        escape_time(
            0.5,
            lr=0.1,
            alpha=entry.alpha,
            beta=entry.beta,
            sigma=0.1,
            gradient_variance=variance,
            k0=1e4,
        ).steps
        for entry in advice.values()
    ]
    assert times == sorted(times, reverse=True)


def test_advice_converge_has_the_best_exponent_of_its_oracle():
    alpha, beta = np.meshgrid(np.linspace(0, 2, 81), np.linspace(0, 3, 61))
    assert recommend("converge").rate.exponent == pytest.approx(rate(alpha, beta).exponent.max())
    best = rate(alpha, beta, method="agld").exponent.max()
    assert recommend("converge", oracle="full").rate.exponent == pytest.approx(best)


def test_advice_refuses_unknown_goals():
    with pytest.raises(ValueError, match=r"goal='fast'.*'converge'"):
        recommend("fast")
    with pytest.raises(ValueError, match="oracle='hessian'"):
        recommend(oracle="hessian")
