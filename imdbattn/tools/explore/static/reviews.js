// The test reviews that meet conditions, and pairs of the order probe.

import { AnswerError } from "./tools.js";

const CONFIDENT = 0.9; // least probability of the predicted label
const LONG = 400; // least number of words

/**
 * The next review (step -1: the previous) after the row `after` that meets all conditions, with its place among them.
 *
 * reviews: [{row, text, label}], in the order of their rows. labelled: returns {label, probability} that a run gives a review.
 * others: the same of the runs whose labels must differ. contains: a word in the review.
 */
export function nextReview(reviews, labelled, others, { after, step, wrong, confident, disagree, long, contains }) {
  const word = contains.trim().toLowerCase();
  const pattern = word && new RegExp(`(?<![\\p{L}\\p{N}_])${word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}(?![\\p{L}\\p{N}_])`, "iu");
  const fits = (review) => {
    if (long && review.text.split(/\s+/).filter(Boolean).length < LONG) return false;
    if (pattern && !pattern.test(review.text)) return false;
    if (!wrong && !confident && !disagree) return true;
    const own = labelled(review);
    if (wrong && own.label === review.label) return false;
    if (confident && own.probability < CONFIDENT) return false;
    return !disagree || others.some((other) => other(review).label !== own.label);
  };
  const found = reviews.filter(fits);
  if (!found.length) throw new AnswerError(`none of the ${reviews.length.toLocaleString("en")} test reviews meets these conditions: remove one`);
  const following = step > 0 ? found.find(({ row }) => after === null || row > after) : found.findLast(({ row }) => after !== null && row < after);
  const chosen = following ?? found.at(step > 0 ? 0 : -1);
  return { ...chosen, place: found.indexOf(chosen) + 1, matching: found.length, of: reviews.length };
}

/** Both sentences of a random pair of the order probe (data/sources/order_probe.py). slots: the choices for each of its parts. */
export function pairOf(slots) {
  const [front, they, know, we, enjoy, film, behind] = slots.map((choices) => choices[Math.floor(Math.random() * choices.length)]);
  return {
    neg: `${front} ${they} did ${know} that ${we} would not ${enjoy} ${film} ${behind}`.trim(),
    pos: `${front} ${they} did not ${know} that ${we} would ${enjoy} ${film} ${behind}`.trim(),
  };
}
