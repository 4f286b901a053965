"""The tokenizer that data.tokenizer names: one of data.tokens.RULES, or a callable of one's own."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from imdbattn.data import tokens
from imdbattn.data.tokens import Word

Setting = Any  # a name, or `_target_` and keyword arguments as a mapping or as settings


class AnyTokenizer(Protocol):
    """What every tokenizer offers, see data.tokens.Tokenizer."""

    def encode(self, texts: Iterable[str]) -> list[list[int]]: ...

    def encode_flat(self, texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]: ...

    def encode_counting(self, texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray, int]: ...

    def words(self, text: str) -> list[Word]: ...


def tokenizer_of(setting: Setting, words: Sequence[str]) -> AnyTokenizer:
    """The tokenizer that turns texts into ids of `words`. Raises UserError for a callable that
    cannot be imported.
    """
    if isinstance(setting, str):
        return tokens.Tokenizer(setting, words)
    from imdbattn.data.callables import as_mapping
    from imdbattn.data.own_tokenizer import OwnTokenizer

    return OwnTokenizer(as_mapping(setting), words)


def signature(setting: Setting) -> str:
    """A string that changes whenever the tokens may change."""
    if isinstance(setting, str):
        return tokens.signature(setting)
    from imdbattn.data.callables import as_mapping
    from imdbattn.data.own_tokenizer import version_of

    return version_of(as_mapping(setting))
