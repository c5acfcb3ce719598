"""Special cases of ASGLD (the paper's Algorithms 2 and 3, and more).

A preset fixes exponents and chooses defaults. It has no update of its own.
"""

from __future__ import annotations

import math
import warnings
import weakref
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from asgld.optim.groups import network_groups
from asgld.optim.optimizer import ASGLD
from asgld.optim.rule import POLAR_SHAPES, SHAPES


class AGLD(ASGLD):
    """Adaptive gradient Langevin dynamics (Algorithm 2): ASGLD fed with full gradients.

    The class does not compute gradients; give it full ones. It differs from :class:`ASGLD` by its
    default alpha = 0, the better choice for gradients without sampling noise.

    Example:
        >>> import torch, asgld
        >>> x = torch.ones(3, requires_grad=True)
        >>> asgld.AGLD([x], lr=0.1).param_groups[0]["alpha"]
        0.0
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        alpha: float = 0.0,
        beta: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(params, lr, alpha, beta, **options)


class ASG(ASGLD):
    """Adaptive stochastic gradient (Algorithm 3): no injected noise.

    At alpha = 1 this is Adagrad with a lag of one step. The paper writes beta = infinity, a limit
    that is right only where D > 1; the class sets sigma = 0. With exact gradients there is no noise
    at all, and the iterate stays at a saddle.

    Example:
        >>> import torch, asgld
        >>> x = torch.ones(3, requires_grad=True)
        >>> asgld.ASG([x], lr=0.1).param_groups[0]["sigma"]
        0.0
    """

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 1e-2, alpha: float = 1.0, **options: Any
    ) -> None:
        _refuse(("sigma", "beta"), options, self, "it has no noise")
        super().__init__(params, lr, alpha, math.inf, 0.0, **options)


# Samplers of this process: by seed and stream of their noise, and the count of their steps.
_SAMPLERS: dict[tuple[int, int], list[tuple[weakref.ref[ASGLD], Tensor]]] = {}


class _Sampler(ASGLD):
    """An optimizer whose noise should be that of no other: two chains with equal noise are one."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        owners = [p for p in group["params"] if p.requires_grad and group["sigma"] > 0.0]
        shared = False
        for p in owners:
            held = self.state[p]
            key = (group["seed"], int(held["stream"]))
            others = _SAMPLERS.setdefault(key, [])
            # One that is gone without a step has used no noise.
            others[:] = [(o, steps) for o, steps in others if o() is not None or int(steps) > 0]
            shared = shared or any(other() is not self for other, _ in others)
            others[:] = [*others[-1:], (weakref.ref(self), held["step"])]
        if shared:
            warnings.warn(
                f"another sampler of this process has seed={group['seed']} and the same parameter "
                "names or places, so both draw the same noise: as two chains they are worthless. "
                "Give each its own seed; torch.manual_seed does not matter. Where one repeats or "
                "resumes the other, all is well",
                stacklevel=6,
            )


class SGLD(_Sampler):
    """Stochastic gradient Langevin dynamics: alpha = beta = 0, a sampler at temperature sigma**2.

    The paper's inverse temperature is u = 1 / sigma**2. Feed gradients of f; the stationary density
    is proportional to exp(-f / sigma**2) as lr goes to 0. The default sigma is for descent with a
    little noise. For a posterior, with f the mean loss over n data, take sigma = n**-0.5, or
    :func:`asgld.posterior_options`. :func:`asgld.sample` does this, measures the step size, and
    says whether the draws are right.

    Example:
        >>> import torch, asgld
        >>> x = torch.ones(3, requires_grad=True)
        >>> group = asgld.SGLD([x], lr=0.1, sigma=0.5).param_groups[0]
        >>> group["alpha"], group["beta"], group["sigma"]
        (0.0, 0.0, 0.5)

    References:
        Welling and Teh: Bayesian learning via stochastic gradient Langevin dynamics. ICML 2011.
    """

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 1e-2, sigma: float = 1e-3, **options: Any
    ) -> None:
        _refuse(("alpha", "beta"), options, self, "both exponents are 0")
        super().__init__(params, lr, 0.0, 0.0, sigma, **options)


class PSGLD(_Sampler):
    """Preconditioned SGLD: alpha = 1, beta = 1/2 and a D that forgets, a sampler.

    The temperature is sigma**2 at every D, since beta = alpha / 2. Unlike in the paper below, D
    holds past gradients alone, so no gradient scales itself. As in that paper, the term for the
    derivative of D is left out.

    If all gradients so far were zero, at a saddle or in a layer behind one of zeros, D alone would
    make the noise huge. ``noise_bound=1.0`` bounds the noise step by lr sqrt(k): in k steps the
    noise carries no further than gradient steps do. The bound is an addition to D, so the
    temperature stays, and it shrinks. Let s be the spread of the sampled density. The bound lapses
    after about 2 s / lr steps, and gradient steps need s / lr steps to cross the density.

    Example:
        >>> import torch, asgld
        >>> x = torch.ones(3, requires_grad=True)
        >>> group = asgld.PSGLD([x], lr=1e-3, sigma=0.1).param_groups[0]
        >>> group["alpha"], group["beta"], group["decay"]
        (1.0, 0.5, 0.99)

    References:
        Li, Chen, Carlson and Carin: Preconditioned stochastic gradient Langevin dynamics for deep
        neural networks. AAAI 2016.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        sigma: float = 1e-3,
        decay: float = 0.99,
        **options: Any,
    ) -> None:
        _refuse(("alpha", "beta"), options, self, "alpha is 1 and beta 1/2")
        options = {"delta": 1e-10, "d_init": 0.0, "noise_bound": 1.0, **options}
        super().__init__(params, lr, 1.0, 0.5, sigma, decay=decay, **options)


def _network_defaults(shape: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the knobs of NetworkASGLD for a shape of D. The user's own come first, but a clip and
    a treatment of opposed momentum are those of the rule per coordinate."""
    common = {"delta": 1e-16, "d_init": 0.0, "annealing": 1.0}
    if shape in POLAR_SHAPES:
        return {**common, "momentum": 0.95, **given, "clip": None, "opposed": 1.0}
    opposed = 0.0 if given.get("momentum", 0.9) != 0.0 else 1.0
    return {**common, "momentum": 0.9, "clip": 0.125, "opposed": opposed, **given}


class NetworkASGLD(ASGLD):
    r"""ASGLD for training networks: give it the model, and tune lr alone.

    Hidden matrices step along the polar factor of their momentum, as with Muon, with rows of even
    size. Everything else (embeddings, output layers, norms, biases) has a D per coordinate that
    forgets. All get annealed noise. Matrices:

    .. math:: M_k = \mu\, M_{k-1} + (1 - \mu)\, G_k

    .. math:: u_k = \mathrm{rows}\big(\mathrm{polar}(\mu M_k + (1 - \mu) G_k)\big)

    Other parameters:

    .. math:: c_k = \mathrm{clip}(D_k^{-1/2} G_k,\ k^{1/8})

    .. math:: m_k = \mu\, m_{k-1} + (1 - \mu)\, c_k

    .. math:: u_k = m_k\, [m_k G_k > 0]

    All parameters:

    .. math:: x_{k+1} = x_k - \mathrm{lr}\, u_k + \nu\, \mathrm{lr}\, k^{-1/2} z_k

    The polar factor is scaled to a root mean square of 0.2, about that of AdamW's steps, so one lr
    serves all, on AdamW's scale. D is the average of past squared gradients, so a scaled gradient
    has the size of one in all units of the loss. No warm-up is needed. A coordinate whose momentum
    points against the newest gradient waits (``opposed=0``; see :class:`ASGLD`). The noise is nu
    times lr at first and anneals like k^(-1/2).

    Args:
        params: the model, whose modules tell which parameters are hidden matrices; see
            :func:`asgld.network_groups`. Or parameters or groups as for :class:`ASGLD`: they get
            the rule per coordinate, unless a group has another ``shape``.
        lr: float, or a one-element tensor.
        noise: nu; 0 for none. The noise follows the lr of its group, through every schedule.
        decay: of the averages of squares.
        momentum: mu; None is 0.95 for the polar forms and 0.9 for the other shapes of D.
        shape: of D for the hidden matrices of a model. "coordinate" is the rule per coordinate for
            all. For bare parameters it is the shape of all groups that state none.
        options: any other option of :class:`ASGLD`.

    ``print(optimizer)`` shows which parameters are in which group.

    Example:
        >>> import torch, asgld
        >>> first, last = torch.nn.Linear(3, 5), torch.nn.Linear(5, 1)
        >>> model = torch.nn.Sequential(first, torch.nn.Tanh(), last)
        >>> optimizer = asgld.NetworkASGLD(model)
        >>> [(group["shape"], len(group["params"])) for group in optimizer.param_groups]
        [('polar-row', 1), ('coordinate', 3)]
        >>> model(torch.ones(3)).sum().backward()
        >>> optimizer.step()

    References:
        Matrices: Jordan et al., Muon (2024); rows as in NorMuon, Li et al. (arXiv 2510.05491);
        polar factors by Polar Express, Amsel et al. (arXiv 2505.16932); the step size of Liu et
        al. (arXiv 2502.16982). Others: the order (squares of the past, momentum after scaling, a
        growing clip) is that of ADOPT: Taniguchi et al., NeurIPS 2024. Differences: the average of
        squares is corrected for its beginning; the bound grows like k^(1/8), not k^(1/4), which
        allows a larger lr; coordinates wait as in the cautious optimizers of Liang, Chen, Liu and
        Liu (arXiv 2411.16085), without their scaling of the other coordinates. The noise is ours.
    """

    _defaults_of_shape = {word: _network_defaults(word, {}) for word in SHAPES}  # noqa: RUF012

    def __init__(
        self,
        params: ParamsT | nn.Module,
        lr: float | Tensor = 4e-3,
        noise: float = 0.3,
        decay: float = 0.99,
        momentum: float | None = None,
        shape: str | None = None,
        **options: Any,
    ) -> None:
        fixed = "it sets alpha = 1 and beta = 0, and noise is the size of its noise"
        _refuse(("alpha", "beta", "sigma"), options, self, fixed)
        given = {**options, **({} if momentum is None else {"momentum": momentum})}
        self._defaults_of_shape = {word: _network_defaults(word, given) for word in SHAPES}
        if isinstance(params, nn.Module):
            told = "the modules of a model tell"
            _refuse(("blocks",), options, self, told, "use asgld.network_groups")
            params = network_groups(params, "polar-row" if shape is None else shape)
            shape = None
        shape = "coordinate" if shape is None else shape
        # A knob that does not go with a shape that the user has chosen for all is an error.
        options = {**_network_defaults(shape, given), **given, "shape": shape}
        super().__init__(params, lr, 1.0, 0.0, 0.0, **{**options, "noise": noise, "decay": decay})


def _refuse(
    names: tuple[str, ...],
    options: dict[str, Any],
    preset: ASGLD,
    reason: str,
    instead: str = "use asgld.ASGLD",
) -> None:
    """Raise if the caller sets an option that a preset fixes."""
    for name in names:
        if name in options:
            raise TypeError(
                f"{type(preset).__name__} takes no {name}={options[name]!r}: {reason}; {instead}"
            )
