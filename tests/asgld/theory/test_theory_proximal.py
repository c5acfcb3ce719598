"""The certificate of the proximal rule against plain simulations, and against false constants."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from helpers import ROOT

from asgld.theory import proximal_certificate, proximal_noise_scale, proximal_step
from asgld.theory.proximal import PROXIMAL_TILTS

P = 0.05
REPLICAS = 400
# A true failure rate of P leads to more failures than this once in 3.5 million (5 sigma).
ALLOWED = P * REPLICAS + 5 * np.sqrt(REPLICAS * P * (1 - P))
ROTATION = np.linalg.qr(np.random.default_rng(3).standard_normal((8, 8)))[0]


@dataclass(frozen=True)
class Config:
    """One setting of the proximal rule. All f have M = 1, and F = f + g is least at 0, F(0) = 0."""

    f: str = "cosine"
    g: str = "l1"
    alpha: float = 0.0
    beta: float = 1.0
    lr: float = 0.2
    sigma: float = 0.1
    gradient_variance: float = 0.0
    envelope: float = 3.0
    spread: float = 1.0
    weight: float = 0.3
    d_init: float = 1.0
    delta: float = 0.1
    dim: int = 8
    steps: int = 300
    box: float = 2.5

    @property
    def noise(self):
        return self.variances(np.asarray(self.d_init))

    @property
    def kappa(self):
        return proximal_noise_scale(
            self.noise, self.step(np.asarray(self.d_init)), smoothness=1.0, envelope=self.envelope,
            spread=self.spread,
        )  # fmt: skip

    def step(self, D):
        return self.lr * D ** (-self.alpha / 2)

    def variances(self, D):
        injected = 2 * self.lr * self.sigma**2 * D**-self.beta
        return injected + self.step(D) ** 2 * self.gradient_variance

    def gradient(self, x):
        """Of f, a sum of functions of one coordinate; these are rotated unless f is a bowl."""
        turn = np.eye(self.dim) if self.f == "bowl" else ROTATION[: self.dim, : self.dim]
        z = x @ turn.T
        slopes = {"cosine": np.sin, "cauchy": lambda z: z / (1 + z**2), "bowl": lambda z: z}
        return slopes[self.f](z) @ turn

    def value(self, x):
        turn = np.eye(self.dim) if self.f == "bowl" else ROTATION[: self.dim, : self.dim]
        z = x @ turn.T
        values = {
            "cosine": lambda z: 1 - np.cos(z),
            "cauchy": lambda z: np.log1p(z**2) / 2,
            "bowl": lambda z: z**2 / 2,
        }
        return values[self.f](z).sum(-1) + self.penalty(x)

    def penalty(self, x):
        if self.g == "group":
            pairs = x.reshape(*x.shape[:-1], -1, 2)
            return self.weight * np.linalg.norm(pairs, axis=-1).sum(-1)
        square = 0.5 * np.sum(x**2, -1) if self.g == "elastic" else 0.0
        return self.weight * (np.abs(x).sum(-1) + square)

    def shrink(self, x, h):
        """The proximal step; h must be a number for groups."""
        if self.g == "group":
            pairs = x.reshape(*x.shape[:-1], -1, 2)
            norms = np.linalg.norm(pairs, axis=-1, keepdims=True)
            left = np.maximum(1 - h * self.weight / np.maximum(norms, 1e-300), 0.0)
            return (left * pairs).reshape(x.shape)
        soft = np.sign(x) * np.maximum(np.abs(x) - h * self.weight, 0.0)
        return soft / (1 + h * self.weight) if self.g == "elastic" else soft

    def mapping(self, x):
        """The gradient mapping of step 1/envelope."""
        t = 1 / self.envelope
        return (x - self.shrink(x - t * self.gradient(x), t)) / t


CONFIGS = {
    "l1": Config(),
    "l1, noisy gradients": Config(gradient_variance=0.3),
    "l1, fixed temperature": Config(f="cauchy", beta=0.0),
    "l1, E h > 1": Config(f="cauchy", beta=0.5, lr=0.45, gradient_variance=0.1),
    "elastic net": Config(f="cauchy", g="elastic", sigma=0.3, gradient_variance=0.3),
    "group lasso": Config(g="group", weight=0.4, gradient_variance=0.3),
    "group lasso, no noise": Config(g="group", sigma=0.0),
    "l1, (0.5, 1)": Config(alpha=0.5, envelope=4.0, spread=1.5, gradient_variance=0.3, lr=0.15),
    "l1, (1, 1)": Config(alpha=1.0, envelope=6.0, spread=2.0, gradient_variance=0.3, lr=0.15),
    "elastic net, (1, 0.5)": Config(
        g="elastic", alpha=1.0, beta=0.5, envelope=6.0, spread=2.0, gradient_variance=0.1, lr=0.15
    ),
}


def simulate(config, seed=0):
    """Replicas of the rule; what each step was, of shape (steps, replicas)."""
    rng = np.random.default_rng(seed)
    shape = (REPLICAS, config.dim)
    x = rng.uniform(-config.box, config.box, shape)
    D = np.full(shape, config.d_init)
    gap, records = config.value(x), []
    for _ in range(config.steps):
        h, nu = config.step(D), config.variances(D)
        squared = np.sum(config.mapping(x) ** 2, 1)
        records.append((h.min(1), h.max(1), nu.max(1), nu.sum(1), squared))
        G = config.gradient(x) + np.sqrt(config.gradient_variance) * rng.standard_normal(shape)
        n = np.sqrt(2 * config.lr) * config.sigma * D ** (-config.beta / 2)
        moved = x - h * G + n * rng.standard_normal(shape)
        x = config.shrink(moved, h.flat[0] if config.alpha == 0 else h)
        D = D + G**2 + config.delta
    names = ("shortest", "longest", "noise", "total_noise", "squared")
    found = dict(zip(names, map(np.array, zip(*records, strict=True)), strict=True))
    return {**found, "f_gap": gap}


@cache
def run_of(name):
    return CONFIGS[name], simulate(CONFIGS[name])


def issue(config, run, *, drop_noise=False, kappa=None, smoothness=1.0, tilts=PROXIMAL_TILTS):
    """The certificate at all times, and the weighted averages that it bounds."""
    constants = {"smoothness": smoothness, "envelope": config.envelope, "tilts": tilts}
    names = ("shortest", "longest", "noise", "total_noise")
    taken = proximal_step(**{name: run[name] for name in names}, **constants, kappa=config.kappa)
    weight = np.cumsum(taken.weight, axis=1)
    found = proximal_certificate(
        sum_weight=weight,
        sum_noise=np.cumsum(taken.noise, axis=1) * (0.0 if drop_noise else 1.0),
        f_gap=run["f_gap"],
        kappa=config.kappa if kappa is None else kappa,
        p=P,
        **constants,
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        average = np.cumsum(taken.weight * run["squared"], axis=1) / weight
    return found, np.where(weight > 0, average, 0.0)


def failures(found, averages):
    """Replicas with any average above the bound, at any time. Each tilt has its own average."""
    best = np.searchsorted(-np.asarray(PROXIMAL_TILTS), -found.tilt)
    truth = np.take_along_axis(averages, best[None], axis=0)[0]
    return int(np.sum(np.any(truth > found.bound, axis=0))), truth


@pytest.mark.parametrize("name", CONFIGS)
def test_proximal_certificate_fails_no_more_often_than_p(name):
    # Null: each replica fails with probability P at most. 400 replicas, 5 sigma.
    config, run = run_of(name)
    found, averages = issue(config, run)
    count, truth = failures(found, averages)
    assert count <= ALLOWED
    assert np.all(np.isfinite(found.bound))
    assert np.all(np.median(found.bound[-1] / truth[-1]) < 40)
    smallest = np.minimum.accumulate(run["squared"], 0)
    assert np.sum(np.any(smallest > found.bound, axis=0)) <= ALLOWED


@pytest.mark.parametrize("lie", ["noise", "f_gap"])
def test_proximal_certificate_with_a_false_sum_is_caught(lie):
    config = Config(f="bowl", weight=0.05, sigma=0.5, beta=0.0)
    if lie == "f_gap":
        config = CONFIGS["group lasso, no noise"]
    run = simulate(config, seed=1)
    assert failures(*issue(config, run))[0] <= ALLOWED
    run["f_gap"] = run["f_gap"] / (10 if lie == "f_gap" else 1)
    assert failures(*issue(config, run, drop_noise=lie == "noise"))[0] > ALLOWED


def test_proximal_page_shows_what_these_runs_measure():
    page = (ROOT / "benchmarks" / "tables" / "theory.md").read_text()
    _, _, *rows = page[page.index("| proximal setting") :].split("\n\n")[0].splitlines()
    for name, row in zip(CONFIGS, rows, strict=True):
        found, averages = issue(*run_of(name))
        count, truth = failures(found, averages)
        shown = [float(cell) for cell in row.strip("|").split("|")[1:]]
        assert shown == [count, round(float(np.median(found.bound[-1] / truth[-1])), 1)]


@pytest.mark.parametrize("tilt", [0.5, 0.125])
def test_proximal_prices_make_a_martingale_and_kappa_is_not_too_large(tilt):
    # With isotropic Gaussian noise and |a| = rho |v| the process behind the proof is a martingale.
    # Null: it passes the line (2 kappa/tilt) log(1/P) with probability P at most. 4000 chains, 5
    # sigma. A line at a tenth of kappa, with the same prices, is passed far more often.
    rng, chains, dim, nu, kappa = np.random.default_rng(7), 4000, 3, 0.02, 0.05
    spread = {"shortest": 0.2, "longest": 0.2, "noise": nu, "total_noise": dim * nu}
    taken = proximal_step(**spread, smoothness=1.0, envelope=3.0, kappa=kappa, tilts=(tilt,))
    rho, v, total, largest = 0.6, 0.2, np.zeros(chains), np.zeros(chains)
    spent = (1 - rho**2 - taken.weight[0]) * v**2 + taken.noise[0]
    for _ in range(1000):
        w = np.sqrt(nu) * rng.standard_normal((chains, dim))
        total += 2 * rho * v * w[:, 0] + np.sum(w**2, 1) - spent
        largest = np.maximum(largest, total)
    limit = chains * P + 5 * np.sqrt(chains * P * (1 - P))
    passed = [np.sum(largest > 2 * k / tilt * np.log(1 / P)) for k in (kappa, kappa / 10)]
    assert passed[0] <= limit < passed[1]
    assert passed[0] > 0.2 * chains * P


def test_proximal_moment_of_gaussian_noise_is_the_price():
    # E exp(t |w|^2 + b'w) by quadrature in each coordinate, for t = tilt/(2 kappa) and b = 2 t a.
    nus, a, kappa, tilt = np.array([0.3, 0.3]), np.array([0.4, -0.7]), 0.9, 0.5
    t, w = tilt / (2 * kappa), np.linspace(-40, 40, 400_001)
    density = np.exp(-(w**2) / (2 * nus[:, None])) / np.sqrt(2 * np.pi * nus[:, None])
    moments = np.sum(density * np.exp(t * w**2 + 2 * t * a[:, None] * w), 1) * (w[1] - w[0])
    taken = proximal_step(
        shortest=0.5, longest=0.5, noise=0.3, total_noise=0.6, smoothness=0.5, envelope=1.5,
        kappa=kappa, tilts=(tilt,),
    )  # fmt: skip
    rho2 = (1 - 0.5 * (1.5 - 0.5)) ** 2
    square = np.sum(a**2) / rho2
    log = t * ((1 - rho2 - taken.weight[0]) * square + taken.noise[0])
    assert np.sum(np.log(moments)) == pytest.approx(log, rel=1e-9)


def envelope(config, x):
    """The minimizer y of F + E/2 |u - x|^2 by 400 proximal steps, and its value."""
    y, t = x.copy(), 1 / (config.envelope + 1)
    for _ in range(400):
        y = config.shrink(y - t * (config.gradient(y) + config.envelope * (y - x)), t)
    return y, config.value(y) + config.envelope / 2 * np.sum((y - x) ** 2, -1)


@pytest.mark.parametrize("f", ["cosine", "cauchy"])
@pytest.mark.parametrize(
    ("g", "uneven"), [("l1", 1.0), ("l1", 1.8), ("elastic", 1.8), ("group", 1)]
)
def test_proximal_descent_of_the_envelope_holds_for_every_step(f, g, uneven):
    # No chance is involved: the inequality of the proof at 400 points, for any displacement w.
    config = Config(f=f, g=g, envelope=3.0)
    rng = np.random.default_rng(5)
    shape, longest = (REPLICAS, config.dim), rng.uniform(0.02, 0.5, (REPLICAS, 1))
    h = np.repeat(longest, config.dim, 1)
    if uneven > 1:
        h = h / rng.uniform(1, uneven, shape)
        h[:, 0] = longest[:, 0]
    x = rng.uniform(-3, 3, shape) * (rng.random(shape) < 0.8)
    w = rng.standard_normal(shape) * rng.choice([0, 0.01, 0.5], (REPLICAS, 1))
    y, before = envelope(config, x)
    v = x - y
    a = v - h * (3 * v + config.gradient(x) - config.gradient(y))
    after = config.shrink(x - h * config.gradient(x) + w, h[:, :1, None] if g == "group" else h)
    taken = proximal_step(
        shortest=h.min(1), longest=longest[:, 0], noise=0.0, total_noise=0.0, smoothness=1.0,
        envelope=3.0, kappa=0.0, tilts=(0.5,),
    )  # fmt: skip
    inside = taken.noise[0] == 0
    assert inside.sum() > 100
    fall = -taken.weight[0] * np.sum(v**2, 1) + 2 * np.sum(a * w, 1) + np.sum(w**2, 1)
    assert np.all((envelope(config, after)[1] - before - 1.5 * fall)[inside] < 1e-9)
    mapping = np.linalg.norm(config.mapping(x), axis=1)
    assert np.all(mapping <= 4 * np.linalg.norm(v, axis=1) + 1e-9)


def test_proximal_certificate_by_hand():
    # x = 2, f = x^2/2, g = |x|, h = 1/4, no noise: the step goes to shrink(1.5, 1/4) = 1.25.
    # E = 3: rho = 1 - 3/4 + 1/4 = 1/2, r = 3/4. F(2) = 4, so sum w v^2 <= 2/3 * 4, and the bound on
    # G^2 is 16 * (8/3) / (3/4) = 512/9. G = 3 (2 - shrink(4/3, 1/3)) = 3.
    one = proximal_step(
        shortest=0.25, longest=0.25, noise=0.0, total_noise=0.0, smoothness=1.0, envelope=3.0,
        kappa=0.0, tilts=(0.5,),
    )  # fmt: skip
    assert one.weight.tolist() == [0.75]
    constants = {"smoothness": 1.0, "envelope": 3.0, "kappa": 0.0, "tilts": (0.5,)}
    found = proximal_certificate(sum_weight=one.weight, sum_noise=one.noise, f_gap=4.0, **constants)
    assert found.bound == pytest.approx(512 / 9)
    # With noise of variance 0.3 for kappa = 0.6 and tilt 0.5: mu = 1/4, weight = (3/4 - 1/4)/(3/4),
    # price = 0.3 log(4/3) / (1/4), chance = 2 * 0.6 / 0.5 * log(1/p).
    noisy = proximal_step(
        shortest=0.25, longest=0.25, noise=0.3, total_noise=0.3, smoothness=1.0, envelope=3.0,
        kappa=0.6, tilts=(0.5,),
    )  # fmt: skip
    assert noisy.weight[0] == pytest.approx(2 / 3)
    assert noisy.noise[0] == pytest.approx(1.2 * np.log(4 / 3))
    found = proximal_certificate(
        sum_weight=noisy.weight, sum_noise=noisy.noise, f_gap=4.0, p=0.1,
        **{**constants, "kappa": 0.6},
    )  # fmt: skip
    expected = 24 * (8 / 3 + 1.2 * np.log(4 / 3) + 2.4 * np.log(10))
    assert found.bound == pytest.approx(expected)
    assert found.start + found.moved + found.noise == pytest.approx(expected)


def test_proximal_noise_scale_keeps_every_later_step_inside_the_proof():
    # As D grows from d_init, with steps whose spread stays below the one assumed.
    for alpha, beta, lr, C in itertools.product((0, 0.5, 1, 2), (1, 1.5), (0.02, 0.16), (0, 1)):
        config = Config(
            alpha=alpha, beta=beta, lr=lr, gradient_variance=C, envelope=6.0, spread=3.0, sigma=0.7
        )
        D = np.geomspace(1, 1e4, 60)[:, None] * np.array([1.0, 3.0 ** (2 / max(alpha, 0.1))])
        h, nu = config.step(D), config.variances(D)
        taken = proximal_step(
            shortest=h.min(1), longest=h.max(1), noise=nu.max(1), total_noise=nu.sum(1),
            smoothness=1.0, envelope=6.0, kappa=config.kappa, tilts=(0.999, 0.5),
        )  # fmt: skip
        assert np.all(np.isfinite(taken.noise))
        assert np.all(taken.weight > 0)


def test_proximal_step_outside_the_proof_has_an_infinite_price():
    inside = {
        "shortest": 0.2, "longest": 0.2, "noise": 0.1, "total_noise": 0.3, "smoothness": 1.0,
        "envelope": 3.0, "kappa": 0.2,
    }  # fmt: skip
    assert np.all(np.isfinite(proximal_step(**inside).noise))
    for change in (
        {"longest": 0.51},
        {"longest": 0.5, "shortest": 0.1},
        {"noise": 0.3},
        {"kappa": 0.0},
    ):
        taken = proximal_step(**{**inside, **change}, tilts=(0.5,))
        assert taken.noise.tolist() == [np.inf]
        assert taken.weight.tolist() == [0.0]
    sums = {"f_gap": 1.0, "smoothness": 1.0, "envelope": 3.0, "kappa": 0.2, "tilts": (0.5, 0.1)}
    found = proximal_certificate(sum_weight=[5.0, 4.0], sum_noise=[np.inf, 2.0], **sums)
    assert found.tilt == 0.1
    assert np.isfinite(found.bound)
    lost = proximal_certificate(sum_weight=[5.0, 4.0], sum_noise=[np.inf, np.inf], **sums)
    assert lost.bound == np.inf


def test_proximal_certificate_rounding_is_the_root_of_its_equation():
    base = {"sum_weight": [2.0], "sum_noise": [0.3], "f_gap": 1.0, "smoothness": 1.0}
    base |= {"envelope": 3.0, "kappa": 0.1, "tilts": (0.5,)}
    exact = proximal_certificate(**base).bound * 2 / 16
    for lost, drift in itertools.product((0.0, 1e-9, 0.3, 50.0), (0.0, 0.2)):
        found = proximal_certificate(**base, sum_sq_rounding=[lost], sum_rounding=drift)
        X = found.bound * 2 / 16
        assert pytest.approx(exact + 2 * drift + 2 * np.sqrt(X * lost)) == X
        parts = found.start + found.moved + found.noise + found.rounding
        assert parts == pytest.approx(found.bound)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p": 1.0}, "p=1.0: need 0 < p < 1"),
        ({"envelope": 1.0}, "envelope=1.0: need a finite number above smoothness=1.0"),
        ({"tilts": (1.0,)}, "each between 0 and 1"),
        ({"sum_weight": [1.0, 1.0]}, "a first axis of 1 tilts"),
        ({"kappa": -1.0}, "kappa=-1.0"),
        ({"sum_noise": [float("nan")]}, "sum_noise=nan"),
    ],
)
def test_proximal_certificate_refuses_what_is_not_defined(change, message):
    base = {"sum_weight": [2.0], "sum_noise": [0.3], "f_gap": 1.0, "smoothness": 1.0}
    base |= {"envelope": 3.0, "kappa": 0.1, "tilts": (0.5,)}
    with pytest.raises(ValueError, match=message):
        proximal_certificate(**{**base, **change})


def test_proximal_noise_scale_refuses_steps_that_do_not_contract():
    for longest, spread in ((0.5, 1.0), (0.1, 3.0)):
        with pytest.raises(ValueError, match=r"smoothness \* spread < envelope"):
            proximal_noise_scale(0.1, longest, smoothness=1.0, envelope=3.0, spread=spread)
