"""Theory you can call: rates, regions, bounds, certificates, escape times and advice.

Every result of the paper comes in two versions, as published and as corrected; `item` says of each
published statement what it claims, whether it holds and why. NumPy only.
"""

from __future__ import annotations

from asgld.theory.advice import Advice, recommend
from asgld.theory.bounds import (
    Accumulators,
    Complexity,
    Constants,
    Terms,
    accumulate,
    complexity,
    predicted_sums,
    terms,
)
from asgld.theory.certificates import Certificate, certificate, expected_certificate, noise_scale
from asgld.theory.escape import (
    EscapeTime,
    braking_onset,
    effective_curvature,
    escape_recursion,
    escape_time,
    published_escape_time,
)
from asgld.theory.published import Item, Table1Row, item, items, table1
from asgld.theory.rates import Order, Rate, rate, region, sum_order
from asgld.theory.temperatures import Onset, growth_onset, temperature

__all__ = [
    "Accumulators",
    "Advice",
    "Certificate",
    "Complexity",
    "Constants",
    "EscapeTime",
    "Item",
    "Onset",
    "Order",
    "Rate",
    "Table1Row",
    "Terms",
    "accumulate",
    "braking_onset",
    "certificate",
    "complexity",
    "effective_curvature",
    "escape_recursion",
    "escape_time",
    "expected_certificate",
    "growth_onset",
    "item",
    "items",
    "noise_scale",
    "predicted_sums",
    "published_escape_time",
    "rate",
    "recommend",
    "region",
    "sum_order",
    "table1",
    "temperature",
    "terms",
]
