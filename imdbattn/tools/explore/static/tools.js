// Elements, numbers as text, and delays.

import { language, t } from "./texts.js";

/** An error whose message a panel shows. */
export class AnswerError extends Error {}

/** The JSON in a buffer, and the place of the numbers after it (onefile.py, `framed`). */
export function unframed(buffer) {
  const size = new DataView(buffer).getUint32(0, true);
  return [JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size))), 4 + size];
}

/** An element. options: attributes; `text`, `on` (event -> function) and `data` are special. */
export function el(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [event, run] of Object.entries(value)) node.addEventListener(event, run);
    else if (name === "data") Object.assign(node.dataset, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** A row of a table. name: text or an element. cells: elements, or numbers as text. */
export function tableRow(name, cells, options = {}) {
  const rest = cells.map((cell) => (typeof cell === "string" ? el("td", { class: "number", text: cell }) : cell));
  return el("tr", options, el("th", { scope: "row" }, name), ...rest);
}

/** A share from 0 to 1 as a percentage with one decimal. */
export function percent(share) {
  return share > 0 && share < 0.0005 ? "under 0.1 %" : `${(100 * share).toFixed(1)} %`;
}

/** A word in quotes, shortened. */
export function quoted(word) {
  const letters = Array.from(word);
  return `“${letters.length > 24 ? letters.slice(0, 23).join("") + "…" : word}”`;
}

/** The number of things, such as "3 words". */
export function count(number, thing) {
  const plural = language === "en" && number !== 1 ? "s" : "";
  return `${number.toLocaleString("en")} ${t(thing)}${plural}`;
}

/** A function that calls `run` when it has not been called again for some milliseconds. */
export function delayed(run, milliseconds) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...values), milliseconds);
  };
}

/** A custom property of the page's style, such as --ink. */
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** [red, green, blue] of #rrggbb. */
export function channels(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/** The color between two, [red, green, blue] each; share: of `full`. */
export function mixed(none, full, share) {
  return none.map((channel, i) => Math.round(channel + share * (full[i] - channel)));
}

/** A horizontal bar for a share, which is also shown as text. */
export function bar(share) {
  const filled = el("i");
  filled.style.setProperty("--p", share);
  return el("div", { class: "bar", "aria-hidden": "true" }, filled);
}
