"""Scores a finished run again, or applies it to new texts."""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from imdbattn.errors import UserError
from imdbattn.explain.prediction import Prediction
from imdbattn.export.folder import is_export, read_export
from imdbattn.files import expanded
from imdbattn.run_folder import FINGERPRINT, finished, open_run, results_file, write_json, write_predictions
from imdbattn.runs.trainer import build_trainer, keep_memory, quiet, use_onednn
from imdbattn.settings.keys import PRETRAINING, as_dict, overlay
from imdbattn.settings.safety import read_json
from imdbattn.settings.schema import Evaluate, OfRun, Predict, validate
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.review_predictor import MeanPredictor
from imdbattn.tasks.task import Predictor, task_of

log = logging.getLogger(__name__)

CHUNK = 16384  # texts that are labeled together, where those of similar length share a batch
CHARACTERS = 1 << 25  # number of characters after which a chunk ends, to bound the memory


def run_facts(cfg: Any, corpus: Any) -> dict[str, Any]:
    """The part of metrics.json that identifies model and data."""
    return {
        "model": cfg.model.name,
        "seed": cfg.seed,
        "test_set": corpus.test_set,
        **{key: corpus.fingerprints.get(split) for split, key in FINGERPRINT.items()},
        "source_key": corpus.source_key,
        **corpus.facts,
    }


def score_facts(name: str, scores: Any) -> dict[str, Any]:
    """The scores of a split by their names in metrics.json; of a classifier with those of each class."""
    prefix = f"{name}_" if name else ""
    count = getattr(scores, "answers", len(scores.rows_N))
    details = scores.details() if hasattr(scores, "details") else {}
    return {prefix + key: value for key, value in {**scores.values(), "reviews": count, **details}.items()}


def open_settings(cfg: OfRun) -> tuple[DictConfig, Path]:
    """Settings of the run that `cfg` names, with the `data` settings of `cfg`, and its best checkpoint.

    Raises UserError for wrong input.
    """
    settings, checkpoint = open_run(cfg.run, cfg.trust)
    if model := PRETRAINING.get(settings.task):
        raise UserError(
            f"run={cfg.run} is a run of task={settings.task}, which labels no reviews: train a classifier from it, "
            f"model={model} init={cfg.run}"
        )
    if not (checkpoint.parents[1] / results_file(settings)).exists():
        log.warning("run=%s is not finished: these are the weights of its best epoch so far", cfg.run)
    return with_changes(settings, cfg.data.model_dump()), checkpoint


def with_changes(settings: DictConfig, data: dict[str, Any]) -> DictConfig:
    """A run's settings with the `data` settings of this call. Raises UserError for one that the run does not have."""
    recorded = as_dict(settings)["data"]
    changes = {key: value for key, value in overlay({}, data).items() if value != {}}
    if unknown := changes.keys() - recorded.keys():
        raise UserError(f"data.{min(unknown)} does not apply to this run: omit it")
    if changes.get("path"):
        changes["source"] = "path"
    if "source" in changes and recorded["source"] == "reverse":
        raise UserError(f"data.source={changes['source']} does not apply to this run: omit it")
    if changes.get("glove", {}).get("path"):
        changes["glove"] = changes["glove"] | {"source": "auto"}
    if (lengths := changes.get("test_lengths")) and lengths[0] <= recorded["lengths"][1]:
        raise UserError(
            f"data.test_lengths={lengths} must be above the lengths {recorded['lengths']} that the run was trained on: "
            "choose greater ones, or train with data.test_lengths"
        )
    changed = overlay(as_dict(settings), {"data": changes})
    if "cache_dir" in recorded:
        changed["data"]["cache_dir"] = changes.get("cache_dir")  # never that of the run folder, which may be untrusted
    if "source" in changes:  # replaces the run's own file or dataset, and is read completely
        changed["data"] |= dict.fromkeys({"path", "hub", "limit"} & (recorded.keys() - changes.keys()))
    return validate(changed)


def evaluate(cfg: Evaluate, settings: DictConfig, module: Learner, folder: Path, write: bool) -> dict[str, Any]:
    """Scores a module on a split of its own or of other data, and returns the metrics.

    settings: of the run in `folder`, with the `data` settings of `cfg`. write: also into evaluations/ of the folder.
    Raises UserError for wrong input, or if the run's data have changed.
    """
    task, split = task_of(settings), cfg.split
    changed = {key: value for key, value in overlay({}, cfg.data.model_dump()).items() if value}
    other_data = bool(changed.keys() & {"path", "source", "test_lengths"})
    if "test_lengths" in changed and split != "test":
        raise UserError(f"data.test_lengths applies to split=test, not to split={split}: omit one of them")
    corpus = task.prepare(settings, module, uncut=other_data)
    if split not in corpus.splits:
        raise UserError(f"split={split} does not exist: choose one of {', '.join(corpus.splits)}")
    selects_pairs = settings.task == "seq2seq" and "max_tokens" in changed  # longer pairs are omitted
    if not other_data and not selects_pairs:
        check_fingerprint(folder, split, corpus)
    if (precision := cfg.trainer.precision or settings.trainer.precision) != settings.trainer.precision:
        changed["precision"] = precision
    trainer = build_trainer(cfg.trainer.model_dump(exclude_unset=True) | {"precision": precision})
    data = task.loaders(settings, corpus, split)
    trainer.test(module, data, verbose=False)
    metrics = run_facts(settings, corpus) | {"split": split, "changed": changed} | score_facts("", module.scores)
    if write and trainer.is_global_zero:
        name = f"{split}-{corpus.fingerprints[split]}"
        if changed:
            name += "-" + hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:8]
        write_json(folder / "evaluations" / f"{name}.json", metrics)
        write_predictions(folder / "evaluations" / f"{name}.parquet", module.scores, corpus.splits[split].rows)
    return metrics


def score_run(cfg: Evaluate) -> dict[str, Any]:
    """`evaluate` for the best checkpoint of a finished run, or for an exported model."""
    quiet()
    if cfg.run and is_export(cfg.run):
        predictor, folder = read_export(cfg.run, cfg.trust), expanded(cfg.run)
        settings, module = with_changes(predictor.cfg, cfg.data.model_dump()), predictor.module
    else:
        settings, checkpoint = open_settings(cfg)
        folder, module = checkpoint.parents[1], task_of(settings).load(settings, checkpoint)
    return evaluate(cfg, settings, module, folder, write=True)


def check_fingerprint(folder: Path, split: str, corpus: Any) -> None:
    """Raises UserError unless a split is the one that metrics.json, if it exists, was written for."""
    file = folder / "metrics.json"
    metrics = read_json(file, "delete it to score without it") if file.exists() else {}
    recorded, current = metrics.get(FINGERPRINT.get(split, "")), corpus.fingerprints[split]
    if recorded not in (None, current):
        raise UserError(
            f"{split} of {corpus.test_set} has fingerprint {current}, but the run was scored on {recorded}: its data "
            "have changed; data.path=... scores other reviews"
        )


def load_predictor(cfg: OfRun) -> tuple[Any, Path]:
    """The best model of the run or of the export that `cfg` names, for new texts, and its folder. Raises UserError."""
    quiet()
    use_onednn()  # as in training, for identical results
    keep_memory()
    if isinstance(cfg.run, list):
        return mean_predictor(cfg, runs_in(cfg.run)), Path()
    if cfg.run and is_export(cfg.run):
        return read_export(cfg.run, cfg.trust), expanded(cfg.run)
    settings, checkpoint = open_settings(cfg)
    if (predictor := task_of(settings).predictor(settings, checkpoint)) is None:
        raise UserError(f"run={cfg.run} is a run of task={settings.task}, which cannot be applied to new texts")
    return predictor, checkpoint.parents[1]


def mean_predictor(cfg: OfRun, runs: Sequence[str]) -> MeanPredictor:
    """The mean of several classifiers. Raises UserError unless they have the same classes."""
    members: list[Any] = []
    for run in runs:
        member, _ = load_predictor(cfg.model_copy(update={"run": run}))
        members.append(member)
        labels, first = (one.module.hparams["labels"] for one in (member, members[0]))
        if labels != first:
            raise UserError(f"run={run} has the classes {', '.join(labels)}, not {', '.join(first)}: give other runs")
    log.info("mean of %d runs: %s", len(members), ", ".join(runs))
    return MeanPredictor(members)


def runs_in(places: Sequence[str]) -> list[str]:
    """The runs among `places`, and the finished runs in those that are folders of runs; not links such as latest."""
    found = []
    for place in places:
        inner = [str(run) for run in sorted(expanded(place).glob("*")) if finished(run) and not run.is_symlink()]
        found += inner or [place]
    return found


def predict(predictor: Predictor, texts: Iterable[str], options: Predict) -> Iterator[Prediction]:
    """A prediction for each text, in order; `texts` may be an endless stream."""
    for first, chunk in chunked(texts, predictor):
        yield from predictor.predict(chunk, options, first)


def predict_columns(predictor: Predictor, texts: Iterable[str], options: Predict) -> Iterator[dict[str, list[Any]]]:
    """The same as chunks of a table with `row`, the number of the text from 0, and `text`."""
    for first, chunk in chunked(texts, predictor, CHUNK):
        rows = [*range(first, first + len(chunk))]
        yield {"row": rows, "text": chunk, **predictor.columns(chunk, options, first)}


def chunked(texts: Iterable[str], predictor: Predictor, size: int = 1) -> Iterator[tuple[int, list[str]]]:
    """Texts in chunks, with the number of the first. Logs the predictor's warnings at the end.

    Chunks double in length, from `size`: the first result is available at once, and later texts form large batches.
    """
    chunk, characters, first = list[str](), 0, 0
    for text in texts:
        chunk.append(text)
        characters += len(text)
        if len(chunk) == size or characters > CHARACTERS:
            yield first, chunk
            first, size, characters = first + len(chunk), min(2 * size, CHUNK), 0
            chunk = []
    if chunk:
        yield first, chunk
    for line in predictor.warnings():
        log.warning(line)
