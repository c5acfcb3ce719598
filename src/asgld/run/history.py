"""What a run writes down on the way, and when."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from asgld.oracle.costs import Counts

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Record:
    """What to write down, and when.

    Args:
        schedule: "log", `per_decade` points in each decade of steps, or "linear", every `every`.
        per_decade, every: see above.
        grad_norms: also gradient norms, which cost a free gradient per point.
        iterates: also the iterates, (points, R, d).

    >>> [k for k in range(100) if Record(per_decade=5).is_due(k)]
    [0, 1, 3, 4, 6, 10, 16, 25, 40, 63]
    """

    schedule: str = "log"
    per_decade: int = 20
    every: int = 100
    grad_norms: bool = True
    iterates: bool = False

    def __post_init__(self) -> None:
        if self.schedule not in ("log", "linear"):
            raise ValueError(f"schedule={self.schedule!r}: need 'log' or 'linear'")
        if self.per_decade < 1 or self.every < 1:
            raise ValueError("per_decade and every must be at least 1")

    def is_due(self, step: int) -> bool:
        if self.schedule == "linear":
            return step % self.every == 0
        if step == 0:
            return True
        return self._point(self._number(step)) == step

    def next_due(self, step: int) -> int:
        """The first step after `step` that is due.

        >>> Record(per_decade=5).next_due(6), Record("linear", every=20).next_due(6)
        (10, 20)
        """
        if self.schedule == "linear":
            return step - step % self.every + self.every
        number = self._number(max(step, 1))
        while (point := self._point(number)) <= step or not self.is_due(point):
            number += 1
        return point

    def _number(self, step: int) -> int:
        return round(self.per_decade * math.log10(step))

    def _point(self, number: int) -> int:
        return round(10 ** (number / self.per_decade))


@dataclass
class History:
    """What happened on the way: arrays with one row per recorded step and one column per replica.

    ==============  =============  ========================================================
    field           shape          meaning
    ==============  =============  ========================================================
    steps           (T,)           steps taken
    values          (T, R)         f
    grad_norms      (T, R)         norm of the gradient; nan where not recorded
    spent           (T, R)         gradient-equivalents
    samples         (T, R)         samples touched
    seconds         (T,)           time inside the method
    iterates        (T, R, d)      or None
    ==============  =============  ========================================================
    """

    steps: npt.NDArray[np.int64]
    values: FloatArray
    grad_norms: FloatArray
    spent: FloatArray
    samples: npt.NDArray[np.int64]
    seconds: FloatArray
    iterates: FloatArray | None = None


@dataclass
class Writer:
    """Collects a :class:`History`."""

    record: Record
    rows: dict[str, list[Any]] = field(default_factory=dict)

    def write(
        self, step: int, seconds: float, x: Tensor, values: Tensor, norms: Tensor, counts: Counts
    ) -> None:
        row = {
            "steps": step,
            "values": values.cpu().numpy().copy(),
            "grad_norms": norms.cpu().numpy().copy(),
            "spent": counts.spent.copy(),
            "samples": counts.samples.copy(),
            "seconds": seconds,
        }
        if self.record.iterates:
            row["iterates"] = x.cpu().numpy().copy()
        for name, value in row.items():
            self.rows.setdefault(name, []).append(value)

    @property
    def last_step(self) -> int:
        return int(self.rows["steps"][-1]) if self.rows else -1

    def history(self) -> History:
        return History(**{name: np.asarray(rows) for name, rows in self.rows.items()})

    def pack(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(np.asarray(rows)) for name, rows in self.rows.items()}

    def unpack(self, packed: Mapping[str, Tensor]) -> None:
        self.rows = {name: list(rows.numpy()) for name, rows in packed.items()}
