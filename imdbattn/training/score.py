"""What finished runs say: of a split again, or of new reviews."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imdbattn.analysis.explain import WHOLE, Explanation
from imdbattn.analysis.runs import FINGERPRINT
from imdbattn.data.glove import Glove
from imdbattn.data.prepare import load_vectors, prepare
from imdbattn.data.tokenization import Tokenizer
from imdbattn.errors import UserError
from imdbattn.settings import checked, flat, overlay
from imdbattn.training.build import build_data, build_trainer, trained_module
from imdbattn.training.cpu import use_onednn
from imdbattn.training.fit import quiet, run_facts, score_facts
from imdbattn.training.module import ReviewClassifier
from imdbattn.training.reader import Reader
from imdbattn.training.run_folder import open_run, write_json, write_predictions

log = logging.getLogger(__name__)

NEEDED = (  # of a run's settings
    "seed",
    "model.name",
    "model.embedding.standardize",
    "data.source",
    "data.tokenizer",
    "data.max_tokens",
    "data.glove.source",
    "optim._target_",
    "trainer.precision",
)


def with_changes(settings: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings with the `data` settings of this call; other reviews or vectors come from where they are now."""
    changes = dict(data)
    if changes.get("path"):
        changes["source"] = "path"
    if changes["glove"]["path"]:
        changes["glove"] = changes["glove"] | {"source": "auto"}
    return checked(overlay(dict(settings), {"data": changes}))


def open_model(cfg: Mapping[str, Any]) -> tuple[dict[str, Any], ReviewClassifier, Glove, Path]:
    """Settings, best model, vectors and folder of the run that `cfg` names. Raises UserError for a broken run."""
    theirs, checkpoint = open_run(cfg["run"])
    folder = checkpoint.parents[1]
    if lacking := [key for key in NEEDED if key not in flat(theirs)]:
        raise UserError(f"{folder / 'config.yaml'} lacks {lacking[0]}: copy the run folder again, or train again")
    settings = with_changes(theirs, cfg["data"])
    glove = load_vectors(settings["data"])
    return settings, trained_module(settings, checkpoint, glove), glove, folder


def recorded_fingerprint(folder: Path, split: str) -> str | None:
    """The fingerprint of the reviews that a run was scored on, where it says so. Raises UserError for a broken file."""
    file = folder / "metrics.json"
    try:
        return json.loads(file.read_text()).get(FINGERPRINT.get(split, "")) if file.exists() else None
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{file} cannot be read ({error}): delete it to score without it") from error


def score_run(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Scores a finished run's best checkpoint on a split of its own or of other data; writes the result beside it.

    cfg: conf/evaluate.yaml. Returns what is written. Raises UserError for wrong input, or when the run's own data are
    no longer those it was trained and scored on.
    """
    quiet()
    settings, module, _, folder = open_model(cfg)
    elsewhere = bool(cfg["data"]["path"] or cfg["data"]["source"])
    labels = module.hparams["labels"]
    if elsewhere:
        settings["data"]["label_names"] = labels
    corpus = prepare(settings["data"], uncut=elsewhere)
    if corpus.label_names != labels:
        raise UserError(f"the run knows the labels {', '.join(labels)}, the data has {', '.join(corpus.label_names)}")
    split = cfg["split"]
    if split not in corpus.splits:
        raise UserError(f"split={split} is not there; choose one of {', '.join(corpus.splits)}")
    recorded = None if elsewhere else recorded_fingerprint(folder, split)
    if recorded not in (None, corpus.fingerprints[split]):
        raise UserError(
            f"{split} of {corpus.test_set} has fingerprint {corpus.fingerprints[split]}, but the run was scored on "
            f"{recorded}: its data have changed; data.path=... scores other reviews"
        )
    trainer = cfg["trainer"] | {"precision": cfg["trainer"]["precision"] or settings["trainer"]["precision"]}
    runner = build_trainer(trainer)
    runner.test(module, build_data(settings, corpus, split), verbose=False)
    changed = {key: value for key, value in overlay({}, cfg["data"]).items() if value}
    metrics = run_facts(settings, corpus) | {"split": split, "changed": changed} | score_facts("", module.scores)
    if runner.is_global_zero:
        name = f"{split}-{corpus.fingerprints[split]}"
        if changed:
            name += "-" + hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:8]
        write_json(folder / "evaluations" / f"{name}.json", metrics)
        write_predictions(folder / "evaluations" / f"{name}.parquet", module.scores, corpus.splits[split].rows)
    return metrics


def load_reader(cfg: Mapping[str, Any]) -> tuple[Reader, Path]:
    """The best model of the run that `cfg` names, and its folder; cfg: `run` and `data` as in conf/predict.yaml.

    Raises UserError when the run is not there or does not load.
    """
    quiet()
    use_onednn()  # as in training, to the last bit
    settings, module, glove, folder = open_model(cfg)
    return Reader(settings, module, Tokenizer(settings["data"]["tokenizer"], glove.words)), folder


def label_texts(cfg: Mapping[str, Any], texts: Sequence[str], at_once: int = 64) -> tuple[list[Explanation], Path]:
    """Labels texts with a finished run; with `explain` also says which words were attended to.

    cfg: conf/predict.yaml. Returns what was found of each text, and the run folder. Raises UserError for wrong input.
    """
    reader, folder = load_reader(cfg)
    if empty := sum(not text.strip() for text in texts):
        log.warning("%d of %d reviews have no words; they are labelled all the same", empty, len(texts))
    if cfg["explain"]:
        return [reader.explain(text, whole=number < WHOLE) for number, text in enumerate(texts)], folder
    parts = (texts[start : start + at_once] for start in range(0, len(texts), at_once))
    return [found for some in parts for found in reader.label(some)], folder
