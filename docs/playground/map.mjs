/** The map of the two exponents: where the corrected bound falls, how fast, and where the paper errs. */

import { rate } from "./rates.mjs";

const COLUMNS = 84;
const ROWS = 70;
export const MAP_LIMITS = { alpha: 2, beta: 2.5 };

/** The color of a place: faster is stronger, a bound that does not fall has the color of heat. */
function colorOf({ region, exponent }, theme) {
  if (region === "grows" || region === "frozen") return theme.heat;
  if (region !== "converges") return theme.plateau;
  const share = 0.12 + 0.88 * Math.min(1, exponent);
  return theme.paper.map((channel, i) => channel + share * (theme.falls[i] - channel));
}

/** A canvas with the exponents; the landscape of rates is drawn once per method and theme. */
export class ExponentMap {
  constructor(canvas) {
    this.canvas = canvas;
    this.background = document.createElement("canvas");
  }

  layout() {
    const { width, height } = this.canvas, unit = this.theme.unit;
    return { left: 30 * unit, top: 8 * unit, width: width - 38 * unit, height: height - 30 * unit };
  }

  toPixels(alpha, beta) {
    const { left, top, width, height } = this.layout();
    const shown = Math.min(beta, MAP_LIMITS.beta);
    return [left + (width * alpha) / MAP_LIMITS.alpha, top + height * (1 - shown / MAP_LIMITS.beta)];
  }

  /** The exponents under a pixel, rounded to hundredths so that borders can be hit. */
  toExponents(pixelX, pixelY) {
    const { left, top, width, height } = this.layout();
    const inside = (share) => Math.min(1, Math.max(0, share));
    const round = (value) => Math.round(100 * value) / 100;
    return [
      round(MAP_LIMITS.alpha * inside((pixelX - left) / width)),
      round(MAP_LIMITS.beta * inside(1 - (pixelY - top) / height)),
    ];
  }

  drawRates(method, theme) {
    this.theme = theme;
    const { background, canvas } = this, area = this.layout();
    background.width = canvas.width;
    background.height = canvas.height;
    const context = background.getContext("2d");
    const cellWidth = area.width / COLUMNS, cellHeight = area.height / ROWS;
    for (let row = 0; row < ROWS; row++) {
      for (let column = 0; column < COLUMNS; column++) {
        const alpha = (MAP_LIMITS.alpha * (column + 0.5)) / COLUMNS;
        const beta = MAP_LIMITS.beta * (1 - (row + 0.5) / ROWS);
        const corrected = rate(alpha, beta, method, "corrected");
        const published = rate(alpha, beta, method, "published");
        context.fillStyle = `rgb(${colorOf(corrected, theme)})`;
        const x = area.left + column * cellWidth, y = area.top + row * cellHeight;
        context.fillRect(x, y, cellWidth + 1, cellHeight + 1);
        const isWrong = Math.abs(published.exponent - corrected.exponent) > 1e-9;
        if (isWrong && (row + column) % 4 === 0) {
          context.fillStyle = theme.ink;
          context.fillRect(x + cellWidth / 4, y + cellHeight / 4, cellWidth / 2, cellHeight / 2);
        }
      }
    }
    this.drawAxes(context, method);
  }

  drawAxes(context, method) {
    const { theme } = this, unit = theme.unit, area = this.layout();
    context.strokeStyle = theme.ink;
    context.lineWidth = 1.4 * unit;
    if (method !== "asg") {
      context.beginPath();
      context.moveTo(...this.toPixels(0, 0));
      context.lineTo(...this.toPixels(2, 1));
      context.stroke();
    }
    context.font = `${10.5 * unit}px ${theme.font}`;
    context.fillStyle = theme.faint;
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const [alpha, text] of [[0, "0"], [0.5, "0.5"], [1, "1"], [1.5, "1.5"], [1.75, "α"], [2, "2"]]) {
      context.fillText(text, this.toPixels(alpha, 0)[0], area.top + area.height + 4 * unit);
    }
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const [beta, text] of [[0, "0"], [0.5, "0.5"], [1, "1"], [1.5, "1.5"], [2, "2"], [2.25, "β"], [2.5, "2.5"]]) {
      context.fillText(text, area.left - 5 * unit, this.toPixels(0, beta)[1]);
    }
  }

  draw({ alpha, beta }) {
    const context = this.canvas.getContext("2d"), unit = this.theme.unit;
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.drawImage(this.background, 0, 0);
    const [x, y] = this.toPixels(alpha, beta);
    context.lineWidth = 2.5 * unit;
    context.strokeStyle = this.theme.ground;
    context.fillStyle = this.theme.chain;
    context.beginPath();
    context.arc(x, y, 6.5 * unit, 0, 2 * Math.PI);
    context.fill();
    context.stroke();
  }
}
