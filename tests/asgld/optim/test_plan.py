"""Whatever becomes of tensors, groups and states between two steps: a step works on what is there
now, or raises, and then nothing has moved.

A cached plan of a kernel is the fastest path and the one that could go wrong, so every case takes
steps before the change. The plain loop is the truth.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import BACKENDS, assert_equal, make_parameters, make_tensor, snapshot, take_steps
from torch import Tensor

import asgld

CANARY = 12345.0
GUARD = 64  # elements around a tensor that nobody may write to


def guarded(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return a tensor in the middle of a buffer, and the buffer."""
    values = make_tensor(*shape, seed=seed, dtype=dtype)
    buffer = torch.full((values.numel() + 2 * GUARD,), CANARY, dtype=dtype)
    inside = buffer[GUARD : GUARD + values.numel()]
    inside.copy_(values.flatten())
    return inside.view(shape), buffer


def run_both(
    change: Callable[[asgld.ASGLD, list[Tensor], int], None],
    *,
    backend: str,
    shapes: list[tuple[int, ...]],
    dtype: torch.dtype = torch.float32,
    steps: int = 5,
    options: dict[str, Any] | None = None,
) -> None:
    """Step, with a change before each step from the third on, in a backend and in the loop."""
    ends = []
    for knobs in (BACKENDS["loop"], BACKENDS[backend]):
        params = make_parameters(shapes, dtype=dtype)
        optimizer = asgld.ASGLD(params, lr=0.05, sigma=0.1, **knobs, **(options or {}))
        for k in range(steps):
            for i, p in enumerate(params):
                p.grad = make_tensor(*p.shape, seed=10 * k + i, dtype=p.dtype)
            if k >= 2:
                change(optimizer, params, k)
            optimizer.step()
        ends.append(params)
    for mine, loops in zip(*ends, strict=True):
        torch.testing.assert_close(mine, loops, rtol=2e-5, atol=2e-5)


# ----------------------------------------------------------------------------------------------
# Gradients of any kind
# ----------------------------------------------------------------------------------------------

GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "expanded": lambda p: torch.ones(1, dtype=p.dtype).expand(p.shape),
    "every other": lambda p: make_tensor(2 * p.numel(), seed=7, dtype=p.dtype)[::2].view(p.shape),
    "negated": lambda p: torch._neg_view(make_tensor(*p.shape, seed=8, dtype=p.dtype)),
    "the parameter's own memory": lambda p: p.detach(),
    "not a number": lambda p: torch.full_like(p.detach(), math.nan),
}


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "loop"])
@pytest.mark.parametrize("kind", GRADIENTS)
@pytest.mark.parametrize("count", [1, 10, 1000, 40_000])
def test_gradient_of_any_kind_is_read_as_it_is(backend: str, kind: str, count: int) -> None:
    def change(_: asgld.ASGLD, params: list[Tensor], k: int) -> None:
        if k % 2 == 0:  # alternating with plain ones, for which the same plan was made
            for p in params:
                p.grad = GRADIENTS[kind](p)

    ends = []
    for knobs in (BACKENDS["loop"], BACKENDS[backend]):
        params = make_parameters([(count,)])
        optimizer = asgld.ASGLD(params, lr=0.05, sigma=0.1, **knobs)
        for k in range(5):
            params[0].grad = make_tensor(count, seed=k)
            if k >= 2:
                change(optimizer, params, k)
            optimizer.step()
        ends.append(params[0].detach())
    torch.testing.assert_close(*ends, rtol=2e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_in_the_parameters_own_memory_is_read_before_it_is_written(backend: str) -> None:
    ends = []
    for is_shared in (False, True):
        (p,) = make_parameters([(50,)])
        optimizer = asgld.ASGLD([p], lr=0.1, weight_decay=0.1, **BACKENDS[backend])
        for _ in range(4):
            p.grad = p.detach() if is_shared else p.detach().clone()
            optimizer.step()
        ends += [p.detach(), optimizer.state[p]["sum"]]
    assert torch.equal(ends[0], ends[2])
    assert torch.equal(ends[1], ends[3])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shift", [1, 7, 20_000])
def test_gradient_that_overlaps_its_parameter_is_read_before_it_is_written(
    backend: str, shift: int
) -> None:
    """Each element's gradient is the parameter some elements before, which is written first."""
    count, ends = 40_000, []
    for is_shared in (False, True):
        buffer = make_tensor(count + shift, seed=1)
        p = buffer[shift:].requires_grad_()
        optimizer = asgld.ASGLD([p], lr=0.1, **BACKENDS[backend])
        for _ in range(3):
            behind = buffer.detach()[:count]
            p.grad = behind if is_shared else behind.clone()
            optimizer.step()
        ends.append(buffer.detach())
    assert torch.equal(*ends)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize(
    ("dtype", "grad_dtype"),
    [
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float64),
        (torch.float64, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float16),
    ],
)
def test_gradient_of_another_dtype_is_read_in_that_dtype(
    backend: str, dtype: torch.dtype, grad_dtype: torch.dtype, is_wide: bool
) -> None:
    """Not rounded to the parameter's first, where that is narrower."""
    if not hasattr(Tensor, "grad_dtype"):
        pytest.skip("this torch has no grad_dtype")
    grads = [make_tensor(70, seed=k, dtype=grad_dtype) for k in range(4)]
    options: dict[str, Any] = {"lr": 0.05, "sigma": 0.1, "momentum": 0.9 * is_wide}
    p, p_buffer = guarded(70, seed=1, dtype=dtype)
    p.requires_grad_().grad_dtype = grad_dtype
    q = p.detach().to(torch.float64 if dtype == torch.float64 else torch.float32).requires_grad_()
    optimizer = asgld.ASGLD([p], **options, **BACKENDS[backend])
    plain = asgld.ASGLD([q], **options, **BACKENDS["loop"])
    for grad in grads:
        p.grad, q.grad = grad, grad.to(q.dtype)
        optimizer.step()
        plain.step()
    torch.testing.assert_close(
        optimizer.state[p]["sum"], plain.state[q]["sum"], rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(p.detach().to(q.dtype), q.detach(), rtol=0.02, atol=0.02)
    assert (p_buffer[:GUARD] == CANARY).all()
    assert (p_buffer[-GUARD:] == CANARY).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_conjugated_gradients_are_conjugated(backend: str) -> None:
    ends = []
    for is_lazy in (False, True):
        p = make_tensor(9, 2, seed=1).contiguous()
        x = torch.view_as_complex(p).requires_grad_()
        optimizer = asgld.ASGLD([x], lr=0.1, **BACKENDS[backend])
        for k in range(3):
            grad = torch.view_as_complex(make_tensor(9, 2, seed=k)).conj()
            x.grad = grad if is_lazy else grad.resolve_conj()
            optimizer.step()
        ends.append(x.detach().clone())
    assert torch.equal(*ends)


# ----------------------------------------------------------------------------------------------
# Parameters whose memory was replaced
# ----------------------------------------------------------------------------------------------

REPLACED: dict[str, Callable[[Tensor], Tensor]] = {
    "shorter": lambda t: t[:4],
    "of another dtype": lambda t: t.view(torch.bfloat16),
    "transposed": lambda t: t.t(),
    "narrower": lambda t: t[:, :3],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", REPLACED)
def test_replaced_memory_is_refused_and_nothing_beyond_it_is_written(
    backend: str, kind: str
) -> None:
    """The address is the same, and so an address proves nothing."""
    inside, buffer = guarded(8, 6, seed=1)
    p = inside.requires_grad_()
    other = make_parameters([(5,)])[0]
    optimizer = asgld.ASGLD([other, p], lr=0.1, **BACKENDS[backend])
    take_steps(optimizer, 2)
    before = buffer.clone()
    p.data = REPLACED[kind](p.data)
    for q in (other, p):
        q.grad = torch.ones_like(q)
    seen = snapshot(optimizer)
    with pytest.raises(ValueError, match="shape"):
        optimizer.step()
    assert_equal(seen, snapshot(optimizer))
    assert torch.equal(buffer, before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_square_matrix_may_be_transposed_in_place(backend: str) -> None:
    """Another order of the same memory, of the same shape: a legal change, obeyed."""

    def change(_: asgld.ASGLD, params: list[Tensor], k: int) -> None:
        params[0].data = params[0].data.t()

    run_both(change, backend=backend, shapes=[(6, 6), (3,)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_expanded_parameter_is_refused_before_anything_moves(backend: str) -> None:
    first, second = make_parameters([(4,), (4,)])
    optimizer = asgld.ASGLD([{"params": [first]}, {"params": [second]}], **BACKENDS[backend])
    take_steps(optimizer, 2)
    second.data = torch.ones(1).expand(4)
    first.grad, second.grad = torch.ones(4), torch.ones(4)
    seen = snapshot(optimizer)
    with pytest.raises(RuntimeError, match="single memory location"):
        optimizer.step()
    assert_equal(seen, snapshot(optimizer))


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_that_share_memory_are_updated_in_turn(backend: str) -> None:
    ends = []
    for knobs in (BACKENDS["loop"], BACKENDS[backend]):
        buffer = make_tensor(30_000, seed=1)
        params = [buffer[:20_000].requires_grad_(), buffer[10_000:].detach().requires_grad_()]
        optimizer = asgld.ASGLD(params, lr=0.1, sigma=0.1, **knobs)
        for k in range(3):
            for i, p in enumerate(params):
                p.grad = make_tensor(20_000, seed=10 * k + i)
            optimizer.step()
        ends.append(buffer.detach())
    torch.testing.assert_close(*ends, rtol=2e-5, atol=2e-5)


def storages(optimizer: asgld.ASGLD, p: Tensor) -> dict[str, Any]:
    assert p.grad is not None
    tensors = {"parameter": p, "gradient": p.grad, **optimizer.state[p]}
    return {name: tensor.untyped_storage() for name, tensor in tensors.items()}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", [(0,), (16,), (0, 2000)], ids=str)
@pytest.mark.parametrize("whose", ["parameter", "gradient", "sum", "momentum"])
def test_storage_that_no_longer_holds_its_tensor_is_refused(
    backend: str, sizes: tuple[int, ...], whose: str
) -> None:
    """Freed, shrunk, or freed and made anew too small, perhaps at the address that it had."""
    (p,) = make_parameters([(1000,)])
    optimizer = asgld.ASGLD([p], momentum=0.9, **BACKENDS[backend])
    take_steps(optimizer, 2)
    storage = storages(optimizer, p)[whose]
    for size in sizes:
        storage.resize_(size)
    with pytest.raises((RuntimeError, ValueError), match="resized or freed"):
        optimizer.step()


def test_storage_made_anew_too_small_at_its_old_address_is_refused() -> None:
    """The address proves nothing. malloc is asked until it gives the same one again."""
    (p,) = make_parameters([(1000,)])
    optimizer = asgld.ASGLD([p])
    take_steps(optimizer, 2)
    address, storage = p.data_ptr(), p.untyped_storage()
    for size in range(3984, 16, -16):
        storage.resize_(0)
        storage.resize_(size)
        if p.data_ptr() == address:
            break
    else:
        pytest.skip("malloc never gave the same address again")
    with pytest.raises(RuntimeError, match="resized or freed"):
        optimizer.step()


def test_gradients_are_not_kept_alive_by_a_step() -> None:
    for options in BACKENDS.values():
        (p,) = make_parameters([(100,)])
        optimizer = asgld.ASGLD([p], **options)
        for _ in range(3):
            p.grad = torch.ones(100)
            watched = weakref.ref(p.grad)
            optimizer.step()
            optimizer.zero_grad()
            assert watched() is None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["sum", "momentum"])
def test_state_in_its_parameters_memory_is_refused(backend: str, name: str) -> None:
    first, second = make_parameters([(4,), (4,)])
    groups = [{"params": [first]}, {"params": [second]}]
    optimizer = asgld.ASGLD(groups, momentum=0.9, **BACKENDS[backend])
    take_steps(optimizer, 2)
    optimizer.state[second][name] = second.data
    seen = snapshot(optimizer)
    with pytest.raises(RuntimeError, match="share memory"):
        optimizer.step()
    assert_equal(seen, snapshot(optimizer))


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameter_may_be_a_negated_view(backend: str) -> None:
    def change(_: asgld.ASGLD, params: list[Tensor], k: int) -> None:
        if k == 2:
            params[1].data = torch._neg_view(params[1].data)

    run_both(change, backend=backend, shapes=[(6,), (5,)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_autograd_notices_the_step(backend: str) -> None:
    """As with torch's own optimizers, a graph that saved the old parameter cannot be used."""
    x = make_tensor(5, seed=1).requires_grad_()
    optimizer = asgld.ASGLD([x], **BACKENDS[backend])
    loss = (x**3).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# ----------------------------------------------------------------------------------------------
# Groups and states that changed
# ----------------------------------------------------------------------------------------------


def make_groups(backend: str, **options: Any) -> tuple[asgld.ASGLD, list[Tensor]]:
    params = make_parameters([(5,), (6, 2), (7,)])
    groups = [{"params": [p], "lr": 10.0**-i} for i, p in enumerate(params)]
    optimizer = asgld.ASGLD(groups, sigma=0.1, **BACKENDS[backend], **options)
    take_steps(optimizer, 2)
    return optimizer, params


@pytest.mark.parametrize("backend", BACKENDS)
def test_groups_keep_their_knobs_when_they_change_places(backend: str) -> None:
    ends = []
    for is_reversed in (False, True):
        optimizer, params = make_groups(backend)
        if is_reversed:
            optimizer.param_groups.reverse()
        for k in range(3):
            for i, p in enumerate(params):
                p.grad = make_tensor(*p.shape, seed=10 * k + i)
            optimizer.step()
        ends.append([p.detach() for p in params])
    for straight, turned in zip(*ends, strict=True):
        assert torch.equal(straight, turned)


@pytest.mark.parametrize("backend", BACKENDS)
def test_removed_group_rests_and_the_others_go_on(backend: str) -> None:
    optimizer, params = make_groups(backend)
    del optimizer.param_groups[0]
    before = [p.detach().clone() for p in params]
    take_steps(optimizer, 2)
    moved = [not torch.equal(p, old) for p, old in zip(params, before, strict=True)]
    assert moved == [False, True, True]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_named", [False, True])
def test_replaced_parameter_moves_and_the_old_one_rests(backend: str, is_named: bool) -> None:
    params = make_parameters([(5,), (6,)])
    given: Any = [("a", params[0]), ("b", params[1])] if is_named else params
    optimizer = asgld.ASGLD(given, sigma=0.1, **BACKENDS[backend])
    take_steps(optimizer, 2)
    old, stream = params[1], int(optimizer.state[params[1]]["stream"])
    new = make_tensor(6, seed=9).requires_grad_()
    optimizer.param_groups[0]["params"][1] = new
    before = old.detach().clone(), new.detach().clone()
    take_steps(optimizer, 2)
    assert torch.equal(old, before[0])
    assert not torch.equal(new, before[1])
    assert int(optimizer.state[new]["step"]) == 2
    assert int(optimizer.state[new]["stream"]) == stream


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_in_place", [False, True])
def test_changed_stream_is_obeyed(backend: str, is_in_place: bool) -> None:
    optimizer, params = make_groups(backend)
    state = optimizer.state[params[1]]
    if is_in_place:
        state["stream"].fill_(77)
    else:
        state["stream"] = torch.tensor(77)
    fresh, others = make_groups(backend)
    for p in params:
        p.grad = torch.zeros_like(p)
    for p in others:
        p.grad = torch.zeros_like(p)
    before = params[1].detach().clone(), params[0].detach().clone()
    optimizer.step()
    fresh.step()
    assert torch.equal(params[0], others[0])
    assert not torch.equal(params[1], others[1])
    assert not torch.equal(params[1], before[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_state_that_was_cleared_is_made_anew(backend: str) -> None:
    optimizer, params = make_groups(backend)
    optimizer.state.clear()
    take_steps(optimizer, 1)
    assert [int(optimizer.state[p]["step"]) for p in params] == [1, 1, 1]
    assert [int(optimizer.state[p]["stream"]) for p in params] == [0, 1, 2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_momentum_may_be_switched_on_and_off(backend: str) -> None:
    ends = []
    for knobs in (BACKENDS["loop"], BACKENDS[backend]):
        params = make_parameters([(5,), (6, 2)])
        optimizer = asgld.ASGLD(params, lr=0.1, sigma=0.1, **knobs)
        for k, momentum in enumerate((0.0, 0.0, 0.9, 0.9, 0.0, 0.5)):
            optimizer.param_groups[0]["momentum"] = momentum
            take_steps(optimizer, 1, first=k)
        ends.append(torch.cat([p.detach().flatten() for p in params]))
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-5)


def _in_inference_mode(tensor: Tensor) -> Tensor:
    with torch.inference_mode():
        return tensor.clone()


BAD_CHANGES: dict[str, tuple[Callable[[asgld.ASGLD, Tensor], Any], type[Exception]]] = {
    "lr below zero": (lambda o, p: o.param_groups[-1].update(lr=-0.1), ValueError),
    "lr not a number": (lambda o, p: o.param_groups[-1].update(lr=math.nan), ValueError),
    "lr a string": (lambda o, p: o.param_groups[-1].update(lr="1e-3"), TypeError),
    "lr below zero in a tensor": (
        lambda o, p: o.param_groups[-1].update(lr=torch.tensor(-0.1), foreach=False, fused=False),
        ValueError,
    ),
    "decay of two": (lambda o, p: o.param_groups[-1].update(decay=2.0), ValueError),
    "sigma None": (lambda o, p: o.param_groups[-1].update(sigma=None), ValueError),
    "two backends": (
        lambda o, p: o.param_groups[-1].update(fused=True, foreach=True),
        RuntimeError,
    ),
    "a knob is gone": (lambda o, p: o.param_groups[-1].pop("alpha"), ValueError),
    "a count past 32 bits": (lambda o, p: o.state[p]["step"].fill_(2**32), RuntimeError),
    "a count past 32 bits that no version tells of": (
        lambda o, p: o.state[p]["step"].data.fill_(2**32),
        RuntimeError,
    ),
    "a count below zero that no version tells of": (
        lambda o, p: o.state[p]["step"].numpy().fill(-5),
        ValueError,
    ),
    "a state made in inference mode": (
        lambda o, p: o.state[p].update(sum=_in_inference_mode(o.state[p]["sum"])),
        ValueError,
    ),
    "a knob that is a tensor": (
        lambda o, p: o.param_groups[-1].update(sigma=torch.tensor([0.1, 0.2])),
        TypeError,
    ),
    "a flag that is no flag": (lambda o, p: o.param_groups[-1].update(maximize=10**400), TypeError),
    "a number past all floats": (lambda o, p: o.param_groups[-1].update(sigma=10**400), ValueError),
    "a count below zero": (lambda o, p: o.state[p]["step"].fill_(-1), ValueError),
    "a count of halves": (lambda o, p: o.state[p].update(step=torch.tensor(2.5)), ValueError),
    "an empty count": (
        lambda o, p: o.state[p].update(step=torch.tensor([], dtype=torch.int64)),
        ValueError,
    ),
    "a sum of another shape": (lambda o, p: o.state[p].update(sum=torch.zeros(3)), ValueError),
    "a sum of another dtype": (
        lambda o, p: o.state[p].update(sum=o.state[p]["sum"].double()),
        ValueError,
    ),
    "a sum of one number": (
        lambda o, p: o.state[p].update(sum=torch.zeros(1).expand(p.shape)),
        ValueError,
    ),
    "no sum": (lambda o, p: o.state[p].pop("sum"), ValueError),
    "a stream past 32 bits": (lambda o, p: o.state[p]["stream"].fill_(2**32), ValueError),
    "a sparse gradient": (lambda o, p: setattr(p, "grad", p.grad.to_sparse()), RuntimeError),  # type: ignore[union-attr]
    "a shape of its own": (lambda o, p: setattr(p, "data", torch.zeros(11)), RuntimeError),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", BAD_CHANGES)
def test_error_in_the_last_group_comes_before_anything_moves(backend: str, kind: str) -> None:
    optimizer, params = make_groups(backend)
    for p in params:
        p.grad = torch.ones_like(p)
    change, error = BAD_CHANGES[kind]
    change(optimizer, params[-1])
    seen = snapshot(optimizer)
    with pytest.raises(error):
        optimizer.step()
    assert_equal(seen, snapshot(optimizer))


@pytest.mark.parametrize("kind", ["lr", "count"])
def test_counts_and_lr_that_only_a_device_sees_move_nothing_if_they_are_illegal(kind: str) -> None:
    """A compiled step stands for a device here: the host does not read what it works on."""
    from asgld.optim import functional

    for as_lists in (False, True):
        x, g, s, m = (make_tensor(7, seed=i) for i in range(4))
        count = torch.tensor(2**32 if kind == "count" else 5)
        lr = torch.tensor(math.nan if kind == "lr" else 0.1)
        before = [t.clone() for t in (x, s, m, count)]
        rule = asgld.optim.rule.Rule(lr=lr, momentum=0.9, capturable=True)
        layouts = [asgld.noise.Layout.whole(7)]
        tensors = functional.Tensors([x], [g], [s], [count], [0], layouts, [m])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(functional, "_is_unseen", lambda value: isinstance(value, Tensor))
            functional.asgld(tensors, rule, as_lists=as_lists)
        for now, then in zip((x, s, m, count), before, strict=True):
            assert torch.equal(now, then)


# ----------------------------------------------------------------------------------------------
# Devices
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}, {"capturable": True}])
def test_parameters_may_be_materialized_after_construction(options: dict[str, Any]) -> None:
    p = torch.nn.Parameter(torch.zeros(4, device="meta"))
    optimizer = asgld.ASGLD([p], momentum=0.5, **options)
    p.grad = torch.zeros(4, device="meta")
    with pytest.raises(RuntimeError, match="requires all the params to be floating point Tensors"):
        optimizer.step()
    p.grad = None
    optimizer.step()
    torch.utils.swap_tensors(p, torch.nn.Parameter(torch.ones(4)))
    take_steps(optimizer, 2)
    state = optimizer.state[p]
    assert int(state["step"]) == 2
    assert state["sum"].device.type == state["momentum"].device.type == "cpu"
    assert (p != 1).all()


def test_state_holds_nothing_but_tensors() -> None:
    """As torch's own tools and tests expect."""
    optimizer = asgld.NetworkASGLD(make_parameters([(3,)]))
    for state in optimizer.state.values():
        assert all(isinstance(value, Tensor) for value in state.values())
