"""The certificate against runs of the real optimizer, and its life in hooks and checkpoints.

f(x) = sum_i 1 - cos x_i has M = 1, f >= 0, and saddles and maxima on the way. The null of the
violation tests: at most a share p of runs ever has a weighted mean of squared gradients above its
bound. 100 runs of 500 steps each, looked at after every step.
"""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import numpy as np
import pytest
import torch

import asgld
from asgld.diagnostics import CertificateTracker, Tracked
from asgld.methods import langevin
from asgld.oracle import Oracle
from asgld.problems import problem
from asgld.run import run

REPLICAS, DIM, STEPS, P = 100, 10, 500, 0.05
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "agld": {"alpha": 0.0, "beta": 1.0, "sigma": 0.3, "lr": 0.5},
    "agld at lr = 1.9/M": {"alpha": 0.0, "beta": 1.0, "sigma": 0.3, "lr": 1.9},
    "agld, beta 2": {"alpha": 0.0, "beta": 2.0, "sigma": 0.3, "lr": 0.5},
    "asgld": {"alpha": 1.0, "beta": 1.0, "sigma": 0.3, "lr": 0.5, "noise": 0.3},
    "asgld at lr = 1.9/M": {"alpha": 1.0, "beta": 1.0, "sigma": 0.3, "lr": 1.9, "noise": 0.3},
    "asgld, general powers": {"alpha": 0.6, "beta": 0.8, "sigma": 0.3, "lr": 0.5, "noise": 0.3},
    "asg": {"alpha": 1.0, "beta": math.inf, "sigma": 0.0, "lr": 0.5, "noise": 0.3},
}


def _simulate(
    *, noise: float = 0.0, smoothness: float = 1.0, claimed_noise: float | None = None, **knobs: Any
) -> tuple[float, float]:
    """Share of runs that ever violate their bound, and median of bound / truth at the end."""
    generator = torch.Generator().manual_seed(5)
    x = torch.empty(REPLICAS, DIM, dtype=torch.float64).uniform_(-3, 3, generator=generator)
    x.requires_grad_()
    optimizer = asgld.ASGLD([x], delta=0.1, seed=8, **knobs)
    tracker = CertificateTracker(
        optimizer,
        smoothness=smoothness,
        f_start=(1 - x.detach().cos()).sum(1),
        gradient_variance=noise**2 if claimed_noise is None else claimed_noise,
        p=P,
        is_batched=True,
    )
    weighted = torch.zeros(REPLICAS, dtype=torch.float64)
    violated = np.zeros(REPLICAS, bool)
    for _ in range(STEPS):
        gradient = x.detach().sin()
        before = torch.as_tensor(tracker.sum_weight)
        x.grad = gradient + noise * torch.randn(
            REPLICAS, DIM, dtype=torch.float64, generator=generator
        )
        optimizer.step()
        weight = torch.as_tensor(tracker.sum_weight) - before
        weighted += weight * (gradient**2).sum(1)
        truth = (weighted / tracker.sum_weight).numpy()
        violated |= truth > tracker.report().certificate.bound
    report = tracker.report()
    assert report.holds
    return float(violated.mean()), float(np.median(report.certificate.bound / truth))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_certificate_is_rarely_violated_and_close_to_the_truth(name: str) -> None:
    violations, ratio = _simulate(**CONFIGURATIONS[name])
    assert violations <= P
    assert 1.0 <= ratio <= 4.0


def test_certificate_fails_with_a_tampered_smoothness() -> None:
    violations, _ = _simulate(smoothness=0.05, **CONFIGURATIONS["agld at lr = 1.9/M"])
    assert violations > P


def test_certificate_fails_with_a_tampered_start() -> None:
    x = torch.full((4,), 2.0, dtype=torch.float64, requires_grad=True)
    optimizer = asgld.AGLD([x], lr=1.0, sigma=0.0)
    honest, tampered = (
        CertificateTracker(optimizer, smoothness=1.0, f_start=f, f_low=0.0) for f in (8.0, 0.1)
    )
    x.grad = x.detach().clone()  # f = |x|^2 / 2: |grad|^2 = 16 at the start
    optimizer.step()
    assert honest.report().certificate.bound >= 16.0
    assert tampered.report().certificate.bound < 16.0


# ----------------------------------------------------------------------------------------------


def _model() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 1).double()
    return model, torch.randn(32, 4).double(), torch.randn(32, 1).double()


def _train(optimizer: asgld.ASGLD, model: Any, data: Any, target: Any, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(data), target).backward()
        optimizer.step()


@pytest.mark.parametrize("backend", [{"foreach": False}, {"foreach": True}, {}])
def test_sums_are_exact_under_parameter_groups(backend: dict[str, Any]) -> None:
    model, data, target = _model()
    groups = [
        {"params": [model.weight], "lr": 0.05, "alpha": 1.0},
        {"params": [model.bias], "lr": 0.02, "alpha": 0.5, "d_init": 2.0},
    ]
    optimizer = asgld.ASGLD(groups, sigma=0.05, **backend)
    tracker = CertificateTracker(optimizer, smoothness=10.0, f_start=5.0)
    moved = weight = 0.0
    for _ in range(20):
        before = [p.detach().clone() for p in model.parameters()]
        smallest = []
        for group in optimizer.param_groups:
            state = optimizer.state[group["params"][0]]
            metric = state["sum"] + group["d_init"] + group["delta"] * int(state["step"])
            smallest.append(float((group["lr"] * metric ** (-group["alpha"] / 2)).min()))
        _train(optimizer, model, data, target, 1)
        weight += min(smallest)
        moved += sum(
            float(((p.detach() - b) ** 2).sum())
            for p, b in zip(model.parameters(), before, strict=True)
        )
    assert float(tracker.sum_weight) == pytest.approx(weight, rel=1e-12)
    assert float(tracker.sum_sq_step) == pytest.approx(moved, rel=1e-12)


def test_tracker_does_not_change_the_run() -> None:
    results = []
    for tracked in (False, True):
        model, data, target = _model()
        optimizer = asgld.ASGLD(model.named_parameters(), lr=0.1, sigma=0.1)
        if tracked:
            CertificateTracker(optimizer, smoothness=10.0, f_start=5.0)
        _train(optimizer, model, data, target, 10)
        results.append(copy.deepcopy(model.weight.detach()))
    assert torch.equal(results[0], results[1])


def test_tracker_resumes_with_the_optimizer() -> None:
    def start() -> tuple[Any, ...]:
        model, data, target = _model()
        optimizer = asgld.ASGLD(model.parameters(), lr=0.1, sigma=0.1)
        return (
            model,
            data,
            target,
            optimizer,
            CertificateTracker(optimizer, smoothness=10.0, f_start=5.0),
        )

    model, data, target, optimizer, straight = start()
    _train(optimizer, model, data, target, 9)

    model, data, target, optimizer, _ = start()
    _train(optimizer, model, data, target, 4)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    model, data, target, optimizer, resumed = start()
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    _train(optimizer, model, data, target, 5)
    assert resumed.num_steps == 9
    assert resumed.report() == straight.report()


def test_state_saved_without_a_tracker_is_refused() -> None:
    x = torch.ones(2, requires_grad=True)
    state = asgld.ASGLD([x]).state_dict()
    optimizer = asgld.ASGLD([x])
    CertificateTracker(optimizer, smoothness=1.0, f_start=1.0)
    with pytest.raises(ValueError, match=r"has no 'certificate'.*before the tracker is attached"):
        optimizer.load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"weight_decay": 0.1}, "weight decay"),
        ({"lr": 5.0}, "raised above"),
        ({"sigma": 5.0}, "raised above"),
    ],
)
def test_broken_conditions_are_reported(change: dict[str, float], word: str) -> None:
    x = torch.ones(2, requires_grad=True)
    optimizer = asgld.ASGLD([x], lr=0.1)
    tracker = CertificateTracker(optimizer, smoothness=1.0, f_start=1.0, gradient_variance=0.1)
    optimizer.param_groups[0].update(change)
    x.grad = torch.ones(2)
    optimizer.step()
    report = tracker.report()
    assert not report.holds
    assert word in str(report)


def test_a_falling_step_size_breaks_nothing() -> None:
    x = torch.ones(2, requires_grad=True)
    optimizer = asgld.ASGLD([x], lr=0.1)
    tracker = CertificateTracker(optimizer, smoothness=1.0, f_start=1.0, gradient_variance=0.1)
    for lr in (0.1, 0.05, 0.01):
        optimizer.param_groups[0]["lr"] = lr
        x.grad = x.detach().clone()
        optimizer.step()
    assert tracker.report().holds
    assert "with probability 0.95" in str(tracker.report())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"smoothness": -1.0}, ValueError, r"smoothness=-1\.0"),
        ({"gradient_variance": math.nan}, ValueError, "gradient_variance=nan"),
        ({"p": 0.0}, ValueError, r"p=0\.0"),
        ({"f_low": 2.0}, ValueError, r"f_start=1\.0 is below f_low=2\.0"),
    ],
)
def test_bad_constants_are_refused(
    arguments: dict[str, float], error: type[Exception], message: str
) -> None:
    optimizer = asgld.ASGLD([torch.ones(2, requires_grad=True)])
    with pytest.raises(error, match=message):
        CertificateTracker(optimizer, **{"smoothness": 1.0, "f_start": 1.0, **arguments})


def test_other_optimizers_and_heating_noise_are_refused() -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(TypeError, match="optimizer is a SGD"):
        CertificateTracker(torch.optim.SGD([x]), smoothness=1.0, f_start=1.0)
    with pytest.warns(UserWarning, match="grows"):
        heating = asgld.ASGLD([x], beta=0.3)
    with pytest.raises(ValueError, match="the noise heats"):
        CertificateTracker(heating, smoothness=1.0, f_start=1.0)
    with pytest.raises(RuntimeError, match="no step was taken"):
        CertificateTracker(asgld.ASGLD([x]), smoothness=1.0, f_start=1.0).report()


def test_runs_carry_certificates_through_checkpoints(tmp_path: Any) -> None:
    saddle = problem("strict-saddle", dim=4)
    x0 = saddle.start(3)

    def tracked() -> Tracked:
        return Tracked(
            langevin("agld", lr=0.2, sigma=0.01),
            smoothness=10.0,
            f_start=saddle.value(x0),
            f_low=saddle.facts.minimum,
        )

    whole, first, second = tracked(), tracked(), tracked()
    run(Oracle(saddle), whole.method, x0, max_steps=60)
    file = tmp_path / "run.pt"
    run(Oracle(saddle), first.method, x0, max_steps=25, checkpoint=file)
    run(Oracle(saddle), second.method, x0, max_steps=60, checkpoint=file)
    expected, found = whole.tracker.report(), second.tracker.report()
    assert (expected.certificate.bound == found.certificate.bound).all()
    assert found.certificate.bound.shape == (3,)
