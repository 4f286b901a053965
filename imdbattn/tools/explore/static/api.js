// Answers to the messages of the page: from the server that serves it, or in a file from the models that it contains.

import * as local from "./local.js";
import * as server from "./server.js";

/** Whether this page is a file that contains its models. */
export const isFile = Boolean(globalThis.document?.getElementById("data"));

const source = isFile ? local : server;
const running = new Map(); // key -> AbortController of the message that is being answered

/** The models: {runs, skipped, source, slots}. */
export const runs = source.runs;

/** The answer to a message as [facts, Float32Array or null]; never, if a newer message with the same key replaces it. */
export function ask(kind, values, key = `${kind} ${values.run}`) {
  cancel(key);
  const control = new AbortController();
  running.set(key, control);
  return new Promise((resolve, reject) => {
    const settled = (settle) => (value) => {
      if (control.signal.aborted) return;
      running.delete(key);
      settle(value);
    };
    source.answer(kind, values, control.signal).then(settled(resolve), settled(reject));
  });
}

/** Aborts the message with this key, which then has no answer. */
export function cancel(key) {
  running.get(key)?.abort();
}
