// Answers to the messages of the page: from the server that serves it, or in a file from the models that it contains.

import * as local from "./local.js";
import * as server from "./server.js";

/** Whether this page is a file that contains its models. */
export const isFile = Boolean(globalThis.document?.getElementById("data"));

const source = isFile ? local : server;

/** The models: {runs, skipped, source, slots}. */
export const runs = source.runs;

/** The answer to a message as [facts, Float32Array]. A newer message with the same key aborts the older one. */
export const ask = source.ask;

/** Aborts the message with this key. */
export const cancel = source.cancel;
