"""Reads word2vec's binary form: a line with V and D; then each word, a space, and D float32.

Mikolov et al., https://code.google.com/archive/p/word2vec (`word2vec -binary 1`).
Shapes: V words, D numbers per word.
"""

import io
import re
from typing import BinaryIO, cast

import numpy as np

LONGEST_WORD = 10_000  # bytes, in a damaged file
COUNTS = re.compile(rb"(\d{1,10})[ \t](\d{1,6})[ \t]*\r?\n")
FASTTEXT = b"\xba\x16\x4f\x2f"  # first bytes of fastText's own models


def read_binary(stream: BinaryIO) -> tuple[list[str], np.ndarray]:
    """Reads all words and their vectors (V, D).

    Raises ValueError that names the word which is wrong, and for a file with fewer or more words
    than its first line announces.
    """
    reader = cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, stream), 1 << 20))
    first = reader.readline(100)
    match = COUNTS.fullmatch(first)
    if match is None:
        form = "a model of fastText: use its .vec file" if first[:4] == FASTTEXT else "another file"
        raise ValueError(
            f"it does not begin with two counts, as word2vec's .bin does; it is {form}"
        )
    count, width = int(match[1]), int(match[2])
    words: dict[str, int] = {}
    rows = []
    for number in range(1, count + 1):
        word = read_word(reader, number, count).decode()
        row = reader.read(4 * width)
        if len(row) < 4 * width:
            raise ValueError(f"it ends in word {number} of {count}: download it again")
        if word in words:
            raise ValueError(f"word {number} is not new: {word!r} is word {words[word]}, too")
        words[word] = number
        rows.append(row)
    if rest := reader.read(100).strip():
        raise ValueError(
            f"its first line announces {count:,} words, but more follow: {ascii(rest[:30])[1:]};"
            " text must be named .vec"
        )
    vectors_VD = np.frombuffer(b"".join(rows), "<f4").reshape(count, width)
    finite_V = np.isfinite(vectors_VD).all(1)
    if not finite_V.all():
        place = int(finite_V.argmin())
        raise ValueError(
            f"word {place + 1}, {list(words)[place]!r}, has a number that is not finite"
        )
    return list(words), vectors_VD


def read_word(reader: BinaryIO, number: int, count: int) -> bytes:
    """Returns the bytes before the next space, without the line break that may precede them."""
    word = bytearray()
    while (sign := reader.read(1)) != b" ":
        if not sign:
            raise ValueError(f"it ends in word {number} of {count}: download it again")
        if sign != b"\n" or word:
            word += sign
        if len(word) > LONGEST_WORD:
            raise ValueError(f"word {number} of {count} does not end: it is not word2vec's .bin")
    return bytes(word)
