"""Weights of other runs: `init`, the encoder of a run of task=masked_words, or vectors of regions of task=neighbors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from imdbattn.data.corpus import ReviewCorpus
from imdbattn.errors import UserError
from imdbattn.nn.beyond.regions import Regions
from imdbattn.run_folder import FINGERPRINT, check_held_out, finished, open_run
from imdbattn.settings.keys import as_text, digest, without
from imdbattn.settings.safety import read_json
from imdbattn.tasks.build import check_vectors, read_checkpoint, reason

ENCODER = ("embedding", "width", "convolution", "positions", "layers", "layer")  # of `model`, that `init` must share
UNUSED = ("head.", "pooling.")  # prefixes of pretrained weights that are not used: the classifier has its own
START = ("start", "region")  # facts about the pretraining in a checkpoint
REGIONS = "context.regions.regions"  # name of a nn.beyond.regions.Regions in a classifier
PREFIXES = {  # of the names of weights: in a run of each pretraining task, and in a classifier
    "masked_words": ("net.encoder.", ""),
    "neighbors": ("net.regions.", f"{REGIONS}."),
}


def pretrained_weights(
    cfg: Any, corpus: ReviewCorpus, resumed: Mapping[str, Any] | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights of the run `init`, by their names in a classifier, and facts: `start`, six hex digits of its settings.

    resumed: the checkpoint of a classifier that was initialized from that run. Its weights are then returned instead.
    Raises UserError unless it is a finished run of a pretraining task with the same vectors, and the same encoder if it
    has one, that was not trained on reviews of this run's validation or test split.
    """
    if resumed:
        facts = resumed["hyper_parameters"]
        return without_prefix(resumed["state_dict"]), {key: facts[key] for key in START if key in facts}
    task = "neighbors" if cfg.model.name == "regions" else "masked_words"
    run, remedy = cfg.init, f"train one, task={task} hydra.run.dir=runs/{task}, or set init=null"
    folder = Path(run)
    if not finished(folder):
        raise UserError(f"init={run} is not a folder with a finished pretraining: {remedy}")
    pretraining, checkpoint = open_run(run, cfg.trust, cfg.model_dump())
    if pretraining.task not in PREFIXES:
        raise UserError(f"init={run} is a run of task={pretraining.task}: {remedy}")
    settings = pretraining.model_dump()
    if pretraining.task == "masked_words":
        check_encoder(run, settings["model"], cfg.model_dump()["model"])
    try:
        metrics = read_json(folder / "metrics.json")
        content = read_checkpoint(checkpoint, remedy)
        weights, facts = content["state_dict"], content["hyper_parameters"]
        vectors = facts["vectors"]
        held_out = {key: metrics[key] for key in FINGERPRINT.values()}
    except Exception as error:
        raise UserError(f"init={run} cannot be read ({reason(error)[:300]}): {remedy}") from error
    check_vectors(f"init={run}", vectors, corpus.glove.fingerprint)
    check_held_out(f"init={run}", held_out, corpus.fingerprints)
    old, new = PREFIXES[pretraining.task]
    names = {name: name.removeprefix(old) for name in weights if name.startswith(old)}
    used = {new + short: weights[name] for name, short in names.items() if not short.startswith(UNUSED)}
    if settings["data"].get("fold"):  # the same digest for all folds
        settings["data"]["fold"] = None
    facts = facts | {"start": digest(settings)}
    return used, {key: facts[key] for key in START if key in facts}


def without_prefix(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a checkpoint by their names in its net."""
    return {name.removeprefix("net."): weight for name, weight in weights.items()}


def pretrained_regions(weights: Mapping[str, Tensor], facts: Mapping[str, Any], rows: int) -> Regions | None:
    """The vectors of regions in the weights of a classifier, if it has some. rows: number of ids.

    Raises ValueError if they are damaged.
    """
    if (slot_V := weights.get(f"{REGIONS}.slot_V")) is None:
        return None
    region = facts.get("region")
    if len(slot_V) != rows or slot_V.min() < 0 or not (isinstance(region, int) and 0 < region < 1000):
        raise ValueError("its vectors of regions are damaged")
    return Regions(slot_V, weights[f"{REGIONS}.table_RE"].shape[1], region)


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
