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
from asgld.prox import L1, ElasticNet, GroupLasso

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
    assert state == sum(4 * p.numel() + 16 for p in params)


# ----------------------------------------------------------------------------------------------
# What may become of tensors between steps; tests/asgld/optim/test_plan.py has more, on the CPU
# ----------------------------------------------------------------------------------------------

GRADIENTS = {
    "expanded": lambda p: torch.ones(1, dtype=p.dtype, device="cuda").expand(p.shape),
    "every other": lambda p: make_tensor(2 * p.numel(), seed=7, dtype=p.dtype).cuda()[::2],
    "negated": lambda p: torch._neg_view(make_tensor(*p.shape, seed=8, dtype=p.dtype).cuda()),
    "the parameter's own memory": lambda p: p.detach(),
}


@pytest.mark.parametrize("kind", GRADIENTS)
def test_gpu_gradient_of_any_kind_is_read_as_it_is(kind: str) -> None:
    ends = []
    for options in (FUSED, LOOP):
        params = make(shapes=[(1000,)])
        optimizer = asgld.ASGLD(params, lr=0.05, sigma=0.1, **options)
        for k in range(6):
            feed(optimizer, k)
            if k >= 2 and k % 2:
                params[0].grad = GRADIENTS[kind](params[0])
            optimizer.step()
        ends.append(values(params))
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "grad_dtype"),
    [
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.float64, torch.float32),
        (torch.float32, torch.float64),
    ],
)
def test_gpu_gradient_of_another_dtype_is_read_in_that_dtype(
    dtype: torch.dtype, grad_dtype: torch.dtype
) -> None:
    if not hasattr(Tensor, "grad_dtype"):
        pytest.skip("this torch has no grad_dtype")
    sums = []
    for options in (FUSED, LOOP):
        (p,) = make(dtype, [(1000,)])
        p.grad_dtype = grad_dtype
        optimizer = asgld.ASGLD([p], lr=0.05, sigma=0.1, **options)
        for k in range(3):
            p.grad = make_tensor(1000, seed=k, dtype=grad_dtype).cuda()
            optimizer.step()
        sums.append(optimizer.state[p]["sum"])
    torch.testing.assert_close(*sums, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("replace", [lambda t: t[:4], lambda t: t.t(), lambda t: t[:, :3]])
def test_gpu_replaced_memory_is_refused(replace: Any) -> None:
    buffer = torch.zeros(200, device="cuda")
    p = buffer[64:112].view(8, 6).requires_grad_()
    optimizer = asgld.ASGLD([p], **FUSED)
    run(optimizer, 3)
    p.data = replace(p.data)
    p.grad = torch.ones_like(p)
    before = buffer.clone()
    with pytest.raises(ValueError, match="shape"):
        optimizer.step()
    assert torch.equal(buffer, before)


def test_gpu_groups_keep_their_knobs_when_they_change_places() -> None:
    ends = []
    for is_reversed in (False, True):
        params = make(shapes=[(50,), (60,)])
        groups = [{"params": [p], "lr": 10.0**-i} for i, p in enumerate(params)]
        optimizer = asgld.ASGLD(groups, sigma=0.1, **FUSED)
        for k in range(5):
            if k == 2 and is_reversed:
                optimizer.param_groups.reverse()
            for i, p in enumerate(params):
                p.grad = make_tensor(*p.shape, seed=10 * k + i).cuda()
            optimizer.step()
        ends.append(values(params))
    assert torch.equal(*ends)


@pytest.mark.parametrize("options", [FUSED, {"foreach": True}, LOOP], ids=str)
@pytest.mark.parametrize("kind", ["lr nan", "lr below zero", "count past 32 bits", "count below 0"])
def test_gpu_illegal_values_on_the_device_move_nothing(kind: str, options: dict[str, Any]) -> None:
    """The host does not wait to see them, so nothing can be raised."""
    params = make(shapes=[(1000,), (33, 5)])
    lr = torch.tensor(0.1, device="cuda")
    optimizer = asgld.ASGLD(params, lr=lr, sigma=0.1, momentum=0.9, capturable=True, **options)
    run(optimizer, 2)
    if kind.startswith("lr"):
        lr.fill_(float("nan") if "nan" in kind else -1.0)
    else:
        for p in params:
            optimizer.state[p]["step"].fill_(2**32 if "past" in kind else -5)
    states = [optimizer.state[p][n] for p in params for n in ("step", "sum", "momentum")]
    before = [t.detach().clone() for t in (*params, *states)]
    run(optimizer, 2)
    for now, then in zip((*params, *states), before, strict=True):
        assert torch.equal(now, then)
    if kind.startswith("lr"):
        lr.fill_(0.1)
        run(optimizer, 1)
        assert int(optimizer.state[params[0]]["step"]) == 3


def test_gpu_count_past_32_bits_moves_nothing_where_the_host_counts() -> None:
    params = make(shapes=[(1000,)])
    optimizer = asgld.ASGLD(params, sigma=0.1, **FUSED)
    run(optimizer, 2)
    optimizer.state[params[0]]["step"].fill_(2**32)
    before = values(params)
    run(optimizer, 2)
    assert torch.equal(values(params), before)
    assert int(optimizer.state[params[0]]["step"]) == 2**32


@pytest.mark.parametrize("build", [asgld.NetworkASGLD, asgld.PSGLD])
@pytest.mark.parametrize("is_tensor", [False, True])
def test_gpu_presets_are_the_loop_under_a_schedule(build: Any, is_tensor: bool) -> None:
    """`noise`, which follows lr, and `noise_bound`."""
    ends = []
    for options in (FUSED, LOOP):
        params = make()
        lr: Any = torch.tensor(1e-2, device="cuda") if is_tensor else 1e-2
        optimizer = build(params, lr=lr, capturable=is_tensor, **options)
        for k in range(8):
            feed(optimizer, k)
            if k < 3:  # gradients of zero, where noise alone would explode
                for p in params:
                    p.grad = torch.zeros_like(p)
            if is_tensor:
                lr.fill_(1e-2 / (k + 1))
            else:
                optimizer.param_groups[0]["lr"] = 1e-2 / (k + 1)
            optimizer.step()
        ends.append(values(params))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)


def test_gpu_fused_step_is_the_same_where_lists_are_ruled_out() -> None:
    ends = []
    for options in (FUSED, {**FUSED, "foreach": False}):
        params = make()
        run(asgld.ASGLD(params, sigma=0.1, **options), 3)
        ends.append(values(params))
    assert torch.equal(*ends)


@pytest.mark.parametrize("options", [{}, LOOP], ids=str)
def test_gpu_state_follows_parameters_that_move_there(options: dict[str, Any]) -> None:
    """Made on the CPU, moved after two steps, with counts and sums."""
    params = make_parameters([(50,), (3, 4)])
    optimizer = asgld.ASGLD(params, sigma=0.1, momentum=0.9, **options)
    for k in range(4):
        if k == 2:
            for p in params:
                p.data = p.data.cuda()
        for i, p in enumerate(params):
            p.grad = make_tensor(*p.shape, seed=10 * k + i).to(p.device)
        optimizer.step()
    others = make_parameters([(50,), (3, 4)])
    plain = asgld.ASGLD(others, sigma=0.1, momentum=0.9, **LOOP)
    for k in range(4):
        for i, p in enumerate(others):
            p.grad = make_tensor(*p.shape, seed=10 * k + i)
        plain.step()
    torch.testing.assert_close(values(params).cpu(), values(others), rtol=1e-5, atol=1e-6)


# ----------------------------------------------------------------------------------------------
# Matrices
# ----------------------------------------------------------------------------------------------

MATRICES: list[tuple[int, ...]] = [(96, 32), (32, 96), (64, 64), (96, 32), (300, 520), (8, 3, 2, 2)]


def make_matrices(**options: Any) -> tuple[list[Tensor], asgld.NetworkASGLD]:
    params = make(shapes=MATRICES)
    groups = [
        {"params": params[:4], "shape": "polar-row", "blocks": 2},
        {"params": params[4:], "shape": "polar"},
    ]
    return params, asgld.NetworkASGLD(groups, lr=0.01, **options)


def test_gpu_matrices_draw_the_noise_of_the_cpu() -> None:
    params, optimizer = make_matrices(noise=3.0)
    on_cpu = [p.detach().cpu().requires_grad_() for p in params]
    other = asgld.NetworkASGLD(
        [{**g, "params": on_cpu[:4] if i == 0 else on_cpu[4:]}
         for i, g in enumerate(({"shape": "polar-row", "blocks": 2}, {"shape": "polar"}))],
        lr=0.01, noise=3.0,
    )  # fmt: skip
    for p in (*params, *on_cpu):
        p.grad = torch.zeros_like(p)
    for _ in range(3):
        optimizer.step()
        other.step()
    torch.testing.assert_close(values(params).cpu(), values(on_cpu), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_tensor", [False, True], ids=["number", "tensor"])
def test_gpu_graph_of_matrices_is_the_eager_step(is_tensor: bool) -> None:
    ends = []
    for is_captured in (False, True):
        lr: Any = torch.tensor(0.01, device="cuda") if is_tensor else 0.01
        params, optimizer = make_matrices(capturable=True)
        for group in optimizer.param_groups:
            group["lr"] = lr
        run(optimizer, 2)
        step: Any = optimizer.step
        if is_captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                optimizer.step()
            step = graph.replay
        for k in range(3):
            for i, p in enumerate(params):
                assert p.grad is not None
                p.grad.copy_(make_tensor(*p.shape, seed=100 * k + i))
            step()
        ends.append((values(params), [int(optimizer.state[p]["step"]) for p in params]))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1] == [5] * len(MATRICES)


def test_gpu_matrices_resume_and_follow_what_moves() -> None:
    params, optimizer = make_matrices()
    run(optimizer, 2)
    others, resumed = make_matrices()
    with torch.no_grad():
        for p, q in zip(params, others, strict=True):
            q.copy_(p)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for k in range(2, 6):
        for each in (optimizer, resumed):
            feed(each, k)
            if k == 4:  # strided gradients take the way without kernels
                for p in each.param_groups[0]["params"]:
                    p.grad = p.grad.t().contiguous().t()
            each.step()
        resumed._plans = {}
    assert torch.equal(values(params), values(others))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gpu_matrices_of_half_precision_follow_those_of_single(dtype: torch.dtype) -> None:
    ends = []
    for chosen in (torch.float32, dtype):
        params = make(dtype=chosen, shapes=[(64, 96), (96, 64)])
        with torch.no_grad():
            for p in params:
                p.fill_(1.0)
        optimizer = asgld.NetworkASGLD(
            [{"params": params, "shape": "polar-row"}], lr=0.01, stochastic_rounding=True
        )
        for k in range(20):
            for i, p in enumerate(params):
                p.grad = make_tensor(*p.shape, seed=100 * k + i).cuda().to(chosen)
            optimizer.step()
        ends.append(values(params))
    # Rounding at random has no bias: the mean of 12288 elements agrees to 5 standard errors.
    unit = float(torch.finfo(dtype).eps)
    assert abs(float((ends[0] - ends[1]).mean())) < 5 * unit * (20 / 12288) ** 0.5


def test_gpu_illegal_lr_on_the_device_moves_no_matrix() -> None:
    params, optimizer = make_matrices()
    run(optimizer, 1)
    before = values(params), values([optimizer.state[p]["momentum"] for p in params])
    for group in optimizer.param_groups:
        group["lr"] = torch.tensor(torch.nan, device="cuda")
    feed(optimizer, 1)
    optimizer.step()
    assert torch.equal(values(params), before[0])
    assert torch.equal(values([optimizer.state[p]["momentum"] for p in params]), before[1])


# ----------------------------------------------------------------------------------------------
# The proximal step
# ----------------------------------------------------------------------------------------------

NUMBERED = GroupLasso(40.0, torch.arange(600).reshape(20, 30) % 7 - 1)
PENALTIES = {
    "l1": L1(0.5),
    "weights": ElasticNet(torch.linspace(0.0, 1.0, 600).reshape(20, 30), 0.3),
    "rows": GroupLasso(8.0),
    "groups": NUMBERED,
}


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("options", [FUSED, {"foreach": True}, LOOP], ids=str)
def test_gpu_proximal_step_is_that_of_the_cpu(name: str, options: dict[str, Any]) -> None:
    found = []
    for device, backend in (("cpu", LOOP), ("cuda", options)):
        p = make_tensor(20, 30, seed=1).to(device).requires_grad_()
        optimizer = asgld.ASGLD([p], lr=0.1, sigma=0.1, prox=PENALTIES[name], **backend)
        for k in range(20):
            p.grad = make_tensor(20, 30, seed=k).to(device)
            optimizer.step()
        found.append(p.detach().cpu())
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)
    assert (found[0] == 0.0).any()


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("options", [{}, WIDER], ids=["paper", "wider"])
def test_gpu_graph_of_a_proximal_step_is_the_eager_step(name: str, options: dict[str, Any]) -> None:
    found = []
    for capturable in (True, False):
        p = make_tensor(20, 30, seed=1).cuda().requires_grad_()
        given = {"prox": PENALTIES[name], "capturable": capturable, **FUSED, **options}
        optimizer = asgld.ASGLD([p], lr=0.1, sigma=0.1, **given)
        p.grad = make_tensor(20, 30, seed=2).cuda()
        step = optimizer.step
        step()
        if capturable:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                optimizer.step()
            step = graph.replay
        for _ in range(20):
            step()
        found.append(p.detach())
    assert torch.equal(*found)
    assert (found[0] == 0.0).any()


def test_gpu_skipped_and_illegal_steps_shrink_nothing() -> None:
    params = make(shapes=[(1000,), (33, 5)])
    lr = torch.tensor(0.1, device="cuda")
    given: dict[str, Any] = {"lr": lr, "prox": L1(1.0), "capturable": True, **FUSED}
    optimizer = asgld.ASGLD(params, **given)
    run(optimizer, 2)
    before = values(params)
    lr.fill_(float("nan"))
    run(optimizer, 1, first=2)
    assert torch.equal(values(params), before)
    lr.fill_(0.1)
    optimizer.found_inf = torch.ones((), device="cuda")  # type: ignore[attr-defined]
    run(optimizer, 1, first=2)
    assert torch.equal(values(params), before)
    optimizer.found_inf = torch.zeros((), device="cuda")  # type: ignore[attr-defined]
    run(optimizer, 1, first=2)
    assert not torch.equal(values(params), before)


def test_gpu_proximal_step_of_half_precision_agrees_with_the_loop() -> None:
    found = []
    for options in (LOOP, FUSED):
        params = make(torch.bfloat16)
        given: dict[str, Any] = {"lr": 0.05, "prox": L1(0.5), "stochastic_rounding": True}
        run(asgld.ASGLD(params, **given, **options), 10)
        found.append(values(params))
    torch.testing.assert_close(found[1], found[0], rtol=0.05, atol=0.05)
