"""Commands: in the process of the tests, in a process of their own, and as functions."""

import io
import logging
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from imdbattn.api.torch_settings import preserved_torch_settings
from imdbattn.runs.apply import load_predictor, predictions_of
from imdbattn.settings.command_settings import PredictSettings
from imdbattn.settings.keys import to_dict
from imdbattn.settings.schema import TrainingSettings
from imdbattn.tasks.task import training_settings

Done = subprocess.CompletedProcess


def run_process(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], text: str = ""
) -> Done:
    """Runs `python words...` in a process of its own, with `text` as its standard input."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        input=text,
        text=True,
        capture_output=True,
        timeout=240,
        check=False,
    )


def run_here(
    command: str,
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    text: str = "",
) -> Done:
    """Does what `python -m imdbattn.<command> arguments...` does; the process is then as before."""
    with ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)]
        stack.enter_context(unchanged_process(folder))
        stack.enter_context(redirect_stdout(outputs[0]))
        stack.enter_context(redirect_stderr(outputs[1]))
        stack.enter_context(logs_and_warnings_in(outputs[1]))
        sys.stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
        sys.argv = [command, *arguments]
        sys.path.insert(0, str(folder))
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        status = exit_status(f"imdbattn.{command}")
        for output in outputs:
            output.seek(0)
        return Done([command, *arguments], status, *(output.read() for output in outputs))


def exit_status(module: str) -> int:
    """Runs a module as `python -m` does; returns the status with which its process would end."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


@contextmanager
def unchanged_process(folder: Path) -> Iterator[None]:
    """Restores at the end what a command changes, and forgets modules imported from `folder`."""
    system = {name: getattr(sys, name) for name in ("argv", "path", "stdin")}
    sys.path = sys.path[:]
    environment, before, modules = dict(os.environ), Path.cwd(), set(sys.modules)
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    logs = {log: (log.level, log.propagate, log.disabled, log.handlers[:]) for log in all_logs()}
    raises, composed = logging.raiseExceptions, HydraConfig.instance().cfg
    try:
        with preserved_torch_settings():
            yield
    finally:
        for name, value in system.items():
            setattr(sys, name, value)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(before)
        for name in set(sys.modules) - modules:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(folder):
                del sys.modules[name]
        for number, handler in handlers.items():
            if handler not in (None, signal.getsignal(number)):
                signal.signal(number, handler)
        for log in all_logs():
            level, log.propagate, log.disabled, log.handlers[:] = logs.get(
                log, (0, True, False, [])
            )
            log.setLevel(level)
        logging.raiseExceptions, HydraConfig.instance().cfg = raises, composed
        GlobalHydra.instance().clear()


def all_logs() -> list[logging.Logger]:
    known = [*logging.root.manager.loggerDict.values()]
    return [logging.root, *(log for log in known if isinstance(log, logging.Logger))]


@contextmanager
def logs_and_warnings_in(stderr: TextIO) -> Iterator[None]:
    """Writes there what handlers write to the standard error of this process, and warnings."""

    def show(message, category, filename, lineno, file=None, line=None) -> None:
        stderr.write(warnings.formatwarning(message, category, filename, lineno, line))

    handlers = [handler for log in all_logs() for handler in log.handlers]
    before = {
        handler: handler.setStream(stderr)
        for handler in handlers
        if type(handler) is logging.StreamHandler
    }
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show
            yield
    finally:
        for handler, stream in before.items():
            handler.setStream(stream)


# --- commands as functions ------------------------------------------------------------------------


def label_texts(cfg: PredictSettings, texts: Sequence[str]) -> tuple[list[Any], Path]:
    """Returns the result of `imdbattn.predict` for each text, and the run folder."""
    predictor, folder = load_predictor(cfg)
    return list(predictions_of(predictor, texts, cfg)), folder


def changed(cfg: TrainingSettings, values: Mapping[str, Any]) -> TrainingSettings:
    """Returns the settings of a training run with these values of dotted keys."""
    settings = OmegaConf.create(cfg.dump())
    for key, value in values.items():
        OmegaConf.update(settings, key, value)
    return training_settings(to_dict(settings))
