"""Names of `asgld_study.statistics`."""

from __future__ import annotations

from asgld_study.statistics import (
    GROWTH_LAWS as MODELS,
)
from asgld_study.statistics import (
    BoolArray,
    FloatArray,
    Growth,
    Sample,
    Slope,
    bootstrap_medians,
    fit_growth,
    fit_slope,
    survival,
)
from asgld_study.statistics import (
    survival_median as median,
)

__all__ = ["MODELS", "BoolArray", "FloatArray", "Growth", "Sample", "Slope", "bootstrap_medians",
           "fit_growth", "fit_slope", "median", "survival"]  # fmt: skip
