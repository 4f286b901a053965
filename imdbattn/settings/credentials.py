"""Keeps credentials out of the files that a run writes."""

import os
import re
from collections.abc import Iterator

from imdbattn.errors import UserError
from imdbattn.settings.keys import iter_leaves

SECRET_NAME = re.compile(
    r"(^|[_.+-])(secrets?|pass|auth|credentials?)$|api_?key$|passw(or)?d$|passphrase$",
    re.IGNORECASE,
)
# Arguments of parts have such names, too, such as pad_token: their values are short.
KEY_NAME = re.compile(r"(^|[_.+-])(key|token)$", re.IGNORECASE)
SHORTEST_KEY = 8  # characters
# A password or a key in an address
SECRET_VALUE = re.compile(r"://[^/\s@]*:[^/\s@]+@|[?&](api_?key|(access_)?token|secret)=")


def credentials(settings: object) -> Iterator[str]:
    """Yields the dotted names of the settings that look like a credential: by their name, or that
    of a group, or by a value that contains a password.

    A password is one in a URL, or the value of an environment variable with such a name.
    """
    secrets = passwords()
    for name, value in iter_leaves(settings):
        text = str(value)
        if value in (None, "", True, False):
            continue
        if SECRET_VALUE.search(text) or any(is_secret(part, text) for part in name.split(".")):
            yield name
        elif variables := [key for key, secret in secrets.items() if secret in text]:
            yield f"{name} (it contains the value of ${variables[0]})"


def is_secret(name: str, value: str) -> bool:
    """Returns whether a name and its value look like a credential."""
    is_key = KEY_NAME.search(name) is not None and len(value) >= SHORTEST_KEY
    return is_key or SECRET_NAME.search(name) is not None


def passwords() -> dict[str, str]:
    """Returns the environment variables named like credentials, except short values and paths."""
    values = {
        name: value
        for name, value in os.environ.items()
        if is_secret(name, value) and len(value) >= SHORTEST_KEY
    }
    return {name: value for name, value in values.items() if not os.path.exists(value)}


def refuse_credentials(settings: object) -> None:
    """Raises UserError naming a setting that looks like a credential."""
    if name := next(credentials(settings), None):
        raise UserError(
            f"{name} looks like a credential, and settings are written into each run folder: omit"
            " it, and use `wandb login`, `hf auth login` or the environment (WANDB_API_KEY,"
            " HF_TOKEN)"
        )
