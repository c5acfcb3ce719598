"""ASGLD as a torch optimizer (Algorithm 1 of the paper); `asgld.optim.presets` has special cases.

`rule` declares the knobs, `state` makes and checks a parameter's state, `functional` has the update
in torch's operations, `plan` the update in kernels. The noise contract is in `asgld.noise`. The
literal statement of the algorithms, with which the tests compare, is in `asgld.reference`.
"""

from __future__ import annotations

import itertools
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # unlike torch.compiler's, it loads nothing
from torch.autograd import profiler
from torch.optim import optimizer as torch_optimizer
from torch.optim.optimizer import Optimizer, ParamsT, _use_grad_for_differentiable

from asgld import noise as noise_contract
from asgld.optim import _memory, exchange, functional, matrix, plan, proximal, shapes, state
from asgld.optim.functional import Tensors, working_dtype
from asgld.optim.plan import MatrixPlan, Plan
from asgld.optim.rule import (
    KNOBS,
    Rule,
    check,
    describe,
    name_of_ours,
    plain,
    rule_of,
    warn_of_heating,
)
from asgld.prox import BoundPenalty, Penalty


class Backend(NamedTuple):
    """The backend of a parameter group, and the reason for it."""

    name: str
    reason: str


class ASGLD(Optimizer):
    """Adaptive stochastic gradient Langevin dynamics: the rule of the paper, for torch.

    To train a network, use `NetworkASGLD`, which is this rule with other settings. A step is

        x <- x - lr * D^(-alpha/2) * G
               + sqrt(2*lr) * D^(-beta/2) * e
        D <- D + G*G + delta

    G is the gradient, ``p.grad``. The noise e is normal with standard deviation ``sigma``. D starts
    at ``d_init`` and holds past gradients only, so the step is unbiased whenever G is. All
    operations are per coordinate, unless ``shape`` gives D another shape.

    The temperature of the noise is sigma^2 * D^(alpha/2 - beta). The noise anneals if beta is
    larger than alpha/2, samples at a fixed temperature if both are equal, and heats otherwise.

    Args:
        params: tensors, parameter groups, or named parameters. Names key the noise, so a parameter
            keeps its noise whatever else is trained. Without names, positions key the noise.
        {knobs}

    Every other argument is a knob of a parameter group; `asgld.optim.rule` declares them.

    Example:
        >>> import torch, asgld
        >>> x = torch.zeros(2, requires_grad=True)              # the saddle of x0^2 - x1^2 + x1^4
        >>> optimizer = asgld.ASGLD([x], lr=0.1, alpha=0.0, sigma=0.01)
        >>> for _ in range(200):
        ...     optimizer.zero_grad()
        ...     (x[0] ** 2 - x[1] ** 2 + x[1] ** 4).backward()
        ...     _ = optimizer.step()
        >>> bool((x[1].abs() - 0.5**0.5).abs() < 0.05)          # one of the two minima
        True

    References:
        Sang and Liu: Adaptive stochastic gradient Langevin dynamics, Algorithm 1. Duchi, Hazan and
        Singer (2011) for D; Welling and Teh (2011) for the noise. Differs from Algorithm 1: D_0 =
        ``d_init`` is separate from ``delta``, and D lags by one step, not by the two that the
        algorithm prints; see `asgld.reference`.
    """

    # Knobs of a preset for groups that state a shape of D, in place of the optimizer's defaults.
    _defaults_of_shape: Mapping[str, dict[str, Any]] = MappingProxyType({})

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        alpha: float = 1.0,
        beta: float = 1.0,
        sigma: float = 1e-3,
        delta: float = 1e-2,
        d_init: float = 1.0,
        weight_decay: float = 0.0,
        foreach: bool | None = None,
        *,
        seed: int = 0,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        sum_dtype: torch.dtype | None = None,
        stochastic_rounding: bool = False,
        decay: float | None = None,
        momentum: float = 0.0,
        clip: float | None = None,
        annealing: float = 0.0,
        opposed: float = 1.0,
        noise: float | None = None,
        noise_bound: float | None = None,
        shape: str = "coordinate",
        blocks: int = 1,
        polar_by: str = "express",
        share_work: bool = False,
        prox: Penalty | None = None,
        **others: Any,
    ) -> None:
        given = locals()
        if isinstance(params, torch.nn.Module):
            raise TypeError(
                f"{type(self).__name__} takes parameters, not a model: give "
                "model.named_parameters(), or use asgld.NetworkASGLD(model)"
            )
        for word in others:
            raise TypeError(f"{type(self).__name__}: {name_of_ours(word)}; {_known(KNOBS)}")
        self._plans: dict[int, Plan] = {}
        defaults = plain({name: given[name] for name in KNOBS})
        check(rule_of(defaults))
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._plans = {}
        for group in self.param_groups:
            for name, value in _BEFORE.items():
                group.setdefault(name, value)
            for name, value in self.defaults.items():
                group.setdefault(name, value)
        self._declare_scaler_support()

    def __repr__(self) -> str:
        """Say which parameters are in which group, and the knobs that are not ASGLD's defaults."""
        lines = [f"{type(self).__name__} ("]
        for number, group in enumerate(self.param_groups):
            params, names = group["params"], _names(group)
            lines.append(f"Parameter Group {number}: {len(params)} parameters, {group['shape']} D")
            sizes = [str(tuple(p.shape)) for p in params]
            texts = [" ".join(pair) for pair in zip(names, sizes, strict=True)] if names else sizes
            lines.append(textwrap.indent(textwrap.fill(", ".join(texts), 96), "    "))
            plain_values = {**Rule._field_defaults, "lr": None, "shape": group["shape"]}
            lines += [
                f"    {name}: {group[name]}"
                for name, value in plain_values.items()
                if group[name] is not value and group[name] != value
            ]
        return "\n".join([*lines, ")"])

    def _declare_scaler_support(self) -> None:
        # torch.amp.GradScaler reads this flag: the optimizer unscales gradients and skips steps.
        self._step_supports_amp_scaling = bool(self.param_groups) and all(
            group["fused"] for group in self.param_groups
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; its knobs are checked and its state exists when this returns."""
        if isinstance(param_group, dict) and isinstance(param_group.get("shape"), str):
            suited = self._defaults_of_shape.get(param_group["shape"], {})
            param_group = {**suited, **param_group}
        known = {"params", "param_names", "initial_lr", *KNOBS}
        if isinstance(param_group, dict) and (unknown := sorted(param_group.keys() - known)):
            raise ValueError(f"{name_of_ours(unknown[0])} in a parameter group; {_known(KNOBS)}")
        try:
            super().add_param_group(param_group)
        except ValueError:
            _check_names(param_group, self.param_groups)
            raise
        group = self.param_groups[-1]
        try:
            for p in group["params"]:
                if p.layout != torch.strided or p.is_nested:
                    raise TypeError(f"a parameter has the layout {p.layout}: need a dense tensor")
            group.update(plain({name: group[name] for name in KNOBS}))
            rule = self._checked_rule(group, len(self.param_groups) - 1)
            warn_of_heating(rule)
            self._create_state(group, rule)
        except BaseException:
            self.param_groups.pop()
            for p in group["params"]:
                self.state.pop(p, None)
            raise
        self._declare_scaler_support()

    # ------------------------------------------------------------------------------------- state

    def _create_state(self, group: dict[str, Any], rule: Rule) -> None:
        """Create missing states: before the first gradient, since D_0 exists then, and for a
        parameter that replaced another one in its group."""
        missing = [p for p in group["params"] if not self.state.get(p)]
        if not missing:
            return
        everyone = [p for g in self.param_groups for p in g["params"]]
        taken = {int(s["stream"]) for p in everyone if "stream" in (s := self.state.get(p) or {})}
        if names := _names(group):
            name_of = dict(zip(group["params"], names, strict=True))
            streams = noise_contract.streams_of_names([name_of[p] for p in missing], taken)
        else:
            place_of = {p: i for i, p in enumerate(everyone)}
            streams = []
            for p in missing:
                streams.append(next(i for i in itertools.count(place_of[p]) if i not in taken))
                taken.add(streams[-1])
        on_device = self._counts_on_device(group, rule)
        with torch.inference_mode(False):
            made = [
                state.create(p, rule, stream, count_on_device=on_device)
                for p, stream in zip(missing, streams, strict=True)
            ]
            state.share_versions(made, rule)
        self.state.update(zip(missing, made, strict=True))

    def _counts_on_device(self, group: dict[str, Any], rule: Rule) -> bool:
        """Whether step counts are on the device of the parameters, and never read by the host."""
        return bool(rule.capturable) or (
            any(p.is_cuda for p in group["params"]) and self._choose_backend(group).name == "fused"
        )

    @_disable_dynamo
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state. The whole state is checked before anything changes. Unlike torch's method,
        this one keeps the dtypes of `sum` and `step`."""
        # torch casts every state tensor but `step` to the parameter's dtype, which would round a
        # float32 sum to bfloat16 (pytorch#75224). So the last of the pre-hooks checks the tensors
        # before the cast, and the first of the post-hooks puts copies of them in place.
        if not isinstance(state_dict, dict):
            raise TypeError(f"need a state_dict, not a {type(state_dict).__name__}")
        loaded: list[tuple[Tensor, dict[str, Any]]] = []
        before = self.register_load_state_dict_pre_hook(
            lambda _, saved: loaded.extend(self._checked(saved))
        )
        after = self.register_load_state_dict_post_hook(
            lambda _: self.state.update(loaded), prepend=True
        )
        try:
            with torch.inference_mode(False):  # so that any later step can change the state
                super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    def _checked(self, saved: dict[str, Any]) -> Iterator[tuple[Tensor, dict[str, Any]]]:
        """Yield each parameter and a checked copy of its saved state, or raise."""
        if not isinstance(saved, dict) or not {"state", "param_groups"} <= saved.keys():
            raise ValueError("a state_dict has the entries 'state' and 'param_groups'; need both")
        groups, entries = saved["param_groups"], saved["state"]
        are_groups = all(isinstance(group, dict) and "params" in group for group in groups)
        if not isinstance(entries, dict) or not are_groups:
            raise ValueError("'state' must be a dict, and 'param_groups' a list of groups")
        state.check_owner(groups, entries)  # first: the groups of another optimizer need not fit
        lengths = [len(group["params"]) for group in groups]
        own_lengths = [len(group["params"]) for group in self.param_groups]
        if lengths != own_lengths:
            what = "has a different number of parameter groups"
            if len(lengths) == len(own_lengths):
                what = "contains a parameter group that doesn't match the size of optimizer's group"
            raise ValueError(
                f"loaded state dict {what}: the state has groups of {lengths} parameters, the "
                f"optimizer of {own_lengths}. Make the same groups first: a state of bare "
                "parameters fits NetworkASGLD(model, shape='coordinate'); one that was calibrated "
                "by calibrate_copies fits network_groups(model, noise=...)"
            )
        states: list[tuple[Tensor, dict[str, Any]]] = []
        for i, (group, saved_group) in enumerate(zip(self.param_groups, groups, strict=True)):
            where = f"param_groups[{i}]"
            elsewhere = {n for g in self.param_groups if g is not group for n in _names(g)}
            state.check_group(saved_group, group, where, elsewhere)
            merged = {**self.defaults, **_BEFORE, **saved_group, "params": group["params"]}
            try:
                rule = self._checked_rule(merged, i)
            except (ValueError, TypeError, RuntimeError) as error:
                raise type(error)(f"{where} of the loaded state: {error}") from None
            kept = f"sigma={rule.sigma!r} stays in use and does not follow lr"
            for name, effect, remedy in (
                ("noise", kept, "noise, and sigma=0"),
                ("prox", "it goes on without a penalty", "prox in the group"),
            ):
                if name not in saved_group and self.defaults[name] is not None:
                    text = f"{where} was saved before `{name}` existed, so {effect}"
                    warnings.warn(f"{text}. To change this, set {remedy}", stacklevel=6)
            on_device = self._counts_on_device(merged, rule)
            for j, (p, key) in enumerate(zip(group["params"], saved_group["params"], strict=True)):
                entry, name = entries.get(key), _name(merged, i, j)
                if entry is not None:
                    restored = state.restore(p, entry, rule, name, count_on_device=on_device)
                elif not p.requires_grad and self.state.get(p):
                    restored = {**self.state[p]}  # distributed checkpoints omit frozen parameters
                else:
                    raise ValueError(f"state of {name} is missing")
                states.append((p, restored))
            state.share_versions([s for _, s in states[-len(group["params"]) :]], rule)
        state.check_streams(s for _, s in states)
        yield from states

    # -------------------------------------------------------------------------------------- step

    def _why_not_fused(self, group: dict[str, Any], rule: Rule) -> str | None:
        if rule.differentiable:
            return "autograd cannot run through a kernel"
        if rule.shape != "coordinate" and not rule.is_polar:
            return f"no kernel has a D of the shape {rule.shape!r}"
        return plan.unavailable_reason(group["params"], rule)

    def _checked_rule(self, group: dict[str, Any], number: int = 0) -> Rule:
        """Return a group's knobs. Raise if they are illegal, or if they ask for a kernel and none
        serves. A parameter on the device "meta" may still move to a device with a kernel."""
        rule, params = rule_of(group), group["params"]
        check(rule, {working_dtype(p) for p in params})
        for j, p in enumerate(params if rule.shape != "coordinate" else ()):
            if problem := shapes.problem_with(p, rule):
                raise ValueError(f"{_name(group, number, j)} {problem}")
        for j, p in enumerate(params):
            if rule.prox is not None and (problem := proximal.problem_with(p, rule.prox)):
                raise ValueError(f"{_name(group, number, j)} {problem}")
        needs_kernel = rule.fused and not any(p.is_meta for p in params)
        if needs_kernel and (reason := self._why_not_fused(group, rule)):
            raise RuntimeError(
                f"fused=True cannot be served: {reason}. Use fused=None for the best that can"
            )
        return rule

    def _choose_backend(self, group: dict[str, Any]) -> Backend:
        """Reduce `foreach` and `fused` to one backend. No other code decides this."""
        rule = rule_of(group)
        if rule.fused:
            return Backend("fused", "fused=True was asked for")
        if rule.foreach:
            return Backend("foreach", "foreach=True was asked for")
        if rule.foreach is False:
            return Backend("loop", "foreach=False was asked for")
        if rule.differentiable:
            return Backend("loop", "autograd runs through the step")
        if torch.compiler.is_compiling():
            return Backend("loop", "the compiler fuses the loop")
        reason = "fused=False was asked for"
        if rule.fused is None:
            reason = self._why_not_fused(group, rule) or ""
            if not reason:
                if rule.is_polar:
                    return Backend("fused", "batches of matrices, then a kernel, are the fastest")
                return Backend("fused", "a kernel serves, and is the fastest")
        if isinstance(rule.lr, Tensor) and not rule.capturable:
            return Backend("loop", f"{reason}; and lr is a tensor without capturable=True")
        return Backend("foreach", f"{reason}; lists are the next best")

    @property
    def backends(self) -> list[Backend]:
        """Which backend runs each parameter group, and why."""
        return [self._choose_backend(group) for group in self.param_groups]

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step. `closure`, if given, computes gradients and returns the loss."""
        given = () if closure is None else (closure,)
        return self._step_in_sight(*given) if self._is_watched() else self._step(*given)

    # By default torch wraps step() in calls of hooks and a profiler mark, which take longer than
    # the launch of a kernel. `_step_in_sight` has them; it runs if there is a hook or a profiler.
    step.hooked = True  # type: ignore[attr-defined]

    def _is_watched(self) -> bool:
        return bool(
            profiler._is_profiler_enabled
            or self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or torch_optimizer._global_optimizer_pre_hooks
            or torch_optimizer._global_optimizer_post_hooks
        )

    def _step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if torch.compiler.is_compiling():
            self._step_compiled()
            return loss
        self._check_sharing()
        # Every group is checked before any group is updated. A plan that fits has been checked; a
        # group without such a plan is checked and collected anew.
        held = list(self.state), list(self.state.values())
        plans = [self._plan_of(group, *held) for group in self.param_groups]
        if None in plans:
            self._step_anew(plans)
            return loss
        for group_plan in plans:
            group_plan.step(*self._scaling())  # type: ignore[union-attr]
        return loss

    _step_in_sight = Optimizer.profile_hook_step(_step)

    def _check_sharing(self) -> None:
        """Raise, on all ranks, if ranks that share work do not hold the same matrices with the same
        gradients: their messages would not fit each other."""
        shared = [g for g in self.param_groups if g["share_work"] and g["shape"] != "coordinate"]
        if shared:
            exchange.check_agreement(
                [
                    (name, p.shape, p.dtype, p.grad is not None)
                    for group in shared
                    for name, p in itertools.zip_longest(_names(group), group["params"])
                ],
                shared[0]["params"][0].device if shared[0]["params"] else torch.device("cpu"),
            )

    def _scaling(self) -> tuple[Tensor | None, Tensor | None]:
        """Return `grad_scale` and `found_inf`, attributes that a gradient scaler sets."""
        return getattr(self, "grad_scale", None), getattr(self, "found_inf", None)

    def _plan_of(self, group: dict[str, Any], keys: list[Tensor], states: list[Any]) -> Plan | None:
        """Return the plan of a group if there is one and it fits."""
        found = self._plans.get(id(group))  # the plan keeps its group alive, so the id is unique
        return found if found is not None and found.fits(keys, states) else None

    @_use_grad_for_differentiable
    def _step_anew(self, plans: list[Plan | None]) -> None:
        """Take one step in which groups without a plan are collected."""
        _check_graph_capture(self)
        rules = [
            None if ready else self._check_group(i, group)
            for i, (group, ready) in enumerate(zip(self.param_groups, plans, strict=True))
        ]
        self._plans = {id(ready.group): ready for ready in plans if ready is not None}
        work: list[Any] = []
        for group, rule, ready in zip(self.param_groups, rules, plans, strict=True):
            work.append(ready if rule is None else self._collect(group, rule))
        for group_work in work:
            group_work.step(*self._scaling())

    def _check_group(self, number: int, group: dict[str, Any]) -> Rule:
        """Return a group's knobs, or raise if the group cannot take a step. Nothing changes."""
        rule = self._checked_rule(group, number)
        for j, p in enumerate(group["params"]):
            if p.grad is None:
                continue
            where = _name(group, number, j)
            if p.is_meta:
                what = "`fused=True`" if rule.fused else "A step"
                raise RuntimeError(
                    f"{what} requires all the params to be floating point Tensors of supported "
                    f"devices: {where} is on the device 'meta'; materialize it first"
                )
            state.check_parameter(p, where)
            if found := self.state.get(p):
                state.check_state(p, found, rule, where)
                state.check_count(found, where)
        return rule

    def _collect(self, group: dict[str, Any], rule: Rule) -> Plan | _Operations:
        """Return an object whose `step` updates a group that has passed its check."""
        tensors = Tensors([], [], [], [], [], [], [])
        self._collect_tensors(group, rule, tensors)
        backend = self._choose_backend(group).name
        owners = [p for p in group["params"] if p.grad is not None]
        penalties = [] if rule.prox is None else proximal.penalties_of(owners, rule.prox)
        matrices = None
        if rule.shape != "coordinate" and tensors.params:
            matrices = matrix.Matrices(owners, [self.state[p] for p in owners], tensors, rule)
        if backend != "fused" or not tensors.params:
            beside = () if matrices is None else matrices.written()
            resolved = functional.resolved(tensors, beside)
            return _Operations(resolved, rule, backend == "foreach", matrices, penalties)
        if matrices is not None:
            self._plans[id(group)] = MatrixPlan(group, rule, self.state, tensors, matrices)
        else:
            self._plans[id(group)] = Plan(group, rule, self.state, tensors, penalties)
        return self._plans[id(group)]

    def _collect_tensors(self, group: dict[str, Any], rule: Rule, into: Tensors) -> None:
        self._create_state(group, rule)
        on_device = self._counts_on_device(group, rule)
        for p in group["params"]:
            if p.grad is not None:
                state.settle(p, self.state[p], rule, count_on_device=on_device)
                state.collect(p, self.state[p], rule, into)

    # ---------------------------------------------------------------------------- torch.compile

    def _init_group(self, group: dict[str, Any], *columns: list[Any]) -> str:
        """Collect the parameters with a gradient and return the backend. torch.compile knows this
        method by name and runs it as plain Python when it traces a step."""
        rule = self._check_group(0, group)
        self._collect_tensors(group, rule, Tensors(*columns))
        return self._choose_backend(group).name

    @_use_grad_for_differentiable
    def _step_traced(self) -> None:
        """Take one step as torch.compile sees it. lr is a tensor there: a schedule must not compile
        the step anew."""
        for group in self.param_groups:
            columns: Any = [[] for _ in Tensors._fields]
            backend = self._init_group(group, *columns)
            tensors = Tensors(*columns)
            if not tensors.params:
                continue
            rule = rule_of(group)
            if not isinstance(rule.lr, Tensor):
                rule = rule._replace(lr=torch.ones((), dtype=torch.float64) * rule.lr)
            grads = [_memory.real(g.resolve_conj()) for g in tensors.grads]
            tensors = tensors._replace(grads=grads)
            if backend == "fused":
                plan.step_as_operator(tensors, rule, *self._scaling())
            else:
                functional.asgld(tensors, rule, as_lists=backend == "foreach")

    def _step_compiled(self) -> None:
        for group in self.param_groups:
            if group["shape"] != "coordinate" or group["prox"] is not None:
                self._step_untraced()
                return
        self._step_traced()

    @_disable_dynamo
    def _step_untraced(self) -> None:
        """Take one step beside the compiled code: products of matrices gain nothing there, and the
        penalties hold tensors of their own."""
        self._step()


class _Operations(NamedTuple):
    """One step of a group in torch's own operations."""

    tensors: Tensors
    rule: Rule
    as_lists: bool
    matrices: matrix.Matrices | None
    penalties: list[BoundPenalty]

    def step(self, grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        """Take the step. A gradient scaler unscales the gradients and skips steps by itself."""
        if not self.tensors.params:
            return
        if self.penalties:
            proximal.step(self._step, self.tensors, self.rule, self.penalties)
        else:
            self._step()

    def _step(self) -> None:
        tensors, rule, normals = self.tensors, self.rule, None
        if self.matrices is not None:
            directions, normals = self.matrices.directions(tensors.grads, rule)
            tensors, rule = tensors._replace(grads=directions), matrix.applied(rule)
        functional.asgld(tensors, rule, as_lists=self.as_lists, normals=normals)


# The values of knobs in a group that was saved before the knob existed.
_BEFORE = {"noise": None, "shape": "coordinate", "blocks": 1, "prox": None}


def _known(knobs: Iterable[str]) -> str:
    return f"known are {', '.join(sorted(knobs))}"


def _name(group: dict[str, Any], number: int, place: int) -> str:
    """Name a parameter for a message."""
    names = _names(group)
    return repr(names[place]) if names else f"parameter {place} of group {number}"


def _names(group: dict[str, Any]) -> list[str]:
    """Return the names of a group's parameters, or nothing if the list does not fit: torch's ZeRO
    distributes parameters over ranks and leaves the list of names as it was."""
    names = group.get("param_names", [])
    return names if len(names) == len(group["params"]) else []


def _check_names(group: dict[str, Any], others: Sequence[dict[str, Any]]) -> None:
    """Raise if a new group has names and the others have none, or the other way round."""
    are_named = any("param_names" in other for other in others)
    if are_named and "param_names" not in group:
        raise ValueError(
            "the new group has no names, but the other groups have: give pairs, with the names "
            "that the model gives, and the shape of D of a hidden matrix, such as "
            "{'params': [('0.weight', model[0].weight)], 'shape': 'polar-row'}"
        )
    if others and not are_named and "param_names" in group:
        raise ValueError(
            "the new group has names, but the parameters here have none: give parameters alone, "
            "such as {'params': [model[0].weight]}"
        )


def _check_graph_capture(optimizer: Optimizer) -> None:
    # torch has renamed this method.
    for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
        if hasattr(optimizer, name):
            getattr(optimizer, name)()
            return


ASGLD.__doc__ = str(ASGLD.__doc__).replace("{knobs}", describe(" " * 8).lstrip())
