/**
 * A small language model: the logits of the next character after two characters. A client trains only the rows of the
 * pairs that occur in its text, and sends how they changed.
 *
 * Deterministic: the same text and plan give the same update on the same JavaScript engine.
 *
 * @module
 */

/**
 * @typedef {object} Plan the payload of a task
 * @property {"next-character"} kind
 * @property {string} alphabet the characters of the model
 * @property {string} tensor of the round
 * @property {number} epochs passes over the text
 * @property {number} learningRate
 */

const DECODER = new TextDecoder();

/** @param {Uint8Array} payload @returns {Plan} */
export function planOf(payload) {
  const plan = JSON.parse(DECODER.decode(payload));
  if (plan.kind !== "next-character") throw new Error(`this page knows no tasks of the kind "${plan.kind}"`);
  return plan;
}

/** @param {string} text @param {string} alphabet @returns {number[]} places in the alphabet; unknown characters are left out */
export function tokensOf(text, alphabet) {
  const places = new Map([...alphabet].map((character, place) => [character, place]));
  const tokens = [];
  for (const character of text.toLowerCase().replace(/\s+/g, " ")) {
    const place = places.get(character);
    if (place !== undefined) tokens.push(place);
  }
  return tokens;
}

function softmax(logits) {
  const most = Math.max(...logits);
  const powers = logits.map((logit) => Math.exp(logit - most));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}

/** A model: logits by context, which is two characters. Rows that nobody has trained are zero. */
export class Model {
  /** @param {number} size of the alphabet @param {{keys: ArrayLike<number>, values: ArrayLike<number>}} [rows] */
  constructor(size, rows = { keys: [], values: [] }) {
    this.size = size;
    this.rows = new Map();
    for (let i = 0; i < rows.keys.length; ++i) {
      this.rows.set(rows.keys[i], Array.from({ length: size }, (_, j) => rows.values[i * size + j]));
    }
  }

  row(context) {
    return this.rows.get(context) ?? new Array(this.size).fill(0);
  }

  /** @param {number[]} tokens @returns {number} mean cross-entropy of the next character, in nats */
  loss(tokens) {
    let sum = 0;
    for (let i = 2; i < tokens.length; ++i) {
      sum -= Math.log(softmax(this.row(tokens[i - 2] * this.size + tokens[i - 1]))[tokens[i]]);
    }
    return sum / Math.max(1, tokens.length - 2);
  }

  /** @param {string} alphabet @param {string} start two characters or more @param {number} length @returns {string} */
  write(alphabet, start, length) {
    const tokens = tokensOf(start, alphabet);
    while (tokens.length < length) {
      const odds = softmax(this.row(tokens[tokens.length - 2] * this.size + tokens[tokens.length - 1]));
      let left = Math.random();
      let next = odds.findIndex((odd) => (left -= odd) < 0);
      if (next < 0) next = 0;
      tokens.push(next);
    }
    return tokens.map((token) => [...alphabet][token]).join("");
  }
}

/**
 * Trains on a text. @param {string} text @param {Plan} plan
 * @param {{keys: ArrayLike<number>, values: ArrayLike<number>}} [start] the model so far
 * @returns {{keys: Uint32Array, values: Float32Array, examples: number, lossBefore: number, lossAfter: number}}
 */
export function train(text, plan, start = undefined) {
  const size = [...plan.alphabet].length;
  const tokens = tokensOf(text, plan.alphabet);
  const model = new Model(size, start);
  const before = new Model(size, start);
  const lossBefore = model.loss(tokens);
  for (let epoch = 0; epoch < plan.epochs; ++epoch) {
    for (let i = 2; i < tokens.length; ++i) {
      const context = tokens[i - 2] * size + tokens[i - 1];
      const logits = model.row(context);
      const odds = softmax(logits);
      model.rows.set(context, logits.map((logit, j) => logit + plan.learningRate * ((j === tokens[i] ? 1 : 0) - odds[j])));
    }
  }
  const touched = new Set();
  for (let i = 2; i < tokens.length; ++i) touched.add(tokens[i - 2] * size + tokens[i - 1]);
  const keys = Uint32Array.from(touched).sort();
  const values = new Float32Array(keys.length * size);
  keys.forEach((key, i) => {
    const old = before.row(key);
    model.row(key).forEach((logit, j) => {
      values[i * size + j] = logit - old[j];
    });
  });
  return { keys, values, examples: Math.max(0, tokens.length - 2), lossBefore, lossAfter: model.loss(tokens) };
}
