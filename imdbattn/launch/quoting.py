"""Quotes values of settings for Hydra's grammar, in which , { [ ( and = are special."""

import re
import sys
from collections.abc import Collection

# Paths among the settings of imdbattn.train
PATHS = ("data.path", "data.extra", "data.glove.path", "data.cache_dir", "init", "resume")
COLUMNS = ("data.text_column", "data.label_column")
# text as typed, also if Hydra would read a number, true, false or null
NAMES = (*COLUMNS, "data.label_names")
QUOTED = (*PATHS, *COLUMNS)  # settings of imdbattn.train whose values are quoted


def quote(argument: str, names: Collection[str]) -> str:
    """`name=value` with the value quoted for Hydra's grammar, if `name` is in `names` and it is not
    quoted yet.

    For the other settings in NAMES, each word in the value is quoted: those in [false,true], or in
    a sweep over 0,1.
    """
    name, equals, value = argument.partition("=")
    if not equals or value == "null":
        return argument
    if name not in names and name.lstrip("+") in NAMES and "${" not in value:
        return f"{name}={WORD.sub(quoted_word, value)}"
    if name not in names or value[:1] in ("'", '"'):
        return argument
    # Backslashes are special only before a quote: one in the value, or the closing one.
    value = re.sub(r"(\\+)(?='|$)", r"\1\1", value).replace("'", "\\'")
    return f"{name}='{value}'"


WORD = re.compile(r"""'(\\.|[^'])*'|"(\\.|[^"])*"|(\\.|[^][(),'"\\])+""")  # of Hydra's grammar


def quoted_word(match: re.Match[str]) -> str:
    """A word of a list or sweep in quotes, unless it has quotes or backslashes, or is the name of a
    function.
    """
    word, before, after = (
        match[0].strip(),
        match.string[: match.start()],
        match.string[match.end() :],
    )
    unset = word == "null" and before.count("[") == before.count("]")  # in a list, null is a name
    return (
        match[0]
        if not word or re.search(r"['\"\\]", word) or after[:1] == "(" or unset
        else f"'{word}'"
    )


def take_argument(name: str) -> str | None:
    """Removes `name=value` from sys.argv and returns the value: for text that may contain even
    ${...}.
    """
    given = [argument for argument in sys.argv[1:] if argument.startswith(f"{name}=")]
    sys.argv[1:] = [argument for argument in sys.argv[1:] if argument not in given]
    return given[-1].removeprefix(f"{name}=") if given else None
