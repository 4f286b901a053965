"""The trials of a search: each is an ordinary run in a child process, in <search folder>/trial-<number>.

journal.log holds Optuna's study. A pruned trial's folder is renamed to trial-<number>-pruned.
"""

import logging
import os
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import Trial, TrialState, create_trial

from imdbattn.data import reviews
from imdbattn.errors import UserError
from imdbattn.files import write_atomically
from imdbattn.run_folder import finished, is_debug, read_curves
from imdbattn.search.space import Space, as_words, compose, distributions, ends
from imdbattn.settings.cli import has_plugin, quote
from imdbattn.settings.keys import within
from imdbattn.settings.machine import threads_of
from imdbattn.settings.safety import read_json, refuse_untrusted
from imdbattn.settings.schema import Search, Settings
from imdbattn.sweep.job import LOG, failure, group_of, jobs_of, resumable, search_path, started, stopping

log = logging.getLogger(__name__)
optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.simplefilter("ignore", ExperimentalWarning)

JOURNAL = "journal.log"
DECIDED_HERE = ("seed", "resume", "test", "hydra")  # settings of a trial that are not the user's
POLL = 0.2  # seconds between looks at the learning curves of running trials
FAILURES = 10  # so many failed trials in a row end a search


def check(cfg: Search, file: Path) -> tuple[Space, Settings]:
    """The space, and the settings that all trials share. Raises UserError for wrong ones.

    file: where they are from, if a search is resumed. If data.source is `auto`, it is decided for all trials.
    """
    space = distributions(cfg.space)
    for name in (*space, *cfg.train):
        if within(name.partition("=")[0], *DECIDED_HERE):
            raise UserError(f"{name}: the search decides this setting for each trial: omit it")
    for point in ends(space):
        composed = compose([*cfg.train, *as_words(point)])
        if cfg.resume:
            refuse_untrusted(composed.model_dump(), file, cfg.trust)
    settings = compose(cfg.train)
    if is_debug(settings.model_dump()):
        raise UserError("debug runs have no results to search by: omit debug=")
    if settings.task != "seq2seq" and settings.data.source == "auto" and not settings.data.path:
        reviews.find_source(settings.data)
        cfg.train.append(f"data.source={os.environ[reviews.DECIDED]}")
        settings = compose(cfg.train)
    return space, settings


def open_study(folder: Path, cfg: Search, max_epochs: int | None) -> optuna.Study:
    """The study in the folder's journal, which is created if it is absent. Raises UserError for a damaged journal."""
    journal, first = folder / JOURNAL, cfg.warmup_epochs + 1
    (folder / f"{JOURNAL}.lock").unlink(missing_ok=True)  # of a killed process: no other one works in this folder
    if journal.exists() and not (content := journal.read_bytes()).endswith(b"\n"):  # as after a power failure
        write_atomically(journal, content[: content.rfind(b"\n") + 1])
    pruners: dict[str, Callable[[], BasePruner]] = {
        "median": lambda: MedianPruner(cfg.startup_trials, first),
        "hyperband": lambda: HyperbandPruner(first, max(first, max_epochs) if max_epochs else "auto"),
        "none": NopPruner,
    }
    try:
        storage = JournalStorage(JournalFileBackend(str(journal)))
        options = {"pruner": pruners[cfg.pruner](), "direction": "maximize", "load_if_exists": True}
        return optuna.create_study(storage=storage, study_name="search", **options)
    except Exception as error:  # any exception: the journal may hold anything
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{journal} is damaged ({reason}): restore it, or start a new search") from error


def run_trials(cfg: Search, space: Space, settings: Settings, folder: Path) -> optuna.Study:
    """Runs trials until cfg.n_trials are finished or pruned; first those that were running when the search stopped.

    settings: those that all trials share. Raises UserError after FAILURES failed trials in a row.
    """
    study = open_study(folder, cfg, settings.trainer.max_epochs)
    begun = [trial for trial in study.get_trials() if trial.state == TrialState.RUNNING]
    for trial in begun:
        if trial.distributions != space:  # the search was killed while it chose them
            study.tell(trial.number, state=TrialState.FAIL)
    waiting = [Trial(study, trial._trial_id) for trial in begun if trial.distributions == space]
    running: list[Iterator[None]] = []
    before = len(ended_states(study))
    try:
        while True:
            states = ended_states(study)
            if states[before:][-FAILURES:] == [TrialState.FAIL] * FAILURES:
                way_out = f"correct their cause, then resume={os.path.relpath(folder)}, or start a new search"
                raise UserError(f"{FAILURES} trials in a row failed: {way_out}")
            done = sum(state != TrialState.FAIL for state in states)
            while len(running) < cfg.n_jobs and (waiting or done + len(running) < cfg.n_trials):
                running.append(run_trial(waiting.pop(0) if waiting else ask(study, cfg, space), cfg, settings, folder))
            if not running and TrialState.COMPLETE not in states:
                raise UserError("no trial finished: raise n_trials, or start another search with pruner=none")
            if not running:
                return study
            ended = [run for run in running if next(run, "ended") == "ended"]
            running = [run for run in running if run not in ended]
            if not ended:
                time.sleep(POLL)
    except BaseException as stop:
        for run in running:
            with suppress(BaseException):
                run.throw(stop)  # stops its process
        raise


def ended_states(study: optuna.Study) -> list[TrialState]:
    """How the trials ended, in the order of their ends."""
    ended = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    return [trial.state for trial in sorted(ended, key=lambda trial: str(trial.datetime_complete))]


def ask(study: optuna.Study, cfg: Search, space: Space) -> Trial:
    """A new trial. With n_jobs=1 its settings follow from the seed and the earlier trials, also in a resumed search.

    Optuna's samplers ignore failed trials, and would choose settings that fail again and again. The sampler is
    therefore given a copy of the study, in which they are pruned ones without a result, the worst of all.
    """
    trials = study.get_trials()
    draw = random.Random(f"{cfg.seed} {len(trials)}").getrandbits(32)
    sampler = TPESampler(seed=draw, constant_liar=cfg.n_jobs > 1)
    copy = optuna.create_study(direction="maximize", sampler=sampler)
    for trial in trials:
        if trial.state == TrialState.FAIL:
            trial = create_trial(state=TrialState.PRUNED, params=trial.params, distributions=trial.distributions)
        copy.add_trial(trial)
    study.enqueue_trial(copy.ask(space).params)
    return study.ask(space)


def run_trial(trial: Trial, cfg: Search, settings: Settings, folder: Path) -> Iterator[None]:
    """Runs a trial and tells the study how it ended. Yields while it is running.

    A run folder that is there already is resumed from its last checkpoint, or begun again without one.
    """
    study, run, reason = trial.study, folder / f"trial-{trial.number:03}", ""
    chosen, kept = as_words(trial.params), run.with_name(f"{run.name}-pruned")
    pruned = kept.exists()
    if not (pruned or finished(run)):
        run.mkdir(exist_ok=True)
        resume = resumable(run, settings)
        log.info("run     %s: %s%s", run.name, " ".join(chosen), " (resumes)" if resume else "")
        words = ["pictures=false", *cfg.train, *chosen, f"seed={cfg.seed}", "test=false"]
        last = trial.params.get("trainer.max_epochs", settings.trainer.max_epochs)
        threads = threads_of({"n_jobs": cfg.n_jobs}) if cfg.n_jobs > 1 else None
        with started(run, settings, words, resume, threads, group_of(folder), number=trial.number) as process:
            while process.poll() is None:
                yield
                epoch = report(trial, run)
                if epoch and epoch != last and not pruned and trial.should_prune():
                    pruned = True
                    process.terminate()  # it saves its state
        reason = failure(process.returncode, run)
    if finished(run):  # possibly before the signal arrived
        report(trial, run)
        accuracy = read_json(run / "metrics.json")["val_accuracy"]
        study.tell(trial, accuracy)
        log.info("done    %s: validation %.2f %%", run.name, 100 * accuracy)
    elif pruned:
        if run.exists():
            run.rename(kept)
            if (latest := Path("runs", "latest")).is_symlink() and not latest.exists():
                latest.unlink()
        epoch, accuracy = list(study.get_trials()[trial.number].intermediate_values.items())[-1]
        study.tell(trial, state=TrialState.PRUNED)
        log.info("pruned  %s after epoch %d: validation %.2f %%", run.name, epoch, 100 * accuracy)
    else:
        study.tell(trial, state=TrialState.FAIL)
        log.error("failed  %s: %s", run.name, reason or "it ended without metrics.json")


def report(trial: Trial, run: Path) -> int:
    """Reports the validation accuracy of each new epoch, and returns the last of them; 0 if there is none."""
    known = trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
    curves = read_curves(run / "metrics.csv") if (run / "metrics.csv").exists() else {}
    new = {
        epoch: accuracy
        for epoch, accuracy in zip(*curves.get("val/accuracy", ([], [])), strict=True)
        if epoch not in known
    }
    for epoch, accuracy in new.items():
        trial.report(accuracy, epoch)
    return max(new, default=0)


def final_words(cfg: Search, study: optuna.Study) -> list[str]:
    """The settings of the best trial with each seed, as on a command line."""
    seeds = ",".join(str(cfg.seed + place) for place in range(max(1, cfg.seeds)))
    return [*cfg.train, *as_words(study.best_params), f"seed={seeds}"]


def retrain(cfg: Search, words: Sequence[str], folder: Path) -> list[float]:
    """Runs these words as a sweep in <search folder>/best, and returns the test accuracies."""
    sweep = folder / "best"
    place = "resume" if (sweep / LOG).exists() else "hydra.sweep.dir"
    words = [*words, quote(f"{place}={sweep}", [place]), *search_path()]
    if cfg.n_jobs > 1 and has_plugin("hydra_joblib_launcher"):
        words += ["hydra/launcher=local", f"hydra.launcher.n_jobs={cfg.n_jobs}"]
    command = [sys.executable, "-m", "imdbattn.train", "-m", *words]
    with subprocess.Popen(command) as process, stopping(process):
        process.wait()
    if process.returncode:
        raise UserError(f"the best settings could not be trained: see above, then resume={os.path.relpath(folder)}")
    return [read_json(sweep / name / "metrics.json")["test_accuracy"] for name in jobs_of(sweep)]
