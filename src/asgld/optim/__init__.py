"""Optimizers: ASGLD and its presets, as torch optimizers and in functional form."""

from asgld.optim.asgld import AGLD, ASG, ASGLD, PSGLD, SGLD, NetworkASGLD
from asgld.optim.functional import Rule, asgld

__all__ = ["AGLD", "ASG", "ASGLD", "PSGLD", "SGLD", "NetworkASGLD", "Rule", "asgld"]
