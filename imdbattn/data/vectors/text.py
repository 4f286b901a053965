"""Reads vectors as text: a word and D numbers on each line, with or without a line of counts above.

Words may contain spaces, as in GloVe 840B: they are separated from their numbers from the right.
Shapes: V words, D numbers per word.
"""

import math
import re
from array import array
from collections import Counter
from contextlib import suppress
from itertools import chain, islice
from typing import BinaryIO

import numpy as np

MARK = b"\xef\xbb\xbf"  # a byte order mark
COUNTS = re.compile(rb"(\d+)[ \t](\d+)[ \t\r\n]*")  # V and D, as word2vec writes them
LOOKED_AT = 100  # lines from which D is inferred


def read_text_vectors(stream: BinaryIO) -> tuple[list[str], np.ndarray]:
    """Reads all words and their vectors (V, D).

    Raises ValueError that names the line unless all are words with D numbers each, as many as the
    first line announces.
    """
    lines = iter(stream)
    first_lines = list(islice(lines, 1 + LOOKED_AT))
    first_lines[:1] = [line.removeprefix(MARK) for line in first_lines[:1]]
    announced = counts_of(first_lines)
    width = announced[1] if announced else width_of(first_lines)
    header = 0 if announced is None else 1
    words = []
    numbers = array("f")
    rest = chain(first_lines[header:], lines)
    for line, text in enumerate(rest, 1 + header):
        word, *row = text.rstrip(b" \r\n").rsplit(b" ", width)  # fastText writes a blank at the end
        try:
            numbers.extend(map(float, row))
            has_more = b" " in word and is_number(word.rpartition(b" ")[2])
            if len(row) < width or has_more:
                raise ValueError
            words.append(word.decode())
        except ValueError as error:
            if not text.strip() and not any(map(bytes.strip, rest)):
                break  # blank lines at the end
            raise ValueError(
                f"line {line} is not a word and {width} numbers, separated by single spaces; it"
                f" starts with {ascii(text[:60])[1:]}"
            ) from error
    if announced and len(words) != announced[0]:
        cut_off = ": it may have been cut off, download it again" * (len(words) < announced[0])
        raise ValueError(
            f"its first line announces {announced[0]:,} words, but it has {len(words):,}{cut_off}"
        )
    return words, np.frombuffer(numbers, np.float32).reshape(-1, width)


def counts_of(first_lines: list[bytes]) -> tuple[int, int] | None:
    """Returns V and D if the first line has only these, and the second has more; else None."""
    match = COUNTS.fullmatch(first_lines[0]) if len(first_lines) > 1 else None
    if match is None or len(first_lines[1].split(b" ")) <= 2:
        return None
    return int(match[1]), int(match[2])


def width_of(lines: list[bytes]) -> int:
    """Returns D, from the numbers at the ends of the first lines; words may end in numbers, too."""
    counts: Counter[int] = Counter()
    for line in lines:
        fields = line.rstrip(b" \r\n").split(b" ")
        numbers = 0
        while numbers < len(fields) - 1 and is_number(fields[-1 - numbers]):
            numbers += 1
        counts[numbers] += 1
    if not counts:
        raise ValueError("it has no vectors")
    width = counts.most_common(1)[0][0]
    if width == 0 or COUNTS.fullmatch(lines[0]):  # two counts are followed by something else
        raise ValueError(
            "its lines do not end in numbers that single spaces separate; word2vec's binary form"
            " must be named .bin"
        )
    return width


def is_number(text: bytes) -> bool:
    with suppress(ValueError):
        return math.isfinite(float(text))
    return False
