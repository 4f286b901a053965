// Answers from the server of the page.

import { nextReview } from "./reviews.js";
import { AnswerError, unframed } from "./tools.js";

const tested = new Map(); // id of a run -> its test reviews, and how it labels them

/** The response; throws its message if it is an error. */
async function checked(response) {
  if (!response.ok) throw new AnswerError((await response.json()).error);
  return response;
}

export async function runs() {
  return (await checked(await fetch("api/runs"))).json();
}

/** The answer to a message, which the signal can abort. */
export async function answer(kind, values, signal) {
  if (kind === "next") return [await next(values, signal), null];
  const response = await fetch(`api/${kind}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(values, (_, value) => value?.toWellFormed?.() ?? value), // the server refuses lone surrogates
    signal,
  });
  const buffer = await (await checked(response)).arrayBuffer();
  const [facts, start] = unframed(buffer);
  return [facts, new Float32Array(buffer, start)];
}

/** The next test review of `run` that meets all conditions, see nextReview. */
async function next({ run, runs, ...conditions }, signal) {
  for (const id of [run, ...(conditions.disagree ? runs : [])]) {
    if (!tested.has(id)) tested.set(id, (await answer("reviews", { run: id }, signal))[0]);
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
