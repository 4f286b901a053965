"""Composes a command's config without sys.argv: for Python, searches and messages."""

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from imdbattn.errors import UserError, in_line
from imdbattn.launch.hydra_config import HYDRA_VERSION, hydra_arguments, register_resolvers
from imdbattn.settings.keys import conf_dir, flat, to_dict
from imdbattn.settings.messages import nearest_text, no_setting

COMPOSING = threading.Lock()  # Hydra has one state per process


@contextmanager
def initialized() -> Iterator[None]:
    """Lets Hydra compose from conf/, also in a program that has initialized Hydra itself."""
    with COMPOSING:
        outer, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
        try:
            with hydra.initialize_config_dir(str(conf_dir()), **HYDRA_VERSION):
                yield
        finally:
            GlobalHydra.instance().hydra = outer


def composed(config_name: str, overrides: Sequence[str] = ()) -> DictConfig:
    """Returns a command's config, with `hydra`, from these overrides instead of sys.argv. Raises
    UserError.
    """
    register_resolvers()
    arguments = hydra_arguments(config_name, overrides)
    try:
        with initialized():
            return hydra.compose(config_name, arguments, return_hydra_config=True)
    except Exception as error:
        raise as_user_error(error, config_name, arguments) from error


def as_user_error(error: Exception, config_name: str, arguments: Sequence[str]) -> Exception:
    """Returns a Hydra error as a UserError, which for an unknown setting or choice names the
    nearest one; returns other errors unchanged.
    """
    text = in_line(error, None)
    if "hydra/launcher" in text or "hydra/sweeper" in text:
        return UserError(
            f"{text}; others are extras: pip install -e '.[submitit]', [ray] or [search]"
        )
    if isinstance(error, MissingConfigException) and error.options:
        group, _, choice = (error.missing_cfg_file or "").rpartition("/")
        options = sorted({*error.options} - {choice})
        near = nearest_text(choice, options)
        return UserError(
            f"{group}={choice} is not a choice: choose one of {', '.join(options)}{near}"
        )
    match = re.match(r"Error parsing override '([^=]*?)'|LexerNoViableAlt\w*: ([^=\s]+) ", text)
    if match:
        return UserError(
            f"{match[1] or match[2]}: a setting is name=value, without spaces around =, and with"
            " quotes around a value that has spaces"
        )
    if text.startswith("Config group override must be a string"):
        return UserError("a group has no choice null; --help lists them")
    if isinstance(error, FileExistsError):
        return UserError(f"{error.filename} is a file, not a folder")
    match = re.match(r"Could not override '(\S+?)'", text)
    if match and "defaults list" not in text:  # Hydra explains groups itself
        return UserError(no_setting(match[1], keys_of(config_name, arguments)))
    if isinstance(error, (HydraException, OmegaConfBaseException, ValueError)):
        return UserError(text)
    return error


def keys_of(config_name: str, arguments: Sequence[str]) -> list[str]:
    """Returns the dotted keys of the config, with the group choices in `arguments` if possible."""
    chosen = [
        argument
        for argument in arguments
        if (conf_dir() / argument.lstrip("+").partition("=")[0]).is_dir()
    ]
    for overrides in (chosen, []):
        with suppress(Exception), initialized():
            return [*flat(to_dict(hydra.compose(config_name, overrides)))]
    return []
