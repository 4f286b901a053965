"""A single run of imdbattn.train in this process, and in the processes that DDP starts."""

import logging
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from imdbattn.errors import UserError
from imdbattn.folders.run_folder import is_first_process
from imdbattn.io.files import with_home
from imdbattn.launch.hydra_config import plain_settings
from imdbattn.launch.process import end_with_parent
from imdbattn.runs.signals import BEFORE_TRAINING, StopOnSignals
from imdbattn.settings.keys import NestedDict, named_overrides
from imdbattn.settings.schema import TrainingSettings
from imdbattn.settings.trust import trust_option, untrusted
from imdbattn.tasks.metrics import is_uneven
from imdbattn.tasks.task import training_settings

log = logging.getLogger(__name__)

RESTARTS = ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")  # above 0 in a restarted job


def run_single(cfg: DictConfig) -> float:
    """Trains the model that `cfg` describes, and returns the validation accuracy of the epoch that
    `choose_by` selects.
    """
    with StopOnSignals(BEFORE_TRAINING) as signals:
        composed, job = plain_settings(cfg), HydraConfig.get()
        resumed = resumed_folder(composed)
        if resumed is None:
            check_torchrun(job.overrides.hydra)
        folder = resumed or Path(job.runtime.output_dir).resolve()
        resume = resumed is not None or was_restarted(folder)
        settings = new_or_resumed_settings(composed, job.overrides.task, folder if resume else None)
        if os.environ.get("LOCAL_RANK", "0") != "0":
            end_with_parent(os.getppid())
        signals.defer()  # an exception while torch is imported would abort the process
        # this import takes seconds, and error messages do not need it
        from imdbattn.runs.fit import fit

        signals.stop_at_once()
    metrics = fit(settings, folder, resume)
    log_results(settings, metrics, folder)
    return float(metrics["val_accuracy"])


def resumed_folder(settings: NestedDict) -> Path | None:
    """Returns the folder of the run that the setting `resume` names, if it names one."""
    resume = settings["resume"]
    return with_home(resume).resolve() if resume else None  # runs/latest is a link


def check_torchrun(overrides: Sequence[str]) -> None:
    """Raises UserError in a process of torchrun, unless its overrides name one folder for all."""
    has_folder = any(override.startswith("hydra.run.dir=") for override in overrides)
    if "TORCHELASTIC_RUN_ID" in os.environ and not has_folder:
        raise UserError(
            "torchrun starts several processes, which need the same folder: add"
            " hydra.run.dir=runs/<a name>"
        )


def was_restarted(folder: Path) -> bool:
    """Returns whether SLURM or torchrun has restarted this job, and `folder` contains its run."""
    restarted = any(os.environ.get(name, "0") not in ("", "0") for name in RESTARTS)
    return restarted and (folder / "config.yaml").exists()


def new_or_resumed_settings(
    settings: NestedDict, overrides: Sequence[str], folder: Path | None
) -> TrainingSettings:
    """Returns the checked settings of a new run, or of the run in `folder`, which is resumed.

    overrides: from the command line. Raises UserError.
    """
    if folder is not None:
        from imdbattn.launch.resumed_settings import resumed_settings

        return training_settings(resumed_settings(settings, overrides, folder))
    # A config.yaml copied from another run has its variant and overrides: they are made anew.
    own = {"variant": None, "overrides": named_overrides(overrides, settings)}
    return training_settings(settings | own)


# --- the results ----------------------------------------------------------------------------------


def log_results(settings: TrainingSettings, metrics: NestedDict, folder: Path) -> None:
    """Logs a run's results and the commands that use the run, in the first process only."""
    if not is_first_process():
        return
    if settings.is_debug:
        log.info(
            "Debug run: %d training steps and an evaluation ran; the numbers are not results with"
            " trainer.fast_dev_run, overfit_batches, limit_val_batches or limit_test_batches",
            metrics["steps"],
        )
        return
    for line in (*summary(metrics, folder), "next:", *next_commands(settings, metrics, folder)):
        log.info(line)


def summary(metrics: NestedDict, folder: Path) -> list[str]:
    """Returns the results as lines of text."""
    early = metrics.get("ended_early")
    epochs = f"{metrics['epochs']:g} epoch" + "s" * (metrics["epochs"] != 1)
    if early:
        epochs = f"{early['epochs']:g} of {early['of']} epochs"
    seconds, rate = metrics["train_seconds"], metrics["tokens_per_s"]
    training = f"{epochs} in {seconds:.0f} s, {rate:.0f} tokens/s"
    lines = ["", f"{metrics['model']}, seed {metrics['seed']}: {training}"]
    if early:
        lines.append(f"ended early          {early['reason']}")
    for split, name in (("val", "validation accuracy"), ("test", "test accuracy")):
        if f"{split}_accuracy" in metrics:
            accuracy, count = 100 * metrics[f"{split}_accuracy"], metrics[f"{split}_count"]
            more = scores_beside_accuracy(metrics, split)
            lines.append(f"{name:20} {accuracy:6.2f} %  of {count:d} {metrics['items']}{more}")
    if "test_accuracy" in metrics:
        lines.append(f"test set             {metrics['test_set']} [{metrics['test_fingerprint']}]")
    lines.append(f"run folder           {os.path.relpath(folder)}")
    return lines


def scores_beside_accuracy(metrics: NestedDict, split: str) -> str:
    """Returns the BLEU of translations; for a classifier, the share of the largest class, which is
    the accuracy of a model that always predicts it, and macro F1 if classes are uneven.
    """
    text = f", BLEU {metrics[f'{split}_bleu']:.1f}" if f"{split}_bleu" in metrics else ""
    if (share := metrics.get(f"{split}_largest_class")) is not None:
        text += f", largest class {100 * share:.2f} %"
        if is_uneven(share, len(metrics["labels"])):
            text += f", macro F1 {100 * metrics[f'{split}_macro_f1']:.2f} %"
    return text


def next_commands(settings: TrainingSettings, metrics: NestedDict, folder: Path) -> list[str]:
    """Returns commands that use a finished run."""
    run = shlex.quote(os.path.relpath(folder)) + trust_option(untrusted(settings.dump()))
    if model := metrics.get("next_model"):
        return [f"  python -m imdbattn.train model={model} init={run}"]
    is_in_runs = Path("runs").resolve() in folder.resolve().parents
    runs = "runs" if is_in_runs else shlex.quote(os.path.relpath(folder.parent))
    return [
        f'  python -m imdbattn.predict run={run} text="..."',
        f"  python -m imdbattn.compare runs={runs}",
    ]
