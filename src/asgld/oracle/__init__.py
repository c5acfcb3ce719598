"""The only door to a function: its calls, their counts and their prices."""

from asgld.oracle.base import BudgetExhausted, Oracle
from asgld.oracle.costs import Costs, Counts
from asgld.oracle.functions import Function, numpy_function, torch_function

__all__ = [
    "BudgetExhausted",
    "Costs",
    "Counts",
    "Function",
    "Oracle",
    "numpy_function",
    "torch_function",
]
