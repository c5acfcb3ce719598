/**
 * Formulas in x and y: text -> tree -> value and gradient. Nothing typed is ever run as code.
 *
 * A formula becomes a list of operations on numbered slots. One pass forward computes the value, one
 * pass backward the derivative by both variables.
 */

const MAX_LENGTH = 500;
const MAX_DEPTH = 60;

/** name: [value(a), derivative(a, value)]. The derivatives at corners are torch's. */
const FUNCTIONS = {
  sin: [Math.sin, (a) => Math.cos(a)],
  cos: [Math.cos, (a) => -Math.sin(a)],
  tan: [Math.tan, (a, v) => 1 + v * v],
  atan: [Math.atan, (a) => 1 / (1 + a * a)],
  sinh: [Math.sinh, (a) => Math.cosh(a)],
  cosh: [Math.cosh, (a) => Math.sinh(a)],
  tanh: [Math.tanh, (a, v) => 1 - v * v],
  exp: [Math.exp, (a, v) => v],
  log: [Math.log, (a) => 1 / a],
  sqrt: [Math.sqrt, (a, v) => 0.5 / v],
  abs: [Math.abs, (a) => Math.sign(a)],
};
const CONSTANTS = { pi: Math.PI, e: Math.E };
const VARIABLES = ["x", "y"];

const OPERATORS = {
  "+": [(a, b) => a + b, () => 1, () => 1],
  "-": [(a, b) => a - b, () => 1, () => -1],
  "*": [(a, b) => a * b, (a, b) => b, (a) => a],
  "/": [(a, b) => a / b, (a, b) => 1 / b, (a, b, v) => -v / b],
  "^": [
    (a, b) => Math.pow(a, b),
    (a, b) => (b === 0 ? 0 : b * Math.pow(a, b - 1)),
    (a, b, v) => (a === 0 && b >= 0 ? 0 : v * Math.log(a)),
  ],
};

/** Why a formula is refused, and where: the characters from `start` up to `end`. */
export class FormulaError extends Error {
  constructor(message, start, end) {
    super(message);
    this.start = start;
    this.end = end;
  }
}

const TOKEN = /\s*(?:((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|([A-Za-z_]\w*)|(\*\*|[-+*/^()]))/y;

function tokenize(text) {
  if (text.length > MAX_LENGTH) {
    throw new FormulaError(`longer than ${MAX_LENGTH} characters`, MAX_LENGTH, text.length);
  }
  const tokens = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.length) {
    const from = TOKEN.lastIndex, match = TOKEN.exec(text);
    if (!match) {
      const start = from + text.slice(from).search(/\S|$/);
      if (start === text.length) break;
      const character = String.fromCodePoint(text.codePointAt(start));
      throw new FormulaError(`“${character}” means nothing here`, start, start + character.length);
    }
    const [, number, name, symbol] = match;
    const end = TOKEN.lastIndex, source = number ?? name ?? symbol;
    const kind = number !== undefined ? "number" : name !== undefined ? "name" : "symbol";
    tokens.push({ kind, source: source === "**" ? "^" : source, start: end - source.length, end });
  }
  tokens.push({ kind: "end", source: "", start: text.length, end: text.length });
  return tokens;
}

/** Recursive descent; each method reads one level of precedence and returns a tree. */
class Parser {
  constructor(text) {
    this.tokens = tokenize(text);
    this.position = 0;
    this.depth = 0;
  }

  get next() {
    return this.tokens[this.position];
  }

  isNext(...symbols) {
    return this.next.kind === "symbol" && symbols.includes(this.next.source);
  }

  take() {
    return this.tokens[this.position++];
  }

  fail(message, token = this.next) {
    throw new FormulaError(message, token.start, token.end);
  }

  formula() {
    if (this.next.kind === "end") this.fail("type a formula in x and y");
    const tree = this.sum();
    if (this.isNext(")")) this.fail("this parenthesis was never opened");
    if (this.next.kind !== "end") this.fail(`expected an operator before “${this.next.source}”`);
    return tree;
  }

  sum() {
    let tree = this.product();
    while (this.isNext("+", "-")) tree = this.join(this.take(), tree, this.product());
    return tree;
  }

  product() {
    let tree = this.signed();
    for (;;) {
      if (this.isNext("*", "/")) tree = this.join(this.take(), tree, this.signed());
      // 2x, 3(x + 1), (x - 1)(y + 2), 2 sin(x): a product without its sign
      else if (this.next.kind === "name" || this.isNext("(")) {
        tree = this.join({ source: "*", start: this.next.start, end: this.next.start }, tree, this.power());
      } else return tree;
    }
  }

  signed() {
    if (!this.isNext("+", "-")) return this.power();
    const sign = this.take();
    const tree = this.nested(() => this.signed());
    return sign.source === "-" ? this.join({ ...sign, source: "*" }, { number: -1 }, tree) : tree;
  }

  /** Binds tighter than a sign on its left, and to the right: -x^2 = -(x^2), x^2^3 = x^(2^3). */
  power() {
    const base = this.atom();
    if (!this.isNext("^")) return base;
    return this.join(this.take(), base, this.nested(() => this.signed()));
  }

  atom() {
    const token = this.take();
    if (token.kind === "number") return this.constant(Number(token.source), token);
    if (token.kind === "name") return this.named(token);
    if (token.source === "(") return this.parenthesized(token);
    this.position--;
    const where = token.kind === "end" ? "at the end" : `in place of “${token.source}”`;
    return this.fail(`expected a number, x, y or a function ${where}`, token);
  }

  named(token) {
    const name = token.source;
    if (VARIABLES.includes(name)) return { variable: VARIABLES.indexOf(name) };
    if (Object.hasOwn(CONSTANTS, name)) return { number: CONSTANTS[name] };
    if (!Object.hasOwn(FUNCTIONS, name)) {
      this.fail(`unknown name “${name}”; known are x, y, pi, e, ${Object.keys(FUNCTIONS).join(", ")}`, token);
    }
    if (!this.isNext("(")) this.fail(`${name} needs a parenthesis: ${name}(x)`, token);
    const argument = this.parenthesized(this.take());
    if (argument.number === undefined) return { call: name, argument };
    return this.constant(FUNCTIONS[name][0](argument.number), token);
  }

  parenthesized(opening) {
    const tree = this.nested(() => this.sum());
    if (!this.isNext(")")) {
      if (this.next.kind === "end") this.fail("this parenthesis is never closed", opening);
      this.fail(`expected an operator or “)” before “${this.next.source}”`);
    }
    this.take();
    return tree;
  }

  nested(read) {
    if (++this.depth > MAX_DEPTH) this.fail(`nested deeper than ${MAX_DEPTH} levels`);
    const tree = read();
    this.depth--;
    return tree;
  }

  /** Joins two trees; constants are computed here, once. */
  join(operator, left, right) {
    if (left.number === undefined || right.number === undefined) {
      return { operator: operator.source, left, right };
    }
    return this.constant(OPERATORS[operator.source][0](left.number, right.number), operator);
  }

  constant(number, token) {
    if (!Number.isFinite(number)) this.fail("this is not a finite number", token);
    return { number };
  }
}

/** The tree as a list of operations {apply, slots, partials}; the last one has the result. */
function flatten(tree, operations) {
  if (tree.variable !== undefined) return tree.variable;
  const parts = tree.call ? [tree.argument] : [tree.left, tree.right];
  const slots = parts.map((part) => (part.number === undefined ? flatten(part, operations) : null));
  const constants = parts.map((part) => part.number);
  const [apply, ...partials] = tree.call ? FUNCTIONS[tree.call] : OPERATORS[tree.operator];
  if (tree.call) partials[0] = ((derivative) => (a, _, value) => derivative(a, value))(partials[0]);
  operations.push({ apply, partials, slots, constants });
  return VARIABLES.length + operations.length - 1;
}

function compile(tree) {
  const operations = [];
  const result = flatten(tree, operations);
  const values = new Float64Array(VARIABLES.length + operations.length);
  const slopes = new Float64Array(values.length);
  const read = ({ slots, constants }, side) => (slots[side] === null ? constants[side] : values[slots[side]]);

  function value(x, y) {
    values[0] = x;
    values[1] = y;
    operations.forEach((operation, n) => {
      values[n + 2] = operation.apply(read(operation, 0), read(operation, 1));
    });
    return values[result];
  }

  function gradient(x, y, out) {
    value(x, y);
    slopes.fill(0);
    slopes[result] = 1;
    for (let n = operations.length - 1; n >= 0; n--) {
      const { slots, partials } = operations[n], slope = slopes[n + 2];
      // Where a result does not matter, its derivative, maybe infinite, must not matter either.
      if (slope === 0) continue;
      const a = read(operations[n], 0), b = read(operations[n], 1);
      for (let side = 0; side < slots.length; side++) {
        if (slots[side] !== null) slopes[slots[side]] += slope * partials[side](a, b, values[n + 2]);
      }
    }
    out[0] = slopes[0];
    out[1] = slopes[1];
  }

  return { value, gradient };
}

const PRECEDENCE = { "+": 1, "-": 1, "*": 2, "/": 2, "^": 4 };

/** The tree as a Python expression of torch tensors x and y. */
function torchText(tree, surrounding = 0) {
  if (tree.variable !== undefined) return VARIABLES[tree.variable];
  if (tree.number !== undefined) {
    const text = String(tree.number);
    return tree.number < 0 && surrounding > 1 ? `(${text})` : text;
  }
  if (tree.call) return `torch.${tree.call}(${torchText(tree.argument)})`;
  const level = PRECEDENCE[tree.operator], isPower = tree.operator === "^";
  const left = torchText(tree.left, isPower ? level + 1 : level);
  const right = torchText(tree.right, isPower ? level : level + 1);
  const text = `${left} ${isPower ? "**" : tree.operator} ${right}`;
  return level < surrounding ? `(${text})` : text;
}

/**
 * Read a formula. Throws a FormulaError, and nothing else, for a text that is none.
 * @returns {{value: function, gradient: function, torch: string}} value(x, y); gradient(x, y, out)
 */
export function parseFormula(text) {
  const tree = new Parser(text).formula();
  if (tree.number !== undefined) {
    throw new FormulaError("a constant has no landscape: use x or y", 0, text.length);
  }
  return { ...compile(tree), torch: torchText(tree) };
}
