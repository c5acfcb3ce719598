"""Optimizers: ASGLD and its presets, as torch optimizers and in functional form."""

from asgld.optim.asgld import ASGLD
from asgld.optim.functional import Rule, asgld
from asgld.optim.presets import AGLD, ASG, PSGLD, SGLD, NetworkASGLD

__all__ = ["AGLD", "ASG", "ASGLD", "PSGLD", "SGLD", "NetworkASGLD", "Rule", "asgld"]
