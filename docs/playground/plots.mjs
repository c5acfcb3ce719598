/** Curves: loss, temperature and D against the step, how they are kept, and densities of a coordinate. */

/** Steps are kept densely at first, then at distances that grow with the step: the axis is log k. */
const DENSE = 64;
const GROWTH = 1.02;

function quantile(sorted, share) {
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

/** Medians over the chains, at steps chosen for a logarithmic axis. */
export class History {
  constructor() {
    this.steps = [];
    this.loss = { median: [], low: [], high: [] };
    this.temperature = [[], []];
    this.metric = [[], []];
    this.nextStep = 0;
  }

  /** Keep the present if it is due; `value` is the function of x and y that is minimized. */
  record(chains, value) {
    if (chains.step < this.nextStep) return;
    this.nextStep = Math.max(chains.step + 1, chains.step < DENSE ? 0 : Math.ceil(chains.step * GROWTH));
    const buffer = new Float64Array(chains.count);
    const sorted = (read) => {
      for (let chain = 0; chain < chains.count; chain++) buffer[chain] = read(chain);
      return buffer.sort();
    };
    this.steps.push(chains.step);
    sorted((chain) => value(chains.x[2 * chain], chains.x[2 * chain + 1]));
    this.loss.median.push(quantile(buffer, 0.5));
    this.loss.low.push(quantile(buffer, 0.1));
    this.loss.high.push(quantile(buffer, 0.9));
    for (let j = 0; j < 2; j++) {
      this.metric[j].push(quantile(sorted((chain) => chains.metricOf(chain)[j]), 0.5));
      this.temperature[j].push(quantile(sorted((chain) => chains.temperatureAt(chains.metricOf(chain)[j])), 0.5));
    }
  }
}

/** A number as an axis shows it. */
export function axisLabel(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e4 || size < 1e-2) return value.toExponential(0).replace("e+", "e");
  return String(Number(value.toPrecision(3)));
}

/** Round numbers from low to high, about `count` of them. */
function roundTicks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw);
  const ticks = [];
  for (let n = Math.ceil(low / step); n * step <= high; n++) ticks.push(n * step);
  return ticks;
}

/** Powers of ten from low to high, at most about `count` of them. */
function powerTicks(low, high, count) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  const stride = Math.max(1, Math.ceil((last - first + 1) / count));
  const ticks = [];
  for (let exponent = first; exponent <= last; exponent += stride) ticks.push(10 ** exponent);
  return ticks;
}

/** The limits of an axis: the finite values, with some room around them. */
function limitsOf(series, isLog) {
  let low = Infinity, high = -Infinity;
  for (const values of series) {
    for (const value of values) {
      if (!Number.isFinite(value) || (isLog && value <= 0)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  if (low > high) return null;
  if (isLog) return [low / 1.3, high * 1.3];
  const room = 0.06 * (high - low || Math.abs(high) || 1);
  return [low - room, high + room];
}

/**
 * Draw curves against the step, which is on a logarithmic axis.
 * @param curves [{values, color, dash}], and `band` {low, high, color} or null
 */
export function drawPlot(canvas, { steps, curves, band, isLog, theme, empty }) {
  const context = canvas.getContext("2d"), { width, height } = canvas;
  const unit = theme.unit, left = 46 * unit, bottom = 20 * unit, top = 6 * unit, right = 8 * unit;
  context.clearRect(0, 0, width, height);
  context.font = `${10.5 * unit}px ${theme.font}`;
  const limits = limitsOf([...curves.map((curve) => curve.values), ...(band ? [band.low, band.high] : [])], isLog);
  if (!limits) {
    context.fillStyle = theme.faint;
    context.textAlign = "center";
    context.fillText(empty, width / 2, height / 2);
    return;
  }
  const last = Math.max(10, steps.at(-1));
  const toX = (step) => left + ((width - left - right) * Math.log(step + 1)) / Math.log(last + 1);
  const scale = isLog ? Math.log : (value) => value;
  const [low, high] = limits.map(scale);
  const toY = (value) => height - bottom - ((height - bottom - top) * (scale(value) - low)) / (high - low);

  context.strokeStyle = theme.grid;
  context.fillStyle = theme.faint;
  context.lineWidth = unit;
  context.textAlign = "right";
  context.textBaseline = "middle";
  const ticks = isLog ? powerTicks(...limits, 4) : roundTicks(...limits, 4);
  for (const tick of ticks.length ? ticks : limits) {
    context.beginPath();
    context.moveTo(left, toY(tick));
    context.lineTo(width - right, toY(tick));
    context.stroke();
    context.fillText(axisLabel(tick), left - 5 * unit, toY(tick));
  }
  context.textAlign = "center";
  context.textBaseline = "top";
  for (const tick of powerTicks(1, last + 1, Math.max(2, Math.floor(width / unit / 70)))) {
    context.fillText(axisLabel(tick), toX(tick), height - bottom + 4 * unit);
  }

  const trace = (values, from = 0, to = values.length, direction = 1) => {
    for (let i = from; i !== to; i += direction) {
      if (Number.isFinite(values[i]) && !(isLog && values[i] <= 0)) context.lineTo(toX(steps[i]), toY(values[i]));
    }
  };
  if (band) {
    context.fillStyle = band.color;
    context.beginPath();
    trace(band.high);
    trace(band.low, band.low.length - 1, -1, -1);
    context.fill();
  }
  context.lineWidth = 1.8 * unit;
  for (const { values, color, dash } of curves) {
    context.strokeStyle = color;
    context.setLineDash(dash ? [5 * unit, 4 * unit] : []);
    context.beginPath();
    trace(values);
    context.stroke();
  }
  context.setLineDash([]);
}

/**
 * Draw the density of one coordinate: bars for the chains, a line for the target.
 * @param low the left end of the bins, `high` the right one
 */
export function drawMarginal(canvas, { target, found, low, high, theme }) {
  const context = canvas.getContext("2d"), { width, height } = canvas;
  const unit = theme.unit, left = 8 * unit, right = 8 * unit, bottom = 20 * unit, top = 6 * unit;
  const bar = (width - left - right) / target.length;
  const highest = Math.max(...target, ...found) || 1;
  const toY = (mass) => height - bottom - ((height - bottom - top) * mass) / highest;
  context.clearRect(0, 0, width, height);
  context.fillStyle = theme.chain;
  context.globalAlpha = 0.55;
  found.forEach((mass, i) => context.fillRect(left + i * bar, toY(mass), bar, height - bottom - toY(mass)));
  context.globalAlpha = 1;
  context.strokeStyle = theme.ink;
  context.lineWidth = 1.8 * unit;
  context.beginPath();
  target.forEach((mass, i) => context.lineTo(left + (i + 0.5) * bar, toY(mass)));
  context.stroke();
  context.strokeStyle = theme.grid;
  context.lineWidth = unit;
  context.beginPath();
  context.moveTo(left, height - bottom);
  context.lineTo(width - right, height - bottom);
  context.stroke();
  context.font = `${10.5 * unit}px ${theme.font}`;
  context.fillStyle = theme.faint;
  context.textAlign = "center";
  context.textBaseline = "top";
  for (const tick of roundTicks(low, high, 5)) {
    const x = left + ((width - left - right) * (tick - low)) / (high - low);
    context.fillText(axisLabel(Math.abs(tick) < 1e-9 * (high - low) ? 0 : tick), x, height - bottom + 4 * unit);
  }
}
