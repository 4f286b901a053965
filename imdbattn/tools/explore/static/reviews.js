// The test reviews that meet conditions, and pairs of the order probe.

import { ask } from "./api.js";
import { AnswerError } from "./tools.js";

const CONFIDENT = 0.9; // least probability of the predicted label
const LONG = 400; // least number of words

const tested = new Map(); // id of a run -> its test reviews, and how it labels them

/** The answer to the message `reviews`: {fingerprint, reviews: [{row, text, label}], labels, probabilities}. */
async function testedBy(run) {
  if (!tested.has(run)) tested.set(run, (await ask("reviews", { run }))[0]);
  return tested.get(run);
}

/**
 * The next test review of `run` (step -1: the previous) after the row `after` that meets all conditions, with its place among them.
 *
 * runs: of which one must give another label, with `disagree`. contains: a word in the review.
 */
export async function nextReview({ run, runs, after, step, wrong, confident, disagree, long, contains }) {
  const own = await testedBy(run);
  const others = [];
  for (const id of disagree ? runs : []) others.push(await testedBy(id));
  const comparable = others.filter(({ fingerprint }) => fingerprint === own.fingerprint);
  const word = contains.trim().toLowerCase();
  const pattern = word && new RegExp(`(?<![\\p{L}\\p{N}_])${word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}(?![\\p{L}\\p{N}_])`, "iu");
  const fits = (review, at) => {
    if (long && review.text.split(/\s+/).filter(Boolean).length < LONG) return false;
    if (pattern && !pattern.test(review.text)) return false;
    if (wrong && own.labels[at] === review.label) return false;
    if (confident && own.probabilities[at] < CONFIDENT) return false;
    return !disagree || comparable.some(({ labels }) => labels[at] !== own.labels[at]);
  };
  const found = own.reviews.filter(fits);
  if (!found.length) throw new AnswerError(`none of the ${own.reviews.length.toLocaleString("en")} test reviews meets these conditions: remove one`);
  const following = step > 0 ? found.find(({ row }) => after === null || row > after) : found.findLast(({ row }) => after !== null && row < after);
  const chosen = following ?? found.at(step > 0 ? 0 : -1);
  return { ...chosen, place: found.indexOf(chosen) + 1, matching: found.length, of: own.reviews.length };
}

/** Both sentences of a random pair of the order probe (data/sources/order_probe.py). slots: the choices for each of its parts. */
export function pairOf(slots) {
  const [front, they, know, we, enjoy, film, behind] = slots.map((choices) => choices[Math.floor(Math.random() * choices.length)]);
  return {
    neg: `${front} ${they} did ${know} that ${we} would not ${enjoy} ${film} ${behind}`.trim(),
    pos: `${front} ${they} did not ${know} that ${we} would ${enjoy} ${film} ${behind}`.trim(),
  };
}
