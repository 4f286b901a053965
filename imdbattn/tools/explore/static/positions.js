// The positions of a model: products of their vectors, their mean by distance, and what distances add to scores.

import { ask } from "./api.js";
import { Matrix } from "./matrix.js";
import { t } from "./texts.js";
import { el } from "./tools.js";

const LENGTH = 128; // positions

export class Positions {
  constructor(run) {
    this.run = run;
    this.body = el("div");
    this.element = el("details", { hidden: true }, el("summary", { text: t("Positions") }), this.body);
    this.element.addEventListener("toggle", () => this.element.open && !this.loaded && this.load());
  }

  async load() {
    this.loaded = true;
    try {
      const [facts, values] = await ask("positions", { run: this.run.id, length: LENGTH });
      this.show(facts, values);
    } catch (error) {
      this.loaded = false;
      this.body.replaceChildren(el("p", { class: "error", text: error.message }));
    }
  }

  show(facts, values) {
    this.body.replaceChildren();
    this.body.append(el("p", { class: "quiet", text: t("What the model knows about the order of the words: nearby positions have similar vectors.") }));
    let at = 0;
    for (const table of facts.tables) {
      const names = Array.from({ length: table.size }, (_, position) => String(position));
      const number = (value) => value.toFixed(2);
      const map = new Matrix({ title: `Products of ${table.name}`, signed: true, format: number, names: ["position", "position"] });
      map.show(names, names, values.subarray(at, at + table.size ** 2));
      at += table.size ** 2;
      this.body.append(el("h4", { text: t("Products of {table}", { table: table.name }) }), map.element);
      map.draw(largestApart(map.values, table.size));
      this.body.append(chart(byDistance(map.values, table.size), 0, t("mean of the products by distance j − i")));
    }
    if (!facts.tables.length && !facts.distances.length) this.body.append(el("p", { text: t("These positions are not known to this page.") }));
    for (const layer of facts.distances) {
      const reach = (layer.added[0].length - 1) / 2;
      this.body.append(el("h4", { text: t("Added to the scores, {layer}", { layer: layer.name }) }));
      layer.added.forEach((values, head) => {
        const name = t("head {head}", { head: head + 1 });
        this.body.append(chart(values, -reach, t("{head}, by distance j − i", { head: name })));
      });
    }
  }
}

/** The largest product of two different positions, so that small products stay visible. */
function largestApart(products, size) {
  return products.reduce((most, value, at) => (at % (size + 1) ? Math.max(most, Math.abs(value)) : most), 0);
}

/** The mean of the products at each distance, up to half the length: few pairs are further apart. */
function byDistance(products, size) {
  return Array.from({ length: Math.floor(size / 2) }, (_, distance) => {
    let total = 0;
    for (let row = 0; row + distance < size; row++) total += products[row * size + row + distance];
    return total / (size - distance);
  });
}

/** A curve over whole numbers from `first`, as SVG. */
function chart(values, first, title) {
  const [width, height, left, below] = [340, 130, 40, 30];
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  const last = values.length - 1;
  const x = (place) => left + (place / Math.max(1, last)) * (width - left - 8);
  const y = (value) => 8 + ((high - value) / (high - low || 1)) * (height - below - 8);
  const make = (tag, options, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(options)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": title });
  svg.append(make("line", { class: "axis", x1: left, x2: width - 8, y1: y(0), y2: y(0) }));
  svg.append(make("polyline", { class: "curve", points: values.map((value, place) => `${x(place)},${y(value)}`).join(" ") }));
  const number = (value) => value.toFixed(high - low < 2 ? 2 : 1).replace("-", "−");
  svg.append(make("text", { x: left - 4, y: y(high) + 4, "text-anchor": "end" }, number(high)));
  svg.append(make("text", { x: left - 4, y: y(low) + 4, "text-anchor": "end" }, number(low)));
  svg.append(make("text", { x: left, y: height - 8 }, String(first)));
  svg.append(make("text", { x: width - 8, y: height - 8, "text-anchor": "end" }, String(first + last)));
  svg.append(make("text", { x: width / 2, y: height - 8, "text-anchor": "middle" }, title));
  return svg;
}
