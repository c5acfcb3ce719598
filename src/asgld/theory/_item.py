"""The shape of a published statement."""

from __future__ import annotations

from dataclasses import dataclass

VERDICTS = ("holds", "holds with correction", "not supported", "refuted", "not testable")


@dataclass(frozen=True)
class Item:
    """One published statement.

    Attributes:
        name: as cited here, such as "Theorem 3".
        statement: what it says, in our words.
        verdict: one of `VERDICTS`.
        reason: why.
        correction: what is true instead; empty where nothing needs correcting.
        aliases: other names it answers to.
    """

    name: str
    statement: str
    verdict: str
    reason: str
    correction: str = ""
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.verdict in VERDICTS, self.name


@dataclass(frozen=True)
class Table1Row(Item):
    """One row of Table 1, with the bound and the oracle as printed and as they should read.

    Attributes:
        regime: row group of the table.
        method: id of the method that implements it.
        bound, oracle: as printed.
        eps_power: exponent of 1/eps in the printed bound; NaN where it is an unnamed polynomial.
        unit: what the cited bound counts.
    """

    regime: str = ""
    method: str = ""
    bound: str = ""
    oracle: str = ""
    eps_power: float = float("nan")
    unit: str = ""
