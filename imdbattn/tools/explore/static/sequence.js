// One encoder-decoder: its output step by step, the alternatives of each step, the map, and all beams.

import { ask } from "./api.js";
import { Matrix } from "./matrix.js";
import { t } from "./texts.js";
import { bar, count, el, percent, tableRow } from "./tools.js";

export class Sequence {
  constructor(run) {
    this.run = run;
    this.step = 0;
    const accuracy = t("seed {seed}, {share} of {split} outputs are correct", { ...run, share: percent(run.accuracy) });
    const title = el("header", {}, el("h3", { text: run.label }), el("span", { class: "quiet", text: accuracy }));
    this.error = el("p", { class: "error", role: "alert", hidden: true });
    this.body = el("div");
    this.element = el("article", { class: "panel", data: { run: run.id }, "aria-label": run.label }, title, this.error, this.body);
  }

  async update(text, beams, penalty) {
    const values = { run: this.run.id, text, beams, length_penalty: penalty };
    if (this.request === JSON.stringify(values)) return;
    this.request = JSON.stringify(values);
    try {
      const [facts] = await ask("write", values);
      this.show(facts);
    } catch (error) {
      this.request = null;
      this.error.textContent = error.message;
      this.error.hidden = false;
      this.body.hidden = true;
      throw error;
    }
  }

  show(facts) {
    this.error.hidden = true;
    this.body.hidden = false;
    this.facts = facts;
    this.step = Math.min(this.step, facts.steps.length - 1);
    const unknown = facts.unknown.length ? t("Not in the vocabulary, read as <unk>: {unknown}.", { unknown: facts.unknown.join(", ") }) : "";
    this.steps = el("div", { class: "steps", role: "group", "aria-label": t("Steps of the output") });
    this.alternatives = el("div");
    const outcome = el("p", {}, el("strong", { text: facts.output || t("(nothing)") }), ` ${percent(facts.probability)}`);
    const parts = [outcome, unknown && el("p", { class: "quiet", text: unknown }), this.steps, this.alternatives];
    this.map = null;
    if (facts.weights) {
      const rows = facts.steps.slice(0, facts.weights.length).map((step) => step.symbol);
      const names = ["output", "source symbol"];
      this.map = new Matrix({ title: t("Attention to the source"), names, onRow: (row, pinned) => pinned && row !== null && this.choose(row) });
      this.map.show(rows, facts.source, Float32Array.from(facts.weights.flat()));
      parts.push(el("h4", { text: t("Attention: output (rows) to source (columns)") }), el("figure", {}, this.map.element));
    } else parts.push(el("p", { class: "quiet", text: t("No attention: the decoder uses a single vector of the source.") }));
    parts.push(el("h4", { text: count(facts.beams.length, "beam") }), beamTable(facts.beams));
    this.body.replaceChildren(...parts.filter(Boolean));
    this.choose(this.step);
  }

  /** Shows one step of the output. */
  choose(step) {
    this.step = step;
    const move = (by) => () => this.choose(Math.min(this.facts.steps.length - 1, Math.max(0, this.step + by)));
    const focus = document.activeElement?.dataset?.step;
    const buttons = this.facts.steps.map((one, number) =>
      el("button", {
        type: "button",
        class: "step",
        text: one.symbol,
        data: { step: number },
        "aria-pressed": String(number === step),
        on: { click: () => this.choose(number) },
      }),
    );
    const previous = el("button", { type: "button", text: t("Previous step"), data: { step: "previous" }, on: { click: move(-1) } });
    const next = el("button", { type: "button", text: t("Next step"), data: { step: "next" }, on: { click: move(1) } });
    this.steps.replaceChildren(previous, ...buttons, next);
    if (focus !== undefined) this.steps.querySelector(`[data-step="${CSS.escape(focus)}"]`)?.focus();
    const rows = this.facts.steps[step].alternatives.flatMap(([symbol, share]) => [
      el("span", { text: symbol }),
      el("span", { text: percent(share) }),
      bar(share),
    ]);
    const title = el("p", { class: "quiet", text: t("Step {step} of {steps}: the most probable symbols", { step: step + 1, steps: this.facts.steps.length }) });
    this.alternatives.replaceChildren(title, el("div", { class: "outcome" }, ...rows));
    if (this.map) {
      this.map.pinned = step < this.map.rows.length ? step : null;
      this.map.draw(this.map.largest());
      this.map.describe();
    }
  }
}

function beamTable(beams) {
  const head = ["output", "log probability", "score"].map((name, at) => el("th", { scope: "col", class: at ? "number" : null, text: t(name) }));
  const rows = beams.map(({ output, ended, log_probability, score }) => {
    const name = (output || t("(nothing)")) + (ended ? "" : t(" (not ended)"));
    return tableRow(name, [log_probability.toFixed(3), score.toFixed(3)]);
  });
  return el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows));
}
