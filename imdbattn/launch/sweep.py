"""Starts and ends a sweep: locks its folder, and writes a comparison of its jobs at the end.

`command.RunCallback` calls `begin` and `finish`, which end the process with sys.exit, because
Hydra turns a callback's exception into a warning. A failed job does not stop the others.
"""

import atexit
import logging
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import BaseFileLock
from omegaconf import DictConfig, OmegaConf

from imdbattn.errors import UserError, in_shell
from imdbattn.folders.run_folder import SWEEP_LOG, group_of
from imdbattn.io.files import acquire_lock, missing_folders, remove_empty
from imdbattn.launch.failure import fail
from imdbattn.launch.hydra_config import plain_settings
from imdbattn.launch.job import ended_jobs
from imdbattn.settings.credentials import refuse_credentials
from imdbattn.settings.keys import to_dict

if TYPE_CHECKING:
    from imdbattn.tracking.loggers import Tracker

log = logging.getLogger(__name__)

STATUSES = ("done", "kept", "stopped", "failed")  # a job's statuses
SWEEP_SETTINGS = "multirun.yaml"
OTHER_SWEEP_DIR = "choose another hydra.sweep.dir"


def begin(config: DictConfig) -> None:
    """Locks the folder of a sweep until the end of the process, see `prepare_folder`."""
    created = missing_folders(Path(str(config.hydra.sweep.dir)).absolute())
    try:
        lock = prepare_folder(config)
    except Exception as error:  # the sweep would run without its lock
        fail(error, "train")
    atexit.register(lock.release)
    # Hydra calls no callback after Ctrl-C or a failed launcher.
    atexit.register(conclude, config, complete=False, created=created)


def finish(config: DictConfig) -> None:
    """Writes a comparison of the jobs, and exits unless all of them have results."""
    atexit.unregister(conclude)
    if status := conclude(config, complete=True):
        sys.exit(status)


def prepare_folder(config: DictConfig) -> BaseFileLock:
    """Prepares the sweep folder and returns its lock, which is acquired. Raises UserError for a
    folder or settings that a sweep cannot have.
    """
    sweep = Path(str(config.hydra.sweep.dir))
    check_sweep(config, sweep)
    sweep.mkdir(parents=True, exist_ok=True)
    busy = f"{sweep} belongs to a sweep that is still running: wait for it, or {OTHER_SWEEP_DIR}"
    lock = acquire_lock(sweep / ".lock", busy).lock
    check_data(config)
    tracker_of(config)  # raises for wrong logger settings
    (sweep / SWEEP_LOG).write_text("")
    # Among Hydra's sweepers, only the basic one writes it.
    OmegaConf.save(config, sweep / SWEEP_SETTINGS)
    return lock


def check_sweep(config: DictConfig, sweep: Path) -> None:
    """Raises UserError if there is no sweep to resume, if the folder contains something else, or if
    jobs with different settings could have the same folder.
    """
    # SWEEP_SETTINGS will contain them
    refuse_credentials(OmegaConf.to_container(config, resolve=False))
    if to_dict(config.hydra.sweep)["subdir"] != "${job_name:}":
        raise UserError(
            "hydra.sweep.subdir cannot be set: a job is recognized by the name of its folder"
        )
    of_sweep = {SWEEP_LOG, SWEEP_SETTINGS}
    existing = {name for name in (*of_sweep, "config.yaml") if (sweep / name).exists()}
    if existing != of_sweep and (existing or config.resume):
        raise UserError(
            f"{sweep} is not a sweep folder, which has {SWEEP_LOG} and {SWEEP_SETTINGS} but no"
            f" config.yaml: {OTHER_SWEEP_DIR}"
        )
    if config.resume and len(config.hydra.overrides.task) == 1:
        raise UserError(f"{sweep} is a sweep: resume it with the settings of its command")


def check_data(config: DictConfig) -> None:
    """Raises an exception for data that cannot be found, before the first job."""
    from imdbattn.tasks.task import task_of, training_settings

    try:
        settings = training_settings(plain_settings(config))
    except UserError:  # each job reports it, unless the job overrides it
        return
    task_of(settings).find_source(settings.data)


def tracker_of(config: DictConfig) -> "Tracker":
    """Returns the loggers of a sweep. Raises UserError for wrong logger settings."""
    from imdbattn.settings.schema import LoggerSettings, validate_as
    from imdbattn.tracking.loggers import Tracker

    loggers = to_dict(config.logger, resolve=True)
    return Tracker({name: validate_as(LoggerSettings, loggers[name]) for name in loggers})


def conclude(config: DictConfig, complete: bool, created: Sequence[Path] = ()) -> int:
    """Logs how the jobs ended, compares them if all are complete, and returns the exit status.
    Without jobs, removes the folders that this sweep has `created`.
    """
    sweep = Path(str(config.hydra.sweep.dir))
    jobs = ended_jobs(sweep)
    if not jobs and not complete:  # Hydra has reported why it composed none
        remove_empty(created, SWEEP_LOG, SWEEP_SETTINGS, ".lock", ".lock.soft")
        return 2
    counts = Counter(job["status"] for job in jobs.values())
    shown = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
    s, not_all = "s" * (len(jobs) != 1), "" if complete else ", not all"
    log.info("\n%d job%s%s: %s", len(jobs), s, not_all, shown)
    finished = [sweep / name for name, job in jobs.items() if job["status"] in ("done", "kept")]
    unfinished = [job for job in jobs.values() if job["status"] in ("stopped", "failed")]
    if complete and finished:
        compare_jobs(config, sweep, finished)
    for job in unfinished:
        log.error("%-7s %s: %s", job["status"], job["job"], job["reason"])
    if unfinished or not complete:
        override = in_shell(f"resume={os.path.relpath(sweep)}")
        log.error("to resume it, repeat the command and add %s", override)
    return int(not jobs or bool(unfinished))


def compare_jobs(config: DictConfig, sweep: Path, folders: list[Path]) -> None:
    """Writes <sweep>/comparison, prints it, and passes it to the loggers. A failure is only logged:
    the runs' results are safe.
    """
    from imdbattn.report.comparison_page import write_comparison
    from imdbattn.settings.command_settings import with_defaults

    try:
        settings = with_defaults("compare", runs=folders)
        page, comparisons = write_comparison(settings, sweep / "comparison")
        log.info("comparison           %s", os.path.relpath(page))
        tracker = tracker_of(config)
        for folder, comparison in comparisons.items():
            tracker.publish_comparison(comparison, folder, str(group_of(folders[0])))
    except Exception as error:  # the failed jobs must still be listed
        log.warning("no comparison: %s", error, exc_info=not isinstance(error, UserError))
