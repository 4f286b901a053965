"""A single run of imdbattn.train in this process, and in the processes that DDP starts."""

import importlib
import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from imdbattn.errors import UserError
from imdbattn.io.files import expanded
from imdbattn.launch.hydra_config import plain_dict
from imdbattn.launch.process import PARENT_PID, end_with, without_gc
from imdbattn.runs.signals import Signals
from imdbattn.settings.keys import WANDB_LOGGER, Plain, named_overrides
from imdbattn.settings.schema import Training
from imdbattn.settings.trust import trust_option
from imdbattn.tasks.per_class import is_uneven
from imdbattn.tasks.task import validate

log = logging.getLogger(__name__)

RESTARTS = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")  # above 0 in a restarted job


def run_single(cfg: DictConfig, signals: Signals) -> float:
    """Trains the model that `cfg` describes, and returns the validation accuracy of its best
    weights, which `choose_by` selects.

    signals: of the command; their text says afterwards that the run is finished.
    """
    settings, job = plain_dict(cfg), HydraConfig.get()
    named = any(override.startswith("hydra.run.dir=") for override in job.overrides.hydra)
    if "TORCHELASTIC_RUN_ID" in os.environ and not named and not settings["resume"]:
        raise UserError(
            "torchrun starts several processes, which need the same folder: add"
            " hydra.run.dir=runs/<a name>"
        )
    overrides, folder = job.overrides.task, Path(job.runtime.output_dir).resolve()
    if settings["resume"]:
        folder = expanded(settings["resume"]).resolve()  # runs/latest is a link
    resume = bool(settings["resume"]) or was_restarted(folder)
    valid = prepared(settings, overrides, folder if resume else None)
    if os.environ.get("LOCAL_RANK", "0") != "0":
        end_with(int(os.environ.get(PARENT_PID, os.getppid())))
    os.environ[PARENT_PID] = str(os.getpid())  # for the processes that DDP starts
    # these imports take seconds, and error messages do not need them
    with without_gc():
        import_wandb(valid)
        from imdbattn.runs.fit import fit
    metrics = fit(valid, folder, resume)
    signals.text = "stopped after training; the run is finished, its results are written"
    log_results(valid, metrics, folder)
    return float(metrics["val_accuracy"])


def prepared(settings: Plain, overrides: Sequence[str], folder: Path | None) -> Training:
    """Returns the checked settings of a new run, or of the run in `folder`, which is resumed.

    overrides: those on the command line. Raises UserError.
    """
    if folder is not None:
        from imdbattn.launch.resumed_settings import resumed

        return validate(resumed(settings, overrides, folder))
    # given settings may be those of another run
    own = {"variant": None, "overrides": named_overrides(overrides, settings)}
    return validate(settings | own)


def import_wandb(cfg: Training) -> None:
    """Imports what wandb.init needs, if W&B is one of the loggers: this takes 0.4 s now, and 1.5 s
    once torch is loaded.
    """
    if any(part.target == WANDB_LOGGER for part in cfg.logger.values()):
        with suppress(Exception):  # a broken W&B does not stop training
            importlib.import_module("wandb.apis.public")


def was_restarted(folder: Path) -> bool:
    """Returns whether SLURM or torchrun has restarted this job, and `folder` contains its run."""
    restarted = any(os.environ.get(name, "0") not in ("", "0") for name in RESTARTS)
    return restarted and (folder / "config.yaml").exists()


def log_results(cfg: Training, metrics: Plain, folder: Path) -> None:
    """Logs the results of a run and the commands that use it, in one process."""
    from lightning.pytorch.utilities import rank_zero_only

    if rank_zero_only.rank:  # type: ignore[attr-defined]
        return
    if cfg.is_debug:
        log.info(
            "Debug run: %d training steps and an evaluation ran; the numbers are not results",
            metrics["steps"],
        )
        return
    for line in (*summary(metrics, folder), "next:"):
        log.info(line)
    for line in next_commands(metrics, folder):
        log.info("  %s", line)


def summary(metrics: Plain, folder: Path) -> list[str]:
    """Returns the results as lines of text."""
    early = metrics.get("ended_early")
    epochs = f"{metrics['epochs']} epoch" + "s" * (metrics["epochs"] != 1)
    if early:
        epochs = f"{early['epochs']:g} of {early['of']} epochs"
    seconds, rate = metrics["train_seconds"], metrics["tokens_per_s"]
    training = f"{epochs} in {seconds:.0f} s, {rate:.0f} tokens/s"
    lines = ["", f"{metrics['model']}, seed {metrics['seed']}: {training}"]
    if early:
        lines.append(f"ended early          {early['reason']}")
    items = metrics.get("items", "reviews")
    for split, name in (("val", "validation accuracy"), ("test", "test accuracy")):
        if f"{split}_accuracy" in metrics:
            accuracy, count = 100 * metrics[f"{split}_accuracy"], metrics[f"{split}_reviews"]
            bleu = f", BLEU {metrics[f'{split}_bleu']:.1f}" if f"{split}_bleu" in metrics else ""
            largest = largest_class(metrics, split)
            lines.append(f"{name:20} {accuracy:6.2f} %  of {count:d} {items}{bleu}{largest}")
    if "test_accuracy" in metrics:
        lines.append(f"test set             {metrics['test_set']} [{metrics['test_fingerprint']}]")
    lines.append(f"run folder           {os.path.relpath(folder)}")
    return lines


def largest_class(metrics: Plain, split: str) -> str:
    """Returns the share of the largest class, which is the accuracy of a model that always answers
    it, and macro F1 where classes are uneven; nothing without classes.
    """
    share = metrics.get(f"{split}_largest_class")
    if share is None:
        return ""
    text = f", largest class {100 * share:.2f} %"
    if is_uneven(share, len(metrics["labels"])):
        text += f", macro F1 {100 * metrics[f'{split}_macro_f1']:.2f} %"
    return text


def next_commands(metrics: Mapping[str, object], folder: Path) -> list[str]:
    """Returns commands that use a finished run."""
    run = shlex.quote(os.path.relpath(folder)) + trust_option(folder / "config.yaml")
    upload = []
    if (folder / "wandb").exists():
        from imdbattn.tracking.wandb_run import upload_command

        upload = [line] if (line := upload_command(folder)) else []
    if model := metrics.get("starts_model"):
        return [f"python -m imdbattn.train model={model} init={run}", *upload]
    runs = os.path.relpath(folder.parent)
    if Path("runs").resolve() in folder.resolve().parents:
        runs = "runs"
    compare = f"python -m imdbattn.compare runs={shlex.quote(runs)}"
    return [f'python -m imdbattn.predict run={run} text="..."', compare, *upload]
