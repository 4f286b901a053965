"""The command line: hydra.main with conf/, and each error in one line.

Imports nothing slow: `--help` must not wait for torch or pydantic.
"""

import atexit
import gc
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from imdbattn.errors import replace_unencodable_output
from imdbattn.io.files import missing_folders
from imdbattn.launch.hydra_config import (
    HYDRA_VERSION,
    hydra_arguments,
    plain_settings,
    register_resolvers,
)
from imdbattn.launch.process import prepare
from imdbattn.runs.signals import StopOnSignals
from imdbattn.settings.keys import conf_dir

# Hydra looks for launchers in packages named hydra_plugins in the folders of sys.path.
PLUGINS = str(Path(__file__).parent / "plugins")


def command(config_name: str) -> Callable[[Callable[[Any], object]], Callable[[], object]]:
    """Decorates the function of a command, which receives its settings as an object of the class in
    settings.command_settings. The result reads them from sys.argv and conf/, see `run_command`.
    """

    def decorate(function: Callable[[Any], object]) -> Callable[[], object]:
        def run(cfg: DictConfig) -> object:
            # pydantic is slow to import, and `--help` does not need it.
            from imdbattn.settings.command_settings import COMMANDS
            from imdbattn.settings.schema import validate_as

            return function(validate_as(COMMANDS[config_name], plain_settings(cfg)))

        return partial(run_command, config_name, run)

    return decorate


def run_command(
    config_name: str,
    function: Callable[[DictConfig], object],
    arguments: Sequence[str] | None = None,
) -> object:
    """Runs a command, whose function receives Hydra's config, with these arguments, or those of
    sys.argv. Any exception ends in one line, see `fail`.
    """
    set_up_process()
    arguments = sys.argv[1:] if arguments is None else arguments

    def run(cfg: DictConfig) -> object:
        job = HydraConfig.get()
        # Paths are relative to where the command was typed, even with hydra.job.chdir.
        os.chdir(job.runtime.cwd)
        try:
            result = function(cfg)
            sys.stdout.flush()
            return result
        except Exception as error:
            from imdbattn.launch.failure import fail

            # Hydra would print more lines
            fail(error, config_name, Path(job.runtime.output_dir), RunCallback.created)

    run_hydra = hydra.main(str(conf_dir()), config_name, **HYDRA_VERSION)(run)
    try:
        # Hydra accepts options only before the settings.
        sorted_arguments = sorted(arguments, key=is_setting)
        # Hydra reads sys.argv, and Lightning starts further processes with it.
        sys.argv[1:] = hydra_arguments(config_name, sorted_arguments)
        if {"-h", "--help"} & {*arguments}:
            from imdbattn.launch.help import print_help

            print_help(run_hydra, config_name)
            return None
        with StopOnSignals("stopped"):
            return run_hydra()
    except Exception as error:
        from imdbattn.launch.composition import as_user_error
        from imdbattn.launch.failure import fail

        fail(as_user_error(error, config_name, sys.argv[1:]), config_name)


def set_up_process() -> None:
    """Prepares a process that runs one command."""
    prepare()
    # Garbage collections would take seconds, while torch is imported and at the end.
    gc.set_threshold(50_000, 20)
    atexit.register(gc.freeze)
    if PLUGINS not in sys.path:
        sys.path.append(PLUGINS)
    register_resolvers()
    replace_unencodable_output()
    # A log prints no traceback if its reader has ended, as after `| head`.
    logging.raiseExceptions = False
    # Hydra then raises its exceptions instead of printing them
    os.environ["HYDRA_FULL_ERROR"] = "1"


def is_setting(argument: str) -> bool:
    """Returns whether an argument is name=value or ~name, and not an option or the value of one."""
    return argument.startswith("~") or ("=" in argument and not argument.startswith("-"))


class RunCallback(Callback):
    """Hydra's callback. It notes which folders a single run creates; it locks a sweep's folder, and
    compares the jobs at the end.

    Only a sweep loads `launch.sweep`.
    """

    created: ClassVar[Sequence[Path]] = ()  # removed if the run fails and leaves them empty

    def __init__(self) -> None:
        register_resolvers()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Lets the processes of a launcher, which do not call `command`, create it again."""
        return type(self), ()

    def on_run_start(self, config: DictConfig, **kwargs: object) -> None:
        with suppress(OmegaConfBaseException):  # Hydra reports it
            RunCallback.created = missing_folders(Path(config.hydra.run.dir).absolute())

    def on_multirun_start(self, config: DictConfig, **kwargs: object) -> None:
        from imdbattn.launch.sweep import begin

        begin(config)

    def on_multirun_end(self, config: DictConfig, **kwargs: object) -> None:
        from imdbattn.launch.sweep import finish

        finish(config)
