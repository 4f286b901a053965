"""Quotes values of settings for Hydra's grammar, in which , { [ ( and = are special."""

import re
import sys
from collections.abc import Collection

# Paths among the settings of imdbattn.train
PATHS = ("data.path", "data.extra", "data.glove.path", "data.cache_dir", "init", "resume")
COLUMNS = ("data.text_column", "data.label_column")
QUOTED = (*PATHS, *COLUMNS)  # settings of imdbattn.train whose values are quoted


def quote(argument: str, names: Collection[str]) -> str:
    """Returns `name=value` with the value quoted for Hydra's grammar, if `name` is in `names` and
    the value is not quoted yet.
    """
    name, equals, value = argument.partition("=")
    if name not in names or not equals or value == "null" or value[:1] in ("'", '"'):
        return argument
    # Backslashes are special only before a quote: one in the value, or the closing one.
    value = re.sub(r"(\\+)(?='|$)", r"\1\1", value).replace("'", "\\'")
    return f"{name}='{value}'"


def take_argument(name: str) -> str | None:
    """Removes `name=value` from sys.argv and returns the value: for text that may contain even
    ${...}.
    """
    given = [argument for argument in sys.argv[1:] if argument.startswith(f"{name}=")]
    sys.argv[1:] = [argument for argument in sys.argv[1:] if argument not in given]
    return given[-1].removeprefix(f"{name}=") if given else None
