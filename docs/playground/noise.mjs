/**
 * The noise of asgld.noise: a draw is a pure function of (seed, stream, step, index).
 *
 *   key     = (seed low, seed high)
 *   counter = (block low, block high, step, stream),     block = index / 4
 *
 * Philox4x32-10 turns a counter into four words; words (0, 1) and (2, 3) make two pairs of normals
 * by Box and Muller. Words equal those of the Python library bit for bit, normals to rounding.
 */

const TWO_32 = 4294967296;

/** High 32 bits of the product of two unsigned 32-bit numbers. */
function multiplyHigh(a, b) {
  const aLow = a & 0xffff, aHigh = a >>> 16, bLow = b & 0xffff, bHigh = b >>> 16;
  // Each partial sum stays below 2^34, where doubles are exact.
  const middle = aHigh * bLow + ((aLow * bLow) / 65536 >>> 0);
  const rest = aLow * bHigh + (middle & 0xffff);
  return (aHigh * bHigh + Math.floor(middle / 65536) + Math.floor(rest / 65536)) >>> 0;
}

/** Write the four words of one block of elements into `out`, a Uint32Array. */
export function blockWords(seed, stream, step, block, out) {
  let c0 = block % TWO_32 >>> 0, c1 = Math.floor(block / TWO_32) >>> 0, c2 = step >>> 0, c3 = stream >>> 0;
  let k0 = seed % TWO_32 >>> 0, k1 = Math.floor(seed / TWO_32) >>> 0;
  for (let round = 0; round < 10; round++) {
    const high0 = multiplyHigh(0xd2511f53, c0), low0 = Math.imul(0xd2511f53, c0) >>> 0;
    const high1 = multiplyHigh(0xcd9e8d57, c2), low1 = Math.imul(0xcd9e8d57, c2) >>> 0;
    c0 = (high1 ^ c1 ^ k0) >>> 0;
    c1 = low1;
    c2 = (high0 ^ c3 ^ k1) >>> 0;
    c3 = low0;
    k0 = (k0 + 0x9e3779b9) >>> 0;
    k1 = (k1 + 0xbb67ae85) >>> 0;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

const four = new Uint32Array(4);

/** Fill `out` with the standard normals of elements 0, 1, 2, ... at this step. */
export function fillNormals(out, seed, stream, step) {
  for (let index = 0; index < out.length; index += 2) {
    if (index % 4 === 0) blockWords(seed, stream, step, index / 4, four);
    const radiusWord = four[index % 4], angleWord = four[(index % 4) + 1] | 0;
    const radius = Math.sqrt(-2 * Math.log((radiusWord >>> 1) * 2 ** -31 + 2 ** -32));
    const angle = angleWord * 2 ** -31 * Math.PI;
    out[index] = radius * Math.cos(angle);
    if (index + 1 < out.length) out[index + 1] = radius * Math.sin(angle);
  }
}
