"""How far a number may be from what a claim says before the claim is held to be wrong."""

from __future__ import annotations

# An exponent may miss a claimed one by this, which is what a logarithm does to a slope over a
# decade.
SLACK = 0.1
# The bounds hide a log k. It raises the power of 1/eps that k^-e log k shows at finite k by a
# factor of 1/(1 - 1/(e log k)): 1.25 where k^e is near 150.
LOGS = 1.25
# A time that grows like log d may exceed that by this factor.
LOG_D = 1.25
# A chain has converged when it spends this share of the last tenth of the run near the truth.
CONVERGED = 0.9
