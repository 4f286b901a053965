// Requests to the server. A newer request with the same key aborts the older one.

import { nextReview } from "./reviews.js";
import { AnswerError } from "./tools.js";

const running = new Map();
const tested = new Map(); // id of a run -> its test reviews, and how it labels them

async function answerOf(response) {
  if (response.ok) return response;
  let reason = `the server answered with status ${response.status}`;
  try {
    reason = (await response.json()).error;
  } catch {
    // not JSON: keep the status
  }
  throw new AnswerError(reason);
}

export async function runs() {
  return (await answerOf(await fetch("api/runs"))).json();
}

/** Sends values to api/<name>. key: of requests that replace each other. Throws an AbortError if replaced. */
async function post(name, values, key) {
  running.get(key)?.abort();
  const control = new AbortController();
  running.set(key, control);
  try {
    const response = await fetch(`api/${name}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(values, (_, value) => value?.toWellFormed?.() ?? value), // the server refuses lone surrogates
      signal: control.signal,
    });
    return await answerOf(response);
  } finally {
    if (running.get(key) === control) running.delete(key);
  }
}

export function cancel(key) {
  running.get(key)?.abort();
}

export async function json(name, values, key = name) {
  if (name === "next") return next(values);
  return (await post(name, values, key)).json();
}

/** JSON and, after it, float32 numbers: [facts, Float32Array]. */
export async function binary(name, values, key = name) {
  const buffer = await (await post(name, values, key)).arrayBuffer();
  const size = new DataView(buffer).getUint32(0, true);
  const facts = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  return [facts, new Float32Array(buffer, 4 + size)];
}

/** The next test review of `run` that meets all conditions, see nextReview. */
async function next({ run, runs, ...conditions }) {
  for (const id of [run, ...(conditions.disagree ? runs : [])]) {
    if (!tested.has(id)) tested.set(id, await (await post("reviews", { run: id }, "reviews")).json());
  }
  const { fingerprint, reviews } = tested.get(run);
  const labelledBy = (id) => {
    const { labels, probabilities } = tested.get(id);
    const place = new Map(reviews.map(({ row }, at) => [row, at]));
    return ({ row }) => ({ label: labels[place.get(row)], probability: probabilities[place.get(row)] });
  };
  const others = runs.filter((id) => tested.get(id)?.fingerprint === fingerprint);
  return nextReview(reviews, labelledBy(run), others.map(labelledBy), conditions);
}
