// The networks of the ladder in plain JavaScript: imdbattn/nn/ladder.py, scores.py and beyond/attention.py, for one review.
//
// A matrix is {rows, columns, values}, values a Float32Array in row-major order. Letters of shapes: T positions, D width,
// H heads, Q queries, K keys, d width of one head, C classes. Sums are float64, as JavaScript computes; results are float32.

export const PAD = 0;
export const UNKNOWN = 1;
const DISTANCES = 8192; // positions after which Distances repeat
const EPSILON = 1e-5; // of LayerNorm

export function matrix(rows, columns, values = new Float32Array(rows * columns)) {
  return { rows, columns, values };
}

/** Row `at` of a matrix, a view of its values. */
export function row({ columns, values }, at) {
  return values.subarray(at * columns, (at + 1) * columns);
}

// --- formulas --------------------------------------------------------------------------------------------------------

/** softmax(score(q, k) + added) v. q (Q, d), k (K, d), v (K, V); mask: K numbers, 0 on padding; added (Q, K) or null. */
export function attention(q, k, v, mask, score, added = null) {
  const scores = score(q, k);
  if (added) add(scores, added);
  const weights = softmax(scores, mask);
  return { weights, output: product(weights, v) };
}

/** The softmax of each row over the keys whose mask is not 0. Changes the scores (Q, K) into the weights. */
export function softmax(scores, mask) {
  for (let at = 0; at < scores.rows; at++) {
    const weights = row(scores, at);
    let most = -Infinity;
    for (let key = 0; key < weights.length; key++) if (mask[key] && weights[key] > most) most = weights[key];
    let sum = 0;
    for (let key = 0; key < weights.length; key++) sum += weights[key] = mask[key] ? Math.exp(weights[key] - most) : 0;
    for (let key = 0; key < weights.length; key++) weights[key] /= sum || 1;
  }
  return scores;
}

/** a b: (Q, K) and (K, V) -> (Q, V). */
export function product(a, b) {
  const result = matrix(a.rows, b.columns);
  const sums = new Float64Array(b.columns);
  for (let at = 0; at < a.rows; at++) {
    sums.fill(0);
    const start = at * a.columns;
    for (let k = 0; k < a.columns; k++) {
      const factor = a.values[start + k];
      if (factor === 0) continue;
      const other = k * b.columns;
      for (let column = 0; column < sums.length; column++) sums[column] += factor * b.values[other + column];
    }
    result.values.set(sums, at * b.columns);
  }
  return result;
}

/** scale * a b^T: (Q, d) and (K, d) -> (Q, K). */
export function products(a, b, scale = 1) {
  const result = matrix(a.rows, b.rows);
  const [x, y, size] = [a.values, b.values, a.columns];
  for (let i = 0, at = 0; i < a.rows; i++) {
    for (let j = 0; j < b.rows; j++) {
      let sum = 0;
      for (let d = 0, left = i * size, right = j * size; d < size; d++) sum += x[left + d] * y[right + d];
      result.values[at++] = sum * scale;
    }
  }
  return result;
}

/** x W^T + b: x (T, D) -> (T, E), with the weights of this name: W (E, D) and b, which may be missing. */
function linear(x, weights, name) {
  const result = products(x, weights[`${name}.weight`]);
  const bias = weights[`${name}.bias`];
  if (bias) for (let at = 0; at < result.rows; at++) addTo(row(result, at), bias.values);
  return result;
}

/** Adds b to a. */
function add(a, b) {
  addTo(a.values, b.values);
  return a;
}

function addTo(values, others) {
  for (let at = 0; at < values.length; at++) values[at] += others[at];
}

function relu(x) {
  for (let at = 0; at < x.values.length; at++) if (x.values[at] < 0) x.values[at] = 0;
  return x;
}

/** Each row with mean 0 and variance 1, times `weight`, plus `bias`. */
function layerNorm(x, weight, bias) {
  const result = matrix(x.rows, x.columns);
  for (let at = 0; at < x.rows; at++) {
    const values = row(x, at);
    const mean = values.reduce((sum, value) => sum + value, 0) / x.columns;
    const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / x.columns;
    const factor = 1 / Math.sqrt(variance + EPSILON);
    values.forEach((value, d) => (result.values[at * x.columns + d] = (value - mean) * factor * weight.values[d] + bias.values[d]));
  }
  return result;
}

/** pe[i, h] = sin(i / 10000^(h/d)) for even h, cos(i / 10000^((h-1)/d)) for odd h. */
export function sinusoid(position, h, width) {
  const angle = position / 10000 ** ((h - (h % 2)) / width);
  return h % 2 ? Math.cos(angle) : Math.sin(angle);
}

/** softmax of C logits, in float64. */
export function probabilitiesOf(logits) {
  const most = Math.max(...logits);
  const exp = Array.from(logits, (logit) => Math.exp(logit - most));
  const sum = exp.reduce((total, one) => total + one, 0);
  return exp.map((one) => one / sum);
}

// --- scores: a function of q (Q, d) and k (K, d) -> (Q, K), with `scale` and `project` if it is scale * project(q) . k -

/** weights: name -> matrix, those of the score. */
function makeScore(kind, weights, size) {
  const dot = (scale, project = (q) => q) => Object.assign((q, k) => products(project(q), k, scale), { kind, scale, project });
  if (kind === "ScaledDot") return dot(1 / Math.sqrt(size));
  if (kind === "Dot") return dot(1);
  if (kind === "Bilinear") return dot(1, (q) => linear(q, weights, "weight"));
  if (kind === "Uniform") return Object.assign((q, k) => matrix(q.rows, k.rows), { kind });
  if (kind === "Additive") return Object.assign((q, k) => additive(q, k, weights), { kind });
  throw new Error(`The score ${kind} is not known.`);
}

/** v . tanh(W_q q + W_k k). */
function additive(q, k, weights) {
  const [query, key, v] = [linear(q, weights, "query"), linear(k, weights, "key"), weights["v.weight"].values];
  const result = matrix(q.rows, k.rows);
  for (let i = 0; i < q.rows; i++) {
    for (let j = 0; j < k.rows; j++) {
      let sum = 0;
      for (let d = 0; d < v.length; d++) sum += v[d] * Math.tanh(query.values[i * v.length + d] + key.values[j * v.length + d]);
      result.values[i * k.rows + j] = sum;
    }
  }
  return result;
}

// --- the network -----------------------------------------------------------------------------------------------------

/** The weights whose names begin with `prefix`, without it. */
function below(weights, prefix) {
  const found = Object.entries(weights).filter(([name]) => name.startsWith(prefix));
  return Object.fromEntries(found.map(([name, value]) => [name.slice(prefix.length), value]));
}

/** Self-attention of one layer. about: {attention, heads, score, distances}. */
class SelfAttention {
  constructor(about, weights, width) {
    Object.assign(this, { about, weights, size: width / about.heads });
    this.score = makeScore(about.score, below(weights, "attention.score."), this.size);
  }

  /** x (T, D) -> its output (T, D), and for each head {query, key, value, added, weights, output}. */
  forward(x, words, { off = [], positions = true } = {}) {
    const [q, k, v] = ["query", "key", "value"].map((name) => linear(x, this.weights, name));
    const joined = matrix(x.rows, x.columns);
    const heads = Array.from({ length: this.about.heads }, (_, head) => {
      let [query, key, value] = [q, k, v].map((all) => columnsOf(all, head * this.size, this.size));
      if (this.about.attention === "RotaryAttention" && positions) [query, key] = [rotated(query, words.positions), rotated(key, words.positions)];
      const added = this.about.distances && positions ? this.distances(head, words.positions) : null;
      const { weights, output } = attention(query, key, value, words.mask, this.score, added);
      if (!off.includes(head + 1)) setColumns(joined, head * this.size, output);
      return { query, key, value, added, weights, output };
    });
    const y = this.about.attention === "ProjectedAttention" ? linear(joined, this.weights, "output") : joined;
    return { y, heads };
  }

  /** What the distances between positions add to the scores of a head, (T, T). */
  distances(head, positions) {
    const added = matrix(positions.length, positions.length);
    const known = new Map();
    for (let i = 0, at = 0; i < positions.length; i++) {
      for (let j = 0; j < positions.length; j++, at++) {
        const apart = this.about.distances === "Distances" ? repeated(positions[j]) - repeated(positions[i]) : positions[j] - positions[i];
        if (!known.has(apart)) known.set(apart, this.addedAt(head, apart));
        added.values[at] = known.get(apart);
      }
    }
    return added;
  }

  addedAt(head, apart) {
    if (this.about.distances === "ClippedDistances") {
      const { rows, columns, values } = this.weights["distances.bias_RH"];
      const reach = (rows - 1) / 2;
      return values[(Math.min(reach, Math.max(-reach, apart)) + reach) * columns + head];
    }
    if (this.about.distances !== "Distances") throw new Error(`The distances ${this.about.distances} are not known.`);
    const [a, b] = ["cos", "sin"].map((name) => row(this.weights[`distances.${name}_HM`], head));
    return a.reduce((sum, factor, m) => {
      const angle = (Math.PI / 64 ** (m / Math.max(a.length - 1, 1))) * apart;
      return sum + factor * Math.cos(angle) + b[m] * Math.sin(angle);
    }, 0);
  }
}

function repeated(position) {
  return (position + 1) % DISTANCES;
}

function columnsOf(x, start, size) {
  if (size === x.columns) return x;
  const part = matrix(x.rows, size);
  for (let at = 0; at < x.rows; at++) part.values.set(row(x, at).subarray(start, start + size), at * size);
  return part;
}

function setColumns(x, start, part) {
  for (let at = 0; at < x.rows; at++) x.values.set(row(part, at), at * x.columns + start);
}

/** Dimensions 2m and 2m + 1 of each row, rotated by i / 10000^(2m/d) at position i. */
export function rotated(x, positions) {
  const result = matrix(x.rows, x.columns, x.values.slice());
  for (let m = 0; m < Math.floor(x.columns / 2); m++) {
    const frequency = Math.fround(10000 ** ((-2 * m) / x.columns));
    for (let at = 0; at < x.rows; at++) {
      const angle = Math.fround(positions[at] * frequency);
      const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
      const [a, b] = row(x, at).subarray(2 * m, 2 * m + 2);
      result.values[at * x.columns + 2 * m] = a * cos - b * sin;
      result.values[at * x.columns + 2 * m + 1] = a * sin + b * cos;
    }
  }
  return result;
}

/** One layer: x <- g(f(x)), or x <- g(x + f(LN(x))) with a skip connection. */
class Layer {
  constructor(about, weights, width) {
    Object.assign(this, { about, weights });
    this.f = new SelfAttention(about, below(weights, "f."), width);
  }

  forward(x, words, changes) {
    const normed = this.about.skip ? layerNorm(x, this.weights["norm.weight"], this.weights["norm.bias"]) : x;
    const { y, heads } = this.f.forward(normed, words, changes);
    const input = this.about.skip ? add(y, x) : y;
    return { x: relu(linear(input, this.weights, "g.0")), heads };
  }
}

/** Reduces the vectors of a review to one, or to one for each label. */
class Pooling {
  constructor(about, weights, width) {
    Object.assign(this, { about, weights });
    this.cls = about.kind === "ClsPooling" ? weights.cls_D : null;
    this.score = about.score && makeScore(about.score, below(weights, "attention.score."), width);
  }

  /** x (T, D) -> {z, heads}: z (1, D) or (C, D); heads as of SelfAttention, without query for a mean or <cls>. */
  forward(x, words) {
    const { kind } = this.about;
    const mean = softmax(matrix(1, x.rows), words.mask);
    if (kind === "MeanPooling") return this.only(mean, product(mean, x));
    if (kind === "ClsPooling") {
      const first = matrix(1, x.rows);
      first.values[0] = 1;
      return this.only(first, matrix(1, x.columns, row(x, 0)));
    }
    if (kind === "TextQueryPooling") {
      const query = linear(product(mean, x), this.weights, "query");
      return this.attend(query, linear(x, this.weights, "key"), linear(x, this.weights, "value"), words);
    }
    if (kind === "LabelQueryPooling") return this.attend(this.weights.query_CD, x, x, words);
    if (kind === "LearnedQueryPooling") return this.attend(this.weights.query_D, x, x, words);
    throw new Error(`The pooling ${kind} is not known.`);
  }

  only(weights, output) {
    return { z: output, heads: [{ weights, output }] };
  }

  /** Each row of the queries is a head with one query. */
  attend(queries, key, value, words) {
    const { weights, output } = attention(queries, key, value, words.mask, this.score);
    const heads = Array.from({ length: queries.rows }, (_, at) => ({
      query: matrix(1, queries.columns, row(queries, at)),
      key,
      value,
      added: null,
      weights: matrix(1, weights.columns, row(weights, at)),
      output: matrix(1, output.columns, row(output, at)),
    }));
    return { z: output, heads };
  }
}

/** A trained classifier. about: what imdbattn/tools/explore/onefile.py describes. weights: name -> matrix. */
export class Network {
  constructor(about, weights) {
    Object.assign(this, { about, weights, width: about.width });
    this.layers = about.layers.map((layer, at) => new Layer(layer, below(weights, `layers.${at}.`), about.width));
    this.pooling = new Pooling(about.pooling, below(weights, "pooling."), about.width);
    this.hasPositions = about.positions.kind !== "NoPositions" || about.layers.some((one) => one.distances || one.attention === "RotaryAttention");
  }

  /**
   * x (T, E): the vectors of the words, at least one. words: {positions, mask}, T numbers each.
   * changes: {heads: [[layer, head]], layers: [numbers], positions: true removes them}.
   * Returns {logits, layers: [{number, skip, heads}], pooling: {heads}, words}; words begin with <cls> if there is one.
   */
  forward(x, words, changes = { heads: [], layers: [], positions: false }) {
    x = this.weights["resize.weight"] ? linear(x, this.weights, "resize") : matrix(x.rows, x.columns, x.values.slice());
    if (!changes.positions) this.addPositions(x, words.positions);
    if (this.pooling.cls) {
      x = matrix(x.rows + 1, x.columns, Float32Array.from([...this.pooling.cls.values, ...x.values]));
      words = { positions: [-1, ...words.positions], mask: [1, ...words.mask] };
    }
    const layers = [];
    this.layers.forEach((layer, at) => {
      const number = at + 1;
      if (changes.layers.includes(number)) return;
      const off = changes.heads.filter(([one]) => one === number).map(([, head]) => head);
      const result = layer.forward(x, words, { off, positions: !changes.positions });
      x = result.x;
      layers.push({ number, skip: layer.about.skip, off, heads: result.heads });
    });
    const { z, heads } = this.pooling.forward(x, words);
    return { logits: this.logits(z), layers, pooling: { heads }, words };
  }

  addPositions(x, positions) {
    const { kind, scale, length } = this.about.positions;
    if (kind === "NoPositions") return;
    if (!["LearnedPositions", "SinusoidalPositions"].includes(kind)) throw new Error(`The positions ${kind} are not known.`);
    const learned = this.weights["positions.table.weight"];
    for (let at = 0; at < x.rows; at++) {
      if (learned && positions[at] >= learned.rows) throw new Error(`The model has ${learned.rows} positions: shorten the text.`);
      if (learned) addTo(row(x, at), row(learned, positions[at]));
      else for (let h = 0; h < x.columns; h++) x.values[at * x.columns + h] += Math.fround(scale * sinusoid(Math.min(positions[at], length - 1), h, x.columns));
    }
  }

  /** The logit of class c is w_c . z + b_c; with a query for each label, w_c . z_c + b_c. */
  logits(z) {
    const { rows, columns, values } = linear(z, this.weights, "head");
    return Float32Array.from({ length: columns }, (_, c) => values[(rows > 1 ? c : 0) * columns + c]);
  }
}
