"""Results of other runs: labels of unlabeled reviews by `data.teachers`, and initial weights from `init`.

The labels are the mean of the probabilities of several models (Hinton, Vinyals and Dean, "Distilling the Knowledge in a
Neural Network", NIPS 2014 workshop), so that one model approximates an ensemble and also learns from unlabeled reviews.

Shape suffixes: N training reviews, U reviews of data.unlabelled, the last of them, C classes.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from tqdm import tqdm

from imdbattn.data.corpus import ReviewCorpus, with_unlabelled
from imdbattn.data.sampling import Batches
from imdbattn.errors import UserError
from imdbattn.files import build_once, cache_root, expanded, sha256_of
from imdbattn.nn.beyond.regions import Regions
from imdbattn.run_folder import FINGERPRINT, check_held_out, finished, open_run
from imdbattn.settings.keys import as_text, digest, without
from imdbattn.settings.safety import read_json
from imdbattn.tasks.build import check_vectors, load_weights, read_checkpoint, reason
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.task import task_of

log = logging.getLogger(__name__)

REMEDY = "train teachers on the same data with python -m imdbattn.train +experiment=teachers"
FORMAT = 1  # version of the cached labels; increment it when probabilities would differ
ENCODER = ("embedding", "width", "convolution", "positions", "layers", "layer")  # of `model`, that `init` must share
UNUSED = ("head.", "pooling.")  # prefixes of pretrained weights that are not used: the classifier has its own
START = ("start", "region")  # facts about the run `init` in a checkpoint
REGIONS = "context.regions.regions"  # name of a nn.beyond.regions.Regions in a classifier
PREFIXES = {  # of the names of weights: in a run of each pretraining task, and in a classifier
    "masked_words": ("net.encoder.", ""),
    "neighbors": ("net.regions.", f"{REGIONS}."),
}


def with_soft_labels(corpus: ReviewCorpus, cfg: Any) -> ReviewCorpus:
    """The corpus with the reviews of data.unlabelled, and `targets_NC`: for these the teachers' mean, else the labels.

    Raises UserError for a teacher that is not trusted, has other data, labels or vectors than this run, or may have
    been trained on reviews of its validation or test split.
    """
    data = cfg.data
    opened = [(run, *open_teacher(run, corpus, cfg)) for run in teachers(data.teachers)]  # all are checked first
    corpus = with_unlabelled(corpus, data)
    train, classes = corpus.splits["train"], len(corpus.label_names)
    means_UC, keys = torch.zeros(corpus.added, classes, dtype=torch.float64), []
    for run, settings, checkpoint in opened:
        probabilities_UC, key = labels_by(run, settings, checkpoint, corpus, data)
        means_UC += probabilities_UC / len(opened)
        keys.append(key)
    known_N = train.labels[: len(train) - corpus.added]
    key = sha256(" ".join(sorted(keys)).encode()).hexdigest()[:16]
    return replace(
        corpus,
        splits=corpus.splits | {"train": replace(train, labels=torch.cat([known_N, means_UC.argmax(1)]))},
        targets_NC=torch.cat([F.one_hot(known_N, classes), means_UC]).float(),
        fingerprints=corpus.fingerprints | {"teachers": key},
        source_key=f"{corpus.source_key}-{key}",
        facts=corpus.facts | {"unlabelled_reviews": corpus.added, "teachers": len(opened)},
    )


def teachers(where: str) -> list[Path]:
    """The finished run `where`, or those in that folder. Raises UserError if there is none."""
    folder = expanded(where)
    if finished(folder):
        return [folder]
    try:
        runs = sorted(run for run in folder.iterdir() if finished(run))
    except OSError as error:
        raise UserError(f"data.teachers={where} cannot be read ({error.strerror}): {REMEDY}") from error
    if not runs:
        raise UserError(f"data.teachers={where} contains no finished run: {REMEDY}")
    return runs


def open_teacher(run: Path, corpus: ReviewCorpus, cfg: Any) -> tuple[Any, Path]:
    """Settings and best checkpoint of a teacher, after the checks of `with_soft_labels`."""
    settings, checkpoint = open_run(str(run), cfg.trust, cfg.model_dump())
    name = f"data.teachers: {run}"
    if settings.task != "reviews":
        raise UserError(f"{name} is a run of task={settings.task}, which labels no reviews: {REMEDY}")
    metrics = read_json(run / "metrics.json")
    check_held_out(name, {key: metrics.get(key) for key in FINGERPRINT.values()}, corpus.fingerprints)
    if metrics.get("labels") != corpus.label_names:
        raise UserError(f"{name} has other labels than {', '.join(corpus.label_names)}: {REMEDY}")
    if (other := settings.data.tokenizer) != cfg.data.tokenizer:  # its vectors are compared when it is loaded
        raise UserError(f"{name} has data.tokenizer={other}, but this run has {cfg.data.tokenizer}: use the same")
    return settings, checkpoint


def labels_by(run: Path, settings: Any, checkpoint: Path, corpus: ReviewCorpus, cfg: Any) -> tuple[Tensor, str]:
    """A teacher's probabilities of the reviews of data.unlabelled, (U, C), and their key in the cache.

    Raises UserError if the teacher cannot be loaded.
    """
    identity = [FORMAT, sha256_of(checkpoint), sha256_of(run / "config.yaml")]
    identity += [corpus.fingerprints["unlabelled"], corpus.glove.fingerprint]
    key = sha256(" ".join(map(str, identity)).encode()).hexdigest()[:24]

    def build(folder: Path) -> None:
        log.info("Labeling %d reviews with %s", corpus.added, run)
        task: Any = task_of(settings)
        reviews = corpus.splits["train"].last(corpus.added)
        with isolate_rng():  # the run must not depend on whether the cache has the labels
            predictor = task.predictor(settings, checkpoint, corpus)
            batches = Batches(reviews, **predictor.batch_options)
            bar = partial(tqdm, desc="Labeling", leave=False, disable=None)  # disable=None: without a terminal
            np.save(folder / "probabilities.npy", predictor.classify_batches(batches, bar))

    folder = build_once(cache_root(cfg.cache_dir) / "labels" / key, build)
    return torch.from_numpy(np.load(folder / "probabilities.npy")), key


# --- init: the weights of a run of the same task, or of a pretraining: an encoder, or vectors of regions --------------


def start_of(
    cfg: Any, corpus: Any, resumed: Mapping[str, Any] | None = None
) -> tuple[Mapping[str, Tensor], Mapping[str, Any], bool | None]:
    """Weights of the run `init` by their names in the net, facts of their checkpoint, and whether they are all weights.

    None instead of the last: there are none, or they are in `resumed`, the checkpoint of a run that `init` initialized.
    Among the facts, `start` is six hex digits of the settings of the run `init`.
    Raises UserError unless it is a finished run of the same task, or for a classifier of a pretraining task with the
    same encoder, that has the same vectors and was not trained on items of this run's validation or test split.
    """
    if not cfg.init:
        return {}, {}, None
    if resumed:
        return without_prefix(resumed["state_dict"]), resumed["hyper_parameters"], None
    task = cfg.task if cfg.task != "reviews" else "neighbors" if cfg.model.name == "regions" else "masked_words"
    run, remedy = cfg.init, f"train one, task={task} hydra.run.dir=runs/{task}, or set init=null"
    if not finished(Path(run)):
        raise UserError(f"init={run} is not a folder with a finished run: {remedy}")
    other, checkpoint = open_run(run, cfg.trust, cfg.model_dump())
    settings, whole = other.model_dump(), other.task == cfg.task
    if not whole and (cfg.task != "reviews" or other.task not in PREFIXES):
        raise UserError(f"init={run} is a run of task={other.task}: {remedy}")
    if not whole and other.task == "masked_words":
        check_encoder(run, settings["model"], cfg.model_dump()["model"])
    content, metrics = read_checkpoint(checkpoint, remedy), read_json(Path(run) / "metrics.json")
    weights, facts = content["state_dict"], content["hyper_parameters"]
    if "vectors" in facts:
        check_vectors(f"init={run}", facts["vectors"], corpus.glove.fingerprint)
    check_held_out(f"init={run}", {key: metrics.get(key) for key in FINGERPRINT.values()}, corpus.fingerprints)
    old, new = ("net.", "") if whole else PREFIXES[other.task]
    names = {name: name.removeprefix(old) for name in weights if name.startswith(old)}
    used = {new + short: weights[name] for name, short in names.items() if whole or not short.startswith(UNUSED)}
    if settings["data"].get("fold"):  # the same digest for all folds
        settings["data"]["fold"] = None
    start = digest(settings | {"init": facts.get("start")})  # of the run that it started from, in any folder
    return used, {**facts, "start": start}, whole


def load_start(module: Learner, weights: Mapping[str, Tensor], facts: Mapping[str, Any], whole: bool | None) -> None:
    """Loads what `start_of` returns into an untrained model. Raises UserError naming the first that does not fit."""
    run, net = f"init={module.cfg.init}", module.net
    module.hparams.update({key: facts[key] for key in START if key in facts})
    if whole is None:
        return
    for key in ("source_symbols", "target_symbols"):
        if facts.get(key) != module.hparams.get(key):
            raise UserError(f"{run} has other {key.replace('_', ' ')}: train both on the same data")
    own = net.state_dict()
    for name in dict.fromkeys([*own, *weights]) if whole else weights:
        here, there = (str(tuple(one[name].shape)) if name in one else "missing" for one in (own, weights))
        if here != there:
            raise UserError(f"{run} has another shape: its {name} is {there}, that of this model {here}")
    constants = {name for name, one in net.named_buffers() if one.is_floating_point()}  # such as the vectors' scale
    try:
        load_weights(net, {name: weights[name] for name in weights if name not in constants}, strict=False)
    except ValueError as error:
        raise UserError(f"{run} cannot be used ({reason(error)[:300]}): train it again") from error


def without_prefix(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a checkpoint by their names in its net."""
    return {name.removeprefix("net."): weight for name, weight in weights.items()}


def pretrained_regions(weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Regions | None:
    """The vectors of regions in the weights of a classifier, if it has some."""
    if (slot_V := weights.get(f"{REGIONS}.slot_V")) is None:
        return None
    return Regions(slot_V, weights[f"{REGIONS}.table_RE"].shape[1], facts["region"])


def check_encoder(run: str, pretrained: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    """Raises UserError unless the `model` settings of a run describe the same encoder as those of this run."""
    old, new = (
        without({key: one.get(key) for key in ENCODER}, "layer.dropout", "embedding.mixout")
        for one in (pretrained, model)
    )
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            values = f"model.{key}={as_text(old.get(key))}, but this model has {as_text(new.get(key))}"
            raise UserError(f"init={run} has {values}: train both with the same encoder")
