"""Reads vectors as text: a word and D numbers on each line, with or without a line of counts above.

Words may contain spaces, as in GloVe 840B: they are separated from their numbers from the right.
Shapes: V words, D numbers per word.
"""

import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain, islice
from typing import BinaryIO

import numpy as np

MARK = b"\xef\xbb\xbf"  # a byte order mark
COUNTS = re.compile(rb"(\d+)[ \t](\d+)[ \t\r\n]*")  # V and D, as word2vec writes them
LOOKED_AT = 100  # lines from which D is inferred


def read_text_vectors(stream: BinaryIO, dim: int | None) -> tuple[list[str], np.ndarray]:
    """Reads all words and their vectors (V, D).

    dim: D, or None if it follows from the file. Raises ValueError that names the line unless all
    are different words with D finite numbers each, as many as the first line announces.
    """
    lines = iter(stream)
    start = list(islice(lines, 1 + LOOKED_AT))
    start[:1] = [line.removeprefix(MARK) for line in start[:1]]
    announced = counts_of(start)
    header = 0 if announced is None else 1
    width = announced[1] if announced else dim or width_of(start)
    check_width(width, dim, announced is not None)
    words: dict[str, int] = {}
    numbers = array("f")
    rest = chain(start[header:], lines)
    for line, text in enumerate(rest, 1 + header):
        word, *row = text.rstrip(b" \r\n").rsplit(b" ", width)  # fastText writes a blank at the end
        try:
            numbers.extend(map(float, row))
            added = word.decode()
            if len(row) < width or not math.isfinite(sum(numbers[-width:])):
                raise ValueError
            if b" " in word and is_number(word.rpartition(b" ")[2]):  # more than D numbers
                raise ValueError
        except ValueError as error:
            if not text.strip() and not any(map(bytes.strip, rest)):
                break  # blank lines at the end
            raise ValueError(problem(line, text, width, dim, start)) from error
        if added in words:
            raise ValueError(
                f"line {line} is not a new word: line {words[added]} has {added!r}, too; remove one"
            )
        words[added] = line
    if announced and len(words) != announced[0]:
        cut_off = ": it may have been cut off, download it again" * (len(words) < announced[0])
        raise ValueError(
            f"its first line announces {announced[0]:,} words, but it has {len(words):,}{cut_off}"
        )
    return list(words), np.frombuffer(numbers, np.float32).reshape(-1, width)


def counts_of(start: list[bytes]) -> tuple[int, int] | None:
    """Returns V and D if the first line has only these, and the second has more; else None."""
    match = COUNTS.fullmatch(start[0]) if len(start) > 1 else None
    if match is None or int(match[2]) < 1:
        return None
    if int(match[2]) == 1 and len(start[1].split()) == 2:
        return int(match[1]), 1
    return (int(match[1]), int(match[2])) if len(start[1].split(b" ")) > 2 else None


def width_of(lines: Iterable[bytes]) -> int:
    """Returns D, from the numbers at the ends of the first lines; words may end in numbers, too."""
    counts: Counter[int] = Counter()
    for line in lines:
        fields = line.rstrip(b" \r\n").split(b" ")
        numbers = 0
        while numbers < len(fields) - 1 and is_number(fields[-1 - numbers]):
            numbers += 1
        counts[numbers] += 1
    width = counts.most_common(1)[0][0] if counts else 0
    if width == 0:
        raise ValueError(
            "its lines do not end in numbers that single spaces separate; word2vec's binary form"
            " must be named .bin"
        )
    return width


def check_width(width: int, dim: int | None, in_header: bool) -> None:
    if in_header and dim not in (None, width):
        raise ValueError(
            f"its first line announces {width} dimensions: omit data.glove.dim={dim}, it follows"
            " from the file"
        )


def problem(line: int, text: bytes, width: int, dim: int | None, start: list[bytes]) -> str:
    """Returns what is wrong with a line, and the remedy if there is one that is true."""
    message = (
        f"line {line} is not a new word and {width} finite numbers, separated by single spaces; it"
        f" starts with {ascii(text[:60])[1:]}"
    )
    usual_width = None
    with suppress(ValueError):
        usual_width = width_of(start[-LOOKED_AT:])
    if dim is not None and usual_width not in (None, dim):
        return f"{message}; most lines have {usual_width}: omit data.glove.dim={dim}"
    if header_alone(start):
        return f"{message}; word2vec's binary form must be named .bin"
    return message


def header_alone(start: list[bytes]) -> bool:
    """Returns whether two counts are followed by something that is no text of vectors."""
    return COUNTS.fullmatch(start[0]) is not None and counts_of(start) is None


def is_number(text: bytes) -> bool:
    with suppress(ValueError):
        return math.isfinite(float(text))
    return False
