// Answers from the models in this file, which a worker computes, so that typing never waits.

import { AnswerError, unframed } from "./tools.js";

const waiting = []; // messages that have not been sent
let sent = null; // the message that is being answered
let worker = null;

/** Reads the models of the file and starts the worker, whose script is that of the page. */
export async function runs() {
  const buffer = await unzipped(document.getElementById("data").textContent);
  const [facts] = unframed(buffer);
  const script = new Blob([document.getElementById("program").textContent], { type: "text/javascript" });
  worker = new Worker(URL.createObjectURL(script));
  worker.onmessage = ({ data }) => receive(data);
  worker.onerror = ({ message }) => receive({ error: message });
  worker.postMessage({ buffer });
  return { runs: facts.models, skipped: [], source: "", slots: facts.slots };
}

/** The bytes of gzip in base64. */
async function unzipped(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

export function ask(kind, values, key = kind) {
  cancel(key);
  return new Promise((resolve, reject) => {
    waiting.push({ kind, values, key, resolve, reject });
    send();
  });
}

export function cancel(key) {
  const aborted = waiting.filter((one) => one.key === key);
  for (const one of aborted) waiting.splice(waiting.indexOf(one), 1);
  if (sent?.key === key) aborted.push(sent); // its answer is ignored
  for (const one of aborted) one.reject(new DOMException("a newer message replaces it", "AbortError"));
}

/** Sends the next message when the previous one has been answered. */
function send() {
  if (sent || !waiting.length) return;
  sent = waiting.shift();
  worker.postMessage({ kind: sent.kind, values: sent.values });
}

function receive({ facts, numbers, error, isInput }) {
  const { resolve, reject } = sent;
  sent = null;
  send();
  if (error !== undefined) reject(isInput ? new AnswerError(error) : new Error(error));
  else resolve([facts, numbers]);
}
