// The arithmetic of one cell of a map: query, key, their score, the mask, the softmax of the row, the sum of the values.
// All numbers are the network's; products, exponentials and sums of them are computed here.

import { ask } from "./api.js";
import { largestOf } from "./matrix.js";
import { t } from "./texts.js";
import { count, el, percent, quoted, tableRow } from "./tools.js";

const MOST_PADDING = 20;
const LISTED = 8; // keys with the largest weights
const PAD = "<pad>";

export class Cell {
  /** page: {choose(run, cell or null)} */
  constructor(run, page) {
    Object.assign(this, { run, page });
    this.body = el("div");
    this.padding = el("input", { type: "number", min: 0, max: MOST_PADDING, on: { input: () => this.change() } });
    this.unmasked = el("input", { type: "checkbox", on: { change: () => this.change() } });
    const tools = [el("label", {}, `${t("padded positions")} `, this.padding), el("label", {}, this.unmasked, ` ${t("without mask")}`)];
    this.element = el("section", { class: "cell", "aria-label": t("Arithmetic of a cell") }, this.body, el("div", { class: "tools" }, ...tools));
  }

  change() {
    const padding = Math.min(MOST_PADDING, Math.max(0, Math.round(Number(this.padding.value)) || 0));
    this.page.choose(this.run.id, { ...this.chosen, padding, masked: !padding || !this.unmasked.checked });
  }

  /** Requests the numbers of the row of a cell. values: of the review. about: title, name of the query, probabilities. */
  async update(values, chosen, about) {
    Object.assign(this, { chosen, about });
    if (document.activeElement !== this.padding) this.padding.value = chosen.padding;
    this.unmasked.checked = !chosen.masked;
    this.unmasked.disabled = !chosen.padding;
    const { key, ...row } = chosen;
    const request = JSON.stringify({ ...values, ...row });
    try {
      if (this.request !== request) {
        this.request = request;
        this.facts = null;
        const [facts, numbers] = await ask("cell", { ...values, ...row });
        this.facts = { ...facts, ...unpacked(facts.shapes, numbers) };
      }
      if (this.facts) this.show(this.facts);
    } catch (error) {
      this.request = null;
      this.body.replaceChildren(el("p", { class: "error", role: "alert", text: error.message }));
      throw error;
    }
  }

  show(facts) {
    const { key } = this.chosen;
    if (key >= facts.names.length) return this.page.choose(this.run.id, null);
    const focus = document.activeElement?.dataset?.key;
    const close = el("button", { type: "button", text: t("Close"), on: { click: () => this.page.choose(this.run.id, null) } });
    const title = el("h4", {}, `${this.about.title}: ${quoted(this.about.query)} → ${quoted(facts.names[key])}`, close);
    const largest = facts.scores.reduce((most, score, at) => (facts.mask[at] ? Math.max(most, score) : most), -Infinity);
    const exp = facts.scores.map((score, at) => (facts.mask[at] ? Math.exp(score - largest) : 0));
    this.row = { largest, exp, sum: exp.reduce((sum, value) => sum + value, 0) };
    this.body.replaceChildren(title, ...this.vectors(facts), this.steps(facts), this.softmax(facts), this.effect(facts));
    if (focus !== undefined) this.body.querySelector(`[data-key="${focus}"]`)?.focus({ preventScroll: true });
  }

  /** q, k and their products as strips; pointing at a dimension, or an arrow key, shows its numbers. */
  vectors(facts) {
    const [q, k] = [facts.query, facts.keys[this.chosen.key]];
    const vectors = [["q", q], ["k", k]];
    const most = absolute([...q, ...k]);
    if (facts.projected && String(facts.projected) !== String(q)) vectors.splice(1, 0, ["W q", facts.projected]);
    const name = vectors.length > 2 ? "W q" : "q";
    if (facts.projected) vectors.push([`${name} × k`, facts.projected.map((value, at) => value * k[at])]);
    this.product = facts.projected && { name: `${name} · k`, value: sum(vectors.at(-1)[1]) };
    const line = el("p", { class: "at", "aria-live": "polite" });
    const strips = vectors.flatMap(([name, values]) => [
      el("span", { text: name }),
      strip(values, name === "q" || name === "k" ? most : absolute(values)),
    ]);
    const group = el("div", { class: "strips", tabindex: 0, role: "application", "aria-roledescription": "strips" }, ...strips);
    group.setAttribute("aria-label", t("Query, key and their products by dimension: arrow keys move"));
    let dimension = null;
    const point = (at) => {
      dimension = at;
      for (const node of group.querySelectorAll(".strip")) node.style.setProperty("--at", at === null ? "-9px" : `${((at + 0.5) / q.length) * 100}%`);
      const numbers = () => `${t("dimension {number}", { number: at + 1 })}: ${vectors.map(([name, values]) => `${name} = ${number(values[at])}`).join(", ")}`;
      const range = t("from −{most} (blue) to {most} (orange)", { most: number(most) });
      line.textContent = at === null ? t("{dimensions}, {range}; point at one to read its numbers", { dimensions: count(q.length, "dimension"), range }) : numbers();
    };
    group.addEventListener("pointermove", (event) => {
      const box = group.querySelector(".strip").getBoundingClientRect();
      const at = Math.floor(((event.clientX - box.left) / box.width) * q.length);
      point(at >= 0 && at < q.length ? at : null);
    });
    group.addEventListener("pointerleave", () => point(null));
    group.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      point(Math.min(q.length - 1, Math.max(0, (dimension ?? -1) + step)));
      event.preventDefault();
    });
    point(null);
    return [group, line];
  }

  /** From the product to the weight, one line each. */
  steps(facts) {
    const { key } = this.chosen;
    const [score, padded, masked] = [facts.scores[key], facts.names[key] === PAD, !facts.mask[key]];
    const lines = [];
    if (this.product) lines.push([this.product.name, this.product.value, t("sum of the products")]);
    else lines.push([t("{score} score", facts), score - (facts.added?.[key] ?? 0), t("of q and k")]);
    if (this.product && facts.scale !== 1) lines.push([divisor(facts.scale), this.product.value * facts.scale, t("scaled")]);
    if (facts.added) lines.push([t("+ distance"), score, t("{added} for this distance", { added: number(facts.added[key]) })]);
    lines.at(-1)[2] += t(": the score s");
    const mask = t(masked ? "padding: no weight" : padded ? "none: padding is read as a word" : "a word: s is unchanged");
    lines.push(["mask", masked ? "−∞" : score, mask]);
    lines.push(["exp(s − m)", this.row.exp[key], t("m = {most}, the largest s", { most: number(this.row.largest) })]);
    lines.push([`÷ ${number(this.row.sum)}`, facts.weights[key], t("the row's sum; weight {weight}", { weight: percent(facts.weights[key]) })]);
    const rows = lines.map(([name, value, note]) => {
      const text = typeof value === "number" ? number(value) : value;
      return tableRow(t(name), [el("td", { class: "number", text, data: { step: name } }), el("td", { class: "quiet", text: note })]);
    });
    return el("table", { class: "arithmetic" }, el("caption", { class: "hidden", text: t("From the product to the weight") }), el("tbody", {}, ...rows));
  }

  /** The row's keys with their weights and values, and the sum that is the output. */
  softmax(facts) {
    const { chosen, row } = this;
    const padded = facts.names.length - chosen.padding;
    const largest = largestOf(facts.weights.slice(0, padded), LISTED);
    const listed = new Set([...largest, chosen.key, ...[...facts.names.keys()].slice(padded)]);
    const most = absolute([...[...listed].flatMap((at) => [...facts.values[at]]), ...facts.output]);
    const line = (name, score, exp, weight, values, options = {}) => tableRow(name, [score, number(exp), percent(weight), el("td", {}, strip(values, most))], options);
    const rows = [...listed].sort((a, b) => a - b).map((at) => {
      const press = () => this.page.choose(this.run.id, { ...chosen, key: at });
      const name = el("button", { type: "button", class: "key", text: facts.names[at], title: facts.names[at], data: { key: at }, "aria-label": t("key {name}", { name: facts.names[at] }), on: { click: press } });
      const options = { "aria-selected": String(at === chosen.key), class: facts.mask[at] ? null : "off" };
      return line(name, facts.mask[at] ? number(facts.scores[at]) : "−∞", row.exp[at], facts.weights[at], facts.values[at], options);
    });
    const others = [...facts.names.keys()].filter((at) => !listed.has(at));
    if (others.length) {
      const weight = sum(others.map((at) => facts.weights[at]));
      const mean = facts.output.map((_, d) => sum(others.map((at) => facts.weights[at] * facts.values[at][d])) / (weight || 1));
      rows.push(line(count(others.length, "other"), "", sum(others.map((at) => row.exp[at])), weight, mean));
    }
    const head = ["key", "score s", "exp(s − m)", "weight", "value v"].map((name, at) => el("th", { scope: "col", class: at && at < 4 ? "number" : null, text: t(name) }));
    const total = line(t("sum"), "", row.sum, sum(facts.weights), facts.output, { class: "sum" });
    const note = el("p", { class: "quiet" }, t("The last strip is y = Σ weight · v, the output for {query}.", { query: quoted(this.about.query) }));
    return el("div", {}, el("table", { class: "keys" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows), el("tfoot", {}, total)), note);
  }

  /** What padding changes in the prediction. */
  effect(facts) {
    const { padding, masked } = this.chosen;
    if (!padding) return el("p", { class: "quiet", text: t("Add a padded position, as in a batch with a longer review, to see what the mask does.") });
    const [label, share] = Object.entries(facts.probabilities).sort((a, b) => b[1] - a[1])[0];
    const how = t(masked ? "with {padded} and their mask" : "with {padded} and without mask in the whole network", { padded: count(padding, "padded position") });
    return el("p", { text: t("{label}: {before} without padding, {share} {how}.", { label, before: percent(this.about.probabilities[label]), share: percent(share), how }) });
  }
}

/** A strip of numbers, side by side. most: the number with the full color. */
function strip(values, most) {
  const numbers = t("{numbers} from {least} to {most}", { numbers: count(values.length, "number"), least: number(Math.min(...values)), most: number(Math.max(...values)) });
  const stops = values.map((value, at) => {
    const share = (100 * Math.abs(value)) / (most || 1);
    return `color-mix(in srgb, var(${value < 0 ? "--negative" : "--most"}) ${share}%, var(--least)) 0 ${(100 * (at + 1)) / values.length}%`;
  });
  const node = el("div", { class: "strip", role: "img", "aria-label": numbers });
  node.style.setProperty("background", `linear-gradient(to right, ${stops.join(", ")})`);
  return node;
}

/** The arrays of an answer by name: a vector is a list of numbers, a matrix a list of rows. */
function unpacked(shapes, numbers) {
  let at = 0;
  const take = (size) => Array.from(numbers.subarray(at, (at += size)));
  const arrays = Object.entries(shapes).map(([name, [rows, columns]]) => [name, columns ? Array.from({ length: rows }, () => take(columns)) : take(rows)]);
  return Object.fromEntries(arrays);
}

function number(value) {
  return value.toFixed(3).replace("-", "−");
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

/** The largest absolute value. */
function absolute(values) {
  return values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
}

/** Multiplication by a scale, as a division by √d where d is a whole number. */
function divisor(scale) {
  const d = 1 / scale ** 2;
  return Math.abs(d - Math.round(d)) < 1e-6 * d ? `÷ √${Math.round(d)}` : `× ${number(scale)}`;
}
