"""The exception for wrong input, messages of one line, and text that is safe in a terminal."""

import io
import logging
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Control characters except tab and newline, and bidirectional controls: these could move the cursor
# or hide text.
CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class UserError(Exception):
    """Wrong input. The message names what is wrong and how to fix it.

    Commands print it as one line and exit with status 2. For any other exception, which a library
    raises, they print the type and the message, and write the traceback into a file.
    """


def one_line(message: object, longest: int | None = 200) -> str:
    """Returns the start of an error or a quoted text as one line. longest: None keeps all."""
    text = " ".join(str(message).split())[:longest]
    return text or (type(message).__name__ if isinstance(message, BaseException) else "")


def in_shell(word: str) -> str:
    """Returns the word as it is typed in a shell, in double quotes if that avoids nested quotes."""
    return f'"{word}"' if "'" in word and not set('"$`\\!') & set(word) else shlex.quote(word)


def visible(text: str) -> str:
    """Returns text with each control character replaced by the replacement character."""
    return CONTROL_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", text)


class VisibleFormatter(logging.Formatter):
    """Formats records with `visible`, because messages quote run folders and reviews."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def replace_unencodable_output() -> None:
    """Makes standard output replace the characters that its encoding lacks."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


@contextmanager
def wrapping_errors(what: object, remedy: str = "") -> Iterator[None]:
    """Turns any exception into a UserError of one line: what is wrong, why, and the remedy."""
    try:
        yield
    except Exception as error:
        text = one_line(error, 600)
        text = text if text.startswith(str(what)) else f"{what}: {text}"
        raise UserError(f"{text}; {remedy}" if remedy else text) from error


@contextmanager
def only_warning(log: logging.Logger, problem: str) -> Iterator[None]:
    """Logs any exception as a warning, "<problem>: <exception>"."""
    try:
        yield
    except Exception as error:
        log.warning("%s: %s", problem, one_line(f"{type(error).__name__} {error}", None))
