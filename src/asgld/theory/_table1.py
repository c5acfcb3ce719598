"""The fourteen rows of Table 1: bound and oracle as printed, and what the cited papers prove."""

from __future__ import annotations

from asgld.theory._item import Table1Row

_SECOND, _INDIRECT, _FIRST = "second order", "indirect second order", "first order"

ROWS = (
    Table1Row(
        "Table 1 row 1",
        "Natasha 2 (Allen-Zhu 2017).",
        "holds with correction",
        "The power belongs to gamma = eps^(1/4); no full Hessian is formed.",
        "eps^-3.25 stochastic gradients and Hessian-vector products at gamma = eps^(1/4), "
        "eps^-3.5 at gamma = sqrt(eps).",
        (), _SECOND, "natasha2", "eps^-3.25", "Hessian, stochastic gradient", 3.25,
        "stochastic gradients and Hessian-vector products",
    ),
    Table1Row(
        "Table 1 row 2",
        "Cubic regularization of Newton's method (Nesterov and Polyak 2006).",
        "holds",
        "As outer iterations; each costs a Hessian and a factorization.",
        "",
        (), _SECOND, "cubic-newton", "eps^-1.5", "Hessian", 1.5, "outer iterations",
    ),
    Table1Row(
        "Table 1 row 3",
        "TRACE trust region (Curtis, Robinson and Samadi 2017).",
        "holds",
        "As outer iterations; each costs a Hessian and a factorization.",
        "",
        (), _SECOND, "trace", "eps^-1.5", "Hessian", 1.5, "outer iterations",
    ),
    Table1Row(
        "Table 1 row 4",
        "FastCubic (Agarwal et al. 2016).",
        "holds",
        "The table is right; the text's 1.25 is not.",
        "",
        (), _INDIRECT, "fast-cubic", "log d / eps^1.75", "Hessian-vector product", 1.75,
        "gradients and Hessian-vector products",
    ),
    Table1Row(
        "Table 1 row 5",
        "Accelerated methods (Carmon, Duchi, Hinder and Sidford 2016).",
        "holds",
        "The table is right; the text's 1.25 is not.",
        "",
        (), _INDIRECT, "carmon-accelerated", "log d / eps^1.75", "Hessian-vector product", 1.75,
        "gradients and Hessian-vector products",
    ),
    Table1Row(
        "Table 1 row 6",
        "Cubic step by gradient descent (Carmon and Duchi 2016).",
        "holds",
        "eps^-1.5 outer steps, each of eps^-0.5 log d products.",
        "",
        (), _INDIRECT, "carmon-cubic", "log d / eps^2", "Hessian-vector product", 2.0,
        "gradients and Hessian-vector products",
    ),
    Table1Row(
        "Table 1 row 7",
        "Noisy SGD (Ge, Huang, Jin and Yuan 2015).",
        "holds",
        "The polynomial is not named there either; gamma is a constant.",
        "",
        (), _FIRST, "noisy-sgd", "poly(d / eps)", "stochastic gradient", float("nan"),
        "stochastic gradients",
    ),
    Table1Row(
        "Table 1 row 8",
        "Perturbed gradient descent (Jin et al. 2017).",
        "holds with correction",
        "log^4 d multiplies the total; one escape lasts a number of steps linear in log d, so the "
        "paper's comparison of its log d with log^4 d sets an episode against a total.",
        "One escape: O(log d) steps; in total log^4 d / eps^2.",
        (), _FIRST, "perturbed-gd", "log^4 d / eps^2", "gradient", 2.0, "gradients",
    ),
    Table1Row(
        "Table 1 row 9",
        "Saddle-NGD (Levy 2016).",
        "holds with correction",
        "The main theorem uses exact gradients; batches are an extension.",
        "Oracle: gradient.",
        (), _FIRST, "saddle-ngd", "d^3 poly(1 / eps)", "batch stochastic gradient", float("nan"),
        "iterations",
    ),
    Table1Row(
        "Table 1 row 10",
        "NEON (Xu and Yang 2017).",
        "holds with correction",
        "d / eps^3.5 is arithmetic time, the d being the cost of one vector operation; it works "
        "with stochastic gradients.",
        "eps^-3.5 stochastic gradients, up to logs of d. Oracle: stochastic gradient.",
        (), _FIRST, "neon", "d / eps^3.5", "gradient", 3.5, "arithmetic operations",
    ),
    Table1Row(
        "Table 1 row 11",
        "AGLD at (0, 1).",
        "refuted",
        "See Theorem 4: linear in d at fixed sigma, and eps^-4 while delta is too small to feed D.",
        "d / eps^2 up to logs; free of d in I3 if sigma^2 = sigma_tot^2 / d.",
        (), _FIRST, "agld", "log d / eps^2", "gradient", 2.0, "iterations",
    ),
    Table1Row(
        "Table 1 row 12",
        "ASG at alpha = 1.",
        "refuted",
        "See Theorem 4; without a lower bound on the gradient noise along the direction it need "
        "not escape at all.",
        "d^2 / eps^4 up to logs at fixed C per coordinate; escape only with noise along u.",
        (), _FIRST, "asg", "log d / eps^4", "stochastic gradient", 4.0, "iterations",
    ),
    Table1Row(
        "Table 1 row 13",
        "ASGLD at (1, 1).",
        "refuted",
        "See Theorem 4: quadratic in d at fixed noise per coordinate.",
        "d^2 / eps^4 up to logs; free of d in I2, I3 at fixed total noise, while an escape takes "
        "of order k0^(1/2) steps.",
        (), _FIRST, "asgld", "log d / eps^4", "stochastic gradient", 4.0, "iterations",
    ),
    Table1Row(
        "Table 1 row 14",
        "ASGLD at (0, 1) with batches growing like k.",
        "refuted",
        "Iterations are printed in a table of oracle calls.",
        "eps^-2 iterations are eps^-4 stochastic gradients.",
        (), _FIRST, "asgld", "log d / eps^2", "batch stochastic gradient", 2.0, "iterations",
    ),
)  # fmt: skip
