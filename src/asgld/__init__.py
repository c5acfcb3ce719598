"""asgld: adaptive stochastic gradient Langevin dynamics for PyTorch.

Optimizers (`ASGLD`, `AGLD`, `ASG`, `SGLD`, `PSGLD`, `NetworkASGLD`), a front door that says what it
found (`minimize`, `Result`, `classify`), methods side by side on your own function (`compare`,
`Comparison`), draws from a posterior with a diagnosis (`sample`, `Samples`), settings from
measurements (`calibrate`, `calibrate_copies`), certificates (`CertificateTracker`), batches that
grow (`GrowingBatchSampler`), penalties (`prox`), and the theory, as published and as corrected
(`theory`).

The optimizers are loaded at once, all else when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from asgld.optim import AGLD, ASG, ASGLD, PSGLD, SGLD, NetworkASGLD, network_groups

if TYPE_CHECKING:
    from asgld import curvature as curvature
    from asgld import data as data
    from asgld import diagnostics as diagnostics
    from asgld import methods as methods
    from asgld import oracle as oracle
    from asgld import prox as prox
    from asgld import run as run
    from asgld import sampling as sampling
    from asgld import scipy as scipy
    from asgld import theory as theory
    from asgld._compare import Comparison, compare
    from asgld._minimize import minimize
    from asgld._result import Result
    from asgld.curvature import Kind, ModelHessian, Point, classify
    from asgld.data import GrowingBatchSampler, accumulate, full_gradient
    from asgld.diagnostics import (
        CertificateTracker,
        calibrate,
        calibrate_copies,
        groups_from_gradients,
        mean_square_gradient,
    )
    from asgld.sampling import NetworkSamples, Samples, posterior_options, sample
    from asgld.scipy import scipy_method

__version__ = "0.2.0"
__all__ = [
    "AGLD",
    "ASG",
    "ASGLD",
    "PSGLD",
    "SGLD",
    "CertificateTracker",
    "Comparison",
    "GrowingBatchSampler",
    "Kind",
    "ModelHessian",
    "NetworkASGLD",
    "NetworkSamples",
    "Point",
    "Result",
    "Samples",
    "accumulate",
    "calibrate",
    "calibrate_copies",
    "classify",
    "compare",
    "full_gradient",
    "groups_from_gradients",
    "mean_square_gradient",
    "minimize",
    "network_groups",
    "posterior_options",
    "sample",
    "scipy_method",
    "theory",
]

# module -> the names that are loaded with it
_LAZY = {
    "_compare": ("Comparison", "compare"),
    "_minimize": ("minimize",),
    "_result": ("Result",),
    "curvature": ("Kind", "ModelHessian", "Point", "classify"),
    "data": ("GrowingBatchSampler", "accumulate", "full_gradient"),
    "diagnostics": (
        "CertificateTracker",
        "calibrate",
        "calibrate_copies",
        "groups_from_gradients",
        "mean_square_gradient",
    ),
    "sampling": ("NetworkSamples", "Samples", "posterior_options", "sample"),
    "scipy": ("scipy_method",),
}
_HOME = {name: module for module, names in _LAZY.items() for name in names}
_PARTS = (
    "curvature",
    "data",
    "diagnostics",
    "methods",
    "oracle",
    "prox",
    "run",
    "sampling",
    "scipy",
    "theory",
)

if not TYPE_CHECKING:  # so that type checkers still reject unknown names

    def __getattr__(name: str) -> object:
        if name in _PARTS:
            return import_module(f"asgld.{name}")
        if name not in _HOME:
            raise AttributeError(f"module 'asgld' has no attribute {name!r}")
        found = vars(import_module(f"asgld.{_HOME[name]}"))[name]
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_PARTS})
