"""The command line: hydra.main with conf/, and each error in one line.

Imports nothing slow: `--help` must not wait for torch or pydantic.
"""

import functools
import importlib
import importlib.util
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from imdbattn.errors import print_any_text
from imdbattn.launch.folders import VERSION, plain_dict, register_resolvers
from imdbattn.launch.process import prepare
from imdbattn.launch.quoting import quote
from imdbattn.settings.keys import conf_dir
from imdbattn.settings.safety import refuse_credentials

COMPOSING = threading.Lock()  # Hydra has one state per process


def command(
    config_name: str, *paths: str, schema: str | None = None
) -> Callable[[Callable[[Any], Any]], Callable[[], Any]]:
    """hydra.main with conf/. Any exception ends in one line and exit status 2, see `fail`.

    paths: settings whose values are quoted before Hydra parses them, because , { [ ( and = are
    special there. In a sweep they are not, because there a comma separates values. See also
    `quote`.
    schema: a class in imdbattn; the command receives an object of it, else the config.
    """

    named: set[Path] = set()  # folders that the command line names and that exist before

    def decorate(task: Callable[[Any], Any]) -> Callable[[], Any]:
        @functools.wraps(task)
        def run(cfg: DictConfig) -> Any:
            job = HydraConfig.get()
            # also with hydra.job.chdir: paths are relative to where the command was typed
            os.chdir(job.runtime.cwd)
            try:
                result = task(validated(schema, plain_dict(cfg)) if schema else cfg)
                sys.stdout.flush()
                return result
            except Exception as error:
                if in_sweep():  # run_job has recorded the error of a job
                    raise
                from imdbattn.launch.errors import fail

                # Hydra would print more lines
                folder = Path(job.runtime.output_dir)
                fail(error, config_name, folder, keep=folder.resolve() in named)

        run_hydra = hydra.main(config_path=str(conf_dir()), config_name=config_name, **VERSION)(run)

        def main() -> Any:
            prepare()
            register_resolvers()
            print_any_text()
            # a log whose reader has ended, as after `| head`, prints no traceback
            logging.raiseExceptions = False
            # Hydra then raises its exceptions instead of printing them
            os.environ["HYDRA_FULL_ERROR"] = "1"
            # Hydra does not accept a flag between two settings.
            words = sorted(sys.argv[1:], key=lambda word: word not in ("-m", "--multirun"))
            sweep = words and words[0] in ("-m", "--multirun")
            named.update(existing_folders(words))
            sys.argv[1:] = [quote(word, () if sweep else paths) for word in words]
            try:
                refuse_typed_credentials(words)  # the message of another error would quote them
                return (
                    print_help(run_hydra, config_name, words)
                    if {"-h", "--help"} & {*words}
                    else run_hydra()
                )
            except KeyboardInterrupt:
                sys.exit(128 + signal.SIGINT)
            except Exception as error:
                from imdbattn.launch.errors import explain, fail

                fail(explain(error, config_name, words), config_name)

        return main

    return decorate


def print_help(run_hydra: Callable[[], Any], config_name: str, words: Sequence[str]) -> None:
    """Hydra's help with the comments of conf/."""
    from imdbattn.launch.help import commented

    choices = composed(
        config_name, [word for word in words if not word.startswith("-")]
    ).hydra.runtime.choices
    # Hydra exits after its help
    with redirect_stdout(io.StringIO()) as printed, suppress(SystemExit):
        run_hydra()
    print(commented(printed.getvalue(), config_name, choices))


def existing_folders(words: Sequence[str]) -> set[Path]:
    """Returns the folders that the values of a command line name."""
    values = (word.partition("=")[2].strip("'\"") for word in words)
    # os.path.isdir, because Path.is_dir raises for names that are too long
    return {Path(value).resolve() for value in values if value and os.path.isdir(value)}


def refuse_typed_credentials(words: Sequence[str]) -> None:
    typed = {}
    for word in words:
        name, _, value = word.lstrip("+~").partition("=")
        typed[name] = value
    refuse_credentials(typed)


def validated(kind: str, settings: dict[str, Any]) -> Any:
    """The settings as an object of the class with this dotted path in imdbattn. Raises
    UserError.
    """
    from imdbattn.settings.schema import validate_as  # pydantic, which is slow to import

    module, _, name = kind.rpartition(".")
    return validate_as(getattr(importlib.import_module(f"imdbattn.{module}"), name), settings)


def composed(
    config_name: str, overrides: Sequence[str] = (), paths: Sequence[str] = ()
) -> DictConfig:
    """A command's config, with `hydra`, of these words instead of sys.argv. paths: see `command`.
    Raises UserError.
    """
    register_resolvers()
    words = [quote(word, paths) for word in overrides]
    refuse_typed_credentials(words)
    with COMPOSING:
        # of a caller that uses Hydra itself
        outer, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
        try:
            with hydra.initialize_config_dir(str(conf_dir()), **VERSION):
                return hydra.compose(config_name, words, return_hydra_config=True)
        except Exception as error:
            from imdbattn.launch.errors import explain

            raise explain(error, config_name, words) from error
        finally:
            GlobalHydra.instance().hydra = outer


class SweepCallback(Callback):
    """Hydra's callback, which locks a sweep's folder and compares its jobs at the end.

    Hydra creates it for single runs, too: only a sweep loads `launch.sweep`.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called in the processes of a launcher, which do not call `command`."""
        self.__dict__ |= state
        register_resolvers()

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        from imdbattn.launch.sweep import SweepReport

        self.report = SweepReport()
        self.report.begin(config)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        self.report.finish(config)


def has_plugin(name: str) -> bool:
    """Whether a package of Hydra's plugins is installed."""
    with suppress(ModuleNotFoundError):
        return importlib.util.find_spec(f"hydra_plugins.{name}") is not None
    return False


def in_sweep() -> bool:
    """Whether this is a job of a multirun."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
