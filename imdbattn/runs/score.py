"""Scores a finished run again, or labels new texts with it."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from imdbattn.data import pairs
from imdbattn.data.corpus import load_vectors, prepare
from imdbattn.data.tokens import Tokenizer
from imdbattn.errors import UserError
from imdbattn.explain.reading import Reading
from imdbattn.explain.show import DETAILED
from imdbattn.run_folder import FINGERPRINT, open_run, write_json, write_predictions
from imdbattn.runs.trainer import build_trainer, keep_memory, quiet, use_onednn
from imdbattn.settings.keys import overlay
from imdbattn.settings.safety import read_json, visible
from imdbattn.settings.schema import validate
from imdbattn.tasks.build import build_data, build_pair_data, trained_module, trained_writer
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.loaders import BatchData
from imdbattn.tasks.reader import Reader
from imdbattn.tasks.seq2seq import Writer

log = logging.getLogger(__name__)


def run_facts(cfg: Mapping[str, Any], corpus: Any) -> dict[str, Any]:
    """The part of metrics.json that identifies model and data."""
    return {
        "model": cfg["model"]["name"],
        "seed": cfg["seed"],
        "test_set": corpus.test_set,
        **{key: corpus.fingerprints.get(split) for split, key in FINGERPRINT.items()},
        "source_key": corpus.source_key,
        **corpus.facts,
    }


def score_facts(name: str, scores: Any) -> dict[str, Any]:
    """The scores of a split by their names in metrics.json."""
    prefix = f"{name}_" if name else ""
    count = getattr(scores, "answers", len(scores.rows_N))
    return {prefix + key: value for key, value in {**scores.values(), "reviews": count}.items()}


def open_settings(cfg: Mapping[str, Any]) -> tuple[dict[str, Any], Path]:
    """Settings of the run that `cfg` names, with the `data` settings of `cfg`, and its best checkpoint.

    Raises UserError for wrong input, and for a run that predicts nothing about reviews or pairs.
    """
    settings, checkpoint = open_run(cfg["run"], cfg.get("trust"))
    if settings.get("task") == "masked_words":
        raise UserError(
            f"run={cfg['run']} is a run of task=masked_words, which labels no reviews: train a classifier that starts "
            f"from it, model=pretrained init={cfg['run']}"
        )
    return with_changes(settings, cfg["data"]), checkpoint


def with_changes(settings: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings with the `data` settings of this call. Raises UserError for one that the run does not have."""
    theirs = settings["data"]
    changes = {key: value for key, value in overlay({}, dict(data)).items() if value != {}}
    if strange := changes.keys() - theirs.keys():
        raise UserError(f"data.{min(strange)} has no meaning for this run: omit it")
    if changes.get("path"):
        changes["source"] = "path"
    if "source" in changes and (changes["source"] == "reverse") != (theirs["source"] == "reverse"):
        raise UserError(f"data.source={changes['source']} has no meaning for this run: omit it")
    if changes.get("glove", {}).get("path"):
        changes["glove"] = changes["glove"] | {"source": "auto"}
    if lengths := changes.get("test_lengths"):
        longest = theirs["lengths"][1]
        if isinstance(lengths, list) and lengths and type(lengths[0]) is int and 0 < lengths[0] <= longest:
            raise UserError(
                f"data.test_lengths={lengths} are among the lengths {theirs['lengths']} that the run was trained on, "
                f"and so may the strings be: choose lengths above {longest}, or train with data.test_lengths"
            )
    changed = overlay(dict(settings), {"data": changes})
    changed["data"]["cache_dir"] = changes.get("cache_dir")  # never the one that a foreign run folder names
    if "source" in changes:  # replaces the run's own file or dataset, and is read completely
        changed["data"] |= dict.fromkeys({"path", "hub", "limit"} & (theirs.keys() - changes.keys()))
    return validate(changed).model_dump()


def data_to_score(
    settings: dict[str, Any], checkpoint: Path, other_data: bool
) -> tuple[Any, Callable[..., BatchData], Learner]:
    """The corpus to score, the function that makes its data module, and the run's model.

    other_data: the data are not the run's own; a single file is then one test set. Raises UserError.
    """
    if settings.get("task") == "seq2seq":
        writer = trained_writer(settings, checkpoint)
        return pairs.prepare(settings["data"], writer.vocabularies(), uncut=other_data), build_pair_data, writer
    module = trained_module(settings, checkpoint, load_vectors(settings["data"]))
    labels = module.hparams["labels"]
    if other_data:
        settings["data"]["label_names"] = labels
    corpus = prepare(settings["data"], uncut=other_data)
    if corpus.label_names != labels:
        raise UserError(f"the run has the labels {', '.join(labels)}, the data has {', '.join(corpus.label_names)}")
    return corpus, build_data, module


def score_run(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Scores a finished run's best checkpoint on a split of its own or of other data.

    cfg: conf/evaluate.yaml. Writes the result into evaluations/ of the run folder, and returns it. Raises UserError for
    wrong input, or if the run's own data are no longer those it was scored on.
    """
    quiet()
    settings, checkpoint = open_settings(cfg)
    folder, split = checkpoint.parents[1], cfg["split"]
    other_data = any(cfg["data"].get(name) for name in ("path", "source", "test_lengths"))
    corpus, make_data, module = data_to_score(settings, checkpoint, other_data)
    if split not in corpus.splits:
        raise UserError(f"split={split} does not exist: choose one of {', '.join(corpus.splits)}")
    selects_pairs = settings.get("task") == "seq2seq" and cfg["data"].get("max_tokens")  # long pairs are left out
    if not other_data and not selects_pairs:
        check_fingerprint(folder, split, corpus)
    precision = cfg["trainer"]["precision"] or settings["trainer"]["precision"]
    trainer = build_trainer(cfg["trainer"] | {"precision": precision})
    trainer.test(module, make_data(settings, corpus, split), verbose=False)
    changed = {key: value for key, value in overlay({}, cfg["data"]).items() if value}
    metrics = run_facts(settings, corpus) | {"split": split, "changed": changed} | score_facts("", module.scores)
    if trainer.is_global_zero:
        name = f"{split}-{corpus.fingerprints[split]}"
        if changed:
            name += "-" + hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:8]
        write_json(folder / "evaluations" / f"{name}.json", metrics)
        write_predictions(folder / "evaluations" / f"{name}.parquet", module.scores, corpus.splits[split].rows)
    return metrics


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


def load_reader(cfg: Mapping[str, Any]) -> tuple[Reader | Writer, Path]:
    """The best model of the run that `cfg` names, and its folder. cfg: `run` and `data` as in conf/predict.yaml.

    Raises UserError if the run does not exist or cannot be loaded.
    """
    quiet()
    use_onednn()  # as in training, for the same bits
    keep_memory()
    settings, checkpoint = open_settings(cfg)
    folder = checkpoint.parents[1]
    if settings.get("task") == "seq2seq":
        return Writer(settings, trained_writer(settings, checkpoint)), folder
    glove = load_vectors(settings["data"])
    module = trained_module(settings, checkpoint, glove)
    return Reader(settings, module, Tokenizer(settings["data"]["tokenizer"], glove.words)), folder


def label_texts(cfg: Mapping[str, Any], texts: Iterable[str]) -> tuple[list[Any], Path]:
    """Predictions of a finished run for `texts`, and its folder. cfg: conf/predict.yaml. Raises UserError."""
    reader, folder = load_reader(cfg)
    return list(label_each(reader, cfg, texts)), folder


def label_each(reader: Reader | Writer, cfg: Mapping[str, Any], texts: Iterable[str]) -> Iterator[Reading]:
    """A prediction for each text, in order; `texts` may be an endless stream. cfg: conf/predict.yaml."""
    done = empty = unknown = 0
    symbols: dict[str, None] = {}  # the first ten unknown ones
    for chunk in chunks(texts):
        if isinstance(reader, Writer):
            for decoded in reader.write(chunk, cfg["beams"], cfg["length_penalty"], done + 1, cfg["explain"]):
                unknown += len(decoded.unknown)
                if len(symbols) < 10:
                    symbols |= dict.fromkeys(decoded.unknown)
                yield decoded
        elif cfg["explain"]:
            yield from (reader.explain(text, whole=number < DETAILED) for number, text in enumerate(chunk, done))
        else:
            yield from reader.label(chunk)
        done += len(chunk)
        empty += sum(not text.strip() for text in chunk)
    if unknown:
        examples = visible(", ".join(list(symbols)[:10]))
        log.warning("%d symbols are not in the vocabulary and are read as <unk>: %s", unknown, examples)
    if empty:
        log.warning("%d of %d reviews have no words; they are labelled anyway", empty, done)


def chunks(texts: Iterable[str], most: int = 4096) -> Iterator[list[str]]:
    """Lists of texts that double in length: the first result is available at once, and later texts batch well."""
    texts, size = iter(texts), 1
    while chunk := list(islice(texts, size)):
        yield chunk
        size = min(2 * size, most)
