/** The page: what is set, what runs, and what is drawn. Everything is computed here, in the browser. */

import { distance, marginals, targetDensity, Visits } from "./density.mjs";
import { Field } from "./field.mjs";
import { FormulaError } from "./formula.mjs";
import { LANDSCAPES, objectiveOf, typedLandscape } from "./landscapes.mjs";
import { ExponentMap, MAP_LIMITS } from "./map.mjs";
import { drawMarginal, drawPlot, History } from "./plots.mjs";
import { rate } from "./rates.mjs";
import { Chains } from "./rule.mjs";
import { CHOICES, clampKnob, fromHash, initialState, KNOBS, methodOf, PRESETS, pythonProgram, reconcile, SCENES, sceneOf, sceneState, toHash } from "./settings.mjs";

const SPEEDS = [1, 2, 5, 10, 25, 100];
const SLIDER_STEPS = 400;
const MAX_PIXEL_RATIO = 2;
const FRAMES_PER_DETAIL = 4;
const VIEW_LIMITS = [1e-3, 1e6];
/** The canvases of each goal beside the landscape and the map. */
const PLOTS = { descend: ["loss", "temperature", "metric"], sample: ["temperature", "density-x", "density-y"] };
/** Knobs that change the picture of the landscape or of the target. */
const DRAWN_KNOBS = ["l1", "sigma"];

const byId = (name) => document.getElementById(`pg-${name}`);
const field = new Field(byId("field"));
const map = new ExponentMap(byId("map"));

let [state, messages] = fromHash(location.hash);
let chains, objective, record, theme, visits;
/** The density of the temperature that is set, null unless chains sample. */
let target = null;
let frame = 0;
let isPlaying = !matchMedia("(prefers-reduced-motion: reduce)").matches;
let stepsPerFrame;
let knobInputs = {};

// ------------------------------------------------------------------------------------------------
// Change what is set
// ------------------------------------------------------------------------------------------------

/** Begin again with what is set now; every change does, so a link gives the whole run. */
function restart() {
  chains = new Chains(state.settings, state.start);
  record = new History();
  record.record(chains, objective);
  visits = new Visits(state.view);
  field.restart();
  field.remember(chains);
  globalThis.history.replaceState(null, "", `#${toHash(state)}`);
  showSettings();
  map.draw(state.settings);
  drawFrame();
}

function say(...texts) {
  messages = texts.filter(Boolean);
  byId("status").textContent = messages.join(" ");
}

function setKnobs(asked) {
  const told = [];
  for (const [name, value] of Object.entries(asked)) {
    const [allowed, message] = clampKnob(name, value);
    state.settings[name] = allowed;
    told.push(message);
  }
  say(...told, reconcile(state.settings, false));
  if (DRAWN_KNOBS.some((name) => name in asked)) drawLandscape();
  drawMap();
  restart();
}

function setShape(shape) {
  state.settings.shape = shape;
  say(reconcile(state.settings, true));
  drawLandscape();
  restart();
}

/** A scene begins on its own landscape, unless the user has typed one. */
function setScene(scene) {
  const isTyped = state.landscapeName === "formula";
  const { start, view } = state;
  const next = isTyped ? sceneState(scene, "formula", state.landscape.formula) : sceneState(scene);
  setLandscape(isTyped ? { ...next, start, view } : next);
  setSpeed(SCENES[scene].speed);
}

function setSpeed(speed) {
  stepsPerFrame = speed;
  byId("speed").value = String(speed);
}

function setLandscape(next) {
  state = next;
  say();
  showFormula();
  showPlots();
  drawLandscape();
  drawMap();
  restart();
}

function setStart(point) {
  if (!point.every(Number.isFinite)) return;
  state.start = point.map((coordinate) => Number(coordinate.toPrecision(4)));
  restart();
}

function setView([x, y, half]) {
  const [least, most] = VIEW_LIMITS;
  state.view = [x, y, Math.min(most, Math.max(least, half))].map((value) => Number(value.toPrecision(4)));
  drawLandscape();
  restart();
}

function zoom(factor) {
  setView([state.view[0], state.view[1], state.view[2] * factor]);
}

/** A formula that cannot be read is underlined and explained; the last good one keeps running. */
function typeFormula(text) {
  try {
    const own = state.landscapeName === "formula" ? state : { ...initialState("formula", text), settings: state.settings };
    const next = { ...own, landscapeName: "formula", landscape: typedLandscape(text) };
    underline(text, null);
    setLandscape(next);
  } catch (error) {
    if (!(error instanceof FormulaError)) throw error;
    underline(text, error);
  }
}

function underline(text, error) {
  const overlay = byId("underline"), input = byId("formula");
  input.setAttribute("aria-invalid", String(error !== null));
  byId("formula-error").textContent = error ? `${error.message}. The last good formula is still running.` : "";
  overlay.replaceChildren();
  if (!error) return;
  const mark = document.createElement("mark");
  mark.textContent = text.slice(error.start, error.end) || " ";
  overlay.append(text.slice(0, error.start), mark, text.slice(error.end));
  overlay.scrollLeft = input.scrollLeft;
}

// ------------------------------------------------------------------------------------------------
// Sliders: a position from 0 to SLIDER_STEPS stands for a value of the knob
// ------------------------------------------------------------------------------------------------

function toPosition({ scale, min, max, from = min, shown = max }, value) {
  if (scale === "linear") return (SLIDER_STEPS * (value - min)) / (shown - min);
  return value <= from ? 0 : (SLIDER_STEPS * Math.log(value / from)) / Math.log(shown / from);
}

function toValue({ scale, min, max, from = min, shown = max, isInteger }, position) {
  const share = position / SLIDER_STEPS;
  if (scale === "log") return position === 0 ? (min === 0 ? 0 : from) : Number((from * (shown / from) ** share).toPrecision(2));
  const value = min + share * (shown - min);
  return isInteger ? Math.round(value) : Math.round(100 * value) / 100;
}

function buildKnob(name) {
  const knob = KNOBS[name];
  const row = document.createElement("div");
  row.className = "pg-knob";
  const label = document.createElement("label");
  label.htmlFor = `pg-${name}`;
  label.textContent = knob.symbol ? `${knob.symbol}  ${knob.label}` : knob.label;
  label.title = knob.help;
  const slider = Object.assign(document.createElement("input"), { type: "range", min: 0, max: SLIDER_STEPS, step: 1 });
  slider.setAttribute("aria-label", `${knob.label}: ${knob.help}`);
  const number = Object.assign(document.createElement("input"), { type: "number", id: `pg-${name}`, step: "any" });
  slider.addEventListener("input", () => setKnobs({ [name]: toValue(knob, Number(slider.value)) }));
  number.addEventListener("change", () => setKnobs({ [name]: number.value }));
  row.append(label, slider, number);
  knobInputs[name] = { slider, number };
  return row;
}

function buildControls() {
  for (const [name, { label }] of Object.entries(SCENES)) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: label });
    button.dataset.scene = name;
    button.addEventListener("click", () => setScene(name));
    byId("scenes").append(button);
  }
  for (const [word, label] of Object.entries(CHOICES.shape)) byId("shape").append(new Option(label, word));
  byId("knobs").replaceChildren(...Object.keys(KNOBS).map(buildKnob));
  for (const [name, knobs] of Object.entries(PRESETS)) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: name });
    button.addEventListener("click", () => {
      // A preset with noise asked for while there is none brings the landscape's own back.
      const sigma = state.settings.sigma || state.landscape.sigma;
      setKnobs({ sigma, ...knobs });
    });
    document.querySelector(".pg-presets").append(button);
  }
  for (const [name, { label }] of Object.entries(LANDSCAPES)) byId("landscape").append(new Option(label, name));
  byId("landscape").append(new Option("your formula", "formula"));
  for (const speed of SPEEDS) byId("speed").append(new Option(String(speed), String(speed)));
  setSpeed(SCENES[sceneOf(state.settings)].speed);
}

// ------------------------------------------------------------------------------------------------
// Show what is set
// ------------------------------------------------------------------------------------------------

function showSettings() {
  for (const [name, { slider, number }] of Object.entries(knobInputs)) {
    slider.value = String(toPosition(KNOBS[name], state.settings[name]));
    slider.setAttribute("aria-valuetext", String(state.settings[name]));
    number.value = String(state.settings[name]);
  }
  for (const button of document.querySelectorAll(".pg-presets button")) {
    const { sigma = "any", ...preset } = PRESETS[button.textContent];
    const isNoiseRight = sigma === 0 ? state.settings.sigma === 0 : state.settings.sigma !== 0;
    const hasGradientNoise = (settings) => (settings.gradient_noise ?? 0) !== 0;
    const isSame = Object.entries(preset).every(([name, value]) =>
      name === "gradient_noise" ? hasGradientNoise(state.settings) === (value !== 0) : state.settings[name] === value);
    button.setAttribute("aria-pressed", String(isSame && isNoiseRight));
  }
  for (const button of byId("scenes").children) {
    button.setAttribute("aria-pressed", String(button.dataset.scene === sceneOf(state.settings)));
  }
  byId("landscape").value = state.landscapeName;
  byId("shape").value = state.settings.shape;
  const [first, second] = state.settings.shape === "left" ? ["larger D", "smaller D"] : ["x", "y"];
  for (const place of document.querySelectorAll(".pg-first")) place.textContent = first;
  for (const place of document.querySelectorAll(".pg-second")) place.textContent = second;
  byId("loss-name").textContent = state.settings.l1 ? "f + penalty" : "loss f";
  showLegend();
  showRates();
}

/** Show the plots of the goal, and give their canvases pixels. */
function showPlots() {
  const shown = PLOTS[state.settings.goal];
  for (const name of new Set(Object.values(PLOTS).flat())) byId(name).closest("figure").hidden = !shown.includes(name);
  fitCanvases();
}

/** What the picture shows besides chains, and what spoils it. */
function showLegend() {
  const { goal, alpha, beta, sigma, shape, l1 } = state.settings, parts = [];
  if (goal === "sample" && target) {
    parts.push(swatch(theme.ink), `target exp(−f/T), T = ${Number((sigma * sigma).toPrecision(3))}  `);
    parts.push(swatch(theme.chain), "chains. Lines hold 50 and 90 % of the mass. ");
    if (beta !== alpha / 2) parts.push("β is not α/2: D changes the temperature, so the chains do not follow the target. ");
  } else if (goal === "sample") parts.push("Without noise there is no temperature: raise sigma. ");
  if (l1) parts.push("Dashed: the kinks of the penalty. ");
  if (alpha) parts.push(`Ellipses: D^(−α/2) of some chains, the longest drawn to a fixed length; D ${CHOICES.shape[shape]}.`);
  byId("legend").replaceChildren(...parts);
}

function swatch(color) {
  const mark = document.createElement("i");
  mark.style.background = color;
  return mark;
}

function showFormula() {
  const input = byId("formula");
  if (document.activeElement === input) return;
  input.value = state.landscape.formula ?? "";
  input.placeholder = state.landscape.formula ? "type a formula in x and y" : "piecewise, see the documentation; type your own here";
  underline("", null);
}

function showRates() {
  const { alpha, beta } = state.settings, method = methodOf(state.settings);
  const [published, corrected] = ["published", "corrected"].map((version) => rate(alpha, beta, method, version));
  const verdict = {
    converges: `the bound on the squared gradient falls like ${corrected.formula}, set by ${corrected.dominant}`,
    plateau: `the bound stops at a floor, set by ${corrected.dominant}`,
    grows: `the noise heats, and the bound grows like ${corrected.formula}`,
  }[corrected.region];
  const setting = { agld: "exact gradients", asgld: "noisy gradients", asg: "no injected noise" }[method];
  const tau = alpha / 2 === beta ? "stays" : beta > alpha / 2 ? "falls" : "rises";
  const heat = method === "asg" ? "" : ` The temperature σ² D^−(β−α/2) ${tau} as D grows.`;
  const list = document.createElement("dl");
  for (const [term, order] of [["published", published], ["corrected", corrected]]) {
    list.append(
      Object.assign(document.createElement("dt"), { textContent: term }),
      Object.assign(document.createElement("dd"), { textContent: order.formula, id: `pg-rate-${term}` }),
    );
  }
  const text = document.createElement("p");
  text.textContent = `${method.toUpperCase()} (${setting}) at α = ${alpha}, β = ${method === "asg" ? "∞" : beta}: ${verdict}.${heat}`;
  const legend = document.createElement("p");
  for (const [name, meaning] of [["falls", "falls, stronger is faster"], ["plateau", "floor"], ["heat", "grows"], ["ink", "dots: the paper’s exponent differs, or there is none"]]) {
    const color = theme[name], mark = swatch(Array.isArray(color) ? `rgb(${color})` : color);
    if (name === "ink") mark.style.transform = "scale(0.4)";
    legend.append(mark, `${meaning}  `);
  }
  byId("rates").replaceChildren(list, text, legend);
}

function showNumbers() {
  const parts = [
    `step ${chains.step.toLocaleString("en")}`,
    `median ${state.settings.l1 ? "f + penalty" : "f"} ${Number(record.loss.median.at(-1).toPrecision(5))}`,
    `start (${state.start.join(", ")})`,
  ];
  if (target) parts.push(`${Math.round(100 * distance(target, visits.density()))} % of the mass is misplaced`);
  if (state.settings.l1) parts.push(`x = 0 in ${countZeros(0)}, y = 0 in ${countZeros(1)} of ${chains.count} chains`);
  const outside = countOutside();
  if (outside) parts.push(`${outside} of ${chains.count} chains are outside the view`);
  if (chains.numLost) parts.push(`${chains.numLost} overflowed and rest: lower lr or raise d_init`);
  byId("numbers").textContent = parts.join(" · ");
}

function countZeros(coordinate) {
  return chains.x.filter((value, i) => i % 2 === coordinate && value === 0).length;
}

function countOutside() {
  const [x, y, half] = state.view;
  let outside = 0;
  for (let i = 0; i < chains.x.length; i += 2) {
    if (Math.max(Math.abs(chains.x[i] - x), Math.abs(chains.x[i + 1] - y)) > half) outside++;
  }
  return outside;
}

function showProgram() {
  const details = byId("python").closest("details");
  if (details.open) byId("python").textContent = pythonProgram(state, chains.step);
}

// ------------------------------------------------------------------------------------------------
// Draw
// ------------------------------------------------------------------------------------------------

function readTheme() {
  const style = getComputedStyle(document.getElementById("pg-root"));
  const read = (name) => style.getPropertyValue(`--pg-${name}`).trim();
  const triplet = (name) => read(name).split(",").map(Number);
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
  theme = {
    ...Object.fromEntries(["low", "high", "paper", "falls", "heat", "plateau"].map((name) => [name, triplet(name)])),
    ...Object.fromEntries(["contour", "chain", "lost", "ink", "ground", "grid", "faint"].map((name) => [name, read(name)])),
    unit: (pixelRatio() * rem) / 20,
    font: style.fontFamily,
  };
}

function pixelRatio() {
  return Math.min(MAX_PIXEL_RATIO, globalThis.devicePixelRatio || 1);
}

/** Give every canvas as many pixels as the screen shows. */
function fitCanvases() {
  for (const name of ["field", "map", ...PLOTS[state.settings.goal]]) {
    const canvas = byId(name), ratio = pixelRatio();
    canvas.width = Math.max(1, Math.round(canvas.clientWidth * ratio));
    canvas.height = Math.max(1, Math.round(canvas.clientHeight * ratio));
  }
}

function drawLandscape() {
  const { l1, sigma, goal } = state.settings, isSampling = goal === "sample" && sigma > 0;
  objective = objectiveOf(state.landscape, l1);
  target = isSampling ? targetDensity(objective, state.view, sigma * sigma) : null;
  field.drawLandscape(objective, state.view, theme, { temperature: isSampling ? sigma * sigma : 0, hasKinks: l1 > 0 });
}

function drawMap() {
  map.drawRates(methodOf(state.settings), theme);
}

function drawPlots() {
  const { steps, loss, temperature, metric } = record;
  const both = ([x, y]) => [{ values: x, color: theme.chain }, { values: y, color: theme.faint, dash: true }];
  const band = { low: loss.low, high: loss.high, color: theme.grid };
  drawPlot(byId("temperature"), { steps, theme, isLog: true, curves: both(temperature), empty: "no injected noise" });
  if (state.settings.goal === "sample") return drawMarginals();
  drawPlot(byId("loss"), { steps, theme, band, curves: [{ values: loss.median, color: theme.chain }] });
  drawPlot(byId("metric"), { steps, theme, isLog: true, curves: both(metric) });
}

function drawMarginals() {
  const found = marginals(visits.density()), half = state.view[2];
  const expected = target ? marginals(target) : found.map((one) => one.map(() => 0));
  ["density-x", "density-y"].forEach((name, j) => {
    const low = state.view[j] - half, high = state.view[j] + half;
    drawMarginal(byId(name), { target: expected[j], found: found[j], low, high, theme });
  });
}

function drawFrame() {
  drawDetails();
  field.draw(chains, state.start);
}

function drawDetails() {
  field.compareDensities(target, target && visits.density());
  drawPlots();
  showNumbers();
  showProgram();
}

function drawEverything() {
  fitCanvases();
  readTheme();
  drawLandscape();
  drawMap();
  map.draw(state.settings);
  showRates();
  drawFrame();
}

function advance(numSteps) {
  for (let n = 0; n < numSteps; n++) {
    chains.advance(state.landscape);
    record.record(chains, objective);
    if (target) visits.add(chains);
  }
  field.remember(chains);
}

/** Chains move with every frame; curves and numbers, which change slowly, with every fourth. */
function onFrame() {
  if (isPlaying) {
    advance(stepsPerFrame);
    field.draw(chains, state.start);
    if (++frame % FRAMES_PER_DETAIL === 0) drawDetails();
  }
  requestAnimationFrame(onFrame);
}

// ------------------------------------------------------------------------------------------------
// Hear
// ------------------------------------------------------------------------------------------------

function setPlaying(playing) {
  isPlaying = playing;
  if (!playing) drawDetails();
  byId("play").textContent = playing ? "Pause" : "Play";
}

function stepOnce() {
  setPlaying(false);
  advance(1);
  drawFrame();
}

/** Call `use` with the canvas pixel under a pointer that is pressed or dragged. */
function onDrag(canvas, use) {
  const hear = (event) => {
    const box = canvas.getBoundingClientRect(), ratio = canvas.width / box.width;
    use((event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio);
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    hear(event);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (canvas.hasPointerCapture(event.pointerId)) hear(event);
  });
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

/** Keys that a canvas with focus understands must reach neither the page nor its shortcuts. */
function onKey(canvas, actions) {
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const arrow = ARROWS[event.key];
    const action = arrow ? () => actions.arrow(arrow, event.shiftKey) : actions[event.key];
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  });
}

function moveByKey([right, up], isShifted) {
  const [x, y, half] = state.view;
  if (isShifted) setView([x + (right * half) / 5, y + (up * half) / 5, half]);
  else setStart([state.start[0] + (right * half) / 40, state.start[1] + (up * half) / 40]);
}

function moveExponents([right, up]) {
  const round = (value) => Math.round(100 * value) / 100;
  const inside = (value, limit) => Math.min(limit, Math.max(0, round(value)));
  setKnobs({
    alpha: inside(state.settings.alpha + 0.05 * right, MAP_LIMITS.alpha),
    beta: inside(Math.min(state.settings.beta, MAP_LIMITS.beta) + 0.05 * up, MAP_LIMITS.beta),
  });
}

async function copyLink() {
  const told = byId("copied");
  try {
    await navigator.clipboard.writeText(location.href);
    told.textContent = "copied";
  } catch {
    told.textContent = "copy it from the address bar";
  }
  setTimeout(() => (told.textContent = ""), 3000);
}

function listen() {
  byId("shape").addEventListener("change", (event) => setShape(event.target.value));
  byId("landscape").addEventListener("change", (event) => {
    if (event.target.value !== "formula") setLandscape(sceneState(sceneOf(state.settings), event.target.value));
    else typeFormula(state.landscape.formula ?? "x^4/4 - x^2/2 + y^2/2 + x y/2");
    showFormula();
  });
  const formula = byId("formula");
  formula.addEventListener("input", () => typeFormula(formula.value));
  formula.addEventListener("scroll", () => (byId("underline").scrollLeft = formula.scrollLeft));
  byId("play").addEventListener("click", () => setPlaying(!isPlaying));
  byId("step").addEventListener("click", stepOnce);
  byId("restart").addEventListener("click", restart);
  byId("speed").addEventListener("change", (event) => setSpeed(Number(event.target.value)));
  byId("in").addEventListener("click", () => zoom(1 / 1.5));
  byId("out").addEventListener("click", () => zoom(1.5));
  byId("link").addEventListener("click", copyLink);
  byId("python").closest("details").addEventListener("toggle", showProgram);
  onDrag(field.canvas, (x, y) => setStart(field.toPoint(x, y)));
  onDrag(map.canvas, (x, y) => {
    const [alpha, beta] = map.toExponents(x, y);
    setKnobs({ alpha, beta });
  });
  onKey(field.canvas, {
    arrow: moveByKey,
    " ": () => setPlaying(!isPlaying),
    ".": stepOnce,
    r: restart,
    "+": () => zoom(1 / 1.5),
    "-": () => zoom(1.5),
  });
  onKey(map.canvas, { arrow: moveExponents });
  addEventListener("hashchange", () => {
    const [next, told] = fromHash(location.hash);
    setLandscape(next);
    say(...told);
  });
  new ResizeObserver(drawEverything).observe(document.getElementById("pg-root"));
  new MutationObserver(drawEverything).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
}

buildControls();
fitCanvases();
readTheme();
const told = messages;
setLandscape(state);
say(...told);
setPlaying(isPlaying);
listen();
requestAnimationFrame(onFrame);
