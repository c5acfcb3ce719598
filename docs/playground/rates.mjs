/**
 * asgld.theory.rate at a constant batch size: the order k^-exponent (log k)^logPower of the bound on
 * the squared gradient, as published and as corrected.
 */

const TIE = 1e-12;

/** Order of sum_{j<k} j^-phi: [power of k, power of log k]. */
function sumOrder(phi) {
  const isOne = Math.abs(phi - 1) <= TIE;
  return [isOne ? 0 : Math.max(0, 1 - phi), isOne ? 1 : 0];
}

function corrected(alpha, beta, method) {
  const clock = sumOrder(alpha / 2);
  const terms = { I1: [0, 0] };
  if (method !== "agld") terms.I2 = sumOrder(alpha);
  if (Number.isFinite(beta)) terms.I3 = sumOrder(beta);
  const orders = Object.entries(terms).map(([name, [power, log]]) => [name, power - clock[0], log - clock[1]]);
  const power = Math.max(...orders.map((order) => order[1]));
  const slowest = orders.filter((order) => order[1] >= power - TIE);
  const logPower = Math.max(...slowest.map((order) => order[2]));
  const dominant = slowest.filter((order) => order[2] === logPower).map((order) => order[0]).join("+");
  return { exponent: Math.abs(power) <= TIE ? 0 : -power, logPower, dominant };
}

/** What the paper prints, nothing added; exponent NaN where it says nothing. */
function published(alpha, beta, method) {
  const isOne = Math.abs(alpha - 1) <= TIE, isTwo = Math.abs(alpha - 2) <= TIE;
  const isZero = alpha === 0, isInside = alpha > 0 && alpha < 2 - TIE;
  const isAdmissible = beta > alpha / 2 + TIE && Number.isFinite(beta);
  const isAtLeastOne = beta >= 1 - TIE;
  const rows = {
    agld: [
      [isTwo && isAdmissible, 0, -1, "I1"],
      [isInside && isAtLeastOne && isAdmissible, 1 - alpha / 2, 0, "I1"],
      [isInside && isAdmissible, beta - alpha / 2, 0, "I3"],
      [isZero && isAtLeastOne && isAdmissible, 1, 1, "I3"],
      [isZero && isAdmissible, beta, 0, "I3"],
    ],
    asg: [
      [isTwo, 0, -1, "I1"],
      [isInside && alpha >= 1 - TIE, 1 - alpha / 2, 0, "I1"],
      [isInside, alpha / 2, 0, "I2"],
    ],
    asgld: [
      [isZero && beta === 0, 0, 0, "I2+I3"],
      [isAdmissible && isTwo, 0, -1, "I1"],
      [isAdmissible && isInside && alpha > 1 + TIE && isAtLeastOne, beta - alpha / 2, 1, "I3"],
      [isAdmissible && isInside && alpha > 1 + TIE, 1 - alpha / 2, 0, "I1"],
      [isAdmissible && isOne && beta > 1 + TIE, 0.5, 1, "I2"],
      [isAdmissible && isOne, beta - 0.5, 0, "I3"],
      [isAdmissible && isInside && beta > alpha + TIE, alpha / 2, 0, "I2"],
      [isAdmissible && isInside, beta - alpha / 2, 0, "I3"],
    ],
  }[method];
  const row = rows.find((candidate) => candidate[0]);
  if (!row) return { exponent: NaN, logPower: NaN, dominant: "not stated" };
  return { exponent: row[1], logPower: row[2], dominant: row[3] };
}

function regionOf(alpha, { exponent, logPower }) {
  if (Number.isNaN(exponent)) return "not covered";
  if (alpha > 2 + TIE) return "frozen";
  if (exponent > 0 || (exponent === 0 && logPower < 0)) return "converges";
  return exponent === 0 ? "plateau" : "grows";
}

/** Up to four significant digits, without trailing zeros. */
function short(number) {
  return String(Number(number.toPrecision(4)));
}

function formulaOf({ exponent, logPower }) {
  if (Number.isNaN(exponent)) return "no statement";
  if (exponent === 0) return { 1: "log k", 0: "constant", "-1": "1/log k" }[logPower];
  return `k^${short(-exponent)}` + { 1: " log k", 0: "", "-1": "/log k" }[logPower];
}

/**
 * The rate at (alpha, beta).
 * @param method "asgld", "agld" (exact gradients) or "asg" (no injected noise; beta is not read)
 * @param version "published" or "corrected"
 */
export function rate(alpha, beta, method, version) {
  const noise = method === "asg" ? Infinity : beta;
  const order = (version === "corrected" ? corrected : published)(alpha, noise, method);
  return { ...order, region: regionOf(alpha, order), formula: formulaOf(order) };
}
