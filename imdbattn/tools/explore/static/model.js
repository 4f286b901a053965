// The models of a file: how they read a text, in the format of the server's answers (read.py, cell.py).

import { Network, PAD, UNKNOWN, matrix, probabilitiesOf, products, rotated, row, sinusoid } from "./network.js";
import { Tokenizer } from "./tokens.js";
import { AnswerError, unframed } from "./tools.js";

const MAPPED_WORDS = 1024; // words for which weights are returned, whose number grows with its square
const LONGEST = 4096; // words that are read at most
const FIRST_WORD = 2; // row of the first word; the rows before are <pad> and <unk>
const REACH = 20; // words, of the curves of distances

// --- reading the file ------------------------------------------------------------------------------------------------

/** A matrix of float32 numbers. about: {type, rows, columns, start}: places of the bytes after the JSON. */
function decoded(buffer, first, { type, rows, columns, start }) {
  const size = rows * columns;
  if (type === "float32") return matrix(rows, columns, new Float32Array(buffer, first + start, size));
  const values = new Float32Array(size);
  const [low, high] = [new Uint8Array(buffer, first + start, size), new Uint8Array(buffer, first + start + size, size)];
  for (let at = 0; at < size; at++) values[at] = half(low[at] | (high[at] << 8));
  return matrix(rows, columns, values);
}

/** The number that the bits of a float16 denote; they have no infinities. */
function half(bits) {
  const [sign, exponent, fraction] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : (2 ** -14 * fraction) / 1024);
}

/** Reads the models of a file. Returns the function that answers messages: (kind, values) -> [facts, numbers or null]. */
export function answering(buffer) {
  const [facts, first] = unframed(buffer);
  const arrayOf = (about) => decoded(buffer, first, about);
  const tables = facts.vectors.map(({ words, table }) => ({
    rowOf: new Map(words.split("\n").map((word, at) => [word, at + FIRST_WORD])),
    table: arrayOf(table),
  }));
  const tokenizers = mapped(facts.tokenizers, (rules) => new Tokenizer(rules));
  const models = new Map(
    facts.models.map((about) => {
      const weights = mapped(about.weights, arrayOf);
      return [about.id, new Model(about, weights, tables[about.vectors], tokenizers[about.tokenizer], facts.reviews[about.reviews])];
    }),
  );
  return (kind, values) => {
    const model = models.get(values.run);
    if (!model) throw new AnswerError(`no model ${values.run}: ${[...models.keys()].join(", ")}`);
    return model[kind](values);
  };
}

// --- one model -------------------------------------------------------------------------------------------------------

const UNCHANGED = { heads: [], layers: [], words: [], positions: false, shuffle: null };

class Model {
  constructor(about, weights, { rowOf, table }, tokenizer, tests) {
    Object.assign(this, { about, weights, rowOf, table, tokenizer, tests, labels: about.labels });
    this.network = new Network(about.network, weights);
  }

  /** The vectors of rows of the table: (v - mean) / std, plus the trained offset. <pad> is zero, <unk> is learned. */
  embed(ids) {
    const { "embedding.shift_D": shift, "embedding.scale_D": scale, "embedding.unk_D": unknown, offset } = this.weights;
    const x = matrix(ids.length, this.table.columns);
    ids.forEach((id, at) => {
      const target = row(x, at);
      if (id === UNKNOWN) target.set(unknown.values);
      if (id <= UNKNOWN) return;
      const vector = row(this.table, id);
      for (let d = 0; d < target.length; d++) target[d] = (vector[d] - shift.values[d]) * scale.values[d];
      if (offset) row(offset, id).forEach((value, d) => (target[d] += value));
    });
    return x;
  }

  /** A text as the model reads it: shuffled, and with words removed, as the changes say. keys: the names of a map's columns. */
  reading(text, changes = UNCHANGED) {
    const all = this.tokenizer.words(text);
    const { max_tokens: most, head } = this.about;
    const cut = most !== null && all.length > most;
    const words = cut ? [...all.slice(0, head), ...all.slice(all.length - (most - head))] : all;
    if (words.length > LONGEST) throw new AnswerError(`${words.length} words: at most ${LONGEST} are read`);
    const order = changes.shuffle === null ? [...words.keys()] : shuffled(words.length, changes.shuffle);
    const letters = Array.from(text);
    const names = order.map((place) => letters.slice(words[place].start, words[place].end));
    let shown = text;
    let places = words.map(({ start, end }) => [start, end]);
    if (changes.shuffle !== null) {
      let at = 0;
      places = names.map((name) => [at, (at += name.length + 1) - 1]);
      shown = names.map((name) => name.join("")).join(" ");
    }
    const ids = order.map((place) => this.rowOf.get(words[place].text) ?? UNKNOWN);
    const kept = order.map((place) => !changes.words.includes(place));
    const positions = [...order.keys()].filter((at) => kept[at]);
    const keys = positions.length ? positions.map((at) => names[at].join("")) : ["<pad>"];
    if (this.network.pooling.cls) keys.unshift("<cls>");
    return { text: shown, order, places, kept, ids: positions.map((at) => ids[at]), positions, keys, unread: all.length - words.length };
  }

  /** Applies the network. padding: positions after the review; not masked: they count as words. */
  forward({ ids, positions }, changes = UNCHANGED, padding = 0, masked = true) {
    if (!ids.length) [ids, positions] = [[PAD], [0]]; // an empty review is one <pad>
    const mask = ids.map(() => 1);
    const extra = Array(padding).fill(PAD);
    const words = { positions: [...positions, ...extra], mask: [...mask, ...extra.map(() => Number(!masked))] };
    return this.network.forward(this.embed([...ids, ...extra]), words, changes);
  }

  result(logits) {
    const shares = probabilitiesOf(logits);
    const best = shares.indexOf(Math.max(...shares));
    return { label: this.labels[best], probability: shares[best], probabilities: named(this.labels, shares) };
  }

  /** Test reviews, and how the model labels them. */
  reviews() {
    return [{ fingerprint: this.about.reviews, reviews: this.tests, ...this.about.predicted }, null];
  }

  /** The label, the words with their shares, and the weights of each layer and of the pooling. */
  read({ text, changes }) {
    const reading = this.reading(text, changes);
    const result = this.forward(reading, changes);
    const hasMaps = reading.ids.length <= MAPPED_WORDS;
    const shown = hasMaps ? this.attentions(result) : [];
    const shares = hasMaps ? sharesOf(result) : null;
    const cls = Number(Boolean(this.network.pooling.cls));
    let next = cls;
    const facts = {
      ...this.result(result.logits),
      text: reading.text,
      words: reading.places.map(([start, end], at) => ({
        start,
        end,
        place: reading.order[at],
        share: reading.kept[at] && shares ? shares[next++] : null,
        removed: !reading.kept[at],
      })),
      unknown: reading.ids.filter((id) => id === UNKNOWN).length,
      unread: reading.unread,
      keys: hasMaps ? reading.keys : [],
      cls: Boolean(cls) && hasMaps,
      layers: this.network.layers.length,
      attentions: shown.map(({ heads, ...about }) => ({
        ...about,
        heads: heads.length,
        queries: heads[0].weights.rows,
        entropies: heads.map(({ weights }) => entropy(weights)),
      })),
      has_positions: this.network.hasPositions,
      note: hasMaps ? null : `${reading.ids.length.toLocaleString("en")} words: attention is shown for up to ${MAPPED_WORDS.toLocaleString("en")}`,
    };
    if (isChanged(changes)) facts.before = this.result(this.forward(this.reading(text)).logits).probabilities;
    return [facts, joined(shown.flatMap(({ heads }) => heads.map((head) => head.weights.values)))];
  }

  /** The attentions whose weights are shown: each layer, and a pooling with a query. */
  attentions({ layers, pooling }) {
    const shown = layers.map(({ number, heads }) => ({ name: `layer ${number}`, layer: number, heads }));
    const { kind } = this.about.network.pooling;
    if (kind === "LabelQueryPooling") shown.push({ name: "pooling", labels: this.labels, heads: pooling.heads });
    else if (kind !== "MeanPooling" && kind !== "ClsPooling") shown.push({ name: "pooling", heads: pooling.heads });
    return shown;
  }

  /** The arithmetic of one row of a map: the numbers of the network. layer 0 is the pooling. */
  cell({ text, changes, layer, head, query, padding, masked }) {
    const reading = this.reading(text, changes);
    const result = this.forward(reading, changes, padding, masked);
    const heads = layer ? result.layers.find((one) => one.number === layer).heads : result.pooling.heads;
    const chosen = heads[head - 1];
    const { score } = layer ? this.network.layers[layer - 1].f : this.network.pooling;
    const q = matrix(1, chosen.query.columns, row(chosen.query, query));
    const scores = score(q, chosen.key);
    const arrays = { query: q.values, scores: scores.values };
    if (score.project) arrays.projected = score.project(q).values;
    Object.assign(arrays, { keys: chosen.key, values: chosen.value });
    if (chosen.added) {
      arrays.added = row(chosen.added, query);
      arrays.scores = arrays.scores.map((value, at) => value + arrays.added[at]);
    }
    arrays.mask = Float32Array.from(result.words.mask);
    Object.assign(arrays, { weights: row(chosen.weights, query), output: row(chosen.output, query) });
    const facts = {
      names: [...reading.keys, ...Array(padding).fill("<pad>")],
      score: score.kind,
      scale: score.scale ?? null,
      probabilities: this.result(result.logits).probabilities,
      shapes: mapped(arrays, (array) => (array.rows ? [array.rows, array.columns] : [array.length])),
    };
    return [facts, joined(Object.values(arrays).map((array) => (array.rows ? array.values : array)))];
  }

  /** Products of position vectors, and what distances add to the scores. */
  positions({ length }) {
    const tables = positionTables(this.network, length);
    const distances = this.network.layers.flatMap(({ about, f }, at) => {
      if (!about.distances) return [];
      const positions = Array.from({ length: 2 * REACH + 1 }, (_, position) => position);
      const added = Array.from({ length: about.heads }, (_, head) => Array.from(row(f.distances(head, positions), REACH)));
      return [{ name: `layer ${at + 1}`, added }];
    });
    const facts = { tables: tables.map(({ name, table }) => ({ name, size: table.rows })), distances };
    return [facts, joined(tables.map(({ table }) => products(table, table).values))];
  }

  /** For a page of one's own: labels, words, probabilities, and the weights of each attention as rows of numbers. */
  classify({ text }) {
    const [facts, numbers] = this.read({ text, changes: UNCHANGED });
    let at = 0;
    const take = (size) => Array.from(numbers.subarray(at, (at += size)));
    const attention = facts.attentions.map(({ name, heads, queries }) => ({
      name,
      heads: Array.from({ length: heads }, () => Array.from({ length: queries }, () => take(facts.keys.length))),
    }));
    const { label, probability, probabilities, keys, unknown } = facts;
    const letters = Array.from(facts.text);
    const tokens = facts.words.map(({ start, end }) => letters.slice(start, end).join(""));
    return [{ labels: this.labels, label, probability, probabilities: this.labels.map((name) => probabilities[name]), tokens, unknown, keys, attention }, null];
  }
}

function named(names, values) {
  return Object.fromEntries(names.map((name, at) => [name, values[at]]));
}

function mapped(record, change) {
  return Object.fromEntries(Object.entries(record).map(([name, value]) => [name, change(value)]));
}

function joined(arrays) {
  const result = new Float32Array(arrays.reduce((size, array) => size + array.length, 0));
  let at = 0;
  for (const array of arrays) {
    result.set(array, at);
    at += array.length;
  }
  return result;
}

function isChanged({ heads, layers, words, positions, shuffle }) {
  return heads.length > 0 || layers.length > 0 || words.length > 0 || positions || shuffle !== null;
}

/** A random order of so many places, by a generator of Lehmer (changes.py has the same). */
export function shuffled(size, seed) {
  const order = [...Array(size).keys()];
  let state = (seed % 2147483646) + 1;
  for (let skipped = 0; skipped < 3; skipped++) state = (state * 48271) % 2147483647;
  for (let last = size - 1; last > 0; last--) {
    state = (state * 48271) % 2147483647;
    const other = state % (last + 1);
    [order[last], order[other]] = [order[other], order[last]];
  }
  return order;
}

/** The mean entropy of the rows, in nats. */
function entropy({ rows, values }) {
  return -values.reduce((sum, weight) => sum + (weight > 0 ? weight * Math.log(weight) : 0), 0) / rows;
}

/** Attention rollout (Abnar & Zuidema 2020) through the enabled heads: the share of each input in the pooled vector. */
function sharesOf({ layers, pooling }) {
  let share = mean(pooling.heads.map(({ weights }) => weights.values));
  for (const { skip, off, heads } of [...layers].reverse()) {
    const kept = heads.filter((_, head) => !off.includes(head + 1));
    const own = share;
    const passed = new Float64Array(own.length);
    for (const { weights } of kept) own.forEach((part, query) => row(weights, query).forEach((weight, key) => (passed[key] += (part * weight) / kept.length)));
    if (!kept.length && skip) own.forEach((part, key) => (passed[key] = part));
    share = skip ? passed.map((value, key) => (value + own[key]) / 2) : passed;
  }
  return Array.from(share);
}

function mean(arrays) {
  const result = new Float64Array(arrays[0].length);
  for (const values of arrays) values.forEach((value, at) => (result[at] += value / arrays.length));
  return result;
}

/** The first position vectors by name. Rotary positions have none: a vector of ones is rotated to each position. */
function positionTables({ about, layers, weights }, length) {
  const { kind, scale } = about.positions;
  const sinusoids = (rows, width) => {
    const table = matrix(rows, width);
    for (let at = 0; at < rows; at++) for (let h = 0; h < width; h++) table.values[at * width + h] = sinusoid(at, h, width);
    return table;
  };
  if (kind === "SinusoidalPositions") {
    const added = scale === 1 ? "" : ` (the model adds ${Number(scale.toPrecision(6))} pe)`;
    return [{ name: `sinusoidal positions pe${added}`, table: sinusoids(length, about.width) }];
  }
  if (layers[0]?.about.attention === "RotaryAttention") {
    const ones = matrix(length, layers[0].f.size);
    ones.values.fill(1);
    return [{ name: "a vector of ones, rotated at each position", table: rotated(ones, [...Array(length).keys()]) }];
  }
  if (kind === "LearnedPositions") {
    const learned = weights["positions.table.weight"];
    const rows = Math.min(length, learned.rows);
    const own = matrix(rows, learned.columns, learned.values.subarray(0, rows * learned.columns));
    return [
      { name: "sinusoidal positions of this width", table: sinusoids(rows, learned.columns) },
      { name: "this model's learned positions", table: own },
    ];
  }
  return [];
}
