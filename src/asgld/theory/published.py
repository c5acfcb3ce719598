"""What the paper claims, item by item: statement, verdict, reason, correction.

Statements are in our words. Numbers are those the paper's text uses ("Theorem 3"); the number LaTeX
prints ("Theorem 4.7") works as well. The rows of Table 1 are items too.

References: H. Sang and J. Liu, Adaptive Stochastic Gradient Langevin Dynamics: Taming
Convergence and Saddle Point Escape Time.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["VERDICTS", "Item", "Table1Row", "item", "items", "table1"]

#: The words of every judgment, by proof as here or by measurement, each with its meaning.
VERDICTS = {
    "holds": "true as stated",
    "consistent": "an upper bound that all measured numbers stay below: not violated, not reached",
    "holds with correction": "the core is true, a detail of the statement is not",
    "not supported": "neither proved nor measured: the evidence leaves the core open",
    "refuted": "the core is false",
    "not testable": "nothing in the statement can be checked, or the experiment failed",
}

# Calls for curvature that an oracle of Table 1 grants; a Hessian gives its products too.
_PRODUCTS = frozenset({"hvp", "sample_hvp"})
_CURVATURE_CALLS = {
    "Hessian": _PRODUCTS | {"hessian"},
    "Hessian, stochastic gradient": _PRODUCTS | {"hessian"},
    "Hessian-vector product": _PRODUCTS,
}


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
        log_power: exponent of log d in the printed bound; NaN where d is in that polynomial.
        unit: the unit that the cited bound counts.
    """

    regime: str = ""
    method: str = ""
    bound: str = ""
    oracle: str = ""
    eps_power: float = float("nan")
    log_power: float = float("nan")
    unit: str = ""

    @property
    def curvature_calls(self) -> frozenset[str]:
        """The calls for curvature, as an oracle names them, that the printed oracle grants."""
        return _CURVATURE_CALLS.get(self.oracle, frozenset())


def item(name: str) -> Item:
    """The published item of that name.

    >>> item("Theorem 3").verdict, item("Theorem 4.7").name
    ('refuted', 'Theorem 3')
    >>> item("Table 1 row 14").bound
    'log d / eps^2'
    """
    found = _INDEX.get(" ".join(name.lower().split()))
    if found is None:
        known = ", ".join(entry.name for entry in items())
        raise ValueError(f"name={name!r}: no such item; known are {known}")
    return found


def items() -> tuple[Item, ...]:
    """All published items, in the order of the paper, the rows of Table 1 last."""
    return _ITEMS


def table1() -> tuple[Table1Row, ...]:
    """The fourteen rows of Table 1, in the order printed."""
    return _ROWS


_SETUP = (
    Item(
        "Equation 3",
        "The update, with D_{k-1} the sum over i = 1..k-1 of the squared gradients plus delta.",
        "holds with correction",
        "The sum is empty at k = 1, so the first step divides by zero; Algorithm 1 and Lemma 1 "
        "number D differently.",
        "D_0 = d_init, D_{k+1} = D_k + G_k^2 + delta, step k uses D_k: defined at once, and fixed "
        "before G_k is drawn.",
    ),
    Item(
        "Algorithm 1",
        "ASGLD, started from D_{-1} = delta I with a small delta.",
        "holds with correction",
        "D_0 is never set, the newest gradient inside D is two steps old, and a small start of D "
        "multiplies the first step by delta^(-alpha/2) and the first noise by delta^(-beta/2).",
        "Start D at d_init with lr d_init^(-alpha/2) <= 1/M, that is d_init >= (lr M)^(2/alpha); "
        "add delta each step; use gradients up to the previous one.",
        aliases=("Algorithm 2", "Algorithm 3"),
    ),
    Item(
        "Special cases",
        "alpha = beta = 0 is SGLD, beta -> infinity is ASG, ASG is AGLD with beta = alpha.",
        "holds with correction",
        "D^(-beta/2) tends to zero only where D > 1; for D < 1 the noise grows without bound.",
        "ASG is sigma = 0. ASG is distributed like AGLD with beta = alpha if the gradient noise is "
        "Gaussian of variance C and sigma^2 = lr C / 2.",
    ),
    Item(
        "Notation O",
        "A = O(B) if |A^-1 B| converges to a finite constant.",
        "holds with correction",
        "The ratio is upside down, and the proofs need two-sided orders.",
        "Read Theta wherever a sum stands in a denominator.",
    ),
    Item(
        "Assumption 1",
        "f, its gradient and its Hessian are Lipschitz with constants L, M, rho.",
        "holds with correction",
        "A Lipschitz f excludes quadratics; it is used only for E D = O(k).",
        "Ask for a Lipschitz gradient, and bounded E G^2 along the path.",
    ),
    Item(
        "Assumption 2",
        "Stochastic gradients are unbiased with variance at most C/B.",
        "holds with correction",
        "Whether C bounds one coordinate or all is left open; I2 as printed needs one coordinate, "
        "so the total variance is d C / B. It bounds the noise from above only.",
        "Var G <= (C/B) I; for the escape of ASG also a lower bound along the escape direction.",
    ),
    Item(
        "Assumption 3",
        "Stochastic gradients have sub-Gaussian tails.",
        "holds",
        "It is an assumption; the pathwise certificate uses it about the noise G - grad f.",
    ),
    Item(
        "Definition 1",
        "An eps-first-order stationary point has |grad f| <= eps.",
        "holds",
        "The introduction writes |f| <= eps; the definition is right.",
    ),
    Item(
        "Definition 2",
        "A gamma-strict saddle has lambda_min of the Hessian <= -gamma.",
        "holds with correction",
        "No condition on the gradient, so steep points count as saddles.",
        "Add |grad f| <= eps.",
    ),
)

_CONVERGENCE = (
    Item(
        "Lemma 1",
        "E D_k^-phi is of order k^-phi.",
        "holds with correction",
        "True for delta > 0 and bounded E G^2, with constants delta^-phi above and "
        "(delta + L^2 + C)^-phi below. For tiny delta these are too far apart to say "
        "anything at a feasible k.",
        "With full gradients D ~ k^(1/(1+tau)), tau = beta - alpha/2, until "
        "k* = (lambda sigma^2/delta)^(1/tau) / ((1+tau) delta); see growth_onset.",
        aliases=("Lemma A.1",),
    ),
    Item(
        "Lemma 2",
        "sum_j Tr E D_j^-phi is of order d k for phi = 0, d log k for phi = 1, d k^(1-phi) else.",
        "refuted",
        "For phi > 1 the sum holds its first term, so it cannot tend to zero like k^(1-phi).",
        "Theta(d) for phi > 1; the other cases stand.",
        aliases=("Lemma A.2",),
    ),
    Item(
        "Fact 1",
        "E x'Ax = Tr(A Var x) + mu'A mu.",
        "holds",
        "Standard.",
        aliases=("Fact B.1", "Fact"),
    ),
    Item(
        "Theorem 1",
        "For lr < 1/M the smallest E|grad f|^2 of k steps is at most I1 + I2 + I3, whose "
        "denominators are sum_j Tr E D_j^(-alpha/2).",
        "refuted",
        "v'Dv <= Tr(D) v'v is applied to a term with a minus sign, and E[D grad grad'] is factored "
        "although D and x depend on each other. On f = M|x|^2/2 with alpha = 0 and no noise it "
        "reads d <= 2 - lr M at k = 1, false for every d >= 2. It also needs D >= 1.",
        "Replace Tr D^(-alpha/2) by (max D)^(-alpha/2): the bound grows by d or more "
        "(expected_certificate); or certificate, along the path and at all times.",
        aliases=("Theorem 4.1",),
    ),
    Item(
        "Proposition 2",
        "AGLD: the same with I1 + I3.",
        "refuted",
        "The same step as in Theorem 1.",
        "I1 + I3 with (max D)^(-alpha/2) in the denominators.",
        aliases=("Proposition 4.2", "Lemma 4.2"),
    ),
    Item(
        "Proposition 3",
        "ASG: the same with I1 + I2.",
        "refuted",
        "The same step as in Theorem 1.",
        "I1 + I2 with (max D)^(-alpha/2) in the denominators.",
        aliases=("Proposition 4.3", "Lemma 4.3"),
    ),
    Item(
        "Theorem 2",
        "At a constant batch ASGLD converges for alpha in (0, 2], beta > alpha/2, with rates in "
        "four cases.",
        "holds with correction",
        "The region is right. Case 2 is false, case 3 lacks a log at beta = 1.",
        "k^-(min(1, alpha, beta) - alpha/2), times log k exactly if min(alpha, beta) = 1; "
        "1/log k at alpha = 2, beta > 1.",
        aliases=("Theorem 4.4",),
    ),
    Item(
        "Theorem 2 case 1",
        "alpha = 2, beta > 1: 1/log k.",
        "holds",
        "I1 decides. The proof's I2 and I3 are wrong by Lemma 2, but all three are 1/log k.",
    ),
    Item(
        "Theorem 2 case 2",
        "1 < alpha < 2: k^-(beta - alpha/2) for beta >= 1, k^-(1 - alpha/2) for beta < 1.",
        "refuted",
        "The two halves are swapped: the slower term decides, not the faster. I1 alone is "
        "k^-(1 - alpha/2), so no beta can do better.",
        "beta > 1: k^-(1 - alpha/2); beta = 1: times log k; alpha/2 < beta < 1: "
        "k^-(beta - alpha/2).",
    ),
    Item(
        "Theorem 2 case 3",
        "alpha = 1: k^-1/2 up to logs for beta > 1, k^-(beta - 1/2) for 1/2 < beta <= 1.",
        "holds with correction",
        "At beta = 1 both I2 and I3 carry a log that the statement drops.",
        "k^-1/2 log k at beta >= 1.",
    ),
    Item(
        "Theorem 2 case 4",
        "0 < alpha < 1: k^-(alpha/2) for beta > alpha, k^-(beta - alpha/2) for "
        "alpha/2 < beta <= alpha.",
        "holds",
        "I2 or I3 decides; no log at the tie beta = alpha.",
    ),
    Item(
        "Theorem 2 remark i",
        "SGLD stops in a neighborhood with I2 = M lr C / B and I3 = 2 M sigma^2.",
        "holds with correction",
        "The floor is there, but both values lack the factor d lost in Theorem 1.",
        "I2 = M lr C d / B, I3 = 2 M sigma^2 d.",
    ),
    Item(
        "Theorem 2 remark ii",
        "A larger alpha speeds I2 and slows I1; a larger beta speeds convergence and slows escape.",
        "holds with correction",
        "Right for alpha <= 1 and beta <= 1. Beyond, neither exponent improves any order.",
        "alpha > 1 and beta > 1 change no order of the bound for the better.",
    ),
    Item(
        "Batch theorem",
        "B_k = O(k^theta) with any theta > 0, alpha = 0: k^-min(1, theta, beta). With B_k = O(k): "
        "eps^-4 at alpha = beta = 1 and eps^-2 at alpha = 0, beta = 1.",
        "holds with correction",
        "The orders are right for B_k of order k^theta exactly. A small theta gives k^-theta, not "
        "eps^-2. Iterations are counted, not samples. At alpha = beta = 1 a linear batch buys "
        "nothing, not even the log, which I3 keeps at beta = 1.",
        "k^-(min(1, alpha + theta, beta) - alpha/2), log exactly if min(alpha + theta, beta) = 1. "
        "In samples N never better than N^-1/2, that is eps^-4, reached on the line "
        "alpha + theta = 1, beta >= 1.",
        aliases=("Theorem 4.5", "Theorem_batch"),
    ),
    Item(
        "Proposition 6",
        "AGLD: 1/log k at alpha = 2; k^-(1 - alpha/2) for beta >= 1, k^-(beta - alpha/2) for "
        "beta < 1; balanced at (0, 1) with eps^-2. ASG: balanced at alpha = 1 with eps^-4.",
        "holds with correction",
        "A log k is missing at beta = 1 for 0 < alpha < 2. For ASG the statement hides it, its "
        "proof omits it.",
        "AGLD k^-(min(1, beta) - alpha/2), log at beta = 1; ASG k^-(min(1, alpha) - alpha/2), log "
        "at alpha = 1. (0, beta > 1) has no log: as a bound it beats the balanced (0, 1).",
        aliases=("Proposition 4.6",),
    ),
)

_ESCAPE = (
    Item(
        "Lemma 3",
        "The product of the growth factors lies between (1 + a6 gamma lr k^(-alpha/2))^T and "
        "(1 + a5 gamma lr)^T.",
        "refuted",
        "The lower half uses (k0 + T)^(-alpha/2) <= T^(-alpha/2) as if it were >=; it fails for "
        "saddles met late, k0 > T.",
        "exp(sum gamma h_j) with h_j = lr D_j^(-alpha/2), D of order k0 + j.",
        aliases=("Lemma F.1",),
    ),
    Item(
        "Theorem 3",
        "ASGLD, AGLD and ASG leave a gamma-strict saddle within "
        "(a1 log d + a2 min(alpha, beta)) / (log gamma + a3) steps.",
        "refuted",
        "The growth rate is frozen and log(1 + x) replaced by log x, so 1/gamma became "
        "1/(log gamma + a3); the step met, k0, dropped out although the clock runs with "
        "D^(-alpha/2); U'DU is treated as diagonal; the cubic rest grows faster than the gain; "
        "ASG is given noise along the escape direction that no assumption provides.",
        "Distance R: alpha = 0 gives ln(1 + gamma R^2/(Z^2 T_eff)) / (2 ln(1 + lr gamma)), no d; "
        "alpha > 0 multiplies by D^(alpha/2) ~ k0^(alpha/2); beta adds (beta - alpha/2) ln D "
        "inside the log. Value below the saddle: log d through the heat of the other directions; "
        "see escape_time and escape_recursion.",
        aliases=("Theorem 4.7",),
    ),
    Item(
        "Theorem 3 remark i",
        "log d comes from the adaptive D, which escapes along many coordinates at once.",
        "refuted",
        "The logarithm is there at alpha = 0, where D does not scale the step. For alpha > 0 an "
        "axis-aligned escape feeds its own D and loses it. What D does is to allow a longer lr, "
        "with which several directions are left sooner.",
        "log d is the price of beating the heat (d-1) T_eff / 2 of the stable directions, or of "
        "sharing a fixed noise energy, sigma^2 = sigma_tot^2 / d.",
    ),
    Item(
        "Theorem 3 remark ii",
        "A smaller gamma makes escape harder.",
        "holds",
        "T ~ 1/gamma at alpha = 0, between 1/gamma (late) and gamma^(-2/(2-alpha)) (early) above: "
        "not the law of Theorem 3, but the same direction.",
    ),
    Item(
        "Theorem 3 remark iii",
        "Escape depends on min(alpha, beta); a small beta escapes sooner; (1, 1) balances.",
        "refuted",
        "alpha multiplies the time by D^(alpha/2). beta and min(alpha, beta) only enter a "
        "logarithm.",
        "To leave late saddles sooner lower alpha, not beta.",
    ),
    Item(
        "Theorem 4",
        "To a local minimum: log d / eps^4 for ASGLD and ASG, log d / eps^2 for AGLD and for "
        "ASGLD with a linear batch.",
        "refuted",
        "It multiplies Theorem 2 by Theorem 3 and inherits both. With sigma and C fixed per "
        "coordinate I2 and I3 are linear in d, so iterations grow like d (AGLD) or d^2 (ASGLD).",
        "With sigma^2 = sigma_tot^2/d and C = C_tot/d convergence is free of d in I2 and I3 and an "
        "escape at alpha = 0 costs ln d / (2 ln(1 + lr gamma)). Linear batch: eps^-4 samples.",
        aliases=("Theorem 4.8",),
    ),
    Item(
        "Table 1",
        "Fourteen methods with their time to escape and the oracle they need.",
        "holds with correction",
        "It mixes outer iterations, oracle calls and arithmetic time, first- and second-order "
        "accuracy, and fixed gamma with gamma = sqrt(rho eps).",
        "Compare in one unit; see the rows.",
    ),
    Item(
        "Section 2",
        "Two Hessian-vector methods need log d / eps^1.25; all existing methods need full "
        "gradients to find the way out, and two of them, perturbed gradient descent and NEON, stop "
        "and try.",
        "refuted",
        "Table 1 prints eps^-7/4 for the same two papers, which is what they prove; rows 1, 7, 9 "
        "and 10 reach second-order points with stochastic gradients alone. That rows 8 and 10 stop "
        "and try is right.",
        "7/4, not 1.25; the need for full gradients holds for rows 2-6 and 8.",
    ),
)

_SECOND, _INDIRECT, _FIRST = "second order", "indirect second order", "first order"

_ROWS = (
    Table1Row(
        "Table 1 row 1",
        "Natasha 2 (Allen-Zhu 2017).",
        "consistent",
        "Measured exponents stay below the printed one. The power belongs to gamma = eps^(1/4); no "
        "full Hessian is formed.",
        "eps^-3.25 stochastic gradients and Hessian-vector products at gamma = eps^(1/4), "
        "eps^-3.5 at gamma = sqrt(eps).",
        (), _SECOND, "natasha2", "eps^-3.25", "Hessian, stochastic gradient", 3.25, 0,
        "stochastic gradients and Hessian-vector products",
    ),
    Table1Row(
        "Table 1 row 2",
        "Cubic regularization of Newton's method (Nesterov and Polyak 2006).",
        "consistent",
        "As outer iterations, each of a Hessian and a factorization. Measured exponents come "
        "within 0.1 of the printed one, which the cited paper proves.",
        "",
        (), _SECOND, "cubic-newton", "eps^-1.5", "Hessian", 1.5, 0, "outer iterations",
    ),
    Table1Row(
        "Table 1 row 3",
        "TRACE trust region (Curtis, Robinson and Samadi 2017).",
        "consistent",
        "As outer iterations, each of a Hessian and a factorization. Measured exponents come "
        "within 0.1 of the printed one, which the cited paper proves.",
        "",
        (), _SECOND, "trace", "eps^-1.5", "Hessian", 1.5, 0, "outer iterations",
    ),
    Table1Row(
        "Table 1 row 4",
        "FastCubic (Agarwal et al. 2016).",
        "consistent",
        "On the worst-case chain the measured exponent comes within 0.1 of the printed one, which "
        "the cited paper proves; the text's 1.25 is not in it.",
        "",
        (), _INDIRECT, "fast-cubic", "log d / eps^1.75", "Hessian-vector product", 1.75, 1,
        "gradients and Hessian-vector products",
    ),
    Table1Row(
        "Table 1 row 5",
        "Accelerated methods (Carmon, Duchi, Hinder and Sidford 2016).",
        "consistent",
        "Measured exponents stay below the printed one, which the cited paper proves; the text's "
        "1.25 is not in it.",
        "",
        (), _INDIRECT, "carmon-accelerated", "log d / eps^1.75", "Hessian-vector product", 1.75, 1,
        "gradients and Hessian-vector products",
    ),
    Table1Row(
        "Table 1 row 6",
        "Cubic step by gradient descent (Carmon and Duchi 2016).",
        "consistent",
        "Measured exponents stay below the printed one: eps^-1.5 outer steps, each of eps^-0.5 "
        "log d products.",
        "",
        (), _INDIRECT, "carmon-cubic", "log d / eps^2", "Hessian-vector product", 2.0, 1,
        "gradients and Hessian-vector products",
    ),
    Table1Row(
        "Table 1 row 7",
        "Noisy SGD (Ge, Huang, Jin and Yuan 2015).",
        "not testable",
        "An unnamed polynomial excludes no number. It is not named in the cited paper either.",
        "",
        (), _FIRST, "noisy-sgd", "poly(d / eps)", "stochastic gradient", float("nan"), float("nan"),
        "stochastic gradients",
    ),
    Table1Row(
        "Table 1 row 8",
        "Perturbed gradient descent (Jin et al. 2017).",
        "consistent",
        "The power of 1/eps is reached on a staircase of saddles, log^4 d is not: it multiplies "
        "the total, and one escape lasts a number of steps linear in log d, so the paper's "
        "comparison of its log d with log^4 d sets an episode against a total.",
        "",
        (), _FIRST, "perturbed-gd", "log^4 d / eps^2", "gradient", 2.0, 4, "gradients",
    ),
    Table1Row(
        "Table 1 row 9",
        "Saddle-NGD (Levy 2016).",
        "consistent",
        "Measured escapes grow less than d^3. The main theorem uses exact gradients; batches are "
        "an extension.",
        "Oracle: gradient.",
        (), _FIRST, "saddle-ngd", "d^3 poly(1 / eps)", "batch stochastic gradient", float("nan"), 0,
        "iterations",
    ),
    Table1Row(
        "Table 1 row 10",
        "NEON (Xu and Yang 2017).",
        "consistent",
        "Measured exponents of d and of 1/eps, in gradients, stay below those printed. "
        "d / eps^3.5 is arithmetic time, the d being the cost of one vector operation; it works "
        "with stochastic gradients.",
        "eps^-3.5 stochastic gradients, up to logs of d. Oracle: stochastic gradient.",
        (), _FIRST, "neon", "d / eps^3.5", "gradient", 3.5, 0, "arithmetic operations",
    ),
    Table1Row(
        "Table 1 row 11",
        "AGLD at (0, 1).",
        "refuted",
        "See Theorem 4: linear in d at fixed sigma, and eps^-4 while delta is too small to feed D.",
        "d / eps^2 up to logs; free of d in I3 if sigma^2 = sigma_tot^2 / d.",
        (), _FIRST, "agld", "log d / eps^2", "gradient", 2.0, 1, "iterations",
    ),
    Table1Row(
        "Table 1 row 12",
        "ASG at alpha = 1.",
        "refuted",
        "See Theorem 4: quadratic in d if C is fixed per coordinate, as the proofs have it; free "
        "of d if C bounds all coordinates together. Without a lower bound on the gradient noise "
        "along the direction it need not escape at all.",
        "d^2 / eps^4 up to logs at C fixed per coordinate, free of d at C fixed in total; escape "
        "only with noise along u.",
        (), _FIRST, "asg", "log d / eps^4", "stochastic gradient", 4.0, 1, "iterations",
    ),
    Table1Row(
        "Table 1 row 13",
        "ASGLD at (1, 1).",
        "refuted",
        "See Theorem 4: quadratic in d at fixed noise per coordinate.",
        "d^2 / eps^4 up to logs; free of d in I2, I3 at fixed total noise, while an escape takes "
        "of order k0^(1/2) steps.",
        (), _FIRST, "asgld", "log d / eps^4", "stochastic gradient", 4.0, 1, "iterations",
    ),
    Table1Row(
        "Table 1 row 14",
        "ASGLD at (0, 1) with batches growing like k.",
        "refuted",
        "Iterations are printed in a table of oracle calls.",
        "eps^-2 iterations are eps^-4 stochastic gradients.",
        (), _FIRST, "asgld", "log d / eps^2", "batch stochastic gradient", 2.0, 1, "iterations",
    ),
)  # fmt: skip

_ITEMS: tuple[Item, ...] = (*_SETUP, *_CONVERGENCE, *_ESCAPE, *_ROWS)
_INDEX = {name.lower(): entry for entry in _ITEMS for name in (entry.name, *entry.aliases)}
