// The state of the page, stored in the part of the address after #, which is never sent to the server.

import { chosenLanguage } from "./texts.js";

const LONGEST = 20000; // characters of a text that an address holds

const CELL = ["layer", "head", "query", "key", "padding", "masked"];

/** source: the first source for encoder-decoders. */
export function initial(source) {
  return {
    text: "I did not expect to love it, but I did.",
    runs: [], // ids
    off: {}, // id of a run -> ["2", "1.3"]: layers, and heads of layers
    words: [], // places of removed words
    positions: false, // true: without positions
    shuffle: null, // seed
    cells: {}, // id of a run -> {layer, head, query, key, padding, masked}: the cell whose arithmetic is shown
    scale: "all",
    source,
    beams: 3,
    penalty: 1,
  };
}

/** The part of the address after #, without initial values. The text of a long review is omitted. */
export function toFragment(state, source) {
  const values = new URLSearchParams();
  const first = initial(source);
  if (state.text !== first.text && state.text.length <= LONGEST) values.set("text", state.text);
  values.set("runs", state.runs.join(","));
  const off = Object.entries(state.off).filter(([, parts]) => parts.length);
  if (off.length) values.set("off", off.map(([run, parts]) => `${run}:${parts.join(",")}`).join(";"));
  const cells = Object.entries(state.cells).filter(([run]) => state.runs.includes(run));
  if (cells.length) values.set("cells", cells.map(([run, cell]) => `${run}:${CELL.map((name) => Number(cell[name])).join(".")}`).join(";"));
  if (state.words.length) values.set("words", state.words.join(","));
  if (state.positions) values.set("positions", "off");
  if (state.shuffle !== null) values.set("shuffle", state.shuffle);
  if (chosenLanguage) values.set("lang", chosenLanguage);
  for (const name of ["scale", "source", "beams", "penalty"]) {
    if (state[name] !== first[name]) values.set(name, state[name]);
  }
  return values.toString();
}

/** The state in an address; invalid values are ignored. known: ids of the runs. selected, source: the defaults. */
export function fromFragment(fragment, known, selected, source) {
  const state = initial(source);
  const values = new URLSearchParams(fragment.replace(/^#/, ""));
  const whole = (text) => (/^\d{1,9}$/.test(text ?? "") ? Number(text) : null);
  state.text = values.get("text") ?? state.text;
  const wanted = (values.get("runs") ?? "").split(",").filter((run) => known.includes(run));
  state.runs = wanted.length || values.get("runs") === "" ? wanted : [...selected];
  for (const part of (values.get("off") ?? "").split(";")) {
    const [run, parts] = part.split(":");
    if (known.includes(run) && parts) state.off[run] = parts.split(",").filter((one) => /^\d+(\.\d+)?$/.test(one));
  }
  for (const part of (values.get("cells") ?? "").split(";")) {
    const [run, numbers] = part.split(":");
    if (!known.includes(run) || !/^\d{1,4}(\.\d{1,4}){5}$/.test(numbers ?? "")) continue;
    const cell = Object.fromEntries(numbers.split(".").map((one, at) => [CELL[at], Number(one)]));
    if (cell.head && cell.padding <= 20) state.cells[run] = { ...cell, masked: cell.masked > 0 };
  }
  state.words = (values.get("words") ?? "").split(",").map(whole).filter((place) => place !== null);
  state.positions = values.get("positions") === "off";
  state.shuffle = whole(values.get("shuffle"));
  state.scale = values.get("scale") === "own" ? "own" : "all";
  state.source = values.get("source") ?? state.source;
  state.beams = Math.min(20, Math.max(1, whole(values.get("beams")) ?? state.beams));
  const penalty = parseFloat(values.get("penalty"));
  state.penalty = penalty >= 0 && penalty <= 10 ? penalty : state.penalty;
  return state;
}

/** The changes of a run in the format of the server. */
export function changesOf(state, run) {
  const parts = state.off[run] ?? [];
  return {
    layers: parts.filter((part) => !part.includes(".")).map(Number),
    heads: parts.filter((part) => part.includes(".")).map((part) => part.split(".").map(Number)),
    words: state.words,
    positions: state.positions,
    shuffle: state.shuffle,
  };
}

/** Whether anything is disabled or shuffled. */
export function isChanged(state) {
  const off = Object.values(state.off).some((parts) => parts.length);
  return off || state.words.length > 0 || state.positions || state.shuffle !== null;
}
