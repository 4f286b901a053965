// Splits a text into words as the model's tokenizer does (imdbattn/data/tokenizer.py).
// Its rules are replacements of regular expressions or strings, NFC, and one regular expression that matches a word.

const FULL_WIDTH = /[\uff01-\uff5e]/g; // ！ to ～
const LETTER_AND_MARKS = /[\s\S][\p{M}\u1160-\u11ff]+|[\u0300-\uffff]/gu; // what NFC may change

export class Tokenizer {
  /** pipeline: the rules, in the JSON format of the library `tokenizers`. normalizes: whether full-width letters become ASCII. */
  constructor({ pipeline: { normalizer, pre_tokenizer }, normalizes }) {
    this.normalizes = normalizes;
    this.word = new RegExp(pre_tokenizer.pattern.Regex, "gu");
    this.changes = normalizer.normalizers.map(({ type, pattern, content }) => {
      if (type === "NFC") return composed;
      const regex = new RegExp(pattern.Regex ?? escaped(pattern.String), "gu");
      return (aligned) => replaced(aligned, regex, content);
    });
  }

  /** The words as they are looked up, with their places in the text in code points: [{text, start, end}]. */
  words(text) {
    const original = Array.from(text.toWellFormed ? text.toWellFormed() : text.replace(/\p{Cs}/gu, "\ufffd"));
    let aligned = lowered(original, this.normalizes);
    for (const change of this.changes) aligned = change(aligned);
    const words = [];
    for (const match of aligned.text.matchAll(this.word)) {
      const last = match.index + match[0].length - 1;
      words.push({ text: match[0], start: aligned.starts[match.index], end: aligned.ends[last] });
    }
    return words.map((word, at) => ({ ...word, end: withMarks(original, word.end, words[at + 1]?.start ?? original.length) }));
  }
}

/** Extends the end of a word over the marks that NFC has joined to its last character. */
function withMarks(original, end, following) {
  while (end < following && /^[\p{M}\u1161-\u11c2]/u.test(original[end])) end++;
  return end;
}

/** The text in lower case; for each of its code units the start and the end of the original character. */
function lowered(original, normalizes) {
  const plain = original.join("").replaceAll("İ", "I").toLowerCase();
  const letters = Array.from(normalizes ? plain.replace(FULL_WIDTH, (one) => String.fromCharCode(one.charCodeAt(0) - 0xfee0)) : plain);
  const aligned = { text: "", starts: [], ends: [] };
  letters.forEach((letter, at) => append(aligned, original[at] === "İ" ? "İ" : letter, at, at + 1));
  return aligned;
}

function append(aligned, text, start, end) {
  aligned.text += text;
  for (let unit = 0; unit < text.length; unit++) {
    aligned.starts.push(start);
    aligned.ends.push(end);
  }
}

/** Replaces each match; the new characters have the place of the last character of the match, as in the library. */
function replaced(aligned, pattern, content) {
  return rewritten(aligned, pattern, (match) => ({ content, same: 0, place: match.length - 1 }));
}

/** NFC; a joined character has the place of the first of its characters. */
function composed(aligned) {
  const isAscii = /^[\0-\x7f]*$/.test(aligned.text);
  const change = (cluster) => {
    const content = cluster.normalize("NFC");
    let same = 0;
    while (same < content.length && content[same] === cluster[same]) same++;
    return { content, same, place: same };
  };
  return isAscii ? aligned : rewritten(aligned, LETTER_AND_MARKS, change);
}

/**
 * Changes each match. change: a match -> its new content, the number of code units at the start that stay the same,
 * and the code unit of the match whose place the others have.
 */
function rewritten(aligned, pattern, change) {
  const parts = { text: "", starts: [], ends: [] };
  let at = 0;
  const copy = (until) => {
    parts.text += aligned.text.slice(at, until);
    for (; at < until; at++) {
      parts.starts.push(aligned.starts[at]);
      parts.ends.push(aligned.ends[at]);
    }
  };
  for (const match of aligned.text.matchAll(pattern)) {
    const { content, same, place } = change(match[0]);
    if (content === match[0]) continue;
    copy(match.index + same);
    append(parts, content.slice(same), aligned.starts[match.index + place], aligned.ends[match.index + place]);
    at = match.index + match[0].length;
  }
  copy(aligned.text.length);
  return parts;
}

function escaped(text) {
  return text.replace(/[.*+?^${}()|[\]\\/-]/g, (one) => `\\${one}`);
}
