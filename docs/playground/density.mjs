/** The density that chains of a fixed temperature should follow, and the one that they do follow. */

/** A density is a Float64Array of BINS * BINS masses over the view, row by row from the top. */
export const BINS = 80;
/** Points of a fine grid from the middle of one bin to that of the next. */
const FINE = 2;
const BLOCK = 5;

/** exp(-value / temperature), with the sum over the view scaled to one; all zero if f has no value. */
export function targetDensity(value, [centerX, centerY, half], temperature) {
  const side = FINE * BINS, fine = new Float64Array(side * side), width = (2 * half) / side;
  let lowest = Infinity;
  for (let row = 0, i = 0; row < side; row++) {
    const y = centerY + half - (row + 0.5) * width;
    for (let column = 0; column < side; column++, i++) {
      fine[i] = value(centerX - half + (column + 0.5) * width, y);
      if (Number.isFinite(fine[i])) lowest = Math.min(lowest, fine[i]);
    }
  }
  const density = new Float64Array(BINS * BINS);
  let total = 0;
  for (let i = 0; i < fine.length; i++) {
    const mass = Number.isFinite(fine[i]) ? Math.exp((lowest - fine[i]) / temperature) : 0;
    density[Math.floor(i / side / FINE) * BINS + Math.floor((i % side) / FINE)] += mass;
    total += mass;
  }
  return total > 0 ? density.map((mass) => mass / total) : density;
}

/**
 * Where chains have been. The visits counted are those since the last power of two of steps but one:
 * of a long run at least the second half, at most three quarters.
 */
export class Visits {
  constructor(view) {
    this.view = view;
    this.older = new Float64Array(BINS * BINS);
    this.newer = new Float64Array(BINS * BINS);
    this.totals = { older: 0, newer: 0 };
    this.nextTurn = 1;
  }

  /** Count where the chains are now. */
  add(chains) {
    if (chains.step >= this.nextTurn) {
      [this.older, this.newer] = [this.newer, this.older.fill(0)];
      this.totals = { older: this.totals.newer, newer: 0 };
      this.nextTurn *= 2;
    }
    const [centerX, centerY, half] = this.view, scale = BINS / (2 * half);
    for (let i = 0; i < chains.x.length; i += 2) {
      const column = Math.floor((chains.x[i] - centerX + half) * scale);
      const row = Math.floor((centerY + half - chains.x[i + 1]) * scale);
      if (column >= 0 && column < BINS && row >= 0 && row < BINS) this.newer[row * BINS + column]++;
    }
    this.totals.newer += chains.count;
  }

  /** The visits as a density. Its sum is below one by the share of visits outside the view. */
  density() {
    const total = Math.max(1, this.totals.older + this.totals.newer);
    return this.newer.map((count, i) => (count + this.older[i]) / total);
  }
}

/** How much mass of one density would have to move to make the other, on blocks of bins. */
export function distance(target, found) {
  const side = BINS / BLOCK, difference = new Float64Array(side * side);
  let outside = 1;
  for (let i = 0; i < target.length; i++) {
    difference[Math.floor(i / BINS / BLOCK) * side + Math.floor((i % BINS) / BLOCK)] += target[i] - found[i];
    outside -= found[i];
  }
  return (difference.reduce((sum, part) => sum + Math.abs(part), 0) + outside) / 2;
}

/** The mass of each column, then of each row from the bottom: the densities of x and of y. */
export function marginals(density) {
  const ofX = new Float64Array(BINS), ofY = new Float64Array(BINS);
  density.forEach((mass, i) => {
    ofX[i % BINS] += mass;
    ofY[BINS - 1 - Math.floor(i / BINS)] += mass;
  });
  return [ofX, ofY];
}

/** A density blurred by about one bin, so that its contours are lines. */
export function smooth(density) {
  const blur = (from, stride, position) => from.map((_, i) => {
    const at = (offset) => from[i + stride * Math.min(BINS - 1 - position(i), Math.max(-position(i), offset))];
    return (at(-2) + 4 * at(-1) + 6 * at(0) + 4 * at(1) + at(2)) / 16;
  });
  return blur(blur(density, 1, (i) => i % BINS), BINS, (i) => Math.floor(i / BINS));
}

/** For each share, the level above which the density holds that share of its mass. */
export function massLevels(density, shares) {
  const sorted = Float64Array.from(density).sort().reverse();
  const total = sorted.reduce((sum, mass) => sum + mass, 0);
  let sum = 0, i = 0;
  return shares.map((share) => {
    while (i < sorted.length - 1 && sum + sorted[i] < share * total) sum += sorted[i++];
    return sorted[i];
  });
}
