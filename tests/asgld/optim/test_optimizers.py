"""What users of torch.optim rely on, for every preset and backend.

The loop is the truth and is compared with the reference elsewhere. Here: schedulers, averaging,
hooks, closures, groups, names, state_dict round trips (also across dtypes), pickling, resume,
gradient scaling, differentiation, and compilation.
"""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from helpers import (
    BACKENDS,
    OPTIMIZERS,
    WIDER,
    assert_plan_follows_what_changes,
    make_model,
    make_parameters,
    make_tensor,
    take_steps,
)
from torch.optim import lr_scheduler, swa_utils
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

import asgld
from asgld import noise
from asgld.optim import _native

SHAPES: list[tuple[int, ...]] = [(3, 4), (5,), ()]


def _assert_same_run(first: asgld.ASGLD, second: asgld.ASGLD) -> None:
    for group_a, group_b in zip(first.param_groups, second.param_groups, strict=True):
        for a, b in zip(group_a["params"], group_b["params"], strict=True):
            assert torch.equal(a, b)
            for name in ("sum", "step"):
                mine, other = first.state[a][name], second.state[b][name]
                assert mine.dtype == other.dtype
                assert torch.equal(mine, other)
            assert first.state[a]["stream"] == second.state[b]["stream"]


# ----------------------------------------------------------------------------------------------
# State
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_exists_before_the_first_step(name: str) -> None:
    """Distributed checkpointing takes a trial step on an optimizer whose state is empty."""
    params = make_parameters(SHAPES)
    optimizer = OPTIMIZERS[name](params)
    for p in params:
        assert optimizer.state[p]["step"] == 0
        assert (optimizer.state[p]["sum"] == 0).all()


@pytest.mark.skipif(_native.unavailable_reason() is not None, reason="needs the compiled kernel")
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "decay": 0.9}])
def test_plan_follows_what_changes(options: dict[str, Any]) -> None:
    shapes: list[tuple[int, ...]] = [(5, 7), (1000,), (33, 65), (0, 3), ()]
    assert_plan_follows_what_changes(lambda: make_parameters(shapes), **options)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_interrupted_run_resumes_bit_for_bit(name: str, backend: str, dtype: torch.dtype) -> None:
    def start() -> asgld.ASGLD:
        return OPTIMIZERS[name](make_parameters(SHAPES, dtype=dtype), lr=0.1, **BACKENDS[backend])

    straight = start()
    take_steps(straight, 7)

    first = start()
    take_steps(first, 3)
    file = io.BytesIO()
    torch.save({"params": first.param_groups[0]["params"], "state": first.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    second = OPTIMIZERS[name](make_parameters(SHAPES, dtype=dtype, seed=50), lr=9.0)
    with torch.no_grad():
        for p, saved in zip(second.param_groups[0]["params"], loaded["params"], strict=True):
            p.copy_(saved)
    second.load_state_dict(loaded["state"])
    take_steps(second, 4, first=3)
    _assert_same_run(straight, second)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_copies_and_pickles_go_on_alike(name: str, clone: Any) -> None:
    optimizer = OPTIMIZERS[name](make_parameters(SHAPES), lr=0.1)
    take_steps(optimizer, 2)
    twin = clone(optimizer)
    take_steps(optimizer, 3, first=2)
    take_steps(twin, 3, first=2)
    _assert_same_run(optimizer, twin)


def test_loading_keeps_the_precision_of_the_sum() -> None:
    """torch alone would round the sum to the parameter's bfloat16."""
    precise = asgld.ASGLD(make_parameters([(50,)], dtype=torch.float32))
    take_steps(precise, 9)
    half = asgld.ASGLD(make_parameters([(50,)], dtype=torch.bfloat16))
    half.load_state_dict(precise.state_dict())
    (p,), (q,) = precise.param_groups[0]["params"], half.param_groups[0]["params"]
    assert half.state[q]["sum"].dtype == torch.float32
    assert torch.equal(half.state[q]["sum"], precise.state[p]["sum"])
    assert half.state[q]["step"].dtype == torch.int64
    take_steps(half, 1)


def test_loaded_state_shares_no_memory_with_its_source() -> None:
    source = asgld.ASGLD(make_parameters([(5,)]))
    state = source.state_dict()
    target = asgld.ASGLD(make_parameters([(5,)]))
    target.load_state_dict(state)
    take_steps(target, 3)
    assert state["state"][0]["step"] == 0
    assert (state["state"][0]["sum"] == 0).all()


def test_load_hooks_of_the_user_are_obeyed() -> None:
    optimizer = asgld.ASGLD(make_parameters([(4,)], dtype=torch.bfloat16))
    seen: list[float] = []

    def double(_: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        state = copy.deepcopy(state)
        state["state"][0]["sum"] += 1 / 3
        return state

    optimizer.register_load_state_dict_pre_hook(double)
    optimizer.register_load_state_dict_post_hook(
        lambda o: seen.append(float(o.state[o.param_groups[0]["params"][0]]["sum"][0]))
    )
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == [pytest.approx(1 / 3, rel=1e-7)]
    assert len(optimizer._optimizer_load_state_dict_pre_hooks) == 1
    assert len(optimizer._optimizer_load_state_dict_post_hooks) == 1


def test_older_state_without_a_new_knob_loads() -> None:
    optimizer = asgld.ASGLD(make_parameters([(4,)]), lr=0.1)
    take_steps(optimizer, 2)
    state = optimizer.state_dict()
    del state["param_groups"][0]["stochastic_rounding"]
    fresh = asgld.ASGLD(make_parameters([(4,)]))
    fresh.load_state_dict(state)
    assert fresh.param_groups[0]["stochastic_rounding"] is False
    take_steps(fresh, 1)


# ----------------------------------------------------------------------------------------------
# Parameters: groups, names, missing gradients
# ----------------------------------------------------------------------------------------------


def test_every_knob_works_per_group() -> None:
    knobs: list[dict[str, Any]] = [
        {"lr": 0.3, "alpha": 0.0, "beta": 2.0, "sigma": 0.1, "seed": 4},
        {"delta": 0.5, "d_init": 3.0, "weight_decay": 0.2, "maximize": True, "foreach": True},
    ]
    together = make_parameters([(4,), (6,)])
    optimizer = asgld.ASGLD(
        [{"params": [p], **k} for p, k in zip(together, knobs, strict=True)], lr=0.05
    )
    take_steps(optimizer, 10)
    for i, k in enumerate(knobs):
        alone = make_parameters([(4,), (6,)])[i]
        single = asgld.ASGLD([{"params": [alone], **k}], lr=0.05)
        single.state[alone]["stream"].fill_(i)
        for step in range(10):
            alone.grad = make_tensor(*alone.shape, seed=1000 * step + i) + 0.5 * alone.detach()
            single.step()
        assert torch.equal(alone, together[i])


def test_names_key_the_noise() -> None:
    """A parameter moves alike whatever is trained beside it and in whatever order."""
    model = make_model()
    named = dict(model.named_parameters())
    runs = []
    for chosen in (list(named), ["2.weight", "0.bias"], list(named)[::-1]):
        parameters = {n: torch.zeros_like(named[n]).requires_grad_() for n in chosen}
        optimizer = asgld.ASGLD(parameters.items(), sigma=1.0)
        for p in parameters.values():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        runs.append(parameters["2.weight"].detach())
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])
    assert runs[0].abs().min() > 0


def test_wrapped_models_get_the_same_noise() -> None:
    names = ["0.weight", "module.0.weight", "_orig_mod.0.weight"]
    moved = []
    for name in names:
        p = torch.zeros(5, requires_grad=True)
        p.grad = torch.zeros(5)
        asgld.ASGLD([(name, p)], sigma=1.0).step()
        moved.append(p.detach())
    assert torch.equal(moved[0], moved[1])
    assert torch.equal(moved[0], moved[2])


def test_parameters_of_one_shape_get_different_noise() -> None:
    params = [torch.zeros(8, requires_grad=True) for _ in range(3)]
    optimizer = asgld.ASGLD(params[:2], sigma=1.0)
    optimizer.add_param_group({"params": params[2:]})
    for p in params:
        p.grad = torch.zeros(8)
    optimizer.step()
    streams = [optimizer.state[p]["stream"] for p in params]
    assert streams == [0, 1, 2]
    for i in range(3):
        for j in range(i):
            assert (params[i] != params[j]).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_without_gradients_stay_and_keep_their_count(backend: str) -> None:
    params = make_parameters([(3,), (3,)])
    optimizer = asgld.ASGLD(params, sigma=0.5, **BACKENDS[backend])
    before = params[1].detach().clone()
    params[0].grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(params[1], before)
    assert optimizer.state[params[1]]["step"] == 0
    params[1].grad = torch.ones(3)
    optimizer.step()
    assert [int(optimizer.state[p]["step"]) for p in params] == [2, 1]


def test_no_gradient_at_all_is_no_step() -> None:
    optimizer = asgld.ASGLD(make_parameters(SHAPES))
    optimizer.step()
    optimizer.zero_grad()


# ----------------------------------------------------------------------------------------------
# Training loops
# ----------------------------------------------------------------------------------------------


def test_closure_is_called_with_gradients_and_its_loss_returned() -> None:
    x = torch.tensor([2.0], requires_grad=True)
    optimizer = asgld.ASG([x], lr=0.1, alpha=0.0)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (x**2).sum()
        loss.backward()
        return loss

    with torch.no_grad():
        assert float(optimizer.step(closure)) == 4.0
    assert float(x.detach()) == pytest.approx(1.6)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.StepLR(o, 2),
        lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
        lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20, cycle_momentum=False),
        lambda o: lr_scheduler.LambdaLR(o, lambda k: 1 / (1 + k)),
        lambda o: lr_scheduler.ExponentialLR(o, 0.9),
        lr_scheduler.LinearLR,
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.5)], [2]
        ),
    ],
)
@pytest.mark.parametrize("tensor_lr", [False, True])
def test_schedulers_set_the_step_size(make: Any, tensor_lr: bool) -> None:
    lr: Any = torch.tensor(0.1) if tensor_lr else 0.1
    params = make_parameters([(3,)])
    optimizer = asgld.ASGLD(params, lr=lr, sigma=0.1)
    scheduler = make(optimizer)
    for k in range(5):
        take_steps(optimizer, 1, first=k)
        scheduler.step()
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(
        float(scheduler.get_last_lr()[0])
    )


def test_plateau_scheduler_lowers_the_step_size() -> None:
    optimizer = asgld.ASGLD(make_parameters([(3,)]), lr=0.1)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for _ in range(3):
        scheduler.step(1.0)
    assert optimizer.param_groups[0]["lr"] < 0.1


def test_weight_averaging_works() -> None:
    model = make_model()
    average = swa_utils.AveragedModel(model)
    ema = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = asgld.ASGLD(model.named_parameters(), lr=0.1, sigma=0.1)
    scheduler = swa_utils.SWALR(optimizer, swa_lr=0.05)
    for k in range(4):
        take_steps(optimizer, 1, first=k)
        average.update_parameters(model)
        ema.update_parameters(model)
        scheduler.step()
    assert int(average.n_averaged) == 4
    assert all(p.isfinite().all() for p in ema.parameters())


@pytest.mark.parametrize("scope", ["of the optimizer", "of all optimizers"])
@pytest.mark.parametrize("given", [(), (lambda: 3.0,)], ids=["plain", "closure"])
def test_hooks_see_what_they_see_of_torchs_own(given: tuple[Any, ...], scope: str) -> None:
    """Also those that come after steps without any, and none after they are removed."""
    seen: dict[type, list[Any]] = {}
    for kind in (asgld.ASGLD, torch.optim.SGD):
        calls = seen[kind] = []
        (p,) = make_parameters([(3,)])
        optimizer = kind([p], lr=0.1)
        p.grad = torch.ones_like(p)

        def note(when: str, calls: list[Any] = calls) -> Any:
            return lambda _, args, kwargs: calls.append((when, len(args), args[1:], kwargs))

        own = optimizer.register_step_pre_hook, optimizer.register_step_post_hook
        shared = register_optimizer_step_pre_hook, register_optimizer_step_post_hook
        before, after = own if scope == "of the optimizer" else shared
        optimizer.step(*given)
        for register, when in ((before, "before"), (after, "after")):
            handle = register(note(when))
            assert optimizer.step(*given) == (3.0 if given else None)
            handle.remove()
            optimizer.step(*given)
    assert len(seen[asgld.ASGLD]) == 2
    assert seen[asgld.ASGLD] == seen[torch.optim.SGD]


def test_hook_may_replace_the_closure() -> None:
    optimizer = asgld.ASGLD(make_parameters([(3,)]))
    optimizer.register_step_pre_hook(lambda self, *_: ((self, lambda: 5.0), {}))
    assert optimizer.step(lambda: 3.0) == 5.0


def test_profiler_sees_the_step() -> None:
    optimizer = asgld.AGLD(make_parameters([(3,)]))
    take_steps(optimizer, 1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        take_steps(optimizer, 2, first=1)
    counts = {event.key: event.count for event in found.key_averages()}
    assert counts["Optimizer.step#AGLD.step"] == 2


def test_subclass_with_a_step_of_its_own_is_wrapped_by_torch() -> None:
    class Louder(asgld.ASGLD):
        def step(self, closure: Any = None) -> Any:
            calls.append("step")
            return super().step(closure)

    calls: list[str] = []
    optimizer = Louder(make_parameters([(3,)]))
    take_steps(optimizer, 1)
    assert calls == ["step"]
    assert int(next(iter(optimizer.state.values()))["step"]) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_scaler_skips_without_a_trace(backend: str) -> None:
    """On an infinite gradient parameters, sums, step count and the noise counter all stay."""
    (p,) = make_parameters([(4,)])
    optimizer = asgld.ASGLD([p], lr=0.1, sigma=0.3, **BACKENDS[backend])
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def scaled_step(factor: float) -> None:
        optimizer.zero_grad()
        scaler.scale((p * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    scaled_step(1.0)
    before, total = p.detach().clone(), optimizer.state[p]["sum"].clone()
    scaled_step(float("inf"))
    assert torch.equal(p, before)
    assert torch.equal(optimizer.state[p]["sum"], total)
    assert optimizer.state[p]["step"] == 1
    scaled_step(1.0)

    (q,) = make_parameters([(4,)])
    plain = asgld.ASGLD([q], lr=0.1, sigma=0.3, **BACKENDS[backend])
    for _ in range(2):
        q.grad = torch.ones(4)
        plain.step()
    torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("wanted", ["lr", "gradient"])
@pytest.mark.parametrize(
    "options",
    [{}, *({"decay": 0.9, "momentum": 0.5, "clip": 1.0, "opposed": o} for o in (1.0, 0.0, -0.3))],
    ids=["paper", "keep", "drop", "turn in part"],
)
def test_gradients_flow_through_a_differentiable_step(wanted: str, options: dict[str, Any]) -> None:
    """The derivative of a loss after three noisy steps, against a central difference."""
    feed = [make_tensor(2, seed=k, dtype=torch.float64) for k in range(3)]

    def loss_after(value: torch.Tensor) -> torch.Tensor:
        y = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True).clone()
        lr = value if wanted == "lr" else 0.02
        knobs = {"sigma": 0.1, "weight_decay": 0.1, "differentiable": True, **options}
        optimizer = asgld.ASGLD([y], lr=lr, **knobs)
        for g in feed:
            y.grad = g if wanted == "lr" else g * value
            optimizer.step()
        return (y**2).sum()

    x = torch.tensor(0.02, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss_after(x), x)
    h = 1e-6
    central = (loss_after(x.detach() + h) - loss_after(x.detach() - h)).detach() / (2 * h)
    assert float(slope) == pytest.approx(float(central), rel=1e-6)
    assert abs(float(slope)) > 1e-3


@pytest.mark.parametrize(
    ("capturable", "compiler"),
    [
        pytest.param(False, "inductor", marks=pytest.mark.slow),
        (False, "aot_eager"),
        (True, "eager"),
    ],
)
def test_compiled_step_equals_eager(capturable: bool, compiler: str) -> None:
    """To a few ulp of float32 per step, because the compiler contracts multiply-adds."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    results = []
    for compiled in (False, True):
        model = make_model()
        optimizer = asgld.ASGLD(
            model.named_parameters(), lr=0.1, sigma=0.3, capturable=capturable, fused=False
        )
        step = torch.compile(optimizer.step, backend=compiler) if compiled else optimizer.step
        for k in range(4):
            for i, p in enumerate(model.parameters()):
                p.grad = make_tensor(*p.shape, seed=100 * k + i)
            step()
        results.append([p.detach() for p in model.parameters()])
        assert all(s["step"] == 4 for s in optimizer.state.values())
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    # The one break torch itself makes is in the decorator that torch's own optimizers use.
    breaks = torch._dynamo.utils.counters["graph_break"]
    assert all("_dynamo.graph_break()" in reason for reason in breaks), breaks
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (asgld.ASG, {"fused": False}),
        pytest.param(
            asgld.ASGLD,
            {"fused": True},
            marks=pytest.mark.skipif(_native.unavailable_reason() is not None, reason="no kernel"),
        ),
        pytest.param(asgld.NetworkASGLD, {}, marks=pytest.mark.slow),
    ],
)
def test_schedule_does_not_compile_the_step_anew(build: Any, options: dict[str, Any]) -> None:
    """Twice: for the first lr as a constant, and for all others, as torch's own optimizers are."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    (p,) = make_parameters([(7,)])
    optimizer = build([p], lr=0.1, **options)
    compiled = torch.compile(optimizer.step, backend="eager")  # graphs are counted, not their code
    for k in range(5):
        optimizer.param_groups[0]["lr"] = 0.1 / (k + 1)
        p.grad = make_tensor(7, seed=k)
        compiled()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
    (q,) = make_parameters([(7,)])
    eager = build([q], lr=0.1, **options)
    for k in range(5):
        eager.param_groups[0]["lr"] = 0.1 / (k + 1)
        q.grad = make_tensor(7, seed=k)
        eager.step()
    torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(_native.unavailable_reason() is not None, reason="needs the compiled kernel")
@pytest.mark.parametrize(
    ("options", "compiler"),
    [
        ({}, "inductor"),
        ({"maximize": True, **WIDER["all"], "opposed": -0.3}, "aot_eager"),
    ],
    ids=["paper", "all"],
)
def test_compiled_step_in_the_kernel_is_the_eager_one(
    options: dict[str, Any], compiler: str
) -> None:
    """Bit for bit, also where compiled and eager steps alternate."""
    torch._dynamo.reset()
    results = []
    for is_compiled in ([False] * 6, [True] * 6, [False, False, True, True, False, True]):
        params = make_parameters([(5, 7), (100,), (33, 65), ()])
        optimizer = asgld.ASGLD(params, lr=0.1, sigma=0.3, fused=True, **options)
        compiled = torch.compile(optimizer.step, backend=compiler)
        for k, through_compiler in enumerate(is_compiled):
            for i, p in enumerate(params):
                p.grad = make_tensor(*p.shape, seed=100 * k + i)
            (compiled if through_compiler else optimizer.step)()
        assert [int(optimizer.state[p]["step"]) for p in params] == [6] * 4
        results.append(torch.cat([p.detach().flatten() for p in params]))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_noise_is_what_the_contract_says() -> None:
    """The optimizer's displacement at zero gradient is sqrt(2 lr) sigma D^(-beta/2) normal(...)."""
    p = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    optimizer = asgld.ASGLD([("layer.weight", p)], lr=0.08, sigma=0.5, d_init=4.0, seed=12)
    p.grad = torch.zeros_like(p)
    optimizer.step()
    z = noise.normal(12, noise.stream_of_name("layer.weight"), 0, range(6))
    torch.testing.assert_close(
        p.detach(), torch.from_numpy(0.4 * 0.5 * 0.5 * z), rtol=1e-14, atol=1e-14
    )


def test_backends_are_recorded_with_a_reason() -> None:
    optimizer = asgld.ASGLD(make_parameters([(3,)]), foreach=False)
    assert optimizer.backends == [("loop", "foreach=False was asked for")]
    for backend in asgld.ASGLD(make_parameters([(3,)])).backends:
        assert backend.name in ("loop", "foreach", "fused")
        assert backend.reason
    assert asgld.ASGLD(make_parameters([(3,)]), fused=False).backends[0].name == "foreach"


def test_repr_names_the_knobs() -> None:
    text = repr(asgld.ASGLD(make_parameters([(3,)]), alpha=0.5))
    assert "ASGLD" in text
    assert "alpha: 0.5" in text
