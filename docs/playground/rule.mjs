/**
 * The update rule of asgld.ASGLD on a tensor of shape (chains, 2), in double precision:
 *
 *   x <- x - lr D^(-alpha/2) G + sqrt(2 lr) D^(-beta/2) e,    e ~ N(0, sigma^2 I)
 *   x <- prox of l1 |x|_1 with the step sizes lr D^(-alpha/2)
 *   D  = d_init + delta k + sum of past S(G)
 *
 * S(G) is G * G for a D per coordinate. It is G G^T for a D per matrix, where the two coordinates of
 * a chain are a matrix of two rows and one column: shape="left" of the library.
 */

import { fillNormals } from "./noise.mjs";

const UPDATE_STREAM = 0;
/** The stream of tests/gaussian_noise.py, so that a run with noisy gradients is the same there. */
const GRADIENT_STREAM = 0x6a55;

function inversePower(metric, exponent) {
  if (exponent === 0) return 1;
  if (exponent === 1) return 1 / Math.sqrt(metric);
  if (exponent === 2) return 1 / metric;
  return Math.pow(metric, -exponent / 2);
}

/** D of each chain as two numbers, one for each coordinate. */
class DiagonalMetric {
  constructor(count) {
    this.sum = new Float64Array(2 * count);
  }

  /** Write the eigenvalues of D into `out`. `base` is d_init + delta k. */
  eigenvalues(chain, base, out) {
    out[0] = this.sum[2 * chain] + base;
    out[1] = this.sum[2 * chain + 1] + base;
  }

  /** The angle of the first eigenvector. */
  angle() {
    return 0;
  }

  /** Multiply the vector by D^(-exponent/2), given the eigenvalues of D. */
  multiply(chain, values, exponent, vector) {
    vector[0] *= inversePower(values[0], exponent);
    vector[1] *= inversePower(values[1], exponent);
  }

  /** Add S(G). */
  add(chain, g) {
    this.sum[2 * chain] += g[0] * g[0];
    this.sum[2 * chain + 1] += g[1] * g[1];
  }

  isFinite(chain) {
    return Number.isFinite(this.sum[2 * chain] + this.sum[2 * chain + 1]);
  }
}

/**
 * D of each chain as a symmetric matrix. Its sums are kept as [mean of the diagonal, half the
 * difference of the diagonal, the entry beside it], so the eigenvalues are mean +- radius.
 */
class FullMetric {
  constructor(count) {
    this.sum = new Float64Array(3 * count);
  }

  eigenvalues(chain, base, out) {
    const mean = this.sum[3 * chain], radius = this.radius(chain);
    out[0] = mean + radius + base;
    // Rounding must not make D indefinite.
    out[1] = Math.max(mean - radius, 0) + base;
  }

  radius(chain) {
    return Math.hypot(this.sum[3 * chain + 1], this.sum[3 * chain + 2]);
  }

  angle(chain) {
    return Math.atan2(this.sum[3 * chain + 2], this.sum[3 * chain + 1]) / 2;
  }

  multiply(chain, values, exponent, vector) {
    const large = inversePower(values[0], exponent), small = inversePower(values[1], exponent);
    const radius = this.radius(chain), [v, w] = vector, middle = (large + small) / 2;
    const turn = radius > 0 ? (large - small) / 2 / radius : 0;
    const cosine = turn * this.sum[3 * chain + 1], sine = turn * this.sum[3 * chain + 2];
    vector[0] = middle * v + cosine * v + sine * w;
    vector[1] = middle * w + sine * v - cosine * w;
  }

  add(chain, g) {
    this.sum[3 * chain] += (g[0] * g[0] + g[1] * g[1]) / 2;
    this.sum[3 * chain + 1] += (g[0] * g[0] - g[1] * g[1]) / 2;
    this.sum[3 * chain + 2] += g[0] * g[1];
  }

  isFinite(chain) {
    return Number.isFinite(this.sum[3 * chain]);
  }
}

/** Many chains, all begun at one point, each with its own part of the noise. */
export class Chains {
  /**
   * @param settings alpha, beta, sigma, lr, delta, d_init, gradient_noise, l1, chains, seed; and
   *   shape, "coordinate" or "left"
   * @param start the point [x, y] where all begin
   */
  constructor(settings, start) {
    this.settings = { ...settings };
    this.count = settings.chains;
    this.step = 0;
    this.x = Float64Array.from({ length: 2 * this.count }, (_, i) => start[i % 2]);
    this.metric = settings.shape === "left" ? new FullMetric(this.count) : new DiagonalMetric(this.count);
    /** 1 for a chain whose numbers overflowed; it rests at its last finite point. */
    this.isLost = new Uint8Array(this.count);
    this.numLost = 0;
    this.noise = new Float64Array(2 * this.count);
    this.gradientNoise = new Float64Array(2 * this.count);
    this.gradient = new Float64Array(2);
    this.move = new Float64Array(2);
    this.values = new Float64Array(2);
  }

  /** The two eigenvalues of a chain's D, in an array that the next call overwrites. */
  metricOf(chain) {
    this.metric.eigenvalues(chain, this.settings.d_init + this.settings.delta * this.step, this.values);
    return this.values;
  }

  /** The temperature sigma^2 D^-(beta - alpha/2) of a direction in which D has this eigenvalue. */
  temperatureAt(value) {
    const { alpha, beta, sigma } = this.settings;
    return sigma === 0 ? 0 : sigma * sigma * Math.pow(value, alpha / 2 - beta);
  }

  /** The ellipse of a chain's D^(-alpha/2): both half axes, and the angle of the first. */
  ellipseOf(chain) {
    const [first, second] = this.metricOf(chain), { alpha } = this.settings;
    return [inversePower(first, alpha), inversePower(second, alpha), this.metric.angle(chain)];
  }

  /** Take one step on a landscape. */
  advance(landscape) {
    const { sigma, gradient_noise, seed } = this.settings;
    const { x, gradient } = this;
    if (sigma !== 0) fillNormals(this.noise, seed, UPDATE_STREAM, this.step);
    if (gradient_noise !== 0) fillNormals(this.gradientNoise, seed, GRADIENT_STREAM, this.step);
    for (let chain = 0; chain < this.count; chain++) {
      if (this.isLost[chain]) continue;
      const first = 2 * chain, before0 = x[first], before1 = x[first + 1];
      landscape.gradient(before0, before1, gradient);
      for (let j = 0; j < 2; j++) gradient[j] += gradient_noise && gradient_noise * this.gradientNoise[first + j];
      this.moveChain(chain);
      this.metric.add(chain, gradient);
      if (!(Number.isFinite(x[first] + x[first + 1]) && this.metric.isFinite(chain))) {
        x[first] = before0;
        x[first + 1] = before1;
        this.isLost[chain] = 1;
        this.numLost++;
      }
    }
    this.step++;
  }

  /** Move a chain by its gradient, its noise and the proximal step. */
  moveChain(chain) {
    const { alpha, beta, sigma, lr, l1 } = this.settings;
    const { x, move, gradient, noise, metric } = this, first = 2 * chain;
    const values = this.metricOf(chain);
    move.set(gradient);
    metric.multiply(chain, values, alpha, move);
    x[first] -= lr * move[0];
    x[first + 1] -= lr * move[1];
    if (sigma !== 0) {
      const scale = Math.sqrt(2 * lr) * sigma;
      move[0] = noise[first];
      move[1] = noise[first + 1];
      metric.multiply(chain, values, beta, move);
      x[first] += scale * move[0];
      x[first + 1] += scale * move[1];
    }
    if (l1) {
      for (let j = 0; j < 2; j++) {
        const threshold = lr * inversePower(values[j], alpha) * l1;
        x[first + j] -= Math.min(threshold, Math.max(-threshold, x[first + j]));
      }
    }
  }
}
