/** The picture of the landscape: bands and contours below; chains, their trails, D and density above. */

import { BINS, massLevels, smooth } from "./density.mjs";

const GRID = 161;
const NUM_BANDS = 16;
/** The borders of a density's bands hold these shares of its mass. */
const BAND_SHARES = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999];
/** Lines around these shares of the mass compare two densities. */
const LINE_SHARES = [0.5, 0.9];
/** The first chains also show their whole path and their D. */
const NUM_FOLLOWED = 4;
const MAX_PATH = 256;
const ELLIPSE_SIZE = 34;
const TRAIL = 24;
const TRAIL_GROUPS = 4;
/** Of a trail every third point is drawn; a stroke of all of them takes most of a frame. */
const TRAIL_STRIDE = 3;

/** Values on a grid over the view, row by row from the top. */
function sample(value, [centerX, centerY, half]) {
  const values = new Float64Array(GRID * GRID);
  for (let row = 0; row < GRID; row++) {
    const y = centerY + half * (1 - (2 * row) / (GRID - 1));
    for (let column = 0; column < GRID; column++) {
      values[row * GRID + column] = value(centerX + half * ((2 * column) / (GRID - 1) - 1), y);
    }
  }
  return values;
}

/** Levels that split the view into bands of equal area. */
function levelsOf(values) {
  const finite = values.filter(Number.isFinite).sort();
  if (finite.length === 0) return [];
  const levels = [];
  for (let band = 1; band < NUM_BANDS; band++) {
    const level = finite[Math.floor((band / NUM_BANDS) * (finite.length - 1))];
    if (level > (levels.at(-1) ?? -Infinity)) levels.push(level);
  }
  return levels;
}

/** Levels of f around shares of the mass of exp(-f / temperature). */
function densityLevels(values, temperature) {
  const lowest = values.reduce((least, value) => (value < least ? value : least), Infinity);
  const density = values.map((value) => (Number.isFinite(value) ? Math.exp((lowest - value) / temperature) : 0));
  const levels = massLevels(density, BAND_SHARES).map((mass) => lowest - temperature * Math.log(mass));
  return levels.filter((level, i) => Number.isFinite(level) && level > (levels[i - 1] ?? -Infinity));
}

function bandOf(value, levels) {
  let low = 0, high = levels.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (value > levels[middle]) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Each band in a mixture of two colors; points without a value stay clear. */
function bandImage(values, levels, low, high) {
  const image = new ImageData(GRID, GRID);
  values.forEach((value, i) => {
    if (!Number.isFinite(value)) return;
    const share = bandOf(value, levels) / Math.max(1, levels.length);
    for (let channel = 0; channel < 3; channel++) {
      image.data[4 * i + channel] = low[channel] + share * (high[channel] - low[channel]);
    }
    image.data[4 * i + 3] = 255;
  });
  return image;
}

/** Draw where values on a square grid cross a level: in each cell, lines between the crossed edges. */
function traceLevel(path, values, level, scale, offset = 0) {
  const side = Math.sqrt(values.length), ends = new Float64Array(8);
  const toPixel = (position) => (position + offset) * scale;
  let count;
  const cross = (isCrossed, column, row) => {
    if (!isCrossed) return;
    ends[count++] = toPixel(column);
    ends[count++] = toPixel(row);
  };
  const crossing = (a, b) => (level - a) / (b - a);
  for (let row = 0; row < side - 1; row++) {
    for (let column = 0; column < side - 1; column++) {
      const i = row * side + column;
      const a = values[i], b = values[i + 1], c = values[i + side + 1], d = values[i + side];
      if (!Number.isFinite(a + b + c + d)) continue;
      count = 0;
      cross(a > level !== b > level, column + crossing(a, b), row);
      cross(b > level !== c > level, column + 1, row + crossing(b, c));
      cross(d > level !== c > level, column + crossing(d, c), row + 1);
      cross(a > level !== d > level, column, row + crossing(a, d));
      for (let p = 0; p + 3 < count; p += 4) {
        path.moveTo(ends[p], ends[p + 1]);
        path.lineTo(ends[p + 2], ends[p + 3]);
      }
    }
  }
}

/** The lines around shares of a density's mass. */
function densityLines(density, size) {
  const path = new Path2D(), blurred = smooth(density);
  for (const level of massLevels(blurred, LINE_SHARES)) {
    if (level > 0) traceLevel(path, blurred, level, size / BINS, 0.5);
  }
  return path;
}

/** A canvas with a landscape and the chains on it. */
export class Field {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.background = document.createElement("canvas");
    this.restart();
  }

  /**
   * Redraw what does not move: call after a change of landscape, view, size or theme.
   * @param value the function of x and y that is drawn
   * @param temperature where it is given, the bands are those of exp(-value / temperature)
   * @param hasKinks whether the function has kinks on the axes
   */
  drawLandscape(value, view, theme, { temperature, hasKinks }) {
    this.view = view;
    this.theme = theme;
    const { canvas, background } = this, size = canvas.width;
    background.width = background.height = size;
    const values = sample(value, view);
    const levels = temperature ? densityLevels(values, temperature) : levelsOf(values);
    const bands = document.createElement("canvas");
    bands.width = bands.height = GRID;
    bands.getContext("2d").putImageData(bandImage(values, levels, theme.low, theme.high), 0, 0);
    const context = background.getContext("2d");
    // A grid value belongs to the middle of its pixel, and the first and last lie on the border.
    const cell = size / (GRID - 1);
    context.drawImage(bands, -cell / 2, -cell / 2, size + cell, size + cell);
    context.strokeStyle = theme.contour;
    context.lineWidth = Math.max(1, size / 900);
    for (const level of levels) {
      context.beginPath();
      traceLevel(context, values, level, cell);
      context.stroke();
    }
    if (hasKinks) this.drawAxes(context, size);
  }

  /** The axes, where a penalty has its kinks. */
  drawAxes(context, size) {
    const [x, y] = this.toPixels(0, 0), unit = size / 600;
    context.strokeStyle = this.theme.ink;
    context.lineWidth = 1.4 * unit;
    context.setLineDash([6 * unit, 5 * unit]);
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, size);
    context.moveTo(0, y);
    context.lineTo(size, y);
    context.stroke();
  }

  /** Lines around the target's density and around the visits of the chains; null takes them away. */
  compareDensities(target, found) {
    const linesOf = (density) => density && densityLines(density, this.canvas.width);
    if (target !== this.target || this.canvas.width !== this.lineSize) this.targetLines = linesOf(target);
    this.foundLines = linesOf(found);
    this.target = target;
    this.lineSize = this.canvas.width;
  }

  /** Forget trails and paths: the chains are at a new start. */
  restart() {
    this.trail = [];
    this.path = [];
    this.stride = 1;
    this.numRemembered = 0;
  }

  /** Remember where the chains are, as the newest points of their trails and paths. */
  remember(chains) {
    if (this.numRemembered++ % this.stride === 0) this.path.push(chains.x.slice(0, 2 * NUM_FOLLOWED));
    if (this.path.length > MAX_PATH) {
      this.path = this.path.filter((_, i) => i % 2 === 0);
      this.stride *= 2;
    }
    const oldest = this.trail.length > TRAIL ? this.trail.shift() : new Float64Array(chains.x.length);
    oldest.set(chains.x);
    this.trail.push(oldest);
  }

  toPixels(x, y) {
    const [centerX, centerY, half] = this.view, scale = this.canvas.width / (2 * half);
    return [(x - centerX + half) * scale, (centerY + half - y) * scale];
  }

  toPoint(pixelX, pixelY) {
    const [centerX, centerY, half] = this.view, scale = (2 * half) / this.canvas.width;
    return [centerX - half + pixelX * scale, centerY + half - pixelY * scale];
  }

  /** Draw one frame. */
  draw(chains, start) {
    const { context, canvas } = this, unit = canvas.width / 600;
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.drawImage(this.background, 0, 0);
    if (this.targetLines) this.drawDensities(chains, unit);
    else {
      this.drawPaths(chains, unit);
      this.drawTrails(unit);
      this.drawChains(chains, (chains.count > 300 ? 2.4 : 3.4) * unit);
    }
    this.drawStart(start, unit);
    if (chains.settings.alpha !== 0) this.drawEllipses(chains, unit);
  }

  drawChains(chains, radius) {
    const { context, theme } = this;
    for (const [lost, color] of [[0, theme.chain], [1, theme.lost]]) {
      context.fillStyle = color;
      context.beginPath();
      for (let chain = 0; chain < chains.count; chain++) {
        if (chains.isLost[chain] !== lost) continue;
        const [x, y] = this.toPixels(chains.x[2 * chain], chains.x[2 * chain + 1]);
        context.moveTo(x + radius, y);
        context.arc(x, y, radius, 0, 2 * Math.PI);
      }
      context.fill();
    }
  }

  /** Faint chains, so that both densities stay visible. */
  drawDensities(chains, unit) {
    const { context, theme } = this;
    context.globalAlpha = 0.5;
    this.drawChains(chains, 1.8 * unit);
    context.globalAlpha = 1;
    for (const [lines, color, width] of [[this.targetLines, theme.ink, 2], [this.foundLines, theme.chain, 2.6]]) {
      context.strokeStyle = color;
      context.lineWidth = width * unit;
      context.stroke(lines);
    }
  }

  /** The ellipses of D^(-alpha/2) of the first chains, all on one scale: the longest has a fixed size. */
  drawEllipses(chains, unit) {
    const { context, theme } = this, ellipses = [];
    let longest = 0;
    for (let chain = 0; chain < Math.min(NUM_FOLLOWED, chains.count); chain++) {
      const [first, second, angle] = chains.ellipseOf(chain);
      longest = Math.max(longest, first, second);
      ellipses.push([...this.toPixels(chains.x[2 * chain], chains.x[2 * chain + 1]), first, second, angle]);
    }
    const scale = (ELLIPSE_SIZE * unit) / longest;
    context.beginPath();
    for (const [x, y, first, second, angle] of ellipses) {
      // The y axis of a canvas points down, so angles turn the other way.
      context.moveTo(x + first * scale * Math.cos(angle), y - first * scale * Math.sin(angle));
      context.ellipse(x, y, first * scale, second * scale, -angle, 0, 2 * Math.PI);
    }
    for (const [color, width] of [[theme.ground, 3.4], [theme.ink, 1.5]]) {
      context.strokeStyle = color;
      context.lineWidth = width * unit;
      context.stroke();
    }
  }

  drawPaths(chains, unit) {
    const { context, theme, path } = this;
    context.strokeStyle = theme.ink;
    context.globalAlpha = 0.45;
    context.lineWidth = 1.2 * unit;
    context.beginPath();
    for (let i = 0; i < path[0].length; i += 2) {
      context.moveTo(...this.toPixels(path[0][i], path[0][i + 1]));
      for (const points of path) context.lineTo(...this.toPixels(points[i], points[i + 1]));
      context.lineTo(...this.toPixels(chains.x[i], chains.x[i + 1]));
    }
    context.stroke();
    context.globalAlpha = 1;
  }

  drawTrails(unit) {
    const { context, theme, trail } = this;
    context.strokeStyle = theme.chain;
    context.lineWidth = 1.2 * unit;
    const perGroup = Math.ceil(TRAIL / TRAIL_GROUPS);
    for (let group = 0; group < TRAIL_GROUPS; group++) {
      const first = trail.length - 1 - perGroup * (TRAIL_GROUPS - group);
      const last = Math.min(trail.length - 1, first + perGroup);
      if (last <= Math.max(0, first)) continue;
      context.globalAlpha = (group + 1) / (2 * TRAIL_GROUPS);
      context.beginPath();
      for (let i = 0; i < trail[last].length; i += 2) {
        context.moveTo(...this.toPixels(trail[Math.max(0, first)][i], trail[Math.max(0, first)][i + 1]));
        for (let age = Math.max(0, first) + TRAIL_STRIDE; age <= last; age += TRAIL_STRIDE) {
          context.lineTo(...this.toPixels(trail[age][i], trail[age][i + 1]));
        }
      }
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  drawStart([startX, startY], unit) {
    const { context, theme } = this, [x, y] = this.toPixels(startX, startY), arm = 7 * unit;
    context.strokeStyle = theme.ink;
    context.lineWidth = 1.6 * unit;
    context.beginPath();
    context.moveTo(x - arm, y);
    context.lineTo(x + arm, y);
    context.moveTo(x, y - arm);
    context.lineTo(x, y + arm);
    context.stroke();
  }
}
