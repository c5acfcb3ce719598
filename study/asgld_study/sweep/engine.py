"""Names of `asgld_study.engine`."""

from __future__ import annotations

from asgld_study.engine import NUMERICS, Store
from asgld_study.engine import in_parallel as run_tasks

__all__ = ["NUMERICS", "Store", "run_tasks"]
