"""Scores a finished run again."""

import logging
from pathlib import Path

from imdbattn.data.corpus import Corpus
from imdbattn.errors import UserError
from imdbattn.folders.run import Run
from imdbattn.folders.run_folder import finished, write_json
from imdbattn.io.files import read_json
from imdbattn.runs.apply import load_predictor, with_changes
from imdbattn.runs.fit import check_complete, run_facts, score_facts, score_split, write_predictions
from imdbattn.runs.trainer import build_trainer, quiet
from imdbattn.settings.command_settings import EvaluateSettings
from imdbattn.settings.keys import (
    FINGERPRINT_KEYS,
    NO_EFFECT,
    NestedDict,
    absolute,
    hexdigest,
    is_in_groups,
    overlay,
)
from imdbattn.settings.schema import TrainingSettings
from imdbattn.tasks.data_module import BatchData
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.predictor import Predictor
from imdbattn.tasks.task import task_of

log = logging.getLogger(__name__)


def evaluate_run(options: EvaluateSettings) -> NestedDict:
    """Scores a run's best checkpoint, or an exported model, and writes to its evaluations/."""
    return evaluate(options, *load_predictor(options), write=True)


@quiet()
def evaluate(
    options: EvaluateSettings, predictor: Predictor, folder: Path, write: bool
) -> NestedDict:
    """Scores a trained model on a split of its own or of other data, and returns the metrics.

    write: whether to write them into evaluations/ of its folder. Raises UserError for wrong input,
    or if the run's data have changed.
    """
    # From Python, and from an export, the predictor is opened without the settings of this call.
    settings, split = with_changes(predictor.settings, options.data), options.split
    changed = changed_data(options)
    other_data = bool(changed.keys() & {"path", "source", "test_lengths"})
    corpus = predictor.corpus(settings.data, keep_splits=other_data)
    if split not in corpus.splits:
        raise UserError(
            f"the data have no {split} split, only {', '.join(corpus.splits)}: set split or"
            " data.path"
        )
    if other_data and [*corpus.splits] == ["test"] and is_own_source(Run(folder), settings):
        log.warning(
            "%s: the run was trained on a part of these %s, so this is not a test accuracy: omit"
            " data.path and data.source to score its own test split",
            *(corpus.test_set, corpus.items_name),
        )
    omits_pairs = predictor.omits_long and "max_tokens" in changed
    if not other_data and not omits_pairs:
        check_fingerprint(folder, split, corpus)
    precision = options.trainer.precision or settings.trainer.precision
    if precision != settings.trainer.precision:
        changed["precision"] = precision
    trainer = build_trainer(options.trainer.model_copy(update={"precision": precision}))
    task = task_of(settings)
    data = task.class_of("data", BatchData)(settings, corpus)
    module = task.class_of("module", Learner)(predictor.net, predictor.settings, predictor.metadata)
    scores = score_split(trainer, module, data, split)
    check_complete({split: scores}, corpus.splits)
    metrics = (
        run_facts(settings.model.name, settings.seed, corpus)
        | {"split": split, "changed": changed}
        | score_facts("", scores)
    )
    if write and trainer.is_global_zero:
        name = f"{split}-{corpus.fingerprints[split]}"
        if changed:
            name += f"-{hexdigest(changed)}"
        file = folder / "evaluations" / name
        write_json(file.with_suffix(".json"), metrics)
        write_predictions(file.with_suffix(".parquet"), scores, corpus.splits[split].rows)
    return metrics


def changed_data(options: EvaluateSettings) -> NestedDict:
    """Returns the `data` settings of a call that can change the scores."""
    changes = overlay({}, options.data.model_dump())
    return {
        key: value
        for key, value in changes.items()
        if value and not is_in_groups(f"data.{key}", *NO_EFFECT)
    }


def is_own_source(run: Run, settings: TrainingSettings) -> bool:
    """Returns whether the settings name the data of a run, even if its file was moved or edited."""
    source = task_of(settings).find_source(settings.data)
    if source and finished(run.folder) and run.metrics["source_key"].startswith(source.key):
        return True
    path = absolute(getattr(settings.data, "path", None))
    return path is not None and path == run.raw_settings["data"].get("path")


def check_fingerprint(folder: Path, split: str, corpus: Corpus) -> None:
    """Raises UserError if metrics.json has another fingerprint for the split."""
    file = folder / "metrics.json"
    metrics = read_json(file, "delete it to score without it") if file.exists() else {}
    key = FINGERPRINT_KEYS.get(split, "train_fingerprint")
    recorded, current = metrics.get(key), corpus.fingerprints[split]
    if recorded not in (None, current):
        raise UserError(
            f"{split} of {corpus.test_set} has fingerprint {current}, but the run's"
            f" was {recorded}: its data have changed; to score other reviews, set data.path"
        )
