"""The exception for wrong input, and messages of one line."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """Wrong input. The message names what is wrong and how to fix it.

    Commands print it as one line and exit with status 2. Of any other exception, which a library raises, they print the
    type and the message, and write the traceback into a file.
    """


def in_line(message: object, longest: int | None = 200) -> str:
    """The start of an error, or of text quoted from a file, as a single line. longest: in characters; None for all."""
    text = " ".join(str(message).split())[:longest]
    return text or (type(message).__name__ if isinstance(message, BaseException) else "")


@contextmanager
def only_warning(log: logging.Logger, problem: str) -> Iterator[None]:
    """Logs any exception as a warning, "<problem>: <exception>"."""
    try:
        yield
    except Exception as error:
        log.warning("%s: %s", problem, in_line(f"{type(error).__name__} {error}", None))
