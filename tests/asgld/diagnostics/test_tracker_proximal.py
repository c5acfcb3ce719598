"""The tracker of runs with a penalty, against the truth and against the theory."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import asgld
from asgld.prox import L1, ElasticNet, GroupLasso, Penalty
from asgld.theory import proximal_certificate, proximal_noise_scale, proximal_step

CHAINS, P = 400, 0.05
# A true failure rate of P leads to more failures than this once in 3.5 million (5 sigma).
ALLOWED = P * CHAINS + 5 * math.sqrt(CHAINS * P * (1 - P))


def gradient(x: Tensor) -> Tensor:
    """Of f = sum 1 - cos x_i, whose smoothness is 1."""
    return torch.sin(x)


def value(x: Tensor, penalty: Penalty) -> Tensor:
    rows = torch.stack([penalty.on(x[:1].shape).value(row) for row in x])
    return (1 - torch.cos(x)).sum(-1) + rows


def mapping(x: Tensor, penalty: Penalty, envelope: float) -> Tensor:
    """The squared gradient mapping of each row."""
    t = 1 / envelope
    near = torch.stack([penalty.on(x[:1].shape).shrink(r - t * gradient(r), t) for r in x])
    return ((x - near) / t).square().sum(-1)


def chains(
    penalty: Penalty,
    *,
    steps: int = 120,
    variance: float = 0.0,
    dtype: Any = torch.float64,
    **knobs,
) -> tuple[asgld.CertificateTracker, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Run chains with a tracker: it, the smallest squared mappings, and the bounds at all times."""
    torch.manual_seed(4)
    x = (torch.rand(CHAINS, 6, dtype=torch.float64) * 5 - 2.5).to(dtype).requires_grad_()
    optimizer = asgld.ASGLD([x], prox=penalty, **knobs)
    tracker = asgld.CertificateTracker(
        optimizer, smoothness=1.0, f_start=value(x.detach().double(), penalty), is_batched=True,
        gradient_variance=variance,
    )  # fmt: skip
    least, bounds, smallest = [], [], torch.full((CHAINS,), math.inf, dtype=torch.float64)
    for _ in range(steps):
        here = x.detach().double()
        noise = math.sqrt(variance) * torch.randn(here.shape, dtype=torch.float64)
        x.grad = (gradient(here) + noise).to(dtype)
        optimizer.step()
        report = tracker.report()
        envelope = report.given["envelope"]
        smallest = torch.minimum(smallest, mapping(here, penalty, envelope))
        least.append(smallest.numpy().copy())
        bounds.append(np.asarray(report.certificate.bound))
    return tracker, np.array(least), np.array(bounds)


@pytest.mark.parametrize(
    ("penalty", "knobs"),
    [
        (L1(0.3), {"alpha": 0.0, "lr": 0.2, "sigma": 0.2}),
        (L1(0.3), {"alpha": 1.0, "lr": 0.1, "sigma": 0.1, "variance": 0.2}),
        (ElasticNet(0.2, 0.5), {"alpha": 0.5, "lr": 0.1, "sigma": 0.2, "variance": 0.2}),
        (GroupLasso(0.4), {"alpha": 0.0, "lr": 0.2, "sigma": 0.1, "variance": 0.2}),
        (L1(0.3), {"alpha": 0.0, "lr": 0.2, "sigma": 0.2, "dtype": torch.float32}),
    ],
)
def test_bounds_fail_no_more_often_than_p(penalty: Penalty, knobs: dict[str, Any]) -> None:
    # Null: a chain fails with probability P at most. 400 chains, 5 sigma.
    tracker, least, bounds = chains(penalty, beta=1.0, **knobs)
    assert tracker.report().holds
    assert np.isfinite(bounds).all()
    assert np.sum(np.any(least > bounds, axis=0)) <= ALLOWED
    assert "gradient mapping" in str(tracker.report())


def one_run(
    steps: int = 5, *, prox: Penalty | None = None, **knobs: Any
) -> tuple[Any, asgld.CertificateTracker, list[Tensor]]:
    torch.manual_seed(0)
    x = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64, requires_grad=True)
    knobs = {"lr": 0.1, "sigma": 0.1, "alpha": 1.0, "beta": 1.0, **knobs}
    optimizer = asgld.ASGLD([x], prox=prox or L1(0.3), **knobs)
    tracker = asgld.CertificateTracker(
        optimizer, smoothness=1.0, f_start=5.0, gradient_variance=0.1, envelope=6.0
    )
    seen = []
    for _ in range(steps):
        x.grad = gradient(x.detach())
        seen.append(x.grad.clone())
        optimizer.step()
    return optimizer, tracker, seen


def test_the_report_is_that_of_the_theory() -> None:
    _, tracker, gradients = one_run(7, delta=0.05)
    D, sizes, noises = np.ones(3), [], []
    for G in gradients:
        sizes.append(0.1 * D**-0.5)
        noises.append(2 * 0.1 * 0.1**2 / D + 0.1 * sizes[-1] ** 2)
        D = D + G.numpy() ** 2 + 0.05
    h, nu = np.array(sizes), np.array(noises)
    constants = {"smoothness": 1.0, "envelope": 6.0}
    kappa = proximal_noise_scale(0.002 + 0.001, 0.1, spread=3.0, **constants)
    taken = proximal_step(
        shortest=h.min(1), longest=h.max(1), noise=nu.max(1), total_noise=nu.sum(1), kappa=kappa,
        **constants,
    )  # fmt: skip
    expected = proximal_certificate(
        sum_weight=taken.weight.sum(1), sum_noise=taken.noise.sum(1), f_gap=5.0, kappa=kappa,
        **constants,
    )  # fmt: skip
    found = tracker.report().certificate
    assert found.bound == pytest.approx(expected.bound, rel=1e-6)
    assert 0 < found.rounding < 1e-5 * found.bound


def test_a_resumed_run_goes_on_with_its_sums() -> None:
    optimizer, tracker, _ = one_run(5)
    state = copy.deepcopy(optimizer.state_dict())
    other, resumed, _ = one_run(1)
    other.load_state_dict(state)
    assert resumed.report().certificate == tracker.report().certificate
    state["certificate"]["proximal"]["envelope"] = 7.0
    with pytest.raises(ValueError, match=r"envelope=7\.0, not 6\.0"):
        other.load_state_dict(state)
    del state["certificate"]["proximal"]
    with pytest.raises(ValueError, match="need the sums"):
        other.load_state_dict(state)
    assert resumed.report().certificate == tracker.report().certificate


@pytest.mark.parametrize(
    ("prox", "knobs", "word"),
    [
        (None, {"momentum": 0.9}, "momentum"),
        (None, {"clip": 0.5}, "clip"),
        (GroupLasso(0.1, torch.tensor([0, 0, 1])), {}, "groups"),
    ],
)
def test_what_is_not_proved_is_broken(
    prox: Penalty | None, knobs: dict[str, Any], word: str
) -> None:
    _, tracker, _ = one_run(2, prox=prox, **knobs)
    report = tracker.report()
    assert not report.holds
    assert report.certificate.bound == math.inf
    assert word in str(report)


def test_groups_at_alpha_zero_hold_unless_they_tie_replicas() -> None:
    groups = torch.tensor([[0, 0], [0, 1]])
    for is_batched in (False, True):
        x = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)
        optimizer = asgld.AGLD([x], lr=0.1, sigma=0.1, prox=GroupLasso(0.1, groups))
        tracker = asgld.CertificateTracker(
            optimizer, smoothness=1.0, f_start=5.0, is_batched=is_batched
        )
        x.grad = torch.ones(2, 2, dtype=torch.float64)
        optimizer.step()
        assert tracker.report().holds is not is_batched


def test_a_changed_penalty_a_longer_step_and_numbers_that_overflow_end_the_bound() -> None:
    optimizer, tracker, _ = one_run(2)
    assert tracker.report().holds
    optimizer.param_groups[0]["prox"] = L1(0.3)
    x = optimizer.param_groups[0]["params"][0]
    optimizer.step()
    assert tracker.report().holds  # an equal penalty is the same
    optimizer.param_groups[0]["prox"] = L1(0.4)
    optimizer.step()
    assert "changed during the run" in str(tracker.report())
    optimizer, tracker, _ = one_run(2)
    optimizer.param_groups[0]["lr"] = 1.0
    optimizer.step()
    assert "too long" in str(tracker.report())
    optimizer, tracker, _ = one_run(2)
    x = optimizer.param_groups[0]["params"][0]
    x.grad = torch.full_like(x, 1e200)
    for _ in range(3):
        optimizer.step()
    assert not tracker.report().holds


def test_values_of_the_iterate_and_useless_envelopes_are_refused() -> None:
    _, tracker, _ = one_run(2)
    with pytest.raises(ValueError, match=r"value=1\.0: with a penalty"):
        tracker.report(value=1.0)
    x = torch.ones(2, requires_grad=True)
    plain = asgld.AGLD([x], lr=0.1)
    with pytest.raises(ValueError, match=r"envelope=3\.0: need None"):
        asgld.CertificateTracker(plain, smoothness=1.0, f_start=1.0, envelope=3.0)
    sparse = asgld.AGLD([x], lr=0.1, prox=L1(0.1))
    with pytest.raises(ValueError, match=r"envelope=1\.0: need a finite number above"):
        asgld.CertificateTracker(sparse, smoothness=1.0, f_start=1.0, envelope=1.0)
    still = asgld.AGLD([x], lr=0.0, prox=L1(0.1))
    with pytest.raises(ValueError, match="lr > 0 when the tracker is attached"):
        asgld.CertificateTracker(still, smoothness=1.0, f_start=1.0)
    long = asgld.AGLD([x], lr=1.5, prox=L1(0.1))
    with pytest.raises(ValueError, match="smoothness"):
        asgld.CertificateTracker(long, smoothness=1.0, f_start=1.0)


def test_a_parameter_without_a_penalty_counts_with_the_others() -> None:
    x = torch.tensor([2.0, -1.0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    groups = [{"params": [x], "prox": L1(0.2)}, {"params": [y], "lr": 0.05}]
    optimizer = asgld.AGLD(groups, lr=0.1, sigma=0.01)
    tracker = asgld.CertificateTracker(optimizer, smoothness=1.0, f_start=4.0)
    for _ in range(300):
        x.grad, y.grad = x.detach().clone(), y.detach().clone()
        optimizer.step()
    report = tracker.report()
    assert report.holds
    # The shorter step, 0.05, gives the weights: at most 1 - (1 - 0.05 * 3 + 0.1)^2 each.
    assert 16 / 3 * 2 * 4 / (300 * 0.0975) < report.certificate.bound < 3


def test_an_edit_of_a_penalty_in_place_ends_the_bound() -> None:
    optimizer, tracker, _ = one_run(2, prox=L1([0.3, 0.3, 0.3]))
    x = optimizer.param_groups[0]["params"][0]
    before = x.detach().clone()
    optimizer.param_groups[0]["prox"].weight.mul_(4.0)
    with pytest.raises(ValueError, match="set a new penalty"):
        optimizer.step()
    assert torch.equal(x.detach(), before)
    optimizer.param_groups[0]["prox"] = L1([1.2, 1.2, 1.2])  # equal to the one that was edited
    optimizer.step()
    assert "changed during the run" in str(tracker.report())


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("prox", [None, L1(0.1)])
def test_parameters_without_coordinates_change_no_bound(alpha: float, prox: Penalty | None) -> None:
    reports = []
    for empty in ([], [torch.zeros(0)]):
        x = torch.ones(3, requires_grad=True)
        params = [*(e.requires_grad_() for e in empty), x, *(e.requires_grad_() for e in empty[1:])]
        optimizer = asgld.ASG(params, lr=0.1, alpha=alpha, prox=prox)
        tracker = asgld.CertificateTracker(optimizer, smoothness=1.0, f_start=4.0)
        for _ in range(5):
            for p in params:
                p.grad = p.detach().clone()
            optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        reports.append(tracker.report())
    assert reports[0] == reports[1]
    assert reports[0].holds


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kappa", "x"),
        ("kappa", 1),
        ("kappa", -1.0),
        ("kappa", math.nan),
        ("kappa", math.inf),
        ("weight", torch.ones(5, 3, dtype=torch.float64)),
        ("weight", torch.full((5,), math.nan, dtype=torch.float64)),
        ("weight", torch.full((5,), math.inf, dtype=torch.float64)),
        ("noise", -torch.ones(5, dtype=torch.float64)),
        ("drift", torch.ones(4, dtype=torch.float64)),
        ("lost", torch.ones(5)),
    ],
)
def test_sums_of_no_run_are_refused_before_anything_is_loaded(name: str, value: Any) -> None:
    optimizer, tracker, _ = one_run(5)
    state = copy.deepcopy(optimizer.state_dict())
    before = tracker.report()
    state["certificate"]["proximal"][name] = value
    with pytest.raises(ValueError, match=f"other proximal sums: {name}="):
        optimizer.load_state_dict(state)
    assert tracker.report() == before
    optimizer.step()


def test_sums_of_replicas_are_loaded() -> None:
    x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    optimizer = asgld.AGLD([x], lr=0.1, sigma=0.1, prox=L1(0.1))
    tracker = asgld.CertificateTracker(optimizer, smoothness=1.0, f_start=5.0, is_batched=True)
    optimizer.load_state_dict(optimizer.state_dict())  # before the first step, one sum for all
    for _ in range(2):
        x.grad = torch.ones(2, 3, dtype=torch.float64)
        optimizer.step()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert np.asarray(tracker.report().certificate.bound).shape == (2,)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_step_that_is_too_long_for_any_envelope_is_named(alpha: float) -> None:
    x = torch.ones(2, requires_grad=True)
    long = asgld.ASGLD([x], lr=5.0, alpha=alpha, prox=L1(0.1))
    with pytest.raises(ValueError, match=r"^lr .*=5\.0: need steps shorter than 1/smoothness"):
        asgld.CertificateTracker(long, smoothness=1.0, f_start=1.0)
