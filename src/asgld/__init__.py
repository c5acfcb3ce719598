"""asgld: adaptive stochastic gradient Langevin dynamics for PyTorch.

Optimizers (`ASGLD`, `AGLD`, `ASG`, `SGLD`, `PSGLD`, `NetworkASGLD`), a front door that says what it
found (`minimize`, `classify`), settings from measurements (`calibrate`), certificates
(`CertificateTracker`), batches that grow (`GrowingBatchSampler`), and the theory, as published and
as corrected (`theory`).
"""

from asgld import theory
from asgld._minimize import Result, minimize
from asgld.curvature import Kind, ModelHessian, Point, classify
from asgld.data import GrowingBatchSampler, accumulate, full_gradient
from asgld.diagnostics import (
    CertificateTracker,
    calibrate,
    groups_from_gradients,
    mean_square_gradient,
)
from asgld.optim import AGLD, ASG, ASGLD, PSGLD, SGLD, NetworkASGLD
from asgld.scipy import scipy_method

__version__ = "0.1.0"
__all__ = [
    "AGLD",
    "ASG",
    "ASGLD",
    "PSGLD",
    "SGLD",
    "CertificateTracker",
    "GrowingBatchSampler",
    "Kind",
    "ModelHessian",
    "NetworkASGLD",
    "Point",
    "Result",
    "accumulate",
    "calibrate",
    "classify",
    "full_gradient",
    "groups_from_gradients",
    "mean_square_gradient",
    "minimize",
    "scipy_method",
    "theory",
]
