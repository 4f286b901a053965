// Requests to the server. A newer request with the same key aborts the older one.

import { nextReview } from "./reviews.js";
import { AnswerError, unframed } from "./tools.js";

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

/** Sends values to api/<kind>. key: of requests that replace each other. Throws an AbortError if replaced. */
async function post(kind, values, key) {
  running.get(key)?.abort();
  const control = new AbortController();
  running.set(key, control);
  try {
    const response = await fetch(`api/${kind}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(values, (_, value) => value?.toWellFormed?.() ?? value), // the server refuses lone surrogates
      signal: control.signal,
    });
    return await (await answerOf(response)).arrayBuffer();
  } finally {
    if (running.get(key) === control) running.delete(key);
  }
}

export function cancel(key) {
  running.get(key)?.abort();
}

export async function ask(kind, values, key = kind) {
  if (kind === "next") return [await next(values), null];
  const buffer = await post(kind, values, key);
  const [facts, start] = unframed(buffer);
  return [facts, new Float32Array(buffer, start)];
}

/** The next test review of `run` that meets all conditions, see nextReview. */
async function next({ run, runs, ...conditions }) {
  for (const id of [run, ...(conditions.disagree ? runs : [])]) {
    if (!tested.has(id)) tested.set(id, (await ask("reviews", { run: id }))[0]);
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
