"""The symbols of one side of the pairs: words, characters, or what a callable returns."""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from imdbattn.settings.pair_settings import SideTokenizer, TranslationSettings

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # a space within a symbol, as SentencePiece writes it
# Each sign is a separate symbol; apostrophes and hyphens belong to words
SIGNS = re.compile('([.,!?;:…"«»“”„‹›])')


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
    if settings.source == "reverse":
        return "".join(symbols)
    if tokenizers_of(settings)[side] == "characters":
        return "".join(symbols).replace(SPACE, " ")
    return " ".join(symbols).replace(SPACE, " ")
