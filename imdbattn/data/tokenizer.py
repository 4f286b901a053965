"""The tokenizers, which split a text into words and convert them to ids.

Each tokenizer except torchtext's own is a pipeline of the `tokenizers` library (rewriting rules,
then one splitting rule), which records where in the original text each word is. No word contains a
space, so a text is split at spaces first, and each different piece goes through the pipeline once:
IMDB has 5.8 million pieces, 236,000 different ones.
"""

import re
import unicodedata
import warnings
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import count
from typing import NamedTuple, Protocol

import numpy as np
import tokenizers
from tokenizers import Regex
from tokenizers.models import WordLevel
from tokenizers.normalizers import NFC, Normalizer, Replace
from tokenizers.normalizers import Sequence as Rewrites
from tokenizers.pre_tokenizers import Split

from imdbattn.nn.ladder import FIRST_WORD, UNK

MOST_CACHED = 500_000  # pieces of text whose ids are cached
UNKNOWN_WORD = -1  # the id of an unknown word with a letter, until `encode` has counted these words
LETTER = re.compile(r"[^\W\d_]")

# str.split() splits at these characters. \s of `tokenizers` has fewer, and it has no escape \x85,
# so this is not a raw string.
_SPACE = "\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}  # ！ to ～ -> ! to ~
# Latin ligatures and NFC. NFKC is not used: it also splits ½ and ¨, which have GloVe vectors.
_NORMALIZED = [*(Replace(old, unicodedata.normalize("NFKC", old)) for old in "ﬀﬁﬂﬃﬄﬅﬆ"), NFC()]


class Word(NamedTuple):
    """A word as it is looked up, its place `text[start:end]` in the original text, and its id."""

    text: str
    start: int
    end: int
    id: int


class Encoded(NamedTuple):
    """N texts as ids: text n is `ids[offsets[n]:offsets[n + 1]]`."""

    ids: np.ndarray  # (tokens,) int32
    offsets: np.ndarray  # (N + 1,) int64
    # number of words without a vector that contain a letter; numbers and signs are not counted,
    # because they say little about the vectors
    unknown_words: int


class AnyTokenizer(Protocol):
    """The methods of every tokenizer, see Tokenizer."""

    def encode(self, texts: Iterable[str]) -> Encoded: ...

    def words(self, text: str) -> list[Word]: ...


class Rules(NamedTuple):
    """How a tokenizer finds words in lower-case text."""

    # (regular expression, replacement), applied first, because matches may contain spaces
    across: list[tuple[str, str]]
    within: Sequence[Normalizer]  # applied next, between two spaces
    word: str  # regular expression; anything between two words is dropped
    # whether accents, ligatures and full-width characters become the characters that GloVe has
    normalizes: bool


class Tokenizer:
    """Turns texts into ids of `words`, in row order of their vectors; other words are UNK.

    name: one of RULES.
    """

    def __init__(self, name: str, words: Sequence[str]) -> None:
        self._arguments = (name, words)
        self._ids = dict(zip(words, count(FIRST_WORD), strict=False))
        self._normalizes = RULES[name].normalizes
        self._across = [(re.compile(pattern), new) for pattern, new in RULES[name].across]
        self._pipeline = pipeline_of(name)
        self._cached_bytes_of = lru_cache(MOST_CACHED)(self._bytes_of)
        self._torchtext = _torchtext()[1] if name == "torchtext" else None

    def __reduce__(self) -> tuple[type, tuple[str, Sequence[str]]]:  # the cache cannot be pickled
        return Tokenizer, self._arguments

    def encode(self, texts: Iterable[str]) -> Encoded:
        """Returns the ids of the texts, and the number of unknown words."""
        flat, offsets = bytearray(), [0]
        for text in texts:
            flat += b"".join(map(self._cached_bytes_of, self._pieces(text)))
            offsets.append(len(flat) // 4)
        ids = np.frombuffer(flat, np.int32)
        is_unknown = ids == UNKNOWN_WORD
        ids[is_unknown] = UNK
        return Encoded(ids, np.array(offsets), int(is_unknown.sum()))

    def _pieces(self, text: str) -> list[str]:
        text = self._lower(text)
        if self._torchtext:
            return self._torchtext(text)
        for pattern, new in self._across:
            text = pattern.sub(new, text)
        return text.split()

    def _bytes_of(self, piece: str) -> bytes:
        """Returns the ids of a piece as bytes of int32; torchtext's pieces are words."""
        words = [piece]
        if not self._torchtext:
            rewritten = self._pipeline.normalizer.normalize_str(piece)
            words = [word for word, _ in self._pipeline.pre_tokenizer.pre_tokenize_str(rewritten)]
        ids = []
        for word in words:
            unknown = UNKNOWN_WORD if LETTER.search(word) else UNK
            ids.append(self._ids.get(word, unknown))
        return array("i", ids).tobytes()

    def words(self, text: str) -> list[Word]:
        """Returns the words of one text with their positions, and the same ids as `encode`."""
        pieces = tokenizers.PreTokenizedString(self._lower(text))
        pieces.normalize(self._pipeline.normalizer.normalize)
        self._pipeline.pre_tokenizer.pre_tokenize(pieces)
        words = list[Word]()
        for word, (start, end), _ in reversed(pieces.get_splits("original", "char")):
            following = words[-1].start if words else len(text)
            # NFC joined this mark to the word's last character.
            while end < following and _is_mark(text[end]):
                end += 1
            words.append(Word(word, start, end, self._ids.get(word, UNK)))
        return words[::-1]

    def _lower(self, text: str) -> str:
        """Returns the text in lower case; if the rules say so, without full-width characters."""
        text = _lower(text)
        return text if text.isascii() or not self._normalizes else text.translate(FULL_WIDTH)


def signature_of_rules(name: str) -> str:
    """Returns a string that changes whenever the tokens of `name` may change."""
    version = f"torchtext {_torchtext()[0]}" if name == "torchtext" else pipeline_of(name).to_str()
    return f"tokenizers {tokenizers.__version__}, Unicode {unicodedata.unidata_version}, {version}"


def pipeline_of(name: str) -> tokenizers.Tokenizer:
    """Returns the rules of `name` as a pipeline of the library, whose unused model has no words."""
    rules = RULES[name]
    within = [*_NORMALIZED, *rules.within] if rules.normalizes else rules.within
    pipeline = tokenizers.Tokenizer(WordLevel())
    # _lower keeps İ, so that the library records that its two lower-case characters come from one.
    pipeline.normalizer = Rewrites(
        [Replace("İ", "i̇"), *(Replace(Regex(old), new) for old, new in rules.across), *within]
    )
    pipeline.pre_tokenizer = Split(Regex(rules.word), "removed", invert=True)
    return pipeline


def _ptb() -> Rules:
    """Returns the rules of Penn Treebank tokens, similar to those of Stanford's tokenizer for GloVe
    6B: do n't, film 's, well - done.

    Based on https://nlp.stanford.edu/software/tokenizer.html, but brackets and double quotes are
    kept. Windows punctuation (cp1252, undecoded in IMDB) and its Unicode forms become ASCII.
    """
    space = f"[{_SPACE}]*"
    # Elsewhere, \x85 counts as a space.
    across = [("\x85", "…"), (f"<{space}/?{space}br{space}/?{space}>", " ")]
    within = [
        Replace(Regex("[\x91\x92‘’´`]"), "'"),
        Replace(Regex("[\x84\x93\x94„“”]"), '"'),
        Replace(Regex("[\x96–]"), "-"),
        # -- and ... are not replaced: a replacement gets the place of the last character only.
        Replace(Regex("[\x97—]+|-{3,}"), "--"),
        Replace(Regex(r"(?<!\.)\.{2}(?!\.)|\.{4,}" + "|…+"), "..."),
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
        # This keeps o'brien whole, but splits film 's and do n't.
        rf"(?:(?!{negation}){letter})+(?:'(?!{clitic}){letter}+)*",
        r"\.\.\.",
        "--",
        rf"[^{_SPACE}]",
    ]
    return Rules(across, within, "|".join(tokens), normalizes=True)


# These are exactly the words of torchtext 0.18's `get_tokenizer("basic_english")`. The order
# matters: a double quote is removed even inside <br />, and its neighbors are joined.
BASIC_ENGLISH = Rules(
    [('"', ""), ("<br />", " ")], [], rf"[.,()!?']|[^.,()!?';:{_SPACE}]+", normalizes=False
)
RULES = {
    "ptb": _ptb(),
    "basic_english": BASIC_ENGLISH,
    # the words of text.lower().split(), normalized
    "whitespace": Rules([], [], f"[^{_SPACE}]+", normalizes=True),
    "torchtext": BASIC_ENGLISH,
    # each character but spaces, for languages without spaces between words and for vectors of
    # characters
    "characters": Rules([], [], f"[^{_SPACE}]", normalizes=True),
}


def _lower(text: str) -> str:
    """Returns `text.lower()` with each character in its place, so that offsets stay valid.

    The library lower-cases single characters and misses the Greek final sigma. İ, the only
    character that lower() makes longer, is left to the pipeline. Lone surrogates, which the library
    rejects, become U+FFFD.
    """
    if text.isascii():
        return text.lower()
    text = re.sub("[\ud800-\udfff]", "\ufffd", text)
    if "İ" not in text:
        return text.lower()
    lowered = text.replace("İ", "I").lower()
    return "".join("İ" if old == "İ" else new for old, new in zip(text, lowered, strict=True))


def _is_mark(character: str) -> bool:
    """Returns whether NFC may join the character to the one before it: an accent, or a vowel or
    final of a Korean syllable.
    """
    return unicodedata.category(character)[0] == "M" or "\u1161" <= character <= "\u11c2"


def _torchtext() -> tuple[str, Callable[[str], list[str]]]:
    """Returns torchtext's version and its own basic_english; its last release, 0.18, loads only
    with torch 2.3.
    """
    # torchtext warns at import that it is deprecated
    with warnings.catch_warnings(action="ignore"):
        import torchtext
        from torchtext.data.utils import get_tokenizer
    return torchtext.__version__, get_tokenizer("basic_english")
