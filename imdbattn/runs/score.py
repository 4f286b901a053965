"""What finished runs say: of a split again, or of new reviews."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from imdbattn.comparison.runs import FINGERPRINT
from imdbattn.data import pairs
from imdbattn.data.corpus import load_vectors, prepare
from imdbattn.data.tokens import Tokenizer
from imdbattn.errors import UserError
from imdbattn.explain.alignment import Decoded
from imdbattn.explain.show import WHOLE, Explanation
from imdbattn.run_folder import open_run, write_json, write_predictions
from imdbattn.runs.cpu import keep_memory, use_onednn
from imdbattn.runs.fit import quiet, run_facts, score_facts
from imdbattn.settings.keys import flat, overlay
from imdbattn.settings.safety import read_json, visible
from imdbattn.settings.schema import validate
from imdbattn.tasks.build import build_data, build_pair_data, build_trainer, trained_module, trained_writer
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.loaders import BatchData
from imdbattn.tasks.reader import Reader
from imdbattn.tasks.seq2seq import Writer

log = logging.getLogger(__name__)

NEEDED = (  # of a run's settings
    "seed",
    "model.name",
    "data.source",
    "data.eval_batch_tokens",
    "optim._target_",
    "trainer.precision",
)
NEEDED_OF_TASK = {
    "reviews": ("model.embedding.standardize", "data.tokenizer", "data.max_tokens", "data.glove.source"),
    "seq2seq": ("model.hidden", "data.batch_tokens"),
}


def with_changes(settings: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings with the `data` settings of this call; other data or vectors come from where they are now.

    Raises UserError for one that means nothing to this run.
    """
    changes = {key: value for key, value in overlay({}, dict(data)).items() if value != {}}
    if strange := changes.keys() - settings["data"].keys():
        raise UserError(f"data.{min(strange)} means nothing to this run: leave it away")
    if changes.get("path"):
        changes["source"] = "path"
    if "source" in changes and (changes["source"] == "reverse") != (settings["data"]["source"] == "reverse"):
        raise UserError(f"data.source={changes['source']} means nothing to this run: leave it away")
    if changes.get("glove", {}).get("path"):
        changes["glove"] = changes["glove"] | {"source": "auto"}
    if lengths := changes.get("test_lengths"):
        trained = settings["data"]["lengths"]
        if isinstance(lengths, list) and lengths and type(lengths[0]) is int and 0 < lengths[0] <= trained[1]:
            raise UserError(
                f"data.test_lengths={lengths} are among the lengths {trained} that the run was trained on, and so may "
                f"the strings be: choose lengths above {trained[1]}, or train with data.test_lengths"
            )
    changed = overlay(dict(settings), {"data": changes})
    changed["data"] |= {"cache_dir": changes.get("cache_dir")}  # never that of a run folder from elsewhere
    if "source" in changes:  # instead of the run's own file or dataset, and as a whole
        dropped = {"path", "hub", "limit"} & (changed["data"].keys() - changes.keys())
        changed["data"] |= dict.fromkeys(dropped)
    return validate(changed, extra="allow").model_dump()


def open_settings(cfg: Mapping[str, Any]) -> tuple[dict[str, Any], Path]:
    """Settings of the run that `cfg` names, changed by this call's, and its best checkpoint. Raises UserError."""
    theirs, checkpoint = open_run(cfg["run"], cfg.get("trust"))
    task, file, keys = theirs.get("task", "reviews"), checkpoint.parents[1] / "config.yaml", flat(theirs)
    if task == "masked_words":
        raise UserError(
            f"run={cfg['run']} is a run of task=masked_words, which labels no reviews: train a classifier that starts "
            f"from it, model=pretrained init={cfg['run']}"
        )
    if task not in NEEDED_OF_TASK:
        raise UserError(f"{file} has task={task}, which is none of {', '.join(NEEDED_OF_TASK)}: train again")
    needed = [*NEEDED, *NEEDED_OF_TASK[task]]
    if task == "seq2seq":
        needed.append("data.letters" if keys.get("data.source") == "reverse" else "data.languages")
    if lacking := [key for key in needed if key not in keys]:
        raise UserError(f"{file} lacks {lacking[0]}: copy the run folder again, or train again")
    return with_changes(theirs, cfg["data"]), checkpoint


def data_to_score(
    settings: dict[str, Any], checkpoint: Path, elsewhere: bool
) -> tuple[Any, Callable[..., BatchData], Learner]:
    """The corpus to score, what makes batches of it, and the run's model.

    elsewhere: the data are not the run's own; one file is a test set as a whole then. Raises UserError.
    """
    if settings.get("task") == "seq2seq":
        writer = trained_writer(settings, checkpoint)
        return pairs.prepare(settings["data"], writer.vocabularies(), uncut=elsewhere), build_pair_data, writer
    module = trained_module(settings, checkpoint, load_vectors(settings["data"]))
    labels = module.hparams["labels"]
    if elsewhere:
        settings["data"]["label_names"] = labels
    corpus = prepare(settings["data"], uncut=elsewhere)
    if corpus.label_names != labels:
        raise UserError(f"the run knows the labels {', '.join(labels)}, the data has {', '.join(corpus.label_names)}")
    return corpus, build_data, module


def recorded_fingerprint(folder: Path, split: str) -> str | None:
    """The fingerprint of the reviews that a run was scored on, where it says so. Raises UserError for a broken file."""
    file = folder / "metrics.json"
    found = read_json(file, "delete it to score without it") if file.exists() else {}
    return found.get(FINGERPRINT.get(split, ""))


def score_run(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Scores a finished run's best checkpoint on a split of its own or of other data; writes the result beside it.

    cfg: conf/evaluate.yaml. Returns what is written. Raises UserError for wrong input, or when the run's own data are
    no longer those it was trained and scored on.
    """
    quiet()
    settings, checkpoint = open_settings(cfg)
    folder = checkpoint.parents[1]
    elsewhere = any(cfg["data"].get(name) for name in ("path", "source", "test_lengths"))
    corpus, batches, module = data_to_score(settings, checkpoint, elsewhere)
    split = cfg["split"]
    if split not in corpus.splits:
        raise UserError(f"split={split} is not there; choose one of {', '.join(corpus.splits)}")
    shortened = settings.get("task") == "seq2seq" and cfg["data"].get("max_tokens")  # which leaves out other pairs
    recorded = None if elsewhere or shortened else recorded_fingerprint(folder, split)
    if recorded not in (None, corpus.fingerprints[split]):
        raise UserError(
            f"{split} of {corpus.test_set} has fingerprint {corpus.fingerprints[split]}, but the run was scored on "
            f"{recorded}: its data have changed; data.path=... scores other reviews"
        )
    trainer = cfg["trainer"] | {"precision": cfg["trainer"]["precision"] or settings["trainer"]["precision"]}
    runner = build_trainer(trainer)
    runner.test(module, batches(settings, corpus, split), verbose=False)
    changed = {key: value for key, value in overlay({}, cfg["data"]).items() if value}
    metrics = run_facts(settings, corpus) | {"split": split, "changed": changed} | score_facts("", module.scores)
    if runner.is_global_zero:
        name = f"{split}-{corpus.fingerprints[split]}"
        if changed:
            name += "-" + hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:8]
        write_json(folder / "evaluations" / f"{name}.json", metrics)
        write_predictions(folder / "evaluations" / f"{name}.parquet", module.scores, corpus.splits[split].rows)
    return metrics


def load_reader(cfg: Mapping[str, Any]) -> tuple[Reader | Writer, Path]:
    """The best model of the run that `cfg` names, and its folder; cfg: `run` and `data` as in conf/predict.yaml.

    Raises UserError when the run is not there or does not load.
    """
    quiet()
    use_onednn()  # as in training, to the last bit
    keep_memory()
    settings, checkpoint = open_settings(cfg)
    folder = checkpoint.parents[1]
    if settings.get("task") == "seq2seq":
        return Writer(settings, trained_writer(settings, checkpoint)), folder
    glove = load_vectors(settings["data"])
    module = trained_module(settings, checkpoint, glove)
    return Reader(settings, module, Tokenizer(settings["data"]["tokenizer"], glove.words)), folder


def label_texts(cfg: Mapping[str, Any], texts: Iterable[str]) -> tuple[list[Any], Path]:
    """Labels texts with a finished run, or writes for them; with `explain` also says what was attended to.

    cfg: conf/predict.yaml. Returns what was found of each text, and the run folder. Raises UserError for wrong input.
    """
    reader, folder = load_reader(cfg)
    return list(label_each(reader, cfg, texts)), folder


def label_each(
    reader: Reader | Writer, cfg: Mapping[str, Any], texts: Iterable[str]
) -> Iterator[Explanation | Decoded]:
    """What is found of each text, in order; `texts` may be a stream without end. cfg: conf/predict.yaml."""
    done = empty = unknown = 0
    symbols: dict[str, None] = {}
    for chunk in chunks(texts):
        if isinstance(reader, Writer):
            for written in reader.write(chunk, cfg["beams"], cfg["length_penalty"], done + 1, cfg["explain"]):
                unknown += len(written.unknown)
                if len(symbols) < 10:
                    symbols |= dict.fromkeys(written.unknown)
                yield written
        elif cfg["explain"]:
            yield from (reader.explain(text, whole=number < WHOLE) for number, text in enumerate(chunk, done))
        else:
            yield from reader.label(chunk)
        done += len(chunk)
        empty += sum(not text.strip() for text in chunk)
    if unknown:
        shown = visible(", ".join(list(symbols)[:10]))
        log.warning("%d symbols are not in the vocabulary and are read as <unk>: %s", unknown, shown)
    if empty:
        log.warning("%d of %d reviews have no words; they are labelled all the same", empty, done)


def chunks(texts: Iterable[str], most: int = 4096) -> Iterator[list[str]]:
    """Lists of texts, in order, that double in length: the first result comes at once, and later texts batch well."""
    texts, size = iter(texts), 1
    while chunk := list(islice(texts, size)):
        yield chunk
        size = min(2 * size, most)
