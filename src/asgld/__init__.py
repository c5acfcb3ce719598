"""asgld: adaptive stochastic gradient Langevin dynamics for PyTorch.

Optimizers (`ASGLD`, `AGLD`, `ASG`, `SGLD`), a front door that says what it found (`minimize`,
`classify`), settings from measurements (`calibrate`), certificates (`CertificateTracker`), and the
theory, as published and as corrected (`theory`).
"""

from asgld import theory
from asgld.curvature import Kind, ModelHessian, Point, classify
from asgld.diagnostics import CertificateTracker, calibrate
from asgld.minimize import minimize
from asgld.optim import AGLD, ASG, ASGLD, SGLD
from asgld.scipy_interop import scipy_method

__version__ = "0.1.0"
__all__ = [
    "AGLD",
    "ASG",
    "ASGLD",
    "SGLD",
    "CertificateTracker",
    "Kind",
    "ModelHessian",
    "Point",
    "calibrate",
    "classify",
    "minimize",
    "scipy_method",
    "theory",
]
