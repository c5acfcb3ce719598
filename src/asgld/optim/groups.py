"""Parameter groups of a network: hidden matrices, and everything else.

A hidden matrix maps activations to activations. An embedding has rows that are looked up, and an
output layer has rows that are classes; one D per coordinate suits both better than one per matrix.
The shape of a weight does not tell which is which, so this module looks at the modules.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from asgld.noise import canonical_name
from asgld.optim.shapes import size_of
from asgld.prox import Penalty

# Names that output layers have in well-known models.
_OUTPUTS = ("head", "heads", "classifier", "logits", "score", "fc_out", "output_layer")
# Names of layers that make queries, keys and values at once.
_ATTENTION = {"qkv", "qkv_proj", "in_proj", "c_attn", "query_key_value", "Wqkv"}
_RECURRENT = {"LSTM": 4, "LSTMCell": 4, "GRU": 3, "GRUCell": 3, "RNN": 1, "RNNCell": 1}


def network_groups(
    model: nn.Module,
    shape: str = "polar-row",
    *,
    matrices: Iterable[str] = (),
    coordinates: Iterable[str] = (),
    noise: Mapping[str, float] | None = None,
    prox: Mapping[str, Penalty | None] | None = None,
) -> list[dict[str, Any]]:
    """Split the trainable parameters of a model into groups for :class:`asgld.NetworkASGLD`.

    Hidden matrices get the given shape of D: weights of linear, convolutional, recurrent and
    attention layers, other parameters of two dimensions that are named `weight`, and stacks of
    experts. Embeddings, output layers, norms, biases, weights with a single row or column, and
    parameters of unknown use get the rule per coordinate. The output layer is the one that the
    model names (`get_output_embeddings`), or layers with a well-known name such as `head`, or the
    last layer. Of pipeline stages only the last has an output layer: split the whole model, or give
    patterns.

    Parameters that are frozen now are in no group. To train them later, add a group then.

    Args:
        model: wrapped, sharded or compiled, or none of these.
        shape: of D for hidden matrices; "coordinate" gives one group of all parameters.
        matrices: patterns (`fnmatch`) of names that are hidden matrices.
        coordinates: patterns of names that are not. The patterns here come first.
        noise: of parameters with a noise of their own, by name, as `calibrate_copies` finds it.
            Parameters of equal noise share a group.
        prox: penalties of `asgld.prox` by pattern. What a pattern matches gets the rule per
            coordinate and the penalty, in a group of its own; the first pattern that matches
            counts. None is no penalty, for exceptions from a later pattern.

    Example:
        >>> import torch, asgld
        >>> first, last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
        >>> model = torch.nn.Sequential(first, torch.nn.ReLU(), last)
        >>> for group in asgld.network_groups(model):
        ...     print(group["shape"], group["param_names"])
        polar-row ['0.weight']
        coordinate ['0.bias', '2.weight', '2.bias']
        >>> sparse = {"0.weight": asgld.prox.GroupLasso(1e-2)}      # its rows, or none of them
        >>> optimizer = asgld.NetworkASGLD(asgld.network_groups(model, prox=sparse))
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"need a model, not a {type(model).__name__}: its modules make the split")
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not named:
        raise ValueError("the model has no parameter that requires a gradient")
    levels = {canonical_name(name): float(level) for name, level in (noise or {}).items()}
    if unknown := levels.keys() - {canonical_name(name) for name, _ in named}:
        raise ValueError(f"noise names {sorted(unknown)[0]!r}: the model trains no such parameter")
    asked, declined = (
        (patterns,) if isinstance(patterns, str) else tuple(patterns)
        for patterns in (matrices, coordinates)
    )
    if not isinstance(prox, Mapping | None):
        raise TypeError(f"prox={prox!r}: need penalties by pattern, such as {{'0.weight': ...}}")
    penalties = dict(prox or {})
    for pattern, value in penalties.items():
        if not isinstance(pattern, str):
            raise TypeError(f"prox has the key {pattern!r}: need the pattern of a name")
        if not isinstance(value, Penalty | None):
            raise TypeError(
                f"prox[{pattern!r}]={value!r}: need a penalty, such as asgld.prox.L1(0.1)"
            )
    for pattern in (*asked, *declined, *penalties):
        if not any(_matches(name, pattern) for name, _ in named):
            raise ValueError(
                f"the pattern {pattern!r} matches no parameter of the model that requires a "
                "gradient, and a parameter with several names has the first of them"
            )
    blocks_of = {} if shape == "coordinate" else _hidden_matrices(model)
    # By the number of matrices that a parameter holds, and by the pattern of its penalty.
    groups: dict[tuple[int, str | None], list[tuple[str, Tensor]]] = {}
    for name, p in named:
        penalty = next((pattern for pattern in penalties if _matches(name, pattern)), None)
        if penalty is not None and penalties[penalty] is None:
            penalty = None
        blocks = blocks_of.get(p, 0)
        if shape != "coordinate" and any(_matches(name, pattern) for pattern in asked):
            blocks = blocks or 1
        if penalty is not None or any(_matches(name, pattern) for pattern in declined):
            blocks = 0
        groups.setdefault((blocks, penalty), []).append((name, p))
    # Matrices first, and those that hold several after the others; what is penalized comes last.
    split: list[dict[str, Any]] = []
    places = [None, *penalties]
    for blocks, penalty in sorted(groups, key=lambda k: (k[0] == 0, k[0], places.index(k[1]))):
        knobs = {"shape": shape, "blocks": blocks} if blocks else {"shape": "coordinate"}
        own = {} if penalty is None else {"prox": penalties[penalty]}
        split += _split(groups[blocks, penalty], levels, **knobs, **own)
    return split


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(canonical_name(name), pattern)


def _split(
    named: Sequence[tuple[str, Tensor]], levels: dict[str, float], **knobs: Any
) -> list[dict[str, Any]]:
    """Return groups with these knobs, one for each level of noise; most have no level."""
    groups: dict[float | None, dict[str, Any]] = {}
    for name, p in named:
        level = levels.get(canonical_name(name))
        own = {} if level is None else {"noise": level}
        group = groups.setdefault(level, {"params": [], "param_names": [], **knobs, **own})
        group["params"].append(p)
        group["param_names"].append(name)
    return list(groups.values())


def _hidden_matrices(model: nn.Module) -> dict[Tensor, int]:
    """Return the hidden matrices, and how many matrices each of them holds."""
    found: dict[Tensor, int] = {}
    declined = _output_weights(model)
    for path, module in model.named_modules():
        for name, p in module.named_parameters(recurse=False):
            blocks = _blocks(path, module, name, p)
            if blocks is None:
                declined.add(p)  # an embedding, whatever else uses its weight
            elif blocks and min(size_of(p.shape, blocks)) > 1:
                found[p] = blocks
    return {p: blocks for p, blocks in found.items() if p not in declined}


def _blocks(path: str, module: nn.Module, name: str, p: Tensor) -> int | None:
    """Return how many matrices a parameter holds: 0 if it is no matrix, None if an embedding."""
    kind = next((base.__name__ for base in type(module).__mro__ if base.__name__ in _RECURRENT), "")
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) or "Embedding" in type(module).__name__:
        return None
    if kind and name.startswith(("weight_ih", "weight_hh", "weight_hr")):
        return 1 if name.startswith("weight_hr") else _RECURRENT[kind]
    if isinstance(module, nn.MultiheadAttention):
        return 3 if name == "in_proj_weight" else int(name.endswith("_proj_weight"))
    if name == "weight" and isinstance(module, nn.modules.conv._ConvNd):
        return module.groups if p.shape[0] > module.groups or module.groups == 1 else 0
    if name == "weight" and p.dim() == 2:
        makes_three = path.rpartition(".")[2] in _ATTENTION
        return 3 if makes_three and p.shape[0] == 3 * p.shape[1] else 1
    is_expert = "expert" in f"{path}.{type(module).__name__}.{name}".lower()
    return p.shape[0] if is_expert and p.dim() == 3 else 0


def _output_weights(model: nn.Module) -> set[Tensor]:
    """Return the weights of the output layers."""
    stated: Any = getattr(model, "get_output_embeddings", lambda: None)()
    if getattr(stated, "weight", None) is not None:
        return {stated.weight}
    layers = [
        (path.rpartition(".")[2], module)
        for path, module in model.named_modules()
        if isinstance(getattr(module, "weight", None), Tensor)
        and module.weight.dim() > 1
        and _blocks(path, module, "weight", module.weight)
    ]
    named = {
        module.weight
        for name, module in layers
        if name in _OUTPUTS or name.endswith(("_head", "_logits", "_classifier"))
    }
    return named or {module.weight for _, module in layers[-1:]}
