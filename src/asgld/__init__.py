"""asgld: adaptive stochastic gradient Langevin dynamics for PyTorch."""

from asgld.optim import AGLD, ASG, ASGLD, SGLD

__version__ = "0.1.0"
__all__ = ["AGLD", "ASG", "ASGLD", "SGLD"]
