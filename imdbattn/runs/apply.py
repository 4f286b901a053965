"""Opens a finished run, and applies its model to new texts. Does not import Lightning."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from imdbattn.errors import UserError
from imdbattn.exports.folder import read_export
from imdbattn.folders.run import Run
from imdbattn.folders.run_folder import results_file
from imdbattn.io.files import with_home
from imdbattn.runs.environment import speed_up_cpu
from imdbattn.settings.command_settings import (
    ExploreSettings,
    FaithfulnessSettings,
    LocalDataSettings,
    PredictSettings,
    RunCommandSettings,
)
from imdbattn.settings.keys import overlay
from imdbattn.settings.schema import TrainingSettings, validate_as
from imdbattn.tasks.prediction import Prediction
from imdbattn.tasks.predictor import Predictor
from imdbattn.tasks.task import settings_of, task_of
from imdbattn.tasks.weights import predictor_of

log = logging.getLogger(__name__)

CHUNK_TEXTS = 16384  # texts that are labeled together; texts of similar length share a batch
CHUNK_CHARACTERS = 1 << 25  # number of characters after which a chunk ends, to bound the memory
TABLE_ROWS = 1024  # rows of a table that are written together


def open_settings(options: RunCommandSettings) -> tuple[TrainingSettings, Path]:
    """Returns the settings of `options.run`, changed by `options.data`, and its best checkpoint.

    Raises UserError for wrong input.
    """
    run = Run(options.run, options.trust)
    checkpoint, settings = run.existing_checkpoint, settings_of(run)
    task = task_of(settings)
    if task.next_model:
        raise UserError(
            f"run={options.run} is a run of task={task.name}: train a classifier with the same"
            f" encoder from it, init={options.run}"
        )
    if not (run.folder / results_file(settings)).exists():
        log.warning(
            "run=%s is not finished: these are the weights of its best epoch so far", options.run
        )
    return with_changes(settings, options.data), checkpoint


def with_changes(settings: TrainingSettings, data: LocalDataSettings) -> TrainingSettings:
    """Returns a run's settings with the `data` settings of this call, and with the sources that its
    paths imply. Raises UserError for a setting that the run does not have.
    """
    recorded = settings.data.dump()
    changes = {key: value for key, value in overlay({}, data.model_dump()).items() if value != {}}
    if "path" in changes:
        changes["source"] = "path"
    if "path" in changes.get("vectors", {}):
        changes["vectors"]["source"] = "auto"
    lengths, trained = changes.get("test_lengths"), recorded.get("lengths")
    if lengths and trained and lengths[0] <= trained[1]:
        raise UserError(
            f"data.test_lengths={lengths} must be above the lengths of training, {trained}"
        )
    unused = set[str]()
    if "cache_dir" in recorded:  # that of the run folder, which may be untrusted, is never used
        unused.add("cache_dir")
    if "source" in changes:  # it replaces the run's data, and is read completely
        unused |= recorded.keys() & {"path", "hub", "hub_config", "hub_splits", "limit"}
    values = overlay(recorded | dict.fromkeys(unused), changes)
    return settings.model_copy(update={"data": validate_as(type(settings.data), values, "data")})


def load_predictor(options: RunCommandSettings) -> tuple[Any, Path]:
    """Returns the best model of the run or of the export `options.run`, for new texts, and its
    folder. Raises UserError.
    """
    speed_up_cpu()  # training does it too; results are then identical
    if isinstance(options.run, list):
        return mean_predictor(options), Path()
    if Run(options.run).kind == "export":
        return read_export(options.run, options.trust), with_home(options.run)
    settings, checkpoint = open_settings(options)
    return predictor_of(settings, checkpoint), checkpoint.parents[1]


def predictor_of_run(folder: Path, options: ExploreSettings | FaithfulnessSettings) -> Any:
    """Returns the best model of one of the runs of a command. Raises UserError."""
    of_run = RunCommandSettings(run=str(folder), trust=options.trust, data=options.data)
    return load_predictor(of_run)[0]


def mean_predictor(options: RunCommandSettings) -> Predictor:
    """Returns the mean of the classifiers in `options.run`, and of the finished runs at any depth
    in folders among them, without pretrainings. Each model counts once, also if its export or a
    copy is among them.
    """
    by_weights: dict[object, tuple[str, Predictor]] = {}
    for path in options.run:
        runs = [str(file.parent) for file in sorted(with_home(path).rglob("metrics.json"))]
        pretrainings = [run for run in runs if Run(run).metrics.get("next_model")]
        if pretrainings:
            log.info("omitted pretraining: %s", ", ".join(pretrainings))
        # A pretraining, if there is nothing else, is refused with what to do with it.
        for run in [run for run in runs if run not in pretrainings] or pretrainings or [path]:
            member, _ = load_predictor(options.model_copy(update={"run": run}))
            # Integers number the words, of which an export may have fewer.
            weights = [w for w in member.net.state_dict().values() if w.is_floating_point()]
            key = tuple(weight.numpy().tobytes() for weight in weights)
            by_weights.setdefault(key, (run, member))
    members = dict(by_weights.values())
    mean = next(iter(members.values())).mean_of(members)
    log.info("mean of %d runs: %s", len(members), ", ".join(members))
    return mean


def predictions_of(
    predictor: Predictor, texts: Iterable[str], options: PredictSettings, size: int = 1
) -> Iterator[Prediction]:
    """Yields a prediction for each text, in order; `texts` may be an endless stream. At the end,
    logs what could not be read.

    size: the length of the first chunk, see `chunked`.
    """
    total = 0
    unread: Counter[str] = Counter()
    for chunk in chunked(texts, size):
        for prediction in predictor.predict(chunk, options, total):
            unread.update(prediction.unread)
            yield prediction
        total += len(chunk)
    if unread:
        log.warning(predictor.warning(total, unread))


def predict_columns(
    predictor: Predictor, texts: Iterable[str], options: PredictSettings
) -> Iterator[dict[str, list[object]]]:
    """Yields the predictions as parts of a table with `text` and `row`, the number of the text."""
    predictions, first = predictions_of(predictor, texts, options, CHUNK_TEXTS), 0
    while part := list(islice(predictions, TABLE_ROWS)):
        table: dict[str, list[object]] = {"row": [*range(first, first + len(part))]}
        for prediction in part:
            for name, value in {"text": prediction.text, **prediction.columns()}.items():
                table.setdefault(name, []).append(value)
        yield table
        first += len(part)


def chunked(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yields texts in chunks.

    Chunks double in length, from `size`: the first result is available at once, and later texts
    form large batches.
    """
    chunk, characters = list[str](), 0
    for text in texts:
        chunk.append(text)
        characters += len(text)
        if len(chunk) == size or characters > CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
            size = min(2 * size, CHUNK_TEXTS)
    if chunk:
        yield chunk
