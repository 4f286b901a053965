"""Weights of another run: `init`, the encoder of a run of task=masked_words."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from imdbattn.data.corpus import ReviewCorpus
from imdbattn.errors import UserError
from imdbattn.run_folder import FINGERPRINT, check_held_out, finished, open_run
from imdbattn.settings.keys import as_dict, as_text, digest, without
from imdbattn.settings.safety import read_json
from imdbattn.tasks.build import check_vectors, read_checkpoint, reason

ENCODER = ("embedding", "width", "convolution", "positions", "layers", "layer")  # of `model`, that `init` must share
UNUSED = ("head.", "pooling.")  # prefixes of pretrained weights that are not used: the classifier has its own
PREFIX = "net.encoder."  # of the names of the encoder's weights in a run of task=masked_words


def pretrained_weights(
    cfg: Any, corpus: ReviewCorpus, resumed: Mapping[str, Any] | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights of the run `init`, by their names in a classifier, and facts: `start`, six hex digits of its settings.

    resumed: the checkpoint of a classifier that was initialized from that run. Its weights are then returned instead.
    Raises UserError unless it is a finished run of task=masked_words with the same vectors and encoder that was not
    trained on reviews of this run's validation or test split.
    """
    if resumed:
        return without_prefix(resumed["state_dict"]), {"start": resumed["hyper_parameters"]["start"]}
    run, remedy = cfg.init, "train one, task=masked_words hydra.run.dir=runs/masked_words, or set init=null"
    folder = Path(run)
    if not finished(folder):
        raise UserError(f"init={run} is not a folder with a finished pretraining: {remedy}")
    pretraining, checkpoint = open_run(run, cfg.trust, as_dict(cfg))
    if pretraining.task != "masked_words":
        raise UserError(f"init={run} is a run of task={pretraining.task}: {remedy}")
    settings = as_dict(pretraining)
    check_encoder(run, settings["model"], as_dict(cfg)["model"])
    try:
        metrics = read_json(folder / "metrics.json")
        content = read_checkpoint(checkpoint, remedy)
        weights, vectors = content["state_dict"], content["hyper_parameters"]["vectors"]
        held_out = {key: metrics[key] for key in FINGERPRINT.values()}
    except Exception as error:
        raise UserError(f"init={run} cannot be read ({reason(error)[:300]}): {remedy}") from error
    check_vectors(f"init={run}", vectors, corpus.glove.fingerprint)
    check_held_out(f"init={run}", held_out, corpus.fingerprints)
    names = {name: name.removeprefix(PREFIX) for name in weights if name.startswith(PREFIX)}
    used = {short: weights[name] for name, short in names.items() if not short.startswith(UNUSED)}
    if settings["data"].get("fold"):  # the same digest for all folds
        settings["data"]["fold"] = None
    return used, {"start": digest(settings)}


def without_prefix(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a checkpoint by their names in its net."""
    return {name.removeprefix("net."): weight for name, weight in weights.items()}


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
