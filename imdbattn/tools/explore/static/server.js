// Answers from the server of the page.

import { AnswerError, unframed } from "./tools.js";

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
