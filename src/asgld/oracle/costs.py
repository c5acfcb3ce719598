"""What oracle calls cost, and what each replica has used."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

KINDS = ("value", "sample_value", "grad", "sample_grad", "hvp", "sample_hvp", "hessian")
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Costs:
    """Prices in gradient-equivalents. `hessian=None` means d, one gradient per column.

    >>> Costs().of("hessian", dim=10), Costs(hvp=4.0).of("sample_hvp", dim=10)
    (10.0, 4.0)
    """

    value: float = 0.5
    grad: float = 1.0
    hvp: float = 2.0
    hessian: float | None = None

    def __post_init__(self) -> None:
        for name in ("value", "grad", "hvp", "hessian"):
            price = getattr(self, name)
            if price is not None and not 0.0 <= price < math.inf:
                raise ValueError(f"{name}={price!r}: a price must be finite and at least 0")

    def of(self, kind: str, dim: int) -> float:
        """Price of one call, of a full batch for the sampled kinds."""
        price = getattr(self, kind.removeprefix("sample_"))
        return float(dim if price is None else price)


@dataclass
class Counts:
    """What each replica has used: calls by kind, samples touched, gradient-equivalents spent."""

    calls: dict[str, IntArray]
    samples: IntArray
    spent: FloatArray

    @classmethod
    def zeros(cls, replicas: int) -> Counts:
        calls = {kind: np.zeros(replicas, np.int64) for kind in KINDS}
        return cls(calls, np.zeros(replicas, np.int64), np.zeros(replicas))

    @property
    def replicas(self) -> int:
        return len(self.samples)

    def copy(self) -> Counts:
        return copy.deepcopy(self)

    def since(self, earlier: Counts) -> Counts:
        """What was used after `earlier` was copied from these counts."""
        zero = np.zeros(self.replicas, np.int64)
        return Counts(
            {k: n - earlier.calls.get(k, zero) for k, n in self.calls.items()},
            self.samples - earlier.samples,
            self.spent - earlier.spent,
        )

    def add(self, other: Counts) -> None:
        """Count what another run used as well."""
        for kind, n in other.calls.items():
            self.calls[kind] = self.calls.get(kind, 0) + n
        self.samples += other.samples
        self.spent += other.spent

    def total(self) -> dict[str, float]:
        """Sums over replicas, of what was used at all.

        >>> counts = Counts.zeros(replicas=2)
        >>> counts.calls["grad"] += 3
        >>> counts.total()
        {'grad': 6, 'samples': 0, 'gradient_equivalents': 0.0}
        """
        used = {kind: int(n.sum()) for kind, n in self.calls.items() if n.any()}
        return {
            **used,
            "samples": int(self.samples.sum()),
            "gradient_equivalents": float(self.spent.sum()),
        }

    def pack(self) -> dict[str, Any]:
        """As tensors, for a checkpoint."""
        return {
            "calls": {kind: torch.from_numpy(n.copy()) for kind, n in self.calls.items()},
            "samples": torch.from_numpy(self.samples.copy()),
            "spent": torch.from_numpy(self.spent.copy()),
        }

    @classmethod
    def unpacked(cls, packed: Mapping[str, Any]) -> Counts:
        """What :meth:`pack` described."""
        return cls(
            {kind: n.numpy().copy() for kind, n in packed["calls"].items()},
            packed["samples"].numpy().copy(),
            packed["spent"].numpy().copy(),
        )
