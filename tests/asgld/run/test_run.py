"""The loop: what it runs, why it stops, what it writes down, and that a kill changes nothing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import asgld
from asgld.methods import LBFGS, Method, State, TorchMethod, langevin, method
from asgld.methods.base import batch_indices, replica_seed
from asgld.oracle import Oracle
from asgld.oracle.functions import numpy_function, torch_function
from asgld.problems import problem
from asgld.run import Progress, Run, run
from asgld.run.history import Record
from asgld.run.stopping import Stop, StopWhen


def bowl(x: Tensor) -> Tensor:
    return (x**2).sum() / 2


def oracle_of(fun: Any = bowl, dim: int = 2, **options: Any) -> Oracle:
    return Oracle(torch_function(fun, dim), **options)


def ones(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.float64)


@dataclass(frozen=True)
class Newton:
    """A method for tests: one replica at a time, with data-dependent control flow."""

    max_step: float = 1.0
    name: str = "newton"
    needs: frozenset[str] = frozenset({"value", "grad", "hessian"})
    is_batched: bool = False

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> State:
        return NewtonState(x=x0, value=float(oracle.value(x0)), seed=seed)

    def step(self, oracle: Oracle, state: NewtonState) -> State:
        grad = oracle.grad(state.x)
        if float(grad.norm()) < 1e-10:
            return NewtonState(
                x=state.x, value=state.value, seed=state.seed, finished=True, message="grad is 0"
            )
        step = -torch.linalg.solve(oracle.hessian(state.x), grad)
        oracle.tally("solve")
        length = self.max_step
        while float(oracle.value(state.x + length * step)) > state.value and length > 1e-6:
            length /= 2
        x = state.x + length * step
        return NewtonState(x=x, value=float(oracle.value(x)), seed=state.seed)


@dataclass(kw_only=True)
class NewtonState(State):
    value: float
    seed: int


# ---------------------------------------------------------------------------- one rule


@pytest.mark.parametrize("name", ["asgld", "agld", "asg", "sgld"])
def test_run_is_the_shipped_optimizer_bit_for_bit(name: str) -> None:
    p = problem("strict-saddle")
    x0 = p.start(3)
    result = run(Oracle(p), langevin(name, lr=0.1), x0, max_steps=40, seed=7)
    x = x0.clone().requires_grad_()
    optimizer = getattr(asgld, name.upper())([x], lr=0.1, seed=7)
    for _ in range(40):
        x.grad = p.grad(x.detach())
        optimizer.step()
    assert torch.equal(result.x, x.detach())
    assert result.counts.total() == {
        "grad": 120,
        "samples": 120 * (p.num_samples or 1),
        "gradient_equivalents": 120.0,
    }


def test_any_torch_optimizer_is_a_method() -> None:
    adam = TorchMethod("adam", torch.optim.Adam, {"lr": 0.1})
    result = run(oracle_of(), adam, ones(4, 2), max_steps=100)
    assert float(result.values.max()) < 1e-3
    assert isinstance(adam, Method)


def test_replicas_are_independent_chains() -> None:
    p = problem("octopus", dim=4)
    starts = p.start(5)
    chain = langevin("sgld", lr=0.05, sigma=0.3)
    all_five = run(Oracle(p), chain, starts, max_steps=30, seed=3)
    first_two = run(Oracle(p), chain, starts[:2], max_steps=30, seed=3)
    assert torch.equal(all_five.x[:2], first_two.x)
    same_start = run(Oracle(p), chain, starts[:1].expand(2, -1), max_steps=30, seed=3)
    assert not torch.equal(same_start.x[0], same_start.x[1])


def test_batches_are_a_function_of_seed_and_step_and_grow() -> None:
    p = problem("mixture")
    n = p.num_samples
    assert n is not None
    growing = langevin("asgld", lr=0.1, batch_size=2, batch_slope=0.5)
    result = run(Oracle(p), growing, p.start(3), max_steps=10, seed=1)
    sizes = [2 + k // 2 for k in range(10)]
    assert result.counts.samples.tolist() == [sum(sizes)] * 3
    np.testing.assert_allclose(result.counts.spent, sum(sizes) / n)
    drawn = batch_indices(1, 5, 4000, n)
    assert int(drawn.min()) >= 0
    assert int(drawn.max()) < n
    # Null: uniform. The mean of 4000 draws has standard error n / sqrt(12 * 4000); five of them.
    assert abs(float(drawn.double().mean()) - (n - 1) / 2) < 5 * n / (12 * 4000) ** 0.5
    assert not torch.equal(drawn, batch_indices(1, 6, 4000, n))
    assert not torch.equal(drawn, batch_indices(2, 5, 4000, n))
    big = langevin("asgld", lr=0.1, batch_size=10**9)
    assert run(Oracle(p), big, p.start(1), max_steps=2).counts.total()["grad"] == 2


def test_lr_decays_as_stated() -> None:
    decaying = TorchMethod("sgd", torch.optim.SGD, {"lr": 0.5}, lr_decay=1.0)
    result = run(oracle_of(lambda x: x.sum(), 1), decaying, 0 * ones(1), max_steps=3)
    assert float(result.x) == pytest.approx(-0.5 * (1 + 1 / 2 + 1 / 3))


def test_methods_one_replica_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def valley(x: Tensor) -> Tensor:
        return (1 - x[0]) ** 2 + 5 * (x[1] - x[0] ** 2) ** 2

    starts = torch.tensor([[0.5, 0.5], [1.0, 1.0], [-0.5, 1.0]], dtype=torch.float64)
    result = run(oracle_of(valley), Newton(), starts, max_steps=100)
    assert result.stops == (Stop.FINISHED,) * 3
    assert result.messages[0] == "the method had nothing more to do: grad is 0"
    torch.testing.assert_close(result.x, ones(3, 2))
    assert result.steps[1] == 1  # it began at the minimum
    assert result.steps[0] < result.steps[2]
    alone = run(oracle_of(valley), Newton(), starts[2], max_steps=100)
    assert torch.equal(alone.x[0], result.x[2])
    assert alone.counts.calls["solve"][0] == result.counts.calls["solve"][2]
    seeds = []
    newton = Newton()
    monkeypatch.setattr(Newton, "init", lambda self, oracle, x0, *, seed: seeds.append(seed))
    with pytest.raises(AttributeError):  # a state that is None
        run(oracle_of(valley), newton, starts, max_steps=1, seed=5)
    assert seeds == [replica_seed(5, r) for r in range(3)]
    assert seeds[0] == 5
    assert len({replica_seed(2**64 - 1, r) for r in range(1000)}) == 1000


def test_lbfgs_descends_to_the_minimum_and_never_rises() -> None:
    p = problem("rosenbrock", dim=6)
    result = run(
        Oracle(p),
        LBFGS(),
        p.start(8),
        max_steps=500,
        stop=StopWhen(grad_tol=1e-9, every=1),
        record=Record("linear", every=1),
    )
    assert set(result.stops) <= {Stop.GRADIENT, Stop.FINISHED}
    assert float(result.grad_norms.max()) < 1e-6
    rises = np.diff(result.history.values, axis=0)
    assert rises.max() <= 1e-15 * np.abs(result.history.values).max()


# ---------------------------------------------------------------------------- stopping

GD = TorchMethod("gd", torch.optim.SGD, {"lr": 0.5})


def _nothing(_: Progress) -> None:
    return None


@pytest.mark.parametrize(
    ("options", "stop", "steps"),
    [
        ({}, Stop.MAX_STEPS, 20),
        ({"stop": StopWhen(grad_tol=0.1, every=1)}, Stop.GRADIENT, 4),
        ({"stop": StopWhen(grad_tol=0.1, every=3)}, Stop.GRADIENT, 6),
        ({"stop": StopWhen(target=0.1, every=1)}, Stop.TARGET, 2),
        ({"stop": StopWhen(grad_tol=5.0)}, Stop.GRADIENT, 0),
        ({"callback": lambda news: news.step == 5}, Stop.CALLBACK, 5),
        ({"callback": _nothing}, Stop.MAX_STEPS, 20),
        ({"stop": StopWhen(grad_tol=0.1, every=1, confirm=lambda *_: False)}, Stop.MAX_STEPS, 20),
        (
            {"stop": StopWhen(grad_tol=0.1, every=1, measure=lambda x, g: x[..., 0] * 0)},
            Stop.GRADIENT,
            0,
        ),
    ],
)
def test_run_stops_for_the_stated_reason(options: dict[str, Any], stop: Stop, steps: int) -> None:
    result = run(oracle_of(), GD, ones(2), max_steps=20, **options)
    assert (result.stop, int(result.steps[0])) == (stop, steps)
    assert result.messages == (stop.value,)
    torch.testing.assert_close(result.x[0], ones(2) * 0.5**steps)
    assert result.counts.total()["gradient_equivalents"] == steps


def test_budget_is_a_result_and_keeps_the_last_complete_step() -> None:
    result = run(oracle_of(budget=7.5), GD, ones(3, 2), max_steps=20)
    assert result.stops == (Stop.BUDGET,) * 3
    assert result.steps.tolist() == [7] * 3
    torch.testing.assert_close(result.x, ones(3, 2) * 0.5**7)
    assert result.counts.spent.tolist() == [7.0] * 3


def test_budget_inside_a_step_stops_each_replica_by_itself() -> None:
    def valley(x: Tensor) -> Tensor:
        return (1 - x[0]) ** 2 + 5 * (x[1] - x[0] ** 2) ** 2

    starts = torch.tensor([[1.0, 1.0], [-0.5, 1.0]], dtype=torch.float64)
    for budget in np.arange(0.25, 12.0, 0.5).tolist():
        result = run(oracle_of(valley, budget=budget), Newton(), starts, max_steps=100)
        assert result.counts.spent.max() <= budget
        assert result.stops[1] is Stop.BUDGET
        assert torch.isfinite(result.x).all()
        assert float(result.values[1]) <= float(valley(starts[1]))
    assert result.stops[0] is Stop.FINISHED
    batched = run(
        oracle_of(valley, budget=9.0), LBFGS(), starts, max_steps=100, stop=StopWhen(grad_tol=1e-8)
    )
    assert batched.stops == (Stop.GRADIENT, Stop.BUDGET)
    assert batched.counts.spent[1] <= 9.0


def test_nonfinite_replica_stops_without_spoiling_the_others() -> None:
    def cliff(x: Tensor) -> Tensor:
        return (x**2).sum() / 2 + torch.log(x[1] + 3)

    def overflow(x: Tensor) -> Tensor:
        return (x**2).sum() / 2 - torch.exp(-40 * (x[1] + 2.5)) / 40

    starts = torch.tensor([[1.0, 0.0], [1.0, -2.9], [0.5, 1.0]], dtype=torch.float64)
    # Beyond the cliff the value is nan but not the gradient; the other one overflows both, and no
    # value is looked at in between.
    for fun, call, every in ((cliff, "value", 1), (overflow, "grad", 100)):
        record = Record("linear", every=every)
        result = run(oracle_of(fun), GD, starts, max_steps=50, record=record)
        assert result.stops == (Stop.MAX_STEPS, Stop.NON_FINITE, Stop.MAX_STEPS)
        assert f"oracle call `{call}`" in result.messages[1]
        assert torch.isfinite(result.x).all()
        assert torch.isfinite(result.values).all()
        assert result.steps[1] < 50
        assert result.counts.spent[1] < 50
        good = run(oracle_of(fun), GD, starts[[0, 2]], max_steps=50)
        assert torch.equal(result.x[[0, 2]], good.x)


def test_start_where_f_is_not_finite_is_an_error_unless_others_are() -> None:
    log = oracle_of(lambda x: torch.log(x).sum())
    with pytest.raises(ValueError, match=r"`value` is not finite at x0 = \[-1\. -1\.\]"):
        run(log, GD, -ones(2), max_steps=1)
    starts = torch.stack((ones(2), -ones(2)))
    result = run(oracle_of(lambda x: torch.log(x).sum()), GD, starts, max_steps=1)
    assert result.stops == (Stop.MAX_STEPS, Stop.NON_FINITE)
    assert result.best == 0


def test_keyboard_interrupt_returns_what_there_is() -> None:
    calls = 0

    def impatient(x: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls > 12:
            calls = -(10**9)
            raise KeyboardInterrupt
        return x

    oracle = Oracle(numpy_function(lambda x: float(x @ x) / 2, 2, jac=impatient))
    result = run(oracle, GD, ones(2), max_steps=100, record=Record(grad_norms=False))
    assert result.stop is Stop.INTERRUPTED
    torch.testing.assert_close(result.x[0], ones(2) * 0.5 ** int(result.steps[0]))
    assert 0 < result.steps[0] < 13


def test_settled_run_stops_and_a_falling_one_does_not() -> None:
    when = StopWhen(settles=True)
    settled = run(
        oracle_of(), langevin("sgld", lr=0.1, sigma=0.1), ones(2), max_steps=5000, stop=when
    )
    assert settled.stop is Stop.SETTLED
    assert settled.steps[0] < 1000
    falling = run(oracle_of(lambda x: -x.sum()), GD, ones(2), max_steps=1000, stop=when)
    assert falling.stop is Stop.MAX_STEPS
    asked = []

    def refuse(x: Tensor, reason: Stop) -> bool:
        asked.append(reason)
        return False

    patient = StopWhen(settles=True, confirm=refuse, patience=2)
    still = run(oracle_of(lambda x: 0 * x.sum()), GD, ones(2), max_steps=5000, stop=patient)
    assert asked == [Stop.SETTLED] * 2
    assert still.stop is Stop.SETTLED


# ---------------------------------------------------------------------------- history


def test_history_is_on_schedule_and_agrees_with_the_end() -> None:
    p = problem("octopus", dim=3)
    record = Record("linear", every=10, iterates=True)
    result = run(Oracle(p), method("agld", lr=0.05), p.start(4), max_steps=35, record=record)
    history = result.history
    assert history.steps.tolist() == [0, 10, 20, 30, 35]
    assert history.iterates is not None
    assert history.iterates.shape == (5, 4, 3)
    np.testing.assert_array_equal(history.iterates[-1], result.x.numpy())
    np.testing.assert_array_equal(history.values[-1], result.values.numpy())
    np.testing.assert_allclose(history.values, p.value(torch.from_numpy(history.iterates)).numpy())
    assert history.spent[:, 0].tolist() == history.steps.tolist()
    np.testing.assert_array_equal(history.grad_norms[-1], result.grad_norms.numpy())
    quick = Record(grad_norms=False)
    assert np.isnan(
        run(Oracle(p), method("agld"), p.start(1), max_steps=3, record=quick).history.grad_norms[
            :-1
        ]
    ).all()


def test_progress_line_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    run(oracle_of(), GD, ones(2, 2), max_steps=30, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "gd [####################] 30/30" in captured.err


# ---------------------------------------------------------------------------- checkpoints


def assert_same(a: Run, b: Run) -> None:
    assert torch.equal(a.x, b.x)
    assert a.stops == b.stops
    assert a.messages == b.messages
    assert a.steps.tolist() == b.steps.tolist()
    assert a.counts.spent.tolist() == b.counts.spent.tolist()
    assert a.counts.total() == b.counts.total()
    assert a.history.steps.tolist() == b.history.steps.tolist()
    np.testing.assert_array_equal(a.history.values, b.history.values)
    np.testing.assert_array_equal(a.history.samples, b.history.samples)


RESUMED: dict[str, Any] = {
    "asgld": langevin("asgld", lr=0.1, sigma=0.1, batch_size=3, batch_slope=0.1, lr_decay=0.1),
    "adam": TorchMethod("adam", torch.optim.Adam, {"lr": 0.01}),
    "lbfgs": LBFGS(),
    "newton": Newton(),
}


@pytest.mark.parametrize("name", RESUMED)
def test_run_resumed_after_every_step_has_the_same_bits(name: str, tmp_path: Path) -> None:
    p = problem("mixture", dim=3)
    when = StopWhen(grad_tol=1e-6, settles=True, every=2)
    options: dict[str, Any] = {"stop": when, "seed": 5, "record": Record("linear", every=4)}
    whole = run(Oracle(p, budget=60.0), RESUMED[name], p.start(3), max_steps=24, **options)
    path = tmp_path / "run.pt"
    for steps in range(25):
        piece = run(
            Oracle(p, budget=60.0),
            RESUMED[name],
            p.start(3),
            max_steps=steps,
            checkpoint=path,
            **options,
        )
    assert_same(whole, piece)
    assert not list(tmp_path.glob(".*"))
    again = run(
        Oracle(p, budget=60.0), RESUMED[name], p.start(3), max_steps=24, checkpoint=path, **options
    )
    assert_same(whole, again)


def test_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    run(oracle_of(), GD, ones(2), max_steps=3, checkpoint=path)
    for change in ({"seed": 1}, {"x0": 2 * ones(2)}, {"method": LBFGS()}):
        arguments: dict[str, Any] = {"method": GD, "x0": ones(2), "seed": 0, **change}
        with pytest.raises(ValueError, match=f"another run: its {next(iter(change))} is"):
            run(oracle_of(), max_steps=3, checkpoint=path, **arguments)
    path.write_bytes(b"half a file")
    with pytest.raises(ValueError, match=r"cannot be read.*remove it"):
        run(oracle_of(), GD, ones(2), max_steps=3, checkpoint=path)


# ------------------------------------------------------------- one loop, however it is looked at


class Quartic:
    """|x|^4 / 4: descent overflows, after a number of steps that depends on the start."""

    dim, num_samples = 2, None

    def value(self, x: Tensor) -> Tensor:
        return (x**4).sum(-1) / 4

    def grad(self, x: Tensor) -> Tensor:
        return x**3


def quartic(**options: Any) -> Oracle:
    return Oracle(Quartic(), **options)  # type: ignore[arg-type]


def diverging(replicas: int) -> Tensor:
    return torch.linspace(1.5, 4.0, replicas, dtype=torch.float64)[:, None] * ones(2)


class Witness:
    """A callback that reads everything and remembers it."""

    def __init__(self) -> None:
        self.news: list[tuple[int, Tensor, np.ndarray, Any]] = []

    def __call__(self, news: Progress) -> None:
        self.news.append((news.step, news.x, news.active, news.counts))


LOOKED: dict[str, Any] = {
    "gd": GD,
    "adam": TorchMethod("adam", torch.optim.Adam, {"lr": 0.3}),
    "agld": langevin("agld", lr=0.5, sigma=0.1),
    "asgld": langevin("asgld", lr=0.3, sigma=0.1),
    "lbfgs": LBFGS(),
}


@pytest.mark.parametrize("name", LOOKED)
def test_run_has_the_same_bits_however_it_is_looked_at(name: str, tmp_path: Path) -> None:
    """Counts are charged in bulk only until somebody reads them, and a budget asks each replica."""
    options: dict[str, Any] = {"max_steps": 40, "seed": 3, "record": Record("linear", every=9)}
    plain = run(quartic(), LOOKED[name], diverging(7), **options)
    oracle = quartic()
    watched = run(oracle, LOOKED[name], diverging(7), callback=Witness(), **options)
    rich = run(quartic(budget=1e9), LOOKED[name], diverging(7), **options)
    saved = run(
        quartic(), LOOKED[name], diverging(7), **options,
        checkpoint=tmp_path / "run.pt", checkpoint_every=1,
    )  # fmt: skip
    again = run(oracle, LOOKED[name], diverging(7), **options)  # counts go on from where they are
    for other in (watched, rich, saved, again):
        assert_same(plain, other)
    assert oracle.counts.spent.tolist() == (2 * plain.counts.spent).tolist()


def test_replicas_that_diverge_stop_as_each_would_alone() -> None:
    starts, witness = diverging(9), Witness()
    together = run(quartic(), GD, starts, max_steps=30, callback=witness)
    alone = [run(quartic(), GD, start, max_steps=30) for start in starts]
    assert Stop.NON_FINITE in together.stops
    assert len(set(together.steps.tolist())) > 2
    assert torch.equal(together.x, torch.cat([a.x for a in alone]))
    assert together.steps.tolist() == [int(a.steps[0]) for a in alone]
    assert together.stops == tuple(a.stop for a in alone)
    assert together.messages == tuple(a.messages[0] for a in alone)
    assert together.counts.spent.tolist() == [float(a.counts.spent[0]) for a in alone]
    assert [step for step, *_ in witness.news] == list(range(1, int(together.steps.max()) + 1))
    for step, x, active, counts in witness.news:
        assert torch.isfinite(x).all()
        assert (together.steps[active] >= step).all()
        assert (together.steps[~active] <= step).all()
        assert counts.spent.tolist() == np.minimum(step, together.counts.spent).tolist()


def test_spending_by_parts_of_samples_adds_up_alike_for_replicas_that_differ() -> None:
    """3 / n is no binary fraction: sums depend on their order, which bulk counting must keep."""
    p = problem("mixture", dim=3)
    batches = langevin("sgld", lr=0.1, batch_size=3)
    even, odd = Oracle(p, replicas=4), Oracle(p, replicas=4)
    odd.rows(2).grad(p.start(4)[2])
    a, b = (run(oracle, batches, p.start(4), max_steps=50) for oracle in (even, odd))
    total = 0.0
    for _ in range(50):
        total += 3 / (p.num_samples or 1)
    assert even.counts.spent.tolist() == [total] * 4
    assert odd.counts.spent.tolist()[:2] == [total] * 2
    assert torch.equal(a.x, b.x)


@pytest.mark.parametrize("budget", [None, 5.5])
def test_interrupt_keeps_the_last_complete_step(budget: float | None) -> None:
    class Impatient(Quartic):
        calls = 0

        def grad(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == 8:
                raise KeyboardInterrupt
            return super().grad(x)

    oracle = Oracle(Impatient(), replicas=5, budget=budget)  # type: ignore[arg-type]
    if budget is not None:
        oracle.rows(0).grad(diverging(5)[0])  # it is the first that cannot pay
    rarely = Record("linear", every=999)
    result = run(oracle, GD, diverging(5), max_steps=99, record=rarely)
    steps = int(result.steps.max())
    expected = run(quartic(), GD, diverging(5), max_steps=steps, record=rarely)
    assert torch.equal(result.x[1:], expected.x[1:])
    assert result.steps[1:].tolist() == expected.steps[1:].tolist()
    assert Stop.INTERRUPTED in result.stops
    assert (Stop.BUDGET in result.stops) == (budget is not None)


def test_progress_is_read_when_asked_and_not_too_late() -> None:
    kept: list[Progress] = []

    def callback(news: Progress) -> None:
        if news.step == 2:
            news.x.zero_()  # a copy
        assert news.state.x.shape == (3, 2)
        kept.append(news)

    result = run(oracle_of(), GD, ones(3, 2), max_steps=3, callback=callback)
    torch.testing.assert_close(result.x, ones(3, 2) / 8)
    assert float(kept[1].x.sum()) == 0.0  # what was read stays
    with pytest.raises(RuntimeError, match="step 1"):
        _ = kept[0].x
    doubled = kept[-1].through(lambda x: 2 * x)
    torch.testing.assert_close(doubled.x, ones(3, 2) / 4)

    def ask(news: Progress) -> None:
        _ = news.state

    with pytest.raises(ValueError, match="newton"):
        run(oracle_of(), Newton(), 2 * ones(2), max_steps=3, callback=ask)


def test_iterates_may_be_of_single_precision() -> None:
    seen: list[torch.dtype] = []
    start = torch.ones(3, 2)
    result = run(
        quartic(), GD, start, max_steps=5, dtype=torch.float32,
        callback=lambda news: seen.append(news.state.x.dtype),
    )  # fmt: skip
    assert {result.x.dtype, *seen} == {torch.float32}
    assert run(quartic(), GD, start, max_steps=5).x.dtype == torch.float64


@pytest.mark.parametrize(
    "record", [Record(), Record(per_decade=5), Record("linear", every=7)], ids=str
)
def test_next_due_step_is_the_first_that_is_due(record: Record) -> None:
    due = [k for k in range(3000) if record.is_due(k)]
    for k in range(due[-1]):
        assert record.next_due(k) == due[np.searchsorted(due, k, side="right")]


KILLED = """
import os, random, signal, sys, time
import torch
torch.set_num_threads(1)
from asgld.methods import langevin
from asgld.oracle import Oracle
from asgld.problems import problem
from asgld.run import run
from asgld.run.stopping import StopWhen

path, result = sys.argv[1:]
p = problem("mixture", dim=3)

def work(checkpoint, callback=None):
    return run(
        Oracle(p), langevin("asgld", lr=0.1, sigma=0.1, batch_size=5), p.start(4), max_steps=150,
        stop=StopWhen(grad_tol=1e-9), seed=2, checkpoint=checkpoint, checkpoint_every=7,
        callback=callback,
    )

whole = work(None)
chance = random.Random(0)
kills = 0
while kills < 8:
    # The child spends a token per step and has too few to finish, however slow this process is.
    tokens, purse = os.pipe()
    child = os.fork()
    if child == 0:
        work(path, lambda progress: os.read(tokens, 1) == b"")
        os._exit(0)
    os.write(purse, b"." * chance.randint(1, 16))
    time.sleep(chance.uniform(0.0, 0.06))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(tokens)
    os.close(purse)
    kills += 1
pieces = work(path)
same = torch.equal(whole.x, pieces.x) and whole.counts.total() == pieces.counts.total()
same = same and (whole.history.values == pieces.history.values).all()
print(kills, bool(same), os.path.exists(path))
"""


@pytest.mark.skipif(not hasattr(sys, "getrefcount") or sys.platform == "win32", reason="needs fork")
def test_run_killed_at_any_moment_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    output = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path / "run.pt"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout.split()
    kills, same, exists = output
    assert int(kills) == 8
    assert (same, exists) == ("True", "True")


# ---------------------------------------------------------------------------- errors


def test_state_that_cannot_be_saved_is_named() -> None:
    @dataclass(kw_only=True)
    class Odd(State):
        rng: Any = None

    with pytest.raises(TypeError, match="state field 'rng' holds a Generator"):
        Odd(x=ones(2), rng=torch.Generator()).pack()


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"x0": ones(3)}, ValueError, r"x0 is \(3,\): need a tensor of shape \(2,\)"),
        ({"x0": [1.0, 1.0]}, ValueError, "x0 is list"),
        ({"method": "agld"}, TypeError, "method='agld'.*asgld.methods.method"),
        ({"max_steps": -1}, ValueError, "max_steps=-1"),
        ({"method": langevin("asgld", batch_size=4)}, ValueError, "not a mean over samples"),
    ],
)
def test_run_rejects_what_has_no_meaning(
    arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    arguments = {"method": GD, "x0": ones(2), "max_steps": 3, **arguments}
    with pytest.raises(error, match=match):
        run(oracle_of(), **arguments)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: langevin("asgld", learning_rate=1), TypeError, "'learning_rate'.*known are alpha"),
        (lambda: langevin("adam"), ValueError, "known are asgld, agld, asg, sgld"),
        (lambda: method("nope"), ValueError, "known are asgld"),
        (lambda: langevin("asgld", batch_size=0), ValueError, "batch_size=0"),
        (lambda: langevin("asgld", batch_slope=1.0), ValueError, "batch_slope=1.0 without"),
        (lambda: StopWhen(every=0), ValueError, "every=0"),
        (lambda: StopWhen(grad_tol=-1.0), ValueError, "grad_tol=-1.0"),
        (lambda: Record("daily"), ValueError, "schedule='daily'"),
    ],
)
def test_options_are_checked(make: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()
