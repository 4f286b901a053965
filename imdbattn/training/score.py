"""What finished runs say: of a split again, or of new reviews."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imdbattn.analysis.explain import WHOLE, Explanation
from imdbattn.analysis.runs import FINGERPRINT
from imdbattn.data.prepare import load_vectors, prepare
from imdbattn.data.tokenization import Tokenizer
from imdbattn.errors import UserError
from imdbattn.settings import checked, overlay
from imdbattn.training.build import build_data, build_trainer, trained_module
from imdbattn.training.cpu import use_onednn
from imdbattn.training.fit import quiet, run_facts, score_facts
from imdbattn.training.reader import Reader
from imdbattn.training.run_folder import open_run, write_json, write_predictions


def with_changes(settings: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings with the `data` settings of this call; other reviews or vectors come from where they are now."""
    changes = dict(data)
    if changes.get("path"):
        changes["source"] = "path"
    if changes["glove"]["path"]:
        changes["glove"] = changes["glove"] | {"source": "auto"}
    return checked(overlay(dict(settings), {"data": changes}))


def score_run(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Scores a finished run's best checkpoint on a split of its own or of other data; writes the result beside it.

    cfg: conf/evaluate.yaml. Returns what is written. Raises UserError for wrong input, or when the run's own data are
    no longer those it was trained and scored on.
    """
    quiet()
    theirs, checkpoint = open_run(cfg["run"])
    settings = with_changes(theirs, cfg["data"])
    elsewhere = bool(cfg["data"]["path"] or cfg["data"]["source"])
    module = trained_module(settings, checkpoint, load_vectors(settings["data"]))
    labels = module.hparams["labels"]
    if elsewhere:
        settings["data"]["label_names"] = labels
    corpus = prepare(settings["data"], uncut=elsewhere)
    if corpus.label_names != labels:
        raise UserError(f"the run knows the labels {', '.join(labels)}, the data has {', '.join(corpus.label_names)}")
    split = cfg["split"]
    if split not in corpus.splits:
        raise UserError(f"split={split} is not there; choose one of {', '.join(corpus.splits)}")
    folder = checkpoint.parents[1]
    if not elsewhere and (folder / "metrics.json").exists():
        recorded = json.loads((folder / "metrics.json").read_text()).get(FINGERPRINT.get(split, ""))
        if recorded not in (None, corpus.fingerprints[split]):
            raise UserError(
                f"{split} of {corpus.test_set} has fingerprint {corpus.fingerprints[split]}, but the run was scored on "
                f"{recorded}: its data have changed; data.path=... scores other reviews"
            )
    trainer = cfg["trainer"] | {"precision": cfg["trainer"]["precision"] or theirs["trainer"]["precision"]}
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
    theirs, checkpoint = open_run(cfg["run"])
    settings = with_changes(theirs, cfg["data"])
    glove = load_vectors(settings["data"])
    module = trained_module(settings, checkpoint, glove)
    return Reader(settings, module, Tokenizer(settings["data"]["tokenizer"], glove.words)), checkpoint.parents[1]


def label_texts(cfg: Mapping[str, Any], texts: Sequence[str], at_once: int = 64) -> tuple[list[Explanation], Path]:
    """Labels texts with a finished run; with `explain` also says which words were attended to.

    cfg: conf/predict.yaml. Returns what was found of each text, and the run folder. Raises UserError for wrong input.
    """
    reader, folder = load_reader(cfg)
    if cfg["explain"]:
        return [reader.explain(text, whole=number < WHOLE) for number, text in enumerate(texts)], folder
    parts = (texts[start : start + at_once] for start in range(0, len(texts), at_once))
    return [found for some in parts for found in reader.label(some)], folder
