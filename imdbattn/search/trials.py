"""The trials of a search: each is an ordinary run in a child process, in <search folder>/trial-<number>.

journal.log holds Optuna's study. A pruned trial's folder is renamed to trial-<number>-pruned.
"""

import logging
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import optuna
from omegaconf import DictConfig, OmegaConf
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import Trial, TrialState, create_trial

from imdbattn.errors import UserError, in_shell
from imdbattn.files import acquired, write_atomically, writing_into
from imdbattn.run_folder import finished, read_curves
from imdbattn.search.results import complete
from imdbattn.search.space import Space, as_words, check
from imdbattn.settings.cli import SWEEP_PID
from imdbattn.settings.machine import threads_of
from imdbattn.settings.safety import read_json
from imdbattn.settings.schema import Search
from imdbattn.sweep.job import failure, resumable, started

log = logging.getLogger(__name__)
optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)

POLL = 0.2  # seconds between two readings of the learning curves of running trials
FAILURES = 10  # consecutive failed trials that end a search


def run_search(cfg: Search, folder: Path, file: str) -> None:
    """Runs the trials, then trains the best settings with several seeds. file: name of the file with the settings."""
    space, settings = check(cfg, folder / file)
    place = os.path.relpath(folder)
    lock = acquired(folder / ".lock", f"{place} belongs to a search that is still running: wait for it")
    os.environ[SWEEP_PID] = str(os.getpid())  # trials end with this process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # runs the finally clauses
    with lock, writing_into(folder, "choose another hydra.run.dir"):
        write_atomically(folder / file, OmegaConf.to_yaml(OmegaConf.create(cfg.model_dump())))
        study = open_study(folder / "journal.log", cfg, settings.trainer.max_epochs)
        try:
            run_trials(study, cfg, space, settings, folder)
            complete(study, cfg, folder)
        except (KeyboardInterrupt, SystemExit):
            log.warning("stopped; resume it with:  python -m imdbattn.search resume=%s", in_shell(place))
            raise


def open_study(journal: Path, cfg: Search, max_epochs: int | None) -> optuna.Study:
    """The study in the journal, which is created if it is absent.

    Raises UserError if it is lost, and an exception of Optuna if it is damaged.
    """
    journal.with_name("journal.log.lock").unlink(missing_ok=True)  # of a killed process
    content = journal.read_bytes() if journal.exists() else b""
    if not content and any(journal.parent.glob("trial-*")):  # of other settings, which would be resumed
        raise UserError(f"{journal} is missing or empty: restore it, or start a new search")
    if content[-1:] not in (b"", b"\n"):  # as after a power failure
        write_atomically(journal, content[: content.rfind(b"\n") + 1])
    first = cfg.warmup_epochs + 1
    pruner: BasePruner = NopPruner()
    if cfg.pruner == "median":
        pruner = MedianPruner(cfg.startup_trials, first)
    elif cfg.pruner == "hyperband":
        pruner = HyperbandPruner(first, max(first, max_epochs) if max_epochs else "auto")
    storage = JournalStorage(JournalFileBackend(str(journal)))
    return optuna.create_study(
        storage=storage, pruner=pruner, study_name="search", direction="maximize", load_if_exists=True
    )


def run_trials(study: optuna.Study, cfg: Search, space: Space, settings: DictConfig, folder: Path) -> None:
    """Runs trials until cfg.n_trials are finished or pruned, starting with those that an earlier process left running.

    settings: those that all trials share. Raises UserError after FAILURES failed trials in a row.
    """

    def trials(*states: TrialState) -> list[optuna.trial.FrozenTrial]:
        return study.get_trials(deepcopy=False, states=states)

    waiting = [Trial(study, trial._trial_id) for trial in trials(TrialState.RUNNING)]
    running: list[Generator[None]] = []
    failed = trials(TrialState.FAIL)
    try:
        while True:
            done = len(trials(TrialState.COMPLETE, TrialState.PRUNED))
            while len(running) < cfg.n_jobs and (waiting or done + len(running) < cfg.n_trials):
                running.append(run_trial(waiting.pop(0) if waiting else ask(study, cfg, space), cfg, settings, folder))
            if not running:
                break
            time.sleep(POLL)
            running = [run for run in running if next(run, "ended") != "ended"]
            if len(trials(TrialState.COMPLETE, TrialState.PRUNED)) > done:
                failed = trials(TrialState.FAIL)
            if len(trials(TrialState.FAIL)) >= len(failed) + FAILURES:
                place = in_shell(os.path.relpath(folder))
                remedy = f"correct their cause, then resume={place}, or start a new search"
                raise UserError(f"{FAILURES} trials in a row failed: {remedy}")
    except BaseException as stop:
        for run in running:
            with suppress(BaseException):
                run.throw(stop)  # stops its process
        raise


def ask(study: optuna.Study, cfg: Search, space: Space) -> Trial:
    """A new trial. With n_jobs=1 its settings follow from the seed and the earlier trials, also in a resumed search.

    Optuna's samplers ignore failed trials, and would choose settings that fail again and again. The sampler therefore
    receives a copy of the study in which failed trials are pruned ones without a result, which rank lowest.
    """
    trials = study.get_trials()
    draw = random.Random(f"{cfg.seed} {len(trials)}").getrandbits(32)
    copy = optuna.create_study(direction="maximize", sampler=TPESampler(seed=draw, constant_liar=cfg.n_jobs > 1))
    for trial in trials:
        if trial.state == TrialState.FAIL:
            trial = create_trial(state=TrialState.PRUNED, params=trial.params, distributions=trial.distributions)
        copy.add_trial(trial)
    # One record of the journal: the search may be killed at any time.
    study.add_trial(create_trial(state=TrialState.RUNNING, params=copy.ask(space).params, distributions=space))
    return Trial(study, study.get_trials(deepcopy=False)[-1]._trial_id)


def run_trial(trial: Trial, cfg: Search, settings: DictConfig, folder: Path) -> Generator[None]:
    """Runs a trial and records its result in the study. Yields while it is running.

    A run folder that exists already is resumed from its last checkpoint; without one it starts again.
    """
    study, run, reason = trial.study, folder / f"trial-{trial.number:03}", ""
    chosen, kept = as_words(trial.params), run.with_name(f"{run.name}-pruned")
    pruned = kept.exists()
    last = trial.params.get("trainer.max_epochs", settings.trainer.max_epochs)
    if not (pruned or finished(run)):
        run.mkdir(exist_ok=True)
        resume = resumable(run, settings)
        log.info("run     %s: %s%s", run.name, " ".join(chosen), " (resumes)" if resume else "")
        words = ["pictures=false", *cfg.train, *chosen, f"seed={cfg.seed}", "test=false"]
        threads = threads_of({"n_jobs": cfg.n_jobs}) if cfg.n_jobs > 1 else None
        with started(run, settings, words, resume, threads, number=trial.number) as process:
            while process.poll() is None:
                yield
                if not pruned and (pruned := report(trial, run, last)):
                    process.terminate()  # it saves its state
        reason = failure(process.returncode, run)
    if pruned or report(trial, run, last):  # also if it has finished meanwhile
        if run.exists():
            run.rename(kept)
            if (latest := Path("runs", "latest")).is_symlink() and not latest.exists():
                latest.unlink()
        study.tell(trial, state=TrialState.PRUNED)
        ended = study.get_trials(deepcopy=False)[trial.number]
        log.info("pruned  %s after epoch %d: validation %.2f %%", run.name, ended.last_step, 100 * ended.values[0])
    elif finished(run):
        accuracy = read_json(run / "metrics.json")["val_accuracy"]
        study.tell(trial, accuracy)
        log.info("done    %s: validation %.2f %%", run.name, 100 * accuracy)
    else:
        study.tell(trial, state=TrialState.FAIL)
        log.error("failed  %s: %s", run.name, reason or "it ended without metrics.json")


def report(trial: Trial, run: Path, last: int | None) -> bool:
    """Reports the validation accuracy of each new epoch, up to the one at which the pruner stops the trial.

    Returns whether it does. last: the trial's last epoch, at which it is not stopped.
    """
    curves = read_curves(run / "metrics.csv") if (run / "metrics.csv").exists() else {}
    accuracies = curves.get("val/accuracy", {})
    new = accuracies.keys() - trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
    for epoch in sorted(new):
        trial.report(accuracies[epoch], epoch)
        if epoch != last and trial.should_prune():
            return True
    return False
