"""One saddle with two minima beside it, for torch and for NumPy."""

from __future__ import annotations

import numpy as np
from torch import Tensor


def saddle_torch(x: Tensor) -> Tensor:
    return x[0] ** 2 - x[1] ** 2 / 2 + x[1] ** 4 / 4


def saddle_numpy(x: np.ndarray) -> float:
    return float(x[0] ** 2 - x[1] ** 2 / 2 + np.power(x[1], 4) / 4)


def saddle_jac(x: np.ndarray) -> np.ndarray:
    return np.array([2 * x[0], x[1] ** 3 - x[1]])
