"""The step of matrices where users take it: compiled, scaled, captured, judged, interrupted."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import make_tensor, take_steps
from torch import Tensor, nn

import asgld

SHAPES = ["polar-row", "polar", "row", "both"]


def _mlp(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))
    for i, p in enumerate(model.parameters()):
        p.data = make_tensor(*p.shape, seed=i, dtype=dtype)
    return model.to(dtype)


def _assert_equal(first: nn.Module, second: nn.Module) -> None:
    for p, q in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("shape", SHAPES)
def test_compiled_step_leaves_matrices_to_torch(shape: str) -> None:
    """The step runs beside the compiled code, with the same result."""
    plain, compiled = _mlp(torch.float64), _mlp(torch.float64)
    first = asgld.NetworkASGLD(plain, lr=0.01, shape=shape, fused=False)
    second = asgld.NetworkASGLD(compiled, lr=0.01, shape=shape, fused=False)
    torch._dynamo.reset()
    step = torch.compile(second.step, backend="eager")
    for k in range(3):
        for p, q in zip(plain.parameters(), compiled.parameters(), strict=True):
            p.grad = make_tensor(*p.shape, seed=k, dtype=p.dtype)
            q.grad = p.grad.clone()
        first.step()
        step()
    for p, q in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_scaler_unscales_and_skips(shape: str) -> None:
    plain, scaled = _mlp(), _mlp()
    first = asgld.NetworkASGLD(plain, lr=0.01, shape=shape)
    second = asgld.NetworkASGLD(scaled, lr=0.01, shape=shape)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    x = make_tensor(16, 4, seed=9)
    for k in range(3):
        for model, optimizer in ((plain, first), (scaled, second)):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            if model is plain:
                loss.backward()
                optimizer.step()
                continue
            scaler.scale(loss).backward()
            if k == 1:  # an overflow: nothing moves, and the next step is as if this had not been
                kept, state = copy.deepcopy(scaled), copy.deepcopy(second.state_dict())
                grads = [p.grad.clone() for p in scaled.parameters() if p.grad is not None]
                scaled[0].weight.grad[0, 0] = torch.inf
                scaler.step(second)
                _assert_equal(scaled, kept)
                for name, value in state["state"][0].items():
                    assert torch.equal(value, second.state_dict()["state"][0][name])
                scaler.update(new_scale=256.0)
                for p, grad in zip(scaled.parameters(), grads, strict=True):
                    p.grad = grad
            scaler.step(second)
            scaler.update(new_scale=256.0)
    _assert_equal(plain, scaled)


def test_fused_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"fused.*polar-row"):
        asgld.NetworkASGLD(_mlp(), fused=True)


@pytest.mark.parametrize("shape", ["polar-row", "polar", "row", "scalar"])
@pytest.mark.parametrize("lr", [0.01, torch.tensor(0.01)], ids=["number", "tensor"])
def test_count_on_the_device_changes_nothing(shape: str, lr: Any) -> None:
    plain, counted = _mlp(torch.float64), _mlp(torch.float64)
    first = asgld.NetworkASGLD(plain, lr=0.01, shape=shape)
    second = asgld.NetworkASGLD(counted, lr=lr, shape=shape, capturable=True)
    take_steps(first, 4)
    take_steps(second, 4)
    for p, q in zip(plain.parameters(), counted.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_replaced_gradients_tensors_and_states_are_seen(shape: str) -> None:
    """What a plan keeps is compared with what is there: an optimizer that plans every step anew
    ends with the same bits."""

    def run(plans_anew: bool) -> list[Tensor]:
        model = _mlp()
        optimizer = asgld.NetworkASGLD(model, lr=0.01, shape=shape)
        weight = model[0].weight
        for k in range(8):
            for i, p in enumerate(model.parameters()):
                p.grad = make_tensor(*p.shape, seed=10 * k + i)
            if k == 2:
                weight.data = weight.data.clone()
            if k == 3:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            if k == 4 and "momentum" in optimizer.state[weight]:
                optimizer.state[weight]["momentum"] = 2 * optimizer.state[weight]["momentum"]
            if k == 5:
                weight.grad = None
            if k == 6:
                weight.data = weight.data.t().contiguous().t()
            if k == 7:
                for group in optimizer.param_groups:
                    group["noise"], group["lr"] = 0.0, 0.05
            if plans_anew:
                optimizer._plans = {}
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    for kept, anew in zip(run(False), run(True), strict=True):
        assert torch.equal(kept, anew)


def test_ends_of_matrix_runs_are_judged() -> None:
    """A network of zeros is a saddle. Without noise the matrix rule stays there, with noise it
    leaves, and `classify` tells."""
    x = make_tensor(64, 2, seed=1, dtype=torch.float64)
    y = x[:, :1] * 0.5
    kinds = []
    for noise in (0.0, 0.3):
        model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 1, bias=False)).double()
        for p in model.parameters():
            nn.init.zeros_(p)
        optimizer = asgld.NetworkASGLD(model, lr=0.02, noise=noise)
        assert optimizer.param_groups[0]["shape"] == "polar-row"
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
        for _ in range(400):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
        hessian = asgld.ModelHessian(model, nn.functional.mse_loss, [(x, y)])
        kinds.append(asgld.classify(hessian, hessian.x, eps=1e-2, gamma=1e-2).kind)
    assert kinds[0] == asgld.Kind.STRICT_SADDLE
    assert kinds[1] in (asgld.Kind.MINIMUM, asgld.Kind.DEGENERATE)
    assert loss.item() < 1e-4


def test_certificate_says_that_it_does_not_cover_matrices() -> None:
    model = _mlp(torch.float64)
    optimizer = asgld.NetworkASGLD(model)
    tracker = asgld.CertificateTracker(optimizer, smoothness=1.0, f_start=1.0)
    take_steps(optimizer, 2)
    report = tracker.report()
    assert not report.holds
    assert "shape" in str(report)
