"""The playground computes what the library computes, and survives whatever is typed into it."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gaussian_noise import with_gaussian_noise
from helpers import ROOT
from torch import Tensor

import asgld
from asgld import noise, reference
from asgld.oracle import Oracle
from asgld.problems import Problem, problem
from asgld.run import run

FOLDER = ROOT / "docs" / "playground"
ADDRESS = "http://playground.test/"

# What a landscape of the page is in the library. The others are in FUNCTIONS_ALONE.
PROBLEMS: dict[str, Problem] = {
    "strict-saddle": problem("strict-saddle", dim=2),
    "monkey-saddle": problem("monkey-saddle"),
    "octopus": problem("octopus", dim=2, tau=1.0, curvature=1.0),
    "likelihood": problem("variance"),
}
SETTINGS = {
    "alpha": 0.0, "beta": 1.0, "sigma": 0.1, "lr": 0.1, "delta": 0.01, "d_init": 1.0,
    "gradient_noise": 0.0, "chains": 5, "seed": 3,
}  # fmt: skip


# ----------------------------------------------------------------------------------------------
# Running the modules: by node, else in Chromium
# ----------------------------------------------------------------------------------------------

Run = Callable[..., Any]

# Numbers that JSON lacks travel as words.
_ENCODE = 'JSON.stringify(result, (_, v) => typeof v === "number" && !isFinite(v) ? String(v) : v)'


def _restore(value: Any) -> Any:
    if isinstance(value, list):
        return [_restore(entry) for entry in value]
    if isinstance(value, dict):
        return {name: _restore(entry) for name, entry in value.items()}
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


@pytest.fixture(scope="session")
def javascript(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the body of an async function of (load, given): `load("noise")` imports a module."""
    if node := shutil.which("node"):
        script = tmp_path_factory.mktemp("javascript") / "run.mjs"

        def by_node(body: str, **given: Any) -> Any:
            script.write_text(
                f"const load = (name) => import({json.dumps(FOLDER.as_uri())} + `/${{name}}.mjs`);"
                f"const result = await (async (load, given) => {{{body}}})(load, "
                f"{json.dumps(given)}); console.log({_ENCODE});"
            )
            # The limit is there to end a hang, not to measure.
            done = subprocess.run(
                [node, script], check=False, capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, done.stderr
            return _restore(json.loads(done.stdout))

        return by_node

    page = request.getfixturevalue("browser").new_page()
    page.route(ADDRESS + "**", _serve)
    page.goto(ADDRESS)

    def by_browser(body: str, **given: Any) -> Any:
        code = (
            f"async (given) => {{ const load = (name) => import(`/${{name}}.mjs`);"
            f"const result = await (async (load, given) => {{{body}}})(load, given);"
            f"return {_ENCODE}; }}"
        )
        return _restore(json.loads(page.evaluate(code, given)))

    return by_browser


def _serve(route: Any) -> None:
    name = route.request.url.removeprefix(ADDRESS)
    if name.endswith(".mjs"):
        route.fulfill(body=(FOLDER / name).read_text(), content_type="text/javascript")
    else:
        route.fulfill(body="", content_type="text/html")


# ----------------------------------------------------------------------------------------------
# Noise and rule
# ----------------------------------------------------------------------------------------------


def test_words_equal_the_library_s(javascript: Run) -> None:
    rng = random.Random(0)
    cases = [(0, 0, 0, 0), (2**53 - 1, 2**32 - 1, 2**32 - 1, 2**40 + 7)]
    cases += [
        (rng.randrange(2**53), rng.randrange(2**32), rng.randrange(2**32), rng.randrange(2**44))
        for _ in range(500)
    ]
    found = javascript(
        """const { blockWords } = await load("noise"), out = new Uint32Array(4);
        return given.cases.map((one) => { blockWords(...one, out); return [...out]; });""",
        cases=cases,
    )
    for (seed, stream, step, block), four in zip(cases, found, strict=True):
        index = 4 * np.uint64(block) + np.arange(4, dtype=np.uint64)
        assert four == noise.words(seed, stream, step, index).tolist()


@pytest.mark.parametrize("count", [1, 2, 7, 400])
def test_normals_equal_the_library_s_to_rounding(javascript: Run, count: int) -> None:
    found = javascript(
        """const { fillNormals } = await load("noise"), out = new Float64Array(given.count);
        fillNormals(out, 12345678901, 0, 77);
        return [...out];""",
        count=count,
    )
    np.testing.assert_allclose(
        found, noise.normal(12345678901, 0, 77, np.arange(count)), rtol=1e-13
    )


_PATH = """
const { Chains } = await load("rule"), { LANDSCAPES } = await load("landscapes");
const chains = new Chains(given.settings, given.start), path = [];
for (let k = 0; k < given.steps; k++) {
  chains.advance(LANDSCAPES[given.landscape]);
  path.push([...chains.x]);
}
const metric = [...Array(chains.count).keys()].flatMap((chain) => [...chains.metricOf(chain)]);
return { path, metric, temperature: metric.map((value) => chains.temperatureAt(value)) };
"""


@pytest.mark.parametrize(
    ("landscape", "start", "knobs"),
    [
        ("strict-saddle", [0.0, 0.0], {}),
        ("likelihood", [0.0, 0.0], {"alpha": 1.0, "sigma": 0.3, "delta": 0.1, "seed": 2**40 + 9}),
        ("octopus", [0.0, 0.0], {"alpha": 0.7, "beta": 1.3, "lr": 0.02, "d_init": 2.0}),
        ("monkey-saddle", [0.0, 0.0], {"alpha": 2.0, "beta": 2.0, "lr": 0.02, "sigma": 0.3}),
    ],
)
def test_path_equals_the_library_s_for_1000_steps(
    javascript: Run, landscape: str, start: list[float], knobs: dict[str, float]
) -> None:
    settings = {**SETTINGS, **knobs}
    found = javascript(_PATH, settings=settings, landscape=landscape, start=start, steps=1000)
    f = PROBLEMS[landscape]
    x = torch.tensor([start], dtype=torch.float64).repeat(SETTINGS["chains"], 1)
    options: dict[str, Any] = {
        name: settings[name] for name in ("lr", "alpha", "beta", "sigma", "delta", "d_init", "seed")
    }
    optimizer = asgld.ASGLD([x], **options)
    path = []
    for _ in range(1000):
        x.grad = f.grad(x)
        optimizer.step()
        path.append(x.flatten().tolist())
    np.testing.assert_allclose(found["path"], path, atol=1e-6, rtol=0)
    metric = optimizer.state[x]["sum"] + settings["d_init"] + 1000 * settings["delta"]
    np.testing.assert_allclose(found["metric"], metric.flatten(), rtol=1e-6)
    heat = asgld.theory.temperature(metric, settings["alpha"], settings["beta"], settings["sigma"])
    np.testing.assert_allclose(found["temperature"], np.ravel(heat), rtol=1e-6)


# For each mode of the page: a landscape, its start, the knobs, and the reference's names for them.
MODES: dict[str, tuple[str, list[float], dict[str, Any], dict[str, Any]]] = {
    "proximal, alpha 0": (
        "least-squares", [-1.4, 1.5], {"l1": 0.8, "lr": 0.02, "sigma": 0.2},
        {"prox": reference.l1(0.8)},
    ),
    "proximal, in the metric": (
        "tilted-saddle", [0.3, 0.4],
        {"l1": 0.3, "alpha": 1.3, "lr": 0.05, "gradient_noise": 0.3},
        {"prox": reference.l1(0.3)},
    ),
    "fixed temperature": (
        "strict-saddle", [0.0, 0.0], {"beta": 0.0, "sigma": 0.35, "lr": 0.02}, {},
    ),
    "D per matrix": (
        "tilted-saddle", [0.3, 0.3], {"shape": "left", "alpha": 1.0, "lr": 0.05},
        {"shape": "left"},
    ),
    "D per matrix, other exponents": (
        "monkey-saddle", [0.0, 0.0],
        {"shape": "left", "alpha": 0.7, "beta": 1.6, "lr": 0.02, "sigma": 0.3,
         "gradient_noise": 0.2},
        {"shape": "left"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_mode_follows_the_reference_on_the_same_words(javascript: Run, mode: str) -> None:
    landscape, start, knobs, options = MODES[mode]
    settings = {**SETTINGS, **knobs}
    found = javascript(_PATH, settings=settings, landscape=landscape, start=start, steps=600)
    count = int(settings["chains"])

    def draws(stream: int, k: int) -> npt.NDArray[np.float64]:
        return noise.normal(3, stream, k, np.arange(2 * count)).reshape(-1, 1)

    steps = itertools.count()

    def gradient(column: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        exact = _gradient_of(landscape)(torch.from_numpy(column.reshape(-1, 2))).numpy()
        noisy = settings["gradient_noise"] * draws(0x6A55, next(steps))
        return np.asarray(exact.reshape(-1, 1) + noisy)

    # A column of blocks: the two rows of a chain are its matrix.
    if options.get("shape") == "left":
        options = {**options, "blocks": count}
    names = ("lr", "alpha", "beta", "sigma", "delta", "d_init")
    iterates = reference.asgld(
        gradient,
        np.tile(np.array(start), count).reshape(-1, 1),
        lambda k: draws(0, k),
        **{name: settings[name] for name in names},
        **options,
    )
    path = [next(iterates).ravel() for _ in range(600)]
    np.testing.assert_allclose(found["path"], path, atol=1e-8, rtol=0)
    zeros = np.array(found["path"]) == 0.0
    np.testing.assert_array_equal(zeros, np.array(path) == 0.0)
    assert zeros.any() == ("prox" in options)


def test_d_per_matrix_is_an_ellipse_with_its_axes(javascript: Run) -> None:
    settings = {**SETTINGS, "shape": "left", "alpha": 1.4, "chains": 3}
    gradients = np.random.default_rng(1).normal(size=(4, 3, 2)) @ np.array([[2.0, 1.0], [0.0, 0.5]])
    found = javascript(
        """const { Chains } = await load("rule"), chains = new Chains(given.settings, [0, 0]);
        for (const rows of given.gradients) {
          let chain = 0;
          chains.advance({ gradient: (x, y, out) => out.set(rows[chain++]) });
        }
        return [0, 1, 2].map((chain) => chains.ellipseOf(chain));""",
        settings=settings,
        gradients=gradients.tolist(),
    )
    for chain, (first, second, angle) in enumerate(found):
        metric = (1.0 + 4 * 0.01) * np.eye(2) + sum(np.outer(g, g) for g in gradients[:, chain])
        turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        # The ellipse is the image of the unit circle under D^(-alpha/2).
        image = turn @ np.diag([first, second]) @ turn.T
        values, vectors = np.linalg.eigh(metric)
        np.testing.assert_allclose(image, (vectors * values**-0.7) @ vectors.T, atol=1e-12)


def test_noisy_gradients_are_those_of_the_experiments(javascript: Run) -> None:
    settings = {**SETTINGS, "alpha": 1.0, "gradient_noise": 0.5}
    found = javascript(
        _PATH, settings=settings, landscape="strict-saddle", start=[0.1, 0.2], steps=300
    )
    names = ("lr", "alpha", "beta", "sigma", "delta", "d_init")
    method = with_gaussian_noise("asgld", variance=0.25, **{name: settings[name] for name in names})
    start = torch.tensor([[0.1, 0.2]], dtype=torch.float64).repeat(5, 1)
    result = run(Oracle(PROBLEMS["strict-saddle"]), method, start, max_steps=300, seed=3)
    np.testing.assert_allclose(found["path"][-1], result.x.flatten(), atol=1e-6, rtol=0)


def test_chains_leave_the_saddle_with_noise_and_stay_without(javascript: Run) -> None:
    # From an exact saddle every AGLD chain is at a minimum after 500 steps, whatever its noise: the
    # temperature is then 1/500 of the barrier. ASG sees a zero gradient for ever.
    for preset, settings in (("AGLD", {}), ("ASG", {"alpha": 1.0, "sigma": 0.0})):
        ends = javascript(
            _PATH,
            settings={**SETTINGS, **settings, "chains": 200},
            landscape="strict-saddle",
            start=[0.0, 0.0],
            steps=500,
        )["path"][-1]
        along = np.abs(np.reshape(ends, (200, 2))[:, 0])
        assert (along > 0.5).all() if preset == "AGLD" else (along == 0.0).all()


def test_chain_that_overflows_rests_and_is_counted(javascript: Run) -> None:
    found = javascript(
        """const { Chains } = await load("rule"), { LANDSCAPES } = await load("landscapes");
        const chains = new Chains(given.settings, [30, 0]);
        for (let k = 0; k < 50; k++) chains.advance(LANDSCAPES["strict-saddle"]);
        return [[...chains.x], chains.numLost];""",
        settings={**SETTINGS, "lr": 5.0},
    )
    assert np.isfinite(found[0]).all()
    assert found[1] == SETTINGS["chains"]


# ----------------------------------------------------------------------------------------------
# Landscapes and rates
# ----------------------------------------------------------------------------------------------

_EVALUATE = """
const { LANDSCAPES } = await load("landscapes"), out = [0, 0];
return given.points.map(([x, y]) => {
  LANDSCAPES[given.landscape].gradient(x, y, out);
  return [LANDSCAPES[given.landscape].value(x, y), ...out];
});
"""


def _himmelblau(points: Tensor) -> Tensor:
    x, y = points.unbind(-1)
    return (x**2 + y - 11) ** 2 + (x + y**2 - 7) ** 2


def _tilted_saddle(points: Tensor) -> Tensor:
    # In turned coordinates u, v it is 10 u^2 + v^4/4 - v^2/2.
    turn = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64) / math.sqrt(2)
    u, v = (points @ turn).unbind(-1)
    return 10 * u**2 + v**4 / 4 - v**2 / 2


def _least_squares(points: Tensor) -> Tensor:
    away = points - torch.tensor([1.2, 0.4], dtype=torch.float64)
    form = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    return torch.einsum("...i,ij,...j->...", away, form, away) / 2


FUNCTIONS_ALONE: dict[str, Callable[[Tensor], Tensor]] = {
    "himmelblau": _himmelblau,
    "tilted-saddle": _tilted_saddle,
    "least-squares": _least_squares,
}


def _value_of(landscape: str) -> Callable[[Tensor], Tensor]:
    return FUNCTIONS_ALONE.get(landscape) or PROBLEMS[landscape].value


def _gradient_of(landscape: str) -> Callable[[Tensor], Tensor]:
    if landscape in PROBLEMS:
        return PROBLEMS[landscape].grad
    return torch.func.grad(lambda points: FUNCTIONS_ALONE[landscape](points).sum())


@pytest.mark.parametrize("landscape", [*PROBLEMS, *FUNCTIONS_ALONE])
def test_landscape_equals_the_problem(javascript: Run, landscape: str) -> None:
    points = np.random.default_rng(0).uniform(-4, 4, size=(300, 2))
    found = np.array(javascript(_EVALUATE, points=points.tolist(), landscape=landscape))
    x = torch.from_numpy(points)
    value, grad = _value_of(landscape)(x), _gradient_of(landscape)(x)
    np.testing.assert_allclose(found[:, 0], value, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found[:, 1:], grad, rtol=1e-12, atol=1e-11)


def test_landscapes_start_where_they_say(javascript: Run) -> None:
    starts = javascript(
        """const { LANDSCAPES } = await load("landscapes");
        const starts = Object.entries(LANDSCAPES).map(([name, { start }]) => [name, start]);
        return Object.fromEntries(starts);"""
    )
    assert set(starts) == {*PROBLEMS, *FUNCTIONS_ALONE}
    # These have no saddle; the paper starts the first at x = (1, 1).
    variances = PROBLEMS["likelihood"].variances(torch.tensor(starts.pop("likelihood")))
    assert variances.tolist() == [1.0, 1.0]
    assert starts.pop("least-squares") == [-1.4, 1.5]
    # On the line from which the way down leads to the saddle.
    slope = _gradient_of("tilted-saddle")(torch.tensor(starts.pop("tilted-saddle")).double())
    assert slope[0] == pytest.approx(slope[1].item())
    assert slope[0] > 1.0
    for name, start in starts.items():
        point = torch.tensor(start, dtype=torch.float64)
        slope = _gradient_of(name)(point)
        known = PROBLEMS[name].hessian if name in PROBLEMS else torch.func.hessian(_value_of(name))
        hessian = known(point)
        lowest = torch.linalg.eigvalsh(hessian)[0]
        assert slope.norm() < 1e-7
        assert lowest < -0.9 if name != "monkey-saddle" else lowest == 0.0


def test_penalty_is_part_of_what_is_drawn_and_its_minimum_is_on_the_axis(javascript: Run) -> None:
    points = [[0.6, 0.0], [0.6, 0.01], [0.6, -0.01], [0.61, 0.0], [0.59, 0.0]]
    values = javascript(
        """const { LANDSCAPES, objectiveOf } = await load("landscapes");
        const f = LANDSCAPES["least-squares"], value = objectiveOf(f, 0.8);
        return given.points.map(([x, y]) => value(x, y));""",
        points=points,
    )
    x = torch.tensor(points, dtype=torch.float64)
    np.testing.assert_allclose(values, _least_squares(x) + 0.8 * x.abs().sum(-1), rtol=1e-12)
    assert values[0] < min(values[1:])


def test_rates_equal_the_theory_on_a_grid(javascript: Run) -> None:
    alphas, betas = np.linspace(0, 2, 41).tolist(), np.linspace(0, 2.5, 51).tolist()
    found = javascript(
        """const { rate } = await load("rates"), all = {};
        const both = (method) => [[method, "published"], [method, "corrected"]];
        for (const [method, version] of ["asgld", "agld", "asg"].flatMap(both)) {
          all[`${method} ${version}`] = given.alphas.map((a) => given.betas.map((b) => {
            const { exponent, logPower, dominant, region, formula } = rate(a, b, method, version);
            return [exponent, logPower, dominant, region, formula];
          }));
        }
        return all;""",
        alphas=alphas,
        betas=betas,
    )
    a, b = np.meshgrid(alphas, betas, indexing="ij")
    for name, rows in found.items():
        method, version = name.split()
        expected = asgld.theory.rate(a, b, method=method, version=version)
        numbers = np.array([[entry[:2] for entry in row] for row in rows], dtype=float)
        words = np.array([[entry[2:] for entry in row] for row in rows])
        np.testing.assert_allclose(numbers[..., 0], expected.exponent, atol=1e-12)
        np.testing.assert_array_equal(numbers[..., 1], expected.log_power)
        np.testing.assert_array_equal(words[..., 0], expected.dominant)
        np.testing.assert_array_equal(words[..., 1], expected.region)
        np.testing.assert_array_equal(words[..., 2], expected.formula)


# ----------------------------------------------------------------------------------------------
# Formulas
# ----------------------------------------------------------------------------------------------

FUNCTIONS = ("sin", "cos", "tan", "atan", "sinh", "cosh", "tanh", "exp", "log", "sqrt", "abs")


def _random_formula(rng: random.Random, depth: int) -> str:
    kind = (
        rng.choice(["leaf", "binary", "binary", "call", "power", "negative"]) if depth else "leaf"
    )
    if kind == "leaf":
        return rng.choice(["x", "y", "x", "y", "pi", "e", str(rng.randint(1, 9)), "0.25", "1e-1"])
    inside = _random_formula(rng, depth - 1)
    if kind == "binary":
        return f"{inside} {rng.choice('+-*/')} {_random_formula(rng, depth - 1)}"
    if kind == "call":
        return f"{rng.choice(FUNCTIONS)}({inside})"
    if kind == "power":
        return f"({inside})^{rng.choice(['2', '3', '-1', '0.5', 'x', '-y'])}"
    return rng.choice([f"-{inside}", f"({inside})"])


def test_formulas_have_python_s_meaning_and_torch_s_gradient(javascript: Run) -> None:
    rng = random.Random(1)
    texts = [_random_formula(rng, 4) for _ in range(600)]
    texts = [text for text in texts if re.search(r"\b[xy]\b", text)]
    x, y = 0.7, 1.3
    found = javascript(
        """const { parseFormula, FormulaError } = await load("formula"), out = [0, 0];
        return given.texts.map((text) => {
          try {
            const f = parseFormula(text);
            f.gradient(given.x, given.y, out);
            return [f.value(given.x, given.y), ...out, f.torch];
          } catch (error) {
            if (error instanceof FormulaError) return null;
            throw error;
          }
        });""",
        texts=texts,
        x=x,
        y=y,
    )
    names = {name: getattr(np, name) for name in FUNCTIONS if name != "atan"}
    names |= {"atan": np.arctan, "x": np.float64(x), "y": np.float64(y), "pi": np.pi, "e": np.e}
    num_compared = 0
    for text, answer in zip(texts, found, strict=True):
        if answer is None:  # a constant part that is not finite, such as log(-1)
            continue
        with np.errstate(all="ignore"):
            value = float(eval(text.replace("^", "**"), {}, dict(names)))
        point = torch.tensor([x, y], dtype=torch.float64, requires_grad=True)
        a, b = point.unbind()
        result = eval(answer[3], {"torch": torch, "x": a, "y": b})
        result.backward()
        exact = [value, *point.grad.tolist()]
        if all(math.isfinite(v) and abs(v) < 1e6 for v in (*exact, *answer[:3])):
            np.testing.assert_allclose(answer[:3], exact, rtol=1e-7, atol=1e-9, err_msg=text)
            num_compared += 1
    assert num_compared > 250


@pytest.mark.parametrize(
    ("text", "underlined", "reason"),
    [
        ("x^2 + (y", "(", "never closed"),
        ("x^2 + y)", ")", "never opened"),
        ("x + foo", "foo", "unknown name"),
        ("sin x", "sin", "needs a parenthesis"),
        ("x + * y", "*", "expected a number"),
        ("x + ", "", "at the end"),
        ("x y z", "z", "unknown name"),
        ("x = 2", "=", "means nothing"),
        ("x + 1/0", "/", "not a finite number"),
        ("1 + 2", "1 + 2", "constant"),
        ("", "", "type a formula"),
        ("x 2", "2", "expected an operator"),
        ("alert(1)", "alert", "unknown name"),
        ("constructor", "constructor", "unknown name"),
        ("x.constructor", ".", "means nothing"),
        ("(" * 70 + "x" + ")" * 70, "(", "nested deeper"),
        ("x+" * 400 + "x", None, "longer than"),
    ],
)
def test_bad_formula_is_underlined_with_its_reason(
    javascript: Run, text: str, underlined: str | None, reason: str
) -> None:
    message, start, end = javascript(
        """const { parseFormula } = await load("formula");
        try { parseFormula(given.text); }
        catch (error) { return [error.message, error.start, error.end]; }""",
        text=text,
    )
    assert reason in message
    if underlined is not None:
        assert text[start:end] == underlined


def test_ten_thousand_strings_neither_break_nor_hang_the_parser(javascript: Run) -> None:
    rng = random.Random(2)
    pieces = ["x", "y", "(", ")", "+", "-", "*", "/", "^", "**", " ", "2", ".5", "1e9", "e", "pi",
              *(f"{name}(" for name in FUNCTIONS)]  # fmt: skip
    strange = [chr(code) for code in (*range(32, 127), 0, 9, 10, 0xE9, 0x3B1, 0x2028, 0x1F600)]

    def one(kind: int) -> str:
        if kind == 0:
            return "".join(rng.choice(pieces) for _ in range(rng.randrange(40)))
        if kind == 1:
            return "".join(rng.choice(strange) for _ in range(rng.randrange(30)))
        if kind == 2:
            return rng.choice(["(", "-", "x^", "sin(", "x**-", "2x", "x+"]) * rng.randrange(1, 600)
        text = list(_random_formula(rng, 4))
        text[rng.randrange(len(text))] = rng.choice(rng.choice([pieces, pieces, strange]))
        return "".join(text)

    texts = [one(n % 4) for n in range(10_000)]
    outcome = javascript(
        """const { parseFormula, FormulaError } = await load("formula"), out = [0, 0];
        const count = { read: 0, refused: 0 };
        for (const text of given.texts) {
          try {
            const f = parseFormula(text);
            f.gradient(0.3, -0.7, out);
            if (typeof f.value(0.3, -0.7) !== "number" || typeof out[1] !== "number") throw text;
            count.read++;
          } catch (error) {
            const report = new Error(`${JSON.stringify(text)}: ${error}`);
            if (!(error instanceof FormulaError)) throw report;
            const { start, end, message } = error;
            if (!(0 <= start && start <= end && end <= text.length && message)) throw report;
            count.refused++;
          }
        }
        return count;""",
        texts=texts,
    )
    assert outcome["read"] > 200
    assert outcome["refused"] > 5000


def test_nothing_typed_is_ever_run_as_code() -> None:
    for module in FOLDER.glob("*.mjs"):
        source = module.read_text()
        assert not re.search(
            r"\beval\b|\bFunction\s*\(|innerHTML|outerHTML|document\.write|import\(", source
        )
        # Nothing is fetched either.
        assert not re.search(r"\bfetch\b|XMLHttpRequest|https?://", source)


# ----------------------------------------------------------------------------------------------
# Densities
# ----------------------------------------------------------------------------------------------

_BINS = 80


def _normal_masses(mean: float, sd: float, half: float) -> npt.NDArray[np.float64]:
    """Masses of a normal density in the bins of a view around 0, scaled to sum to one."""
    edges = (np.linspace(-half, half, _BINS + 1) - mean) / sd
    masses = np.diff([math.erf(edge / math.sqrt(2)) for edge in edges])
    return np.asarray(masses / masses.sum())


def test_target_is_the_normalized_density_of_the_temperature(javascript: Run) -> None:
    # exp(-f / T) of f = 2 (x - 1/2)^2 + y^2 / 2 at T = 1/4 is normal, with sds 1/4 and 1/2.
    target, ofx, ofy, clipped = javascript(
        """const { marginals, targetDensity } = await load("density");
        const f = (x, y) => 2 * (x - 0.5) ** 2 + y ** 2 / 2;
        const target = targetDensity(f, [0, 0, 3], 0.25), [ofX, ofY] = marginals(target);
        const half = (x, y) => (x < 0.5 ? NaN : f(x, y));
        return [[...target], [...ofX], [...ofY], [...targetDensity(half, [0, 0, 3], 0.25)]];"""
    )
    ofx_expected, ofy_expected = _normal_masses(0.5, 0.25, 3.0), _normal_masses(0.0, 0.5, 3.0)
    # Rows are counted from the top.
    expected = np.outer(ofy_expected[::-1], ofx_expected)
    np.testing.assert_allclose(np.reshape(target, (_BINS, _BINS)), expected, atol=2e-5)
    np.testing.assert_allclose(ofx, ofx_expected, atol=5e-4)
    np.testing.assert_allclose(ofy, ofy_expected, atol=5e-4)
    assert sum(clipped) == pytest.approx(1.0)


def test_visits_are_counted_from_the_middle_of_the_run_on(javascript: Run) -> None:
    rng = np.random.default_rng(2)
    positions = rng.normal(size=(100, 2 * 7))
    density = javascript(
        """const { Visits } = await load("density"), visits = new Visits([0.5, -0.25, 1.5]);
        given.positions.forEach((x, k) => visits.add({ x, step: k + 1, count: 7 }));
        return [...visits.density()];""",
        positions=positions.tolist(),
    )
    # Steps 32 to 100: since the last power of two but one.
    x, y = positions[31:].reshape(-1, 2).T
    edges = np.linspace(-1.5, 1.5, _BINS + 1)
    counts, _, _ = np.histogram2d(-y, x, bins=(0.25 + edges, 0.5 + edges))
    np.testing.assert_allclose(np.reshape(density, counts.shape), counts / len(x), atol=1e-15)


def test_distance_is_the_mass_to_move_and_lines_hold_their_share(javascript: Run) -> None:
    found = javascript(
        """const { BINS, distance, massLevels, smooth } = await load("density");
        const one = (entries) => Object.assign(new Float64Array(BINS * BINS), entries);
        const a = one({ 0: 0.7, 6399: 0.3 });
        const spread = smooth(one({ 0: 0.25, 3240: 0.75 }));
        return {
          same: distance(a, a), moved: distance(a, one({ 0: 0.5, 6399: 0.5 })),
          near: distance(a, one({ 3: 0.7, 6399: 0.3 })), out: distance(a, one({ 0: 0.7 })),
          levels: massLevels(one({ 5: 0.5, 6: 0.3, 7: 0.2 }), [0.4, 0.5, 0.75, 0.95]),
          total: spread.reduce((sum, mass) => sum + mass), peak: spread[3240],
        };"""
    )
    assert found["levels"] == [0.5, 0.5, 0.3, 0.2]
    # Outside the view is a place too. Bins of the same block are one place.
    distances = [found[name] for name in ("same", "moved", "near", "out")]
    np.testing.assert_allclose(distances, [0.0, 0.2, 0.0, 0.3], atol=1e-15)
    # A blur moves mass to neighbors. Beyond the border it sees the border again.
    assert found["peak"] == pytest.approx(0.75 * (6 / 16) ** 2)
    assert found["total"] == pytest.approx(0.75 + 0.25 * (17 / 16) ** 2)


def test_chains_of_fixed_temperature_follow_the_density_and_others_do_not(javascript: Run) -> None:
    # On f = x^2/2 + y^2 the chains are normal, of variance T / (c (1 - lr c / 2)), c the curvature.
    # 400 chains at step 400 are independent, and have forgotten their start: null of an estimated
    # variance, its standard error sqrt(2 / 400), a threshold of 5 of them; false alarms 1e-6.
    body = """
    const { Chains } = await load("rule"), { typedLandscape } = await load("landscapes");
    const { distance, targetDensity, Visits } = await load("density");
    const f = typedLandscape("x^2/2 + y^2"), view = [0, 0, 3], visits = new Visits(view);
    const chains = new Chains(given.settings, [0, 0]), T = given.settings.sigma ** 2;
    for (let k = 0; k < 400; k++) {
      chains.advance(f);
      visits.add(chains);
    }
    return [[...chains.x], distance(targetDensity(f.value, view, T), visits.density())];
    """
    settings = {**SETTINGS, "beta": 0.0, "sigma": 0.6, "lr": 0.05, "chains": 400}
    ends, apart = javascript(body, settings=settings)
    variances = np.var(np.reshape(ends, (400, 2)), axis=0)
    for variance, curvature in zip(variances, (1.0, 2.0), strict=True):
        expected = 0.36 / (curvature * (1 - 0.05 * curvature / 2))
        assert abs(variance / expected - 1) < 5 * math.sqrt(2 / 400)
    cooled = javascript(body, settings={**settings, "beta": 1.0})[1]
    heated = javascript(body, settings={**settings, "gradient_noise": 3.0})[1]
    assert apart < 0.05 < 0.1 < min(cooled, heated)


# ----------------------------------------------------------------------------------------------
# Settings
# ----------------------------------------------------------------------------------------------


def test_absurd_settings_are_clamped_and_said(javascript: Run) -> None:
    asked = [("lr", "1e9"), ("alpha", "-3"), ("chains", "12.5"), ("sigma", "abc"),
             ("seed", "1e300"), ("beta", "Infinity"), ("delta", "-0.1"), ("d_init", "0"),
             ("chains", "")]  # fmt: skip
    found = javascript(
        """const { clampKnob } = await load("settings");
        return given.asked.map(([name, value]) => clampKnob(name, value));""",
        asked=asked,
    )
    values = [value for value, _ in found]
    assert values == [10, 0, 13, 0.1, 2**53 - 1, 8, 0, 1e-8, 60]
    assert all(message for _, message in found)
    assert javascript(
        'const { clampKnob } = await load("settings"); return clampKnob("lr", "0.25");'
    ) == [0.25, ""]


def test_link_restores_the_setting(javascript: Run) -> None:
    body = """
    const { fromHash, toHash } = await load("settings");
    const [state, messages] = fromHash(given.hash);
    return { name: state.landscapeName, formula: state.landscape.formula, settings: state.settings,
             start: state.start, view: state.view, messages, again: toHash(state) };
    """
    link = "#formula=x%5E2+-+y%5E2&alpha=0.5&chains=7&start=0.25%2C-1&view=0%2C0%2C2&seed=9"
    state = javascript(body, hash=link)
    assert (state["name"], state["formula"]) == ("formula", "x^2 - y^2")
    assert (state["start"], state["view"], state["messages"]) == ([0.25, -1], [0, 0, 2], [])
    assert state["settings"] | {"alpha": 0.5, "chains": 7, "seed": 9} == state["settings"]
    assert javascript(body, hash=state["again"]) == state

    broken = javascript(body, hash="#landscape=moon&lr=1e9&start=NaN,1e99&view=,,-4&alpha=x")
    assert broken["name"] == "strict-saddle"
    assert len(broken["messages"]) == 3
    assert np.isfinite([*broken["start"], *broken["view"]]).all()
    assert broken["view"][2] > 0
    hostile = javascript(body, hash="#formula=%3Cscript%3E&landscape=octopus&__proto__=1")
    assert hostile["name"] == "strict-saddle"
    assert "refused" in hostile["messages"][0]


def test_penalty_and_d_per_matrix_exclude_each_other(javascript: Run) -> None:
    body = """
    const { fromHash, reconcile } = await load("settings");
    const [{ settings }, messages] = fromHash("#shape=left&l1=0.5&goal=moon");
    const asked = { shape: "left", l1: 0.5 }, told = reconcile(asked, true);
    return { settings, messages, asked, told };
    """
    found = javascript(body)
    assert (found["settings"]["shape"], found["settings"]["l1"]) == ("coordinate", 0.5)
    assert found["settings"]["goal"] == "descend"
    assert len(found["messages"]) == 2
    assert (found["asked"], bool(found["told"])) == ({"shape": "left", "l1": 0}, True)


def test_every_scene_is_recognized_on_every_landscape(javascript: Run) -> None:
    found = javascript(
        """const { fromHash, SCENES, sceneOf, sceneState, toHash } = await load("settings");
        const { LANDSCAPES } = await load("landscapes");
        return Object.keys(SCENES).flatMap((scene) => Object.keys(LANDSCAPES).map((name) => {
          const state = sceneState(scene, name), [again, messages] = fromHash(toHash(state));
          return [scene, sceneOf(again.settings), state.settings, again.settings, messages];
        }));"""
    )
    for scene, recognized, settings, again, messages in found:
        assert (recognized, again, messages) == (scene, settings, [])


@pytest.mark.parametrize(
    "link",
    [
        "landscape=octopus&alpha=1&gradient_noise=0.3&chains=4&seed=5",
        "landscape=himmelblau&alpha=0.7&beta=1.3&chains=3",
        "formula=log(1+%2B+x%5E2)+-+cos(2y)%2F-3&chains=2&start=0.5%2C0.25",
        "landscape=least-squares&l1=0.8&alpha=1&chains=4",
        "landscape=strict-saddle&goal=sample&beta=0&sigma=0.35&lr=0.02&chains=4",
        "landscape=tilted-saddle&shape=left&alpha=1&gradient_noise=0.1&chains=4",
        "landscape=strict-saddle&shape=left&goal=sample&chains=1",
    ],
)
def test_program_on_the_page_makes_the_same_run(javascript: Run, link: str) -> None:
    program, ends = javascript(
        """const { fromHash, pythonProgram } = await load("settings");
        const { Chains } = await load("rule");
        const [state] = fromHash(given.link), chains = new Chains(state.settings, state.start);
        for (let k = 0; k < 200; k++) chains.advance(state.landscape);
        return [pythonProgram(state, 200), [...chains.x]];""",
        link=link,
    )
    names: dict[str, Any] = {}
    exec(program, names)
    np.testing.assert_allclose(ends, names["x"].flatten(), atol=1e-6, rtol=0)
