// Answers from the models in this file. They compute in a worker; where a browser allows none, in the page itself.

import { unpack } from "./model.js";
import { AnswerError } from "./tools.js";
import { listen } from "./worker.js";

const waiting = []; // messages that have not been sent
let sent = null; // the message that is being answered
let latest = 0; // number of the last message
let engine = null; // {postMessage(data)}

/** Reads the models of the file and starts the worker. */
export async function runs() {
  const buffer = await unzipped(document.getElementById("data").textContent);
  const { facts } = unpack(buffer);
  start(buffer);
  return { runs: facts.models, skipped: [], source: "", slots: facts.slots };
}

/** The bytes of gzip in base64. */
async function unzipped(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

/** Starts the worker, whose script is that of the page. */
function start(buffer) {
  try {
    const script = new Blob([document.getElementById("program").textContent], { type: "text/javascript" });
    const worker = new Worker(URL.createObjectURL(script));
    worker.onmessage = ({ data }) => receive(data);
    worker.onerror = () => use(inPage(), buffer);
    use(worker, buffer);
  } catch {
    use(inPage(), buffer);
  }
}

/** Answers in the page. */
function inPage() {
  const scope = { postMessage: receive };
  listen(scope);
  return { postMessage: (data) => setTimeout(() => scope.onmessage({ data })) };
}

function use(next, buffer) {
  engine = next;
  engine.postMessage({ buffer });
  if (sent) engine.postMessage({ number: sent.number, kind: sent.kind, values: sent.values });
}

export function binary(kind, values, key = kind) {
  cancel(key);
  return new Promise((resolve, reject) => {
    waiting.push({ number: ++latest, kind, values, key, resolve, reject });
    send();
  });
}

export async function json(kind, values, key = kind) {
  return (await binary(kind, values, key))[0];
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
  engine.postMessage({ number: sent.number, kind: sent.kind, values: sent.values });
}

function receive({ number, facts, numbers, error, isInput }) {
  if (sent?.number !== number) return;
  const { resolve, reject } = sent;
  sent = null;
  send();
  if (error !== undefined) reject(isInput ? new AnswerError(error) : new Error(error));
  else resolve([facts, numbers]);
}
