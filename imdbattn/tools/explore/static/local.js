// Answers from the models in this file, which a worker computes, so that typing never waits.

import { answering } from "./model.js";
import { AnswerError, unframed } from "./tools.js";

const waiting = []; // messages that have not been sent, in order
let sent = null; // the message that is being answered
let worker = null;

/** Reads the models of the file and starts the worker, whose script is that of the page. */
export async function runs() {
  const buffer = await unzipped(document.getElementById("data").textContent);
  const [facts] = unframed(buffer);
  const script = new Blob([document.getElementById("program").textContent], { type: "text/javascript" });
  worker = new Worker(URL.createObjectURL(script));
  worker.onmessage = ({ data }) => receive(data);
  worker.onerror = ({ message }) => receive({ error: message ?? "the models cannot be started" });
  worker.postMessage({ buffer });
  return { runs: facts.models, skipped: [], source: "", slots: facts.slots };
}

/** The bytes of gzip in base64. */
async function unzipped(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

/** Promises the answer to a message; messages are answered one after the other. */
export function answer(kind, values, signal) {
  return new Promise((resolve, reject) => {
    waiting.push({ message: { kind, values }, signal, resolve, reject });
    send();
  });
}

/** Sends the next message when the previous one has been answered. */
function send() {
  while (!sent && waiting.length) {
    const next = waiting.shift();
    if (next.signal.aborted) continue;
    sent = next;
    worker.postMessage(sent.message);
  }
}

function receive({ facts, numbers, error, isInput }) {
  const { resolve, reject } = sent;
  sent = null;
  send();
  if (error !== undefined) reject(isInput ? new AnswerError(error) : new Error(error));
  else resolve([facts, numbers]);
}

/** In the worker: listens to {buffer}, then to {kind, values}; posts {facts, numbers}, or {error, isInput}. */
export function answerMessages() {
  let answer = null;
  globalThis.onmessage = ({ data: { buffer, kind, values } }) => {
    if (buffer) {
      answer = answering(buffer);
      return;
    }
    try {
      const [facts, numbers] = answer(kind, values);
      postMessage({ facts, numbers }, numbers ? [numbers.buffer] : []);
    } catch (error) {
      postMessage({ error: error.message, isInput: error instanceof AnswerError });
    }
  };
}
