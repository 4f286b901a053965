"""A job of a sweep: an ordinary run, which `job_process` trains in a process of its own.

Its folder is <sweep folder>/<model>-s<seed>[-fold<k>]-<digest of its settings>, so that a repeated
sweep finds the results of the same job. metrics.json in it shows that the job is finished.
sweep.jsonl in the sweep folder contains a line for each job that has ended, with the reason if it
failed: launchers may run jobs in processes, or on machines, that the sweep does not know.
"""

import json
import logging
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig

from imdbattn.folders.run import Run
from imdbattn.folders.run_folder import LAST, SWEEP_LOG, finished, has_results
from imdbattn.io.files import read_json, with_home
from imdbattn.launch.hydra_config import plain_settings
from imdbattn.settings.keys import PATHS, flattened
from imdbattn.settings.schema import TrainingSettings
from imdbattn.tasks.task import task_of, training_settings

log = logging.getLogger(__name__)


class Job(NamedTuple):
    """A job of a sweep, or a trial of a search.

    cfg: its config, with `hydra`. settings: its validated settings.
    """

    folder: Path
    cfg: DictConfig
    settings: TrainingSettings


def job_of(cfg: DictConfig, folder: Path) -> Job:
    """Returns the job with this config (with `hydra`). Raises UserError for wrong settings."""
    return Job(folder, cfg, training_settings(plain_settings(cfg)))


# --- results that exist ---------------------------------------------------------------------------


def has_current_results(folder: Path, settings: TrainingSettings) -> bool:
    """Returns whether `folder` contains a finished run with these settings, on the current data."""
    return has_results(folder, settings.test) and on_current_data(folder, settings)


def resumable(folder: Path, settings: TrainingSettings) -> bool:
    """Returns whether `folder` contains the last checkpoint of a run on the current data that has
    results to add.
    """
    started = (folder / LAST).exists()
    return started and not has_results(folder, settings.test) and on_current_data(folder, settings)


def on_current_data(folder: Path, settings: TrainingSettings) -> bool:
    """Returns whether the settings select the data of a run, and whether the other files that it
    reads exist and are older than the run.
    """
    started = folder / "environment.json"
    source = task_of(settings).find_source(settings.data)
    source_key = str(read_json(started).get("source_key"))
    if source is not None and source.key != source_key.split("-")[0]:
        return False
    values = flattened(settings.dump())
    # `source` compares the content of data.path, and the cache changes no result.
    others = {*PATHS} - {"data.path", "data.cache_dir", "init"}
    files = [values[name] for name in others if values.get(name)]
    if settings.init:
        files.append(Run(settings.init).checkpoint_file)
    started_at = started.stat().st_mtime
    return all(
        file.exists() and file.stat().st_mtime <= started_at for file in map(with_home, files)
    )


# --- the ends of jobs -----------------------------------------------------------------------------


def log_end(folder: Path, status: str, reason: str = "", about: str = "") -> float | None:
    """Appends a line about the job in `folder`, which has ended, to sweep.jsonl. Logs its results,
    or the reason if it has none, and returns its validation accuracy or None.

    Short lines that several processes append do not mix. about: text to add to the results.
    """
    with (folder.parent / SWEEP_LOG).open("a") as file:
        file.write(json.dumps({"job": folder.name, "status": status, "reason": reason}) + "\n")
    if reason:
        log.error("%-7s %s: %s", status, folder.name, reason)
        return None
    metrics = read_json(folder / ("metrics.json" if finished(folder) else "debug.json"))
    results = [f"validation {100 * metrics['val_accuracy']:.2f} %"]
    if "test_accuracy" in metrics:
        results.append(f"test {100 * metrics['test_accuracy']:.2f} %")
    if about:
        results.append(about)
    log.info("%-7s %s: %s", status, folder.name, ", ".join(results))
    return float(metrics["val_accuracy"])


def ended_jobs(sweep: Path) -> dict[str, dict[str, str]]:
    """Returns the last line about each job: name of its folder -> {"job", "status", "reason"}."""
    lines = (sweep / SWEEP_LOG).read_text().splitlines()
    return {entry["job"]: entry for entry in map(json.loads, lines)}
