"""Composes a command's config without sys.argv: for Python, searches and messages."""

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from imdbattn.errors import UserError, one_line
from imdbattn.launch.hydra_config import HYDRA_VERSION, hydra_arguments, register_resolvers
from imdbattn.settings.keys import conf_dir, flattened, to_dict
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
    if isinstance(error, OverrideParseException):
        return UserError(
            f"{error.override}: a setting is name=value, without spaces around =, and with quotes"
            " around a value that has spaces or letters other than a to z"
        )
    if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
        return UserError(no_choice(error))
    text = one_line(error, None)
    unknown = re.match(r"Could not override '(\S+?)'", text)
    if unknown and "defaults list" not in text:  # Hydra explains groups itself
        # of several keys in braces, only the cause names the unknown one
        key = max(unknown[1], getattr(error.__cause__, "full_key", None) or "", key=len)
        return UserError(no_setting(key, keys_of(config_name, arguments)))
    if isinstance(error, (HydraException, OmegaConfBaseException, ValueError)):
        return UserError(text)
    return error


def no_choice(error: MissingConfigException) -> str:
    """Returns a message about a choice that a group does not have."""
    group, _, choice = str(error.missing_cfg_file).rpartition("/")
    message = f"{group}={choice} is not a choice"
    if error.options:
        near = nearest_text(choice, error.options)
        message += f": choose one of {', '.join(sorted(error.options))}{near}"
    if group in ("hydra/launcher", "hydra/sweeper"):
        message += "; some are extras: pip install -e '.[submitit]', [ray] or [search]"
    return message


def keys_of(config_name: str, arguments: Sequence[str]) -> list[str]:
    """Returns the dotted keys of the config, with the group choices in `arguments` if possible."""
    chosen = [
        argument
        for argument in arguments
        if (conf_dir() / argument.lstrip("+").partition("=")[0]).is_dir()
    ]
    # Several choices of a sweep, and choices in a folder of one's own, cannot be composed here.
    for overrides in (chosen, []):
        with suppress(Exception), initialized():
            return [*flattened(to_dict(hydra.compose(config_name, overrides)))]
    return []
