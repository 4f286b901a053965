"""Searches with Optuna: each trial is a run in a child process, in <folder>/trial-<number>.

journal.log holds Optuna's study.
"""

import logging
import os
import random
import re
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import optuna
from omegaconf import OmegaConf
from optuna import distributions, importance, pruners
from optuna.distributions import BaseDistribution
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from imdbattn.errors import UserError, in_shell
from imdbattn.folders.run import Run
from imdbattn.folders.run_folder import SEARCH_FILE, finished
from imdbattn.io.files import acquire_lock, read_json, write_atomically, writing_into
from imdbattn.launch.composition import composed
from imdbattn.launch.fork import start_fork, wait_for
from imdbattn.launch.hydra_config import in_quotes, plain_settings, quote
from imdbattn.launch.job import Job, ended_jobs, job_of, resumable
from imdbattn.launch.job_process import JobPool, execute, outcome, search_path
from imdbattn.launch.machine import gpus_for
from imdbattn.report.comparison import spread
from imdbattn.report.numbers import mean_and_sd
from imdbattn.report.pages import Report, Section, print_reports, write_reports
from imdbattn.runs.signals import StopOnSignals
from imdbattn.settings.command_settings import SearchSettings
from imdbattn.settings.keys import PATHS, absolute, as_text, flattened, hexdigest
from imdbattn.settings.logger_places import refuse_other_places
from imdbattn.settings.messages import nearest_text
from imdbattn.settings.schema import TrainingSettings
from imdbattn.settings.trust import refuse_untrusted
from imdbattn.tasks.task import task_of, training_settings

log = logging.getLogger(__name__)
optuna.logging.set_verbosity(optuna.logging.WARNING)
warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)

Space = dict[str, BaseDistribution]  # setting -> its values
FAILURES = 10  # consecutive failed trials that end a search
MIN_TRIALS = 4  # finished trials that an importance requires
TABLE_ROWS = 10  # trials in the table
STATES = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}


def run_search(options: SearchSettings, folder: Path) -> None:
    """Runs the trials, then trains the best settings with several seeds."""
    space, settings, max_epochs = check_space(options, folder / SEARCH_FILE)
    shown = os.path.relpath(folder)
    if not options.resume:
        options = options.model_copy(update={"train": as_recorded(options.train, settings)})
    lock = acquire_lock(
        folder / ".lock", f"{shown} belongs to a search that is still running: wait for it"
    )
    stopped = f"stopped; resume it with:  python -m imdbattn.search resume={in_shell(shown)}"
    with lock, writing_into(folder), StopOnSignals(stopped):
        write_atomically(folder / SEARCH_FILE, OmegaConf.to_yaml(options.model_dump()))
        study = open_study(folder / "journal.log", options, max_epochs)
        Trials(study, options, space, settings, folder).run()
        finish_search(study, options, folder)


# --- the space: values, lists of values, and ranges {low, high} with log: true or step ------------


def check_space(options: SearchSettings, file: Path) -> tuple[Space, TrainingSettings, int | None]:
    """Returns the space, the settings of one of its points, see `trial_settings`, and the largest
    number of epochs of a trial, if all have one.
    """
    space = {name: distribution(values) for name, values in options.space.items()}
    # These points contain both ends of each range and all values of each list.
    ends = {name: ends_of(values) for name, values in space.items()}
    epochs = []
    for index in range(max(map(len, ends.values()))):
        point = {name: values[min(index, len(values) - 1)] for name, values in ends.items()}
        settings = trial_settings([*options.train, *as_overrides(point)], options, file)
        epochs.append(settings.trainer.max_epochs)
    task_of(settings).find_source(settings.data)  # raises for data that cannot be found
    return space, settings, max(filter(None, epochs)) if all(epochs) else None


def distribution(values: object) -> BaseDistribution:
    """Returns a range, or a list of values; a single value is a list of one."""
    if not isinstance(values, Mapping):
        choices = values if isinstance(values, list) else [values]
        return distributions.CategoricalDistribution(choices)  # type: ignore[arg-type]
    if any(type(value) is float for value in values.values()):
        return distributions.FloatDistribution(**values)
    return distributions.IntDistribution(**values)


def ends_of(values: BaseDistribution) -> Sequence[object]:
    """Returns both ends of a range, or all values of a list."""
    if isinstance(values, distributions.CategoricalDistribution):
        return values.choices
    assert isinstance(values, distributions.FloatDistribution | distributions.IntDistribution)
    return values.low, values.high


def as_recorded(overrides: Sequence[str], settings: TrainingSettings) -> list[str]:
    """Returns the overrides of all trials with text in quotes and with absolute paths, so that the
    search can be resumed from another folder. settings: those of a trial.
    """
    values = flattened(settings.dump())
    recorded = []
    for override in map(quote, overrides):
        key = override.partition("=")[0]
        name = key.lstrip("+")
        if name in PATHS and (path := absolute(values[name])):
            override = f"{key}={in_quotes(path)}"
        recorded.append(override)
    return recorded


def as_overrides(params: Mapping[str, object]) -> list[str]:
    """Returns settings as on a command line."""
    overrides = []
    for name, value in rounded(params).items():
        text = as_text(value)
        if isinstance(value, str) and not re.fullmatch(r"[A-Za-z_][\w./-]*", value):
            text = in_quotes(value)
        overrides.append(f"{name}={text}")
    return overrides


def rounded(params: Mapping[str, object]) -> dict[str, object]:
    """Returns settings as the trials have them: long numbers are rounded to four digits."""
    return {
        name: float(f"{value:.4g}") if isinstance(value, float) and len(repr(value)) > 10 else value
        for name, value in params.items()
    }


def trial_settings(
    overrides: Sequence[str], options: SearchSettings, file: Path
) -> TrainingSettings:
    """Returns the settings of `python -m imdbattn.train overrides...`.

    Raises UserError if they are wrong or, in a search that is resumed from `file`, not trusted.
    """
    try:
        values = plain_settings(composed("train", overrides))
        if options.resume:  # before a class that they name is imported
            refuse_untrusted(values, file, options.trust)
            refuse_other_places(file, values["logger"], None, options.trust)
        return training_settings(values)
    except UserError as error:
        unknown = re.match(r"(there is no setting (\w+));", str(error))
        if unknown and (near := nearest_text(unknown[2], SearchSettings.model_fields)):
            raise UserError(f"{unknown[1]}{near}") from error
        raise


# --- trials ---------------------------------------------------------------------------------------


def open_study(journal: Path, options: SearchSettings, max_epochs: int | None) -> optuna.Study:
    """Opens the study in the journal, which is created if it is absent.

    Raises UserError if it is lost, or if its trials have other settings, and an exception of Optuna
    if it is damaged.
    """
    content = journal.read_bytes() if journal.exists() else b""
    # Otherwise trials of an earlier search would be resumed.
    if not content and any(journal.parent.glob("trial-*")):
        raise UserError(f"{journal} is missing or empty: restore it, or start a new search")
    if content[-1:] not in (b"", b"\n"):  # a power failure may cut it off
        write_atomically(journal, content[: content.rfind(b"\n") + 1])
    first = options.warmup_epochs + 1
    pruner: pruners.BasePruner = pruners.NopPruner()
    if options.pruner == "median":
        pruner = pruners.MedianPruner(options.startup_trials, first)
    elif options.pruner == "hyperband":
        pruner = pruners.HyperbandPruner(first, max(first, max_epochs) if max_epochs else "auto")
    storage = JournalStorage(JournalFileBackend(str(journal)))
    study = optuna.create_study(
        storage=storage,
        pruner=pruner,
        study_name="search",
        direction="maximize",
        load_if_exists=True,
    )
    shared = hexdigest({"train": options.train, "seed": options.seed})
    if study.user_attrs.get("shared", shared) != shared:
        raise UserError(
            f"{journal.parent / SEARCH_FILE} has another `train` or `seed` than the trials of this"
            " search: restore it, or start a new search"
        )
    study.set_user_attr("shared", shared)
    return study


@dataclass
class Trials:
    """The trials of a search: runs in processes of their own, whose results are in `study`."""

    study: optuna.Study
    options: SearchSettings
    space: Space
    settings: TrainingSettings  # of one point of the space; all trials have the same trainer
    folder: Path
    pruned: set[int] = field(default_factory=set)  # numbers of the trials that were stopped
    failures: int = 0  # consecutive failed trials

    def run(self) -> None:
        """Runs trials until options.n_trials are finished or pruned, starting with those that an
        earlier process left running. A trial with a run folder is resumed from its last checkpoint.

        Raises UserError after FAILURES failed trials in a row.
        """
        waiting = [Trial(self.study, trial._trial_id) for trial in self.in_states("RUNNING")]
        with JobPool(gpus_for(self.settings), self.options.n_jobs) as pool:
            while True:
                while len(pool.running) < pool.limit:
                    done = len(self.in_states("COMPLETE", "PRUNED"))
                    if not waiting and done + len(pool.running) >= self.options.n_trials:
                        break
                    self.start(waiting.pop(0) if waiting else self.ask(), pool)
                if not pool.running:
                    break
                for ended in pool.wait():
                    _, reason = outcome(ended.job, ended.process)
                    self.end(ended.owner, ended.job, reason)
                for running in pool.running:
                    trial = running.owner
                    if trial.number not in self.pruned and self.report(trial, running.job):
                        self.pruned.add(trial.number)
                        running.process.terminate()  # it saves its state

    def in_states(self, *states: str) -> list[FrozenTrial]:
        """Returns the trials of the study in these states."""
        return self.study.get_trials(deepcopy=False, states=[TrialState[name] for name in states])

    def ask(self) -> Trial:
        """Adds a trial to the study, and returns it.

        With n_jobs=1, the seed and the earlier trials determine its settings, even after resuming.

        Optuna's samplers ignore failed trials, and would choose settings that fail again and again.
        The sampler therefore receives a copy of the study, in which failed trials are pruned trials
        without a result. These rank lowest.
        """
        trials = self.study.get_trials()
        draw = random.Random(f"{self.options.seed} {len(trials)}").getrandbits(32)
        sampler = TPESampler(seed=draw, constant_liar=self.options.n_jobs > 1)
        copy = optuna.create_study(direction="maximize", sampler=sampler)
        for trial in trials:
            if trial.state == TrialState.FAIL:
                trial = create_trial(
                    state=TrialState.PRUNED, params=trial.params, distributions=trial.distributions
                )
            copy.add_trial(trial)
        params = copy.ask(self.space).params
        # The journal receives a single record, because the search may be killed at any time.
        self.study.add_trial(
            create_trial(state=TrialState.RUNNING, params=params, distributions=self.space)
        )
        return Trial(self.study, self.study.get_trials(deepcopy=False)[-1]._trial_id)

    def start(self, trial: Trial, pool: JobPool) -> None:
        """Starts the run of a trial, or records its result if it is finished."""
        run = self.folder / f"trial-{trial.number:03}"
        chosen = as_overrides(trial.params)
        overrides = [*self.options.train, *chosen, f"seed={self.options.seed}", "test=false"]
        try:
            job = job_of(composed("train", ["pictures=false", *overrides]), run)
        except UserError as error:  # this combination of values is wrong
            self.fail(trial, str(error))
            return
        if finished(run):
            self.end(trial, job, "")
            return
        resumes = " (resumes)" if resumable(run, job.settings) else ""
        log.info("run     %s: %s%s", run.name, " ".join(chosen), resumes)
        pool.start(trial, job)

    def end(self, trial: Trial, job: Job, reason: str) -> None:
        """Records the result of a trial in the study. reason: why its run failed, if it did."""
        run = job.folder
        # A trial that was stopped may have finished before it received the signal.
        if trial.number in self.pruned or self.report(trial, job):
            ended = self.study.tell(trial, state=TrialState.PRUNED)
            accuracy = 100 * ended.values[0]
            epoch = ended.last_step
            log.info("pruned  %s after epoch %d: validation %.2f %%", run.name, epoch, accuracy)
        elif finished(run):
            accuracy = read_json(run / "metrics.json")["val_accuracy"]
            self.study.tell(trial, accuracy)
            log.info("done    %s: validation %.2f %%", run.name, 100 * accuracy)
        else:
            self.fail(trial, reason or "it ended without metrics.json")
            return
        self.failures = 0

    def fail(self, trial: Trial, reason: str) -> None:
        """Records a failed trial. Raises UserError after FAILURES of them in a row."""
        self.study.tell(trial, state=TrialState.FAIL)
        log.error("failed  trial-%03d: %s", trial.number, reason)
        self.failures += 1
        if self.failures == FAILURES:
            raise UserError(f"{FAILURES} trials in a row failed, the last one because of: {reason}")

    def report(self, trial: Trial, job: Job) -> bool:
        """Reports the validation accuracies of the epochs that have ended since the last report.

        Returns whether the pruner stops the trial, which it never does after the last epoch.
        """
        last = job.settings.trainer.max_epochs
        curves = Run(job.folder).curves
        accuracies, ended = curves.get("val/accuracy", {}), curves.get("train/epoch_seconds", {})
        reported = self.study.get_trials(deepcopy=False)[trial.number].intermediate_values
        for epoch in sorted((accuracies.keys() & ended) - reported.keys()):
            trial.report(accuracies[epoch], epoch)
            if epoch != last and trial.should_prune():
                return True
        return False


# --- results --------------------------------------------------------------------------------------


def finish_search(study: optuna.Study, options: SearchSettings, folder: Path) -> None:
    """Writes the results, trains the best settings with each seed, and adds the test accuracy."""
    seeds = ",".join(str(options.seed + number) for number in range(max(1, options.seeds)))
    overrides = [*options.train, *as_overrides(study.best_params), f"seed={seeds}"]
    line = " ".join(
        ["python -m imdbattn.train", *["-m"] * (options.seeds > 1), *map(in_shell, overrides)]
    )
    report = search_report(study, line, [])
    print_reports([report])
    write_reports([report], folder)
    end = "the best settings:   "
    if options.seeds:
        accuracies = retrain(options, overrides, folder)
        write_reports([search_report(study, line, accuracies)], folder)
        end = f"test accuracy        {mean_and_spread(accuracies)} with: "
    log.info("search               %s\n%s%s", os.path.relpath(folder / "search.md"), end, line)


def retrain(options: SearchSettings, overrides: list[str], folder: Path) -> list[float]:
    """Runs these overrides as a sweep in <search folder>/best, and returns the test accuracies."""
    sweep = folder / "best"
    overrides = [*overrides, quote(f"hydra.sweep.dir={sweep}"), *search_path()]
    overrides += ["-m", f"hydra.launcher.n_jobs={options.n_jobs}"]
    process = wait_for(start_fork(partial(execute, overrides), os.environ))
    if process.exitcode:
        sys.exit(process.exitcode)  # the sweep has printed why
    files = [sweep / name / "metrics.json" for name in ended_jobs(sweep)]
    return [read_json(file)["test_accuracy"] for file in files]


def search_report(study: optuna.Study, command: str, test_accuracies: list[float]) -> Report:
    """Returns the report of a search. command: trains the best settings."""
    trials = study.get_trials()
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    done.sort(key=lambda trial: trial.values[0], reverse=True)
    best = [["settings", "trial", "validation %", "epochs"]]
    for trial in done[:TABLE_ROWS]:
        accuracy = f"{100 * trial.values[0]:.2f}"
        settings = " ".join(as_overrides(trial.params))
        best.append([settings, str(trial.number), accuracy, str(trial.last_step or 0)])
    title = f"The command that trains trial {done[0].number} again"
    sections = [
        Section("The best trials", table=best, in_terminal=True),
        Section(title, table=[["command"], [command]]),
    ]
    importances: dict[str, float] = {}  # one for each setting, descending; their sum is 1
    if len(done) >= MIN_TRIALS:
        evaluator = importance.PedAnovaImportanceEvaluator(target_quantile=0.5)
        importances = importance.get_param_importances(study, evaluator=evaluator)
        rows = [[name, f"{100 * share:.1f}"] for name, share in importances.items()]
        table = [["setting", "importance %"], *rows]
        text = f"By PED-ANOVA: the better half of {len(done)} finished trials against all of them."
        sections.append(Section("Importance of settings", text, table, in_terminal=True))
    states = [STATES[trial.state.name] for trial in trials]
    counts = Counter(states)
    facts = []
    for trial, state in zip(trials, states, strict=True):
        about = {"number": trial.number, "state": state, "values": trial.values}
        facts.append({**about, "epochs": trial.last_step, "settings": rounded(trial.params)})
    return Report(
        name="search",
        title=", ".join(f"{counts[state]} {state}" for state in STATES.values() if counts[state]),
        sections=sections,
        points=[f"test accuracy {mean_and_spread(test_accuracies)}"] if test_accuracies else [],
        content={
            "command": command,
            "test_accuracies": test_accuracies,
            "importance": importances,
            "trials": facts,
        },
    )


def mean_and_spread(accuracies: list[float]) -> str:
    return f"{mean_and_sd(spread(accuracies))} % (seeds: {len(accuracies)})"
