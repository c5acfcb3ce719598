"""The optimizers on a GPU: backends agree, and graphs, compilers, scalers and checkpoints work."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import (
    HEATING,
    OPTIMIZERS,
    assert_plan_follows_what_changes,
    make_parameters,
    make_tensor,
)
from torch import Tensor

import asgld

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings(HEATING),
]
SHAPES: list[tuple[int, ...]] = [(5, 7), (), (1000,), (0, 3), (33, 65), (4, 3, 2, 2)]
PLANNED: list[tuple[int, ...]] = [(5, 7), (1000,), (33, 65), (0, 3), ()]
FUSED = {"fused": True}
LOOP = {"foreach": False, "fused": False}
WIDER = {
    "decay": 0.99, "momentum": 0.9, "clip": 0.25, "annealing": 1.0, "d_init": 0.0,
    "opposed": 0.0,
}  # fmt: skip


def make(
    dtype: torch.dtype = torch.float32, shapes: list[tuple[int, ...]] = SHAPES
) -> list[Tensor]:
    return [p.detach().cuda().requires_grad_() for p in make_parameters(shapes, dtype=dtype)]


def feed(optimizer: torch.optim.Optimizer, k: int) -> None:
    for group in optimizer.param_groups:
        for i, p in enumerate(group["params"]):
            drawn = make_tensor(*p.shape, seed=100 * k + i, dtype=p.dtype).cuda()
            p.grad = drawn + 0.5 * p.detach()


def run(optimizer: torch.optim.Optimizer, steps: int, first: int = 0) -> None:
    for k in range(first, first + steps):
        feed(optimizer, k)
        optimizer.step()


def values(params: list[Tensor]) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in params])


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_gpu_backends_agree(name: str, dtype: torch.dtype) -> None:
    found = []
    for options in (LOOP, {"foreach": True}, FUSED):
        params = make(dtype)
        run(OPTIMIZERS[name](params, lr=0.05, stochastic_rounding=True, **options), 10)
        found.append(values(params))
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5}.get(dtype, 0.05)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=tolerance, atol=tolerance)


def test_gpu_picks_the_kernel_and_keeps_steps_with_it() -> None:
    params = make()
    optimizer = asgld.ASGLD(params)
    assert optimizer.backends[0].name == "fused"
    run(optimizer, 3)
    for p in params:
        assert optimizer.state[p]["step"].is_cuda
        assert int(optimizer.state[p]["step"]) == 3


def test_gpu_and_cpu_have_the_same_trajectory() -> None:
    found = []
    for device in ("cpu", "cuda"):
        params = [p.detach().to(device).requires_grad_() for p in make_parameters(SHAPES)]
        optimizer = asgld.ASGLD(params, lr=0.05, sigma=0.1)
        for k in range(20):
            for i, p in enumerate(params):
                p.grad = make_tensor(*p.shape, seed=100 * k + i).to(device)
            optimizer.step()
        found.append(values([p.cpu() for p in params]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, WIDER], ids=["paper", "wider"])
def test_gpu_resume_is_bit_exact(options: dict[str, Any]) -> None:
    straight = make()
    run(asgld.ASGLD(straight, **FUSED, **options), 10)
    params = make()
    first = asgld.ASGLD(params, **FUSED, **options)
    run(first, 4)
    resumed = [p.detach().clone().requires_grad_() for p in params]
    second = asgld.ASGLD(resumed, **FUSED, **options)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    run(second, 6, first=4)
    assert torch.equal(values(resumed), values(straight))


@pytest.mark.parametrize("options", [{}, WIDER])
def test_gpu_plan_follows_what_changes(options: dict[str, Any]) -> None:
    assert_plan_follows_what_changes(lambda: make(shapes=PLANNED), **options)


def test_gpu_graph_replays_draw_new_noise() -> None:
    captured, eager = make(), make()
    lr = torch.tensor(0.05, device="cuda")
    optimizer = asgld.ASGLD(captured, lr=lr, sigma=0.1, capturable=True, fused=True)
    for p in captured:
        p.grad = torch.ones_like(p)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    kept = [p.grad for p in captured]  # what the graph reads
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    graph.replay()
    for p in captured:  # an eager step with gradients elsewhere may not disturb the graph's
        p.grad = torch.ones_like(p)
    optimizer.step()
    lr.fill_(0.01)
    graph.replay()
    plain = asgld.ASGLD(eager, lr=0.05, sigma=0.1, fused=True)
    for k in range(4):
        for p in eager:
            p.grad = torch.ones_like(p)
        plain.param_groups[0]["lr"] = float(torch.tensor(0.05 if k < 3 else 0.01))
        plain.step()
    assert torch.equal(values(captured), values(eager))
    assert int(optimizer.state[captured[0]]["step"]) == 4
    assert all(int(g.count_nonzero()) == g.numel() for g in kept if g is not None)


@pytest.mark.parametrize("options", [{}, {"alpha": 0.7}, WIDER], ids=["paper", "powers", "wider"])
@pytest.mark.parametrize("form", [{}, {"sum_dtype": torch.bfloat16, "stochastic_rounding": True}])
def test_gpu_replays_count_as_the_host_does(options: dict[str, Any], form: dict[str, Any]) -> None:
    """Two hundred in a row, with nothing between them to wait for, of tensors that keep the GPU
    busy and tensors that do not; then from a count that somebody wrote."""
    dtype = torch.bfloat16 if form else torch.float32
    shapes = [(2_000_003,), (7,), (), (300, 500), (0, 3), *[(64,)] * 150]
    found = []
    for capturable in (True, False):
        params = make(dtype, shapes)
        optimizer = asgld.ASGLD(params, lr=1e-3, capturable=capturable, **FUSED, **form, **options)
        for p in params:
            p.grad = torch.sin(p.detach())
        step = optimizer.step
        step()
        if capturable:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                optimizer.step()
            step = graph.replay
        for _ in range(200):
            step()
        assert {int(optimizer.state[p]["step"]) for p in params} == {201}
        for p in params:
            optimizer.state[p]["step"].fill_(5000)
        for _ in range(3):
            step()
        assert {int(optimizer.state[p]["step"]) for p in params} == {5003}
        found.append(values([*params, *(optimizer.state[p]["sum"] for p in params)]))
    assert torch.equal(*found)


def test_gpu_capture_without_a_step_before_it_says_so() -> None:
    params = make()
    optimizer = asgld.ASGLD(params, capturable=True, fused=True)
    for p in params:
        p.grad = torch.ones_like(p)
    torch.cuda.synchronize()
    with (
        pytest.raises(RuntimeError, match="before the capture"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        optimizer.step()


@pytest.mark.parametrize("options", [{}, WIDER], ids=["paper", "wider"])
def test_gpu_step_compiles(options: dict[str, Any]) -> None:
    compiled, eager = make(), make()
    optimizer = asgld.ASGLD(compiled, sigma=0.1, fused=True, **options)
    step = torch.compile(optimizer.step, fullgraph=False)
    plain = asgld.ASGLD(eager, sigma=0.1, fused=True, **options)
    for k in range(3):
        feed(optimizer, k)
        step()
        feed(plain, k)
        plain.step()
    assert torch.equal(values(compiled), values(eager))


def test_gpu_scaler_skips_without_touching_anything() -> None:
    params = make()
    optimizer = asgld.ASGLD(params, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    reference = make()
    plain = asgld.ASGLD(reference, fused=True)
    for k in range(4):
        feed(optimizer, k)
        for p in params:
            p.grad = p.grad * 1024.0  # type: ignore[operator]
        if k == 2:
            params[2].grad[5] = torch.inf  # type: ignore[index]
        scaler.scale(torch.zeros((), device="cuda"))
        scaler.step(optimizer)
        scaler.update(1024.0)
        if k != 2:
            feed(plain, k)
            plain.step()
    assert torch.equal(values(params), values(reference))
    assert int(optimizer.state[params[0]]["step"]) == 3


def test_gpu_fused_step_takes_no_memory() -> None:
    params = [torch.randn(1 << 22, device="cuda").requires_grad_() for _ in range(3)]
    optimizer = asgld.ASGLD(params, fused=True)
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer.step()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    optimizer.step()
    assert torch.cuda.max_memory_allocated() - before < 1 << 16
    state = sum(
        t.nbytes for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t)
    )
    assert state == sum(4 * p.numel() + 8 for p in params)
