"""How well `asgld.sample` samples, and what it costs, next to the SGLD of blackjax and posteriors.

    python benchmarks/sampling.py nuts        moments of the logistic regression, by long NUTS draws
    python benchmarks/sampling.py accuracy    means and sds of `asgld.sample` against the truth
    python benchmarks/sampling.py rivals      gradients per effective draw, at equal accuracy
    python benchmarks/sampling.py walltime    seconds of 1,000 chains, ours and blackjax's in turn
    python benchmarks/sampling.py table       run nothing, print what the files say
    ... --only NAME                           one target (or target/gradients, or
                                              target/gradients/variant); may be repeated
    ... --again                               also rows that the file has
    ... --quick                               small, in seconds; writes only where --out says
    ... --out FILE                            instead of benchmarks/results

Rooms: `targets` (densities with known moments), `measures` (errors and effective draws), `theory`
(what SGLD does on a Gaussian, exactly), `ours`, `rivals`, `nuts`, `walltime`, `summary`.

A row that the file has is not run again, so a run that was stopped goes on. To add a target, write
one entry of `targets.TARGETS`.
"""
