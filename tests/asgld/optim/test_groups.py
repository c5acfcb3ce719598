"""Which parameters of a network are hidden matrices, and what NetworkASGLD makes of them."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from helpers import make_tensor, take_steps
from torch import Tensor, nn

import asgld
from asgld.noise import canonical_name
from asgld.prox import L1, GroupLasso


def _split(model: nn.Module, **options: Any) -> dict[str, int]:
    """Return the hidden matrices by name, and how many matrices each holds."""
    return {
        canonical_name(name): group["blocks"]
        for group in asgld.network_groups(model, **options)
        for name in group["param_names"]
        if group["shape"] != "coordinate"
    }


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))


class Tied(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.positions = nn.Parameter(torch.zeros(5, 6))
        self.norm = nn.LayerNorm(6)
        self.mix = nn.Linear(6, 6)
        self.last = nn.Linear(6, 11, bias=False)
        self.last.weight = self.embedding.weight


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(6, 4)
        self.up = nn.Parameter(torch.zeros(4, 6, 9))
        self.down = nn.Parameter(torch.zeros(4, 9, 6))
        self.bias = nn.Parameter(torch.zeros(4, 9))
        self.head = nn.Linear(6, 3)


def test_layers_of_a_perceptron_but_the_last_are_matrices() -> None:
    assert _split(_mlp()) == {"0.weight": 1, "2.weight": 1}


def test_convolutions_are_matrices_and_the_classifier_is_not() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv1d(8, 8, 3), nn.Flatten(), nn.Linear(8, 5)
    )
    assert _split(model) == {"0.weight": 1, "2.weight": 1}


def test_recurrent_and_attention_weights_hold_several_matrices() -> None:
    model = nn.ModuleDict(
        {
            "lstm": nn.LSTM(8, 6, 2, bidirectional=True),
            "gru": nn.GRUCell(6, 6),
            "rnn": nn.RNN(6, 6),
            "attention": nn.MultiheadAttention(6, 2),
            "qkv": nn.Linear(6, 18),
            "c_attn": nn.Linear(6, 12),
            "head": nn.Linear(6, 3),
        }
    )
    found = _split(model)
    assert {found[name] for name in found if name.startswith("lstm.weight")} == {4}
    assert found["gru.weight_hh"] == 3
    assert found["rnn.weight_ih_l0"] == 1
    assert found["attention.in_proj_weight"] == 3
    assert found["attention.out_proj.weight"] == 1
    assert found["qkv.weight"] == 3
    assert found["c_attn.weight"] == 1  # fewer keys and values than queries
    assert not any("bias" in name or "head" in name for name in found)


def test_groups_of_a_convolution_are_matrices_of_their_own() -> None:
    model = nn.Sequential(
        nn.Conv2d(8, 16, 3, groups=4), nn.Conv2d(16, 16, 3, groups=16),
        nn.Conv2d(16, 4, 3, groups=4), nn.ConvTranspose2d(4, 6, 3), nn.Flatten(), nn.Linear(6, 2),
    )  # fmt: skip
    assert _split(model) == {"0.weight": 4, "3.weight": 1}


def test_projection_of_an_lstm_is_one_matrix() -> None:
    found = _split(nn.ModuleDict({"lstm": nn.LSTM(8, 12, proj_size=4), "head": nn.Linear(4, 2)}))
    assert found == {"lstm.weight_ih_l0": 4, "lstm.weight_hh_l0": 4, "lstm.weight_hr_l0": 1}


def test_several_heads_are_found_by_their_names() -> None:
    model = nn.ModuleDict(
        {"to_logits": nn.Linear(6, 9), "a": nn.Linear(6, 6), "box_head": nn.Linear(6, 4)}
    )
    assert _split(model) == {"a.weight": 1}


def test_tied_output_layer_is_an_embedding() -> None:
    """The last layer is the embedding, so no other layer is taken for the output."""
    assert _split(Tied()) == {"mix.weight": 1}


def test_stacks_of_experts_are_batches_of_matrices() -> None:
    assert _split(Experts()) == {"router.weight": 1, "up": 4, "down": 4}


def test_named_head_is_found_wherever_it_is_registered() -> None:
    model = nn.ModuleDict({"lm_head": nn.Linear(6, 9), "a": nn.Linear(6, 6), "b": nn.Linear(6, 6)})
    assert _split(model) == {"a.weight": 1, "b.weight": 1}


def test_stated_output_layer_comes_first() -> None:
    model = _mlp()
    model.get_output_embeddings = lambda: model[0]  # type: ignore[assignment]
    assert _split(model) == {"2.weight": 1, "4.weight": 1}


def test_patterns_override_the_split() -> None:
    assert _split(_mlp(), matrices=["4.*eight"]) == {"0.weight": 1, "2.weight": 1, "4.weight": 1}
    assert _split(_mlp(), coordinates=["0.*"]) == {"2.weight": 1}
    with pytest.raises(ValueError, match=r"'7.weight' matches no parameter"):
        asgld.network_groups(_mlp(), coordinates=["7.weight"])
    with pytest.raises(ValueError, match=r"noise names '7\.weight'"):
        asgld.network_groups(_mlp(), noise={"7.weight": 1.0})
    assert _split(_mlp(), coordinates="0.weight") == {"2.weight": 1}
    with pytest.raises(TypeError, match="need a model"):
        asgld.network_groups(_mlp().parameters())  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", ["polar-row", "coordinate"])
def test_penalties_by_name_leave_all_else_as_it_was(shape: str) -> None:
    first, second = GroupLasso(1e-2), L1(1e-3)
    prox = {"2.weight": first, "*.weight": second, "*.bias": L1(0.0)}
    groups = asgld.network_groups(_mlp(), shape, prox=prox)
    found = {group["prox"]: group["param_names"] for group in groups}
    assert found == {
        first: ["2.weight"],
        second: ["0.weight", "4.weight"],
        L1(0.0): ["0.bias", "2.bias", "4.bias"],
    }
    with pytest.raises(TypeError, match=r"prox=GroupLasso.*need penalties by pattern"):
        asgld.network_groups(_mlp(), shape, prox=first)  # type: ignore[arg-type]
    one = asgld.network_groups(_mlp(), shape, prox={"2.weight": first})
    assert one[-1]["param_names"] == ["2.weight"]
    assert (one[-1]["shape"], one[-1]["prox"]) == ("coordinate", first)
    others = [(g["shape"], n) for g in one[:-1] for n in g["param_names"]]
    plain = [(g["shape"], n) for g in asgld.network_groups(_mlp(), shape) for n in g["param_names"]]
    assert others == [pair for pair in plain if pair[1] != "2.weight"]
    assert not any("prox" in group for group in one[:-1])
    with pytest.raises(ValueError, match=r"'7.weight' matches no parameter"):
        asgld.network_groups(_mlp(), shape, prox={"7.weight": first})
    # None is an exception from a later pattern, and leaves its parameter as it was.
    spared = asgld.network_groups(_mlp(), shape, prox={"2.*": None, "*": first})
    assert [g["param_names"] for g in spared if "prox" not in g] == [
        g["param_names"] for g in _named_alone(asgld.network_groups(_mlp(), shape), "2.")
    ]
    number: Any = {0: first}
    with pytest.raises(TypeError, match=r"prox has the key 0: need the pattern of a name"):
        asgld.network_groups(_mlp(), shape, prox=number)


def _named_alone(groups: list[dict[str, Any]], start: str) -> list[dict[str, Any]]:
    """The groups, of whose names only those stay that begin so; empty groups go."""
    kept = [
        {**g, "param_names": [n for n in g["param_names"] if n.startswith(start)]} for g in groups
    ]
    return [g for g in kept if g["param_names"]]


@pytest.mark.parametrize("value", [0.1, "l1", [L1(0.1)]])
def test_a_pattern_with_no_penalty_is_named(value: Any) -> None:
    prox: Any = {"2.weight": L1(0.1), "0.weight": value}
    with pytest.raises(TypeError, match=r"prox\['0\.weight'\]=.*need a penalty, such as asgld"):
        asgld.network_groups(_mlp(), prox=prox)


@pytest.mark.parametrize("value", [{"0.weight": L1(0.1)}, 0.1])
def test_the_first_error_tells_how_to_penalize_a_layer(value: Any) -> None:
    with pytest.raises(TypeError, match=r"asgld\.network_groups\(model, prox="):
        asgld.NetworkASGLD(_mlp(), prox=value)


def test_a_penalty_on_one_layer_empties_its_rows_alone() -> None:
    torch.manual_seed(0)
    model = _mlp()
    optimizer = asgld.NetworkASGLD(
        asgld.network_groups(model, prox={"0.weight": GroupLasso(10.0)}), lr=0.02
    )
    for _ in range(50):
        optimizer.zero_grad()
        model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
    empty = [name for name, p in model.named_parameters() if p.dim() > 1 and not p.any(1).any()]
    assert empty == ["0.weight"]


def test_a_layer_that_thaws_gets_a_group_of_its_own() -> None:
    model = _mlp()
    model[0].requires_grad_(False)
    optimizer = asgld.NetworkASGLD(model)
    model[0].requires_grad_(True)
    with pytest.raises(
        ValueError, match=r"no names, .*\('0.weight', model\[0\].weight\).*polar-row"
    ):
        optimizer.add_param_group({"params": model[0].parameters()})
    assert len(optimizer.param_groups) == 2
    optimizer.add_param_group({"params": [("0.weight", model[0].weight)], "shape": "polar-row"})
    optimizer.add_param_group({"params": [("0.bias", model[0].bias)]})
    streams = [asgld.NetworkASGLD(model).state[p]["stream"] for p in model.parameters()]
    assert [optimizer.state[p]["stream"] for p in model.parameters()] == streams
    take_steps(optimizer, 1)
    bare = asgld.ASGLD([torch.zeros(2, requires_grad=True)])
    with pytest.raises(ValueError, match=r"has names, .*parameters alone"):
        bare.add_param_group({"params": [("a", torch.zeros(2, requires_grad=True))]})
    with pytest.raises(ValueError, match="more than one parameter group"):  # torch's own
        bare.add_param_group({"params": bare.param_groups[0]["params"]})


def test_single_rows_and_frozen_parameters_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    model[2].weight.requires_grad_(False)
    assert _split(model) == {}
    names = [name for group in asgld.network_groups(model) for name in group["param_names"]]
    assert "2.weight" not in names
    with pytest.raises(ValueError, match="no parameter"):
        asgld.network_groups(_mlp().requires_grad_(False))


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel], ids=["compile", "parallel"])
def test_wrapped_model_has_the_split_and_noise_of_the_model(wrap: Any) -> None:
    model = _mlp()
    assert _split(wrap(model)) == _split(model)
    plain, wrapped = asgld.NetworkASGLD(model), asgld.NetworkASGLD(wrap(model))
    for p in model.parameters():
        assert int(plain.state[p]["stream"]) == int(wrapped.state[p]["stream"])


# ----------------------------------------------------------------------------------------------
# NetworkASGLD
# ----------------------------------------------------------------------------------------------


def test_optimizer_says_what_was_decided() -> None:
    text = str(asgld.NetworkASGLD(_mlp(), lr=1e-3))
    matrices, others = text.split("Parameter Group 1")
    assert "polar-row" in matrices
    assert "0.weight (8, 4), 2.weight (6, 8)" in matrices
    assert "4.weight (2, 6)" in others
    assert "lr: 0.001" in others
    assert "2 parameters" in str(asgld.ASGLD([torch.zeros(1), torch.zeros(2)]))


def test_bare_parameters_get_the_rule_per_coordinate() -> None:
    for params in (_mlp().parameters(), _mlp().named_parameters()):
        (group,) = asgld.NetworkASGLD(params).param_groups
        assert group["shape"] == "coordinate"
        assert group["momentum"] == 0.9


def test_knobs_suit_the_shape_of_a_group() -> None:
    optimizer = asgld.NetworkASGLD(_mlp(), clip=0.25, weight_decay=0.1)
    matrices, others = optimizer.param_groups
    assert (matrices["momentum"], matrices["clip"], matrices["opposed"]) == (0.95, None, 1.0)
    assert (others["momentum"], others["clip"], others["opposed"]) == (0.9, 0.25, 0.0)
    assert matrices["weight_decay"] == others["weight_decay"] == 0.1
    optimizer.add_param_group({"params": [("w", torch.zeros(3, 3))], "shape": "polar"})
    assert optimizer.param_groups[-1]["momentum"] == 0.95
    both = asgld.NetworkASGLD(_mlp(), momentum=0.8).param_groups
    assert [group["momentum"] for group in both] == [0.8, 0.8]
    still = asgld.NetworkASGLD(_mlp(), momentum=0.0).param_groups
    assert [(g["momentum"], g["opposed"]) for g in still] == [(0.0, 1.0), (0.0, 1.0)]
    with pytest.raises(ValueError, match="clip"):
        asgld.NetworkASGLD([torch.zeros(3, 3)], shape="polar", clip=0.1)
    with pytest.raises(TypeError, match="blocks"):
        asgld.NetworkASGLD(_mlp(), blocks=2)
    with pytest.raises(ValueError, match="clip"):
        optimizer.add_param_group(
            {"params": [("v", torch.zeros(3, 3))], "shape": "polar", "clip": 0.1}
        )
    assert len(optimizer.param_groups) == 3


@pytest.mark.parametrize("copied", ["deepcopy", "pickle", "file"])
def test_copies_go_on_as_the_original(copied: str) -> None:
    model = _mlp()
    optimizer = asgld.NetworkASGLD(model, lr=0.01)
    take_steps(optimizer, 2)
    if copied == "deepcopy":
        model_2, optimizer_2 = copy.deepcopy((model, optimizer))
    else:
        file = io.BytesIO()
        saved: Any = (model, optimizer)
        if copied == "file":
            saved = (model.state_dict(), optimizer.state_dict())
        torch.save(saved, file)
        file.seek(0)
        if copied == "file":
            model_2 = _mlp()
            optimizer_2 = asgld.NetworkASGLD(model_2)
            weights, state = torch.load(file)
            model_2.load_state_dict(weights)
            optimizer_2.load_state_dict(state)
        else:
            model_2, optimizer_2 = torch.load(file, weights_only=False)
    take_steps(optimizer, 2, first=2)
    take_steps(optimizer_2, 2, first=2)
    for p, q in zip(model.parameters(), model_2.parameters(), strict=True):
        assert torch.equal(p, q)
    optimizer_2.add_param_group({"params": [("w", torch.zeros(3, 3))], "shape": "polar-row"})
    assert optimizer_2.param_groups[-1]["clip"] is None


def _as_saved_before(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state as versions without shapes of D saved it."""
    state = copy.deepcopy(state)
    for group in state["param_groups"]:
        for name in ("shape", "blocks", "polar_by", "share_work"):
            del group[name]
    return state


@pytest.mark.parametrize("build", ["bare", "model", "other default"])
def test_states_of_earlier_versions_go_on_as_coordinates(build: str) -> None:
    model = _mlp()
    optimizer = asgld.NetworkASGLD(model.named_parameters(), lr=0.01)
    take_steps(optimizer, 2)
    other = copy.deepcopy(model)
    if build == "bare":
        resumed = asgld.NetworkASGLD(other.named_parameters())
    elif build == "model":
        resumed = asgld.NetworkASGLD(other, shape="coordinate")
    else:
        resumed = asgld.NetworkASGLD(other.named_parameters(), shape="row")
    resumed.load_state_dict(_as_saved_before(optimizer.state_dict()))
    take_steps(optimizer, 2, first=2)
    take_steps(resumed, 2, first=2)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def test_earlier_state_does_not_fit_the_matrix_split_and_says_so() -> None:
    model = _mlp()
    saved = _as_saved_before(asgld.NetworkASGLD(model.named_parameters()).state_dict())
    with pytest.raises(ValueError, match="group"):
        asgld.NetworkASGLD(model).load_state_dict(saved)


def test_state_of_another_split_is_refused_by_name() -> None:
    """Equal sizes, so positions alone would take the state of one weight for that of another."""
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)))
    saved = asgld.NetworkASGLD(asgld.network_groups(model, coordinates=["0.*"])).state_dict()
    other = asgld.NetworkASGLD(asgld.network_groups(model, coordinates=["1.*"]))
    with pytest.raises(ValueError, match=r"'1.weight', which is in another group"):
        other.load_state_dict(saved)


def test_one_scheduler_serves_all_groups() -> None:
    model = _mlp()
    optimizer = asgld.NetworkASGLD(model, lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    for _ in range(3):
        take_steps(optimizer, 1)
        schedule.step()
    assert len({group["lr"] for group in optimizer.param_groups}) == 1
    assert optimizer.param_groups[0]["lr"] < 0.1


def test_memory_is_that_of_muon_and_adamw() -> None:
    """At most 1 % more than one average per hidden element, and two per other element."""
    model = nn.Sequential(
        nn.Embedding(50, 128), nn.Linear(128, 512), nn.Linear(512, 128), nn.Linear(128, 50)
    )
    optimizer = asgld.NetworkASGLD(model)

    def is_large(value: Any) -> bool:
        return isinstance(value, Tensor) and value.dim() > 0

    ours = sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for value in state.values()
        if is_large(value)
    )
    matrices, others = ([p.numel() for p in g["params"]] for g in optimizer.param_groups)
    assert ours <= 1.01 * (4 * sum(matrices) + 8 * sum(others))


def test_training_a_small_network_lowers_its_loss() -> None:
    torch.manual_seed(0)
    x = make_tensor(256, 4, seed=1)
    y = torch.sin(3 * x[:, :1]) * x[:, 1:2]
    for options in ({}, {"noise": 0.0}, {"shape": "coordinate"}, {"shape": "both"}):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
        )
        optimizer = asgld.NetworkASGLD(model, lr=3e-2, **options)  # type: ignore[arg-type]
        first = nn.functional.mse_loss(model(x), y).item()
        for _ in range(150):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        assert loss.item() < 0.2 * first
