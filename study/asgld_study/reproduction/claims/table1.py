"""Table 1, row by row, and what section 2 says of it."""

from __future__ import annotations

import math
import re
from functools import partial

from asgld.methods import method
from asgld.theory import table1
from asgld_study.reproduction.claims.minima import dim_growth, eps_power
from asgld_study.reproduction.claims.tolerances import LOG_D, LOGS, SLACK
from asgld_study.reproduction.ledger import Check, Checks, Claim, at_most, claim
from asgld_study.reproduction.rows import Row, table_rows
from asgld_study.reproduction.runner import Outcomes

# Rows that are measured from the saddle to the minimum as well.
_OWN_ROWS = {
    11: "AGLD (0, 1)",
    12: "ASG (1)",
    13: "ASGLD (1, 1)",
    14: "ASGLD (0, 1), B = k",
}
_CURVATURE = {"hessian", "hvp", "sample_hvp"}


def _row(number: int, o: Outcomes) -> Checks:
    row = table_rows(o)[number - 1]
    if row.was_run and not math.isnan(row.printed.eps_power):
        bound = row.printed.eps_power + SLACK
        yield _chain_check(row, "exponent of 1/eps on the worst-case chain", bound)
    logs = re.search(r"log(\^4)? d", row.printed.bound)
    if logs and row.growth is not None:
        small, large, grown = row.growth
        power = 4 if logs[1] else 1
        allowed = (math.log(large) / math.log(small)) ** (power - 1)
        yield at_most(
            f"one escape: T({large}) over T({small}), in units of log d", grown, LOG_D * allowed
        )
    if number in _OWN_ROWS:
        yield from _own_row(number, o)
    extra = sorted(_needs(row.printed.method) & _CURVATURE - _printed_calls(row.printed.oracle))
    yield at_most(
        f"oracle calls beyond those printed ({', '.join(extra) or 'none'})",
        len(extra),
        0,
        core=False,
    )


def _chain_check(row: Row, says: str, bound: float, *, core: bool = True) -> Check:
    """Is the power of 1/eps at most this? Open where no line goes through what was reached."""
    if row.informative:
        return at_most(says, row.power, bound, core=core)
    return at_most(f"{says} (too few accuracies in reach)", math.nan, bound, core=core)


def _own_row(number: int, o: Outcomes) -> Checks:
    label, power = _OWN_ROWS[number], table1()[number - 1].eps_power
    yield at_most(
        "saddle to minimum: exponent of 1/eps in the steps", eps_power(o, label), power * LOGS
    )
    small, large, grown = dim_growth(o, label, "fixed")
    yield at_most(
        f"saddle to minimum, noise fixed per coordinate: T({large}) over T({small}), in units of "
        "log d",
        grown,
        LOG_D,
    )
    if number == 14:
        yield at_most(
            "saddle to minimum: exponent of 1/eps in the samples",
            eps_power(o, label, samples=True),
            power * LOGS,
        )


def _needs(name: str) -> frozenset[str]:
    return frozenset(method(name).needs)


def _printed_calls(oracle: str) -> set[str]:
    """The calls for curvature that the table grants; who has a Hessian has its products."""
    if "product" in oracle:
        return {"hvp", "sample_hvp"}
    return _CURVATURE if "Hessian" in oracle else set()


@claim(
    "M15",
    "Two Hessian-vector methods need log d / eps^1.25.",
    "section 2",
    "table1",
    note="7/4, as Table 1 and the cited papers have it.",
    item="Section 2",
)
def m15(o: Outcomes) -> Checks:
    text_power = 1.25
    for number in (4, 5):
        row = table_rows(o)[number - 1]
        yield at_most(
            f"row {number}: exponent that Table 1 itself prints", row.printed.eps_power, text_power
        )
        says = f"row {number}: exponent measured on the worst-case chain"
        yield _chain_check(row, says, text_power + SLACK, core=False)


@claim(
    "M16",
    "All existing methods need full gradients and a step that stops and tries.",
    "section 2",
    "table1",
    note="Several rows of the same table work with stochastic gradients.",
    item="Section 2",
)
def m16(_: Outcomes) -> Checks:
    rivals = [row for row in table1() if row.method not in ("agld", "asg", "asgld")]
    free = [row.method for row in rivals if "grad" not in _needs(row.method)]
    yield at_most(
        f"rivals that need no full gradient at all ({', '.join(free) or 'none'})", len(free), 0
    )
    batched = [row.method for row in rivals if _takes_batches(row.method)]
    yield at_most(
        f"rivals that take stochastic gradients ({', '.join(batched) or 'none'})", len(batched), 0
    )


def _takes_batches(name: str) -> bool:
    try:
        return "sample_grad" in method(name, batch_size=4).needs
    except (TypeError, ValueError):
        return "sample_grad" in _needs(name)


CLAIMS = (
    *(
        Claim(
            f"M{i}",
            f"{row.statement} {row.bound}, by {row.oracle}.",
            f"Table 1, row {i}",
            ("table1", "minima") if i in _OWN_ROWS else ("table1",),
            partial(_row, i),
            row.correction,
            row.name,
        )
        for i, row in enumerate(table1(), start=1)
    ),
    m15,
    m16,
)
