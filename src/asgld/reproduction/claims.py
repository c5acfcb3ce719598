"""The paper's claims, in its order: what each says, where, and which experiment answers it.

Verdicts are nowhere written down: `asgld.reproduction.ledger.judge` computes them from the numbers
of `asgld.reproduction.checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from asgld.reproduction import checks
from asgld.reproduction.ledger import Check, Claim
from asgld.reproduction.runner import Outcomes
from asgld.theory import table1


def _rates(*cases: tuple[Any, ...]) -> Callable[[Outcomes], Iterable[Check]]:
    return partial(checks.rate, cases)


CLAIMS = (
    Claim(
        "S1",
        "alpha = beta = 0 with sigma^2 = 1/u is SGLD.",
        "section 3",
        ("identities",),
        checks.s1,
        item="Special cases",
    ),
    Claim(
        "S2",
        "beta to infinity gives ASG at alpha = 1 and SGD at alpha = 0.",
        "sections 1, 3",
        ("identities",),
        checks.s2,
        "beta = infinity as sigma = 0 does; a large finite beta only where D > 1, while for D < 1 "
        "the noise grows without bound.",
        item="Special cases",
    ),
    Claim(
        "S3",
        "ASG is AGLD with beta = alpha, the sampling noise taking the place of e.",
        "section 3",
        ("identities",),
        checks.s3,
        "With sigma^2 = lr C / 2 and Gaussian noise one step has the same law. Whole runs differ, "
        "because noisy gradients also feed D, together with the very noise that moved x; raising "
        "delta by C narrows the gap and does not close it.",
        item="Special cases",
    ),
    Claim(
        "S4",
        "No temperature needs to be specified.",
        "section 1",
        ("settings", "starts", "region"),
        checks.s4,
        "sigma, delta and d_init are the temperature schedule, T = sigma^2 D^-(beta - alpha/2).",
    ),
    Claim(
        "S5", "A constant step converges where SGLD does not.", "section 3", ("region",), checks.s5
    ),
    Claim(
        "S6",
        "Infrequent features get larger steps, which is more efficient in high dimension.",
        "sections 1, 3",
        ("features",),
        checks.s6,
    ),
    Claim(
        "S7",
        "The rule works dimension by dimension and can be distributed.",
        "section 3",
        ("identities",),
        checks.s7,
    ),
    Claim(
        "L1",
        "E D_k^-phi is of order k^-phi.",
        "Lemma 1",
        ("accumulator",),
        checks.l1,
        "Only once delta k exceeds what the gradients feed; with a tiny delta and full gradients "
        "D grows like k^(1/(1 + tau)), tau = beta - alpha/2.",
        item="Lemma 1",
    ),
    Claim(
        "L2",
        "The sum of Tr D_j^-phi over j < k is of order d k^(1 - phi) for all phi but 0 and 1.",
        "Lemma 2",
        ("accumulator",),
        checks.l2,
        "For phi > 1 the sum tends to a positive constant.",
        item="Lemma 2",
    ),
    Claim(
        "T1",
        "ASGLD: the smallest expected squared gradient is at most I1 + I2 + I3.",
        "Theorem 1",
        ("terms",),
        partial(checks.terms, "ASGLD (1, 1)"),
        "The denominators need (max D)^(-alpha/2) where the theorem has a trace: a factor of d or "
        "more.",
        item="Theorem 1",
    ),
    Claim(
        "T1a",
        "AGLD: the same with I1 + I3.",
        "Proposition 2",
        ("terms",),
        partial(checks.terms, "AGLD (0, 1)"),
        "As for Theorem 1.",
        item="Proposition 2",
    ),
    Claim(
        "T1b",
        "ASG: the same with I1 + I2.",
        "Proposition 3",
        ("terms",),
        partial(checks.terms, "ASG (1)"),
        "As for Theorem 1.",
        item="Proposition 3",
    ),
    Claim(
        "R1",
        "alpha = 2, beta > 1: 1/log k.",
        "Theorem 2",
        ("exponents",),
        partial(checks.slow_rate, "asgld"),
        item="Theorem 2 case 1",
    ),
    Claim(
        "R2",
        "1 < alpha < 2, beta >= 1: k^-(beta - alpha/2).",
        "Theorem 2",
        ("exponents",),
        _rates(
            ("asgld", 1.5, 1.5),
            ("asgld", 1.5, 2),
            ("asgld", 1.75, 2),
            ("asgld", 1.5, 2, 0, "flat"),
            ("asgld", 1.5, 3, 0, "flat"),
            ("asgld", 1.75, 2, 0, "flat"),
        ),
        "k^-(1 - alpha/2), times log k at beta = 1: the slowest of the three terms decides.",
        item="Theorem 2 case 2",
    ),
    Claim(
        "R3",
        "1 < alpha < 2, beta < 1: k^-(1 - alpha/2).",
        "Theorem 2",
        ("exponents",),
        _rates(("asgld", 1.25, 0.75)),
        "k^-(beta - alpha/2).",
        item="Theorem 2 case 2",
    ),
    Claim(
        "R4",
        "alpha = 1, beta > 1: k^-1/2 up to logs.",
        "Theorem 2",
        ("exponents",),
        _rates(("asgld", 1, 2), ("asgld", 1, 2, 0, "flat")),
        item="Theorem 2 case 3",
    ),
    Claim(
        "R5",
        "alpha = 1, 1/2 < beta <= 1: k^-(beta - 1/2).",
        "Theorem 2",
        ("exponents", "terms"),
        checks.r5,
        "At beta = 1 the bound carries a log k.",
        item="Theorem 2 case 3",
    ),
    Claim(
        "R6",
        "0 < alpha < 1, beta > alpha: k^-(alpha/2).",
        "Theorem 2",
        ("exponents",),
        _rates(("asgld", 0.5, 1), ("asgld", 0.5, 1, 0, "flat")),
        item="Theorem 2 case 4",
    ),
    Claim(
        "R7",
        "0 < alpha < 1, alpha/2 < beta <= alpha: k^-(beta - alpha/2).",
        "Theorem 2",
        ("exponents",),
        _rates(("asgld", 0.5, 0.5), ("asgld", 0.5, 0.35)),
        item="Theorem 2 case 4",
    ),
    Claim(
        "R8",
        "ASGLD converges exactly for alpha in (0, 2] and beta > alpha/2.",
        "Theorem 2, Figure 1",
        ("region",),
        checks.r8,
        item="Theorem 2",
    ),
    Claim(
        "R9",
        "SGLD stays in a neighborhood given by I2 = M lr C / B and I3 = 2 M sigma^2.",
        "Theorem 2, remark i",
        ("plateau",),
        checks.r9,
        "The floor is there; both formulas lack a factor d.",
        item="Theorem 2 remark i",
    ),
    Claim(
        "R10",
        "At alpha = beta = 1 all three terms are of order k^-1/2.",
        "section 4.1",
        ("terms",),
        checks.r10,
        "I2 and I3 carry a log k.",
    ),
    Claim(
        "B1",
        "alpha = 0 and batches of k^theta: k^-min(1, theta, beta).",
        "batch theorem",
        ("exponents",),
        _rates(*(("asgld", 0, 1, theta) for theta in (0.25, 0.5, 1))),
        item="Batch theorem",
    ),
    Claim(
        "B2",
        "Batches of k: eps^-4 at (1, 1) and eps^-2 at (0, 1).",
        "batch theorem",
        ("minima",),
        checks.b2,
        "These are iterations. In samples (0, 1) costs eps^-4, no less than a constant batch.",
        item="Batch theorem",
    ),
    Claim(
        "P1",
        "AGLD, alpha = 2, beta > 1: 1/log k.",
        "Proposition 6",
        ("exponents",),
        partial(checks.slow_rate, "agld"),
        item="Proposition 6",
    ),
    Claim(
        "P2",
        "AGLD, 0 < alpha < 2: k^-(1 - alpha/2) for beta >= 1, k^-(beta - alpha/2) below.",
        "Proposition 6",
        ("exponents",),
        _rates(
            ("agld", 1, 0.75),
            ("agld", 1, 1),
            ("agld", 1, 2),
            ("agld", 1, 1, 0, "flat"),
            ("agld", 1, 2, 0, "flat"),
        ),
        item="Proposition 6",
    ),
    Claim(
        "P3",
        "AGLD, alpha = 0: k^-min(1, beta), so eps^-2 at (0, 1).",
        "Proposition 6",
        ("exponents", "minima", "delta"),
        checks.p3,
        "Not while delta is too small to feed D: then k^-1/2 at (0, 1), eps^-4.",
        item="Proposition 6",
    ),
    Claim(
        "P4",
        "ASG: k^-(min(1, alpha) - alpha/2), so eps^-4 at alpha = 1.",
        "Proposition 6",
        ("exponents", "minima", "terms"),
        checks.p4,
        "At alpha = 1 the bound carries a log k.",
        item="Proposition 6",
    ),
    Claim(
        "E1",
        "ASGLD, AGLD and ASG leave a saddle within O(log d) steps.",
        "Theorem 3",
        ("dimension",),
        checks.e1,
        "True at alpha = 0, and where the noise is quiet. At alpha > 0 an escape along an axis "
        "feeds its own D and brakes: a power of d once the heat of the other coordinates is what "
        "has to be beaten. |u'x| >= R has no d in it at all.",
        item="Theorem 3",
    ),
    Claim(
        "E2",
        "The escape time is of order 1/(log gamma + a3).",
        "Theorem 3",
        ("escape",),
        checks.e2,
        "1/gamma at alpha = 0, and up to gamma^(-2/(2 - alpha)) above.",
        item="Theorem 3",
    ),
    Claim(
        "E3",
        "The escape time grows with min(alpha, beta) and no other way with the exponents.",
        "Theorem 3",
        ("escape",),
        checks.e3,
        "alpha multiplies it by D^(alpha/2); beta adds (beta - alpha/2) log D inside a logarithm.",
        item="Theorem 3",
    ),
    Claim(
        "E4",
        "The escape time does not depend on when the saddle is met.",
        "Theorem 3",
        ("escape",),
        checks.e4,
        "It grows like k0^(alpha/2), and like log k0 at alpha = 0.",
        item="Theorem 3",
    ),
    Claim(
        "E5",
        "ASG leaves saddles too.",
        "Theorem 3",
        ("noise",),
        checks.e5,
        "Only with gradient noise along the escape direction, of which no assumption speaks.",
        item="Theorem 3",
    ),
    Claim(
        "E6",
        "The adaptive D helps to leave along several directions at once.",
        "Theorem 3, remark i",
        ("directions",),
        checks.e6,
        "Near a saddle gradients are small and D is the same in all directions; alpha > 0 only "
        "slows the clock.",
        item="Theorem 3 remark i",
    ),
    Claim(
        "E7",
        "A small beta escapes sooner and converges slower; alpha = beta = 1 balances.",
        "Theorem 3, remark iii",
        ("front", "region"),
        checks.e7,
        "The exponent that decides late escapes is alpha.",
        item="Theorem 3 remark iii",
    ),
    Claim(
        "E8",
        "To a minimum: log d / eps^4 (ASGLD, ASG), log d / eps^2 (AGLD, and ASGLD with B = k).",
        "Theorem 4",
        ("minima",),
        checks.e8,
        "At fixed noise per coordinate the steps grow like d at alpha = 0 and like d^2 at "
        "alpha = 1; free of d if sigma^2 and C shrink like 1/d.",
        item="Theorem 4",
    ),
    *(
        Claim(
            f"M{i}",
            f"{row.statement} {row.bound}, by {row.oracle}.",
            f"Table 1, row {i}",
            ("table1", "minima") if i in checks.OWN_ROWS else ("table1",),
            partial(checks.table_row, i),
            row.correction,
            row.name,
        )
        for i, row in enumerate(table1(), start=1)
    ),
    Claim(
        "M15",
        "Two Hessian-vector methods need log d / eps^1.25.",
        "section 2",
        ("table1",),
        checks.m15,
        "7/4, as Table 1 and the cited papers have it.",
        item="Section 2",
    ),
    Claim(
        "M16",
        "All existing methods need full gradients and a step that stops and tries.",
        "section 2",
        ("table1",),
        checks.m16,
        "Several rows of the same table work with stochastic gradients.",
        item="Section 2",
    ),
    Claim(
        "X1",
        "SGLD and its variants suffer the convergence issue.",
        "Experiment",
        ("study", "settings"),
        checks.x1,
        "At the smallest step and noise its plateau lies near the truth for most of the time.",
    ),
    Claim(
        "X2",
        "ASGLD and its variants converge fast for beta > alpha/2.",
        "Experiment",
        ("study", "settings", "spaces"),
        checks.x2,
        "Fast only in log space and with a step that is not small.",
    ),
    Claim(
        "X3",
        "alpha = 1, beta = 0.3 does not converge but hits the truth quickly.",
        "Experiment",
        ("study",),
        checks.x3,
    ),
    Claim(
        "X4",
        "ASG converges stably but slower than ASGLD.",
        "Experiment",
        ("study",),
        checks.x4,
        "At equal batch the two are alike; the difference is that of B = 1 to B = 10.",
    ),
    Claim(
        "X5",
        "AGLD converges even faster than ASGLD.",
        "Experiment",
        ("study",),
        checks.x5,
        "Per iteration. It is alpha = 0 that makes it fast, and per sample it is far dearer.",
    ),
)
