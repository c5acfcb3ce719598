/** What can be descended: problems of asgld.problems in two dimensions, and others. */

import { parseFormula } from "./formula.mjs";

/** `l1` is the weight that a sparse run begins with, `sampling` the lr and the sigma of a sampler. */
const DEFAULTS = { view: [0, 0, 3], start: [0, 0], lr: 0.02, sigma: 0.1, l1: 0.5, sampling: { lr: 0.02, sigma: 0.6 } };

function landscape(formula, settings) {
  return { ...DEFAULTS, formula, ...settings, ...parseFormula(formula) };
}

// asgld.problems.StrictSaddle, dim=2: a saddle at 0 between minima at (-1, 0) and (1, 0).
const strictSaddle = landscape("x^4/4 - x^2/2 + y^2/2", {
  label: "strict saddle",
  python: 'problem("strict-saddle", dim=2)',
  view: [0, 0, 1.9],
  lr: 0.1,
  l1: 0.2,
  sampling: { lr: 0.02, sigma: 0.35 },
});

// The strict saddle turned by 45 degrees and steeper across: minima at x = -y = +-1/sqrt(2). From the
// start the steepest way leads to the saddle, so D learns the steep direction first.
const tiltedSaddle = landscape("(x - y)^4/16 - (x - y)^2/4 + 5(x + y)^2", {
  label: "tilted saddle",
  view: [0, 0, 1.3],
  start: [0.3, 0.3],
  lr: 0.05,
  l1: 0.2,
  sampling: { lr: 0.005, sigma: 0.35 },
});

// Least squares with correlated columns. With the l1 weight 0.8 the minimum is (0.6, 0).
const leastSquares = landscape("((x - 1.2)^2 + (x - 1.2)(y - 0.4) + (y - 0.4)^2)/2", {
  label: "least squares",
  view: [0.4, 0.2, 2.2],
  start: [-1.4, 1.5],
  sigma: 0.2,
  l1: 0.8,
  sampling: { lr: 0.02, sigma: 0.35 },
});

// asgld.problems.MonkeySaddle: no negative curvature at 0, yet three ways down.
const monkeySaddle = landscape("x^3 - 3x y^2 + (x^2 + y^2)^2/4", {
  label: "monkey saddle",
  python: 'problem("monkey-saddle")',
  view: [0, 0, 4.4],
  sigma: 0.3,
  l1: 1,
  sampling: { lr: 0.002, sigma: 1.6 },
});

// asgld.problems.Octopus, dim=2, tau = L = gamma = 1: the arm g(a) - L a^2 and the switch S, each
// with its derivative.
function arm(a) {
  if (a > 2) return [8 * (2 - a) - 25 / 3, -8];
  const u = Math.max(a - 1, 0);
  return [-2 * a * a + u ** 3 * (u - 4 / 3), -4 * a + u * u * (4 * u - 4)];
}

function armSwitch(a) {
  const t = Math.min(Math.max(a - 1, 0), 1);
  return [t ** 3 * (10 - 15 * t + 6 * t * t), 30 * (t * (1 - t)) ** 2];
}

const octopus = {
  ...DEFAULTS,
  label: "octopus slice",
  python: 'problem("octopus", dim=2, tau=1.0, curvature=1.0)',
  view: [0, 0, 5.4],
  sampling: { lr: 0.02, sigma: 0.6 },
  value(x, y) {
    const a = Math.abs(x), b = Math.abs(y);
    return a * a + b * b + arm(a)[0] + armSwitch(a)[0] * arm(b)[0];
  },
  gradient(x, y, out) {
    const a = Math.abs(x), b = Math.abs(y);
    const [open, turn] = armSwitch(a), [depth, slope] = arm(b);
    out[0] = Math.sign(x) * (2 * a + arm(a)[1] + turn * depth);
    out[1] = Math.sign(y) * (2 * b + open * slope);
  },
};

// Four minima, a maximum and four saddles; it starts on the highest saddle.
const himmelblau = landscape("(x^2 + y - 11)^2 + (x + y^2 - 7)^2", {
  label: "Himmelblau",
  view: [0, 0, 5.6],
  start: [-0.1279613467, -1.9537149803],
  lr: 0.004,
  sigma: 0.5,
  l1: 10,
  sampling: { lr: 0.0005, sigma: 6 },
});

// asgld.problems.Variance in log space: the likelihood of two variances from 10,000 draws of
// N(0, diag(0.1, 10)), which acts through the two mean squares alone.
const likelihood = landscape("x + 0.09899509415806393 exp(-x) + y + 9.942789437061567 exp(-y)", {
  label: "the paper’s likelihood",
  python: 'problem("variance")',
  view: [0, 0.6, 3.4],
  lr: 0.1,
  sampling: { lr: 0.02, sigma: 0.4 },
});

/** The landscapes by the word that stands for each in a link. */
export const LANDSCAPES = {
  "strict-saddle": strictSaddle,
  "tilted-saddle": tiltedSaddle,
  "monkey-saddle": monkeySaddle,
  octopus,
  himmelblau,
  likelihood,
  "least-squares": leastSquares,
};

/** A typed formula as a landscape; throws a FormulaError for a text that is none. */
export function typedLandscape(formula) {
  return landscape(formula, { label: "your formula" });
}

/** What is minimized, as a function of x and y: f, with a weight f + l1 |x|_1. */
export function objectiveOf(landscape, l1) {
  if (!l1) return landscape.value;
  return (x, y) => landscape.value(x, y) + l1 * (Math.abs(x) + Math.abs(y));
}
