"""Which arguments of the loggers in a run folder may name a place outside of it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from omegaconf import OmegaConf

from imdbattn.errors import UserError
from imdbattn.settings.keys import conf_dir, to_dict
from imdbattn.settings.trust import packages_in

Loggers = Mapping[str, Mapping[str, object]]  # name -> `_target_` and arguments
PLACE = re.compile(r"[/\\:]|^\.+$")  # occurs in paths and addresses, and not in names


def logger_places(loggers: Loggers, own: Loggers) -> Iterator[tuple[str, str, str]]:
    """Yields the dotted key, value and package of each argument of a run's loggers that may name a
    place outside of its folder.

    These are the arguments that differ from those in conf/logger and in `own`, the loggers of this
    call, unless one name replaces another.
    """
    for logger, arguments in loggers.items():
        file = conf_dir() / "logger" / f"{logger}.yaml"
        packaged = to_dict(OmegaConf.load(file)).get(logger, {}) if file.exists() else {}
        for key, value in arguments.items():
            usual = packaged.get(key, "{run}")  # another argument may name a folder
            is_name = not (PLACE.search(str(value)) or "{" in str(usual))
            is_known = is_name or value in (usual, own.get(logger, {}).get(key))
            if not is_known and key != "_target_":  # `untrusted` yields classes
                package = str(arguments["_target_"]).partition(".")[0]
                yield f"logger.{logger}.{key}", str(value), package


def refuse_other_places(
    file: Path, loggers: Loggers, own: Loggers | None, trust: str | Sequence[str] | None
) -> None:
    """Raises UserError for an argument of `logger_places`, unless `trust` names its package.

    file: the settings of a run or a search that is resumed. own: None for a search, which has none.
    """
    for key, value, package in logger_places(loggers, own or {}):
        if package not in packages_in(trust):
            repeat = "" if own is None else "repeat it in this command, or "
            raise UserError(
                f"{file}: {key}={value} may name a place outside of this folder: {repeat}add"
                f" trust={package}"
            )
