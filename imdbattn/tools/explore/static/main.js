// The page: stores the state, sends requests to the server, and passes the answers to the panels.

import * as api from "./api.js";
import { answerMessages } from "./local.js";
import { Panel } from "./panel.js";
import { nextReview, pairOf } from "./reviews.js";
import { Sequence } from "./sequence.js";
import { changesOf, fromFragment, isChanged, toFragment } from "./state.js";
import { chooseLanguage, language, t, translate } from "./texts.js";
import { AnswerError, count, delayed, el, percent, tableRow } from "./tools.js";

const by = (id) => document.getElementById(id);
export const panels = new Map(); // id of a run -> Panel or Sequence
let known = []; // the runs, as the server lists them
let slots = []; // the choices for each part of a sentence of the order probe
let defaults; // ids of the runs that are selected initially, and the source
let state;
let row = null; // of the test review that is shown
let latest = 0; // number of the last update

// --- the state -------------------------------------------------------------------------------------------------------

/** Applies a change of the state. entry: whether "back" returns to the previous state. */
function change(values, entry = true) {
  Object.assign(state, values);
  const address = `#${toFragment(state, defaults.source)}`;
  if (address !== location.hash) history[entry ? "pushState" : "replaceState"](null, "", address);
  update();
}

/** Sets the text, and restores removed words. */
function setText(text, entry = true) {
  change({ text, words: [] }, entry);
}

function toggle(run, part) {
  const parts = state.off[run] ?? [];
  const others = parts.includes(part) ? parts.filter((one) => one !== part) : [...parts, part];
  change({ off: { ...state.off, [run]: others } });
}

function toggleWord(place) {
  const words = state.words.includes(place) ? state.words.filter((one) => one !== place) : [...state.words, place];
  change({ words });
}

/** Chooses the cell of a run whose arithmetic is shown, or none. */
function choose(run, cell) {
  const { [run]: _, ...others } = state.cells;
  change({ cells: cell ? { ...others, [run]: cell } : others });
}

function restore() {
  state = fromFragment(location.hash, known.map((run) => run.id), defaults.selected, defaults.source);
  update();
}

// --- what is shown ---------------------------------------------------------------------------------------------------

function update() {
  const shown = known.filter((run) => state.runs.includes(run.id));
  const classifiers = shown.filter((run) => run.kind === "classifier");
  const writers = shown.filter((run) => run.kind !== "classifier");
  place(by("panels"), classifiers, (run) => new Panel(run, { toggle, toggleWord, choose, rescale }));
  place(by("written"), writers, (run) => new Sequence(run));
  by("classifiers").hidden = !classifiers.length;
  by("writers").hidden = !writers.length;
  showControls(classifiers);
  const updates = classifiers.map((run) => panels.get(run.id).update(state.text, changesOf(state, run.id), state.cells[run.id] ?? null));
  updates.push(...writers.map((run) => panels.get(run.id).update(state.source, state.beams, state.penalty)));
  const own = ++latest;
  busy(true);
  Promise.allSettled(updates.map((one) => one.then(answered, failed))).then(() => own === latest && busy(false));
}

/** Marks whether answers are pending. */
function busy(value) {
  by("main").setAttribute("aria-busy", value);
}

/** Makes `where` contain the panels of these runs, in this order. */
function place(where, runs, make) {
  for (const node of [...where.children]) {
    const { run } = node.dataset;
    if (runs.some((one) => one.id === run)) continue;
    api.cancel(`read ${run}`);
    api.cancel(`cell ${run}`);
    node.remove();
    panels.delete(run);
  }
  for (const run of runs) {
    if (!panels.has(run.id)) panels.set(run.id, make(run));
    const { element } = panels.get(run.id);
    const at = runs.indexOf(run);
    if (where.children[at] !== element) where.insertBefore(element, where.children[at] ?? null);
  }
}

function showControls(classifiers) {
  for (const box of by("runs").querySelectorAll("input")) box.checked = state.runs.includes(box.value);
  if (by("text").value !== state.text) by("text").value = state.text;
  if (by("source").value !== state.source) by("source").value = state.source;
  by("positions").checked = state.positions;
  by("scale").value = state.scale;
  by("beams").value = state.beams;
  by("penalty").value = state.penalty;
  by("reset").disabled = !isChanged(state);
  const parts = Object.values(state.off).flat().length;
  const facts = [
    parts && t(parts === 1 ? "{parts} layer or head disabled" : "{parts} layers or heads disabled", { parts }),
    state.words.length && t("{words} removed", { words: count(state.words.length, "word") }),
    state.shuffle !== null && t("words shuffled, seed {seed}", { seed: state.shuffle }),
  ];
  by("changes").textContent = facts.filter(Boolean).join(t("; "));
  const browsable = classifiers.filter((run) => run.browsable);
  const chosen = by("browsed").value;
  by("browsed").replaceChildren(...browsable.map((run) => el("option", { value: run.id, text: t("{label}, seed {seed}", run) })));
  if (browsable.some((run) => run.id === chosen)) by("browsed").value = chosen;
  by("browser").hidden = !browsable.length;
}

/** Draws all maps with one color scale, or each with its own. */
function rescale() {
  const shown = [...panels.values()].filter((panel) => panel.maps);
  const largest = new Map(shown.flatMap((panel) => panel.maps.map((map) => [map, map.largest()])));
  const most = Math.max(0, ...largest.values());
  for (const [map, own] of largest) {
    const full = state.scale === "own" ? own : most;
    map.draw(full);
    map.caption.textContent = state.scale === "own" ? t("; full color: {share}", { share: percent(full) }) : "";
  }
  by("full").textContent = most ? t("square root of the weight") + (state.scale === "own" ? "" : t("; full color: {share}", { share: percent(most) })) : "";
}

function answered() {
  alertWith("");
}

function failed(error) {
  if (error instanceof AnswerError) return; // shown in its panel
  if (error instanceof TypeError && /fetch|network|load/i.test(error.message)) {
    alertWith(t("The server does not answer: start it again with python -m imdbattn.explore and open its new address; the part after # can be kept."));
  } else {
    alertWith(t("Bug in this page: {message}", { message: error.message }));
    throw error;
  }
}

function alertWith(message) {
  by("alert").textContent = message;
  by("alert").hidden = !message;
}

// --- test reviews, order probe, link ---------------------------------------------------------------------------------

async function browse(step) {
  busy(true);
  const inputs = [...by("browser").querySelectorAll("input")];
  const filters = Object.fromEntries(inputs.map((input) => [input.name, input.type === "checkbox" ? input.checked : input.value]));
  const shown = known.filter((run) => run.browsable && state.runs.includes(run.id));
  const values = { run: by("browsed").value, runs: shown.map((run) => run.id), ...filters, after: row, step };
  try {
    const review = await nextReview(values);
    row = review.row;
    by("match").textContent = t("Label: {label}. Review {place} of {matching} that match, of {of}; row {row}.", { ...review, matching: review.matching.toLocaleString("en"), of: review.of.toLocaleString("en") });
    setText(review.text);
  } catch (error) {
    busy(false);
    by("match").textContent = error.message;
    failed(error);
  }
}

async function makePair() {
  const { neg, pos } = pairOf(slots);
  const runs = known.filter((run) => panels.get(run.id) instanceof Panel);
  const sentences = await Promise.all([["neg", neg], ["pos", pos]].map(async ([label, text]) => {
    const rows = await Promise.all(runs.map(async (run) => {
      const changes = changesOf({ ...state, words: [] }, run.id);
      const [facts] = await api.ask("read", { run: run.id, text, changes }, `probe ${label} ${run.id}`);
      return tableRow(run.label, [el("td", { text: `${facts.label} ${percent(facts.probability)}` })]);
    }));
    const button = el("button", { type: "button", class: "sentence", text, on: { click: () => setText(text) } });
    return el("div", {}, el("h4", { text: t("Label: {label}", { label }) }), button, el("table", {}, el("tbody", {}, ...rows)));
  }));
  by("pairs").replaceChildren(...sentences);
}

async function copy() {
  history.replaceState(null, "", `#${toFragment(state, defaults.source)}`);
  try {
    await navigator.clipboard.writeText(location.href);
    by("copy").textContent = t("Copied");
  } catch {
    by("copy").textContent = t("Copy it from the address bar");
  }
  setTimeout(() => (by("copy").textContent = t("Copy link")), 2000);
}

// --- start -----------------------------------------------------------------------------------------------------------

function listen() {
  const typed = delayed(() => setText(by("text").value, false), 150);
  by("text").addEventListener("input", () => {
    row = null;
    busy(true);
    typed();
  });
  const write = () => change({
    source: by("source").value,
    beams: Math.min(20, Math.max(1, Math.round(Number(by("beams").value)) || 1)),
    penalty: Math.min(10, Math.max(0, Number(by("penalty").value) || 0)),
  }, false);
  const written = delayed(write, 150);
  for (const id of ["source", "beams", "penalty"]) {
    by(id).addEventListener("input", () => {
      busy(true);
      written();
    });
  }
  by("positions").addEventListener("change", () => change({ positions: by("positions").checked }));
  by("shuffle").addEventListener("click", () => change({ shuffle: state.shuffle === null ? 1 : state.shuffle + 1 }));
  by("reset").addEventListener("click", () => change({ off: {}, words: [], positions: false, shuffle: null }));
  by("scale").addEventListener("change", () => {
    state.scale = by("scale").value;
    history.replaceState(null, "", `#${toFragment(state, defaults.source)}`);
    rescale();
  });
  by("next").addEventListener("click", () => browse(1));
  by("previous").addEventListener("click", () => browse(-1));
  by("pair").addEventListener("click", () => makePair().catch(failed));
  by("copy").addEventListener("click", copy);
  by("language").value = language;
  by("language").addEventListener("change", () => chooseLanguage(by("language").value));
  addEventListener("popstate", restore);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", rescale);
}

function showRuns(skipped) {
  const boxes = known.map((run) => {
    const flip = () => change({ runs: known.map((one) => one.id).filter((id) => (id === run.id) !== state.runs.includes(id)) });
    const input = el("input", { type: "checkbox", value: run.id, on: { change: flip } });
    return el("label", { title: run.folder }, input, ` ${t("{label}, seed {seed}", run)}`);
  });
  by("runs").replaceChildren(...boxes);
  by("summary").textContent = count(known.length, "run") + (skipped.length ? t(", {skipped} skipped", { skipped: skipped.length }) : "");
  by("summary").title = skipped.map((one) => `${one.folder}: ${one.reason}`).join("\n");
}

/** The runs that are shown at first: of the first seeds, the first, middle and last classifier and an encoder-decoder. */
function selectedOf(runs) {
  const first = runs.filter((run, at) => runs.findIndex((one) => one.label === run.label) === at);
  const classifiers = first.filter((run) => run.kind === "classifier");
  const chosen = new Set([0, (classifiers.length - 1) / 2, classifiers.length - 1].map((at) => classifiers[Math.round(at)]));
  return [...chosen, first.find((run) => run.kind !== "classifier")].filter(Boolean).map((run) => run.id);
}

/** What a script of one's own can use: imdbattn.models and imdbattn.classify(text, id of a model). */
function offer(runs) {
  const models = runs.map(({ id, label, seed, labels, accuracy }) => ({ id, label, seed, labels, accuracy }));
  let calls = 0;
  const classify = async (text, model = models[0].id) => (await api.ask("classify", { run: model, text: String(text) }, `classify ${++calls}`))[0];
  window.imdbattn = Object.freeze({ models, classify });
}

async function start() {
  translate(document);
  try {
    const listed = await api.runs();
    if (api.isFile) offer(listed.runs);
    known = listed.runs;
    slots = listed.slots;
    defaults = { source: listed.source, selected: selectedOf(listed.runs) };
    showRuns(listed.skipped);
    listen();
    restore();
  } catch (error) {
    failed(error);
  }
}

if (globalThis.document) start();
else answerMessages(); // this script is the worker of a file
