"""Starts and ends a sweep: locks its folder, and writes a comparison of its jobs at the end.

The jobs themselves are in job.py. A failed job does not stop the others.
"""

import atexit
import logging
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

from filelock import BaseFileLock
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from imdbattn.errors import UserError, in_shell
from imdbattn.files import acquired, make_folder, write_atomically, writing_into
from imdbattn.settings.cli import SWEEP_PID, print_error, quote, refuse_chdir, remove_empty
from imdbattn.settings.keys import conf_dir
from imdbattn.settings.safety import refuse_credentials
from imdbattn.sweep.job import LOG, end_with, forget_wandb_run, group_of, jobs_of

log = logging.getLogger(__name__)

FILES = (LOG, "multirun.yaml")  # files of a sweep in its folder
REMEDY = "choose another hydra.sweep.dir"


class SweepReport(Callback):
    """Hydra's callback. It calls sys.exit, because Hydra converts an Exception of a callback to a warning.

    Launchers pickle it, so it holds only data.
    """

    def __init__(self) -> None:
        self.earlier: dict[str, bytes] = {}  # contents of FILES from an earlier sweep into the same folder

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        try:
            refuse_chdir(config.hydra)
            lock = self.start(config)
        except Exception as error:  # any exception: the sweep would run without its lock
            print_error(error if isinstance(error, UserError) else f"the sweep cannot start: {error!r}")
            sys.exit(2)
        atexit.register(lock.release)
        atexit.register(self.end, config, complete=False)  # after Ctrl-C or a failed launcher Hydra calls no callback

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        atexit.unregister(self.end)
        if status := self.end(config, complete=True):
            sys.exit(status)

    def start(self, config: DictConfig) -> BaseFileLock:
        """Prepare the sweep folder and return its lock, acquired.

        Raises UserError if there is no sweep to resume, or if the folder contains other files or another sweep.
        """
        sweep = Path(str(config.hydra.sweep.dir))
        refuse_credentials(OmegaConf.to_container(config, resolve=False))  # multirun.yaml will contain them
        if config.resume == "":
            raise UserError("resume= must be text of at least one character")
        if config.resume and not (sweep / LOG).exists():
            raise UserError(f"resume={config.resume}: {sweep} is not a sweep folder, it has no {LOG}")
        self.earlier = {name: (sweep / name).read_bytes() for name in FILES if (sweep / name).is_file()}
        if self.earlier:
            try:
                jobs_of(sweep)
            except (OSError, ValueError, KeyError, TypeError):
                raise UserError(f"{sweep} contains {', '.join(self.earlier)}, not of a sweep: {REMEDY}") from None
        make_folder(sweep, REMEDY)
        busy = f"{sweep} belongs to a sweep that is still running: wait for it, or {REMEDY}"
        lock = acquired(sweep / ".lock", busy).lock
        if os.environ.get(SWEEP_PID) == str(os.getppid()):
            end_with(os.getppid())  # it was started by a search
        os.environ[SWEEP_PID] = str(os.getpid())
        forget_wandb_run(os.environ)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # runs the finally clauses
        with writing_into(sweep, REMEDY):
            (sweep / LOG).write_text("")
            # For `varied_overrides`. Of Hydra's sweepers only the basic one writes it.
            OmegaConf.save(config, sweep / "multirun.yaml")
        from imdbattn.data.reviews import decided_source

        decided_source(config)  # once for all jobs
        return lock

    def end(self, config: DictConfig, complete: bool) -> int:
        """Log how the jobs ended, compare them if the sweep is complete, and return the exit status."""
        sweep = Path(str(config.hydra.sweep.dir))
        jobs = jobs_of(sweep)
        if not jobs:
            self.restore(sweep)
            if complete:  # else Hydra could not compose the jobs, and has reported it
                overrides = " ".join(config.hydra.overrides.task)
                print_error(f"the sweep has no jobs: one of its settings has no value to choose from ({overrides})")
            return 2
        failed = [job for job in jobs.values() if job["status"] == "failed"]
        statuses = [job["status"] for job in jobs.values()]
        counts = ", ".join(f"{statuses.count(s)} {s}" for s in ("done", "kept", "failed") if s in statuses)
        stopped = "" if complete else " until the sweep was stopped"
        log.info("\n%d job%s%s: %s", len(jobs), "s" * (len(jobs) != 1), stopped, counts)
        if complete:
            if others := {path.parent.name for path in sweep.glob("*/metrics.json")} - set(jobs):
                log.info("with other settings, left unchanged: %s", ", ".join(sorted(others)))
            if finished := [sweep / name for name, job in jobs.items() if job["status"] != "failed"]:
                compare_jobs(config, sweep, finished)
        for job in failed:
            log.error("failed  %s: %s", job["job"], job["reason"])
        if failed or not complete:
            place = os.path.relpath(sweep)
            plain = re.fullmatch(r"[\w./ -]+", place, re.ASCII)  # others, such as a comma, are special in a sweep
            word = quote(f"resume={place}", [] if plain else ["resume"])
            log.error("resume it with:  the same command with %s", in_shell(word))
        return int(bool(failed))

    def restore(self, sweep: Path) -> None:
        """Undo what `start` has written into the folder."""
        for lock in sweep.glob(".lock*"):
            lock.unlink()
        for name in FILES:
            if name in self.earlier:
                write_atomically(sweep / name, self.earlier[name])
            else:
                (sweep / name).unlink(missing_ok=True)
        if not self.earlier:
            remove_empty(sweep.resolve(), LOG)


def compare_jobs(config: DictConfig, sweep: Path, folders: list[Path]) -> None:
    """Write <sweep>/comparison, print it, and log it to W&B. A failure is logged only: the runs' results are safe."""
    from imdbattn.comparison.compare import compare_sets
    from imdbattn.comparison.report import report_of
    from imdbattn.pages import folders_of, print_reports, write_reports
    from imdbattn.tracking.publish import publish_comparison

    options: Any = OmegaConf.to_container(OmegaConf.load(conf_dir() / "compare.yaml"))
    names = ("split", "resamples", "seed", "words", "disagreements", "against")
    try:
        comparisons = compare_sets(folders, **{name: options[name] for name in names})
        reports = list(map(report_of, comparisons))
        page = write_reports(reports, sweep / "comparison")
        print_reports(reports)
    except Exception as error:  # any exception: the failed jobs must still be listed
        log.warning("no comparison: %s", error, exc_info=not isinstance(error, UserError))
        return
    log.info("comparison           %s", os.path.relpath(page))
    for comparison, out in zip(comparisons, folders_of(reports, sweep / "comparison"), strict=True):
        publish_comparison(comparison, out, config.logger, group_of(sweep))
