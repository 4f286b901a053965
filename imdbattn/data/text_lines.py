"""Texts to predict: one per line of a file, of a pipe, or of standard input."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain
from typing import NamedTuple

from imdbattn.errors import UserError


class Texts(NamedTuple):
    """total: their number. blank: number of the first blank line, from 1. Both are None for a stream."""

    lines: Iterator[str]
    total: int | None = None
    blank: int | None = None


def read_texts(file: str | None) -> Texts:
    """The lines of a file, or of standard input if None. A regular file is first read to its end, to check all of it.

    Raises UserError if there is no line, or for what cannot be read.
    """
    total = blank = None
    if file is None and sys.stdin.isatty():
        print("One review (or source) per line, then Ctrl-D:", file=sys.stderr)
    if file is not None and os.path.isfile(os.path.expanduser(file)):
        for total, line in enumerate(read_lines(file), 1):
            blank = blank or (None if line.strip() else total)
    lines = read_lines(file)
    first = next(lines, None)
    if first is None:
        raise UserError("no review was given: use text=..., file=... or standard input, one review per line")
    return Texts(chain([first], lines), total, blank)


def read_lines(file: str | None) -> Iterator[str]:
    """The lines of a file or pipe, or of standard input if None, as they arrive, without a byte order mark.

    Only newlines separate lines: \\x85 and similar occur in reviews. Raises UserError for what cannot be read.
    """
    name, at = "standard input" if file is None else f"file={file}", 0
    try:
        with nullcontext(sys.stdin.buffer) if file is None else open(os.path.expanduser(file), "rb") as stream:
            if file is not None and stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
                raise UserError(f"{name} is a device: give a text file, one review per line")
            for number, line in enumerate(stream, 1):
                try:
                    text = line.decode()
                except UnicodeDecodeError as error:
                    where = f"byte {at + error.start} (line {number})"
                    raise UserError(f"{name} is not UTF-8 at {where}: save it as UTF-8") from error
                if number > 1 or (text := text.removeprefix("\ufeff")):
                    yield text.replace("\r\n", "\n").removesuffix("\n")
                at += len(line)
    except OSError as error:
        raise UserError(f"{name} cannot be read ({error.strerror}): give a text file, one review per line") from error
