"""ASGLD as a torch optimizer (Algorithm 1 of the paper); `asgld.optim.presets` has its cases.

The update itself is in `asgld.optim.functional`, the noise contract in `asgld.noise`, and the
literal statement of the algorithms, against which the tests compare, in `asgld.reference`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast, overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # unlike torch.compiler's, it loads nothing
from torch.autograd import profiler
from torch.optim import optimizer as torch_optimizer
from torch.optim.optimizer import Optimizer, ParamsT, _use_grad_for_differentiable

from asgld import noise
from asgld.noise import Layout
from asgld.optim import functional, fused
from asgld.optim.functional import Rule, Tensors, working_dtype
from asgld.optim.fused import Plan
from asgld.optim.knobs import check_group, warn_of_heating


class Backend(NamedTuple):
    """What runs a parameter group's step, and why."""

    name: str
    reason: str


class ASGLD(Optimizer):
    r"""Adaptive stochastic gradient Langevin dynamics.

    .. math::
        x_{k+1} = x_k - \mathrm{lr}\, D_k^{-\alpha/2} G_k
                  + \sqrt{2\,\mathrm{lr}}\, D_k^{-\beta/2} e_k, \qquad e_k \sim N(0, \sigma^2 I)

        D_k = d_\mathrm{init} + \sum_{j<k} (G_j \star G_j + \delta)

    All operations are per coordinate. :math:`D_k` holds past gradients only, so the step is
    unbiased whenever the gradient is. The injected noise has temperature
    :math:`T = \sigma^2 D^{-(\beta - \alpha/2)}`: it anneals for :math:`\beta > \alpha/2`, stays
    fixed (a sampler) for :math:`\beta = \alpha/2`, and heats for :math:`\beta < \alpha/2`.

    ================  ================  ===========================================================
    symbol            argument          meaning
    ================  ================  ===========================================================
    :math:`x`         ``params``        what is minimized over
    :math:`G`         ``p.grad``        (stochastic) gradient
    lr                ``lr``            step size
    :math:`\alpha`    ``alpha``         how strongly D shortens the gradient step; 1 is Adagrad's
    :math:`\beta`     ``beta``          how strongly D quiets the noise; ``math.inf`` is no noise
    :math:`\sigma`    ``sigma``         standard deviation of the injected noise; 0 draws nothing
    :math:`\delta`    ``delta``         what every step adds to D
    :math:`D_0`       ``d_init``        D before the first step
    :math:`k`         ``step``          steps taken, in the state
    ================  ================  ===========================================================

    Args:
        params: tensors, parameter groups, or named parameters. Names key the noise, so that a
            parameter keeps its noise whatever is trained beside it; without names, positions do.
        lr: float, or a one-element tensor.
        alpha: in [0, 2]. Use 0 with full gradients or growing batches, 1 with mini-batches.
        beta: at least 0.
        sigma: at least 0. Total noise grows with the number of coordinates d: the theory keeps
            ``sigma * sqrt(d)`` fixed.
        delta: at least 0, in units of squared gradients. A tiny one (1e-8) slows convergence, since
            near a minimum D then grows only by the noise it causes.
        d_init: positive if alpha or beta is. ``lr * d_init ** (-alpha / 2)`` should not exceed
            1 / (largest curvature).
        weight_decay: decoupled, as in AdamW.
        foreach, fused: which implementation; by default the fastest that serves. See
            :attr:`backends`.
        seed: key of the noise. The noise is a pure function of seed, parameter, step and element.
        maximize: ascend.
        capturable: keep the step count on the device, for CUDA graphs.
        differentiable: let autograd run through the step.
        sum_dtype: dtype of the sum of squares. By default the parameter's own, but float32 for half
            precision, where a sum would soon stop growing.
        stochastic_rounding: round half-precision results at random, without bias, so that updates
            below half a unit in the last place are not lost.
        decay: forget: D is ``delta`` plus the exponential average of past squared gradients with
            this factor, which begins at ``d_init``; with ``d_init=0`` the first gradient fills it
            and moves nothing. None, the default, is the paper's sum.
        momentum: factor of an exponential average of the gradient steps, taken after D scales them.
        clip: bound the scaled gradient by ``k ** clip`` in every coordinate; None is no bound.
        annealing: multiply the noise by ``k ** (-annealing / 2)``. The paper's D anneals by
            growing; one that forgets does not grow, so its noise is annealed by this.
        opposed: from -1 to 1, the factor of momentum in a coordinate where it points against the
            newest gradient. 1 steps along it all the same; 0 waits there, as the cautious
            optimizers do (Liang, Chen, Liu and Liu, arXiv 2411.16085, who also scale up the other
            coordinates); -1 steps as far the other way, as Grams does (Cao, Li and Song, arXiv
            2412.17107). Without a gradient nothing moves if it is negative. The momentum that is
            stored is the same with all.

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
    ) -> None:
        defaults: dict[str, Any] = {
            "lr": lr,
            "alpha": alpha,
            "beta": beta,
            "sigma": sigma,
            "delta": delta,
            "d_init": d_init,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "seed": seed,
            "maximize": maximize,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "sum_dtype": sum_dtype,
            "stochastic_rounding": stochastic_rounding,
            "decay": decay,
            "momentum": momentum,
            "clip": clip,
            "annealing": annealing,
            "opposed": opposed,
        }
        self._plans: dict[int, Plan] = {}
        check_group(defaults)
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._plans = {}
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
        self._declare_scaler_support()

    def _declare_scaler_support(self) -> None:
        # torch.amp.GradScaler unscales and skips by itself unless the optimizer says it does so.
        self._step_supports_amp_scaling = bool(self.param_groups) and all(
            group["fused"] for group in self.param_groups
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; its knobs are checked and its state exists when this returns."""
        known = {"params", "param_names", "initial_lr", *self.defaults}
        if isinstance(param_group, dict) and (unknown := param_group.keys() - known):
            raise ValueError(
                f"unknown option {sorted(unknown)[0]!r} in a parameter group; known are "
                f"{', '.join(sorted(self.defaults))}"
            )
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            check_group(group)
            warn_of_heating(group)
            self._create_state(group)
            if group["fused"] and (reason := self._why_not_fused(group)):
                raise RuntimeError(
                    f"fused=True cannot be served: {reason}. Use fused=None for the best that can"
                )
        except BaseException:
            self.param_groups.pop()
            for p in group["params"]:
                self.state.pop(p, None)
            raise
        self._declare_scaler_support()

    def _create_state(self, group: dict[str, Any]) -> None:
        """Create the state of a new group. It exists before the first gradient, as D_0 does."""
        params = group["params"]
        taken = [s["stream"] for s in self.state.values()]
        if "param_names" in group:
            streams = noise.streams_of_names(group["param_names"], taken)
        else:
            streams = list(range(len(taken), len(taken) + len(params)))
        stays = self._counts_with_params(group)
        for p, stream in zip(params, streams, strict=True):
            real = torch.view_as_real(p.detach()) if p.is_complex() else p.detach()
            self.state[p] = {
                "step": torch.zeros((), dtype=torch.int64, device=p.device if stays else "cpu"),
                "sum": torch.zeros_like(real, dtype=_sum_dtype(group, p)),
                "stream": stream,
            }
            if group["momentum"] != 0.0:
                self.state[p]["momentum"] = torch.zeros_like(real, dtype=working_dtype(p))
        _share_version(group, [self.state[p] for p in params])

    def _why_not_fused(self, group: dict[str, Any]) -> str | None:
        if group["differentiable"]:
            return "autograd cannot run through a kernel"
        params = group["params"]
        layouts = [noise.layout_of(p) for p in params]
        return fused.unavailable_reason(params, layouts, _rule(group))

    def _counts_with_params(self, group: dict[str, Any]) -> bool:
        """Whether step counts live with the parameters, since no host may, or need, read them."""
        return bool(group["capturable"]) or (
            group["fused"] is not False
            and group["foreach"] is None
            and any(p.is_cuda for p in group["params"])
            and self._why_not_fused(group) is None
        )

    def _choose_backend(self, group: dict[str, Any]) -> Backend:
        """Reduce `foreach` and `fused` to one backend, here and nowhere else."""
        if group["fused"]:
            return Backend("fused", "fused=True was asked for")
        if group["foreach"]:
            return Backend("foreach", "foreach=True was asked for")
        if group["foreach"] is False:
            return Backend("loop", "foreach=False was asked for")
        if group["differentiable"]:
            return Backend("loop", "autograd runs through the step")
        if torch.compiler.is_compiling():
            return Backend("loop", "the compiler fuses the loop")
        reason = "fused=False was asked for"
        if group["fused"] is None:
            reason = self._why_not_fused(group) or ""
            if not reason:
                return Backend("fused", "a kernel serves, and is the fastest")
        if isinstance(group["lr"], Tensor) and not group["capturable"]:
            return Backend("loop", f"{reason}; and lr is a tensor without capturable=True")
        return Backend("foreach", f"{reason}; lists are the next best")

    @property
    def backends(self) -> list[Backend]:
        """Which backend runs each parameter group, and why."""
        return [self._choose_backend(group) for group in self.param_groups]

    def _init_group(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        sums: list[Tensor],
        steps: list[Tensor],
        streams: list[int],
        layouts: list[Layout],
        momenta: list[Tensor | None],
    ) -> str:
        """Collect what has a gradient and return the backend. Everything is checked here, before
        any group is updated; torch.compile runs this method as plain Python."""
        for p in group["params"]:
            if p.grad is None:
                continue
            if p.grad.is_sparse:
                raise RuntimeError(
                    "ASGLD does not support sparse gradients: delta and the noise reach every "
                    "coordinate at every step; pass p.grad.to_dense()"
                )
            state = self.state[p]
            params.append(_local(p))
            grads.append(_local(_placed(p.grad, p)))
            sums.append(_local(state["sum"]))
            steps.append(state["step"])
            streams.append(state["stream"])
            layouts.append(noise.layout_of(p))
            momenta.append(_local(state["momentum"]) if group["momentum"] != 0.0 else None)
        return self._choose_backend(group).name

    def _plan(self, number: int, group: dict[str, Any], tensors: Tensors) -> list[int] | None:
        """Plan a group's steps in a kernel. Return the addresses of its gradients, or None where a
        kernel cannot work on the tensors' own memory, as the plan would."""
        owners = [p for p in group["params"] if p.grad is not None]
        if not owners or any(p.is_complex() for p in owners) or not Plan.serves(tensors):
            return None
        plan = Plan(group, owners, self.state, tensors)
        self._plans[number] = plan
        return plan.gradients(group, list(self.state.values()))

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step. `closure`, if given, computes gradients and returns the loss."""
        given = () if closure is None else (closure,)
        return self._step_in_sight(*given) if self._is_watched() else self._step(*given)

    # Of its own accord torch wraps step() in the calls of hooks and a mark for profilers. With
    # nobody there to see them, they take longer than the launch of a kernel.
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

        # Every group is checked before any is updated. A group whose step a kernel has taken before
        # has a plan, which finds the addresses of its gradients.
        found: list[list[int] | None] = [None] * len(self.param_groups)
        if not torch.compiler.is_compiling():
            states = list(self.state.values())
            for number, plan in self._plans.items():
                found[number] = plan.gradients(self.param_groups[number], states)
        known = [addresses for addresses in found if addresses is not None]
        if len(known) < len(found):
            self._step_anew(found)
            return loss
        scaling = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        for number, addresses in enumerate(known):
            self._plans[number].step(addresses, _rule(self.param_groups[number]), *scaling)
        return loss

    _step_in_sight = Optimizer.profile_hook_step(_step)

    @_use_grad_for_differentiable
    def _step_anew(self, found: list[list[int] | None]) -> None:
        """Take one step in which some groups have to be collected: those without addresses."""
        _check_graph_capture(self)
        is_compiling = torch.compiler.is_compiling()
        work: list[tuple[dict[str, Any], str, Tensors, list[int] | None]] = []
        for number, (group, addresses) in enumerate(zip(self.param_groups, found, strict=True)):
            tensors, backend = Tensors([], [], [], [], [], [], []), "fused"
            if addresses is None:
                backend = self._init_group(group, *tensors)
                # A plan knows the step counts; what steps without it leaves it behind.
                self._plans.pop(number, None)
                if backend == "fused" and not is_compiling:
                    addresses = self._plan(number, group, tensors)
            work.append((group, backend, tensors, addresses))
        grad_scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        for number, (group, backend, tensors, addresses) in enumerate(work):
            rule = _rule(group)
            if addresses is not None:
                self._plans[number].step(addresses, rule, grad_scale, found_inf)
                continue
            functional.asgld(
                *tensors,
                backend=backend,
                capturable=group["capturable"],
                rule=rule,
                grad_scale=grad_scale,
                found_inf=found_inf,
            )

    @_disable_dynamo
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state. Unlike torch's own, this keeps the dtypes of `sum` and `step`."""
        # torch casts every state tensor but `step` to the parameter's dtype, which would round a
        # float32 sum to bfloat16 (pytorch#75224). A hook that runs after all of the user's
        # sees the uncast tensors; one that runs before all of the user's puts them back.
        loaded: dict[str, Any] = {}
        before = self.register_load_state_dict_pre_hook(lambda _, state: loaded.update(state))
        after = self.register_load_state_dict_post_hook(
            lambda _: self._restore_state(loaded), prepend=True
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    def _restore_state(self, loaded: dict[str, Any]) -> None:
        self._plans.clear()
        for group, saved_group in zip(self.param_groups, loaded["param_groups"], strict=True):
            stays = self._counts_with_params(group)
            for p, identifier in zip(group["params"], saved_group["params"], strict=True):
                saved = loaded["state"].get(identifier)
                if saved is None:
                    continue
                state = self.state[p]
                state["stream"] = int(saved["stream"])
                state["sum"] = saved["sum"].to(p.device, _sum_dtype(group, p), copy=True)
                state["step"] = torch.as_tensor(saved["step"]).to(
                    p.device if stays else "cpu", torch.int64, copy=True
                )
                if group["momentum"] != 0.0:
                    state["momentum"] = saved["momentum"].to(p.device, working_dtype(p), copy=True)
            _share_version(group, [self.state[p] for p in group["params"]])


# ----------------------------------------------------------------------------------------------
# Small decisions
# ----------------------------------------------------------------------------------------------


def _rule(group: dict[str, Any]) -> Rule:
    return Rule._make(map(group.__getitem__, Rule._fields))


def _sum_dtype(group: dict[str, Any], param: Tensor) -> torch.dtype:
    if group["sum_dtype"] is not None:
        return cast(torch.dtype, group["sum_dtype"])
    return working_dtype(param)


def _share_version(group: dict[str, Any], states: list[dict[str, Any]]) -> None:
    """Let step counts share one version, though not their memory: a plan then sees with one look
    whether any of them was written to."""
    if group["differentiable"]:
        return  # autograd would take the count of one parameter for that of another
    first: dict[torch.device, Tensor] = {}
    for state in states:
        count = first.setdefault(state["step"].device, state["step"]).detach()
        count.data = state["step"]
        state["step"] = count


def _local(tensor: Tensor) -> Tensor:
    """Return the part of a DTensor that this process holds, sharing its memory."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else cast(Tensor, to_local())


def _placed(grad: Tensor, param: Tensor) -> Tensor:
    """Return a gradient placed as its parameter is: one under sequence parallelism is not."""
    placements = getattr(param, "placements", None)
    if placements is None or grad.placements == placements:  # type: ignore[attr-defined]
        return grad
    return cast(Tensor, grad.redistribute(placements=placements))  # type: ignore[attr-defined]


def _check_graph_capture(optimizer: Optimizer) -> None:
    # torch renamed the method when it learned of accelerators beyond CUDA.
    for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
        if hasattr(optimizer, name):
            getattr(optimizer, name)()
            return
