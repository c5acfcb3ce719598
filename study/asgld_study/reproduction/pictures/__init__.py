"""Figures of the report, each made from the outcomes alone.

The module of an experiment has the same name as that of its claims; see `claims`
for which experiment is in which. `drawing` says what a picture is.
"""

from __future__ import annotations

from asgld_study.reproduction.pictures import bounds, escape, minima, rates, rule, study
from asgld_study.paper import table1
from asgld_study.reproduction.pictures.drawing import INK, Picture

__all__ = ["INK", "PICTURES", "Picture"]

PICTURES = (
    *study.PICTURES,
    *rule.PICTURES,
    *bounds.PICTURES,
    *rates.PICTURES,
    *escape.PICTURES,
    *minima.PICTURES,
    *table1.PICTURES,
)
