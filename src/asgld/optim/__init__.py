"""Optimizers: ASGLD and its presets, as torch optimizers and in functional form."""

from asgld.optim.functional import asgld
from asgld.optim.groups import network_groups
from asgld.optim.optimizer import ASGLD
from asgld.optim.presets import AGLD, ASG, PSGLD, SGLD, NetworkASGLD
from asgld.optim.rule import Rule

__all__ = [
    "AGLD",
    "ASG",
    "ASGLD",
    "PSGLD",
    "SGLD",
    "NetworkASGLD",
    "Rule",
    "asgld",
    "network_groups",
]
