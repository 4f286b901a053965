"""Reads word2vec's binary form: a line with V and D; then each word, a space, and D float32.

Mikolov et al., https://code.google.com/archive/p/word2vec (`word2vec -binary 1`).
Shapes: V words, D numbers per word.
"""

import io
from typing import BinaryIO, cast

import numpy as np

from imdbattn.data.vectors.text import COUNTS


def read_binary(stream: BinaryIO) -> tuple[list[str], np.ndarray]:
    """Reads all words and their vectors (V, D).

    Raises ValueError for a file with fewer or more words than its first line announces.
    """
    reader = cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, stream), 1 << 20))
    match = COUNTS.fullmatch(reader.readline(100))
    if match is None:
        raise ValueError(
            "it does not begin with two counts, as word2vec's .bin does; of fastText, use the .vec"
            " file"
        )
    count, width = int(match[1]), int(match[2])
    words = []
    rows = []
    for number in range(1, count + 1):
        word = bytearray()
        while (sign := reader.read(1)) not in (b" ", b""):
            if sign != b"\n" or word:  # a line break may precede a word
                word += sign
        row = reader.read(4 * width)
        if len(row) < 4 * width:
            raise ValueError(f"it ends in word {number} of {count}: download it again")
        words.append(word.decode())
        rows.append(row)
    if reader.read(100).strip():
        raise ValueError(
            f"its first line announces {count:,} words, but more follow; text must be named .vec"
        )
    return words, np.frombuffer(b"".join(rows), "<f4").reshape(count, width)
