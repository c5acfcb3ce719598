/** The picture of the landscape: bands and contours below, chains and their trails above. */

const GRID = 161;
const NUM_BANDS = 16;
const TRAIL = 24;
const TRAIL_GROUPS = 4;

/** Values on a grid over the view, row by row from the top. */
function sample(landscape, [centerX, centerY, half]) {
  const values = new Float64Array(GRID * GRID);
  for (let row = 0; row < GRID; row++) {
    const y = centerY + half * (1 - (2 * row) / (GRID - 1));
    for (let column = 0; column < GRID; column++) {
      values[row * GRID + column] = landscape.value(centerX + half * ((2 * column) / (GRID - 1) - 1), y);
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

/** Draw where the values cross a level: in each cell, lines between the crossed edges. */
function traceLevel(context, values, level, scale) {
  const crossing = (a, b) => (level - a) / (b - a);
  for (let row = 0; row < GRID - 1; row++) {
    for (let column = 0; column < GRID - 1; column++) {
      const i = row * GRID + column;
      const a = values[i], b = values[i + 1], c = values[i + GRID + 1], d = values[i + GRID];
      if (!Number.isFinite(a + b + c + d)) continue;
      const points = [];
      if (a > level !== b > level) points.push([column + crossing(a, b), row]);
      if (b > level !== c > level) points.push([column + 1, row + crossing(b, c)]);
      if (d > level !== c > level) points.push([column + crossing(d, c), row + 1]);
      if (a > level !== d > level) points.push([column, row + crossing(a, d)]);
      for (let p = 0; p + 1 < points.length; p += 2) {
        context.moveTo(points[p][0] * scale, points[p][1] * scale);
        context.lineTo(points[p + 1][0] * scale, points[p + 1][1] * scale);
      }
    }
  }
}

/** A canvas with a landscape and the chains on it. */
export class Field {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.background = document.createElement("canvas");
    this.trail = [];
  }

  /** Redraw what does not move: call after a change of landscape, view, size or theme. */
  drawLandscape(landscape, view, theme) {
    this.view = view;
    this.theme = theme;
    const { canvas, background } = this, size = canvas.width;
    background.width = background.height = size;
    const values = sample(landscape, view), levels = levelsOf(values);
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
  }

  /** Forget the trails: the chains are at a new start. */
  restart() {
    this.trail = [];
  }

  /** Remember where the chains are, as the newest points of their trails. */
  remember(chains) {
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
    const { context, canvas, theme } = this, unit = canvas.width / 600;
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.drawImage(this.background, 0, 0);
    this.drawTrails(unit);
    this.drawStart(start, unit);
    const radius = (chains.count > 300 ? 2.4 : 3.4) * unit;
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
        for (let age = Math.max(0, first) + 1; age <= last; age++) {
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
