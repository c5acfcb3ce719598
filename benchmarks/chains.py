"""Many chains at once: a thousand replicas of the paper's two-dimensional problem as one tensor.

    python benchmarks/chains.py               everything, to results/chains.csv (some minutes)
    python benchmarks/chains.py --check       1000 replicas alone, nothing written; fails if `run`
                                              takes longer than jax
    python benchmarks/chains.py --quick       seconds, nothing written

AGLD on the estimation of two variances (`problem("variance")`), full gradients, noise on:

- `run`: `asgld.run` on a tensor of shape (replicas, 2), with its oracle, counts and history;
- `chains`: the bare loop `x.grad = grad(x); optimizer.step()`, to show what `run` adds;
- `one by one`: `run` on one chain. A thousand of them take a thousand times as long: measured for a
  part of the steps, and **extrapolated**;
- `jax vmap`: the same rule by `jax.vmap` and `lax.scan`, compiled, if jax is installed. The noise
  is jax's own.

Times are of several rounds, contenders in turn; ratios are of medians: `over_chains` and `over_jax`
say how many times as long a contender takes. Two threads by default; use
`--threads 1` on a machine that others use too, where two threads wait for each other.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from measure import RESULTS, summarize, write_csv

import asgld
from asgld.methods import langevin
from asgld.oracle import Oracle
from asgld.problems import Variance
from asgld.run import run

REPLICAS, STEPS, THREADS, ROUNDS = 1000, 20_000, 2, 5
# `run` may take this many times as long as jax.
BOUND = 1.0
LR, SIGMA = 0.1, 0.1
SCALING = (1, 10, 100, 1000, 10_000, 100_000)


def time_run(problem: Variance, replicas: int, steps: int) -> float:
    method = langevin("agld", lr=LR, sigma=SIGMA)
    x0 = torch.zeros(replicas, 2, dtype=torch.float64)
    began = time.perf_counter()
    run(Oracle(problem), method, x0, max_steps=steps)
    return time.perf_counter() - began


def time_chains(problem: Variance, replicas: int, steps: int) -> float:
    x = torch.zeros(replicas, 2, dtype=torch.float64)
    optimizer = asgld.AGLD([x], lr=LR, sigma=SIGMA)
    began = time.perf_counter()
    for _ in range(steps):
        x.grad = problem.grad(x)
        optimizer.step()
    return time.perf_counter() - began


def jax_timer() -> Callable[[Variance, int, int], float] | str:
    """A timer like the others, or the reason why there is none."""
    try:
        import jax
        import jax.numpy as jnp
    except ImportError as error:
        return f"jax is not installed ({error})"
    jax.config.update("jax_enable_x64", True)

    def time_jax(problem: Variance, replicas: int, steps: int) -> float:
        # The objective in z = log x is z + mean(y^2) exp(-z), summed over both coordinates.
        zero = torch.zeros(2, dtype=torch.float64)
        squares = jnp.asarray((1.0 - problem.grad(zero)).numpy())

        def chain(key: Any) -> Any:
            def step(carry: Any, k: Any) -> Any:
                x, total = carry
                grad = 1.0 - squares * jnp.exp(-x)
                metric = total + 1.0 + 0.01 * k
                noise = jax.random.normal(jax.random.fold_in(key, k), (2,))
                x = x - LR * grad + (2 * LR) ** 0.5 * SIGMA * metric**-0.5 * noise
                return (x, total + grad * grad), None

            return jax.lax.scan(step, (jnp.zeros(2), jnp.zeros(2)), jnp.arange(steps))[0][0]

        compiled = jax.jit(jax.vmap(chain))
        keys = jax.random.split(jax.random.key(0), replicas)
        compiled(keys).block_until_ready()
        began = time.perf_counter()
        compiled(keys).block_until_ready()
        return time.perf_counter() - began

    return time_jax


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def measure(
    rounds: int, replicas: int, steps: int, scaling: tuple[int, ...]
) -> list[dict[str, Any]]:
    problem = Variance()
    timers: dict[str, Callable[[Variance, int, int], float]] = {
        "run": time_run,
        "chains": time_chains,
    }
    jax = jax_timer()
    if not isinstance(jax, str):
        timers["jax vmap"] = jax
    part = max(steps // 10, 100)
    times: dict[tuple[str, int], list[float]] = {}
    for number in range(rounds):
        for name, timer in timers.items():
            # The whole run once; the other rounds are parts of it, scaled up.
            whole = steps if number == 0 else part
            seconds = timer(problem, replicas, whole) * steps / whole
            times.setdefault((name, replicas), []).append(seconds)
        few = max(part // 4, 50)
        alone = time_run(problem, 1, few) * steps / few * replicas
        times.setdefault(("one by one", replicas), []).append(alone)
        for count in scaling:
            if count != replicas:
                few = max(50, min(part, 10_000_000 // count // 20))
                seconds = time_run(problem, count, few) * steps / few
                times.setdefault(("run", count), []).append(seconds)
    notes = {
        "one by one": "extrapolated",
        "jax vmap": f"jax {_version('jax')}, compile time left out",
    }
    medians = {key: statistics.median(seconds) for key, seconds in times.items()}

    def over(median: float, name: str, count: int) -> float | str:
        return median / medians[name, count] if (name, count) in medians else ""

    reference = medians["one by one", replicas]
    rows = []
    for (name, count), seconds in times.items():
        median = medians[name, count]
        rows.append(
            {
                "contender": name,
                "replicas": count,
                "steps": steps,
                **{k.replace("_us", "_s"): v / 1e6 for k, v in summarize(seconds).items()},
                "chain_steps_per_s": count * steps / median,
                "one_by_one_over_this": reference / median * count / replicas,
                "over_chains": over(median, "chains", count),
                "over_jax": over(median, "jax vmap", count),
                "backend": asgld.AGLD([torch.zeros(2, dtype=torch.float64)]).backends[0].name,
                "note": notes.get(name, ""),
            }
        )
    if isinstance(jax, str):
        print(f"no row for jax vmap: {jax}")
    return rows


def _ratio(row: dict[str, Any], name: str) -> str:
    return f"{row[name]:5.2f} x {name.removeprefix('over_')}" if row[name] else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, and write nothing")
    parser.add_argument("--check", action="store_true", help=f"fail if run > {BOUND} x jax")
    parser.add_argument("--threads", type=int, default=THREADS, help="of torch")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.quick:
        rows = measure(2, 100, 400, (1, 100))
    else:
        rows = measure(ROUNDS, REPLICAS, STEPS, () if arguments.check else SCALING)
    for row in sorted(rows, key=lambda r: (r["contender"], r["replicas"])):
        print(
            f"{row['contender']:11} {row['replicas']:7d} replicas {row['median_s']:10.2f} s for "
            f"{row['steps']} steps  {row['chain_steps_per_s']:12.0f} chain-steps/s  "
            f"{row['one_by_one_over_this']:8.1f} x faster than one by one "
            f"{_ratio(row, 'over_chains')} {_ratio(row, 'over_jax')} {row['note']}"
        )
    if arguments.check:
        ratio = next(r["over_jax"] for r in rows if r["contender"] == "run")
        if not ratio:
            raise SystemExit("no jax to compare with: pip install 'asgld[bench]'")
        if ratio > BOUND:
            raise SystemExit(f"run takes {ratio:.2f} x the time of jax: need at most {BOUND}")
    elif not arguments.quick:
        write_csv(RESULTS / "chains.csv", rows)


if __name__ == "__main__":
    main()
