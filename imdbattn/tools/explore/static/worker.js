// The worker of a page that has no server: answers its messages from the models of the file.

import { Models } from "./model.js";
import { AnswerError } from "./tools.js";

/** Listens to {buffer}, then to {kind, values}; posts {facts, numbers}, or {error, isInput}. */
export function answerMessages() {
  let models = null;
  globalThis.onmessage = ({ data: { buffer, kind, values } }) => {
    if (buffer) {
      models = new Models(buffer);
      return;
    }
    try {
      const [facts, numbers] = models.answer(kind, values);
      postMessage({ facts, numbers }, numbers ? [numbers.buffer] : []);
    } catch (error) {
      postMessage({ error: error.message, isInput: error instanceof AnswerError });
    }
  };
}
