"""A custom tokenizer: any callable from a text to its words, such as jieba.lcut.

data.tokenizer names it with `_target_`; other keys are its keyword arguments. A class is
instantiated with them, and the object is called. Whether a run folder may name it is checked by
settings.trust.refuse_untrusted, as for classes.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import count

import numpy as np

from imdbattn.data.tokenizer import FIRST_WORD, LETTER, UNK, Encoded, Word
from imdbattn.errors import UserError, one_line, wrapping_errors
from imdbattn.settings.objects import as_mapping, import_callable

Splitter = Callable[[str], list[str]]


def splitter_of(settings: object) -> Splitter:
    """Returns a function from a text to its words, without blank words.

    Raises UserError if the callable cannot be imported; the function raises it for other values.
    """
    return _splitter(json.dumps(as_mapping(settings), sort_keys=True))


@cache
def _splitter(settings: str) -> Splitter:
    where, split = import_callable(json.loads(settings), "data.tokenizer")

    def words_of(text: str) -> list[str]:
        with wrapping_errors(where):
            words = list(split(text))
        if not all(isinstance(word, str) for word in words):
            shown = one_line(repr(words), 80)
            raise UserError(f"{where} returns {shown} instead of a list of words")
        return [word for word in words if word.strip()]

    return words_of


class CustomTokenizer:
    """Turns texts into ids of `words` with a callable. Implements data.tokenizer.AnyTokenizer.

    A word without a vector is also looked up in lower case.
    """

    def __init__(self, setting: object, words: Sequence[str]) -> None:
        self._split = splitter_of(setting)
        self._ids = dict(zip(words, count(FIRST_WORD), strict=False))

    def encode(self, texts: Iterable[str]) -> Encoded:
        """Returns the ids of the texts, and the number of unknown words."""
        ids: list[int] = []
        offsets, unknown_words = [0], 0
        for text in texts:
            for word in self._split(text):
                ids.append(self._id(word))
                unknown_words += ids[-1] == UNK and LETTER.search(word) is not None
            offsets.append(len(ids))
        return Encoded(np.array(ids, np.int32), np.array(offsets, np.int64), unknown_words)

    def words(self, text: str) -> list[Word]:
        """Returns the words of one text with their positions.

        Words are searched for in order, in any case. A word that is not in the text, because the
        callable has changed it, gets an empty span after the previous word.
        """
        words, end = [], 0
        lowered = text.replace("İ", "I").lower()  # the one letter that lower() makes longer
        for word in self._split(text):
            forms = ((text, word), (lowered, word), (lowered, word.lower()))
            starts = {where.find(form, end) for where, form in forms} - {-1}
            start = min(starts, default=end)
            end = start + len(word) if starts else end
            words.append(Word(word, start, end, self._id(word)))
        return words

    def _id(self, word: str) -> int:
        number = self._ids.get(word)
        return self._ids.get(word.lower(), UNK) if number is None else number
