// One classifier: its label for the review, the words shaded by their share, and a map for each head.

import { ask } from "./api.js";
import { Cell } from "./cell.js";
import { Matrix, largestOf } from "./matrix.js";
import { Positions } from "./positions.js";
import { t } from "./texts.js";
import { bar, count, el, percent, quoted, tableRow } from "./tools.js";

const SHADED = 2000; // words that can be shaded; a longer text is shown without shades
const SHOWN_MAPS = 16; // maps that are shown initially; the layers of a model with more are collapsed

export class Panel {
  /** page: {toggle(run, part), toggleWord(place), choose(run, cell), rescale()} */
  constructor(run, page) {
    Object.assign(this, { run, page, maps: [], facts: null });
    this.outcome = el("div", { class: "outcome", "aria-live": "polite" });
    this.note = el("p", { class: "quiet" });
    this.shading = el("p", { class: "quiet" });
    this.review = el("div", { class: "review", role: "group", "aria-label": t("Words that {label} reads", run) });
    this.attentions = el("div", { class: "attentions" });
    this.table = el("div");
    const accuracy = t(run.split === "test" ? "seed {seed}, {share} of test reviews" : "seed {seed}, {share} of validation reviews", { seed: run.seed, share: percent(run.accuracy) });
    const title = el("header", {}, el("h3", { text: run.label }), el("span", { class: "quiet", text: accuracy }));
    this.positions = new Positions(run);
    this.cell = new Cell(run, page);
    this.about = el("p", { class: "quiet", text: aboutOf(run) });
    this.about.hidden = !this.about.textContent;
    const reads = el("p", { class: "quiet", text: t("The label and its probability; the darker a word, the larger its share in the vector that is classified.") });
    this.legend = el("p", { class: "quiet", text: t("Each map shows how much each word (row) attends to each word (column).") });
    this.body = el("div", {}, this.outcome, this.note, reads, this.review, this.shading, this.legend, this.attentions, this.table);
    this.error = el("p", { class: "error", role: "alert", hidden: true });
    const parts = [title, this.about, this.error, this.body, this.positions.element];
    this.element = el("article", { class: "panel", data: { run: run.id }, "aria-label": run.label }, ...parts);
    this.review.addEventListener("keydown", (event) => this.press(event));
  }

  /** Requests the answer unless it is already shown or pending, then the arithmetic of the chosen cell, or null. */
  async update(text, changes, chosen) {
    const values = { run: this.run.id, text, changes };
    Object.assign(this, { chosen, changes });
    if (this.request !== JSON.stringify(values)) {
      this.request = JSON.stringify(values);
      this.facts = null;
      try {
        this.show(...(await ask("read", values)));
      } catch (error) {
        this.fail(error);
        throw error;
      }
    }
    if (this.facts) await this.showCell(values);
  }

  /** Shows the arithmetic of the chosen cell below its map. */
  async showCell(values) {
    const { chosen, facts } = this;
    const attention = chosen && facts.attentions.find((one) => (one.layer ?? 0) === chosen.layer);
    const title = attention && titleOf(attention, chosen.head - 1);
    const found = this.maps.find((map) => map.title === title);
    const exists = found && chosen.query < found.rows.length && chosen.key < facts.keys.length + chosen.padding;
    for (const map of this.maps) {
      const own = exists && map === found ? [chosen.query, chosen.key] : null;
      if (String(map.chosen) === String(own)) continue;
      map.chosen = own;
      map.draw();
    }
    if (!exists) {
      this.cell.element.remove();
      return;
    }
    if (this.cell.element.parentNode !== found.element.parentNode) found.element.after(this.cell.element);
    await this.cell.update(values, chosen, { title, query: found.rows[chosen.query], probabilities: facts.probabilities });
  }

  fail(error) {
    this.request = this.facts = null;
    this.maps = [];
    this.error.textContent = error.message;
    this.error.hidden = false;
    this.body.hidden = this.positions.element.hidden = true;
  }

  show(answer, weights) {
    const words = answer.words.filter((word) => !word.removed);
    const facts = { ...answer, shown: answer.words, words, attentions: this.attentionsOf(answer) };
    this.error.hidden = true;
    this.body.hidden = false;
    Object.assign(this, { facts, query: null });
    this.showOutcome(facts);
    const notes = [
      facts.note,
      facts.unread && t("{words} in the middle of the review are not read.", { words: count(facts.unread, "word") }),
      facts.unknown && t("{words} not in the model's vocabulary: read as <unk>.", { words: count(facts.unknown, "word") }),
    ];
    this.note.textContent = notes.filter(Boolean).join(" ");
    this.note.hidden = !this.note.textContent;
    this.showReview(facts);
    this.legend.hidden = !facts.attentions.length;
    this.showAttentions(facts, weights);
    this.shadeBy(null);
    this.positions.element.hidden = !facts.has_positions;
    this.element.dataset.probability = facts.probability;
  }

  /** The attentions in order: each layer, also one that is skipped, then the pooling. */
  attentionsOf({ layers, attentions, note }) {
    if (note) return []; // it says why there are none
    const ofLayers = Array.from({ length: layers }, (_, at) => {
      const skipped = { name: `layer ${at + 1}`, layer: at + 1, skipped: true, heads: 0 };
      return attentions.find(({ layer }) => layer === skipped.layer) ?? skipped;
    });
    return [...ofLayers, ...attentions.filter(({ layer }) => !layer)];
  }

  showOutcome(facts) {
    const rows = Object.entries(facts.probabilities).flatMap(([label, share]) => {
      const name = label === facts.label ? el("strong", { text: label }) : el("span", { text: label });
      return [name, el("span", { text: percent(share) }), bar(share)];
    });
    this.outcome.replaceChildren(...rows);
    if (!facts.before) return;
    const [label, probability] = Object.entries(facts.before).reduce((most, one) => (one[1] > most[1] ? one : most));
    const change = facts.probabilities[label] - probability;
    const moved = t("{points} points", { points: `${change < 0 ? "−" : "+"}${Math.abs(100 * change).toFixed(1)}` });
    const text = t("without changes: {label} {share} (now {moved})", { label, share: percent(probability), moved });
    const line = el("span", { class: "quiet", text });
    line.style.setProperty("grid-column", "1 / -1");
    this.outcome.append(line);
  }

  /** The text as the model reads it; places from the server count code points. */
  showReview(facts) {
    const letters = Array.from(facts.text);
    this.words = new Map();
    if (facts.shown.length > SHADED) {
      this.review.replaceChildren(el("span", { text: letters.slice(0, 5000).join("") + (letters.length > 5000 ? " …" : "") }));
      return;
    }
    const pieces = document.createDocumentFragment();
    const outside = (from, to) => from < to && pieces.append(el("span", { class: "unread", text: letters.slice(from, Math.min(to, from + 5000)).join("") }));
    let at = 0;
    for (const word of facts.shown) {
      outside(at, word.start);
      const name = letters.slice(Math.max(at, word.start), word.end).join("");
      const node = el("span", { class: word.removed ? "word removed" : "word", role: "button", tabindex: -1, text: name });
      node.setAttribute("aria-pressed", String(word.removed));
      node.dataset.place = word.place;
      node.addEventListener("click", () => this.page.toggleWord(word.place));
      node.addEventListener("pointerenter", () => this.point(word));
      node.addEventListener("focus", () => !this.rebuilding && this.point(word));
      pieces.append(node);
      this.words.set(word.place, node);
      at = Math.max(at, word.end);
    }
    outside(at, letters.length);
    const focused = document.activeElement?.closest?.(".review") === this.review ? document.activeElement.dataset.place : null;
    this.review.replaceChildren(pieces);
    this.review.onpointerleave = () => this.point(null);
    const first = this.words.get(Number(focused ?? NaN)) ?? this.words.values().next().value;
    if (first) first.tabIndex = 0;
    this.rebuilding = true; // the maps still belong to the previous words
    if (focused !== null) first?.focus({ preventScroll: true });
    this.rebuilding = false;
  }

  /** Arrow keys move between words, Enter removes or restores one. */
  press(event) {
    const nodes = [...this.words.values()];
    const at = nodes.indexOf(event.target);
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (at < 0) return;
    if (step) {
      const next = nodes[Math.min(nodes.length - 1, Math.max(0, at + step))];
      event.target.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    } else if (event.key === "Enter" || event.key === " ") this.page.toggleWord(Number(event.target.dataset.place));
    else return;
    event.preventDefault();
  }

  /** Marks a word as the query in all maps, or none. */
  point(word) {
    const index = this.facts && word && !word.removed ? this.facts.words.findIndex((one) => one.place === word.place) : -1;
    const row = index < 0 ? null : index + Number(this.facts.cls);
    for (const map of this.maps) if (map.rows.length > 1) map.move(row === null ? null : [row, null]);
  }

  showAttentions(facts, weights) {
    let at = 0;
    const open = new Map([...this.attentions.querySelectorAll("details")].map((part) => [part.dataset.name, part.open]));
    const previous = new Map(this.maps.map((map) => [map.title, map]));
    const many = facts.attentions.reduce((sum, one) => sum + one.heads, 0) > SHOWN_MAPS;
    this.maps = [];
    const sections = facts.attentions.map((attention) => {
      const figures = [];
      for (let head = 0; head < attention.heads; head++) {
        const size = attention.queries * facts.keys.length;
        figures.push(this.figure(attention, head, weights.subarray(at, at + size), previous));
        at += size;
      }
      const layer = attention.layer && this.box(nameOf(attention), String(attention.layer), !attention.skipped);
      const title = el("h4", {}, layer || nameOf(attention), el("span", { class: "quiet", text: attention.skipped ? t("skipped") : "" }));
      const section = el("section", { class: "attention" }, title);
      if (figures.length < 2 || attention.labels) section.append(...figures);
      else {
        const name = attention.name;
        const summary = el("summary", { text: count(attention.heads, "head") });
        section.append(el("details", { data: { name }, open: open.get(name) ?? !many }, summary, ...figures));
        section.querySelector("details").addEventListener("toggle", () => this.maps.forEach((map) => map.draw()));
      }
      return section;
    });
    const focus = document.activeElement?.dataset?.part;
    this.attentions.replaceChildren(...sections);
    if (focus) this.attentions.querySelector(`[data-part="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
    this.page.rescale();
  }

  /** A checkbox that disables a layer or a head. */
  box(name, part, enabled) {
    const change = () => this.page.toggle(this.run.id, part);
    const input = el("input", { type: "checkbox", data: { part }, on: { change } });
    input.checked = enabled;
    return el("label", {}, input, ` ${name}`);
  }

  figure(attention, head, weights, previous) {
    const { keys } = this.facts;
    const title = titleOf(attention, head);
    const place = { layer: attention.layer ?? 0, head: head + 1, padding: 0, masked: true };
    const onCell = (query, key) => {
      if (key === null) this.page.choose(this.run.id, null);
      else this.page.choose(this.run.id, { ...place, ...kept(this.chosen), query, key });
    };
    const map = previous.get(title) ?? new Matrix({ title, onCell });
    map.onRow = (row) => this.shadeBy(row === null ? null : map, row);
    const name = attention.labels?.[head] ?? nameOf(attention);
    map.show(attention.layer ? keys : [name], keys, weights);
    this.maps.push(map);
    const nats = attention.entropies[head];
    const numbers = t("entropy {nats} of at most {most} nats", { nats: nats.toFixed(2), most: Math.log(keys.length).toFixed(2) });
    const disabled = this.changes.heads.some((pair) => pair[0] === attention.layer && pair[1] === head + 1);
    const lead = attention.layer ? this.box(t("head {head}", { head: head + 1 }), `${attention.layer}.${head + 1}`, !disabled) : attention.labels?.[head];
    map.caption = el("span", { class: "quiet" });
    const caption = el("figcaption", {}, lead, lead ? ": " : "", numbers, map.caption);
    return el("figure", { class: disabled ? "off" : "" }, caption, map.element);
  }

  /** Shades the words by one row of a map, or by their shares, and lists the largest values. */
  shadeBy(map, row) {
    if (!this.facts) return; // an answer is pending
    const { words, cls } = this.facts;
    const values = map ? words.map((_, index) => map.value(row, index + Number(cls))) : words.map((word) => word.share ?? 0);
    const most = Math.max(1e-12, ...values);
    words.forEach((word, index) => {
      this.words.get(word.place)?.style.setProperty("--s", (values[index] / most).toFixed(3));
    });
    const what = map ? t("attention of {word} in {map}", { word: quoted(map.rows[row]), map: map.title }) : t("share in the pooled vector, by attention rollout");
    const shown = words.length && this.words.size && (map || words[0].share !== null);
    this.shading.textContent = shown ? t("Shade: {what}; darkest: {share}", { what, share: percent(most) }) : "";
    const node = map && this.words.get(words[row - Number(cls)]?.place);
    this.review.querySelector(".query")?.classList.remove("query");
    node?.classList.add("query");
    this.list(map, row, values, what);
  }

  list(map, row, values, what) {
    const letters = Array.from(this.facts.text);
    const rows = largestOf(values, 8).map((index) => {
      const word = this.facts.words[index];
      const name = letters.slice(word.start, word.end).join("");
      return tableRow(name, [percent(values[index])]);
    });
    const opened = this.table.querySelector("details")?.open;
    const table = el("table", {}, el("caption", { class: "hidden", text: what }), el("tbody", {}, ...rows));
    const summary = el("summary", { class: "quiet", text: t("Words with the largest values") });
    this.table.replaceChildren(el("details", { open: opened }, summary, table));
    this.table.hidden = !rows.length;
  }
}

/** What a model of a file has lost: words and precision, with the accuracy that it has here. */
function aboutOf(run) {
  if (!run.precision) return "";
  const words = t("In this file: {words} of {of} words, {precision}.", { words: run.words.toLocaleString("en"), of: run.of_words.toLocaleString("en"), precision: run.precision });
  const change = (run.accuracy_here - run.accuracy) * 100;
  const moved = `${change < 0 ? "−" : "+"}${Math.abs(change).toFixed(2)}`;
  const loss = t("Its accuracy on all test reviews is {share} here ({moved} points).", { share: percent(run.accuracy_here ?? 0), moved });
  return run.accuracy_here === null || run.split !== "test" ? words : `${words} ${loss}`;
}

function titleOf(attention, head) {
  const name = nameOf(attention);
  if (attention.labels) return t("{name}, query of {label}", { name, label: attention.labels[head] });
  return attention.heads > 1 || attention.layer ? t("{name}, head {head}", { name, head: head + 1 }) : name;
}

function nameOf({ layer, name }) {
  return layer ? t("layer {layer}", { layer }) : t(name);
}

/** The settings of a cell that the next one keeps. */
function kept(cell) {
  return cell ? { padding: cell.padding, masked: cell.masked } : {};
}
