"""The symbols of pairs (words, characters, or what a callable returns), and their numbers."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any

from imdbattn.nn.encoder_decoder import BOS, EOS, PAD
from imdbattn.settings.pair_settings import SideTokenizer, TranslationSettings

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # a space within a symbol, as SentencePiece writes it
# Each sign is a separate symbol; apostrophes and hyphens belong to words
SIGNS = re.compile('([.,!?;:…"«»“”„‹›])')
UNK_SYMBOL = 3
MARKERS = ["<pad>", "<bos>", "<eos>", "<unk>"]  # the symbols of PAD, BOS, EOS and UNK_SYMBOL


def split_text(text: str, settings: Any) -> list[str]:
    """Returns the symbols of a text, which are capital letters for `reverse`, and otherwise
    normalized as in the data; [] if it is blank.
    """
    if settings.source == "reverse":
        return list("".join(text.split()).upper())
    return symbols_of(text, settings.lower, tokenizers_of(settings)[0]).split()


def tokenizers_of(settings: TranslationSettings) -> tuple[SideTokenizer, SideTokenizer]:
    """Returns the tokenizers of source and target in data.tokenizer."""
    setting = settings.tokenizer
    if not isinstance(setting, (list, tuple)):
        return setting, setting
    source, target = setting
    return source, target


def symbols_of(text: str, lower: bool, tokenizer: SideTokenizer) -> str:
    """Returns the symbols of a text, joined by single spaces: words and punctuation, characters, or
    the words of a callable. A space within a symbol becomes SPACE.

    Combining accents are joined to their letter, and ’ becomes ' in words, so that a word has only
    one form: "C’est à toi !" is "c'est à toi !".
    """
    text = unicodedata.normalize("NFC", text.lower() if lower else text)
    if tokenizer == "words":  # split() also splits at no-break spaces
        return " ".join(SIGNS.sub(r" \1 ", text.replace("’", "'")).split())
    if tokenizer == "characters":
        return " ".join(SPACE.join(text.split()))
    from imdbattn.data.custom_tokenizer import splitter_of

    return " ".join(SPACE.join(word.split()) for word in splitter_of(tokenizer)(text))


def joined_symbols(symbols: Iterable[str], settings: Any, side: int) -> str:
    """Returns the symbols as readable text. side: 0 for a source, 1 for a target."""
    are_letters = settings.source == "reverse" or tokenizers_of(settings)[side] == "characters"
    return ("" if are_letters else " ").join(symbols).replace(SPACE, " ")


@dataclass(frozen=True)
class Vocabulary:
    """Symbol number i is `symbols[i]`; the first four are MARKERS."""

    symbols: list[str]

    @cached_property
    def ids(self) -> dict[str, int]:
        """The number of each symbol except the markers, so that a word spelled like a
        marker is unknown.
        """
        return {
            symbol: number for number, symbol in enumerate(self.symbols) if number >= len(MARKERS)
        }

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, symbols: Sequence[str]) -> list[int]:
        """Returns the numbers of the symbols, UNK_SYMBOL for unknown ones; without BOS and EOS."""
        return [self.ids.get(symbol, UNK_SYMBOL) for symbol in symbols]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Returns the symbols before the first EOS, without PAD and BOS."""
        return [self.symbols[n] for n in takewhile(lambda n: n != EOS, ids) if n not in (PAD, BOS)]

    @classmethod
    def count(cls, sequences: Iterable[Sequence[str]], min_frequency: int = 1) -> "Vocabulary":
        """Returns the symbols that occur at least `min_frequency` times, sorted by frequency."""
        counts = Counter(symbol for sequence in sequences for symbol in sequence)
        known = [
            symbol for symbol, n in counts.items() if n >= min_frequency and symbol not in MARKERS
        ]
        return cls([*MARKERS, *sorted(known, key=lambda symbol: (-counts[symbol], symbol))])
