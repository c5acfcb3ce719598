"""The paper's claims, in its order: what each says, where, and the numbers that judge it.

Verdicts are nowhere written down: `asgld_study.reproduction.ledger.judge` computes them.

    ==========  ================  ===========================================
    module      claims            experiments it is about
    ==========  ================  ===========================================
    `rule`      S1 to S7          identities, features
    `bounds`    L1 to T1b         accumulator, terms
    `rates`     R1 to R10, B, P   plateau, exponents, delta, region
    `escape`    E1 to E7          dimension, escape, noise, directions, front
    `minima`    E8                minima
    `table1`    M1 to M16         table1
    `study`     X1 to X5          study, settings, spaces, starts, lag
    ==========  ================  ===========================================

The pictures of these experiments are in the module of the same name in
`asgld_study.reproduction.pictures`; how far a number may be off, in `tolerances`.
"""

from __future__ import annotations

from asgld_study.reproduction.claims import bounds, escape, minima, rates, rule, study
from asgld_study.paper import table1

CLAIMS = (
    *rule.CLAIMS,
    *bounds.CLAIMS,
    *rates.CLAIMS,
    *escape.CLAIMS,
    *minima.CLAIMS,
    *table1.CLAIMS,
    *study.CLAIMS,
)
