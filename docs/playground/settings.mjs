/** What can be set: names, limits, presets; settings as the text of a link, and as Python code. */

import { FormulaError } from "./formula.mjs";
import { LANDSCAPES, typedLandscape } from "./landscapes.mjs";

/**
 * Each knob: its limits, its default, and how a slider moves through them: "linear", or "log" over
 * [from, max], with `off` the value at the left end of a log slider where zero is allowed.
 */
export const KNOBS = {
  alpha: { symbol: "α", label: "alpha", min: 0, max: 2, value: 0, scale: "linear", help: "how strongly D shortens the step; 1 is Adagrad’s" },
  beta: { symbol: "β", label: "beta", min: 0, max: 8, shown: 2.5, value: 1, scale: "linear", help: "how strongly D quiets the noise" },
  sigma: { symbol: "σ", label: "sigma", min: 0, max: 10, from: 1e-3, value: 0.1, scale: "log", help: "standard deviation of the injected noise; 0 is ASG" },
  lr: { symbol: "η", label: "lr", min: 1e-6, max: 10, from: 1e-4, value: 0.1, scale: "log", help: "step size" },
  delta: { symbol: "δ", label: "delta", min: 0, max: 1000, from: 1e-4, shown: 10, value: 0.01, scale: "log", help: "what each step adds to D" },
  d_init: { symbol: "D₀", label: "d_init", min: 1e-8, max: 1e6, from: 1e-2, shown: 1e4, value: 1, scale: "log", help: "D before the first step" },
  gradient_noise: { symbol: "ζ", label: "gradient noise", min: 0, max: 10, from: 1e-3, value: 0, scale: "log", help: "standard deviation of the gradients’ own noise; 0 is exact gradients" },
  l1: { symbol: "w", label: "l1 penalty", min: 0, max: 1000, from: 1e-2, shown: 100, value: 0, scale: "log", help: "weight of |x| + |y|, handled by a proximal step; needs a D per coordinate" },
  chains: { symbol: "n", label: "chains", min: 1, max: 1000, shown: 200, value: 60, scale: "linear", isInteger: true, help: "independent runs" },
  seed: { symbol: "", label: "seed", min: 0, max: Number.MAX_SAFE_INTEGER, shown: 100, value: 0, scale: "linear", isInteger: true, help: "key of the noise; the same seed gives the same run" },
};

/** What is set by a word: the first is the default. */
export const CHOICES = {
  shape: { coordinate: "per coordinate", left: "per matrix" },
  goal: { descend: "the landscape", sample: "the density" },
};

/** What a run shows: where it begins, how fast it plays, what differs from the landscape's own settings. */
export const SCENES = {
  descent: { label: "leave a saddle", landscape: "strict-saddle", speed: 2, change: () => ({}) },
  sparse: { label: "sparse: f + l1", landscape: "least-squares", speed: 2, change: ({ l1 }) => ({ l1 }) },
  sample: { label: "sample a density", landscape: "strict-saddle", speed: 10, change: ({ sampling }) => ({ goal: "sample", beta: 0, chains: 200, ...sampling }) },
  matrix: { label: "D per matrix", landscape: "tilted-saddle", speed: 1, change: () => ({ shape: "left", alpha: 1 }) },
};

/** Exponents and noise of the four methods; what a preset does not name stays as it is. */
export const PRESETS = {
  AGLD: { alpha: 0, beta: 1, gradient_noise: 0 },
  ASGLD: { alpha: 1, beta: 1, gradient_noise: 0.3 },
  ASG: { alpha: 1, sigma: 0 },
  SGLD: { alpha: 0, beta: 0, gradient_noise: 0.3 },
};

const COORDINATE_LIMIT = 1e6;

/**
 * A value a knob can take, and what to say where that is not the value asked for.
 * @returns {[number, string]} the message is empty where nothing was changed
 */
export function clampKnob(name, asked) {
  const { min, max, value, isInteger, label } = KNOBS[name];
  const number = typeof asked === "string" && asked.trim() === "" ? NaN : Number(asked);
  if (Number.isNaN(number)) return [value, `${label}: “${asked}” is no number; ${value} is used.`];
  const allowed = Math.min(max, Math.max(min, isInteger ? Math.round(number) : number));
  if (allowed === number) return [allowed, ""];
  const limit = number > max ? `at most ${max}` : number < min ? `at least ${min}` : "a whole number";
  return [allowed, `${label}: ${number} must be ${limit}; ${allowed} is used.`];
}

function clampCoordinate(text, otherwise) {
  const number = text === undefined || text === "" ? NaN : Number(text);
  if (!Number.isFinite(number)) return otherwise;
  return Math.min(COORDINATE_LIMIT, Math.max(-COORDINATE_LIMIT, number));
}

function clampChoice(name, asked) {
  const words = Object.keys(CHOICES[name]);
  if (words.includes(asked)) return [asked, ""];
  return [words[0], `${name}: “${asked}” is none of ${words.join(", ")}; ${words[0]} is used.`];
}

/**
 * A proximal step needs a D per coordinate. Give up the one of the two that was not asked for.
 * @returns {string} what to say, if something was given up
 */
export function reconcile(settings, isShapeAsked) {
  if (settings.shape === "coordinate" || settings.l1 === 0) return "";
  if (isShapeAsked) settings.l1 = 0;
  else settings.shape = "coordinate";
  const given = isShapeAsked ? "l1 is 0" : "D is per coordinate";
  return `The proximal step needs a D per coordinate: ${given} now.`;
}

/** Which scene the settings belong to. */
export function sceneOf({ goal, shape, l1 }) {
  if (goal === "sample") return "sample";
  if (shape === "left") return "matrix";
  return l1 === 0 ? "descent" : "sparse";
}

/** A scene on a landscape; on its own one where none is named. */
export function sceneState(scene, landscapeName = SCENES[scene].landscape, formula = "") {
  const state = initialState(landscapeName, formula);
  Object.assign(state.settings, SCENES[scene].change(state.landscape));
  return state;
}

/** The settings a landscape begins with: its own lr and sigma, else the defaults. */
export function initialState(landscapeName, formula = "") {
  const landscape = landscapeName === "formula" ? typedLandscape(formula) : LANDSCAPES[landscapeName];
  const defaults = Object.fromEntries([
    ...Object.entries(KNOBS).map(([name, knob]) => [name, knob.value]),
    ...Object.entries(CHOICES).map(([name, words]) => [name, Object.keys(words)[0]]),
  ]);
  return {
    landscapeName,
    landscape,
    settings: { ...defaults, lr: landscape.lr, sigma: landscape.sigma },
    start: [...landscape.start],
    view: [...landscape.view],
  };
}

/** The state as the part of a link after #. What equals the landscape's own settings is left out. */
export function toHash(state) {
  const { landscapeName, landscape, settings, start, view } = state;
  const own = initialState(landscapeName, landscape.formula);
  const pairs = landscapeName === "formula" ? [["formula", landscape.formula]] : [["landscape", landscapeName]];
  for (const name of [...Object.keys(CHOICES), ...Object.keys(KNOBS)]) {
    if (settings[name] !== own.settings[name]) pairs.push([name, String(settings[name])]);
  }
  if (String(start) !== String(own.start)) pairs.push(["start", start.join(",")]);
  if (String(view) !== String(own.view)) pairs.push(["view", view.join(",")]);
  return String(new URLSearchParams(pairs));
}

/**
 * The state a link describes; whatever is wrong in it is replaced, and said.
 * @returns {[object, string[]]}
 */
export function fromHash(hash) {
  const asked = new URLSearchParams(hash.replace(/^#/, ""));
  const messages = [];
  let state = initialState("strict-saddle");
  try {
    if (asked.has("formula")) state = initialState("formula", asked.get("formula"));
    else if (Object.hasOwn(LANDSCAPES, asked.get("landscape"))) state = initialState(asked.get("landscape"));
    else if (asked.has("landscape")) messages.push(`There is no landscape “${asked.get("landscape")}”.`);
  } catch (error) {
    if (!(error instanceof FormulaError)) throw error;
    messages.push(`The link’s formula is refused: ${error.message}.`);
  }
  for (const [names, clamp] of [[KNOBS, clampKnob], [CHOICES, clampChoice]]) {
    for (const name of Object.keys(names)) {
      if (!asked.has(name)) continue;
      const [value, message] = clamp(name, asked.get(name));
      state.settings[name] = value;
      if (message) messages.push(message);
    }
  }
  const given = reconcile(state.settings, false);
  if (given) messages.push(given);
  const numbers = (name) => (asked.get(name) ?? "").split(",");
  state.start = state.start.map((own, i) => clampCoordinate(numbers("start")[i], own));
  state.view = state.view.map((own, i) => clampCoordinate(numbers("view")[i], own));
  state.view[2] = Math.max(1e-3, state.view[2]);
  return [state, messages];
}

/** Which method of the theory a setting is: its gradients and its noise decide. */
export function methodOf(settings) {
  if (settings.sigma === 0) return "asg";
  return settings.gradient_noise === 0 ? "agld" : "asgld";
}

/** The lines of a program that define value and gradient of rows of points. */
function functionLines({ python, torch }) {
  if (python !== undefined) return [`f = ${python}`, "value, gradient = f.value, f.grad"];
  return [
    "",
    "def value(points):",
    "    x, y = points.unbind(-1)",
    `    return ${torch}`,
    "",
    "",
    "gradient = torch.func.grad(lambda points: value(points).sum())",
  ];
}

/** A Python program that makes the same run with the library and prints where its chains are. */
export function pythonProgram({ landscape, settings, start }, numSteps) {
  const { chains, seed, gradient_noise, shape, l1, goal } = settings;
  const knobs = ["lr", "alpha", "beta", "sigma", "delta", "d_init", "seed"].map((name) => `${name}=${settings[name]}`);
  // A D per matrix: the chains lie below each other, each a matrix of two rows and one column.
  const isFull = shape === "left", rows = isFull ? "x.view(-1, 2)" : "x";
  if (isFull) knobs.push('shape="left"', `blocks=${chains}`);
  if (l1) knobs.push(`prox=asgld.prox.L1(${l1})`);
  const noise = gradient_noise === 0 ? "" : ` + ${gradient_noise} * normals(${seed}, step, x, stream=0x6A55)`;
  const penalty = l1 ? ` + ${l1} * x.abs().sum(-1)` : "";
  const lines = [
    "import torch",
    "",
    "import asgld",
    ...(noise ? ["from asgld.methods import normals"] : []),
    ...(landscape.python === undefined ? [] : ["from asgld.problems import problem"]),
    "",
    ...functionLines(landscape),
    `x = torch.tensor([[${start.join(", ")}]], dtype=torch.float64).repeat(${chains}, 1)${isFull ? ".view(-1, 1)" : ""}`,
    `optimizer = asgld.ASGLD([x], ${knobs.join(", ")})`,
    `for step in range(${numSteps}):`,
    `    x.grad = gradient(${rows})${isFull ? ".view_as(x)" : ""}${noise}`,
    "    optimizer.step()",
    `print(f"median f: {${penalty ? `(value(${rows})${penalty})` : `value(${rows})`}.median():.6g}")`,
    ...(l1 ? ['print("zeros:", (x == 0).sum(0).tolist())'] : []),
    ...(goal === "sample" ? [`print("mean:", ${rows}.mean(0).tolist(), "sd:", ${rows}.std(0, correction=0).tolist())`] : []),
  ];
  return lines.join("\n") + "\n";
}
