"""The jax side: gradients of targets for blackjax, and its SGLD on many chains at once."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

import numpy as np

from sampling_suite.targets import Array, Target


def load() -> Any:
    """jax in float64."""
    try:
        import blackjax
        import jax
    except ImportError as error:
        raise SystemExit(f"{error}: pip install -c constraints.txt -e '.[bench]'") from error
    del blackjax
    jax.config.update("jax_enable_x64", True)
    return jax


def versions(*packages: str) -> str:
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)


def log_density(target: Target) -> Callable[[Any], Any]:
    """The log density of the whole target."""
    jax = load()
    if target.data is None:
        return target.of_jax()  # type: ignore[no-any-return]
    log_prior, log_likelihood = target.of_jax()
    data = tuple(jax.numpy.asarray(part) for part in target.data)
    rows = jax.vmap(log_likelihood, in_axes=(None, 0))
    return lambda x: log_prior(x) + rows(x, data).sum()


def gradient(target: Target, batch: int | None, control: bool) -> Callable[[Any, Any], Any]:
    """An estimator (position, batch of data) as blackjax makes them."""
    jax = load()
    from blackjax.sgmcmc import gradients

    if batch is None:
        of_density = jax.grad(log_density(target))
        return lambda position, _: of_density(position)
    assert target.data is not None
    estimate = gradients.grad_estimator(*target.of_jax(), target.num_data)
    if control:
        data = tuple(jax.numpy.asarray(part) for part in target.data)
        estimate = gradients.control_variates(estimate, jax.numpy.asarray(target.mode), data)
    return estimate  # type: ignore[no-any-return]


class Sgld:
    """`blackjax.sgld` with jit, vmap over chains and lax.scan over steps.

    Calls go on from where the last ended. A batch is drawn anew at each step, for each chain, with
    replacement, as in blackjax's own example.
    """

    def __init__(
        self, target: Target, *, batch: int | None = None, control: bool = False, chains: int
    ) -> None:
        jax = load()
        import blackjax

        sgld = blackjax.sgld(gradient(target, batch, control))
        if target.data is not None:
            data = tuple(jax.numpy.asarray(part) for part in target.data)

        def one_step(key: Any, x: Any, step: Any) -> Any:
            if batch is None:
                return sgld.step(key, x, None, step)
            key, of_batch = jax.random.split(key)
            picked = jax.random.randint(of_batch, (batch,), 0, target.num_data)
            return sgld.step(key, x, tuple(part[picked] for part in data), step)

        def run(key: Any, x: Any, step: Any, draws: int, thin: int) -> Any:
            def inner(index: Any, state: Any) -> Any:
                keys = jax.random.split(jax.random.fold_in(state[0], index), chains)
                return state[0], jax.vmap(one_step, in_axes=(0, 0, None))(keys, state[1], step)

            def outer(x: Any, key: Any) -> Any:
                x = jax.lax.fori_loop(0, thin, inner, (key, x))[1]
                return x, x

            return jax.lax.scan(outer, x, jax.random.split(key, draws))

        self.target, self.chains = target, chains
        self.compiled = jax.jit(run, static_argnums=(3, 4))
        self.jax = jax
        self.restart(0)

    def restart(self, seed: int) -> None:
        self.key = self.jax.random.key(seed)
        self.x = self.jax.numpy.asarray(self.target.starts(self.chains, seed))

    def __call__(self, step: float, draws: int, thin: int = 1) -> Array:
        """Draws (chains, draws, d), each after `thin` steps."""
        self.key, key = self.jax.random.split(self.key)
        self.x, kept = self.compiled(key, self.x, step, draws, thin)
        return np.asarray(kept).transpose(1, 0, 2)
