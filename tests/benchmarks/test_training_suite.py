"""The training suite at its tiny size: every task with every contender, resuming, the search."""

from __future__ import annotations

import csv
import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
ROOMS = ("running", "contenders", "data", "grown", "networks", "separation", "summary", "tasks")
running, contenders, data, grown, networks, separation, summary, tasks = (
    importlib.import_module(f"suite.{name}") for name in ROOMS
)
sys.path.remove(str(ROOT / "benchmarks"))
TASKS, CONTENDERS = tasks.TASKS, contenders.CONTENDERS


# These train every task; all contenders train one task of each kind.
FEW = "adamw,muon,matrix"
NOISY = {"matrix", "coordinate", "matrix-calibrated", "coordinate-calibrated"}


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _run(out: Path, *more: str) -> None:
    """At one lr, with one seed, in this process."""
    once = ("--lrs", "2e-3", "--seeds", "0", "--workers", "0")
    running.main(["--size", "tiny", *once, "--out", str(out), *more])


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file with a run of each task by each of a few contenders, and of one task by all. There are
    no prepared data: images are digits, the table is diabetes, text is the standard library's."""
    out = tmp_path_factory.mktemp("suite") / "rows.csv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "FOLDER", out.parent)
        patch.setattr(grown, "FOLDER", out.parent)
        running.load_data.cache_clear()
        everything = ",".join(TASKS)
        _run(out, "--tasks", everything, "--contenders", FEW, "--schedules", "cosine")
        _run(out, "--tasks", "cnn,grown-mlp")
        yield out
        running.load_data.cache_clear()


def test_tables_are_well_formed() -> None:
    for task in TASKS.values():
        assert set(task.tiny) <= set(task.full)
        assert {"steps", "batch"} <= set(task.tiny)
        assert task.part in running.PARTS.values()
    for name, contender in CONTENDERS.items():
        assert "," not in name
        assert set(contender.tasks) <= set(TASKS)
        assert set(contender.schedules) <= set(running.SCHEDULES)
        low, middle, high = contender.first_lrs
        assert (2 * low, 2 * middle) == pytest.approx((middle, high))
        assert contender.part in ("suite", "grown")


def _check(row: dict[str, str]) -> None:
    task = TASKS[row["task"]]
    assert row["diverged"] == "False"
    assert row["steps"] == str(task.tiny["steps"])
    figures = ("validation_loss", "training_loss", "optimizer_ms")
    assert all(float(row[key]) > 0 for key in figures), row
    assert len(row["points"].split()) == running.NUM_POINTS
    assert len(row["watched"].split()) == (0 if task.watch is None else running.NUM_POINTS + 1)
    assert (row["size"], row["torch"]) == ("tiny", torch.__version__)
    assert row["hardware"]


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_trained(rows: Path, task: str) -> None:
    found = {r["contender"]: r for r in _read(rows) if r["task"] == task}
    assert found.keys() >= set(FEW.split(","))
    for row in found.values():
        _check(row)


@pytest.mark.parametrize("contender", CONTENDERS)
def test_every_contender_trains(rows: Path, contender: str) -> None:
    if reason := CONTENDERS[contender].why_not():
        pytest.skip(reason)
    found = [r for r in _read(rows) if r["contender"] == contender]
    assert found
    for row in found:
        _check(row)


def test_copies_separate_by_noise_only(rows: Path) -> None:
    """Copies that are equal stay equal to the last bit under AdamW."""
    for row in _read(rows):
        if TASKS[row["task"]].part == "grown":
            first, *_, last = map(float, row["watched"].split())
            is_apart = row["contender"].startswith("by-hand")
            assert (first > 0) == is_apart
            is_noisy = is_apart or row["contender"] in NOISY
            assert (last > 0) == is_noisy, row


@pytest.mark.parametrize("name", [n for n, task in TASKS.items() if task.part == "grown"])
def test_growing_keeps_the_function(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "FOLDER", tmp_path)
    monkeypatch.setattr(grown, "FOLDER", tmp_path)
    task, sizes = TASKS[name], TASKS[name].sizes("tiny")
    torch.manual_seed(3)
    large = task.model(sizes)
    small, source = task.model.small(sizes, 3), task.data(sizes, "cpu")
    batch = source.batch(torch.arange(4))
    losses = [float(task.loss(model, batch).detach()) for model in (small, large)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert task.watch(large, sizes) == 0.0
    count = [sum(p.numel() for p in model.parameters()) for model in (small, large)]
    assert count[1] > count[0]


def test_separation_has_a_row_for_each_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "FOLDER", tmp_path)
    monkeypatch.setattr(grown, "FOLDER", tmp_path)
    monkeypatch.setattr(separation, "SETTINGS", separation.SETTINGS[:1])
    running.load_data.cache_clear()
    out = tmp_path / "rows.csv"
    separation.main(["--size", "tiny", "--steps", "60", "--seeds", "0", "--out", str(out)])
    found = _read(out)
    looks = 60 // separation.EVERY + 1
    assert len(found) == len(separation.RULES) * looks
    for row in found:
        assert float(row["distance"]) > 0
        assert float(row["predicted_rate"]) > 0
    running.load_data.cache_clear()


def test_derivatives_of_a_field_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    field = networks.make_field({"width": 5, "layers": 3}).double()
    points = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    value, laplacian = networks.with_laplacian(field, points)
    (slope,) = torch.autograd.grad(field(points).sum(), points, create_graph=True)
    bends = [torch.autograd.grad(slope[:, i].sum(), points, retain_graph=True)[0] for i in (0, 1)]
    torch.testing.assert_close(value, field(points).squeeze(1))
    torch.testing.assert_close(laplacian, bends[0][:, 0] + bends[1][:, 1])


def test_the_solution_has_no_residual() -> None:
    """The loss of the exact solution is zero: derivatives and constants fit together."""

    class Exact(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(math.pi * x[:, :1]) * torch.sin(4 * math.pi * x[:, 1:])

    def exact(field: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value = field(x).squeeze(1)
        return value, -17 * math.pi**2 * value

    source = data.Square({"points": 40}, "cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "with_laplacian", exact)
        assert float(networks.helmholtz(Exact(), source.batch(torch.arange(40)))) < 1e-6


def test_rows_that_exist_are_not_run_again(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, trained = tmp_path / "rows.csv", []

    def train(job: Any, *_: Any) -> dict[str, Any]:
        trained.append(job)
        kept = list(gone)[: list(gone).index("seconds") + 1]
        return {key: gone[key] for key in kept}

    header, *lines = rows.read_text().splitlines()
    gone = dict(zip(header.split(","), lines[3].split(","), strict=True))
    out.write_text("\n".join([header, *lines[:3], *lines[4:], ""]))
    monkeypatch.setattr(running, "train", train)
    everything = ("--tasks", ",".join(TASKS), "--contenders", FEW, "--schedules", "cosine")
    _run(out, *everything)
    assert [f"{job.task} {job.contender}" for job in trained] == [
        f"{gone['task']} {gone['contender']}"
    ]
    key = ("task", "contender", "schedule", "validation_loss")
    before, after = (sorted([row[k] for k in key] for row in _read(path)) for path in (rows, out))
    assert before == after
    _run(out, *everything)
    assert len(trained) == 1


def test_an_error_ends_one_run_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(model: torch.nn.Module, lr: float) -> None:
        raise RuntimeError("of no use")

    monkeypatch.setitem(CONTENDERS, "bad", contenders.Contender("bad", fail))
    once = ("--tasks", "factorization", "--schedules", "cosine")
    with pytest.raises(SystemExit, match="1 trainings failed"):
        _run(tmp_path / "rows.csv", *once, "--contenders", "bad,adamw")
    assert [row["contender"] for row in _read(tmp_path / "rows.csv")] == ["adamw"]
    assert "FAILED: RuntimeError: of no use" in capsys.readouterr().out


def test_nothing_starts_when_time_is_up(tmp_path: Path) -> None:
    _run(tmp_path / "rows.csv", "--seconds", "0")
    assert not (tmp_path / "rows.csv").exists()


def test_unknown_names_are_errors(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="unknown task gtp; there are gpt"):
        _run(tmp_path / "rows.csv", "--tasks", "gtp")


def test_workers_give_the_same_losses(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    out = tmp_path / "rows.csv"
    once = ("--tasks", "factorization", "--schedules", "cosine")
    _run(out, *once, "--contenders", "adamw", "--workers", "1")
    (here,) = _read(out)
    (there,) = (r for r in _read(rows) if (r["task"], r["contender"]) == ("factorization", "adamw"))
    assert float(here["validation_loss"]) == pytest.approx(float(there["validation_loss"]))


def test_tasks_and_contenders_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    file = tmp_path / "more.py"
    file.write_text(
        "import dataclasses, torch\n"
        "from suite.contenders import Contender\n"
        "from suite.tasks import TASKS as KNOWN\n"
        "TASKS = {'short': dataclasses.replace(KNOWN['rnn'], title='short')}\n"
        "def plain(model, lr):\n"
        "    return torch.optim.SGD(model.parameters(), lr)\n"
        "CONTENDERS = {'plain': Contender('plain SGD', plain, tasks=('short',))}\n"
    )
    out = tmp_path / "rows.csv"
    more = ("--contenders", "plain", "--more", str(file), "--schedules", "constant")
    _run(out, "--tasks", "short,factorization", *more)
    assert [row["task"] for row in _read(out)] == ["short"]


def test_a_file_must_not_replace_what_the_suite_has(tmp_path: Path) -> None:
    for text, message in (
        ("TASKS = {'gpt': None}", "names gpt, which the suite has"),
        ("A = 1", "has neither TASKS nor CONTENDERS"),
    ):
        file = tmp_path / f"more_{len(text)}.py"
        file.write_text(text)
        with pytest.raises(SystemExit, match=message):
            _run(tmp_path / "rows.csv", "--more", str(file))
    with pytest.raises(SystemExit, match="no such file"):
        _run(tmp_path / "rows.csv", "--more", str(tmp_path / "none.py"))
    with pytest.raises(SystemExit, match="need --out"):
        running.main(["--size", "tiny"])


def test_rows_of_another_length_are_refused_and_half_a_line_is_dropped(tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    once = ("--tasks", "factorization", "--schedules", "cosine", "--contenders", "adamw")
    _run(out, *once)
    whole = out.read_text()
    out.write_text(whole + "tiny,factorization,mu")
    _run(out, *once)
    assert out.read_text() == whole
    (row,) = _read(out)
    out.write_text(whole.replace(f",{row['steps']},", ",7,", 1))
    with pytest.raises(SystemExit, match="with 7 steps, not 10"):
        _run(out, *once)


@pytest.mark.parametrize(
    ("task", "count", "first", "last"),
    [
        ("gpt", 4, "blocks.0.qkv.weight", "blocks.0.narrow.weight"),
        ("rnn", 4, "rnn.weight_ih_l0", "rnn.weight_hh_l1"),
        ("cnn", 9, "stem.weight", "blocks.2.short.weight"),
        ("vit", 5, "patch.weight", "blocks.0.narrow.weight"),
        ("autoencoder", 7, "0.weight", "12.weight"),
        ("factorization", 3, "0.weight", "2.weight"),
    ],
)
def test_hidden_weights(task: str, count: int, first: str, last: str) -> None:
    model = TASKS[task].model(TASKS[task].sizes("tiny"))
    hidden = contenders.hidden_weights(model)
    assert len(hidden) == count
    assert [next(iter(hidden)), list(hidden)[-1]] == [first, last]
    parameters = dict(model.named_parameters())
    assert all(parameters[name] is p for name, p in hidden.items())


def test_muon_takes_a_convolution_as_a_matrix() -> None:
    generator = torch.Generator().manual_seed(1)
    start, *gradients = (torch.randn(4, 3, 2, 2, generator=generator) for _ in range(4))
    conv, matrix = start.clone().requires_grad_(), start.flatten(1).clone().requires_grad_()
    ours = contenders.MatrixMuon([conv], 0.1)
    theirs = torch.optim.Muon([matrix], 0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for gradient in gradients:
        conv.grad, matrix.grad = gradient.clone(), gradient.flatten(1).clone()
        ours.step()
        theirs.step()
    assert torch.equal(conv.flatten(1), matrix)
    assert not torch.equal(conv, start)


def test_cautious_adamw_is_its_authors() -> None:
    """One step from equal states, by the formulas of arXiv 2411.16085."""
    generator = torch.Generator().manual_seed(2)
    x, g1, g2 = (torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(3))
    p = x.clone().requires_grad_()
    optimizer = contenders.CautiousAdamW([p], 0.1)
    for grad in (g1, g2):
        p.grad = grad.clone()
        optimizer.step()
    m, v, expected = torch.zeros(6), torch.zeros(6), x.clone()
    for k, grad in enumerate((g1, g2), 1):
        m, v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad**2
        mask = (m * grad > 0).double()
        mask = mask / mask.mean().clamp(min=1e-3)
        step = (m / (1 - 0.9**k)) / ((v / (1 - 0.999**k)).sqrt() + 1e-8)
        expected -= 0.1 * mask * step
    torch.testing.assert_close(p.detach(), expected)


def _search(loss: Any) -> list[float]:
    losses: dict[float, float] = {}
    first = (1e-3, 2e-3, 4e-3)
    while wanted := [lr for lr in running.next_rates(first, losses) if lr not in losses]:
        losses |= {lr: loss(lr) for lr in wanted}
    return sorted(losses)


def test_search_goes_on_until_the_best_has_two_neighbours() -> None:
    assert _search(lambda lr: abs(math.log2(lr / 2e-3))) == [1e-3, 2e-3, 4e-3]
    assert _search(lambda lr: abs(math.log2(lr / 8e-3))) == [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2]
    # What diverges everywhere is tried lower, and the search ends.
    lowest = _search(lambda lr: math.inf)
    assert (lowest[0], lowest[-1]) == (3.125e-5, 4e-3)
    assert _search(lambda lr: -lr)[-1] == 4.096


def test_other_seeds_run_at_the_best_lr_its_neighbours_and_the_default() -> None:
    curve = summary.Curve("gpt", "adamw", "cosine")
    losses = {1e-3: 3.0, 2e-3: 2.0, 4e-3: 1.0, 8e-3: 2.0, 1.6e-2: 3.0}
    rows = [
        {"task": "gpt", "contender": "adamw", "schedule": "cosine", "lr": lr, "seed": 0,
         "validation_loss": loss, "diverged": False}
        for lr, loss in losses.items()
    ]  # fmt: skip
    contender = contenders.Contender("x", adamw, default_lr=1e-3)
    for is_brief, expected in ((False, {2e-3, 4e-3, 8e-3, 1e-3}), (True, {4e-3, 1e-3})):
        plan = running.Plan({curve: contender}, [0, 1, 2], None, rows, is_brief)
        jobs = list(plan.jobs())
        assert {job.lr for job in jobs} == expected
        assert sorted({job.seed for job in jobs}) == [1, 2]
        assert len(jobs) == 2 * len(expected)


def adamw(model: torch.nn.Module, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr)
