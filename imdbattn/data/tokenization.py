"""Text to words to ids, four ways.

Each tokenizer but torchtext's own is a pipeline of the `tokenizers` library (rewriting rules, then one splitting rule,
then a look-up of whole words), so it runs in parallel and knows where in the original text each word stood.
"""

import re
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tokenizers
from tokenizers import Regex
from tokenizers.models import WordLevel
from tokenizers.normalizers import Replace
from tokenizers.normalizers import Sequence as Rewrites
from tokenizers.pre_tokenizers import Split

from imdbattn.errors import UserError

PAD, UNK, CLS = 0, 1, 2
FIRST_WORD = 3  # words[i] of the vocabulary has id i + FIRST_WORD
TOKENIZERS = ("ptb", "basic_english", "whitespace", "torchtext")

# What str.split() splits on; \s is less in the regular expressions of `tokenizers`, which also lack \x85: hence no r"".
_SPACE = "\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_REVIEWS_AT_ONCE = 1000  # bounds the memory that the library's Encoding objects take
_UNKNOWN = "\n"  # the library wants a word to stand for the unknown ones: one that no text can hold, as spaces separate


class Word(NamedTuple):
    """A word as it is looked up, its place in the original text (`text[start:end]`) and its id."""

    text: str
    start: int
    end: int
    id: int


class Tokenizer:
    """Turns texts into ids of `words`, GloVe's words in row order; a word that is not among them is UNK.

    No text, whatever it holds, yields PAD or CLS. Raises UserError where `name` is not one of TOKENIZERS, or where it
    is torchtext and torchtext does not load.
    """

    def __init__(self, name: str, words: Sequence[str]) -> None:
        ids = {word: row for row, word in enumerate(words, FIRST_WORD)}
        self._ids = ids
        self._pipeline = _pipeline(name, ids)
        self._torchtext = _torchtext()[1] if name == "torchtext" else None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, none for an empty one; nothing is added in front or behind."""
        if self._torchtext:
            return [[self._ids.get(word, UNK) for word in self._torchtext(text)] for text in texts]
        ids = []
        for start in range(0, len(texts), _REVIEWS_AT_ONCE):
            batch = [_lower(text) for text in texts[start : start + _REVIEWS_AT_ONCE]]
            ids += [encoding.ids for encoding in self._pipeline.encode_batch_fast(batch)]
        return ids

    def words(self, text: str) -> list[Word]:
        """Return the words of one text with their places in it, their ids being those of `encode`."""
        pieces = tokenizers.PreTokenizedString(_lower(text))
        pieces.normalize(self._pipeline.normalizer.normalize)
        self._pipeline.pre_tokenizer.pre_tokenize(pieces)
        found = pieces.get_splits("original", "char")
        return [Word(word, start, end, self._ids.get(word, UNK)) for word, (start, end), _ in found]


def signature(name: str) -> str:
    """Return a string that changes whenever the tokens of `name` may change; raises UserError as Tokenizer does."""
    version = f"torchtext {_torchtext()[0]}" if name == "torchtext" else _pipeline(name, {}).to_str()
    return f"tokenizers {tokenizers.__version__}, Unicode {unicodedata.unidata_version}, {version}"


def _pipeline(name: str, ids: dict[str, int]) -> tokenizers.Tokenizer:
    if name not in TOKENIZERS:
        raise UserError(f"data.tokenizer={name} is not known: choose one of {', '.join(TOKENIZERS)}.")
    rewrites, split = {"ptb": _ptb, "whitespace": _whitespace}.get(name, _basic_english)()
    pipeline = tokenizers.Tokenizer(WordLevel(ids | {_UNKNOWN: UNK}, unk_token=_UNKNOWN))
    # What _lower leaves, and so its lower-case form of two characters is known to come from one.
    pipeline.normalizer = Rewrites([Replace("İ", "i̇"), *rewrites])
    pipeline.pre_tokenizer = split
    return pipeline


def _ptb() -> tuple[list[Replace], Split]:
    """Penn Treebank's words, much as Stanford's tokenizer made them for GloVe 6B: do n't, film 's, well - done.

    After https://nlp.stanford.edu/software/tokenizer.html; brackets and double quotes stay as they are written.
    Windows' punctuation (cp1252, left undecoded in IMDB) and its Unicode forms become plain.
    """
    rewrites = [
        Replace(Regex(r"<\s*/?\s*br\s*/?\s*>"), " "),
        Replace(Regex("[\x91\x92‘’´`]"), "'"),
        Replace(Regex("[\x84\x93\x94„“”]"), '"'),
        Replace(Regex("[\x96–]"), "-"),
        # Plain -- and ... stay untouched: what is rewritten is placed at the first character of what it was.
        Replace(Regex("[\x97—]+|-{3,}"), "--"),
        Replace(Regex(r"(?<!\.)\.{2}(?!\.)|\.{4,}" + "|[\x85…]+"), "..."),
    ]
    letter = r"[\p{L}\p{M}\p{N}]"
    clitic = rf"(?:s|m|d|ll|re|ve)(?!{letter})"
    negation = rf"n't(?!{letter})"
    titles = "mr|mrs|ms|dr|prof|rev|jr|sr|st|lt|sgt|capt|col|gen|bros|inc|vs|etc"
    tokens = [
        negation,
        rf"'{clitic}",
        rf"'(?:em|\p{{N}}0s)(?!{letter})",  # get 'em, the '90s
        rf"\p{{L}}(?:\.\p{{L}})+(?!{letter})\.?",  # u.s., e.g.
        rf"(?:{titles})\.",
        r"\p{N}+(?:[.,:/]\p{N}+)+",  # 1,000 3.5 10/10
        rf"(?:(?!{negation}){letter})+(?:'(?!{clitic}){letter}+)*",  # o'brien whole, but film 's and do n't
        r"\.\.\.",
        "--",
        rf"[^{_SPACE}]",
    ]
    return rewrites, _keep("|".join(tokens))


def _basic_english() -> tuple[list[Replace], Split]:
    """The words of torchtext 0.18's `get_tokenizer("basic_english")` (torchtext/data/utils.py), token for token."""
    # In this order: a double quote vanishes even from inside <br />, and joins what it stood between.
    rewrites = [Replace('"', ""), Replace("<br />", " ")]
    return rewrites, _keep(rf"[.,()!?']|[^.,()!?';:{_SPACE}]+")


def _whitespace() -> tuple[list[Replace], Split]:
    """The words of `text.lower().split()`, as in the exercise's hand-out."""
    return [], _keep(f"[^{_SPACE}]+")


def _keep(pattern: str) -> Split:
    """Return the rule that makes each match of `pattern` a word and drops what lies between."""
    return Split(Regex(pattern), "removed", invert=True)


def _lower(text: str) -> str:
    """Return `text.lower()` with each character in its place, so that offsets stay true.

    The library's own lower-casing goes by single characters and misses Greek's final sigma. İ, the only character
    that lower() makes longer, is left to the pipeline. Lone surrogates, which the library refuses, become U+FFFD.
    """
    if text.isascii():
        return text.lower()
    text = re.sub("[\ud800-\udfff]", "\ufffd", text)
    lowered = text.replace("İ", "I").lower()
    return "".join("İ" if old == "İ" else new for old, new in zip(text, lowered, strict=True))


def _torchtext() -> tuple[str, Callable[[str], list[str]]]:
    """Return torchtext's version and its own basic_english; raises UserError where it does not load."""
    try:
        with warnings.catch_warnings(action="ignore"):  # torchtext says at import that it is deprecated
            import torchtext
            from torchtext.data.utils import get_tokenizer
    except (ImportError, OSError) as error:  # OSError: an undefined symbol, under any torch but 2.3
        raise UserError(
            f"data.tokenizer=torchtext: torchtext does not load ({error!r}): its last release, 0.18.0, "
            "loads only with torch 2.3; use data.tokenizer=basic_english, which gives the same tokens, or "
            "`make test-torchtext` shows an environment where it loads."
        ) from error
    return torchtext.__version__, get_tokenizer("basic_english")
