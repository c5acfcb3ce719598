"""What users already know, behind the same oracle: the measure of every claim in Table 1."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from asgld.methods import lbfgs
from asgld.methods.base import normals
from asgld.methods.rivals.perturbed_agd import PerturbedAGD
from asgld.methods.rivals.scipy_trust import TrustExact, TrustKrylov
from asgld.methods.rivals.shared import (
    Constants,
    GradientMethod,
    Rival,
    SeededState,
    require,
    require_at_least_zero,
    require_batch,
    require_positive,
)
from asgld.methods.torch import TorchMethod, TorchState
from asgld.oracle import Oracle

# ------------------------------------------------------------------------------------------------
# Optimizers of torch: gradient descent; SGD (Robbins, Monro, 1951); Adagrad (Duchi, Hazan, Singer,
# 2011); Adam (Kingma, Ba, 2015)
# ------------------------------------------------------------------------------------------------


class _Torch(Rival):
    """A torch optimizer; the subclass says which, and with which options."""

    @cached_property
    @abstractmethod
    def torch_method(self) -> TorchMethod:
        """The method that does the work."""

    @property
    def needs(self) -> frozenset[str]:
        return self.torch_method.needs

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> TorchState:
        return self.torch_method.init(oracle, x0, seed=seed)

    def step(self, oracle: Oracle, state: TorchState) -> TorchState:
        return self.torch_method.step(oracle, state)


@dataclass(frozen=True)
class GD(_Torch):
    r"""Gradient descent with full gradients: the control that stays at a saddle.

    .. math:: x_{k+1} = x_k - \mathrm{lr}\, \nabla f(x_k)

    >>> GD.theory(smoothness=4, hessian_lipschitz=1, eps=0.1, gamma=0.1, dim=2, gap=1)
    GD(lr=0.25)
    """

    lr: float = 1e-1

    name: ClassVar[str] = "gd"
    ranges: ClassVar[dict[str, tuple[float, float]]] = {"lr": (1e-3, 1e1)}

    def __post_init__(self) -> None:
        require_positive(self, "lr")

    @classmethod
    def _proved(cls, constants: Constants) -> Self:
        return cls(lr=1.0 / constants.smoothness)

    @cached_property
    def torch_method(self) -> TorchMethod:
        return TorchMethod(self.name, torch.optim.SGD, {"lr": self.lr})


@dataclass(frozen=True)
class SGD(_Torch):
    r"""Stochastic gradient descent; the only noise is that of the samples.

    .. math:: x_{k+1} = x_k - \mathrm{lr}\,(1 + k)^{-q}\, G(x_k)

    Args:
        lr: step size.
        batch_size: of G; None is gradient descent.
        momentum: of the heavy ball.
        lr_decay: q.

    References:
        H. Robbins, S. Monro: A stochastic approximation method. Annals of Mathematical Statistics,
        1951.
    """

    lr: float = 1e-2
    batch_size: int | None = 1
    momentum: float = 0.0
    lr_decay: float = 0.0

    name: ClassVar[str] = "sgd"
    ranges: ClassVar[dict[str, tuple[float, float]]] = {"lr": (1e-4, 1e1), "lr_decay": (1e-1, 1.0)}
    unverified: ClassVar[tuple[str, ...]] = (
        "lr: 1/M is proved for exact gradients; with noise the variance, not given, decides",
    )

    def __post_init__(self) -> None:
        require_positive(self, "lr")
        require(0.0 <= self.momentum < 1.0, "momentum", self.momentum, "0 <= momentum < 1")
        require_at_least_zero(self, "lr_decay")
        require_batch(self.batch_size)

    @classmethod
    def _proved(cls, constants: Constants) -> Self:
        return cls(lr=1.0 / constants.smoothness)

    @cached_property
    def torch_method(self) -> TorchMethod:
        options = {"lr": self.lr, "momentum": self.momentum}
        return TorchMethod(
            self.name, torch.optim.SGD, options, batch_size=self.batch_size, lr_decay=self.lr_decay
        )


@dataclass(frozen=True)
class Adagrad(_Torch):
    r"""Steps divided by the root of the sum of squared gradients, the newest included.

    .. math:: x_{k+1} = x_k - \frac{\mathrm{lr}}{\epsilon + S_{k+1}^{1/2}}\, G(x_k), \qquad
              S_{k+1} = S_k + G(x_k)^2

    ASG differs by leaving out the newest gradient and by what it adds to S.

    Args:
        lr: step size.
        damping: epsilon.
        batch_size: of G, or None for full gradients.

    References:
        J. Duchi, E. Hazan, Y. Singer: Adaptive subgradient methods for online learning and
        stochastic optimization. JMLR 2011.  A. Défossez, L. Bottou, F. Bach, N. Usunier: A simple
        convergence proof of Adam and Adagrad. TMLR 2022.
    """

    lr: float = 1e-2
    damping: float = 1e-10
    batch_size: int | None = None

    name: ClassVar[str] = "adagrad"
    ranges: ClassVar[dict[str, tuple[float, float]]] = {"lr": (1e-3, 1e1)}
    unverified: ClassVar[tuple[str, ...]] = (
        "lr: minimizes the bound of Defossez et al. on the gradient norm without its logarithm; "
        "nothing is proved about saddles",
    )

    def __post_init__(self) -> None:
        require_positive(self, "lr")
        require_at_least_zero(self, "damping")
        require_batch(self.batch_size)

    @classmethod
    def _proved(cls, constants: Constants) -> Self:
        # 2 gap / lr + lr d M is smallest here.
        return cls(lr=math.sqrt(2.0 * constants.gap / (constants.dim * constants.smoothness)))

    @cached_property
    def torch_method(self) -> TorchMethod:
        options = {"lr": self.lr, "eps": self.damping}
        return TorchMethod(self.name, torch.optim.Adagrad, options, batch_size=self.batch_size)


@dataclass(frozen=True)
class Adam(_Torch):
    r"""Running means of gradients over the root of running means of their squares.

    .. math:: x_{k+1} = x_k - \mathrm{lr}\, \frac{\hat m_k}{\hat v_k^{1/2} + \epsilon}

    Along coordinate axes it is nearly the sign of the gradient, and leaves an axis-aligned saddle
    faster than its theory explains: look at rotated problems too.

    Args:
        lr: step size.
        beta1, beta2: memory of the two means.
        damping: epsilon.
        batch_size: of the gradients, or None for full ones.

    References:
        D. Kingma, J. Ba: Adam: a method for stochastic optimization. ICLR 2015.
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    damping: float = 1e-8
    batch_size: int | None = None

    name: ClassVar[str] = "adam"
    ranges: ClassVar[dict[str, tuple[float, float]]] = {"lr": (1e-4, 1.0), "damping": (1e-8, 1e-2)}
    unverified: ClassVar[tuple[str, ...]] = (
        "lr: Adagrad's over the root of the memory 1/(1 - beta2); nothing is proved about saddles",
    )

    def __post_init__(self) -> None:
        require_positive(self, "lr")
        for option in ("beta1", "beta2"):
            value = getattr(self, option)
            require(0.0 <= value < 1.0, option, value, f"0 <= {option} < 1")
        require_at_least_zero(self, "damping")
        require_batch(self.batch_size)

    @classmethod
    def _proved(cls, constants: Constants) -> Self:
        squared = 2.0 * constants.gap / (constants.dim * constants.smoothness)
        return cls(lr=math.sqrt((1.0 - cls.beta2) * squared))

    @cached_property
    def torch_method(self) -> TorchMethod:
        options = {"lr": self.lr, "betas": (self.beta1, self.beta2), "eps": self.damping}
        return TorchMethod(self.name, torch.optim.Adam, options, batch_size=self.batch_size)


# ------------------------------------------------------------------------------------------------
# Preconditioned SGLD: Chunyuan Li, Changyou Chen, David Carlson, Lawrence Carin, 2016
# ------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class PSGLDState(SeededState):
    """The running mean of squared gradients."""

    mean_square: Tensor


@dataclass(frozen=True)
class PSGLD(GradientMethod):
    r"""Langevin dynamics with the preconditioner of RMSprop.

    .. math:: x_{k+1} = x_k - \mathrm{lr}\, P_k G(x_k) + (2\, \mathrm{lr}\, P_k)^{1/2} \sigma z_k,
              \qquad P_k = \frac{1}{\lambda + V_k^{1/2}}, \qquad
              V_k = a V_{k-1} + (1 - a)\, G(x_k)^2

    Algorithm 1 of Li et al. (2016) for a function instead of a posterior; differs from it in that
    lr stands for half their step, :math:`\sigma^2` for the temperature, and in leaving out the
    drift :math:`\Gamma` (the divergence of P), which the paper allows where P changes slowly.

    Args:
        lr: step size. Where gradients vanish, P is 1/lambda: lr / lambda is the true step there.
        sigma: noise; exp(-f / sigma^2) is the density it aims at.
        memory: a.
        damping: lambda.
        batch_size: of G, or None for full gradients.

    References:
        C. Li, C. Chen, D. Carlson, L. Carin: Preconditioned stochastic gradient Langevin dynamics
        for deep neural networks. AAAI 2016.
    """

    lr: float = 1e-3
    sigma: float = 1e-3
    memory: float = 0.99
    damping: float = 1e-5
    batch_size: int | None = None

    name: ClassVar[str] = "psgld"
    ranges: ClassVar[dict[str, tuple[float, float]]] = {
        "lr": (1e-5, 1e-1),
        "sigma": (1e-5, 1e-1),
        "damping": (1e-5, 1.0),
    }
    unverified: ClassVar[tuple[str, ...]] = (
        "lr, sigma: stable steps and a stationary mean of |grad f|^2 below eps^2; no finite-time "
        "theorem is known",
    )

    def __post_init__(self) -> None:
        require_positive(self, "lr", "damping")
        require_at_least_zero(self, "sigma")
        require(0.0 <= self.memory < 1.0, "memory", self.memory, "0 <= memory < 1")
        require_batch(self.batch_size)

    @classmethod
    def _proved(cls, constants: Constants) -> Self:
        # Under exp(-f / sigma^2) the mean of |grad f|^2 is sigma^2 times that of the Laplacian.
        sigma = constants.eps / math.sqrt(2.0 * constants.smoothness * constants.dim)
        return cls(lr=cls.damping / constants.smoothness, sigma=sigma)

    def init(self, oracle: Oracle, x0: Tensor, *, seed: int) -> PSGLDState:
        return PSGLDState(x=x0.clone(), seed=seed, mean_square=torch.zeros_like(x0))

    def step(self, oracle: Oracle, state: PSGLDState) -> PSGLDState:
        grad = self._gradient(oracle, state)
        state.mean_square = self.memory * state.mean_square + (1.0 - self.memory) * grad**2
        rate = self.lr / (self.damping + state.mean_square.sqrt())
        noise = self.sigma * normals(state.seed, state.step, state.x)
        state.x = state.x - rate * grad + (2.0 * rate).sqrt() * noise
        state.step += 1
        return state


# ------------------------------------------------------------------------------------------------
# L-BFGS: Jorge Nocedal, 1980
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LBFGS(lbfgs.LBFGS, Rival):
    __doc__ = lbfgs.LBFGS.__doc__

    ranges: ClassVar[dict[str, tuple[float, float]]] = {"scale": (1e-3, 1e1)}
    unverified: ClassVar[tuple[str, ...]] = ("scale: nothing is proved about saddles",)

    @classmethod
    def _proved(cls, constants: Constants) -> Self:
        return cls(scale=1.0 / constants.smoothness)


METHODS: dict[str, type[Rival]] = {
    **{kind.name: kind for kind in (GD, SGD, PSGLD, Adagrad, Adam, PerturbedAGD)},
    "lbfgs": LBFGS,
    **{kind.name: kind for kind in (TrustKrylov, TrustExact)},
}
