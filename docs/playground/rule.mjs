/**
 * The update rule of asgld.ASGLD on a tensor of shape (chains, 2), in double precision:
 *
 *   x <- x - lr D^(-alpha/2) G + sqrt(2 lr) D^(-beta/2) e,    e ~ N(0, sigma^2 I)
 *   D  = d_init + delta k + sum of past G * G
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

/** Many chains, all begun at one point, each with its own part of the noise. */
export class Chains {
  /**
   * @param settings alpha, beta, sigma, lr, delta, d_init, gradient_noise, chains, seed
   * @param start the point [x, y] where all begin
   */
  constructor(settings, start) {
    this.settings = { ...settings };
    this.count = settings.chains;
    this.step = 0;
    this.x = Float64Array.from({ length: 2 * this.count }, (_, i) => start[i % 2]);
    this.sum = new Float64Array(2 * this.count);
    /** 1 for a chain whose numbers overflowed; it rests at its last finite point. */
    this.isLost = new Uint8Array(this.count);
    this.numLost = 0;
    this.noise = new Float64Array(2 * this.count);
    this.gradientNoise = new Float64Array(2 * this.count);
    this.gradient = new Float64Array(2);
  }

  /** D of element i, a coordinate of a chain. */
  metric(i) {
    return this.sum[i] + (this.settings.d_init + this.settings.delta * this.step);
  }

  /** The temperature at which element i moves, sigma^2 D^-(beta - alpha/2). */
  temperature(i) {
    const { alpha, beta, sigma } = this.settings;
    return sigma === 0 ? 0 : sigma * sigma * Math.pow(this.metric(i), alpha / 2 - beta);
  }

  /** Take one step on a landscape. */
  advance(landscape) {
    const { alpha, beta, sigma, lr, gradient_noise, seed } = this.settings;
    const { x, sum, gradient } = this;
    if (sigma !== 0) fillNormals(this.noise, seed, UPDATE_STREAM, this.step);
    if (gradient_noise !== 0) fillNormals(this.gradientNoise, seed, GRADIENT_STREAM, this.step);
    const scale = Math.sqrt(2 * lr) * sigma;
    for (let chain = 0; chain < this.count; chain++) {
      if (this.isLost[chain]) continue;
      const first = 2 * chain, before0 = x[first], before1 = x[first + 1];
      landscape.gradient(before0, before1, gradient);
      for (let j = 0; j < 2; j++) {
        const i = first + j, metric = this.metric(i);
        const g = gradient[j] + (gradient_noise && gradient_noise * this.gradientNoise[i]);
        x[i] -= lr * (g * inversePower(metric, alpha));
        if (sigma !== 0) x[i] += scale * (this.noise[i] * inversePower(metric, beta));
        sum[i] += g * g;
      }
      if (!Number.isFinite(x[first] + x[first + 1] + sum[first] + sum[first + 1])) {
        x[first] = before0;
        x[first + 1] = before1;
        this.isLost[chain] = 1;
        this.numLost++;
      }
    }
    this.step++;
  }
}
