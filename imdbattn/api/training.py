"""Training from Python."""

import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.types import RunMode
from omegaconf import OmegaConf

from imdbattn.api.display import Metrics
from imdbattn.errors import UserError, VisibleFormatter
from imdbattn.io.files import missing_folders, remove_empty, with_home
from imdbattn.launch.composition import composed
from imdbattn.launch.hydra_config import plain_settings
from imdbattn.launch.machine import one_process
from imdbattn.settings.trust import untrusted

if TYPE_CHECKING:
    from imdbattn.api.model import Model


@dataclass(frozen=True, repr=False)
class TrainedRun:
    """A finished run. metrics: the content of its metrics.json."""

    metrics: Metrics
    folder: Path
    trust: tuple[str, ...] = ()  # the packages of the user's own parts

    @cached_property
    def model(self) -> "Model":
        """The best model, as imdbattn.load opens it."""
        from imdbattn.api.model import load

        return load(self.folder, trust=self.trust)

    def _shown(self) -> Metrics:
        return Metrics(self.metrics | {"folder": os.path.relpath(self.folder)})

    def __repr__(self) -> str:
        return repr(self._shown())

    def _repr_html_(self) -> str:
        return self._shown()._repr_html_()


def train(
    *overrides: str,
    folder: str | os.PathLike[str] | None = None,
    config: Mapping[str, object] | None = None,
) -> TrainedRun:
    """Trains one model, as the command imdbattn.train does, in this process.

    Epochs are logged to `imdbattn`, and printed unless the program has configured logging.

    Args:
        overrides: settings as on the command line.
        folder: a new run folder; by default one below runs/. An unfinished run in it is replaced, a
            finished one is refused.
        config: all settings instead of overrides: nested dicts (`Model.settings`) or a DictConfig.

    Raises UserError for wrong settings or data, before anything is written, and for a loss that is
    not finite; KeyboardInterrupt after Ctrl-C, when the state is saved:
    `train("resume=<run folder>")` continues.

    >>> run = imdbattn.train("model=mean", "trainer.max_epochs=1")
    >>> run.metrics.epochs
    1.0
    >>> predictions = run.model.predict("A film to love.")
    """
    if config is not None and overrides:
        raise UserError("give overrides or config=, not both")
    cfg = composed("train", overrides)  # `hydra` in it names the run folder
    if config is not None:
        own = {name: config[name] for name in config if name != "hydra"}
        cfg = OmegaConf.create({"resume": None, **own, "hydra": cfg.hydra})
    settings = plain_settings(cfg)
    if folder is not None and settings["resume"]:
        raise UserError("give resume= or folder=, not both")
    from imdbattn.launch.single_run import log_results, new_or_resumed_settings, resumed_folder

    resumed = resumed_folder(settings)
    # This precedes hydra.run.dir, which contains the model's name.
    valid = new_or_resumed_settings(settings, overrides, resumed)
    run_folder = resumed or with_home(cfg.hydra.run.dir if folder is None else folder).resolve()
    if cfg.hydra.mode == RunMode.MULTIRUN or not one_process(valid.trainer):
        raise UserError(
            "train() trains one model in one process; for more: python -m imdbattn.train"
            f" {' '.join(overrides)}"
        )
    created = missing_folders(run_folder)
    from imdbattn.api.torch_settings import preserved_torch_settings
    from imdbattn.runs.fit import fit
    from imdbattn.runs.signals import Stopped

    try:
        with log_to_stdout(), preserved_torch_settings():
            metrics = fit(valid, run_folder, resume=resumed is not None)
            log_results(valid, metrics, run_folder)
    except Stopped as stopped:
        if stopped.number != signal.SIGINT:
            signal.raise_signal(stopped.number)  # calls the program's own handler
        raise KeyboardInterrupt(stopped.line) from None
    finally:
        remove_empty(created)
    packages = {package for *_, package in untrusted(valid.dump())}
    return TrainedRun(Metrics(metrics), run_folder, tuple(sorted(packages)))


@contextmanager
def log_to_stdout() -> Iterator[None]:
    """Prints the log of imdbattn, unless the program has configured logging."""
    log = logging.getLogger("imdbattn")
    if log.level or log.handlers or logging.root.handlers:
        yield
        return
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(VisibleFormatter("%(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
