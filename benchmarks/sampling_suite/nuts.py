"""Moments of a target by NUTS (blackjax, float64), for targets without exact ones.

Adapted with a dense metric, then many draws of eight chains. A row is a coordinate.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np

from sampling_suite import jaxes
from sampling_suite.targets import Array, Target

CHAINS, WARMUP, DRAWS = 8, 1500, 6000
MOST_RHAT, MOST_MCSE = 1.005, 0.01


def sample(target: Target, draws: int, seed: int = 0) -> Array:
    """NUTS draws (chains, draws, d)."""
    jax = jaxes.load()
    import blackjax

    density = jaxes.log_density(target)
    adapt_key, draw_key = jax.random.split(jax.random.key(seed))
    adaptation = blackjax.window_adaptation(
        blackjax.nuts, density, is_mass_matrix_diagonal=False, target_acceptance_rate=0.85
    )
    start = jax.numpy.asarray(target.mode)
    (_, parameters), _ = adaptation.run(adapt_key, start, num_steps=WARMUP)
    nuts = blackjax.nuts(density, **parameters)

    @functools.partial(jax.jit, static_argnums=2)
    @functools.partial(jax.vmap, in_axes=(0, 0, None))
    def chain(key: Any, x: Any, steps: int) -> Any:
        def step(state: Any, key: Any) -> Any:
            state, _ = nuts.step(key, state)
            return state, state.position

        return jax.lax.scan(step, nuts.init(x), jax.random.split(key, steps))[1]

    starts = jax.numpy.asarray(target.starts(CHAINS, seed + 1))
    kept = chain(jax.random.split(draw_key, CHAINS), starts, draws + draws // 10)
    return np.asarray(kept)[:, draws // 10 :]


def measure(target: Target, draws: int = DRAWS) -> list[dict[str, Any]]:
    """Rows of all coordinates; fails if chains do not agree or draws are too few."""
    found = sample(target, draws)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz

        rows = []
        for k in range(target.dim):
            of_one = found[:, :, k]
            rows.append(
                {
                    "target": target.name, "coordinate": k,
                    "mean": float(of_one.mean()), "sd": float(of_one.std()),
                    "mcse_mean": float(arviz.mcse(of_one, method="mean")),
                    "mcse_sd": float(arviz.mcse(of_one, method="sd")),
                    "rhat": float(arviz.rhat(of_one)),
                    "ess": float(arviz.ess(of_one, method="bulk")),
                    "draws": of_one.size, "versions": jaxes.versions("blackjax", "jax", "arviz"),
                }
            )  # fmt: skip
    worst_rhat = max(row["rhat"] for row in rows)
    worst = max(max(row["mcse_mean"], row["mcse_sd"]) / row["sd"] for row in rows)
    print(f"{target.name}: R-hat at most {worst_rhat:.5f}, MCSE at most {worst:.2%} of an sd")
    if draws >= DRAWS and (worst_rhat > MOST_RHAT or worst > MOST_MCSE):
        raise SystemExit("NUTS is not accurate enough: more draws are needed")
    return rows
