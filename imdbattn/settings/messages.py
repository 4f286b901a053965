"""Messages about wrong settings. Only a command that fails loads this file."""

import difflib
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from imdbattn.settings.keys import as_text, flattened, is_in_groups

if TYPE_CHECKING:
    from pydantic import ValidationError

QUOTED_TEXT = (
    "; text that looks like a number, true, false or null is quoted, as in"
    " \"data.label_names=['0','1']\""
)


def validation_message(errors: "ValidationError", settings: Any, group: str = "") -> str:
    """Returns the first error of the innermost values, as `key=value must be ...`: for a list, the
    error of its wrong item. group: the name of the settings.
    """
    located = [(error, *keys_and_value(error["loc"], settings)) for error in errors.errors()]
    error, keys, value = max(located, key=lambda entry: len(entry[1]))
    keys = [group, *keys] if group else keys
    key = ".".join(keys)
    if error["type"] == "missing":
        return f"{'.'.join([*keys, str(error['loc'][-1])])} is missing"
    if error["type"] == "extra_forbidden":
        return no_setting(key, flattened(settings))
    must = re.sub(r"^(Input|List|String|Dictionary|Value) should", "must", error["msg"]).replace(
        " after validation", ""
    )
    if error["type"] == "string_type" and isinstance(value, int | float | None):
        must += QUOTED_TEXT
    return f"{key}={as_text(value)} {must}"


def keys_and_value(parts: Iterable[int | str], settings: Any) -> tuple[list[str], Any]:
    """Returns the keys of an error in `settings`, and the value there."""
    keys, value = [], settings
    for part in parts:
        with suppress(KeyError, IndexError, TypeError):  # the name of a union's member is not a key
            value = value[part]
            keys.append(str(part))
    return keys, value


# Names of settings in other programs -> the last part of their key here
ALIASES = {"learning_rate": "lr", "epochs": "max_epochs", "batch_size": "batch_tokens"}
# These classes have further arguments; + adds them.
CLASSES = ("model.net", "model.mixer", "optim", "trainer", "data.tokenizer")


def no_setting(key: str, known: Iterable[str]) -> str:
    """Returns a message about an unknown setting, which names the most similar one."""
    remedies = nearest_text(key, known)
    if is_in_groups(key, *CLASSES):
        remedies += f"; +{key}=... passes it to the class"
    return f"there is no setting {key}{remedies or '; --help lists them all'}"


def nearest_text(name: str, known: Iterable[str]) -> str:
    """Returns `; the nearest is ...` with the dotted name that is most similar to `name`, among
    those whose last part is similar, or nothing. Groups of the known names are names, too.
    """
    names = {*known}
    names |= {name.rpartition(".")[0] for name in names}
    names -= {name, ""}
    group, dot, last = name.rpartition(".")
    last = ALIASES.get(last, last)
    similar = difflib.get_close_matches(last, {name.rpartition(".")[2] for name in names})
    candidates = sorted(name for name in names if name.rpartition(".")[2] in similar)
    nearest = difflib.get_close_matches(f"{group}{dot}{last}", candidates, 1, cutoff=0)
    return f"; the nearest is {nearest[0]}" if nearest else ""
