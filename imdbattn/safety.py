"""What stays inside: credentials out of whatever is written, control characters out of the terminal. For all rooms."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from imdbattn.errors import UserError

SECRET_NAME = re.compile(
    r"(^|[_.+-])(key|token|secrets?|pass|auth|credentials?)$|api_?key$|passw(or)?d$|passphrase$", re.IGNORECASE
)
SECRET_VALUE = re.compile(r"://[^/\s@]*:[^/\s@]+@")  # a password in an address
# All but tab and newline, and what turns the direction of text: they move the cursor, rename the window, hide words.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def credentials(settings: Any, name: str = "") -> Iterator[str]:
    """Dotted names of the settings that look like a credential: by their name, or by a value that holds a password.

    A password is one in an address, or the value of an environment variable with such a name. A value may be an
    override, `name=value`, too.
    """
    if isinstance(settings, (Mapping, list)):
        items = settings.items() if isinstance(settings, Mapping) else enumerate(settings)
        if settings and SECRET_NAME.search(name):
            yield name
        else:
            for key, value in items:
                yield from credentials(value, f"{name}.{key}" if name else str(key))
    elif settings not in (None, "", True, False):
        key, equals, _ = (text := str(settings)).partition("=")
        if equals and SECRET_NAME.search(key):
            yield key.lstrip("+~")
        elif SECRET_NAME.search(name) or SECRET_VALUE.search(text) or any(secret in text for secret in passwords()):
            yield name


def passwords() -> list[str]:
    """The values of environment variables whose names are those of credentials."""
    return [value for name, value in os.environ.items() if SECRET_NAME.search(name) and len(value) >= 8]


def refuse_credentials(settings: Any) -> None:
    """Raises UserError naming a setting that looks like a credential: settings are written down with each run."""
    if name := next(credentials(settings), None):
        raise UserError(
            f"{name} looks like a credential, and settings are written into each run folder: leave it out. W&B and the "
            "hub take theirs from `wandb login`, `hf auth login` or the environment (WANDB_API_KEY, HF_TOKEN)"
        )


def without_credentials(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those that look like a credential."""
    kept: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and not SECRET_NAME.search(name):
            kept[name] = without_credentials(value)
        elif not any(credentials(value, name)):
            kept[name] = value
    return kept


def visible(text: str) -> str:
    """Text that a terminal shows and does not obey: each control character is a replacement character."""
    return CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)
