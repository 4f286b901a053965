// Answers the messages of a page that has no server: in a worker, so that typing never waits.

import { Models } from "./model.js";
import { AnswerError } from "./tools.js";

/** Listens to {buffer}, then to {number, kind, values}; posts {number, facts, numbers}, or {number, error, isInput}. */
export function listen(scope) {
  let models = null;
  scope.onmessage = ({ data }) => {
    if (data.buffer) {
      models = new Models(data.buffer);
      return;
    }
    const { number, kind, values } = data;
    try {
      const [facts, numbers] = models.answer(kind, values);
      scope.postMessage({ number, facts, numbers }, numbers ? [numbers.buffer] : []);
    } catch (error) {
      scope.postMessage({ number, error: error.message, isInput: error instanceof AnswerError });
    }
  };
}
