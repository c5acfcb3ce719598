"""The training suite at its tiny size: every task with every contender, resuming, the search."""

from __future__ import annotations

import csv
import importlib
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
suite = importlib.import_module("training_suite")
sys.path.remove(str(ROOT / "benchmarks"))


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _run(out: Path, *more: str) -> None:
    suite.main(["--size", "tiny", "--lrs", "2e-3", "--workers", "0", "--out", str(out), *more])


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with one run of each task, schedule and contender; the images are digits."""
    out = tmp_path_factory.mktemp("suite") / "rows.csv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite, "IMAGES", out.parent / "none.npz")
        _run(out)
    return out


def test_tables_are_well_formed() -> None:
    assert suite.BASELINE in suite.CONTENDERS
    for task in suite.TASKS.values():
        assert set(task.tiny) <= set(task.full)
        assert {"steps", "batch"} <= set(task.tiny)
        assert task.schedules
        assert set(task.schedules) <= set(suite.SCHEDULES)
    for name, contender in suite.CONTENDERS.items():
        assert "," not in name
        assert set(contender.tasks) <= set(suite.TASKS)


@pytest.mark.parametrize("contender", suite.CONTENDERS)
@pytest.mark.parametrize("task", suite.TASKS)
def test_every_contender_trains_every_task(rows: Path, task: str, contender: str) -> None:
    if reason := suite.CONTENDERS[contender].why_not():
        pytest.skip(reason)
    found = [r for r in _read(rows) if (r["task"], r["contender"]) == (task, contender)]
    assert [row["schedule"] for row in found] == list(suite.TASKS[task].schedules)
    for row in found:
        assert row["diverged"] == "False"
        assert row["steps"] == str(suite.TASKS[task].tiny["steps"])
        figures = ("validation_loss", "training_loss", "optimizer_ms")
        assert all(float(row[key]) > 0 for key in figures), row
        assert (row["size"], row["device"], row["torch"]) == ("tiny", "cpu", torch.__version__)


def test_rows_that_exist_are_not_run_again(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, trained = tmp_path / "rows.csv", []

    def train(job: Any, *_: Any) -> dict[str, Any]:
        trained.append(job)
        return dict(gone, task=job.task, contender=job.contender)

    header, *lines = rows.read_text().splitlines()
    gone = dict(zip(header.split(","), lines[3].split(","), strict=True))
    out.write_text("\n".join([header, *lines[:3], *lines[4:], ""]))
    monkeypatch.setattr(suite, "train", train)
    _run(out)
    assert [f"{job.task} {job.contender}" for job in trained] == [
        f"{gone['task']} {gone['contender']}"
    ]
    assert sorted(map(str, _read(out))) == sorted(map(str, _read(rows)))
    _run(out)
    assert len(trained) == 1


def test_an_error_ends_one_run_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(model: torch.nn.Module, lr: float) -> None:
        raise RuntimeError("of no use")

    monkeypatch.setitem(suite.CONTENDERS, "bad", suite.Contender(fail))
    _run(tmp_path / "rows.csv", "--tasks", "factorization", "--contenders", "bad,adamw")
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
    _run(out, "--tasks", "factorization", "--contenders", "adamw", "--workers", "1")
    (here,) = _read(out)
    (there,) = (r for r in _read(rows) if (r["task"], r["contender"]) == ("factorization", "adamw"))
    assert float(here["validation_loss"]) == pytest.approx(float(there["validation_loss"]))


def test_contenders_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "more.py"
    file.write_text(
        "import torch\n"
        "CONTENDERS = {'sgd': (lambda m, lr: torch.optim.SGD(m.parameters(), lr), ('rnn',))}\n"
    )
    out = tmp_path / "rows.csv"
    _run(out, "--tasks", "rnn,factorization", "--contenders", "sgd", "--more", str(file))
    assert [row["task"] for row in _read(out)] == ["rnn"]


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
    model = suite.TASKS[task].model(suite.sizes_of(task, "tiny"))
    hidden = suite.hidden_weights(model)
    assert len(hidden) == count
    assert [next(iter(hidden)), list(hidden)[-1]] == [first, last]
    parameters = dict(model.named_parameters())
    assert all(parameters[name] is p for name, p in hidden.items())


def test_muon_takes_a_convolution_as_a_matrix() -> None:
    generator = torch.Generator().manual_seed(1)
    start, *gradients = (torch.randn(4, 3, 2, 2, generator=generator) for _ in range(4))
    conv, matrix = start.clone().requires_grad_(), start.flatten(1).clone().requires_grad_()
    ours = suite.MatrixMuon([conv], 0.1)
    theirs = torch.optim.Muon([matrix], 0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for gradient in gradients:
        conv.grad, matrix.grad = gradient.clone(), gradient.flatten(1).clone()
        ours.step()
        theirs.step()
    assert torch.equal(conv.flatten(1), matrix)
    assert not torch.equal(conv, start)


def test_search_goes_on_until_the_best_has_two_neighbours() -> None:
    def search(loss: Any) -> list[float]:
        losses: dict[float, float] = {}
        while wanted := [lr for lr in suite.next_rates(losses) if lr not in losses]:
            losses |= {lr: loss(lr) for lr in wanted}
        return sorted(losses)

    assert search(lambda lr: abs(math.log2(lr / 2e-3))) == [1e-3, 2e-3, 4e-3]
    assert search(lambda lr: abs(math.log2(lr / 8e-3))) == [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2]
    # What diverges everywhere is tried lower, and the search ends.
    lowest = search(lambda lr: math.inf)
    assert (lowest[0], lowest[-1]) == (6.25e-5, 4e-3)
    assert search(lambda lr: -lr)[-1] == 6.4e-2


def test_table_compares_with_adamw_at_its_best() -> None:
    def row(contender: str, lr: float, loss: float, diverged: bool = False) -> dict[str, Any]:
        return {"lr": lr, "seed": "0", "validation_loss": loss, "diverged": diverged,
                "optimizer_ms": "1", "contender": contender}  # fmt: skip

    found = [
        row("adamw", 1e-3, 2.0),
        row("adamw", 2e-3, 1.0),
        row("adamw", 4e-3, 3.0),
        row("muon", 1e-3, 0.5),
        row("muon", 2e-3, 0.6),
        row("muon", 4e-3, 0.1, True),
    ]
    rows = {("full", "gpt", r["contender"], "cosine", f"{r['lr']:g}", "0"): r for r in found}
    lines = suite.table(rows, "full").splitlines()
    assert lines[1] == "gpt, cosine"
    muon, adamw = lines[2:]
    assert muon.split()[:2] == ["muon", "0.5000"]
    assert "AT THE EDGE" in muon
    assert adamw.split()[:2] == ["adamw", "1.0000"]
    assert "inside of 3" in adamw
