"""Theory you can call: rates, regions, bounds, certificates, escape times and advice.

Every result of the paper comes in two versions, as published and as corrected; `item` says of each
published statement what it claims, whether it holds and why. NumPy only.
"""

from __future__ import annotations

from asgld.theory.bounds import (
    Accumulators,
    Complexity,
    Constants,
    Terms,
    complexity,
    predicted_sums,
    running_sums,
    terms,
)
from asgld.theory.certificates import Certificate, certificate, expected_certificate, noise_scale
from asgld.theory.escape import (
    EscapeTime,
    Onset,
    braking_onset,
    effective_curvature,
    escape_recursion,
    escape_time,
    growth_onset,
    own_share,
    published_escape_time,
    temperature,
)
from asgld.theory.proximal import (
    ProximalCertificate,
    ProximalStep,
    proximal_certificate,
    proximal_noise_scale,
    proximal_step,
)
from asgld.theory.published import VERDICTS, Item, Table1Row, item, items, table1
from asgld.theory.rates import Advice, Order, Rate, rate, recommend, region, sum_order

__all__ = [
    "VERDICTS",
    "Accumulators",
    "Advice",
    "Certificate",
    "Complexity",
    "Constants",
    "EscapeTime",
    "Item",
    "Onset",
    "Order",
    "ProximalCertificate",
    "ProximalStep",
    "Rate",
    "Table1Row",
    "Terms",
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
    "own_share",
    "predicted_sums",
    "proximal_certificate",
    "proximal_noise_scale",
    "proximal_step",
    "published_escape_time",
    "rate",
    "recommend",
    "region",
    "running_sums",
    "sum_order",
    "table1",
    "temperature",
    "terms",
]
