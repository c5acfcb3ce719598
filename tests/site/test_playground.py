"""The playground computes what the library computes, and survives whatever is typed into it."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gaussian_noise import with_gaussian_noise
from helpers import ROOT
from torch import Tensor

import asgld
from asgld import noise
from asgld.oracle import Oracle
from asgld.problems import Problem, problem
from asgld.run import run

FOLDER = ROOT / "docs" / "playground"
ADDRESS = "http://playground.test/"

# What every landscape of the page is in the library; Himmelblau's function is not part of it.
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
const all = [...chains.x.keys()], metric = all.map((i) => chains.metric(i));
return { path, metric, temperature: all.map((i) => chains.temperature(i)) };
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


@pytest.mark.parametrize("landscape", [*PROBLEMS, "himmelblau"])
def test_landscape_equals_the_problem(javascript: Run, landscape: str) -> None:
    points = np.random.default_rng(0).uniform(-4, 4, size=(300, 2))
    found = np.array(javascript(_EVALUATE, points=points.tolist(), landscape=landscape))
    x = torch.from_numpy(points)
    if landscape == "himmelblau":
        value, grad = _himmelblau(x), torch.func.grad(lambda p: _himmelblau(p).sum())(x)
    else:
        value, grad = PROBLEMS[landscape].value(x), PROBLEMS[landscape].grad(x)
    np.testing.assert_allclose(found[:, 0], value, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found[:, 1:], grad, rtol=1e-12, atol=1e-11)


def _himmelblau(points: Tensor) -> Tensor:
    x, y = points.unbind(-1)
    return (x**2 + y - 11) ** 2 + (x + y**2 - 7) ** 2


def test_landscapes_start_where_they_say(javascript: Run) -> None:
    starts = javascript(
        """const { LANDSCAPES } = await load("landscapes");
        const starts = Object.entries(LANDSCAPES).map(([name, { start }]) => [name, start]);
        return Object.fromEntries(starts);"""
    )
    for name, start in starts.items():
        point = torch.tensor(start, dtype=torch.float64)
        if name == "likelihood":  # it has no saddle; the paper starts at x = (1, 1)
            assert PROBLEMS[name].variances(point).tolist() == [1.0, 1.0]
            continue
        if name == "himmelblau":
            slope, hessian = (
                torch.func.grad(_himmelblau)(point),
                torch.func.hessian(_himmelblau)(point),
            )
        else:
            slope, hessian = PROBLEMS[name].grad(point), PROBLEMS[name].hessian(point)
        lowest = torch.linalg.eigvalsh(hessian)[0]
        assert slope.norm() < 1e-7
        assert lowest < -0.9 if name != "monkey-saddle" else lowest == 0.0


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


@pytest.mark.parametrize(
    "link",
    [
        "landscape=octopus&alpha=1&gradient_noise=0.3&chains=4&seed=5",
        "landscape=himmelblau&alpha=0.7&beta=1.3&chains=3",
        "formula=log(1+%2B+x%5E2)+-+cos(2y)%2F-3&chains=2&start=0.5%2C0.25",
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
